/*
 * Latency, bandwidth and message rate of any MPI: nothing here but MPI itself and a clock.
 *
 *     latency    ranks 0 and 1, message back and forth; one way
 *     bandwidth  rank 0 sends a window of messages, rank 1 answers with an empty one
 *     bidir      ranks 0 and 1 send a window to each other at the same time
 *     rate       as bandwidth, by the first half of the ranks to the second half, at once
 *     incast     every other rank sends a window to rank 0, which takes them from any source
 *     alltoall   MPI_Alltoall, the size is what each rank sends to each
 *     ring       a message goes round all ranks; one way
 *     allreduce  MPI_Allreduce of that many bytes
 *     put, get   rank 0 writes to, or reads from, a window of rank 1 and waits until it is done
 *     wait       rank 0 sleeps, then sends what rank 1 waits for; the processor time of rank 1 meanwhile
 *
 * Messages and windows lie in memory of malloc(), or with --memory mpi in that of MPI_Alloc_mem() and
 * MPI_Win_allocate().
 *
 * For each size: warm-up, which also tells how long one round takes; then batches, from which the
 * mean and the median batch come; then single rounds, each timed by itself, for the percentiles.
 * A single round carries the cost of one clock reading, given in the output, which matters below a
 * microsecond; a batch does not.  Rank 0 measures and prints one JSON line per test and size.
 */
#include "sample.h"

#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 1, TAG_ACK = 2, WINDOW_MAX = 1024 };

struct options {
    const char *tests, *sizes;
    double seconds, wait, settle;
    size_t iterations, warmup, window, places;
    bool mpi_memory;
};

static struct options options = {
    .tests = "latency,bandwidth,bidir,rate,incast,alltoall,ring,allreduce", .sizes = "0-4M",
    .seconds = 0.5, .wait = 10, .settle = 0.5, .iterations = 100000, .warmup = 1000,
    .window = BENCH_WINDOW, .places = 1,
};

static int rank, ranks;
static char *send_buffer, *receive_buffer;
static MPI_Request *requests;
static MPI_Win target = MPI_WIN_NULL;
static const char *print_extra;

/* One round of each test; every rank calls it. */
static void latency(size_t bytes)
{
    int n = (int)bytes;

    if (rank == 0) {
        MPI_Send(send_buffer, n, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(receive_buffer, n, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(receive_buffer, n, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(send_buffer, n, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

/* Where the i-th message of a window lies: all in the same place, as in most such programs, unless --places says
 * otherwise. */
static char *place(char *buffer, size_t bytes, size_t i)
{
    return buffer + i % options.places * bytes;
}

static void send_window(size_t bytes, int to)
{
    for (size_t i = 0; i < options.window; i++)
        MPI_Isend(place(send_buffer, bytes, i), (int)bytes, MPI_BYTE, to, TAG, MPI_COMM_WORLD, &requests[i]);
}

static void receive_window(size_t bytes, int from, size_t n, MPI_Request *ret_requests)
{
    for (size_t i = 0; i < n; i++)
        MPI_Irecv(place(receive_buffer, bytes, i), (int)bytes, MPI_BYTE, from, TAG, MPI_COMM_WORLD,
                  &ret_requests[i]);
}

static void wait_window(size_t n)
{
    MPI_Waitall((int)n, requests, MPI_STATUSES_IGNORE);
}

static void one_way(size_t bytes, int from, int to)
{
    if (rank == from) {
        send_window(bytes, to);
        wait_window(options.window);
        MPI_Recv(NULL, 0, MPI_BYTE, to, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == to) {
        receive_window(bytes, from, options.window, requests);
        wait_window(options.window);
        MPI_Send(NULL, 0, MPI_BYTE, from, TAG_ACK, MPI_COMM_WORLD);
    }
}

static void bandwidth(size_t bytes)
{
    one_way(bytes, 0, 1);
}

static void bidir(size_t bytes)
{
    if (rank > 1)
        return;
    receive_window(bytes, !rank, options.window, requests + options.window);
    send_window(bytes, !rank);
    wait_window(2 * options.window);
}

static void rate(size_t bytes)
{
    int half = ranks / 2, from = rank % half;

    if (rank < 2 * half)
        one_way(bytes, from, from + half);
}

static void incast(size_t bytes)
{
    if (rank) {
        send_window(bytes, 0);
        wait_window(options.window);
        MPI_Recv(NULL, 0, MPI_BYTE, 0, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    receive_window(bytes, MPI_ANY_SOURCE, options.window * (size_t)(ranks - 1), requests);
    wait_window(options.window * (size_t)(ranks - 1));
    for (int to = 1; to < ranks; to++)
        MPI_Send(NULL, 0, MPI_BYTE, to, TAG_ACK, MPI_COMM_WORLD);
}

static void alltoall(size_t bytes)
{
    MPI_Alltoall(send_buffer, (int)bytes, MPI_BYTE, receive_buffer, (int)bytes, MPI_BYTE,
                 MPI_COMM_WORLD);
}

static void ring(size_t bytes)
{
    int n = (int)bytes, before = (rank + ranks - 1) % ranks, after = (rank + 1) % ranks;

    if (rank == 0)
        MPI_Send(send_buffer, n, MPI_BYTE, after, TAG, MPI_COMM_WORLD);
    MPI_Recv(receive_buffer, n, MPI_BYTE, before, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank != 0)
        MPI_Send(receive_buffer, n, MPI_BYTE, after, TAG, MPI_COMM_WORLD);
}

static void allreduce(size_t bytes)
{
    MPI_Allreduce(send_buffer, receive_buffer, (int)bytes, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
}

static void put(size_t bytes)
{
    if (rank)
        return;
    MPI_Put(send_buffer, (int)bytes, MPI_BYTE, 1, 0, (int)bytes, MPI_BYTE, target);
    MPI_Win_flush(1, target);
}

static void get(size_t bytes)
{
    if (rank)
        return;
    MPI_Get(receive_buffer, (int)bytes, MPI_BYTE, 1, 0, (int)bytes, MPI_BYTE, target);
    MPI_Win_flush(1, target);
}

static double processor_us(void)
{
    struct timespec used;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e6 + (double)used.tv_nsec / 1e3;
}

/* Returns, to rank 0, the processor time of rank 1, all its threads, while it waited. */
static double wait_once(size_t bytes)
{
    struct timespec pause = { .tv_sec = (time_t)options.wait };
    double us = 0;

    pause.tv_nsec = (long)((options.wait - (double)pause.tv_sec) * 1e9);
    if (rank == 0) {
        nanosleep(&pause, NULL);
        MPI_Send(send_buffer, (int)bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(&us, 1, MPI_DOUBLE, 1, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        us = -processor_us();
        MPI_Recv(receive_buffer, (int)bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        us += processor_us();
        MPI_Send(&us, 1, MPI_DOUBLE, 0, TAG_ACK, MPI_COMM_WORLD);
    }
    return us;
}

/* What a round's time is divided by for one message, and how many messages a round moves. */
static double legs_one(void) { return 1; }
static double legs_latency(void) { return 2; }
static double legs_window(void) { return (double)options.window; }
static double legs_bidir(void) { return 2.0 * (double)options.window; }
static double legs_rate(void) { return (double)options.window * (ranks / 2); }
static double legs_ring(void) { return ranks; }
static double legs_incast(void) { return (double)options.window * (ranks - 1); }

static const struct test {
    const char *name;
    void (*round)(size_t bytes);        /* NULL: wait_once() */
    double (*legs)(void);
    bool stream;                /* tell bytes and messages per second */
} tests[] = {
    { "latency", latency, legs_latency, false },
    { "bandwidth", bandwidth, legs_window, true },
    { "bidir", bidir, legs_bidir, true },
    { "rate", rate, legs_rate, true },
    { "incast", incast, legs_incast, true },
    { "alltoall", alltoall, legs_one, false },
    { "ring", ring, legs_ring, false },
    { "allreduce", allreduce, legs_one, false },
    { "put", put, legs_one, true },
    { "get", get, legs_one, true },
    { "wait", NULL, NULL, false },
};

/* Rank 0's word on how many rounds come next. */
static size_t agree(double rounds, size_t least, size_t most)
{
    unsigned long long n = least;

    if (rounds > (double)least)
        n = rounds < (double)most ? (size_t)rounds : most;
    MPI_Bcast(&n, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    return (size_t)n;
}

static double rounds_us(const struct test *test, size_t bytes, size_t n)
{
    uint64_t start = bench_ticks();

    for (size_t i = 0; i < n; i++)
        test->round(bytes);
    return bench_ticks_us(bench_ticks() - start);
}

/* More ranks on a host than processors: the kernel takes some tenths of a second to share them out evenly, and until
 * then all takes up to twice as long. */
static void settle(size_t bytes)
{
    uint64_t start;
    int here, crowded;
    MPI_Comm host;

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &here);
    MPI_Comm_free(&host);
    crowded = here > sysconf(_SC_NPROCESSORS_ONLN);
    MPI_Allreduce(MPI_IN_PLACE, &crowded, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    start = bench_ticks();
    while (crowded && agree(bench_ticks_us(bench_ticks() - start) < options.settle * 1e6, 0, 1))
        alltoall(bytes);
}

/* Returns what one round takes, in microseconds, once everything is set up and warm. */
static double warm_up(const struct test *test, size_t bytes)
{
    double us = rounds_us(test, bytes, 2) / 2;
    size_t n = agree(options.seconds * 1e6 / 10 / us, 2, options.warmup);

    return rounds_us(test, bytes, n) / (double)n;
}

static int measure(const struct test *test, size_t bytes)
{
    enum { BATCHES = 50 };
    struct bench_result result = { .program = "bench_mpi", .test = test->name, .bytes = bytes,
                                   .ranks = (unsigned)ranks, .extra = print_extra };
    struct bench_series batches = { 0 }, singles = { 0 };
    double round_us = warm_up(test, bytes), legs = test->legs();
    size_t total = agree(options.seconds * 1e6 / 2 / round_us, 3, options.iterations);
    size_t per_batch = total / BATCHES ? total / BATCHES : 1;
    double us = 0;

    if (bench_series_open(&batches, total / per_batch) < 0
        || bench_series_open(&singles, total) < 0) {
        fprintf(stderr, "bench_mpi: no memory for %zu timings; lower --iterations\n", total);
        return -1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < batches.capacity; i++) {
        double batch_us = rounds_us(test, bytes, per_batch);

        bench_series_add(&batches, batch_us / (double)per_batch / legs);
        us += batch_us;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < singles.capacity; i++)
        bench_series_add(&singles, rounds_us(test, bytes, 1) / legs);
    if (!rank) {
        result.batch = batches.n * per_batch;
        result.mean_us = us / (double)result.batch / legs;
        result.typical_us = bench_series_median(&batches);
        if (test->stream) {
            result.megabytes_s = (double)bytes / result.typical_us;
            result.messages_s = 1e6 / result.typical_us;
        }
        bench_result_print(&result, &singles);
    }
    bench_series_free(&batches);
    bench_series_free(&singles);
    return 0;
}

/* As many waits as there is time for. */
static int measure_wait(const struct test *test, size_t bytes)
{
    char extra[320];
    struct bench_result result = { .program = "bench_mpi", .test = test->name, .bytes = bytes,
                                   .ranks = (unsigned)ranks, .extra = extra };
    struct bench_series waits = { 0 };

    result.batch = agree(options.seconds / options.wait + 0.5, 1, options.iterations);
    if (bench_series_open(&waits, result.batch) < 0) {
        fprintf(stderr, "bench_mpi: no memory for %zu waits; lower --iterations\n", (size_t)result.batch);
        return -1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < waits.capacity; i++) {
        double us = wait_once(bytes);

        bench_series_add(&waits, us);
        result.mean_us += us / (double)waits.capacity;
    }
    if (!rank) {
        result.typical_us = bench_series_median(&waits);
        snprintf(extra, sizeof(extra), "%s,\"wait_s\":%g,\"cpu_percent\":%.4g", print_extra, options.wait,
                 result.typical_us / options.wait / 1e4);
        bench_result_print(&result, &waits);
    }
    bench_series_free(&waits);
    return 0;
}

static int usage(int code)
{
    if (!rank)
        fprintf(code ? stderr : stdout,
                "Usage: mpirun -np N bench_mpi [--test NAME,...] [--sizes 0-4M] [--seconds S]\n"
                "                              [--iterations N] [--warmup N] [--window N]\n"
                "                              [--memory own|mpi] [--places N] [--wait S] [--settle S]\n"
                "Tests: latency bandwidth bidir rate incast alltoall ring allreduce put get wait\n"
                "(default: all but put and get, for which not every MPI is set up, and wait).\n"
                "--memory mpi: buffers of MPI_Alloc_mem, windows of MPI_Win_allocate.\n"
                "--places: the messages of a window lie in so many places, in turn, instead of all in one.\n"
                "wait: processor time of rank 1 in each wait of --wait seconds (10) for rank 0.\n"
                "--settle: seconds of all-to-all before all tests where ranks outnumber processors (0.5), until\n"
                "the kernel has shared them out.\n"
                "--seconds bounds each size of each test, --iterations the rounds in it.\n"
                "One JSON line per test and size, from rank 0.\n");
    return code;
}

static int parse(int argc, char **argv)
{
    static const struct option longs[] = {
        { "test", required_argument, NULL, 't' }, { "sizes", required_argument, NULL, 'z' },
        { "seconds", required_argument, NULL, 's' }, { "iterations", required_argument, NULL, 'i' },
        { "warmup", required_argument, NULL, 'w' }, { "window", required_argument, NULL, 'n' },
        { "memory", required_argument, NULL, 'm' }, { "wait", required_argument, NULL, 'W' },
        { "settle", required_argument, NULL, 'S' }, { "places", required_argument, NULL, 'p' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    char *end;
    int c;                      /* returns 0: go on, -1: help was asked for, 2: misuse */

    opterr = !rank;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 't')
            options.tests = optarg;
        else if (c == 'z')
            options.sizes = optarg;
        else if (c == 's' && (options.seconds = atof(optarg)) > 0)
            continue;
        else if (c == 'W' && (options.wait = atof(optarg)) > 0)
            continue;
        else if (c == 'S' && (options.settle = strtod(optarg, &end)) >= 0 && end != optarg && !*end)
            continue;
        else if (c == 'i' && !bench_parse_size(optarg, &options.iterations) && options.iterations)
            continue;
        else if (c == 'w' && !bench_parse_size(optarg, &options.warmup) && options.warmup)
            continue;
        else if (c == 'n' && !bench_parse_size(optarg, &options.window) && options.window
                 && options.window <= WINDOW_MAX)
            continue;
        else if (c == 'p' && !bench_parse_size(optarg, &options.places) && options.places
                 && options.places <= WINDOW_MAX)
            continue;
        else if (c == 'm' && (!strcmp(optarg, "own") || !strcmp(optarg, "mpi")))
            options.mpi_memory = *optarg == 'm';
        else
            return usage(c == 'h' ? 0 : 2) ? 2 : -1;
    }
    return 0;
}

/* Written to: pages that never were are all the kernel's one page of zeroes, which lies in the nearest cache. */
static void *memory_new(size_t bytes)
{
    void *memory = NULL;

    if (!options.mpi_memory)
        memory = malloc(bytes);
    else if (MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &memory) != MPI_SUCCESS)
        memory = NULL;
    return memory ? memset(memory, 1, bytes) : NULL;
}

static void memory_free(void *memory)
{
    if (options.mpi_memory)
        MPI_Free_mem(memory);
    else
        free(memory);
}

/* `bytes` of rank 1, which the others need not know of. */
static void *window_new(size_t bytes)
{
    void *memory = NULL;

    if (options.mpi_memory) {
        MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &target);
    } else {
        memory = memory_new(bytes);
        MPI_Win_create(memory, memory ? (MPI_Aint)bytes : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &target);
    }
    MPI_Win_lock_all(MPI_MODE_NOCHECK, target);
    return memory;
}

static void window_free(void *memory)
{
    MPI_Win_unlock_all(target);
    MPI_Win_free(&target);
    if (!options.mpi_memory)
        free(memory);
}

static int run(void)
{
    size_t sizes[BENCH_SIZES_MAX], most = 0, places;
    void *window = NULL;
    int n = bench_parse_sizes(options.sizes, sizes, BENCH_SIZES_MAX);

    for (int i = 0; i < n; i++)
        most = sizes[i] > most ? sizes[i] : most;
    if (n < 0 || most > 1u << 30 || ranks < 2) {
        if (!rank)
            fprintf(stderr, ranks < 2 ? "bench_mpi: needs at least 2 ranks: mpirun -np 2 ...\n"
                    : "bench_mpi: --sizes %s: not sizes up to 1G such as 8,64K or 0-4M\n",
                    options.sizes);
        return 2;
    }
    places = options.places > (size_t)ranks ? options.places : (size_t)ranks;
    send_buffer = memory_new(places * (most + 1));
    receive_buffer = memory_new(places * (most + 1));
    requests = calloc(options.window * (size_t)(ranks + 1), sizeof(*requests));
    if (!send_buffer || !receive_buffer || !requests) {
        fprintf(stderr, "bench_mpi: rank %d has no memory for %zu times %zu bytes\n", rank, places, most);
        return 1;
    }
    settle(most < 64 << 10 ? most : 64 << 10);
    if (bench_list_has(options.tests, "put") || bench_list_has(options.tests, "get"))
        window = window_new(most + 1);
    for (size_t t = 0; t < sizeof(tests) / sizeof(*tests); t++)
        for (int i = 0; i < n && bench_list_has(options.tests, tests[t].name); i++)
            if ((tests[t].round ? measure : measure_wait)(&tests[t], sizes[i]) < 0)
                return 1;
    if (target != MPI_WIN_NULL)
        window_free(window);
    memory_free(send_buffer);
    memory_free(receive_buffer);
    free(requests);
    return 0;
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], extra[256];
    int len, code;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_library_version(version, &len);
    version[strcspn(version, ",\n\"\\")] = '\0';
    bench_clock_open();
    code = parse(argc, argv);
    if (!code) {
        snprintf(extra, sizeof(extra), ",\"mpi\":\"%.100s\",\"window\":%zu,\"places\":%zu", version,
                 options.window, options.places);
        print_extra = extra;
        code = run();
    }
    if (code == 1)      /* this rank alone failed; the others wait for it */
        MPI_Abort(MPI_COMM_WORLD, code);
    MPI_Finalize();
    return code < 0 ? 0 : code;
}
