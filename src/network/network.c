/*
 * Network: opening and closing; see network.h.
 */
#include "network/network.h"

#include "base/chain.h"
#include "base/error.h"
#include "network/internal.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

enum { COMPLETIONS = 4096 };    /* room in the queue, where the provider's own does not grow */

static int fail(struct ivc_network *network, const char *what, int r)
{
    return ivc_error_set(-ENODEV, "network: %s: %s: %s; set IVC_NETWORK to another provider or to "
                         "none", network->provider.info->fabric_attr->prov_name, what,
                         ivc_network_strerror(network, -r));
}

/* What the provider wants of us, and what it offers. */
static void read_info(struct ivc_network *network)
{
    const struct fi_info *info = network->provider.info;
    const struct fi_tx_attr *tx = info->tx_attr;
    int mr_mode = info->domain_attr->mr_mode;

    network->local_mr = mr_mode & FI_MR_LOCAL;
    network->endpoint_mr = mr_mode & FI_MR_ENDPOINT;
    network->virtual_addresses = mr_mode & FI_MR_VIRT_ADDR;
    atomic_store_explicit(&network->iov_max, IVC_MAX(tx->iov_limit, 1), memory_order_relaxed);
    /* One report names a route, many times; a provider that writes into our contexts forbids it. */
    if (!(info->mode & (FI_CONTEXT | FI_CONTEXT2)) && !network->local_mr)
        atomic_store_explicit(&network->inject_max, tx->inject_size, memory_order_relaxed);
    network->reports_in_order = info->rx_attr->comp_order & FI_ORDER_STRICT;
    network->of_tcp = network->ip && strncasecmp(info->fabric_attr->prov_name, "udp", 3) != 0;
}

static int watch(struct ivc_network *network, int fd)
{
    struct epoll_event event = { .events = EPOLLIN };

    return epoll_ctl(network->wait_fd, EPOLL_CTL_ADD, fd, &event);
}

static int open_queue(struct ivc_network *network)
{
    struct fi_cq_attr attr = {
        .size = COMPLETIONS, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD,
    };
    int fd, r = fi_cq_open(network->domain, &attr, &network->cq, NULL);

    if (r == 0 && fi_control(&network->cq->fid, FI_GETWAIT, &fd) == 0 && watch(network, fd) == 0)
        return 0;
    network->blind = true;
    if (r == 0)
        return 0;
    attr.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(network->domain, &attr, &network->cq, NULL);
}

static int open_endpoint(struct ivc_network *network)
{
    struct fi_info *info = network->provider.info;
    struct fi_av_attr av_attr = { .type = info->domain_attr->av_type };
    int r;

    if (av_attr.type == FI_AV_UNSPEC)
        av_attr.type = FI_AV_TABLE;
    /* A report of a send only where we ask for it. */
    info->tx_attr->op_flags = 0;
    info->rx_attr->op_flags = 0;
    r = fi_domain(network->provider.fabric, info, &network->domain, NULL);
    if (r < 0)
        return fail(network, "domain", r);
    r = open_queue(network);
    if (r < 0)
        return fail(network, "completion queue", r);
    r = fi_av_open(network->domain, &av_attr, &network->av, NULL);
    if (r < 0)
        return fail(network, "address vector", r);
    r = fi_endpoint(network->domain, info, &network->ep, NULL);
    if (r < 0)
        return fail(network, "endpoint", r);
    r = fi_ep_bind(network->ep, &network->av->fid, 0);
    if (r == 0)
        r = fi_ep_bind(network->ep, &network->cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION);
    if (r == 0)
        r = fi_ep_bind(network->ep, &network->cq->fid, FI_RECV);
    if (r == 0)
        r = fi_enable(network->ep);
    return r < 0 ? fail(network, "enabling the endpoint", r) : 0;
}

static int read_name(struct ivc_network *network)
{
    const struct fi_info *info = network->provider.info;
    uint8_t bytes[256] = { 0 };
    size_t len = sizeof bytes, text_len;
    char text[100] = "", *at;
    int r = fi_getname(&network->ep->fid, bytes, &len);

    if (r < 0 || len > sizeof network->fabric_name)
        return fail(network, "our address", r < 0 ? r : -FI_ETOOSMALL);
    network->fabric_hash = ivc_provider_hash(info);
    network->fabric_len = (uint32_t)len;
    memcpy(network->fabric_name, bytes, len);
    text_len = sizeof text;
    fi_av_straddr(network->av, bytes, text, &text_len);
    text[sizeof text - 1] = '\0';
    at = strstr(text, "://");
    snprintf(network->description, sizeof network->description, "%s, %s",
             info->fabric_attr->prov_name, at ? at + 3 : text);
    return 0;
}

/* The first reason is kept: nothing is tried twice. */
static int fail_for_good(struct ivc_network *network, int r)
{
    snprintf(network->description, sizeof network->description, "%s", ivc_error_text());
    /* Release: pairs with the acquire in ivc_network_prepare(); the description is visible. */
    atomic_store_explicit(&network->failed, true, memory_order_release);
    return r;
}

int ivc_network_load(struct ivc_network *network)
{
    int r;

    /* Relaxed, all three: who calls this is who has written them. */
    if (atomic_load_explicit(&network->failed, memory_order_relaxed))
        return ivc_error_set(-ENODEV, "%s", network->description);
    if (atomic_load_explicit(&network->stage, memory_order_relaxed) != IVC_STAGE_NAMED)
        return 0;
    r = ivc_libfabric_find(&network->libfabric);
    if (r == 0)
        r = ivc_provider_find(&network->libfabric, network->wanted, network->threads, &network->provider);
    /* Libraries that its providers need may have taken it (loader.c). */
    ivc_chain_renew(SIGBUS);
    if (r != 0)
        return fail_for_good(network, r);
    atomic_store_explicit(&network->stage, IVC_STAGE_LOADED, memory_order_relaxed);
    return 0;
}

int ivc_network_prepare(struct ivc_network *network)
{
    if (atomic_load_explicit(&network->failed, memory_order_acquire))
        return ivc_error_set(-ENODEV, "%s", network->description);
    /* Relaxed: nothing is read on the strength of it. */
    if (atomic_load_explicit(&network->stage, memory_order_relaxed) != IVC_STAGE_NAMED)
        return 0;
    ivc_contact_load(network);
    return IVC_E_FULL;
}

int ivc_network_bind(struct ivc_network *network, const union ivc_ip *source)
{
    uint64_t seed = ivc_now_ns() ^ (uint64_t)getpid() << 40;
    int r = ivc_network_load(network);

    /* Relaxed: as above. */
    if (r < 0 || atomic_load_explicit(&network->stage, memory_order_relaxed) == IVC_STAGE_BOUND)
        return r;
    network->ip = ivc_provider_is_of_ip(&network->provider);
    r = ivc_provider_open(&network->libfabric, &network->provider, network->ip ? source : NULL);
    if (r == 0) {
        read_info(network);
        /* Keys that a stray packet of an earlier job does not hit by chance; as long as the provider
         * can carry, which may be no more than a byte. */
        network->next_key = network->provider.info->domain_attr->mr_key_size >= 8 ? seed << 8 : 1;
        r = open_endpoint(network);
    }
    if (r == 0)
        r = read_name(network);
    if (r == 0)
        r = ivc_buffers_post_receives(network);
    if (r < 0)
        return fail_for_good(network, r);
    /* Release: pairs with the acquire in ivc_network_is_bound(). */
    atomic_store_explicit(&network->stage, IVC_STAGE_BOUND, memory_order_release);
    return 0;
}

static int open_descriptor(struct ivc_network *network)
{
    network->wait_fd = epoll_create1(EPOLL_CLOEXEC);
    network->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (network->wait_fd < 0 || network->news_fd < 0 || watch(network, network->news_fd) < 0)
        return ivc_error_set(-errno, "network: a descriptor to sleep on: %s", strerror(errno));
    return 0;
}

static int init(struct ivc_network *network, const struct ivc_network_options *options)
{
    const char *wanted = options->provider ? options->provider : getenv("IVC_NETWORK");
    int r;

    if (wanted && strcasecmp(wanted, "none") == 0)
        return ivc_error_set(-ENODEV, "network: switched off (IVC_NETWORK=none)");
    snprintf(network->wanted, sizeof network->wanted, "%s", wanted ? wanted : "");
    r = ivc_alive_init(network);
    if (r == 0)
        r = open_descriptor(network);
    if (r == 0)
        r = ivc_contact_open(network, options->id);
    ivc_libfabric_prepare();
    /* One that was named is looked at now: a wrong name is not to be found out when a guest moves. */
    if (r == 0 && (!options->later || network->wanted[0]))
        r = ivc_network_load(network);
    return r == 0 ? ivc_contact_start(network) : r;
}

int ivc_network_open(const struct ivc_network_options *options, struct ivc_network **ret_network)
{
    struct ivc_network *network = calloc(1, sizeof *network);
    int r;

    if (!network)
        return ivc_error_set(-ENOMEM, "network: out of memory");
    network->threads = options->threads;
    network->packet_max = options->packet_max;
    network->on_packet = options->on_packet;
    network->on_down = options->on_down;
    network->arg = options->arg;
    network->wait_fd = network->news_fd = -1;
    network->waiting_end = &network->waiting;
    network->posted_end = &network->posted;
    pthread_mutex_init(&network->lock, NULL);
    ivc_buffers_init(network);
    r = init(network, options);
    if (r != 0) {
        ivc_network_free(network, 0);
        return r;
    }
    *ret_network = network;
    return 0;
}

static bool anything_under_way(struct ivc_network *network)
{
    for (struct ivc_route *route = network->routes; route; route = route->next)
        if (ivc_route_state(route) == IVC_ROUTE_UP && (route->sends > 0 || route->marks > 0))
            return true;
    return false;
}

/*
 * A provider reports that a packet was sent when it still lies in a buffer of its own, and drops
 * that when it is closed.  So one last, empty packet follows on each route, whose report says that
 * the other end has it.
 */
static void send_last(struct ivc_network *network)
{
    for (struct ivc_route *route = network->routes; route; route = route->next)
        if (route->used && ivc_route_state(route) == IVC_ROUTE_UP)
            ivc_send_nothing(network, route, FI_DELIVERY_COMPLETE);
}

static void linger(struct ivc_network *network, uint64_t linger_ms)
{
    uint64_t deadline = ivc_now_ms() + linger_ms;

    network->draining = true;
    while (anything_under_way(network) && ivc_now_ms() < deadline)
        if (ivc_network_progress(network) == 0)
            sched_yield();
    send_last(network);
    while (anything_under_way(network) && ivc_now_ms() < deadline)
        if (ivc_network_progress(network) == 0)
            sched_yield();
}

static void close_fid(struct fid *fid)
{
    if (fid)
        fi_close(fid);
}

void ivc_network_free(struct ivc_network *network, uint64_t linger_ms)
{
    if (!network)
        return;
    if (ivc_network_is_bound(network) && linger_ms > 0)
        linger(network, linger_ms);
    /* Only now, so that whoever is sent something can still find out who we are. */
    ivc_contact_free(network);
    ivc_alive_free(network);
    close_fid(network->ep ? &network->ep->fid : NULL);
    ivc_buffers_free(network);
    ivc_pulls_free(network);
    close_fid(network->av ? &network->av->fid : NULL);
    close_fid(network->cq ? &network->cq->fid : NULL);
    close_fid(network->domain ? &network->domain->fid : NULL);
    close_fid(network->provider.fabric ? &network->provider.fabric->fid : NULL);
    if (network->provider.info)
        network->libfabric.freeinfo(network->provider.info);
    ivc_routes_free(network);
    ivc_close_p(&network->wait_fd);
    ivc_close_p(&network->news_fd);
    pthread_mutex_destroy(&network->lock);
    free(network);
}

void ivc_network_name(const struct ivc_network *network, struct ivc_network_name *ret_name)
{
    *ret_name = network->name;
}

const char *ivc_network_describe(const struct ivc_network *network)
{
    return ivc_network_is_bound(network) ? network->description : "not bound yet";
}

int ivc_network_fd(const struct ivc_network *network)
{
    /* Relaxed: until it is known, a sleeper is woken by a route that is settled. */
    return atomic_load_explicit(&network->blind, memory_order_relaxed) ? -1 : network->wait_fd;
}

int ivc_network_try_wait(struct ivc_network *network)
{
    struct fid *fid;

    if (!ivc_network_is_bound(network))
        return ivc_contact_has_news(network) || atomic_load(&network->failing) ? IVC_E_FULL : 0;
    fid = &network->cq->fid;
    if (network->unposted || atomic_load(&network->n_waiting) > 0 || ivc_contact_has_news(network)
        || atomic_load(&network->failing))
        return IVC_E_FULL;
    if (ivc_now_ms() >= atomic_load_explicit(&network->tick_at, memory_order_relaxed)) {
        atomic_store_explicit(&network->tick_due, true, memory_order_relaxed);
        return IVC_E_FULL;
    }
    if (atomic_load_explicit(&network->blind, memory_order_relaxed))
        return 0;
    return fi_trywait(network->provider.fabric, &fid, 1) == 0 ? 0 : IVC_E_FULL;
}
