/*
 * Put, get and atomics: the module that Open MPI's one-sided communication (osc/rdma) uses.
 *
 * It is a module of its own beside the one that sends, with the same endpoints and one for our own process, which
 * osc/rdma wants as well. pml/ob1 must not see a BTL that puts or gets: it would carry large messages by it, without
 * looking for a message that is too long (btl_ivc_lent.c). This one has no SEND flag and registers nothing for ob1.
 *
 * A handle says what was registered, and where it lies in the region if it lies in lent memory. There the initiator
 * copies, or lets its processor do the atomic, by itself; elsewhere it sends a request (btl_ivc_emulate.c). Both are done
 * by atomic instructions on the same word, so they may meet there, and the owner's own instructions, too.
 *
 * Invariants.  Memory is touched only after its whole range was found in a registration (our own), or in the blocks of
 * the region that the peer is a member of now. A direct access never overtakes an operation of ours that is still under
 * way to the same peer, and lies between ivc_endpoint_enter() and ivc_endpoint_leave(): it is done, or not begun,
 * when either guest lets go of the region.
 */
#include "btl_ivc_rdma.h"

#include <stdlib.h>
#include <string.h>

#include "opal/util/proc.h"

#include "base/caller.h"
#include "base/copy.h"
#include "endpoint/profile.h"

enum { UNDER_WAY = 1 };     /* beside Open MPI's codes */

/* One of ours that others may access, or none: `handle.id` is 0. */
struct registration {
    struct mca_btl_base_registration_handle_t handle;   /* what Open MPI knows of it */
    uint32_t flags;
};

static struct {
    opal_mutex_t lock;
    struct registration **at;           /* by the lower half of their id */
    uint32_t n, room;
    uint32_t made;                      /* so far: the upper half, so that no two ever have the same id */
} table;

/* ---------------------------------------------------------------- registrations */

static bool is_in(const struct mca_btl_base_registration_handle_t *handle, uint64_t address, uint64_t len)
{
    return address >= handle->base && len <= handle->len && address - handle->base <= handle->len - len;
}

static bool has_other_nodes(void)
{
    for (const struct mca_btl_base_endpoint_t *e = ivc_btl_module.endpoints; e != NULL; e = e->next)
        if (e->proc != NULL && !OPAL_PROC_ON_LOCAL_NODE(e->proc->proc_flags))
            return true;
    return false;
}

/* osc/rdma of Open MPI up to 4.1.4 waits for itself for ever when it first looks for what is attached to a dynamic window
 * of another node: better an end with a line.  (MPI_Win_attach() takes no refusal: it registers again and again.) */
static void refuse_attach(void)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    static const bool is_mended = OPAL_MAJOR_VERSION > 4 || OPAL_MINOR_VERSION > 1 || OPAL_RELEASE_VERSION > 4;

    if (is_mended || !has_other_nodes() || !ivc_caller_is_below("Win_attach"))
        return;
    ivc_btl_say("dynamic", "dynamic windows between nodes hang in osc/rdma of this Open MPI: try --mca osc ^ucx,rdma");
    if (m->error_cb != NULL)
        m->error_cb(&m->super, MCA_BTL_ERROR_FLAGS_FATAL, opal_proc_local_get(), NULL);
}

/* A free place in the table.  The caller holds the lock. */
static bool place_find(uint32_t *ret_place)
{
    struct registration **at;
    uint32_t room = table.room == 0 ? 16 : 2 * table.room;

    for (uint32_t i = 0; i < table.n; i++) {
        if (table.at[i] == NULL) {
            *ret_place = i;
            return true;
        }
    }
    if (table.n == table.room) {
        at = realloc(table.at, room * sizeof(struct registration *));
        if (at == NULL)
            return false;
        table.at = at;
        table.room = room;
    }
    *ret_place = table.n++;
    return true;
}

static bool publish(struct registration *r)
{
    uint32_t place;
    bool good;

    OPAL_THREAD_LOCK(&table.lock);
    good = place_find(&place);
    if (good) {
        r->handle.id = (uint64_t) ++table.made << 32 | place;
        table.at[place] = r;
    }
    OPAL_THREAD_UNLOCK(&table.lock);
    return good;
}

/* NULL: for ob1, which asks in this way, or out of memory. */
static struct mca_btl_base_registration_handle_t *
register_mem(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint, void *base, size_t size,
             uint32_t flags)
{
    static const uint32_t remote
        = MCA_BTL_REG_FLAG_REMOTE_READ | MCA_BTL_REG_FLAG_REMOTE_WRITE | MCA_BTL_REG_FLAG_REMOTE_ATOMIC;
    struct registration *r;

    (void) btl;
    (void) endpoint;
    if (flags == MCA_BTL_REG_FLAG_REMOTE_READ || (r = calloc(1, sizeof *r)) == NULL)
        return NULL;
    r->handle.base = (uintptr_t) base;
    r->handle.len = size;
    r->flags = flags;
    if ((flags & remote) == 0)
        return &r->handle;
    refuse_attach();
    if (!ivc_endpoint_show_lent(ivc_btl_module.endpoint, NULL, base, size, &r->handle.where, &r->handle.key))
        r->handle.where = 0;
    if (publish(r))
        return &r->handle;
    free(r);
    return NULL;
}

static int deregister_mem(mca_btl_base_module_t *btl, struct mca_btl_base_registration_handle_t *handle)
{
    struct registration *r = (struct registration *) handle;

    (void) btl;
    if (handle->id != 0) {
        OPAL_THREAD_LOCK(&table.lock);
        table.at[(uint32_t) handle->id] = NULL;
        OPAL_THREAD_UNLOCK(&table.lock);
    }
    free(r);
    return OPAL_SUCCESS;
}

void *ivc_btl_registered_begin(uint64_t id, uint64_t address, uint64_t len, uint32_t flags)
{
    uint32_t place = (uint32_t) id;
    struct registration *r;

    OPAL_THREAD_LOCK(&table.lock);
    r = place < table.n ? table.at[place] : NULL;
    if (r != NULL && r->handle.id == id && (r->flags & flags) == flags && is_in(&r->handle, address, len))
        return (void *) (uintptr_t) address;
    OPAL_THREAD_UNLOCK(&table.lock);
    return NULL;
}

void ivc_btl_registered_end(void)
{
    OPAL_THREAD_UNLOCK(&table.lock);
}

/* ---------------------------------------------------------------- atomics */

static uint64_t combine(mca_btl_base_atomic_op_t op, uint64_t before, uint64_t operand)
{
    switch (op) {
    case MCA_BTL_ATOMIC_ADD:
        return before + operand;
    case MCA_BTL_ATOMIC_AND:
        return before & operand;
    case MCA_BTL_ATOMIC_OR:
        return before | operand;
    case MCA_BTL_ATOMIC_XOR:
        return before ^ operand;
    case MCA_BTL_ATOMIC_MIN:
        return (int64_t) before < (int64_t) operand ? before : operand;
    case MCA_BTL_ATOMIC_MAX:
        return (int64_t) before > (int64_t) operand ? before : operand;
    default:
        return operand;     /* MCA_BTL_ATOMIC_SWAP */
    }
}

bool ivc_btl_atomic_is_known(const struct ivc_btl_request *request)
{
    if (request->kind == IVC_BTL_CSWAP)
        return true;
    switch ((mca_btl_base_atomic_op_t) request->op) {
    case MCA_BTL_ATOMIC_ADD:
    case MCA_BTL_ATOMIC_AND:
    case MCA_BTL_ATOMIC_OR:
    case MCA_BTL_ATOMIC_XOR:
    case MCA_BTL_ATOMIC_SWAP:
    case MCA_BTL_ATOMIC_MIN:
    case MCA_BTL_ATOMIC_MAX:
        return true;
    default:
        return false;
    }
}

/* Seq_cst, all of them: osc/rdma's locks are such words, and order what was put and got before and after; the partner
 * is the next one that does this on the same word, or osc/rdma itself by its own instructions. */
static uint64_t apply_64(uint64_t *word, const struct ivc_btl_request *request)
{
    uint64_t before = request->kind == IVC_BTL_CSWAP ? request->a : __atomic_load_n(word, __ATOMIC_RELAXED);
    uint64_t after;

    do {
        after = request->kind == IVC_BTL_CSWAP ? request->b : combine(request->op, before, request->a);
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
             && request->kind != IVC_BTL_CSWAP);
    return before;
}

static uint64_t apply_32(uint32_t *word, const struct ivc_btl_request *request)
{
    uint32_t before = request->kind == IVC_BTL_CSWAP ? (uint32_t) request->a : __atomic_load_n(word, __ATOMIC_RELAXED);
    uint32_t after;

    do {
        /* With their signs, for MIN and MAX. */
        after = request->kind == IVC_BTL_CSWAP ? (uint32_t) request->b
            : (uint32_t) combine(request->op, (uint64_t) (int32_t) before, (uint64_t) (int32_t) request->a);
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
             && request->kind != IVC_BTL_CSWAP);
    return before;
}

uint64_t ivc_btl_atomic_apply(void *memory, const struct ivc_btl_request *request)
{
    return request->width == sizeof(uint32_t) ? apply_32(memory, request) : apply_64(memory, request);
}

void ivc_btl_atomic_result(void *local, unsigned int width, uint64_t before)
{
    uint32_t half = (uint32_t) before;

    if (local != NULL)
        memcpy(local, width == sizeof half ? (void *) &half : (void *) &before, width);
}

/* ---------------------------------------------------------------- without the target's help */

/* What an operation does, where its memory can be touched. */
static void perform(const struct ivc_btl_operation *op, const struct ivc_btl_request *request, void *memory)
{
    if (request->kind == IVC_BTL_PUT)
        ivc_copy(IVC_COPY_IN, memory, op->local, op->len);
    else if (request->kind == IVC_BTL_GET)
        ivc_copy(IVC_COPY_OUT, op->local, memory, op->len);
    else
        ivc_btl_atomic_result(op->local, request->width, ivc_btl_atomic_apply(memory, request));
}

static bool is_atomic(const struct ivc_btl_request *request)
{
    return request->kind == IVC_BTL_ATOMIC || request->kind == IVC_BTL_CSWAP;
}

/* The window is our own. */
static int perform_here(const struct ivc_btl_operation *op, const struct ivc_btl_request *request)
{
    void *memory = ivc_btl_registered_begin(request->handle, request->address, op->len,
                                            ivc_btl_rdma_access(request->kind));

    if (memory == NULL)
        return OPAL_ERR_BAD_PARAM;
    perform(op, request, memory);
    ivc_btl_registered_end();
    return OPAL_SUCCESS;
}

/* False: it has to be asked for. */
static bool perform_in_region(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_operation *op,
                              const struct ivc_btl_request *request,
                              const struct mca_btl_base_registration_handle_t *remote)
{
    struct ivc_endpoint *e = ivc_btl_module.endpoint;
    void *memory;
    bool whole = false;

    if (remote->where == 0 || endpoint->n_operations != 0)
        return false;
    ivc_endpoint_enter(e);
    memory = ivc_endpoint_reach_lent(e, endpoint->peer, remote->where + (request->address - remote->base),
                                     remote->key, op->len);
    if (memory != NULL) {
        perform(op, request, memory);
        whole = ivc_endpoint_view_is_whole(e);
    }
    ivc_endpoint_leave(e);
    if (memory != NULL && !whole && is_atomic(request)) {
        ivc_btl_lose(endpoint, "the shared memory was taken away during an atomic operation in it");
        return true;
    }
    return whole;       /* else it is put or got once more, from wherever the window is now */
}

/* ---------------------------------------------------------------- what Open MPI calls */

/* UNDER_WAY: its callback will come. */
static int perform_by_handle(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_operation *op,
                             struct ivc_btl_request *request,
                             const struct mca_btl_base_registration_handle_t *remote)
{
    /* It lies in memory that others may write: read once. */
    struct mca_btl_base_registration_handle_t handle = *remote;
    int rc;

    request->handle = handle.id;
    if (!is_in(&handle, request->address, op->len))
        return OPAL_ERR_BAD_PARAM;
    if (endpoint->peer == NULL)
        return perform_here(op, request);
    if (perform_in_region(endpoint, op, request, &handle))
        return OPAL_SUCCESS;
    rc = ivc_btl_emulate(endpoint, op, request);
    return rc == OPAL_SUCCESS ? UNDER_WAY : rc;
}

/* The callback comes before this returns if all is done by then. Without a handle it is memory that osc/rdma shares with
 * that process by itself, at an address of ours. */
static int start(struct mca_btl_base_endpoint_t *endpoint, struct ivc_btl_operation *op,
                 struct ivc_btl_request *request, const struct mca_btl_base_registration_handle_t *remote)
{
    int rc = OPAL_SUCCESS;

    if (is_atomic(request) && request->address % op->len != 0)
        return OPAL_ERR_BAD_PARAM;
    if (remote == NULL)
        perform(op, request, (void *) (uintptr_t) request->address);
    else if (op->len > 0)
        rc = perform_by_handle(endpoint, op, request, remote);
    if (OPAL_UNLIKELY(ivc_btl_module.profile != NULL) && endpoint->peer != NULL
        && (rc == OPAL_SUCCESS || rc == UNDER_WAY))
        ivc_profile_onesided(ivc_btl_module.profile, endpoint->peer, op->len);
    if (rc == UNDER_WAY)
        return OPAL_SUCCESS;
    if (rc == OPAL_SUCCESS)
        op->cbfunc(&ivc_btl_rdma_module, endpoint, op->local, op->local_handle, op->context, op->cbdata, rc);
    return rc;
}

static int put(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint, void *local, uint64_t remote,
               struct mca_btl_base_registration_handle_t *local_handle,
               struct mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags, int order,
               mca_btl_base_rdma_completion_fn_t cbfunc, void *context, void *cbdata)
{
    struct ivc_btl_operation op = { cbfunc, context, cbdata, local, local_handle, size };
    struct ivc_btl_request request = { .kind = IVC_BTL_PUT, .address = remote };

    (void) btl;
    (void) flags;
    (void) order;
    return start(endpoint, &op, &request, remote_handle);
}

static int get(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint, void *local, uint64_t remote,
               struct mca_btl_base_registration_handle_t *local_handle,
               struct mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags, int order,
               mca_btl_base_rdma_completion_fn_t cbfunc, void *context, void *cbdata)
{
    struct ivc_btl_operation op = { cbfunc, context, cbdata, local, local_handle, size };
    struct ivc_btl_request request = { .kind = IVC_BTL_GET, .address = remote };

    (void) btl;
    (void) flags;
    (void) order;
    return start(endpoint, &op, &request, remote_handle);
}

static unsigned int width_of(int flags)
{
    return (flags & MCA_BTL_ATOMIC_FLAG_32BIT) != 0 ? sizeof(uint32_t) : sizeof(uint64_t);
}

static int atomic_fop(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint, void *local,
                      uint64_t remote, struct mca_btl_base_registration_handle_t *local_handle,
                      struct mca_btl_base_registration_handle_t *remote_handle, mca_btl_base_atomic_op_t op_code,
                      uint64_t operand, int flags, int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *context,
                      void *cbdata)
{
    struct ivc_btl_operation op = { cbfunc, context, cbdata, local, local_handle, width_of(flags) };
    struct ivc_btl_request request = {
        .kind = IVC_BTL_ATOMIC, .op = (uint8_t) op_code, .width = (uint8_t) op.len, .address = remote, .a = operand,
    };

    (void) btl;
    (void) order;
    if ((flags & MCA_BTL_ATOMIC_FLAG_FLOAT) != 0 || !ivc_btl_atomic_is_known(&request))
        return OPAL_ERR_NOT_SUPPORTED;
    return start(endpoint, &op, &request, remote_handle);
}

static int atomic_op(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint, uint64_t remote,
                     struct mca_btl_base_registration_handle_t *remote_handle, mca_btl_base_atomic_op_t op_code,
                     uint64_t operand, int flags, int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *context,
                     void *cbdata)
{
    return atomic_fop(btl, endpoint, NULL, remote, NULL, remote_handle, op_code, operand, flags, order, cbfunc,
                      context, cbdata);
}

static int atomic_cswap(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint, void *local,
                        uint64_t remote, struct mca_btl_base_registration_handle_t *local_handle,
                        struct mca_btl_base_registration_handle_t *remote_handle, uint64_t compare, uint64_t value,
                        int flags, int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *context, void *cbdata)
{
    struct ivc_btl_operation op = { cbfunc, context, cbdata, local, local_handle, width_of(flags) };
    struct ivc_btl_request request = {
        .kind = IVC_BTL_CSWAP, .width = (uint8_t) op.len, .address = remote, .a = compare, .b = value,
    };

    (void) btl;
    (void) order;
    return start(endpoint, &op, &request, remote_handle);
}

/* ---------------------------------------------------------------- the module */

/* Our own process: it has no peer. */
static struct mca_btl_base_endpoint_t self;

static int add_procs(mca_btl_base_module_t *btl, size_t nprocs, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints, struct opal_bitmap_t *reachable)
{
    int rc = ivc_btl_module.super.btl_add_procs(btl, nprocs, procs, endpoints, reachable);

    for (size_t i = 0; i < nprocs && rc == OPAL_SUCCESS; i++) {
        if (procs[i] != opal_proc_local_get())
            continue;
        endpoints[i] = &self;
        if (reachable != NULL)
            rc = opal_bitmap_set_bit(reachable, (int) i);
    }
    return rc;
}

/* The one that sends has the endpoints. */
static int del_procs(mca_btl_base_module_t *btl, size_t nprocs, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints)
{
    (void) btl;
    (void) nprocs;
    (void) procs;
    (void) endpoints;
    return OPAL_SUCCESS;
}

static int finalize(mca_btl_base_module_t *btl)
{
    (void) btl;
    free(table.at);     /* what is still registered is Open MPI's to give back */
    table.at = NULL;
    table.n = table.room = 0;
    return OPAL_SUCCESS;
}

mca_btl_base_module_t ivc_btl_rdma_module = {
    .btl_component = &mca_btl_ivc_component.super,
    /* Of several BTLs osc/rdma takes the one with the smallest, if all are equal a different one in each rank. vader has
     * 1, and between processes of one guest is better: the kernel copies for it, whatever memory it is. */
    .btl_latency = 2,
    .btl_bandwidth = 100000,
    .btl_flags = MCA_BTL_FLAGS_RDMA | MCA_BTL_FLAGS_ATOMIC_OPS | MCA_BTL_FLAGS_ATOMIC_FOPS,
    .btl_atomic_flags = MCA_BTL_ATOMIC_SUPPORTS_ADD | MCA_BTL_ATOMIC_SUPPORTS_AND | MCA_BTL_ATOMIC_SUPPORTS_OR
        | MCA_BTL_ATOMIC_SUPPORTS_XOR | MCA_BTL_ATOMIC_SUPPORTS_SWAP | MCA_BTL_ATOMIC_SUPPORTS_MIN
        | MCA_BTL_ATOMIC_SUPPORTS_MAX | MCA_BTL_ATOMIC_SUPPORTS_32BIT | MCA_BTL_ATOMIC_SUPPORTS_CSWAP
        | MCA_BTL_ATOMIC_SUPPORTS_GLOB,
    .btl_registration_handle_size = sizeof(struct mca_btl_base_registration_handle_t),
    .btl_get_limit = IVC_BTL_RDMA_MAX,
    .btl_put_limit = IVC_BTL_RDMA_MAX,
    /* What is put or got need not be registered. */
    .btl_get_local_registration_threshold = SIZE_MAX,
    .btl_put_local_registration_threshold = SIZE_MAX,
    /* ob1 is never to get as far as these. */
    .btl_min_rdma_pipeline_size = SIZE_MAX,
    .btl_add_procs = add_procs,
    .btl_del_procs = del_procs,
    .btl_finalize = finalize,
    .btl_put = put,
    .btl_get = get,
    .btl_atomic_op = atomic_op,
    .btl_atomic_fop = atomic_fop,
    .btl_atomic_cswap = atomic_cswap,
    .btl_register_mem = register_mem,
    .btl_deregister_mem = deregister_mem,
};

void ivc_btl_rdma_init(void)
{
    OBJ_CONSTRUCT(&table.lock, opal_mutex_t);
}
