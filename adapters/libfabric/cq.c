/*
 * Completion queues: a ring of completions, a list of errors between them, and the progress that
 * reading makes.
 *
 * Invariant: an error is read before the completions that came after it, and blocks them until then
 * (-FI_EAVAIL).  Nothing is ever lost for want of room: the ring grows.
 */
#include "cq.h"

#include <string.h>

enum { FIRST_SIZE = 256 };

/* ---------------------------------------------------------------- putting */

static bool grow(struct ivc_fi_cq *cq)
{
    struct ivc_fi_cq_slot *slots = malloc(2 * (size_t)cq->size * sizeof *slots);

    if (!slots)
        return false;
    for (uint32_t i = cq->head; i != cq->tail; i++)
        slots[i & (2 * cq->size - 1)] = cq->slots[i & (cq->size - 1)];
    free(cq->slots);
    cq->slots = slots;
    cq->size *= 2;
    return true;
}

void ivc_fi_cq_put(struct ivc_fi_cq *cq, const struct fi_cq_tagged_entry *entry, fi_addr_t source)
{
    struct ivc_fi_cq_slot *slot;

    if (__builtin_expect(!ivc_fi_cq_has_room(cq), 0) && !grow(cq)) {
        cq->overrun = true;
        return;
    }
    slot = ivc_fi_cq_next(cq);
    slot->entry = *entry;
    slot->source = source;
    ivc_fi_cq_put_next(cq);
}

void ivc_fi_cq_put_error(struct ivc_fi_cq *cq, const struct fi_cq_err_entry *entry)
{
    struct ivc_fi_cq_error *error = malloc(sizeof *error);

    if (!error) {
        cq->overrun = true;
        return;
    }
    *error = (struct ivc_fi_cq_error){ .position = cq->tail, .entry = *entry };
    *cq->errors_end = error;
    cq->errors_end = &error->next;
    if (cq->wait.armed)
        ivc_fi_wait_ring(&cq->wait);
}

int ivc_fi_cq_add_ep(struct ivc_fi_cq *cq, struct ivc_fi_ep *ep)
{
    int r = ivc_fi_wait_add(&cq->wait, ep);

    return r != 0 ? r : ivc_fi_eps_add(&cq->eps, &cq->n_eps, ep);
}

void ivc_fi_cq_remove_ep(struct ivc_fi_cq *cq, struct ivc_fi_ep *ep)
{
    if (ivc_fi_eps_remove(cq->eps, &cq->n_eps, ep))
        ivc_fi_wait_remove(&cq->wait, ep);
}

/* ---------------------------------------------------------------- reading */

#define COPY_ENTRIES(type, ...)                                                 \
    do {                                                                        \
        type *to = buf;                                                         \
                                                                                \
        for (uint32_t i = 0; i < n; i++) {                                      \
            const struct fi_cq_tagged_entry *from =                             \
                &cq->slots[(cq->head + i) & (cq->size - 1)].entry;              \
                                                                                \
            to[i] = (type){ __VA_ARGS__ };                                      \
        }                                                                       \
    } while (0)

static void copy_entries(const struct ivc_fi_cq *cq, void *buf, uint32_t n)
{
    switch (cq->format) {
    case FI_CQ_FORMAT_TAGGED:
        COPY_ENTRIES(struct fi_cq_tagged_entry, from->op_context, from->flags, from->len, from->buf,
                     from->data, from->tag);
        break;
    case FI_CQ_FORMAT_DATA:
        COPY_ENTRIES(struct fi_cq_data_entry, from->op_context, from->flags, from->len, from->buf,
                     from->data);
        break;
    case FI_CQ_FORMAT_MSG:
        COPY_ENTRIES(struct fi_cq_msg_entry, from->op_context, from->flags, from->len);
        break;
    default:
        COPY_ENTRIES(struct fi_cq_entry, from->op_context);
        break;
    }
}

static ssize_t nothing(const struct ivc_fi_cq *cq)
{
    if (cq->errors)
        return -FI_EAVAIL;
    return cq->overrun ? -FI_EOVERRUN : -FI_EAGAIN;
}

ssize_t ivc_fi_cq_take(struct ivc_fi_cq *cq, void *buf, size_t count, fi_addr_t *sources)
{
    uint32_t n = ivc_fi_cq_readable(cq);

    if (n == 0)
        return nothing(cq);
    if (n > count)
        n = (uint32_t)count;
    copy_entries(cq, buf, n);
    for (uint32_t i = 0; sources && i < n; i++)
        sources[i] = cq->slots[(cq->head + i) & (cq->size - 1)].source;
    cq->head += n;
    if (cq->head == cq->tail && !cq->errors)
        cq->head = cq->tail = 0;        /* the same lines again: they are in the nearest cache */
    return (ssize_t)n;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *sources)
{
    struct ivc_fi_cq *cq = ivc_fi_cq_of(fid);
    ssize_t n;

    ivc_fi_lock(cq->domain);
    ivc_fi_cq_progress(cq, count);
    n = ivc_fi_cq_take(cq, buf, count, sources);
    if (cq->domain->rests && n == -FI_EAGAIN) {
        ivc_fi_cq_dwell(cq);
        n = ivc_fi_cq_take(cq, buf, count, sources);
    }
    if (n != -FI_EAGAIN)
        cq->dwell.vain = 0;
    ivc_fi_unlock(cq->domain);
    if (cq->domain->rests)
        ivc_fi_rest(cq->eps, cq->n_eps, n != -FI_EAGAIN);
    return n;
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
    return cq_readfrom(fid, buf, count, NULL);
}

/* No error of ours has data.  Applications of before 1.5 have no field for its size. */
static void copy_error(const struct ivc_fi_cq *cq, struct fi_cq_err_entry *to,
                       const struct fi_cq_err_entry *from)
{
    memcpy(to, from, offsetof(struct fi_cq_err_entry, err_data));
    if (FI_VERSION_GE(cq->domain->fabric->fid.api_version, FI_VERSION(1, 5)))
        to->err_data_size = 0;
    else
        to->err_data = NULL;
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *entry, uint64_t flags)
{
    struct ivc_fi_cq *cq = ivc_fi_cq_of(fid);
    struct ivc_fi_cq_error *error;

    (void)flags;
    ivc_fi_lock(cq->domain);
    error = cq->errors;
    if (error && error->position == cq->head) {
        cq->errors = error->next;
        if (!cq->errors)
            cq->errors_end = &cq->errors;
    } else {
        error = NULL;
    }
    ivc_fi_unlock(cq->domain);
    if (!error)
        return -FI_EAGAIN;
    copy_error(cq, entry, &error->entry);
    free(error);
    return 1;
}

static const char *cq_strerror(struct fid_cq *cq, int prov_errno, const void *err_data, char *buf,
                               size_t len)
{
    (void)cq;
    (void)err_data;
    return ivc_fi_strerror(prov_errno, buf, len);
}

/* ---------------------------------------------------------------- open and close */

static int cq_control(struct fid *fid, int command, void *arg)
{
    struct ivc_fi_cq *cq = container_of(fid, struct ivc_fi_cq, fid.fid);

    return ivc_fi_wait_control(&cq->wait, command, arg);
}

static void cq_free(struct ivc_fi_cq *cq)
{
    struct ivc_fi_cq_error *next;

    for (struct ivc_fi_cq_error *error = cq->errors; error; error = next) {
        next = error->next;
        free(error);
    }
    ivc_fi_wait_close(&cq->wait);
    free(cq->eps);
    free(cq->slots);
    free(cq);
}

static int cq_close(struct fid *fid)
{
    struct ivc_fi_cq *cq = container_of(fid, struct ivc_fi_cq, fid.fid);
    struct ivc_fi_domain *domain = cq->domain;

    ivc_fi_lock(domain);
    if (cq->users) {
        ivc_fi_unlock(domain);
        return -FI_EBUSY;
    }
    domain->users--;
    ivc_fi_unlock(domain);
    cq_free(cq);
    return 0;
}

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = cq_close,
    .bind = ivc_fi_no_bind,
    .control = cq_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_cq cq_ops = {
    .size = sizeof cq_ops,
    .read = cq_read,
    .readfrom = cq_readfrom,
    .readerr = cq_readerr,
    .sread = ivc_fi_cq_sread,
    .sreadfrom = ivc_fi_cq_sreadfrom,
    .signal = ivc_fi_cq_signal,
    .strerror = cq_strerror,
};

int ivc_fi_cq_open(struct fid_domain *domain_fid, struct fi_cq_attr *attr, struct fid_cq **ret_cq,
                   void *context)
{
    struct ivc_fi_domain *domain = container_of(domain_fid, struct ivc_fi_domain, fid);
    struct ivc_fi_cq *cq;
    int r;

    if (!attr || (unsigned)attr->format > FI_CQ_FORMAT_TAGGED)
        return attr ? -FI_ENOSYS : -FI_EINVAL;
    if (attr->flags & ~FI_AFFINITY)
        return -FI_EBADFLAGS;
    cq = calloc(1, sizeof *cq);
    if (!cq)
        return -FI_ENOMEM;
    cq->size = FIRST_SIZE;
    cq->slots = malloc(cq->size * sizeof *cq->slots);
    r = cq->slots ? ivc_fi_wait_open(&cq->wait, attr->wait_obj) : -FI_ENOMEM;
    if (r != 0) {
        free(cq->slots);
        free(cq);
        return r;
    }
    cq->domain = domain;
    cq->format = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attr->format;
    cq->threshold = attr->wait_cond == FI_CQ_COND_THRESHOLD;
    cq->errors_end = &cq->errors;
    cq->fid.fid.fclass = FI_CLASS_CQ;
    cq->fid.fid.context = context;
    cq->fid.fid.ops = &fid_ops;
    cq->fid.ops = &cq_ops;
    ivc_fi_lock(domain);
    domain->users++;
    ivc_fi_unlock(domain);
    *ret_cq = &cq->fid;
    return 0;
}
