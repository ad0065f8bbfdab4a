/*
 * The Xen mechanism: grant pages and event channels through the devices of stock kernels (gntalloc,
 * gntdev, evtchn; Linux, include/uapi/xen), and XenStore through libxenstore, which is loaded when it is
 * needed: so one build serves guests with and without Xen, and a package depends on nothing of it.
 *
 * What is granted or mapped lives as long as its mapping in this process: the device's own record of it
 * is given up as soon as the mapping exists.
 */
#include "region/grants.h"

#include "base/error.h"
#include "base/util.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
/* What the next ones use and Linux does not export. */
typedef uint32_t grant_ref_t;
typedef uint16_t domid_t;
#include <xen/evtchn.h>
#include <xen/gntalloc.h>
#include <xen/gntdev.h>

enum {
    REFS_MAX = 1024,
    PAGES_DEFAULT = 1024,       /* of the module, when it does not tell */
    LOOK_EVERY_MS = 1000,
    STORE_PATH = 160,
    DOMAINS = 0x7ff0,           /* DOMID_FIRST_RESERVED of Xen's xen.h */
};

/* Of libxenstore's xenstore.h (stable since 4.0): see there. */
struct xs_handle;
struct xs_permissions {
    unsigned id, perms;
};
enum { XS_PERM_NONE = 0, XS_PERM_READ = 1, XS_PERM_WRITE = 2 };

struct store {
    void *library;
    struct xs_handle *handle;
    void (*close)(struct xs_handle *);
    void *(*read)(struct xs_handle *, uint32_t transaction, const char *path, unsigned *ret_len);
    bool (*write)(struct xs_handle *, uint32_t transaction, const char *path, const void *data,
                  unsigned len);
    bool (*rm)(struct xs_handle *, uint32_t transaction, const char *path);
    bool (*set_permissions)(struct xs_handle *, uint32_t transaction, const char *path,
                            struct xs_permissions *perms, unsigned n);
    char **(*directory)(struct xs_handle *, uint32_t transaction, const char *path, unsigned *ret_n);
    bool (*watch)(struct xs_handle *, const char *path, const char *token);
    bool (*unwatch)(struct xs_handle *, const char *path, const char *token);
    int (*fileno)(struct xs_handle *);
    char **(*check_watch)(struct xs_handle *);
};

struct xen {
    int gntalloc, gntdev, evtchn;
    struct store store;
    uint32_t domain;
    uint64_t looked_ms;
    bool there;
};

/* ---- opening */

static int open_device(const char *path, int flags, int *ret_fd)
{
    *ret_fd = open(path, flags | O_CLOEXEC);
    if (*ret_fd >= 0)
        return 0;
    if (errno == EACCES || errno == EPERM)
        return ivc_error_set(-EACCES, "region xen: no permission for %s; install the udev rule 70-ivc.rules "
                             "and join the group ivc, or run as root", path);
    if (errno == ENOENT || errno == ENODEV || errno == ENXIO)
        return ivc_error_set(IVC_E_NOREGION, "region xen: no %s; load the modules xen_gntalloc, xen_gntdev and "
                             "xen_evtchn", path);
    return ivc_error_set(-errno, "region xen: %s: %s", path, ivc_error_of(errno));
}

static int load_store(struct store *store)
{
    static const char *const names[] = { "libxenstore.so.4", "libxenstore.so.4.0", "libxenstore.so.3.0",
                                         "libxenstore.so" };
    struct xs_handle *(*open_store)(unsigned long flags);

    for (unsigned i = 0; !store->library && i < sizeof names / sizeof *names; i++)
        store->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!store->library)
        return ivc_error_set(IVC_E_NOREGION, "region xen: libxenstore is not installed (Debian: libxenstore4)");
#define LOAD(to, name) (*(void **)&(to) = dlsym(store->library, name))
    if (!LOAD(open_store, "xs_open") || !LOAD(store->close, "xs_close") || !LOAD(store->read, "xs_read")
        || !LOAD(store->write, "xs_write") || !LOAD(store->rm, "xs_rm")
        || !LOAD(store->set_permissions, "xs_set_permissions")
        || !LOAD(store->directory, "xs_directory") || !LOAD(store->watch, "xs_watch")
        || !LOAD(store->unwatch, "xs_unwatch") || !LOAD(store->fileno, "xs_fileno")
        || !LOAD(store->check_watch, "xs_check_watch"))
        return ivc_error_set(-ENOSYS, "region xen: libxenstore: %s", dlerror());
#undef LOAD
    store->handle = open_store(0);
    if (!store->handle)
        return ivc_error_set(errno == EACCES ? -EACCES : IVC_E_NOREGION, "region xen: XenStore cannot be "
                             "reached (/dev/xen/xenbus): %s", strerror(errno));
    return 0;
}

static int own_domain(struct xen *xen, uint32_t *ret_domain)
{
    unsigned len;
    IVC_AUTO_FREE char *text = xen->store.read(xen->store.handle, 0, "domid", &len);
    char *end;
    unsigned long domain = text ? strtoul(text, &end, 10) : 0;

    if (!text || end == text || domain > UINT16_MAX)
        return ivc_error_set(-EPROTO, "region xen: XenStore does not tell which domain this is: %s",
                             text ? text : strerror(errno));
    *ret_domain = (uint32_t)domain;
    return 0;
}

static void xen_close(void *handle)
{
    struct xen *xen = handle;

    if (xen->store.handle)
        xen->store.close(xen->store.handle);
    /* The library stays: a thread of its own may be in it. */
    if (xen->gntalloc >= 0)
        close(xen->gntalloc);
    if (xen->gntdev >= 0)
        close(xen->gntdev);
    if (xen->evtchn >= 0)
        close(xen->evtchn);
    free(xen);
}

static int xen_open(void **ret_handle, uint32_t *ret_domain)
{
    struct xen *xen = calloc(1, sizeof *xen);
    int r;

    if (!xen)
        return ivc_error_set(-ENOMEM, "region xen: out of memory");
    *xen = (struct xen){ .gntalloc = -1, .gntdev = -1, .evtchn = -1, .there = true };
    r = open_device("/dev/xen/gntalloc", O_RDWR, &xen->gntalloc);
    if (r == 0)
        r = open_device("/dev/xen/gntdev", O_RDWR, &xen->gntdev);
    if (r == 0)
        r = open_device("/dev/xen/evtchn", O_RDWR | O_NONBLOCK, &xen->evtchn);
    if (r == 0)
        r = load_store(&xen->store);
    if (r == 0)
        r = own_domain(xen, &xen->domain);
    if (r != 0) {
        xen_close(xen);
        return r;
    }
    *ret_handle = xen;
    *ret_domain = xen->domain;
    return 0;
}

/* Who was saved and restored, or has moved, is another domain, or the same number of another host; but then
 * XenStore knows nothing of us. */
static bool xen_is_there(void *handle, uint32_t domain)
{
    struct xen *xen = handle;
    uint64_t now = ivc_now_ms();
    uint32_t now_domain;

    if (now - xen->looked_ms < LOOK_EVERY_MS)
        return xen->there;
    xen->looked_ms = now;
    xen->there = own_domain(xen, &now_domain) < 0 || now_domain == domain;
    return xen->there;
}

static uint32_t xen_pages_max(void *handle)
{
    char text[32];

    (void)handle;
    if (ivc_read_line("/sys/module/xen_gntalloc/parameters/limit", text, sizeof text) < 0)
        return PAGES_DEFAULT;
    return (uint32_t)strtoul(text, NULL, 10);
}

/* ---- pages */

static int refuse_grant(int error, uint32_t n)
{
    if (error == ENOSPC || error == ENOMEM)
        return ivc_error_set(IVC_E_NOSPACE, "region xen: no %u more pages may be granted by this guest; more: "
                             "the parameter 'limit' of the module xen_gntalloc, gnttab_max_frames= of Xen", n);
    return ivc_error_set(-error, "region xen: granting %u pages: %s", n, strerror(error));
}

static int xen_grant(void *handle, uint32_t domain, uint32_t n, void *place, uint32_t *ret_refs,
                     uint32_t port, uint32_t byte)
{
    const struct xen *xen = handle;
    union {
        struct ioctl_gntalloc_alloc_gref call;
        char room[sizeof(struct ioctl_gntalloc_alloc_gref) + REFS_MAX * sizeof(uint32_t)];
    } alloc = { .call = { .domid = (uint16_t)domain, .count = n } };
    struct ioctl_gntalloc_unmap_notify notify;
    struct ioctl_gntalloc_dealloc_gref give_up;
    int error = 0;

    if (n == 0 || n > REFS_MAX)
        return refuse_grant(E2BIG, n);
    if (ioctl(xen->gntalloc, IOCTL_GNTALLOC_ALLOC_GREF, &alloc) < 0)
        return refuse_grant(errno, n);
    if (mmap(place, (size_t)n * IVC_LAYOUT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             xen->gntalloc, (off_t)alloc.call.index) == MAP_FAILED)
        error = errno;
    if (byte && !error) {
        notify = (struct ioctl_gntalloc_unmap_notify){
            .index = alloc.call.index + byte,
            .action = UNMAP_NOTIFY_CLEAR_BYTE | (port ? UNMAP_NOTIFY_SEND_EVENT : 0),
            .event_channel_port = port,
        };
        if (ioctl(xen->gntalloc, IOCTL_GNTALLOC_SET_UNMAP_NOTIFY, &notify) < 0)
            error = errno;
    }
    give_up = (struct ioctl_gntalloc_dealloc_gref){ alloc.call.index, n };
    (void)ioctl(xen->gntalloc, IOCTL_GNTALLOC_DEALLOC_GREF, &give_up);
    if (error)
        return refuse_grant(error, n);
    memcpy(ret_refs, alloc.room + offsetof(struct ioctl_gntalloc_alloc_gref, gref_ids), n * sizeof *ret_refs);
    return 0;
}

static int refuse_map(int error, uint32_t domain, uint32_t n)
{
    if (error == ENOSPC || error == ENOMEM)
        return ivc_error_set(IVC_E_NOSPACE, "region xen: no %u more pages of others may be mapped; more: the "
                             "parameter 'limit' of the module xen_gntdev", n);
    return ivc_error_set(-EBADMSG, "region xen: %u pages that domain %u says it has granted cannot be mapped: "
                         "%s", n, domain, strerror(error));
}

static int xen_map(void *handle, uint32_t domain, uint32_t n, const uint32_t *refs, void *place,
                   void **ret_memory)
{
    const struct xen *xen = handle;
    union {
        struct ioctl_gntdev_map_grant_ref call;
        char room[sizeof(struct ioctl_gntdev_map_grant_ref) + REFS_MAX * sizeof(struct ioctl_gntdev_grant_ref)];
    } map = { .call = { .count = n } };
    char *at = map.room + offsetof(struct ioctl_gntdev_map_grant_ref, refs);
    struct ioctl_gntdev_unmap_grant_ref give_up;
    void *memory;
    int error;

    if (n == 0 || n > REFS_MAX)
        return refuse_map(E2BIG, domain, n);
    for (uint32_t i = 0; i < n; i++, at += sizeof(struct ioctl_gntdev_grant_ref))
        memcpy(at, &(struct ioctl_gntdev_grant_ref){ domain, refs[i] }, sizeof(struct ioctl_gntdev_grant_ref));
    if (ioctl(xen->gntdev, IOCTL_GNTDEV_MAP_GRANT_REF, &map) < 0)
        return refuse_map(errno, domain, n);
    memory = mmap(place, (size_t)n * IVC_LAYOUT_PAGE, PROT_READ, MAP_SHARED | (place ? MAP_FIXED : 0),
                  xen->gntdev, (off_t)map.call.index);
    error = memory == MAP_FAILED ? errno : 0;
    give_up = (struct ioctl_gntdev_unmap_grant_ref){ .index = map.call.index, .count = n };
    (void)ioctl(xen->gntdev, IOCTL_GNTDEV_UNMAP_GRANT_REF, &give_up);
    if (error)
        return refuse_map(error, domain, n);
    *ret_memory = memory;
    return 0;
}

/* ---- events */

static int xen_port_make(void *handle, uint32_t domain, uint32_t *ret_port)
{
    const struct xen *xen = handle;
    struct ioctl_evtchn_bind_unbound_port bind = { domain };
    int port = ioctl(xen->evtchn, IOCTL_EVTCHN_BIND_UNBOUND_PORT, &bind);

    if (port < 0)
        return ivc_error_set(-errno, "region xen: an event channel for domain %u: %s", domain,
                             strerror(errno));
    *ret_port = (uint32_t)port;
    return 0;
}

static int xen_port_join(void *handle, uint32_t domain, uint32_t remote, uint32_t *ret_port)
{
    const struct xen *xen = handle;
    struct ioctl_evtchn_bind_interdomain bind = { domain, remote };
    int port = ioctl(xen->evtchn, IOCTL_EVTCHN_BIND_INTERDOMAIN, &bind);

    if (port < 0)
        return -errno;
    *ret_port = (uint32_t)port;
    return 0;
}

static void xen_port_ring(void *handle, uint32_t port)
{
    const struct xen *xen = handle;
    struct ioctl_evtchn_notify notify = { port };

    (void)ioctl(xen->evtchn, IOCTL_EVTCHN_NOTIFY, &notify);
}

static void xen_port_close(void *handle, uint32_t port)
{
    const struct xen *xen = handle;
    struct ioctl_evtchn_unbind unbind = { port };

    (void)ioctl(xen->evtchn, IOCTL_EVTCHN_UNBIND, &unbind);
}

static int xen_events_fd(void *handle)
{
    return ((const struct xen *)handle)->evtchn;
}

static uint32_t xen_event_take(void *handle)
{
    const struct xen *xen = handle;
    uint32_t port = 0;

    if (read(xen->evtchn, &port, sizeof port) != sizeof port)
        return 0;
    /* It was masked when it rang. */
    (void)!write(xen->evtchn, &port, sizeof port);
    return port;
}

/* ---- domains */

/* A guest cannot list them.  But whoever joins an event channel is told whether there is such a domain, before all
 * else that is wrong with it: nobody's port has the number 0.  That takes a hypercall, a microsecond or so. */
static bool may_be(const struct xen *xen, uint32_t domain)
{
    struct ioctl_evtchn_bind_interdomain bind = { domain, 0 };

    return ioctl(xen->evtchn, IOCTL_EVTCHN_BIND_INTERDOMAIN, &bind) >= 0 || errno != ESRCH;
}

static void xen_domains(void *handle, bool (*fn)(void *arg, uint32_t domain), void *arg)
{
    const struct xen *xen = handle;
    bool goes_on = true;

    for (uint32_t domain = 0; goes_on && domain < DOMAINS; domain++)
        if (may_be(xen, domain))
            goes_on = fn(arg, domain);
}

/* ---- XenStore */

static void path_of(uint32_t domain, const char *path, char ret_path[STORE_PATH])
{
    snprintf(ret_path, STORE_PATH, "/local/domain/%u/data/%s", domain, path);
}

static int xen_put(void *handle, const char *path, const char *text, uint32_t reader)
{
    const struct xen *xen = handle;
    const struct store *store = &xen->store;
    bool for_all = reader == IVC_GRANT_ALL;
    struct xs_permissions perms[2] = {
        { xen->domain, for_all ? XS_PERM_READ : XS_PERM_NONE }, { reader, XS_PERM_READ },
    };
    unsigned n = for_all || reader == xen->domain ? 1 : 2, len = (unsigned)strlen(text);
    char full[STORE_PATH];

    path_of(xen->domain, path, full);
    /* What one may read is empty first: what it inherits may let others read it.  What all may read is whole from
     * the first moment. */
    if (store->write(store->handle, 0, full, text, for_all ? len : 0)
        && store->set_permissions(store->handle, 0, full, perms, n)
        && (for_all || store->write(store->handle, 0, full, text, len)))
        return 0;
    return ivc_error_set(-errno, "region xen: XenStore does not take %s: %s%s", full, strerror(errno),
                         errno == ENOSPC || errno == E2BIG ? "; this guest has as many entries there as it may "
                         "have" : "");
}

static void xen_drop(void *handle, const char *path)
{
    const struct xen *xen = handle;
    char full[STORE_PATH];

    path_of(xen->domain, path, full);
    (void)xen->store.rm(xen->store.handle, 0, full);
}

static int xen_get(void *handle, uint32_t domain, const char *path, char **ret_text)
{
    const struct xen *xen = handle;
    char full[STORE_PATH];
    unsigned len;

    path_of(domain, path, full);
    *ret_text = xen->store.read(xen->store.handle, 0, full, &len);     /* ends with a zero byte */
    return *ret_text ? 0 : -errno;
}

static void xen_list(void *handle, uint32_t domain, const char *path,
                     void (*fn)(void *arg, const char *name), void *arg)
{
    const struct xen *xen = handle;
    char full[STORE_PATH];
    IVC_AUTO_FREE char **names = NULL;
    unsigned n = 0;

    path_of(domain, path, full);
    names = xen->store.directory(xen->store.handle, 0, full, &n);
    for (unsigned i = 0; names && i < n; i++)
        fn(arg, names[i]);
}

static int xen_open_door(void *handle, const char *path)
{
    const struct xen *xen = handle;
    const struct store *store = &xen->store;
    struct xs_permissions perm = { xen->domain, XS_PERM_WRITE };
    char full[STORE_PATH];

    path_of(xen->domain, path, full);
    if (store->write(store->handle, 0, full, "", 0) && store->set_permissions(store->handle, 0, full, &perm, 1))
        return 0;
    return ivc_error_set(-errno, "region xen: XenStore does not take %s: %s", full, strerror(errno));
}

/* News of the path are all that matters, so nothing is left there. */
static void xen_knock(void *handle, uint32_t domain, const char *path)
{
    const struct xen *xen = handle;
    char full[STORE_PATH], own[STORE_PATH + 16];

    path_of(domain, path, full);
    snprintf(own, sizeof own, "%s/%u", full, xen->domain);
    if (xen->store.write(xen->store.handle, 0, own, "", 0))
        (void)xen->store.rm(xen->store.handle, 0, own);
}

static int xen_watch(void *handle, uint32_t domain, const char *path, const char *token)
{
    const struct xen *xen = handle;
    char full[STORE_PATH];

    path_of(domain, path, full);
    return xen->store.watch(xen->store.handle, full, token) ? 0 : -errno;
}

static void xen_unwatch(void *handle, uint32_t domain, const char *path, const char *token)
{
    const struct xen *xen = handle;
    char full[STORE_PATH];

    path_of(domain, path, full);
    (void)xen->store.unwatch(xen->store.handle, full, token);
}

static int xen_news_fd(void *handle)
{
    const struct xen *xen = handle;

    return xen->store.fileno(xen->store.handle);
}

static bool xen_news_take(void *handle, struct ivc_grant_news *ret_news)
{
    const struct xen *xen = handle;
    IVC_AUTO_FREE char **news = xen->store.check_watch(xen->store.handle);
    const char *name;

    if (!news)
        return false;
    name = strrchr(news[0], '/');       /* XS_WATCH_PATH */
    snprintf(ret_news->token, sizeof ret_news->token, "%s", news[1]);   /* XS_WATCH_TOKEN */
    snprintf(ret_news->name, sizeof ret_news->name, "%s", name ? name + 1 : "");
    return true;
}

const struct ivc_grant_backend ivc_grant_xen = {
    .name = "xen",
    .open = xen_open, .close = xen_close, .is_there = xen_is_there, .pages_max = xen_pages_max,
    .grant = xen_grant, .map = xen_map,
    .port_make = xen_port_make, .port_join = xen_port_join, .port_ring = xen_port_ring,
    .port_close = xen_port_close, .events_fd = xen_events_fd, .event_take = xen_event_take,
    .put = xen_put, .drop = xen_drop, .get = xen_get, .list = xen_list, .domains = xen_domains,
    .open_door = xen_open_door, .knock = xen_knock,
    .watch = xen_watch, .unwatch = xen_unwatch, .news_fd = xen_news_fd, .news_take = xen_news_take,
};

/* ---- as a mechanism */

static void xen_find(void (*found)(void *, const struct ivc_mechanism *, const char *),
                     void (*refused)(void *, const struct ivc_mechanism *, const char *, const char *),
                     void *arg)
{
    char type[16];
    int r;
    void *handle;
    uint32_t domain;

    if (ivc_read_line("/sys/hypervisor/type", type, sizeof type) < 0 || strcmp(type, "xen") != 0)
        return;
    r = xen_open(&handle, &domain);
    if (r != 0) {
        refused(arg, &ivc_mechanism_xen, "xen", ivc_error_text());
        return;
    }
    xen_close(handle);
    found(arg, &ivc_mechanism_xen, "xen");
}

static const struct ivc_grant_backend *backend = &ivc_grant_xen;

void ivc_grants_use(const struct ivc_grant_backend *other)
{
    backend = other;
}

static int xen_mechanism_map(const char *name, struct ivc_mapping *ret_mapping)
{
    (void)name;
    return ivc_grants_open(backend, ret_mapping);
}

static bool xen_mechanism_is_there(const char *name, const struct ivc_mapping *mapping)
{
    (void)name;
    return ivc_grants_is_there(mapping->grants);
}

const struct ivc_mechanism ivc_mechanism_xen = {
    .name = "xen",
    .find = xen_find,
    .map = xen_mechanism_map,
    .is_there = xen_mechanism_is_there,
    .is_named = xen_mechanism_is_there,
};
