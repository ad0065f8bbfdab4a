/* What the files of this folder share. */
#ifndef IVC_ENDPOINT_INTERNAL_H
#define IVC_ENDPOINT_INTERNAL_H

#include "base/caller.h"
#include "base/crowd.h"
#include "channel/channel.h"
#include "channel/pool.h"
#include "endpoint/backlog.h"
#include "endpoint/endpoint.h"
#include "endpoint/gate.h"
#include "endpoint/lost.h"
#include "endpoint/moderation.h"
#include "endpoint/rest.h"
#include "endpoint/trace.h"
#include "network/network.h"
#include "region/region.h"

#include <pthread.h>

/*
 * The states of a peer are those of SC'07's connection machine (docs/migration.md).  A pair is
 * *attached* while both are members of one region, as the owners of two slots; an attachment that was
 * suspended is never used again.
 */
enum ivc_peer_state {
    IVC_PEER_CLOSED,        /* not attached: the network */
    IVC_PEER_CONNECTED,     /* attached; no ring of ours yet */
    IVC_PEER_ACTIVE,        /* attached, our ring exists: memory */
    IVC_PEER_SUSPENDING,    /* we neither write nor read memory any more; it has not said so yet */
    IVC_PEER_GONE,          /* left or died: nothing is sent or received any more */
};

struct ivc_peer {
    struct ivc_tx tx;               /* under send_lock */
    ivc_atomic_u32 state;           /* enum ivc_peer_state; written under send_lock */
    struct ivc_rx rx;               /* the poller's */
    bool rx_open;
    bool hot;                       /* in endpoint->hot */
    uint64_t last_turn;             /* of progress in which something came */
    struct ivc_member member;       /* slot IVC_SLOT_ANY: not attached */
    struct ivc_peer_stats stats;
    void *arg;
    void *mailbox;                  /* message.c's */
    struct ivc_traffic *_Atomic traffic;    /* profile.c's; NULL: nothing was counted */
    struct ivc_peer *next;          /* in its bucket */

    /* Suspending (suspend.c). */
    uint32_t spent_slot, spent_generation;  /* the attachment of this residence that is over */
    struct ivc_backlog unsent;      /* goes by network before anything else */
    struct ivc_backlog unread;      /* to be delivered before anything else */
    bool over;                      /* ... and then the peer is gone, for this reason: */
    const char *over_reason;
    const char *over_tells;         /* ... which the peer is told in these words; NULL: it knows */
    bool emptied;                   /* without a network: its ring was read to the end */
    bool parted;                    /* ... and the attachment is over, which the adapter has not heard */
    struct ivc_losses losses;       /* lost.c */
    struct ivc_backlog unsure;      /* a copy of what we wrote last and it may not have read: */
    uint64_t kept_from;             /* ... from this place in our ring on; UINT64_MAX: there is none */
    bool met;                       /* memory led to it once */
    uint64_t told_region;           /* the region that its address names (address.h); 0: none */

    /* The network. */
    struct ivc_network_name network;    /* where its network is; provider 0: none */
    struct ivc_route *route;        /* NULL: not made yet */
    uint32_t remote_sent, remote_received;  /* packets, greeting included */
    bool greeted;                   /* we have sent the greeting */
    bool asked;                     /* ... once more, on another route: whether all came that went by the first */
    uint64_t pulled_bytes, exposed_bytes;   /* beside what is in `stats`, which another lock guards */
};

enum {
    /* The smallest ring, one block of the region: for when there is no memory for a proper one. */
    IVC_RING_SIZE_LAST_RESORT = 4096,
    IVC_HOT_MAX = 8,            /* rings looked at in every turn */
    IVC_TURN_BUDGET = 32,       /* packets of one peer in one turn: others wait */
    IVC_CHORES_EVERY = 64,      /* turns */
    IVC_PEER_BUCKETS = 1024,    /* of the hash of peers by id */
    IVC_REMOTE_IOV_MAX = 16,
    IVC_COOL_TURNS = 16384,     /* turns without a packet until a hot ring is looked at no more */
};

/* What an endpoint has in the region it lives in; it changes when its guest moves (residence.c). */
struct ivc_residence {
    struct ivc_region *region;      /* NULL: none, all peers are on the network */
    struct ivc_region_info info;    /* as it was when we joined */
    struct ivc_pool pool;           /* where one share is read by all */
    struct ivc_pool **pools;        /* else (not NULL) one for each slot's owner; NULL where there is none */
    struct ivc_pool *former;        /* of owners that have gone, with chunks that the adapter holds */
    struct ivc_share *reserve;      /* for rings of the last resort; under send_lock */
    uint32_t n_reserve;
    _Atomic(struct ivc_peer *) *peers;  /* attached, by slot; written under send_lock */
    ivc_atomic_u32 *generations;        /* the last that were attached, by slot; likewise */
    struct ivc_peer **senders;      /* peers that we have rings to; under send_lock */
    uint32_t n_senders;
    struct ivc_peer **receivers;    /* peers whose rings we have mapped, for the round */
    uint32_t n_receivers, round;
    uint32_t buffers_out;           /* chunks that the adapter holds */
    uint32_t number;                /* counts the residences of this endpoint */
    struct ivc_residence *earlier;  /* of `left`: not freed yet, because something is still held */
};

/* The body of the packet that is being delivered. */
enum ivc_body {
    IVC_BODY_PRIVATE,       /* none, or in memory of ours */
    IVC_BODY_SHARED,        /* in the region; its handler has not asked about it */
    IVC_BODY_WHOLE,         /* ... and was told that it has read what was sent */
    IVC_BODY_TORN,          /* ... or that the memory was taken away */
};

struct ivc_endpoint {
    /* What every turn of progress touches. */
    struct ivc_peer *hot[IVC_HOT_MAX];
    uint32_t n_hot;
    bool threads;
    bool in_turn;                   /* without threads: stands for `polling` */
    const ivc_atomic_u64 *ready_summary;
    uint64_t turn, chores_turn;     /* of progress, and the last with chores */
    uint32_t quiet;                 /* turns to come in which nothing is due but a look (poll.c); with threads never */
    bool end_turn;                  /* a handler asked for it */
    struct ivc_crowd crowd;
    bool crowded, tight;            /* endpoint.h */
    unsigned processors;            /* of this kernel, when it was opened */
    struct ivc_rest rest;
    struct ivc_moderation moderation;
    struct ivc_peer *cooled[IVC_HOT_MAX];   /* those that were hot before the last sleep */
    uint32_t n_cooled;
    struct ivc_network *network;    /* NULL: none */
    bool network_busy;              /* the last look at it found something */
    uint64_t network_cost;          /* what a look costs, in ivc_cycles() */
    bool untimed;                   /* copies are not timed: a look at the clock would take as long */
    uint64_t network_turn;          /* the last that thought of looking */
    uint64_t network_looked;        /* the ivc_cycles() of the last look */
    uint64_t network_pause;         /* after it, till the next */
    ivc_atomic_u32 network_woke;    /* its descriptor has woken somebody: look at once */
    ivc_atomic_u32 network_lies;    /* times in a row that it has woken somebody for nothing */
    uint32_t n_remotes;             /* peers on the network path, ever */
    ivc_endpoint_packet_fn *on_packet;
    void *arg;
    atomic_flag polling;            /* held by whoever is in progress */

    struct ivc_gate gate;           /* without threads: keeps the helper out, or us */
    ivc_atomic_u32 news;            /* the helper has something for progress to do */
    uint32_t n_unsent;              /* peers with a backlog that goes by network; under send_lock */
    uint32_t packet_max;            /* the largest packet but for double ones, on every path */

    pthread_mutex_t send_lock;      /* tx sides, pool, creation of peers */
    struct ivc_residence home;
    struct ivc_residence *left;     /* former homes with something still held */
    struct ivc_helper *helper;      /* helper.c: NULL: nothing ever moves */
    struct ivc_peer *_Atomic by_id[IVC_PEER_BUCKETS];   /* all peers; written under send_lock */
    struct ivc_watcher *watcher;    /* wait.c: who looks while others sleep */
    struct ivc_wake wake;
    ivc_atomic_u32 asleep;          /* somebody sleeps, or is about to */
    ivc_atomic_u32 is_woken;        /* wait.c: those who ring wake us, as far as we have seen */
    uint64_t id, magic_id;
    uint32_t client_id;
    uint32_t ring_size, segment_size, eager_max, expected_peers;
    uint32_t far_by_chunk;          /* endpoint.h; UINT32_MAX: none */
    uint32_t ring_size_roomy;       /* where all pairs have room for one */
    uint64_t linger_ms;
    char *region_name;              /* as it was asked for; NULL: the environment, what is found */

    ivc_endpoint_gone_fn *on_gone;
    ivc_endpoint_arrival_fn *on_arrival;
    ivc_endpoint_parted_fn *on_parted;
    ivc_endpoint_moved_fn *on_moved;
    uint32_t told_number;           /* of the residence that on_moved has heard of */
    bool answers;                   /* does what orders ask for: somebody takes what becomes of peers */

    struct ivc_packet packet;       /* the one being delivered; its: */
    enum ivc_body body;
    _Alignas(16) char head[IVC_RX_HEAD_MAX];
    char description[384];
    char warning[512];
    struct ivc_callers callers;     /* wait.c */
    uint64_t only_region;           /* peers that did not begin there are refused; 0: nobody is */
    char no_network[512];           /* why there is none, when one was asked for */
    char no_region[320];            /* why there was none at the beginning */
};

/* Whoever touches tx sides, the pool, or memory of the region is between these. */
static inline void ivc_endpoint_lock(struct ivc_endpoint *endpoint)
{
    if (__builtin_expect(endpoint->threads, 0))
        pthread_mutex_lock(&endpoint->send_lock);
    else
        ivc_gate_enter(&endpoint->gate);
}

static inline void ivc_endpoint_unlock(struct ivc_endpoint *endpoint)
{
    if (__builtin_expect(endpoint->threads, 0))
        pthread_mutex_unlock(&endpoint->send_lock);
    else
        ivc_gate_leave(&endpoint->gate);
}

/* Something was done: whatever wait there was is over.  (Of several threads one may wait all the same.) */
static inline void ivc_endpoint_is_busy(struct ivc_endpoint *endpoint)
{
    if (__builtin_expect(!endpoint->threads && endpoint->crowd.idle != 0, 0))
        endpoint->crowd.idle = endpoint->quiet = 0;
}

/* Whether others want the processors of this host, as far as we know. */
static inline bool ivc_endpoint_is_crowded(const struct ivc_endpoint *endpoint)
{
    /* Of several threads only the one in progress may look at `crowd`. */
    return endpoint->crowded || (!endpoint->threads && ivc_crowd_is_here(&endpoint->crowd));
}

/* A packet, whatever way it goes. */
static inline void ivc_endpoint_has_sent(struct ivc_endpoint *endpoint)
{
    ivc_endpoint_is_busy(endpoint);
    ivc_moderation_sent(&endpoint->moderation);
}

static inline void ivc_peer_has_sent(struct ivc_peer *peer, size_t len)
{
    peer->stats.sent_packets++;
    peer->stats.sent_bytes += len;
}

static inline void ivc_peer_has_received(struct ivc_peer *peer, size_t len)
{
    peer->stats.received_packets++;
    peer->stats.received_bytes += len;
}

/* Relaxed: whoever acts on the state of a peer holds the lock under which it changes, or does no
 * harm by acting a moment too late. */
static inline enum ivc_peer_state ivc_peer_state(const struct ivc_peer *peer)
{
    return (enum ivc_peer_state)ivc_load_relaxed(&peer->state);
}

static inline bool ivc_peer_is_attached(const struct ivc_peer *peer)
{
    return peer->member.slot != IVC_SLOT_ANY;
}

/* Acquire: pairs with the release in ivc_peer_attach(); the peer's fields are visible. */
static inline struct ivc_peer *ivc_endpoint_peer(const struct ivc_endpoint *endpoint, uint32_t slot)
{
    return ivc_load_acquire(&endpoint->home.peers[slot]);
}

/* Memory leads to it: it may be read and written. */
static inline bool ivc_peer_uses_memory(const struct ivc_peer *peer)
{
    enum ivc_peer_state state = ivc_peer_state(peer);

    return state == IVC_PEER_CONNECTED || state == IVC_PEER_ACTIVE;
}

/* No network leads there: when the pair is suspended, each reads the other's ring to its end. */
static inline bool ivc_peer_is_memory_only(const struct ivc_endpoint *endpoint,
                                           const struct ivc_peer *peer)
{
    return !endpoint->network || peer->network.provider == 0;
}

/* What comes by network before the first packet of its ring has come. */
static inline bool ivc_peer_ring_is_due(const struct ivc_peer *peer)
{
    return (int32_t)(peer->remote_received - peer->rx.after) >= 0;
}

/* Whoever of this endpoint sleeps looks again. */
static inline void ivc_endpoint_rouse(struct ivc_endpoint *endpoint)
{
    ivc_wake_send(&endpoint->wake, &(struct ivc_wake_target){ endpoint->id, true, { 0 } });
}

/* The next turn of progress has something to do about peers, or to tell the adapter. */
static inline void ivc_endpoint_leave_to_progress(struct ivc_endpoint *endpoint)
{
    /* Relaxed: progress takes what it is about under the exclusion that we have now. */
    ivc_store_relaxed(&endpoint->news, 1);
    /* Whoever lies down says so and then looks at the news: one of us sees the other. */
    atomic_thread_fence(memory_order_seq_cst);
    if (ivc_load_relaxed(&endpoint->asleep))
        ivc_endpoint_rouse(endpoint);
}

/* peer.c */
/* By id; NULL: nobody's.  Free of the lock. */
struct ivc_peer *ivc_peer_find(struct ivc_endpoint *endpoint, uint64_t id);
/* Calls `fn` for every peer there ever was, until it answers other than 0. */
int ivc_peers_each(struct ivc_endpoint *endpoint, int (*fn)(struct ivc_endpoint *, struct ivc_peer *));
/* A new peer in state CLOSED, which nobody finds yet; NULL: out of memory. */
struct ivc_peer *ivc_peer_new(uint64_t id);
/* Under send_lock: from now on it is found. */
void ivc_peer_publish(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Under send_lock: the member's peer, made and attached when that may be.  IVC_E_FULL: not now. */
int ivc_peer_make(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                  struct ivc_peer **ret_peer);
/* Under send_lock: attaches a peer in state CLOSED to the member that it has become.  IVC_E_GONE: the
 * member has left.  IVC_E_FULL: it is about to. */
int ivc_peer_attach(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                    const struct ivc_member *member);
/* The same for one that is about to leave. */
int ivc_peer_attach_ordered(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                            const struct ivc_member *member);
/* Under send_lock: the attachment is over; `slot` may be another's. */
void ivc_peer_detach(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
int ivc_peer_open_tx(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
void ivc_peer_set_state(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                        enum ivc_peer_state state, const char *reason);
/* Under `polling`: ends the connection and tells the adapter. */
void ivc_peer_end(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason);

/* poll.c.  Under `polling`. */
/* Maps the peer's ring if it has made one.  1: not yet, because of what comes before it by network.
 * Negative: it is no ring. */
int ivc_poll_map_rx(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* The same as long as memory leads there, and has a look at it now and then. */
void ivc_poll_open_rx(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* The same, and looks at it from now on. */
void ivc_poll_welcome_ring(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Ends the slot's peer if its process is gone: a new one may be there.  Takes `polling`, if it can. */
void ivc_poll_check_peer(struct ivc_endpoint *endpoint, uint32_t slot);
bool ivc_poll_region_is_lost(struct ivc_endpoint *endpoint);
/* Takes all that is in its ring; false when the adapter wants no more for now. */
bool ivc_poll_drain(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Looks at its ring no more, which stays mapped. */
void ivc_poll_turn_away(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
void ivc_poll_forget(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Looks at all rings through their doorbells from now on: nothing is watched.  True when there is
 * something in one already, or somebody else is polling. */
bool ivc_poll_unwatch_all(struct ivc_endpoint *endpoint);
/* The same for the rings that this made unwatched, a moment later. */
bool ivc_poll_any_ready(struct ivc_endpoint *endpoint);
/* We sleep: our own threads wake us, those who have no room, and those who ring as well when they are told. */
void ivc_poll_lie_down(struct ivc_endpoint *endpoint, bool tell);
void ivc_poll_get_up(struct ivc_endpoint *endpoint);
/* Whether others are told to wake us: so it was said, and no ring is watched. */
bool ivc_poll_is_down(struct ivc_endpoint *endpoint);
/* Whether a doorbell was rung, or there is news of peers. */
bool ivc_poll_is_due(struct ivc_endpoint *endpoint);
/* Nobody makes progress until it is let go on. */
void ivc_poll_stop(struct ivc_endpoint *endpoint);
void ivc_poll_go_on(struct ivc_endpoint *endpoint);

/* residence.c */
/* The region of that name, joined, with all that an endpoint needs there.  Answers as
 * ivc_endpoint_open().  Needs no lock: nothing of it is the endpoint's yet. */
int ivc_residence_open(struct ivc_endpoint *endpoint, struct ivc_region *region,
                       struct ivc_residence *ret_residence);
/* The pool whose chunks the slot's owner can read; NULL: out of memory, with a text.  It is empty until it is
 * opened (with a first chunk then), and closed when that owner is attached no more and all chunks are back. */
struct ivc_pool *ivc_residence_pool(struct ivc_residence *residence, uint32_t slot);
int ivc_residence_open_pool(struct ivc_endpoint *endpoint, struct ivc_pool *pool, uint32_t slot);
/* Bytes of chunks that a receiver gives back at a time at most; 0: as many as it likes. */
uint64_t ivc_residence_give_back_max(const struct ivc_endpoint *endpoint);
void ivc_residence_close_pool(struct ivc_residence *residence, uint32_t slot);
/* A chunk that the adapter held. */
void ivc_residence_put_chunk(struct ivc_residence *residence, struct ivc_pool *pool, uint32_t chunk);
/* The helper, with the gate closed. */
void ivc_residence_move_in(struct ivc_endpoint *endpoint, const struct ivc_residence *residence);
int ivc_residence_move_out(struct ivc_endpoint *endpoint);
/* One that was opened and is not to be lived in.  Peers may have attached to the member that they saw:
 * they are told that it has moved, not that it left for good. */
void ivc_residence_give_back(struct ivc_residence *residence);
/* There is none. */
void ivc_residence_none(struct ivc_endpoint *endpoint);
/* Accept an endpoint whose opening failed half way. */
void ivc_residence_close(struct ivc_residence *residence);
void ivc_residences_free(struct ivc_endpoint *endpoint);
/* A chunk of a former home came back. */
void ivc_residence_put(struct ivc_endpoint *endpoint, uint32_t number);
/* What was written there is no more. */
bool ivc_residence_is_lost(const struct ivc_endpoint *endpoint, uint32_t number);

/* suspend.c: the helper, with the gate closed. */
/* We stop: nothing is written to it or read from it through memory any more. */
void ivc_peer_suspend(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason);
/* Ends the suspension if the peer has stopped as well, has left or died. */
void ivc_peer_try_close(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* What we sent and it may not have read: a copy in private memory, so that whatever becomes of the region
 * nothing of it is lost.  Nothing is written to the ring any more.  IVC_E_FULL: the memory was taken away
 * already, and nothing is kept.  Under send_lock, or the helper; so are the next two. */
int ivc_peer_keep_sent(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Of the packets in our ring, as ivc_lost_note() has it, the peer has read `head`: the others of that copy
 * go by network.  Negative when that cannot be. */
int ivc_peer_settle(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t head);
/* The attachment is over. */
void ivc_peer_close_pair(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Under `polling`: what the helper found out, told to the adapter. */
void ivc_suspend_tell(struct ivc_endpoint *endpoint);

/* helper.c */
int ivc_helper_start(struct ivc_endpoint *endpoint);
void ivc_helper_stop(struct ivc_endpoint *endpoint);
/* For a thread that is not the application's: no call of the application is under way between these. */
void ivc_endpoint_stop(struct ivc_endpoint *endpoint);
void ivc_endpoint_go_on(struct ivc_endpoint *endpoint);

/* wait.c */
void ivc_wait_free(struct ivc_endpoint *endpoint);

#endif
