/*
 * Reserving: the pages of blocks that we have taken are there before anybody touches them.
 *
 * A file may be longer than what its file system has to fill it with, and that may become less at any time.  Who
 * touches a page for the first time and there is none gets SIGBUS, whichever member that is, and the kernel EFAULT for
 * a program that has it write there.  So whoever takes blocks asks the mechanism for their pages, and where there are
 * none the blocks are as good as taken by others.
 *
 * Invariant: a bit in `reserved` says that the mechanism has answered for this block.  Pages stay when a block is
 * given back, for as long as the file is that long; one that is shortened is another matter (fault.h).
 */
#include "region/internal.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

enum { BITS = 64 };

int ivc_reserve_open(struct ivc_region *region)
{
    if (!region->mechanism->reserve)
        return 0;
    region->reserved = calloc(region->geometry.n_blocks / BITS + 1, sizeof *region->reserved);
    return region->reserved ? 0
        : ivc_error_set(-ENOMEM, "region %s: out of memory for its tables", region->name);
}

/* Relaxed, here and below: the kernel orders what becomes of pages. */
static bool is_reserved(const struct ivc_region *region, uint64_t block)
{
    return ivc_load_relaxed(&region->reserved[block / BITS]) >> block % BITS & 1;
}

static void set_reserved(struct ivc_region *region, uint64_t block)
{
    atomic_fetch_or_explicit(&region->reserved[block / BITS], (uint64_t)1 << block % BITS, memory_order_relaxed);
}

static int no_room(const struct ivc_region *region, uint64_t size, int code)
{
    return ivc_error_set(IVC_E_NOSPACE, "region %s: no room for %llu bytes more of its file: %s; make room there ('df "
                         "%s')", region->name, (unsigned long long)size, strerror(-code), region->name);
}

int ivc_reserve(struct ivc_region *region, uint64_t first, uint64_t count)
{
    uint64_t end = first + count;
    int r;

    if (!region->reserved)
        return 0;
    while (first < end && is_reserved(region, first))
        first++;
    if (first == end)
        return 0;
    r = region->mechanism->reserve(&region->mapping, region->geometry.blocks + first * IVC_LAYOUT_PAGE,
                                   (end - first) * IVC_LAYOUT_PAGE);
    if (r < 0)
        return no_room(region, (end - first) * IVC_LAYOUT_PAGE, r);
    while (first < end)
        set_reserved(region, first++);
    return 0;
}
