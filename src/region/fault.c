/*
 * Faults in windows: see fault.h.
 *
 * Invariants.  A range is replaced once, by whoever changes its state from USED; others that fault
 * meanwhile wait for that and try again.  What the handler reads is written before a range is USED,
 * and not changed before it is FREE again.
 */
#include "region/fault.h"

#include "base/chain.h"
#include "base/util.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    RANGES = 256,       /* mappings of windows in one process; more are not covered */
    WAIT_NS = 50000,
    LATE_MS = 10000,    /* a fault that old is not from before the replacement */
};

enum state { FREE, TAKEN, USED, REPLACING, REPLACED };

static struct ivc_fault_range {
    ivc_atomic_u32 state;
    char *memory;
    uint64_t size;
    ivc_atomic_u64 replaced_ms;
    _Atomic(ivc_atomic_u32 *) alarm;
    _Atomic(const char *) line;     /* the process's last; NULL: it goes on */
} ranges[RANGES];

static ivc_atomic_u32 high;     /* no range from here on was ever used */

void ivc_fault_end(const char *line)
{
    ssize_t written = write(STDERR_FILENO, line, strlen(line));

    (void)written;
    abort();
}

/* Runs as a signal handler, too: one system call, no lock. */
static bool replace(struct ivc_fault_range *range)
{
    ivc_atomic_u32 *alarm = ivc_load_relaxed(&range->alarm);
    /* Acquire: pairs with the release in ivc_fault_end_with(); the line's text is visible. */
    const char *line = ivc_load_acquire(&range->line);

    if (line)
        ivc_fault_end(line);
    if (mmap(range->memory, range->size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return false;
    ivc_store_relaxed(&range->replaced_ms, ivc_now_ms());
    /* Release: pairs with the acquires of state below; `replaced_ms` is visible. */
    ivc_store_release(&range->state, REPLACED);
    if (alarm)
        ivc_store_relaxed(alarm, 1);    /* who sees it looks itself */
    return true;
}

/* False: it is not replaced, or was so long ago that a fault there has another cause. */
static bool wait_for_replaced(struct ivc_fault_range *range)
{
    struct timespec wait = { 0, WAIT_NS };

    /* Acquire: pairs with the release in replace(). */
    while (ivc_load_acquire(&range->state) == REPLACING)
        nanosleep(&wait, NULL);
    return ivc_load_acquire(&range->state) == REPLACED
           && ivc_now_ms() - ivc_load_relaxed(&range->replaced_ms) < LATE_MS;
}

static bool on_fault(const siginfo_t *info)
{
    const char *at = info->si_addr;
    uint32_t n = IVC_MIN(ivc_load_relaxed(&high), (uint32_t)RANGES);

    for (uint32_t i = 0; i < n; i++) {
        struct ivc_fault_range *range = &ranges[i];
        /* Acquire: pairs with the release in ivc_fault_cover(). */
        uint32_t state = ivc_load_acquire(&range->state);

        if (state < USED || at < range->memory || at >= range->memory + range->size)
            continue;
        if (ivc_cas(&range->state, (uint32_t)USED, (uint32_t)REPLACING)) {
            if (replace(range))
                return true;
            ivc_store_release(&range->state, USED);     /* then the fault ends the process */
            return false;
        }
        return wait_for_replaced(range);
    }
    return false;
}

/* What lies there now is a new mapping.  A range that says otherwise is of our parent's, for one that we
 * have not inherited (MADV_DONTFORK). */
static void forget_at(const char *memory, uint64_t size)
{
    for (uint32_t i = 0; i < IVC_MIN(ivc_load_relaxed(&high), (uint32_t)RANGES); i++) {
        struct ivc_fault_range *range = &ranges[i];

        if (ivc_load_acquire(&range->state) >= USED && range->memory < memory + size
            && memory < range->memory + range->size)
            ivc_store_release(&range->state, FREE);
    }
}

struct ivc_fault_range *ivc_fault_cover(void *memory, uint64_t size)
{
    forget_at(memory, size);
    for (uint32_t i = 0; i < RANGES; i++) {
        struct ivc_fault_range *range = &ranges[i];

        if (!ivc_cas(&range->state, (uint32_t)FREE, (uint32_t)TAKEN))
            continue;
        if (ivc_chain_add(SIGBUS, on_fault) < 0) {
            ivc_store_release(&range->state, FREE);
            return NULL;
        }
        range->memory = memory;
        range->size = ivc_align_up(size, 4096);
        ivc_store_relaxed(&range->alarm, NULL);
        ivc_store_relaxed(&range->line, NULL);
        for (uint32_t n = ivc_load_relaxed(&high); n <= i && !ivc_cas(&high, n, i + 1);)
            n = ivc_load_relaxed(&high);
        /* Release: pairs with the acquire in on_fault(). */
        ivc_store_release(&range->state, USED);
        return range;
    }
    return NULL;
}

void ivc_fault_uncover(struct ivc_fault_range *range)
{
    if (!range)
        return;
    /* A thread may be in the handler still, which must not find another mapping in the range. */
    (void)wait_for_replaced(range);
    /* Release: pairs with the swap in ivc_fault_cover(); nobody faults there any more. */
    ivc_store_release(&range->state, FREE);
    ivc_chain_remove(SIGBUS);
}

void ivc_fault_tell(struct ivc_fault_range *range, ivc_atomic_u32 *alarm)
{
    if (range)
        ivc_store_relaxed(&range->alarm, alarm);
}

void ivc_fault_end_with(struct ivc_fault_range *range, const char *line)
{
    /* Release: pairs with the acquire in replace(). */
    if (range)
        ivc_store_release(&range->line, line);
}

void ivc_fault_replace(struct ivc_fault_range *range)
{
    if (range && ivc_cas(&range->state, (uint32_t)USED, (uint32_t)REPLACING) && !replace(range))
        ivc_store_release(&range->state, USED);
}

bool ivc_fault_has_been(const struct ivc_fault_range *range)
{
    return range && ivc_load_acquire(&range->state) >= REPLACING;
}
