/*
 * Many ranks in one region: what each of them costs in memory of the region, and what a turn of
 * progress costs one of them that knows all others.  The ranks are endpoints of this one process.
 *
 *     joined    all have joined and have connected to all others; nobody has sent anything
 *     talking   each has sent a message to the next `--talkers` ranks, all of which were checked
 *     known     everybody has sent one to rank 0, and is silent from now on
 *
 * Times are those of one processor: no line travels.  `progress` is a turn of rank 0 that finds nothing;
 * `message` a message from the last rank to rank 0, from sending to its handler, both sides together.
 */
#include "sample.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/endpoint.h"
#include "region/region.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 1, BATCHES = 20000, PER_BATCH = 1000, MESSAGE = 64 };

struct rank {
    struct ivc_endpoint *endpoint;
    struct ivc_peer **peers;        /* by rank; NULL: itself */
    uint64_t *received;             /* by rank */
    uint32_t number;
};

static struct rank *ranks;
static unsigned n_ranks, talkers = 32;

static void fail(const char *what)
{
    fprintf(stderr, "bench_many: %s: %s\n", what, ivc_error_text());
    exit(1);
}

/* A message says who sent it and how many it sent before, 8 times over. */
static void fill(uint64_t message[MESSAGE / 8], uint32_t from, uint64_t count)
{
    for (unsigned i = 0; i < MESSAGE / 8; i++)
        message[i] = (uint64_t)from << 40 | count << 8 | i;
}

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct rank *rank = arg;
    uint32_t from = ivc_peer_client_id(peer);
    uint64_t expected[MESSAGE / 8], came[MESSAGE / 8] = { 0 };

    fill(expected, from, rank->received[from]++);
    if (packet->head_len + packet->body_len == MESSAGE) {
        memcpy(came, packet->head, packet->head_len);
        if (packet->body_len > 0)
            memcpy((char *)came + packet->head_len, packet->body, packet->body_len);
    }
    if (memcmp(came, expected, MESSAGE) != 0) {
        fprintf(stderr, "bench_many: rank %u received a wrong message from rank %u\n", rank->number,
                from);
        exit(1);
    }
}

static void send_to(struct rank *from, uint32_t to, uint64_t count)
{
    uint64_t message[MESSAGE / 8];
    struct iovec iov = { message, sizeof message };
    int r;

    fill(message, from->number, count);
    while ((r = ivc_endpoint_send(from->endpoint, from->peers[to], TAG, &iov, 1)) == IVC_E_FULL) {
        ivc_endpoint_progress(ranks[to].endpoint);
        ivc_endpoint_progress(from->endpoint);
    }
    if (r != 0)
        fail("send");
}

/* Until rank `to` has that many messages from `from`. */
static void await(uint32_t to, uint32_t from, uint64_t count)
{
    while (ranks[to].received[from] < count)
        ivc_endpoint_progress(ranks[to].endpoint);
}

static void open_ranks(const char *region)
{
    uint64_t magic = (uint64_t)getpid() << 20 | 0x6d616e79;

    for (uint32_t i = 0; i < n_ranks; i++) {
        struct ivc_endpoint_options options = {
            .region = region, .magic_id = magic, .client_id = i, .expected_peers = n_ranks - 1,
            .on_packet = on_packet, .arg = &ranks[i],
        };

        ranks[i].number = i;
        ranks[i].peers = calloc(n_ranks, sizeof *ranks[i].peers);
        ranks[i].received = calloc(n_ranks, sizeof *ranks[i].received);
        if (!ranks[i].peers || !ranks[i].received
            || ivc_endpoint_open(&options, &ranks[i].endpoint) != 0)
            fail("cannot join the region");
    }
}

static void connect_ranks(void)
{
    struct ivc_address *addresses = calloc(n_ranks, sizeof *addresses);

    for (uint32_t i = 0; i < n_ranks; i++)
        ivc_endpoint_address(ranks[i].endpoint, &addresses[i]);
    for (uint32_t i = 0; i < n_ranks; i++)
        for (uint32_t k = 0; k < n_ranks; k++)
            if (i != k && ivc_endpoint_connect(ranks[i].endpoint, &addresses[k], &ranks[i].peers[k]))
                fail("connect");
    free(addresses);
}

static void talk(void)
{
    for (uint32_t i = 0; i < n_ranks; i++)
        for (uint32_t k = 1; k <= IVC_MIN(talkers, n_ranks - 1); k++)
            send_to(&ranks[i], (i + k) % n_ranks, 0);
    for (uint32_t i = 0; i < n_ranks; i++)
        for (uint32_t k = 1; k <= IVC_MIN(talkers, n_ranks - 1); k++)
            await((i + k) % n_ranks, i, 1);
}

/* Those who have not yet sent to rank 0 do. */
static void make_known(void)
{
    for (uint32_t i = 1; i < n_ranks; i++)
        if (ranks[0].received[i] == 0) {
            send_to(&ranks[i], 0, 0);
            await(0, i, 1);
        }
}

static void idle_turns(void)
{
    for (unsigned i = 0; i < PER_BATCH; i++)
        ivc_endpoint_progress(ranks[0].endpoint);
}

static void messages(void)
{
    uint32_t from = n_ranks - 1;

    for (unsigned i = 0; i < PER_BATCH; i++) {
        uint64_t count = ranks[0].received[from];

        send_to(&ranks[from], 0, count);
        await(0, from, count + 1);
    }
}

/* One of PER_BATCH: the median of the batches. */
static double one_us(void (*batch)(void))
{
    struct bench_series series;
    double us;

    if (bench_series_open(&series, BATCHES) < 0)
        fail("memory for the timings");
    for (unsigned i = 0; i < BATCHES; i++) {
        uint64_t start = bench_ticks();

        batch();
        bench_series_add(&series, bench_ticks_us(bench_ticks() - start) / PER_BATCH);
    }
    us = bench_series_median(&series);
    bench_series_free(&series);
    return us;
}

/* Of the region, in use. */
static uint64_t used(void)
{
    struct ivc_region_info info;

    ivc_endpoint_enter(ranks[0].endpoint);
    ivc_region_info(ivc_endpoint_region(ranks[0].endpoint), &info);
    ivc_endpoint_leave(ranks[0].endpoint);
    return info.size - info.free_bytes;
}

static void measure(const char *region)
{
    uint64_t joined, talking, known;
    double silent_us, known_us;

    ranks = calloc(n_ranks, sizeof *ranks);
    if (!ranks)
        fail("memory");
    open_ranks(region);
    connect_ranks();
    joined = used();
    silent_us = one_us(idle_turns);
    talk();
    talking = used();
    make_known();
    known = used();
    known_us = one_us(idle_turns);
    printf("{\"program\":\"bench_many\",\"ranks\":%u,\"talkers\":%u,\"message_bytes\":%u,"
           "\"joined_bytes_per_rank\":%.0f,\"talking_bytes_per_rank\":%.0f,"
           "\"known_bytes_per_rank\":%.0f,\"progress_silent_us\":%.4f,\"progress_known_us\":%.4f,"
           "\"message_us\":%.4f,\"clock\":\"%s\"}\n", n_ranks, IVC_MIN(talkers, n_ranks - 1), MESSAGE,
           (double)joined / n_ranks, (double)talking / n_ranks, (double)known / n_ranks, silent_us,
           known_us, one_us(messages), bench_clock_name());
    for (uint32_t i = 0; i < n_ranks; i++) {
        ivc_endpoint_free(ranks[i].endpoint);
        free(ranks[i].peers);
        free(ranks[i].received);
    }
    free(ranks);
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_many [--ranks N] [--talkers N] --region PATH\n"
            "Memory and time of N ranks (2 to 4096; all in this process) in a region: a fresh file,\n"
            "because what those who left have used rests for a while.\n");
    return code;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "ranks", required_argument, NULL, 'n' }, { "talkers", required_argument, NULL, 't' },
        { "region", required_argument, NULL, 'r' }, { "help", no_argument, NULL, 'h' }, { 0 },
    };
    size_t count = 2, talk_to = talkers;
    const char *region = NULL;
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(0);
        else if (c == 'r')
            region = optarg;
        else if (c == '?' || bench_parse_size(optarg, c == 'n' ? &count : &talk_to) < 0)
            return usage(2);
    }
    if (!region || count < 2 || count > 4096)
        return usage(2);
    n_ranks = (unsigned)count;
    talkers = (unsigned)IVC_MIN(talk_to, count);
    bench_clock_open();
    measure(region);
    return 0;
}
