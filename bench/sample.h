/*
 * What the benchmark programs share: a clock, pinning, statistics, and one JSON line per result.
 *
 * The clock is the processor's time-stamp counter where that is invariant (a user-mode Linux guest
 * takes microseconds for clock_gettime(2), and a message takes a tenth of one), and
 * CLOCK_MONOTONIC elsewhere.  Every result names the clock and what one reading of it costs.
 */
#ifndef IVC_BENCH_SAMPLE_H
#define IVC_BENCH_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

extern bool bench_clock_is_tsc;

uint64_t bench_clock_nanoseconds(void);

/* Chooses and calibrates the clock (20 ms).  Call it once, before any reading. */
void bench_clock_open(void);

/* One reading, in ticks.  The fence keeps the reading behind the work that it closes. */
static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    if (bench_clock_is_tsc) {
        _mm_lfence();
        return __rdtsc();
    }
#endif
    return bench_clock_nanoseconds();
}

double bench_ticks_us(uint64_t ticks);
const char *bench_clock_name(void);
double bench_clock_cost_us(void);

/* Puts the calling thread on one processor; a negative number leaves it where it is. */
int bench_pin(int cpu);
/* The same; where that cannot be, ends the program with a text. */
void bench_pin_or_exit(int cpu);

/* Single timings of one thing, in microseconds. */
struct bench_series {
    double *us;
    size_t n, capacity;
};

int bench_series_open(struct bench_series *series, size_t capacity);
void bench_series_free(struct bench_series *series);
static inline void bench_series_add(struct bench_series *series, double us)
{
    if (series->n < series->capacity)
        series->us[series->n++] = us;
}

/* One line of output.  `mean_us` comes from a batch timed as a whole, the rest from `series`. */
struct bench_result {
    const char *program, *test;
    size_t bytes;               /* of one message */
    unsigned ranks;
    double mean_us;             /* of one message (one way), or of one operation */
    double typical_us;          /* median of the means of short batches; 0: not measured */
    uint64_t batch;             /* how many of them the mean is taken over */
    double megabytes_s;         /* 10^6 bytes per second, from the mean; 0: not meant */
    double messages_s;          /* from the mean; 0: not meant */
    const char *extra;          /* further members of the JSON object (",\"a\":1") or NULL */
};
double bench_series_median(struct bench_series *series);    /* sorts; 0 when empty */
void bench_result_print(const struct bench_result *result, struct bench_series *series);

/* "8", "64K", "4M"; the whole text must be a number.  Returns -EINVAL otherwise. */
int bench_parse_size(const char *text, size_t *ret_size);

/* "8,64,1M", "0-4M" (0, then powers of two) or any mixture.  Returns how many, or -EINVAL. */
int bench_parse_sizes(const char *text, size_t *ret_sizes, size_t capacity);

/* "0,1" */
int bench_parse_cpus(const char *text, int ret_cpus[2]);

/* Whether a comma-separated list holds the word. */
bool bench_list_has(const char *list, const char *word);

enum {
    BENCH_SIZES_MAX = 128,
    BENCH_WINDOW = 64,          /* messages of a stream up to an answer, unless told otherwise: in all programs that are
                                   compared with each other */
};

#endif
