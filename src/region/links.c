/*
 * Link tables: what a member tells each of the others, a line for each.  A table is made of parts, each
 * a block with the lines of 64 neighbouring slots, and of a root that says where they are.  A part is
 * made when the first of its lines is needed, and stays.
 *
 * Invariant: a line that is not there is one that is addressed to nobody.
 */
#include "region/internal.h"

#include "base/error.h"
#include "base/util.h"

_Static_assert(IVC_LAYOUT_LINKS_PER_PART * sizeof(struct ivc_layout_link) == IVC_LAYOUT_PAGE,
               "a part is a block");
_Static_assert(IVC_LAYOUT_LINK_PARTS * sizeof(uint64_t) <= IVC_LAYOUT_PAGE, "the root is a block");

static struct ivc_share block_of(const struct ivc_share *share, uint32_t block)
{
    uint64_t at = (uint64_t)block * IVC_LAYOUT_PAGE;

    return (struct ivc_share){
        .handle = share->handle + at, .memory = (char *)share->memory + at, .size = IVC_LAYOUT_PAGE,
    };
}

/* For the lines of `n` neighbouring slots, which may begin within a part. */
static uint32_t parts_for(const struct ivc_region *region, uint32_t n)
{
    return IVC_MIN(n / IVC_LAYOUT_LINKS_PER_PART + 2,
                   region->geometry.capacity / IVC_LAYOUT_LINKS_PER_PART);
}

/* All at once: whoever dies while it waits for memory, not yet a member, is found late, and holds none. */
int ivc_links_open(struct ivc_region *region)
{
    struct ivc_links *links = &region->links;
    uint32_t parts = parts_for(region, 1);
    struct ivc_share blocks;
    int r;

    for (uint32_t i = 0; i < IVC_LAYOUT_LINK_PARTS; i++)
        ivc_store_relaxed(&links->parts[i], NULL);      /* of an earlier membership */
    links->root = (struct ivc_share){ 0 };
    links->n_spares = 0;
    if (region->grants)
        return 0;       /* a line of each pair page */
    r = ivc_region_share_patiently(region, IVC_SLOT_ANY, (uint64_t)(1 + parts) * IVC_LAYOUT_PAGE,
                                   &blocks);
    if (r != 0)
        return r;
    links->root = block_of(&blocks, 0);
    while (links->n_spares < parts) {
        links->spares[links->n_spares] = block_of(&blocks, links->n_spares + 1);
        links->n_spares++;
    }
    return 0;
}

void ivc_links_close(struct ivc_region *region)
{
    while (region->links.n_spares > 0)
        ivc_region_unshare(region, &region->links.spares[--region->links.n_spares]);
    ivc_region_unshare(region, &region->links.root);
}

int ivc_region_reserve_links(struct ivc_region *region, uint32_t n)
{
    struct ivc_links *links = &region->links;
    uint32_t parts = region->grants ? 0 : parts_for(region, n);
    int r = 0;

    while (r == 0 && links->n_spares < parts) {
        r = ivc_region_share_patiently(region, IVC_SLOT_ANY, IVC_LAYOUT_PAGE,
                                       &links->spares[links->n_spares]);
        links->n_spares += r == 0;
    }
    return r;
}

struct ivc_layout_link *ivc_region_own_link(struct ivc_region *region, uint32_t slot)
{
    struct ivc_layout_link *part;

    if (region->grants)
        return ivc_grants_own_link(region, slot);
    /* Acquire: pairs with the release in make_part(), for a helper that looks while a part is made. */
    part = ivc_load_acquire(&region->links.parts[slot / IVC_LAYOUT_LINKS_PER_PART]);
    return part ? part + slot % IVC_LAYOUT_LINKS_PER_PART : NULL;
}

static int make_part(struct ivc_region *region, uint32_t part)
{
    ivc_atomic_u64 *root = region->links.root.memory;
    struct ivc_links *links = &region->links;
    struct ivc_share share;
    int r = 0;

    if (links->n_spares > 0)
        share = links->spares[--links->n_spares];
    else
        r = ivc_region_share(region, IVC_SLOT_ANY, IVC_LAYOUT_PAGE, &share);
    if (r != 0)
        return r;
    /* Release: pairs with the acquire in ivc_region_link(); the part's zeroes are visible. */
    ivc_store_release(&root[part], share.handle);
    ivc_store_release(&links->parts[part], (struct ivc_layout_link *)share.memory);
    return 0;
}

int ivc_region_make_link(struct ivc_region *region, uint32_t slot)
{
    if (region->grants)
        return ivc_grants_make_link(region, slot);
    return ivc_region_own_link(region, slot) ? 0
        : make_part(region, slot / IVC_LAYOUT_LINKS_PER_PART);
}

/* The offset of a part; 0: there is none. */
static uint64_t part_of(struct ivc_region *region, uint32_t owner, uint32_t slot)
{
    uint64_t root = ivc_load_relaxed(&ivc_region_slot(region, owner)->links);
    const void *memory;

    if (ivc_region_map(region, owner, root, IVC_LAYOUT_PAGE, &memory) != 0)
        return 0;
    /* Acquire: pairs with the release in make_part(). */
    return ivc_load_acquire((const ivc_atomic_u64 *)memory + slot / IVC_LAYOUT_LINKS_PER_PART);
}

const struct ivc_layout_link *ivc_region_link(struct ivc_region *region, uint32_t owner, uint32_t slot)
{
    const void *memory;
    uint64_t part;

    if (region->grants)
        return ivc_grants_link(region, owner, slot);
    part = part_of(region, owner, slot);
    if (part == 0 || ivc_region_map(region, owner, part, IVC_LAYOUT_PAGE, &memory) != 0)
        return NULL;
    return (const struct ivc_layout_link *)memory + slot % IVC_LAYOUT_LINKS_PER_PART;
}

const struct ivc_layout_link *ivc_region_peer_link(struct ivc_region *region, uint32_t slot)
{
    return ivc_region_link(region, slot, region->self.slot);
}
