/*
 * libivc-fi.so: a libfabric provider.  It translates; what moves messages is src/endpoint.
 *
 * One source file per libfabric object (fabric.c, domain.c, av.c, cq.c, cntr.c, eq.c, mr.c, ep.c)
 * and one per set of calls on an endpoint (msg.c, tagged.c, rma.c, atomic.c), with what they share
 * in send.c (going out), receive.c (what is posted), dispatch.c and arrive.c (what comes in),
 * match.c (which receive takes which message) and short.h (most of what arrives, inline).  The
 * objects that endpoints are bound to are in objects.h.
 *
 * Threads.  Every call takes the domain's lock, which is none under FI_THREAD_DOMAIN and less;
 * below it nothing is locked: the core's endpoints are opened without `threads`.  Handlers of the
 * core run inside our calls, so under the lock.  A function declared here is called with the lock
 * held unless it says otherwise.
 *
 * Errors.  ivc_fi_error() is the only translation of the core's answers to -FI_E...
 */
#ifndef IVC_LIBFABRIC_INTERNAL_H
#define IVC_LIBFABRIC_INTERNAL_H

#include "base/atomics.h"
#include "base/error.h"
#include "base/util.h"
#include "endpoint/endpoint.h"
#include "endpoint/message.h"
#include "endpoint/profile.h"

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#define IVC_FI_NAME "ivc"

enum {
    IVC_FI_IOV_MAX = IVC_MESSAGE_IOV_MAX,   /* segments of one buffer */
    IVC_FI_INJECT_MAX = 32 << 10,           /* what one packet holds by default, and so is copied at once */
    IVC_FI_STAGED_MAX = 4 << 20,            /* injected bytes that wait for room; libfabric's shm holds as many */
    IVC_FI_RMA_IOV_MAX = 4,                 /* remote segments of one operation */
    IVC_FI_ATOMIC_MAX = 4096,               /* bytes of one atomic operation */
    IVC_FI_QUEUE_SIZE = 4096,               /* tx_attr->size: operations under way */
    IVC_FI_RX_SIZE = 65536,                 /* rx_attr->size, as advertised: memory is the limit */
};

/* ---------------------------------------------------------------- provider.c, info.c */

extern struct fi_provider ivc_fi_provider;

int ivc_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **ret_info);
/* Says so when FI_PROVIDER seems to mean us, and libfabric will not take it so. */
void ivc_fi_check_spelling(void);
/* Whether the attributes of a domain, an endpoint, ... that an application passes to the calls that
 * open one agree with what we offer; 0 or -FI_E... with a log line that says which. */
int ivc_fi_info_check(const struct fi_info *info);

/* The core's answer as libfabric's.  Zero stays zero; IVC_E_FULL is -FI_EAGAIN, IVC_E_GONE
 * -FI_ECONNABORTED, IVC_E_UNREACHABLE -FI_EHOSTUNREACH, ... negative errno as it is. */
int ivc_fi_error(int core_answer);

/* To libfabric's log (FI_LOG_LEVEL), through the fi_log() of the libfabric that loaded us: no
 * symbol of libfabric is referenced by name, since it may be out of sight of the dynamic linker. */
void ivc_fi_log(enum fi_log_level level, const char *function, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define IVC_FI_WARN(...) ivc_fi_log(FI_LOG_WARN, __func__, __LINE__, __VA_ARGS__)
#define IVC_FI_INFO(...) ivc_fi_log(FI_LOG_INFO, __func__, __LINE__, __VA_ARGS__)
/* One line that a user must see though no log level is set: what he named cannot be had. */
void ivc_fi_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Copies of what the application handed in; every part is malloc's.  free accepts NULL. */
struct fi_info *ivc_fi_info_dup(const struct fi_info *info);
void ivc_fi_info_free(struct fi_info *info);

#include "objects.h"

/* ---------------------------------------------------------------- ep.c, bind.c, cm.c, ... */

/* Which counter counts what: the order of ivc_fi_ep::cntrs. */
enum ivc_fi_count {
    IVC_FI_COUNT_SEND, IVC_FI_COUNT_RECV, IVC_FI_COUNT_READ, IVC_FI_COUNT_WRITE,
    IVC_FI_COUNT_REMOTE_READ, IVC_FI_COUNT_REMOTE_WRITE,
    IVC_FI_COUNTS,
};

/* Somebody at the other end, as one endpoint sees him.  The core's peer points here. */
struct ivc_fi_peer {
    struct ivc_peer *peer;
    fi_addr_t addr;                     /* FI_ADDR_NOTAVAIL until it is in the address vector */
    struct ivc_fi_peer *next;           /* all of an endpoint's */
    bool gone;                          /* receive.c: all that it sent has been delivered */
    bool watched;                       /* receive.c: its end is noticed though it never sent */
    uint32_t n_ops;                     /* under way to him: FI_FENCE waits for none */
    uint32_t n_answers;                 /* to him, that wait for room: answer.c */
    struct ivc_fi_reach_peer *reach;    /* reach.c: what we know of his memory; NULL at first */
};

/* ivc_fi_ep::enabled; the last: and all that is sent and received is counted (ivc_fi_ep::profile). */
enum { IVC_FI_DISABLED, IVC_FI_ENABLED, IVC_FI_COUNTED };

struct ivc_fi_ep {
    /* What every message touches. */
    struct fid_ep fid;
    struct ivc_fi_domain *domain;
    struct ivc_mailbox *mailbox;
    struct ivc_endpoint *endpoint;      /* made by fi_enable(), or by fi_getname() before */
    struct ivc_fi_peer **by_addr;       /* by fi_addr_t; NULL: not connected yet */
    uint32_t by_addr_size;
    struct ivc_fi_cq *tx_cq, *rx_cq;    /* NULL: none bound */
    bool tx_selective, rx_selective;    /* FI_SELECTIVE_COMPLETION at the binding */
    uint8_t enabled;                    /* IVC_FI_ENABLED, ... */
    bool msg_order_checked;
    uint64_t caps;                      /* as the application asked for; FI_SOURCE, ... */
    uint64_t tx_op_flags, rx_op_flags;
    struct ivc_fi_cntr *cntrs[IVC_FI_COUNTS];
    struct ivc_fi_match *msg, *tagged;  /* match.c: a matcher for each kind */

    struct ivc_fi_op *ops;              /* send.c: a table of IVC_FI_QUEUE_SIZE */
    struct ivc_fi_op *free_ops;
    uint32_t n_ops;                     /* under way */
    uint32_t n_ops_used;                /* of the table: those behind were never used */
    size_t staged;                      /* injected bytes that wait for room */
    struct ivc_fi_answer *answers;      /* answer.c: that wait for room */

    struct ivc_fi_peer *peers;
    uint32_t n_unnamed;                 /* of them: not in the address vector (any more) */
    struct ivc_fi_av *av;
    struct ivc_fi_ep *next_of_av;
    struct fid_eq *eq;                  /* bound, for nothing but form */
    struct fi_info *info;
    size_t min_multi_recv;              /* FI_OPT_MIN_MULTI_RECV */
    uint32_t users;                     /* fi_stx, aliases: -FI_EBUSY */
    struct ivc_fi_reach *reach;         /* reach.c: our own memory in the region; NULL at first */
    struct ivc_fi_target *target;       /* target.c: requests of others; NULL at first */
    struct ivc_profile *profile;        /* NULL: none was asked for */
    void *receive;                      /* receive.c's own, if it needs any */
};

static inline struct ivc_fi_ep *ivc_fi_ep_of(struct fid_ep *fid)
{
    return container_of(fid, struct ivc_fi_ep, fid);
}
int ivc_fi_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ret_ep,
                   void *context);

/* dispatch.c: makes the core's endpoint, unless there is one. */
int ivc_fi_ep_open_core(struct ivc_fi_ep *ep);
/* bind.c: what is bound, and whose reading makes the endpoint's progress. */
int ivc_fi_ep_bind(struct fid *fid, struct fid *other, uint64_t flags);
int ivc_fi_ep_check_bound(const struct ivc_fi_ep *ep);
int ivc_fi_ep_attach(struct ivc_fi_ep *ep);
void ivc_fi_ep_detach(struct ivc_fi_ep *ep);
void ivc_fi_ep_unbind(struct ivc_fi_ep *ep);
/* stats.c: "rank 3 on host g1, endpoint ...", for lines that are to be joined with those of others. */
enum { IVC_FI_SELF_MAX = 160 };
void ivc_fi_describe_self(const struct ivc_fi_ep *ep, char *ret_text, size_t size);
/* A line for each peer when IVC_STATS asks for it; before the core's endpoint goes. */
void ivc_fi_stats_print(const struct ivc_fi_ep *ep);
/* The profile that IVC_STATS asks for instead: while the core's endpoint is there. */
void ivc_fi_profile_open(struct ivc_fi_ep *ep);
void ivc_fi_profile_close(struct ivc_fi_ep *ep);
extern struct fi_ops_cm ivc_fi_cm_ops;
extern struct fi_ops_collective ivc_fi_collective_ops;

/* ---------------------------------------------------------------- peers.c */

/* For the core: somebody whom we did not connect to; somebody is gone. */
void ivc_fi_peer_arrived(void *arg, struct ivc_peer *core);
void ivc_fi_peer_gone(void *arg, struct ivc_peer *core, const char *reason);
/* Says that a peer cannot be had, for the reason that is the core's error. */
void ivc_fi_ep_say_unreached(const struct ivc_fi_ep *ep);
/* The peer at an address, connected at the first call: 0 or -FI_E.... */
int ivc_fi_ep_connect(struct ivc_fi_ep *ep, fi_addr_t addr, struct ivc_fi_peer **ret_peer);
static inline int ivc_fi_ep_peer(struct ivc_fi_ep *ep, fi_addr_t addr,
                                 struct ivc_fi_peer **ret_peer)
{
    if (__builtin_expect(addr < ep->by_addr_size && ep->by_addr[addr], 1)) {
        *ret_peer = ep->by_addr[addr];
        return 0;
    }
    return ivc_fi_ep_connect(ep, addr, ret_peer);
}

/* A peer that wrote to us before has got its address; and an address was removed (`other`: the same
 * peer's, if it stands in the vector twice, else FI_ADDR_NOTAVAIL). */
void ivc_fi_ep_name_peer(struct ivc_fi_ep *ep, uint64_t id, fi_addr_t addr);
void ivc_fi_ep_forget_addr(struct ivc_fi_ep *ep, fi_addr_t addr, fi_addr_t other);

/* Moves everything of this endpoint. */
static inline void ivc_fi_ep_progress(struct ivc_fi_ep *ep)
{
    if (ep->mailbox)
        ivc_mailbox_progress(ep->mailbox);
}

/* ---------------------------------------------------------------- what travels */

/* Kinds of message: ivc_fi_header::kind. */
enum ivc_fi_kind {
    IVC_FI_KIND_MSG = 1, IVC_FI_KIND_TAGGED,        /* arrive.c */
    IVC_FI_KIND_ACK,                                /* answer.c: delivered; its error in data */
    IVC_FI_KIND_WRITE, IVC_FI_KIND_READ, IVC_FI_KIND_READ_REPLY,   /* rma.c */
    IVC_FI_KIND_ATOMIC, IVC_FI_KIND_ATOMIC_REPLY,   /* atomic.c */
    IVC_FI_KIND_REACH,                              /* reach.c */
    IVC_FI_KINDS,
};

enum {  /* ivc_fi_header::flags */
    IVC_FI_WITH_DATA = 1,       /* data is remote CQ data */
    IVC_FI_WANT_ACK = 2,        /* answer with IVC_FI_KIND_ACK and the op's id when delivered; the
                                   answer's `data` is 0 or a positive FI_E... */
    IVC_FI_WANT_REACH = 4,      /* answer with IVC_FI_KIND_REACH if the memory can be reached */
};

/* The header of every message; longer ones begin with it.  Little-endian; `len` is its length. */
struct ivc_fi_header {
    uint8_t len;
    uint8_t kind;
    uint16_t flags;
    uint32_t id;                /* of the sender's operation, or of the one that is answered */
    uint64_t tag;
    uint64_t data;
};
_Static_assert(sizeof(struct ivc_fi_header) == 24, "with 32 bytes of payload one slot of a ring");

/* How each kind is taken: on_start of the core's messages calls table[kind]; the header has been
 * checked to have at least `header_min` bytes.  Sets message->iov, ->later, ->arg.  What is in
 * message->arg must begin with a struct ivc_fi_sink, whose `done` is called when all is in place
 * (status 0 or IVC_E_GONE); NULL: nothing is called. */
typedef void ivc_fi_landed_fn(struct ivc_fi_ep *ep, struct ivc_message *message, int status);
struct ivc_fi_sink {
    ivc_fi_landed_fn *done;
};
struct ivc_fi_kind_ops {
    uint32_t header_min;
    void (*start)(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                  const struct ivc_fi_header *header);
};
extern const struct ivc_fi_kind_ops ivc_fi_receive_msg, ivc_fi_receive_tagged, ivc_fi_receive_ack,
    ivc_fi_receive_write, ivc_fi_receive_read, ivc_fi_receive_read_reply, ivc_fi_receive_atomic,
    ivc_fi_receive_atomic_reply, ivc_fi_receive_reach;

/* ---------------------------------------------------------------- send.c: operations under way */

/*
 * An operation that could not end in the call that began it.  It ends when `waits` reaches zero:
 * one for the core's on_sent, one for an answer (IVC_FI_WANT_ACK, a read's reply).
 */
struct ivc_fi_op {
    struct ivc_fi_sink sink;            /* for what lands by this operation: replies */
    struct ivc_fi_op *next;
    struct ivc_fi_ep *ep;
    struct ivc_fi_peer *peer;
    void *context;
    uint64_t flags;                     /* of the completion: FI_SEND | FI_MSG, ... */
    uint32_t id;                        /* index and a count of uses: late answers meet no other */
    uint8_t waits;
    bool answer_due;                    /* one of the waits is an answer of the peer */
    bool report;                        /* a completion is to be written when it went well */
    enum ivc_fi_count count;
    int status;                         /* the first error, -FI_E... */
    size_t len;
    void *staging;                      /* freed at the end */
    size_t staged;                      /* of them injected bytes */
    struct iovec iov[IVC_FI_IOV_MAX];   /* where a reply lands */
    unsigned n_iov;
};

/* -FI_EAGAIN: too many are under way. */
int ivc_fi_op_get(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_fi_op **ret_op);
void ivc_fi_op_put(struct ivc_fi_op *op);           /* without a completion: it was never begun */
struct ivc_fi_op *ivc_fi_op_find(struct ivc_fi_ep *ep, const struct ivc_fi_peer *from, uint32_t id);
void ivc_fi_op_done(struct ivc_fi_op *op, int status);  /* one wait less; the last one completes */
/* For ivc_mailbox_send(): on_sent with the operation as argument. */
void ivc_fi_op_sent(void *op, int status);

/* Completes what ended within its call: counter, and completion when `report`. */
void ivc_fi_complete(struct ivc_fi_ep *ep, void *context, uint64_t flags, enum ivc_fi_count count,
                     bool report);

/* Whether an operation with these flags (FI_COMPLETION, ...: the call's, or the endpoint's op_flags
 * for a call without) is to be reported on the transmit queue. */
static inline bool ivc_fi_report_tx(const struct ivc_fi_ep *ep, uint64_t flags)
{
    return ep->tx_cq && (!ep->tx_selective || (flags & FI_COMPLETION));
}

/*
 * A send of either kind (msg.c, tagged.c).  `flags`: FI_COMPLETION, FI_INJECT, FI_REMOTE_CQ_DATA,
 * FI_DELIVERY_COMPLETE, ...  of this call.  IVC_FI_QUIET: fi_inject(), no completion.
 */
#define IVC_FI_QUIET (1ull << 63)
struct ivc_fi_send {
    enum ivc_fi_kind kind;
    const struct iovec *iov;
    unsigned n_iov;
    fi_addr_t to;
    uint64_t tag, data, flags;
    void *context;
};
ssize_t ivc_fi_send(struct ivc_fi_ep *ep, const struct ivc_fi_send *send);

/* Sends a message of ours that nobody waits for (an acknowledgement): header and payload are copied
 * when it cannot go at once. */
void ivc_fi_answer(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                   const struct ivc_fi_header *header, const void *payload, size_t len);
/* Whether an answer that was tried, and got this answer of the core's, is to be sent by ivc_mailbox_answer(). */
bool ivc_fi_answer_waits(int core_answer);
/* Those that wait for room: when an endpoint is closed, after its mailbox was. */
void ivc_fi_answers_free(struct ivc_fi_ep *ep);

/* Ends every operation to that peer with an error; ep.c calls it when a peer is gone. */
void ivc_fi_send_peer_gone(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer);
/* Whether bytes of an inject call, which nobody else has any more, have not left yet. */
bool ivc_fi_send_owes(const struct ivc_fi_ep *ep);
/* Make and unmake what send.c keeps in an endpoint. */
int ivc_fi_send_init(struct ivc_fi_ep *ep);
void ivc_fi_send_free(struct ivc_fi_ep *ep);

/* ---------------------------------------------------------------- receive.c, arrive.c, match.c */

/* A receive of either kind.  FI_PEEK, FI_CLAIM, FI_DISCARD, FI_MULTI_RECV as flags. */
struct ivc_fi_recv {
    enum ivc_fi_kind kind;
    const struct iovec *iov;
    unsigned n_iov;
    fi_addr_t from;                     /* FI_ADDR_UNSPEC: anyone; counts with FI_DIRECTED_RECV */
    uint64_t tag, ignore, flags;
    void *context;
};
ssize_t ivc_fi_recv(struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv);
/* fi_cancel(): FI_ECANCELED on the queue if a posted receive has that context; -FI_ENOENT else. */
ssize_t ivc_fi_recv_cancel(struct ivc_fi_ep *ep, void *context);
/* Directed receives from that peer end with an error (after what it sent has been matched). */
void ivc_fi_recv_peer_gone(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer);
/* A peer that had sent before it was in the address vector has got its fi_addr_t. */
void ivc_fi_recv_peer_named(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer);
int ivc_fi_recv_init(struct ivc_fi_ep *ep);
void ivc_fi_recv_free(struct ivc_fi_ep *ep);

extern struct fi_ops_msg ivc_fi_msg_ops;
extern struct fi_ops_tagged ivc_fi_tagged_ops;

/* ---------------------------------------------------------------- mr.c, rma.c, atomic.c, ... */

struct ivc_fi_mr {
    struct fid_mr fid;
    struct ivc_fi_domain *domain;
    uint64_t access;
    struct iovec iov[IVC_FI_IOV_MAX];
    unsigned n_iov;
    uint64_t len;
    uint64_t base;                      /* a remote address counts from: 0, or FI_MR_VIRT_ADDR's */
    struct ivc_fi_cntr *cntr;           /* bound for remote writes */
    struct ivc_fi_ep *ep;               /* FI_MR_ENDPOINT: bound to it */
    bool enabled, closed;               /* closed: fi_close() was called; nothing new is taken */
    struct ivc_fi_landing *holds;       /* requests under way in its memory: fi_close() waits */
    struct ivc_fi_reach_told *told;     /* reach.c: where others know it to be */
};
extern struct fi_ops_mr ivc_fi_mr_ops;
/* 0 and the local memory of [addr, addr + len) under that key, if it may be accessed so
 * (FI_REMOTE_READ, ...); -FI_EACCES, -FI_EKEYREJECTED, -FI_EINVAL. */
int ivc_fi_mr_resolve(struct ivc_fi_domain *domain, uint64_t key, uint64_t addr, uint64_t len,
                      uint64_t access, struct iovec *ret_iov, unsigned *ret_n_iov,
                      struct ivc_fi_mr **ret_mr);
/* Frees the table when a domain is closed. */
void ivc_fi_mr_free_all(struct ivc_fi_domain *domain);
/* fi_control(FI_MAP_RAW_MR) of the domain. */
int ivc_fi_mr_map_raw(struct fi_mr_map_raw *map);

extern struct fi_ops_rma ivc_fi_rma_ops;
extern struct fi_ops_atomic ivc_fi_atomic_ops;
/* fi_query_atomic() of the domain. */
int ivc_fi_query_atomic(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op,
                        struct fi_atomic_attr *attr, uint64_t flags);
void ivc_fi_reach_peer_gone(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer);
/* When an endpoint is closed: before its core endpoint is; and after that (target.c). */
void ivc_fi_reach_free(struct ivc_fi_ep *ep);
void ivc_fi_target_free(struct ivc_fi_ep *ep);

#endif
