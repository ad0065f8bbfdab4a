/*
 * Copying many bytes between memory that another processor has just written, or will read at once,
 * and memory of our own.
 *
 * The C library's memcpy() takes the processor's string instruction (`rep movsb`) for anything above
 * about 2 KiB where the processor says that it is fast.  It is for memory that no one else holds; for
 * lines that lie modified in another core's cache it was seen to take three to eight times as long
 * as plain moves, whose loads wait for several lines at once (docs/performance.md).
 */
#include "base/copy.h"

enum { BLOCK = 128 };

/* Vectors of 16 bytes at any address: every x86-64 and ARMv8 processor has registers for them. */
typedef uint64_t vector __attribute__((vector_size(16), aligned(1), may_alias));

/* Loads all before it stores any: so many lines are on their way at once.  Not to be made a call of
 * memcpy() by the compiler, which knows such loops. */
__attribute__((optimize("no-tree-loop-distribute-patterns")))
static void copy_blocks(char *to, const char *from, size_t n_blocks)
{
    for (; n_blocks > 0; n_blocks--, to += BLOCK, from += BLOCK) {
        const vector *in = (const vector *)from;
        vector *out = (vector *)to;
        vector a = in[0], b = in[1], c = in[2], d = in[3];
        vector e = in[4], f = in[5], g = in[6], h = in[7];

        out[0] = a, out[1] = b, out[2] = c, out[3] = d;
        out[4] = e, out[5] = f, out[6] = g, out[7] = h;
    }
}

void ivc_copy_long(char *to, const char *from, size_t n)
{
    size_t blocks = n / BLOCK;

    copy_blocks(to, from, blocks);
    memcpy(to + blocks * BLOCK, from + blocks * BLOCK, n % BLOCK);
}
