/*
 * Routes: one destination each, from connecting to going down.
 *
 * A route goes down once and never comes back: a provider may connect anew behind our backs, but
 * what was on its way is lost, and packets are to arrive all or none.  A route's memory stays until
 * the network is freed, because the provider may name it in a report long after.
 */
#include "base/error.h"
#include "network/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

enum {
    /* The provider reports all that was under way when it loses a connection.  What it has not
     * reported after this time is given up. */
    GRACE_MS = 2000,
};

static int check_name(const struct ivc_network *network, const struct ivc_network_name *name)
{
    if (name->provider == 0)
        return ivc_error_set(IVC_E_UNREACHABLE, "network: the peer has none (IVC_NETWORK there?)");
    if (name->provider != network->name.provider)
        return ivc_error_set(IVC_E_UNREACHABLE, IVC_NETWORK_ANOTHER, network->wanted);
    if (!ivc_network_name_is_valid(name))
        return ivc_error_set(IVC_E_UNREACHABLE, "network: the peer's address is damaged");
    return 0;
}

int ivc_network_connect(struct ivc_network *network, uint64_t id, const struct ivc_network_name *name,
                        void *arg, struct ivc_route **ret_route)
{
    struct ivc_route *route;
    int r = check_name(network, name);

    if (r != 0)
        return r;
    route = calloc(1, sizeof *route);
    if (!route)
        return ivc_error_set(-ENOMEM, "network: out of memory");
    route->state = IVC_ROUTE_UNUSED;
    route->id = id;
    route->name = *name;
    route->mark.kind = IVC_OP_MARK;
    route->arg = arg;
    ivc_network_lock(network);
    route->next = network->routes;
    network->routes = route;
    ivc_network_unlock(network);
    *ret_route = route;
    return 0;
}

void ivc_route_begin(struct ivc_network *network, struct ivc_route *route, const void *name, size_t len)
{
    int r;

    memcpy(route->peer_name, name, len);
    r = fi_av_insert(network->av, route->peer_name, 1, &route->address, 0, NULL);
    if (r != 1) {
        ivc_route_fail(network, route, "network: %s cannot use the peer's address",
                       network->provider.info->fabric_attr->prov_name);
        return;
    }
    ivc_network_lock(network);
    if (ivc_route_state(route) == IVC_ROUTE_SEEKING)
        atomic_store_explicit(&route->state, IVC_ROUTE_UP, memory_order_relaxed);
    ivc_network_unlock(network);
}

void *ivc_route_arg(const struct ivc_route *route)
{
    return route->arg;
}

int ivc_route_refuse(struct ivc_network *network, struct ivc_route *route)
{
    enum ivc_route_state state = ivc_route_state(route);

    if (state == IVC_ROUTE_UNUSED && ivc_contact_seek(network, route) == 0)
        atomic_store_explicit(&route->state, IVC_ROUTE_SEEKING, memory_order_relaxed);
    return state == IVC_ROUTE_DOWN ? IVC_E_GONE : IVC_E_FULL;
}

void ivc_route_seek(struct ivc_network *network, struct ivc_route *route)
{
    ivc_network_lock(network);
    (void)ivc_route_check(network, route);
    ivc_network_unlock(network);
}

void ivc_route_watch(struct ivc_network *network, struct ivc_route *route)
{
    ivc_route_seek(network, route);
    /* Relaxed: a hint for alive.c, at any later turn. */
    if (!atomic_load_explicit(&route->used, memory_order_relaxed))
        atomic_store_explicit(&route->used, true, memory_order_relaxed);
}

void ivc_route_fail(struct ivc_network *network, struct ivc_route *route, const char *format, ...)
{
    va_list args;

    ivc_network_lock(network);
    if (ivc_route_state(route) <= IVC_ROUTE_SEEKING) {
        va_start(args, format);
        vsnprintf(route->reason, sizeof route->reason, format, args);
        va_end(args);
        route->failing_since = ivc_now_ms();
        route->next_failing = atomic_load_explicit(&network->failing, memory_order_relaxed);
        atomic_store_explicit(&route->state, IVC_ROUTE_FAILING, memory_order_relaxed);
        atomic_store_explicit(&network->failing, route, memory_order_relaxed);
    }
    ivc_network_unlock(network);
}

void ivc_route_heard(struct ivc_route *route)
{
    /* Relaxed: as above. */
    if (!atomic_load_explicit(&route->heard, memory_order_relaxed))
        atomic_store_explicit(&route->heard, true, memory_order_relaxed);
}

void ivc_route_free(struct ivc_network *network, struct ivc_route *route)
{
    if (!route)
        return;
    ivc_network_lock(network);
    route->freed = true;
    ivc_network_unlock(network);
    ivc_route_fail(network, route, "given back");
}

/* Unreachable may pass: then it is a matter of time (alive.c).  Refused does not. */
static bool may_pass(ssize_t r)
{
    return r == -FI_EAGAIN || r == -FI_ENOMEM || r == -FI_EHOSTUNREACH || r == -FI_ENETUNREACH
        || r == -FI_ETIMEDOUT;
}

int ivc_route_answer(struct ivc_network *network, struct ivc_route *route, ssize_t r)
{
    if (may_pass(r)) {
        if (atomic_load_explicit(&route->refused_since, memory_order_relaxed) == 0)
            atomic_store_explicit(&route->refused_since, ivc_alive_now(network),
                                  memory_order_relaxed);
        return IVC_E_FULL;
    }
    ivc_route_fail(network, route, "network: cannot send to the peer: %s",
                   ivc_network_strerror(network, (int)-r));
    return ivc_route_check(network, route);
}

/* Whether on_down may be called now.  The lock is held. */
static bool settled(struct ivc_route *route, uint64_t now)
{
    return (route->sends == 0 && route->marks == 0 && route->n_pulls == 0)
        || now - route->failing_since >= GRACE_MS;
}

/* Buffers that the provider has not reported, and may never: others are allowed in their place.
 * The lock is held. */
static void replace_lost(struct ivc_network *network, const struct ivc_route *route)
{
    network->small.n_max += route->sends;
    network->large.n_max += route->sends;
}

void ivc_routes_settle(struct ivc_network *network)
{
    uint64_t now = ivc_now_ms();
    struct ivc_route *list, *next;

    ivc_network_lock(network);
    list = atomic_load_explicit(&network->failing, memory_order_relaxed);
    atomic_store_explicit(&network->failing, NULL, memory_order_relaxed);
    ivc_network_unlock(network);
    for (; list; list = next) {
        bool ready, wanted, freed;

        next = list->next_failing;
        ivc_network_lock(network);
        wanted = ivc_route_state(list) == IVC_ROUTE_FAILING;
        ready = wanted && settled(list, now);
        freed = list->freed;
        if (ready)
            replace_lost(network, list);
        if (wanted && !ready) {
            list->next_failing = atomic_load_explicit(&network->failing, memory_order_relaxed);
            atomic_store_explicit(&network->failing, list, memory_order_relaxed);
        }
        ivc_network_unlock(network);
        if (!ready)
            continue;
        ivc_pulls_abandon(network, list);
        atomic_store_explicit(&list->state, IVC_ROUTE_DOWN, memory_order_relaxed);
        if (!network->draining && !freed)
            network->on_down(network->arg, list, list->reason);
    }
}

void ivc_routes_free(struct ivc_network *network)
{
    struct ivc_route *next;

    for (struct ivc_route *route = network->routes; route; route = next) {
        next = route->next;
        free(route);
    }
    network->routes = NULL;
}
