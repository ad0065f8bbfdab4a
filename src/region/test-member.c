/*
 * Tests of the directory: joining and leaving, a directory that is full, members that die, and
 * slots and blocks that must come back without anybody cleaning up.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "region/internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

enum { SIZE = 1 << 20, CAPACITY = 64 };

static struct ivc_region *open_region(const char *path)
{
    struct ivc_region *region = NULL;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    return region;
}

static struct ivc_region *join(const char *path, uint64_t magic_id, uint32_t client_id)
{
    struct ivc_region *region = open_region(path);

    CHECK_THAT(ivc_region_join(region, CHECK_AS(magic_id, client_id)) == 0, "%s", ivc_error_text());
    return region;
}

/* Makes the region with that lease: members keep the one that they found when they opened it. */
static const char *file_with_lease(uint32_t ms)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = open_region(path);

    ivc_store_relaxed(&((struct ivc_layout_header *)region->mapping.memory)->lease_ms, ms);
    ivc_region_free(region);
    return path;
}

static uint64_t free_bytes(struct ivc_region *region)
{
    struct ivc_region_info info;

    ivc_region_info(region, &info);
    return info.free_bytes;
}

/* Waits until the region has that much free memory. */
static void wait_for_free(struct ivc_region *region, uint64_t bytes, unsigned ms)
{
    uint64_t deadline = ivc_now_ms() + ms * check_slowdown();

    while (free_bytes(region) != bytes && ivc_now_ms() < deadline)
        ivc_sleep_ms(20);
    CHECK_EQ(free_bytes(region), bytes);
}

static void test_join(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *a = join(path, 77, 5), *b = join(path, 78, 6);
    const struct ivc_member *self = ivc_region_self(a);
    struct ivc_member seen;
    char host[65] = "";
    bool left;

    gethostname(host, sizeof host - 1);
    CHECK_EQ(ivc_region_capacity(b), CAPACITY);
    CHECK(ivc_region_self(b)->slot != self->slot);
    CHECK_EQ(ivc_region_member(b, self->slot, &seen), 0);
    CHECK_EQ(seen.magic_id, 77);
    CHECK_EQ(seen.client_id, 5);
    CHECK_EQ(seen.pid, getpid());
    CHECK_EQ(seen.generation, self->generation);
    CHECK(seen.same_kernel);
    CHECK(strcmp(seen.host, host) == 0);
    CHECK_EQ(ivc_region_member_check(b, self->slot, self->generation, &left), 0);
    CHECK_EQ(ivc_region_member_check(b, self->slot, self->generation + 1, &left), IVC_E_GONE);
    for (uint32_t slot = 2; slot < CAPACITY; slot++)
        CHECK_EQ(ivc_region_member(b, slot, &seen), IVC_E_GONE);
    CHECK_EQ(ivc_region_member(b, CAPACITY, &seen), -EINVAL);
    CHECK_EQ(ivc_region_member(b, UINT32_MAX, &seen), -EINVAL);
    ivc_region_free(a);
    ivc_region_free(b);
    ivc_region_free(NULL);
}

/* Whoever leaves unread frees its slot at once; the next owner has another generation. */
static void test_generations(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1, 1);
    uint64_t free_before = free_bytes(watcher);
    uint32_t generation = 0;

    for (unsigned i = 0; i < 50; i++) {
        struct ivc_region *a = join(path, 1, 2);

        CHECK_EQ(ivc_region_self(a)->slot, 1);
        CHECK(ivc_region_self(a)->generation != generation);
        generation = ivc_region_self(a)->generation;
        ivc_region_leave(a);
        ivc_region_free(a);
        CHECK_EQ(free_bytes(watcher), free_before);
    }
    /* A generation of 32 bits comes round; 0 is none and is left out. */
    ivc_store_relaxed(&ivc_region_slot(watcher, 1)->state,
                      ivc_layout_state(UINT32_MAX, IVC_PHASE_FREE));
    {
        struct ivc_region *a = join(path, 1, 2);

        CHECK_EQ(ivc_region_self(a)->slot, 1);
        CHECK_EQ(ivc_region_self(a)->generation, 1);
        ivc_region_free(a);
    }
    ivc_region_free(watcher);
}

/* Who leaves while a peer may still read its memory rests: neither slot nor blocks are used before
 * the peer has said that it is over. */
static void test_rest(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *reader = join(path, 1, 1), *a = join(path, 1, 2), *b;
    uint32_t slot = ivc_region_self(a)->slot, generation = ivc_region_self(a)->generation;
    uint64_t free_before;
    bool left = false;

    CHECK_EQ(ivc_region_make_link(reader, slot), 0);
    free_before = free_bytes(reader);
    ivc_store_release(&ivc_region_own_link(reader, slot)->generation, generation);
    ivc_region_leave(a);
    CHECK_EQ(ivc_region_member_check(reader, slot, generation, &left), IVC_E_GONE);
    CHECK(left);
    for (unsigned i = 0; i < 30; i++, ivc_sleep_ms(50)) {
        b = join(path, 1, 3);
        CHECK(ivc_region_self(b)->slot != slot);
        ivc_region_free(b);
        CHECK_EQ(free_bytes(reader), free_before);
    }
    ivc_store_release(&ivc_region_own_link(reader, slot)->generation, 0);
    wait_for_free(reader, free_before + 2 * 4096, 5000);
    b = join(path, 1, 3);
    CHECK_EQ(ivc_region_self(b)->slot, slot);
    ivc_region_free(a);
    ivc_region_free(b);
    ivc_region_free(reader);
}

static void test_directory_full(void)
{
    const char *path = file_with_lease(1000 * check_slowdown());
    struct ivc_region *all[CAPACITY], *late = open_region(path);

    for (unsigned i = 0; i < CAPACITY; i++) {
        all[i] = join(path, 1, i);
        CHECK_EQ(ivc_region_self(all[i])->slot, i);
    }
    CHECK_EQ(ivc_region_join(late, CHECK_AS(1, 99)), -ENOSPC);
    CHECK_TEXT(ivc_error_text(), path, "full", "64", "larger region");
    /* Someone leaves while a late one waits or after: then there is room. */
    ivc_region_leave(all[40]);
    CHECK_THAT(ivc_region_join(late, CHECK_AS(1, 99)) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_region_self(late)->slot, 40);
    for (unsigned i = 0; i < CAPACITY; i++)
        ivc_region_free(all[i]);
    ivc_region_free(late);
}

static int hold_memory(void *arg)
{
    struct ivc_region *region = join(arg, 1, 7);
    struct ivc_share share;

    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 10000, &share), 0);
    pause();
    return 0;
}

static void wait_for_member(const struct ivc_region *region, uint32_t slot)
{
    struct ivc_member member;

    for (unsigned i = 0; i < 500 && ivc_region_member(region, slot, &member) != 0; i++)
        ivc_sleep_ms(10);
    CHECK_EQ(ivc_region_member(region, slot, &member), 0);
    ivc_sleep_ms(50);
}

/* Starts a process that joins as member 1. */
static pid_t start_member(const struct ivc_region *watcher, int (*fn)(void *), char *path,
                          struct ivc_member *ret_member)
{
    pid_t pid = check_fork(fn, path);

    wait_for_member(watcher, 1);
    CHECK_EQ(ivc_region_member(watcher, 1, ret_member), 0);
    return pid;
}

/* Killed while it holds memory: a watching member's alarm rings, all memory comes back. */
static void test_killed(void)
{
    char *path = (char *)check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1, 1);
    uint64_t free_before = free_bytes(watcher);
    struct ivc_member member;
    uint64_t start;
    bool left = true;
    pid_t pid;

    check_skip_under_thread_sanitizer();
    pid = start_member(watcher, hold_memory, path, &member);
    CHECK(free_bytes(watcher) < free_before - 40000);
    ivc_region_watch(watcher, 1, member.generation);
    ivc_sleep_ms(300);
    CHECK(!ivc_region_alarm(watcher));
    start = ivc_now_ms();
    check_kill(pid);
    while (!ivc_region_alarm(watcher))
        ivc_sleep_ms(5);
    CHECK_THAT(ivc_now_ms() - start < 2000 * check_slowdown(), "alarm after %u ms",
               (unsigned)(ivc_now_ms() - start));
    CHECK_EQ(ivc_region_member_check(watcher, 1, member.generation, &left), IVC_E_GONE);
    CHECK(!left);
    ivc_region_unwatch(watcher, 1);
    ivc_region_alarm_clear(watcher);
    wait_for_free(watcher, free_before, 4000);
    ivc_sleep_ms(200);
    CHECK(!ivc_region_alarm(watcher));
    ivc_region_free(watcher);
}

/* Killed, and its parent does not wait for it: it is as dead. */
static void test_zombie(void)
{
    char *path = (char *)check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1, 1);
    struct ivc_member member;
    bool left;
    pid_t pid;

    check_skip_under_thread_sanitizer();
    pid = start_member(watcher, hold_memory, path, &member);
    CHECK_EQ(kill(pid, SIGKILL), 0);
    for (unsigned i = 0; i < 50; i++) {
        if (ivc_region_member_check(watcher, 1, member.generation, &left) != 0)
            break;
        ivc_sleep_ms(100);
    }
    CHECK_EQ(ivc_region_member_check(watcher, 1, member.generation, &left), IVC_E_GONE);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    ivc_region_free(watcher);
}

static void *live_on(void *arg)
{
    for (;;)
        ivc_sleep_ms(1000);
    return arg;
}

static int hold_and_end_first_thread(void *path)
{
    pthread_t thread;

    join(path, 1, 2);
    CHECK_EQ(pthread_create(&thread, NULL, live_on, NULL), 0);
    pthread_exit(NULL);
}

/* A process whose first thread has ended looks like one that was not waited for, but lives. */
static void test_first_thread_ended(void)
{
    char *path = (char *)check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1, 1);
    struct ivc_member member;
    bool left;
    pid_t pid;

    check_skip_under_thread_sanitizer();
    pid = start_member(watcher, hold_and_end_first_thread, path, &member);
    /* Stopped, it does not beat: whether it exists is looked up. */
    ivc_sleep_ms(200);
    CHECK_EQ(kill(pid, SIGSTOP), 0);
    for (unsigned i = 0; i < 20; i++) {
        CHECK_EQ(ivc_region_member_check(watcher, 1, member.generation, &left), 0);
        ivc_sleep_ms(100);
    }
    check_kill(pid);
    ivc_region_free(watcher);
}

/* Nobody was there when they died: the next one who joins cannot know that they were of its kernel, and buries
 * them after the lease.  Where it lacks the room it waits for that. */
static void test_next_job(void)
{
    unsigned lease = 1000 * check_slowdown();
    char *path = (char *)file_with_lease(lease);
    struct ivc_region *outside = open_region(path), *next;
    uint64_t free_before = free_bytes(outside), start;
    struct ivc_share share;
    pid_t pids[3];

    for (unsigned i = 0; i < 3; i++) {
        pids[i] = check_fork(hold_memory, path);
        wait_for_member(outside, i);
    }
    for (unsigned i = 0; i < 3; i++)
        check_kill(pids[i]);
    start = ivc_now_ms();
    next = join(path, 2, 1);
    CHECK_EQ(ivc_region_share(next, IVC_SLOT_ANY, free_before * 3 / 4, &share), 0);
    CHECK_EQ(ivc_region_share_patiently(next, IVC_SLOT_ANY, free_before / 6, &share), 0);
    CHECK_THAT(ivc_now_ms() - start >= lease, "%u ms", (unsigned)(ivc_now_ms() - start));
    ivc_region_free(next);
    ivc_region_free(outside);
}

static struct ivc_region *join_and_share(const char *path, uint64_t magic_id, uint32_t client_id)
{
    struct ivc_region *region = join(path, magic_id, client_id);
    struct ivc_share share;

    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 10 * 4096, &share), 0);
    return region;
}

static void link_to(struct ivc_region *from, const struct ivc_region *to)
{
    const struct ivc_member *member = ivc_region_self(to);

    CHECK_EQ(ivc_link_open(from, member->slot, member->generation), 0);
}

/* Two read each other until they leave. Whoever is last takes the light out, whatever others there are, who are no
 * concern of theirs; but not while one of them is left. */
static void test_last_of_a_group(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *other = join_and_share(path, 2, 1), *first, *last, *late;
    uint64_t free_before = free_bytes(other), free_between;

    first = join_and_share(path, 1, 1);
    last = join_and_share(path, 1, 2);
    link_to(first, last);
    link_to(last, first);
    free_between = free_bytes(other);
    ivc_region_leave(first);
    CHECK_EQ(free_bytes(other), free_between);
    late = join_and_share(path, 2, 2);
    ivc_region_leave(late);
    CHECK_EQ(free_bytes(other), free_between);
    ivc_region_leave(last);
    CHECK_EQ(free_bytes(other), free_before);
    ivc_region_free(late);
    ivc_region_free(last);
    ivc_region_free(first);
    ivc_region_free(other);
}

/* A process died between taking a slot and publishing it. */
static void test_died_joining(void)
{
    const char *path = file_with_lease(600 * check_slowdown());
    struct ivc_region *watcher = join(path, 1, 1);
    struct ivc_layout_member *entry = ivc_region_slot(watcher, 1);
    unsigned i;

    ivc_store_release(&entry->state, ivc_layout_state(1, IVC_PHASE_JOINING));
    for (i = 0; i < 400 && ivc_layout_phase(ivc_load_relaxed(&entry->state)) != IVC_PHASE_FREE; i++)
        ivc_sleep_ms(20 * check_slowdown());
    CHECK_EQ(ivc_layout_phase(ivc_load_relaxed(&entry->state)), IVC_PHASE_FREE);
    ivc_region_free(watcher);
}

/* A member of another kernel is judged by its heartbeat alone: alive while it beats, dead after
 * the lease; a process number that does not exist here means nothing. */
static void judged_by_its_heart(const uint8_t boot_id[16])
{
    unsigned lease = 1000 * check_slowdown();
    const char *path = file_with_lease(lease);
    struct ivc_region *watcher = join(path, 1, 1);
    struct ivc_layout_member *entry = ivc_region_slot(watcher, 1);
    struct ivc_member member;
    uint64_t start;
    bool left;

    memcpy((char *)entry + 8, (char *)ivc_region_slot(watcher, 0) + 8, 184);
    memcpy(entry->boot_id, boot_id, 16);
    entry->pid = 999999999;
    entry->endpoint_id ^= 1;        /* which nobody here goes by */
    entry->links = 0;
    ivc_store_release(&entry->state, ivc_layout_state(9, IVC_PHASE_ACTIVE));
    for (unsigned i = 0; i < 3 * lease / 100; i++) {
        ivc_sleep_ms(100);
        ivc_store_relaxed(&entry->heartbeat, ivc_load_relaxed(&entry->heartbeat) + 1);
        ivc_region_look_at_members(watcher);
        CHECK_EQ(ivc_region_member(watcher, 1, &member), 0);
    }
    CHECK(!member.same_kernel);
    start = ivc_now_ms();
    while (ivc_region_member_check(watcher, 1, 9, &left) == 0)
        ivc_sleep_ms(10);
    CHECK(!left);
    CHECK_THAT(ivc_now_ms() - start >= lease - 200, "%u ms", (unsigned)(ivc_now_ms() - start));
    CHECK_THAT(ivc_now_ms() - start < 2 * lease + 2000, "%u ms", (unsigned)(ivc_now_ms() - start));
    ivc_region_free(watcher);
}

static void test_other_kernel(void)
{
    const uint8_t boot_id[16] = { 1, 2, 3 };

    judged_by_its_heart(boot_id);
}

/* A guest that was copied has its original's boot id, and each kernel's first namespace the same number. */
static void test_copied_kernel(void)
{
    struct ivc_layout_member own;

    ivc_member_describe_self(&own);
    judged_by_its_heart(own.boot_id);
}

/* All that a kernel allows for a name, so that two of them may differ in the last letter. */
static void test_long_host_name(void)
{
    char name[65], end[65];
    struct ivc_region *region;
    struct ivc_member member;

    if (unshare(CLONE_NEWUTS) < 0)
        check_skip("only root may give itself another host name");
    memset(name, 'h', sizeof name - 1);
    name[64] = '\0';
    CHECK_EQ(sethostname(name, 64), 0);
    region = join(check_file(0, SIZE), 1, 1);
    CHECK_EQ(ivc_region_member(region, 0, &member), 0);
    memcpy(end, member.host, sizeof end);
    CHECK(strcmp(end, name) == 0);
    ivc_region_free(region);
}

/* Who was there is known to be of our kernel for as long as it lives, by whoever asks: and not afterwards, nor by
 * another name. */
static void test_presence(void)
{
    enum { ID = 0x1234567 };
    struct ivc_presence a, b;

    CHECK(!ivc_presence_is_here(ID));
    ivc_presence_open(&a, ID);
    if (a.fd == 0)
        check_skip("no /proc/self/ns/pid");
    ivc_presence_open(&b, ID);      /* another library of this process */
    CHECK(ivc_presence_is_here(ID));
    CHECK(!ivc_presence_is_here(ID + 1) && !ivc_presence_is_here(ID - 1));
    ivc_presence_close(&a);
    CHECK(ivc_presence_is_here(ID));
    ivc_presence_close(&b);
    CHECK(!ivc_presence_is_here(ID));
    /* What the application has closed and opened anew is its own. */
    ivc_presence_open(&a, UINT64_MAX);
    CHECK(ivc_presence_is_here(UINT64_MAX));
    CHECK_EQ(dup2(1, a.fd), a.fd);
    CHECK(!ivc_presence_is_here(UINT64_MAX));
    b = a;
    ivc_presence_close(&a);
    CHECK(fcntl(b.fd, F_GETFD) >= 0);
}

static ivc_atomic_u32 looks_on, seen_dead;

/* At whoever is in slot 2, too. */
static void *look_closely(void *region)
{
    while (ivc_load_relaxed(&looks_on)) {
        ivc_region_look_at_members(region);
        if (ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(region, 2)->state)) == IVC_PHASE_DEAD)
            ivc_store_relaxed(&seen_dead, 1);
        ivc_sleep_ms(10);
    }
    return NULL;
}

/* Who joins may have to wait for the lease of one that holds the memory, and lives meanwhile. */
static void test_joins_for_longer_than_the_lease(void)
{
    unsigned lease = 1000 * check_slowdown();
    const char *path = file_with_lease(lease);
    struct ivc_region *watcher = join(path, 1, 1), *late;
    struct ivc_layout_member *entry = ivc_region_slot(watcher, 1);
    uint64_t block, start = ivc_now_ms();
    pthread_t thread;

    memcpy((char *)entry + 8, (char *)ivc_region_slot(watcher, 0) + 8, 184);
    memset(entry->boot_id, 7, sizeof entry->boot_id);
    entry->endpoint_id ^= 1;
    entry->links = 0;
    ivc_store_release(&entry->state, ivc_layout_state(9, IVC_PHASE_ACTIVE));
    while (ivc_blocks_take(&watcher->blocks, ivc_layout_owner(1, 9), 1, &block) == 0)
        ;
    ivc_store_relaxed(&looks_on, 1);
    CHECK_EQ(pthread_create(&thread, NULL, look_closely, watcher), 0);
    late = join(path, 2, 1);
    CHECK_THAT(ivc_now_ms() - start > lease, "%u ms", (unsigned)(ivc_now_ms() - start));
    ivc_sleep_ms(2 * IVC_QUARANTINE_MS);        /* what is buried is free by then */
    block = (late->links.root.handle - late->geometry.blocks) / IVC_LAYOUT_PAGE;
    ivc_store_relaxed(&looks_on, 0);
    pthread_join(thread, NULL);
    CHECK_EQ(ivc_region_self(late)->slot, 2);
    CHECK(!ivc_load_relaxed(&seen_dead) && !ivc_region_is_evicted(late));
    CHECK_EQ(ivc_load_relaxed(&late->blocks.owners[block]),
             ivc_layout_owner(late->self.slot, late->self.generation));
    ivc_region_free(late);
    ivc_region_free(watcher);
}

/* The process number of a dead member was given to another process. */
static void test_reused_pid(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1, 1);
    struct ivc_layout_member *entry = ivc_region_slot(watcher, 1);
    bool left;

    memcpy((char *)entry + 8, (char *)ivc_region_slot(watcher, 0) + 8, 184);
    entry->pid = (uint32_t)getppid();
    entry->pid_start = 1;
    ivc_store_release(&entry->state, ivc_layout_state(9, IVC_PHASE_ACTIVE));
    for (unsigned i = 0; i < 40 && ivc_region_member_check(watcher, 1, 9, &left) == 0; i++)
        ivc_sleep_ms(100);
    CHECK_EQ(ivc_region_member_check(watcher, 1, 9, &left), IVC_E_GONE);
    ivc_region_free(watcher);
}

/* A job stopped for longer than the lease (Ctrl-Z, paused guests) and continued: each process must
 * find the other alive, because both have been silent for the same reason. */
static bool other_kernels;

static int beat_and_watch(void *arg)
{
    struct ivc_region *region = join(arg, 1, 1);
    uint32_t other = 1 - ivc_region_self(region)->slot;
    struct ivc_member member;
    bool left;

    if (other_kernels)
        ivc_region_slot(region, ivc_region_self(region)->slot)->boot_id[0] ^= (uint8_t)(other + 1);
    wait_for_member(region, other);
    CHECK_EQ(ivc_region_member(region, other, &member), 0);
    ivc_region_watch(region, other, member.generation);
    for (unsigned i = 0; i < 60; i++) {     /* counts its own time: stopped time is none */
        ivc_sleep_ms(50);
        CHECK_EQ(ivc_region_member_check(region, other, member.generation, &left), 0);
    }
    ivc_sleep_ms(2000 * check_slowdown());      /* the other one is not done yet */
    return 0;
}

static void stop_and_continue(void)
{
    char *path = (char *)file_with_lease(1000 * check_slowdown());
    struct ivc_region *outside = open_region(path);
    pid_t a, b;

    a = check_fork(beat_and_watch, path);
    wait_for_member(outside, 0);
    b = check_fork(beat_and_watch, path);
    wait_for_member(outside, 1);
    ivc_sleep_ms(500);
    kill(a, SIGSTOP);
    kill(b, SIGSTOP);
    ivc_sleep_ms(2500 * check_slowdown());
    kill(a, SIGCONT);
    ivc_sleep_ms(120);          /* the first one looks before the other one beats */
    kill(b, SIGCONT);
    check_join(b);
    check_join(a);
    ivc_region_free(outside);
}

static void test_stopped(void)
{
    stop_and_continue();
}

static void test_guests_stopped(void)
{
    other_kernels = true;
    stop_and_continue();
}

static void test_share(void)
{
    static const struct { uint64_t size, rounded; int r; } rows[] = {
        { 0, 0, IVC_E_NOSPACE }, { 1, 4096, 0 }, { 4096, 4096, 0 }, { 4097, 8192, 0 },
        { 100000, 102400, 0 }, { SIZE, 0, IVC_E_NOSPACE }, { UINT64_MAX - 4096, 0, IVC_E_NOSPACE },
        { UINT64_MAX, 0, IVC_E_NOSPACE },
    };
    const char *path = check_file(0, SIZE);
    struct ivc_region *a = join(path, 1, 1), *b = join(path, 1, 2);
    uint64_t free_before = free_bytes(a);
    struct ivc_share share;
    const void *seen;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int r = ivc_region_share(a, 1, rows[i].size, &share);

        CHECK_THAT(r == rows[i].r, "row %zu gave %d", i, r);
        if (r != 0)
            continue;
        CHECK_EQ(share.size, rows[i].rounded);
        for (uint64_t at = 0; at < share.size; at++)
            CHECK_THAT(((char *)share.memory)[at] == 0, "byte %u", (unsigned)at);
        memset(share.memory, 0x5a, share.size);
        CHECK_EQ(ivc_region_map(b, 0, share.handle, share.size, &seen), 0);
        CHECK(memcmp(seen, share.memory, share.size) == 0);
        ivc_region_unmap(b, 0, seen, share.size);
        ivc_region_unshare(a, &share);
        CHECK_EQ(free_bytes(a), free_before);
    }
    ivc_region_free(a);
    ivc_region_free(b);
}

static void test_map_checks(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *a = join(path, 1, 1);
    uint64_t first = a->geometry.blocks, n = a->geometry.n_blocks * 4096;
    const struct { uint64_t handle, size; int r; } rows[] = {
        { first, 4096, 0 }, { first, n, 0 }, { first, n + 1, -EBADMSG },
        { first + n - 4096, 4096, 0 }, { first + n - 4096, 4097, -EBADMSG },
        { first + n, 0, -EBADMSG }, { first + n, 1, -EBADMSG }, { 0, 4096, -EBADMSG },
        { first - 4096, 4096, -EBADMSG }, { first + 8, 8, -EBADMSG },
        { first, UINT64_MAX, -EBADMSG }, { UINT64_MAX, 1, -EBADMSG },
        { UINT64_MAX - 4095, 4096, -EBADMSG }, { (uint64_t)1 << 63, 4096, -EBADMSG },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const void *memory;

        CHECK_THAT(ivc_region_map(a, 3, rows[i].handle, rows[i].size, &memory) == rows[i].r,
                   "row %zu", i);
    }
    ivc_region_free(a);
}

/* A line is made when it is needed, with those of its neighbours; a full region says so, once there is
 * nothing in reserve; and what one made at last another sees. */
static void test_link_lines(void)
{
    const char *path = check_file(0, 128 << 20);    /* 512 slots: 8 parts */
    struct ivc_region *a = join(path, 1, 1), *b = join(path, 1, 2);
    struct ivc_share all[64];
    uint64_t before = free_bytes(a);
    unsigned n = 0;

    CHECK(!ivc_region_own_link(a, 1));
    CHECK(!ivc_region_peer_link(b, 0));
    CHECK_EQ(ivc_region_make_link(a, 1), 0);
    CHECK_EQ(ivc_region_make_link(a, 63), 0);
    CHECK_EQ(free_bytes(a), before);    /* taken when it joined, and that for one part more */
    CHECK(ivc_region_own_link(a, 1));
    CHECK(!ivc_region_own_link(a, 64));
    ivc_store_release(&ivc_region_own_link(a, 1)->head, 17);
    CHECK(ivc_region_peer_link(b, 0));
    CHECK_EQ(ivc_load_acquire(&ivc_region_peer_link(b, 0)->head), 17);
    CHECK_EQ(ivc_region_reserve_links(a, 100), 0);      /* they may lie in three parts */
    CHECK_EQ(free_bytes(a), before - 2 * 4096);
    for (uint64_t size = 64 << 20; size >= 4096; size /= 2)
        while (n < 64 && ivc_region_share(b, IVC_SLOT_ANY, size, &all[n]) == 0)
            n++;
    CHECK_EQ(free_bytes(a), 0);
    CHECK_EQ(ivc_region_make_link(b, 100), 0);
    CHECK_EQ(ivc_region_make_link(b, 200), 0);
    CHECK_EQ(ivc_region_make_link(b, 0), IVC_E_NOSPACE);
    CHECK_TEXT(ivc_error_text(), path, "full", "larger region");
    CHECK(!ivc_region_own_link(b, 0));
    for (uint32_t part = 1; part <= 3; part++)
        CHECK_EQ(ivc_region_make_link(a, part * 64), 0);
    CHECK_EQ(ivc_region_make_link(a, 500), IVC_E_NOSPACE);
    ivc_region_unshare(b, &all[--n]);
    CHECK_EQ(ivc_region_make_link(a, 511), 0);
    CHECK(ivc_region_own_link(a, 500));
    ivc_region_free(a);
    wait_for_free(b, 6 * 4096 + all[n].size - 4096, 5000);
    ivc_region_free(b);
}

static const struct check_case cases[] = {
    { "join: what others see", test_join, 0 },
    { "generations of a slot", test_generations, 0 },
    { "memory that is still read rests", test_rest, 0 },
    { "directory full", test_directory_full, 90 },
    { "link lines", test_link_lines, 0 },
    { "killed while it holds memory", test_killed, 0 },
    { "killed, and nobody waits for it", test_zombie, 0 },
    { "first thread ended, the others live", test_first_thread_ended, 0 },
    { "the next job finds the dead", test_next_job, 0 },
    { "the last of a group leaves", test_last_of_a_group, 0 },
    { "died while joining", test_died_joining, 0 },
    { "a member of another kernel", test_other_kernel, 60 },
    { "a member of a kernel that says it is ours", test_copied_kernel, 60 },
    { "known to be of our kernel", test_presence, 0 },
    { "a host name of 64 letters", test_long_host_name, 0 },
    { "joins for longer than the lease", test_joins_for_longer_than_the_lease, 60 },
    { "a reused process number", test_reused_pid, 0 },
    { "stopped longer than the lease, then continued", test_stopped, 0 },
    { "guests stopped longer than the lease, then continued", test_guests_stopped, 0 },
    { "share: sizes and zeroes", test_share, 0 },
    { "map: handles that cannot be", test_map_checks, 0 },
};
CHECK_MAIN(cases)
