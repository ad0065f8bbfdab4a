/*
 * Counters of completed operations.
 *
 * Invariant: value and errors change under the domain's lock, or by atomic stores under
 * FI_THREAD_DOMAIN where there is none; every read makes progress, since a program may look at
 * nothing but a counter.
 */
#include "internal.h"

#include <errno.h>

enum { SPIN_NS = 20000 };   /* as for queues */

static struct ivc_fi_cntr *of(struct fid_cntr *fid)
{
    return container_of(fid, struct ivc_fi_cntr, fid);
}

/* Relaxed, here and below: whoever acts on a value has called into us, and the lock or his own
 * order of calls publishes the data that is counted. */
static void change(struct ivc_fi_cntr *cntr, ivc_atomic_u64 *word, uint64_t value)
{
    ivc_store_relaxed(word, value);
    if (__builtin_expect(cntr->wait.armed, 0))
        ivc_fi_wait_ring(&cntr->wait);
}

void ivc_fi_cntr_bump(struct ivc_fi_cntr *cntr, bool error)
{
    if (__builtin_expect(cntr != NULL, 0)) {
        ivc_atomic_u64 *word = error ? &cntr->errors : &cntr->value;

        change(cntr, word, ivc_load_relaxed(word) + 1);
    }
}

int ivc_fi_cntr_add_ep(struct ivc_fi_cntr *cntr, struct ivc_fi_ep *ep)
{
    int r = ivc_fi_wait_add(&cntr->wait, ep);

    return r != 0 ? r : ivc_fi_eps_add(&cntr->eps, &cntr->n_eps, ep);
}

void ivc_fi_cntr_remove_ep(struct ivc_fi_cntr *cntr, struct ivc_fi_ep *ep)
{
    if (ivc_fi_eps_remove(cntr->eps, &cntr->n_eps, ep))
        ivc_fi_wait_remove(&cntr->wait, ep);
}

int ivc_fi_cntr_widen(struct ivc_fi_cntr *cntr)
{
    struct ivc_fi_domain *domain = cntr->domain;
    int r = 0;

    if (cntr->wide)
        return 0;
    /* First: an endpoint that closes is to be taken out, also when not all could be added. */
    cntr->wide = true;
    cntr->next_wide = domain->wide;
    domain->wide = cntr;
    for (uint32_t i = 0; i < domain->n_eps && r == 0; i++)
        r = ivc_fi_cntr_add_ep(cntr, domain->eps[i]);
    return r;
}

static void narrow(struct ivc_fi_cntr *cntr)
{
    struct ivc_fi_cntr **at = &cntr->domain->wide;

    while (*at && *at != cntr)
        at = &(*at)->next_wide;
    if (*at)
        *at = cntr->next_wide;
}

static uint64_t look(struct ivc_fi_cntr *cntr, uint64_t *ret_errors)
{
    uint64_t value;

    ivc_fi_lock(cntr->domain);
    for (uint32_t i = 0; i < cntr->n_eps; i++)
        ivc_fi_ep_progress(cntr->eps[i]);
    value = ivc_load_relaxed(&cntr->value);
    *ret_errors = ivc_load_relaxed(&cntr->errors);
    ivc_fi_unlock(cntr->domain);
    return value;
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
    struct ivc_fi_cntr *cntr = of(fid);
    uint64_t errors, value = look(cntr, &errors);

    if (cntr->domain->rests)
        ivc_fi_rest(cntr->eps, cntr->n_eps, value != cntr->seen);
    return cntr->seen = value;
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
    uint64_t errors;

    look(of(fid), &errors);
    return errors;
}

static int set(struct ivc_fi_cntr *cntr, ivc_atomic_u64 *word, uint64_t value, bool add)
{
    ivc_fi_lock(cntr->domain);
    change(cntr, word, add ? ivc_load_relaxed(word) + value : value);
    ivc_fi_unlock(cntr->domain);
    return 0;
}

static int cntr_add(struct fid_cntr *fid, uint64_t value)
{
    return set(of(fid), &of(fid)->value, value, true);
}

static int cntr_set(struct fid_cntr *fid, uint64_t value)
{
    return set(of(fid), &of(fid)->value, value, false);
}

static int cntr_adderr(struct fid_cntr *fid, uint64_t value)
{
    return set(of(fid), &of(fid)->errors, value, true);
}

static int cntr_seterr(struct fid_cntr *fid, uint64_t value)
{
    return set(of(fid), &of(fid)->errors, value, false);
}

static bool arm(struct ivc_fi_cntr *cntr)
{
    bool armed;

    ivc_fi_lock(cntr->domain);
    armed = ivc_fi_wait_arm(&cntr->wait, cntr->eps, cntr->n_eps) == 0;
    ivc_fi_unlock(cntr->domain);
    return armed;
}

/* Between two looks: spins at first, and for ever when there is nothing to sleep on.  What is put
 * between look and arm is counted before the arming is over: so look once more after it. */
static void pause_for(struct ivc_fi_cntr *cntr, uint64_t threshold, uint64_t errors, uint64_t now,
                      uint64_t spin_end, uint64_t end)
{
    if (now < spin_end || cntr->wait.epoll < 0) {
        ivc_cpu_relax();
        return;
    }
    if (arm(cntr) && ivc_load_relaxed(&cntr->value) < threshold
        && ivc_load_relaxed(&cntr->errors) == errors)
        ivc_fi_wait_sleep(&cntr->wait, end == UINT64_MAX ? -1
                          : (int)((end - now + 999999) / 1000000));
}

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
    struct ivc_fi_cntr *cntr = of(fid);
    uint64_t start = ivc_now_ns();
    uint64_t end = ivc_deadline_ns(timeout);
    uint64_t errors_before = ivc_load_relaxed(&cntr->errors), errors;

    for (;;) {
        uint64_t value = look(cntr, &errors);
        uint64_t now = ivc_now_ns();

        if (value >= threshold)
            return 0;
        if (errors != errors_before)
            return -FI_EAVAIL;
        if (now >= end)
            return -FI_ETIMEDOUT;
        pause_for(cntr, threshold, errors_before, now, start + SPIN_NS, end);
    }
}

int ivc_fi_cntr_trywait(struct fid_cntr *fid)
{
    struct ivc_fi_cntr *cntr = of(fid);
    int r;

    if (cntr->wait.epoll < 0)
        return -FI_EINVAL;
    ivc_fi_lock(cntr->domain);
    r = ivc_load_relaxed(&cntr->value) != cntr->seen
        || ivc_fi_wait_arm(&cntr->wait, cntr->eps, cntr->n_eps) != 0 ? -FI_EAGAIN : 0;
    ivc_fi_unlock(cntr->domain);
    return r;
}

bool ivc_fi_cntr_is_ready(struct fid_cntr *fid)
{
    uint64_t errors;

    return look(of(fid), &errors) != of(fid)->seen;
}

static int cntr_control(struct fid *fid, int command, void *arg)
{
    struct ivc_fi_cntr *cntr = container_of(fid, struct ivc_fi_cntr, fid.fid);

    return ivc_fi_wait_control(&cntr->wait, command, arg);
}

static int cntr_close(struct fid *fid)
{
    struct ivc_fi_cntr *cntr = container_of(fid, struct ivc_fi_cntr, fid.fid);
    struct ivc_fi_domain *domain = cntr->domain;

    ivc_fi_lock(domain);
    if (cntr->users) {
        ivc_fi_unlock(domain);
        return -FI_EBUSY;
    }
    narrow(cntr);
    domain->users--;
    ivc_fi_unlock(domain);
    ivc_fi_wait_close(&cntr->wait);
    free(cntr->eps);
    free(cntr);
    return 0;
}

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = cntr_close,
    .bind = ivc_fi_no_bind,
    .control = cntr_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_cntr cntr_ops = {
    .size = sizeof cntr_ops,
    .read = cntr_read,
    .readerr = cntr_readerr,
    .add = cntr_add,
    .set = cntr_set,
    .wait = cntr_wait,
    .adderr = cntr_adderr,
    .seterr = cntr_seterr,
};

int ivc_fi_cntr_open(struct fid_domain *domain_fid, struct fi_cntr_attr *attr,
                     struct fid_cntr **ret_cntr, void *context)
{
    struct ivc_fi_domain *domain = container_of(domain_fid, struct ivc_fi_domain, fid);
    struct ivc_fi_cntr *cntr;
    int r;

    if (attr && (attr->flags || attr->events != FI_CNTR_EVENTS_COMP))
        return -FI_EINVAL;
    cntr = calloc(1, sizeof *cntr);
    if (!cntr)
        return -FI_ENOMEM;
    r = ivc_fi_wait_open(&cntr->wait, attr ? attr->wait_obj : FI_WAIT_UNSPEC);
    if (r != 0) {
        free(cntr);
        return r;
    }
    cntr->domain = domain;
    cntr->fid.fid.fclass = FI_CLASS_CNTR;
    cntr->fid.fid.context = context;
    cntr->fid.fid.ops = &fid_ops;
    cntr->fid.ops = &cntr_ops;
    ivc_fi_lock(domain);
    domain->users++;
    ivc_fi_unlock(domain);
    *ret_cntr = &cntr->fid;
    return 0;
}
