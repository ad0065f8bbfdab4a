/* Tests of the datagrams that wake: each way, to nobody, to where none may go, and too many. */
#include "check.h"

#include "region/wake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>

static const struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr = { 0x0100007f } };
static struct ivc_wake a, b;

static void open_both(const struct sockaddr *address)
{
    ivc_wake_open(&a, 1, address);
    ivc_wake_open(&b, 2, address);
}

static void close_both(void)
{
    ivc_wake_close(&a);
    ivc_wake_close(&b);
}

static bool comes_to(const struct ivc_wake *wake, int ms)
{
    struct pollfd fds[] = { { .fd = wake->here, .events = POLLIN }, { .fd = wake->there, .events = POLLIN } };

    return poll(fds, 2, ms) > 0 && ivc_wake_take(wake);
}

static void test_here(void)
{
    open_both(NULL);
    CHECK(a.here >= 0 && b.here >= 0);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(!ivc_wake_take(&b));
        ivc_wake_send(&a, &(struct ivc_wake_target){ 2, true, { 0 } });
        CHECK(comes_to(&b, 5000) && !ivc_wake_take(&a));
    }
    ivc_wake_send(&b, &(struct ivc_wake_target){ 2, true, { 0 } });     /* itself */
    CHECK(comes_to(&b, 5000));
    close_both();
}

/* To another kernel, and to one of ours that the first way does not lead to. */
static void test_there(void)
{
    open_both((const struct sockaddr *)&loopback);
    CHECK(a.there >= 0 && b.there >= 0 && b.name.family == 4 && b.name.port >= 1024);
    ivc_wake_send(&a, &(struct ivc_wake_target){ 2, false, b.name });
    CHECK(comes_to(&b, 5000));
    close(b.here);
    b.here = -1;
    ivc_wake_send(&a, &(struct ivc_wake_target){ 2, true, b.name });
    CHECK(comes_to(&b, 5000));
    close_both();
}

static void test_ip6(void)
{
    struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };

    open_both((const struct sockaddr *)&address);
    if (b.there < 0)
        check_skip("there is no IPv6 here");
    CHECK_EQ(b.name.family, 6);
    ivc_wake_send(&a, &(struct ivc_wake_target){ 2, false, b.name });
    CHECK(comes_to(&b, 5000));
    close_both();
}

/* What a member says of itself may be anything. */
static void test_nowhere(void)
{
    struct sockaddr_in low = loopback;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
    struct ivc_layout_wake names[] = {
        { 0 }, { 4, 0, { 127, 0, 0, 1 } }, { 4, 1023, { 127, 0, 0, 1 } }, { 4, 5000, { 224, 0, 0, 1 } },
        { 4, 5000, { 255, 255, 255, 255 } }, { 6, 5000, { 0xff, 2 } }, { 9, 5000, { 127, 0, 0, 1 } },
    };
    char bytes[16];

    open_both((const struct sockaddr *)&loopback);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        ivc_wake_send(&a, &(struct ivc_wake_target){ 2, false, names[i] });
        ivc_wake_send(&a, &(struct ivc_wake_target){ 99, true, names[i] });
    }
    CHECK(!comes_to(&a, 20) && !comes_to(&b, 20));
    /* A service with a low port hears nothing, if we may be one here. */
    low.sin_port = htons(1023);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&low, sizeof low) == 0) {
        ivc_wake_send(&a, &(struct ivc_wake_target){ 2, false, names[2] });
        CHECK(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) < 0);
    }
    close(fd);
    close_both();
}

/* More than the socket holds: the sender does not wait, the receiver does not stay for ever. */
static void test_flood(void)
{
    open_both((const struct sockaddr *)&loopback);
    for (unsigned i = 0; i < 20000; i++)
        ivc_wake_send(&a, &(struct ivc_wake_target){ 2, i % 2 != 0, b.name });
    CHECK(comes_to(&b, 5000));
    for (unsigned i = 0; i < 20000 && ivc_wake_take(&b); i++)
        ;
    CHECK(!ivc_wake_take(&b));
    close_both();
}

/* ---- two hosts: this process is in one network namespace after the other, and sockets stay where they were made */

static int hosts[2];

static void enter(unsigned host)
{
    CHECK_EQ(setns(hosts[host], CLONE_NEWNET), 0);
}

static int stay(void *arg)
{
    (void)arg;
    return pause();
}

/* Host 0 is 10.98.0.1 and .11, host 1 is 10.98.0.2 and .12; both are also 172.17.0.1, as bridges are. */
static void make_hosts(void)
{
    pid_t pid = 0;
    char line[200];

    if (geteuid() != 0 || system("ip -V >/dev/null 2>&1") != 0)
        check_skip("needs root and iproute2: network namespaces");
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(unshare(CLONE_NEWNET), 0);
        hosts[i] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (i == 0)
            pid = check_fork(stay, NULL);
    }
    snprintf(line, sizeof line, "ip link add name wire type veth peer name wire netns %d 2>/dev/null", (int)pid);
    if (system(line) != 0)
        check_skip("this kernel has no veth interfaces");
    for (unsigned i = 0; i < 2; i++) {
        enter(i);
        snprintf(line, sizeof line, "ip link set lo up && ip link set wire up && ip addr add 10.98.0.%u/24 dev wire && "
                 "ip addr add 10.98.0.%u/24 dev wire && ip addr add 172.17.0.1/32 dev wire", 1 + i, 11 + i);
        CHECK_THAT(system(line) == 0, "%s", line);
    }
}

static void open_on(unsigned host, struct ivc_wake *wake, uint64_t id, const char *address)
{
    struct sockaddr_in where = { .sin_family = AF_INET };

    enter(host);
    CHECK_EQ(inet_pton(AF_INET, address, &where.sin_addr), 1);
    ivc_wake_open(wake, id, (struct sockaddr *)&where);
    CHECK(wake->there >= 0);
}

/* Something has come; whether it meant `wake`. */
static bool is_meant(const struct ivc_wake *wake)
{
    struct pollfd there = { .fd = wake->there, .events = POLLIN };

    CHECK_EQ(poll(&there, 1, 5000), 1);
    return ivc_wake_take(wake);
}

/* The name is all that counts: who is meant, in full and alone.  From which of its addresses it came does not. */
static void test_two_hosts(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    uint64_t words[2] = { 2, 2 };
    struct ivc_wake another;

    make_hosts();
    open_on(1, &b, 2, "10.98.0.2");
    open_on(0, &a, 1, "10.98.0.1");
    open_on(0, &another, 4, "10.98.0.11");
    ivc_wake_send(&a, &(struct ivc_wake_target){ 3, false, b.name });
    CHECK(!is_meant(&b));
    to.sin_port = htons(b.name.port);
    memcpy(&to.sin_addr, b.name.address, 4);
    for (size_t len = 0; len <= sizeof words; len++) {
        if (len == sizeof *words)
            continue;
        CHECK_EQ(sendto(a.there, words, len, 0, (struct sockaddr *)&to, sizeof to), (ssize_t)len);
        CHECK_THAT(!is_meant(&b), "%zu bytes", len);
    }
    ivc_wake_send(&a, &(struct ivc_wake_target){ 2, false, b.name });
    CHECK(is_meant(&b));
    ivc_wake_send(&another, &(struct ivc_wake_target){ 2, false, b.name });
    CHECK(is_meant(&b));
    ivc_wake_close(&another);
    close_both();
}

/* At an address that is also ours somebody of ours would be told. */
static void test_own_address(void)
{
    struct sockaddr_in same = { .sin_family = AF_INET };
    struct ivc_wake_target target;
    struct pollfd ours;
    char bytes[16];

    make_hosts();
    open_on(1, &b, 2, "172.17.0.1");
    open_on(0, &a, 1, "10.98.0.1");
    same.sin_port = htons(b.name.port);
    memcpy(&same.sin_addr, b.name.address, 4);
    ours = (struct pollfd){ .fd = socket(AF_INET, SOCK_DGRAM, 0), .events = POLLIN };
    CHECK(ours.fd >= 0 && bind(ours.fd, (struct sockaddr *)&same, sizeof same) == 0);
    target = ivc_wake_target_of(2, false, &b.name);
    ivc_wake_send(&a, &target);
    CHECK_EQ(poll(&ours, 1, 100), 0);
    CHECK(!ivc_wake_take(&b));
    /* It would have been: one of ours says it here. */
    ivc_wake_send(&a, &(struct ivc_wake_target){ 2, false, b.name });
    CHECK_EQ(poll(&ours, 1, 5000), 1);
    CHECK_EQ(recv(ours.fd, bytes, sizeof bytes, 0), 8);
    close(ours.fd);
    close_both();
}

/* Two of one name: the second is not woken here, and says so. */
static void test_taken(void)
{
    ivc_wake_open(&a, 7, NULL);
    ivc_wake_open(&b, 7, NULL);
    CHECK(a.here >= 0 && b.here == -1);
    CHECK(!ivc_wake_take(&b));
    ivc_wake_send(&b, &(struct ivc_wake_target){ 7, true, { 0 } });
    close_both();
}

static const struct check_case cases[] = {
    { "within a kernel", test_here, 0 },
    { "over a network", test_there, 0 },
    { "over IPv6", test_ip6, 0 },
    { "to where none may go", test_nowhere, 0 },
    { "too many", test_flood, 0 },
    { "a name that is taken", test_taken, 0 },
    { "two hosts: only who is meant", test_two_hosts, 0 },
    { "two hosts: an address that both have", test_own_address, 0 },
};
CHECK_MAIN(cases)
