/*
 * Kernels that communicate a lot, as programs do:
 *
 *     halo        Jacobi iterations on a square per rank; edges go to four neighbours, the residual to
 *                 all at every tenth step
 *     transpose   a square matrix by rows becomes one by columns: all-to-all
 *     sparse      sum of sparse vectors, by recursive doubling: each rank ends with all of it
 *     advection   of a box of cells that a grid of processes divides: faces go to the next rank (kernel_advection.c)
 *     graph       each rank sends to random others (kernel_graph.c)
 *
 * Every result is checked: the transposed of the transposed is what it was, the sparse sum has the
 * entries that it must have, and what the Jacobi iterations lead to is printed (`check`), the same with
 * every transport.  Runs under any MPI.
 */
#include "kernels.h"

#include <mpi.h>

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rank, ranks;

struct kernel_options options = {
    .tests = "halo,transpose,sparse", .side = 256, .matrix = 512, .length = 1 << 20, .entries = 8192, .steps = 500,
    .degree = 3, .seed = 1, .grid = { 96, 96, 96 },
};

void kernel_fail(const char *what)
{
    fprintf(stderr, "bench_kernels: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void *kernel_need(size_t n, size_t size)
{
    void *memory = calloc(n, size);

    if (!memory)
        kernel_fail("out of memory");
    return memory;
}

void kernel_print(const char *test, size_t bytes, double us, double check, const char *more)
{
    struct bench_result result = { .program = "bench_kernels", .test = test, .bytes = bytes,
                                   .ranks = (unsigned)ranks, .batch = options.steps };
    char extra[256];
    double longest;

    MPI_Reduce(&us, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank != 0)
        return;
    result.mean_us = longest / (double)options.steps;
    snprintf(extra, sizeof extra, ",\"check\":%.17g%s", check, more);
    result.extra = extra;
    bench_result_print(&result, NULL);
}

/* The square of one rank with an edge of its neighbours' values around it. */
struct field {
    MPI_Comm comm;
    MPI_Datatype column;
    int up, down, left, right;
    size_t side, width;
    double *now, *next;
};

static void exchange(struct field *f)
{
    double *first = f->now + f->width + 1, *last = f->now + f->side * f->width + 1;
    int n = (int)f->side;
    MPI_Request all[8];

    MPI_Irecv(first - f->width, n, MPI_DOUBLE, f->up, 0, f->comm, &all[0]);
    MPI_Irecv(last + f->width, n, MPI_DOUBLE, f->down, 1, f->comm, &all[1]);
    MPI_Irecv(first - 1, 1, f->column, f->left, 2, f->comm, &all[2]);
    MPI_Irecv(first + f->side, 1, f->column, f->right, 3, f->comm, &all[3]);
    MPI_Isend(last, n, MPI_DOUBLE, f->down, 0, f->comm, &all[4]);
    MPI_Isend(first, n, MPI_DOUBLE, f->up, 1, f->comm, &all[5]);
    MPI_Isend(first + f->side - 1, 1, f->column, f->right, 2, f->comm, &all[6]);
    MPI_Isend(first, 1, f->column, f->left, 3, f->comm, &all[7]);
    MPI_Waitall(8, all, MPI_STATUSES_IGNORE);
}

static double relax(struct field *f)
{
    double change = 0, *swap = f->now;

    for (size_t y = 1; y <= f->side; y++)
        for (size_t x = 1; x <= f->side; x++) {
            const double *at = f->now + y * f->width + x;
            double value = 0.25 * (at[-1] + at[1] + at[-(ptrdiff_t)f->width] + at[f->width]);

            change += (value - *at) * (value - *at);
            f->next[y * f->width + x] = value;
        }
    f->now = f->next;
    f->next = swap;
    return change;
}

static void halo(void)
{
    struct field f = { .side = options.side, .width = options.side + 2 };
    int shape[2] = { 0, 0 }, around[2] = { 1, 1 };
    double change = 0, mine, sum = 0, all;
    uint64_t start;

    MPI_Dims_create(ranks, 2, shape);
    MPI_Cart_create(MPI_COMM_WORLD, 2, shape, around, 0, &f.comm);
    MPI_Cart_shift(f.comm, 0, 1, &f.up, &f.down);
    MPI_Cart_shift(f.comm, 1, 1, &f.left, &f.right);
    MPI_Type_vector((int)f.side, 1, (int)f.width, MPI_DOUBLE, &f.column);
    MPI_Type_commit(&f.column);
    f.now = kernel_need(f.width * f.width, sizeof(double));
    f.next = kernel_need(f.width * f.width, sizeof(double));
    for (size_t i = 0; i < f.width * f.width; i++)
        f.now[i] = f.next[i] = (double)((i * 2654435761u + (size_t)rank * 40503u) % 1024);
    MPI_Barrier(MPI_COMM_WORLD);
    start = bench_ticks();
    for (size_t step = 0; step < options.steps; step++) {
        exchange(&f);
        mine = relax(&f);
        if (step % 10 == 9)
            MPI_Allreduce(&mine, &change, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    mine = bench_ticks_us(bench_ticks() - start);
    for (size_t y = 1; y <= f.side; y++)
        for (size_t x = 1; x <= f.side; x++)
            sum += f.now[y * f.width + x];
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    kernel_print("halo", f.side * sizeof(double), mine, rank == 0 ? all + change : 0, "");
    free(f.now);
    free(f.next);
    MPI_Type_free(&f.column);
    MPI_Comm_free(&f.comm);
}

/* `rows` of an n by n matrix here, the others elsewhere; `to` has the transposed's. */
static void transpose(const double *from, double *to, double *packed, double *got, size_t n)
{
    size_t rows = n / (size_t)ranks, block = rows * rows;

    for (size_t other = 0; other < (size_t)ranks; other++)
        for (size_t y = 0; y < rows; y++)
            memcpy(packed + other * block + y * rows, from + y * n + other * rows,
                   rows * sizeof(double));
    MPI_Alltoall(packed, (int)block, MPI_DOUBLE, got, (int)block, MPI_DOUBLE, MPI_COMM_WORLD);
    for (size_t other = 0; other < (size_t)ranks; other++)
        for (size_t y = 0; y < rows; y++)
            for (size_t x = 0; x < rows; x++)
                to[x * n + other * rows + y] = got[other * block + y * rows + x];
}

static double entry(size_t y, size_t x)
{
    return (double)(y * 8191 + x);
}

static void transposes(void)
{
    size_t n = options.matrix / (size_t)ranks * (size_t)ranks, rows = n / (size_t)ranks;
    size_t first = (size_t)rank * rows;
    double *a = kernel_need(rows * n, sizeof *a), *b = kernel_need(rows * n, sizeof *b);
    double *packed = kernel_need(rows * n, sizeof *packed), *got = kernel_need(rows * n, sizeof *got);
    uint64_t start;
    double us;

    for (size_t y = 0; y < rows; y++)
        for (size_t x = 0; x < n; x++)
            a[y * n + x] = entry(first + y, x);
    MPI_Barrier(MPI_COMM_WORLD);
    start = bench_ticks();
    for (size_t step = 0; step < options.steps; step++) {
        double *swap = a;

        transpose(a, b, packed, got, n);
        a = b;
        b = swap;
    }
    us = bench_ticks_us(bench_ticks() - start);
    for (size_t y = 0; y < rows; y++)
        for (size_t x = 0; x < n; x++)
            if (a[y * n + x] != (options.steps % 2 ? entry(x, first + y) : entry(first + y, x)))
                kernel_fail("transpose: an entry is not where it belongs");
    kernel_print("transpose", rows * rows * sizeof(double), us, (double)n, "");
    free(a);
    free(b);
    free(packed);
    free(got);
}

struct pair {
    double index, value;
};

/* Sorted by index, all different; returns how many. */
static size_t merge(const struct pair *a, size_t n_a, const struct pair *b, size_t n_b, struct pair *to)
{
    size_t i = 0, j = 0, n = 0;

    while (i < n_a || j < n_b) {
        if (j == n_b || (i < n_a && a[i].index < b[j].index)) {
            to[n++] = a[i++];
        } else if (i == n_a || b[j].index < a[i].index) {
            to[n++] = b[j++];
        } else {
            to[n] = a[i++];
            to[n++].value += b[j++].value;
        }
    }
    return n;
}

/* Every rank's entry i is at a place of its own in the i-th part of the vector, or at the same for all. */
static size_t fill(struct pair *own)
{
    size_t part = options.length / options.entries;

    for (size_t i = 0; i < options.entries; i++)
        own[i] = (struct pair){ (double)(i * part + (i % 2 ? (size_t)rank % part : 0)),
                                (double)(rank + 1) };
    return options.entries;
}

static double sum_of(const struct pair *pairs, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += pairs[i].value;
    return sum;
}

static void sparse(void)
{
    size_t most = options.entries * (size_t)ranks, n = 0;
    struct pair *own = kernel_need(most, sizeof *own), *others = kernel_need(most, sizeof *own);
    struct pair *both = kernel_need(most, sizeof *own);
    double per_entry = 0.5 * ranks * (ranks + 1);
    uint64_t start;
    double us;

    if (ranks & (ranks - 1))
        kernel_fail("sparse: the number of ranks must be a power of two");
    MPI_Barrier(MPI_COMM_WORLD);
    start = bench_ticks();
    for (size_t step = 0; step < options.steps; step++) {
        n = fill(own);
        for (int distance = 1; distance < ranks; distance *= 2) {
            struct pair *swap = own;
            MPI_Status status;
            int got;

            MPI_Sendrecv(own, (int)n * 2, MPI_DOUBLE, rank ^ distance, 0, others, (int)most * 2,
                         MPI_DOUBLE, rank ^ distance, 0, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_DOUBLE, &got);
            n = merge(own, n, others, (size_t)got / 2, both);
            own = both;
            both = swap;
        }
    }
    us = bench_ticks_us(bench_ticks() - start);
    if (fabs(sum_of(own, n) - per_entry * (double)options.entries) > 0.5)
        kernel_fail("sparse: the sum is wrong");
    kernel_print("sparse", options.entries * sizeof(struct pair), us, (double)n, "");
    free(own);
    free(others);
    free(both);
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_kernels [--test halo,transpose,sparse,advection,graph] [--steps N]\n"
            "                     [--side N] [--matrix N] [--length N] [--entries N]\n"
            "                     [--grid X,Y,Z] [--processes PX,PY,PZ] (advection)\n"
            "                     [--degree N] [--seed N] (graph; a message has up to --entries numbers)\n"
            "Run it under mpirun. One JSON line per kernel; times are of one step.\n");
    return code;
}

static int parse_three(const char *text, size_t ret_sizes[3])
{
    size_t found[3];

    if (bench_parse_sizes(text, found, 3) != 3)
        return -1;
    for (int i = 0; i < 3; i++) {
        if (found[i] < 1 || found[i] > 1u << 14)
            return -1;
        ret_sizes[i] = found[i];
    }
    return 0;
}

static int parse(int argc, char **argv)
{
    static const struct option longs[] = {
        { "test", required_argument, NULL, 't' }, { "steps", required_argument, NULL, 's' },
        { "side", required_argument, NULL, 'd' }, { "matrix", required_argument, NULL, 'm' },
        { "length", required_argument, NULL, 'l' }, { "entries", required_argument, NULL, 'e' },
        { "grid", required_argument, NULL, 'g' }, { "processes", required_argument, NULL, 'p' },
        { "degree", required_argument, NULL, 'k' }, { "seed", required_argument, NULL, 'r' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    const struct { int letter; size_t *value; size_t most; } numbers[] = {
        { 's', &options.steps, 1u << 30 }, { 'd', &options.side, 1u << 14 },
        { 'm', &options.matrix, 1u << 14 }, { 'l', &options.length, 1u << 30 },
        { 'e', &options.entries, 1u << 24 }, { 'k', &options.degree, 1u << 16 },
        { 'r', &options.seed, 1u << 30 },
    };
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        size_t i = 0;

        if (c == 'h')
            exit(usage(0));
        if (c == 't') {
            options.tests = optarg;
            continue;
        }
        if (c == 'g' || c == 'p') {
            if (parse_three(optarg, c == 'g' ? options.grid : options.processes) < 0)
                return -1;
            continue;
        }
        while (i < sizeof numbers / sizeof *numbers && numbers[i].letter != c)
            i++;
        if (i == sizeof numbers / sizeof *numbers || bench_parse_size(optarg, numbers[i].value) < 0
            || *numbers[i].value < 1 || *numbers[i].value > numbers[i].most)
            return -1;
    }
    return optind == argc && options.entries <= options.length ? 0 : -1;
}

int main(int argc, char **argv)
{
    if (parse(argc, argv) < 0)
        return usage(2);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bench_clock_open();
    if (bench_list_has(options.tests, "halo"))
        halo();
    if (bench_list_has(options.tests, "transpose"))
        transposes();
    if (bench_list_has(options.tests, "sparse"))
        sparse();
    if (bench_list_has(options.tests, "advection"))
        kernel_advection();
    if (bench_list_has(options.tests, "graph"))
        kernel_graph();
    MPI_Finalize();
    return 0;
}
