/*
 * How a mapping behaves: write-back memory answers a second load of a line from the cache; uncached
 * and write-combining mappings go to the device or to memory every time.
 */
#include "region/mechanism.h"

#include "base/util.h"

enum {
    LINES = 16,         /* few enough that the caches hold them whatever else goes on */
    LOADS = 256,        /* a chain of loads: 0.3 us cached, 25 us and more uncached */
    ROUNDS = 5,         /* the best counts: interrupts only make it slower */
};

/* One load after the other: the address of each depends on the value of the last. */
static double chain_ns(const volatile uint64_t *memory)
{
    static volatile uint64_t unknown_zero;
    uint64_t never = unknown_zero;
    uint64_t zero = 0;
    uint64_t start = ivc_now_ns();

    for (unsigned i = 0; i < LOADS; i++) {
        uint64_t line = (i + zero) % LINES;

        /* Always zero, which neither the compiler nor the processor can know. */
        zero = memory[line * (IVC_LINE / sizeof *memory)] & never;
    }
    return (double)(ivc_now_ns() - start) / LOADS;
}

struct ivc_mapping_speed ivc_mapping_measure(const void *memory, uint64_t size)
{
    struct ivc_mapping_speed speed = { .read_ns = 1e9 };

    if (size < LINES * IVC_LINE)
        return (struct ivc_mapping_speed){ .read_ns = 0, .cached = true };
    for (unsigned i = 0; i < ROUNDS; i++)
        speed.read_ns = IVC_MIN(speed.read_ns, chain_ns(memory));
    speed.cached = speed.read_ns < IVC_MAPPING_SLOW_NS;
    return speed;
}
