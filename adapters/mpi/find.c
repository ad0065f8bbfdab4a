/* The MPI below us: see find.h. */
#include "find.h"

#include <dlfcn.h>
#include <string.h>

void *mpi_find_handle(const char *name, const void *caller)
{
    Dl_info info;

    /* Behind us in the order of all, or among what the caller's own file needs. */
    if (dlsym(RTLD_NEXT, name))
        return RTLD_NEXT;
    if (!dladdr(caller, &info) || !info.dli_fname)
        return NULL;
    /* Stays open: the caller's file is not unloaded before the MPI that it uses. */
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

void *mpi_find_object(void *handle, const char *name)
{
    void *first = dlsym(RTLD_DEFAULT, name);

    return first ? first : dlsym(handle, name);
}

enum mpi_abi mpi_find_abi(void *handle, const void *function)
{
    Dl_info info = { 0 };

    if (mpi_find_object(handle, "ompi_mpi_int"))
        return MPI_ABI_OPEN_MPI;
    if (dladdr(function, &info) && info.dli_fname && strstr(info.dli_fname, "libmpi_abi"))
        return MPI_ABI_STANDARD;
    return MPI_ABI_MPICH;
}
