/*
 * Seeking: which of a peer's addresses leads to it.
 *
 * They are tried in the peer's order, each a moment after the one before, all at the same time; the first
 * right answer ends it.  An address that we have ourselves leads to the peer only within our own kernel, so
 * it comes last.  The answer also says at which address the peer's network is: packets go there, so it is
 * that address that has to be proved.
 */
#include "network/contact.h"

#include "base/error.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>

enum {
    STAGGER_MS = 100,       /* between two addresses */
    ATTEMPT_MS = 5000,      /* no answer */
    RETRY_MS = 1000,
};

static void end_attempt(struct ivc_attempt *attempt)
{
    ivc_close_p(&attempt->fd);
    attempt->fd = -1;
    attempt->got = 0;
}

static void rule_out(struct ivc_attempt *attempt, const char *why)
{
    end_attempt(attempt);
    attempt->why = why;
    attempt->state = IVC_ATTEMPT_OVER;
}

static void try_later(const struct ivc_contact *contact, struct ivc_attempt *attempt, const char *why)
{
    end_attempt(attempt);
    attempt->why = why;
    attempt->state = IVC_ATTEMPT_WAITS;
    attempt->at = contact->clock + RETRY_MS;
}

static void failed(const struct ivc_contact *contact, struct ivc_attempt *attempt, int error)
{
    if (error == ECONNREFUSED)
        rule_out(attempt, "nobody listens there any more");
    else
        try_later(contact, attempt, error == ETIMEDOUT ? "no answer" : error == ENETUNREACH ? "no way there"
                  : error == EHOSTUNREACH ? "no such host" : error == EMFILE ? "too many open files"
                  : "cannot be connected to");
}

static void start(struct ivc_contact *contact, struct ivc_attempt *attempt)
{
    union ivc_ip source = contact->own[0].ip;
    int fd = socket(attempt->to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    attempt->fd = fd;
    if (fd < 0) {
        failed(contact, attempt, errno);
        return;
    }
    /* By the interface that was named, and no other. */
    if (ivc_ip_wanted_interface() && source.any.sa_family == attempt->to.any.sa_family)
        (void)bind(fd, &source.any, ivc_ip_size(&source));
    attempt->state = IVC_ATTEMPT_CONNECTS;
    attempt->at = contact->clock;
    if (connect(fd, &attempt->to.any, ivc_ip_size(&attempt->to)) < 0 && errno != EINPROGRESS)
        failed(contact, attempt, errno);
}

static void connected(const struct ivc_contact *contact, const struct ivc_seek *seek,
                      struct ivc_attempt *attempt)
{
    struct ivc_question question = {
        .magic = IVC_CONTACT_MAGIC, .version = IVC_CONTACT_VERSION, .nonce = seek->nonce, .id = seek->id,
    };
    int error = 0;
    socklen_t len = sizeof error;

    if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error != 0) {
        failed(contact, attempt, error);
        return;
    }
    if (send(attempt->fd, &question, sizeof question, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof question) {
        failed(contact, attempt, ETIMEDOUT);
        return;
    }
    /* The kernel of a process that is stopped takes connections for it: until it goes on nobody can tell. */
    attempt->why = "takes the connection and says nothing (stopped?)";
    attempt->state = IVC_ATTEMPT_ASKED;
    attempt->at = contact->clock;
}

/* Where the peer's network is: one more to be tried, unless it is. */
static void add_candidate(struct ivc_seek *seek, const union ivc_ip *where)
{
    struct ivc_attempt *attempt = &seek->attempts[seek->n];

    for (unsigned i = 0; i < seek->n; i++)
        if (ivc_ip_is_same(&seek->attempts[i].to, where))
            return;
    if (seek->n == IVC_CANDIDATES_MAX)
        return;
    *attempt = (struct ivc_attempt){ .to = *where, .fd = -1 };
    (void)ivc_ip_is_own(where, attempt->own);
    ivc_ip_set_port(&attempt->to, seek->port);
    seek->n++;
}

/* Whether packets that go to the peer's network go to who has answered. */
static bool is_where_it_is(struct ivc_seek *seek, struct ivc_attempt *attempt)
{
    union ivc_ip where;

    if (!attempt->answer.ip)
        return true;
    memcpy(&where, attempt->answer.name, sizeof where);
    if (ivc_ip_is_same(&where, &attempt->to))
        return true;
    if (ivc_ip_is_one(&where))
        add_candidate(seek, &where);
    return false;
}

static void judge(struct ivc_seek *seek, struct ivc_attempt *attempt)
{
    const struct ivc_answer *answer = &attempt->answer;

    if (answer->nonce != seek->nonce || answer->id != seek->id || answer->len > sizeof answer->name)
        rule_out(attempt, "another program answers");
    else if (answer->kind == IVC_ANSWER_NONE)
        snprintf(seek->reason, sizeof seek->reason, "network: the peer has none: %.199s", answer->text);
    else if (answer->kind != IVC_ANSWER_HERE)
        rule_out(attempt, "another process answers");
    else if (!is_where_it_is(seek, attempt))
        rule_out(attempt, "it answers, but its network is at another address");
    else
        seek->right = attempt;
}

static void hear(const struct ivc_contact *contact, struct ivc_seek *seek, struct ivc_attempt *attempt)
{
    struct ivc_answer *answer = &attempt->answer;
    ssize_t n = recv(attempt->fd, (char *)answer + attempt->got, sizeof *answer - attempt->got, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        try_later(contact, attempt, "it hung up");
        return;
    }
    attempt->got += (size_t)n;
    if (attempt->got >= sizeof answer->magic && answer->magic != IVC_CONTACT_MAGIC)
        rule_out(attempt, "another program answers");
    else if (attempt->got == sizeof *answer)
        judge(seek, attempt);
}

short ivc_attempt_events(const struct ivc_attempt *attempt)
{
    return attempt->state == IVC_ATTEMPT_CONNECTS ? POLLOUT : attempt->state == IVC_ATTEMPT_ASKED ? POLLIN : 0;
}

static bool has_come(const struct ivc_attempt *attempt)
{
    struct pollfd pollfd = { .fd = attempt->fd, .events = ivc_attempt_events(attempt) };

    return pollfd.events != 0 && poll(&pollfd, 1, 0) > 0;
}

static bool is_under_way(const struct ivc_attempt *attempt)
{
    return attempt->state == IVC_ATTEMPT_CONNECTS || attempt->state == IVC_ATTEMPT_ASKED;
}

/* `before`: one that is tried earlier is under way. */
static void step(struct ivc_contact *contact, struct ivc_seek *seek, struct ivc_attempt *attempt, bool before)
{
    if (attempt->state == IVC_ATTEMPT_WAITS && (contact->clock >= attempt->at || (!before && !attempt->why))) {
        start(contact, attempt);
        return;
    }
    if (has_come(attempt)) {
        if (attempt->state == IVC_ATTEMPT_CONNECTS)
            connected(contact, seek, attempt);
        else
            hear(contact, seek, attempt);
    }
    if (is_under_way(attempt) && !seek->right && contact->clock - attempt->at >= ATTEMPT_MS)
        try_later(contact, attempt, attempt->state == IVC_ATTEMPT_ASKED ? attempt->why : "no answer");
}

/* Those that we have as well come last; each has its time. */
static void plan(const struct ivc_contact *contact, struct ivc_seek *seek)
{
    struct ivc_attempt own[IVC_CANDIDATES_MAX];
    unsigned n = 0, n_own = 0;

    for (unsigned i = 0; i < seek->n; i++) {
        struct ivc_attempt attempt = seek->attempts[i];

        if (ivc_ip_is_own(&attempt.to, attempt.own))
            own[n_own++] = attempt;
        else
            seek->attempts[n++] = attempt;
    }
    memcpy(seek->attempts + n, own, n_own * sizeof *own);
    for (unsigned i = 0; i < seek->n; i++)
        seek->attempts[i].at = contact->clock + (uint64_t)i * STAGGER_MS;
}

__attribute__((format(printf, 3, 4)))
static void say(struct ivc_seek *seek, size_t *at, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(seek->reason + *at, sizeof seek->reason - *at, format, args);
    va_end(args);
    *at = IVC_MIN(*at + (n > 0 ? (size_t)n : 0), sizeof seek->reason - 1);
}

/* What was tried, from where, and what to try. */
static void give_up(const struct ivc_contact *contact, struct ivc_seek *seek)
{
    char text[INET6_ADDRSTRLEN];
    size_t at = 0;

    say(seek, &at, "network: no address of the peer leads to it (port %u):", seek->port);
    for (unsigned i = 0; i < seek->n; i++) {
        const struct ivc_attempt *attempt = &seek->attempts[i];

        ivc_ip_text(&attempt->to, text, sizeof text);
        say(seek, &at, "%s %s%s%s: %s", i > 0 ? "," : "", text, attempt->own[0] ? ", also ours on " : "",
            attempt->own, attempt->why ? attempt->why : "no answer");
    }
    for (unsigned i = 0; i < contact->n_own; i++) {
        ivc_ip_text(&contact->own[i].ip, text, sizeof text);
        say(seek, &at, "%s %s %s", i > 0 ? "," : "; ours:", contact->own[i].interface, text);
    }
    say(seek, &at, "; FI_TCP_IFACE names the interface to use");
}

static bool is_hopeless(const struct ivc_contact *contact, const struct ivc_seek *seek)
{
    uint64_t limit = contact->network->timeout_ms;
    bool all_over = true;

    for (unsigned i = 0; i < seek->n; i++)
        all_over &= seek->attempts[i].state == IVC_ATTEMPT_OVER;
    return all_over || (limit > 0 && contact->clock - seek->since >= limit);
}

/* Ours is opened on the way that leads there. */
static void meet(struct ivc_contact *contact, struct ivc_seek *seek)
{
    struct ivc_attempt *right = seek->right;
    struct ivc_network *network = contact->network;
    union ivc_ip local = { .any = { 0 } };
    socklen_t len = sizeof local;

    if (getsockname(right->fd, &local.any, &len) < 0
        || ivc_network_bind(network, ivc_contact_source(contact, &local, &right->to)) < 0) {
        seek->right = NULL;
        snprintf(seek->reason, sizeof seek->reason, "%.399s", ivc_error_text());
    } else if (right->answer.hash != network->fabric_hash) {
        seek->right = NULL;
        snprintf(seek->reason, sizeof seek->reason, IVC_NETWORK_ANOTHER,
                 network->provider.info->fabric_attr->prov_name);
    }
    end_attempt(right);
}

bool ivc_seek_step(struct ivc_contact *contact, struct ivc_seek *seek)
{
    bool before = false;

    if (!seek->planned)
        plan(contact, seek);
    seek->planned = true;
    for (unsigned i = 0; i < seek->n && !seek->right && !seek->reason[0]; i++) {
        step(contact, seek, &seek->attempts[i], before);
        before |= is_under_way(&seek->attempts[i]);
    }
    if (seek->right)
        meet(contact, seek);
    else if (!seek->reason[0] && is_hopeless(contact, seek))
        give_up(contact, seek);
    return seek->right || seek->reason[0];
}

void ivc_seek_free(struct ivc_seek *seek)
{
    for (unsigned i = 0; i < seek->n; i++)
        end_attempt(&seek->attempts[i]);
    free(seek);
}
