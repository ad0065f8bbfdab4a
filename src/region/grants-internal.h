/* What grants.c and pairs.c share, and nobody else sees. */
#ifndef IVC_REGION_GRANTS_INTERNAL_H
#define IVC_REGION_GRANTS_INTERNAL_H

#include "region/grants.h"
#include "region/internal.h"

enum {
    IVC_MISSED = 2,             /* looks in a row that did not find its record: it has left */
    IVC_GRANT_PATH = 80,
    IVC_GRAVES = 64,
};

/* What we have with the owner of one slot.  All zero: nothing. */
struct ivc_pair {
    uint32_t domain;
    struct ivc_share own;       /* our pair page for it */
    ivc_atomic_u64 own_page;    /* its address; 0: none (read without the lock) */
    bool mapped;                /* its pair page is */
    bool met;                   /* ... and it has mapped ours, as we know */
    bool watched;               /* in the store */
    bool told;                  /* our page is, in the store */
    ivc_atomic_u32 port;        /* our end of the event channel; 0: none (read without the lock) */
    bool joined;                /* ... which the peer has made */
    uint64_t insisted;          /* of its page, when we looked last */
    uint64_t heartbeat_seen;
    unsigned missed;            /* looks that did not find its record, until now */
};

/* Of each block that holds pages we have granted: to whom, and where its references stand. */
struct ivc_granted {
    uint32_t slot;
    uint32_t place;             /* 0: the pair page itself, which has none */
};

struct ivc_grave {
    uint64_t id;
    uint32_t generation;
};

struct ivc_grants {
    const struct ivc_grant_backend *backend;
    void *handle;
    uint32_t domain;            /* ours */
    uint64_t window_size;
    struct ivc_window_geometry geometry;
    char *window;
    struct ivc_pair *pairs;     /* by slot; under the region's lock */
    struct ivc_granted *blocks; /* likewise */
    uint64_t admitted;          /* members taken into the directory so far; likewise */
    struct ivc_grave graves[IVC_GRAVES];    /* those whose record may still be there */
    unsigned next_grave;
    pthread_t thread;
    bool thread_runs;
    int stop_fd;
    uint32_t scan_from;         /* the thread's: the next domain to be asked */
    unsigned beat, beat_told;   /* likewise, once it runs: of the order that stands; what our record says */
};

#define IVC_GRANT_DOOR "ivc-knock"
#define IVC_GRANT_ORDER "ivc-order"

/* All under the region's lock. */
/* What the slot's owner says of itself is still in the store. */
bool ivc_grants_has_record(const struct ivc_region *region, uint32_t slot);
/* News of that member come from now on, if the store can. */
void ivc_pair_watch(struct ivc_region *region, uint32_t slot);
/* Maps its pair page for us, when it has made one and says so. */
void ivc_pair_look(struct ivc_region *region, uint32_t slot);
void ivc_pair_rung(struct ivc_region *region, uint32_t slot);
/* Our life to it, its life to the directory. */
void ivc_pair_beat(struct ivc_region *region, uint32_t slot);
void ivc_pair_say_left(struct ivc_region *region, uint32_t slot, enum ivc_pair_state state);
/* It has a channel with us, lives, and is not about to leave itself. */
bool ivc_pair_is_read(const struct ivc_region *region, uint32_t slot);
/* Takes back all that is between us. */
void ivc_pair_release(struct ivc_region *region, uint32_t slot);

#endif
