/*
 * Retiring: this process lets go of a region whose memory its application goes on using.
 *
 * The window is replaced by private memory in one step (mremap(2) over it), after what somebody holds
 * of it has been copied there; all else becomes zero pages that are not there yet.  Between copying
 * and replacing nobody may store into what was copied, and who holds memory stores whenever he
 * likes.  So for that time the window is read-only here, and a thread whose store faults waits in the
 * signal handler until it can store into the private memory.  When nobody holds anything, nothing is
 * protected: replacing is then the only walk over the window's pages.  What we ourselves must still
 * write (that we have left) goes through a second mapping (farewell.c).
 *
 * Invariant: a store to memory that is held is either copied or made to the private memory, never lost.
 *
 * The handler stays until the region is freed: a thread may have faulted and not be in the handler
 * yet when all is over.  It then finds the private memory and tries again.
 */
#include "region/internal.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    RANGES = 256,               /* retired regions in one process at a time */
    WAIT_NS = 50000,
    TAKEN = 1,                  /* no address: somebody is writing the range */
};

/* What the handler knows.  A range is written before the window is protected, and its `start` last;
 * it is taken back when the region is freed. */
static struct range {
    _Atomic uintptr_t start;    /* 0: none; TAKEN */
    _Atomic uintptr_t end;
    ivc_atomic_u64 done;        /* 0: the window is read-only at this moment; else a number that no
                                   other time has */
} ranges[RANGES];

/* What this thread was last sent back to do again.  If it faults there once more, that is not because
 * of us: the application may protect its memory.  (Time does not tell: a thread, a process or a guest
 * may stand still between its fault and the handler.) */
static _Thread_local struct {
    volatile uintptr_t at;
    volatile uint64_t done;
} again __attribute__((tls_model("initial-exec")));

static bool is_again(uintptr_t at, uint64_t done)
{
    bool is = again.at == at && again.done == done;

    again.at = at;
    again.done = done;
    return is;
}

/* Runs as a signal handler: nanosleep may be used there. */
static bool on_fault(const siginfo_t *info)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    struct timespec wait = { 0, WAIT_NS };

    for (unsigned i = 0; i < RANGES; i++) {
        /* Acquire: pairs with the release in range_take(); `end` and `done` are this range's. */
        uintptr_t start = atomic_load_explicit(&ranges[i].start, memory_order_acquire);
        uint64_t done;

        if (start <= TAKEN || at < start || at >= ivc_load_relaxed(&ranges[i].end))
            continue;
        /* Relaxed: what we wait for is the mapping, and the kernel orders that. */
        while ((done = ivc_load_relaxed(&ranges[i].done)) == 0)
            nanosleep(&wait, NULL);
        return !is_again(at, done);
    }
    return false;
}

/* Without a lock: a child of fork() could find it held by a thread that it does not have. */
static struct range *range_take(const struct ivc_mapping *mapping)
{
    uintptr_t start = (uintptr_t)mapping->memory;
    struct range *range = NULL;

    for (unsigned i = 0; i < RANGES && !range; i++)     /* ours, after a first try that failed */
        if (ivc_load_relaxed(&ranges[i].start) == start)
            range = &ranges[i];
    for (unsigned i = 0; i < RANGES && !range; i++) {
        uintptr_t none = 0;

        if (atomic_compare_exchange_strong(&ranges[i].start, &none, TAKEN))
            range = &ranges[i];
    }
    if (range) {
        ivc_store_relaxed(&range->end, start + mapping->size);
        ivc_store_relaxed(&range->done, 0);
        /* Release: pairs with the acquire in on_fault(). */
        ivc_store_release(&range->start, start);
    }
    return range;
}

static void range_done(const struct ivc_mapping *mapping)
{
    static ivc_atomic_u64 times;

    for (unsigned i = 0; i < RANGES; i++)
        if (ivc_load_relaxed(&ranges[i].start) == (uintptr_t)mapping->memory)
            ivc_store_relaxed(&ranges[i].done,
                              atomic_fetch_add_explicit(&times, 1, memory_order_relaxed) + 1);
}

static void range_give(const struct ivc_mapping *mapping)
{
    for (unsigned i = 0; i < RANGES; i++)
        if (ivc_load_relaxed(&ranges[i].start) == (uintptr_t)mapping->memory)
            ivc_store_relaxed(&ranges[i].start, 0);
}

/* What is done with each piece of the window that somebody holds: `at` is its place there and in the
 * private memory, by which it goes on. */
typedef void piece_fn(const char *window, char *private, uint64_t at, uint64_t size);

struct retiring {
    struct ivc_region *region;
    const struct iovec *held;
    unsigned n_held;
    char *private;              /* what will be at the window's place; NULL: not made yet */
    struct ivc_farewell farewell;
};

/* What was lent is known by our own list: a neighbour may have overwritten the owner words. */
static void each_piece(const struct retiring *retiring, piece_fn *fn)
{
    const struct ivc_lent *lent = &retiring->region->lent;
    const char *window = retiring->region->mapping.memory;

    for (unsigned i = 0; i < retiring->n_held; i++)
        fn(window, retiring->private, (uint64_t)((char *)retiring->held[i].iov_base - window),
           retiring->held[i].iov_len);
    for (size_t i = 0; i < lent->n; i++)
        fn(window, retiring->private, lent->pieces[i].handle, lent->pieces[i].size);
}

static bool is_anything_held(const struct retiring *retiring)
{
    return retiring->n_held > 0 || retiring->region->lent.n > 0;
}

/* While nobody waits yet: taken one by one they cost more than copying. */
static void take_pages(const char *window, char *private, uint64_t at, uint64_t size)
{
    (void)window;
    ivc_take_pages(private + at, size);
}

static void copy(const char *window, char *private, uint64_t at, uint64_t size)
{
    memcpy(private + at, window + at, size);
}

/* We were taken for dead, and that is so long ago that our blocks are ours no more. */
static bool is_buried(const struct ivc_region *region)
{
    uint64_t state;

    if (!region->joined)
        return false;
    /* After what was read: it was ours as long as our entry was. */
    atomic_thread_fence(memory_order_acquire);
    state = ivc_load_relaxed(&ivc_region_slot(region, region->self.slot)->state);
    return ivc_layout_generation(state) != region->self.generation
           || ivc_layout_phase(state) == IVC_PHASE_FREE;
}

/* From here to its end the window is read-only, if anybody could store into it. */
static int replace_window(const struct retiring *retiring)
{
    struct ivc_region *region = retiring->region;
    void *window = region->mapping.memory;
    uint64_t size = region->mapping.size;
    bool held = is_anything_held(retiring);
    int r;

    /* The whole of it, although less would do: a device's mapping that is split leaves the kernel
     * with a wrong account of its memory's type ("freeing invalid memtype"). */
    if (held && mprotect(window, size, PROT_READ) < 0)
        return ivc_error_set(-errno, "region %s: cannot protect it while it is copied: %s",
                             region->name, strerror(errno));
    memcpy(retiring->private, window, sizeof(struct ivc_layout_header));    /* ivc_region_info() */
    each_piece(retiring, copy);
    /* Then those were zeroes, or some of them; or somebody else's by now, who was given our blocks. */
    region->lost = !ivc_region_is_intact(region) || is_buried(region);
    if (mremap(retiring->private, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, window) != MAP_FAILED)
        return 0;
    r = ivc_error_set(-errno, "region %s: cannot put private memory in its place: %s", region->name,
                      strerror(errno));
    if (held)
        (void)mprotect(window, size, PROT_READ | PROT_WRITE);
    return r;
}

/* From here to ivc_retire_end(), whatever becomes of it: a fault may be under way. */
static int guard_stores(struct ivc_region *region)
{
    int r = region->stores_guarded ? 0 : ivc_chain_add(SIGSEGV, on_fault);

    if (r < 0)
        return r;
    if (!range_take(&region->mapping)) {
        ivc_chain_remove(SIGSEGV);
        return ivc_error_set(-ENOSPC, "region %s: %d regions were let go of in this process and "
                             "are still in use", region->name, RANGES);
    }
    region->stores_guarded = true;
    return 0;
}

/* What is at the window's place is private memory. */
static void let_go(struct ivc_region *region)
{
    if (region->grants)
        ivc_grants_let_go(region);
    if (region->lost)
        ivc_lend_lost(region);
    region->retired = true;
    region->joined = false;
    ivc_fault_uncover(region->mapping.fault);
    region->mapping.fault = NULL;
    ivc_mapping_forget_fd(&region->mapping);
    ivc_presence_close(&region->presence);
}

/* With all that is needed at hand: nothing that can fail comes after the window is replaced. */
static int retire(const struct retiring *retiring)
{
    struct ivc_region *region = retiring->region;
    int r = 0;

    ivc_guard_stop(region);
    ivc_lenders_remove(region);
    if (is_anything_held(retiring)) {
        each_piece(retiring, take_pages);
        r = guard_stores(region);
    }
    if (r == 0 && region->grants && region->joined)
        ivc_grants_leave(region, IVC_PAIR_MOVED);
    if (r == 0)
        r = replace_window(retiring);
    range_done(&region->mapping);
    if (r < 0) {
        if (region->joined && ivc_guard_start(region) < 0)
            return ivc_error_set(-EAGAIN, "region %s: cannot start the helper thread again",
                                 region->name);
        return r;
    }
    ivc_farewell_say(region, &retiring->farewell);
    let_go(region);
    return 0;
}

/* Address space only: pages come when they are stored to. */
static int make_private(struct retiring *retiring)
{
    const struct ivc_region *region = retiring->region;
    void *private = mmap(NULL, region->mapping.size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (private == MAP_FAILED)
        return ivc_error_set(-errno, "region %s: no %llu bytes of address space to put in its place: "
                             "%s", region->name, (unsigned long long)region->mapping.size,
                             strerror(errno));
    retiring->private = private;
    return 0;
}

int ivc_region_retire(struct ivc_region *region, const struct iovec *held, unsigned n_held)
{
    struct retiring retiring = { .region = region, .held = held, .n_held = n_held };
    int r;

    if (region->retired)
        return 0;
    if (ivc_region_look_if_lost(region)) {
        ivc_guard_stop(region);
        ivc_lenders_remove(region);
        if (region->grants && region->joined)
            ivc_grants_leave(region, IVC_PAIR_MOVED);
        region->lost = true;
        let_go(region);
        return 0;
    }
    r = region->joined && !region->grants ? ivc_farewell_prepare(region, &retiring.farewell) : 0;
    if (r == 0)
        r = make_private(&retiring);
    if (r == 0)
        r = retire(&retiring);
    if (r < 0 && retiring.private)
        munmap(retiring.private, region->mapping.size);
    ivc_farewell_free(&retiring.farewell);
    return r;
}

bool ivc_region_is_retired(const struct ivc_region *region)
{
    return region->retired;
}

void ivc_retire_end(struct ivc_region *region)
{
    if (!region->stores_guarded)
        return;
    range_give(&region->mapping);
    ivc_chain_remove(SIGSEGV);
}

/* Private pages that nobody needs any more. */
void ivc_retire_unshare(const struct ivc_share *share)
{
    (void)madvise(share->memory, share->size, MADV_DONTNEED);
}
