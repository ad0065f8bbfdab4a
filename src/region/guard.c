/*
 * The guard: one helper thread per joined region.  Each beat it counts our heartbeat up, looks at
 * the members that are watched, and at a few others in turn, so that the dead of a large directory
 * are found without everybody reading everything.
 */
#include "region/internal.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

enum {
    OTHERS_PER_BEAT = 16,
    /* Then at all of them: what those of the last job had, who were gone when we joined, is wanted soon. */
    BEAT_OF_ALL = IVC_QUARANTINE_MS / IVC_HEARTBEAT_MS + 1,
};

static void raise_alarm(struct ivc_region *region)
{
    /* Relaxed: the reader looks at the members' states itself. */
    ivc_store_relaxed(&region->alarm, 1);
    ivc_region_wake_self(region);
}

static void look_at_watched(struct ivc_region *region)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        uint32_t generation = ivc_load_relaxed(&region->watched[slot]);
        bool left;

        if (!generation)
            continue;
        pthread_mutex_lock(&region->lock);
        ivc_reclaim_look(region, slot, false);
        pthread_mutex_unlock(&region->lock);
        if (ivc_region_member_check(region, slot, generation, &left) != 0)
            raise_alarm(region);
    }
}

static void look_at_others(struct ivc_region *region, unsigned beat)
{
    uint32_t from = ivc_load_relaxed(&region->spread), capacity = region->geometry.capacity;
    uint32_t n = beat == BEAT_OF_ALL ? capacity : OTHERS_PER_BEAT;

    pthread_mutex_lock(&region->lock);
    for (uint32_t i = 0; i < n; i++)
        ivc_reclaim_look(region, (from + i) % capacity, false);
    pthread_mutex_unlock(&region->lock);
    ivc_store_relaxed(&region->spread, (from + n) % capacity);
}

/* Sleeps for one beat; true when the region is being left. */
static bool wait_for_stop(struct ivc_region *region)
{
    return ivc_wait_for_flag(&region->guard_wake, &region->lock, &region->guard_stop,
                             IVC_HEARTBEAT_MS);
}

/* When we stood still ourselves (a stopped job, a paused guest), the silence of others in that time
 * says nothing about them. */
static void forgive_own_absence(struct ivc_region *region)
{
    uint64_t now = ivc_now_ms();
    bool absent = region->last_beat_ms && now - region->last_beat_ms > 5 * IVC_HEARTBEAT_MS;

    region->last_beat_ms = now;
    if (!absent)
        return;
    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        region->sights[slot].since_ms = now;
    pthread_mutex_unlock(&region->lock);
}

static void *guard_main(void *arg)
{
    struct ivc_region *region = arg;
    struct ivc_layout_member *own = ivc_region_slot(region, region->self.slot);
    unsigned beat = 0;

    do {
        ivc_chain_renew(SIGBUS);
        if (ivc_region_look_if_lost(region)) {
            raise_alarm(region);
            continue;
        }
        /* Relaxed: the count itself is the message. */
        ivc_store_relaxed(&own->heartbeat, ivc_load_relaxed(&own->heartbeat) + 1);
        if (ivc_region_is_evicted(region))
            raise_alarm(region);
        forgive_own_absence(region);
        if (region->grants) {
            pthread_mutex_lock(&region->lock);
            ivc_grants_beat(region);
            pthread_mutex_unlock(&region->lock);
        }
        look_at_watched(region);
        look_at_others(region, ++beat);
    } while (!wait_for_stop(region));
    return NULL;
}

int ivc_guard_start(struct ivc_region *region)
{
    int r;

    region->guard_stop = false;
    ivc_store_relaxed(&region->spread, region->self.slot);
    r = ivc_thread_start(&region->guard, guard_main, region);
    if (r != 0)
        return ivc_error_set(-r, "region %s: cannot start the helper thread: %s", region->name,
                             strerror(r));
    region->guard_runs = true;
    return 0;
}

void ivc_guard_stop(struct ivc_region *region)
{
    if (!region->guard_runs)
        return;
    ivc_set_flag(&region->guard_wake, &region->lock, &region->guard_stop);
    pthread_join(region->guard, NULL);
    region->guard_runs = false;
}
