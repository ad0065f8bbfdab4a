/* Pool: see pool.h. */
#include "channel/pool.h"

#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

enum {
    FIRST_SHARE_CHUNKS = 2,
    LEAST_CHUNKS = 3,       /* one that the first share has when memory is scarce, and twins */
    FETCH_AT_ONCE = 16,     /* lines: as many as a processor waits for at a time */
    FETCH_MAX = 128 << 10,  /* bytes in one wait: a few microseconds */
    FETCH_NOW = 4096,       /* bytes of the next chunk when there is no wait; with twice as many it is no better */
    PUSH = 64 << 10,        /* bytes: more than a first-level cache holds */
    PUSH_LEAST = 12 << 10,  /* of a packet: with shorter ones it makes no difference */
    REFUSALS = 10000,       /* a millisecond or so of asking in vain */

    /* Bytes of a share in front of its first chunk.  A load waits for a store that is under way to an address with the
     * same place in a page, and large pieces of users' memory mostly begin where a page does: so chunks begin in its
     * middle, and both copies' loads and stores stay half a page apart.  (All chunks: they follow each other without a
     * gap, so that what the processor fetches in advance behind the last line of one is the next one's.) */
    LEAD = 2048,
};

int ivc_pool_init(struct ivc_pool *pool, struct ivc_region *region, uint32_t slot, uint32_t chunk_size,
                  uint64_t limit)
{
    *pool = (struct ivc_pool){ .region = region, .slot = slot, .chunk_size = chunk_size };
    pool->chunks_max = (uint32_t)IVC_MAX(limit / chunk_size, LEAST_CHUNKS);
    pool->round = IVC_POOL_ROUND;
    pool->long_max = UINT32_MAX;
    pool->queue_size = pool->chunks_max;
    pool->chunks = calloc(pool->chunks_max, sizeof *pool->chunks);
    pool->queue = calloc(pool->queue_size, sizeof *pool->queue);
    if (!pool->chunks || !pool->queue) {
        ivc_pool_forget(pool);
        return ivc_error_set(-ENOMEM, "pool: out of memory");
    }
    return 0;
}

void ivc_pool_forget(struct ivc_pool *pool)
{
    free(pool->chunks);
    free(pool->queue);
    *pool = (struct ivc_pool){ 0 };
}

void ivc_pool_close(struct ivc_pool *pool)
{
    for (uint32_t i = 0; i < pool->n_shares; i++)
        ivc_region_unshare(pool->region, &pool->shares[i]);
    ivc_pool_forget(pool);
}

/* Growing must leave half of the region to those who come later.  Asking costs a walk over all
 * blocks, so after a refusal it is not asked for a while. */
static bool region_is_roomy(struct ivc_pool *pool, uint64_t more)
{
    if (pool->refusals > 0) {
        pool->refusals--;
        return false;
    }
    if (ivc_region_free_bytes(pool->region) >= ivc_region_size(pool->region) / 2 + more)
        return true;
    pool->refusals = REFUSALS;
    return false;
}

/* Whoever joins last, when the others have filled the region with their rings, has rings to make, too:
 * one chunk carries messages of any length. */
static uint32_t first_share(const struct ivc_pool *pool)
{
    return ivc_region_is_scarce(pool->region) ? 1 : FIRST_SHARE_CHUNKS;
}

/* The one that makes a double chunk with this one; the same if there is none. */
static uint32_t twin_of(const struct ivc_pool *pool, uint32_t chunk)
{
    uint32_t share = pool->chunks[chunk].share, first = pool->first_chunk[share];
    uint32_t end = share + 1 < pool->n_shares ? pool->first_chunk[share + 1] : pool->n_chunks;
    uint32_t twin = first + ((chunk - first) ^ 1);

    return twin < end ? twin : chunk;
}

static void enqueue(struct ivc_pool *pool, uint32_t chunk)
{
    pool->queue[ivc_wrap(pool->queue_first + pool->n_queued, pool->queue_size)] = chunk;
    pool->n_queued++;
}

static void enqueue_first(struct ivc_pool *pool, uint32_t chunk)
{
    pool->queue_first = ivc_wrap(pool->queue_first + pool->queue_size - 1, pool->queue_size);
    pool->queue[pool->queue_first] = chunk;
    pool->n_queued++;
}

static uint32_t dequeue(struct ivc_pool *pool)
{
    uint32_t chunk = pool->queue[pool->queue_first];

    pool->queue_first = ivc_wrap(pool->queue_first + 1, pool->queue_size);
    pool->n_queued--;
    return chunk;
}

/* So many chunks more, as there may be, or as many as the region gives: half of that, and so on. */
static int grow(struct ivc_pool *pool, uint32_t wanted)
{
    struct ivc_share *share = &pool->shares[pool->n_shares];
    int r = IVC_E_FULL;

    if (pool->n_shares == IVC_SHARES_MAX - 1)
        return IVC_E_FULL;
    for (; wanted > 0; wanted /= 2) {
        r = ivc_region_share(pool->region, pool->slot, LEAD + (uint64_t)wanted * pool->chunk_size, share);
        if (r == 0)
            break;
    }
    if (r != 0)
        return pool->n_chunks ? IVC_E_FULL : r;
    pool->first_chunk[pool->n_shares] = pool->n_chunks;
    pool->n_shares++;
    for (uint32_t i = 0; i < wanted; i++) {
        pool->chunks[pool->n_chunks].share = pool->n_shares - 1;
        enqueue(pool, pool->n_chunks++);
    }
    pool->n_free += wanted;
    return 0;
}

/* Twice as much as there is. */
int ivc_pool_grow(struct ivc_pool *pool)
{
    uint32_t wanted = pool->n_chunks ? IVC_MAX(pool->n_chunks, FIRST_SHARE_CHUNKS) : first_share(pool);

    wanted = IVC_MIN(wanted, pool->chunks_max - pool->n_chunks);
    if (wanted == 0)
        return IVC_E_FULL;
    if (pool->n_shares > 0 && !region_is_roomy(pool, (uint64_t)wanted * pool->chunk_size))
        return IVC_E_FULL;
    return grow(pool, wanted);
}

/* Where in a chunk so many bytes are put that are the packet `i` behind the next one: as far from a page's beginning as
 * the chunk. A place further than the packet before, so that all parts of the caches are used alike; and in each turn
 * two further, so that half of the pool goes round, as much as both second-level caches hold. */
static uint32_t place_for(const struct ivc_pool *pool, size_t len, uint32_t i)
{
    enum { PAGE = 4096 };
    uint32_t bytes = (uint32_t)len, pitch = IVC_MAX((bytes + PAGE / 2) / PAGE, 1) * PAGE;

    if (!pool->is_wide || bytes + pitch > pool->chunk_size)
        return 0;
    return (pool->in_turn + i + 2 * pool->turn) % (1 + (pool->chunk_size - bytes) / pitch) * pitch;
}

/* A chunk that is in no queue goes there, with its twin if that waits for it; else it waits.  `first`: to its
 * beginning. */
static void lay_aside(struct ivc_pool *pool, uint32_t chunk, bool first)
{
    uint32_t twin = twin_of(pool, chunk);

    if (twin == chunk) {
        enqueue(pool, chunk);
        return;
    }
    if (!pool->chunks[twin].is_aside) {
        pool->chunks[chunk].is_aside = true;
        return;
    }
    pool->chunks[twin].is_aside = false;
    if (first) {
        enqueue_first(pool, IVC_MAX(chunk, twin));
        enqueue_first(pool, IVC_MIN(chunk, twin));
    } else {
        enqueue(pool, IVC_MIN(chunk, twin));
        enqueue(pool, IVC_MAX(chunk, twin));
    }
}

/* Brings twins to the queue's beginning; false: there are none in it, nor does one that is there make some. */
static bool find_double(struct ivc_pool *pool)
{
    for (uint32_t n = pool->n_queued + 1; n > 0 && pool->n_queued > 0; n--) {
        uint32_t first = pool->queue[pool->queue_first];

        if (twin_of(pool, first) > first)
            return true;
        lay_aside(pool, dequeue(pool), false);
    }
    return false;
}

/* One of those aside; there are some. */
static uint32_t take_aside(struct ivc_pool *pool)
{
    uint32_t chunk = 0;

    while (!pool->chunks[chunk].is_aside)
        chunk++;
    pool->chunks[chunk].is_aside = false;
    return chunk;
}

/* So that twins come first. A pool that has none gets some, even if the region is not roomy: somebody may have to
 * send a double packet, which was made where there were twins. */
static int need_double(struct ivc_pool *pool)
{
    if (find_double(pool))
        return 0;
    if (pool->n_free < pool->n_chunks)
        return IVC_E_FULL;
    if (pool->refusals == 0 && pool->n_chunks + 2 <= pool->chunks_max && grow(pool, 2) == 0 && find_double(pool))
        return 0;
    pool->refusals = pool->refusals > 0 ? pool->refusals - 1 : REFUSALS;
    return ivc_error_set(IVC_E_NOSPACE, "the region has no memory for a packet of more than %u bytes",
                         pool->chunk_size);
}

/* So that `n` chunks can be got, and `left` are left. */
static int need_chunks(struct ivc_pool *pool, uint32_t n, uint32_t left)
{
    bool round_is_short = pool->n_chunks < pool->round && pool->got >= pool->turn_ends;
    int r = round_is_short ? ivc_pool_grow(pool) : 0;

    while (r == 0 && pool->n_free < left + n)
        r = ivc_pool_grow(pool);
    if (n > 1 && (pool->n_free >= left + n || (left == 0 && pool->n_chunks > 0)))
        return need_double(pool);
    return pool->n_free >= left + n ? 0 : r;
}

/* A chunk leaves the queue. */
static void count_one(struct ivc_pool *pool)
{
    pool->got++;
    pool->in_turn++;
    pool->n_free--;
    if (pool->ahead.done > 0)
        pool->ahead.done--;
    else
        pool->ahead.at = 0;
}

int ivc_pool_get_leaving(struct ivc_pool *pool, uint32_t left, size_t len, uint32_t *ret_chunk)
{
    uint32_t n = ivc_pool_chunks_for(pool, len), chunk;
    int r = need_chunks(pool, n, left);

    if (r != 0)
        return r;
    if (pool->got >= pool->turn_ends) {
        pool->turn_ends = pool->got + pool->n_chunks;
        pool->turn++;
        pool->in_turn = 0;
    }
    chunk = pool->n_queued > 0 ? dequeue(pool) : take_aside(pool);
    pool->chunks[chunk].place = place_for(pool, len, 0);
    pool->chunks[chunk].len = (uint32_t)len;
    count_one(pool);
    if (n > 1) {
        (void)dequeue(pool);
        count_one(pool);
    }
    *ret_chunk = chunk;
    return 0;
}

int ivc_pool_get(struct ivc_pool *pool, uint32_t *ret_chunk)
{
    return ivc_pool_get_leaving(pool, 0, pool->chunk_size, ret_chunk);
}

static void put(struct ivc_pool *pool, uint32_t chunk, bool first)
{
    uint32_t n = ivc_pool_chunks_for(pool, pool->chunks[chunk].len);

    pool->n_free += n;
    for (uint32_t i = 0; i < n; i++)
        lay_aside(pool, chunk + i, first);
}

void ivc_pool_put(struct ivc_pool *pool, uint32_t chunk)
{
    put(pool, chunk, false);
}

void ivc_pool_put_read(struct ivc_pool *pool, uint32_t chunk, bool is_far)
{
    bool is_long = pool->chunks[chunk].len >= IVC_POOL_STACK_LEAST;

    put(pool, chunk, pool->is_stack && is_long && !is_far && pool->n_free > pool->n_chunks / 2);
}

/* A wait begins: as many chunks as were filled since the last one.  When that were fewer than before, only half of the
 * difference less, since there may be waits in the middle of a message.  Of long ones enough that what was filled just
 * now makes room in the nearest cache: its reader takes lines from the second-level one sooner. */
static void begin_to_fetch(struct ivc_pool_ahead *ahead)
{
    uint32_t chunks = ahead->sent == 1 ? 1 : ahead->filled;

    if (chunks < ahead->chunks)
        chunks = ahead->chunks - (ahead->chunks - chunks + 1) / 2;
    if (ahead->longest >= PUSH_LEAST)
        chunks = IVC_MAX(chunks, PUSH / ahead->longest + 1);
    ahead->bytes = IVC_MAX(ahead->longest, 1);
    ahead->chunks = IVC_MIN(chunks, IVC_MAX(FETCH_MAX / ahead->bytes, 1));
    ahead->alone = ahead->sent == 1;
    ahead->sent = ahead->filled = ahead->longest = ahead->done = ahead->at = 0;
}

static char *chunk_memory(const struct ivc_pool *pool, uint32_t chunk, uint32_t *ret_share, uint64_t *ret_offset)
{
    uint32_t share = pool->chunks[chunk].share;
    uint64_t offset = LEAD + (uint64_t)(chunk - pool->first_chunk[share]) * pool->chunk_size;

    *ret_share = share + 1;
    *ret_offset = offset;
    return (char *)pool->shares[share].memory + offset;
}

/* Where so many bytes will lie in the free chunk that is got when `i` others have been. */
static char *free_chunk(const struct ivc_pool *pool, uint32_t i, uint32_t len)
{
    uint32_t share;
    uint64_t offset;

    return chunk_memory(pool, pool->queue[ivc_wrap(pool->queue_first + i, pool->queue_size)], &share, &offset)
        + place_for(pool, len, i);
}

void ivc_pool_has_sent(struct ivc_pool *pool, bool by_chunk, uint32_t len, bool fetches_now)
{
    struct ivc_pool_ahead *ahead = &pool->ahead;
    uint32_t n = ivc_pool_chunks_for(pool, len);    /* a double chunk as two */
    char *next;

    len = IVC_MIN(len, pool->chunk_size);
    ahead->due = true;
    ahead->sent += n;
    ahead->filled += by_chunk ? n : 0;
    ahead->longest = IVC_MAX(ahead->longest, len);
    if (!fetches_now || pool->n_queued == 0 || ahead->done > 0 || ahead->at > 0)
        return;
    next = free_chunk(pool, 0, len);
    ivc_fetch_lines_to_write(next, next + IVC_MIN(len, (uint32_t)FETCH_NOW));
}

void ivc_pool_fetch_some(struct ivc_pool *pool)
{
    struct ivc_pool_ahead *ahead = &pool->ahead;
    uint32_t to;
    char *next;

    if (ahead->sent > 0)
        begin_to_fetch(ahead);
    /* Free ones only: the others are being read. */
    ahead->due = ahead->done < IVC_MIN(ahead->chunks, pool->n_queued);
    if (!ahead->due)
        return;
    to = IVC_MIN(ahead->bytes, ahead->at + FETCH_AT_ONCE * IVC_LINE);
    next = free_chunk(pool, ahead->done, ahead->bytes);
    ivc_fetch_lines_to_write(next + ahead->at, next + to);
    ahead->at = to;
    if (to == ahead->bytes) {
        ahead->at = 0;
        ahead->done++;
    }
}

static void mark_free(const struct ivc_pool *pool, bool *is_free)
{
    for (uint32_t i = 0; i < pool->n_queued; i++)
        is_free[pool->queue[(pool->queue_first + i) % pool->queue_size]] = true;
    for (uint32_t chunk = 0; chunk < pool->n_chunks; chunk++)
        is_free[chunk] = is_free[chunk] || pool->chunks[chunk].is_aside;
}

int ivc_pool_held(const struct ivc_pool *pool, struct iovec **ret_chunks, unsigned *ret_n)
{
    IVC_AUTO_FREE bool *is_free = NULL;
    struct iovec *chunks;
    uint32_t share;
    uint64_t offset;
    unsigned n = 0;

    *ret_chunks = NULL;
    *ret_n = 0;
    if (pool->n_free == pool->n_chunks)
        return 0;
    is_free = calloc(pool->n_chunks, sizeof *is_free);
    chunks = calloc(pool->n_chunks - pool->n_free, sizeof *chunks);
    if (!is_free || !chunks) {
        free(chunks);
        return ivc_error_set(-ENOMEM, "pool: out of memory");
    }
    mark_free(pool, is_free);
    for (uint32_t chunk = 0; chunk < pool->n_chunks; chunk++)
        if (!is_free[chunk])
            chunks[n++] = (struct iovec){ chunk_memory(pool, chunk, &share, &offset),
                                          pool->chunk_size };
    *ret_chunks = chunks;
    *ret_n = n;
    return 0;
}

void *ivc_pool_memory(const struct ivc_pool *pool, uint32_t chunk, uint32_t *ret_share,
                      uint64_t *ret_offset)
{
    uint32_t place = pool->chunks[chunk].place;
    char *memory = chunk_memory(pool, chunk, ret_share, ret_offset);

    *ret_offset += place;
    return memory + place;
}
