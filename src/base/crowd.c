/* Who waits for our processor: see crowd.h. */
#include "base/crowd.h"

#include "base/util.h"

#include <sched.h>
#include <sys/resource.h>

enum {
    TURNS_PER_LOOK = 1024,      /* some 30 us, of which a look takes one */
    YIELDS_PER_LOOK = 32,       /* if none of them led to anybody, it was somebody who is gone */
    OUR_PART = 2,               /* of what was taken at once */
};

static void look(struct ivc_crowd *crowd)
{
    struct rusage usage;

    if (getrusage(RUSAGE_THREAD, &usage) != 0 || usage.ru_nivcsw == crowd->switches)
        return;
    crowd->switches = usage.ru_nivcsw;
    crowd->yields = YIELDS_PER_LOOK;
}

bool ivc_crowd_waits(struct ivc_crowd *crowd)
{
    if (crowd->idle % TURNS_PER_LOOK == 0 || crowd->yields == 1)
        look(crowd);
    if (crowd->yields == 0 || ivc_cycles() - crowd->given_at < crowd->ours_for)
        return false;
    crowd->yields--;
    return true;
}

void ivc_crowd_give_way(struct ivc_crowd *crowd, uint64_t long_cycles)
{
    uint64_t start = ivc_cycles(), now;

    sched_yield();
    now = ivc_cycles();
    crowd->given += now - start;
    crowd->given_at = now;
    crowd->ours_for = long_cycles > 0 && now - start > long_cycles ? (now - start) / OUR_PART : 0;
}
