/*
 * Tests against a hostile peer: whatever lies in the window, a receiver answers with packets that
 * lie inside the window or with an error.  It does not crash, hang or look elsewhere.
 *
 * The first cases put every kind of nonsense, row by row, where a receiver reads; the last ones let
 * a process scribble at random over all that others can reach while two endpoints talk.
 */
#include "check.h"

#include "base/util.h"
#include "channel/channel.h"
#include "channel/link.h"
#include "channel/pool.h"
#include "endpoint/message.h"
#include "region/internal.h"

enum { SIZE = 4 << 20 };

struct pair {
    struct ivc_region *from, *to;
    uint32_t from_slot, to_slot;
    struct ivc_pool pool;
    struct ivc_tx tx;
};

static struct ivc_region *join(const char *path, uint32_t client_id)
{
    struct ivc_region *region;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(1, client_id)) == 0, "%s", ivc_error_text());
    return region;
}

enum { PACKET_MAX = 8192 };

static void open_pair(struct pair *pair, uint32_t ring_size, uint32_t slot_size)
{
    const char *path = check_file(0, SIZE);

    *pair = (struct pair){ .from = join(path, 1), .to = join(path, 2) };
    pair->from_slot = ivc_region_self(pair->from)->slot;
    pair->to_slot = ivc_region_self(pair->to)->slot;
    CHECK_EQ(ivc_pool_init(&pair->pool, pair->from, IVC_SLOT_ANY, 4096, 65536), 0);
    CHECK_EQ(ivc_link_open(pair->from, pair->to_slot, ivc_region_self(pair->to)->generation), 0);
    CHECK_EQ(ivc_link_open(pair->to, pair->from_slot, ivc_region_self(pair->from)->generation), 0);
    CHECK_EQ(ivc_tx_open(pair->from, &pair->pool,
                         &(struct ivc_tx_options){
                             .slot = pair->to_slot,
                             .generation = ivc_region_self(pair->to)->generation,
                             .ring_size = ring_size, .slot_size = slot_size,
                         }, &pair->tx), 0);
}

static void close_pair(struct pair *pair)
{
    ivc_tx_close(&pair->tx);
    ivc_pool_forget(&pair->pool);
    ivc_region_free(pair->from);
    ivc_region_free(pair->to);
}

static volatile char sink;

/* The whole packet lies in private memory or in the window, and can be read. */
static void check_packet(const struct ivc_region *region, uint64_t packet_max, const void *head, uint32_t head_len,
                         const void *body, uint32_t body_len)
{
    const char *from = region->mapping.memory, *to = from + region->mapping.size;

    CHECK(head_len <= IVC_RX_HEAD_MAX);
    for (uint32_t i = 0; i < head_len; i++)
        sink = ((const char *)head)[i];
    if (body_len == 0)
        return;
    CHECK((const char *)body >= from && (const char *)body < to);
    CHECK(body_len <= (uint64_t)(to - (const char *)body));
    CHECK((uint64_t)head_len + body_len <= packet_max);
    for (uint32_t i = 0; i < body_len; i += 64)
        sink = ((const char *)body)[i];
}

/* What is taken without looking any further is a packet inside its slot, and fits where it is to go. */
static bool check_short(const struct ivc_rx *fresh, uint32_t kind, uint32_t len, uint32_t word)
{
    enum { ROOM = 100, GUARD = 28 };
    struct ivc_rx rx = *fresh;
    char to[ROOM + GUARD];
    uint32_t n_slots;
    ptrdiff_t n;

    memset(to, 0x55, sizeof to);
    n = ivc_rx_peek_short(&rx, 3, word, to, ROOM, &n_slots);
    for (unsigned i = n < 0 ? 0 : (unsigned)n; i < sizeof to; i++)
        CHECK_THAT(to[i] == 0x55, "kind %u, %u bytes: byte %u was written", kind, len, i);
    if (n < 0)
        return false;
    CHECK_EQ(kind, IVC_SLOT_INLINE);
    CHECK_EQ((uint32_t)n + 4, len);
    CHECK((uint32_t)n <= ROOM && rx.head == fresh->head);
    CHECK_EQ(n_slots, ivc_slots_for(len, rx.shift, rx.order));
    CHECK(n_slots == 1 || (n_slots == 2 && rx.at + 2 <= rx.n_slots));
    return true;
}

/* Every shape of a slot's word and of what it refers to. */
static void test_slots(void)
{
    static const uint32_t lens[] = { 0, 1, 7, 8, 9, 40, 41, 56, 57, 68, 69, 104, 105, 120, 121, 232, 249, 2017,
                                     4072, 4088, 4089, 0x7fff, 0xffff };
    static const uint32_t shares[] = { 0, 1, 2, 30, 31, 32, 33, 255, 0x80000000, UINT32_MAX };
    static const uint64_t offsets[] = { 0, 1, 64, 4096, SIZE - 1, SIZE, (uint64_t)1 << 31,
                                        (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX,
                                        UINT64_MAX - 4095 };
    static const uint32_t body_lens[] = { 0, 1, 100, 4096, PACKET_MAX - 40, PACKET_MAX + 1, SIZE, 0x7fffffff,
                                          UINT32_MAX };
    static const struct { uint32_t slot, from_end; bool scattered; } rows[] = {
        { 64, 0, false }, { 64, 2, false }, { 128, 0, false }, { 128, 4, false }, { 256, 0, false }, { 4096, 6, false },
        { 64, 0, true }, { 128, 0, true }, { 128, 1, true }, { 128, 2, true }, { 256, 9, true },
    };
    unsigned good = 0, bad = 0, taken = 0;

    for (unsigned s = 0; s < sizeof rows / sizeof *rows; s++) {
        struct pair pair;
        struct ivc_rx fresh, rx;
        char head_bytes[IVC_RX_HEAD_MAX];
        struct ivc_packet packet;
        char *slot;

        open_pair(&pair, 65536, rows[s].slot);
        CHECK_EQ(ivc_rx_open(pair.to, pair.from_slot, PACKET_MAX, &fresh), 0);
        if (rows[s].scattered) {
            ivc_store_release((ivc_atomic_u64 *)pair.tx.slots,
                              ivc_slot_word(1, fresh.n_slots, IVC_RING_SCATTERED, IVC_SLOT_SKIP));
            CHECK_EQ(ivc_rx_peek(&fresh, head_bytes, &packet), 0);
            CHECK_EQ(fresh.order, IVC_RING_SCATTERED);
        }
        fresh.at = rows[s].from_end > 0 ? fresh.n_slots - rows[s].from_end : 0;
        slot = pair.tx.slots + ivc_slot_place(fresh.at, fresh.n_slots, fresh.order) * (size_t)rows[s].slot;
        for (uint32_t kind = 0; kind < 256; kind += kind < 6 ? 1 : 83)
            for (unsigned l = 0; l < sizeof lens / sizeof *lens; l++)
                for (unsigned h = 0; h < sizeof shares / sizeof *shares; h++)
                    for (unsigned o = 0; o < sizeof offsets / sizeof *offsets; o++)
                        for (unsigned b = 0; b < sizeof body_lens / sizeof *body_lens; b++) {
                            struct ivc_slot_ref ref = { shares[h], body_lens[b], offsets[o] };
                            int r;

                            memset(slot + 8, 0xff, rows[s].slot - 8);
                            memcpy(slot + IVC_SLOT_REF_AT, &ref, sizeof ref);
                            ivc_store_release((ivc_atomic_u64 *)slot,
                                              ivc_slot_word(fresh.stamp, lens[l], 3, kind));
                            rx = fresh;
                            r = ivc_rx_peek(&rx, head_bytes, &packet);
                            CHECK_THAT(r == 1 || r == 0 || r == -EBADMSG, "kind %u gave %d", kind, r);
                            if (r == 1) {
                                check_packet(pair.to, PACKET_MAX, packet.head, packet.head_len, packet.body,
                                             packet.body_len);
                                good++;
                            }
                            bad += r < 0;
                            taken += check_short(&fresh, kind, lens[l], shares[h]);
                        }
        ivc_rx_close(&fresh);
        close_pair(&pair);
    }
    CHECK(good > 100 && bad > 10000 && taken > 100);
}

/* To the ring's end, in some order from there on; and then a packet of several slots. */
static void test_skips(void)
{
    static const struct { uint32_t ring, at, order; int answer; bool scattered; } rows[] = {
        { 65536, 0, IVC_RING_IN_LINE, -EBADMSG, false }, { 65536, 5, IVC_RING_IN_LINE, 0, false },
        { 65536, 0, IVC_RING_SCATTERED, 0, true }, { 65536, 5, IVC_RING_SCATTERED, 0, true },
        { 65536, 5, 2, -EBADMSG, false }, { 65536, 5, 255, -EBADMSG, false },
        { 60000, 0, IVC_RING_SCATTERED, -EBADMSG, false }, { 60000, 5, IVC_RING_SCATTERED, -EBADMSG, false },
        { 60000, 5, IVC_RING_IN_LINE, 0, false },
    };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pair pair;
        struct ivc_rx rx;
        char head_bytes[IVC_RX_HEAD_MAX];
        struct ivc_packet packet;
        uint32_t gap;

        open_pair(&pair, rows[i].ring, 64);
        CHECK_EQ(ivc_rx_open(pair.to, pair.from_slot, PACKET_MAX, &rx), 0);
        rx.at = rows[i].at;
        gap = rx.n_slots - rx.at;
        ivc_store_release((ivc_atomic_u64 *)(pair.tx.slots + (size_t)rx.at * 64),
                          ivc_slot_word(1, gap, (uint8_t)rows[i].order, IVC_SLOT_SKIP));
        CHECK_THAT(ivc_rx_peek(&rx, head_bytes, &packet) == rows[i].answer, "row %u", i);
        CHECK_THAT(rx.order == (rows[i].scattered ? IVC_RING_SCATTERED : IVC_RING_IN_LINE), "row %u", i);
        if (rows[i].answer == 0) {
            CHECK_EQ(rx.at, 0);
            ivc_store_release((ivc_atomic_u64 *)pair.tx.slots,
                              ivc_slot_word(2, IVC_SCATTERED_MAX, 1, IVC_SLOT_INLINE));
            CHECK_THAT(ivc_rx_peek(&rx, head_bytes, &packet) == 1, "row %u", i);
            CHECK_EQ(packet.head_len + packet.body_len, (uint32_t)IVC_SCATTERED_MAX);
            ivc_store_release((ivc_atomic_u64 *)pair.tx.slots,
                              ivc_slot_word(2, IVC_SCATTERED_MAX + 1, 1, IVC_SLOT_INLINE));
            CHECK_THAT(ivc_rx_peek(&rx, head_bytes, &packet) == (rows[i].scattered ? -EBADMSG : 1), "row %u", i);
        }
        ivc_rx_close(&rx);
        close_pair(&pair);
    }
}

/* A ring full of shares, one after the other. */
static void test_shares(void)
{
    struct pair pair;
    struct ivc_rx rx;
    char head_bytes[IVC_RX_HEAD_MAX];
    struct ivc_packet packet;
    uint64_t size = 4096;
    int r = 0;

    open_pair(&pair, 65536, 64);
    CHECK_EQ(ivc_rx_open(pair.to, pair.from_slot, PACKET_MAX, &rx), 0);
    for (uint32_t i = 0; i < pair.tx.n_slots; i++) {
        struct ivc_slot_ref ref = { i + 1, 0, pair.from->geometry.blocks };
        char *slot = pair.tx.slots + i * 64;

        memcpy(slot + IVC_SLOT_REF_AT, &ref, sizeof ref);
        memcpy(slot + IVC_SLOT_HEAD_AT, &size, sizeof size);
        ivc_store_release((ivc_atomic_u64 *)slot, ivc_slot_word(1, 8, 0, IVC_SLOT_SHARE));
    }
    for (unsigned i = 0; i < 1000 && r == 0; i++)
        r = ivc_rx_peek(&rx, head_bytes, &packet);
    CHECK_EQ(r, -EBADMSG);
    CHECK_TEXT(ivc_error_text(), "member", "nonsense");
    close_pair(&pair);
}

static void test_ring_headers(void)
{
    static const uint32_t values[] = { 0, 1, 2, 3, 4, 63, 64, 65, 128, 4096, 8192, 65536, 1 << 20,
                                       1u << 31, UINT32_MAX, UINT32_MAX - 63 };
    enum { N = sizeof values / sizeof *values };
    struct pair pair;
    struct ivc_ring_header good, *header;
    struct ivc_rx rx;
    unsigned accepted = 0;

    open_pair(&pair, 65536, 64);
    header = pair.tx.share.memory;
    good = *header;
    for (unsigned a = 0; a < N; a++)
        for (unsigned b = 0; b < N; b++) {
                char head_bytes[IVC_RX_HEAD_MAX];
                struct ivc_packet packet;
                int r;

                *header = good;
                header->slot_size = values[a];
                header->n_slots = values[b];
                r = ivc_rx_open(pair.to, pair.from_slot, PACKET_MAX, &rx);
                CHECK_THAT(r == 0 || r == -EBADMSG, "gave %d", r);
                if (r != 0)
                    continue;
                accepted++;
                /* What was accepted must lie inside what is shared, to the last slot and byte. */
                CHECK(rx.slots + ((uint64_t)rx.n_slots << rx.shift) <= (const char *)rx.memory + rx.size);
                for (rx.at = 0; rx.at < rx.n_slots; rx.at++)
                    CHECK(ivc_rx_peek(&rx, head_bytes, &packet) >= -EBADMSG);
            }
    CHECK(accepted > 0);
    *header = good;
    header->magic ^= 1;
    CHECK_EQ(ivc_rx_open(pair.to, pair.from_slot, PACKET_MAX, &rx), -EBADMSG);
    close_pair(&pair);
}

static void check_link_is_inside(const struct pair *pair)
{
    const char *memory = pair->to->mapping.memory;
    const struct ivc_layout_link *seen = ivc_region_peer_link(pair->to, pair->from_slot);
    struct ivc_rx rx;

    CHECK(!seen || ((const char *)seen >= memory && (const char *)(seen + 1) <= memory + SIZE));
    (void)ivc_rx_open(pair->to, pair->from_slot, PACKET_MAX, &rx);
}

/* Where the peer says that its ring and its link table are. */
static void test_links(void)
{
    struct pair pair;
    struct ivc_layout_link *link;
    struct ivc_layout_member *entry;
    struct ivc_rx rx;
    uint64_t good_ring, good_links, good_part;
    ivc_atomic_u64 *root;

    open_pair(&pair, 65536, 64);
    link = ivc_region_own_link(pair.from, pair.to_slot);
    entry = ivc_region_slot(pair.from, pair.from_slot);
    good_ring = link->ring;
    good_links = entry->links;
    root = pair.from->links.root.memory;
    good_part = root[0];
    {
        uint64_t first = pair.from->geometry.blocks, end = first + pair.from->geometry.n_blocks * 4096;
        const uint64_t offsets[] = { 0, 1, 8, 4096, first - 4096, first + 1, end - 4096, end, SIZE,
                                     UINT64_MAX, UINT64_MAX - 4095, (uint64_t)1 << 63 };

        for (unsigned i = 0; i < sizeof offsets / sizeof *offsets; i++)
            for (uint64_t size = 0; size < (uint64_t)1 << 32; size = size * 16 + 63) {
                int r;

                link->ring = offsets[i];
                link->ring_size = (uint32_t)size;
                r = ivc_rx_open(pair.to, pair.from_slot, PACKET_MAX, &rx);
                CHECK_THAT(r == -EBADMSG || r == IVC_E_GONE, "ring at %llx gave %d",
                           (unsigned long long)offsets[i], r);
            }
        link->ring = good_ring;
        for (unsigned i = 0; i < sizeof offsets / sizeof *offsets; i++) {
            entry->links = offsets[i];
            check_link_is_inside(&pair);
            entry->links = good_links;
            root[0] = offsets[i];
            check_link_is_inside(&pair);
            root[0] = good_part;
        }
    }
    close_pair(&pair);
}

/* What the receiver says it has read. */
static void test_heads(void)
{
    static const uint64_t heads[] = { 6, 7, 100, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX };
    struct pair pair;
    struct ivc_layout_link *link;
    struct iovec iov = { "12345678", 8 };

    open_pair(&pair, 65536, 64);
    link = ivc_region_own_link(pair.to, pair.from_slot);
    for (unsigned i = 0; i < 5; i++)
        CHECK_EQ(ivc_tx_send(&pair.tx, 1, &iov, 1, 8), 0);
    for (unsigned i = 0; i < sizeof heads / sizeof *heads; i++) {
        ivc_store_release(&link->head, heads[i]);
        CHECK_THAT(ivc_tx_refresh(&pair.tx) == -EBADMSG, "head %llx", (unsigned long long)heads[i]);
        CHECK_TEXT(ivc_error_text(), "never sent");
        CHECK_EQ(pair.tx.head, 0);
    }
    ivc_store_release(&link->head, 5);
    CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
    CHECK(ivc_tx_idle(&pair.tx));
    ivc_store_release(&link->head, 4);     /* backwards */
    CHECK_EQ(ivc_tx_refresh(&pair.tx), -EBADMSG);
    close_pair(&pair);
}

/*
 * Scribbling.  A victim talks to a partner through endpoints and messages, both honest; a third
 * process writes at random into one kind of place after the other.  The victim may lose peers and
 * packets; it may not crash, hang or receive a packet that lies elsewhere.
 */
struct victim {
    const char *path;
    uint32_t client_id;
    struct ivc_endpoint *endpoint;
    struct ivc_mailbox *mailbox;
    char *landing;
};

enum { LANDING = 1 << 16 };

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct victim *victim = arg;

    check_packet(ivc_endpoint_region(victim->endpoint), ivc_endpoint_double_max(victim->endpoint), packet->head,
                 packet->head_len, packet->body, packet->body_len);
    if (ivc_mailbox_is_tag(packet->tag))
        ivc_mailbox_packet(victim->mailbox, peer, packet);
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    (void)reason;
    ivc_mailbox_gone(((struct victim *)arg)->mailbox, peer);
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

static void on_start(void *arg, struct ivc_message *message)
{
    message->iov[0] = (struct iovec){ ((struct victim *)arg)->landing, LANDING };
    message->n_iov = 1;
}

static void on_done(void *arg, struct ivc_message *message, int status)
{
    (void)arg, (void)message, (void)status;
}

static unsigned unsent;

static void on_sent(void *arg, int status)
{
    (void)arg, (void)status;
    unsent--;
}

static void send_something(struct victim *victim, struct ivc_peer *peer, uint64_t *state)
{
    static char payload[LANDING];
    uint64_t number = check_random(state);
    struct iovec iov = { payload, number % 300 };

    if (number & 1 << 20) {
        (void)ivc_endpoint_send(victim->endpoint, peer, 7, &iov, 1);
    } else if (unsent < 4) {
        unsent++;
        if (ivc_mailbox_send(victim->mailbox, peer, "\4ead",
                             &(struct iovec){ payload, number % LANDING }, 1, on_sent, NULL) < 0)
            unsent--;
    }
}

/* Talks to whoever is there for `ms`; every turn must come back soon. */
static void talk(struct victim *victim, unsigned ms)
{
    struct ivc_region *region = ivc_endpoint_region(victim->endpoint);
    uint64_t end = ivc_now_ms() + ms, state = victim->client_id + 1, before;
    struct ivc_member member;
    struct ivc_peer *peer;

    while (ivc_now_ms() < end) {
        uint32_t slot = (uint32_t)(check_random(&state) % 4);

        before = ivc_now_ms();
        if (slot != ivc_region_self(region)->slot && ivc_region_member(region, slot, &member) == 0
            && ivc_endpoint_connect_member(victim->endpoint, &member, &peer) == 0)
            send_something(victim, peer, &state);
        ivc_mailbox_progress(victim->mailbox);
        CHECK_THAT(ivc_now_ms() - before < 3000 * check_slowdown(), "a turn took %u ms",
                   (unsigned)(ivc_now_ms() - before));
    }
}

static int be_victim(void *arg)
{
    struct victim victim = *(struct victim *)arg;
    struct ivc_endpoint_options options = {
        .region = victim.path, .magic_id = 5, .client_id = victim.client_id,
        .on_packet = on_packet, .on_gone = on_gone, .on_arrival = on_arrival, .arg = &victim,
    };

    victim.landing = malloc(LANDING);
    if (ivc_endpoint_open(&options, &victim.endpoint) != 0)
        return 3;
    CHECK_EQ(ivc_mailbox_new(victim.endpoint, on_start, on_done, &victim, &victim.mailbox), 0);
    talk(&victim, 700);
    ivc_mailbox_free(victim.mailbox);
    ivc_endpoint_free(victim.endpoint);
    free(victim.landing);
    return 0;
}

enum place { RINGS, LINKS, MEMBERS, OWNERS, INBOXES, HEADER, ANYWHERE, N_PLACES };
static const char *const place_names[] = {
    "rings and buffers", "link tables", "members", "owner words", "inboxes", "header", "anywhere",
};

/* A member's link table: its root, or its first part. */
static uint64_t links(const char *base, const struct ivc_layout_member *member, bool part)
{
    uint64_t root = ivc_load_relaxed(&member->links) % (SIZE - 8) / 8 * 8;

    return part ? ivc_load_relaxed((const ivc_atomic_u64 *)(base + root)) : root;
}

/* A place of that kind: where to write, from what the header of the honest region says. */
static uint64_t pick(const struct ivc_window_geometry *g, char *base, enum place place,
                     uint64_t random)
{
    struct ivc_layout_member *members = (struct ivc_layout_member *)(base + g->members);

    switch (place) {
    case RINGS: return g->blocks + random % (128 * 4096);
    case LINKS: return (links(base, &members[random % 3], random / 4 % 2) + random / 8 % 256)
                       % (SIZE - 8);
    case MEMBERS: return g->members + random % (3 * IVC_LAYOUT_MEMBER_SIZE);
    case OWNERS: return g->owners + random % 512;
    case INBOXES: return g->inboxes + random % (3 * g->inbox_size);
    case HEADER: return random % 256;
    default: return random % (g->blocks + 128 * 4096);
    }
}

/* Small numbers, all ones, single bits and noise: each is somewhere the worst. */
static uint64_t worst(uint64_t random)
{
    switch (random >> 60) {
    case 0: case 1: case 2: return 0;
    case 3: case 4: return UINT64_MAX;
    case 5: case 6: case 7: return random & 0xff;
    case 8: case 9: return (uint64_t)1 << random % 64;
    case 10: return (random & 0xffff) << 32 | 1;
    case 11: return (uint64_t)(random % 4) << 56 | (random & 0xffff) << 32 | (random >> 20 & 3);
    default: return random;
    }
}

static void scribble(const char *path, enum place place, unsigned ms)
{
    int fd = open(path, O_RDWR);
    char *base = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct ivc_window_geometry g = ivc_window_geometry(SIZE);
    uint64_t end, state = 77 + place;

    CHECK(fd >= 0 && base != MAP_FAILED);
    for (end = ivc_now_ms() + ms; ivc_now_ms() < end; ivc_sleep_ms(1))
        for (unsigned i = 0; i < 20; i++) {
            uint64_t at = pick(&g, base, place, check_random(&state)) & ~(uint64_t)7;

            ivc_store_relaxed((ivc_atomic_u64 *)(base + at), worst(check_random(&state)));
        }
    munmap(base, SIZE);
    close(fd);
}

static void scribble_over(enum place place)
{
    for (unsigned round = 0; round < 3; round++) {
        struct victim victims[3];
        pid_t pids[3];

        for (unsigned i = 0; i < 3; i++) {
            victims[i] = (struct victim){ .path = check_file(0, SIZE), .client_id = i };
            if (i == 0)
                CHECK_EQ(truncate(victims[i].path, SIZE), 0);
        }
        for (unsigned i = 0; i < 3; i++)
            pids[i] = check_fork(be_victim, &victims[i]);
        ivc_sleep_ms(150 * check_slowdown());
        scribble(victims[0].path, place, 500 * check_slowdown());
        for (unsigned i = 0; i < 3; i++) {
            int status;

            CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
            CHECK_THAT(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3),
                       "scribbling over %s: victim %u: status %x", place_names[place], i, status);
        }
    }
}

static void test_scribble_rings(void) { scribble_over(RINGS); }
static void test_scribble_links(void) { scribble_over(LINKS); }
static void test_scribble_members(void) { scribble_over(MEMBERS); }
static void test_scribble_owners(void) { scribble_over(OWNERS); }
static void test_scribble_inboxes(void) { scribble_over(INBOXES); }
static void test_scribble_header(void) { scribble_over(HEADER); }
static void test_scribble_anywhere(void) { scribble_over(ANYWHERE); }

/* A peer that marks itself as gone and sends on for ever: a turn must come to its end. */
static int send_for_ever(void *arg)
{
    struct victim victim = { .path = arg, .client_id = 1 };
    struct ivc_endpoint_options options = {
        .region = arg, .magic_id = 5, .client_id = 1, .on_packet = on_packet, .arg = &victim,
    };
    struct iovec iov = { "12345678", 8 };
    struct ivc_region *region;
    struct ivc_member member;
    struct ivc_peer *peer;
    uint64_t start = ivc_now_ms();

    if (ivc_endpoint_open(&options, &victim.endpoint) != 0)
        return 3;
    region = ivc_endpoint_region(victim.endpoint);
    while (ivc_region_member(region, 0, &member) != 0)
        ivc_sleep_ms(1);
    CHECK_EQ(ivc_endpoint_connect_member(victim.endpoint, &member, &peer), 0);
    for (bool left = false;;) {
        (void)ivc_endpoint_send(victim.endpoint, peer, 7, &iov, 1);
        if (!left && ivc_now_ms() - start > 500) {
            left = true;
            ivc_store_release(&ivc_region_slot(region, 1)->state,
                              ivc_layout_state(ivc_region_self(region)->generation,
                                               IVC_PHASE_LEFT));
        }
    }
}

static void test_endless_farewell(void)
{
    struct victim victim = { .path = check_file(0, SIZE), .client_id = 0 };
    struct ivc_endpoint_options options = {
        .region = victim.path, .magic_id = 5, .on_packet = on_packet, .on_arrival = on_arrival,
        .arg = &victim,
    };
    uint64_t end, before;
    pid_t pid;

    CHECK_EQ(ivc_endpoint_open(&options, &victim.endpoint), 0);
    pid = check_fork(send_for_ever, (void *)victim.path);
    for (end = ivc_now_ms() + 3000 * check_slowdown(); ivc_now_ms() < end;) {
        before = ivc_now_ms();
        ivc_endpoint_progress(victim.endpoint);
        CHECK_THAT(ivc_now_ms() - before < 1000 * check_slowdown(), "a turn took %u ms",
                   (unsigned)(ivc_now_ms() - before));
    }
    check_kill(pid);
    ivc_endpoint_free(victim.endpoint);
}

static const struct check_case cases[] = {
    { "slots of every shape", test_slots, 0 },
    { "a ring full of shares", test_shares, 0 },
    { "skips", test_skips, 0 },
    { "ring headers", test_ring_headers, 0 },
    { "places of rings and link tables", test_links, 0 },
    { "what the receiver says it has read", test_heads, 0 },
    { "scribbling over rings and buffers", test_scribble_rings, 0 },
    { "scribbling over link tables", test_scribble_links, 0 },
    { "scribbling over members", test_scribble_members, 0 },
    { "scribbling over owner words", test_scribble_owners, 0 },
    { "scribbling over inboxes", test_scribble_inboxes, 0 },
    { "scribbling over the header", test_scribble_header, 0 },
    { "scribbling anywhere", test_scribble_anywhere, 0 },
    { "a peer that leaves and sends on", test_endless_farewell, 20 },
};
CHECK_MAIN(cases)
