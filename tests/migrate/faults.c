/*
 * What goes wrong while guests move: answers that do not come, processes that are killed, devices
 * and files that vanish, orders that are withdrawn.  Each at a random moment of the move, again
 * and again.
 *
 * After a fault that costs nobody his memory every byte must still come, once and in order.  After
 * one that does, each connection either goes on like that or ends with an error that names the
 * other and the reason; no process may die of it, none may hang, nothing may be missing in silence.
 */
#include "run.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

enum {
    MIB = 1 << 20,
    MOMENT_MS = 60,         /* a move without a fault takes less */
    TOLD_MS = 30000,        /* docs/network.md: an ended process, if we only wait, 10 s */
};

static struct run run;
static uint64_t random_state;

static uint64_t dice(uint64_t sides)
{
    return check_random(&random_state) % sides;
}

static void prepare(struct run_options options)
{
    const char *paths[] = { check_file(0, 64 * MIB), check_file(1, 24 * MIB), check_file(2, MIB) };

    check_skip_under_thread_sanitizer();
    options.seed = ivc_now_ns() / 1000 % 1000000000 + 1;
    random_state = options.seed;
    if (!options.longest)
        options.longest = MIB;
    printf("# seed %llu\n", (unsigned long long)options.seed);
    run_prepare(&run, &options, paths, 3);
}

static void signal_rank(uint32_t rank, int number)
{
    CHECK(kill(run.board->ranks[rank].pid, number) == 0);
}

/* Gives an order, and lets a random moment of the move come. */
static void order_and_wait(unsigned guest)
{
    CHECK_THAT(guest_order(&run.guests[guest].guest) == 0, "%s", ivc_error_text());
    run_for(&run, (unsigned)dice(MOMENT_MS));
}

static unsigned members_left(unsigned guest)
{
    return guest_members(&run.guests[guest].guest, run.guests[guest].guest.ordered_at);
}

/* Waits for the answer: true; or withdraws after `ms`. */
static bool await_answer(unsigned guest, unsigned ms)
{
    uint64_t end = ivc_now_ms() + ms;

    while (members_left(guest) > 0 && ivc_now_ms() < end)
        run_for(&run, 1);
    if (members_left(guest) == 0)
        return true;
    guest_withdraw(&run.guests[guest].guest);
    return false;
}

static void place(unsigned guest, struct host *to)
{
    guest_place(&run.guests[guest].guest, to);
    guest_withdraw(&run.guests[guest].guest);
}

static void await_memory(uint32_t a, uint32_t b)
{
    run_await_path(&run, a, b, IVC_PATH_MEMORY, 10000);
    run_await_path(&run, b, a, IVC_PATH_MEMORY, 10000);
}

/* ---- answers that do not come */

/* The one who moves, or one of its peers, stands still until the order is withdrawn. */
static void stand_still(uint32_t stopped)
{
    unsigned rolled_back = 0;

    prepare((struct run_options){ .ranks = 3, .guests = 3 });
    run_start(&run);
    for (unsigned round = 0; round < 12; round++) {
        bool before = round % 2 == 0;

        await_memory(0, 1);
        if (before)
            signal_rank(stopped, SIGSTOP);
        order_and_wait(0);
        if (!before)
            signal_rank(stopped, SIGSTOP);
        if (await_answer(0, 300))
            place(0, &run.hosts[0]);
        else
            rolled_back++;
        CHECK_THAT(rolled_back || !before, "guest 0 has answered while rank %u was stopped",
                   stopped);
        signal_rank(stopped, SIGCONT);
    }
    CHECK_THAT(rolled_back >= 6, "%u of 12 moves were rolled back", rolled_back);
    await_memory(0, 1);
    await_memory(0, 2);
    run_finish(&run);
    run_report(&run, "stopped");
}

static void test_mover_stopped(void)
{
    stand_still(0);
}

static void test_peer_stopped(void)
{
    stand_still(1);
}

/* Orders that are withdrawn at every moment: nobody is hurt, and all come back to memory. */
static void test_withdrawn(void)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_MIXED });
    run_start(&run);
    for (unsigned round = 0; round < 150; round++) {
        unsigned guest = (unsigned)dice(3);

        CHECK_THAT(guest_order(&run.guests[guest].guest) == 0, "%s", ivc_error_text());
        if (round % 3)
            run_for(&run, (unsigned)dice(MOMENT_MS));
        guest_withdraw(&run.guests[guest].guest);
        if (dice(4) == 0)
            run_for(&run, (unsigned)dice(300));
    }
    await_memory(0, 1);
    await_memory(1, 2);
    await_memory(2, 0);
    run_finish(&run);
    run_report(&run, "withdrawn");
}

/* ---- orders */

/* Another who moves the guest; it has the region mapped by itself. */
static int order_too(void *arg)
{
    struct guest *guest = arg;
    struct ivc_region *region;
    struct ivc_order order;

    CHECK_THAT(ivc_region_open(run.hosts[0].path, &region) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_order_give(region, guest->id, &order), -EALREADY);
    CHECK_TEXT(ivc_error_text(), run.hosts[0].path);
    ivc_region_free(region);
    return 0;
}

static void test_twice(void)
{
    int status;
    pid_t other;

    prepare((struct run_options){ .ranks = 2, .guests = 2 });
    run_start(&run);
    for (unsigned round = 0; round < 5; round++) {
        await_memory(0, 1);
        order_and_wait(0);
        other = check_fork(order_too, &run.guests[0].guest);
        while (waitpid(other, &status, WNOHANG) == 0)
            run_for(&run, 1);
        CHECK_EQ(status, 0);
        CHECK(await_answer(0, 5000));
        place(0, &run.hosts[0]);
    }
    run_finish(&run);
}

static void test_all_at_once(void)
{
    prepare((struct run_options){ .ranks = 4, .guests = 4, .mode = RANK_MIXED });
    run_start(&run);
    for (unsigned round = 0; round < 12; round++) {
        struct host *to = &run.hosts[(round + 1) % 2];

        for (unsigned i = 0; i < 4; i++) {
            CHECK_THAT(guest_order(&run.guests[i].guest) == 0, "%s", ivc_error_text());
            if (round % 2)
                run_for(&run, (unsigned)dice(15));
        }
        for (unsigned i = 0; i < 4; i++) {
            CHECK_THAT(await_answer(i, 5000), "guest %u has not answered", i);
            place(i, to);
        }
        if (dice(2))
            await_memory((uint32_t)dice(2), 2 + (uint32_t)dice(2));
    }
    run_finish(&run);
    run_report(&run, "all at once");
}

/* A member that is no rank, in a process of its own: IVC_VM is read once per process. */
struct occupant {
    const char *region, *vm;
    bool all;                   /* takes all memory that there is */
    pid_t pid;
    ivc_atomic_u32 *word;       /* 1: it is there, 2: it is to leave */
};

static int occupy(void *arg)
{
    struct occupant *occupant = arg;
    struct ivc_identity identity = { .magic_id = 77 };
    struct ivc_region *region;
    void *piece;

    setenv("IVC_VM", occupant->vm, 1);
    CHECK_THAT(ivc_region_open(occupant->region, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, &identity) == 0, "%s", ivc_error_text());
    while (occupant->all && ivc_region_lend(region, 4096, &piece) == 0)
        ;
    ivc_store_release(occupant->word, 1);
    while (ivc_load_acquire(occupant->word) == 1)
        ivc_sleep_ms(5);
    ivc_region_leave(region);
    ivc_region_free(region);
    return 0;
}

static void occupant_start(struct occupant *occupant)
{
    occupant->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(occupant->word != MAP_FAILED);
    occupant->pid = check_fork(occupy, occupant);
    while (ivc_load_acquire(occupant->word) != 1)
        CHECK(waitpid(occupant->pid, NULL, WNOHANG) == 0);
}

static void occupant_end(struct occupant *occupant)
{
    ivc_store_release(occupant->word, 2);
    check_join(occupant->pid);
}

/* A member of the guest that does not know orders keeps the device; the others come back. */
static void test_old_library(void)
{
    struct occupant old;

    prepare((struct run_options){ .ranks = 2, .guests = 2 });
    old = (struct occupant){ .region = run.hosts[0].path, .vm = run.guests[0].guest.vm };
    occupant_start(&old);
    run_start(&run);
    await_memory(0, 1);
    CHECK_THAT(guest_order(&run.guests[0].guest) == 0, "%s", ivc_error_text());
    CHECK(!await_answer(0, 1000));
    await_memory(0, 1);
    occupant_end(&old);
    CHECK_THAT(guest_order(&run.guests[0].guest) == 0, "%s", ivc_error_text());
    CHECK(await_answer(0, 5000));
    place(0, &run.hosts[1]);
    run_await_path(&run, 0, 1, IVC_PATH_NETWORK, 5000);
    run_finish(&run);
}

/* ---- hosts */

/* The destination's region has no memory: the network it is, until there is some. */
static void test_no_room(void)
{
    struct occupant full;

    prepare((struct run_options){ .ranks = 3, .guests = 3 });
    full = (struct occupant){ .region = run.hosts[2].path, .vm = "stranger", .all = true };
    occupant_start(&full);
    run_start(&run);
    await_memory(0, 1);
    for (unsigned guest = 0; guest < 2; guest++) {
        CHECK_THAT(guest_order(&run.guests[guest].guest) == 0, "%s", ivc_error_text());
        CHECK(await_answer(guest, 5000));
        place(guest, &run.hosts[2]);
    }
    run_for(&run, 500);
    run_await_path(&run, 0, 1, IVC_PATH_NETWORK, 5000);
    run_await_path(&run, 1, 0, IVC_PATH_NETWORK, 5000);
    occupant_end(&full);
    await_memory(0, 1);
    run_finish(&run);
    run_report(&run, "no room");
}

/* Names that lead elsewhere, or nowhere, take no memory from those who have it. */
static void test_names(void)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3 });
    run.strays_at_ms = UINT64_MAX;
    run_start(&run);
    await_memory(0, 1);
    guest_place(&run.guests[0].guest, &run.hosts[1]);
    run_for(&run, 300);
    await_memory(0, 1);
    guest_place(&run.guests[0].guest, &run.hosts[0]);
    CHECK(unlink(run.hosts[0].path) == 0);
    run_for(&run, 300);
    await_memory(0, 1);
    await_memory(1, 2);
    run_finish(&run);
}

/* ---- deaths */

/* Everybody who is there has been told of it, in words that name the dead. */
static void await_told(uint32_t dead)
{
    uint64_t end = ivc_now_ms() + TOLD_MS * check_slowdown();
    char name[32];

    snprintf(name, sizeof name, "client %u", dead);
    for (uint32_t i = 0; i < run.options.ranks; i++) {
        const struct board_pair *pair = &run.board->ranks[i].pairs[dead];

        if (i == dead || run.dead[i])
            continue;
        /* Acquire: pairs with the release in on_gone(); the reason is visible. */
        while (!ivc_load_acquire(&pair->gone_at_ns)) {
            CHECK_THAT(ivc_now_ms() < end, "rank %u was not told of the end of rank %u", i, dead);
            run_for(&run, 2);
        }
        CHECK_TEXT(pair->gone_reason, name);
    }
}

static void no_end_but_of(uint32_t dead)
{
    for (uint32_t i = 0; i < run.options.ranks; i++)
        for (uint32_t k = 0; k < run.options.ranks; k++)
            CHECK_THAT(k == dead || run.dead[i] || run.dead[k]
                       || !ivc_load_acquire(&run.board->ranks[i].pairs[k].gone_at_ns),
                       "rank %u has lost rank %u, which lives: %s", i, k,
                       run.board->ranks[i].pairs[k].gone_reason);
}

static void kill_rank(uint32_t rank)
{
    run.may_die[rank] = true;
    signal_rank(rank, SIGKILL);
}

/* Guest 0 is ordered away, and a rank (its own or a peer) is killed at a random moment of it. */
static void killed(bool mover, bool kernels)
{
    enum { RANKS = 5 };

    prepare((struct run_options){ .ranks = RANKS, .guests = RANKS, .mode = RANK_MIXED,
                                  .ends_allowed = true, .kernels = kernels });
    run_start(&run);
    for (uint32_t dead = 1; dead < RANKS - 1; dead++) {
        unsigned guest = mover ? dead : 0;

        run_for(&run, (unsigned)dice(300));
        order_and_wait(guest);
        kill_rank(dead);
        CHECK_THAT(await_answer(guest, 20000), "guest %u has not answered after the end of rank %u",
                   guest, dead);
        place(guest, &run.hosts[dead % 2]);
        await_told(dead);
        no_end_but_of(dead);
    }
    run_finish(&run);
    run_report(&run, "killed");
}

static void test_mover_killed(void)
{
    killed(true, false);
}

static void test_peer_killed(void)
{
    killed(false, false);
}

static void test_killed_far(void)
{
    killed(true, true);
}

/* ---- memory that vanishes */

/* Ends are allowed if they say that something was lost. */
static void check_ends(void)
{
    for (uint32_t i = 0; i < run.options.ranks; i++)
        for (uint32_t k = 0; k < run.options.ranks; k++) {
            const struct board_pair *pair = &run.board->ranks[i].pairs[k];

            if (ivc_load_acquire(&pair->gone_at_ns))
                CHECK_TEXT(pair->gone_reason, "lost", "client");
        }
}

/* One guest's device goes without a word.  The others have the memory still: nothing is lost. */
static void pulled(bool while_moving)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_MIXED });
    run_start(&run);
    for (unsigned round = 0; round < 6; round++) {
        struct board_rank *rank = &run.board->ranks[0];

        await_memory(0, 1);
        if (while_moving)
            order_and_wait(0);
        else
            run_for(&run, (unsigned)dice(100));
        ivc_store_relaxed(&rank->pull, round + 1);
        if (while_moving) {
            CHECK_THAT(await_answer(0, 20000), "guest 0 has not answered, its device is gone");
            place(0, &run.hosts[round % 2 ? 0 : 1]);
            run_for(&run, (unsigned)dice(200));
            CHECK(guest_order(&run.guests[0].guest) == 0 && await_answer(0, 20000));
            place(0, &run.hosts[0]);
        }
    }
    await_memory(0, 1);
    await_memory(0, 2);
    run_finish(&run);
    run_report(&run, "pulled");
    CHECK(ivc_load_relaxed(&run.board->ranks[0].pulled) > 0);
}

static void test_pulled(void)
{
    pulled(false);
}

static void test_pulled_moving(void)
{
    pulled(true);
}

/* The file loses all its bytes under everybody, and comes back empty. */
static void truncated(bool while_moving)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_MIXED,
                                  .ends_allowed = true });
    run_start(&run);
    run_await_path(&run, 0, 1, IVC_PATH_MEMORY, 10000);
    run_for(&run, (unsigned)dice(300));
    if (while_moving)
        order_and_wait(0);
    for (unsigned i = 0; i < 3; i++)            /* orders go with the file */
        run.guests[i].guest.ordered_at = run.guests[i].stray.ordered_at = NULL;
    host_close(&run.hosts[0]);
    CHECK(truncate(run.hosts[0].path, 0) == 0);
    run_for(&run, 1000);
    CHECK(unlink(run.hosts[0].path) == 0);
    CHECK_THAT(host_open(&run.hosts[0], check_file(0, 64 * MIB)) == 0, "%s", ivc_error_text());
    run_for(&run, 1000);
    check_ends();
    run_finish(&run);
    run_report(&run, "truncated");
}

static void test_truncated(void)
{
    truncated(false);
}

static void test_truncated_moving(void)
{
    truncated(true);
}

/* A guest that stands still for longer than the lease loses its memory, and not its connections:
 * there is a network, which tells that it lives. */
static void test_evicted(void)
{
    enum { LEASE_MS = 1500 };
    struct ivc_layout_header *header;

    prepare((struct run_options){ .ranks = 3, .guests = 3, .kernels = true, .ends_allowed = true });
    header = run.hosts[0].region->mapping.memory;
    ivc_store_relaxed(&header->lease_ms, LEASE_MS);     /* before they open it */
    run_start(&run);
    await_memory(0, 1);
    signal_rank(0, SIGSTOP);
    run_for(&run, 2 * LEASE_MS + 1000);
    await_memory(1, 2);
    signal_rank(0, SIGCONT);
    run_for(&run, 2000);
    check_ends();
    run_finish(&run);
    run_report(&run, "evicted");
}

static const struct check_case cases[] = {
    { "the one that moves is stopped", test_mover_stopped, 120 },
    { "a peer of the one that moves is stopped", test_peer_stopped, 120 },
    { "orders withdrawn at every moment", test_withdrawn, 120 },
    { "ordered twice", test_twice, 60 },
    { "all ordered at once", test_all_at_once, 120 },
    { "a member that does not know orders", test_old_library, 60 },
    { "no room at the destination", test_no_room, 60 },
    { "names that change", test_names, 60 },
    { "the one that moves is killed", test_mover_killed, 240 },
    { "a peer of the one that moves is killed", test_peer_killed, 240 },
    { "killed, of another kernel", test_killed_far, 240 },
    { "a device pulled without asking", test_pulled, 180 },
    { "a device pulled in the middle of a move", test_pulled_moving, 180 },
    { "the file truncated", test_truncated, 120 },
    { "the file truncated in the middle of a move", test_truncated_moving, 120 },
    { "stopped for longer than the lease", test_evicted, 120 },
};
CHECK_MAIN(cases)
