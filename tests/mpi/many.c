/*
 * many: more messages than any ring holds, to a receiver that looks away.
 *
 * Every case starts all its sends before the receiver takes the first one, so that rings and
 * buffers are full and senders have to wait their turn.  Order and every byte are checked.
 */
#include "pattern.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int rank, ranks;

struct flood {
    const char *name;
    int count;
    size_t size;
    bool scattered;     /* a datatype with holes */
    bool to_all;        /* otherwise all to rank 0 */
};

static const struct flood floods[] = {
    { "empty messages, all to one", 20000, 0, false, false },
    { "8 bytes, all to one", 20000, 8, false, false },
    { "8 bytes, all to all", 8000, 8, false, true },
    { "200 bytes, all to all", 5000, 200, false, true },
    { "4000 bytes, all to all", 3000, 4000, false, true },
    { "4000 bytes scattered, all to all", 2000, 4000, true, true },
    { "70000 bytes, all to all", 200, 70000, false, true },
    { "70000 bytes scattered, all to all", 200, 70000, true, true },
    { "5 MB, all to all", 3, 5000000, false, true },
};

static void fail(const struct flood *flood, const char *what, int src, int n)
{
    fprintf(stderr, "many: rank %d: %s: message %d from rank %d: %s\n", rank, flood->name, n, src,
            what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *memory(size_t size)
{
    void *p = malloc(size ? size : 1);

    if (!p) {
        fprintf(stderr, "many: no memory for %zu bytes\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return p;
}

/* Every second byte of memory: the worst that a datatype can be. */
static MPI_Datatype holes(size_t size)
{
    MPI_Datatype type;

    MPI_Type_vector((int)size, 1, 2, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    return type;
}

static struct pattern pattern_of(int src, int dst, int n)
{
    return (struct pattern){ 99, src, dst, (uint64_t)n };
}

/* All to one destination; buffers and requests are kept until the end. */
static void send_start(const struct flood *flood, int dst, unsigned char *data,
                       MPI_Request *requests)
{
    size_t room = flood->scattered ? 2 * flood->size : flood->size;
    MPI_Datatype type = flood->scattered ? holes(flood->size) : MPI_BYTE;

    for (int n = 0; n < flood->count; n++) {
        struct pattern p = pattern_of(rank, dst, n);
        unsigned char *at = data + room * (size_t)n;

        if (flood->scattered) {
            unsigned char *packed = memory(flood->size);

            pattern_fill(&p, packed, flood->size);
            for (size_t i = 0; i < flood->size; i++)
                at[2 * i] = packed[i];
            free(packed);
        } else {
            pattern_fill(&p, at, flood->size);
        }
        MPI_Isend(at, flood->scattered ? 1 : (int)flood->size, type, dst, n % 1000,
                  MPI_COMM_WORLD, &requests[n]);
    }
    if (flood->scattered)
        MPI_Type_free(&type);
}

static void receive_all(const struct flood *flood)
{
    unsigned char *data = memory(flood->size);
    int *next = memory(sizeof *next * (size_t)ranks);

    memset(next, 0, sizeof *next * (size_t)ranks);
    for (int i = 0; i < flood->count * (ranks - 1); i++) {
        MPI_Status status;
        struct pattern p;
        int src, size;

        MPI_Recv(data, (int)flood->size, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                 &status);
        MPI_Get_count(&status, MPI_BYTE, &size);
        src = status.MPI_SOURCE;
        p = pattern_of(src, rank, next[src]);
        if (status.MPI_TAG != next[src] % 1000)
            fail(flood, "out of order", src, next[src]);
        if ((size_t)size != flood->size)
            fail(flood, "wrong size", src, next[src]);
        if (pattern_check(&p, data, flood->size) < flood->size)
            fail(flood, "wrong byte", src, next[src]);
        next[src]++;
    }
    free(data);
    free(next);
}

static void run(const struct flood *flood)
{
    size_t each = (flood->scattered ? 2 : 1) * flood->size * (size_t)flood->count;
    unsigned char *data = memory(each * (size_t)ranks);
    MPI_Request *requests = memory(sizeof *requests * (size_t)(flood->count * ranks));
    int n = 0;
    double start;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    for (int dst = 0; dst < (flood->to_all ? ranks : 1); dst++) {
        if (dst == rank)
            continue;
        send_start(flood, dst, data + each * (size_t)dst, requests + n);
        n += flood->count;
    }
    if (flood->to_all || rank == 0) {
        usleep(20000);      /* looks away until everything is full */
        receive_all(flood);
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("many: ok: %s: %d messages per pair in %.3f s\n", flood->name, flood->count,
               MPI_Wtime() - start);
    free(requests);
    free(data);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t i = 0; i < sizeof floods / sizeof *floods; i++)
        run(&floods[i]);
    MPI_Finalize();
    return 0;
}
