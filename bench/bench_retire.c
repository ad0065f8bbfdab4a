/*
 * Letting go of a region: how long ivc_region_retire() takes, which is most of what a host waits for
 * when it asks a guest to leave.  Each round joins, fills memory of its own as an endpoint's pool and
 * an application would, and retires.
 *
 *     --share   memory that nobody holds when the region is left (a pool, rings)
 *     --lend    memory that the application holds, and goes on using
 *     --touch   reads the whole window first: a device's is in the page tables from the beginning, a
 *               file's only where it was used
 */
#include "sample.h"

#include "base/error.h"
#include "region/region.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *region;
    size_t share, lend;
    bool touch;
    unsigned rounds;
};

static void usage(FILE *out)
{
    fprintf(out, "usage: bench_retire [--share SIZE] [--lend SIZE] [--touch] [--rounds N] REGION\n"
                 "REGION: a path, or pci:ADDRESS.  One line of JSON; microseconds.\n");
}

static bool parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        { "share", required_argument, NULL, 's' }, { "lend", required_argument, NULL, 'l' },
        { "touch", no_argument, NULL, 't' }, { "rounds", required_argument, NULL, 'r' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    int option;

    while ((option = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (option) {
        case 's':
            if (bench_parse_size(optarg, &options->share) < 0)
                return false;
            break;
        case 'l':
            if (bench_parse_size(optarg, &options->lend) < 0)
                return false;
            break;
        case 't':
            options->touch = true;
            break;
        case 'r':
            options->rounds = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'h':
            usage(stdout);
            exit(0);
        default:
            return false;
        }
    }
    options->region = optind + 1 == argc ? argv[optind] : NULL;
    return options->region && options->rounds > 0;
}

static int fail(void)
{
    fprintf(stderr, "bench_retire: %s\n", ivc_error_text());
    return -1;
}

static void read_all(struct ivc_region *region)
{
    struct ivc_share share;
    const volatile char *window;

    if (ivc_region_share(region, IVC_SLOT_ANY, 1, &share) != 0)
        return;
    window = (const char *)share.memory - share.handle;
    for (uint64_t at = 0; at < ivc_region_size(region); at += 4096)
        (void)window[at];
    ivc_region_unshare(region, &share);
}

/* What there is of a region before it is left; 0, or -1 with a line on standard error. */
static int furnish(const struct options *options, struct ivc_region **ret_region)
{
    struct ivc_identity identity = { .magic_id = 1 };
    struct ivc_share share;
    void *lent;

    if (ivc_region_open(options->region, ret_region) != 0)
        return fail();
    if (ivc_region_join(*ret_region, &identity) != 0)
        return fail();
    if (options->touch)
        read_all(*ret_region);
    if (options->share && ivc_region_share(*ret_region, IVC_SLOT_ANY, options->share, &share) != 0)
        return fail();
    if (options->lend && ivc_region_lend(*ret_region, options->lend, &lent) != 0)
        return fail();
    if (options->lend)
        memset(lent, 1, options->lend);
    return 0;
}

static int measure(const struct options *options, struct bench_series *series)
{
    for (unsigned round = 0; round < options->rounds; round++) {
        struct ivc_region *region = NULL;
        int r = furnish(options, &region);
        uint64_t start = bench_ticks();

        if (r == 0 && ivc_region_retire(region, NULL, 0) < 0)
            r = fail();
        bench_series_add(series, bench_ticks_us(bench_ticks() - start));
        ivc_region_free(region);
        if (r < 0)
            return r;
    }
    return 0;
}

static void print(const struct options *options, struct bench_series *series)
{
    struct bench_result result = {
        .program = "bench_retire", .test = "retire", .bytes = options->lend, .ranks = 1,
        .batch = series->n,
    };

    for (size_t i = 0; i < series->n; i++)
        result.mean_us += series->us[i] / (double)series->n;
    bench_result_print(&result, series);
}

int main(int argc, char **argv)
{
    struct options options = { .rounds = 20 };
    struct bench_series series;

    if (!parse(argc, argv, &options)) {
        usage(stderr);
        return 2;
    }
    bench_clock_open();
    if (bench_series_open(&series, options.rounds) < 0 || measure(&options, &series) < 0)
        return 1;
    print(&options, &series);
    bench_series_free(&series);
    return 0;
}
