/*
 * Tests of a window's header: the shape that follows from its size, formatting by many at once and
 * after a formatter that died half way, and every kind of header that must be refused.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/window.h"

#include <pthread.h>

enum { SIZE = 1 << 20 };

static struct ivc_mapping map(const char *path, uint64_t size)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(fd >= 0 && memory != MAP_FAILED);
    close(fd);
    return (struct ivc_mapping){ .memory = memory, .size = size };
}

static void test_geometry(void)
{
    static const uint64_t sizes[] = {
        1 << 20, (1 << 20) + 1, (1 << 20) + 4095, (1 << 20) + 4096, 2 << 20, 16 << 20,
        (16 << 20) + 12345, 17 << 20, 64 << 20, (uint64_t)1 << 30, (uint64_t)1 << 40,
    };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct ivc_window_geometry g = ivc_window_geometry(sizes[i]);
        uint64_t members_end = g.members + (uint64_t)g.capacity * IVC_LAYOUT_MEMBER_SIZE;

        CHECK_THAT(g.capacity >= 64 && g.capacity <= 4096 && g.capacity % 64 == 0, "size %zu", i);
        CHECK_THAT(g.map_words * 64 == g.capacity, "size %zu", i);
        CHECK_THAT(g.members >= sizeof(struct ivc_layout_header), "size %zu", i);
        CHECK_THAT(g.inboxes >= members_end && g.inboxes % 64 == 0, "size %zu", i);
        CHECK_THAT(g.inbox_size % 64 == 0, "size %zu", i);
        CHECK_THAT(g.owners >= g.inboxes + g.capacity * g.inbox_size, "size %zu", i);
        CHECK_THAT(g.blocks >= g.owners + g.n_blocks * 4 && g.blocks % 4096 == 0, "size %zu", i);
        CHECK_THAT(g.n_blocks > 0 && g.blocks + g.n_blocks * 4096 <= sizes[i], "size %zu", i);
        /* Most of it is for use. */
        CHECK_THAT(g.n_blocks * 4096 > sizes[i] * 8 / 10, "size %zu", i);
    }
}

/* Everyone who opens a fresh window agrees on all of it, whoever was first. */
static void *opener(void *arg)
{
    const struct ivc_mapping *mapping = arg;
    struct ivc_window_geometry g;

    CHECK_THAT(ivc_window_open("w", mapping, &g) == 0, "%s", ivc_error_text());
    return NULL;
}

static void test_threads_format(void)
{
    for (unsigned round = 0; round < 100; round++) {
        struct ivc_mapping mapping = map(check_file(0, SIZE), SIZE);
        pthread_t threads[6];

        for (unsigned i = 0; i < 6; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, opener, &mapping), 0);
        for (unsigned i = 0; i < 6; i++)
            pthread_join(threads[i], NULL);
        munmap(mapping.memory, SIZE);
    }
}

/* Processes that wait for a common start, open, and tell what UUID they saw. */
struct race {
    const char *path;
    ivc_atomic_u32 *gate;       /* shared */
    char (*uuids)[40];          /* shared */
    unsigned number;
    const char *tenant;
};

static int racer(void *arg)
{
    struct race *race = arg;
    struct ivc_mapping mapping = map(race->path, SIZE);
    struct ivc_window_geometry g;
    int r;

    if (race->tenant)
        setenv("IVC_TENANT", race->tenant, 1);
    atomic_fetch_add(race->gate, 1);
    while (ivc_load_acquire(race->gate) < 1000)
        ivc_cpu_relax();
    r = ivc_window_open("w", &mapping, &g);
    if (r == 0)
        CHECK_EQ(ivc_window_uuid(&mapping, race->uuids[race->number]), 0);
    return r == 0 ? 0 : r == -EACCES ? 1 : 2;
}

static void *shared_page(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(page != MAP_FAILED);
    return page;
}

/* Starts `n` racers at once on a fresh file; writes their exit codes. */
static void run_race(const char *const *tenants, unsigned n, int *ret_codes, char (**ret_uuids)[40])
{
    const char *path = check_file(0, SIZE);
    char *page = shared_page();
    struct race races[8];
    pid_t pids[8];
    int status;

    for (unsigned i = 0; i < n; i++) {
        races[i] = (struct race){ path, (ivc_atomic_u32 *)page, (char (*)[40])(page + 64), i,
                                  tenants ? tenants[i] : NULL };
        pids[i] = check_fork(racer, &races[i]);
    }
    while (ivc_load_acquire((ivc_atomic_u32 *)page) < n)
        sched_yield();
    ivc_store_release((ivc_atomic_u32 *)page, 1000);
    for (unsigned i = 0; i < n; i++) {
        CHECK(waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status));
        ret_codes[i] = WEXITSTATUS(status);
    }
    *ret_uuids = (char (*)[40])(page + 64);
}

static void test_processes_format(void)
{
    for (unsigned round = 0; round < 40; round++) {
        int codes[6];
        char (*uuids)[40];

        run_race(NULL, 6, codes, &uuids);
        for (unsigned i = 0; i < 6; i++) {
            CHECK_EQ(codes[i], 0);
            CHECK_THAT(strcmp(uuids[i], uuids[0]) == 0, "round %u: %s and %s", round, uuids[i],
                       uuids[0]);
        }
        munmap((char *)uuids - 64, 4096);
    }
}

/* Two tenants reach for one fresh window: one has it, the other is told so. */
static void test_tenants_race(void)
{
    static const char *const tenants[] = {
        "tenant-one-with-a-long-name", "tenant-two-with-a-long-nome",
        "tenant-one-with-a-long-name", "tenant-two-with-a-long-nome",
    };

    for (unsigned round = 0; round < 60; round++) {
        int codes[4];
        char (*uuids)[40];

        run_race(tenants, 4, codes, &uuids);
        CHECK_EQ(codes[0], codes[2]);
        CHECK_EQ(codes[1], codes[3]);
        CHECK_THAT(codes[0] + codes[1] == 1, "round %u: tenant one %d, tenant two %d", round,
                   codes[0], codes[1]);
        munmap((char *)uuids - 64, 4096);
    }
}

/* A formatter that died after any of its steps: the next one finishes.  The steps are found by
 * formatting once and putting the fields back one after the other. */
static void test_formatter_died(void)
{
    enum { FIELDS = 12 };
    struct ivc_mapping whole = map(check_file(0, SIZE), SIZE);
    struct ivc_layout_header *from = whole.memory;
    struct ivc_window_geometry g;

    CHECK_EQ(ivc_window_open("w", &whole, &g), 0);
    for (unsigned steps = 0; steps <= FIELDS; steps++) {
        struct ivc_mapping half = map(check_file(1, SIZE), SIZE);
        struct ivc_layout_header *to = half.memory;
        char uuid[37];
        unsigned n = 0;

#define STEP(field)                                                                        \
        if (n++ < steps)                                                                   \
            ivc_store_relaxed(&to->field, ivc_load_relaxed(&from->field))
        STEP(size); STEP(uuid[0]); STEP(uuid[1]); STEP(epoch); STEP(version); STEP(capacity);
        STEP(members); STEP(inboxes); STEP(owners); STEP(blocks); STEP(n_blocks); STEP(lease_ms);
#undef STEP
        CHECK_EQ(n, FIELDS);
        CHECK_EQ(ivc_window_uuid(&half, uuid), -ENODATA);
        CHECK_THAT(ivc_window_open("w", &half, &g) == 0, "after %u steps: %s", steps,
                   ivc_error_text());
        CHECK_EQ(ivc_window_uuid(&half, uuid), 0);
        munmap(half.memory, SIZE);
    }
}

static void test_damaged(void)
{
    static const struct { const char *field; size_t at, bytes; int r; } rows[] = {
#define FIELD(name, r) { #name, offsetof(struct ivc_layout_header, name),                  \
                         sizeof ((struct ivc_layout_header *)0)->name, r }
        FIELD(magic, -EBADMSG), FIELD(version, -EPROTO), FIELD(capacity, -EBADMSG),
        FIELD(size, -EFBIG), FIELD(members, -EBADMSG), FIELD(inboxes, -EBADMSG),
        FIELD(owners, -EBADMSG), FIELD(blocks, -EBADMSG), FIELD(n_blocks, -EBADMSG),
#undef FIELD
    };
    struct ivc_mapping mapping = map(check_file(0, SIZE), SIZE);
    struct ivc_layout_header good, *header = mapping.memory;
    struct ivc_window_geometry g;

    CHECK_EQ(ivc_window_open("region-name", &mapping, &g), 0);
    memcpy(&good, header, sizeof good);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t bit = 0; bit < rows[i].bytes * 8; bit++) {
            int r;

            ((uint8_t *)header)[rows[i].at + bit / 8] ^= (uint8_t)(1 << bit % 8);
            r = ivc_window_open("region-name", &mapping, &g);
            /* A smaller size than the real one may be caught as size or as geometry. */
            CHECK_THAT(r < 0 && (r == rows[i].r || (rows[i].r == -EFBIG && r == -EBADMSG)),
                       "%s bit %zu gave %d", rows[i].field, bit, r);
            CHECK_TEXT(ivc_error_text(), "region-name");
            memcpy(header, &good, sizeof good);
        }
    }
    ivc_store_relaxed(&header->lease_ms, 0);
    CHECK_EQ(ivc_window_open("region-name", &mapping, &g), -EBADMSG);
    memcpy(header, &good, sizeof good);
    CHECK_EQ(ivc_window_open("region-name", &mapping, &g), 0);
}

static void test_garbage(void)
{
    struct ivc_mapping mapping = map(check_file(0, SIZE), SIZE);
    struct ivc_window_geometry g;
    uint64_t state = 99;

    /* One word anywhere in an unused header is somebody's data. */
    for (size_t word = 0; word < 512; word++) {
        uint64_t *words = mapping.memory;

        memset(words, 0, 4096);
        words[word] = 0x1234567;
        CHECK_THAT(ivc_window_open("w", &mapping, &g) == -EBADMSG, "word %zu", word);
        CHECK_TEXT(ivc_error_text(), "not an ivc region", "reset");
    }
    for (size_t round = 0; round < 1000; round++) {
        for (size_t i = 0; i < 512; i++)
            ((uint64_t *)mapping.memory)[i] = check_random(&state);
        CHECK_EQ(ivc_window_open("w", &mapping, &g), -EBADMSG);
    }
}

static void test_sizes(void)
{
    const char *path = check_file(0, 4 * SIZE);
    struct ivc_mapping all = map(path, 4 * SIZE), part = map(path, 2 * SIZE);
    struct ivc_window_geometry g, first;

    /* Made with 2 MiB, then seen with 4: as it was made.  The other way round: refused. */
    CHECK_EQ(ivc_window_open("w", &part, &first), 0);
    CHECK_EQ(ivc_window_open("w", &all, &g), 0);
    CHECK_EQ(g.capacity, first.capacity);
    CHECK_EQ(g.n_blocks, first.n_blocks);
    memset(all.memory, 0, 4096);
    CHECK_EQ(ivc_window_open("w", &all, &g), 0);
    CHECK_EQ(ivc_window_open("w", &part, &g), -EFBIG);
    CHECK_TEXT(ivc_error_text(), "4194304", "2097152");
}

static void test_tenants(void)
{
    static const struct { const char *maker, *joiner; int r; } rows[] = {
        { NULL, NULL, 0 },
        { NULL, "anna", 0 },            /* a window of nobody is open to all */
        { "anna", "anna", 0 },
        { "anna", "bert", -EACCES },
        { "anna", NULL, -EACCES },
        { "anna", "ann", -EACCES },
        { "anna", "annab", -EACCES },
        { "a-name-of-exactly-32-characters!", "a-name-of-exactly-32-characters!", 0 },
        { "a-name-of-exactly-32-characters!", "a-name-of-exactly-32-characters?", -EACCES },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ivc_mapping mapping = map(check_file(0, SIZE), SIZE);
        struct ivc_window_geometry g;

        unsetenv("IVC_TENANT");
        if (rows[i].maker)
            setenv("IVC_TENANT", rows[i].maker, 1);
        CHECK_EQ(ivc_window_open("w", &mapping, &g), 0);
        unsetenv("IVC_TENANT");
        if (rows[i].joiner)
            setenv("IVC_TENANT", rows[i].joiner, 1);
        CHECK_THAT(ivc_window_open("w", &mapping, &g) == rows[i].r, "row %zu", i);
        if (rows[i].r < 0)
            CHECK_TEXT(ivc_error_text(), rows[i].maker, "IVC_TENANT");
        munmap(mapping.memory, SIZE);
    }
}

static const struct check_case cases[] = {
    { "geometry follows from the size", test_geometry, 0 },
    { "formatted by six threads at once", test_threads_format, 0 },
    { "formatted by six processes at once", test_processes_format, 0 },
    { "two tenants at once: one wins", test_tenants_race, 0 },
    { "a formatter died half way", test_formatter_died, 0 },
    { "every damaged field is noticed", test_damaged, 0 },
    { "other data is left alone", test_garbage, 0 },
    { "seen with another size", test_sizes, 0 },
    { "tenants", test_tenants, 0 },
};
CHECK_MAIN(cases)
