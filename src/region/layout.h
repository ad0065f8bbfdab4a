/*
 * Layout of a window: one piece of memory that several guests map whole.
 *
 *   0          +-------------------------------------------------------------+
 *              | header (one page): magic, version, size, UUID, epoch, ...    |
 *   members    +-------------------------------------------------------------+
 *              | capacity x struct ivc_layout_member (256 bytes)              |
 *   inboxes    +-------------------------------------------------------------+
 *              | capacity x inbox: summary line | ready bits | watched bits   |
 *   owners     +-------------------------------------------------------------+
 *              | one 32-bit owner word per block                              |
 *   blocks     +-------------------------------------------------------------+
 *              | blocks of 4096 bytes: all else (link tables, rings, pools)   |
 *   size       +-------------------------------------------------------------+
 *
 * Rules that everything rests on:
 *  - Memory that was never used is zero, and zero is the initial state of every structure.  So
 *    formatting only writes header fields that depend on nothing but the size, or that are taken
 *    by whoever is first (compare-and-swap from zero); any number of guests may format at once.
 *  - Offsets, never pointers; fixed-width, little-endian.
 *  - A byte outside the header, the state words, the owner words, the ready bits and the words of
 *    sleep is written by one process only: the member that owns it.
 */
#ifndef IVC_REGION_LAYOUT_H
#define IVC_REGION_LAYOUT_H

#include "base/atomics.h"

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the layout is little-endian; this machine is not"
#endif

#define IVC_LAYOUT_MAGIC 0x314e495743564923ull  /* "#IVCWIN1" in memory order */
#define IVC_LAYOUT_VERSION 3u

enum {
    IVC_LAYOUT_PAGE = 4096,             /* header and block size */
    IVC_LAYOUT_MEMBER_SIZE = 256,
    IVC_LAYOUT_CAPACITY_MIN = 64,       /* a multiple of 64: bit maps are whole words */
    IVC_LAYOUT_CAPACITY_MAX = 4096,     /* 12 bits of an owner word */
    IVC_LAYOUT_SIZE_PER_MEMBER = 256 * 1024,
    IVC_LAYOUT_SIZE_MIN = 1024 * 1024,
};

/* Page 0.  Written while formatting, constant afterwards. */
struct ivc_layout_header {
    ivc_atomic_u64 magic;       /* published last: everything else is valid when it is set */
    ivc_atomic_u32 version;
    ivc_atomic_u32 capacity;    /* members; follows from size */
    ivc_atomic_u64 size;        /* bytes; first formatter's */
    ivc_atomic_u64 uuid[2];     /* each half the first formatter's: random either way */
    ivc_atomic_u64 epoch;       /* first formatter's time in ns; a region made anew has another */
    ivc_atomic_u64 members;     /* offsets of the tables; follow from size */
    ivc_atomic_u64 inboxes;
    ivc_atomic_u64 owners;
    ivc_atomic_u64 blocks;
    ivc_atomic_u64 n_blocks;
    ivc_atomic_u32 lease_ms;    /* silence after which a member of another kernel is dead */
    uint32_t reserved;
    ivc_atomic_u64 tenant;      /* hash of the tenant's name, the first formatter's; 0: anyone */
    ivc_atomic_u64 tenant_name[4];  /* for people; zero-padded */
};
_Static_assert(sizeof(struct ivc_layout_header) <= IVC_LAYOUT_PAGE, "the header is one page");
_Static_assert(offsetof(struct ivc_layout_header, uuid) == 24, "fixed by the version");

/*
 * An order of the host, in page 0: the processes of one guest are to let go of the region, because
 * its device will be pulled.  `state` is a serial number (32 bits) and a phase; one who wants to ask
 * takes a free one by compare-and-swap.  An order whose heartbeat stands still for the lease is void:
 * whoever asked has died.
 */
enum ivc_order_phase {
    IVC_ORDER_FREE = 0,
    IVC_ORDER_WRITING,  /* taken; `vm` is not valid yet */
    IVC_ORDER_ASKED,
};
struct ivc_layout_order {
    ivc_atomic_u64 state;
    ivc_atomic_u64 vm;          /* identity of the guest, as in its members' entries */
    ivc_atomic_u64 heartbeat;   /* counts up while whoever asked lives */
    uint8_t pad[40];
};
_Static_assert(sizeof(struct ivc_layout_order) == 64, "one cache line");
enum {
    IVC_LAYOUT_ORDERS_AT = 2048,    /* in page 0 */
    IVC_LAYOUT_ORDERS = 32,
};
_Static_assert(sizeof(struct ivc_layout_header) <= IVC_LAYOUT_ORDERS_AT
               && IVC_LAYOUT_ORDERS_AT + IVC_LAYOUT_ORDERS * sizeof(struct ivc_layout_order)
                  <= IVC_LAYOUT_PAGE, "header and orders share page 0");

/* A member's state word: generation (32 bits) and phase.  The generation counts the owners that
 * a slot has had, so (slot, generation) never means two processes. */
enum ivc_phase {
    IVC_PHASE_FREE = 0,
    IVC_PHASE_JOINING,  /* taken; fields not valid yet */
    IVC_PHASE_ACTIVE,
    IVC_PHASE_LEFT,     /* left in order; blocks in quarantine */
    IVC_PHASE_DEAD,     /* found dead by another member; blocks in quarantine */
};

static inline uint64_t ivc_layout_state(uint32_t generation, enum ivc_phase phase)
{
    return (uint64_t)generation << 32 | (uint64_t)phase;
}

static inline uint32_t ivc_layout_generation(uint64_t state)
{
    return (uint32_t)(state >> 32);
}

static inline enum ivc_phase ivc_layout_phase(uint64_t state)
{
    return (enum ivc_phase)(uint32_t)state;
}

/* Where a member that sleeps is woken by UDP; see region/wake.h. */
struct ivc_layout_wake {
    uint16_t family;            /* 4, 6; 0: nowhere */
    uint16_t port;
    uint8_t address[16];        /* of IPv4: the first 4 bytes */
};

/* One slot of the directory.  Written by its owner, but for `state`. */
struct ivc_layout_member {
    ivc_atomic_u64 state;
    uint64_t magic_id;
    uint32_t client_id;
    uint32_t pid;
    uint64_t pid_start;         /* field 22 of /proc/PID/stat: tells a reused pid */
    uint64_t pid_namespace;     /* inode of /proc/self/ns/pid */
    uint8_t boot_id[16];        /* of its kernel: the identity of a running guest */
    ivc_atomic_u64 links;       /* offset of its link table's root */
    char host[64];
    uint64_t endpoint_id;       /* random; who this is wherever it goes: part of its address */
    ivc_atomic_u32 lends;       /* 1: applications have memory of it, which others may reach through
                                   any member of the same process */
    ivc_atomic_u32 features;    /* enum ivc_feature, or-ed; 0: a library of before */
    uint8_t network[40];        /* where its network is (struct ivc_network_name); zeros: none */
    uint64_t vm;                /* identity of its guest, for orders; 0: a library of before */
    ivc_atomic_u64 heartbeat;   /* counts up while the process lives; a line of its own */
    struct ivc_layout_wake wake;
    uint8_t pad[36];
};
_Static_assert(sizeof(struct ivc_layout_member) == IVC_LAYOUT_MEMBER_SIZE, "fixed by the version");
_Static_assert(offsetof(struct ivc_layout_member, vm) == 184, "fixed by the version");
_Static_assert(offsetof(struct ivc_layout_member, heartbeat) == 192, "a line of its own");

enum ivc_feature {
    IVC_FEATURE_ORDERS = 1,     /* does what orders ask for */
    IVC_FEATURE_MOVED = 2,      /* has left this region, and is to be found elsewhere */
};

/* The first line of an inbox. */
struct ivc_layout_bell {
    ivc_atomic_u64 summary;     /* which words of the ready bits have something */
    ivc_atomic_u32 sleep;       /* enum ivc_sleep */
    uint8_t pad[52];
};
_Static_assert(sizeof(struct ivc_layout_bell) == 64, "one cache line");

/* Written by the owner; by whoever wakes it, from ASLEEP or STILL to RUNG, so that one does it. */
enum ivc_sleep { IVC_AWAKE, IVC_ASLEEP, IVC_RUNG, IVC_STILL };

/* Owner word of a block: 0 is free, else slot + 1 (12 bits and one) and generation (19 bits). */
static inline uint32_t ivc_layout_owner(uint32_t slot, uint32_t generation)
{
    return (slot + 1) << 19 | (generation & 0x7ffffu);
}

/*
 * A line of a link table: what its owner tells one peer.  Under mechanisms with pairwise pages it
 * opens the pair's first page.  In a window the lines of 64 neighbouring slots are a block, a part of
 * the table; its root is a block with the offset of each part, 0 where there is none yet.
 */
struct ivc_layout_link {
    ivc_atomic_u32 generation;  /* of the peer that this line is meant for; 0: none */
    ivc_atomic_u32 ring_size;   /* bytes at `ring`; valid when ring is not 0 */
    ivc_atomic_u64 ring;        /* handle of the ring from the owner to the peer; 0: none yet */
    ivc_atomic_u64 head;        /* slots of the peer's ring that the owner has consumed */
    /* 1: the owner reads and writes nothing of this pair any more but this line of the peer's: `head`
     * is final, and so is the ring.  2: nor that.  Cleared when the line is addressed to someone else. */
    ivc_atomic_u32 suspended;
    ivc_atomic_u32 reading;     /* what it takes the owner to read the peer's chunks (channel/fill.h) */
    uint8_t pad[32];
};
_Static_assert(sizeof(struct ivc_layout_link) == 64, "one cache line");
enum {
    IVC_LAYOUT_LINKS_PER_PART = 64,
    IVC_LAYOUT_LINK_PARTS = IVC_LAYOUT_CAPACITY_MAX / IVC_LAYOUT_LINKS_PER_PART,
};
enum ivc_link_suspended { IVC_LINK_NOT_SUSPENDED, IVC_LINK_IS_SUSPENDED, IVC_LINK_IS_DONE };

#endif
