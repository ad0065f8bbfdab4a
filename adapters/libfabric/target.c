/*
 * Requests of others, at the target: what writes, reads and atomics have in common there.
 *
 * A landing is a request that has not ended.  Most are whole messages, which start and end within
 * one call of the core: the first landing and its staging memory are part of the endpoint and serve
 * them all.  Those that take longer get more.
 */
#include "rma.h"

struct ivc_fi_target {
    struct ivc_fi_landing *all, *free;  /* without `first` */
    struct ivc_fi_landing first;
    _Alignas(16) char staging[IVC_FI_ATOMIC_REQUEST_MAX];
};

static struct ivc_fi_target *target_of(struct ivc_fi_ep *ep)
{
    if (!ep->target)
        ep->target = calloc(1, sizeof *ep->target);
    return ep->target;
}

void ivc_fi_target_free(struct ivc_fi_ep *ep)
{
    struct ivc_fi_target *target = ep->target;
    struct ivc_fi_landing *landing;

    if (!target)
        return;
    if (target->first.busy)
        ivc_fi_landing_put(&target->first);
    while ((landing = target->all)) {
        target->all = landing->next_of_all;
        if (landing->busy)
            ivc_fi_landing_put(landing);
        free(landing);
    }
    free(target);
    ep->target = NULL;
}

static struct ivc_fi_landing *landing_new(struct ivc_fi_target *target)
{
    struct ivc_fi_landing *landing = malloc(sizeof *landing);

    if (landing) {
        landing->next_of_all = target->all;
        target->all = landing;
    }
    return landing;
}

static void landing_fill(struct ivc_fi_landing *landing, struct ivc_fi_ep *ep,
                         struct ivc_fi_peer *peer, const struct ivc_fi_header *header)
{
    landing->sink.done = NULL;
    landing->busy = true;
    landing->ep = ep;
    landing->peer = peer;
    landing->mr = NULL;
    landing->data = header->data;
    landing->id = header->id;
    landing->flags = header->flags;
    landing->len = 0;
    landing->staging = NULL;
    memcpy(landing->header, header, IVC_MIN((size_t)header->len, sizeof landing->header));
}

struct ivc_fi_landing *ivc_fi_landing_get(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                                          const struct ivc_fi_header *header)
{
    struct ivc_fi_target *target = target_of(ep);
    struct ivc_fi_landing *landing;

    if (!target)
        return NULL;
    landing = target->free;
    if (!target->first.busy)
        landing = &target->first;
    else if (landing)
        target->free = landing->next;
    else
        landing = landing_new(target);
    if (landing)
        landing_fill(landing, ep, peer, header);
    return landing;
}

void ivc_fi_landing_hold(struct ivc_fi_landing *landing, struct ivc_fi_mr *mr)
{
    landing->mr = mr;
    landing->next_of_mr = mr->holds;
    landing->prev_of_mr = &mr->holds;
    if (mr->holds)
        mr->holds->prev_of_mr = &landing->next_of_mr;
    mr->holds = landing;
}

static void release(struct ivc_fi_landing *landing)
{
    if (!landing->mr)
        return;
    *landing->prev_of_mr = landing->next_of_mr;
    if (landing->next_of_mr)
        landing->next_of_mr->prev_of_mr = landing->prev_of_mr;
    landing->mr = NULL;
}

void ivc_fi_landing_put(struct ivc_fi_landing *landing)
{
    struct ivc_fi_target *target = landing->ep->target;

    release(landing);
    if (landing->staging != target->staging)
        free(landing->staging);
    landing->staging = NULL;
    landing->busy = false;
    if (landing == &target->first)
        return;
    landing->next = target->free;
    target->free = landing;
}

/* Memory for the payload: the endpoint's own while nobody else uses it. */
static char *staging_for(struct ivc_fi_target *target, const struct ivc_fi_landing *landing,
                         size_t len)
{
    if (landing == &target->first && len <= sizeof target->staging)
        return target->staging;
    return malloc(len);
}

int ivc_fi_landing_stage(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *header,
                         ivc_fi_landed_fn *done)
{
    struct ivc_fi_landing *landing = ivc_fi_landing_get(ep, peer, header);

    if (!landing)
        return FI_ENOMEM;
    landing->sink.done = done;
    landing->len = message->len;
    if (message->len > 0) {
        landing->staging = staging_for(ep->target, landing, message->len);
        if (!landing->staging) {
            ivc_fi_landing_put(landing);
            return FI_ENOMEM;
        }
        message->iov[0] = (struct iovec){ landing->staging, message->len };
        message->n_iov = 1;
    }
    message->arg = landing;
    return 0;
}

void ivc_fi_target_ack(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint16_t flags, uint32_t id,
                       int error)
{
    struct ivc_fi_header header = {
        .len = sizeof header,
        .kind = IVC_FI_KIND_ACK,
        .id = id,
        .data = (uint64_t)error,
    };

    if (flags & IVC_FI_WANT_ACK)
        ivc_fi_answer(ep, peer, &header, NULL, 0);
}

void ivc_fi_target_count(struct ivc_fi_ep *ep, struct ivc_fi_mr *mr, enum ivc_fi_count count)
{
    ivc_fi_cntr_bump(ep->cntrs[count], false);
    if (count == IVC_FI_COUNT_REMOTE_WRITE && mr)
        ivc_fi_cntr_bump(mr->cntr, false);
}
