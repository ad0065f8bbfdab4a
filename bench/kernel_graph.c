/*
 * A random sparse graph: each rank sends to `degree` others, drawn by a seed, messages of random lengths of
 * their own, again in every step.  All ranks draw the whole graph, so that each knows who sends to it.
 */
#include "kernels.h"

#include <mpi.h>

#include <stdlib.h>

struct edge {
    int from, to;
    size_t n;                   /* doubles */
    double *data;
};

/* A linear congruential generator with Knuth's multiplier; its high bits are good. */
static size_t draw(uint64_t *state, size_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*state >> 33) % below;
}

/* Different others for each rank; returns how many edges there are. */
static size_t draw_edges(struct edge *edges, size_t degree)
{
    size_t others = (size_t)ranks - 1, n = 0;
    int *other = kernel_need(others + 1, sizeof *other);
    uint64_t state = options.seed;

    for (int from = 0; from < ranks; from++) {
        for (size_t i = 0; i < others; i++)
            other[i] = (int)i < from ? (int)i : (int)i + 1;
        for (size_t i = 0; i < degree; i++) {
            size_t at = i + draw(&state, others - i);
            int to = other[at];

            other[at] = other[i];
            edges[n++] = (struct edge){ from, to, 1 + draw(&state, options.entries), NULL };
        }
    }
    free(other);
    return n;
}

/* The edges of this rank alone come first; returns how many. */
static size_t keep_own(struct edge *edges, size_t n)
{
    size_t own = 0;

    for (size_t i = 0; i < n; i++)
        if (edges[i].from == rank || edges[i].to == rank) {
            edges[own] = edges[i];
            edges[own].data = kernel_need(edges[own].n, sizeof(double));
            own++;
        }
    return own;
}

static double value(const struct edge *edge, size_t step)
{
    return (double)(step * (size_t)ranks + (size_t)edge->from);
}

static void exchange(struct edge *edges, size_t n, size_t step, MPI_Request *all)
{
    for (size_t i = 0; i < n; i++) {
        struct edge *one = &edges[i];

        if (one->to == rank) {
            MPI_Irecv(one->data, (int)one->n, MPI_DOUBLE, one->from, 0, MPI_COMM_WORLD, &all[i]);
        } else {
            one->data[0] = one->data[one->n - 1] = value(one, step);
            MPI_Isend(one->data, (int)one->n, MPI_DOUBLE, one->to, 0, MPI_COMM_WORLD, &all[i]);
        }
    }
    MPI_Waitall((int)n, all, MPI_STATUSES_IGNORE);
    for (size_t i = 0; i < n; i++)
        if (edges[i].data[0] != value(&edges[i], step) || edges[i].data[edges[i].n - 1] != value(&edges[i], step))
            kernel_fail("graph: a message is not the one that was sent");
}

void kernel_graph(void)
{
    size_t degree = options.degree < (size_t)ranks ? options.degree : (size_t)ranks - 1;
    struct edge *edges = kernel_need((size_t)ranks * degree + 1, sizeof *edges);
    size_t n = draw_edges(edges, degree), own = keep_own(edges, n);
    MPI_Request *all = kernel_need(own + 1, sizeof(MPI_Request));
    uint64_t start;
    double us;

    MPI_Barrier(MPI_COMM_WORLD);
    start = bench_ticks();
    for (size_t step = 0; step < options.steps; step++)
        exchange(edges, own, step, all);
    us = bench_ticks_us(bench_ticks() - start);
    kernel_print("graph", options.entries * sizeof(double), us, (double)n, "");
    for (size_t i = 0; i < own; i++)
        free(edges[i].data);
    free(all);
    free(edges);
}
