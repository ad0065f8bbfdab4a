/*
 * Waiting: turns of progress, one after the other, until what is waited for has come or the time is
 * over.  In between, the endpoint gives the processor away or sleeps, as IVC_SPIN says.
 */
#ifndef IVC_ADAPTER_C_WAIT_H
#define IVC_ADAPTER_C_WAIT_H

#include "base/atomics.h"
#include "base/util.h"
#include "endpoint/endpoint.h"

struct wait {
    struct ivc_endpoint *endpoint;
    uint64_t limit_ns;      /* UINT64_MAX: none */
    unsigned turns;
    bool sending;           /* what is waited for may be room */
};

enum { WAIT_TURNS = 256 };  /* between two readings of the clock */

static inline struct wait wait_begin(struct ivc_endpoint *endpoint, int timeout_ms, bool sending)
{
    return (struct wait){
        .endpoint = endpoint,
        .turns = timeout_ms == 0 ? WAIT_TURNS - 1 : 0,      /* one turn is all */
        .limit_ns = ivc_deadline_ns(timeout_ms),
        .sending = sending,
    };
}

/* After a turn in vain; false when the time is over. */
static inline bool wait_turn(struct wait *wait)
{
    ivc_endpoint_rest(wait->endpoint, IVC_COMPANY_NONE, wait->sending, wait->limit_ns);
    /* Not at first: a pause of the processor is as long as half the way of a message. */
    if (wait->turns > WAIT_TURNS)
        ivc_cpu_relax();
    return ++wait->turns % WAIT_TURNS != 0 || ivc_now_ns() < wait->limit_ns;
}

#endif
