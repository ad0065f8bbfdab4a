/*
 * Tests of the gate: the application's thread goes in and out while another one closes it, and what a start does not pay for.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/endpoint.h"
#include "endpoint/gate.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

enum { CLOSINGS = 20000, LOOKS = 100, ENOUGH_MS = 2000 };     /* threads that share a processor take longer */

static struct ivc_gate gate;
static ivc_atomic_u32 done;
static ivc_atomic_u64 entries;  /* only who is inside writes them */

/* Whether this process may ask for a fence of all its threads: 0, or the reason. */
static int fence_refused(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0 ? 0 : errno;
}

static void skip_without_membarrier(void)
{
    if (fence_refused() != EPERM)
        check_skip("this kernel has no membarrier(2) for one process");
}

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg, (void)peer, (void)packet;
}

static void test_start(void)
{
    const struct ivc_endpoint_options options = {
        .region = check_file(0, 4 << 20), .magic_id = 7, .on_packet = on_packet, .moves = true,
    };
    struct ivc_endpoint *endpoint;

    skip_without_membarrier();
    CHECK_THAT(ivc_endpoint_open(&options, &endpoint) == 0, "%s", ivc_error_text());
    CHECK_EQ(fence_refused(), EPERM);
    ivc_endpoint_free(endpoint);
}

static void test_first_close(void)
{
    skip_without_membarrier();
    ivc_gate_init(&gate);
    CHECK(!gate.fence);
    CHECK_EQ(fence_refused(), EPERM);
    ivc_gate_close(&gate);
    CHECK_EQ(fence_refused(), 0);
    ivc_gate_open(&gate);
    ivc_gate_free(&gate);
}

static void *go_in_and_out(void *arg)
{
    (void)arg;
    while (ivc_load_relaxed(&done) == 0) {
        ivc_gate_enter(&gate);
        ivc_store_relaxed(&entries, ivc_load_relaxed(&entries) + 1);
        ivc_gate_leave(&gate);
    }
    return NULL;
}

/* While the gate is closed nobody goes in, and who was inside has left. */
static void expect_nobody_inside(void)
{
    uint64_t before = ivc_load_relaxed(&entries);

    for (unsigned i = 0; i < LOOKS; i++)
        CHECK_EQ(ivc_load_relaxed(&entries), before);
}

static void await_an_entry(void)
{
    uint64_t before = ivc_load_relaxed(&entries);

    while (ivc_load_relaxed(&entries) == before)
        sched_yield();
}

static void test_one_inside(void)
{
    uint64_t end = ivc_now_ms() + ENOUGH_MS;
    pthread_t thread;

    ivc_gate_init(&gate);
    CHECK_EQ(pthread_create(&thread, NULL, go_in_and_out, NULL), 0);
    for (unsigned i = 0; i < CLOSINGS && ivc_now_ms() < end; i++) {
        await_an_entry();
        ivc_gate_close(&gate);
        expect_nobody_inside();
        ivc_gate_open(&gate);
    }
    ivc_store_relaxed(&done, 1);
    pthread_join(thread, NULL);
    ivc_gate_free(&gate);
}

static const struct check_case cases[] = {
    { "an endpoint starts without registering for fences", test_start, 0 },
    { "the first close registers", test_first_close, 0 },
    { "one inside at a time", test_one_inside, 60 },
};

CHECK_MAIN(cases)
