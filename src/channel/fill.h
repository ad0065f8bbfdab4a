/*
 * How the sender of large packets fills its chunks: into its cache, or past it.
 *
 * Two processors that share a cache hand lines on quickest when they stay there.  Between two that do not,
 * the sender has to take each line away from the other one's cache, and the receiver to fetch it from the
 * sender's; then it may be better to write to memory, past the cache.  Which it is changes when the host
 * moves a guest's processor.  So the sender times its filling, the receiver its reading, which it tells on its
 * link line; now and then the sender goes the other way for a while, and keeps to the one that takes less
 * time on both sides together.  All in ivc_cycles(): both are on one host.
 *
 * Shorter packets, of which a reading of the clock would be a notable part, are timed only while two ways are compared,
 * and by the sender alone: past the cache has to take a third of the time.
 *
 * Should filling take much longer than when it was decided, the processors have moved: then it is looked at again at
 * once.
 *
 * Threads: as the ivc_tx, or the ivc_rx, that this belongs to.
 */
#ifndef IVC_CHANNEL_FILL_H
#define IVC_CHANNEL_FILL_H

#include "base/timed.h"

/* Bytes of a long packet: a stream of shorter ones, though the sum of the times says so as well, may be slower past the
 * cache than into it.  And of those for which it matters at all, in two classes: it may be worth it for the longer of
 * them alone. */
enum { IVC_FILL_LEAST = 28 << 10, IVC_FILL_LEAST_MIDDLE = 5 << 10, IVC_FILL_LEAST_SHORT = 2 << 10 };

enum { IVC_FILL_TIMED = 16 };           /* packets, by either side */

enum ivc_fill_phase { IVC_FILL_REST, IVC_FILL_TIME, IVC_FILL_SETTLE, IVC_FILL_TIME_OTHER };

/* The sender's.  All zero: of long packets, into the cache, and about to be looked at. */
struct ivc_fill {
    bool is_short;              /* of shorter packets: nothing is known of their reading */
    bool past;                  /* the way to go now */
    enum ivc_fill_phase phase;
    uint32_t left, pause;       /* packets until a rest is over, or a settling; that a rest lasts */
    uint64_t before;            /* what the other way costs, in cycles for 4 KiB */
    uint32_t filling[2];        /* ... what filling took when it was timed: into the cache, past it */
    uint32_t slow;              /* packets one after the other that took longer by far */
    struct ivc_timed timed;
};

/* Whether the next packet is to be timed. */
static inline bool ivc_fill_is_timed(const struct ivc_fill *fill)
{
    enum { EVERY = 16 };

    return !fill->is_short || fill->phase == IVC_FILL_TIME || fill->phase == IVC_FILL_TIME_OTHER
        || (fill->phase == IVC_FILL_REST && fill->left % EVERY == 0);
}

/* Whether the next note needs to know what the receiver told: a look at its line costs as much as a short
 * message. */
bool ivc_fill_asks(const struct ivc_fill *fill);
/* A packet of `len` bytes was filled in so many cycles (0: it was not timed).  Where ivc_fill_asks(),
 * `reading`: what the receiver told last, 0: nothing; `under_way`: chunks that it has not read yet. */
void ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint32_t len, uint32_t reading, uint32_t under_way);

#endif
