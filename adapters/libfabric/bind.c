/*
 * What is bound to an endpoint: queues, counters, an address vector.
 *
 * Invariant: whatever is bound counts the endpoint among its users from the binding to the
 * endpoint's close; its reading makes the endpoint's progress from fi_enable() on.
 */
#include "internal.h"

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

int ivc_fi_ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    int r;

    ivc_fi_lock(ep->domain);
    r = ep->enabled ? -FI_EOPBADSTATE : bind_locked(ep, other, flags);
    ivc_fi_unlock(ep->domain);
    return r;
}

/* Completions must have somewhere to go, a queue or a counter. */
int ivc_fi_ep_check_bound(const struct ivc_fi_ep *ep)
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
int ivc_fi_ep_attach(struct ivc_fi_ep *ep)
{
    int r = ep->tx_cq ? ivc_fi_cq_add_ep(ep->tx_cq, ep) : 0;

    if (r == 0 && ep->rx_cq)
        r = ivc_fi_cq_add_ep(ep->rx_cq, ep);
    for (unsigned i = 0; i < IVC_FI_COUNTS && r == 0; i++) {
        if (ep->cntrs[i])
            r = ivc_fi_cntr_add_ep(ep->cntrs[i], ep);
    }
    for (struct ivc_fi_cntr *cntr = ep->domain->wide; cntr && r == 0; cntr = cntr->next_wide)
        r = ivc_fi_cntr_add_ep(cntr, ep);
    return r == 0 ? ivc_fi_eps_add(&ep->domain->eps, &ep->domain->n_eps, ep) : r;
}

void ivc_fi_ep_detach(struct ivc_fi_ep *ep)
{
    if (ep->tx_cq)
        ivc_fi_cq_remove_ep(ep->tx_cq, ep);
    if (ep->rx_cq)
        ivc_fi_cq_remove_ep(ep->rx_cq, ep);
    for (unsigned i = 0; i < IVC_FI_COUNTS; i++) {
        if (ep->cntrs[i])
            ivc_fi_cntr_remove_ep(ep->cntrs[i], ep);
    }
    for (struct ivc_fi_cntr *cntr = ep->domain->wide; cntr; cntr = cntr->next_wide)
        ivc_fi_cntr_remove_ep(cntr, ep);
    ivc_fi_eps_remove(ep->domain->eps, &ep->domain->n_eps, ep);
}

void ivc_fi_ep_unbind(struct ivc_fi_ep *ep)
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
