/*
 * Waiting: turns of progress, one after the other, until what is waited for has come or the time is
 * over.  In between, the endpoint gives the processor away or sleeps, as IVC_SPIN says.
 */
#ifndef IVC_ADAPTER_C_WAIT_H
#define IVC_ADAPTER_C_WAIT_H

#include "internal.h"

#include "base/atomics.h"
#include "base/util.h"

struct wait {
    struct ivc_context *context;
    bool arms;              /* the context's, before */
    uint64_t limit_ns;      /* UINT64_MAX: none */
    unsigned turns;
    bool sending;           /* what is waited for may be room */
};

enum { WAIT_TURNS = 256 };  /* between two readings of the clock */

/* Sleeping is done by the call itself until wait_end(). */
static inline struct wait wait_begin(struct ivc_context *context, int timeout_ms, bool sending)
{
    struct wait wait = {
        .context = context,
        .arms = context->arms,
        .turns = timeout_ms == 0 ? WAIT_TURNS - 1 : 0,      /* one turn is all */
        .limit_ns = ivc_deadline_ns(timeout_ms),
        .sending = sending,
    };

    descriptor_disarm(context);
    context->arms = false;
    return wait;
}

/* After a turn in vain; false when the time is over. */
static inline bool wait_turn(struct wait *wait)
{
    ivc_endpoint_rest(wait->context->endpoint, IVC_COMPANY_NONE, wait->sending, wait->limit_ns);
    /* Not at first: a pause of the processor is as long as half the way of a message. */
    if (wait->turns > WAIT_TURNS)
        ivc_cpu_relax();
    return ++wait->turns % WAIT_TURNS != 0 || ivc_now_ns() < wait->limit_ns;
}

static inline void wait_end(const struct wait *wait, bool in_vain)
{
    wait->context->arms = wait->arms;
    if (wait->arms && in_vain)
        descriptor_arm(wait->context);
}

#endif
