/*
 * Receiving.  A turn of progress looks at the few rings that were busy lately (the hot ones) and at
 * one word that says whether any other has rung; so a turn costs the same whether there is one
 * peer or a thousand.  Every so many turns one more ring is looked at in rotation: a packet whose
 * bell was not rung because its sender still believed itself watched is found there.
 */
#include "base/error.h"
#include "base/util.h"
#include "endpoint/remote.h"
#include "endpoint/short.h"

#include <sched.h>

enum {
    LONG_US = 1000,     /* between two messages of ranks that share a processor: seldom */
};

static void cool(struct ivc_endpoint *endpoint, uint32_t i)
{
    struct ivc_peer *peer = endpoint->hot[i];

    ivc_region_set_watched(endpoint->home.region, peer->member.slot, false);
    peer->hot = false;
    endpoint->hot[i] = endpoint->hot[--endpoint->n_hot];
}

static void heat(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    uint32_t coldest = 0;

    /* A ring stays mapped while its pair is being suspended, and yet nothing of it is read. */
    if (peer->hot || !peer->rx_open || ivc_peer_state(peer) == IVC_PEER_SUSPENDING)
        return;
    for (uint32_t i = 1; i < endpoint->n_hot; i++)
        if (endpoint->hot[i]->last_turn < endpoint->hot[coldest]->last_turn)
            coldest = i;
    if (endpoint->n_hot == IVC_HOT_MAX)
        cool(endpoint, coldest);
    peer->hot = true;
    peer->last_turn = endpoint->turn;
    endpoint->hot[endpoint->n_hot++] = peer;
    ivc_region_set_watched(endpoint->home.region, peer->member.slot, true);
}

int ivc_poll_map_rx(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r;

    if (peer->rx_open || !ivc_peer_is_attached(peer))
        return 0;
    r = ivc_rx_open(endpoint->home.region, peer->member.slot, (uint32_t)ivc_endpoint_double_max(endpoint),
                    &peer->rx);
    if (r != 0)
        return IVC_MIN(r, 0);
    peer->rx.give_back_max = ivc_residence_give_back_max(endpoint);
    /* What it sent by network comes before what is in the ring: then we are called again. */
    peer->rx_open = ivc_peer_ring_is_due(peer);
    if (!peer->rx_open)
        ivc_rx_close(&peer->rx);
    return !peer->rx_open;
}

void ivc_poll_open_rx(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    if (peer->rx_open || !ivc_peer_uses_memory(peer))
        return;
    if (ivc_poll_map_rx(endpoint, peer) < 0 && !ivc_poll_region_is_lost(endpoint))
        ivc_peer_end(endpoint, peer, ivc_error_text());
    if (peer->rx_open)
        endpoint->home.receivers[endpoint->home.n_receivers++] = peer;
}

void ivc_poll_welcome_ring(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    ivc_poll_open_rx(endpoint, peer);
    heat(endpoint, peer);
}

void ivc_poll_turn_away(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_residence *home = &endpoint->home;

    for (uint32_t i = 0; i < endpoint->n_hot; i++)
        if (endpoint->hot[i] == peer) {
            cool(endpoint, i);
            break;
        }
    for (uint32_t i = 0; i < endpoint->n_cooled; i++)
        if (endpoint->cooled[i] == peer)
            endpoint->cooled[i--] = endpoint->cooled[--endpoint->n_cooled];
    for (uint32_t i = 0; i < home->n_receivers; i++)
        if (home->receivers[i] == peer) {
            home->receivers[i] = home->receivers[--home->n_receivers];
            break;
        }
}

void ivc_poll_forget(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    ivc_poll_turn_away(endpoint, peer);
    if (peer->rx_open)
        ivc_rx_close(&peer->rx);
    peer->rx_open = false;
}

bool ivc_endpoint_body_is_whole(struct ivc_endpoint *endpoint)
{
    if (endpoint->body != IVC_BODY_PRIVATE)
        endpoint->body = ivc_region_is_intact(endpoint->home.region) ? IVC_BODY_WHOLE
            : IVC_BODY_TORN;
    return endpoint->body != IVC_BODY_TORN;
}

bool ivc_endpoint_body_was_torn(const struct ivc_endpoint *endpoint)
{
    return endpoint->body == IVC_BODY_TORN;
}

/* The packet's body is about to be read: by what, and when. 0: that is not timed, as the clock takes 15 ns. */
static inline uint64_t begin_reading(const struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                                     struct ivc_packet *packet)
{
    if (packet->body_len < IVC_FILL_LEAST || endpoint->untimed)
        return 0;
    packet->side = ivc_rx_copy_side(&peer->rx, packet);
    return ivc_cycles();
}

static inline void end_reading(struct ivc_peer *peer, uint64_t start, uint32_t len)
{
    if (start > 0)
        ivc_rx_note_reading(&peer->rx, ivc_cycles() - start, len);
}

/* A packet that lies partly in shared memory; false: it has not been received, and is still the next one. */
static __attribute__((noinline)) bool deliver_shared(struct ivc_endpoint *endpoint,
                                                     struct ivc_peer *peer,
                                                     struct ivc_packet *packet)
{
    uint64_t start = begin_reading(endpoint, peer, packet);
    enum ivc_body body;

    endpoint->body = IVC_BODY_SHARED;
    endpoint->on_packet(endpoint->arg, peer, packet);
    end_reading(peer, start, packet->body_len);
    body = endpoint->body;
    endpoint->body = IVC_BODY_PRIVATE;      /* what comes otherwise is in memory of ours */
    if (body == IVC_BODY_TORN)
        return false;
    if (body == IVC_BODY_SHARED && !ivc_region_is_intact(endpoint->home.region)) {
        ivc_peer_end(endpoint, peer, "the shared memory was taken away while a packet was read: "
                     "what came of it cannot be relied on, and was lost");
        return false;
    }
    return true;
}

static inline bool deliver(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_packet *packet = &endpoint->packet;

    if (packet->body_len == 0)
        endpoint->on_packet(endpoint->arg, peer, packet);
    else if (!deliver_shared(endpoint, peer, packet))
        return false;
    ivc_peer_has_received(peer, (size_t)packet->head_len + packet->body_len);
    return true;
}

/* What was read is no nonsense of a peer's: there is no memory behind it any more.  The helper, if there
 * is one, is about to see to it. */
bool ivc_poll_region_is_lost(struct ivc_endpoint *endpoint)
{
    return endpoint->helper && ivc_region_look_if_lost(endpoint->home.region);
}

/* Takes up to a budget of packets from the peer's ring. */
static inline int poll_peer(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int n = 0, r = 0;

    while (n < IVC_TURN_BUDGET && !endpoint->end_turn
           && (r = ivc_rx_peek(&peer->rx, endpoint->head, &endpoint->packet)) == 1) {
        if (!ivc_region_is_intact(endpoint->home.region))
            return n;       /* zeroes of a window that was taken away: no packet */
        if (!deliver(endpoint, peer))
            return n + 1;
        ivc_rx_advance(&peer->rx);
        n++;
    }
    if (n > 0) {
        peer->last_turn = endpoint->turn;
        if (!endpoint->threads)     /* with them it is the sender's alone, and always a stream */
            ivc_tx_was_answered(&peer->tx);
    }
    /* Now, not only when the ring is empty: the sender may wait for these very chunks. */
    if (peer->rx.published != peer->rx.head)
        ivc_rx_publish(&peer->rx);
    if (__builtin_expect(r < 0, 0) && !ivc_poll_region_is_lost(endpoint))
        ivc_peer_end(endpoint, peer, ivc_error_text());
    return n;
}

bool ivc_poll_drain(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    uint64_t end = peer->rx_open ? ivc_rx_end(&peer->rx) : 0;   /* it may go on writing, for ever */
    int n = 1;

    while (n > 0 && peer->rx_open && peer->rx.head < end && !endpoint->end_turn)
        n = poll_peer(endpoint, peer);
    return n == 0 || !peer->rx_open || peer->rx.head >= end;
}

/* A process that we did not connect to, or knew by network, has sent to us through memory. */
static struct ivc_peer *welcome(struct ivc_endpoint *endpoint, uint32_t slot)
{
    struct ivc_peer *peer = NULL;
    struct ivc_member member;
    bool known;
    int r;

    if (ivc_region_member(endpoint->home.region, slot, &member) != 0
        || member.magic_id != endpoint->magic_id)
        return NULL;
    known = ivc_peer_find(endpoint, member.endpoint_id) != NULL;
    if (!known && !endpoint->on_arrival)
        return NULL;
    ivc_endpoint_lock(endpoint);
    r = ivc_region_make_link(endpoint->home.region, slot);
    if (r == IVC_E_NOSPACE)
        ivc_region_ring_self(endpoint->home.region, slot);  /* again, until there is room to answer */
    if (r == 0)
        r = ivc_peer_make(endpoint, &member, &peer);
    ivc_endpoint_unlock(endpoint);
    if (r != 0)
        return NULL;
    if (!known)
        endpoint->on_arrival(endpoint->arg, peer);
    return ivc_peer_is_attached(peer) ? peer : NULL;
}

/* Takes what it sent before: it is still there, its memory rests in quarantine. */
static void take_last_packets(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    uint64_t end = 0;

    ivc_poll_open_rx(endpoint, peer);
    if (peer->rx_open)
        end = ivc_rx_end(&peer->rx);    /* it may live, unaware */
    do {
        endpoint->end_turn = false;     /* all of it: there is no later */
    } while (peer->rx_open && peer->rx.head < end && poll_peer(endpoint, peer) > 0);
}

static void end_if_gone(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    enum ivc_member_fate fate;

    if (!ivc_peer_uses_memory(peer))
        return;     /* one that is being suspended is the helper's */
    fate = ivc_region_member_fate(endpoint->home.region, peer->member.slot, peer->member.generation);
    if (fate == IVC_MEMBER_HERE || (fate == IVC_MEMBER_MOVED && endpoint->helper))
        return;     /* and so is one that has moved */
    if (ivc_poll_region_is_lost(endpoint))
        return;
    if (fate == IVC_MEMBER_DEAD) {
        bool suspected;

        ivc_endpoint_lock(endpoint);
        suspected = ivc_lost_suspect(endpoint, peer);
        ivc_endpoint_unlock(endpoint);
        if (suspected)
            return;
    }
    take_last_packets(endpoint, peer);
    ivc_peer_end(endpoint, peer, fate == IVC_MEMBER_DEAD ? "its process died" : NULL);
}

static void on_ready(void *arg, uint32_t slot)
{
    struct ivc_endpoint *endpoint = arg;
    struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

    if (peer)
        end_if_gone(endpoint, peer);    /* the slot may have a new owner */
    if (!peer || ivc_peer_state(peer) == IVC_PEER_GONE)
        peer = welcome(endpoint, slot);
    if (peer)
        ivc_poll_welcome_ring(endpoint, peer);
}

/* One ring in rotation.  Also finds the ring of a peer that rang before we had connected. */
static int look_round(struct ivc_endpoint *endpoint)
{
    struct ivc_peer *peer;
    int n;

    if (endpoint->home.n_receivers == 0)
        return 0;
    endpoint->home.round = (endpoint->home.round + 1) % endpoint->home.n_receivers;
    peer = endpoint->home.receivers[endpoint->home.round];
    if (peer->hot)
        return 0;
    n = poll_peer(endpoint, peer);
    if (n > 0)
        heat(endpoint, peer);
    return n;
}

/* The longest silent hot ring, when it has been silent for long and is not the only one. */
static void cool_one(struct ivc_endpoint *endpoint)
{
    for (uint32_t i = 0; endpoint->n_hot > 1 && i < endpoint->n_hot; i++)
        if (endpoint->turn - endpoint->hot[i]->last_turn > IVC_COOL_TURNS) {
            cool(endpoint, i);
            return;
        }
}

/* Our rings and buffers may be someone else's by now, or are no more. */
static void end_all(struct ivc_endpoint *endpoint, const char *reason)
{
    for (uint32_t slot = 0; slot < ivc_region_capacity(endpoint->home.region); slot++) {
        struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (peer)
            ivc_peer_end(endpoint, peer, reason);
    }
}

static void look_for_the_gone(struct ivc_endpoint *endpoint)
{
    struct ivc_region *region = endpoint->home.region;

    ivc_region_alarm_clear(region);
    if (ivc_region_is_lost(region) || ivc_region_is_evicted(region)) {
        if (!endpoint->helper)
            end_all(endpoint, ivc_region_is_lost(region)
                    ? "the shared memory was taken away, and there is no network"
                    : "this guest stood still for so long that its processes were taken for dead");
        return;     /* the helper goes on by network */
    }
    for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++) {
        struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (peer)
            end_if_gone(endpoint, peer);
    }
}

static int chores(struct ivc_endpoint *endpoint)
{
    if (!endpoint->home.region)
        return 0;
    if (ivc_region_alarm(endpoint->home.region))
        look_for_the_gone(endpoint);
    cool_one(endpoint);
    return look_round(endpoint);
}

static int poll_turn(struct ivc_endpoint *endpoint)
{
    int n = 0;

    endpoint->turn++;
    endpoint->end_turn = false;
    /* Relaxed: the helper wrote it while nobody was in here. */
    if (__builtin_expect(ivc_load_relaxed(&endpoint->news) != 0, 0))
        ivc_suspend_tell(endpoint);
    for (uint32_t i = 0; i < endpoint->n_hot; i++)
        n += poll_peer(endpoint, endpoint->hot[i]);
    /* Relaxed: taken with acquire by ivc_region_take_ready(). */
    if (ivc_load_relaxed(endpoint->ready_summary) != 0)
        ivc_region_take_ready(endpoint->home.region, on_ready, endpoint);
    if (endpoint->network)
        n += ivc_remote_poll(endpoint);
    if (endpoint->turn - endpoint->chores_turn >= IVC_CHORES_EVERY) {
        endpoint->chores_turn = endpoint->turn;
        n += chores(endpoint);
    }
    return n;
}

/* One at a time: other threads, and calls from inside a handler, have nothing to do here. */
static inline __attribute__((always_inline)) bool enter(struct ivc_endpoint *endpoint)
{
    if (__builtin_expect(endpoint->threads, 0))
        /* Acquire: pairs with the release in leave(); what the last poller did is visible. */
        return !atomic_flag_test_and_set_explicit(&endpoint->polling, memory_order_acquire);
    if (endpoint->in_turn)
        return false;
    ivc_gate_enter(&endpoint->gate);
    endpoint->in_turn = true;
    endpoint->quiet = 0;        /* the next turn looks at what is done now */
    return true;
}

static inline __attribute__((always_inline)) void leave(struct ivc_endpoint *endpoint)
{
    if (__builtin_expect(endpoint->threads, 0)) {
        atomic_flag_clear_explicit(&endpoint->polling, memory_order_release);
    } else {
        endpoint->in_turn = false;
        ivc_gate_leave(&endpoint->gate);
    }
}

void ivc_poll_stop(struct ivc_endpoint *endpoint)
{
    struct timespec moment = { 0, 20 * 1000 };

    while (!enter(endpoint))
        nanosleep(&moment, NULL);
}

void ivc_poll_go_on(struct ivc_endpoint *endpoint)
{
    leave(endpoint);
}

void ivc_endpoint_end_turn(struct ivc_endpoint *endpoint)
{
    endpoint->end_turn = true;
}

void ivc_poll_check_peer(struct ivc_endpoint *endpoint, uint32_t slot)
{
    struct ivc_peer *peer;

    if (!enter(endpoint))
        return;
    peer = endpoint->home.region ? ivc_endpoint_peer(endpoint, slot) : NULL;
    if (peer)
        end_if_gone(endpoint, peer);
    leave(endpoint);
}

/* While we wait: the lines of what will be filled next, should it be for one of those who send to us.  False: there
 * are no more of them. */
static bool fetch_ahead(struct ivc_endpoint *endpoint)
{
    struct ivc_pool *last = NULL;       /* there is one for all peers, or one for each */

    for (uint32_t i = 0; i < endpoint->n_hot; i++) {
        struct ivc_tx *tx = &endpoint->hot[i]->tx;

        if (!tx->pool || __builtin_expect(!tx->pool->ahead.due, 1))
            continue;
        /* Nonsense about how far it is, is found again by who needs room. */
        if (ivc_pool_wants_chunks(tx->pool))
            (void)ivc_tx_refresh(tx);
        if (last && last != tx->pool)
            ivc_pool_fetch_some(last);
        last = tx->pool;
    }
    if (last)
        ivc_pool_fetch_some(last);
    return last != NULL;
}

bool ivc_endpoint_gives_way(struct ivc_endpoint *endpoint)
{
    if (endpoint->threads || endpoint->in_turn)
        return true;
    endpoint->crowd.is_left = true;
    return ivc_crowd_has_turn(endpoint->crowd.idle);
}

/* Of those that share our memory: others who wait are not known. */
static unsigned ranks_on_a_processor(struct ivc_endpoint *endpoint)
{
    unsigned ranks = 1;

    if (ivc_gate_try(&endpoint->gate)) {
        if (endpoint->home.region)
            ranks += ivc_region_count_neighbours(endpoint->home.region);
        ivc_gate_leave(&endpoint->gate);
    }
    return (ranks + endpoint->processors - 1) / endpoint->processors;
}

static __attribute__((noinline)) void give_way(struct ivc_endpoint *endpoint)
{
    struct ivc_crowd *crowd = &endpoint->crowd;
    uint64_t took, most = LONG_US * endpoint->rest.cycles_per_us;   /* 0: not known yet */

    if (!crowd->is_left) {
        took = ivc_crowd_give_way(crowd);
        if (most > 0 && took > most)
            ivc_crowd_keep(crowd, took, ranks_on_a_processor(endpoint));
    }
    crowd->is_left = false;
}

/*
 * A turn of somebody who waits, or looks now and then, takes a few nanoseconds, and a program may call MPI_Test after
 * each of its own steps.  So seven turns of eight are quiet: nothing is due in them but a look at the rings that were
 * busy lately, at the bells, and at what the helper has to say.  If there is something, the turn is a whole one.
 */
enum { QUIET_TURNS = IVC_REST_LOOK_EVERY };

/* After a whole turn in which nothing came: how many may be quiet, up to the next at which the clock is looked at. */
static uint32_t quiet_turns(struct ivc_endpoint *endpoint)
{
    const struct ivc_crowd *crowd = &endpoint->crowd;

    if (crowd->yields > 0)
        return 0;       /* who gives way does not wait long enough for lines to come, either */
    if (fetch_ahead(endpoint))
        return 0;
    if (endpoint->network && (endpoint->home.n_receivers == 0 || endpoint->network_busy))
        return 0;
    return QUIET_TURNS - 1 - crowd->idle % QUIET_TURNS;
}

static inline bool is_quiet(struct ivc_endpoint *endpoint)
{
    bool quiet;

    if (!ivc_gate_try(&endpoint->gate))
        return false;
    /* Relaxed, as in poll_turn(). */
    quiet = ivc_load_relaxed(&endpoint->news) == 0 && ivc_load_relaxed(&endpoint->network_woke) == 0
            && ivc_load_relaxed(endpoint->ready_summary) == 0;
    for (uint32_t i = 0; i < endpoint->n_hot; i++)
        quiet &= !ivc_rx_is_ready_soon(&endpoint->hot[i]->rx);
    ivc_gate_leave(&endpoint->gate);
    return quiet;
}

static __attribute__((noinline)) int whole_turn(struct ivc_endpoint *endpoint)
{
    bool threads = endpoint->threads, share;
    int n;

    if (!threads && !endpoint->in_turn && ivc_crowd_is_due(&endpoint->crowd))
        give_way(endpoint);
    if (!enter(endpoint))
        return 0;
    n = poll_turn(endpoint);
    ivc_crowd_turn(&endpoint->crowd, n > 0);
    if (n == 0) {
        ivc_rest_turn(&endpoint->rest, &endpoint->crowd);
        if (!threads)
            endpoint->quiet = quiet_turns(endpoint);
    }
    /* Of several threads only the one in here may look at `crowd`. */
    share = threads && ivc_crowd_is_due(&endpoint->crowd);
    leave(endpoint);
    if (__builtin_expect(share, 0))
        sched_yield();      /* others may be in progress: nothing is noted */
    return n;
}

int ivc_endpoint_progress(struct ivc_endpoint *endpoint)
{
    if (endpoint->quiet > 0 && is_quiet(endpoint)) {
        endpoint->quiet--;
        endpoint->turn++;
        ivc_crowd_turn(&endpoint->crowd, false);
        return 0;
    }
    return whole_turn(endpoint);
}

/* Whether the packet is of that tag, has that word, and then a body of at most `room` bytes. */
static bool is_long(const struct ivc_packet *packet, uint8_t tag, uint32_t word, size_t room)
{
    return packet->tag == tag && packet->head_len == sizeof word && packet->body_len > 0 && packet->body_len <= room
        && memcmp(packet->head, &word, sizeof word) == 0;
}

/* The next packet, to `to`: false when it is none of those, or was torn while it was read. */
static bool take_long(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, uint32_t word, void *to,
                      size_t room)
{
    const struct ivc_region *region = endpoint->home.region;
    struct ivc_packet *packet = &endpoint->packet;
    uint64_t start;

    if (ivc_rx_peek(&peer->rx, endpoint->head, packet) != 1 || !is_long(packet, tag, word, room)
        || !ivc_region_is_intact(region))
        return false;
    start = begin_reading(endpoint, peer, packet);
    ivc_copy(packet->side, to, packet->body, packet->body_len);
    end_reading(peer, start, packet->body_len);
    return ivc_region_is_intact(region);
}

ptrdiff_t ivc_endpoint_take_long(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, uint32_t word,
                                 void *to, size_t room)
{
    ptrdiff_t n = -1;

    if (!ivc_endpoint_may_take(endpoint))
        return -1;
    if (ivc_peer_may_be_taken_from(endpoint, peer) && take_long(endpoint, peer, tag, word, to, room)) {
        n = endpoint->packet.body_len;
        ivc_rx_advance(&peer->rx);
        ivc_endpoint_has_taken(endpoint, peer, sizeof word + (size_t)n);
        /* Else the next one, or a turn, says how far we are. */
        if (!ivc_rx_is_ready(&peer->rx))
            ivc_rx_publish(&peer->rx);
    }
    ivc_gate_leave(&endpoint->gate);
    return n;
}

bool ivc_poll_unwatch_all(struct ivc_endpoint *endpoint)
{
    bool found = false;

    if (!enter(endpoint))
        return true;
    for (uint32_t i = 0; i < endpoint->n_hot; i++)
        found |= ivc_rx_is_ready(&endpoint->hot[i]->rx);
    endpoint->n_cooled = 0;
    while (!found && endpoint->n_hot > 0) {
        endpoint->cooled[endpoint->n_cooled++] = endpoint->hot[endpoint->n_hot - 1];
        cool(endpoint, endpoint->n_hot - 1);
    }
    leave(endpoint);
    return found;
}

bool ivc_poll_any_ready(struct ivc_endpoint *endpoint)
{
    bool found = false;

    if (!enter(endpoint))
        return true;
    for (uint32_t i = 0; i < endpoint->n_cooled; i++) {
        struct ivc_peer *peer = endpoint->cooled[i];

        if (peer->rx_open && ivc_rx_is_ready(&peer->rx)) {
            found = true;
            heat(endpoint, peer);   /* its bell may not have been rung */
        }
    }
    leave(endpoint);
    return found;
}

void ivc_poll_lie_down(struct ivc_endpoint *endpoint, bool tell)
{
    pthread_mutex_lock(&endpoint->gate.lock);   /* as below */
    ivc_store_relaxed(&endpoint->asleep, 1);
    if (endpoint->home.region && tell)
        ivc_region_lie_down(endpoint->home.region);
    else if (endpoint->home.region)
        ivc_region_keep_still(endpoint->home.region);
    atomic_thread_fence(memory_order_seq_cst);  /* see ivc_endpoint_leave_to_progress() */
    pthread_mutex_unlock(&endpoint->gate.lock);
}

void ivc_poll_get_up(struct ivc_endpoint *endpoint)
{
    pthread_mutex_lock(&endpoint->gate.lock);
    /* Relaxed: who sees it late wakes us for nothing. */
    ivc_store_relaxed(&endpoint->asleep, 0);
    if (endpoint->home.region)
        ivc_region_get_up(endpoint->home.region);
    pthread_mutex_unlock(&endpoint->gate.lock);
}

bool ivc_poll_is_down(struct ivc_endpoint *endpoint)
{
    bool down;

    if (!enter(endpoint))
        return false;
    /* Relaxed: our own word, and the watcher's before it says that it is not armed. */
    down = endpoint->n_hot == 0 && ivc_load_relaxed(&endpoint->asleep);
    leave(endpoint);
    return down;
}

bool ivc_poll_is_due(struct ivc_endpoint *endpoint)
{
    bool due;

    /* The helper holds it while our region changes; those who sleep have the time. */
    pthread_mutex_lock(&endpoint->gate.lock);
    /* Relaxed: nothing is read on the strength of it; progress takes with acquire. */
    due = ivc_load_relaxed(endpoint->ready_summary) != 0 || ivc_load_relaxed(&endpoint->news) != 0
          || (endpoint->home.region && ivc_region_alarm(endpoint->home.region));
    pthread_mutex_unlock(&endpoint->gate.lock);
    return due;
}
