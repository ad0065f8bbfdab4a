/*
 * Residence: what an endpoint has in the region that it lives in, and moving house.
 *
 * A new home is made ready while nothing of it is the endpoint's yet, and taken over in one step; the
 * old one is left when no peer is attached any more.  Its memory stays where it was, private from
 * then on, for as long as an adapter holds a buffer of it or the application memory that was lent.
 */
#include "endpoint/remote.h"

#include "base/error.h"
#include "base/processor.h"
#include "base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum {
    RESERVE_MAX = 16,       /* with all else, half of what the region should have for each process */
    LARGE = 2 << 20,        /* a second-level cache */
};

/*
 * How much of the region the pool may take.  Where a second-level cache is small, large messages go fastest when the
 * chunks that are under way are more than the sender's holds, so that the receiver reads them from the shared third
 * level instead of fetching each line dirty from the other core; four times that cache does it, and for ranks that
 * share processors once: what all of them have under way would leave the third level.  Where it is large, that would be
 * slower by a fifth for messages of 2 MiB and more, and half of it is enough (docs/performance.md).  At least 1 MiB;
 * never more than an eighth of the region.
 */
static uint64_t pool_limit(long level2, bool crowded, uint64_t region_size)
{
    uint64_t limit = level2 <= 0 ? LARGE : level2 < LARGE ? (crowded ? 1 : 4) * (uint64_t)level2 : (uint64_t)level2 / 2;

    limit = IVC_MIN(IVC_MAX(limit, 1 << 20), 8 << 20);
    return IVC_MIN(limit, region_size / 8);
}

/* Where that cache is small, the pool is wide.  Except for ranks that share processors: theirs would be more than the
 * third level holds, and who reads a chunk often comes after the one who filled it on the same processor.  And except
 * where each peer has a pool of its own, of pages that the hypervisor counts.
 * What is wide is a stack.  Long packets are read fastest by the string instruction; but lines that it has read right
 * behind who writes them take several times as long when they are written again, and he stays so slow that the reader
 * stays behind him.  In a few chunks that come round again at once that does not happen, and so he gets ahead.  (Not so
 * on AMD's family 25, where the instruction is not used, and all of the pool goes round.)
 * Where that cache is large, a fifth of it holds the long packets that are under way to one peer: then what a sender copies
 * stays in it, too, and a sender who waits asks for the next chunk's lines meanwhile. */
static int init_pool(const struct ivc_endpoint *endpoint, const struct ivc_residence *residence, uint32_t slot,
                     struct ivc_pool *ret_pool)
{
    enum { PART = 5, LEAST = 4 };
    long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    int r = ivc_pool_init(ret_pool, residence->region, slot, endpoint->packet_max,
                          pool_limit(level2, endpoint->crowded, residence->info.size));

    if (r != 0)
        return r;
    if (level2 >= LARGE)
        ret_pool->long_max = IVC_MAX((uint32_t)level2 / PART / endpoint->packet_max, LEAST);
    else
        ret_pool->is_wide = !endpoint->crowded && slot == IVC_SLOT_ANY;
    ret_pool->is_stack = ret_pool->is_wide && !ivc_processor_is_amd_25();
    if (ret_pool->is_wide && !ret_pool->is_stack)
        ret_pool->round = ret_pool->chunks_max;
    return 0;
}

/* For a sender whose pool is a stack, as ours: a part of it that is small beside a second-level cache. */
uint64_t ivc_residence_give_back_max(const struct ivc_endpoint *endpoint)
{
    enum { A_FEW_CHUNKS = 256 << 10 };

    return endpoint->home.pool.is_stack ? A_FEW_CHUNKS : 0;
}

/* Where that cache is small a receiver reads from the third level in any case, and more at a time is no slower. (Where
 * it is large that was not measured.) */
size_t ivc_endpoint_piece_max(const struct ivc_endpoint *endpoint)
{
    return sysconf(_SC_LEVEL2_CACHE_SIZE) < LARGE ? ivc_endpoint_double_max(endpoint) : endpoint->packet_max;
}

/*
 * Link lines and rings for everybody, when the region is so small that they might not be had later: then it is
 * known now, while all of us can still choose another path.  (A path that one of two takes and the
 * other does not leads nowhere in some MPIs.)  Of a larger job, rings to this many at least.
 */
static int make_reserve(struct ivc_residence *residence, uint32_t n)
{
    uint64_t size = ivc_region_size(residence->region);
    uint64_t all_pairs = (uint64_t)n * (n + 1) * IVC_RING_SIZE_LAST_RESORT;
    uint64_t by_rule = ((uint64_t)n + 1) * IVC_LAYOUT_SIZE_PER_MEMBER;
    uint32_t rings = IVC_MIN(n, RESERVE_MAX);
    int r;

    if (n == 0 || !ivc_region_shares_with_all(residence->region) || (all_pairs < size / 4 && by_rule < size / 2))
        return 0;
    residence->reserve = calloc(rings, sizeof *residence->reserve);
    if (!residence->reserve)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    r = ivc_region_reserve_links(residence->region, n);
    while (r == 0 && residence->n_reserve < rings) {
        r = ivc_region_share_patiently(residence->region, IVC_SLOT_ANY, IVC_RING_SIZE_LAST_RESORT,
                                       &residence->reserve[residence->n_reserve]);
        residence->n_reserve += r == 0;
    }
    return r;
}

static int join(struct ivc_endpoint *endpoint, struct ivc_region *region)
{
    struct ivc_network_name name = { 0 };
    struct ivc_identity identity = {
        .magic_id = endpoint->magic_id, .client_id = endpoint->client_id,
        .endpoint_id = endpoint->id, .network = &name, .wake = &endpoint->wake,
    };

    if (endpoint->network)
        ivc_network_name(endpoint->network, &name);
    if (endpoint->answers)
        identity.features = IVC_FEATURE_ORDERS;
    return ivc_region_join(region, &identity);
}

static int make_tables(struct ivc_residence *residence)
{
    uint32_t capacity = residence->info.capacity;

    residence->peers = calloc(capacity, sizeof *residence->peers);
    residence->generations = calloc(capacity, sizeof *residence->generations);
    residence->receivers = calloc(capacity, sizeof *residence->receivers);
    residence->senders = calloc(capacity, sizeof *residence->senders);
    if (!ivc_region_shares_with_all(residence->region)
        && !(residence->pools = calloc(capacity, sizeof *residence->pools)))
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    if (!residence->peers || !residence->generations || !residence->receivers
        || !residence->senders)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    return 0;
}

static int furnish(struct ivc_endpoint *endpoint, struct ivc_residence *residence)
{
    int r = join(endpoint, residence->region);
    bool coming;

    if (r != 0)
        return r;
    ivc_region_info(residence->region, &residence->info);
    r = make_tables(residence);
    if (r == 0 && !residence->pools)
        r = init_pool(endpoint, residence, IVC_SLOT_ANY, &residence->pool);
    if (r == 0)
        r = make_reserve(residence, endpoint->expected_peers);
    if (r != 0 || !endpoint->on_packet || residence->pools)
        return r;
    /* The first chunks now: whoever has joined can send messages of any length, be it slowly. */
    do {
        coming = ivc_region_memory_is_coming(residence->region);
        r = ivc_pool_grow(&residence->pool);
    } while (r == IVC_E_NOSPACE && ivc_region_wait_for_memory(residence->region, coming));
    return r;
}

struct ivc_pool *ivc_residence_pool(struct ivc_residence *residence, uint32_t slot)
{
    struct ivc_pool **place = residence->pools ? &residence->pools[slot] : NULL;

    if (!place)
        return &residence->pool;
    if (!*place && !(*place = calloc(1, sizeof **place)))
        (void)ivc_error_set(-ENOMEM, "pool: out of memory");
    return *place;
}

int ivc_residence_open_pool(struct ivc_endpoint *endpoint, struct ivc_pool *pool, uint32_t slot)
{
    struct ivc_residence *home = &endpoint->home;
    int r;

    if (pool->region)
        return 0;
    r = init_pool(endpoint, home, slot, pool);
    if (r == 0)
        r = ivc_pool_grow(pool);
    if (r != 0 && pool->region)
        ivc_pool_close(pool);
    return r;
}

static void free_pool(struct ivc_pool *pool)
{
    if (pool->region)
        ivc_pool_close(pool);
    free(pool);
}

/* Chunks that the adapter holds are not those of whoever owns the slot next: he cannot read them. */
void ivc_residence_close_pool(struct ivc_residence *residence, uint32_t slot)
{
    struct ivc_pool *pool = residence->pools ? residence->pools[slot] : NULL;

    if (!pool)
        return;
    residence->pools[slot] = NULL;
    if (pool->n_free == pool->n_chunks) {
        free_pool(pool);
    } else {
        pool->next = residence->former;
        residence->former = pool;
    }
}

void ivc_residence_put_chunk(struct ivc_residence *residence, struct ivc_pool *pool, uint32_t chunk)
{
    struct ivc_pool **at = &residence->former;

    ivc_pool_put(pool, chunk);
    while (*at && *at != pool)
        at = &(*at)->next;
    if (*at && pool->n_free == pool->n_chunks) {
        *at = pool->next;
        free_pool(pool);
    }
}

int ivc_residence_open(struct ivc_endpoint *endpoint, struct ivc_region *region,
                       struct ivc_residence *ret_residence)
{
    struct ivc_residence residence = { .region = region };
    int r = furnish(endpoint, &residence);

    if (r != 0) {
        ivc_residence_give_back(&residence);
        return r;
    }
    *ret_residence = residence;
    return 0;
}

static void describe(struct ivc_endpoint *endpoint, const struct ivc_region_info *info)
{
    snprintf(endpoint->description, sizeof endpoint->description, "%s %s, %" PRIu64 " MiB, uuid %s",
             info->mechanism, info->name, info->size >> 20, info->uuid);
    endpoint->warning[0] = '\0';
    if (info->speed.cached)
        return;
    snprintf(endpoint->warning, sizeof endpoint->warning,
             "region %s: this guest maps it uncached (%.0f ns per load, memory is below %.0f), so "
             "messages will be slow; on AMD hosts attach the file as an NVDIMM or DAX device and "
             "set IVC_REGION to it, or use a driver that maps it write-back",
             info->name, info->speed.read_ns, IVC_MAPPING_SLOW_NS);
}

void ivc_residence_move_in(struct ivc_endpoint *endpoint, const struct ivc_residence *residence)
{
    uint32_t number = endpoint->home.number + 1;

    endpoint->home = *residence;
    endpoint->home.number = number;
    endpoint->untimed = ivc_cycles_are_dear();      /* here: it may be another host */
    endpoint->ready_summary = ivc_region_ready_summary(residence->region);
    describe(endpoint, &residence->info);
    ivc_trace_event(endpoint, "arrived", endpoint->description);
    ivc_endpoint_leave_to_progress(endpoint);
}

/* Memory of a home that was left. */
static void free_left(struct ivc_residence *residence)
{
    ivc_region_free(residence->region);
    free(residence);
}

static void forget_pools(struct ivc_pool *pool)
{
    while (pool) {
        struct ivc_pool *next = pool->next;

        ivc_pool_forget(pool);
        free(pool);
        pool = next;
    }
}

static void free_tables(struct ivc_residence *residence)
{
    if (residence->pool.region)
        ivc_pool_forget(&residence->pool);
    for (uint32_t i = 0; residence->pools && i < residence->info.capacity; i++)
        forget_pools(residence->pools[i]);
    forget_pools(residence->former);
    free(residence->pools);
    residence->pools = NULL;
    residence->former = NULL;
    free(residence->peers);
    free(residence->generations);
    free(residence->receivers);
    free(residence->senders);
    free(residence->reserve);
    residence->peers = NULL;
    residence->generations = NULL;
    residence->receivers = residence->senders = NULL;
    residence->reserve = NULL;
}

static bool is_held(const struct ivc_residence *residence)
{
    return residence->buffers_out > 0 || ivc_region_lent_pieces(residence->region) > 0;
}

/* Those that nobody holds anything of any more.  The youngest stays: somebody may be about to look
 * at a word of it (ivc_poll_is_due()). */
static void free_unheld(struct ivc_endpoint *endpoint)
{
    struct ivc_residence **at = endpoint->left ? &endpoint->left->earlier : NULL;

    while (at && *at) {
        struct ivc_residence *residence = *at;

        if (is_held(residence)) {
            at = &residence->earlier;
            continue;
        }
        *at = residence->earlier;
        free_left(residence);
    }
}

static int forget_spent(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    (void)endpoint;
    peer->spent_slot = peer->spent_generation = 0;
    return 0;
}

void ivc_residence_none(struct ivc_endpoint *endpoint)
{
    static const ivc_atomic_u64 nobody_rings;

    endpoint->ready_summary = &nobody_rings;
    snprintf(endpoint->description, sizeof endpoint->description, "no region");
    endpoint->warning[0] = '\0';
}

/* The chunks of one pool more. */
static int add_held(const struct ivc_pool *pool, struct iovec **held, unsigned *n_held)
{
    IVC_AUTO_FREE struct iovec *more = NULL;
    struct iovec *all;
    unsigned n = 0;
    int r = pool && pool->region ? ivc_pool_held(pool, &more, &n) : 0;

    if (r < 0 || n == 0)
        return r;
    all = realloc(*held, (*n_held + n) * sizeof *all);
    if (!all)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    memcpy(all + *n_held, more, n * sizeof *all);
    *held = all;
    *n_held += n;
    return 0;
}

/* No peer is attached, so that chunks which are not free are those that the adapter holds. */
static int retire_home(struct ivc_residence *home)
{
    IVC_AUTO_FREE struct iovec *held = NULL;
    unsigned n_held = 0;
    int r = home->pools ? 0 : ivc_pool_held(&home->pool, &held, &n_held);

    for (uint32_t i = 0; home->pools && r == 0 && i < home->info.capacity; i++)
        r = add_held(home->pools[i], &held, &n_held);
    for (const struct ivc_pool *pool = home->former; pool && r == 0; pool = pool->next)
        r = add_held(pool, &held, &n_held);
    return r < 0 ? r : ivc_region_retire(home->region, held, n_held);
}

int ivc_residence_move_out(struct ivc_endpoint *endpoint)
{
    struct ivc_residence *left = malloc(sizeof *left);
    int r;

    if (!left)
        return ivc_error_set(-ENOMEM, "endpoint: out of memory");
    r = retire_home(&endpoint->home);
    if (r < 0) {
        free(left);
        return r;
    }
    *left = endpoint->home;
    free_tables(left);
    left->earlier = endpoint->left;
    endpoint->left = left;
    endpoint->home = (struct ivc_residence){ .number = left->number + 1 };
    endpoint->n_hot = endpoint->n_cooled = 0;
    (void)ivc_peers_each(endpoint, forget_spent);
    ivc_trace_event(endpoint, "left", endpoint->description);
    ivc_residence_none(endpoint);
    free_unheld(endpoint);
    ivc_endpoint_leave_to_progress(endpoint);
    return 0;
}

static struct ivc_residence *find_left(const struct ivc_endpoint *endpoint, uint32_t number)
{
    struct ivc_residence *residence = endpoint->left;

    while (residence && residence->number != number)
        residence = residence->earlier;
    return residence;
}

void ivc_residence_put(struct ivc_endpoint *endpoint, uint32_t number)
{
    struct ivc_residence *residence = find_left(endpoint, number);

    if (residence)
        residence->buffers_out--;
}

bool ivc_residence_is_lost(const struct ivc_endpoint *endpoint, uint32_t number)
{
    const struct ivc_residence *residence = find_left(endpoint, number);

    return residence && ivc_region_is_lost(residence->region);
}

void ivc_residence_give_back(struct ivc_residence *residence)
{
    /* A region that cannot be retired is left for good: then that is what peers are told. */
    (void)ivc_region_retire(residence->region, NULL, 0);
    ivc_residence_close(residence);
}

void ivc_residence_close(struct ivc_residence *residence)
{
    free_tables(residence);
    ivc_region_free(residence->region);
    residence->region = NULL;
}

void ivc_residences_free(struct ivc_endpoint *endpoint)
{
    while (endpoint->left) {
        struct ivc_residence *residence = endpoint->left;

        endpoint->left = residence->earlier;
        free_left(residence);
    }
    ivc_residence_close(&endpoint->home);
}
