/*
 * The provider's objects, through libfabric's public calls only: what is offered and refused,
 * address vectors, queues, counters, sleeping, and the order in which things may be closed.
 *
 * One process with two endpoints.  FI_PROVIDER_PATH is the folder of libivc-fi.so.
 */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = FI_VERSION(1, 17), ADDRESS = 64 };

struct side {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    uint8_t address[ADDRESS];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;

static struct fi_info *make_hints(void)
{
    struct fi_info *hints = fi_allocinfo();

    CHECK(hints != NULL);
    hints->fabric_attr->prov_name = strdup("ivc");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_SOURCE | FI_DIRECTED_RECV;
    return hints;
}

static int ask(struct fi_info *hints, struct fi_info **ret_info)
{
    int r = fi_getinfo(VERSION, NULL, NULL, 0, hints, ret_info);

    fi_freeinfo(hints);
    return r;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---------------------------------------------------------------- what is offered */

static void refuse(void (*spoil)(struct fi_info *))
{
    struct fi_info *hints = make_hints(), *got = NULL;

    spoil(hints);
    CHECK_EQ(ask(hints, &got), -FI_ENODATA);
}

static void want_dgram(struct fi_info *hints) { hints->ep_attr->type = FI_EP_DGRAM; }
static void want_msg_ep(struct fi_info *hints) { hints->ep_attr->type = FI_EP_MSG; }
static void want_multicast(struct fi_info *hints) { hints->caps |= FI_MULTICAST; }
static void want_auto(struct fi_info *hints)
{
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
}

static void want_inject(struct fi_info *hints) { hints->tx_attr->inject_size = 1 << 20; }
static void want_order(struct fi_info *hints) { hints->tx_attr->msg_order = FI_ORDER_RMA_WAW; }
static void want_contexts(struct fi_info *hints) { hints->ep_attr->tx_ctx_cnt = 2; }
static void want_domain(struct fi_info *hints) { hints->domain_attr->name = strdup("nowhere"); }
static void want_sockaddr(struct fi_info *hints) { hints->addr_format = FI_SOCKADDR_IN; }
static void want_two_modes(struct fi_info *hints)
{
    hints->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_VIRT_ADDR;
}

static void test_refused(void)
{
    static void (*const spoilers[])(struct fi_info *) = {
        want_dgram, want_msg_ep, want_multicast, want_auto, want_inject, want_order, want_contexts,
        want_domain, want_sockaddr, want_two_modes,
    };
    struct fi_info *hints = make_hints(), *got = NULL;

    for (size_t i = 0; i < sizeof spoilers / sizeof *spoilers; i++)
        refuse(spoilers[i]);
    CHECK_EQ(fi_getinfo(VERSION, "127.0.0.1", "1", 0, hints, &got), -FI_ENODATA);
    fi_freeinfo(hints);
}

static void test_offered(void)
{
    struct fi_info *hints = make_hints(), *got = NULL;

    hints->caps = FI_TAGGED;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_MAP;
    CHECK_EQ(ask(hints, &got), 0);
    CHECK_EQ(got->caps & (FI_TAGGED | FI_SEND | FI_RECV), FI_TAGGED | FI_SEND | FI_RECV);
    CHECK_EQ(got->caps & (FI_MSG | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV), 0);
    CHECK_EQ(got->domain_attr->threading, FI_THREAD_DOMAIN);
    CHECK_EQ(got->domain_attr->av_type, FI_AV_MAP);
    CHECK_EQ(got->domain_attr->mr_mode & ~(FI_MR_LOCAL | FI_MR_PROV_KEY), 0);
    CHECK_EQ(got->mode, 0);
    CHECK(!got->next);
    fi_freeinfo(got);
}

/* ---------------------------------------------------------------- two endpoints */

static void open_side(struct side *side, enum fi_wait_obj object)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = object };
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    size_t len = 1;

    CHECK_EQ(fi_endpoint(domain, info, &side->ep, NULL), 0);
    CHECK_EQ(fi_enable(side->ep), -FI_ENOAV);
    CHECK_EQ(fi_av_open(domain, &av, &side->av, NULL), 0);
    CHECK_EQ(fi_ep_bind(side->ep, &side->av->fid, 0), 0);
    CHECK_EQ(fi_enable(side->ep), -FI_ENOCQ);
    CHECK_EQ(fi_cq_open(domain, &cq, &side->cq, NULL), 0);
    CHECK_EQ(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), 0);
    CHECK_EQ(fi_ep_bind(side->ep, &side->cq->fid, FI_RECV), -FI_EINVAL);
    /* The name is known before the endpoint is enabled; its length is told to who has no room. */
    CHECK_EQ(fi_getname(&side->ep->fid, side->address, &len), -FI_ETOOSMALL);
    CHECK_EQ(len, ADDRESS);
    CHECK_EQ(fi_getname(&side->ep->fid, side->address, &len), 0);
    CHECK_EQ(fi_enable(side->ep), 0);
    CHECK_EQ(fi_enable(side->ep), -FI_EOPBADSTATE);
    /* What is bound cannot be closed. */
    CHECK_EQ(fi_close(&side->cq->fid), -FI_EBUSY);
    CHECK_EQ(fi_close(&side->av->fid), -FI_EBUSY);
    CHECK_EQ(fi_close(&domain->fid), -FI_EBUSY);
    CHECK_EQ(fi_close(&fabric->fid), -FI_EBUSY);
}

static void close_side(struct side *side)
{
    CHECK_EQ(fi_close(&side->ep->fid), 0);
    CHECK_EQ(fi_close(&side->cq->fid), 0);
    CHECK_EQ(fi_close(&side->av->fid), 0);
}

static void open_domain(enum fi_threading threading)
{
    struct fi_info *hints = make_hints();

    hints->domain_attr->threading = threading;
    hints->domain_attr->av_type = FI_AV_TABLE;
    CHECK_EQ(ask(hints, &info), 0);
    CHECK_EQ(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
    CHECK_EQ(fi_domain(fabric, info, &domain, NULL), 0);
}

static void close_domain(void)
{
    CHECK_EQ(fi_close(&domain->fid), 0);
    CHECK_EQ(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
}

/* Reads one completion; the other side's progress is made by its own queue. */
static void read_one(struct side *side, struct side *other, struct fi_cq_tagged_entry *entry,
                     fi_addr_t *source)
{
    struct fi_cq_tagged_entry unused;
    uint64_t end = now_ms() + 10000;
    ssize_t n;

    do {
        n = fi_cq_read(other->cq, &unused, 0);
        CHECK(n == 0 || n == -FI_EAGAIN);
        n = fi_cq_readfrom(side->cq, entry, 1, source);
        CHECK(now_ms() < end);
    } while (n == -FI_EAGAIN);
    CHECK_EQ(n, 1);
}

/* ---------------------------------------------------------------- address vectors */

static void test_av(void)
{
    struct side a;
    uint8_t bad[2 * ADDRESS], back[ADDRESS];
    fi_addr_t addr[3];
    int errors[2] = { 1, 1 };
    size_t len = sizeof back;
    char text[300];

    open_side(&a, FI_WAIT_NONE);
    memcpy(bad, a.address, ADDRESS);
    memset(bad + ADDRESS, 0xff, ADDRESS);
    CHECK_EQ(fi_av_insert(a.av, bad, 2, addr, FI_SYNC_ERR, errors), 1);
    CHECK_EQ(addr[0], 0);
    CHECK_EQ(addr[1], FI_ADDR_NOTAVAIL);
    CHECK_EQ(errors[0], 0);
    CHECK_EQ(errors[1], FI_EINVAL);
    CHECK_EQ(fi_av_lookup(a.av, addr[0], back, &len), 0);
    CHECK_EQ(len, ADDRESS);
    CHECK_EQ(memcmp(back, a.address, ADDRESS), 0);
    len = sizeof text;
    CHECK(strstr(fi_av_straddr(a.av, a.address, text, &len), "fi_ivc://") == text);
    /* The same address may stand in a table twice; what is removed is used again. */
    CHECK_EQ(fi_av_insert(a.av, a.address, 1, &addr[2], 0, NULL), 1);
    CHECK_EQ(addr[2], 1);
    CHECK_EQ(fi_av_remove(a.av, addr, 1, 0), 0);
    CHECK_EQ(fi_av_remove(a.av, addr, 1, 0), -FI_EINVAL);
    CHECK_EQ(fi_send(a.ep, "x", 1, NULL, addr[0], NULL), -FI_EINVAL);
    CHECK_EQ(fi_av_insert(a.av, a.address, 1, &addr[2], 0, NULL), 1);
    CHECK_EQ(addr[2], 0);
    close_side(&a);
}

static void test_av_event(void)
{
    struct fi_av_attr attr = { .type = FI_AV_MAP, .flags = FI_EVENT };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD };
    struct fi_eq_err_entry error = { 0 };
    struct fi_eq_entry entry = { 0 };
    uint8_t bad[ADDRESS];
    uint32_t event = 0;
    struct fid_eq *eq;
    struct fid_av *av;
    fi_addr_t addr;

    CHECK_EQ(fi_eq_open(fabric, &eq_attr, &eq, NULL), 0);
    /* The domain's kind is a table, as the hints said. */
    CHECK_EQ(fi_av_open(domain, &attr, &av, NULL), -FI_EINVAL);
    attr.type = FI_AV_UNSPEC;
    CHECK_EQ(fi_av_open(domain, &attr, &av, NULL), 0);
    memset(bad, 1, sizeof bad);
    CHECK_EQ(fi_av_insert(av, bad, 1, &addr, 0, NULL), -FI_ENOEQ);
    CHECK_EQ(fi_av_bind(av, &eq->fid, 0), 0);
    CHECK_EQ(fi_av_insert(av, bad, 1, &addr, 0, &event), 0);
    CHECK_EQ(addr, FI_ADDR_NOTAVAIL);
    CHECK_EQ(fi_eq_read(eq, &event, &entry, sizeof entry, 0), -FI_EAVAIL);
    CHECK_EQ(fi_eq_readerr(eq, &error, 0), (ssize_t)sizeof error);
    CHECK_EQ(error.err, FI_EINVAL);
    CHECK_EQ(error.data, 0);
    CHECK_EQ(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0), (ssize_t)sizeof entry);
    CHECK_EQ(event, FI_AV_COMPLETE);
    CHECK_EQ(entry.data, 0);
    CHECK_EQ(fi_close(&eq->fid), -FI_EBUSY);
    CHECK_EQ(fi_close(&av->fid), 0);
    CHECK_EQ(fi_close(&eq->fid), 0);
}

/* ---------------------------------------------------------------- event queues */

static void test_eq(void)
{
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
    struct fi_eq_entry in = { .data = 7 }, out = { 0 };
    struct pollfd on = { .events = POLLIN };
    uint32_t event = 0;
    struct fid_eq *eq;
    struct fid *fid;
    uint64_t start;

    CHECK_EQ(fi_eq_open(fabric, &attr, &eq, NULL), 0);
    fid = &eq->fid;
    CHECK_EQ(fi_control(fid, FI_GETWAIT, &on.fd), 0);
    CHECK_EQ(fi_trywait(fabric, &fid, 1), 0);
    CHECK_EQ(poll(&on, 1, 0), 0);
    start = now_ms();
    CHECK_EQ(fi_eq_sread(eq, &event, &out, sizeof out, 50, 0), -FI_EAGAIN);
    CHECK(now_ms() - start >= 49);
    CHECK_EQ(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0), (ssize_t)sizeof in);
    CHECK_EQ(poll(&on, 1, 0), 1);
    CHECK_EQ(fi_trywait(fabric, &fid, 1), -FI_EAGAIN);
    CHECK_EQ(fi_eq_read(eq, &event, &out, 1, 0), -FI_ETOOSMALL);
    CHECK_EQ(fi_eq_read(eq, &event, &out, sizeof out, FI_PEEK), (ssize_t)sizeof out);
    CHECK_EQ(fi_eq_read(eq, &event, &out, sizeof out, 0), (ssize_t)sizeof out);
    CHECK_EQ(out.data, 7);
    CHECK_EQ(event, FI_NOTIFY);
    CHECK_EQ(fi_eq_read(eq, &event, &out, sizeof out, 0), -FI_EAGAIN);
    CHECK_EQ(poll(&on, 1, 0), 0);
    CHECK_EQ(fi_close(fid), 0);
}

/* ---------------------------------------------------------------- completion queues */

static void test_messages(void)
{
    struct fi_cq_tagged_entry entry = { 0 };
    struct fi_cq_err_entry error = { 0 };
    fi_addr_t to_b, to_a, source = 0;
    char buf[16] = "";
    struct side a, b;
    int context;

    open_side(&a, FI_WAIT_NONE);
    open_side(&b, FI_WAIT_NONE);
    CHECK_EQ(fi_cq_read(a.cq, &entry, 1), -FI_EAGAIN);
    CHECK_EQ(fi_cq_readerr(a.cq, &error, 0), -FI_EAGAIN);
    CHECK_EQ(fi_cq_sread(a.cq, &entry, 1, NULL, 0), -FI_ENOSYS);
    CHECK_EQ(fi_av_insert(a.av, b.address, 1, &to_b, 0, NULL), 1);
    /* b does not know a: no source.  Then it does. */
    for (int known = 0; known < 2; known++) {
        if (known)
            CHECK_EQ(fi_av_insert(b.av, a.address, 1, &to_a, 0, NULL), 1);
        CHECK_EQ(fi_trecv(b.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 5, 0, &context), 0);
        CHECK_EQ(fi_tsend(a.ep, "hello", 6, NULL, to_b, 5, &entry), 0);
        read_one(&b, &a, &entry, &source);
        CHECK_EQ(source, known ? to_a : FI_ADDR_NOTAVAIL);
        CHECK(entry.op_context == &context);
        CHECK_EQ(entry.flags & (FI_TAGGED | FI_RECV), FI_TAGGED | FI_RECV);
        CHECK_EQ(entry.len, 6);
        CHECK_EQ(entry.tag, 5);
        CHECK_EQ(strcmp(buf, "hello"), 0);
        read_one(&a, &b, &entry, NULL);
        CHECK_EQ(entry.flags & (FI_TAGGED | FI_SEND), FI_TAGGED | FI_SEND);
    }
    /* Cancelled: an error entry, which blocks reading until it is read. */
    CHECK_EQ(fi_trecv(b.ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, 6, 0, &context), 0);
    CHECK_EQ(fi_cancel(&b.ep->fid, &context), 0);
    CHECK_EQ(fi_cq_read(b.cq, &entry, 1), -FI_EAVAIL);
    CHECK_EQ(fi_cq_readerr(b.cq, &error, 0), 1);
    CHECK_EQ(error.err, FI_ECANCELED);
    CHECK(error.op_context == &context);
    CHECK_EQ(fi_cq_read(b.cq, &entry, 1), -FI_EAGAIN);
    close_side(&a);
    close_side(&b);
}

/* More completions than the ring held at first, read by few; none is lost, and they keep order. */
static void test_many(void)
{
    enum { N = 3000 };
    struct fi_cq_tagged_entry entries[7];
    static char buf[N];
    struct side a, b;
    fi_addr_t to_b;
    size_t got = 0;
    uint64_t end = now_ms() + 30000;

    open_side(&a, FI_WAIT_NONE);
    open_side(&b, FI_WAIT_NONE);
    CHECK_EQ(fi_av_insert(a.av, b.address, 1, &to_b, 0, NULL), 1);
    for (size_t i = 0; i < N; i++)
        CHECK_EQ(fi_trecv(b.ep, &buf[i], 1, NULL, FI_ADDR_UNSPEC, 1, 0, &buf[i]), 0);
    for (size_t i = 0; i < N; i++) {
        char byte = (char)i;
        ssize_t r;

        while ((r = fi_tinject(a.ep, &byte, 1, to_b, 1)) == -FI_EAGAIN) {
            CHECK(now_ms() < end);
            CHECK(fi_cq_read(b.cq, NULL, 0) <= 0);
            CHECK(fi_cq_read(a.cq, NULL, 0) <= 0);
        }
        CHECK_EQ(r, 0);
    }
    while (got < N) {
        ssize_t n = fi_cq_read(b.cq, entries, 7);

        CHECK(now_ms() < end);
        CHECK(n > 0 || n == -FI_EAGAIN);
        for (ssize_t i = 0; i < n; i++, got++)
            CHECK(entries[i].op_context == &buf[got] && buf[got] == (char)got);
        CHECK_EQ(fi_cq_read(a.cq, NULL, 0), -FI_EAGAIN);    /* sends what had no room */
    }
    CHECK_EQ(fi_cq_read(a.cq, entries, 1), -FI_EAGAIN);     /* inject has no completion */
    close_side(&a);
    close_side(&b);
}

/* How a message is received. */
enum { IN_ONE_PIECE, IN_TWO_PIECES, TOO_SHORT, OF_ANY_TAG, FROM_ANYBODY, KINDS };

struct mixed {
    struct side a, b;
    fi_addr_t to_b, to_a;
    int kind;
    size_t len, room;
    uint64_t tag, data;         /* data 0: none */
};

enum { MIXED_MAX = 40000, GUARD = 64 };
static char mixed_out[MIXED_MAX], mixed_in[MIXED_MAX + GUARD];

static void mixed_receive(struct mixed *mixed)
{
    size_t third = mixed->room / 3, rest = mixed->room - third;
    const struct iovec iov[2] = { { mixed_in + rest, third }, { mixed_in, rest } };
    fi_addr_t from = mixed->kind == FROM_ANYBODY ? FI_ADDR_UNSPEC : mixed->to_a;
    bool any = mixed->kind == OF_ANY_TAG;

    memset(mixed_in, 0x55, mixed->len + GUARD);
    if (mixed->kind == IN_TWO_PIECES)
        CHECK_EQ(fi_trecvv(mixed->b.ep, iov, NULL, 2, from, mixed->tag, 0, mixed_in), 0);
    else
        CHECK_EQ(fi_trecv(mixed->b.ep, mixed_in, mixed->room, NULL, from, any ? 0 : mixed->tag, any ? 0xf : 0,
                          mixed_in), 0);
}

static void mixed_send(struct mixed *mixed)
{
    ssize_t r = mixed->data
        ? fi_tsenddata(mixed->a.ep, mixed_out, mixed->len, NULL, mixed->data, mixed->to_b, mixed->tag, NULL)
        : fi_tsend(mixed->a.ep, mixed_out, mixed->len, NULL, mixed->to_b, mixed->tag, NULL);

    CHECK_EQ(r, 0);
}

/* Both queues' progress, until b's has something; what a has sent is reported meanwhile. */
static ssize_t mixed_wait(struct mixed *mixed, struct fi_cq_tagged_entry *entry, unsigned *sents)
{
    struct fi_cq_tagged_entry sent;
    uint64_t end = now_ms() + 10000;
    ssize_t n;

    do {
        *sents += fi_cq_read(mixed->a.cq, &sent, 1) == 1;
        n = fi_cq_read(mixed->b.cq, entry, 1);
        CHECK(now_ms() < end);
    } while (n == -FI_EAGAIN);
    return n;
}

static void mixed_check(struct mixed *mixed, ssize_t n, const struct fi_cq_tagged_entry *entry)
{
    size_t first, rest;

    if (mixed->kind == TOO_SHORT && mixed->room < mixed->len) {
        struct fi_cq_err_entry error = { 0 };

        CHECK_EQ(n, -FI_EAVAIL);
        CHECK_EQ(fi_cq_readerr(mixed->b.cq, &error, 0), 1);
        CHECK_EQ(error.err, FI_ETRUNC);
        CHECK_EQ(error.len, mixed->room);
        CHECK_EQ(error.olen, mixed->len - mixed->room);
        CHECK(error.op_context == mixed_in);
    } else {
        CHECK_EQ(n, 1);
        CHECK(entry->op_context == mixed_in);
        CHECK_EQ(entry->len, mixed->len);
        CHECK_EQ(entry->tag, mixed->tag);
        CHECK_EQ(entry->flags & (FI_TAGGED | FI_RECV), FI_TAGGED | FI_RECV);
        CHECK_EQ((entry->flags & FI_REMOTE_CQ_DATA) != 0, mixed->data > 0);
        CHECK(!mixed->data || entry->data == mixed->data);
    }
    first = mixed->kind == IN_TWO_PIECES ? mixed->room / 3 : 0;
    rest = mixed->room - first;
    CHECK_EQ(memcmp(mixed_in + rest, mixed_out, first), 0);
    CHECK_EQ(memcmp(mixed_in, mixed_out + first, rest), 0);
    for (size_t i = mixed->room; i < mixed->len + GUARD; i++)
        CHECK_EQ(mixed_in[i], 0x55);
}

/* Messages of all lengths, by receives of all kinds, posted before they come or afterwards. */
static void test_mixed(void)
{
    enum { N = 3000 };
    struct fi_cq_tagged_entry entry = { 0 };
    struct mixed mixed = { 0 };
    uint64_t state = 3;
    unsigned sents = 0;

    open_side(&mixed.a, FI_WAIT_NONE);
    open_side(&mixed.b, FI_WAIT_NONE);
    CHECK_EQ(fi_av_insert(mixed.a.av, mixed.b.address, 1, &mixed.to_b, 0, NULL), 1);
    CHECK_EQ(fi_av_insert(mixed.b.av, mixed.a.address, 1, &mixed.to_a, 0, NULL), 1);
    for (unsigned i = 0; i < N; i++) {
        static const size_t most[] = { 10, 50, 200, 2000, MIXED_MAX };
        bool first = check_random(&state) % 4 > 0;

        for (unsigned k = 0; k < MIXED_MAX; k += 997)
            mixed_out[(k + i) % MIXED_MAX]++;
        mixed.kind = (int)(check_random(&state) % KINDS);
        mixed.len = check_random(&state) % most[check_random(&state) % 5];
        mixed.room = mixed.kind == TOO_SHORT ? mixed.len / 2 : mixed.len;
        mixed.tag = 1 + check_random(&state) % 3;
        mixed.data = check_random(&state) % 4 == 0 ? i + 1 : 0;
        if (first)
            mixed_receive(&mixed);
        mixed_send(&mixed);
        if (!first) {
            CHECK(fi_cq_read(mixed.b.cq, &entry, 1) == -FI_EAGAIN);
            mixed_receive(&mixed);
        }
        mixed_check(&mixed, mixed_wait(&mixed, &entry, &sents), &entry);
    }
    while (sents < N)
        sents += fi_cq_read(mixed.a.cq, &entry, 1) == 1;
    close_side(&mixed.a);
    close_side(&mixed.b);
}

/* ---------------------------------------------------------------- sleeping */

struct sleeper {
    struct side *side;
    struct fi_cq_tagged_entry entry;
    ssize_t n;
};

static void *sleep_in_sread(void *arg)
{
    struct sleeper *sleeper = arg;

    sleeper->n = fi_cq_sread(sleeper->side->cq, &sleeper->entry, 1, NULL, 20000);
    return NULL;
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Until it sleeps for nothing: a wake-up may be meant for somebody who has gone to sleep before, and there
 * may be something for progress to do that completes nothing. */
static void sleep_soundly(struct side *side, struct fid *fid, struct pollfd *on)
{
    struct fi_cq_tagged_entry entry;
    unsigned n = 0;
    int r;

    do {
        CHECK(n++ < 10);
        CHECK_EQ(fi_cq_read(side->cq, &entry, 1), -FI_EAGAIN);
        r = fi_trywait(fabric, &fid, 1);
        CHECK(r == 0 || r == -FI_EAGAIN);
    } while (r != 0 || poll(on, 1, 20) != 0);     /* a sleep ends by itself after 50 */
}

static void test_sread(void)
{
    struct side a, b;
    struct sleeper sleeper = { .side = &b };
    struct fi_cq_tagged_entry entry;
    struct pollfd on = { .events = POLLIN };
    struct fid *fid;
    pthread_t thread;
    fi_addr_t to_b;
    uint64_t start;
    double cpu;
    char c;

    open_side(&a, FI_WAIT_UNSPEC);
    open_side(&b, FI_WAIT_FD);
    CHECK_EQ(fi_av_insert(a.av, b.address, 1, &to_b, 0, NULL), 1);
    /* A time-out is kept, and the processor is not burnt meanwhile. */
    start = now_ms();
    cpu = cpu_s();
    CHECK_EQ(fi_cq_sread(b.cq, &entry, 1, NULL, 500), -FI_EAGAIN);
    CHECK(now_ms() - start >= 499);
    CHECK(cpu_s() - cpu < 0.25);
    /* Signalled. */
    CHECK_EQ(pthread_create(&thread, NULL, sleep_in_sread, &sleeper), 0);
    usleep(100000);
    CHECK_EQ(fi_cq_signal(b.cq), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(sleeper.n, -FI_ECANCELED);
    /* Woken by a message. */
    CHECK_EQ(fi_trecv(b.ep, &c, 1, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
    CHECK_EQ(pthread_create(&thread, NULL, sleep_in_sread, &sleeper), 0);
    usleep(100000);
    start = now_ms();
    CHECK_EQ(fi_tinject(a.ep, "m", 1, to_b, 1), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(sleeper.n, 1);
    CHECK_EQ(c, 'm');
    CHECK(now_ms() - start < 5000);
    /* By descriptor: unreadable after a successful fi_trywait() until there is something. */
    CHECK_EQ(fi_trecv(b.ep, &c, 1, NULL, FI_ADDR_UNSPEC, 1, 0, NULL), 0);
    fid = &b.cq->fid;
    CHECK_EQ(fi_control(fid, FI_GETWAIT, &on.fd), 0);
    sleep_soundly(&b, fid, &on);
    CHECK_EQ(fi_tinject(a.ep, "n", 1, to_b, 1), 0);
    CHECK_EQ(poll(&on, 1, 10000), 1);
    read_one(&b, &a, &entry, NULL);
    CHECK_EQ(c, 'n');
    close_side(&a);
    close_side(&b);
}

/* ---------------------------------------------------------------- counters */

static void test_cntr(void)
{
    struct fi_cntr_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fid_cntr *cntr;
    struct fid_poll *set;
    void *contexts[2];
    uint64_t start;
    int mine;

    CHECK_EQ(fi_cntr_open(domain, &attr, &cntr, &mine), 0);
    CHECK_EQ(fi_cntr_read(cntr), 0);
    CHECK_EQ(fi_poll_open(domain, NULL, &set), 0);
    CHECK_EQ(fi_poll_add(set, &cntr->fid, 0), 0);
    CHECK_EQ(fi_poll(set, contexts, 2), 0);
    CHECK_EQ(fi_cntr_add(cntr, 3), 0);
    CHECK_EQ(fi_poll(set, contexts, 2), 1);
    CHECK(contexts[0] == &mine);
    CHECK_EQ(fi_cntr_read(cntr), 3);
    CHECK_EQ(fi_cntr_set(cntr, 1), 0);
    CHECK_EQ(fi_cntr_adderr(cntr, 2), 0);
    CHECK_EQ(fi_cntr_read(cntr), 1);
    CHECK_EQ(fi_cntr_readerr(cntr), 2);
    CHECK_EQ(fi_cntr_wait(cntr, 1, 0), 0);
    start = now_ms();
    CHECK_EQ(fi_cntr_wait(cntr, 2, 50), -FI_ETIMEDOUT);
    CHECK(now_ms() - start >= 49);
    CHECK_EQ(fi_poll_del(set, &cntr->fid, 0), 0);
    CHECK_EQ(fi_close(&set->fid), 0);
    CHECK_EQ(fi_close(&cntr->fid), 0);
}

static struct fid_cntr *count_writes(char *memory, uint64_t key, struct fid_mr **ret_mr)
{
    struct fi_cntr_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fid_cntr *cntr;

    CHECK_EQ(fi_cntr_open(domain, &attr, &cntr, NULL), 0);
    CHECK_EQ(fi_mr_reg(domain, memory, 8, FI_REMOTE_WRITE, 0, key, 0, ret_mr, NULL), 0);
    CHECK_EQ(fi_mr_bind(*ret_mr, &cntr->fid, FI_REMOTE_WRITE), 0);
    return cntr;
}

/* Counters that belong to registered memory and to no endpoint: whoever waits for nothing else
 * makes the progress of all, of those that were opened before and of those that came later. */
static void test_cntr_of_memory(void)
{
    struct fid_cntr *early, *late;
    struct fid_mr *mrs[2];
    char memory[2][8] = { "", "" };
    struct side a, b;
    fi_addr_t to_b;
    uint64_t seen;

    early = count_writes(memory[0], 1, &mrs[0]);
    open_side(&a, FI_WAIT_NONE);
    open_side(&b, FI_WAIT_NONE);
    late = count_writes(memory[1], 2, &mrs[1]);
    CHECK_EQ(fi_av_insert(a.av, b.address, 1, &to_b, 0, NULL), 1);
    for (uint64_t i = 0; i < 2; i++) {
        struct fid_cntr *cntr = i == 0 ? early : late;

        CHECK_EQ(fi_inject_write(a.ep, "written", 8, to_b, 0, i + 1), 0);
        CHECK_EQ(fi_cntr_wait(cntr, 1, 20000), 0);
        CHECK_EQ(strcmp(memory[i], "written"), 0);
        CHECK_EQ(fi_inject_write(a.ep, "again..", 8, to_b, 0, i + 1), 0);
        for (uint64_t end = now_ms() + 20000; (seen = fi_cntr_read(cntr)) < 2; )
            CHECK(now_ms() < end);
        CHECK_EQ(seen, 2);
        CHECK_EQ(strcmp(memory[i], "again.."), 0);
    }
    close_side(&a);
    CHECK_EQ(fi_cntr_read(late), 2);
    CHECK_EQ(fi_close(&late->fid), -FI_EBUSY);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(fi_close(&mrs[i]->fid), 0);
    CHECK_EQ(fi_close(&late->fid), 0);
    close_side(&b);
    CHECK_EQ(fi_cntr_read(early), 2);
    CHECK_EQ(fi_close(&early->fid), 0);
}

/* ---------------------------------------------------------------- cases */

/* libfabric reads its environment at the first call, which is in the case's own process. */
static void set_environment(void)
{
    CHECK(getenv("FI_PROVIDER_PATH") != NULL);
    setenv("IVC_REGION", check_file(0, 64 << 20), 1);
    setenv("FI_PROVIDER", "ivc", 1);
    setenv("FI_TCP_IFACE", "lo", 1);
}

static void run_with(enum fi_threading threading, void (*test)(void))
{
    open_domain(threading);
    test();
    close_domain();
}

static void run(void (*test)(void))
{
    set_environment();
    run_with(FI_THREAD_SAFE, test);
    run_with(FI_THREAD_DOMAIN, test);
}

static void case_info(void)
{
    set_environment();
    test_refused();
    test_offered();
}

static void case_av(void) { run(test_av); }
static void case_av_event(void) { run(test_av_event); }
static void case_eq(void) { run(test_eq); }
static void case_messages(void) { run(test_messages); }
static void case_many(void) { run(test_many); }
static void case_mixed(void) { run(test_mixed); }
static void case_cntr(void) { run(test_cntr); }
static void case_cntr_of_memory(void) { run(test_cntr_of_memory); }

/* A thread sends while another sleeps: not under FI_THREAD_DOMAIN. */
static void case_sread(void)
{
    set_environment();
    run_with(FI_THREAD_SAFE, test_sread);
}

static const struct check_case cases[] = {
    { "what is offered and refused", case_info, 0 },
    { "address vectors", case_av, 0 },
    { "address vectors, asynchronous", case_av_event, 0 },
    { "event queues", case_eq, 0 },
    { "messages, sources, cancelling", case_messages, 0 },
    { "more completions than the queue had room for", case_many, 0 },
    { "all lengths, all kinds of receive", case_mixed, 0 },
    { "counters and poll sets", case_cntr, 0 },
    { "counters of registered memory", case_cntr_of_memory, 0 },
    { "blocking reads and descriptors", case_sread, 0 },
};

CHECK_MAIN(cases)
