/* Tests of base: sizes from the environment, arithmetic, small files, error lines, copying, who wants the
 * processor. */
#include "check.h"

#include "base/copy.h"
#include "base/crowd.h"
#include "base/error.h"
#include "base/util.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* A private mapping shows what the file has become until it is stored into. */
static void test_touched_pages(void)
{
    enum { PAGE = 4096, PAGES = 3 };
    char before[PAGES * PAGE], after[PAGES * PAGE];
    int fd = memfd_create("touched", 0);
    char *memory;

    memset(before, 'b', sizeof before);
    memset(after, 'a', sizeof after);
    CHECK(fd >= 0 && write(fd, before, sizeof before) == sizeof before);
    memory = mmap(NULL, sizeof before, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(memory != MAP_FAILED);
    ivc_touch_pages(memory + PAGE / 2, PAGE);       /* from the middle of the first to that of the second */
    CHECK(memcmp(memory, before, sizeof before) == 0);
    CHECK_EQ(pwrite(fd, after, sizeof after, 0), (ssize_t)sizeof after);
    CHECK(memcmp(memory, before, 2 * PAGE) == 0);
    CHECK(memcmp(memory + 2 * PAGE, after, PAGE) == 0);
    ivc_touch_pages(memory + 2 * PAGE, 0);
    CHECK_EQ(pwrite(fd, before, sizeof before, 0), (ssize_t)sizeof before);
    CHECK(memcmp(memory + 2 * PAGE, before, PAGE) == 0);
    munmap(memory, sizeof before);
    close(fd);
}

/* Until the limit is reached; and what is said of it names the limit. */
static void test_descriptors(void)
{
    struct rlimit limit, low;

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQ(ivc_descriptors_check(16), 0);
    low = limit;
    low.rlim_cur = 12;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    CHECK_EQ(ivc_descriptors_check(1), 0);
    CHECK_EQ(ivc_descriptors_check(16), -EMFILE);
    CHECK_TEXT(ivc_error_text(), "ulimit -n is 12");
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQ(ivc_descriptors_check(16), 0);
    CHECK_TEXT(ivc_error_of(EACCES), strerror(EACCES));
}

static void test_arithmetic(void)
{
    static const struct { uint64_t n, to, up; } rows[] = {
        { 0, 64, 0 }, { 1, 64, 64 }, { 63, 64, 64 }, { 64, 64, 64 }, { 65, 64, 128 },
        { 4095, 4096, 4096 }, { 4097, 4096, 8192 }, { 7, 1, 7 },
        { UINT64_MAX - 63, 64, UINT64_MAX - 63 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_THAT(ivc_align_up(rows[i].n, rows[i].to) == rows[i].up, "row %zu", i);
    CHECK(!ivc_is_power_of_two(0));
    for (unsigned bit = 0; bit < 64; bit++)
        CHECK_THAT(ivc_is_power_of_two((uint64_t)1 << bit), "bit %u", bit);
    for (unsigned bit = 2; bit < 64; bit++) {
        CHECK_THAT(!ivc_is_power_of_two(((uint64_t)1 << bit) + 1), "bit %u", bit);
        CHECK_THAT(!ivc_is_power_of_two(((uint64_t)1 << bit) - 1), "bit %u", bit);
    }
}

static void test_env_size(void)
{
    enum { UNTOUCHED = 12345 };
    static const struct { const char *text; uint64_t min, max, value; } rows[] = {
        /* value UNTOUCHED with a bad text: refused */
        { "64", 0, UINT64_MAX, 64 },
        { "64K", 0, UINT64_MAX, 65536 },
        { "64k", 0, UINT64_MAX, 65536 },
        { "64KiB", 0, UINT64_MAX, 65536 },
        { "3M", 0, UINT64_MAX, 3 << 20 },
        { "2G", 0, UINT64_MAX, (uint64_t)2 << 30 },
        { "0", 0, 10, 0 },
        { "10", 10, 10, 10 },
        { "18446744073709551615", 0, UINT64_MAX, UINT64_MAX },
        { "", 0, UINT64_MAX, UNTOUCHED },
        { "9", 10, 20, UNTOUCHED },
        { "21", 10, 20, UNTOUCHED },
        { "-1", 0, UINT64_MAX, UNTOUCHED },
        { " -1", 0, UINT64_MAX, UNTOUCHED },
        { "K", 0, UINT64_MAX, UNTOUCHED },
        { "12x", 0, UINT64_MAX, UNTOUCHED },
        { "12KK", 0, UINT64_MAX, UNTOUCHED },
        { "1.5M", 0, UINT64_MAX, UNTOUCHED },
        { "lots", 0, UINT64_MAX, UNTOUCHED },
        { "18446744073709551616", 0, UINT64_MAX, UNTOUCHED },
        { "17179869184G", 0, UINT64_MAX, UNTOUCHED },   /* 2^64 */
        { "17179869185G", 0, UINT64_MAX, UNTOUCHED },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t value = UNTOUCHED;
        int r;

        setenv("IVC_TEST_SIZE", rows[i].text, 1);
        r = ivc_env_size("IVC_TEST_SIZE", rows[i].min, rows[i].max, &value);
        CHECK_THAT(value == rows[i].value, "'%s' gave %llu", rows[i].text,
                   (unsigned long long)value);
        if (*rows[i].text && rows[i].value == UNTOUCHED) {
            CHECK_THAT(r == -EINVAL, "'%s' gave %d", rows[i].text, r);
            CHECK_TEXT(ivc_error_text(), "IVC_TEST_SIZE", rows[i].text);
        } else {
            CHECK_THAT(r == 0, "'%s' gave %d", rows[i].text, r);
        }
    }
    unsetenv("IVC_TEST_SIZE");
    CHECK_EQ(ivc_env_size("IVC_TEST_SIZE", 0, 1, &(uint64_t){ 7 }), 0);
}

static void test_env_number(void)
{
    static const char *const bad[] = { "soon", "-1", "5K", "1.5", "61", " 1", "99999999999999999999" };
    uint64_t value = 7;

    unsetenv("IVC_TEST_NUMBER");
    CHECK_EQ(ivc_env_number("IVC_TEST_NUMBER", "seconds", 0, 60, &value), 0);
    CHECK_EQ(value, 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("IVC_TEST_NUMBER", bad[i], 1);
        CHECK_EQ(ivc_env_number("IVC_TEST_NUMBER", "seconds", 0, 60, &value), -EINVAL);
        CHECK_TEXT(ivc_error_text(), "IVC_TEST_NUMBER", bad[i], "seconds", "60");
        CHECK_EQ(value, 7);
    }
    setenv("IVC_TEST_NUMBER", "60", 1);
    CHECK_EQ(ivc_env_number("IVC_TEST_NUMBER", "seconds", 0, 60, &value), 0);
    CHECK_EQ(value, 60);
    unsetenv("IVC_TEST_NUMBER");
}

static void test_read_line(void)
{
    const char *path = check_file(0, 0);
    char line[16] = "as it was";
    FILE *file;

    CHECK_EQ(ivc_read_line("/nonexistent/file", line, sizeof line), -ENOENT);
    CHECK_EQ(ivc_read_line(path, line, sizeof line), -EIO);     /* empty */
    file = fopen(path, "w");
    fputs("0x1af4\nsecond\n", file);
    fclose(file);
    CHECK_EQ(ivc_read_line(path, line, sizeof line), 0);
    CHECK(strcmp(line, "0x1af4") == 0);
    file = fopen(path, "w");
    fputs("a line that is longer than there is room for", file);
    fclose(file);
    CHECK_EQ(ivc_read_line(path, line, sizeof line), 0);
    CHECK_EQ(strlen(line), sizeof line - 1);
}

static void test_errors(void)
{
    char longer[2000];

    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK_EQ(strlen(ivc_error_text()), 0);
    CHECK_EQ(ivc_error_set(-EIO, "this %s %d", "and", 7), -EIO);
    CHECK(strcmp(ivc_error_text(), "this and 7") == 0);
    ivc_error_set(-EIO, "%s", longer);
    CHECK(strlen(ivc_error_text()) > 100 && strlen(ivc_error_text()) < sizeof longer);
    for (int code = IVC_E_FULL; code <= IVC_E_TIMEOUT; code++)
        CHECK_THAT(strcmp(ivc_error_name(code), "unknown code") != 0, "code %d", code);
    CHECK(strcmp(ivc_error_name(IVC_E_TIMEOUT + 1), "unknown code") == 0);
    CHECK(strcmp(ivc_error_name(-ENOENT), strerror(ENOENT)) == 0);
}

/* Every byte, and none beside them, for lengths around all limits at addresses of every kind; of the long
 * ones so many that both ways are taken, when they are compared and in between. */
static void test_copy(void)
{
    enum { MOST = 150000, GUARD = 0xee };
    static uint8_t from[MOST + 64], to[MOST + 128];

    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 7 + (i >> 8));
    for (size_t n = 0; n <= MOST; n += n < 300 ? 1 : n < 5000 ? 13 : 997) {
        for (unsigned round = 0; round < 20; round++) {
            size_t in = (n + round) % 33, out = 1 + (n + round) % 31;
            static const enum ivc_copy_side sides[] = {
                IVC_COPY_PAST, IVC_COPY_OUT, IVC_COPY_OUT_STACK, IVC_COPY_IN, IVC_COPY_OUT_FAR, IVC_COPY_IN_PLAIN,
            };
            enum ivc_copy_side side = sides[round % 6];

            memset(to + out - 1, GUARD, n + 2);
            if (round % 2)
                ivc_copy(side, to + out, from + in, n);
            else
                ivc_copy_short(side, (char *)to + out, (const char *)from + in, n);
            CHECK_THAT(memcmp(to + out, from + in, n) == 0, "%zu bytes", n);
            CHECK_THAT(to[out - 1] == GUARD && to[out + n] == GUARD, "beside %zu bytes", n);
        }
    }
}

/* Ranks on one processor who all wait, and have learned from each other that it is kept for long: each round they keep
 * it for less, however many they are.  Who is alone with a program that works has half as much as that. */
static void test_kept_turns(void)
{
    for (unsigned ranks = 1; ranks <= 64; ranks *= 2) {
        struct ivc_crowd crowd = { 0 };
        uint64_t took = 1 << 24;

        ivc_crowd_keep(&crowd, took, ranks);
        CHECK(crowd.ours_for > 0);
        CHECK_THAT((ranks - 1) * crowd.ours_for <= took / 2, "%u ranks", ranks);
        if (ranks == 1)
            CHECK_EQ(crowd.ours_for, took / 2);
    }
}

static pid_t start_rival(void)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        for (volatile unsigned i = 0;; i++)
            ;
    return pid;
}

/* So many turns in vain of a thread that counts what it gives, or of one among several, which cannot: how
 * often it was to give way. */
static unsigned wait_for(struct ivc_crowd *crowd, bool counts, unsigned turns)
{
    unsigned given = 0;

    for (unsigned i = 0; i < turns; i++) {
        if (ivc_crowd_is_due(crowd)) {
            given++;
            if (counts)
                ivc_crowd_give_way(crowd);
            else
                sched_yield();
        }
        ivc_crowd_turn(crowd, false);
    }
    return given;
}

/* One that never gives its processor away is given way to, and nobody when it is gone. */
static void meet_rival(bool counts)
{
    enum { ENOUGH = 40, TURNS = 2048, PATIENCE_MS = 25000 };     /* more than once in a row, and a look for sure */
    struct ivc_crowd crowd = { 0 };
    uint64_t end = ivc_now_ms() + PATIENCE_MS;
    unsigned given = 0;
    cpu_set_t one;
    pid_t rival;

    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    rival = start_rival();
    while (given < ENOUGH && ivc_now_ms() < end)
        given += wait_for(&crowd, counts, TURNS);
    check_kill(rival);
    CHECK_THAT(given >= ENOUGH, "gave way %u times", given);
    /* Others may want it for a moment. */
    end = ivc_now_ms() + PATIENCE_MS;
    while ((given = wait_for(&crowd, counts, TURNS)) > 0 && ivc_now_ms() < end)
        ;
    CHECK_THAT(given == 0, "gave way %u times in %d turns to nobody", given, TURNS);
}

static void test_crowd(void)
{
    meet_rival(true);
}

static void test_crowd_threads(void)
{
    meet_rival(false);
}

static const struct check_case cases[] = {
    { "too many open files", test_descriptors, 0 },
    { "arithmetic", test_arithmetic, 0 },
    { "touched pages", test_touched_pages, 0 },
    { "sizes from the environment", test_env_size, 0 },
    { "numbers from the environment", test_env_number, 0 },
    { "first line of a file", test_read_line, 0 },
    { "error lines", test_errors, 0 },
    { "copies of every length", test_copy, 0 },
    { "somebody wants the processor", test_crowd, 0 },
    { "what is kept becomes less", test_kept_turns, 0 },
    { "... of one thread among several", test_crowd_threads, 0 },
};
CHECK_MAIN(cases)
