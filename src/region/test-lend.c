/*
 * Tests of memory for applications: what it is, when it is given back, and that nobody else gets it
 * while a peer may still reach it through another member of the same process.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "region/internal.h"

enum { SIZE = 4 << 20, PAGE = 4096, MANY = 100, QUARANTINE = 1500 };

static struct ivc_region *join(const char *path, uint64_t magic_id)
{
    struct ivc_region *region = NULL;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(magic_id, 1)) == 0, "%s", ivc_error_text());
    return region;
}

static bool is_zero(const unsigned char *memory, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (memory[i] != 0)
            return false;
    return true;
}

static void test_lend(void)
{
    static const uint64_t sizes[] = { 1, 4095, 4096, 4097, 100000, 1 << 20 };
    struct ivc_region *region = join(check_file(0, SIZE), 1);
    uint64_t free_before = ivc_region_free_bytes(region), handle;
    void *memory;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_EQ(ivc_region_lend(region, sizes[i], &memory), 0);
        CHECK_EQ((uintptr_t)memory % PAGE, 0);
        CHECK(is_zero(memory, sizes[i]));
        memset(memory, 0xff, sizes[i]);
        CHECK_EQ(ivc_region_locate(region, memory, sizes[i], &handle), 0);
        CHECK_EQ(free_before - ivc_region_free_bytes(region), ivc_align_up(sizes[i], PAGE));
        CHECK_EQ(ivc_region_take_back(region, memory), 0);
    }
    CHECK_EQ(ivc_region_free_bytes(region), free_before);
    ivc_region_free(region);
}

/* Taken and given back in any order: pieces never overlap, and nothing is lost. */
static void test_many(void)
{
    struct ivc_region *region = join(check_file(0, SIZE), 1);
    uint64_t free_before = ivc_region_free_bytes(region), seed = 3;
    struct { unsigned char *memory; size_t size; } pieces[MANY] = { { NULL, 0 } };

    for (unsigned round = 1; round < 10000; round++) {
        unsigned i = (unsigned)(check_random(&seed) % MANY);
        void *memory;

        if (pieces[i].memory) {
            for (size_t at = 0; at < pieces[i].size; at += 997)
                CHECK_EQ(pieces[i].memory[at], i + 1);
            CHECK_EQ(ivc_region_take_back(region, pieces[i].memory), 0);
            pieces[i].memory = NULL;
            continue;
        }
        pieces[i].size = check_random(&seed) % (4 * PAGE) + 1;
        CHECK_EQ(ivc_region_lend(region, pieces[i].size, &memory), 0);
        CHECK(is_zero(memory, pieces[i].size));
        pieces[i].memory = memset(memory, (int)i + 1, pieces[i].size);
    }
    for (unsigned i = 0; i < MANY; i++)
        if (pieces[i].memory)
            CHECK_EQ(ivc_region_take_back(region, pieces[i].memory), 0);
    CHECK_EQ(ivc_region_lent_pieces(region), 0);
    CHECK_EQ(ivc_region_free_bytes(region), free_before);
    ivc_region_free(region);
}

static void test_refused(void)
{
    struct ivc_region *region = join(check_file(0, SIZE), 1);
    struct ivc_layout_member *entry = ivc_region_slot(region, ivc_region_self(region)->slot);
    uint64_t free_before = ivc_region_free_bytes(region);
    void *memory = region, *other;

    CHECK_EQ(ivc_region_lend(region, 0, &memory), -EINVAL);
    CHECK_EQ(ivc_region_lend(region, free_before + 1, &memory), IVC_E_NOSPACE);
    CHECK_TEXT(ivc_error_text(), "region /dev/shm/", "full");
    CHECK_EQ(ivc_region_lend(region, UINT64_MAX - 1, &memory), IVC_E_NOSPACE);
    CHECK_EQ(ivc_region_take_back(region, &memory), -EINVAL);
    CHECK_EQ(ivc_region_take_back(region, NULL), -EINVAL);
    CHECK(memory == region);
    CHECK_EQ(ivc_region_lend(region, 3 * PAGE, &memory), 0);
    CHECK_EQ(ivc_region_take_back(region, (char *)memory + PAGE), -EINVAL);
    CHECK_EQ(ivc_region_take_back(region, (char *)memory + 3 * PAGE), -EINVAL);
    CHECK_EQ(ivc_region_take_back(region, memory), 0);
    CHECK_EQ(ivc_region_take_back(region, memory), -EINVAL);
    CHECK_EQ(ivc_region_free_bytes(region), free_before);
    CHECK_EQ(ivc_region_lend(region, free_before, &memory), 0);     /* all that there is */
    CHECK_EQ(ivc_region_lend(region, 1, &other), IVC_E_NOSPACE);
    CHECK_EQ(ivc_region_take_back(region, memory), 0);
    ivc_store_release(&entry->state, ivc_layout_state(ivc_region_self(region)->generation,
                                                      IVC_PHASE_DEAD));
    CHECK_EQ(ivc_region_lend(region, 1, &other), IVC_E_GONE);
    CHECK_TEXT(ivc_error_text(), "stood still");
}

/* Found by whichever member of this process, in its own mapping of the same window; not in another
 * region, and not when the lender has let go. */
static void test_found(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *lender = join(path, 1), *reader = join(path, 2), *other = join(check_file(1, SIZE), 1);
    struct ivc_lent_place place;
    uint64_t handle, slow;
    void *memory, *again;

    CHECK_EQ(ivc_region_lend(lender, 3 * PAGE, &memory), 0);
    CHECK_EQ(ivc_region_lend(lender, 1, &again), 0);
    CHECK(ivc_region_locate_lent(reader, (char *)memory + 5, 3 * PAGE - 5, &handle));
    CHECK_EQ(ivc_region_locate(reader, (char *)memory + 5, 3 * PAGE - 5, &slow), 0);
    CHECK_EQ(handle, slow);
    CHECK(ivc_region_locate_lent(lender, again, 1, &handle));
    CHECK(!ivc_region_locate_lent(other, memory, 1, &handle));
    CHECK(!ivc_region_locate_lent(reader, &handle, sizeof handle, &handle));
    CHECK(!ivc_region_locate_lent(reader, memory, SIZE, &handle));
    CHECK(!ivc_region_locate_lent(reader, memory, UINT64_MAX, &handle));
    CHECK(!ivc_region_locate_lent(reader, (char *)memory - SIZE, 1, &handle));
    CHECK_EQ(ivc_region_lend(other, 1, &again), 0);
    CHECK(ivc_region_locate_lent(other, again, 1, &handle));
    CHECK_THAT(ivc_region_retire(lender, NULL, 0) == 0, "%s", ivc_error_text());
    CHECK(!ivc_region_find_lent(memory, 1, NULL, &place));
    ivc_region_free(other);
    CHECK(!ivc_region_find_lent(again, 1, NULL, &place));
    CHECK_EQ(ivc_region_lend(reader, 1, &again), 0);        /* after nobody had lent anything */
    CHECK(ivc_region_find_lent(again, 1, NULL, &place));
    ivc_region_free(reader);
    ivc_region_free(lender);
}

/* ---------------------------------------------------------------- a process with two members */

enum end { KILLED, LEAVES };

static struct {
    const char *path;
    bool lends;
    enum end end;
    int ready[2], go[2];
    struct ivc_member told;     /* the member that peers talk to */
} other;

/* A member that peers talk to, and one that has memory for the application. */
static int two_members(void *arg)
{
    struct ivc_region *talks = join(other.path, 2), *lends = join(other.path, 3);
    struct ivc_share share;
    void *memory;
    int r;

    (void)arg;
    r = other.lends ? ivc_region_lend(lends, 10 * PAGE, &memory)
                    : ivc_region_share(lends, IVC_SLOT_ANY, 10 * PAGE, &share);
    CHECK_EQ(r, 0);
    CHECK(write(other.ready[1], ivc_region_self(talks), sizeof other.told) == sizeof other.told);
    if (other.end == LEAVES) {
        CHECK(read(other.go[0], &r, 1) == 1);
        ivc_region_leave(lends);
    }
    for (;;)
        pause();
    return 0;
}

/* The peer sees it while it lives. */
static pid_t start_other(struct ivc_region *peer, bool lends, enum end end)
{
    pid_t pid;

    other.path = peer->name;
    other.lends = lends;
    other.end = end;
    CHECK(pipe(other.ready) == 0 && pipe(other.go) == 0);
    pid = check_fork(two_members, NULL);
    CHECK(read(other.ready[0], &other.told, sizeof other.told) == sizeof other.told);
    ivc_region_look_at_members(peer);
    return pid;
}

static void wait_for_free(struct ivc_region *region, uint64_t bytes)
{
    uint64_t deadline = ivc_now_ms() + 5000 * check_slowdown();

    while (ivc_region_free_bytes(region) != bytes && ivc_now_ms() < deadline)
        ivc_sleep_ms(20);
    CHECK_EQ(ivc_region_free_bytes(region), bytes);
}

/* The process dies while a peer still has a channel with its other member: the memory stays. */
static void test_read_through_other(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *peer = join(path, 1);
    uint64_t free_before = ivc_region_free_bytes(peer), lent = 10 * PAGE;
    pid_t pid = start_other(peer, true, KILLED);

    CHECK_EQ(ivc_link_open(peer, other.told.slot, other.told.generation), 0);
    check_kill(pid);
    ivc_sleep_ms(QUARANTINE);
    CHECK(free_before - ivc_region_free_bytes(peer) >= lent);
    ivc_link_close(peer, other.told.slot);
    wait_for_free(peer, free_before);
    ivc_region_free(peer);
}

/* Nobody has a channel with it: the memory comes back by itself. */
static void test_read_by_nobody(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *peer = join(path, 1);
    uint64_t free_before = ivc_region_free_bytes(peer);

    check_kill(start_other(peer, true, KILLED));
    wait_for_free(peer, free_before);
    ivc_region_free(peer);
}

/* The member leaves without taking its memory back, and its process goes on with the other one. */
static void test_left_behind(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *peer = join(path, 1);
    uint64_t free_before = ivc_region_free_bytes(peer), lent = 10 * PAGE;
    pid_t pid = start_other(peer, true, LEAVES);

    CHECK_EQ(ivc_link_open(peer, other.told.slot, other.told.generation), 0);
    CHECK(write(other.go[1], "", 1) == 1);
    ivc_sleep_ms(QUARANTINE);
    CHECK(free_before - ivc_region_free_bytes(peer) >= lent);
    ivc_link_close(peer, other.told.slot);
    check_kill(pid);
    wait_for_free(peer, free_before);
    ivc_region_free(peer);
}

/* A member that lends nothing is not held up by others of its process. */
static void test_lends_nothing(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *peer = join(path, 1);
    uint64_t table = 2 * PAGE, free_before = ivc_region_free_bytes(peer);
    pid_t pid = start_other(peer, false, KILLED);

    CHECK_EQ(ivc_link_open(peer, other.told.slot, other.told.generation), 0);
    check_kill(pid);
    wait_for_free(peer, free_before - table);   /* but for the link table of the one that is read */
    ivc_link_close(peer, other.told.slot);
    wait_for_free(peer, free_before);
    ivc_region_free(peer);
}

static const struct check_case cases[] = {
    { "lend", test_lend, 0 },
    { "many", test_many, 0 },
    { "found-by-its-address", test_found, 0 },
    { "refused", test_refused, 0 },
    { "read-through-another-member", test_read_through_other, 0 },
    { "read-by-nobody", test_read_by_nobody, 0 },
    { "left-behind", test_left_behind, 0 },
    { "lends-nothing", test_lends_nothing, 0 },
};

CHECK_MAIN(cases)
