/*
 * Retiring: this process lets go of a region whose memory its application goes on using.
 *
 * The window is replaced by private memory in one step (mremap(2) over it), after what was ours has
 * been copied there.  Between copying and replacing nobody may store into what was copied, and the
 * application may have memory of ours, into which it stores whenever it likes.  So for that time
 * the window is read-only here, and a thread whose store faults waits in the signal handler until
 * it can store into the private memory.  What we ourselves must still write (that we have left)
 * goes through a second mapping.
 *
 * Invariant: a store to lent memory is either copied or made to the private memory, never lost.
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
    RANGES = 16,                /* retired regions in one process at a time */
    LATE_MS = 10000,            /* a fault that old is no longer one of ours */
    WAIT_NS = 50000,
    TAKEN = 1,                  /* no address: somebody is writing the range */
};

/* What the handler knows.  A range is written before the window is protected, and its `start` last;
 * it is taken back when the region is freed. */
static struct range {
    _Atomic uintptr_t start;    /* 0: none; TAKEN */
    _Atomic uintptr_t end;
    ivc_atomic_u64 done_ms;     /* 0: the window is read-only at this moment */
} ranges[RANGES];

/* Runs as a signal handler: the clock and nanosleep may be used there. */
static bool on_fault(const siginfo_t *info)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    struct timespec wait = { 0, WAIT_NS };

    for (unsigned i = 0; i < RANGES; i++) {
        /* Acquire: pairs with the release in range_take(); `end` and `done_ms` are this range's. */
        uintptr_t start = atomic_load_explicit(&ranges[i].start, memory_order_acquire);
        uint64_t done_ms;

        if (start <= TAKEN || at < start || at >= ivc_load_relaxed(&ranges[i].end))
            continue;
        /* Relaxed: what we wait for is the mapping, and the kernel orders that. */
        while ((done_ms = ivc_load_relaxed(&ranges[i].done_ms)) == 0)
            nanosleep(&wait, NULL);
        return ivc_now_ms() - done_ms < LATE_MS;
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
        ivc_store_relaxed(&range->done_ms, 0);
        /* Release: pairs with the acquire in on_fault(). */
        ivc_store_release(&range->start, start);
    }
    return range;
}

static void range_done(const struct ivc_mapping *mapping)
{
    for (unsigned i = 0; i < RANGES; i++)
        if (ivc_load_relaxed(&ranges[i].start) == (uintptr_t)mapping->memory)
            ivc_store_relaxed(&ranges[i].done_ms, ivc_now_ms());
}

static void range_give(const struct ivc_mapping *mapping)
{
    for (unsigned i = 0; i < RANGES; i++)
        if (ivc_load_relaxed(&ranges[i].start) == (uintptr_t)mapping->memory)
            ivc_store_relaxed(&ranges[i].start, 0);
}

/* Memory of ours: what the owner words say, and what was lent whatever they say, since a
 * neighbour may have overwritten them. */
static void copy_own(const struct ivc_region *region, char *to)
{
    const struct ivc_window_geometry *g = &region->geometry;
    uint32_t own = ivc_layout_owner(region->self.slot, region->self.generation);
    const char *from = region->mapping.memory;

    memcpy(to, from, sizeof(struct ivc_layout_header));     /* for ivc_region_info() */
    for (uint64_t i = 0; i < g->n_blocks; i++) {
        uint64_t at = g->blocks + i * IVC_LAYOUT_PAGE;

        if (ivc_load_relaxed(&region->blocks.owners[i]) == own)
            memcpy(to + at, from + at, IVC_LAYOUT_PAGE);
    }
    for (size_t i = 0; i < region->lent.n; i++) {
        const struct ivc_share *piece = &region->lent.pieces[i];

        memcpy(to + piece->handle, piece->memory, piece->size);
    }
}

/* Says through `second` what can no longer be said in the window. */
static void leave_through(const struct ivc_region *region, void *second)
{
    struct ivc_region view = {
        .mapping = { .memory = second, .size = region->mapping.size },
        .geometry = region->geometry,
        .self = region->self,
        .blocks = {
            .owners = (ivc_atomic_u32 *)((char *)second + region->geometry.owners),
            .n = region->geometry.n_blocks,
        },
    };

    memcpy(view.name, region->name, sizeof view.name);
    view.mapping.fault = ivc_fault_cover(second, view.mapping.size);    /* it may be pulled now */
    /* Relaxed: published with LEFT. */
    ivc_store_relaxed(&ivc_region_slot(&view, view.self.slot)->features,
                      view.self.features | IVC_FEATURE_MOVED);
    ivc_member_mark_left(&view);
    ivc_fault_uncover(view.mapping.fault);
}

/* The window is read-only from here to its end. */
static int replace_window(struct ivc_region *region, void *private)
{
    void *window = region->mapping.memory;
    uint64_t size = region->mapping.size;
    int r;

    if (mprotect(window, size, PROT_READ) < 0)
        return ivc_error_set(-errno, "region %s: cannot protect it while it is copied: %s",
                             region->name, strerror(errno));
    copy_own(region, private);
    if (mremap(private, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, window) != MAP_FAILED)
        return 0;
    r = ivc_error_set(-errno, "region %s: cannot put private memory in its place: %s", region->name,
                      strerror(errno));
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
    ivc_fault_uncover(region->mapping.fault);
    region->mapping.fault = NULL;
    ivc_mapping_forget_fd(&region->mapping);
}

/* With all that is needed at hand: nothing that can fail comes after the window is replaced. */
static int retire(struct ivc_region *region, void *second, void *private)
{
    bool joined = region->joined;
    int r;

    ivc_guard_stop(region);
    r = guard_stores(region);
    if (r == 0)
        r = replace_window(region, private);
    range_done(&region->mapping);
    if (r < 0) {
        if (joined && ivc_guard_start(region) < 0)
            return ivc_error_set(-EAGAIN, "region %s: cannot start the helper thread again",
                                 region->name);
        return r;
    }
    region->retired = true;
    region->joined = false;
    if (joined)
        leave_through(region, second);
    munmap(second, region->mapping.size);
    let_go(region);
    return 0;
}

int ivc_region_retire(struct ivc_region *region)
{
    uint64_t size = region->mapping.size;
    void *second, *private;
    int r;

    if (region->retired)
        return 0;
    if (ivc_region_look_if_lost(region)) {
        ivc_guard_stop(region);
        region->retired = true;
        region->joined = false;
        let_go(region);
        return 0;
    }
    second = ivc_mapping_again(&region->mapping);
    if (!second)
        return ivc_error_set(-EBADF, "region %s: cannot map it once more: the descriptor that was "
                             "kept of it is closed, or memory is short", region->name);
    private = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (private == MAP_FAILED) {
        r = ivc_error_set(-errno, "region %s: no %llu bytes of address space to put in its place: "
                          "%s", region->name, (unsigned long long)size, strerror(errno));
        munmap(second, size);
        return r;
    }
    r = retire(region, second, private);
    if (r < 0) {
        munmap(private, size);
        munmap(second, size);
    }
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
