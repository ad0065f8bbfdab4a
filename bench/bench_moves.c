/*
 * What a live migration costs a job, without the migration: two processes, each a guest of its own by
 * name, on two files that stand for two hosts' regions (tests/migrate/guest.h).  One of them moves to
 * the other host and back again and again; between two moves everything is left alone for as long.
 *
 *     answers-MODE  from the order to leave until the guest has left the region.  MODE is what both
 *                   do meanwhile: communicating (a ping-pong of 8 bytes), idle (they sleep in the
 *                   library) or computing (they do not call it)
 *     arrival       from the device that is there until the first message through memory
 *     pause         the longest round trip of the ping-pong in the time of a move, each way
 *     still         ... in a time as long in which nothing moves
 *     before        the usual round trip through memory in such a time, before the first move
 *     after         ... after a return: what it had cost before, if nothing of the move is left
 *
 * The last five are of communicating processes.
 */
#include "sample.h"

#include "base/error.h"
#include "base/util.h"
#include "check.h"
#include "endpoint/endpoint.h"
#include "migrate/guest.h"

#include <getopt.h>

enum { REGION_SIZE = 64 << 20, WINDOW_MS = 250, PATIENCE_MS = 10000, ROUNDS_KEPT = 4096 };

enum mode { COMMUNICATING, IDLE, COMPUTING, MODES };

static const char *const mode_names[] = {
    [COMMUNICATING] = "communicating", [IDLE] = "idle", [COMPUTING] = "computing",
};

struct options {
    const char *tests;
    int cpus[2];
    unsigned moves, interval_us;
};

/* What the processes share; every word has one writer. */
struct board {
    struct ivc_address address[2];
    ivc_atomic_u32 ready[2];        /* 1: the address is valid; 2: it has exchanged a message */
    ivc_atomic_u32 end;             /* the controller's, as `window` */
    ivc_atomic_u32 window;          /* counts up: from now on times are taken afresh */
    ivc_atomic_u32 measured;        /* process 0's, as the others: the window of `longest_ns` */
    ivc_atomic_u64 longest_ns;      /* round trip in that window */
    ivc_atomic_u64 by_memory_ns;    /* when the last round trip through memory had ended */
    ivc_atomic_u64 rounds;
    ivc_atomic_u32 took_ns[ROUNDS_KEPT];    /* of the last ones, by number */
};

struct process {
    struct board *board;
    enum mode mode;
    unsigned interval_us;       /* between two rounds */
    uint32_t own;
    int cpu;
    char vm[32], link[96];

    struct ivc_endpoint *endpoint;
    struct ivc_peer *peer;
    uint64_t packets;
};

struct bench {
    struct options options;
    struct board *board;
    struct host hosts[2];
    struct guest guests[2];
    pid_t pids[2];
    struct bench_series answers, arrival, pause, still, before, after;
};

/* ---- the two processes */

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct process *process = arg;

    (void)packet;
    process->peer = peer;
    process->packets++;
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct process *process = arg;

    (void)peer;
    CHECK_THAT(ivc_load_acquire(&process->board->end), "process %u: the other is gone: %s",
               process->own, reason ? reason : "it left");
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

static bool is_over(const struct process *process)
{
    return ivc_load_acquire(&process->board->end) != 0;
}

static void put(struct process *process)
{
    uint64_t number = process->packets;
    struct iovec iov = { &number, sizeof number };
    int r;

    while ((r = ivc_endpoint_send(process->endpoint, process->peer, 1, &iov, 1)) == IVC_E_FULL
           && !is_over(process))
        ivc_endpoint_progress(process->endpoint);
    CHECK_THAT(r == 0 || is_over(process), "send: %d, %s", r, ivc_error_text());
}

static void get(struct process *process)
{
    uint64_t before = process->packets;

    while (process->packets == before && !is_over(process))
        ivc_endpoint_progress(process->endpoint);
}

static void note_round(struct process *process, uint64_t started_ns)
{
    struct board *board = process->board;
    uint64_t now = ivc_now_ns(), window = ivc_load_relaxed(&board->window), number;

    if (window != ivc_load_relaxed(&board->measured)) {
        /* A round that began before the window is not of it. */
        ivc_store_relaxed(&board->longest_ns, 0);
        ivc_store_relaxed(&board->measured, (uint32_t)window);
    } else if (now - started_ns > ivc_load_relaxed(&board->longest_ns)) {
        ivc_store_relaxed(&board->longest_ns, now - started_ns);
    }
    if (ivc_peer_path(process->peer) == IVC_PATH_MEMORY)
        ivc_store_relaxed(&board->by_memory_ns, now);
    number = ivc_load_relaxed(&board->rounds);
    ivc_store_relaxed(&board->took_ns[number % ROUNDS_KEPT], (uint32_t)IVC_MIN(now - started_ns, UINT32_MAX));
    ivc_store_relaxed(&board->rounds, number + 1);
}

static void play(struct process *process)
{
    uint64_t started_ns = ivc_now_ns();

    if (process->own == 0) {
        put(process);
        get(process);
        note_round(process, started_ns);
        if (process->interval_us > 0)
            usleep(process->interval_us);
    } else {
        get(process);
        put(process);
    }
}

static void compute(const struct process *process)
{
    uint64_t sum = 1;

    while (!is_over(process))
        for (unsigned i = 0; i < 20000; i++)
            (void)check_random(&sum);
}

static void rest(const struct process *process)
{
    while (!is_over(process)) {
        (void)ivc_endpoint_wait(process->endpoint, 100, false);
        ivc_endpoint_progress(process->endpoint);
    }
}

static int live(void *arg)
{
    struct process *process = arg;
    struct board *board = process->board;
    struct ivc_endpoint_options options = {
        .magic_id = 1, .client_id = process->own, .network = true, .on_packet = on_packet,
        .on_gone = on_gone, .on_arrival = on_arrival, .arg = process,
    };

    setenv("IVC_VM", process->vm, 1);
    setenv("IVC_REGION", process->link, 1);
    setenv("FI_TCP_IFACE", "lo", 0);
    (void)bench_pin(process->cpu);
    CHECK_THAT(ivc_endpoint_open(&options, &process->endpoint) == 0, "%s", ivc_error_text());
    ivc_endpoint_address(process->endpoint, &board->address[process->own]);
    /* Release: pairs with the acquire below, the address is visible. */
    ivc_store_release(&board->ready[process->own], 1);
    while (ivc_load_acquire(&board->ready[1 - process->own]) == 0)
        ivc_sleep_ms(1);
    CHECK_THAT(ivc_endpoint_connect(process->endpoint, &board->address[1 - process->own],
                                    &process->peer) == 0, "%s", ivc_error_text());
    play(process);
    ivc_store_release(&board->ready[process->own], 2);
    while (process->mode == COMMUNICATING && !is_over(process))
        play(process);
    if (process->mode == IDLE)
        rest(process);
    if (process->mode == COMPUTING)
        compute(process);
    ivc_endpoint_free(process->endpoint);
    return 0;
}

/* ---- the controller */

static void watch(const struct bench *bench)
{
    int status;

    for (unsigned i = 0; i < 2; i++)
        if (bench->pids[i] && waitpid(bench->pids[i], &status, WNOHANG) > 0)
            check_fail(__FILE__, __LINE__, "process %u has ended early: status %x", i,
                       (unsigned)status);
}

static void step(struct bench *bench)
{
    guest_beat(&bench->guests[1]);
    watch(bench);
    ivc_sleep_ms(1);
}

static void rest_until(struct bench *bench, uint64_t end_ms)
{
    while (ivc_now_ms() < end_ms)
        step(bench);
}

static void begin_window(struct bench *bench)
{
    uint32_t window = ivc_load_relaxed(&bench->board->window) + 1;
    uint64_t end = ivc_now_ms() + PATIENCE_MS;

    ivc_store_relaxed(&bench->board->window, window);
    while (ivc_load_relaxed(&bench->board->measured) != window) {
        CHECK_THAT(ivc_now_ms() < end, "the ping-pong stands still");
        step(bench);
    }
}

/* The longest round trip, once the one that may be under way has ended. */
static double end_window(struct bench *bench)
{
    uint64_t rounds = ivc_load_relaxed(&bench->board->rounds), end = ivc_now_ms() + PATIENCE_MS;

    while (ivc_load_relaxed(&bench->board->rounds) < rounds + 2) {
        CHECK_THAT(ivc_now_ms() < end, "the ping-pong stands still");
        step(bench);
    }
    return (double)ivc_load_relaxed(&bench->board->longest_ns) / 1000;
}

static void await_members(struct bench *bench, const struct host *host, unsigned n)
{
    uint64_t end = ivc_now_ms() + PATIENCE_MS;

    while (guest_members(&bench->guests[1], host) != n) {
        CHECK_THAT(ivc_now_ms() < end, "the guest has not %s %s after %d ms",
                   n ? "joined" : "left", host->path, PATIENCE_MS);
        step(bench);
    }
}

static void await_memory(struct bench *bench, uint64_t since_ns)
{
    uint64_t end = ivc_now_ms() + PATIENCE_MS;

    while (ivc_load_relaxed(&bench->board->by_memory_ns) <= since_ns) {
        CHECK_THAT(ivc_now_ms() < end, "no message through memory after %d ms", PATIENCE_MS);
        step(bench);
    }
}

static void leave(struct bench *bench, struct host *to)
{
    struct guest *guest = &bench->guests[1];
    int r = guest_order(guest);

    CHECK_THAT(r == 0, "order: %d, %s", r, ivc_error_text());
    await_members(bench, guest->host, 0);
    /* On the other host it is alone: there is no pair to close. */
    if (guest->host == &bench->hosts[0])
        bench_series_add(&bench->answers, (double)(ivc_now_ns() - guest->ordered_ns) / 1000);
    guest_place(guest, to);
    guest_withdraw(guest);
}

static void move(struct bench *bench, enum mode mode, unsigned to)
{
    uint64_t end = ivc_now_ms() + WINDOW_MS, placed_ns;

    if (mode == COMMUNICATING)
        begin_window(bench);
    leave(bench, &bench->hosts[to]);
    placed_ns = ivc_now_ns();
    await_members(bench, &bench->hosts[to], 1);
    if (mode == COMMUNICATING && to == 0) {
        await_memory(bench, placed_ns);
        bench_series_add(&bench->arrival, (double)(ivc_load_relaxed(&bench->board->by_memory_ns)
                                                   - placed_ns) / 1000);
    }
    rest_until(bench, end);
    if (mode == COMMUNICATING)
        bench_series_add(&bench->pause, end_window(bench));
}

/* The median of the last rounds, of so many at most. (One that is just being written may be missed.) */
static double median_round_us(const struct bench *bench, uint64_t most)
{
    struct bench_series rounds;
    double us;

    CHECK(bench_series_open(&rounds, ROUNDS_KEPT) == 0);
    for (uint64_t i = 0, last = ivc_load_relaxed(&bench->board->rounds); i < IVC_MIN(most, ROUNDS_KEPT); i++)
        bench_series_add(&rounds, (double)ivc_load_relaxed(&bench->board->took_ns[(last - 1 - i) % ROUNDS_KEPT]) / 1000);
    us = bench_series_median(&rounds);
    bench_series_free(&rounds);
    return us;
}

/* `usual` gets the median of the round trips; NULL: it is of no interest. */
static void keep_still(struct bench *bench, enum mode mode, struct bench_series *usual)
{
    uint64_t rounds;

    if (mode != COMMUNICATING) {
        rest_until(bench, ivc_now_ms() + 20);
        return;
    }
    begin_window(bench);
    rounds = ivc_load_relaxed(&bench->board->rounds);
    rest_until(bench, ivc_now_ms() + WINDOW_MS);
    bench_series_add(&bench->still, end_window(bench));
    if (usual)
        bench_series_add(usual, median_round_us(bench, ivc_load_relaxed(&bench->board->rounds) - rounds));
}

static void start(struct bench *bench, enum mode mode)
{
    static struct process processes[2];

    *bench->board = (struct board){ 0 };
    for (uint32_t i = 0; i < 2; i++) {
        struct process *process = &processes[i];

        *process = (struct process){ .board = bench->board, .mode = mode, .own = i,
                                     .cpu = bench->options.cpus[i], .interval_us = bench->options.interval_us };
        snprintf(process->vm, sizeof process->vm, "bench-moves-%u", i);
        snprintf(process->link, sizeof process->link, "%s-%u", check_scratch, 2 + i);
        guest_init(&bench->guests[i], process->vm, process->link);
        guest_place(&bench->guests[i], &bench->hosts[0]);
        bench->pids[i] = check_fork(live, process);
    }
    for (unsigned i = 0; i < 2; i++)
        while (ivc_load_acquire(&bench->board->ready[i]) < 2)
            step(bench);
}

static void stop(struct bench *bench)
{
    ivc_store_release(&bench->board->end, 1);
    for (unsigned i = 0; i < 2; i++) {
        check_join(bench->pids[i]);
        bench->pids[i] = 0;
    }
}

static void print(const char *test, struct bench_series *series)
{
    struct bench_result result = {
        .program = "bench_moves", .test = test, .ranks = 2, .batch = series->n,
    };

    for (size_t i = 0; i < series->n; i++)
        result.mean_us += series->us[i] / (double)series->n;
    bench_result_print(&result, series);
}

static bool is_wanted(const struct bench *bench, enum mode mode)
{
    static const char *const of_communicating[] = { "arrival", "pause", "still", "before", "after" };
    char test[32];
    bool wanted;

    snprintf(test, sizeof test, "answers-%s", mode_names[mode]);
    wanted = bench_list_has(bench->options.tests, test);
    for (size_t i = 0; mode == COMMUNICATING && i < sizeof of_communicating / sizeof *of_communicating; i++)
        wanted |= bench_list_has(bench->options.tests, of_communicating[i]);
    return wanted;
}

static void run_mode(struct bench *bench, enum mode mode)
{
    char test[32];

    if (!is_wanted(bench, mode))
        return;
    bench->answers.n = 0;
    start(bench, mode);
    for (unsigned i = 0; i < bench->options.moves && bench_list_has(bench->options.tests, "before"); i++)
        keep_still(bench, mode, &bench->before);
    for (unsigned i = 0; i < bench->options.moves; i++) {
        move(bench, mode, 1);
        keep_still(bench, mode, NULL);
        move(bench, mode, 0);
        keep_still(bench, mode, &bench->after);
    }
    stop(bench);
    snprintf(test, sizeof test, "answers-%s", mode_names[mode]);
    print(test, &bench->answers);
}

static int usage(FILE *out)
{
    fprintf(out, "usage: bench_moves [--test LIST] [--moves N] [--interval US] [--cpus A,B]\n"
                 "LIST: answers-communicating, answers-idle, answers-computing, arrival, pause, "
                 "still, before, after.\nN: how often the guest moves away and back.  US: between two round "
                 "trips.  Lines of JSON; microseconds.\n");
    return out == stdout ? 0 : 2;
}

static bool parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        { "test", required_argument, NULL, 't' }, { "moves", required_argument, NULL, 'm' },
        { "cpus", required_argument, NULL, 'c' }, { "interval", required_argument, NULL, 'i' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    int option;

    while ((option = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (option) {
        case 't':
            options->tests = optarg;
            break;
        case 'm':
            options->moves = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'i':
            options->interval_us = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'c':
            if (bench_parse_cpus(optarg, options->cpus) < 0)
                return false;
            break;
        case 'h':
            exit(usage(stdout));
        default:
            return false;
        }
    }
    return optind == argc && options->moves > 0;
}

static void open_series(struct bench *bench)
{
    struct bench_series *series[] = { &bench->answers, &bench->arrival, &bench->pause,
                                      &bench->still, &bench->before, &bench->after };

    for (size_t i = 0; i < sizeof series / sizeof *series; i++)
        CHECK(bench_series_open(series[i], 3 * bench->options.moves) == 0);
}

static void run(struct bench *bench)
{
    open_series(bench);
    bench->board = mmap(NULL, sizeof *bench->board, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(bench->board != MAP_FAILED);
    for (unsigned i = 0; i < 2; i++)
        CHECK_THAT(host_open(&bench->hosts[i], check_file(i, REGION_SIZE)) == 0, "%s",
                   ivc_error_text());
    for (enum mode mode = 0; mode < MODES; mode++)
        run_mode(bench, mode);
    if (bench_list_has(bench->options.tests, "arrival"))
        print("arrival", &bench->arrival);
    if (bench_list_has(bench->options.tests, "pause"))
        print("pause", &bench->pause);
    if (bench_list_has(bench->options.tests, "still"))
        print("still", &bench->still);
    if (bench_list_has(bench->options.tests, "before"))
        print("before", &bench->before);
    if (bench_list_has(bench->options.tests, "after"))
        print("after", &bench->after);
}

static volatile pid_t child;

static void end_child(int number)
{
    (void)number;
    kill(child, SIGKILL);       /* and those that it has started: check_fork() */
}

/* In a process of its own, so that the files go whatever ends it. */
int main(int argc, char **argv)
{
    static struct bench bench = {
        .options = { .cpus = { -1, -1 }, .moves = 50,
                     .tests = "answers-communicating,answers-idle,answers-computing,arrival,pause,"
                              "still" },
    };
    int status;

    if (!parse(argc, argv, &bench.options))
        return usage(stderr);
    bench_clock_open();
    snprintf(check_scratch, sizeof check_scratch, "/dev/shm/ivc-bench-%d", (int)getpid());
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(&bench);
        return 0;
    }
    signal(SIGINT, end_child);
    signal(SIGTERM, end_child);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    check_remove_files();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
