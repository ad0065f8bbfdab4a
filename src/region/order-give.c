/*
 * Giving orders: see order.h.
 *
 * A place is taken by compare-and-swap from free, so nothing needs cleaning: a giver that died
 * leaves a void order, whose place the next one takes who finds no free one.
 *
 * Of two who ask the same at once, one is refused.  An order whose heartbeat is still 0 is a
 * *candidate*: its giver has not looked at the others yet.  Whoever becomes a candidate looks after
 * that (there is a full fence between the two), so of two at least one sees the other.  It gives
 * way to an order that beats and to a candidate in a lower place; for one in a higher place it
 * waits until that has beaten (it had looked before we came) or given way.
 */
#include "region/order.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <errno.h>

enum { BEATS = 10, LOOK_MS = 20 };

static uint64_t order_state(uint64_t serial, enum ivc_order_phase phase)
{
    return serial << 32 | phase;
}

/* Fills the place, which was in `before`; it is asked from here on. */
static bool take_place(struct ivc_order *order, uint64_t before, uint64_t vm)
{
    struct ivc_layout_order *place = ivc_order_at(order->region, order->place);
    uint64_t serial = (before >> 32) + 1;

    /* Acquire: pairs with the release in ivc_order_withdraw(): what was there is before ours. */
    if (!ivc_cas(&place->state, before, order_state(serial, IVC_ORDER_WRITING)))
        return false;
    /* Pairs with the acquire fence in look_at() (order.c): who sees our vm sees that state
     * changed. */
    atomic_thread_fence(memory_order_release);
    ivc_store_relaxed(&place->vm, vm);          /* both are published with the state */
    ivc_store_relaxed(&place->heartbeat, 0);
    order->state = order_state(serial, IVC_ORDER_ASKED);
    /* Release: pairs with the acquire in look_at() (order.c).  A swap: if we stood still since the
     * last one, the place may have been taken for void. */
    if (!ivc_cas(&place->state, order_state(serial, IVC_ORDER_WRITING), order->state))
        return false;
    /* Before we look at the others: of two that ask at once, one at least sees the other. */
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

static bool take_free(struct ivc_order *order, uint64_t vm)
{
    for (order->place = 0; order->place < IVC_LAYOUT_ORDERS; order->place++) {
        /* Relaxed: the swap decides. */
        uint64_t state = ivc_load_relaxed(&ivc_order_at(order->region, order->place)->state);

        if ((state & UINT32_MAX) == IVC_ORDER_FREE && take_place(order, state, vm))
            return true;
    }
    return false;
}

/* Its giver has died, as far as its heartbeat over the whole lease tells. */
static bool take_void(struct ivc_order *order, uint64_t vm)
{
    uint64_t now = ivc_now_ms();

    for (order->place = 0; order->place < IVC_LAYOUT_ORDERS; order->place++) {
        const struct ivc_order_sight *sight = &order->region->orders.sights[order->place];

        if (now - sight->since_ms >= order->region->lease_ms
            && take_place(order, sight->state, vm))
            return true;
    }
    return false;
}

static int take_patiently(struct ivc_order *order, uint64_t vm)
{
    uint64_t deadline = ivc_now_ms() + order->region->lease_ms + 5 * IVC_HEARTBEAT_MS;

    do {
        ivc_region_orders_look(order->region);
        if (take_free(order, vm) || take_void(order, vm))
            return 0;
        ivc_sleep_ms(LOOK_MS);
    } while (ivc_now_ms() < deadline);
    return ivc_error_set(-ENOSPC, "region %s: %d guests are asked to leave it at this moment, more "
                         "are not possible; wait for one of them", order->region->name,
                         IVC_LAYOUT_ORDERS);
}

/* What another order for the same guest is to us, the worst last. */
enum rival {
    RIVAL_NONE,
    RIVAL_MAY_LIVE,     /* its heart did not move yet since we look */
    RIVAL_ABOVE,        /* a candidate in a higher place: it gives way, or has looked before us */
    RIVAL_BELOW,        /* a candidate in a lower place: we give way */
    RIVAL_LIVES,
};

/* `seen` is 1 more than the heartbeat at our first look, 0 before that. */
static enum rival rival_at(const struct ivc_order *own, uint32_t place, uint64_t vm, uint64_t *seen)
{
    const struct ivc_layout_order *order = ivc_order_at(own->region, place);
    /* Acquire: pairs with the release of ASKED in take_place(). */
    uint64_t state = ivc_load_acquire(&order->state);
    uint64_t heartbeat = ivc_load_relaxed(&order->heartbeat);

    if (place == own->place || (state & UINT32_MAX) != IVC_ORDER_ASKED
        || ivc_load_relaxed(&order->vm) != vm)
        return RIVAL_NONE;
    if (*seen == 0)
        *seen = heartbeat + 1;
    if (heartbeat + 1 != *seen)
        return RIVAL_LIVES;
    if (heartbeat != 0)
        return RIVAL_MAY_LIVE;
    return place > own->place ? RIVAL_ABOVE : RIVAL_BELOW;
}

static enum rival worst_rival(const struct ivc_order *own, uint64_t vm,
                              uint64_t seen[IVC_LAYOUT_ORDERS], uint32_t *ret_place)
{
    enum rival worst = RIVAL_NONE;

    for (uint32_t place = 0; place < IVC_LAYOUT_ORDERS; place++) {
        enum rival rival = rival_at(own, place, vm, &seen[place]);

        if (rival > worst) {
            worst = rival;
            *ret_place = place;
        }
    }
    return worst;
}

/* RIVAL_NONE: ours is the only one.  Whoever decides in less than no time is waited for as long
 * as it may live; an order that beats must do so within some beats. */
static enum rival compete(const struct ivc_order *own, uint64_t vm, uint32_t *ret_place)
{
    uint64_t seen[IVC_LAYOUT_ORDERS] = { 0 }, start = ivc_now_ms();

    for (;;) {
        enum rival worst = worst_rival(own, vm, seen, ret_place);
        uint64_t waited = ivc_now_ms() - start;

        if (worst == RIVAL_NONE || worst >= RIVAL_BELOW)
            return worst;
        if (waited >= own->region->lease_ms
            || (worst == RIVAL_MAY_LIVE && waited >= BEATS * IVC_HEARTBEAT_MS))
            return RIVAL_NONE;
        ivc_sleep_ms(LOOK_MS);
    }
}

/* For a candidate to which we gave way: until it beats (true), or has given up, or is void. */
static bool wait_for_decision(struct ivc_region *region, uint32_t place)
{
    struct ivc_layout_order *order = ivc_order_at(region, place);
    uint64_t start = ivc_now_ms(), state = ivc_load_relaxed(&order->state);

    while (ivc_now_ms() - start < region->lease_ms) {
        uint64_t heartbeat = ivc_load_relaxed(&order->heartbeat);

        if (ivc_load_acquire(&order->state) != state
            || (state & UINT32_MAX) != IVC_ORDER_ASKED)
            return false;
        if (heartbeat != 0)
            return true;
        ivc_sleep_ms(LOOK_MS);
    }
    /* It died between its order and its look: nobody else would ever take that away. */
    (void)ivc_cas(&order->state, state, order_state(state >> 32, IVC_ORDER_FREE));
    return false;
}

int ivc_order_give(struct ivc_region *region, uint64_t vm, struct ivc_order *ret_order)
{
    struct ivc_order order = { .region = region };
    enum rival rival;
    uint32_t place = 0;
    int r;

    do {
        if (!take_free(&order, vm) && (r = take_patiently(&order, vm)) < 0)
            return r;
        rival = compete(&order, vm, &place);
        if (rival == RIVAL_NONE) {
            *ret_order = order;
            return ivc_order_beat(ret_order);
        }
        ivc_order_withdraw(&order);
    } while (rival == RIVAL_BELOW && !wait_for_decision(region, place));
    return ivc_error_set(-EALREADY, "region %s: guest %016llx is asked to leave it already, by "
                         "another migration or ivc_suspend; wait for that one", region->name,
                         (unsigned long long)vm);
}

int ivc_order_beat(struct ivc_order *order)
{
    struct ivc_layout_order *place = ivc_order_at(order->region, order->place);

    /* Relaxed, both: the count itself is the message. */
    if (ivc_load_relaxed(&place->state) != order->state)
        return ivc_error_set(IVC_E_GONE, "region %s: this process stood still for so long that its "
                             "order was taken for void; ask again", order->region->name);
    ivc_store_relaxed(&place->heartbeat, ivc_load_relaxed(&place->heartbeat) + 1);
    return 0;
}

void ivc_order_withdraw(struct ivc_order *order)
{
    struct ivc_layout_order *place = ivc_order_at(order->region, order->place);

    /* Release: pairs with the acquire in take_place().  A swap: the order may be someone else's. */
    (void)ivc_cas(&place->state, order->state,
                  order_state(order->state >> 32, IVC_ORDER_FREE));
}
