/*
 * Checks: what the test programs share.
 *
 * A program is a table of cases.  Each case runs in a process of its own with a limit of time, so a
 * crash or a hang is the failure of that case and of no other; whatever processes it leaves behind
 * are ended with it.  One line per case goes to standard output ("ok", "not ok", "skip"), which the
 * test command counts.  The program's exit status is 0, 1 when a case failed, and 77 when every
 * case was skipped.
 */
#ifndef IVC_TESTS_CHECK_H
#define IVC_TESTS_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHECK_SKIP = 77, CHECK_SECONDS_DEFAULT = 60 };

struct check_case {
    const char *name;
    void (*run)(void);
    unsigned seconds;       /* until it counts as hung; 0: the default */
};

/* Files of the running case start with this path; they are removed when it is over. */
static char check_scratch[64];

__attribute__((format(printf, 3, 4), noreturn, unused))
static void check_fail(const char *file, int line, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    fflush(NULL);
    _exit(1);
}

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition))                                                                  \
            check_fail(__FILE__, __LINE__, "%s", #condition);                              \
    } while (0)

/* With the values: for numbers of any integer type. */
#define CHECK_EQ(a, b)                                                                     \
    do {                                                                                   \
        long long check_a = (long long)(a), check_b = (long long)(b);                      \
        if (check_a != check_b)                                                            \
            check_fail(__FILE__, __LINE__, "%s is %lld, %s is %lld", #a, check_a, #b,      \
                       check_b);                                                           \
    } while (0)

/* With a text that says which row of a table it was. */
#define CHECK_THAT(condition, format, ...)                                                 \
    do {                                                                                   \
        if (!(condition))                                                                  \
            check_fail(__FILE__, __LINE__, "%s: " format, #condition, ##__VA_ARGS__);      \
    } while (0)

/* The text must hold every one of the words: what an error line has to say. */
#define CHECK_TEXT(text, ...)                                                              \
    do {                                                                                   \
        const char *check_words[] = { __VA_ARGS__ };                                       \
        for (size_t check_i = 0; check_i < sizeof check_words / sizeof *check_words;       \
             check_i++)                                                                    \
            if (!strstr((text), check_words[check_i]))                                     \
                check_fail(__FILE__, __LINE__, "'%s' does not say '%s'", (text),           \
                           check_words[check_i]);                                          \
        if (strchr((text), '\n'))                                                          \
            check_fail(__FILE__, __LINE__, "'%s' is more than one line", (text));          \
    } while (0)

/* Ends the case as skipped. */
__attribute__((format(printf, 1, 2), noreturn, unused))
static void check_skip(const char *format, ...)
{
    va_list args;

    printf("# ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(NULL);
    _exit(CHECK_SKIP);
}

/* For cases that fork while threads of the library run: ThreadSanitizer loses track of the child
 * ("dup thread with used id").  Under the other sanitizers and without one they run. */
__attribute__((unused)) static void check_skip_under_thread_sanitizer(void)
{
#if defined(__SANITIZE_THREAD__)
    check_skip("ThreadSanitizer cannot follow a process forked from one with threads");
#endif
}

/* Numbers that look random and are the same in each run (xorshift64*). */
__attribute__((unused)) static uint64_t check_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* Bytes that follow from the seed. */
__attribute__((unused)) static void check_fill(uint8_t *bytes, size_t len, uint64_t seed)
{
    size_t i = 0;

    for (; i + 8 <= len; i += 8) {
        uint64_t word = check_random(&seed);

        memcpy(bytes + i, &word, 8);
    }
    for (; i < len; i++)
        bytes[i] = (uint8_t)(check_random(&seed) >> 56);
}

/* Who joins a region, for ivc_region_join(). */
#define CHECK_AS(magic, client)                                                            \
    (&(struct ivc_identity){ .magic_id = (magic), .client_id = (client) })

/* A new file of `size` bytes that is removed when the case is over.  `number` tells several apart. */
__attribute__((unused)) static const char *check_file(unsigned number, uint64_t size)
{
    static char paths[10][80];
    char *path = paths[number % 10];
    int fd;

    snprintf(path, sizeof paths[0], "%s-%u", check_scratch, number % 10);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK_THAT(fd >= 0, "%s: %s", path, strerror(errno));
    CHECK(ftruncate(fd, (off_t)size) == 0);
    close(fd);
    return path;
}

/* AddressSanitizer's allocator does not survive fork(): a child finds its locks as other threads held
 * them, for ever.  Threads take memory when they start, ours hardly ever afterwards; so those that have
 * just been started are given a moment. */
__attribute__((unused)) static void check_let_threads_start(void)
{
#if defined(__SANITIZE_ADDRESS__)
    usleep(50000);
#endif
}

/* A process that runs `fn` and ends with its answer; it dies with its parent. */
__attribute__((unused)) static pid_t check_fork(int (*fn)(void *arg), void *arg)
{
    pid_t pid;

    fflush(NULL);
    check_let_threads_start();
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        exit(fn(arg));
    }
    return pid;
}

/* Waits for a process of check_fork(), which must end with status 0. */
__attribute__((unused)) static void check_join(pid_t pid)
{
    int status;

    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0,
               "process %d: %s %d", pid, WIFSIGNALED(status) ? "signal" : "exit status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

__attribute__((unused)) static void check_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Sanitizers make a program several times slower. */
static inline unsigned check_slowdown(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return 4;
#elif defined(__SANITIZE_THREAD__)
    return 12;
#else
    return 1;
#endif
}

static inline void check_remove_files(void)
{
    char path[80];

    for (unsigned i = 0; i < 10; i++) {
        snprintf(path, sizeof path, "%s-%u", check_scratch, i);
        unlink(path);
    }
}

/* Runs one case in a process of its own: its exit status, or 128 and the signal. */
static inline int check_run(const struct check_case *test)
{
    unsigned seconds = test->seconds ? test->seconds : CHECK_SECONDS_DEFAULT;
    int status;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(seconds * check_slowdown());
        test->run();
        exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    kill(-pid, SIGKILL);
    check_remove_files();
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void check_report(unsigned number, const char *name, int status)
{
    const char *how = status == 128 + SIGALRM ? ": hung" : status > 128 ? ": crashed" : "";

    printf("%s %u - %s%s\n", status == 0 ? "ok" : status == CHECK_SKIP ? "skip" : "not ok", number,
           name, how);
    if (status > 128)
        printf("# signal %d (%s)\n", status - 128, strsignal(status - 128));
}

static void check_interrupted(int number)
{
    check_remove_files();       /* snprintf and unlink: safe enough for a program that ends here */
    _exit(128 + number);
}

/* Runs the cases whose name contains the first argument; all when there is none. */
__attribute__((unused))
static int check_main(int argc, char **argv, const struct check_case *cases, size_t n)
{
    unsigned run = 0, failed = 0, skipped = 0;

    signal(SIGINT, check_interrupted);
    signal(SIGTERM, check_interrupted);
    for (size_t i = 0; i < n; i++) {
        int status;

        if (argc > 1 && !strstr(cases[i].name, argv[1]))
            continue;
        snprintf(check_scratch, sizeof check_scratch, "/dev/shm/ivc-test-%d-%zu", (int)getpid(), i);
        status = check_run(&cases[i]);
        check_report(++run, cases[i].name, status);
        failed += status != 0 && status != CHECK_SKIP;
        skipped += status == CHECK_SKIP;
    }
    printf("1..%u\n", run);
    if (run == 0)
        fprintf(stderr, "no case of that name\n");
    return failed || run == 0 ? 1 : skipped == run ? CHECK_SKIP : 0;
}

#define CHECK_MAIN(cases)                                                                  \
    int main(int argc, char **argv)                                                        \
    {                                                                                      \
        return check_main(argc, argv, (cases), sizeof(cases) / sizeof *(cases));           \
    }

#endif
