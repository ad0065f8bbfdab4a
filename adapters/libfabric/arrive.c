/*
 * Messages that arrive: each finds its receive or is kept, lands, and is reported.  The words are
 * explained in receive.h.
 *
 * Invariant: what a message says about itself is copied at its start (struct about); its payload
 * goes where a receive or we ourselves have room for it, and what is longer is cut off and reported
 * as FI_ETRUNC.
 */
#include "receive.h"

/* ---------------------------------------------------------------- completions */

static void report_error(struct ivc_fi_ep *ep, int err, const struct fi_cq_err_entry *what)
{
    struct fi_cq_err_entry entry = *what;

    entry.err = err;
    entry.prov_errno = err;
    if (ep->rx_cq)
        ivc_fi_cq_put_error(ep->rx_cq, &entry);
    ivc_fi_cntr_bump(ep->cntrs[IVC_FI_COUNT_RECV], true);
}

/* A receive that no message landed by. */
void ivc_fi_report_unmet(struct ivc_fi_ep *ep, const struct post *post, int err)
{
    report_error(ep, err, &(struct fi_cq_err_entry){
        .op_context = post->context,
        .flags = post->flags | (post->multi ? FI_MULTI_RECV : 0),
        .tag = post->wait.tag,
    });
}

static void report_landed(struct ivc_fi_ep *ep, const struct post *post, uint64_t flags, int status)
{
    const struct about *about = &post->about;
    struct fi_cq_tagged_entry entry = {
        .op_context = post->context,
        .flags = ivc_fi_receive_flags(flags, about->flags),
        .len = about->len,
        .buf = post->n_iov ? post->iov[0].iov_base : NULL,
        .data = about->data,
        .tag = about->tag,
    };

    if (RARELY(status != 0 || about->len > post->capacity)) {
        report_error(ep, status ? -ivc_fi_error(status) : FI_ETRUNC, &(struct fi_cq_err_entry){
            .op_context = entry.op_context, .flags = entry.flags, .buf = entry.buf,
            .data = entry.data, .tag = entry.tag,
            .len = status ? 0 : post->capacity,
            .olen = status ? 0 : about->len - post->capacity,
        });
        return;
    }
    if (post->report || (flags & FI_MULTI_RECV))
        if (ep->rx_cq)
            ivc_fi_cq_put(ep->rx_cq, &entry, about->peer->addr);
    ivc_fi_cntr_bump(ep->cntrs[IVC_FI_COUNT_RECV], false);
}

static void ivc_fi_acknowledge(struct ivc_fi_ep *ep, const struct about *about)
{
    const struct ivc_fi_header header = {
        .len = sizeof header, .kind = IVC_FI_KIND_ACK, .id = about->id,
    };

    ivc_fi_answer(ep, about->peer, &header, NULL, 0);
}

/* ---------------------------------------------------------------- FI_MULTI_RECV */

/* The application gets its buffer back, by an event of its own. */
void ivc_fi_buffer_release(struct ivc_fi_ep *ep, struct post *buffer)
{
    const struct fi_cq_tagged_entry entry = {
        .op_context = buffer->context, .flags = FI_MULTI_RECV,
    };

    if (buffer->cancelled)
        ivc_fi_report_unmet(ep, buffer, FI_ECANCELED);
    else if (ep->rx_cq)
        ivc_fi_cq_put(ep->rx_cq, &entry, FI_ADDR_NOTAVAIL);
    ivc_fi_post_put(ep, buffer);
}

/* Takes the part of a buffer in which a message of that length lands; NULL: out of memory. */
struct post *ivc_fi_carve(struct ivc_fi_ep *ep, struct post *buffer, size_t len)
{
    struct post *part = ivc_fi_post_get(ep);
    size_t taken = IVC_MIN(len, buffer->iov[0].iov_len);

    if (!part)
        return NULL;
    part->context = buffer->context;
    part->flags = buffer->flags;
    part->report = buffer->report;
    part->multi = false;
    part->buffer = buffer;
    part->iov[0] = (struct iovec){ buffer->iov[0].iov_base, taken };
    part->n_iov = 1;
    part->capacity = taken;
    buffer->iov[0].iov_base = (char *)buffer->iov[0].iov_base + taken;
    buffer->iov[0].iov_len -= taken;
    buffer->landing++;
    if (buffer->iov[0].iov_len < buffer->min_left || buffer->iov[0].iov_len == 0) {
        buffer->used_up = true;
        if (buffer->waiting)
            ivc_fi_match_remove_posted(buffer->match, &buffer->wait);
        buffer->waiting = false;
    }
    return part;
}

/* ---------------------------------------------------------------- landing */

static void finish(struct ivc_fi_ep *ep, struct post *post, int status)
{
    struct post *buffer = post->buffer;
    uint64_t flags = post->flags;

    if (RARELY(post->about.flags & IVC_FI_WANT_ACK) && status == 0)
        ivc_fi_acknowledge(ep, &post->about);
    if (RARELY(buffer)) {
        bool last = --buffer->landing == 0 && buffer->used_up;

        if (last && !buffer->cancelled)
            flags |= FI_MULTI_RECV;
        report_landed(ep, post, flags, status);
        if (last && buffer->cancelled)
            ivc_fi_buffer_release(ep, buffer);
        else if (last)
            ivc_fi_post_put(ep, buffer);
    } else {
        report_landed(ep, post, flags, status);
    }
    ivc_fi_post_put(ep, post);
}

static void post_done(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    finish(ep, message->arg, status);
}

static void out_of_memory(struct ivc_fi_ep *ep, const struct about *about, uint64_t flags)
{
    IVC_FI_WARN("no memory for a message of %zu bytes: it is lost", about->len);
    report_error(ep, FI_ENOMEM, &(struct fi_cq_err_entry){
        .flags = ivc_fi_receive_flags(flags, about->flags), .tag = about->tag, .data = about->data,
        .olen = about->len,
    });
}

/* A message that was kept goes where the receive wants it. */
static void scatter(const struct post *post, const char *payload)
{
    size_t left = IVC_MIN(post->about.len, post->capacity);

    for (unsigned i = 0; i < post->n_iov && left > 0; i++) {
        size_t n = IVC_MIN(left, post->iov[i].iov_len);

        memcpy(post->iov[i].iov_base, payload, n);
        payload += n;
        left -= n;
    }
}

/* `post` takes the message, which is in no list any more. */
void ivc_fi_take(struct ivc_fi_ep *ep, struct early *early, struct post *post)
{
    struct ivc_arrival *offer = early->offer;

    post->about = early->about;
    switch (early->state) {
    case ARRIVING:
        early->post = post;
        return;
    case OFFERED:
        ivc_fi_early_put(ep, early);
        post->sink.done = post_done;
        ivc_mailbox_accept(ep->mailbox, offer, post->iov, post->n_iov, post);
        return;
    case COMPLETE:
        scatter(post, early->payload);
        ivc_fi_early_put(ep, early);
        finish(ep, post, 0);
        return;
    case LOST:
        ivc_fi_early_put(ep, early);
        finish(ep, post, IVC_E_GONE);
        return;
    }
}

/* Nobody wants the message, which is in no list any more. */
void ivc_fi_drop(struct ivc_fi_ep *ep, struct early *early)
{
    early->dropped = true;
    early->claimed = false;
    if (early->state == OFFERED) {
        ivc_mailbox_accept(ep->mailbox, early->offer, NULL, 0, early);
    } else if (early->state != ARRIVING) {
        if (early->state == COMPLETE && (early->about.flags & IVC_FI_WANT_ACK))
            ivc_fi_acknowledge(ep, &early->about);
        ivc_fi_early_put(ep, early);
    }
}

static void early_done(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    struct early *early = message->arg;

    early->state = status == 0 ? COMPLETE : LOST;
    early->offer = NULL;
    if (early->dropped) {
        ivc_fi_drop(ep, early);
    } else if (early->post) {
        ivc_fi_take(ep, early, early->post);
    } else if (status != 0 && !early->claimed) {
        ivc_fi_match_remove_early(early->match, &early->wait);
        ivc_fi_early_put(ep, early);
    }
}

/* ---------------------------------------------------------------- what arrives */

static void keep(struct ivc_fi_ep *ep, struct ivc_message *message, struct ivc_fi_match *match,
                 const struct about *about, uint64_t flags)
{
    bool offered = message->offer != NULL;
    struct early *early = ivc_fi_early_get(ep, offered ? 0 : about->len);

    if (early) {
        early->match = match;
        early->about = *about;
        early->wait.tag = about->tag;
        early->wait.peer = about->peer;
        if (ivc_fi_match_add_early(match, &early->wait) != 0) {
            ivc_fi_early_put(ep, early);
            early = NULL;
        }
    }
    if (!early) {
        out_of_memory(ep, about, flags);
        return;     /* no place, no arg: the payload goes nowhere */
    }
    early->sink.done = early_done;
    early->offer = message->offer;
    early->state = offered ? OFFERED : ARRIVING;
    message->later = offered;
    message->arg = early;
    if (!offered && about->len > 0) {
        message->iov[0] = (struct iovec){ early->payload, about->len };
        message->n_iov = 1;
    }
}

static inline void start(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *header,
                         struct ivc_fi_match *match, uint64_t tag, uint64_t flags)
{
    struct ivc_fi_posted *waiting = ivc_fi_match_find_posted(match, tag, peer);
    const struct about about = {
        .peer = peer, .tag = tag, .data = header->data, .len = message->len,
        .id = header->id, .flags = header->flags,
    };
    struct post *post;

    if (RARELY(!waiting)) {
        keep(ep, message, match, &about, flags);
        return;
    }
    post = ivc_fi_post_of(waiting);
    if (!post->multi)
        ivc_fi_match_remove_posted(match, waiting);
    else if (!(post = ivc_fi_carve(ep, post, about.len))) {
        out_of_memory(ep, &about, flags);
        return;
    }
    post->sink.done = post_done;
    post->about = about;
    message->n_iov = post->n_iov;
    for (unsigned i = 0; i < post->n_iov; i++)
        message->iov[i] = post->iov[i];
    message->arg = post;
}

static void start_msg(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                      const struct ivc_fi_header *header)
{
    start(ep, peer, message, header, ep->msg, 0, FI_RECV | FI_MSG);
}

static void start_tagged(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *header)
{
    start(ep, peer, message, header, ep->tagged, header->tag, FI_RECV | FI_TAGGED);
}

const struct ivc_fi_kind_ops ivc_fi_receive_msg = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_msg,
};
const struct ivc_fi_kind_ops ivc_fi_receive_tagged = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_tagged,
};
