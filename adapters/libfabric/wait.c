/*
 * Sleeping on queues and counters, and looking at several at once.
 *
 * What wakes a sleeper: an endpoint's descriptor (there is something for progress to do), or the
 * object's own (another thread has put something there, or fi_cq_signal).  Both are in one epoll
 * set, whose descriptor is what FI_WAIT_FD hands out.
 *
 * Invariant: after ivc_fi_wait_arm() has answered 0, nothing can come that leaves the descriptor
 * unreadable: the endpoints are armed, and `armed` makes whoever puts something ring.
 */
#include "internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* ---------------------------------------------------------------- one wait object */

static int watch(int epoll, int fd)
{
    struct epoll_event event = { .events = EPOLLIN };

    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int ivc_fi_wait_open(struct ivc_fi_wait *wait, enum fi_wait_obj object)
{
    int r;

    *wait = (struct ivc_fi_wait){ .epoll = -1, .wake = -1, .object = object };
    if (object == FI_WAIT_NONE)
        return 0;
    if (object != FI_WAIT_UNSPEC && object != FI_WAIT_FD && object != FI_WAIT_YIELD)
        return -FI_ENOSYS;
    wait->object = FI_WAIT_FD;
    wait->epoll = epoll_create1(EPOLL_CLOEXEC);
    wait->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r = wait->epoll < 0 || wait->wake < 0 ? -errno : watch(wait->epoll, wait->wake);
    if (r != 0) {
        ivc_fi_say("a completion queue cannot be waited for: %s", ivc_error_of(-r));
        ivc_fi_wait_close(wait);
    }
    return r;
}

void ivc_fi_wait_close(struct ivc_fi_wait *wait)
{
    ivc_close_p(&wait->epoll);
    ivc_close_p(&wait->wake);
    wait->epoll = wait->wake = -1;
}

int ivc_fi_wait_add(struct ivc_fi_wait *wait, struct ivc_fi_ep *ep)
{
    int fd, r;

    if (wait->epoll < 0)
        return 0;
    fd = ivc_endpoint_fd(ep->endpoint);
    if (fd < 0)
        return ivc_fi_error(fd);
    r = watch(wait->epoll, fd);
    return r == -EEXIST ? 0 : r;
}

void ivc_fi_wait_remove(struct ivc_fi_wait *wait, struct ivc_fi_ep *ep)
{
    int fd;

    if (wait->epoll < 0)
        return;
    fd = ivc_endpoint_fd(ep->endpoint);
    if (fd >= 0)
        epoll_ctl(wait->epoll, EPOLL_CTL_DEL, fd, NULL);
}

static void drain(int fd)
{
    uint64_t count;

    if (read(fd, &count, sizeof count) < 0)
        return;     /* it was empty */
}

int ivc_fi_wait_arm(struct ivc_fi_wait *wait, struct ivc_fi_ep **eps, uint32_t n_eps)
{
    if (wait->epoll < 0)
        return 1;
    drain(wait->wake);
    for (uint32_t i = 0; i < n_eps; i++) {
        if (ivc_endpoint_arm(eps[i]->endpoint, ivc_mailbox_busy(eps[i]->mailbox)) != 0)
            return 1;
    }
    wait->armed = true;
    return 0;
}

int ivc_fi_wait_sleep(struct ivc_fi_wait *wait, int timeout_ms)
{
    struct epoll_event event;
    int n = epoll_wait(wait->epoll, &event, 1, timeout_ms);

    return n < 0 ? -errno : n;
}

void ivc_fi_wait_ring(struct ivc_fi_wait *wait)
{
    uint64_t one = 1;

    wait->armed = false;
    if (wait->wake >= 0 && write(wait->wake, &one, sizeof one) < 0)
        return;     /* full to the brim: readable all the same */
}

int ivc_fi_wait_control(struct ivc_fi_wait *wait, int command, void *arg)
{
    switch (command) {
    case FI_GETWAIT:
        if (wait->epoll < 0)
            return -FI_ENODATA;
        *(int *)arg = wait->epoll;
        return 0;
    case FI_GETWAITOBJ:
        *(enum fi_wait_obj *)arg = wait->object;
        return 0;
    default:
        return -FI_ENOSYS;
    }
}

/* ---------------------------------------------------------------- rest */

bool ivc_fi_is_mpi(void)
{
    static const char *const ranks[] = { "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK" };

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if (getenv(ranks[i]))
            return true;
    return false;
}

void ivc_fi_rest(struct ivc_fi_ep *const *eps, uint32_t n_eps, bool found)
{
    /* Of several, another than the one that we slept on might be waited for. */
    if (n_eps != 1 || ivc_load_relaxed(&ivc_fi_eps_open) != 1)
        return;
    if (found)
        ivc_endpoint_stir(eps[0]->endpoint);    /* perhaps by no packet: written directly, by ourselves */
    else
        ivc_endpoint_rest(eps[0]->endpoint, IVC_COMPANY_NEIGHBOURS, ivc_mailbox_busy(eps[0]->mailbox),
                          UINT64_MAX);
}

/* ---------------------------------------------------------------- whose progress is made */

int ivc_fi_eps_add(struct ivc_fi_ep ***eps, uint32_t *n_eps, struct ivc_fi_ep *ep)
{
    struct ivc_fi_ep **more;

    for (uint32_t i = 0; i < *n_eps; i++) {
        if ((*eps)[i] == ep)
            return 0;
    }
    more = realloc(*eps, (*n_eps + 1) * sizeof *more);
    if (!more)
        return -FI_ENOMEM;
    more[(*n_eps)++] = ep;
    *eps = more;
    return 0;
}

bool ivc_fi_eps_remove(struct ivc_fi_ep **eps, uint32_t *n_eps, struct ivc_fi_ep *ep)
{
    for (uint32_t i = 0; i < *n_eps; i++) {
        if (eps[i] == ep) {
            eps[i] = eps[--*n_eps];
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- fi_trywait */

static int try_one(struct fid *fid)
{
    switch (fid->fclass) {
    case FI_CLASS_EQ:
        return ivc_fi_eq_trywait(container_of(fid, struct fid_eq, fid));
    case FI_CLASS_CQ:
        return ivc_fi_cq_trywait(container_of(fid, struct fid_cq, fid));
    case FI_CLASS_CNTR:
        return ivc_fi_cntr_trywait(container_of(fid, struct fid_cntr, fid));
    default:
        return -FI_EINVAL;
    }
}

int ivc_fi_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    int r = 0;

    (void)fabric;
    for (int i = 0; i < count && r == 0; i++)
        r = try_one(fids[i]);
    return r;
}

/* ---------------------------------------------------------------- poll sets */

struct ivc_fi_poll {
    struct fid_poll fid;
    struct ivc_fi_domain *domain;
    struct fid **fids;
    uint32_t n_fids;
};

static bool is_ready(struct fid *fid)
{
    if (fid->fclass == FI_CLASS_CQ)
        return ivc_fi_cq_is_ready(container_of(fid, struct fid_cq, fid));
    return ivc_fi_cntr_is_ready(container_of(fid, struct fid_cntr, fid));
}

static int poll_poll(struct fid_poll *fid, void **context, int count)
{
    struct ivc_fi_poll *set = container_of(fid, struct ivc_fi_poll, fid);
    int n = 0;

    for (uint32_t i = 0; i < set->n_fids; i++) {
        if (is_ready(set->fids[i]) && n < count)
            context[n++] = set->fids[i]->context;
    }
    return n;
}

static int poll_add(struct fid_poll *fid, struct fid *object, uint64_t flags)
{
    struct ivc_fi_poll *set = container_of(fid, struct ivc_fi_poll, fid);
    struct fid **more;

    if (flags || (object->fclass != FI_CLASS_CQ && object->fclass != FI_CLASS_CNTR))
        return -FI_EINVAL;
    more = realloc(set->fids, (set->n_fids + 1) * sizeof *more);
    if (!more)
        return -FI_ENOMEM;
    more[set->n_fids++] = object;
    set->fids = more;
    return 0;
}

static int poll_del(struct fid_poll *fid, struct fid *object, uint64_t flags)
{
    struct ivc_fi_poll *set = container_of(fid, struct ivc_fi_poll, fid);

    if (flags)
        return -FI_EINVAL;
    for (uint32_t i = 0; i < set->n_fids; i++) {
        if (set->fids[i] == object) {
            set->fids[i] = set->fids[--set->n_fids];
            return 0;
        }
    }
    return -FI_EINVAL;
}

static int poll_close(struct fid *fid)
{
    struct ivc_fi_poll *set = container_of(fid, struct ivc_fi_poll, fid.fid);

    ivc_fi_lock(set->domain);
    set->domain->users--;
    ivc_fi_unlock(set->domain);
    free(set->fids);
    free(set);
    return 0;
}

static struct fi_ops poll_fid_ops = {
    .size = sizeof poll_fid_ops,
    .close = poll_close,
    .bind = ivc_fi_no_bind,
    .control = ivc_fi_no_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_poll poll_ops = {
    .size = sizeof poll_ops,
    .poll = poll_poll,
    .poll_add = poll_add,
    .poll_del = poll_del,
};

int ivc_fi_poll_open(struct fid_domain *domain_fid, struct fi_poll_attr *attr,
                     struct fid_poll **ret_poll)
{
    struct ivc_fi_domain *domain = container_of(domain_fid, struct ivc_fi_domain, fid);
    struct ivc_fi_poll *set;

    if (attr && attr->flags)
        return -FI_EBADFLAGS;
    set = calloc(1, sizeof *set);
    if (!set)
        return -FI_ENOMEM;
    set->domain = domain;
    set->fid.fid.fclass = FI_CLASS_POLL;
    set->fid.fid.ops = &poll_fid_ops;
    set->fid.ops = &poll_ops;
    ivc_fi_lock(domain);
    domain->users++;
    ivc_fi_unlock(domain);
    *ret_poll = &set->fid;
    return 0;
}
