/* What cq.c (putting and reading) and cq-wait.c (blocking) share. */
#ifndef IVC_LIBFABRIC_CQ_H
#define IVC_LIBFABRIC_CQ_H

#include "internal.h"

enum {
    IVC_FI_CQ_SKIP_MAX = 8,     /* reads that are served from the ring between two with progress */
};

struct ivc_fi_cq_error {
    struct ivc_fi_cq_error *next;
    uint32_t position;      /* tail of the ring when it came */
    struct fi_cq_err_entry entry;
};

static inline struct ivc_fi_cq *ivc_fi_cq_of(struct fid_cq *fid)
{
    return container_of(fid, struct ivc_fi_cq, fid);
}

static inline uint32_t ivc_fi_cq_readable(const struct ivc_fi_cq *cq)
{
    return (__builtin_expect(cq->errors != NULL, 0) ? cq->errors->position : cq->tail) - cq->head;
}

/* A read would answer something else than -FI_EAGAIN. */
static inline bool ivc_fi_cq_has_something(const struct ivc_fi_cq *cq)
{
    return cq->errors || cq->overrun || ivc_fi_cq_readable(cq) > 0;
}

/* What the ring holds already is handed out first, but who reads one at a time must not keep his
 * peers waiting for ever. */
static inline void ivc_fi_cq_progress(struct ivc_fi_cq *cq, size_t count)
{
    if (count > 0 && ivc_fi_cq_readable(cq) >= count && cq->skipped++ < IVC_FI_CQ_SKIP_MAX)
        return;
    cq->skipped = 0;
    for (uint32_t i = 0; i < cq->n_eps; i++)
        ivc_fi_ep_progress(cq->eps[i]);
}

static inline bool ivc_fi_cq_has_room(const struct ivc_fi_cq *cq)
{
    return cq->tail - cq->head < cq->size;
}

/* The slot of the completion to come, for which there is room. */
static inline struct ivc_fi_cq_slot *ivc_fi_cq_next(struct ivc_fi_cq *cq)
{
    return &cq->slots[cq->tail & (cq->size - 1)];
}

/* It is filled in. */
static inline void ivc_fi_cq_put_next(struct ivc_fi_cq *cq)
{
    cq->tail++;
    if (__builtin_expect(cq->wait.armed, 0))
        ivc_fi_wait_ring(&cq->wait);
}

/* Locked, after progress. */
ssize_t ivc_fi_cq_take(struct ivc_fi_cq *cq, void *buf, size_t count, fi_addr_t *sources);

/* dwell.c: after a read in vain, by one who waits by reading; there may be something then. */
void ivc_fi_cq_dwell(struct ivc_fi_cq *cq);

/* cq-wait.c: of the table of calls. */
ssize_t ivc_fi_cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *sources,
                            const void *cond, int timeout);
ssize_t ivc_fi_cq_sread(struct fid_cq *fid, void *buf, size_t count, const void *cond, int timeout);
int ivc_fi_cq_signal(struct fid_cq *fid);

#endif
