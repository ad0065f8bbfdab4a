/*
 * ivc.h on the endpoint layer.
 *
 * A connection is a pair of byte streams between two members.  Its bytes travel in packets that
 * name the receiver's end; what is not read yet is kept by the receiver in memory of its own, at
 * most `window` bytes: the sender counts what it has sent and what was told to be read.
 */
#ifndef IVC_ADAPTER_C_INTERNAL_H
#define IVC_ADAPTER_C_INTERNAL_H

#include "ivc.h"

#include "endpoint/short.h"

/* Packets: the tag says what follows this header. */
enum tag {
    TAG_OPEN = 1,   /* `from` wishes to talk; `to` is 0 */
    TAG_ACCEPT,     /* `to` has been accepted as `from` */
    TAG_DATA,       /* bytes for `to` */
    TAG_READ,       /* `count` bytes more have been read: the window moves on */
    TAG_CLOSE,      /* `from` writes no more */
};

struct header {
    uint32_t to;        /* the receiver's number of the connection; 0 in TAG_OPEN */
    uint32_t from;      /* the sender's */
    uint32_t window;    /* TAG_OPEN, TAG_ACCEPT: bytes that `from` takes unread */
    uint32_t count;     /* TAG_READ */
};

/* In TAG_DATA only `to` is sent: 8 bytes of payload then share a cache line with everything else. */
enum {
    DATA_HEADER = sizeof(uint32_t),
    FAR_BY_CHUNK = 2500,    /* bytes: with shorter ones a stream is quicker through the ring */
    SHORT_MAX = 256,    /* bytes that go as one packet on every path and in every shape of a ring */
};

struct ivc_connection {
    struct ivc_context *context;
    struct ivc_connection *next;        /* in the context's list */
    struct ivc_peer *peer;
    uint32_t own_number, peer_number;   /* peer_number 0: not known yet */
    bool accepted;                      /* made by ivc_connect() or taken by ivc_accept() */
    bool closed_by_user;
    bool closed_by_peer;
    bool broken;                        /* the peer died */
    bool parted;                        /* memory leads there no more: nothing is sent or received */
    bool told;                          /* ... and on_suspend was called */
    bool close_sent;

    /* Sending: bytes that the peer may still be sent; of so many in all. */
    uint32_t credit, granted;
    bool blocked;                       /* the last write was short, when */
    uint32_t blocked_at;                /* ... so many bytes had been sent */

    /* Receiving: a ring of `window` bytes, and where ivc_read() waits for bytes to land directly. */
    char *unread;                       /* made when first needed */
    uint32_t unread_first, unread_len;
    char *landing;
    size_t landing_room;
    bool reads_short;                   /* the last packet was one: so will be the next */
    uint32_t untold;                    /* bytes read that the peer has not been told of */

    bool open_due, accept_due;          /* packets that found no room yet */
};

struct ivc_context {
    struct ivc_endpoint *endpoint;
    uint64_t magic_id;
    uint32_t window;
    uint32_t next_number;
    struct ivc_connection *connections;
    struct ivc_connection *last_used;   /* most packets are for it */
    bool control_due;                   /* some connection has something small to say, or `armed` */

    /* The descriptor (descriptor.c). */
    bool arms;                          /* calls that find nothing arm it: it was asked for, and no call waits */
    bool armed;                         /* false: it is readable, or was not asked for */

    /* Moving (move.c). */
    struct ivc_move_handlers handlers;
    void *handlers_arg;
    bool move_due;                      /* there may be something to tell */
    bool telling;                       /* a handler is being called */
    bool away;                          /* the program was last told that it has left */
    bool leave_due, arrive_due;
    struct ivc_connection *pinned;      /* whom the call is about that handlers are called from */
};

/* stream.c */
void stream_on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet);
void stream_on_gone(void *arg, struct ivc_peer *peer, const char *reason);
struct ivc_connection *stream_new(struct ivc_context *context, struct ivc_peer *peer);
void stream_free(struct ivc_connection *connection);
/* Moves everything: packets in, and the small things that connections have to say. */
void stream_progress(struct ivc_context *context);
/* Sends what is due; what finds no room stays due. */
void stream_say(struct ivc_connection *connection);
/* Bytes to the peer's end: how many went, or a negative errno. */
ptrdiff_t stream_write(struct ivc_connection *connection, const char *bytes, size_t len);
/* Reads on behind `done` bytes that stream_take_short() gave; answers how many there are then. */
ptrdiff_t stream_read(struct ivc_connection *connection, char *buffer, size_t len, size_t done);

/* The short way of the latter, which says nothing of the bytes to the peer; -1: there is none now. */
static inline __attribute__((always_inline))
ptrdiff_t stream_take_short(struct ivc_connection *connection, char *buffer, size_t len)
{
    if (!connection->reads_short || connection->unread_len > 0)
        return -1;
    return ivc_endpoint_take_short(connection->context->endpoint, connection->peer, TAG_DATA, connection->own_number,
                                   buffer, len);
}

/* All of it, at most IVC_SHORT_MAX bytes, in one packet. */
static inline __attribute__((always_inline))
enum ivc_short stream_store_short(struct ivc_connection *connection, const char *bytes, size_t len)
{
    enum ivc_short sent;

    if (len - 1 >= IVC_SHORT_MAX || len > connection->credit)
        return IVC_SHORT_NO;
    sent = ivc_endpoint_store_short(connection->context->endpoint, connection->peer, TAG_DATA,
                                    &connection->peer_number, DATA_HEADER, bytes, len);
    if (sent != IVC_SHORT_NO)
        connection->credit -= (uint32_t)len;
    return sent;
}
/* Bytes at least that stream_write() would take now. */
size_t stream_room(const struct ivc_connection *connection);
/* An answer of the endpoint layer as ivc.h gives it. */
int stream_code(int r);
/* The bytes that are kept unread, in one piece, which is the caller's to free; NULL: none. */
char *stream_take_unread(struct ivc_connection *connection, size_t *ret_len);

/* descriptor.c */
/* Some connection can be read or accepted, or has ended. */
bool descriptor_has_news(const struct ivc_context *context);
/* If `arms`, after a call that found nothing to do. */
void descriptor_arm(struct ivc_context *context);
/* If `armed`, after a turn of progress: is it still right? */
void descriptor_check(struct ivc_context *context);
/* It becomes readable, if it was armed. */
void descriptor_disarm(struct ivc_context *context);

/* move.c */
void move_on_parted(void *arg, struct ivc_peer *peer);
void move_on_moved(void *arg, bool in_region);
/* Calls the handlers that are due; true when there were any. */
bool move_tell(struct ivc_context *context);
/* The same from a call about this connection: -ESHUTDOWN when a handler has closed it. */
int move_tell_from(struct ivc_connection *connection);
/* What ivc_read() and ivc_write() answer for a connection that is parted. */
int move_is_over(const struct ivc_connection *connection, const char *call);
/* on_suspend is to be called for it, and given what is unread. */
bool move_is_due(const struct ivc_connection *connection);
/* Whether the program can still learn something of a parted connection. */
static inline bool move_is_news(const struct ivc_connection *connection)
{
    return connection->parted && !connection->told;
}

#endif
