/* Contact: the thread that listens, answers, and asks; see contact.h. */
#include "network/contact.h"

#include "base/chain.h"
#include "base/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

enum {
    TICK_MS = 20,               /* while somebody is sought */
    GAP_MAX_MS = 1000,          /* what counts at most of the time between two looks */
    ASKER_MS = 5000,            /* who says nothing for so long is not waited for */
};

/* ---- our name */

/* What both sides must have asked for: "net" is libfabric 1.17's word for what is "tcp" later. */
static uint32_t hash_of(const char *wanted)
{
    uint32_t hash = 2166136261u;    /* FNV-1a */

    if (!*wanted || strcasecmp(wanted, "net") == 0)
        wanted = "tcp";
    for (; *wanted; wanted++)
        hash = (hash ^ ((uint8_t)*wanted | 0x20)) * 16777619u;
    return hash ? hash : 1;     /* 0 says: no network */
}

static void make_name(struct ivc_contact *contact, const union ivc_ip *listening)
{
    struct ivc_network_name name = { .provider = hash_of(contact->network->wanted) };
    uint8_t *to = name.bytes;

    name.port = ntohs(listening->any.sa_family == AF_INET ? listening->ip4.sin_port
                      : listening->ip6.sin6_port);
    for (unsigned i = 0; i < contact->n_own; i++) {
        const union ivc_ip *ip = &contact->own[i].ip;
        bool four = ip->any.sa_family == AF_INET;
        size_t len = four ? 4 : 16;

        if (to + len > name.bytes + sizeof name.bytes)
            break;
        memcpy(to, four ? (const void *)&ip->ip4.sin_addr : (const void *)&ip->ip6.sin6_addr, len);
        to += len;
        name.n_ip4 += four;
        name.n_ip6 += !four;
    }
    contact->network->name = name;
}

/* On all interfaces, by both families where the kernel has both. */
static int open_listener(union ivc_ip *ret_ip)
{
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), zero = 0;
    socklen_t len = sizeof *ret_ip;

    *ret_ip = (union ivc_ip){ .ip6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT } };
    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) < 0
        || bind(fd, &ret_ip->any, sizeof ret_ip->ip6) < 0) {
        ivc_close_p(&fd);
        *ret_ip = (union ivc_ip){ .ip4 = { .sin_family = AF_INET } };
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, &ret_ip->any, sizeof ret_ip->ip4) < 0)
            ivc_close_p(&fd);
    }
    if (fd >= 0 && (listen(fd, SOMAXCONN) < 0 || getsockname(fd, &ret_ip->any, &len) < 0))
        ivc_close_p(&fd);
    return fd;
}

int ivc_contact_open(struct ivc_network *network, uint64_t id)
{
    struct ivc_contact *contact = calloc(1, sizeof *contact);
    const char *wanted = ivc_ip_wanted_interface();
    union ivc_ip listening;

    if (!contact)
        return ivc_error_set(-ENOMEM, "network: out of memory");
    network->contact = contact;
    contact->network = network;
    contact->id = id;
    contact->listener = contact->wake = -1;
    pthread_mutex_init(&contact->lock, NULL);
    contact->n_own = ivc_ip_list(contact->own, sizeof contact->own / sizeof *contact->own);
    if (contact->n_own == 0)
        return wanted ? ivc_error_set(-ENODEV, "network: FI_TCP_IFACE=%s: no interface of that name is up with "
                                      "an address (`ip address` lists them)", wanted)
               : ivc_error_set(-ENODEV, "network: no interface is up with an address (`ip address` lists them)");
    contact->listener = open_listener(&listening);
    contact->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (contact->listener < 0 || contact->wake < 0)
        return ivc_error_set(-ENODEV, "network: a TCP socket to be reached at: %s", strerror(errno));
    make_name(contact, &listening);
    return 0;
}

const union ivc_ip *ivc_contact_source(const struct ivc_contact *contact, const union ivc_ip *local,
                                       const union ivc_ip *remote)
{
    /* Within a kernel any address of it does: then the one that leads others here as well. */
    return ivc_ip_wanted_interface() || ivc_ip_is_own(remote, NULL) ? &contact->own[0].ip : local;
}

/* ---- answering */

/* An IPv4 address as a socket of both families has it. */
static void unmap(union ivc_ip *ip)
{
    union ivc_ip plain = { .ip4 = { .sin_family = AF_INET } };

    if (ip->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&ip->ip6.sin6_addr))
        return;
    plain.ip4.sin_port = ip->ip6.sin6_port;
    memcpy(&plain.ip4.sin_addr, &ip->ip6.sin6_addr.s6_addr[12], 4);
    *ip = plain;
}

static int bind_for(struct ivc_contact *contact, int fd)
{
    union ivc_ip local = { .any = { 0 } }, remote = { .any = { 0 } };
    socklen_t local_len = sizeof local, remote_len = sizeof remote;

    if (ivc_network_is_bound(contact->network))
        return 0;
    if (getsockname(fd, &local.any, &local_len) < 0 || getpeername(fd, &remote.any, &remote_len) < 0)
        return ivc_error_set(-errno, "network: %s", strerror(errno));
    unmap(&local);
    unmap(&remote);
    return ivc_network_bind(contact->network, ivc_contact_source(contact, &local, &remote));
}

static void answer(struct ivc_contact *contact, const struct ivc_asker *asker)
{
    const struct ivc_network *network = contact->network;
    struct ivc_answer answer = {
        .magic = IVC_CONTACT_MAGIC, .kind = IVC_ANSWER_OTHER, .nonce = asker->question.nonce,
        .id = asker->question.id,
    };

    if (asker->question.magic != IVC_CONTACT_MAGIC || asker->question.version != IVC_CONTACT_VERSION)
        return;
    if (asker->question.id == contact->id && bind_for(contact, asker->fd) < 0) {
        answer.kind = IVC_ANSWER_NONE;
        snprintf(answer.text, sizeof answer.text, "%.199s", ivc_error_text());
    } else if (asker->question.id == contact->id) {
        answer.kind = IVC_ANSWER_HERE;
        answer.hash = network->fabric_hash;
        answer.len = (uint16_t)network->fabric_len;
        answer.ip = network->ip;
        memcpy(answer.name, network->fabric_name, network->fabric_len);
    }
    /* There is room for it in the socket; who does not get it asks again. */
    (void)send(asker->fd, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* True: done with it. */
static bool hear(struct ivc_contact *contact, struct ivc_asker *asker)
{
    ssize_t n = recv(asker->fd, (char *)&asker->question + asker->got, sizeof asker->question - asker->got,
                     MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return contact->clock - asker->since >= ASKER_MS;
    if (n <= 0)
        return true;
    asker->got += (size_t)n;
    if (asker->got < sizeof asker->question)
        return false;
    answer(contact, asker);
    return true;
}

static void hear_all(struct ivc_contact *contact)
{
    for (unsigned i = 0; i < contact->n_askers; i++) {
        if (!hear(contact, &contact->askers[i]))
            continue;
        close(contact->askers[i].fd);
        contact->askers[i--] = contact->askers[--contact->n_askers];
    }
}

static void let_in(struct ivc_contact *contact)
{
    int fd;

    while (contact->n_askers < IVC_ASKERS_MAX
           && (fd = accept4(contact->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        contact->askers[contact->n_askers++] = (struct ivc_asker){ .fd = fd, .since = contact->clock };
}

/* ---- the thread */

static void tell_progress(struct ivc_contact *contact, struct ivc_seek *seek)
{
    uint64_t one = 1;

    pthread_mutex_lock(&contact->lock);
    seek->next = contact->settled;
    contact->settled = seek;
    /* Relaxed: what it is about is read under the lock. */
    atomic_store_explicit(&contact->news, true, memory_order_relaxed);
    pthread_mutex_unlock(&contact->lock);
    (void)!write(contact->network->news_fd, &one, sizeof one);
}

static void step_all(struct ivc_contact *contact)
{
    struct ivc_seek **at = &contact->seeks, *seek;

    while ((seek = *at)) {
        /* (A moment ago it may have been unused still.) */
        bool wanted = ivc_route_state(seek->route) <= IVC_ROUTE_SEEKING;

        if (wanted && !ivc_seek_step(contact, seek)) {
            at = &seek->next;
            continue;
        }
        *at = seek->next;
        if (wanted)
            tell_progress(contact, seek);
        else
            ivc_seek_free(seek);
        /* Relaxed, as where it is read: nothing is read on the strength of it. */
        atomic_fetch_sub_explicit(&contact->n_seeking, 1, memory_order_relaxed);
    }
}

/* False: the network is being closed. */
static bool take_orders(struct ivc_contact *contact)
{
    struct ivc_seek *list, *next;
    uint64_t count;
    bool stop, load;

    (void)!read(contact->wake, &count, sizeof count);
    pthread_mutex_lock(&contact->lock);
    stop = contact->stop;
    load = contact->load;
    contact->load = false;
    list = contact->asked;
    contact->asked = NULL;
    pthread_mutex_unlock(&contact->lock);
    for (; list; list = next) {
        next = list->next;
        list->since = contact->clock;
        list->next = contact->seeks;
        contact->seeks = list;
    }
    if (load && !stop)
        (void)ivc_network_load(contact->network);
    return !stop;
}

static bool add_fd(struct ivc_contact *contact, size_t *n, int fd, short events)
{
    if (*n == contact->n_fds_max) {
        size_t n_max = 2 * contact->n_fds_max + 128;
        struct pollfd *fds = realloc(contact->fds, n_max * sizeof *fds);

        if (!fds)
            return false;       /* it is looked at in the next round, or later */
        contact->fds = fds;
        contact->n_fds_max = n_max;
    }
    contact->fds[(*n)++] = (struct pollfd){ .fd = fd, .events = events };
    return true;
}

static void await(struct ivc_contact *contact)
{
    size_t n = 0;
    bool all = add_fd(contact, &n, contact->wake, POLLIN);
    uint64_t now;

    if (contact->n_askers < IVC_ASKERS_MAX)
        all &= add_fd(contact, &n, contact->listener, POLLIN);
    for (unsigned i = 0; i < contact->n_askers; i++)
        all &= add_fd(contact, &n, contact->askers[i].fd, POLLIN);
    for (struct ivc_seek *seek = contact->seeks; seek; seek = seek->next)
        for (unsigned i = 0; i < seek->n; i++)
            if (ivc_attempt_events(&seek->attempts[i]) != 0)
                all &= add_fd(contact, &n, seek->attempts[i].fd, ivc_attempt_events(&seek->attempts[i]));
    (void)poll(contact->fds, n, contact->seeks || contact->n_askers > 0 || !all ? TICK_MS : -1);
    now = ivc_now_ms();
    contact->clock += IVC_MIN(now - contact->looked_at, (uint64_t)GAP_MAX_MS);
    contact->looked_at = now;
}

static void *run(void *arg)
{
    struct ivc_contact *contact = arg;

    prctl(PR_SET_NAME, "ivc-contact");
    contact->looked_at = ivc_now_ms();
    while (take_orders(contact)) {
        hear_all(contact);
        let_in(contact);
        step_all(contact);
        await(contact);
    }
    return NULL;
}

int ivc_contact_start(struct ivc_network *network)
{
    struct ivc_contact *contact = network->contact;
    int r = ivc_thread_start(&contact->thread, run, contact);

    contact->started = r == 0;
    return r == 0 ? 0 : ivc_error_set(-r, "network: a thread that answers peers: %s", strerror(r));
}

/* ---- the others' side */

static void rouse(struct ivc_contact *contact)
{
    uint64_t one = 1;

    (void)!write(contact->wake, &one, sizeof one);
}

void ivc_contact_load(struct ivc_network *network)
{
    struct ivc_contact *contact = network->contact;

    pthread_mutex_lock(&contact->lock);
    contact->load = true;
    pthread_mutex_unlock(&contact->lock);
    rouse(contact);
}

static void read_candidates(struct ivc_seek *seek, const struct ivc_network_name *name)
{
    const uint8_t *at = name->bytes;

    seek->port = name->port;
    for (unsigned i = 0; i < (unsigned)name->n_ip4 + name->n_ip6 && i < IVC_CANDIDATES_MAX - 1; i++) {
        union ivc_ip *ip = &seek->attempts[seek->n].to;

        if (i < name->n_ip4) {
            ip->ip4.sin_family = AF_INET;
            memcpy(&ip->ip4.sin_addr, at, 4);
            at += 4;
        } else {
            ip->ip6.sin6_family = AF_INET6;
            memcpy(&ip->ip6.sin6_addr, at, 16);
            at += 16;
        }
        ivc_ip_set_port(ip, seek->port);
        seek->attempts[seek->n++].fd = -1;
    }
}

int ivc_contact_seek(struct ivc_network *network, struct ivc_route *route)
{
    struct ivc_contact *contact = network->contact;
    struct ivc_seek *seek = calloc(1, sizeof *seek);

    if (!seek)
        return ivc_error_set(-ENOMEM, "network: out of memory");
    seek->route = route;
    seek->id = route->id;
    seek->nonce = ivc_random_id();
    read_candidates(seek, &route->name);
    pthread_mutex_lock(&contact->lock);
    atomic_fetch_add_explicit(&contact->n_seeking, 1, memory_order_relaxed);
    seek->next = contact->asked;
    contact->asked = seek;
    pthread_mutex_unlock(&contact->lock);
    rouse(contact);
    return 0;
}

bool ivc_network_is_seeking(const struct ivc_network *network)
{
    return atomic_load_explicit(&network->contact->n_seeking, memory_order_relaxed) > 0;
}

bool ivc_contact_has_news(const struct ivc_network *network)
{
    /* Relaxed: what it is about is read under the lock. */
    return atomic_load_explicit(&network->contact->news, memory_order_relaxed);
}

static void settle_one(struct ivc_network *network, const struct ivc_seek *seek)
{
    if (ivc_route_state(seek->route) != IVC_ROUTE_SEEKING)
        return;
    if (seek->right)
        ivc_route_begin(network, seek->route, seek->right->answer.name, seek->right->answer.len);
    else
        ivc_route_fail(network, seek->route, "%s", seek->reason);
}

void ivc_contact_settle(struct ivc_network *network, bool nothing_came)
{
    struct ivc_contact *contact = network->contact;
    struct ivc_seek *done = NULL, **at = &contact->settled, *seek;
    uint64_t count;

    pthread_mutex_lock(&contact->lock);
    while ((seek = *at)) {
        if (!seek->right && !nothing_came) {
            at = &seek->next;
            continue;
        }
        *at = seek->next;
        seek->next = done;
        done = seek;
    }
    if (!contact->settled) {
        (void)!read(network->news_fd, &count, sizeof count);
        atomic_store_explicit(&contact->news, false, memory_order_relaxed);
    }
    pthread_mutex_unlock(&contact->lock);
    while ((seek = done)) {
        done = seek->next;
        settle_one(network, seek);
        ivc_seek_free(seek);
    }
}

static void free_seeks(struct ivc_seek *seek)
{
    while (seek) {
        struct ivc_seek *next = seek->next;

        ivc_seek_free(seek);
        seek = next;
    }
}

void ivc_contact_free(struct ivc_network *network)
{
    struct ivc_contact *contact = network->contact;

    if (!contact)
        return;
    if (contact->started) {
        pthread_mutex_lock(&contact->lock);
        contact->stop = true;
        pthread_mutex_unlock(&contact->lock);
        rouse(contact);
        pthread_join(contact->thread, NULL);
    }
    for (unsigned i = 0; i < contact->n_askers; i++)
        close(contact->askers[i].fd);
    free_seeks(contact->seeks);
    free_seeks(contact->asked);
    free_seeks(contact->settled);
    ivc_close_p(&contact->listener);
    ivc_close_p(&contact->wake);
    pthread_mutex_destroy(&contact->lock);
    free(contact->fds);
    free(contact);
    network->contact = NULL;
}
