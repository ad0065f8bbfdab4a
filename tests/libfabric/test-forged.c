/*
 * Requests for memory that nobody in his right mind sends: a member of the region that speaks the
 * provider's language writes them by hand, to an endpoint that was opened through libfabric.
 *
 * Every request must be refused with an error, and no byte may change; what answers questions that
 * nobody asked must be ignored; and memory whose registration is closed is out of reach for one who
 * stopped half way.
 */
#include "end.h"

#include "../../adapters/libfabric/rma.h"

enum {
    KEY = 7, KEY_READ = 8, KEY_WRITE = 9, KEY_ALL = 10,
    SIZE = 4096, BIG = 16 << 20,
};

/* The group in which the provider's endpoints are: as in dispatch.c. */
#define GROUP 0x6976632d6669ull

static const uint64_t BOTH = FI_REMOTE_READ | FI_REMOTE_WRITE;

static struct end victim;
static _Alignas(16) uint8_t memory[3 * SIZE];      /* the middle is registered */

/* ---------------------------------------------------------------- the forger */

static struct {
    struct ivc_endpoint *endpoint;
    struct ivc_mailbox *mailbox;
    struct ivc_peer *peer;
    struct ivc_fi_header answer;
    size_t answer_len;
    unsigned answers, sent;
} forger;

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg;
    ivc_mailbox_packet(forger.mailbox, peer, packet);
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    (void)arg;
    (void)reason;
    ivc_mailbox_gone(forger.mailbox, peer);
}

static void on_start(void *arg, struct ivc_message *message)
{
    (void)arg;
    CHECK(message->header_len >= sizeof forger.answer);
    memcpy(&forger.answer, message->header, sizeof forger.answer);
    forger.answer_len = message->len;
    forger.answers++;
}

static void on_done(void *arg, struct ivc_message *message, int status)
{
    (void)arg;
    (void)message;
    (void)status;
}

static void on_sent(void *arg, int status)
{
    (void)arg;
    (void)status;
    forger.sent++;
}

static void open_forger(const char *region)
{
    struct ivc_endpoint_options options = {
        .region = region, .magic_id = GROUP, .on_packet = on_packet, .on_gone = on_gone,
    };
    struct ivc_address address = { .len = sizeof victim.address };

    memcpy(address.bytes, victim.address, sizeof victim.address);
    CHECK_EQ(ivc_endpoint_open(&options, &forger.endpoint), 0);
    CHECK_EQ(ivc_mailbox_new(forger.endpoint, on_start, on_done, NULL, &forger.mailbox), 0);
    CHECK_EQ(ivc_endpoint_connect(forger.endpoint, &address, &forger.peer), 0);
}

static void close_forger(void)
{
    ivc_mailbox_free(forger.mailbox);
    ivc_endpoint_free(forger.endpoint);
}

static void open_both(void)
{
    const char *region = check_file(0, 256 << 20);

    end_environment(region);
    end_open(&victim, FI_THREAD_DOMAIN);
    open_forger(region);
}

static void turn(void)
{
    CHECK(fi_cq_read(victim.cq, NULL, 0) <= 0);
    ivc_mailbox_progress(forger.mailbox);
}

static void say(const void *header, const void *payload, size_t len)
{
    const struct iovec iov = { (void *)(uintptr_t)payload, len };
    int r;

    while ((r = ivc_mailbox_try_send(forger.mailbox, forger.peer, header, &iov, len > 0))
           == IVC_E_FULL)
        turn();
    CHECK_EQ(r, 0);
}

/* Sends a request; the error in the answer to it. */
static uint64_t ask(const void *header, const void *payload, size_t len, const char *what)
{
    unsigned before = forger.answers;
    uint64_t limit = end_now_ms() + 20000 * check_slowdown();

    say(header, payload, len);
    while (forger.answers == before) {
        CHECK_THAT(end_now_ms() < limit, "%s: no answer", what);
        turn();
    }
    CHECK_EQ(forger.answer.id, ((const struct ivc_fi_header *)header)->id);
    return forger.answer.data;
}

/* ---------------------------------------------------------------- what is asked for */

static struct fid_mr *reg(void *at, size_t len, uint64_t access, uint64_t key)
{
    struct fid_mr *mr;
    int r = fi_mr_reg(victim.domain, at, len, access, 0, key, 0, &mr, NULL);

    CHECK_THAT(r == 0, "fi_mr_reg: %s", fi_strerror(-r));
    return mr;
}

static void reg_all(struct fid_mr *mrs[4])
{
    mrs[0] = reg(memory + SIZE, SIZE, BOTH, KEY);
    mrs[1] = reg(memory + SIZE, SIZE, FI_REMOTE_READ, KEY_READ);
    mrs[2] = reg(memory + SIZE, SIZE, FI_REMOTE_WRITE, KEY_WRITE);
    mrs[3] = reg(NULL, SIZE_MAX, BOTH, KEY_ALL);
    memset(memory, 0x5a, sizeof memory);
}

static void check_untouched(const char *what)
{
    for (size_t i = 0; i < sizeof memory; i++)
        CHECK_THAT(memory[i] == 0x5a, "%s: byte %zu has changed", what, i);
}

static void close_mrs(struct fid_mr *mrs[4])
{
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(fi_close(&mrs[i]->fid), 0);
}

static struct ivc_fi_rma_header rma(enum ivc_fi_kind kind, uint64_t n, uint64_t addr, uint64_t key,
                                    uint64_t len)
{
    return (struct ivc_fi_rma_header){
        .base = {
            .len = sizeof(struct ivc_fi_rma_header), .kind = (uint8_t)kind,
            .flags = IVC_FI_WANT_ACK | IVC_FI_WITH_DATA, .id = 1234, .tag = n,
        },
        .addr = addr, .key = key, .len = len,
    };
}

/* A request of one segment that no registration allows. */
static const struct {
    const char *what;
    uint64_t addr, key, len;
} beyond[] = {
    { "unknown key", 0, 99, 8 },
    { "key that is no key", 0, UINT64_MAX, 8 },
    { "one byte too many", 0, KEY, SIZE + 1 },
    { "begins too late", SIZE, KEY, 1 },
    { "ends too late", SIZE - 4, KEY, 8 },
    { "address that wraps", UINT64_MAX - 3, KEY, 8 },
    { "length that wraps", 8, KEY, UINT64_MAX - 3 },
    { "length and address that wrap", UINT64_MAX - 7, KEY, UINT64_MAX },
    { "sign", (uint64_t)INT64_MIN, KEY, 8 },
};

static void test_reads(void)
{
    struct ivc_fi_rma_header header;
    struct fid_mr *mrs[4];

    open_both();
    reg_all(mrs);
    for (unsigned i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        header = rma(IVC_FI_KIND_READ, 1, beyond[i].addr, beyond[i].key, beyond[i].len);
        CHECK_THAT(ask(&header, NULL, 0, beyond[i].what) != 0, "%s", beyond[i].what);
        CHECK_EQ(forger.answer_len, 0);
    }
    header = rma(IVC_FI_KIND_READ, 1, 0, KEY_WRITE, 8);
    CHECK_EQ(ask(&header, NULL, 0, "no right to read"), FI_EACCES);
    for (uint64_t n = 0; n < 3; n++) {      /* 0, more than there may be, 2 without a list */
        const uint64_t counts[] = { 0, IVC_FI_RMA_IOV_MAX + 1, 2 };

        header = rma(IVC_FI_KIND_READ, counts[n], 0, KEY, 8);
        CHECK(ask(&header, NULL, 0, "segments") != 0);
    }
    header = rma(IVC_FI_KIND_READ, (uint64_t)1 << 60, 0, KEY, 8);
    CHECK(ask(&header, memory, 64, "segments whose list wraps") != 0);
    /* The same program asks for what it may have: the refusals were not of everything. */
    header = rma(IVC_FI_KIND_READ, 1, 8, KEY, 16);
    CHECK_EQ(ask(&header, NULL, 0, "a good read"), 0);
    CHECK_EQ(forger.answer_len, 16);
    close_mrs(mrs);
    close_forger();
    end_close(&victim);
}

static void test_writes(void)
{
    static const uint8_t payload[SIZE + 1];
    struct ivc_fi_rma_header header;
    struct fid_mr *mrs[4];

    open_both();
    reg_all(mrs);
    for (unsigned i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        size_t len = beyond[i].len < sizeof payload ? beyond[i].len : sizeof payload;

        header = rma(IVC_FI_KIND_WRITE, 1, beyond[i].addr, beyond[i].key, beyond[i].len);
        CHECK_THAT(ask(&header, payload, len, beyond[i].what) != 0, "%s", beyond[i].what);
    }
    header = rma(IVC_FI_KIND_WRITE, 1, 0, KEY_READ, 8);
    CHECK_EQ(ask(&header, payload, 8, "no right to write"), FI_EACCES);
    header = rma(IVC_FI_KIND_WRITE, 1, 0, KEY, 8);
    CHECK(ask(&header, payload, 9, "more bytes than it says") != 0);
    CHECK(ask(&header, payload, 7, "less bytes than it says") != 0);
    CHECK(ask(&header, NULL, 0, "no bytes") != 0);
    header = rma(IVC_FI_KIND_WRITE, (uint64_t)1 << 60, 0, KEY, 8);
    CHECK(ask(&header, payload, 8, "segments whose list wraps") != 0);
    check_untouched("writes");
    header = rma(IVC_FI_KIND_WRITE, 1, 0, KEY, 8);
    CHECK_EQ(ask(&header, payload, 8, "a good write"), 0);
    CHECK_EQ(memory[SIZE], 0);
    CHECK_EQ(memory[SIZE + 8], 0x5a);
    close_mrs(mrs);
    close_forger();
    end_close(&victim);
}

/* Lists: some bad, and then not a byte is written of the good ones. */
static void test_lists(void)
{
    const uint64_t half = (uint64_t)1 << 63, here = (uintptr_t)memory + SIZE;
    const struct {
        const char *what;
        struct fi_rma_iov list[3];
        uint64_t len;
    } lists[] = {
        { "second key", { { 0, 8, KEY }, { 0, 8, 99 }, { 16, 8, KEY } }, 24 },
        { "second length", { { 0, 8, KEY }, { 8, SIZE, KEY }, { 16, 8, KEY } }, 16 + SIZE },
        { "sum too small", { { 0, 8, KEY }, { 8, 8, KEY }, { 16, 8, KEY } }, 16 },
        { "sum too large", { { 0, 8, KEY }, { 8, 8, KEY }, { 16, 8, KEY } }, 32 },
        { "sum that wraps", { { here, half - 1, KEY_ALL }, { 1, half - 1, KEY_ALL },
                              { here, 10, KEY_ALL } }, 8 },
    };
    struct { struct fi_rma_iov list[3]; uint8_t bytes[2 * SIZE]; } payload = { .bytes = { 0 } };
    struct ivc_fi_rma_header header;
    struct fid_mr *mrs[4];

    open_both();
    reg_all(mrs);
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
        memcpy(payload.list, lists[i].list, sizeof payload.list);
        header = rma(IVC_FI_KIND_WRITE, 3, 0, KEY, lists[i].len);
        CHECK_THAT(ask(&header, &payload, sizeof payload.list + lists[i].len, lists[i].what) != 0,
                   "%s", lists[i].what);
        header.base.kind = IVC_FI_KIND_READ;
        CHECK_THAT(ask(&header, &payload, sizeof payload.list, lists[i].what) != 0, "%s",
                   lists[i].what);
        CHECK_EQ(forger.answer_len, 0);
    }
    header = rma(IVC_FI_KIND_WRITE, 3, 0, KEY, 24);
    CHECK(ask(&header, &payload, sizeof payload.list - 1, "a list cut off") != 0);
    check_untouched("lists");
    close_mrs(mrs);
    close_forger();
    end_close(&victim);
}

/* ---------------------------------------------------------------- atomics */

static struct ivc_fi_atomic_header atomic_of(uint8_t datatype, uint8_t op, uint8_t mode,
                                             uint8_t n_segments, uint32_t count)
{
    return (struct ivc_fi_atomic_header){
        .base = {
            .len = sizeof(struct ivc_fi_atomic_header), .kind = IVC_FI_KIND_ATOMIC,
            .flags = IVC_FI_WANT_ACK, .id = 4321,
        },
        .key = KEY, .datatype = datatype, .op = op, .mode = mode, .n_segments = n_segments,
        .count = count,
    };
}

static void test_atomics(void)
{
    static const struct {
        const char *what;
        uint8_t datatype, op, mode, n_segments;
        uint32_t count;
        size_t len;
    } bad[] = {
        { "datatype", 255, FI_SUM, IVC_FI_ATOMIC_BASE, 1, 1, 8 },
        { "op", FI_UINT64, 255, IVC_FI_ATOMIC_BASE, 1, 1, 8 },
        { "op without meaning", FI_DOUBLE, FI_BOR, IVC_FI_ATOMIC_BASE, 1, 1, 8 },
        { "mode", FI_UINT64, FI_SUM, 77, 1, 1, 8 },
        { "op of another mode", FI_UINT64, FI_CSWAP, IVC_FI_ATOMIC_BASE, 1, 1, 8 },
        { "no segment", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_BASE, 0, 1, 8 },
        { "segments", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_FETCH, 255, 1, 8 },
        { "no list", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_FETCH, 2, 1, 8 },
        { "count", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_BASE, 1, UINT32_MAX, 8 },
        { "count that wraps", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_FETCH, 1, 1u << 29, 0 },
        { "no operand", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_FETCH, 1, 1, 0 },
        { "half an operand", FI_UINT64, FI_SUM, IVC_FI_ATOMIC_BASE, 1, 1, 4 },
        { "nothing to compare", FI_UINT64, FI_CSWAP, IVC_FI_ATOMIC_COMPARE, 1, 1, 8 },
        { "too much", FI_UINT8, FI_SUM, IVC_FI_ATOMIC_BASE, 1, 1, IVC_FI_ATOMIC_REQUEST_MAX + 1 },
    };
    static const uint8_t payload[IVC_FI_ATOMIC_REQUEST_MAX + 1] = { 1 };
    const struct fi_rma_ioc lists[][2] = {
        { { 0, 1, KEY }, { 0, 1, 99 } },
        { { 0, 1, KEY }, { SIZE, 1, KEY } },
        { { 0, 1, KEY }, { 8, UINT64_MAX, KEY } },
        { { 0, UINT64_MAX / 8 + 2, KEY_ALL }, { 0, 1, KEY } },
    };
    struct { struct fi_rma_ioc list[2]; uint64_t operands[2]; } request = { .operands = { 1, 1 } };
    struct ivc_fi_atomic_header header;
    struct fid_mr *mrs[4];

    open_both();
    reg_all(mrs);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        header = atomic_of(bad[i].datatype, bad[i].op, bad[i].mode, bad[i].n_segments,
                           bad[i].count);
        CHECK_THAT(ask(&header, payload, bad[i].len, bad[i].what) != 0, "%s", bad[i].what);
        CHECK_EQ(forger.answer_len, 0);
    }
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
        memcpy(request.list, lists[i], sizeof request.list);
        header = atomic_of(FI_UINT64, FI_SUM, IVC_FI_ATOMIC_FETCH, 2, 2);
        CHECK_THAT(ask(&header, &request, sizeof request, "list") != 0, "list %u", i);
    }
    check_untouched("atomics");
    header = atomic_of(FI_UINT64, FI_SUM, IVC_FI_ATOMIC_FETCH, 1, 1);
    CHECK_EQ(ask(&header, request.operands, 8, "a good atomic"), 0);
    CHECK_EQ(memory[SIZE], 0x5b);
    close_mrs(mrs);
    close_forger();
    end_close(&victim);
}

/* ---------------------------------------------------------------- noise */

/* Any header of any kind that is about memory, with any bytes; the victim lives, and what is beside
 * the registered memory stays as it was. */
static void test_noise(void)
{
    static uint8_t payload[SIZE];
    uint64_t random = 20260101;
    struct fid_mr *mr;

    open_both();
    memset(memory, 0x5a, sizeof memory);
    mr = reg(memory + SIZE, SIZE, BOTH, KEY);
    for (unsigned i = 0; i < 30000; i++) {
        uint64_t words[IVC_MESSAGE_HEADER_MAX / 8];
        struct ivc_fi_header *header = (struct ivc_fi_header *)words;
        uint64_t dice = check_random(&random);

        for (unsigned w = 0; w < sizeof words / sizeof *words; w++)
            words[w] = check_random(&random) >> (check_random(&random) % 64);
        words[4] = dice & 1 ? KEY : words[4];       /* where requests have their key */
        header->len = sizeof *header + (uint8_t)(dice >> 8) % (sizeof words - sizeof *header + 1);
        header->kind = (uint8_t)(IVC_FI_KIND_ACK + (dice >> 16) % 10);
        header->tag = dice & 2 ? (dice >> 24) % 6 : header->tag;
        say(header, payload, (dice >> 32) % sizeof payload);
    }
    for (unsigned i = 0; i < 1000; i++)
        turn();
    for (size_t i = 0; i < SIZE; i++)
        CHECK_THAT(memory[i] == 0x5a && memory[2 * SIZE + i] == 0x5a, "byte %zu", i);
    CHECK_EQ(fi_close(&mr->fid), 0);
    close_forger();
    end_close(&victim);
}

/* ---------------------------------------------------------------- half way */

/* Until the victim has something under way in that memory, and the forger does not go on. */
static void stall(const struct ivc_fi_rma_header *header, const struct iovec *iov)
{
    CHECK_EQ(ivc_mailbox_send(forger.mailbox, forger.peer, header, iov, iov->iov_len > 0, on_sent,
                              NULL), 0);
    for (unsigned i = 0; i < 1000; i++)
        CHECK(fi_cq_read(victim.cq, NULL, 0) <= 0);
}

static void close_half_way(enum ivc_fi_kind kind, bool goes_on)
{
    uint8_t *big = calloc(2, BIG);
    struct ivc_fi_rma_header header = rma(kind, 1, 0, KEY, BIG);
    const struct iovec iov = { big + BIG, kind == IVC_FI_KIND_WRITE ? BIG : 0 };
    uint64_t start, limit;
    struct fid_mr *mr;
    int r;

    setenv("IVC_OFFER_SIZE", "16M", 1);     /* a train: it starts unasked */
    CHECK(big != NULL);
    open_both();
    mr = reg(big, BIG, BOTH, KEY);
    stall(&header, &iov);
    start = end_now_ms();
    CHECK_EQ(fi_close(&mr->fid), -FI_EBUSY);
    CHECK(end_now_ms() - start < 5000 * check_slowdown());
    if (goes_on) {
        limit = end_now_ms() + 40000 * check_slowdown();
        while ((kind == IVC_FI_KIND_WRITE ? forger.sent : forger.answers) == 0
               && end_now_ms() < limit)
            turn();
        for (unsigned i = 0; i < 100000; i++)
            turn();
        r = fi_close(&mr->fid);
    } else {
        close_forger();
        r = fi_close(&mr->fid);
    }
    CHECK_EQ(r, 0);
    free(big);
    if (goes_on)
        close_forger();
    end_close(&victim);
}

static void test_write_goes_on(void)
{
    close_half_way(IVC_FI_KIND_WRITE, true);
}

static void test_write_leaves(void)
{
    close_half_way(IVC_FI_KIND_WRITE, false);
}

static void test_read_goes_on(void)
{
    close_half_way(IVC_FI_KIND_READ, true);
}

static void test_read_leaves(void)
{
    close_half_way(IVC_FI_KIND_READ, false);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        { "reads", test_reads, 0 },
        { "writes", test_writes, 0 },
        { "lists", test_lists, 0 },
        { "atomics", test_atomics, 0 },
        { "noise", test_noise, 0 },
        { "half-way-write-goes-on", test_write_goes_on, 0 },
        { "half-way-write-leaves", test_write_leaves, 0 },
        { "half-way-read-goes-on", test_read_goes_on, 0 },
        { "half-way-read-leaves", test_read_leaves, 0 },
    };

    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
