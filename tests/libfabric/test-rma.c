/*
 * RMA, atomics and memory registration, through libfabric's public API.
 *
 * Two endpoints of this process, in one region: `a` begins operations, `b` owns the memory.  Where
 * the memory lies in the region, `a` must manage without b's progress; everywhere else b's progress
 * is what does it.  A member of ours beside the provider stands for a library that hands out memory
 * of the region.
 */
#include "check.h"

#include "region/region.h"

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { KEY = 77, BIG = 3 << 20, MEMORY = 4 << 20 };

static const uint64_t ALL = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;

struct end {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_cntr *cntr;      /* a: reads and writes; b: those of others */
    fi_addr_t peer;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct end a, b;

#define OK(call) CHECK_THAT((call) == 0, "%s", #call)

static struct fi_info *get_info(int mr_mode)
{
    struct fi_info *hints = fi_allocinfo(), *found = NULL;
    int r;

    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
    hints->domain_attr->mr_mode = mr_mode;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup("ivc");
    r = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found);
    CHECK_THAT(r == 0, "fi_getinfo: %s", fi_strerror(-r));
    fi_freeinfo(hints);
    return found;
}

static void open_end(struct end *end, uint64_t cntr_flags)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_DATA };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP };

    OK(fi_endpoint(domain, info, &end->ep, NULL));
    OK(fi_cq_open(domain, &cq_attr, &end->cq, NULL));
    OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(end->ep, &av->fid, 0));
    if (cntr_flags) {
        OK(fi_cntr_open(domain, &cntr_attr, &end->cntr, NULL));
        OK(fi_ep_bind(end->ep, &end->cntr->fid, cntr_flags));
    }
    OK(fi_enable(end->ep));
}

static void meet(struct end *from, struct end *to)
{
    char name[256];
    size_t len = sizeof name;

    OK(fi_getname(&to->ep->fid, name, &len));
    CHECK_EQ(fi_av_insert(av, name, 1, &from->peer, 0, NULL), 1);
}

static void open_all(int mr_mode, bool counters)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };

    setenv("IVC_REGION", check_file(0, 64 << 20), 1);
    setenv("FI_PROVIDER", "ivc", 1);
    setenv("FI_TCP_IFACE", "lo", 1);
    info = get_info(mr_mode);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    open_end(&a, counters ? FI_READ | FI_WRITE : 0);
    open_end(&b, counters ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    meet(&a, &b);
    meet(&b, &a);
}

static void close_end(struct end *end)
{
    OK(fi_close(&end->ep->fid));
    OK(fi_close(&end->cq->fid));
    if (end->cntr)
        OK(fi_close(&end->cntr->fid));
}

static void close_all(void)
{
    close_end(&a);
    close_end(&b);
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

static struct fid_mr *reg(void *memory, size_t len, uint64_t access, uint64_t key)
{
    struct fid_mr *mr;
    int r = fi_mr_reg(domain, memory, len, access, 0, key, 0, &mr, NULL);

    CHECK_THAT(r == 0, "key %llu: %s", (unsigned long long)key, fi_strerror(-r));
    return mr;
}

/* A completion at a, with b's progress; its error, 0 when it went well. */
static int finish(void *context)
{
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry error = { 0 };
    ssize_t r;

    do {
        (void)fi_cq_read(b.cq, NULL, 0);
        r = fi_cq_read(a.cq, &entry, 1);
    } while (r == -FI_EAGAIN);
    if (r == 1) {
        CHECK(entry.op_context == context);
        return 0;
    }
    CHECK_EQ(r, -FI_EAVAIL);
    CHECK_EQ(fi_cq_readerr(a.cq, &error, 0), 1);
    CHECK(error.op_context == context);
    CHECK(error.err > 0);
    return error.err;
}

/* The same without b's: only what is done directly ends. */
static void finish_alone(void *context)
{
    struct fi_cq_data_entry entry;

    CHECK_EQ(fi_cq_read(a.cq, &entry, 1), 1);
    CHECK(entry.op_context == context);
}

static void fill(char *memory, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        memory[i] = (char)check_random(&seed);
}

/* ---------------------------------------------------------------- registration */

static void test_keys(void)
{
    enum { MANY = 1000 };
    static char memory[64];
    struct fid_mr *mrs[MANY], *mr;
    uint64_t seed = 5;
    bool open[MANY] = { false };

    open_all(0, false);
    CHECK_EQ(info->domain_attr->mr_mode, 0);
    for (unsigned round = 0; round < 20 * MANY; round++) {
        unsigned i = (unsigned)(check_random(&seed) % MANY);

        if (open[i]) {
            CHECK_EQ(fi_mr_reg(domain, memory, 64, ALL, 0, i, 0, &mr, NULL), -FI_ENOKEY);
            OK(fi_close(&mrs[i]->fid));
        } else {
            mrs[i] = reg(memory, 64, ALL, i);
            CHECK_EQ(fi_mr_key(mrs[i]), i);
        }
        open[i] = !open[i];
    }
    for (unsigned i = 0; i < MANY; i++)
        if (open[i])
            OK(fi_close(&mrs[i]->fid));
    CHECK_EQ(fi_mr_reg(domain, memory, 64, ALL, 1, 1, 0, &mr, NULL), -FI_EINVAL);
    CHECK_EQ(fi_mr_reg(domain, memory, 64, ALL, 0, 1, FI_MULTICAST, &mr, NULL), -FI_EBADFLAGS);
    close_all();
}

static void test_provider_keys(void)
{
    static char memory[2][64];
    struct fid_mr *one, *other;
    uint64_t base, key;
    uint8_t raw[8];
    size_t size = 4;

    /* The old word for FI_MR_VIRT_ADDR, FI_MR_ALLOCATED and FI_MR_PROV_KEY together. */
    open_all(FI_MR_BASIC, false);
    CHECK_EQ(info->domain_attr->mr_mode, FI_MR_BASIC);
    one = reg(memory[0], 64, ALL, 3);
    other = reg(memory[1], 64, ALL, 3);
    CHECK(fi_mr_key(one) != fi_mr_key(other));
    CHECK_EQ(fi_mr_raw_attr(one, &base, raw, &size, 0), -FI_ETOOSMALL);
    CHECK_EQ(size, 8);
    OK(fi_mr_raw_attr(one, &base, raw, &size, 0));
    CHECK_EQ(base, (uintptr_t)memory[0]);
    OK(fi_mr_map_raw(domain, base, raw, size, &key, 0));
    CHECK_EQ(key, fi_mr_key(one));
    OK(fi_mr_unmap_key(domain, key));
    OK(fi_write(a.ep, "hello", 6, NULL, a.peer, (uintptr_t)memory[1] + 58, fi_mr_key(other), &a));
    CHECK_EQ(finish(&a), 0);
    CHECK(strcmp(memory[1] + 58, "hello") == 0);
    OK(fi_write(a.ep, "hello", 6, NULL, a.peer, (uintptr_t)memory[1] - 1, fi_mr_key(other), &a));
    CHECK_EQ(finish(&a), FI_EINVAL);
    OK(fi_close(&one->fid));
    OK(fi_close(&other->fid));
    close_all();
}

/* ---------------------------------------------------------------- reads and writes */

static char local[MEMORY], remote[MEMORY], copy[MEMORY];

static void write_and_read(size_t offset, size_t len)
{
    fill(local, len, len + offset + 1);
    memcpy(copy, remote, sizeof copy);
    memcpy(copy + offset, local, len);
    OK(fi_write(a.ep, local, len, NULL, a.peer, offset, KEY, &a));
    CHECK_EQ(finish(&a), 0);
    CHECK_THAT(memcmp(remote, copy, sizeof copy) == 0, "%zu at %zu", len, offset);
    memset(local, 0, len);
    OK(fi_read(a.ep, local, len, NULL, a.peer, offset, KEY, &b));
    CHECK_EQ(finish(&b), 0);
    CHECK_THAT(memcmp(local, copy + offset, len) == 0, "%zu at %zu", len, offset);
}

static const size_t lengths[] = { 0, 1, 8, 15, 16, 17, 56, 64, 4095, 4096, 4097, 32768, 70001, 262144,
                                  1000003, BIG };

static void test_lengths(void)
{
    struct fid_mr *mr;

    open_all(0, false);
    mr = reg(remote, sizeof remote, ALL, KEY);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_and_read(0, lengths[i]);
        write_and_read(MEMORY - lengths[i], lengths[i]);
        write_and_read(13, lengths[i]);
    }
    OK(fi_close(&mr->fid));
    close_all();
}

/* Many at once, all of them large or small, and both directions. */
static void test_many(void)
{
    enum { MANY = 1000, EACH = 4000 };
    struct fid_mr *mr;
    unsigned ended = 0;

    open_all(0, false);
    mr = reg(remote, sizeof remote, ALL, KEY);
    fill(local, sizeof local, 9);
    for (unsigned i = 0; i < MANY; i++) {
        size_t len = i % 3 == 0 ? EACH : 1 + i % 100;
        ssize_t r;

        do {
            struct fi_cq_data_entry entry;

            r = fi_write(a.ep, local + i * EACH, len, NULL, a.peer, i * EACH, KEY, &a);
            (void)fi_cq_read(b.cq, NULL, 0);
            while (fi_cq_read(a.cq, &entry, 1) == 1)
                ended++;
        } while (r == -FI_EAGAIN);
        CHECK_EQ(r, 0);
    }
    while (ended < MANY) {
        CHECK_EQ(finish(&a), 0);
        ended++;
    }
    for (unsigned i = 0; i < MANY; i++)
        CHECK_THAT(memcmp(local + i * EACH, remote + i * EACH, i % 3 == 0 ? EACH : 1 + i % 100) == 0,
                   "write %u", i);
    OK(fi_close(&mr->fid));
    close_all();
}

/* Eight pieces here, registrations of several pieces and four segments there. */
static void test_pieces(void)
{
    struct iovec pieces[2] = { { remote, 1000 }, { remote + 5000, 1000 } };
    struct iovec mine[8];
    struct fi_rma_iov theirs[4] = {
        { 100, 1500, KEY }, { 0, 100, KEY }, { 3, 1, KEY + 1 }, { 10, 7999, KEY + 1 },
    };
    struct fi_msg_rma msg = {
        .msg_iov = mine, .iov_count = 8, .addr = 0, .rma_iov = theirs, .rma_iov_count = 4,
        .context = &a,
    };
    struct fid_mr *mr, *other;

    open_all(0, false);
    OK(fi_mr_regv(domain, pieces, 2, ALL, 0, KEY, 0, &mr, NULL));
    other = reg(remote + 20000, 9000, ALL, KEY + 1);
    fill(local, 9600, 3);
    for (unsigned i = 0; i < 8; i++)
        mine[i] = (struct iovec){ local + i * 1200, 1200 };
    msg.addr = a.peer;
    OK(fi_writemsg(a.ep, &msg, FI_DELIVERY_COMPLETE | FI_COMPLETION));
    CHECK_EQ(finish(&a), 0);
    CHECK(memcmp(remote + 100, local, 900) == 0);
    CHECK(memcmp(remote + 5000, local + 900, 600) == 0);
    CHECK(memcmp(remote, local + 1500, 100) == 0);
    CHECK(memcmp(remote + 20003, local + 1600, 1) == 0);
    CHECK(memcmp(remote + 20010, local + 1601, 7999) == 0);
    memcpy(copy, local, 9600);
    memset(local, 0, 9600);
    OK(fi_readmsg(a.ep, &msg, FI_COMPLETION));
    CHECK_EQ(finish(&a), 0);
    CHECK(memcmp(copy, local, 9600) == 0);

    /* All of it or nothing: the last segment is bad. */
    theirs[3].addr = 1002;
    memset(remote, 0, 30000);
    OK(fi_writemsg(a.ep, &msg, FI_COMPLETION));
    CHECK_EQ(finish(&a), FI_EINVAL);
    for (unsigned i = 0; i < 30000; i++)
        CHECK_EQ(remote[i], 0);
    OK(fi_readmsg(a.ep, &msg, FI_COMPLETION));
    CHECK_EQ(finish(&a), FI_EINVAL);
    theirs[3].len--;
    CHECK_EQ(fi_writemsg(a.ep, &msg, 0), -FI_EINVAL);
    OK(fi_close(&mr->fid));
    OK(fi_close(&other->fid));
    close_all();
}

static void expect_data(uint64_t data, size_t len)
{
    struct fi_cq_data_entry entry;
    ssize_t r;

    while ((r = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN)
        (void)fi_cq_read(a.cq, NULL, 0);
    CHECK_EQ(r, 1);
    CHECK_EQ(entry.flags & (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA),
             FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
    CHECK_EQ(entry.data, data);
    CHECK_EQ(entry.len, len);
    CHECK(memcmp(remote, local, len) == 0);
}

static void test_data(void)
{
    struct fid_mr *mr;

    open_all(0, false);
    mr = reg(remote, sizeof remote, ALL, KEY);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        fill(local, lengths[i], i + 100);
        OK(fi_writedata(a.ep, local, lengths[i], NULL, ~i, a.peer, 0, KEY, &a));
        expect_data(~i, lengths[i]);
        CHECK_EQ(finish(&a), 0);
    }
    fill(local, 100, 1);
    OK(fi_inject_writedata(a.ep, local, 100, 5, a.peer, 0, KEY));
    expect_data(5, 100);
    OK(fi_close(&mr->fid));
    close_all();
}

static void test_refused(void)
{
    static const struct { uint64_t key, addr, len; int write, read; } rows[] = {
        { 1, 0, 64, 0, FI_EACCES },
        { 2, 0, 64, FI_EACCES, 0 },
        { 3, 0, 64, FI_EACCES, FI_EACCES },
        { 4, 0, 64, FI_EKEYREJECTED, FI_EKEYREJECTED },
        { 1, 1, 64, FI_EINVAL, FI_EACCES },
        { 1, 64, 1, FI_EINVAL, FI_EACCES },
        { 1, 64, 0, 0, FI_EACCES },
        { 1, 65, 0, FI_EINVAL, FI_EACCES },
        { 1, UINT64_MAX, 64, FI_EINVAL, FI_EACCES },
        { 2, UINT64_MAX - 63, 64, FI_EACCES, FI_EINVAL },
        { 2, 0, 65, FI_EACCES, FI_EINVAL },
        { 2, 0, 1 << 20, FI_EACCES, FI_EINVAL },
        { 1, 0, 1 << 20, FI_EINVAL, FI_EACCES },
        { UINT64_MAX, 0, 1, FI_EKEYREJECTED, FI_EKEYREJECTED },
    };
    struct fid_mr *mrs[3];

    open_all(0, false);
    mrs[0] = reg(remote, 64, FI_REMOTE_WRITE, 1);
    mrs[1] = reg(remote + 100, 64, FI_REMOTE_READ, 2);
    mrs[2] = reg(remote + 200, 64, FI_SEND | FI_RECV, 3);
    fill(local, 1 << 20, 4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int r;

        memset(remote, 0, 1000);
        OK(fi_write(a.ep, local, rows[i].len, NULL, a.peer, rows[i].addr, rows[i].key, &a));
        r = finish(&a);
        CHECK_THAT(r == rows[i].write, "row %zu: write: %s", i, fi_strerror(r));
        for (unsigned j = r == 0 ? 64 : 0; j < 1000; j++)
            CHECK_THAT(remote[j] == 0, "row %zu: byte %u was written", i, j);
        OK(fi_read(a.ep, copy, rows[i].len, NULL, a.peer, rows[i].addr, rows[i].key, &b));
        r = finish(&b);
        CHECK_THAT(r == rows[i].read, "row %zu: read: %s", i, fi_strerror(r));
    }
    OK(fi_inject_write(a.ep, local, 64, a.peer, 0, 4));
    CHECK_EQ(finish(NULL), FI_EKEYREJECTED);
    for (unsigned i = 0; i < 3; i++)
        OK(fi_close(&mrs[i]->fid));
    CHECK_EQ(fi_inject_write(a.ep, local, info->tx_attr->inject_size + 1, a.peer, 0, 4),
             -FI_EMSGSIZE);
    close_all();
}

static void wait_counter(struct fid_cntr *cntr, uint64_t value)
{
    while (fi_cntr_read(cntr) < value) {
        (void)fi_cq_read(a.cq, NULL, 0);
        (void)fi_cq_read(b.cq, NULL, 0);
    }
    CHECK_EQ(fi_cntr_read(cntr), value);
}

static void test_counters(void)
{
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
    struct fid_cntr *of_mr;
    struct fid_mr *mr;
    uint64_t one = 1, old;

    open_all(0, true);
    OK(fi_cntr_open(domain, &attr, &of_mr, NULL));
    mr = reg(remote, 64, ALL, KEY);
    OK(fi_mr_bind(mr, &of_mr->fid, FI_REMOTE_WRITE));
    CHECK_EQ(fi_close(&of_mr->fid), -FI_EBUSY);
    OK(fi_write(a.ep, local, 64, NULL, a.peer, 0, KEY, &a));
    CHECK_EQ(finish(&a), 0);
    OK(fi_inject_write(a.ep, local, 64, a.peer, 0, KEY));
    wait_counter(a.cntr, 2);
    wait_counter(b.cntr, 2);
    wait_counter(of_mr, 2);
    OK(fi_read(a.ep, local, 64, NULL, a.peer, 0, KEY, &a));
    CHECK_EQ(finish(&a), 0);
    OK(fi_atomic(a.ep, &one, 1, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(finish(&a), 0);
    OK(fi_fetch_atomic(a.ep, &one, 1, NULL, &old, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(finish(&a), 0);
    wait_counter(a.cntr, 5);
    wait_counter(b.cntr, 5);
    wait_counter(of_mr, 4);
    OK(fi_inject_write(a.ep, local, 64, a.peer, 1, KEY));
    CHECK_EQ(finish(NULL), FI_EINVAL);
    CHECK_EQ(fi_cntr_readerr(a.cntr), 1);
    CHECK_EQ(fi_cntr_read(a.cntr), 5);
    OK(fi_close(&mr->fid));
    OK(fi_close(&of_mr->fid));
    close_all();
}

/* Without the fence the small write would be there long before the large one. */
static void test_fence(void)
{
    struct iovec iov = { local, 8 };
    struct fi_rma_iov there = { MEMORY - 8, 8, KEY };
    struct fi_msg_rma msg = {
        .msg_iov = &iov, .iov_count = 1, .rma_iov = &there, .rma_iov_count = 1, .context = &b,
    };
    struct fid_mr *mr;
    ssize_t r;

    open_all(0, false);
    mr = reg(remote, sizeof remote, ALL, KEY);
    fill(local, BIG, 8);
    OK(fi_write(a.ep, local, BIG, NULL, a.peer, 0, KEY, &a));
    msg.addr = a.peer;
    while ((r = fi_writemsg(a.ep, &msg, FI_FENCE | FI_COMPLETION)) == -FI_EAGAIN) {
        CHECK(memcmp(remote + MEMORY - 8, local, 8) != 0);
        (void)fi_cq_read(b.cq, NULL, 0);
    }
    CHECK_EQ(r, 0);
    CHECK(memcmp(remote, local, BIG) == 0);
    CHECK_EQ(finish(&a), 0);
    CHECK_EQ(finish(&b), 0);
    CHECK(memcmp(remote + MEMORY - 8, local, 8) == 0);
    OK(fi_close(&mr->fid));
    close_all();
}

/* ---------------------------------------------------------------- atomics */

/* What the operation makes of small whole numbers, which every type can hold. */
static long new_value(enum fi_op op, long old, long in, long compare)
{
    switch ((int)op) {
    case FI_MIN: return in < old ? in : old;
    case FI_MAX: return in > old ? in : old;
    case FI_SUM: return old + in;
    case FI_PROD: return old * in;
    case FI_LOR: return old || in;
    case FI_LAND: return old && in;
    case FI_BOR: return old | in;
    case FI_BAND: return old & in;
    case FI_LXOR: return (old && !in) || (!old && in);
    case FI_BXOR: return old ^ in;
    case FI_ATOMIC_WRITE: return in;
    case FI_CSWAP: return compare == old ? in : old;
    case FI_CSWAP_NE: return compare != old ? in : old;
    case FI_CSWAP_LE: return compare <= old ? in : old;
    case FI_CSWAP_LT: return compare < old ? in : old;
    case FI_CSWAP_GE: return compare >= old ? in : old;
    case FI_CSWAP_GT: return compare > old ? in : old;
    case FI_MSWAP: return (in & compare) | (old & ~compare);
    default: return old;
    }
}

static void put(enum fi_datatype type, char *at, long value)
{
#define PUT(Type) { Type v = (Type)value; memcpy(at, &v, sizeof v); break; }
    switch ((int)type) {
    case FI_INT8: case FI_UINT8: PUT(int8_t)
    case FI_INT16: case FI_UINT16: PUT(int16_t)
    case FI_INT32: case FI_UINT32: PUT(int32_t)
    case FI_INT64: case FI_UINT64: PUT(int64_t)
    case FI_INT128: case FI_UINT128: PUT(__int128)
    case FI_FLOAT: PUT(float)
    case FI_DOUBLE: PUT(double)
    case FI_FLOAT_COMPLEX: PUT(float _Complex)
    case FI_DOUBLE_COMPLEX: PUT(double _Complex)
    case FI_LONG_DOUBLE: PUT(long double)
    case FI_LONG_DOUBLE_COMPLEX: PUT(long double _Complex)
    }
#undef PUT
}

static long get(enum fi_datatype type, const char *at)
{
#define GET(Type) { Type v; memcpy(&v, at, sizeof v); return (long)v; }
    switch ((int)type) {
    case FI_INT8: case FI_UINT8: GET(int8_t)
    case FI_INT16: case FI_UINT16: GET(int16_t)
    case FI_INT32: case FI_UINT32: GET(int32_t)
    case FI_INT64: case FI_UINT64: GET(int64_t)
    case FI_INT128: case FI_UINT128: GET(__int128)
    case FI_FLOAT: GET(float)
    case FI_DOUBLE: GET(double)
    case FI_FLOAT_COMPLEX: GET(float _Complex)
    case FI_DOUBLE_COMPLEX: GET(double _Complex)
    case FI_LONG_DOUBLE: GET(long double)
    case FI_LONG_DOUBLE_COMPLEX: GET(long double _Complex)
    }
#undef GET
    return -1;
}

enum { N = 9 };
static const long olds[N] = { 0, 1, 5, 7, 3, 5, 0, 2, 6 };
static const long ins[N] = { 0, 0, 3, 5, 6, 5, 4, 1, 6 };
static const long compares[N] = { 0, 1, 5, 6, 4, 9, 1, 2, 7 };

/* One call of any mode on n elements at `offset` of the registration. */
static void call_atomic(uint64_t mode, enum fi_datatype type, enum fi_op op, const char *in,
                        const char *compare, char *result, size_t n, uint64_t offset)
{
    if (mode == 0)
        OK(fi_atomic(a.ep, in, n, NULL, a.peer, offset, KEY, type, op, &a));
    else if (mode == FI_FETCH_ATOMIC)
        OK(fi_fetch_atomic(a.ep, op == FI_ATOMIC_READ ? NULL : in, n, NULL, result, NULL, a.peer,
                           offset, KEY, type, op, &a));
    else
        OK(fi_compare_atomic(a.ep, in, n, NULL, compare, NULL, result, NULL, a.peer, offset, KEY,
                             type, op, &a));
}

static void try_atomic(char *target, uint64_t offset, uint64_t mode, enum fi_datatype type,
                       enum fi_op op, size_t size, bool alone)
{
    char in[N * 32], compare[N * 32], result[N * 32];

    for (unsigned i = 0; i < N; i++) {
        put(type, target + i * size, olds[i]);
        put(type, in + i * size, ins[i]);
        put(type, compare + i * size, compares[i]);
        put(type, result + i * size, -2);
    }
    call_atomic(mode, type, op, in, compare, result, N, offset);
    if (alone)
        finish_alone(&a);
    else
        CHECK_EQ(finish(&a), 0);
    for (unsigned i = 0; i < N; i++) {
        long value = get(type, target + i * size);
        long wanted = new_value(op, olds[i], ins[i], compares[i]);

        CHECK_THAT(value == wanted, "type %d, op %d, %u: %ld, not %ld", type, op, i, value, wanted);
        if (mode != 0)
            CHECK_THAT(get(type, result + i * size) == olds[i], "type %d, op %d, %u", type, op, i);
    }
}

static const uint64_t modes[] = { 0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC };

/* Every type, operation and mode; returns how many there are. */
static unsigned try_all(char *target, uint64_t offset, bool alone, size_t size_max)
{
    struct fi_atomic_attr attr;
    unsigned n = 0;

    for (int type = 0; type <= FI_UINT128; type++)
        for (int op = 0; op <= FI_MSWAP; op++)
            for (unsigned m = 0; m < 3; m++) {
                if (fi_query_atomic(domain, type, op, &attr, modes[m]) != 0)
                    continue;
                if (attr.size > size_max || (alone && type == FI_FLOAT_COMPLEX))
                    continue;
                CHECK(attr.count >= 1 && attr.count * attr.size <= 4096);
                try_atomic(target, offset, modes[m], type, op, attr.size, alone);
                n++;
            }
    return n;
}

static void test_atomics(void)
{
    struct fi_atomic_attr attr;
    struct fid_mr *mr;
    uint64_t value = 1;
    size_t count;

    open_all(0, false);
    mr = reg(remote, 4096, ALL, KEY);
    /* 10 integer types with 11 base, 12 fetch and 7 compare; 3 real ones with 8, 9, 6; 3 complex
     * ones with 6, 7, 2. */
    CHECK_EQ(try_all(remote + 64, 64, false, 64), 10 * 30 + 3 * 23 + 3 * 15);
    CHECK_EQ(try_all(remote + 67, 67, false, 64), 10 * 30 + 3 * 23 + 3 * 15);

    CHECK_EQ(fi_query_atomic(domain, FI_DOUBLE, FI_BOR, &attr, 0), -FI_EOPNOTSUPP);
    CHECK_EQ(fi_query_atomic(domain, FI_FLOAT_COMPLEX, FI_MAX, &attr, 0), -FI_EOPNOTSUPP);
    CHECK_EQ(fi_query_atomic(domain, FI_INT8, FI_CSWAP, &attr, 0), -FI_EOPNOTSUPP);
    CHECK_EQ(fi_query_atomic(domain, FI_INT8, FI_ATOMIC_READ, &attr, 0), -FI_EOPNOTSUPP);
    CHECK_EQ(fi_query_atomic(domain, FI_INT8, FI_SUM, &attr, FI_TAGGED), -FI_EOPNOTSUPP);
    CHECK_EQ(fi_query_atomic(domain, FI_VOID, FI_SUM, &attr, 0), -FI_EOPNOTSUPP);
    CHECK_EQ(fi_query_atomic(domain, FI_INT8, FI_NOOP, &attr, 0), -FI_EOPNOTSUPP);
    OK(fi_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count));
    CHECK_EQ(fi_atomic(a.ep, local, count + 1, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a),
             -FI_EMSGSIZE);
    CHECK_EQ(fi_atomic(a.ep, local, 1, NULL, a.peer, 0, KEY, FI_UINT64, FI_CSWAP, &a),
             -FI_EOPNOTSUPP);
    OK(fi_atomic(a.ep, local, count, NULL, a.peer, 8, KEY, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(finish(&a), FI_EINVAL);
    OK(fi_atomic(a.ep, local, count, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(finish(&a), 0);
    OK(fi_atomic(a.ep, local, 1, NULL, a.peer, 0, KEY + 1, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(finish(&a), FI_EKEYREJECTED);
    memset(remote, 0, 8);
    for (unsigned i = 0; i < 100; i++)
        OK(fi_inject_atomic(a.ep, &value, 1, a.peer, 0, KEY, FI_UINT64, FI_SUM));
    OK(fi_fetch_atomic(a.ep, NULL, 1, NULL, &value, NULL, a.peer, 0, KEY, FI_UINT64, FI_ATOMIC_READ,
                       &b));
    CHECK_EQ(finish(&b), 0);
    CHECK_EQ(value, 100);       /* atomics are done in the order of the calls */
    OK(fi_close(&mr->fid));

    mr = reg(remote, 4096, FI_REMOTE_READ, KEY);
    OK(fi_fetch_atomic(a.ep, NULL, 1, NULL, &value, NULL, a.peer, 0, KEY, FI_UINT64, FI_ATOMIC_READ,
                       &b));
    CHECK_EQ(finish(&b), 0);
    OK(fi_atomic(a.ep, local, 1, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(finish(&a), FI_EACCES);
    OK(fi_close(&mr->fid));
    close_all();
}

static void test_atomic_pieces(void)
{
    uint32_t in[6] = { 1, 2, 3, 4, 5, 6 }, compare[6] = { 10, 0, 30, 40, 0, 60 }, result[6] = { 0 };
    uint32_t *there = (uint32_t *)(void *)remote;
    struct fi_ioc ins_[2] = { { in, 1 }, { in + 1, 5 } }, compares_[3] = {
        { compare, 2 }, { compare + 2, 2 }, { compare + 4, 2 } };
    struct fi_ioc results[2] = { { result, 4 }, { result + 4, 2 } };
    struct fi_rma_ioc segments[3] = { { 0, 2, KEY }, { 40, 1, KEY }, { 80, 3, KEY } };
    struct fi_msg_atomic msg = {
        .msg_iov = ins_, .iov_count = 2, .rma_iov = segments, .rma_iov_count = 3,
        .datatype = FI_UINT32, .op = FI_CSWAP, .context = &a,
    };
    struct fid_mr *mr;

    open_all(0, false);
    mr = reg(remote, 4096, ALL, KEY);
    there[0] = 10;
    there[1] = 20;
    there[10] = 30;
    there[20] = 40;
    there[21] = 50;
    there[22] = 60;
    msg.addr = a.peer;
    OK(fi_compare_atomicmsg(a.ep, &msg, compares_, NULL, 3, results, NULL, 2, FI_COMPLETION));
    CHECK_EQ(finish(&a), 0);
    CHECK_EQ(there[0], 1);
    CHECK_EQ(there[1], 20);
    CHECK_EQ(there[10], 3);
    CHECK_EQ(there[20], 4);
    CHECK_EQ(there[21], 50);
    CHECK_EQ(there[22], 6);
    for (unsigned i = 0; i < 6; i++)
        CHECK_EQ(result[i], (i + 1) * 10);
    OK(fi_close(&mr->fid));
    close_all();
}

/* ---------------------------------------------------------------- memory of the region */

/* Memory as a library beside the provider hands it out: another mapping of the same window. */
static struct ivc_region *beside;
static struct ivc_share share;

static char *region_memory(size_t size)
{
    CHECK_EQ(ivc_region_open(NULL, &beside), 0);
    CHECK_EQ(ivc_region_join(beside, CHECK_AS(1, 1)), 0);
    CHECK_EQ(ivc_region_share(beside, IVC_SLOT_ANY, size, &share), 0);
    return share.memory;
}

/* The first operation asks; its answer may be behind the completion. */
static void get_known(uint64_t key)
{
    uint64_t word;

    OK(fi_read(a.ep, &word, 8, NULL, a.peer, 0, key, &b));
    CHECK_EQ(finish(&b), 0);
    for (unsigned i = 0; i < 1000; i++) {
        (void)fi_cq_read(a.cq, NULL, 0);
        (void)fi_cq_read(b.cq, NULL, 0);
    }
}

static void test_direct(void)
{
    struct fid_mr *mr;
    char *there;

    open_all(0, false);
    there = region_memory(MEMORY);
    mr = reg(there + 64, BIG, ALL, KEY);
    get_known(KEY);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t len = lengths[i];

        fill(local, len, i + 5);
        OK(fi_write(a.ep, local, len, NULL, a.peer, BIG - len, KEY, &a));
        finish_alone(&a);
        CHECK(memcmp(there + 64 + BIG - len, local, len) == 0);
        memset(copy, 0, len);
        OK(fi_read(a.ep, copy, len, NULL, a.peer, BIG - len, KEY, &b));
        finish_alone(&b);
        CHECK(memcmp(copy, local, len) == 0);
    }
    /* 8 integer types of 30 operations, 2 real ones of 23. */
    CHECK_EQ(try_all(there + 64 + 128, 128, true, 8), 8 * 30 + 2 * 23);
    /* What cannot be one step of the processor is left to b. */
    (void)try_all(there + 64 + 3, 3, false, 64);

    /* Bounds and rights are b's to refuse. */
    OK(fi_write(a.ep, local, 8, NULL, a.peer, BIG - 7, KEY, &a));
    CHECK_EQ(finish(&a), FI_EINVAL);
    /* Remote CQ data wants b. */
    fill(local, 8, 1);
    memcpy(remote, local, 8);
    OK(fi_writedata(a.ep, local, 8, NULL, 6, a.peer, 0, KEY, &a));
    expect_data(6, 8);
    CHECK_EQ(finish(&a), 0);
    CHECK(memcmp(there + 64, local, 8) == 0);
    OK(fi_close(&mr->fid));
    close_all();
    ivc_region_unshare(beside, &share);
    ivc_region_free(beside);
}

/* A key that is closed, and used again for other memory, is never taken for what it was. */
static void test_direct_again(void)
{
    struct fid_mr *mr;
    char *there;

    open_all(0, false);
    there = region_memory(MEMORY);
    for (unsigned round = 0; round < 300; round++) {
        char *mine = there + round % 7 * 4096;
        uint64_t word = round + 1, none = 0;
        bool outside = round % 5 == 4;

        mr = reg(outside ? remote : mine, 4096, round % 3 ? ALL : FI_REMOTE_READ, KEY);
        get_known(KEY);
        memset(there, 0, 8 * 4096);
        memset(remote, 0, 4096);
        OK(fi_write(a.ep, &word, 8, NULL, a.peer, 8, KEY, &a));
        if (round % 3 == 0)
            CHECK_EQ(finish(&a), FI_EACCES);
        else if (outside)
            CHECK_EQ(finish(&a), 0);
        else
            finish_alone(&a);
        CHECK(memcmp((outside ? remote : mine) + 8, round % 3 ? &word : &none, 8) == 0);
        OK(fi_close(&mr->fid));
        memset(mine, 0, 4096);
        OK(fi_write(a.ep, &word, 8, NULL, a.peer, 8, KEY, &a));
        CHECK_EQ(finish(&a), FI_EKEYREJECTED);
        for (unsigned i = 0; i < 4096; i++)
            CHECK_EQ(mine[i], 0);
    }
    close_all();
    ivc_region_unshare(beside, &share);
    ivc_region_free(beside);
}

/* What is under way by request is not overtaken. */
static void test_direct_in_order(void)
{
    uint64_t one = 1, old = 0;
    struct fid_mr *mr, *other;
    char *there;

    open_all(0, false);
    there = region_memory(MEMORY);
    mr = reg(there, 4096, ALL, KEY);
    other = reg(remote, sizeof remote, ALL, KEY + 1);
    get_known(KEY);
    OK(fi_write(a.ep, local, BIG, NULL, a.peer, 0, KEY + 1, &a));
    OK(fi_fetch_atomic(a.ep, &one, 1, NULL, &old, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a));
    CHECK_EQ(*(uint64_t *)(void *)there, 0);    /* not done yet: the write is under way */
    CHECK_EQ(finish(&a), 0);
    CHECK_EQ(finish(&a), 0);
    CHECK_EQ(*(uint64_t *)(void *)there, 1);
    OK(fi_atomic(a.ep, &one, 1, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a));
    finish_alone(&a);
    CHECK_EQ(*(uint64_t *)(void *)there, 2);
    OK(fi_close(&mr->fid));
    OK(fi_close(&other->fid));
    close_all();
    ivc_region_unshare(beside, &share);
    ivc_region_free(beside);
}

/* ---------------------------------------------------------------- several processes */

struct adder {
    char name[128];             /* of b */
    size_t name_len;
    bool direct;
    ivc_atomic_u32 ended;
};

enum { ADDS = 20000 };

/* Another process that adds to b's word. */
static int add_many(void *arg)
{
    struct adder *adder = arg;
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_data_entry entry;
    uint64_t one = 1;
    ssize_t r;

    info = get_info(0);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    open_end(&a, 0);
    CHECK_EQ(fi_av_insert(av, adder->name, 1, &a.peer, 0, NULL), 1);
    for (unsigned i = 0; i < ADDS; i++) {
        while ((r = fi_atomic(a.ep, &one, 1, NULL, a.peer, 0, KEY, FI_UINT64, FI_SUM, &a))
               == -FI_EAGAIN)
            (void)fi_cq_read(a.cq, NULL, 0);
        CHECK_EQ(r, 0);
        while ((r = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
            ;
        CHECK_EQ(r, 1);
    }
    ivc_store_release(&adder->ended, 1);
    OK(fi_close(&a.ep->fid));
    return 0;
}

/* b adds with the processor's own instruction beside two others. */
static void add_together(bool in_region)
{
    static _Alignas(8) char elsewhere[4096];
    struct adder *adders = mmap(NULL, 2 * sizeof *adders, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    _Atomic uint64_t *word;
    struct fid_mr *mr;
    pid_t pids[2];
    unsigned mine = 0;

    check_skip_under_thread_sanitizer();
    setenv("IVC_REGION", check_file(0, 64 << 20), 1);
    setenv("FI_PROVIDER", "ivc", 1);
    setenv("FI_TCP_IFACE", "lo", 1);
    info = get_info(0);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    open_end(&b, 0);
    word = (_Atomic uint64_t *)(void *)(in_region ? region_memory(4096) : elsewhere);
    mr = reg((void *)word, 4096, ALL, KEY);
    for (unsigned i = 0; i < 2; i++) {
        adders[i].name_len = sizeof adders[i].name;
        OK(fi_getname(&b.ep->fid, adders[i].name, &adders[i].name_len));
        pids[i] = check_fork(add_many, &adders[i]);
    }
    while (!ivc_load_acquire(&adders[0].ended) || !ivc_load_acquire(&adders[1].ended)) {
        (void)fi_cq_read(b.cq, NULL, 0);
        if (mine < ADDS) {
            atomic_fetch_add(word, 1);
            mine++;
        }
    }
    for (; mine < ADDS; mine++)
        atomic_fetch_add(word, 1);
    CHECK_EQ(*word, 3 * ADDS);
    for (unsigned i = 0; i < 2; i++)
        check_join(pids[i]);
    OK(fi_close(&mr->fid));
    OK(fi_close(&b.ep->fid));
}

static void test_add_by_request(void)
{
    add_together(false);
}

static void test_add_directly(void)
{
    add_together(true);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        { "keys", test_keys, 0 },
        { "keys-of-provider", test_provider_keys, 0 },
        { "lengths", test_lengths, 0 },
        { "many", test_many, 0 },
        { "pieces", test_pieces, 0 },
        { "data", test_data, 0 },
        { "refused", test_refused, 0 },
        { "counters", test_counters, 0 },
        { "fence", test_fence, 0 },
        { "atomics", test_atomics, 0 },
        { "atomic-pieces", test_atomic_pieces, 0 },
        { "direct", test_direct, 0 },
        { "direct-key-again", test_direct_again, 0 },
        { "direct-in-order", test_direct_in_order, 0 },
        { "add-by-request", test_add_by_request, 0 },
        { "add-directly", test_add_directly, 0 },
    };

    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
