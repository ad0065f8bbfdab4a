/* What mr.c, rma.c, atomic.c and reach.c share: operations on registered memory. */
#ifndef IVC_LIBFABRIC_RMA_H
#define IVC_LIBFABRIC_RMA_H

#include "base/copy.h"
#include "internal.h"

#include <string.h>

/* ---------------------------------------------------------------- mr.c */

/* As ivc_fi_mr_resolve(), for a request that came to `ep`: memory that is bound to another endpoint
 * is not reached through this one. */
int ivc_fi_mr_find(struct ivc_fi_ep *ep, uint64_t key, uint64_t addr, uint64_t len, uint64_t access,
                   struct iovec *ret_iov, unsigned *ret_n_iov, struct ivc_fi_mr **ret_mr);

/* ---------------------------------------------------------------- rma.c: how operations begin */

/* How a call wants its end to be reported, taken from its flags. */
struct ivc_fi_rma_call {
    struct ivc_fi_peer *peer;
    uint64_t flags;                 /* the call's, or the endpoint's; IVC_FI_QUIET */
    uint64_t report_flags;          /* of the completion: FI_RMA | FI_WRITE, ... */
    enum ivc_fi_count count;
    void *context;
};
/* The peer, and what was before it when FI_FENCE asks for that; 0 or -FI_E... */
int ivc_fi_rma_begin(struct ivc_fi_ep *ep, fi_addr_t to, struct ivc_fi_rma_call *call);
/* An operation that waits for an answer. */
int ivc_fi_rma_op(struct ivc_fi_ep *ep, const struct ivc_fi_rma_call *call, size_t len,
                  struct ivc_fi_op **ret_op);
/* Sends the request of `op`.  `lasting`: the payload stays as it is until the operation ends; else
 * it is copied when it cannot go at once.  On failure the operation is given back. */
int ivc_fi_rma_send(struct ivc_fi_op *op, const struct ivc_fi_header *header,
                    const struct iovec *iov, unsigned n_iov, bool lasting);
/* It ended within the call. */
static inline void ivc_fi_rma_ended(struct ivc_fi_ep *ep, const struct ivc_fi_rma_call *call)
{
    ivc_fi_complete(ep, call->context, call->report_flags, call->count,
                    !(call->flags & IVC_FI_QUIET) && ivc_fi_report_tx(ep, call->flags));
}

/* It was begun, if `r` is 0. */
static inline void ivc_fi_rma_count(struct ivc_fi_ep *ep, const struct ivc_fi_rma_call *call, int r, size_t len)
{
    if (__builtin_expect(ep->profile != NULL, 0) && r == 0)
        ivc_profile_onesided(ep->profile, call->peer->peer, len);
}

static inline size_t ivc_fi_iov_len(const struct iovec *iov, unsigned n_iov)
{
    size_t len = 0;

    for (unsigned i = 0; i < n_iov; i++)
        len += iov[i].iov_len;
    return len;
}

/* Copies between a buffer and segments; the segments' length counts. */
static inline void ivc_fi_gather(void *to, const struct iovec *iov, unsigned n_iov)
{
    ivc_copy_gather(IVC_COPY_IN, to, iov, n_iov);
}

static inline void ivc_fi_scatter(const struct iovec *iov, unsigned n_iov, const void *from)
{
    const char *at = from;

    for (unsigned i = 0; i < n_iov; i++) {
        if (iov[i].iov_len > 0)
            ivc_copy(IVC_COPY_OUT, iov[i].iov_base, at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
}

/* Requests for memory.  One segment is in the header; of several the header has the sum of lengths,
 * and their list opens the payload. */
struct ivc_fi_rma_header {
    struct ivc_fi_header base;      /* tag: number of segments */
    uint64_t addr, key, len;
};
_Static_assert(sizeof(struct ivc_fi_rma_header) <= IVC_MESSAGE_HEADER_MAX, "a header of a message");

/* A reply arrives: what was fetched lands where the operation wants it.  Only the reply to an
 * operation whose sink is `done` is one. */
void ivc_fi_rma_reply(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                      const struct ivc_fi_header *header, ivc_fi_landed_fn *done);

/* ---------------------------------------------------------------- target.c: what others do here */

/* A request of a peer that has not ended: its payload is on the way, or our answer is. */
struct ivc_fi_landing {
    struct ivc_fi_sink sink;
    struct ivc_fi_landing *next, *next_of_all;  /* target.c's */
    bool busy;
    struct ivc_fi_ep *ep;
    struct ivc_fi_peer *peer;
    struct ivc_fi_mr *mr;           /* held; NULL: several or none */
    struct ivc_fi_landing *next_of_mr, **prev_of_mr;    /* mr->holds */
    uint64_t data;                  /* remote CQ data */
    uint64_t len;
    uint32_t id;
    uint16_t flags;                 /* enum of ivc_fi_header */
    char *staging;
    _Alignas(8) char header[IVC_MESSAGE_HEADER_MAX];
};
struct ivc_fi_target;
/* NULL: out of memory. */
struct ivc_fi_landing *ivc_fi_landing_get(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                                          const struct ivc_fi_header *header);
void ivc_fi_landing_put(struct ivc_fi_landing *landing);
/* The landing uses that registration's memory, until it is put. */
void ivc_fi_landing_hold(struct ivc_fi_landing *landing, struct ivc_fi_mr *mr);
/* Lets the whole payload land in memory of ours; `done` finds it in landing->staging.  Answers 0 or
 * a positive FI_E..., of which the peer is to be told. */
int ivc_fi_landing_stage(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *header,
                         ivc_fi_landed_fn *done);

/* Tells the initiator how it ended, if it wants to know: `error` 0 or positive FI_E... */
void ivc_fi_target_ack(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint16_t flags, uint32_t id,
                       int error);
/* Counters of the endpoint and of the registration. */
void ivc_fi_target_count(struct ivc_fi_ep *ep, struct ivc_fi_mr *mr, enum ivc_fi_count count);

/* ---------------------------------------------------------------- atomic-ops.c */

/* What a call is: base (fi_atomic), fetch or compare; as flags of fi_query_atomic(). */
enum ivc_fi_atomic_mode { IVC_FI_ATOMIC_BASE, IVC_FI_ATOMIC_FETCH, IVC_FI_ATOMIC_COMPARE };

/* Bytes of an element; 0: unknown type. */
size_t ivc_fi_atomic_size(enum fi_datatype datatype);
/* Whether there is such an operation. */
bool ivc_fi_atomic_valid(enum fi_datatype datatype, enum fi_op op, enum ivc_fi_atomic_mode mode);
/* Whether it is done by the processor as one indivisible step, so that several processes may do it
 * on the same (naturally aligned) memory. */
bool ivc_fi_atomic_is_native(enum fi_datatype datatype);
/* Applies a valid operation to `count` elements.  `operand` may be NULL for FI_ATOMIC_READ, `compare`
 * for all but compare operations; `result` (what was there before) when nobody asks.  Only `target`
 * may be shared; the others are private, of any alignment. */
void ivc_fi_atomic_apply(enum fi_datatype datatype, enum fi_op op, void *target,
                         const void *operand, const void *compare, void *result, size_t count);

/* Calls of struct fi_ops_atomic that ask what there is. */
int ivc_fi_atomic_writevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op op,
                             size_t *ret_count);
int ivc_fi_atomic_readwritevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op op,
                                 size_t *ret_count);
int ivc_fi_atomic_compwritevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op op,
                                 size_t *ret_count);

/* The rights that the target's registration must give. */
static inline uint64_t ivc_fi_atomic_access(enum ivc_fi_atomic_mode mode, enum fi_op op)
{
    if (op == FI_ATOMIC_READ)
        return FI_REMOTE_READ;
    return mode == IVC_FI_ATOMIC_BASE ? FI_REMOTE_WRITE : FI_REMOTE_READ | FI_REMOTE_WRITE;
}

/* A request: several segments' list, operands and what to compare with are the payload. */
struct ivc_fi_atomic_header {
    struct ivc_fi_header base;
    uint64_t addr, key;             /* when there is one segment */
    uint8_t datatype, op, mode, n_segments;
    uint32_t count;                 /* elements, of all segments */
};
_Static_assert(sizeof(struct ivc_fi_atomic_header) <= IVC_MESSAGE_HEADER_MAX, "of a message");

enum {
    IVC_FI_ATOMIC_REQUEST_MAX = 2 * IVC_FI_ATOMIC_MAX
                                + IVC_FI_RMA_IOV_MAX * sizeof(struct fi_rma_ioc),
};

/* ---------------------------------------------------------------- reach.c */

/* Memory of a peer's registration that lies in the region, as its owner told us. */
struct ivc_fi_reach_key {
    uint64_t key;
    uint64_t stamp;                 /* 0: not known */
    const ivc_atomic_u64 *word;     /* the entry's stamp, in the owner's table */
    char *memory;
    uint64_t base, len, access;
    uint32_t asked;                 /* requests since the owner was asked */
};
enum { IVC_FI_REACH_KEYS = 64 };    /* of one peer; a power of two; others are forgotten */
struct ivc_region;
struct ivc_fi_reach_peer {
    const struct ivc_region *region;
    uint32_t residence;             /* all of it is about this one of our endpoint's */
    struct ivc_fi_reach_key keys[IVC_FI_REACH_KEYS];
};

static inline struct ivc_fi_reach_key *ivc_fi_reach_slot(struct ivc_fi_reach_peer *reach,
                                                         uint64_t key)
{
    return &reach->keys[(key * 0x9e3779b97f4a7c15ull) >> 58];
}
_Static_assert(IVC_FI_REACH_KEYS == 1 << (64 - 58), "the hash's upper bits");

/* The peer's memory [addr, addr + len) under `key`, if it may be accessed so and directly: nothing of
 * ours that was begun before is still under way to it.  NULL: send a request.  Not NULL: to be
 * accessed at once, and then ivc_fi_reach_done() is called; until then our region does not change. */
void *ivc_fi_reach_find_known(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint64_t key,
                              uint64_t addr, uint64_t len, uint64_t access);
static inline void *ivc_fi_reach_find(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint64_t key,
                                      uint64_t addr, uint64_t len, uint64_t access)
{
    void *memory;

    if (!peer->reach || peer->n_ops != 0)
        return NULL;
    ivc_endpoint_enter(ep->endpoint);
    memory = ivc_fi_reach_find_known(ep, peer, key, addr, len, access);
    if (!memory)
        ivc_endpoint_leave(ep->endpoint);
    return memory;
}
static inline void ivc_fi_reach_done(struct ivc_fi_ep *ep)
{
    ivc_endpoint_leave(ep->endpoint);
}
/* IVC_FI_WANT_REACH when a request for that key is to ask where its memory lies; else 0. */
uint16_t ivc_fi_reach_ask(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint64_t key);

/* As the owner: answers such a request if the memory can be reached. */
void ivc_fi_reach_tell(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_fi_mr *mr);
/* Nobody may use what was told of it any more. */
void ivc_fi_reach_withdraw(struct ivc_fi_mr *mr);

#endif
