/*
 * One guest of a test's own processes, and two hosts between which it moves.  The moves are made by the test, step by
 * step; who is moved may be the process that makes them: the library's helper thread answers.
 */
#ifndef IVC_TESTS_MIGRATE_ONE_GUEST_H
#define IVC_TESTS_MIGRATE_ONE_GUEST_H

#include "guest.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

enum { REGION = 16 << 20 };

static struct host hosts[2];
static struct guest guest;

static void prepare(void)
{
    static char link[96];

    for (unsigned i = 0; i < 2; i++)
        CHECK_THAT(host_open(&hosts[i], check_file(i, REGION)) == 0, "%s", ivc_error_text());
    snprintf(link, sizeof link, "%s-9", check_scratch);
    guest_init(&guest, "g1", link);
    guest_place(&guest, &hosts[0]);
    setenv("IVC_VM", "g1", 1);
    setenv("IVC_REGION", link, 1);
}

/* How long the answer took. */
static uint64_t order_and_wait(void)
{
    uint64_t start = ivc_now_ms();

    CHECK_THAT(guest_order(&guest) == 0, "%s", ivc_error_text());
    while (guest_members(&guest, guest.ordered_at) > 0) {
        CHECK_THAT(ivc_now_ms() - start < 10000 * check_slowdown(), "nobody answers");
        guest_beat(&guest);
        ivc_sleep_ms(1);
    }
    return ivc_now_ms() - start;
}

static void arrive_at(struct host *host)
{
    guest_place(&guest, host);
    guest_withdraw(&guest);
}

static void move_to(struct host *host)
{
    (void)order_and_wait();
    arrive_at(host);
}

#endif
