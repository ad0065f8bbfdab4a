/* See fake_grants.h. */
#include "fake_grants.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

#include <inttypes.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PAGES = 8192, PORTS = 256, TEXTS = 512, WATCHES = 256, PATH = 120, TEXT = 1024, FIRST_REF = 8 };

struct page {
    pid_t owner;                /* 0: free */
    uint32_t domain, for_domain;
    uint32_t port, byte;        /* what happens at its end */
};
struct port {
    pid_t owner;                /* 0: free */
    uint32_t listener;
    uint32_t domain, for_domain;
    uint32_t other;             /* the end that has joined; 0: none */
};
struct text {
    bool used;
    uint32_t domain, reader;
    bool is_door;
    char path[PATH], text[TEXT];
};
struct watch {
    pid_t owner;                /* 0: free */
    uint32_t listener;
    uint32_t of_domain;
    char path[PATH];
    struct ivc_grant_news news;
};

struct tables {
    pthread_mutex_t lock;
    uint32_t listeners;         /* numbers given so far */
    uint32_t next_page;         /* in turn: who still has a page that has ended goes on seeing it */
    struct page pages[PAGES];
    struct port ports[PORTS];
    struct text texts[TEXTS];
    struct watch watches[WATCHES];
};

struct fake_faults fake_faults;

static struct tables *all;
static char file_path[108];
static int file = -1;
static ino_t file_inode;
static uint32_t next_domain;
static const uint64_t pages_at = (sizeof(struct tables) + IVC_LAYOUT_PAGE - 1) / IVC_LAYOUT_PAGE * IVC_LAYOUT_PAGE;

/* One open backend. */
struct fake {
    int events, news;
    uint32_t number, domain;
};

static void lock(void)
{
    if (pthread_mutex_lock(&all->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&all->lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&all->lock);
}

/* ---- sockets: one for events, one for news of each that has the backend open */

static socklen_t socket_name(uint32_t number, const char *what, struct sockaddr_un *ret_name)
{
    *ret_name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    return (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1
           + (socklen_t)snprintf(ret_name->sun_path + 1, sizeof ret_name->sun_path - 1, "ivc-fake-%llu-%u-%s",
                                 (unsigned long long)file_inode, number, what);
}

static int socket_open(uint32_t number, const char *what)
{
    struct sockaddr_un name;
    socklen_t len = socket_name(number, what, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, len) == 0);
    return fd;
}

static void tell(uint32_t number, const char *what, const void *data, size_t size)
{
    struct sockaddr_un name;
    socklen_t len = socket_name(number, what, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    (void)!sendto(fd, data, size, 0, (struct sockaddr *)&name, len);
    close(fd);
}

/* ---- what is left of those who have died or have unmapped their pages; under the lock */

static bool is_alive(pid_t pid)
{
    return pid && !(kill(pid, 0) < 0 && errno == ESRCH);
}

static void ring_port(uint32_t port)
{
    uint32_t other = port < PORTS && all->ports[port].owner ? all->ports[port].other : 0;

    if (other && all->ports[other].owner && !fake_faults.deaf)
        tell(all->ports[other].listener, "events", &other, sizeof other);
}

static void end_page(uint32_t ref)
{
    struct page *page = &all->pages[ref];
    uint8_t zero = 0;

    if (page->byte && pwrite(file, &zero, 1, (off_t)(pages_at + (uint64_t)ref * IVC_LAYOUT_PAGE + page->byte)) == 1)
        ring_port(page->port);
    *page = (struct page){ 0 };
}

static void close_port(uint32_t port)
{
    if (all->ports[port].other)
        all->ports[all->ports[port].other].other = 0;
    all->ports[port] = (struct port){ 0 };
}

static void bury_dead(void)
{
    for (uint32_t ref = 0; ref < PAGES; ref++)
        if (all->pages[ref].owner && !is_alive(all->pages[ref].owner))
            end_page(ref);
    for (uint32_t port = 0; port < PORTS; port++)
        if (all->ports[port].owner && !is_alive(all->ports[port].owner))
            close_port(port);
    for (uint32_t i = 0; i < WATCHES; i++)
        if (all->watches[i].owner && !is_alive(all->watches[i].owner))
            all->watches[i].owner = 0;
}

/* Which pages a process has mapped to write into. */
static void mark_mapped(pid_t pid, bool mapped[PAGES])
{
    char path[32], line[512], mode[8];
    unsigned long long from, to, offset, inode;
    FILE *maps;

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    maps = fopen(path, "re");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %7s %llx %*s %llu", &from, &to, mode, &offset, &inode) == 5
            && inode == file_inode && mode[1] == 'w' && offset >= pages_at)
            for (uint64_t at = 0; at < to - from; at += IVC_LAYOUT_PAGE)
                mapped[(offset - pages_at + at) / IVC_LAYOUT_PAGE % PAGES] = true;
    if (maps)
        fclose(maps);
}

static void end_unmapped(void)
{
    bool done[PAGES] = { false };

    bury_dead();
    for (uint32_t first = 0; first < PAGES; first++) {
        pid_t owner = all->pages[first].owner;
        bool mapped[PAGES] = { false };

        if (!owner || done[first])
            continue;
        mark_mapped(owner, mapped);
        for (uint32_t ref = first; ref < PAGES; ref++)
            if (all->pages[ref].owner == owner) {
                done[ref] = true;
                if (!mapped[ref])
                    end_page(ref);
            }
    }
}

/* ---- the backend */

static int fake_open(void **ret_handle, uint32_t *ret_domain)
{
    struct fake *fake;

    if (fake_faults.open)
        return ivc_error_set(fake_faults.open, "fake: does not open");
    fake = calloc(1, sizeof *fake);
    lock();
    fake->number = ++all->listeners;
    unlock();
    fake->events = socket_open(fake->number, "events");
    fake->news = socket_open(fake->number, "news");
    *ret_handle = fake;
    fake->domain = *ret_domain = next_domain;
    return 0;
}

static void fake_close(void *handle)
{
    struct fake *fake = handle;

    close(fake->events);
    close(fake->news);
    lock();
    for (uint32_t port = 0; port < PORTS; port++)
        if (all->ports[port].owner && all->ports[port].listener == fake->number)
            close_port(port);
    for (uint32_t i = 0; i < WATCHES; i++)
        if (all->watches[i].listener == fake->number)
            all->watches[i].owner = 0;
    unlock();
    free(fake);
}

static bool fake_is_there(void *handle, uint32_t domain)
{
    return !fake_faults.gone && domain == ((const struct fake *)handle)->domain;
}

static uint32_t fake_pages_max(void *handle)
{
    (void)handle;
    return fake_faults.pages_max ? fake_faults.pages_max : 4096;
}

static uint32_t find_pages(uint32_t n)
{
    uint32_t run = 0;

    for (uint32_t i = 0; i < 2 * PAGES; i++) {
        uint32_t ref = (all->next_page + i) % PAGES;

        run = all->pages[ref].owner || ref < FIRST_REF ? 0 : run + 1;
        if (run == n) {
            all->next_page = ref + 1;
            return ref + 1 - n;
        }
    }
    return 0;
}

static int fake_grant(void *handle, uint32_t domain, uint32_t n, void *place, uint32_t *ret_refs, uint32_t port,
                      uint32_t byte)
{
    const struct fake *fake = handle;
    uint32_t first;
    int r = fake_faults.grant;

    if (r)
        return ivc_error_set(r, "fake: does not grant");
    lock();
    first = find_pages(n);
    if (!first) {
        end_unmapped();
        first = find_pages(n);
    }
    for (uint32_t i = 0; first && i < n; i++) {
        all->pages[first + i] = (struct page){ getpid(), fake->domain, domain, i ? 0 : port, i ? 0 : byte };
        ret_refs[i] = first + i;
    }
    if (first && mmap(place, (size_t)n * IVC_LAYOUT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                      (off_t)(pages_at + (uint64_t)first * IVC_LAYOUT_PAGE)) == MAP_FAILED)
        first = 0;
    if (first)
        memset(place, 0, (size_t)n * IVC_LAYOUT_PAGE);
    unlock();
    return first ? 0 : ivc_error_set(IVC_E_NOSPACE, "fake: no %u pages", n);
}

static int fake_map(void *handle, uint32_t domain, uint32_t n, const uint32_t *refs, void *place,
                    void **ret_memory)
{
    const struct fake *fake = handle;
    bool good = fake_faults.map == 0;
    char *memory = place;

    lock();
    for (uint32_t i = 0; i < n; i++)
        good = good && refs[i] < PAGES && all->pages[refs[i]].owner && all->pages[refs[i]].domain == domain
               && all->pages[refs[i]].for_domain == fake->domain;
    if (good && !memory)
        memory = mmap(NULL, (size_t)n * IVC_LAYOUT_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint32_t i = 0; good && i < n; i++)
        good = mmap(memory + (size_t)i * IVC_LAYOUT_PAGE, IVC_LAYOUT_PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file,
                    (off_t)(pages_at + (uint64_t)refs[i] * IVC_LAYOUT_PAGE)) != MAP_FAILED;
    unlock();
    if (!good)
        return ivc_error_set(fake_faults.map ? fake_faults.map : -EBADMSG, "fake: domain %u has not granted that",
                             domain);
    *ret_memory = memory;
    return 0;
}

static uint32_t new_port(const struct fake *fake, uint32_t domain, uint32_t other)
{
    uint32_t port = 1;

    while (port < PORTS && all->ports[port].owner)
        port++;
    if (port == PORTS)
        return 0;
    all->ports[port] = (struct port){ getpid(), fake->number, fake->domain, domain, other };
    return port;
}

static int fake_port_make(void *handle, uint32_t domain, uint32_t *ret_port)
{
    uint32_t port;

    if (fake_faults.port_make)
        return ivc_error_set(fake_faults.port_make, "fake: no event channel");
    lock();
    port = new_port(handle, domain, 0);
    unlock();
    *ret_port = port;
    return port ? 0 : ivc_error_set(-ENOSPC, "fake: no event channel");
}

static int fake_port_join(void *handle, uint32_t domain, uint32_t remote, uint32_t *ret_port)
{
    const struct fake *fake = handle;
    uint32_t port = 0;

    if (fake_faults.port_join)
        return fake_faults.port_join;
    lock();
    if (remote < PORTS && all->ports[remote].owner && all->ports[remote].domain == domain
        && all->ports[remote].for_domain == fake->domain && !all->ports[remote].other)
        port = new_port(handle, domain, remote);
    if (port)
        all->ports[remote].other = port;
    unlock();
    *ret_port = port;
    return port ? 0 : -EINVAL;
}

static void fake_port_ring(void *handle, uint32_t port)
{
    (void)handle;
    lock();
    ring_port(port);
    unlock();
}

static void fake_port_close(void *handle, uint32_t port)
{
    (void)handle;
    lock();
    close_port(port);
    unlock();
}

static int fake_events_fd(void *handle)
{
    return ((const struct fake *)handle)->events;
}

static uint32_t fake_event_take(void *handle)
{
    uint32_t port = 0;

    lock();
    bury_dead();
    unlock();
    return recv(((const struct fake *)handle)->events, &port, sizeof port, 0) == sizeof port ? port : 0;
}

/* ---- the store, under the lock */

static bool lies_below(const char *path, const char *above)
{
    size_t len = strlen(above);

    return strncmp(path, above, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static void fire(uint32_t domain, const char *path)
{
    for (uint32_t i = 0; i < WATCHES; i++) {
        struct watch *watch = &all->watches[i];
        struct ivc_grant_news news = watch->news;
        const char *name = strrchr(path, '/');

        if (!watch->owner || watch->of_domain != domain || !lies_below(path, watch->path))
            continue;
        snprintf(news.name, sizeof news.name, "%s", name ? name + 1 : path);
        tell(watch->listener, "news", &news, sizeof news);
    }
}

static struct text *find_text(uint32_t domain, const char *path)
{
    for (uint32_t i = 0; i < TEXTS; i++)
        if (all->texts[i].used && all->texts[i].domain == domain && strcmp(all->texts[i].path, path) == 0)
            return &all->texts[i];
    return NULL;
}

static bool set_text(uint32_t domain, const char *path, const char *text, uint32_t reader, bool is_door)
{
    struct text *place = find_text(domain, path);

    for (uint32_t i = 0; !place && i < TEXTS; i++)
        if (!all->texts[i].used)
            place = &all->texts[i];
    if (!place || strlen(text) >= TEXT)
        return false;
    *place = (struct text){ .used = true, .domain = domain, .reader = reader, .is_door = is_door };
    snprintf(place->path, sizeof place->path, "%s", path);
    snprintf(place->text, sizeof place->text, "%s", text);
    fire(domain, path);
    return true;
}

static void drop_text(uint32_t domain, const char *path)
{
    for (uint32_t i = 0; i < TEXTS; i++)
        if (all->texts[i].used && all->texts[i].domain == domain && lies_below(all->texts[i].path, path)) {
            all->texts[i].used = false;
            fire(domain, all->texts[i].path);
        }
}

static bool may_read(const struct fake *fake, const struct text *text)
{
    return text->domain == fake->domain || text->reader == fake->domain || text->reader == IVC_GRANT_ALL;
}

static int fake_put(void *handle, const char *path, const char *text, uint32_t reader)
{
    const struct fake *fake = handle;
    bool good;

    if (fake_faults.put)
        return ivc_error_set(fake_faults.put, "fake: the store does not take %s", path);
    lock();
    good = set_text(fake->domain, path, text, reader, false);
    unlock();
    return good ? 0 : ivc_error_set(-ENOSPC, "fake: the store does not take %s", path);
}

static void fake_drop(void *handle, const char *path)
{
    const struct fake *fake = handle;
    lock();
    drop_text(fake->domain, path);
    unlock();
}

static int fake_get(void *handle, uint32_t domain, const char *path, char **ret_text)
{
    const struct text *text;

    (void)handle;
    lock();
    text = find_text(domain, path);
    *ret_text = text && may_read(handle, text) ? strdup(text->text) : NULL;
    unlock();
    return *ret_text ? 0 : -ENOENT;
}

static void fake_list(void *handle, uint32_t domain, const char *path, void (*fn)(void *arg, const char *name),
                      void *arg)
{
    static const unsigned most = 64;
    char names[64][PATH];
    const struct text *above;
    unsigned n = 0;

    (void)handle;
    lock();
    above = find_text(domain, path);
    for (uint32_t i = 0; above && may_read(handle, above) && i < TEXTS && n < most; i++) {
        const struct text *text = &all->texts[i];
        size_t len = strlen(path);

        if (text->used && text->domain == domain && lies_below(text->path, path) && text->path[len]
            && !strchr(text->path + len + 1, '/'))
            snprintf(names[n++], PATH, "%s", text->path + len + 1);
    }
    unlock();
    for (unsigned i = 0; i < n; i++)
        fn(arg, names[i]);
}

static int fake_open_door(void *handle, const char *path)
{
    const struct fake *fake = handle;
    lock();
    (void)set_text(fake->domain, path, "", fake->domain, true);
    unlock();
    return 0;
}

static void fake_knock(void *handle, uint32_t domain, const char *path)
{
    const struct fake *fake = handle;
    const struct text *door;
    char own[PATH];

    snprintf(own, sizeof own, "%s/%u", path, fake->domain);
    lock();
    door = find_text(domain, path);
    if (door && door->is_door)
        fire(domain, own);
    unlock();
}

static int fake_watch(void *handle, uint32_t domain, const char *path, const char *token)
{
    const struct fake *fake = handle;
    uint32_t i = 0;

    if (fake_faults.watch)
        return fake_faults.watch;
    lock();
    while (i < WATCHES && all->watches[i].owner)
        i++;
    if (i < WATCHES) {
        struct watch *watch = &all->watches[i];

        *watch = (struct watch){ .owner = getpid(), .listener = fake->number, .of_domain = domain };
        snprintf(watch->path, sizeof watch->path, "%s", path);
        snprintf(watch->news.token, sizeof watch->news.token, "%s", token);
        tell(fake->number, "news", &watch->news, sizeof watch->news);
    }
    unlock();
    return i < WATCHES ? 0 : -ENOSPC;
}

static void fake_unwatch(void *handle, uint32_t domain, const char *path, const char *token)
{
    const struct fake *fake = handle;

    lock();
    for (uint32_t i = 0; i < WATCHES; i++)
        if (all->watches[i].listener == fake->number && all->watches[i].of_domain == domain
            && strcmp(all->watches[i].path, path) == 0 && strcmp(all->watches[i].news.token, token) == 0)
            all->watches[i].owner = 0;
    unlock();
}

static int fake_news_fd(void *handle)
{
    return ((const struct fake *)handle)->news;
}

static bool fake_news_take(void *handle, struct ivc_grant_news *ret_news)
{
    return recv(((const struct fake *)handle)->news, ret_news, sizeof *ret_news, 0) == sizeof *ret_news;
}

static const struct ivc_grant_backend backend = {
    .name = "xen",
    .open = fake_open, .close = fake_close, .is_there = fake_is_there, .pages_max = fake_pages_max,
    .grant = fake_grant, .map = fake_map,
    .port_make = fake_port_make, .port_join = fake_port_join, .port_ring = fake_port_ring,
    .port_close = fake_port_close, .events_fd = fake_events_fd, .event_take = fake_event_take,
    .put = fake_put, .drop = fake_drop, .get = fake_get, .list = fake_list,
    .open_door = fake_open_door, .knock = fake_knock,
    .watch = fake_watch, .unwatch = fake_unwatch, .news_fd = fake_news_fd, .news_take = fake_news_take,
};

/* ---- for the tests */

void fake_grants_make(const char *path)
{
    pthread_mutexattr_t shared;
    struct stat info;

    snprintf(file_path, sizeof file_path, "%s", path);
    file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0 && fstat(file, &info) == 0);
    file_inode = info.st_ino;
    CHECK(ftruncate(file, 0) == 0 && ftruncate(file, (off_t)(pages_at + (uint64_t)PAGES * IVC_LAYOUT_PAGE)) == 0);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(all != MAP_FAILED);
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&all->lock, &shared);
    ivc_grants_use(&backend);
}

void fake_grants_be(uint32_t domain)
{
    next_domain = domain;
}

void fake_grants_order(uint32_t domain, unsigned beat)
{
    char text[32];

    snprintf(text, sizeof text, "1 %u", beat);
    lock();
    if (beat)
        (void)set_text(domain, "ivc-order", text, domain, false);
    else
        drop_text(domain, "ivc-order");
    unlock();
}

void fake_grants_put(uint32_t domain, const char *path, const char *text)
{
    lock();
    (void)set_text(domain, path, text, IVC_GRANT_ALL, false);
    unlock();
}

void fake_grants_destroy(uint32_t domain)
{
    lock();
    for (uint32_t i = 0; i < TEXTS; i++)
        if (all->texts[i].used && all->texts[i].domain == domain)
            all->texts[i].used = false;
    unlock();
}

struct fake_left fake_grants_left(void)
{
    struct fake_left left = { 0 };

    lock();
    end_unmapped();
    for (uint32_t ref = 0; ref < PAGES; ref++)
        left.pages += all->pages[ref].owner != 0;
    for (uint32_t port = 0; port < PORTS; port++)
        left.ports += all->ports[port].owner != 0;
    /* Without the three folders, which stay. */
    for (uint32_t i = 0; i < TEXTS; i++)
        left.texts += all->texts[i].used && strchr(all->texts[i].path, '/') != NULL;
    for (uint32_t i = 0; i < WATCHES; i++)
        left.watches += all->watches[i].owner != 0;
    unlock();
    return left;
}
