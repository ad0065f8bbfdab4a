/*
 * The calls of MPI that hand out memory, in front of the MPI's own.
 *
 * A window is one thing of many processes, and whether it is MPI_Win_allocate's or one of memory that
 * we bring (MPI_Win_create's) must be the same for all of them: they agree before they begin.  If one
 * at least has memory of a region, each brings memory, from wherever it has it; else it is the MPI's
 * own affair.  So all processes of a job must have this library, or none.
 *
 * Such a window answers to MPI_WIN_CREATE_FLAVOR as the one that the program asked for.
 */
#include "internal.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LIBRARY() mpi_library_of(__builtin_return_address(0))

/* A window of ours: an attribute of it, so that nothing here depends on what a handle is. */
struct window {
    void *memory;
    size_t size;
    bool in_region;
};

static int window_key;

/* The window that the MPI has freed for this thread. */
static __thread struct window *freed_window;

/* ---------------------------------------------------------------- windows */

static int never_copied(mpi_word win, int key, void *extra, void *value, void *ret_value,
                        int *ret_flag)
{
    (void)win, (void)key, (void)extra, (void)value, (void)ret_value;
    *ret_flag = 0;
    return 0;
}

/* Called by MPI_Win_free(): the memory is still the window's until that returns. */
static int on_window_freed(mpi_word win, int key, void *value, void *extra)
{
    (void)win, (void)key, (void)extra;
    freed_window = value;
    return 0;
}

static int make_key(const struct mpi_library *mpi)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool made;
    int r = 0;

    pthread_mutex_lock(&lock);
    if (!made) {
        r = mpi->win_create_keyval(never_copied, on_window_freed, &window_key, NULL);
        made = r == 0;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static mpi_word handle_at(const struct mpi_library *mpi, const void *win)
{
    mpi_word handle = NULL;

    memcpy(&handle, win, mpi->handle_size);
    return handle;
}

/* Memory of the process alone, for those whose region has none. */
static void *private_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static void window_free(struct window *window)
{
    if (!window)
        return;
    if (window->in_region)
        (void)mpi_memory_put(window->memory);
    else if (window->memory)
        munmap(window->memory, window->size);
    free(window);
}

/* NULL when there is no memory at all. */
static struct window *window_new(size_t size)
{
    struct window *window = calloc(1, sizeof *window);

    if (!window || size == 0)
        return window;
    window->size = size;
    window->memory = mpi_memory_take(size);
    window->in_region = window->memory != NULL;
    if (!window->memory)
        window->memory = private_memory(size);
    if (window->memory)
        return window;
    free(window);
    return NULL;
}

/* Whether all bring memory: somebody has some of a region, and everybody has some. */
static bool all_agree(const struct mpi_library *mpi, mpi_word comm, const struct window *window)
{
    int mine[2] = { window && window->in_region, !window }, all[2] = { 0, 1 };

    return mpi->allreduce(mine, all, 2, mpi->type_int, mpi->op_max, comm) == 0 && all[0] && !all[1];
}

/* Arguments of both forms of the calls, which differ in the type of `unit`. */
struct request {
    mpi_aint size, unit;
    mpi_word info, comm;
    void *base, *win;
    bool large;
};

/*
 * MPICH and Intel MPI do atomics on a window by messages as soon as two processes of it are in one
 * guest, because one might use the processor's and the other the network's.  In a window of ours all
 * go the same way, and the hint says so.  Who does not know it passes over it.
 */
static int hints(const struct mpi_library *mpi, mpi_word info, mpi_word *ret_info)
{
    bool none = memcmp(&info, &mpi->info_null, mpi->handle_size) == 0;
    char handle[sizeof(mpi_word)] = { 0 };
    int r = none ? mpi->info_create(handle) : mpi->info_dup(info, handle);

    if (r != 0)
        return r;
    *ret_info = handle_at(mpi, handle);
    return mpi->info_set(*ret_info, "disable_shm_accumulate", "true");
}

static int window_create(const struct mpi_library *mpi, const struct request *request, void *memory)
{
    mpi_word info = request->info;
    int r = hints(mpi, request->info, &info);

    if (r != 0)
        return r;
    if (request->large)
        r = mpi->win_create_c(memory, request->size, request->unit, info, request->comm,
                              request->win);
    else
        r = mpi->win_create(memory, request->size, (int)request->unit, info, request->comm,
                            request->win);
    (void)mpi->info_free(&info);
    return r;
}

static int window_allocate(const struct mpi_library *mpi, const struct request *request)
{
    if (request->large)
        return mpi->win_allocate_c(request->size, request->unit, request->info, request->comm,
                                   request->base, request->win);
    return mpi->win_allocate(request->size, (int)request->unit, request->info, request->comm,
                             request->base, request->win);
}

static int allocate(const struct mpi_library *mpi, const struct request *request)
{
    struct window *window;
    int r;

    /* What is wrong with the arguments is the MPI's to say. */
    if (request->size < 0 || make_key(mpi) != 0)
        return window_allocate(mpi, request);
    window = window_new((size_t)request->size);
    if (!all_agree(mpi, request->comm, window)) {
        window_free(window);
        return window_allocate(mpi, request);
    }
    r = window_create(mpi, request, window->memory);
    if (r == 0)
        r = mpi->win_set_attr(handle_at(mpi, request->win), window_key, window);
    if (r != 0) {
        window_free(window);
        return r;
    }
    memcpy(request->base, &window->memory, sizeof window->memory);
    return 0;
}

EXPORT int MPI_Win_allocate(mpi_aint size, int unit, mpi_word info, mpi_word comm, void *base,
                            void *win)
{
    struct request request = { size, unit, info, comm, base, win, false };

    return allocate(LIBRARY(), &request);
}

/* Programs that ask whether there is such a function find ours, even if the MPI has none: then it is
 * the other one, which wants a smaller unit (and refuses -1). */
EXPORT int MPI_Win_allocate_c(mpi_aint size, mpi_aint unit, mpi_word info, mpi_word comm, void *base,
                              void *win)
{
    const struct mpi_library *mpi = LIBRARY();
    bool large = mpi->win_create_c && mpi->win_allocate_c;
    struct request request = { size, unit, info, comm, base, win, large };

    if (!large && unit > INT_MAX)
        request.unit = -1;
    return allocate(mpi, &request);
}

EXPORT int MPI_Win_free(void *win)
{
    const struct mpi_library *mpi = LIBRARY();
    int r;

    freed_window = NULL;
    r = mpi->win_free(win);
    if (r == 0)
        window_free(freed_window);
    freed_window = NULL;
    return r;
}

EXPORT int MPI_Win_get_attr(mpi_word win, int key, void *ret_value, int *ret_found)
{
    const struct mpi_library *mpi = LIBRARY();
    static int flavor;
    void *window, *value = &flavor;
    int ours = 0;
    int r = mpi->win_get_attr(win, key, ret_value, ret_found);

    if (r != 0 || key != mpi->flavor_key || !*ret_found || make_key(mpi) != 0
        || mpi->win_get_attr(win, window_key, &window, &ours) != 0 || !ours)
        return r;
    flavor = mpi->flavor_allocate;
    memcpy(ret_value, &value, sizeof value);
    return 0;
}

/* ---------------------------------------------------------------- memory */

EXPORT int MPI_Alloc_mem(mpi_aint size, mpi_word info, void *base)
{
    void *memory = size > 0 ? mpi_memory_take((size_t)size) : NULL;

    if (!memory)
        return LIBRARY()->alloc_mem(size, info, base);
    memcpy(base, &memory, sizeof memory);
    return 0;
}

EXPORT int MPI_Free_mem(void *base)
{
    return mpi_memory_put(base) ? 0 : LIBRARY()->free_mem(base);
}
