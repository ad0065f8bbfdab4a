/*
 * Endpoints: an endpoint and a mailbox of the core, what is bound to them, and the peers.
 *
 * Invariants.  A peer is made once and lives as long as the endpoint, also when the other process
 * is gone: then it answers -FI_ECONNABORTED.  by_addr[] holds what the address vector says now: an
 * entry vanishes when its address is removed.  n_unnamed counts the peers that no entry leads to.
 */
#include "internal.h"

#include <string.h>

/* All endpoints of libfabric's are one group: who may talk to whom is decided by who was told whose
 * address.  "ivc-fi" */
#define GROUP 0x6976632d6669ull

enum {
    LINGER_MS = 1000,
    MIN_MULTI_RECV = 64,
};

/* ---------------------------------------------------------------- peers */

static struct ivc_fi_peer *peer_new(struct ivc_fi_ep *ep, struct ivc_peer *core)
{
    struct ivc_fi_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return NULL;
    peer->peer = core;
    peer->addr = FI_ADDR_NOTAVAIL;
    peer->next = ep->peers;
    ep->peers = peer;
    ep->n_unnamed++;
    ivc_peer_set_arg(core, peer);
    return peer;
}

static int by_addr_grow(struct ivc_fi_ep *ep, fi_addr_t addr)
{
    uint32_t size = ep->by_addr_size ? ep->by_addr_size : 16;
    struct ivc_fi_peer **by_addr;

    while (size <= addr)
        size *= 2;
    by_addr = realloc(ep->by_addr, size * sizeof *by_addr);
    if (!by_addr)
        return -FI_ENOMEM;
    memset(by_addr + ep->by_addr_size, 0, (size - ep->by_addr_size) * sizeof *by_addr);
    ep->by_addr = by_addr;
    ep->by_addr_size = size;
    return 0;
}

/* From here on `addr` leads to the peer, which goes by its first address. */
static int name_peer(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, fi_addr_t addr)
{
    if (addr >= ep->by_addr_size && by_addr_grow(ep, addr) != 0)
        return -FI_ENOMEM;
    ep->by_addr[addr] = peer;
    if (peer->addr == FI_ADDR_NOTAVAIL) {
        peer->addr = addr;
        ep->n_unnamed--;
        if (ep->enabled)
            ivc_fi_recv_peer_named(ep, peer);
    }
    return 0;
}

void ivc_fi_ep_name_peer(struct ivc_fi_ep *ep, uint64_t id, fi_addr_t addr)
{
    for (struct ivc_fi_peer *peer = ep->peers; peer; peer = peer->next) {
        if (peer->addr == FI_ADDR_NOTAVAIL && ivc_peer_id(peer->peer) == id) {
            if (name_peer(ep, peer, addr) != 0)
                IVC_FI_WARN("out of memory: a peer stays without its address for now");
            return;
        }
    }
}

void ivc_fi_ep_forget_addr(struct ivc_fi_ep *ep, fi_addr_t addr, fi_addr_t other)
{
    struct ivc_fi_peer *peer = addr < ep->by_addr_size ? ep->by_addr[addr] : NULL;

    if (!peer)
        return;
    ep->by_addr[addr] = NULL;
    if (peer->addr != addr)
        return;
    peer->addr = FI_ADDR_NOTAVAIL;
    ep->n_unnamed++;
    if (other != FI_ADDR_NOTAVAIL)
        name_peer(ep, peer, other);
}

int ivc_fi_ep_connect(struct ivc_fi_ep *ep, fi_addr_t addr, struct ivc_fi_peer **ret_peer)
{
    struct ivc_fi_peer *peer;
    struct ivc_peer *core;
    int r;

    if (!ep->enabled)
        return -FI_EOPBADSTATE;
    if (addr >= ep->av->n_addresses || !ep->av->addresses[addr].len)
        return -FI_EINVAL;
    r = ivc_endpoint_connect(ep->endpoint, &ep->av->addresses[addr], &core);
    if (r != 0) {
        IVC_FI_WARN("address %llu: %s", (unsigned long long)addr, ivc_error_text());
        return ivc_fi_error(r);
    }
    peer = ivc_peer_arg(core);
    if (!peer)
        peer = peer_new(ep, core);
    if (!peer || name_peer(ep, peer, addr) != 0)
        return -FI_ENOMEM;
    *ret_peer = peer;
    return 0;
}

/* ---------------------------------------------------------------- what the core calls */

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct ivc_fi_ep *ep = arg;

    if (__builtin_expect(ivc_mailbox_is_tag(packet->tag), 1))
        ivc_mailbox_packet(ep->mailbox, peer, packet);
}

static void on_arrival(void *arg, struct ivc_peer *core)
{
    struct ivc_fi_ep *ep = arg;
    struct ivc_fi_peer *peer = peer_new(ep, core);
    fi_addr_t addr;

    if (!peer) {
        IVC_FI_WARN("out of memory: what a new peer sends is dropped");
        return;
    }
    addr = ep->av ? ivc_fi_av_find(ep->av, ivc_peer_id(core)) : FI_ADDR_NOTAVAIL;
    if (addr != FI_ADDR_NOTAVAIL)
        name_peer(ep, peer, addr);
}

static void on_gone(void *arg, struct ivc_peer *core, const char *reason)
{
    struct ivc_fi_ep *ep = arg;
    struct ivc_fi_peer *peer = ivc_peer_arg(core);

    if (reason)
        IVC_FI_WARN("peer %u on %s is gone: %s", ivc_peer_client_id(core), ivc_peer_host(core),
                    reason);
    ivc_mailbox_gone(ep->mailbox, core);
    if (!peer)
        return;
    ivc_fi_send_peer_gone(ep, peer);
    ivc_fi_recv_peer_gone(ep, peer);
    ivc_fi_reach_peer_gone(ep, peer);
}

static const struct ivc_fi_kind_ops *const kinds[IVC_FI_KINDS] = {
    [IVC_FI_KIND_MSG] = &ivc_fi_receive_msg,
    [IVC_FI_KIND_TAGGED] = &ivc_fi_receive_tagged,
    [IVC_FI_KIND_ACK] = &ivc_fi_receive_ack,
    [IVC_FI_KIND_WRITE] = &ivc_fi_receive_write,
    [IVC_FI_KIND_READ] = &ivc_fi_receive_read,
    [IVC_FI_KIND_READ_REPLY] = &ivc_fi_receive_read_reply,
    [IVC_FI_KIND_ATOMIC] = &ivc_fi_receive_atomic,
    [IVC_FI_KIND_ATOMIC_REPLY] = &ivc_fi_receive_atomic_reply,
    [IVC_FI_KIND_REACH] = &ivc_fi_receive_reach,
};

/* What no version of ours sends is dropped: message->n_iov is 0. */
static void on_start(void *arg, struct ivc_message *message)
{
    struct ivc_fi_ep *ep = arg;
    struct ivc_fi_peer *peer = ivc_peer_arg(message->peer);
    const struct ivc_fi_header *header = message->header;
    const struct ivc_fi_kind_ops *kind;

    message->arg = NULL;
    if (__builtin_expect(message->header_len < sizeof *header || header->kind >= IVC_FI_KINDS
                         || !peer, 0))
        return;
    kind = kinds[header->kind];
    if (__builtin_expect(!kind || message->header_len < kind->header_min
                         || message->header_len != header->len, 0))
        return;
    kind->start(ep, peer, message, header);
}

static void on_done(void *arg, struct ivc_message *message, int status)
{
    struct ivc_fi_sink *sink = message->arg;

    if (sink && sink->done)
        sink->done(arg, message, status);
}

/* ---------------------------------------------------------------- the core's endpoint */

static void warn_once(const struct ivc_endpoint *endpoint)
{
    static ivc_atomic_u32 warned;
    const char *warning = ivc_endpoint_warning(endpoint);

    if (*warning && ivc_cas(&warned, 0, 1))
        IVC_FI_WARN("%s", warning);
}

/* Our address is known from here on. */
static int open_core(struct ivc_fi_ep *ep)
{
    const struct ivc_endpoint_options options = {
        .magic_id = GROUP,
        .client_id = (uint32_t)getpid(),
        .network = true,
        .on_packet = on_packet,
        .on_gone = on_gone,
        .on_arrival = on_arrival,
        .arg = ep,
    };
    int r;

    if (ep->endpoint)
        return 0;
    r = ivc_endpoint_open(&options, &ep->endpoint);
    if (r != 0) {
        ivc_fi_say("%s", ivc_error_text());
        return r < 0 ? r : -FI_ENODEV;
    }
    r = ivc_mailbox_new(ep->endpoint, on_start, on_done, ep, &ep->mailbox);
    if (r != 0) {
        ivc_endpoint_free(ep->endpoint);
        ep->endpoint = NULL;
        return ivc_fi_error(r);
    }
    warn_once(ep->endpoint);
    return 0;
}

static int ep_getname(fid_t fid, void *addr, size_t *addrlen)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    struct ivc_address address;
    size_t room = *addrlen;
    int r;

    ivc_fi_lock(ep->domain);
    r = open_core(ep);
    ivc_fi_unlock(ep->domain);
    if (r != 0)
        return r;
    ivc_endpoint_address(ep->endpoint, &address);
    *addrlen = IVC_ADDRESS_LEN;
    memcpy(addr, address.bytes, IVC_MIN(room, (size_t)IVC_ADDRESS_LEN));
    return room < IVC_ADDRESS_LEN ? -FI_ETOOSMALL : 0;
}

/* ---------------------------------------------------------------- bind, enable, close */

static int bind_cq(struct ivc_fi_ep *ep, struct ivc_fi_cq *cq, uint64_t flags)
{
    bool selective = flags & FI_SELECTIVE_COMPLETION;

    if ((flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION))
        || !(flags & (FI_TRANSMIT | FI_RECV)))
        return -FI_EBADFLAGS;
    if (cq->domain != ep->domain || ((flags & FI_TRANSMIT) && ep->tx_cq)
        || ((flags & FI_RECV) && ep->rx_cq))
        return -FI_EINVAL;
    if (flags & FI_TRANSMIT) {
        ep->tx_cq = cq;
        ep->tx_selective = selective;
        cq->users++;
    }
    if (flags & FI_RECV) {
        ep->rx_cq = cq;
        ep->rx_selective = selective;
        cq->users++;
    }
    return 0;
}

static int bind_cntr(struct ivc_fi_ep *ep, struct ivc_fi_cntr *cntr, uint64_t flags)
{
    static const uint64_t flag_of[IVC_FI_COUNTS] = {
        [IVC_FI_COUNT_SEND] = FI_SEND,
        [IVC_FI_COUNT_RECV] = FI_RECV,
        [IVC_FI_COUNT_READ] = FI_READ,
        [IVC_FI_COUNT_WRITE] = FI_WRITE,
        [IVC_FI_COUNT_REMOTE_READ] = FI_REMOTE_READ,
        [IVC_FI_COUNT_REMOTE_WRITE] = FI_REMOTE_WRITE,
    };
    uint64_t known = 0;

    for (unsigned i = 0; i < IVC_FI_COUNTS; i++) {
        known |= flag_of[i];
        if ((flags & flag_of[i]) && ep->cntrs[i])
            return -FI_EINVAL;
    }
    if (!flags || (flags & ~known))
        return -FI_EBADFLAGS;
    if (cntr->domain != ep->domain)
        return -FI_EINVAL;
    for (unsigned i = 0; i < IVC_FI_COUNTS; i++) {
        if (flags & flag_of[i]) {
            ep->cntrs[i] = cntr;
            cntr->users++;
        }
    }
    return 0;
}

static int bind_av(struct ivc_fi_ep *ep, struct ivc_fi_av *av)
{
    if (ep->av || av->domain != ep->domain)
        return -FI_EINVAL;
    ep->av = av;
    ep->next_of_av = av->eps;
    av->eps = ep;
    av->users++;
    return 0;
}

/* Nothing is ever reported on it: endpoints of this kind have no events. */
static int bind_eq(struct ivc_fi_ep *ep, struct fid_eq *eq)
{
    if (ep->eq)
        return -FI_EINVAL;
    ep->eq = eq;
    ivc_fi_eq_use(eq, 1);
    return 0;
}

static int bind_locked(struct ivc_fi_ep *ep, struct fid *other, uint64_t flags)
{
    switch (other->fclass) {
    case FI_CLASS_CQ:
        return bind_cq(ep, container_of(other, struct ivc_fi_cq, fid.fid), flags);
    case FI_CLASS_CNTR:
        return bind_cntr(ep, container_of(other, struct ivc_fi_cntr, fid.fid), flags);
    case FI_CLASS_AV:
        return bind_av(ep, container_of(other, struct ivc_fi_av, fid.fid));
    case FI_CLASS_EQ:
        return bind_eq(ep, container_of(other, struct fid_eq, fid));
    default:
        return -FI_EINVAL;
    }
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    int r;

    ivc_fi_lock(ep->domain);
    r = ep->enabled ? -FI_EOPBADSTATE : bind_locked(ep, other, flags);
    ivc_fi_unlock(ep->domain);
    return r;
}

/* Completions must have somewhere to go, a queue or a counter. */
static int check_bound(const struct ivc_fi_ep *ep)
{
    const uint64_t directions = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ
                                | FI_REMOTE_WRITE;
    bool any = !(ep->caps & directions);
    bool sends = any || (ep->caps & (FI_SEND | FI_READ | FI_WRITE));
    bool receives = (ep->caps & (FI_MSG | FI_TAGGED)) && (any || (ep->caps & FI_RECV));

    if (!ep->av)
        return -FI_ENOAV;
    if (sends && !ep->tx_cq && !ep->cntrs[IVC_FI_COUNT_SEND] && !ep->cntrs[IVC_FI_COUNT_READ]
        && !ep->cntrs[IVC_FI_COUNT_WRITE])
        return -FI_ENOCQ;
    if (receives && !ep->rx_cq && !ep->cntrs[IVC_FI_COUNT_RECV])
        return -FI_ENOCQ;
    return 0;
}

/* Whoever is read or waited for makes our progress from now on. */
static int attach(struct ivc_fi_ep *ep)
{
    int r = ep->tx_cq ? ivc_fi_cq_add_ep(ep->tx_cq, ep) : 0;

    if (r == 0 && ep->rx_cq)
        r = ivc_fi_cq_add_ep(ep->rx_cq, ep);
    for (unsigned i = 0; i < IVC_FI_COUNTS && r == 0; i++) {
        if (ep->cntrs[i])
            r = ivc_fi_cntr_add_ep(ep->cntrs[i], ep);
    }
    return r;
}

static void detach(struct ivc_fi_ep *ep)
{
    if (ep->tx_cq)
        ivc_fi_cq_remove_ep(ep->tx_cq, ep);
    if (ep->rx_cq)
        ivc_fi_cq_remove_ep(ep->rx_cq, ep);
    for (unsigned i = 0; i < IVC_FI_COUNTS; i++) {
        if (ep->cntrs[i])
            ivc_fi_cntr_remove_ep(ep->cntrs[i], ep);
    }
}

static int enable_locked(struct ivc_fi_ep *ep)
{
    int r = ep->enabled ? -FI_EOPBADSTATE : check_bound(ep);

    if (r == 0)
        r = open_core(ep);
    if (r != 0)
        return r;
    r = ivc_fi_send_init(ep);
    if (r != 0)
        return r;
    r = ivc_fi_recv_init(ep);
    if (r != 0)
        goto err_send;
    r = attach(ep);
    if (r != 0)
        goto err_recv;
    ep->enabled = true;
    return 0;
err_recv:
    detach(ep);
    ivc_fi_recv_free(ep);
err_send:
    ivc_fi_send_free(ep);
    return r;
}

static uint64_t *op_flags_of(struct ivc_fi_ep *ep, uint64_t which)
{
    switch (which & (FI_TRANSMIT | FI_RECV)) {
    case FI_TRANSMIT:
        return &ep->tx_op_flags;
    case FI_RECV:
        return &ep->rx_op_flags;
    default:
        return NULL;
    }
}

static int op_flags(struct ivc_fi_ep *ep, uint64_t *arg, bool set)
{
    uint64_t *flags = op_flags_of(ep, *arg);

    if (!flags)
        return -FI_EINVAL;
    if (set)
        *flags = *arg & ~(FI_TRANSMIT | FI_RECV);
    else
        *arg = *flags;
    return 0;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    int r;

    ivc_fi_lock(ep->domain);
    switch (command) {
    case FI_ENABLE:
        r = enable_locked(ep);
        break;
    case FI_GETOPSFLAG:
    case FI_SETOPSFLAG:
        r = op_flags(ep, arg, command == FI_SETOPSFLAG);
        break;
    default:
        r = -FI_ENOSYS;
    }
    ivc_fi_unlock(ep->domain);
    return r;
}

/* What was sent is sent, also by a program that closes at once. */
static void linger(struct ivc_fi_ep *ep)
{
    uint64_t ms = LINGER_MS;
    uint64_t end;

    if (!ep->mailbox || !ep->enabled || ivc_env_size("IVC_LINGER_MS", 0, 3600 * 1000, &ms) < 0)
        return;
    end = ivc_now_ms() + ms;
    while (ivc_mailbox_busy(ep->mailbox) && ivc_now_ms() < end) {
        if (ivc_mailbox_progress(ep->mailbox) == 0)
            ivc_cpu_relax();
    }
}

static void unbind(struct ivc_fi_ep *ep)
{
    if (ep->tx_cq)
        ep->tx_cq->users--;
    if (ep->rx_cq)
        ep->rx_cq->users--;
    for (unsigned i = 0; i < IVC_FI_COUNTS; i++) {
        if (ep->cntrs[i])
            ep->cntrs[i]->users--;
    }
    if (ep->av) {
        struct ivc_fi_ep **at = &ep->av->eps;

        while (*at != ep)
            at = &(*at)->next_of_av;
        *at = ep->next_of_av;
        ep->av->users--;
    }
    if (ep->eq)
        ivc_fi_eq_use(ep->eq, -1);
}

static int ep_close(struct fid *fid)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    struct ivc_fi_domain *domain = ep->domain;
    struct ivc_fi_peer *next;

    ivc_fi_lock(domain);
    if (ep->users) {
        ivc_fi_unlock(domain);
        return -FI_EBUSY;
    }
    linger(ep);
    detach(ep);
    unbind(ep);
    /* The mailbox first: it knows operations and receives, and it uses the endpoint. */
    ivc_mailbox_free(ep->mailbox);
    if (ep->enabled) {
        ivc_fi_recv_free(ep);
        ivc_fi_send_free(ep);
    }
    ivc_fi_reach_free(ep);
    ivc_endpoint_free(ep->endpoint);
    for (struct ivc_fi_peer *peer = ep->peers; peer; peer = next) {
        next = peer->next;
        free(peer);
    }
    domain->users--;
    ivc_fi_unlock(domain);
    free(ep->by_addr);
    ivc_fi_info_free(ep->info);
    free(ep);
    return 0;
}

/* ---------------------------------------------------------------- options */

static int ep_getopt(fid_t fid, int level, int option, void *value, size_t *len)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);

    if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV)
        return -FI_ENOPROTOOPT;
    if (*len < sizeof ep->min_multi_recv)
        return -FI_ETOOSMALL;
    *(size_t *)value = ep->min_multi_recv;
    *len = sizeof ep->min_multi_recv;
    return 0;
}

static int ep_setopt(fid_t fid, int level, int option, const void *value, size_t len)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);

    if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV)
        return -FI_ENOPROTOOPT;
    if (len < sizeof ep->min_multi_recv)
        return -FI_EINVAL;
    ivc_fi_lock(ep->domain);
    ep->min_multi_recv = *(const size_t *)value;
    ivc_fi_unlock(ep->domain);
    return 0;
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    ssize_t r;

    ivc_fi_lock(ep->domain);
    r = ep->enabled ? ivc_fi_recv_cancel(ep, context) : -FI_ENOENT;
    ivc_fi_unlock(ep->domain);
    return r;
}

static ssize_t ep_rx_size_left(struct fid_ep *fid)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid);

    return ep->enabled ? IVC_FI_RX_SIZE : -FI_EOPBADSTATE;
}

static ssize_t ep_tx_size_left(struct fid_ep *fid)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid);

    return ep->enabled ? (ssize_t)IVC_FI_QUEUE_SIZE - (ssize_t)ep->n_ops : -FI_EOPBADSTATE;
}

/* ---------------------------------------------------------------- what such endpoints have not */

static int no_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **tx,
                     void *context)
{
    (void)sep;
    (void)index;
    (void)attr;
    (void)tx;
    (void)context;
    return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **rx,
                     void *context)
{
    (void)sep;
    (void)index;
    (void)attr;
    (void)rx;
    (void)context;
    return -FI_ENOSYS;
}

static int no_setname(fid_t fid, void *addr, size_t addrlen)
{
    (void)fid;
    (void)addr;
    (void)addrlen;
    return -FI_ENOSYS;
}

static int no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen)
{
    (void)ep;
    (void)addr;
    (void)addrlen;
    return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen)
{
    (void)ep;
    (void)addr;
    (void)param;
    (void)paramlen;
    return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep)
{
    (void)pep;
    return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *param, size_t paramlen)
{
    (void)ep;
    (void)param;
    (void)paramlen;
    return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)
{
    (void)pep;
    (void)handle;
    (void)param;
    (void)paramlen;
    return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
    (void)ep;
    (void)flags;
    return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc,
                   void *context)
{
    (void)ep;
    (void)addr;
    (void)flags;
    (void)mc;
    (void)context;
    return -FI_ENOSYS;
}

/* ---------------------------------------------------------------- open */

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = ep_close,
    .bind = ep_bind,
    .control = ep_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_ep ep_ops = {
    .size = sizeof ep_ops,
    .cancel = ep_cancel,
    .getopt = ep_getopt,
    .setopt = ep_setopt,
    .tx_ctx = no_tx_ctx,
    .rx_ctx = no_rx_ctx,
    .rx_size_left = ep_rx_size_left,
    .tx_size_left = ep_tx_size_left,
};

static struct fi_ops_cm cm_ops = {
    .size = sizeof cm_ops,
    .setname = no_setname,
    .getname = ep_getname,
    .getpeer = no_getpeer,
    .connect = no_connect,
    .listen = no_listen,
    .accept = no_accept,
    .reject = no_reject,
    .shutdown = no_shutdown,
    .join = no_join,
};

static void set_tables(struct ivc_fi_ep *ep, void *context)
{
    ep->fid.fid.fclass = FI_CLASS_EP;
    ep->fid.fid.context = context;
    ep->fid.fid.ops = &fid_ops;
    ep->fid.ops = &ep_ops;
    ep->fid.cm = &cm_ops;
    ep->fid.msg = &ivc_fi_msg_ops;
    ep->fid.rma = &ivc_fi_rma_ops;
    ep->fid.tagged = &ivc_fi_tagged_ops;
    ep->fid.atomic = &ivc_fi_atomic_ops;
}

int ivc_fi_ep_open(struct fid_domain *domain_fid, struct fi_info *info, struct fid_ep **ret_ep,
                   void *context)
{
    struct ivc_fi_domain *domain = container_of(domain_fid, struct ivc_fi_domain, fid);
    struct ivc_fi_ep *ep;
    int r = info ? ivc_fi_info_check(info) : -FI_EINVAL;

    if (r != 0)
        return r;
    ep = calloc(1, sizeof *ep);
    if (!ep)
        return -FI_ENOMEM;
    ep->info = ivc_fi_info_dup(info);
    if (!ep->info) {
        free(ep);
        return -FI_ENOMEM;
    }
    ep->domain = domain;
    ep->caps = info->caps;
    ep->tx_op_flags = ep->info->tx_attr->op_flags;
    ep->rx_op_flags = ep->info->rx_attr->op_flags;
    ep->min_multi_recv = MIN_MULTI_RECV;
    set_tables(ep, context);
    ivc_fi_lock(domain);
    domain->users++;
    ivc_fi_unlock(domain);
    *ret_ep = &ep->fid;
    return 0;
}
