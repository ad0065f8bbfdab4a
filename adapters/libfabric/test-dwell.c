/*
 * Tests of dwelling: of whom it is taken that he stays away between two reads in vain.  By a clock of the test's own
 * (the linker puts it in place of the system's), so that no interrupt is taken for staying away.
 */
#include "check.h"

#include "cq.h"

enum { WAITS = 2000, AWAY_NS = 400 };

static struct ivc_fi_cq cq;     /* of no endpoint: nothing ever comes */

static uint64_t now_ns = 1;

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    enum { COST_NS = 20, SECOND_NS = 1000000000 };

    (void)clock;
    now_ns += COST_NS;
    *ret_time = (struct timespec){ (time_t)(now_ns / SECOND_NS), (long)(now_ns % SECOND_NS) };
    return 0;
}

static void pass(uint64_t ns)
{
    now_ns += ns;
}

/* A wait that finds something after `looks` reads in vain, between which the caller stays away; who `drains` has read
 * once more after what came last, and worked since. */
static void wait_once(bool drains, unsigned looks, uint64_t away_ns)
{
    if (drains) {
        ivc_fi_cq_dwell(&cq);
        pass(AWAY_NS);
    }
    for (unsigned i = 0; i < looks; i++) {
        ivc_fi_cq_dwell(&cq);
        if (away_ns > 0)
            pass(away_ns);
    }
    cq.dwell.vain = 0;      /* as cq.c does */
}

/* How many waits began with dwelling. */
static unsigned count_dwelling(bool drains, unsigned looks, uint64_t away_ns)
{
    unsigned n = 0;

    cq = (struct ivc_fi_cq){ 0 };
    for (unsigned i = 0; i < WAITS; i++) {
        n += cq.dwell.away_ns > 0;
        wait_once(drains, looks, away_ns);
    }
    return n;
}

/* It is known from the 16th wait on. */
static void test_gives_way(void)
{
    CHECK_EQ(count_dwelling(false, 4, AWAY_NS), WAITS - 16);
}

static void test_comes_back(void)
{
    CHECK_EQ(count_dwelling(false, 4, 0), 0);
    CHECK_EQ(count_dwelling(false, 4, 10 * AWAY_NS), 0);    /* who works, or gave his processor to another */
}

/* What it did between two waits is no staying away: neither with many looks in one nor with few. */
static void test_drains(void)
{
    CHECK_EQ(count_dwelling(true, 4, 0), 0);
    CHECK_EQ(count_dwelling(true, 1, 0), 0);
}

static const struct check_case cases[] = {
    { "who gives way between two looks", test_gives_way, 0 },
    { "who comes back at once", test_comes_back, 0 },
    { "who reads until there is nothing left", test_drains, 0 },
};
CHECK_MAIN(cases)
