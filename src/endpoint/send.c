/* Sending: a packet goes to the ring of a peer whose path is memory, else to the network. */
#include "base/error.h"
#include "base/util.h"
#include "endpoint/remote.h"
#include "endpoint/short.h"

#include <errno.h>

static size_t total(const struct iovec *iov, unsigned n_iov)
{
    size_t len = 0;

    for (unsigned i = 0; i < n_iov; i++)
        len += iov[i].iov_len;
    return len;
}

/* Chunks come back when we look how far their readers are. */
static void fetch_chunks(struct ivc_endpoint *endpoint, struct ivc_pool *pool, uint32_t wanted)
{
    struct ivc_residence *home = &endpoint->home;

    for (uint32_t i = 0; pool->n_free < wanted && i < home->n_senders; i++)
        if (home->senders[i]->tx.chunks_out > 0)
            (void)ivc_tx_need_chunks(&home->senders[i]->tx);
}

/* For `len` bytes. */
static int pool_get(struct ivc_endpoint *endpoint, struct ivc_pool *pool, uint32_t left, size_t len,
                    uint32_t *ret_chunk)
{
    uint32_t n = ivc_pool_chunks_for(pool, len);
    int r;

    fetch_chunks(endpoint, pool, left + n);
    r = ivc_pool_get_leaving(pool, left, len, ret_chunk);
    if (r != IVC_E_FULL || n == 1)
        return r;
    fetch_chunks(endpoint, pool, pool->n_chunks);   /* enough are free, perhaps, but no two that are neighbours */
    return ivc_pool_get_leaving(pool, left, len, ret_chunk);
}

/* How many to leave to others by a packet to this peer.  Who reads nothing any more, since its guest was stopped, must
 * not end up with all chunks: a peer gets another only if what is free, times PART, is no less than what it has.
 * (A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.) */
static uint32_t others_part(uint32_t chunks_out)
{
    enum { PART = 8 };

    return (IVC_MAX(chunks_out, 1) - 1) / PART;
}

/* Though the ring takes it: lines of a chunk have come to us meanwhile; or it is quicker that way. */
static bool goes_by_chunk(const struct ivc_endpoint *endpoint, const struct ivc_tx *tx, size_t len)
{
    enum {
        WIDE_LEAST = 2000,      /* where second-level caches are small */
        FAR_CHUNKS = 28,        /* in a pool; with 24 short packets are as quick through the ring, with 20 quicker */
    };
    uint32_t least = tx->pool->is_wide ? WIDE_LEAST : endpoint->far_by_chunk;

    if (len >= IVC_BY_CHUNK_LEAST)
        return true;
    return ivc_tx_fetches_ahead(tx, len)
        && ((len >= least && tx->pool->chunks_max >= FAR_CHUNKS) || ivc_pool_is_ready(tx->pool, len));
}

/* Long packets, as many as are good for one peer: it is to read some first. */
static bool has_enough(struct ivc_peer *peer, size_t len)
{
    struct ivc_tx *tx = &peer->tx;

    if (len < IVC_FILL_LEAST || tx->chunks_out == 0 || tx->chunks_out < tx->pool->long_max)
        return false;
    (void)ivc_tx_need_chunks(tx);
    return tx->chunks_out >= tx->pool->long_max;
}

/* Before a chunk is filled. */
static void see_crowd(const struct ivc_endpoint *endpoint, struct ivc_tx *tx)
{
    tx->is_crowded = ivc_endpoint_is_crowded(endpoint);
}

/* More than goes through the ring, which one of the last resort is too small for soon; or less, if it is better. */
static int send_by_chunk(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                         const struct iovec *iov, unsigned n_iov, size_t len)
{
    struct ivc_pool *pool = peer->tx.pool;
    bool timed = ivc_tx_times_filling(&peer->tx, len);
    uint64_t start;
    uint32_t chunk;
    int r = has_enough(peer, len) ? IVC_E_FULL : pool_get(endpoint, pool, others_part(peer->tx.chunks_out), len, &chunk);

    if (r != 0)
        return r;
    see_crowd(endpoint, &peer->tx);
    start = timed ? ivc_cycles() : 0;
    r = ivc_tx_send_copy(&peer->tx, tag, chunk, iov, n_iov, len);
    if (r != 0)
        ivc_pool_put(pool, chunk);
    else
        ivc_tx_note_filling(&peer->tx, timed ? ivc_cycles() - start : 0, (uint32_t)len);
    return r;
}

static inline void count(struct ivc_peer *peer, int r, size_t len)
{
    if (__builtin_expect(r == 0, 1))
        ivc_peer_has_sent(peer, len);
    else if (r == IVC_E_FULL)
        peer->stats.full++;
}

/* For a peer that may have no ring of ours: makes one, or says that the network is the path.  Answers as
 * ivc_endpoint_send(). */
static int find_path(struct ivc_endpoint *endpoint, struct ivc_peer *peer, bool *ret_network)
{
    int r;

    *ret_network = false;
    switch (ivc_peer_state(peer)) {
    case IVC_PEER_CONNECTED:
        /* What was left over from an earlier time goes first. */
        r = ivc_remote_push(endpoint, peer);
        return r == 0 ? ivc_peer_open_tx(endpoint, peer) : r;
    case IVC_PEER_CLOSED:
        *ret_network = true;
        return 0;
    case IVC_PEER_SUSPENDING:
        return IVC_E_FULL;
    case IVC_PEER_ACTIVE:
        return 0;
    default:
        return ivc_error_set(IVC_E_GONE, "client %u on %s has left or died",
                             peer->member.client_id, peer->member.host);
    }
}

/* The memory was taken away: nothing is stored there any more.  The helper does what is to be done. */
static __attribute__((noinline)) void stop_sending(struct ivc_endpoint *endpoint,
                                                   struct ivc_peer *peer)
{
    if (endpoint->helper && ivc_peer_state(peer) == IVC_PEER_ACTIVE)
        ivc_peer_set_state(endpoint, peer, IVC_PEER_SUSPENDING, "the shared memory was taken away");
}

/* ... at some moment since the ring's tail was `from`: the packet, which begins at `at`, behind what was skipped, may
 * have arrived or not. */
static __attribute__((noinline))
void keep_unsure(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t from, uint64_t at, uint8_t tag,
                 const struct iovec *iov, unsigned n_iov)
{
    /* When it cannot be kept, it is counted as lost (lost.c). */
    if (endpoint->helper && ivc_backlog_add(&peer->unsure, at, tag, iov, n_iov) == 0)
        peer->kept_from = from;
    stop_sending(endpoint, peer);
}

/* Through the ring, which exists. */
static inline int send_through_memory(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                                      uint8_t tag, const struct iovec *iov, unsigned n_iov,
                                      size_t len)
{
    struct ivc_tx *tx = &peer->tx;
    uint64_t from = tx->tail;
    bool eager = __builtin_expect(len <= tx->eager_max, 1);
    bool by_chunk = true;
    int r = IVC_E_FULL;

    if (!eager || (__builtin_expect(len >= IVC_AHEAD_LEAST, 0) && goes_by_chunk(endpoint, tx, len))
        || __builtin_expect(!ivc_tx_takes(tx, len), 0))
        r = send_by_chunk(endpoint, peer, tag, iov, n_iov, len);
    if (eager && (r == IVC_E_FULL || r == IVC_E_NOSPACE)) {
        r = ivc_tx_send(tx, tag, iov, n_iov, len);
        by_chunk = false;
    }

    /* For the compiler: the header is looked at after the packet was stored.  The processor may look
     * earlier, but a store that has been executed before a page is taken away reaches that page: who
     * takes it away waits until all processors have done with the old translation. */
    atomic_signal_fence(memory_order_seq_cst);
    if (!ivc_region_is_intact(endpoint->home.region) && r == 0)
        keep_unsure(endpoint, peer, from,
                    tx->tail - (by_chunk ? 1 : ivc_slots_for((uint32_t)len, tx->shift, tx->order)), tag, iov, n_iov);
    return r;
}

/* A packet of any length, by whatever path leads there now. */
static __attribute__((noinline)) int send_somehow(struct ivc_endpoint *endpoint,
                                                  struct ivc_peer *peer, uint8_t tag,
                                                  const struct iovec *iov, unsigned n_iov,
                                                  size_t len)
{
    bool network;
    int r = find_path(endpoint, peer, &network);

    if (r == 0 && network)
        return ivc_remote_send(endpoint, peer, tag, iov, n_iov, len);
    if (r == 0)
        r = send_through_memory(endpoint, peer, tag, iov, n_iov, len);
    count(peer, r, len);
    return r;
}

int ivc_endpoint_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                      const struct iovec *iov, unsigned n_iov)
{
    size_t len = total(iov, n_iov);
    int r;

    if (len > ivc_endpoint_double_max(endpoint))
        return ivc_error_set(-EMSGSIZE, "packet of %zu bytes: at most %zu", len, ivc_endpoint_double_max(endpoint));
    ivc_endpoint_lock(endpoint);
    if (__builtin_expect(ivc_peer_state(peer) == IVC_PEER_ACTIVE, 1)) {
        r = send_through_memory(endpoint, peer, tag, iov, n_iov, len);
        count(peer, r, len);
    } else {
        r = send_somehow(endpoint, peer, tag, iov, n_iov, len);
    }
    if (r == 0)
        ivc_endpoint_has_sent(endpoint);
    ivc_endpoint_unlock(endpoint);
    return r;
}

/* Chunks that as many packets to this peer would be given, one after the other, at most `most`. */
static uint32_t chunks_open(const struct ivc_tx *tx, uint32_t most)
{
    const struct ivc_pool *pool = tx->pool;
    uint32_t n = 0;

    while (n < most && tx->chunks_out + n < pool->long_max
           && pool->n_free > n + others_part(tx->chunks_out + n))
        n++;
    return n;
}

/* As ivc_endpoint_room(): whole pieces by chunks, or else one through the ring.  So many of them leave slots for the last,
 * which may be shorter and go through the ring, with those that it skips at the ring's end. */
static size_t room_in_ring(const struct ivc_tx *tx, size_t head_len, size_t piece)
{
    uint64_t free = tx->limit - tx->tail, bytes = 0;
    uint32_t row = ivc_slots_for(tx->eager_max, tx->shift, IVC_RING_IN_LINE);
    uint32_t n = free > 2 * row ? chunks_open(tx, (uint32_t)(free - 2 * row) / 2) : 0;

    if (n > 0)
        return n * piece;
    if (free > 0 && tx->order == IVC_RING_SCATTERED)
        bytes = IVC_SLOT_FIRST_LINE;
    else if (free > 0)
        bytes = (IVC_MIN(free, (uint64_t)(tx->n_slots - tx->at)) << tx->shift) - IVC_SLOT_INLINE_AT;
    bytes = IVC_MIN(bytes, (uint64_t)tx->eager_max);
    return bytes > head_len ? IVC_MIN(bytes - head_len, piece) : 0;
}

size_t ivc_endpoint_room(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t head_len, size_t piece)
{
    size_t room = 0;

    ivc_endpoint_lock(endpoint);
    if (ivc_peer_state(peer) == IVC_PEER_ACTIVE && ivc_region_is_intact(endpoint->home.region)
        && ivc_tx_refresh(&peer->tx) == 0)
        room = room_in_ring(&peer->tx, head_len, piece);
    ivc_endpoint_unlock(endpoint);
    return room;
}

void ivc_endpoint_end_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, const void *head,
                            size_t head_len, const void *bytes, size_t len)
{
    const struct ivc_tx *tx = &peer->tx;
    struct iovec iov[2] = { { (void *)head, head_len }, { (void *)bytes, len } };
    uint64_t at = tx->tail - ivc_slots_for((uint32_t)(head_len + len), tx->shift, tx->order);

    ivc_doorbell_ring(&tx->bell);
    if (!ivc_region_is_intact(endpoint->home.region))
        keep_unsure(endpoint, peer, at, at, tag, iov, len > 0 ? 2 : 1);
    ivc_gate_leave(&endpoint->gate);
}

int ivc_endpoint_send_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, const void *head,
                            size_t head_len, const void *bytes, size_t len)
{
    struct iovec iov[2] = { { (void *)head, head_len }, { (void *)bytes, len } };

    if (ivc_endpoint_try_short(endpoint, peer, tag, head, head_len, bytes, len))
        return 0;
    return ivc_endpoint_send(endpoint, peer, tag, iov, len > 0 ? 2 : 1);
}

/* A buffer out of the chunk that it names. */
static void make_buffer(struct ivc_endpoint *endpoint, struct ivc_pool *pool, struct ivc_buffer *buffer)
{
    uint32_t share;
    uint64_t offset;

    buffer->pool = pool;
    buffer->network = NULL;
    buffer->residence = endpoint->home.number;
    buffer->data = ivc_pool_memory(pool, buffer->chunk, &share, &offset);
    buffer->size = ivc_pool_room(pool, buffer->chunk);
    buffer->since = endpoint->untimed ? 0 : ivc_cycles();
    buffer->took = 0;
    endpoint->home.buffers_out++;
}

static int get_chunk(struct ivc_endpoint *endpoint, const struct ivc_peer *peer, size_t size,
                     struct ivc_buffer *ret_buffer)
{
    struct ivc_pool *pool = ivc_residence_pool(&endpoint->home, peer->member.slot);
    int r = pool ? ivc_residence_open_pool(endpoint, pool, peer->member.slot) : -ENOMEM;

    if (r == 0)
        r = pool_get(endpoint, pool, others_part(peer->tx.chunks_out), size, &ret_buffer->chunk);
    if (r == 0)
        make_buffer(endpoint, pool, ret_buffer);
    return r;
}

int ivc_endpoint_buffer_get(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t size,
                            struct ivc_buffer *ret_buffer)
{
    int r;

    if (size > ivc_endpoint_double_max(endpoint))
        return ivc_error_set(-EMSGSIZE, "buffer of %zu bytes: at most %zu", size, ivc_endpoint_double_max(endpoint));
    ivc_endpoint_lock(endpoint);
    see_crowd(endpoint, &peer->tx);
    ret_buffer->side = ivc_tx_copy_side(&peer->tx, size);   /* without a ring: zeroes, into the cache */
    switch (ivc_peer_state(peer)) {
    case IVC_PEER_CLOSED:
        r = ivc_remote_buffer_get(endpoint, peer, ret_buffer);
        break;
    case IVC_PEER_SUSPENDING:
        r = IVC_E_FULL;
        break;
    case IVC_PEER_GONE:
        r = IVC_E_GONE;
        break;
    default:
        r = has_enough(peer, size) ? IVC_E_FULL : get_chunk(endpoint, peer, size, ret_buffer);
    }
    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_buffer_get_spare(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t size,
                                  struct ivc_buffer *ret_buffer)
{
    struct ivc_pool *pool;
    int r = IVC_E_FULL;

    ivc_endpoint_lock(endpoint);
    if (ivc_peer_state(peer) == IVC_PEER_ACTIVE && size <= endpoint->packet_max
        && endpoint->crowd.yields == 0) {
        pool = peer->tx.pool;
        r = pool_get(endpoint, pool, IVC_POOL_SPARE, size, &ret_buffer->chunk);
    }
    if (r == 0) {
        make_buffer(endpoint, pool, ret_buffer);
        see_crowd(endpoint, &peer->tx);
        ret_buffer->side = ivc_tx_copy_side(&peer->tx, size);
    }
    ivc_endpoint_unlock(endpoint);
    return r;
}

void ivc_endpoint_buffer_filled(struct ivc_buffer *buffer)
{
    if (buffer->since != 0)
        buffer->took = ivc_cycles() - buffer->since;
}

/* The buffer is the endpoint's again. */
static void take_back(struct ivc_endpoint *endpoint, const struct ivc_buffer *buffer)
{
    if (buffer->network) {
        ivc_network_buffer_free(endpoint->network, buffer->network);
    } else if (buffer->residence == endpoint->home.number) {
        endpoint->home.buffers_out--;
        ivc_residence_put_chunk(&endpoint->home, buffer->pool, buffer->chunk);
    } else {
        ivc_residence_put(endpoint, buffer->residence);
    }
}

static int content_is_lost(const struct ivc_peer *peer)
{
    return ivc_error_set(-ESTALE, "a packet to client %u on %s was lost with the shared memory in which "
                         "it was written, and which was taken away without asking",
                         peer->member.client_id, peer->member.host);
}

/* In the region of today, which may be taken away while it is read: so what is sent is what was there
 * before a look that found it intact. */
static int send_copy_of_today(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                              const struct ivc_buffer *buffer, size_t len)
{
    IVC_AUTO_FREE char *copy = malloc(len + 1);
    struct iovec iov = { copy, len };

    if (!copy)
        return IVC_E_FULL;
    memcpy(copy, buffer->data, len);
    if (!ivc_region_is_intact(endpoint->home.region))
        return content_is_lost(peer);
    return send_somehow(endpoint, peer, tag, &iov, 1, len);
}

/* The path is another than when the buffer was taken: its content is copied. */
static int send_copy(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                     const struct ivc_buffer *buffer, size_t len)
{
    struct iovec iov = { buffer->data, len };
    int r;

    if (!buffer->network && buffer->residence == endpoint->home.number)
        r = send_copy_of_today(endpoint, peer, tag, buffer, len);
    else if (!buffer->network && ivc_residence_is_lost(endpoint, buffer->residence))
        r = content_is_lost(peer);
    else
        r = send_somehow(endpoint, peer, tag, &iov, 1, len);
    if (r == 0)
        take_back(endpoint, buffer);
    return r;
}

/* It lies where the peer's ring can refer to it. */
static bool is_of_today(struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                        const struct ivc_buffer *buffer)
{
    return buffer->residence == endpoint->home.number && buffer->pool == peer->tx.pool;
}

static uint64_t filling_time(struct ivc_peer *peer, const struct ivc_buffer *buffer, size_t len)
{
    if (!ivc_tx_times_filling(&peer->tx, len))
        return 0;
    return buffer->took > 0 ? buffer->took : ivc_cycles() - buffer->since;
}

/* The buffer itself, whose content lies in the region of today.  Whether that was intact is to be seen afterwards. */
static int send_chunk(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                      const struct ivc_buffer *buffer, size_t len)
{
    int r;

    ivc_tx_note_filling(&peer->tx, filling_time(peer, buffer, len), (uint32_t)len);
    r = ivc_tx_send_chunk(&peer->tx, tag, buffer->chunk, len);
    atomic_signal_fence(memory_order_seq_cst);      /* as in send_through_memory() */
    endpoint->home.buffers_out -= r == 0;
    count(peer, r, len);
    return r;
}

/* The same for who has nothing but the buffer. */
static int send_only_chunk(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                           const struct ivc_buffer *buffer, size_t len)
{
    int r;

    if (!ivc_region_is_intact(endpoint->home.region)) {
        stop_sending(endpoint, peer);
        return content_is_lost(peer);
    }
    r = send_chunk(endpoint, peer, tag, buffer, len);
    if (!ivc_region_is_intact(endpoint->home.region))
        stop_sending(endpoint, peer);
    return r;
}

int ivc_endpoint_send_buffer(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct ivc_buffer *buffer, size_t len)
{
    bool network = false;
    int r = 0;

    ivc_endpoint_lock(endpoint);
    if (__builtin_expect(ivc_peer_state(peer) != IVC_PEER_ACTIVE, 0))
        r = find_path(endpoint, peer, &network);
    if (r == 0 && (network != (buffer->network != NULL)
                   || (!network && !is_of_today(endpoint, peer, buffer)))) {
        r = send_copy(endpoint, peer, tag, buffer, len);
    } else if (r == 0 && network) {
        r = ivc_remote_send_buffer(endpoint, peer, tag, buffer, len);
    } else if (r == 0) {
        r = send_only_chunk(endpoint, peer, tag, buffer, len);
    } else {
        count(peer, r, len);
    }
    if (r == 0)
        ivc_endpoint_has_sent(endpoint);
    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_send_filled(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct ivc_buffer *buffer, const struct iovec *iov, unsigned n_iov)
{
    struct ivc_tx *tx = &peer->tx;
    size_t len = total(iov, n_iov);
    uint64_t from;
    int r;

    ivc_endpoint_lock(endpoint);
    if (ivc_peer_state(peer) == IVC_PEER_ACTIVE && is_of_today(endpoint, peer, buffer)) {
        from = tx->tail;
        r = send_chunk(endpoint, peer, tag, buffer, len);
        if (!ivc_region_is_intact(endpoint->home.region) && r == 0)
            keep_unsure(endpoint, peer, from, tx->tail - 1, tag, iov, n_iov);
    } else {
        r = send_somehow(endpoint, peer, tag, iov, n_iov, len);
        if (r == 0)
            take_back(endpoint, buffer);
    }
    if (r == 0)
        ivc_endpoint_has_sent(endpoint);
    ivc_endpoint_unlock(endpoint);
    return r;
}

void ivc_endpoint_buffer_free(struct ivc_endpoint *endpoint, const struct ivc_buffer *buffer)
{
    ivc_endpoint_lock(endpoint);
    take_back(endpoint, buffer);
    ivc_endpoint_unlock(endpoint);
}

bool ivc_endpoint_can_pull(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer)
{
    return ivc_peer_state(peer) == IVC_PEER_CLOSED && peer->route
           && ivc_network_can_pull(endpoint->network);
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
    if (ivc_peer_state(peer) == IVC_PEER_GONE || !peer->route)
        return IVC_E_GONE;
    return ivc_network_pull(endpoint->network, peer->route, where, key, iov, n_iov, fn, arg);
}
