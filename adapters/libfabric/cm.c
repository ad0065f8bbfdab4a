/*
 * Names of endpoints; and what only connected ones have, refused.
 *
 * Invariant: an endpoint has its name before it is enabled, and keeps it.
 */
#include "internal.h"

#include <string.h>

static int ep_getname(fid_t fid, void *addr, size_t *addrlen)
{
    struct ivc_fi_ep *ep = container_of(fid, struct ivc_fi_ep, fid.fid);
    struct ivc_address address;
    size_t room = *addrlen;
    int r;

    ivc_fi_lock(ep->domain);
    r = ivc_fi_ep_open_core(ep);
    ivc_fi_unlock(ep->domain);
    if (r != 0)
        return r;
    ivc_endpoint_address(ep->endpoint, &address);
    *addrlen = IVC_ADDRESS_LEN;
    memcpy(addr, address.bytes, IVC_MIN(room, (size_t)IVC_ADDRESS_LEN));
    return room < IVC_ADDRESS_LEN ? -FI_ETOOSMALL : 0;
}

/* ---------------------------------------------------------------- refused */

static int no_setname(fid_t fid, void *addr, size_t addrlen)
{
    (void)fid;
    (void)addr;
    (void)addrlen;
    return -FI_ENOSYS;
}

static int no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen)
{
    (void)ep;
    (void)addr;
    (void)addrlen;
    return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen)
{
    (void)ep;
    (void)addr;
    (void)param;
    (void)paramlen;
    return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep)
{
    (void)pep;
    return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *param, size_t paramlen)
{
    (void)ep;
    (void)param;
    (void)paramlen;
    return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)
{
    (void)pep;
    (void)handle;
    (void)param;
    (void)paramlen;
    return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
    (void)ep;
    (void)flags;
    return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc,
                   void *context)
{
    (void)ep;
    (void)addr;
    (void)flags;
    (void)mc;
    (void)context;
    return -FI_ENOSYS;
}

struct fi_ops_cm ivc_fi_cm_ops = {
    .size = sizeof ivc_fi_cm_ops,
    .setname = no_setname,
    .getname = ep_getname,
    .getpeer = no_getpeer,
    .connect = no_connect,
    .listen = no_listen,
    .accept = no_accept,
    .reject = no_reject,
    .shutdown = no_shutdown,
    .join = no_join,
};
