/*
 * One message after the other from one context to another of the same process: what a message costs
 * in instructions, on both sides together and without the way between two processors.
 *
 *     valgrind --tool=callgrind --toggle-collect=there_and_back build/bench/bench_path
 *
 * counts `--messages` of them exactly, and says where they are spent; run by itself it prints their
 * time, which is that of one processor.
 */
#include "sample.h"

#include <ivc.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct end {
    ivc_context *context;
    ivc_connection *connection;
};

static void fail(const char *what)
{
    fprintf(stderr, "bench_path: %s: %s\n", what, ivc_last_error());
    exit(1);
}

/* Both ends are ours, so neither may wait for the other: they are asked in turns. */
static void connect_ends(struct end ends[2], const char *region)
{
    struct ivc_options with = { .size = sizeof(with), .region = region };
    uint64_t magic = (uint64_t)getpid() << 20 | 0x62657061;

    for (uint32_t i = 0; i < 2; i++)
        if (ivc_register_with(magic, i + 1, &with, &ends[i].context) < 0)
            fail("cannot join the region");
    if (ivc_connect(ends[0].context, 2, &ends[0].connection) < 0)
        fail("cannot connect");
    while (ivc_accept(ends[1].context, &ends[1].connection) < 0) { }
}

static void move(ivc_connection *from, ivc_connection *to, char *bytes, size_t len)
{
    size_t written = 0, got = 0;
    ptrdiff_t n = 0;

    while (got < len && n >= 0) {
        if (written < len) {
            n = ivc_write(from, bytes + written, len - written);
            written += n > 0 ? (size_t)n : 0;
        }
        if (n >= 0)
            n = ivc_read(to, bytes + got, len - got);
        got += n > 0 ? (size_t)n : 0;
    }
    if (n < 0)
        fail("a message");
}

static void both_ways(struct end ends[2], char *bytes, size_t len)
{
    move(ends[0].connection, ends[1].connection, bytes, len);
    move(ends[1].connection, ends[0].connection, bytes, len);
}

/* The name under which callgrind counts. */
static __attribute__((noinline)) void there_and_back(struct end ends[2], char *bytes, size_t len)
{
    both_ways(ends, bytes, len);
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_path [--messages N] [--bytes N] [--region PATH]\n"
            "Messages between two contexts of this process; meant to be run under callgrind.\n");
    return code;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "messages", required_argument, NULL, 'n' }, { "bytes", required_argument, NULL, 'b' },
        { "region", required_argument, NULL, 'r' }, { "help", no_argument, NULL, 'h' }, { 0 },
    };
    struct bench_result result = { .program = "bench_path", .test = "message", .ranks = 2 };
    size_t messages = 10000, len = 8;
    const char *region = NULL;
    struct end ends[2];
    uint64_t start;
    char *bytes;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(0);
        else if (c == 'r')
            region = optarg;
        else if (c == '?' || bench_parse_size(optarg, c == 'n' ? &messages : &len) < 0 || !len
                 || !messages)
            return usage(2);
    }
    bytes = calloc(1, len);
    if (!bytes)
        return 1;
    bench_clock_open();
    connect_ends(ends, region);
    for (int i = 0; i < 100; i++)       /* warm-up */
        both_ways(ends, bytes, len);
    start = bench_ticks();
    for (size_t i = 0; i < messages; i += 2)
        there_and_back(ends, bytes, len);
    result.bytes = len;
    result.batch = messages;
    result.mean_us = bench_ticks_us(bench_ticks() - start) / (double)messages;
    bench_result_print(&result, NULL);
    for (int i = 0; i < 2; i++) {
        ivc_close(ends[i].connection);
        ivc_deregister(ends[i].context);
    }
    free(bytes);
    return 0;
}
