/* Into the cache or past it: see fill.h. */
#include "channel/fill.h"

enum {
    PAUSE_FIRST = 256,          /* packets; then twice as many each time the answer stays the same */
    PAUSE_MAX = 128 << 10,
    PAUSE_FIRST_SHORT = 2048,   /* of which more are compared */
    SLOW_TIMES = 2,             /* than it was timed: longer by far */
    SLOW_MAX = 8,               /* packets: not one that was held up by something else, */
    SLOW_ROWS = 3,              /* rows of shorter ones */
    ROWS = 5,                   /* of shorter packets, the slowest of which does not count */
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
    fill->pause = ivc_timed_pause(fill->pause, !better, fill->is_short ? PAUSE_FIRST_SHORT : PAUSE_FIRST, PAUSE_MAX);
    begin(fill, IVC_FILL_REST, fill->pause);
}

/* In a rest.  What it took at most when it was timed is what it may take: else it would be looked at again and again
 * where it takes now more, now less. */
static void watch(struct ivc_fill *fill, uint64_t cycles, uint32_t len, uint32_t slow_max)
{
    bool slow = cycles * 4096 / len > (uint64_t)SLOW_TIMES * fill->took[fill->past];

    if (cycles == 0 || fill->pause == 0)
        return;
    fill->slow = slow ? fill->slow + 1 : 0;
    if (fill->slow >= slow_max)
        fill->left = 0;
}

/* A row of shorter ones now and then. */
static void watch_rows(struct ivc_fill *fill, uint64_t now, uint32_t len)
{
    uint32_t behind = fill->left % IVC_FILL_WATCH;

    if (behind == IVC_FILL_ROW)
        fill->since = now;
    if (behind != 0)
        return;
    if (fill->since > 0)
        watch(fill, now - fill->since, len * IVC_FILL_ROW, SLOW_ROWS);
    fill->since = 0;
}

bool ivc_fill_asks(const struct ivc_fill *fill)
{
    if (fill->is_short)
        return false;
    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE)
        return fill->left == 0;
    return fill->timed.n == IVC_FILL_TIMED - 1;
}

static void note_took(struct ivc_fill *fill, uint32_t mean)
{
    fill->took[fill->past] = IVC_MAX(fill->phase == IVC_FILL_TIME ? fill->took[fill->past] : 0, mean);
}

/* Of long packets, the way that was just timed, on both sides; false: it is not known yet. */
static bool time_filling(struct ivc_fill *fill, uint64_t cycles, uint32_t len, uint32_t reading, uint64_t *ret_cost)
{
    uint32_t mean;

    if (!ivc_timed_add(&fill->timed, IVC_FILL_TIMED, cycles, len, &mean))
        return false;
    note_took(fill, mean);
    *ret_cost = (uint64_t)mean + IVC_MIN(reading, UINT32_MAX / 2);  /* a peer may tell anything */
    return true;
}

/* The same of shorter ones, from one to the next. */
static bool time_rows(struct ivc_fill *fill, uint64_t now, uint32_t len, uint64_t *ret_cost)
{
    uint32_t mean;
    bool known;

    if (fill->since == 0) {
        fill->since = now;
        return false;
    }
    fill->bytes += len;
    if (++fill->packets < IVC_FILL_ROW)
        return false;
    known = ivc_timed_add(&fill->timed, ROWS, now - fill->since, fill->bytes, &mean);
    fill->since = known ? 0 : now;
    fill->packets = fill->bytes = 0;
    if (!known)
        return false;
    note_took(fill, mean);
    *ret_cost = fill->past ? (uint64_t)mean + mean / 4 : mean;
    return true;
}

void ivc_fill_init_short(struct ivc_fill *fill)
{
    *fill = (struct ivc_fill){ .is_short = true, .left = PAUSE_FIRST_SHORT };
}

void ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint64_t now, uint32_t len, uint32_t reading,
                   uint32_t under_way)
{
    uint64_t cost;

    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE) {
        if (fill->phase == IVC_FILL_REST && fill->is_short)
            watch_rows(fill, now, len);
        else if (fill->phase == IVC_FILL_REST)
            watch(fill, cycles, len, SLOW_MAX);
        if (fill->left > 0)
            fill->left--;
        else if (reading > 0 || fill->is_short)
            fill->phase++;
        return;
    }
    if (!(fill->is_short ? time_rows(fill, now, len, &cost) : time_filling(fill, cycles, len, reading, &cost)))
        return;
    if (fill->phase == IVC_FILL_TIME_OTHER) {
        decide(fill, cost);
        return;
    }
    fill->before = cost;
    fill->past ^= true;
    settle(fill, under_way);
}
