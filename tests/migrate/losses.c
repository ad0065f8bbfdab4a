/*
 * Memory that vanishes while guests use it: devices pulled without asking, files truncated, a guest
 * that stands still for longer than the lease.
 *
 * Each connection goes on without a byte missing, or ends with an error that names the other and
 * says that something was lost; no process may die of it, none may hang, nothing may be missing in
 * silence.
 */
#include "stage.h"

#include "check.h"

#include "base/error.h"
#include "region/internal.h"

enum { MIB = 1 << 20 };

/* Ends are allowed if they say that something was lost. */
static void check_ends(void)
{
    for (uint32_t i = 0; i < stage_run.options.ranks; i++)
        for (uint32_t k = 0; k < stage_run.options.ranks; k++) {
            const struct board_pair *pair = &stage_run.board->ranks[i].pairs[k];

            if (ivc_load_acquire(&pair->gone_at_ns))
                CHECK_TEXT(pair->gone_reason, "lost", "client");
        }
}

/* Who has lost the memory cannot say in it that he has left: others take him for dead, after so long. */
enum { LEASE_MS = 1500 };

static void shorten_lease(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct ivc_layout_header *header = stage_run.hosts[i].region->mapping.memory;

        ivc_store_relaxed(&header->lease_ms, LEASE_MS);     /* before they open it */
    }
}

/* One guest's device goes without a word.  The others have the memory still: nothing is lost. */
static void pulled(bool while_moving)
{
    stage_prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_MIXED,
                                        .kernels = true });
    shorten_lease();
    run_start(&stage_run);
    for (unsigned round = 0; round < 6; round++) {
        struct board_rank *rank = &stage_run.board->ranks[0];

        stage_await_memory(0, 1);
        if (while_moving)
            stage_order(0);
        else
            run_for(&stage_run, (unsigned)stage_dice(100));
        ivc_store_relaxed(&rank->pull, round + 1);
        if (while_moving) {
            CHECK_THAT(stage_await_answer(0, 20000),
                       "guest 0 has not answered, its device is gone");
            stage_place(0, &stage_run.hosts[round % 2 ? 0 : 1]);
            run_for(&stage_run, (unsigned)stage_dice(200));
            CHECK(guest_order(&stage_run.guests[0].guest) == 0 && stage_await_answer(0, 20000));
            stage_place(0, &stage_run.hosts[0]);
        }
    }
    stage_await_memory(0, 1);
    stage_await_memory(0, 2);
    run_finish(&stage_run);
    run_report(&stage_run, "pulled");
    CHECK(ivc_load_relaxed(&stage_run.board->ranks[0].pulled) > 0);
}

/* What the application had of ivc_alloc() is in nobody else's memory: the process must not go on. */
static void test_pulled_lent(void)
{
    struct board_pair *pairs;

    stage_prepare((struct run_options){ .ranks = 3, .guests = 3, .kernels = true, .lends = true,
                                        .ends_allowed = true });
    run_start(&stage_run);
    stage_await_memory(0, 1);
    stage_await_memory(0, 2);
    pairs = stage_run.board->ranks[0].pairs;
    ivc_store_relaxed(&stage_run.board->ranks[0].pull, 1);
    for (unsigned ms = 0; ms < 20000 && !(ivc_load_acquire(&pairs[1].gone_at_ns)
                                          && ivc_load_acquire(&pairs[2].gone_at_ns)); ms += 10)
        run_for(&stage_run, 10);
    for (unsigned i = 1; i < 3; i++) {
        CHECK(ivc_load_acquire(&pairs[i].gone_at_ns) != 0);
        CHECK_TEXT(pairs[i].gone_reason, "ivc_alloc", "lost");
    }
    run_for(&stage_run, 2000);
    check_ends();
    for (unsigned i = 1; i < 3; i++)
        CHECK_TEXT(stage_run.board->ranks[i].pairs[0].gone_reason, "it has ended", "ivc_alloc");
    run_finish(&stage_run);
    run_report(&stage_run, "pulled, lent");
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
    stage_prepare((struct run_options){ .ranks = 3, .guests = 3, .mode = RANK_MIXED,
                                  .ends_allowed = true });
    run_start(&stage_run);
    run_await_path(&stage_run, 0, 1, IVC_PATH_MEMORY, 10000);
    run_for(&stage_run, (unsigned)stage_dice(300));
    if (while_moving)
        stage_order(0);
    for (unsigned i = 0; i < 3; i++)            /* orders go with the file */
        stage_run.guests[i].guest.ordered_at = NULL;
    host_close(&stage_run.hosts[0]);
    CHECK(truncate(stage_run.hosts[0].path, 0) == 0);
    run_for(&stage_run, 1000);
    CHECK(unlink(stage_run.hosts[0].path) == 0);
    CHECK_THAT(host_open(&stage_run.hosts[0], check_file(0, 64 * MIB)) == 0, "%s",
               ivc_error_text());
    run_for(&stage_run, 1000);
    check_ends();
    run_finish(&stage_run);
    run_report(&stage_run, "truncated");
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
    stage_prepare((struct run_options){ .ranks = 3, .guests = 3, .kernels = true,
                                        .ends_allowed = true });
    shorten_lease();
    run_start(&stage_run);
    stage_await_memory(0, 1);
    stage_signal(0, SIGSTOP);
    run_for(&stage_run, 2 * LEASE_MS + 1000);
    stage_await_memory(1, 2);
    stage_signal(0, SIGCONT);
    run_for(&stage_run, 2000);
    check_ends();
    run_finish(&stage_run);
    run_report(&stage_run, "evicted");
}

static const struct check_case cases[] = {
    { "a device pulled without asking", test_pulled, 180 },
    { "a device pulled in the middle of a move", test_pulled_moving, 180 },
    { "a device pulled with memory that was lent", test_pulled_lent, 60 },
    { "the file truncated", test_truncated, 120 },
    { "the file truncated in the middle of a move", test_truncated_moving, 120 },
    { "stopped for longer than the lease", test_evicted, 120 },
};
CHECK_MAIN(cases)
