/*
 * What arguments mean: see profile.h.
 *
 * A rank of a communicator is translated to one of MPI_COMM_WORLD by its group, once for each communicator that is sent
 * in; what is not of that world (spawned processes, others' intercommunicators) is "other".  A table goes with its
 * communicator, whose number the MPI may give to another one then.
 *
 * MPI is asked by its PMPI_ functions, after the call that is counted, on the thread that made it.
 */
#include "profile.h"

#include "find.h"

#include "base/atomics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 256 };

static struct {
    enum mpi_abi abi;
    word world;
    const void *in_place, *in_place_fortran;
    int (*comm_rank)(word comm, int *ret_rank);
    int (*comm_size)(word comm, int *ret_size);
    int (*comm_test_inter)(word comm, int *ret_is);
    int (*comm_group)(word comm, void *ret_group);
    int (*comm_remote_group)(word comm, void *ret_group);
    int (*group_size)(word group, int *ret_size);
    int (*group_translate_ranks)(word group, int n, const int *ranks, word to, int *ret_ranks);
    int (*group_free)(void *group);
    int (*type_size)(word type, int *ret_size);
    word (*comm_f2c)(int comm);
    word (*type_f2c)(int type);
    word (*request_f2c)(int request);
} mpi;

/* ---------------------------------------------------------------- arguments */

/* Where each call has what: the places that profile-calls.h gives it. */
enum { PLACES = 6 };
static const struct {
    uint8_t how, at[PLACES];
} calls[] = {
#define LARGE CALL
#define CALL(name, fortran, n, how, ...) { how, { __VA_ARGS__ } },
#include "profile-calls.h"
#undef CALL
#undef LARGE
};

static word handle_at(const void *place)
{
    word handle = NULL;

    memcpy(&handle, place, mpi.abi == MPI_ABI_MPICH ? sizeof(int) : sizeof handle);
    return handle;
}

/* Of an argument's upper half nothing is known. */
static word as_handle(word argument)
{
    return handle_at(&argument);
}

static word handle_of(const struct profile_arguments *arguments, unsigned i, word (*f2c)(int))
{
    return arguments->fortran ? f2c(*(const int *)arguments->words[i]) : as_handle(arguments->words[i]);
}

static int64_t number_at(const void *place, bool large)
{
    return large ? *(const int64_t *)place : *(const int *)place;
}

static int64_t count_of(const struct profile_arguments *arguments, unsigned i)
{
    const word *argument = &arguments->words[i];

    return number_at(arguments->fortran ? *argument : (const void *)argument, arguments->large);
}

static int int_of(const struct profile_arguments *arguments, unsigned i)
{
    const word *argument = &arguments->words[i];

    return *(const int *)(arguments->fortran ? *argument : (const void *)argument);
}

static uint64_t type_bytes(const struct profile_arguments *arguments, unsigned i)
{
    int size = 0;

    return mpi.type_size(handle_of(arguments, i, mpi.type_f2c), &size) == 0 && size > 0 ? (uint64_t)size : 0;
}

static uint64_t bytes_of(const struct profile_arguments *arguments, unsigned count, unsigned type)
{
    int64_t n = count_of(arguments, count);

    return n > 0 ? (uint64_t)n * type_bytes(arguments, type) : 0;
}

static bool is_in_place(const struct profile_arguments *arguments, unsigned buffer)
{
    const void *address = arguments->words[buffer];

    return address == mpi.in_place || (arguments->fortran && address == mpi.in_place_fortran);
}

/* How many are on the other side: of the communicator, or of the other group. */
static int others(word comm)
{
    word group = NULL;
    int is_inter = 0, n = 0;

    if (mpi.comm_test_inter(comm, &is_inter) != 0)
        return 0;
    if (!is_inter)
        return mpi.comm_size(comm, &n) == 0 ? n : 0;
    if (mpi.comm_remote_group(comm, &group) != 0)
        return 0;
    (void)mpi.group_size(group, &n);
    (void)mpi.group_free(&group);
    return n;
}

/* ---------------------------------------------------------------- ranks */

struct table {
    struct table *next;
    word comm;
    int n;
    int ranks[];                /* of MPI_COMM_WORLD; negative: of none */
};

static struct table *tables[BUCKETS];           /* under `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Counts communicators that were freed: what a thread has at hand may be of one of those. */
static ivc_atomic_u32 freed;

static __thread struct {
    const struct table *table;
    uint32_t freed;
} at_hand;

static size_t bucket(word handle)
{
    return ((uintptr_t)handle ^ (uintptr_t)handle >> 8) % BUCKETS;
}

static struct table *table_new(word comm, word group)
{
    int n = 0;
    struct table *table;

    if (mpi.group_size(group, &n) != 0 || n <= 0)
        return NULL;
    table = malloc(sizeof *table + (size_t)n * sizeof table->ranks[0]);
    if (!table)
        return NULL;
    table->comm = comm;
    table->n = n;
    return table;
}

/* As they are numbered here, then as MPI_COMM_WORLD does: what is not in it is MPI_UNDEFINED, which is negative. */
static bool table_fill(struct table *table, word group)
{
    int *own = malloc((size_t)table->n * sizeof *own);
    word world = NULL;
    bool good = own && mpi.comm_group(mpi.world, &world) == 0;

    for (int i = 0; own && i < table->n; i++)
        own[i] = i;
    if (good) {
        good = mpi.group_translate_ranks(group, table->n, own, world, table->ranks) == 0;
        (void)mpi.group_free(&world);
    }
    free(own);
    return good;
}

static struct table *table_make(word comm)
{
    struct table *table;
    word group = NULL;
    int is_inter = 0;

    if (mpi.comm_test_inter(comm, &is_inter) != 0
        || (is_inter ? mpi.comm_remote_group : mpi.comm_group)(comm, &group) != 0)
        return NULL;
    table = table_new(comm, group);
    if (table && !table_fill(table, group)) {
        free(table);
        table = NULL;
    }
    (void)mpi.group_free(&group);
    return table;
}

static const struct table *table_find(word comm)
{
    struct table **place, *table;

    pthread_mutex_lock(&lock);
    place = &tables[bucket(comm)];
    for (table = *place; table && table->comm != comm; table = table->next)
        ;
    if (!table && (table = table_make(comm)) != NULL) {
        table->next = *place;
        *place = table;
    }
    pthread_mutex_unlock(&lock);
    return table;
}

static const struct table *table_of(word comm)
{
    /* Relaxed: who uses a communicator does not free it at the same time. */
    uint32_t now = ivc_load_relaxed(&freed);

    if (!at_hand.table || at_hand.freed != now || at_hand.table->comm != comm) {
        at_hand.table = table_find(comm);
        at_hand.freed = now;
    }
    return at_hand.table;
}

void profile_ranks_forget_communicator(const struct profile_arguments *arguments)
{
    word comm = arguments->fortran ? mpi.comm_f2c(*(const int *)arguments->words[0]) : handle_at(arguments->words[0]);
    struct table **place;

    pthread_mutex_lock(&lock);
    place = &tables[bucket(comm)];
    while (*place && (*place)->comm != comm)
        place = &(*place)->next;
    if (*place) {
        struct table *table = *place;

        *place = table->next;
        free(table);
        atomic_fetch_add_explicit(&freed, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
}

static int world_rank(word comm, int rank)
{
    const struct table *table;

    if (comm == mpi.world)
        return rank;
    table = table_of(comm);
    return table && rank < table->n ? table->ranks[rank] : -1;
}

/* ---------------------------------------------------------------- persistent requests */

struct persistent {
    struct persistent *next;
    word request;
    int to;
    uint64_t bytes;
};

static struct persistent *requests[BUCKETS];    /* under `lock` */

static word request_at(const struct profile_arguments *arguments, unsigned argument, unsigned i)
{
    const char *first = arguments->words[argument];

    if (arguments->fortran)
        return mpi.request_f2c(((const int *)(const void *)first)[i]);
    return handle_at(first + i * (mpi.abi == MPI_ABI_MPICH ? sizeof(int) : sizeof(word)));
}

static void persistent_add(word request, int to, uint64_t bytes)
{
    struct persistent *fresh = malloc(sizeof *fresh);

    if (!fresh)
        return;
    *fresh = (struct persistent){ .request = request, .to = to, .bytes = bytes };
    pthread_mutex_lock(&lock);
    fresh->next = requests[bucket(request)];
    requests[bucket(request)] = fresh;
    pthread_mutex_unlock(&lock);
}

static void persistent_start(word request)
{
    const struct persistent *found;

    pthread_mutex_lock(&lock);
    for (found = requests[bucket(request)]; found && found->request != request; found = found->next)
        ;
    if (found)
        profile_count_sent(found->to, found->bytes);
    pthread_mutex_unlock(&lock);
}

void profile_ranks_forget_request(const struct profile_arguments *arguments)
{
    word request = request_at(arguments, 0, 0);
    struct persistent **place;

    pthread_mutex_lock(&lock);
    place = &requests[bucket(request)];
    while (*place && (*place)->request != request)
        place = &(*place)->next;
    if (*place) {
        struct persistent *gone = *place;

        *place = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- counting */

static void count_send(enum profile_call call, const struct profile_arguments *arguments, const uint8_t *at)
{
    int rank = int_of(arguments, at[2]);
    uint64_t bytes;

    if (rank < 0)
        return;     /* MPI_PROC_NULL */
    bytes = bytes_of(arguments, at[0], at[1]);
    rank = world_rank(handle_of(arguments, at[3], mpi.comm_f2c), rank);
    if (calls[call].how == PERSISTENT) {
        persistent_add(request_at(arguments, at[4], 0), rank, bytes);
        return;
    }
    profile_count_bytes(call, bytes);
    profile_count_sent(rank, bytes);
}

/* Without another count for it, what is in place has none. */
static uint64_t buffer_bytes(const struct profile_arguments *arguments, const uint8_t *at)
{
    if (!is_in_place(arguments, at[2]))
        return bytes_of(arguments, at[0], at[1]);
    return at[4] > 0 ? bytes_of(arguments, at[3], at[4]) : 0;
}

static uint64_t sum_bytes(const struct profile_arguments *arguments, const uint8_t *at)
{
    bool in_place = is_in_place(arguments, at[3]);
    const char *counts = arguments->words[in_place ? at[4] : at[0]];
    size_t each = arguments->large ? sizeof(int64_t) : sizeof(int);
    int n = others(handle_of(arguments, at[2], mpi.comm_f2c));
    uint64_t elements = 0;

    for (int i = 0; i < n; i++) {
        int64_t count = number_at(counts + (size_t)i * each, arguments->large);

        elements += count > 0 ? (uint64_t)count : 0;
    }
    return elements * type_bytes(arguments, in_place ? at[5] : at[1]);
}

void profile_ranks_count(enum profile_call call, const struct profile_arguments *arguments)
{
    const uint8_t *at = calls[call].at;

    switch ((enum profile_how)calls[call].how) {
    case TIME:
        break;
    case SEND:
    case PERSISTENT:
        count_send(call, arguments, at);
        break;
    case START:
        persistent_start(request_at(arguments, 0, 0));
        break;
    case STARTALL:
        for (int i = 0; i < int_of(arguments, 0); i++)
            persistent_start(request_at(arguments, 1, (unsigned)i));
        break;
    case BUFFER:
        profile_count_bytes(call, buffer_bytes(arguments, at));
        break;
    case TIMES:
        profile_count_bytes(call, buffer_bytes(arguments, at)
                                  * (uint64_t)others(handle_of(arguments, at[5], mpi.comm_f2c)));
        break;
    case SUM:
        profile_count_bytes(call, sum_bytes(arguments, at));
        break;
    }
}

/* ---------------------------------------------------------------- counts of 64 bits for an MPI without */

static const struct vector {
    enum profile_call call;
    bool lasts;                 /* the MPI reads them until the operation has ended */
    int8_t arrays[4];           /* 0: no more */
    int8_t comm, root;          /* who has them; 0: all */
} vectors[] = {
    { PROFILE_Gatherv, false, { 4, 5 }, 8, 7 },
    { PROFILE_Igatherv, true, { 4, 5 }, 8, 7 },
    { PROFILE_Scatterv, false, { 1, 2 }, 8, 7 },
    { PROFILE_Iscatterv, true, { 1, 2 }, 8, 7 },
    { PROFILE_Allgatherv, false, { 4, 5 }, 7, 0 },
    { PROFILE_Iallgatherv, true, { 4, 5 }, 7, 0 },
    { PROFILE_Alltoallv, false, { 1, 2, 5, 6 }, 8, 0 },
    { PROFILE_Ialltoallv, true, { 1, 2, 5, 6 }, 8, 0 },
    { PROFILE_Reduce_scatter, false, { 2 }, 5, 0 },
    { PROFILE_Ireduce_scatter, true, { 2 }, 5, 0 },
};

/* Whether they mean something here: of an intercommunicator those who have none give NULL, as a rule. */
static bool has_arrays(const struct vector *vector, const word *words, word comm)
{
    int rank = 0, root = (int)(intptr_t)words[vector->root], is_inter = 0;

    if (vector->root == 0 || mpi.comm_test_inter(comm, &is_inter) != 0 || is_inter)
        return true;
    return mpi.comm_rank(comm, &rank) == 0 && rank == root;
}

static _Noreturn void too_many(void)
{
    fprintf(stderr, "libivc-profile.so: a count above 2^31 - 1, and this MPI has no calls for that\n");
    abort();
}

static int *narrow(int *to, const int64_t *from, int n)
{
    for (int i = 0; i < n; i++) {
        if (from[i] != (int)from[i])
            too_many();
        to[i] = (int)from[i];
    }
    return to + n;
}

static void *narrow_arrays(const struct vector *vector, word *words)
{
    word comm = as_handle(words[vector->comm]);
    int n = has_arrays(vector, words, comm) ? others(comm) : 0;
    int *memory = n > 0 ? malloc(4 * (size_t)n * sizeof *memory) : NULL, *to = memory;

    for (unsigned i = 0; memory && i < 4 && vector->arrays[i] > 0; i++) {
        const word *given = &words[vector->arrays[i]];

        if (*given) {
            int *next = narrow(to, *given, n);

            words[vector->arrays[i]] = to;
            to = next;
        }
    }
    /* Who asks for such an operation in such an MPI has a few bytes less: when it has ended is not known here. */
    return vector->lasts ? NULL : memory;
}

static void check_count(enum profile_call call, const word *words)
{
    intptr_t count = (intptr_t)words[calls[call].at[0]];

    if (calls[call].how != TIME && count != (int)count)
        too_many();
}

void *profile_ranks_narrow(enum profile_call call, word *words)
{
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (vectors[i].call == call)
            return narrow_arrays(&vectors[i], words);
    check_count(call, words);
    return NULL;
}

/* ---------------------------------------------------------------- beginning */

static void find_constants(void *handle)
{
    uintptr_t world = mpi.abi == MPI_ABI_STANDARD ? 0x101 : 0x44000000, in_place = 1;

    if (mpi.abi == MPI_ABI_MPICH)
        in_place = UINTPTR_MAX;
    memcpy(&mpi.world, &world, sizeof mpi.world);
    memcpy(&mpi.in_place, &in_place, sizeof mpi.in_place);
    if (mpi.abi == MPI_ABI_OPEN_MPI) {
        mpi.world = mpi_find_object(handle, "ompi_mpi_comm_world");
        mpi.in_place_fortran = mpi_find_object(handle, "mpi_fortran_in_place_");
    }
}

static bool find_functions(void)
{
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        { "PMPI_Comm_rank", &mpi.comm_rank },
        { "PMPI_Comm_size", &mpi.comm_size },
        { "PMPI_Comm_test_inter", &mpi.comm_test_inter },
        { "PMPI_Comm_group", &mpi.comm_group },
        { "PMPI_Comm_remote_group", &mpi.comm_remote_group },
        { "PMPI_Group_size", &mpi.group_size },
        { "PMPI_Group_translate_ranks", &mpi.group_translate_ranks },
        { "PMPI_Group_free", &mpi.group_free },
        { "PMPI_Type_size", &mpi.type_size },
        { "PMPI_Comm_f2c", &mpi.comm_f2c },
        { "PMPI_Type_f2c", &mpi.type_f2c },
        { "PMPI_Request_f2c", &mpi.request_f2c },
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = profile_function(wanted[i].name);

        /* MPICH's are macros of its header; only Open MPI's are called. */
        if (!function && !strstr(wanted[i].name, "_f2c"))
            return false;
        memcpy(wanted[i].place, &function, sizeof function);
    }
    return true;
}

int profile_ranks_begin(void *handle, const void *function, int *ret_rank, int *ret_size)
{
    mpi.abi = mpi_find_abi(handle, function);
    find_constants(handle);
    if (!find_functions() || mpi.comm_rank(mpi.world, ret_rank) != 0 || mpi.comm_size(mpi.world, ret_size) != 0)
        return -1;
    return 0;
}
