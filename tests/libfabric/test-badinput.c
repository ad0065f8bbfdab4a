/*
 * What an application, a peer or an administrator does wrong, through libfabric's public calls:
 * each gets an answer that says what it was, and everything works on afterwards.
 */
#include "end.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>

static char big[1 << 20], room[1 << 20];
static int contexts[16];
#define CONTEXT(i) ((void *)&contexts[i])

static struct end a, b;
static fi_addr_t to_a, to_b;

static void open_pair_in(const char *region)
{
    end_environment(region);
    end_open(&a, FI_THREAD_DOMAIN);
    end_open(&b, FI_THREAD_DOMAIN);
    to_b = end_meet(&a, b.address);
    to_a = end_meet(&b, a.address);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 31 + i / 251);
}

static void open_pair(void)
{
    open_pair_in(check_file(0, 64 << 20));
}

static void close_pair(void)
{
    end_close(&a);
    end_close(&b);
}

/* A message goes through: nothing that was tried before has harmed them. */
static void still_work(void)
{
    char in = 0;

    CHECK_EQ(fi_trecv(b.ep, &in, 1, NULL, FI_ADDR_UNSPEC, 99, 0, CONTEXT(0)), 0);
    CHECK_EQ(fi_tinject(a.ep, "w", 1, to_b, 99), 0);
    end_expect(&b, &a, CONTEXT(0), "a message after all that");
    CHECK_EQ(in, 'w');
}

/* ---------------------------------------------------------------- addresses */

static int open_elsewhere(void *pipe_fd)
{
    struct end other;

    setenv("IVC_REGION", check_file(1, 64 << 20), 1);
    setenv("IVC_NETWORK", "none", 1);
    end_open(&other, FI_THREAD_DOMAIN);
    CHECK(write(*(int *)pipe_fd, other.address, END_ADDRESS) == END_ADDRESS);
    end_close(&other);
    return 0;
}

static int open_and_leave(void *pipe_fd)
{
    struct end other;

    end_open(&other, FI_THREAD_DOMAIN);
    CHECK(write(*(int *)pipe_fd, other.address, END_ADDRESS) == END_ADDRESS);
    end_close(&other);
    return 0;
}

static void address_of(int (*fn)(void *), uint8_t *ret_address)
{
    int fds[2];

    CHECK(pipe(fds) == 0);
    check_join(check_fork(fn, &fds[1]));
    CHECK(read(fds[0], ret_address, END_ADDRESS) == END_ADDRESS);
    close(fds[0]);
    close(fds[1]);
}

static void case_addresses(void)
{
    const char *region = check_file(0, 64 << 20);
    uint8_t bad[4][END_ADDRESS];
    fi_addr_t addr[4];
    int errors[4] = { -1, -1, -1, -1 };
    char c;

    end_environment(region);
    setenv("IVC_NETWORK", "none", 1);
    address_of(open_elsewhere, bad[0]);
    address_of(open_and_leave, bad[1]);
    open_pair_in(region);
    memcpy(bad[2], a.address, END_ADDRESS);
    bad[2][0] ^= 0x40;                          /* made by another version */
    memset(bad[3], 0, END_ADDRESS);
    CHECK_EQ(fi_av_insert(a.av, bad, 4, addr, FI_SYNC_ERR, errors), 2);
    CHECK_EQ(errors[0], 0);
    CHECK_EQ(errors[1], 0);
    CHECK_EQ(errors[2], FI_EINVAL);
    CHECK_EQ(errors[3], FI_EINVAL);
    CHECK_EQ(addr[2], FI_ADDR_NOTAVAIL);
    CHECK_EQ(addr[3], FI_ADDR_NOTAVAIL);
    /* Another job's: it is not of our region, and there is no network. */
    CHECK_EQ(fi_send(a.ep, "x", 1, NULL, addr[0], NULL), -FI_EHOSTUNREACH);
    CHECK_EQ(fi_trecv(a.ep, &c, 1, NULL, addr[0], 1, 0, NULL), -FI_EHOSTUNREACH);
    /* It has left. */
    CHECK_EQ(fi_tsend(a.ep, "x", 1, NULL, addr[1], 1, NULL), -FI_ECONNABORTED);
    CHECK_EQ(fi_inject(a.ep, "x", 1, addr[1]), -FI_ECONNABORTED);
    CHECK_EQ(fi_recv(a.ep, &c, 1, NULL, addr[1], NULL), -FI_ECONNABORTED);
    CHECK_EQ(fi_inject_write(a.ep, "x", 1, addr[1], 0, 1), -FI_ECONNABORTED);
    /* Never inserted. */
    CHECK_EQ(fi_send(a.ep, "x", 1, NULL, 12345, NULL), -FI_EINVAL);
    CHECK_EQ(fi_send(a.ep, "x", 1, NULL, FI_ADDR_NOTAVAIL, NULL), -FI_EINVAL);
    CHECK_EQ(fi_send(a.ep, "x", 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    /* What fi_av_insert() does not know, what it is not told. */
    CHECK_EQ(fi_av_insert(a.av, a.address, 1, addr, 1ull << 40, NULL), -FI_EBADFLAGS);
    CHECK_EQ(fi_av_insert(a.av, a.address, 1, addr, FI_SYNC_ERR, NULL), -FI_EINVAL);
    CHECK_EQ(fi_av_insertsvc(a.av, "localhost", "1", addr, 0, NULL), -FI_ENOSYS);
    still_work();
    close_pair();
}

/* ---------------------------------------------------------------- messages longer than buffers */

/* One packet, a train, an offer; awaited and too early. */
static void case_truncated(void)
{
    static const size_t sizes[] = { 24, 5000, 60000, sizeof big };
    struct end_event event;

    open_pair();
    for (unsigned i = 0; i < 8; i++) {
        size_t len = sizes[i % 4], posted = len - len / 3;
        bool early = i >= 4;

        memset(room, 0x55, sizeof room);
        if (!early)
            CHECK_EQ(fi_trecv(b.ep, room, posted, NULL, to_a, 5, 0, CONTEXT(1)), 0);
        CHECK_EQ(fi_tsend(a.ep, big, len, NULL, to_b, 5, CONTEXT(2)), 0);
        for (unsigned turn = 0; early && turn < 1000; turn++) {
            CHECK_EQ(fi_cq_read(b.cq, NULL, 0), -FI_EAGAIN);
            CHECK(fi_cq_read(a.cq, NULL, 0) <= 0);
        }
        if (early)
            CHECK_EQ(fi_trecv(b.ep, room, posted, NULL, to_a, 5, 0, CONTEXT(1)), 0);
        end_expect_error(&b, &a, CONTEXT(1), FI_ETRUNC, &event, "truncation");
        CHECK_EQ(event.error.olen, len - posted);
        CHECK_EQ(event.error.len, posted);
        CHECK_EQ(event.error.tag, 5);
        CHECK_EQ(event.error.flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
        CHECK(memcmp(room, big, posted) == 0 && room[posted] == 0x55);
        end_expect(&a, &b, CONTEXT(2), "the sender's completion");
    }
    still_work();
    close_pair();
}

static void case_truncated_multi(void)
{
    struct iovec iov = { room, 4000 };
    const struct fi_msg msg = {
        .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(1),
    };
    struct end_event event;

    open_pair();
    memset(room, 0x55, sizeof room);
    CHECK_EQ(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV), 0);
    CHECK_EQ(fi_send(a.ep, big, 1000, NULL, to_b, CONTEXT(2)), 0);
    end_expect(&b, &a, CONTEXT(1), "the first message");
    end_expect(&a, &b, CONTEXT(2), "its sender");
    CHECK_EQ(fi_send(a.ep, big, 100000, NULL, to_b, CONTEXT(2)), 0);
    end_expect_error(&b, &a, CONTEXT(1), FI_ETRUNC, &event, "truncation");
    CHECK_EQ(event.error.olen, 97000);
    CHECK(event.error.buf == room + 1000);
    CHECK(event.error.flags & FI_MULTI_RECV);       /* and the buffer comes back with it */
    CHECK(memcmp(room + 1000, big, 3000) == 0 && room[4000] == 0x55);
    end_expect(&a, &b, CONTEXT(2), "its sender");
    still_work();
    close_pair();
}

/* Looking says the true length; taking less than that is truncation. */
static void case_truncated_claim(void)
{
    struct iovec iov = { room, 100 };
    struct fi_msg_tagged msg = {
        .msg_iov = &iov, .iov_count = 1, .addr = to_a, .tag = 7, .context = CONTEXT(1),
    };
    struct end_event event;

    open_pair();
    msg.addr = to_a;
    CHECK_EQ(fi_trecvmsg(b.ep, &msg, FI_PEEK), 0);
    end_expect_error(&b, &a, CONTEXT(1), FI_ENOMSG, &event, "nothing there");
    CHECK_EQ(fi_trecvmsg(b.ep, &msg, FI_CLAIM), -FI_ENOMSG);
    CHECK_EQ(fi_tsend(a.ep, big, 5000, NULL, to_b, 7, CONTEXT(2)), 0);
    end_expect(&a, &b, CONTEXT(2), "its sender");
    do {    /* it may be on its way still */
        CHECK_EQ(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM), 0);
        end_wait(&b, &a, &event, 20000, "the look");
    } while (event.error.err == FI_ENOMSG);
    CHECK_EQ(event.error.err, 0);
    CHECK_EQ(event.entry.len, 5000);
    CHECK_EQ(fi_trecvmsg(b.ep, &msg, FI_CLAIM), 0);
    end_expect_error(&b, &a, CONTEXT(1), FI_ETRUNC, &event, "truncation");
    CHECK_EQ(event.error.olen, 4900);
    CHECK(memcmp(room, big, 100) == 0);
    CHECK_EQ(fi_trecvmsg(b.ep, &msg, FI_DISCARD), -FI_EINVAL);
    CHECK_EQ(fi_trecvmsg(b.ep, &msg, FI_MULTI_RECV), -FI_EINVAL);
    still_work();
    close_pair();
}

/* ---------------------------------------------------------------- exhausted queues */

/* Nobody receives: sends are taken until -FI_EAGAIN; then the receiver wakes up, and reading the
 * queue makes room again.  Nothing was lost, and the order is kept. */
static void case_exhausted(void)
{
    enum { LEN = 2000 };
    uint32_t n = 0, got = 0;
    struct end_event event;
    static uint32_t numbers[100000];

    open_pair();
    for (;; n++) {
        ssize_t r;

        CHECK(n < 100000);
        numbers[n] = n;
        r = fi_tsend(a.ep, &numbers[n], sizeof n, NULL, to_b, n, CONTEXT(2));
        if (r == -FI_EAGAIN)
            break;
        CHECK_EQ(r, 0);
        if (n % 2)
            CHECK(fi_tinject(a.ep, &numbers[n], sizeof n, to_b, 1u << 31) <= 0);
    }
    CHECK(n >= a.info->tx_attr->size / 2);
    CHECK_EQ(fi_tsend(a.ep, &n, sizeof n, NULL, to_b, n, NULL), -FI_EAGAIN);
    CHECK_EQ(fi_inject(a.ep, &n, sizeof n, to_b), -FI_EAGAIN);
    for (uint32_t in; got < n; got++) {
        CHECK_EQ(fi_trecv(b.ep, &in, sizeof in, NULL, to_a, got, 0, CONTEXT(1)), 0);
        end_expect(&b, &a, CONTEXT(1), "what was sent");
        CHECK_EQ(in, got);
    }
    for (uint32_t i = 0; i < n; i++) {
        end_wait(&a, &b, &event, 20000, "a send's completion");
        CHECK(event.error.err == 0 && event.entry.op_context == CONTEXT(2));
    }
    still_work();
    close_pair();
}

/* The same with bytes that are the caller's again at once, as short sends of MPICH are: whatever the ring's order, as
 * many as advertised are taken though nobody receives, and as 4 MiB hold. */
static void case_injected(void)
{
    static const size_t lengths[] = { 8, 400, 4000, 30000 };
    static char out[30000], in[30000];

    open_pair();
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t len = lengths[i];
        uint32_t most = (uint32_t)a.info->tx_attr->size, n = 0;

        for (; n < most && n * len < 4 << 20; n++) {
            memset(out, (int)n, len);
            CHECK_EQ(fi_tinject(a.ep, out, len, to_b, n), 0);
        }
        for (uint32_t got = 0; got < n; got++) {
            CHECK_EQ(fi_trecv(b.ep, in, sizeof in, NULL, to_a, got, 0, CONTEXT(1)), 0);
            end_expect(&b, &a, CONTEXT(1), "what was injected");
            memset(out, (int)got, len);
            CHECK(memcmp(in, out, len) == 0);
        }
    }
    CHECK_EQ(fi_cq_read(a.cq, NULL, 0), -FI_EAGAIN);
    still_work();
    close_pair();
}

/* As many receives as advertised; and a queue that is never read while it fills. */
static void case_many_receives(void)
{
    enum { N = 65536 };
    static uint32_t in[N];
    struct end_event event;

    open_pair();
    CHECK(b.info->rx_attr->size >= N);
    for (uint32_t i = 0; i < N; i++)
        CHECK_EQ(fi_trecv(b.ep, &in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, i, 0, &in[i]), 0);
    for (uint32_t i = N; i-- > 0; ) {
        ssize_t r;

        while ((r = fi_tinject(a.ep, &i, sizeof i, to_b, i)) == -FI_EAGAIN)
            CHECK(fi_cq_read(b.cq, NULL, 0) <= 0);
        CHECK_EQ(r, 0);
    }
    for (uint32_t i = N; i-- > 0; ) {
        end_wait(&b, &a, &event, 20000, "one of many");
        CHECK(event.error.err == 0 && event.entry.op_context == &in[i] && in[i] == i);
    }
    close_pair();
}

/* ---------------------------------------------------------------- calls that are not served */

static void case_not_served(void)
{
    struct fi_av_set_attr set_attr = { 0 };
    struct fi_collective_attr coll_attr = { 0 };
    struct fi_rx_attr rx_attr = { 0 };
    struct fi_tx_attr tx_attr = { 0 };
    struct iovec iov = { big, 8 };
    struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = 0 };
    struct fid_av_set *set;
    struct fid_stx *stx;
    struct fid_wait *wait_set;
    struct fid_pep *pep;
    struct fid_mc *mc;
    struct fid_ep *ep;
    void *ops;
    char text[100];
    size_t len = sizeof text;

    open_pair();
    CHECK_EQ(fi_barrier(a.ep, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_barrier2(a.ep, 0, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_broadcast(a.ep, big, 1, NULL, 0, 0, FI_UINT8, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_alltoall(a.ep, big, 1, NULL, room, NULL, 0, FI_UINT8, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_allreduce(a.ep, big, 1, NULL, room, NULL, 0, FI_UINT8, FI_SUM, 0, NULL),
             -FI_ENOSYS);
    CHECK_EQ(fi_allgather(a.ep, big, 1, NULL, room, NULL, 0, FI_UINT8, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_reduce_scatter(a.ep, big, 1, NULL, room, NULL, 0, FI_UINT8, FI_SUM, 0, NULL),
             -FI_ENOSYS);
    CHECK_EQ(fi_reduce(a.ep, big, 1, NULL, room, NULL, 0, 0, FI_UINT8, FI_SUM, 0, NULL),
             -FI_ENOSYS);
    CHECK_EQ(fi_scatter(a.ep, big, 1, NULL, room, NULL, 0, 0, FI_UINT8, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_gather(a.ep, big, 1, NULL, room, NULL, 0, 0, FI_UINT8, 0, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_query_collective(a.domain, FI_BARRIER, &coll_attr, 0), -FI_ENOSYS);
    CHECK_EQ(fi_av_set(a.av, &set_attr, &set, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_join(a.ep, a.address, 0, &mc, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_connect(a.ep, b.address, NULL, 0), -FI_ENOSYS);
    CHECK_EQ(fi_accept(a.ep, NULL, 0), -FI_ENOSYS);
    CHECK_EQ(fi_shutdown(a.ep, 0), -FI_ENOSYS);
    CHECK_EQ(fi_getpeer(a.ep, text, &len), -FI_ENOSYS);
    CHECK_EQ(fi_setname(&a.ep->fid, a.address, END_ADDRESS), -FI_ENOSYS);
    CHECK_EQ(fi_scalable_ep(a.domain, a.info, &ep, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_stx_context(a.domain, &tx_attr, &stx, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_srx_context(a.domain, &rx_attr, &ep, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_tx_context(a.ep, 0, &tx_attr, &ep, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_rx_context(a.ep, 0, &rx_attr, &ep, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_passive_ep(a.fabric, a.info, &pep, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_wait_open(a.fabric, NULL, &wait_set), -FI_ENOSYS);
    CHECK_EQ(fi_open_ops(&a.ep->fid, "anything", 0, &ops, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_set_ops(&a.domain->fid, "anything", 0, &ops, NULL), -FI_ENOSYS);
    CHECK_EQ(fi_ep_alias(a.ep, &ep, FI_TRANSMIT), -FI_ENOSYS);
    CHECK_EQ(fi_cq_signal(a.cq), 0);
    /* Flags. */
    CHECK_EQ(fi_sendmsg(a.ep, &msg, FI_MULTICAST), -FI_EINVAL);
    CHECK_EQ(fi_sendmsg(a.ep, &msg, FI_TRIGGER), -FI_EINVAL);
    CHECK_EQ(fi_recvmsg(a.ep, &msg, FI_PEEK), -FI_EINVAL);
    /* More than is advertised. */
    CHECK_EQ(fi_inject(a.ep, big, a.info->tx_attr->inject_size + 1, to_b), -FI_EMSGSIZE);
    msg.iov_count = a.info->tx_attr->iov_limit + 1;
    CHECK_EQ(fi_sendmsg(a.ep, &msg, 0), -FI_EINVAL);
    CHECK_EQ(fi_recvmsg(a.ep, &msg, 0), -FI_EINVAL);
    CHECK_EQ(fi_cancel(&a.ep->fid, CONTEXT(9)), -FI_ENOENT);
    still_work();
    close_pair();
}

/* ---------------------------------------------------------------- no way to anybody */

/* What is said to standard error meanwhile. */
static int listen_to(int (*fn)(void), char *ret_said, size_t size)
{
    int saved = dup(2), r;
    FILE *file = tmpfile();
    size_t n;

    CHECK(saved >= 0 && file != NULL);
    fflush(stderr);
    dup2(fileno(file), 2);
    r = fn();
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(file);
    n = fread(ret_said, 1, size - 1, file);
    ret_said[n] = '\0';
    if (n > 0 && ret_said[n - 1] == '\n')
        ret_said[n - 1] = '\0';
    fclose(file);
    return r;
}

static int try_open(void)
{
    struct end end;
    int r = end_try_open(&end, FI_THREAD_DOMAIN);

    end_close(&end);
    return r;
}

static void case_no_network(void)
{
    char said[2000];

    end_environment("none");
    unsetenv("FI_LOG_LEVEL");
    setenv("IVC_NETWORK", "no-such-provider", 1);
    CHECK(listen_to(try_open, said, sizeof said) < 0);
    /* What was asked for, what came of it, and what there is. */
    CHECK_TEXT(said, "IVC_NETWORK", "no-such-provider", "not there", "tcp");
}

static void case_network_is_us(void)
{
    char said[2000];

    end_environment("none");
    unsetenv("FI_LOG_LEVEL");
    setenv("IVC_NETWORK", "ivc", 1);
    CHECK_EQ(listen_to(try_open, said, sizeof said), -FI_EINVAL);
    CHECK_TEXT(said, "IVC_NETWORK", "ivc");
}

static int get_no_info(void)
{
    struct fi_info *hints = end_hints(FI_THREAD_DOMAIN), *info = NULL;
    int r = fi_getinfo(END_VERSION, NULL, NULL, 0, hints, &info);

    fi_freeinfo(hints);
    return r;
}

static void case_no_way(void)
{
    char said[2000];

    end_environment("none");
    unsetenv("FI_LOG_LEVEL");
    setenv("IVC_NETWORK", "none", 1);
    CHECK_EQ(listen_to(get_no_info, said, sizeof said), -FI_ENODATA);
    CHECK_TEXT(said, "IVC_REGION", "IVC_NETWORK=none");
}

/* A region that cannot be used is said at once, and nothing is offered. */
static void case_bad_region(void)
{
    char said[2000];

    end_environment("/dev/shm/ivc-no-such-region");
    unsetenv("FI_LOG_LEVEL");
    CHECK_EQ(listen_to(get_no_info, said, sizeof said), -FI_ENODATA);
    CHECK_TEXT(said, "/dev/shm/ivc-no-such-region", "no such file", "truncate");
}

static void case_bad_size(void)
{
    char said[2000];

    end_environment(check_file(0, 1 << 20));
    unsetenv("FI_LOG_LEVEL");
    setenv("IVC_OFFER_SIZE", "foo", 1);
    CHECK_EQ(listen_to(try_open, said, sizeof said), -FI_EINVAL);
    CHECK_TEXT(said, "IVC_OFFER_SIZE=foo");
}

/* ---------------------------------------------------------------- what ends a job is said, once */

/* Everybody writes to everybody, and there is no memory for so many rings. */
static int fill_region(void)
{
    enum { N = 12 };
    static struct end ends[N];
    int n_refused = 0;

    for (unsigned i = 0; i < N; i++)
        end_open(&ends[i], FI_THREAD_DOMAIN);
    for (unsigned i = 0; i < N; i++)
        for (unsigned k = 0; k < N; k++) {
            ssize_t r = fi_tinject(ends[i].ep, "x", 1, end_meet(&ends[i], ends[k].address), 1);

            n_refused += r == -FI_ENOSPC;
            CHECK_THAT(r == 0 || r == -FI_EAGAIN || r == -FI_ENOSPC, "%s", fi_strerror((int)-r));
        }
    return n_refused;
}

static unsigned count_lines(const char *said)
{
    unsigned n = *said != '\0';

    for (; *said; said++)
        n += *said == '\n';
    return n;
}

static void case_region_full(void)
{
    char said[2000];

    end_environment(check_file(0, 1 << 20));
    unsetenv("FI_LOG_LEVEL");
    CHECK(listen_to(fill_region, said, sizeof said) > 1);
    CHECK_TEXT(said, "ivc: region", "full", "larger region");
    CHECK_THAT(count_lines(said) == 1, "%s", said);
}

static int send_long(void *arg)
{
    uint8_t address[END_ADDRESS];
    int *fds = arg;
    struct end end;
    fi_addr_t to;

    setenv("IVC_CHUNK_SIZE", "256K", 1);
    CHECK(read(fds[0], address, END_ADDRESS) == END_ADDRESS);
    end_open(&end, FI_THREAD_DOMAIN);
    to = end_meet(&end, address);
    CHECK_EQ(fi_tsend(end.ep, big, 200000, NULL, to, 1, CONTEXT(2)), 0);
    for (;;) {      /* until it is killed */
        fi_cq_read(end.cq, NULL, 0);
        sched_yield();
    }
}

static int receive_long(void)
{
    struct end_event event;
    int fds[2];
    pid_t pid;

    CHECK(pipe(fds) == 0);
    setenv("IVC_OFFER_SIZE", "1M", 1);
    pid = check_fork(send_long, fds);
    end_open(&b, FI_THREAD_DOMAIN);
    CHECK_EQ(fi_trecv(b.ep, room, sizeof room, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(1)), 0);
    CHECK(write(fds[1], b.address, END_ADDRESS) == END_ADDRESS);
    for (uint64_t limit = end_now_ms() + 2000 * check_slowdown(); end_now_ms() < limit; sched_yield())
        CHECK(!end_poll(&b, &event));
    check_kill(pid);
    return 0;
}

static void case_chunk_sizes(void)
{
    char said[2000];

    end_environment(check_file(0, 64 << 20));
    unsetenv("FI_LOG_LEVEL");
    listen_to(receive_long, said, sizeof said);
    CHECK_TEXT(said, "ivc: process", "IVC_CHUNK_SIZE");
    CHECK_THAT(count_lines(said) == 1, "%s", said);
}

/* ---------------------------------------------------------------- closing */

/* Injected bytes are nobody else's: they leave before the endpoint is gone, and in bounded time. */
static int close_with_injected(void *arg)
{
    uint8_t address[END_ADDRESS];
    uint64_t start;
    int *fds = arg;
    struct end end;
    fi_addr_t to;
    uint32_t n = 0;

    CHECK(read(fds[0], address, END_ADDRESS) == END_ADDRESS);
    end_open(&end, FI_THREAD_DOMAIN);
    to = end_meet(&end, address);
    /* 4000 bytes each: no single cache line, and more than the ring holds at once. */
    for (; n < 500; n++) {
        ssize_t r = fi_tinject(end.ep, big, 4000, to, n);

        if (r == -FI_EAGAIN)
            break;
        CHECK_EQ(r, 0);
    }
    CHECK(write(fds[3], &n, sizeof n) == sizeof n);
    start = end_now_ms();
    end_close(&end);
    CHECK(end_now_ms() - start < 10000 * check_slowdown());
    return 0;
}

static void close_test(const char *setting, const char *value, unsigned pause_ms)
{
    int fds[4];
    uint32_t n;
    pid_t pid;

    CHECK(pipe(fds) == 0 && pipe(fds + 2) == 0);
    setenv("IVC_RING_SIZE", "16K", 1);
    if (setting)
        setenv(setting, value, 1);
    end_environment(check_file(0, 64 << 20));
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 31 + i / 251);
    pid = check_fork(close_with_injected, fds);
    end_open(&b, FI_THREAD_DOMAIN);
    CHECK(write(fds[1], b.address, END_ADDRESS) == END_ADDRESS);
    CHECK(read(fds[2], &n, sizeof n) == sizeof n);
    CHECK(n > 0);
    usleep(pause_ms * 1000);    /* the sender is in fi_close() meanwhile */
    for (uint32_t i = 0; i < n; i++) {
        memset(room, 0, 4000);
        CHECK_EQ(fi_trecv(b.ep, room, 4000, NULL, FI_ADDR_UNSPEC, i, 0, CONTEXT(1)), 0);
        end_expect(&b, NULL, CONTEXT(1), "an injected message");
        CHECK(memcmp(room, big, 4000) == 0);
    }
    check_join(pid);
    end_close(&b);
}

static void case_close(void) { close_test(NULL, NULL, 300); }
/* Injected and only announced to the receiver: packets are small, what is larger is offered. */
static void case_close_offered(void)
{
    setenv("IVC_OFFER_SIZE", "0", 1);
    close_test("IVC_SEGMENT_SIZE", "64", 300);
}

/* Nobody ever reads: closing ends all the same. */
static void case_close_unread(void)
{
    int fds[4];
    uint32_t n;
    pid_t pid;

    CHECK(pipe(fds) == 0 && pipe(fds + 2) == 0);
    end_environment(check_file(0, 64 << 20));
    pid = check_fork(close_with_injected, fds);
    end_open(&b, FI_THREAD_DOMAIN);
    CHECK(write(fds[1], b.address, END_ADDRESS) == END_ADDRESS);
    check_join(pid);
    CHECK(read(fds[2], &n, sizeof n) == sizeof n);
    end_close(&b);
}

static const struct check_case cases[] = {
    { "addresses of others", case_addresses, 0 },
    { "messages longer than the buffer", case_truncated, 0 },
    { "longer than what is left of a buffer of many", case_truncated_multi, 0 },
    { "looked at, claimed, longer than the buffer", case_truncated_claim, 0 },
    { "exhausted queues", case_exhausted, 0 },
    { "as many injects as advertised", case_injected, 0 },
    { "65536 receives", case_many_receives, 0 },
    { "calls that are not served", case_not_served, 0 },
    { "IVC_NETWORK names nothing", case_no_network, 0 },
    { "IVC_NETWORK names us", case_network_is_us, 0 },
    { "neither region nor network", case_no_way, 0 },
    { "a region that is not there", case_bad_region, 0 },
    { "a size that is none", case_bad_size, 0 },
    { "a region that is full", case_region_full, 0 },
    { "packets longer than ours", case_chunk_sizes, 0 },
    { "closed with injected messages", case_close, 0 },
    { "closed with injected messages that were only offered", case_close_offered, 0 },
    { "closed with injected messages that nobody reads", case_close_unread, 0 },
};
CHECK_MAIN(cases)
