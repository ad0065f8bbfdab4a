/*
 * Tests of routes that fail while memory leads to their peer: two endpoints of one process, moved in turn, which an
 * order sends from memory to the network and back.
 */
#include "check.h"
#include "leaks.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/internal.h"
#include "network/internal.h"
#include "region/order.h"

enum { SIZE = 16 << 20, PATIENCE_MS = 30000 };

static struct side {
    struct ivc_endpoint *endpoint;
    struct ivc_peer *peer;          /* the other side */
    unsigned packets, gones;
    char reason[256];
} a, b;

static struct {
    struct ivc_region *region;      /* NULL: none was given */
    struct ivc_order order;
    uint64_t beaten_ms;
} away;

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct side *side = arg;

    (void)packet;
    CHECK(!side->peer || side->peer == peer);
    side->peer = peer;
    side->packets++;
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct side *side = arg;

    (void)peer;
    side->gones++;
    snprintf(side->reason, sizeof side->reason, "%s", reason ? reason : "it left");
}

static void on_arrival(void *arg, struct ivc_peer *peer)
{
    ((struct side *)arg)->peer = peer;
}

static void open_side(struct side *side, const char *path, uint32_t client_id)
{
    struct ivc_endpoint_options options = {
        .region = path, .magic_id = 5, .client_id = client_id, .network = true, .moves = true,
        .on_packet = on_packet, .on_gone = on_gone, .on_arrival = on_arrival, .arg = side,
    };

    *side = (struct side){ 0 };
    CHECK_THAT(ivc_endpoint_open(&options, &side->endpoint) == 0, "%s", ivc_error_text());
    if (!side->endpoint->network)
        check_skip("%s", side->endpoint->no_network);
}

static void turn(void)
{
    if (away.region && ivc_now_ms() - away.beaten_ms >= 100) {
        away.beaten_ms = ivc_now_ms();
        CHECK_EQ(ivc_order_beat(&away.order), 0);
    }
    if (ivc_endpoint_progress(a.endpoint) + ivc_endpoint_progress(b.endpoint) == 0)
        ivc_sleep_ms(1);
}

#define AWAIT(condition) do { \
    uint64_t end_ = ivc_now_ms() + PATIENCE_MS; \
    while (!(condition) && ivc_now_ms() < end_) \
        turn(); \
    CHECK_THAT((condition), "gone: '%s' '%s'", a.reason, b.reason); \
} while (0)

static bool is_at(const struct side *side, enum ivc_path path)
{
    return ivc_peer_path(side->peer) == path;
}

static void order(const char *path)
{
    CHECK_EQ(ivc_region_open(path, &away.region), 0);
    CHECK_EQ(ivc_order_give(away.region, ivc_region_own_vm(), &away.order), 0);
}

static void part(const char *path)
{
    order(path);
    AWAIT(is_at(&a, IVC_PATH_NETWORK) && is_at(&b, IVC_PATH_NETWORK) && !a.endpoint->home.region
          && !b.endpoint->home.region);
}

static void withdraw(void)
{
    ivc_order_withdraw(&away.order);
    ivc_region_free(away.region);
    away.region = NULL;
}

static void meet(void)
{
    withdraw();
    AWAIT(is_at(&a, IVC_PATH_MEMORY) && is_at(&b, IVC_PATH_MEMORY));
}

static int try_send(struct side *from)
{
    struct iovec iov = { "a packet", 8 };

    return ivc_endpoint_send(from->endpoint, from->peer, 1, &iov, 1);
}

static void send_to(struct side *from, struct side *to)
{
    unsigned had = to->packets;
    int r = IVC_E_FULL;

    AWAIT(r == 0 || (r = try_send(from)) != IVC_E_FULL);
    CHECK_THAT(r == 0, "%d: %s", r, ivc_error_text());
    AWAIT(to->packets == had + 1);
}

/* In a region, where neither has needed a network. */
static const char *open_both(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_address address;

    setenv("FI_TCP_IFACE", "lo", 0);
    open_side(&a, path, 1);
    open_side(&b, path, 2);
    ivc_endpoint_address(b.endpoint, &address);
    CHECK_EQ(ivc_endpoint_connect(a.endpoint, &address, &a.peer), 0);
    send_to(&a, &b);
    return path;
}

/* Both know each other by network as well as by memory, in which they are now. */
static const char *start(void)
{
    const char *path = open_both();

    part(path);
    send_to(&a, &b);
    send_to(&b, &a);
    meet();
    return path;
}

static void finish(void)
{
    if (away.region)
        withdraw();
    ivc_endpoint_free(a.endpoint);
    ivc_endpoint_free(b.endpoint);
}

static void fail_route(struct side *side)
{
    ivc_route_fail(side->endpoint->network, side->peer->route, "a test");
}

/* Both read the other's ring, so nothing was on the way. */
static const char *start_and_lose_route(void)
{
    const char *path = start();

    send_to(&a, &b);
    send_to(&b, &a);
    fail_route(&a);
    AWAIT(!a.peer->route);
    return path;
}

/* What comes by network later is taken. */
static void test_memory_goes_on(void)
{
    const char *path = start_and_lose_route();

    send_to(&a, &b);
    part(path);
    for (unsigned i = 0; i < 3; i++)
        send_to(&b, &a);
    send_to(&a, &b);
    CHECK_THAT(a.gones + b.gones == 0, "'%s' '%s'", a.reason, b.reason);
    finish();
}

/* The same, and whoever has lost its route says nothing: the other's end is noticed. */
static void test_end_is_noticed(void)
{
    const char *path = start_and_lose_route();

    part(path);
    AWAIT(a.peer->route);
    ivc_endpoint_free(b.endpoint);
    for (uint64_t end = ivc_now_ms() + PATIENCE_MS; a.gones == 0 && ivc_now_ms() < end; ivc_sleep_ms(1)) {
        CHECK_EQ(ivc_order_beat(&away.order), 0);
        ivc_endpoint_progress(a.endpoint);
    }
    CHECK_EQ(a.gones, 1);
    withdraw();
    ivc_endpoint_free(a.endpoint);
}

/* The peer has not read our ring yet: it is asked by network, and has all, or it has not. */
static void test_is_asked(void)
{
    start();
    send_to(&b, &a);
    CHECK(a.peer->rx_open && (!a.peer->tx.slots || a.peer->tx.head == 0));
    fail_route(&a);
    AWAIT(a.peer->asked && a.peer->greeted && a.peer->route);
    send_to(&a, &b);
    send_to(&b, &a);
    CHECK_THAT(a.gones + b.gones == 0, "'%s' '%s'", a.reason, b.reason);
    finish();

    start();
    send_to(&b, &a);
    a.peer->remote_sent++;          /* as if it had been on its way */
    fail_route(&a);
    AWAIT(a.gones + b.gones == 2);
    CHECK_TEXT(b.reason, "packets of it were lost on the network");
    CHECK_TEXT(a.reason, "packets of ours were lost on the network");
    finish();
}

/* Until it is known that nothing else leads there, nobody is told that the peer is gone. */
static void test_failing(void)
{
    const char *path = start();

    part(path);
    fail_route(&a);
    CHECK_EQ(try_send(&a), IVC_E_FULL);
    AWAIT(a.gones == 1);
    CHECK_TEXT(a.reason, "a test");
    CHECK_EQ(try_send(&a), IVC_E_GONE);
    finish();
}

/* Memory carries what is sent until the network could. */
static void test_network_first(void)
{
    const char *path = open_both();

    send_to(&b, &a);
    CHECK(!ivc_network_is_bound(a.endpoint->network) && !ivc_network_is_bound(b.endpoint->network));
    order(path);
    AWAIT(!is_at(&a, IVC_PATH_MEMORY) || !is_at(&b, IVC_PATH_MEMORY));
    CHECK(ivc_network_is_bound(a.endpoint->network) && ivc_network_is_bound(b.endpoint->network));
    AWAIT(is_at(&a, IVC_PATH_NETWORK) && is_at(&b, IVC_PATH_NETWORK));
    send_to(&a, &b);
    send_to(&b, &a);
    finish();
}

/* A peer that answers nobody is not waited for: the host wants an answer. */
static void test_silent_peer(void)
{
    const char *path = open_both();

    send_to(&b, &a);
    b.peer->network.port = a.peer->network.port = 9;    /* nobody listens there */
    order(path);
    AWAIT(!a.endpoint->home.region && !b.endpoint->home.region);
    AWAIT(a.gones == 1 && b.gones == 1);
    CHECK_TEXT(a.reason, "no address of the peer leads to it");
    finish();
}

/* Looks at the network within so many turns in vain, `ago` pauses after the last one. */
static bool looks_within(unsigned turns, uint64_t ago)
{
    struct ivc_endpoint *endpoint = a.endpoint;
    uint64_t looked = ivc_cycles() - ago * (uint64_t)1e12;

    endpoint->network_looked = looked;
    endpoint->network_pause = (uint64_t)1e12;
    endpoint->network_busy = false;
    endpoint->crowd.idle = 0;
    while (turns-- > 0 && endpoint->network_looked == looked)
        (void)ivc_endpoint_progress(endpoint);
    return endpoint->network_looked != looked;
}

/* Who is in memory again with all that it knows does not let what comes soon wait for a look at the network. */
static void test_short_waits(void)
{
    start();
    send_to(&b, &a);
    CHECK_EQ(a.endpoint->n_remotes, 0);
    CHECK_EQ(a.endpoint->home.n_receivers, 1);
    CHECK(!looks_within(900, 2));
    CHECK(looks_within(5000, 2));
    CHECK(looks_within(900, 20));
    finish();
}

static const struct check_case cases[] = {
    { "the network is opened before memory is given up", test_network_first, 240 },
    { "... and a peer that it does not reach is not waited for", test_silent_peer, 240 },
    { "short waits do without the network", test_short_waits, 240 },
    { "a route fails while memory leads there", test_memory_goes_on, 240 },
    { "... and the peer ends after that", test_end_is_noticed, 240 },
    { "... and the peer may not have all that went that way", test_is_asked, 240 },
    { "a route that fails is full, and then gone", test_failing, 240 },
};

CHECK_MAIN(cases)
