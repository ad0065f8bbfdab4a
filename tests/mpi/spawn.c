/*
 * spawn: a job starts another one, and the two exchange messages.
 *
 * Parent and child have different job identities; those of one mpirun still reach each other.
 */
#include "pattern.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 300000, CHILDREN = 2 };

static void fail(const char *who, int src, size_t at)
{
    fprintf(stderr, "spawn: %s: byte %zu of the message of rank %d is wrong\n", who, at, src);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Everybody of one job to everybody of the other. */
static void exchange(MPI_Comm other, const char *who, int direction)
{
    unsigned char *out = malloc(SIZE), *in = malloc(SIZE);
    int rank, n;

    if (!out || !in)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_remote_size(other, &n);
    for (int peer = 0; peer < n; peer++) {
        struct pattern p_out = { 5 + (unsigned)direction, rank, peer, 0 };
        struct pattern p_in = { 5 + (unsigned)!direction, peer, rank, 0 };
        MPI_Request request;
        size_t at;

        pattern_fill(&p_out, out, SIZE);
        MPI_Isend(out, SIZE, MPI_BYTE, peer, 0, other, &request);
        MPI_Recv(in, SIZE, MPI_BYTE, peer, 0, other, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        at = pattern_check(&p_in, in, SIZE);
        if (at < SIZE)
            fail(who, peer, at);
    }
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Comm other;
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&other);
    if (other == MPI_COMM_NULL) {
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other,
                       MPI_ERRCODES_IGNORE);
        exchange(other, "parent", 0);
        if (rank == 0)
            printf("spawn: ok: parents and %d children\n", CHILDREN);
    } else {
        exchange(other, "child", 1);
    }
    MPI_Comm_disconnect(&other);
    MPI_Finalize();
    return 0;
}
