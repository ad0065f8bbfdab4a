/* Tests of the datagrams that wake: each way, to nobody, to where none may go, and too many. */
#include "check.h"

#include "region/wake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

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
};
CHECK_MAIN(cases)
