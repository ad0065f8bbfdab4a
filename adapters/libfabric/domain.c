/*
 * The domain: what its objects share is its lock (none when the application promised to come with
 * one thread), its table of registered memory, and the address vectors' kind.
 *
 * Invariant: `users` counts the objects that were opened here and not closed, so a domain outlives
 * them all.
 */
#include "internal.h"

#include <string.h>

static int domain_close(struct fid *fid)
{
    struct ivc_fi_domain *domain = container_of(fid, struct ivc_fi_domain, fid.fid);
    uint32_t users;

    ivc_fi_lock(domain);
    users = domain->users;
    ivc_fi_unlock(domain);
    if (users != 0)
        return -FI_EBUSY;
    ivc_fi_mr_free_all(domain);
    free(domain->eps);
    if (domain->mr_eq)
        ivc_fi_eq_use(domain->mr_eq, -1);
    atomic_fetch_sub_explicit(&domain->fabric->users, 1, memory_order_relaxed);
    pthread_mutex_destroy(&domain->lock);
    free(domain);
    return 0;
}

static int domain_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct ivc_fi_domain *domain = container_of(fid, struct ivc_fi_domain, fid.fid);

    if (other->fclass != FI_CLASS_EQ || (flags & ~FI_REG_MR))
        return -FI_EINVAL;
    if (domain->mr_eq)
        return -FI_EINVAL;
    if (flags & FI_REG_MR) {
        domain->mr_eq = container_of(other, struct fid_eq, fid);
        ivc_fi_eq_use(domain->mr_eq, 1);
    }
    return 0;
}

static int domain_control(struct fid *fid, int command, void *arg)
{
    (void)fid;
    switch (command) {
    case FI_MAP_RAW_MR:
        return ivc_fi_mr_map_raw(arg);
    case FI_UNMAP_KEY:
        return 0;       /* a key is a number: nothing was kept */
    default:
        return -FI_ENOSYS;
    }
}

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep,
                          void *context)
{
    (void)domain;
    (void)info;
    (void)sep;
    (void)context;
    return -FI_ENOSYS;
}

static int no_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx,
                  void *context)
{
    (void)domain;
    (void)attr;
    (void)stx;
    (void)context;
    return -FI_ENOSYS;
}

static int no_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **srx,
                  void *context)
{
    (void)domain;
    (void)attr;
    (void)srx;
    (void)context;
    return -FI_ENOSYS;
}

static int no_query_collective(struct fid_domain *domain, enum fi_collective_op op,
                               struct fi_collective_attr *attr, uint64_t flags)
{
    (void)domain;
    (void)op;
    (void)attr;
    (void)flags;
    return -FI_ENOSYS;
}

static int domain_endpoint2(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ret_ep,
                            uint64_t flags, void *context)
{
    return flags ? -FI_ENOSYS : ivc_fi_ep_open(domain, info, ret_ep, context);
}

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = domain_close,
    .bind = domain_bind,
    .control = domain_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_domain domain_ops = {
    .size = sizeof domain_ops,
    .av_open = ivc_fi_av_open,
    .cq_open = ivc_fi_cq_open,
    .endpoint = ivc_fi_ep_open,
    .scalable_ep = no_scalable_ep,
    .cntr_open = ivc_fi_cntr_open,
    .poll_open = ivc_fi_poll_open,
    .stx_ctx = no_stx,
    .srx_ctx = no_srx,
    .query_atomic = ivc_fi_query_atomic,
    .query_collective = no_query_collective,
    .endpoint2 = domain_endpoint2,
};

int ivc_fi_domain_open(struct fid_fabric *fabric_fid, struct fi_info *info,
                       struct fid_domain **ret_domain, void *context)
{
    struct ivc_fi_fabric *fabric = container_of(fabric_fid, struct ivc_fi_fabric, fid);
    struct ivc_fi_domain *domain;
    int r = ivc_fi_info_check(info);

    if (r != 0)
        return r;
    domain = calloc(1, sizeof *domain);
    if (!domain)
        return -FI_ENOMEM;
    pthread_mutex_init(&domain->lock, NULL);
    domain->fid.fid.fclass = FI_CLASS_DOMAIN;
    domain->fid.fid.context = context;
    domain->fid.fid.ops = &fid_ops;
    domain->fid.ops = &domain_ops;
    domain->fid.mr = &ivc_fi_mr_ops;
    domain->fabric = fabric;
    domain->locked = !info->domain_attr || info->domain_attr->threading != FI_THREAD_DOMAIN;
    domain->rests = !domain->locked && ivc_fi_is_mpi();
    if (info->domain_attr) {
        domain->av_type = info->domain_attr->av_type;
        domain->mr_mode = info->domain_attr->mr_mode;
    }
    atomic_fetch_add_explicit(&fabric->users, 1, memory_order_relaxed);
    *ret_domain = &domain->fid;
    return 0;
}
