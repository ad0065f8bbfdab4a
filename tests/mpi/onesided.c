/*
 * onesided: whether one-sided operations need their target's help, and whether they are right.
 *
 *   onesided [--stop] [--cold] [--create] [--ivc LIBRARY] [--same-op]
 *            [--expect direct|progress] [--seconds N]
 *
 * For each kind of operation rank 0 stays away from MPI for a second while all others work on its
 * window.  What ends meanwhile was done directly; what waits for rank 0 to come back was done by its
 * progress.  Either way every byte and every sum must be right in the end; it counts as direct when
 * all was there before rank 0 called MPI again.
 *
 * Away means: in a loop that computes; with --stop, stopped by a signal, threads and all (one host
 * only).  Each kind is done once before, so that whoever has to ask where the window lies has asked;
 * --cold leaves that out.  --create: a window over memory from malloc(), which no region has.
 * --ivc: over memory that ivc_alloc() of that libivc.so gives.  --same-op promises the MPI that no
 * two kinds of accumulation meet at one place, which is so.
 */
#include "pattern.h"

#include <dlfcn.h>
#include <mpi.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 100, PLACE = 40000, SUMS = 8, LOOK_MS = 20 };

/* A rank's window: counters, sums, and a place for each rank's bytes. */
struct board {
    int64_t tickets, swapped;
    int64_t sums[SUMS];
    double floats[SUMS];
};

static struct {
    int rank, ranks;
    MPI_Comm others;            /* all but rank 0 */
    MPI_Win win;
    void *memory, *seen;        /* of rank 0: as it was before it called MPI again */
    size_t size;
    struct board *board;        /* in one of the two: see look_at() */
    unsigned char *places;
    double seconds;
    int stop, cold, create, same_op;
    const char *expect, *ivc;
    int quiet;                  /* what is wrong is counted, and not the end */
    int wrong;
    unsigned round;             /* of the warm-up 0, of the test 1 */
    int64_t fetched[ROUNDS];
} run = { .seconds = 1 };

static void fail(const char *what, int who, long long found, long long wanted)
{
    run.wrong++;
    if (run.quiet)
        return;
    fprintf(stderr, "onesided: rank %d: %s of rank %d: %lld, should be %lld\n", run.rank, what, who,
            found, wanted);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static struct pattern pattern_of(int src, int dst, unsigned round)
{
    return (struct pattern){ 11, src, dst, round };
}

static MPI_Aint place_of(int rank)
{
    return (MPI_Aint)sizeof(struct board) + (MPI_Aint)PLACE * rank;
}

/* ---------------------------------------------------------------- the kinds of operations */

/* Pieces of growing length, to the end of the place. */
static void put(unsigned rounds)
{
    static unsigned char bytes[PLACE];
    struct pattern p = pattern_of(run.rank, 0, run.round);
    size_t at = 0;

    pattern_fill(&p, bytes, PLACE);
    for (unsigned i = 1; i <= rounds && at < PLACE; i++) {
        size_t size = i == rounds ? PLACE - at : i * 7 % 900 + 1;

        size = size < PLACE - at ? size : PLACE - at;
        MPI_Put(bytes + at, (int)size, MPI_BYTE, 0, place_of(run.rank) + (MPI_Aint)at, (int)size,
                MPI_BYTE, run.win);
        at += size;
    }
}

static void put_check(void)
{
    for (int src = 1; run.rank == 0 && src < run.ranks; src++) {
        struct pattern p = pattern_of(src, 0, run.round);
        size_t wrong = pattern_check(&p, run.places + (size_t)PLACE * (size_t)src, PLACE);

        if (wrong < PLACE)
            fail("first wrong byte of a put", src, (long long)wrong, PLACE);
    }
}

/* Rank 0's own place, again and again. */
static unsigned char got[PLACE];

static void get(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        memset(got, 0, sizeof got);
        MPI_Get(got, PLACE, MPI_BYTE, 0, place_of(0), PLACE, MPI_BYTE, run.win);
        MPI_Win_flush(0, run.win);
    }
}

static void get_check(void)
{
    struct pattern p = pattern_of(0, 0, 0);
    size_t wrong = run.rank ? pattern_check(&p, got, PLACE) : PLACE;

    if (wrong < PLACE)
        fail("first wrong byte of a get", 0, (long long)wrong, PLACE);
}

/* Everybody draws tickets: no two the same. */
static void fetch_and_op(unsigned rounds)
{
    const int64_t one = 1;

    for (unsigned i = 0; i < rounds; i++) {
        MPI_Fetch_and_op(&one, &run.fetched[i], MPI_INT64_T, 0, offsetof(struct board, tickets),
                         MPI_SUM, run.win);
        MPI_Win_flush(0, run.win);
    }
}

static void fetch_check(void)
{
    int64_t drawn = ROUNDS * (run.ranks - 1) + (run.cold ? 0 : run.ranks - 1);

    if (run.rank == 0 && run.board->tickets != drawn)
        fail("tickets", 0, run.board->tickets, drawn);
    for (unsigned i = 1; run.rank && i < ROUNDS; i++)
        if (run.fetched[i] <= run.fetched[i - 1] || run.fetched[i] >= drawn)
            fail("a ticket", 0, run.fetched[i], run.fetched[i - 1] + 1);
}

/* Everybody counts up by compare-and-swap, as often as it takes. */
static void compare_and_swap(unsigned rounds)
{
    int64_t seen = 0;

    for (unsigned i = 0; i < rounds; i++) {
        int64_t before, next;

        do {
            before = seen;
            next = before + 1;
            MPI_Compare_and_swap(&next, &before, &seen, MPI_INT64_T, 0,
                                 offsetof(struct board, swapped), run.win);
            MPI_Win_flush(0, run.win);
        } while (seen != before);
        seen = next;
    }
}

static void swap_check(void)
{
    int64_t swapped = ROUNDS * (run.ranks - 1) + (run.cold ? 0 : run.ranks - 1);

    if (run.rank == 0 && run.board->swapped != swapped)
        fail("swaps", 0, run.board->swapped, swapped);
}

static void accumulate(unsigned rounds)
{
    int64_t addends[SUMS];

    for (int i = 0; i < SUMS; i++)
        addends[i] = run.rank + i;
    for (unsigned i = 0; i < rounds; i++) {
        MPI_Accumulate(addends, SUMS, MPI_INT64_T, 0, offsetof(struct board, sums), SUMS,
                       MPI_INT64_T, MPI_SUM, run.win);
        MPI_Win_flush(0, run.win);
    }
}

static void accumulate_doubles(unsigned rounds)
{
    double addends[SUMS];

    for (int i = 0; i < SUMS; i++)
        addends[i] = run.rank + i;
    for (unsigned i = 0; i < rounds; i++) {
        MPI_Accumulate(addends, SUMS, MPI_DOUBLE, 0, offsetof(struct board, floats), SUMS, MPI_DOUBLE,
                       MPI_SUM, run.win);
        MPI_Win_flush(0, run.win);
    }
}

/* Whole numbers, and small: exact as doubles. */
static int64_t sum_wanted(int i)
{
    int64_t sum = 0;

    for (int rank = 1; rank < run.ranks; rank++)
        sum += (ROUNDS + !run.cold) * (int64_t)(rank + i);
    return sum;
}

static void accumulate_check(void)
{
    for (int i = 0; run.rank == 0 && i < SUMS; i++)
        if (run.board->sums[i] != sum_wanted(i))
            fail("a sum", 0, run.board->sums[i], sum_wanted(i));
}

static void doubles_check(void)
{
    for (int i = 0; run.rank == 0 && i < SUMS; i++)
        if ((int64_t)run.board->floats[i] != sum_wanted(i))
            fail("a sum of doubles", 0, (int64_t)run.board->floats[i], sum_wanted(i));
}

static const struct kind {
    const char *name;
    void (*work)(unsigned rounds);
    void (*check)(void);
} kinds[] = {
    { "put", put, put_check },
    { "get", get, get_check },
    { "fetch_and_op", fetch_and_op, fetch_check },
    { "compare_and_swap", compare_and_swap, swap_check },
    { "accumulate", accumulate, accumulate_check },
    { "accumulate doubles", accumulate_doubles, doubles_check },
};

/* ---------------------------------------------------------------- rank 0 stays away */

static volatile sig_atomic_t late;
static pid_t target;

static void wake_target(int number)
{
    late = number != 0;
    kill(target, SIGCONT);
}

static char state_of(pid_t pid)
{
    char path[32], line[512] = "", *end;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file)) {
        fprintf(stderr, "onesided: no process %d here: --stop is for ranks of one host\n", (int)pid);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fclose(file);
    end = strrchr(line, ')');
    return end ? end[2] : '?';
}

static void stay_away(void)
{
    double end = MPI_Wtime() + run.seconds;

    if (run.stop)
        raise(SIGSTOP);
    while (!run.stop && MPI_Wtime() < end)
        for (volatile int i = 0; i < 10000; i++)
            ;
    memcpy(run.seen, run.memory, run.size);
}

static void look_at(void *memory)
{
    run.board = memory;
    run.places = (unsigned char *)memory + sizeof(struct board);
}

/* Before the first operation: rank 0 is out of MPI for certain. */
static void wait_until_away(void)
{
    usleep(LOOK_MS * 1000);
    while (run.stop && run.rank == 1 && state_of(target) != 'T')
        usleep(LOOK_MS * 1000);
    MPI_Barrier(run.others);
}

static double work(const struct kind *kind)
{
    double start, took;

    wait_until_away();
    if (run.stop && run.rank == 1)
        alarm((unsigned)(run.seconds + 1));
    start = MPI_Wtime();
    kind->work(ROUNDS);
    MPI_Win_flush(0, run.win);
    took = MPI_Wtime() - start;
    MPI_Barrier(run.others);
    if (run.stop && run.rank == 1) {
        alarm(0);
        wake_target(0);
    }
    return took;
}

/* The initiators were quick, and all was there when rank 0 came back.  (On a busy machine they may
 * have begun late: then what rank 0 has seen tells.) */
static int was_direct(const struct kind *kind, double worst)
{
    int direct = worst < run.seconds / 2;

    if (run.rank == 0) {
        run.quiet = 1;
        run.wrong = 0;
        look_at(run.seen);
        kind->check();
        look_at(run.memory);
        run.quiet = 0;
        direct = direct && run.wrong == 0;
    }
    MPI_Bcast(&direct, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return direct;
}

static int test_kind(const struct kind *kind)
{
    double mine = 0, worst;
    int direct;

    late = 0;
    run.round = 0;
    if (run.rank && !run.cold) {
        kind->work(1);
        MPI_Win_flush(0, run.win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    run.round = 1;
    if (run.rank)
        mine = work(kind);
    else
        stay_away();
    if (late)
        mine = run.seconds + 1;
    MPI_Allreduce(&mine, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Win_sync(run.win);
    direct = was_direct(kind, worst);
    kind->check();
    if (run.rank == 0)
        printf("onesided: %-18s %s, %.6f s\n", kind->name, direct ? "direct" : "progress", worst);
    MPI_Barrier(MPI_COMM_WORLD);
    return !run.expect || (strcmp(run.expect, "direct") == 0) == direct;
}

/* ---------------------------------------------------------------- all of it */

/* As a program that is linked with libivc would. */
static void *alloc_by_ivc(size_t size)
{
    int (*enter)(uint64_t group, uint32_t name, void **ret_context);
    int (*alloc)(void *context, size_t size, void **ret_memory);
    void *library = dlopen(run.ivc, RTLD_NOW), *context, *memory = NULL;

    if (!library) {
        fprintf(stderr, "onesided: %s\n", dlerror());
        return NULL;
    }
    *(void **)&enter = dlsym(library, "ivc_register");
    *(void **)&alloc = dlsym(library, "ivc_alloc");
    if (enter(12, (uint32_t)run.rank, &context) < 0 || alloc(context, size, &memory) < 0)
        fprintf(stderr, "onesided: rank %d has no memory from %s\n", run.rank, run.ivc);
    return memory;
}

static void window_make(void)
{
    struct pattern p = pattern_of(0, 0, 0);
    MPI_Info info;

    MPI_Info_create(&info);
    if (run.same_op)
        MPI_Info_set(info, "accumulate_ops", "same_op");
    run.size = (size_t)place_of(run.ranks);
    run.seen = malloc(run.size);
    if (run.create || run.ivc) {
        run.memory = run.ivc ? alloc_by_ivc(run.size) : malloc(run.size);
        MPI_Win_create(run.memory, (MPI_Aint)run.size, 1, info, MPI_COMM_WORLD, &run.win);
    } else {
        MPI_Win_allocate((MPI_Aint)run.size, 1, info, MPI_COMM_WORLD, &run.memory, &run.win);
    }
    MPI_Info_free(&info);
    if (!run.memory || !run.seen)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(run.memory, 0, run.size);
    look_at(run.memory);
    pattern_fill(&p, (unsigned char *)run.memory + place_of(0), PLACE);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--stop") == 0)
            run.stop = 1;
        else if (strcmp(argv[i], "--cold") == 0)
            run.cold = 1;
        else if (strcmp(argv[i], "--create") == 0)
            run.create = 1;
        else if (strcmp(argv[i], "--same-op") == 0)
            run.same_op = 1;
        else if (strcmp(argv[i], "--expect") == 0 && i + 1 < argc)
            run.expect = argv[++i];
        else if (strcmp(argv[i], "--ivc") == 0 && i + 1 < argc)
            run.ivc = argv[++i];
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            run.seconds = atof(argv[++i]);
        else {
            fprintf(stderr, "onesided: '%s': what is that? see the top of onesided.c\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
}

static void share_target(void)
{
    int pid = (int)getpid();

    MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
    target = (pid_t)pid;
    signal(SIGALRM, wake_target);
}

int main(int argc, char **argv)
{
    int good = 1;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    parse(argc, argv);
    if (run.ranks < 2) {
        fprintf(stderr, "onesided: takes two ranks or more\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Comm_split(MPI_COMM_WORLD, run.rank > 0, 0, &run.others);
    share_target();
    window_make();
    MPI_Win_lock_all(0, run.win);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        good &= test_kind(&kinds[i]);
    MPI_Win_unlock_all(run.win);
    MPI_Win_free(&run.win);
    if (run.create)
        free(run.memory);
    free(run.seen);
    MPI_Comm_free(&run.others);
    if (run.rank == 0)
        printf("onesided: %s\n", good ? "ok" : "not as expected");
    MPI_Finalize();
    return !good;
}
