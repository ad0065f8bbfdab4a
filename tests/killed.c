/*
 * Processes killed at random moments while they hold memory of the region.  Whoever is left must
 * learn of it, the next job must work without anybody cleaning up, and in the end every byte must
 * be free again.
 */
#include "exchange.h"

enum { MIB = 1 << 20 };

static uint64_t free_bytes(const char *path)
{
    struct ivc_region *region;
    struct ivc_region_info info;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    ivc_region_info(region, &info);
    ivc_region_free(region);
    return info.free_bytes;
}

/* Sends to all others for ever; takes what comes; minds nobody's death. */
static void mind_nothing(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct exchange *exchange = arg;

    (void)reason;
    ivc_mailbox_gone(exchange->mailbox, peer);
}

static void drop_start(void *arg, struct ivc_message *message)
{
    (void)arg;
    message->arg = malloc(message->len + 1);
    message->iov[0] = (struct iovec){ message->arg, message->len };
    message->n_iov = 1;
}

static void drop_done(void *arg, struct ivc_message *message, int status)
{
    (void)arg, (void)status;
    free(message->arg);
}

static void drop_sent(void *arg, int status)
{
    struct exchange_sending *sending = arg;

    (void)status;
    sending->to->sent++;
    free(sending);
}

static int talk_for_ever(void *arg)
{
    struct exchange *exchange = arg;
    struct ivc_endpoint_options options = {
        .region = exchange->region, .magic_id = exchange->magic_id, .client_id = exchange->own,
        .on_packet = exchange_on_packet, .on_gone = mind_nothing, .on_arrival = exchange_on_arrival,
        .arg = exchange,
    };

    CHECK_THAT(ivc_endpoint_open(&options, &exchange->endpoint) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_mailbox_new(exchange->endpoint, drop_start, drop_done, exchange,
                             &exchange->mailbox), 0);
    for (uint64_t number = 0;; number++) {
        uint32_t to = (uint32_t)(number % exchange->n_members);
        struct exchange_peer *peer = &exchange->peers[to];

        if (number % 256 == 0)
            exchange_find(exchange);
        if (peer->peer && to != exchange->own && peer->started - peer->sent < EXCHANGE_UNDER_WAY) {
            size_t len = exchange_len(exchange, exchange->own, to, number);
            struct exchange_sending *sending = malloc(sizeof *sending + len);

            sending->to = peer;
            memset(sending->bytes, 0, len);
            peer->started++;
            if (ivc_mailbox_send(exchange->mailbox, peer->peer, "\1",
                                 &(struct iovec){ sending->bytes, len }, 1, drop_sent, sending) < 0)
                drop_sent(sending, -1);
        }
        if (ivc_mailbox_progress(exchange->mailbox) == 0)
            sched_yield();
    }
}

/* Somebody must be there who looks: one more member, for as long as it takes to go once round the
 * directory.  Of those who had died before it came only the lease tells. */
static void expect_all_free(const char *path, uint64_t bytes)
{
    struct ivc_region_info info;
    struct ivc_region *region;
    uint64_t own, end;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(3, 0)) == 0, "%s", ivc_error_text());
    ivc_region_info(region, &info);
    end = ivc_now_ms() + info.lease_ms + 6000 * check_slowdown();
    own = (ivc_region_capacity(region) > IVC_LAYOUT_LINKS_PER_PART ? 3 : 2) * 4096; /* its link table */
    while (free_bytes(path) + own != bytes && ivc_now_ms() < end)
        ivc_sleep_ms(50);
    CHECK_EQ(free_bytes(path) + own, bytes);
    ivc_region_leave(region);
    ivc_region_free(region);
    CHECK_EQ(free_bytes(path), bytes);
}

static void next_job_works(const char *path)
{
    struct exchange next = { .region = path, .magic_id = 21, .n_members = 3, .n_messages = 20,
                             .longest = 300000 };

    exchange_run(&next);
}

/* All killed at a random moment; at once the next job, in a region that they had filled. */
static void kill_all(uint64_t region_size, unsigned n, unsigned rounds)
{
    const char *path = check_file(0, region_size);
    uint64_t before = free_bytes(path), state = region_size + n;

    for (unsigned round = 0; round < rounds; round++) {
        /* Each a job of its own: of the last one's names only the lease tells that they are nobody's. */
        struct exchange doomed = { .region = path, .magic_id = 100 + round, .n_members = n, .longest = MIB };
        pid_t pids[EXCHANGE_MEMBERS_MAX];

        for (unsigned i = 0; i < n; i++) {
            doomed.own = i;
            pids[i] = check_fork(talk_for_ever, &doomed);
        }
        ivc_sleep_ms((30 + check_random(&state) % 500) * check_slowdown());
        for (unsigned i = 0; i < n; i++)
            kill(pids[i], SIGKILL);
        for (unsigned i = 0; i < n; i++)
            waitpid(pids[i], NULL, 0);
        next_job_works(path);
    }
    expect_all_free(path, before);
}

static void test_kill_all(void)
{
    kill_all(64 * MIB, 4, 6);
}

static void test_kill_all_full(void)
{
    kill_all(MIB, 5, 4);
}

/* One after the other is killed and replaced while the rest goes on. */
static void test_replaced(void)
{
    enum { N = 4 };
    const char *path = check_file(0, 64 * MIB);
    uint64_t before = free_bytes(path), state = 9;
    struct exchange job = { .region = path, .magic_id = 20, .n_members = N, .longest = MIB };
    pid_t pids[N];

    for (unsigned i = 0; i < N; i++) {
        job.own = i;
        pids[i] = check_fork(talk_for_ever, &job);
    }
    for (unsigned round = 0; round < 30; round++) {
        unsigned victim = (unsigned)(check_random(&state) % N);

        ivc_sleep_ms(check_random(&state) % 200 * check_slowdown());
        CHECK_THAT(waitpid(-1, NULL, WNOHANG) == 0, "one has ended by itself");
        check_kill(pids[victim]);
        job.own = victim;
        pids[victim] = check_fork(talk_for_ever, &job);
    }
    next_job_works(path);
    for (unsigned i = 0; i < N; i++)
        check_kill(pids[i]);
    expect_all_free(path, before);
}

/* Killed while joining and leaving: many short lives, each ended at a random moment. */
__attribute__((noreturn)) static int come_and_go(void *arg)
{
    struct exchange *exchange = arg;
    struct ivc_endpoint_options options = {
        .region = exchange->region, .magic_id = 22, .client_id = exchange->own,
        .on_packet = exchange_on_packet, .arg = exchange,
    };

    for (;;) {
        if (ivc_endpoint_open(&options, &exchange->endpoint) == 0)
            ivc_endpoint_free(exchange->endpoint);
    }
}

static void test_killed_joining(void)
{
    const char *path = check_file(0, 16 * MIB);
    uint64_t before = free_bytes(path), state = 5;

    for (unsigned round = 0; round < 40; round++) {
        struct exchange exchange = { .region = path };
        pid_t pids[2];

        for (unsigned i = 0; i < 2; i++)
            pids[i] = check_fork(come_and_go, &exchange);
        ivc_sleep_ms(check_random(&state) % 30);
        check_kill(pids[0]);
        ivc_sleep_ms(check_random(&state) % 10);
        check_kill(pids[1]);
    }
    next_job_works(path);
    /* One that died between taking its slot and saying who it is rests for the whole lease. */
    {
        struct ivc_region *region;
        struct ivc_region_info info;
        uint64_t end;

        CHECK_EQ(ivc_region_open(path, &region), 0);
        CHECK_EQ(ivc_region_join(region, CHECK_AS(3, 0)), 0);
        ivc_region_info(region, &info);
        for (end = ivc_now_ms() + info.lease_ms + 2000;
             ivc_now_ms() < end && free_bytes(path) + 4096 < before;)
            ivc_sleep_ms(50);
        ivc_region_leave(region);
        ivc_region_free(region);
    }
    expect_all_free(path, before);
}

/* The others are told, and soon. */
static unsigned told;
static const char *told_reason;

static void note_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    (void)arg, (void)peer;
    told++;
    told_reason = reason;
}

static void ignore_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg, (void)peer, (void)packet;
}

static void test_told(void)
{
    const char *path = check_file(0, 16 * MIB);
    struct exchange other = { .region = path, .magic_id = 20, .own = 1, .n_members = 2,
                              .longest = 1000 };
    struct ivc_endpoint_options options = {
        .region = path, .magic_id = 20, .client_id = 0, .on_packet = ignore_packet,
        .on_gone = note_gone, .on_arrival = exchange_on_arrival,
    };
    struct ivc_endpoint *endpoint;
    struct ivc_member member;
    struct ivc_peer *peer;
    uint64_t start;
    pid_t pid;

    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), 0);
    pid = check_fork(talk_for_ever, &other);
    while (ivc_region_member(ivc_endpoint_region(endpoint), 1, &member) != 0)
        ivc_endpoint_progress(endpoint);
    CHECK_EQ(ivc_endpoint_connect_member(endpoint, &member, &peer), 0);
    for (start = ivc_now_ms(); ivc_now_ms() - start < 300;)
        ivc_endpoint_progress(endpoint);
    CHECK_EQ(told, 0);
    check_kill(pid);
    for (start = ivc_now_ms(); told == 0 && ivc_now_ms() - start < 5000 * check_slowdown();)
        ivc_endpoint_progress(endpoint);
    CHECK_EQ(told, 1);
    CHECK(told_reason != NULL);
    CHECK_TEXT(told_reason, "died");
    CHECK_EQ(ivc_endpoint_send(endpoint, peer, 1, &(struct iovec){ "x", 1 }, 1), IVC_E_GONE);
    ivc_endpoint_free(endpoint);
}

static const struct check_case cases[] = {
    { "all killed, the next job starts at once", test_kill_all, 120 },
    { "all killed in a region that they filled", test_kill_all_full, 120 },
    { "one after the other killed and replaced", test_replaced, 120 },
    { "killed while joining and leaving", test_killed_joining, 120 },
    { "the others are told", test_told, 60 },
};
CHECK_MAIN(cases)
