/*
 * Requests for memory, and answers, that nobody in his right mind sends: a member of the region that speaks the plug-in's
 * language writes them by hand (btl_ivc_emulate.c, btl_ivc_rdma.c; the rest of the plug-in is replaced here).
 *
 * Every request must be refused, and no byte may change; an answer that does not fit the operation must be ignored.
 */
#include "btl_ivc_rdma.h"

#include "check.h"

enum {
    TAG_REQUEST = MCA_BTL_TAG_BTL + 18, TAG_ANSWER,     /* as in btl_ivc_emulate.c */
    PACKET_MAX = 1024,
    SIZE = 4096,
    LOCAL = MCA_BTL_REG_FLAG_LOCAL_WRITE,
    PUTS = LOCAL | MCA_BTL_REG_FLAG_REMOTE_WRITE,
    GETS = LOCAL | MCA_BTL_REG_FLAG_REMOTE_READ,
    ATOMICS = LOCAL | MCA_BTL_REG_FLAG_REMOTE_ATOMIC,
    LEN = 64,               /* of what is put and got */
};

/* As in btl_ivc_emulate.c. */
struct answer {
    uint32_t id, refused;
    uint64_t at, value;
};

struct ivc_btl_module ivc_btl_module = { .packet_max = PACKET_MAX };
struct ivc_btl_component mca_btl_ivc_component;

static struct mca_btl_base_endpoint_t forger;
static _Alignas(16) uint8_t memory[3 * SIZE], before[sizeof memory];    /* the middle is registered */
static uint8_t *const base = memory + SIZE;
static struct mca_btl_base_registration_handle_t *all, *for_puts, *for_gets, *for_atomics;

/* What the victim sent, and reported. */
static struct {
    unsigned answers, requests, reported;
    struct answer answer;
    struct ivc_btl_request request;
    uint8_t bytes[PACKET_MAX];
    size_t len;
    int status;
} seen;

/* ---------------------------------------------------------------- in place of the rest of the plug-in */

struct ivc_btl_frag *ivc_btl_frag_get(struct mca_btl_base_endpoint_t *endpoint, size_t size, uint32_t flags)
{
    struct ivc_btl_frag *frag = calloc(1, sizeof *frag);

    CHECK(frag && size <= IVC_BTL_HEADER_MAX);
    frag->endpoint = endpoint;
    frag->base.des_flags = flags;
    frag->base.des_segments = frag->segments;
    frag->base.des_segment_count = 1;
    frag->segments[0].seg_addr.pval = frag->header;
    frag->segments[0].seg_len = size;
    return frag;
}

void ivc_btl_frag_return(struct ivc_btl_frag *frag)
{
    free(frag);
}

int ivc_btl_frag_post(struct ivc_btl_frag *frag)
{
    CHECK_EQ(frag->tag, TAG_ANSWER);
    memcpy(&seen.answer, frag->header, sizeof seen.answer);
    seen.len = frag->base.des_segment_count > 1 ? frag->segments[1].seg_len : 0;
    CHECK(seen.len <= sizeof seen.bytes);
    if (seen.len > 0)
        memcpy(seen.bytes, frag->segments[1].seg_addr.pval, seen.len);
    seen.answers++;
    return OPAL_SUCCESS;
}

int ivc_btl_send(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                 mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    (void) btl;
    (void) endpoint;
    CHECK_EQ(tag, TAG_REQUEST);
    memcpy(&seen.request, ((struct ivc_btl_frag *) descriptor)->header, sizeof seen.request);
    seen.requests++;
    free(descriptor);
    return OPAL_SUCCESS;
}

void ivc_btl_done_append(struct ivc_btl_frag *frag)
{
    seen.reported++;
    seen.status = frag->status;
    free(frag);
}

void ivc_btl_queue_append(struct ivc_btl_frag *frag)
{
    check_fail(__FILE__, __LINE__, "descriptor %p is queued", (void *) frag);
}

void ivc_btl_lose(struct mca_btl_base_endpoint_t *endpoint, const char *reason)
{
    check_fail(__FILE__, __LINE__, "peer %p is lost: %s", (void *) endpoint, reason);
}

void ivc_btl_say(const char *subject, const char *format, ...)
{
    check_fail(__FILE__, __LINE__, "%s: %s", subject, format);
}

/* ---------------------------------------------------------------- the victim */

static struct mca_btl_base_registration_handle_t *registration(size_t len, uint32_t flags)
{
    struct mca_btl_base_registration_handle_t *handle
        = ivc_btl_rdma_module.btl_register_mem(&ivc_btl_rdma_module, NULL, base, len, flags);

    CHECK(handle && handle->id != 0);
    return handle;
}

static void no_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void) arg, (void) peer, (void) packet;
}

/* Its peer is itself. */
static void victim_open(void)
{
    struct ivc_endpoint_options options = { .region = check_file(0, 16 << 20), .magic_id = 1, .on_packet = no_packet };
    struct ivc_address address;

    CHECK_EQ(ivc_endpoint_open(&options, &ivc_btl_module.endpoint), 0);
    ivc_endpoint_address(ivc_btl_module.endpoint, &address);
    CHECK_EQ(ivc_endpoint_connect(ivc_btl_module.endpoint, &address, &forger.peer), 0);
    ivc_peer_set_arg(forger.peer, &forger);
    OBJ_CONSTRUCT(&forger.operations, opal_list_t);
    OBJ_CONSTRUCT(&ivc_btl_module.lent_lock, opal_mutex_t);
    ivc_btl_rdma_init();
    check_fill(memory, sizeof memory, 1);
    memcpy(before, memory, sizeof memory);
    all = registration(SIZE, PUTS | GETS | ATOMICS);
    for_puts = registration(SIZE, PUTS);
    for_gets = registration(SIZE, GETS);
    for_atomics = registration(SIZE, ATOMICS);
}

/* `head_len` bytes in the packet's head, all others in its body. */
static void arrive(uint8_t tag, const void *bytes, size_t len, size_t head_len)
{
    const struct ivc_packet packet = {
        .tag = tag, .head = bytes, .head_len = (uint32_t) head_len,
        .body = (const uint8_t *) bytes + head_len, .body_len = (uint32_t) (len - head_len),
    };

    CHECK(ivc_btl_emulate_on_packet(forger.peer, &packet));
}

/* A request with so many bytes behind it. */
static void ask(struct ivc_btl_request request, size_t len)
{
    uint8_t packet[sizeof request + 2 * LEN];

    CHECK(len <= 2 * LEN);
    memset(packet, 0xee, sizeof packet);
    memcpy(packet, &request, sizeof request);
    seen.answers = 0;
    arrive(TAG_REQUEST, packet, sizeof request + len, sizeof request);
}

static struct ivc_btl_request put(void)
{
    return (struct ivc_btl_request) {
        .id = 7, .kind = IVC_BTL_PUT, .handle = all->id, .address = (uintptr_t) base, .b = LEN,
    };
}

static struct ivc_btl_request get(void)
{
    struct ivc_btl_request request = put();

    request.kind = IVC_BTL_GET;
    return request;
}

static struct ivc_btl_request atomic(void)
{
    struct ivc_btl_request request = put();

    request.kind = IVC_BTL_ATOMIC;
    request.op = MCA_BTL_ATOMIC_ADD;
    request.width = 8;
    request.a = 1;
    return request;
}

static void refused(int line, struct ivc_btl_request request, size_t len)
{
    ask(request, len);
    CHECK_THAT(seen.answers == 1 && seen.answer.refused != 0 && seen.answer.id == 7 && seen.len == 0, "line %d", line);
    CHECK_THAT(memcmp(memory, before, sizeof memory) == 0, "line %d", line);
}

/* A right request, but for one thing; `len` bytes come with it. */
#define REFUSED(kind, len, ...)                                                            \
    do {                                                                                   \
        struct ivc_btl_request r = kind();                                                 \
        __VA_ARGS__;                                                                       \
        refused(__LINE__, r, (len));                                                       \
    } while (0)

/* ---------------------------------------------------------------- requests */

/* Else the others would be refused for nothing. */
static void test_right_ones(void)
{
    uint64_t word;

    victim_open();
    ask(get(), 0);
    CHECK(seen.answers == 1 && seen.answer.refused == 0 && seen.len == LEN && memcmp(seen.bytes, base, LEN) == 0);
    memcpy(&word, base, sizeof word);
    ask(atomic(), 0);
    CHECK(seen.answers == 1 && seen.answer.refused == 0 && seen.answer.value == word);
    CHECK_EQ(*(uint64_t *) base, word + 1);
    ask(put(), LEN);
    CHECK(seen.answers == 1 && seen.answer.refused == 0 && base[0] == 0xee && base[LEN - 1] == 0xee);
    CHECK(base[LEN] == before[SIZE + LEN] && base[-1] == before[SIZE - 1]);
}

static void test_handles(void)
{
    struct mca_btl_base_registration_handle_t *closed;
    uint64_t id;

    victim_open();
    closed = registration(SIZE, PUTS | GETS | ATOMICS);
    id = closed->id;
    ivc_btl_rdma_module.btl_deregister_mem(&ivc_btl_rdma_module, closed);
    REFUSED(put, LEN, r.handle = 0);
    REFUSED(put, LEN, r.handle = id);
    REFUSED(get, 0, r.handle = id);
    REFUSED(put, LEN, r.handle = all->id + (1ull << 32));
    REFUSED(get, 0, r.handle = all->id | 0xffffffff);
    REFUSED(get, 0, r.handle = UINT64_MAX);
    registration(SIZE, GETS);     /* in the same place */
    REFUSED(get, 0, r.handle = id);
}

static void test_rights(void)
{
    victim_open();
    REFUSED(put, LEN, r.handle = for_gets->id);
    REFUSED(put, LEN, r.handle = for_atomics->id);
    REFUSED(get, 0, r.handle = for_puts->id);
    REFUSED(get, 0, r.handle = for_atomics->id);
    REFUSED(atomic, 0, r.handle = for_puts->id);
    REFUSED(atomic, 0, r.handle = for_gets->id);
}

static void test_ranges(void)
{
    const uint64_t end = (uintptr_t) base + SIZE;
    uint64_t small;

    victim_open();
    small = registration(4, PUTS | GETS | ATOMICS)->id;
    REFUSED(put, LEN, r.handle = small);
    REFUSED(get, 0, r.handle = small);
    REFUSED(atomic, 0, r.handle = small);
    REFUSED(put, LEN, r.address = 0);
    REFUSED(put, LEN, r.address -= 8);
    REFUSED(put, LEN, r.address = end);
    REFUSED(put, LEN, r.address = end - LEN + 1);
    REFUSED(put, LEN, r.address = UINT64_MAX - 7);
    REFUSED(get, 0, r.address -= 1);
    REFUSED(get, 0, r.address = end - LEN + 1);
    REFUSED(get, 0, r.address = UINT64_MAX - LEN / 2);
    REFUSED(get, 0, r.address = (uintptr_t) base - LEN / 2);
    REFUSED(atomic, 0, r.address -= 8);
    REFUSED(atomic, 0, r.address = end);
    REFUSED(atomic, 0, r.address = 0);
}

static void test_lengths(void)
{
    victim_open();
    REFUSED(put, LEN, r.b = LEN - 1);
    REFUSED(put, LEN, r.b = LEN + 1);
    REFUSED(put, LEN, r.b = UINT64_MAX);
    REFUSED(put, 0, r.b = LEN);
    REFUSED(put, LEN, r.b = 0);
    REFUSED(get, 8, (void) r);
    REFUSED(get, 0, r.b = PACKET_MAX);      /* with what goes before it, more than a packet holds */
    REFUSED(get, 0, r.b = SIZE + 1);
    REFUSED(get, 0, r.b = UINT64_MAX);
    REFUSED(get, 0, r.b = UINT64_MAX - (uintptr_t) base + 1);
    REFUSED(atomic, 8, (void) r);
}

static void test_atomics(void)
{
    static const uint8_t widths[] = { 0, 1, 2, 3, 5, 7, 9, 16, 64, 255 };
    static const uint8_t ops[] = { 0, 2, MCA_BTL_ATOMIC_LAND, MCA_BTL_ATOMIC_LXOR, MCA_BTL_ATOMIC_LAST, 255 };

    victim_open();
    for (size_t i = 0; i < sizeof widths; i++) {
        REFUSED(atomic, 0, r.width = widths[i]);
        REFUSED(atomic, 0, (r.kind = IVC_BTL_CSWAP, r.width = widths[i]));
    }
    for (size_t i = 0; i < sizeof ops; i++)
        REFUSED(atomic, 0, r.op = ops[i]);
    for (unsigned i = 1; i < 8; i++)
        REFUSED(atomic, 0, r.address += i);
    for (unsigned i = 1; i < 4; i++)
        REFUSED(atomic, 0, (r.width = 4, r.address += i));
}

static void test_kinds(void)
{
    static const uint8_t kinds[] = { 0, IVC_BTL_CSWAP + 1, 255 };
    struct ivc_btl_request request;

    victim_open();
    request = put();
    for (size_t i = 0; i < sizeof kinds; i++)
        REFUSED(put, 0, (r.kind = kinds[i], r.width = 8));
    seen.answers = 0;
    for (size_t len = 0; len < sizeof request; len++)
        arrive(TAG_REQUEST, &request, len, len);
    CHECK_EQ(seen.answers, 0);
}

/* ---------------------------------------------------------------- answers */

static _Alignas(16) uint8_t landing[3 * LEN], untouched[sizeof landing];

static void under_way(struct ivc_btl_request request)
{
    const struct ivc_btl_operation op = {
        .local = landing + LEN, .len = request.kind == IVC_BTL_GET ? LEN : request.width,
    };

    check_fill(landing, sizeof landing, 2);
    memcpy(untouched, landing, sizeof landing);
    memset(&seen, 0, sizeof seen);
    CHECK_EQ(ivc_btl_emulate(&forger, &op, &request), OPAL_SUCCESS);
    CHECK_EQ(seen.requests, 1);
}

/* With so many bytes, the first of which are in its head. */
static void answer(uint32_t id, uint64_t at, uint64_t value, size_t len)
{
    const struct answer header = { .id = id, .at = at, .value = value };
    uint8_t packet[sizeof header + 2 * LEN];

    CHECK(len <= 2 * LEN);
    memset(packet, 0xdd, sizeof packet);
    memcpy(packet, &header, sizeof header);
    arrive(TAG_ANSWER, packet, sizeof header + len, sizeof header + len / 2);
}

static void ignored(int line, uint32_t id, uint64_t at, uint64_t value, size_t len)
{
    answer(id, at, value, len);
    CHECK_THAT(seen.reported == 0 && forger.n_operations == 1, "line %d", line);
    CHECK_THAT(memcmp(landing, untouched, sizeof landing) == 0, "line %d", line);
}

static void test_answers(void)
{
    uint32_t id;

    victim_open();
    under_way(get());
    id = seen.request.id;
    ignored(__LINE__, id + 1, 0, LEN, LEN);
    ignored(__LINE__, 0, 0, LEN, LEN);
    ignored(__LINE__, id, LEN, LEN, LEN);
    ignored(__LINE__, id, 1, LEN, LEN);
    ignored(__LINE__, id, UINT64_MAX - LEN + 1, LEN, LEN);
    ignored(__LINE__, id, UINT64_MAX, 1, 1);
    ignored(__LINE__, id, 0, LEN, 2 * LEN);
    ignored(__LINE__, id, 0, 2 * LEN, 2 * LEN);
    ignored(__LINE__, id, 0, LEN, LEN - 1);
    ignored(__LINE__, id, 0, LEN, 0);
    ignored(__LINE__, id, 0, UINT64_MAX, 0);
    for (size_t len = 0; len < sizeof(struct answer); len++)
        arrive(TAG_ANSWER, &(struct answer) { .id = id, .value = LEN }, len, len);
    CHECK_EQ(seen.reported, 0);
    answer(id, 0, LEN, LEN);
    CHECK(seen.reported == 1 && seen.status == OPAL_SUCCESS && landing[LEN] == 0xdd && landing[2 * LEN - 1] == 0xdd);
    CHECK(landing[LEN - 1] == untouched[LEN - 1] && landing[2 * LEN] == untouched[2 * LEN]);
    answer(id, 0, LEN, LEN);
    CHECK_EQ(seen.reported, 1);
}

/* The word has 4 bytes, whatever the answer has. */
static void test_answer_to_atomic(void)
{
    struct ivc_btl_request request;

    victim_open();
    request = atomic();
    request.width = 4;
    under_way(request);
    for (size_t len = 0; len < sizeof(struct answer); len++)
        arrive(TAG_ANSWER, &(struct answer) { .id = seen.request.id }, len, len);
    CHECK_EQ(seen.reported, 0);
    answer(seen.request.id, UINT64_MAX, 0x1111111122222222, 2 * LEN);
    CHECK(seen.reported == 1 && *(uint32_t *) (landing + LEN) == 0x22222222);
    CHECK(memcmp(landing + LEN + 4, untouched + LEN + 4, 2 * LEN - 4) == 0);
}

static const struct check_case cases[] = {
    { "right requests are served", test_right_ones, 0 },
    { "handles of nobody, and of memory that is registered no more", test_handles, 0 },
    { "accesses that a registration does not allow", test_rights, 0 },
    { "addresses outside of what is registered", test_ranges, 0 },
    { "lengths that are not those of the packet", test_lengths, 0 },
    { "atomics of other widths, places and kinds", test_atomics, 0 },
    { "other requests, and pieces of one", test_kinds, 0 },
    { "answers that do not fit", test_answers, 0 },
    { "an answer to an atomic of 4 bytes", test_answer_to_atomic, 0 },
};

CHECK_MAIN(cases)
