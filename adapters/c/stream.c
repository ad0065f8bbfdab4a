/* Streams of bytes over packets: see internal.h. */
#include "internal.h"

#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

int stream_code(int r)
{
    switch (r) {
    case IVC_E_FULL: return -EAGAIN;
    case IVC_E_UNREACHABLE: return -EHOSTUNREACH;
    case IVC_E_NOSPACE: return -ENOSPC;
    case IVC_E_GONE: return -ECONNRESET;
    case IVC_E_NOREGION: return -ENODEV;
    case IVC_E_TIMEOUT: return -ETIMEDOUT;
    default: return r;
    }
}

struct ivc_connection *stream_new(struct ivc_context *context, struct ivc_peer *peer)
{
    struct ivc_connection *connection = calloc(1, sizeof *connection);

    if (!connection)
        return NULL;
    connection->context = context;
    connection->peer = peer;
    connection->own_number = context->next_number++;
    connection->next = context->connections;
    context->connections = connection;
    return connection;
}

void stream_free(struct ivc_connection *connection)
{
    struct ivc_connection **at = &connection->context->connections;

    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    if (connection->context->last_used == connection)
        connection->context->last_used = NULL;
    free(connection->unread);
    free(connection);
}

static struct ivc_connection *find(struct ivc_context *context, const struct ivc_peer *peer,
                                   uint32_t own_number)
{
    struct ivc_connection *connection = context->last_used;

    if (connection && connection->own_number == own_number && connection->peer == peer)
        return connection;
    for (connection = context->connections; connection; connection = connection->next)
        if (connection->own_number == own_number && connection->peer == peer
            && !connection->parted) {
            context->last_used = connection;
            return connection;
        }
    return NULL;
}

/* What the peer's end sent against the rules: nothing of it can be relied on any more. */
static void break_off(struct ivc_connection *connection)
{
    connection->broken = true;
}

static void keep_unread(struct ivc_connection *connection, enum ivc_copy_side side, const char *bytes, size_t len)
{
    uint32_t window = connection->context->window;
    uint32_t at = (connection->unread_first + connection->unread_len) % window;
    size_t before_end = IVC_MIN(len, window - at);

    if (!connection->unread)
        connection->unread = malloc(window);
    if (!connection->unread || len > window - connection->unread_len) {
        break_off(connection);      /* out of memory, or more than we allowed */
        return;
    }
    ivc_copy(side, connection->unread + at, bytes, before_end);
    ivc_copy(side, connection->unread, bytes + before_end, len - before_end);
    connection->unread_len += (uint32_t)len;
}

/* Bytes for the connection: first to where ivc_read() waits for them. */
static void take_bytes(struct ivc_connection *connection, enum ivc_copy_side side, const char *bytes, size_t len)
{
    size_t n = IVC_MIN(len, connection->landing_room);

    if (n > 0) {
        ivc_copy_short(side, connection->landing, bytes, n);
        connection->landing += n;
        connection->landing_room -= n;
    }
    if (n < len && !connection->closed_by_user)
        keep_unread(connection, side, bytes + n, len - n);
}

/* Connections that wait for ivc_accept(); more are refused, so that a peer cannot fill our memory. */
enum { BACKLOG_MAX = 256 };

static unsigned backlog(const struct ivc_context *context)
{
    unsigned n = 0;

    for (const struct ivc_connection *c = context->connections; c; c = c->next)
        n += !c->accepted;
    return n;
}

/* Says that we have closed what the peer has just opened.  When there is no room to say so, it
 * finds out by waiting. */
static void refuse(struct ivc_context *context, struct ivc_peer *peer, const struct header *open)
{
    struct header header = { .to = open->from };
    struct iovec iov = { &header, sizeof header };

    (void)ivc_endpoint_send(context->endpoint, peer, TAG_CLOSE, &iov, 1);
}

static void on_open(struct ivc_context *context, struct ivc_peer *peer, const struct header *header)
{
    struct ivc_connection *connection = NULL;

    if (backlog(context) < BACKLOG_MAX)
        connection = stream_new(context, peer);
    if (!connection) {
        refuse(context, peer, header);
        return;
    }
    connection->peer_number = header->from;
    connection->credit = connection->granted = header->window;
    connection->accept_due = true;
    context->control_due = true;
}

static void on_control(struct ivc_context *context, struct ivc_peer *peer, uint8_t tag,
                       const struct header *header)
{
    struct ivc_connection *connection;

    if (tag == TAG_OPEN) {
        on_open(context, peer, header);
        return;
    }
    connection = find(context, peer, header->to);
    if (!connection)
        return;
    if (tag == TAG_ACCEPT) {
        connection->peer_number = header->from;
        connection->credit = connection->granted = header->window;
    } else if (tag == TAG_READ) {
        connection->credit += header->count;
        connection->granted += header->count;
    } else if (tag == TAG_CLOSE) {
        connection->closed_by_peer = true;
    }
}

/* The common case: a short packet for the connection that reads, all of which it has room for. */
static inline bool take_short(struct ivc_context *context, const struct ivc_peer *peer,
                              const struct ivc_packet *packet)
{
    struct ivc_connection *connection = context->last_used;
    uint32_t len = packet->head_len - DATA_HEADER, to;

    if (packet->tag != TAG_DATA || packet->body_len > 0 || packet->head_len < DATA_HEADER
        || !connection || len > connection->landing_room)
        return false;
    memcpy(&to, packet->head, sizeof to);
    if (connection->own_number != to || connection->peer != peer)
        return false;
    ivc_copy_short(IVC_COPY_OUT, connection->landing, (const char *)packet->head + DATA_HEADER, len);
    connection->landing += len;
    connection->landing_room -= len;
    connection->reads_short = true;
    if (connection->landing_room == 0)
        ivc_endpoint_end_turn(context->endpoint);
    return true;
}

static __attribute__((noinline))
void take_other(struct ivc_context *context, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct ivc_connection *connection;
    struct header header;
    uint32_t to;

    if (packet->tag != TAG_DATA) {
        if (packet->head_len < sizeof header)
            return;
        memcpy(&header, packet->head, sizeof header);
        on_control(context, peer, packet->tag, &header);
        return;
    }
    if (packet->head_len < DATA_HEADER)
        return;
    memcpy(&to, packet->head, sizeof to);
    connection = find(context, peer, to);
    if (!connection)
        return;
    connection->reads_short = false;
    take_bytes(connection, IVC_COPY_OUT, (const char *)packet->head + DATA_HEADER, packet->head_len - DATA_HEADER);
    take_bytes(connection, packet->side, packet->body, packet->body_len);
    /* ivc_read() has what it came for: the rest is better off in shared memory than copied twice. */
    if (connection->landing && connection->landing_room == 0)
        ivc_endpoint_end_turn(context->endpoint);
}

void stream_on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    if (!take_short(arg, peer, packet))
        take_other(arg, peer, packet);
}

void stream_on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct ivc_context *context = arg;

    for (struct ivc_connection *c = context->connections; c; c = c->next)
        if (c->peer == peer && !c->parted) {
            c->closed_by_peer = true;
            c->broken |= reason != NULL;
        }
}

static bool say(struct ivc_connection *connection, enum tag tag, uint32_t count)
{
    struct ivc_context *context = connection->context;
    struct header header = {
        .to = connection->peer_number,
        .from = connection->own_number,
        .window = context->window,
        .count = count,
    };
    struct iovec iov = { &header, sizeof header };
    int r = ivc_endpoint_send(context->endpoint, connection->peer, tag, &iov, 1);

    /* Unreachable: memory leads there no more, which progress is about to say. */
    if (r == IVC_E_FULL || r == IVC_E_UNREACHABLE) {
        context->control_due = true;
        return false;
    }
    if (r != 0 && r != IVC_E_GONE)
        break_off(connection);
    return true;
}

void stream_say(struct ivc_connection *connection)
{
    uint32_t untold = connection->untold;

    if (connection->parted)
        return;
    if (connection->open_due)
        connection->open_due = !say(connection, TAG_OPEN, 0);
    if (connection->accept_due)
        connection->accept_due = !say(connection, TAG_ACCEPT, 0);
    if (!connection->peer_number)
        return;
    if (untold >= connection->context->window / 2 && say(connection, TAG_READ, untold))
        connection->untold = 0;
    if (connection->closed_by_user && !connection->close_sent)
        connection->close_sent = say(connection, TAG_CLOSE, 0);
}

static __attribute__((noinline)) void say_all(struct ivc_context *context)
{
    struct ivc_connection *connection, *next;

    context->control_due = false;
    for (connection = context->connections; connection; connection = next) {
        next = connection->next;
        stream_say(connection);
        if (connection->closed_by_user && (connection->closed_by_peer || connection->parted)
            && connection != context->pinned)
            stream_free(connection);
        else if (connection->closed_by_user)
            context->control_due = true;    /* until the peer has closed as well */
    }
    if (context->armed)
        descriptor_check(context);
}

static inline void progress(struct ivc_context *context)
{
    ivc_endpoint_progress(context->endpoint);
    if (__builtin_expect(context->control_due, 0))
        say_all(context);
}

void stream_progress(struct ivc_context *context)
{
    progress(context);
}

static inline int send_data(struct ivc_connection *connection, const char *bytes, size_t len)
{
    return ivc_endpoint_send(connection->context->endpoint, connection->peer, TAG_DATA, (struct iovec[]){
        { &connection->peer_number, DATA_HEADER },
        { (void *)bytes, len },
    }, 2);
}

/* Bytes of a packet of those that do not go as one short packet: whole lines. */
static size_t piece_max(const struct ivc_connection *connection)
{
    return ivc_endpoint_packet_max(connection->context->endpoint) - IVC_LINE;
}

size_t stream_room(const struct ivc_connection *connection)
{
    if (connection->credit == 0)
        return 0;
    return IVC_MIN(connection->credit, ivc_endpoint_room(connection->context->endpoint, connection->peer, DATA_HEADER,
                                                         piece_max(connection)));
}

static __attribute__((noinline)) ptrdiff_t write_other(struct ivc_connection *connection,
                                                       const char *bytes, size_t len)
{
    size_t packet_max = piece_max(connection);
    size_t done = 0;
    int r = 0;

    while (r == 0 && done < len && connection->credit > 0) {
        size_t n = IVC_MIN(IVC_MIN(len - done, packet_max), connection->credit);

        r = send_data(connection, bytes + done, n);
        if (r == 0) {
            done += n;
            connection->credit -= (uint32_t)n;
        }
    }
    if (done == 0 && r != 0 && r != IVC_E_FULL && r != IVC_E_UNREACHABLE)
        return stream_code(r);
    return (ptrdiff_t)done;
}

ptrdiff_t stream_write(struct ivc_connection *connection, const char *bytes, size_t len)
{
    if (len - 1 < SHORT_MAX && len <= connection->credit && send_data(connection, bytes, len) == 0) {
        connection->credit -= (uint32_t)len;
        return (ptrdiff_t)len;
    }
    return write_other(connection, bytes, len);
}

static size_t read_kept(struct ivc_connection *connection, char *buffer, size_t len)
{
    uint32_t window = connection->context->window;
    size_t n = IVC_MIN(len, connection->unread_len);
    size_t before_end = IVC_MIN(n, window - connection->unread_first);

    memcpy(buffer, connection->unread + connection->unread_first, before_end);
    memcpy(buffer + before_end, connection->unread, n - before_end);
    connection->unread_first = (connection->unread_first + (uint32_t)n) % window;
    connection->unread_len -= (uint32_t)n;
    return n;
}

static void reverse(char *first, char *end)
{
    while (first < end) {
        char byte = *first;

        *first++ = *--end;
        *end = byte;
    }
}

char *stream_take_unread(struct ivc_connection *connection, size_t *ret_len)
{
    char *bytes = connection->unread;
    uint32_t window = connection->context->window, first = connection->unread_first;

    /* A ring turned by `first`: its two parts turned round, and then the whole. */
    if (bytes && first + connection->unread_len > window) {
        reverse(bytes, bytes + first);
        reverse(bytes + first, bytes + window);
        reverse(bytes, bytes + window);
    } else if (bytes) {
        memmove(bytes, bytes + first, connection->unread_len);
    }
    *ret_len = connection->unread_len;
    connection->unread = NULL;
    connection->unread_first = connection->unread_len = 0;
    return bytes;
}

/* What has come, and no turn of progress has seen yet: more like what has come last. */
static inline size_t take_next(struct ivc_connection *connection, char *buffer, size_t len)
{
    struct ivc_endpoint *endpoint = connection->context->endpoint;
    size_t done = 0;
    ptrdiff_t n;

    do {
        if (connection->reads_short)
            n = stream_take_short(connection, buffer + done, len - done);
        else
            n = ivc_endpoint_take_long(endpoint, connection->peer, TAG_DATA, connection->own_number, buffer + done,
                                       len - done);
        done += n > 0 ? (size_t)n : 0;
    } while (done < len && n >= 0);
    return done;
}

ptrdiff_t stream_read(struct ivc_connection *connection, char *buffer, size_t len, size_t done)
{
    size_t n = done;

    if (connection->unread_len > 0)
        n += read_kept(connection, buffer + n, len - n);
    else if (n < len)
        n += take_next(connection, buffer + n, len - n);
    if (n < len && connection->unread_len == 0) {
        connection->landing = buffer + n;
        connection->landing_room = len - n;
        progress(connection->context);
        n = len - connection->landing_room;
        connection->landing_room = 0;
        connection->landing = NULL;
    }
    connection->untold += (uint32_t)n;
    if (connection->untold >= connection->context->window / 2)
        stream_say(connection);
    return (ptrdiff_t)n;
}
