/*
 * What the kernels of bench_kernels share.  A failure of one rank ends the job.
 */
#ifndef IVC_BENCH_KERNELS_H
#define IVC_BENCH_KERNELS_H

#include "sample.h"

struct kernel_options {
    const char *tests;
    size_t side, matrix, length, entries, steps, degree, seed;
    size_t grid[3], processes[3];       /* processes of 0: as MPI_Dims_create() deals them */
};

extern struct kernel_options options;
extern int rank, ranks;

_Noreturn void kernel_fail(const char *what);
/* Zeroed memory. */
void *kernel_need(size_t n, size_t size);
/* Collective: `us` is that of all steps, `more` further members of the JSON object (",\"a\":1") or "". */
void kernel_print(const char *test, size_t bytes, double us, double check, const char *more);

void kernel_advection(void);
void kernel_graph(void);

#endif
