/* Endpoint: opening and closing; see endpoint.h. */
#include "endpoint/endpoint.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/remote.h"

#include <errno.h>
#include <inttypes.h>

enum {
    RING_SIZE_DEFAULT = 24 * 1024,      /* 128 slots of 64 bytes, 16 KiB of arena */
    RING_SIZE_MIN = 2048,
    RING_SIZE_MAX = 1 << 28,
    CHUNK_SIZE_MIN = 4096,
    CHUNK_SIZE_MAX = 1 << 24,
    LINGER_MS_DEFAULT = 1000,
    LINGER_MS_MAX = 3600000,
    RESERVE_MAX = 64,       /* the 256 KiB that the region should have for each process */
};

/*
 * How much of the region the pool may take.  Large messages go fastest when the chunks that are
 * under way are more than the sender's second-level cache holds, so that the receiver reads them
 * from the shared third level instead of fetching each line dirty from the other core; four times
 * that cache does it.  At least 1 MiB; never more than an eighth of the region.
 */
static uint64_t pool_limit(uint64_t region_size)
{
    long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    uint64_t limit = level2 > 0 ? 4 * (uint64_t)level2 : 2 << 20;

    limit = IVC_MIN(IVC_MAX(limit, 1 << 20), 8 << 20);
    return IVC_MIN(limit, region_size / 8);
}

static int read_tunables(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options,
                         uint64_t *ret_chunk_size)
{
    uint64_t ring_size = RING_SIZE_DEFAULT, segment_size = IVC_SLOT_SIZE_MIN;
    int r = 0;

    *ret_chunk_size = IVC_CHUNK_SIZE_DEFAULT;
    if (options->ring_size)
        ring_size = options->ring_size;
    else
        r = ivc_env_size("IVC_RING_SIZE", RING_SIZE_MIN, RING_SIZE_MAX, &ring_size);
    if (r == 0 && options->segment_size)
        segment_size = options->segment_size;
    else if (r == 0)
        r = ivc_env_size("IVC_SEGMENT_SIZE", IVC_SLOT_SIZE_MIN, IVC_SLOT_SIZE_MAX, &segment_size);
    if (r == 0)
        r = ivc_env_size("IVC_CHUNK_SIZE", CHUNK_SIZE_MIN, CHUNK_SIZE_MAX, ret_chunk_size);
    endpoint->linger_ms = LINGER_MS_DEFAULT;
    if (r == 0)
        r = ivc_env_number("IVC_LINGER_MS", "milliseconds", 0, LINGER_MS_MAX, &endpoint->linger_ms);
    if (r < 0)
        return r;
    if (ring_size < RING_SIZE_MIN || ring_size > RING_SIZE_MAX)
        return ivc_error_set(-EINVAL, "ring size %" PRIu64 ": must be from %d to %d bytes", ring_size,
                             RING_SIZE_MIN, RING_SIZE_MAX);
    if (!ivc_is_power_of_two(segment_size) || segment_size < IVC_SLOT_SIZE_MIN
        || segment_size > IVC_SLOT_SIZE_MAX)
        return ivc_error_set(-EINVAL, "segment size %" PRIu64 ": must be a power of two from %d to %d",
                             segment_size, IVC_SLOT_SIZE_MIN, IVC_SLOT_SIZE_MAX);
    *ret_chunk_size = ivc_align_up(*ret_chunk_size, IVC_LAYOUT_PAGE);
    endpoint->ring_size = (uint32_t)ring_size;
    endpoint->segment_size = (uint32_t)segment_size;
    r = ivc_tx_shape_check(endpoint->ring_size, endpoint->segment_size, &endpoint->eager_max);
    /* Never more than a packet: what finds no room in a ring travels in a chunk, or by network. */
    endpoint->eager_max = (uint32_t)IVC_MIN((uint64_t)endpoint->eager_max, *ret_chunk_size);
    return r;
}

static void describe(struct ivc_endpoint *endpoint, const struct ivc_region_info *info)
{
    snprintf(endpoint->description, sizeof endpoint->description, "%s %s, %" PRIu64 " MiB, uuid %s",
             info->mechanism, info->name, info->size >> 20, info->uuid);
    if (info->speed.cached)
        return;
    snprintf(endpoint->warning, sizeof endpoint->warning,
             "region %s: this guest maps it uncached (%.0f ns per load, memory is below %.0f), so "
             "messages will be slow; on AMD hosts attach the file as an NVDIMM or DAX device and "
             "set IVC_REGION to it, or use a driver that maps it write-back",
             info->name, info->speed.read_ns, IVC_MAPPING_SLOW_NS);
}

/*
 * Rings for everybody, when the region is so small that they might not be had later: then it is
 * known now, while all of us can still choose another path.  (A path that one of two takes and the
 * other does not leads nowhere in some MPIs.)  Of a larger job, rings to this many at least.
 */
static int reserve_rings(struct ivc_endpoint *endpoint, uint32_t n)
{
    uint64_t size = ivc_region_size(endpoint->region);
    uint64_t all_pairs = (uint64_t)n * (n + 1) * IVC_RING_SIZE_LAST_RESORT;
    uint64_t by_rule = ((uint64_t)n + 1) * IVC_LAYOUT_SIZE_PER_MEMBER;

    if (n == 0 || (all_pairs < size / 4 && by_rule < size / 2))
        return 0;
    n = IVC_MIN(n, RESERVE_MAX);
    endpoint->reserve = calloc(n, sizeof *endpoint->reserve);
    if (!endpoint->reserve)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    while (endpoint->n_reserve < n) {
        int r = ivc_region_share(endpoint->region, IVC_SLOT_ANY, IVC_RING_SIZE_LAST_RESORT,
                                 &endpoint->reserve[endpoint->n_reserve]);

        if (r == IVC_E_NOSPACE && ivc_region_wait_for_memory(endpoint->region))
            continue;
        if (r != 0)
            return r;
        endpoint->n_reserve++;
    }
    return 0;
}

static int join(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options,
                uint64_t chunk_size)
{
    struct ivc_region_info *info = &endpoint->info;
    int r = ivc_region_join(endpoint->region, options->magic_id, options->client_id);

    if (r != 0)
        return r;
    endpoint->id = ivc_region_self(endpoint->region)->endpoint_id;
    ivc_region_info(endpoint->region, info);
    describe(endpoint, info);
    endpoint->ready_summary = ivc_region_ready_summary(endpoint->region);
    endpoint->peers = calloc(info->capacity, sizeof *endpoint->peers);
    endpoint->receivers = calloc(info->capacity, sizeof *endpoint->receivers);
    endpoint->senders = calloc(info->capacity, sizeof *endpoint->senders);
    if (!endpoint->peers || !endpoint->receivers || !endpoint->senders)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    r = ivc_pool_init(&endpoint->pool, endpoint->region, (uint32_t)chunk_size,
                      pool_limit(info->size));
    if (r < 0)
        return r;
    r = reserve_rings(endpoint, options->expected_peers);
    if (r != 0)
        return r;
    /* The first chunks now: whoever has joined can send messages of any length, be it slowly. */
    do {
        r = ivc_pool_grow(&endpoint->pool);
    } while (r == IVC_E_NOSPACE && ivc_region_wait_for_memory(endpoint->region));
    return r;
}

/* Who has a network can do without a region. */
static int init(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options)
{
    static const ivc_atomic_u64 nobody_rings;
    uint64_t chunk_size;
    int r = read_tunables(endpoint, options, &chunk_size);

    if (r < 0)
        return r;
    endpoint->pool.chunk_size = (uint32_t)chunk_size;   /* the largest packet, on every path */
    endpoint->ready_summary = &nobody_rings;
    r = ivc_region_open(options->region, &endpoint->region);
    if (r == 0)
        r = join(endpoint, options, chunk_size);
    if (r < 0 || (r != 0 && !(r == IVC_E_NOREGION && options->network)))
        return r;
    if (!endpoint->region) {
        endpoint->id = ivc_random_id();
        snprintf(endpoint->description, sizeof endpoint->description, "no region");
    }
    return ivc_remote_open(endpoint, options);
}

int ivc_endpoint_open(const struct ivc_endpoint_options *options, struct ivc_endpoint **ret_endpoint)
{
    struct ivc_endpoint *endpoint = calloc(1, sizeof *endpoint);
    int r;

    if (!endpoint)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    endpoint->threads = options->threads;
    endpoint->magic_id = options->magic_id;
    endpoint->client_id = options->client_id;
    endpoint->on_packet = options->on_packet;
    endpoint->on_gone = options->on_gone;
    endpoint->on_arrival = options->on_arrival;
    endpoint->arg = options->arg;
    atomic_flag_clear(&endpoint->polling);
    pthread_mutex_init(&endpoint->send_lock, NULL);
    r = init(endpoint, options);
    if (r != 0) {
        ivc_endpoint_free(endpoint);
        return r == IVC_E_NOSPACE ? -ENOSPC : r;
    }
    *ret_endpoint = endpoint;
    return 0;
}

static bool everything_read(struct ivc_endpoint *endpoint)
{
    for (uint32_t i = 0; i < endpoint->n_senders; i++) {
        struct ivc_peer *peer = endpoint->senders[i];
        bool left;

        if (ivc_region_member_check(endpoint->region, peer->member.slot, peer->member.generation,
                                    &left) != 0)
            continue;
        if (ivc_tx_refresh(&peer->tx) == 0 && !ivc_tx_idle(&peer->tx))
            return false;
    }
    return true;
}

static void discard_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg, (void)peer, (void)packet;
}

/* Waits for the peers to take what we have sent.  What they send meanwhile is taken and dropped, so
 * that two who leave at once do not wait for each other. */
static void linger(struct ivc_endpoint *endpoint)
{
    uint64_t deadline = ivc_now_ms() + endpoint->linger_ms;

    endpoint->on_packet = discard_packet;
    endpoint->on_gone = NULL;
    endpoint->on_arrival = NULL;
    while (!everything_read(endpoint) && ivc_now_ms() < deadline) {
        ivc_endpoint_progress(endpoint);
        sched_yield();
    }
}

static void free_peer(struct ivc_peer *peer)
{
    /* Memory in the region is given back with all our blocks, after the quarantine. */
    if (peer)
        free(peer->tx.records);
    free(peer);
}

static void free_peers(struct ivc_endpoint *endpoint)
{
    struct ivc_peer *next;

    for (uint32_t slot = 0; slot < endpoint->info.capacity; slot++) {
        free_peer(ivc_endpoint_peer(endpoint, slot));
    }
    for (struct ivc_peer *peer = endpoint->gone; peer; peer = next) {
        next = peer->next_gone;
        free_peer(peer);
    }
}

void ivc_endpoint_free(struct ivc_endpoint *endpoint)
{
    if (!endpoint)
        return;
    ivc_wait_free(endpoint);
    if (endpoint->network || (endpoint->peers && endpoint->receivers && endpoint->senders))
        linger(endpoint);
    ivc_remote_close(endpoint);
    if (endpoint->peers && endpoint->receivers && endpoint->senders)
        free_peers(endpoint);
    if (endpoint->region) {
        if (endpoint->pool.region)
            ivc_pool_forget(&endpoint->pool);
        ivc_region_free(endpoint->region);
    }
    free(endpoint->peers);
    free(endpoint->receivers);
    free(endpoint->senders);
    free(endpoint->reserve);
    pthread_mutex_destroy(&endpoint->send_lock);
    free(endpoint);
}

size_t ivc_endpoint_packet_max(const struct ivc_endpoint *endpoint)
{
    return endpoint->pool.chunk_size;
}

uint64_t ivc_endpoint_linger_ms(const struct ivc_endpoint *endpoint)
{
    return endpoint->linger_ms;
}

size_t ivc_endpoint_eager_max(const struct ivc_endpoint *endpoint)
{
    return endpoint->eager_max;
}

const char *ivc_endpoint_describe(const struct ivc_endpoint *endpoint)
{
    return endpoint->description;
}

const char *ivc_endpoint_warning(const struct ivc_endpoint *endpoint)
{
    return endpoint->warning;
}

struct ivc_region *ivc_endpoint_region(struct ivc_endpoint *endpoint)
{
    return endpoint->region;
}
