/*
 * Layout of a ring: the memory that one member shares with one other to send to it.
 *
 *   0         +------------------------------------------------------------+
 *             | header (one line): slot size, number of slots               |
 *   64        +------------------------------------------------------------+
 *             | slots: n x slot size                                        |
 *             +------------------------------------------------------------+
 *
 * A packet lies in one slot or in several neighbouring ones, the last of which is followed by the first
 * of the next packet; what does not fit before the ring's end begins at its beginning.  Its first word
 * carries stamp, length, tag and kind; it is written last and read first, so a small packet costs one
 * cache line from core to core, and one that fills two lines little more, since both sides ask for the
 * second in advance:
 *
 *   bits   63..56   55..48   47..32     31..0
 *         +--------+--------+----------+---------------+
 *         | kind   | tag    | length   | stamp of lap  |
 *         +--------+--------+----------+---------------+
 *   INLINE  8: the bytes, `length` of them, in as many slots as that takes
 *           scattered: 56 in the first line of each slot, of which but the packet's first begin with a word of 0
 *   REF     8: share (u32) | body length (u32) | 16: offset in the share (u64) | 24: `length` bytes
 *   SHARE   8: share (u32) | 0 (u32) | 16: handle (u64) | 24: size (u64)
 *   SKIP    nothing: the `length` slots to the ring's end; its tag is the order of the lap that begins then
 *
 * Order: each slot behind the one before it, or scattered: ivc_slot_place().  The first lap is in line, and each that
 * no SKIP began is as the one before it.  A SKIP that changes the order is stored when all in front of it was read; it
 * may stand at a lap's beginning.
 *
 * Invariant: the first word behind the last packet is valid in no lap to come.  In a slot where a packet
 * of several had bytes of its user, the sender clears it before it publishes the packet in front of it.
 *
 * All of it is written by the sender only.  The receiver tells how far it has read in its link line
 * (region/layout.h), which it alone writes.
 */
#ifndef IVC_CHANNEL_LAYOUT_H
#define IVC_CHANNEL_LAYOUT_H

#include "base/atomics.h"
#include "base/util.h"

#include <stddef.h>
#include <stdint.h>

#define IVC_RING_MAGIC 0x33525649u      /* "IVR3" */

struct ivc_ring_header {
    uint32_t magic;
    uint32_t slot_size;     /* a power of two, 64 .. 4096 */
    uint32_t n_slots;       /* 4 .. 65535 */
    uint32_t generation;    /* of the receiver that the ring was made for */
    uint32_t after;         /* packets by network, from the first, that come before this ring's */
    uint8_t pad[44];
};
_Static_assert(sizeof(struct ivc_ring_header) == 64, "one cache line");

enum ivc_slot_kind {
    IVC_SLOT_INLINE = 1,
    IVC_SLOT_REF,
    IVC_SLOT_SHARE,         /* no packet: a share that later packets refer to */
    IVC_SLOT_SKIP,          /* no packet: goes on at the beginning */
};

enum ivc_ring_order {
    IVC_RING_IN_LINE,
    IVC_RING_SCATTERED,
};

enum {
    IVC_SLOT_SIZE_MIN = 64,
    IVC_SLOT_SIZE_DEFAULT = 128,    /* 64 bytes of a user and what an MPI puts before them */
    IVC_SLOT_SIZE_MAX = 4096,
    IVC_SLOT_INLINE_AT = 8,
    IVC_SLOT_REF_AT = 8,
    IVC_SLOT_HEAD_AT = 24,
    /* Bytes of an INLINE packet, and all bytes of a REF packet, in a slot's first line: 56, 40. */
    IVC_SLOT_FIRST_LINE = IVC_SLOT_SIZE_MIN - IVC_SLOT_INLINE_AT,
    IVC_SLOT_HEAD_MAX = IVC_SLOT_SIZE_MIN - IVC_SLOT_HEAD_AT,
    IVC_INLINE_MAX = 65528, /* a length has 16 bits */
    IVC_SCATTERED_SLOTS = 36,                   /* most that an INLINE packet takes in a scattered lap */
    IVC_SCATTERED_MAX = IVC_SCATTERED_SLOTS * IVC_SLOT_FIRST_LINE,
    IVC_SLOTS_MIN = 4,
    IVC_SLOTS_MAX = 65535,  /* of a ring: a gap is told as a length */
    IVC_SHARES_MAX = 32,    /* from 1 on */
};

/* What lies behind a slot's first word when its kind is not INLINE. */
struct ivc_slot_ref {
    uint32_t share;
    uint32_t len;
    uint64_t offset;        /* SHARE: the handle */
};
_Static_assert(sizeof(struct ivc_slot_ref) == IVC_SLOT_HEAD_AT - IVC_SLOT_REF_AT, "as drawn");

/* Where a slot's second line begins; 0: it has none. */
static inline uint32_t ivc_slot_second_line(uint32_t slot_size)
{
    return slot_size > IVC_SLOT_SIZE_MIN ? IVC_SLOT_SIZE_MIN : 0;
}

/* The stamp of a lap, from 0 on; never 0, so that a word of 0 is valid in none. */
static inline uint32_t ivc_stamp_of(uint64_t lap)
{
    return (uint32_t)(lap % UINT32_MAX) + 1;
}

static inline uint32_t ivc_stamp_after(uint32_t stamp)
{
    return stamp == UINT32_MAX ? 1 : stamp + 1;
}

/* The slots that an INLINE packet of `len` bytes takes; `shift`: log2(slot size). */
static inline uint32_t ivc_slots_for(uint32_t len, uint32_t shift, enum ivc_ring_order order)
{
    if (order == IVC_RING_SCATTERED)
        return len <= IVC_SLOT_FIRST_LINE ? 1 : (len + IVC_SLOT_FIRST_LINE - 1) / IVC_SLOT_FIRST_LINE;
    return (len + IVC_SLOT_INLINE_AT + (1u << shift) - 1) >> shift;
}

/* Whether a ring of so many slots can be scattered: see ivc_slot_place(), and some packets are to have room in it. */
static inline bool ivc_ring_scatters(uint32_t n_slots)
{
    return n_slots > 3 * IVC_SCATTERED_SLOTS && ivc_is_power_of_two((uint64_t)n_slots + 1);
}

/*
 * Where slot `i` of a lap lies, counted in slots.  Scattered: at the triangular number of i + 1, modulo n_slots + 1,
 * less 1: as that is a power of two, this is each place once (Knuth, TAOCP 3, 6.4, exercise 20).  No two distances in a
 * row are alike then, so that no processor can tell what comes next.  Lines that the receiver's fetches in advance,
 * before they are filled, the sender has to fetch back (docs/performance.md).
 */
static inline uint32_t ivc_slot_place(uint32_t i, uint32_t n_slots, enum ivc_ring_order order)
{
    return order == IVC_RING_SCATTERED ? ((i + 1) * (i + 2) / 2 & n_slots) - 1 : i;
}

static inline uint64_t ivc_slot_word(uint32_t stamp, uint32_t len, uint8_t tag,
                                     enum ivc_slot_kind kind)
{
    return (uint64_t)kind << 56 | (uint64_t)tag << 48 | (uint64_t)len << 32 | stamp;
}

#endif
