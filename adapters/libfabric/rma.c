/*
 * RMA: reads and writes of a peer's registered memory, as their initiator sees them.
 *
 * Where the memory lies in the region and its owner has told us where (reach.c), an operation is a
 * copy and ends within its call.  Otherwise it is a request that the peer's progress serves: a write
 * is a message whose payload lands in the registered memory, a read is answered by one.
 *
 * Every write by request is acknowledged, injected ones too: a bad key is an error that must reach
 * the initiator, and MPI libraries take a write counter for "it is in the memory there".  The answer
 * is one slot of a ring.
 */
#include "rma.h"

/* ---------------------------------------------------------------- what all beginnings share */

int ivc_fi_rma_begin(struct ivc_fi_ep *ep, fi_addr_t to, struct ivc_fi_rma_call *call)
{
    int r;

    if (__builtin_expect(!ep->enabled, 0))
        return -FI_EOPBADSTATE;
    if (call->flags & (FI_MULTICAST | FI_TRIGGER | FI_COMMIT_COMPLETE))
        return -FI_EINVAL;
    r = ivc_fi_ep_peer(ep, to, &call->peer);
    if (r != 0 || !(call->flags & FI_FENCE) || call->peer->n_ops == 0)
        return r;
    ivc_fi_ep_progress(ep);
    return call->peer->n_ops > 0 ? -FI_EAGAIN : 0;
}

int ivc_fi_rma_op(struct ivc_fi_ep *ep, const struct ivc_fi_rma_call *call, size_t len,
                  struct ivc_fi_op **ret_op)
{
    struct ivc_fi_op *op;
    int r = ivc_fi_op_get(ep, call->peer, &op);

    if (r == -FI_EAGAIN) {
        ivc_fi_ep_progress(ep);
        r = ivc_fi_op_get(ep, call->peer, &op);
    }
    if (r != 0)
        return r;
    op->context = call->context;
    op->flags = call->report_flags;
    op->count = call->count;
    op->report = !(call->flags & IVC_FI_QUIET) && ivc_fi_report_tx(ep, call->flags);
    op->len = len;
    op->answer_due = true;
    op->waits = 1;
    *ret_op = op;
    return 0;
}

static int stage(struct ivc_fi_op *op, const struct iovec *iov, unsigned n_iov,
                 struct iovec *ret_iov)
{
    size_t len = ivc_fi_iov_len(iov, n_iov);

    op->staging = malloc(IVC_MAX(len, 1));
    if (!op->staging)
        return -FI_ENOMEM;
    ivc_fi_gather(op->staging, iov, n_iov);
    *ret_iov = (struct iovec){ op->staging, len };
    return 0;
}

int ivc_fi_rma_send(struct ivc_fi_op *op, const struct ivc_fi_header *header,
                    const struct iovec *iov, unsigned n_iov, bool lasting)
{
    struct ivc_mailbox *mailbox = op->ep->mailbox;
    struct iovec staged;
    int r = ivc_mailbox_try_send(mailbox, op->peer->peer, header, iov, n_iov);

    if (__builtin_expect(r == 0, 1))
        return 0;
    if (r == IVC_E_FULL) {
        r = 0;
        if (!lasting && n_iov > 0) {
            r = stage(op, iov, n_iov, &staged);
            iov = &staged;
            n_iov = 1;
        }
        if (r == 0) {
            op->waits++;
            r = ivc_mailbox_send(mailbox, op->peer->peer, header, iov, n_iov, ivc_fi_op_sent, op);
        }
    }
    if (r != 0)
        ivc_fi_op_put(op);
    return ivc_fi_error(r);
}

/* A call of any of the forms. */
struct rma {
    struct ivc_fi_rma_call call;
    const struct iovec *iov;
    size_t n_iov;
    fi_addr_t to;
    const struct fi_rma_iov *remote;
    size_t n_remote;
    uint64_t data;
};

static int check(const struct rma *rma, size_t *ret_len)
{
    size_t len, remote = 0;

    if (rma->n_iov > IVC_FI_IOV_MAX || rma->n_remote == 0 || rma->n_remote > IVC_FI_RMA_IOV_MAX)
        return -FI_EINVAL;
    len = ivc_fi_iov_len(rma->iov, (unsigned)rma->n_iov);
    for (size_t i = 0; i < rma->n_remote; i++)
        remote += rma->remote[i].len;
    if (len != remote)
        return -FI_EINVAL;
    *ret_len = len;
    return 0;
}

/* The peer's memory, if the operation can be a copy. */
static char *direct(struct ivc_fi_ep *ep, const struct rma *rma, uint64_t access)
{
    const struct fi_rma_iov *remote = &rma->remote[0];

    if (rma->n_remote != 1)
        return NULL;
    return ivc_fi_reach_find(ep, rma->call.peer, remote->key, remote->addr, remote->len, access);
}

static struct ivc_fi_rma_header header_of(struct ivc_fi_ep *ep, const struct rma *rma,
                                          enum ivc_fi_kind kind, uint16_t flags, size_t len,
                                          const struct ivc_fi_op *op)
{
    return (struct ivc_fi_rma_header){
        .base = {
            .len = sizeof(struct ivc_fi_rma_header),
            .kind = (uint8_t)kind,
            .flags = flags | ivc_fi_reach_ask(ep, rma->call.peer, rma->remote[0].key),
            .id = op->id,
            .tag = rma->n_remote,
            .data = rma->data,
        },
        .addr = rma->remote[0].addr,
        .key = rma->remote[0].key,
        .len = len,
    };
}

/* ---------------------------------------------------------------- writes */

/* Of several segments the list goes before the bytes, as one buffer of ours. */
static int send_several(struct ivc_fi_op *op, const struct rma *rma,
                        const struct ivc_fi_rma_header *header)
{
    size_t list = rma->n_remote * sizeof *rma->remote;
    char *staging = op->staging = malloc(list + op->len);
    struct iovec iov = { staging, list + op->len };

    if (!staging) {
        ivc_fi_op_put(op);
        return -FI_ENOMEM;
    }
    memcpy(staging, rma->remote, list);
    ivc_fi_gather(staging + list, rma->iov, (unsigned)rma->n_iov);
    return ivc_fi_rma_send(op, &header->base, &iov, 1, true);
}

static int write_by_request(struct ivc_fi_ep *ep, const struct rma *rma, size_t len)
{
    uint16_t flags = IVC_FI_WANT_ACK;
    struct ivc_fi_rma_header header;
    struct ivc_fi_op *op;
    int r = ivc_fi_rma_op(ep, &rma->call, len, &op);

    if (r != 0)
        return r;
    if (rma->call.flags & FI_REMOTE_CQ_DATA)
        flags |= IVC_FI_WITH_DATA;
    header = header_of(ep, rma, IVC_FI_KIND_WRITE, flags, len, op);
    if (rma->n_remote > 1)
        return send_several(op, rma, &header);
    return ivc_fi_rma_send(op, &header.base, rma->iov, len ? (unsigned)rma->n_iov : 0,
                           !(rma->call.flags & FI_INJECT));
}

/* A copy, or by request. */
static int write_now(struct ivc_fi_ep *ep, const struct rma *rma, size_t len)
{
    char *memory = rma->call.flags & FI_REMOTE_CQ_DATA ? NULL : direct(ep, rma, FI_REMOTE_WRITE);

    if (!memory)
        return write_by_request(ep, rma, len);
    /* Plain stores.  A message that we send later is published with release, so whoever takes it
     * finds these bytes. */
    ivc_fi_gather(memory, rma->iov, (unsigned)rma->n_iov);
    ivc_fi_reach_done(ep);
    ivc_fi_rma_ended(ep, &rma->call);
    return 0;
}

static ssize_t rma_write(struct ivc_fi_ep *ep, struct rma *rma)
{
    size_t len;
    int r = check(rma, &len);

    if (r != 0)
        return r;
    if ((rma->call.flags & FI_INJECT) && len > IVC_FI_INJECT_MAX)
        return -FI_EMSGSIZE;
    rma->call.report_flags = FI_RMA | FI_WRITE;
    rma->call.count = IVC_FI_COUNT_WRITE;
    ivc_fi_lock(ep->domain);
    r = ivc_fi_rma_begin(ep, rma->to, &rma->call);
    if (r == 0)
        r = write_now(ep, rma, len);
    ivc_fi_rma_count(ep, &rma->call, r, len);
    ivc_fi_unlock(ep->domain);
    return r;
}

/* ---------------------------------------------------------------- reads */

static void reply_landed(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    (void)ep;
    ivc_fi_op_done(message->arg, status == 0 ? 0 : -FI_ECONNABORTED);
}

static int read_by_request(struct ivc_fi_ep *ep, const struct rma *rma, size_t len)
{
    struct iovec list = { (void *)(uintptr_t)rma->remote, rma->n_remote * sizeof *rma->remote };
    struct ivc_fi_rma_header header;
    struct ivc_fi_op *op;
    int r = ivc_fi_rma_op(ep, &rma->call, len, &op);

    if (r != 0)
        return r;
    op->sink.done = reply_landed;
    op->n_iov = (unsigned)rma->n_iov;
    if (rma->n_iov > 0)
        memcpy(op->iov, rma->iov, rma->n_iov * sizeof *rma->iov);
    header = header_of(ep, rma, IVC_FI_KIND_READ, 0, len, op);
    return ivc_fi_rma_send(op, &header.base, &list, rma->n_remote > 1, false);
}

static int read_now(struct ivc_fi_ep *ep, const struct rma *rma, size_t len)
{
    const char *memory = direct(ep, rma, FI_REMOTE_READ);

    if (!memory)
        return read_by_request(ep, rma, len);
    ivc_fi_scatter(rma->iov, (unsigned)rma->n_iov, memory);
    ivc_fi_reach_done(ep);
    ivc_fi_rma_ended(ep, &rma->call);
    return 0;
}

static ssize_t rma_read(struct ivc_fi_ep *ep, struct rma *rma)
{
    size_t len;
    int r = check(rma, &len);

    if (r != 0)
        return r;
    rma->call.report_flags = FI_RMA | FI_READ;
    rma->call.count = IVC_FI_COUNT_READ;
    ivc_fi_lock(ep->domain);
    r = ivc_fi_rma_begin(ep, rma->to, &rma->call);
    if (r == 0)
        r = read_now(ep, rma, len);
    ivc_fi_rma_count(ep, &rma->call, r, len);
    ivc_fi_unlock(ep->domain);
    return r;
}

void ivc_fi_rma_reply(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                      const struct ivc_fi_header *header, ivc_fi_landed_fn *done)
{
    struct ivc_fi_op *op = ivc_fi_op_find(ep, peer, header->id);

    if (!op || !op->answer_due || op->sink.done != done)
        return;
    /* Not any more: another reply with this id is forged. */
    op->answer_due = false;
    if (header->data != 0 || message->len != op->len) {
        ivc_fi_op_done(op, header->data - 1 < INT32_MAX ? -(int)header->data : -FI_EIO);
        return;
    }
    memcpy(message->iov, op->iov, op->n_iov * sizeof *op->iov);
    message->n_iov = op->n_iov;
    message->arg = op;
}

static void start_read_reply(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                             struct ivc_message *message, const struct ivc_fi_header *header)
{
    ivc_fi_rma_reply(ep, peer, message, header, reply_landed);
}

const struct ivc_fi_kind_ops ivc_fi_receive_read_reply = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_read_reply,
};

/* ---------------------------------------------------------------- libfabric's calls */

static ssize_t readv_(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                      fi_addr_t from, uint64_t addr, uint64_t key, void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);
    const struct fi_rma_iov remote = { addr, ivc_fi_iov_len(iov, (unsigned)count), key };
    struct rma rma = {
        .call = { .flags = ep->tx_op_flags, .context = context },
        .iov = iov, .n_iov = count, .to = from, .remote = &remote, .n_remote = 1,
    };

    (void)desc;
    return rma_read(ep, &rma);
}

static ssize_t read_(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from,
                     uint64_t addr, uint64_t key, void *context)
{
    const struct iovec iov = { buf, len };

    return readv_(fid, &iov, &desc, 1, from, addr, key, context);
}

static struct rma of_message(const struct fi_msg_rma *msg, uint64_t flags)
{
    return (struct rma){
        .call = { .flags = flags & ~IVC_FI_QUIET, .context = msg->context },
        .iov = msg->msg_iov, .n_iov = msg->iov_count, .to = msg->addr,
        .remote = msg->rma_iov, .n_remote = msg->rma_iov_count, .data = msg->data,
    };
}

static ssize_t readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
    struct rma rma = of_message(msg, flags);

    return rma_read(ivc_fi_ep_of(fid), &rma);
}

/* All forms of a write of one segment; `flags` beside those of the endpoint. */
static ssize_t write_simple(struct fid_ep *fid, const struct iovec *iov, size_t count,
                            uint64_t flags, uint64_t data, fi_addr_t to, uint64_t addr, uint64_t key,
                            void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);
    const struct fi_rma_iov remote = { addr, ivc_fi_iov_len(iov, (unsigned)count), key };
    struct rma rma = {
        .call = { .flags = ep->tx_op_flags | flags, .context = context },
        .iov = iov, .n_iov = count, .to = to, .remote = &remote, .n_remote = 1, .data = data,
    };

    return rma_write(ep, &rma);
}

static ssize_t writev_(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                       fi_addr_t to, uint64_t addr, uint64_t key, void *context)
{
    (void)desc;
    return write_simple(fid, iov, count, 0, 0, to, addr, key, context);
}

static ssize_t write_(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to,
                      uint64_t addr, uint64_t key, void *context)
{
    const struct iovec iov = { (void *)(uintptr_t)buf, len };

    (void)desc;
    return write_simple(fid, &iov, 1, 0, 0, to, addr, key, context);
}

static ssize_t writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
    struct rma rma = of_message(msg, flags);

    return rma_write(ivc_fi_ep_of(fid), &rma);
}

static ssize_t inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to, uint64_t addr,
                      uint64_t key)
{
    const struct iovec iov = { (void *)(uintptr_t)buf, len };

    return write_simple(fid, &iov, 1, FI_INJECT | IVC_FI_QUIET, 0, to, addr, key, NULL);
}

static ssize_t writedata(struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data,
                         fi_addr_t to, uint64_t addr, uint64_t key, void *context)
{
    const struct iovec iov = { (void *)(uintptr_t)buf, len };

    (void)desc;
    return write_simple(fid, &iov, 1, FI_REMOTE_CQ_DATA, data, to, addr, key, context);
}

static ssize_t injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
                          fi_addr_t to, uint64_t addr, uint64_t key)
{
    const struct iovec iov = { (void *)(uintptr_t)buf, len };

    return write_simple(fid, &iov, 1, FI_INJECT | IVC_FI_QUIET | FI_REMOTE_CQ_DATA, data, to, addr,
                        key, NULL);
}

struct fi_ops_rma ivc_fi_rma_ops = {
    .size = sizeof ivc_fi_rma_ops,
    .read = read_,
    .readv = readv_,
    .readmsg = readmsg,
    .write = write_,
    .writev = writev_,
    .writemsg = writemsg,
    .inject = inject,
    .writedata = writedata,
    .injectdata = injectdata,
};
