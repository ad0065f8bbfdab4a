/*
 * How a mapping behaves: write-back memory answers a second load of a line from the cache; uncached
 * and write-combining mappings go to the device or to memory every time.
 */
#include "region/mechanism.h"

#include "base/util.h"

enum {
    LINES = 16,         /* few enough that the caches hold them whatever else goes on */
    LOADS = 1024,       /* a chain of loads: 3 us cached, 100 us and more uncached */
    ROUNDS = 8,
};

/* One load after the other: the address of each depends on the value of the last.  Nanoseconds for
 * all of them, reading the clock included. */
static uint64_t chain_ns(const volatile uint64_t *memory, unsigned loads)
{
    static volatile uint64_t unknown_zero;
    uint64_t never = unknown_zero;
    uint64_t zero = 0;
    uint64_t start = ivc_now_ns();

    for (unsigned i = 0; i < loads; i++) {
        uint64_t line = (i + zero) % LINES;

        /* Always zero, which neither the compiler nor the processor can know. */
        zero = memory[line * (IVC_LINE / sizeof *memory)] & never;
    }
    return ivc_now_ns() - start;
}

/* The best of some rounds: interrupts only make it slower. */
static uint64_t best_ns(const void *memory, unsigned loads)
{
    uint64_t best = UINT64_MAX;

    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t ns = chain_ns(memory, loads);

        best = IVC_MIN(best, ns);
    }
    return best;
}

struct ivc_mapping_speed ivc_mapping_measure(const void *memory, uint64_t size)
{
    struct ivc_mapping_speed speed = { .read_ns = 0, .cached = true };
    uint64_t clock_ns, all_ns;

    if (size < LINES * IVC_LINE)
        return speed;
    /* Where the clock is a slow system call (user-mode Linux: 10 us) it must not count. */
    clock_ns = best_ns(memory, 0);
    all_ns = best_ns(memory, LOADS);
    speed.read_ns = all_ns > clock_ns ? (double)(all_ns - clock_ns) / LOADS : 0;
    speed.cached = speed.read_ns < IVC_MAPPING_SLOW_NS;
    return speed;
}
