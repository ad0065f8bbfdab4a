/* Peers: from an address to a connection, and its end. */
#include "base/error.h"
#include "base/processor.h"
#include "base/util.h"
#include "channel/link.h"
#include "endpoint/address.h"
#include "endpoint/remote.h"
#include "region/order.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static struct ivc_peer *_Atomic *bucket(struct ivc_endpoint *endpoint, uint64_t id)
{
    return &endpoint->by_id[id % IVC_PEER_BUCKETS];
}

struct ivc_peer *ivc_peer_find(struct ivc_endpoint *endpoint, uint64_t id)
{
    /* Acquire: pairs with the release in ivc_peer_publish(); the peer's fields are visible, and those of
     * the peers behind it. */
    struct ivc_peer *peer = ivc_load_acquire(bucket(endpoint, id));

    while (peer && peer->member.endpoint_id != id)
        peer = peer->next;
    return peer;
}

int ivc_peers_each(struct ivc_endpoint *endpoint, int (*fn)(struct ivc_endpoint *, struct ivc_peer *))
{
    int r = 0;

    for (unsigned i = 0; r == 0 && i < IVC_PEER_BUCKETS; i++)
        for (struct ivc_peer *peer = ivc_load_acquire(&endpoint->by_id[i]); peer && r == 0;
             peer = peer->next)
            r = fn(endpoint, peer);
    return r;
}

struct ivc_peer *ivc_peer_new(uint64_t id)
{
    struct ivc_peer *peer = calloc(1, sizeof *peer);

    if (!peer) {
        ivc_error_set(-ENOMEM, "peer: out of memory");
        return NULL;
    }
    peer->member.slot = IVC_SLOT_ANY;
    peer->member.endpoint_id = id;
    ivc_store_relaxed(&peer->state, IVC_PEER_CLOSED);
    return peer;
}

void ivc_peer_publish(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_peer *_Atomic *place = bucket(endpoint, peer->member.endpoint_id);

    /* Relaxed: written under send_lock, which we hold. */
    peer->next = ivc_load_relaxed(place);
    /* Release: pairs with the acquire in ivc_peer_find(). */
    ivc_store_release(place, peer);
    endpoint->n_remotes++;
}

void ivc_peer_set_state(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                        enum ivc_peer_state state, const char *reason)
{
    enum ivc_peer_state from = ivc_peer_state(peer);

    ivc_store_relaxed(&peer->state, state);
    endpoint->n_remotes += state == IVC_PEER_CLOSED;
    endpoint->n_remotes -= from == IVC_PEER_CLOSED;
    ivc_trace_transition(endpoint, peer, from, state, reason);
}

static bool is_spent(const struct ivc_peer *peer, const struct ivc_member *member)
{
    return peer->spent_slot == member->slot && peer->spent_generation == member->generation;
}

/* A region's member that does not take part in suspensions, or never in this one again. */
static bool may_attach(struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                       const struct ivc_member *member)
{
    struct ivc_region *region = endpoint->home.region;
    uint64_t head;

    return !is_spent(peer, member) && !peer->parted && !peer->over
           && ivc_link_look(region, member->slot, &head) != IVC_LINK_SUSPENDED;
}

/* All but the id, which is the same and is looked at without the lock. */
static void become(struct ivc_member *peer, const struct ivc_member *member)
{
    size_t id = offsetof(struct ivc_member, endpoint_id), after = id + sizeof member->endpoint_id;

    memcpy(peer, member, id);
    memcpy((char *)peer + after, (const char *)member + after, sizeof *member - after);
}

int ivc_peer_attach(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                    const struct ivc_member *member)
{
    if (ivc_region_is_ordered_away(endpoint->home.region, member->vm))
        return IVC_E_FULL;
    return ivc_peer_attach_ordered(endpoint, peer, member);
}

int ivc_peer_attach_ordered(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                            const struct ivc_member *member)
{
    struct ivc_region *region = endpoint->home.region;
    bool left;
    int r;

    if (!may_attach(endpoint, peer, member))
        return IVC_E_FULL;
    r = ivc_link_open(region, member->slot, member->generation);
    if (r != 0)
        return r;
    if (ivc_region_member_check(region, member->slot, member->generation, &left) != 0) {
        ivc_link_close(region, member->slot);
        return ivc_error_set(IVC_E_GONE, "peer %u has left the region", member->client_id);
    }
    become(&peer->member, member);
    peer->emptied = peer->asked = false;
    memcpy(&peer->network, member->network, sizeof peer->network);
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CONNECTED, "it is a member of our region");
    ivc_region_watch(region, member->slot, member->generation);
    ivc_store_relaxed(&endpoint->home.generations[member->slot], member->generation);
    /* Release: pairs with the acquire in ivc_endpoint_peer(); the peer and its generation are visible. */
    ivc_store_release(&endpoint->home.peers[member->slot], peer);
    /* It may have sent before we knew it. */
    ivc_region_ring_self(region, member->slot);
    return 0;
}

/* What the slot's former owner had is the business of progress, which has not noticed yet. */
static bool is_slot_taken(struct ivc_endpoint *endpoint, const struct ivc_peer *peer, uint32_t slot)
{
    const struct ivc_peer *there = ivc_endpoint_peer(endpoint, slot);

    return there && there != peer && ivc_peer_state(there) != IVC_PEER_GONE;
}

/* Without a network nothing of a peer outlives the attachment in which it was lost: a process that was
 * taken for dead, or whose memory was, may be a member once more. */
static bool has_come_back(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                          const struct ivc_member *member)
{
    return !endpoint->network && endpoint->answers && !is_spent(peer, member);
}

static void begin_anew(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    peer->over = false;
    peer->over_reason = peer->over_tells = NULL;
    peer->losses = (struct ivc_losses){ 0 };
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, "it is a member again");
}

/* A peer that is known already, found as a member of our region. */
static int make_known(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                      const struct ivc_member *member)
{
    int r;

    if (ivc_peer_state(peer) == IVC_PEER_GONE && !has_come_back(endpoint, peer, member))
        return IVC_E_GONE;
    if (ivc_peer_state(peer) == IVC_PEER_GONE)
        begin_anew(endpoint, peer);
    if (ivc_peer_state(peer) != IVC_PEER_CLOSED)
        return 0;
    r = ivc_peer_attach(endpoint, peer, member);
    if (endpoint->network)
        return IVC_MIN(r, 0);       /* it is on the network, for now */
    if (r == IVC_E_GONE)
        ivc_peer_set_state(endpoint, peer, IVC_PEER_GONE, "it left");
    return r;
}

int ivc_peer_make(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                  struct ivc_peer **ret_peer)
{
    struct ivc_peer *peer = ivc_peer_find(endpoint, member->endpoint_id);
    int r;

    if (is_slot_taken(endpoint, peer, member->slot))
        return IVC_E_FULL;      /* its end is noticed in a moment, by progress */
    if (!peer) {
        struct ivc_peer none = { 0 };

        if (!endpoint->network
            && (!may_attach(endpoint, &none, member)
                || ivc_region_is_ordered_away(endpoint->home.region, member->vm)))
            return IVC_E_FULL;
        peer = ivc_peer_new(member->endpoint_id);
        if (!peer)
            return -ENOMEM;
        peer->member = *member;
        peer->member.slot = IVC_SLOT_ANY;
        peer->told_region = ivc_address_region(&endpoint->home.info);
        memcpy(&peer->network, member->network, sizeof peer->network);
        ivc_peer_publish(endpoint, peer);
    }
    r = make_known(endpoint, peer, member);
    if (r == 0 || r == IVC_E_GONE)
        *ret_peer = peer;
    return r;
}

int ivc_endpoint_connect_member(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                                struct ivc_peer **ret_peer)
{
    struct ivc_peer *peer;
    int r;

    ivc_poll_check_peer(endpoint, member->slot);
    ivc_endpoint_lock(endpoint);
    r = endpoint->home.region ? ivc_peer_make(endpoint, member, &peer)
        : ivc_error_set(IVC_E_GONE, "client %u: we have left the region", member->client_id);
    ivc_endpoint_unlock(endpoint);
    if (r == 0)
        *ret_peer = peer;
    return r;
}

/* The member of our region that the address names, if it is still there. */
static int find_member(struct ivc_endpoint *endpoint, const struct ivc_address_fields *fields,
                       struct ivc_member *ret_member)
{
    return ivc_region_member_at(endpoint->home.region, fields->slot, fields->generation, fields->id,
                                ret_member);
}

int ivc_endpoint_connect(struct ivc_endpoint *endpoint, const struct ivc_address *address,
                         struct ivc_peer **ret_peer)
{
    struct ivc_address_fields fields = { 0 };
    struct ivc_member member;
    struct ivc_peer *peer = NULL;
    bool co_resident;
    int r = ivc_address_read(address, &fields);

    if (r != 0)
        return r;
    if (endpoint->only_region && fields.region != endpoint->only_region)
        return ivc_error_set(IVC_E_UNREACHABLE, "peer %016" PRIx64 " began outside of our region",
                             fields.id);
    ivc_endpoint_lock(endpoint);
    peer = ivc_peer_find(endpoint, fields.id);
    co_resident = !peer && ivc_address_is_co_resident(endpoint, &fields);
    r = ivc_path_check(endpoint, peer, &fields);
    if (r == 0 && co_resident)
        r = find_member(endpoint, &fields, &member);
    /* It may have moved since it told its address. */
    if ((r == 0 && !co_resident) || (r == IVC_E_GONE && endpoint->network && fields.network.provider)) {
        co_resident = false;
        r = ivc_remote_make(endpoint, &fields, &peer);
    }
    ivc_endpoint_unlock(endpoint);
    if (r == 0 && co_resident)
        r = ivc_endpoint_connect_member(endpoint, &member, &peer);
    if (r == 0)
        *ret_peer = peer;
    return r;
}

/*
 * A longer ring makes streams faster, up to 256 KiB, but 1,024 members cannot all have such.  So it is as long as all
 * pairs can have in an eighth of the region.
 */
static uint32_t ring_size(const struct ivc_endpoint *endpoint)
{
    const struct ivc_region *region = endpoint->home.region;
    uint32_t size = endpoint->ring_size_roomy;
    uint64_t n;

    /* There is nothing to choose; or pages for one other member are much scarcer. */
    if (size == endpoint->ring_size || !ivc_region_shares_with_all(region))
        return endpoint->ring_size;
    n = IVC_MAX((uint64_t)endpoint->expected_peers + 1, (uint64_t)ivc_region_count_members(region));
    while (size > endpoint->ring_size && n * (n - 1) * size > ivc_region_size(region) / 8)
        size /= 2;
    return size;
}

/* Memory in one piece there may be for a short ring only. */
static int open_ring(struct ivc_endpoint *endpoint, struct ivc_peer *peer, struct ivc_pool *pool,
                     struct ivc_tx_options *options)
{
    struct ivc_region *region = endpoint->home.region;
    int r;

    if (ivc_region_is_scarce(region))
        return IVC_E_NOSPACE;
    options->ring_size = ring_size(endpoint);
    r = ivc_tx_open(region, pool, options, &peer->tx);
    if (r != IVC_E_NOSPACE || options->ring_size == endpoint->ring_size)
        return r;
    options->ring_size = endpoint->ring_size;
    return ivc_tx_open(region, pool, options, &peer->tx);
}

static int open_last_resort(struct ivc_endpoint *endpoint, struct ivc_peer *peer, struct ivc_pool *pool,
                            struct ivc_tx_options *options)
{
    struct ivc_residence *home = &endpoint->home;
    int r;

    options->ring_size = IVC_RING_SIZE_LAST_RESORT;
    options->slot_size = IVC_SLOT_SIZE_MIN;
    if (home->n_reserve == 0)
        return ivc_tx_open(home->region, pool, options, &peer->tx);
    r = ivc_tx_open_in(home->region, pool, options, &home->reserve[home->n_reserve - 1],
                       &peer->tx);
    home->n_reserve -= r == 0;
    return r;
}

/* As a wide pool, scattering is for small caches of those who do not share a processor.  Where it is not needed for
 * slots in line to be quick (an EPYC of family 26), a few lines are quicker scattered to a receiver far away. */
static enum ivc_scatters scatters(const struct ivc_pool *pool)
{
    if (!pool->is_wide)
        return IVC_SCATTERS_NONE;
    return ivc_processor_is_amd_25() ? IVC_SCATTERS_ALL : IVC_SCATTERS_FAR;
}

int ivc_peer_open_tx(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_residence *home = &endpoint->home;
    struct ivc_tx_options options = {
        .slot = peer->member.slot, .generation = peer->member.generation,
        .slot_size = endpoint->segment_size,
        .after = peer->remote_sent, .is_tight = endpoint->tight, .untimed = endpoint->untimed,
    };
    struct ivc_pool *pool;
    int r;

    if (ivc_peer_state(peer) == IVC_PEER_GONE)
        return ivc_error_set(IVC_E_GONE, "client %u on %s has left or died", peer->member.client_id,
                             peer->member.host);
    pool = ivc_residence_pool(home, options.slot);
    if (!pool)
        return -ENOMEM;
    options.scatters = scatters(pool);
    r = open_ring(endpoint, peer, pool, &options);
    if (r == IVC_E_NOSPACE) {
        bool coming = ivc_region_memory_is_coming(home->region);

        r = open_last_resort(endpoint, peer, pool, &options);
        /* What was coming may have come since: later, then. */
        if (r == IVC_E_NOSPACE && (coming || ivc_region_memory_is_coming(home->region)))
            r = IVC_E_FULL;
    }
    if (r == 0 && (r = ivc_residence_open_pool(endpoint, pool, options.slot)) != 0)
        ivc_tx_close(&peer->tx);
    if (r != 0)
        return r;
    /* Longer rings send no longer packets: from there on a chunk is better. */
    peer->tx.eager_max = IVC_MIN(peer->tx.eager_max, endpoint->eager_max);
    peer->kept_from = UINT64_MAX;
    ivc_peer_set_state(endpoint, peer, IVC_PEER_ACTIVE, "the first packet through memory");
    home->senders[home->n_senders++] = peer;
    return 0;
}

static void forget_sender(struct ivc_endpoint *endpoint, const struct ivc_peer *peer)
{
    struct ivc_residence *home = &endpoint->home;

    for (uint32_t i = 0; i < home->n_senders; i++)
        if (home->senders[i] == peer)
            home->senders[i--] = home->senders[--home->n_senders];
}

void ivc_peer_detach(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    uint32_t slot = peer->member.slot;

    peer->met = true;
    ivc_region_unwatch(endpoint->home.region, slot);
    forget_sender(endpoint, peer);
    ivc_tx_close(&peer->tx);
    ivc_residence_close_pool(&endpoint->home, slot);
    /* Release: pairs with the acquire in ivc_endpoint_peer(). */
    ivc_store_release(&endpoint->home.peers[slot], NULL);
    peer->spent_slot = slot;
    peer->spent_generation = peer->member.generation;
    peer->member.slot = IVC_SLOT_ANY;
}

static void forget_unsent(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    endpoint->n_unsent -= peer->unsent.packets > 0;
    ivc_backlog_free(&peer->unsent);
    ivc_backlog_free(&peer->unsure);
}

void ivc_peer_end(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason)
{
    struct ivc_region *region = endpoint->home.region;
    uint32_t slot;
    bool gone;

    ivc_endpoint_lock(endpoint);
    gone = ivc_peer_state(peer) == IVC_PEER_GONE;
    slot = peer->member.slot;
    if (!gone) {
        ivc_peer_set_state(endpoint, peer, IVC_PEER_GONE, reason ? reason : "it left");
        forget_unsent(endpoint, peer);
        ivc_backlog_free(&peer->unread);
        peer->parted = false;
        ivc_poll_forget(endpoint, peer);
        if (slot != IVC_SLOT_ANY) {
            ivc_peer_detach(endpoint, peer);
            if (!ivc_region_is_evicted(region))     /* else the line is no longer ours */
                ivc_link_close(region, slot);
        }
    }
    ivc_endpoint_unlock(endpoint);
    if (!gone && endpoint->on_gone)
        endpoint->on_gone(endpoint->arg, peer, reason);
}

void ivc_peer_set_arg(struct ivc_peer *peer, void *arg)
{
    peer->arg = arg;
}

void *ivc_peer_arg(const struct ivc_peer *peer)
{
    return peer->arg;
}

void ivc_peer_set_mailbox(struct ivc_peer *peer, void *mailbox)
{
    peer->mailbox = mailbox;
}

void *ivc_peer_mailbox(const struct ivc_peer *peer)
{
    return peer->mailbox;
}

uint64_t ivc_peer_id(const struct ivc_peer *peer)
{
    return peer->member.endpoint_id;
}

bool ivc_peer_is_gone(const struct ivc_peer *peer)
{
    return ivc_peer_state(peer) == IVC_PEER_GONE;
}

enum ivc_path ivc_peer_path(const struct ivc_peer *peer)
{
    return ivc_peer_uses_memory(peer) ? IVC_PATH_MEMORY : IVC_PATH_NETWORK;
}

uint32_t ivc_peer_client_id(const struct ivc_peer *peer)
{
    return peer->member.client_id;
}

const char *ivc_peer_host(const struct ivc_peer *peer)
{
    return peer->member.host;
}

bool ivc_peer_same_kernel(const struct ivc_peer *peer)
{
    return peer->member.same_kernel;
}

const struct ivc_member *ivc_peer_member(const struct ivc_peer *peer)
{
    return &peer->member;
}

void ivc_peer_stats(const struct ivc_peer *peer, struct ivc_peer_stats *ret_stats)
{
    *ret_stats = peer->stats;
    ret_stats->network_sent_bytes += peer->exposed_bytes;
    ret_stats->network_received_bytes += peer->pulled_bytes;
}

void ivc_peer_count_pulled(struct ivc_peer *peer, size_t len)
{
    peer->pulled_bytes += len;
}

void ivc_peer_count_exposed(struct ivc_peer *peer, size_t len)
{
    peer->exposed_bytes += len;
}
