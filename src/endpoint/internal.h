/* What the files of this folder share. */
#ifndef IVC_ENDPOINT_INTERNAL_H
#define IVC_ENDPOINT_INTERNAL_H

#include "channel/channel.h"
#include "channel/pool.h"
#include "endpoint/endpoint.h"
#include "network/network.h"
#include "region/region.h"

#include <pthread.h>

/* The path that a peer is on: the states of SC'07's connection machine; SUSPENDING comes with live
 * migration. */
enum ivc_peer_state {
    IVC_PEER_CONNECTED,     /* known, its memory reachable; no ring of ours yet */
    IVC_PEER_ACTIVE,        /* our ring exists */
    IVC_PEER_NETWORK,       /* on the network path (the paper's CLOSED: no memory) */
    IVC_PEER_CLOSED,        /* gone: nothing is sent or received any more */
};

struct ivc_peer {
    struct ivc_tx tx;               /* under send_lock */
    ivc_atomic_u32 state;           /* enum ivc_peer_state; written under send_lock */
    struct ivc_rx rx;               /* the poller's */
    bool rx_open;
    bool hot;                       /* in endpoint->hot */
    uint64_t last_turn;             /* of progress in which something came */
    struct ivc_member member;
    struct ivc_peer_stats stats;
    void *arg;
    void *mailbox;                  /* message.c's */
    struct ivc_peer *next_gone;     /* peers of slots that have new owners since */

    /* On the network path; `member` holds what a greeting tells. */
    struct ivc_route *route;        /* NULL: on the memory path */
    uint32_t remote_sent, remote_received;  /* packets, greeting included */
    bool greeted;                   /* we have sent the greeting */
    struct ivc_peer *next_remote;   /* in its bucket */
};

enum {
    /* The smallest ring, one block of the region: for when there is no memory for a proper one. */
    IVC_RING_SIZE_LAST_RESORT = 4096,
    IVC_HOT_MAX = 8,            /* rings looked at in every turn */
    IVC_TURN_BUDGET = 32,       /* packets of one peer in one turn: others wait */
    IVC_CHORES_EVERY = 64,      /* turns; a power of two */
    IVC_REMOTE_BUCKETS = 1024,  /* of the hash of peers on the network path */
    IVC_REMOTE_IOV_MAX = 16,
    IVC_COOL_TURNS = 16384,     /* turns without a packet until a hot ring is looked at no more */
};

struct ivc_endpoint {
    /* What every turn of progress touches. */
    struct ivc_peer *hot[IVC_HOT_MAX];
    uint32_t n_hot;
    bool threads;
    bool in_turn;                   /* without threads: stands for `polling` */
    const ivc_atomic_u64 *ready_summary;
    uint64_t turn;
    bool end_turn;                  /* a handler asked for it */
    struct ivc_peer *cooled[IVC_HOT_MAX];   /* those that were hot before the last sleep */
    uint32_t n_cooled;
    struct ivc_network *network;    /* NULL: none */
    bool network_busy;              /* the last look at it found something */
    uint64_t network_cost;          /* what a look costs, in ivc_cycles() */
    uint64_t network_due;           /* ivc_cycles() of the next look */
    ivc_atomic_u32 network_woke;    /* its descriptor has woken somebody: look at once */
    ivc_atomic_u32 network_lies;    /* times in a row that it has woken somebody for nothing */
    uint32_t n_remotes;             /* peers on the network path, ever */
    ivc_endpoint_packet_fn *on_packet;
    void *arg;
    atomic_flag polling;            /* held by whoever is in progress */

    pthread_mutex_t send_lock;      /* tx sides, pool, creation of peers */
    struct ivc_pool pool;
    struct ivc_region *region;      /* NULL: none, all peers are on the network */
    struct ivc_peer *_Atomic remotes[IVC_REMOTE_BUCKETS];   /* by id; written under send_lock */
    struct ivc_watcher *watcher;    /* wait.c: who looks while others sleep */
    uint64_t id, magic_id;
    uint32_t client_id;
    struct ivc_share *reserve;      /* for rings of the last resort; under send_lock */
    uint32_t n_reserve;
    uint32_t ring_size, segment_size, eager_max;
    uint64_t linger_ms;

    _Atomic(struct ivc_peer *) *peers;  /* by slot; written under send_lock */
    struct ivc_peer **senders;      /* peers that we have rings to; under send_lock */
    uint32_t n_senders;
    struct ivc_peer *gone;          /* former owners of slots, freed with the endpoint */
    struct ivc_peer **receivers;    /* peers whose rings we have mapped, for the round */
    uint32_t n_receivers, round;
    ivc_endpoint_gone_fn *on_gone;
    ivc_endpoint_arrival_fn *on_arrival;

    struct ivc_rx_packet packet;    /* the one being delivered */
    struct ivc_region_info info;    /* as it was when we joined */
    char description[384];
    char warning[512];
    char no_network[512];           /* why there is none, when one was asked for */
};

static inline void ivc_endpoint_lock(struct ivc_endpoint *endpoint)
{
    if (endpoint->threads)
        pthread_mutex_lock(&endpoint->send_lock);
}

static inline void ivc_endpoint_unlock(struct ivc_endpoint *endpoint)
{
    if (endpoint->threads)
        pthread_mutex_unlock(&endpoint->send_lock);
}

/* Relaxed: whoever acts on the state of a peer holds the lock under which it changes, or does no
 * harm by acting a moment too late. */
static inline enum ivc_peer_state ivc_peer_state(const struct ivc_peer *peer)
{
    return (enum ivc_peer_state)ivc_load_relaxed(&peer->state);
}

/* Acquire: pairs with the release in ivc_peer_make(); the peer's fields are visible. */
static inline struct ivc_peer *ivc_endpoint_peer(const struct ivc_endpoint *endpoint, uint32_t slot)
{
    return ivc_load_acquire(&endpoint->peers[slot]);
}

/* peer.c.  Under send_lock: the peer for this member, made when it is new. */
int ivc_peer_make(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                  struct ivc_peer **ret_peer);
int ivc_peer_open_tx(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Under `polling`: ends the connection and tells the adapter. */
void ivc_peer_end(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason);

/* poll.c.  Under `polling`. */
/* Maps the peer's ring if it has made one. */
void ivc_poll_open_rx(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Ends the slot's peer if its process is gone: a new one may be there.  Takes `polling`, if it can. */
void ivc_poll_check_peer(struct ivc_endpoint *endpoint, uint32_t slot);
void ivc_poll_forget(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Looks at all rings through their doorbells from now on: nothing is watched.  True when there is
 * something in one already, or somebody else is polling. */
bool ivc_poll_unwatch_all(struct ivc_endpoint *endpoint);
/* The same for the rings that this made unwatched, a moment later. */
bool ivc_poll_any_ready(struct ivc_endpoint *endpoint);
/* Whether a doorbell was rung, or there is news of peers; free of every lock. */
bool ivc_poll_is_due(const struct ivc_endpoint *endpoint);

/* wait.c */
void ivc_wait_free(struct ivc_endpoint *endpoint);

#endif
