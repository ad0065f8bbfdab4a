/*
 * The descriptor for poll(2): that of the endpoint (endpoint/wait.c), armed by the calls that find nothing.
 *
 * Invariant.  Between two calls the descriptor is readable, or it is armed: everything that was known has been told
 * to the program, no ring is watched by looks, and whatever comes makes it readable.
 */
#include "internal.h"

#include "endpoint/endpoint.h"

#define EXPORT __attribute__((visibility("default")))

bool descriptor_has_news(const struct ivc_context *context)
{
    for (const struct ivc_connection *c = context->connections; c; c = c->next)
        if (!c->accepted || (!c->closed_by_user && (c->unread_len > 0 || c->closed_by_peer || c->broken
                                                    || move_is_news(c))))
            return true;
    return false;
}

/* The last ivc_write() was short, and none has been since that changed anything. */
static bool is_blocked(const struct ivc_connection *connection)
{
    return connection->blocked && !connection->closed_by_user
           && connection->granted - connection->credit == connection->blocked_at;
}

static bool may_write_on(const struct ivc_context *context)
{
    for (struct ivc_connection *c = context->connections; c; c = c->next)
        if (is_blocked(c) && stream_room(c) > 0)
            return true;
    return false;
}

/* Somebody waits for room in memory, of which no peer tells; what it has read it tells by a packet. */
static bool waits_for_room(const struct ivc_context *context)
{
    for (const struct ivc_connection *c = context->connections; c; c = c->next)
        if (is_blocked(c) && c->credit > 0)
            return true;
    return false;
}

static bool is_due(const struct ivc_context *context)
{
    return context->move_due || descriptor_has_news(context) || may_write_on(context);
}

void descriptor_disarm(struct ivc_context *context)
{
    if (!context->armed)
        return;
    context->armed = false;
    ivc_endpoint_disarm(context->endpoint);
}

void descriptor_check(struct ivc_context *context)
{
    if (!ivc_endpoint_is_armed(context->endpoint) || is_due(context))
        descriptor_disarm(context);
    else
        context->control_due = true;
}

void descriptor_arm(struct ivc_context *context)
{
    bool due = is_due(context), sending = waits_for_room(context);

    if (!due && !sending && context->armed && ivc_endpoint_is_armed(context->endpoint))
        return;
    descriptor_disarm(context);
    if (due)
        return;
    context->armed = context->control_due = true;
    if (ivc_endpoint_arm(context->endpoint, sending) != 0)
        descriptor_disarm(context);
}

EXPORT int ivc_descriptor(ivc_context *context)
{
    int fd = ivc_endpoint_fd(context->endpoint);

    if (fd >= 0 && !context->arms) {
        context->arms = true;
        descriptor_arm(context);
    }
    return fd;
}
