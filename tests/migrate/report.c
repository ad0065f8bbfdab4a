/* What a run tells: counts, and times with their percentiles. */
#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

double samples_ms(const struct samples *samples, unsigned thousandth)
{
    uint64_t *sorted = malloc((samples->n + 1) * sizeof *sorted);
    size_t at = (samples->n * thousandth + 999) / 1000;     /* the smallest that so many reach */
    double ms;

    if (!sorted || samples->n == 0) {
        free(sorted);
        return 0;
    }
    memcpy(sorted, samples->ns, samples->n * sizeof *sorted);
    qsort(sorted, samples->n, sizeof *sorted, compare_ns);
    ms = (double)sorted[at > 0 ? at - 1 : 0] / 1e6;
    free(sorted);
    return ms;
}

struct run_totals run_totals(const struct run *run)
{
    struct run_totals totals = { 0 };

    for (uint32_t i = 0; i < run->options.ranks; i++)
        for (uint32_t k = 0; k < run->options.ranks; k++) {
            const struct board_pair *pair = &run->board->ranks[i].pairs[k];

            totals.messages += ivc_load_relaxed(&pair->received_messages);
            totals.packets += ivc_load_relaxed(&pair->received_packets);
            totals.memory_bytes += ivc_load_relaxed(&pair->memory_bytes) / 2;
            totals.network_bytes += ivc_load_relaxed(&pair->network_bytes) / 2;
            totals.memory_packets += ivc_load_relaxed(&pair->memory_packets) / 2;
            totals.path_changes += ivc_load_relaxed(&pair->path_changes);
        }
    return totals;
}

static void report_samples(const char *what, const struct samples *samples)
{
    if (samples->n)
        printf("# %-28s p50 %8.2f ms  p99 %8.2f ms  max %8.2f ms  (%zu)\n", what,
               samples_ms(samples, 500), samples_ms(samples, 990), samples_ms(samples, 1000),
               samples->n);
}

void run_report(const struct run *run, const char *what)
{
    static const char *const modes[RUN_MODES] = {
        [RANK_COMMUNICATING] = "answers, communicating", [RANK_IDLE] = "answers, idle",
        [RANK_COMPUTING] = "answers, computing",
    };
    struct run_totals totals = run_totals(run);

    printf("# %s: seed %" PRIu64 ": %u ranks in %u guests, %" PRIu64 " switches, %" PRIu64
           " cancelled, %" PRIu64 " time-outs, %" PRIu64 " stumbles; checked"
           " %" PRIu64 " messages, %" PRIu64 " packets;"
           " by memory %" PRIu64 " MiB in %" PRIu64 " packets, by network %" PRIu64 " MiB; paths"
           " changed %" PRIu64 " times\n", what, run->options.seed, run->options.ranks,
           run->options.guests, run->switches, run->cancelled, run->time_outs, run->stumbles,
           totals.messages, totals.packets, totals.memory_bytes >> 20, totals.memory_packets,
           totals.network_bytes >> 20, totals.path_changes);
    for (unsigned i = 0; i < RUN_MODES; i++)
        report_samples(modes[i], &run->answers[i]);
    report_samples("device to memory", &run->arrivals);
}
