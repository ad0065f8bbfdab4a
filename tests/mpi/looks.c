/*
 * looks: how often a rank that asks with MPI_Test whether something has come gives its processor away.
 *
 * Open MPI does so after each look that found nothing, when it knows of more ranks than processors
 * (mpi_yield_when_idle). A rank that works in between had better keep it.
 */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOKS = 20000, MANY = LOOKS / 10 };

static long given;

/* Before the C library's, for Open MPI and its plug-ins as well. */
int sched_yield(void)
{
    given++;
    return (int)syscall(SYS_sched_yield);
}

static void look(void)
{
    MPI_Request request;
    int word = 0, done = 0;

    MPI_Irecv(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
    given = 0;
    for (int i = 0; i < LOOKS && !done; i++)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    printf("looks: gave way %ld times in %d looks\n", given, LOOKS);
    if (done || given == 0 || given > MANY) {
        fprintf(stderr, "looks: %s\n", done ? "a message came that nobody has sent"
                                            : given ? "far too often" : "never");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    int rank, word;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        look();
    } else if (rank == 1) {
        MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
