/* See fake_grants.h. */
#include "fake_grants.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

#include <inttypes.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PAGES = 65536, PORTS = 256, TEXTS = 512, WATCHES = 256, USERS = 64, NEWS = 64, PATH = 120, TEXT = 1024, FIRST_REF = 8 };

struct page {
    pid_t owner;                /* 0: nobody grants it */
    bool ended;                 /* nobody grants it any more, and somebody may still have it mapped */
    uint32_t domain, for_domain;
    uint32_t port, byte;        /* what happens at its end */
};
struct port {
    pid_t owner;                /* 0: free */
    uint32_t listener;
    uint32_t domain, for_domain;
    uint32_t other;             /* the end that has joined; 0: none */
    bool rung;                  /* and not taken yet */
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
    char path[PATH], token[16];
    unsigned n_news;            /* that were not taken yet: the last part of what has changed, each once */
    char news[NEWS][24];
};

struct tables {
    pthread_mutex_t lock;
    uint32_t listeners;         /* numbers given so far */
    pid_t users[USERS];         /* processes that have had it open; 0: none */
    struct page pages[PAGES];
    struct port ports[PORTS];
    struct text texts[TEXTS];
    struct watch watches[WATCHES];
};

struct fake_faults fake_faults;

/* One host. */
struct fake_store {
    struct tables *all;
    int file;
    ino_t inode;
};

enum { STORES = 8 };

static struct fake_store made;          /* fake_grants_make() */
static uint32_t next_domain;
static const char *followed;            /* fake_grants_follow(); NULL: nobody is */
static const uint64_t pages_at = (sizeof(struct tables) + IVC_LAYOUT_PAGE - 1) / IVC_LAYOUT_PAGE * IVC_LAYOUT_PAGE;

/* One open backend. */
struct fake {
    const struct fake_store *store;
    int events, news;
    uint32_t number, domain;
};

static void lock(const struct fake_store *store)
{
    if (pthread_mutex_lock(&store->all->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&store->all->lock);
}

static void unlock(const struct fake_store *store)
{
    pthread_mutex_unlock(&store->all->lock);
}

/* ---- hosts */

/* The one whose file lies there; mapped when it is first asked for, and kept.  NULL: there is none. */
static const struct fake_store *store_at(const char *path)
{
    static pthread_mutex_t lock_stores = PTHREAD_MUTEX_INITIALIZER;
    static struct fake_store stores[STORES];
    struct fake_store *store = stores;
    struct stat info;

    pthread_mutex_lock(&lock_stores);
    if (stat(path, &info) < 0)
        store = NULL;
    while (store && store->all && store->inode != info.st_ino)
        CHECK(++store < stores + STORES);
    if (store && !store->all) {
        store->file = open(path, O_RDWR | O_CLOEXEC);
        store->inode = info.st_ino;
        store->all = mmap(NULL, sizeof *store->all, PROT_READ | PROT_WRITE, MAP_SHARED, store->file, 0);
        CHECK(store->file >= 0 && store->all != MAP_FAILED);
    }
    pthread_mutex_unlock(&lock_stores);
    return store;
}

/* Where the guest is now, and as which domain; NULL: nowhere. */
static const struct fake_store *follow(uint32_t *ret_domain)
{
    char target[128];
    ssize_t n = readlink(followed, target, sizeof target - 1);
    char *mark;

    if (n < 0)
        return NULL;
    target[n] = '\0';
    mark = strrchr(target, FAKE_GRANTS_MARK);
    CHECK_THAT(mark, "%s leads to %s, which is no domain of a host", followed, target);
    *mark = '\0';
    *ret_domain = (uint32_t)atoi(mark + 1);
    return store_at(target);
}

/* ---- sockets: one for events, one for news of each that has the backend open */

static socklen_t socket_name(const struct fake_store *store, uint32_t number, const char *what, struct sockaddr_un *ret_name)
{
    *ret_name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    return (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1
           + (socklen_t)snprintf(ret_name->sun_path + 1, sizeof ret_name->sun_path - 1, "ivc-fake-%llu-%u-%s",
                                 (unsigned long long)store->inode, number, what);
}

static int socket_open(const struct fake_store *store, uint32_t number, const char *what)
{
    struct sockaddr_un name;
    socklen_t len = socket_name(store, number, what, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, len) == 0);
    return fd;
}

/* It is readable then.  There is no harm when there is no room for more: it is readable already. */
static void wake(const struct fake_store *store, uint32_t number, const char *what)
{
    struct sockaddr_un name;
    socklen_t len = socket_name(store, number, what, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    (void)!sendto(fd, "", 1, 0, (struct sockaddr *)&name, len);
    close(fd);
}

static void drain(int fd)
{
    char byte;

    while (recv(fd, &byte, 1, 0) >= 0)
        ;
}

/* ---- what is left of those who have died or have unmapped their pages; under the lock */

static bool is_alive(pid_t pid)
{
    return pid && !(kill(pid, 0) < 0 && errno == ESRCH);
}

static void ring_port(const struct fake_store *store, uint32_t port)
{
    uint32_t other = port < PORTS && store->all->ports[port].owner ? store->all->ports[port].other : 0;

    if (!other || !store->all->ports[other].owner || fake_faults.deaf)
        return;
    store->all->ports[other].rung = true;
    wake(store, store->all->ports[other].listener, "events");
}

static void end_page(const struct fake_store *store, uint32_t ref)
{
    struct page *page = &store->all->pages[ref];
    uint8_t zero = 0;

    if (page->byte && pwrite(store->file, &zero, 1, (off_t)(pages_at + (uint64_t)ref * IVC_LAYOUT_PAGE + page->byte)) == 1)
        ring_port(store, page->port);
    *page = (struct page){ .ended = true };
}

static void close_port(const struct fake_store *store, uint32_t port)
{
    if (store->all->ports[port].other)
        store->all->ports[store->all->ports[port].other].other = 0;
    store->all->ports[port] = (struct port){ 0 };
}

static void bury_dead(const struct fake_store *store)
{
    for (uint32_t ref = 0; ref < PAGES; ref++)
        if (store->all->pages[ref].owner && !is_alive(store->all->pages[ref].owner))
            end_page(store, ref);
    for (uint32_t port = 0; port < PORTS; port++)
        if (store->all->ports[port].owner && !is_alive(store->all->ports[port].owner))
            close_port(store, port);
    for (uint32_t i = 0; i < WATCHES; i++)
        if (store->all->watches[i].owner && !is_alive(store->all->watches[i].owner))
            store->all->watches[i].owner = 0;
}

/* Which pages a process has mapped: all, or those to write into. */
static void mark_mapped(const struct fake_store *store, pid_t pid, bool all, bool mapped[PAGES])
{
    char path[32], line[512], mode[8];
    unsigned long long from, to, offset, inode;
    FILE *maps;

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    maps = fopen(path, "re");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %7s %llx %*s %llu", &from, &to, mode, &offset, &inode) == 5
            && inode == store->inode && (all || mode[1] == 'w') && offset >= pages_at)
            for (uint64_t at = 0; at < to - from; at += IVC_LAYOUT_PAGE)
                mapped[(offset - pages_at + at) / IVC_LAYOUT_PAGE % PAGES] = true;
    if (maps)
        fclose(maps);
}

/* As the kernel does, which gives no page to another use while somebody has it mapped. */
static void free_ended(const struct fake_store *store)
{
    bool mapped[PAGES] = { false };

    for (uint32_t i = 0; i < USERS; i++)
        if (is_alive(store->all->users[i]))
            mark_mapped(store, store->all->users[i], true, mapped);
        else
            store->all->users[i] = 0;
    for (uint32_t ref = 0; ref < PAGES; ref++)
        if (!mapped[ref])
            store->all->pages[ref].ended = false;
}

static void note_user(const struct fake_store *store)
{
    uint32_t place = 0;

    for (uint32_t i = 0; i < USERS; i++)
        if (store->all->users[i] == getpid())
            return;
    while (place < USERS && is_alive(store->all->users[place]))
        place++;
    CHECK(place < USERS);
    store->all->users[place] = getpid();
}

static void end_unmapped(const struct fake_store *store)
{
    bool done[PAGES] = { false };

    bury_dead(store);
    for (uint32_t first = 0; first < PAGES; first++) {
        pid_t owner = store->all->pages[first].owner;
        bool mapped[PAGES] = { false };

        if (!owner || done[first])
            continue;
        mark_mapped(store, owner, false, mapped);
        for (uint32_t ref = first; ref < PAGES; ref++)
            if (store->all->pages[ref].owner == owner) {
                done[ref] = true;
                if (!mapped[ref])
                    end_page(store, ref);
            }
    }
}

/* ---- the backend */

static int fake_open(void **ret_handle, uint32_t *ret_domain)
{
    const struct fake_store *store = &made;
    uint32_t domain = next_domain;
    struct fake *fake;

    if (fake_faults.open)
        return ivc_error_set(fake_faults.open, "fake: does not open");
    if (followed && !(store = follow(&domain)))
        return ivc_error_set(IVC_E_NOREGION, "fake: this guest is nowhere");
    fake = calloc(1, sizeof *fake);
    fake->store = store;
    lock(store);
    fake->number = ++store->all->listeners;
    note_user(store);
    unlock(store);
    fake->events = socket_open(store, fake->number, "events");
    fake->news = socket_open(store, fake->number, "news");
    *ret_handle = fake;
    fake->domain = *ret_domain = domain;
    return 0;
}

static void fake_close(void *handle)
{
    struct fake *fake = handle;
    const struct fake_store *store = fake->store;

    close(fake->events);
    close(fake->news);
    lock(store);
    for (uint32_t port = 0; port < PORTS; port++)
        if (store->all->ports[port].owner && store->all->ports[port].listener == fake->number)
            close_port(store, port);
    for (uint32_t i = 0; i < WATCHES; i++)
        if (store->all->watches[i].listener == fake->number)
            store->all->watches[i].owner = 0;
    unlock(store);
    free(fake);
}

static bool fake_is_there(void *handle, uint32_t domain)
{
    uint32_t now = domain;

    return !fake_faults.gone && (!followed || (follow(&now) == ((const struct fake *)handle)->store && now == domain));
}

static uint32_t fake_pages_max(void *handle)
{
    (void)handle;
    return fake_faults.pages_max ? fake_faults.pages_max : 4096;
}

static uint32_t find_pages(const struct fake_store *store, uint32_t n)
{
    uint32_t run = 0;

    for (uint32_t ref = FIRST_REF; ref < PAGES; ref++) {
        run = store->all->pages[ref].owner || store->all->pages[ref].ended ? 0 : run + 1;
        if (run == n)
            return ref + 1 - n;
    }
    return 0;
}

static int fake_grant(void *handle, uint32_t domain, uint32_t n, void *place, uint32_t *ret_refs, uint32_t port,
                      uint32_t byte)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    uint32_t first;
    int r = fake_faults.grant;

    if (r)
        return ivc_error_set(r, "fake: does not grant");
    lock(store);
    first = find_pages(store, n);
    if (!first) {
        end_unmapped(store);
        free_ended(store);
        first = find_pages(store, n);
    }
    for (uint32_t i = 0; first && i < n; i++) {
        store->all->pages[first + i] = (struct page){
            .owner = getpid(), .domain = fake->domain, .for_domain = domain,
            .port = i ? 0 : port, .byte = i ? 0 : byte,
        };
        ret_refs[i] = first + i;
    }
    if (first && mmap(place, (size_t)n * IVC_LAYOUT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, store->file,
                      (off_t)(pages_at + (uint64_t)first * IVC_LAYOUT_PAGE)) == MAP_FAILED)
        first = 0;
    if (first)
        memset(place, 0, (size_t)n * IVC_LAYOUT_PAGE);
    unlock(store);
    return first ? 0 : ivc_error_set(IVC_E_NOSPACE, "fake: no %u pages", n);
}

static int fake_map(void *handle, uint32_t domain, uint32_t n, const uint32_t *refs, void *place,
                    void **ret_memory)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    bool good = fake_faults.map == 0;
    char *memory = place;

    lock(store);
    for (uint32_t i = 0; i < n; i++)
        good = good && refs[i] < PAGES && store->all->pages[refs[i]].owner && store->all->pages[refs[i]].domain == domain
               && store->all->pages[refs[i]].for_domain == fake->domain;
    if (good && !memory)
        memory = mmap(NULL, (size_t)n * IVC_LAYOUT_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint32_t i = 0; good && i < n; i++)
        good = mmap(memory + (size_t)i * IVC_LAYOUT_PAGE, IVC_LAYOUT_PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, store->file,
                    (off_t)(pages_at + (uint64_t)refs[i] * IVC_LAYOUT_PAGE)) != MAP_FAILED;
    unlock(store);
    if (!good)
        return ivc_error_set(fake_faults.map ? fake_faults.map : -EBADMSG, "fake: domain %u has not granted that",
                             domain);
    *ret_memory = memory;
    return 0;
}

static uint32_t new_port(const struct fake *fake, uint32_t domain, uint32_t other)
{
    const struct fake_store *store = fake->store;
    uint32_t port = 1;

    while (port < PORTS && store->all->ports[port].owner)
        port++;
    if (port == PORTS)
        return 0;
    store->all->ports[port] = (struct port){
        .owner = getpid(), .listener = fake->number, .domain = fake->domain, .for_domain = domain, .other = other,
    };
    return port;
}

static int fake_port_make(void *handle, uint32_t domain, uint32_t *ret_port)
{
    const struct fake_store *store = ((const struct fake *)handle)->store;
    uint32_t port;

    if (fake_faults.port_make)
        return ivc_error_set(fake_faults.port_make, "fake: no event channel");
    lock(store);
    port = new_port(handle, domain, 0);
    unlock(store);
    *ret_port = port;
    return port ? 0 : ivc_error_set(-ENOSPC, "fake: no event channel");
}

static int fake_port_join(void *handle, uint32_t domain, uint32_t remote, uint32_t *ret_port)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    uint32_t port = 0;

    if (fake_faults.port_join)
        return fake_faults.port_join;
    lock(store);
    if (remote < PORTS && store->all->ports[remote].owner && store->all->ports[remote].domain == domain
        && store->all->ports[remote].for_domain == fake->domain && !store->all->ports[remote].other)
        port = new_port(handle, domain, remote);
    if (port)
        store->all->ports[remote].other = port;
    unlock(store);
    *ret_port = port;
    return port ? 0 : -EINVAL;
}

static void fake_port_ring(void *handle, uint32_t port)
{
    const struct fake_store *store = ((const struct fake *)handle)->store;
    lock(store);
    ring_port(store, port);
    unlock(store);
}

static void fake_port_close(void *handle, uint32_t port)
{
    const struct fake_store *store = ((const struct fake *)handle)->store;
    lock(store);
    close_port(store, port);
    unlock(store);
}

static int fake_events_fd(void *handle)
{
    return ((const struct fake *)handle)->events;
}

static uint32_t fake_event_take(void *handle)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    uint32_t port = 0;

    drain(fake->events);
    lock(store);
    bury_dead(store);
    while (port < PORTS && !(store->all->ports[port].owner && store->all->ports[port].listener == fake->number
                             && store->all->ports[port].rung))
        port++;
    if (port < PORTS)
        store->all->ports[port].rung = false;
    unlock(store);
    return port < PORTS ? port : 0;
}

/* ---- the store, under the lock */

static bool lies_below(const char *path, const char *above)
{
    size_t len = strlen(above);

    return strncmp(path, above, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static void add_news(const struct fake_store *store, struct watch *watch, const char *name)
{
    unsigned i = 0;

    while (i < watch->n_news && strcmp(watch->news[i], name) != 0)
        i++;
    CHECK(i < NEWS);
    if (i == watch->n_news)
        snprintf(watch->news[watch->n_news++], sizeof watch->news[0], "%s", name);
    wake(store, watch->listener, "news");
}

static void fire(const struct fake_store *store, uint32_t domain, const char *path)
{
    const char *name = strrchr(path, '/');

    for (uint32_t i = 0; i < WATCHES; i++) {
        struct watch *watch = &store->all->watches[i];

        if (watch->owner && watch->of_domain == domain && lies_below(path, watch->path))
            add_news(store, watch, name ? name + 1 : path);
    }
}

static struct text *find_text(const struct fake_store *store, uint32_t domain, const char *path)
{
    for (uint32_t i = 0; i < TEXTS; i++)
        if (store->all->texts[i].used && store->all->texts[i].domain == domain && strcmp(store->all->texts[i].path, path) == 0)
            return &store->all->texts[i];
    return NULL;
}

static bool set_text(const struct fake_store *store, uint32_t domain, const char *path, const char *text, uint32_t reader, bool is_door)
{
    struct text *place = find_text(store, domain, path);

    for (uint32_t i = 0; !place && i < TEXTS; i++)
        if (!store->all->texts[i].used)
            place = &store->all->texts[i];
    if (!place || strlen(text) >= TEXT)
        return false;
    *place = (struct text){ .used = true, .domain = domain, .reader = reader, .is_door = is_door };
    snprintf(place->path, sizeof place->path, "%s", path);
    snprintf(place->text, sizeof place->text, "%s", text);
    fire(store, domain, path);
    return true;
}

static void drop_text(const struct fake_store *store, uint32_t domain, const char *path)
{
    for (uint32_t i = 0; i < TEXTS; i++)
        if (store->all->texts[i].used && store->all->texts[i].domain == domain && lies_below(store->all->texts[i].path, path)) {
            store->all->texts[i].used = false;
            fire(store, domain, store->all->texts[i].path);
        }
}

static bool may_read(const struct fake *fake, const struct text *text)
{
    return text->domain == fake->domain || text->reader == fake->domain || text->reader == IVC_GRANT_ALL;
}

static int fake_put(void *handle, const char *path, const char *text, uint32_t reader)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    bool good;

    if (fake_faults.put)
        return ivc_error_set(fake_faults.put, "fake: the store does not take %s", path);
    lock(store);
    good = set_text(store, fake->domain, path, text, reader, false);
    unlock(store);
    return good ? 0 : ivc_error_set(-ENOSPC, "fake: the store does not take %s", path);
}

static void fake_drop(void *handle, const char *path)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    lock(store);
    drop_text(store, fake->domain, path);
    unlock(store);
}

static int fake_get(void *handle, uint32_t domain, const char *path, char **ret_text)
{
    const struct fake_store *store = ((const struct fake *)handle)->store;
    const struct text *text;

    lock(store);
    text = find_text(store, domain, path);
    *ret_text = text && may_read(handle, text) ? strdup(text->text) : NULL;
    unlock(store);
    return *ret_text ? 0 : -ENOENT;
}

static void fake_list(void *handle, uint32_t domain, const char *path, void (*fn)(void *arg, const char *name),
                      void *arg)
{
    const struct fake_store *store = ((const struct fake *)handle)->store;
    static const unsigned most = 64;
    char names[64][PATH];
    const struct text *above;
    unsigned n = 0;

    lock(store);
    above = find_text(store, domain, path);
    for (uint32_t i = 0; above && may_read(handle, above) && i < TEXTS && n < most; i++) {
        const struct text *text = &store->all->texts[i];
        size_t len = strlen(path);

        if (text->used && text->domain == domain && lies_below(text->path, path) && text->path[len]
            && !strchr(text->path + len + 1, '/'))
            snprintf(names[n++], PATH, "%s", text->path + len + 1);
    }
    unlock(store);
    for (unsigned i = 0; i < n; i++)
        fn(arg, names[i]);
}

static void fake_domains(void *handle, bool (*fn)(void *arg, uint32_t domain), void *arg)
{
    const struct fake_store *store = ((const struct fake *)handle)->store;
    uint32_t domains[TEXTS], n = 0;

    lock(store);
    for (uint32_t i = 0; i < TEXTS; i++)
        if (store->all->texts[i].used && (n == 0 || domains[n - 1] != store->all->texts[i].domain))
            domains[n++] = store->all->texts[i].domain;
    unlock(store);
    for (uint32_t i = 0; i < n && fn(arg, domains[i]); i++)
        ;
}

static int fake_open_door(void *handle, const char *path)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    lock(store);
    (void)set_text(store, fake->domain, path, "", fake->domain, true);
    unlock(store);
    return 0;
}

static void fake_knock(void *handle, uint32_t domain, const char *path)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    const struct text *door;
    char own[PATH];

    snprintf(own, sizeof own, "%s/%u", path, fake->domain);
    lock(store);
    door = find_text(store, domain, path);
    if (door && door->is_door)
        fire(store, domain, own);
    unlock(store);
}

static int fake_watch(void *handle, uint32_t domain, const char *path, const char *token)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    uint32_t i = 0;

    if (fake_faults.watch)
        return fake_faults.watch;
    lock(store);
    while (i < WATCHES && store->all->watches[i].owner)
        i++;
    if (i < WATCHES) {
        struct watch *watch = &store->all->watches[i];

        *watch = (struct watch){ .owner = getpid(), .listener = fake->number, .of_domain = domain };
        snprintf(watch->path, sizeof watch->path, "%s", path);
        snprintf(watch->token, sizeof watch->token, "%s", token);
        add_news(store, watch, "");
    }
    unlock(store);
    return i < WATCHES ? 0 : -ENOSPC;
}

static void fake_unwatch(void *handle, uint32_t domain, const char *path, const char *token)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;

    lock(store);
    for (uint32_t i = 0; i < WATCHES; i++)
        if (store->all->watches[i].listener == fake->number && store->all->watches[i].of_domain == domain
            && strcmp(store->all->watches[i].path, path) == 0 && strcmp(store->all->watches[i].token, token) == 0)
            store->all->watches[i].owner = 0;
    unlock(store);
}

static int fake_news_fd(void *handle)
{
    return ((const struct fake *)handle)->news;
}

static bool fake_news_take(void *handle, struct ivc_grant_news *ret_news)
{
    const struct fake *fake = handle;
    const struct fake_store *store = fake->store;
    uint32_t i = 0;

    drain(fake->news);
    lock(store);
    while (i < WATCHES && !(store->all->watches[i].owner && store->all->watches[i].listener == fake->number
                            && store->all->watches[i].n_news))
        i++;
    if (i < WATCHES) {
        struct watch *watch = &store->all->watches[i];

        snprintf(ret_news->token, sizeof ret_news->token, "%s", watch->token);
        snprintf(ret_news->name, sizeof ret_news->name, "%s", watch->news[--watch->n_news]);
    }
    unlock(store);
    return i < WATCHES;
}

static const struct ivc_grant_backend backend = {
    .name = "xen",
    .open = fake_open, .close = fake_close, .is_there = fake_is_there, .pages_max = fake_pages_max,
    .grant = fake_grant, .map = fake_map,
    .port_make = fake_port_make, .port_join = fake_port_join, .port_ring = fake_port_ring,
    .port_close = fake_port_close, .events_fd = fake_events_fd, .event_take = fake_event_take,
    .put = fake_put, .drop = fake_drop, .get = fake_get, .list = fake_list,
    .domains = fake_domains,
    .open_door = fake_open_door, .knock = fake_knock,
    .watch = fake_watch, .unwatch = fake_unwatch, .news_fd = fake_news_fd, .news_take = fake_news_take,
};

/* ---- for the tests */

void fake_grants_make(const char *path)
{
    made = *fake_grants_host(path);
    ivc_grants_use(&backend);
}

void fake_grants_be(uint32_t domain)
{
    next_domain = domain;
}

void fake_grants_follow(const char *link)
{
    followed = link;
    ivc_grants_use(&backend);
}

void fake_grants_order(uint32_t domain, unsigned beat)
{
    fake_host_order(&made, domain, 1, beat);
}

void fake_grants_put(uint32_t domain, const char *path, const char *text)
{
    lock(&made);
    (void)set_text(&made, domain, path, text, IVC_GRANT_ALL, false);
    unlock(&made);
}

void fake_grants_destroy(uint32_t domain)
{
    fake_host_destroy(&made, domain);
}

struct fake_left fake_grants_left(void)
{
    return fake_host_left(&made);
}

/* ---- for a host */

const struct fake_store *fake_grants_host(const char *path)
{
    const struct fake_store *store;
    pthread_mutexattr_t shared;

    CHECK(truncate(path, 0) == 0 && truncate(path, (off_t)(pages_at + (uint64_t)PAGES * IVC_LAYOUT_PAGE)) == 0);
    store = store_at(path);
    CHECK(store);
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&store->all->lock, &shared);
    return store;
}

bool fake_host_is_free(const struct fake_store *store, unsigned ms)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += ms * 1000000l;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    if (pthread_mutex_timedlock(&store->all->lock, &end) == ETIMEDOUT)
        return false;
    unlock(store);
    return true;
}

uint64_t fake_host_pages_at(void)
{
    return pages_at;
}

void fake_host_order(const struct fake_store *store, uint32_t domain, unsigned serial, unsigned beat)
{
    char text[32];

    snprintf(text, sizeof text, "%u %u", serial, beat);
    lock(store);
    if (beat)
        (void)set_text(store, domain, "ivc-order", text, domain, false);
    else
        drop_text(store, domain, "ivc-order");
    unlock(store);
}

void fake_host_members(const struct fake_store *store, void (*fn)(void *arg, uint32_t domain, const char *record),
                       void *arg)
{
    lock(store);
    for (uint32_t i = 0; i < TEXTS; i++)
        if (store->all->texts[i].used && strncmp(store->all->texts[i].path, "ivc/", 4) == 0)
            fn(arg, store->all->texts[i].domain, store->all->texts[i].text);
    unlock(store);
}

void fake_host_drop(const struct fake_store *store, uint32_t domain, uint64_t endpoint_id)
{
    char path[PATH];

    lock(store);
    snprintf(path, sizeof path, "ivc/%016" PRIx64, endpoint_id);
    drop_text(store, domain, path);
    snprintf(path, sizeof path, "ivc-pairs/%016" PRIx64, endpoint_id);
    drop_text(store, domain, path);
    unlock(store);
}

void fake_host_destroy(const struct fake_store *store, uint32_t domain)
{
    lock(store);
    for (uint32_t i = 0; i < TEXTS; i++)
        if (store->all->texts[i].used && store->all->texts[i].domain == domain)
            store->all->texts[i].used = false;
    unlock(store);
}

struct fake_left fake_host_left(const struct fake_store *store)
{
    struct fake_left left = { 0 };

    lock(store);
    end_unmapped(store);
    for (uint32_t ref = 0; ref < PAGES; ref++)
        left.pages += store->all->pages[ref].owner != 0;
    for (uint32_t port = 0; port < PORTS; port++)
        left.ports += store->all->ports[port].owner != 0;
    /* Without the three folders, which stay. */
    for (uint32_t i = 0; i < TEXTS; i++)
        left.texts += store->all->texts[i].used && strchr(store->all->texts[i].path, '/') != NULL;
    for (uint32_t i = 0; i < WATCHES; i++)
        left.watches += store->all->watches[i].owner != 0;
    unlock(store);
    return left;
}
