/*
 * Memory that was lent to the application, found by its address: quickly enough for each large message,
 * which reading the kernel's list of mappings (locate.c) is not.
 *
 * Who lent it may be another library of ours in this process (libivc-mpi-alloc.so, libivc.so), each with
 * a copy of this code and a list of its own.  Both export their list as the function `ivc_find_lent_1`,
 * which asks the next one for what it does not know.
 *
 * Invariant: a region is in the list only while what lies at its place is the window, or was taken away a moment ago
 * (fault.h): then it is private memory, and others would read something else.
 */
#include "region/internal.h"

#include <dlfcn.h>
#include <string.h>

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static struct {
    pthread_mutex_t lock;
    struct ivc_region *first;
    ivc_find_lent_fn *other;
    bool looked;                /* for `other` */
    atomic_bool none;           /* nobody has lent anything, as far as a search needs to know */
} lenders = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The region's place in the list, or the end. */
static struct ivc_region **place_of(const struct ivc_region *region)
{
    struct ivc_region **place = &lenders.first;

    while (*place && *place != region)
        place = &(*place)->next_lender;
    return place;
}

void ivc_lenders_add(struct ivc_region *region)
{
    struct ivc_region **place;

    pthread_mutex_lock(&lenders.lock);
    place = place_of(region);
    *place = region;
    ivc_store_relaxed(&lenders.none, false);
    pthread_mutex_unlock(&lenders.lock);
}

void ivc_lenders_remove(struct ivc_region *region)
{
    struct ivc_region **place;

    pthread_mutex_lock(&lenders.lock);
    place = place_of(region);
    if (*place)
        *place = region->next_lender;
    region->next_lender = NULL;
    pthread_mutex_unlock(&lenders.lock);
}

static bool find_own(uintptr_t start, uint64_t size, struct ivc_lent_place *ret_place)
{
    for (const struct ivc_region *region = lenders.first; region; region = region->next_lender) {
        uint64_t offset = start - (uintptr_t)region->mapping.memory;

        if (offset >= region->mapping.size || size > region->mapping.size - offset
            || ivc_fault_has_been(region->mapping.fault))
            continue;
        *ret_place = (struct ivc_lent_place){
            .uuid = { region->uuid[0], region->uuid[1] }, .epoch = region->epoch, .offset = offset,
        };
        return true;
    }
    return false;
}

bool ivc_region_find_lent(const void *memory, uint64_t size, void *scope,
                          struct ivc_lent_place *ret_place)
{
    ivc_find_lent_fn *other;
    bool found;

    /* Relaxed: whoever asks for memory that was lent has got it since, so he sees the store in ivc_lenders_add(). */
    if (ivc_load_relaxed(&lenders.none))
        return false;
    pthread_mutex_lock(&lenders.lock);
    if (!lenders.looked) {
        void *symbol = dlsym(scope, TEXT(IVC_FIND_LENT));

        memcpy(&lenders.other, &symbol, sizeof symbol);
        lenders.looked = true;
    }
    other = lenders.other;
    found = find_own((uintptr_t)memory, size, ret_place);
    ivc_store_relaxed(&lenders.none, !lenders.first && !other);
    pthread_mutex_unlock(&lenders.lock);
    return found || (other && other(memory, size, ret_place));
}

bool ivc_region_locate_lent(const struct ivc_region *region, const void *memory, uint64_t size,
                            uint64_t *ret_handle)
{
    struct ivc_lent_place place;

    if (!ivc_region_find_lent(memory, size, RTLD_DEFAULT, &place) || place.uuid[0] != region->uuid[0]
        || place.uuid[1] != region->uuid[1] || place.epoch != region->epoch)
        return false;
    *ret_handle = place.offset;
    return true;
}
