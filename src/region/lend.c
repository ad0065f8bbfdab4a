/*
 * Memory of the region for the application: ivc_alloc(), an MPI's windows.
 *
 * Invariants.  What is lent belongs to this member, block by block, like all that it shares; `lent`
 * lists it by address.  Others reach it through channels that they have with whatever member of this
 * process told them of it (the provider in the same process is a member of its own), so before the
 * first piece is handed out our entry in the directory says so, and reclaiming then waits for the
 * readers of the whole process.
 */
#include "region/region.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The place of the first piece that does not lie below `memory`. */
static size_t place_of(const struct ivc_lent *lent, const void *memory)
{
    size_t low = 0, high = lent->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if ((uintptr_t)lent->pieces[middle].memory < (uintptr_t)memory)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int make_room(struct ivc_lent *lent)
{
    size_t room = lent->room ? 2 * lent->room : 16;
    struct ivc_share *pieces;

    if (lent->n < lent->room)
        return 0;
    pieces = realloc(lent->pieces, room * sizeof *pieces);
    if (!pieces)
        return ivc_error_set(-ENOMEM, "out of memory");
    lent->pieces = pieces;
    lent->room = room;
    return 0;
}

/* For good: to take it back could hit the slot's next owner, when we were taken for dead; and it
 * costs no more than a later burial. */
static void say_that_we_lend(struct ivc_region *region)
{
    /* Release: pairs with the acquire in is_still_read() (reclaim.c).  Nobody can have been told of
     * memory that is not handed out yet, so whoever buries us finds it set. */
    ivc_store_release(&ivc_region_slot(region, region->self.slot)->lends, 1);
}

int ivc_region_lend_now(struct ivc_region *region, uint64_t size, void **ret_memory)
{
    struct ivc_lent *lent = &region->lent;
    struct ivc_share piece;
    size_t place;
    int r;

    if (size == 0)
        return ivc_error_set(-EINVAL, "region %s: 0 bytes were asked for; at least 1", region->name);
    if (region->grants)
        return ivc_error_set(IVC_E_NOREGION, "region %s: has no memory that all members could read",
                             region->name);
    if (region->retired)
        return ivc_error_set(IVC_E_NOREGION, "region %s: this process has let go of it, because "
                             "the host asked its guest to", region->name);
    if (ivc_region_is_lost(region))
        return ivc_error_set(IVC_E_NOREGION, "region %s: its memory was taken away under this "
                             "process", region->name);
    if (ivc_region_is_evicted(region))
        return ivc_error_set(IVC_E_GONE, "region %s: this process stood still for so long that the "
                             "others took it for dead; start it again", region->name);
    r = make_room(lent);
    if (r < 0)
        return r;
    say_that_we_lend(region);
    ivc_lenders_add(region);
    r = ivc_region_take(region, size, &piece);
    if (r != 0)
        return r;
    place = place_of(lent, piece.memory);
    memmove(lent->pieces + place + 1, lent->pieces + place,
            (lent->n - place) * sizeof *lent->pieces);
    lent->pieces[place] = piece;
    lent->n++;
    ivc_fault_end_with(region->mapping.fault, region->last_words);
    *ret_memory = piece.memory;
    return 0;
}

int ivc_region_lend(struct ivc_region *region, uint64_t size, void **ret_memory)
{
    bool coming;
    int r;

    do {
        coming = ivc_region_memory_is_coming(region);
        r = ivc_region_lend_now(region, size, ret_memory);
    } while (r == IVC_E_NOSPACE && ivc_region_wait_for_memory(region, coming));
    if (r == 0)
        ivc_region_clear(*ret_memory, size);
    return r;
}

int ivc_region_take_back(struct ivc_region *region, const void *memory)
{
    struct ivc_lent *lent = &region->lent;
    size_t place = place_of(lent, memory);
    struct ivc_share piece;

    if (place == lent->n || lent->pieces[place].memory != memory)
        return ivc_error_set(-EINVAL, "region %s: %p is not the beginning of memory that was lent",
                             region->name, memory);
    piece = lent->pieces[place];
    lent->n--;
    memmove(lent->pieces + place, lent->pieces + place + 1,
            (lent->n - place) * sizeof *lent->pieces);
    if (lent->n == 0)
        ivc_fault_end_with(region->mapping.fault, NULL);
    ivc_region_unshare(region, &piece);
    return 0;
}

int ivc_region_end_if_lent_lost(struct ivc_region *region)
{
    if (!region->last_words
        && asprintf(&region->last_words, "ivc: region %s: its memory was taken away under this process (a device pulled, a "
                    "file shortened, a process that stood still), and with it blocks of malloc() or MPI_Alloc_mem(): the "
                    "process ends; keep the memory there while jobs run, or run without libivc-heap.so and "
                    "libivc-mpi-alloc.so\n", region->name) < 0) {
        region->last_words = NULL;
        return ivc_error_set(-ENOMEM, "region %s: out of memory", region->name);
    }
    return 0;
}

static ivc_atomic_u64 lost_bytes;

void ivc_lend_lost(const struct ivc_region *region)
{
    uint64_t bytes = 0;

    if (region->last_words && region->lent.n > 0)
        ivc_fault_end(region->last_words);
    for (size_t i = 0; i < region->lent.n; i++)
        bytes += region->lent.pieces[i].size;
    /* Relaxed: a number, on whose strength nothing is read. */
    atomic_fetch_add_explicit(&lost_bytes, bytes, memory_order_relaxed);
}

uint64_t ivc_region_lent_lost(void)
{
    return ivc_load_relaxed(&lost_bytes);
}

size_t ivc_region_lent_pieces(const struct ivc_region *region)
{
    return region->lent.n;
}
