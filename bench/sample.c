/* Clock, pinning, statistics and output of the benchmark programs; see sample.h. */
#include "sample.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

bool bench_clock_is_tsc;
static double ticks_per_us = 1000.0;    /* nanoseconds, until calibrated */
static double cost_us;

uint64_t bench_clock_nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* An invariant counter runs at one speed in every power state, on every core. */
static bool tsc_is_invariant(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
#else
    return false;
#endif
}

static void clock_calibrate(void)
{
    uint64_t start_ns = bench_clock_nanoseconds(), start = bench_ticks(), now_ns;

    do {
        now_ns = bench_clock_nanoseconds();
    } while (now_ns - start_ns < 20000000);
    ticks_per_us = (double)(bench_ticks() - start) / ((double)(now_ns - start_ns) / 1000.0);
}

void bench_clock_open(void)
{
    enum { READINGS = 2000 };
    uint64_t start;

    bench_clock_is_tsc = tsc_is_invariant();
    if (bench_clock_is_tsc)
        clock_calibrate();
    start = bench_ticks();
    for (int i = 0; i < READINGS; i++)
        bench_ticks();
    cost_us = bench_ticks_us(bench_ticks() - start) / READINGS;
}

double bench_ticks_us(uint64_t ticks)
{
    return (double)ticks / ticks_per_us;
}

const char *bench_clock_name(void)
{
    return bench_clock_is_tsc ? "tsc" : "monotonic";
}

double bench_clock_cost_us(void)
{
    return cost_us;
}

int bench_pin(int cpu)
{
    cpu_set_t set;

    if (cpu < 0)
        return 0;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof(set), &set) < 0 ? -errno : 0;
}

void bench_pin_or_exit(int cpu)
{
    int error = bench_pin(cpu);

    if (error == 0)
        return;
    fprintf(stderr, "%s: cannot use processor %d: %s; see --cpus\n", program_invocation_short_name, cpu,
            strerror(-error));
    exit(1);
}

int bench_series_open(struct bench_series *series, size_t capacity)
{
    *series = (struct bench_series){ .capacity = capacity };
    series->us = malloc((capacity ? capacity : 1) * sizeof(double));
    return series->us ? 0 : -ENOMEM;
}

void bench_series_free(struct bench_series *series)
{
    free(series->us);
    *series = (struct bench_series){ 0 };
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The smallest value that at least `percent` of all do not exceed. */
static double percentile(const struct bench_series *sorted, unsigned percent)
{
    size_t rank = (sorted->n * percent + 99) / 100;

    return sorted->us[rank ? rank - 1 : 0];
}

double bench_series_median(struct bench_series *series)
{
    if (!series->n)
        return 0;
    qsort(series->us, series->n, sizeof(double), compare_doubles);
    return percentile(series, 50);
}

void bench_result_print(const struct bench_result *result, struct bench_series *series)
{
    printf("{\"program\":\"%s\",\"test\":\"%s\",\"bytes\":%zu,\"ranks\":%u,\"mean_us\":%.6g,"
           "\"batch\":%llu", result->program, result->test, result->bytes, result->ranks,
           result->mean_us, (unsigned long long)result->batch);
    if (series && series->n) {
        qsort(series->us, series->n, sizeof(double), compare_doubles);
        printf(",\"singles\":%zu,\"min_us\":%.6g,\"p50_us\":%.6g,\"p90_us\":%.6g,\"p95_us\":%.6g,"
               "\"p99_us\":%.6g,\"max_us\":%.6g", series->n, series->us[0],
               percentile(series, 50), percentile(series, 90), percentile(series, 95),
               percentile(series, 99), series->us[series->n - 1]);
    }
    if (result->typical_us > 0)
        printf(",\"typical_us\":%.6g", result->typical_us);
    if (result->megabytes_s > 0)
        printf(",\"MB_s\":%.6g", result->megabytes_s);
    if (result->messages_s > 0)
        printf(",\"messages_s\":%.6g", result->messages_s);
    printf(",\"clock\":\"%s\",\"clock_cost_us\":%.4g%s}\n", bench_clock_name(), cost_us,
           result->extra ? result->extra : "");
    fflush(stdout);
}

static int parse_size(const char *text, const char **ret_end, size_t *ret_size)
{
    char *end;
    unsigned shift = 0;
    unsigned long long value;

    if (*text < '0' || *text > '9')
        return -EINVAL;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (errno || value > (SIZE_MAX >> 1 >> shift))
        return -EINVAL;
    *ret_end = end + (shift != 0);
    *ret_size = (size_t)value << shift;
    return 0;
}

int bench_parse_size(const char *text, size_t *ret_size)
{
    const char *end;
    size_t size;

    if (parse_size(text, &end, &size) < 0 || *end)
        return -EINVAL;
    *ret_size = size;
    return 0;
}

int bench_parse_sizes(const char *text, size_t *ret_sizes, size_t capacity)
{
    size_t n = 0, first, last;

    for (;; text++) {
        if (parse_size(text, &text, &first) < 0)
            return -EINVAL;
        last = first;
        if (*text == '-' && parse_size(text + 1, &text, &last) < 0)
            return -EINVAL;
        for (size_t size = first; size <= last; size = size ? size * 2 : 1) {
            if (n == capacity)
                return -EINVAL;
            ret_sizes[n++] = size;
        }
        if (*text != ',')
            return *text || !n ? -EINVAL : (int)n;
    }
}

int bench_parse_cpus(const char *text, int ret_cpus[2])
{
    char rest;

    return sscanf(text, "%d,%d%c", &ret_cpus[0], &ret_cpus[1], &rest) == 2 ? 0 : -EINVAL;
}

bool bench_list_has(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, word, len) && (!at[len] || at[len] == ','))
            return true;
    }
    return false;
}
