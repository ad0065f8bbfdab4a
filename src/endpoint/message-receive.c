/*
 * Messages that come in more than one packet: see message-internal.h.
 *
 * A train lands as it comes: its place was chosen when its first packet came.  An offer becomes an
 * arrival, which waits for its place, then fetches its payload: reads it, pulls it, or asks for it.  What
 * an arrival owes and cannot do at once (no room for a packet) is done by later turns of progress.
 */
#include "base/error.h"
#include "base/util.h"
#include "endpoint/message-internal.h"

#include <string.h>

enum arrival_state {
    ARRIVAL_LATER,              /* in arrivals: waits for its place */
    ARRIVAL_TO_READ,            /* in controls */
    ARRIVAL_TO_PULL,            /* in controls */
    ARRIVAL_PULLING,            /* in arrivals (or orphans): waits for on_pulled() */
    ARRIVAL_TO_ASK,             /* in controls */
    ARRIVAL_ASKED,              /* in arrivals: waits for its data */
    ARRIVAL_TO_END,             /* in controls: no bytes will come, on_done is due */
    ARRIVAL_TO_THANK,           /* in controls: it is here, on_done was called, DONE is due */
};

struct ivc_arrival {
    struct ivc_link link;
    struct ivc_mailbox *mailbox;    /* NULL: it was freed in the middle of a pull */
    struct ivc_box *box;            /* NULL: an orphan */
    enum arrival_state state;
    uint8_t tag;                    /* TAG_EXPOSED, TAG_LENT: the payload is at `place` */
    int status;                     /* to be told in TO_END */
    struct ivc_message message;
    struct ivc_landing landing;
    uint64_t id, offer_id;          /* ours, the sender's */
    struct ivc_place place;
};

static struct ivc_message message_of(struct ivc_peer *peer, const uint8_t *header, size_t len)
{
    return (struct ivc_message){
        .peer = peer, .header = header, .header_len = *header, .len = len,
    };
}

static void set_torn(struct ivc_box *box, bool torn)
{
    box->mailbox->n_torn += (uint32_t)torn - (uint32_t)box->torn;
    box->torn = torn;
}

static void end_train(struct ivc_box *box, int status)
{
    struct ivc_mailbox *mailbox = box->mailbox;
    struct ivc_message message = box->train;

    box->in_train = false;
    set_torn(box, false);
    mailbox->on_done(mailbox->arg, &message, status);
}

/* False: the packet was torn. */
static bool land_train(struct ivc_box *box, const struct ivc_packet *packet, size_t skip)
{
    if (!ivc_message_land(box->mailbox, &box->train, &box->train_landing, packet, skip))
        return false;
    if (box->train_landing.left == 0)
        end_train(box, 0);
    return true;
}

static void start_train(struct ivc_box *box, const uint8_t *header, size_t len)
{
    struct ivc_mailbox *mailbox = box->mailbox;

    box->train = message_of(box->peer, header, len);
    box->in_train = true;
    mailbox->on_start(mailbox->arg, &box->train);
    box->train.header = NULL;
    box->train_landing = (struct ivc_landing){ .room = ivc_message_trim(&box->train), .left = len };
}

void ivc_train_start(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                     const struct ivc_packet *packet)
{
    uint8_t own[IVC_MESSAGE_HEADER_MAX];
    const uint8_t *header = ivc_packet_header(mailbox, packet, sizeof(uint64_t), own);
    struct ivc_box *box;
    uint64_t len;

    if (!header || !ivc_packet_read(packet, 0, &len, sizeof len) || len > IVC_TRAIN_MAX)
        return;
    box = ivc_box_hold(mailbox, peer);
    if (!box)
        return;     /* out of memory: the message is lost, there is nothing to remember it by */
    if (!box->in_train) {
        size_t skip = sizeof len + *header;

        start_train(box, header, len);
        if (!land_train(box, packet, skip))
            set_torn(box, true);
    }
    ivc_box_release(box);
}

void ivc_train_keep_torn(struct ivc_mailbox *mailbox, const struct ivc_message *message)
{
    struct ivc_box *box = ivc_box_hold(mailbox, message->peer);

    if (!box) {     /* out of memory: nothing to remember it by */
        mailbox->on_done(mailbox->arg, (struct ivc_message *)message, IVC_E_GONE);
        return;
    }
    if (box->in_train)
        end_train(box, IVC_E_GONE);     /* no peer of ours starts another within a train */
    box->train = *message;
    box->train.header = NULL;
    box->train_landing = (struct ivc_landing){
        .room = ivc_message_trim(&box->train), .left = message->len,
    };
    box->in_train = true;
    set_torn(box, true);
    ivc_box_release(box);
}

bool ivc_train_again(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                     const struct ivc_packet *packet)
{
    size_t at = packet->tag == TAG_TRAIN ? sizeof(uint64_t) : 0;
    uint8_t own[IVC_MESSAGE_HEADER_MAX];
    struct ivc_box *box = ivc_peer_mailbox(peer);
    const uint8_t *header;

    if (!box || !box->torn || (packet->tag != TAG_TRAIN && packet->tag != TAG_MESSAGE))
        return false;
    header = ivc_packet_header(mailbox, packet, at, own);
    if (!header)
        return true;
    box->holds++;
    set_torn(box, false);
    if (!land_train(box, packet, at + *header))
        set_torn(box, true);
    ivc_box_release(box);
    return true;
}

void ivc_train_more(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                    const struct ivc_packet *packet)
{
    struct ivc_box *box = ivc_peer_mailbox(peer);

    (void)mailbox;
    if (!box || !box->in_train)
        return;
    box->holds++;
    land_train(box, packet, 0);
    ivc_box_release(box);
}

static void forget(struct ivc_arrival *arrival)
{
    ivc_ids_drop(&arrival->mailbox->arrival_ids, arrival->id);
    ivc_list_remove(&arrival->link);
    if (arrival->box && arrival->box->incoming == arrival)
        arrival->box->incoming = NULL;
    free(arrival);
}

static void end_arrival(struct ivc_arrival *arrival, int status)
{
    struct ivc_mailbox *mailbox = arrival->mailbox;
    struct ivc_message message = arrival->message;

    forget(arrival);
    mailbox->on_done(mailbox->arg, &message, status);
}

static void owe(struct ivc_arrival *arrival, enum arrival_state state)
{
    arrival->state = state;
    ivc_list_move(&arrival->link, &arrival->box->controls);
    ivc_box_set_busy(arrival->box);
}

static void wait_for(struct ivc_arrival *arrival, enum arrival_state state)
{
    arrival->state = state;
    ivc_list_move(&arrival->link, &arrival->box->arrivals);
}

static int thank(struct ivc_arrival *arrival)
{
    struct iovec part = { &arrival->offer_id, sizeof arrival->offer_id };

    return ivc_endpoint_send(arrival->mailbox->endpoint, arrival->message.peer, TAG_DONE, &part,
                             1);
}

/* All of it was fetched by ourselves. */
static void end_fetched(struct ivc_arrival *arrival)
{
    struct ivc_mailbox *mailbox = arrival->mailbox;
    struct ivc_box *box = arrival->box;
    struct ivc_message message = arrival->message;

    box->holds++;
    /* The sender first: it may wait for its buffer. */
    if (ivc_message_is_later(thank(arrival)))
        owe(arrival, ARRIVAL_TO_THANK);
    else
        forget(arrival);
    mailbox->on_done(mailbox->arg, &message, 0);
    ivc_box_release(box);
}

static void read_lent(struct ivc_arrival *arrival)
{
    int r = ivc_endpoint_read_lent(arrival->mailbox->endpoint, arrival->message.peer,
                                   arrival->place.where, arrival->place.key, arrival->message.iov,
                                   arrival->message.n_iov);

    if (r == 0)
        end_fetched(arrival);
    else
        owe(arrival, ARRIVAL_TO_ASK);
}

static void on_pulled(void *arg, int status)
{
    struct ivc_arrival *arrival = arg;

    if (!arrival->mailbox) {
        free(arrival);
    } else if (!arrival->box) {
        end_arrival(arrival, IVC_E_GONE);
    } else if (status != 0) {
        owe(arrival, ARRIVAL_TO_ASK);       /* if the peer is there still, it can send it */
    } else {
        ivc_peer_count_pulled(arrival->message.peer, arrival->landing.room);
        end_fetched(arrival);
    }
}

static int pull(struct ivc_arrival *arrival)
{
    int r = ivc_endpoint_pull(arrival->mailbox->endpoint, arrival->message.peer,
                              arrival->place.where, arrival->place.key, arrival->message.iov,
                              arrival->message.n_iov, on_pulled, arrival);

    if (r == 0)
        wait_for(arrival, ARRIVAL_PULLING);
    else if (r != IVC_E_FULL)
        owe(arrival, ARRIVAL_TO_ASK);       /* as in on_pulled() */
    return r == IVC_E_FULL ? r : 0;
}

static int ask(struct ivc_arrival *arrival)
{
    struct ivc_accept accept = {
        .id = arrival->offer_id, .wanted = arrival->landing.left, .arrival = arrival->id,
    };
    struct iovec part = { &accept, sizeof accept };
    int r = ivc_endpoint_send(arrival->mailbox->endpoint, arrival->message.peer, TAG_ACCEPT, &part,
                              1);

    if (r == 0 && accept.wanted > 0)
        wait_for(arrival, ARRIVAL_ASKED);
    else if (r == 0)
        owe(arrival, ARRIVAL_TO_END);
    return r;
}

/* Does what an arrival owes.  It may be gone afterwards. */
static int step(struct ivc_arrival *arrival)
{
    int r = 0;

    switch (arrival->state) {
    case ARRIVAL_TO_READ:
        read_lent(arrival);
        return 0;
    case ARRIVAL_TO_PULL:
        r = pull(arrival);
        break;
    case ARRIVAL_TO_ASK:
        r = ask(arrival);
        break;
    case ARRIVAL_TO_END:
        end_arrival(arrival, arrival->status);
        return 0;
    case ARRIVAL_TO_THANK:
        r = thank(arrival);
        if (ivc_message_is_later(r))
            return IVC_E_FULL;
        forget(arrival);
        return r;
    default:
        break;
    }
    if (r != 0 && r != IVC_E_FULL) {
        arrival->status = r;
        owe(arrival, ARRIVAL_TO_END);
    }
    return r;
}

void ivc_arrivals_push(struct ivc_box *box)
{
    int r = 0;

    while (r != IVC_E_FULL && !ivc_list_is_empty(&box->controls))
        r = step(IVC_MEMBER_OF(struct ivc_arrival, link, box->controls.next));
}

/* How the payload comes. */
static enum arrival_state way_of(const struct ivc_arrival *arrival)
{
    if (arrival->landing.left == 0)
        return ARRIVAL_TO_ASK;      /* for nothing */
    if (arrival->tag == TAG_LENT)
        return ARRIVAL_TO_READ;
    return arrival->tag == TAG_EXPOSED
           && ivc_endpoint_can_pull(arrival->mailbox->endpoint, arrival->message.peer)
           ? ARRIVAL_TO_PULL : ARRIVAL_TO_ASK;
}

/* The place of an arrival is known: what it owes now. */
static void fetch(struct ivc_arrival *arrival)
{
    arrival->landing.room = arrival->landing.left = ivc_message_trim(&arrival->message);
    owe(arrival, way_of(arrival));
    /* Reading ends it: at the next turn, because on_done never comes before ivc_mailbox_accept() returns. */
    if (arrival->state != ARRIVAL_TO_READ)
        step(arrival);
}

static struct ivc_arrival *new_arrival(struct ivc_box *box, const struct ivc_offer *offer,
                                       const uint8_t *header)
{
    struct ivc_mailbox *mailbox = box->mailbox;
    struct ivc_arrival *arrival = calloc(1, sizeof *arrival);

    if (!arrival || ivc_ids_take(&mailbox->arrival_ids, arrival, &arrival->id) < 0) {
        free(arrival);
        return NULL;
    }
    ivc_list_init(&arrival->link);
    arrival->mailbox = mailbox;
    arrival->box = box;
    arrival->offer_id = offer->id;
    arrival->message = message_of(box->peer, header, offer->len);
    arrival->message.offer = arrival;
    wait_for(arrival, ARRIVAL_LATER);
    return arrival;
}

static void start_arrival(struct ivc_box *box, const struct ivc_offer *offer,
                          const struct ivc_place *place, uint8_t tag, const uint8_t *header)
{
    struct ivc_mailbox *mailbox = box->mailbox;
    struct ivc_arrival *arrival = new_arrival(box, offer, header);

    if (!arrival)
        return;     /* out of memory: as for trains */
    arrival->tag = tag;
    arrival->place = *place;
    mailbox->on_start(mailbox->arg, &arrival->message);
    arrival->message.header = NULL;
    /* on_start may have called ivc_mailbox_accept() itself. */
    if (arrival->state == ARRIVAL_LATER && !arrival->message.later)
        fetch(arrival);
}

void ivc_arrival_start(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                       const struct ivc_packet *packet)
{
    bool placed = packet->tag != TAG_OFFER;
    size_t skip = sizeof(struct ivc_offer) + (placed ? sizeof(struct ivc_place) : 0);
    uint8_t own[IVC_MESSAGE_HEADER_MAX];
    const uint8_t *header;
    struct ivc_offer offer;
    struct ivc_place place = { 0 };
    struct ivc_box *box;

    if (!ivc_packet_read(packet, 0, &offer, sizeof offer) || offer.len > PTRDIFF_MAX
        || (placed && !ivc_packet_read(packet, sizeof offer, &place, sizeof place)))
        return;
    header = ivc_packet_header(mailbox, packet, skip, own);     /* the last: it may be torn */
    if (!header)
        return;
    box = ivc_box_hold(mailbox, peer);
    if (!box)
        return;
    start_arrival(box, &offer, &place, packet->tag, header);
    ivc_box_release(box);
}

void ivc_mailbox_accept(struct ivc_mailbox *mailbox, struct ivc_arrival *offer,
                        const struct iovec *iov, unsigned n_iov, void *arg)
{
    (void)mailbox;
    if (n_iov > 0)
        memcpy(offer->message.iov, iov, n_iov * sizeof *iov);
    offer->message.n_iov = n_iov;
    offer->message.arg = arg;
    fetch(offer);
}

static void land_data(struct ivc_box *box, struct ivc_arrival *arrival,
                      const struct ivc_packet *packet, size_t skip)
{
    if (!ivc_message_land(box->mailbox, &arrival->message, &arrival->landing, packet, skip))
        return;     /* the packet was torn, and comes again */
    box->incoming = arrival;
    box->holds++;
    if (arrival->landing.left == 0)
        end_arrival(arrival, 0);
    ivc_box_release(box);
}

void ivc_arrival_data(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                      const struct ivc_packet *packet)
{
    struct ivc_arrival *arrival;
    uint64_t id;

    if (!ivc_packet_read(packet, 0, &id, sizeof id))
        return;
    arrival = ivc_ids_find(&mailbox->arrival_ids, id);
    if (!arrival || arrival->message.peer != peer || arrival->state != ARRIVAL_ASKED
        || arrival->box->incoming)
        return;     /* not asked for, or in the middle of another */
    land_data(arrival->box, arrival, packet, sizeof id);
}

void ivc_arrival_more(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                      const struct ivc_packet *packet)
{
    struct ivc_box *box = ivc_peer_mailbox(peer);

    (void)mailbox;
    if (box && box->incoming)
        land_data(box, box->incoming, packet, 0);
}

static void arrival_gone(struct ivc_arrival *arrival)
{
    switch (arrival->state) {
    case ARRIVAL_PULLING:
        /* Its memory is the path's until on_pulled() is called. */
        ivc_list_move(&arrival->link, &arrival->mailbox->orphans);
        arrival->box = NULL;
        break;
    case ARRIVAL_TO_THANK:
        forget(arrival);
        break;
    case ARRIVAL_TO_END:
        end_arrival(arrival, arrival->status);
        break;
    default:
        end_arrival(arrival, IVC_E_GONE);
    }
}

void ivc_arrivals_gone(struct ivc_box *box)
{
    if (box->in_train)
        end_train(box, IVC_E_GONE);
    /* Both until both are empty: on_done may accept another one, which moves it. */
    while (!ivc_list_is_empty(&box->controls) || !ivc_list_is_empty(&box->arrivals)) {
        struct ivc_link *list = ivc_list_is_empty(&box->arrivals) ? &box->controls : &box->arrivals;

        arrival_gone(IVC_MEMBER_OF(struct ivc_arrival, link, list->next));
    }
}

void ivc_arrivals_free(struct ivc_link *arrivals)
{
    while (!ivc_list_is_empty(arrivals)) {
        struct ivc_arrival *arrival = IVC_MEMBER_OF(struct ivc_arrival, link, arrivals->next);

        ivc_list_remove(&arrival->link);
        if (arrival->state == ARRIVAL_PULLING)
            arrival->mailbox = NULL;
        else
            free(arrival);
    }
}
