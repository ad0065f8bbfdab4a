/*
 * Region: memory shared with processes of other guests, and who those are.
 *
 * The contract fits two families of mechanism.  A *window* is one piece of memory that every
 * member maps: to share is to allocate from it, a handle is an offset.  *Grants* are pages shared
 * with one peer each: to share is to grant, a handle is a list of references.  Callers see shares,
 * handles, link lines and doorbells, never the difference.
 *
 * Threads: one helper thread per joined region beats the heart and watches the peers; it touches
 * nothing that a caller holds.  All other calls are made under the caller's lock, except those
 * said to be free of it.
 */
#ifndef IVC_REGION_REGION_H
#define IVC_REGION_REGION_H

#include "base/atomics.h"
#include "region/layout.h"
#include "region/wake.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ivc_region;

#define IVC_SLOT_ANY UINT32_MAX     /* share with every member */

/* How a mapping behaves, from a measurement at opening. */
struct ivc_mapping_speed {
    double read_ns;         /* one load of a line that was just loaded */
    bool cached;            /* write-back, as far as that load tells */
};

/* Loads slower than this are not served by a cache: a hit costs 1 to 5 ns, memory 100 ns and more,
 * and what is measured are lines loaded a moment before. */
#define IVC_MAPPING_SLOW_NS 40.0

struct ivc_region_info {
    const char *mechanism;  /* "file", "ivshmem", ... */
    char name[256];         /* path or PCI address */
    char uuid[37];
    uint64_t size;
    uint64_t epoch;
    uint64_t free_bytes;    /* at the time of asking */
    uint32_t capacity;      /* most members */
    uint32_t lease_ms;
    char tenant[33];
    struct ivc_mapping_speed speed;
};

struct ivc_member {
    uint32_t slot;
    uint32_t generation;
    uint64_t magic_id;
    uint32_t client_id;
    uint32_t pid;
    uint64_t endpoint_id;   /* random, not 0 */
    char host[65];
    uint8_t boot_id[16];
    uint64_t pid_namespace; /* inode */
    bool same_kernel;       /* as ours, and the same process id namespace: that was proven while it lived */
    uint64_t vm;            /* identity of its guest, for orders; 0: a library of before */
    uint32_t features;      /* enum ivc_feature, or-ed */
    uint8_t network[40];    /* where its network is (struct ivc_network_name); zeros: none */
    struct ivc_layout_wake wake;
};

/* What a member tells the others about itself. */
struct ivc_identity {
    uint64_t magic_id;
    uint32_t client_id;
    uint64_t endpoint_id;   /* 0: a new random one */
    const void *network;    /* 40 bytes, struct ivc_network_name; NULL: none */
    uint32_t features;      /* enum ivc_feature, or-ed: what it will do when asked */
    const struct ivc_wake *wake;    /* by which it wakes and is woken, for as long as it is a member;
                                       NULL: it does not and is not */
};

/* Finds a region (`name` as IVC_REGION; NULL: the environment, then what there is), maps it and
 * formats it when it was never used.  Answers as ivc_endpoint_open(). */
int ivc_region_open(const char *name, struct ivc_region **ret_region);
/* The answer is about a region that nobody named and that is not for us: no permission, another tenant.
 * Whoever made it there must not keep others from their work; who has another way goes that, with a line. */
bool ivc_region_is_others(const char *name, int answer);
void ivc_region_free(struct ivc_region *region);

/* Takes a slot in the directory and starts the helper thread.  -ENOSPC: the directory is full. */
int ivc_region_join(struct ivc_region *region, const struct ivc_identity *identity);
/* Leaves; called by ivc_region_free() when need be. */
void ivc_region_leave(struct ivc_region *region);

/*
 * Leaves, and lets go of the memory itself, because its device will be pulled: in its place, at the
 * same addresses, there is private memory with what was lent and with what the caller says is held
 * (pieces of the window; all else reads as zero).  So buffers and lent memory stay valid; a thread
 * that stores into them at that moment is made to wait
 * until its store goes to the new place.  (A system call that writes there in that time fails with
 * EFAULT; a thread that stores there while it blocks SIGSEGV ends the process.)  Afterwards nothing
 * of the device or file is mapped or open, locate answers IVC_E_NOREGION, lend IVC_E_NOREGION,
 * take_back works, and join, share, map and reach are not called any more.  The caller sees to it
 * that peers have ended their channels with us and nobody else calls the region meanwhile.  On
 * failure, which has a text, everything is as before.
 */
int ivc_region_retire(struct ivc_region *region, const struct iovec *held, unsigned n_held);
bool ivc_region_is_retired(const struct ivc_region *region);

/*
 * The memory was taken away without asking (a device pulled, a file truncated, a region cleared by
 * somebody): at its place there are zero pages of our own, and nobody else is in them.  Found by a
 * fault, or by the helper thread within a beat, which raises the alarm; threads that block SIGBUS
 * must not touch the region.  Then only leave, retire, take_back and free make sense.
 */
bool ivc_region_is_lost(const struct ivc_region *region);
/* Whether what was read a moment ago can be believed: one load, for every packet.  A window that was
 * taken away reads as zeroes or ones. */
bool ivc_region_is_intact(const struct ivc_region *region);
/* Looks now, by system calls: for one who has just read nonsense. */
bool ivc_region_look_if_lost(struct ivc_region *region);
/* Whether its name still leads to it: for one who has just joined, while devices come and go. */
bool ivc_region_is_named(const struct ivc_region *region);

/* Identity of our guest, by which it is asked to leave: of IVC_VM if that is set, else of the UUID
 * that its hypervisor gave it, else of its boot id.  Never 0. */
uint64_t ivc_region_own_vm(void);
/* The identity that such a text (a name, or a UUID in lower case) stands for. */
uint64_t ivc_vm_of(const char *text);
/* Our guest's host name, zero-padded; a name of 64 bytes has no end. */
void ivc_region_own_host(char ret_host[64]);

void ivc_region_info(struct ivc_region *region, struct ivc_region_info *ret_info);
const struct ivc_member *ivc_region_self(const struct ivc_region *region);
/* Before all members are to be listed: with grants the directory may lack some that nobody has told us of yet. */
void ivc_region_look_at_all(struct ivc_region *region);
uint32_t ivc_region_capacity(const struct ivc_region *region);

/* Writes the member in `slot`; 0, or IVC_E_GONE when no living member is there. */
int ivc_region_member(const struct ivc_region *region, uint32_t slot, struct ivc_member *ret_member);

/* How many living members there are, at the moment. */
uint32_t ivc_region_count_members(const struct ivc_region *region);
/* Other members that are known to be of our kernel, which a moment ago is enough for. */
uint32_t ivc_region_count_neighbours(const struct ivc_region *region);

/* Where a member is found, as its address tells: its slot in a window, else its domain. */
uint32_t ivc_region_place(const struct ivc_region *region);
/* The member that was there, under that generation; IVC_E_GONE. */
int ivc_region_member_at(struct ivc_region *region, uint32_t place, uint32_t generation,
                         uint64_t endpoint_id, struct ivc_member *ret_member);
/* Whether one share can be read by all members (IVC_SLOT_ANY), and memory be lent. */
bool ivc_region_shares_with_all(const struct ivc_region *region);

/* 0 while the member lives, IVC_E_GONE otherwise; then `ret_left` tells whether it left in order. */
int ivc_region_member_check(const struct ivc_region *region, uint32_t slot, uint32_t generation,
                            bool *ret_left);

/* The same in one answer, and whether it is elsewhere now. */
enum ivc_member_fate {
    IVC_MEMBER_HERE,
    IVC_MEMBER_MOVED,           /* left because its guest moves: it lives */
    IVC_MEMBER_LEFT,            /* for good */
    IVC_MEMBER_DEAD,
};
enum ivc_member_fate ivc_region_member_fate(const struct ivc_region *region, uint32_t slot,
                                            uint32_t generation);

/* Whether other members of this process still have pairs that are not suspended: what we lent may be
 * reached through those. */
bool ivc_region_process_is_reached(struct ivc_region *region);

/* We were taken for dead, because our guest stood still for longer than the lease: nothing of ours
 * in the region belongs to us any more. */
bool ivc_region_is_evicted(const struct ivc_region *region);

/* Asks the helper thread to watch this member closely, or no longer.  ivc_region_alarm() turns
 * true (free of the lock, one relaxed load) after a watched member has died or left, or we were
 * evicted, and is cleared by ivc_region_alarm_clear(). */
void ivc_region_watch(struct ivc_region *region, uint32_t slot, uint32_t generation);
void ivc_region_unwatch(struct ivc_region *region, uint32_t slot);
bool ivc_region_alarm(const struct ivc_region *region);
void ivc_region_alarm_clear(struct ivc_region *region);

/* Memory of the region that nobody holds; counted, so not for every message. */
uint64_t ivc_region_free_bytes(const struct ivc_region *region);
uint64_t ivc_region_size(const struct ivc_region *region);
/* Less than a quarter is free: that is for what nobody can do without, the smallest rings and pools,
 * so that every member gets its own.  Counts, too. */
bool ivc_region_is_scarce(const struct ivc_region *region);

/* Memory of ours that `slot` (or any member) may read.  Zeroed.  Returns IVC_E_NOSPACE, with a
 * text, when the region has none. */
struct ivc_share {
    void *memory;
    uint64_t handle;
    uint64_t size;
};
int ivc_region_share(struct ivc_region *region, uint32_t slot, uint64_t size,
                     struct ivc_share *ret_share);
/* Whether a member that is gone still holds memory, to be freed when nobody reads it any more, or one whose
 * heart stands still, of which only the lease can tell whether it has died. */
bool ivc_region_memory_is_coming(struct ivc_region *region);
/* Whether to wait on for that, for one who began at `start`; `end` is 0 at first.  As long as freeing takes
 * when all goes well, a second at most; up to the lease more while somebody is silent. */
bool ivc_region_memory_wait(struct ivc_region *region, uint64_t start_ms, uint64_t *end_ms);
/* After an attempt that found no memory: true, it is worth another one.  Waits as above.  `was_coming` is the
 * first of these from before the attempt: what came in between is not missed. */
bool ivc_region_wait_for_memory(struct ivc_region *region, bool was_coming);
/* ivc_region_share(), with both: also of what is just becoming free. */
int ivc_region_share_patiently(struct ivc_region *region, uint32_t slot, uint64_t size,
                               struct ivc_share *ret_share);
/* Whether a process that goes by this name is a member. */
bool ivc_region_has_endpoint(struct ivc_region *region, uint64_t id);
/* Looks at one member: whether it may have died before we came, since its heart was not seen to beat of late.  Asked
 * again after some beats it is no longer so, or, when the lease is over, there is no such member. */
bool ivc_region_is_silent(struct ivc_region *region, uint32_t slot);
/* Looks at every member once, closely: those of our own kernel who have died since we saw them are found at
 * once, and memory of those who are gone is freed when that is due. */
void ivc_region_look_at_members(struct ivc_region *region);
void ivc_region_unshare(struct ivc_region *region, const struct ivc_share *share);
/* Memory of the member `slot` that it shared under `handle`.  -EBADMSG when that cannot be. */
int ivc_region_map(struct ivc_region *region, uint32_t slot, uint64_t handle, uint64_t size,
                   const void **ret_memory);
void ivc_region_unmap(struct ivc_region *region, uint32_t slot, const void *memory, uint64_t size);

/*
 * Memory that was mapped by whomever in this process (we need not have done it): the handle under
 * which other members find it.  IVC_E_NOREGION: it does not lie, as one piece, in shared and
 * writable mappings of this region's memory.  Reads a file of /proc: for registrations, not for
 * messages; the answer holds for as long as the caller keeps the mapping.
 */
int ivc_region_locate(struct ivc_region *region, const void *memory, uint64_t size,
                      uint64_t *ret_handle);
/* The reverse: memory of the member `slot` that it named by such a handle, readable and writable.
 * -EBADMSG when that cannot be. */
int ivc_region_reach(struct ivc_region *region, uint32_t slot, uint64_t handle, uint64_t size,
                     void **ret_memory);

/*
 * Memory of ours for the application: whole pages, zeroed, which others may be told of by any
 * member of this process.  Waits as ivc_region_wait_for_memory() when the region is full.
 * IVC_E_NOSPACE; IVC_E_GONE: we are evicted.  What is not taken back stays ours until we leave or
 * die, and is used again when nobody has a channel with any member of this process.
 * IVC_E_NOREGION: retired.
 */
int ivc_region_lend(struct ivc_region *region, uint64_t size, void **ret_memory);
/* The same without waiting, and in it may be anything. */
int ivc_region_lend_now(struct ivc_region *region, uint64_t size, void **ret_memory);
/* Nobody may use it any more, here or elsewhere.  -EINVAL: it was not lent. */
int ivc_region_take_back(struct ivc_region *region, const void *memory);
/*
 * Memory that any library of ours in this process has lent, where it lies in the window of which region.
 * Cheap: for messages.  False also for lent memory whose region was left since: it is private.
 * `scope`, as dlsym(): where the other libraries' lists are to be looked for.
 */
struct ivc_lent_place {
    uint64_t uuid[2], epoch, offset;
};
/* What our libraries that lend export for each other: adapters/c/ivc.c, adapters/mpi/memory.c. */
#define IVC_FIND_LENT ivc_find_lent_1
typedef bool ivc_find_lent_fn(const void *memory, uint64_t size, struct ivc_lent_place *ret_place);
bool ivc_region_find_lent(const void *memory, uint64_t size, void *scope,
                          struct ivc_lent_place *ret_place);
/* The same, as a handle of this region. */
bool ivc_region_locate_lent(const struct ivc_region *region, const void *memory, uint64_t size,
                            uint64_t *ret_handle);
/* From the next piece on the process ends, with a line, when the memory goes while any is lent: for who lends to a
 * program that nobody would tell.  -ENOMEM. */
int ivc_region_end_if_lent_lost(struct ivc_region *region);
/* Pieces that were lent and not taken back. */
size_t ivc_region_lent_pieces(const struct ivc_region *region);
/* Bytes that were lent to this process, by whatever region, and went with memory that was taken away: what
 * the application had written there is no more. */
uint64_t ivc_region_lent_lost(void);

/* The line on which we tell `slot` what it must know, and its line for us (NULL: none yet; where pages are granted
 * also: it has not seen ours).  Ours is there once it was made: IVC_E_NOSPACE when the region is full. */
int ivc_region_make_link(struct ivc_region *region, uint32_t slot);
/* Takes the memory for the lines of `n` neighbouring slots, wherever they will be. */
int ivc_region_reserve_links(struct ivc_region *region, uint32_t n);
struct ivc_layout_link *ivc_region_own_link(struct ivc_region *region, uint32_t slot);
const struct ivc_layout_link *ivc_region_peer_link(struct ivc_region *region, uint32_t slot);
/* What the owner of one slot tells that of another; NULL: nothing yet, or nothing that could be. */
const struct ivc_layout_link *ivc_region_link(struct ivc_region *region, uint32_t owner, uint32_t slot);

/*
 * Doorbells.  A receiver looks at few rings by itself (those it *watches*) and learns of the others
 * by a bit that the sender sets.  A sender looks at `watched` after each packet: a read of a line
 * that hardly ever changes.
 */
struct ivc_doorbell {
    const ivc_atomic_u64 *watched;  /* the peer looks at our ring by itself when bit is set */
    uint64_t bit;
    ivc_atomic_u64 *ready;          /* where to set `bit` otherwise */
    struct ivc_layout_bell *bell;   /* and where to say that there is something in `ready` */
    uint64_t summary_bit;
    const struct ivc_wake *wake;    /* NULL: nobody is woken */
    struct ivc_wake_target sleeper;
    struct ivc_region *pairs;       /* without a window: `watched` and `bit`, and these two, are all */
    uint32_t slot;
};
int ivc_region_doorbell(struct ivc_region *region, uint32_t slot, struct ivc_doorbell *ret_bell);
void ivc_doorbell_ring(const struct ivc_doorbell *bell);
/* There is no room for more: wakes a receiver that keeps still although something has come. */
void ivc_doorbell_insist(const struct ivc_doorbell *bell);

/* Our own side: say whether we look at the ring of `slot` by ourselves. */
void ivc_region_set_watched(struct ivc_region *region, uint32_t slot, bool watched);
/* Non-zero when somebody rang; the word never moves. */
const ivc_atomic_u64 *ivc_region_ready_summary(struct ivc_region *region);
/* Rings for `slot` at our own door: it may have rung when we did not know it. */
void ivc_region_ring_self(struct ivc_region *region, uint32_t slot);
/* We are about to sleep: whoever rings from now on wakes us, and who rang before is seen by a look at
 * the summary after this. */
void ivc_region_lie_down(struct ivc_region *region);
/* We sleep, and need not be woken before somebody has no room for more. */
void ivc_region_keep_still(struct ivc_region *region);
void ivc_region_get_up(struct ivc_region *region);
/* From another thread: wakes ours, if it sleeps. */
void ivc_region_wake_self(struct ivc_region *region);
/* Calls `fn` for each slot that rang since the last call. */
void ivc_region_take_ready(struct ivc_region *region, void (*fn)(void *arg, uint32_t slot), void *arg);

#endif
