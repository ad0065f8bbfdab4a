/*
 * Processes that send each other messages of every size, all pairs at once, every byte checked.
 *
 *   exchange                      the cases below, each in a region of its own
 *   exchange member I N MESSAGES  member I of N on the region that IVC_REGION names or that is
 *                                 found: for members in different guests
 */
#include "exchange.h"

enum { MIB = 1 << 20 };

static void run(uint32_t n_members, uint64_t n_messages, size_t longest, uint64_t region_size)
{
    struct exchange exchange = {
        .region = check_file(0, region_size), .magic_id = 11, .n_members = n_members,
        .n_messages = n_messages, .longest = longest,
    };

    exchange_run(&exchange);
}

static void test_two(void)
{
    run(2, 600, 8 * MIB, 64 * MIB);
}

static void test_four(void)
{
    run(4, 150, 8 * MIB, 64 * MIB);
}

static void test_many(void)
{
    run(12, 40, MIB, 64 * MIB);
}

/* The region holds four members by the rule of 256 KiB each. */
static void test_small_region(void)
{
    run(4, 100, MIB, MIB);
}

/* As many as the rule allows: there is no room for every ring to have its proper size. */
static void test_crowded_region(void)
{
    run(8, 60, MIB, 2 * MIB);
}

/* Those who come early have filled their part when the last comes. */
static void test_crowded_slowly(void)
{
    struct exchange exchange = {
        .region = check_file(0, 2 * MIB), .magic_id = 11, .n_members = 8, .n_messages = 60,
        .longest = MIB, .apart_us = 100000,
    };

    exchange_run(&exchange);
}

static void test_small_rings(void)
{
    setenv("IVC_RING_SIZE", "4K", 1);
    setenv("IVC_CHUNK_SIZE", "4K", 1);
    run(3, 150, MIB, 16 * MIB);
}

static void test_large_segments(void)
{
    setenv("IVC_RING_SIZE", "256K", 1);
    setenv("IVC_SEGMENT_SIZE", "4K", 1);
    setenv("IVC_CHUNK_SIZE", "1M", 1);
    run(2, 300, 8 * MIB, 64 * MIB);
}

/* Two groups in one region never meet: each would notice a message of the other. */
static int run_group(void *arg)
{
    exchange_run(arg);
    return 0;
}

static void test_two_groups(void)
{
    const char *path = check_file(0, 64 * MIB);
    struct exchange groups[2];
    pid_t pids[2];

    for (unsigned i = 0; i < 2; i++) {
        groups[i] = (struct exchange){ .region = path, .magic_id = 100 + i, .n_members = 2,
                                       .n_messages = 100 + i, .longest = MIB + i };
        pids[i] = check_fork(run_group, &groups[i]);
    }
    check_join(pids[0]);
    check_join(pids[1]);
}

static const struct check_case cases[] = {
    { "2 processes, up to 8 MiB", test_two, 120 },
    { "4 processes, up to 8 MiB", test_four, 120 },
    { "12 processes", test_many, 120 },
    { "4 processes in the smallest region", test_small_region, 120 },
    { "8 processes in 2 MiB", test_crowded_region, 120 },
    { "8 processes in 2 MiB, one after the other", test_crowded_slowly, 120 },
    { "small rings and buffers", test_small_rings, 120 },
    { "large segments", test_large_segments, 120 },
    { "two groups in one region", test_two_groups, 120 },
};

static int member(char **words)
{
    struct exchange exchange = {
        .magic_id = 11, .own = (uint32_t)atoi(words[0]), .n_members = (uint32_t)atoi(words[1]),
        .n_messages = (uint64_t)atoll(words[2]), .longest = 8 * MIB,
    };

    if (exchange.n_members < 2 || exchange.n_members > EXCHANGE_MEMBERS_MAX
        || exchange.own >= exchange.n_members || exchange.n_messages == 0) {
        fprintf(stderr, "exchange: member I N MESSAGES: I from 0 to N-1, N from 2 to %d\n",
                EXCHANGE_MEMBERS_MAX);
        return 2;
    }
    alarm(120);
    exchange_member(&exchange);
    printf("ok 1 - member %u: %llu messages from each of %u, %llu bytes\n1..1\n", exchange.own,
           (unsigned long long)exchange.n_messages, exchange.n_members - 1,
           (unsigned long long)exchange.bytes);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "member") == 0)
        return member(argv + 2);
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
