/*
 * The gate: either the application's thread is inside the endpoint, or the helper has closed it.
 *
 * The application goes in and out for every message, the helper a few times in a job's life.  So going
 * in is two plain accesses: a store that says "inside" and a load of "is it closed?".  A processor
 * may let the load overtake the store; what would have to be a fence on this side is done by the
 * helper with membarrier(2), which makes every thread of the process pass one.
 *
 * The helper stands for any thread that is not the application's: one of them at a time has the gate closed.
 *
 * Invariants.  While the helper holds the gate nobody is inside, and what was done inside is visible
 * to it; who goes in afterwards sees what it did.  One thread of the application at a time goes in
 * and out (an endpoint of several threads has locks of its own, which the helper takes).
 */
#ifndef IVC_ENDPOINT_GATE_H
#define IVC_ENDPOINT_GATE_H

#include "base/atomics.h"

#include <pthread.h>
#include <stdbool.h>

struct ivc_gate {
    ivc_atomic_u32 inside;      /* how deep: a handler's calls are inside already */
    ivc_atomic_u32 closed;
    bool fence;                 /* this kernel has no membarrier(2): each entry pays for it */
    pthread_mutex_t lock;       /* the helper's, while it has the gate closed */
};

void ivc_gate_init(struct ivc_gate *gate);
void ivc_gate_free(struct ivc_gate *gate);

/* The helper: waits until nobody is inside, and keeps everybody out. */
void ivc_gate_close(struct ivc_gate *gate);
void ivc_gate_open(struct ivc_gate *gate);

/* It was closed when we came: waits, and goes in. */
void ivc_gate_wait(struct ivc_gate *gate);

static inline void ivc_gate_leave(struct ivc_gate *gate)
{
    /* Release: pairs with the acquire in ivc_gate_close(); what we did is visible to the helper. */
    ivc_store_release(&gate->inside, ivc_load_relaxed(&gate->inside) - 1);
}

/* False: it is closed, and nobody has gone in. */
static inline bool ivc_gate_try(struct ivc_gate *gate)
{
    /* Relaxed: we alone write it. */
    uint32_t depth = ivc_load_relaxed(&gate->inside);

    ivc_store_relaxed(&gate->inside, depth + 1);
    if (__builtin_expect(gate->fence, 0))
        atomic_thread_fence(memory_order_seq_cst);
    /* For the compiler; for the processor the helper's membarrier does it. */
    atomic_signal_fence(memory_order_seq_cst);
    /* Acquire: pairs with the release in ivc_gate_open(); what the helper did is visible. */
    if (__builtin_expect(ivc_load_acquire(&gate->closed) == 0 || depth > 0, 1))
        return true;
    ivc_gate_leave(gate);
    return false;
}

static inline void ivc_gate_enter(struct ivc_gate *gate)
{
    if (!ivc_gate_try(gate))
        ivc_gate_wait(gate);
}

#endif
