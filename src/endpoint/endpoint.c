/* Endpoint: opening and closing; see endpoint.h. */
#include "endpoint/endpoint.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/address.h"
#include "endpoint/remote.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum {
    RING_SIZE_DEFAULT = 16 * 1024,      /* 127 slots of 128 bytes */
    RING_SIZE_ROOMY = 256 * 1024,       /* what is sent in a stream is ahead of its receiver by that much */
    RING_SIZE_MIN = 2048,
    RING_SIZE_MAX = 1 << 28,
    CHUNK_SIZE_MIN = 4096,
    CHUNK_SIZE_MAX = 1 << 24,
    LINGER_MS_DEFAULT = 1000,
    LINGER_MS_MAX = 3600000,
};

static int read_tunables(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options,
                         uint64_t *ret_chunk_size)
{
    uint64_t ring_size = 0, segment_size = IVC_SLOT_SIZE_DEFAULT;
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
        r = ivc_rest_init(&endpoint->rest);
    if (r == 0)
        r = ivc_moderation_init(&endpoint->moderation);
    if (r == 0)
        r = ivc_env_number("IVC_LINGER_MS", "milliseconds", 0, LINGER_MS_MAX, &endpoint->linger_ms);
    if (r < 0)
        return r;
    endpoint->ring_size_roomy = ring_size > 0 ? (uint32_t)ring_size : RING_SIZE_ROOMY;
    if (ring_size == 0)
        ring_size = RING_SIZE_DEFAULT;
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
    endpoint->far_by_chunk = options->far_by_chunk > 0 ? options->far_by_chunk : UINT32_MAX;
    r = ivc_tx_shape_check(endpoint->ring_size, endpoint->segment_size, &endpoint->eager_max);
    /* Never more than a packet: what finds no room in a ring travels in a chunk, or by network. */
    endpoint->eager_max = (uint32_t)IVC_MIN((uint64_t)endpoint->eager_max, *ret_chunk_size);
    return r;
}

static int require_region(const struct ivc_endpoint *endpoint)
{
    return ivc_error_set(-ENODEV, "IVC_REQUIRE=memory asks for memory to every peer, and this process has no region: %s",
                         endpoint->no_region);
}

/* The region that there is, without joining it; none is no error for whoever has a network. */
static int find_region(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options)
{
    int r = ivc_region_open(options->region, &endpoint->home.region);

    if (r == 0)
        return 0;
    snprintf(endpoint->no_region, sizeof endpoint->no_region, "%s", ivc_error_text());
    if (!options->network || (r != IVC_E_NOREGION && !ivc_region_is_others(options->region, r)))
        return r;
    if (ivc_path_requires_memory())
        return require_region(endpoint);
    if (r != IVC_E_NOREGION)
        snprintf(endpoint->warning, sizeof endpoint->warning, "%.440s; going on over the network", ivc_error_text());
    return 0;
}

static int move_in(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options)
{
    struct ivc_region *region = endpoint->home.region;
    struct ivc_residence residence;
    int r;

    endpoint->home.region = NULL;
    if (!region)
        return 0;
    r = ivc_residence_open(endpoint, region, &residence);
    if (r == 0)
        ivc_residence_move_in(endpoint, &residence);
    if (r != IVC_E_NOREGION)
        return r;
    snprintf(endpoint->no_region, sizeof endpoint->no_region, "%s", ivc_error_text());
    if (!options->network)
        return r;
    return ivc_path_requires_memory() ? require_region(endpoint) : 0;
}

static void keep_to_region(struct ivc_endpoint *endpoint)
{
    struct ivc_address_fields fields;

    ivc_address_make(endpoint, &fields);
    endpoint->only_region = fields.region;
}

/* The network first: the region's directory tells the others where ours is. */
static int init(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options)
{
    uint64_t chunk_size;
    int r = ivc_path_check_environment();

    if (r == 0)
        r = read_tunables(endpoint, options, &chunk_size);
    if (r < 0)
        return r;
    endpoint->packet_max = (uint32_t)chunk_size + IVC_LINE;     /* a payload of that size, and what precedes it */
    endpoint->id = ivc_random_id();
    ivc_residence_none(endpoint);
    r = find_region(endpoint, options);
    if (r == 0)
        r = ivc_remote_open(endpoint, options);
    endpoint->answers = endpoint->network || endpoint->on_parted;
    if (r == 0)
        ivc_wake_open(&endpoint->wake, endpoint->id, NULL);
    if (r == 0)
        r = move_in(endpoint, options);
    if (r == 0 && options->moves && !options->network)
        keep_to_region(endpoint);
    endpoint->told_number = endpoint->home.number;
    if (r == 0 && endpoint->answers)
        r = ivc_helper_start(endpoint);
    return r;
}

/* For when our guest moves: the region of the new host has the same name. */
static int keep_region_name(struct ivc_endpoint *endpoint, const char *name)
{
    if (!name || !*name)
        return 0;
    endpoint->region_name = strdup(name);
    return endpoint->region_name ? 0 : ivc_error_set(-ENOMEM, "endpoint: out of memory");
}

int ivc_endpoint_open(const struct ivc_endpoint_options *options, struct ivc_endpoint **ret_endpoint)
{
    struct ivc_endpoint *endpoint = calloc(1, sizeof *endpoint);
    int r;

    if (!endpoint)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    endpoint->threads = options->threads;
    endpoint->crowded = options->crowded;
    endpoint->tight = options->tight;
    endpoint->processors = (unsigned)IVC_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    endpoint->magic_id = options->magic_id;
    endpoint->client_id = options->client_id;
    endpoint->on_packet = options->on_packet;
    endpoint->on_gone = options->on_gone;
    endpoint->on_arrival = options->on_arrival;
    endpoint->on_parted = options->on_parted;
    endpoint->on_moved = options->on_moved;
    endpoint->arg = options->arg;
    endpoint->expected_peers = options->expected_peers;
    endpoint->wake.here = endpoint->wake.there = -1;
    atomic_flag_clear(&endpoint->polling);
    pthread_mutex_init(&endpoint->send_lock, NULL);
    ivc_gate_init(&endpoint->gate);
    r = keep_region_name(endpoint, options->region);
    if (r == 0)
        r = init(endpoint, options);
    if (r != 0) {
        ivc_endpoint_free(endpoint);
        return r == IVC_E_NOSPACE ? -ENOSPC : r;
    }
    *ret_endpoint = endpoint;
    return 0;
}

/* Every ring is read; nothing is about to change its path, or waits for the network. */
static bool everything_read(struct ivc_endpoint *endpoint)
{
    struct ivc_residence *home = &endpoint->home;
    bool all = endpoint->n_unsent == 0;

    ivc_endpoint_lock(endpoint);
    for (uint32_t i = 0; all && i < home->n_senders; i++) {
        struct ivc_peer *peer = home->senders[i];
        bool left;

        if (ivc_region_member_check(home->region, peer->member.slot, peer->member.generation,
                                    &left) != 0)
            continue;
        if (ivc_peer_state(peer) == IVC_PEER_SUSPENDING
            || (ivc_tx_refresh(&peer->tx) == 0 && !ivc_tx_idle(&peer->tx)))
            all = false;
    }
    ivc_endpoint_unlock(endpoint);
    return all;
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
    endpoint->on_parted = NULL;
    endpoint->on_moved = NULL;
    while (!everything_read(endpoint) && ivc_now_ms() < deadline) {
        ivc_endpoint_progress(endpoint);
        sched_yield();
    }
}

/* Memory in the region is given back with all our blocks, after the quarantine. */
static void free_peers(struct ivc_endpoint *endpoint)
{
    struct ivc_peer *next;

    for (unsigned i = 0; i < IVC_PEER_BUCKETS; i++)
        for (struct ivc_peer *peer = endpoint->by_id[i]; peer; peer = next) {
            next = peer->next;
            ivc_tx_forget(&peer->tx);
            ivc_backlog_free(&peer->unsent);
            ivc_backlog_free(&peer->unsure);
            ivc_backlog_free(&peer->unread);
            free(ivc_load_relaxed(&peer->traffic));     /* whoever counted has ended */
            free(peer);
        }
}

void ivc_endpoint_free(struct ivc_endpoint *endpoint)
{
    if (!endpoint)
        return;
    ivc_wait_free(endpoint);
    /* Where there is a helper, the region may come and go at this moment. */
    if (endpoint->answers || endpoint->home.region)
        linger(endpoint);
    ivc_helper_stop(endpoint);
    ivc_remote_close(endpoint);
    ivc_residences_free(endpoint);
    ivc_wake_close(&endpoint->wake);
    free_peers(endpoint);
    free(endpoint->region_name);
    ivc_gate_free(&endpoint->gate);
    pthread_mutex_destroy(&endpoint->send_lock);
    free(endpoint);
}

size_t ivc_endpoint_packet_max(const struct ivc_endpoint *endpoint)
{
    return endpoint->packet_max;
}

size_t ivc_endpoint_double_max(const struct ivc_endpoint *endpoint)
{
    return 2 * (size_t)endpoint->packet_max;
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
    return endpoint->home.region;
}
