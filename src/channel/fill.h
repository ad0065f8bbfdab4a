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
 * Of shorter packets a reading of the clock would be a notable part, and a stream of them is held up by what is done
 * beside copying.  So what is compared is how long it takes from one to the one that is sent some dozens later, waiting
 * included; and past the cache, it has to be less by a quarter, since a program may do all sorts of things in between.
 *
 * Should either take much longer than when it was decided, the processors have moved: then it is looked at again at
 * once.
 *
 * Threads: as the ivc_tx, or the ivc_rx, that this belongs to.
 */
#ifndef IVC_CHANNEL_FILL_H
#define IVC_CHANNEL_FILL_H

#include "base/timed.h"

/* Bytes of a long packet: a stream of shorter ones, though the sum of the times says so as well, may be slower past the
 * cache than into it.  And of those for which it matters at all. */
enum { IVC_FILL_LEAST = 28 << 10, IVC_FILL_LEAST_SHORT = 2 << 10 };

enum { IVC_FILL_TIMED = 16 };           /* long packets, by either side */
enum { IVC_FILL_ROW = 32 };             /* shorter ones from a look at the clock to the next, */
enum { IVC_FILL_WATCH = 2048 };         /* in a rest two looks at the end of as many */

enum ivc_fill_phase { IVC_FILL_REST, IVC_FILL_TIME, IVC_FILL_SETTLE, IVC_FILL_TIME_OTHER };

/* The sender's.  All zero: of long packets, into the cache, and about to be looked at. */
struct ivc_fill {
    bool is_short;              /* of shorter packets */
    bool past;                  /* the way to go now */
    enum ivc_fill_phase phase;
    uint32_t left, pause;       /* packets until a rest is over, or a settling; that a rest lasts */
    uint64_t before;            /* what the other way costs, in cycles for 4 KiB */
    struct ivc_timed timed;
    uint32_t took[2];           /* what was timed, in cycles for 4 KiB: into the cache, past it */
    uint32_t slow;              /* packets, or rows, one after the other that took longer by far */
    uint64_t since;             /* shorter ones: when the clock was looked at; 0: it was not yet */
    uint32_t packets, bytes;    /* ... and what was sent since */
};

/* For shorter packets: the first ones of a process are slow for another reason, memory that is new. */
void ivc_fill_init_short(struct ivc_fill *fill);

/* Whether the next note needs to know what time it is. */
static inline bool ivc_fill_needs_now(const struct ivc_fill *fill)
{
    if (!fill->is_short || fill->phase == IVC_FILL_SETTLE)
        return false;
    if (fill->phase == IVC_FILL_REST)
        return fill->left % IVC_FILL_WATCH == IVC_FILL_ROW || fill->left % IVC_FILL_WATCH == 0;
    return fill->since == 0 || fill->packets == IVC_FILL_ROW - 1;
}

/* Whether the next note needs to know what the receiver told: a look at its line costs as much as a short
 * message. */
bool ivc_fill_asks(const struct ivc_fill *fill);
/* A packet of `len` bytes was filled in so many cycles (0: it was not timed).  Where ivc_fill_needs_now(), `now`:
 * ivc_cycles().  Where ivc_fill_asks(), `reading`: what the receiver told last, 0: nothing; `under_way`: chunks that it
 * has not read yet. */
void ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint64_t now, uint32_t len, uint32_t reading,
                   uint32_t under_way);

#endif
