/*
 * Tagged messages: libfabric's calls as ivc_fi_send() and ivc_fi_recv().
 *
 * A call without flags has those of the endpoint (op_flags), a call with flags has only its own.
 */
#include "short.h"

static inline ssize_t post(struct ivc_fi_ep *ep, const struct iovec *iov, size_t n_iov,
                           fi_addr_t from, uint64_t tag, uint64_t ignore, uint64_t flags,
                           void *context)
{
    const struct ivc_fi_recv recv = {
        .kind = IVC_FI_KIND_TAGGED,
        .iov = iov, .n_iov = (unsigned)IVC_MIN(n_iov, IVC_FI_IOV_MAX + 1),
        .from = from, .tag = tag, .ignore = ignore, .flags = flags, .context = context,
    };
    ssize_t r;

    ivc_fi_lock(ep->domain);
    r = ivc_fi_recv(ep, &recv);
    ivc_fi_unlock(ep->domain);
    return r;
}

static inline ssize_t put(struct ivc_fi_ep *ep, const struct iovec *iov, size_t n_iov, fi_addr_t to,
                          uint64_t tag, uint64_t data, uint64_t flags, void *context)
{
    const struct ivc_fi_send send = {
        .kind = IVC_FI_KIND_TAGGED,
        .iov = iov, .n_iov = (unsigned)IVC_MIN(n_iov, IVC_FI_IOV_MAX + 1),
        .to = to, .tag = tag, .data = data, .flags = flags, .context = context,
    };
    ssize_t r;

    ivc_fi_lock(ep->domain);
    r = ivc_fi_send(ep, &send);
    ivc_fi_unlock(ep->domain);
    return r;
}

static ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from,
                           uint64_t tag, uint64_t ignore, void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);
    bool posted;

    (void)desc;
    ivc_fi_lock(ep->domain);
    posted = ivc_fi_post_short(ep, buf, len, from, tag, ignore, context);
    ivc_fi_unlock(ep->domain);
    return posted ? 0 : post(ep, &(struct iovec){ buf, len }, 1, from, tag, ignore, ep->rx_op_flags, context);
}

static ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                            fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);

    (void)desc;
    return post(ep, iov, count, from, tag, ignore, ep->rx_op_flags, context);
}

static ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    return post(ivc_fi_ep_of(fid), msg->msg_iov, msg->iov_count, msg->addr, msg->tag, msg->ignore,
                flags, msg->context);
}

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                           fi_addr_t to, uint64_t tag, void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);
    const struct iovec iov = { (void *)buf, len };

    (void)desc;
    return put(ep, &iov, 1, to, tag, 0, ep->tx_op_flags, context);
}

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count,
                            fi_addr_t to, uint64_t tag, void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);

    (void)desc;
    return put(ep, iov, count, to, tag, 0, ep->tx_op_flags, context);
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *msg, uint64_t flags)
{
    return put(ivc_fi_ep_of(fid), msg->msg_iov, msg->iov_count, msg->addr, msg->tag, msg->data,
               flags & ~IVC_FI_QUIET, msg->context);
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to,
                             uint64_t tag)
{
    const struct iovec iov = { (void *)buf, len };

    if (len > IVC_FI_INJECT_MAX)
        return -FI_EMSGSIZE;
    return put(ivc_fi_ep_of(fid), &iov, 1, to, tag, 0, FI_INJECT | IVC_FI_QUIET, NULL);
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc,
                               uint64_t data, fi_addr_t to, uint64_t tag, void *context)
{
    struct ivc_fi_ep *ep = ivc_fi_ep_of(fid);
    const struct iovec iov = { (void *)buf, len };

    (void)desc;
    return put(ep, &iov, 1, to, tag, data, ep->tx_op_flags | FI_REMOTE_CQ_DATA, context);
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data,
                                 fi_addr_t to, uint64_t tag)
{
    const struct iovec iov = { (void *)buf, len };

    if (len > IVC_FI_INJECT_MAX)
        return -FI_EMSGSIZE;
    return put(ivc_fi_ep_of(fid), &iov, 1, to, tag, data,
               FI_INJECT | FI_REMOTE_CQ_DATA | IVC_FI_QUIET, NULL);
}

struct fi_ops_tagged ivc_fi_tagged_ops = {
    .size = sizeof ivc_fi_tagged_ops,
    .recv = tagged_recv,
    .recvv = tagged_recvv,
    .recvmsg = tagged_recvmsg,
    .send = tagged_send,
    .sendv = tagged_sendv,
    .sendmsg = tagged_sendmsg,
    .inject = tagged_inject,
    .senddata = tagged_senddata,
    .injectdata = tagged_injectdata,
};
