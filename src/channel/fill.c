/* Into the cache or past it: see fill.h. */
#include "channel/fill.h"

#include "base/util.h"

enum {
    TIMED = 16,                 /* packets; the slowest is not counted */
    SETTLE = 512,               /* as many as may be under way: filled before the sender was told */
    PAUSE_FIRST = 256,          /* packets; then twice as many each time the answer stays the same */
    PAUSE_MAX = 128 << 10,
};

void ivc_fill_init(struct ivc_fill *fill)
{
    *fill = (struct ivc_fill){ .left = PAUSE_FIRST, .pause = PAUSE_FIRST };
}

static void begin(struct ivc_fill *fill, enum ivc_fill_phase phase, uint32_t packets)
{
    fill->phase = phase;
    fill->left = packets;
    fill->cycles = fill->slowest = 0;
}

static void add(struct ivc_fill *fill, uint64_t cycles)
{
    fill->cycles += cycles;
    fill->slowest = IVC_MAX(fill->slowest, cycles);
}

/* The phase is over. */
static bool go_on(struct ivc_fill *fill)
{
    uint64_t cycles = fill->cycles - fill->slowest;
    bool better;

    switch (fill->phase) {
    case IVC_FILL_REST:
        begin(fill, IVC_FILL_TIME, TIMED);
        return false;
    case IVC_FILL_TIME:
        fill->before = cycles;
        fill->way ^= 1;
        begin(fill, IVC_FILL_SETTLE, SETTLE);
        return true;
    case IVC_FILL_SETTLE:
        begin(fill, IVC_FILL_TIME_OTHER, TIMED);
        return false;
    default:
        better = cycles < fill->before - fill->before / 8;
        fill->pause = better ? PAUSE_FIRST : IVC_MIN(2 * fill->pause, PAUSE_MAX);
        fill->way ^= !better;
        begin(fill, IVC_FILL_REST, fill->pause);
        return !better;
    }
}

bool ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint32_t len)
{
    if (fill->phase == IVC_FILL_TIME || fill->phase == IVC_FILL_TIME_OTHER)
        add(fill, cycles * 4096 / len);
    return --fill->left == 0 && go_on(fill);
}
