/*
 * Latency over time: rank 0 and rank 1 send a message back and forth, and every iteration is a line
 * of its own, so that one can see what happens to a job while something happens to its machine.
 *
 *     seconds since the start, microseconds, bytes, number of the iteration
 *
 * An iteration is a message there and back, and the time is that of one way; or, with --window, so many
 * messages there and an empty one back, and the time is that of all of it.
 *
 * Every message carries its number and a pattern made of it.  Both sides check all
 * of it: a message that is lost, comes twice, out of order or damaged ends the job with an error.
 * Rank 0 decides about everything, by the message's tag; its clock alone is used.
 */
#include "sample.h"

#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG_GO = 1, TAG_END = 2, WARM_UP = 100, WINDOW_MAX = 1024 };

struct options {
    const char *sizes, *stop;
    double seconds, interval;
    int window;                 /* 0: each message is sent back */
};

static struct options options = { .sizes = "8", .seconds = 60, .interval = 0.01 };

static int rank, ranks;
static unsigned char *out, *in;

/* The first 8 bytes are the number, the rest follows from it; short messages have less of it. */
static void fill(unsigned char *message, size_t bytes, uint64_t number)
{
    memset(message, (int)(number * 131 + 7) & 0xff, bytes);
    memcpy(message, &number, bytes < sizeof(number) ? bytes : sizeof(number));
}

static void check(const unsigned char *message, size_t bytes, size_t got, uint64_t number)
{
    fill(out, bytes, number);
    if (got == bytes && memcmp(message, out, bytes) == 0)
        return;
    fprintf(stderr, "bench_trace: rank %d: message %llu of %zu bytes came wrong (%zu bytes)\n", rank,
            (unsigned long long)number, bytes, got);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* So many messages there; returns the microseconds until the answer. */
static double push(size_t bytes, uint64_t iteration)
{
    uint64_t start, number = iteration * (uint64_t)options.window;

    for (int i = 0; i < options.window; i++)
        fill(out + (size_t)i * bytes, bytes, number + (uint64_t)i);
    start = bench_ticks();
    for (int i = 0; i < options.window; i++)
        MPI_Send(out + (size_t)i * bytes, (int)bytes, MPI_BYTE, 1, TAG_GO, MPI_COMM_WORLD);
    MPI_Recv(in, 0, MPI_BYTE, 1, TAG_GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return bench_ticks_us(bench_ticks() - start);
}

/* One message there and back; returns microseconds one way. */
static double ping(size_t bytes, uint64_t number)
{
    MPI_Status status;
    uint64_t start;
    double us;
    int got;

    fill(out, bytes, number);
    start = bench_ticks();
    MPI_Send(out, (int)bytes, MPI_BYTE, 1, TAG_GO, MPI_COMM_WORLD);
    MPI_Recv(in, (int)bytes, MPI_BYTE, 1, TAG_GO, MPI_COMM_WORLD, &status);
    us = bench_ticks_us(bench_ticks() - start) / 2;
    MPI_Get_count(&status, MPI_BYTE, &got);
    check(in, bytes, (size_t)got, number);
    return us;
}

static void pong(const size_t *sizes, int n, size_t most)
{
    MPI_Status status;
    int got;

    for (uint64_t number = 0;; number++) {
        MPI_Recv(in, (int)most, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        if (status.MPI_TAG == TAG_END)
            return;
        MPI_Get_count(&status, MPI_BYTE, &got);
        check(in, sizes[number % (size_t)n], (size_t)got, number);
        MPI_Send(out, got, MPI_BYTE, 0, TAG_GO, MPI_COMM_WORLD);
    }
}

/* A window of messages; false: there are no more.  They are checked after the answer, which is not to wait for that. */
static bool take(size_t bytes, size_t most, uint64_t iteration)
{
    uint64_t number = iteration * (uint64_t)options.window;
    MPI_Status status;
    int got[WINDOW_MAX];

    for (int i = 0; i < options.window; i++) {
        MPI_Recv(in + (size_t)i * most, (int)most, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        if (status.MPI_TAG == TAG_END)
            return false;
        MPI_Get_count(&status, MPI_BYTE, &got[i]);
    }
    MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_GO, MPI_COMM_WORLD);
    for (int i = 0; i < options.window; i++)
        check(in + (size_t)i * most, bytes, (size_t)got[i], number + (uint64_t)i);
    return true;
}

static void take_all(const size_t *sizes, int n, size_t most)
{
    for (uint64_t iteration = 0; take(sizes[iteration % (size_t)n], most, iteration); iteration++) { }
}

static void rest(double until)
{
    double left = until - bench_ticks_us(bench_ticks()) / 1e6;

    if (left > 0)
        usleep((useconds_t)(left * 1e6));
}

/* Says when the clock of the lines began, by the calendar, which other machines have as well. */
static uint64_t begin(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    printf("{\"program\":\"bench_trace\",\"start\":%lld.%06ld,\"clock\":\"%s\"}\n",
           (long long)now.tv_sec, now.tv_nsec / 1000, bench_clock_name());
    return bench_ticks();
}

static double iterate(size_t bytes, uint64_t number)
{
    return options.window > 0 ? push(bytes, number) : ping(bytes, number);
}

static void trace(const size_t *sizes, int n)
{
    uint64_t number = 0, start;
    double now = 0, told = 0;

    while (number < WARM_UP) {
        iterate(sizes[number % (size_t)n], number);
        number++;
    }
    start = begin();
    while (now < options.seconds && !(options.stop && access(options.stop, F_OK) == 0)) {
        size_t bytes = sizes[number % (size_t)n];
        double us = iterate(bytes, number);

        now = bench_ticks_us(bench_ticks() - start) / 1e6;
        printf("%.6f %.3f %zu %llu\n", now, us, bytes, (unsigned long long)number++);
        if (now - told > 0.2) {
            fflush(stdout);
            told = now;
        }
        if (options.interval > 0)
            rest(bench_ticks_us(start) / 1e6 + now + options.interval);
    }
    MPI_Send(NULL, 0, MPI_BYTE, 1, TAG_END, MPI_COMM_WORLD);
    printf("{\"program\":\"bench_trace\",\"iterations\":%llu,\"seconds\":%.3f}\n",
           (unsigned long long)number, now);
}

static int usage(int code)
{
    if (!rank)
        fprintf(code ? stderr : stdout,
                "Usage: mpirun -np 2 bench_trace [--sizes 8,64K] [--seconds S] [--interval S]\n"
                "                                [--stop FILE] [--window N]\n"
                "Ping-pong for S seconds, or until rank 0 finds FILE; a line per iteration:\n"
                "seconds, microseconds one way, bytes, number.  --interval: between iterations.\n"
                "--window: N messages and an empty answer instead; microseconds of all of it.\n");
    return code;
}

static int parse(int argc, char **argv)
{
    static const struct option longs[] = {
        { "sizes", required_argument, NULL, 'z' }, { "seconds", required_argument, NULL, 's' },
        { "interval", required_argument, NULL, 'i' }, { "stop", required_argument, NULL, 'f' },
        { "window", required_argument, NULL, 'w' }, { "help", no_argument, NULL, 'h' }, { 0 },
    };
    int c;                      /* returns 0: go on, -1: help was asked for, 2: misuse */

    opterr = !rank;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'z')
            options.sizes = optarg;
        else if (c == 'f')
            options.stop = optarg;
        else if (c == 's' && (options.seconds = atof(optarg)) > 0)
            continue;
        else if (c == 'w' && (options.window = atoi(optarg)) > 0 && options.window <= WINDOW_MAX)
            continue;
        else if (c == 'i' && (options.interval = atof(optarg)) >= 0 && options.interval <= 1)
            continue;
        else
            return usage(c == 'h' ? 0 : 2) ? 2 : -1;
    }
    return 0;
}

static int run(void)
{
    size_t sizes[BENCH_SIZES_MAX], most = 0, room;
    int n = bench_parse_sizes(options.sizes, sizes, BENCH_SIZES_MAX);

    for (int i = 0; i < n; i++)
        most = sizes[i] > most ? sizes[i] : most;
    if (n < 1 || most > 1u << 30 || ranks < 2) {
        if (!rank)
            fprintf(stderr, ranks < 2 ? "bench_trace: needs 2 ranks: mpirun -np 2 ...\n"
                    : "bench_trace: --sizes %s: not sizes up to 1G such as 8,64K\n", options.sizes);
        return 2;
    }
    room = most * (size_t)(options.window > 0 ? options.window : 1) + 1;
    out = malloc(room);
    in = malloc(room);
    if (!out || !in) {
        fprintf(stderr, "bench_trace: rank %d has no memory for 2 times %zu bytes\n", rank, room);
        return 1;
    }
    if (rank == 0)
        trace(sizes, n);
    else if (rank == 1 && options.window > 0)
        take_all(sizes, n, most);
    else if (rank == 1)
        pong(sizes, n, most);
    free(out);
    free(in);
    return 0;
}

int main(int argc, char **argv)
{
    int code;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bench_clock_open();
    code = parse(argc, argv);
    if (!code)
        code = run();
    if (code == 1)      /* this rank alone failed; the others wait for it */
        MPI_Abort(MPI_COMM_WORLD, code);
    MPI_Finalize();
    return code < 0 ? 0 : code;
}
