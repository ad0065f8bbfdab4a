/* Into the cache or past it: see fill.h. */
#include "channel/fill.h"

enum {
    PAUSE_FIRST = 256,          /* packets; then twice as many each time the answer stays the same */
    PAUSE_MAX = 128 << 10,
};

static void begin(struct ivc_fill *fill, enum ivc_fill_phase phase, uint32_t packets)
{
    fill->phase = phase;
    fill->left = packets;
}

/* Until all that is under way has been read, should there be twice as much by then, and the receiver has told of
 * packets filled the new way alone: short, since who sends little to each of many would go the worse way for long. */
static void settle(struct ivc_fill *fill, uint32_t under_way)
{
    begin(fill, IVC_FILL_SETTLE, 2 * (under_way + IVC_FILL_TIMED));
}

static void decide(struct ivc_fill *fill, uint64_t cycles)
{
    bool better = ivc_timed_is_better(cycles, fill->before);

    fill->past ^= !better;
    fill->pause = ivc_timed_pause(fill->pause, !better, PAUSE_FIRST, PAUSE_MAX);
    begin(fill, IVC_FILL_REST, fill->pause);
}

bool ivc_fill_asks(const struct ivc_fill *fill)
{
    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE)
        return fill->left == 0;
    return fill->timed.n == IVC_FILL_TIMED - 1;
}

void ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint32_t len, uint32_t reading, uint32_t under_way)
{
    uint32_t mean;

    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE) {
        if (fill->left > 0)
            fill->left--;
        else if (reading > 0)
            fill->phase++;
        return;
    }
    if (!ivc_timed_add(&fill->timed, IVC_FILL_TIMED, cycles, len, &mean))
        return;
    reading = IVC_MIN(reading, UINT32_MAX / 2);     /* a peer may tell anything */
    if (fill->phase == IVC_FILL_TIME_OTHER) {
        decide(fill, (uint64_t)mean + reading);
        return;
    }
    fill->before = mean + reading;
    fill->past ^= true;
    settle(fill, under_way);
}
