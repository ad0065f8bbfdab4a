/*
 * Several threads on one endpoint (`threads = true`), both endpoints in one process on two mappings
 * of the region: what ThreadSanitizer can see.  Each thread sends numbered packets and takes part in
 * progress; every packet must arrive once, whole, and in the order of its thread.
 */
#include "check.h"

#include "base/atomics.h"
#include "base/error.h"
#include "base/util.h"
#include "endpoint/endpoint.h"

#include <pthread.h>

enum { THREADS = 3, PACKETS = 3000, SIZE = 16 << 20 };

struct side {
    struct ivc_endpoint *endpoint;
    struct ivc_peer *peer;
    /* Written by handlers, of which one runs at a time; read when all threads have ended. */
    uint32_t next[THREADS];
    ivc_atomic_u32 received;
};

static struct side sides[2];

struct content {
    uint32_t thread, number;
    uint8_t bytes[2000];
};

static size_t length(uint32_t thread, uint32_t number)
{
    return 8 + (number * 7 + thread * 131) % (number % 10 ? 100 : 2000);
}

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct side *side = arg;
    struct content content;

    (void)peer;
    CHECK((size_t)packet->head_len + packet->body_len <= sizeof content);
    memcpy(&content, packet->head, packet->head_len);
    if (packet->body_len)
        memcpy((char *)&content + packet->head_len, packet->body, packet->body_len);
    CHECK(content.thread < THREADS);
    CHECK_EQ(content.number, side->next[content.thread]);
    CHECK_EQ(packet->head_len + packet->body_len, length(content.thread, content.number));
    for (size_t i = 0; i < length(content.thread, content.number) - 8; i++)
        CHECK(content.bytes[i] == (uint8_t)(content.number + i));
    side->next[content.thread]++;
    atomic_fetch_add(&side->received, 1);
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

static int send_one(struct side *side, const struct content *content, size_t len)
{
    struct iovec iov = { (void *)content, len };
    struct ivc_buffer buffer;
    int r;

    if (content->number % 3)
        return ivc_endpoint_send(side->endpoint, side->peer, 1, &iov, 1);
    r = ivc_endpoint_buffer_get(side->endpoint, side->peer, len, &buffer);
    if (r != 0)
        return r;
    memcpy(buffer.data, content, len);
    r = ivc_endpoint_send_buffer(side->endpoint, side->peer, 1, &buffer, len);
    if (r != 0)
        ivc_endpoint_buffer_free(side->endpoint, &buffer);
    return r;
}

struct job {
    struct side *side;
    uint32_t thread;
};

static void *talk(void *arg)
{
    const struct job *job = arg;
    struct content content = { .thread = job->thread };
    int r;

    while (content.number < PACKETS) {
        size_t len = length(job->thread, content.number);

        for (size_t i = 0; i < len - 8; i++)
            content.bytes[i] = (uint8_t)(content.number + i);
        r = send_one(job->side, &content, len);
        CHECK_THAT(r == 0 || r == IVC_E_FULL, "gave %d: %s", r, ivc_error_text());
        content.number += r == 0;
        if (r == IVC_E_FULL && ivc_endpoint_progress(job->side->endpoint) == 0)
            sched_yield();
    }
    while (ivc_load_relaxed(&job->side->received) < THREADS * PACKETS)
        if (ivc_endpoint_progress(job->side->endpoint) == 0)
            sched_yield();
    return NULL;
}

static void open_sides(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_address address;

    for (uint32_t i = 0; i < 2; i++) {
        struct ivc_endpoint_options options = {
            .region = path, .magic_id = 3, .client_id = i, .threads = true,
            .on_packet = on_packet, .on_arrival = on_arrival, .arg = &sides[i],
        };

        CHECK_THAT(ivc_endpoint_open(&options, &sides[i].endpoint) == 0, "%s", ivc_error_text());
    }
    for (uint32_t i = 0; i < 2; i++) {
        ivc_endpoint_address(sides[1 - i].endpoint, &address);
        CHECK_EQ(ivc_endpoint_connect(sides[i].endpoint, &address, &sides[i].peer), 0);
    }
}

static void test_threads(void)
{
    pthread_t threads[2][THREADS];
    struct job jobs[2][THREADS];

    open_sides();
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t t = 0; t < THREADS; t++) {
            jobs[i][t] = (struct job){ &sides[i], t };
            CHECK_EQ(pthread_create(&threads[i][t], NULL, talk, &jobs[i][t]), 0);
        }
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t t = 0; t < THREADS; t++)
            pthread_join(threads[i][t], NULL);
    for (uint32_t i = 0; i < 2; i++) {
        struct ivc_peer_stats stats;

        ivc_peer_stats(sides[i].peer, &stats);
        CHECK_EQ(stats.sent_packets, THREADS * PACKETS);
        CHECK_EQ(stats.received_packets, THREADS * PACKETS);
    }
    ivc_endpoint_free(sides[0].endpoint);
    ivc_endpoint_free(sides[1].endpoint);
}

/* Threads that connect to the same peer at once get the same peer. */
static void *connect_now(void *arg)
{
    struct ivc_address address;
    struct ivc_peer *peer = NULL;

    (void)arg;
    ivc_endpoint_address(sides[1].endpoint, &address);
    CHECK_EQ(ivc_endpoint_connect(sides[0].endpoint, &address, &peer), 0);
    for (unsigned i = 0; i < 100; i++)
        (void)ivc_endpoint_progress(sides[0].endpoint);
    return peer;
}

static void test_connect(void)
{
    pthread_t threads[4];
    void *peers[4];

    open_sides();
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, connect_now, NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], &peers[i]);
    for (unsigned i = 0; i < 4; i++)
        CHECK(peers[i] == sides[0].peer);
    ivc_endpoint_free(sides[0].endpoint);
    ivc_endpoint_free(sides[1].endpoint);
}

static const struct check_case cases[] = {
    { "three threads on each of two endpoints", test_threads, 60 },
    { "connecting at once", test_connect, 60 },
};
CHECK_MAIN(cases)
