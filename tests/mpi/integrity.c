/*
 * integrity: does every byte arrive, once, in its place?
 *
 * All ranks exchange messages of random sizes in every way that MPI has; each byte is compared
 * with what it must be.  Ends with one line of totals, or at the first wrong byte with a line that
 * names it and a non-zero exit.  Any MPI will do.
 */
#include "integrity.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct options {
    uint64_t seed;
    double seconds;         /* 0: until the iterations are done */
    uint64_t iterations;    /* 0: until the seconds are over */
    size_t max_size;
    double compute;         /* seconds at most, between two iterations, without MPI */
    bool idle;              /* asleep instead: where ranks have to share a processor */
    double progress;        /* seconds between two lines of progress; 0: none */
    const char *stop;       /* a file: once it is there, rank 0 ends the run; NULL: none */
    bool alloc_mem;         /* buffers are MPI_Alloc_mem()'s */
    bool json;
};

void fail(const struct run *run, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "integrity: rank %d, iteration %" PRIu64 ", seed %" PRIu64 ": ", run->rank,
            run->iteration, run->seed);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void check(struct run *run, const struct pattern *p, const void *data, size_t size,
           const char *what)
{
    size_t at = pattern_check(p, data, size);

    if (at < size)
        fail(run, "%s from %d to %d, sequence %" PRIu64 ", %zu bytes: byte %zu is 0x%02x, "
             "expected 0x%02x", what, p->src, p->dst, p->seq, size, at,
             ((const unsigned char *)data)[at], pattern_byte(p, at));
    run->messages++;
    run->bytes += size;
}

void *memory(const struct run *run, size_t size)
{
    void *p = NULL;

    size = size > 0 ? size : 1;
    if (!run->alloc_mem)
        p = malloc(size);
    else if (MPI_Alloc_mem((MPI_Aint)size, MPI_INFO_NULL, &p) != MPI_SUCCESS)
        p = NULL;
    if (!p)
        fail(run, "no memory for %zu bytes", size);
    return p;
}

void memory_free(const struct run *run, void *memory)
{
    if (run->alloc_mem)
        MPI_Free_mem(memory);
    else
        free(memory);
}

uint64_t stream(const struct run *run, int src, int dst, int kind)
{
    struct pattern p = { run->seed ^ 0x73697a65, src, dst,
                         run->iteration << 8 | (unsigned)kind };

    return pattern_key(&p);
}

static void usage(FILE *to)
{
    fputs("usage: integrity [--seed N] [--seconds S | --iterations N] [--max-size BYTES] "
          "[--compute S] [--idle] [--progress S] [--stop FILE] [--alloc-mem] [--json]\n", to);
}

/* A whole word that is a number, or the command line is wrong. */
static bool read_number(const char *text, uint64_t *ret_number)
{
    char *end;

    *ret_number = strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && !*end;
}

static bool read_seconds(const char *text, double *ret_seconds)
{
    char *end;

    *ret_seconds = strtod(text, &end);
    return end != text && !*end && *ret_seconds >= 0;
}

static int options_parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        { "seed", required_argument, NULL, 's' },
        { "seconds", required_argument, NULL, 't' },
        { "iterations", required_argument, NULL, 'n' },
        { "max-size", required_argument, NULL, 'm' },
        { "compute", required_argument, NULL, 'c' },
        { "idle", no_argument, NULL, 'i' },
        { "progress", required_argument, NULL, 'p' },
        { "stop", required_argument, NULL, 'e' },
        { "alloc-mem", no_argument, NULL, 'a' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { 0 },
    };
    bool good = true;
    int c;

    *options = (struct options){ .seed = 1, .max_size = 8 << 20 };
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 's': good = good && read_number(optarg, &options->seed); break;
        case 't': good = good && read_seconds(optarg, &options->seconds); break;
        case 'n': good = good && read_number(optarg, &options->iterations); break;
        case 'm': good = good && read_number(optarg, &options->max_size); break;
        case 'c': good = good && read_seconds(optarg, &options->compute); break;
        case 'i': options->idle = true; break;
        case 'p': good = good && read_seconds(optarg, &options->progress); break;
        case 'e': options->stop = optarg; break;
        case 'a': options->alloc_mem = true; break;
        case 'j': options->json = true; break;
        case 'h': return 1;
        default: return -1;
        }
    }
    if (optind < argc || !good)
        return -1;
    if (options->seconds == 0 && options->iterations == 0 && !options->stop)
        options->iterations = 20;
    return 0;
}

/* Some ranks stay away from MPI for a while, each for a time of its own; the others wait for them
 * in whatever comes next. */
static void compute(const struct run *run, const struct options *options)
{
    uint64_t random = stream(run, run->rank, run->rank, 255), sum = random;
    double seconds = options->compute * (double)(pattern_random(&random) % 1000) / 1000;
    double end = MPI_Wtime() + seconds;

    if (seconds == 0 || pattern_random(&random) % 2 == 0)
        return;
    if (options->idle)
        usleep((useconds_t)(seconds * 1e6));
    while (MPI_Wtime() < end)
        for (unsigned i = 0; i < 100000; i++)
            (void)pattern_random(&sum);
}

static void progress_print(const struct run *run, const struct options *options, double start)
{
    static double told;
    double now = MPI_Wtime() - start;

    if (run->rank != 0 || options->progress == 0 || now - told < options->progress)
        return;
    told = now;
    printf("integrity: iteration %" PRIu64 " after %.1f s, %" PRIu64 " messages and %" PRIu64
           " bytes checked by rank 0\n", run->iteration, now, run->messages, run->bytes);
    fflush(stdout);
}

/* Rank 0's clock decides for all. */
static bool go_on(const struct run *run, const struct options *options, double start)
{
    int more = (options->iterations == 0 || run->iteration < options->iterations)
               && (options->seconds == 0 || MPI_Wtime() - start < options->seconds)
               && (!options->stop || access(options->stop, F_OK) != 0);

    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return more;
}

static void totals_print(const struct run *run, const struct options *options, double seconds)
{
    uint64_t own[2] = { run->messages, run->bytes }, sum[2];

    MPI_Reduce(own, sum, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (run->rank != 0)
        return;
    if (options->json)
        printf("{\"program\": \"integrity\", \"ok\": true, \"ranks\": %d, \"seed\": %" PRIu64
               ", \"iterations\": %" PRIu64 ", \"messages\": %" PRIu64 ", \"bytes\": %" PRIu64
               ", \"seconds\": %.3f}\n", run->ranks, run->seed, run->iteration, sum[0], sum[1],
               seconds);
    else
        printf("integrity: ok: %d ranks, seed %" PRIu64 ", %" PRIu64 " iterations, %" PRIu64
               " messages, %" PRIu64 " bytes checked in %.1f s\n", run->ranks, run->seed,
               run->iteration, sum[0], sum[1], seconds);
}

int main(int argc, char **argv)
{
    struct options options;
    struct run run = { 0 };
    double start;
    int bad;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    bad = options_parse(argc, argv, &options);
    if (bad) {
        if (run.rank == 0)
            usage(bad < 0 ? stderr : stdout);
        MPI_Finalize();
        return bad < 0 ? 2 : 0;
    }
    run.seed = options.seed;
    run.max_size = options.max_size;
    run.alloc_mem = options.alloc_mem;
    start = MPI_Wtime();
    test_truncation(&run);
    while (go_on(&run, &options, start)) {
        test_nonblocking(&run);
        test_blocking(&run);
        test_one_buffer(&run);
        test_any_source(&run);
        test_datatypes(&run);
        test_one_sided(&run);
        test_collectives(&run);
        run.iteration++;
        progress_print(&run, &options, start);
        compute(&run, &options);
    }
    totals_print(&run, &options, MPI_Wtime() - start);
    MPI_Finalize();
    return 0;
}
