/*
 * Event queues: results of calls that were asked to be asynchronous, and what the application
 * writes itself.
 *
 * Invariant: the descriptor is readable exactly while the list is not empty.  A queue belongs to
 * the fabric and has a lock of its own; nothing else is locked below it.
 */
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

struct event {
    struct event *next;
    uint32_t event;
    bool is_error;
    size_t len;
    struct fi_eq_err_entry error;
    uint8_t data[];
};

struct ivc_fi_eq {
    struct fid_eq fid;
    struct ivc_fi_fabric *fabric;
    pthread_mutex_t lock;
    uint32_t users;
    struct event *first, **last;
    enum fi_wait_obj object;
    int wake;                       /* eventfd; -1: FI_WAIT_NONE */
    bool writable;                  /* by the application: FI_WRITE at opening */
};

static struct ivc_fi_eq *of(struct fid_eq *fid)
{
    return container_of(fid, struct ivc_fi_eq, fid);
}

static int append(struct ivc_fi_eq *eq, const struct event *header, const void *data)
{
    struct event *event = malloc(sizeof *event + header->len);
    uint64_t one = 1;
    bool was_empty;

    if (!event)
        return -FI_ENOMEM;
    *event = *header;
    event->next = NULL;
    if (data)
        memcpy(event->data, data, header->len);
    pthread_mutex_lock(&eq->lock);
    was_empty = !eq->first;
    *eq->last = event;
    eq->last = &event->next;
    if (was_empty && eq->wake >= 0 && write(eq->wake, &one, sizeof one) < 0) {
        /* The count of an eventfd does not overflow by ones: it stays readable. */
    }
    pthread_mutex_unlock(&eq->lock);
    return 0;
}

/* Locked. */
static void take_first(struct ivc_fi_eq *eq)
{
    struct event *event = eq->first;
    uint64_t count;

    eq->first = event->next;
    if (!eq->first) {
        eq->last = &eq->first;
        if (eq->wake >= 0 && read(eq->wake, &count, sizeof count) < 0) {
            /* Nothing to take: it is unreadable already, which is what was wanted. */
        }
    }
    free(event);
}

int ivc_fi_eq_put(struct fid_eq *fid, uint32_t event, const struct fi_eq_entry *entry, int error)
{
    struct event header = { .event = event, .is_error = error != 0 };

    if (!error) {
        header.len = sizeof *entry;
        return append(of(fid), &header, entry);
    }
    header.error = (struct fi_eq_err_entry){
        .fid = entry->fid,
        .context = entry->context,
        .data = entry->data,
        .err = error < 0 ? -error : error,
    };
    return append(of(fid), &header, NULL);
}

void ivc_fi_eq_use(struct fid_eq *fid, int change)
{
    struct ivc_fi_eq *eq = of(fid);

    pthread_mutex_lock(&eq->lock);
    eq->users += (uint32_t)change;
    pthread_mutex_unlock(&eq->lock);
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buf, size_t len, uint64_t flags)
{
    struct ivc_fi_eq *eq = of(fid);
    ssize_t n;

    if (flags & ~FI_PEEK)
        return -FI_EINVAL;
    pthread_mutex_lock(&eq->lock);
    if (!eq->first) {
        n = -FI_EAGAIN;
    } else if (eq->first->is_error) {
        n = -FI_EAVAIL;
    } else if (len < eq->first->len) {
        n = -FI_ETOOSMALL;
    } else {
        n = (ssize_t)eq->first->len;
        *event = eq->first->event;
        memcpy(buf, eq->first->data, eq->first->len);
        if (!(flags & FI_PEEK))
            take_first(eq);
    }
    pthread_mutex_unlock(&eq->lock);
    return n;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *error, uint64_t flags)
{
    struct ivc_fi_eq *eq = of(fid);
    /* Applications of before 1.5 have no err_data_size. */
    size_t len = FI_VERSION_LT(eq->fabric->fid.api_version, FI_VERSION(1, 5))
        ? offsetof(struct fi_eq_err_entry, err_data_size) : sizeof *error;
    ssize_t n = -FI_EAGAIN;

    pthread_mutex_lock(&eq->lock);
    if (eq->first && eq->first->is_error) {
        memcpy(error, &eq->first->error, len);
        n = (ssize_t)len;
        if (!(flags & FI_PEEK))
            take_first(eq);
    }
    pthread_mutex_unlock(&eq->lock);
    return n;
}

static ssize_t eq_write(struct fid_eq *fid, uint32_t event, const void *buf, size_t len,
                        uint64_t flags)
{
    struct ivc_fi_eq *eq = of(fid);
    struct event header = { .event = event, .len = len };
    int r;

    if (!eq->writable || flags || (len && !buf))
        return -FI_EINVAL;
    r = append(eq, &header, buf);
    return r != 0 ? r : (ssize_t)len;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *buf, size_t len, int timeout,
                        uint64_t flags)
{
    struct ivc_fi_eq *eq = of(fid);
    struct pollfd on = { .fd = eq->wake, .events = POLLIN };
    uint64_t end = timeout < 0 ? UINT64_MAX : ivc_now_ms() + (uint64_t)timeout;

    if (eq->wake < 0)
        return -FI_ENOSYS;
    for (;;) {
        ssize_t n = eq_read(fid, event, buf, len, flags);
        uint64_t now = ivc_now_ms();

        if (n != -FI_EAGAIN || now >= end)
            return n;
        if (poll(&on, 1, timeout < 0 ? -1 : (int)(end - now)) < 0)
            return errno == EINTR ? -FI_EINTR : -errno;
    }
}

static const char *eq_strerror(struct fid_eq *eq, int prov_errno, const void *err_data, char *buf,
                               size_t len)
{
    (void)eq;
    (void)err_data;
    return ivc_fi_strerror(prov_errno, buf, len);
}

int ivc_fi_eq_trywait(struct fid_eq *fid)
{
    struct ivc_fi_eq *eq = of(fid);
    bool empty;

    if (eq->wake < 0)
        return -FI_EINVAL;
    pthread_mutex_lock(&eq->lock);
    empty = !eq->first;
    pthread_mutex_unlock(&eq->lock);
    return empty ? 0 : -FI_EAGAIN;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
    struct ivc_fi_eq *eq = container_of(fid, struct ivc_fi_eq, fid.fid);

    switch (command) {
    case FI_GETWAIT:
        if (eq->object != FI_WAIT_FD)
            return -FI_ENODATA;
        *(int *)arg = eq->wake;
        return 0;
    case FI_GETWAITOBJ:
        *(enum fi_wait_obj *)arg = eq->object;
        return 0;
    default:
        return -FI_ENOSYS;
    }
}

static int eq_close(struct fid *fid)
{
    struct ivc_fi_eq *eq = container_of(fid, struct ivc_fi_eq, fid.fid);

    if (eq->users != 0)
        return -FI_EBUSY;
    while (eq->first)
        take_first(eq);
    ivc_close_p(&eq->wake);
    pthread_mutex_destroy(&eq->lock);
    atomic_fetch_sub_explicit(&eq->fabric->users, 1, memory_order_relaxed);
    free(eq);
    return 0;
}

static struct fi_ops fid_ops = {
    .size = sizeof fid_ops,
    .close = eq_close,
    .bind = ivc_fi_no_bind,
    .control = eq_control,
    .ops_open = ivc_fi_no_ops_open,
    .tostr = ivc_fi_no_tostr,
    .ops_set = ivc_fi_no_ops_set,
};

static struct fi_ops_eq eq_ops = {
    .size = sizeof eq_ops,
    .read = eq_read,
    .readerr = eq_readerr,
    .write = eq_write,
    .sread = eq_sread,
    .strerror = eq_strerror,
};

/* FI_WAIT_UNSPEC sleeps on a descriptor, too. */
static int choose_wait(struct ivc_fi_eq *eq, const struct fi_eq_attr *attr)
{
    eq->wake = -1;
    eq->object = attr ? attr->wait_obj : FI_WAIT_NONE;
    if (eq->object == FI_WAIT_NONE)
        return 0;
    if (eq->object == FI_WAIT_UNSPEC || eq->object == FI_WAIT_YIELD)
        eq->object = FI_WAIT_FD;
    if (eq->object != FI_WAIT_FD)
        return -FI_ENOSYS;
    eq->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return eq->wake < 0 ? -errno : 0;
}

int ivc_fi_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **ret_eq,
                   void *context)
{
    struct ivc_fi_eq *eq;
    int r;

    if (attr && (attr->flags & ~(FI_WRITE | FI_AFFINITY)))
        return -FI_EBADFLAGS;
    eq = calloc(1, sizeof *eq);
    if (!eq)
        return -FI_ENOMEM;
    r = choose_wait(eq, attr);
    if (r != 0) {
        free(eq);
        return r;
    }
    pthread_mutex_init(&eq->lock, NULL);
    eq->last = &eq->first;
    eq->writable = attr && (attr->flags & FI_WRITE);
    eq->fabric = container_of(fabric, struct ivc_fi_fabric, fid);
    eq->fid.fid.fclass = FI_CLASS_EQ;
    eq->fid.fid.context = context;
    eq->fid.fid.ops = &fid_ops;
    eq->fid.ops = &eq_ops;
    atomic_fetch_add_explicit(&eq->fabric->users, 1, memory_order_relaxed);
    *ret_eq = &eq->fid;
    return 0;
}
