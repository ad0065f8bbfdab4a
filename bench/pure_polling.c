/*
 * For measuring: a rank that only looks, as it would without crowd.h.  Loaded with LD_PRELOAD it takes
 * away what a waiting rank gives way by: nothing is known of others who want the processor, and giving
 * way to them does nothing.  With IVC_SPIN=forever that is pure polling.
 */
#include <sched.h>
#include <string.h>
#include <sys/resource.h>

int getrusage(__rusage_who_t who, struct rusage *usage)
{
    (void)who;
    memset(usage, 0, sizeof *usage);
    return 0;
}

int sched_yield(void)
{
    return 0;
}
