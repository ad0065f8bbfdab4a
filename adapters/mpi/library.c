/*
 * The MPI below us: its PMPI_ functions, and the few constants that its header would give.
 */
#include "internal.h"

#include "find.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mpi_library library;
static bool found;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct name {
    const char *name;
    size_t place;
    bool optional;
};

#define NAME(member, text) { "PMPI_" text, offsetof(struct mpi_library, member), false }
#define OPTIONAL(member, text) { "PMPI_" text, offsetof(struct mpi_library, member), true }

static const struct name names[] = {
    NAME(alloc_mem, "Alloc_mem"),
    NAME(free_mem, "Free_mem"),
    NAME(win_create, "Win_create"),
    NAME(win_allocate, "Win_allocate"),
    NAME(win_free, "Win_free"),
    NAME(win_set_attr, "Win_set_attr"),
    NAME(win_get_attr, "Win_get_attr"),
    NAME(win_create_keyval, "Win_create_keyval"),
    NAME(allreduce, "Allreduce"),
    NAME(info_create, "Info_create"),
    NAME(info_dup, "Info_dup"),
    NAME(info_set, "Info_set"),
    NAME(info_free, "Info_free"),
    OPTIONAL(win_create_c, "Win_create_c"),
    OPTIONAL(win_allocate_c, "Win_allocate_c"),
};

static bool find_functions(void *handle)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(handle, names[i].name);

        if (!function && !names[i].optional)
            return false;
        memcpy((char *)&library + names[i].place, &function, sizeof function);
    }
    return true;
}

static mpi_word word(uintptr_t value)
{
    mpi_word handle;

    memcpy(&handle, &value, sizeof handle);
    return handle;
}

static void find_constants(void *handle)
{
    void *create;

    memcpy(&create, &library.win_create, sizeof create);
    switch (mpi_find_abi(handle, create)) {
    case MPI_ABI_OPEN_MPI:
        library.handle_size = sizeof(void *);
        library.type_int = mpi_find_object(handle, "ompi_mpi_int");
        library.op_max = mpi_find_object(handle, "ompi_mpi_op_max");
        library.info_null = mpi_find_object(handle, "ompi_mpi_info_null");
        library.flavor_key = 10;
        library.flavor_allocate = 2;
        break;
    case MPI_ABI_STANDARD:
        library.handle_size = sizeof(void *);
        library.type_int = word(0x209);
        library.op_max = word(0x23);
        library.info_null = word(0x130);
        library.flavor_key = 604;
        library.flavor_allocate = 312;
        break;
    case MPI_ABI_MPICH:
        library.handle_size = sizeof(int);
        library.type_int = word(0x4c000405);
        library.op_max = word(0x58000001);
        library.info_null = word(0x1c000000);
        library.flavor_key = 0x66000007;
        library.flavor_allocate = 2;
        break;
    }
}

const struct mpi_library *mpi_library_of(const void *caller)
{
    void *handle;

    pthread_mutex_lock(&lock);
    if (!found) {
        handle = mpi_find_handle(names[0].name, caller);
        if (!handle || !find_functions(handle)) {
            fprintf(stderr, "libivc-mpi-alloc.so: this process has no MPI library with the profiling "
                    "names (PMPI_...); run it without LD_PRELOAD=libivc-mpi-alloc.so\n");
            abort();
        }
        find_constants(handle);
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return &library;
}
