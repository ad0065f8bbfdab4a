/*
 * Latency and stream bandwidth between two sides that have a stream of bytes each way: what
 * bench_libivc and bench_vchan share, so that they take their figures alike.
 *
 *     latency    one message back and forth; one way
 *     bandwidth  a window of messages one way, answered by one byte
 *
 * The client drives: before each measurement it tells the server, over the same stream, which test,
 * size and number of rounds come next.  See bench_mpi.c for how the figures are taken; it takes them
 * in the same way.
 *
 * A program includes this once and defines the three functions that are declared first.  The loops
 * are compiled together with them: a call through a pointer would be a part of a short message.
 */
#ifndef IVC_BENCH_DUPLEX_H
#define IVC_BENCH_DUPLEX_H

#include "sample.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both return when all bytes are through, and end the program when they cannot be. */
static void duplex_put(const void *bytes, size_t len);
static void duplex_get(void *bytes, size_t len);
/* Ends the program with a text. */
static void fail(const char *what, long code);

enum { DUPLEX_PATIENCE_MS = 20000, DUPLEX_WINDOW_MAX = 65536 };
enum { DUPLEX_END, DUPLEX_LATENCY, DUPLEX_BANDWIDTH };

/* What the client announces; also the first bytes that travel, so the server learns the window. */
struct duplex_order {
    uint64_t test, bytes, rounds, window;
};

static struct {
    const char *tests, *sizes;
    double seconds;
    size_t iterations, warmup, window;
} duplex = {
    .tests = "latency,bandwidth", .sizes = "8-4M", .seconds = 0.5, .iterations = 100000,
    .warmup = 1000, .window = BENCH_WINDOW,
};

/* Of the side that runs here. */
static char *duplex_buffer;

static inline void duplex_round_client(const struct duplex_order *order)
{
    if (order->test == DUPLEX_LATENCY) {
        duplex_put(duplex_buffer, order->bytes);
        duplex_get(duplex_buffer, order->bytes);
        return;
    }
    for (uint64_t i = 0; i < order->window; i++)
        duplex_put(duplex_buffer, order->bytes);
    duplex_get(duplex_buffer, 1);
}

static inline void duplex_round_server(const struct duplex_order *order)
{
    if (order->test == DUPLEX_LATENCY) {
        duplex_get(duplex_buffer, order->bytes);
        duplex_put(duplex_buffer, order->bytes);
        return;
    }
    for (uint64_t i = 0; i < order->window; i++)
        duplex_get(duplex_buffer, order->bytes);
    duplex_put(duplex_buffer, 1);
}

/* The server's part; returns when the client is through. */
static void duplex_serve(void)
{
    struct duplex_order order;

    for (;;) {
        duplex_get(&order, sizeof(order));
        if (order.test == DUPLEX_END)
            return;
        free(duplex_buffer);
        duplex_buffer = calloc(1, order.bytes + 1);
        if (!duplex_buffer)
            fail("memory for a message", -ENOMEM);
        duplex_put("", 1);      /* ready: the client starts its clock after this */
        for (uint64_t i = 0; i < order.rounds; i++)
            duplex_round_server(&order);
    }
}

/* Announces `rounds` rounds; they may then be timed in any grouping. */
static void duplex_announce(struct duplex_order *order, size_t rounds)
{
    char ready;

    order->rounds = rounds;
    duplex_put(order, sizeof(*order));
    duplex_get(&ready, 1);
}

static double duplex_rounds_us(const struct duplex_order *order, size_t n)
{
    uint64_t start = bench_ticks();

    for (size_t i = 0; i < n; i++)
        duplex_round_client(order);
    return bench_ticks_us(bench_ticks() - start);
}

static size_t duplex_bounded(double rounds, size_t least, size_t most)
{
    return rounds < (double)least ? least : rounds < (double)most ? (size_t)rounds : most;
}

static double duplex_warm_up(struct duplex_order *order)
{
    double us;
    size_t n;

    duplex_announce(order, 2);
    us = duplex_rounds_us(order, 2) / 2;
    n = duplex_bounded(duplex.seconds * 1e6 / 10 / us, 2, duplex.warmup);
    duplex_announce(order, n);
    return duplex_rounds_us(order, n) / (double)n;
}

static void duplex_measure(struct bench_result *result, struct duplex_order *order, double legs)
{
    enum { BATCHES = 50 };
    struct bench_series batches, singles;
    double round_us = duplex_warm_up(order), us = 0;
    size_t total = duplex_bounded(duplex.seconds * 1e6 / 2 / round_us, 3, duplex.iterations);
    size_t per_batch = total / BATCHES ? total / BATCHES : 1;

    if (bench_series_open(&batches, total / per_batch) < 0
        || bench_series_open(&singles, total) < 0)
        fail("memory for the timings (lower --iterations)", -ENOMEM);
    duplex_announce(order, batches.capacity * per_batch + singles.capacity);
    for (size_t i = 0; i < batches.capacity; i++) {
        double batch_us = duplex_rounds_us(order, per_batch);

        bench_series_add(&batches, batch_us / (double)per_batch / legs);
        us += batch_us;
    }
    for (size_t i = 0; i < singles.capacity; i++)
        bench_series_add(&singles, duplex_rounds_us(order, 1) / legs);
    result->bytes = order->bytes;
    result->batch = batches.n * per_batch;
    result->mean_us = us / (double)result->batch / legs;
    result->typical_us = bench_series_median(&batches);
    if (order->test == DUPLEX_BANDWIDTH) {
        result->megabytes_s = (double)order->bytes / result->typical_us;
        result->messages_s = 1e6 / result->typical_us;
    }
    bench_result_print(result, &singles);
    bench_series_free(&batches);
    bench_series_free(&singles);
}

/* The client's part: a line for each test and size.  `extra` as in struct bench_result. */
static void duplex_drive(const char *program, const char *extra, const size_t *sizes, int n)
{
    struct duplex_order order = { .window = duplex.window };

    for (int i = 0; i < n; i++) {
        struct bench_result result = { .program = program, .ranks = 2, .extra = extra };

        if (!sizes[i])
            continue;   /* a stream of bytes has no message of none */
        order.bytes = sizes[i];
        duplex_buffer = realloc(duplex_buffer, sizes[i]);
        if (!duplex_buffer)
            fail("memory for a message", -ENOMEM);
        memset(duplex_buffer, 1, sizes[i]);
        if (bench_list_has(duplex.tests, "latency")) {
            order.test = DUPLEX_LATENCY;
            result.test = "latency";
            duplex_measure(&result, &order, 2);
        }
        if (bench_list_has(duplex.tests, "bandwidth")) {
            order.test = DUPLEX_BANDWIDTH;
            result.test = "bandwidth";
            duplex_measure(&result, &order, (double)duplex.window);
        }
    }
    order.test = DUPLEX_END;
    duplex_put(&order, sizeof(order));
}

/* An option that is a number, such as 64K. */
struct duplex_number {
    char letter;
    size_t *value;
    size_t least, most;
};

/* Returns whether the option is one of these `n` and its text a number within the bounds. */
static bool duplex_parse_number(const struct duplex_number *numbers, size_t n, int letter, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (numbers[i].letter == letter)
            return !bench_parse_size(text, numbers[i].value) && *numbers[i].value >= numbers[i].least
                   && *numbers[i].value <= numbers[i].most;
    return false;
}

#define DUPLEX_OPTIONS \
    { "test", required_argument, NULL, 't' }, { "sizes", required_argument, NULL, 'z' }, \
    { "seconds", required_argument, NULL, 's' }, { "iterations", required_argument, NULL, 'i' }, \
    { "warmup", required_argument, NULL, 'w' }, { "window", required_argument, NULL, 'n' }

/* Returns whether the option is one of these and its value is good. */
static bool duplex_parse(int letter, const char *text)
{
    static const struct duplex_number numbers[] = {
        { 'i', &duplex.iterations, 1, 1u << 30 },
        { 'w', &duplex.warmup, 1, 1u << 30 },
        { 'n', &duplex.window, 1, DUPLEX_WINDOW_MAX },
    };

    if (letter == 't')
        duplex.tests = text;
    else if (letter == 'z')
        duplex.sizes = text;
    else if (letter == 's')
        return (duplex.seconds = atof(text)) > 0;
    else
        return duplex_parse_number(numbers, sizeof(numbers) / sizeof(*numbers), letter, text);
    return true;
}

#endif
