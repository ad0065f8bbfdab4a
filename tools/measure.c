/* How fast bytes come out of a mapping.  Reads only: the window belongs to others. */
#include "look.h"

#include "base/util.h"

#include <string.h>
#include <unistd.h>

enum {
    PIECE = 64 * 1024,
    LEVEL2 = 2 << 20,       /* where nobody says how large it is */
    PART_MAX = 16 << 20,    /* it is to be quick, and reading takes pages of a file that had none */
    ROUNDS = 5,
    TIMING_NS = 500000,     /* copy for so long: in user-mode Linux reading the clock costs 20 us */
    LIMIT_NS = 100000000,   /* an uncached mapping takes 1 us and more for each line */
};

/* Nanoseconds for copying the pieces `times` times over. */
static uint64_t copy_ns(const char *from, char *to, unsigned pieces, unsigned times)
{
    uint64_t start = ivc_now_ns();

    for (unsigned i = 0; i < times; i++)
        for (unsigned piece = 0; piece < pieces; piece++) {
            memcpy(to, from + (size_t)piece * PIECE, PIECE);
            __asm__ volatile("" : : "r"(to) : "memory");    /* the bytes are wanted */
        }
    return ivc_now_ns() - start + 1;
}

/* Four second-level caches, where there is so much: less would tell how fast that cache is. */
uint64_t measure_part(const struct ivc_mapping *mapping)
{
    long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    uint64_t part = 4 * (level2 > 0 ? (uint64_t)level2 : LEVEL2);

    return IVC_MIN(IVC_MIN(part, PART_MAX), mapping->size) / PIECE * PIECE;
}

double measure_copy(const struct ivc_mapping *mapping)
{
    unsigned pieces = (unsigned)(measure_part(mapping) / PIECE);
    IVC_AUTO_FREE char *to = malloc(PIECE);
    uint64_t once, best = UINT64_MAX;
    unsigned times = 1;

    if (!to || pieces == 0)
        return 0;
    memset(to, 0, PIECE);
    (void)copy_ns(mapping->memory, to, 1, 1);       /* brings the pages in */
    once = copy_ns(mapping->memory, to, 1, 1);
    if (once * pieces * ROUNDS > LIMIT_NS)          /* slow: one piece tells it */
        return (double)PIECE / (double)once;
    once = copy_ns(mapping->memory, to, pieces, 1); /* the other pages */
    once = copy_ns(mapping->memory, to, pieces, 1);
    times += (unsigned)(TIMING_NS / once);
    for (unsigned round = 0; round < ROUNDS; round++)
        best = IVC_MIN(best, copy_ns(mapping->memory, to, pieces, times));
    return (double)PIECE * pieces * times / (double)best;
}
