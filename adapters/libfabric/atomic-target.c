/*
 * Atomic operations of others on our registered memory, done by our progress.
 *
 * Invariant: nothing of a request is done before all of it has been checked and all its memory was
 * found registered for it.
 */
#include "rma.h"

static void answer(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                   const struct ivc_fi_atomic_header *header, int error, const void *results,
                   size_t len)
{
    const struct ivc_fi_header reply = {
        .len = sizeof reply,
        .kind = IVC_FI_KIND_ATOMIC_REPLY,
        .id = header->base.id,
        .data = (uint64_t)error,
    };

    if (header->mode == IVC_FI_ATOMIC_BASE)
        ivc_fi_target_ack(ep, peer, header->base.flags, header->base.id, error);
    else
        ivc_fi_answer(ep, peer, &reply, results, error == 0 ? len : 0);
}

/* What a request asks for, with its segments looked up: nothing is done before all are right. */
struct request {
    size_t size, bytes;
    const char *operands, *compares;
    struct iovec iov[IVC_FI_RMA_IOV_MAX * IVC_FI_IOV_MAX];
    unsigned n_iov;
    struct ivc_fi_mr *mr;           /* of the last segment */
};

static int find_segment(struct ivc_fi_ep *ep, const struct ivc_fi_atomic_header *header,
                        const struct fi_rma_ioc *segment, struct request *request)
{
    unsigned n;
    int r = ivc_fi_mr_find(ep, segment->key, segment->addr, segment->count * request->size,
                           ivc_fi_atomic_access(header->mode, header->op),
                           request->iov + request->n_iov, &n, &request->mr);

    /* An element that lies in two pieces of a registration cannot be changed in one step. */
    for (unsigned i = 0; r == 0 && i < n; i++)
        if (request->iov[request->n_iov + i].iov_len % request->size != 0)
            r = -FI_EINVAL;
    request->n_iov += n;
    return r;
}

static int find_segments(struct ivc_fi_ep *ep, const struct ivc_fi_atomic_header *header,
                         const char *list, struct request *request)
{
    struct fi_rma_ioc segment = { header->addr, header->count, header->key };
    uint64_t count = 0;

    if (header->n_segments == 1)
        return find_segment(ep, header, &segment, request);
    for (unsigned i = 0; i < header->n_segments; i++) {
        int r;

        memcpy(&segment, list + i * sizeof segment, sizeof segment);
        if (segment.count > header->count)
            return -FI_EINVAL;
        count += segment.count;
        r = find_segment(ep, header, &segment, request);
        if (r != 0)
            return r;
    }
    return count == header->count ? 0 : -FI_EINVAL;
}

static int parse(struct ivc_fi_ep *ep, const struct ivc_fi_atomic_header *header,
                 const char *payload, size_t len, struct request *ret_request)
{
    struct request request = { .n_iov = 0 };
    size_t list = header->n_segments > 1 ? header->n_segments * sizeof(struct fi_rma_ioc) : 0;
    bool operands = header->op != FI_ATOMIC_READ, compares = header->mode == IVC_FI_ATOMIC_COMPARE;

    if (header->mode > IVC_FI_ATOMIC_COMPARE
        || !ivc_fi_atomic_valid(header->datatype, header->op, header->mode)
        || header->n_segments == 0 || header->n_segments > IVC_FI_RMA_IOV_MAX)
        return -FI_EINVAL;
    request.size = ivc_fi_atomic_size(header->datatype);
    request.bytes = header->count * request.size;
    if (header->count > IVC_FI_ATOMIC_MAX / request.size
        || len != list + (size_t)(operands + compares) * request.bytes)
        return -FI_EINVAL;
    request.operands = operands ? payload + list : NULL;
    request.compares = compares ? payload + list + request.bytes : NULL;
    *ret_request = request;
    return find_segments(ep, header, payload, ret_request);
}

static void execute(const struct ivc_fi_atomic_header *header, const struct request *request,
                    char *results)
{
    size_t done = 0;

    for (unsigned i = 0; i < request->n_iov; i++) {
        const struct iovec *piece = &request->iov[i];

        ivc_fi_atomic_apply(header->datatype, header->op, piece->iov_base,
                            request->operands ? request->operands + done : NULL,
                            request->compares ? request->compares + done : NULL,
                            results + done, piece->iov_len / request->size);
        done += piece->iov_len;
    }
}

static void atomic_landed(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    struct ivc_fi_landing *landing = message->arg;
    struct ivc_fi_atomic_header header;
    struct request request;
    char results[IVC_FI_ATOMIC_MAX];
    int r;

    memcpy(&header, landing->header, sizeof header);
    if (status != 0)
        goto end;       /* who asked is gone */
    r = parse(ep, &header, landing->staging, landing->len, &request);
    if (r == 0) {
        execute(&header, &request, results);
        ivc_fi_target_count(ep, request.mr, header.mode == IVC_FI_ATOMIC_BASE
                            ? IVC_FI_COUNT_REMOTE_WRITE : IVC_FI_COUNT_REMOTE_READ);
        if (header.mode != IVC_FI_ATOMIC_BASE && header.op != FI_ATOMIC_READ)
            ivc_fi_cntr_bump(request.mr->cntr, false);
    }
    /* Before the answer: with that the initiator goes on, and the next operation may go directly. */
    if (r == 0 && (header.base.flags & IVC_FI_WANT_REACH) && header.n_segments == 1)
        ivc_fi_reach_tell(ep, landing->peer, request.mr);
    answer(ep, landing->peer, &header, -r, results, r == 0 ? request.bytes : 0);
end:
    ivc_fi_landing_put(landing);
}

static void start_atomic(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *base)
{
    struct ivc_fi_atomic_header header;
    int error;

    memcpy(&header, base, sizeof header);
    if (message->len > IVC_FI_ATOMIC_REQUEST_MAX)
        error = FI_EINVAL;
    else
        error = ivc_fi_landing_stage(ep, peer, message, base, atomic_landed);
    if (error)
        answer(ep, peer, &header, error, NULL, 0);
}

const struct ivc_fi_kind_ops ivc_fi_receive_atomic = {
    .header_min = sizeof(struct ivc_fi_atomic_header), .start = start_atomic,
};
