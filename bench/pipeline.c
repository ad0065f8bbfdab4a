/* The best pipelined copy of the bare machine: see pipeline.h. */
#include "pipeline.h"

#include "sample.h"
#include "spin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum way {
    LIBRARY,                    /* memcpy() of the C library */
    MOVES,                      /* loads and stores of 16 bytes, eight at a time */
    PAST,                       /* in past the cache, out by the library */
    WAYS,
};

static const char *const way_names[] = { [LIBRARY] = "library", [MOVES] = "moves", [PAST] = "past the cache" };

enum {
    RING_MIN = 256 << 10, RING_MAX = 8 << 20,
    CHUNK_MIN = 4 << 10, CHUNK_MAX = 64 << 10,
    SHAPES_MAX = 6 * 5 * WAYS,
    TRIAL = 4 << 20,            /* bytes of a trial's windows */
    TRIALS = 2,
    FINALISTS = 4,
    WINDOWS_MAX = 1 << 16,
};

/* Powers of two, all of them. */
struct shape {
    size_t ring, chunk;
    enum way way;
    double us;                  /* a message, in the trial */
};

struct pipeline {
    struct spin_word head, tail;    /* bytes written, the sender's; read, the receiver's */
    struct spin_word stop;
    /* The sender's, which changes it only when everything was read; published by `head`. */
    _Alignas(SPIN_LINE) struct {
        struct shape shape;
        size_t message;
        uint64_t base;          /* `head` as the first message with it began */
    } job;
    _Alignas(4096) char ring[RING_MAX];
};

struct sender {
    struct pipeline *pipeline;
    const char *from;
    uint64_t head;
};

typedef uint64_t vector __attribute__((vector_size(16), aligned(1), may_alias));

/* Not to be made a call of memcpy() by the compiler, which knows such loops. */
__attribute__((optimize("no-tree-loop-distribute-patterns")))
static void copy_moves(char *to, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i += 8 * sizeof(vector)) {
        const vector *in = (const vector *)(from + i);
        vector *out = (vector *)(to + i);
        vector a = in[0], b = in[1], c = in[2], d = in[3], e = in[4], f = in[5], g = in[6], h = in[7];

        out[0] = a, out[1] = b, out[2] = c, out[3] = d, out[4] = e, out[5] = f, out[6] = g, out[7] = h;
    }
}

static void copy_past(char *to, const char *from, size_t n)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < n; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    _mm_sfence();
#else
    memcpy(to, from, n);
#endif
}

static void copy(enum way way, char *to, const char *from, size_t n)
{
    if (way == MOVES)
        copy_moves(to, from, n);
    else if (way == PAST)
        copy_past(to, from, n);
    else
        memcpy(to, from, n);
}

size_t pipeline_size(void)
{
    return sizeof(struct pipeline);
}

void pipeline_receive(struct pipeline *pipeline)
{
    char *to = calloc(1, PIPELINE_MESSAGE_MAX);
    uint64_t tail = 0;

    for (;;) {
        const struct shape *shape = &pipeline->job.shape;
        uint64_t at;

        while (spin_read(&pipeline->head) == tail)
            if (spin_read(&pipeline->stop))
                goto out;
        at = tail - pipeline->job.base;
        copy(shape->way == PAST ? LIBRARY : shape->way, to + at % pipeline->job.message,
             pipeline->ring + at % shape->ring, shape->chunk);
        tail += shape->chunk;
        spin_publish(&pipeline->tail, tail);
    }
out:
    free(to);
}

/* So many messages, until the last one was read: the time of one. */
static double send_window(struct sender *sender, size_t n)
{
    struct pipeline *pipeline = sender->pipeline;
    const struct shape shape = pipeline->job.shape;
    size_t message = pipeline->job.message;
    uint64_t base = pipeline->job.base, start = bench_ticks(), end = sender->head + n * message;

    for (uint64_t head = sender->head; head < end;) {
        if (head - base >= shape.ring)
            spin_wait(&pipeline->tail, head + shape.chunk - shape.ring);
        copy(shape.way, pipeline->ring + (head - base) % shape.ring, sender->from + (head - base) % message,
             shape.chunk);
        head += shape.chunk;
        spin_publish(&pipeline->head, head);
    }
    sender->head = end;
    spin_wait(&pipeline->tail, end);
    return bench_ticks_us(bench_ticks() - start) / (double)n;
}

/* What follows goes that way; everything was read. */
static void take_shape(struct sender *sender, const struct shape *shape)
{
    sender->pipeline->job.shape = *shape;
    sender->pipeline->job.base = sender->head;
}

/* All that make sense for such messages: how many. */
static size_t shapes_for(size_t message, struct shape *ret_shapes)
{
    size_t n = 0;

    for (size_t ring = RING_MIN; ring <= RING_MAX; ring *= 2)
        for (size_t chunk = CHUNK_MIN; chunk <= CHUNK_MAX && chunk <= message; chunk *= 2)
            for (unsigned way = 0; way < WAYS; way++)
                ret_shapes[n++] = (struct shape){ .ring = ring, .chunk = chunk, .way = (enum way)way };
    return n;
}

static void try(struct sender *sender, struct shape *shape, size_t n)
{
    take_shape(sender, shape);
    shape->us = send_window(sender, n);         /* the first one warms up */
    for (unsigned i = 0; i < TRIALS; i++) {
        double us = send_window(sender, n);

        shape->us = i == 0 || us < shape->us ? us : shape->us;
    }
}

static int by_time(const void *a, const void *b)
{
    const struct shape *first = a, *second = b;

    return (first->us > second->us) - (first->us < second->us);
}

static int measure(struct sender *sender, const struct shape *shape, double seconds, struct bench_series *ret_series)
{
    uint64_t limit = bench_clock_nanoseconds() + (uint64_t)(seconds * 1e9);

    if (bench_series_open(ret_series, WINDOWS_MAX) < 0)
        return -ENOMEM;
    take_shape(sender, shape);
    (void)send_window(sender, BENCH_WINDOW);
    do
        bench_series_add(ret_series, send_window(sender, BENCH_WINDOW));
    while (bench_clock_nanoseconds() < limit);
    return 0;
}

static void print(const struct shape *shape, size_t message, struct bench_series *series)
{
    struct bench_result result = { .program = "bench_floor", .test = "pipeline", .bytes = message, .ranks = 2 };
    char extra[160];

    for (size_t i = 0; i < series->n; i++)
        result.mean_us += series->us[i] / (double)series->n;
    result.typical_us = bench_series_median(series);
    result.batch = series->n * BENCH_WINDOW;
    result.megabytes_s = (double)message / result.typical_us;
    snprintf(extra, sizeof(extra), ",\"ring\":%zu,\"chunk\":%zu,\"way\":\"%s\",\"window\":%d,"
             "\"singles_are\":\"windows\"", shape->ring, shape->chunk, way_names[shape->way], BENCH_WINDOW);
    result.extra = extra;
    bench_result_print(&result, series);
}

int pipeline_send(struct pipeline *pipeline, size_t message, double seconds)
{
    struct sender sender = { .pipeline = pipeline, .head = spin_read(&pipeline->head) };
    struct shape shapes[SHAPES_MAX];
    struct bench_series best = { 0 };
    size_t n = shapes_for(message, shapes), n_best = 0, window = TRIAL / message;
    char *from = malloc(message);
    int error = from ? 0 : -ENOMEM;

    if (error < 0)
        return error;
    memset(from, 1, message);
    sender.from = from;
    pipeline->job.message = message;
    for (size_t i = 0; i < n; i++)
        try(&sender, &shapes[i], window < BENCH_WINDOW ? window : BENCH_WINDOW);
    qsort(shapes, n, sizeof(*shapes), by_time);
    for (size_t i = 0; i < FINALISTS && i < n && error == 0; i++) {
        struct bench_series series;

        error = measure(&sender, &shapes[i], seconds / FINALISTS, &series);
        if (error == 0 && (i == 0 || bench_series_median(&series) < bench_series_median(&best))) {
            bench_series_free(&best);
            best = series;
            n_best = i;
        } else if (error == 0) {
            bench_series_free(&series);
        }
    }
    if (error == 0)
        print(&shapes[n_best], message, &best);
    bench_series_free(&best);
    free(from);
    return error;
}

void pipeline_stop(struct pipeline *pipeline)
{
    spin_publish(&pipeline->stop, 1);
}
