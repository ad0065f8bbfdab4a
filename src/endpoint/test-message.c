/*
 * Tests of messages: several mailboxes of one process, moved in turn.  Every length around the
 * limits between the ways in which a message travels, memory in pieces, messages longer than their
 * place or without one, offers answered in any order, what callbacks may do, peers that go, packets
 * that no honest peer sends.
 *
 * A message carries its number and its sender in its header, and bytes that follow from both; every
 * one that arrives is checked, and so is that messages of a peer start in the order of sending.
 *
 * Pulls run over a path of the test's own (the linker puts it in place of the endpoint's calls):
 * between two mailboxes of one process a pull is a copy, and the test says when it fails.
 */
#include "check.h"
#include "leaks.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/internal.h"
#include "endpoint/message-internal.h"
#include "region/region.h"

enum {
    REGION_SIZE = 32 << 20,
    NODES = 26,
    HEADER_MIN = 8,
    GUARD = 64,         /* bytes behind each piece of memory that nobody may touch */
    GUARD_BYTE = 0x77,
    LATER_MAX = 64,
};

/* ---- nodes */

/* A message that arrives: memory in pieces with guards between them. */
struct incoming {
    uint32_t number, from;
    size_t len, capacity;
    unsigned n_iov;
    struct iovec iov[IVC_MESSAGE_IOV_MAX];
    struct ivc_arrival *offer;
};

struct node {
    struct ivc_endpoint *endpoint;
    struct ivc_mailbox *mailbox;
    uint32_t client_id;

    /* How it takes messages. */
    size_t capacity;            /* at most so much of each */
    unsigned pieces;            /* of memory; 0: dropped */
    bool later;                 /* offers wait in `waiting` */
    bool refuse_nonsense;       /* headers are not ours: drop without checks ... */
    struct ivc_peer *liar;      /* ... those of this one */
    void (*at_done)(struct node *node, struct ivc_peer *peer);

    unsigned wholes;                /* taken by on_whole() */
    unsigned starts, dones, honest_dones, gone_dones, sents, gone_sents, no_space_sents, gones;
    uint32_t next_number[NODES];    /* to start, by sender */
    uint32_t sending[NODES];        /* numbers given, by receiver */
    uint32_t last_done;
    struct incoming *waiting[LATER_MAX];
    unsigned n_waiting;
    const char *last_reason;        /* in `reason`, or NULL */
    char reason[256];
    struct ivc_link leaving;        /* messages whose on_sent was not called yet */
};

static struct node nodes[NODES];
#define a (nodes[1])
#define b (nodes[2])
#define c (nodes[3])

static uint8_t pattern(uint32_t from, uint32_t number, size_t i)
{
    return (uint8_t)(from * 59 + number * 31 + i * 11 + (i >> 8) * 7);
}

/* Memory for a message: `pieces` of uneven length. */
static void lay_out(struct incoming *in, unsigned pieces)
{
    size_t left = in->capacity;

    in->n_iov = pieces;
    for (unsigned i = 0; i < pieces; i++) {
        size_t n = i + 1 == pieces ? left : IVC_MIN(left, left * (i + 1) / (2 * pieces) + i % 2);

        in->iov[i].iov_base = malloc(n + GUARD);
        in->iov[i].iov_len = n;
        memset(in->iov[i].iov_base, GUARD_BYTE, n + GUARD);
        left -= n;
    }
}

/* Every byte that there was room for is right, and none behind it was written. */
static void verify(const struct incoming *in)
{
    size_t at = 0, end = IVC_MIN(in->len, in->capacity);

    for (unsigned i = 0; i < in->n_iov; i++) {
        const uint8_t *bytes = in->iov[i].iov_base;

        for (size_t k = 0; k < in->iov[i].iov_len + GUARD; k++) {
            bool is_ours = k < in->iov[i].iov_len && at < end;
            uint8_t wanted = is_ours ? pattern(in->from, in->number, at) : GUARD_BYTE;

            CHECK_THAT(bytes[k] == wanted, "message %u of %u, piece %u, byte %zu", in->number,
                       in->from, i, k);
            at += is_ours;
        }
    }
    CHECK(in->n_iov == 0 || at == end);
}

static void free_incoming(struct incoming *in)
{
    for (unsigned i = 0; i < in->n_iov; i++)
        free(in->iov[i].iov_base);
    free(in);
}

static void on_start(void *arg, struct ivc_message *message)
{
    struct node *node = arg;
    const uint8_t *header = message->header;
    struct incoming *in;

    node->starts++;
    if (node->refuse_nonsense || message->peer == node->liar) {
        message->later = message->offer && node->later;
        return;
    }
    in = calloc(1, sizeof *in);
    CHECK(message->header_len >= HEADER_MIN && header[0] == message->header_len);
    in->from = header[1];
    memcpy(&in->number, header + 2, sizeof in->number);
    for (uint32_t i = HEADER_MIN; i < message->header_len; i++)
        CHECK_EQ(header[i], (uint8_t)(header[0] + i));
    CHECK_THAT(in->number == node->next_number[in->from], "message %u of %u instead of %u",
               in->number, in->from, node->next_number[in->from]);
    node->next_number[in->from]++;
    in->len = message->len;
    in->capacity = IVC_MIN(node->capacity, message->len + 100);
    in->offer = message->offer;
    message->arg = in;
    lay_out(in, node->pieces);
    if (in->offer && node->later) {
        CHECK(node->n_waiting < LATER_MAX);
        node->waiting[node->n_waiting++] = in;
        message->later = true;
        return;
    }
    memcpy(message->iov, in->iov, in->n_iov * sizeof *in->iov);
    message->n_iov = in->n_iov;
}

static bool in_accept;

static void on_done(void *arg, struct ivc_message *message, int status)
{
    struct node *node = arg;
    struct incoming *in = message->arg;

    CHECK(!in_accept);
    CHECK(status == 0 || status == IVC_E_GONE);
    node->dones++;
    node->gone_dones += status == IVC_E_GONE;
    if (!in)
        return;
    node->honest_dones++;
    CHECK_EQ(message->len, in->len);
    node->last_done = in->number;
    if (status == 0)
        verify(in);
    free_incoming(in);
    if (node->at_done)
        node->at_done(node, message->peer);
}

/* Takes every other message. */
static bool on_whole(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct node *node = arg;
    const uint8_t *header = packet->head;
    size_t of_head = packet->head_len - header[0];
    uint32_t from = header[1], number;

    (void)peer;
    CHECK(packet->head_len >= HEADER_MIN && header[0] >= HEADER_MIN && header[0] <= packet->head_len);
    memcpy(&number, header + 2, sizeof number);
    if (number % 2)
        return false;
    CHECK_EQ(number, node->next_number[from]);
    for (size_t i = 0; i < of_head + packet->body_len; i++)
        CHECK_EQ(i < of_head ? header[header[0] + i] : ((const uint8_t *)packet->body)[i - of_head],
                 pattern(from, number, i));
    node->next_number[from]++;
    node->wholes++;
    node->starts++;
    node->dones++;
    return true;
}

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct node *node = arg;

    CHECK(ivc_mailbox_is_tag(packet->tag));
    ivc_mailbox_packet(node->mailbox, peer, packet);
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct node *node = arg;

    node->gones++;
    if (reason)
        snprintf(node->reason, sizeof node->reason, "%s", reason);
    node->last_reason = reason ? node->reason : NULL;
    ivc_mailbox_gone(node->mailbox, peer);
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

static void node_open(struct node *node, const char *path)
{
    uint32_t client_id = (uint32_t)(node - nodes);
    struct ivc_endpoint_options options = {
        .region = path, .magic_id = 5, .client_id = client_id, .on_packet = on_packet,
        .on_gone = on_gone, .on_arrival = on_arrival, .arg = node,
        .network = strcmp(path, "none") == 0,
    };

    memset(node, 0, sizeof *node);
    node->client_id = client_id;
    node->capacity = SIZE_MAX;
    node->pieces = 1;
    ivc_list_init(&node->leaving);
    CHECK_THAT(ivc_endpoint_open(&options, &node->endpoint) == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_mailbox_new(node->endpoint, on_start, on_done, node, &node->mailbox), 0);
}

/* A message that leaves. */
struct leaving {
    struct ivc_link link;
    struct node *from;
    unsigned n_iov;
    struct iovec iov[IVC_MESSAGE_IOV_MAX];
    void (*then)(struct node *from);
    bool lent;
    uint8_t *bytes;
};

/* Payloads lie in memory of the region, while it has some. */
static bool lending;
static unsigned n_read;         /* calls of ivc_endpoint_read_lent() */
enum { LENT_MAX = 4 << 20 };

static void free_leaving(struct leaving *leaving)
{
    ivc_list_remove(&leaving->link);
    if (!leaving->lent)
        free(leaving->bytes);
    else if (leaving->from->endpoint)
        CHECK_EQ(ivc_endpoint_take_back(leaving->from->endpoint, leaving->bytes), 0);
    free(leaving);
}

static void node_close(struct node *node)
{
    if (!node->endpoint)
        return;
    ivc_mailbox_free(node->mailbox);
    ivc_endpoint_free(node->endpoint);
    for (unsigned i = 0; i < node->n_waiting; i++)
        free_incoming(node->waiting[i]);
    node->endpoint = NULL;
    while (!ivc_list_is_empty(&node->leaving))
        free_leaving(IVC_MEMBER_OF(struct leaving, link, node->leaving.next));
    memset(node, 0, sizeof *node);
}

static void close_all(void)
{
    for (unsigned i = 0; i < NODES; i++)
        node_close(&nodes[i]);
}

static struct ivc_peer *connect_to(struct node *from, const struct node *to)
{
    struct ivc_address address;
    struct ivc_peer *peer = NULL;

    ivc_endpoint_address(to->endpoint, &address);
    CHECK_THAT(ivc_endpoint_connect(from->endpoint, &address, &peer) == 0, "%s", ivc_error_text());
    return peer;
}

static void on_sent(void *arg, int status)
{
    struct leaving *leaving = arg;
    struct node *from = leaving->from;
    void (*then)(struct node *) = leaving->then;

    CHECK(status == 0 || status == IVC_E_GONE || status == IVC_E_NOSPACE);
    from->sents++;
    from->no_space_sents += status == IVC_E_NOSPACE;
    from->gone_sents += status == IVC_E_GONE;
    free_leaving(leaving);
    if (then)
        then(from);
}

static struct leaving *new_leaving(struct node *from, uint32_t number, size_t len, unsigned pieces)
{
    struct leaving *leaving;
    size_t at = 0;

    CHECK(len <= REGION_SIZE && pieces <= IVC_MESSAGE_IOV_MAX);
    leaving = calloc(1, sizeof *leaving);
    CHECK(leaving != NULL);
    leaving->lent = lending && len > 0 && len <= LENT_MAX
                    && ivc_endpoint_lend(from->endpoint, len, (void **)&leaving->bytes) == 0;
    if (!leaving->lent)
        leaving->bytes = malloc(len);
    ivc_list_init(&leaving->link);
    ivc_list_move(&leaving->link, &from->leaving);
    leaving->from = from;
    leaving->n_iov = pieces;
    for (size_t i = 0; i < len; i++)
        leaving->bytes[i] = pattern(from->client_id, number, i);
    for (unsigned i = 0; i < pieces; i++) {
        size_t n = i + 1 == pieces ? len - at : (len - at) / 3;

        leaving->iov[i].iov_base = leaving->bytes + at;
        leaving->iov[i].iov_len = n;
        at += n;
    }
    return leaving;
}

static void make_header(uint8_t header[IVC_MESSAGE_HEADER_MAX], uint8_t header_len, uint32_t from,
                        uint32_t number)
{
    header[0] = header_len;
    header[1] = (uint8_t)from;
    memcpy(header + 2, &number, sizeof number);
    for (uint8_t i = HEADER_MIN; i < IVC_MESSAGE_HEADER_MAX; i++)
        header[i] = (uint8_t)(header_len + i);
}

/* By ivc_mailbox_send() or ivc_mailbox_answer(). */
static void send_by(__typeof__(ivc_mailbox_send) *send, struct node *from, struct ivc_peer *peer, uint32_t to,
                    size_t len, unsigned pieces, uint8_t header_len, void (*then)(struct node *))
{
    uint8_t header[IVC_MESSAGE_HEADER_MAX];
    uint32_t number = from->sending[to]++;
    struct leaving *leaving = new_leaving(from, number, len, pieces);

    leaving->then = then;
    make_header(header, header_len, from->client_id, number);
    CHECK_EQ(send(from->mailbox, peer, header, leaving->iov, pieces, on_sent, leaving), 0);
}

static void send_then(struct node *from, struct ivc_peer *peer, uint32_t to, size_t len,
                      unsigned pieces, uint8_t header_len, void (*then)(struct node *))
{
    send_by(ivc_mailbox_send, from, peer, to, len, pieces, header_len, then);
}

static void answer_to(struct node *from, struct ivc_peer *peer, const struct node *to, size_t len)
{
    send_by(ivc_mailbox_answer, from, peer, (uint32_t)(to - nodes), len, 1, HEADER_MIN, NULL);
}

static void send_to(struct node *from, struct ivc_peer *peer, const struct node *to, size_t len)
{
    send_then(from, peer, (uint32_t)(to - nodes), len, 1, HEADER_MIN, NULL);
}

static void accept_waiting(struct node *node, unsigned i, bool drop)
{
    struct incoming *in = node->waiting[i];

    node->waiting[i] = node->waiting[--node->n_waiting];
    if (drop) {
        for (unsigned k = 0; k < in->n_iov; k++)
            free(in->iov[k].iov_base);
        in->n_iov = 0;
        in->capacity = 0;
    }
    in_accept = true;
    ivc_mailbox_accept(node->mailbox, in->offer, in->iov, in->n_iov, in);
    in_accept = false;
}

static void turn(void)
{
    for (unsigned i = 0; i < NODES; i++)
        if (nodes[i].mailbox)
            ivc_mailbox_progress(nodes[i].mailbox);
}

static void turn_until(const unsigned *counter, unsigned wanted)
{
    uint64_t end = ivc_now_ms() + 10000 * check_slowdown();

    while (*counter < wanted && ivc_now_ms() < end)
        turn();
    CHECK_EQ(*counter, wanted);
}

/* Nothing more comes, and nothing is kept. */
static void expect_rest(void)
{
    for (unsigned i = 0; i < 500; i++)
        turn();
    for (unsigned i = 0; i < NODES; i++)
        CHECK_THAT(!nodes[i].mailbox || !ivc_mailbox_busy(nodes[i].mailbox), "node %u", i);
}

static struct ivc_peer *open_two(void)
{
    const char *path = check_file(0, REGION_SIZE);

    node_open(&a, path);
    node_open(&b, path);
    return connect_to(&a, &b);
}

/* ---- a path that can pull */

static struct {
    bool on;
    unsigned refuse_full;       /* so many pulls are answered with IVC_E_FULL ... */
    int refuse;                 /* ... or this */
    int end;                    /* how pulls end */
    int exposed;                /* memory exposed now */
    unsigned pulls;
    unsigned n_under_way;
    struct pull_under_way {
        ivc_endpoint_pulled_fn *fn;
        void *arg;
        const char *from;
        struct iovec iov[IVC_MESSAGE_IOV_MAX];
        unsigned n_iov;
    } under_way[64];
} path;

bool __real_ivc_endpoint_can_pull(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer);
bool __wrap_ivc_endpoint_can_pull(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer);
bool __wrap_ivc_endpoint_can_pull(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer)
{
    return path.on || __real_ivc_endpoint_can_pull(endpoint, peer);
}

int __real_ivc_endpoint_expose(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                               const void *memory, size_t len, struct ivc_exposure *ret_exposure);
int __wrap_ivc_endpoint_expose(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                               const void *memory, size_t len, struct ivc_exposure *ret_exposure);
int __wrap_ivc_endpoint_expose(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                               const void *memory, size_t len, struct ivc_exposure *ret_exposure)
{
    if (!path.on)
        return __real_ivc_endpoint_expose(endpoint, peer, memory, len, ret_exposure);
    path.exposed++;
    *ret_exposure = (struct ivc_exposure){ (uintptr_t)memory, 99, NULL };
    return 0;
}

void __real_ivc_endpoint_unexpose(struct ivc_endpoint *endpoint, struct ivc_exposure *exposure);
void __wrap_ivc_endpoint_unexpose(struct ivc_endpoint *endpoint, struct ivc_exposure *exposure);
void __wrap_ivc_endpoint_unexpose(struct ivc_endpoint *endpoint, struct ivc_exposure *exposure)
{
    if (!path.on) {
        __real_ivc_endpoint_unexpose(endpoint, exposure);
        return;
    }
    CHECK_EQ(exposure->key, 99);
    path.exposed--;
}

int __real_ivc_endpoint_pull(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                             uint64_t key, const struct iovec *iov, unsigned n_iov,
                             ivc_endpoint_pulled_fn *fn, void *arg);
int __wrap_ivc_endpoint_pull(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                             uint64_t key, const struct iovec *iov, unsigned n_iov,
                             ivc_endpoint_pulled_fn *fn, void *arg);
int __wrap_ivc_endpoint_pull(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                             uint64_t key, const struct iovec *iov, unsigned n_iov,
                             ivc_endpoint_pulled_fn *fn, void *arg)
{
    struct pull_under_way *pull = &path.under_way[path.n_under_way];

    path.pulls++;
    if (!path.on)
        return __real_ivc_endpoint_pull(endpoint, peer, where, key, iov, n_iov, fn, arg);
    CHECK_EQ(key, 99);
    if (path.refuse_full > 0) {
        path.refuse_full--;
        return IVC_E_FULL;
    }
    if (path.refuse)
        return path.refuse;
    CHECK(path.n_under_way++ < 64);
    *pull = (struct pull_under_way){ .fn = fn, .arg = arg, .n_iov = n_iov,
                                     .from = (const char *)(uintptr_t)where };
    memcpy(pull->iov, iov, n_iov * sizeof *iov);
    return 0;
}

/* Packets of this tag are answered with IVC_E_NOSPACE, so many times. */
static struct {
    uint8_t tag;
    unsigned left;
} no_space;

int __real_ivc_endpoint_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct iovec *iov, unsigned n_iov);
int __wrap_ivc_endpoint_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct iovec *iov, unsigned n_iov);
int __wrap_ivc_endpoint_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct iovec *iov, unsigned n_iov)
{
    if (no_space.left > 0 && tag == no_space.tag) {
        no_space.left--;
        return IVC_E_NOSPACE;
    }
    return __real_ivc_endpoint_send(endpoint, peer, tag, iov, n_iov);
}

/* What progress of such a path would do. */
static void end_pulls(void)
{
    while (path.n_under_way > 0) {
        struct pull_under_way pull = path.under_way[--path.n_under_way];

        for (unsigned i = 0; path.end == 0 && i < pull.n_iov; i++) {
            memcpy(pull.iov[i].iov_base, pull.from, pull.iov[i].iov_len);
            pull.from += pull.iov[i].iov_len;
        }
        pull.fn(pull.arg, path.end);
    }
}

/* ---- cases */

static size_t limits[24];

/* The lengths at which a message begins to travel another way. */
static unsigned find_limits(uint8_t header_len)
{
    size_t whole_max = ivc_mailbox_whole_max(a.mailbox, header_len);
    size_t packet_max = ivc_endpoint_packet_max(a.endpoint);
    const size_t found[] = {
        1, 1 + (header_len < 55 ? 55 - header_len : 0), 40, 40 + header_len,
        ivc_endpoint_eager_max(a.endpoint) - header_len,
        whole_max, packet_max, packet_max + whole_max, 2 * packet_max,
        ivc_mailbox_offer_size(a.mailbox), ivc_mailbox_offer_size(a.mailbox) + packet_max, 200000,
    };

    memcpy(limits, found, sizeof found);
    return sizeof found / sizeof *found;
}

static void test_limits(void)
{
    struct ivc_peer *peer = open_two();
    static const uint8_t header_lens[] = { HEADER_MIN, 33, 40, 41, IVC_MESSAGE_HEADER_MAX };
    unsigned sent = 0;

    for (unsigned h = 0; h < 5; h++) {
        unsigned n = find_limits(header_lens[h]);

        for (unsigned i = 0; i < n; i++)
            for (int delta = -1; delta <= 1; delta++) {
                size_t len = limits[i] + (size_t)delta;

                send_then(&a, peer, 2, len, 1, header_lens[h], NULL);
                turn_until(&b.dones, ++sent);
                turn_until(&a.sents, sent);
                CHECK_EQ(b.starts, sent);
            }
    }
    expect_rest();
    CHECK_EQ(b.dones, sent);
    CHECK_EQ(a.sents, sent);
    close_all();
}

static void test_long(void)
{
    struct ivc_peer *peer = open_two();

    send_to(&a, peer, &b, 10 << 20);
    turn_until(&b.dones, 1);
    turn_until(&a.sents, 1);
    expect_rest();
    close_all();
}

/* There is no memory for a ring in the middle of a message, or for an answer: it goes on when there is. */
static void test_no_space(void)
{
    enum { LONG = 1 << 20 };
    static const struct { uint8_t tag; size_t len; bool lent; } cases[] = {
        { TAG_MORE, 0, false }, { TAG_DATA, LONG, false }, { TAG_DATA_MORE, LONG, false }, { TAG_DONE, LONG, true },
    };
    struct ivc_peer *peer = open_two();

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        lending = cases[i].lent;
        no_space.tag = cases[i].tag;
        no_space.left = 3;
        send_to(&a, peer, &b, cases[i].len ? cases[i].len : ivc_mailbox_offer_size(a.mailbox));
        turn_until(&b.dones, i + 1);
        turn_until(&a.sents, i + 1);
        CHECK_THAT(no_space.left == 0, "case %u", i);
    }
    lending = false;
    for (unsigned i = 0; i < 2; i++) {
        no_space.tag = TAG_MESSAGE;
        no_space.left = i == 0 ? 5 : 1;
        (i == 0 ? answer_to : send_to)(&a, peer, &b, 1000);
        turn_until(&a.sents, sizeof cases / sizeof *cases + i + 1);
        CHECK_EQ(a.no_space_sents, i);
    }
    CHECK_EQ(b.dones, sizeof cases / sizeof *cases + 1);
    expect_rest();
    close_all();
}

static void test_pieces(void)
{
    struct ivc_peer *peer = open_two();
    static const size_t lens[] = { 0, 1, 7, 50, 400, 6000, 33000, 60000, 100000, 1 << 20 };
    unsigned sent = 0;

    for (unsigned i = 0; i < 10; i++)
        for (unsigned out = 0; out <= IVC_MESSAGE_IOV_MAX; out++)
            for (unsigned in = 1; in <= IVC_MESSAGE_IOV_MAX; in += 1 + (in > 2)) {
                if (lens[i] > 200000 && (in + out) % 5)
                    continue;
                b.pieces = in;
                send_then(&a, peer, 2, out ? lens[i] : 0, out, HEADER_MIN, NULL);
                turn_until(&b.dones, ++sent);
            }
    turn_until(&a.sents, sent);
    close_all();
}

/* Longer than the place for it, and no place at all: the rest is dropped, what follows is whole. */
static void test_truncated(void)
{
    struct ivc_peer *peer = open_two();
    static const size_t lens[] = { 10, 100, 5000, 20000, 50000, 100000, 1 << 20 };
    unsigned sent = 0;

    for (unsigned i = 0; i < 7; i++)
        for (unsigned how = 0; how < 5; how++) {
            b.capacity = how == 0 ? 0 : how == 1 ? 1 : how == 2 ? lens[i] / 2 : lens[i] - 1;
            b.pieces = how == 4 ? 0 : 1 + how;
            send_to(&a, peer, &b, lens[i]);
            turn_until(&b.dones, ++sent);
            turn_until(&a.sents, sent);
        }
    expect_rest();
    close_all();
}

static void test_refused(void)
{
    struct ivc_peer *peer = open_two();
    uint8_t header[256] = { 0 };
    struct iovec iov[IVC_MESSAGE_IOV_MAX + 1] = { 0 };

    CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, header, NULL, 0, NULL, NULL), -EINVAL);
    header[0] = IVC_MESSAGE_HEADER_MAX + 1;
    CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, header, NULL, 0, NULL, NULL), -EINVAL);
    CHECK_TEXT(ivc_error_text(), "65", "64");
    header[0] = 8;
    CHECK_EQ(ivc_mailbox_send(a.mailbox, peer, header, iov, IVC_MESSAGE_IOV_MAX + 1, NULL, NULL),
             -EINVAL);
    CHECK_TEXT(ivc_error_text(), "9 pieces", "8");
    expect_rest();
    CHECK_EQ(b.starts, 0);
    close_all();
    CHECK_EQ(setenv("IVC_OFFER_SIZE", "1G", 1), 0);
    {
        struct ivc_mailbox *mailbox;

        CHECK_EQ(ivc_mailbox_new(NULL, on_start, on_done, NULL, &mailbox), -EINVAL);
        CHECK_TEXT(ivc_error_text(), "IVC_OFFER_SIZE");
    }
}

/* try_send: until it says that it is full; then again; never past what waits. */
static void test_try_send(void)
{
    struct ivc_peer *peer = open_two();
    uint8_t header[IVC_MESSAGE_HEADER_MAX], bytes[100];
    struct iovec iov = { bytes, sizeof bytes };
    unsigned sent = 0, full = 0;

    while (sent < 5000) {       /* twice what a ring holds */
        int r;

        for (unsigned i = 0; i < sizeof bytes; i++)
            bytes[i] = pattern(1, a.sending[2], i);
        make_header(header, HEADER_MIN, 1, a.sending[2]);
        r = ivc_mailbox_try_send(a.mailbox, peer, header, &iov, 1);
        CHECK(r == 0 || r == IVC_E_FULL);
        full += r == IVC_E_FULL;
        sent += r == 0;
        a.sending[2] += r == 0;
        if (r == IVC_E_FULL)
            turn();
    }
    CHECK(full > 0);
    turn_until(&b.dones, sent);
    /* A train that waits for room stands in the way, until it is through. */
    while (!ivc_mailbox_busy(a.mailbox)) {
        send_to(&a, peer, &b, 60000);
        sent++;
    }
    make_header(header, HEADER_MIN, 1, a.sending[2]);
    CHECK_EQ(ivc_mailbox_try_send(a.mailbox, peer, header, &iov, 1), IVC_E_FULL);
    turn_until(&b.dones, sent);
    iov.iov_len = 0;
    CHECK_EQ(ivc_mailbox_try_send(a.mailbox, peer, header, &iov, 1), 0);
    a.sending[2]++;
    turn_until(&b.dones, sent + 1);
    /* Too long for a packet. */
    iov.iov_len = ivc_mailbox_whole_max(a.mailbox, HEADER_MIN) + 1;
    CHECK_EQ(ivc_mailbox_try_send(a.mailbox, peer, header, &iov, 1), IVC_E_FULL);
    close_all();
}

static size_t random_len(uint64_t *state)
{
    uint64_t kind = check_random(state) % 4, random = check_random(state);

    return kind == 0 ? random % 64 : kind == 1 ? random % 6000 : kind == 2 ? random % 70000
        : random % 400000;
}

/* All kinds mixed, both ways and to ourselves: on_start checks the order. */
static void test_order(void)
{
    enum { N = 400 };
    struct ivc_peer *there = open_two(), *back = connect_to(&b, &a), *self = connect_to(&a, &a);
    uint64_t state = 5;

    a.pieces = b.pieces = 3;
    for (unsigned i = 0; i < N; i++) {
        send_to(&a, there, &b, random_len(&state));
        send_to(&b, back, &a, random_len(&state));
        send_to(&a, self, &a, random_len(&state));
        if (i % 16 == 0)
            turn();
    }
    turn_until(&b.dones, N);
    turn_until(&a.dones, 2 * N);
    turn_until(&a.sents, 2 * N);
    turn_until(&b.sents, N);
    expect_rest();
    close_all();
}

/* Those of one packet go to a handler of their own, which takes some; the order is that of all. */
static void test_whole(void)
{
    enum { N = 400 };
    struct ivc_peer *peer = open_two();
    uint64_t state = 6;

    ivc_mailbox_set_whole(b.mailbox, on_whole);
    for (unsigned i = 0; i < N; i++) {
        send_to(&a, peer, &b, random_len(&state));
        if (i % 16 == 0)
            turn();
    }
    turn_until(&b.dones, N);
    turn_until(&a.sents, N);
    CHECK_EQ(b.next_number[1], N);
    CHECK(b.wholes > N / 8 && b.wholes < N / 2);
    expect_rest();
    close_all();
}

/* Offers that wait for their place: answered in other orders than they came, some dropped. */
static void test_later(void)
{
    enum { N = 20 };
    struct ivc_peer *peer = open_two();
    uint64_t state = 9;
    unsigned dones = 0, sents = 0;

    b.later = true;
    b.pieces = 2;
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < N; i++)
            send_to(&a, peer, &b, 70000 + check_random(&state) % 100000);
        dones += N;
        sents += N;
        send_to(&a, peer, &b, 8);       /* behind them all, and not held up */
        turn_until(&b.dones, dones - N + 1);
        dones++, sents++;
        CHECK_EQ(b.n_waiting, N);
        CHECK_EQ(a.sents, sents - N);
        while (b.n_waiting > 0) {
            unsigned i = (unsigned)(round % 3 == 0 ? b.n_waiting - 1 : round % 3 == 1 ? 0
                                    : check_random(&state) % b.n_waiting);

            accept_waiting(&b, i, check_random(&state) % 4 == 0);
        }
        turn_until(&b.dones, dones);
        turn_until(&a.sents, sents);
    }
    expect_rest();
    close_all();
}

/* Offers one, with a first packet that was filled ahead. */
static void offer_ahead(struct ivc_peer *peer, size_t len, unsigned pieces)
{
    unsigned waiting = b.n_waiting;

    send_then(&a, peer, 2, len, pieces, HEADER_MIN, NULL);
    CHECK(a.mailbox->ahead.of != NULL);
    turn_until(&b.n_waiting, waiting + 1);
    CHECK_EQ(a.endpoint->home.buffers_out, 1);
}

/* What an offer's payload begins with is in a packet before it is asked for; its receiver may want all of it, a part,
 * or nothing, and go before. */
static void test_ahead(void)
{
    struct ivc_peer *peer = open_two();
    size_t packet_max = ivc_endpoint_packet_max(a.endpoint), longer = ivc_mailbox_offer_size(a.mailbox) + 1;
    const size_t room[] = { SIZE_MAX, packet_max + 1, packet_max, packet_max - 1, 1 };
    unsigned sent = 0;

    send_to(&a, peer, &b, 8);       /* there is a ring */
    turn_until(&b.dones, ++sent);
    b.later = true;
    for (unsigned i = 0; i < 2 * sizeof room / sizeof *room; i++) {
        b.capacity = room[i / 2];
        b.pieces = 1 + i % 3;
        offer_ahead(peer, longer + i * 10000, 1 + i % IVC_MESSAGE_IOV_MAX);
        accept_waiting(&b, 0, false);
        turn_until(&b.dones, ++sent);
        turn_until(&a.sents, sent);
        CHECK(!a.mailbox->ahead.of);
        CHECK_EQ(a.endpoint->home.buffers_out, 0);
    }
    b.capacity = SIZE_MAX;
    offer_ahead(peer, longer, 1);
    accept_waiting(&b, 0, true);
    turn_until(&a.sents, ++sent);
    CHECK_EQ(a.endpoint->home.buffers_out, 0);
    expect_rest();
    offer_ahead(peer, longer, 2);
    node_close(&b);
    turn_until(&a.gones, 1);
    CHECK_EQ(a.sents, ++sent);
    CHECK_EQ(a.endpoint->home.buffers_out, 0);
    close_all();
}

/* One that nobody asks for makes room for others, in the end, and arrives nevertheless. */
static void test_ahead_given_up(void)
{
    struct ivc_peer *peer = open_two();
    size_t longer = ivc_mailbox_offer_size(a.mailbox) + 1;
    unsigned sent = 0;

    send_to(&a, peer, &b, 8);
    turn_until(&b.dones, ++sent);
    b.later = true;
    offer_ahead(peer, longer, 3);
    for (const struct ivc_outgoing *of = a.mailbox->ahead.of; a.mailbox->ahead.of == of;) {
        CHECK(sent < 200);
        send_to(&a, peer, &b, longer);
        turn_until(&b.n_waiting, 2);
        accept_waiting(&b, 1, false);
        turn_until(&b.dones, ++sent);
    }
    CHECK(sent > 10);
    accept_waiting(&b, 0, false);
    turn_until(&b.dones, ++sent);
    turn_until(&a.sents, sent);
    CHECK_EQ(a.endpoint->home.buffers_out, 0);
    offer_ahead(peer, longer, 1);   /* and with one under way nothing is left behind (AddressSanitizer looks) */
    close_all();
}

/* A short message is not held up by the long one before it. */
static void test_beside_data(void)
{
    struct ivc_peer *peer = open_two();

    for (unsigned i = 0; i < 20; i++) {
        unsigned dones = b.dones;

        send_to(&a, peer, &b, 12 << 20);
        while (ivc_mailbox_progress(b.mailbox) == 0)
            ;
        ivc_mailbox_progress(a.mailbox);        /* has the answer, sends what there is room for */
        CHECK(a.sents < 2 * i + 1);
        send_to(&a, peer, &b, 8);
        turn_until(&b.dones, dones + 1);
        CHECK_EQ(b.last_done, 2 * i + 1);
        turn_until(&b.dones, dones + 2);
        CHECK_EQ(b.last_done, 2 * i);
        turn_until(&a.sents, 2 * i + 2);
    }
    close_all();
}

static struct ivc_peer *from_a[NODES], *to_a[NODES];
static unsigned left_to_send;

static void send_next(struct node *from)
{
    uint32_t to = 2 + left_to_send % 2;
    size_t len;

    if (left_to_send == 0)
        return;
    left_to_send--;
    len = left_to_send % 3 ? left_to_send % 100 : left_to_send * 997 % 150000;
    send_then(from, from_a[to], to, len, 1, HEADER_MIN, send_next);
}

/* on_sent starts the next, to two peers in turn, far deeper than a stack would go. */
static void test_send_from_sent(void)
{
    enum { N = 20000 };
    const char *file = check_file(0, REGION_SIZE);

    for (unsigned i = 1; i <= 3; i++)
        node_open(&nodes[i], file);
    from_a[2] = connect_to(&a, &b);
    from_a[3] = connect_to(&a, &c);
    left_to_send = N;
    for (unsigned i = 0; i < 8; i++)
        send_next(&a);
    for (uint64_t end = ivc_now_ms() + 30000 * check_slowdown();
         b.dones + c.dones < N && ivc_now_ms() < end;)
        turn();
    CHECK_EQ(b.dones + c.dones, N);
    CHECK_EQ(a.sents, N);
    expect_rest();
    close_all();
}

/* on_done answers with a message of another kind, and takes offers that wait. */
static void answer(struct node *node, struct ivc_peer *peer)
{
    static const size_t lens[] = { 100000, 50000, 10, 7000 };
    uint32_t to = node == &a ? 2 : 1;

    if (node->n_waiting > 0)
        accept_waiting(node, 0, false);
    if (left_to_send == 0)
        return;
    left_to_send--;
    send_then(node, peer, to, lens[left_to_send % 4], 2, HEADER_MIN, NULL);
}

static void test_answer_from_done(void)
{
    enum { N = 2000 };
    struct ivc_peer *there = open_two();

    a.at_done = b.at_done = answer;
    left_to_send = N - 4;
    for (unsigned i = 0; i < 4; i++)
        send_to(&a, there, &b, 30000 * i);
    for (uint64_t end = ivc_now_ms() + 30000; a.dones + b.dones < N && ivc_now_ms() < end;)
        turn();
    CHECK_EQ(a.dones + b.dones, N);
    CHECK_EQ(a.sents + b.sents, N);
    expect_rest();
    close_all();
}

static void test_many_peers(void)
{
    enum { ROUNDS = 12 };
    const char *file = check_file(0, REGION_SIZE);
    uint64_t state = 3;
    unsigned sent_to_a = 0, sent_by_a = 0;

    for (unsigned i = 1; i < NODES; i++) {
        node_open(&nodes[i], file);
        if (i == 1)
            continue;
        to_a[i] = connect_to(&nodes[i], &a);
        from_a[i] = connect_to(&a, &nodes[i]);
    }
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 2; i < NODES; i++) {
            send_to(&nodes[i], to_a[i], &a, random_len(&state));
            send_to(&a, from_a[i], &nodes[i], random_len(&state));
            sent_to_a++, sent_by_a++;
        }
    turn_until(&a.dones, sent_to_a);
    turn_until(&a.sents, sent_by_a);
    for (unsigned i = 2; i < NODES; i++) {
        turn_until(&nodes[i].dones, ROUNDS);
        turn_until(&nodes[i].sents, ROUNDS);
    }
    expect_rest();
    close_all();
}

/* ---- pulls */

static void test_pulls(void)
{
    struct ivc_peer *peer = open_two();
    unsigned sent = 0;

    path.on = true;
    for (unsigned i = 0; i < 200; i++) {
        b.pieces = i % 5;
        b.capacity = i % 3 ? SIZE_MAX : 1000;
        b.later = i % 2;
        path.refuse_full = i % 4;
        path.refuse = i % 7 == 6 ? -EBADMSG : 0;        /* then it asks for it */
        path.end = i % 11 == 10 ? IVC_E_GONE : 0;       /* and then, too */
        send_then(&a, peer, 2, 66000 + i * 501, 1 + i % 2, HEADER_MIN, NULL);
        sent++;
        for (unsigned k = 0; k < 100000 && b.dones < sent; k++) {
            turn();
            if (b.n_waiting)
                accept_waiting(&b, 0, false);
            end_pulls();
        }
        CHECK_EQ(b.dones, sent);
        turn_until(&a.sents, sent);
        CHECK_EQ(path.exposed, 0);
    }
    CHECK_THAT(path.pulls > 40, "%u pulls", path.pulls);
    CHECK_EQ(b.gone_dones, 0);
    expect_rest();
    close_all();
}

/* Mailboxes that go in the middle of pulls: memory of theirs is the path's until they end. */
static void test_pull_unfinished(void)
{
    struct ivc_peer *peer = open_two();

    path.on = true;
    b.later = true;
    for (unsigned i = 0; i < 6; i++)
        send_to(&a, peer, &b, 100000);
    for (unsigned i = 0; i < 100000 && b.n_waiting < 6; i++)
        turn();
    while (b.n_waiting > 2)
        accept_waiting(&b, 0, false);
    CHECK_EQ(path.n_under_way, 4);
    ivc_mailbox_gone(b.mailbox, connect_to(&b, &a));
    CHECK_EQ(b.gone_dones, 2);      /* those that were left for later; the others at their end */
    b.n_waiting = 0;
    path.n_under_way--;             /* this one never ends before its mailbox does */
    path.end = IVC_E_GONE;
    end_pulls();
    CHECK_EQ(b.gone_dones, 5);
    ivc_mailbox_free(b.mailbox);
    path.under_way[3].fn(path.under_way[3].arg, IVC_E_GONE);
    ivc_mailbox_gone(a.mailbox, peer);
    CHECK_EQ(a.gone_sents, 6);
    CHECK_EQ(path.exposed, 0);
    ivc_mailbox_free(a.mailbox);
    ivc_endpoint_free(a.endpoint);
    ivc_endpoint_free(b.endpoint);
}

/* Two without a region, on this machine's loopback. */
static void open_on_network(void)
{
    struct ivc_endpoint_options options = {
        .region = "none", .network = true, .on_packet = on_packet, .arg = &c,
    };

    setenv("FI_TCP_IFACE", "lo", 0);
    if (ivc_endpoint_open(&options, &c.endpoint) != 0)
        check_skip("no network: %s", ivc_error_text());
    ivc_endpoint_free(c.endpoint);
    c.endpoint = NULL;
    node_open(&a, "none");
    node_open(&b, "none");
}

/* What goes over the network is counted, also what is pulled, which is in no packet. */
static void check_counts(const struct ivc_peer *there, const struct ivc_peer *back, size_t len)
{
    struct ivc_peer_stats sent, received;

    ivc_peer_stats(there, &sent);
    ivc_peer_stats(back, &received);
    CHECK_THAT(sent.network_sent_bytes >= len, "%llu of %zu", (unsigned long long)sent.network_sent_bytes, len);
    CHECK_THAT(received.network_received_bytes >= len, "%llu of %zu",
               (unsigned long long)received.network_received_bytes, len);
}

/* The same over a network. */
static void test_network(void)
{
    enum { N = 120 };
    struct ivc_peer *there, *back;
    uint64_t state = 21;

    open_on_network();
    there = connect_to(&a, &b);
    back = connect_to(&b, &a);
    CHECK_EQ(ivc_peer_path(there), IVC_PATH_NETWORK);
    for (unsigned i = 0; i < find_limits(HEADER_MIN); i++)
        for (int delta = -1; delta <= 1; delta++)
            send_to(&a, there, &b, limits[i] + (size_t)delta);
    turn_until(&b.dones, a.sending[2]);
    b.later = true;
    a.pieces = 3;
    for (unsigned i = 0; i < N; i++) {
        send_then(&a, there, 2, random_len(&state), 1 + i % 3, HEADER_MIN, NULL);
        send_to(&b, back, &a, i == 50 ? 10 << 20 : random_len(&state));
        turn();
        while (i % 10 == 9 && b.n_waiting > 0)
            accept_waiting(&b, b.n_waiting - 1, i % 20 == 9 && b.n_waiting == 1);
    }
    for (uint64_t end = ivc_now_ms() + 20000; b.dones < a.sending[2] && ivc_now_ms() < end; turn())
        while (b.n_waiting > 0)
            accept_waiting(&b, 0, false);
    CHECK_EQ(b.dones, a.sending[2]);
    turn_until(&a.dones, N);
    turn_until(&a.sents, a.sending[2]);
    turn_until(&b.sents, N);
    CHECK_EQ(a.gone_dones + b.gone_dones + a.gone_sents + b.gone_sents, 0);
    CHECK_EQ(path.pulls > 0, ivc_endpoint_can_pull(a.endpoint, there));
    check_counts(back, there, 10 << 20);
    expect_rest();
    close_all();
}

/* One that closes while the network still writes to its memory, which nobody frees but the last pull
 * (AddressSanitizer looks for what is left). */
static void test_network_unfinished(void)
{
    enum { N = 4 };
    struct incoming *coming[N];
    struct ivc_peer *there;

    open_on_network();
    there = connect_to(&a, &b);
    send_to(&a, there, &b, 8);      /* the network is opened by the first one */
    turn_until(&b.dones, 1);
    if (!ivc_endpoint_can_pull(a.endpoint, there))
        check_skip("this network cannot pull");
    b.later = true;
    for (unsigned i = 0; i < N; i++)
        send_to(&a, there, &b, 8 << 20);
    for (uint64_t end = ivc_now_ms() + 20000; b.n_waiting < N && ivc_now_ms() < end; turn())
        continue;
    CHECK_EQ(b.n_waiting, N);
    memcpy(coming, b.waiting, sizeof coming);
    while (b.n_waiting > 0)
        accept_waiting(&b, 0, false);
    CHECK(path.pulls > 0 && b.dones == 1);
    node_close(&b);
    for (unsigned i = 0; i < N; i++)
        free_incoming(coming[i]);
    close_all();
}

/* ---- payloads in lent memory */

static bool cannot_read;        /* as if one of the two had moved */

int __real_ivc_endpoint_read_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                                  uint64_t key, const struct iovec *iov, unsigned n_iov);
int __wrap_ivc_endpoint_read_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                                  uint64_t key, const struct iovec *iov, unsigned n_iov);
int __wrap_ivc_endpoint_read_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                                  uint64_t key, const struct iovec *iov, unsigned n_iov)
{
    n_read++;
    return __real_ivc_endpoint_read_lent(endpoint, peer, where, cannot_read ? key + 1 : key, iov, n_iov);
}

/* What takes several packets is offered, however short, if it can be read where it lies; and sent, if not. */
static void test_shorter_lent(void)
{
    struct ivc_peer *peer = open_two();
    size_t len = ivc_mailbox_whole_max(a.mailbox, HEADER_MIN) + 1;

    CHECK(len < ivc_mailbox_offer_size(a.mailbox));
    send_to(&a, peer, &b, len);
    turn_until(&b.dones, 1);
    CHECK_EQ(n_read, 1);
    lending = false;
    send_to(&a, peer, &b, len);
    turn_until(&b.dones, 2);
    turn_until(&a.sents, 2);
    CHECK_EQ(n_read, 1);
    lending = true;
    close_all();
}

/* Everything that offers do, and by one copy. */
static void test_lent(void)
{
    enum { LEN = 3 << 20 };
    struct ivc_peer *peer = open_two();
    struct ivc_peer_stats stats;

    lending = true;
    b.later = true;
    for (unsigned round = 1; round <= 4; round++) {
        b.pieces = round;
        cannot_read = round == 4;
        send_to(&a, peer, &b, LEN);
        turn_until(&b.starts, round);
        accept_waiting(&b, 0, false);
        turn_until(&b.dones, round);
        turn_until(&a.sents, round);
        CHECK_EQ(n_read, round);
        ivc_peer_stats(peer, &stats);
        CHECK_EQ(stats.sent_bytes < LEN, round < 4);
    }
    close_all();
    cannot_read = false;
    n_read = 0;
    test_shorter_lent();
    test_limits();
    test_truncated();
    test_order();
    test_later();
    CHECK(n_read > 500);
}

/* A place that is not in the region, or is that of another member. */
static void test_lent_nonsense(void)
{
    struct ivc_peer *there = open_two(), *back = connect_to(&b, &a);
    static uint8_t bytes[100000];
    struct iovec iov = { bytes, sizeof bytes };
    static const uint64_t wrong[] = { 0, 4096, REGION_SIZE - sizeof bytes + 1, REGION_SIZE, 1ull << 63, UINT64_MAX,
                                      UINT64_MAX - sizeof bytes + 1 };
    uint64_t where, key;
    void *memory;

    CHECK_EQ(ivc_endpoint_lend(a.endpoint, sizeof bytes, &memory), 0);
    memset(memory, 7, sizeof bytes);
    send_to(&a, there, &b, 1);
    turn_until(&b.dones, 1);
    CHECK(!ivc_endpoint_show_lent(a.endpoint, there, bytes, sizeof bytes, &where, &key));
    CHECK(!ivc_endpoint_show_lent(a.endpoint, there, memory, REGION_SIZE, &where, &key));
    CHECK(ivc_endpoint_show_lent(a.endpoint, there, memory, sizeof bytes, &where, &key));
    CHECK_EQ(ivc_endpoint_read_lent(b.endpoint, back, where, key, &iov, 1), 0);
    CHECK(bytes[0] == 7 && bytes[sizeof bytes - 1] == 7);
    memset(bytes, 0, sizeof bytes);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_EQ(ivc_endpoint_read_lent(b.endpoint, back, wrong[i], key, &iov, 1), -ESTALE);
    CHECK_EQ(ivc_endpoint_read_lent(a.endpoint, there, where, key, &iov, 1), -ESTALE);
    CHECK_EQ(bytes[0] + bytes[sizeof bytes - 1], 0);
    CHECK_EQ(ivc_endpoint_take_back(a.endpoint, memory), 0);
    close_all();
}

/* ---- peers that go */

/* Begins a train and offers a message, then does nothing more, for ever. */
static int start_and_hang(void *arg)
{
    const uint64_t train[2] = { 60000, 0 }, offer[3] = { 7, 1 << 20, 0 };
    uint8_t header[IVC_MESSAGE_HEADER_MAX];
    struct ivc_member member;
    struct ivc_peer *peer;
    struct iovec iov[2] = { { NULL, 0 }, { header, HEADER_MIN } };

    node_open(&b, arg);
    while (ivc_region_member(ivc_endpoint_region(b.endpoint), 0, &member) != 0
           || ivc_endpoint_connect_member(b.endpoint, &member, &peer) != 0)
        ivc_sleep_ms(1);
    make_header(header, HEADER_MIN, 2, 0);
    iov[0] = (struct iovec){ (void *)offer, 16 };
    CHECK_EQ(ivc_endpoint_send(b.endpoint, peer, IVC_TAG_MESSAGE + 3, iov, 2), 0);
    make_header(header, HEADER_MIN, 2, 1);
    iov[0] = (struct iovec){ (void *)train, 8 };
    CHECK_EQ(ivc_endpoint_send(b.endpoint, peer, IVC_TAG_MESSAGE + 1, iov, 2), 0);
    pause();
    return 0;
}

static void gone_case(bool later, unsigned look_away_ms)
{
    const char *file = check_file(0, REGION_SIZE);
    struct ivc_member member;
    struct ivc_peer *peer;
    unsigned sends = 0;
    pid_t pid;

    check_skip_under_thread_sanitizer();
    node_open(&a, file);
    a.later = later;
    pid = check_fork(start_and_hang, (void *)file);
    for (unsigned i = 0; i < 5000 && a.starts < 2; i++, ivc_sleep_ms(2))
        turn();
    CHECK_EQ(a.starts, 2);
    CHECK_EQ(ivc_region_member(ivc_endpoint_region(a.endpoint), 1, &member), 0);
    CHECK_EQ(ivc_endpoint_connect_member(a.endpoint, &member, &peer), 0);
    /* It takes nothing: some wait in its ring (and count as sent), some here, some for answers. */
    for (unsigned i = 0; i < 200; i++, sends++)
        send_to(&a, peer, &b, i % 3 == 0 ? 100000 : i % 3 == 1 ? 50000 : 100);
    CHECK(a.sents < sends);
    node_open(&c, file);    /* others are there as well, whose helper threads clean up */
    check_kill(pid);
    ivc_sleep_ms(look_away_ms);
    for (unsigned i = 0; i < 5000 && a.gones == 0; i++, ivc_sleep_ms(1))
        for (unsigned k = 0; k < 100; k++)
            turn();
    CHECK_EQ(a.gones, 1);
    CHECK_THAT(a.last_reason != NULL, "a killed process counts as one that left in order");
    CHECK_EQ(a.dones, 2);
    CHECK_EQ(a.gone_dones, 2);
    CHECK_EQ(a.sents, sends);
    CHECK(a.gone_sents > 0);
    a.n_waiting = 0;
    send_to(&a, peer, &b, 10);
    send_to(&a, peer, &b, 1 << 20);
    CHECK_EQ(a.sents, sends + 2);
    CHECK(!ivc_mailbox_busy(a.mailbox));
    CHECK_EQ(ivc_mailbox_try_send(a.mailbox, peer, "\1", NULL, 0), IVC_E_GONE);
    close_all();
}

static void test_died(void)
{
    gone_case(false, 0);
}

static void test_died_later(void)
{
    gone_case(true, 0);
}

/* We compute for a while and look later: that it died must not be forgotten meanwhile, and its
 * memory must not be read when it has another owner. */
static void test_died_long_ago(void)
{
    gone_case(true, 3000 * check_slowdown());
}

/* A mailbox that is freed with everything in it leaves nothing behind (AddressSanitizer looks). */
static void test_freed(void)
{
    struct ivc_peer *there = open_two(), *back = connect_to(&b, &a);

    b.later = true;
    for (unsigned i = 0; i < 200; i++) {
        send_to(&a, there, &b, i % 3 == 0 && i < 90 ? 100000 : 40000);
        if (i % 8 == 0)
            send_to(&b, back, &a, 3 << 20);
        if (i == 100)
            ivc_mailbox_progress(b.mailbox);
    }
    ivc_mailbox_progress(a.mailbox);
    CHECK(ivc_mailbox_busy(a.mailbox));
    close_all();
}

/* Hardly any memory: the connection is made with the smallest ring, or declined when it is made. */
static void test_scarce(void)
{
    const char *file = check_file(0, 1 << 20);
    struct ivc_address address;
    struct ivc_share share;
    struct ivc_peer *peer;
    unsigned sent = 0;
    int r;

    node_open(&a, file);
    node_open(&b, file);
    while (ivc_region_share(ivc_endpoint_region(b.endpoint), IVC_SLOT_ANY, 8192, &share) == 0)
        ;
    ivc_endpoint_address(b.endpoint, &address);
    r = ivc_endpoint_connect(a.endpoint, &address, &peer);
    CHECK(r == 0 || r == IVC_E_NOSPACE);
    /* Whole ones and trains: they need no answer, for which b might have no memory. */
    for (size_t len = 0; r == 0 && len < ivc_mailbox_offer_size(a.mailbox); len = len * 2 + 1) {
        send_to(&a, peer, &b, len);
        turn_until(&b.dones, ++sent);
    }
    while (ivc_region_share(ivc_endpoint_region(b.endpoint), IVC_SLOT_ANY, 4096, &share) == 0)
        ;
    {
        struct ivc_endpoint_options options = { .region = file, .magic_id = 5, .client_id = 3,
                                                .on_packet = on_packet, .arg = &c };
        struct ivc_endpoint *endpoint;

        CHECK_EQ(ivc_endpoint_open(&options, &endpoint), -ENOSPC);
        CHECK_TEXT(ivc_error_text(), file, "full", "larger region");
    }
    close_all();
}

/* Rings larger than a packet, in a region that has no room for them: packets go by chunk, and none
 * may be larger than one. */
static void test_ring_above_packet(void)
{
    const char *file = check_file(0, 1 << 20);
    struct ivc_peer *peer;
    unsigned sent = 0;

    setenv("IVC_RING_SIZE", "1M", 1);
    node_open(&a, file);
    node_open(&b, file);
    peer = connect_to(&a, &b);
    for (size_t len = 1000; len < 400000; len += 9973) {
        send_to(&a, peer, &b, len);
        turn_until(&b.dones, ++sent);
    }
    unsetenv("IVC_RING_SIZE");
    close_all();
}

/* ---- nonsense */

/* Bytes that are a packet of every kind, at times with numbers that could be right. */
static size_t make_nonsense(uint8_t *bytes, uint64_t *state)
{
    static const uint64_t likely[] = {
        0, 1, 7, 8, 40, 64, 65, 60000, 70000, 1ull << 24, (1ull << 24) + 1, 1ull << 32,
        1ull << 32 | 1, 1ull << 32 | 2, 2ull << 32, 3ull << 32 | 1, 1ull << 62, UINT64_MAX,
    };
    size_t len = check_random(state) % 3 ? check_random(state) % 120 : check_random(state) % 4000;
    unsigned n_numbers = (unsigned)(check_random(state) % 5);

    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(check_random(state) >> 40);
    for (unsigned i = 0; i < n_numbers; i++)
        memcpy(bytes + 8 * i, &likely[check_random(state) % 18], 8);
    if (check_random(state) % 2)
        bytes[8 * n_numbers] = (uint8_t)(check_random(state) % 66);
    return IVC_MAX(len, (size_t)8 * n_numbers + 1);
}

/* Any packets at all, from a peer that has messages under way with us both ways; and handed to the
 * mailbox with every split into head and body. */
static void test_nonsense(void)
{
    struct ivc_peer *there = open_two(), *back = connect_to(&b, &a);
    static uint8_t bytes[4096];
    uint64_t state = 77;

    a.refuse_nonsense = b.refuse_nonsense = true;
    for (unsigned i = 0; i < 60000; i++) {
        size_t len = make_nonsense(bytes, &state), cut = check_random(&state) % (len + 1);
        uint8_t tag = (uint8_t)(IVC_TAG_MESSAGE + check_random(&state) % 10);
        /* Of exactly their size: a byte too far is seen. */
        uint8_t *head = malloc(cut), *body = malloc(len - cut);
        struct ivc_packet packet = {
            .tag = tag, .head = head, .head_len = (uint32_t)cut, .body = body,
            .body_len = (uint32_t)(len - cut),
        };

        memcpy(head, bytes, cut);
        memcpy(body, bytes + cut, len - cut);
        a.later = check_random(&state) % 2;
        if (i % 50 == 0 && a.sents + 40 > a.sending[2]) {
            send_to(&a, there, &b, random_len(&state));
            send_to(&b, back, &a, random_len(&state));
        }
        if (i % 2)
            ivc_mailbox_packet(a.mailbox, there, &packet);
        else if (len <= ivc_endpoint_eager_max(b.endpoint))
            (void)ivc_endpoint_send(b.endpoint, back, tag, &(struct iovec){ bytes, len }, 1);
        if (i % 5 == 0)
            turn();
        free(head);
        free(body);
    }
    CHECK(a.starts > 1000);
    ivc_mailbox_gone(a.mailbox, there);
    CHECK_EQ(a.starts, a.dones);
    close_all();
}

/* Two that are honest, and one that lies to both: the two notice nothing. */
static void test_nonsense_beside(void)
{
    enum { N = 300 };
    const char *file = check_file(0, REGION_SIZE);
    static uint8_t bytes[4096];
    struct ivc_peer *there, *back, *lies[2];
    uint64_t state = 78;

    for (unsigned i = 1; i <= 3; i++)
        node_open(&nodes[i], file);
    there = connect_to(&a, &b);
    back = connect_to(&b, &a);
    for (unsigned i = 0; i < 2; i++) {
        lies[i] = connect_to(&c, &nodes[1 + i]);
        nodes[1 + i].liar = connect_to(&nodes[1 + i], &c);
    }
    c.refuse_nonsense = true;
    for (unsigned i = 0; i < N; i++) {
        send_to(&a, there, &b, random_len(&state));
        send_to(&b, back, &a, random_len(&state));
        for (unsigned k = 0; k < 40; k++) {
            struct iovec iov = { bytes, make_nonsense(bytes, &state) };
            uint8_t tag = (uint8_t)(IVC_TAG_MESSAGE + check_random(&state) % 10);

            (void)ivc_endpoint_send(c.endpoint, lies[k % 2], tag, &iov, 1);
        }
        turn();
    }
    turn_until(&a.sents, N);
    turn_until(&b.sents, N);
    for (unsigned i = 0; i < 1000; i++)
        turn();
    CHECK_EQ(a.next_number[2], N);
    CHECK_EQ(b.next_number[1], N);
    CHECK_EQ(a.honest_dones, N);
    CHECK_EQ(b.honest_dones, N);
    CHECK(a.starts > N && b.starts > N);
    close_all();
}

static const struct check_case cases[] = {
    { "messages around every limit", test_limits, 0 },
    { "a long message", test_long, 0 },
    { "no memory for a ring in the middle of a message", test_no_space, 0 },
    { "memory in pieces", test_pieces, 0 },
    { "messages longer than their place", test_truncated, 0 },
    { "rings larger than a packet", test_ring_above_packet, 0 },
    { "messages that cannot be", test_refused, 0 },
    { "trying to send", test_try_send, 0 },
    { "order of messages, to ourselves as well", test_order, 0 },
    { "messages of one packet to a handler of their own", test_whole, 0 },
    { "offers answered later", test_later, 0 },
    { "a first packet that is filled ahead", test_ahead, 0 },
    { "... and that nobody asks for", test_ahead_given_up, 0 },
    { "short messages beside long ones", test_beside_data, 0 },
    { "sending from on_sent", test_send_from_sent, 0 },
    { "answering from on_done", test_answer_from_done, 0 },
    { "many peers", test_many_peers, 0 },
    { "pulls", test_pulls, 0 },
    { "pulls that do not end in time", test_pull_unfinished, 0 },
    { "payloads in lent memory", test_lent, 0 },
    { "nonsense about lent memory", test_lent_nonsense, 0 },
    { "over the network", test_network, 0 },
    { "over the network, closed with pulls under way", test_network_unfinished, 0 },
    { "a partner dies half way", test_died, 0 },
    { "a partner dies before its offer is answered", test_died_later, 0 },
    { "a partner died while we did not look", test_died_long_ago, 0 },
    { "a mailbox freed with messages under way", test_freed, 0 },
    { "hardly any memory", test_scarce, 0 },
    { "nonsense from a partner", test_nonsense, 0 },
    { "nonsense from a third one", test_nonsense_beside, 0 },
};
CHECK_MAIN(cases)
