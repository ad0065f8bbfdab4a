/*
 * A clock for patience.  It runs slower than any other while processes that are not ours use the
 * machine, down to a quarter: what has to come within ten seconds on a machine of its own gets up
 * to forty.  What never comes is noticed all the same.
 */
#ifndef IVC_TESTS_MIGRATE_MACHINE_H
#define IVC_TESTS_MIGRATE_MACHINE_H

#include <stdint.h>
#include <sys/types.h>

struct machine {
    uint64_t looked_ms, total, busy, ours;  /* at the last look; processor time in ticks */
    double share;                           /* of the processors that others use */
    double ms;                              /* the clock */
    uint64_t at_ms;                         /* ... as it was then */
};

/* To be called often; `pids` are our processes, besides this one and those that have ended. */
void machine_look(struct machine *machine, const pid_t *pids, unsigned n_pids);

#endif
