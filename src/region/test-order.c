/*
 * Tests of orders: who is asked, when an order is void, who is refused, and what scribbled orders
 * do.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <pthread.h>

enum { SIZE = 1 << 20, LEASE_MS = 1000, VM = 0x1234, RACERS = 4 };

static struct ivc_region *open_region(const char *path)
{
    struct ivc_region *region = NULL;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    return region;
}

/* With a short lease, which those who open it from now on find. */
static const char *new_region(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = open_region(path);

    ivc_store_relaxed(&((struct ivc_layout_header *)region->mapping.memory)->lease_ms,
                      LEASE_MS * check_slowdown());
    ivc_region_free(region);
    return path;
}

static bool is_asked(struct ivc_region *region, uint64_t vm)
{
    ivc_region_orders_look(region);
    return ivc_region_is_ordered_away(region, vm);
}

static void test_give(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *guest = open_region(path);
    struct ivc_order order, other;

    CHECK(!is_asked(guest, VM));
    for (unsigned i = 0; i < 100; i++) {
        CHECK_THAT(ivc_order_give(host, VM + i % 2, &order) == 0, "%s", ivc_error_text());
        CHECK(is_asked(guest, VM + i % 2));
        CHECK(!is_asked(guest, VM + 1 - i % 2));
        CHECK_EQ(ivc_order_beat(&order), 0);
        CHECK_EQ(ivc_order_give(host, VM + 5, &other), 0);
        CHECK(is_asked(guest, VM + 5) && is_asked(guest, VM + i % 2));
        ivc_order_withdraw(&order);
        CHECK(!is_asked(guest, VM + i % 2) && is_asked(guest, VM + 5));
        ivc_order_withdraw(&order);     /* once more does nothing */
        CHECK_EQ(ivc_order_beat(&order), IVC_E_GONE);
        ivc_order_withdraw(&other);
        CHECK(!is_asked(guest, VM + 5));
    }
    ivc_region_free(host);
    ivc_region_free(guest);
}

/* Beats until it is told to stop. */
struct beater {
    pthread_t thread;
    struct ivc_order order;
    ivc_atomic_u32 stop;
};

static void *beat(void *arg)
{
    struct beater *beater = arg;

    while (!ivc_load_relaxed(&beater->stop)) {
        CHECK_EQ(ivc_order_beat(&beater->order), 0);
        ivc_sleep_ms(IVC_HEARTBEAT_MS);
    }
    return NULL;
}

/* Valid for as long as it beats, void when it has not for the lease. */
static void test_void(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *guest = open_region(path);
    unsigned lease = LEASE_MS * check_slowdown();
    struct beater beater = { .stop = 0 };
    uint64_t start;

    CHECK_EQ(ivc_order_give(host, VM, &beater.order), 0);
    CHECK_EQ(pthread_create(&beater.thread, NULL, beat, &beater), 0);
    for (start = ivc_now_ms(); ivc_now_ms() - start < 3 * lease; ivc_sleep_ms(20))
        CHECK(is_asked(guest, VM));
    ivc_store_relaxed(&beater.stop, 1);
    CHECK_EQ(pthread_join(beater.thread, NULL), 0);
    start = ivc_now_ms();
    while (is_asked(guest, VM))
        ivc_sleep_ms(20);
    CHECK_THAT(ivc_now_ms() - start >= lease - 300 && ivc_now_ms() - start < 2 * lease, "%u ms",
               (unsigned)(ivc_now_ms() - start));
    CHECK_EQ(ivc_order_beat(&beater.order), 0);     /* it was only late: then it counts again */
    CHECK(is_asked(guest, VM));
    ivc_region_free(host);
    ivc_region_free(guest);
}

/* A looker that stood still itself does not hold that against the giver. */
static void test_looker_absent(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *guest = open_region(path);
    struct ivc_order order;

    CHECK_EQ(ivc_order_give(host, VM, &order), 0);
    CHECK(is_asked(guest, VM));
    ivc_sleep_ms(2 * LEASE_MS * check_slowdown());
    CHECK(is_asked(guest, VM));
    ivc_region_free(host);
    ivc_region_free(guest);
}

static void test_twice(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *second = open_region(path);
    struct beater beater = { .stop = 0 };
    struct ivc_order order;

    CHECK_EQ(ivc_order_give(host, VM, &beater.order), 0);
    CHECK_EQ(pthread_create(&beater.thread, NULL, beat, &beater), 0);
    for (unsigned i = 0; i < 5; i++) {
        CHECK_EQ(ivc_order_give(second, VM, &order), -EALREADY);
        CHECK_TEXT(ivc_error_text(), path, "0000000000001234", "already");
        CHECK(is_asked(second, VM));
    }
    ivc_store_relaxed(&beater.stop, 1);
    CHECK_EQ(pthread_join(beater.thread, NULL), 0);
    /* Its giver has died: after some beats that are missing the next one may ask. */
    CHECK_THAT(ivc_order_give(second, VM, &order) == 0, "%s", ivc_error_text());
    CHECK(is_asked(host, VM));
    ivc_region_free(host);
    ivc_region_free(second);
}

/* Two who ask the same at the same moment: one of them is refused. */
struct racer {
    pthread_t thread;
    struct ivc_region *region;
    ivc_atomic_u32 *go, *refused;
    int r;
};

static void *race(void *arg)
{
    struct racer *racer = arg;
    struct ivc_order order;

    while (!ivc_load_acquire(racer->go))
        ivc_cpu_relax();
    racer->r = ivc_order_give(racer->region, VM, &order);
    if (racer->r != 0)
        atomic_fetch_add(racer->refused, 1);
    /* Two orders at once would wait for each other for ever: the case would hang. */
    while (racer->r == 0 && ivc_load_relaxed(racer->refused) < RACERS - 1) {
        CHECK_EQ(ivc_order_beat(&order), 0);
        ivc_sleep_ms(IVC_HEARTBEAT_MS);
    }
    if (racer->r == 0)
        ivc_order_withdraw(&order);
    return NULL;
}

static void test_race(void)
{
    const char *path = new_region();
    struct ivc_region *guest = open_region(path);
    struct racer racers[RACERS];
    ivc_atomic_u32 go, refused;

    for (unsigned round = 0; round < 20; round++) {
        unsigned given = 0;

        atomic_store(&go, 0);
        atomic_store(&refused, 0);
        for (unsigned i = 0; i < RACERS; i++) {
            racers[i] = (struct racer){ .region = open_region(path), .go = &go,
                                        .refused = &refused };
            CHECK_EQ(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
        }
        ivc_sleep_ms(2);
        ivc_store_release(&go, 1);
        for (unsigned i = 0; i < RACERS; i++) {
            CHECK_EQ(pthread_join(racers[i].thread, NULL), 0);
            CHECK_THAT(racers[i].r == 0 || racers[i].r == -EALREADY, "%d", racers[i].r);
            given += racers[i].r == 0;
            ivc_region_free(racers[i].region);
        }
        CHECK_EQ(given, 1);
        CHECK(!is_asked(guest, VM));
    }
    ivc_region_free(guest);
}

/* All places taken: refused while they live, taken over when they are void. */
static void test_full(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *late = open_region(path);
    struct beater beaters[IVC_LAYOUT_ORDERS];
    struct ivc_order order;

    for (unsigned i = 0; i < IVC_LAYOUT_ORDERS; i++) {
        atomic_init(&beaters[i].stop, 0);
        CHECK_EQ(ivc_order_give(host, 100 + i, &beaters[i].order), 0);
        CHECK_EQ(pthread_create(&beaters[i].thread, NULL, beat, &beaters[i]), 0);
    }
    CHECK_EQ(ivc_order_give(late, VM, &order), -ENOSPC);
    CHECK_TEXT(ivc_error_text(), path, "32");
    CHECK(is_asked(late, 100) && is_asked(late, 131) && !is_asked(late, VM));
    for (unsigned i = 0; i < IVC_LAYOUT_ORDERS; i++)
        ivc_store_relaxed(&beaters[i].stop, 1);
    for (unsigned i = 0; i < IVC_LAYOUT_ORDERS; i++)
        CHECK_EQ(pthread_join(beaters[i].thread, NULL), 0);
    CHECK_THAT(ivc_order_give(late, VM, &order) == 0, "%s", ivc_error_text());
    CHECK(is_asked(late, VM));
    CHECK_EQ(ivc_order_beat(&beaters[order.place].order), IVC_E_GONE);
    ivc_order_withdraw(&beaters[order.place].order);    /* no longer his to withdraw */
    CHECK(is_asked(late, VM));
    ivc_region_free(host);
    ivc_region_free(late);
}

/* Nonsense in the orders: nothing but an answer comes of it, and places can be had again. */
static void test_scribbled(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *guest = open_region(path);
    uint64_t seed = 5;
    struct ivc_order order;

    for (unsigned round = 0; round < 200; round++) {
        uint64_t *words = (uint64_t *)ivc_order_at(host, 0);

        for (unsigned i = 0; i < IVC_LAYOUT_ORDERS * 8; i++)
            words[i] = round % 3 ? check_random(&seed) : UINT64_MAX;
        ivc_region_orders_look(guest);
        (void)ivc_region_is_ordered_away(guest, check_random(&seed));
    }
    /* Taken, and its giver died before it was asked: as void as any. */
    for (uint32_t i = 0; i < IVC_LAYOUT_ORDERS; i++)
        ivc_store_relaxed(&ivc_order_at(host, i)->state, (uint64_t)7 << 32 | IVC_ORDER_WRITING);
    CHECK(!is_asked(guest, VM));
    CHECK_THAT(ivc_order_give(host, VM, &order) == 0, "%s", ivc_error_text());
    CHECK(is_asked(guest, VM));
    ivc_region_free(host);
    ivc_region_free(guest);
}

/* One who waits for a region stays away while it is asked to, and comes when it no longer is. */
static void test_open_unordered(void)
{
    const char *path = new_region();
    struct ivc_region *host = open_region(path), *region = NULL;
    struct ivc_order_watch watch = { .looked_ms = 0 };
    uint64_t start = 0, own = ivc_region_own_vm();
    struct ivc_order order;

    CHECK_EQ(ivc_order_give(host, own ^ 1, &order), 0);
    CHECK_EQ(ivc_region_open_unordered(path, &watch, &region), 0);
    CHECK(!ivc_region_is_ordered_away(region, own) && ivc_region_is_ordered_away(region, own ^ 1));
    ivc_region_free(region);
    ivc_order_withdraw(&order);
    CHECK_EQ(ivc_order_give(host, own, &order), 0);
    region = NULL;
    for (unsigned i = 0; i < 10; i++, ivc_sleep_ms(100)) {
        CHECK_EQ(ivc_region_open_unordered(path, &watch, &region), IVC_E_NOREGION);
        CHECK(region == NULL);
        CHECK_EQ(ivc_order_beat(&order), 0);
    }
    ivc_order_withdraw(&order);
    CHECK_EQ(ivc_region_open_unordered(path, &watch, &region), 0);
    ivc_region_free(region);
    /* Its giver dies: it is void after the lease. */
    CHECK_EQ(ivc_order_give(host, own, &order), 0);
    for (start = ivc_now_ms(); ivc_region_open_unordered(path, &watch, &region) != 0; )
        ivc_sleep_ms(100);
    CHECK_THAT(ivc_now_ms() - start >= LEASE_MS * check_slowdown() - 200, "%u ms",
               (unsigned)(ivc_now_ms() - start));
    ivc_region_free(region);
    /* Made anew: what was seen before says nothing about an order in it. */
    CHECK_EQ(ivc_order_beat(&order), 0);
    CHECK_EQ(ivc_region_open_unordered(path, &watch, &region), IVC_E_NOREGION);
    CHECK_EQ(truncate(path, 0), 0);
    CHECK_EQ(truncate(path, SIZE), 0);
    CHECK_EQ(ivc_region_open_unordered(path, &watch, &region), 0);
    ivc_region_free(region);
    CHECK(ivc_region_open_unordered("/dev/shm/ivc-no-such-file", &watch, &region) == -ENOENT);
}

/* What a member says about itself, and whom that names. */
static int tell_vm(void *arg)
{
    const char *const *words = arg;

    if (words[1])
        setenv("IVC_VM", words[1], 1);
    else
        unsetenv("IVC_VM");
    return ivc_region_own_vm() == ivc_vm_of(words[0]) ? 0 : 1;
}

static void test_identity(void)
{
    const char *path = new_region(), *words[2] = { "g1", "g1" };
    struct ivc_region *region = open_region(path), *watcher = open_region(path);
    uint8_t network[40];
    struct ivc_identity identity = { .magic_id = 4, .client_id = 5, .endpoint_id = 0x77,
                                     .network = network, .features = IVC_FEATURE_ORDERS };
    struct ivc_member member;
    char uuid[64] = "";

    check_join(check_fork(tell_vm, words));     /* before this process has read its own */
    memset(network, 0x42, sizeof network);
    CHECK_EQ(ivc_vm_of(""), 0xcbf29ce484222325ull);
    CHECK_EQ(ivc_vm_of("a"), 0xaf63dc4c8601ec8cull);       /* as published for FNV-1a */
    CHECK_EQ(ivc_region_join(region, &identity), 0);
    CHECK_EQ(ivc_region_member(watcher, 0, &member), 0);
    CHECK_EQ(member.endpoint_id, 0x77);
    CHECK_EQ(member.vm, ivc_region_own_vm());
    CHECK_EQ(member.features, IVC_FEATURE_ORDERS);
    CHECK(memcmp(member.network, network, sizeof network) == 0);
    ivc_region_leave(region);
    /* The next one in that slot has none of it. */
    CHECK_EQ(ivc_region_join(region, CHECK_AS(1, 1)), 0);
    CHECK_EQ(ivc_region_member(watcher, 0, &member), 0);
    CHECK(member.endpoint_id != 0 && member.endpoint_id != 0x77);
    CHECK_EQ(member.features, 0);
    for (size_t i = 0; i < sizeof member.network; i++)
        CHECK_EQ(member.network[i], 0);
    if (ivc_read_line("/sys/class/dmi/id/product_uuid", uuid, sizeof uuid) < 0)
        CHECK_EQ(ivc_read_line("/proc/sys/kernel/random/boot_id", uuid, sizeof uuid), 0);
    for (char *at = uuid; *at; at++)
        *at = (char)(*at >= 'A' && *at <= 'Z' ? *at + 32 : *at);
    words[0] = uuid;
    if (!getenv("IVC_VM"))
        CHECK_EQ(ivc_region_own_vm(), ivc_vm_of(uuid));
    ivc_region_free(region);
    ivc_region_free(watcher);
}

static const struct check_case cases[] = {
    { "given, withdrawn", test_give, 0 },
    { "void", test_void, 0 },
    { "the looker was absent", test_looker_absent, 0 },
    { "twice", test_twice, 0 },
    { "at the same moment", test_race, 0 },
    { "all places taken", test_full, 0 },
    { "scribbled", test_scribbled, 0 },
    { "waiting for a region", test_open_unordered, 0 },
    { "identity", test_identity, 0 },
};
CHECK_MAIN(cases)
