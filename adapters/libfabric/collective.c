/*
 * Collective operations of libfabric's: refused.  MPIs have their own over messages.
 *
 * Invariant: no pointer of the table is NULL: most of libfabric's inline functions call it unasked.
 */
#include "internal.h"

#include <rdma/fi_collective.h>

/* Nothing here reads what it is given. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static ssize_t no_barrier(struct fid_ep *ep, fi_addr_t group, void *context)
{
    return -FI_ENOSYS;
}

static ssize_t no_barrier2(struct fid_ep *ep, fi_addr_t group, uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

static ssize_t no_broadcast(struct fid_ep *ep, void *buf, size_t count, void *desc,
                            fi_addr_t group, fi_addr_t root, enum fi_datatype datatype,
                            uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

/* alltoall and allgather. */
static ssize_t no_exchange(struct fid_ep *ep, const void *buf, size_t count, void *desc,
                           void *result, void *result_desc, fi_addr_t group,
                           enum fi_datatype datatype, uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

/* allreduce and reduce_scatter. */
static ssize_t no_reduction(struct fid_ep *ep, const void *buf, size_t count, void *desc,
                            void *result, void *result_desc, fi_addr_t group,
                            enum fi_datatype datatype, enum fi_op op, uint64_t flags,
                            void *context)
{
    return -FI_ENOSYS;
}

static ssize_t no_reduce(struct fid_ep *ep, const void *buf, size_t count, void *desc,
                         void *result, void *result_desc, fi_addr_t group, fi_addr_t root,
                         enum fi_datatype datatype, enum fi_op op, uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

/* scatter and gather. */
static ssize_t no_rooted(struct fid_ep *ep, const void *buf, size_t count, void *desc,
                         void *result, void *result_desc, fi_addr_t group, fi_addr_t root,
                         enum fi_datatype datatype, uint64_t flags, void *context)
{
    return -FI_ENOSYS;
}

static ssize_t no_msg(struct fid_ep *ep, const struct fi_msg_collective *msg,
                      struct fi_ioc *results, void **result_desc, size_t count, uint64_t flags)
{
    return -FI_ENOSYS;
}

struct fi_ops_collective ivc_fi_collective_ops = {
    .size = sizeof ivc_fi_collective_ops,
    .barrier = no_barrier,
    .broadcast = no_broadcast,
    .alltoall = no_exchange,
    .allreduce = no_reduction,
    .allgather = no_exchange,
    .reduce_scatter = no_reduction,
    .reduce = no_reduce,
    .scatter = no_rooted,
    .gather = no_rooted,
    .msg = no_msg,
    .barrier2 = no_barrier2,
};
