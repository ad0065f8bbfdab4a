/*
 * looks: what becomes of a rank that asks with MPI_Test, again and again, whether something has come, and nothing has.
 *
 * It may work in between. So it is never put to sleep, as one that waits is; and though Open MPI gives the processor
 * away after each look that found nothing, when it knows of more ranks than processors (mpi_yield_when_idle), it had
 * better keep it.
 *
 * looks: how often it gives way.  looks sleeps: whether it is put to sleep, and one that waits is.
 */
#include <mpi.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOKS = 20000, MANY = LOOKS / 10, WAIT_US = 300000 };

static long given, slept;

/* Before the C library's, for Open MPI and its plug-ins as well. */
int sched_yield(void)
{
    given++;
    return (int)syscall(SYS_sched_yield);
}

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec left = timeout ? *timeout : (struct timespec){ 0, 0 };      /* the kernel's changes */

    slept += syscall(SYS_gettid) == getpid();       /* Open MPI and its plug-ins have threads of their own */
    return (int)syscall(SYS_ppoll, fds, n, timeout ? &left : NULL, mask, sizeof(long));
}

static void expect(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "looks: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* So often, or for so long, whichever is more; how often that gave way. */
static long look(long looks, double seconds)
{
    double end = MPI_Wtime() + seconds;
    MPI_Request request;
    int word = 0, done = 0;
    long ways;

    MPI_Irecv(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
    given = slept = 0;
    for (long i = 0; (i < looks || MPI_Wtime() < end) && !done; i++)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    ways = given;
    expect(!done, "a message came that nobody has sent");
    expect(slept == 0, "put to sleep, though it may have other work");
    MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return ways;
}

static void give_way(void)
{
    long ways = look(LOOKS, 0);

    printf("looks: gave way %ld times in %d looks\n", ways, LOOKS);
    expect(ways > 0, "never gave way");
    expect(ways <= MANY, "gave way far too often");
}

static void sleep_in_waits(void)
{
    int word;

    (void)look(0, WAIT_US * 1e-6);
    slept = 0;
    MPI_Recv(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("looks: slept %ld times in a wait of %d ms\n", slept, WAIT_US / 1000);
    expect(slept > 0, "a wait is not spent asleep");
}

static void answer(int sleeps)
{
    int word;

    MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    if (sleeps) {
        usleep(WAIT_US);
        MPI_Send(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, sleeps = argc > 1 && strcmp(argv[1], "sleeps") == 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && sleeps)
        sleep_in_waits();
    else if (rank == 0)
        give_way();
    else if (rank == 1)
        answer(sleeps);
    MPI_Finalize();
    return 0;
}
