/* Into the cache or past it: see fill.h. */
#include "channel/fill.h"

enum {
    PAUSE_FIRST = 256,          /* packets; then twice as many each time the answer stays the same */
    PAUSE_MAX = 128 << 10,
    SLOW_TIMES = 2,             /* than it was timed: longer by far */
    SLOW_MAX = 8,               /* packets: not one that was held up by something else */
    SHORT_PAST_COSTS = 3,       /* times its filling: it is longer under way, and read more slowly */
};

static void begin(struct ivc_fill *fill, enum ivc_fill_phase phase, uint32_t packets)
{
    fill->phase = phase;
    fill->left = packets;
    fill->slow = 0;
}

/* Until all that is under way has been read, should there be twice as much by then, and the receiver has told of
 * packets filled the new way alone: short, since who sends little to each of many would go the worse way for long. */
static void settle(struct ivc_fill *fill, uint32_t under_way)
{
    begin(fill, IVC_FILL_SETTLE, 2 * (under_way + IVC_FILL_TIMED));
}

static void decide(struct ivc_fill *fill, uint64_t cost)
{
    bool better = ivc_timed_is_better(cost, fill->before);

    fill->past ^= !better;
    fill->pause = ivc_timed_pause(fill->pause, !better, PAUSE_FIRST, PAUSE_MAX);
    begin(fill, IVC_FILL_REST, fill->pause);
}

/* In a rest.  What it took at most when it was timed is what it may take: else it would be looked at again and again
 * where it takes now more, now less. */
static void watch(struct ivc_fill *fill, uint64_t cycles, uint32_t len)
{
    bool slow = cycles * 4096 / len > (uint64_t)SLOW_TIMES * fill->filling[fill->past];

    if (cycles == 0 || fill->pause == 0)
        return;
    fill->slow = slow ? fill->slow + 1 : 0;
    if (fill->slow == SLOW_MAX)
        fill->left = 0;
}

bool ivc_fill_asks(const struct ivc_fill *fill)
{
    if (fill->is_short)
        return false;
    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE)
        return fill->left == 0;
    return fill->timed.n == IVC_FILL_TIMED - 1;
}

/* Of the way that was just timed, on both sides. */
static uint64_t cost_of(const struct ivc_fill *fill, uint32_t filling, uint32_t reading)
{
    if (fill->is_short)
        return fill->past ? (uint64_t)SHORT_PAST_COSTS * filling : filling;
    return (uint64_t)filling + IVC_MIN(reading, UINT32_MAX / 2);    /* a peer may tell anything */
}

void ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint32_t len, uint32_t reading, uint32_t under_way)
{
    uint64_t cost;
    uint32_t mean;

    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE) {
        if (fill->phase == IVC_FILL_REST)
            watch(fill, cycles, len);
        if (fill->left > 0)
            fill->left--;
        else if (reading > 0 || fill->is_short)
            fill->phase++;
        return;
    }
    if (!ivc_timed_add(&fill->timed, IVC_FILL_TIMED, cycles, len, &mean))
        return;
    cost = cost_of(fill, mean, reading);
    fill->filling[fill->past] = IVC_MAX(fill->phase == IVC_FILL_TIME ? fill->filling[fill->past] : 0, mean);
    if (fill->phase == IVC_FILL_TIME_OTHER) {
        decide(fill, cost);
        return;
    }
    fill->before = cost;
    fill->past ^= true;
    settle(fill, under_way);
}
