/*
 * fi_getinfo(): what we offer, and whether that is what was asked for.
 *
 * Invariant: what is returned is served.  Everything that a hint asks beyond it makes the answer
 * "nothing" (-FI_ENODATA), with a line in the log at level info that says which hint it was.
 * Nothing of libfabric's may be called, so lists are put together from malloc'ed parts, as
 * fi_freeinfo() frees them.
 */
#include "internal.h"
#include "region/region.h"

#include <string.h>

#define MESSAGE_CAPS (FI_MSG | FI_TAGGED)
#define MEMORY_CAPS (FI_RMA | FI_ATOMIC)
#define TX_CAPS (MESSAGE_CAPS | MEMORY_CAPS | FI_SEND | FI_READ | FI_WRITE)
#define RX_ONLY_CAPS (FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT)
#define RX_CAPS (MESSAGE_CAPS | MEMORY_CAPS | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE \
                 | RX_ONLY_CAPS)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define EP_CAPS (TX_CAPS | RX_CAPS | FI_FENCE | DOMAIN_CAPS)

#define TX_OP_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE \
                     | FI_DELIVERY_COMPLETE)
#define RX_OP_FLAGS (FI_COMPLETION | FI_MULTI_RECV)

#define ORDER (FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR \
               | FI_ORDER_ATOMIC_WAW)

/* Of libfabric 2: receives directed at a source, for tagged messages only or in its strict sense.
 * FI_DIRECTED_RECV of ours is both. */
#define DIRECTED_OF_2 ((1ull << 45) | (1ull << 48))

#define PROTOCOL 0x80697663u                 /* FI_PROV_SPECIFIC and "ivc": also of addresses */
enum {
    PROTOCOL_VERSION = 1,
    OBJECTS_MAX = 65536,                    /* queues, counters, registrations: as advertised */
    ENDPOINTS_MAX = 1024,
};
#define MESSAGE_MAX (SIZE_MAX / 2)

/* Later libfabrics copy a longer struct fi_domain_attr than ours from what we return: theirs,
 * zeroed, with room for more. */
struct domain_attr_2 {
    struct fi_domain_attr attr;
    size_t max_ep_auth_key;
    uint32_t max_group_id;
    uint64_t max_cntr_value;
    uint64_t max_err_cntr_value;
};
enum { GROWTH = 256 };

/* ---------------------------------------------------------------- is that what was asked for? */

static int refuse(const char *what)
{
    IVC_FI_INFO("not offered: %s", what);
    return -FI_ENODATA;
}

struct limit {
    const char *what;
    uint64_t asked, most;
};

static int check_limits(const struct limit *limits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (limits[i].asked > limits[i].most)
            return refuse(limits[i].what);
    }
    return 0;
}
#define CHECK_LIMITS(...)                                                   \
    check_limits((const struct limit[]){ __VA_ARGS__ },                     \
                 sizeof((const struct limit[]){ __VA_ARGS__ }) / sizeof(struct limit))

/* Directions are implied by what they are directions of. */
static uint64_t expand(uint64_t caps)
{
    if ((caps & MESSAGE_CAPS) && !(caps & (FI_SEND | FI_RECV)))
        caps |= FI_SEND | FI_RECV;
    if ((caps & MEMORY_CAPS) && !(caps & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)))
        caps |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    return caps;
}

static uint64_t offered_caps(uint32_t version)
{
    return FI_VERSION_GE(version, FI_VERSION(2, 0)) ? EP_CAPS | DIRECTED_OF_2 : EP_CAPS;
}

static int check_tx(const struct fi_tx_attr *tx, uint64_t caps)
{
    if (tx->caps & ~caps)
        return refuse("tx_attr->caps");
    if (tx->op_flags & ~TX_OP_FLAGS)
        return refuse("tx_attr->op_flags");
    if (tx->msg_order & ~ORDER)
        return refuse("tx_attr->msg_order");
    if (tx->comp_order)
        return refuse("tx_attr->comp_order");
    return CHECK_LIMITS({ "tx_attr->inject_size", tx->inject_size, IVC_FI_INJECT_MAX },
                        { "tx_attr->size", tx->size, IVC_FI_QUEUE_SIZE },
                        { "tx_attr->iov_limit", tx->iov_limit, IVC_FI_IOV_MAX },
                        { "tx_attr->rma_iov_limit", tx->rma_iov_limit, IVC_FI_RMA_IOV_MAX });
}

static int check_rx(const struct fi_rx_attr *rx, uint64_t caps)
{
    if (rx->caps & ~caps)
        return refuse("rx_attr->caps");
    if (rx->op_flags & ~RX_OP_FLAGS)
        return refuse("rx_attr->op_flags");
    if (rx->msg_order & ~ORDER)
        return refuse("rx_attr->msg_order");
    if (rx->comp_order)
        return refuse("rx_attr->comp_order");
    return CHECK_LIMITS({ "rx_attr->size", rx->size, IVC_FI_RX_SIZE },
                        { "rx_attr->iov_limit", rx->iov_limit, IVC_FI_IOV_MAX });
}

static int check_ep(const struct fi_ep_attr *ep)
{
    if (ep->type != FI_EP_UNSPEC && ep->type != FI_EP_RDM)
        return refuse("ep_attr->type (FI_EP_RDM is)");
    if (ep->protocol != FI_PROTO_UNSPEC && ep->protocol != PROTOCOL)
        return refuse("ep_attr->protocol");
    if (ep->auth_key_size)
        return refuse("ep_attr->auth_key");
    return CHECK_LIMITS({ "ep_attr->protocol_version", ep->protocol_version, PROTOCOL_VERSION },
                        { "ep_attr->max_msg_size", ep->max_msg_size, MESSAGE_MAX },
                        { "ep_attr->msg_prefix_size", ep->msg_prefix_size, 0 },
                        { "ep_attr->tx_ctx_cnt", ep->tx_ctx_cnt, 1 },
                        { "ep_attr->rx_ctx_cnt", ep->rx_ctx_cnt, 1 },
                        { "max_order_raw_size", ep->max_order_raw_size, IVC_FI_ATOMIC_MAX },
                        { "max_order_war_size", ep->max_order_war_size, IVC_FI_ATOMIC_MAX },
                        { "max_order_waw_size", ep->max_order_waw_size, IVC_FI_ATOMIC_MAX });
}

/* We need no mode of registration.  Only the old words for sets of them can be asked wrongly. */
static int check_mr_mode(uint32_t version, int mode)
{
    bool old = FI_VERSION_LT(version, FI_VERSION(1, 5));
    int words = mode & (FI_MR_BASIC | FI_MR_SCALABLE);

    if ((words && words != mode) || words == (FI_MR_BASIC | FI_MR_SCALABLE)
        || (old && !words && mode))
        return refuse("domain_attr->mr_mode");
    return 0;
}

static int check_domain(const struct fi_domain_attr *domain)
{
    if (domain->name && strcmp(domain->name, IVC_FI_NAME) != 0)
        return refuse("domain_attr->name");
    if ((unsigned)domain->threading > FI_THREAD_ENDPOINT)
        return refuse("domain_attr->threading");
    /* Progress is made inside calls of the application's. */
    if (domain->data_progress == FI_PROGRESS_AUTO || domain->control_progress == FI_PROGRESS_AUTO)
        return refuse("FI_PROGRESS_AUTO");
    if ((unsigned)domain->av_type > FI_AV_TABLE)
        return refuse("domain_attr->av_type");
    if (domain->caps & ~DOMAIN_CAPS)
        return refuse("domain_attr->caps");
    if (domain->auth_key_size)
        return refuse("domain_attr->auth_key");
    return CHECK_LIMITS({ "domain_attr->mr_key_size", domain->mr_key_size, sizeof(uint64_t) },
                        { "domain_attr->cq_data_size", domain->cq_data_size, sizeof(uint64_t) },
                        { "domain_attr->cq_cnt", domain->cq_cnt, OBJECTS_MAX },
                        { "domain_attr->ep_cnt", domain->ep_cnt, ENDPOINTS_MAX },
                        { "domain_attr->tx_ctx_cnt", domain->tx_ctx_cnt, ENDPOINTS_MAX },
                        { "domain_attr->rx_ctx_cnt", domain->rx_ctx_cnt, ENDPOINTS_MAX },
                        { "domain_attr->max_ep_tx_ctx", domain->max_ep_tx_ctx, 1 },
                        { "domain_attr->max_ep_rx_ctx", domain->max_ep_rx_ctx, 1 },
                        { "domain_attr->max_ep_stx_ctx", domain->max_ep_stx_ctx, 0 },
                        { "domain_attr->max_ep_srx_ctx", domain->max_ep_srx_ctx, 0 },
                        { "domain_attr->cntr_cnt", domain->cntr_cnt, OBJECTS_MAX },
                        { "domain_attr->mr_iov_limit", domain->mr_iov_limit, IVC_FI_IOV_MAX },
                        { "domain_attr->mr_cnt", domain->mr_cnt, OBJECTS_MAX },
                        { "domain_attr->max_err_data", domain->max_err_data, 0 });
}

static int check_fabric(const struct fi_fabric_attr *fabric)
{
    if (fabric->name && strcmp(fabric->name, IVC_FI_NAME) != 0)
        return refuse("fabric_attr->name");
    if (fabric->prov_name && !strcasestr(fabric->prov_name, IVC_FI_NAME))
        return refuse("fabric_attr->prov_name");
    if (fabric->prov_version > ivc_fi_provider.version)
        return refuse("fabric_attr->prov_version");
    return 0;
}

static int check(uint32_t version, const struct fi_info *hints)
{
    uint64_t offered = offered_caps(version);
    uint64_t caps = hints->caps ? expand(hints->caps) : offered;
    int r = 0;

    if (hints->caps & ~offered)
        return refuse("caps");
    if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != PROTOCOL)
        return refuse("addr_format");
    if (hints->dest_addr && hints->dest_addrlen != IVC_ADDRESS_LEN)
        return refuse("dest_addr");
    if (hints->handle)
        return refuse("handle");
    if (hints->tx_attr)
        r = check_tx(hints->tx_attr, caps);
    if (r == 0 && hints->rx_attr)
        r = check_rx(hints->rx_attr, caps);
    if (r == 0 && hints->ep_attr)
        r = check_ep(hints->ep_attr);
    if (r == 0 && hints->domain_attr)
        r = check_domain(hints->domain_attr);
    if (r == 0 && hints->fabric_attr)
        r = check_fabric(hints->fabric_attr);
    return r;
}

int ivc_fi_info_check(const struct fi_info *info)
{
    return check(FI_VERSION(2, 0), info) == 0 ? 0 : -FI_EINVAL;
}

/* ---------------------------------------------------------------- what is returned */

void ivc_fi_info_free(struct fi_info *info)
{
    if (!info)
        return;
    free(info->src_addr);
    free(info->dest_addr);
    free(info->tx_attr);
    free(info->rx_attr);
    free(info->ep_attr);
    if (info->domain_attr)
        free(info->domain_attr->name);
    free(info->domain_attr);
    if (info->fabric_attr) {
        free(info->fabric_attr->name);
        free(info->fabric_attr->prov_name);
    }
    free(info->fabric_attr);
    free(info);
}

static struct fi_info *info_new(void)
{
    struct fi_info *info = calloc(1, sizeof *info + GROWTH);

    if (!info)
        return NULL;
    info->tx_attr = calloc(1, sizeof *info->tx_attr + GROWTH);
    info->rx_attr = calloc(1, sizeof *info->rx_attr + GROWTH);
    info->ep_attr = calloc(1, sizeof *info->ep_attr + GROWTH);
    info->domain_attr = calloc(1, sizeof(struct domain_attr_2) + GROWTH);
    info->fabric_attr = calloc(1, sizeof *info->fabric_attr + GROWTH);
    if (!info->tx_attr || !info->rx_attr || !info->ep_attr || !info->domain_attr
        || !info->fabric_attr) {
        ivc_fi_info_free(info);
        return NULL;
    }
    return info;
}

/* What an endpoint and its domain go by; addresses and names are not among it. */
struct fi_info *ivc_fi_info_dup(const struct fi_info *from)
{
    struct fi_info *info = info_new();

    if (!info)
        return NULL;
    info->caps = from->caps;
    info->mode = from->mode;
    if (from->tx_attr)
        *info->tx_attr = *from->tx_attr;
    if (from->rx_attr)
        *info->rx_attr = *from->rx_attr;
    if (from->ep_attr)
        *info->ep_attr = *from->ep_attr;
    info->ep_attr->auth_key = NULL;
    return info;
}

/* Secondary capabilities that cost nothing are there unasked; primary ones, and the matching by
 * source, only when they were asked for. */
static uint64_t granted_caps(uint32_t version, const struct fi_info *hints)
{
    uint64_t caps;

    if (!hints || !hints->caps)
        return offered_caps(version);
    caps = expand(hints->caps) | DOMAIN_CAPS;
    if (caps & DIRECTED_OF_2)
        caps |= FI_DIRECTED_RECV;
    return caps;
}

static void set_tx(struct fi_tx_attr *tx, const struct fi_tx_attr *hints, uint64_t caps)
{
    tx->caps = caps & TX_CAPS;
    tx->msg_order = ORDER;
    tx->inject_size = IVC_FI_INJECT_MAX;
    tx->size = IVC_FI_QUEUE_SIZE;
    tx->iov_limit = IVC_FI_IOV_MAX;
    tx->rma_iov_limit = IVC_FI_RMA_IOV_MAX;
    if (!hints)
        return;
    if (hints->caps)
        tx->caps = expand(hints->caps) & caps & TX_CAPS;
    tx->op_flags = hints->op_flags;
    tx->tclass = hints->tclass;
}

static void set_rx(struct fi_rx_attr *rx, const struct fi_rx_attr *hints, uint64_t caps)
{
    rx->caps = caps & (RX_CAPS | DIRECTED_OF_2);
    rx->msg_order = ORDER;
    rx->size = IVC_FI_RX_SIZE;
    rx->iov_limit = IVC_FI_IOV_MAX;
    if (!hints)
        return;
    if (hints->caps)
        rx->caps = expand(hints->caps) & caps & (RX_CAPS | DIRECTED_OF_2);
    rx->op_flags = hints->op_flags;
    rx->total_buffered_recv = hints->total_buffered_recv;   /* memory is the limit */
}

static void set_ep(struct fi_ep_attr *ep)
{
    ep->type = FI_EP_RDM;
    ep->protocol = PROTOCOL;
    ep->protocol_version = PROTOCOL_VERSION;
    ep->max_msg_size = MESSAGE_MAX;
    ep->max_order_raw_size = IVC_FI_ATOMIC_MAX;
    ep->max_order_war_size = IVC_FI_ATOMIC_MAX;
    ep->max_order_waw_size = IVC_FI_ATOMIC_MAX;
    ep->mem_tag_format = UINT64_MAX;
    ep->tx_ctx_cnt = 1;
    ep->rx_ctx_cnt = 1;
}

/* Bits are what we need (nothing); the old words come back as they were said. */
static int granted_mr_mode(uint32_t version, const struct fi_domain_attr *hints)
{
    if (hints && (hints->mr_mode & (FI_MR_BASIC | FI_MR_SCALABLE)))
        return hints->mr_mode;
    return FI_VERSION_LT(version, FI_VERSION(1, 5)) ? FI_MR_SCALABLE : 0;
}

static void set_domain(struct fi_domain_attr *domain, const struct fi_domain_attr *hints,
                       uint32_t version)
{
    struct domain_attr_2 *later = (struct domain_attr_2 *)domain;

    later->max_cntr_value = UINT64_MAX;
    later->max_err_cntr_value = UINT64_MAX;
    domain->threading = FI_THREAD_SAFE;
    domain->control_progress = FI_PROGRESS_MANUAL;
    domain->data_progress = FI_PROGRESS_MANUAL;
    domain->resource_mgmt = FI_RM_ENABLED;
    domain->av_type = FI_AV_TABLE;
    domain->mr_mode = granted_mr_mode(version, hints);
    domain->mr_key_size = sizeof(uint64_t);
    domain->cq_data_size = sizeof(uint64_t);
    domain->cq_cnt = OBJECTS_MAX;
    domain->ep_cnt = ENDPOINTS_MAX;
    domain->tx_ctx_cnt = ENDPOINTS_MAX;
    domain->rx_ctx_cnt = ENDPOINTS_MAX;
    domain->max_ep_tx_ctx = 1;
    domain->max_ep_rx_ctx = 1;
    domain->cntr_cnt = OBJECTS_MAX;
    domain->mr_iov_limit = IVC_FI_IOV_MAX;
    domain->mr_cnt = OBJECTS_MAX;
    domain->caps = DOMAIN_CAPS;
    if (!hints)
        return;
    if (hints->threading != FI_THREAD_UNSPEC)
        domain->threading = hints->threading;
    if (hints->control_progress != FI_PROGRESS_UNSPEC)
        domain->control_progress = hints->control_progress;
    if (hints->av_type != FI_AV_UNSPEC)
        domain->av_type = hints->av_type;
    domain->tclass = hints->tclass;
}

static int set_names_and_addresses(struct fi_info *info, const struct fi_info *hints,
                                   uint32_t version)
{
    info->domain_attr->name = strdup(IVC_FI_NAME);
    info->fabric_attr->name = strdup(IVC_FI_NAME);
    info->fabric_attr->prov_version = ivc_fi_provider.version;
    info->fabric_attr->api_version = version;
    /* Zeros, of the right length: an address is made with its endpoint (fi_getname()). */
    info->src_addr = calloc(1, IVC_ADDRESS_LEN);
    info->src_addrlen = info->src_addr ? IVC_ADDRESS_LEN : 0;
    if (hints && hints->dest_addr) {
        info->dest_addr = malloc(IVC_ADDRESS_LEN);
        if (!info->dest_addr)
            return -FI_ENOMEM;
        memcpy(info->dest_addr, hints->dest_addr, IVC_ADDRESS_LEN);
        info->dest_addrlen = IVC_ADDRESS_LEN;
    }
    return info->domain_attr->name && info->fabric_attr->name && info->src_addr ? 0 : -FI_ENOMEM;
}

static int make(uint32_t version, const struct fi_info *hints, struct fi_info **ret_info)
{
    struct fi_info *info = info_new();

    if (!info || set_names_and_addresses(info, hints, version) != 0) {
        ivc_fi_info_free(info);
        return -FI_ENOMEM;
    }
    info->caps = granted_caps(version, hints);
    info->addr_format = PROTOCOL;
    set_tx(info->tx_attr, hints ? hints->tx_attr : NULL, info->caps);
    set_rx(info->rx_attr, hints ? hints->rx_attr : NULL, info->caps);
    set_ep(info->ep_attr);
    set_domain(info->domain_attr, hints ? hints->domain_attr : NULL, version);
    *ret_info = info;
    return 0;
}

/* ---------------------------------------------------------------- shall we show ourselves? */

/* Looked for once per process: opening a region measures it. */
static int look_for_region(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool known;
    static int answer;
    struct ivc_region *region;

    pthread_mutex_lock(&lock);
    if (!known) {
        known = true;
        answer = ivc_region_open(NULL, &region);
        if (answer == 0)
            ivc_region_free(region);
        else if (answer < 0)
            ivc_fi_say("%s", ivc_error_text());
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Whether the user, by FI_PROVIDER, or the program, by its hints, asked for us by name. */
static bool is_named(const struct fi_info *hints)
{
    const char *list = getenv("FI_PROVIDER");
    const size_t len = strlen(IVC_FI_NAME);

    if (hints && hints->fabric_attr && hints->fabric_attr->prov_name)
        return true;        /* it is our name: checked before */
    if (!list || *list == '^')
        return false;
    for (const char *at = list; *at; at += *at != '\0') {
        size_t n = strcspn(at, ",;");

        if (n == len && strncasecmp(at, IVC_FI_NAME, len) == 0)
            return true;
        at += n;
    }
    return false;
}

/*
 * An address of ours is not made of a node and a service.  A service alone as a source is ignored:
 * there is nothing to bind, and programs that exchange addresses themselves pass one all the same.
 */
static int check_name(const char *node, const char *service, uint64_t flags)
{
    if (node)
        return refuse("addresses by node name: exchange what fi_getname() gives");
    if (service && !(flags & FI_SOURCE))
        return refuse("addresses by service: exchange what fi_getname() gives");
    return 0;
}

int ivc_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **ret_info)
{
    int r = check_name(node, service, flags);

    if (r == 0 && hints)
        r = check(version, hints);
    if (r == 0 && hints && hints->domain_attr)
        r = check_mr_mode(version, hints->domain_attr->mr_mode);
    if (r != 0)
        return r;
    /* Without a region there is only the network that others offer as well: not unasked. */
    r = look_for_region();
    if (r < 0 || (r != 0 && !is_named(hints)))
        return -FI_ENODATA;
    return make(version, hints, ret_info);
}
