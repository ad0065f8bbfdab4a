/* A run: starting ranks, moving guests, comparing what was sent with what came.  See run.h. */
#include "run.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

#include <sys/syscall.h>

enum {
    START_MS = 30000,
    PATIENCE_MS = 30000,
    STRAYS_MS = 20,
    BEREAVED_MS = 500,          /* until a fault that ends others is told */
    SETTLE_MS = 10000,          /* from the device to the first use of memory */
    LATE_MS = 200,              /* for what comes twice */
};

static uint64_t limit_ms(unsigned ms)
{
    return (uint64_t)ms * check_slowdown();
}

/* ---- the ranks */

void run_prepare(struct run *run, const struct run_options *options, const char *const *paths,
                 unsigned n_hosts)
{
    char link[96], vm[32];

    *run = (struct run){ .options = *options, .n_hosts = n_hosts,
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
    run->board->ends_allowed = options->ends_allowed;
    run->options.timeout_ms = options->timeout_ms ? options->timeout_ms : 5000;
    run->options.patience_ms = options->patience_ms ? options->patience_ms : PATIENCE_MS;
    for (unsigned i = 0; i < n_hosts; i++)
        CHECK_THAT(host_open(&run->hosts[i], paths[i]) == 0, "%s", ivc_error_text());
    for (unsigned i = 0; i < options->guests; i++) {
        /* The last but one of the names that the case removes: "...-3" and so on. */
        snprintf(link, sizeof link, "%.*s%u", (int)strlen(paths[0]) - 1, paths[0], 3 + i);
        snprintf(vm, sizeof vm, "guest-%u", i);
        guest_init(&run->guests[i].guest, vm, link);
        guest_init(&run->guests[i].stray, vm, link);
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

static enum rank_state state_of(const struct run *run, uint32_t rank)
{
    /* Acquire: pairs with the release in set_state(); what the state promises is visible. */
    return (enum rank_state)ivc_load_acquire(&run->board->ranks[rank].state);
}

static bool is_alive(const struct run *run, uint32_t rank)
{
    return run->board->ranks[rank].pid != 0 && !run->dead[rank];
}

void run_await_ranks(struct run *run)
{
    uint64_t end = ivc_now_ms() + limit_ms(START_MS);

    for (uint32_t i = 0; i < run->options.ranks; i++)
        while (is_alive(run, i) && state_of(run, i) < RANK_RUNNING) {
            CHECK_THAT(ivc_now_ms() < end, "rank %u did not start", i);
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

/* ---- what may not happen */

/* The rank with a fault of its own, else one that complains of another's end; NULL: none. */
static const struct board_rank *faulty_rank(const struct run *run)
{
    const struct board_rank *bereaved = NULL;

    for (uint32_t i = 0; i < run->options.ranks; i++) {
        const struct board_rank *rank = &run->board->ranks[i];
        /* Acquire: pairs with the release in load_fault(); the text is visible. */
        uint32_t faulty = ivc_load_acquire(&rank->faulty);

        if (faulty == 1)
            return rank;
        bereaved = faulty ? rank : bereaved;
    }
    return bereaved;
}

static void look_for_faults(struct run *run)
{
    const struct board_rank *rank = faulty_rank(run);

    if (!rank)
        return;
    if (ivc_load_relaxed(&rank->faulty) == 2)
        ivc_sleep_ms(BEREAVED_MS);
    rank = faulty_rank(run);
    check_fail(__FILE__, __LINE__, "%s (seed %llu)", rank->fault,
               (unsigned long long)run->options.seed);
}

static void reap(struct run *run)
{
    int status;

    for (uint32_t i = 0; i < run->options.ranks; i++) {
        if (!is_alive(run, i) || waitpid(run->board->ranks[i].pid, &status, WNOHANG) <= 0)
            continue;
        run->dead[i] = true;
        look_for_faults(run);
        CHECK_THAT(run->may_die[i] || (WIFEXITED(status) && WEXITSTATUS(status) == 0
                                       && state_of(run, i) == RANK_ENDED),
                   "rank %u: %s %d (seed %llu)", i, WIFSIGNALED(status) ? "signal" : "exit status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                   (unsigned long long)run->options.seed);
    }
}

static bool is_gone_for(const struct run *run, uint32_t rank, uint32_t other)
{
    return ivc_load_acquire(&run->board->ranks[rank].pairs[other].gone_at_ns) != 0;
}

/* Whether `to` has to get what `from` sends: both live, and neither has lost the other. */
static bool is_connected(const struct run *run, uint32_t from, uint32_t to)
{
    return from != to && is_alive(run, from) && is_alive(run, to)
        && !is_gone_for(run, from, to) && !is_gone_for(run, to, from);
}

/* What is on its way from one rank to the other, and how much has come; that is read first. */
static uint64_t under_way(const struct run *run, uint32_t from, uint32_t to, uint64_t *ret_came)
{
    const struct board_pair *out = &run->board->ranks[from].pairs[to];
    const struct board_pair *in = &run->board->ranks[to].pairs[from];
    uint64_t came = ivc_load_relaxed(&in->received_messages)
        + ivc_load_relaxed(&in->received_packets);

    *ret_came += came;
    return ivc_load_relaxed(&out->started_messages) + ivc_load_relaxed(&out->started_packets)
        - came;
}

static void look_for_standstill(struct run *run)
{
    uint64_t now = ivc_now_ms(), came = 0, waiting = 0;
    uint32_t from = 0, to = 0;

    if (now - run->looked_ms < 500)
        return;
    run->looked_ms = now;
    if (ivc_load_relaxed(&run->board->end))
        return;
    for (uint32_t i = 0; i < run->options.ranks; i++)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (is_connected(run, i, k) && under_way(run, i, k, &came) > 0) {
                waiting++;
                from = i;
                to = k;
            }
    if (waiting == 0 || came != run->outstanding) {
        run->outstanding = came;
        run->outstanding_since_ms = now;
    }
    CHECK_THAT(now - run->outstanding_since_ms < limit_ms(run->options.patience_ms),
               "standstill: %llu pairs wait, for example what rank %u has sent to rank %u"
               " (seed %llu)", (unsigned long long)waiting, from, to,
               (unsigned long long)run->options.seed);
}

/*
 * A rank may have opened the old file just before its guest's link changed, and joins when the
 * order is withdrawn.  A machine's device would be gone by then; here it is asked once more.
 */
static void ask_strays(struct run *run)
{
    if (ivc_now_ms() < run->strays_at_ms)
        return;
    run->strays_at_ms = ivc_now_ms() + STRAYS_MS;
    for (unsigned i = 0; i < run->options.guests; i++) {
        struct guest *stray = &run->guests[i].stray;
        const struct guest *guest = &run->guests[i].guest;

        if (stray->ordered_at && guest_members(stray, stray->ordered_at) == 0)
            guest_withdraw(stray);
        for (unsigned k = 0; k < run->n_hosts && !stray->ordered_at; k++) {
            stray->host = &run->hosts[k];
            if (stray->host == guest->host || stray->host == guest->ordered_at
                || !stray->host->region || guest_members(stray, stray->host) == 0)
                continue;
            CHECK_THAT(guest_order(stray) == 0, "%s", ivc_error_text());
            run->strays++;
        }
    }
}

void run_step(struct run *run)
{
    for (unsigned i = 0; i < run->options.guests; i++) {
        guest_beat(&run->guests[i].guest);
        guest_beat(&run->guests[i].stray);
    }
    ask_strays(run);
    look_for_faults(run);
    reap(run);
    look_for_standstill(run);
}

void run_for(struct run *run, unsigned ms)
{
    uint64_t end = ivc_now_ms() + ms;

    do {
        run_step(run);
        ivc_sleep_ms(1);
    } while (ivc_now_ms() < end);
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
            if (is_connected(run, i, k) && under_way(run, i, k, &came) > 0)
                return false;
    return true;
}

static uint64_t turns_of(const struct run *run, uint32_t rank)
{
    return ivc_load_relaxed(&run->board->ranks[rank].turns);
}

/* A rank that still has to send may take its time, as long as something comes; one that does not
 * even call the library ends the wait. */
static void await_states(struct run *run, enum rank_state state)
{
    for (uint32_t i = 0; i < run->options.ranks; i++) {
        uint64_t turns = turns_of(run, i), since = ivc_now_ms();

        while (is_alive(run, i) && state_of(run, i) < state) {
            if (turns_of(run, i) != turns)
                since = ivc_now_ms();
            turns = turns_of(run, i);
            CHECK_THAT(ivc_now_ms() - since < limit_ms(run->options.patience_ms),
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
    uint64_t since = ivc_now_ms(), came = run->outstanding;

    while (!has_all_come(run) && ivc_now_ms() - since < limit_ms(run->options.patience_ms) / 2) {
        if (came != run->outstanding)
            since = ivc_now_ms();
        came = run->outstanding;
        run_for(run, 5);
    }
}

void run_finish(struct run *run)
{
    ivc_store_release(&run->board->quiet, 1);
    await_states(run, RANK_STOPPED);
    await_all(run);
    run_for(run, LATE_MS);
    for (uint32_t i = 0; i < run->options.ranks; i++)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (is_connected(run, i, k))
                compare(run, i, k);
    ivc_store_release(&run->board->end, 1);
    await_states(run, RANK_ENDED);
    for (uint32_t i = 0; i < run->options.ranks; i++)
        while (is_alive(run, i))
            run_for(run, 1);
    for (unsigned i = 0; i < run->options.guests; i++) {
        guest_withdraw(&run->guests[i].guest);
        guest_withdraw(&run->guests[i].stray);
    }
    for (unsigned i = 0; i < run->n_hosts; i++)
        host_close(&run->hosts[i]);
}

/* ---- orders */

static enum rank_mode guest_mode(const struct run *run, unsigned guest)
{
    enum rank_mode mode = RANK_IDLE;

    for (uint32_t i = guest; i < run->options.ranks; i += run->options.guests) {
        enum rank_mode doing = (enum rank_mode)ivc_load_relaxed(&run->board->ranks[i].doing);

        if (doing == RANK_COMPUTING || (doing == RANK_COMMUNICATING && mode == RANK_IDLE))
            mode = doing;
    }
    return mode;
}

static void add_sample(struct samples *samples, uint64_t ns)
{
    if (samples->n == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 256;
        samples->ns = realloc(samples->ns, samples->room * sizeof *samples->ns);
        CHECK(samples->ns != NULL);
    }
    samples->ns[samples->n++] = ns;
}

static bool begin_order(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];
    int r;

    guest->mode = guest_mode(run, index);
    guest->was_member = guest_members(&guest->guest, guest->guest.host) > 0;
    r = guest_order(&guest->guest);
    CHECK_THAT(r == 0, "order for guest %u: %d, %s", index, r, ivc_error_text());
    return true;
}

static bool is_answered(const struct run *run, unsigned index)
{
    const struct guest *guest = &run->guests[index].guest;

    return guest_members(guest, guest->ordered_at) == 0;
}

/* After its answer nothing of the host's file may be mapped in the guest for long. */
static void check_unmapped(struct run *run, unsigned index)
{
    uint64_t end = ivc_now_ms() + limit_ms(1000);
    const struct host *host = run->guests[index].guest.ordered_at;

    for (uint32_t i = index; i < run->options.ranks; i += run->options.guests)
        while (is_alive(run, i) && process_maps(run->board->ranks[i].pid, host)) {
            CHECK_THAT(ivc_now_ms() < end, "rank %u has answered and still maps the region", i);
            ivc_sleep_ms(1);
        }
}

/* The device goes: to `to`, or nowhere for the moment. */
static void take_device(struct run *run, unsigned index, struct host *to)
{
    struct run_guest *guest = &run->guests[index];

    if (guest->was_member)
        add_sample(&run->answers[guest->mode], ivc_now_ns() - guest->guest.ordered_ns);
    check_unmapped(run, index);
    guest_place(&guest->guest, to);
    guest_withdraw(&guest->guest);
    guest->attached_ns = to ? ivc_now_ns() : 0;
    run->switches += guest->was_member;
}

static void time_out(struct run *run, unsigned index)
{
    char who[256];
    struct guest *guest = &run->guests[index].guest;

    guest_describe_members(guest, guest->ordered_at, who, sizeof who);
    fprintf(stderr, "# order for guest %u: no answer within %u ms from %s (seed %llu)\n", index,
            run->options.timeout_ms, who, (unsigned long long)run->options.seed);
    run->time_outs++;
    guest_withdraw(guest);
}

bool run_ask(struct run *run, unsigned index)
{
    uint64_t end = ivc_now_ms() + limit_ms(run->options.timeout_ms);

    begin_order(run, index);
    while (!is_answered(run, index)) {
        if (ivc_now_ms() >= end) {
            time_out(run, index);
            return false;
        }
        run_step(run);
        ivc_sleep_ms(1);
    }
    return true;
}

void run_move_guest(struct run *run, unsigned index, struct host *to)
{
    CHECK_THAT(run_ask(run, index), "guest %u did not answer", index);
    take_device(run, index, to);
}

/* ---- random moves */

static uint64_t dice(struct run *run, uint64_t sides)
{
    return check_random(&run->random) % sides;
}

static void rest(struct run *run, struct run_guest *guest)
{
    static const unsigned most_ms[] = { 1, 30, 150, 400, 400, 800 };

    guest->phase = GUEST_RESTS;
    guest->until_ms = ivc_now_ms() + dice(run, most_ms[dice(run, 6)] + 1);
    guest->settle = dice(run, 4) == 0 && run->options.mode != RANK_IDLE;
    guest->told_settled = false;
}

/* A pair that must come to memory: both guests rest on the same host, and both ranks live. */
static bool has_neighbour(const struct run *run, unsigned index)
{
    for (unsigned i = 0; i < run->options.guests; i++)
        if (i != index && run->guests[i].phase == GUEST_RESTS
            && run->guests[i].guest.host == run->guests[index].guest.host)
            return true;
    return false;
}

static uint64_t memory_at(const struct run *run, uint32_t rank, uint32_t other)
{
    return ivc_load_relaxed(&run->board->ranks[rank].pairs[other].memory_at_ns);
}

/* When a rank of the guest has first been seen using memory with another guest since it came. */
static uint64_t settled_at(const struct run *run, unsigned index)
{
    uint64_t since = run->guests[index].attached_ns;

    for (uint32_t i = index; i < run->options.ranks; i += run->options.guests)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (k % run->options.guests != index && memory_at(run, i, k) > since)
                return memory_at(run, i, k);
    return 0;
}

static void note_settled(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];
    uint64_t at = guest->told_settled || !guest->attached_ns ? 0 : settled_at(run, index);

    if (!at)
        return;
    guest->told_settled = true;
    if (guest->settle)      /* others were not always there to be met */
        add_sample(&run->arrivals, at - guest->attached_ns);
}

static bool must_settle(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];

    if (!guest->settle || guest->told_settled || !guest->attached_ns)
        return false;
    if (!has_neighbour(run, index)) {
        guest->attached_ns = ivc_now_ns();      /* it runs while somebody is there to be met */
        return false;
    }
    CHECK_THAT(ivc_now_ns() - guest->attached_ns < limit_ms(SETTLE_MS) * 1000000,
               "guest %u has been on %s for %d ms, beside others, and uses the network (seed %llu)",
               index, guest->guest.host->path, SETTLE_MS, (unsigned long long)run->options.seed);
    return true;
}

static struct host *another_host(struct run *run, const struct host *from)
{
    /* Mostly the other; sometimes the same again. */
    struct host *to = &run->hosts[dice(run, run->n_hosts)];

    if (to == from && dice(run, 4) != 0)
        to = &run->hosts[(size_t)(to - run->hosts + 1) % run->n_hosts];
    return to;
}

static void move_resting(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];

    note_settled(run, index);
    if (ivc_now_ms() < guest->until_ms || must_settle(run, index))
        return;
    begin_order(run, index);
    guest->phase = GUEST_ORDERED;
    guest->cancel = run->options.cancels && dice(run, 12) == 0;
    guest->until_ms = ivc_now_ms() + (guest->cancel ? dice(run, 40)
                                      : limit_ms(run->options.timeout_ms));
}

static void move_ordered(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];
    struct host *from = guest->guest.host;
    bool away = dice(run, 3) == 0;

    if (is_answered(run, index)) {
        take_device(run, index, away ? NULL : another_host(run, from));
        rest(run, guest);
        if (away) {
            guest->phase = GUEST_AWAY;
            guest->until_ms = ivc_now_ms() + dice(run, 200);
        }
    } else if (ivc_now_ms() >= guest->until_ms) {
        if (guest->cancel) {
            guest_withdraw(&guest->guest);
            run->cancelled++;
        } else {
            time_out(run, index);
        }
        rest(run, guest);
        guest->attached_ns = ivc_now_ns();
    }
}

static void move_away(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];

    if (ivc_now_ms() < guest->until_ms)
        return;
    guest_place(&guest->guest, &run->hosts[dice(run, run->n_hosts)]);
    guest->attached_ns = ivc_now_ns();
    rest(run, guest);
}

void run_move(struct run *run)
{
    static void (*const moves[])(struct run *, unsigned) = {
        [GUEST_RESTS] = move_resting, [GUEST_ORDERED] = move_ordered, [GUEST_AWAY] = move_away,
    };

    for (unsigned i = 0; i < run->options.guests; i++)
        moves[run->guests[i].phase](run, i);
}

/* Stops a rank for a moment: mostly short, never as long as an order may take. */
static void stumble(struct run *run)
{
    uint64_t now = ivc_now_ms();

    if (run->stopped && now >= run->stopped_until_ms) {
        kill(run->board->ranks[run->stopped - 1].pid, SIGCONT);
        run->stopped = 0;
    } else if (!run->stopped && dice(run, 100) == 0) {
        run->stopped = (uint32_t)dice(run, run->options.ranks) + 1;
        run->stopped_until_ms = now + dice(run, dice(run, 400) + 1);
        run->stumbles++;
        kill(run->board->ranks[run->stopped - 1].pid, SIGSTOP);
    }
}

static void stand_up(struct run *run)
{
    run->stopped_until_ms = 0;
    if (run->stopped)
        stumble(run);
}

void run_moves(struct run *run)
{
    uint64_t end = ivc_now_ms() + 1000ull * run->options.seconds;

    while ((!run->options.seconds || ivc_now_ms() < end)
           && (!run->options.switches || run->switches < run->options.switches)) {
        run_step(run);
        run_move(run);
        if (run->options.stumbles)
            stumble(run);
        ivc_sleep_ms(1);
    }
    stand_up(run);
    for (unsigned i = 0; i < run->options.guests; i++)
        guest_withdraw(&run->guests[i].guest);
}

void run_await_path(struct run *run, uint32_t a, uint32_t b, enum ivc_path path, unsigned ms)
{
    uint64_t start = ivc_now_ns(), end = start + limit_ms(ms) * 1000000;
    const struct board_pair *pair = &run->board->ranks[a].pairs[b];
    uint64_t network = ivc_load_relaxed(&pair->network_bytes);

    while (path == IVC_PATH_MEMORY ? memory_at(run, a, b) <= start
                                   : ivc_load_relaxed(&pair->network_bytes) <= network) {
        CHECK_THAT(ivc_now_ns() < end, "ranks %u and %u do not use %s after %u ms", a, b,
                   path == IVC_PATH_MEMORY ? "memory" : "the network", ms);
        run_step(run);
        ivc_sleep_ms(1);
    }
}
