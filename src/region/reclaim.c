/*
 * Reclaiming: whoever notices a dead member marks it; when nobody reads its memory any more, its
 * blocks and its slot are free again.  Every step is one compare-and-swap, so any number of members
 * may do this at once and any of them may die in between.
 *
 * A process that we have seen to be of our own kernel and process id namespace (presence.c) is dead when it
 * no longer exists.  Any other is dead when its heartbeat stood still for the region's lease, by our clock:
 * one of another kernel, also of one that says that it is ours, and one that had died before we looked.
 *
 * Nobody reads it any more: every living member that has a channel with it says so by the generation
 * in its link line for that slot, and clears that when it has ended the channel.  So a peer that
 * computes for an hour without looking keeps the memory from being used again, and never finds
 * someone else's packets in a ring that it still polls.  Memory that was lent to an application is
 * reached through channels with other members of the same process: theirs count as well.
 */
#include "region/internal.h"

#include "base/util.h"

#include <string.h>

enum { SUSPICIOUS_MS = 500 };   /* a beat is due every 100 ms: look whether the process exists */

/* The slot's owner is gone, and what it had is still there. */
static bool is_over(enum ivc_phase phase)
{
    return phase == IVC_PHASE_LEFT || phase == IVC_PHASE_DEAD;
}

static bool is_dead(struct ivc_region *region, uint32_t slot, uint64_t state, uint64_t silent_ms, bool suspicious)
{
    uint32_t generation = ivc_layout_generation(state);

    if (ivc_layout_phase(state) == IVC_PHASE_JOINING)     /* its fields are not valid yet */
        return silent_ms >= region->lease_ms;
    if (!suspicious && silent_ms < SUSPICIOUS_MS)
        return false;
    return ivc_member_same_kernel(region, slot, generation)
           ? !ivc_member_process_exists(ivc_region_slot(region, slot)) : silent_ms >= region->lease_ms;
}

/* Some living member still has a channel with the process that owned the slot. */
static bool has_readers(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    for (uint32_t reader = 0; reader < region->geometry.capacity; reader++) {
        const struct ivc_layout_member *entry = ivc_region_slot(region, reader);
        const struct ivc_layout_link *link;

        if (ivc_layout_phase(ivc_load_acquire(&entry->state)) != IVC_PHASE_ACTIVE
            || !(link = ivc_region_link(region, reader, slot)))
            continue;
        /* Acquire, both: pair with the releases in ivc_link_close() and ivc_link_done(); its reads are
         * over. */
        if (ivc_load_acquire(&link->generation) == generation
            && ivc_load_acquire(&link->suspended) != IVC_LINK_IS_DONE)
            return true;
    }
    return false;
}

/* Joined by one process, as far as entries tell: a library and an adapter in it are a member each.  (One of a
 * copied guest may say the same.  What it lent is then kept for longer.) */
static bool is_same_process(const struct ivc_layout_member *a, const struct ivc_layout_member *b)
{
    return a->pid == b->pid && a->pid_start == b->pid_start
           && a->pid_namespace == b->pid_namespace
           && memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0;
}

/* What the application had of the slot's owner is reached through any member of its process.  Such a
 * member keeps its slot while it is read, so it is found here. */
static bool is_read_through_others(struct ivc_region *region, uint32_t slot)
{
    const struct ivc_layout_member *own = ivc_region_slot(region, slot);

    for (uint32_t other = 0; other < region->geometry.capacity; other++) {
        const struct ivc_layout_member *entry = ivc_region_slot(region, other);
        /* Acquire: pairs with the release in publish(); the fields are valid. */
        uint64_t state = ivc_load_acquire(&entry->state);
        enum ivc_phase phase = ivc_layout_phase(state);

        if (other != slot && phase != IVC_PHASE_FREE && phase != IVC_PHASE_JOINING
            && is_same_process(own, entry)
            && has_readers(region, other, ivc_layout_generation(state)))
            return true;
    }
    return false;
}

/* A member that has told others of no one's memory any more: all its pairs are suspended on both sides. */
static bool has_pairs(struct ivc_region *region, uint32_t slot)
{
    for (uint32_t peer = 0; peer < region->geometry.capacity; peer++) {
        const struct ivc_layout_link *link = ivc_region_link(region, slot, peer);

        /* Acquire: pairs with the release in ivc_link_done(); the peer had stopped before. */
        if (link && ivc_load_relaxed(&link->generation) != 0
            && ivc_load_acquire(&link->suspended) != IVC_LINK_IS_DONE)
            return true;
    }
    return false;
}

bool ivc_region_process_is_reached(struct ivc_region *region)
{
    uint32_t own = region->self.slot;

    for (uint32_t other = 0; other < region->geometry.capacity; other++) {
        const struct ivc_layout_member *entry = ivc_region_slot(region, other);
        /* Acquire: pairs with the release in publish(); the fields are valid. */
        uint64_t state = ivc_load_acquire(&entry->state);

        if (other != own && ivc_layout_phase(state) == IVC_PHASE_ACTIVE
            && is_same_process(ivc_region_slot(region, own), entry)
            && ivc_member_same_kernel(region, other, ivc_layout_generation(state)) && has_pairs(region, other))
            return true;
    }
    return false;
}

static bool is_still_read(struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    /* Acquire: pairs with the release in ivc_region_lend(). */
    return has_readers(region, slot, generation)
           || (ivc_load_acquire(&ivc_region_slot(region, slot)->lends)
               && is_read_through_others(region, slot));
}

/* Blocks first, the slot last, so that a slot that is free owns nothing. */
static void bury(struct ivc_region *region, struct ivc_layout_member *entry, uint32_t slot,
                 uint64_t state)
{
    uint32_t generation = ivc_layout_generation(state);

    if (region->grants)
        ivc_grants_bury(region, slot);
    ivc_blocks_give_all(&region->blocks, ivc_layout_owner(slot, generation));
    /* Relaxed would do: the next owner's take_slot() needs nothing that we wrote. */
    (void)ivc_cas(&entry->state, state, ivc_layout_state(generation, IVC_PHASE_FREE));
}

void ivc_reclaim_if_unread(struct ivc_region *region, uint32_t slot)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    uint64_t state = ivc_load_acquire(&entry->state);
    enum ivc_phase phase = ivc_layout_phase(state);

    if (is_over(phase) && !is_still_read(region, slot, ivc_layout_generation(state)))
        bury(region, entry, slot, state);
}

/* Nobody of a group is here, nor somebody who may become one. */
static bool is_deserted(struct ivc_region *region, uint64_t magic_id)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        const struct ivc_layout_member *entry = ivc_region_slot(region, slot);
        /* Acquire: pairs with the release in publish(); magic_id is valid. */
        enum ivc_phase phase = ivc_layout_phase(ivc_load_acquire(&entry->state));

        if (phase == IVC_PHASE_JOINING || (phase == IVC_PHASE_ACTIVE && entry->magic_id == magic_id))
            return false;
    }
    return true;
}

/* Members read those of their own group alone.  Of two who leave at once one at least sees that the other has left:
 * each has a fence between saying so and looking here.  Who joins meanwhile sees that they have left, or is seen. */
void ivc_reclaim_group(struct ivc_region *region, uint64_t magic_id)
{
    if (!is_deserted(region, magic_id))
        return;
    /* Pairs with the fence in ivc_link_open(): its line is seen by is_still_read(), or it sees what we saw. */
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        const struct ivc_layout_member *entry = ivc_region_slot(region, slot);
        /* Acquire: as above. */
        enum ivc_phase phase = ivc_layout_phase(ivc_load_acquire(&entry->state));

        if (is_over(phase) && entry->magic_id == magic_id)
            ivc_reclaim_if_unread(region, slot);
    }
}

void ivc_reclaim_look(struct ivc_region *region, uint32_t slot, bool suspicious)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    struct ivc_sight *sight = &region->sights[slot];
    /* Acquire: pairs with the release in publish(); is_dead() reads the fields. */
    uint64_t state = ivc_load_acquire(&entry->state);
    uint64_t heartbeat = ivc_load_relaxed(&entry->heartbeat);
    enum ivc_phase phase = ivc_layout_phase(state);
    uint64_t now;

    if (phase == IVC_PHASE_FREE || (region->joined && slot == region->self.slot))
        return;
    now = ivc_now_ms();     /* not for the many that are free: in some guests the clock is a long system call */
    if (state != sight->state || heartbeat != sight->heartbeat)
        *sight = (struct ivc_sight){ state, heartbeat, now, state == sight->state };
    if (phase == IVC_PHASE_ACTIVE)      /* while it lives */
        (void)ivc_member_same_kernel(region, slot, ivc_layout_generation(state));
    if (is_over(phase)) {
        if (now - sight->since_ms >= IVC_QUARANTINE_MS)
            ivc_reclaim_if_unread(region, slot);
    } else if (is_dead(region, slot, state, now - sight->since_ms, suspicious)) {
        uint64_t dead = ivc_layout_state(ivc_layout_generation(state), IVC_PHASE_DEAD);

        if (ivc_cas(&entry->state, state, dead))
            *sight = (struct ivc_sight){ dead, heartbeat, now, false };
    }
}

/* Its heart does not beat now, or was not seen to, and only the lease will tell. */
static bool is_silent(const struct ivc_region *region, uint32_t slot, uint64_t now)
{
    const struct ivc_sight *sight = &region->sights[slot];

    return ivc_layout_phase(sight->state) == IVC_PHASE_ACTIVE
           && ivc_load_relaxed(&ivc_region_slot(region, slot)->state) == sight->state
           && !(region->joined && slot == region->self.slot)
           && !ivc_member_same_kernel(region, slot, ivc_layout_generation(sight->state))
           && (!sight->beats || now - sight->since_ms >= SUSPICIOUS_MS);
}

bool ivc_region_is_silent(struct ivc_region *region, uint32_t slot)
{
    bool silent;

    pthread_mutex_lock(&region->lock);
    ivc_reclaim_look(region, slot, true);
    silent = is_silent(region, slot, ivc_now_ms());
    pthread_mutex_unlock(&region->lock);
    return silent;
}

static bool has_silent(struct ivc_region *region)
{
    uint64_t now = ivc_now_ms();
    bool found = false;

    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < region->geometry.capacity && !found; slot++)
        found = is_silent(region, slot, now);
    pthread_mutex_unlock(&region->lock);
    return found;
}

bool ivc_region_memory_wait(struct ivc_region *region, uint64_t start_ms, uint64_t *end_ms)
{
    enum { FREEING_MS = 3 * IVC_QUARANTINE_MS };
    uint64_t now = ivc_now_ms();

    if (*end_ms == 0)
        *end_ms = start_ms + FREEING_MS;
    if (has_silent(region))
        *end_ms = IVC_MIN(now, start_ms + region->lease_ms) + FREEING_MS;
    return now < *end_ms;
}

bool ivc_region_memory_is_coming(struct ivc_region *region)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        enum ivc_phase phase = ivc_layout_phase(
            ivc_load_relaxed(&ivc_region_slot(region, slot)->state));

        if (is_over(phase))
            return true;
    }
    return has_silent(region);
}
