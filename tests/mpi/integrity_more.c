/*
 * One-sided transfers and collectives, with the same known bytes.
 */
#include "integrity.h"

#include <inttypes.h>

enum kind { PUT = 16, GET, BCAST, ALLTOALL, SHARED, LOCKED };   /* not used by integrity_p2p.c */
enum { ADDENDS = 1000 };

static struct pattern pattern_of(const struct run *run, int src, int dst, enum kind kind)
{
    return (struct pattern){ run->seed, src, dst, run->iteration << 16 | (unsigned)kind << 8 };
}

static size_t size_of(const struct run *run, int src, int dst, enum kind kind, size_t max)
{
    uint64_t random = stream(run, src, dst, kind);

    return pattern_size(&random, max);
}

/* Our window: one place per rank, then the counters. */
struct window {
    unsigned char *memory;
    size_t place;
    int64_t *counters;
    MPI_Win win;
};

static struct window window_new(const struct run *run)
{
    struct window w = { .place = (run->max_size < 1 << 18 ? run->max_size : 1 << 18) / 8 * 8 + 8 };
    size_t places = w.place * (size_t)run->ranks;
    MPI_Aint bytes = (MPI_Aint)(places + sizeof(int64_t) * ADDENDS);

    MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w.memory, &w.win);
    w.counters = (int64_t *)(void *)(w.memory + places);
    return w;
}

/* Each rank writes its place in everybody's window. */
static void put_all(struct run *run, struct window *w)
{
    unsigned char *out = memory(run, w->place * (size_t)run->ranks);

    MPI_Win_fence(0, w->win);
    for (int dst = 0; dst < run->ranks; dst++) {
        struct pattern p = pattern_of(run, run->rank, dst, PUT);
        size_t size = size_of(run, run->rank, dst, PUT, w->place);
        unsigned char *data = out + w->place * (size_t)dst;

        pattern_fill(&p, data, size);
        MPI_Put(data, (int)size, MPI_BYTE, dst, (MPI_Aint)(w->place * (size_t)run->rank),
                (int)size, MPI_BYTE, w->win);
    }
    MPI_Win_fence(0, w->win);
    for (int src = 0; src < run->ranks; src++) {
        struct pattern p = pattern_of(run, src, run->rank, PUT);

        check(run, &p, w->memory + w->place * (size_t)src, size_of(run, src, run->rank, PUT,
              w->place), "put");
    }
    memory_free(run, out);
}

/* Each rank reads its place in everybody's window, under a lock of its own. */
static void get_all(struct run *run, struct window *w)
{
    unsigned char *in = memory(run, w->place);

    MPI_Win_fence(0, w->win);
    for (int reader = 0; reader < run->ranks; reader++) {
        struct pattern p = pattern_of(run, run->rank, reader, GET);

        pattern_fill(&p, w->memory + w->place * (size_t)reader, w->place);
    }
    MPI_Win_fence(0, w->win);
    for (int owner = 0; owner < run->ranks; owner++) {
        struct pattern p = pattern_of(run, owner, run->rank, GET);
        size_t size = size_of(run, owner, run->rank, GET, w->place);

        MPI_Win_lock(MPI_LOCK_SHARED, owner, 0, w->win);
        MPI_Get(in, (int)size, MPI_BYTE, owner, (MPI_Aint)(w->place * (size_t)run->rank),
                (int)size, MPI_BYTE, w->win);
        MPI_Win_unlock(owner, w->win);
        check(run, &p, in, size, "get");
    }
    memory_free(run, in);
}

/* Each rank has added its multiples to our counters. */
static void sums_check(struct run *run, const struct window *w, const char *what)
{
    for (int i = 0; i < ADDENDS; i++) {
        int64_t expected = (int64_t)run->ranks * (run->ranks + 1) / 2 * (i + 1);

        if (w->counters[i] != expected)
            fail(run, "%s: sum %d is %" PRId64 ", expected %" PRId64, what, i, w->counters[i],
                 expected);
    }
    run->messages += (uint64_t)run->ranks;
    run->bytes += (uint64_t)run->ranks * sizeof(int64_t) * ADDENDS;
}

/* Everybody adds to everybody's counters at the same time; no addend may be lost. */
static void accumulate_all(struct run *run, struct window *w)
{
    int64_t *addends = memory(run, sizeof *addends * ADDENDS);
    MPI_Aint at = (MPI_Aint)(w->place * (size_t)run->ranks);

    for (int i = 0; i < ADDENDS; i++) {
        addends[i] = (int64_t)(run->rank + 1) * (i + 1);
        w->counters[i] = 0;
    }
    MPI_Win_fence(0, w->win);
    for (int dst = 0; dst < run->ranks; dst++)
        MPI_Accumulate(addends, ADDENDS, MPI_INT64_T, dst, at, ADDENDS, MPI_INT64_T, MPI_SUM,
                       w->win);
    MPI_Win_fence(0, w->win);
    sums_check(run, w, "accumulate");
    memory_free(run, addends);
}

/* The same under locks: nobody's target calls anything for it but what comes next. */
static void lock_all(struct run *run, struct window *w)
{
    unsigned char *out = memory(run, w->place);
    int64_t *addends = memory(run, sizeof *addends * ADDENDS);
    MPI_Aint at = (MPI_Aint)(w->place * (size_t)run->ranks);

    memset(w->counters, 0, sizeof *w->counters * ADDENDS);
    for (int i = 0; i < ADDENDS; i++)
        addends[i] = (int64_t)(run->rank + 1) * (i + 1);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
    for (int i = 0; i < run->ranks; i++) {
        int dst = (run->rank + i) % run->ranks;
        struct pattern p = pattern_of(run, run->rank, dst, LOCKED);
        size_t size = size_of(run, run->rank, dst, LOCKED, w->place);

        pattern_fill(&p, out, size);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, dst, 0, w->win);
        MPI_Put(out, (int)size, MPI_BYTE, dst, (MPI_Aint)(w->place * (size_t)run->rank), (int)size,
                MPI_BYTE, w->win);
        MPI_Accumulate(addends, ADDENDS, MPI_INT64_T, dst, at, ADDENDS, MPI_INT64_T, MPI_SUM,
                       w->win);
        MPI_Win_unlock(dst, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, w->win);
    for (int src = 0; src < run->ranks; src++) {
        struct pattern p = pattern_of(run, src, run->rank, LOCKED);

        check(run, &p, w->memory + w->place * (size_t)src, size_of(run, src, run->rank, LOCKED,
              w->place), "put under a lock");
    }
    sums_check(run, w, "accumulate under a lock");
    memory_free(run, addends);
    memory_free(run, out);
}

void test_one_sided(struct run *run)
{
    struct window w = window_new(run);

    put_all(run, &w);
    get_all(run, &w);
    accumulate_all(run, &w);
    lock_all(run, &w);
    MPI_Win_free(&w.win);
}

static void bcast(struct run *run)
{
    int root = (int)(run->iteration % (unsigned)run->ranks);
    size_t size = size_of(run, root, root, BCAST, run->max_size);
    struct pattern p = pattern_of(run, root, root, BCAST);
    unsigned char *data = memory(run, size);

    memset(data, 0, size);
    if (run->rank == root)
        pattern_fill(&p, data, size);
    MPI_Bcast(data, (int)size, MPI_BYTE, root, MPI_COMM_WORLD);
    check(run, &p, data, size, "broadcast");
    memory_free(run, data);
}

static void alltoallv(struct run *run)
{
    size_t max = run->max_size < 1 << 18 ? run->max_size : 1 << 18, n = (size_t)run->ranks;
    unsigned char *out = memory(run, max * n), *in = memory(run, max * n);
    int *counts = memory(run, sizeof(int) * 3 * n), *in_counts = counts + n, *at = counts + 2 * n;

    for (int peer = 0; peer < run->ranks; peer++) {
        struct pattern p = pattern_of(run, run->rank, peer, ALLTOALL);

        at[peer] = (int)(max * (size_t)peer);
        counts[peer] = (int)size_of(run, run->rank, peer, ALLTOALL, max);
        in_counts[peer] = (int)size_of(run, peer, run->rank, ALLTOALL, max);
        pattern_fill(&p, out + at[peer], (size_t)counts[peer]);
    }
    MPI_Alltoallv(out, counts, at, MPI_BYTE, in, in_counts, at, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; peer < run->ranks; peer++) {
        struct pattern p = pattern_of(run, peer, run->rank, ALLTOALL);

        check(run, &p, in + at[peer], (size_t)in_counts[peer], "all-to-all message");
    }
    memory_free(run, counts);
    memory_free(run, out);
    memory_free(run, in);
}

/* Sums of whole numbers, exact in any order. */
static void allreduce(struct run *run)
{
    size_t n = size_of(run, 0, 0, SHARED, run->max_size / 8) / 8 + 1;
    int64_t *own = memory(run, 8 * n), *sum = memory(run, 8 * n);

    for (size_t i = 0; i < n; i++)
        own[i] = (int64_t)(i + 1) * (run->rank + 1);
    MPI_Allreduce(own, sum, (int)n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < n; i++)
        if (sum[i] != (int64_t)(i + 1) * run->ranks * (run->ranks + 1) / 2)
            fail(run, "allreduce of %zu numbers: number %zu is %" PRId64, n, i, sum[i]);
    run->messages++;
    run->bytes += 8 * n;
    memory_free(run, own);
    memory_free(run, sum);
}

void test_collectives(struct run *run)
{
    bcast(run);
    alltoallv(run);
    allreduce(run);
    MPI_Barrier(MPI_COMM_WORLD);
}
