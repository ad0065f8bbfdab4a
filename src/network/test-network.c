/*
 * Packets and pulls between two processes of this machine, through libfabric's tcp on the loopback
 * interface; and what becomes of a route whose other end dies, in each state it may be in.
 *
 * IVC_TEST_LIBFABRIC names another libfabric to do it with (those that MPIs bring along).
 */
#include "check.h"
#include "leaks.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"
#include "network/network.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { PACKET_MAX = 32 * 1024 + 64, MIB = 1 << 20 };

/* One process's side. */
struct side {
    struct ivc_network *network;
    uint64_t id;
    struct ivc_route *route;
    int in, out;                /* pipes to the other side */
    _Atomic uint64_t received;
    uint64_t state;             /* of the numbers that the other side sends */
    bool check;                 /* the contents follow `state` */
    unsigned downs;
    bool down_in_pull;          /* on_down came before a pull's callback */
    char reason[500];
    unsigned pulled;
    int pull_status;
    bool pulling;
};

static void fill(uint8_t *bytes, size_t len, uint64_t number)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(number + i * 7);
}

/* Mostly small, some up to the limit. */
static size_t length(uint64_t *state, uint64_t number)
{
    uint64_t random = check_random(state);

    if (number % 1000 == 0)
        return PACKET_MAX;
    return 8 + random % (random >> 32 & 15 ? 200 : PACKET_MAX - 7);
}

static void on_packet(void *arg, const void *data, size_t len)
{
    struct side *side = arg;
    const uint8_t *bytes = data;

    CHECK_EQ((uintptr_t)data % 16, 0);
    if (side->check) {
        uint64_t number;

        CHECK_EQ(len, length(&side->state, side->received));
        memcpy(&number, bytes, sizeof number);
        CHECK_EQ(number, side->received);
        for (size_t i = sizeof number; i < len; i++)
            if (bytes[i] != (uint8_t)(number + (i - sizeof number) * 7))
                check_fail(__FILE__, __LINE__, "packet %llu: byte %zu differs",
                           (unsigned long long)number, i);
    }
    side->received++;
}

static void on_down(void *arg, struct ivc_route *route, const char *reason)
{
    struct side *side = arg;

    CHECK(route == side->route);
    CHECK(ivc_route_arg(route) == side);
    CHECK(!strchr(reason, '\n'));
    snprintf(side->reason, sizeof side->reason, "%s", reason);
    side->downs++;
    if (side->pulling)
        side->down_in_pull = true;
}

static void on_pulled(void *arg, int status)
{
    struct side *side = arg;

    side->pulled++;
    side->pull_status = status;
    side->pulling = false;
}

static void use_libfabric(void)
{
    const char *path = getenv("IVC_TEST_LIBFABRIC");
    void *object, *symbol;

    if (!path)
        return;
    object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK_THAT(object, "%s", dlerror());
    symbol = dlsym(object, "fi_getinfo");
    CHECK(symbol);
    ivc_network_set_libfabric(symbol);
}

/* Of two hosts, a network namespace each. */
struct plan {
    const char *more;           /* commands of both, beside the link; NULL: none */
    const char *addresses[2];   /* of the link; NULL: none */
    const char *interface;      /* FI_TCP_IFACE of both; NULL: not set */
    const char *reason;         /* words of the end, with commas; NULL: they meet */
    bool mute;                  /* at the address of each somebody takes connections and says nothing */
    unsigned stopped_ms;        /* so long the second stands still when it is to be reached */
};

static const struct plan *plan;     /* NULL: processes of this one, on its loopback interface */

static int open_network(struct side *side, const char *provider, bool threads)
{
    struct ivc_network_options options = {
        .provider = provider, .id = side->id = ivc_random_id(), .packet_max = PACKET_MAX, .threads = threads,
        .on_packet = on_packet, .on_down = on_down, .arg = side,
    };

    if (!plan)
        setenv("FI_TCP_IFACE", "lo", 0);
    use_libfabric();
    return ivc_network_open(&options, &side->network);
}

static void tell(struct side *side, const void *bytes, size_t len)
{
    CHECK_EQ(write(side->out, bytes, len), (ssize_t)len);
}

static void hear(struct side *side, void *ret_bytes, size_t len)
{
    CHECK_EQ(read(side->in, ret_bytes, len), (ssize_t)len);
}

/* What the sides tell each other. */
struct whereabouts {
    uint64_t id;
    struct ivc_network_name name;
};

static void connect_to(struct side *side, const struct whereabouts *other)
{
    CHECK_THAT(ivc_network_connect(side->network, other->id, &other->name, side, &side->route) == 0, "%s",
               ivc_error_text());
}

/* Until the contact has answered, which opens the provider as well. */
static void await_bound(struct side *side)
{
    ivc_route_watch(side->network, side->route);
    for (uint64_t end = ivc_now_ms() + 20000; !ivc_network_can_pull(side->network) && !side->downs
         && ivc_now_ms() < end; ivc_sleep_ms(1))
        ivc_network_progress(side->network);
}

static void exchange_names(struct side *side, struct whereabouts *ret_other)
{
    struct whereabouts own = { .id = side->id };

    ivc_network_name(side->network, &own.name);
    tell(side, &own, sizeof own);
    hear(side, ret_other, sizeof *ret_other);
}

static void start(struct side *side, bool threads)
{
    struct whereabouts other;
    int r = open_network(side, NULL, threads);

    CHECK_THAT(r == 0, "%s", ivc_error_text());
    exchange_names(side, &other);
    connect_to(side, &other);
}

static void stop(struct side *side)
{
    ivc_network_free(side->network, 5000);
}

typedef int side_fn(struct side *side);

struct other {
    side_fn *fn;
    struct side side;
};

static int run_other(void *arg)
{
    struct other *other = arg;

    return other->fn(&other->side);
}

static pid_t fork_other(side_fn *fn, struct side *ret_side)
{
    int to[2], from[2];
    struct other other = { .fn = fn };
    pid_t pid;

    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    other.side.in = to[0];
    other.side.out = from[1];
    pid = check_fork(run_other, &other);
    close(to[0]);
    close(from[1]);
    *ret_side = (struct side){ .in = from[0], .out = to[1] };
    return pid;
}

static int send_one(struct side *side, uint8_t *bytes, size_t len)
{
    struct iovec iov[2] = { { bytes, 8 }, { bytes + 8, len - 8 } };

    return ivc_network_send(side->network, side->route, iov, len > 8 ? 2 : 1);
}

/* Both ways at once; every third through a buffer of the network's. */
static int exchange(struct side *side)
{
    static uint8_t bytes[PACKET_MAX];
    uint64_t n = 100000 / check_slowdown(), state = 77, sent = 0, full = 0;
    size_t len = 0;

    start(side, false);
    side->check = true;
    side->state = 77;
    while (sent < n || side->received < n) {
        int r = IVC_E_FULL;

        if (sent < n) {
            if (len == 0) {
                len = length(&state, sent);
                memcpy(bytes, &sent, sizeof sent);
                fill(bytes + 8, len - 8, sent);
            }
            if (sent % 3 == 0) {
                struct ivc_network_buffer *buffer;
                void *data;

                r = ivc_network_buffer_get(side->network, side->route, &buffer, &data);
                if (r == 0) {
                    memcpy(data, bytes, len);
                    r = ivc_network_send_buffer(side->network, side->route, buffer, len);
                    if (r != 0)
                        ivc_network_buffer_free(side->network, buffer);
                }
            } else {
                r = send_one(side, bytes, len);
            }
            CHECK_THAT(r == 0 || r == IVC_E_FULL, "packet %llu: %d %s", (unsigned long long)sent, r,
                       side->reason);
            sent += r == 0;
            full += r == IVC_E_FULL;
            len = r == 0 ? 0 : len;
        }
        if (r == IVC_E_FULL || sent % 16 == 0)
            ivc_network_progress(side->network);
    }
    CHECK_EQ(side->downs, 0);
    CHECK(full > 0);
    stop(side);
    return 0;
}

static void packets_both_ways(void)
{
    struct side side;
    pid_t pid = fork_other(exchange, &side);

    exchange(&side);
    check_join(pid);
}

/* Sends what leaves at once and closes: nothing may be lost by that. */
static int send_and_leave(struct side *side)
{
    static uint8_t bytes[PACKET_MAX];
    uint64_t state = 5, sent = 0;

    start(side, false);
    while (sent < 500) {
        size_t len = length(&state, sent);
        int r;

        memcpy(bytes, &sent, sizeof sent);
        fill(bytes + 8, len - 8, sent);
        while ((r = send_one(side, bytes, len)) == IVC_E_FULL)
            ivc_network_progress(side->network);
        CHECK_EQ(r, 0);
        sent++;
    }
    stop(side);
    return 0;
}

static void leaving_loses_nothing(void)
{
    struct side side;
    pid_t pid = fork_other(send_and_leave, &side);

    start(&side, false);
    side.check = true;
    side.state = 5;
    while (side.received < 500)
        ivc_network_progress(side.network);
    stop(&side);
    check_join(pid);
}

/* Shows memory to the other side until that says it is done. */
static int show(struct side *side)
{
    size_t len = 64 * MIB;
    uint8_t *memory = malloc(len);
    struct ivc_network_exposure exposure;
    char done;

    start(side, false);
    await_bound(side);
    fill(memory, len, 3);
    CHECK_THAT(ivc_network_expose(side->network, memory, len, &exposure) == 0, "%s",
               ivc_error_text());
    tell(side, &exposure, sizeof exposure);
    fcntl(side->in, F_SETFL, O_NONBLOCK);
    while (read(side->in, &done, 1) != 1)
        ivc_network_progress(side->network);
    ivc_network_unexpose(side->network, &exposure);
    stop(side);
    free(memory);
    return 0;
}

static void pull_range(struct side *side, const struct ivc_network_exposure *exposure, size_t from,
                       size_t len, unsigned n_iov)
{
    uint8_t *memory = calloc(1, len + 64);
    struct iovec iov[8];
    size_t at = 0;
    int r;

    for (unsigned i = 0; i < n_iov; i++) {
        iov[i] = (struct iovec){ memory + at, i == n_iov - 1 ? len - at : len / n_iov };
        at += iov[i].iov_len;
    }
    side->pulled = 0;
    while ((r = ivc_network_pull(side->network, side->route, exposure->where + from, exposure->key,
                                 iov, n_iov, on_pulled, side)) == IVC_E_FULL)
        ivc_network_progress(side->network);
    CHECK_THAT(r == 0, "%d %s", r, ivc_error_text());
    while (!side->pulled)
        ivc_network_progress(side->network);
    CHECK_EQ(side->pull_status, 0);
    for (size_t i = 0; i < len; i++)
        if (memory[i] != (uint8_t)(3 + (from + i) * 7))
            check_fail(__FILE__, __LINE__, "%zu bytes from %zu: byte %zu differs", len, from, i);
    CHECK_EQ(memory[len], 0);
    free(memory);
}

static void pulls(void)
{
    static const size_t lengths[] = { 8, 100, 4096, 65536, 1000003, 8 * MIB, 64 * MIB };
    struct ivc_network_exposure exposure;
    struct side side;
    pid_t pid = fork_other(show, &side);

    start(&side, false);
    await_bound(&side);
    CHECK(ivc_network_can_pull(side.network));
    hear(&side, &exposure, sizeof exposure);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (unsigned n_iov = 1; n_iov <= 8; n_iov++)
            pull_range(&side, &exposure, lengths[i] < 64 * MIB ? 1000 * n_iov : 0, lengths[i],
                       n_iov);
    tell(&side, "d", 1);
    stop(&side);
    check_join(pid);
}

/* Gives its address away and sits there; `first` of its life it makes progress. */
static int sit(struct side *side)
{
    struct ivc_network_exposure exposure;
    static uint8_t memory[64 * MIB];
    char go;

    start(side, false);
    await_bound(side);
    CHECK_EQ(ivc_network_expose(side->network, memory, sizeof memory, &exposure), 0);
    tell(side, &exposure, sizeof exposure);
    fcntl(side->in, F_SETFL, O_NONBLOCK);
    while (read(side->in, &go, 1) != 1)
        ivc_network_progress(side->network);
    tell(side, "s", 1);
    for (;;)
        pause();
}

/* A first packet has arrived, and the other side sits still. */
static struct ivc_network_exposure connect_to_sitter(struct side *side)
{
    struct ivc_network_exposure exposure;
    uint8_t bytes[64] = { 0 };
    char still;
    int r;

    start(side, false);
    hear(side, &exposure, sizeof exposure);
    while ((r = send_one(side, bytes, sizeof bytes)) == IVC_E_FULL)
        ivc_network_progress(side->network);
    CHECK_EQ(r, 0);
    for (unsigned i = 0; i < 1000; i++)
        ivc_network_progress(side->network);
    tell(side, "g", 1);
    hear(side, &still, 1);
    return exposure;
}

static void expect_down(struct side *side, unsigned seconds)
{
    uint64_t end = ivc_now_ms() + seconds * 1000u;
    uint8_t bytes[64] = { 0 };

    while (!side->downs && ivc_now_ms() < end)
        if (ivc_network_progress(side->network) == 0)
            ivc_sleep_ms(1);
    CHECK_THAT(side->downs == 1, "%u", side->downs);
    CHECK(side->reason[0]);
    printf("# %s\n", side->reason);
    CHECK(!side->down_in_pull);
    CHECK_EQ(send_one(side, bytes, 64), IVC_E_GONE);
    for (unsigned i = 0; i < 1000; i++)
        ivc_network_progress(side->network);
    CHECK_EQ(side->downs, 1);
    ivc_route_free(side->network, side->route);
    ivc_network_free(side->network, 100);
}

static void killed_while_we_send(void)
{
    uint8_t bytes[64] = { 0 };
    struct side side;
    pid_t pid = fork_other(sit, &side);
    uint64_t end;

    connect_to_sitter(&side);
    check_kill(pid);
    end = ivc_now_ms() + 20000;
    while (!side.downs && ivc_now_ms() < end) {
        int r = send_one(&side, bytes, sizeof bytes);

        CHECK(r == 0 || r == IVC_E_FULL || r == IVC_E_GONE);
        ivc_network_progress(side.network);
    }
    expect_down(&side, 1);
}

static void killed_while_we_wait(void)
{
    struct side side;
    pid_t pid = fork_other(sit, &side);

    connect_to_sitter(&side);
    check_kill(pid);
    expect_down(&side, 20);
}

static void killed_while_we_pull(void)
{
    static uint8_t memory[64 * MIB];
    struct iovec iov = { memory, sizeof memory };
    struct side side;
    pid_t pid = fork_other(sit, &side);
    struct ivc_network_exposure exposure = connect_to_sitter(&side);
    int r;

    side.pulling = true;
    while ((r = ivc_network_pull(side.network, side.route, exposure.where, exposure.key, &iov, 1,
                                 on_pulled, &side)) == IVC_E_FULL)
        ivc_network_progress(side.network);
    CHECK_EQ(r, 0);
    for (unsigned i = 0; i < 1000; i++)
        ivc_network_progress(side.network);
    CHECK_EQ(side.pulled, 0);
    check_kill(pid);
    expect_down(&side, 20);
    CHECK_EQ(side.pulled, 1);
    CHECK_EQ(side.pull_status, IVC_E_GONE);
}

static void start_beside_the_dead(struct side *side)
{
    struct ivc_network_exposure exposure;
    pid_t pid = fork_other(sit, side);

    start(side, false);
    hear(side, &exposure, sizeof exposure);
    check_kill(pid);
}

/* Dead before we ever sent to it. */
static void killed_before_we_connect(void)
{
    uint8_t bytes[64] = { 0 };
    struct side side;

    start_beside_the_dead(&side);
    while (send_one(&side, bytes, sizeof bytes) == IVC_E_FULL && !side.downs)
        ivc_network_progress(side.network);
    expect_down(&side, 20);
}

/* Dead before we ever sent to it, and we compute before we look again. */
static void killed_before_we_look(void)
{
    uint8_t bytes[64] = { 0 };
    struct side side;

    start_beside_the_dead(&side);
    CHECK_EQ(send_one(&side, bytes, sizeof bytes), IVC_E_FULL);
    ivc_sleep_ms(1500);
    expect_down(&side, 20);
}

/* Never sent to, only watched. */
static void killed_while_watched(void)
{
    struct side side;

    start_beside_the_dead(&side);
    ivc_route_watch(side.network, side.route);
    expect_down(&side, 40);
}

/* One that stands still, and to which nothing is sent, is not dead: watched or not. */
static void stopped_is_not_dead(void)
{
    struct side side;
    uint64_t end;
    pid_t pid;

    setenv("IVC_NETWORK_TIMEOUT", "2", 1);
    pid = fork_other(sit, &side);
    connect_to_sitter(&side);
    kill(pid, SIGSTOP);
    ivc_route_watch(side.network, side.route);
    end = ivc_now_ms() + 8000;
    while (ivc_now_ms() < end) {
        ivc_network_progress(side.network);
        ivc_sleep_ms(1);
    }
    CHECK_THAT(side.downs == 0, "%s", side.reason);
    check_kill(pid);
    expect_down(&side, 20);
}

/* We stand still for longer than the timeout: nobody has died by that. */
static void our_own_pause(void)
{
    struct side side;
    pid_t pid;

    setenv("IVC_NETWORK_TIMEOUT", "2", 1);
    pid = fork_other(sit, &side);
    connect_to_sitter(&side);
    for (unsigned round = 0; round < 2; round++) {
        for (uint64_t end = ivc_now_ms() + 1500; ivc_now_ms() < end; ivc_sleep_ms(1))
            ivc_network_progress(side.network);
        ivc_sleep_ms(5000);
    }
    for (uint64_t end = ivc_now_ms() + 1500; ivc_now_ms() < end; ivc_sleep_ms(1))
        ivc_network_progress(side.network);
    CHECK_THAT(side.downs == 0, "%s", side.reason);
    check_kill(pid);
    expect_down(&side, 20);
}

/* ---- a host that vanishes: two network namespaces, and a cable that is cut */

static void command(const char *format, ...)
{
    char line[300];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    CHECK_THAT(system(line) == 0, "%s", line);
}

/* In a namespace of its own, with an interface that the parent moves there. */
static void plug_in(struct side *side, pid_t test, unsigned end, const char *own, const char *other)
{
    char name[16], ready;

    snprintf(name, sizeof name, "ivc%d.%u", (int)test, end);

    CHECK_EQ(unshare(CLONE_NEWNET), 0);
    tell(side, "n", 1);
    hear(side, &ready, 1);
    command("ip link set lo up && ip link set %s up && ip addr add %s/24 dev %s", name, own, name);
    /* The other one's hardware address is known for ever: no answer of our own kernel instead. */
    command("ip neigh replace %s lladdr 02:00:00:00:00:%s dev %s nud permanent", other,
            strcmp(other, "10.99.0.2") == 0 ? "02" : "01", name);
    setenv("FI_TCP_IFACE", name, 1);
}

static int sit_in_namespace(struct side *side)
{
    plug_in(side, getppid(), 1, "10.99.0.2", "10.99.0.1");
    return sit(side);
}

static int watch_from_namespace(struct side *side, bool sending)
{
    uint8_t bytes[64] = { 0 };
    uint64_t start, end;
    char cut;

    plug_in(side, getppid(), 0, "10.99.0.1", "10.99.0.2");
    connect_to_sitter(side);
    tell(side, "c", 1);
    hear(side, &cut, 1);
    start = ivc_now_ms();
    end = start + 80000;
    while (!side->downs && ivc_now_ms() < end) {
        if (sending) {
            int r = send_one(side, bytes, sizeof bytes);

            CHECK(r == 0 || r == IVC_E_FULL || r == IVC_E_GONE);
        }
        ivc_network_progress(side->network);
        ivc_sleep_ms(1);
    }
    CHECK_EQ(side->downs, 1);
    printf("# after %.1f s: %s\n", (double)(ivc_now_ms() - start) / 1000, side->reason);
    CHECK_TEXT(side->reason, "host has not answered");
    /* Four seconds of silence, asked for after one, or after thirty when nothing was sent. */
    CHECK(ivc_now_ms() - start < (sending ? 15000 : 50000));
    CHECK(ivc_now_ms() - start >= 4000);
    ivc_network_free(side->network, 100);
    return 0;
}

static int watch_idle(struct side *side)
{
    return watch_from_namespace(side, false);
}

static int watch_and_send(struct side *side)
{
    return watch_from_namespace(side, true);
}

/* What the two tell each other goes through us. */
static void relay(struct side *from, struct side *to, size_t len)
{
    char bytes[256];

    CHECK(len <= sizeof bytes);
    hear(from, bytes, len);
    tell(to, bytes, len);
}

static void host_vanishes(side_fn *fn)
{
    struct side one, other;
    int test = (int)getpid();
    pid_t pid, sitter;
    char ready, line[100];

    if (geteuid() != 0 || system("ip -V >/dev/null 2>&1") != 0)
        check_skip("needs root and iproute2: network namespaces");
    setenv("IVC_NETWORK_TIMEOUT", "4", 1);
    pid = fork_other(fn, &one);
    sitter = fork_other(sit_in_namespace, &other);
    hear(&one, &ready, 1);
    hear(&other, &ready, 1);
    snprintf(line, sizeof line, "ip link add ivc%d.0 type veth peer name ivc%d.1 2>/dev/null", test,
             test);
    if (system(line) != 0)
        check_skip("this kernel has no veth interfaces");
    command("ip link set ivc%d.0 address 02:00:00:00:00:01 netns %d", test, (int)pid);
    command("ip link set ivc%d.1 address 02:00:00:00:00:02 netns %d", test, (int)sitter);
    tell(&one, "p", 1);
    tell(&other, "p", 1);
    relay(&one, &other, sizeof(struct whereabouts));
    relay(&other, &one, sizeof(struct whereabouts));
    relay(&other, &one, sizeof(struct ivc_network_exposure));
    relay(&one, &other, 1);     /* go */
    relay(&other, &one, 1);     /* still */
    hear(&one, &ready, 1);
    command("nsenter --net=/proc/%d/ns/net ip link set ivc%d.1 down", (int)sitter, test);
    tell(&one, "x", 1);
    check_join(pid);
    check_kill(sitter);         /* the interfaces go with the namespaces */
}

static void host_vanishes_while_we_wait(void)
{
    host_vanishes(watch_idle);
}

static void host_vanishes_while_we_send(void)
{
    host_vanishes(watch_and_send);
}

/* One that computes is not dead: packets find room no more, and go on when it wakes up. */
static int compute(struct side *side)
{
    char go;

    start(side, false);
    ivc_sleep_ms(6000);     /* far longer than the timeout of the other side */
    side->received = 0;
    fcntl(side->in, F_SETFL, O_NONBLOCK);
    while (read(side->in, &go, 1) != 1)
        ivc_network_progress(side->network);
    tell(side, &side->received, sizeof side->received);
    stop(side);
    return 0;
}

static void computing_is_not_dead(void)
{
    static uint8_t bytes[PACKET_MAX];
    uint64_t sent = 0, received, full = 0;
    struct side side;
    pid_t pid;

    setenv("IVC_NETWORK_TIMEOUT", "2", 1);
    pid = fork_other(compute, &side);
    start(&side, false);
    while (sent < 2000) {
        int r = send_one(&side, bytes, sizeof bytes);

        CHECK_THAT(r == 0 || r == IVC_E_FULL, "%s", side.reason);
        sent += r == 0;
        full += r == IVC_E_FULL;
        ivc_network_progress(side.network);
    }
    CHECK(full > 0);
    CHECK_EQ(side.downs, 0);
    for (uint64_t end = ivc_now_ms() + 1000; ivc_now_ms() < end;)
        ivc_network_progress(side.network);
    tell(&side, "g", 1);
    fcntl(side.in, F_SETFL, O_NONBLOCK);
    while (read(side.in, &received, sizeof received) != sizeof received)
        ivc_network_progress(side.network);
    CHECK_EQ(received, sent);
    stop(&side);
    check_join(pid);
}

/* ---- two hosts, a network namespace each */

enum { MUTE_PORT = 7 };         /* any: the namespace is ours */

static void listen_mute(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(MUTE_PORT) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 8) == 0);
}

/* The end of the link is plugged in by us. */
static int be_host(struct side *side, int end)
{
    uint64_t from = ivc_now_ms(), limit = from + 20000;
    uint8_t bytes[64] = { 0 };
    bool sent = false;
    struct whereabouts other;
    char ready;

    CHECK_EQ(unshare(CLONE_NEWNET), 0);
    tell(side, "n", 1);
    hear(side, &ready, 1);
    command("ip link set lo up");
    if (plan->more)
        command("%s", plan->more);
    if (plan->addresses[end])
        command("ip link set wire up && ip addr add %s dev wire", plan->addresses[end]);
    unsetenv("FI_TCP_IFACE");
    if (plan->interface)
        setenv("FI_TCP_IFACE", plan->interface, 1);
    setenv("IVC_NETWORK_TIMEOUT", plan->stopped_ms > 0 ? "15" : "4", 1);
    if (open_network(side, "tcp", false) != 0)
        check_fail(__FILE__, __LINE__, "%s", ivc_error_text());
    if (plan->mute)
        listen_mute();
    exchange_names(side, &other);
    if (plan->mute)
        other.name.port = MUTE_PORT;
    connect_to(side, &other);
    for (; ivc_now_ms() < limit && !side->downs && !(sent && side->received > 0); ivc_sleep_ms(1)) {
        sent |= !sent && send_one(side, bytes, sizeof bytes) == 0;
        ivc_network_progress(side->network);
    }
    printf("# %d after %u ms: %s, %s\n", end, (unsigned)(ivc_now_ms() - from),
           ivc_network_describe(side->network), side->reason);
    CHECK_EQ(side->downs, plan->reason != NULL);
    CHECK_EQ(side->received, plan->reason == NULL);
    for (const char *word = plan->reason; word; word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL) {
        char one[60];

        snprintf(one, sizeof one, "%.*s", (int)strcspn(word, ","), word);
        CHECK_TEXT(side->reason, one);
    }
    tell(side, "d", 1);
    hear(side, &ready, 1);
    ivc_network_free(side->network, 1000);
    return 0;
}

static int be_first(struct side *side)
{
    return be_host(side, 0);
}

static int be_second(struct side *side)
{
    return be_host(side, 1);
}

static void two_hosts(const struct plan *what)
{
    struct side one, other;
    struct whereabouts names[2];
    pid_t first, second;
    char ready, line[200];

    if (geteuid() != 0 || system("ip -V >/dev/null 2>&1") != 0)
        check_skip("needs root and iproute2: network namespaces");
    plan = what;
    first = fork_other(be_first, &one);
    second = fork_other(be_second, &other);
    hear(&one, &ready, 1);
    hear(&other, &ready, 1);
    snprintf(line, sizeof line, "ip link add name wire netns %d type veth peer name wire netns %d "
             "2>/dev/null", (int)first, (int)second);
    if (system(line) != 0)
        check_skip("this kernel has no veth interfaces");
    tell(&one, "p", 1);
    tell(&other, "p", 1);
    hear(&one, &names[0], sizeof *names);
    hear(&other, &names[1], sizeof *names);
    if (plan->stopped_ms > 0)
        kill(second, SIGSTOP);
    tell(&one, &names[1], sizeof *names);
    tell(&other, &names[0], sizeof *names);
    ivc_sleep_ms(plan->stopped_ms);
    kill(second, SIGCONT);
    relay(&one, &other, 1);
    relay(&other, &one, 1);
    check_join(first);
    check_join(second);
}

/* What every host has, and has first: libfabric's own choice. */
#define BRIDGE "ip link add docker0 type veth peer name docker1 && ip link set docker0 up && ip link set docker1 up && " \
    "ip addr add 172.17.0.1/16 dev docker0"
#define UNKNOWN "ip link add any0 type veth peer name any1 && ip link set any0 up && ip link set any1 up && " \
    "ip addr add 172.17.0.1/16 dev any0"

static void bridge_on_both(void)
{
    two_hosts(&(struct plan){ .more = BRIDGE, .addresses = { "10.99.1.1/24", "10.99.1.2/24" } });
}

/* Nobody can tell by its name: only the answer does. */
static void same_address_on_both(void)
{
    two_hosts(&(struct plan){ .more = UNKNOWN, .addresses = { "10.99.1.1/24", "10.99.1.2/24" } });
}

/* As in QEMU's user network. */
static void only_the_same_address(void)
{
    two_hosts(&(struct plan){ .addresses = { "10.0.2.15/24", "10.0.2.15/24" },
                              .reason = "10.0.2.15,also ours on wire,FI_TCP_IFACE" });
}

static void no_way_there(void)
{
    two_hosts(&(struct plan){ .addresses = { "10.99.1.1/32", "10.99.2.1/32" },
                              .reason = "no way there,ours: wire 10.99." });
}

static void nobody_answers(void)
{
    two_hosts(&(struct plan){ .more = "ip link set wire arp off", .addresses = { "10.99.1.1/24", "10.99.1.2/24" },
                              .reason = "no answer,ours: wire 10.99.1" });
}

static void somebody_says_nothing(void)
{
    two_hosts(&(struct plan){ .addresses = { "10.99.1.1/24", "10.99.1.2/24" }, .mute = true,
                              .reason = "10.99.1.,takes the connection and says nothing,(port 7)" });
}

/* For longer than one question is waited for. */
static void stopped_before_it_is_reached(void)
{
    two_hosts(&(struct plan){ .addresses = { "10.99.1.1/24", "10.99.1.2/24" }, .stopped_ms = 6500 });
}

static void interface_is_named(void)
{
    two_hosts(&(struct plan){ .more = UNKNOWN, .addresses = { "10.99.1.1/24", "10.99.1.2/24" },
                              .interface = "wire" });
}

static void wrong_interface_is_named(void)
{
    two_hosts(&(struct plan){ .more = UNKNOWN, .addresses = { "10.99.1.1/24", "10.99.1.2/24" }, .interface = "any0",
                              .reason = "172.17.0.1,also ours on any0" });
}

static void no_such_interface(void)
{
    struct side side = { 0 };

    setenv("FI_TCP_IFACE", "nonsense0", 1);
    CHECK_EQ(open_network(&side, NULL, false), -ENODEV);
    CHECK_TEXT(ivc_error_text(), "FI_TCP_IFACE=nonsense0");
}

/* A peer's name that leads to somebody else: to us, to a program that is none of ours, to one that says nothing. */
static void wrong_contact(int listener, const char *word, unsigned seconds)
{
    struct sockaddr_in name = { .sin_family = AF_INET };
    socklen_t len = sizeof name;
    struct side side = { 0 };
    struct whereabouts other = { .id = 12345 };
    uint64_t from = ivc_now_ms();

    CHECK_EQ(open_network(&side, NULL, false), 0);
    ivc_network_name(side.network, &other.name);
    if (listener >= 0) {
        CHECK_EQ(getsockname(listener, (struct sockaddr *)&name, &len), 0);
        other.name.port = ntohs(name.sin_port);
    }
    connect_to(&side, &other);
    ivc_route_watch(side.network, side.route);
    while (!side.downs && ivc_now_ms() - from < seconds * 1000u) {
        int fd = listener >= 0 ? accept4(listener, NULL, NULL, SOCK_NONBLOCK) : -1;

        if (fd >= 0 && strcmp(word, "says nothing") != 0)
            CHECK_EQ(write(fd, "SSH-2.0-OpenSSH", 15), 15);
        ivc_network_progress(side.network);
        ivc_sleep_ms(1);
    }
    printf("# %s\n", side.reason);
    CHECK_TEXT(side.reason, word);
    CHECK_EQ(send_one(&side, (uint8_t[64]){ 0 }, 64), IVC_E_GONE);
    ivc_network_free(side.network, 100);
}

static int listen_anywhere(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 8) == 0);
    return fd;
}

static void contacts_that_are_wrong(void)
{
    setenv("IVC_NETWORK_TIMEOUT", "2", 1);
    wrong_contact(-1, "another process answers", 10);
    wrong_contact(listen_anywhere(), "another program answers", 10);
    wrong_contact(listen_anywhere(), "says nothing", 20);
}

/* Whoever asks in a wrong way is not answered, and is not in the way of others. */
static void questions_that_are_wrong(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct whereabouts us;
    struct side side;
    pid_t pid = fork_other(exchange, &side);
    static uint8_t bytes[200];
    unsigned n = 0;

    /* `exchange` runs here as well: only what comes first differs. */
    CHECK_EQ(open_network(&side, NULL, false), 0);
    ivc_network_name(side.network, &us.name);
    name.sin_port = htons(us.name.port);
    for (unsigned i = 0; i < 200; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
        n += i % 2 == 0 && write(fd, bytes, i) == (ssize_t)i;
        if (i % 3 == 0)
            close(fd);
    }
    CHECK_EQ(n, 100);
    ivc_network_free(side.network, 0);
    exchange(&side);
    check_join(pid);
}

static void refused_names(void)
{
    static const struct { const char *name; int code; const char *word; } cases[] = {
        { "ivc", -EINVAL, "itself" },
        { "tcp;ivc", -EINVAL, "itself" },
        { "none", -ENODEV, "switched off" },
        { "nonsense", -ENODEV, "nonsense: not there" },
        { "../../tmp/x", -ENODEV, "not there" },
        { "udp", -ENODEV, "udp" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct side side = { 0 };
        int r;

        setenv("IVC_NETWORK", cases[i].name, 1);
        r = open_network(&side, NULL, false);
        if (r == 0 && strcmp(cases[i].name, "udp") == 0) {      /* over ofi_rxd */
            ivc_network_free(side.network, 0);
            continue;
        }
        CHECK_THAT(r == cases[i].code, "%s: %d %s", cases[i].name, r, ivc_error_text());
        CHECK_TEXT(ivc_error_text(), cases[i].word);
        printf("# %s\n", ivc_error_text());
    }
}

static void bad_peers(void)
{
    struct side side = { 0 };
    struct ivc_network_name name;
    struct ivc_route *route;

    CHECK_EQ(open_network(&side, NULL, false), 0);
    printf("# %s\n", ivc_network_describe(side.network));
    ivc_network_name(side.network, &name);
    name.provider ^= 1;
    CHECK_EQ(ivc_network_connect(side.network, 1, &name, NULL, &route), IVC_E_UNREACHABLE);
    CHECK_TEXT(ivc_error_text(), "another provider");
    name.provider = 0;
    CHECK_EQ(ivc_network_connect(side.network, 1, &name, NULL, &route), IVC_E_UNREACHABLE);
    ivc_network_name(side.network, &name);
    name.n_ip4 = name.n_ip6 = 0xff;
    CHECK_EQ(ivc_network_connect(side.network, 1, &name, NULL, &route), IVC_E_UNREACHABLE);
    ivc_network_free(side.network, 0);
    ivc_network_free(NULL, 0);
}

static bool is_ours(const siginfo_t *info)
{
    (void)info;
    return false;
}

static void of_application(int number)
{
    (void)number;
}

static void (*handler_of(int number))(int)
{
    struct sigaction now;

    CHECK_EQ(sigaction(number, NULL, &now), 0);
    return now.sa_handler;
}

/* What libfabric brings along (PSM) would take them when it is loaded: those of the application stay its own. */
static void signals_are_kept(void)
{
    static const int numbers[] = { SIGSEGV, SIGILL, SIGABRT, SIGINT, SIGTERM };
    struct side side = { 0 };
    void (*ours)(int);

    unsetenv("IPATH_NO_BACKTRACE");
    unsetenv("HFI_NO_BACKTRACE");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        signal(numbers[i], of_application);
    CHECK_EQ(ivc_chain_add(SIGBUS, is_ours), 0);
    ours = handler_of(SIGBUS);
    signal(SIGBUS, of_application);     /* as one that was loaded by somebody else */
    CHECK_EQ(open_network(&side, NULL, false), 0);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK_THAT(handler_of(numbers[i]) == of_application, "signal %d", numbers[i]);
    CHECK(handler_of(SIGBUS) == ours);
    ivc_network_free(side.network, 0);
    ivc_chain_remove(SIGBUS);
    CHECK(handler_of(SIGBUS) == of_application);
}

/* Sleeps on the descriptor; a packet wakes it. */
static void sleeping(void)
{
    struct side side;
    pid_t pid = fork_other(send_and_leave, &side);
    unsigned slept = 0;

    start(&side, false);
    if (ivc_network_fd(side.network) < 0)
        check_skip("the provider has no descriptor to wait for");
    side.check = true;
    side.state = 5;
    while (side.received < 500) {
        if (ivc_network_try_wait(side.network) == 0) {
            fd_set set;
            struct timeval limit = { 5, 0 };

            FD_ZERO(&set);
            FD_SET(ivc_network_fd(side.network), &set);
            CHECK_THAT(select(ivc_network_fd(side.network) + 1, &set, NULL, NULL, &limit) == 1,
                       "nobody woke us after %u packets", (unsigned)side.received);
            slept++;
        }
        ivc_network_progress(side.network);
    }
    CHECK(slept > 0);
    stop(&side);
    check_join(pid);
}

enum { SENDERS = 4, EACH = 5000 };

static int take_from_senders(struct side *side)
{
    start(side, true);
    while (side->received < SENDERS * (EACH / check_slowdown()))
        ivc_network_progress(side->network);
    stop(side);
    return 0;
}

static void *send_many(void *arg)
{
    struct side *side = arg;
    uint8_t bytes[5000] = { 0 };

    for (unsigned i = 0; i < EACH / check_slowdown();) {
        int r = send_one(side, bytes, i % 7 == 0 ? 5000 : i % 3 == 0 ? 500 : 16);

        CHECK(r == 0 || r == IVC_E_FULL);
        i += r == 0;
        if (r != 0)
            sched_yield();
    }
    return NULL;
}

static void senders(void)
{
    pthread_t threads[SENDERS];
    struct side side;
    pid_t pid = fork_other(take_from_senders, &side);
    char byte;

    start(&side, true);
    for (unsigned i = 0; i < SENDERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, send_many, &side), 0);
    fcntl(side.in, F_SETFL, O_NONBLOCK);
    while (read(side.in, &byte, 1) < 0)     /* until the other side has all and closed its end */
        ivc_network_progress(side.network);
    for (unsigned i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(side.downs == 0 || side.reason[0] != '\0', 1);
    ivc_network_free(side.network, 1000);
    check_join(pid);
}

static const struct check_case cases[] = {
    { "packets both ways: order and content", packets_both_ways, 120 },
    { "leaving loses nothing", leaving_loses_nothing, 0 },
    { "pulls of many lengths and pieces", pulls, 120 },
    { "killed while we send", killed_while_we_send, 0 },
    { "killed while we wait", killed_while_we_wait, 0 },
    { "killed while we pull", killed_while_we_pull, 0 },
    { "killed before we connect", killed_before_we_connect, 0 },
    { "killed before we look", killed_before_we_look, 0 },
    { "killed while watched", killed_while_watched, 0 },
    { "host vanishes while we wait", host_vanishes_while_we_wait, 120 },
    { "host vanishes while we send", host_vanishes_while_we_send, 0 },
    { "computing is not dead", computing_is_not_dead, 0 },
    { "stopped is not dead", stopped_is_not_dead, 0 },
    { "our own pause", our_own_pause, 90 },
    { "names that are refused", refused_names, 0 },
    { "peers of another kind", bad_peers, 0 },
    { "two hosts: docker0 on both", bridge_on_both, 0 },
    { "two hosts: the same address on both, and a link", same_address_on_both, 0 },
    { "two hosts: only the same address on both", only_the_same_address, 0 },
    { "two hosts: no way from one to the other", no_way_there, 0 },
    { "two hosts: nobody answers", nobody_answers, 0 },
    { "two hosts: somebody takes the connection and says nothing", somebody_says_nothing, 0 },
    { "two hosts: one is stopped before it is reached", stopped_before_it_is_reached, 0 },
    { "two hosts: FI_TCP_IFACE", interface_is_named, 0 },
    { "two hosts: FI_TCP_IFACE names the wrong one", wrong_interface_is_named, 0 },
    { "FI_TCP_IFACE names none", no_such_interface, 0 },
    { "a contact that is somebody else's", contacts_that_are_wrong, 60 },
    { "questions that are none", questions_that_are_wrong, 120 },
    { "signals stay whose they were", signals_are_kept, 0 },
    { "sleeping", sleeping, 0 },
    { "several threads send", senders, 120 },
};
CHECK_MAIN(cases)
