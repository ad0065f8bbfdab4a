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
}
