/* What the files of this folder share, and nobody else sees. */
#ifndef IVC_REGION_INTERNAL_H
#define IVC_REGION_INTERNAL_H

#include "region/blocks.h"
#include "region/grants.h"
#include "region/mechanism.h"
#include "region/order.h"
#include "region/region.h"
#include "region/window.h"

#include <pthread.h>

/* What we last saw of another slot, to tell silence from life.  Times are our own clock's: clocks
 * of two guests are never compared. */
struct ivc_sight {
    uint64_t state;
    uint64_t heartbeat;
    uint64_t since_ms;      /* both have been as they are since then */
    bool beats;             /* it was seen to move under this state */
};

/* Memory that the application has, by address. */
struct ivc_lent {
    struct ivc_share *pieces;
    size_t n, room;
};

/* Our link table.  Where its parts are we know by ourselves: the root others could write. */
struct ivc_links {
    struct ivc_share root;
    struct ivc_share spares[IVC_LAYOUT_LINK_PARTS];     /* for the next parts */
    uint32_t n_spares;
    _Atomic(struct ivc_layout_link *) parts[IVC_LAYOUT_LINK_PARTS];    /* NULL: not made yet */
};

/* What shows the others of our kernel that we are of it: presence.c. */
struct ivc_presence {
    int fd;                 /* 0, -1: nothing */
    uint64_t dev, ino;      /* its identity: the application may have closed our descriptor */
};

struct ivc_region {
    const struct ivc_mechanism *mechanism;
    char name[256];
    struct ivc_mapping mapping;
    struct ivc_grants *grants;      /* of the mapping; NULL: it is a window that all members share */
    struct ivc_window_geometry geometry;
    uint32_t lease_ms;      /* as it was when we opened */

    struct ivc_layout_member identity;  /* our kernel and process, as read when we opened */
    struct ivc_member self;
    struct ivc_presence presence;   /* while we are a member */
    ivc_atomic_u64 *kernels;        /* per slot what ivc_member_same_kernel() has found */
    const struct ivc_wake *wake;    /* NULL: none */
    bool joined;
    bool stores_guarded;    /* retire.c catches faults in the window */
    bool retired;           /* `mapping` is private memory; its device or file is gone from here */
    bool lost;              /* ... and what lay in the region was taken away before that */
    struct ivc_links links;
    ivc_atomic_u32 spread;          /* where the guard's rounds begin: members differ */
    struct ivc_lent lent;
    char *last_words;               /* for when what was lent is lost; NULL: the process goes on */
    struct ivc_region *next_lender;     /* lenders.c */
    uint64_t last_beat_ms;          /* the guard's */
    uint64_t uuid[2], epoch;        /* as they were when we opened: others are another region */
    struct ivc_order_watch orders;  /* of whoever calls ivc_region_orders_look() */

    /* Taken by sharers and by the guard's reclaiming.  Never held while waiting. */
    pthread_mutex_t lock;
    struct ivc_blocks blocks;
    ivc_atomic_u64 *reserved;       /* reserve.c: a bit per block; NULL: pages are there in any case */
    struct ivc_sight *sights;       /* one per slot; under `lock` */

    /* The guard: the helper thread. */
    pthread_t guard;
    bool guard_runs;
    bool guard_stop;                /* under `lock` */
    pthread_cond_t guard_wake;
    ivc_atomic_u32 *watched;        /* generation per slot, 0: not watched */
    ivc_atomic_u32 alarm;
};

/* Blocks of a window for us, in which may be anything: ivc_region_share() without the zeroes. */
int ivc_region_take(struct ivc_region *region, uint64_t size, struct ivc_share *ret_share);
/* reserve.c: that touching these blocks, which we have taken, cannot fail.  IVC_E_NOSPACE, with a text. */
int ivc_reserve_open(struct ivc_region *region);
int ivc_reserve(struct ivc_region *region, uint64_t first, uint64_t count);
/* Makes zeroes of pages that were taken. */
void ivc_region_clear(void *memory, uint64_t size);

/* The directory's slot in the window. */
struct ivc_layout_member *ivc_region_slot(const struct ivc_region *region, uint32_t slot);

/* member.c: says LEFT; false: we were taken for dead.  What is unread may then be freed.  Needs no
 * more of the region than its mapping, geometry and self. */
bool ivc_member_say_left(struct ivc_region *region);

/* inbox.c: the slot's owner has rung; `insist`: because it has no room for more. */
void ivc_inbox_rung(struct ivc_region *region, uint32_t slot, bool insist);

/* links.c: our table, without a part, but with the memory for the first. */
int ivc_links_open(struct ivc_region *region);
void ivc_links_close(struct ivc_region *region);    /* that nobody has seen */

/* identity.c: who we are, and whether a process of our own kernel still exists. */
void ivc_member_describe_self(struct ivc_layout_member *ret_member);
/* What it says of its kernel and process id namespace is what we say of ours: so may a copy's. */
bool ivc_member_may_be_here(const struct ivc_layout_member *own, const struct ivc_layout_member *member);
/* It was seen, while it lived, to be of our kernel and our process id namespace: by our own eyes, and for
 * that generation of the slot.  Looked up once, so ask while it lives. */
bool ivc_member_same_kernel(const struct ivc_region *region, uint32_t slot, uint32_t generation);
/* Of our own kernel only. */
bool ivc_member_process_exists(const struct ivc_layout_member *member);

/* presence.c: held from before our entry is published until we have left.  Without it (no /proc) the
 * others go by our heartbeat. */
void ivc_presence_open(struct ivc_presence *presence, uint64_t endpoint_id);
void ivc_presence_close(struct ivc_presence *presence);
bool ivc_presence_is_here(uint64_t endpoint_id);

/* reclaim.c: finds the dead, frees what they had.  Called under `lock`. */
/* Frees what the slot's owner, which has left or died, had: if nobody reads it any more. */
void ivc_reclaim_if_unread(struct ivc_region *region, uint32_t slot);
/* When all of a group have left, what they have left is free at once. */
void ivc_reclaim_group(struct ivc_region *region, uint64_t magic_id);
void ivc_reclaim_look(struct ivc_region *region, uint32_t slot, bool suspicious);

/* order.c */
struct ivc_layout_order *ivc_order_at(const struct ivc_region *region, uint32_t place);

/* retire.c: nothing unless the region is retired. */
void ivc_retire_end(struct ivc_region *region);
void ivc_retire_unshare(const struct ivc_share *share);
/* All that was lent is lost with the region. */
void ivc_lend_lost(const struct ivc_region *region);

/* lenders.c: what it lends is found by ivc_region_find_lent(), from its first piece on and until its window
 * is about to go.  Each may be called again. */
void ivc_lenders_add(struct ivc_region *region);
void ivc_lenders_remove(struct ivc_region *region);

/* farewell.c: what is said when the window is replaced already. */
struct ivc_farewell {
    void *room;             /* NULL: nothing to be said */
    uint64_t room_size;
    char *second;           /* in `room`: the window once more, as much of it as is mapped */
    bool whole;             /* that is all of it */
};
/* Before: all that can fail, with a text. */
int ivc_farewell_prepare(const struct ivc_region *region, struct ivc_farewell *ret_farewell);
/* Says that we have left, and frees what is unread. */
void ivc_farewell_say(const struct ivc_region *region, const struct ivc_farewell *farewell);
void ivc_farewell_free(struct ivc_farewell *farewell);

/* guard.c */
int ivc_guard_start(struct ivc_region *region);
void ivc_guard_stop(struct ivc_region *region);

enum {
    IVC_HEARTBEAT_MS = 100,
    /* At least this long from the moment a member is marked until its blocks are used again: whoever
     * opens a channel to it at that moment has said so, or has seen the mark, long before. */
    IVC_QUARANTINE_MS = 300,
};

#endif
