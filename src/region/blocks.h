/*
 * Blocks: the allocator of a window.
 *
 * An array of owner words, one per block of 4096 bytes, is the whole truth: 0 is free, else who
 * owns it.  A word is taken from 0 and given back by compare-and-swap, so there is no lock that a
 * dying process could hold, and what a dead owner had is found by looking for its name.
 */
#ifndef IVC_REGION_BLOCKS_H
#define IVC_REGION_BLOCKS_H

#include "base/atomics.h"

#include <stdint.h>

struct ivc_blocks {
    ivc_atomic_u32 *owners;
    uint64_t n;
    uint64_t hint;          /* where to look next: ours alone */
};

/* Takes `count` neighbouring blocks for `owner`; -ENOSPC when no such run is free. */
int ivc_blocks_take(struct ivc_blocks *blocks, uint32_t owner, uint64_t count, uint64_t *ret_first);

/* Gives blocks back; those that `owner` does not own are left alone. */
void ivc_blocks_give(struct ivc_blocks *blocks, uint32_t owner, uint64_t first, uint64_t count);

/* Gives back everything that `owner` owns; returns how many blocks that were. */
uint64_t ivc_blocks_give_all(struct ivc_blocks *blocks, uint32_t owner);

uint64_t ivc_blocks_free_count(const struct ivc_blocks *blocks);

#endif
