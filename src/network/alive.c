/*
 * Whether the other ends still exist.
 *
 * Providers do not say.  When a process ends, tcp closes the connection without a word if nothing
 * was under way, connects again at the next send, is refused, and answers "try again" for ever;
 * a peer that only computes looks the same.  So:
 *
 *   quiet route     every few seconds an empty packet is sent: a lost connection becomes a report
 *                   or a refusal
 *   stuck route     nothing is taken, or nothing that was taken ends: whether somebody listens at
 *                   the peer's address is asked by a TCP connection, which is closed at once.  The
 *                   kernel there answers, however long the process computes.  Refused: the process
 *                   has ended.  No answer within the timeout, from this port nor from another one
 *                   of that host (its queue of connections may be full): the host is gone.
 *
 * The same question is asked now and then of every route that is in use, because packets to a host
 * that vanished are taken by our own kernel for a long time.  No data ever travels that way.  For
 * addresses that are not of TCP there is the provider's own report, and, for a route that it takes
 * nothing for, the timeout.
 */
#include "base/error.h"
#include "network/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum {
    TIMEOUT_DEFAULT = 30,           /* seconds */
    TIMEOUT_MAX = 86400,
    STUCK_MS = 1000,
    QUIET_MS = 5000,
    PROBE_FIRST_MS = 30000,         /* of a route that is in use and not stuck */
    PROBE_LONGEST_MS = 60000,
    CLOSED_PORT = 9,                /* any that nobody is likely to serve */
};

int ivc_alive_init(struct ivc_network *network)
{
    uint64_t seconds = TIMEOUT_DEFAULT;
    int r = ivc_env_size("IVC_NETWORK_TIMEOUT", 0, TIMEOUT_MAX, &seconds);

    network->timeout_ms = seconds * 1000;
    return r;
}

static int start_connecting(const struct ivc_route *route, bool host)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } to = { 0 };
    socklen_t len;
    int fd;

    memcpy(&to, route->peer_name, IVC_MIN(sizeof to, sizeof route->peer_name));
    if (to.any.sa_family == AF_INET) {
        len = sizeof to.in4;
        if (host)
            to.in4.sin_port = htons(CLOSED_PORT);
    } else if (to.any.sa_family == AF_INET6) {
        len = sizeof to.in6;
        if (host)
            to.in6.sin6_port = htons(CLOSED_PORT);
    } else {
        return -1;
    }
    fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)connect(fd, &to.any, len);    /* the answer is read from the socket, later */
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
    route->probe_interval = IVC_MIN(2 * route->probe_interval, (uint64_t)PROBE_LONGEST_MS);
}

/* No answer so far, or the network knows no way there. */
static void unanswered(struct ivc_network *network, struct ivc_probe *probe, uint64_t now, bool over)
{
    struct ivc_route *route = probe->route;
    uint64_t silent = now - route->silent_since;

    if (silent >= network->timeout_ms) {
        ivc_route_fail(network, route, "network: the peer's host has not answered for %u s",
                       (unsigned)(silent / 1000));
        end_probe(probe);
    } else if (over || (!probe->host && silent >= network->timeout_ms / 2)) {
        /* From half of the time on it is the host that is asked for. */
        end_probe(probe);
        if (silent >= network->timeout_ms / 2)
            start_probe(network, route, true, now);
        else
            route->probe_at = now;
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
    bool moved, ended, under_way;

    ivc_network_lock(network);
    moved = route->sent != route->sent_seen;
    ended = route->ended != route->ended_seen;
    route->sent_seen = route->sent;
    route->ended_seen = route->ended;
    under_way = route->sends > 0 || route->marks > 0 || route->n_pulls > 0;
    ivc_network_unlock(network);
    if (moved || ended || route->quiet_since == 0)
        route->quiet_since = now;
    if (!under_way || ended || route->still_since == 0)
        route->still_since = under_way ? now : 0;
    *ret_quiet = !under_way && now - route->quiet_since >= QUIET_MS;
    return (refused && now >= refused + STUCK_MS)
        || (route->still_since && now - route->still_since >= STUCK_MS);
}

static void look_at_route(struct ivc_network *network, struct ivc_route *route, uint64_t now)
{
    uint64_t refused;
    bool quiet, stuck = is_stuck(network, route, now, &quiet);

    if (route->probe_interval == 0 || (route->stuck && !stuck)) {
        route->probe_interval = PROBE_FIRST_MS;
        route->probe_at = now + PROBE_FIRST_MS;
    } else if (stuck && !route->stuck) {
        route->probe_interval = STUCK_MS;
        route->probe_at = now;
    }
    route->stuck = stuck;
    refused = atomic_load_explicit(&route->refused_since, memory_order_relaxed);
    /* Asking again is also how a refusal is found to be over, when nobody sends any more. */
    if (route->used && (quiet || (refused && stuck))
        && ivc_send_nothing(network, route, 0) == IVC_E_GONE)
        return;
    if (network->ip && !route->probing && now >= route->probe_at)
        start_probe(network, route, false, now);
    if (!network->ip && refused && now >= refused + network->timeout_ms)
        ivc_route_fail(network, route, "network: nothing could be sent to the peer for %u s",
                       (unsigned)((now - refused) / 1000));
}

void ivc_alive_tick(struct ivc_network *network, uint64_t now)
{
    struct ivc_route *route;

    if (network->timeout_ms == 0 || network->draining)
        return;
    for (unsigned i = 0; i < IVC_NETWORK_PROBES; i++)
        if (network->probes[i].route)
            look_at_probe(network, &network->probes[i], now);
    ivc_network_lock(network);
    route = network->routes;
    ivc_network_unlock(network);
    for (; route; route = route->next) {
        bool watched = atomic_load_explicit(&route->watched, memory_order_relaxed);
        bool used = atomic_load_explicit(&route->used, memory_order_relaxed);

        if ((used || watched) && ivc_route_state(route) == IVC_ROUTE_UP)
            look_at_route(network, route, now);
    }
}

void ivc_alive_free(struct ivc_network *network)
{
    for (unsigned i = 0; i < IVC_NETWORK_PROBES; i++)
        if (network->probes[i].route)
            end_probe(&network->probes[i]);
}
