/*
 * Pairs: what is between this process and one peer of a region without a window; see grants.h.
 *
 * Each side makes a page for the other and says in the store, to that domain alone, by which reference
 * it is found:  ivc-pairs/OWN-ID/PEER-ID = "VERSION REFERENCE PORT GENERATION PEER-GENERATION".  Of the
 * event channel the side with the lower id makes the end that the other joins.
 *
 * Invariant: the place of a slot's pair page can always be read; what is not mapped there are zeroes,
 * which mean "nothing yet" in every field.
 */
#include "region/grants-internal.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

static struct ivc_pair_page *peer_page(const struct ivc_region *region, uint32_t slot)
{
    const struct ivc_grants *grants = region->grants;

    return (struct ivc_pair_page *)(grants->window + grants->window_size
                                    + (uint64_t)slot * IVC_LAYOUT_PAGE);
}

/* NULL: none yet.  Acquire: pairs with the release in make_page(). */
static struct ivc_pair_page *own_page(const struct ivc_region *region, uint32_t slot)
{
    return (struct ivc_pair_page *)(uintptr_t)ivc_load_acquire(&region->grants->pairs[slot].own_page);
}

static void pair_path(uint64_t from, uint64_t to, char ret_path[IVC_GRANT_PATH])
{
    snprintf(ret_path, IVC_GRANT_PATH, "ivc-pairs/%016" PRIx64 "/%016" PRIx64, from, to);
}

/* Relaxed: a number; for who reads it too early, map_page() rings. */
static uint32_t port_of(const struct ivc_pair *pair)
{
    return ivc_load_relaxed(&pair->port);
}

static void ring(const struct ivc_grants *grants, uint32_t slot)
{
    uint32_t port = port_of(&grants->pairs[slot]);

    if (port)
        grants->backend->port_ring(grants->handle, port);
}

/* Others never make a page for us. */
static bool is_of_our_group(const struct ivc_region *region, uint32_t slot)
{
    return ivc_region_slot(region, slot)->magic_id == region->self.magic_id;
}

static bool is_active(const struct ivc_region *region, uint32_t slot)
{
    return ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(region, slot)->state)) == IVC_PHASE_ACTIVE;
}

/* Zeroes, of our own, at a place where there was something else. */
static void put_zeroes(void *place, uint64_t size)
{
    /* It cannot fail where something is mapped already; if it did, what is there stays. */
    (void)!mmap(place, size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* ---- what we share with it */

static uint64_t block_of(const struct ivc_region *region, const void *memory)
{
    uint64_t at = (uint64_t)((const char *)memory - region->grants->window);

    return (at - region->geometry.blocks) / IVC_LAYOUT_PAGE;
}

/* Neighbouring blocks with new pages in them, which the peer may map. */
static int grant_blocks(struct ivc_region *region, uint32_t slot, uint32_t n, uint32_t *ret_refs,
                        uint32_t port, uint32_t byte, struct ivc_share *ret_share)
{
    struct ivc_grants *grants = region->grants;
    uint32_t owner = ivc_layout_owner(region->self.slot, region->self.generation);
    struct ivc_share share = { .size = (uint64_t)n * IVC_LAYOUT_PAGE };
    uint64_t first;
    int r = ivc_blocks_take(&region->blocks, owner, n, &first);

    if (r < 0)
        return ivc_error_set(IVC_E_NOSPACE, "region %s: this guest has no pages left to grant, of %"
                             PRIu64 "; more: the parameter 'limit' of the module xen_gntalloc",
                             region->name, region->geometry.n_blocks);
    share.handle = region->geometry.blocks + first * IVC_LAYOUT_PAGE;
    share.memory = grants->window + share.handle;
    r = grants->backend->grant(grants->handle, grants->pairs[slot].domain, n, share.memory, ret_refs,
                               port, byte);
    if (r != 0) {
        put_zeroes(share.memory, share.size);
        ivc_blocks_give(&region->blocks, owner, first, n);
        return r;
    }
    *ret_share = share;
    return 0;
}

static void take_blocks_back(struct ivc_region *region, const struct ivc_share *share)
{
    put_zeroes(share->memory, share->size);
    ivc_blocks_give(&region->blocks, ivc_layout_owner(region->self.slot, region->self.generation),
                    block_of(region, share->memory), share->size / IVC_LAYOUT_PAGE);
}

/* Neighbouring places of the table; IVC_PAIR_REFS: there are none. */
static uint32_t free_places(const struct ivc_pair_page *own, uint32_t n)
{
    uint32_t run = 0;

    for (uint32_t at = 0; at < IVC_PAIR_REFS; at++) {
        run = ivc_load_relaxed(&own->refs[at]) == 0 ? run + 1 : 0;
        if (run == n)
            return at + 1 - n;
    }
    return IVC_PAIR_REFS;
}

static int share_pages(struct ivc_region *region, uint32_t slot, uint32_t n, struct ivc_share *ret_share)
{
    struct ivc_pair_page *own = own_page(region, slot);
    uint32_t place = own ? free_places(own, n) : IVC_PAIR_REFS;
    uint32_t refs[IVC_PAIR_REFS];
    int r;

    if (place == IVC_PAIR_REFS)
        return ivc_error_set(IVC_E_NOSPACE, "region %s: no room for %u more pages to one peer, of %d",
                             region->name, n, IVC_PAIR_REFS);
    r = grant_blocks(region, slot, n, refs, 0, 0, ret_share);
    if (r != 0)
        return r;
    /* Relaxed: published with the handle. */
    for (uint32_t i = 0; i < n; i++)
        ivc_store_relaxed(&own->refs[place + i], refs[i]);
    region->grants->blocks[block_of(region, ret_share->memory)] = (struct ivc_granted){ slot, place + 1 };
    ret_share->handle = place + 1;
    return 0;
}

int ivc_grants_share(struct ivc_region *region, uint32_t slot, uint64_t size, struct ivc_share *ret_share)
{
    uint64_t n = (size + IVC_LAYOUT_PAGE - 1) / IVC_LAYOUT_PAGE;
    int r;

    if (slot == IVC_SLOT_ANY || n == 0 || n > IVC_PAIR_REFS)
        return ivc_error_set(IVC_E_NOSPACE, "region %s: %" PRIu64 " bytes cannot be shared here, where "
                             "pages are granted to one member each", region->name, size);
    pthread_mutex_lock(&region->lock);
    r = share_pages(region, slot, (uint32_t)n, ret_share);
    pthread_mutex_unlock(&region->lock);
    return r;
}

/* Under the lock. */
static void unshare_pages(struct ivc_region *region, const struct ivc_share *share)
{
    struct ivc_granted *granted = &region->grants->blocks[block_of(region, share->memory)];
    struct ivc_pair_page *own = granted->place ? own_page(region, granted->slot) : NULL;

    for (uint32_t i = 0; own && i < share->size / IVC_LAYOUT_PAGE; i++)
        ivc_store_relaxed(&own->refs[granted->place - 1 + i], 0);
    *granted = (struct ivc_granted){ 0 };
    take_blocks_back(region, share);
}

void ivc_grants_unshare(struct ivc_region *region, const struct ivc_share *share)
{
    pthread_mutex_lock(&region->lock);
    unshare_pages(region, share);
    pthread_mutex_unlock(&region->lock);
}

/* ---- what it shares with us */

int ivc_grants_map(struct ivc_region *region, uint32_t slot, uint64_t handle, uint64_t size,
                   const void **ret_memory)
{
    struct ivc_grants *grants = region->grants;
    const struct ivc_pair_page *peer = peer_page(region, slot);
    uint64_t n = (size + IVC_LAYOUT_PAGE - 1) / IVC_LAYOUT_PAGE;
    uint32_t refs[IVC_PAIR_REFS];
    void *memory;
    int r;

    if (handle == 0 || n == 0 || n > IVC_PAIR_REFS || handle - 1 > IVC_PAIR_REFS - n)
        return ivc_error_set(-EBADMSG, "region %s: member %u shares memory under a number that cannot "
                             "be; its process is damaged or of another version", region->name, slot);
    /* Relaxed: the handle was read with acquire. */
    for (uint64_t i = 0; i < n; i++)
        refs[i] = ivc_load_relaxed(&peer->refs[handle - 1 + i]);
    r = grants->backend->map(grants->handle, grants->pairs[slot].domain, (uint32_t)n, refs, NULL, &memory);
    if (r == 0)
        *ret_memory = memory;
    return r;
}

void ivc_grants_unmap(const void *memory, uint64_t size)
{
    munmap((void *)memory, ivc_align_up(size, IVC_LAYOUT_PAGE));
}

/* ---- the pair itself */

static bool we_make_port(const struct ivc_region *region, uint32_t slot)
{
    return region->self.endpoint_id < ivc_region_slot(region, slot)->endpoint_id;
}

/* Then the peer need not tell where its page is any more, and may read what we send. */
static void say_mapped(struct ivc_region *region, uint32_t slot)
{
    struct ivc_pair_page *own = own_page(region, slot);

    /* Release: pairs with the acquire in ivc_grants_link(); whatever of it we read comes later. */
    if (own && region->grants->pairs[slot].mapped)
        ivc_store_release(&own->mapped, 1);
}

static int make_page(struct ivc_region *region, uint32_t slot, uint32_t *ret_ref)
{
    struct ivc_pair *pair = &region->grants->pairs[slot];
    struct ivc_pair_page *own;
    int r = grant_blocks(region, slot, 1, ret_ref, port_of(pair),
                         (uint32_t)offsetof(struct ivc_pair_page, alive), &pair->own);

    if (r != 0)
        return r;
    own = pair->own.memory;
    own->version = IVC_PAIR_VERSION;
    own->generation = region->self.generation;
    own->for_generation = ivc_layout_generation(ivc_load_relaxed(&ivc_region_slot(region, slot)->state));
    ivc_store_relaxed(&own->state, IVC_PAIR_HERE);
    ivc_store_relaxed(&own->alive, 1);
    /* Release: pairs with the acquire in is_for_us(). */
    ivc_store_release(&own->magic, IVC_PAIR_MAGIC);
    /* Release: pairs with the acquire in own_page(). */
    ivc_store_release(&pair->own_page, (uint64_t)(uintptr_t)own);
    say_mapped(region, slot);
    return 0;
}

/* A peer that has moved is told at the same place where it was told before, as another member. */
static void forget_told(struct ivc_region *region, uint64_t endpoint_id)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        if (ivc_region_slot(region, slot)->endpoint_id == endpoint_id)
            region->grants->pairs[slot].told = false;
}

static int tell(struct ivc_region *region, uint32_t slot, uint32_t ref)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair *pair = &grants->pairs[slot];
    const struct ivc_pair_page *own = pair->own.memory;
    char path[IVC_GRANT_PATH], text[80];

    forget_told(region, ivc_region_slot(region, slot)->endpoint_id);
    pair->told = true;
    pair_path(region->self.endpoint_id, ivc_region_slot(region, slot)->endpoint_id, path);
    snprintf(text, sizeof text, "%u %u %u %u %u", IVC_PAIR_VERSION, ref, pair->joined ? 0 : port_of(pair),
             own->generation, own->for_generation);
    return grants->backend->put(grants->handle, path, text, pair->domain);
}

/* The store has room for so many entries of one guest. */
static void tell_no_more(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    char path[IVC_GRANT_PATH];

    if (!grants->pairs[slot].told)
        return;
    grants->pairs[slot].told = false;
    pair_path(region->self.endpoint_id, ivc_region_slot(region, slot)->endpoint_id, path);
    grants->backend->drop(grants->handle, path);
}

/* All that was shared with it and not taken back. */
static void forget_shares(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;

    for (uint64_t block = 0; block < region->geometry.n_blocks; block++)
        if (grants->blocks[block].place && grants->blocks[block].slot == slot)
            grants->blocks[block].place = 0;    /* its table goes; its owner takes the memory back */
}

/* What we had made. */
static void unmake(struct ivc_region *region, uint32_t slot)
{
    struct ivc_pair *pair = &region->grants->pairs[slot];

    tell_no_more(region, slot);
    if (pair->own.memory) {
        forget_shares(region, slot);
        ivc_store_relaxed(&pair->own_page, 0);
        take_blocks_back(region, &pair->own);
        pair->own = (struct ivc_share){ 0 };
    }
    if (port_of(pair) && !pair->mapped) {
        region->grants->backend->port_close(region->grants->handle, port_of(pair));
        ivc_store_relaxed(&pair->port, 0);
    }
}

/* Under the lock. */
static int make(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair *pair = &grants->pairs[slot];
    uint32_t ref, port = 0;
    int r = 0;

    if (pair->own.memory)
        return 0;
    if (!is_active(region, slot))
        return ivc_error_set(IVC_E_GONE, "region %s: member %u has left or died", region->name, slot);
    if (we_make_port(region, slot) && !port_of(pair))
        r = grants->backend->port_make(grants->handle, pair->domain, &port);
    if (port)
        ivc_store_relaxed(&pair->port, port);
    if (r == 0)
        r = make_page(region, slot, &ref);
    if (r == 0)
        r = tell(region, slot, ref);
    if (r != 0) {
        unmake(region, slot);
        return r;
    }
    /* It is to know us, too. */
    if (!pair->mapped)
        grants->backend->knock(grants->handle, pair->domain, IVC_GRANT_DOOR);
    return 0;
}

int ivc_grants_make_link(struct ivc_region *region, uint32_t slot)
{
    int r;

    if (own_page(region, slot))
        return 0;
    pthread_mutex_lock(&region->lock);
    r = make(region, slot);
    if (r == 0)
        ivc_pair_look(region, slot);    /* it may have made its page before */
    pthread_mutex_unlock(&region->lock);
    return r;
}

void ivc_pair_watch(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair *pair = &grants->pairs[slot];
    char path[IVC_GRANT_PATH], token[16];

    if (!is_of_our_group(region, slot))
        return;
    pair_path(ivc_region_slot(region, slot)->endpoint_id, region->self.endpoint_id, path);
    snprintf(token, sizeof token, "%u", slot);
    pair->watched = grants->backend->watch(grants->handle, pair->domain, path, token) == 0;
}

static void unwatch(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair *pair = &grants->pairs[slot];
    char path[IVC_GRANT_PATH], token[16];

    if (!pair->watched)
        return;
    pair->watched = false;
    pair_path(ivc_region_slot(region, slot)->endpoint_id, region->self.endpoint_id, path);
    snprintf(token, sizeof token, "%u", slot);
    grants->backend->unwatch(grants->handle, pair->domain, path, token);
}

static bool is_for_us(const struct ivc_region *region, uint32_t slot, const struct ivc_pair_page *page)
{
    uint32_t generation = ivc_layout_generation(ivc_load_relaxed(&ivc_region_slot(region, slot)->state));

    /* Acquire: pairs with the release in make_page(). */
    return ivc_load_acquire(&page->magic) == IVC_PAIR_MAGIC && page->version == IVC_PAIR_VERSION
           && page->generation == generation && page->for_generation == region->self.generation;
}

static void map_page(struct ivc_region *region, uint32_t slot, uint32_t ref, uint32_t port)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair *pair = &grants->pairs[slot];
    struct ivc_pair_page *page = peer_page(region, slot);
    uint32_t own_port;
    void *memory;

    if (grants->backend->map(grants->handle, pair->domain, 1, &ref, page, &memory) != 0) {
        put_zeroes(page, sizeof *page);
        return;     /* it may be gone since; else look_at_pairs() tries again */
    }
    if (!is_for_us(region, slot, page)) {
        put_zeroes(page, sizeof *page);
        return;
    }
    if (port && !port_of(pair) && !we_make_port(region, slot)
        && grants->backend->port_join(grants->handle, pair->domain, port, &own_port) == 0) {
        ivc_store_relaxed(&pair->port, own_port);
        pair->joined = true;
        /* Who has rung since found no port: its count was stored before it looked for one, so the other
         * side sees what was sent when it hears this. */
        atomic_thread_fence(memory_order_seq_cst);
        ring(grants, slot);
    }
    pair->mapped = true;
    say_mapped(region, slot);
    ring(grants, slot);         /* it may have waited for that */
    unwatch(region, slot);      /* the store has so many watches for a guest */
    ivc_inbox_rung(region, slot, false);
}

void ivc_pair_look(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    const struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    IVC_AUTO_FREE char *text = NULL;
    unsigned version, ref, port, generation, for_generation;
    char path[IVC_GRANT_PATH];

    if (!is_active(region, slot) || slot == region->self.slot || grants->pairs[slot].mapped
        || !is_of_our_group(region, slot))
        return;
    pair_path(entry->endpoint_id, region->self.endpoint_id, path);
    if (grants->backend->get(grants->handle, grants->pairs[slot].domain, path, &text) < 0
        || sscanf(text, "%u %u %u %u %u", &version, &ref, &port, &generation, &for_generation) != 5
        || version != IVC_PAIR_VERSION || for_generation != region->self.generation)
        return;
    map_page(region, slot, ref, port);
}

/* ---- bells */

void ivc_grants_doorbell(struct ivc_region *region, uint32_t slot, struct ivc_doorbell *ret_bell)
{
    *ret_bell = (struct ivc_doorbell){
        .watched = &peer_page(region, slot)->watched, .bit = 1, .pairs = region, .slot = slot,
    };
}

void ivc_grants_ring(const struct ivc_doorbell *bell, bool insist)
{
    const struct ivc_grants *grants = bell->pairs->grants;
    struct ivc_pair_page *own = own_page(bell->pairs, bell->slot);
    const struct ivc_pair_page *peer = peer_page(bell->pairs, bell->slot);
    uint64_t rung;

    if (!own)
        return;
    rung = ivc_load_relaxed(&own->rung);
    /* Relaxed: whoever has no room asks again and again.  Each event costs both sides a system call. */
    if (insist && ivc_load_relaxed(&peer->watched))
        return;
    if (insist)
        ivc_store_relaxed(&own->insisted, rung + 1);
    /* Either the peer, which says that it has seen and then looks, finds what was published before, or we see
     * that it has seen: the fence in ivc_grants_take() is the other half. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!insist && ivc_load_relaxed(&peer->seen) != rung)
        return;     /* it has not looked since we rang last */
    if (ivc_cas(&own->rung, rung, rung + 1))
        ring(grants, bell->slot);
}

void ivc_grants_take(struct ivc_region *region, uint32_t slot)
{
    struct ivc_pair_page *own = own_page(region, slot);

    if (!own)
        return;
    ivc_store_relaxed(&own->seen, ivc_load_relaxed(&peer_page(region, slot)->rung));
    atomic_thread_fence(memory_order_seq_cst);      /* see ivc_grants_ring() */
}

void ivc_grants_set_watched(struct ivc_region *region, uint32_t slot, bool watched)
{
    struct ivc_pair_page *own = own_page(region, slot);

    /* Relaxed: a hint, see inbox.c. */
    if (own)
        ivc_store_relaxed(&own->watched, watched);
}

void ivc_pair_rung(struct ivc_region *region, uint32_t slot)
{
    struct ivc_pair *pair = &region->grants->pairs[slot];
    uint64_t insisted = ivc_load_relaxed(&peer_page(region, slot)->insisted);

    ivc_inbox_rung(region, slot, insisted != pair->insisted);
    pair->insisted = insisted;
}

/* ---- life */

static void set_phase(struct ivc_region *region, uint32_t slot, enum ivc_phase phase)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    uint64_t state = ivc_load_relaxed(&entry->state);

    if (ivc_layout_phase(state) == IVC_PHASE_ACTIVE)
        (void)ivc_cas(&entry->state, state, ivc_layout_state(ivc_layout_generation(state), phase));
}

static void set_moved(struct ivc_region *region, uint32_t slot)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);

    ivc_store_relaxed(&entry->features, ivc_load_relaxed(&entry->features) | IVC_FEATURE_MOVED);
    set_phase(region, slot, IVC_PHASE_LEFT);
}

/* What the peer's page says of its owner, into the directory. */
static void look_at_page(struct ivc_region *region, uint32_t slot)
{
    const struct ivc_pair_page *peer = peer_page(region, slot);
    const struct ivc_pair_page *own = own_page(region, slot);
    struct ivc_pair *pair = &region->grants->pairs[slot];
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    uint64_t heartbeat = ivc_load_relaxed(&peer->heartbeat);
    /* Acquire: who leaves in order has said so before its page ends, which is when the byte is cleared. */
    uint32_t alive = ivc_load_acquire(&peer->alive);
    /* Acquire: pairs with the release in ivc_pair_say_left(). */
    uint32_t state = ivc_load_acquire(&peer->state);

    if (heartbeat != pair->heartbeat_seen)
        ivc_store_relaxed(&entry->heartbeat, ivc_load_relaxed(&entry->heartbeat) + 1);
    pair->heartbeat_seen = heartbeat;
    if (ivc_load_relaxed(&peer->mapped) && !pair->met) {
        pair->met = true;
        tell_no_more(region, slot);
        ivc_pair_rung(region, slot);        /* what it had sent before could not be read */
    }
    /* An event that was lost costs one beat. */
    if (own && ivc_load_relaxed(&peer->rung) != ivc_load_relaxed(&own->seen))
        ivc_pair_rung(region, slot);
    if (state == IVC_PAIR_MOVED)
        set_moved(region, slot);
    else if (state == IVC_PAIR_LEFT)
        set_phase(region, slot, IVC_PHASE_LEFT);
    else if (alive == 0)
        set_phase(region, slot, IVC_PHASE_DEAD);
}

/* We have stopped, and wait for its word: which does not come if it went before we had its page. */
static bool is_waited_for(const struct ivc_region *region, uint32_t slot)
{
    const struct ivc_pair_page *own = own_page(region, slot);

    return own && ivc_load_relaxed(&own->link.suspended) == IVC_LINK_IS_SUSPENDED;
}

/* It has connected to us, and nobody here has heard of it. If it has to leave before that, it waits for our word, which
 * needs a page of ours (is_stranger() in endpoint/helper.c). */
static void answer_page(struct ivc_region *region, uint32_t slot)
{
    const struct ivc_pair_page *peer = peer_page(region, slot);

    /* Relaxed: a hint, nothing is read with it. */
    if (!own_page(region, slot) && is_active(region, slot)
        && ivc_load_relaxed(&peer->link.generation) == region->self.generation)
        (void)make(region, slot);   /* or at the next beat */
}

/* We have connected to it: who lives answers that by a page.  What it has not seen it cannot answer, so whoever is not
 * asked counts as living. */
static bool is_asked(const struct ivc_region *region, uint32_t slot)
{
    const struct ivc_pair_page *own = own_page(region, slot);
    uint64_t state = ivc_load_relaxed(&ivc_region_slot(region, slot)->state);

    /* Relaxed: written by this process, and nothing is read with it. */
    return own && ivc_load_relaxed(&own->link.generation) == ivc_layout_generation(state);
}

void ivc_pair_beat(struct ivc_region *region, uint32_t slot)
{
    struct ivc_pair *pair = &region->grants->pairs[slot];
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    struct ivc_pair_page *own = own_page(region, slot);

    if (own)
        ivc_store_relaxed(&own->heartbeat, ivc_load_relaxed(&own->heartbeat) + 1);
    if (slot == region->self.slot || !is_active(region, slot))
        return;
    if (pair->mapped) {
        look_at_page(region, slot);
        answer_page(region, slot);
    } else if (pair->missed > IVC_MISSED    /* the last of these may be under way */
               || (is_waited_for(region, slot) && !ivc_grants_has_record(region, slot))) {
        /* It has left or died, we cannot tell.  It read nothing of ours, and can be elsewhere: if it is, the network
         * leads there, and else tells. */
        set_moved(region, slot);
    } else if (!is_asked(region, slot)) {       /* else its silence is told from death by the lease */
        ivc_store_relaxed(&entry->heartbeat, ivc_load_relaxed(&entry->heartbeat) + 1);
    }
}

void ivc_pair_say_left(struct ivc_region *region, uint32_t slot, enum ivc_pair_state state)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair_page *own = own_page(region, slot);

    if (!own)
        return;
    /* Release: pairs with the acquire in look_at_page(); all that was sent before is visible. */
    ivc_store_release(&own->state, state);
    ring(grants, slot);
}

bool ivc_pair_is_read(const struct ivc_region *region, uint32_t slot)
{
    const struct ivc_pair_page *peer = peer_page(region, slot);

    /* Acquire: pairs with the release in ivc_link_close(); its reads are over. */
    return region->grants->pairs[slot].mapped && own_page(region, slot)
           && ivc_load_acquire(&peer->link.generation) == region->self.generation
           && ivc_load_relaxed(&peer->link.suspended) != IVC_LINK_IS_DONE
           && ivc_load_relaxed(&peer->state) == IVC_PAIR_HERE && ivc_load_relaxed(&peer->alive) != 0;
}

void ivc_pair_release(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_pair *pair = &grants->pairs[slot];

    unwatch(region, slot);
    if (pair->mapped)
        put_zeroes(peer_page(region, slot), IVC_LAYOUT_PAGE);
    pair->mapped = false;
    unmake(region, slot);
    *pair = (struct ivc_pair){ 0 };
}

/* ---- lines */

struct ivc_layout_link *ivc_grants_own_link(const struct ivc_region *region, uint32_t slot)
{
    struct ivc_pair_page *own = own_page(region, slot);

    return own ? &own->link : NULL;
}

const struct ivc_layout_link *ivc_grants_link(const struct ivc_region *region, uint32_t owner,
                                              uint32_t slot)
{
    const struct ivc_pair_page *peer = peer_page(region, owner);

    if (owner == region->self.slot)
        return ivc_grants_own_link(region, slot);
    /* Acquire: pairs with the release in say_mapped().  Who has not mapped our page has no line of ours, so there
     * is nothing between us yet: else we could read what it sends and be gone before it had seen us, and it would
     * send all of that once more, by network. */
    return slot == region->self.slot && ivc_load_acquire(&peer->mapped) ? &peer->link : NULL;
}
