/* The MPI below a library of ours that is loaded in front of it: where its functions are, and which interface it has. */
#ifndef IVC_ADAPTER_MPI_FIND_H
#define IVC_ADAPTER_MPI_FIND_H

/* Each is an agreement that will not change: MPICH's since 2013 (its ABI initiative; Intel MPI, MVAPICH), Open MPI's
 * since its first series (its mpi.h), the standard's since MPI 5.0 (chapter 20). */
enum mpi_abi { MPI_ABI_MPICH, MPI_ABI_OPEN_MPI, MPI_ABI_STANDARD };

/* For dlsym(3): where the code at `caller` finds the MPI that has the function `name`; NULL: it has none.  An MPI may be
 * loaded long after us and out of our sight (Python loads extensions with what they need privately), so it is looked for
 * when it is called, from the caller's own point of view. */
void *mpi_find_handle(const char *name, const void *caller);
/* `function`: one of its functions. */
enum mpi_abi mpi_find_abi(void *handle, const void *function);
/* An object of Open MPI's, which a program may have in a place of its own (a copy relocation): the first in the order of
 * all is the one that everybody uses. */
void *mpi_find_object(void *handle, const char *name);

#endif
