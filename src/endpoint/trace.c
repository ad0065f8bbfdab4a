/* What became of the paths: see trace.h. */
#include "endpoint/internal.h"

#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static const char *const state_names[] = {
    "CLOSED", "CONNECTED", "ACTIVE", "SUSPENDING", "GONE",
};

/* Where to; NULL: nowhere. */
static const char *wanted_path(void)
{
    const char *path = getenv("IVC_TRACE");

    return path && *path ? path : NULL;
}

/* One write for each line, so that those of several processes do not mix. */
static void append(const char *path, const char *line, size_t len)
{
    static ivc_atomic_u32 said;
    IVC_AUTO_CLOSE int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);

    /* Neither a full disk nor a wrong path is a reason to stop; but who asks for a trace is told why there is
     * none. */
    if ((fd < 0 || write(fd, line, len) < 0) && ivc_cas(&said, 0, 1))
        fprintf(stderr, "ivc: IVC_TRACE=%s: cannot write there: %s\n", path, strerror(errno));
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

void ivc_trace_transition(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint32_t from,
                          uint32_t to, const char *reason)
{
    const char *path = wanted_path();
    char line[640], text[256];
    uint64_t unsent = peer->unsent.bytes, unread = peer->unread.bytes, sent = peer->stats.sent_bytes;
    int len;

    if (from == to || !path)
        return;
    clean(text, sizeof text, reason);
    len = snprintf(line, sizeof line,
                   "{\"time\":%.6f,\"pid\":%d,\"rank\":%u,\"peer\":%u,\"peer_host\":\"%s\","
                   "\"from\":\"%s\",\"to\":\"%s\",\"reason\":\"%s\",\"unsent_bytes\":%" PRIu64
                   ",\"unread_bytes\":%" PRIu64 ",\"memory_sent_bytes\":%" PRIu64 "}\n",
                   now(), (int)getpid(), endpoint->client_id, peer->member.client_id,
                   peer->member.host, state_names[from], state_names[to], text, unsent, unread, sent);
    append(path, line, (size_t)IVC_MIN(len, (int)sizeof line - 1));
}

void ivc_trace_event(struct ivc_endpoint *endpoint, const char *event, const char *detail)
{
    const char *path = wanted_path();
    char line[640], text[400];
    int len;

    if (!path)
        return;
    clean(text, sizeof text, detail);
    len = snprintf(line, sizeof line,
                   "{\"time\":%.6f,\"pid\":%d,\"rank\":%u,\"event\":\"%s\",\"detail\":\"%s\"}\n",
                   now(), (int)getpid(), endpoint->client_id, event, text);
    append(path, line, (size_t)IVC_MIN(len, (int)sizeof line - 1));
}
