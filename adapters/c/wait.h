/*
 * Waiting without an interrupt: look often at first, then give the processor away, then sleep
 * between looks.  A message that is about to come costs no system call; a long wait costs little.
 */
#ifndef IVC_ADAPTER_C_WAIT_H
#define IVC_ADAPTER_C_WAIT_H

#include "base/atomics.h"
#include "base/util.h"

#include <sched.h>

struct wait {
    uint64_t start_ns;
    uint64_t limit_ns;      /* UINT64_MAX: none */
    unsigned looks;
};

enum {
    WAIT_LOOKS = 256,       /* looks between two readings of the clock */
    WAIT_SPIN_NS = 50000,   /* ten round trips between two guests, with room */
    WAIT_YIELD_NS = 5000000,
    WAIT_SLEEP_NS = 50000,
};

static inline struct wait wait_begin(int timeout_ms)
{
    return (struct wait){
        .start_ns = ivc_now_ns(),
        .limit_ns = timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000u,
    };
}

/* Pauses before the next look; false when the time is over. */
static inline bool wait_pause(struct wait *wait)
{
    struct timespec pause = { 0, WAIT_SLEEP_NS };
    uint64_t waited;

    if (++wait->looks % WAIT_LOOKS != 0 && wait->limit_ns != 0) {
        /* Not among the first looks: a pause is as long as half the way of a message. */
        if (wait->looks > WAIT_LOOKS)
            ivc_cpu_relax();
        return true;
    }
    waited = ivc_now_ns() - wait->start_ns;
    if (waited >= wait->limit_ns)
        return false;
    if (waited > WAIT_YIELD_NS)
        nanosleep(&pause, NULL);
    else if (waited > WAIT_SPIN_NS)
        sched_yield();
    return true;
}

#endif
