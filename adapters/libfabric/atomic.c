/*
 * Atomic operations on a peer's registered memory, as their initiator sees them.
 *
 * Where the memory lies in the region and the processor can do it in one step, the initiator does it
 * itself; else the target's progress does it on request.  Both ways go through
 * ivc_fi_atomic_apply(), which takes the same processor instructions, so they may meet in one word.
 *
 * A request is header, the list of segments if there are several, operands, values to compare: small
 * enough never to be an offer, so that atomics to one peer are done in the order of the calls.
 */
#include "rma.h"

/* A call of any of the forms. */
struct atomic {
    struct ivc_fi_rma_call call;
    enum ivc_fi_atomic_mode mode;
    enum fi_datatype datatype;
    enum fi_op op;
    const struct fi_ioc *operands, *compares;
    struct fi_ioc *results;
    size_t n_operands, n_compares, n_results;
    fi_addr_t to;
    const struct fi_rma_ioc *remote;
    size_t n_remote;
    /* Found by check(). */
    size_t count, size;
};

static size_t elements_of(const struct fi_ioc *ioc, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ioc[i].count;
    return count;
}

static void to_iov(const struct fi_ioc *ioc, size_t n, size_t size, struct iovec *ret_iov)
{
    for (size_t i = 0; i < n; i++)
        ret_iov[i] = (struct iovec){ ioc[i].addr, ioc[i].count * size };
}

static void gather(char *to, const struct fi_ioc *ioc, size_t n, size_t size)
{
    struct iovec iov[IVC_FI_IOV_MAX];

    to_iov(ioc, n, size, iov);
    ivc_fi_gather(to, iov, (unsigned)n);
}

static bool has_operands(const struct atomic *atomic)
{
    return atomic->op != FI_ATOMIC_READ;
}

static int check(struct atomic *atomic)
{
    size_t remote = 0;

    if (!ivc_fi_atomic_valid(atomic->datatype, atomic->op, atomic->mode))
        return -FI_EOPNOTSUPP;
    if (atomic->n_operands > IVC_FI_IOV_MAX || atomic->n_compares > IVC_FI_IOV_MAX
        || atomic->n_results > IVC_FI_IOV_MAX || atomic->n_remote == 0
        || atomic->n_remote > IVC_FI_RMA_IOV_MAX)
        return -FI_EINVAL;
    for (size_t i = 0; i < atomic->n_remote; i++)
        remote += atomic->remote[i].count;
    atomic->count = remote;
    atomic->size = ivc_fi_atomic_size(atomic->datatype);
    if (remote > IVC_FI_ATOMIC_MAX / atomic->size)
        return -FI_EMSGSIZE;
    if (has_operands(atomic) && elements_of(atomic->operands, atomic->n_operands) != remote)
        return -FI_EINVAL;
    if (atomic->mode == IVC_FI_ATOMIC_COMPARE
        && elements_of(atomic->compares, atomic->n_compares) != remote)
        return -FI_EINVAL;
    if (atomic->mode != IVC_FI_ATOMIC_BASE
        && elements_of(atomic->results, atomic->n_results) != remote)
        return -FI_EINVAL;
    return 0;
}

/* The peer's memory, if we can do it ourselves.  What is not aligned is left to its owner. */
static void *direct(struct ivc_fi_ep *ep, const struct atomic *atomic)
{
    const struct fi_rma_ioc *remote = &atomic->remote[0];
    void *memory;

    if (atomic->n_remote != 1 || !ivc_fi_atomic_is_native(atomic->datatype))
        return NULL;
    memory = ivc_fi_reach_find(ep, atomic->call.peer, remote->key, remote->addr,
                               atomic->count * atomic->size,
                               ivc_fi_atomic_access(atomic->mode, atomic->op));
    if (!memory || (uintptr_t)memory % atomic->size == 0)
        return memory;
    ivc_fi_reach_done(ep);
    return NULL;
}

static void do_direct(const struct atomic *atomic, void *memory)
{
    char operands[IVC_FI_ATOMIC_MAX], compares[IVC_FI_ATOMIC_MAX], results[IVC_FI_ATOMIC_MAX];
    bool compare = atomic->mode == IVC_FI_ATOMIC_COMPARE;
    bool fetch = atomic->mode != IVC_FI_ATOMIC_BASE;
    struct iovec iov[IVC_FI_IOV_MAX];

    if (has_operands(atomic))
        gather(operands, atomic->operands, atomic->n_operands, atomic->size);
    if (compare)
        gather(compares, atomic->compares, atomic->n_compares, atomic->size);
    ivc_fi_atomic_apply(atomic->datatype, atomic->op, memory,
                        has_operands(atomic) ? operands : NULL, compare ? compares : NULL,
                        fetch ? results : NULL, atomic->count);
    if (fetch) {
        to_iov(atomic->results, atomic->n_results, atomic->size, iov);
        ivc_fi_scatter(iov, (unsigned)atomic->n_results, results);
    }
}

static void reply_landed(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    (void)ep;
    ivc_fi_op_done(message->arg, status == 0 ? 0 : -FI_ECONNABORTED);
}

/* Writes the payload of a request; its length. */
static size_t write_request(const struct atomic *atomic, char *to)
{
    size_t bytes = atomic->count * atomic->size, len = 0;

    if (atomic->n_remote > 1) {
        len = atomic->n_remote * sizeof *atomic->remote;
        memcpy(to, atomic->remote, len);
    }
    if (has_operands(atomic)) {
        gather(to + len, atomic->operands, atomic->n_operands, atomic->size);
        len += bytes;
    }
    if (atomic->mode == IVC_FI_ATOMIC_COMPARE) {
        gather(to + len, atomic->compares, atomic->n_compares, atomic->size);
        len += bytes;
    }
    return len;
}

static int by_request(struct ivc_fi_ep *ep, const struct atomic *atomic)
{
    char request[IVC_FI_ATOMIC_REQUEST_MAX];
    struct iovec iov = { request, 0 };
    struct ivc_fi_atomic_header header;
    struct ivc_fi_op *op;
    int r = ivc_fi_rma_op(ep, &atomic->call, atomic->count * atomic->size, &op);

    if (r != 0)
        return r;
    if (atomic->mode != IVC_FI_ATOMIC_BASE) {
        op->sink.done = reply_landed;
        op->n_iov = (unsigned)atomic->n_results;
        to_iov(atomic->results, atomic->n_results, atomic->size, op->iov);
    }
    iov.iov_len = write_request(atomic, request);
    header = (struct ivc_fi_atomic_header){
        .base = {
            .len = sizeof header,
            .kind = IVC_FI_KIND_ATOMIC,
            .flags = ivc_fi_reach_ask(ep, atomic->call.peer, atomic->remote[0].key),
            .id = op->id,
        },
        .addr = atomic->remote[0].addr,
        .key = atomic->remote[0].key,
        .datatype = (uint8_t)atomic->datatype,
        .op = (uint8_t)atomic->op,
        .mode = (uint8_t)atomic->mode,
        .n_segments = (uint8_t)atomic->n_remote,
        .count = (uint32_t)atomic->count,
    };
    if (atomic->mode == IVC_FI_ATOMIC_BASE)
        header.base.flags |= IVC_FI_WANT_ACK;
    return ivc_fi_rma_send(op, &header.base, &iov, iov.iov_len > 0, false);
}

/* Itself, or by request. */
static int execute(struct ivc_fi_ep *ep, const struct atomic *atomic)
{
    void *memory = direct(ep, atomic);

    if (!memory)
        return by_request(ep, atomic);
    do_direct(atomic, memory);
    ivc_fi_reach_done(ep);
    ivc_fi_rma_ended(ep, &atomic->call);
    return 0;
}

static ssize_t atomic_do(struct ivc_fi_ep *ep, struct atomic *atomic)
{
    bool base = atomic->mode == IVC_FI_ATOMIC_BASE;
    int r = check(atomic);

    if (r == 0 && (atomic->call.flags & FI_TAGGED))
        r = -FI_EOPNOTSUPP;
    if (r == 0 && (atomic->call.flags & FI_INJECT)
        && atomic->count * atomic->size > IVC_FI_INJECT_MAX)
        r = -FI_EMSGSIZE;
    if (r != 0)
        return r;
    atomic->call.report_flags = FI_ATOMIC | (base ? FI_WRITE : FI_READ);
    atomic->call.count = base ? IVC_FI_COUNT_WRITE : IVC_FI_COUNT_READ;
    ivc_fi_lock(ep->domain);
    r = ivc_fi_rma_begin(ep, atomic->to, &atomic->call);
    if (r == 0)
        r = execute(ep, atomic);
    ivc_fi_rma_count(ep, &atomic->call, r, atomic->count * atomic->size);
    ivc_fi_unlock(ep->domain);
    return r;
}

static void start_atomic_reply(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                               struct ivc_message *message, const struct ivc_fi_header *header)
{
    ivc_fi_rma_reply(ep, peer, message, header, reply_landed);
}

const struct ivc_fi_kind_ops ivc_fi_receive_atomic_reply = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_atomic_reply,
};

/* ---------------------------------------------------------------- libfabric's calls */

/* What a call with one remote segment comes to; those of more segments are messages. */
static ssize_t one_segment(struct fid_ep *fid, struct atomic *atomic, uint64_t flags, fi_addr_t to,
                           uint64_t addr, uint64_t key, size_t count)
{
    const struct fi_rma_ioc remote = { addr, count, key };
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);

    atomic->call.flags = ep->tx_op_flags | flags;
    atomic->to = to;
    atomic->remote = &remote;
    atomic->n_remote = 1;
    return atomic_do(ep, atomic);
}

static ssize_t writev_(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count,
                       fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype datatype,
                       enum fi_op op, void *context)
{
    struct atomic atomic = {
        .call.context = context, .mode = IVC_FI_ATOMIC_BASE, .datatype = datatype, .op = op,
        .operands = iov, .n_operands = count,
    };

    (void)desc;
    return one_segment(fid, &atomic, 0, to, addr, key, elements_of(iov, count));
}

static ssize_t write_(struct fid_ep *fid, const void *buf, size_t count, void *desc, fi_addr_t to,
                      uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op,
                      void *context)
{
    const struct fi_ioc ioc = { (void *)(uintptr_t)buf, count };

    return writev_(fid, &ioc, &desc, 1, to, addr, key, datatype, op, context);
}

static ssize_t inject(struct fid_ep *fid, const void *buf, size_t count, fi_addr_t to,
                      uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op)
{
    const struct fi_ioc ioc = { (void *)(uintptr_t)buf, count };
    struct atomic atomic = {
        .mode = IVC_FI_ATOMIC_BASE, .datatype = datatype, .op = op, .operands = &ioc,
        .n_operands = 1,
    };

    return one_segment(fid, &atomic, FI_INJECT | IVC_FI_QUIET, to, addr, key, count);
}

static ssize_t readwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count,
                          struct fi_ioc *resultv, void **result_desc, size_t result_count,
                          fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype datatype,
                          enum fi_op op, void *context)
{
    struct atomic atomic = {
        .call.context = context, .mode = IVC_FI_ATOMIC_FETCH, .datatype = datatype, .op = op,
        .operands = iov, .n_operands = count, .results = resultv, .n_results = result_count,
    };

    (void)desc, (void)result_desc;
    return one_segment(fid, &atomic, 0, to, addr, key, elements_of(resultv, result_count));
}

static ssize_t readwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc,
                         void *result, void *result_desc, fi_addr_t to, uint64_t addr, uint64_t key,
                         enum fi_datatype datatype, enum fi_op op, void *context)
{
    const struct fi_ioc ioc = { (void *)(uintptr_t)buf, count };
    struct fi_ioc results = { result, count };

    return readwritev(fid, &ioc, &desc, 1, &results, &result_desc, 1, to, addr, key, datatype, op,
                      context);
}

static ssize_t compwritev(struct fid_ep *fid, const struct fi_ioc *iov, void **desc, size_t count,
                          const struct fi_ioc *comparev, void **compare_desc, size_t compare_count,
                          struct fi_ioc *resultv, void **result_desc, size_t result_count,
                          fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype datatype,
                          enum fi_op op, void *context)
{
    struct atomic atomic = {
        .call.context = context, .mode = IVC_FI_ATOMIC_COMPARE, .datatype = datatype, .op = op,
        .operands = iov, .n_operands = count, .compares = comparev, .n_compares = compare_count,
        .results = resultv, .n_results = result_count,
    };

    (void)desc, (void)compare_desc, (void)result_desc;
    return one_segment(fid, &atomic, 0, to, addr, key, elements_of(resultv, result_count));
}

static ssize_t compwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc,
                         const void *compare, void *compare_desc, void *result, void *result_desc,
                         fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype datatype,
                         enum fi_op op, void *context)
{
    const struct fi_ioc ioc = { (void *)(uintptr_t)buf, count };
    const struct fi_ioc compares = { (void *)(uintptr_t)compare, count };
    struct fi_ioc results = { result, count };

    return compwritev(fid, &ioc, &desc, 1, &compares, &compare_desc, 1, &results, &result_desc, 1,
                      to, addr, key, datatype, op, context);
}

static struct atomic of_message(const struct fi_msg_atomic *msg, enum ivc_fi_atomic_mode mode,
                                uint64_t flags)
{
    return (struct atomic){
        .call = { .flags = flags & ~IVC_FI_QUIET, .context = msg->context },
        .mode = mode, .datatype = msg->datatype, .op = msg->op, .operands = msg->msg_iov,
        .n_operands = msg->iov_count, .to = msg->addr, .remote = msg->rma_iov,
        .n_remote = msg->rma_iov_count,
    };
}

static ssize_t writemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags)
{
    struct atomic atomic = of_message(msg, IVC_FI_ATOMIC_BASE, flags);

    return atomic_do(ivc_fi_ep_of(fid), &atomic);
}

static ssize_t readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
                            struct fi_ioc *resultv, void **result_desc, size_t result_count,
                            uint64_t flags)
{
    struct atomic atomic = of_message(msg, IVC_FI_ATOMIC_FETCH, flags);

    (void)result_desc;
    atomic.results = resultv;
    atomic.n_results = result_count;
    return atomic_do(ivc_fi_ep_of(fid), &atomic);
}

static ssize_t compwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *msg,
                            const struct fi_ioc *comparev, void **compare_desc,
                            size_t compare_count, struct fi_ioc *resultv, void **result_desc,
                            size_t result_count, uint64_t flags)
{
    struct atomic atomic = of_message(msg, IVC_FI_ATOMIC_COMPARE, flags);

    (void)compare_desc, (void)result_desc;
    atomic.compares = comparev;
    atomic.n_compares = compare_count;
    atomic.results = resultv;
    atomic.n_results = result_count;
    return atomic_do(ivc_fi_ep_of(fid), &atomic);
}

struct fi_ops_atomic ivc_fi_atomic_ops = {
    .size = sizeof ivc_fi_atomic_ops,
    .write = write_,
    .writev = writev_,
    .writemsg = writemsg,
    .inject = inject,
    .readwrite = readwrite,
    .readwritev = readwritev,
    .readwritemsg = readwritemsg,
    .compwrite = compwrite,
    .compwritev = compwritev,
    .compwritemsg = compwritemsg,
    .writevalid = ivc_fi_atomic_writevalid,
    .readwritevalid = ivc_fi_atomic_readwritevalid,
    .compwritevalid = ivc_fi_atomic_compwritevalid,
};
