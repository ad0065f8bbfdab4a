/* Into the cache or past it: see fill.h. */
#include "channel/fill.h"

#include "base/util.h"

enum {
    TIMED = 16,                 /* packets */
    SETTLE = 512,               /* as many as may be under way, and the receiver's next word */
    PAUSE_FIRST = 256,          /* packets; then twice as many each time the answer stays the same */
    PAUSE_MAX = 128 << 10,
};

bool ivc_timed_add(struct ivc_timed *timed, uint64_t cycles, uint32_t len, uint32_t *ret_cycles)
{
    cycles = cycles * 4096 / len;
    timed->cycles += cycles;
    timed->slowest = IVC_MAX(timed->slowest, cycles);
    if (++timed->n < TIMED)
        return false;
    *ret_cycles = (uint32_t)IVC_MIN((timed->cycles - timed->slowest) / (TIMED - 1), UINT32_MAX / 2);
    *timed = (struct ivc_timed){ 0 };
    return true;
}

static void begin(struct ivc_fill *fill, enum ivc_fill_phase phase, uint32_t packets)
{
    fill->phase = phase;
    fill->left = packets;
}

static void decide(struct ivc_fill *fill, uint64_t cycles)
{
    bool better = cycles < fill->before - fill->before / 8;

    fill->past ^= !better;
    fill->pause = better ? PAUSE_FIRST : IVC_MIN(IVC_MAX(2 * fill->pause, PAUSE_FIRST), PAUSE_MAX);
    begin(fill, IVC_FILL_REST, fill->pause);
}

bool ivc_fill_asks(const struct ivc_fill *fill)
{
    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE)
        return fill->left == 0;
    return fill->timed.n == TIMED - 1;
}

void ivc_fill_note(struct ivc_fill *fill, uint64_t cycles, uint32_t len, uint32_t reading)
{
    uint32_t mean;

    if (fill->phase == IVC_FILL_REST || fill->phase == IVC_FILL_SETTLE) {
        if (fill->left > 0)
            fill->left--;
        else if (reading > 0)
            fill->phase++;
        return;
    }
    if (!ivc_timed_add(&fill->timed, cycles, len, &mean))
        return;
    reading = IVC_MIN(reading, UINT32_MAX / 2);     /* a peer may tell anything */
    if (fill->phase == IVC_FILL_TIME_OTHER) {
        decide(fill, (uint64_t)mean + reading);
        return;
    }
    fill->before = mean + reading;
    fill->past ^= true;
    begin(fill, IVC_FILL_SETTLE, SETTLE);
}
