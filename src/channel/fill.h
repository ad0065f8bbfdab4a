/*
 * How the sender of large packets fills its chunks: into its cache, or past it.
 *
 * Two processors that share a cache hand lines on quickest when they stay there.  Between two that do not,
 * each line has to be fetched out of the other one's cache, and it is better that the sender writes past its
 * own, to memory, from where the receiver reads at full speed.  Which it is, only the receiver can tell, and
 * it changes when the host moves a guest's processor.  So the receiver times its reading, now and then asks
 * for the other way for a while, and keeps to what was faster for itself.  It asks on its link line; the
 * sender finds that when it looks how far the receiver has come.
 *
 * Threads: as the ivc_rx that this belongs to.
 */
#ifndef IVC_CHANNEL_FILL_H
#define IVC_CHANNEL_FILL_H

#include <stdbool.h>
#include <stdint.h>

enum ivc_fill_way {
    IVC_FILL_CACHE,
    IVC_FILL_PAST,
};

enum { IVC_FILL_LEAST = 16 << 10 };     /* bytes of a packet for which it matters */

enum ivc_fill_phase { IVC_FILL_REST, IVC_FILL_TIME, IVC_FILL_SETTLE, IVC_FILL_TIME_OTHER };

struct ivc_fill {
    uint32_t way;               /* enum ivc_fill_way: what is asked for */
    enum ivc_fill_phase phase;
    uint32_t left, pause;       /* packets until the phase is over; that a rest lasts */
    uint64_t cycles, slowest, before;       /* per 4 KiB; all of a phase, one of it, all of the one before */
};

void ivc_fill_init(struct ivc_fill *fill);
/* A packet of `len` bytes, IVC_FILL_LEAST at least, was read in so many cycles.  True: `way` has changed. */
bool ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint32_t len);

#endif
