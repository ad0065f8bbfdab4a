/* Blocks: see blocks.h. */
#include "region/blocks.h"

#include <errno.h>

enum { RETRIES = 100 };

/* Takes the run [first, first + count) or nothing.  On failure `ret_busy` is the block that is not
 * free. */
static int take_run(struct ivc_blocks *blocks, uint32_t owner, uint64_t first, uint64_t count,
                    uint64_t *ret_busy)
{
    for (uint64_t i = first; i < first + count; i++) {
        /* Acquire on success: pairs with the release in ivc_blocks_give(), so that what the last
         * owner wrote is not seen after what we write. */
        if (ivc_cas(&blocks->owners[i], 0u, owner))
            continue;
        ivc_blocks_give(blocks, owner, first, i - first);
        *ret_busy = i;
        return -EBUSY;
    }
    return 0;
}

/* A free run that begins in [from, to). */
static int search(struct ivc_blocks *blocks, uint32_t owner, uint64_t from, uint64_t to,
                  uint64_t count, uint64_t *ret_first)
{
    uint64_t busy;

    for (uint64_t first = from; first < to && first + count <= blocks->n; first = busy + 1) {
        if (take_run(blocks, owner, first, count, &busy) == 0) {
            *ret_first = first;
            return 0;
        }
    }
    return -ENOSPC;
}

int ivc_blocks_take(struct ivc_blocks *blocks, uint32_t owner, uint64_t count, uint64_t *ret_first)
{
    int r;

    if (count == 0 || count > blocks->n)
        return -ENOSPC;
    r = search(blocks, owner, blocks->hint, blocks->n, count, ret_first);
    if (r < 0)
        r = search(blocks, owner, 0, blocks->hint, count, ret_first);
    /* Others hold for a moment what they give back when it is not long enough for them. */
    for (unsigned i = 0; r < 0 && count == 1 && i < RETRIES && ivc_blocks_free_count(blocks) > 0; i++)
        r = search(blocks, owner, 0, blocks->n, count, ret_first);
    if (r == 0)
        blocks->hint = (*ret_first + count) % blocks->n;
    return r;
}

void ivc_blocks_give(struct ivc_blocks *blocks, uint32_t owner, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++)
        /* Release: pairs with the acquire in take_run(). */
        (void)ivc_cas(&blocks->owners[i], owner, 0u);
}

uint64_t ivc_blocks_give_all(struct ivc_blocks *blocks, uint32_t owner)
{
    uint64_t given = 0;

    for (uint64_t i = 0; i < blocks->n; i++)
        /* Relaxed: only a hint where to try; the swap decides. */
        if (ivc_load_relaxed(&blocks->owners[i]) == owner && ivc_cas(&blocks->owners[i], owner, 0u))
            given++;
    return given;
}

uint64_t ivc_blocks_free_count(const struct ivc_blocks *blocks)
{
    uint64_t free_blocks = 0;

    for (uint64_t i = 0; i < blocks->n; i++)
        /* Relaxed: a count for people and for estimates. */
        free_blocks += ivc_load_relaxed(&blocks->owners[i]) == 0;
    return free_blocks;
}
