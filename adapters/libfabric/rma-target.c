/*
 * RMA: reads and writes of our registered memory by others.
 *
 * Invariant: a request touches memory only after ivc_fi_mr_find() found it registered for that, and
 * of several segments all are looked up before a byte is written.
 */
#include "rma.h"

/* ---------------------------------------------------------------- writes */

/* All bytes are in place. */
static void write_ended(struct ivc_fi_landing *landing, int error)
{
    struct ivc_fi_ep *ep = landing->ep;

    if (error == 0) {
        ivc_fi_target_count(ep, landing->mr, IVC_FI_COUNT_REMOTE_WRITE);
        if ((landing->flags & IVC_FI_WITH_DATA) && ep->rx_cq) {
            const struct fi_cq_tagged_entry entry = {
                .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                .len = landing->len,
                .data = landing->data,
            };

            ivc_fi_cq_put(ep->rx_cq, &entry, landing->peer->addr);
        }
    }
    /* Before the answer: with that the initiator goes on, and the next operation may go directly. */
    if (error == 0 && (landing->flags & IVC_FI_WANT_REACH) && landing->mr)
        ivc_fi_reach_tell(ep, landing->peer, landing->mr);
    ivc_fi_target_ack(ep, landing->peer, landing->flags, landing->id, error);
    ivc_fi_landing_put(landing);
}

static void write_landed(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    (void)ep;
    if (status == 0)
        write_ended(message->arg, 0);
    else
        ivc_fi_landing_put(message->arg);   /* the writer is gone: nobody to tell */
}

/* Where every segment goes; all must be right before a byte is written. */
static int resolve_several(struct ivc_fi_ep *ep, const struct fi_rma_iov *remote, uint64_t n,
                           uint64_t len, uint64_t access, struct iovec *ret_iov, unsigned *ret_n)
{
    struct ivc_fi_mr *mr;
    unsigned all = 0, some;

    for (uint64_t i = 0; i < n; i++) {
        int r = ivc_fi_mr_find(ep, remote[i].key, remote[i].addr, remote[i].len, access,
                               ret_iov + all, &some, &mr);

        if (r != 0)
            return r;
        /* Not their sum: a registration of the whole address space lets that overflow. */
        if (remote[i].len > len)
            return -FI_EINVAL;
        len -= remote[i].len;
        all += some;
    }
    *ret_n = all;
    return len == 0 ? 0 : -FI_EINVAL;
}

enum { SEVERAL_IOV_MAX = IVC_FI_RMA_IOV_MAX * IVC_FI_IOV_MAX };

/* Whether a list of segments opens the payload, with so many bytes behind it. */
static bool has_list(const struct ivc_fi_rma_header *header, size_t len, uint64_t behind)
{
    size_t list = header->base.tag * sizeof(struct fi_rma_iov);

    return header->base.tag > 1 && header->base.tag <= IVC_FI_RMA_IOV_MAX && len >= list
           && len - list == behind;
}

/* Copies the list out of what landed, which has one, and finds what it names. */
static int read_list(struct ivc_fi_landing *landing, uint64_t access,
                     struct iovec ret_iov[SEVERAL_IOV_MAX], unsigned *ret_n, size_t *ret_list)
{
    struct ivc_fi_rma_header header;
    struct fi_rma_iov remote[IVC_FI_RMA_IOV_MAX];

    memcpy(&header, landing->header, sizeof header);
    *ret_list = header.base.tag * sizeof *remote;
    memcpy(remote, landing->staging, *ret_list);
    return resolve_several(landing->ep, remote, header.base.tag, header.len, access, ret_iov,
                           ret_n);
}

static void write_several_landed(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    struct ivc_fi_landing *landing = message->arg;
    struct iovec iov[SEVERAL_IOV_MAX];
    size_t list;
    unsigned n;
    int r;

    (void)ep;
    if (status != 0) {
        ivc_fi_landing_put(landing);
        return;
    }
    r = read_list(landing, FI_REMOTE_WRITE, iov, &n, &list);
    if (r == 0) {
        ivc_fi_scatter(iov, n, landing->staging + list);
        landing->len -= list;
    }
    write_ended(landing, -r);
}

static void write_one(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                      const struct ivc_fi_rma_header *header)
{
    struct ivc_fi_landing *landing = NULL;
    struct ivc_fi_mr *mr;
    int r = header->len == message->len ? 0 : -FI_EINVAL;

    if (r == 0)
        r = ivc_fi_mr_find(ep, header->key, header->addr, header->len, FI_REMOTE_WRITE,
                           message->iov, &message->n_iov, &mr);
    if (r == 0 && !(landing = ivc_fi_landing_get(ep, peer, &header->base)))
        r = -FI_ENOMEM;
    if (r != 0) {
        message->n_iov = 0;
        ivc_fi_target_ack(ep, peer, header->base.flags, header->base.id, -r);
        return;
    }
    ivc_fi_landing_hold(landing, mr);
    landing->len = header->len;
    landing->sink.done = write_landed;
    message->arg = landing;
}

static void start_write(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                        const struct ivc_fi_header *base)
{
    struct ivc_fi_rma_header header;
    int error = FI_EINVAL;

    memcpy(&header, base, sizeof header);
    if (header.base.tag == 1) {
        write_one(ep, peer, message, &header);
        return;
    }
    if (has_list(&header, message->len, header.len))
        error = ivc_fi_landing_stage(ep, peer, message, base, write_several_landed);
    if (error)
        ivc_fi_target_ack(ep, peer, header.base.flags, header.base.id, error);
}

const struct ivc_fi_kind_ops ivc_fi_receive_write = {
    .header_min = sizeof(struct ivc_fi_rma_header), .start = start_write,
};

/* ---------------------------------------------------------------- reads */

static struct ivc_fi_header reply_header(uint32_t id, int error)
{
    return (struct ivc_fi_header){
        .len = sizeof(struct ivc_fi_header),
        .kind = IVC_FI_KIND_READ_REPLY,
        .id = id,
        .data = (uint64_t)error,
    };
}

static void refuse_read(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint32_t id, int error)
{
    struct ivc_fi_header header = reply_header(id, error);

    ivc_fi_answer(ep, peer, &header, NULL, 0);
}

static void reply_sent(void *landing, int status)
{
    (void)status;
    ivc_fi_landing_put(landing);
}

static int copy_to_staging(struct ivc_fi_landing *landing, const struct iovec *iov, unsigned n_iov,
                           struct iovec *ret_copy)
{
    size_t len = ivc_fi_iov_len(iov, n_iov);

    landing->staging = malloc(IVC_MAX(len, 1));
    if (!landing->staging)
        return -FI_ENOMEM;
    ivc_fi_gather(landing->staging, iov, n_iov);
    *ret_copy = (struct iovec){ landing->staging, len };
    return 0;
}

/* What does not go at once holds the registration until it has gone; of several, it is a copy. */
static int reply_later(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                       const struct ivc_fi_header *header, const struct iovec *iov, unsigned n_iov,
                       struct ivc_fi_mr *mr)
{
    struct ivc_fi_landing *landing = ivc_fi_landing_get(ep, peer, header);
    struct iovec copy;
    int r = 0;

    if (!landing)
        return -FI_ENOMEM;
    if (mr) {
        ivc_fi_landing_hold(landing, mr);
    } else {
        r = copy_to_staging(landing, iov, n_iov, &copy);
        iov = &copy;
        n_iov = 1;
    }
    if (r == 0)
        r = ivc_mailbox_answer(ep->mailbox, peer->peer, header, iov, n_iov, reply_sent, landing);
    if (r < 0)
        ivc_fi_landing_put(landing);
    return r;
}

/* Sends the memory itself.  `mr`: where all of it lies; NULL: several registrations. */
static void reply(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                  const struct ivc_fi_header *request, const struct iovec *iov, unsigned n_iov,
                  struct ivc_fi_mr *mr)
{
    struct ivc_fi_header header = reply_header(request->id, 0);
    int r;

    if ((request->flags & IVC_FI_WANT_REACH) && mr)
        ivc_fi_reach_tell(ep, peer, mr);    /* before the answer, as for a write */
    r = ivc_mailbox_try_send(ep->mailbox, peer->peer, &header, iov, n_iov);
    if (ivc_fi_answer_waits(r) && reply_later(ep, peer, &header, iov, n_iov, mr) < 0) {
        refuse_read(ep, peer, request->id, FI_ENOMEM);
        return;
    }
    ivc_fi_target_count(ep, mr, IVC_FI_COUNT_REMOTE_READ);
}

static void read_one(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                     const struct ivc_fi_rma_header *header)
{
    struct iovec iov[IVC_FI_IOV_MAX];
    struct ivc_fi_mr *mr;
    unsigned n;
    int r = ivc_fi_mr_find(ep, header->key, header->addr, header->len, FI_REMOTE_READ, iov, &n,
                           &mr);

    if (r == 0)
        reply(ep, peer, &header->base, iov, n, mr);
    else
        refuse_read(ep, peer, header->base.id, -r);
}

/* The reply of a list has at most as many pieces as a message: neighbours in one registration are
 * one piece, and registrations of many pieces are rare. */
static void read_several_landed(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    struct ivc_fi_landing *landing = message->arg;
    struct iovec iov[SEVERAL_IOV_MAX];
    struct ivc_fi_header header;
    size_t list;
    unsigned n;
    int r;

    memcpy(&header, landing->header, sizeof header);
    r = status != 0 ? -FI_ECONNABORTED
                    : read_list(landing, FI_REMOTE_READ, iov, &n, &list);
    if (r == 0 && n > IVC_MESSAGE_IOV_MAX)
        r = -FI_E2BIG;
    if (r == 0)
        reply(ep, landing->peer, &header, iov, n, NULL);
    else if (status == 0)
        refuse_read(ep, landing->peer, header.id, -r);
    ivc_fi_landing_put(landing);
}

static void start_read(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                       const struct ivc_fi_header *base)
{
    struct ivc_fi_rma_header header;
    int error = FI_EINVAL;

    memcpy(&header, base, sizeof header);
    if (header.base.tag == 1) {
        read_one(ep, peer, &header);
        return;
    }
    if (has_list(&header, message->len, 0))
        error = ivc_fi_landing_stage(ep, peer, message, base, read_several_landed);
    if (error)
        refuse_read(ep, peer, header.base.id, error);
}

const struct ivc_fi_kind_ops ivc_fi_receive_read = {
    .header_min = sizeof(struct ivc_fi_rma_header), .start = start_read,
};
