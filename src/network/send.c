/*
 * Sending packets.
 *
 * What the provider takes along at once (a cache line or two) is sent from where it lies and is not
 * heard of again, but for every 32nd.  All else is copied into a buffer, which comes back with its
 * completion.  So a peer that takes nothing holds a bounded number of our packets.
 */
#include "base/error.h"
#include "network/internal.h"

#include <errno.h>
#include <string.h>

static inline size_t total(const struct iovec *iov, unsigned n_iov)
{
    size_t len = 0;

    for (unsigned i = 0; i < n_iov; i++)
        len += iov[i].iov_len;
    return len;
}

static inline void gather(uint8_t *to, const struct iovec *iov, unsigned n_iov)
{
    for (unsigned i = 0; i < n_iov; i++) {
        memcpy(to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
}

static void give_back(struct ivc_network *network, struct ivc_network_buffer *buffer)
{
    struct ivc_buffers *buffers = buffer->small ? &network->small : &network->large;

    buffer->route = NULL;
    buffer->next = buffers->free;
    buffers->free = buffer;
}

/* The provider took it: it does not refuse this route (any more). */
static inline void note_taken(struct ivc_route *route)
{
    /* Relaxed: only a hint of how things stand, for alive.c. */
    if (__builtin_expect(atomic_load_explicit(&route->refused_since, memory_order_relaxed) != 0, 0))
        atomic_store_explicit(&route->refused_since, 0, memory_order_relaxed);
}

/* The lock is held. */
static inline void note_sent(struct ivc_route *route)
{
    route->sent++;
    if (!atomic_load_explicit(&route->used, memory_order_relaxed))
        atomic_store_explicit(&route->used, true, memory_order_relaxed);
}

/* The provider takes the bytes along. */
static int send_inject(struct ivc_network *network, struct ivc_route *route,
                       const struct iovec *iov, size_t n_iov)
{
    uint64_t flags = FI_INJECT;
    struct fi_msg msg = {
        .msg_iov = iov, .iov_count = n_iov, .addr = route->address, .context = &route->mark,
    };
    bool marked;
    int refused;
    ssize_t r;

    ivc_network_lock(network);
    refused = ivc_route_check(network, route);
    if (route->marks == IVC_NETWORK_MARKS_MAX && refused == 0)
        refused = IVC_E_FULL;
    if (__builtin_expect(refused != 0, 0)) {
        ivc_network_unlock(network);
        return refused;
    }
    marked = route->unmarked + 1 == IVC_NETWORK_MARK_EVERY;
    if (marked) {
        route->marks++;
        flags |= FI_COMPLETION;
    }
    route->unmarked = marked ? 0 : route->unmarked + 1;
    note_sent(route);
    ivc_network_unlock(network);

    r = fi_sendmsg(network->ep, &msg, flags);
    if (__builtin_expect(r == 0, 1)) {
        note_taken(route);
        return 0;
    }
    ivc_network_lock(network);
    route->marks -= marked;
    route->unmarked = marked ? IVC_NETWORK_MARK_EVERY - 1
        : route->unmarked - (route->unmarked > 0);
    ivc_network_unlock(network);
    return ivc_route_answer(network, route, r);
}

/* Counts a buffer as under way; the lock is held. */
static inline int reserve(struct ivc_network *network, struct ivc_route *route)
{
    int r = ivc_route_check(network, route);

    if (__builtin_expect(r != 0, 0))
        return r;
    if (route->sends >= IVC_NETWORK_ROUTE_MAX)
        return IVC_E_FULL;
    route->sends++;
    note_sent(route);
    return 0;
}

/* Posts a buffer that is counted. */
static int post(struct ivc_network *network, struct ivc_route *route,
                struct ivc_network_buffer *buffer, size_t len, uint64_t flags)
{
    struct iovec iov = { buffer->data, len };
    struct fi_msg msg = {
        .msg_iov = &iov, .desc = &buffer->desc, .iov_count = 1, .addr = route->address,
        .context = &buffer->op,
    };
    ssize_t r;

    buffer->route = route;
    r = fi_sendmsg(network->ep, &msg, flags | FI_COMPLETION);
    if (__builtin_expect(r == 0, 1)) {
        note_taken(route);
        return 0;
    }
    ivc_network_lock(network);
    buffer->route = NULL;
    route->sends--;
    ivc_network_unlock(network);
    return ivc_route_answer(network, route, r);
}

/* A buffer of at least `len` bytes, counted as under way on the route. */
static int take_buffer(struct ivc_network *network, struct ivc_route *route, size_t len,
                       struct ivc_network_buffer **ret_buffer)
{
    struct ivc_buffers *buffers = len <= network->small.size ? &network->small : &network->large;
    int r;

    ivc_network_lock(network);
    r = reserve(network, route);
    if (r == 0) {
        r = ivc_buffers_get(network, buffers, ret_buffer);
        route->sends -= r != 0;
    }
    ivc_network_unlock(network);
    return r;
}

int ivc_network_send(struct ivc_network *network, struct ivc_route *route, const struct iovec *iov,
                     unsigned n_iov)
{
    struct ivc_network_buffer *buffer;
    size_t len = total(iov, n_iov);
    int r;

    if (len <= atomic_load_explicit(&network->inject_max, memory_order_relaxed)
        && n_iov <= atomic_load_explicit(&network->iov_max, memory_order_relaxed) && len > 0)
        return send_inject(network, route, iov, n_iov);
    if (len > network->packet_max || len == 0)
        return ivc_error_set(-EMSGSIZE, "network: packet of %zu bytes: from 1 to %zu", len,
                             network->packet_max);
    r = take_buffer(network, route, len, &buffer);
    if (__builtin_expect(r != 0, 0))
        return r;
    gather(buffer->data, iov, n_iov);
    r = post(network, route, buffer, len, 0);
    if (__builtin_expect(r != 0, 0))
        ivc_network_buffer_free(network, buffer);
    return r;
}

int ivc_send_nothing(struct ivc_network *network, struct ivc_route *route, uint64_t flags)
{
    struct ivc_network_buffer *buffer;
    int r = take_buffer(network, route, 0, &buffer);

    if (r != 0)
        return r;
    r = post(network, route, buffer, 0, flags);
    if (r != 0)
        ivc_network_buffer_free(network, buffer);
    return r;
}

int ivc_network_buffer_get(struct ivc_network *network, struct ivc_route *route,
                           struct ivc_network_buffer **ret_buffer, void **ret_data)
{
    int r;

    ivc_network_lock(network);
    r = ivc_route_check(network, route);
    if (r == 0)
        r = ivc_buffers_get(network, &network->large, ret_buffer);
    ivc_network_unlock(network);
    if (r == 0)
        *ret_data = (*ret_buffer)->data;
    return r;
}

int ivc_network_send_buffer(struct ivc_network *network, struct ivc_route *route,
                            struct ivc_network_buffer *buffer, size_t len)
{
    int r;

    if (len > network->packet_max || len == 0)
        return ivc_error_set(-EMSGSIZE, "network: packet of %zu bytes: from 1 to %zu", len,
                             network->packet_max);
    ivc_network_lock(network);
    r = reserve(network, route);
    ivc_network_unlock(network);
    return r != 0 ? r : post(network, route, buffer, len, 0);
}

void ivc_network_buffer_free(struct ivc_network *network, struct ivc_network_buffer *buffer)
{
    if (!buffer)
        return;
    ivc_network_lock(network);
    give_back(network, buffer);
    ivc_network_unlock(network);
}

void ivc_send_ended(struct ivc_network *network, struct ivc_network_buffer *buffer)
{
    ivc_network_lock(network);
    buffer->route->sends--;
    buffer->route->ended++;
    give_back(network, buffer);
    ivc_network_unlock(network);
}

void ivc_mark_ended(struct ivc_network *network, struct ivc_route *route)
{
    ivc_network_lock(network);
    route->marks -= route->marks > 0;
    route->ended++;
    ivc_network_unlock(network);
}
