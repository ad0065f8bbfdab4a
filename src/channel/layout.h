/*
 * Layout of a ring: the memory that one member shares with one other to send to it.
 *
 *   0         +------------------------------------------------------------+
 *             | header (one line): slot size, number of slots, arena size   |
 *   64        +------------------------------------------------------------+
 *             | slots: n x slot size                                        |
 *             +------------------------------------------------------------+
 *             | arena: bytes of packets that do not fit a slot              |
 *             +------------------------------------------------------------+
 *
 * A slot is one unit of transfer.  Its first word carries stamp, length, tag and kind; it is
 * written last and read first, so a small packet costs one cache line from core to core, and one
 * that fills two lines little more, since both sides ask for the second in advance:
 *
 *   bits   63..56   55..48   47..32     31..0
 *         +--------+--------+----------+---------------+
 *         | kind   | tag    | length   | stamp (lap+1) |      length: bytes in this slot
 *         +--------+--------+----------+---------------+
 *   INLINE  8: the bytes
 *   REF     8: share (u32) | body length (u32) | 16: offset in the share (u64) | 24: the head
 *   SHARE   8: share (u32) | 0 (u32) | 16: handle (u64) | 24: size (u64)
 *
 * All of it is written by the sender only.  The receiver tells how far it has read in its link line
 * (region/layout.h), which it alone writes.
 */
#ifndef IVC_CHANNEL_LAYOUT_H
#define IVC_CHANNEL_LAYOUT_H

#include "base/atomics.h"

#include <stddef.h>
#include <stdint.h>

#define IVC_RING_MAGIC 0x52435649u      /* "IVCR" */

struct ivc_ring_header {
    uint32_t magic;
    uint32_t slot_size;     /* a power of two, 64 .. 4096 */
    uint32_t n_slots;       /* a power of two */
    uint32_t arena_size;    /* a multiple of 64 */
    uint32_t generation;    /* of the receiver that the ring was made for */
    uint32_t after;         /* packets by network, from the first, that come before this ring's */
    uint8_t pad[40];
};
_Static_assert(sizeof(struct ivc_ring_header) == 64, "one cache line");

enum ivc_slot_kind {
    IVC_SLOT_INLINE = 1,
    IVC_SLOT_REF,
    IVC_SLOT_SHARE,         /* no packet: a share that later packets refer to */
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
    IVC_SHARE_ARENA = 0,    /* share 0 is the ring's own arena */
    IVC_SHARES_MAX = 32,
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

static inline uint64_t ivc_slot_word(uint32_t stamp, uint32_t len, uint8_t tag,
                                     enum ivc_slot_kind kind)
{
    return (uint64_t)kind << 56 | (uint64_t)tag << 48 | (uint64_t)len << 32 | stamp;
}

#endif
