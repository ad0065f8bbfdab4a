/*
 * The short way: a packet of few bytes straight into the slot, or out of it, inline.
 *
 * A message of a stream costs the more the more is stored beside it: stores wait in line behind those to the ring, each
 * of which waits until the receiver's processor has given its cache line away, and a processor keeps some fifty of them
 * waiting. And the more instructions a message takes the fewer of the lines that come are waited for at once. So what
 * is here calls nothing and has no handlers; what is seldom needed stands elsewhere. Whoever does this first, and
 * all else by calls in last place, saves no registers either.
 *
 * Threads: an endpoint of several takes the other way.
 */
#ifndef IVC_ENDPOINT_SHORT_H
#define IVC_ENDPOINT_SHORT_H

#include "endpoint/internal.h"

enum ivc_short {
    IVC_SHORT_NO,           /* nothing was sent: ivc_endpoint_send() does it, or says why it cannot be */
    IVC_SHORT_SENT,
    IVC_SHORT_OPEN,         /* sent, and ivc_endpoint_end_short() is to be called at once */
};

/* Sends a packet of two pieces, neither with more than IVC_SHORT_MAX bytes. */
static inline __attribute__((always_inline))
enum ivc_short ivc_endpoint_store_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                                        const void *head, size_t head_len, const void *bytes, size_t len)
{
    bool watched;

    if (__builtin_expect(endpoint->threads || !ivc_gate_try(&endpoint->gate), 0))
        return IVC_SHORT_NO;
    if (__builtin_expect(ivc_peer_state(peer) != IVC_PEER_ACTIVE
                         || !ivc_tx_has_room(&peer->tx, head_len + len), 0)) {
        ivc_gate_leave(&endpoint->gate);
        return IVC_SHORT_NO;
    }
    watched = ivc_tx_send_short(&peer->tx, tag, head, head_len, bytes, len);
    ivc_peer_has_sent(peer, head_len + len);
    ivc_endpoint_has_sent(endpoint);
    atomic_signal_fence(memory_order_seq_cst);      /* as in send.c, send_through_memory() */
    if (__builtin_expect(!watched || !ivc_region_is_intact(endpoint->home.region), 0))
        return IVC_SHORT_OPEN;
    ivc_gate_leave(&endpoint->gate);
    return IVC_SHORT_SENT;
}

/* The receiver's bell is to be rung, or the region may be gone. */
void ivc_endpoint_end_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, const void *head,
                            size_t head_len, const void *bytes, size_t len);

/* Both, where neither piece has more than IVC_SHORT_MAX bytes; false: nothing was sent. */
static inline __attribute__((always_inline))
bool ivc_endpoint_try_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, const void *head,
                            size_t head_len, const void *bytes, size_t len)
{
    enum ivc_short sent = IVC_SHORT_NO;

    if (head_len <= IVC_SHORT_HEAD_MAX && len <= IVC_SHORT_MAX)
        sent = ivc_endpoint_store_short(endpoint, peer, tag, head, head_len, bytes, len);
    if (__builtin_expect(sent == IVC_SHORT_OPEN, 0))
        ivc_endpoint_end_short(endpoint, peer, tag, head, head_len, bytes, len);
    return sent != IVC_SHORT_NO;
}

/* Slots, of which so many are left to progress: as many as a short packet takes at most, so that none passes them. */
enum { IVC_SHORT_TURN = 64, IVC_SHORT_LEFT = 2 };

/* Whether packets may be taken beside progress; then ivc_gate_leave(). */
static inline __attribute__((always_inline)) bool ivc_endpoint_may_take(struct ivc_endpoint *endpoint)
{
    /* Inside of a turn a packet may be about to be delivered. */
    return __builtin_expect(!endpoint->threads && !endpoint->in_turn && ivc_gate_try(&endpoint->gate), 1);
}

/* ... of that peer. Relaxed: as in poll_turn(). What was left over from before comes first. */
static inline __attribute__((always_inline))
bool ivc_peer_may_be_taken_from(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer)
{
    return peer->hot && ivc_load_relaxed(&endpoint->news) == 0 && peer->rx.head % IVC_SHORT_TURN >= IVC_SHORT_LEFT;
}

static inline __attribute__((always_inline))
void ivc_endpoint_has_taken(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t len)
{
    ivc_peer_has_received(peer, len);
    ivc_endpoint_is_busy(endpoint);
    ivc_tx_was_answered(&peer->tx);
}

/*
 * Beside progress, for one who knows what comes next: if that is a short packet of this tag that begins with this word
 * and has at most `room` bytes behind it, and it is there, it is copied to `to` and no handler hears of it. Answers how
 * many bytes that were; -1: call progress. (Also now and then when it is there, so that all else gets its turn.)
 */
static inline __attribute__((always_inline))
ptrdiff_t ivc_endpoint_take_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, uint32_t word,
                                  void *to, size_t room)
{
    ptrdiff_t n = -1;
    uint32_t slots = 0;

    if (!ivc_endpoint_may_take(endpoint))
        return -1;
    if (ivc_peer_may_be_taken_from(endpoint, peer))
        n = ivc_rx_peek_short(&peer->rx, tag, word, to, room, &slots);
    /* Else those were zeroes of a window that was taken away. */
    if (n >= 0 && ivc_region_is_intact(endpoint->home.region)) {
        ivc_rx_advance_by(&peer->rx, slots);
        ivc_endpoint_has_taken(endpoint, peer, sizeof word + (size_t)n);
    } else {
        n = -1;
    }
    ivc_gate_leave(&endpoint->gate);
    return n;
}

/* The same for a packet whose bytes behind the word lie in a chunk. (A handler copies them straight to where they
 * belong, too; but a turn for each packet takes some 10 ns more.) */
ptrdiff_t ivc_endpoint_take_long(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, uint32_t word,
                                 void *to, size_t room);

#endif
