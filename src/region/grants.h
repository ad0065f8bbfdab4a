/*
 * Grants: the other family of mechanisms, pages that one member shares with exactly one other.
 *
 * There is no window that all see, so each process keeps one of its own, of private memory, and all of
 * this folder goes on as if it were shared: the directory is filled in from what a store says (in Xen:
 * XenStore), at the places of blocks there are the pages that we have granted, and behind the blocks
 * there is one page for each slot of the directory, at which its owner's pair page is mapped.
 *
 *   0            +--------------------------------------------------------------+
 *                | as in region/layout.h; slots are this process's own numbers   |
 *   header.size  +--------------------------------------------------------------+
 *                | capacity x the pair page of the slot's owner for us, or zeroes |
 *                +--------------------------------------------------------------+
 *
 * A pair page is granted read-only by its owner to the one peer; so is every other page.  So nobody
 * writes what is another's, and a peer that dies or goes mad takes nobody's memory along.
 *
 * Threads: one of its own per joined region takes events and news of the store.  `lock` of the region
 * guards the directory and the pairs; what is mapped at a slot's place is replaced in one step.
 */
#ifndef IVC_REGION_GRANTS_H
#define IVC_REGION_GRANTS_H

#include "region/mechanism.h"
#include "region/region.h"

#define IVC_PAIR_MAGIC 0x50435649u      /* "IVCP" */
#define IVC_PAIR_VERSION 1u

/* What a member grants to one peer, and tells it.  Written by its owner only. */
struct ivc_pair_page {
    ivc_atomic_u32 magic;       /* published last */
    uint32_t version;
    uint32_t generation;        /* of the owner */
    uint32_t for_generation;    /* of the peer */
    ivc_atomic_u32 state;       /* enum ivc_pair_state */
    ivc_atomic_u32 alive;       /* 1; its first byte is cleared when the owner's process ends */
    ivc_atomic_u32 mapped;      /* 1: the owner has mapped the peer's page; before, the two lines count for nothing */
    uint8_t pad[36];
    struct ivc_layout_link link;
    ivc_atomic_u64 watched;     /* 1: the owner looks at the peer's ring by itself */
    uint8_t pad2[56];
    ivc_atomic_u64 rung;        /* times that the owner has rung */
    ivc_atomic_u64 insisted;    /* `rung` when it had no room for more */
    uint8_t pad3[48];
    ivc_atomic_u64 seen;        /* the peer's `rung`, as the owner has seen it last */
    uint8_t pad4[56];
    ivc_atomic_u64 heartbeat;
    uint8_t pad5[56];
    ivc_atomic_u32 refs[928];   /* references of what is shared besides; a handle is a place here, and 1 */
};
_Static_assert(sizeof(struct ivc_pair_page) == IVC_LAYOUT_PAGE, "a page");
_Static_assert(offsetof(struct ivc_pair_page, link) == 64, "a line of its own");
enum { IVC_PAIR_REFS = 928 };

enum ivc_pair_state {
    IVC_PAIR_HERE = 1,
    IVC_PAIR_LEFT,              /* for good */
    IVC_PAIR_MOVED,             /* lives, and is to be found elsewhere */
};

struct ivc_grant_news {
    char token[16];             /* of the watch */
    char name[24];              /* the last part of the path that has changed */
};

/*
 * What grants are made of: pages, events, and a store of texts.  Negative errno, with a text where
 * that is said.  A domain is a number that the store and the grants go by.
 */
struct ivc_grant_backend {
    const char *name;
    /* Of this guest.  IVC_E_NOREGION or negative, with a text: nothing of the kind here, or no permission. */
    int (*open)(void **ret_backend, uint32_t *ret_domain);
    void (*close)(void *backend);
    /* Whether we are still the same domain of the same host. */
    bool (*is_there)(void *backend, uint32_t domain);
    /* Pages that a guest may grant at a time, all processes of it together. */
    uint32_t (*pages_max)(void *backend);

    /* Puts `n` new pages, zeroed, at `place`, and tells their references.  They are granted until
     * something else is mapped there.  IVC_E_NOSPACE, with a text.  When `port` is not 0, the end of that
     * mapping, by whatever way, clears the byte at `place` + `byte` and rings there. */
    int (*grant)(void *backend, uint32_t domain, uint32_t n, void *place, uint32_t *ret_refs,
                 uint32_t port, uint32_t byte);
    /* Maps what another has granted, to be read, at `place` or (NULL) anywhere. */
    int (*map)(void *backend, uint32_t domain, uint32_t n, const uint32_t *refs, void *place,
               void **ret_memory);

    /* One end of an event channel: the one side makes it, the other joins by the number. */
    int (*port_make)(void *backend, uint32_t domain, uint32_t *ret_port);
    int (*port_join)(void *backend, uint32_t domain, uint32_t remote_port, uint32_t *ret_port);
    void (*port_ring)(void *backend, uint32_t port);
    void (*port_close)(void *backend, uint32_t port);
    /* What came: a port, or 0.  The descriptor is readable when something has. */
    int (*events_fd)(void *backend);
    uint32_t (*event_take)(void *backend);

    /* Calls `fn` for each domain that there may be, until it answers false.  None that there is, is left out. */
    void (*domains)(void *backend, bool (*fn)(void *arg, uint32_t domain), void *arg);

    /* Texts under a path of a domain's own.  Only we write ours.  `reader`: the one domain that may read
     * it, or IVC_GRANT_ALL. */
    int (*put)(void *backend, const char *path, const char *text, uint32_t reader);
    void (*drop)(void *backend, const char *path);
    /* -ENOENT also: we may not.  The caller frees. */
    int (*get)(void *backend, uint32_t domain, const char *path, char **ret_text);
    /* Calls `fn` for each name there. */
    void (*list)(void *backend, uint32_t domain, const char *path, void (*fn)(void *arg, const char *name),
                 void *arg);
    /* A path of ours at which any domain may knock, and a knock at that of another, which names ours.  What
     * is said there counts for nothing but "look at me". */
    int (*open_door)(void *backend, const char *path);
    void (*knock)(void *backend, uint32_t domain, const char *path);
    /* News of such a path and of what is below: the descriptor becomes readable, at once for the first time.
     * -ENOSPC: no more of them, look yourself. */
    int (*watch)(void *backend, uint32_t domain, const char *path, const char *token);
    void (*unwatch)(void *backend, uint32_t domain, const char *path, const char *token);
    int (*news_fd)(void *backend);
    /* Takes the next one; false: none. */
    bool (*news_take)(void *backend, struct ivc_grant_news *ret_news);
};
#define IVC_GRANT_ALL UINT32_MAX

extern const struct ivc_grant_backend ivc_grant_xen;
/* The region `xen` is made of another backend from now on: for tests without Xen. */
void ivc_grants_use(const struct ivc_grant_backend *backend);

/* A region's side of it; region->grants is NULL in a window. */
struct ivc_grants;

/* For ivc_mechanism.map(): the private window. */
int ivc_grants_open(const struct ivc_grant_backend *backend, struct ivc_mapping *ret_mapping);
void ivc_grants_free(struct ivc_grants *grants);
bool ivc_grants_is_there(const struct ivc_grants *grants);

/* The rest is what the files of this folder do for regions without a window. */
int ivc_grants_join(struct ivc_region *region);
/* Tells all peers, ends the thread, and takes back all that is between us and them. */
void ivc_grants_leave(struct ivc_region *region, enum ivc_pair_state state);
/* Then, when nothing of ours is granted any more: takes our record out of the store.  Whoever has asked
 * this guest to leave takes that for our answer. */
void ivc_grants_forget(struct ivc_region *region);
/* Does that if it is due, and closes the backend: the region is retired. */
void ivc_grants_let_go(struct ivc_region *region);
/* Takes all members into the directory that have told of themselves, of whatever domain. */
void ivc_grants_look_at_all(struct ivc_region *region);
/* Under the region's lock, each beat. */
void ivc_grants_beat(struct ivc_region *region);
/* Under the region's lock: nothing of that slot's owner is needed any more. */
void ivc_grants_bury(struct ivc_region *region, uint32_t slot);
/* The member of that domain; IVC_E_GONE. */
int ivc_grants_find(struct ivc_region *region, uint32_t domain, uint64_t endpoint_id,
                    struct ivc_member *ret_member);
uint32_t ivc_grants_domain(const struct ivc_region *region);

int ivc_grants_share(struct ivc_region *region, uint32_t slot, uint64_t size, struct ivc_share *ret_share);
void ivc_grants_unshare(struct ivc_region *region, const struct ivc_share *share);
int ivc_grants_map(struct ivc_region *region, uint32_t slot, uint64_t handle, uint64_t size,
                   const void **ret_memory);
void ivc_grants_unmap(const void *memory, uint64_t size);

int ivc_grants_make_link(struct ivc_region *region, uint32_t slot);
struct ivc_layout_link *ivc_grants_own_link(const struct ivc_region *region, uint32_t slot);
const struct ivc_layout_link *ivc_grants_link(const struct ivc_region *region, uint32_t owner,
                                              uint32_t slot);

void ivc_grants_doorbell(struct ivc_region *region, uint32_t slot, struct ivc_doorbell *ret_bell);
void ivc_grants_ring(const struct ivc_doorbell *bell, bool insist);
void ivc_grants_set_watched(struct ivc_region *region, uint32_t slot, bool watched);
/* The ring of that slot is about to be looked at. */
void ivc_grants_take(struct ivc_region *region, uint32_t slot);

#endif
