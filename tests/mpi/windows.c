/*
 * windows: every kind of window, every kind of operation, all ranks on the windows of all.
 *
 *   windows [--kinds KIND,...] [--seconds S | --iterations N] [--max-size BYTES] [--seed N]
 *
 * Kinds: create (malloc), alloc_mem (MPI_Alloc_mem), allocate, dynamic, shared (where all ranks are of one node). S seconds
 * or N rounds are for each kind. In a round each rank locks the window of each one, itself included: it puts bytes to
 * its place there and gets them back, all of which are compared; draws a ticket by MPI_Fetch_and_op, counts up by
 * MPI_Compare_and_swap, adds to sums by MPI_Accumulate and MPI_Get_accumulate; and counts up under an exclusive
 * lock by a get and a put. Then all put in a fence and between post and wait. In the end all counts and sums must be those
 * of operations that were each done once.
 */
#include "pattern.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUMS = 5 };

/* What a window begins with; a place for each rank's bytes follows. */
struct board {
    int64_t tickets, swapped, exclusive;
    int32_t narrow, zero;
    int64_t sums[SUMS];
    double floats[SUMS];
};

static struct {
    int rank, ranks;
    const char *kinds;
    double seconds;
    long iterations;
    size_t max_size;
    uint64_t seed, dice;
    MPI_Win win;
    MPI_Aint *bases;            /* of a dynamic window, rank by rank; else 0 */
    unsigned char *memory, *bytes, *back;
    uint64_t round, operations;
    int64_t *last_ticket;
} run = { .kinds = "create,alloc_mem,allocate,dynamic,shared", .iterations = 20, .max_size = 100000, .seed = 1 };

static void fail(const char *what, int who, long long found, long long wanted)
{
    fprintf(stderr, "windows: rank %d, window of rank %d, round %" PRIu64 ": %s: %lld, should be %lld\n", run.rank, who,
            run.round, what, found, wanted);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_Aint place_of(int rank)
{
    return (MPI_Aint)(sizeof(struct board) + run.max_size * (size_t)rank);
}

static size_t window_size(void)
{
    return (size_t)place_of(run.ranks);
}

static MPI_Aint at(int target, MPI_Aint offset)
{
    return run.bases[target] + offset;
}

#define FIELD(target, name) at(target, (MPI_Aint)offsetof(struct board, name))

/* ---------------------------------------------------------------- a round */

static struct pattern pattern_now(int src, int dst)
{
    return (struct pattern){ run.seed, src, dst, run.round };
}

static size_t bytes_make(int target)
{
    struct pattern p = pattern_now(run.rank, target);
    size_t size = pattern_size(&run.dice, run.max_size);

    pattern_fill(&p, run.bytes, size);
    return size;
}

static void check(int src, int dst, const void *bytes, size_t size, const char *what)
{
    struct pattern p = pattern_now(src, dst);
    size_t wrong = pattern_check(&p, bytes, size);

    if (wrong < size)
        fail(what, dst, (long long)wrong, (long long)size);
}

static void put_and_get(int target)
{
    size_t size = bytes_make(target), half = size / 2;

    MPI_Put(run.bytes, (int)half, MPI_BYTE, target, at(target, place_of(run.rank)), (int)half, MPI_BYTE, run.win);
    MPI_Put(run.bytes + half, (int)(size - half), MPI_BYTE, target, at(target, place_of(run.rank) + (MPI_Aint)half),
            (int)(size - half), MPI_BYTE, run.win);
    MPI_Win_flush(target, run.win);
    memset(run.back, 0, size);
    MPI_Get(run.back, (int)size, MPI_BYTE, target, at(target, place_of(run.rank)), (int)size, MPI_BYTE, run.win);
    MPI_Win_flush(target, run.win);
    check(run.rank, target, run.back, size, "first wrong byte of a get");
}

static void ticket(int target)
{
    const int64_t one = 1;
    int64_t drawn = -1;

    MPI_Fetch_and_op(&one, &drawn, MPI_INT64_T, target, FIELD(target, tickets), MPI_SUM, run.win);
    MPI_Win_flush(target, run.win);
    if (drawn <= run.last_ticket[target])
        fail("a ticket, should be above", target, drawn, run.last_ticket[target]);
    run.last_ticket[target] = drawn;
}

static void narrow_ticket(int target)
{
    const int32_t one = 1;
    int32_t drawn = -1;

    MPI_Fetch_and_op(&one, &drawn, MPI_INT32_T, target, FIELD(target, narrow), MPI_SUM, run.win);
    MPI_Win_flush(target, run.win);
    if (drawn < 0)
        fail("a narrow ticket", target, drawn, 0);
}

static void swap(int target)
{
    int64_t seen = 0, before, next;

    do {
        before = seen;
        next = before + 1;
        MPI_Compare_and_swap(&next, &before, &seen, MPI_INT64_T, target, FIELD(target, swapped), run.win);
        MPI_Win_flush(target, run.win);
    } while (seen != before);
}

static void add(int target)
{
    int64_t addends[SUMS];
    double floats[SUMS], before[SUMS];

    for (int i = 0; i < SUMS; i++)
        floats[i] = (double)(addends[i] = run.rank + i);
    MPI_Accumulate(addends, SUMS, MPI_INT64_T, target, FIELD(target, sums), SUMS, MPI_INT64_T, MPI_SUM, run.win);
    MPI_Get_accumulate(floats, SUMS, MPI_DOUBLE, before, SUMS, MPI_DOUBLE, target, FIELD(target, floats), SUMS, MPI_DOUBLE,
                       MPI_SUM, run.win);
    MPI_Win_flush(target, run.win);
    for (int i = 1; i < SUMS; i++)      /* each is the one before and the number of additions */
        if (before[i] - before[i - 1] != before[1] - before[0])
            fail("sums of doubles torn", target, (long long)before[i], (long long)before[i - 1]);
}

static void count_alone(int target)
{
    int64_t n = -1;

    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, run.win);
    MPI_Get(&n, 1, MPI_INT64_T, target, FIELD(target, exclusive), 1, MPI_INT64_T, run.win);
    MPI_Win_flush(target, run.win);
    n++;
    MPI_Put(&n, 1, MPI_INT64_T, target, FIELD(target, exclusive), 1, MPI_INT64_T, run.win);
    MPI_Win_unlock(target, run.win);
}

static void on_each(void)
{
    for (int i = 0; i < run.ranks; i++) {
        int target = (run.rank + i) % run.ranks;

        MPI_Win_lock(MPI_LOCK_SHARED, target, 0, run.win);
        put_and_get(target);
        ticket(target);
        narrow_ticket(target);
        swap(target);
        add(target);
        MPI_Win_unlock(target, run.win);
        count_alone(target);
        run.operations += 9;
    }
}

/* All of a place to the right neighbour, which looks at it there. */
static void put_to_neighbour(int target)
{
    struct pattern p = pattern_now(run.rank, target);

    pattern_fill(&p, run.bytes, run.max_size);
    MPI_Put(run.bytes, (int)run.max_size, MPI_BYTE, target, at(target, place_of(run.rank)), (int)run.max_size, MPI_BYTE,
            run.win);
}

static void fence(int left, int right)
{
    MPI_Win_fence(MPI_MODE_NOPRECEDE, run.win);
    put_to_neighbour(right);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, run.win);
    check(left, run.rank, run.memory + place_of(left), run.max_size, "first wrong byte after a fence");
}

static void post_and_wait(int left, int right)
{
    MPI_Group all, origin, target;

    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &left, &origin);
    MPI_Group_incl(all, 1, &right, &target);
    MPI_Win_post(origin, 0, run.win);
    MPI_Win_start(target, 0, run.win);
    put_to_neighbour(right);
    MPI_Win_complete(run.win);
    MPI_Win_wait(run.win);
    check(left, run.rank, run.memory + place_of(left), run.max_size, "first wrong byte after a wait");
    MPI_Group_free(&all);
    MPI_Group_free(&origin);
    MPI_Group_free(&target);
}

static int goes_on(long done, double start)
{
    int more = run.seconds > 0 ? MPI_Wtime() - start < run.seconds : done < run.iterations;

    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return more;
}

static long rounds(void)
{
    int left = (run.rank + run.ranks - 1) % run.ranks, right = (run.rank + 1) % run.ranks;
    double start = MPI_Wtime();
    long done = 0;

    for (; goes_on(done, start); done++) {
        run.round++;
        on_each();
        MPI_Barrier(MPI_COMM_WORLD);    /* nobody puts where another one still compares */
        run.round++;
        fence(left, right);
        run.round++;
        post_and_wait(left, right);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return done;
}

static void check_board(long done)
{
    struct board board;
    int64_t each = done * run.ranks, ranks_sum = (int64_t)run.ranks * (run.ranks - 1) / 2;

    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, run.rank, 0, run.win);
    memcpy(&board, run.memory, sizeof board);
    MPI_Win_unlock(run.rank, run.win);
    if (board.tickets != each)
        fail("tickets", run.rank, board.tickets, each);
    if (board.narrow != each)
        fail("narrow tickets", run.rank, board.narrow, each);
    if (board.swapped != each)
        fail("swaps", run.rank, board.swapped, each);
    if (board.exclusive != each)
        fail("counts under an exclusive lock", run.rank, board.exclusive, each);
    for (int i = 0; i < SUMS; i++) {
        int64_t wanted = done * (ranks_sum + (int64_t)run.ranks * i);

        if (board.sums[i] != wanted)
            fail("a sum", run.rank, board.sums[i], wanted);
        if (board.floats[i] != (double)wanted)
            fail("a sum of doubles", run.rank, (long long)board.floats[i], wanted);
    }
}

/* ---------------------------------------------------------------- the kinds of windows */

static int all_of_one_node(void)
{
    MPI_Comm node;
    int n;

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &n);
    MPI_Comm_free(&node);
    return n == run.ranks;
}

static void share_bases(void)
{
    MPI_Aint mine;

    MPI_Get_address(run.memory, &mine);
    MPI_Allgather(&mine, 1, MPI_AINT, run.bases, 1, MPI_AINT, MPI_COMM_WORLD);
}

/* 0: not here. */
static int window_make(const char *kind)
{
    MPI_Aint size = (MPI_Aint)window_size();

    memset(run.bases, 0, (size_t)run.ranks * sizeof *run.bases);
    if (strcmp(kind, "allocate") == 0) {
        MPI_Win_allocate(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &run.memory, &run.win);
    } else if (strcmp(kind, "shared") == 0) {
        if (!all_of_one_node())
            return 0;
        MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &run.memory, &run.win);
    } else {
        if (strcmp(kind, "alloc_mem") == 0)
            MPI_Alloc_mem(size, MPI_INFO_NULL, &run.memory);
        else
            run.memory = malloc((size_t)size);
        if (strcmp(kind, "dynamic") == 0) {
            MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &run.win);
            MPI_Win_attach(run.win, run.memory, size);
            share_bases();
        } else {
            MPI_Win_create(run.memory, size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &run.win);
        }
    }
    memset(run.memory, 0, (size_t)size);
    for (int i = 0; i < run.ranks; i++)
        run.last_ticket[i] = -1;
    return 1;
}

static void window_free(const char *kind)
{
    if (strcmp(kind, "dynamic") == 0)
        MPI_Win_detach(run.win, run.memory);
    MPI_Win_free(&run.win);
    if (strcmp(kind, "alloc_mem") == 0)
        MPI_Free_mem(run.memory);
    else if (strcmp(kind, "create") == 0 || strcmp(kind, "dynamic") == 0)
        free(run.memory);
}

static void test_kind(const char *kind)
{
    long done;

    if (!window_make(kind)) {
        if (run.rank == 0)
            printf("windows: %-9s not between nodes\n", kind);
        return;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    done = rounds();
    check_board(done);
    MPI_Barrier(MPI_COMM_WORLD);
    window_free(kind);
    if (run.rank == 0)
        printf("windows: %-9s %ld rounds\n", kind, done);
    fflush(stdout);
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--kinds") == 0)
            run.kinds = value;
        else if (strcmp(argv[i], "--seconds") == 0)
            run.seconds = atof(value);
        else if (strcmp(argv[i], "--iterations") == 0)
            run.iterations = atol(value);
        else if (strcmp(argv[i], "--max-size") == 0)
            run.max_size = (strtoul(value, NULL, 0) + 7) / 8 * 8;
        else if (strcmp(argv[i], "--seed") == 0)
            run.seed = strtoull(value, NULL, 0);
        else {
            fprintf(stderr, "windows: '%s': what is that? see the top of windows.c\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
}

int main(int argc, char **argv)
{
    char *kinds, *rest = NULL;
    uint64_t operations;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    parse(argc, argv);
    run.dice = run.seed * 1000 + (uint64_t)run.rank;
    run.bases = calloc((size_t)run.ranks, sizeof *run.bases);
    run.last_ticket = calloc((size_t)run.ranks, sizeof *run.last_ticket);
    run.bytes = malloc(run.max_size + 8);
    run.back = malloc(run.max_size + 8);
    kinds = strdup(run.kinds);
    for (char *kind = strtok_r(kinds, ",", &rest); kind; kind = strtok_r(NULL, ",", &rest))
        test_kind(kind);
    MPI_Reduce(&run.operations, &operations, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (run.rank == 0)
        printf("windows: ok: %d ranks, seed %" PRIu64 ", %" PRIu64 " operations\n", run.ranks, run.seed, operations);
    free(kinds);
    free(run.back);
    free(run.bytes);
    free(run.last_ticket);
    free(run.bases);
    MPI_Finalize();
    return 0;
}
