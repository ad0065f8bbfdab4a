/* Orders, and those who look at them: see order.h.  How they are given: order-give.c. */
#include "region/order.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <string.h>

enum { ABSENT_MS = 5 * IVC_HEARTBEAT_MS };

struct ivc_layout_order *ivc_order_at(const struct ivc_region *region, uint32_t place)
{
    char *base = region->mapping.memory;

    return (struct ivc_layout_order *)(base + IVC_LAYOUT_ORDERS_AT) + place;
}

static void look_at(const struct ivc_layout_order *order, uint64_t now, uint32_t lease_ms,
                    struct ivc_order_sight *sight)
{
    /* Acquire: pairs with the release of ASKED in take_place() (order-give.c); `vm` is valid. */
    uint64_t state = ivc_load_acquire(&order->state);
    uint64_t vm = ivc_load_relaxed(&order->vm);
    uint64_t heartbeat = ivc_load_relaxed(&order->heartbeat);
    bool asked;

    /* It may have been given anew while we read: then `vm` is of the one or the other, and the next
     * look will tell.  Pairs with the fence in take_place(). */
    atomic_thread_fence(memory_order_acquire);
    if (ivc_load_relaxed(&order->state) != state)
        return;
    if (state != sight->state || heartbeat != sight->heartbeat)
        sight->since_ms = now;
    sight->state = state;
    sight->heartbeat = heartbeat;
    asked = (state & UINT32_MAX) == IVC_ORDER_ASKED && now - sight->since_ms < lease_ms;
    ivc_store_relaxed(&sight->asks, asked ? vm : 0);
}

/* When we stood still ourselves, the silence of others in that time says nothing about them. */
static void forgive_own_absence(struct ivc_order_watch *watch, uint64_t now)
{
    if (now - watch->looked_ms > ABSENT_MS)
        for (uint32_t i = 0; i < IVC_LAYOUT_ORDERS; i++)
            watch->sights[i].since_ms = now;
}

static void look(const struct ivc_region *region, struct ivc_order_watch *watch)
{
    uint64_t now = ivc_now_ms();

    forgive_own_absence(watch, now);
    watch->looked_ms = now;
    for (uint32_t i = 0; i < IVC_LAYOUT_ORDERS; i++)
        look_at(ivc_order_at(region, i), now, region->lease_ms, &watch->sights[i]);
}

void ivc_region_orders_look(struct ivc_region *region)
{
    if (region->retired)
        return;
    look(region, &region->orders);
}

static bool asks(const struct ivc_order_watch *watch, uint64_t vm)
{
    for (uint32_t i = 0; i < IVC_LAYOUT_ORDERS; i++)
        if (vm != 0 && ivc_load_relaxed(&watch->sights[i].asks) == vm)
            return true;
    return false;
}

bool ivc_region_is_ordered_away(const struct ivc_region *region, uint64_t vm)
{
    return asks(&region->orders, vm);
}

bool ivc_region_has_orders(const struct ivc_region *region)
{
    for (uint32_t i = 0; i < IVC_LAYOUT_ORDERS; i++)
        if (ivc_load_relaxed(&region->orders.sights[i].asks) != 0)
            return true;
    return false;
}

/* What was seen in another region, or before it was made anew, says nothing about this one. */
static void watch_this(const struct ivc_region *region, struct ivc_order_watch *watch)
{
    const struct ivc_layout_header *header = region->mapping.memory;
    struct ivc_order_watch fresh = {
        .uuid = { ivc_load_relaxed(&header->uuid[0]), ivc_load_relaxed(&header->uuid[1]) },
        .epoch = ivc_load_relaxed(&header->epoch),
    };

    if (memcmp(fresh.uuid, watch->uuid, sizeof fresh.uuid) != 0 || fresh.epoch != watch->epoch)
        *watch = fresh;
}

int ivc_region_open_unordered(const char *name, struct ivc_order_watch *watch,
                              struct ivc_region **ret_region)
{
    struct ivc_region *region;
    int r = ivc_region_open(name, &region);

    if (r != 0)
        return r;
    watch_this(region, watch);
    look(region, watch);
    if (asks(watch, ivc_region_own_vm())) {
        r = ivc_error_set(IVC_E_NOREGION, "region %s: its host has asked this guest to leave it",
                          region->name);
        ivc_region_free(region);
        return r;
    }
    region->orders = *watch;
    *ret_region = region;
    return 0;
}
