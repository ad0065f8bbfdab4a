/*
 * What every object of libfabric's has in its tables: answers for the calls that it does not serve.
 *
 * Invariant: no pointer in a table of ours is NULL, so that libfabric's inline functions may call
 * whatever they name.
 */
#include "internal.h"

int ivc_fi_no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    (void)fid;
    (void)other;
    (void)flags;
    return -FI_ENOSYS;
}

int ivc_fi_no_control(struct fid *fid, int command, void *arg)
{
    (void)fid;
    (void)command;
    (void)arg;
    return -FI_ENOSYS;
}

int ivc_fi_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
    (void)fid;
    (void)name;
    (void)flags;
    (void)ops;
    (void)context;
    return -FI_ENOSYS;
}

int ivc_fi_no_tostr(const struct fid *fid, char *text, size_t len)
{
    (void)fid;
    (void)text;
    (void)len;
    return -FI_ENOSYS;
}

int ivc_fi_no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context)
{
    (void)fid;
    (void)name;
    (void)flags;
    (void)ops;
    (void)context;
    return -FI_ENOSYS;
}

const char *ivc_fi_strerror(int error, char *text, size_t len)
{
    const char *name;

    switch (error < 0 ? -error : error) {
    case FI_ETRUNC:
        name = "message longer than the buffer";
        break;
    case FI_ENOMSG:
        name = "no such message";
        break;
    default:
        name = ivc_error_name(error < 0 ? error : -error);
    }
    if (text && len > 0)
        snprintf(text, len, "%s", name);
    return name;
}
