/*
 * What the files of messages share: message.c (the mailbox, and the short way of whole messages),
 * message-send.c (queues, trains and offers that leave), message-receive.c (those that come),
 * message-ids.c.
 *
 * The packets, by tag:
 *
 *   MESSAGE     header, payload                         a whole message
 *   TRAIN       u64 length, header, payload             a train starts; one at a time per direction
 *   MORE        payload                                 ... and goes on
 *   OFFER       struct ivc_offer, header                the payload comes when it is asked for
 *   EXPOSED     struct ivc_offer, ivc_place, header     ... or may be pulled over the network
 *   LENT        struct ivc_offer, ivc_place, header     ... or may be read in the region
 *   ACCEPT      struct ivc_accept                       answer: send so much of it (0: forget it)
 *   DONE        u64 id of the offer                     answer: it was pulled, or read
 *   DATA        u64 id of the arrival, payload          what was asked for; one at a time
 *   DATA_MORE   payload                                 ... and goes on
 *
 * MESSAGE, TRAIN, OFFER, EXPOSED and LENT start messages and are sent in the order of the calls.  A MORE
 * belongs to the last TRAIN, a DATA_MORE to the last DATA, whatever lies between.
 *
 * Invariants.  A message under way is in exactly one list of its box, and is reported once, when
 * it leaves the last one.  A box, which is what we have with one peer, exists while something is
 * under way or a function of ours is at work on it (`holds`): callbacks may start and end whatever
 * they like, so after one nothing but a held box is still known to be there.
 */
#ifndef IVC_ENDPOINT_MESSAGE_INTERNAL_H
#define IVC_ENDPOINT_MESSAGE_INTERNAL_H

#include "base/error.h"
#include "endpoint/list.h"
#include "endpoint/message.h"

enum {
    TAG_MESSAGE = IVC_TAG_MESSAGE,
    TAG_TRAIN, TAG_MORE, TAG_OFFER, TAG_EXPOSED, TAG_ACCEPT, TAG_DONE, TAG_DATA, TAG_DATA_MORE,
    TAG_LENT,
};

enum { IVC_TRAIN_MAX = 16 << 20 };      /* what is longer is offered; a longer train is nonsense */

struct ivc_offer {
    uint64_t id;                /* the sender's */
    uint64_t len;
};
struct ivc_place {
    uint64_t where, key;
};
struct ivc_accept {
    uint64_t id;                /* of the offer */
    uint64_t wanted;            /* bytes to send */
    uint64_t arrival;           /* the receiver's id, told again in DATA */
};

/* Names that are told to peers: the place in a table and how often it was used, so that an old
 * name, or one that a peer made up, is nobody's. */
struct ivc_ids {
    struct ivc_id_place {
        void *object;           /* NULL: free */
        uint32_t use;
        uint32_t next_free;
    } *places;
    uint32_t n_places, first_free;
};

int ivc_ids_take(struct ivc_ids *ids, void *object, uint64_t *ret_id);
void *ivc_ids_find(const struct ivc_ids *ids, uint64_t id);     /* NULL: nobody's */
void ivc_ids_drop(struct ivc_ids *ids, uint64_t id);

/* How far a payload has come into, or out of, its pieces of memory. */
struct ivc_cursor {
    unsigned i;
    size_t at;
};

/* How far a message has come: `room` bytes may still be written, `left` have still to arrive. */
struct ivc_landing {
    struct ivc_cursor cursor;
    size_t room, left;
};

struct ivc_box {
    struct ivc_mailbox *mailbox;
    struct ivc_peer *peer;
    struct ivc_link link;           /* in mailbox->boxes */
    struct ivc_link busy;           /* in mailbox->busy: something waits to be pushed */
    uint32_t turn;                  /* of ivc_mailbox_push() that came by last */
    uint32_t holds;
    struct ivc_link starts;         /* outgoing, not wholly started; in order */
    struct ivc_link offered;        /* outgoing, the peer has to answer */
    struct ivc_link data;           /* outgoing, the peer has asked for it; in order */
    struct ivc_link controls;       /* arrivals that owe a step of ours */
    struct ivc_link arrivals;       /* arrivals that wait: for their place, their bytes */
    struct ivc_arrival *incoming;   /* one of these: DATA_MORE belongs to it */
    bool in_train;                  /* MORE belongs to it: */
    struct ivc_message train;
    struct ivc_landing train_landing;
    bool torn;                      /* its first packet (or a MESSAGE) was torn, and comes again */
};

/* The first packet of a payload that is offered, filled while the receiver looks for its place. */
struct ivc_ahead {
    const struct ivc_outgoing *of;  /* NULL: nobody's, and there is no buffer */
    unsigned passed;            /* offers since, which had none */
    size_t len;
    struct ivc_buffer buffer;
};

struct ivc_mailbox {
    struct ivc_endpoint *endpoint;
    size_t packet_max, offer_size;
    ivc_message_start_fn *on_start;
    ivc_message_done_fn *on_done;
    ivc_message_whole_fn *on_whole; /* NULL: none */
    void *arg;
    struct ivc_link busy, boxes;
    struct ivc_link orphans;        /* arrivals whose peer went in the middle of a pull */
    struct ivc_ids outgoing_ids, arrival_ids;
    struct ivc_ahead ahead;         /* one at a time */
    uint32_t turn;
    uint32_t n_torn;                /* boxes that are */
    bool pushing;   /* somebody is, or is in on_sent: sends only queue, so that they do not nest */
};

/* message.c */
/* The box of a peer, made when there is none, and held; NULL: out of memory. */
struct ivc_box *ivc_box_hold(struct ivc_mailbox *mailbox, struct ivc_peer *peer);
void ivc_box_release(struct ivc_box *box);
void ivc_box_set_busy(struct ivc_box *box);
void ivc_mailbox_tell_sent(struct ivc_mailbox *mailbox, ivc_message_sent_fn *on_sent, void *arg,
                           int status);
/* Pushes what waits, peer after peer. */
void ivc_mailbox_push(struct ivc_mailbox *mailbox);

/* message-send.c */
void ivc_outgoing_push(struct ivc_box *box);
void ivc_outgoing_accepted(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                           const struct ivc_packet *packet);
void ivc_outgoing_pulled(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                         const struct ivc_packet *packet);
void ivc_outgoing_gone(struct ivc_box *box);
void ivc_outgoing_free(struct ivc_box *box);

/* message-receive.c */
void ivc_train_start(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                     const struct ivc_packet *packet);
/* A MESSAGE whose packet was torn after on_start: it waits for that to come again. */
void ivc_train_keep_torn(struct ivc_mailbox *mailbox, const struct ivc_message *message);
/* The packet is one that was torn; it has landed now. */
bool ivc_train_again(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                     const struct ivc_packet *packet);
void ivc_train_more(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                    const struct ivc_packet *packet);
void ivc_arrival_start(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                       const struct ivc_packet *packet);
void ivc_arrival_data(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                      const struct ivc_packet *packet);
void ivc_arrival_more(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                      const struct ivc_packet *packet);
void ivc_arrivals_push(struct ivc_box *box);
void ivc_arrivals_gone(struct ivc_box *box);
void ivc_arrivals_free(struct ivc_link *arrivals);

static inline size_t ivc_packet_len(const struct ivc_packet *packet)
{
    return (size_t)packet->head_len + packet->body_len;
}

/* Copies what lies at [at, at + n) of a packet: false when it is not that long. */
bool ivc_packet_read(const struct ivc_packet *packet, size_t at, void *to, size_t n);
/* The adapter's header that starts at `at`: where it lies in private memory (`own`, when not in the
 * packet's head already); NULL when there is none, or it was torn. */
const uint8_t *ivc_packet_header(struct ivc_mailbox *mailbox, const struct ivc_packet *packet,
                                 size_t at, uint8_t own[IVC_MESSAGE_HEADER_MAX]);
/* Shortens on_start's memory to the payload: returns how many bytes may be written. */
size_t ivc_message_trim(struct ivc_message *message);
/* Puts the packet's bytes from `skip` on where the message goes.  False: they were torn, and nothing has
 * landed. */
bool ivc_message_land(struct ivc_mailbox *mailbox, const struct ivc_message *message,
                      struct ivc_landing *landing, const struct ivc_packet *packet, size_t skip);

#endif
