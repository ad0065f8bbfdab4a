/* Members: the directory's entries, as their owners write them and as others read them. */
#include "region/internal.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

struct ivc_layout_member *ivc_region_slot(const struct ivc_region *region, uint32_t slot)
{
    char *base = region->mapping.memory;

    return (struct ivc_layout_member *)(base + region->geometry.members) + slot;
}

int ivc_region_member(const struct ivc_region *region, uint32_t slot, struct ivc_member *ret_member)
{
    const struct ivc_layout_member *entry;
    struct ivc_member member = { .slot = slot };
    uint64_t state;

    if (slot >= region->geometry.capacity)
        return ivc_error_set(-EINVAL, "member %u: the region has %u slots", slot,
                             region->geometry.capacity);
    entry = ivc_region_slot(region, slot);
    /* Acquire: pairs with the release of state in publish(); the fields are visible. */
    state = ivc_load_acquire(&entry->state);
    if (ivc_layout_phase(state) != IVC_PHASE_ACTIVE)
        return IVC_E_GONE;
    member.generation = ivc_layout_generation(state);
    member.magic_id = entry->magic_id;
    member.client_id = entry->client_id;
    member.pid = entry->pid;
    member.endpoint_id = entry->endpoint_id;
    member.vm = entry->vm;
    member.features = ivc_load_relaxed(&entry->features);
    memcpy(member.network, entry->network, sizeof member.network);
    member.wake = entry->wake;
    memcpy(member.host, entry->host, sizeof entry->host);
    memcpy(member.boot_id, entry->boot_id, sizeof member.boot_id);
    member.pid_namespace = entry->pid_namespace;
    member.same_kernel = ivc_member_same_kernel(region, slot, member.generation);
    /* The owner may have changed while we copied: then this is neither the one nor the other. */
    atomic_thread_fence(memory_order_acquire);
    if (ivc_load_relaxed(&entry->state) != state)
        return IVC_E_GONE;
    *ret_member = member;
    return 0;
}

uint32_t ivc_region_count_members(const struct ivc_region *region)
{
    uint32_t n = 0;

    /* Relaxed: a number, on which nothing rests. */
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        n += ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(region, slot)->state)) == IVC_PHASE_ACTIVE;
    return n;
}

uint32_t ivc_region_count_neighbours(const struct ivc_region *region)
{
    uint32_t n = 0;

    /* Relaxed, as above.  A slot that changed hands since the helper has looked counts as it was before. */
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        n += slot != region->self.slot && (ivc_load_relaxed(&region->kernels[slot]) & 1) != 0
             && ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(region, slot)->state)) == IVC_PHASE_ACTIVE;
    return n;
}

int ivc_region_member_check(const struct ivc_region *region, uint32_t slot, uint32_t generation,
                            bool *ret_left)
{
    /* Acquire: pairs with the release of LEFT in ivc_member_say_left(); all that was sent
     * before is visible to whoever then looks into the ring for the last time. */
    uint64_t state = ivc_load_acquire(&ivc_region_slot(region, slot)->state);

    if (state == ivc_layout_state(generation, IVC_PHASE_ACTIVE))
        return 0;
    *ret_left = state != ivc_layout_state(generation, IVC_PHASE_DEAD);
    return IVC_E_GONE;
}

enum ivc_member_fate ivc_region_member_fate(const struct ivc_region *region, uint32_t slot,
                                            uint32_t generation)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    uint32_t features;
    bool left;

    if (ivc_region_member_check(region, slot, generation, &left) == 0)
        return IVC_MEMBER_HERE;
    /* Relaxed: stored before LEFT, which the check has read with acquire. */
    features = ivc_load_relaxed(&entry->features);
    /* The slot may have a new owner since, whose features those are. */
    if (left && (features & IVC_FEATURE_MOVED)
        && ivc_layout_generation(ivc_load_acquire(&entry->state)) == generation)
        return IVC_MEMBER_MOVED;
    return left ? IVC_MEMBER_LEFT : IVC_MEMBER_DEAD;
}

bool ivc_region_is_evicted(const struct ivc_region *region)
{
    const struct ivc_layout_member *own = ivc_region_slot(region, region->self.slot);

    return ivc_load_relaxed(&own->state)
           != ivc_layout_state(region->self.generation, IVC_PHASE_ACTIVE);
}

/* False: we were taken for dead while we joined, and have nothing there any more. */
static bool publish(struct ivc_region *region, struct ivc_layout_member *entry)
{
    uint32_t generation = region->self.generation;

    /* Release: pairs with the acquire in ivc_region_member(); the entry's fields are visible. */
    if (!ivc_cas(&entry->state, ivc_layout_state(generation, IVC_PHASE_JOINING),
                 ivc_layout_state(generation, IVC_PHASE_ACTIVE)))
        return false;
    /* Before we look at the others: of two that join at once, one at least sees the other. */
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

/* Who joins waits for memory that may come when a lease is over, and is not to be taken for dead then. */
static void beat_while_joining(struct ivc_region *region)
{
    struct ivc_layout_member *own = ivc_region_slot(region, region->self.slot);

    if (!region->joined
        && ivc_load_relaxed(&own->state) == ivc_layout_state(region->self.generation, IVC_PHASE_JOINING))
        ivc_store_relaxed(&own->heartbeat, ivc_load_relaxed(&own->heartbeat) + 1);
}

/* Who has lost the memory without a word, and has it again, still stands where it stood before. */
static void declare_former_dead(struct ivc_region *region)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        struct ivc_layout_member *entry = ivc_region_slot(region, slot);
        /* Acquire: pairs with the release in publish(); the fields are valid. */
        uint64_t state = ivc_load_acquire(&entry->state);

        if (slot != region->self.slot && ivc_layout_phase(state) == IVC_PHASE_ACTIVE
            && entry->endpoint_id == region->self.endpoint_id)
            (void)ivc_cas(&entry->state, state,
                          ivc_layout_state(ivc_layout_generation(state), IVC_PHASE_DEAD));
    }
}

bool ivc_region_has_endpoint(struct ivc_region *region, uint64_t id)
{
    struct ivc_member member;

    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        if (ivc_region_member(region, slot, &member) == 0 && member.endpoint_id == id)
            return true;
    return false;
}

/* Takes the first free slot; -ENOSPC when there is none. */
static int take_slot(struct ivc_region *region)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        struct ivc_layout_member *entry = ivc_region_slot(region, slot);
        uint64_t state = ivc_load_relaxed(&entry->state);   /* the swap decides */
        uint32_t generation = ivc_layout_generation(state) + 1;

        if (ivc_layout_phase(state) != IVC_PHASE_FREE)
            continue;
        generation += generation == 0;      /* 0 means "none" in link lines */
        if (!ivc_cas(&entry->state, state, ivc_layout_state(generation, IVC_PHASE_JOINING)))
            continue;
        /* Pairs with the acquire fence in ivc_region_member(): who sees our fields sees JOINING. */
        atomic_thread_fence(memory_order_release);
        region->self.slot = slot;
        region->self.generation = generation;
        return 0;
    }
    return -ENOSPC;
}

void ivc_region_look_at_members(struct ivc_region *region)
{
    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        ivc_reclaim_look(region, slot, true);
    pthread_mutex_unlock(&region->lock);
}

bool ivc_region_wait_for_memory(struct ivc_region *region, bool was_coming)
{
    uint64_t before = ivc_blocks_free_count(&region->blocks), start = ivc_now_ms(), end = 0;

    for (bool waited = false; ivc_region_memory_wait(region, start, &end); waited = true) {
        if (!ivc_region_memory_is_coming(region))
            return was_coming || waited;        /* it has come */
        ivc_sleep_ms(IVC_HEARTBEAT_MS);
        beat_while_joining(region);
        ivc_region_look_at_members(region);
        if (ivc_blocks_free_count(&region->blocks) > before)
            return true;
    }
    return false;
}

int ivc_region_share_patiently(struct ivc_region *region, uint32_t slot, uint64_t size,
                               struct ivc_share *ret_share)
{
    bool coming;
    int r;

    do {
        coming = ivc_region_memory_is_coming(region);
        r = ivc_region_share(region, slot, size, ret_share);
    } while (r == IVC_E_NOSPACE && ivc_region_wait_for_memory(region, coming));
    return r;
}

/* A full directory may hold dead members: wait as long as it takes to be sure. */
static int take_slot_patiently(struct ivc_region *region)
{
    uint64_t deadline = ivc_now_ms() + region->lease_ms + 2 * IVC_QUARANTINE_MS;

    do {
        ivc_region_look_at_members(region);
        if (take_slot(region) == 0)
            return 0;
        ivc_sleep_ms(IVC_HEARTBEAT_MS);
    } while (ivc_now_ms() < deadline);
    return ivc_error_set(-ENOSPC, "region %s: its directory is full, %u living members; end some, or "
                         "use a larger region (256 KiB for each process)", region->name,
                         region->geometry.capacity);
}

static void fill_entry(struct ivc_region *region, const struct ivc_identity *identity)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, region->self.slot);

    ivc_member_describe_self(entry);
    entry->magic_id = identity->magic_id;
    entry->client_id = identity->client_id;
    entry->endpoint_id = identity->endpoint_id ? identity->endpoint_id : ivc_random_id();
    ivc_store_relaxed(&entry->features, identity->features);
    entry->vm = ivc_region_own_vm();
    memset(entry->network, 0, sizeof entry->network);   /* not the last owner's */
    if (identity->network)
        memcpy(entry->network, identity->network, sizeof entry->network);
    ivc_store_relaxed(&entry->lends, 0);        /* published with the state */
    region->wake = identity->wake;
    entry->wake = identity->wake ? identity->wake->name : (struct ivc_layout_wake){ 0 };
    region->self.magic_id = entry->magic_id;
    region->self.client_id = entry->client_id;
    region->self.pid = entry->pid;
    region->self.endpoint_id = entry->endpoint_id;
    region->self.vm = entry->vm;
    region->self.features = identity->features;
    memcpy(region->self.network, entry->network, sizeof entry->network);
    region->self.wake = entry->wake;
    memcpy(region->self.host, entry->host, sizeof entry->host);
    memcpy(region->self.boot_id, entry->boot_id, sizeof entry->boot_id);
    region->self.pid_namespace = entry->pid_namespace;
    region->self.same_kernel = true;
}

/* Forgets what was rung for the slot's last owner. */
static void clear_inbox(struct ivc_region *region)
{
    char *inbox = (char *)region->mapping.memory + region->geometry.inboxes
                  + region->self.slot * region->geometry.inbox_size;

    for (uint64_t at = 0; at < region->geometry.inbox_size; at += sizeof(uint64_t))
        ivc_store_relaxed((ivc_atomic_u64 *)(inbox + at), 0);
}

/* If it is still ours. */
static void release_slot(struct ivc_region *region, enum ivc_phase phase)
{
    (void)ivc_cas(&ivc_region_slot(region, region->self.slot)->state,
                  ivc_layout_state(region->self.generation, phase),
                  ivc_layout_state(region->self.generation, IVC_PHASE_FREE));
}

/* Whoever asks looks for members after asking, we look for orders after taking a slot: one of the two
 * sees the other. */
static bool must_stay_out(struct ivc_region *region)
{
    atomic_thread_fence(memory_order_seq_cst);
    ivc_region_orders_look(region);
    return ivc_region_is_ordered_away(region, ivc_region_own_vm());
}

int ivc_region_join(struct ivc_region *region, const struct ivc_identity *identity)
{
    struct ivc_layout_member *entry;
    int r;

    if (region->retired)
        return ivc_error_set(-EINVAL, "region %s: this process has let go of it; open it again",
                             region->name);
    ivc_region_look_at_members(region);
    r = take_slot(region);
    if (r < 0)
        r = take_slot_patiently(region);
    if (r < 0)
        return r;
    entry = ivc_region_slot(region, region->self.slot);
    if (must_stay_out(region)) {
        release_slot(region, IVC_PHASE_JOINING);
        return ivc_error_set(IVC_E_NOREGION, "region %s: its host has asked this guest to leave it",
                             region->name);
    }
    fill_entry(region, identity);
    clear_inbox(region);
    r = ivc_links_open(region);
    if (r != 0)
        goto err_links;
    ivc_store_relaxed(&entry->links, region->links.root.handle);    /* published with the state */
    ivc_presence_open(&region->presence, entry->endpoint_id);
    if (!publish(region, entry)) {
        r = ivc_error_set(-ESTALE, "region %s: others took this process for dead while it joined: its guest stood "
                          "still for longer than the lease; try again", region->name);
        goto err_links;
    }
    declare_former_dead(region);
    region->joined = true;
    r = ivc_guard_start(region);
    if (r == 0 && region->grants && (r = ivc_grants_join(region)) != 0) {
        ivc_guard_stop(region);
        ivc_grants_leave(region, IVC_PAIR_LEFT);
        ivc_grants_forget(region);
    }
    if (r != 0)
        goto err_links;
    return 0;

err_links:
    ivc_links_close(region);
    release_slot(region, region->joined ? IVC_PHASE_ACTIVE : IVC_PHASE_JOINING);
    region->joined = false;
    ivc_presence_close(&region->presence);
    return r;
}

bool ivc_member_say_left(struct ivc_region *region)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, region->self.slot);

    /* Release: pairs with the acquire in ivc_region_member_check().  A swap: who was taken for dead
     * has nothing there any more. */
    if (!ivc_cas(&entry->state, ivc_layout_state(region->self.generation, IVC_PHASE_ACTIVE),
                 ivc_layout_state(region->self.generation, IVC_PHASE_LEFT)))
        return false;
    /* Either a peer that opens a channel at this moment sees that, or we see its link line. */
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

void ivc_region_leave(struct ivc_region *region)
{
    bool by_grants = region->grants != NULL, left;

    if (!region->joined)
        return;
    ivc_guard_stop(region);
    region->joined = false;
    if (by_grants) {
        ivc_grants_leave(region, IVC_PAIR_LEFT);
        ivc_grants_forget(region);
    }
    left = ivc_member_say_left(region);
    ivc_presence_close(&region->presence);
    if (!left)
        return;
    ivc_reclaim_if_unread(region, region->self.slot);
    if (!by_grants)     /* there the members of other domains are seen to by who has their pages */
        ivc_reclaim_group(region, region->self.magic_id);
}
