/* Region: the contract of region.h over a window. */
#include "region/region.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static char *window(const struct ivc_region *region)
{
    return region->mapping.memory;
}

static int lock_init(struct ivc_region *region)
{
    ivc_cond_init(&region->guard_wake);
    return -pthread_mutex_init(&region->lock, NULL);
}

static int tables_init(struct ivc_region *region)
{
    const struct ivc_layout_header *header = region->mapping.memory;
    uint32_t capacity = region->geometry.capacity;

    region->sights = calloc(capacity, sizeof *region->sights);
    region->watched = calloc(capacity, sizeof *region->watched);
    region->kernels = calloc(capacity, sizeof *region->kernels);
    if (!region->sights || !region->watched || !region->kernels)
        return ivc_error_set(-ENOMEM, "region %s: out of memory for its tables", region->name);
    region->blocks.owners = (ivc_atomic_u32 *)(window(region) + region->geometry.owners);
    region->blocks.n = region->geometry.n_blocks;
    if (ivc_reserve_open(region) < 0)
        return -ENOMEM;
    region->lease_ms = ivc_load_relaxed(&header->lease_ms);
    ivc_member_describe_self(&region->identity);
    for (unsigned i = 0; i < 2; i++)
        region->uuid[i] = ivc_load_relaxed(&header->uuid[i]);
    region->epoch = ivc_load_relaxed(&header->epoch);
    ivc_fault_tell(region->mapping.fault, &region->alarm);
    return lock_init(region);
}

int ivc_region_open(const char *name, struct ivc_region **ret_region)
{
    struct ivc_region *region = calloc(1, sizeof *region);
    int r;

    if (!region)
        return ivc_error_set(-ENOMEM, "region: out of memory");
    r = ivc_region_attach(name, &region->mechanism, region->name, &region->mapping);
    if (r != 0)
        goto err;
    region->grants = region->mapping.grants;
    r = ivc_window_open(region->name, &region->mapping, &region->geometry);
    if (r == 0)
        r = tables_init(region);
    if (r != 0)
        goto err;
    *ret_region = region;
    return 0;

err:
    ivc_region_free(region);
    return r;
}

void ivc_region_free(struct ivc_region *region)
{
    if (!region)
        return;
    ivc_region_leave(region);
    ivc_lenders_remove(region);
    ivc_retire_end(region);
    ivc_mapping_free(&region->mapping);
    free(region->lent.pieces);
    free(region->last_words);
    free(region->sights);
    free(region->watched);
    free(region->kernels);
    free(region->reserved);
    free(region);
}

/* Cleared, overwritten, or no memory at all any more: pulled devices answer with zeroes or ones. */
static bool header_is_ours(const struct ivc_region *region)
{
    const struct ivc_layout_header *header = region->mapping.memory;

    /* Relaxed: the values themselves are compared, nothing is read because of them. */
    return ivc_load_relaxed(&header->magic) == IVC_LAYOUT_MAGIC
           && ivc_load_relaxed(&header->uuid[0]) == region->uuid[0]
           && ivc_load_relaxed(&header->uuid[1]) == region->uuid[1]
           && ivc_load_relaxed(&header->epoch) == region->epoch;
}

bool ivc_region_is_intact(const struct ivc_region *region)
{
    const struct ivc_layout_header *header = region->mapping.memory;

    /* Acquire, so that it is not done before what was read: that came with an acquire itself. */
    atomic_thread_fence(memory_order_acquire);
    return __builtin_expect(ivc_load_relaxed(&header->uuid[0]) == region->uuid[0], 1);
}

bool ivc_region_is_lost(const struct ivc_region *region)
{
    return region->lost || ivc_fault_has_been(region->mapping.fault);
}

bool ivc_region_look_if_lost(struct ivc_region *region)
{
    if (!region->retired && !ivc_region_is_lost(region)
        && (!region->mechanism->is_there(region->name, &region->mapping)
            || !header_is_ours(region)))
        ivc_fault_replace(region->mapping.fault);
    return ivc_region_is_lost(region);
}

bool ivc_region_is_named(const struct ivc_region *region)
{
    return region->mechanism->is_named(region->name, &region->mapping);
}

void ivc_region_info(struct ivc_region *region, struct ivc_region_info *ret_info)
{
    const struct ivc_layout_header *header = region->mapping.memory;
    struct ivc_region_info info = {
        .mechanism = region->mechanism->name,
        .size = ivc_load_relaxed(&header->size),
        .epoch = ivc_load_relaxed(&header->epoch),
        .free_bytes = ivc_region_free_bytes(region),
        .capacity = region->geometry.capacity,
        .lease_ms = region->lease_ms,
        .speed = region->mapping.speed,
    };

    memcpy(info.name, region->name, sizeof info.name);
    ivc_window_uuid(&region->mapping, info.uuid);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = ivc_load_relaxed(&header->tenant_name[i]);

        memcpy(info.tenant + i * sizeof word, &word, sizeof word);
    }
    *ret_info = info;
}

uint64_t ivc_region_free_bytes(const struct ivc_region *region)
{
    return region->retired ? 0 : ivc_blocks_free_count(&region->blocks) * IVC_LAYOUT_PAGE;
}

uint64_t ivc_region_size(const struct ivc_region *region)
{
    return region->geometry.n_blocks * IVC_LAYOUT_PAGE;
}

bool ivc_region_is_scarce(const struct ivc_region *region)
{
    return ivc_region_free_bytes(region) < ivc_region_size(region) / 4;
}

const struct ivc_member *ivc_region_self(const struct ivc_region *region)
{
    return &region->self;
}

uint32_t ivc_region_capacity(const struct ivc_region *region)
{
    return region->geometry.capacity;
}

void ivc_region_watch(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    ivc_store_relaxed(&region->watched[slot], generation);
}

void ivc_region_unwatch(struct ivc_region *region, uint32_t slot)
{
    ivc_store_relaxed(&region->watched[slot], 0);
}

bool ivc_region_alarm(const struct ivc_region *region)
{
    return ivc_load_relaxed(&region->alarm) != 0;
}

void ivc_region_alarm_clear(struct ivc_region *region)
{
    ivc_store_relaxed(&region->alarm, 0);
}

static uint32_t own_owner(const struct ivc_region *region)
{
    return ivc_layout_owner(region->self.slot, region->self.generation);
}

static void give(struct ivc_region *region, uint64_t first, uint64_t count)
{
    pthread_mutex_lock(&region->lock);
    ivc_blocks_give(&region->blocks, own_owner(region), first, count);
    pthread_mutex_unlock(&region->lock);
}

/* Blocks, and the pages to them: the latter without the lock, as it may take a while. */
static int take(struct ivc_region *region, uint64_t size, struct ivc_share *ret_share)
{
    uint64_t count = (size + IVC_LAYOUT_PAGE - 1) / IVC_LAYOUT_PAGE;
    uint64_t first;
    int r;

    pthread_mutex_lock(&region->lock);
    r = ivc_blocks_take(&region->blocks, own_owner(region), count, &first);
    pthread_mutex_unlock(&region->lock);
    if (r < 0)
        return ivc_error_set(IVC_E_NOSPACE, "region %s: full, no %llu bytes left; use a larger region "
                             "(256 KiB for each process and more for large messages)",
                             region->name, (unsigned long long)size);
    r = ivc_reserve(region, first, count);
    if (r != 0) {
        give(region, first, count);
        return r;
    }
    *ret_share = (struct ivc_share){
        .handle = region->geometry.blocks + first * IVC_LAYOUT_PAGE,
        .size = count * IVC_LAYOUT_PAGE,
    };
    ret_share->memory = window(region) + ret_share->handle;
    return 0;
}

/* What is free there was somebody's before, and its pages are there.  False: that is where we have looked. */
static bool look_from_the_start(struct ivc_region *region)
{
    bool is_elsewhere;

    pthread_mutex_lock(&region->lock);
    is_elsewhere = region->reserved && region->blocks.hint > 0;
    region->blocks.hint = 0;
    pthread_mutex_unlock(&region->lock);
    return is_elsewhere;
}

int ivc_region_take(struct ivc_region *region, uint64_t size, struct ivc_share *ret_share)
{
    int r = take(region, size, ret_share);

    if (r == IVC_E_NOSPACE && look_from_the_start(region))
        r = take(region, size, ret_share);
    return r;
}

void ivc_region_clear(void *memory, uint64_t size)
{
    size = IVC_MIN(size, (uint64_t)PTRDIFF_MAX);        /* which it is: for the compiler */
    ivc_take_pages(memory, size);
    memset(memory, 0, size);
}

/* In a window every member sees everything, so `slot` does not matter; a handle is an offset. */
int ivc_region_share(struct ivc_region *region, uint32_t slot, uint64_t size,
                     struct ivc_share *ret_share)
{
    int r;

    if (region->grants)
        return ivc_grants_share(region, slot, size, ret_share);
    r = ivc_region_take(region, size, ret_share);
    if (r == 0)
        ivc_region_clear(ret_share->memory, ret_share->size);
    return r;
}

void ivc_region_unshare(struct ivc_region *region, const struct ivc_share *share)
{
    if (!share->memory)
        return;
    if (region->retired) {
        ivc_retire_unshare(share);
        return;
    }
    if (region->grants) {
        ivc_grants_unshare(region, share);
        return;
    }
    give(region, (share->handle - region->geometry.blocks) / IVC_LAYOUT_PAGE, share->size / IVC_LAYOUT_PAGE);
}

/* We read it and its owner stores into it, in turns: which is slower by half where our page is mapped for reading only
 * (on an EPYC, see docs/performance.md).  Not all of it if it is more than anybody shares at a time. */
static void map_for_storing(void *memory, uint64_t size)
{
    enum { MOST = 16 << 20 };

    ivc_touch_pages(memory, IVC_MIN(size, (uint64_t)MOST));
}

int ivc_region_map(struct ivc_region *region, uint32_t slot, uint64_t handle, uint64_t size,
                   const void **ret_memory)
{
    uint64_t end = region->geometry.blocks + region->geometry.n_blocks * IVC_LAYOUT_PAGE;

    if (region->grants)
        return ivc_grants_map(region, slot, handle, size, ret_memory);
    if (handle < region->geometry.blocks || handle % IVC_LAYOUT_PAGE != 0 || handle >= end
        || size > end - handle)
        return ivc_error_set(-EBADMSG, "region %s: member %u shares memory that lies outside the "
                             "region; its process is damaged or of another version",
                             region->name, slot);
    if (region->mapping.reads_only)
        map_for_storing(window(region) + handle, size);
    *ret_memory = window(region) + handle;
    return 0;
}

/* Nothing to undo in a window, of which the whole stays mapped. */
void ivc_region_unmap(struct ivc_region *region, uint32_t slot, const void *memory, uint64_t size)
{
    (void)slot;
    if (region->grants)
        ivc_grants_unmap(memory, size);
}

bool ivc_region_shares_with_all(const struct ivc_region *region)
{
    return !region->grants;
}

void ivc_region_look_at_all(struct ivc_region *region)
{
    if (region->grants)
        ivc_grants_look_at_all(region);
}

uint32_t ivc_region_place(const struct ivc_region *region)
{
    return region->grants ? ivc_grants_domain(region) : region->self.slot;
}

int ivc_region_member_at(struct ivc_region *region, uint32_t place, uint32_t generation,
                         uint64_t endpoint_id, struct ivc_member *ret_member)
{
    struct ivc_member member;
    int r = region->grants ? ivc_grants_find(region, place, endpoint_id, &member)
                           : ivc_region_member(region, place, &member);

    if (r != 0 || member.generation != generation || member.endpoint_id != endpoint_id)
        return ivc_error_set(IVC_E_GONE, "peer %016llx has left the region",
                             (unsigned long long)endpoint_id);
    *ret_member = member;
    return 0;
}
