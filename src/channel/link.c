/*
 * The link line: what we tell one peer.  It must be cleared before it is addressed to a new owner of
 * the peer's slot, or he would take what was meant for the last one.
 */
#include "channel/link.h"

void ivc_link_open(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    struct ivc_layout_link *link = ivc_region_own_link(region, slot);

    ivc_store_relaxed(&link->generation, 0);
    /* Release, both: the line was disowned before; pairs with the acquires below. */
    ivc_store_release(&link->ring, 0);
    ivc_store_release(&link->head, 0);
    /* Release: pairs with the acquires of generation in ivc_rx_open() and ivc_tx_refresh(). */
    ivc_store_release(&link->generation, generation);
    /* Before we look whether the peer still lives: either its reclaimer sees this line, or we see
     * its mark (region/reclaim.c). */
    atomic_thread_fence(memory_order_seq_cst);
}

void ivc_link_close(struct ivc_region *region, uint32_t slot)
{
    /* Release: pairs with the acquire in is_still_read(); our reads of the peer's memory are over. */
    ivc_store_release(&ivc_region_own_link(region, slot)->generation, 0);
}
