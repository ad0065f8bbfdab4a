/*
 * Messages of any length over packets.
 *
 * A message is a header of up to IVC_MESSAGE_HEADER_MAX bytes (the adapter's) and a payload of any
 * length.  Short ones are one packet.  Long ones travel as a train of packets: the sender copies
 * into shared buffers while the receiver copies out of earlier ones, so the two copies overlap.
 * Messages to one peer arrive in the order in which they were sent; trains to one peer do not
 * interleave.  Uses the tags IVC_TAG_MESSAGE...; an adapter that uses messages keeps off those.
 */
#ifndef IVC_ENDPOINT_MESSAGE_H
#define IVC_ENDPOINT_MESSAGE_H

#include "endpoint/endpoint.h"

enum { IVC_MESSAGE_HEADER_MAX = 24 };

enum {
    IVC_TAG_MESSAGE = 250,      /* a whole message */
    IVC_TAG_MESSAGE_FIRST,      /* the first packet of a train: header, total length, bytes */
    IVC_TAG_MESSAGE_MORE,       /* the following ones: bytes */
};

struct ivc_mailbox;             /* sends and receives messages over one endpoint */

/* A message that starts to arrive.  The handler chooses where it lands. */
struct ivc_message {
    struct ivc_peer *peer;
    const void *header;         /* private copy, gone when the handler returns */
    uint32_t header_len;
    size_t len;                 /* of the payload */
    void *buffer;               /* set by on_start: where to put up to `capacity` bytes; or NULL */
    size_t capacity;
    void *arg;                  /* set by on_start: handed to on_done */
};

typedef void ivc_message_start_fn(void *arg, struct ivc_message *message);
/* All bytes (or min(len, capacity) of them) are in place; status 0, or IVC_E_GONE half way. */
typedef void ivc_message_done_fn(void *arg, struct ivc_message *message, int status);
/* The sender's buffer may be used again; status 0 or IVC_E_GONE. */
typedef void ivc_message_sent_fn(void *arg, int status);

int ivc_mailbox_new(struct ivc_endpoint *endpoint, ivc_message_start_fn *on_start,
                    ivc_message_done_fn *on_done, void *arg, struct ivc_mailbox **ret_mailbox);
void ivc_mailbox_free(struct ivc_mailbox *mailbox);

/* To be called by the endpoint's handlers for the three tags, and when a peer is gone. */
void ivc_mailbox_packet(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                        const struct ivc_packet *packet);
void ivc_mailbox_gone(struct ivc_mailbox *mailbox, struct ivc_peer *peer);

/* Starts a message.  The payload must stay as it is until `on_sent` is called (perhaps before this
 * returns).  Negative errno when it could not be queued. */
int ivc_mailbox_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                     uint32_t header_len, const void *payload, size_t len,
                     ivc_message_sent_fn *on_sent, void *sent_arg);

/* Pushes trains on and calls ivc_endpoint_progress(). */
int ivc_mailbox_progress(struct ivc_mailbox *mailbox);

#endif
