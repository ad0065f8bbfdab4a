/*
 * Tests of send.c and receive.c between a mailbox and queues of the test's own, so that every state
 * of a message (arriving, offered, lost, ...) can be held still.
 */
#include "check.h"

#include "internal.h"

#include <string.h>

/* ---------------------------------------------------------------- what surrounds them */

static struct ivc_fi_cq cq;             /* never looked into */
static struct ivc_fi_domain domain;
static struct ivc_fi_peer peers[2] = { { .addr = 0 }, { .addr = 1 } };
static struct ivc_fi_peer *by_addr[] = { &peers[0], &peers[1] };
static struct ivc_fi_ep ep;

static struct {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;       /* err 0: it is no error */
    fi_addr_t source;
} events[16];
static unsigned n_events, n_read;

void ivc_fi_cq_put(struct ivc_fi_cq *to, const struct fi_cq_tagged_entry *entry, fi_addr_t source)
{
    CHECK(to == &cq && n_events < 16);
    events[n_events].entry = *entry;
    events[n_events].error.err = 0;
    events[n_events++].source = source;
}

void ivc_fi_cq_put_error(struct ivc_fi_cq *to, const struct fi_cq_err_entry *error)
{
    CHECK(to == &cq && n_events < 16 && error->err > 0);
    events[n_events++].error = *error;
}

void ivc_fi_cntr_bump(struct ivc_fi_cntr *cntr, bool error)
{
    CHECK(!cntr && (error || !error));
}

static unsigned n_no_space;

int ivc_fi_error(int answer)
{
    n_no_space += answer == IVC_E_NOSPACE;
    return answer == IVC_E_FULL ? -FI_EAGAIN : answer == IVC_E_GONE ? -FI_ECONNABORTED : answer;
}

void ivc_fi_log(enum fi_log_level level, const char *function, int line, const char *format, ...)
{
    (void)level;
    fprintf(stderr, "%s:%d: %s\n", function, line, format);
}

int ivc_fi_ep_connect(struct ivc_fi_ep *of, fi_addr_t addr, struct ivc_fi_peer **ret_peer)
{
    (void)of, (void)addr, (void)ret_peer;
    return -FI_EHOSTUNREACH;
}

/* The mailbox: remembers the last of each call. */
static int next_answer;                 /* of try_send */
static struct ivc_fi_header sent;
static char sent_bytes[8192];
static size_t sent_len;
static unsigned n_sent, n_queued, n_accepted, n_progress;
static struct { ivc_message_sent_fn *fn; void *arg; } queued[2 * IVC_FI_QUEUE_SIZE + 1];
static struct {
    struct ivc_arrival *offer;
    struct iovec iov[IVC_FI_IOV_MAX];
    unsigned n_iov;
    void *arg;
} accepted;

static void remember(const void *header, const struct iovec *iov, unsigned n_iov)
{
    memcpy(&sent, header, sizeof sent);
    sent_len = 0;
    for (unsigned i = 0; i < n_iov; i++) {
        CHECK(sent_len + iov[i].iov_len <= sizeof sent_bytes);
        memcpy(sent_bytes + sent_len, iov[i].iov_base, iov[i].iov_len);
        sent_len += iov[i].iov_len;
    }
    n_sent++;
}

int ivc_mailbox_try_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                         const struct iovec *iov, unsigned n_iov)
{
    (void)mailbox, (void)peer;
    if (next_answer == 0)
        remember(header, iov, n_iov);
    return next_answer;
}

static bool queues;

bool ivc_mailbox_queues(const struct ivc_peer *peer)
{
    (void)peer;
    return queues;
}

int ivc_mailbox_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                     const struct iovec *iov, unsigned n_iov, ivc_message_sent_fn *fn, void *arg)
{
    (void)mailbox, (void)peer;
    remember(header, iov, n_iov);
    queued[n_queued].fn = fn;
    queued[n_queued++].arg = arg;
    return 0;
}

int ivc_mailbox_answer(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                       const struct iovec *iov, unsigned n_iov, ivc_message_sent_fn *fn, void *arg)
{
    return ivc_mailbox_send(mailbox, peer, header, iov, n_iov, fn, arg);
}

void ivc_mailbox_accept(struct ivc_mailbox *mailbox, struct ivc_arrival *offer,
                        const struct iovec *iov, unsigned n_iov, void *arg)
{
    (void)mailbox;
    accepted.offer = offer;
    for (unsigned i = 0; i < n_iov; i++)
        accepted.iov[i] = iov[i];
    accepted.n_iov = n_iov;
    accepted.arg = arg;
    n_accepted++;
}

size_t ivc_mailbox_whole_max(const struct ivc_mailbox *mailbox, uint32_t header_len)
{
    (void)mailbox, (void)header_len;
    return 2048;
}

static unsigned n_watched;

void ivc_endpoint_watch(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    (void)endpoint, (void)peer;
    n_watched++;
}

static unsigned room_after;             /* so many turns of progress, if not 0 */

int ivc_mailbox_progress(struct ivc_mailbox *mailbox)
{
    (void)mailbox;
    if (++n_progress == room_after)
        next_answer = 0;
    return 0;
}

enum ivc_path ivc_peer_path(const struct ivc_peer *peer)
{
    (void)peer;
    return IVC_PATH_NETWORK;
}

static unsigned n_counted;
static size_t counted;

void ivc_profile_sent(struct ivc_profile *profile, struct ivc_peer *peer, enum ivc_path path, size_t len)
{
    (void)profile, (void)peer;
    CHECK(path == IVC_PATH_NETWORK);
    n_counted++;
    counted += len;
}

static void begin(void)
{
    ep = (struct ivc_fi_ep){
        .domain = &domain, .mailbox = (struct ivc_mailbox *)&ep, .by_addr = by_addr,
        .by_addr_size = 2, .tx_cq = &cq, .rx_cq = &cq, .enabled = IVC_FI_ENABLED,
        .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV, .min_multi_recv = 64,
    };
    CHECK(ivc_fi_send_init(&ep) == 0 && ivc_fi_recv_init(&ep) == 0);
}

static void over(void)
{
    CHECK_THAT(n_read == n_events, "%u events, %u expected", n_events, n_read);
    ivc_fi_recv_free(&ep);
    ivc_fi_send_free(&ep);
}

/* The next event must be this one. */
static void expect(void *context, uint64_t flags, size_t len, uint64_t tag)
{
    CHECK_THAT(n_read < n_events, "no event");
    CHECK_THAT(events[n_read].error.err == 0, "error %d", events[n_read].error.err);
    CHECK(events[n_read].entry.op_context == context && events[n_read].entry.tag == tag);
    CHECK_THAT(events[n_read].entry.flags == flags, "flags %#lx", events[n_read].entry.flags);
    CHECK_THAT(events[n_read].entry.len == len, "length %zu", events[n_read].entry.len);
    n_read++;
}

static void expect_error(void *context, uint64_t flags, int err)
{
    CHECK_THAT(n_read < n_events, "no event");
    CHECK_THAT(events[n_read].error.err == err, "error %d", events[n_read].error.err);
    CHECK(events[n_read].error.op_context == context);
    CHECK_THAT(events[n_read].error.flags == flags, "flags %#lx", events[n_read].error.flags);
    n_read++;
}

/* ---------------------------------------------------------------- messages that come in */

static char pattern[4096];

static struct ivc_message incoming(unsigned from, enum ivc_fi_kind kind, uint64_t tag,
                                   uint16_t flags, size_t len, struct ivc_arrival *offer)
{
    struct ivc_fi_header header = {
        .len = sizeof header, .kind = (uint8_t)kind, .flags = flags, .id = 77, .tag = tag,
        .data = 9,
    };
    struct ivc_message message = { .len = len, .offer = offer };

    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (char)(i * 7 + tag);
    (kind == IVC_FI_KIND_MSG ? &ivc_fi_receive_msg : &ivc_fi_receive_tagged)
        ->start(&ep, &peers[from], &message, &header);
    return message;
}

static void land(const struct iovec *iov, unsigned n_iov, size_t len)
{
    const char *at = pattern;

    for (unsigned i = 0; i < n_iov; i++) {
        size_t n = IVC_MIN(len, iov[i].iov_len);

        memcpy(iov[i].iov_base, at, n);
        at += n;
        len -= n;
    }
}

static void done(struct ivc_message *message, int status)
{
    if (status == 0)
        land(message->iov, message->n_iov, message->len);
    if (message->arg)
        ((struct ivc_fi_sink *)message->arg)->done(&ep, message, status);
}

static void arrive(unsigned from, enum ivc_fi_kind kind, uint64_t tag, uint16_t flags, size_t len)
{
    struct ivc_message message = incoming(from, kind, tag, flags, len, NULL);

    CHECK(!message.later);
    done(&message, 0);
}

/* An offer that was accepted: its payload moves. */
static void move(size_t len, int status)
{
    struct ivc_message message = { .arg = accepted.arg, .len = len, .n_iov = accepted.n_iov };

    memcpy(message.iov, accepted.iov, sizeof accepted.iov);
    done(&message, status);
}

static char buffer[4096];

static ssize_t trecv(size_t len, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    memset(buffer, 0, sizeof buffer);
    return ivc_fi_tagged_ops.recv(&ep.fid, buffer, len, NULL, from, tag, ignore, context);
}

static ssize_t trecvmsg(size_t len, uint64_t tag, uint64_t ignore, uint64_t flags, void *context)
{
    struct iovec iov = { buffer, len };
    const struct fi_msg_tagged msg = {
        .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = tag, .ignore = ignore,
        .context = context,
    };

    memset(buffer, 0, sizeof buffer);
    return ivc_fi_tagged_ops.recvmsg(&ep.fid, &msg, flags);
}

static bool holds(size_t len)
{
    return memcmp(buffer, pattern, len) == 0 && (len == sizeof buffer || buffer[len] == 0);
}

static int contexts[8];
#define CONTEXT(i) (&contexts[i])
#define ANYONE FI_ADDR_UNSPEC
static const enum ivc_fi_kind T = IVC_FI_KIND_TAGGED, M = IVC_FI_KIND_MSG;
static const uint64_t TF = FI_RECV | FI_TAGGED, MF = FI_RECV | FI_MSG;

static void test_posted(void)
{
    begin();
    CHECK(trecv(100, ANYONE, 5, 0xff00, CONTEXT(0)) == 0);
    arrive(1, T, 0x1205, IVC_FI_WITH_DATA, 100);
    expect(CONTEXT(0), TF | FI_REMOTE_CQ_DATA, 100, 0x1205);
    CHECK(holds(100) && events[0].source == 1 && events[0].entry.data == 9);

    CHECK(trecv(60, 1, 6, 0, CONTEXT(1)) == 0);
    CHECK(n_watched == 1);
    arrive(0, T, 6, 0, 10);         /* not for that one */
    arrive(1, T, 6, 0, 100);
    expect_error(CONTEXT(1), TF, FI_ETRUNC);
    CHECK(events[1].error.olen == 40 && events[1].error.len == 60 && holds(60));
    CHECK(trecv(60, 0, 6, 0, CONTEXT(2)) == 0);
    expect(CONTEXT(2), TF, 10, 6);
    CHECK(trecv(0, ANYONE, 7, 0, NULL) == 0);
    arrive(0, T, 7, 0, 0);
    expect(NULL, TF, 0, 7);
    CHECK(trecv(60, 7, 6, 0, NULL) == -FI_EHOSTUNREACH);
    CHECK(n_watched == 2);          /* each once */
    over();
}

static void test_early(void)
{
    static const size_t sizes[] = { 0, 1, 255, 256, 257, 4096 };

    begin();
    for (unsigned i = 0; i < 6; i++) {
        struct iovec iov[2] = { { buffer, 7 }, { buffer + 7, sizeof buffer - 7 } };

        arrive(0, T, i, 0, sizes[i]);
        memset(buffer, 0, sizeof buffer);
        CHECK(ivc_fi_tagged_ops.recvv(&ep.fid, iov, NULL, 2, ANYONE, i, 0, CONTEXT(0)) == 0);
        expect(CONTEXT(0), TF, sizes[i], i);
        CHECK(holds(sizes[i]));
        n_events = n_read = 0;
    }
    arrive(0, T, 9, 0, 300);
    CHECK(trecv(250, ANYONE, 9, 0, CONTEXT(1)) == 0);
    expect_error(CONTEXT(1), TF, FI_ETRUNC);
    CHECK(events[0].error.olen == 50 && holds(250));
    over();
}

static void test_arriving_and_offered(void)
{
    struct ivc_arrival *offer = (struct ivc_arrival *)contexts;
    struct ivc_message train, offered;

    begin();
    train = incoming(0, T, 1, 0, 3000, NULL);
    CHECK(trecv(4096, ANYONE, 1, 0, CONTEXT(0)) == 0);
    CHECK(n_events == 0);
    done(&train, 0);
    expect(CONTEXT(0), TF, 3000, 1);
    CHECK(holds(3000));

    offered = incoming(0, T, 2, IVC_FI_WANT_ACK, 4000, offer);
    CHECK(offered.later && n_accepted == 0);
    CHECK(trecv(1000, ANYONE, 2, 0, CONTEXT(1)) == 0);
    CHECK(n_accepted == 1 && accepted.offer == offer && accepted.iov[0].iov_base == buffer);
    CHECK(n_events == 1 && n_sent == 0);
    move(4000, 0);
    CHECK(n_sent == 1 && sent.kind == IVC_FI_KIND_ACK && sent.id == 77 && sent.data == 0);
    expect_error(CONTEXT(1), TF, FI_ETRUNC);
    CHECK(holds(1000));

    CHECK(trecv(4096, ANYONE, 3, 0, CONTEXT(2)) == 0);
    offered = incoming(0, T, 3, 0, 4000, offer);   /* a receive waits: no need to leave it */
    CHECK(!offered.later && offered.n_iov == 1);
    done(&offered, 0);
    expect(CONTEXT(2), TF, 4000, 3);
    over();
}

static void test_peek(void)
{
    struct ivc_arrival *offer = (struct ivc_arrival *)contexts;
    struct ivc_message message;

    begin();
    CHECK(trecvmsg(0, 1, 0, FI_PEEK, CONTEXT(0)) == 0);
    expect_error(CONTEXT(0), TF, FI_ENOMSG);
    CHECK(n_progress == 1);
    arrive(1, T, 1, 0, 300);
    arrive(1, T, 1, 0, 301);
    CHECK(trecvmsg(0, 0, 1, FI_PEEK, CONTEXT(0)) == 0);
    expect(CONTEXT(0), TF, 300, 1);
    CHECK(trecvmsg(0, 1, 0, FI_PEEK | FI_CLAIM, CONTEXT(1)) == 0);
    expect(CONTEXT(1), TF, 300, 1);
    CHECK(trecv(4096, ANYONE, 1, 0, CONTEXT(2)) == 0);      /* the claimed one is out of sight */
    expect(CONTEXT(2), TF, 301, 1);
    CHECK(trecvmsg(4096, 0, 0, FI_CLAIM, CONTEXT(3)) == -FI_ENOMSG);
    CHECK(trecvmsg(4096, 0, 0, FI_CLAIM, CONTEXT(1)) == 0);
    expect(CONTEXT(1), TF, 300, 1);
    CHECK(holds(300));

    message = incoming(0, T, 2, 0, 4000, offer);
    CHECK(trecvmsg(0, 2, 0, FI_PEEK | FI_DISCARD, CONTEXT(4)) == 0);
    expect(CONTEXT(4), TF, 4000, 2);
    CHECK(n_accepted == 1 && accepted.n_iov == 0);
    move(4000, 0);
    message = incoming(0, T, 3, 0, 4000, NULL);                /* half of it has come */
    CHECK(trecvmsg(0, 3, 0, FI_PEEK | FI_CLAIM, CONTEXT(5)) == 0);
    expect(CONTEXT(5), TF, 4000, 3);
    CHECK(trecvmsg(0, 3, 0, FI_DISCARD | FI_CLAIM, CONTEXT(5)) == 0);
    expect(CONTEXT(5), TF, 0, 3);
    done(&message, 0);
    CHECK(trecvmsg(0, 0, ~0ull, FI_PEEK, CONTEXT(0)) == 0);
    expect_error(CONTEXT(0), TF, FI_ENOMSG);
    CHECK(trecvmsg(0, 0, 0, FI_DISCARD, NULL) == -FI_EINVAL);
    CHECK(trecvmsg(0, 0, 0, FI_MULTI_RECV, NULL) == -FI_EINVAL);
    over();
}

static ssize_t recvmsg_multi(size_t len, void *context)
{
    struct iovec iov = { buffer, len };
    const struct fi_msg msg = {
        .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = context,
    };

    return ivc_fi_msg_ops.recvmsg(&ep.fid, &msg, FI_MULTI_RECV);
}

static void test_multi(void)
{
    struct ivc_message a, b;

    begin();
    arrive(0, M, 0, 0, 100);
    CHECK(recvmsg_multi(400, CONTEXT(0)) == 0);
    expect(CONTEXT(0), MF, 100, 0);
    CHECK(events[0].entry.buf == buffer);
    a = incoming(0, M, 0, 0, 100, NULL);
    b = incoming(1, M, 0, 0, 150, NULL);       /* less than 64 are left: it is used up */
    CHECK(a.iov[0].iov_base == buffer + 100 && b.iov[0].iov_base == buffer + 200);
    arrive(0, M, 0, 0, 10);                 /* for the next one */
    done(&b, 0);
    expect(CONTEXT(0), MF, 150, 0);
    done(&a, 0);
    expect(CONTEXT(0), MF | FI_MULTI_RECV, 100, 0);
    CHECK(recvmsg_multi(70, CONTEXT(1)) == 0);      /* used up at once: an event of its own */
    expect(CONTEXT(1), MF, 10, 0);
    expect(CONTEXT(1), FI_MULTI_RECV, 0, 0);

    CHECK(recvmsg_multi(400, CONTEXT(2)) == 0);
    CHECK(ivc_fi_recv_cancel(&ep, CONTEXT(2)) == 0);
    expect_error(CONTEXT(2), MF | FI_MULTI_RECV, FI_ECANCELED);
    CHECK(recvmsg_multi(400, CONTEXT(3)) == 0);
    a = incoming(0, M, 0, 0, 100, NULL);
    CHECK(ivc_fi_recv_cancel(&ep, CONTEXT(3)) == 0);
    CHECK(ivc_fi_recv_cancel(&ep, CONTEXT(3)) == -FI_ENOENT);
    done(&a, 0);
    expect(CONTEXT(3), MF, 100, 0);
    expect_error(CONTEXT(3), MF | FI_MULTI_RECV, FI_ECANCELED);
    over();
}

static void test_gone(void)
{
    struct ivc_arrival *offer = (struct ivc_arrival *)contexts;
    struct ivc_message half, taken, offered, claimed;

    begin();
    arrive(0, T, 1, 0, 10);
    half = incoming(0, T, 2, 0, 4000, NULL);
    taken = incoming(0, T, 3, 0, 4000, NULL);
    offered = incoming(0, T, 4, 0, 4000, offer);
    claimed = incoming(0, T, 6, 0, 4000, offer);
    CHECK(trecv(10, 0, 3, 0, CONTEXT(0)) == 0);
    CHECK(trecv(10, 0, 5, 0, CONTEXT(1)) == 0);
    CHECK(trecv(10, ANYONE, 5, 0, CONTEXT(2)) == 0);
    CHECK(trecv(10, 1, 5, 0, CONTEXT(3)) == 0);
    CHECK(trecvmsg(0, 6, 0, FI_PEEK | FI_CLAIM, CONTEXT(4)) == 0);
    expect(CONTEXT(4), TF, 4000, 6);
    done(&half, IVC_E_GONE);
    done(&taken, IVC_E_GONE);
    expect_error(CONTEXT(0), TF, FI_ECONNABORTED);
    done(&offered, IVC_E_GONE);
    done(&claimed, IVC_E_GONE);
    ivc_fi_recv_peer_gone(&ep, &peers[0]);
    expect_error(CONTEXT(1), TF, FI_ECONNABORTED);
    CHECK(trecvmsg(10, 6, 0, FI_CLAIM, CONTEXT(4)) == 0);
    expect_error(CONTEXT(4), TF, FI_ECONNABORTED);
    CHECK(trecv(10, 0, 2, 0, CONTEXT(5)) == -FI_ECONNABORTED);  /* what was half there is not */
    CHECK(trecv(10, 0, 1, 0, CONTEXT(5)) == 0);                 /* what was all there is */
    expect(CONTEXT(5), TF, 10, 1);
    arrive(1, T, 5, 0, 1);
    expect(CONTEXT(2), TF, 1, 5);
    arrive(1, T, 5, 0, 1);
    expect(CONTEXT(3), TF, 1, 5);
    over();
}

/* ---------------------------------------------------------------- messages that go out */

/* Nobody makes room: it is copied, at once if others wait already. */
static void test_inject(void)
{
    char own[] = "mine again";

    begin();
    next_answer = IVC_E_FULL;
    room_after = 3;
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, own, 8, 1, 3) == 0 && n_queued == 0 && n_progress == 3);
    next_answer = IVC_E_FULL;
    room_after = 0;
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, own, 8, 1, 3) == 0 && n_queued == 1 && n_progress > 4);
    n_progress = 0;
    queues = true;
    CHECK(ivc_fi_msg_ops.injectdata(&ep.fid, own, 8, 42, 1) == 0 && n_queued == 2 && n_progress == 1);
    CHECK(sent.kind == M && sent.flags == IVC_FI_WITH_DATA && sent.data == 42 && sent_len == 8);
    CHECK(ep.n_ops == 2 && ivc_fi_send_owes(&ep));
    queued[0].fn(queued[0].arg, 0);
    queued[1].fn(queued[1].arg, 0);
    CHECK(ep.n_ops == 0 && !ivc_fi_send_owes(&ep));
    for (unsigned i = 0; i < IVC_FI_STAGED_MAX / 4096; i++)
        CHECK(ivc_fi_tagged_ops.inject(&ep.fid, pattern, 4096, 1, 3) == 0);
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, own, 1, 1, 3) == -FI_EAGAIN);
    CHECK(ep.n_ops == n_queued - 2 && peers[1].n_ops == ep.n_ops);
    queued[2].fn(queued[2].arg, 0);
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, own, 1, 1, 3) == 0);
    over();     /* and without a completion */
}

static ssize_t tsendmsg(size_t len, uint64_t flags, void *context)
{
    struct iovec iov = { pattern, len };
    const struct fi_msg_tagged msg = {
        .msg_iov = &iov, .iov_count = 1, .addr = 1, .tag = 3, .context = context, .data = 8,
    };

    return ivc_fi_tagged_ops.sendmsg(&ep.fid, &msg, flags);
}

static void test_send(void)
{
    begin();
    CHECK(ivc_fi_tagged_ops.send(&ep.fid, pattern, 8, NULL, 1, 3, CONTEXT(0)) == 0);
    expect(CONTEXT(0), FI_SEND | FI_TAGGED, 0, 0);
    CHECK(sent.kind == T && sent.tag == 3 && sent.flags == 0 && sent_len == 8);
    CHECK(ivc_fi_msg_ops.injectdata(&ep.fid, pattern, 8, 42, 1) == 0);
    CHECK(sent.kind == M && sent.flags == IVC_FI_WITH_DATA && sent.data == 42);
    next_answer = IVC_E_FULL;
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, pattern, IVC_FI_INJECT_MAX + 1, 1, 3) == -FI_EMSGSIZE);
    CHECK(n_queued == 0 && ep.n_ops == 0);
    CHECK(ivc_fi_tagged_ops.send(&ep.fid, pattern, 8, NULL, 1, 3, CONTEXT(1)) == 0);
    CHECK(n_queued == 1 && ep.n_ops == 1 && n_events == 1);
    queued[0].fn(queued[0].arg, 0);
    expect(CONTEXT(1), FI_SEND | FI_TAGGED, 0, 0);
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, pattern, 4000, 1, 3) == 0);     /* no packet for it */
    CHECK(n_queued == 2 && sent_len == 4000 && memcmp(sent_bytes, pattern, 4000) == 0);
    queued[1].fn(queued[1].arg, 0);
    CHECK(tsendmsg(8, FI_FENCE, CONTEXT(2)) == 0);
    CHECK(tsendmsg(8, FI_FENCE, CONTEXT(3)) == -FI_EAGAIN);
    queued[2].fn(queued[2].arg, IVC_E_GONE);
    expect_error(CONTEXT(2), FI_SEND | FI_TAGGED, FI_ECONNABORTED);
    next_answer = IVC_E_GONE;
    CHECK(tsendmsg(8, 0, NULL) == -FI_ECONNABORTED);
    CHECK(tsendmsg(8, FI_MULTICAST, NULL) == -FI_EINVAL);
    CHECK(ep.n_ops == 0 && peers[1].n_ops == 0);
    ep.tx_selective = true;
    next_answer = 0;
    CHECK(tsendmsg(8, 0, CONTEXT(4)) == 0 && tsendmsg(8, FI_COMPLETION, CONTEXT(5)) == 0);
    expect(CONTEXT(5), FI_SEND | FI_TAGGED, 0, 0);
    over();
}

static void answer(unsigned from, uint32_t id, uint64_t error)
{
    struct ivc_fi_header header = {
        .len = sizeof header, .kind = IVC_FI_KIND_ACK, .id = id, .data = error,
    };
    struct ivc_message message = { .len = 0 };

    ivc_fi_receive_ack.start(&ep, &peers[from], &message, &header);
}

static void test_acknowledged(void)
{
    uint32_t first;

    begin();
    CHECK(tsendmsg(8, FI_DELIVERY_COMPLETE, CONTEXT(0)) == 0);
    first = sent.id;
    CHECK(sent.flags == IVC_FI_WANT_ACK && n_events == 0);
    answer(0, first, 0);            /* not that peer's */
    answer(1, first + 1, 0);        /* never used */
    answer(1, first + IVC_FI_QUEUE_SIZE, 0);
    CHECK(n_events == 0);
    answer(1, first, 0);
    expect(CONTEXT(0), FI_SEND | FI_TAGGED, 0, 0);
    CHECK(tsendmsg(8, FI_DELIVERY_COMPLETE, CONTEXT(1)) == 0);
    CHECK(sent.id != first);
    answer(1, first, 0);            /* late, or forged */
    CHECK(n_events == 1);
    answer(1, sent.id, FI_EIO);
    expect_error(CONTEXT(1), FI_SEND | FI_TAGGED, FI_EIO);
    next_answer = IVC_E_FULL;
    CHECK(tsendmsg(8, FI_DELIVERY_COMPLETE | FI_INJECT, CONTEXT(2)) == 0);
    answer(1, sent.id, 0);
    CHECK(n_events == 2);           /* the core still has it */
    queued[0].fn(queued[0].arg, 0);
    expect(CONTEXT(2), FI_SEND | FI_TAGGED, 0, 0);
    next_answer = 0;
    CHECK(tsendmsg(8, FI_MATCH_COMPLETE, CONTEXT(3)) == 0);
    ivc_fi_send_peer_gone(&ep, &peers[0]);
    CHECK(n_events == 3);
    ivc_fi_send_peer_gone(&ep, &peers[1]);
    expect_error(CONTEXT(3), FI_SEND | FI_TAGGED, FI_ECONNABORTED);
    CHECK(ep.n_ops == 0);
    over();
}

/* No memory for a ring to who waits for an answer: it is kept, and said once. */
static void test_no_space(void)
{
    begin();
    next_answer = IVC_E_NOSPACE;
    n_no_space = 0;
    CHECK(trecv(10, ANYONE, 1, 0, CONTEXT(0)) == 0);
    arrive(0, T, 1, IVC_FI_WANT_ACK, 10);
    expect(CONTEXT(0), TF, 10, 1);
    CHECK(n_queued == 1 && sent.kind == IVC_FI_KIND_ACK && peers[0].n_answers == 1 && n_no_space == 1);
    queued[0].fn(queued[0].arg, 0);
    over();
    CHECK(peers[0].n_answers == 0);
}

/* A peer that asks for answers and takes none. */
static void test_unanswered(void)
{
    begin();
    next_answer = IVC_E_FULL;
    for (unsigned i = 0; i < 2 * IVC_FI_QUEUE_SIZE + 5; i++) {
        CHECK(trecv(10, ANYONE, 1, 0, CONTEXT(0)) == 0);
        arrive(0, T, 1, IVC_FI_WANT_ACK, 10);
        expect(CONTEXT(0), TF, 10, 1);
        n_events = n_read = 0;
    }
    CHECK(n_queued == 2 * IVC_FI_QUEUE_SIZE && peers[0].n_answers == n_queued);
    queued[5].fn(queued[5].arg, 0);
    CHECK(peers[0].n_answers == n_queued - 1);
    n_queued = 0;
    CHECK(trecv(10, ANYONE, 1, 0, CONTEXT(0)) == 0);
    arrive(0, T, 1, IVC_FI_WANT_ACK, 10);
    expect(CONTEXT(0), TF, 10, 1);
    CHECK(n_queued == 1 && sent.kind == IVC_FI_KIND_ACK);
    over();
    CHECK(peers[0].n_answers == 0);
}

static void test_exhausted(void)
{
    begin();
    ep.tx_cq = NULL;
    next_answer = IVC_E_FULL;
    for (unsigned i = 0; i < IVC_FI_QUEUE_SIZE; i++)
        CHECK(tsendmsg(8, 0, NULL) == 0);
    CHECK(tsendmsg(8, 0, NULL) == -FI_EAGAIN && n_progress > 0);
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, pattern, 8, 1, 3) == -FI_EAGAIN);
    queued[0].fn(queued[0].arg, 0);
    CHECK(ivc_fi_tagged_ops.inject(&ep.fid, pattern, 8, 1, 3) == 0);
    CHECK(tsendmsg(8, 0, NULL) == -FI_EAGAIN);
    over();
}

/* What was taken is counted once, by whatever way it goes, and what was refused is not. */
static void test_counted(void)
{
    begin();
    ep.tx_cq = NULL;
    CHECK(tsendmsg(8, 0, NULL) == 0 && n_counted == 0);
    ep.enabled = IVC_FI_COUNTED;
    CHECK(tsendmsg(8, 0, NULL) == 0 && n_counted == 1 && counted == 8);
    CHECK(tsendmsg(0, FI_DELIVERY_COMPLETE, NULL) == 0 && n_counted == 2 && counted == 8);
    next_answer = IVC_E_FULL;
    CHECK(tsendmsg(100, 0, NULL) == 0 && n_counted == 3 && counted == 108);
    next_answer = IVC_E_GONE;
    CHECK(tsendmsg(100, 0, NULL) == -FI_ECONNABORTED);
    next_answer = IVC_E_FULL;
    while (ep.n_ops < IVC_FI_QUEUE_SIZE)
        CHECK(tsendmsg(0, 0, NULL) == 0);
    n_counted = 0;
    CHECK(tsendmsg(8, 0, NULL) == -FI_EAGAIN);
    CHECK(n_counted == 0 && counted == 108);
    over();
}

static const struct check_case cases[] = {
    { "a receive waits", test_posted, 0 },
    { "a message waits", test_early, 0 },
    { "trains and offers", test_arriving_and_offered, 0 },
    { "peek, claim, discard", test_peek, 0 },
    { "one buffer, many messages", test_multi, 0 },
    { "a peer goes", test_gone, 0 },
    { "sends", test_send, 0 },
    { "injects", test_inject, 0 },
    { "acknowledged sends", test_acknowledged, 0 },
    { "counted sends", test_counted, 0 },
    { "too many under way", test_exhausted, 0 },
    { "answers that nobody takes", test_unanswered, 0 },
    { "no memory for an answer", test_no_space, 0 },
};
CHECK_MAIN(cases)
