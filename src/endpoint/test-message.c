/*
 * Tests of endpoints and messages: several endpoints of one process, moved in turn.  Every length
 * around the edges of packets and trains, order, many peers, peers that go, addresses that lead
 * nowhere.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/message.h"
#include "region/region.h"

enum { SIZE = 16 << 20, MAX = 1 << 20 };

struct node {
    struct ivc_endpoint *endpoint;
    struct ivc_mailbox *mailbox;
    uint32_t client_id;
    char *landing;
    size_t capacity;
    bool no_buffer;

    unsigned starts, dones, sents, packets, gones, arrivals;
    size_t last_len;
    char last_header[IVC_MESSAGE_HEADER_MAX];
    uint32_t last_header_len;
    int last_status, last_sent_status;
    const char *last_reason;
    uint64_t last_number;
    struct ivc_packet last_packet;
    char packet_bytes[1 << 17];
};

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct node *node = arg;

    if (packet->tag >= IVC_TAG_MESSAGE) {
        ivc_mailbox_packet(node->mailbox, peer, packet);
        return;
    }
    node->packets++;
    node->last_packet = *packet;
    memcpy(node->packet_bytes, packet->head, packet->head_len);
    if (packet->body_len)
        memcpy(node->packet_bytes + packet->head_len, packet->body, packet->body_len);
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct node *node = arg;

    node->gones++;
    node->last_reason = reason;
    ivc_mailbox_gone(node->mailbox, peer);
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)peer;
    ((struct node *)arg)->arrivals++;
}

static void on_start(void *arg, struct ivc_message *message)
{
    struct node *node = arg;

    node->starts++;
    node->last_header_len = message->header_len;
    memcpy(node->last_header, message->header, message->header_len);
    message->buffer = node->no_buffer ? NULL : node->landing;
    message->capacity = node->capacity;
}

static void on_done(void *arg, struct ivc_message *message, int status)
{
    struct node *node = arg;

    node->dones++;
    node->last_len = message->len;
    node->last_status = status;
    memcpy(&node->last_number, node->landing, sizeof node->last_number);
}

static void on_sent(void *arg, int status)
{
    struct node *node = arg;

    node->sents++;
    node->last_sent_status = status;
}

static void node_open(struct node *node, const char *path, uint32_t client_id)
{
    struct ivc_endpoint_options options = {
        .region = path, .magic_id = 5, .client_id = client_id, .on_packet = on_packet,
        .on_gone = on_gone, .on_arrival = on_arrival, .arg = node,
    };

    memset(node, 0, sizeof *node);
    node->client_id = client_id;
    node->capacity = MAX;
    node->landing = calloc(1, MAX);
    CHECK_THAT(ivc_endpoint_open(&options, &node->endpoint) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_mailbox_new(node->endpoint, on_start, on_done, node, &node->mailbox), 0);
}

static void node_close(struct node *node)
{
    ivc_mailbox_free(node->mailbox);
    ivc_endpoint_free(node->endpoint);
    free(node->landing);
}

static struct ivc_peer *connect_to(struct node *from, const struct node *to)
{
    struct ivc_address address;
    struct ivc_peer *peer = NULL;

    ivc_endpoint_address(to->endpoint, &address);
    CHECK_THAT(ivc_endpoint_connect(from->endpoint, &address, &peer) == 0, "%s", ivc_error_text());
    return peer;
}

static struct node a, b;
static char payload[MAX];

static void fill_payload(uint64_t number)
{
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (char)(number * 31 + i * 11 + (i >> 9));
}

/* Every length of a packet, by copy and by buffer. */
static void test_packets(void)
{
    static const struct { const char *ring, *segment, *chunk; } tunables[] = {
        { "24K", "64", "32K" }, { "24K", "4096", "4K" }, { "4K", "64", "8K" }, { "1M", "256", "64K" },
    };

    for (unsigned t = 0; t < sizeof tunables / sizeof *tunables; t++) {
        const char *path = check_file(0, SIZE);
        struct ivc_peer *peer;
        size_t eager_max, packet_max;

        setenv("IVC_RING_SIZE", tunables[t].ring, 1);
        setenv("IVC_SEGMENT_SIZE", tunables[t].segment, 1);
        setenv("IVC_CHUNK_SIZE", tunables[t].chunk, 1);
        node_open(&a, path, 1);
        node_open(&b, path, 2);
        peer = connect_to(&a, &b);
        eager_max = ivc_endpoint_eager_max(a.endpoint);
        packet_max = ivc_endpoint_packet_max(a.endpoint);
        CHECK(eager_max > 0 && packet_max >= 4096);
        fill_payload(t);
        for (size_t len = 0; len <= packet_max; len += len < 5000 || len > packet_max - 70 ? 1 : 61)
            for (unsigned by_buffer = 0; by_buffer < 2; by_buffer++) {
                struct iovec iov[2] = { { payload, len / 2 }, { payload + len / 2, len - len / 2 } };
                struct ivc_buffer buffer;
                int r;

                if (by_buffer) {
                    CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, len, &buffer), 0);
                    CHECK(buffer.size >= len);
                    memcpy(buffer.data, payload, len);
                    r = ivc_endpoint_send_buffer(a.endpoint, peer, 9, &buffer, len);
                } else {
                    if (len > eager_max)
                        continue;
                    r = ivc_endpoint_send(a.endpoint, peer, 9, iov, 2);
                }
                CHECK_THAT(r == 0, "%zu bytes gave %d: %s", len, r, ivc_error_text());
                b.packets = 0;
                for (unsigned i = 0; i < 300 && b.packets == 0; i++)
                    ivc_endpoint_progress(b.endpoint);
                CHECK_THAT(b.packets == 1, "%zu bytes did not arrive", len);
                CHECK_EQ(b.last_packet.tag, 9);
                CHECK_EQ((size_t)b.last_packet.head_len + b.last_packet.body_len, len);
                CHECK_THAT(memcmp(b.packet_bytes, payload, len) == 0, "%zu bytes", len);
            }
        {
            struct iovec iov = { payload, eager_max + 1 };
            struct ivc_buffer buffer;

            CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 9, &iov, 1), -EMSGSIZE);
            CHECK_EQ(ivc_endpoint_buffer_get(a.endpoint, peer, packet_max + 1, &buffer), -EMSGSIZE);
        }
        node_close(&a);
        node_close(&b);
    }
}

static void turn_until(unsigned *counter, unsigned wanted)
{
    uint64_t end = ivc_now_ms() + 5000 * check_slowdown();

    while (*counter < wanted && ivc_now_ms() < end) {
        ivc_mailbox_progress(a.mailbox);
        ivc_mailbox_progress(b.mailbox);
    }
    CHECK_EQ(*counter, wanted);
}

static void test_messages(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_peer *peer;
    size_t edges[10], eager_max, packet_max;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    peer = connect_to(&a, &b);
    eager_max = ivc_endpoint_eager_max(a.endpoint);
    packet_max = ivc_endpoint_packet_max(a.endpoint);
    memcpy(edges, ((size_t[10]){ 20, 60, eager_max, packet_max, 2 * packet_max, 3 * packet_max, 4096,
                                 MAX - 21, 200000, 500000 }), sizeof edges);
    for (unsigned e = 0; e < 10; e++)
        for (int delta = -20; delta <= 20; delta++)
            for (uint32_t header_len = 0; header_len <= IVC_MESSAGE_HEADER_MAX; header_len += 12) {
                size_t len = (size_t)((long long)edges[e] + delta);
                char header[IVC_MESSAGE_HEADER_MAX];

                if (len > 100000 && delta % 10)
                    continue;
                memset(header, 'a' + delta + 20, sizeof header);
                fill_payload(len);
                a.sents = b.starts = b.dones = 0;
                CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, header, header_len, payload, len, on_sent,
                                          &a), 0);
                turn_until(&b.dones, 1);
                turn_until(&a.sents, 1);
                CHECK_EQ(b.starts, 1);
                CHECK_EQ(b.last_status, 0);
                CHECK_EQ(b.last_len, len);
                CHECK_EQ(b.last_header_len, header_len);
                CHECK(memcmp(b.last_header, header, header_len) == 0);
                CHECK_THAT(memcmp(b.landing, payload, len) == 0, "%zu bytes", len);
            }
    CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, payload, IVC_MESSAGE_HEADER_MAX + 1, payload, 1, NULL,
                              NULL), -EINVAL);
    node_close(&a);
    node_close(&b);
}

/* Longer than the place for it, and no place at all: the rest is dropped, the next one is whole. */
static void test_truncated(void)
{
    const char *path = check_file(0, SIZE);
    static const size_t lens[] = { 10, 100, 5000, 100000 };
    struct ivc_peer *peer;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    peer = connect_to(&a, &b);
    fill_payload(3);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned how = 0; how < 4; how++) {
            size_t capacity = how == 0 ? 0 : how == 1 ? lens[i] / 2 : lens[i] - 1;

            memset(b.landing, 0x77, MAX);
            b.capacity = capacity;
            b.no_buffer = how == 3;
            b.dones = 0;
            CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, "", 0, payload, lens[i], NULL, NULL), 0);
            turn_until(&b.dones, 1);
            CHECK_EQ(b.last_len, lens[i]);
            if (how == 3)
                capacity = 0;
            CHECK(memcmp(b.landing, payload, capacity) == 0);
            for (size_t at = capacity; at < lens[i] + 100; at++)
                CHECK_THAT(b.landing[at] == 0x77, "byte %zu of %zu", at, capacity);
        }
    node_close(&a);
    node_close(&b);
}

/* Many messages at once, short and long: in the order of sending. */
static uint64_t numbers_due;

static void on_done_in_order(void *arg, struct ivc_message *message, int status)
{
    struct node *node = arg;
    uint64_t number;

    memcpy(&number, node->landing, sizeof number);
    CHECK_EQ(status, 0);
    CHECK_THAT(number == numbers_due, "%llu instead of %llu", (unsigned long long)number,
               (unsigned long long)numbers_due);
    CHECK(memcmp(node->landing + 8, payload + 8, message->len - 8) == 0);
    numbers_due++;
    node->dones++;
}

static void test_order(void)
{
    enum { N = 300 };
    static char *copies[N];
    const char *path = check_file(0, SIZE);
    struct ivc_peer *peer;
    uint64_t state = 5;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    ivc_mailbox_free(b.mailbox);
    CHECK_EQ(ivc_mailbox_new(b.endpoint, on_start, on_done_in_order, &b, &b.mailbox), 0);
    peer = connect_to(&a, &b);
    fill_payload(1);
    for (uint64_t i = 0; i < N; i++) {
        size_t len = 8 + (i % 3 ? check_random(&state) % 200 : check_random(&state) % 150000);

        copies[i] = malloc(len);
        memcpy(copies[i], payload, len);
        memcpy(copies[i], &i, sizeof i);
        CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, "", 0, copies[i], len, on_sent, &a), 0);
    }
    turn_until(&b.dones, N);
    turn_until(&a.sents, N);
    for (unsigned i = 0; i < N; i++)
        free(copies[i]);
    node_close(&a);
    node_close(&b);
}

/* on_sent starts the next message, to two peers in turn: the natural way to keep a pipe full. */
static struct ivc_peer *chain_peers[2];
static unsigned chain_left;

static void send_next(void *arg, int status)
{
    CHECK_EQ(status, 0);
    (void)arg;
    a.sents++;
    if (chain_left == 0)
        return;
    chain_left--;
    CHECK_EQ(ivc_mailbox_send(a.mailbox, chain_peers[chain_left % 2], "", 0, payload,
                              chain_left % 3 ? 100000 : 10, send_next, NULL), 0);
}

static void test_send_from_sent(void)
{
    const char *path = check_file(0, SIZE);
    static struct node c;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    node_open(&c, path, 3);
    chain_peers[0] = connect_to(&a, &b);
    chain_peers[1] = connect_to(&a, &c);
    chain_left = 400;
    for (unsigned i = 0; i < 8; i++)
        CHECK_EQ(ivc_mailbox_send(a.mailbox, chain_peers[i % 2], "", 0, payload, 50000 + i,
                                  send_next, NULL), 0);
    for (uint64_t end = ivc_now_ms() + 20000; b.dones + c.dones < 408 && ivc_now_ms() < end;) {
        ivc_mailbox_progress(c.mailbox);
        ivc_mailbox_progress(a.mailbox);
        ivc_mailbox_progress(b.mailbox);
    }
    CHECK_EQ(b.dones + c.dones, 408);
    CHECK_EQ(a.sents, 408);
    node_close(&a);
    node_close(&b);
    node_close(&c);
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

/* Messages to ourselves. */
static void test_loop(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_peer *self;

    node_open(&a, path, 1);
    memset(&b, 0, sizeof b);
    self = connect_to(&a, &a);
    for (size_t len = 0; len < MAX; len = len * 3 + 1) {
        fill_payload(len);
        a.dones = a.sents = 0;
        CHECK_EQ(ivc_mailbox_send(a.mailbox, self, "h", 1, payload, len, on_sent, &a), 0);
        for (unsigned i = 0; i < 100000 && a.dones == 0; i++)
            ivc_mailbox_progress(a.mailbox);
        CHECK_EQ(a.dones, 1);
        CHECK_THAT(memcmp(a.landing, payload, len) == 0, "%zu bytes", len);
    }
    node_close(&a);
}

static void test_addresses(void)
{
    struct ivc_address address, wrong;
    struct ivc_peer *peer, *again;

    node_open(&a, check_file(0, SIZE), 1);
    node_open(&b, check_file(1, SIZE), 2);      /* another region */
    ivc_endpoint_address(b.endpoint, &address);
    CHECK(address.len > 0 && address.len <= IVC_ADDRESS_MAX);
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
    CHECK_TEXT(ivc_error_text(), "2", "left");
    node_open(&b, path, 3);     /* the same slot, if it is free already */
    CHECK_EQ(ivc_endpoint_connect(a.endpoint, &address, &peer), IVC_E_GONE);
    node_close(&a);
    node_close(&b);
}

/* A partner that dies in the middle of a long message, either way. */
static int start_and_hang(void *arg)
{
    node_open(&b, arg, 2);
    memset(&a, 0, sizeof a);
    fill_payload(1);
    for (;;) {
        struct ivc_region *region = ivc_endpoint_region(b.endpoint);
        struct ivc_member member;
        struct ivc_peer *peer;

        if (ivc_region_member(region, 0, &member) == 0
            && ivc_endpoint_connect_member(b.endpoint, &member, &peer) == 0)
            break;
        ivc_sleep_ms(1);
    }
    {
        struct ivc_region *region = ivc_endpoint_region(b.endpoint);
        struct ivc_member member;
        struct ivc_peer *peer;
        struct prefix { uint64_t len; uint32_t header_len, reserved; } prefix = { 500000, 0, 0 };
        struct iovec iov[2] = { { &prefix, sizeof prefix }, { payload, 100 } };

        CHECK_EQ(ivc_region_member(region, 0, &member), 0);
        CHECK_EQ(ivc_endpoint_connect_member(b.endpoint, &member, &peer), 0);
        /* The beginning of a message of 500000 bytes, and never the rest. */
        CHECK_EQ(ivc_endpoint_send(b.endpoint, peer, IVC_TAG_MESSAGE_FIRST, iov, 2), 0);
    }
    pause();
    return 0;
}

static char long_payload[8 << 20];

static void gone_case(unsigned look_away_ms)
{
    const char *path = check_file(0, SIZE);
    struct ivc_member member;
    struct ivc_peer *peer;
    static struct node third;
    pid_t pid;

    check_skip_under_thread_sanitizer();
    node_open(&a, path, 1);
    pid = check_fork(start_and_hang, (void *)path);
    for (unsigned i = 0; i < 2000 && a.starts == 0; i++, ivc_sleep_ms(2))
        ivc_mailbox_progress(a.mailbox);
    CHECK_EQ(a.starts, 1);
    CHECK_EQ(ivc_region_member(ivc_endpoint_region(a.endpoint), 1, &member), 0);
    CHECK_EQ(ivc_endpoint_connect_member(a.endpoint, &member, &peer), 0);
    /* More than the buffers hold, so that it cannot have left us whole. */
    CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, "", 0, long_payload, sizeof long_payload, on_sent, &a),
             0);
    /* Others are there as well, whose helper threads clean up. */
    node_open(&third, path, 3);
    check_kill(pid);
    ivc_sleep_ms(look_away_ms);
    for (unsigned i = 0; i < 5000 && a.gones == 0; i++, ivc_sleep_ms(1))
        for (unsigned turn = 0; turn < 100; turn++)
            ivc_mailbox_progress(a.mailbox);
    CHECK_EQ(a.gones, 1);
    CHECK_THAT(a.last_reason != NULL, "a killed process counts as one that left in order");
    CHECK_EQ(a.dones, 1);
    CHECK_EQ(a.last_status, IVC_E_GONE);
    ivc_mailbox_progress(a.mailbox);
    CHECK_EQ(a.sents, 1);
    CHECK_EQ(a.last_sent_status, IVC_E_GONE);
    CHECK_EQ(ivc_endpoint_send(a.endpoint, peer, 1, &(struct iovec){ payload, 1 }, 1), IVC_E_GONE);
    node_close(&third);
    node_close(&a);
}

static void test_died(void)
{
    gone_case(0);
}

/* We compute for a while and look later: that it died must not be forgotten meanwhile, and its memory
 * must not be read when it has another owner. */
static void test_died_long_ago(void)
{
    gone_case(3000 * check_slowdown());
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

/* Hardly any memory: the connection is made with the smallest ring, or declined when it is made. */
static void test_scarce(void)
{
    const char *path = check_file(0, 1 << 20);
    struct ivc_share share;
    struct ivc_peer *peer;
    struct ivc_address address;
    int r;

    node_open(&a, path, 1);
    node_open(&b, path, 2);
    while (ivc_region_share(ivc_endpoint_region(b.endpoint), IVC_SLOT_ANY, 8192, &share) == 0)
        ;
    ivc_endpoint_address(b.endpoint, &address);
    r = ivc_endpoint_connect(a.endpoint, &address, &peer);
    if (r == 0) {
        for (size_t len = 0; len < MAX; len = len * 2 + 1) {
            fill_payload(len);
            b.dones = 0;
            CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, "", 0, payload, len, on_sent, &a), 0);
            turn_until(&b.dones, 1);
            CHECK(memcmp(b.landing, payload, len) == 0);
        }
    } else {
        CHECK_EQ(r, IVC_E_NOSPACE);
    }
    while (ivc_region_share(ivc_endpoint_region(b.endpoint), IVC_SLOT_ANY, 4096, &share) == 0)
        ;
    {
        static struct node c;
        struct ivc_endpoint_options options = { .region = path, .magic_id = 5, .client_id = 3,
                                                .on_packet = on_packet, .arg = &c };

        CHECK_EQ(ivc_endpoint_open(&options, &c.endpoint), -ENOSPC);
        CHECK_TEXT(ivc_error_text(), path, "full", "larger region");
    }
    node_close(&a);
    node_close(&b);
}

static const struct check_case cases[] = {
    { "packets of every length", test_packets, 0 },
    { "messages around every edge", test_messages, 0 },
    { "messages longer than their place", test_truncated, 0 },
    { "order of messages", test_order, 0 },
    { "sending from on_sent", test_send_from_sent, 0 },
    { "many peers", test_many_peers, 0 },
    { "messages to ourselves", test_loop, 0 },
    { "addresses", test_addresses, 0 },
    { "an address of one that left", test_left, 0 },
    { "a partner dies half way", test_died, 0 },
    { "a partner died while we did not look", test_died_long_ago, 0 },
    { "packets of one that left", test_farewell, 0 },
    { "hardly any memory", test_scarce, 0 },
};
CHECK_MAIN(cases)
