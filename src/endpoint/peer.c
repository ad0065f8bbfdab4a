/* Peers: from an address to a connection, and its end. */
#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "endpoint/internal.h"

#include <errno.h>
#include <string.h>

/* What an address says.  Copied byte by byte: it travels through other machines. */
struct address {
    uint32_t version;
    uint32_t slot;
    uint32_t generation;
    uint32_t client_id;
    uint64_t epoch;
    char uuid[40];
};
enum { ADDRESS_VERSION = 1 };
_Static_assert(sizeof(struct address) == 64 && sizeof(struct address) <= IVC_ADDRESS_MAX,
               "fits an address");

void ivc_endpoint_address(const struct ivc_endpoint *endpoint, struct ivc_address *ret_address)
{
    const struct ivc_member *self = ivc_region_self(endpoint->region);
    struct address address = {
        .version = ADDRESS_VERSION,
        .slot = self->slot,
        .generation = self->generation,
        .client_id = self->client_id,
    };

    address.epoch = endpoint->info.epoch;
    memcpy(address.uuid, endpoint->info.uuid, sizeof endpoint->info.uuid);
    memset(ret_address, 0, sizeof *ret_address);
    ret_address->len = sizeof address;
    memcpy(ret_address->bytes, &address, sizeof address);
}

static int read_address(const struct ivc_endpoint *endpoint, const struct ivc_address *bytes,
                        struct address *ret_address)
{
    struct address address;

    if (bytes->len != sizeof address)
        return ivc_error_set(IVC_E_UNREACHABLE, "address of %u bytes: made by another version of ivc",
                             bytes->len);
    memcpy(&address, bytes->bytes, sizeof address);
    if (address.version != ADDRESS_VERSION)
        return ivc_error_set(IVC_E_UNREACHABLE, "address of version %u: made by another version of "
                             "ivc", address.version);
    if (strncmp(address.uuid, endpoint->info.uuid, sizeof address.uuid) != 0
        || address.epoch != endpoint->info.epoch)
        return ivc_error_set(IVC_E_UNREACHABLE, "peer %u is in region %.36s, we are in %s",
                             address.client_id, address.uuid, endpoint->info.uuid);
    *ret_address = address;
    return 0;
}

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

int ivc_endpoint_connect(struct ivc_endpoint *endpoint, const struct ivc_address *bytes,
                         struct ivc_peer **ret_peer)
{
    struct address address = { 0 };
    struct ivc_member member;
    int r = read_address(endpoint, bytes, &address);

    if (r != 0)
        return r;
    r = ivc_region_member(endpoint->region, address.slot, &member);
    if (r != 0 || member.generation != address.generation)
        return ivc_error_set(IVC_E_GONE, "peer %u has left the region", address.client_id);
    return ivc_endpoint_connect_member(endpoint, &member, ret_peer);
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
    if (!closed) {
        ivc_region_unwatch(endpoint->region, peer->member.slot);
        forget_sender(endpoint, peer);
        ivc_tx_close(&peer->tx);
    }
    ivc_endpoint_unlock(endpoint);
    if (closed)
        return;
    ivc_poll_forget(endpoint, peer);
    if (!ivc_region_is_evicted(endpoint->region))   /* else the line is no longer ours */
        ivc_link_close(endpoint->region, peer->member.slot);
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
