/*
 * Pool: buffers of ours that receivers read in place.
 *
 * One pool serves all peers of an endpoint, so that its memory depends on the traffic and not on
 * the number of peers.  It starts empty and grows, share by share, to as many chunks as are to go round as they are
 * used, and beyond, up to a limit, while all are under way.  Free chunks are used in the order in which they
 * became free: large messages then cycle through the whole pool, and a chunk that comes round again has
 * left the cache that it was read from, or at least is not being written back from it (see docs/performance.md). (Or
 * chunks of long packets in the opposite order: is_stack.)
 *
 * Double chunks.  Chunks of a share are twins, the first and the second, the third and the fourth, and so on: together
 * they carry a packet of up to two chunks.  So a free one waits for its twin, aside, and both become free together,
 * unless nothing else is.
 *
 * Invariant: in the queue the second of twins is behind the first, or that was got.
 */
#ifndef IVC_CHANNEL_POOL_H
#define IVC_CHANNEL_POOL_H

#include "base/util.h"
#include "channel/layout.h"
#include "region/region.h"

enum {
    IVC_CHUNK_SIZE_DEFAULT = 32 * 1024,
    IVC_AHEAD_LEAST = 768,      /* bytes of a packet: shorter ones go through the ring in any case; */
    IVC_AHEAD_LEAST_NEAR = 1536,        /* ... to a receiver nearby */
    IVC_BY_CHUNK_LEAST = 5500,  /* bytes of a packet that goes by a chunk in any case: more than a ring of the default size
                                   takes; with larger ones it is the same */
    IVC_POOL_ROUND = 16,        /* chunks that go round at least if the region is roomy: more than a first-level cache
                                   holds */
    IVC_POOL_STACK_LEAST = 24 << 10,    /* bytes of a packet, if the pool is a stack: shorter ones are quicker otherwise */
    IVC_POOL_SPARE = 4,         /* chunks to be left by who may keep one until something else has gone through the
                                   pool: so there is always one that goes round */
};

/*
 * The chunks that will be filled next: their lines are fetched while we wait for something to come.
 *
 * The lines of a chunk that comes round again lie in the cache of who read it last.  When that is far away, each
 * store of filling it waits until they have been given up there; asked for in time they are ours by then.  Who sends,
 * waits for an answer and sends again has that time.  It is a hint to the processor, which changes no byte: so it does
 * not matter whether the memory is still there, nor who reads it.
 */
struct ivc_pool_ahead {
    bool due;                   /* there is something to be fetched */
    uint32_t sent, filled;      /* since the last wait: packets, and those by a chunk */
    uint32_t longest;           /* ... the most bytes of one */
    bool alone;                 /* before the last wait there was one packet */
    uint32_t chunks, bytes;     /* wanted: of so many, so many bytes each */
    uint32_t done, at;          /* fetched: so many, and so many bytes of the one behind them */
};

struct ivc_pool_chunk {
    uint32_t share;             /* its index */
    uint32_t place;             /* bytes in front of what was put into it last */
    uint32_t len;               /* bytes that it was got for last: more than a chunk's together with its twin, the next
                                   one */
    bool is_aside;              /* free, and its twin is not */
};

struct ivc_pool {
    struct ivc_region *region;
    uint32_t slot;              /* who may read it; IVC_SLOT_ANY: everybody */
    uint32_t chunk_size;
    uint32_t chunks_max;        /* the limit */
    uint32_t round;             /* chunks that go round at least if the region is roomy: IVC_POOL_ROUND, or all */
    bool is_wide;               /* what takes half of a chunk at most lies in another place of it in each turn: so, where
                                   all go round, memory comes round when it is about to leave both second-level caches */
    bool is_stack;              /* while most chunks are free, what was long and read nearby last is used first: see
                                   residence.c */
    uint32_t long_max;          /* of them, under way to one peer, of packets of IVC_FILL_LEAST bytes and more */
    uint32_t n_chunks;          /* made so far */
    uint32_t n_shares;          /* share i + 1 of every ring */
    uint64_t got;               /* so far */
    uint64_t turn_ends;         /* when so many were got: then each was got once in this turn */
    uint32_t turn, in_turn;     /* ... and so many in this one */
    uint32_t refusals;          /* times yet to be refused growth without asking the region */
    struct ivc_share shares[IVC_SHARES_MAX];
    uint32_t first_chunk[IVC_SHARES_MAX];   /* of each share */
    struct ivc_pool_chunk *chunks;
    uint32_t *queue;            /* free chunks, but for those aside, the next one first */
    uint32_t queue_size, queue_first, n_queued;
    uint32_t n_free;            /* those aside as well */
    struct ivc_pool_ahead ahead;
    struct ivc_pool *next;      /* its owner's */
};

/* `slot`: who may read it, IVC_SLOT_ANY for everybody.  `limit`: bytes that it may take of the region. */
int ivc_pool_init(struct ivc_pool *pool, struct ivc_region *region, uint32_t slot, uint32_t chunk_size,
                  uint64_t limit);
/* Takes its memory back, which nobody reads any more, and forgets it.  All chunks have been put back. */
void ivc_pool_close(struct ivc_pool *pool);
/* Frees the pool's tables.  Its memory in the region stays with its owner: peers may still read it. */
void ivc_pool_forget(struct ivc_pool *pool);

/* Makes more chunks; answers as ivc_pool_get(). */
int ivc_pool_grow(struct ivc_pool *pool);

/* A chunk, or IVC_E_FULL when all are under way and the pool may not grow, or IVC_E_NOSPACE when
 * there is none and the region has no memory for one. */
int ivc_pool_get(struct ivc_pool *pool, uint32_t *ret_chunk);
/* The same for `len` bytes only, and IVC_E_FULL also when fewer than `left` others would stay free.  More bytes than a
 * chunk has, up to twice as many, are given both of twins: IVC_E_FULL also while there are none of which both are free,
 * IVC_E_NOSPACE when there are none at all and the region has no memory for them. */
int ivc_pool_get_leaving(struct ivc_pool *pool, uint32_t left, size_t len, uint32_t *ret_chunk);
/* With its twin, if it was got so. */
void ivc_pool_put(struct ivc_pool *pool, uint32_t chunk);
/* The same for one that was read, by a processor far away or nearby. */
void ivc_pool_put_read(struct ivc_pool *pool, uint32_t chunk, bool is_far);

/* A packet of `len` bytes was sent to someone far away, by a chunk, or another way when a chunk was open to it.
 * In the next wait lines for the like of it are fetched; should there be no wait, because more follows, the first ones
 * of the next chunk now, if it is said so. */
void ivc_pool_has_sent(struct ivc_pool *pool, bool by_chunk, uint32_t len, bool fetches_now);

/* A wait begins, and hardly any chunk is free: whether some were read meanwhile is to be looked for. */
static inline bool ivc_pool_wants_chunks(const struct ivc_pool *pool)
{
    return pool->ahead.sent > 0 && pool->n_free < IVC_POOL_SPARE;
}

/* In each turn of a wait while `ahead.due`: asks for a few lines. */
void ivc_pool_fetch_some(struct ivc_pool *pool);

/* A round of chunks was filled, or more, and there was no wait in between.  Only for those far away. */
static inline bool ivc_pool_is_in_stream(const struct ivc_pool *pool)
{
    return pool->ahead.filled >= IVC_POOL_ROUND;
}

/* Whether a chunk is the best way for a packet of so many bytes that another way is open to: lines for it were fetched
 * of the chunk that is got next, and it is likely to be the only one until the next wait. */
static inline bool ivc_pool_is_ready(const struct ivc_pool *pool, size_t len)
{
    return pool->ahead.alone && len <= (pool->ahead.done > 0 ? pool->ahead.bytes : pool->ahead.at);
}

/* The chunks that were got and not put back; when no ring is open, those that somebody fills.  The
 * caller frees the list, which is NULL when there are none.  -ENOMEM. */
int ivc_pool_held(const struct ivc_pool *pool, struct iovec **ret_chunks, unsigned *ret_n);

/* Of how many chunks a packet of so many bytes is. */
static inline uint32_t ivc_pool_chunks_for(const struct ivc_pool *pool, size_t len)
{
    return len > pool->chunk_size ? 2 : 1;
}

/* Of a chunk that was got: where as many bytes as it was got for are to be put; ivc_pool_room(), how many fit there. */
void *ivc_pool_memory(const struct ivc_pool *pool, uint32_t chunk, uint32_t *ret_share,
                      uint64_t *ret_offset);
static inline uint32_t ivc_pool_room(const struct ivc_pool *pool, uint32_t chunk)
{
    return ivc_pool_chunks_for(pool, pool->chunks[chunk].len) * pool->chunk_size - pool->chunks[chunk].place;
}

#endif
