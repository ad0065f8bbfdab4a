/* What became of the paths: see trace.h. */
#include "endpoint/internal.h"

#include "base/util.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>

static const char *const state_names[] = {
    "CLOSED", "CONNECTED", "ACTIVE", "SUSPENDING", "GONE",
};

/* One write for each line, so that those of several processes do not mix. */
static void append(const char *line, size_t len)
{
    const char *path = getenv("IVC_TRACE");
    IVC_AUTO_CLOSE int fd = -1;

    if (!path || !*path)
        return;
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && write(fd, line, len) < 0)
        return;     /* a full disk is no reason to stop */
}

static bool is_wanted(void)
{
    const char *path = getenv("IVC_TRACE");

    return path && *path;
}

/* Texts of ours and of the system: quotes and backslashes are all that could spoil the line. */
static void clean(char *to, size_t size, const char *from)
{
    size_t n = 0;

    for (; *from && n + 1 < size; from++)
        to[n++] = *from == '"' || *from == '\\' ? '\'' : (uint8_t)*from < ' ' ? ' ' : *from;
    to[n] = '\0';
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void count(struct ivc_path_record *record, uint32_t from, uint32_t to)
{
    bool from_memory = from == IVC_PEER_SUSPENDING;

    record->to_network += from_memory && to == IVC_PEER_CLOSED;
    record->to_memory += from == IVC_PEER_CLOSED && to == IVC_PEER_CONNECTED;
}

void ivc_trace_transition(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint32_t from,
                          uint32_t to, const char *reason)
{
    char line[640], text[256];
    uint64_t unsent = peer->unsent.bytes, unread = peer->unread.bytes;
    int len;

    if (from == to)
        return;
    count(&peer->record, from, to);
    if (!is_wanted())
        return;
    clean(text, sizeof text, reason);
    len = snprintf(line, sizeof line,
                   "{\"time\":%.6f,\"pid\":%d,\"rank\":%u,\"peer\":%u,\"peer_host\":\"%s\","
                   "\"from\":\"%s\",\"to\":\"%s\",\"reason\":\"%s\",\"unsent_bytes\":%" PRIu64
                   ",\"unread_bytes\":%" PRIu64 "}\n",
                   now(), (int)getpid(), endpoint->client_id, peer->member.client_id,
                   peer->member.host, state_names[from], state_names[to], text, unsent, unread);
    append(line, (size_t)IVC_MIN(len, (int)sizeof line - 1));
}

void ivc_trace_event(struct ivc_endpoint *endpoint, const char *event, const char *detail)
{
    char line[640], text[400];
    int len;

    if (!is_wanted())
        return;
    clean(text, sizeof text, detail);
    len = snprintf(line, sizeof line,
                   "{\"time\":%.6f,\"pid\":%d,\"rank\":%u,\"event\":\"%s\",\"detail\":\"%s\"}\n",
                   now(), (int)getpid(), endpoint->client_id, event, text);
    append(line, (size_t)IVC_MIN(len, (int)sizeof line - 1));
}
