/*
 * One end of what the tests of the provider do, through libfabric's public calls: a domain with an
 * endpoint, its queue and its address vector.  A process may have two that talk to each other.
 *
 * Waiting is always bounded: a test that hangs says for what.
 */
#ifndef IVC_TESTS_LIBFABRIC_END_H
#define IVC_TESTS_LIBFABRIC_END_H

#include "check.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { END_VERSION = FI_VERSION(1, 17), END_ADDRESS = 64 };

struct end {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    uint8_t address[END_ADDRESS];
};

/* What came from a queue: a completion, or an error (error.err != 0). */
struct end_event {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error;
    fi_addr_t source;
};

/* libfabric reads its environment at the first call, which is in the case's own process. */
__attribute__((unused)) static void end_environment(const char *region)
{
    CHECK(getenv("FI_PROVIDER_PATH") != NULL);
    setenv("IVC_REGION", region, 1);
    setenv("FI_PROVIDER", "ivc", 1);
    setenv("FI_TCP_IFACE", "lo", 1);
}

__attribute__((unused)) static uint64_t end_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

__attribute__((unused)) static struct fi_info *end_hints(enum fi_threading threading)
{
    struct fi_info *hints = fi_allocinfo();

    CHECK(hints != NULL);
    hints->fabric_attr->prov_name = strdup("ivc");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV
                  | FI_MULTI_RECV;
    hints->domain_attr->threading = threading;
    return hints;
}

/* As far as fi_enable(), whose answer it returns. */
__attribute__((unused)) static int end_try_open(struct end *end, enum fi_threading threading)
{
    struct fi_info *hints = end_hints(threading);
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    int r = fi_getinfo(END_VERSION, NULL, NULL, 0, hints, &end->info);

    CHECK_THAT(r == 0, "fi_getinfo: %s", fi_strerror(-r));
    fi_freeinfo(hints);
    CHECK_EQ(fi_fabric(end->info->fabric_attr, &end->fabric, NULL), 0);
    CHECK_EQ(fi_domain(end->fabric, end->info, &end->domain, NULL), 0);
    CHECK_EQ(fi_endpoint(end->domain, end->info, &end->ep, NULL), 0);
    CHECK_EQ(fi_av_open(end->domain, &av, &end->av, NULL), 0);
    CHECK_EQ(fi_cq_open(end->domain, &cq, &end->cq, NULL), 0);
    CHECK_EQ(fi_ep_bind(end->ep, &end->av->fid, 0), 0);
    CHECK_EQ(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV), 0);
    return fi_enable(end->ep);
}

__attribute__((unused)) static void end_open(struct end *end, enum fi_threading threading)
{
    size_t len = sizeof end->address;
    int r = end_try_open(end, threading);

    CHECK_THAT(r == 0, "fi_enable: %s", fi_strerror(-r));
    CHECK_EQ(fi_getname(&end->ep->fid, end->address, &len), 0);
    CHECK_EQ(len, sizeof end->address);
}

__attribute__((unused)) static void end_close(struct end *end)
{
    CHECK_EQ(fi_close(&end->ep->fid), 0);
    CHECK_EQ(fi_close(&end->cq->fid), 0);
    CHECK_EQ(fi_close(&end->av->fid), 0);
    CHECK_EQ(fi_close(&end->domain->fid), 0);
    CHECK_EQ(fi_close(&end->fabric->fid), 0);
    fi_freeinfo(end->info);
}

__attribute__((unused)) static fi_addr_t end_meet(struct end *end, const uint8_t *address)
{
    fi_addr_t addr = FI_ADDR_NOTAVAIL;

    CHECK_EQ(fi_av_insert(end->av, address, 1, &addr, 0, NULL), 1);
    return addr;
}

/* Whether there is an event; no waiting. */
__attribute__((unused)) static bool end_poll(struct end *end, struct end_event *event)
{
    ssize_t n;

    memset(event, 0, sizeof *event);
    n = fi_cq_readfrom(end->cq, &event->entry, 1, &event->source);
    if (n == -FI_EAGAIN)
        return false;
    if (n == -FI_EAVAIL)
        n = fi_cq_readerr(end->cq, &event->error, 0);
    CHECK_THAT(n == 1, "reading the queue: %s", fi_strerror((int)-n));
    return true;
}

/* The next event of `end`, while `other` (or NULL) makes progress; `what` is waited for. */
__attribute__((unused))
static void end_wait(struct end *end, struct end *other, struct end_event *event, uint64_t ms,
                     const char *what)
{
    uint64_t limit = end_now_ms() + ms * check_slowdown();

    while (!end_poll(end, event)) {
        CHECK_THAT(end_now_ms() < limit, "%s has not come in %d ms", what, (int)ms);
        if (other)
            CHECK(fi_cq_read(other->cq, NULL, 0) <= 0);
        sched_yield();      /* there may be fewer processors than processes */
    }
}

/* The same; it must be a completion of that context. */
__attribute__((unused))
static void end_expect(struct end *end, struct end *other, void *context, const char *what)
{
    struct end_event event;

    end_wait(end, other, &event, 20000, what);
    CHECK_THAT(event.error.err == 0, "%s: %s", what, fi_strerror(event.error.err));
    CHECK_THAT(event.entry.op_context == context, "%s", what);
}

/* The same; it must be that error. */
__attribute__((unused))
static void end_expect_error(struct end *end, struct end *other, void *context, int err,
                             struct end_event *event, const char *what)
{
    end_wait(end, other, event, 20000, what);
    CHECK_THAT(event->error.err == err, "%s: %d", what, event->error.err);
    CHECK_THAT(event->error.op_context == context, "%s", what);
}

#endif
