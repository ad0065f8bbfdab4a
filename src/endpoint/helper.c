/*
 * The helper: a thread that answers the host while the application computes.
 *
 * It looks every 20 ms whether the host asks our guest to let go of the region, and whether a peer has
 * stopped; every millisecond while a pair is being suspended; and now and then whether a region has
 * come, or a peer into ours.  All changes of path are made here, with the gate closed, so that no call
 * of the application is under way.  It never calls a handler: the application's thread is not here.
 *
 * Who acts on what.  Only a member whose own guest is asked acts on an order, and it then leaves, even
 * if the order is taken back meanwhile: its attachments are used up.  All others act on the line of a
 * peer that says it has stopped.
 */
#include "endpoint/remote.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "region/order.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    TICK_MS = 20,
    TICK_BUSY_MS = 1,
    LOOK_ROUND_MS = 100,        /* for regions and peers that came */
    WAYS_MS = 3000,             /* a part of what a host waits; opening a provider takes 2 s in an emulated guest */
};

struct ivc_helper {
    struct ivc_endpoint *endpoint;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;                  /* under lock */

    /* The thread's own. */
    bool leaving;               /* our guest was asked to leave this region */
    bool busy;                  /* something is under way: look again soon */
    bool stays;                 /* though our guest was asked to leave: there is no network */
    uint64_t leave_by;          /* since it was asked ways to the peers are sought, until then at most; 0: it was not */
    uint64_t look_round_at;
    struct ivc_order_watch orders;  /* of the region that we may not join yet */
    uint64_t lent_lost;         /* ivc_region_lent_lost(), when we looked last */
    int refused;                /* why the region that is there was not joined, last time */
};

void ivc_endpoint_stop(struct ivc_endpoint *endpoint)
{
    if (!endpoint->threads) {
        ivc_gate_close(&endpoint->gate);
        return;
    }
    pthread_mutex_lock(&endpoint->gate.lock);
    ivc_poll_stop(endpoint);
    pthread_mutex_lock(&endpoint->send_lock);
}

void ivc_endpoint_go_on(struct ivc_endpoint *endpoint)
{
    if (!endpoint->threads) {
        ivc_gate_open(&endpoint->gate);
        return;
    }
    pthread_mutex_unlock(&endpoint->send_lock);
    ivc_poll_go_on(endpoint);
    pthread_mutex_unlock(&endpoint->gate.lock);
}

/* ---- leaving */

/* What has to be done about the peer that is attached there.  The gate may be open: what is found out
 * then about one that is just being detached leads to one look too many. */
static bool is_to_suspend(struct ivc_helper *helper, const struct ivc_peer *peer, uint32_t slot)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    struct ivc_region *region = endpoint->home.region;
    uint32_t generation = ivc_load_relaxed(&endpoint->home.generations[slot]);
    uint64_t head;

    if (!ivc_peer_uses_memory(peer))
        return false;
    return helper->leaving || ivc_link_look(region, slot, &head) == IVC_LINK_SUSPENDED
           || ivc_region_member_fate(region, slot, generation) == IVC_MEMBER_MOVED;
}

/* Whether there is something to do, found out beside the application. */
static bool is_needed(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;

    if (helper->leaving)
        return true;
    for (uint32_t slot = 0; slot < ivc_region_capacity(endpoint->home.region); slot++) {
        struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (peer && (ivc_peer_state(peer) == IVC_PEER_SUSPENDING || is_to_suspend(helper, peer, slot)))
            return true;
    }
    return false;
}

/* Stops where that is due, ends what both have stopped.  True when pairs are still under way. */
static bool suspend_pairs(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    bool under_way = false;

    for (uint32_t slot = 0; slot < ivc_region_capacity(endpoint->home.region); slot++) {
        struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (!peer)
            continue;
        if (is_to_suspend(helper, peer, slot))
            ivc_peer_suspend(endpoint, peer, helper->leaving ? "our guest was asked to leave"
                                                             : "it has stopped");
        if (ivc_peer_state(peer) == IVC_PEER_SUSPENDING)
            ivc_peer_try_close(endpoint, peer);
        under_way |= ivc_endpoint_peer(endpoint, slot) == peer
                     && ivc_peer_state(peer) != IVC_PEER_GONE;
    }
    return under_way;
}

/* One who leaves and whom we never knew here: it waits for our word. */
static bool is_stranger(struct ivc_endpoint *endpoint, uint32_t slot, struct ivc_member *ret_member)
{
    struct ivc_region *region = endpoint->home.region;
    uint64_t head;

    return !ivc_endpoint_peer(endpoint, slot) && ivc_region_member(region, slot, ret_member) == 0
           && ret_member->magic_id == endpoint->magic_id
           && !ivc_link_is_open(region, slot, ret_member->generation)
           && ivc_link_look(region, slot, &head) == IVC_LINK_SUSPENDED;
}

/* Whoever began to leave goes on with it when the order was taken back, so that we look also then. */
static void answer_strangers(struct ivc_endpoint *endpoint)
{
    struct ivc_region *region = endpoint->home.region;
    struct ivc_member member;

    for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++) {
        if (!is_stranger(endpoint, slot, &member))
            continue;
        ivc_endpoint_stop(endpoint);
        if (is_stranger(endpoint, slot, &member))
            (void)ivc_link_refuse(region, slot, member.generation);   /* or the next time */
        ivc_endpoint_go_on(endpoint);
    }
}

static void leave(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;

    if (!ivc_region_is_lost(endpoint->home.region)
        && ivc_region_process_is_reached(endpoint->home.region))
        return;     /* memory that we lent is reached through another endpoint of this process */
    if (ivc_residence_move_out(endpoint) < 0) {
        ivc_trace_event(endpoint, "stays", ivc_error_text());
        return;
    }
    helper->leaving = false;
}

/* The memory is gone, or others took us for dead: what is still to be said is said by network. */
static bool give_up_if_lost(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    bool lost = ivc_region_look_if_lost(endpoint->home.region);

    if (!lost && !ivc_region_is_evicted(endpoint->home.region))
        return false;
    ivc_endpoint_stop(endpoint);
    ivc_lost_region(endpoint, lost ? "the shared memory was taken away"
                                   : "this guest stood still and was taken for dead");
    leave(helper);
    ivc_endpoint_go_on(endpoint);
    helper->leaving = false;
    return true;
}

static int end_for_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    (void)endpoint;
    if (peer->over || ivc_peer_state(peer) == IVC_PEER_GONE)
        return 0;
    peer->over = true;
    peer->over_reason = "memory that the application had of ivc_alloc() was taken away without asking, and "
                        "what it had written there is lost";
    peer->over_tells = peer->over_reason;
    return 0;
}

/* What was sent can be saved, what the application had written to memory that was lent to it not: such a
 * process must not go on as if nothing had happened. */
static void look_at_lent(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    uint64_t lost = ivc_region_lent_lost();

    if (lost == helper->lent_lost)
        return;
    helper->lent_lost = lost;
    ivc_endpoint_stop(endpoint);
    (void)ivc_peers_each(endpoint, end_for_lent);
    ivc_endpoint_leave_to_progress(endpoint);
    ivc_endpoint_go_on(endpoint);
}

/* To those who have sent to us: one that fails now is of no consequence for them (on_down() in remote.c). */
static void seek_ways(struct ivc_endpoint *endpoint)
{
    ivc_endpoint_stop(endpoint);
    for (uint32_t slot = 0; slot < ivc_region_capacity(endpoint->home.region); slot++) {
        struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (peer && ivc_peer_uses_memory(peer) && peer->rx_open && ivc_remote_open_route(endpoint, peer) == 0)
            ivc_route_seek(endpoint->network, peer->route);
    }
    ivc_endpoint_go_on(endpoint);
}

/* A provider takes long to open, on both sides of the first route: until then memory carries what is sent. */
static bool ways_are_known(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    uint64_t now = ivc_now_ms();

    if (!endpoint->network)
        return true;
    if (helper->leave_by == 0) {
        helper->leave_by = now + WAYS_MS;
        seek_ways(endpoint);
    }
    return !ivc_network_is_seeking(endpoint->network) || now >= helper->leave_by;
}

/* Where there is to be a network, it is there before memory is given up: who cannot load it stays. */
static bool may_leave(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    int r = endpoint->network ? ivc_network_prepare(endpoint->network) : 0;

    if (r < 0 && !helper->stays)
        ivc_trace_event(endpoint, "stays", ivc_error_text());
    helper->stays = r < 0;
    return r == 0 && ways_are_known(helper);
}

/* Who is asked seeks the way to us, and waits until our provider is loaded as well: that begins now, on both sides. */
static void prepare_for_leaver(struct ivc_endpoint *endpoint)
{
    const struct ivc_region *region = endpoint->home.region;

    for (uint32_t slot = 0; endpoint->network && slot < ivc_region_capacity(region); slot++) {
        const struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (peer && ivc_region_is_ordered_away(region, peer->member.vm)) {
            (void)ivc_network_prepare(endpoint->network);
            return;
        }
    }
}

static void look_at_orders(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    struct ivc_region *region = endpoint->home.region;
    bool asked, under_way;

    if (give_up_if_lost(helper))
        return;
    ivc_region_orders_look(region);
    asked = !helper->leaving && ivc_region_is_ordered_away(region, ivc_region_own_vm());
    if (!asked)
        helper->leave_by = 0;
    else if (may_leave(helper)) {
        helper->leaving = true;
        ivc_trace_event(endpoint, "asked", "our guest is to leave the region");
    }
    helper->busy = is_needed(helper);
    if (helper->busy) {
        ivc_endpoint_stop(endpoint);
        under_way = suspend_pairs(helper);
        if (helper->leaving && !under_way)
            leave(helper);
        ivc_endpoint_go_on(endpoint);
    }
    if (endpoint->home.region && ivc_region_has_orders(region)) {
        answer_strangers(endpoint);
        prepare_for_leaver(endpoint);
    }
}

/* ---- arriving */

/* A peer that we know by the network is a member of our region. */
static struct ivc_peer *is_new_neighbour(struct ivc_endpoint *endpoint, uint32_t slot,
                                         struct ivc_member *ret_member)
{
    struct ivc_peer *peer;

    if (ivc_endpoint_peer(endpoint, slot)
        || ivc_region_member(endpoint->home.region, slot, ret_member) != 0
        || ret_member->magic_id != endpoint->magic_id)
        return NULL;
    peer = ivc_peer_find(endpoint, ret_member->endpoint_id);
    return peer && !peer->over && ivc_peer_state(peer) == IVC_PEER_CLOSED ? peer : NULL;
}

static void look_for_neighbours(struct ivc_endpoint *endpoint)
{
    for (uint32_t slot = 0; slot < ivc_region_capacity(endpoint->home.region); slot++) {
        struct ivc_member member;
        struct ivc_peer *peer;

        if (!is_new_neighbour(endpoint, slot, &member))
            continue;
        ivc_endpoint_stop(endpoint);
        peer = is_new_neighbour(endpoint, slot, &member);
        if (peer)
            (void)ivc_peer_attach(endpoint, peer, &member);
        ivc_endpoint_go_on(endpoint);
    }
}

static void look_for_region(struct ivc_helper *helper)
{
    struct ivc_endpoint *endpoint = helper->endpoint;
    struct ivc_residence residence;
    struct ivc_region *region;
    int r = ivc_region_open_unordered(endpoint->region_name, &helper->orders, &region);

    if (r == 0)
        r = ivc_residence_open(endpoint, region, &residence);
    /* It was pulled, and the order taken back, after we had mapped it and before we looked for orders:
     * what we have joined is the place that we were to leave. */
    if (r == 0 && (!ivc_region_is_named(region) || ivc_region_look_if_lost(region))) {
        ivc_residence_give_back(&residence);
        r = IVC_E_NOREGION;
    }
    if (r != 0 && r != helper->refused && r != IVC_E_NOREGION)
        ivc_trace_event(endpoint, "refused", ivc_error_text());
    helper->refused = r;
    if (r != 0)
        return;
    ivc_endpoint_stop(endpoint);
    ivc_residence_move_in(endpoint, &residence);
    ivc_endpoint_go_on(endpoint);
}

static bool is_loss_pending(struct ivc_endpoint *endpoint)
{
    bool pending;

    ivc_endpoint_stop(endpoint);
    pending = ivc_lost_is_pending(endpoint);
    ivc_endpoint_go_on(endpoint);
    return pending;
}

static void look_round(struct ivc_helper *helper)
{
    uint64_t now = ivc_now_ms();

    if (helper->leaving || now < helper->look_round_at)
        return;
    helper->look_round_at = now + LOOK_ROUND_MS;
    if (!helper->endpoint->home.region && !is_loss_pending(helper->endpoint))
        look_for_region(helper);
    if (!helper->endpoint->home.region)
        return;
    answer_strangers(helper->endpoint);
    look_for_neighbours(helper->endpoint);
}

/* ---- the thread */

/* Sleeps for a tick; true when the endpoint is being closed. */
static bool wait_for_stop(struct ivc_helper *helper)
{
    return ivc_wait_for_flag(&helper->wake, &helper->lock, &helper->stop,
                             helper->busy ? TICK_BUSY_MS : TICK_MS);
}

static void *help(void *arg)
{
    struct ivc_helper *helper = arg;

    prctl(PR_SET_NAME, "ivc-helper");
    do {
        helper->busy = false;
        if (helper->endpoint->home.region)
            look_at_orders(helper);
        look_at_lent(helper);
        look_round(helper);
    } while (!wait_for_stop(helper));
    return NULL;
}

static int start_thread(struct ivc_helper *helper)
{
    pthread_mutex_init(&helper->lock, NULL);
    ivc_cond_init(&helper->wake);
    return ivc_thread_start(&helper->thread, help, helper);
}

int ivc_helper_start(struct ivc_endpoint *endpoint)
{
    struct ivc_helper *helper = calloc(1, sizeof *helper);
    int r = helper ? 0 : ENOMEM;

    if (helper) {
        helper->endpoint = endpoint;
        helper->lent_lost = ivc_region_lent_lost();
        helper->look_round_at = ivc_now_ms() + LOOK_ROUND_MS;
        r = start_thread(helper);
    }
    if (r != 0) {
        free(helper);
        return ivc_error_set(-r, "a thread that answers the host: %s", strerror(r));
    }
    endpoint->helper = helper;
    return 0;
}

void ivc_helper_stop(struct ivc_endpoint *endpoint)
{
    struct ivc_helper *helper = endpoint->helper;

    if (!helper)
        return;
    ivc_set_flag(&helper->wake, &helper->lock, &helper->stop);
    pthread_join(helper->thread, NULL);
    pthread_mutex_destroy(&helper->lock);
    pthread_cond_destroy(&helper->wake);
    free(helper);
    endpoint->helper = NULL;
}
