/*
 * What could not be sent at once, and what was sent and is to be reported.
 *
 * Invariant: `outstanding` is the number of descriptors in all queues and in
 * `done`, so that an idle progress call looks at one word only.
 */
#include "btl_ivc.h"

#include <time.h>

#include "opal/runtime/opal_progress.h"

/* With several threads no descriptor is refused: another thread could empty the queue before
 * ob1 has noted down that it is to try again, and nothing would remind it. */
bool ivc_btl_queue_full(const struct mca_btl_base_endpoint_t *endpoint)
{
    return OPAL_UNLIKELY(endpoint->queued >= IVC_BTL_QUEUE_MAX) && !opal_using_threads();
}

void ivc_btl_queue_append(struct ivc_btl_frag *frag)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct mca_btl_base_endpoint_t *endpoint = frag->endpoint;

    OPAL_THREAD_LOCK(&m->lock);
    opal_list_append(&endpoint->queue, (opal_list_item_t *) frag);
    if (endpoint->queued++ == 0)
        opal_list_append(&m->waiting, &endpoint->super);
    m->outstanding++;
    OPAL_THREAD_UNLOCK(&m->lock);
}

void ivc_btl_done_append(struct ivc_btl_frag *frag)
{
    struct ivc_btl_module *m = &ivc_btl_module;

    OPAL_THREAD_LOCK(&m->lock);
    opal_list_append(&m->done, (opal_list_item_t *) frag);
    m->outstanding++;
    OPAL_THREAD_UNLOCK(&m->lock);
}

/* Sends from one queue until it is empty or there is no room.  The caller holds the lock. */
static void drain(struct ivc_btl_module *m, struct mca_btl_base_endpoint_t *endpoint)
{
    while (endpoint->queued > 0) {
        opal_list_item_t *item = opal_list_remove_first(&endpoint->queue);
        int rc = ivc_btl_frag_post((struct ivc_btl_frag *) item);

        if (rc == OPAL_ERR_OUT_OF_RESOURCE) {
            opal_list_prepend(&endpoint->queue, item);
            return;
        }
        endpoint->queued--;
        if (rc == IVC_BTL_LATER) {
            m->outstanding--;
            continue;
        }
        ((struct ivc_btl_frag *) item)->status = rc;
        opal_list_append(&m->done, item);
    }
    opal_list_remove_item(&m->waiting, &endpoint->super);
}

static void drain_all(struct ivc_btl_module *m)
{
    struct mca_btl_base_endpoint_t *endpoint, *next;

    OPAL_LIST_FOREACH_SAFE(endpoint, next, &m->waiting, struct mca_btl_base_endpoint_t)
        drain(m, endpoint);
}

/* Gives a descriptor back before it is reported: ob1 tries again in the callback, and where it waits for the only
 * one nothing would remind it afterwards. */
static __opal_attribute_noinline__ void complete_copy(struct ivc_btl_module *m, struct ivc_btl_frag *frag)
{
    struct ivc_btl_frag copy = *frag;

    copy.base.des_segments = copy.segments;
    ivc_btl_frag_return(frag);
    copy.base.des_cbfunc(&m->super, copy.endpoint, &copy.base, copy.status);
}

static void complete(struct ivc_btl_module *m, struct ivc_btl_frag *frag)
{
    /* The callback may give the descriptor back: read what we need before. */
    bool ours = (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP) != 0;

    if (OPAL_UNLIKELY(m->limited) && ours && frag->base.des_cbfunc != NULL) {
        complete_copy(m, frag);
        return;
    }
    if (frag->base.des_cbfunc != NULL)
        frag->base.des_cbfunc(&m->super, frag->endpoint, &frag->base, frag->status);
    if (ours)
        ivc_btl_frag_return(frag);
}

/* Sends what there is room for and reports what is sent.  Callbacks run without the lock: they
 * send again. */
__attribute__((noinline)) int ivc_btl_queue_progress(void)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    opal_list_item_t *item;
    opal_list_t done;
    int n = 0;

    OBJ_CONSTRUCT(&done, opal_list_t);
    OPAL_THREAD_LOCK(&m->lock);
    drain_all(m);
    opal_list_join(&done, opal_list_get_end(&done), &m->done);
    m->outstanding -= (int32_t) opal_list_get_size(&done);
    OPAL_THREAD_UNLOCK(&m->lock);
    while ((item = opal_list_remove_first(&done)) != NULL) {
        complete(m, (struct ivc_btl_frag *) item);
        n++;
    }
    OBJ_DESTRUCT(&done);
    return n;
}

uint64_t ivc_btl_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

static bool flush_is_over(struct ivc_btl_module *m)
{
    bool over = opal_list_get_size(&m->waiting) == 0;

    for (struct mca_btl_base_endpoint_t *e = m->endpoints; e != NULL && over; e = e->next)
        over = !ivc_btl_lent_waits(e);
    return over;
}

/* For the end: sends what is queued, makes no callbacks, gives up after the time given. */
void ivc_btl_queue_flush(unsigned int timeout_ms)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    uint64_t end = ivc_btl_now_ms() + timeout_ms;
    opal_list_item_t *item;

    while (!flush_is_over(m) && ivc_btl_now_ms() < end) {
        ivc_endpoint_progress(m->endpoint);
        OPAL_THREAD_LOCK(&m->lock);
        drain_all(m);
        OPAL_THREAD_UNLOCK(&m->lock);
    }
    ivc_btl_ahead_end(NULL, NULL);
    for (struct mca_btl_base_endpoint_t *e = m->endpoints; e != NULL; e = e->next) {
        ivc_btl_lent_end(e, OPAL_SUCCESS);
        ivc_btl_operations_end(e);
        while ((item = opal_list_remove_first(&e->queue)) != NULL)
            ivc_btl_frag_return((struct ivc_btl_frag *) item);
    }
    while ((item = opal_list_remove_first(&m->waiting)) != NULL)
        ;
    while ((item = opal_list_remove_first(&m->done)) != NULL)
        ivc_btl_frag_return((struct ivc_btl_frag *) item);
    m->outstanding = 0;
}

int ivc_btl_progress(void)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    int n = ivc_endpoint_progress(m->endpoint);

    if (OPAL_UNLIKELY(m->outstanding > 0))
        n += ivc_btl_queue_progress();
    /* Open MPI waits in no other way than by calling this; where it has other ways to other processes, what
     * comes by those must not wait for us. */
    if (n == 0 && !m->others)
        ivc_endpoint_rest(m->endpoint, IVC_COMPANY_NEIGHBOURS, m->outstanding > 0, UINT64_MAX);
    /* Where Open MPI knows of more ranks than processors it gives way after each turn in which nobody has found
     * anything, its caller's work between two MPI_Test() or not. */
    if (n == 0 && OPAL_UNLIKELY(opal_progress_yield_when_idle) && !ivc_endpoint_gives_way(m->endpoint))
        return 1;
    return n;
}
