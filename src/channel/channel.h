/*
 * Channel: packets from one process to one other through memory.
 *
 * A sender (ivc_tx) owns a ring in memory that it shares with the receiver; a receiver (ivc_rx)
 * maps it.  Each side writes only memory of its own: the sender its ring, the receiver its link
 * line.  So neither can hurt the other by dying, and what a peer wrote is checked when it is read.
 *
 * Positions count slots from the ring's first packet on, laps included.  Invariants.  Sender: head <=
 * tail <= head + n_slots; and where the order of slots has changed behind head, besides what the SKIP there passes
 * over: less than 2 x n_slots.  A slot, and the chunk that it refers to, are written again only after the
 * receiver's head has passed it.
 *
 * Threads: the calls on one ivc_tx (and on the pool behind it) are made under one lock, the calls
 * on one ivc_rx under another; the two never need each other.
 */
#ifndef IVC_CHANNEL_CHANNEL_H
#define IVC_CHANNEL_CHANNEL_H

#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"
#include "channel/far.h"
#include "channel/fill.h"
#include "channel/layout.h"
#include "channel/packet.h"
#include "channel/pool.h"
#include "region/region.h"

#include <string.h>
#include <sys/uio.h>

struct ivc_tx_chunk {
    uint64_t at;                /* of the slot that refers to it */
    uint32_t chunk;
};

/* Which packets that can be scattered are. */
enum ivc_scatters {
    IVC_SCATTERS_NONE,
    IVC_SCATTERS_FAR,           /* those of several lines, to a receiver far away */
    IVC_SCATTERS_ALL,
};

struct ivc_tx {
    /* What every send touches. */
    char *slots;
    uint64_t tail;              /* slots written */
    uint64_t head;              /* slots known to be read */
    uint64_t limit;             /* slots that may be written, as far as we know; 0: look, and see whether to scatter */
    uint32_t at;                /* tail % n_slots */
    uint32_t stamp;             /* of the lap tail / n_slots */
    uint32_t n_slots;
    uint32_t shift;             /* log2(slot size) */
    enum ivc_ring_order order, order_before;    /* of this lap and of the one before */
    uint64_t order_since;       /* slots before the lap in which it began */
    uint32_t order_room;        /* of that lap, that may be written before the SKIP in front of it was read */
    uint32_t run;               /* packets in a row that can be scattered, up to when something has come */
    uint32_t burst;             /* ... since something has come from the receiver */
    bool streams;               /* there were some more than one before that */
    enum ivc_scatters scatters; /* as in ivc_tx_options */
    bool is_tight;
    uint32_t second_line;       /* ivc_slot_second_line() */
    uint32_t ahead;             /* slots from the one to be filled next to the one that is fetched from the
                                   receiver's cache, who had read it a lap ago */
    uint32_t inline_max;        /* most bytes that one slot holds, in this order */
    uint32_t eager_max;         /* ... and that are sent at once */
    uint64_t look_at;           /* where to look next how far the receiver has read, and how far away it is */
    bool keeps_pace;            /* everything was read then */
    bool is_awaited;            /* in the middle of a stream nearly all chunks were read: the receiver waits for us */
    bool untimed;               /* the clock is not to be read */
    bool is_crowded;            /* others want our processor: the receiver may be one of them, and read what we fill
                                   out of our cache */
    uint32_t far;               /* how far away the receiver is: ivc_far_is() */
    struct ivc_doorbell bell;
    bool *is_inner;             /* by place: it is not a packet's first, and its first word may look like anything */

    struct ivc_region *region;
    struct ivc_pool *pool;
    uint32_t slot;              /* the receiver's */
    uint32_t generation;        /* the receiver's */
    /* Chunks that the receiver has not read yet, as far as we know: so many, from the first on, in a circle of
     * n_slots places. */
    struct ivc_tx_chunk *chunks;
    uint32_t first_out, chunks_out;
    uint32_t announced;         /* bit per share of the pool: the receiver knows it */
    struct ivc_fill fill, fill_short;       /* of long packets, of shorter ones */
    struct ivc_share share;     /* the ring's memory */
};

struct ivc_rx_share {
    const char *memory;
    uint64_t size;
};

struct ivc_rx {
    const char *slots;
    uint64_t head;              /* slots read */
    uint64_t published;         /* what the sender knows of that */
    uint32_t at, stamp, n_slots, shift;     /* as in ivc_tx */
    enum ivc_ring_order order;
    uint32_t second_line;
    uint32_t ahead;             /* slots from a short packet to the one that is fetched, so that it is here when its
                                   turn comes: where they are scattered no processor does that by itself. 0: none */
    uint32_t step;              /* slots of the packet that was peeked at */
    uint32_t short_max;         /* most bytes in a slot's first two lines; scattered: in the first one */
    uint32_t packet_max;        /* most bytes of any packet */
    uint32_t publish_every;
    uint32_t far;               /* how far away the sender is: ivc_far_is() */
    ivc_atomic_u64 *own_head;   /* in our link line */
    struct ivc_timed reading;

    struct ivc_region *region;
    uint32_t slot;              /* the sender's */
    uint32_t after;             /* packets by network that come before those of this ring */
    const void *memory;
    uint64_t size;
    struct ivc_rx_share shares[IVC_SHARES_MAX];
    uint64_t shares_size, body_bytes;       /* of all; read since some were given back */
    uint64_t give_back_max;     /* bytes: that many at a time at most, to a sender nearby, whose pool is a stack; 0: no
                                   limit, it is not */
};

/* Whole lines are copied. */
enum { IVC_RX_HEAD_MAX = IVC_SCATTERED_MAX };

/* Whether a ring of that size can be made of slots of that size: -EINVAL with a text, or the most
 * bytes that ivc_tx_send() would take. */
int ivc_tx_shape_check(uint32_t ring_size, uint32_t slot_size, uint32_t *ret_eager_max);

/* Whom a ring is for, and what it looks like. */
struct ivc_tx_options {
    uint32_t slot, generation;  /* the receiver's */
    uint32_t ring_size, slot_size;
    uint32_t after;             /* packets that the receiver gets by network before the ring's first */
    enum ivc_scatters scatters;
    bool is_tight;              /* who sends does little else between two packets of a stream */
    bool untimed;               /* the clock is not to be read: ivc_cycles_are_dear() */
};

/* Makes a ring towards the member and tells it.  IVC_E_NOSPACE as ivc_region_share(). */
int ivc_tx_open(struct ivc_region *region, struct ivc_pool *pool,
                const struct ivc_tx_options *options, struct ivc_tx *ret_tx);
/* The same in memory that is shared already, of at least `ring_size` bytes, zeroed; taken over
 * unless the answer is negative. */
int ivc_tx_open_in(struct ivc_region *region, struct ivc_pool *pool,
                   const struct ivc_tx_options *options, const struct ivc_share *share,
                   struct ivc_tx *ret_tx);
void ivc_tx_close(struct ivc_tx *tx);
/* Only what is private: the region takes its memory back by itself. */
void ivc_tx_forget(struct ivc_tx *tx);

/*
 * The packets of which the receiver has not said that it has read them.  Calls `fn` for each, in order, with
 * its place in the ring.  Its answer, when not 0, ends the round and is the answer; -EBADMSG when the
 * receiver tells something that cannot be, or the ring was scribbled over.
 */
typedef int ivc_tx_unread_fn(void *arg, uint64_t at, uint8_t tag, const struct iovec *iov,
                             unsigned n_iov);
int ivc_tx_unread(struct ivc_tx *tx, ivc_tx_unread_fn *fn, void *arg);

/* Sends `len` bytes gathered from `iov`, at most `eager_max`.  IVC_E_FULL when there is no room. */
static inline int ivc_tx_send(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov,
                              size_t len);

/* Sends `len` bytes of a chunk of the pool, which is given back when they have been read. */
int ivc_tx_send_chunk(struct ivc_tx *tx, uint8_t tag, uint32_t chunk, size_t len);

/*
 * The same for `len` bytes gathered from `iov`, which are copied into a chunk that was got, and is given back when they
 * have been read; it stays the caller's unless the answer is 0. A first piece of several, of IVC_SLOT_HEAD_MAX bytes
 * at most, lies in the slot, and what follows begins where the chunk does.
 */
int ivc_tx_send_copy(struct ivc_tx *tx, uint8_t tag, uint32_t chunk, const struct iovec *iov, unsigned n_iov,
                     size_t len);

/* The receiver's processor is far away, as far as we have seen. */
static inline bool ivc_tx_is_far(const struct ivc_tx *tx)
{
    return ivc_far_is(tx->far);
}

/* Whether, of packets of so many bytes, lines of the chunks to come are fetched while we wait: where they come from far
 * away, or from a third-level cache, or the packets would else go through the ring. */
static inline bool ivc_tx_fetches_ahead(const struct ivc_tx *tx, size_t len)
{
    if (ivc_tx_is_far(tx))
        return len >= IVC_AHEAD_LEAST;
    return tx->pool->is_wide && len >= IVC_AHEAD_LEAST_NEAR
           && (len < IVC_BY_CHUNK_LEAST || tx->pool->round >= tx->pool->chunks_max);
}

/* How chunks for so many bytes are filled; NULL: into the cache, always. */
static inline struct ivc_fill *ivc_tx_fill(struct ivc_tx *tx, size_t len)
{
    return len >= IVC_FILL_LEAST ? &tx->fill : len >= IVC_FILL_LEAST_SHORT ? &tx->fill_short : NULL;
}

/* What to copy with, ivc_copy(), into a chunk that is to have `len` bytes. */
static inline enum ivc_copy_side ivc_tx_copy_side(struct ivc_tx *tx, size_t len)
{
    const struct ivc_fill *fill = ivc_tx_fill(tx, len);

    if (!fill || tx->is_crowded)
        return IVC_COPY_IN;
    return fill->past ? IVC_COPY_PAST : tx->is_awaited && !fill->is_short ? IVC_COPY_IN_PLAIN : IVC_COPY_IN;
}

/* Whether the clock is to be read for that. */
static inline bool ivc_tx_times_filling(struct ivc_tx *tx, size_t len)
{
    const struct ivc_fill *fill = ivc_tx_fill(tx, len);

    return fill && !fill->is_short && !tx->untimed;
}

/* Such a chunk was filled in so many cycles; 0: that was not timed. */
void ivc_tx_note_filling(struct ivc_tx *tx, uint64_t cycles, uint32_t len);

/* Looks how far the receiver has read and frees what it has passed.  -EBADMSG when it tells
 * something that cannot be. */
int ivc_tx_refresh(struct ivc_tx *tx);
/* The same because chunks are needed: sees whether the receiver waits for us. */
int ivc_tx_need_chunks(struct ivc_tx *tx);

/* Everything sent has been read (as of the last refresh). */
static inline bool ivc_tx_idle(const struct ivc_tx *tx)
{
    return tx->head == tx->tail;
}

/* A slot is free, as far as we know, and holds so many bytes; or two that are scattered do. */
static inline bool ivc_tx_has_room(const struct ivc_tx *tx, size_t len)
{
    if (len <= tx->inline_max)
        return tx->tail < tx->limit;
    return tx->order == IVC_RING_SCATTERED && len <= 2 * IVC_SLOT_FIRST_LINE && tx->tail + 1 < tx->limit
           && tx->at + 1 < tx->n_slots;
}

/* The slot `i` of a lap of that order. */
static inline char *ivc_tx_slot_in(const struct ivc_tx *tx, uint32_t i, enum ivc_ring_order order)
{
    return tx->slots + ((size_t)ivc_slot_place(i, tx->n_slots, order) << tx->shift);
}

static inline char *ivc_tx_slot(const struct ivc_tx *tx, uint32_t i)
{
    return ivc_tx_slot_in(tx, i, tx->order);
}

static inline char *ivc_tx_tail_slot(const struct ivc_tx *tx)
{
    return ivc_tx_slot(tx, tx->at);
}

/* The bytes of the slot `i` behind the tail, in the middle of a packet. */
static inline char *ivc_tx_inner(const struct ivc_tx *tx, uint32_t i)
{
    char *slot = ivc_tx_slot(tx, tx->at + i);

    /* Relaxed: published with the packet. */
    ivc_store_relaxed((ivc_atomic_u64 *)slot, 0);
    return slot + IVC_SLOT_INLINE_AT;
}

/* Most bytes of slots whose lines are left with the receiver: few enough to be waited for one after the other. */
enum { IVC_TX_LEFT_MAX = 1280 };

/* Whether the lines of an INLINE packet of `n` slots are left with the receiver until they are stored into.  In line,
 * only where all are scattered: of several slots, while it keeps pace, so that it is always the same few lines.  Else
 * unless it is of a stream, and of several slots or much else is stored beside it.  There a line that was asked for
 * takes longer than one that is just stored into (docs/performance.md). */
static inline bool ivc_tx_leaves_lines(const struct ivc_tx *tx, uint32_t n)
{
    if (tx->order == IVC_RING_IN_LINE && tx->scatters != IVC_SCATTERS_ALL)
        return false;
    if (n > 1 && tx->order == IVC_RING_IN_LINE)
        return n << tx->shift <= IVC_TX_LEFT_MAX && tx->keeps_pace;
    return tx->burst == 0 || (n == 1 && tx->is_tight);
}

/* Something has come from the receiver: it may have waited for it, as we may have. */
static inline void ivc_tx_was_answered(struct ivc_tx *tx)
{
    enum {
        RUN = 16,           /* packets in a row: more like them are to be expected */
        BURST = 4,
    };

    if (tx->burst == 0)
        return;
    tx->streams = tx->burst >= BURST;
    tx->run += tx->burst;
    tx->burst = 0;
    if (__builtin_expect(tx->run >= RUN && tx->scatters && tx->order == IVC_RING_IN_LINE, 0))
        tx->limit = 0;
}

/* Most bytes of a packet that is scattered.  One of more lines that is answered before the next is sent takes longer
 * than in line, where it is always the same few. */
static inline uint32_t ivc_tx_scattered_max(const struct ivc_tx *tx)
{
    enum { ANSWERED_SLOTS = 6 };

    return tx->streams && tx->scatters == IVC_SCATTERS_ALL ? IVC_SCATTERED_MAX : ANSWERED_SLOTS * IVC_SLOT_FIRST_LINE;
}

/* Whether a packet of so many bytes, eager_max at most, can go through the ring: one of more than can be scattered only
 * when slots are in line, or nothing is unread, so that they can be.  Else it may go by a chunk. */
bool ivc_tx_lines_up(struct ivc_tx *tx);
static inline bool ivc_tx_takes(struct ivc_tx *tx, size_t len)
{
    return tx->order == IVC_RING_IN_LINE || len <= ivc_tx_scattered_max(tx) || ivc_tx_lines_up(tx);
}

/* Asks for the lines of packets to come, which may be like this one, of `n` slots: of one the slot `ahead`, as the
 * nearest are here by then; of several as many slots again. */
static inline void ivc_tx_fetch_next(const struct ivc_tx *tx, uint32_t len, uint32_t n)
{
    char *slot;

    if (n > 1 && tx->order == IVC_RING_SCATTERED) {
        for (uint32_t i = 0; i < n; i++)
            ivc_fetch_to_write(ivc_tx_slot(tx, ivc_wrap(tx->at + i, tx->n_slots)));
        return;
    }
    slot = ivc_tx_slot(tx, ivc_wrap(tx->at + tx->ahead, tx->n_slots));
    ivc_fetch_to_write(slot);
    if (len > IVC_SLOT_FIRST_LINE)
        ivc_fetch_to_write(slot + tx->second_line);
}

/* Makes the packet at tail, of `n` slots before the ring's end, valid.  False: the receiver is to be told by its
 * bell. */
static inline bool ivc_tx_commit(struct ivc_tx *tx, char *slot, uint32_t len, uint8_t tag,
                                 enum ivc_slot_kind kind, uint32_t n)
{
    uint32_t next = tx->at + n, place;
    uint64_t word = ivc_slot_word(tx->stamp, len, tag, kind);

    if (next == tx->n_slots) {
        next = 0;
        tx->stamp = ivc_stamp_after(tx->stamp);
        tx->order_before = tx->order;
    }
    place = ivc_slot_place(next, tx->n_slots, tx->order);
    if (__builtin_expect(tx->is_inner[place], 0)) {
        /* Free, too: what the receiver has not read begins with a packet.  Relaxed: published with the
         * packet in front of it. */
        ivc_store_relaxed((ivc_atomic_u64 *)(tx->slots + ((size_t)place << tx->shift)), 0);
        tx->is_inner[place] = false;
    }
    /* Release: pairs with the acquire in ivc_rx_peek(); the packet's other bytes, and the chunk's, are
     * visible before the stamp. */
    ivc_store_release((ivc_atomic_u64 *)slot, word);
    tx->at = next;
    tx->tail += n;
    if (kind != IVC_SLOT_INLINE || !ivc_tx_leaves_lines(tx, n))
        ivc_tx_fetch_next(tx, len, n);
    if (kind == IVC_SLOT_INLINE && len <= IVC_SCATTERED_MAX)
        tx->burst++;
    else if (kind != IVC_SLOT_SKIP)
        tx->burst = tx->run = 0;
    /* Relaxed: see region/inbox.c. */
    return ivc_load_relaxed(tx->bell.watched) & tx->bell.bit;
}

static inline void ivc_tx_publish(struct ivc_tx *tx, char *slot, uint32_t len, uint8_t tag,
                                  enum ivc_slot_kind kind, uint32_t n)
{
    if (!ivc_tx_commit(tx, slot, len, tag, kind, n))
        ivc_doorbell_ring(&tx->bell);
}

/* Everything but the common case: more than a slot's first line holds, or no free slot that we know of. */
int ivc_tx_send_other(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov,
                      size_t len);

static inline int ivc_tx_send(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov,
                              size_t len)
{
    char *slot = ivc_tx_tail_slot(tx), *to = slot + IVC_SLOT_INLINE_AT;

    if (__builtin_expect(len > IVC_SLOT_FIRST_LINE || !ivc_tx_has_room(tx, len), 0))
        return ivc_tx_send_other(tx, tag, iov, n_iov, len);
    for (unsigned i = 0; i < n_iov; i++) {
        ivc_copy_short(IVC_COPY_IN, to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
    ivc_tx_publish(tx, slot, (uint32_t)len, tag, IVC_SLOT_INLINE, 1);
    return 0;
}

/* The same for a packet of two pieces, for which there must be room (ivc_tx_has_room()): the first one has fewer bytes
 * than a slot's first line, the second one at most IVC_COPY_FEW_MAX.  False: as ivc_tx_commit(). */
static inline bool ivc_tx_send_short(struct ivc_tx *tx, uint8_t tag, const char *head, size_t head_len,
                                     const char *bytes, size_t len)
{
    char *slot = ivc_tx_tail_slot(tx), *to = slot + IVC_SLOT_INLINE_AT;
    size_t first = len;
    uint32_t n = 1;

    /* The second line first: see gather_split().  No move goes across its beginning. */
    if (head_len + len > IVC_SLOT_FIRST_LINE) {
        char *second = slot + IVC_LINE;

        first = IVC_SLOT_FIRST_LINE - head_len;
        if (tx->order == IVC_RING_SCATTERED) {
            n = 2;
            second = ivc_tx_inner(tx, 1);
        }
        ivc_copy_few(second, bytes + first, len - first);
    }
    ivc_copy_few(to, head, head_len);
    ivc_copy_few(to + head_len, bytes, first);
    return ivc_tx_commit(tx, slot, (uint32_t)(head_len + len), tag, IVC_SLOT_INLINE, n);
}

/* Maps the ring that the member has made for us; what comes in it has `packet_max` bytes at most.  IVC_E_GONE when it
 * has not (yet); -EBADMSG when what it says about it cannot be. */
int ivc_rx_open(struct ivc_region *region, uint32_t slot, uint32_t packet_max, struct ivc_rx *ret_rx);
void ivc_rx_close(struct ivc_rx *rx);

/* Describes the next packet and copies its head to `head`, of IVC_RX_HEAD_MAX bytes: 1, 0 when there is
 * none, -EBADMSG when the sender wrote nonsense.  After the packet was handled, ivc_rx_advance(). */
static inline int ivc_rx_peek(struct ivc_rx *rx, char *head, struct ivc_packet *ret_packet);
static inline void ivc_rx_advance(struct ivc_rx *rx);

/* For one who reads what a ring has, and then no more though its sender may live: all of it lies in front of that
 * position. */
static inline uint64_t ivc_rx_end(const struct ivc_rx *rx)
{
    return rx->head + 2 * (uint64_t)rx->n_slots;
}

/* Tells the sender how far we are; called at the end of every turn. */
static inline void ivc_rx_publish(struct ivc_rx *rx)
{
    rx->published = rx->head;
    /* Release: pairs with the acquire in ivc_tx_refresh(); our reads of the slots and
     * the chunks up to here are over before the sender writes them again. */
    ivc_store_release(rx->own_head, rx->head);
}

/* What ivc_copy() should be told of the body of a packet by a chunk, whose reading is noted below.  Before it is read:
 * now and then a line in its middle, which nothing else has asked for yet, tells whether the sender is far away. */
enum ivc_copy_side ivc_rx_copy_side(struct ivc_rx *rx, const struct ivc_packet *packet);
/* The body of a packet, of IVC_FILL_LEAST bytes at least, was read in so many cycles. */
void ivc_rx_note_reading(struct ivc_rx *rx, uint64_t cycles, uint32_t len);

static inline const char *ivc_rx_slot(const struct ivc_rx *rx, uint32_t i)
{
    return rx->slots + ((size_t)ivc_slot_place(i, rx->n_slots, rx->order) << rx->shift);
}

static inline const char *ivc_rx_head_slot(const struct ivc_rx *rx)
{
    return ivc_rx_slot(rx, rx->at);
}

/* Asks for the line of the slot so many behind it, a packet or two before it is read.  As if to be written: read only,
 * lines of a stream that are scattered are given back to the sender more slowly (docs/performance.md). */
static inline void ivc_rx_ask_for_slot(const struct ivc_rx *rx, uint32_t i)
{
    ivc_fetch_to_write(ivc_rx_slot(rx, ivc_wrap(rx->at + i, rx->n_slots)));
}

/* Whether there is a next packet. */
static inline bool ivc_rx_is_ready(const struct ivc_rx *rx)
{
    const char *slot = ivc_rx_head_slot(rx);

    /* Relaxed: whoever then takes the packet loads the word with acquire. */
    return (uint32_t)ivc_load_relaxed((const ivc_atomic_u64 *)slot) == rx->stamp;
}

/* Asks for the lines behind the next packet's first one, so that they are here when it comes: the slot's second; of
 * scattered slots as many as the last packet had. */
static inline void ivc_rx_ask_for_rest(const struct ivc_rx *rx)
{
    enum { MOST = 8 };

    if (rx->order == IVC_RING_IN_LINE)
        __builtin_prefetch(ivc_rx_head_slot(rx) + rx->second_line);
    else
        for (uint32_t i = 1; i < IVC_MIN(rx->step, (uint32_t)MOST); i++)
            __builtin_prefetch(ivc_rx_slot(rx, ivc_wrap(rx->at + i, rx->n_slots)));
}

/* The same as ivc_rx_is_ready() of who looks again and again. */
static inline bool ivc_rx_is_ready_soon(const struct ivc_rx *rx)
{
    ivc_rx_ask_for_rest(rx);
    return ivc_rx_is_ready(rx);
}

/* Everything but the common case: a packet with a body, what is no packet, nonsense. */
int ivc_rx_peek_other(struct ivc_rx *rx, uint64_t word, const char *slot, char *head,
                      struct ivc_packet *ret_packet);

static inline int ivc_rx_peek(struct ivc_rx *rx, char *head, struct ivc_packet *ret_packet)
{
    const char *slot = ivc_rx_head_slot(rx);
    /* Acquire: pairs with the release of the word in ivc_tx_publish(); the packet's bytes, and those it
     * refers to, are visible. */
    uint64_t word = ivc_load_acquire((const ivc_atomic_u64 *)slot);
    uint32_t len = word >> 32 & 0xffff;

    if ((uint32_t)word != rx->stamp) {
        ivc_rx_ask_for_rest(rx);
        return 0;
    }
    if (word >> 56 != IVC_SLOT_INLINE || len > rx->short_max)
        return ivc_rx_peek_other(rx, word, slot, head, ret_packet);
    if (rx->ahead > 0)
        ivc_rx_ask_for_slot(rx, rx->ahead);
    /* Whole lines: a fixed length is a few moves. */
    memcpy(head, slot + IVC_SLOT_INLINE_AT, IVC_SLOT_FIRST_LINE);
    if (len > IVC_SLOT_FIRST_LINE)
        memcpy(head + IVC_SLOT_FIRST_LINE, slot + IVC_LINE, IVC_LINE);
    rx->step = 1;
    *ret_packet = (struct ivc_packet){ .tag = (uint8_t)(word >> 48), .head_len = len, .head = head };
    return 1;
}

/* The next packet, if it is of that tag, and begins with that word, and then has at most `room` bytes, and at most
 * IVC_COPY_FEW_MAX: these are copied to `to`, and their number is the answer; then ivc_rx_advance_by() the slots.  -1:
 * there is no such packet. */
static inline ptrdiff_t ivc_rx_peek_short(struct ivc_rx *rx, uint8_t tag, uint32_t word, char *to, size_t room,
                                          uint32_t *ret_slots)
{
    const char *slot = ivc_rx_head_slot(rx);
    /* Acquire: as in ivc_rx_peek(). */
    uint64_t first = ivc_load_acquire((const ivc_atomic_u64 *)slot);
    uint32_t len = first >> 32 & 0xffff, is;

    if ((uint32_t)first != rx->stamp || first >> 48 != ((uint32_t)IVC_SLOT_INLINE << 8 | tag)
        || len < sizeof word || len > sizeof word + IVC_COPY_FEW_MAX || len - sizeof word > room)
        return -1;
    memcpy(&is, slot + IVC_SLOT_INLINE_AT, sizeof is);
    if (is != word)
        return -1;
    if (rx->ahead > 0)
        ivc_rx_ask_for_slot(rx, rx->ahead);
    if (__builtin_expect(len <= rx->short_max, 1)) {
        ivc_copy_few(to, slot + IVC_SLOT_INLINE_AT + sizeof word, len - sizeof word);
        *ret_slots = 1;
    } else {
        enum { REST = sizeof word + IVC_COPY_FEW_MAX - IVC_SLOT_FIRST_LINE };

        /* In line there are no others, unless the sender wrote nonsense. */
        if (rx->order == IVC_RING_IN_LINE || rx->at + 1 == rx->n_slots)
            return -1;
        ivc_rx_ask_for_slot(rx, rx->ahead + 1);
        memcpy(to, slot + IVC_SLOT_INLINE_AT + sizeof word, IVC_SLOT_FIRST_LINE - sizeof word);
        ivc_copy_few(to + IVC_SLOT_FIRST_LINE - sizeof word, ivc_rx_slot(rx, rx->at + 1) + IVC_SLOT_INLINE_AT,
                     IVC_MIN(len - IVC_SLOT_FIRST_LINE, (uint32_t)REST));   /* for the compiler */
        *ret_slots = rx->step = 2;
    }
    return (ptrdiff_t)(len - sizeof word);
}

static inline void ivc_rx_advance_by(struct ivc_rx *rx, uint32_t slots)
{
    rx->head += slots;
    rx->at += slots;
    if (rx->at == rx->n_slots) {
        rx->at = 0;
        rx->stamp = ivc_stamp_after(rx->stamp);
    }
    if (rx->head - rx->published >= rx->publish_every)
        ivc_rx_publish(rx);
}

static inline void ivc_rx_advance(struct ivc_rx *rx)
{
    ivc_rx_advance_by(rx, rx->step);
}

#endif
