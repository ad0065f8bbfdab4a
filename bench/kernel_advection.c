/*
 * Upwind advection, as in Nanos, Goumas and Koziris's study of data paths: u is carried through a periodic
 * box of X x Y x Z cells, which a grid of processes divides.  In each step a rank sends its far face to the
 * next rank of every divided direction.
 *
 * Invariant: a cell's new value comes from the same four old ones by the same operations, whoever has them,
 * so the result has the same bits for every grid of processes; and the sum over all cells stays.
 */
#include "kernels.h"

#include <mpi.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of a cell that go on in a step, by direction; more than 1 together would not be stable. */
static const double courant[3] = { 0.2, 0.3, 0.25 };
static const double sum_error_max = 1e-10;

/* The cells of one rank, the last direction's beside each other; index 0 of each is the previous rank's last. */
struct box {
    MPI_Comm comm;
    int shape[3], previous[3], next[3];
    size_t first[3], cells[3], stride[3];
    double *u, *u_next;
    double *sent[3], *got[3];           /* faces; the same memory where a direction is not divided */
    double communication_us;
};

static void divide(struct box *b)
{
    int around[3] = { 1, 1, 1 }, at[3];

    for (int d = 0; d < 3; d++)
        b->shape[d] = (int)options.processes[d];
    if (!b->shape[0])
        MPI_Dims_create(ranks, 3, b->shape);
    if ((size_t)b->shape[0] * (size_t)b->shape[1] * (size_t)b->shape[2] != (size_t)ranks)
        kernel_fail("advection: --processes is a grid of another number of ranks");
    MPI_Cart_create(MPI_COMM_WORLD, 3, b->shape, around, 0, &b->comm);
    MPI_Cart_coords(b->comm, rank, 3, at);
    for (int d = 0; d < 3; d++) {
        size_t parts = (size_t)b->shape[d], own = (size_t)at[d];

        if (parts > options.grid[d])
            kernel_fail("advection: --grid has fewer cells than --processes has parts");
        b->first[d] = options.grid[d] * own / parts;
        b->cells[d] = options.grid[d] * (own + 1) / parts - b->first[d];
        MPI_Cart_shift(b->comm, d, 1, &b->previous[d], &b->next[d]);
    }
}

static size_t face_cells(const struct box *b, int d)
{
    return b->cells[(d + 1) % 3] * b->cells[(d + 2) % 3];
}

static void reserve(struct box *b)
{
    size_t all;

    b->stride[2] = 1;
    b->stride[1] = b->cells[2] + 1;
    b->stride[0] = b->stride[1] * (b->cells[1] + 1);
    all = b->stride[0] * (b->cells[0] + 1);
    b->u = kernel_need(all, sizeof(double));
    b->u_next = kernel_need(all, sizeof(double));
    for (int d = 0; d < 3; d++) {
        b->sent[d] = kernel_need(face_cells(b, d), sizeof(double));
        b->got[d] = b->shape[d] == 1 ? b->sent[d] : kernel_need(face_cells(b, d), sizeof(double));
    }
}

static void box_free(struct box *b)
{
    for (int d = 0; d < 3; d++) {
        if (b->got[d] != b->sent[d])
            free(b->got[d]);
        free(b->sent[d]);
    }
    free(b->u);
    free(b->u_next);
    MPI_Comm_free(&b->comm);
}

static size_t cell_number(const struct box *b, size_t x, size_t y, size_t z)
{
    return ((b->first[0] + x - 1) * options.grid[1] + b->first[1] + y - 1) * options.grid[2]
        + b->first[2] + z - 1;
}

static void begin(struct box *b)
{
    for (size_t x = 1; x <= b->cells[0]; x++)
        for (size_t y = 1; y <= b->cells[1]; y++)
            for (size_t z = 1; z <= b->cells[2]; z++)
                b->u[x * b->stride[0] + y * b->stride[1] + z]
                    = (double)(cell_number(b, x, y, z) * 2654435761u % 1024);
}

/* Copies layer `at` of direction d out into `face`, or `face` in. */
static void copy_face(struct box *b, int d, size_t at, double *face, bool is_in)
{
    int p = d == 0 ? 1 : 0, q = d == 2 ? 1 : 2;
    double *layer = b->u + at * b->stride[d];

    for (size_t i = 1; i <= b->cells[p]; i++)
        for (size_t j = 1; j <= b->cells[q]; j++, face++) {
            double *cell = layer + i * b->stride[p] + j * b->stride[q];

            if (is_in)
                *cell = *face;
            else
                *face = *cell;
        }
}

static void exchange(struct box *b)
{
    MPI_Request all[6];
    int n = 0;
    uint64_t start;

    for (int d = 0; d < 3; d++)
        copy_face(b, d, b->cells[d], b->sent[d], false);
    start = bench_ticks();
    for (int d = 0; d < 3; d++) {
        int cells = (int)face_cells(b, d);

        if (b->shape[d] == 1)
            continue;
        MPI_Irecv(b->got[d], cells, MPI_DOUBLE, b->previous[d], d, b->comm, &all[n++]);
        MPI_Isend(b->sent[d], cells, MPI_DOUBLE, b->next[d], d, b->comm, &all[n++]);
    }
    MPI_Waitall(n, all, MPI_STATUSES_IGNORE);
    b->communication_us += bench_ticks_us(bench_ticks() - start);
    for (int d = 0; d < 3; d++)
        copy_face(b, d, 0, b->got[d], true);
}

static void advance(struct box *b)
{
    double *swap = b->u;

    for (size_t x = 1; x <= b->cells[0]; x++)
        for (size_t y = 1; y <= b->cells[1]; y++) {
            size_t row = x * b->stride[0] + y * b->stride[1];
            const double *u = b->u + row, *u_x = u - b->stride[0], *u_y = u - b->stride[1];
            double *to = b->u_next + row;

            for (size_t z = 1; z <= b->cells[2]; z++)
                to[z] = u[z] - courant[0] * (u[z] - u_x[z]) - courant[1] * (u[z] - u_y[z])
                    - courant[2] * (u[z] - u[z - 1]);
        }
    b->u = b->u_next;
    b->u_next = swap;
}

/* Collective: the sum over all cells, row by row so that little is rounded off. */
static double sum_of(const struct box *b)
{
    double sum = 0, all;

    for (size_t x = 1; x <= b->cells[0]; x++)
        for (size_t y = 1; y <= b->cells[1]; y++) {
            double row = 0;

            for (size_t z = 1; z <= b->cells[2]; z++)
                row += b->u[x * b->stride[0] + y * b->stride[1] + z];
            sum += row;
        }
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, b->comm);
    return all;
}

/* Collective: of all bits of all cells and where they are; integers, so that their order does not matter. */
static uint64_t checksum_of(const struct box *b)
{
    uint64_t sum = 0, bits, all;

    for (size_t x = 1; x <= b->cells[0]; x++)
        for (size_t y = 1; y <= b->cells[1]; y++)
            for (size_t z = 1; z <= b->cells[2]; z++) {
                memcpy(&bits, b->u + x * b->stride[0] + y * b->stride[1] + z, sizeof bits);
                sum += bits * (2 * (uint64_t)cell_number(b, x, y, z) + 1);
            }
    MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, b->comm);
    return all;
}

/* Collective: the end of the test's line. */
static void describe(const struct box *b, char *to, size_t size)
{
    double mean, most, us = b->communication_us / (double)options.steps;

    MPI_Allreduce(&us, &mean, 1, MPI_DOUBLE, MPI_SUM, b->comm);
    MPI_Allreduce(&us, &most, 1, MPI_DOUBLE, MPI_MAX, b->comm);
    snprintf(to, size, ",\"processes\":\"%dx%dx%d\",\"communication_us\":%.6g,\"communication_max_us\":%.6g,"
             "\"checksum\":\"%016llx\"", b->shape[0], b->shape[1], b->shape[2], mean / ranks, most,
             (unsigned long long)checksum_of(b));
}

void kernel_advection(void)
{
    struct box b = { 0 };
    double us, before, after;
    char more[192];
    uint64_t start;

    divide(&b);
    reserve(&b);
    begin(&b);
    before = sum_of(&b);        /* no rank begins before all are ready */
    start = bench_ticks();
    for (size_t step = 0; step < options.steps; step++) {
        exchange(&b);
        advance(&b);
    }
    us = bench_ticks_us(bench_ticks() - start);
    after = sum_of(&b);
    if (!(fabs(after - before) <= sum_error_max * before))
        kernel_fail("advection: the sum over all cells has changed");
    describe(&b, more, sizeof more);
    kernel_print("advection", face_cells(&b, 0) * sizeof(double), us, after, more);
    box_free(&b);
}
