/*
 * What part of its time a program spends in MPI: loaded before it (LD_PRELOAD), this counts what the
 * blocking and the completing calls take between MPI_Init and MPI_Finalize, and rank 0 prints one JSON
 * line at the end: the mean of all ranks.  Waiting for a slower rank is in it.
 *
 * Through MPI's own profiling interface (MPI 4.1, chapter 15); calls made inside of MPI are not counted.
 */
#include "sample.h"

#include <mpi.h>

#include <stdio.h>

static uint64_t begun, inside, calls;

static void begin(void)
{
    bench_clock_open();
    begun = bench_ticks();
}

int MPI_Init(int *argc, char ***argv)
{
    int r = PMPI_Init(argc, argv);

    begin();
    return r;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *ret_provided)
{
    int r = PMPI_Init_thread(argc, argv, required, ret_provided);

    begin();
    return r;
}

int MPI_Finalize(void)
{
    double mine[3] = { bench_ticks_us(bench_ticks() - begun), bench_ticks_us(inside), (double)calls };
    double sums[3] = { 0, 0, 0 };
    int rank, ranks;

    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    PMPI_Reduce(mine, sums, 3, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"program\":\"mpi_share\",\"ranks\":%d,\"total_us\":%.6g,\"mpi_us\":%.6g,\"calls\":%.6g}\n",
               ranks, sums[0] / ranks, sums[1] / ranks, sums[2] / ranks);
    fflush(stdout);
    return PMPI_Finalize();
}

/* MPI_`name` with these parameters, timed. */
#define TIMED(name, parameters, arguments) \
    int MPI_##name parameters \
    { \
        uint64_t start = bench_ticks(); \
        int r = PMPI_##name arguments; \
        inside += bench_ticks() - start; \
        calls++; \
        return r; \
    }

TIMED(Send, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c))
TIMED(Ssend, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c))
TIMED(Rsend, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c))
TIMED(Isend, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *q),
      (b, n, t, to, tag, c, q))
TIMED(Recv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s),
      (b, n, t, from, tag, c, s))
TIMED(Irecv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *q),
      (b, n, t, from, tag, c, q))
TIMED(Sendrecv, (const void *b, int n, MPI_Datatype t, int to, int tag, void *rb, int rn, MPI_Datatype rt,
                 int from, int rtag, MPI_Comm c, MPI_Status *s),
      (b, n, t, to, tag, rb, rn, rt, from, rtag, c, s))
TIMED(Sendrecv_replace, (void *b, int n, MPI_Datatype t, int to, int tag, int from, int rtag, MPI_Comm c,
                         MPI_Status *s),
      (b, n, t, to, tag, from, rtag, c, s))
TIMED(Wait, (MPI_Request *q, MPI_Status *s), (q, s))
TIMED(Waitall, (int n, MPI_Request q[], MPI_Status *s), (n, q, s))
TIMED(Waitany, (int n, MPI_Request q[], int *i, MPI_Status *s), (n, q, i, s))
TIMED(Waitsome, (int n, MPI_Request q[], int *m, int i[], MPI_Status s[]), (n, q, m, i, s))
TIMED(Test, (MPI_Request *q, int *f, MPI_Status *s), (q, f, s))
TIMED(Testall, (int n, MPI_Request q[], int *f, MPI_Status s[]), (n, q, f, s))
TIMED(Testany, (int n, MPI_Request q[], int *i, int *f, MPI_Status *s), (n, q, i, f, s))
TIMED(Testsome, (int n, MPI_Request q[], int *m, int i[], MPI_Status s[]), (n, q, m, i, s))
TIMED(Probe, (int from, int tag, MPI_Comm c, MPI_Status *s), (from, tag, c, s))
TIMED(Iprobe, (int from, int tag, MPI_Comm c, int *f, MPI_Status *s), (from, tag, c, f, s))
TIMED(Barrier, (MPI_Comm c), (c))
TIMED(Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c))
TIMED(Reduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c),
      (b, rb, n, t, o, root, c))
TIMED(Allreduce, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
      (b, rb, n, t, o, c))
TIMED(Scan, (const void *b, void *rb, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, rb, n, t, o, c))
TIMED(Reduce_scatter, (const void *b, void *rb, const int n[], MPI_Datatype t, MPI_Op o, MPI_Comm c),
      (b, rb, n, t, o, c))
TIMED(Gather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, int root, MPI_Comm c),
      (b, n, t, rb, rn, rt, root, c))
TIMED(Gatherv, (const void *b, int n, MPI_Datatype t, void *rb, const int rn[], const int d[],
                MPI_Datatype rt, int root, MPI_Comm c),
      (b, n, t, rb, rn, d, rt, root, c))
TIMED(Scatter, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, int root, MPI_Comm c),
      (b, n, t, rb, rn, rt, root, c))
TIMED(Allgather, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c),
      (b, n, t, rb, rn, rt, c))
TIMED(Allgatherv, (const void *b, int n, MPI_Datatype t, void *rb, const int rn[], const int d[],
                   MPI_Datatype rt, MPI_Comm c),
      (b, n, t, rb, rn, d, rt, c))
TIMED(Alltoall, (const void *b, int n, MPI_Datatype t, void *rb, int rn, MPI_Datatype rt, MPI_Comm c),
      (b, n, t, rb, rn, rt, c))
TIMED(Alltoallv, (const void *b, const int n[], const int d[], MPI_Datatype t, void *rb, const int rn[],
                  const int rd[], MPI_Datatype rt, MPI_Comm c),
      (b, n, d, t, rb, rn, rd, rt, c))
