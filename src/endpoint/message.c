/*
 * Mailbox, and the short way of messages: whole ones, which are one packet.  See message.h, and
 * message-internal.h for the others.
 *
 * The short way keeps nothing: no memory is taken and no list looked at, on either side.
 */
#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"
#include "endpoint/message-internal.h"

#include <errno.h>
#include <string.h>

enum { OFFER_SIZE_DEFAULT = 64 << 10 };

int ivc_mailbox_new(struct ivc_endpoint *endpoint, ivc_message_start_fn *on_start,
                    ivc_message_done_fn *on_done, void *arg, struct ivc_mailbox **ret_mailbox)
{
    uint64_t offer_size = OFFER_SIZE_DEFAULT;
    int r = ivc_env_size("IVC_OFFER_SIZE", 0, IVC_TRAIN_MAX, &offer_size);
    struct ivc_mailbox *mailbox;

    if (r < 0)
        return r;
    mailbox = calloc(1, sizeof *mailbox);
    if (!mailbox)
        return ivc_error_set(-ENOMEM, "mailbox: out of memory");
    mailbox->endpoint = endpoint;
    mailbox->packet_max = ivc_endpoint_packet_max(endpoint);
    mailbox->offer_size = offer_size;
    mailbox->on_start = on_start;
    mailbox->on_done = on_done;
    mailbox->arg = arg;
    ivc_list_init(&mailbox->busy);
    ivc_list_init(&mailbox->boxes);
    ivc_list_init(&mailbox->orphans);
    *ret_mailbox = mailbox;
    return 0;
}

void ivc_mailbox_set_whole(struct ivc_mailbox *mailbox, ivc_message_whole_fn *on_whole)
{
    mailbox->on_whole = on_whole;
}

static void free_box(struct ivc_box *box)
{
    ivc_peer_set_mailbox(box->peer, NULL);
    ivc_list_remove(&box->link);
    ivc_list_remove(&box->busy);
    free(box);
}

void ivc_mailbox_free(struct ivc_mailbox *mailbox)
{
    if (!mailbox)
        return;
    while (!ivc_list_is_empty(&mailbox->boxes)) {
        struct ivc_box *box = IVC_MEMBER_OF(struct ivc_box, link, mailbox->boxes.next);

        ivc_outgoing_free(box);
        ivc_arrivals_free(&box->controls);
        ivc_arrivals_free(&box->arrivals);
        free_box(box);
    }
    ivc_arrivals_free(&mailbox->orphans);
    free(mailbox->outgoing_ids.places);
    free(mailbox->arrival_ids.places);
    free(mailbox);
}

static struct ivc_box *new_box(struct ivc_mailbox *mailbox, struct ivc_peer *peer)
{
    struct ivc_box *box = malloc(sizeof *box);     /* zeroed ones the C library does not keep at hand */

    if (!box)
        return NULL;
    *box = (struct ivc_box){ 0 };
    box->mailbox = mailbox;
    box->peer = peer;
    box->turn = mailbox->turn;      /* made in on_sent: it is for the next turn */
    ivc_list_init(&box->link);
    ivc_list_init(&box->busy);
    ivc_list_init(&box->starts);
    ivc_list_init(&box->offered);
    ivc_list_init(&box->data);
    ivc_list_init(&box->controls);
    ivc_list_init(&box->arrivals);
    ivc_list_move(&box->link, &mailbox->boxes);
    ivc_peer_set_mailbox(peer, box);
    return box;
}

struct ivc_box *ivc_box_hold(struct ivc_mailbox *mailbox, struct ivc_peer *peer)
{
    struct ivc_box *box = ivc_peer_mailbox(peer);

    if (!box)
        box = new_box(mailbox, peer);
    if (box)
        box->holds++;
    return box;
}

/* Whether something of the box is still to be pushed. */
static bool has_to_push(const struct ivc_box *box)
{
    return !ivc_list_is_empty(&box->starts) || !ivc_list_is_empty(&box->data)
        || !ivc_list_is_empty(&box->controls);
}

void ivc_box_release(struct ivc_box *box)
{
    if (--box->holds > 0 || has_to_push(box))
        return;
    ivc_list_remove(&box->busy);
    if (!box->in_train && ivc_list_is_empty(&box->offered) && ivc_list_is_empty(&box->arrivals))
        free_box(box);
}

void ivc_box_set_busy(struct ivc_box *box)
{
    if (ivc_list_is_empty(&box->busy))
        ivc_list_move(&box->busy, &box->mailbox->busy);
}

size_t ivc_mailbox_offer_size(const struct ivc_mailbox *mailbox)
{
    return mailbox->offer_size;
}

size_t ivc_mailbox_whole_max(const struct ivc_mailbox *mailbox, uint32_t header_len)
{
    return mailbox->packet_max - header_len;
}

/* Earlier messages to the peer have not started: a later one must not overtake them. */
static inline bool must_queue(const struct ivc_peer *peer)
{
    const struct ivc_box *box = ivc_peer_mailbox(peer);

    return __builtin_expect(box != NULL, 0) && !ivc_list_is_empty(&box->starts);
}

bool ivc_mailbox_queues(const struct ivc_peer *peer)
{
    return must_queue(peer);
}

int ivc_mailbox_try_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                         const struct iovec *iov, unsigned n_iov)
{
    size_t len = *(const uint8_t *)header;
    struct iovec parts[1 + IVC_MESSAGE_IOV_MAX];

    if (must_queue(peer) || n_iov > IVC_MESSAGE_IOV_MAX)
        return IVC_E_FULL;
    if (n_iov == 1 && iov[0].iov_len <= IVC_SHORT_MAX)
        return ivc_endpoint_send_short(mailbox->endpoint, peer, TAG_MESSAGE, header, len, iov[0].iov_base,
                                       iov[0].iov_len);
    parts[0] = (struct iovec){ (void *)header, len };
    for (unsigned i = 0; i < n_iov; i++) {
        parts[1 + i] = iov[i];
        len += iov[i].iov_len;
    }
    if (__builtin_expect(len > mailbox->packet_max, 0))
        return IVC_E_FULL;
    return ivc_endpoint_send(mailbox->endpoint, peer, TAG_MESSAGE, parts, 1 + n_iov);
}

void ivc_mailbox_tell_sent(struct ivc_mailbox *mailbox, ivc_message_sent_fn *on_sent, void *arg,
                           int status)
{
    bool outer = mailbox->pushing;

    if (!on_sent)
        return;
    mailbox->pushing = true;
    on_sent(arg, status);
    mailbox->pushing = outer;
}

bool ivc_packet_read(const struct ivc_packet *packet, size_t at, void *to, size_t n)
{
    size_t of_head = at < packet->head_len ? IVC_MIN(n, packet->head_len - at) : 0;

    if (at + n > ivc_packet_len(packet))
        return false;
    memcpy(to, (const char *)packet->head + at, of_head);
    if (n > of_head)
        memcpy((char *)to + of_head, (const char *)packet->body + (at + of_head - packet->head_len),
               n - of_head);
    return true;
}

const uint8_t *ivc_packet_header(struct ivc_mailbox *mailbox, const struct ivc_packet *packet,
                                 size_t at, uint8_t own[IVC_MESSAGE_HEADER_MAX])
{
    const uint8_t *header = (const uint8_t *)packet->head + at;
    size_t len = ivc_packet_len(packet), most;

    if (at >= len)
        return NULL;
    most = IVC_MIN(len - at, IVC_MESSAGE_HEADER_MAX);
    if (at >= packet->head_len || at + *header > packet->head_len) {
        ivc_packet_read(packet, at, own, most);
        if (!ivc_endpoint_body_is_whole(mailbox->endpoint))
            return NULL;
        header = own;
    }
    return *header > 0 && *header <= most ? header : NULL;
}

size_t ivc_message_trim(struct ivc_message *message)
{
    size_t left = message->len;

    for (unsigned i = 0; i < message->n_iov; i++) {
        message->iov[i].iov_len = IVC_MIN(message->iov[i].iov_len, left);
        left -= message->iov[i].iov_len;
    }
    return message->len - left;
}

/* Copies up to landing->room bytes to where the cursor stands. */
static void scatter(const struct ivc_message *message, struct ivc_landing *landing,
                    enum ivc_copy_side side, const char *from, size_t len)
{
    struct ivc_cursor *cursor = &landing->cursor;

    len = IVC_MIN(len, landing->room);
    landing->room -= len;
    while (len > 0) {
        const struct iovec *to = &message->iov[cursor->i];
        size_t n = IVC_MIN(len, to->iov_len - cursor->at);

        ivc_copy(side, (char *)to->iov_base + cursor->at, from, n);
        from += n;
        len -= n;
        cursor->at += n;
        if (cursor->at == to->iov_len)
            *cursor = (struct ivc_cursor){ cursor->i + 1, 0 };
    }
}

bool ivc_message_land(struct ivc_mailbox *mailbox, const struct ivc_message *message,
                      struct ivc_landing *landing, const struct ivc_packet *packet, size_t skip)
{
    const struct ivc_landing before = *landing;
    size_t of_head = IVC_MIN(skip, packet->head_len), of_body = skip - of_head;

    scatter(message, landing, IVC_COPY_OUT, (const char *)packet->head + of_head, packet->head_len - of_head);
    if (packet->body_len > of_body)
        scatter(message, landing, packet->side, (const char *)packet->body + of_body,
                packet->body_len - of_body);
    landing->left -= IVC_MIN(landing->left, ivc_packet_len(packet) - skip);
    if (ivc_endpoint_body_is_whole(mailbox->endpoint))
        return true;
    *landing = before;
    return false;
}

static __attribute__((noinline))
bool land_whole(struct ivc_mailbox *mailbox, struct ivc_message *message,
                const struct ivc_packet *packet, size_t skip)
{
    struct ivc_landing landing = { .room = ivc_message_trim(message), .left = message->len };

    return ivc_message_land(mailbox, message, &landing, packet, skip);
}

static inline void receive_whole(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                                 const struct ivc_packet *packet)
{
    uint8_t own[IVC_MESSAGE_HEADER_MAX];
    const uint8_t *header = ivc_packet_header(mailbox, packet, 0, own);
    struct ivc_message message;     /* not set as a whole: iov is long and mostly unused */

    if (__builtin_expect(!header, 0))
        return;
    message.peer = peer;
    message.header = header;
    message.header_len = *header;
    message.len = ivc_packet_len(packet) - *header;
    message.offer = NULL;
    message.n_iov = 0;
    message.later = false;
    message.arg = NULL;
    mailbox->on_start(mailbox->arg, &message);
    if (message.n_iov == 1 && packet->body_len == 0) {
        ivc_copy_short(IVC_COPY_OUT, message.iov[0].iov_base, (const char *)packet->head + message.header_len,
                       IVC_MIN(message.len, message.iov[0].iov_len));
    } else if (message.n_iov > 0 && !land_whole(mailbox, &message, packet, message.header_len)) {
        ivc_train_keep_torn(mailbox, &message);
        return;
    }
    mailbox->on_done(mailbox->arg, &message, 0);
}

void ivc_mailbox_packet(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                        const struct ivc_packet *packet)
{
    if (__builtin_expect(mailbox->n_torn > 0, 0) && ivc_train_again(mailbox, peer, packet))
        return;
    if (__builtin_expect(packet->tag == TAG_MESSAGE, 1)) {
        if (!mailbox->on_whole || !mailbox->on_whole(mailbox->arg, peer, packet))
            receive_whole(mailbox, peer, packet);
        return;
    }
    switch (packet->tag) {
    case TAG_TRAIN:
        ivc_train_start(mailbox, peer, packet);
        break;
    case TAG_MORE:
        ivc_train_more(mailbox, peer, packet);
        break;
    case TAG_OFFER:
    case TAG_EXPOSED:
    case TAG_LENT:
        ivc_arrival_start(mailbox, peer, packet);
        break;
    case TAG_ACCEPT:
        ivc_outgoing_accepted(mailbox, peer, packet);
        break;
    case TAG_DONE:
        ivc_outgoing_pulled(mailbox, peer, packet);
        break;
    case TAG_DATA:
        ivc_arrival_data(mailbox, peer, packet);
        break;
    case TAG_DATA_MORE:
        ivc_arrival_more(mailbox, peer, packet);
        break;
    }
}

void ivc_mailbox_gone(struct ivc_mailbox *mailbox, struct ivc_peer *peer)
{
    struct ivc_box *box = ivc_peer_mailbox(peer);

    (void)mailbox;
    if (!box)
        return;
    box->holds++;
    ivc_arrivals_gone(box);
    ivc_outgoing_gone(box);
    ivc_box_release(box);
}

void ivc_mailbox_push(struct ivc_mailbox *mailbox)
{
    if (mailbox->pushing)
        return;
    mailbox->pushing = true;
    mailbox->turn++;
    while (!ivc_list_is_empty(&mailbox->busy)) {
        struct ivc_box *box = IVC_MEMBER_OF(struct ivc_box, busy, mailbox->busy.next);

        if (box->turn == mailbox->turn)
            break;      /* once round: those behind it had their turn, or are new */
        box->turn = mailbox->turn;
        ivc_list_move(&box->busy, &mailbox->busy);
        box->holds++;
        ivc_arrivals_push(box);
        ivc_outgoing_push(box);
        ivc_box_release(box);
    }
    mailbox->pushing = false;
}

bool ivc_mailbox_busy(const struct ivc_mailbox *mailbox)
{
    return !ivc_list_is_empty(&mailbox->busy);
}

int ivc_mailbox_progress(struct ivc_mailbox *mailbox)
{
    if (__builtin_expect(ivc_mailbox_busy(mailbox), 0))
        ivc_mailbox_push(mailbox);
    return ivc_endpoint_progress(mailbox->endpoint);
}
