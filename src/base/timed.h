/*
 * Timing ways of doing the same now and then, to go the fastest one in between.
 *
 * A few times are taken of each; the slowest of them was held up by something else and is not counted.  As
 * long as the answer stays the same, the next comparison is put off for twice as long.
 *
 * Threads: one at a time.
 */
#ifndef IVC_BASE_TIMED_H
#define IVC_BASE_TIMED_H

#include "base/util.h"

#include <stdbool.h>
#include <stdint.h>

/* All zero: nothing yet. */
struct ivc_timed {
    uint32_t n;
    uint64_t cycles, slowest;   /* for 4 KiB */
};

/* `len` bytes took so many cycles.  False: `wanted` times, two at least, are not taken yet.  True:
 * `ret_cycles` is the mean for 4 KiB, half of UINT32_MAX at most, and it begins anew. */
static inline bool ivc_timed_add(struct ivc_timed *timed, uint32_t wanted, uint64_t cycles, size_t len,
                                 uint32_t *ret_cycles)
{
    cycles = cycles * 4096 / len;
    timed->cycles += cycles;
    timed->slowest = IVC_MAX(timed->slowest, cycles);
    if (++timed->n < wanted)
        return false;
    *ret_cycles = (uint32_t)IVC_MIN((timed->cycles - timed->slowest) / (wanted - 1), UINT32_MAX / 2);
    *timed = (struct ivc_timed){ 0 };
    return true;
}

/* Less than an eighth better is no better: one time takes longer than the next for many reasons. */
static inline bool ivc_timed_is_better(uint64_t cycles, uint64_t than)
{
    return cycles < than - than / 8;
}

/* How long to go on until the next comparison, after `pause` before this one (0: it was the first). */
static inline uint32_t ivc_timed_pause(uint32_t pause, bool same_answer, uint32_t least, uint32_t most)
{
    return same_answer ? IVC_MIN(IVC_MAX(2 * pause, least), most) : least;
}

/* What something takes that is done now and then: it took so many cycles, and `before` by what was answered last (0: it
 * is the first time).  Once far longer than the other times was none of them: the processor was away. */
static inline uint64_t ivc_timed_cost(uint64_t before, uint64_t took)
{
    enum { LEAST = 256 };       /* less than any system call takes */

    return IVC_MIN(took, 2 * before + LEAST);
}

#endif
