/* When to sleep: see rest.h. */
#include "endpoint/rest.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

enum {
    SPIN_US = 1000,             /* everybody has a processor: waking costs 5 to 50 us */
    SPIN_CROWDED_US = 20,       /* two round trips between two who run */
    JUMP_US = 200,              /* no interrupt takes that long, another task does */
    JUMPS_WITHIN_US = 100000,   /* two of them: it was not by chance */
    CROWDED_FOR_US = 200000,    /* then it is tried again */
    LOOKS_IN_A_ROW = 16,        /* between jumps: else the caller has other work in between its turns */
    WORK_US = 1,                /* between two turns: so has it then; who only waits needs a tenth, */
    PACES = 4,                  /* or on a slow processor a tenth of so many times pace() */
    WORK_SEEN = 4,              /* by a look; an interrupt, which comes seldom, looks the same: */
    WORK_MAX = 16,              /* less is forgotten, with each look that sees none */
    SPIN_AGAIN_US = 10,         /* after a sleep */
    SLEEP_MIN_US = 50,
    SLEEP_MAX_US = 50000,       /* no sleep is longer (wait.c) */
    SLEEP_CAUTIOUS_US = 1000,
    SLEEP_PART = 16,            /* of the time waited: whatever else ends the wait comes that much later */
    SLEEP_PART_CAUTIOUS = 64,
    PACE_TRIES = 8,             /* an interrupt spoils one */
    PACE_STEPS = 8,
    PACE_WORDS = 16,
    LATE_MAX_US = 4000,         /* more says nothing of how late sleeps end, but of that one */
    SPIN_US_MAX = 1000000000,
};

/* In cycles, what some of what a turn does takes here: a fifth of a microsecond on a processor of today, a
 * hundred times that where each instruction is emulated, and a hypervisor answers for the counter. */
static uint64_t pace(void)
{
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < PACE_TRIES; i++) {
        uint64_t start = ivc_cycles(), end = start;
        volatile uint32_t sum = 0;

        for (int j = 0; j < PACE_STEPS; j++) {
            for (uint32_t k = 0; k < PACE_WORDS; k++)
                sum += k;
            end = ivc_cycles();
        }
        least = IVC_MIN(least, end - start);
    }
    return least;
}

int ivc_rest_init(struct ivc_rest *rest)
{
    const char *text = getenv("IVC_SPIN");
    uint64_t us = 0;

    *rest = (struct ivc_rest){
        .due_at = UINT32_MAX, .spin_ns = IVC_REST_ADAPTIVE, .start_cycles = ivc_cycles(),
        .start_ns = ivc_now_ns(), .pace = pace(),
    };
    if (!text || !*text || strcmp(text, "adaptive") == 0)
        return 0;
    rest->spin_ns = IVC_REST_NEVER;
    if (strcmp(text, "forever") == 0)
        return 0;
    if (ivc_env_number("IVC_SPIN", "microseconds", 0, SPIN_US_MAX, &us) < 0)
        return ivc_error_set(-EINVAL, "IVC_SPIN=%s: write a number of microseconds, adaptive or forever",
                             text);
    rest->spin_ns = us * 1000;
    return 0;
}

/* False: not long enough has gone by since the opening to tell. */
static bool know_cycles(struct ivc_rest *rest)
{
    uint64_t ns;

    if (rest->cycles_per_us > 0)
        return true;
    ns = ivc_now_ns() - rest->start_ns;
    if (ns < 1000000)
        return false;
    rest->cycles_per_us = IVC_MAX((ivc_cycles() - rest->start_cycles) * 1000 / ns, 1);
    return true;
}

/* The processor was away for so long, or the caller. */
static void see_jump(struct ivc_rest *rest, const struct ivc_crowd *crowd, uint64_t now, uint64_t step)
{
    rest->since += step;        /* nobody waited meanwhile */
    if (rest->looks >= LOOKS_IN_A_ROW && crowd->yields == 0) {
        if (now - rest->jumped < JUMPS_WITHIN_US * rest->cycles_per_us)
            rest->crowded_since = now;
        rest->jumped = now;
    }
    rest->looks = 0;
}

static void see_turns(struct ivc_rest *rest, uint64_t now, bool work)
{
    rest->looks++;
    if (!work)
        rest->work -= rest->work > 0;
    else
        rest->work = IVC_MIN(rest->work + WORK_SEEN, WORK_MAX);
    if (rest->work == WORK_MAX)
        rest->since = now;      /* nobody waits yet */
}

static uint64_t spin_cycles(const struct ivc_rest *rest, const struct ivc_crowd *crowd,
                            uint64_t now)
{
    if (rest->spin_ns != IVC_REST_ADAPTIVE)
        return rest->spin_ns * rest->cycles_per_us / 1000;
    if (crowd->yields == 0 && now - rest->crowded_since < CROWDED_FOR_US * rest->cycles_per_us)
        return SPIN_CROWDED_US * rest->cycles_per_us;
    return SPIN_US * rest->cycles_per_us;
}

/* Between two turns. */
static uint64_t work_cycles(const struct ivc_rest *rest)
{
    return IVC_MAX(WORK_US * rest->cycles_per_us, PACES * rest->pace);
}

void ivc_rest_look(struct ivc_rest *rest, const struct ivc_crowd *crowd)
{
    uint64_t now = ivc_cycles();
    uint64_t step = now - rest->last, given = crowd->given - rest->given, spin;

    rest->last = now;
    rest->given = crowd->given;
    rest->due_at = UINT32_MAX;
    if (rest->spin_ns == IVC_REST_NEVER || !know_cycles(rest))
        return;
    if (crowd->idle < IVC_CROWD_TURNS + 2 * IVC_REST_LOOK_EVERY) {
        rest->since = now;      /* the first look of this wait */
    } else {
        if (step > JUMP_US * rest->cycles_per_us)
            see_jump(rest, crowd, now, step);
        see_turns(rest, now, step - IVC_MIN(given, step)
                             > IVC_REST_LOOK_EVERY * work_cycles(rest));
    }
    spin = spin_cycles(rest, crowd, now);
    if (now - rest->since >= spin && rest->work == 0
        && now - rest->rested >= IVC_MIN(spin, SPIN_AGAIN_US * rest->cycles_per_us)
        && now - rest->only_looked >= SPIN_US * rest->cycles_per_us)
        rest->due_at = crowd->idle;
}

uint64_t ivc_rest_ns(const struct ivc_rest *rest, bool woken, bool alone)
{
    uint64_t waited_us = (ivc_cycles() - rest->since) / rest->cycles_per_us;
    uint64_t us = IVC_MAX(waited_us / SLEEP_PART, SLEEP_MIN_US);
    uint64_t cautious_us = waited_us / SLEEP_PART_CAUTIOUS;

    if (rest->neighbours == IVC_NEIGHBOURS_SILENT)
        return 0;
    if (!woken)
        us = cautious_us < SLEEP_MIN_US + rest->late_ns / 1000 ? 0 : cautious_us;
    else if (alone)
        us = SLEEP_MAX_US;
    else if (rest->neighbours == IVC_NEIGHBOURS_OF_OURS)
        us = IVC_MIN(us, IVC_MAX(cautious_us, SLEEP_CAUTIOUS_US));
    return IVC_MIN(us, SLEEP_MAX_US) * 1000;
}

void ivc_rest_is_no_wait(struct ivc_rest *rest)
{
    rest->since = rest->only_looked = ivc_cycles();
    rest->due_at = UINT32_MAX;
}

void ivc_rest_is_over(struct ivc_rest *rest, uint64_t asked_ns, uint64_t slept_ns)
{
    rest->last = rest->rested = ivc_cycles();
    rest->due_at = UINT32_MAX;
    if (slept_ns >= asked_ns && asked_ns > 0)
        rest->late_ns = IVC_MIN(slept_ns - asked_ns, (uint64_t)LATE_MAX_US * 1000);
}
