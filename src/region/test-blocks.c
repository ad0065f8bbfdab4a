/* Tests of the allocator: runs at both ends, the hint's wrap, and many takers at once. */
#include "check.h"

#include "region/blocks.h"

#include <pthread.h>

enum { N = 100, ME = 0x80001, OTHER = 0x100001 };

static ivc_atomic_u32 owners[N];

static struct ivc_blocks fresh(uint64_t hint)
{
    memset((void *)owners, 0, sizeof owners);
    return (struct ivc_blocks){ .owners = owners, .n = N, .hint = hint };
}

static void test_takes(void)
{
    /* Blocks from busy_from to busy_to (not included) are another's. */
    static const struct { uint64_t hint, busy_from, busy_to, count; int r; uint64_t first; } rows[] = {
        { 0, 0, 0, 1, 0, 0 },
        { 0, 0, 0, N, 0, 0 },
        { 0, 0, 0, N + 1, -ENOSPC, 0 },
        { 0, 0, 0, 0, -ENOSPC, 0 },
        { 0, 0, 0, UINT64_MAX, -ENOSPC, 0 },
        { 99, 0, 0, 1, 0, 99 },
        { 99, 0, 0, 2, 0, 0 },              /* does not run over the end */
        { 50, 0, 0, 51, 0, 0 },             /* begins before the hint, goes beyond it */
        { 0, 0, 1, N - 1, 0, 1 },
        { 0, 0, 1, N, -ENOSPC, 0 },
        { 0, 50, 51, 50, 0, 0 },
        { 0, 49, 51, 49, 0, 0 },
        { 10, 49, 51, 49, 0, 51 },
        { 52, 49, 51, 49, 0, 0 },           /* 48 to the end: found before the hint */
        { 0, 49, 51, 50, -ENOSPC, 0 },
        { 0, 0, N, 1, -ENOSPC, 0 },
        { 0, 0, N - 1, 1, 0, N - 1 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ivc_blocks blocks = fresh(rows[i].hint);
        uint64_t first = 0, free_before;

        for (uint64_t b = rows[i].busy_from; b < rows[i].busy_to; b++)
            ivc_store_relaxed(&owners[b], OTHER);
        free_before = ivc_blocks_free_count(&blocks);
        CHECK_EQ(free_before, N - (rows[i].busy_to - rows[i].busy_from));
        CHECK_THAT(ivc_blocks_take(&blocks, ME, rows[i].count, &first) == rows[i].r, "row %zu", i);
        if (rows[i].r < 0) {
            CHECK_THAT(ivc_blocks_free_count(&blocks) == free_before, "row %zu leaks", i);
            continue;
        }
        CHECK_THAT(first == rows[i].first, "row %zu: first is %llu", i, (unsigned long long)first);
        CHECK_EQ(ivc_blocks_free_count(&blocks), free_before - rows[i].count);
        CHECK(blocks.hint < N);
    }
}

static void test_gives(void)
{
    struct ivc_blocks blocks = fresh(0);
    uint64_t a, b;

    CHECK_EQ(ivc_blocks_take(&blocks, ME, 10, &a), 0);
    CHECK_EQ(ivc_blocks_take(&blocks, OTHER, 10, &b), 0);
    ivc_blocks_give(&blocks, ME, b, 10);        /* not ours: stays */
    CHECK_EQ(ivc_blocks_free_count(&blocks), N - 20);
    ivc_blocks_give(&blocks, ME, a + 3, 4);
    CHECK_EQ(ivc_blocks_free_count(&blocks), N - 16);
    CHECK_EQ(ivc_blocks_give_all(&blocks, ME), 6);
    CHECK_EQ(ivc_blocks_give_all(&blocks, ME), 0);
    CHECK_EQ(ivc_blocks_give_all(&blocks, OTHER), 10);
    CHECK_EQ(ivc_blocks_free_count(&blocks), N);
}

/* A thousand turns: whatever is taken is nobody else's meanwhile. */
static ivc_atomic_u32 users[N];

static void *taker(void *arg)
{
    uint32_t owner = (uint32_t)(uintptr_t)arg;
    struct ivc_blocks blocks = { .owners = owners, .n = N };
    uint64_t state = owner, first;

    for (int turn = 0; turn < 2000; turn++) {
        uint64_t count = check_random(&state) % 20 + 1;

        if (ivc_blocks_take(&blocks, owner, count, &first) < 0)
            continue;
        for (uint64_t i = first; i < first + count; i++)
            CHECK_EQ(atomic_fetch_add(&users[i], 1), 0);
        for (uint64_t i = first; i < first + count; i++)
            CHECK_EQ(atomic_fetch_sub(&users[i], 1), 1);
        ivc_blocks_give(&blocks, owner, first, count);
    }
    return NULL;
}

static void test_many_takers(void)
{
    struct ivc_blocks blocks = fresh(0);
    pthread_t threads[4];

    for (uintptr_t i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, taker, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(ivc_blocks_free_count(&blocks), N);
}

static const struct check_case cases[] = {
    { "take: runs, ends and the hint", test_takes, 0 },
    { "give: only what is ours", test_gives, 0 },
    { "four takers at once", test_many_takers, 0 },
};
CHECK_MAIN(cases)
