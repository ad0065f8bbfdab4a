/* How fast bytes come out of a mapping.  Reads only: the window belongs to others. */
#include "look.h"

#include "base/util.h"

#include <string.h>

enum {
    PIECE = 64 * 1024,
    PIECES_MAX = 16,        /* 1 MiB: more than a second-level cache, most of a share of the third */
    LIMIT_MS = 100,         /* an uncached mapping takes 1 us and more for each line */
};

static double copy_once(const char *from, char *to, unsigned pieces, uint64_t deadline_ms)
{
    uint64_t start = ivc_now_ns();
    unsigned done = 0;

    do {
        memcpy(to, from + (size_t)done * PIECE, PIECE);
        __asm__ volatile("" : : "r"(to) : "memory");    /* the bytes are wanted */
        done++;
    } while (done < pieces && ivc_now_ms() < deadline_ms);
    return (double)done * PIECE / (double)(ivc_now_ns() - start + 1);
}

double measure_copy(const struct ivc_mapping *mapping)
{
    unsigned pieces = (unsigned)IVC_MIN(mapping->size / PIECE, PIECES_MAX);
    uint64_t deadline = ivc_now_ms() + LIMIT_MS;
    IVC_AUTO_FREE char *to = malloc(PIECE);
    double best = 0;

    if (!to || pieces == 0)
        return 0;
    memset(to, 0, PIECE);
    /* The first round brings the pages in; the best of the others counts. */
    for (unsigned round = 0; round < 6 && (round == 0 || ivc_now_ms() < deadline); round++) {
        double speed = copy_once(mapping->memory, to, pieces, deadline);

        best = IVC_MAX(best, speed);
    }
    return best;
}
