/*
 * Endpoints: enabled, controlled, closed.  What is bound to them is in bind.c, whom they know in
 * peers.c, what arrives goes through dispatch.c.
 *
 * Invariant: what was sent is sent, also when the endpoint is closed at once: closing waits for it,
 * for a bounded time.
 */
#include "internal.h"

enum { MIN_MULTI_RECV = 64 };

/* ---------------------------------------------------------------- enable, control, close */

static int enable_locked(struct ivc_fi_ep *ep)
{
    int r = ep->enabled ? -FI_EOPBADSTATE : ivc_fi_ep_check_bound(ep);

    if (r == 0)
        r = ivc_fi_ep_open_core(ep);
    if (r != 0)
        return r;
    r = ivc_fi_send_init(ep);
    if (r != 0)
        return r;
    r = ivc_fi_recv_init(ep);
    if (r != 0)
        goto err_send;
    r = ivc_fi_ep_attach(ep);
    if (r != 0)
        goto err_recv;
    ep->enabled = ep->profile ? IVC_FI_COUNTED : IVC_FI_ENABLED;
    return 0;
err_recv:
    ivc_fi_ep_detach(ep);
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

/* What was sent is sent, also by a program that closes at once: what waits for room, and bytes of
 * inject calls that were only offered yet.  Others' buffers are theirs again when we return. */
static void linger(struct ivc_fi_ep *ep)
{
    uint64_t end;

    if (!ep->mailbox || !ep->enabled)
        return;
    end = ivc_now_ms() + ivc_endpoint_linger_ms(ep->endpoint);
    while ((ivc_mailbox_busy(ep->mailbox) || ivc_fi_send_owes(ep)) && ivc_now_ms() < end) {
        if (ivc_mailbox_progress(ep->mailbox) == 0)
            ivc_cpu_relax();
    }
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
    ivc_fi_stats_print(ep);
    ivc_fi_profile_close(ep);
    ivc_fi_ep_detach(ep);
    ivc_fi_ep_unbind(ep);
    /* The mailbox first: it knows operations and receives, and it uses the endpoint. */
    ivc_mailbox_free(ep->mailbox);
    if (ep->enabled) {
        ivc_fi_recv_free(ep);
        ivc_fi_send_free(ep);
    }
    ivc_fi_reach_free(ep);
    ivc_endpoint_free(ep->endpoint);
    atomic_fetch_sub(&ivc_fi_eps_open, ep->endpoint != NULL);
    /* What lands for a request lands until the network is closed. */
    ivc_fi_target_free(ep);
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

/* ---------------------------------------------------------------- open */

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = ep_close,
    .bind = ivc_fi_ep_bind,
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

static void set_tables(struct ivc_fi_ep *ep, void *context)
{
    ep->fid.fid.fclass = FI_CLASS_EP;
    ep->fid.fid.context = context;
    ep->fid.fid.ops = &fid_ops;
    ep->fid.ops = &ep_ops;
    ep->fid.cm = &ivc_fi_cm_ops;
    ep->fid.msg = &ivc_fi_msg_ops;
    ep->fid.rma = &ivc_fi_rma_ops;
    ep->fid.tagged = &ivc_fi_tagged_ops;
    ep->fid.atomic = &ivc_fi_atomic_ops;
    ep->fid.collective = &ivc_fi_collective_ops;
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
