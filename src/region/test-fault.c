/*
 * Tests of windows that are taken away: nobody is ended by a signal, everybody learns of it, and
 * the application's own faults stay its own.
 */
#include "check.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>

enum { SIZE = 4 << 20, PAGE = 4096 };

static struct ivc_region *join(const char *path, uint32_t client_id)
{
    struct ivc_region *region = NULL;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(1, client_id)) == 0, "%s", ivc_error_text());
    return region;
}

/* How many processes of exchange() have shared and lent; in memory of their own with the parent. */
static ivc_atomic_u32 *ready;

/* Writes for ever into what it shares and reads what the other one does, until the memory is
 * gone. */
static int exchange(void *arg)
{
    struct ivc_region *region = join(arg, 1);
    uint64_t size = 64 * PAGE, total = 0;
    struct ivc_share share;
    const void *peer = (char *)region->mapping.memory + region->geometry.blocks;
    struct ivc_lent_place place;
    void *lent, *more;

    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, size, &share), 0);
    CHECK_EQ(ivc_region_lend(region, PAGE, &lent), 0);
    CHECK(ivc_region_find_lent(lent, PAGE, RTLD_DEFAULT, &place));
    atomic_fetch_add(ready, 1);
    while (!ivc_region_is_lost(region))
        for (uint64_t i = 0; i < size; i += 64) {
            ((volatile char *)share.memory)[i]++;
            total += ((const volatile uint8_t *)peer)[i];
        }
    while (!ivc_region_alarm(region))       /* the helper thread's, when it was the first to fault */
        ivc_sleep_ms(1);
    /* It is private: others would read what lies in the file. */
    CHECK(!ivc_region_find_lent(lent, PAGE, RTLD_DEFAULT, &place));
    CHECK_EQ(ivc_region_lend(region, 1, &more), IVC_E_NOREGION);
    CHECK_TEXT(ivc_error_text(), "taken away");
    memset(lent, 1, PAGE);          /* goes on being memory */
    CHECK_EQ(((char *)lent)[PAGE - 1], 1);
    CHECK_EQ(ivc_region_take_back(region, lent), 0);
    if (total % 2)
        CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    ivc_region_free(region);
    return 0;
}

/* At moments that differ, to less than a page and to nothing. */
static void test_truncated(void)
{
    ready = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ready != MAP_FAILED);
    for (unsigned round = 0; round < 20; round++) {
        const char *path = check_file(round % 10, SIZE);
        struct ivc_region *region;
        pid_t pids[2];

        CHECK_EQ(ivc_region_open(path, &region), 0);
        for (unsigned i = 0; i < 2; i++)
            pids[i] = check_fork(exchange, (void *)path);
        while (ivc_load_relaxed(ready) < 2 * (round + 1))
            ivc_sleep_ms(1);
        ivc_sleep_ms(round * 3);
        CHECK_EQ(truncate(path, round % 2 ? 0 : 100), 0);
        check_join(pids[0]);
        check_join(pids[1]);
        CHECK(ivc_region_look_if_lost(region));
        ivc_region_free(region);
    }
}

static int keep(void *arg)
{
    struct ivc_region *region = join(arg, 1);
    void *lent;

    CHECK_EQ(ivc_region_end_if_lent_lost(region), 0);
    CHECK_EQ(ivc_region_lend(region, PAGE, &lent), 0);
    CHECK_EQ(dup2(open("/dev/null", O_WRONLY), STDERR_FILENO), STDERR_FILENO);      /* the line */
    ivc_guard_stop(region);
    CHECK_EQ(truncate(arg, 0), 0);
    memset(lent, 1, PAGE);
    exit(1);
}

/* Whose memory it is has said that he cannot go on without. */
static void test_ends(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = join(path, 2);
    void *lent;
    int status;
    pid_t pid;

    CHECK_EQ(ivc_region_end_if_lent_lost(region), 0);
    CHECK_EQ(ivc_region_lend(region, PAGE, &lent), 0);
    CHECK_EQ(ivc_region_take_back(region, lent), 0);        /* nothing of it is left: we go on */
    pid = check_fork(keep, (void *)path);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_THAT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%d", status);
    CHECK(ivc_region_look_if_lost(region));
    ivc_region_free(region);
}

/* A member that touches nothing learns of it from its helper thread. */
static void test_idle(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = join(path, 1);
    uint64_t start;

    ivc_sleep_ms(300);
    CHECK(!ivc_region_is_lost(region) && !ivc_region_alarm(region));
    CHECK_EQ(truncate(path, SIZE / 2), 0);      /* the tables are still there */
    start = ivc_now_ms();
    while (!ivc_region_alarm(region) || !ivc_region_is_lost(region))
        ivc_sleep_ms(5);
    CHECK_THAT(ivc_now_ms() - start < 1000 * check_slowdown(), "%u ms",
               (unsigned)(ivc_now_ms() - start));
    ivc_region_leave(region);
    ivc_region_free(region);
}

/* Cleared, or answering with ones as a pulled device does: without a fault. */
static void test_overwritten(void)
{
    for (unsigned round = 0; round < 2; round++) {
        const char *path = check_file(round, SIZE);
        struct ivc_region *region = join(path, 1), *other;

        CHECK_EQ(ivc_region_open(path, &other), 0);
        memset(other->mapping.memory, round ? 0xff : 0, PAGE);
        for (unsigned i = 0; i < 500 && !ivc_region_is_lost(region); i++)
            ivc_sleep_ms(10);
        CHECK(ivc_region_is_lost(region) && ivc_region_look_if_lost(other));
        ivc_region_free(region);
        ivc_region_free(other);
    }
}

/* A name that is gone takes nothing away. */
static void test_unlinked(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *a = join(path, 1), *b = join(path, 2);
    struct ivc_share share;
    const void *seen;

    CHECK_EQ(ivc_region_share(a, IVC_SLOT_ANY, PAGE, &share), 0);
    CHECK_EQ(unlink(path), 0);
    check_file(0, SIZE);            /* another file of that name */
    ivc_sleep_ms(400);
    CHECK(!ivc_region_look_if_lost(a) && !ivc_region_look_if_lost(b));
    strcpy(share.memory, "still here");
    CHECK_EQ(ivc_region_map(b, 0, share.handle, PAGE, &seen), 0);
    CHECK(strcmp(seen, "still here") == 0);
    CHECK_EQ(ivc_region_retire(a, &(struct iovec){ share.memory, PAGE }, 1), 0);
    CHECK(strcmp(share.memory, "still here") == 0 && !ivc_region_is_lost(a));
    ivc_region_free(a);
    ivc_region_free(b);
}

/* ---------------------------------------------------------------- faults of the application */

static sigjmp_buf back;
static volatile unsigned faults;

static void on_own_fault(int number)
{
    CHECK_EQ(number, SIGBUS);
    faults++;
    siglongjmp(back, 1);
}

/* A mapping that ends before its file does. */
static volatile char *bad_memory(unsigned number)
{
    const char *path = check_file(number, PAGE);
    int fd = open(path, O_RDWR);
    void *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(fd >= 0 && memory != MAP_FAILED);
    CHECK_EQ(ftruncate(fd, 0), 0);
    return memory;
}

static void touch(volatile char *bad)
{
    if (sigsetjmp(back, 1) == 0) {
        *bad = 1;
        CHECK(false);
    }
}

static void test_own_handler(void)
{
    volatile char *bad = bad_memory(1);
    struct sigaction now;
    struct ivc_region *region;

    signal(SIGBUS, on_own_fault);
    region = join(check_file(0, SIZE), 1);
    touch(bad);
    touch(bad);
    CHECK(!ivc_region_is_lost(region));
    ivc_region_free(region);
    CHECK_EQ(sigaction(SIGBUS, NULL, &now), 0);
    CHECK(now.sa_handler == on_own_fault);
    touch(bad);
    CHECK_EQ(faults, 3);
}

static struct sigaction ours;

static void pass_to_ours(int number, siginfo_t *info, void *context)
{
    faults++;
    ours.sa_sigaction(number, info, context);
}

/* Somebody who came later and knows of us, as another copy of this library would: faults of the
 * window reach us through him, also when our last region was freed in between. */
static void test_chained(void)
{
    struct sigaction later = { .sa_sigaction = pass_to_ours, .sa_flags = SA_SIGINFO }, now;

    for (unsigned round = 1; round <= 2; round++) {
        const char *path = check_file(0, SIZE);
        struct ivc_region *region = join(path, 1);

        if (round == 1) {
            CHECK_EQ(sigaction(SIGBUS, &later, &ours), 0);
            CHECK(ours.sa_flags & SA_SIGINFO);
        }
        ivc_guard_stop(region);     /* which would be faster than we are */
        CHECK_EQ(truncate(path, 0), 0);
        ((volatile char *)region->mapping.memory)[SIZE / 2] = 1;
        CHECK(ivc_region_is_lost(region));
        /* It might pass nothing on: once we know of it, we put ourselves before it. */
        CHECK(faults <= 1);
        ivc_region_free(region);
        CHECK_EQ(sigaction(SIGBUS, NULL, &now), 0);
        CHECK(now.sa_sigaction == pass_to_ours);
    }
}

static int fault(void *arg)
{
    struct ivc_region *region = join(arg, 1);

    *bad_memory(1) = 1;
    ivc_region_free(region);
    return 0;
}

static void test_no_handler(void)
{
    int status;
    pid_t pid;

    signal(SIGBUS, SIG_DFL);
    pid = check_fork(fault, (void *)check_file(0, SIZE));
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_THAT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "%d", status);
}

/* Threads that fault at the same moment. */
static void *hammer(void *arg)
{
    struct ivc_region *region = arg;
    uint64_t at = 0;

    while (!ivc_region_is_lost(region)) {
        at = (at + 7 * PAGE + 64) % SIZE;
        (void)*((volatile char *)region->mapping.memory + at);
    }
    return NULL;
}

static void test_threads(void)
{
    for (unsigned round = 0; round < 20; round++) {
        const char *path = check_file(0, SIZE);
        struct ivc_region *region = join(path, 1);
        pthread_t threads[4];

        for (unsigned i = 0; i < 4; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, hammer, region), 0);
        ivc_sleep_ms(3);
        CHECK_EQ(truncate(path, 0), 0);
        for (unsigned i = 0; i < 4; i++)
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
        ivc_region_free(region);
    }
}

static void *renew(void *arg)
{
    ivc_atomic_u32 *stop = arg;

    while (!ivc_load_relaxed(stop))
        ivc_chain_renew(SIGBUS);
    return NULL;
}

static int join_and_leave(void *arg)
{
    ivc_region_free(join(arg, 2));
    return 0;
}

/* A child joins while a helper thread of its parent was busy with the signal's handler. */
static void test_fork(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = join(path, 1);
    ivc_atomic_u32 stop = 0;
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, renew, &stop), 0);
    for (unsigned i = 0; i < 50; i++)
        check_join(check_fork(join_and_leave, (void *)path));
    ivc_store_relaxed(&stop, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    ivc_region_free(region);
}

static const struct check_case cases[] = {
    { "truncated while two exchange", test_truncated, 0 },
    { "truncated under what a process cannot do without", test_ends, 0 },
    { "truncated while one is idle", test_idle, 0 },
    { "overwritten", test_overwritten, 0 },
    { "unlinked", test_unlinked, 0 },
    { "an application's own handler", test_own_handler, 0 },
    { "a handler that came later", test_chained, 0 },
    { "no handler", test_no_handler, 0 },
    { "several threads at once", test_threads, 0 },
    { "forked while a helper works", test_fork, 0 },
};
CHECK_MAIN(cases)
