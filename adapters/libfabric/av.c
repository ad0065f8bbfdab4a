/*
 * Address vectors: fi_addr_t is an index into an array of addresses, for tables and for maps.
 *
 * Invariant: an index means one address from insertion to removal, for every endpoint bound here:
 * what an endpoint knows under an index is forgotten when the index is removed.  A hash from who an
 * address is of to its index serves peers that make themselves known.
 */
#include "internal.h"

#include <string.h>

enum {
    FIRST_SIZE = 16,
    BUCKET_FREE = 0,                    /* else an index + 1 ... */
};
#define BUCKET_REMOVED UINT32_MAX       /* ... or this: a search goes on behind it */

static struct ivc_fi_av *of(struct fid_av *fid)
{
    return container_of(fid, struct ivc_fi_av, fid);
}

/* ---------------------------------------------------------------- hash */

static uint32_t first_bucket(const struct ivc_fi_av *av, uint64_t id)
{
    return (uint32_t)(id >> 17) & (av->n_buckets - 1);  /* ids are random */
}

static void hash_put(struct ivc_fi_av *av, uint64_t id, uint32_t index)
{
    uint32_t b = first_bucket(av, id);

    while (av->buckets[b] != BUCKET_FREE && av->buckets[b] != BUCKET_REMOVED)
        b = (b + 1) & (av->n_buckets - 1);
    av->buckets[b] = index + 1;
}

static void hash_remove(struct ivc_fi_av *av, uint64_t id, uint32_t index)
{
    for (uint32_t b = first_bucket(av, id), n = 0;
         n < av->n_buckets && av->buckets[b] != BUCKET_FREE;
         b = (b + 1) & (av->n_buckets - 1), n++) {
        if (av->buckets[b] == index + 1) {
            av->buckets[b] = BUCKET_REMOVED;
            return;
        }
    }
}

fi_addr_t ivc_fi_av_find(const struct ivc_fi_av *av, uint64_t id)
{
    if (av->n_buckets == 0)
        return FI_ADDR_NOTAVAIL;
    for (uint32_t b = first_bucket(av, id), n = 0;
         n < av->n_buckets && av->buckets[b] != BUCKET_FREE;
         b = (b + 1) & (av->n_buckets - 1), n++) {
        uint32_t i = av->buckets[b] - 1;

        if (av->buckets[b] != BUCKET_REMOVED && ivc_address_id(&av->addresses[i]) == id)
            return i;
    }
    return FI_ADDR_NOTAVAIL;
}

/* Room for one more: the hash has twice as many buckets as there can be addresses. */
static int grow(struct ivc_fi_av *av)
{
    uint32_t size = av->size ? 2 * av->size : FIRST_SIZE;
    struct ivc_address *addresses;
    uint32_t *buckets;

    if (size > UINT32_MAX / 4)
        return -FI_ENOMEM;
    addresses = realloc(av->addresses, size * sizeof *addresses);
    if (!addresses)
        return -FI_ENOMEM;
    av->addresses = addresses;
    buckets = calloc(2 * (size_t)size, sizeof *buckets);
    if (!buckets)
        return -FI_ENOMEM;
    free(av->buckets);
    av->buckets = buckets;
    av->n_buckets = 2 * size;
    av->size = size;
    for (uint32_t i = 0; i < av->n_addresses; i++) {
        if (av->addresses[i].len)
            hash_put(av, ivc_address_id(&av->addresses[i]), i);
    }
    return 0;
}

/* ---------------------------------------------------------------- insert and remove */

static int place(struct ivc_fi_av *av, uint32_t *ret_index)
{
    if (av->n_free > 0) {
        uint32_t i = 0;

        while (av->addresses[i].len)
            i++;
        av->n_free--;
        *ret_index = i;
        return 0;
    }
    if (av->n_addresses == av->size && grow(av) != 0)
        return -FI_ENOMEM;
    *ret_index = av->n_addresses++;
    return 0;
}

/* A peer may have written to us before its address came here. */
static void name_peers(struct ivc_fi_av *av, uint64_t id, fi_addr_t addr)
{
    for (struct ivc_fi_ep *ep = av->eps; ep; ep = ep->next_of_av) {
        if (ep->n_unnamed > 0)
            ivc_fi_ep_name_peer(ep, id, addr);
    }
}

/* Of a process that uses another provider, or another version of ours: the first is said. */
static int not_ours(void)
{
    static ivc_atomic_u32 said;

    if (ivc_cas(&said, 0, 1))
        ivc_fi_say("a process of this job does not use this provider (%s); it must be found on every host, at "
                   "the same place: FI_PROVIDER_PATH, FI_PROVIDER=" IVC_FI_NAME, ivc_error_text());
    else
        IVC_FI_WARN("address not inserted: %s", ivc_error_text());
    return -FI_EINVAL;
}

/* Each endpoint may require memory to whoever it is to talk to (IVC_REQUIRE). */
static int check_paths(const struct ivc_fi_av *av, const struct ivc_address *address)
{
    int r = 0;

    for (struct ivc_fi_ep *ep = av->eps; ep && r == 0; ep = ep->next_of_av) {
        r = ep->endpoint ? ivc_endpoint_check_path(ep->endpoint, address) : 0;
        if (r != 0)
            ivc_fi_ep_say_unreached(ep);
    }
    return ivc_fi_error(r);
}

static int insert_one(struct ivc_fi_av *av, const uint8_t *bytes, fi_addr_t *ret_addr)
{
    struct ivc_address address = { .len = IVC_ADDRESS_LEN };
    uint32_t index;
    uint64_t id;
    int r;

    memcpy(address.bytes, bytes, IVC_ADDRESS_LEN);
    id = ivc_address_id(&address);
    if (id == 0)
        return not_ours();
    r = check_paths(av, &address);
    if (r == 0)
        r = place(av, &index);
    if (r != 0)
        return r;
    av->addresses[index] = address;
    hash_put(av, id, index);
    name_peers(av, id, index);
    *ret_addr = index;
    return 0;
}

static void report_error(struct ivc_fi_av *av, uint64_t flags, void *context, size_t i, int error)
{
    struct fi_eq_entry entry = { .fid = &av->fid.fid, .context = context, .data = i };

    if (flags & FI_SYNC_ERR)
        ((int *)context)[i] = -error;
    else if (av->async)
        ivc_fi_eq_put(av->eq, FI_AV_COMPLETE, &entry, error);
}

static int av_insert(struct fid_av *fid, const void *addr, size_t count, fi_addr_t *fi_addr,
                     uint64_t flags, void *context)
{
    struct ivc_fi_av *av = of(fid);
    struct fi_eq_entry entry = { .fid = &av->fid.fid, .context = context };
    size_t n = 0;

    if (flags & ~(FI_MORE | FI_SYNC_ERR))
        return -FI_EBADFLAGS;
    if (av->async && !av->eq)
        return -FI_ENOEQ;
    if ((flags & FI_SYNC_ERR) && (!context || av->async))
        return -FI_EINVAL;
    ivc_fi_lock(av->domain);
    for (size_t i = 0; i < count; i++) {
        fi_addr_t index = FI_ADDR_NOTAVAIL;
        int r = insert_one(av, (const uint8_t *)addr + i * IVC_ADDRESS_LEN, &index);

        if (r != 0)
            report_error(av, flags, context, i, r);
        else if (flags & FI_SYNC_ERR)
            ((int *)context)[i] = 0;
        if (fi_addr)
            fi_addr[i] = index;
        n += r == 0;
    }
    ivc_fi_unlock(av->domain);
    if (!av->async)
        return (int)n;
    entry.data = n;
    return ivc_fi_eq_put(av->eq, FI_AV_COMPLETE, &entry, 0);
}

static int no_insertsvc(struct fid_av *av, const char *node, const char *service,
                        fi_addr_t *fi_addr, uint64_t flags, void *context)
{
    (void)av;
    (void)node;
    (void)service;
    (void)fi_addr;
    (void)flags;
    (void)context;
    return -FI_ENOSYS;
}

static int no_insertsym(struct fid_av *av, const char *node, size_t nodecnt, const char *service,
                        size_t svccnt, fi_addr_t *fi_addr, uint64_t flags, void *context)
{
    (void)av;
    (void)node;
    (void)nodecnt;
    (void)service;
    (void)svccnt;
    (void)fi_addr;
    (void)flags;
    (void)context;
    return -FI_ENOSYS;
}

static int remove_one(struct ivc_fi_av *av, fi_addr_t addr)
{
    uint64_t id;

    if (addr >= av->n_addresses || !av->addresses[addr].len)
        return -FI_EINVAL;
    id = ivc_address_id(&av->addresses[addr]);
    hash_remove(av, id, (uint32_t)addr);
    av->addresses[addr].len = 0;
    av->n_free++;
    /* The same address may stand here twice: a peer keeps the other name. */
    for (struct ivc_fi_ep *ep = av->eps; ep; ep = ep->next_of_av)
        ivc_fi_ep_forget_addr(ep, addr, ivc_fi_av_find(av, id));
    return 0;
}

static int av_remove(struct fid_av *fid, fi_addr_t *fi_addr, size_t count, uint64_t flags)
{
    struct ivc_fi_av *av = of(fid);
    int r = 0;

    if (flags)
        return -FI_EBADFLAGS;
    ivc_fi_lock(av->domain);
    for (size_t i = count; i-- > 0; ) {
        int one = remove_one(av, fi_addr[i]);

        if (one != 0)
            r = one;
    }
    ivc_fi_unlock(av->domain);
    return r;
}

/* ---------------------------------------------------------------- look-ups */

static int av_lookup(struct fid_av *fid, fi_addr_t addr, void *bytes, size_t *addrlen)
{
    struct ivc_fi_av *av = of(fid);
    int r = -FI_EINVAL;

    ivc_fi_lock(av->domain);
    if (addr < av->n_addresses && av->addresses[addr].len) {
        memcpy(bytes, av->addresses[addr].bytes, IVC_MIN(*addrlen, (size_t)IVC_ADDRESS_LEN));
        *addrlen = IVC_ADDRESS_LEN;
        r = 0;
    }
    ivc_fi_unlock(av->domain);
    return r;
}

static const char *av_straddr(struct fid_av *fid, const void *bytes, char *buf, size_t *len)
{
    struct ivc_address address = { .len = IVC_ADDRESS_LEN };
    char line[256], text[280];

    (void)fid;
    memcpy(address.bytes, bytes, IVC_ADDRESS_LEN);
    ivc_address_describe(&address, line, sizeof line);
    snprintf(text, sizeof text, "fi_ivc://%s", line);
    snprintf(buf, *len, "%s", text);
    *len = strlen(text) + 1;
    return buf;
}

static int no_av_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **ret_set,
                     void *context)
{
    (void)av;
    (void)attr;
    (void)ret_set;
    (void)context;
    return -FI_ENOSYS;
}

/* ---------------------------------------------------------------- open and close */

static int av_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    struct ivc_fi_av *av = container_of(fid, struct ivc_fi_av, fid.fid);

    if (other->fclass != FI_CLASS_EQ || flags || av->eq)
        return -FI_EINVAL;
    av->eq = container_of(other, struct fid_eq, fid);
    ivc_fi_eq_use(av->eq, 1);
    return 0;
}

static int av_close(struct fid *fid)
{
    struct ivc_fi_av *av = container_of(fid, struct ivc_fi_av, fid.fid);

    ivc_fi_lock(av->domain);
    if (av->users) {
        ivc_fi_unlock(av->domain);
        return -FI_EBUSY;
    }
    av->domain->users--;
    ivc_fi_unlock(av->domain);
    if (av->eq)
        ivc_fi_eq_use(av->eq, -1);
    free(av->addresses);
    free(av->buckets);
    free(av);
    return 0;
}

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = av_close,
    .bind = av_bind,
    .control = ivc_fi_no_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_av av_ops = {
    .size = sizeof av_ops,
    .insert = av_insert,
    .insertsvc = no_insertsvc,
    .insertsym = no_insertsym,
    .remove = av_remove,
    .lookup = av_lookup,
    .straddr = av_straddr,
    .av_set = no_av_set,
};

static int check_attr(const struct ivc_fi_domain *domain, struct fi_av_attr *attr)
{
    if (attr->name)
        return -FI_ENOSYS;      /* address vectors shared by processes */
    if (attr->flags & ~(FI_EVENT | FI_SYMMETRIC))
        return -FI_EBADFLAGS;
    if (attr->type != FI_AV_UNSPEC && attr->type != FI_AV_MAP && attr->type != FI_AV_TABLE)
        return -FI_EINVAL;
    if (attr->type != FI_AV_UNSPEC && domain->av_type != FI_AV_UNSPEC
        && attr->type != domain->av_type)
        return -FI_EINVAL;
    if (attr->type == FI_AV_UNSPEC)
        attr->type = domain->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : domain->av_type;
    return 0;
}

int ivc_fi_av_open(struct fid_domain *domain_fid, struct fi_av_attr *attr, struct fid_av **ret_av,
                   void *context)
{
    struct ivc_fi_domain *domain = container_of(domain_fid, struct ivc_fi_domain, fid);
    struct ivc_fi_av *av;
    int r = attr ? check_attr(domain, attr) : -FI_EINVAL;

    if (r != 0)
        return r;
    av = calloc(1, sizeof *av);
    if (!av)
        return -FI_ENOMEM;
    av->domain = domain;
    av->async = attr->flags & FI_EVENT;
    av->fid.fid.fclass = FI_CLASS_AV;
    av->fid.fid.context = context;
    av->fid.fid.ops = &fid_ops;
    av->fid.ops = &av_ops;
    ivc_fi_lock(domain);
    domain->users++;
    ivc_fi_unlock(domain);
    *ret_av = &av->fid;
    return 0;
}
