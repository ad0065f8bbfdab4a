/*
 * Put, get and atomics by packets: where the target's memory does not lie in the region, or no memory leads to it.
 *
 *   REQUEST   struct ivc_btl_request, bytes     put these; get, or do this atomic
 *   ANSWER    struct answer, bytes              it is done; what was got, or was there before
 *
 * The target serves them when it calls MPI. Packets come once and in order whatever path they take, so an operation is
 * done once, also when a guest moves in the middle of it. Long ones go in pieces, which are all asked for at once; each
 * is answered.
 *
 * Invariants.  The target touches nothing but what is registered for that access, and holds it registered meanwhile. An
 * operation is in its endpoint's list from before its first request is sent until all is answered or the peer is gone;
 * its callback comes from ivc_btl_queue_progress(), where it may start others and wait for them.
 */
#include "btl_ivc_rdma.h"

#include <string.h>

#include "base/copy.h"

enum {
    TAG_REQUEST = MCA_BTL_TAG_BTL + 18,     /* behind those of btl_ivc_lent.c */
    TAG_ANSWER,
};

struct answer {
    uint32_t id;
    uint32_t refused;           /* not 0: it was not done */
    uint64_t at, value;         /* put, get: where in the operation, and bytes; else what was there before */
};

/* An operation under way, in its descriptor's `header`. */
struct __attribute__((may_alias)) under_way {
    struct ivc_btl_operation op;
    uint64_t left;              /* bytes not yet answered */
    uint32_t kind, width;
};
_Static_assert(sizeof(struct under_way) <= IVC_BTL_HEADER_MAX, "room in a descriptor");
_Static_assert(offsetof(struct ivc_btl_frag, header) % _Alignof(struct under_way) == 0, "its place");

static struct under_way *under_way_of(struct ivc_btl_frag *frag)
{
    return (struct under_way *) (void *) frag->header;
}

/* ---------------------------------------------------------------- the initiator */

/* As a descriptor's callback. */
static void completed(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                      mca_btl_base_descriptor_t *descriptor, int status)
{
    struct ivc_btl_operation op = under_way_of((struct ivc_btl_frag *) descriptor)->op;

    (void) btl;
    op.cbfunc(&ivc_btl_rdma_module, endpoint, op.local, op.local_handle, op.context, op.cbdata, status);
}

/* The descriptor that stands for an operation; NULL: out of memory. */
static struct ivc_btl_frag *operation_begin(struct mca_btl_base_endpoint_t *endpoint,
                                            const struct ivc_btl_operation *op, struct ivc_btl_request *request)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag = ivc_btl_frag_get(endpoint, 0, MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);

    if (frag == NULL)
        return NULL;
    *under_way_of(frag) = (struct under_way) {
        .op = *op, .left = op->len, .kind = request->kind, .width = request->width,
    };
    frag->base.des_cbfunc = completed;
    OPAL_THREAD_LOCK(&m->lent_lock);
    request->id = frag->lent_id = ++endpoint->lent_ids;
    opal_list_append(&endpoint->operations, (opal_list_item_t *) frag);
    endpoint->n_operations++;
    OPAL_THREAD_UNLOCK(&m->lent_lock);
    return frag;
}

/* NULL: nothing of that name is under way.  The caller holds the lock. */
static struct ivc_btl_frag *find(struct mca_btl_base_endpoint_t *endpoint, uint32_t id)
{
    struct ivc_btl_frag *one;

    OPAL_LIST_FOREACH(one, &endpoint->operations, struct ivc_btl_frag) {
        if (one->lent_id == id)
            return one;
    }
    return NULL;
}

static void operation_remove(struct mca_btl_base_endpoint_t *endpoint, struct ivc_btl_frag *frag)
{
    opal_list_remove_item(&endpoint->operations, (opal_list_item_t *) frag);
    endpoint->n_operations--;
}

/* The bytes stay where they are until they are sent: they are Open MPI's until the callback comes. */
static int request_send(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_request *request,
                        const void *bytes, size_t len)
{
    struct ivc_btl_frag *frag = ivc_btl_frag_get(endpoint, sizeof *request, MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    int rc;

    if (frag == NULL)
        return OPAL_ERR_OUT_OF_RESOURCE;
    memcpy(frag->header, request, sizeof *request);
    frag->base.des_cbfunc = NULL;
    frag->segments[1].seg_addr.pval = (void *) bytes;
    frag->segments[1].seg_len = len;
    frag->base.des_segment_count = len > 0 ? 2 : 1;
    frag->unreadable = true;    /* it has no handler of Open MPI's, which is what lent memory is shown to */
    rc = ivc_btl_send(&ivc_btl_module.super, endpoint, &frag->base, TAG_REQUEST);
    if (rc != OPAL_SUCCESS)
        ivc_btl_frag_return(frag);
    return rc;
}

static size_t piece_max(void)
{
    return ivc_btl_module.packet_max - sizeof(struct ivc_btl_request);
}

static int requests_send(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_operation *op,
                         struct ivc_btl_request *request)
{
    uint64_t start = request->address;
    int rc = OPAL_SUCCESS;

    if (request->kind == IVC_BTL_ATOMIC || request->kind == IVC_BTL_CSWAP)
        return request_send(endpoint, request, NULL, 0);
    for (uint64_t at = 0; at < op->len && rc == OPAL_SUCCESS; at += request->b) {
        request->a = at;
        request->b = op->len - at < piece_max() ? op->len - at : piece_max();
        request->address = start + at;
        rc = request_send(endpoint, request, (const char *) op->local + at,
                          request->kind == IVC_BTL_PUT ? request->b : 0);
    }
    return rc;
}

int ivc_btl_emulate(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_operation *op,
                    struct ivc_btl_request *request)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag;
    int rc;

    if (endpoint->fate != IVC_BTL_HERE || ivc_peer_is_gone(endpoint->peer))
        return OPAL_ERR_UNREACH;
    if (endpoint->n_operations >= IVC_BTL_OPERATIONS_MAX)
        return OPAL_ERR_OUT_OF_RESOURCE;
    frag = operation_begin(endpoint, op, request);
    if (frag == NULL)
        return OPAL_ERR_OUT_OF_RESOURCE;
    rc = requests_send(endpoint, op, request);
    if (rc == OPAL_SUCCESS)
        return rc;
    OPAL_THREAD_LOCK(&m->lent_lock);
    frag = find(endpoint, request->id);
    if (frag != NULL)
        operation_remove(endpoint, frag);
    OPAL_THREAD_UNLOCK(&m->lent_lock);
    if (frag == NULL)
        return OPAL_SUCCESS;    /* the peer was found to be gone meanwhile, which has ended it */
    frag->status = rc;
    ivc_btl_done_append(frag);
    return OPAL_SUCCESS;
}

/* Copies what follows the first `skip` bytes, which are in the head. */
static void take_bytes(const struct ivc_packet *packet, size_t skip, char *to)
{
    size_t of_head = packet->head_len - skip;

    memcpy(to, (const char *) packet->head + skip, of_head);
    if (packet->body_len > 0)
        ivc_copy(packet->side, to + of_head, packet->body, packet->body_len);
}

/* Whether an answer is one to that operation; then it lands there. */
static bool land(const struct under_way *under_way, const struct answer *answer, const struct ivc_packet *packet)
{
    uint64_t len = (uint64_t) packet->head_len + packet->body_len - sizeof *answer, total = under_way->op.len;

    if (answer->refused != 0)
        return true;
    if (under_way->kind == IVC_BTL_ATOMIC || under_way->kind == IVC_BTL_CSWAP) {
        ivc_btl_atomic_result(under_way->op.local, under_way->width, answer->value);
        return true;
    }
    if (answer->at > total || answer->value > total - answer->at
        || len != (under_way->kind == IVC_BTL_GET ? answer->value : 0))
        return false;
    if (len > 0)
        take_bytes(packet, sizeof *answer, (char *) under_way->op.local + answer->at);
    return packet->body_len == 0 || ivc_endpoint_body_is_whole(ivc_btl_module.endpoint);
}

/* What that answer has answered, of what is left. */
static uint64_t answered(const struct under_way *under_way, const struct answer *answer)
{
    bool pieces = under_way->kind == IVC_BTL_PUT || under_way->kind == IVC_BTL_GET;

    return pieces && answer->value < under_way->left ? answer->value : under_way->left;
}

/* What is no answer, or one to something that is over, is dropped. */
static void take_answer(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_packet *packet)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag;
    struct answer answer;
    bool over = false;

    if (packet->head_len < sizeof answer)
        return;
    memcpy(&answer, packet->head, sizeof answer);
    OPAL_THREAD_LOCK(&m->lent_lock);
    frag = find(endpoint, answer.id);
    if (frag != NULL && land(under_way_of(frag), &answer, packet)) {
        struct under_way *under_way = under_way_of(frag);

        if (answer.refused != 0)
            frag->status = OPAL_ERR_BAD_PARAM;
        under_way->left -= answered(under_way, &answer);
        over = under_way->left == 0;
        if (over)
            operation_remove(endpoint, frag);
    }
    OPAL_THREAD_UNLOCK(&m->lent_lock);
    if (!over)
        return;
    ivc_btl_done_append(frag);
    ivc_endpoint_end_turn(m->endpoint);     /* whoever waits for it may go on */
}

void ivc_btl_operations_end(struct mca_btl_base_endpoint_t *endpoint)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag;

    do {
        OPAL_THREAD_LOCK(&m->lent_lock);
        frag = (struct ivc_btl_frag *) opal_list_get_first(&endpoint->operations);
        if ((opal_list_item_t *) frag == opal_list_get_end(&endpoint->operations))
            frag = NULL;
        else
            operation_remove(endpoint, frag);
        OPAL_THREAD_UNLOCK(&m->lent_lock);
        if (frag != NULL) {
            frag->status = OPAL_ERR_UNREACH;
            ivc_btl_done_append(frag);
        }
    } while (frag != NULL);
}

/* ---------------------------------------------------------------- the target */

/* `bytes` are copied if they cannot go at once: their window may be gone by then. */
static void answer_send(struct mca_btl_base_endpoint_t *endpoint, const struct answer *answer, const void *bytes,
                        size_t len)
{
    struct ivc_btl_frag *frag = ivc_btl_frag_get(endpoint, sizeof *answer, MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    int rc = OPAL_ERR_OUT_OF_RESOURCE;

    if (frag == NULL) {
        ivc_btl_lose(endpoint, "out of memory");
        return;
    }
    memcpy(frag->header, answer, sizeof *answer);
    frag->base.des_cbfunc = NULL;
    frag->tag = TAG_ANSWER;
    frag->unreadable = true;
    frag->segments[1].seg_addr.pval = (void *) bytes;
    frag->segments[1].seg_len = len;
    frag->base.des_segment_count = len > 0 ? 2 : 1;
    if (endpoint->queued == 0)
        rc = ivc_btl_frag_post(frag);
    ivc_btl_frag_return(frag);
    if (rc != OPAL_ERR_OUT_OF_RESOURCE)
        return;             /* sent, or the peer is gone */
    frag = ivc_btl_frag_get(endpoint, sizeof *answer + len, MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (frag == NULL) {
        ivc_btl_lose(endpoint, "out of memory");
        return;
    }
    memcpy(frag->segments[0].seg_addr.pval, answer, sizeof *answer);
    if (len > 0)
        memcpy((char *) frag->segments[0].seg_addr.pval + sizeof *answer, bytes, len);
    frag->base.des_cbfunc = NULL;
    frag->tag = TAG_ANSWER;
    frag->unreadable = true;
    ivc_btl_queue_append(frag);
}

/* Whether a request can be what it says, before its memory is looked for. */
static bool makes_sense(const struct ivc_btl_request *request, uint64_t bytes)
{
    switch ((enum ivc_btl_kind) request->kind) {
    case IVC_BTL_PUT:
        return request->b == bytes;
    case IVC_BTL_GET:
        return bytes == 0 && request->b <= piece_max();
    case IVC_BTL_ATOMIC:
    case IVC_BTL_CSWAP:
        return bytes == 0 && (request->width == 4 || request->width == 8) && request->address % request->width == 0
            && ivc_btl_atomic_is_known(request);
    default:
        return false;
    }
}

/* Does it, and says so.  A put whose bytes were taken away with the shared memory comes once more. */
static void serve(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_btl_request *request,
                  const struct ivc_packet *packet, void *memory)
{
    struct answer answer = { .id = request->id, .at = request->a, .value = request->b };

    if (request->kind == IVC_BTL_PUT) {
        take_bytes(packet, sizeof *request, memory);
        if (packet->body_len > 0 && !ivc_endpoint_body_is_whole(ivc_btl_module.endpoint))
            return;
    } else if (request->kind != IVC_BTL_GET) {
        answer.value = ivc_btl_atomic_apply(memory, request);
    }
    answer_send(endpoint, &answer, memory, request->kind == IVC_BTL_GET ? request->b : 0);
}

static void take_request(struct mca_btl_base_endpoint_t *endpoint, const struct ivc_packet *packet)
{
    struct ivc_btl_request request;
    void *memory = NULL;
    uint64_t len;

    if (packet->head_len < sizeof request)
        return;
    memcpy(&request, packet->head, sizeof request);
    len = request.kind == IVC_BTL_PUT || request.kind == IVC_BTL_GET ? request.b : request.width;
    if (makes_sense(&request, (uint64_t) packet->head_len + packet->body_len - sizeof request))
        memory = ivc_btl_registered_begin(request.handle, request.address, len, ivc_btl_rdma_access(request.kind));
    if (memory != NULL) {
        serve(endpoint, &request, packet, memory);
        ivc_btl_registered_end();
    } else {
        answer_send(endpoint, &(struct answer) { request.id, 1, request.a, request.b }, NULL, 0);
    }
}

bool ivc_btl_emulate_on_packet(struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct mca_btl_base_endpoint_t *endpoint = ivc_peer_arg(peer);

    if (packet->tag != TAG_REQUEST && packet->tag != TAG_ANSWER)
        return false;
    if (endpoint == NULL)
        return true;
    if (packet->tag == TAG_REQUEST)
        take_request(endpoint, packet);
    else
        take_answer(endpoint, packet);
    return true;
}
