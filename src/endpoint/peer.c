/* Peers: from an address to a connection, and its end. */
#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "endpoint/address.h"
#include "endpoint/remote.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* A slot's former owner: its peer stays valid for the adapter until the endpoint is freed. */
static void retire(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    ivc_store_relaxed(&endpoint->peers[peer->member.slot], NULL);
    peer->next_gone = endpoint->gone;
    endpoint->gone = peer;
}

int ivc_peer_make(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                  struct ivc_peer **ret_peer)
{
    struct ivc_peer *peer = ivc_endpoint_peer(endpoint, member->slot);
    bool left;

    if (peer && peer->member.generation == member->generation) {
        *ret_peer = peer;
        return ivc_peer_state(peer) == IVC_PEER_CLOSED ? IVC_E_GONE : 0;
    }
    if (peer && ivc_peer_state(peer) != IVC_PEER_CLOSED)
        return IVC_E_FULL;      /* its end is noticed in a moment, by progress */
    if (peer)
        retire(endpoint, peer);
    peer = calloc(1, sizeof *peer);
    if (!peer)
        return ivc_error_set(-ENOMEM, "peer: out of memory");
    peer->member = *member;
    ivc_store_relaxed(&peer->state, IVC_PEER_CONNECTED);
    ivc_link_open(endpoint->region, member->slot, member->generation);
    if (ivc_region_member_check(endpoint->region, member->slot, member->generation, &left) != 0) {
        ivc_link_close(endpoint->region, member->slot);
        free(peer);
        return ivc_error_set(IVC_E_GONE, "peer %u has left the region", member->client_id);
    }
    ivc_region_watch(endpoint->region, member->slot, member->generation);
    /* Release: pairs with the acquire in ivc_endpoint_peer(). */
    ivc_store_release(&endpoint->peers[member->slot], peer);
    /* It may have sent before we knew it. */
    ivc_region_ring_self(endpoint->region, member->slot);
    *ret_peer = peer;
    return 0;
}

/* The last quarter of the region is for rings of the last resort, so that everybody gets one. */
static bool memory_is_scarce(struct ivc_endpoint *endpoint)
{
    return ivc_region_free_bytes(endpoint->region) < ivc_region_size(endpoint->region) / 4;
}

int ivc_endpoint_connect_member(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                                struct ivc_peer **ret_peer)
{
    struct ivc_peer *peer;
    int r;

    ivc_poll_check_peer(endpoint, member->slot);
    ivc_endpoint_lock(endpoint);
    r = ivc_peer_make(endpoint, member, &peer);
    ivc_endpoint_unlock(endpoint);
    if (r == 0)
        *ret_peer = peer;
    return r;
}

/* The member of our region that the address names, if it is still there. */
static int connect_co_resident(struct ivc_endpoint *endpoint,
                               const struct ivc_address_fields *fields, struct ivc_peer **ret_peer)
{
    struct ivc_member member;

    if (ivc_region_member(endpoint->region, fields->slot, &member) != 0
        || member.generation != fields->generation || member.endpoint_id != fields->id)
        return ivc_error_set(IVC_E_GONE, "peer %016" PRIx64 " has left the region", fields->id);
    return ivc_endpoint_connect_member(endpoint, &member, ret_peer);
}

int ivc_endpoint_connect(struct ivc_endpoint *endpoint, const struct ivc_address *address,
                         struct ivc_peer **ret_peer)
{
    struct ivc_address_fields fields = { 0 };
    struct ivc_peer *peer;
    int r = ivc_address_read(address, &fields);

    if (r != 0)
        return r;
    if (ivc_address_is_co_resident(endpoint, &fields))
        return connect_co_resident(endpoint, &fields, ret_peer);
    ivc_endpoint_lock(endpoint);
    r = ivc_remote_make(endpoint, &fields, &peer);
    ivc_endpoint_unlock(endpoint);
    if (r == 0)
        *ret_peer = peer;
    return r;
}

static int open_last_resort(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    const struct ivc_member *member = &peer->member;
    int r;

    if (endpoint->n_reserve == 0)
        return ivc_tx_open(endpoint->region, &endpoint->pool, member->slot, member->generation,
                           IVC_RING_SIZE_LAST_RESORT, IVC_SLOT_SIZE_MIN, &peer->tx);
    r = ivc_tx_open_in(endpoint->region, &endpoint->pool, member->slot, member->generation,
                       &endpoint->reserve[endpoint->n_reserve - 1], IVC_RING_SIZE_LAST_RESORT,
                       IVC_SLOT_SIZE_MIN, &peer->tx);
    endpoint->n_reserve -= r == 0;
    return r;
}

int ivc_peer_open_tx(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r;

    if (ivc_peer_state(peer) == IVC_PEER_CLOSED)
        return ivc_error_set(IVC_E_GONE, "client %u on %s has left or died", peer->member.client_id,
                             peer->member.host);
    r = memory_is_scarce(endpoint) ? IVC_E_NOSPACE
        : ivc_tx_open(endpoint->region, &endpoint->pool, peer->member.slot,
                      peer->member.generation, endpoint->ring_size, endpoint->segment_size,
                      &peer->tx);
    if (r == IVC_E_NOSPACE)
        r = open_last_resort(endpoint, peer);
    if (r == IVC_E_NOSPACE && ivc_region_memory_is_coming(endpoint->region))
        r = IVC_E_FULL;
    if (r != 0)
        return r;
    ivc_store_relaxed(&peer->state, IVC_PEER_ACTIVE);
    endpoint->senders[endpoint->n_senders++] = peer;
    return 0;
}

static void forget_sender(struct ivc_endpoint *endpoint, const struct ivc_peer *peer)
{
    for (uint32_t i = 0; i < endpoint->n_senders; i++)
        if (endpoint->senders[i] == peer)
            endpoint->senders[i--] = endpoint->senders[--endpoint->n_senders];
}

void ivc_peer_end(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason)
{
    bool closed;

    ivc_endpoint_lock(endpoint);
    closed = ivc_peer_state(peer) == IVC_PEER_CLOSED;
    ivc_store_relaxed(&peer->state, IVC_PEER_CLOSED);
    if (!closed && !peer->route) {
        ivc_region_unwatch(endpoint->region, peer->member.slot);
        forget_sender(endpoint, peer);
        ivc_tx_close(&peer->tx);
    }
    ivc_endpoint_unlock(endpoint);
    if (closed)
        return;
    if (!peer->route) {
        ivc_poll_forget(endpoint, peer);
        if (!ivc_region_is_evicted(endpoint->region))   /* else the line is no longer ours */
            ivc_link_close(endpoint->region, peer->member.slot);
    }
    if (endpoint->on_gone)
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
    return ivc_peer_state(peer) == IVC_PEER_CLOSED;
}

enum ivc_path ivc_peer_path(const struct ivc_peer *peer)
{
    return peer->route ? IVC_PATH_NETWORK : IVC_PATH_MEMORY;
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
}
