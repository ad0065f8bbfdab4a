/* A run: starting ranks, waiting for them, comparing what was sent with what came.  See run.h. */
#include "run-internal.h"

#include "check.h"
#include "fake_grants.h"

#include "base/error.h"
#include "base/util.h"

#include <sys/syscall.h>

enum {
    START_MS = 30000,
    PATIENCE_MS = 30000,
    LATE_MS = 200,              /* for what comes twice */
    CASE_MS = 100000,           /* of a case that is no long run, on a machine of its own */
};

uint64_t run_limit(unsigned ms)
{
    return (uint64_t)ms * check_slowdown();
}

/* ---- the ranks */

void run_prepare(struct run *run, const struct run_options *options, const char *const *paths,
                 unsigned n_hosts)
{
    char link[96], vm[32];

    *run = (struct run){ .options = *options, .n_hosts = n_hosts, .started_ms = ivc_now_ms(),
                         .random = options->seed * 11 + 7 };
    run->board = mmap(NULL, sizeof *run->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
    CHECK(run->board != MAP_FAILED);
    CHECK(options->ranks >= 2 && options->ranks <= BOARD_RANKS_MAX);
    CHECK(options->guests >= 1 && options->guests <= RUN_GUESTS_MAX);
    run->board->seed = options->seed;
    run->board->magic_id = options->seed ^ 0x6d69677261746521ull;
    run->board->n_ranks = options->ranks;
    run->board->longest = options->longest ? options->longest : 8 << 20;
    run->board->compute_ms = options->compute_ms ? options->compute_ms : 1500;
    run->board->grants = options->grants;
    run->board->ends_allowed = options->ends_allowed;
    run->board->lends = options->lends;
    run->board->lent_messages = options->lent_messages;
    run->options.timeout_ms = options->timeout_ms ? options->timeout_ms : 5000;
    run->options.patience_ms = options->patience_ms ? options->patience_ms : PATIENCE_MS;
    for (unsigned i = 0; i < n_hosts; i++)
        if (options->grants)
            host_open_grants(&run->hosts[i], paths[i]);
        else
            CHECK_THAT(host_open(&run->hosts[i], paths[i]) == 0, "%s", ivc_error_text());
    for (unsigned i = 0; i < options->guests; i++) {
        /* The last but one of the names that the case removes: "...-3" and so on. */
        snprintf(link, sizeof link, "%.*s%u", (int)strlen(paths[0]) - 1, paths[0], 3 + i);
        snprintf(vm, sizeof vm, "guest-%u", i);
        guest_init(&run->guests[i].guest, vm, link);
        guest_place(&run->guests[i].guest, &run->hosts[0]);
    }
    for (uint32_t i = 0; i < options->ranks; i++) {
        struct board_rank *rank = &run->board->ranks[i];
        const struct guest *guest = &run->guests[i % options->guests].guest;

        rank->guest = i % options->guests;
        rank->mode = options->mode;
        rank->threads = i % 3 == 2;
        snprintf(rank->vm, sizeof rank->vm, "%s", guest->vm);
        snprintf(rank->link, sizeof rank->link, "%s", guest->link);
    }
}

/* As check_fork(), but the process is the first of a process id namespace. */
static pid_t fork_apart(struct rank_task *task)
{
    pid_t pid;

    fflush(NULL);
    pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        check_skip("a process id namespace cannot be made (needs root): %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        exit(rank_run(task));
    }
    return pid;
}

void run_start_rank(struct run *run, uint32_t rank)
{
    struct rank_task task = { run->board, rank };

    run->board->ranks[rank].pid = run->options.kernels ? fork_apart(&task)
        : check_fork(rank_run, &task);
}

enum rank_state run_state_of(const struct run *run, uint32_t rank)
{
    /* Acquire: pairs with the release in set_state(); what the state promises is visible. */
    return (enum rank_state)ivc_load_acquire(&run->board->ranks[rank].state);
}

bool run_is_alive(const struct run *run, uint32_t rank)
{
    return run->board->ranks[rank].pid != 0 && !run->dead[rank];
}

void run_await_ranks(struct run *run)
{
    uint64_t end = run_ms(run) + run_limit(START_MS);

    for (uint32_t i = 0; i < run->options.ranks; i++)
        while (run_is_alive(run, i) && run_state_of(run, i) < RANK_RUNNING) {
            CHECK_THAT(run_ms(run) < end, "rank %u did not start", i);
            run_step(run);
            ivc_sleep_ms(1);
        }
}

void run_start(struct run *run)
{
    for (uint32_t i = 0; i < run->options.ranks; i++)
        run_start_rank(run, i);
    run_await_ranks(run);
}

/* ---- turns */

uint64_t run_ms(const struct run *run)
{
    return (uint64_t)run->machine.ms;
}

static void look_at_machine(struct run *run)
{
    pid_t pids[BOARD_RANKS_MAX] = { 0 };

    for (uint32_t i = 0; i < run->options.ranks; i++)
        pids[i] = run_is_alive(run, i) ? run->board->ranks[i].pid : 0;
    machine_look(&run->machine, pids, run->options.ranks);
    if (run->options.endless || ivc_now_ms() - run->started_ms < run_limit(CASE_MS)
        || run_ms(run) > run_limit(CASE_MS) / 2)
        return;
    check_skip("others use the processors (%.0f%% of them now): not to be judged here",
               run->machine.share * 100);
}

void run_step(struct run *run)
{
    look_at_machine(run);
    for (unsigned i = 0; i < run->options.guests; i++)
        guest_beat(&run->guests[i].guest);
    run_watch(run);
}

void run_for(struct run *run, unsigned ms)
{
    uint64_t end = ivc_now_ms() + ms;

    do {
        run_step(run);
        ivc_sleep_ms(1);
    } while (ivc_now_ms() < end);
}

uint64_t run_memory_at(const struct run *run, uint32_t rank, uint32_t other)
{
    return ivc_load_relaxed(&run->board->ranks[rank].pairs[other].memory_at_ns);
}

void run_await_path(struct run *run, uint32_t a, uint32_t b, enum ivc_path path, unsigned ms)
{
    uint64_t start = ivc_now_ns(), end = run_ms(run) + run_limit(ms);
    const struct board_pair *pair = &run->board->ranks[a].pairs[b];
    uint64_t network = ivc_load_relaxed(&pair->network_bytes);

    while (path == IVC_PATH_MEMORY ? run_memory_at(run, a, b) <= start
                                   : ivc_load_relaxed(&pair->network_bytes) <= network) {
        CHECK_THAT(run_ms(run) < end, "ranks %u and %u do not use %s after %u ms", a, b,
                   path == IVC_PATH_MEMORY ? "memory" : "the network", ms);
        run_step(run);
        ivc_sleep_ms(1);
    }
}

/* Acquire: pairs with the release in load_progress(); the counts of these turns are visible. */
static uint64_t turns_of(const struct run *run, uint32_t rank)
{
    return ivc_load_acquire(&run->board->ranks[rank].turns);
}

void run_await_counts(struct run *run)
{
    uint64_t end = run_ms(run) + run_limit(PATIENCE_MS), turns[BOARD_RANKS_MAX];

    for (uint32_t i = 0; i < run->options.ranks; i++)
        turns[i] = turns_of(run, i);
    for (uint32_t i = 0; i < run->options.ranks; i++)
        while (run_is_alive(run, i) && turns_of(run, i) < turns[i] + 2) {
            CHECK_THAT(run_ms(run) < end, "rank %u makes no turn", i);
            run_step(run);
            ivc_sleep_ms(1);
        }
}

/* ---- the end */

/* One direction of a pair: what it must be when all has come. */
static void compare(const struct run *run, uint32_t from, uint32_t to)
{
    const struct board_pair *out = &run->board->ranks[from].pairs[to];
    const struct board_pair *in = &run->board->ranks[to].pairs[from];

    CHECK_THAT(ivc_load_relaxed(&in->received_messages) == ivc_load_relaxed(&out->started_messages),
               "rank %u has sent %llu messages to rank %u, %llu came (seed %llu)", from,
               (unsigned long long)ivc_load_relaxed(&out->started_messages), to,
               (unsigned long long)ivc_load_relaxed(&in->received_messages),
               (unsigned long long)run->options.seed);
    CHECK_THAT(ivc_load_relaxed(&in->received_packets) == ivc_load_relaxed(&out->started_packets),
               "rank %u has sent %llu packets to rank %u, %llu came (seed %llu)", from,
               (unsigned long long)ivc_load_relaxed(&out->started_packets), to,
               (unsigned long long)ivc_load_relaxed(&in->received_packets),
               (unsigned long long)run->options.seed);
}

static bool has_all_come(const struct run *run)
{
    uint64_t came = 0;

    for (uint32_t i = 0; i < run->options.ranks; i++)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (run_is_connected(run, i, k) && run_under_way(run, i, k, &came) > 0)
                return false;
    return true;
}

/* A rank that still has to send may take its time, as long as something comes; one that does not
 * even call the library ends the wait. */
static void await_states(struct run *run, enum rank_state state)
{
    for (uint32_t i = 0; i < run->options.ranks; i++) {
        uint64_t turns = turns_of(run, i), since = run_ms(run);

        while (run_is_alive(run, i) && run_state_of(run, i) < state) {
            if (turns_of(run, i) != turns)
                since = run_ms(run);
            turns = turns_of(run, i);
            CHECK_THAT(run_ms(run) - since < run_limit(run->options.patience_ms),
                       "rank %u does not come to an end (seed %llu)", i,
                       (unsigned long long)run->options.seed);
            run_step(run);
            ivc_sleep_ms(1);
        }
    }
}

/* All has been sent: now what is under way has to come.  compare() tells when it does not. */
static void await_all(struct run *run)
{
    uint64_t since = run_ms(run), came = run->outstanding;

    while (!has_all_come(run) && run_ms(run) - since < run_limit(run->options.patience_ms) / 2) {
        if (came != run->outstanding)
            since = run_ms(run);
        came = run->outstanding;
        run_for(run, 5);
    }
}

/* All have ended: of grants, which are made of their processes' memory, nothing may be there.  Texts of those that
 * were killed stay until somebody of their guest comes again, or it moves. */
static void check_nothing_left(const struct run *run, const struct host *host)
{
    struct fake_left left = host->store ? fake_host_left(host->store) : (struct fake_left){ 0 };

    for (uint32_t i = 0; i < run->options.ranks; i++)
        if (run->may_die[i])
            left.texts = 0;

    CHECK_THAT(left.pages == 0 && left.ports == 0 && left.texts == 0 && left.watches == 0,
               "%s: %u pages, %u ports, %u texts, %u watches are left (seed %llu)", host->path, left.pages,
               left.ports, left.texts, left.watches, (unsigned long long)run->options.seed);
}

void run_finish(struct run *run)
{
    ivc_store_release(&run->board->quiet, 1);
    await_states(run, RANK_STOPPED);
    await_all(run);
    run_for(run, LATE_MS);
    for (uint32_t i = 0; i < run->options.ranks; i++)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (run_is_connected(run, i, k))
                compare(run, i, k);
    ivc_store_release(&run->board->end, 1);
    await_states(run, RANK_ENDED);
    for (uint32_t i = 0; i < run->options.ranks; i++)
        while (run_is_alive(run, i))
            run_for(run, 1);
    for (unsigned i = 0; i < run->options.guests; i++)
        guest_withdraw(&run->guests[i].guest);
    for (unsigned i = 0; i < run->n_hosts; i++) {
        check_nothing_left(run, &run->hosts[i]);
        host_close(&run->hosts[i]);
    }
}
