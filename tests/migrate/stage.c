/* The run of a fault's case: see stage.h. */
#include "stage.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

struct run stage_run;
static uint64_t random_state;

uint64_t stage_dice(uint64_t sides)
{
    return check_random(&random_state) % sides;
}

void stage_prepare_on(struct run_options options, const char *const *paths)
{
    options.seed = ivc_now_ns() / 1000 % 1000000000 + 1;
    random_state = options.seed;
    if (!options.longest)
        options.longest = 1 << 20;
    printf("# seed %llu\n", (unsigned long long)options.seed);
    run_prepare(&stage_run, &options, paths, 3);
}

void stage_signal(uint32_t rank, int number)
{
    if (number == SIGSTOP)
        run_stop_rank(&stage_run, rank);
    else
        CHECK(kill(stage_run.board->ranks[rank].pid, number) == 0);
}

void stage_order(unsigned guest)
{
    CHECK_THAT(guest_order(&stage_run.guests[guest].guest) == 0, "%s", ivc_error_text());
    run_for(&stage_run, (unsigned)stage_dice(STAGE_MOMENT_MS));
}

static unsigned members_left(unsigned guest)
{
    return guest_members(&stage_run.guests[guest].guest, stage_run.guests[guest].guest.ordered_at);
}

bool stage_await_answer(unsigned guest, unsigned ms)
{
    uint64_t end = run_ms(&stage_run) + ms;

    while (members_left(guest) > 0 && run_ms(&stage_run) < end)
        run_for(&stage_run, 1);
    if (members_left(guest) == 0)
        return true;
    guest_withdraw(&stage_run.guests[guest].guest);
    return false;
}

void stage_place(unsigned guest, struct host *to)
{
    guest_place(&stage_run.guests[guest].guest, to);
    guest_withdraw(&stage_run.guests[guest].guest);
}

void stage_await_memory(uint32_t a, uint32_t b)
{
    run_await_path(&stage_run, a, b, IVC_PATH_MEMORY, 10000);
    run_await_path(&stage_run, b, a, IVC_PATH_MEMORY, 10000);
}
