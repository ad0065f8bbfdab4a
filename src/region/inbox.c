/*
 * Inboxes: how a member learns which of its many rings has something in it.
 *
 * Each slot has one bit in every other member's inbox.  A sender that is not watched sets its bit,
 * then the summary bit of the word it is in; the receiver takes the summary first, then the words.
 * So a bit is never left behind: either the receiver's exchange of the word sees it, or the summary
 * bit is set again after the receiver cleared it.
 *
 * A sender reads `watched` after it has published its packet, and a processor may let that read
 * overtake the write: then it believes itself watched while the receiver turns away.  No fence is
 * spent on that; the endpoint looks at every ring in turn all the time (endpoint/poll.c), so such a
 * packet is found a little later.
 *
 * Who sleeps has turned away from every ring and said so; who rings then wakes it (wake.h).  Either the
 * sleeper's look at the summary comes after the ringer's bit, or the ringer's look at `sleep` after the
 * sleeper's word.  Who keeps still sleeps as well, and is woken only by one who finds no room.
 */
#include "region/internal.h"

#include "base/error.h"
#include "base/util.h"

static struct ivc_layout_bell *inbox(const struct ivc_region *region, uint32_t slot)
{
    char *base = (char *)region->mapping.memory + region->geometry.inboxes;

    return (struct ivc_layout_bell *)(base + slot * region->geometry.inbox_size);
}

static ivc_atomic_u64 *ready_words(const struct ivc_region *region, uint32_t slot)
{
    return (ivc_atomic_u64 *)(inbox(region, slot) + 1);
}

static ivc_atomic_u64 *watched_words(const struct ivc_region *region, uint32_t slot)
{
    return ready_words(region, slot)
           + ivc_align_up(region->geometry.map_words, IVC_LINE / sizeof(uint64_t));
}

int ivc_region_doorbell(struct ivc_region *region, uint32_t slot, struct ivc_doorbell *ret_bell)
{
    uint32_t own = region->self.slot;
    uint32_t word = own / 64;
    struct ivc_member member;
    int r = ivc_region_member(region, slot, &member);

    if (region->grants) {
        ivc_grants_doorbell(region, slot, ret_bell);
        return 0;
    }
    *ret_bell = (struct ivc_doorbell){
        .watched = watched_words(region, slot) + word,
        .bit = (uint64_t)1 << own % 64,
        .ready = ready_words(region, slot) + word,
        .bell = inbox(region, slot),
        .summary_bit = (uint64_t)1 << word,     /* at most 64 words: 4096 members */
        .wake = r == 0 ? region->wake : NULL,   /* who has left need not be woken */
    };
    if (r == 0)
        ret_bell->sleeper = ivc_wake_target_of(member.endpoint_id, member.same_kernel, &member.wake);
    return 0;
}

void ivc_doorbell_ring(const struct ivc_doorbell *bell)
{
    if (bell->pairs) {
        ivc_grants_ring(bell, false);
        return;
    }
    /* Release, both: pair with the acquires in ivc_region_take_ready(); the packet that was
     * published before is visible to whoever takes the bit, the bit to whoever takes the summary.
     * The second and the load are sequentially consistent, with the fence in ivc_region_lie_down(). */
    atomic_fetch_or_explicit(bell->ready, bell->bit, memory_order_release);
    atomic_fetch_or(&bell->bell->summary, bell->summary_bit);
    if (__builtin_expect(atomic_load(&bell->bell->sleep) == IVC_ASLEEP, 0) && bell->wake
        && ivc_cas(&bell->bell->sleep, (uint32_t)IVC_ASLEEP, (uint32_t)IVC_RUNG))
        ivc_wake_send(bell->wake, &bell->sleeper);
}

void ivc_doorbell_insist(const struct ivc_doorbell *bell)
{
    if (bell->pairs) {
        ivc_grants_ring(bell, true);
        return;
    }
    /* Relaxed: whoever has no room asks again and again, and what is in the ring has been rung for. */
    if (ivc_load_relaxed(&bell->bell->sleep) == IVC_STILL && bell->wake
        && ivc_cas(&bell->bell->sleep, (uint32_t)IVC_STILL, (uint32_t)IVC_RUNG))
        ivc_wake_send(bell->wake, &bell->sleeper);
}

void ivc_region_keep_still(struct ivc_region *region)
{
    /* Relaxed: as in ivc_doorbell_insist(). */
    ivc_store_relaxed(&inbox(region, region->self.slot)->sleep, IVC_STILL);
}

void ivc_region_lie_down(struct ivc_region *region)
{
    /* Relaxed: the fence orders it before all that we look at from now on. */
    ivc_store_relaxed(&inbox(region, region->self.slot)->sleep, IVC_ASLEEP);
    atomic_thread_fence(memory_order_seq_cst);
}

void ivc_region_get_up(struct ivc_region *region)
{
    /* Relaxed: one who sees it late sends a datagram for nothing. */
    ivc_store_relaxed(&inbox(region, region->self.slot)->sleep, IVC_AWAKE);
}

static void wake_self_from(struct ivc_region *region, enum ivc_sleep sleep)
{
    struct ivc_wake_target self = {
        region->self.endpoint_id, true, region->self.wake,
    };

    if (region->wake && ivc_cas(&inbox(region, region->self.slot)->sleep, (uint32_t)sleep,
                                (uint32_t)IVC_RUNG))
        ivc_wake_send(region->wake, &self);
}

void ivc_region_wake_self(struct ivc_region *region)
{
    /* What it is to see was stored before: either it is seen before the sleep, or we see the sleep. */
    atomic_thread_fence(memory_order_seq_cst);
    wake_self_from(region, IVC_ASLEEP);
}

void ivc_region_ring_self(struct ivc_region *region, uint32_t slot)
{
    struct ivc_doorbell bell = {
        .bit = (uint64_t)1 << slot % 64,
        .ready = ready_words(region, region->self.slot) + slot / 64,
        .bell = inbox(region, region->self.slot),
        .summary_bit = (uint64_t)1 << slot / 64,
    };

    ivc_doorbell_ring(&bell);
}

void ivc_inbox_rung(struct ivc_region *region, uint32_t slot, bool insist)
{
    ivc_region_ring_self(region, slot);
    ivc_region_wake_self(region);
    if (insist)
        wake_self_from(region, IVC_STILL);
}

void ivc_region_set_watched(struct ivc_region *region, uint32_t slot, bool watched)
{
    ivc_atomic_u64 *word = watched_words(region, region->self.slot) + slot / 64;
    uint64_t bit = (uint64_t)1 << slot % 64;
    uint64_t value = ivc_load_relaxed(word);    /* we alone write it */

    if (region->grants) {
        ivc_grants_set_watched(region, slot, watched);
        return;
    }
    /* Relaxed: a hint; see the top of this file for what happens when it is seen late. */
    ivc_store_relaxed(word, watched ? value | bit : value & ~bit);
}

const ivc_atomic_u64 *ivc_region_ready_summary(struct ivc_region *region)
{
    return &inbox(region, region->self.slot)->summary;
}

static void take_word(struct ivc_region *region, uint32_t word,
                      void (*fn)(void *arg, uint32_t slot), void *arg)
{
    /* Acquire: pairs with the release in ivc_doorbell_ring(). */
    uint64_t bits = atomic_exchange_explicit(ready_words(region, region->self.slot) + word, 0,
                                             memory_order_acquire);

    for (; bits; bits &= bits - 1) {
        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);

        if (region->grants)
            ivc_grants_take(region, slot);
        fn(arg, slot);
    }
}

void ivc_region_take_ready(struct ivc_region *region, void (*fn)(void *arg, uint32_t slot),
                           void *arg)
{
    uint32_t own = region->self.slot;
    /* Acquire: as above.  Bits beyond our words can only be scribble. */
    uint64_t summary = atomic_exchange_explicit(&inbox(region, own)->summary, 0,
                                                memory_order_acquire);
    uint32_t words = region->geometry.map_words;

    if (words < 64)
        summary &= ((uint64_t)1 << words) - 1;
    for (; summary; summary &= summary - 1)
        take_word(region, (uint32_t)__builtin_ctzll(summary), fn, arg);
}
