/*
 * What every mechanism of a region must do, whatever lies behind it.
 *
 *   conformance                   on a file in /dev/shm, made for it
 *   conformance hugetlbfs         on a file of huge pages, if this machine can give some
 *   conformance grants            on grants, as if every process were a guest (fake_grants.h)
 *   conformance found             on the region that is found or that IVC_REGION names
 *
 * A window's tables are cleared before each case: `found` is for a region that nobody uses.
 */
#include "exchange.h"
#include "fake_grants.h"

#include "region/internal.h"

#include <sys/mount.h>

/* A hundred bells: a guest with one processor may need a tick of 10 ms to hear one. */
enum { FILE_SIZE = 16 << 20, LEASE_MS = 1500, BELLS = 100 };

/* "": a fresh file for each case; else the region's name. */
static char name[256];
static bool is_fake, is_window = true;

static const char *region_name(void)
{
    return *name ? name : check_file(0, FILE_SIZE);
}

/* As if it had never been used, but for a short lease. */
static const char *fresh(void)
{
    const char *where = region_name();
    const struct ivc_mechanism *mechanism;
    struct ivc_window_geometry g;
    struct ivc_mapping mapping;
    char full[256];

    if (is_fake)
        fake_grants_make(check_file(0, FILE_SIZE));
    if (!is_window)
        return where;
    CHECK_THAT(ivc_region_attach(where, &mechanism, full, &mapping) == 0, "%s", ivc_error_text());
    CHECK(mapping.size >= IVC_LAYOUT_SIZE_MIN);
    memset(mapping.memory, 0, ivc_window_geometry(mapping.size).blocks);
    CHECK_THAT(ivc_window_open(full, &mapping, &g) == 0, "%s", ivc_error_text());
    ivc_store_release(&((struct ivc_layout_header *)mapping.memory)->lease_ms, LEASE_MS);
    ivc_mapping_free(&mapping);
    return where;
}

static struct ivc_region *open_region(const char *where)
{
    struct ivc_region *region;

    CHECK_THAT(ivc_region_open(where, &region) == 0, "%s", ivc_error_text());
    return region;
}

static struct ivc_region *join(const char *where, uint32_t client_id)
{
    struct ivc_region *region;

    fake_grants_be(client_id);
    region = open_region(where);
    CHECK_THAT(ivc_region_join(region, CHECK_AS(1, client_id)) == 0, "%s", ivc_error_text());
    return region;
}

/* Waits for it: not everybody is seen at once. */
static struct ivc_member find(const struct ivc_region *region, uint32_t client_id)
{
    struct ivc_member member;

    for (uint64_t end = ivc_now_ms() + 60000; ivc_now_ms() < end; ivc_sleep_ms(1))
        for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++)
            if (ivc_region_member(region, slot, &member) == 0 && member.client_id == client_id)
                return member;
    CHECK_THAT(false, "member %u is not there", client_id);
    return member;
}

static void test_open(void)
{
    const char *where = fresh();
    struct ivc_region *a = open_region(where), *b = open_region(where);
    struct ivc_region_info x, y;

    ivc_region_info(a, &x);
    ivc_region_info(b, &y);
    CHECK(strcmp(x.uuid, y.uuid) == 0 && strlen(x.uuid) == 36);
    CHECK(x.epoch == y.epoch && x.epoch != 0);
    CHECK(x.size >= IVC_LAYOUT_SIZE_MIN && x.size == y.size);
    CHECK(x.capacity >= 64 && x.free_bytes > x.size / 2);
    CHECK(*x.mechanism && *x.name);
    CHECK_THAT(x.speed.cached, "this mapping is slow: %.1f ns for a load", x.speed.read_ns);
    /* Written through one mapping, seen through the other, to the last byte. */
    for (uint64_t at = x.size - 8; is_window && at > a->geometry.blocks; at = at / 2 / 8 * 8) {
        uint64_t *word = (uint64_t *)((char *)a->mapping.memory + at), before = *word;

        *word = at;
        CHECK_EQ(*(volatile uint64_t *)((char *)b->mapping.memory + at), at);
        *word = before;
    }
    ivc_region_free(a);
    ivc_region_free(b);
}

static int format_now(void *arg)
{
    char **words = arg;
    struct ivc_region *region;
    struct ivc_region_info info;

    while (ivc_load_acquire((ivc_atomic_u32 *)words[1]) == 0)
        sched_yield();
    region = open_region(words[0]);
    ivc_region_info(region, &info);
    memcpy(words[2], info.uuid, sizeof info.uuid);
    ivc_region_free(region);
    return 0;
}

static void test_format_race(void)
{
    const char *where = fresh();
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (unsigned round = 0; round < 10; round++) {
        const struct ivc_mechanism *mechanism;
        struct ivc_mapping mapping;
        char full[256], *words[4][3];
        pid_t pids[4];

        CHECK_EQ(ivc_region_attach(where, &mechanism, full, &mapping), 0);
        memset(mapping.memory, 0, 4096);
        ivc_mapping_free(&mapping);
        memset(page, 0, 4096);
        for (unsigned i = 0; i < 4; i++) {
            words[i][0] = (char *)where;
            words[i][1] = page;
            words[i][2] = page + 64 * (i + 1);
            pids[i] = check_fork(format_now, words[i]);
        }
        ivc_sleep_ms(5);
        ivc_store_release((ivc_atomic_u32 *)page, 1);
        for (unsigned i = 0; i < 4; i++)
            check_join(pids[i]);
        for (unsigned i = 1; i < 4; i++)
            CHECK(strcmp(words[i][2], words[0][2]) == 0);
    }
}

static int be_third(void *arg)
{
    struct ivc_region *region = join(arg, 3);

    ivc_region_free(region);
    return 0;
}

static void test_join(void)
{
    const char *where = fresh();
    struct ivc_region *a = join(where, 1), *b = join(where, 2);
    struct ivc_member member = find(a, 2), self = *ivc_region_self(b);
    bool left = false;

    CHECK_EQ(member.endpoint_id, self.endpoint_id);
    CHECK_EQ(member.generation, self.generation);
    CHECK(!is_window || member.same_kernel);
    CHECK_EQ(find(b, 1).endpoint_id, ivc_region_self(a)->endpoint_id);
    ivc_region_free(b);
    for (uint64_t end = ivc_now_ms() + 10000; ivc_now_ms() < end; ivc_sleep_ms(1))
        if (ivc_region_member_check(a, member.slot, member.generation, &left) != 0)
            break;
    CHECK_EQ(ivc_region_member_check(a, member.slot, member.generation, &left), IVC_E_GONE);
    CHECK(left);
    check_join(check_fork(be_third, (void *)where));
    b = join(where, 4);
    CHECK_EQ(find(a, 4).endpoint_id, ivc_region_self(b)->endpoint_id);
    ivc_region_free(a);
    ivc_region_free(b);
}

/* By all processes of a case. */
static ivc_atomic_u32 *heard;

static int join_now(void *arg)
{
    struct ivc_region *region = join(((char **)arg)[0], (uint32_t)(uintptr_t)((char **)arg)[1]);

    for (uint32_t other = 1; other <= 4; other++)
        CHECK_EQ(find(region, other).client_id, other);
    atomic_fetch_add(heard, 1);
    while (ivc_load_acquire(heard) < 4)     /* until the others have seen us */
        ivc_sleep_ms(1);
    ivc_region_free(region);
    return 0;
}

static void test_join_race(void)
{
    const char *where = fresh();
    const char *words[4][2];
    pid_t pids[4];

    heard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uintptr_t i = 0; i < 4; i++) {
        words[i][0] = where;
        words[i][1] = (const char *)(i + 1);
        pids[i] = check_fork(join_now, words[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        check_join(pids[i]);
}

/* Another process writes into what it shares; we see every byte. */
static int share_and_tell(void *arg)
{
    struct ivc_region *region = join(arg, 2);
    struct ivc_member to = find(region, 1);
    struct ivc_share share;

    CHECK_THAT(ivc_region_make_link(region, to.slot) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_share(region, to.slot, 100000, &share) == 0, "%s", ivc_error_text());
    for (uint64_t i = 0; i < share.size; i++)
        CHECK(((uint8_t *)share.memory)[i] == 0);
    for (uint64_t i = 0; i < share.size; i++)
        ((uint8_t *)share.memory)[i] = (uint8_t)(i * 13 + (i >> 8));
    ivc_store_release(&ivc_region_own_link(region, to.slot)->ring, share.handle);
    ivc_store_release(&ivc_region_own_link(region, to.slot)->generation, 1);
    pause();
    return 0;
}

static void test_share(void)
{
    const char *where = fresh();
    struct ivc_region *region = join(where, 1);
    pid_t pid = check_fork(share_and_tell, (void *)where);
    uint32_t slot = find(region, 2).slot;
    const struct ivc_layout_link *link;
    const void *memory;

    CHECK_EQ(ivc_region_make_link(region, slot), 0);
    while (!(link = ivc_region_peer_link(region, slot)) || ivc_load_acquire(&link->generation) != 1)
        ivc_sleep_ms(1);
    CHECK_THAT(ivc_region_map(region, slot, link->ring, 100000, &memory) == 0, "%s", ivc_error_text());
    for (uint64_t i = 0; i < 100000; i++)
        CHECK(((const uint8_t *)memory)[i] == (uint8_t)(i * 13 + (i >> 8)));
    CHECK_EQ(ivc_region_map(region, slot, link->ring + (1ull << 40), 100000, &(const void *){ NULL }), -EBADMSG);
    ivc_region_unmap(region, slot, memory, 100000);
    check_kill(pid);
    ivc_region_free(region);
}

/* Bells rung by another process: each is heard. */

static int ring_bells(void *arg)
{
    struct ivc_region *region = join(arg, 2);
    struct ivc_member to = find(region, 1);
    struct ivc_doorbell bell;

    CHECK_EQ(ivc_region_make_link(region, to.slot), 0);
    CHECK_EQ(ivc_region_doorbell(region, to.slot, &bell), 0);
    while (ivc_load_acquire(heard) == 0)        /* until the other is there, which hears of us once */
        sched_yield();
    for (unsigned i = 0; i < BELLS; i++) {
        uint64_t end = ivc_now_ms() + 5000;
        uint32_t before = ivc_load_acquire(heard);

        ivc_doorbell_ring(&bell);
        while (ivc_load_acquire(heard) == before) {
            CHECK_THAT(ivc_now_ms() < end, "bell %u is not heard", i);
            sched_yield();
        }
    }
    ivc_store_release(heard, UINT32_MAX);
    ivc_region_free(region);
    return 0;
}

static void on_ready(void *arg, uint32_t slot)
{
    CHECK_EQ(slot, *(uint32_t *)arg);
    if (ivc_load_acquire(heard) != UINT32_MAX)
        ivc_store_release(heard, ivc_load_relaxed(heard) + 1);
}

static void test_doorbell(void)
{
    const char *where = fresh();
    struct ivc_region *region = join(where, 1);
    const ivc_atomic_u64 *summary = ivc_region_ready_summary(region);
    uint32_t slot;
    pid_t pid;

    heard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid = check_fork(ring_bells, (void *)where);
    slot = find(region, 2).slot;
    CHECK_EQ(ivc_region_make_link(region, slot), 0);
    ivc_region_ring_self(region, slot);
    for (uint64_t end = ivc_now_ms() + 30000; ivc_load_acquire(heard) != UINT32_MAX && ivc_now_ms() < end;) {
        if (ivc_load_relaxed(summary) != 0)
            ivc_region_take_ready(region, on_ready, &slot);
        else
            sched_yield();
    }
    check_join(pid);
    ivc_region_free(region);
}

static int hold(void *arg)
{
    struct ivc_region *region = join(arg, 2);
    struct ivc_member to = find(region, 1);
    struct ivc_share share;

    CHECK_EQ(ivc_region_make_link(region, to.slot), 0);
    CHECK_EQ(ivc_region_share(region, to.slot, 200000, &share), 0);
    ivc_store_release(&ivc_region_own_link(region, to.slot)->generation, 1);
    pause();
    return 0;
}

static void test_reclaim(void)
{
    const char *where = fresh();
    struct ivc_region *region = join(where, 1);
    uint64_t before = ivc_region_free_bytes(region), end;
    pid_t pid = check_fork(hold, (void *)where);
    struct ivc_member member = find(region, 2);
    const struct ivc_layout_link *link;

    if (!is_window)     /* in one it takes memory for good, which would be missed below */
        CHECK_EQ(ivc_region_make_link(region, member.slot), 0);
    while (!(link = ivc_region_peer_link(region, member.slot)) || ivc_load_acquire(&link->generation) != 1)
        ivc_sleep_ms(1);
    CHECK(!is_window || ivc_region_free_bytes(region) <= before - 200000);
    ivc_region_watch(region, member.slot, member.generation);
    check_kill(pid);
    for (end = ivc_now_ms() + 10000; !ivc_region_alarm(region) && ivc_now_ms() < end;)
        ivc_sleep_ms(5);
    CHECK(ivc_region_alarm(region));
    ivc_region_unwatch(region, member.slot);
    CHECK_EQ(ivc_region_member_fate(region, member.slot, member.generation), IVC_MEMBER_DEAD);
    for (end = ivc_now_ms() + 10000;
         ivc_region_free_bytes(region) != before && ivc_now_ms() < end;)
        ivc_sleep_ms(20);
    CHECK_EQ(ivc_region_free_bytes(region), before);
    ivc_region_free(region);
}

/* Whatever the pages behind it: what is held stays, and the rest is others' again at once. */
static void test_retire(void)
{
    const char *where = fresh();
    struct ivc_region *watcher = join(where, 1), *region = join(where, 2);
    uint64_t before = ivc_region_free_bytes(watcher);
    struct ivc_member self = *ivc_region_self(region);
    struct ivc_share share;
    uint8_t *lent, *held;

    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 100000, &share), 0);
    CHECK_EQ(ivc_region_lend(region, 100000, (void **)&lent), 0);
    held = (uint8_t *)share.memory + 5000;
    memset(share.memory, 1, share.size);
    memset(lent, 2, 100000);
    CHECK_THAT(ivc_region_retire(region, &(struct iovec){ held, 10000 }, 1) == 0, "%s",
               ivc_error_text());
    CHECK_EQ(ivc_region_member_fate(watcher, self.slot, self.generation), IVC_MEMBER_MOVED);
    CHECK(ivc_region_free_bytes(watcher) > before);     /* its link table as well */
    CHECK(held[0] == 1 && held[9999] == 1 && *(uint8_t *)share.memory == 0);
    CHECK(lent[0] == 2 && lent[99999] == 2);
    memset(lent, 3, 100000);
    ivc_region_free(region);
    region = join(where, 2);
    CHECK_EQ(ivc_region_self(region)->slot, self.slot);
    CHECK_EQ(ivc_region_free_bytes(watcher), before);
    ivc_region_free(region);
    ivc_region_free(watcher);
}

static void test_retire_grants(void)
{
    const char *where = fresh();
    struct ivc_region *watcher = join(where, 1), *region = join(where, 2);
    uint64_t before = ivc_region_free_bytes(region);
    struct ivc_member self = find(watcher, 2), to = find(region, 1);
    struct ivc_share share;
    uint8_t *held;

    CHECK_EQ(ivc_region_make_link(watcher, self.slot), 0);
    CHECK_EQ(ivc_region_make_link(region, to.slot), 0);
    CHECK_EQ(ivc_region_share(region, to.slot, 100000, &share), 0);
    CHECK(ivc_region_free_bytes(region) < before);
    held = (uint8_t *)share.memory + 5000;
    memset(share.memory, 1, share.size);
    ivc_sleep_ms(500);      /* until each has mapped the other's page */
    CHECK_THAT(ivc_region_retire(region, &(struct iovec){ held, 10000 }, 1) == 0, "%s",
               ivc_error_text());
    for (uint64_t end = ivc_now_ms() + 5000; ivc_now_ms() < end; ivc_sleep_ms(1))
        if (ivc_region_member_fate(watcher, self.slot, self.generation) != IVC_MEMBER_HERE)
            break;
    CHECK_EQ(ivc_region_member_fate(watcher, self.slot, self.generation), IVC_MEMBER_MOVED);
    CHECK(held[0] == 1 && held[9999] == 1 && *(uint8_t *)share.memory == 0);
    ivc_region_free(region);
    region = join(where, 2);
    CHECK(find(watcher, 2).generation != self.generation);
    ivc_region_free(region);
    ivc_region_free(watcher);
}

/* Every place taken by one that lives: by entries that say they are this process. */
static void test_directory_full(void)
{
    const char *where = fresh();
    struct ivc_region *region = join(where, 1), *late = open_region(where);
    const struct ivc_layout_member *own = ivc_region_slot(region, 0);

    for (uint32_t slot = 1; slot < ivc_region_capacity(region); slot++) {
        struct ivc_layout_member *entry = ivc_region_slot(region, slot);

        memcpy((char *)entry + 8, (const char *)own + 8, 184);
        entry->links = 0;
        ivc_store_release(&entry->state, ivc_layout_state(1, IVC_PHASE_ACTIVE));
    }
    CHECK_EQ(ivc_region_join(late, CHECK_AS(1, 2)), -ENOSPC);
    CHECK_TEXT(ivc_error_text(), "full", "larger region");
    ivc_store_release(&ivc_region_slot(region, 7)->state, ivc_layout_state(1, IVC_PHASE_FREE));
    CHECK_THAT(ivc_region_join(late, CHECK_AS(1, 2)) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_region_self(late)->slot, 7);
    ivc_region_free(late);
    ivc_region_free(region);
}

static void test_region_full(void)
{
    const char *where = fresh();
    struct ivc_region *region = join(where, 1);
    uint64_t before = ivc_region_free_bytes(region);
    struct ivc_share all, one;

    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, before, &all), 0);
    CHECK_EQ(ivc_region_free_bytes(region), 0);
    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 1, &one), IVC_E_NOSPACE);
    CHECK_TEXT(ivc_error_text(), "full", "larger region");
    ivc_region_unshare(region, &all);
    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 1, &one), 0);
    ivc_region_unshare(region, &one);
    CHECK_EQ(ivc_region_free_bytes(region), before);
    ivc_region_free(region);
}

static void test_exchange(void)
{
    struct exchange exchange = { .region = fresh(), .magic_id = 5, .n_members = 2,
                                 .n_messages = 150, .longest = 1 << 20 };

    exchange_run(&exchange);
}

/* One writes, now and then; the other waits for it and hears of it soon. */
static int speak_now_and_then(void *arg)
{
    struct exchange exchange = { .region = arg };
    struct ivc_endpoint_options options = { .region = arg, .magic_id = 6, .client_id = 2,
                                            .on_packet = exchange_on_packet, .arg = &exchange };
    struct ivc_endpoint *endpoint;
    struct ivc_member member;
    struct ivc_peer *peer;

    fake_grants_be(2);
    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), 0);
    member = find(ivc_endpoint_region(endpoint), 1);
    CHECK_EQ(ivc_endpoint_connect_member(endpoint, &member, &peer), 0);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t now = ivc_now_ns();

        CHECK_EQ(ivc_endpoint_send(endpoint, peer, 1, &(struct iovec){ &now, sizeof now }, 1), 0);
        ivc_sleep_ms(20 + i);
    }
    ivc_endpoint_free(endpoint);
    return 0;
}

static unsigned woken;
static uint64_t slowest_ns;

static void on_word(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    uint64_t sent;

    (void)arg, (void)peer;
    memcpy(&sent, packet->head, sizeof sent);
    slowest_ns = IVC_MAX(slowest_ns, ivc_now_ns() - sent);
    woken++;
}

static void test_wake_up(void)
{
    const char *where = fresh();
    struct ivc_endpoint_options options = { .region = where, .magic_id = 6, .client_id = 1,
                                            .on_packet = on_word,
                                            .on_arrival = exchange_on_arrival };
    struct ivc_endpoint *endpoint;
    pid_t pid;

    fake_grants_be(1);
    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), 0);
    pid = check_fork(speak_now_and_then, (void *)where);
    for (uint64_t end = ivc_now_ms() + 20000; woken < 20 && ivc_now_ms() < end;)
        if (ivc_endpoint_progress(endpoint) == 0)
            sched_yield();
    CHECK_EQ(woken, 20);
    CHECK_THAT(slowest_ns < 1000000000, "%.1f ms", (double)slowest_ns / 1e6);
    check_join(pid);
    ivc_endpoint_free(endpoint);
}

static const struct check_case cases[] = {
    { "open and see the same", test_open, 120 },
    { "formatted by four at once", test_format_race, 120 },
    { "join and leave", test_join, 120 },
    { "joined by four at once", test_join_race, 120 },
    { "share and map", test_share, 120 },
    { "doorbells", test_doorbell, 120 },
    { "wake-up", test_wake_up, 120 },
    { "reclaim after a kill", test_reclaim, 120 },
    { "let go of it", test_retire, 120 },
    { "directory full", test_directory_full, 120 },
    { "region full", test_region_full, 120 },
    { "two processes, every byte", test_exchange, 180 },
};

/* Where no memory is everybody's; tests/grants.c has what is theirs alone. */
static const struct check_case grant_cases[] = {
    { "open and see the same", test_open, 120 },
    { "join and leave", test_join, 120 },
    { "joined by four at once", test_join_race, 120 },
    { "share and map", test_share, 120 },
    { "doorbells", test_doorbell, 120 },
    { "wake-up", test_wake_up, 120 },
    { "reclaim after a kill", test_reclaim, 120 },
    { "let go of it", test_retire_grants, 120 },
    { "two processes, every byte", test_exchange, 180 },
};

static int run_grants(int argc, char **argv)
{
    is_window = false;
    snprintf(name, sizeof name, "xen");
    return check_main(argc, argv, grant_cases, sizeof grant_cases / sizeof *grant_cases);
}

static unsigned long pages(const char *path)
{
    unsigned long n = 0;
    FILE *file = fopen(path, "r");

    if (!file || fscanf(file, "%lu", &n) != 1)
        n = 0;
    if (file)
        fclose(file);
    return n;
}

static void set_pages(const char *path, unsigned long n)
{
    FILE *file = fopen(path, "w");

    if (file)
        fprintf(file, "%lu", n);
    if (file)
        fclose(file);
}

static int skip(const char *why)
{
    printf("# %s\nskip 1 - huge pages\n1..1\n", why);
    return CHECK_SKIP;
}

/* A hugetlbfs that only we see, with pages that are given back. */
static int on_huge_pages(int argc, char **argv)
{
    static const char pool[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    static const char unused[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    static const unsigned long wanted = FILE_SIZE / (2 << 20);
    unsigned long before = pages(pool);
    int r = CHECK_SKIP, fd;

    if (geteuid() != 0)
        return skip("huge pages need root");
    if (access(pool, W_OK) < 0)
        return skip("this kernel has no huge pages of 2 MiB that we may ask for");
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0
        || mount("none", "/mnt", "hugetlbfs", 0, "pagesize=2M") < 0)
        return skip("hugetlbfs cannot be mounted");
    set_pages(pool, before + wanted);
    snprintf(name, sizeof name, "/mnt/region");
    fd = open(name, O_RDWR | O_CREAT, 0600);
    if (pages(unused) < wanted || fd < 0 || ftruncate(fd, FILE_SIZE) < 0)
        r = skip("not enough huge pages are free");
    else
        r = check_main(argc, argv, cases, sizeof cases / sizeof *cases);
    close(fd);
    unlink(name);
    umount("/mnt");
    set_pages(pool, before);
    return r;
}

/* The region that is found, or that the environment names. */
static int on_found(int argc, char **argv)
{
    const struct ivc_mechanism *mechanism;
    struct ivc_mapping mapping;
    int r = ivc_region_attach(NULL, &mechanism, name, &mapping);

    if (r != 0) {
        fprintf(stderr, "conformance: %s\n", ivc_error_text());
        return 1;
    }
    printf("# %s: %s, %llu bytes\n", name, mechanism->name, (unsigned long long)mapping.size);
    is_window = mapping.grants == NULL;
    ivc_mapping_free(&mapping);
    return is_window ? check_main(argc, argv, cases, sizeof cases / sizeof *cases) : run_grants(argc, argv);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "hugetlbfs") == 0)
        return on_huge_pages(argc - 1, argv + 1);
    is_fake = strcmp(what, "grants") == 0;
    if (is_fake)
        return run_grants(argc - 1, argv + 1);
    if (strcmp(what, "found") == 0)
        return on_found(argc - 1, argv + 1);
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
