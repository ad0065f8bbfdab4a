/*
 * counted: calls of which it is known what they send, for what libivc-profile.so counts.
 *
 * What each rank has done is printed in the words of that library's file:
 *   counted: RANK sent TO MESSAGES BYTES
 *   counted: RANK call NAME CALLS BYTES
 * In Fortran, too, where the MPI has that: by its symbols, as a compiler would call them.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_MAX = 16, BYTES = 1000, TEXT = 4096 };

static int rank, ranks;
static long messages[RANKS_MAX], bytes[RANKS_MAX];
static char out[RANKS_MAX * BYTES], in[RANKS_MAX * BYTES];
static char text[TEXT], texts[RANKS_MAX * TEXT];

/* Launchers mix what several ranks print: rank 0 does it for all. */
static void say(const char *format, ...)
{
    size_t len = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + len, sizeof text - len, format, arguments);
    va_end(arguments);
}

static void sends(int to, long n)
{
    messages[to]++;
    bytes[to] += n;
}

static void call(const char *name, int calls, long n)
{
    say("counted: %d call MPI_%s %d %ld\n", rank, name, calls, n);
}

/* To the next in that communicator, which is `to` of the world; from whoever has us for the next. */
static void to_next(MPI_Comm comm, int to, int n)
{
    int own, size;
    MPI_Request request;

    MPI_Comm_rank(comm, &own);
    MPI_Comm_size(comm, &size);
    MPI_Irecv(in, BYTES, MPI_BYTE, MPI_ANY_SOURCE, 1, comm, &request);
    MPI_Send(out, n, MPI_BYTE, (own + 1) % size, 1, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    sends(to, n);
}

static int next(int step)
{
    return (rank + step + ranks) % ranks;
}

/* The number of a communicator that was freed comes again, for one with other ranks. */
static void by_communicators(void)
{
    for (int i = 0; i < 4; i++) {
        MPI_Comm turned;

        MPI_Comm_split(MPI_COMM_WORLD, 0, i % 2 ? rank : -rank, &turned);
        to_next(turned, next(i % 2 ? 1 : -1), 10 + i);
        MPI_Comm_free(&turned);
    }
    to_next(MPI_COMM_WORLD, next(1), 100);
}

/* Of two halves. */
static void between_groups(void)
{
    int half = ranks / 2, lower = rank < half, there = (lower ? rank + half : rank - half) % ranks;
    MPI_Comm mine, both;

    if (ranks % 2)
        return;
    MPI_Comm_split(MPI_COMM_WORLD, lower, rank, &mine);
    MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, lower ? half : 0, 5, &both);
    MPI_Sendrecv(out, 30, MPI_BYTE, lower ? rank : rank - half, 2, in, BYTES, MPI_BYTE, lower ? rank : rank - half, 2,
                 both, MPI_STATUS_IGNORE);
    sends(there, 30);
    MPI_Comm_free(&both);
    MPI_Comm_free(&mine);
}

static void persistent(void)
{
    MPI_Request requests[2];

    MPI_Send_init(out, 5, MPI_DOUBLE, next(1), 3, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(in, 5, MPI_DOUBLE, next(-1), 3, MPI_COMM_WORLD, &requests[1]);
    for (int i = 0; i < 3; i++) {
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        sends(next(1), 5 * (long)sizeof(double));
    }
    MPI_Start(&requests[1]);
    MPI_Start(&requests[0]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    sends(next(1), 5 * (long)sizeof(double));
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    call("Startall", 3, 0);
}

static void collectives(void)
{
    int counts[RANKS_MAX], places[RANKS_MAX];
    long sum = 0;

    for (int i = 0; i < ranks; i++) {
        counts[i] = rank + i;
        places[i] = i * BYTES / 2;
        sum += counts[i];
    }
    MPI_Bcast(out, 7, MPI_INT, 0, MPI_COMM_WORLD);
    call("Bcast", 1, 7 * (long)sizeof(int));
    MPI_Allreduce(out, in, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, in, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    call("Allreduce", 2, 6 * (long)sizeof(double));
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, 4, MPI_BYTE, MPI_COMM_WORLD);
    call("Allgather", 1, 4);
    MPI_Alltoall(out, 2, MPI_INT, in, 2, MPI_INT, MPI_COMM_WORLD);
    call("Alltoall", 1, 2 * (long)sizeof(int) * ranks);
    MPI_Alltoallv(out, counts, places, MPI_SHORT, in, counts, places, MPI_SHORT, MPI_COMM_WORLD);
    call("Alltoallv", 1, sum * (long)sizeof(short));
}

/* As who asks whether there are calls with counts of 64 bits (mpi4py): libivc-profile.so has them, whatever the MPI has. */
static void large(void)
{
    int (*gatherv)(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, int,
                   MPI_Comm) = NULL;
    int (*send)(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm) = NULL;
    MPI_Count counts[RANKS_MAX];
    MPI_Aint places[RANKS_MAX];
    MPI_Request request;

    *(void **)&gatherv = dlsym(RTLD_DEFAULT, "MPI_Gatherv_c");
    *(void **)&send = dlsym(RTLD_DEFAULT, "MPI_Send_c");
    if (!gatherv || !send)
        return;
    for (int i = 0; i < ranks; i++) {
        counts[i] = i + 1;
        places[i] = i * BYTES;
    }
    memset(out, rank + 1, BYTES);
    memset(in, 0, sizeof in);
    gatherv(out, rank + 1, MPI_BYTE, in, rank ? NULL : counts, rank ? NULL : places, MPI_BYTE, 0, MPI_COMM_WORLD);
    call("Gatherv", 1, rank + 1);
    for (int i = 0; !rank && i < ranks; i++)
        for (int k = 0; k < i + 2; k++)
            if (in[i * BYTES + k] != (k <= i ? i + 1 : 0))
                MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Irecv(in, BYTES, MPI_BYTE, next(-1), 6, MPI_COMM_WORLD, &request);
    send(out, 50, MPI_BYTE, next(1), 6, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    sends(next(1), 50);
    say("counted: large\n");
}

/* Its library's Fortran: another MPI's must not be loaded, and the wheels of MPICH have none. */
static const char *fortran_library(void)
{
#ifdef OPEN_MPI
    return "libmpi_mpifh.so.40";
#else
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int len;

    MPI_Get_library_version(version, &len);
    return strstr(version, "Intel") ? "libmpifort.so.12" : NULL;
#endif
}

/* As a compiler has it: addresses, numbers for handles.  Nothing where this MPI has no Fortran. */
static void in_fortran(void)
{
    typedef void send_fn(const void *, const int *, const int *, const int *, const int *, const int *, int *);
    typedef void recv_fn(void *, const int *, const int *, const int *, const int *, const int *, int *, int *);
    int n = 9, type = MPI_Type_c2f(MPI_INT), to = next(1), from = next(-1), tag = 4, comm = MPI_Comm_c2f(MPI_COMM_WORLD);
    int status[16], error;
    send_fn *send;
    recv_fn *recv;

    if (!fortran_library() || !dlopen(fortran_library(), RTLD_NOW | RTLD_GLOBAL))
        return;
    *(void **)&send = dlsym(RTLD_DEFAULT, "mpi_send_");
    *(void **)&recv = dlsym(RTLD_DEFAULT, "mpi_recv_");
    if (!send || !recv)
        return;
    send(out, &n, &type, &to, &tag, &comm, &error);
    recv(in, &n, &type, &from, &tag, &comm, status, &error);
    sends(to, n * (long)sizeof(int));
    say("counted: in Fortran\n");
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks > RANKS_MAX)
        MPI_Abort(MPI_COMM_WORLD, 1);
    to_next(MPI_COMM_WORLD, next(1), 0);
    MPI_Send(out, 10, MPI_BYTE, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
    by_communicators();
    between_groups();
    persistent();
    collectives();
    large();
    in_fortran();
    for (int to = 0; to < ranks; to++)
        if (messages[to] > 0)
            say("counted: %d sent %d %ld %ld\n", rank, to, messages[to], bytes[to]);
    MPI_Gather(text, TEXT, MPI_CHAR, texts, TEXT, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; !rank && i < ranks; i++)
        fputs(texts + i * TEXT, stdout);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
