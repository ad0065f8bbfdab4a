/*
 * The bare machine, without any library: what the hand-over of a cache line between two cores
 * costs, how many messages of one line a second can pass, and how fast a message can be copied in
 * by one core while another copies it out.  Every other figure is judged against these, and since
 * a virtual machine's cores move apart now and then, they are measured again beside each sample.
 *
 *     pingpong  one 8-byte sequence number per cache line, back and forth; one way
 *     ring      a ring of 64-byte slots: number, length and payload in one line; the far end answers after each
 *               --window of them (64), as in bench_libivc's bandwidth, or never (0)
 *     loaded    the same ring, where both sides also store --stores times per message into memory of their own
 *     copy      messages of 1 MiB through a ring, in chunks; both copies at the same time
 *     pipeline  messages of --sizes, the best of many such ways (pipeline.h)
 */
#include "pipeline.h"
#include "sample.h"
#include "spin.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 1024, ACK_EVERY = SLOTS / 4, SLOT_PAYLOAD = 48 };

struct slot {
    _Alignas(64) _Atomic uint32_t number;       /* lap * SLOTS + position + 1 when filled */
    uint32_t len;
    char payload[SLOT_PAYLOAD];
};

struct shared {
    struct spin_word ping, pong, head, tail, stop;
    struct slot slots[SLOTS];
    _Alignas(4096) char ring[];
};

struct options {
    const char *tests, *sizes;
    int cpus[2];
    double seconds;
    size_t ring, chunk, message, stores, window;
};

static struct shared *shared;
static struct options options = {
    .tests = "pingpong,ring,copy", .sizes = "4K-4M", .cpus = { 0, 1 }, .seconds = 0.2,
    .ring = 8u << 20, .chunk = 64u << 10, .message = 1u << 20, .stores = 16,
    .window = BENCH_WINDOW,
};

static bool stopped(void)
{
    return atomic_load_explicit(&shared->stop.value, memory_order_relaxed);
}

/* Both ends of `pingpong`.  The far end answers until it sees the number 0 - 1. */
static void pingpong_far(void)
{
    for (uint64_t number = 1;; number++) {
        spin_wait(&shared->ping, number);
        if (atomic_load_explicit(&shared->ping.value, memory_order_relaxed) == UINT64_MAX)
            return;
        spin_publish(&shared->pong, number);
    }
}

static void pingpong_near(void)
{
    enum { BATCH = 500 };
    struct bench_result result = { .program = "bench_floor", .test = "pingpong", .bytes = 8,
                                   .ranks = 2 };
    struct bench_series series;
    uint64_t number = 0, limit;
    double total = 0;

    if (bench_series_open(&series, 1 << 20) < 0)
        return;
    limit = bench_clock_nanoseconds() + (uint64_t)(options.seconds * 1e9);
    for (int batch = 0; batch < 3 || bench_clock_nanoseconds() < limit; batch++) {
        uint64_t start = bench_ticks();
        double us;

        for (int i = 0; i < BATCH; i++) {
            spin_publish(&shared->ping, ++number);
            spin_wait(&shared->pong, number);
        }
        us = bench_ticks_us(bench_ticks() - start) / BATCH / 2;
        if (!batch)
            continue;   /* warm-up */
        bench_series_add(&series, us);
        total += us;
        result.batch += BATCH;
    }
    spin_publish(&shared->ping, UINT64_MAX);
    result.mean_us = total * BATCH / (double)result.batch;
    result.typical_us = bench_series_median(&series);
    result.extra = ",\"singles_are\":\"batches of 500 round trips\"";
    bench_result_print(&result, &series);
    bench_series_free(&series);
}

static volatile uint64_t own_memory[8];

static inline void load(size_t stores)
{
    for (size_t i = 0; i < stores; i++)
        own_memory[i % 8] = i;
}

static inline __attribute__((always_inline)) void ring_receive(size_t stores)
{
    char payload[SLOT_PAYLOAD];
    uint64_t number = 0;
    size_t left = options.window;

    for (;;) {
        struct slot *slot = &shared->slots[number % SLOTS];

        while (atomic_load_explicit(&slot->number, memory_order_acquire) != (uint32_t)number + 1)
            if (stopped() && atomic_load(&shared->head.value) == number)
                return;
        memcpy(payload, slot->payload, 8);
        __asm__ volatile("" : : "r"(payload) : "memory");
        load(stores);
        if (++number % ACK_EVERY == 0)
            spin_publish(&shared->tail, number);
        if (--left == 0) {
            spin_publish(&shared->pong, number);
            left = options.window;
        }
    }
}

static inline __attribute__((always_inline)) void ring_send(const char *test, size_t stores)
{
    struct bench_result result = { .program = "bench_floor", .test = test, .bytes = 8,
                                   .ranks = 2 };
    uint64_t number = 0, tail = 0, start, limit;
    char payload[8] = { 1 }, extra[80];
    size_t left = options.window;

    limit = bench_clock_nanoseconds() + (uint64_t)(options.seconds * 1e9);
    start = bench_ticks();
    while (number % (1 << 16) || bench_clock_nanoseconds() < limit) {
        struct slot *slot = &shared->slots[number % SLOTS];

        if (number - tail == SLOTS) {
            spin_wait(&shared->tail, tail + ACK_EVERY);
            tail = spin_read(&shared->tail);
        }
        slot->len = sizeof(payload);
        memcpy(slot->payload, payload, sizeof(payload));
        atomic_store_explicit(&slot->number, (uint32_t)++number, memory_order_release);
        load(stores);
        if (--left == 0) {
            spin_wait(&shared->pong, number);
            left = options.window;
        }
    }
    spin_wait(&shared->tail, number);       /* number is a multiple of ACK_EVERY */
    result.mean_us = bench_ticks_us(bench_ticks() - start) / (double)number;
    result.batch = number;
    result.messages_s = 1e6 / result.mean_us;
    result.megabytes_s = 8 / result.mean_us;
    spin_publish(&shared->head, number);
    spin_publish(&shared->stop, 1);
    snprintf(extra, sizeof(extra), ",\"stores\":%zu,\"window\":%zu", stores, options.window);
    result.extra = extra;
    bench_result_print(&result, NULL);
}

static void ring_far(void)
{
    ring_receive(0);
}

static void ring_near(void)
{
    ring_send("ring", 0);
}

static void loaded_far(void)
{
    ring_receive(options.stores);
}

static void loaded_near(void)
{
    ring_send("loaded", options.stores);
}

/* Moves `message` bytes between private memory and the ring, chunk by chunk. */
static void copy_far(void)
{
    char *private = malloc(options.message);
    uint64_t tail = 0;

    memset(private, 0, options.message);
    for (;;)
        for (size_t at = 0; at < options.message; at += options.chunk) {
            while (spin_read(&shared->head) == tail)
                if (stopped())
                    goto out;
            memcpy(private + at, shared->ring + tail % options.ring, options.chunk);
            tail += options.chunk;
            spin_publish(&shared->tail, tail);
        }
out:
    free(private);
}

static void copy_near(void)
{
    struct bench_result result = { .program = "bench_floor", .test = "copy",
                                   .bytes = options.message, .ranks = 2 };
    char *private = malloc(options.message);
    struct bench_series series;
    uint64_t head = 0, limit, first = 0, start;
    char extra[96];

    if (!private || bench_series_open(&series, 1 << 20) < 0)
        return;
    memset(private, 1, options.message);
    limit = bench_clock_nanoseconds() + (uint64_t)(options.seconds * 1e9);
    start = bench_ticks();
    for (uint64_t message = 0; message < 16 || bench_clock_nanoseconds() < limit; message++) {
        uint64_t began = bench_ticks();

        if (message == 8) {     /* the first 8 warm up */
            first = head;
            start = began;
        }
        for (size_t at = 0; at < options.message; at += options.chunk) {
            if (head >= options.ring)
                spin_wait(&shared->tail, head + options.chunk - options.ring);
            memcpy(shared->ring + head % options.ring, private + at, options.chunk);
            head += options.chunk;
            spin_publish(&shared->head, head);
        }
        if (message >= 8)
            bench_series_add(&series, bench_ticks_us(bench_ticks() - began));
    }
    spin_wait(&shared->tail, head);
    result.batch = (head - first) / options.message;
    result.mean_us = bench_ticks_us(bench_ticks() - start) / (double)result.batch;
    result.typical_us = bench_series_median(&series);
    result.megabytes_s = (double)options.message / result.mean_us;
    spin_publish(&shared->stop, 1);
    snprintf(extra, sizeof(extra), ",\"ring\":%zu,\"chunk\":%zu", options.ring, options.chunk);
    result.extra = extra;
    bench_result_print(&result, &series);
    bench_series_free(&series);
    free(private);
}

static struct pipeline *pipeline(void)
{
    return (struct pipeline *)shared->ring;
}

static void pipeline_far(void)
{
    pipeline_receive(pipeline());
}

static void pipeline_near(void)
{
    size_t sizes[BENCH_SIZES_MAX];
    int n = bench_parse_sizes(options.sizes, sizes, BENCH_SIZES_MAX);

    for (int i = 0; i < n; i++)
        if (pipeline_send(pipeline(), sizes[i], options.seconds) < 0) {
            fprintf(stderr, "bench_floor: pipeline: out of memory\n");
            break;
        }
    pipeline_stop(pipeline());
}

static const struct test {
    const char *name;
    void (*near)(void), (*far)(void);
} tests[] = {
    { "pingpong", pingpong_near, pingpong_far },
    { "ring", ring_near, ring_far },
    { "loaded", loaded_near, loaded_far },
    { "copy", copy_near, copy_far },
    { "pipeline", pipeline_near, pipeline_far },
};

/* The near end spins on memory that only the far end writes: it must not outlive it. */
static void on_child(int number)
{
    static const char text[] = "bench_floor: the far end has died\n";
    siginfo_t info = { 0 };

    (void)number;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || !info.si_pid
        || (info.si_code == CLD_EXITED && !info.si_status))
        return;
    if (write(STDERR_FILENO, text, sizeof(text) - 1))
        _exit(1);
    _exit(1);
}

/* Each test gets fresh memory and a fresh far end, so that none inherits another's cache state. */
static int run(const struct test *test)
{
    size_t ring = options.ring > pipeline_size() ? options.ring : pipeline_size();
    size_t size = sizeof(struct shared) + ring;
    pid_t child, parent = getpid();
    int status;

    shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
                  -1, 0);
    if (shared == MAP_FAILED)
        return -errno;
    child = fork();
    if (child < 0)
        return -errno;
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || bench_pin(options.cpus[1]) < 0)
            _exit(1);
        test->far();
        _exit(0);
    }
    test->near();
    waitpid(child, &status, 0);
    munmap(shared, size);
    return status ? -ECHILD : 0;
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_floor [--test pingpong,ring,loaded,copy,pipeline] [--cpus A,B]\n"
            "                   [--seconds S] [--ring BYTES] [--chunk BYTES] [--stores N]\n"
            "                   [--window N] [--sizes 4K-4M]\n"
            "Measures the bare machine between two processors; one JSON line per test.\n");
    return code;
}

static bool sizes_are_good(void)
{
    size_t sizes[BENCH_SIZES_MAX];
    int n = bench_parse_sizes(options.sizes, sizes, BENCH_SIZES_MAX);

    for (int i = 0; i < n; i++)
        if (sizes[i] < PIPELINE_MESSAGE_MIN || sizes[i] > PIPELINE_MESSAGE_MAX || (sizes[i] & (sizes[i] - 1)))
            return false;
    return n > 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "test", required_argument, NULL, 't' }, { "cpus", required_argument, NULL, 'c' },
        { "seconds", required_argument, NULL, 's' }, { "ring", required_argument, NULL, 'r' },
        { "chunk", required_argument, NULL, 'k' },
        { "sizes", required_argument, NULL, 'z' },
        { "stores", required_argument, NULL, 'o' }, { "window", required_argument, NULL, 'w' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    int c, error;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(0);
        else if (c == 't')
            options.tests = optarg;
        else if (c == 'z')
            options.sizes = optarg;
        else if (c == 's' && (options.seconds = atof(optarg)) > 0)
            continue;
        else if (c == 'c' && !bench_parse_cpus(optarg, options.cpus))
            continue;
        else if (c == 'r' && !bench_parse_size(optarg, &options.ring))
            continue;
        else if (c == 'k' && !bench_parse_size(optarg, &options.chunk))
            continue;
        else if (c == 'o' && !bench_parse_size(optarg, &options.stores))
            continue;
        else if (c == 'w' && !bench_parse_size(optarg, &options.window))
            continue;
        else if (c != 't')
            return usage(2);
    }
    if (!options.chunk || options.message % options.chunk || !options.ring
        || options.ring % options.chunk) {
        fprintf(stderr, "bench_floor: chunk must divide both 1 MiB and the ring's size\n");
        return 2;
    }
    if (!sizes_are_good()) {
        fprintf(stderr, "bench_floor: --sizes %s: not powers of two from 4K to 4M, such as 64K or 4K-4M\n",
                options.sizes);
        return 2;
    }
    for (int i = 1; i >= 0; i--)        /* both, so that the far end cannot fail at it */
        bench_pin_or_exit(options.cpus[i]);
    signal(SIGCHLD, on_child);
    bench_clock_open();
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
        if (bench_list_has(options.tests, tests[i].name) && (error = run(&tests[i])) < 0) {
            fprintf(stderr, "bench_floor: %s failed on processors %d,%d: %s\n", tests[i].name,
                    options.cpus[0], options.cpus[1], strerror(-error));
            return 1;
        }
    return 0;
}
