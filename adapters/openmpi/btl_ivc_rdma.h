/*
 * What btl_ivc_rdma.c and btl_ivc_emulate.c share: registrations, operations, and requests for them.
 */
#ifndef IVC_ADAPTERS_OPENMPI_BTL_IVC_RDMA_H
#define IVC_ADAPTERS_OPENMPI_BTL_IVC_RDMA_H

#include "btl_ivc.h"

/* What osc/rdma keeps of a registration, and shows to others. */
struct mca_btl_base_registration_handle_t {
    uint64_t id;                /* the owner's; 0: for its own use alone */
    uint64_t base, len;         /* as the owner sees it */
    uint64_t where, key;        /* ivc_endpoint_show_lent(); `where` 0: it lies elsewhere */
};

enum {
    /* Of a put or get; osc/rdma cuts larger ones. Eight packets. */
    IVC_BTL_RDMA_MAX = 256 * 1024,

    /* Operations under way to one peer: what their answers may take there, if they have to wait, is 8 MiB. */
    IVC_BTL_OPERATIONS_MAX = 32,
};

enum ivc_btl_kind { IVC_BTL_PUT = 1, IVC_BTL_GET, IVC_BTL_ATOMIC, IVC_BTL_CSWAP };

/* As Open MPI asked for it. */
struct ivc_btl_operation {
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *context, *cbdata;
    void *local;                /* NULL: nobody wants the result */
    struct mca_btl_base_registration_handle_t *local_handle;
    uint64_t len;
};

/* A packet: the head of one that puts, all of others. What lands in private memory in any case (channel/packet.h). */
struct ivc_btl_request {
    uint32_t id;                /* of the operation, its initiator's */
    uint8_t kind, op, width;    /* enum ivc_btl_kind; mca_btl_base_atomic_op_t and bytes of an atomic's word */
    uint8_t zero;
    uint64_t handle, address;   /* the target's registration, and where in it */
    uint64_t a, b;              /* put, get: where in the operation, and bytes; else operands */
};
_Static_assert(sizeof(struct ivc_btl_request) == 40, "what is always in a packet's head");

/* btl_ivc_rdma.c */
/* Memory of ours that is registered for such accesses, and stays so until ..._end(); NULL: it is not, and there is
 * nothing to end. */
void *ivc_btl_registered_begin(uint64_t id, uint64_t address, uint64_t len, uint32_t flags);
void ivc_btl_registered_end(void);
bool ivc_btl_atomic_is_known(const struct ivc_btl_request *request);
/* What was there before. */
uint64_t ivc_btl_atomic_apply(void *memory, const struct ivc_btl_request *request);
void ivc_btl_atomic_result(void *local, unsigned int width, uint64_t before);

static inline uint32_t ivc_btl_rdma_access(unsigned int kind)
{
    return kind == IVC_BTL_PUT ? MCA_BTL_REG_FLAG_REMOTE_WRITE
        : kind == IVC_BTL_GET ? MCA_BTL_REG_FLAG_REMOTE_READ : MCA_BTL_REG_FLAG_REMOTE_ATOMIC;
}

/* btl_ivc_emulate.c */
/* Asks the peer to do it; the callback comes from progress.  OPAL_ERR_OUT_OF_RESOURCE: later. */
int ivc_btl_emulate(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_operation *op,
                    struct ivc_btl_request *request);

#endif
