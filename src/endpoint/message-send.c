/*
 * Messages that leave and are more than a packet, or have to wait: see message-internal.h.
 *
 * Per peer there are two queues.  `starts` keeps the order of sending: whole messages, trains,
 * offers.  `data` has the payloads that were asked for; its packets go out between the others, a
 * few in each turn, so a short message never waits for a long one to end.
 *
 * Who has offered a message has nothing to do until the answer is here, and the receiver nothing after it until the
 * first packet is filled.  So that packet is filled at once, where memory leads to the peer, and kept for the answer.
 */
#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"
#include "endpoint/message-internal.h"

#include <errno.h>
#include <string.h>

enum {
    STARTS_PER_TURN = 64,       /* messages: a chain of on_sent that sends must not hold us */
    DATA_PER_TURN = 32,         /* packets, about 1 MiB: then look what has arrived */
    PASSED_MAX = 64,            /* offers without a packet of their own, till one that nobody asks for is given up */
};

enum outgoing_state {
    OUTGOING_QUEUED,            /* in starts, nothing sent */
    OUTGOING_TRAIN,             /* in starts, its first packet sent */
    OUTGOING_OFFERED,           /* in offered */
    OUTGOING_ASKED,             /* in data, nothing of it sent */
    OUTGOING_DATA,              /* in data, its first packet sent */
};

struct ivc_outgoing {
    struct ivc_link link;
    struct ivc_box *box;
    enum outgoing_state state;
    bool named, exposed;        /* has an id, an exposure */
    bool is_answer;             /* the peer waits for it */
    unsigned n_iov;
    struct iovec iov[IVC_MESSAGE_IOV_MAX];
    struct ivc_cursor cursor;
    size_t len, left;           /* of the payload; what of it is still to be sent */
    uint64_t id;
    uint64_t arrival;           /* the receiver's id */
    struct ivc_exposure exposure;
    ivc_message_sent_fn *on_sent;
    void *sent_arg;
    uint8_t header[IVC_MESSAGE_HEADER_MAX];
};

static struct ivc_outgoing *first(const struct ivc_link *list)
{
    return IVC_MEMBER_OF(struct ivc_outgoing, link, list->next);
}

/* Nothing of it is needed by the receiver any more. */
static void withdraw(struct ivc_outgoing *out)
{
    struct ivc_mailbox *mailbox = out->box->mailbox;

    if (out->named)
        ivc_ids_drop(&mailbox->outgoing_ids, out->id);
    if (out->exposed)
        ivc_endpoint_unexpose(mailbox->endpoint, &out->exposure);
    out->named = out->exposed = false;
}

/* Gives up the packet that was filled ahead, if there is one. */
static void end_ahead(struct ivc_mailbox *mailbox)
{
    if (mailbox->ahead.of)
        ivc_endpoint_buffer_free(mailbox->endpoint, &mailbox->ahead.buffer);
    mailbox->ahead.of = NULL;
}

static bool is_ahead(const struct ivc_outgoing *out)
{
    return out->box->mailbox->ahead.of == out;
}

static void free_outgoing(struct ivc_outgoing *out)
{
    withdraw(out);
    if (is_ahead(out))
        end_ahead(out->box->mailbox);
    ivc_list_remove(&out->link);
    free(out);
}

static void finish(struct ivc_outgoing *out, int status)
{
    struct ivc_mailbox *mailbox = out->box->mailbox;
    ivc_message_sent_fn *on_sent = out->on_sent;
    void *arg = out->sent_arg;

    free_outgoing(out);
    ivc_mailbox_tell_sent(mailbox, on_sent, arg, status);
}

/* The `n` bytes of the payload from the cursor on, which there are, as pieces: how many. */
static unsigned slice(const struct ivc_outgoing *out, struct ivc_cursor *cursor, size_t n, struct iovec *ret_iov)
{
    unsigned n_iov = 0;

    while (n > 0) {
        const struct iovec *from = &out->iov[cursor->i];
        size_t part = IVC_MIN(n, from->iov_len - cursor->at);

        ret_iov[n_iov++] = (struct iovec){ (char *)from->iov_base + cursor->at, part };
        n -= part;
        cursor->at += part;
        if (cursor->at == from->iov_len)
            *cursor = (struct ivc_cursor){ cursor->i + 1, 0 };
    }
    return n_iov;
}

/* A packet of what precedes the payload, if anything, and as much payload as there is room for.
 * Room is whole lines, so that the parts that follow lie as the payload does. */
static int send_part(struct ivc_outgoing *out, uint8_t tag, const void *before, size_t before_len)
{
    struct ivc_mailbox *mailbox = out->box->mailbox;
    size_t room = mailbox->packet_max - ivc_align_up(before_len, IVC_LINE);
    size_t n = IVC_MIN(out->left, room);
    struct ivc_cursor cursor = out->cursor;
    struct iovec parts[1 + IVC_MESSAGE_IOV_MAX] = { { (void *)before, before_len } };
    unsigned n_before = before_len > 0, n_iov = slice(out, &cursor, n, parts + n_before);
    int r = ivc_endpoint_send(mailbox->endpoint, out->box->peer, tag, parts, n_before + n_iov);

    if (r == 0) {
        out->cursor = cursor;
        out->left -= n;
    }
    return r;
}

static int send_whole(struct ivc_outgoing *out)
{
    struct iovec parts[1 + IVC_MESSAGE_IOV_MAX] = { { out->header, out->header[0] } };
    int r;

    memcpy(parts + 1, out->iov, out->n_iov * sizeof *parts);
    r = ivc_endpoint_send(out->box->mailbox->endpoint, out->box->peer, TAG_MESSAGE, parts, 1 + out->n_iov);
    if (r == 0)
        out->left = 0;
    return r;
}

static int send_train_start(struct ivc_outgoing *out)
{
    uint64_t len = out->len;
    uint8_t before[sizeof len + IVC_MESSAGE_HEADER_MAX];
    int r;

    memcpy(before, &len, sizeof len);
    memcpy(before + sizeof len, out->header, out->header[0]);
    r = send_part(out, TAG_TRAIN, before, sizeof len + out->header[0]);
    if (r == 0)
        out->state = OUTGOING_TRAIN;
    return r;
}

/* Lets the receiver pull, if there is one piece of memory and the path can; else it will ask. */
static void expose(struct ivc_outgoing *out)
{
    struct ivc_box *box = out->box;

    if (out->exposed || out->n_iov != 1
        || !ivc_endpoint_can_pull(box->mailbox->endpoint, box->peer))
        return;
    out->exposed = ivc_endpoint_expose(box->mailbox->endpoint, box->peer, out->iov[0].iov_base,
                                       out->len, &out->exposure) == 0;
}

/* Whether the payload can be read where it lies, and where that is. */
static bool is_lent(const struct ivc_outgoing *out, struct ivc_place *ret_place)
{
    const struct ivc_box *box = out->box;

    return out->n_iov == 1
           && ivc_endpoint_show_lent(box->mailbox->endpoint, box->peer, out->iov[0].iov_base, out->len,
                                     &ret_place->where, &ret_place->key);
}

/* Where the receiver finds the payload by itself, if it does: the tag says how. */
static uint8_t find_place(struct ivc_outgoing *out, struct ivc_place *ret_place)
{
    if (is_lent(out, ret_place))
        return TAG_LENT;
    expose(out);
    *ret_place = (struct ivc_place){ out->exposure.where, out->exposure.key };
    return out->exposed ? TAG_EXPOSED : TAG_OFFER;
}

/* Whether there may be another one; who has offered many since one was filled has no use for it. */
static bool make_room_ahead(struct ivc_mailbox *mailbox)
{
    if (mailbox->ahead.of && ++mailbox->ahead.passed >= PASSED_MAX)
        end_ahead(mailbox);
    return !mailbox->ahead.of;
}

static void fill_ahead(struct ivc_outgoing *out)
{
    struct ivc_mailbox *mailbox = out->box->mailbox;
    struct ivc_ahead ahead = { .of = out, .len = IVC_MIN(out->len, mailbox->packet_max) };
    struct iovec from[IVC_MESSAGE_IOV_MAX];
    struct ivc_cursor cursor = { 0 };

    if (!make_room_ahead(mailbox)
        || ivc_endpoint_buffer_get_spare(mailbox->endpoint, out->box->peer, ahead.len, &ahead.buffer) != 0)
        return;
    ivc_copy_gather(ahead.buffer.side, ahead.buffer.data, from, slice(out, &cursor, ahead.len, from));
    ivc_endpoint_buffer_filled(&ahead.buffer);
    mailbox->ahead = ahead;
}

static int send_offer(struct ivc_outgoing *out)
{
    struct ivc_box *box = out->box;
    struct ivc_offer offer = { .len = out->len };
    struct ivc_place place;
    struct iovec parts[3] = { { &offer, sizeof offer } };
    unsigned n = 1;
    uint8_t tag;
    int r = out->named ? 0 : ivc_ids_take(&box->mailbox->outgoing_ids, out, &out->id);

    if (r < 0)
        return r;
    out->named = true;
    offer.id = out->id;
    tag = find_place(out, &place);
    if (tag != TAG_OFFER)
        parts[n++] = (struct iovec){ &place, sizeof place };
    parts[n++] = (struct iovec){ out->header, out->header[0] };
    r = ivc_endpoint_send(box->mailbox->endpoint, box->peer, tag, parts, n);
    if (r != 0)
        return r;
    out->state = OUTGOING_OFFERED;
    ivc_list_move(&out->link, &box->offered);
    if (tag == TAG_OFFER)
        fill_ahead(out);
    return 0;
}

/* Whether the payload, which takes several packets, is better offered than sent at once: it is long, or read where it
 * lies. */
static bool goes_by_offer(const struct ivc_outgoing *out)
{
    struct ivc_place place;

    return out->len > out->box->mailbox->offer_size || is_lent(out, &place);
}

/* The next packet of a message in `starts`. */
static int send_next(struct ivc_outgoing *out)
{
    struct ivc_mailbox *mailbox = out->box->mailbox;

    if (out->state == OUTGOING_TRAIN)
        return send_part(out, TAG_MORE, NULL, 0);
    if (out->len <= ivc_mailbox_whole_max(mailbox, out->header[0]))
        return send_whole(out);
    return goes_by_offer(out) ? send_offer(out) : send_train_start(out);
}

/* Whether the receiver waits for it, or for the rest of it. */
static bool is_awaited(const struct ivc_outgoing *out)
{
    return out->is_answer || out->state == OUTGOING_TRAIN;
}

static bool goes_later(const struct ivc_outgoing *out, int r)
{
    return r == IVC_E_FULL || (is_awaited(out) && ivc_message_is_later(r));
}

/* Pushes the messages in `starts` in their order: 0 when there is none left to push. */
static int push_starts(struct ivc_box *box)
{
    int r = 0;

    for (unsigned n = 0; n < STARTS_PER_TURN && !ivc_list_is_empty(&box->starts); n++) {
        struct ivc_outgoing *out = first(&box->starts);

        do {
            r = send_next(out);
        } while (r == 0 && out->state == OUTGOING_TRAIN && out->left > 0);
        if (goes_later(out, r))
            return IVC_E_FULL;
        if (r != 0 || out->state != OUTGOING_OFFERED)
            finish(out, r);
    }
    return r;
}

/* The packet that was filled ahead, or what of it is wanted. */
static int send_ahead(struct ivc_outgoing *out)
{
    struct ivc_mailbox *mailbox = out->box->mailbox;
    struct ivc_ahead *ahead = &mailbox->ahead;
    struct ivc_cursor cursor = { 0 };
    struct iovec iov[IVC_MESSAGE_IOV_MAX];
    size_t n = IVC_MIN(ahead->len, out->left);
    unsigned n_iov = slice(out, &cursor, n, iov);
    int r = ivc_endpoint_send_filled(mailbox->endpoint, out->box->peer, TAG_DATA_MORE, &ahead->buffer, iov, n_iov);

    if (r == 0) {
        ahead->of = NULL;
        out->cursor = cursor;
        out->left -= n;
    }
    return r;
}

static int send_data(struct ivc_outgoing *out)
{
    int r;

    if (out->state == OUTGOING_DATA)
        return is_ahead(out) ? send_ahead(out) : send_part(out, TAG_DATA_MORE, NULL, 0);
    if (is_ahead(out)) {
        struct iovec arrival = { &out->arrival, sizeof out->arrival };

        r = ivc_endpoint_send(out->box->mailbox->endpoint, out->box->peer, TAG_DATA, &arrival, 1);
    } else {
        r = send_part(out, TAG_DATA, &out->arrival, sizeof out->arrival);
    }
    if (r == 0)
        out->state = OUTGOING_DATA;
    return r;
}

static void push_data(struct ivc_box *box, unsigned n)
{
    while (n-- > 0 && !ivc_list_is_empty(&box->data)) {
        struct ivc_outgoing *out = first(&box->data);
        int r = send_data(out);

        if (ivc_message_is_later(r))
            return;
        if (r != 0 || out->left == 0)
            finish(out, r);
    }
}

void ivc_outgoing_push(struct ivc_box *box)
{
    /* Messages that wait for room get it before data does, which still comes forward. */
    push_data(box, push_starts(box) == IVC_E_FULL ? 1 : DATA_PER_TURN);
}

/* Pushes one box now, not at the next turn of progress. */
static void push_now(struct ivc_box *box)
{
    struct ivc_mailbox *mailbox = box->mailbox;

    ivc_box_set_busy(box);
    if (mailbox->pushing)
        return;
    mailbox->pushing = true;
    ivc_outgoing_push(box);
    mailbox->pushing = false;
}

static int queue(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                 const struct ivc_outgoing *what)
{
    struct ivc_outgoing *out = malloc(sizeof *out);
    struct ivc_box *box = out ? ivc_box_hold(mailbox, peer) : NULL;

    if (!box) {
        free(out);
        return ivc_error_set(-ENOMEM, "message: out of memory");
    }
    *out = *what;
    out->box = box;
    ivc_list_init(&out->link);
    ivc_list_move(&out->link, &box->starts);
    push_now(box);
    ivc_box_release(box);
    return 0;
}

static int check(const uint8_t *header, const struct iovec *iov, unsigned n_iov, size_t *ret_len)
{
    size_t len = 0;

    if (header[0] == 0 || header[0] > IVC_MESSAGE_HEADER_MAX)
        return ivc_error_set(-EINVAL, "message header of %u bytes: must be from 1 to %d",
                             header[0], IVC_MESSAGE_HEADER_MAX);
    if (n_iov > IVC_MESSAGE_IOV_MAX)
        return ivc_error_set(-EINVAL, "message of %u pieces: at most %d", n_iov,
                             IVC_MESSAGE_IOV_MAX);
    for (unsigned i = 0; i < n_iov; i++)
        len += iov[i].iov_len;
    *ret_len = len;
    return 0;
}

/* `what`: of it what is known already. */
static int send_now_or_queue(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                             const struct iovec *iov, unsigned n_iov, struct ivc_outgoing *what)
{
    int r = check(header, iov, n_iov, &what->len);

    if (r < 0)
        return r;
    r = mailbox->pushing ? IVC_E_FULL : ivc_mailbox_try_send(mailbox, peer, header, iov, n_iov);
    if (!goes_later(what, r)) {
        ivc_mailbox_tell_sent(mailbox, what->on_sent, what->sent_arg, r);
        if (ivc_mailbox_busy(mailbox))
            ivc_mailbox_push(mailbox);      /* what on_sent has queued */
        return 0;
    }
    what->left = what->len;
    what->n_iov = n_iov;
    if (n_iov > 0)
        memcpy(what->iov, iov, n_iov * sizeof *iov);
    memcpy(what->header, header, *(const uint8_t *)header);
    return queue(mailbox, peer, what);
}

int ivc_mailbox_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                     const struct iovec *iov, unsigned n_iov, ivc_message_sent_fn *on_sent,
                     void *sent_arg)
{
    struct ivc_outgoing what = { .on_sent = on_sent, .sent_arg = sent_arg };

    return send_now_or_queue(mailbox, peer, header, iov, n_iov, &what);
}

int ivc_mailbox_answer(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                       const struct iovec *iov, unsigned n_iov, ivc_message_sent_fn *on_sent,
                       void *sent_arg)
{
    struct ivc_outgoing what = { .on_sent = on_sent, .sent_arg = sent_arg, .is_answer = true };

    return send_now_or_queue(mailbox, peer, header, iov, n_iov, &what);
}

/* The offer that a peer answers; NULL when it is none of its. */
static struct ivc_outgoing *find_offered(struct ivc_mailbox *mailbox, const struct ivc_peer *peer,
                                         uint64_t id)
{
    struct ivc_outgoing *out = ivc_ids_find(&mailbox->outgoing_ids, id);

    return out && out->box->peer == peer && out->state == OUTGOING_OFFERED ? out : NULL;
}

void ivc_outgoing_accepted(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                           const struct ivc_packet *packet)
{
    struct ivc_accept accept;
    struct ivc_outgoing *out;
    struct ivc_box *box;

    if (!ivc_packet_read(packet, 0, &accept, sizeof accept))
        return;
    out = find_offered(mailbox, peer, accept.id);
    if (!out || accept.wanted > out->len)
        return;
    box = out->box;
    box->holds++;
    if (accept.wanted == 0) {
        finish(out, 0);
    } else {
        withdraw(out);
        out->state = OUTGOING_ASKED;
        out->arrival = accept.arrival;
        out->left = accept.wanted;
        ivc_list_move(&out->link, &box->data);
        push_now(box);
    }
    ivc_box_release(box);
}

void ivc_outgoing_pulled(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                         const struct ivc_packet *packet)
{
    struct ivc_outgoing *out;
    struct ivc_box *box;
    uint64_t id;

    if (!ivc_packet_read(packet, 0, &id, sizeof id))
        return;
    out = find_offered(mailbox, peer, id);
    if (!out)
        return;
    if (out->exposed)
        ivc_peer_count_exposed(peer, out->len);
    box = out->box;
    box->holds++;
    finish(out, 0);
    ivc_box_release(box);
}

void ivc_outgoing_gone(struct ivc_box *box)
{
    /* In the order in which they were sent, as far as there is one. */
    while (!ivc_list_is_empty(&box->data))
        finish(first(&box->data), IVC_E_GONE);
    while (!ivc_list_is_empty(&box->offered))
        finish(first(&box->offered), IVC_E_GONE);
    while (!ivc_list_is_empty(&box->starts))
        finish(first(&box->starts), IVC_E_GONE);
}

static void free_list(struct ivc_link *list)
{
    while (!ivc_list_is_empty(list))
        free_outgoing(first(list));
}

void ivc_outgoing_free(struct ivc_box *box)
{
    free_list(&box->data);
    free_list(&box->offered);
    free_list(&box->starts);
}
