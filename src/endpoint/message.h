/*
 * Messages of any length over packets.
 *
 * A message is a header of up to IVC_MESSAGE_HEADER_MAX bytes (the adapter's; its first byte is its
 * length) and a payload of any length.  How it travels is nobody's business above:
 *
 *   whole      one packet: header and payload, nothing else
 *   train      packets that carry the payload in order, copied in and out at the same time
 *   offer      a packet that announces the message; the payload moves when the receiver has said
 *              where it goes: as a train, or pulled from the sender's memory where the path can
 *
 * Messages to one peer *start* at the receiver in the order in which they were sent.  They may end
 * in another order: the payload of an offer travels beside later messages.
 *
 * Uses the packet tags IVC_TAG_MESSAGE...; an adapter that uses messages keeps off those.
 * Threads: as the endpoint, but the calls here are made under one lock of the caller's.
 */
#ifndef IVC_ENDPOINT_MESSAGE_H
#define IVC_ENDPOINT_MESSAGE_H

#include "base/error.h"
#include "endpoint/endpoint.h"

enum {
    IVC_MESSAGE_HEADER_MAX = 64,
    IVC_MESSAGE_IOV_MAX = 8,
};

enum {
    IVC_TAG_MESSAGE = 240,      /* the first of the tags kept for messages, up to 249 */
};

struct ivc_mailbox;             /* sends and receives messages over one endpoint */
struct ivc_arrival;             /* a message that was offered and waits for its place */

/* A message that starts to arrive.  on_start chooses where it lands. */
struct ivc_message {
    struct ivc_peer *peer;
    const void *header;         /* private copy, gone when the handler returns */
    uint32_t header_len;
    size_t len;                 /* of the payload */
    struct ivc_arrival *offer;  /* the message is an offer: may be left for later, see below */
    /* Set by on_start; n_iov 0: the payload is dropped. */
    struct iovec iov[IVC_MESSAGE_IOV_MAX];
    unsigned n_iov;
    bool later;                 /* set by on_start, when `offer`: the place will be named later */
    void *arg;                  /* set by on_start: handed to on_done */
};

typedef void ivc_message_start_fn(void *arg, struct ivc_message *message);
/* All bytes (or as many as there was room for) are in place: status 0; or IVC_E_GONE half way.
 * Called once per message that started, as a rule right after on_start when it was one packet; for an offer that
 * was left for later and whose sender went, with message->arg as on_start set it. */
typedef void ivc_message_done_fn(void *arg, struct ivc_message *message, int status);
/* The sender's buffer may be used again; status 0 or IVC_E_GONE. */
typedef void ivc_message_sent_fn(void *arg, int status);

/* A message that is one packet: header and payload.  True: it has been taken, and neither on_start nor on_done hears of
 * it; false: it has not, and nothing has happened. */
typedef bool ivc_message_whole_fn(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet);

int ivc_mailbox_new(struct ivc_endpoint *endpoint, ivc_message_start_fn *on_start,
                    ivc_message_done_fn *on_done, void *arg, struct ivc_mailbox **ret_mailbox);
/* Messages of one packet come to this handler first. */
void ivc_mailbox_set_whole(struct ivc_mailbox *mailbox, ivc_message_whole_fn *on_whole);
/* While the endpoint is still there.  Accepts NULL. */
void ivc_mailbox_free(struct ivc_mailbox *mailbox);

/* To be called by the endpoint's handlers for packets with those tags, and when a peer is gone. */
static inline bool ivc_mailbox_is_tag(uint8_t tag)
{
    return tag >= IVC_TAG_MESSAGE && tag < IVC_TAG_MESSAGE + 10;
}
void ivc_mailbox_packet(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                        const struct ivc_packet *packet);
void ivc_mailbox_gone(struct ivc_mailbox *mailbox, struct ivc_peer *peer);

/* Payloads up to this length are trains at once, longer ones are offered, and those that lie in lent
 * memory.  IVC_OFFER_SIZE sets it; the default was measured. */
size_t ivc_mailbox_offer_size(const struct ivc_mailbox *mailbox);
/* The longest payload that, with that header, is one packet. */
size_t ivc_mailbox_whole_max(const struct ivc_mailbox *mailbox, uint32_t header_len);

/* Of what the other side waits for: whether it is to be sent later.  There may be no memory for a ring to it, since one
 * of us has moved; others end and leave theirs. */
static inline bool ivc_message_is_later(int r)
{
    return r == IVC_E_FULL || r == IVC_E_NOSPACE;
}

/*
 * Sends a message if it can go at once as one packet: no queue, no memory, no callback; the bytes
 * are copied.  IVC_E_FULL: it cannot now (no room, earlier messages to this peer wait, too long).
 * IVC_E_GONE.
 */
int ivc_mailbox_try_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                         const struct iovec *iov, unsigned n_iov);

/* Whether messages to that peer have not started yet, so that later ones wait with them. */
bool ivc_mailbox_queues(const struct ivc_peer *peer);

/*
 * Starts a message of any length.  The payload must stay as it is until `on_sent` is called: once,
 * perhaps before this returns.  Negative errno when it could not be queued.  `on_sent` of an offer
 * says that the receiver has all it wants of it.
 */
int ivc_mailbox_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                     const struct iovec *iov, unsigned n_iov, ivc_message_sent_fn *on_sent,
                     void *sent_arg);

/* The same for a message that the peer waits for: without memory for a ring to it, it waits until there is some, and
 * with it what is sent to that peer afterwards. */
int ivc_mailbox_answer(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                       const struct iovec *iov, unsigned n_iov, ivc_message_sent_fn *on_sent,
                       void *sent_arg);

/* Names the place of an offer that was left for later (n_iov 0: drop it); on_done follows, never
 * before this returns.  `arg` replaces message->arg. */
void ivc_mailbox_accept(struct ivc_mailbox *mailbox, struct ivc_arrival *offer,
                        const struct iovec *iov, unsigned n_iov, void *arg);

/* Whether messages wait to be pushed on: then progress must go on being called. */
bool ivc_mailbox_busy(const struct ivc_mailbox *mailbox);

/* Pushes trains on and calls ivc_endpoint_progress(). */
int ivc_mailbox_progress(struct ivc_mailbox *mailbox);

#endif
