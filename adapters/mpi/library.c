/*
 * The MPI below us: its PMPI_ functions, and the few constants that its header would give.
 *
 * An MPI may be loaded long after us and out of our sight (Python loads extensions with what they
 * need privately), so it is looked for when it calls, from the caller's own point of view.
 */
#include "internal.h"

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

/* Where `caller` would find an MPI: behind us in the order of all, or among what its own file
 * needs. */
static void *handle_for(const void *caller)
{
    Dl_info info;

    if (dlsym(RTLD_NEXT, names[0].name))
        return RTLD_NEXT;
    if (!dladdr(caller, &info) || !info.dli_fname)
        return NULL;
    /* Stays open: the caller's file is not unloaded before the MPI that it uses. */
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

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

/* An object of Open MPI's, which a program may have in a place of its own (a copy relocation): the
 * first in the order of all is the one that everybody uses. */
static void *object(void *handle, const char *name)
{
    void *first = dlsym(RTLD_DEFAULT, name);

    return first ? first : dlsym(handle, name);
}

/* Each interface is an agreement that will not change: MPICH's since 2013, Open MPI's since its
 * first series, the standard's since MPI 5. */
static void find_constants(void *handle)
{
    void *open_mpi_int = object(handle, "ompi_mpi_int");
    void *create;
    Dl_info info = { 0 };

    memcpy(&create, &library.win_create, sizeof create);
    if (open_mpi_int) {
        library.handle_size = sizeof(void *);
        library.type_int = open_mpi_int;
        library.op_max = object(handle, "ompi_mpi_op_max");
        library.info_null = object(handle, "ompi_mpi_info_null");
        library.flavor_key = 10;
        library.flavor_allocate = 2;
    } else if (dladdr(create, &info) && info.dli_fname && strstr(info.dli_fname, "libmpi_abi")) {
        library.handle_size = sizeof(void *);
        library.type_int = word(0x209);
        library.op_max = word(0x23);
        library.info_null = word(0x130);
        library.flavor_key = 604;
        library.flavor_allocate = 312;
    } else {
        library.handle_size = sizeof(int);
        library.type_int = word(0x4c000405);
        library.op_max = word(0x58000001);
        library.info_null = word(0x1c000000);
        library.flavor_key = 0x66000007;
        library.flavor_allocate = 2;
    }
}

const struct mpi_library *mpi_library_of(const void *caller)
{
    void *handle;

    pthread_mutex_lock(&lock);
    if (!found) {
        handle = handle_for(caller);
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
