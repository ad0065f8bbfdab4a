/*
 * Tests of the ring: every length, every slot size, wrap of slots and lap counter, packets of several slots, a
 * ring that is full, chunks of the pool, and the doorbell. Sender and receiver are two members in one process:
 * what is tested is arithmetic, not timing.
 */
#include "check.h"

#include "base/util.h"
#include "channel/channel.h"
#include "channel/link.h"
#include "channel/pool.h"

enum { SIZE = 8 << 20 };

struct pair {
    struct ivc_region *from, *to;
    struct ivc_pool pool;
    struct ivc_tx tx;
    struct ivc_rx rx;
};

static struct ivc_region *join(const char *path, uint32_t client_id)
{
    struct ivc_region *region;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(1, client_id)) == 0, "%s", ivc_error_text());
    return region;
}

static void open_pair(struct pair *pair, uint32_t ring_size, uint32_t slot_size, uint32_t chunk_size,
                      uint64_t pool_limit)
{
    const char *path = check_file(0, SIZE);
    const struct ivc_member *from, *to;
    struct ivc_rx none;

    *pair = (struct pair){ .from = join(path, 1), .to = join(path, 2) };
    from = ivc_region_self(pair->from);
    to = ivc_region_self(pair->to);
    CHECK_EQ(ivc_pool_init(&pair->pool, pair->from, IVC_SLOT_ANY, chunk_size, pool_limit), 0);
    CHECK_EQ(ivc_rx_open(pair->to, from->slot, UINT32_MAX, &none), IVC_E_GONE);
    CHECK_EQ(ivc_link_open(pair->from, to->slot, to->generation), 0);
    CHECK_EQ(ivc_link_open(pair->to, from->slot, from->generation), 0);
    CHECK_EQ(ivc_rx_open(pair->to, from->slot, UINT32_MAX, &none), IVC_E_GONE);
    CHECK_THAT(ivc_tx_open(pair->from, &pair->pool,
                           &(struct ivc_tx_options){
                               .slot = to->slot, .generation = to->generation,
                               .ring_size = ring_size, .slot_size = slot_size,
                           }, &pair->tx) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_rx_open(pair->to, from->slot, UINT32_MAX, &pair->rx) == 0, "%s", ivc_error_text());
}

static void close_pair(struct pair *pair)
{
    ivc_rx_close(&pair->rx);
    ivc_tx_close(&pair->tx);
    ivc_pool_forget(&pair->pool);
    ivc_region_free(pair->from);
    ivc_region_free(pair->to);
}

/* The byte at `at` of packet `number`. */
static inline uint8_t pattern(uint64_t number, size_t at)
{
    return (uint8_t)(number * 131 + at * 7 + (at >> 8) + 1);
}

static char bytes[1 << 20];

static void fill(uint64_t number, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)pattern(number, i);
}

/* Sends packet `number` of `len` bytes, cut into three pieces. */
static int send_one(struct pair *pair, uint64_t number, size_t len)
{
    size_t a = len / 3, b = (len - a) / 2;
    struct iovec iov[3] = { { bytes, a }, { bytes + a, b }, { bytes + a + b, len - a - b } };

    fill(number, len);
    return ivc_tx_send(&pair->tx, (uint8_t)number, iov, 3, len);
}

/* The same by a chunk of the pool. */
static void send_in_chunk(struct pair *pair, uint32_t chunk, uint64_t number, size_t len)
{
    uint32_t share;
    uint64_t offset;

    fill(number, len);
    memcpy(ivc_pool_memory(&pair->pool, chunk, &share, &offset), bytes, len);
    CHECK_EQ(offset % pair->pool.chunk_size, 2048);         /* they begin in the middle of a page */
    CHECK(offset + pair->pool.chunk_size <= pair->pool.shares[share - 1].size);
    CHECK_EQ(ivc_tx_send_chunk(&pair->tx, (uint8_t)number, chunk, len), 0);
}

/* The next packet must be `number`, `len` bytes long and right in every byte. */
static void take_one(struct pair *pair, uint64_t number, size_t len)
{
    char head_bytes[IVC_RX_HEAD_MAX];
    struct ivc_packet packet;
    const uint8_t *head = (const uint8_t *)head_bytes, *body;

    CHECK_THAT(ivc_rx_peek(&pair->rx, head_bytes, &packet) == 1, "packet %llu of %zu bytes is not there: %s",
               (unsigned long long)number, len, ivc_error_text());
    body = packet.body;
    CHECK_EQ(packet.tag, (uint8_t)number);
    CHECK_EQ((size_t)packet.head_len + packet.body_len, len);
    for (size_t i = 0; i < packet.head_len; i++)
        CHECK_THAT(head[i] == pattern(number, i), "byte %zu of %zu", i, len);
    for (size_t i = 0; i < packet.body_len; i++)
        CHECK_THAT(body[i] == pattern(number, packet.head_len + i), "byte %zu of %zu",
                   packet.head_len + i, len);
    ivc_rx_advance(&pair->rx);
}

static void nothing_there(struct pair *pair)
{
    char head_bytes[IVC_RX_HEAD_MAX];
    struct ivc_packet packet;

    CHECK_EQ(ivc_rx_peek(&pair->rx, head_bytes, &packet), 0);
    ivc_rx_publish(&pair->rx);
}

static const struct { uint32_t ring, slot; } shapes[] = {
    { 2048, 64 }, { 4096, 64 }, { 24 * 1024, 64 }, { 24 * 1024, 128 }, { 24 * 1024, 4096 },
    { 65536, 64 }, { 65536, 256 }, { 65536, 1024 }, { 65536, 4096 }, { 1 << 20, 64 },
    { 24 * 1024 + 8, 64 }, { 10000, 512 }, { 5000, 128 },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Every length from 0 to the longest: the first line's and the slots' edges are among them. */
static void test_lengths(void)
{
    for (unsigned s = 0; s < N_SHAPES; s++) {
        struct pair pair;
        uint64_t number = 0;
        size_t max, step;

        open_pair(&pair, shapes[s].ring, shapes[s].slot, 4096, 65536);
        max = pair.tx.eager_max;
        CHECK_THAT(max >= 64, "shape %u: only %zu bytes at once", s, max);
        step = max > 30000 ? 37 : 1;
        for (size_t len = 0; len <= max; len += len < 5000 ? 1 : step) {
            CHECK_THAT(send_one(&pair, number, len) == 0, "shape %u, %zu bytes", s, len);
            take_one(&pair, number++, len);
            nothing_there(&pair);
        }
        CHECK_EQ(send_one(&pair, number, max), 0);
        take_one(&pair, number, max);
        CHECK_EQ(send_one(&pair, number, max + 1), -EMSGSIZE);
        nothing_there(&pair);
        close_pair(&pair);
    }
}

/* Filled until it is full, emptied by as much as chance says, over and over: at no place of the wrap
 * is anything lost, and what was refused is not half there. */
static void test_full(void)
{
    for (unsigned s = 0; s < N_SHAPES; s++) {
        struct pair pair;
        uint64_t sent = 0, taken = 0, state = s + 1, filled = 0;
        size_t lens[1 << 15], max;

        open_pair(&pair, shapes[s].ring, shapes[s].slot, 4096, 65536);
        max = IVC_MIN(pair.tx.eager_max, 8000);
        while (sent < 20000) {
            for (;;) {
                size_t len = check_random(&state) % 3 ? check_random(&state) % 80
                                                      : check_random(&state) % (max + 1);
                int r = send_one(&pair, sent, len);

                if (r != 0) {
                    CHECK_EQ(r, IVC_E_FULL);
                    filled++;
                    break;
                }
                lens[sent++ % (1 << 15)] = len;
            }
            CHECK(sent > taken);
            for (uint64_t n = check_random(&state) % (sent - taken) + 1; n > 0; n--, taken++)
                take_one(&pair, taken, lens[taken % (1 << 15)]);
            /* As the endpoint does at the end of every turn; now and then later, but not for ever. */
            if (taken == sent || check_random(&state) % 2)
                ivc_rx_publish(&pair.rx);
        }
        for (; taken < sent; taken++)
            take_one(&pair, taken, lens[taken % (1 << 15)]);
        nothing_there(&pair);
        CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
        CHECK(ivc_tx_idle(&pair.tx));
        CHECK(filled > 10);
        close_pair(&pair);
    }
}

/* A ring takes as many packets as it has slots, no more, and one more for each that is read. */
static void test_exactly_full(void)
{
    struct pair pair;
    uint64_t n;

    open_pair(&pair, 24 * 1024, 64, 4096, 65536);
    n = pair.tx.n_slots;
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(send_one(&pair, i, 8), 0);
    CHECK_EQ(send_one(&pair, n, 8), IVC_E_FULL);
    CHECK_EQ(send_one(&pair, n, 8), IVC_E_FULL);
    take_one(&pair, 0, 8);
    ivc_rx_publish(&pair.rx);
    CHECK_EQ(send_one(&pair, n, 8), 0);
    CHECK_EQ(send_one(&pair, n + 1, 8), IVC_E_FULL);
    for (uint64_t i = 1; i <= n; i++)
        take_one(&pair, i, 8);
    nothing_there(&pair);
    close_pair(&pair);
}

/* The longest packets in a row: each wrap skips what is left at the ring's end. */
static void test_longest(void)
{
    static const unsigned below[] = { 0, 1, 63, 64, 65, 127 };

    for (unsigned s = 0; s < N_SHAPES; s++)
        for (unsigned d = 0; d < sizeof below / sizeof *below; d++) {
            struct pair pair;
            size_t len;

            open_pair(&pair, shapes[s].ring, shapes[s].slot, 4096, 65536);
            len = pair.tx.eager_max;
            len -= IVC_MIN(len, below[d]);
            for (uint64_t number = 0, taken = 0; number < 200; number++) {
                /* One stays unread whenever there is room for two: the wrap then meets it. */
                while (send_one(&pair, number, len) == IVC_E_FULL) {
                    CHECK_THAT(taken < number, "shape %u: an empty ring refuses %zu bytes", s, len);
                    take_one(&pair, taken++, len);
                    ivc_rx_publish(&pair.rx);
                }
            }
            close_pair(&pair);
        }
}

/* One who reads each packet at once meets the ring's beginning again after a few of them, or, far away, after more,
 * but where second-level caches are small. */
static void test_begins_anew(void)
{
    static const struct { uint32_t far; enum ivc_scatters scatters; uint32_t least, most; } rows[] = {
        { 0, IVC_SCATTERS_NONE, 4 << 10, 8 << 10 }, { 8, IVC_SCATTERS_NONE, 128 << 10, 132 << 10 },
        { 0, IVC_SCATTERS_FAR, 4 << 10, 8 << 10 }, { 8, IVC_SCATTERS_FAR, 4 << 10, 8 << 10 },
        { 0, IVC_SCATTERS_ALL, 4 << 10, 8 << 10 }, { 8, IVC_SCATTERS_ALL, 4 << 10, 8 << 10 },
    };
    enum { LEN = 1000, PACKETS = 2000 };
    struct pair pair;

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t last = 0, times = 0;

        open_pair(&pair, 256 << 10, 128, 4096, 65536);
        pair.tx.untimed = true;
        pair.tx.far = rows[i].far;
        pair.tx.scatters = rows[i].scatters;
        for (uint64_t n = 0; n < PACKETS; n++) {
            CHECK_EQ(send_one(&pair, n, LEN), 0);
            take_one(&pair, n, LEN);
            ivc_rx_publish(&pair.rx);
            if (pair.tx.at < last) {
                times++;
                CHECK_THAT(last * 128 >= rows[i].least && last * 128 <= rows[i].most, "row %u: after %u slots", i,
                           last);
            }
            last = pair.tx.at;
        }
        CHECK(times > 10);
        close_pair(&pair);
    }
}

struct unread {
    uint64_t from, n;           /* the first one's number; so many */
    uint64_t at;                /* where the next one begins at least */
    const size_t *lens;         /* by number, modulo 4096 */
};

/* Each is right in every byte. */
static int count_packet(void *arg, uint64_t at, uint8_t tag, const struct iovec *iov, unsigned n_iov)
{
    struct unread *unread = arg;
    uint64_t number = unread->from + unread->n;
    size_t len = 0;

    CHECK(at >= unread->at);
    CHECK_EQ(tag, (uint8_t)number);
    for (unsigned i = 0; i < n_iov; i++)
        for (size_t k = 0; k < iov[i].iov_len; k++, len++)
            CHECK_THAT(((const uint8_t *)iov[i].iov_base)[k] == pattern(number, len), "byte %zu", len);
    CHECK_EQ(len, unread->lens[number % (1 << 12)]);
    unread->at = at + 1;
    unread->n++;
    return 0;
}

/* Short packets for a while, then longer ones, then short ones: slots are scattered and in line again, at any place of
 * a lap and however much is unread, and nothing is lost, nor taken for something else. */
static void test_orders(void)
{
    static const struct { uint32_t ring, slot; enum ivc_scatters scatters; uint32_t far; bool changes; } rows[] = {
        { 16 << 10, 128, IVC_SCATTERS_ALL, 0, true }, { 8192, 64, IVC_SCATTERS_ALL, 0, true },
        { 256 << 10, 128, IVC_SCATTERS_ALL, 0, true }, { 32 << 10, 256, IVC_SCATTERS_ALL, 8, true },
        { 32 << 10, 128, IVC_SCATTERS_FAR, 8, true }, { 256 << 10, 128, IVC_SCATTERS_FAR, 0, false },
        { 24 << 10, 128, IVC_SCATTERS_NONE, 8, false }, { 4096, 64, IVC_SCATTERS_NONE, 8, false },
    };

    for (unsigned s = 0; s < sizeof rows / sizeof *rows; s++) {
        struct pair pair;
        enum ivc_ring_order order = IVC_RING_IN_LINE;
        uint64_t sent = 0, taken = 0, state = s + 1, changes = 0, published = 0, several = 0;
        size_t lens[1 << 12];

        open_pair(&pair, rows[s].ring, rows[s].slot, 4096, 65536);
        pair.tx.untimed = true;
        pair.tx.far = rows[s].far;
        pair.tx.scatters = rows[s].scatters;
        while (sent < 60000) {
            const size_t maxes[] = { pair.tx.inline_max, pair.tx.inline_max, 330, IVC_MIN(pair.tx.eager_max, 3000) };
            size_t max = maxes[check_random(&state) % 4];
            struct unread unread = { .from = published, .lens = lens };

            if (check_random(&state) % 2)
                ivc_tx_was_answered(&pair.tx);

            for (uint64_t n = check_random(&state) % 60; n > 0; n--) {
                size_t len = check_random(&state) % (max + 1);
                int r = send_one(&pair, sent, len);

                if (r != 0) {
                    CHECK_EQ(r, IVC_E_FULL);
                    break;
                }
                lens[sent++ % (1 << 12)] = len;
                changes += pair.tx.order != order;
                order = pair.tx.order;
                several += order == IVC_RING_SCATTERED && len > 2 * IVC_SLOT_FIRST_LINE;
            }
            CHECK_EQ(ivc_tx_unread(&pair.tx, count_packet, &unread), 0);
            CHECK_EQ(unread.n, sent - published);
            for (uint64_t n = check_random(&state) % (2 * (sent - taken) + 1); n > 0 && taken < sent; n--, taken++)
                take_one(&pair, taken, lens[taken % (1 << 12)]);
            if (taken == sent)
                nothing_there(&pair);
            ivc_rx_publish(&pair.rx);
            published = taken;
        }
        for (; taken < sent; taken++)
            take_one(&pair, taken, lens[taken % (1 << 12)]);
        nothing_there(&pair);
        CHECK_THAT(rows[s].changes ? changes > 100 && several > 100 : changes == 0, "row %u: %u changes, %u of "
                   "several slots", s, (unsigned)changes, (unsigned)several);
        close_pair(&pair);
    }
}

/* The order of slots changes `gap` slots before the ring's end, and nobody reads: who comes for the last time finds all
 * that was sent in front of ivc_rx_end(). Answers how far the sender was ahead. */
static uint64_t read_what_is_left(struct pair *pair, uint32_t gap)
{
    uint64_t sent = 0, taken = 0, end, ahead;

    for (; pair->tx.at + gap < pair->tx.n_slots; sent++, taken++) {
        CHECK_EQ(send_one(pair, sent, 8), 0);
        take_one(pair, taken, 8);
        nothing_there(pair);
    }
    ivc_tx_was_answered(&pair->tx);
    while (send_one(pair, sent, 8) == 0)
        sent++;
    ahead = pair->tx.tail - pair->rx.head;
    end = ivc_rx_end(&pair->rx);
    for (; pair->rx.head < end && taken < sent; taken++)
        take_one(pair, taken, 8);
    CHECK_EQ(taken, sent);
    nothing_there(pair);
    return ahead;
}

static void test_last_read(void)
{
    static const struct { uint32_t ring, slot; enum ivc_scatters scatters; } rows[] = {
        { 16 << 10, 128, IVC_SCATTERS_ALL }, { 8192, 64, IVC_SCATTERS_ALL }, { 256 << 10, 128, IVC_SCATTERS_ALL },
        { 32 << 10, 256, IVC_SCATTERS_ALL }, { 24 << 10, 128, IVC_SCATTERS_NONE }, { 4096, 64, IVC_SCATTERS_NONE },
    };

    for (unsigned s = 0; s < sizeof rows / sizeof *rows; s++) {
        unsigned further = 0;

        for (uint32_t i = 0; i < 40; i++) {
            struct pair pair;

            open_pair(&pair, rows[s].ring, rows[s].slot, 4096, 65536);
            pair.tx.scatters = rows[s].scatters;
            further += read_what_is_left(&pair, 1 + i * (pair.tx.n_slots / 80)) > pair.tx.n_slots;
            close_pair(&pair);
        }
        /* What the SKIP passes over counts. */
        CHECK_THAT((further > 0) == (rows[s].scatters == IVC_SCATTERS_ALL), "row %u: %u", s, further);
    }
}

/* Each place once. */
static void test_places(void)
{
    static bool seen[IVC_SLOTS_MAX];

    for (uint32_t n = 3; n <= IVC_SLOTS_MAX; n = 2 * n + 1) {
        CHECK_EQ(ivc_ring_scatters(n), n > 3 * IVC_SCATTERED_SLOTS);
        CHECK(!ivc_ring_scatters(n - 1) && !ivc_ring_scatters(n + 1));
        memset(seen, 0, sizeof seen);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t place = ivc_slot_place(i, n, IVC_RING_SCATTERED);

            CHECK_THAT(place < n && !seen[place], "%u of %u: %u", i, n, place);
            CHECK_EQ(ivc_slot_place(i, n, IVC_RING_IN_LINE), i);
            seen[place] = true;
        }
        CHECK_EQ(ivc_slot_place(0, n, IVC_RING_SCATTERED), 0);
    }
}

/* Puts both ends at lap `lap`, as if as many packets had passed. */
static void wind_to(struct pair *pair, uint64_t lap)
{
    uint64_t position = lap * pair->tx.n_slots;

    pair->tx.tail = pair->tx.head = position;
    pair->tx.limit = position + pair->tx.n_slots;
    pair->tx.stamp = pair->rx.stamp = ivc_stamp_of(lap);
    pair->rx.head = pair->rx.published = position;
    ivc_store_release(pair->rx.own_head, position);
    for (uint32_t i = 0; i < pair->tx.n_slots; i++)
        ivc_store_relaxed((ivc_atomic_u64 *)(pair->tx.slots + ((uint64_t)i << pair->tx.shift)),
                          ivc_slot_word(ivc_stamp_of(lap - 1), 8, 1, IVC_SLOT_INLINE));
}

/* The stamp has 32 bits: after 2^32 laps it comes round. */
static void test_laps(void)
{
    static const uint64_t laps[] = {
        1, 0x7ffffffe, 0xfffffffd, (uint64_t)1 << 32, ((uint64_t)1 << 33) - 3,
    };

    for (unsigned i = 0; i < sizeof laps / sizeof *laps; i++) {
        struct pair pair;

        open_pair(&pair, 4096, 64, 4096, 65536);
        wind_to(&pair, laps[i]);
        nothing_there(&pair);
        for (uint64_t number = 0; number < 6 * (uint64_t)pair.tx.n_slots; number++) {
            size_t len = number * 13 % 300;

            CHECK_EQ(send_one(&pair, number, len), 0);
            take_one(&pair, number, len);
            nothing_there(&pair);
        }
        close_pair(&pair);
    }
}

/* What a user sends may look like anything, also like the first word of the next packet, of this lap or of
 * the next, at the very place where the receiver will look for that. */
static void test_payload_like_words(void)
{
    for (unsigned s = 0; s < N_SHAPES; s++) {
        static uint64_t words[8192];
        struct pair pair;
        uint64_t seed = 7;

        open_pair(&pair, shapes[s].ring, shapes[s].slot, 4096, 65536);
        pair.tx.scatters = ivc_ring_scatters(pair.tx.n_slots) ? IVC_SCATTERS_ALL : IVC_SCATTERS_NONE;
        for (unsigned round = 0; round < 2000; round++) {
            size_t max = round / 50 % 2 ? pair.tx.inline_max : pair.tx.eager_max;
            size_t n = check_random(&seed) % (max / 8 + 1);
            struct iovec iov = { words, n * 8 };
            char head_bytes[IVC_RX_HEAD_MAX];
            struct ivc_packet packet;

            for (size_t i = 0; i < n; i++)
                words[i] = ivc_slot_word(pair.tx.stamp + (uint32_t)(check_random(&seed) % 2), 8, 1,
                                         IVC_SLOT_INLINE);
            while (ivc_tx_send(&pair.tx, 2, &iov, 1, n * 8) == IVC_E_FULL) {    /* the order of slots changes */
                CHECK(pair.tx.tail >= pair.tx.order_since && pair.tx.head < pair.tx.order_since);
                nothing_there(&pair);
            }
            ivc_tx_was_answered(&pair.tx);
            CHECK_THAT(ivc_rx_peek(&pair.rx, head_bytes, &packet) == 1, "%s", ivc_error_text());
            CHECK_EQ(packet.tag, 2);
            CHECK_EQ((size_t)packet.head_len + packet.body_len, n * 8);
            CHECK(memcmp(packet.head, words, packet.head_len) == 0);
            CHECK(packet.body_len == 0
                  || memcmp(packet.body, (char *)words + packet.head_len, packet.body_len) == 0);
            ivc_rx_advance(&pair.rx);
            nothing_there(&pair);
        }
        close_pair(&pair);
    }
}

/* Chunks of every length, through the growth of the pool and round it several times. */
static void test_chunks(void)
{
    static const uint32_t slots[] = { 64, 256, 4096 };

    for (unsigned s = 0; s < 3; s++) {
        struct pair pair;
        uint32_t under_way = 0, most = 0, max = 8192;
        uint64_t number = 0, taken = 0;
        size_t lens[64];

        open_pair(&pair, 128 * 1024, slots[s], max, 17 * max);
        for (size_t len = 0; len <= max; len += len < 200 || len > max - 100 ? 1 : 53) {
            uint32_t chunk;
            int r;

            while ((r = ivc_pool_get(&pair.pool, &chunk)) == IVC_E_FULL || under_way == 5) {
                if (r == 0)
                    ivc_pool_put(&pair.pool, chunk);
                CHECK(under_way > 0);
                take_one(&pair, taken, lens[taken % 64]);
                taken++;
                under_way--;
                ivc_rx_publish(&pair.rx);
                CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
            }
            CHECK_EQ(r, 0);
            send_in_chunk(&pair, chunk, number, len);
            lens[number++ % 64] = len;
            under_way++;
            most = IVC_MAX(most, pair.pool.n_chunks);
        }
        for (; taken < number; taken++)
            take_one(&pair, taken, lens[taken % 64]);
        nothing_there(&pair);
        CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
        CHECK_EQ(pair.pool.n_free, pair.pool.n_chunks);
        CHECK_THAT(most <= 17, "%u chunks", most);
        close_pair(&pair);
    }
}

/* Within one turn: a sender whose chunks are all under way is not kept until all of them were read. */
static void test_chunks_come_back(void)
{
    enum { CHUNK = 16384, CHUNKS = 16, QUARTER = CHUNKS / 4 + 1 };      /* shares are a little larger than their chunks */
    struct pair pair;
    uint32_t chunk;

    open_pair(&pair, 64 * 1024, 64, CHUNK, CHUNKS * CHUNK);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
        send_in_chunk(&pair, chunk, i, CHUNK);
    }
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), IVC_E_FULL);
    for (uint32_t read = 1; read <= CHUNKS; read++) {
        take_one(&pair, read - 1, CHUNK);
        CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
        CHECK_THAT(pair.pool.n_free < read && pair.pool.n_free + QUARTER >= read, "%u read, %u came back",
                   read, pair.pool.n_free);
    }
    nothing_there(&pair);
    CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
    CHECK_EQ(pair.pool.n_free, (uint32_t)CHUNKS);
    close_pair(&pair);
}

/* No chunk is twice under way; the limit holds; all come back. */
static void test_pool(void)
{
    struct pair pair;
    uint32_t chunks[64], n = 0, share;
    uint64_t offset;

    open_pair(&pair, 4096, 64, 4096, 21 * 4096);
    while (ivc_pool_get(&pair.pool, &chunks[n]) == 0) {
        memset(ivc_pool_memory(&pair.pool, chunks[n], &share, &offset), (int)n + 1, 4096);
        CHECK(share >= 1 && share < IVC_SHARES_MAX);
        n++;
        CHECK(n <= 21);
    }
    CHECK_EQ(n, 21);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *memory = ivc_pool_memory(&pair.pool, chunks[i], &share, &offset);

        for (unsigned at = 0; at < 4096; at++)
            CHECK_THAT(memory[at] == i + 1, "chunk %u", i);
    }
    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < n; i++)
            ivc_pool_put(&pair.pool, chunks[i]);
        for (uint32_t i = 0; i < n; i++)
            CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[i]), 0);
        CHECK_EQ(ivc_pool_get(&pair.pool, &share), IVC_E_FULL);
    }
    close_pair(&pair);
}

/* Twins, whose memory begins at `ret_memory`; answers as the pool. */
static int get_double(struct pair *pair, uint32_t left, uint32_t *ret_chunk, char **ret_memory)
{
    uint32_t share;
    uint64_t offset;
    int r = ivc_pool_get_leaving(&pair->pool, left, 2 * 4096, ret_chunk);

    if (r != 0)
        return r;
    CHECK_EQ(ivc_pool_room(&pair->pool, *ret_chunk), 2 * 4096);
    *ret_memory = ivc_pool_memory(&pair->pool, *ret_chunk, &share, &offset);
    CHECK(offset + 2 * 4096 <= pair->pool.shares[share - 1].size);
    return 0;
}

/* Singles and doubles in any order: none is under way twice, and when all are back there are as many doubles as at
 * first. */
static void test_pool_doubles(void)
{
    enum { CHUNKS = 20, STEPS = 20000 };
    struct pair pair;
    struct { uint32_t chunk; uint8_t mark; char *memory; size_t len; } out[CHUNKS];
    uint32_t n = 0, n_doubles = 0, share;
    uint64_t offset, seed = 4;

    open_pair(&pair, 4096, 64, 4096, CHUNKS * 4096);
    for (unsigned step = 0; step < STEPS; step++) {
        uint32_t what = (uint32_t)(check_random(&seed) % 4), i = n > 0 ? (uint32_t)(check_random(&seed) % n) : 0;
        int r = IVC_E_FULL;

        if (what == 0 && (r = get_double(&pair, 0, &out[n].chunk, &out[n].memory)) == 0) {
            out[n].len = 2 * 4096;
            n_doubles++;
        } else if (what == 1 && (r = ivc_pool_get(&pair.pool, &out[n].chunk)) == 0) {
            out[n].memory = ivc_pool_memory(&pair.pool, out[n].chunk, &share, &offset);
            out[n].len = 4096;
        } else if (what > 1 && n > 0) {
            for (size_t at = 0; at < out[i].len; at++)
                CHECK_THAT((uint8_t)out[i].memory[at] == out[i].mark, "step %u, chunk %u", step, out[i].chunk);
            ivc_pool_put(&pair.pool, out[i].chunk);
            out[i] = out[--n];
        }
        if (r == 0) {
            out[n].mark = (uint8_t)step;
            memset(out[n].memory, out[n].mark, out[n].len);
            n++;
        }
    }
    CHECK(n_doubles > STEPS / 20);
    while (n > 0)
        ivc_pool_put(&pair.pool, out[--n].chunk);
    CHECK_EQ(pair.pool.n_free, pair.pool.n_chunks);
    while (get_double(&pair, 0, &out[n].chunk, &out[n].memory) == 0)
        n++;
    CHECK_EQ(n, CHUNKS / 2);
    close_pair(&pair);
}

/* What is left to others is left; a second twin alone at the queue's beginning waits, and is not lost. */
static void test_pool_doubles_and_singles(void)
{
    struct pair pair;
    uint32_t first, twins, other;
    char *memory;

    open_pair(&pair, 4096, 64, 4096, 4 * 4096);
    CHECK_EQ(ivc_pool_get(&pair.pool, &first), 0);
    CHECK_EQ(get_double(&pair, 2, &twins, &memory), IVC_E_FULL);
    CHECK_EQ(get_double(&pair, 1, &twins, &memory), 0);
    CHECK_EQ(get_double(&pair, 0, &other, &memory), IVC_E_FULL);
    CHECK_EQ(pair.pool.n_free, 1);
    CHECK_EQ(ivc_pool_get(&pair.pool, &other), 0);          /* the one aside */
    CHECK_EQ(ivc_pool_get(&pair.pool, &other), IVC_E_FULL);
    CHECK(other != first && other != twins && other != twins + 1);
    ivc_pool_put(&pair.pool, other);
    CHECK_EQ(get_double(&pair, 0, &other, &memory), IVC_E_FULL);
    ivc_pool_put(&pair.pool, first);
    CHECK_EQ(get_double(&pair, 0, &other, &memory), 0);
    CHECK_EQ(other, first);
    close_pair(&pair);

    /* One is aside, and its twin all there is in the queue: the pool need not grow. */
    open_pair(&pair, 4096, 64, 4096, 4 * 4096);
    CHECK_EQ(ivc_pool_grow(&pair.pool), 0);
    pair.pool.turn_ends = UINT64_MAX;
    CHECK_EQ(ivc_pool_get(&pair.pool, &first), 0);
    ivc_pool_put(&pair.pool, first);
    CHECK_EQ(get_double(&pair, 0, &other, &memory), 0);
    CHECK_EQ(pair.pool.n_chunks, 2);
    close_pair(&pair);
}

/* As many chunks go round as are to though one would do, of a wide pool; and what takes a quarter of one lies in two of
 * its four places in turn, and in the other two of the next chunk. */
static void test_pool_wide(void)
{
    enum { CHUNK = 32 << 10, CHUNKS = 21, TURNS = 9, QUARTER = CHUNK / 4, LONG = CHUNK / 2 + 1 };
    static const size_t lens[] = { QUARTER, 1, LONG, CHUNK, QUARTER + 100 };
    static const int places[] = { 4, 8, 1, 1, 3 }, of_one[] = { 2, 4, 1, 1, 3 };
    struct pair pair;
    uint32_t chunk, share;
    uint64_t offset;

    for (unsigned row = 0; row < sizeof lens / sizeof *lens; row++) {
        uint32_t seen[CHUNKS] = { 0 }, all = 0;

        open_pair(&pair, 4096, 64, CHUNK, CHUNKS * CHUNK);
        pair.pool.is_wide = true;
        pair.pool.round = CHUNKS;
        for (unsigned i = 0; i < TURNS * CHUNKS; i++) {
            uint32_t place;

            CHECK_EQ(ivc_pool_get_leaving(&pair.pool, 0, lens[row], &chunk), 0);
            place = pair.pool.chunks[chunk].place;
            CHECK_EQ(place % 4096, 0);
            CHECK(place + lens[row] <= CHUNK && ivc_pool_room(&pair.pool, chunk) == CHUNK - place);
            memset(ivc_pool_memory(&pair.pool, chunk, &share, &offset), 1, lens[row]);
            CHECK(offset + lens[row] <= pair.pool.shares[share - 1].size);
            seen[chunk] |= 1u << place / 4096;
            ivc_pool_put(&pair.pool, chunk);
        }
        CHECK_EQ(pair.pool.n_chunks, CHUNKS);
        for (unsigned i = 0; i < CHUNKS; i++) {
            CHECK_THAT(__builtin_popcount(seen[i]) == of_one[row], "row %u, chunk %u: places %x", row, i, seen[i]);
            all |= seen[i];
        }
        CHECK_THAT(__builtin_popcount(all) == places[row], "row %u: places %x", row, all);
        close_pair(&pair);
    }
    open_pair(&pair, 4096, 64, CHUNK, CHUNKS * CHUNK);
    pair.pool.is_wide = true;
    for (unsigned i = 0; i < TURNS * CHUNKS; i++) {
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
        ivc_pool_put(&pair.pool, chunk);
    }
    CHECK_EQ(pair.pool.n_chunks, IVC_POOL_ROUND);
    close_pair(&pair);
}

/* While most chunks are free, the pair that came back last is used first, of long packets read nearby; else the one that
 * came back first. */
static void test_pool_stack(void)
{
    enum { CHUNK = IVC_POOL_STACK_LEAST, CHUNKS = 16, MANY = 10 };
    uint32_t chunks[CHUNKS], before[CHUNKS], chunk;
    struct pair pair;

    open_pair(&pair, 4096, 64, CHUNK, CHUNKS * CHUNK);
    pair.pool.is_stack = true;
    for (uint32_t i = 0; i < CHUNKS; i++)
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[i]), 0);
    for (uint32_t i = 0; i < CHUNKS; i++)
        ivc_pool_put(&pair.pool, chunks[i]);
    for (unsigned i = 0; i < 50; i++) {     /* two at a time: the same two always */
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[0]), 0);
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[1]), 0);
        CHECK(i == 0 || (chunks[0] == before[0] && chunks[1] == before[1]));
        before[0] = chunks[0];
        before[1] = chunks[1];
        ivc_pool_put_read(&pair.pool, chunks[0], false);
        ivc_pool_put_read(&pair.pool, chunks[1], false);
    }
    for (unsigned round = 0; round < 4; round++) {  /* far away, or for fewer bytes: others come first */
        bool is_far = round % 2 == 0, is_short = round >= 2;

        for (unsigned i = 0; i < 2; i++)
            CHECK_EQ(ivc_pool_get_leaving(&pair.pool, 0, CHUNK - is_short, &chunks[i]), 0);
        ivc_pool_put_read(&pair.pool, chunks[0], is_far);
        ivc_pool_put_read(&pair.pool, chunks[1], is_far);
        CHECK_EQ(pair.pool.queue[pair.pool.queue_first] != chunks[0], is_far || is_short);
    }
    for (uint32_t i = 0; i < MANY; i++)     /* most are under way */
        CHECK_EQ(ivc_pool_get(&pair.pool, &before[i]), 0);
    ivc_pool_put_read(&pair.pool, before[0], false);
    ivc_pool_put_read(&pair.pool, before[1], false);
    for (uint32_t i = MANY; i < CHUNKS; i++) {
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
        CHECK(chunk != before[0] && chunk != before[1]);
    }
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
    CHECK_EQ(chunk, before[0]);
    close_pair(&pair);
}

/* However much a sender shares, it is told when so many bytes of it were read. */
static void test_give_back_max(void)
{
    enum { CHUNK = 8192, CHUNKS = 64, N = 12 };
    enum { SOME = CHUNK - 1000 };   /* the first bytes may lie in the slot */
    static const struct { uint64_t most; unsigned times; } rows[] = {
        { 0, 0 }, { 2 * SOME, N / 2 }, { 4 * SOME, N / 4 },
    };

    for (unsigned row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct pair pair;
        uint64_t published;
        unsigned times = 0;
        uint32_t chunk;

        open_pair(&pair, 16384, 64, CHUNK, CHUNKS * CHUNK);
        pair.pool.round = CHUNKS;
        for (unsigned i = 0; i < 4 * CHUNKS + N; i++) {     /* first all that it may share */
            if (i == 4 * CHUNKS) {
                pair.rx.give_back_max = rows[row].most;
                pair.rx.body_bytes = times = 0;
            }
            CHECK_EQ(ivc_tx_refresh(&pair.tx), 0);
            CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
            send_in_chunk(&pair, chunk, i, CHUNK);
            published = pair.rx.published;
            take_one(&pair, i, CHUNK);
            times += pair.rx.published != published;
        }
        CHECK(pair.rx.shares_size >= CHUNKS * CHUNK);
        CHECK_EQ(times, rows[row].times);
        close_pair(&pair);
    }
}

/* How a long packet is to be copied, by where its sender is and what its pool does. */
static void test_rx_copy_side(void)
{
    static const struct { uint32_t far; uint64_t give_back_max; enum ivc_copy_side side; } rows[] = {
        { 0, 0, IVC_COPY_OUT }, { 0, 1, IVC_COPY_OUT_STACK },
        { IVC_FAR_LOOKS, 0, IVC_COPY_OUT_FAR }, { IVC_FAR_LOOKS, 1, IVC_COPY_OUT_FAR },
    };
    static const char body[IVC_FILL_LEAST];
    struct ivc_packet packet = { .body = body, .body_len = sizeof body };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ivc_rx rx = { .far = rows[i].far, .give_back_max = rows[i].give_back_max, .reading.n = 1 };

        CHECK_EQ(packet.side, IVC_COPY_OUT);    /* of those of which nobody says it */
        CHECK_THAT(ivc_rx_copy_side(&rx, &packet) == rows[i].side, "row %u", i);
    }
}

/* For whom lines are fetched while we wait. */
static void test_fetches_ahead(void)
{
    static const struct { uint32_t far; bool is_wide, all; size_t from, below; } rows[] = {
        { 0, false, false, SIZE_MAX, SIZE_MAX }, { 0, true, false, IVC_AHEAD_LEAST_NEAR, IVC_BY_CHUNK_LEAST },
        { 0, true, true, IVC_AHEAD_LEAST_NEAR, SIZE_MAX }, { 8, false, false, IVC_AHEAD_LEAST, SIZE_MAX },
        { 8, true, false, IVC_AHEAD_LEAST, SIZE_MAX },
    };
    struct pair pair;

    open_pair(&pair, 4096, 64, 32 << 10, 1 << 20);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        pair.tx.far = rows[i].far;
        pair.pool.is_wide = rows[i].is_wide;
        pair.pool.round = rows[i].all ? pair.pool.chunks_max : IVC_POOL_ROUND;
        for (size_t len = 1; len < 40000; len += 1 + len / 100)
            CHECK_THAT(ivc_tx_fetches_ahead(&pair.tx, len) == (len >= rows[i].from && len < rows[i].below),
                       "row %u: %zu bytes", i, len);
    }
    close_pair(&pair);
    open_pair(&pair, 4096, 64, 32 << 10, IVC_POOL_ROUND * (32 << 10));      /* so few that all go round anyway */
    pair.pool.is_wide = true;
    CHECK(ivc_tx_fetches_ahead(&pair.tx, IVC_BY_CHUNK_LEAST));
    close_pair(&pair);
}

static void wait_for_lines(struct ivc_pool *pool)
{
    for (uint32_t i = 0; i < 200; i++)
        ivc_pool_fetch_some(pool);
    CHECK(!pool->ahead.due);
}

/* What was sent is fetched for in the next wait, of free chunks, and counts until such a chunk is got. */
static void test_pool_ahead(void)
{
    struct pair pair;
    uint32_t chunks[6];

    open_pair(&pair, 4096, 64, 8192, 6 * 8192);
    for (uint32_t i = 0; i < 6; i++)
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[i]), 0);
    for (uint32_t i = 0; i < 4; i++)
        ivc_pool_put(&pair.pool, chunks[i]);
    CHECK(!pair.pool.ahead.due && !ivc_pool_is_ready(&pair.pool, 1));       /* nothing was sent */

    ivc_pool_has_sent(&pair.pool, false, 1000, false);
    CHECK(!ivc_pool_is_ready(&pair.pool, 1));               /* nobody has waited */
    wait_for_lines(&pair.pool);
    CHECK(ivc_pool_is_ready(&pair.pool, 1000));
    CHECK(!ivc_pool_is_ready(&pair.pool, 1001));
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[0]), 0);
    CHECK(!ivc_pool_is_ready(&pair.pool, 1));               /* of the next one nothing was fetched */
    ivc_pool_put(&pair.pool, chunks[0]);

    ivc_pool_has_sent(&pair.pool, true, 100, true);
    ivc_pool_has_sent(&pair.pool, true, 4000, true);
    wait_for_lines(&pair.pool);
    CHECK_EQ(pair.pool.ahead.done, 2);
    CHECK_EQ(pair.pool.ahead.bytes, 4000);
    CHECK(!ivc_pool_is_ready(&pair.pool, 100));             /* two at a time go the other way */
    for (uint32_t i = 0; i < 2; i++)
        CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[i]), 0);
    CHECK_EQ(pair.pool.ahead.done, 0);

    /* One chunk is free, but for one that waits for its twin, and more are asked for: a part of a packet's lines is not
     * enough for it. */
    ivc_pool_has_sent(&pair.pool, true, 8192, true);
    ivc_pool_fetch_some(&pair.pool);
    CHECK(ivc_pool_is_ready(&pair.pool, IVC_LINE) && !ivc_pool_is_ready(&pair.pool, 8192));
    wait_for_lines(&pair.pool);
    CHECK(ivc_pool_is_ready(&pair.pool, 8192));
    CHECK_EQ(pair.pool.ahead.done, 1);
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunks[2]), 0);
    CHECK(!ivc_pool_is_ready(&pair.pool, 1));
    ivc_pool_has_sent(&pair.pool, true, 0, true);           /* a packet without bytes, and none is free */
    wait_for_lines(&pair.pool);
    CHECK_EQ(pair.pool.ahead.done, 0);
    close_pair(&pair);
}

/* A pool of one chunk, in a region that has no memory for two neighbours: as soon as it has, they are got, though it is
 * far from roomy. */
static void test_pool_without_doubles(void)
{
    enum { PAGE = 4096, TRIES = 20000 };
    struct pair pair;
    struct ivc_share most;
    uint64_t size = SIZE;
    uint32_t chunk, n = 0;
    char *memory;
    int r;

    open_pair(&pair, 4096, 64, PAGE, 1 << 20);
    while (ivc_region_share(pair.from, IVC_SLOT_ANY, size, &most) != 0)
        size -= PAGE;
    ivc_region_unshare(pair.from, &most);
    CHECK_EQ(ivc_region_share(pair.from, IVC_SLOT_ANY, size - 2 * PAGE, &most), 0);
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
    CHECK_EQ(get_double(&pair, 0, &chunk, &memory), IVC_E_FULL);
    ivc_pool_put(&pair.pool, chunk);
    CHECK_EQ(pair.pool.n_chunks, 1);
    CHECK_EQ(get_double(&pair, 0, &chunk, &memory), IVC_E_NOSPACE);
    CHECK_EQ(get_double(&pair, 1, &chunk, &memory), IVC_E_FULL);
    ivc_region_unshare(pair.from, &most);
    CHECK_EQ(ivc_region_share(pair.from, IVC_SLOT_ANY, size - 6 * PAGE, &most), 0);
    while ((r = get_double(&pair, 0, &chunk, &memory)) == IVC_E_NOSPACE && n < TRIES)
        n++;
    CHECK_EQ(r, 0);
    ivc_region_unshare(pair.from, &most);
    close_pair(&pair);
}

/* A region with hardly any memory: the pool takes what there is and asks no more. */
static void test_pool_without_memory(void)
{
    struct pair pair;
    struct ivc_share most, share;
    uint64_t size = SIZE;
    uint32_t chunk;

    open_pair(&pair, 4096, 64, 4096, 1 << 20);
    while (ivc_region_share(pair.from, IVC_SLOT_ANY, size, &most) != 0)
        size -= 4096;
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), IVC_E_NOSPACE);
    CHECK_EQ(ivc_region_share(pair.from, IVC_SLOT_ANY, 4096, &share), IVC_E_NOSPACE);
    ivc_region_unshare(pair.from, &most);
    /* There is memory again: the pool must find it. */
    CHECK_EQ(ivc_pool_get(&pair.pool, &chunk), 0);
    close_pair(&pair);
}

/* Not watched: the bell rings once per packet; watched: not at all. */
static uint32_t rang[8], n_rang;

static void on_ready(void *arg, uint32_t slot)
{
    (void)arg;
    rang[n_rang++ % 8] = slot;
}

static void test_doorbell(void)
{
    struct pair pair;
    uint32_t slot;

    open_pair(&pair, 4096, 64, 4096, 65536);
    slot = ivc_region_self(pair.from)->slot;
    ivc_region_take_ready(pair.to, on_ready, NULL);     /* a new ring makes itself known */
    CHECK_EQ(ivc_load_relaxed(ivc_region_ready_summary(pair.to)), 0);
    n_rang = 0;
    CHECK_EQ(send_one(&pair, 0, 8), 0);
    CHECK(ivc_load_relaxed(ivc_region_ready_summary(pair.to)) != 0);
    ivc_region_take_ready(pair.to, on_ready, NULL);
    CHECK_EQ(n_rang, 1);
    CHECK_EQ(rang[0], slot);
    ivc_region_take_ready(pair.to, on_ready, NULL);
    CHECK_EQ(n_rang, 1);
    ivc_region_set_watched(pair.to, slot, true);
    CHECK_EQ(send_one(&pair, 1, 8), 0);
    CHECK_EQ(ivc_load_relaxed(ivc_region_ready_summary(pair.to)), 0);
    ivc_region_set_watched(pair.to, slot, false);
    CHECK_EQ(send_one(&pair, 2, 8), 0);
    ivc_region_ring_self(pair.to, 63);
    ivc_region_take_ready(pair.to, on_ready, NULL);
    CHECK_EQ(n_rang, 3);
    close_pair(&pair);
}

static void test_shapes(void)
{
    static const struct { uint32_t ring, slot; bool good; } rows[] = {
        { 2048, 64, true }, { 320, 64, true }, { 319, 64, false }, { 63, 64, false }, { 2048, 256, true },
        { 24 * 1024, 4096, true }, { 16 * 1024, 4096, false }, { 1 << 28, 64, true },
        { 1 << 28, 4096, true },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t eager_max = 0;
        int r = ivc_tx_shape_check(rows[i].ring, rows[i].slot, &eager_max);

        CHECK_THAT((r == 0) == rows[i].good, "row %zu gave %d", i, r);
        if (rows[i].good)
            CHECK_THAT(eager_max >= rows[i].slot - 8 && eager_max < rows[i].ring, "row %zu: %u", i, eager_max);
        else
            CHECK_TEXT(ivc_error_text(), "ring", "too small", "IVC_RING_SIZE");
    }
}

/* What filling and reading take, into the cache and past it; but for one packet in many that is held up. */
struct costs {
    uint64_t filling[2], reading[2];
};

/* Reads the oldest packet, whose tag says which way it was filled. */
static void read_filled(struct pair *pair, const struct costs *costs, unsigned held_up)
{
    char head[IVC_RX_HEAD_MAX];
    struct ivc_packet packet;

    CHECK_EQ(ivc_rx_peek(&pair->rx, head, &packet), 1);
    ivc_rx_note_reading(&pair->rx, held_up * costs->reading[packet.tag], IVC_FILL_LEAST);
    ivc_rx_advance(&pair->rx);
    ivc_rx_publish(&pair->rx);
}

/* How many of `n` packets were filled past the cache; the receiver reads each when `lag` others have been sent, or the
 * pool is empty. */
static unsigned send_packets(struct pair *pair, unsigned n, unsigned lag, const struct costs *costs)
{
    unsigned n_past = 0, unread = 0;
    uint32_t chunk;

    for (unsigned i = 0; i < n; i++) {
        bool past = ivc_tx_copy_side(&pair->tx, IVC_FILL_LEAST) == IVC_COPY_PAST;
        unsigned held_up = i % 100 == 0 ? 1000 : 1;

        CHECK_EQ(ivc_tx_copy_side(&pair->tx, IVC_FILL_LEAST - 1), IVC_COPY_IN);
        while (ivc_pool_get(&pair->pool, &chunk) != 0) {
            if (unread > lag / 2)
                read_filled(pair, costs, held_up), unread--;
            CHECK_EQ(ivc_tx_refresh(&pair->tx), 0);
        }
        ivc_tx_note_filling(&pair->tx, held_up * costs->filling[past], IVC_FILL_LEAST);
        CHECK_EQ(ivc_tx_send_chunk(&pair->tx, past, chunk, IVC_FILL_LEAST), 0);
        unread++;
        for (; unread > lag; unread--)
            read_filled(pair, costs, held_up);
        n_past += past;
    }
    for (; unread > 0; unread--)
        read_filled(pair, costs, 1);
    return n_past;
}

/* The way that takes both less time is gone, the other tried ever less often; a change is noticed. */
static void test_fill(void)
{
    enum { N = 1000000, FEW = N / 50, LAG = 100, FEW_SENT = 4000 };
    static const struct costs near = { { 600, 1200 }, { 650, 1500 } }, far = { { 4000, 1200 }, { 1300, 1600 } };
    static const struct costs alike = { { 1000, 900 }, { 1000, 950 } }, one_sided = { { 1500, 1200 }, { 1000, 4000 } };
    struct pair pair;

    open_pair(&pair, 64 << 10, 64, 32 << 10, 4 << 20);
    CHECK_THAT(send_packets(&pair, FEW_SENT, 1, &near) < FEW_SENT / 10, "few under way");
    CHECK_THAT(send_packets(&pair, N, LAG, &near) < FEW, "near");
    (void)send_packets(&pair, 200000, LAG, &far);
    CHECK_THAT(send_packets(&pair, N, LAG, &far) > N - FEW, "far");
    (void)send_packets(&pair, 200000, LAG, &near);
    CHECK_THAT(send_packets(&pair, N, LAG, &near) < FEW, "near again");
    CHECK_THAT(send_packets(&pair, N, LAG, &alike) < FEW, "hardly better");
    CHECK_THAT(send_packets(&pair, N, LAG, &one_sided) < FEW, "better for the sender alone");
    close_pair(&pair);
}

/* Far away all of a sudden, in the middle of a long rest: that is seen at once, not when the rest is over. */
static void test_fill_moved(void)
{
    enum { N = 1000000, LAG = 20, SOON = 1000 };
    static const struct costs near = { { 600, 1200 }, { 650, 1500 } }, far = { { 4000, 1200 }, { 1300, 1600 } };
    struct pair pair;

    open_pair(&pair, 64 << 10, 64, 32 << 10, 4 << 20);
    (void)send_packets(&pair, N, LAG, &near);
    while (pair.tx.fill.phase != IVC_FILL_REST || pair.tx.fill.left < 4 * SOON)
        (void)send_packets(&pair, SOON, LAG, &near);
    (void)send_packets(&pair, SOON, LAG, &far);
    CHECK_THAT(send_packets(&pair, SOON, LAG, &far) > SOON / 2, "far");
    close_pair(&pair);
}

/* Of `n` short packets that follow each other in so many cycles, how many were filled past the cache. */
static unsigned fill_short(struct ivc_fill *fill, unsigned n, uint64_t into, uint64_t past)
{
    static uint64_t now = 1;
    unsigned n_past = 0, looks = 0;

    for (unsigned i = 0; i < n; i++) {
        bool looks_now = ivc_fill_needs_now(fill);

        CHECK(!ivc_fill_asks(fill));
        n_past += fill->past;
        now += fill->past ? past : into;
        ivc_fill_note(fill, 0, looks_now ? now : 0, IVC_FILL_LEAST_SHORT, 0, 10);
        looks += looks_now;
    }
    CHECK_THAT(looks <= n / 16 + 1, "%u looks at the clock of %u", looks, n);
    return n_past;
}

/* Past the cache only where a stream is quicker by a fourth so; the clock is seldom looked at. */
static void test_fill_short(void)
{
    enum { N = 200000, FEW = N / 50, NEW = 2000, SOON = 10000 };
    struct ivc_fill fill;

    ivc_fill_init_short(&fill);
    CHECK_EQ(fill_short(&fill, NEW, 30000, 1000), 0);       /* slow as long as memory is new */
    CHECK_THAT(fill_short(&fill, N, 1000, 2000) < FEW, "slower");
    CHECK_THAT(fill_short(&fill, N, 1000, 850) < FEW, "a little quicker is not enough");
    (void)fill_short(&fill, N, 1000, 600);
    CHECK_THAT(fill_short(&fill, N, 1000, 600) > N - FEW, "quicker");
    (void)fill_short(&fill, N, 600, 600);
    CHECK_THAT(fill_short(&fill, N, 600, 600) < FEW, "no longer");
    while (fill.phase != IVC_FILL_REST || fill.left < 4 * SOON)
        (void)fill_short(&fill, FEW, 600, 2000);
    (void)fill_short(&fill, SOON, 6000, 1000);
    CHECK_EQ(fill_short(&fill, SOON / 10, 6000, 1000), SOON / 10);  /* far all of a sudden */
}

/* Which packets that concerns, and where nothing is compared. */
static void test_fill_classes(void)
{
    enum { N = 20000 };
    struct pair pair;

    open_pair(&pair, 64 << 10, 64, 32 << 10, 4 << 20);
    pair.tx.fill_short.past = true;
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST_SHORT - 1), IVC_COPY_IN);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST_SHORT), IVC_COPY_PAST);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST - 1), IVC_COPY_PAST);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST), IVC_COPY_IN);
    CHECK(!ivc_tx_times_filling(&pair.tx, IVC_FILL_LEAST_SHORT));
    CHECK(ivc_tx_times_filling(&pair.tx, IVC_FILL_LEAST));
    for (unsigned i = 0; i < N; i++)
        ivc_tx_note_filling(&pair.tx, 0, IVC_FILL_LEAST_SHORT);
    CHECK(pair.tx.fill_short.before > 0);
    CHECK_EQ(pair.tx.fill.before, 0);
    close_pair(&pair);

    open_pair(&pair, 64 << 10, 64, 32 << 10, 4 << 20);
    pair.tx.fill_short.past = true;
    pair.tx.is_crowded = true;
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST_SHORT), IVC_COPY_IN);
    for (unsigned i = 0; i < 2 * N; i++) {
        pair.tx.is_crowded = i < N;
        pair.tx.untimed = i >= N;
        ivc_tx_note_filling(&pair.tx, 0, IVC_FILL_LEAST_SHORT);
    }
    CHECK_EQ(pair.tx.fill_short.before, 0);
    close_pair(&pair);
}

/* A receiver of an older build says nothing: nothing is tried. */
static void test_fill_alone(void)
{
    struct pair pair;

    open_pair(&pair, 64 << 10, 64, 32 << 10, 1 << 20);
    for (unsigned i = 0; i < 100000; i++) {
        ivc_tx_note_filling(&pair.tx, 1000, IVC_FILL_LEAST);
        CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST), IVC_COPY_IN);
    }
    close_pair(&pair);
}

/* Where others want the processor, all goes into the cache, and times that are theirs as well are not looked at. */
static void test_fill_crowded(void)
{
    enum { N = 200000, LAG = 100, FEW = 1000 };
    static const struct costs far = { { 4000, 1200 }, { 1300, 1600 } };
    struct pair pair;

    open_pair(&pair, 64 << 10, 64, 32 << 10, 4 << 20);
    pair.tx.is_crowded = true;
    CHECK_EQ(send_packets(&pair, N, LAG, &far), 0);
    pair.tx.is_crowded = false;
    (void)send_packets(&pair, N, LAG, &far);
    CHECK_THAT(send_packets(&pair, FEW, LAG, &far) == FEW, "far");
    pair.tx.is_crowded = true;
    CHECK_EQ(send_packets(&pair, N, LAG, &far), 0);
    pair.tx.is_crowded = false;
    CHECK_THAT(send_packets(&pair, 1, LAG, &far) == 1, "what was found out is kept");
    close_pair(&pair);
}

/* Chunks until none is free, to a receiver who is far away: how many. */
static unsigned send_all_chunks(struct pair *pair)
{
    unsigned n = 0;
    uint32_t chunk;

    for (; ivc_pool_get(&pair->pool, &chunk) == 0; n++) {
        pair->tx.far = IVC_FAR_LOOKS;
        send_in_chunk(pair, chunk, 0, IVC_FILL_LEAST);
    }
    return n;
}

static void take_chunks(struct pair *pair, unsigned n)
{
    while (n-- > 0)
        take_one(pair, 0, IVC_FILL_LEAST);
    ivc_rx_publish(&pair->rx);
}

/* Plain moves for who has read nearly all of a stream when chunks are needed; for nobody else. */
static void test_awaited(void)
{
    struct pair pair;
    unsigned n;

    open_pair(&pair, 64 << 10, 64, 32 << 10, 1 << 20);
    n = send_all_chunks(&pair);
    CHECK(n > IVC_POOL_ROUND);
    CHECK_EQ(ivc_tx_need_chunks(&pair.tx), 0);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST), IVC_COPY_IN);
    take_chunks(&pair, n - 4);                      /* it is behind */
    CHECK_EQ(ivc_tx_need_chunks(&pair.tx), 0);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST), IVC_COPY_IN);
    take_chunks(&pair, 3);
    CHECK_EQ(ivc_tx_need_chunks(&pair.tx), 0);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST), IVC_COPY_IN_PLAIN);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST - 1), IVC_COPY_IN);
    take_chunks(&pair, 1);

    ivc_pool_fetch_some(&pair.pool);                /* a wait: the stream is over */
    n = send_all_chunks(&pair);
    ivc_pool_fetch_some(&pair.pool);
    take_chunks(&pair, n);
    CHECK_EQ(ivc_tx_need_chunks(&pair.tx), 0);
    CHECK_EQ(ivc_tx_copy_side(&pair.tx, IVC_FILL_LEAST), IVC_COPY_IN);
    close_pair(&pair);
}

/* Short packets alone are left in line; of several lines, far away, are not. */
static void test_scatters_far(void)
{
    static const struct { size_t len; uint32_t far; enum ivc_ring_order order; } rows[] = {
        { IVC_SLOT_FIRST_LINE, 8, IVC_RING_IN_LINE }, { IVC_SLOT_FIRST_LINE + 1, 8, IVC_RING_SCATTERED },
        { 6 * IVC_SLOT_FIRST_LINE, 8, IVC_RING_SCATTERED }, { 6 * IVC_SLOT_FIRST_LINE + 1, 8, IVC_RING_IN_LINE },
        { 6 * IVC_SLOT_FIRST_LINE, 0, IVC_RING_IN_LINE },
    };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pair pair;

        open_pair(&pair, 256 << 10, 128, 4096, 65536);
        pair.tx.untimed = true;
        pair.tx.far = rows[i].far;
        pair.tx.scatters = IVC_SCATTERS_FAR;
        for (uint64_t n = 0; n < 100; n++) {
            CHECK_EQ(send_one(&pair, n, rows[i].len), 0);
            take_one(&pair, n, rows[i].len);
            ivc_rx_publish(&pair.rx);
            if (n % 8 == 7)
                ivc_tx_was_answered(&pair.tx);
        }
        CHECK_THAT(pair.tx.order == rows[i].order, "row %u: order %d", i, pair.tx.order);
        close_pair(&pair);
    }
}

/* Far after some more looks than half by which it is; one that took too long for any line does not count. */
static void test_far(void)
{
    static const struct { uint64_t cycles; unsigned looks; bool is_far; } rows[] = {
        { 600, 4, false }, { 600, 1, true }, { 5000, 100, true }, { 600, 100, true }, { 150, 3, true },
        { 150, 1, false }, { 5000, 100, false }, { 150, 100, false }, { 200, 5, true },
    };
    uint32_t far = 0;

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (unsigned n = 0; n < rows[i].looks; n++)
            ivc_far_note(&far, rows[i].cycles);
        CHECK_THAT(ivc_far_is(far) == rows[i].is_far, "row %u: %u", i, far);
    }
}

static const struct check_case cases[] = {
    { "shapes of a ring", test_shapes, 0 },
    { "every packet length", test_lengths, 0 },
    { "full and emptied at random", test_full, 0 },
    { "exactly full", test_exactly_full, 0 },
    { "the longest, round the end", test_longest, 0 },
    { "begun anew", test_begins_anew, 0 },
    { "slots scattered and in line", test_orders, 0 },
    { "slots scattered for one far away", test_scatters_far, 0 },
    { "a ring read for the last time", test_last_read, 0 },
    { "places of slots", test_places, 0 },
    { "2^32 laps", test_laps, 0 },
    { "payloads that look like packets", test_payload_like_words, 0 },
    { "chunks of every length", test_chunks, 0 },
    { "chunks come back in time", test_chunks_come_back, 0 },
    { "the pool's limit", test_pool, 0 },
    { "double chunks", test_pool_doubles, 0 },
    { "... and single ones", test_pool_doubles_and_singles, 0 },
    { "a wide pool", test_pool_wide, 0 },
    { "chunks that came back last first", test_pool_stack, 0 },
    { "so many bytes given back at a time", test_give_back_max, 0 },
    { "how a long packet is copied", test_rx_copy_side, 0 },
    { "for whom chunks are fetched ahead", test_fetches_ahead, 0 },
    { "chunks that are fetched ahead", test_pool_ahead, 0 },
    { "a pool without memory", test_pool_without_memory, 0 },
    { "... for neighbours", test_pool_without_doubles, 0 },
    { "chunks filled into the cache or past it", test_fill, 0 },
    { "chunks filled for one who has moved far away", test_fill_moved, 0 },
    { "short packets filled past the cache", test_fill_short, 0 },
    { "... of which classes", test_fill_classes, 0 },
    { "chunks filled for one who does not tell", test_fill_alone, 0 },
    { "chunks filled while others want the processor", test_fill_crowded, 0 },
    { "chunks filled for one who waits for them", test_awaited, 0 },
    { "how far away", test_far, 0 },
    { "doorbell", test_doorbell, 0 },
};
CHECK_MAIN(cases)
