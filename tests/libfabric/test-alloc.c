/*
 * Memory from ivc_alloc(), registered with the provider: the public library and the provider in one
 * process, each with a core and a mapping of its own, and neither told of the other.
 *
 * A process owns the memory and is then stopped by a signal, with all of its threads; another one
 * works on it.  What ends meanwhile was done without the owner.
 */
#include "check.h"

#include <ivc.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { KEY = 77, SIZE = 1 << 20, ADDS = 1000, NAME_MAX_BYTES = 128, SOON_MS = 5000, A_WHILE_MS = 300 };

static const uint64_t ALL = FI_REMOTE_READ | FI_REMOTE_WRITE;

#define OK(call) CHECK_THAT((call) == 0, "%s", #call)

/* ---------------------------------------------------------------- an endpoint */

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;

static void open_endpoint(void)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };

    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup("ivc");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_enable(ep));
}

static void close_endpoint(void)
{
    OK(fi_close(&ep->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Whether an operation ends within that time. */
static bool ends_within(unsigned ms)
{
    uint64_t deadline = now_ms() + ms * check_slowdown();
    struct fi_cq_entry entry;
    ssize_t r;

    do {
        r = fi_cq_read(cq, &entry, 1);
        CHECK_THAT(r == 1 || r == -FI_EAGAIN, "%zd", r);
    } while (r != 1 && now_ms() < deadline);
    return r == 1;
}

/* ---------------------------------------------------------------- the owner */

static struct owner {
    bool from_ivc;
    int name[2], stop[2];       /* pipes: the owner's address, and that it is to stop */
} owner;

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 7 + (i >> 9));
}

/* Everything that the other process has done while we stood still. */
static void look(const unsigned char *memory)
{
    uint64_t sum;

    memcpy(&sum, memory, sizeof sum);
    CHECK_EQ(sum, ADDS);
    for (size_t i = sizeof sum; i < SIZE; i++)
        CHECK_EQ(memory[i], byte_at(i));
}

static void serve_until_told(void)
{
    char byte;

    CHECK(fcntl(owner.stop[0], F_SETFL, O_NONBLOCK) == 0);
    while (read(owner.stop[0], &byte, 1) != 1)
        (void)fi_cq_read(cq, NULL, 0);
}

static int own(void *arg)
{
    ivc_context *context;
    char name[NAME_MAX_BYTES] = "";
    size_t len = sizeof name;
    struct fid_mr *mr;
    void *memory;

    (void)arg;
    CHECK_THAT(ivc_register(5, 1, &context) == 0, "%s", ivc_last_error());
    if (owner.from_ivc)
        CHECK_THAT(ivc_alloc(context, SIZE, &memory) == 0, "%s", ivc_last_error());
    else
        CHECK((memory = calloc(1, SIZE)) != NULL);
    open_endpoint();
    OK(fi_mr_reg(domain, memory, SIZE, ALL, 0, KEY, 0, &mr, NULL));
    OK(fi_getname(&ep->fid, name, &len));
    CHECK(write(owner.name[1], name, sizeof name) == sizeof name);
    serve_until_told();
    raise(SIGSTOP);
    if (owner.from_ivc)
        look(memory);
    serve_until_told();
    look(memory);
    OK(fi_close(&mr->fid));
    close_endpoint();
    if (owner.from_ivc)
        CHECK_EQ(ivc_free(context, memory), 0);
    else
        free(memory);
    ivc_deregister(context);
    return 0;
}

/* ---------------------------------------------------------------- who works on it */

static pid_t start_owner(bool from_ivc)
{
    setenv("IVC_REGION", check_file(0, 32 << 20), 1);
    setenv("FI_PROVIDER", "ivc", 1);
    setenv("FI_TCP_IFACE", "lo", 1);
    owner.from_ivc = from_ivc;
    CHECK(pipe(owner.name) == 0 && pipe(owner.stop) == 0);
    return check_fork(own, NULL);
}

static fi_addr_t meet_owner(void)
{
    char name[NAME_MAX_BYTES];
    fi_addr_t to;

    open_endpoint();
    CHECK(read(owner.name[0], name, sizeof name) == sizeof name);
    CHECK_EQ(fi_av_insert(av, name, 1, &to, 0, NULL), 1);
    return to;
}

/* One operation that asks; then the owner stands still. */
static void stop_owner(pid_t pid, fi_addr_t to)
{
    uint64_t word, until;
    int status;

    OK(fi_read(ep, &word, sizeof word, NULL, to, 0, KEY, NULL));
    CHECK(ends_within(SOON_MS));
    CHECK_EQ(word, 0);
    for (until = now_ms() + 50; now_ms() < until;)
        (void)fi_cq_read(cq, NULL, 0);      /* where the memory lies */
    CHECK(write(owner.stop[1], "", 1) == 1);
    CHECK(waitpid(pid, &status, WUNTRACED) == pid);
    CHECK(WIFSTOPPED(status));
}

static void test_direct(void)
{
    static unsigned char bytes[SIZE], back[SIZE];
    uint64_t one = 1, old;
    pid_t pid = start_owner(true);
    fi_addr_t to = meet_owner();

    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = byte_at(i);
    stop_owner(pid, to);
    OK(fi_write(ep, bytes + 8, SIZE - 8, NULL, to, 8, KEY, NULL));
    CHECK(ends_within(SOON_MS));
    OK(fi_read(ep, back, SIZE, NULL, to, 0, KEY, NULL));
    CHECK(ends_within(SOON_MS));
    CHECK(memcmp(bytes + 8, back + 8, SIZE - 8) == 0);
    for (uint64_t i = 0; i < ADDS; i++) {
        OK(fi_fetch_atomic(ep, &one, 1, NULL, &old, NULL, to, 0, KEY, FI_UINT64, FI_SUM, NULL));
        CHECK(ends_within(SOON_MS));
        CHECK_EQ(old, i);
    }
    kill(pid, SIGCONT);
    CHECK(write(owner.stop[1], "", 1) == 1);
    check_join(pid);
    close_endpoint();
}

/* Memory of elsewhere: right as well, when its owner comes back. */
static void test_by_progress(void)
{
    static unsigned char bytes[SIZE];
    uint64_t sum = ADDS;
    pid_t pid = start_owner(false);
    fi_addr_t to = meet_owner();

    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = byte_at(i);
    memcpy(bytes, &sum, sizeof sum);
    stop_owner(pid, to);
    OK(fi_write(ep, bytes, SIZE, NULL, to, 0, KEY, NULL));
    CHECK(!ends_within(A_WHILE_MS));
    kill(pid, SIGCONT);
    CHECK(ends_within(SOON_MS));
    CHECK(write(owner.stop[1], "", 1) == 1);
    check_join(pid);
    close_endpoint();
}

/* What bad calls get. */
static void test_refused(void)
{
    ivc_context *context, *other;
    void *memory = &context, *piece;

    setenv("IVC_REGION", check_file(0, 2 << 20), 1);
    CHECK_EQ(ivc_register(5, 1, &context), 0);
    CHECK_EQ(ivc_register(5, 2, &other), 0);
    CHECK_EQ(ivc_alloc(context, 0, &memory), -EINVAL);
    CHECK_EQ(ivc_alloc(context, 2 << 20, &memory), -ENOSPC);
    CHECK_TEXT(ivc_last_error(), "region", "larger region");
    CHECK(memory == &context);
    CHECK_EQ(ivc_free(context, NULL), 0);
    CHECK_EQ(ivc_alloc(context, 100, &memory), 0);
    CHECK_EQ(ivc_alloc(other, 100, &piece), 0);
    CHECK(memory != piece);
    CHECK_EQ(ivc_free(other, memory), -EINVAL);
    CHECK_EQ(ivc_free(context, piece), -EINVAL);
    CHECK_EQ(ivc_free(context, memory), 0);
    CHECK_EQ(ivc_free(context, memory), -EINVAL);
    ivc_deregister(other);      /* with its piece */
    ivc_deregister(context);
}

static const struct check_case cases[] = {
    { "direct", test_direct, 0 },
    { "by-progress", test_by_progress, 0 },
    { "refused", test_refused, 0 },
};

CHECK_MAIN(cases)
