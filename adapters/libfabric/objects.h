/*
 * The objects that endpoints are bound to: fabric, domain, event queue, address vector, completion
 * queue, counter; what they sleep on; and the answers for calls that an object does not serve.
 * Part of internal.h, which says what holds for all.
 */
#ifndef IVC_LIBFABRIC_OBJECTS_H
#define IVC_LIBFABRIC_OBJECTS_H

#include "internal.h"

/* ---------------------------------------------------------------- fabric.c, domain.c, eq.c */

struct ivc_fi_fabric {
    struct fid_fabric fid;
    ivc_atomic_u32 users;               /* domains, event queues, wait sets: close is -FI_EBUSY */
};
int ivc_fi_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **ret_fabric, void *context);
int ivc_fi_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **ret_eq,
                   void *context);
/* Puts an event for asynchronous calls (FI_EVENT): fi_av_insert, fi_mr_reg. */
int ivc_fi_eq_put(struct fid_eq *eq, uint32_t event, const struct fi_eq_entry *entry, int error);
/* One user more or less (+1, -1): closing a queue in use is -FI_EBUSY. */
void ivc_fi_eq_use(struct fid_eq *eq, int change);

struct ivc_fi_mr;
struct ivc_fi_ep;

struct ivc_fi_domain {
    struct fid_domain fid;
    struct ivc_fi_fabric *fabric;
    uint32_t users;                     /* under the lock */
    bool locked;                        /* FI_THREAD_SAFE and the like: calls come from anywhere */
    bool rests;                         /* whoever reads in vain waits: sleep in between (wait.c) */
    pthread_mutex_t lock;
    enum fi_av_type av_type;            /* FI_AV_UNSPEC: whatever is opened */
    int mr_mode;                        /* the FI_MR_... bits that the application agreed to */
    struct ivc_fi_mr **mrs;             /* mr.c: open-addressed table by key */
    uint32_t n_mrs, mrs_size;
    uint64_t next_key;
    struct fid_eq *mr_eq;               /* bound for FI_EVENT */
    struct ivc_fi_ep **eps;             /* enabled ones */
    uint32_t n_eps;
    struct ivc_fi_cntr *wide;           /* by next_wide: counters that drive all of them */
};
int ivc_fi_domain_open(struct fid_fabric *fabric, struct fi_info *info,
                       struct fid_domain **ret_domain, void *context);

static inline void ivc_fi_lock(struct ivc_fi_domain *domain)
{
    if (domain->locked)
        pthread_mutex_lock(&domain->lock);
}

static inline void ivc_fi_unlock(struct ivc_fi_domain *domain)
{
    if (domain->locked)
        pthread_mutex_unlock(&domain->lock);
}

/* ---------------------------------------------------------------- av.c */

/* An address vector: fi_addr_t is an index for both types (a map's handle may be any number). */
struct ivc_fi_av {
    struct fid_av fid;
    struct ivc_fi_domain *domain;
    uint32_t users;                     /* endpoints bound */
    struct ivc_address *addresses;      /* len 0: free or invalid */
    uint32_t n_addresses, size;
    uint32_t n_free;                    /* removed ones among n_addresses */
    /* a hash from ivc_address_id() to index, av.c's */
    uint32_t *buckets;
    uint32_t n_buckets;
    struct ivc_fi_ep *eps;              /* bound ones, by next_of_av */
    struct fid_eq *eq;
    bool async;                         /* FI_EVENT */
};
int ivc_fi_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **ret_av,
                   void *context);
/* FI_ADDR_NOTAVAIL when there is none. */
fi_addr_t ivc_fi_av_find(const struct ivc_fi_av *av, uint64_t address_id);

/* ---------------------------------------------------------------- wait.c, cq.c, cntr.c */

/* What a queue or a counter sleeps on: an epoll set of its endpoints' descriptors and a wake-up. */
struct ivc_fi_wait {
    int epoll;                          /* -1: none was asked for */
    int wake;                           /* eventfd: fi_cq_signal, what other threads have put */
    enum fi_wait_obj object;
    bool armed;                         /* somebody sleeps, or may: what is put must ring */
};
int ivc_fi_wait_open(struct ivc_fi_wait *wait, enum fi_wait_obj object);
void ivc_fi_wait_close(struct ivc_fi_wait *wait);
int ivc_fi_wait_add(struct ivc_fi_wait *wait, struct ivc_fi_ep *ep);
void ivc_fi_wait_remove(struct ivc_fi_wait *wait, struct ivc_fi_ep *ep);
/* 0: the descriptor becomes readable when there is something to do; 1: there is now. */
int ivc_fi_wait_arm(struct ivc_fi_wait *wait, struct ivc_fi_ep **eps, uint32_t n_eps);
/* Without the lock: sleeps until then, at most `timeout_ms` (-1: no limit). */
int ivc_fi_wait_sleep(struct ivc_fi_wait *wait, int timeout_ms);
void ivc_fi_wait_ring(struct ivc_fi_wait *wait);
/* Whether a launcher of MPI programs has started this process: MPI libraries wait by reading queues in vain. */
bool ivc_fi_is_mpi(void);
/* After a read by such a one: sleeps, when it found nothing and that is due (ivc_endpoint_rest()). */
void ivc_fi_rest(struct ivc_fi_ep *const *eps, uint32_t n_eps, bool found);
extern ivc_atomic_u32 ivc_fi_eps_open;      /* dispatch.c: in this process */
/* fi_control(FI_GETWAIT, FI_GETWAITOBJ). */
int ivc_fi_wait_control(struct ivc_fi_wait *wait, int command, void *arg);

/* The endpoints whose progress reading a queue or a counter makes: each once. */
int ivc_fi_eps_add(struct ivc_fi_ep ***eps, uint32_t *n_eps, struct ivc_fi_ep *ep);
bool ivc_fi_eps_remove(struct ivc_fi_ep **eps, uint32_t *n_eps, struct ivc_fi_ep *ep);

/* dwell.c: what is known of how a queue's reader waits. */
struct ivc_fi_dwell {
    uint32_t vain;                      /* reads in a row that found nothing */
    uint32_t waits;                     /* such rows */
    uint64_t left_ns;                   /* when the first read of this one ended; 0: was not looked at */
    uint64_t away_ns;                   /* how long the caller stays away between two; 0: not worth it */
};

struct ivc_fi_cq {
    struct fid_cq fid;
    struct ivc_fi_domain *domain;
    uint32_t users;
    enum fi_cq_format format;
    struct ivc_fi_cq_slot *slots;       /* a ring, which grows when it is full */
    uint32_t size, head, tail;          /* indices that only grow; size a power of two */
    struct ivc_fi_cq_error *errors, **errors_end;
    struct ivc_fi_ep **eps;             /* whose progress a read makes */
    uint32_t n_eps;
    uint32_t skipped;                   /* reads in a row that made no progress */
    bool overrun;                       /* no memory for a completion: it is lost */
    struct ivc_fi_dwell dwell;
    struct ivc_fi_wait wait;
    bool threshold;                     /* FI_CQ_COND_THRESHOLD */
    bool signalled;
};
/* What a slot keeps, whatever the format. */
struct ivc_fi_cq_slot {
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
};
int ivc_fi_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **ret_cq,
                   void *context);
/* Report a completion.  `source`: FI_ADDR_NOTAVAIL when there is none.  Out of memory is remembered
 * and reported as an overrun. */
void ivc_fi_cq_put(struct ivc_fi_cq *cq, const struct fi_cq_tagged_entry *entry, fi_addr_t source);
/* Report an error: err positive FI_E..., olen for truncation; the rest as for a completion. */
void ivc_fi_cq_put_error(struct ivc_fi_cq *cq, const struct fi_cq_err_entry *error);
/* Registers an endpoint as one whose progress a read of this queue makes; and back. */
int ivc_fi_cq_add_ep(struct ivc_fi_cq *cq, struct ivc_fi_ep *ep);
void ivc_fi_cq_remove_ep(struct ivc_fi_cq *cq, struct ivc_fi_ep *ep);

struct ivc_fi_cntr {
    struct fid_cntr fid;
    struct ivc_fi_domain *domain;
    uint32_t users;
    ivc_atomic_u64 value, errors;
    uint64_t seen;                      /* by the last read: for poll sets */
    struct ivc_fi_ep **eps;             /* whose progress a read makes */
    uint32_t n_eps;
    bool wide;                          /* it counts what may come by any endpoint of the domain */
    struct ivc_fi_cntr *next_wide;
    struct ivc_fi_wait wait;
};
int ivc_fi_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr,
                     struct fid_cntr **ret_cntr, void *context);
void ivc_fi_cntr_bump(struct ivc_fi_cntr *cntr, bool error);    /* accepts NULL */
int ivc_fi_cntr_add_ep(struct ivc_fi_cntr *cntr, struct ivc_fi_ep *ep);
void ivc_fi_cntr_remove_ep(struct ivc_fi_cntr *cntr, struct ivc_fi_ep *ep);
/* A counter of a registration: reading it makes the progress of every endpoint, also of those that
 * are enabled later. */
int ivc_fi_cntr_widen(struct ivc_fi_cntr *cntr);

/* fi_trywait() of the fabric's table, and what it asks of each object: -FI_EAGAIN, there is
 * something to read. */
int ivc_fi_trywait(struct fid_fabric *fabric, struct fid **fids, int count);
int ivc_fi_cq_trywait(struct fid_cq *cq);
int ivc_fi_cntr_trywait(struct fid_cntr *cntr);
int ivc_fi_eq_trywait(struct fid_eq *eq);
/* fi_poll_open(): wait.c as well. */
int ivc_fi_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr,
                     struct fid_poll **ret_poll);
bool ivc_fi_cq_is_ready(struct fid_cq *cq);         /* makes progress */
bool ivc_fi_cntr_is_ready(struct fid_cntr *cntr);   /* the same: has it moved since it was read? */

/* For every table of calls: what an object does not have. */
int ivc_fi_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int ivc_fi_no_control(struct fid *fid, int command, void *arg);
int ivc_fi_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops,
                       void *context);
int ivc_fi_no_tostr(const struct fid *fid, char *text, size_t len);
int ivc_fi_no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context);
/* strerror of queues. */
const char *ivc_fi_strerror(int error, char *text, size_t len);

#endif
