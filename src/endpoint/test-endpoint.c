/*
 * Tests of endpoints: several endpoints of one process, moved in turn.  Packets of every length,
 * many peers, peers that go, addresses that lead nowhere; and, where there is a libfabric, peers on
 * the network path: processes that end, and packets that lie.
 */
#include "check.h"
#include "leaks.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/address.h"
#include "endpoint/short.h"
#include "network/network.h"
#include "region/region.h"

#include <sched.h>

enum { SIZE = 16 << 20, MAX = 132 << 10 };

struct node {
    struct ivc_endpoint *endpoint;
    bool one_by_one;                /* a packet in each turn */
    void (*also)(void);             /* for each packet; NULL: nothing */
    unsigned packets, gones, arrivals;
    const char *last_reason;        /* in `reason`, or NULL */
    char reason[256];
    struct ivc_peer *last_peer;
    struct ivc_packet last_packet;
    char packet_bytes[MAX];
};

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct node *node = arg;

    node->last_peer = peer;
    node->packets++;
    node->last_packet = *packet;
    memcpy(node->packet_bytes, packet->head, packet->head_len);
    if (packet->body_len)
        memcpy(node->packet_bytes + packet->head_len, packet->body, packet->body_len);
    if (node->one_by_one)
        ivc_endpoint_end_turn(node->endpoint);
    if (node->also)
        node->also();
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct node *node = arg;

    (void)peer;
    node->gones++;
    if (reason)
        snprintf(node->reason, sizeof node->reason, "%s", reason);
    node->last_reason = reason ? node->reason : NULL;
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)peer;
    ((struct node *)arg)->arrivals++;
}

static void node_open_with(struct node *node, struct ivc_endpoint_options options)
{
    options.magic_id = 5;
    options.on_packet = on_packet;
    options.on_gone = on_gone;
    options.on_arrival = on_arrival;
    options.arg = node;
    memset(node, 0, sizeof *node);
    CHECK_THAT(ivc_endpoint_open(&options, &node->endpoint) == 0, "%s", ivc_error_text());
}

static void node_open_among(struct node *node, const char *path, uint32_t client_id, uint32_t expected_peers)
{
    node_open_with(node, (struct ivc_endpoint_options){
        .region = path, .client_id = client_id, .expected_peers = expected_peers,
    });
}

static void node_open(struct node *node, const char *path, uint32_t client_id)
{
    node_open_among(node, path, client_id, 0);
}

static void node_close(struct node *node)
{
    ivc_endpoint_free(node->endpoint);
}

static struct ivc_peer *connect_to(struct node *from, const struct node *to)
{
    struct ivc_address address;
    struct ivc_peer *peer = NULL;

    ivc_endpoint_address(to->endpoint, &address);
    CHECK_THAT(ivc_endpoint_connect(from->endpoint, &address, &peer) == 0, "%s", ivc_error_text());
    return peer;
}

/* Until a packet has come: also through a ring that it does not watch yet. */
static void await_first(struct node *node)
{
    for (unsigned i = 0; i < 300 && node->packets == 0; i++)
        ivc_endpoint_progress(node->endpoint);
}

static struct node a, b;
static char payload[MAX];

/* `a` and `b`, each of which knows the other. */
static void open_both(struct ivc_peer **ret_of_a, struct ivc_peer **ret_of_b)
{
    const char *path = check_file(0, SIZE);

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    *ret_of_a = connect_to(&a, &b);
    *ret_of_b = connect_to(&b, &a);
}

static void fill_payload(uint64_t number)
{
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (char)(number * 31 + i * 11 + (i >> 9));
}

/* Every length of a packet, by copy and by buffer. */
static void test_packets(void)
{
    static const struct { const char *ring, *segment, *chunk; } tunables[] = {
        { "24K", "64", "32K" }, { "24K", "4096", "4K" }, { "4K", "64", "8K" },
        { "1M", "256", "64K" },
    };

    for (unsigned t = 0; t < sizeof tunables / sizeof *tunables; t++) {
        const char *path = check_file(0, SIZE);
        struct ivc_peer *peer;
        size_t most;

        setenv("IVC_RING_SIZE", tunables[t].ring, 1);
        setenv("IVC_SEGMENT_SIZE", tunables[t].segment, 1);
        setenv("IVC_CHUNK_SIZE", tunables[t].chunk, 1);
        node_open(&a, path, 1);
        node_open(&b, path, 2);
        peer = connect_to(&a, &b);
        most = ivc_endpoint_double_max(a.endpoint);
        CHECK(ivc_endpoint_eager_max(a.endpoint) > 0 && ivc_endpoint_packet_max(a.endpoint) >= 4096);
        fill_payload(t);
        for (size_t len = 0; len <= most; len += len < 5000 || len > most - 70 ? 1 : 61)
            for (unsigned way = 0; way < 3; way++) {
                size_t first = way == 0 ? len / 2 : len % 50;     /* a header, or more than one */
                struct iovec iov[2] = { { payload, first }, { payload + first, len - first } };
                struct ivc_buffer buffer;
                int r;

                if (way == 2) {
                    CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, len, &buffer), 0);
                    CHECK(buffer.size >= len);
                    memcpy(buffer.data, payload, len);
                    r = ivc_endpoint_send_buffer(a.endpoint, peer, 9, &buffer, len);
                } else {
                    r = ivc_endpoint_send(a.endpoint, peer, 9, iov, 2);
                }
                CHECK_THAT(r == 0, "%zu bytes gave %d: %s", len, r, ivc_error_text());
                b.packets = 0;
                await_first(&b);
                CHECK_THAT(b.packets == 1, "%zu bytes did not arrive", len);
                CHECK_EQ(b.last_packet.tag, 9);
                CHECK_EQ((size_t)b.last_packet.head_len + b.last_packet.body_len, len);
                CHECK_THAT(memcmp(b.packet_bytes, payload, len) == 0, "%zu bytes", len);
            }
        {
            struct iovec iov = { payload, most + 1 };
            struct ivc_buffer buffer;

            CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1), -EMSGSIZE);
            CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, most + 1, &buffer), -EMSGSIZE);
        }
        node_close(&a);
        node_close(&b);
    }
}

/* What comes to `b` next is that packet, which it takes itself if it may. */
static void check_taken(struct ivc_peer *from, uint32_t word, const char *bytes, size_t len, bool takes)
{
    char to[512];
    ptrdiff_t n;

    b.packets = 0;
    n = ivc_endpoint_take_short(b.endpoint, from, 1, word, to, sizeof to);
    CHECK_THAT(n == (takes ? (ptrdiff_t)len : -1), "%zu bytes: %zd", len, n);
    if (n < 0) {
        await_first(&b);
        CHECK_EQ(b.packets, 1);
        CHECK_EQ((size_t)b.last_packet.head_len + b.last_packet.body_len, len + sizeof word);
        CHECK_EQ(memcmp(b.packet_bytes, &word, sizeof word), 0);
    }
    CHECK_EQ(memcmp(n < 0 ? b.packet_bytes + sizeof word : to, bytes, len), 0);
}

/* From a to b, of that many bytes, as many as the ring takes, `least` at least. */
static void check_turns(struct ivc_peer *peer, struct ivc_peer *from, size_t len, unsigned least)
{
    const uint32_t word = 7;
    char to[64];
    unsigned n, in_a_row = 0, most = 0, turns = 0;

    for (n = 0; ivc_endpoint_send_short(a.endpoint, peer, 1, &word, sizeof word, payload, len) == 0;)
        n++;
    CHECK_THAT(n > least, "%u", n);
    for (b.packets = 0; turns < 1000; ) {
        if (ivc_endpoint_take_short(b.endpoint, from, 1, word, to, sizeof to) == (ptrdiff_t)len) {
            most = IVC_MAX(most, ++in_a_row);
            continue;
        }
        in_a_row = 0;
        turns++;
        ivc_endpoint_progress(b.endpoint);
    }
    CHECK_THAT(b.packets > 0 && most > 0 && most < IVC_SHORT_TURN, "%u in a row", most);
}

/* So that the next packet from a to b begins a scattered lap. */
static void scatter(struct ivc_peer *peer, struct ivc_peer *from)
{
    peer->tx.scatters = IVC_SCATTERS_ALL;
    for (unsigned i = 0; peer->tx.order == IVC_RING_IN_LINE; i++) {
        CHECK(i < 1000);
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 3 }, 1), 0);
        ivc_endpoint_progress(b.endpoint);
        CHECK_EQ(ivc_endpoint_send(b.endpoint, from, 9, &(struct iovec){ payload, 3 }, 1), 0);
        ivc_endpoint_progress(a.endpoint);
    }
    ivc_endpoint_progress(b.endpoint);
}

/* Packets of one word and some bytes, which may be taken without a handler. */
static void test_short_packets(void)
{
    struct ivc_peer *peer, *from;
    const uint32_t word = 7;
    char to[64];

    open_both(&peer, &from);
    fill_payload(1);
    CHECK_EQ(ivc_endpoint_send_short(a.endpoint, peer, 1, &word, sizeof word, payload, 8), 0);
    check_taken(from, 7, payload, 8, false);            /* the first one: it is not looked at yet */
    for (size_t len = 0; len <= 300; len++) {
        CHECK_EQ(ivc_endpoint_send_short(a.endpoint, peer, 1, &word, sizeof word, payload + len, len), 0);
        if (len % 16 == 0)
            ivc_endpoint_progress(a.endpoint);
        check_taken(from, 7, payload + len, len,
                    len <= IVC_COPY_FEW_MAX && (len + 1) % IVC_SHORT_TURN >= IVC_SHORT_LEFT);
    }
    /* Another tag, another word, too little room, something before it, somebody else. */
    CHECK_EQ(ivc_endpoint_send_short(a.endpoint, peer, 1, &word, sizeof word, payload, 8), 0);
    CHECK_EQ(ivc_endpoint_take_short(b.endpoint, from, 2, 7, to, sizeof to), -1);
    CHECK_EQ(ivc_endpoint_take_short(b.endpoint, from, 1, 8, to, sizeof to), -1);
    CHECK_EQ(ivc_endpoint_take_short(b.endpoint, from, 1, 7, to, 7), -1);
    check_taken(from, 7, payload, 8, true);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 3 }, 1), 0);
    CHECK_EQ(ivc_endpoint_send_short(a.endpoint, peer, 1, &word, sizeof word, payload, 8), 0);
    CHECK_EQ(ivc_endpoint_take_short(b.endpoint, from, 1, 7, to, sizeof to), -1);
    b.packets = 0;
    ivc_endpoint_progress(b.endpoint);
    CHECK_EQ(b.packets, 2);
    CHECK_EQ(ivc_endpoint_take_short(b.endpoint, from, 1, 7, to, sizeof to), -1);
    /* Without a turn only so many, in a slot or in two; and a ring that is full says so. */
    check_turns(peer, from, 8, 64);
    scatter(peer, from);
    check_turns(peer, from, 60, 30);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 3 }, 1), 0);     /* an odd slot */
    check_turns(peer, from, 60, 30);
    node_close(&a);
    node_close(&b);
}

/* Packets of one word and a body in a chunk, likewise. */
static void test_long_packets(void)
{
    enum { LEN = 20000 };
    static char to[LEN];
    const uint32_t word = 7;
    const struct iovec iov[2] = { { (void *)&word, sizeof word }, { payload, LEN } };
    struct ivc_peer *peer, *from;
    unsigned taken = 0, in_a_row = 0;

    open_both(&peer, &from);
    fill_payload(2);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 1, iov, 2), 0);
    CHECK_EQ(ivc_endpoint_take_long(b.endpoint, from, 1, word, to, LEN), -1);   /* as for short ones */
    await_first(&b);
    CHECK_EQ(b.packets, 1);
    CHECK_EQ(ivc_endpoint_take_long(b.endpoint, from, 1, word, to, LEN), -1);   /* there is none */
    /* Nobody calls progress but every so often, and chunks come back nevertheless. */
    for (unsigned i = 1; i < 500; i++) {
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 1, iov, 2), 0);
        CHECK_EQ(ivc_endpoint_take_long(b.endpoint, from, 2, word, to, LEN), -1);
        CHECK_EQ(ivc_endpoint_take_long(b.endpoint, from, 1, word + 1, to, LEN), -1);
        CHECK_EQ(ivc_endpoint_take_long(b.endpoint, from, 1, word, to, LEN - 1), -1);
        CHECK_EQ(ivc_endpoint_take_short(b.endpoint, from, 1, word, to, LEN), -1);
        memset(to, 0, LEN);
        b.packets = 0;
        if (ivc_endpoint_take_long(b.endpoint, from, 1, word, to, LEN) == LEN) {
            CHECK_EQ(memcmp(to, payload, LEN), 0);
            taken++, in_a_row++;
            CHECK(in_a_row < IVC_SHORT_TURN);
        } else {
            CHECK_EQ(ivc_endpoint_progress(b.endpoint), 1);
            in_a_row = 0;
        }
        CHECK_EQ(b.packets, in_a_row == 0);
    }
    CHECK_THAT(taken > 400, "%u", taken);
    /* One in the ring is for progress. */
    CHECK_EQ(ivc_endpoint_send_short(a.endpoint, peer, 1, &word, sizeof word, payload, 8), 0);
    CHECK_EQ(ivc_endpoint_take_long(b.endpoint, from, 1, word, to, LEN), -1);
    node_close(&a);
    node_close(&b);
}

/* Short packets of which nothing is read. */
static unsigned count_to_full(struct node *from, struct ivc_peer *peer)
{
    unsigned n = 0;

    while (ivc_endpoint_send(from->endpoint, peer, 9, &(struct iovec){ payload, 8 }, 1) == 0)
        n++;
    return n;
}

/* The rings of all pairs take no more than an eighth of the region, and none is shorter for that than it is for many. */
static void test_ring_sizes(void)
{
    static const struct {
        unsigned size_mib, expected_peers, members;
        const char *asked;
        unsigned slots, eager_slots;
    } rows[] = {
        { 16, 0, 2, "", 2047, 42 }, { 16, 1, 2, "", 2047, 42 }, { 16, 2, 2, "", 2047, 42 }, { 16, 3, 2, "", 1023, 42 },
        { 16, 5, 2, "", 511, 42 }, { 16, 6, 2, "", 255, 42 }, { 16, 7, 2, "", 255, 42 }, { 16, 11, 2, "", 127, 42 },
        { 16, 63, 2, "", 127, 42 }, { 16, 0, 7, "", 255, 42 }, { 16, 0, 12, "", 127, 42 }, { 256, 15, 2, "", 1023, 42 },
        { 16, 63, 2, "32K", 255, 85 }, { 16, 1, 2, "16K", 127, 42 },
    };
    static struct node others[10];

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = check_file(0, rows[i].size_mib << 20);
        unsigned n;

        setenv("IVC_RING_SIZE", rows[i].asked, 1);
        node_open_among(&a, path, 1, rows[i].expected_peers);
        node_open_among(&b, path, 2, rows[i].expected_peers);
        for (unsigned k = 2; k < rows[i].members; k++)
            node_open(&others[k - 2], path, 1 + k);
        n = count_to_full(&a, connect_to(&a, &b));
        CHECK_THAT(n == rows[i].slots, "row %u: %u packets", i, n);
        CHECK_EQ(ivc_endpoint_eager_max(a.endpoint), rows[i].eager_slots * 128 - 8);
        for (unsigned k = 2; k < rows[i].members; k++)
            node_close(&others[k - 2]);
        node_close(&a);
        node_close(&b);
    }
    unsetenv("IVC_RING_SIZE");
}

/* Half of the region is free, but in pieces of 20 KiB, and of what was left between them. */
static void test_ring_in_pieces(void)
{
    static struct ivc_share shares[SIZE / (20 << 10)];
    const char *path = check_file(0, SIZE);
    struct ivc_region *region;
    unsigned n = 0;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    region = ivc_endpoint_region(a.endpoint);
    while (ivc_region_share(region, IVC_SLOT_ANY, 20 << 10, &shares[n]) == 0)
        n++;
    for (unsigned i = 0; i < n; i += 2)
        ivc_region_unshare(region, &shares[i]);
    CHECK_EQ(count_to_full(&a, connect_to(&a, &b)), 127);
    for (unsigned i = 1; i < n; i += 2)
        ivc_region_unshare(region, &shares[i]);
    node_close(&a);
    node_close(&b);
}

/* Whoever keeps buffers leaves some to go round, and what is in them is sent when it is, after what was sent before. */
static void test_spare_buffers(void)
{
    const char *path = check_file(0, SIZE);
    static struct ivc_buffer kept[4096];
    struct ivc_buffer one;
    struct ivc_peer *peer;
    unsigned n = 0, packets;

    CHECK_EQ(setenv("IVC_CHUNK_SIZE", "8K", 1), 0);
    node_open(&a, path, 1);
    node_open(&b, path, 2);
    peer = connect_to(&a, &b);
    CHECK_EQ(ivc_endpoint_buffer_get_spare(a.endpoint, peer, 8000, &one), IVC_E_FULL);  /* no ring yet */
    fill_payload(0);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 8 }, 1), 0);
    while (n < 4096 && ivc_endpoint_buffer_get_spare(a.endpoint, peer, 8000, &kept[n]) == 0) {
        fill_payload(100 + n);
        memcpy(kept[n++].data, payload, 8000);
    }
    CHECK_THAT(n > 0 && n < 4096, "%u to keep", n);
    for (packets = 1; packets < 200; packets++) {   /* more often than there are buffers */
        fill_payload(packets);
        CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, 8000, &one), 0);
        memcpy(one.data, payload, 8000);
        CHECK_EQ(ivc_endpoint_send_buffer(a.endpoint, peer, 9, &one, 8000), 0);
        for (unsigned i = 0; i < 300 && b.packets <= packets; i++)
            ivc_endpoint_progress(b.endpoint);
        CHECK_EQ(b.packets, packets + 1);
        CHECK_EQ(memcmp(b.packet_bytes, payload, 8000), 0);
    }
    for (unsigned i = 1; i < n; i++) {              /* the first one is given back */
        CHECK_EQ(ivc_endpoint_send_buffer(a.endpoint, peer, 9, &kept[i], 8000), 0);
        for (unsigned k = 0; k < 300 && b.packets < packets + i; k++)
            ivc_endpoint_progress(b.endpoint);
        fill_payload(100 + i);
        CHECK_EQ(memcmp(b.packet_bytes, payload, 8000), 0);
    }
    ivc_endpoint_buffer_free(a.endpoint, &kept[0]);
    CHECK_EQ(ivc_endpoint_buffer_get_spare(a.endpoint, peer, 8000, &one), 0);
    ivc_endpoint_buffer_free(a.endpoint, &one);
    node_close(&a);
    node_close(&b);
    CHECK_EQ(unsetenv("IVC_CHUNK_SIZE"), 0);
}

/* One who reads nothing holds many chunks, and not all. */
static void test_chunks_for_others(void)
{
    const char *path = check_file(0, SIZE);
    struct iovec iov = { payload, 8000 };
    static struct node c;
    struct ivc_peer *silent, *other;
    unsigned n = 0;

    CHECK_EQ(setenv("IVC_CHUNK_SIZE", "8K", 1), 0);
    node_open(&a, path, 1);
    node_open(&b, path, 2);
    node_open(&c, path, 3);
    silent = connect_to(&a, &b);
    other = connect_to(&a, &c);
    while (n < 4096 && ivc_endpoint_send(a.endpoint, silent, 9, &iov, 1) == 0)
        n++;
    CHECK_THAT(n > 8 && n < 4096, "%u to one who reads nothing", n);
    for (unsigned packets = 0; packets < 200; packets++) {      /* more often than there are chunks left */
        fill_payload(packets);
        CHECK_EQ(ivc_endpoint_send(a.endpoint, other, 9, &iov, 1), 0);
        for (unsigned i = 0; i < 300 && c.packets <= packets; i++)
            ivc_endpoint_progress(c.endpoint);
        CHECK_EQ(c.packets, packets + 1);
        CHECK_EQ(memcmp(c.packet_bytes, payload, 8000), 0);
    }
    node_close(&a);
    node_close(&b);
    node_close(&c);
    CHECK_EQ(unsetenv("IVC_CHUNK_SIZE"), 0);
}

/* What fits into the ring goes by a chunk when it is one packet between two waits, and through the ring when there are
 * several; in order, whatever way. */
static void exchange_after_waits(bool wide)
{
    enum { ROUNDS = 100, WAIT = 100, LEN = 1900 };
    struct ivc_peer *peer, *back;
    unsigned packets = 0, before = 0;

    open_both(&peer, &back);
    CHECK_EQ(ivc_endpoint_send(b.endpoint, back, 9, &(struct iovec){ payload, 8 }, 1), 0);
    await_first(&a);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 8 }, 1), 0);
    peer->tx.pool->is_wide = wide;
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned now = round % 10 < 6 ? 1 : 2;

        for (unsigned i = 0; i < now; i++, packets++) {
            uint64_t got = peer->tx.pool->got;

            peer->tx.far = wide ? 0 : IVC_FAR_LOOKS;
            fill_payload(packets);
            CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, LEN }, 1), 0);
            CHECK_EQ(peer->tx.pool->got - got, before == 1 && i == 0);
        }
        before = now;
        for (unsigned i = 0; i < 300 && b.packets < packets + 1; i++)
            ivc_endpoint_progress(b.endpoint);
        CHECK_EQ(b.packets, packets + 1);
        fill_payload(packets - 1);
        CHECK_EQ(memcmp(b.packet_bytes, payload, LEN), 0);
        for (unsigned i = 0; i < WAIT; i++)
            ivc_endpoint_progress(a.endpoint);
    }
    node_close(&a);
    node_close(&b);
}

/* To a peer far away, or out of a pool larger than the nearest caches. */
static void test_after_a_wait(void)
{
    exchange_after_waits(false);
    exchange_after_waits(true);
}

/* Of long packets no more are under way than are good for the peer; of shorter ones as many as there are chunks. */
static void test_long_under_way(void)
{
    enum { MOST = 3, LONG = 30000, SHORTER = 20000, PACKETS = 50 };
    const char *path = check_file(0, SIZE);
    struct iovec iov = { payload, LONG }, shorter = { payload, SHORTER };
    struct ivc_buffer buffer;
    struct ivc_peer *peer;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    peer = connect_to(&a, &b);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 8 }, 1), 0);
    peer->tx.pool->long_max = MOST;
    b.one_by_one = true;
    for (unsigned n = 0; n < PACKETS; n++) {
        fill_payload(n);
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1), n < MOST ? 0 : IVC_E_FULL);
        if (n < MOST)
            continue;
        CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, LONG, &buffer), IVC_E_FULL);
        for (unsigned i = 0; i < 300 && b.packets < n - MOST + 2; i++)      /* the first one had 8 bytes */
            ivc_endpoint_progress(b.endpoint);
        fill_payload(n - MOST);
        CHECK_EQ(memcmp(b.packet_bytes, payload, LONG), 0);
        fill_payload(n);
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1), 0);
    }
    for (unsigned n = 0; n < MOST; n++)
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &shorter, 1), 0);
    node_close(&a);
    node_close(&b);
}

/* By a chunk, though the ring takes it, goes what is long, and what is shorter if that is asked for and the peer is far
 * away, or the pool wide; without a free chunk through the ring, in order. */
static void test_chunk_or_ring(void)
{
    static const struct { size_t len; uint32_t asked, far; bool wide, chunk; } rows[] = {
        { 5499, 0, IVC_FAR_LOOKS, false, false }, { 5500, 0, 0, false, true }, { 20000, 0, 0, false, true },
        { 2499, 2500, IVC_FAR_LOOKS, false, false }, { 2500, 2500, IVC_FAR_LOOKS, false, true },
        { 2500, 2500, 0, false, false },
        { 1999, 0, 0, true, false }, { 2000, 0, 0, true, true }, { 2000, 0, IVC_FAR_LOOKS, true, true },
    };
    enum { RING = 512 << 10, MANY = 80 };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = check_file(0, SIZE);
        struct iovec iov = { payload, rows[i].len };
        struct ivc_peer *peer;
        uint64_t got;
        unsigned n = 0;

        node_open_with(&a, (struct ivc_endpoint_options){
            .region = path, .client_id = 1, .ring_size = RING, .far_by_chunk = rows[i].asked,
        });
        node_open(&b, path, 2);
        peer = connect_to(&a, &b);
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &(struct iovec){ payload, 8 }, 1), 0);
        for (; n < MANY; n++) {
            peer->tx.far = rows[i].far;
            peer->tx.pool->is_wide = rows[i].wide;
            got = peer->tx.pool->got;
            fill_payload(n);
            if (ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1) != 0)
                break;
            if (n == 0)
                CHECK_THAT((peer->tx.pool->got > got) == rows[i].chunk, "row %u", i);
        }
        CHECK_THAT(!rows[i].chunk || n > peer->tx.pool->got, "row %u: %u packets", i, n);
        b.one_by_one = true;
        for (unsigned packets = 0; packets <= n; packets++) {
            for (unsigned k = 0; k < 300 && b.packets <= packets; k++)
                ivc_endpoint_progress(b.endpoint);
            CHECK_EQ(b.packets, packets + 1);
            fill_payload(packets - 1);
            if (packets > 0)
                CHECK_THAT(memcmp(b.packet_bytes, payload, rows[i].len) == 0, "row %u, packet %u", i, packets);
        }
        node_close(&a);
        node_close(&b);
    }
}

/* Who fills chunks is to know whether others want the processor: by what it was told, or has seen. */
static void test_crowded(void)
{
    static const struct { bool told, threads; uint32_t seen; bool long_ago, crowded; } rows[] = {
        { false, false, 0, false, false }, { false, false, IVC_CROWD_SEEN - 1, false, false },
        { false, false, IVC_CROWD_SEEN, false, true }, { false, false, IVC_CROWD_SEEN, true, false },
        { true, false, 0, false, true }, { true, true, 0, false, true },
    };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = check_file(0, 16 << 20);
        struct iovec iov = { payload, 30 << 10 };
        struct ivc_buffer buffer;
        struct ivc_peer *peer;

        node_open_with(&a, (struct ivc_endpoint_options){
            .region = path, .client_id = 1, .crowded = rows[i].told, .threads = rows[i].threads,
        });
        node_open(&b, path, 2);
        peer = connect_to(&a, &b);
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1), 0);
        if (!rows[i].threads) {
            a.endpoint->crowd.seen = rows[i].seen;
            a.endpoint->crowd.looked_at = rows[i].long_ago ? 0 : ivc_cycles();
        }
        peer->tx.is_crowded = !rows[i].crowded;
        CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1), 0);
        CHECK_THAT(peer->tx.is_crowded == rows[i].crowded, "row %u, copied", i);
        peer->tx.is_crowded = !rows[i].crowded;
        CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, iov.iov_len, &buffer), 0);
        CHECK_THAT(peer->tx.is_crowded == rows[i].crowded, "row %u, a buffer", i);
        ivc_endpoint_buffer_free(a.endpoint, &buffer);
        node_close(&a);
        node_close(&b);
    }
}

/* More peers than rings are looked at in each turn: none starves, each packet arrives. */
static void test_many_peers(void)
{
    enum { N = 24 };
    static struct node nodes[N];
    const char *path = check_file(0, SIZE);
    struct iovec iov = { payload, 100 };
    struct ivc_peer *peers[N];

    node_open(&a, path, 1);
    for (unsigned i = 0; i < N; i++) {
        node_open(&nodes[i], path, 100 + i);
        peers[i] = connect_to(&nodes[i], &a);
    }
    for (unsigned round = 0; round < 50; round++) {
        unsigned wanted = a.packets;

        for (unsigned i = 0; i < N; i++)
            if ((i + round) % 3 == 0 || round % 10 == 0) {
                CHECK_EQ(ivc_endpoint_send(nodes[i].endpoint, peers[i], 1, &iov, 1), 0);
                wanted++;
            }
        for (unsigned i = 0; i < 200000 && a.packets < wanted; i++)
            ivc_endpoint_progress(a.endpoint);
        CHECK_EQ(a.packets, wanted);
    }
    CHECK_EQ(a.arrivals, N);
    for (unsigned i = 0; i < N; i++)
        node_close(&nodes[i]);
    for (unsigned i = 0; i < 500 && a.gones < N; i++, ivc_sleep_ms(10))
        for (unsigned turn = 0; turn < 200; turn++)
            ivc_endpoint_progress(a.endpoint);
    CHECK_EQ(a.gones, N);
    CHECK(a.last_reason == NULL);
    node_close(&a);
}

static void test_addresses(void)
{
    struct ivc_address address, wrong;
    struct ivc_peer *peer, *again;

    node_open(&a, check_file(0, SIZE), 1);
    node_open(&b, check_file(1, SIZE), 2);      /* another region */
    ivc_endpoint_address(b.endpoint, &address);
    CHECK(address.len > 0 && address.len <= IVC_ADDRESS_LEN);
    CHECK_EQ(ivc_endpoint_connect(a.endpoint, &address, &peer), IVC_E_UNREACHABLE);
    CHECK_TEXT(ivc_error_text(), "region");
    CHECK_EQ(ivc_endpoint_connect(b.endpoint, &address, &peer), 0);
    CHECK_EQ(ivc_endpoint_connect(b.endpoint, &address, &again), 0);
    CHECK(peer == again);
    /* Bytes that travelled badly: every one of them matters, and none crashes. */
    for (unsigned bit = 0; bit < address.len * 8; bit++) {
        int r;

        wrong = address;
        wrong.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        r = ivc_endpoint_connect(b.endpoint, &wrong, &peer);
        CHECK_THAT(r == 0 || r == IVC_E_UNREACHABLE || r == IVC_E_GONE || r == -EINVAL,
                   "bit %u gave %d", bit, r);
    }
    for (uint32_t len = 0; len < 300; len++) {
        wrong = address;
        wrong.len = len;
        if (len != address.len)
            CHECK_EQ(ivc_endpoint_connect(b.endpoint, &wrong, &peer), IVC_E_UNREACHABLE);
    }
    node_close(&a);
    node_close(&b);
}

/* A process that has left: its address leads to nobody, and its place's next owner is not it. */
static void test_left(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_address address;
    struct ivc_peer *peer;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    ivc_endpoint_address(b.endpoint, &address);
    node_close(&b);
    CHECK_EQ(ivc_endpoint_connect(a.endpoint, &address, &peer), IVC_E_GONE);
    CHECK_TEXT(ivc_error_text(), "peer", "has left the region");
    node_open(&b, path, 3);     /* the same slot, if it is free already */
    CHECK_EQ(ivc_endpoint_connect(a.endpoint, &address, &peer), IVC_E_GONE);
    node_close(&a);
    node_close(&b);
}

/* No room for the line on which we would answer one who has sent to us: it is heard once there is. */
static void test_no_room_for_line(void)
{
    const char *path = check_file(0, 128 << 20);    /* link tables of eight parts */
    struct ivc_region *region;
    struct ivc_address address;
    struct ivc_share all[64];
    struct ivc_peer *peer;
    unsigned n = 0;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    region = ivc_endpoint_region(a.endpoint);
    for (uint32_t part = 1; part <= 2; part++)      /* those that are in reserve */
        CHECK_EQ(ivc_region_make_link(region, part * 64), 0);
    ivc_endpoint_address(a.endpoint, &address);
    CHECK_EQ(ivc_endpoint_connect(b.endpoint, &address, &peer), 0);
    CHECK_EQ(ivc_endpoint_send(b.endpoint, peer, 1, &(struct iovec){ "here", 4 }, 1), 0);
    for (uint64_t size = 64 << 20; size >= 4096; size /= 2)
        while (n < 64 && ivc_region_share(region, IVC_SLOT_ANY, size, &all[n]) == 0)
            n++;
    for (unsigned i = 0; i < 1000; i++)
        ivc_endpoint_progress(a.endpoint);
    CHECK(a.packets == 0 && a.arrivals == 0);
    ivc_region_unshare(region, &all[--n]);
    for (unsigned i = 0; i < 1000 && a.packets == 0; i++)
        ivc_endpoint_progress(a.endpoint);
    CHECK(a.packets == 1 && a.arrivals == 1);
    node_close(&a);
    node_close(&b);
}

/* Met us, sent, then left, then we look: what was sent is there. */
static int may_leave[2];

static int send_and_leave(void *arg)
{
    static struct node c;
    struct ivc_region *region;
    struct ivc_member member;
    struct ivc_peer *peer;

    node_open(&c, arg, 2);
    region = ivc_endpoint_region(c.endpoint);
    while (ivc_region_member(region, 0, &member) != 0
           || ivc_endpoint_connect_member(c.endpoint, &member, &peer) != 0)
        ivc_sleep_ms(1);
    for (uint64_t i = 0; i < 20; i++) {
        char go;

        if (i == 1)
            CHECK_EQ(read(may_leave[0], &go, 1), 1);
        CHECK_EQ(ivc_endpoint_send(c.endpoint, peer, 1, &(struct iovec){ &i, sizeof i }, 1), 0);
    }
    node_close(&c);
    return 0;
}

static void test_farewell(void)
{
    const char *path = check_file(0, SIZE);
    static struct node third;

    check_skip_under_thread_sanitizer();
    /* Looked at at once; while it lingers; long after it has left. */
    for (unsigned wait_ms = 0; wait_ms <= 3000; wait_ms += 1500) {
        pid_t pid;

        node_open(&a, path, 1);
        node_open(&third, path, 3);
        CHECK_EQ(pipe(may_leave), 0);
        pid = check_fork(send_and_leave, (void *)path);
        for (unsigned i = 0; i < 5000 && a.packets == 0; i++, ivc_sleep_ms(1))
            ivc_endpoint_progress(a.endpoint);
        CHECK_EQ(a.packets, 1);
        CHECK_EQ(write(may_leave[1], "", 1), 1);
        ivc_sleep_ms(300 * check_slowdown() + wait_ms);
        for (unsigned i = 0; i < 5000 && a.gones == 0; i++, ivc_sleep_ms(1))
            for (unsigned turn = 0; turn < 100; turn++)
                ivc_endpoint_progress(a.endpoint);
        CHECK_EQ(a.gones, 1);
        CHECK_THAT(a.packets == 20 || a.last_reason, "after %u ms only %u of 20 packets, and it "
                   "counts as left in order", wait_ms, a.packets);
        CHECK_THAT(a.packets == 20 || wait_ms > 0, "%u of 20 packets", a.packets);
        check_join(pid);
        node_close(&third);
        node_close(&a);
        CHECK_EQ(truncate(path, 0), 0);
        CHECK_EQ(truncate(path, SIZE), 0);
    }
}

static struct ivc_peer *next_to;

static void send_next(void)
{
    struct iovec iov = { payload, 10 };

    if (a.packets < 10000)
        CHECK_EQ(ivc_endpoint_send(b.endpoint, next_to, 3, &iov, 1), 0);
}

/* Reading a ring to its end ends, though for each packet that is taken another one is there. */
static void test_drain(void)
{
    const char *path = check_file(0, SIZE);

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    next_to = connect_to(&b, &a);
    send_next();
    while (a.packets == 0)
        ivc_endpoint_progress(a.endpoint);
    a.also = send_next;
    send_next();
    CHECK(ivc_poll_drain(a.endpoint, a.last_peer));
    CHECK_THAT(a.packets >= 2 && a.packets <= 2 * a.last_peer->rx.n_slots + IVC_TURN_BUDGET, "%u", a.packets);
    a.also = NULL;
    node_close(&a);
    node_close(&b);
}

/* ---- the network path */

static int remote_open(struct node *node, const char *provider)
{
    struct ivc_endpoint_options options = {
        .region = "none", .magic_id = 5, .client_id = (uint32_t)getpid(), .network = true,
        .network_provider = provider, .on_packet = on_packet, .on_gone = on_gone,
        .on_arrival = on_arrival, .arg = node,
    };

    setenv("FI_TCP_IFACE", "lo", 0);
    memset(node, 0, sizeof *node);
    return ivc_endpoint_open(&options, &node->endpoint);
}

static void remote_must_open(struct node *node)
{
    int r = remote_open(node, NULL);

    if (r == -ENODEV)
        check_skip("%s", ivc_error_text());
    CHECK_THAT(r == 0, "%s", ivc_error_text());
}

/* Until as many packets are there, or a peer is gone. */
static void remote_wait(struct node *node, unsigned packets, unsigned seconds)
{
    for (uint64_t end = ivc_now_ms() + 1000u * seconds; ivc_now_ms() < end; ivc_sleep_ms(1)) {
        ivc_endpoint_progress(node->endpoint);
        if (node->packets >= packets || node->gones > 0)
            return;
    }
}

/* Sends one packet to whoever opened `a` before the fork, and computes for ever. */
static struct ivc_address remote_address;

static int send_once_and_sit(void *arg)
{
    static struct node c;
    struct iovec iov = { payload, 100 };
    struct ivc_peer *peer;

    (void)arg;
    remote_must_open(&c);
    CHECK_EQ(ivc_endpoint_connect(c.endpoint, &remote_address, &peer), 0);
    while (ivc_endpoint_send(c.endpoint, peer, 1, &iov, 1) == IVC_E_FULL)
        ivc_endpoint_progress(c.endpoint);
    for (unsigned i = 0; i < 100; i++, ivc_sleep_ms(1))
        ivc_endpoint_progress(c.endpoint);
    for (;;)
        pause();
}

/* We only receive: a sender that computes, or is stopped, is waited for; one that dies is told. */
static void test_remote_death(void)
{
    pid_t pid;

    check_skip_under_thread_sanitizer();
    setenv("IVC_NETWORK_TIMEOUT", "2", 1);
    remote_must_open(&a);
    ivc_endpoint_address(a.endpoint, &remote_address);
    pid = check_fork(send_once_and_sit, NULL);
    remote_wait(&a, 1, 20);
    CHECK_EQ(a.packets, 1);
    remote_wait(&a, 2, 5);
    kill(pid, SIGSTOP);
    remote_wait(&a, 2, 7);
    CHECK_THAT(a.gones == 0, "%s", a.last_reason);
    check_kill(pid);
    remote_wait(&a, 2, 15);
    CHECK_EQ(a.gones, 1);
    CHECK(a.last_reason);
    node_close(&a);
}

/* In one process: packets both ways, then a farewell. */
static void test_remote_farewell(void)
{
    struct iovec iov = { payload, 1000 };
    struct ivc_peer *peer;

    remote_must_open(&a);
    remote_must_open(&b);
    peer = connect_to(&a, &b);
    CHECK_EQ(ivc_peer_path(peer), IVC_PATH_NETWORK);
    for (unsigned sent = 0; b.packets < 50;) {
        if (sent < 50)
            sent += ivc_endpoint_send(a.endpoint, peer, 3, &iov, 1) == 0;
        ivc_endpoint_progress(a.endpoint);
        ivc_endpoint_progress(b.endpoint);
    }
    CHECK_EQ(b.arrivals, 1);
    node_close(&a);
    remote_wait(&b, 51, 10);
    CHECK_EQ(b.packets, 50);
    CHECK_EQ(b.gones, 1);
    CHECK_THAT(b.last_reason == NULL, "%s", b.last_reason);
    node_close(&b);
}

/* From a to b: the first one waits until both have met. */
static void send_first(struct ivc_peer *peer)
{
    struct iovec iov = { payload, 10 };

    while (ivc_endpoint_send(a.endpoint, peer, 3, &iov, 1) == IVC_E_FULL) {
        ivc_endpoint_progress(a.endpoint);
        ivc_endpoint_progress(b.endpoint);
    }
}

/* Whoever sends packets longer than we can take is told so, at the first one. */
static void test_remote_too_long(void)
{
    struct ivc_peer *peer;

    remote_must_open(&b);
    setenv("IVC_CHUNK_SIZE", "256K", 1);
    remote_must_open(&a);
    unsetenv("IVC_CHUNK_SIZE");
    peer = connect_to(&a, &b);
    send_first(peer);
    for (unsigned i = 0; i < 10000 && (a.gones == 0 || b.gones == 0); i++, ivc_sleep_ms(1)) {
        ivc_endpoint_progress(a.endpoint);
        ivc_endpoint_progress(b.endpoint);
    }
    CHECK(a.last_reason && b.last_reason);
    CHECK_TEXT(a.last_reason, "IVC_CHUNK_SIZE");
    CHECK_TEXT(b.last_reason, "IVC_CHUNK_SIZE");
    CHECK_EQ(b.packets, 0);
    node_close(&a);
    node_close(&b);
}

static uint64_t processor_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Waiting for a peer that says nothing costs next to nothing, also after something has come. */
static void test_remote_sleep(void)
{
    struct ivc_peer *peer;
    uint64_t end, used;

    remote_must_open(&a);
    remote_must_open(&b);
    peer = connect_to(&a, &b);
    send_first(peer);
    for (unsigned i = 0; i < 10000 && b.packets == 0; i++, ivc_sleep_ms(1)) {
        ivc_endpoint_progress(a.endpoint);
        ivc_endpoint_progress(b.endpoint);
    }
    CHECK_EQ(b.packets, 1);
    used = processor_ns();
    for (end = ivc_now_ms() + 2000; ivc_now_ms() < end;) {
        ivc_endpoint_progress(b.endpoint);
        ivc_endpoint_wait(b.endpoint, 100, false);
    }
    used = processor_ns() - used;
    CHECK_THAT(used < 1000000000u, "%u ms of processor time in 2 s", (unsigned)(used / 1000000));
    node_close(&a);
    node_close(&b);
}

/* One that speaks the protocol itself, to say what must not be believed. */
struct liar {
    struct ivc_network *network;
    struct ivc_route *route;
    unsigned packets;
    uint8_t last_kind;
};

static void liar_hears(void *arg, const void *data, size_t len)
{
    struct liar *liar = arg;

    CHECK(len >= 16);
    liar->packets++;
    liar->last_kind = ((const uint8_t *)data)[12];
}

static void liar_down(void *arg, struct ivc_route *route, const char *reason)
{
    (void)arg, (void)route, (void)reason;
}

static void liar_says(struct liar *liar, const void *bytes, size_t len)
{
    struct iovec iov = { (void *)bytes, len };

    while (ivc_network_send(liar->network, liar->route, &iov, 1) == IVC_E_FULL) {
        ivc_network_progress(liar->network);
        ivc_endpoint_progress(a.endpoint);
    }
    for (unsigned i = 0; i < 30; i++, ivc_sleep_ms(1)) {
        ivc_network_progress(liar->network);
        ivc_endpoint_progress(a.endpoint);
    }
}

static void test_remote_lies(void)
{
    /* As remote.c has them. */
    struct {
        uint64_t from;
        uint32_t number;
        uint8_t kind, tag;
        uint16_t reserved;
        struct ivc_address_fields address;
        uint64_t magic_id;
        uint32_t client_id, reserved2;
        char host[64];
    } words = { .from = 0x1234567, .kind = 2, .magic_id = 5 };
    struct liar liar = { 0 };
    struct ivc_network_options options = {
        .id = 0x1234567, .packet_max = 40000, .on_packet = liar_hears, .on_down = liar_down, .arg = &liar,
    };
    struct ivc_address_fields target;
    struct ivc_address address;

    remote_must_open(&a);
    ivc_endpoint_address(a.endpoint, &address);
    CHECK_EQ(ivc_address_read(&address, &target), 0);
    CHECK_EQ(ivc_network_open(&options, &liar.network), 0);
    CHECK_EQ(ivc_network_connect(liar.network, target.id, &target.network, NULL, &liar.route), 0);

    for (size_t len = 1; len < 20; len++)       /* too short; of nobody */
        liar_says(&liar, &words, len);
    words.address = (struct ivc_address_fields){
        .version = 4, .slot = UINT16_MAX, .id = 0x7654321,
    };
    ivc_network_name(liar.network, &words.address.network);
    liar_says(&liar, &words, sizeof words);     /* a greeting in another's name */
    words.address.id = words.from;
    words.magic_id = 6;
    liar_says(&liar, &words, sizeof words);     /* of another job */
    words.magic_id = 5;
    words.address.version = 1;
    liar_says(&liar, &words, sizeof words);     /* of another version */
    words.address.version = 4;
    words.address.network.n_ip4 = words.address.network.n_ip6 = 200;
    liar_says(&liar, &words, sizeof words);     /* an address longer than it can be */
    ivc_network_name(liar.network, &words.address.network);
    liar_says(&liar, &words, sizeof words - 1);
    CHECK_EQ(a.arrivals, 0);
    CHECK_EQ(a.packets, 0);

    memset(words.host, 'x', sizeof words.host); /* no end of text */
    liar_says(&liar, &words, sizeof words);
    CHECK_EQ(a.arrivals, 1);
    words.kind = 1;
    words.number = 1;
    liar_says(&liar, &words, 16 + 8);
    CHECK_EQ(a.packets, 1);
    words.number = 3;                           /* one is missing: the end, and both know */
    liar_says(&liar, &words, 16 + 8);
    CHECK_EQ(a.packets, 1);
    CHECK_EQ(a.gones, 1);
    CHECK(a.last_reason);
    CHECK_TEXT(a.last_reason, "lost");
    CHECK(liar.packets > 0);
    CHECK_EQ(liar.last_kind, 4);
    words.number = 2;                           /* too late */
    liar_says(&liar, &words, 16 + 8);
    CHECK_EQ(a.packets, 1);
    ivc_network_free(liar.network, 0);
    node_close(&a);
}

/* A network that is for moves only: a wrong value is known at the start, not when a guest moves. */
static void selection_for_moves(void)
{
    static const struct { const char *name, *value; int code; } cases[] = {
        { "IVC_NETWORK", "tpc", -ENODEV }, { "IVC_NETWORK", "ivc", -EINVAL },
        { "IVC_NETWORK_TIMEOUT", "soon", -EINVAL }, { "IVC_NETWORK", "none", 0 }, { "IVC_NETWORK", "", 0 },
    };
    struct ivc_endpoint_options options = {
        .region = check_file(1, SIZE), .moves = true, .on_packet = on_packet, .arg = &b,
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        CHECK_EQ(ivc_endpoint_open(&options, &b.endpoint), cases[i].code);
        if (cases[i].code == 0)
            node_close(&b);
        else
            CHECK_TEXT(ivc_error_text(), cases[i].name, cases[i].value);
        unsetenv(cases[i].name);
    }
}

/* Errors of selection: each one clear line. */
static void test_remote_selection(void)
{
    static const struct { const char *name; int code; const char *words[2]; } cases[] = {
        { "ivc", -EINVAL, { "IVC_NETWORK=ivc", "itself" } },
        { "none", -ENODEV, { "IVC_REGION", "IVC_NETWORK=none" } },
        { "nonsense", -ENODEV, { "IVC_NETWORK=nonsense", "not there" } },
    };
    struct ivc_address address;
    struct ivc_peer *peer;

    remote_must_open(&a);       /* or skip */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(remote_open(&b, cases[i].name), cases[i].code);
        CHECK_TEXT(ivc_error_text(), "neither", cases[i].words[0], cases[i].words[1]);
    }
    /* The same by the environment, in a region: only "none" is no error. */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ivc_endpoint_options options = {
            .region = check_file(0, SIZE), .network = true, .on_packet = on_packet, .arg = &b,
        };
        int r;

        setenv("IVC_NETWORK", cases[i].name, 1);
        r = ivc_endpoint_open(&options, &b.endpoint);
        if (strcmp(cases[i].name, "none") != 0) {
            CHECK_EQ(r, cases[i].code);
            CHECK_TEXT(ivc_error_text(), cases[i].words[0], cases[i].words[1]);
            continue;
        }
        CHECK_EQ(r, 0);
        ivc_endpoint_address(a.endpoint, &address);
        CHECK_EQ(ivc_endpoint_connect(b.endpoint, &address, &peer), IVC_E_UNREACHABLE);
        CHECK_TEXT(ivc_error_text(), "no network to it", "IVC_NETWORK=none");
        node_close(&b);
    }
    unsetenv("IVC_NETWORK");
    setenv("IVC_NETWORK_TIMEOUT", "soon", 1);
    CHECK_EQ(remote_open(&b, NULL), -EINVAL);
    CHECK_TEXT(ivc_error_text(), "IVC_NETWORK_TIMEOUT");
    unsetenv("IVC_NETWORK_TIMEOUT");
    selection_for_moves();
    /* Two sides that have chosen differently. */
    if (remote_open(&b, "sockets") == 0) {
        ivc_endpoint_address(a.endpoint, &address);
        CHECK_EQ(ivc_endpoint_connect(b.endpoint, &address, &peer), IVC_E_UNREACHABLE);
        CHECK_TEXT(ivc_error_text(), "another provider", "sockets", "IVC_NETWORK");
        node_close(&b);
    }
    /* Of another version of ours. */
    ivc_endpoint_address(a.endpoint, &address);
    address.bytes[0] ^= 1;
    CHECK_EQ(ivc_endpoint_connect(a.endpoint, &address, &peer), IVC_E_UNREACHABLE);
    CHECK_TEXT(ivc_error_text(), "another version");
    node_close(&a);
}

/* The answer of one and the next packet of the other: each can come only when the other runs. */
enum { SHARED_ROUNDS = 20000 };

static void await_packet(struct node *node, unsigned number)
{
    while (node->packets < number)
        ivc_endpoint_progress(node->endpoint);
}

static void send_number(struct node *node, struct ivc_peer *peer, unsigned number)
{
    struct iovec iov = { &number, sizeof number };

    CHECK_EQ(ivc_endpoint_send(node->endpoint, peer, 1, &iov, 1), 0);
}

static int run_beside(void *path)
{
    struct ivc_peer *peer;

    node_open(&b, path, 2);
    peer = connect_to(&b, &a);
    for (unsigned i = 1; i <= SHARED_ROUNDS; i++) {
        send_number(&b, peer, i);
        await_packet(&b, i);
    }
    node_close(&b);
    return 0;
}

/* Who waits gives way: at a few milliseconds for each of these packets it would take minutes. */
static void test_shared_processor(void)
{
    const char *path = check_file(0, SIZE);
    cpu_set_t all, one;
    pid_t pid;

    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    node_open(&a, path, 1);
    pid = check_fork(run_beside, (void *)path);
    for (unsigned i = 1; i <= SHARED_ROUNDS; i++) {
        await_packet(&a, i);
        send_number(&a, a.last_peer, i);
    }
    check_join(pid);
    node_close(&a);
}

static const struct check_case cases[] = {
    { "no room for a line", test_no_room_for_line, 0 },
    { "packets of every length", test_packets, 0 },
    { "short packets", test_short_packets, 0 },
    { "... and packets by a chunk", test_long_packets, 0 },
    { "rings as long as all pairs can have", test_ring_sizes, 0 },
    { "no piece of memory for a long ring", test_ring_in_pieces, 0 },
    { "buffers that are kept for a while", test_spare_buffers, 0 },
    { "chunks for others", test_chunks_for_others, 0 },
    { "by a chunk after a wait", test_after_a_wait, 0 },
    { "long packets under way", test_long_under_way, 0 },
    { "by a chunk or through the ring", test_chunk_or_ring, 0 },
    { "more ranks than processors", test_crowded, 0 },
    { "many peers", test_many_peers, 0 },
    { "addresses", test_addresses, 0 },
    { "an address of one that left", test_left, 0 },
    { "packets of one that left", test_farewell, 0 },
    { "a ring that is filled while it is emptied", test_drain, 0 },
    { "two that share a processor", test_shared_processor, 0 },
    { "network: packets and a farewell", test_remote_farewell, 0 },
    { "network: a sender that stops, and one that dies", test_remote_death, 0 },
    { "network: packets longer than a peer takes", test_remote_too_long, 0 },
    { "network: a wait is a sleep", test_remote_sleep, 0 },
    { "network: packets that lie", test_remote_lies, 0 },
    { "network: no provider, another one", test_remote_selection, 0 },
};
CHECK_MAIN(cases)
