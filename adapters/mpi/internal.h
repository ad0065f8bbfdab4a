/*
 * libivc-mpi-alloc.so: MPI_Alloc_mem and MPI_Win_allocate take their memory from the region.
 * libivc-heap.so: large blocks of malloc() lie there (heap.c).
 *
 * Libraries for LD_PRELOAD, one or both.  The first stands before the MPI in the order of symbols, answers
 * the few calls that hand out memory, and passes everything on to the MPI's own PMPI_ names.  It knows no
 * MPI's header: handles pass through as machine words, so one file serves MPICH's binary interface (MPICH,
 * Intel MPI, MVAPICH), Open MPI's, and the standard one of MPI 5.
 *
 * Invariant: where there is no region, the program runs as it would without this library.
 */
#ifndef IVC_ADAPTER_MPI_INTERNAL_H
#define IVC_ADAPTER_MPI_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* A handle as an argument: an int under MPICH's interface, a pointer under the others.  Both fill a
 * register, and a callee that wants an int looks at its lower half. */
typedef void *mpi_word;
typedef intptr_t mpi_aint;

/* ---------------------------------------------------------------- library.c: the MPI below us */

struct mpi_library {
    int (*alloc_mem)(mpi_aint size, mpi_word info, void *base);
    int (*free_mem)(void *base);
    int (*win_create)(void *base, mpi_aint size, int unit, mpi_word info, mpi_word comm, void *win);
    int (*win_allocate)(mpi_aint size, int unit, mpi_word info, mpi_word comm, void *base, void *win);
    int (*win_free)(void *win);
    int (*win_set_attr)(mpi_word win, int key, void *value);
    int (*win_get_attr)(mpi_word win, int key, void *ret_value, int *ret_found);
    int (*win_create_keyval)(int (*copy)(mpi_word, int, void *, void *, void *, int *),
                             int (*drop)(mpi_word, int, void *, void *), int *ret_key, void *extra);
    int (*allreduce)(const void *in, void *out, int n, mpi_word type, mpi_word op, mpi_word comm);
    int (*info_create)(void *info);
    int (*info_dup)(mpi_word info, void *ret_info);
    int (*info_set)(mpi_word info, const char *key, const char *value);
    int (*info_free)(void *info);
    /* Of MPI 4 and later; NULL elsewhere. */
    int (*win_create_c)(void *base, mpi_aint size, mpi_aint unit, mpi_word info, mpi_word comm,
                        void *win);
    int (*win_allocate_c)(mpi_aint size, mpi_aint unit, mpi_word info, mpi_word comm, void *base,
                          void *win);

    /* What headers would tell. */
    size_t handle_size;
    mpi_word type_int, op_max, info_null;
    int flavor_key;             /* MPI_WIN_CREATE_FLAVOR */
    int flavor_allocate;        /* MPI_WIN_FLAVOR_ALLOCATE */
};

/* The MPI of the code at `caller`; ends the process with a line when it has none. */
const struct mpi_library *mpi_library_of(const void *caller);

/* ---------------------------------------------------------------- memory.c: the region's memory */

/* Memory for this process, zeroed; NULL when the region has none for us, or there is no region. */
void *mpi_memory_take(size_t size);
/* The same, without waiting for memory of processes that have ended, and in it may be anything. */
void *mpi_memory_take_now(size_t size);
/* Gives it back; false when it is not ours. */
bool mpi_memory_put(void *memory);
/* Counts the regions that this process has had: of another number, memory is in no region any more. */
uint32_t mpi_memory_residence(void);

#endif
