/*
 * Dwelling: a read in vain goes on looking for a while when its caller stays away after such reads.
 *
 * MPICH from 5.0 on gives its processor away after each look of a wait; sched_yield() takes half a
 * microsecond, more than twice what a message takes, and what comes meanwhile waits.  So the first read
 * of a wait looks for three times as long as the caller stays away between two: a peer that waits in the
 * same way stays away once before it answers, and the rest is for the way there and back.  A caller that
 * does something else in between loses no more than that, once for each wait.
 *
 * How long it stays away is measured now and then, from the end of the second read in vain to the beginning
 * of the third: the first may be the one that ends a batch (Open MPI reads until there is nothing left), and
 * the caller's own work lies behind it.  A caller that comes back at once looks often enough; one that stays
 * away for longer works, or has given its processor to somebody who needs it.
 */
#include "cq.h"

enum {
    MEASURE_EVERY = 16,     /* waits, at least */
    AWAY_MIN_NS = 150,
    AWAY_MAX_NS = 1000,
    LOOKS = 3,              /* times as long as that */
    TURNS = 4,              /* between two looks at the clock */
};

static void look_for(struct ivc_fi_cq *cq, uint64_t ns)
{
    uint64_t end = ivc_now_ns() + ns;

    do {
        for (uint32_t i = 0; i < TURNS && !ivc_fi_cq_has_something(cq); i++)
            ivc_fi_cq_progress(cq, 0);
    } while (!ivc_fi_cq_has_something(cq) && ivc_now_ns() < end);
}

void ivc_fi_cq_dwell(struct ivc_fi_cq *cq)
{
    struct ivc_fi_dwell *dwell = &cq->dwell;

    dwell->vain++;
    if (dwell->vain == 1) {
        dwell->waits++;
        if (dwell->away_ns > 0)
            look_for(cq, LOOKS * dwell->away_ns);
    } else if (dwell->vain == 2) {
        dwell->left_ns = dwell->waits >= MEASURE_EVERY ? ivc_now_ns() : 0;
    } else if (dwell->left_ns > 0) {
        uint64_t away = ivc_now_ns() - dwell->left_ns;

        dwell->left_ns = 0;
        dwell->waits = 0;
        dwell->away_ns = away >= AWAY_MIN_NS && away <= AWAY_MAX_NS ? away : 0;
    }
}
