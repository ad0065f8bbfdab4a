/*
 * Whether the other side's processor is far away, by what a line takes that it has written: more than the processors of
 * one third-level cache need to hand one on.  One look tells little; so looks are counted, up and down.
 *
 * Threads: as the ivc_tx, or the ivc_rx, that the count belongs to.
 */
#ifndef IVC_CHANNEL_FAR_H
#define IVC_CHANNEL_FAR_H

#include <stdbool.h>
#include <stdint.h>

enum { IVC_FAR_LOOKS = 8 };

/* A line took so many ivc_cycles(). */
static inline void ivc_far_note(uint32_t *far, uint64_t cycles)
{
    enum {
        LEAST = 200,        /* less when near, 215 and more otherwise */
        MOST = 4000,        /* something else took longer */
    };

    if (cycles >= LEAST && cycles < MOST)
        *far += *far < IVC_FAR_LOOKS;
    else if (cycles < LEAST)
        *far -= *far > 0;
}

static inline bool ivc_far_is(uint32_t far)
{
    return far > IVC_FAR_LOOKS / 2;
}

#endif
