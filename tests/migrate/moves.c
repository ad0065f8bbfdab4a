/*
 * Ranks that exchange messages and packets while their guests move between hosts: every byte must
 * come, once and in order, whatever the ranks do meanwhile.
 *
 *   test-migrate-moves [PART OF A CASE'S NAME]
 *   test-migrate-moves --switches N | --seconds S [--seed S] [--ranks R] [--guests G] [--hosts H]
 *                [--mode mixed|communicating|idle|computing] [--longest BYTES] [--compute MS]
 *                [--timeout MS] [--kernels] [--stumbles] [--lent] [--grants]
 *
 * The second form is one long run.  A switch is a device taken from a guest after all had answered.
 * --kernels: to the others every rank is of another kernel.  --stumbles: ranks are stopped now and
 * then, for less than half a second.  --lent: half of the messages lie in memory of the region.
 * --grants: hosts have grants instead of a region for all.
 */
#include "run.h"
#include "slow.h"

#include "check.h"

#include "base/util.h"

#include <getopt.h>

enum { MIB = 1 << 20 };

static struct run run;

/* Two hosts of different sizes, unless more are asked for. */
static unsigned make_hosts(const char *ret_paths[RUN_HOSTS_MAX], unsigned n)
{
    static const unsigned mib[RUN_HOSTS_MAX] = { 64, 24, 6 };

    for (unsigned i = 0; i < n; i++)
        ret_paths[i] = check_file(i, (uint64_t)mib[i] * MIB);
    return n;
}

static void prepare(struct run_options options, unsigned n_hosts)
{
    const char *paths[RUN_HOSTS_MAX];

    if (!options.seed)
        options.seed = ivc_now_ns() / 1000 % 1000000000 + 1;
    n_hosts = make_hosts(paths, n_hosts);
    run_prepare(&run, &options, paths, n_hosts);
}

/* ---- without a move */

static void test_memory(void)
{
    struct run_totals totals;

    prepare((struct run_options){ .ranks = 3, .guests = 3 }, 1);
    run_start(&run);
    run_for(&run, 1000);
    run_finish(&run);
    run_report(&run, "all on one host");
    totals = run_totals(&run);
    CHECK(totals.messages > 0 && totals.packets > 0 && totals.memory_bytes > 0);
    CHECK_EQ(totals.network_bytes, 0);
}

static void test_network(void)
{
    struct run_totals totals;

    prepare((struct run_options){ .ranks = 3, .guests = 3 }, 3);
    for (unsigned i = 0; i < 3; i++)
        guest_place(&run.guests[i].guest, &run.hosts[i]);
    run_start(&run);
    run_for(&run, 1000);
    run_finish(&run);
    run_report(&run, "each on another host");
    totals = run_totals(&run);
    CHECK(totals.messages > 0 && totals.packets > 0 && totals.network_bytes > 0);
    CHECK_EQ(totals.memory_bytes, 0);
}

/* ---- whether what is wrong is noticed */

struct sabotaged {
    enum rank_sabotage kind;
    unsigned n_hosts, patience_ms;
};

static int run_sabotaged(void *arg)
{
    const struct sabotaged *sabotaged = arg;
    const struct board_pair *to;

    prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_COMMUNICATING,
                                  .longest = 100000, .patience_ms = sabotaged->patience_ms },
            sabotaged->n_hosts);
    for (unsigned i = 0; i < sabotaged->n_hosts; i++)
        guest_place(&run.guests[i].guest, &run.hosts[i]);
    to = &run.board->ranks[1].pairs[2];
    run.board->ranks[1].sabotage = sabotaged->kind;
    run.board->ranks[1].sabotage_to = 2;
    run_start(&run);
    /* Until what is wrong has been sent: it is the 41st (load-send.c). */
    while (sabotaged->kind != SABOTAGE_MUTE && (ivc_load_relaxed(&to->started_messages) < 60
                                                || ivc_load_relaxed(&to->started_packets) < 60))
        run_for(&run, 5);
    if (sabotaged->kind == SABOTAGE_MUTE)
        run_for(&run, 1500);
    run_finish(&run);
    return 0;
}

/* The run ends with a status that is not 0, and a line that says what. */
static void expect_noticed(struct sabotaged sabotaged, const char *word)
{
    char said[2000] = "";
    size_t n = 0;
    ssize_t got;
    int status, ends[2];
    pid_t pid;

    CHECK(pipe(ends) == 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], 2);
        close(ends[1]);
        exit(run_sabotaged(&sabotaged));
    }
    close(ends[1]);
    while (n < sizeof said - 1 && (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)got;
    close(ends[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 1,
               "sabotage %d on %u hosts was not noticed, or not so: status %x, '%s'",
               sabotaged.kind, sabotaged.n_hosts, (unsigned)status, said);
    CHECK_THAT(strstr(said, word), "sabotage %d: '%s' does not say '%s'", sabotaged.kind, said,
               word);
}

static void test_noticed(void)
{
    static const struct {
        enum rank_sabotage kind;
        const char *word;
    } table[] = {
        { SABOTAGE_BYTE, "wrong from byte" },
        { SABOTAGE_PACKET_BYTE, "wrong from byte" },
        { SABOTAGE_SKIP, "message 41 from rank 1 instead of 40" },
        { SABOTAGE_TWICE, "message 40 from rank 1 instead of 41" },
        { SABOTAGE_SWAP, "message 41 from rank 1 instead of 40" },
        { SABOTAGE_PACKET_SKIP, "packet 4" },   /* which: the next may be one without a number */
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (unsigned n_hosts = 1; n_hosts <= 3; n_hosts += 2)
            expect_noticed((struct sabotaged){ table[i].kind, n_hosts, 0 }, table[i].word);
}

/* What only the end shows: these take as long as a run waits. */
static void test_noticed_late(void)
{
    expect_noticed((struct sabotaged){ SABOTAGE_LAST, 1, 4000 }, "messages to rank 2");
    expect_noticed((struct sabotaged){ SABOTAGE_MUTE, 1, 4000 }, "rank 1");
}

/* ---- moves */

/* Both paths must have been used, and left and come back to. */
static void check_moved(void)
{
    struct run_totals totals = run_totals(&run);

    CHECK_EQ(run.time_outs, 0);
    CHECK(totals.messages > 0 && totals.packets > 0);
    CHECK_THAT(totals.memory_bytes > 0 && totals.network_bytes > 0,
               "bytes by memory %llu, by network %llu", (unsigned long long)totals.memory_bytes,
               (unsigned long long)totals.network_bytes);
    CHECK_THAT(totals.path_changes > run.switches / 20,
               "%llu switches, and paths changed %llu times",
               (unsigned long long)run.switches, (unsigned long long)totals.path_changes);
    /* In a short run nobody may have rested beside others. */
    CHECK(run.arrivals.n > 0 || run.switches < 100);
    CHECK(!slow_answers || slow_answers() > 0);
}

static void moves(struct run_options options, unsigned n_hosts, const char *what)
{
    prepare(options, n_hosts);
    run_start(&run);
    run_moves(&run);
    run_finish(&run);
    run_report(&run, what);
    check_moved();
}

static void test_moves(void)
{
    moves((struct run_options){ .ranks = 4, .guests = 3, .mode = RANK_MIXED, .switches = 40,
                                .cancels = true, .stumbles = true, .lent_messages = true }, 2,
          "moves, mixed");
}

static void test_moves_communicating(void)
{
    moves((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_COMMUNICATING,
                                .switches = 20 }, 2, "moves, communicating");
}

static void test_moves_computing(void)
{
    moves((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_COMPUTING,
                                .switches = 20 }, 2, "moves, computing");
}

static void test_moves_many(void)
{
    moves((struct run_options){ .ranks = 8, .guests = 4, .mode = RANK_MIXED, .switches = 20,
                                .longest = MIB, .kernels = true, .lent_messages = true }, 3,
          "moves, 8 ranks");
}

/* Ranks that only sleep send nothing: what there is to see is that they answer. */
static void test_moves_idle(void)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_IDLE, .switches = 20 }, 2);
    run_start(&run);
    run_moves(&run);
    run_finish(&run);
    run_report(&run, "moves, idle");
    CHECK_EQ(run.time_outs, 0);
    CHECK(run.answers[RANK_IDLE].n >= run.switches / 2);
}

/* Apart at the start (an order keeps one out), then together. */
static void test_comes_later(void)
{
    prepare((struct run_options){ .ranks = 2, .guests = 2, .mode = RANK_COMMUNICATING }, 1);
    CHECK_EQ(guest_order(&run.guests[1].guest), 0);
    run_start(&run);
    run_for(&run, 500);
    CHECK_EQ(guest_members(&run.guests[1].guest, &run.hosts[0]), 0);
    CHECK_EQ(run_totals(&run).memory_bytes, 0);
    guest_withdraw(&run.guests[1].guest);
    run_await_path(&run, 0, 1, IVC_PATH_MEMORY, 3000);
    run_await_path(&run, 1, 0, IVC_PATH_MEMORY, 3000);
    run_finish(&run);
}

/* Two guests leave at once, meet again elsewhere; the third stays, and uses memory with nobody. */
static void test_together(void)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_MIXED }, 2);
    run_start(&run);
    for (unsigned round = 0; round < 4; round++) {
        struct host *to = &run.hosts[(round + 1) % 2];

        run_await_path(&run, 0, 1, IVC_PATH_MEMORY, 10000);
        for (unsigned i = 0; i < 2; i++)
            CHECK_EQ(guest_order(&run.guests[i].guest), 0);
        for (unsigned i = 0; i < 2; i++)
            while (guest_members(&run.guests[i].guest, run.guests[i].guest.ordered_at) > 0)
                run_for(&run, 1);
        for (unsigned i = 0; i < 2; i++) {
            guest_place(&run.guests[i].guest, to);
            guest_withdraw(&run.guests[i].guest);
        }
        run_await_path(&run, 1, 0, IVC_PATH_MEMORY, 10000);
        run_await_path(&run, 2, 0, to == &run.hosts[0] ? IVC_PATH_MEMORY : IVC_PATH_NETWORK, 10000);
    }
    run_finish(&run);
}

/* ---- hosts with grants: what a sender fills is its own, and whoever moves becomes another domain */

static void test_grants(void)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3, .grants = true }, 1);
    run_start(&run);
    run_await_path(&run, 0, 1, IVC_PATH_MEMORY, 10000);
    run_await_path(&run, 2, 0, IVC_PATH_MEMORY, 10000);
    run_for(&run, 1000);
    run_finish(&run);
    run_report(&run, "grants, all on one host");
    CHECK(run_totals(&run).memory_bytes > 0);
}

static void test_grants_moves(void)
{
    moves((struct run_options){ .ranks = 4, .guests = 3, .mode = RANK_MIXED, .switches = 20, .grants = true,
                                .longest = MIB, .cancels = true, .stumbles = true }, 2, "grants, moves, mixed");
}

/* Where the work of 2009 failed: the receiver moves, and the sender, who is told by nobody, goes on
 * writing into what it had shared with it. */
static void test_grants_stale(void)
{
    struct run_totals before;

    prepare((struct run_options){ .ranks = 2, .guests = 2, .mode = RANK_COMMUNICATING, .grants = true,
                                  .longest = MIB }, 2);
    run_start(&run);
    for (unsigned round = 0; round < 6; round++) {
        bool away = round % 2 == 0;

        run_await_path(&run, 0, 1, IVC_PATH_MEMORY, 10000);
        CHECK(run_ask(&run, 1));
        run_await_counts(&run);
        before = run_totals(&run);
        guest_place(&run.guests[1].guest, NULL);            /* from here on what it had mapped is the past */
        guest_withdraw(&run.guests[1].guest);
        run_await_path(&run, 0, 1, IVC_PATH_NETWORK, 10000);
        run_await_counts(&run);
        CHECK_EQ(run_totals(&run).memory_bytes, before.memory_bytes);
        guest_place(&run.guests[1].guest, &run.hosts[away]);
        run_await_path(&run, 0, 1, away ? IVC_PATH_NETWORK : IVC_PATH_MEMORY, 10000);
        if (away)
            run_move_guest(&run, 1, &run.hosts[0]);
    }
    run_finish(&run);
    run_report(&run, "grants, the receiver moves");
}

static const struct check_case cases[] = {
    { "no move: all by memory", test_memory, 240 },
    { "no move: all by network", test_network, 240 },
    { "what is wrong is noticed", test_noticed, 240 },
    { "what is wrong is noticed at the end", test_noticed_late, 240 },
    { "moves: ranks of all kinds", test_moves, 240 },
    { "moves: ranks that communicate", test_moves_communicating, 240 },
    { "moves: ranks that compute", test_moves_computing, 240 },
    { "moves: ranks that sleep", test_moves_idle, 240 },
    { "moves: 8 ranks, 3 hosts", test_moves_many, 240 },
    { "moves: remote at the start", test_comes_later, 240 },
    { "moves: two together", test_together, 240 },
    { "grants: no move", test_grants, 240 },
    { "grants: ranks of all kinds", test_grants_moves, 240 },
    { "grants: the receiver moves, the sender goes on writing", test_grants_stale, 240 },
};

/* ---- the long run */

static struct {
    struct run_options options;
    unsigned n_hosts;
} wanted = { { .ranks = 4, .guests = 3, .mode = RANK_MIXED, .cancels = true, .endless = true }, 2 };

static void test_long(void)
{
    printf("# seed %llu\n", (unsigned long long)wanted.options.seed);
    fflush(stdout);
    moves(wanted.options, wanted.n_hosts, "long run");
}

static int mode_of(const char *word)
{
    static const char *const words[] = {
        [RANK_COMMUNICATING] = "communicating", [RANK_IDLE] = "idle",
        [RANK_COMPUTING] = "computing", [RANK_MIXED] = "mixed",
    };

    for (int i = 0; i <= RANK_MIXED; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
}

static bool parse(int argc, char **argv)
{
    static const struct option names[] = {
        { "switches", required_argument, NULL, 'n' }, { "seconds", required_argument, NULL, 't' },
        { "seed", required_argument, NULL, 's' }, { "ranks", required_argument, NULL, 'r' },
        { "guests", required_argument, NULL, 'g' }, { "hosts", required_argument, NULL, 'o' },
        { "mode", required_argument, NULL, 'm' }, { "longest", required_argument, NULL, 'l' },
        { "compute", required_argument, NULL, 'c' }, { "timeout", required_argument, NULL, 'i' },
        { "kernels", no_argument, NULL, 'k' }, { "stumbles", no_argument, NULL, 'u' },
        { "lent", no_argument, NULL, 'e' }, { "grants", no_argument, NULL, 'x' },
        { 0 },
    };
    struct run_options *options = &wanted.options;
    int c, mode;

    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        uint64_t number = optarg ? strtoull(optarg, NULL, 0) : 0;

        switch (c) {
        case 'n': options->switches = number; break;
        case 't': options->seconds = (unsigned)number; break;
        case 's': options->seed = number; break;
        case 'r': options->ranks = (uint32_t)number; break;
        case 'g': options->guests = (uint32_t)number; break;
        case 'o': wanted.n_hosts = (unsigned)number; break;
        case 'l': options->longest = number; break;
        case 'c': options->compute_ms = (unsigned)number; break;
        case 'i': options->timeout_ms = (unsigned)number; break;
        case 'k': options->kernels = true; break;
        case 'u': options->stumbles = true; break;
        case 'e': options->lent_messages = true; break;
        case 'x': options->grants = true; break;
        case 'm':
            mode = mode_of(optarg);
            if (mode < 0)
                return false;
            options->mode = (enum rank_mode)mode;
            break;
        default: return false;
        }
    }
    return optind == argc && (options->switches || options->seconds)
        && options->ranks >= 2 && options->ranks <= BOARD_RANKS_MAX && options->guests >= 1
        && options->guests <= RUN_GUESTS_MAX && wanted.n_hosts >= 1
        && wanted.n_hosts <= RUN_HOSTS_MAX;
}

int main(int argc, char **argv)
{
    static struct check_case longer[] = { { "a long run", test_long, 0 } };

    if (argc < 2 || strncmp(argv[1], "--", 2) != 0)
        return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: test-migrate-moves [NAME] | --switches N | --seconds S [--seed S]"
                " [--ranks 2..%d]\n       [--guests 1..%d] [--hosts 1..%d]"
                " [--mode mixed|communicating|idle|computing]\n       [--longest BYTES]"
                " [--compute MS] [--timeout MS] [--kernels] [--stumbles] [--lent] [--grants]\n",
                BOARD_RANKS_MAX, RUN_GUESTS_MAX, RUN_HOSTS_MAX);
        return 2;
    }
    if (!wanted.options.seed)
        wanted.options.seed = ivc_now_ns() / 1000 % 1000000000 + 1;
    longer[0].seconds = wanted.options.seconds
        ? wanted.options.seconds + 200 : (unsigned)(200 + wanted.options.switches * 2);
    return check_main(1, argv, longer, 1);
}
