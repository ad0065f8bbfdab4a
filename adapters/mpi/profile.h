/*
 * libivc-profile.so: what a program asks of its MPI, counted through the profiling interface (PMPI), for LD_PRELOAD.
 *
 * It is for what the transport cannot see: the time in MPI, collectives by name, and messages that the MPI carries
 * itself. It knows no MPI's header: arguments pass through as machine words, so one file serves MPICH's binary interface
 * (MPICH, Intel MPI), Open MPI's, and the standard one of MPI 5.
 *
 *   profile.c          the calls, each in front of the MPI's
 *   profile-ranks.c    what the arguments mean: ranks of MPI_COMM_WORLD, bytes of a type, persistent requests
 *   profile-count.c    the counters, and the thread that writes them
 *
 * Invariant: only the outermost call of a thread is counted, so that what one MPI's call does by another, a Fortran
 * binding or a callback, is counted once.
 */
#ifndef IVC_ADAPTER_MPI_PROFILE_H
#define IVC_ADAPTER_MPI_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

/* An argument: a handle is an int under MPICH's interface, a pointer under the others; both fill a register, and a callee
 * that wants an int looks at its lower half. */
typedef void *word;

enum profile_how { TIME, SEND, PERSISTENT, START, STARTALL, BUFFER, TIMES, SUM };

#define LARGE CALL
#define CALL(name, ...) PROFILE_##name,
enum profile_call {
#include "profile-calls.h"
    PROFILE_CALLS
};
#undef CALL
#undef LARGE

struct profile_arguments {
    const word *words;
    bool fortran;               /* each is the address of it */
    bool large;                 /* counts have 64 bits */
};

/* ---------------------------------------------------------------- profile.c */

/* The MPI's function of that name, "PMPI_...", found when MPI was initialised; NULL: it has none. */
void *profile_function(const char *name);

/* ---------------------------------------------------------------- profile-ranks.c */

/* Negative: MPI cannot be asked. */
int profile_ranks_begin(void *handle, const void *function, int *ret_rank, int *ret_size);
/* Counts what the call has sent, by the counters of this thread. */
void profile_ranks_count(enum profile_call call, const struct profile_arguments *arguments);
/* For an MPI that has no calls with counts of 64 bits: has the words name arrays of ints instead, in memory that is to be
 * freed after the call; NULL: it has none, or the MPI will read them later. */
void *profile_ranks_narrow(enum profile_call call, word *words);
/* A communicator, or a request, is about to be freed. */
void profile_ranks_forget_communicator(const struct profile_arguments *arguments);
void profile_ranks_forget_request(const struct profile_arguments *arguments);

/* ---------------------------------------------------------------- profile-count.c */

/* Whether files are asked for, and can be: from then on until the end calls are counted. */
bool profile_count_begin(int rank, int size, const char *version);
void profile_count_end(void);
bool profile_count_is_on(void);

void profile_count_call(enum profile_call call, uint64_t cycles);
void profile_count_bytes(enum profile_call call, uint64_t bytes);
/* `to`: a rank of MPI_COMM_WORLD; negative: of none. */
void profile_count_sent(int to, uint64_t bytes);

#endif
