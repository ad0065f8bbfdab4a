/*
 * Peers that die, and threads, through libfabric's public calls.
 *
 * A process that is killed ends every operation that concerns it, as an error, within a time that
 * fi_ivc(7) states; nothing else is disturbed.  Four threads use one endpoint at once.
 */
#include "end.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---------------------------------------------------------------- a peer is killed */

enum {
    KEY = 5,
    MEMORY_LIMIT_MS = 5000,     /* a process of our own kernel is missed after half a second */
    NETWORK_LIMIT_MS = 30000,   /* a process of the network after eight */
};

static char memory[1 << 20], landing[1 << 20];
static int contexts[16];
#define CONTEXT(i) ((void *)&contexts[i])

struct pipes {
    int to_child[2], to_parent[2];
};

static void exchange(int out, int in, struct end *end, uint8_t *ret_address)
{
    CHECK(write(out, end->address, END_ADDRESS) == END_ADDRESS);
    CHECK(read(in, ret_address, END_ADDRESS) == END_ADDRESS);
}

/* Lives until it is killed; answers what is asked until it is stopped. */
static int victim(void *arg)
{
    struct pipes *pipes = arg;
    uint8_t parent[END_ADDRESS];
    struct end_event event;
    struct fid_mr *mr;
    struct end end;
    fi_addr_t to;
    ssize_t r;

    end_open(&end, FI_THREAD_DOMAIN);
    CHECK_EQ(fi_mr_reg(end.domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY,
                       0, &mr, NULL), 0);
    exchange(pipes->to_parent[1], pipes->to_child[0], &end, parent);
    to = end_meet(&end, parent);
    while ((r = fi_tinject(end.ep, "h", 1, to, 1)) == -FI_EAGAIN)
        (void)end_poll(&end, &event);       /* the network is not there at once */
    CHECK_EQ(r, 0);
    for (;;)
        (void)end_poll(&end, &event);
    return 0;
}

static void post_operations(struct end *end, fi_addr_t to, struct iovec *iov)
{
    const struct fi_msg_tagged delivered = {
        .msg_iov = iov, .iov_count = 1, .addr = to, .tag = 2, .context = CONTEXT(5),
    };

    CHECK_EQ(fi_tsend(end->ep, memory, sizeof memory, NULL, to, 2, CONTEXT(1)), 0);
    CHECK_EQ(fi_trecv(end->ep, landing, 8, NULL, to, 3, 0, CONTEXT(2)), 0);
    CHECK_EQ(fi_recv(end->ep, landing, 8, NULL, to, CONTEXT(3)), 0);
    CHECK_EQ(fi_read(end->ep, landing, sizeof landing, NULL, to, 0, KEY, CONTEXT(4)), 0);
    CHECK_EQ(fi_tsendmsg(end->ep, &delivered, FI_DELIVERY_COMPLETE), 0);
    CHECK_EQ(fi_write(end->ep, memory, sizeof memory, NULL, to, 0, KEY, CONTEXT(6)), 0);
    /* From anybody: not that one's. */
    CHECK_EQ(fi_trecv(end->ep, landing, 8, NULL, FI_ADDR_UNSPEC, 9, 0, CONTEXT(0)), 0);
}

/* `blocking`: the survivor sleeps in fi_cq_sread(). */
static unsigned collect_errors(struct end *end, uint64_t limit_ms, bool blocking)
{
    uint64_t limit = end_now_ms() + limit_ms * check_slowdown();
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;
    unsigned seen = 0;

    while (seen != 0x7e) {
        ssize_t n = blocking ? fi_cq_sread(end->cq, &entry, 1, NULL, 1000)
                             : fi_cq_read(end->cq, &entry, 1);
        long which;

        CHECK_THAT(end_now_ms() < limit, "errors so far: %#x", seen);
        if (n == -FI_EAGAIN)
            continue;
        CHECK_EQ(n, -FI_EAVAIL);
        memset(&error, 0, sizeof error);
        CHECK_EQ(fi_cq_readerr(end->cq, &error, 0), 1);
        which = (int *)error.op_context - contexts;
        CHECK_THAT(which > 0 && which < 7 && !(seen & 1u << which), "context %ld", which);
        CHECK_THAT(error.err == FI_ECONNABORTED, "context %ld: %s", which, fi_strerror(error.err));
        seen |= 1u << which;
    }
    return seen;
}

/* What is more than a packet and wants an answer ends as well: at once, or by an error. */
static void expect_refusal(struct end *end, fi_addr_t to, struct iovec *iov)
{
    const struct fi_msg_tagged delivered = {
        .msg_iov = iov, .iov_count = 1, .addr = to, .tag = 2, .context = CONTEXT(7),
    };
    struct end_event event;
    ssize_t r;

    iov->iov_len = 100000;
    r = fi_tsendmsg(end->ep, &delivered, FI_DELIVERY_COMPLETE);
    if (r == 0)
        end_expect_error(end, NULL, CONTEXT(7), FI_ECONNABORTED, &event, "a long send");
    else
        CHECK_EQ(r, -FI_ECONNABORTED);
    r = fi_write(end->ep, memory, 100000, NULL, to, 0, KEY, CONTEXT(8));
    if (r == 0)
        end_expect_error(end, NULL, CONTEXT(8), FI_ECONNABORTED, &event, "a long write");
    else
        CHECK_EQ(r, -FI_ECONNABORTED);
}

static void kill_test(const char *region, uint64_t limit_ms, bool blocking)
{
    struct iovec iov = { memory, 8 };
    uint8_t address[END_ADDRESS];
    struct pipes pipes;
    struct end end;
    uint64_t start;
    fi_addr_t to;
    pid_t pid;
    char hello;

    CHECK(pipe(pipes.to_child) == 0 && pipe(pipes.to_parent) == 0);
    end_environment(region);
    pid = check_fork(victim, &pipes);
    end_open(&end, FI_THREAD_SAFE);
    exchange(pipes.to_child[1], pipes.to_parent[0], &end, address);
    to = end_meet(&end, address);
    CHECK_EQ(fi_trecv(end.ep, &hello, 1, NULL, to, 1, 0, CONTEXT(0)), 0);
    end_expect(&end, NULL, CONTEXT(0), "the first word");
    CHECK_EQ(kill(pid, SIGSTOP), 0);    /* so that nothing of what follows ends in time */
    post_operations(&end, to, &iov);
    CHECK_EQ(fi_cq_read(end.cq, NULL, 0), -FI_EAGAIN);
    start = end_now_ms();
    check_kill(pid);
    collect_errors(&end, limit_ms, blocking);
    printf("# all errors after %d ms\n", (int)(end_now_ms() - start));
    /* It stays so; and who waited for anybody still waits. */
    CHECK_EQ(fi_tsend(end.ep, "x", 1, NULL, to, 1, NULL), -FI_ECONNABORTED);
    CHECK_EQ(fi_inject(end.ep, "x", 1, to), -FI_ECONNABORTED);
    CHECK_EQ(fi_trecv(end.ep, landing, 8, NULL, to, 3, 0, NULL), -FI_ECONNABORTED);
    CHECK_EQ(fi_read(end.ep, landing, 8, NULL, to, 0, KEY, NULL), -FI_ECONNABORTED);
    expect_refusal(&end, to, &iov);
    CHECK_EQ(fi_cq_read(end.cq, NULL, 0), -FI_EAGAIN);
    CHECK_EQ(fi_cancel(&end.ep->fid, CONTEXT(0)), 0);
    start = end_now_ms();
    end_close(&end);
    CHECK(end_now_ms() - start < 10000 * check_slowdown());
}

/* Nothing was ever sent either way; somebody waits all the same. */
static int silent(void *arg)
{
    struct pipes *pipes = arg;
    uint8_t parent[END_ADDRESS];
    struct end end;

    end_open(&end, FI_THREAD_DOMAIN);
    exchange(pipes->to_parent[1], pipes->to_child[0], &end, parent);
    for (;;)
        pause();
    return 0;
}

static void kill_silent_test(const char *region, uint64_t limit_ms)
{
    uint8_t address[END_ADDRESS];
    struct end_event event;
    struct pipes pipes;
    struct end end;
    uint64_t start;
    pid_t pid;

    CHECK(pipe(pipes.to_child) == 0 && pipe(pipes.to_parent) == 0);
    end_environment(region);
    pid = check_fork(silent, &pipes);
    end_open(&end, FI_THREAD_DOMAIN);
    exchange(pipes.to_child[1], pipes.to_parent[0], &end, address);
    CHECK_EQ(fi_trecv(end.ep, landing, 8, NULL, end_meet(&end, address), 3, 0, CONTEXT(2)), 0);
    CHECK(!end_poll(&end, &event));
    start = end_now_ms();
    check_kill(pid);
    end_wait(&end, NULL, &event, limit_ms, "the end of a receive");
    printf("# after %d ms\n", (int)(end_now_ms() - start));
    CHECK_EQ(event.error.err, FI_ECONNABORTED);
    CHECK(event.error.op_context == CONTEXT(2));
    end_close(&end);
}

static void case_killed_silent(void)
{
    kill_silent_test(check_file(0, 64 << 20), MEMORY_LIMIT_MS);
}

static void case_killed_silent_network(void) { kill_silent_test("none", NETWORK_LIMIT_MS); }

static void case_killed(void) { kill_test(check_file(0, 64 << 20), MEMORY_LIMIT_MS, false); }
static void case_killed_asleep(void) { kill_test(check_file(0, 64 << 20), MEMORY_LIMIT_MS, true); }
static void case_killed_network(void) { kill_test("none", NETWORK_LIMIT_MS, false); }
static void case_killed_network_asleep(void) { kill_test("none", NETWORK_LIMIT_MS, true); }

/* ---------------------------------------------------------------- the memory is taken away */

enum { ROUNDS = 20, SHORTENED_AFTER = 10 };

static void send_word(struct end *end, fi_addr_t to, unsigned round)
{
    ssize_t r;

    while ((r = fi_tsend(end->ep, memory, 1 + round * 5000, NULL, to, round, CONTEXT(1))) == -FI_EAGAIN)
        CHECK(fi_cq_read(end->cq, NULL, 0) <= 0);
    CHECK_EQ(r, 0);
    end_expect(end, NULL, CONTEXT(1), "a send");
}

static void receive_word(struct end *end, fi_addr_t from, unsigned round)
{
    CHECK_EQ(fi_trecv(end->ep, landing, sizeof landing, NULL, from, round, 0, CONTEXT(2)), 0);
    end_expect(end, NULL, CONTEXT(2), "a receive");
    CHECK(memcmp(landing, memory, 1 + round * 5000) == 0);
}

static int echo(void *arg)
{
    struct pipes *pipes = arg;
    uint8_t parent[END_ADDRESS];
    struct end end;
    fi_addr_t to;
    char done;

    end_open(&end, FI_THREAD_DOMAIN);
    exchange(pipes->to_parent[1], pipes->to_child[0], &end, parent);
    to = end_meet(&end, parent);
    for (unsigned round = 0; round < ROUNDS; round++) {
        receive_word(&end, to, round);
        send_word(&end, to, round);
    }
    fcntl(pipes->to_child[0], F_SETFL, O_NONBLOCK);
    while (read(pipes->to_child[0], &done, 1) != 1)
        CHECK(fi_cq_read(end.cq, NULL, 0) <= 0);
    end_close(&end);
    return 0;
}

/* While nothing is under way: nobody ends, nothing is lost, and the rest goes by network. */
static void case_shortened(void)
{
    const char *region = check_file(0, 64 << 20);
    uint8_t address[END_ADDRESS];
    struct pipes pipes;
    struct end end;
    fi_addr_t to;
    pid_t pid;

    CHECK(pipe(pipes.to_child) == 0 && pipe(pipes.to_parent) == 0);
    check_fill((uint8_t *)memory, sizeof memory, 7);
    end_environment(region);
    pid = check_fork(echo, &pipes);
    end_open(&end, FI_THREAD_DOMAIN);
    exchange(pipes.to_child[1], pipes.to_parent[0], &end, address);
    to = end_meet(&end, address);
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (round == SHORTENED_AFTER)
            CHECK_EQ(truncate(region, 0), 0);
        send_word(&end, to, round);
        receive_word(&end, to, round);
    }
    CHECK_EQ(write(pipes.to_child[1], "d", 1), 1);
    check_join(pid);
    end_close(&end);
}

/* ---------------------------------------------------------------- threads */

enum { THREADS = 4, WINDOW = 8 };

/* What an operation's context points to: whoever reads the queue tells whoever waits. */
struct operation {
    _Atomic bool done;
};

struct worker {
    struct end *end;
    fi_addr_t to;
    unsigned number, rounds;
    bool asleep;                /* reads the queue by fi_cq_sread() */
};

static size_t size_of(unsigned round, unsigned i)
{
    static const size_t sizes[] = { 0, 8, 100, 3000, 9000, 70000, 200000 };

    return sizes[(round * 3 + i) % (sizeof sizes / sizeof *sizes)];
}

static void fill(char *bytes, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)(seed * 131 + i * 7 + (i >> 8));
}

/* Reads whatever there is, mine or not. */
static void read_some(struct worker *worker)
{
    struct fi_cq_tagged_entry entries[4];
    ssize_t n = worker->asleep ? fi_cq_sread(worker->end->cq, entries, 4, NULL, 1)
                               : fi_cq_read(worker->end->cq, entries, 4);

    CHECK_THAT(n > 0 || n == -FI_EAGAIN, "thread %u: %s", worker->number, fi_strerror((int)-n));
    for (ssize_t i = 0; i < n; i++)
        atomic_store_explicit(&((struct operation *)entries[i].op_context)->done, true,
                              memory_order_release);
    if (n <= 0)
        sched_yield();
}

static void wait_for(struct worker *worker, struct operation *operation)
{
    while (!atomic_load_explicit(&operation->done, memory_order_acquire))
        read_some(worker);
}

static void one_round(struct worker *worker, unsigned round, char *out, char *in, char *expected)
{
    struct operation sends[WINDOW] = { 0 }, receives[WINDOW] = { 0 };
    const size_t room = 200000;
    ssize_t r;

    for (unsigned i = 0; i < WINDOW; i++) {
        uint64_t tag = (uint64_t)worker->number << 32 | i;

        CHECK_EQ(fi_trecv(worker->end->ep, in + i * room, room, NULL, worker->to, tag, 0,
                          &receives[i]), 0);
    }
    for (unsigned i = 0; i < WINDOW; i++) {
        uint64_t tag = (uint64_t)worker->number << 32 | i;
        size_t len = size_of(round, i);

        fill(out + i * room, len, tag + round);
        while ((r = fi_tsend(worker->end->ep, out + i * room, len, NULL, worker->to, tag,
                             &sends[i])) == -FI_EAGAIN)
            read_some(worker);
        CHECK_EQ(r, 0);
    }
    for (unsigned i = 0; i < WINDOW; i++) {
        size_t len = size_of(round, i);

        wait_for(worker, &receives[i]);
        fill(expected, len, ((uint64_t)worker->number << 32 | i) + round);
        CHECK_THAT(memcmp(in + i * room, expected, len) == 0, "thread %u, round %u, message %u",
                   worker->number, round, i);
        wait_for(worker, &sends[i]);
    }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    char *out = malloc(WINDOW * 200000), *in = malloc(WINDOW * 200000), *expected = malloc(200000);

    CHECK(out && in && expected);
    for (unsigned round = 0; round < worker->rounds; round++)
        one_round(worker, round, out, in, expected);
    free(out);
    free(in);
    free(expected);
    return NULL;
}

static void run_threads(struct end *end, fi_addr_t to, unsigned rounds)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){ end, to, i, rounds, i == 3 };
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* With itself. */
static void case_threads(void)
{
    struct end end;

    end_environment(check_file(0, 64 << 20));
    end_open(&end, FI_THREAD_SAFE);
    run_threads(&end, end_meet(&end, end.address), 150);
    end_close(&end);
}

struct partner {
    struct pipes pipes;
    unsigned rounds;
};

static int partner(void *arg)
{
    struct partner *partner = arg;
    uint8_t address[END_ADDRESS];
    struct end end;

    end_open(&end, FI_THREAD_SAFE);
    exchange(partner->pipes.to_parent[1], partner->pipes.to_child[0], &end, address);
    run_threads(&end, end_meet(&end, address), partner->rounds);
    end_close(&end);
    return 0;
}

static void threads_test(const char *region, unsigned rounds)
{
    struct partner other = { .rounds = rounds };
    uint8_t address[END_ADDRESS];
    struct end end;
    pid_t pid;

    CHECK(pipe(other.pipes.to_child) == 0 && pipe(other.pipes.to_parent) == 0);
    end_environment(region);
    pid = check_fork(partner, &other);
    end_open(&end, FI_THREAD_SAFE);
    exchange(other.pipes.to_child[1], other.pipes.to_parent[0], &end, address);
    run_threads(&end, end_meet(&end, address), rounds);
    end_close(&end);
    check_join(pid);
}

static void case_threads_two(void) { threads_test(check_file(0, 64 << 20), 100); }
static void case_threads_network(void) { threads_test("none", 30); }

static const struct check_case cases[] = {
    { "a peer is killed", case_killed, 0 },
    { "a peer is killed, we sleep", case_killed_asleep, 0 },
    { "a peer of the network is killed", case_killed_network, 0 },
    { "a peer of the network is killed, we sleep", case_killed_network_asleep, 0 },
    { "a silent peer is killed", case_killed_silent, 0 },
    { "a silent peer of the network is killed", case_killed_silent_network, 0 },
    { "the region's file is shortened", case_shortened, 0 },
    { "four threads, one endpoint", case_threads, 120 },
    { "four threads, two processes", case_threads_two, 120 },
    { "four threads, over the network", case_threads_network, 120 },
};
CHECK_MAIN(cases)
