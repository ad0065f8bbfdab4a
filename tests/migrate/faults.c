/*
 * What goes wrong while guests move: answers that do not come, processes that are killed, orders
 * that are withdrawn.  Each at a random moment of the move, again and again.  Memory that
 * vanishes: losses.c.
 *
 * Whoever lives gets every byte, once and in order; the end of one who was killed is told to all
 * others in words that name it, and nothing hangs.
 */
#include "occupant.h"
#include "stage.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

enum { TOLD_MS = 30000 };       /* docs/network.md: an ended process, if we only wait, 10 s */

static bool grants;             /* hosts have grants instead of a region for all */

static void prepare(struct run_options options)
{
    options.grants = grants;
    stage_prepare(options);
}

/* ---- answers that do not come */

/* The one who moves, or one of its peers, stands still until the order is withdrawn. */
static void stand_still(uint32_t stopped)
{
    enum { ROUNDS = 4 };
    unsigned rolled_back = 0;

    prepare((struct run_options){ .ranks = 3, .guests = 3 });
    run_start(&stage_run);
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool before = round % 2 == 0;

        stage_await_memory(0, 1);
        if (before)
            stage_signal(stopped, SIGSTOP);
        stage_order(0);
        if (!before)
            stage_signal(stopped, SIGSTOP);
        if (stage_await_answer(0, 300))
            stage_place(0, &stage_run.hosts[0]);
        else
            rolled_back++;
        CHECK_THAT(rolled_back || !before, "guest 0 has answered while rank %u was stopped",
                   stopped);
        stage_signal(stopped, SIGCONT);
    }
    CHECK_THAT(rolled_back >= ROUNDS / 2, "%u of %d moves were rolled back", rolled_back,
               ROUNDS);
    stage_await_memory(0, 1);
    stage_await_memory(0, 2);
    run_finish(&stage_run);
    run_report(&stage_run, "stopped");
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
    run_start(&stage_run);
    for (unsigned round = 0; round < 60; round++) {
        unsigned guest = (unsigned)stage_dice(3);

        CHECK_THAT(guest_order(&stage_run.guests[guest].guest) == 0, "%s", ivc_error_text());
        if (round % 3)
            run_for(&stage_run, (unsigned)stage_dice(STAGE_MOMENT_MS));
        guest_withdraw(&stage_run.guests[guest].guest);
        if (stage_dice(4) == 0)
            run_for(&stage_run, (unsigned)stage_dice(300));
    }
    stage_await_memory(0, 1);
    stage_await_memory(1, 2);
    stage_await_memory(2, 0);
    run_finish(&stage_run);
    run_report(&stage_run, "withdrawn");
}

/* ---- orders */

/* Another who moves the guest; it has the region mapped by itself. */
static int order_too(void *arg)
{
    struct guest *guest = arg;
    struct ivc_region *region;
    struct ivc_order order;

    CHECK_THAT(ivc_region_open(stage_run.hosts[0].path, &region) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_order_give(region, guest->id, &order), -EALREADY);
    CHECK_TEXT(ivc_error_text(), stage_run.hosts[0].path);
    ivc_region_free(region);
    return 0;
}

static void test_twice(void)
{
    int status;
    pid_t other;

    prepare((struct run_options){ .ranks = 2, .guests = 2 });
    run_start(&stage_run);
    for (unsigned round = 0; round < 3; round++) {
        stage_await_memory(0, 1);
        stage_order(0);
        other = check_fork(order_too, &stage_run.guests[0].guest);
        while (waitpid(other, &status, WNOHANG) == 0)
            run_for(&stage_run, 1);
        CHECK_EQ(status, 0);
        CHECK(stage_await_answer(0, 5000 * check_slowdown()));
        stage_place(0, &stage_run.hosts[0]);
    }
    run_finish(&stage_run);
}

static void test_all_at_once(void)
{
    prepare((struct run_options){ .ranks = 4, .guests = 4, .mode = RANK_MIXED });
    run_start(&stage_run);
    for (unsigned round = 0; round < 6; round++) {
        struct host *to = &stage_run.hosts[(round + 1) % 2];

        for (unsigned i = 0; i < 4; i++) {
            CHECK_THAT(guest_order(&stage_run.guests[i].guest) == 0, "%s", ivc_error_text());
            if (round % 2)
                run_for(&stage_run, (unsigned)stage_dice(15));
        }
        for (unsigned i = 0; i < 4; i++) {
            CHECK_THAT(stage_await_answer(i, 5000 * check_slowdown()), "guest %u has not answered", i);
            stage_place(i, to);
        }
        if (stage_dice(2))
            stage_await_memory((uint32_t)stage_dice(2), 2 + (uint32_t)stage_dice(2));
    }
    run_finish(&stage_run);
    run_report(&stage_run, "all at once");
}

/* A member of the guest that does not know orders keeps the device; the others come back. */
static void test_old_library(void)
{
    struct occupant old;

    prepare((struct run_options){ .ranks = 2, .guests = 2 });
    old = (struct occupant){ .region = stage_run.hosts[0].path,
                             .vm = stage_run.guests[0].guest.vm };
    occupant_start(&old);
    run_start(&stage_run);
    stage_await_memory(0, 1);
    CHECK_THAT(guest_order(&stage_run.guests[0].guest) == 0, "%s", ivc_error_text());
    CHECK(!stage_await_answer(0, 1000));
    stage_await_memory(0, 1);
    occupant_end(&old);
    CHECK_THAT(guest_order(&stage_run.guests[0].guest) == 0, "%s", ivc_error_text());
    CHECK(stage_await_answer(0, 5000 * check_slowdown()));
    stage_place(0, &stage_run.hosts[1]);
    run_await_path(&stage_run, 0, 1, IVC_PATH_NETWORK, 5000);
    run_finish(&stage_run);
}

/* ---- hosts */

/* The destination's region has no memory: the network it is, until there is some. */
static void test_no_room(void)
{
    struct occupant full;

    prepare((struct run_options){ .ranks = 3, .guests = 3 });
    full = (struct occupant){ .region = stage_run.hosts[2].path, .vm = "stranger", .all = true };
    occupant_start(&full);
    run_start(&stage_run);
    stage_await_memory(0, 1);
    for (unsigned guest = 0; guest < 2; guest++) {
        CHECK_THAT(guest_order(&stage_run.guests[guest].guest) == 0, "%s", ivc_error_text());
        CHECK(stage_await_answer(guest, 5000));
        stage_place(guest, &stage_run.hosts[2]);
    }
    run_for(&stage_run, 500);
    run_await_path(&stage_run, 0, 1, IVC_PATH_NETWORK, 5000);
    run_await_path(&stage_run, 1, 0, IVC_PATH_NETWORK, 5000);
    occupant_end(&full);
    stage_await_memory(0, 1);
    run_finish(&stage_run);
    run_report(&stage_run, "no room");
}

/* Names that lead elsewhere, or nowhere, take no memory from those who have it. */
static void test_names(void)
{
    prepare((struct run_options){ .ranks = 3, .guests = 3 });
    stage_run.names_lie = true;
    run_start(&stage_run);
    stage_await_memory(0, 1);
    guest_place(&stage_run.guests[0].guest, &stage_run.hosts[1]);
    run_for(&stage_run, 300);
    stage_await_memory(0, 1);
    guest_place(&stage_run.guests[0].guest, &stage_run.hosts[0]);
    CHECK(unlink(stage_run.hosts[0].path) == 0);
    run_for(&stage_run, 300);
    stage_await_memory(0, 1);
    stage_await_memory(1, 2);
    run_finish(&stage_run);
}

/* ---- deaths */

/* Everybody who is there has been told of it, in words that name the dead. */
static void await_told(uint32_t dead)
{
    uint64_t end = run_ms(&stage_run) + TOLD_MS * check_slowdown();
    char name[32];

    snprintf(name, sizeof name, "client %u", dead);
    for (uint32_t i = 0; i < stage_run.options.ranks; i++) {
        const struct board_pair *pair = &stage_run.board->ranks[i].pairs[dead];

        if (i == dead || stage_run.dead[i])
            continue;
        /* Acquire: pairs with the release in on_gone(); the reason is visible. */
        while (!ivc_load_acquire(&pair->gone_at_ns)) {
            CHECK_THAT(run_ms(&stage_run) < end, "rank %u was not told of the end of rank %u", i,
                       dead);
            run_for(&stage_run, 2);
        }
        CHECK_TEXT(pair->gone_reason, name);
    }
}

static void no_end_but_of(uint32_t dead)
{
    for (uint32_t i = 0; i < stage_run.options.ranks; i++)
        for (uint32_t k = 0; k < stage_run.options.ranks; k++)
            CHECK_THAT(k == dead || stage_run.dead[i] || stage_run.dead[k]
                       || !ivc_load_acquire(&stage_run.board->ranks[i].pairs[k].gone_at_ns),
                       "rank %u has lost rank %u, which lives: %s", i, k,
                       stage_run.board->ranks[i].pairs[k].gone_reason);
}

static void kill_rank(uint32_t rank)
{
    stage_run.may_die[rank] = true;
    stage_signal(rank, SIGKILL);
}

/* Guest 0 is ordered away, and a rank (its own or a peer) is killed at a random moment of it. */
static void killed(bool mover, bool kernels)
{
    enum { RANKS = 4 };

    prepare((struct run_options){ .ranks = RANKS, .guests = RANKS, .mode = RANK_MIXED,
                                  .ends_allowed = true, .kernels = kernels });
    run_start(&stage_run);
    for (uint32_t dead = 1; dead < RANKS - 1; dead++) {
        unsigned guest = mover ? dead : 0;

        run_for(&stage_run, (unsigned)stage_dice(300));
        stage_order(guest);
        kill_rank(dead);
        CHECK_THAT(stage_await_answer(guest, 20000),
                   "guest %u has not answered after the end of rank %u", guest, dead);
        stage_place(guest, &stage_run.hosts[dead % 2]);
        await_told(dead);
        no_end_but_of(dead);
    }
    run_finish(&stage_run);
    run_report(&stage_run, "killed");
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

/* ---- the same among hosts with grants; each case is a process of its own */

static void test_grants_mover_stopped(void)
{
    grants = true;
    stand_still(0);
}

static void test_grants_peer_stopped(void)
{
    grants = true;
    stand_still(1);
}

static void test_grants_withdrawn(void)
{
    grants = true;
    test_withdrawn();
}

static void test_grants_all_at_once(void)
{
    grants = true;
    test_all_at_once();
}

static void test_grants_mover_killed(void)
{
    grants = true;
    killed(true, false);
}

static void test_grants_peer_killed(void)
{
    grants = true;
    killed(false, false);
}

static const struct check_case cases[] = {
    { "the one that moves is stopped", test_mover_stopped, 240 },
    { "a peer of the one that moves is stopped", test_peer_stopped, 240 },
    { "orders withdrawn at every moment", test_withdrawn, 240 },
    { "ordered twice", test_twice, 240 },
    { "all ordered at once", test_all_at_once, 240 },
    { "a member that does not know orders", test_old_library, 240 },
    { "no room at the destination", test_no_room, 240 },
    { "names that change", test_names, 240 },
    { "the one that moves is killed", test_mover_killed, 240 },
    { "a peer of the one that moves is killed", test_peer_killed, 240 },
    { "killed, of another kernel", test_killed_far, 240 },
    { "grants: the one that moves is stopped", test_grants_mover_stopped, 240 },
    { "grants: a peer of the one that moves is stopped", test_grants_peer_stopped, 240 },
    { "grants: orders withdrawn at every moment", test_grants_withdrawn, 240 },
    { "grants: all ordered at once", test_grants_all_at_once, 240 },
    { "grants: the one that moves is killed", test_grants_mover_killed, 240 },
    { "grants: a peer of the one that moves is killed", test_grants_peer_killed, 240 },
};
CHECK_MAIN(cases)
