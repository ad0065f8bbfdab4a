/*
 * Memory registration: which memory others may reach, under which key.
 *
 * Every access of another process is resolved here, once, against a registration that has the right
 * access: nothing else of our memory is ever touched for a peer.  Applications choose the keys,
 * unless they agreed to FI_MR_PROV_KEY; addresses count from 0, unless they agreed to
 * FI_MR_VIRT_ADDR.
 */
#include "rma.h"

enum { TABLE_MIN = 16, CLOSE_WAIT_MS = 1000 };

/* ---------------------------------------------------------------- the table by key */

/* Open addressing, at most half full. */
static uint32_t first_place(const struct ivc_fi_domain *domain, uint64_t key)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (domain->mrs_size - 1);
}

/* The place of the key, or the free one where it would be. */
static uint32_t place_of(const struct ivc_fi_domain *domain, uint64_t key)
{
    uint32_t i = first_place(domain, key);

    while (domain->mrs[i] && domain->mrs[i]->fid.key != key)
        i = (i + 1) & (domain->mrs_size - 1);
    return i;
}

static int table_grow(struct ivc_fi_domain *domain)
{
    struct ivc_fi_mr **old = domain->mrs;
    uint32_t old_size = domain->mrs_size;
    uint32_t size = old_size ? 2 * old_size : TABLE_MIN;
    struct ivc_fi_mr **mrs = calloc(size, sizeof *mrs);

    if (!mrs)
        return -FI_ENOMEM;
    domain->mrs = mrs;
    domain->mrs_size = size;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[i])
            mrs[place_of(domain, old[i]->fid.key)] = old[i];
    free(old);
    return 0;
}

static int table_add(struct ivc_fi_domain *domain, struct ivc_fi_mr *mr)
{
    uint32_t place;
    int r = 2 * (domain->n_mrs + 1) > domain->mrs_size ? table_grow(domain) : 0;

    if (r < 0)
        return r;
    place = place_of(domain, mr->fid.key);
    if (domain->mrs[place])
        return -FI_ENOKEY;
    domain->mrs[place] = mr;
    domain->n_mrs++;
    return 0;
}

/* What follows in the same run may have been pushed on by the one that goes: it is placed again. */
static void table_remove(struct ivc_fi_domain *domain, const struct ivc_fi_mr *mr)
{
    uint32_t i = place_of(domain, mr->fid.key);

    domain->mrs[i] = NULL;
    domain->n_mrs--;
    while (domain->mrs[i = (i + 1) & (domain->mrs_size - 1)]) {
        struct ivc_fi_mr *pushed = domain->mrs[i];

        domain->mrs[i] = NULL;
        domain->mrs[place_of(domain, pushed->fid.key)] = pushed;
    }
}

void ivc_fi_mr_free_all(struct ivc_fi_domain *domain)
{
    free(domain->mrs);
    domain->mrs = NULL;
    domain->mrs_size = domain->n_mrs = 0;
}

/* ---------------------------------------------------------------- resolving */

/* The part [offset, offset + len) of the registration; it lies inside. */
static unsigned part_of(const struct ivc_fi_mr *mr, uint64_t offset, uint64_t len,
                        struct iovec *ret_iov)
{
    unsigned n = 0;

    for (unsigned i = 0; i < mr->n_iov && len > 0; i++) {
        uint64_t here = mr->iov[i].iov_len;

        if (offset >= here) {
            offset -= here;
            continue;
        }
        here = IVC_MIN(here - offset, len);
        ret_iov[n++] = (struct iovec){ (char *)mr->iov[i].iov_base + offset, here };
        offset = 0;
        len -= here;
    }
    return n;
}

int ivc_fi_mr_resolve(struct ivc_fi_domain *domain, uint64_t key, uint64_t addr, uint64_t len,
                      uint64_t access, struct iovec *ret_iov, unsigned *ret_n_iov,
                      struct ivc_fi_mr **ret_mr)
{
    struct ivc_fi_mr *mr = domain->mrs_size ? domain->mrs[place_of(domain, key)] : NULL;
    uint64_t offset;

    if (!mr || !mr->enabled)
        return -FI_EKEYREJECTED;
    if ((mr->access & access) != access)
        return -FI_EACCES;
    offset = addr - mr->base;
    if (addr < mr->base || len > mr->len || offset > mr->len - len)
        return -FI_EINVAL;
    *ret_n_iov = part_of(mr, offset, len, ret_iov);
    *ret_mr = mr;
    return 0;
}

int ivc_fi_mr_find(struct ivc_fi_ep *ep, uint64_t key, uint64_t addr, uint64_t len, uint64_t access,
                   struct iovec *ret_iov, unsigned *ret_n_iov, struct ivc_fi_mr **ret_mr)
{
    int r = ivc_fi_mr_resolve(ep->domain, key, addr, len, access, ret_iov, ret_n_iov, ret_mr);

    if (r == 0 && (*ret_mr)->ep && (*ret_mr)->ep != ep)
        return -FI_EKEYREJECTED;
    return r;
}

/* ---------------------------------------------------------------- one registration */

static struct ivc_fi_mr *mr_of(struct fid *fid)
{
    return (struct ivc_fi_mr *)((char *)fid - offsetof(struct ivc_fi_mr, fid.fid));
}

/* Lets what is under way in the memory end. */
static void settle(struct ivc_fi_mr *mr)
{
    uint64_t end = ivc_now_ns() + CLOSE_WAIT_MS * UINT64_C(1000000);

    while (mr->holds && ivc_now_ns() < end)
        ivc_fi_ep_progress(mr->holds->ep);
}

/*
 * When it is closed, nothing of a peer's touches the memory any more: a write that stopped half way
 * must not go on in whatever lies there next.  A peer that keeps one from ending is waited for a
 * second; then the answer is -FI_EBUSY, nothing new is taken, and the caller may try again.
 */
static int mr_close(struct fid *fid)
{
    struct ivc_fi_mr *mr = mr_of(fid);
    struct ivc_fi_domain *domain = mr->domain;
    int r = 0;

    ivc_fi_lock(domain);
    ivc_fi_reach_withdraw(mr);
    mr->enabled = false;
    mr->closed = true;
    settle(mr);
    if (mr->holds) {
        r = -FI_EBUSY;
    } else {
        table_remove(domain, mr);
        if (mr->cntr)
            mr->cntr->users--;
        domain->users--;
        free(mr);
    }
    ivc_fi_unlock(domain);
    return r;
}

static int bind_cntr(struct ivc_fi_mr *mr, struct ivc_fi_cntr *cntr, uint64_t flags)
{
    int r;

    if (flags & ~(uint64_t)FI_REMOTE_WRITE)
        return -FI_EBADFLAGS;
    if (cntr->domain != mr->domain)
        return -FI_EDOMAIN;
    if (mr->cntr)
        return -FI_EBUSY;
    /* What it counts may come by any endpoint: waiting for it is waiting for all of them. */
    r = ivc_fi_cntr_widen(cntr);
    if (r < 0)
        return r;
    /* Only what comes by request is counted. */
    ivc_fi_reach_withdraw(mr);
    mr->cntr = cntr;
    cntr->users++;
    return 0;
}

static int bind_ep(struct ivc_fi_mr *mr, struct ivc_fi_ep *ep, uint64_t flags)
{
    if (flags)
        return -FI_EBADFLAGS;
    if (ep->domain != mr->domain)
        return -FI_EDOMAIN;
    if (mr->ep)
        return -FI_EBUSY;
    ivc_fi_reach_withdraw(mr);
    mr->ep = ep;
    return 0;
}

static int mr_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct ivc_fi_mr *mr = mr_of(fid);
    int r = -FI_EINVAL;

    ivc_fi_lock(mr->domain);
    if (other->fclass == FI_CLASS_CNTR)
        r = bind_cntr(mr, (struct ivc_fi_cntr *)other, flags);
    else if (other->fclass == FI_CLASS_EP)
        r = bind_ep(mr, (struct ivc_fi_ep *)((char *)other - offsetof(struct ivc_fi_ep, fid.fid)),
                    flags);
    ivc_fi_unlock(mr->domain);
    return r;
}

static int raw_attr(const struct ivc_fi_mr *mr, struct fi_mr_raw_attr *attr)
{
    size_t room = *attr->key_size;

    if (attr->base_addr)
        *attr->base_addr = mr->base;
    *attr->key_size = sizeof mr->fid.key;
    if (room < sizeof mr->fid.key || !attr->raw_key)
        return -FI_ETOOSMALL;
    memcpy(attr->raw_key, &mr->fid.key, sizeof mr->fid.key);
    return 0;
}

int ivc_fi_mr_map_raw(struct fi_mr_map_raw *map)
{
    if (map->key_size != sizeof *map->key)
        return -FI_EINVAL;
    memcpy(map->key, map->raw_key, sizeof *map->key);
    return 0;
}

static int mr_control(struct fid *fid, int command, void *arg)
{
    struct ivc_fi_mr *mr = mr_of(fid);
    int r = 0;

    ivc_fi_lock(mr->domain);
    if (command == FI_GET_RAW_MR)
        r = raw_attr(mr, arg);
    else if (command == FI_ENABLE)
        mr->enabled = !mr->closed;
    else if (command == FI_REFRESH)
        ivc_fi_reach_withdraw(mr);      /* other memory may lie at the same address now */
    else
        r = -FI_ENOSYS;
    ivc_fi_unlock(mr->domain);
    return r;
}

static struct fi_ops mr_fid_ops = {
    .size = sizeof mr_fid_ops,
    .close = mr_close,
    .bind = mr_bind,
    .control = mr_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

/* ---------------------------------------------------------------- registering */

static uint64_t choose_key(struct ivc_fi_domain *domain, uint64_t requested)
{
    if (!(domain->mr_mode & (FI_MR_PROV_KEY | FI_MR_BASIC)))
        return requested;
    /* Never one that is in use, however many were given out; FI_KEY_NOTAVAIL is none. */
    do
        domain->next_key++;
    while (domain->next_key == FI_KEY_NOTAVAIL
           || (domain->mrs_size && domain->mrs[place_of(domain, domain->next_key)]));
    return domain->next_key;
}

static bool starts_enabled(const struct ivc_fi_domain *domain, uint64_t flags)
{
    if (domain->mr_mode & FI_MR_ENDPOINT)
        return false;
    return !((domain->mr_mode & FI_MR_RMA_EVENT) && (flags & FI_RMA_EVENT));
}

static int check(const struct fi_mr_attr *attr, uint64_t flags)
{
    uint64_t len = 0;

    if (flags & ~(uint64_t)(FI_RMA_EVENT | FI_RMA_PMEM))
        return -FI_EBADFLAGS;
    if (flags & FI_RMA_PMEM)
        return -FI_ENOSYS;
    if (attr->offset != 0 || attr->iov_count == 0 || attr->iov_count > IVC_FI_IOV_MAX)
        return -FI_EINVAL;
    for (size_t i = 0; i < attr->iov_count; i++) {
        uint64_t start = (uintptr_t)attr->mr_iov[i].iov_base;

        if (start + attr->mr_iov[i].iov_len < start || len + attr->mr_iov[i].iov_len < len)
            return -FI_EINVAL;
        len += attr->mr_iov[i].iov_len;
    }
    return 0;
}

static void fill(struct ivc_fi_mr *mr, const struct fi_mr_attr *attr, uint64_t flags)
{
    struct ivc_fi_domain *domain = mr->domain;

    mr->fid.fid.fclass = FI_CLASS_MR;
    mr->fid.fid.context = attr->context;
    mr->fid.fid.ops = &mr_fid_ops;
    mr->fid.mem_desc = mr;
    mr->fid.key = choose_key(domain, attr->requested_key);
    mr->access = attr->access;
    mr->n_iov = (unsigned)attr->iov_count;
    memcpy(mr->iov, attr->mr_iov, attr->iov_count * sizeof *attr->mr_iov);
    mr->len = ivc_fi_iov_len(mr->iov, mr->n_iov);
    if (domain->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC))
        mr->base = (uintptr_t)mr->iov[0].iov_base;
    mr->enabled = starts_enabled(domain, flags);
}

static int add(struct ivc_fi_mr *mr, const struct fi_mr_attr *attr, uint64_t flags,
               struct fid_mr **ret_mr)
{
    struct ivc_fi_domain *domain = mr->domain;
    struct fi_eq_entry event = { .fid = &mr->fid.fid, .context = attr->context };
    int r;

    fill(mr, attr, flags);
    r = table_add(domain, mr);
    if (r < 0)
        return r;
    *ret_mr = &mr->fid;     /* before the event: fi_mr(3) promises that */
    if (domain->mr_eq)
        r = ivc_fi_eq_put(domain->mr_eq, FI_MR_COMPLETE, &event, 0);
    if (r < 0)
        table_remove(domain, mr);
    else
        domain->users++;
    return r;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                      struct fid_mr **ret_mr)
{
    struct ivc_fi_domain *domain = (struct ivc_fi_domain *)fid;
    struct ivc_fi_mr *mr;
    int r;

    if (fid->fclass != FI_CLASS_DOMAIN || !attr || !ret_mr)
        return -FI_EINVAL;
    r = check(attr, flags);
    if (r < 0)
        return r;
    mr = calloc(1, sizeof *mr);
    if (!mr)
        return -FI_ENOMEM;
    mr->domain = domain;
    ivc_fi_lock(domain);
    r = add(mr, attr, flags, ret_mr);
    ivc_fi_unlock(domain);
    if (r < 0)
        free(mr);
    return r;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access,
                   uint64_t offset, uint64_t requested_key, uint64_t flags, struct fid_mr **ret_mr,
                   void *context)
{
    struct fi_mr_attr attr = {
        .mr_iov = iov,
        .iov_count = count,
        .access = access,
        .offset = offset,
        .requested_key = requested_key,
        .context = context,
    };

    return mr_regattr(fid, &attr, flags, ret_mr);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
                  uint64_t requested_key, uint64_t flags, struct fid_mr **ret_mr, void *context)
{
    struct iovec iov = { (void *)(uintptr_t)buf, len };

    return mr_regv(fid, &iov, 1, access, offset, requested_key, flags, ret_mr, context);
}

struct fi_ops_mr ivc_fi_mr_ops = {
    .size = sizeof ivc_fi_mr_ops,
    .reg = mr_reg,
    .regv = mr_regv,
    .regattr = mr_regattr,
};
