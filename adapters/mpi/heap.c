/*
 * libivc-heap.so: large blocks of malloc() lie in the region, so that messages out of them are read in place.
 *
 * A library for LD_PRELOAD.  It stands before the C library's (or whichever) malloc() in the order of symbols and
 * answers for blocks of IVC_HEAP_LEAST bytes and more, once MPI is initialised, while the region has room; all else it
 * passes on.  What it hands out are pages of spans (span.h), which it takes from the region a few at a time.
 *
 * Invariants.
 *  - Nothing that could ask for memory is called with `lock` held.  What the endpoint asks for while we ask it for a
 *    span (`inside`), or its helper meanwhile (`growing`), comes from the malloc() below.
 *  - Nor do the libraries that carry messages get memory of ours: whoever lets go of the region must not need it.
 *  - A child of fork() has a copy of the spans at the same place, as of all other memory of its parent's.  It gives
 *    blocks back to them, and asks neither them nor anybody for more: who knows who held which lock.
 */
#include "internal.h"
#include "span.h"

#include "base/atomics.h"
#include "base/error.h"
#include "base/util.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    LEAST_DEFAULT = 16 << 10,
    SPANS = 256,
    SPAN_LEAST = 4 << 20,       /* bytes to ask the region for; then as many as there are, up to: */
    SPAN_MOST = 64 << 20,
    RETRY_MS = 1000,            /* after the region has refused */
    OFFSET = 256,               /* bytes */
};

/* The malloc() below us. */
static struct {
    void *(*malloc)(size_t size);
    void *(*calloc)(size_t n, size_t size);
    void *(*realloc)(void *memory, size_t size);
    void (*free)(void *memory);
    int (*posix_memalign)(void **ret_memory, size_t alignment, size_t size);
    void *(*aligned_alloc)(size_t alignment, size_t size);
    void *(*memalign)(size_t alignment, size_t size);
    size_t (*malloc_usable_size)(void *memory);
} below;

static struct {
    pthread_mutex_t lock;
    struct mpi_span spans[SPANS];
    unsigned n;
    size_t bytes;                       /* of all spans */
    void *copies[SPANS];                /* while fork() is under way */
    _Atomic(uintptr_t) low, high;       /* all spans lie between, with much else perhaps; only ever further apart */
} heap = { .lock = PTHREAD_MUTEX_INITIALIZER, .low = UINTPTR_MAX };

static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;
static uint64_t refused_at;             /* ivc_now_ms() when the region had no room, 0: it had; under `growing` */
static bool is_child;                   /* of fork() */
static __thread bool inside __attribute__((tls_model("initial-exec")));

/* ---------------------------------------------------------------- the malloc() below */

/* For who asks while we look for the malloc() below: the C library's dlsym() may. */
static _Alignas(16) char early[8192];
static size_t early_used;

static void *early_get(size_t size)
{
    char *memory = early + early_used;

    size = ivc_align_up(size, 16);
    if (size > sizeof early - early_used)
        abort();
    early_used += size;
    return memory;
}

static bool is_early(const void *memory)
{
    return (uintptr_t)memory - (uintptr_t)early < sizeof early;
}

static void find(const char *name, void *place)
{
    void *function = dlsym(RTLD_NEXT, name);

    if (!function)
        abort();
    memcpy(place, &function, sizeof function);
}

/* Before there is a second thread: the first call comes from the loader or from a constructor. */
static __attribute__((noinline, cold)) bool find_below(void)
{
    static bool looking;

    if (looking)
        return false;
    looking = true;
    find("calloc", &below.calloc);
    find("realloc", &below.realloc);
    find("free", &below.free);
    find("posix_memalign", &below.posix_memalign);
    find("aligned_alloc", &below.aligned_alloc);
    find("memalign", &below.memalign);
    find("malloc_usable_size", &below.malloc_usable_size);
    find("malloc", &below.malloc);
    return true;
}

static inline bool is_there(void)
{
    return __builtin_expect(below.malloc != NULL, 1) || find_below();
}

/* ---------------------------------------------------------------- when there is a heap */

static size_t least = SIZE_MAX;         /* bytes of a block of ours; SIZE_MAX: there is no heap (yet) */

/* NULL: this is no MPI program, or has not loaded the library yet.  One that imports it (Python) may do so for itself
 * alone; then it is known by its file, of which there is one for each binary interface. */
static void *find_initialized(void)
{
    static const char *const files[] = { "libmpi.so.40", "libmpi.so.12", "libmpi_abi.so.0" };
    static const char name[] = "MPI_Initialized";
    void *function = dlsym(RTLD_DEFAULT, name), *handle;

    for (size_t i = 0; i < sizeof files / sizeof *files && !function; i++) {
        handle = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);     /* stays open: what is found is used again */
        function = handle ? dlsym(handle, name) : NULL;
    }
    return function;
}

/* Before that this may be no rank at all: a shell that starts one, say. */
static bool mpi_is_initialised(void)
{
    static int (*is_initialised)(int *ret_flag);
    void *function;
    int flag = 0;

    if (!is_initialised) {
        function = find_initialized();
        if (!function)
            return false;
        memcpy(&is_initialised, &function, sizeof function);
    }
    return is_initialised(&flag) == 0 && flag;
}

static bool is_open(void)
{
    static atomic_bool open;

    if (__builtin_expect(ivc_load_relaxed(&open), 1))
        return true;
    inside = true;
    ivc_store_relaxed(&open, mpi_is_initialised());
    inside = false;
    return ivc_load_relaxed(&open);
}

static void on_fork(void);
static void on_forked(void);
static void on_child(void);

__attribute__((constructor)) static void start(void)
{
    uint64_t size = LEAST_DEFAULT;
    bool good;

    inside = true;
    good = ivc_env_size("IVC_HEAP_LEAST", MPI_SPAN_PAGE, (uint64_t)1 << 40, &size) == 0;
    if (!good)
        fprintf(stderr, "ivc: heap: %s; malloc() is as without libivc-heap.so\n", ivc_error_text());
    good = good && pthread_atfork(on_fork, on_forked, on_child) == 0;
    inside = false;
    if (good)
        least = size;
}

/* ---------------------------------------------------------------- spans */

static uint32_t pages_of(size_t size)
{
    return (uint32_t)(ivc_align_up(size, MPI_SPAN_PAGE) / MPI_SPAN_PAGE);
}

/* False: it is not.  True: put() and size_of() tell. */
static inline bool may_be_ours(const void *memory)
{
    /* Relaxed: whoever has got memory of ours sees the bounds of before. */
    return __builtin_expect((uintptr_t)memory >= ivc_load_relaxed(&heap.low)
                            && (uintptr_t)memory < ivc_load_relaxed(&heap.high), 0);
}

static void widen(const struct mpi_span *span)
{
    uintptr_t first = (uintptr_t)span->memory, end = first + mpi_span_size(span);

    if (first < ivc_load_relaxed(&heap.low))
        ivc_store_relaxed(&heap.low, first);
    if (end > ivc_load_relaxed(&heap.high))
        ivc_store_relaxed(&heap.high, end);
}

/* Of so many bytes, from the region. */
static bool add_span(size_t size)
{
    void *memory = mpi_memory_take_now(size);
    struct mpi_span span;

    if (!memory)
        return false;
    if (mpi_span_init(&span, memory, size) != 0) {
        (void)mpi_memory_put(memory);
        return false;
    }
    span.residence = mpi_memory_residence();
    pthread_mutex_lock(&heap.lock);
    heap.spans[heap.n++] = span;
    heap.bytes += size;
    widen(&span);
    pthread_mutex_unlock(&heap.lock);
    return true;
}

/* Nothing fits.  More than is asked for, so that the region is not asked for every block; else just that. */
static bool grow(uint32_t pages)
{
    size_t size = (size_t)pages * MPI_SPAN_PAGE, more;
    bool grown = false, room;

    if (pthread_mutex_trylock(&growing) != 0)
        return false;
    inside = true;
    pthread_mutex_lock(&heap.lock);
    more = IVC_MIN(IVC_MAX(heap.bytes, SPAN_LEAST), SPAN_MOST);
    room = heap.n < SPANS;
    pthread_mutex_unlock(&heap.lock);
    if (room && (refused_at == 0 || ivc_now_ms() - refused_at >= RETRY_MS)) {
        grown = (more > size && add_span(more)) || add_span(size);
        refused_at = grown ? 0 : ivc_now_ms();
    }
    inside = false;
    pthread_mutex_unlock(&growing);
    return grown;
}

/* Where in its first page a block begins: not all at the same place, or what a program keeps in several arrays, under
 * one index, would want the same few lines of its processor's first-level cache. */
static size_t next_offset(void)
{
    static ivc_atomic_u32 blocks;

    /* Relaxed: any number will do. */
    return atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed) % (MPI_SPAN_PAGE / OFFSET) * OFFSET;
}

static size_t offset_of(const void *memory)
{
    return (uintptr_t)memory % MPI_SPAN_PAGE;
}

/* Out of the spans of this residence, or of those before, which are private memory now. */
static void *get_once(uint32_t pages, uint32_t residence, bool of_this)
{
    void *memory = NULL;

    pthread_mutex_lock(&heap.lock);
    for (unsigned i = 0; i < heap.n && !memory; i++)
        if ((heap.spans[i].residence == residence) == of_this)
            memory = mpi_span_get(&heap.spans[i], pages);
    pthread_mutex_unlock(&heap.lock);
    return memory;
}

/*
 * Of a library that carries messages, ours or another, or of the C library for itself.  What these keep is not what is
 * sent, others could spoil it, and the kernel writes into some of it, which it cannot while a guest lets go of a region
 * (ivc_region_retire()).  Open MPI's libmpi keeps little, and takes memory for collective operations, which is sent.
 */
static bool carries(const char *name)
{
    static const char *const names[] = {
        "libivc", "mca_", "libopen-", "libpmi", "libevent", "libfabric", "libuc", "libibverbs", "librdmacm", "libpsm",
        "libc.so", "libc-", "ld-",
    };
    static const char mpi[] = "libmpi", open_mpi[] = "libmpi.so.40", provider[] = "-fi.so";
    bool found = strstr(name, provider) || (strncmp(name, mpi, strlen(mpi)) == 0
                                            && strncmp(name, open_mpi, strlen(open_mpi)) != 0);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        found |= strncmp(name, names[i], strlen(names[i])) == 0;
    return found;
}

static bool is_for(const void *caller)
{
    const char *name;
    Dl_info info;

    if (!dladdr(caller, &info) || !info.dli_fname)
        return true;
    name = strrchr(info.dli_fname, '/');
    return !carries(name ? name + 1 : info.dli_fname);
}

static __attribute__((noinline)) void *get_large(const void *caller, size_t size, size_t alignment)
{
    uint32_t residence, pages;
    size_t offset;
    char *memory;

    if (inside || is_child || alignment > MPI_SPAN_PAGE || size > (size_t)INT32_MAX * MPI_SPAN_PAGE || !is_for(caller)
        || !is_open())
        return NULL;
    offset = alignment <= OFFSET ? next_offset() : 0;
    pages = pages_of(offset + size);
    residence = mpi_memory_residence();
    memory = get_once(pages, residence, true);
    if (!memory && grow(pages))
        memory = get_once(pages, mpi_memory_residence(), true);
    if (!memory)
        memory = get_once(pages, residence, false);
    return memory ? memory + offset : NULL;
}

/* Of `size` bytes; NULL: it is not for us, or there is no room. */
static inline void *get(const void *caller, size_t size, size_t alignment)
{
    return __builtin_expect(size < least, 1) ? NULL : get_large(caller, size, alignment);
}

/* The span of a block that is out, under the lock; NULL: it lies in none.  Ends the process when a span has no such
 * block. */
static struct mpi_span *span_of(const void *memory, uint32_t *ret_pages)
{
    struct mpi_span *span = NULL;

    for (unsigned i = 0; i < heap.n && !span; i++)
        if (mpi_span_has(&heap.spans[i], memory))
            span = &heap.spans[i];
    if (!span || (*ret_pages = mpi_span_pages(span, memory)) > 0)
        return span;
    fprintf(stderr, "ivc: heap: free() or realloc() of %p, which is not the beginning of a block\n", memory);
    abort();
}

/* A span of which nothing is out goes back to its region, if it is of a former one, or another of this one is empty,
 * too: that is for who frees and asks again. */
static bool take_empty(struct mpi_span *span, struct mpi_span *ret_span)
{
    unsigned n_empty = 0, latest = 0;

    if (span->used > 0 || is_child)
        return false;
    for (unsigned i = 0; i < heap.n; i++) {
        n_empty += heap.spans[i].used == 0 && heap.spans[i].residence == span->residence;
        latest = IVC_MAX(latest, heap.spans[i].residence);
    }
    if (n_empty < 2 && span->residence == latest)
        return false;
    *ret_span = *span;
    heap.bytes -= mpi_span_size(span);
    *span = heap.spans[--heap.n];
    return true;
}

/* False: it is not ours. */
static bool put(void *memory)
{
    struct mpi_span *span, empty;
    bool is_empty = false;
    uint32_t pages;

    pthread_mutex_lock(&heap.lock);
    span = span_of(memory, &pages);
    if (span) {
        mpi_span_put(span, memory);
        is_empty = take_empty(span, &empty);
    }
    pthread_mutex_unlock(&heap.lock);
    if (is_empty) {
        inside = true;
        (void)mpi_memory_put(empty.memory);
        mpi_span_fini(&empty);
        inside = false;
    }
    return span != NULL;
}

/* 0: it is not ours. */
static size_t size_of(const void *memory)
{
    const struct mpi_span *span;
    uint32_t pages = 0;

    if (!may_be_ours(memory))
        return 0;
    pthread_mutex_lock(&heap.lock);
    span = span_of(memory, &pages);
    pthread_mutex_unlock(&heap.lock);
    return span ? (size_t)pages * MPI_SPAN_PAGE - offset_of(memory) : 0;
}

/* Where it lies; it is ours. */
static bool resize(void *memory, size_t size)
{
    uint32_t pages = pages_of(offset_of(memory) + size), had;
    struct mpi_span *span;
    bool fits;

    pthread_mutex_lock(&heap.lock);
    span = span_of(memory, &had);
    fits = pages <= had || mpi_span_extend(span, memory, pages);
    if (pages < had)
        mpi_span_shorten(span, memory, pages);
    pthread_mutex_unlock(&heap.lock);
    return fits;
}

/* ---------------------------------------------------------------- fork() */

/* A child would share the region's pages with its parent; it is to have its own.  So they are copied before, and laid
 * over the child's afterwards. */
static void on_fork(void)
{
    pthread_mutex_lock(&growing);
    pthread_mutex_lock(&heap.lock);
    for (unsigned i = 0; i < heap.n; i++) {
        size_t size = mpi_span_size(&heap.spans[i]);

        heap.copies[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (heap.copies[i] != MAP_FAILED)
            mpi_span_copy(&heap.spans[i], heap.copies[i]);
    }
}

static void unlock(void)
{
    pthread_mutex_unlock(&heap.lock);
    pthread_mutex_unlock(&growing);
}

static void on_forked(void)
{
    for (unsigned i = 0; i < heap.n; i++)
        if (heap.copies[i] != MAP_FAILED)
            munmap(heap.copies[i], mpi_span_size(&heap.spans[i]));
    unlock();
}

static void on_child(void)
{
    is_child = true;
    for (unsigned i = 0; i < heap.n; i++) {
        size_t size = mpi_span_size(&heap.spans[i]);

        /* Without memory for a copy the child may still start another program; the blocks are not there for it. */
        if (heap.copies[i] == MAP_FAILED
            || mremap(heap.copies[i], size, size, MREMAP_MAYMOVE | MREMAP_FIXED, heap.spans[i].memory) == MAP_FAILED)
            (void)mprotect(heap.spans[i].memory, size, PROT_NONE);
    }
    unlock();
}

/* ---------------------------------------------------------------- the calls */

#define CALLER() __builtin_return_address(0)

static inline void *allocate(const void *caller, size_t size)
{
    void *memory = get(caller, size, 1);

    if (memory)
        return memory;
    return is_there() ? below.malloc(size) : early_get(size);
}

static inline void give_back(void *memory)
{
    if (may_be_ours(memory) && put(memory))
        return;
    if (!is_early(memory) && is_there())
        below.free(memory);
}

EXPORT void *malloc(size_t size)
{
    return allocate(CALLER(), size);
}

EXPORT void free(void *memory)
{
    give_back(memory);
}

EXPORT void *calloc(size_t n, size_t size)
{
    void *memory = NULL;
    size_t all;

    if (__builtin_mul_overflow(n, size, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    memory = get(CALLER(), all, 1);
    if (memory)
        return memset(memory, 0, all);
    return is_there() ? below.calloc(n, size) : early_get(all);
}

/* To a block elsewhere, of the same contents as far as there is room. */
static void *move(const void *caller, void *memory, size_t had, size_t size)
{
    void *other = allocate(caller, size);

    if (!other)
        return NULL;
    memcpy(other, memory, IVC_MIN(had, size));
    give_back(memory);
    return other;
}

/* Of a block of the malloc() below, which may have become long enough for us. */
static void *realloc_below(const void *caller, void *memory, size_t size)
{
    void *other = get(caller, size, 1);

    if (!other)
        return below.realloc(memory, size);
    memcpy(other, memory, IVC_MIN(below.malloc_usable_size(memory), size));
    below.free(memory);
    return other;
}

EXPORT void *realloc(void *memory, size_t size)
{
    size_t had;

    if (!memory)
        return allocate(CALLER(), size);
    if (is_early(memory))
        return move(CALLER(), memory, (size_t)(early + sizeof early - (char *)memory), size);
    had = size_of(memory);
    if (had == 0)
        return realloc_below(CALLER(), memory, size);
    if (size == 0) {
        put(memory);
        return NULL;
    }
    return size >= least && resize(memory, size) ? memory : move(CALLER(), memory, had, size);
}

EXPORT int posix_memalign(void **ret_memory, size_t alignment, size_t size)
{
    bool valid = alignment % sizeof(void *) == 0 && ivc_is_power_of_two(alignment);
    void *memory = valid ? get(CALLER(), size, alignment) : NULL;

    if (!memory)
        return is_there() ? below.posix_memalign(ret_memory, alignment, size) : ENOMEM;
    *ret_memory = memory;
    return 0;
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    void *memory = get(CALLER(), size, alignment);

    if (memory)
        return memory;
    return is_there() ? below.aligned_alloc(alignment, size) : NULL;
}

EXPORT void *memalign(size_t alignment, size_t size)
{
    void *memory = get(CALLER(), size, alignment);

    if (memory)
        return memory;
    return is_there() ? below.memalign(alignment, size) : NULL;
}

EXPORT size_t malloc_usable_size(void *memory)
{
    size_t size = size_of(memory);

    if (size > 0 || !memory || is_early(memory))
        return size;
    return is_there() ? below.malloc_usable_size(memory) : 0;
}
