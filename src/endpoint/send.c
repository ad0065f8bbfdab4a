/* Sending: a packet goes to the ring of a peer whose path is memory, else to the network. */
#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"
#include "endpoint/remote.h"

#include <errno.h>

static size_t total(const struct iovec *iov, unsigned n_iov)
{
    size_t len = 0;

    for (unsigned i = 0; i < n_iov; i++)
        len += iov[i].iov_len;
    return len;
}

static int pool_get(struct ivc_endpoint *endpoint, uint32_t *ret_chunk)
{
    /* Chunks come back when we look how far their readers are. */
    for (uint32_t i = 0; endpoint->pool.n_free == 0 && i < endpoint->n_senders; i++)
        if (endpoint->senders[i]->tx.chunks_out > 0)
            ivc_tx_refresh(&endpoint->senders[i]->tx);
    return ivc_pool_get(&endpoint->pool, ret_chunk);
}

/* A ring of the last resort has an arena too small for what we promise to send at once. */
static int send_by_chunk(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                         const struct iovec *iov, unsigned n_iov, size_t len)
{
    uint32_t chunk, share;
    uint64_t offset;
    char *memory;
    int r = pool_get(endpoint, &chunk);

    if (r != 0)
        return r;
    memory = ivc_pool_memory(&endpoint->pool, chunk, &share, &offset);
    for (unsigned i = 0; i < n_iov; i++) {
        ivc_copy(memory, iov[i].iov_base, iov[i].iov_len);
        memory += iov[i].iov_len;
    }
    r = ivc_tx_send_chunk(&peer->tx, tag, chunk, len);
    if (r != 0)
        ivc_pool_put(&endpoint->pool, chunk);
    return r;
}

static inline void count(struct ivc_peer *peer, int r, size_t len)
{
    if (__builtin_expect(r == 0, 1)) {
        peer->stats.sent_packets++;
        peer->stats.sent_bytes += len;
    } else if (r == IVC_E_FULL) {
        peer->stats.full++;
    }
}

/* Ends what ivc_endpoint_send() began: unlocks. */
static int send_remote(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                       const struct iovec *iov, unsigned n_iov, size_t len)
{
    int r = ivc_remote_send(endpoint, peer, tag, iov, n_iov, len);

    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                      const struct iovec *iov, unsigned n_iov)
{
    size_t len = total(iov, n_iov);
    int r = 0;

    if (len > endpoint->eager_max)
        return ivc_error_set(-EMSGSIZE, "packet of %zu bytes: at most %u are sent at once", len,
                             endpoint->eager_max);
    ivc_endpoint_lock(endpoint);
    if (__builtin_expect(ivc_peer_state(peer) != IVC_PEER_ACTIVE, 0)) {
        if (peer->route)
            return send_remote(endpoint, peer, tag, iov, n_iov, len);
        r = ivc_peer_open_tx(endpoint, peer);
    }
    if (__builtin_expect(r == 0, 1))
        r = __builtin_expect(len <= ivc_tx_eager_max(&peer->tx), 1)
            ? ivc_tx_send(&peer->tx, tag, iov, n_iov, len)
            : send_by_chunk(endpoint, peer, tag, iov, n_iov, len);
    count(peer, r, len);
    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_buffer_get(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t size,
                            struct ivc_buffer *ret_buffer)
{
    uint32_t share;
    uint64_t offset;
    int r;

    if (size > endpoint->pool.chunk_size)
        return ivc_error_set(-EMSGSIZE, "buffer of %zu bytes: at most %u", size,
                             endpoint->pool.chunk_size);
    if (peer->route)
        return ivc_remote_buffer_get(endpoint, ret_buffer);
    ivc_endpoint_lock(endpoint);
    r = pool_get(endpoint, &ret_buffer->chunk);
    if (r == 0) {
        ret_buffer->network = NULL;
        ret_buffer->data = ivc_pool_memory(&endpoint->pool, ret_buffer->chunk, &share, &offset);
        ret_buffer->size = endpoint->pool.chunk_size;
    }
    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_send_buffer(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct ivc_buffer *buffer, size_t len)
{
    int r = 0;

    ivc_endpoint_lock(endpoint);
    if (buffer->network) {
        r = ivc_remote_send_buffer(endpoint, peer, tag, buffer, len);
        ivc_endpoint_unlock(endpoint);
        return r;
    }
    if (__builtin_expect(ivc_peer_state(peer) != IVC_PEER_ACTIVE, 0))
        r = ivc_peer_open_tx(endpoint, peer);
    if (r == 0)
        r = ivc_tx_send_chunk(&peer->tx, tag, buffer->chunk, len);
    count(peer, r, len);
    ivc_endpoint_unlock(endpoint);
    return r;
}

void ivc_endpoint_buffer_free(struct ivc_endpoint *endpoint, const struct ivc_buffer *buffer)
{
    if (buffer->network) {
        ivc_network_buffer_free(endpoint->network, buffer->network);
        return;
    }
    ivc_endpoint_lock(endpoint);
    ivc_pool_put(&endpoint->pool, buffer->chunk);
    ivc_endpoint_unlock(endpoint);
}

bool ivc_endpoint_can_pull(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer)
{
    return peer->route && ivc_network_can_pull(endpoint->network);
}

int ivc_endpoint_expose(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *memory,
                        size_t len, struct ivc_exposure *ret_exposure)
{
    struct ivc_network_exposure exposure;
    int r;

    (void)peer;
    r = ivc_network_expose(endpoint->network, memory, len, &exposure);
    if (r == 0)
        *ret_exposure = (struct ivc_exposure){ exposure.where, exposure.key, exposure.registration };
    return r;
}

void ivc_endpoint_unexpose(struct ivc_endpoint *endpoint, struct ivc_exposure *exposure)
{
    struct ivc_network_exposure of_network = {
        exposure->where, exposure->key, exposure->registration,
    };

    ivc_network_unexpose(endpoint->network, &of_network);
}

int ivc_endpoint_pull(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                      uint64_t key, const struct iovec *iov, unsigned n_iov,
                      ivc_endpoint_pulled_fn *fn, void *arg)
{
    if (ivc_peer_state(peer) == IVC_PEER_CLOSED)
        return IVC_E_GONE;
    return ivc_network_pull(endpoint->network, peer->route, where, key, iov, n_iov, fn, arg);
}
