/*
 * The calls of MPI that are counted, each in front of the MPI's own: see profile.h.
 *
 * In C the MPI's is PMPI_X. In Fortran it is the next mpi_x_: what MPICH and Intel MPI have there calls MPI_X, which is
 * counted here; what Open MPI has there calls PMPI_X, so that it is counted before, its mpi_f08 module's included, which
 * calls ompi_x_f.
 */
#include "profile.h"

#include "find.h"

#include "base/atomics.h"
#include "base/util.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static void *handle;            /* of the MPI that was initialised */
static bool fortran_is_ours;    /* its Fortran calls its PMPI_ functions */

/* One call under way. */
struct span {
    bool counts;
    uint64_t start;
};

static __thread unsigned depth;

static inline struct span enter(void)
{
    bool outermost = depth++ == 0;
    struct span span = { outermost && profile_count_is_on(), 0 };

    if (span.counts)
        span.start = ivc_cycles();
    return span;
}

static inline void leave(const struct span *span, enum profile_call call, const struct profile_arguments *arguments, int r)
{
    if (span->counts) {
        profile_count_call(call, ivc_cycles() - span->start);
        if (r == 0)
            profile_ranks_count(call, arguments);
    }
    depth--;
}

/* ---------------------------------------------------------------- the MPI's own */

static _Noreturn void no_function(const char *name)
{
    fprintf(stderr, "libivc-profile.so: this process has no %s; run it without LD_PRELOAD=libivc-profile.so\n", name);
    abort();
}

/* NULL: there is none.  Who calls at the end may have no MPI among what it needs: that which was initialised. */
static void *look_for(const char *name, const void *caller)
{
    void *function = handle ? dlsym(handle, name) : NULL;
    void *from = function ? NULL : mpi_find_handle(name, caller);

    return from ? dlsym(from, name) : function;
}

/* Found once; the same for all who look at the same time. */
static void *find(void *_Atomic *known, const char *name, const void *caller)
{
    void *function = ivc_load_relaxed(known);   /* an address, of code that was there before us */

    if (function)
        return function;
    function = look_for(name, caller);
    if (!function)
        no_function(name);
    ivc_store_relaxed(known, function);
    return function;
}

/* The call with counts of 64 bits; where the MPI has none a program that asks finds ours all the same (mpi4py does), and
 * the other call is given. */
struct large {
    void *_Atomic function;
    ivc_atomic_u32 is_small;
};

static void *find_large(struct large *known, const char *name, const char *small, const void *caller, bool *ret_is_small)
{
    /* Acquire: pairs with the release below; `is_small` is visible. */
    void *function = ivc_load_acquire(&known->function);

    if (!function) {
        function = look_for(name, caller);
        if (!function && (function = look_for(small, caller)) != NULL)
            ivc_store_relaxed(&known->is_small, 1);
        if (!function)
            no_function(name);
        /* Release: pairs with the acquire above. */
        ivc_store_release(&known->function, function);
    }
    *ret_is_small = ivc_load_relaxed(&known->is_small) != 0;
    return function;
}

void *profile_function(const char *name)
{
    return dlsym(handle, name);
}

/* ---------------------------------------------------------------- beginning and end */

/* After MPI_Init(), whoever was called for it. */
static void begin(const void *caller)
{
    int (*get_version)(char *ret_version, int *ret_len);
    static char version[8192 + 1];      /* MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the longest */
    int rank, size, len = 0;
    void *init, *function;

    if (handle || !(handle = mpi_find_handle("PMPI_Init", caller)))
        return;
    init = dlsym(handle, "PMPI_Init");
    fortran_is_ours = mpi_find_abi(handle, init) == MPI_ABI_OPEN_MPI;
    function = profile_function("PMPI_Get_library_version");
    memcpy(&get_version, &function, sizeof function);
    if (!get_version || get_version(version, &len) != 0)
        version[0] = '\0';
    if (profile_ranks_begin(handle, init, &rank, &size) == 0)
        (void)profile_count_begin(rank, size, version);
}

/* The function below the one that this stands in. */
#define BELOW(symbol, type, parameters) \
    ({ \
        static void *_Atomic known; \
        void *function = find(&known, symbol, __builtin_return_address(0)); \
        type(*found) parameters; \
        memcpy(&found, &function, sizeof found); \
        found; \
    })

EXPORT int MPI_Init(word argc, word argv)
{
    int r = BELOW("PMPI_Init", int, (word, word))(argc, argv);

    if (r == 0)
        begin(__builtin_return_address(0));
    return r;
}

EXPORT int MPI_Init_thread(word argc, word argv, word required, word ret_provided)
{
    int r = BELOW("PMPI_Init_thread", int, (word, word, word, word))(argc, argv, required, ret_provided);

    if (r == 0)
        begin(__builtin_return_address(0));
    return r;
}

EXPORT int MPI_Finalize(void)
{
    profile_count_end();
    return BELOW("PMPI_Finalize", int, (void))();
}

EXPORT void mpi_init_(word ret)
{
    BELOW("mpi_init_", void, (word))(ret);
    if (*(const int *)ret == 0)
        begin(__builtin_return_address(0));
}

EXPORT void mpi_init_thread_(word required, word ret_provided, word ret)
{
    BELOW("mpi_init_thread_", void, (word, word, word))(required, ret_provided, ret);
    if (*(const int *)ret == 0)
        begin(__builtin_return_address(0));
}

EXPORT void mpi_finalize_(word ret)
{
    profile_count_end();
    BELOW("mpi_finalize_", void, (word))(ret);
}

/* Open MPI's mpi_f08 module calls these. */
#define OF_MODULE(name, ...) EXPORT void ompi_##name##_f(__VA_ARGS__) __attribute__((alias("mpi_" #name "_")));
OF_MODULE(init, word)
OF_MODULE(init_thread, word, word, word)
OF_MODULE(finalize, word)

/* ---------------------------------------------------------------- the calls */

#define P1 word a0
#define P2 P1, word a1
#define P3 P2, word a2
#define P4 P3, word a3
#define P5 P4, word a4
#define P6 P5, word a5
#define P7 P6, word a6
#define P8 P7, word a7
#define P9 P8, word a8
#define P10 P9, word a9
#define P11 P10, word a10
#define P12 P11, word a11
#define A1 a0
#define A2 A1, a1
#define A3 A2, a2
#define A4 A3, a3
#define A5 A4, a4
#define A6 A5, a5
#define A7 A6, a6
#define A8 A7, a7
#define A9 A8, a8
#define A10 A9, a9
#define A11 A10, a10
#define A12 A11, a11

#define V1 words[0]
#define V2 V1, words[1]
#define V3 V2, words[2]
#define V4 V3, words[3]
#define V5 V4, words[4]
#define V6 V5, words[5]
#define V7 V6, words[6]
#define V8 V7, words[7]
#define V9 V8, words[8]
#define V10 V9, words[9]
#define V11 V10, words[10]
#define V12 V11, words[11]

#define IN_C(name, n) \
    EXPORT int MPI_##name(P##n) \
    { \
        const word words[] = { A##n }; \
        const struct profile_arguments arguments = { words, false, false }; \
        int (*below)(P##n) = BELOW("PMPI_" #name, int, (P##n)); \
        struct span span = enter(); \
        int r = below(A##n); \
        leave(&span, PROFILE_##name, &arguments, r); \
        return r; \
    }

#define IN_C_LARGE(name, n) \
    EXPORT int MPI_##name##_c(P##n) \
    { \
        static struct large known; \
        const word given[] = { A##n }; \
        word words[] = { A##n }; \
        const struct profile_arguments arguments = { given, false, true }; \
        bool is_small; \
        void *function = find_large(&known, "PMPI_" #name "_c", "PMPI_" #name, __builtin_return_address(0), &is_small); \
        void *memory = is_small ? profile_ranks_narrow(PROFILE_##name, words) : NULL; \
        int (*below)(P##n); \
        struct span span = enter(); \
        int r; \
        memcpy(&below, &function, sizeof below); \
        r = below(V##n); \
        leave(&span, PROFILE_##name, &arguments, r); \
        free(memory); \
        return r; \
    }

#define IN_FORTRAN(name, symbol, n) \
    EXPORT void mpi_##symbol##_(P##n, word ret) \
    { \
        const word words[] = { A##n }; \
        const struct profile_arguments arguments = { words, true, false }; \
        void (*below)(P##n, word) = BELOW("mpi_" #symbol "_", void, (P##n, word)); \
        struct span span; \
        if (!fortran_is_ours) { \
            below(A##n, ret); \
            return; \
        } \
        span = enter(); \
        below(A##n, ret); \
        leave(&span, PROFILE_##name, &arguments, *(const int *)ret); \
    } \
    OF_MODULE(symbol, P##n, word ret)

#define CALL(name, symbol, n, ...) IN_C(name, n) IN_FORTRAN(name, symbol, n)
#define LARGE(name, symbol, n, ...) IN_C(name, n) IN_FORTRAN(name, symbol, n) IN_C_LARGE(name, n)
#include "profile-calls.h"

/* ---------------------------------------------------------------- what is freed */

/* Before it is: afterwards its number may be another one's. */
#define FREES(name, symbol, forget) \
    EXPORT int MPI_##name(word handle_place) \
    { \
        int (*below)(word) = BELOW("PMPI_" #name, int, (word)); \
        if (profile_count_is_on()) \
            forget(&(const struct profile_arguments){ &handle_place, false, false }); \
        return below(handle_place); \
    } \
    EXPORT void mpi_##symbol##_(word handle_place, word ret) \
    { \
        void (*below)(word, word) = BELOW("mpi_" #symbol "_", void, (word, word)); \
        if (profile_count_is_on() && fortran_is_ours) \
            forget(&(const struct profile_arguments){ &handle_place, true, false }); \
        below(handle_place, ret); \
    } \
    OF_MODULE(symbol, word, word)

FREES(Comm_free, comm_free, profile_ranks_forget_communicator)
FREES(Comm_disconnect, comm_disconnect, profile_ranks_forget_communicator)
FREES(Request_free, request_free, profile_ranks_forget_request)
