/* Who waits for our processor: see crowd.h. */
#include "base/crowd.h"

#include <sys/resource.h>

enum {
    TURNS_PER_LOOK = 1024,      /* some 30 us, of which a look takes one */
    YIELDS_PER_LOOK = TURNS_PER_LOOK,
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
    if (crowd->idle % TURNS_PER_LOOK == 0)
        look(crowd);
    if (crowd->yields == 0)
        return false;
    crowd->yields--;
    return true;
}
