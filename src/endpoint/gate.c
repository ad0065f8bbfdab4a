/* The gate, its slow sides: see gate.h. */
#include "endpoint/gate.h"

#include "base/util.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct timespec moment = { 0, 20 * 1000 };

static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

void ivc_gate_init(struct ivc_gate *gate)
{
    const int needed = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    int known = membarrier(MEMBARRIER_CMD_QUERY);

    gate->fence = known < 0 || (known & needed) != needed;
    pthread_mutex_init(&gate->lock, NULL);
}

void ivc_gate_free(struct ivc_gate *gate)
{
    pthread_mutex_destroy(&gate->lock);
}

/* Only a registered process may ask for the fence.  To register, one of several threads waits for all processors, 10 ms
 * and more: so it is done at the first close, by the helper and with the gate open, and not at the start of every job. */
static void be_registered(void)
{
    while (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0)
        nanosleep(&moment, NULL);       /* no memory: the kernel knows the command */
}

void ivc_gate_close(struct ivc_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (!gate->fence)
        be_registered();
    ivc_store_relaxed(&gate->closed, 1);
    /* After that: who does not see `closed` has said `inside` before, and we see it. */
    if (gate->fence)
        atomic_thread_fence(memory_order_seq_cst);
    else
        (void)membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    /* Acquire: pairs with the release in ivc_gate_leave(). */
    while (ivc_load_acquire(&gate->inside) != 0)
        nanosleep(&moment, NULL);
}

void ivc_gate_open(struct ivc_gate *gate)
{
    /* Release: pairs with the acquire in ivc_gate_enter(). */
    ivc_store_release(&gate->closed, 0);
    pthread_mutex_unlock(&gate->lock);
}

void ivc_gate_wait(struct ivc_gate *gate)
{
    do {
        /* Release: as in ivc_gate_leave(). */
        ivc_store_release(&gate->inside, 0);
        /* The helper holds it while the gate is closed. */
        pthread_mutex_lock(&gate->lock);
        ivc_store_relaxed(&gate->inside, 1);
        pthread_mutex_unlock(&gate->lock);
        /* It may have closed again between; it has not seen us inside then, or waits for us. */
        atomic_thread_fence(memory_order_seq_cst);
    } while (ivc_load_acquire(&gate->closed) != 0);
}
