/*
 * Progress: what libfabric has to report, and what waits for it to have room.
 *
 * One look at the queue serves several reports.  What a report names was posted by us, but how long
 * a packet is was said by the other end: the provider has checked it against the buffer.
 */
#include "base/error.h"
#include "network/internal.h"

#include <stddef.h>
#include <string.h>

enum {
    REPORTS = 16,               /* read at once */
    ROUNDS = 4,                 /* of reading, before others get a turn */
    /* The clock costs as much as a small part of a turn; but who seldom calls looks each time. */
    CALLS_PER_LOOK = 64,
    CYCLES_PER_LOOK = 1 << 26,  /* some 20 ms */
    TICK_MS = 500,
};

static struct ivc_network_buffer *buffer_of(struct ivc_op *op)
{
    return (void *)((char *)op - offsetof(struct ivc_network_buffer, op));
}

static struct ivc_part *part_of(struct ivc_op *op)
{
    return (void *)((char *)op - offsetof(struct ivc_part, op));
}

static struct ivc_route *route_of(struct ivc_op *op)
{
    return (void *)((char *)op - offsetof(struct ivc_route, mark));
}

static int deliver(struct ivc_network *network, struct ivc_network_buffer *buffer, size_t len)
{
    int n = 0;

    if (len > 0 && len <= network->packet_max && !network->draining) {
        network->on_packet(network->arg, buffer->data, len);
        n = 1;
    }
    ivc_buffer_post_receive(network, buffer);
    return n;
}

/* `len` 0: nothing, or it failed half way. */
static int received(struct ivc_network *network, struct ivc_network_buffer *buffer, size_t len)
{
    int n = 0;

    if (__builtin_expect(network->reports_in_order, 1))
        return deliver(network, buffer, len);
    buffer->len = len <= network->packet_max ? (uint32_t)len : 0;
    buffer->ended = true;
    while ((buffer = network->posted) && buffer->ended) {
        network->posted = buffer->next;
        if (!network->posted)
            network->posted_end = &network->posted;
        n += deliver(network, buffer, buffer->len);
    }
    return n;
}

static int report(struct ivc_network *network, const struct fi_cq_msg_entry *entry)
{
    struct ivc_op *op = entry->op_context;

    switch (op->kind) {
    case IVC_OP_RECEIVE:
        return received(network, buffer_of(op), entry->len);
    case IVC_OP_SEND:
        ivc_send_ended(network, buffer_of(op));
        return 0;
    case IVC_OP_MARK:
        ivc_mark_ended(network, route_of(op));
        return 0;
    case IVC_OP_PULL:
        return ivc_pull_ended(network, part_of(op), 0);
    }
    return 0;
}

static void lost(struct ivc_network *network, struct ivc_route *route, int error)
{
    ivc_route_fail(network, route, "network: the connection to the peer is lost (%s)",
                   ivc_network_strerror(network, error));
}

/* An operation failed.  A receive belongs to no route: the buffer goes back. */
static int report_error(struct ivc_network *network)
{
    struct fi_cq_err_entry error = { 0 };
    struct ivc_op *op;

    if (fi_cq_readerr(network->cq, &error, 0) < 0 || !error.op_context)
        return 0;
    op = error.op_context;
    switch (op->kind) {
    case IVC_OP_RECEIVE:
        return received(network, buffer_of(op), 0);
    case IVC_OP_SEND:
        lost(network, buffer_of(op)->route, error.err);
        ivc_send_ended(network, buffer_of(op));
        return 0;
    case IVC_OP_MARK:
        lost(network, route_of(op), error.err);
        ivc_mark_ended(network, route_of(op));
        return 0;
    case IVC_OP_PULL:
        lost(network, part_of(op)->pull->route, error.err);
        return ivc_pull_ended(network, part_of(op), IVC_E_GONE);
    }
    return 0;
}

static void post_again(struct ivc_network *network)
{
    struct ivc_network_buffer *list = network->unposted, *next;

    network->unposted = NULL;
    for (; list; list = next) {
        next = list->next;
        ivc_buffer_post_receive(network, list);
    }
}

static void look_at_clock(struct ivc_network *network)
{
    uint64_t now = ivc_now_ms();

    network->calls = 0;
    network->looked_at = ivc_cycles();
    atomic_store_explicit(&network->tick_due, false, memory_order_relaxed);
    if (now < atomic_load_explicit(&network->tick_at, memory_order_relaxed))
        return;
    atomic_store_explicit(&network->tick_at, now + TICK_MS, memory_order_relaxed);
    ivc_alive_tick(network);
}

/* The provider was not needed yet. */
static int progress_unbound(struct ivc_network *network, bool news)
{
    if (news)
        ivc_contact_settle(network, true);
    if (atomic_load_explicit(&network->failing, memory_order_relaxed))
        ivc_routes_settle(network);
    return 0;
}

int ivc_network_progress(struct ivc_network *network)
{
    struct fi_cq_msg_entry entries[REPORTS];
    int delivered = 0;
    bool news = ivc_contact_has_news(network);

    if (__builtin_expect(!ivc_network_is_bound(network), 0))
        return progress_unbound(network, news);
    for (unsigned round = 0; round < ROUNDS; round++) {
        ssize_t n = fi_cq_read(network->cq, entries, REPORTS);

        for (ssize_t i = 0; i < n; i++)
            delivered += report(network, &entries[i]);
        if (n == -FI_EAVAIL)
            delivered += report_error(network);
        else if (n < REPORTS)
            break;
    }
    if (__builtin_expect(news, 0))
        ivc_contact_settle(network, delivered == 0);
    if (__builtin_expect(network->unposted != NULL, 0))
        post_again(network);
    /* Relaxed reads of what other threads may just be filling: next turn will see it. */
    if (__builtin_expect(atomic_load_explicit(&network->n_waiting, memory_order_relaxed) > 0, 0))
        ivc_pulls_push(network);
    if (__builtin_expect(++network->calls >= CALLS_PER_LOOK, 0)
        || ivc_cycles() - network->looked_at > CYCLES_PER_LOOK
        || atomic_load_explicit(&network->tick_due, memory_order_relaxed))
        look_at_clock(network);
    if (__builtin_expect(atomic_load_explicit(&network->failing, memory_order_relaxed) != NULL, 0))
        ivc_routes_settle(network);
    return delivered;
}
