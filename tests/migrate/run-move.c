/* What the controller does to guests: orders, and random moves. */
#include "run-internal.h"

#include "check.h"
#include "fake_grants.h"

#include "base/error.h"
#include "base/util.h"

enum {
    SETTLE_MS = 10000,          /* from the device to the first use of memory */
    UNMAP_MS = 2000,            /* from the answer until nothing is mapped */
};

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

static uint64_t dice(struct run *run, uint64_t sides)
{
    return check_random(&run->random) % sides;
}

/* Nobody waits for what a stopped process holds of the host itself. */
static bool holds_a_host(const struct run *run)
{
    for (unsigned i = 0; i < run->n_hosts; i++)
        if (run->hosts[i].store && !fake_host_is_free(run->hosts[i].store, 100))
            return true;
    return false;
}

void run_stop_rank(struct run *run, uint32_t rank)
{
    pid_t pid = run->board->ranks[rank].pid;
    siginfo_t info;

    for (;;) {
        CHECK(kill(pid, SIGSTOP) == 0);
        /* On a busy machine a thread of it may run for a while yet: its helper, which would answer. */
        CHECK(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT) == 0);
        if (!holds_a_host(run))
            return;
        CHECK(kill(pid, SIGCONT) == 0);
        ivc_sleep_ms(1);
    }
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
        run_stop_rank(run, run->stopped - 1);
    }
}

static void stand_up(struct run *run)
{
    run->stopped_until_ms = 0;
    if (run->stopped)
        stumble(run);
}

/* After its answer nothing of the host's file may be mapped in the guest for long. */
static void check_unmapped(struct run *run, unsigned index)
{
    uint64_t end = run_ms(run) + run_limit(UNMAP_MS);
    const struct host *host = run->guests[index].guest.ordered_at;

    stand_up(run);      /* who has answered a moment ago may not have come so far */
    for (uint32_t i = index; i < run->options.ranks; i += run->options.guests)
        while (run_is_alive(run, i) && process_maps(run->board->ranks[i].pid, host)) {
            CHECK_THAT(run_ms(run) < end, "rank %u has answered and still maps the region", i);
            run_step(run);
            ivc_sleep_ms(1);
        }
}

static void note_attached(struct run *run, struct run_guest *guest, bool attached)
{
    guest->attached_ns = attached ? ivc_now_ns() : 0;
    guest->settle_until_ms = run_ms(run) + run_limit(SETTLE_MS);
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
    note_attached(run, guest, to != NULL);
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
    uint64_t end = run_ms(run) + run_limit(run->options.timeout_ms);

    begin_order(run, index);
    while (!is_answered(run, index)) {
        if (run_ms(run) >= end) {
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

/* When a rank of the guest has first been seen using memory with another guest since it came. */
static uint64_t settled_at(const struct run *run, unsigned index)
{
    uint64_t since = run->guests[index].attached_ns;

    for (uint32_t i = index; i < run->options.ranks; i += run->options.guests)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (k % run->options.guests != index && run_memory_at(run, i, k) > since)
                return run_memory_at(run, i, k);
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
        note_attached(run, guest, true);    /* it runs while somebody is there to be met */
        return false;
    }
    CHECK_THAT(run_ms(run) < guest->settle_until_ms,
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
    guest->until_ms = ivc_now_ms() + dice(run, 40);
    guest->answer_until_ms = run_ms(run) + run_limit(run->options.timeout_ms);
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
    } else if (guest->cancel ? ivc_now_ms() >= guest->until_ms
                             : run_ms(run) >= guest->answer_until_ms) {
        if (guest->cancel) {
            guest_withdraw(&guest->guest);
            run->cancelled++;
        } else {
            time_out(run, index);
        }
        rest(run, guest);
        note_attached(run, guest, true);
    }
}

static void move_away(struct run *run, unsigned index)
{
    struct run_guest *guest = &run->guests[index];

    if (ivc_now_ms() < guest->until_ms)
        return;
    guest_place(&guest->guest, &run->hosts[dice(run, run->n_hosts)]);
    note_attached(run, guest, true);
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
