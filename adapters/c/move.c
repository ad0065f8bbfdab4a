/*
 * Moving to another host: what a program is told, and when (ivc.h).
 *
 * The endpoint's helper has answered the host long before; its progress, which runs in the program's
 * own calls, then says which peers memory no longer leads to.  Handlers are called outside of that
 * progress, between two steps of a call, so that they may call what they like.
 *
 * Invariant.  A connection that a call is about is not freed while handlers are called from it, even
 * if one of them closes it.
 */
#include "internal.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* The structure as it was in 0.1.0. */
enum {
    SIZE_OF_FIRST = offsetof(struct ivc_move_handlers, on_arrive)
                    + sizeof ((struct ivc_move_handlers *)0)->on_arrive,
};

void move_on_parted(void *arg, struct ivc_peer *peer)
{
    struct ivc_context *context = arg;

    for (struct ivc_connection *c = context->connections; c; c = c->next)
        if (c->peer == peer) {
            c->parted = true;
            context->control_due |= c->closed_by_user;
        }
    context->last_used = NULL;
    context->move_due = true;
}

void move_on_moved(void *arg, bool in_region)
{
    struct ivc_context *context = arg;

    context->leave_due = !context->away;
    context->arrive_due = in_region;
    context->move_due = true;
}

/* One that the program has, and that ends by this and nothing else. */
static bool is_to_tell(const struct ivc_connection *connection)
{
    return move_is_news(connection) && connection->accepted && !connection->closed_by_user
           && !connection->closed_by_peer && !connection->broken;
}

static void tell_suspend(struct ivc_context *context, struct ivc_connection *connection)
{
    size_t len;
    char *unread = stream_take_unread(connection, &len);

    connection->told = true;
    context->handlers.on_suspend(context->handlers_arg, connection, unread, len);
    free(unread);
}

/* NULL: there is none, or nobody to tell. */
static struct ivc_connection *next_suspended(const struct ivc_context *context)
{
    for (struct ivc_connection *c = context->connections; c && context->handlers.on_suspend;
         c = c->next)
        if (is_to_tell(c))
            return c;
    return NULL;
}

static bool tell_context(struct ivc_context *context, bool away)
{
    void (*handler)(void *, ivc_context *) = away ? context->handlers.on_leave
                                             : context->handlers.on_arrive;

    context->away = away;
    if (handler)
        handler(context->handlers_arg, context);
    return handler != NULL;
}

/* The next thing that is due; true when there was a handler for it.  Afterwards the connections may be
 * others. */
static bool tell_next(struct ivc_context *context)
{
    struct ivc_connection *connection = next_suspended(context);

    if (connection) {
        tell_suspend(context, connection);
        return true;
    }
    if (context->leave_due) {
        context->leave_due = false;
        return tell_context(context, true);
    }
    context->arrive_due = false;
    return tell_context(context, false);
}

static bool is_due(const struct ivc_context *context)
{
    return context->leave_due || context->arrive_due || next_suspended(context);
}

bool move_tell(struct ivc_context *context)
{
    bool told = false;

    if (!context->move_due || context->telling)
        return false;
    context->telling = true;
    while (is_due(context))
        told |= tell_next(context);
    context->telling = false;
    context->move_due = false;
    return told;
}

int move_tell_from(struct ivc_connection *connection)
{
    struct ivc_context *context = connection->context;

    if (!context->move_due || context->telling)
        return 0;
    context->pinned = connection;
    (void)move_tell(context);
    context->pinned = NULL;
    if (!connection->closed_by_user)
        return 0;
    context->control_due = true;        /* frees it */
    return ivc_error_set(-ESHUTDOWN, "the connection was closed by a handler that was called first");
}

bool move_is_due(const struct ivc_connection *connection)
{
    const struct ivc_context *context = connection->context;

    return is_to_tell(connection) && context->handlers.on_suspend && !context->telling;
}

int move_is_over(const struct ivc_connection *connection, const char *call)
{
    if (move_is_due(connection))
        return 0;       /* the next call tells it */
    return ivc_error_set(-ESHUTDOWN, "%s: client %u or this process moved to another host; close the "
                         "connection, and make another where they share memory", call,
                         ivc_peer_client_id(connection->peer));
}

EXPORT int ivc_set_move_handlers(ivc_context *context, const struct ivc_move_handlers *handlers,
                                 void *arg)
{
    struct ivc_move_handlers chosen = { .size = sizeof chosen };

    if (handlers && handlers->size < SIZE_OF_FIRST)
        return ivc_error_set(-EINVAL, "move handlers: `size` is %zu; it must be sizeof(struct "
                             "ivc_move_handlers)", handlers->size);
    if (handlers)
        memcpy(&chosen, handlers, IVC_MIN(handlers->size, sizeof chosen));
    context->handlers = chosen;
    context->handlers_arg = arg;
    context->move_due = true;   /* of what came before, connections are still to be told */
    return 0;
}
