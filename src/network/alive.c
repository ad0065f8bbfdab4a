/*
 * Whether the other ends still exist.
 *
 * A provider says something when it is given a packet, and nothing while we only wait.  So a route
 * that is in use (something was sent, or somebody waits for what comes) is never silent for long:
 *
 *   quiet     after five seconds an empty packet is sent, which receivers pass over.  If the peer's
 *             process has ended, its kernel has closed the connection, and the packet becomes an
 *             error, or it is refused: the provider tries to connect again, for ever.
 *   refused   a process that computes and never got round to accepting a connection looks the same
 *             to a provider.  So after a second the kernel there is asked: does anybody listen at
 *             the peer's address?  It answers, however long the process computes.  "Refused" means
 *             that the process has ended.
 *   silent    a host that vanished closes nothing, and our own kernel takes packets for it for a
 *             quarter of an hour.  So every 30 s, and when what was sent does not leave, the host
 *             is asked, at a port that nobody serves: refusing is an answer, too.
 *
 * The questions are TCP connections that are closed at once; no data ever travels that way.  They
 * can be asked of addresses that are of TCP; for others there is the provider's own report, and,
 * for a route that it takes nothing for, a long time.  What is not answered for IVC_NETWORK_TIMEOUT
 * is asked the other way from half of that time on: a full queue of connections or a filter may
 * swallow one of the two.
 *
 * All times are of a clock that stands still while nobody calls progress: a guest that was paused
 * finds its peers as it left them.
 */
#include "base/error.h"
#include "network/internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum {
    TIMEOUT_DEFAULT = 30,           /* seconds */
    TIMEOUT_MAX = 86400,
    BLIND_FACTOR = 10,              /* the timeout where a living peer cannot be told from a dead */
    STUCK_MS = 1000,
    QUIET_MS = 5000,
    HOST_EVERY_MS = 30000,
    STUCK_LONGEST_MS = 60000,       /* between two questions about one that does not take packets */
    GAP_MAX_MS = 2000,              /* what counts at most of the time between two ticks */
    CLOSED_PORT = 9,                /* any that nobody is likely to serve */
};

int ivc_alive_init(struct ivc_network *network)
{
    uint64_t seconds = TIMEOUT_DEFAULT;
    int r = ivc_env_number("IVC_NETWORK_TIMEOUT", "seconds", 0, TIMEOUT_MAX, &seconds);

    network->timeout_ms = seconds * 1000;
    return r;
}

uint64_t ivc_alive_now(struct ivc_network *network)
{
    /* Relaxed: a number of its own; nothing is read on the strength of it. */
    return ivc_now_ms() - atomic_load_explicit(&network->unseen_ms, memory_order_relaxed);
}

static union ivc_ip name_of(const struct ivc_route *route)
{
    union ivc_ip name;

    memcpy(&name, route->peer_name, sizeof name);
    return name;
}

static bool same_host(const struct ivc_route *a, const struct ivc_route *b)
{
    union ivc_ip name_a = name_of(a), name_b = name_of(b);

    return ivc_ip_is_same(&name_a, &name_b);
}

static int start_connecting(const struct ivc_route *route, bool host)
{
    union ivc_ip to = name_of(route);
    int fd;

    if (!ivc_ip_is_one(&to))
        return -1;
    if (host)
        ivc_ip_set_port(&to, CLOSED_PORT);
    fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)connect(fd, &to.any, ivc_ip_size(&to));   /* the answer is read from the socket, later */
    return fd;
}

static void start_probe(struct ivc_network *network, struct ivc_route *route, bool host,
                        uint64_t now)
{
    for (unsigned i = 0; i < IVC_NETWORK_PROBES; i++) {
        struct ivc_probe *probe = &network->probes[i];

        if (probe->route)
            continue;
        probe->fd = start_connecting(route, host);
        if (probe->fd < 0)
            return;
        probe->route = route;
        probe->host = host;
        probe->since = now;
        route->probing = true;
        if (route->silent_since == 0)
            route->silent_since = now;
        return;
    }
}

static void end_probe(struct ivc_probe *probe)
{
    close(probe->fd);
    probe->route->probing = false;
    probe->route = NULL;
}

static void is_alive(struct ivc_route *route, uint64_t now)
{
    route->silent_since = 0;
    route->probe_at = now + route->probe_interval;
    if (route->stuck)
        route->probe_interval = IVC_MIN(2 * route->probe_interval, (uint64_t)STUCK_LONGEST_MS);
}

/* Nothing of that host has answered: so it is with all that are in use and lead there. */
static void host_is_gone(struct ivc_network *network, const struct ivc_route *silent,
                         uint64_t silent_ms)
{
    struct ivc_route *route;

    ivc_network_lock(network);
    route = network->routes;
    ivc_network_unlock(network);
    for (; route; route = route->next)
        if (atomic_load_explicit(&route->used, memory_order_relaxed) && same_host(route, silent))
            ivc_route_fail(network, route, "network: the peer's host has not answered for %u s",
                           (unsigned)(silent_ms / 1000));
}

/* No answer so far, or the network knows no way there. */
static void unanswered(struct ivc_network *network, struct ivc_probe *probe, uint64_t now,
                       bool over)
{
    struct ivc_route *route = probe->route;
    uint64_t silent = now - route->silent_since;
    bool turn = now - probe->since >= network->timeout_ms / 2;

    if (silent >= network->timeout_ms) {
        end_probe(probe);
        host_is_gone(network, route, silent);
    } else if (over || turn) {
        bool host = turn ? !probe->host : probe->host;
        uint64_t since = turn ? now : probe->since;

        end_probe(probe);
        start_probe(network, route, host, since);
    }
}

static void look_at_probe(struct ivc_network *network, struct ivc_probe *probe, uint64_t now)
{
    struct pollfd pollfd = { .fd = probe->fd, .events = POLLOUT };
    int error = 0;
    socklen_t len = sizeof error;

    if (ivc_route_state(probe->route) != IVC_ROUTE_UP) {
        end_probe(probe);
    } else if (poll(&pollfd, 1, 0) <= 0) {
        unanswered(network, probe, now, false);
    } else if (getsockopt(probe->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error == 0
               || (probe->host && error == ECONNREFUSED)) {
        is_alive(probe->route, now);
        end_probe(probe);
    } else if (error == ECONNREFUSED) {
        ivc_route_fail(network, probe->route,
                       "network: nobody listens at the peer's address any more, its process has "
                       "ended");
        end_probe(probe);
    } else {
        unanswered(network, probe, now, true);
    }
}

/* Whether packets or pulls are held up; notes how long things have been as they are. */
static bool is_stuck(struct ivc_network *network, struct ivc_route *route, uint64_t now,
                     bool *ret_quiet)
{
    uint64_t refused = atomic_load_explicit(&route->refused_since, memory_order_relaxed);
    bool heard = atomic_exchange_explicit(&route->heard, false, memory_order_relaxed);
    bool moved, ended, under_way;

    ivc_network_lock(network);
    moved = route->sent != route->sent_seen;
    ended = route->ended != route->ended_seen;
    route->sent_seen = route->sent;
    route->ended_seen = route->ended;
    under_way = route->sends > 0 || route->marks > 0 || route->n_pulls > 0;
    ivc_network_unlock(network);
    if (heard) {
        route->silent_since = route->probing ? now : 0;
        route->probe_at = now + route->probe_interval;
    }
    if (moved || ended || heard || route->quiet_since == 0)
        route->quiet_since = now;
    if (!under_way || ended || route->still_since == 0)
        route->still_since = under_way ? now : 0;
    *ret_quiet = !under_way && now - route->quiet_since >= QUIET_MS;
    return (refused && now >= refused + STUCK_MS)
        || (route->still_since && now - route->still_since >= STUCK_MS);
}

static void plan_questions(struct ivc_route *route, bool stuck, uint64_t now)
{
    if (stuck && !route->stuck) {   /* perhaps at the first look: we may have computed till now */
        route->probe_interval = STUCK_MS;
        route->probe_at = now;
    } else if (route->probe_interval == 0 || (route->stuck && !stuck)) {
        route->probe_interval = HOST_EVERY_MS;
        route->probe_at = now + HOST_EVERY_MS;
    }
    route->stuck = stuck;
}

static void look_at_route(struct ivc_network *network, struct ivc_route *route, uint64_t now)
{
    uint64_t refused, blind_ms = BLIND_FACTOR * network->timeout_ms;
    bool quiet, stuck = is_stuck(network, route, now, &quiet);

    plan_questions(route, stuck, now);
    refused = atomic_load_explicit(&route->refused_since, memory_order_relaxed);
    /* Asking again is also how a refusal is found to be over, when nobody sends any more. */
    if (quiet || (refused && stuck))
        (void)ivc_send_nothing(network, route, 0);
    if (ivc_route_state(route) != IVC_ROUTE_UP)
        return;
    if (network->of_tcp && !route->probing && now >= route->probe_at)
        start_probe(network, route, !stuck, now);
    if (!network->of_tcp && refused && now >= refused + blind_ms)
        ivc_route_fail(network, route, "network: nothing could be sent to the peer for %u s",
                       (unsigned)((now - refused) / 1000));
}

/* Of the time in which nobody looked, little counts. */
static uint64_t advance_clock(struct ivc_network *network)
{
    uint64_t now = ivc_alive_now(network);

    if (network->ticked_at && now - network->ticked_at > GAP_MAX_MS) {
        uint64_t unseen = now - network->ticked_at - GAP_MAX_MS;

        atomic_fetch_add_explicit(&network->unseen_ms, unseen, memory_order_relaxed);
        now -= unseen;
    }
    network->ticked_at = now;
    return now;
}

void ivc_alive_tick(struct ivc_network *network)
{
    uint64_t now = advance_clock(network);
    struct ivc_route *route;

    if (network->timeout_ms == 0 || network->draining)
        return;
    for (unsigned i = 0; i < IVC_NETWORK_PROBES; i++)
        if (network->probes[i].route)
            look_at_probe(network, &network->probes[i], now);
    ivc_network_lock(network);
    route = network->routes;
    ivc_network_unlock(network);
    for (; route; route = route->next)
        if (atomic_load_explicit(&route->used, memory_order_relaxed)
            && ivc_route_state(route) == IVC_ROUTE_UP)
            look_at_route(network, route, now);
}

void ivc_alive_free(struct ivc_network *network)
{
    for (unsigned i = 0; i < IVC_NETWORK_PROBES; i++)
        if (network->probes[i].route)
            end_probe(&network->probes[i]);
}
