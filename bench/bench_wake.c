/*
 * What waking costs, and what moderating it saves: one process sends small messages at a fixed distance
 * in time to another that sleeps whenever it has none (its IVC_SPIN is 0 unless the environment says
 * otherwise).  IVC_MODERATION says how often the sleeper may be woken.
 *
 *     stream     one way; the time from before the write to after the read
 *     answer     each message is answered, and both sides sleep; one way
 *
 * Both processes are of this host: their clocks are one.
 */
#include "sample.h"
#include "stream.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SENDER = 1, RECEIVER = 2, PATIENCE_MS = 20000, WARM_UP = 200, SELDOM = 5, SELDOM_MS = 20, BYTES = 64 };

struct message {
    uint64_t sent;      /* bench_ticks() */
    char rest[BYTES - sizeof(uint64_t)];
};

/* What the receiver has seen, told at the end; one per message. */
struct report {
    double cpu_us, wakes;
};

struct options {
    const char *test, *region;
    int cpus[2];
    double interval_us, seconds;
    uint64_t magic;
};
static struct options options = { .test = "stream", .cpus = { 0, 1 }, .interval_us = 50, .seconds = 1 };

static ivc_context *context;
static ivc_connection *connection;
static bool answers;

/* Asleep whenever there is nothing. */
static void get(void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ptrdiff_t n = ivc_read(connection, (char *)bytes + done, len - done);

        if (n == 0)
            n = ivc_wait(context, PATIENCE_MS) < 0 ? -ETIMEDOUT : 0;
        if (n < 0)
            fail("read", n);
        done += (size_t)n;
    }
}

static void join(uint32_t id)
{
    struct ivc_options with = { .size = sizeof with, .region = options.region };
    int error = ivc_register_with(options.magic, id, &with, &context);

    if (error < 0)
        fail("cannot join the region", error);
}

static double cpu_us(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e6
           + (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static void take(uint64_t n, struct bench_series *series)
{
    struct message message;

    for (uint64_t i = 0; i < n; i++) {
        get(&message, sizeof message);
        if (answers)
            put(connection, &message, sizeof message);
        else if (series)
            bench_series_add(series, bench_ticks_us(bench_ticks() - message.sent));
    }
}

static void receive(void)
{
    struct bench_series series;
    struct rusage before, after;
    struct report report;
    uint64_t n;
    int error;

    bench_clock_open();
    join(RECEIVER);
    error = ivc_accept_wait(context, PATIENCE_MS, &connection);
    if (error < 0)
        fail("no sender came", error);
    get(&n, sizeof n);
    if (bench_series_open(&series, n) < 0)
        fail("memory for the timings", -ENOMEM);
    take(SELDOM + WARM_UP, NULL);
    getrusage(RUSAGE_THREAD, &before);
    take(n, &series);
    getrusage(RUSAGE_THREAD, &after);
    report.cpu_us = (cpu_us(&after) - cpu_us(&before)) / (double)n;
    report.wakes = (double)(after.ru_nvcsw - before.ru_nvcsw) / (double)n;
    put(connection, &report, sizeof report);
    if (!answers)
        put(connection, series.us, n * sizeof *series.us);
    bench_series_free(&series);
    ivc_close(connection);
    ivc_deregister(context);
}

/* At least `interval_us` apart; adds up what the calls that send cost. */
static void give(uint64_t n, struct bench_series *series, double *send_us)
{
    struct message message = { 0 };
    uint64_t due = bench_ticks();

    for (uint64_t i = 0; i < n; i++) {
        while (bench_ticks_us(bench_ticks() - due) < options.interval_us) { }
        due = bench_ticks();
        message.sent = due;
        put(connection, &message, sizeof message);
        *send_us += bench_ticks_us(bench_ticks() - due);
        if (answers) {
            get(&message, sizeof message);
            bench_series_add(series, bench_ticks_us(bench_ticks() - due) / 2);
            due = bench_ticks();
        }
    }
}

/* A receiver that has been woken once knows that it will be, and sleeps where it looked by itself before. */
static void give_seldom(struct bench_series *series)
{
    struct timespec pause = { 0, SELDOM_MS * 1000000 };
    double unused = 0;

    for (int i = 0; i < SELDOM; i++) {
        nanosleep(&pause, NULL);
        give(1, series, &unused);
    }
}

static void send_all(void)
{
    struct bench_result result = { .program = "bench_wake", .test = options.test, .bytes = BYTES, .ranks = 2 };
    uint64_t n = (uint64_t)(options.seconds * 1e6 / (options.interval_us + (answers ? 50 : 0))) + 1;
    struct bench_series series;
    struct report report;
    char extra[160];
    double send_us = 0;
    int error;

    join(SENDER);
    error = ivc_wait_host(context, RECEIVER, PATIENCE_MS);
    if (error >= 0)
        error = ivc_connect(context, RECEIVER, &connection);
    if (error < 0)
        fail("no receiver", error);
    if (bench_series_open(&series, n) < 0)
        fail("memory for the timings", -ENOMEM);
    put(connection, &n, sizeof n);
    give_seldom(&series);
    give(WARM_UP, &series, &send_us);
    series.n = 0;
    send_us = 0;
    give(n, &series, &send_us);
    get(&report, sizeof report);
    if (!answers) {
        get(series.us, n * sizeof *series.us);
        series.n = n;
    }
    for (size_t i = 0; i < series.n; i++)
        result.mean_us += series.us[i] / (double)series.n;
    snprintf(extra, sizeof extra, ",\"interval_us\":%g,\"send_us\":%.4g,\"receiver_cpu_us\":%.4g,"
             "\"receiver_wakes\":%.4g", options.interval_us, send_us / (double)n, report.cpu_us,
             report.wakes);
    result.batch = n;
    result.extra = extra;
    bench_result_print(&result, &series);
    bench_series_free(&series);
    ivc_close(connection);
    ivc_deregister(context);
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_wake [--test stream|answer] [--interval MICROSECONDS] [--seconds S]\n"
            "                  [--cpus A,B] [--region PATH]\n"
            "Messages of 64 bytes to a process that sleeps. One JSON line.\n");
    return code;
}

static int parse(int argc, char **argv)
{
    static const struct option longs[] = {
        { "test", required_argument, NULL, 't' }, { "interval", required_argument, NULL, 'i' },
        { "seconds", required_argument, NULL, 's' }, { "cpus", required_argument, NULL, 'c' },
        { "region", required_argument, NULL, 'r' }, { "help", no_argument, NULL, 'h' }, { 0 },
    };
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            exit(usage(0));
        else if (c == 't' && (!strcmp(optarg, "stream") || !strcmp(optarg, "answer")))
            options.test = optarg;
        else if (c == 'i' && (options.interval_us = atof(optarg)) > 0)
            continue;
        else if (c == 's' && (options.seconds = atof(optarg)) > 0)
            continue;
        else if (c == 'r')
            options.region = optarg;
        else if (c != 'c' || bench_parse_cpus(optarg, options.cpus) < 0)
            return -EINVAL;
    }
    return optind == argc ? 0 : -EINVAL;
}

int main(int argc, char **argv)
{
    pid_t parent = getpid(), child;
    int status;

    if (parse(argc, argv) < 0)
        return usage(2);
    answers = !strcmp(options.test, "answer");
    options.magic = (uint64_t)parent << 20 | 0x77616b65;
    setenv("IVC_SPIN", "0", 0);
    bench_pin_or_exit(options.cpus[1]);     /* first here, so that the child cannot fail at it alone */
    child = fork();             /* before either registers: a registration does not survive it */
    if (child < 0)
        fail("fork", -errno);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            return 1;
        receive();
        return 0;
    }
    bench_pin_or_exit(options.cpus[0]);
    bench_clock_open();
    send_all();
    waitpid(child, &status, 0);
    return status ? 1 : 0;
}
