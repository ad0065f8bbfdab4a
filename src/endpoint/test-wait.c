/*
 * Tests of sleeping: two endpoints, each in a thread of its own that sleeps whenever it waits; woken by
 * the other, not woken because datagrams are lost, and not disturbed by those of strangers.
 */
#include "check.h"

#include "base/util.h"
#include "base/error.h"
#include "endpoint/internal.h"

#include <poll.h>
#include <pthread.h>
#include <sys/un.h>

enum { ROUNDS = 100 };

struct node {
    struct ivc_endpoint *endpoint;
    struct ivc_peer *peer;
    unsigned got;
    bool by_descriptor;
};
static struct node a, b;

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)peer, (void)packet;
    ((struct node *)arg)->got++;
}

static void node_open(struct node *node, const char *path, uint32_t client_id)
{
    struct ivc_endpoint_options options = {
        .region = path, .magic_id = 5, .client_id = client_id, .on_packet = on_packet, .arg = node,
    };

    *node = (struct node){ 0 };
    CHECK_THAT(ivc_endpoint_open(&options, &node->endpoint) == 0, "%s", ivc_error_text());
}

static void connect_to(struct node *from, const struct node *to)
{
    struct ivc_address address;

    ivc_endpoint_address(to->endpoint, &address);
    CHECK_THAT(ivc_endpoint_connect(from->endpoint, &address, &from->peer) == 0, "%s", ivc_error_text());
}

static void open_pair(void)
{
    const char *path = check_file(0, 16 << 20);

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    connect_to(&a, &b);
    connect_to(&b, &a);
}

static void send_one(struct node *node)
{
    struct iovec iov = { "hello", 5 };
    int r;

    while ((r = ivc_endpoint_send(node->endpoint, node->peer, 1, &iov, 1)) == IVC_E_FULL)
        ivc_endpoint_progress(node->endpoint);
    CHECK_EQ(r, 0);
}

static void sleep_once(struct node *node)
{
    struct pollfd ready = { .fd = -1, .events = POLLIN };

    if (!node->by_descriptor) {
        ivc_endpoint_wait(node->endpoint, 20000, false);
        return;
    }
    ready.fd = ivc_endpoint_fd(node->endpoint);
    CHECK(ready.fd >= 0);
    if (ivc_endpoint_arm(node->endpoint, false) == 0)
        CHECK_EQ(poll(&ready, 1, 20000), 1);
}

/* Never looks without having slept. */
static void wait_for(struct node *node, unsigned n)
{
    while (node->got < n) {
        sleep_once(node);
        ivc_endpoint_progress(node->endpoint);
    }
}

static void *answer(void *arg)
{
    (void)arg;
    for (unsigned i = 1; i <= ROUNDS; i++) {
        wait_for(&b, i);
        send_one(&b);
    }
    return NULL;
}

static void exchange(void)
{
    pthread_t thread;

    a.got = b.got = 0;
    CHECK_EQ(pthread_create(&thread, NULL, answer, NULL), 0);
    for (unsigned i = 1; i <= ROUNDS; i++) {
        send_one(&a);
        wait_for(&a, i);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* A datagram that comes later than its bell, because somebody else had the processor, is taken for lost
 * until the next one comes; and who finds everything there learns nothing. Then there is another exchange. */
static void exchange_until(bool woken)
{
    unsigned tries = 50;

    do {
        exchange();
    } while (!(a.endpoint->is_woken == woken && b.endpoint->is_woken == woken) && --tries > 0);
    CHECK(tries > 0);
}

static void close_pair(void)
{
    ivc_endpoint_free(a.endpoint);
    ivc_endpoint_free(b.endpoint);
}

static void test_woken(void)
{
    open_pair();
    for (unsigned round = 0; round < 3; round++) {
        a.by_descriptor = round % 2;
        b.by_descriptor = round == 2;
        exchange_until(true);
    }
    close_pair();
}

/* Those to and from `b` are lost, at first and again later: both find everything by themselves, and know
 * that they have to. */
static void test_lost(void)
{
    struct ivc_wake deaf = { .here = -1, .there = -1 }, hearing;

    open_pair();
    hearing = b.endpoint->wake;
    for (unsigned round = 0; round < 3; round++) {
        b.endpoint->wake = round == 1 ? hearing : deaf;
        exchange_until(round == 1);
    }
    b.endpoint->wake = hearing;
    close_pair();
}

static void disturb(const struct node *node)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "ivc-%016llx",
                       (unsigned long long)node->endpoint->id);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    CHECK(fd >= 0);
    CHECK_EQ(sendto(fd, "?", 1, 0, (struct sockaddr *)&name,
                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)), 1);
    close(fd);
}

/* A stranger's datagram is no reason to get up, and the next bell is heard all the same. */
static void test_disturbed(void)
{
    struct pollfd ready = { .fd = -1, .events = POLLIN };

    open_pair();
    exchange();
    ready.fd = ivc_endpoint_fd(a.endpoint);
    for (unsigned i = 1; i <= 10; i++) {
        a.got = 0;
        while (ivc_endpoint_arm(a.endpoint, false) != 0)
            ivc_endpoint_progress(a.endpoint);
        disturb(&a);
        CHECK_EQ(poll(&ready, 1, 10), 0);
        send_one(&b);
        CHECK_EQ(poll(&ready, 1, 20000), 1);
        while (a.got == 0)
            ivc_endpoint_progress(a.endpoint);
    }
    CHECK(a.endpoint->is_woken);
    close_pair();
}

static void test_timeout(void)
{
    uint64_t start;

    open_pair();
    exchange();
    start = ivc_now_ms();
    while (ivc_endpoint_wait(a.endpoint, 30, false) != 0)
        ivc_endpoint_progress(a.endpoint);
    CHECK_THAT(ivc_now_ms() - start >= 30, "%u ms", (unsigned)(ivc_now_ms() - start));
    CHECK(!a.endpoint->asleep);
    close_pair();
}

/* What no turn takes on this processor. */
static uint64_t long_work_ns(void)
{
    const struct ivc_rest *rest = &a.endpoint->rest;

    return IVC_MAX(10 * 1000, rest->cycles_per_us ? 20 * rest->pace * 1000 / rest->cycles_per_us : 0);
}

/* `n` turns that find nothing, with so much work in between; whether a sleep was due after one of them. */
static bool look_and_work(unsigned n, uint64_t work_ns)
{
    struct ivc_endpoint *endpoint = a.endpoint;

    endpoint->rest.rested = 0;
    for (unsigned i = 0; i < n && endpoint->rest.rested == 0; i++) {
        uint64_t start;

        CHECK_EQ(ivc_endpoint_progress(endpoint), 0);
        ivc_endpoint_rest(endpoint, IVC_COMPANY_NONE, false, UINT64_MAX);
        start = ivc_now_ns();   /* after giving way: others took that time */
        while (work_ns > 0 && ivc_now_ns() - start < work_ns) { }
    }
    return endpoint->rest.rested != 0;
}

/* Who only waits comes to sleep; who works, and looks now and then, never does. */
static void test_rest(void)
{
    open_pair();
    exchange();
    CHECK(look_and_work(UINT32_MAX, 0));
    CHECK(!look_and_work(5000, long_work_ns()));
    send_one(&b);
    while (a.got == ROUNDS)
        ivc_endpoint_progress(a.endpoint);
    CHECK(!look_and_work(5000, long_work_ns()));
    CHECK(look_and_work(UINT32_MAX, 0));
    close_pair();
}

/* A packet, and then `n` turns that find nothing, while somebody wants the processor: after how many of them a caller
 * who gives way itself is to do so. */
static unsigned look_in_vain(unsigned n, bool asks)
{
    unsigned got = a.got, answers = 0;

    send_one(&b);
    while (a.got == got)
        ivc_endpoint_progress(a.endpoint);
    a.endpoint->crowd.given = 0;
    for (unsigned i = 0; i < n; i++) {
        a.endpoint->crowd.yields = 2;
        CHECK_EQ(ivc_endpoint_progress(a.endpoint), 0);
        answers += asks && ivc_endpoint_gives_way(a.endpoint);
    }
    return answers;
}

/* Either the caller gives way or the endpoint, and the seldomer the longer nothing comes. */
static void test_gives_way(void)
{
    open_pair();
    exchange();
    CHECK_EQ(look_in_vain(31, true), 31);
    CHECK_EQ(look_in_vain(63, true), 31 + 16);
    CHECK_EQ(look_in_vain(127, true), 31 + 16 + 16);
    CHECK_EQ(look_in_vain(1023, true), 31 + 5 * 16);
    CHECK_EQ(look_in_vain(1023 + 640, true), 31 + 5 * 16 + 10);
    CHECK_EQ(a.endpoint->crowd.given, 0);
    (void)look_in_vain(1023, false);
    CHECK(a.endpoint->crowd.given > 0);
    close_pair();
}

/* Turns in vain until the next one is quiet. */
static void look_until_quiet(void)
{
    while (a.endpoint->quiet == 0)
        CHECK_EQ(ivc_endpoint_progress(a.endpoint), 0);
}

/* Most turns of a wait are, and yet whatever comes is found by the very next one, and sending ends it. */
static void test_quiet(void)
{
    unsigned quiet = 0;

    open_pair();
    exchange();
    look_until_quiet();
    send_one(&b);                   /* by its bell: who slept watches no ring */
    CHECK_EQ(ivc_endpoint_progress(a.endpoint), 1);
    CHECK_EQ(a.endpoint->quiet, 0);
    look_until_quiet();
    CHECK_EQ(a.endpoint->n_hot, 1);
    send_one(&b);
    CHECK_EQ(ivc_endpoint_progress(a.endpoint), 1);
    look_until_quiet();
    ivc_endpoint_leave_to_progress(a.endpoint);
    CHECK_EQ(ivc_endpoint_progress(a.endpoint), 0);
    CHECK_EQ(a.endpoint->news, 0);
    look_until_quiet();
    send_one(&a);
    CHECK_EQ(a.endpoint->quiet, 0);
    for (unsigned i = 0; i < 1000; i++) {
        a.endpoint->crowd.yields = 0;       /* whoever else there is on this machine */
        quiet += a.endpoint->quiet > 0;
        CHECK_EQ(ivc_endpoint_progress(a.endpoint), 0);
    }
    CHECK_THAT(quiet >= 800 && quiet < 1000, "%u turns of 1000", quiet);
    close_pair();
}

/* Where everything takes a hundred times as long, that is no work. */
static void test_slow_processor(void)
{
    uint64_t work;

    open_pair();
    exchange();
    work = long_work_ns();
    CHECK(!look_and_work(5000, work));
    a.endpoint->rest.pace *= 100;
    CHECK(look_and_work(UINT32_MAX, work));
    close_pair();
}

enum { US = 1000 };

/* Whether it may be woken at once, by one who says so at `now_us`, was woken and has sent or not since. */
static bool is_told_at_once(struct ivc_moderation *moderation, uint64_t now_us, bool has_sent)
{
    uint64_t from = ivc_moderation_begin(moderation, now_us * US);

    CHECK(from >= now_us * US);
    ivc_moderation_found(moderation);
    if (has_sent)
        ivc_moderation_sent(moderation);
    return from == now_us * US;
}

static void test_moderation_fixed(void)
{
    struct ivc_moderation moderation;

    setenv("IVC_MODERATION", "300", 1);
    CHECK_EQ(ivc_moderation_init(&moderation), 0);
    CHECK_EQ(ivc_moderation_begin(&moderation, 1000 * US), 1000 * US);
    /* Nothing came: it may go on being woken. */
    CHECK_EQ(ivc_moderation_begin(&moderation, 1050 * US), 1050 * US);
    ivc_moderation_found(&moderation);
    ivc_moderation_sent(&moderation);
    CHECK_EQ(ivc_moderation_begin(&moderation, 1100 * US), 1350 * US);
    ivc_moderation_found(&moderation);
    CHECK_EQ(ivc_moderation_begin(&moderation, 1400 * US), 1650 * US);
    ivc_moderation_found(&moderation);
    CHECK_EQ(ivc_moderation_begin(&moderation, 1950 * US), 1950 * US);
    setenv("IVC_MODERATION", "0", 1);
    CHECK_EQ(ivc_moderation_init(&moderation), 0);
    for (unsigned i = 0; i < 100; i++)
        CHECK(is_told_at_once(&moderation, 1000 + i, false));
}

static void test_moderation_adaptive(void)
{
    struct ivc_moderation moderation;
    uint64_t now = 1000;
    unsigned still = 0;

    unsetenv("IVC_MODERATION");
    CHECK_EQ(ivc_moderation_init(&moderation), 0);
    for (unsigned i = 0; i < 20; i++)       /* answers at once, seldom anything */
        CHECK(is_told_at_once(&moderation, now += 20, true));
    for (unsigned i = 0; i < 20; i++)
        CHECK(is_told_at_once(&moderation, now += 200, false));
    for (unsigned i = 0; i < 20; i++)       /* one after the other */
        still += !is_told_at_once(&moderation, now += 20, false);
    CHECK(still > 10);
    CHECK(!is_told_at_once(&moderation, now += 20, true));
    CHECK(is_told_at_once(&moderation, now += 20, false));
}

static void test_moderation_words(void)
{
    static const char *const wrong[] = { "-1", "50001", "often", "10us" };
    struct ivc_moderation moderation;

    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("IVC_MODERATION", wrong[i], 1);
        CHECK_EQ(ivc_moderation_init(&moderation), -EINVAL);
        CHECK(strstr(ivc_error_text(), wrong[i]) != NULL);
    }
    unsetenv("IVC_MODERATION");
}

/* Everything is found although nobody is told of the sleep for a while. */
static void test_moderated(void)
{
    setenv("IVC_MODERATION", "1000", 1);
    open_pair();
    unsetenv("IVC_MODERATION");
    for (unsigned round = 0; round < 3; round++) {
        a.by_descriptor = round % 2;
        b.by_descriptor = round == 2;
        exchange();
    }
    close_pair();
}

static bool is_told(const struct node *node)
{
    struct pollfd ready = { .fd = node->endpoint->wake.here, .events = POLLIN };

    return poll(&ready, 1, 0) == 1;
}

/* Who keeps still hears of it when there is no room for more, once, and of nothing before. */
static void test_insisted(void)
{
    struct iovec iov = { "hello", 5 };
    int r;

    open_pair();
    exchange();
    (void)ivc_wake_take(&a.endpoint->wake);
    CHECK(!ivc_poll_unwatch_all(a.endpoint));
    ivc_poll_lie_down(a.endpoint, false);
    send_one(&b);
    CHECK(!is_told(&a));
    while ((r = ivc_endpoint_send(b.endpoint, b.peer, 1, &iov, 1)) == 0) { }
    CHECK_EQ(r, IVC_E_FULL);
    CHECK(is_told(&a));
    CHECK(ivc_wake_take(&a.endpoint->wake));
    CHECK_EQ(ivc_endpoint_send(b.endpoint, b.peer, 1, &iov, 1), IVC_E_FULL);
    CHECK(!is_told(&a));
    ivc_poll_get_up(a.endpoint);
    close_pair();
}

static bool becomes_readable(struct node *node, bool sending, int ms)
{
    struct pollfd ready = { .fd = ivc_endpoint_fd(node->endpoint), .events = POLLIN };

    do
        ivc_endpoint_progress(node->endpoint);
    while (ivc_endpoint_arm(node->endpoint, sending) != 0);
    return poll(&ready, 1, ms) == 1;
}

/* Who waits for room is told to look every millisecond, and nobody is who came after him.  (Every 50 ms everybody is.) */
static void test_waited_for_room(void)
{
    unsigned still = 0;

    open_pair();
    for (unsigned i = 0; i < 20; i++) {
        CHECK(becomes_readable(&a, true, 20000));
        still += !becomes_readable(&a, false, 20);
    }
    CHECK_THAT(still > 10, "%u", still);
    close_pair();
}

static const struct check_case cases[] = {
    { "woken by the other", test_woken, 0 },
    { "datagrams are lost", test_lost, 0 },
    { "datagrams of strangers", test_disturbed, 0 },
    { "nobody comes", test_timeout, 0 },
    { "rest, and work", test_rest, 0 },
    { "who gives way", test_gives_way, 0 },
    { "quiet turns", test_quiet, 0 },
    { "a slow processor", test_slow_processor, 0 },
    { "moderation: a number", test_moderation_fixed, 0 },
    { "moderation: adaptive", test_moderation_adaptive, 0 },
    { "moderation: wrong words", test_moderation_words, 0 },
    { "moderated", test_moderated, 0 },
    { "no room for more", test_insisted, 0 },
    { "room was waited for before", test_waited_for_room, 0 },
};
CHECK_MAIN(cases)
