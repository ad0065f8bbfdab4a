/*
 * What the parts of the integrity program share: who we are, what was counted, and how a wrong
 * byte ends the run.
 */
#ifndef IVC_TESTS_MPI_INTEGRITY_H
#define IVC_TESTS_MPI_INTEGRITY_H

#include "pattern.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

struct run {
    int rank, ranks;
    uint64_t seed;
    size_t max_size;
    uint64_t iteration;
    bool alloc_mem;             /* memory() is MPI_Alloc_mem()'s */
    uint64_t messages, bytes;   /* checked by this rank */
};

/* Prints what was wrong and ends the job. */
void fail(const struct run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

/* Checks every byte and counts the message; `what` names the kind of transfer. */
void check(struct run *run, const struct pattern *pattern, const void *data, size_t size,
           const char *what);

/* At least one byte; does not come back without memory. */
void *memory(const struct run *run, size_t size);
void memory_free(const struct run *run, void *memory);

/* A random stream that is the same on every rank that asks with the same arguments. */
uint64_t stream(const struct run *run, int src, int dst, int kind);

/* integrity_p2p.c */
void test_nonblocking(struct run *run);
void test_blocking(struct run *run);
void test_one_buffer(struct run *run);
void test_any_source(struct run *run);
void test_datatypes(struct run *run);
void test_truncation(struct run *run);

/* integrity_more.c */
void test_one_sided(struct run *run);
void test_collectives(struct run *run);

#endif
