/*
 * threads: several threads of each rank exchange messages at the same time (MPI_THREAD_MULTIPLE).
 *
 * Thread t of a rank talks to thread t of every other rank, in its own range of tags; every byte
 * is checked.  Exit 77: this MPI gives no MPI_THREAD_MULTIPLE.
 */
#include "pattern.h"

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, WINDOW = 8, MAX_SIZE = 200000 };

static int rank, ranks, rounds = 30;
static const uint64_t seed = 42;

static void fail(const char *what, const struct pattern *p, size_t size, size_t at)
{
    fprintf(stderr, "threads: %s from %d to %d, sequence %llu, %zu bytes: byte %zu is wrong\n",
            what, p->src, p->dst, (unsigned long long)p->seq, size, at);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static struct pattern pattern_of(int src, int dst, int thread, int round, int n)
{
    return (struct pattern){ seed, src, dst, ((uint64_t)thread << 32 | (unsigned)round) << 8
                                             | (unsigned)n };
}

static size_t size_of(const struct pattern *p)
{
    uint64_t random = pattern_key(p);

    return pattern_size(&random, MAX_SIZE);
}

static void *memory(size_t size)
{
    void *p = malloc(size);

    if (!p) {
        fprintf(stderr, "threads: no memory for %zu bytes\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return p;
}

/* A window of messages with one peer, both ways. */
static void exchange(int peer, int thread, int round, unsigned char *out, unsigned char *in)
{
    MPI_Request requests[2 * WINDOW];

    for (int n = 0; n < WINDOW; n++) {
        struct pattern p = pattern_of(peer, rank, thread, round, n);

        MPI_Irecv(in + (size_t)n * MAX_SIZE, (int)size_of(&p), MPI_BYTE, peer,
                  thread * WINDOW + n, MPI_COMM_WORLD, &requests[n]);
    }
    for (int n = 0; n < WINDOW; n++) {
        struct pattern p = pattern_of(rank, peer, thread, round, n);
        size_t size = size_of(&p);

        pattern_fill(&p, out + (size_t)n * MAX_SIZE, size);
        MPI_Isend(out + (size_t)n * MAX_SIZE, (int)size, MPI_BYTE, peer, thread * WINDOW + n,
                  MPI_COMM_WORLD, &requests[WINDOW + n]);
    }
    MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE);
    for (int n = 0; n < WINDOW; n++) {
        struct pattern p = pattern_of(peer, rank, thread, round, n);
        size_t size = size_of(&p), at = pattern_check(&p, in + (size_t)n * MAX_SIZE, size);

        if (at < size)
            fail("message", &p, size, at);
    }
}

/* Small blocking messages, back and forth. */
static void ping_pong(int peer, int thread, int round)
{
    for (int n = 0; n < 50; n++) {
        struct pattern out = pattern_of(rank, peer, thread, round, 100 + n);
        struct pattern in = pattern_of(peer, rank, thread, round, 100 + n);
        unsigned char data[24], answer[24];
        size_t at;

        pattern_fill(&out, data, sizeof data);
        MPI_Sendrecv(data, sizeof data, MPI_BYTE, peer, 1000 + thread, answer, sizeof answer,
                     MPI_BYTE, peer, 1000 + thread, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        at = pattern_check(&in, answer, sizeof answer);
        if (at < sizeof answer)
            fail("short message", &in, sizeof answer, at);
    }
}

static void *thread_main(void *arg)
{
    int thread = (int)(intptr_t)arg;
    unsigned char *out = memory((size_t)WINDOW * MAX_SIZE);
    unsigned char *in = memory((size_t)WINDOW * MAX_SIZE);

    for (int round = 0; round < rounds; round++) {
        for (int step = 1; step < ranks; step++) {
            int partner = rank ^ step;  /* pairs that agree on their order */

            if (partner >= ranks)
                continue;
            exchange(partner, thread, round, out, in);
            ping_pong(partner, thread, round);
        }
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int provided;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (provided < MPI_THREAD_MULTIPLE) {
        if (rank == 0)
            printf("threads: skipped: this MPI gives no MPI_THREAD_MULTIPLE\n");
        MPI_Finalize();
        return 77;
    }
    if (argc > 1)
        rounds = atoi(argv[1]);
    for (intptr_t t = 0; t < THREADS; t++) {
        if (pthread_create(&threads[t], NULL, thread_main, (void *)t) != 0) {
            fprintf(stderr, "threads: cannot start thread %d\n", (int)t);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("threads: ok: %d ranks, %d threads each, %d rounds\n", ranks, THREADS, rounds);
    MPI_Finalize();
    return 0;
}
