/*
 * Going out: sends, and the table of operations that could not end in the call that began them.
 *
 * A send that fits one packet and finds room ends within its call and leaves no trace here.  All
 * others are an operation, which ends when everything that it waits for has come: the core has
 * taken its bytes, the peer has answered.
 *
 * Invariants.  An operation ends once, with one completion or error (if one is due).  Its id comes
 * again after 2^20 uses of its place in the table, and only its own peer can answer it.
 */
#include "internal.h"

#include <string.h>

#define RARELY(condition) __builtin_expect(!!(condition), 0)
#define OFTEN(condition) __builtin_expect(!!(condition), 1)

_Static_assert((IVC_FI_QUEUE_SIZE & (IVC_FI_QUEUE_SIZE - 1)) == 0, "ids are masked");

int ivc_fi_send_init(struct ivc_fi_ep *ep)
{
    ep->ops = calloc(IVC_FI_QUEUE_SIZE, sizeof *ep->ops);
    ep->free_ops = NULL;
    ep->n_ops = ep->n_ops_used = 0;
    return ep->ops ? 0 : -FI_ENOMEM;
}

void ivc_fi_send_free(struct ivc_fi_ep *ep)
{
    ivc_fi_answers_free(ep);
    for (uint32_t i = 0; ep->ops && i < ep->n_ops_used; i++)
        free(ep->ops[i].staging);
    free(ep->ops);
    ep->ops = ep->free_ops = NULL;
}

/* ---------------------------------------------------------------- operations */

int ivc_fi_op_get(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_fi_op **ret_op)
{
    struct ivc_fi_op *op = ep->free_ops;

    if (op) {
        ep->free_ops = op->next;
    } else if (ep->n_ops_used < IVC_FI_QUEUE_SIZE) {
        op = &ep->ops[ep->n_ops_used];
        op->id = ep->n_ops_used++;
    } else {
        return -FI_EAGAIN;
    }
    ep->n_ops++;
    peer->n_ops++;
    op->sink.done = NULL;
    op->ep = ep;
    op->peer = peer;
    op->context = NULL;
    op->flags = 0;
    op->waits = 0;
    op->answer_due = op->report = false;
    op->count = IVC_FI_COUNT_SEND;
    op->status = 0;
    op->len = 0;
    op->staging = NULL;
    op->staged = 0;
    op->n_iov = 0;
    *ret_op = op;
    return 0;
}

void ivc_fi_op_put(struct ivc_fi_op *op)
{
    struct ivc_fi_ep *ep = op->ep;

    free(op->staging);
    op->staging = NULL;
    ep->staged -= op->staged;
    op->id += IVC_FI_QUEUE_SIZE;
    op->answer_due = false;
    op->peer->n_ops--;
    op->peer = NULL;
    ep->n_ops--;
    op->next = ep->free_ops;
    ep->free_ops = op;
}

struct ivc_fi_op *ivc_fi_op_find(struct ivc_fi_ep *ep, const struct ivc_fi_peer *from, uint32_t id)
{
    struct ivc_fi_op *op = &ep->ops[id & (IVC_FI_QUEUE_SIZE - 1)];

    return op->id == id && op->peer && op->peer == from ? op : NULL;
}

void ivc_fi_complete(struct ivc_fi_ep *ep, void *context, uint64_t flags, enum ivc_fi_count count,
                     bool report)
{
    if (report && ep->tx_cq) {
        const struct fi_cq_tagged_entry entry = { .op_context = context, .flags = flags };

        ivc_fi_cq_put(ep->tx_cq, &entry, FI_ADDR_NOTAVAIL);
    }
    if (RARELY(ep->cntrs[count]))
        ivc_fi_cntr_bump(ep->cntrs[count], false);
}

static void report_error(const struct ivc_fi_op *op)
{
    const struct fi_cq_err_entry entry = {
        .op_context = op->context, .flags = op->flags,
        .err = -op->status, .prov_errno = -op->status,
    };

    if (op->ep->tx_cq)
        ivc_fi_cq_put_error(op->ep->tx_cq, &entry);
    ivc_fi_cntr_bump(op->ep->cntrs[op->count], true);
}

void ivc_fi_op_done(struct ivc_fi_op *op, int status)
{
    if (status != 0 && op->status == 0)
        op->status = status;
    if (--op->waits > 0)
        return;
    if (op->status != 0)
        report_error(op);
    else
        ivc_fi_complete(op->ep, op->context, op->flags, op->count, op->report);
    ivc_fi_op_put(op);
}

void ivc_fi_op_sent(void *arg, int status)
{
    struct ivc_fi_op *op = arg;

    if (status != 0 && op->answer_due) {
        op->answer_due = false;     /* what was not sent is not answered */
        op->waits--;
    }
    ivc_fi_op_done(op, ivc_fi_error(status));
}

void ivc_fi_send_peer_gone(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer)
{
    for (uint32_t i = 0; ep->ops && i < ep->n_ops_used && peer->n_ops > 0; i++) {
        struct ivc_fi_op *op = &ep->ops[i];

        if (op->peer == peer && op->answer_due) {
            op->answer_due = false;
            ivc_fi_op_done(op, -FI_ECONNABORTED);
        }
    }
}

bool ivc_fi_send_owes(const struct ivc_fi_ep *ep)
{
    for (uint32_t i = 0; ep->ops && ep->n_ops > 0 && i < ep->n_ops_used; i++) {
        const struct ivc_fi_op *op = &ep->ops[i];

        /* One wait more than that for the peer's answer: the core has the bytes still. */
        if (op->peer && op->staging && op->waits > op->answer_due)
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------- sends */

static inline size_t length(const struct ivc_fi_send *send)
{
    size_t len = 0;

    for (unsigned i = 0; i < send->n_iov; i++)
        len += send->iov[i].iov_len;
    return len;
}

static uint64_t completion_flags(const struct ivc_fi_send *send)
{
    return FI_SEND | (send->kind == IVC_FI_KIND_TAGGED ? FI_TAGGED : FI_MSG);
}

static inline bool wants_ack(const struct ivc_fi_send *send)
{
    return (send->flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE))
           && !(send->flags & IVC_FI_QUIET);
}

static inline struct ivc_fi_header header_of(const struct ivc_fi_send *send)
{
    return (struct ivc_fi_header){
        .len = sizeof(struct ivc_fi_header),
        .kind = (uint8_t)send->kind,
        .flags = send->flags & FI_REMOTE_CQ_DATA ? IVC_FI_WITH_DATA : 0,
        .tag = send->tag,
        .data = send->data,
    };
}

/* The bytes are the caller's again when the call returns. */
static int stage(struct ivc_fi_op *op, const struct ivc_fi_send *send, size_t len,
                 struct iovec *ret_iov)
{
    char *to;

    if (op->ep->staged + len > IVC_FI_STAGED_MAX)
        return -FI_EAGAIN;
    to = op->staging = malloc(IVC_MAX(len, 1));
    if (!to)
        return -FI_ENOMEM;
    for (unsigned i = 0; i < send->n_iov; i++) {
        memcpy(to, send->iov[i].iov_base, send->iov[i].iov_len);
        to += send->iov[i].iov_len;
    }
    op->staged = len;
    op->ep->staged += len;
    *ret_iov = (struct iovec){ op->staging, len };
    return 0;
}

/* Hands the operation's message to the core, to be sent when there is room. */
static ssize_t queue(struct ivc_fi_op *op, const struct ivc_fi_send *send,
                     const struct ivc_fi_header *header, size_t len)
{
    struct ivc_mailbox *mailbox = op->ep->mailbox;
    const struct iovec *iov = send->iov;
    unsigned n_iov = send->n_iov;
    struct iovec staged;
    int r;

    if (send->flags & FI_INJECT) {
        r = stage(op, send, len, &staged);
        if (r != 0) {
            ivc_fi_op_put(op);
            return r;
        }
        iov = &staged;
        n_iov = 1;
    }
    op->waits++;
    /* It may end, and the operation with it, before this returns. */
    r = ivc_mailbox_send(mailbox, op->peer->peer, header, iov, n_iov, ivc_fi_op_sent, op);
    if (r < 0) {
        ivc_fi_op_put(op);
        return ivc_fi_error(r);
    }
    return 0;
}

static ssize_t send_as_op(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                          const struct ivc_fi_send *send, size_t len)
{
    struct ivc_fi_header header = header_of(send);
    struct ivc_fi_op *op;
    int r = ivc_fi_op_get(ep, peer, &op);

    if (r == -FI_EAGAIN) {
        ivc_fi_ep_progress(ep);
        r = ivc_fi_op_get(ep, peer, &op);
    }
    if (r != 0)
        return r;
    op->context = send->context;
    op->flags = completion_flags(send);
    op->report = !(send->flags & IVC_FI_QUIET) && ivc_fi_report_tx(ep, send->flags);
    op->len = len;
    if (!wants_ack(send))
        return queue(op, send, &header, len);

    header.flags |= IVC_FI_WANT_ACK;
    header.id = op->id;
    op->answer_due = true;
    op->waits = 1;
    r = ivc_mailbox_try_send(ep->mailbox, peer->peer, &header, send->iov, send->n_iov);
    if (r == IVC_E_FULL)
        return queue(op, send, &header, len);
    if (r != 0)
        ivc_fi_op_put(op);
    return ivc_fi_error(r);
}

/* A receiver that reads makes room soon: to wait for that costs less than to copy the message first. */
static int try_again(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, const struct ivc_fi_send *send)
{
    enum { TURNS = 256 };       /* some ten microseconds */
    const struct ivc_fi_header header = header_of(send);
    unsigned i = 0;
    int r;

    do {
        ivc_fi_ep_progress(ep);
        r = ivc_mailbox_try_send(ep->mailbox, peer->peer, &header, send->iov, send->n_iov);
    } while (r == IVC_E_FULL && ++i < TURNS && !ivc_mailbox_queues(peer->peer));
    return r;
}

/* An MPI injects short messages in calls that have to return though nobody receives: what finds no room is copied. */
static ssize_t inject(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, const struct ivc_fi_send *send, size_t len)
{
    int r = len <= ivc_mailbox_whole_max(ep->mailbox, sizeof(struct ivc_fi_header)) ? try_again(ep, peer, send)
                                                                                    : IVC_E_FULL;

    if (r == IVC_E_FULL)
        return send_as_op(ep, peer, send, len);
    if (r == 0)
        ivc_fi_complete(ep, send->context, completion_flags(send), IVC_FI_COUNT_SEND,
                        !(send->flags & IVC_FI_QUIET) && ivc_fi_report_tx(ep, send->flags));
    return ivc_fi_error(r);
}

static ssize_t send_other(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                          const struct ivc_fi_send *send)
{
    const uint64_t unknown = FI_MULTICAST | FI_TRIGGER | FI_COMMIT_COMPLETE;
    size_t len;

    if (send->n_iov > IVC_FI_IOV_MAX || (send->flags & unknown))
        return -FI_EINVAL;
    len = length(send);
    if ((send->flags & FI_INJECT) && len > IVC_FI_INJECT_MAX)
        return -FI_EMSGSIZE;
    if ((send->flags & FI_FENCE) && peer->n_ops > 0) {
        ivc_fi_ep_progress(ep);
        if (peer->n_ops > 0)
            return -FI_EAGAIN;
    }
    if (wants_ack(send) || !(send->flags & FI_INJECT))
        return send_as_op(ep, peer, send, len);
    return inject(ep, peer, send, len);
}

static inline ssize_t send_enabled(struct ivc_fi_ep *ep, const struct ivc_fi_send *send)
{
    const uint64_t special = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_FENCE | FI_MULTICAST
                             | FI_TRIGGER | FI_COMMIT_COMPLETE;
    struct ivc_fi_peer *peer;
    int r = ivc_fi_ep_peer(ep, send->to, &peer);

    if (RARELY(r != 0))
        return r;
    if (OFTEN(!(send->flags & special) && send->n_iov <= IVC_FI_IOV_MAX)) {
        const struct ivc_fi_header header = header_of(send);

        r = ivc_mailbox_try_send(ep->mailbox, peer->peer, &header, send->iov, send->n_iov);
        if (OFTEN(r == 0)) {
            ivc_fi_complete(ep, send->context, completion_flags(send), IVC_FI_COUNT_SEND,
                            !(send->flags & IVC_FI_QUIET) && ivc_fi_report_tx(ep, send->flags));
            return 0;
        }
        if (r != IVC_E_FULL)
            return ivc_fi_error(r);
    }
    return send_other(ep, peer, send);
}

/* Counted when it was taken: who is told to try again will. */
static __attribute__((noinline)) ssize_t send_counted(struct ivc_fi_ep *ep, const struct ivc_fi_send *send)
{
    struct ivc_fi_peer *peer;
    enum ivc_path path;
    ssize_t r;

    if (!ep->enabled)
        return -FI_EOPBADSTATE;
    r = ivc_fi_ep_peer(ep, send->to, &peer);
    if (r != 0)
        return r;
    path = ivc_peer_path(peer->peer);
    r = send_enabled(ep, send);
    if (r == 0)
        ivc_profile_sent(ep->profile, peer->peer, path, length(send));
    return r;
}

ssize_t ivc_fi_send(struct ivc_fi_ep *ep, const struct ivc_fi_send *send)
{
    if (RARELY(ep->enabled != IVC_FI_ENABLED))
        return send_counted(ep, send);
    return send_enabled(ep, send);
}
