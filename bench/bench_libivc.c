/*
 * Latency and stream bandwidth through libivc's public interface, between two processes of this
 * host (the default: both sides are forked and pinned) or of two guests (--role in each).
 *
 *     latency    one message back and forth; one way
 *     bandwidth  a window of messages one way, answered by one byte
 *
 * The client drives: before each measurement it tells the server, over the same connection, which
 * test, size and number of rounds come next.  See bench_mpi.c for how the figures are taken; the
 * two programs take them alike.
 */
#include "sample.h"
#include "stream.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVER = 1, CLIENT = 2, PATIENCE_MS = 20000, WINDOW_MAX = 65536 };
enum { TEST_END, TEST_LATENCY, TEST_BANDWIDTH };

/* What the client announces; also the first bytes that travel, so the server learns the window. */
struct order {
    uint64_t test, bytes, rounds, window;
};

struct options {
    const char *tests, *sizes, *role, *region;
    int cpus[2];
    double seconds;
    size_t iterations, warmup, window, magic, ring, segment;
};

static struct options options = {
    .tests = "latency,bandwidth", .sizes = "8-4M", .cpus = { 0, 1 }, .seconds = 0.5,
    .iterations = 100000, .warmup = 1000, .window = 64, .magic = 0,
};

static ivc_connection *connection;
static char *buffer;

/* A tight loop, as put(). */
static void get(void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ptrdiff_t n = ivc_read(connection, (char *)bytes + done, len - done);

        if (n < 0)
            fail("read", n);
        done += (size_t)n;
    }
}

static void round_client(const struct order *order)
{
    if (order->test == TEST_LATENCY) {
        put(connection, buffer, order->bytes);
        get(buffer, order->bytes);
        return;
    }
    for (uint64_t i = 0; i < order->window; i++)
        put(connection, buffer, order->bytes);
    get(buffer, 1);
}

static void round_server(const struct order *order)
{
    if (order->test == TEST_LATENCY) {
        get(buffer, order->bytes);
        put(connection, buffer, order->bytes);
        return;
    }
    for (uint64_t i = 0; i < order->window; i++)
        get(buffer, order->bytes);
    put(connection, buffer, 1);
}

static void serve(void)
{
    struct order order;

    for (;;) {
        get(&order, sizeof(order));
        if (order.test == TEST_END)
            return;
        free(buffer);
        buffer = calloc(1, order.bytes + 1);
        if (!buffer)
            fail("memory for a message", -ENOMEM);
        put(connection, "", 1);     /* ready: the client starts its clock after this */
        for (uint64_t i = 0; i < order.rounds; i++)
            round_server(&order);
    }
}

/* Announces `rounds` rounds; they may then be timed in any grouping. */
static void announce(struct order *order, size_t rounds)
{
    char ready;

    order->rounds = rounds;
    put(connection, order, sizeof(*order));
    get(&ready, 1);
}

static double rounds_us(const struct order *order, size_t n)
{
    uint64_t start = bench_ticks();

    for (size_t i = 0; i < n; i++)
        round_client(order);
    return bench_ticks_us(bench_ticks() - start);
}

static size_t bounded(double rounds, size_t least, size_t most)
{
    return rounds < (double)least ? least : rounds < (double)most ? (size_t)rounds : most;
}

static double warm_up(struct order *order)
{
    double us;
    size_t n;

    announce(order, 2);
    us = rounds_us(order, 2) / 2;
    n = bounded(options.seconds * 1e6 / 10 / us, 2, options.warmup);
    announce(order, n);
    return rounds_us(order, n) / (double)n;
}

static void measure(const char *name, struct order *order, double legs)
{
    enum { BATCHES = 50 };
    struct bench_result result = { .program = "bench_libivc", .test = name, .ranks = 2,
                                   .bytes = order->bytes };
    struct bench_series batches, singles;
    size_t total = bounded(options.seconds * 1e6 / 2 / warm_up(order), 3, options.iterations);
    size_t per_batch = total / BATCHES ? total / BATCHES : 1;
    char extra[160];
    double us = 0;

    if (bench_series_open(&batches, total / per_batch) < 0
        || bench_series_open(&singles, total) < 0)
        fail("memory for the timings (lower --iterations)", -ENOMEM);
    announce(order, batches.capacity * per_batch + singles.capacity);
    for (size_t i = 0; i < batches.capacity; i++) {
        double batch_us = rounds_us(order, per_batch);

        bench_series_add(&batches, batch_us / (double)per_batch / legs);
        us += batch_us;
    }
    for (size_t i = 0; i < singles.capacity; i++)
        bench_series_add(&singles, rounds_us(order, 1) / legs);
    result.batch = batches.n * per_batch;
    result.mean_us = us / (double)result.batch / legs;
    result.typical_us = bench_series_median(&batches);
    if (order->test == TEST_BANDWIDTH) {
        result.megabytes_s = (double)order->bytes / result.typical_us;
        result.messages_s = 1e6 / result.typical_us;
    }
    snprintf(extra, sizeof(extra), ",\"library\":\"libivc %.32s\",\"window\":%zu", ivc_version(),
             options.window);
    result.extra = extra;
    bench_result_print(&result, &singles);
    bench_series_free(&batches);
    bench_series_free(&singles);
}

static void drive(const size_t *sizes, int n)
{
    struct order order = { .window = options.window };

    for (int i = 0; i < n; i++) {
        if (!sizes[i])
            continue;   /* a stream of bytes has no message of none */
        order.bytes = sizes[i];
        buffer = realloc(buffer, sizes[i]);
        if (!buffer)
            fail("memory for a message", -ENOMEM);
        memset(buffer, 1, sizes[i]);
        if (bench_list_has(options.tests, "latency")) {
            order.test = TEST_LATENCY;
            measure("latency", &order, 2);
        }
        if (bench_list_has(options.tests, "bandwidth")) {
            order.test = TEST_BANDWIDTH;
            measure("bandwidth", &order, (double)options.window);
        }
    }
    order.test = TEST_END;
    put(connection, &order, sizeof(order));
}

static ivc_context *join(uint32_t id)
{
    struct ivc_options with = {
        .size = sizeof(with), .region = options.region,
        .ring_size = (uint32_t)options.ring, .segment_size = (uint32_t)options.segment,
    };
    ivc_context *context;
    int error = ivc_register_with(options.magic, id, &with, &context);

    if (error < 0)
        fail("cannot join the region", error);
    return context;
}

static void server(void)
{
    ivc_context *context = join(SERVER);
    int error = ivc_accept_wait(context, PATIENCE_MS, &connection);

    if (error < 0)
        fail("no client came", error);
    serve();
    ivc_close(connection);
    ivc_deregister(context);
}

static void client(const size_t *sizes, int n)
{
    ivc_context *context = join(CLIENT);
    int error = ivc_wait_host(context, SERVER, PATIENCE_MS);

    if (error < 0)
        fail("the server is not there", error);
    error = ivc_connect(context, SERVER, &connection);
    if (error < 0)
        fail("cannot connect", error);
    drive(sizes, n);
    ivc_close(connection);
    ivc_deregister(context);
}

/* Both sides here.  Forked before either registers: a registration does not survive a fork. */
static int both(const size_t *sizes, int n)
{
    pid_t parent = getpid(), child;
    int status;

    bench_pin_or_exit(options.cpus[1]);     /* first here, so that the child cannot fail at it alone */
    child = fork();
    if (child < 0)
        fail("fork", -errno);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            return 1;
        server();
        return 0;
    }
    bench_pin_or_exit(options.cpus[0]);
    bench_clock_open();
    client(sizes, n);
    waitpid(child, &status, 0);
    return status ? 1 : 0;
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_libivc [--test latency,bandwidth] [--sizes 8-4M] [--cpus A,B]\n"
            "                    [--seconds S] [--iterations N] [--warmup N] [--window N]\n"
            "                    [--region PATH] [--ring BYTES] [--segment BYTES]\n"
            "                    [--role server|client] [--magic N]\n"
            "Without --role both sides run here, pinned to the two processors. With it, start\n"
            "the server in one guest and the client in another, with the same --magic; the\n"
            "client prints. One JSON line per test and size.\n");
    return code;
}

static const struct number {
    char letter;
    size_t *value;
    size_t least, most;
} numbers[] = {
    { 'i', &options.iterations, 1, 1u << 30 },
    { 'w', &options.warmup, 1, 1u << 30 },
    { 'n', &options.window, 1, WINDOW_MAX },
    { 'm', &options.magic, 1, SIZE_MAX >> 1 },
    { 'g', &options.ring, 1, UINT32_MAX },
    { 'e', &options.segment, 1, UINT32_MAX },
};

static int parse_number(int letter, const char *text)
{
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (numbers[i].letter == letter) {
            if (bench_parse_size(text, numbers[i].value) < 0
                || *numbers[i].value < numbers[i].least || *numbers[i].value > numbers[i].most)
                return -EINVAL;
            return 0;
        }
    return -EINVAL;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "test", required_argument, NULL, 't' }, { "sizes", required_argument, NULL, 'z' },
        { "cpus", required_argument, NULL, 'c' }, { "seconds", required_argument, NULL, 's' },
        { "iterations", required_argument, NULL, 'i' }, { "warmup", required_argument, NULL, 'w' },
        { "window", required_argument, NULL, 'n' }, { "role", required_argument, NULL, 'r' },
        { "magic", required_argument, NULL, 'm' }, { "region", required_argument, NULL, 'p' },
        { "ring", required_argument, NULL, 'g' }, { "segment", required_argument, NULL, 'e' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    size_t sizes[BENCH_SIZES_MAX];
    int c, n;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(0);
        else if (c == 't')
            options.tests = optarg;
        else if (c == 'z')
            options.sizes = optarg;
        else if (c == 'p')
            options.region = optarg;
        else if (c == 'r')
            options.role = optarg;
        else if (c == 's' && (options.seconds = atof(optarg)) > 0)
            continue;
        else if (c == 'c' && !bench_parse_cpus(optarg, options.cpus))
            continue;
        else if (c == '?' || parse_number(c, optarg) < 0)
            return usage(2);
    }
    n = bench_parse_sizes(options.sizes, sizes, BENCH_SIZES_MAX);
    if (n < 0) {
        fprintf(stderr, "bench_libivc: --sizes %s: not sizes such as 8,64K or 8-4M\n",
                options.sizes);
        return 2;
    }
    if (!options.magic)     /* two runs at once in one region must not meet */
        options.magic = options.role ? 0x62656e6368 : (size_t)getpid() << 20 | 0x62656;
    if (!options.role)
        return both(sizes, n);
    bench_clock_open();
    if (!strcmp(options.role, "server"))
        server();
    else if (!strcmp(options.role, "client"))
        client(sizes, n);
    else
        return usage(2);
    return 0;
}
