/*
 * Farewell: the last words of a member whose window is replaced by private memory already: that it
 * has left, and which blocks are free.
 *
 * They go through a second mapping.  A device's mapping is made page by page at once, 16,384 of them
 * for 64 MiB, so only what is needed is mapped: the tables before the blocks, and of the link tables of
 * those who may read us the parts that say so.  The rest of the second mapping reads as zero.
 *
 * Invariant.  Whose link table is not there does not read us: which ones are needed is found out
 * when we have said LEFT, and whoever becomes a member or makes a part after that sees it (publish() in
 * member.c, ivc_link_open()).
 */
#include "region/internal.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Where only large pages can be mapped (hugetlbfs, DAX devices), a part cannot: an odd page as the
 * place of the first one makes that certain now, instead of a matter of luck later. */
static int map_tables(const struct ivc_region *region, struct ivc_farewell *farewell)
{
    uint64_t size = region->mapping.size;
    uint64_t room_size = size + IVC_LAYOUT_PAGE;
    void *room = mmap(NULL, room_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *second;

    if (room == MAP_FAILED)
        return -errno;
    second = (char *)((uintptr_t)room | IVC_LAYOUT_PAGE);
    if (!ivc_mapping_again(&region->mapping, 0, region->geometry.blocks, second)) {
        munmap(room, room_size);
        return -EINVAL;
    }
    *farewell = (struct ivc_farewell){ .room = room, .room_size = room_size, .second = second };
    return 0;
}

int ivc_farewell_prepare(const struct ivc_region *region, struct ivc_farewell *ret_farewell)
{
    uint64_t size = region->mapping.size;
    void *whole;

    if (map_tables(region, ret_farewell) == 0)
        return 0;
    whole = ivc_mapping_again(&region->mapping, 0, size, NULL);
    if (!whole)
        return ivc_error_set(-EBADF, "region %s: cannot map it once more: the descriptor that was "
                             "kept of it is closed, or memory is short", region->name);
    *ret_farewell = (struct ivc_farewell){ whole, size, whole, true };
    return 0;
}

void ivc_farewell_free(struct ivc_farewell *farewell)
{
    if (farewell->room)
        munmap(farewell->room, farewell->room_size);
    farewell->room = NULL;
}

/* The region as `second` shows it: what member.c and reclaim.c need. */
static struct ivc_region look_through(const struct ivc_region *region, char *second)
{
    struct ivc_region view = {
        .mapping = { .memory = second, .size = region->mapping.size },
        .geometry = region->geometry,
        .self = region->self,
        .blocks = {
            .owners = (ivc_atomic_u32 *)(second + region->geometry.owners),
            .n = region->geometry.n_blocks,
        },
    };

    memcpy(view.name, region->name, sizeof view.name);
    return view;
}

/* A block of a member's.  One that cannot be is none: has_readers() passes it over as well. */
static bool map_block(const struct ivc_region *region, struct ivc_region *view, uint32_t slot,
                      uint64_t handle, const void **ret_block)
{
    *ret_block = NULL;
    if (handle == 0 || ivc_region_map(view, slot, handle, IVC_LAYOUT_PAGE, ret_block) != 0)
        return true;
    /* What was taken away under us is not mapped again: its zeroes caught a fault. */
    return !ivc_fault_has_been(view->mapping.fault)
           && ivc_mapping_again(&region->mapping, handle, IVC_LAYOUT_PAGE, (void *)*ret_block);
}

/* The parts of a member's table from `first` to `last`. */
static bool map_parts(const struct ivc_region *region, struct ivc_region *view, uint32_t slot,
                      uint32_t first, uint32_t last)
{
    uint64_t handle = ivc_load_relaxed(&ivc_region_slot(view, slot)->links);
    const void *root, *part;

    if (!map_block(region, view, slot, handle, &root))
        return false;
    for (uint32_t i = first; root && i <= last; i++)
        /* Acquire: pairs with the release in make_part() (links.c). */
        if (!map_block(region, view, slot, ivc_load_acquire((const ivc_atomic_u64 *)root + i), &part))
            return false;
    return true;
}

/* False: not all of them are there, and nothing can be told from those that are.  Where we were to be
 * reached through other members of our process, any of their lines may matter. */
static bool map_links(const struct ivc_region *region, struct ivc_region *view)
{
    bool lends = ivc_load_relaxed(&ivc_region_slot(view, view->self.slot)->lends) != 0;
    uint32_t own = view->self.slot / IVC_LAYOUT_LINKS_PER_PART;
    uint32_t last = (region->geometry.capacity - 1) / IVC_LAYOUT_LINKS_PER_PART;

    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        /* Acquire: pairs with the release in publish(); `links` is valid. */
        if (ivc_layout_phase(ivc_load_acquire(&ivc_region_slot(view, slot)->state)) == IVC_PHASE_ACTIVE
            && !map_parts(region, view, slot, lends ? 0 : own, lends ? last : own))
            return false;
    return true;
}

void ivc_farewell_say(const struct ivc_region *region, const struct ivc_farewell *farewell)
{
    struct ivc_region view;

    if (!farewell->room)
        return;
    view = look_through(region, farewell->second);
    view.mapping.fault = ivc_fault_cover(farewell->second, view.mapping.size);  /* may be pulled now */
    /* Relaxed: published with LEFT. */
    ivc_store_relaxed(&ivc_region_slot(&view, view.self.slot)->features,
                      view.self.features | IVC_FEATURE_MOVED);
    /* What cannot be freed here the others free, as after a death. */
    if (ivc_member_say_left(&view) && (farewell->whole || map_links(region, &view)))
        ivc_reclaim_if_unread(&view, view.self.slot);
    ivc_fault_uncover(view.mapping.fault);
}
