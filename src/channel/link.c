/*
 * The link line: what we tell one peer.  It must be cleared before it is addressed to a new owner of
 * the peer's slot, or he would take what was meant for the last one.
 */
#include "channel/link.h"

static int address_to(struct ivc_region *region, uint32_t slot, uint32_t generation,
                      enum ivc_link_suspended suspended)
{
    struct ivc_layout_link *link;
    int r = ivc_region_make_link(region, slot);

    if (r != 0)
        return r;
    link = ivc_region_own_link(region, slot);
    ivc_store_relaxed(&link->generation, 0);
    /* Release, all: the line was disowned before; pairs with the acquires of generation. */
    ivc_store_release(&link->ring, 0);
    ivc_store_release(&link->head, 0);
    ivc_store_release(&link->suspended, suspended);
    ivc_store_relaxed(&link->reading, 0);
    /* Release: pairs with the acquires of generation in ivc_rx_open(), ivc_tx_refresh() and
     * ivc_link_look(). */
    ivc_store_release(&link->generation, generation);
    return 0;
}

int ivc_link_open(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    int r = address_to(region, slot, generation, IVC_LINK_NOT_SUSPENDED);

    /* Before we look whether the peer still lives: either its reclaimer sees this line, or we see
     * its mark (region/reclaim.c). */
    atomic_thread_fence(memory_order_seq_cst);
    return r;
}

void ivc_link_close(struct ivc_region *region, uint32_t slot)
{
    /* Release: pairs with the acquire in is_still_read(); our reads of the peer's memory are over. */
    ivc_store_release(&ivc_region_own_link(region, slot)->generation, 0);
}

void ivc_link_suspend(struct ivc_region *region, uint32_t slot)
{
    /* Release: pairs with the acquire in ivc_link_look(); our last head is visible, what we wrote into
     * our ring is, and so is whatever we wrote into its memory. */
    ivc_store_release(&ivc_region_own_link(region, slot)->suspended, IVC_LINK_IS_SUSPENDED);
}

void ivc_link_done(struct ivc_region *region, uint32_t slot)
{
    /* Release: pairs with the acquire in has_readers() (region/reclaim.c); our reads are over. */
    ivc_store_release(&ivc_region_own_link(region, slot)->suspended, IVC_LINK_IS_DONE);
}

int ivc_link_refuse(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    return address_to(region, slot, generation, IVC_LINK_IS_DONE);
}

bool ivc_link_is_open(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    const struct ivc_layout_link *link = ivc_region_own_link(region, slot);

    /* Relaxed: we alone write it. */
    return link && ivc_load_relaxed(&link->generation) == generation;
}

enum ivc_link_word ivc_link_look(struct ivc_region *region, uint32_t slot, uint64_t *ret_head)
{
    const struct ivc_layout_link *link = ivc_region_peer_link(region, slot);

    /* Acquire: pairs with the release of generation in ivc_link_open(): the line is about us. */
    if (!link || ivc_load_acquire(&link->generation) != ivc_region_self(region)->generation)
        return IVC_LINK_NONE;
    /* Acquire: pairs with the release in ivc_link_suspend(). */
    if (ivc_load_acquire(&link->suspended) == IVC_LINK_NOT_SUSPENDED)
        return IVC_LINK_OPEN;
    *ret_head = ivc_load_relaxed(&link->head);
    return IVC_LINK_SUSPENDED;
}

bool ivc_link_is_done(struct ivc_region *region, uint32_t slot)
{
    const struct ivc_layout_link *link = ivc_region_peer_link(region, slot);

    /* Acquire, both: as in ivc_link_look(); the second pairs with the release in ivc_link_done(), so
     * its reads of our ring are over. */
    return link && ivc_load_acquire(&link->generation) == ivc_region_self(region)->generation
           && ivc_load_acquire(&link->suspended) == IVC_LINK_IS_DONE;
}
