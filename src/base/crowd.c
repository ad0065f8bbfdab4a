/* Who waits for our processor: see crowd.h. */
#include "base/crowd.h"

#include "base/timed.h"
#include "base/util.h"

#include <sched.h>
#include <sys/resource.h>

enum {
    TURNS_PER_LOOK = 1024,      /* some 30 us, of which a look takes one; */
    LOOK_PART = 32,             /* where it takes longer, no greater part of the time either */
    YIELDS_PER_LOOK = 32,       /* if none of them led to anybody, it was somebody who is gone */
    YIELD_CYCLES = 2048,        /* more than one that leads nowhere: what takes longer counts as several */
    OUR_PART = 2,               /* of what was taken at once */
};

static void look(struct ivc_crowd *crowd)
{
    uint64_t start = ivc_cycles(), before = crowd->looked_at;
    struct rusage usage;
    int r = getrusage(RUSAGE_THREAD, &usage);

    crowd->looked_at = ivc_cycles();
    crowd->look_cost = ivc_timed_cost(crowd->look_cost, crowd->looked_at - start);
    if (r != 0 || usage.ru_nivcsw == crowd->switches) {
        crowd->seen = 0;
        return;
    }
    crowd->switches = usage.ru_nivcsw;
    crowd->yields = YIELDS_PER_LOOK;
    crowd->seen = crowd->looked_at - before < IVC_CROWD_RECENT ? crowd->seen + 1 : 1;
}

/* Nothing is known of anybody; or somebody was given way to as often as was planned, but for once. */
static bool look_is_due(struct ivc_crowd *crowd)
{
    uint32_t rows = crowd->idle / TURNS_PER_LOOK;
    bool one_more = rows > crowd->rows;

    if (crowd->yields > 0)
        return crowd->yields == 1;
    crowd->rows = rows;     /* none, when a wait begins */
    /* System calls may be dear: in user-mode Linux they take 12 us. */
    return one_more && ivc_cycles() - crowd->looked_at >= LOOK_PART * crowd->look_cost;
}

bool ivc_crowd_waits(struct ivc_crowd *crowd)
{
    if (crowd->yields > 0
        && (!ivc_crowd_has_turn(crowd->idle) || ivc_cycles() - crowd->given_at < crowd->ours_for))
        return false;
    if (look_is_due(crowd))
        look(crowd);
    if (crowd->yields == 0)
        return false;
    crowd->yields--;
    return true;
}

uint64_t ivc_crowd_give_way(struct ivc_crowd *crowd)
{
    uint64_t start = ivc_cycles(), took;

    sched_yield();
    crowd->given_at = ivc_cycles();
    took = crowd->given_at - start;
    crowd->given += took;
    crowd->ours_for = 0;
    if (crowd->yields > 1)
        crowd->yields -= (uint32_t)IVC_MIN(took / YIELD_CYCLES, crowd->yields - 1);
    return took;
}

void ivc_crowd_keep(struct ivc_crowd *crowd, uint64_t took, unsigned waiters)
{
    crowd->ours_for = took / (OUR_PART * IVC_MAX(waiters, 1u));
}
