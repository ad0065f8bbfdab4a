/*
 * Network: what its files share.  See network.h for what it is.
 *
 * Who may touch what: `lock` (taken only when there are several threads) guards the pools, the
 * counters of routes and their states.  The lists of unposted buffers, waiting pulls and probes
 * belong to progress, which runs one at a time.  The lock is never held during a callback or while
 * libfabric is called to move data.
 */
#ifndef IVC_NETWORK_INTERNAL_H
#define IVC_NETWORK_INTERNAL_H

#include "base/error.h"
#include "base/ip.h"
#include "base/util.h"
#include "network/network.h"
#include "network/provider.h"

#include <errno.h>
#include <pthread.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>

enum {
    IVC_NETWORK_ALIGN = 16,         /* of what a handler sees */
    IVC_NETWORK_RECEIVES = 64,      /* buffers posted: 2 MiB when a packet is 32 KiB */
    IVC_NETWORK_SMALL = 4096,       /* bytes of a small buffer */
    IVC_NETWORK_SLAB = 16,          /* buffers that are allocated together */
    /* Buffers there can be: 4 and 8 MiB.  One route gets an eighth, so that a peer that does not
     * take anything leaves room for the others. */
    IVC_NETWORK_SMALL_MAX = 1024,
    IVC_NETWORK_LARGE_MAX = 256,
    IVC_NETWORK_ROUTE_MAX = 32,
    /* Packets that are sent without a buffer: every so many one is asked to report, and so many
     * reports may be awaited.  A provider would take them without end for a peer that sleeps. */
    IVC_NETWORK_MARK_EVERY = 32,
    IVC_NETWORK_MARKS_MAX = 4,
};

/* How far the provider is opened. */
enum ivc_stage {
    IVC_STAGE_NAMED,    /* not at all */
    IVC_STAGE_LOADED,
    IVC_STAGE_BOUND,    /* to an address: it can be used */
};

enum { IVC_FABRIC_NAME_MAX = 128 };     /* the longest that fi_getname() may give */

enum ivc_op_kind { IVC_OP_RECEIVE, IVC_OP_SEND, IVC_OP_MARK, IVC_OP_PULL };

/* What libfabric hands back: the first member of everything that is posted. */
struct ivc_op {
    struct fi_context2 context;     /* the provider's, if it asks for it */
    enum ivc_op_kind kind;
};

/* A buffer to send from; or to receive into, when `op.kind` says so. */
struct ivc_network_buffer {
    struct ivc_op op;
    bool small;
    struct ivc_route *route;        /* under way to */
    struct ivc_network_buffer *next;
    uint32_t len;                   /* received */
    bool ended;
    void *desc;
    _Alignas(IVC_LINE) uint8_t data[];
};

struct ivc_slab {
    struct ivc_slab *next;
    struct fid_mr *mr;
    uint8_t *memory;
};

struct ivc_buffers {
    size_t size;                    /* of data */
    unsigned n, n_max;
    struct ivc_network_buffer *free;
};

/* One fi_read: as many pieces of a pull as the provider takes at once. */
struct ivc_part {
    struct ivc_op op;
    struct ivc_pull *pull;
    unsigned first_iov, n_iov;
    uint64_t where;
    size_t len;
};

struct ivc_pull {
    struct ivc_route *route;
    ivc_network_pulled_fn *fn;
    void *arg;
    int status;
    unsigned n_parts, issued, ended;
    struct ivc_pull *next, **link;  /* of its route's, or of those abandoned */
    struct ivc_pull *next_waiting;  /* of those that the provider has not taken in full */
    bool abandoned;
    uint64_t key;
    unsigned n_iov;
    struct iovec *iov;
    void **descs;
    struct fid_mr **local;          /* registrations of iov, where the provider wants them */
    struct ivc_part *parts;
};

enum ivc_route_state {
    IVC_ROUTE_UP,
    IVC_ROUTE_UNUSED,   /* nobody has asked its contact yet */
    IVC_ROUTE_SEEKING,  /* it has not answered yet */
    IVC_ROUTE_FAILING,  /* the reason is known; what is under way comes back first */
    IVC_ROUTE_DOWN,     /* on_down was called */
};

struct ivc_route {
    struct ivc_op mark;
    _Atomic(enum ivc_route_state) state;
    fi_addr_t address;
    void *arg;
    unsigned sends, marks, unmarked;    /* under way; packets since the last mark */
    struct ivc_pull *pulls;
    unsigned n_pulls;
    struct ivc_route *next;             /* of all there ever were, see route.c */
    struct ivc_route *next_failing;
    uint64_t failing_since;
    char reason[400];

    uint64_t id;                        /* who is meant, and where its contact is */
    struct ivc_network_name name;
    bool freed;                         /* its owner does not want to hear of it any more */

    /* Signs of life (alive.c).  Times are those of ivc_alive_now(). */
    _Atomic bool used;                  /* something was sent, or somebody waits for it */
    _Atomic bool heard;                 /* something came from it since the last tick */
    uint64_t sent, ended;               /* posted and reported, to see whether anything moves */
    _Atomic uint64_t refused_since;     /* 0: the provider takes what it is given */
    uint64_t sent_seen, ended_seen;     /* from here on: of progress */
    uint64_t quiet_since, still_since;
    bool stuck, probing;
    uint64_t probe_at, probe_interval, silent_since;
    uint8_t peer_name[IVC_FABRIC_NAME_MAX];
};

/* A question whether the other end still exists (alive.c). */
struct ivc_probe {
    struct ivc_route *route;    /* NULL: not in use */
    int fd;
    bool host;                  /* is the host there at all? */
    uint64_t since;             /* asked in this way */
};
enum { IVC_NETWORK_PROBES = 32 };

struct ivc_network {
    struct ivc_libfabric libfabric;
    struct ivc_provider provider;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct ivc_contact *contact;
    _Atomic(enum ivc_stage) stage;  /* all of the provider's is visible to who acquires it as BOUND */
    int wait_fd, news_fd;       /* an epoll of `news_fd` (a route is settled) and the provider's */
    _Atomic bool blind;         /* the provider has none */
    bool threads, local_mr, endpoint_mr, virtual_addresses;
    size_t packet_max;
    _Atomic size_t inject_max, iov_max;     /* relaxed: senders read them before the lock */
    ivc_network_packet_fn *on_packet;
    ivc_network_down_fn *on_down;
    void *arg;
    struct ivc_network_name name;
    char wanted[64];            /* the provider's name; "": the default */
    uint32_t fabric_hash, fabric_len;
    uint8_t fabric_name[IVC_FABRIC_NAME_MAX];
    char description[512];
    _Atomic bool failed;        /* it could not be loaded or bound, and that is the description */

    pthread_mutex_t lock;
    struct ivc_buffers small, large;
    struct ivc_slab *slabs;
    struct ivc_route *routes;
    struct ivc_route *_Atomic failing;
    _Atomic uint64_t next_key;
    struct ivc_pull *waiting, **waiting_end;
    _Atomic unsigned n_waiting;
    struct ivc_pull *abandoned;     /* their callers know, the provider has not let go */

    /* Of progress. */
    struct ivc_network_buffer *unposted;
    /* A provider may keep the order in which packets take up buffers and yet report a long one
     * after a short one that came later.  Then they are delivered in the order of posting. */
    bool reports_in_order;
    struct ivc_network_buffer *posted, **posted_end;
    unsigned calls;             /* since the clock was looked at ... */
    uint64_t looked_at;         /* ... at this ivc_cycles() */
    uint64_t ticked_at;         /* ivc_alive_now() */
    _Atomic uint64_t unseen_ms; /* time that does not count, because nobody called progress */
    _Atomic bool tick_due;
    _Atomic uint64_t tick_at;
    uint64_t timeout_ms;        /* IVC_NETWORK_TIMEOUT; 0: never give up */
    bool ip;                    /* addresses are of IP ... */
    bool of_tcp;                /* ... and of listening TCP sockets */
    struct ivc_probe probes[IVC_NETWORK_PROBES];
    bool draining;              /* the last wait: what arrives is dropped */
};

/* libfabric's text of a positive FI_E...; ours where it is a limit of this process. */
static inline const char *ivc_network_strerror(const struct ivc_network *network, int error)
{
    return error == EMFILE || error == ENFILE ? ivc_error_of(error) : network->libfabric.strerror(error);
}

static inline void ivc_network_lock(struct ivc_network *network)
{
    if (network->threads)
        pthread_mutex_lock(&network->lock);
}

static inline void ivc_network_unlock(struct ivc_network *network)
{
    if (network->threads)
        pthread_mutex_unlock(&network->lock);
}

static inline enum ivc_route_state ivc_route_state(struct ivc_route *route)
{
    /* Relaxed: it only says which answer to give; what belongs to a state is under the lock. */
    return atomic_load_explicit(&route->state, memory_order_relaxed);
}

/* Acquire: pairs with the release in ivc_network_bind(); the provider's objects are visible. */
static inline bool ivc_network_is_bound(const struct ivc_network *network)
{
    return atomic_load_explicit(&network->stage, memory_order_acquire) == IVC_STAGE_BOUND;
}

/* route.c.  Under the lock: the answer for a route that is not up; an unused one's contact is asked. */
int ivc_route_refuse(struct ivc_network *network, struct ivc_route *route);

/* Under the lock: whether something may go that way: 0, or as ivc_network_send(). Of one that fails only on_down tells whether there is
 * another. */
static inline int ivc_route_check(struct ivc_network *network, struct ivc_route *route)
{
    return __builtin_expect(ivc_route_state(route) == IVC_ROUTE_UP, 1) ? 0 : ivc_route_refuse(network, route);
}

/* network.c: whoever opens the network, then the contact's thread. */
/* Finds the provider. */
int ivc_network_load(struct ivc_network *network);
/* Opens it, at that address of ours.  0 when it was open before. */
int ivc_network_bind(struct ivc_network *network, const union ivc_ip *source);

/* contact.c */
/* Listens, and makes our name. */
int ivc_contact_open(struct ivc_network *network, uint64_t id);
int ivc_contact_start(struct ivc_network *network);
/* The thread loads the provider. */
void ivc_contact_load(struct ivc_network *network);
void ivc_contact_free(struct ivc_network *network);
/* The route's contact is asked from now on. */
int ivc_contact_seek(struct ivc_network *network, struct ivc_route *route);
/* Progress: routes whose contact has answered; and, when nothing has come, those whose contact does not: who
 * has left cannot be asked any more, and what it sent before is taken first. */
void ivc_contact_settle(struct ivc_network *network, bool nothing_came);
bool ivc_contact_has_news(const struct ivc_network *network);

/* buffer.c */
void ivc_buffers_init(struct ivc_network *network);
int ivc_buffers_get(struct ivc_network *network, struct ivc_buffers *buffers,
                    struct ivc_network_buffer **ret_buffer);    /* under the lock */
int ivc_buffers_post_receives(struct ivc_network *network);
void ivc_buffer_post_receive(struct ivc_network *network, struct ivc_network_buffer *buffer);
void ivc_buffers_free(struct ivc_network *network);

/* route.c */
#define IVC_NETWORK_ANOTHER "network: the peer uses another provider, or another version of it, than ours (%s): set " \
                            "IVC_NETWORK to the same"
/* Progress: packets can go there, to what fi_getname() gave at the other end. */
void ivc_route_begin(struct ivc_network *network, struct ivc_route *route, const void *name, size_t len);
/* The route cannot be used any more: on_down follows, from progress. */
__attribute__((format(printf, 3, 4)))
void ivc_route_fail(struct ivc_network *network, struct ivc_route *route, const char *format, ...);
/* Calls on_down for those that failed and have nothing under way any more. */
void ivc_routes_settle(struct ivc_network *network);
void ivc_routes_free(struct ivc_network *network);
/* What a negative answer of the provider to a post means. */
int ivc_route_answer(struct ivc_network *network, struct ivc_route *route, ssize_t r);

/* send.c */
void ivc_send_ended(struct ivc_network *network, struct ivc_network_buffer *buffer);
void ivc_mark_ended(struct ivc_network *network, struct ivc_route *route);
/* A packet without content, which receivers pass over.  Answers as ivc_network_send(). */
int ivc_send_nothing(struct ivc_network *network, struct ivc_route *route, uint64_t flags);

/* pull.c */
int ivc_pull_ended(struct ivc_network *network, struct ivc_part *part, int status);
void ivc_pulls_push(struct ivc_network *network);
/* Tells the callers of all that is under way on the route; libfabric may still hold its parts. */
void ivc_pulls_abandon(struct ivc_network *network, struct ivc_route *route);
/* Whatever is left, when the endpoint is closed. */
void ivc_pulls_free(struct ivc_network *network);

/* alive.c */
int ivc_alive_init(struct ivc_network *network);
/* Milliseconds in which somebody called progress; never 0. */
uint64_t ivc_alive_now(struct ivc_network *network);
void ivc_alive_tick(struct ivc_network *network);
void ivc_alive_free(struct ivc_network *network);

#endif
