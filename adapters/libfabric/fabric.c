/* The fabric: one for the whole of what ivc reaches.  It holds nothing but a count of its users. */
#include "internal.h"

#include <string.h>

static int fabric_close(struct fid *fid)
{
    struct ivc_fi_fabric *fabric = container_of(fid, struct ivc_fi_fabric, fid.fid);

    /* Relaxed: an application that closes what another thread still opens has no right answer. */
    if (ivc_load_relaxed(&fabric->users) != 0)
        return -FI_EBUSY;
    free(fabric);
    return 0;
}

static int no_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep,
                         void *context)
{
    (void)fabric;
    (void)info;
    (void)pep;
    (void)context;
    return -FI_ENOSYS;
}

static int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr,
                        struct fid_wait **wait_set)
{
    (void)fabric;
    (void)attr;
    (void)wait_set;
    return -FI_ENOSYS;
}

static int fabric_domain2(struct fid_fabric *fabric, struct fi_info *info,
                          struct fid_domain **domain, uint64_t flags, void *context)
{
    return flags ? -FI_ENOSYS : ivc_fi_domain_open(fabric, info, domain, context);
}

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = fabric_close,
    .bind = ivc_fi_no_bind,
    .control = ivc_fi_no_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_fabric fabric_ops = {
    .size = sizeof fabric_ops,
    .domain = ivc_fi_domain_open,
    .passive_ep = no_passive_ep,
    .eq_open = ivc_fi_eq_open,
    .wait_open = no_wait_open,
    .trywait = ivc_fi_trywait,
    .domain2 = fabric_domain2,
};

int ivc_fi_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **ret_fabric, void *context)
{
    struct ivc_fi_fabric *fabric;

    if (attr->name && strcmp(attr->name, IVC_FI_NAME) != 0)
        return -FI_ENODATA;
    fabric = calloc(1, sizeof *fabric);
    if (!fabric)
        return -FI_ENOMEM;
    fabric->fid.fid.fclass = FI_CLASS_FABRIC;
    fabric->fid.fid.context = context;
    fabric->fid.fid.ops = &fid_ops;
    fabric->fid.ops = &fabric_ops;
    fabric->fid.api_version = attr->api_version;
    *ret_fabric = &fabric->fid;
    return 0;
}
