/* The calls of ivc.h; each is described there and in its man page. */
#include "internal.h"

#include "base/error.h"
#include "base/util.h"
#include "region/region.h"
#include "wait.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

enum {
    WINDOW_DEFAULT = 2 << 20,
    WINDOW_MIN = 4096,
    WINDOW_MAX = 1 << 30,
};

EXPORT const char *ivc_version(void)
{
    return TEXT(IVC_VERSION_MAJOR) "." TEXT(IVC_VERSION_MINOR) "." TEXT(IVC_VERSION_PATCH);
}

EXPORT const char *ivc_last_error(void)
{
    return ivc_error_text();
}

EXPORT const char *ivc_strerror(int code)
{
    return strerror(code < 0 ? -code : code);
}

/* Members that send to us without having been connected to are welcome: they start connections. */
static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

static int window_size(const struct ivc_options *options, uint32_t *ret_window)
{
    uint64_t window = WINDOW_DEFAULT;
    int r = 0;

    if (options->window)
        window = options->window;
    else
        r = ivc_env_size("IVC_WINDOW", WINDOW_MIN, WINDOW_MAX, &window);
    if (r == 0 && (window < WINDOW_MIN || window > WINDOW_MAX))
        r = ivc_error_set(-EINVAL, "window of %llu bytes: must be from %d to %d",
                          (unsigned long long)window, WINDOW_MIN, WINDOW_MAX);
    if (r == 0)
        *ret_window = (uint32_t)window;
    return r;
}

/* The next member of the group from `slot` on, ourselves left out; false when there is none, or we are
 * in no region.  Between ivc_endpoint_enter() and ivc_endpoint_leave(). */
static bool next_member(struct ivc_context *context, uint32_t *slot, struct ivc_member *ret_member)
{
    struct ivc_region *region = ivc_endpoint_region(context->endpoint);

    for (; region && *slot < ivc_region_capacity(region); ++*slot)
        if (*slot != ivc_region_self(region)->slot
            && ivc_region_member(region, *slot, ret_member) == 0
            && ret_member->magic_id == context->magic_id) {
            ++*slot;
            return true;
        }
    return false;
}

/* The member of that name, if it lives.  Sets no text: it is asked in loops. */
static bool find_member(struct ivc_context *context, uint32_t client_id,
                        struct ivc_member *ret_member)
{
    uint32_t slot = 0;
    bool found;

    ivc_endpoint_enter(context->endpoint);
    do {
        found = next_member(context, &slot, ret_member);
    } while (found && ret_member->client_id != client_id);
    ivc_endpoint_leave(context->endpoint);
    return found;
}

/* Who has the name, if it is one that lives: who was killed before we came is a member until the lease is over. */
static bool name_is_taken(struct ivc_context *context, uint32_t client_id, struct ivc_member *ret_member)
{
    enum { LOOK_MS = 50 };
    bool silent = true;

    while (silent && find_member(context, client_id, ret_member)) {
        struct ivc_region *region;

        ivc_endpoint_enter(context->endpoint);
        region = ivc_endpoint_region(context->endpoint);
        silent = region && ivc_region_is_silent(region, ret_member->slot);
        ivc_endpoint_leave(context->endpoint);
        if (silent)
            ivc_sleep_ms(LOOK_MS);
        else if (region)
            return true;
    }
    return false;
}

/* Whoever finds his name taken gives way; of two that take one at the same moment, perhaps both. */
static int check_name(struct ivc_context *context, uint32_t client_id)
{
    struct ivc_member member;

    if (!name_is_taken(context, client_id, &member))
        return 0;
    return ivc_error_set(-EEXIST, "client %u of group %llu: that name is taken by process %u on %s",
                         client_id, (unsigned long long)context->magic_id, member.pid, member.host);
}

EXPORT int ivc_register_with(uint64_t magic_id, uint32_t client_id,
                             const struct ivc_options *options, ivc_context **ret_context)
{
    struct ivc_context *context = calloc(1, sizeof *context);
    struct ivc_options chosen = { .size = sizeof chosen };
    struct ivc_endpoint_options endpoint_options = {
        .magic_id = magic_id,
        .client_id = client_id,
        .far_by_chunk = FAR_BY_CHUNK,
        .tight = true,
        .on_packet = stream_on_packet,
        .on_gone = stream_on_gone,
        .on_arrival = on_arrival,
        .on_parted = move_on_parted,
        .on_moved = move_on_moved,
        .arg = context,
    };
    int r;

    if (!context)
        return ivc_error_set(-ENOMEM, "register: out of memory");
    if (options)
        memcpy(&chosen, options, IVC_MIN(options->size, sizeof chosen));
    endpoint_options.region = chosen.region;
    endpoint_options.ring_size = chosen.ring_size;
    endpoint_options.segment_size = chosen.segment_size;
    context->magic_id = magic_id;
    context->next_number = 1;
    r = window_size(&chosen, &context->window);
    if (r == 0)
        r = ivc_endpoint_open(&endpoint_options, &context->endpoint);
    if (r == 0)
        r = check_name(context, client_id);
    if (r != 0) {
        ivc_endpoint_free(context->endpoint);
        free(context);
        return stream_code(r);
    }
    *ret_context = context;
    return 0;
}

EXPORT int ivc_register(uint64_t magic_id, uint32_t client_id, ivc_context **ret_context)
{
    return ivc_register_with(magic_id, client_id, NULL, ret_context);
}

EXPORT void ivc_deregister(ivc_context *context)
{
    if (!context)
        return;
    if (context->telling) {
        ivc_error_set(-EBUSY, "deregister: not from inside a handler, whose caller still needs the "
                      "context");
        return;
    }
    for (struct ivc_connection *c = context->connections; c; c = c->next) {
        c->closed_by_user = true;
        stream_say(c);
    }
    ivc_endpoint_free(context->endpoint);
    while (context->connections)
        stream_free(context->connections);
    free(context);
}

static struct ivc_host host_of(const struct ivc_member *member)
{
    struct ivc_host host = {
        .magic_id = member->magic_id,
        .client_id = member->client_id,
        .pid = member->pid,
    };
    const uint8_t *b = member->boot_id;

    memcpy(host.name, member->host, sizeof host.name - 1);
    snprintf(host.vm, sizeof host.vm,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    return host;
}

EXPORT int ivc_get_hosts(ivc_context *context, struct ivc_host *ret_hosts, size_t n)
{
    struct ivc_member member;
    uint32_t slot = 0;
    size_t found = 0;

    ivc_endpoint_enter(context->endpoint);
    if (ivc_endpoint_region(context->endpoint))
        ivc_region_look_at_all(ivc_endpoint_region(context->endpoint));
    for (; next_member(context, &slot, &member); found++)
        if (found < n)
            ret_hosts[found] = host_of(&member);
    ivc_endpoint_leave(context->endpoint);
    return (int)found;
}

EXPORT int ivc_connect(ivc_context *context, uint32_t client_id, ivc_connection **ret_connection)
{
    struct ivc_connection *connection;
    struct ivc_member member;
    struct ivc_peer *peer;
    int r;

    if (!find_member(context, client_id, &member))
        return ivc_error_set(-ENOENT, "client %u of group %llu: no such member shares memory with us "
                             "(yet); ivc_info lists the members", client_id,
                             (unsigned long long)context->magic_id);
    r = ivc_endpoint_connect_member(context->endpoint, &member, &peer);
    if (r == IVC_E_FULL) {
        stream_progress(context);   /* what is over is known after it, to whoever only tries again */
        r = ivc_error_set(-EAGAIN, "client %u of group %llu: it or we are about to move to another "
                          "host, or have just; try again", client_id,
                          (unsigned long long)context->magic_id);
    }
    if (r != 0)
        return stream_code(r);
    connection = stream_new(context, peer);
    if (!connection)
        return ivc_error_set(-ENOMEM, "connect: out of memory");
    connection->accepted = true;
    connection->open_due = true;
    stream_say(connection);
    *ret_connection = connection;
    return 0;
}

/* The connection that has waited longest for ivc_accept(); NULL when there is none. */
static ivc_connection *accept_next(ivc_context *context)
{
    struct ivc_connection *oldest = NULL;

    stream_progress(context);
    /* The list has the newest first. */
    for (struct ivc_connection *c = context->connections; c; c = c->next)
        if (!c->accepted)
            oldest = c;
    if (oldest)
        oldest->accepted = true;
    context->move_due |= oldest && oldest->parted;
    return oldest;
}

EXPORT int ivc_accept(ivc_context *context, ivc_connection **ret_connection)
{
    ivc_connection *connection;

    (void)move_tell(context);
    connection = accept_next(context);
    if (!connection) {
        if (context->arms)
            descriptor_arm(context);
        return ivc_error_set(-EAGAIN, "accept: no peer has started a connection");
    }
    *ret_connection = connection;
    return 0;
}

/* Nothing came, or nothing can go: why?  0: there is no reason but time. */
static __attribute__((noinline)) ptrdiff_t why_nothing(ivc_connection *connection, const char *call)
{
    if (connection->broken)
        return ivc_error_set(-ECONNRESET, "%s: the process at the other end died", call);
    if (connection->closed_by_peer)
        return ivc_error_set(-EPIPE, "%s: closed by the other end", call);
    return connection->parted ? move_is_over(connection, call) : 0;
}

static __attribute__((noinline)) ptrdiff_t read_on(ivc_connection *connection, char *buffer, size_t len, size_t done)
{
    ptrdiff_t n = done > 0 ? 0 : move_tell_from(connection);

    if (n < 0)
        return n;
    n = stream_read(connection, buffer, len, done);
    if (n > 0 || len == 0 || connection->unread_len > 0)
        return n;
    n = why_nothing(connection, "read");
    if (n == 0 && connection->context->arms)
        descriptor_arm(connection->context);
    return n;
}

/* (Short, and calls in last place only: see endpoint/short.h.) */
EXPORT ptrdiff_t ivc_read(ivc_connection *connection, void *buffer, size_t len)
{
    const struct ivc_context *context = connection->context;
    ptrdiff_t n = context->move_due ? -1 : stream_take_short(connection, buffer, len);

    if (__builtin_expect(n < (ptrdiff_t)len || connection->untold + len >= context->window / 2, 0))
        return read_on(connection, buffer, len, n > 0 ? (size_t)n : 0);
    connection->untold += (uint32_t)n;
    return n;
}

static __attribute__((noinline)) ptrdiff_t write_on(ivc_connection *connection, const char *buffer, size_t len)
{
    ptrdiff_t n = move_tell_from(connection);

    if (n < 0)
        return n;
    if (connection->broken || connection->closed_by_peer || connection->parted)
        return why_nothing(connection, "write");
    n = stream_write(connection, buffer, len);
    connection->blocked = n < (ptrdiff_t)len;
    if (!connection->blocked)
        return n;
    connection->blocked_at = connection->granted - connection->credit;
    /* Whoever only writes must still hear how far the reader is. */
    stream_progress(connection->context);
    if (connection->context->arms)
        descriptor_arm(connection->context);
    return n;
}

static __attribute__((noinline)) ptrdiff_t write_end(ivc_connection *connection, const char *buffer, size_t len)
{
    ivc_endpoint_end_short(connection->context->endpoint, connection->peer, TAG_DATA, &connection->peer_number,
                           DATA_HEADER, buffer, len);
    return (ptrdiff_t)len;
}

EXPORT ptrdiff_t ivc_write(ivc_connection *connection, const void *buffer, size_t len)
{
    enum ivc_short sent = IVC_SHORT_NO;

    if (__builtin_expect(!connection->context->move_due && !connection->broken && !connection->closed_by_peer
                         && !connection->parted, 1))
        sent = stream_store_short(connection, buffer, len);
    if (__builtin_expect(sent == IVC_SHORT_NO, 0))
        return write_on(connection, buffer, len);
    return __builtin_expect(sent == IVC_SHORT_SENT, 1) ? (ptrdiff_t)len : write_end(connection, buffer, len);
}

/* A turn of progress that does not give the processor away, for who asks again and again. */
static void look(struct ivc_context *context)
{
    (void)ivc_endpoint_gives_way(context->endpoint);
    stream_progress(context);
}

EXPORT ptrdiff_t ivc_pending(ivc_connection *connection)
{
    if (connection->unread_len == 0 && !connection->parted)
        look(connection->context);
    if (connection->parted)     /* on_suspend is given them, or ivc_read() */
        return move_is_due(connection) ? 0 : connection->unread_len;
    return connection->unread_len > 0 ? connection->unread_len : why_nothing(connection, "pending");
}

EXPORT ptrdiff_t ivc_room(ivc_connection *connection)
{
    size_t room = 0;

    for (unsigned looks = 0; room == 0 && looks < 2; looks++) {
        if (looks > 0)
            look(connection->context);      /* what the peer has read, it may have told */
        if (connection->parted)
            return 0;
        if (connection->broken || connection->closed_by_peer)
            return why_nothing(connection, "room");
        room = stream_room(connection);
    }
    return (ptrdiff_t)room;
}

EXPORT void ivc_close(ivc_connection *connection)
{
    if (!connection)
        return;
    connection->closed_by_user = true;
    connection->context->control_due = true;
    stream_progress(connection->context);
}

EXPORT int ivc_wait_host(ivc_context *context, uint32_t client_id, int timeout_ms)
{
    struct wait wait = wait_begin(context, timeout_ms, false);
    struct ivc_member member;
    bool found;

    do {
        (void)move_tell(context);
        found = find_member(context, client_id, &member);
        if (!found)
            stream_progress(context);
    } while (!found && wait_turn(&wait));
    wait_end(&wait, !found);
    return found ? 0 : ivc_error_set(-ETIMEDOUT, "client %u of group %llu did not register within %d ms",
                         client_id, (unsigned long long)context->magic_id, timeout_ms);
}

EXPORT int ivc_accept_wait(ivc_context *context, int timeout_ms, ivc_connection **ret_connection)
{
    struct wait wait = wait_begin(context, timeout_ms, false);
    ivc_connection *connection;

    do {
        (void)move_tell(context);
        connection = accept_next(context);
    } while (!connection && wait_turn(&wait));
    wait_end(&wait, !connection);
    if (!connection)
        return ivc_error_set(-ETIMEDOUT, "accept: no peer has started a connection within %d ms",
                             timeout_ms);
    *ret_connection = connection;
    return 0;
}

/* -EAGAIN: the peer's library has not answered yet. */
static int look_for_answer(ivc_connection *connection)
{
    stream_progress(connection->context);
    if (connection->peer_number)
        return 0;
    if (connection->parted)
        return ivc_error_set(-ESHUTDOWN, "connect: client %u or this process moved to another host",
                             ivc_peer_client_id(connection->peer));
    return connection->broken || connection->closed_by_peer ? (int)why_nothing(connection, "connect") : -EAGAIN;
}

EXPORT int ivc_connect_wait(ivc_context *context, uint32_t client_id, int timeout_ms,
                            ivc_connection **ret_connection)
{
    struct wait wait = wait_begin(context, timeout_ms, false);
    ivc_connection *connection = NULL;
    int r;

    do {
        r = connection ? 0 : ivc_connect(context, client_id, &connection);
        if (r == 0)
            r = look_for_answer(connection);
    } while (r == -EAGAIN && wait_turn(&wait));
    wait_end(&wait, r == -EAGAIN);
    if (r == 0)
        *ret_connection = connection;
    else
        ivc_close(connection);
    return r != -EAGAIN ? r : ivc_error_set(-ETIMEDOUT, "connect: client %u of group %llu did not answer within %d ms",
                                            client_id, (unsigned long long)context->magic_id, timeout_ms);
}

static ptrdiff_t read_step(ivc_connection *connection, char *buffer, size_t len)
{
    return ivc_read(connection, buffer, len);
}

static ptrdiff_t write_step(ivc_connection *connection, char *buffer, size_t len)
{
    return ivc_write(connection, buffer, len);
}

/* What read_all and write_all share: `step` until all is done, an error, or the end of the time. */
static int all(ivc_connection *connection, char *buffer, size_t len, int timeout_ms,
               ptrdiff_t (*step)(ivc_connection *, char *, size_t), size_t *ret_done)
{
    struct ivc_context *context = connection->context;
    struct wait wait;
    size_t done = 0;
    ptrdiff_t n = step(connection, buffer, len);
    bool in_time = true, waits = n >= 0 && n < (ptrdiff_t)len;

    if (waits)
        wait = wait_begin(context, timeout_ms, step == write_step);
    while (n >= 0 && (done += (size_t)n) < len && in_time) {
        if (n == 0)
            in_time = wait_turn(&wait);
        n = step(connection, buffer + done, len - done);
    }
    if (waits)
        wait_end(&wait, n >= 0 && done < len);
    if (ret_done)
        *ret_done = done;
    if (n < 0)
        return (int)n;
    return done == len ? 0 : ivc_error_set(-ETIMEDOUT, "%zu of %zu bytes within %d ms", done, len,
                                           timeout_ms);
}

EXPORT int ivc_read_all(ivc_connection *connection, void *buffer, size_t len, int timeout_ms,
                        size_t *ret_done)
{
    return all(connection, buffer, len, timeout_ms, read_step, ret_done);
}

EXPORT int ivc_write_all(ivc_connection *connection, const void *buffer, size_t len, int timeout_ms,
                         size_t *ret_done)
{
    return all(connection, (char *)buffer, len, timeout_ms, write_step, ret_done);
}

EXPORT int ivc_wait(ivc_context *context, int timeout_ms)
{
    struct wait wait = wait_begin(context, timeout_ms, false);
    bool came;

    do {
        stream_progress(context);
        came = move_tell(context) || descriptor_has_news(context);
    } while (!came && wait_turn(&wait));
    wait_end(&wait, !came);
    return came ? 0 : ivc_error_set(-ETIMEDOUT, "wait: nothing came within %d ms", timeout_ms);
}

EXPORT int ivc_get_peer_host(ivc_connection *connection, struct ivc_host *ret_host)
{
    struct ivc_endpoint *endpoint = connection->context->endpoint;

    ivc_endpoint_enter(endpoint);
    *ret_host = host_of(ivc_peer_member(connection->peer));
    ivc_endpoint_leave(endpoint);
    return 0;
}

EXPORT int ivc_alloc(ivc_context *context, size_t size, void **ret_memory)
{
    int r = stream_code(ivc_endpoint_lend(context->endpoint, size, ret_memory));

    if (r == 0)
        memset(*ret_memory, 0, size);
    return r;
}

EXPORT int ivc_free(ivc_context *context, void *memory)
{
    if (!memory)
        return 0;
    return ivc_endpoint_take_back(context->endpoint, memory);
}

/* Not for applications: an adapter in the same process asks where in the region their memory lies. */
EXPORT ivc_find_lent_fn IVC_FIND_LENT;
bool IVC_FIND_LENT(const void *memory, uint64_t size, struct ivc_lent_place *ret_place)
{
    return ivc_region_find_lent(memory, size, RTLD_NEXT, ret_place);
}
