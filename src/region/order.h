/*
 * Orders: the host asks the processes of a guest to let go of a region, because its device will be
 * pulled.  Orders lie in the region's header page (layout.h); guests look at them, nobody is sent
 * anything.
 *
 * An order is valid while its heartbeat moves.  One whose heartbeat stood still for the region's
 * lease, by the looker's own clock, is void: whoever asked died.  On first sight it is valid.  What
 * a scribbling member can do with all this is to make guests leave the region for the network.
 */
#ifndef IVC_REGION_ORDER_H
#define IVC_REGION_ORDER_H

#include "region/region.h"

/* What we last saw of each order of one region, by our own clock. */
struct ivc_order_sight {
    uint64_t state;
    uint64_t heartbeat;
    uint64_t since_ms;      /* state and heartbeat have been as they are since then */
    ivc_atomic_u64 asks;    /* the guest that a valid order asks to leave; 0: none.  One thread looks,
                               others ask what it saw: nothing else goes with this word (relaxed) */
};
struct ivc_order_watch {
    uint64_t uuid[2], epoch;        /* of the region that this was seen in */
    uint64_t looked_ms;             /* 0: never */
    struct ivc_order_sight sights[IVC_LAYOUT_ORDERS];
};

/* Looks at the orders: call it often, several times a second at least. */
void ivc_region_orders_look(struct ivc_region *region);
/* By the last look: a valid order asks this guest to leave. */
bool ivc_region_is_ordered_away(const struct ivc_region *region, uint64_t vm);
/* ... or some guest. */
bool ivc_region_has_orders(const struct ivc_region *region);

/*
 * For a process without a region that waits for one: as ivc_region_open(), but IVC_E_NOREGION, and
 * nothing is kept, while the region has a valid order for our own guest.  `watch` is zero at first
 * and the same for all calls: it remembers how long an order's heartbeat has stood still.
 */
int ivc_region_open_unordered(const char *name, struct ivc_order_watch *watch,
                              struct ivc_region **ret_region);

/* An order that was given; for its giver only, who has the region open and need not be a member. */
struct ivc_order {
    struct ivc_region *region;
    uint32_t place;
    uint64_t state;
};

/*
 * Asks the processes of guest `vm` to leave; from now on the giver beats, ten times a second.
 * -EALREADY: somebody else asks the same; -ENOSPC: all places are taken by others who live.  Takes
 * up to a second when the giver of another order for that guest has died, and up to the lease when
 * all places are taken.
 */
int ivc_order_give(struct ivc_region *region, uint64_t vm, struct ivc_order *ret_order);
/* IVC_E_GONE: we stood still for so long that the order was taken for void. */
int ivc_order_beat(struct ivc_order *order);
void ivc_order_withdraw(struct ivc_order *order);

#endif
