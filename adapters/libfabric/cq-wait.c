/*
 * Blocking reads of completion queues, and what is asked of a queue before others sleep on it.
 *
 * Invariant: nobody sleeps while something is readable: queues are looked at after they were armed,
 * and from then on whoever puts something rings (wait.c).
 */
#include "cq.h"

enum { SPIN_NS = 20000 };       /* a blocking read looks that long before it sleeps */

static bool is_ready(const struct ivc_fi_cq *cq, uint32_t threshold)
{
    return cq->signalled || cq->errors || cq->overrun || ivc_fi_cq_readable(cq) >= threshold;
}

/* One look: whether enough is there, or an error, or somebody signalled. */
static bool look(struct ivc_fi_cq *cq, uint32_t threshold, bool *ret_signalled)
{
    bool done;

    ivc_fi_lock(cq->domain);
    ivc_fi_cq_progress(cq, threshold);
    done = is_ready(cq, threshold);
    *ret_signalled = cq->signalled;
    cq->signalled = false;
    ivc_fi_unlock(cq->domain);
    return done;
}

/* Another thread may have put something since the last look. */
static bool arm(struct ivc_fi_cq *cq, uint32_t threshold)
{
    bool armed;

    ivc_fi_lock(cq->domain);
    armed = !is_ready(cq, threshold) && ivc_fi_wait_arm(&cq->wait, cq->eps, cq->n_eps) == 0;
    ivc_fi_unlock(cq->domain);
    return armed;
}

/* Looks, first without a pause and then asleep in between, until `end`. */
static bool wait_for(struct ivc_fi_cq *cq, uint32_t threshold, uint64_t end, bool *ret_signalled)
{
    uint64_t spin_end = ivc_now_ns() + SPIN_NS;

    for (;;) {
        bool done = look(cq, threshold, ret_signalled);
        uint64_t now = ivc_now_ns();

        if (done || now >= end)
            return done;
        if (now < spin_end)
            ivc_cpu_relax();
        else if (arm(cq, threshold))
            ivc_fi_wait_sleep(&cq->wait, end == UINT64_MAX ? -1
                              : (int)((end - now + 999999) / 1000000));
    }
}

ssize_t ivc_fi_cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *sources,
                            const void *cond, int timeout)
{
    struct ivc_fi_cq *cq = ivc_fi_cq_of(fid);
    uint64_t end = ivc_deadline_ns(timeout);
    uint32_t threshold = 1;
    bool signalled = false;
    ssize_t n;

    if (cq->wait.epoll < 0)
        return -FI_ENOSYS;
    if (cq->threshold && cond)
        threshold = (uint32_t)IVC_MAX(IVC_MIN(*(const size_t *)cond, count), (size_t)1);
    wait_for(cq, threshold, end, &signalled);
    ivc_fi_lock(cq->domain);
    n = ivc_fi_cq_take(cq, buf, count, sources);
    ivc_fi_unlock(cq->domain);
    return n == -FI_EAGAIN && signalled ? -FI_ECANCELED : n;
}

ssize_t ivc_fi_cq_sread(struct fid_cq *fid, void *buf, size_t count, const void *cond, int timeout)
{
    return ivc_fi_cq_sreadfrom(fid, buf, count, NULL, cond, timeout);
}

int ivc_fi_cq_signal(struct fid_cq *fid)
{
    struct ivc_fi_cq *cq = ivc_fi_cq_of(fid);

    if (cq->wait.epoll < 0)
        return -FI_ENOSYS;
    ivc_fi_lock(cq->domain);
    cq->signalled = true;
    ivc_fi_wait_ring(&cq->wait);
    ivc_fi_unlock(cq->domain);
    return 0;
}

int ivc_fi_cq_trywait(struct fid_cq *fid)
{
    struct ivc_fi_cq *cq = ivc_fi_cq_of(fid);
    int r = 0;

    if (cq->wait.epoll < 0)
        return -FI_EINVAL;
    ivc_fi_lock(cq->domain);
    if (cq->signalled || ivc_fi_cq_has_something(cq)
        || ivc_fi_wait_arm(&cq->wait, cq->eps, cq->n_eps) != 0)
        r = -FI_EAGAIN;
    ivc_fi_unlock(cq->domain);
    return r;
}

bool ivc_fi_cq_is_ready(struct fid_cq *fid)
{
    struct ivc_fi_cq *cq = ivc_fi_cq_of(fid);
    bool ready;

    ivc_fi_lock(cq->domain);
    ivc_fi_cq_progress(cq, 1);
    ready = ivc_fi_cq_has_something(cq);
    ivc_fi_unlock(cq->domain);
    return ready;
}
