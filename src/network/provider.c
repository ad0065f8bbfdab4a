/*
 * Choosing the provider: see provider.h.
 *
 * A name may stand for several providers: `tcp` is a provider of reliable datagrams since libfabric
 * 1.18; in 1.17 the same code is called `net`, and `tcp` has connections only, which ofi_rxm makes
 * datagrams of.  All that a name can mean are tried in a fixed order, so that all processes of a
 * job come to the same.
 *
 * We are usually inside a provider ourselves, in a process with FI_PROVIDER=ivc.  libfabric then
 * hides all others, unless it is asked for the hidden ones, too.  That flag of libfabric's own
 * reaches the providers, but ofi_rxm asks again, without it, when it is opened, and finds nothing
 * to stand on: there FI_PROVIDER must name its core as well, and our text says so.
 * A libfabric that keeps its providers in files of their own, and loads only those it was pointed
 * to, is helped by loading that file (Intel MPI's).
 */
#include "network/provider.h"

#include "base/error.h"
#include "base/util.h"
#include "network/network.h"

#include <errno.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

/* OFI_GETINFO_HIDDEN of libfabric's ofi.h: the same bit from 1.14 to 2.6. */
static const uint64_t HIDDEN_TOO = 1ull << 60;

enum {
    NAME_MAX_LEN = 64,
    MR_MODES = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT,
};

/* Providers by name, with what there is to say of them. */
struct refusals {
    char text[240];
    size_t len;
};

__attribute__((format(printf, 2, 3)))
static void refuse(struct refusals *refusals, const char *format, ...)
{
    size_t room = sizeof refusals->text - refusals->len;
    va_list args;
    int n;

    if (room < 3)
        return;
    if (refusals->len > 0)
        refusals->len += (size_t)snprintf(refusals->text + refusals->len, room, ", ");
    room = sizeof refusals->text - refusals->len;
    va_start(args, format);
    n = vsnprintf(refusals->text + refusals->len, room, format, args);
    va_end(args);
    refusals->len = n < 0 ? refusals->len
        : IVC_MIN(refusals->len + (size_t)n, sizeof refusals->text - 1);
}

static bool names_us(const char *name)
{
    for (const char *at = name; *at; at += strspn(at, ";")) {
        size_t len = strcspn(at, ";");

        if (len == 3 && strncasecmp(at, "ivc", 3) == 0)
            return true;
        at += len;
    }
    return false;
}

/* All that `wanted` can mean, best first. */
static unsigned expand(const char *wanted, char names[4][NAME_MAX_LEN])
{
    unsigned n = 0;

    snprintf(names[n++], NAME_MAX_LEN, "%s", wanted);
    if (strcasecmp(wanted, "tcp") == 0)
        snprintf(names[n++], NAME_MAX_LEN, "net");
    if (!strchr(wanted, ';') && strncasecmp(wanted, "ofi_", 4) != 0) {
        snprintf(names[n++], NAME_MAX_LEN, "%s;ofi_rxm", wanted);
        snprintf(names[n++], NAME_MAX_LEN, "%s;ofi_rxd", wanted);
    }
    return n;
}

static uint32_t api_version(const struct ivc_libfabric *libfabric)
{
    return IVC_MIN(libfabric->version(), FI_VERSION(1, 17));
}

/* False: out of memory. */
static bool set_source(struct fi_info *hints, const union ivc_ip *source)
{
    size_t len = ivc_ip_size(source);

    hints->src_addr = malloc(len);
    if (!hints->src_addr)
        return false;
    memcpy(hints->src_addr, source, len);
    ivc_ip_set_port(hints->src_addr, 0);
    hints->src_addrlen = len;
    hints->addr_format = source->any.sa_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
    return true;
}

static struct fi_info *make_hints(const struct ivc_libfabric *libfabric, const char *name,
                                  bool threads, uint64_t caps, const union ivc_ip *source)
{
    struct fi_info *hints = libfabric->dupinfo(NULL);

    if (!hints)
        return NULL;
    if (source && !set_source(hints, source)) {
        libfabric->freeinfo(hints);
        return NULL;
    }
    hints->caps = caps;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->domain_attr->mr_mode = MR_MODES;
    hints->domain_attr->threading = threads ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->fabric_attr->prov_name = strdup(name);
    return hints;
}

static const char *fault(const struct fi_info *info)
{
    if (info->ep_attr->type != FI_EP_RDM)
        return "no reliable datagrams";
    if (!(info->caps & FI_MSG))
        return "no messages";
    if (!(info->tx_attr->msg_order & FI_ORDER_SAS))
        return "does not keep the order of messages";
    if (info->mode & ~(uint64_t)(FI_CONTEXT | FI_CONTEXT2))
        return "asks for a mode that we do not serve";
    if (info->domain_attr->mr_mode & ~MR_MODES)
        return "asks for a registration that we do not serve";
    return NULL;
}

/* A provider that was asked directly leaves it to libfabric's core to fill these in. */
static void complete(struct fi_fabric_attr *attr, const char *name, uint32_t version)
{
    if (attr->prov_name)
        return;
    attr->prov_name = strdup(name);
    attr->api_version = version;
}

/* A copy of the first good one of a list, which is freed. */
static struct fi_info *take_good(const struct ivc_libfabric *libfabric, struct fi_info *list,
                                 const char *name, const char **ret_fault)
{
    struct fi_info *good = NULL;

    for (struct fi_info *info = list; info && !good; info = info->next) {
        const char *why;

        complete(info->fabric_attr, name, api_version(libfabric));
        if (!info->fabric_attr->prov_name || strcasecmp(info->fabric_attr->prov_name, name) != 0)
            continue;
        why = fault(info);
        if (!why)
            good = libfabric->dupinfo(info);
        else
            *ret_fault = why;
    }
    libfabric->freeinfo(list);
    return good;
}

struct question {
    const struct ivc_libfabric *libfabric;
    ivc_getinfo_fn *getinfo;
    ivc_fabric_fn *fabric;
    const char *name;       /* in full */
    bool threads;
    const union ivc_ip *source;     /* NULL: any */
};

/* Asks for a way to open the provider, at best one that can read remote memory. */
static struct fi_info *ask(const struct question *question, const char **ret_fault)
{
    static const uint64_t caps[] = { FI_MSG | FI_RMA, FI_MSG };
    struct fi_info *info = NULL;

    for (unsigned i = 0; i < 2 && !info; i++) {
        struct fi_info *list = NULL, *hints = make_hints(question->libfabric, question->name,
                                                         question->threads, caps[i], question->source);

        if (!hints)
            return NULL;
        if (question->getinfo(api_version(question->libfabric), NULL, NULL, HIDDEN_TOO, hints,
                              &list) == 0)
            info = take_good(question->libfabric, list, question->name, ret_fault);
        question->libfabric->freeinfo(hints);
    }
    return info;
}

/* Why there was no answer: is there such a provider, and what has it? */
static const char *explain(const struct question *question)
{
    struct fi_info *list = NULL, *hints = question->libfabric->dupinfo(NULL);
    const char *why = "not there";

    if (!hints)
        return why;
    hints->mode = ~0ull;
    hints->domain_attr->mr_mode = MR_MODES;
    hints->fabric_attr->prov_name = strdup(question->name);
    if (question->getinfo(api_version(question->libfabric), NULL, NULL, HIDDEN_TOO, hints,
                          &list) == 0) {
        why = "has not what we need (reliable datagrams that keep their order)";
        question->libfabric->freeinfo(take_good(question->libfabric, list, question->name, &why));
    }
    question->libfabric->freeinfo(hints);
    return why;
}

static bool reads_memory(const struct fi_info *info)
{
    return (info->caps & FI_RMA) && (info->tx_attr->caps & FI_READ || info->caps & FI_READ);
}

static bool try_open(const struct question *question, struct refusals *refusals,
                     struct ivc_provider *ret_provider)
{
    const char *why = NULL, *filter = getenv("FI_PROVIDER");
    struct fid_fabric *fabric;
    struct fi_info *info = ask(question, &why);
    int r;

    if (!info) {
        refuse(refusals, "%s: %s", question->name, why ? why : explain(question));
        return false;
    }
    /* Whoever calls libfabric's fi_fabric() gets its hooks as well; a provider from a file of its
     * own is asked directly. */
    r = question->fabric(info->fabric_attr, &fabric, NULL);
    if (r < 0) {
        if (filter && *filter && strchr(question->name, ';'))
            refuse(refusals, "%s: hidden from itself by FI_PROVIDER=%s (name %.*s there, too)",
                   question->name, filter, (int)strcspn(question->name, ";"), question->name);
        else
            refuse(refusals, "%s: %s", question->name, question->libfabric->strerror(-r));
        question->libfabric->freeinfo(info);
        return false;
    }
    *ret_provider = (struct ivc_provider){
        .info = info, .fabric = fabric,
        .rma = reads_memory(info), .threads = question->threads,
        .getinfo = question->getinfo, .open = question->fabric,
    };
    return true;
}

/* A provider in a file of its own: its core's name is the file's. */
static bool try_file(struct question *question, struct refusals *refusals,
                     struct ivc_provider *ret_provider)
{
    if (strchr(question->name, ';')
        || !ivc_provider_load(question->libfabric, question->name, &question->getinfo,
                              &question->fabric))
        return false;
    return try_open(question, refusals, ret_provider);
}

static bool says(const struct refusals *refusals, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = refusals->text; *at; at += strspn(at, ", ")) {
        size_t n = strcspn(at, ",");

        if (n >= len && strncmp(at, name, len) == 0 && (n == len || at[len] == ' '))
            return true;
        at += n;
    }
    return false;
}

static bool leaves_host(const struct fi_info *info)
{
    return !(info->caps & FI_LOCAL_COMM) || (info->caps & FI_REMOTE_COMM);
}

/* Adds those that could be used, or those that could not, each once. */
static void list_some(const struct fi_info *list, bool usable, struct refusals *others)
{
    for (const struct fi_info *info = list; info; info = info->next) {
        const char *name = info->fabric_attr->prov_name, *why = fault(info);

        if (!name || names_us(name) || !leaves_host(info) || says(others, name)
            || usable == (why != NULL))
            continue;
        if (why)
            refuse(others, "%s (%s)", name, why);
        else
            refuse(others, "%s", name);
    }
}

/* A list made without a name leaves out some that answer to theirs: newer libfabrics' tcp. */
static void list_default(const struct ivc_libfabric *libfabric, struct refusals *others)
{
    const struct question question = { .libfabric = libfabric, .getinfo = libfabric->getinfo,
                                       .name = "tcp" };
    const char *why = NULL;
    struct fi_info *info = says(others, question.name) ? NULL : ask(&question, &why);

    if (!info)
        return;
    refuse(others, "%s", question.name);
    libfabric->freeinfo(info);
}

/* What else there is that a name could be given of. */
static void list_others(const struct ivc_libfabric *libfabric, struct refusals *others)
{
    struct fi_info *list = NULL, *hints = libfabric->dupinfo(NULL);

    if (!hints)
        return;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = MR_MODES;
    if (libfabric->getinfo(api_version(libfabric), NULL, NULL, HIDDEN_TOO, hints, &list) == 0) {
        list_some(list, true, others);
        list_some(list, false, others);
        libfabric->freeinfo(list);
    }
    libfabric->freeinfo(hints);
    list_default(libfabric, others);
}

/* One line: what was asked for, why it is not to be had, what is there instead. */
static int none_found(const struct ivc_libfabric *libfabric, const char *wanted,
                      const struct refusals *refusals)
{
    struct refusals others = { .len = 0 };
    uint32_t version = libfabric->version();

    list_others(libfabric, &others);
    return ivc_error_set(-ENODEV, "IVC_NETWORK=%.60s cannot be used (%s); for a network libfabric "
                         "%u.%u (%.120s) has %s; IVC_NETWORK=none does without", wanted,
                         refusals->text, FI_MAJOR(version), FI_MINOR(version), libfabric->path,
                         others.len > 0 ? others.text : "nothing else");
}

int ivc_provider_find(const struct ivc_libfabric *libfabric, const char *wanted, bool threads,
                      struct ivc_provider *ret_provider)
{
    struct refusals refusals = { .len = 0 };
    char names[4][NAME_MAX_LEN];
    unsigned n;

    if (!*wanted)
        wanted = "tcp";
    if (names_us(wanted))
        return ivc_error_set(-EINVAL, "IVC_NETWORK=%.60s: that is this provider itself; name the "
                             "one that is to carry its packets between hosts (tcp)", wanted);
    n = expand(wanted, names);
    for (unsigned i = 0; i < 2 * n; i++) {
        struct question question = { libfabric, libfabric->getinfo, libfabric->fabric, names[i % n],
                                     threads, NULL };

        if (i < n ? try_open(&question, &refusals, ret_provider)
                  : try_file(&question, &refusals, ret_provider))
            return 0;
    }
    return none_found(libfabric, wanted, &refusals);
}

bool ivc_provider_is_of_ip(const struct ivc_provider *provider)
{
    static const char *const cores[] = { "tcp", "net", "sockets", "udp" };
    const char *name = provider->info->fabric_attr->prov_name;
    uint32_t format = provider->info->addr_format;
    size_t len = strcspn(name, ";");

    if (format != FI_SOCKADDR && format != FI_SOCKADDR_IN && format != FI_SOCKADDR_IN6)
        return false;
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (strlen(cores[i]) == len && strncasecmp(name, cores[i], len) == 0)
            return true;
    return false;
}

int ivc_provider_open(const struct ivc_libfabric *libfabric, struct ivc_provider *provider,
                      const union ivc_ip *source)
{
    const char *name = provider->info->fabric_attr->prov_name, *why = NULL;
    struct question question = { libfabric, provider->getinfo, provider->open, name, provider->threads,
                                 source };
    struct fi_info *info;
    char text[INET6_ADDRSTRLEN];
    int r;

    if (!source)
        return 0;
    ivc_ip_text(source, text, sizeof text);
    info = ask(&question, &why);
    if (!info)
        return ivc_error_set(-ENODEV, "network: %s cannot be opened at our address %s%s%s", name, text,
                             why ? ": " : "", why ? why : "");
    fi_close(&provider->fabric->fid);
    provider->fabric = NULL;
    libfabric->freeinfo(provider->info);
    provider->info = info;
    provider->rma = reads_memory(info);
    r = provider->open(info->fabric_attr, &provider->fabric, NULL);
    return r == 0 ? 0 : ivc_error_set(-ENODEV, "network: %s at our address %s: %s",
                                      info->fabric_attr->prov_name, text, libfabric->strerror(-r));
}

uint32_t ivc_provider_hash(const struct fi_info *info)
{
    uint32_t hash = 2166136261u;    /* FNV-1a */
    uint32_t facts[] = {
        info->addr_format, info->ep_attr->protocol, info->ep_attr->protocol_version,
    };
    const uint8_t *bytes = (const uint8_t *)facts;

    for (const char *at = info->fabric_attr->prov_name; *at; at++)
        hash = (hash ^ (uint8_t)*at) * 16777619u;
    for (size_t i = 0; i < sizeof facts; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash ? hash : 1;     /* 0 says: no network */
}
