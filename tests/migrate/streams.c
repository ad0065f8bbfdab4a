/*
 * ivc.h while guests move: what a program sees of it, step by step, in one process (two members of one
 * guest, which an order asks to leave while neither makes a call).  How streams fare when guests move
 * at any moment: streams-random.c.
 */
#include "one-guest.h"

#include <ivc.h>

#include <poll.h>

enum {
    MAGIC = 51,
    ANSWER_MS = 100,            /* what is promised for a machine that has nothing else to do */
};

static ivc_context *a, *b;

/* What handlers have heard. */
static struct {
    unsigned suspends, leaves, arrives;
    char text[64];              /* the last unread bytes */
    size_t len;
    ivc_connection *connection;
} heard;

static ivc_context *enter(uint32_t client_id)
{
    ivc_context *context = NULL;

    CHECK_THAT(ivc_register(MAGIC, client_id, &context) == 0, "%s", ivc_last_error());
    return context;
}

static void prepare_two(void)
{
    prepare();
    a = enter(1);
    b = enter(2);
}

static ivc_connection *connect_to(ivc_context *context, uint32_t client_id)
{
    ivc_connection *connection = NULL;
    int r;

    CHECK_THAT(ivc_wait_host(context, client_id, 10000) == 0, "%s", ivc_last_error());
    r = ivc_connect(context, client_id, &connection);
    CHECK_THAT(r == 0, "%s", ivc_last_error());
    return connection;
}

static void talk(ivc_connection *to, ivc_connection *from, const char *text)
{
    char got[64] = "";

    CHECK_EQ(ivc_write_all(to, text, strlen(text), 10000, NULL), 0);
    CHECK_EQ(ivc_read_all(from, got, strlen(text), 10000, NULL), 0);
    CHECK_THAT(strcmp(got, text) == 0, "'%s' became '%s'", text, got);
}

/* From a to b, and something has gone both ways. */
static void pair_up(ivc_connection **ret_to, ivc_connection **ret_from)
{
    *ret_to = connect_to(a, 2);
    CHECK_THAT(ivc_accept_wait(b, 10000, ret_from) == 0, "%s", ivc_last_error());
    for (unsigned i = 0; ivc_write(*ret_to, "0", 1) == 0; i++)
        CHECK(i < 100000000);       /* a hears that it was accepted */
    talk(*ret_from, *ret_to, "hello");
    CHECK_EQ(ivc_read_all(*ret_from, heard.text, 1, 10000, NULL), 0);
}

static void hear_suspend(void *arg, ivc_connection *connection, const void *unread, size_t len)
{
    CHECK(arg == &heard);
    CHECK(len < sizeof heard.text);
    memcpy(heard.text, len ? unread : "", len);
    heard.text[len] = '\0';
    heard.len = len;
    heard.connection = connection;
    heard.suspends++;
    CHECK_EQ(ivc_read(connection, heard.text + len, 1), -ESHUTDOWN);
    CHECK_EQ(ivc_write(connection, "x", 1), -ESHUTDOWN);
}

static void hear_leave(void *arg, ivc_context *context)
{
    CHECK(arg == &heard && context);
    heard.leaves++;
}

static void hear_arrive(void *arg, ivc_context *context)
{
    CHECK(arg == &heard && context);
    heard.arrives++;
}

static const struct ivc_move_handlers hearing = {
    .size = sizeof hearing, .on_suspend = hear_suspend, .on_leave = hear_leave,
    .on_arrive = hear_arrive,
};

static void hear(ivc_context *context)
{
    CHECK_EQ(ivc_set_move_handlers(context, &hearing, &heard), 0);
}

static void expect_shut(ivc_connection *connection)
{
    char byte;

    CHECK_EQ(ivc_read(connection, &byte, 1), -ESHUTDOWN);
    CHECK_TEXT(ivc_last_error(), "another host");
    CHECK_EQ(ivc_write(connection, "x", 1), -ESHUTDOWN);
    CHECK_EQ(ivc_read_all(connection, &byte, 1, 1000, NULL), -ESHUTDOWN);
    CHECK_EQ(ivc_write_all(connection, "x", 1, 1000, NULL), -ESHUTDOWN);
}

/* No handlers: what was written is read, and then there is a code that says why. */
static void test_without_handlers(void)
{
    ivc_connection *to, *from;
    char text[8] = "";

    prepare_two();
    pair_up(&to, &from);
    CHECK_EQ(ivc_write(to, "abcdef", 6), 6);
    CHECK_EQ(ivc_write(from, "xyz", 3), 3);
    move_to(&hosts[1]);
    CHECK_EQ(ivc_wait(b, 1000), 0);
    CHECK_EQ(ivc_read(from, text, 2), 2);
    CHECK_EQ(ivc_read_all(from, text + 2, 5, 1000, NULL), -ESHUTDOWN);
    CHECK_THAT(strcmp(text, "abcdef") == 0, "'%s'", text);
    expect_shut(from);
    CHECK_EQ(ivc_wait(b, 1000), 0);
    ivc_close(from);
    CHECK_EQ(ivc_wait(b, 10), -ETIMEDOUT);
    CHECK_EQ(ivc_write(to, "x", 1) > 0, 0);
    CHECK_EQ(ivc_read_all(to, text, 3, 1000, NULL), 0);
    CHECK(memcmp(text, "xyz", 3) == 0);
    expect_shut(to);
    ivc_close(to);
    pair_up(&to, &from);
    talk(to, from, "again");
    ivc_deregister(a);
    ivc_deregister(b);
}

static void test_handlers(void)
{
    ivc_connection *to, *from;

    prepare_two();
    hear(b);
    pair_up(&to, &from);
    CHECK_EQ(ivc_write(to, "abcdef", 6), 6);
    (void)order_and_wait();
    CHECK_EQ(heard.suspends + heard.leaves, 0);     /* nobody has called */
    CHECK_EQ(ivc_wait(b, 1000), 0);
    CHECK_EQ(heard.suspends, 1);
    CHECK_EQ(heard.leaves, 1);
    CHECK_EQ(heard.len, 6);
    CHECK(strcmp(heard.text, "abcdef") == 0 && heard.connection == from);
    expect_shut(from);
    ivc_close(from);
    CHECK_EQ(heard.arrives, 0);
    arrive_at(&hosts[1]);
    CHECK_EQ(ivc_wait(b, 10000), 0);
    CHECK_EQ(heard.arrives, 1);
    ivc_close(to);
    pair_up(&to, &from);
    /* Away and back while nobody calls: told as one.  Here the first call is a read. */
    CHECK_EQ(ivc_write(to, "q", 1), 1);
    move_to(&hosts[0]);
    while (guest_members(&guest, &hosts[0]) < 2)
        ivc_sleep_ms(1);
    for (unsigned i = 0; heard.suspends < 2; i++) {
        ptrdiff_t n = ivc_read(from, heard.text, 1);

        CHECK(n == 1 || n == 0 || n == -ESHUTDOWN);
        CHECK(i < 100);
    }
    CHECK_EQ(ivc_wait(b, 100) == 0 || heard.arrives == 2, 1);
    CHECK_EQ(heard.suspends, 2);
    CHECK_EQ(heard.leaves, 2);
    CHECK_EQ(heard.arrives, 2);
    ivc_deregister(b);
    ivc_deregister(a);
}

/* Unread bytes that lie around the end of our own ring. */
static void test_wrapped(void)
{
    enum { WINDOW = 4096 };
    struct ivc_options options = { .size = sizeof options, .window = WINDOW };
    static char out[WINDOW], in[WINDOW];
    ivc_connection *to, *from;
    size_t done = 0;
    ptrdiff_t n;

    prepare();
    a = enter(1);
    CHECK_EQ(ivc_register_with(MAGIC, 2, &options, &b), 0);
    pair_up(&to, &from);
    for (unsigned i = 0; i < WINDOW; i++)
        out[i] = (char)(i * 7 + i / 256);
    for (unsigned round = 0; round < 5; round++) {
        for (done = 0; done < 3000; done += (size_t)(n > 0 ? n : 0)) {
            n = ivc_write(to, out + done, 3000 - done);
            CHECK(n >= 0);
            ivc_wait(b, 0);
        }
        if (round < 4)
            CHECK_EQ(ivc_read_all(from, in, 3000, 1000, NULL), 0);
    }
    move_to(&hosts[1]);
    CHECK_EQ(ivc_read_all(from, in, 1, 1000, NULL), 0);
    CHECK(in[0] == out[0]);
    CHECK_EQ(ivc_read_all(from, in, WINDOW, 1000, &done), -ESHUTDOWN);
    CHECK_EQ(done, 2999);
    CHECK(memcmp(in, out + 1, 2999) == 0);
    ivc_deregister(a);
    ivc_deregister(b);
}

static char wrapped[8192];

static void take_wrapped(void *arg, ivc_connection *connection, const void *unread, size_t len)
{
    CHECK(len <= sizeof wrapped);
    memcpy(wrapped, unread, len);
    *(size_t *)arg = len;
    ivc_close(connection);
    ivc_close(NULL);
    CHECK(memcmp(wrapped, unread, len) == 0);       /* it is there until we return */
}

static void test_wrapped_handed(void)
{
    enum { WINDOW = 4096 };
    struct ivc_options options = { .size = sizeof options, .window = WINDOW };
    struct ivc_move_handlers handlers = { .size = sizeof handlers, .on_suspend = take_wrapped };
    static char out[WINDOW], in[WINDOW];
    ivc_connection *to, *from;
    size_t done, handed = 0;

    prepare();
    a = enter(1);
    CHECK_EQ(ivc_register_with(MAGIC, 2, &options, &b), 0);
    CHECK_EQ(ivc_set_move_handlers(b, &handlers, &handed), 0);
    pair_up(&to, &from);
    for (unsigned i = 0; i < WINDOW; i++)
        out[i] = (char)(i * 7 + i / 256);
    for (unsigned round = 0; round < 6; round++) {
        for (done = 0; done < 3000;) {
            ptrdiff_t n = ivc_write(to, out + done, 3000 - done);

            CHECK(n >= 0);
            done += (size_t)n;
            ivc_wait(b, 0);
        }
        CHECK_EQ(ivc_read_all(from, in, round < 5 ? 3000 : 1, 1000, NULL), 0);
    }
    move_to(&hosts[1]);
    CHECK_EQ(ivc_write(from, "x", 1), 0);           /* hears of it */
    CHECK_EQ(handed, 0);
    CHECK_EQ(ivc_read(from, in, 1), -ESHUTDOWN);    /* it is closed by the handler of this very call */
    CHECK_TEXT(ivc_last_error(), "closed by a handler");
    CHECK_EQ(handed, 2999);
    CHECK(memcmp(wrapped, out + 1, 2999) == 0);
    ivc_deregister(a);
    ivc_deregister(b);
}

/* What a program has not accepted yet is not lost either. */
static void test_not_accepted(void)
{
    ivc_connection *to, *from = NULL;
    char text[8] = "";

    prepare_two();
    hear(b);
    to = connect_to(a, 2);
    while (ivc_write(to, "abc", 3) == 0)
        (void)ivc_wait(b, 0);
    move_to(&hosts[1]);
    CHECK_EQ(ivc_wait(b, 1000), 0);
    CHECK_EQ(heard.suspends, 0);
    CHECK_EQ(ivc_accept_wait(b, 1000, &from), 0);
    CHECK_EQ(ivc_wait(b, 1000), 0);
    CHECK_EQ(heard.suspends, 1);
    CHECK(heard.connection == from && strcmp(heard.text, "abc") == 0);
    ivc_close(from);

    ivc_close(to);
    ivc_set_move_handlers(b, NULL, NULL);
    to = connect_to(a, 2);
    while (ivc_write(to, "def", 3) == 0)
        (void)ivc_wait(b, 0);
    move_to(&hosts[0]);
    CHECK_EQ(ivc_accept_wait(b, 1000, &from), 0);
    CHECK_EQ(ivc_read_all(from, text, 3, 1000, NULL), 0);
    CHECK(strcmp(text, "def") == 0);
    expect_shut(from);
    /* One that nobody has heard of when the pair is suspended. */
    ivc_close(from);
    ivc_close(to);
    to = connect_to(a, 2);
    move_to(&hosts[1]);
    CHECK_EQ(ivc_wait_host(b, 1, 10000), 0);
    expect_shut(to);
    ivc_deregister(a);
    ivc_deregister(b);
}

/* Ends that were closed before: nothing is told, and what was written is read. */
static void test_closed(void)
{
    ivc_connection *to, *from;
    char text[8] = "";

    prepare_two();
    hear(a);
    hear(b);
    pair_up(&to, &from);
    CHECK_EQ(ivc_write(to, "abc", 3), 3);
    ivc_close(to);
    move_to(&hosts[1]);
    CHECK_EQ(ivc_wait_host(a, 2, 10000), 0);
    CHECK_EQ(ivc_read_all(from, text, 4, 1000, NULL), -EPIPE);
    CHECK(strcmp(text, "abc") == 0);
    CHECK_EQ(ivc_write(from, "x", 1), -EPIPE);
    CHECK_EQ(heard.suspends, 0);
    ivc_close(from);
    pair_up(&to, &from);
    CHECK_EQ(ivc_write(to, "abc", 3), 3);
    ivc_close(from);            /* b: what is unread is dropped */
    move_to(&hosts[0]);
    CHECK_EQ(ivc_wait(a, 1000), 0);
    ivc_close(to);
    pair_up(&to, &from);
    ivc_close(to);
    ivc_close(from);
    move_to(&hosts[1]);
    pair_up(&to, &from);
    ivc_deregister(a);
    ivc_deregister(b);
}

/* Accepted may be one of an earlier try, which b has heard of too late: then the next. */
static bool accept_this(ivc_connection *to, ivc_connection **ret_from)
{
    enum { SHORT_MS = 200 };    /* b may never hear of it */
    char byte;

    while (ivc_accept_wait(b, SHORT_MS, ret_from) == 0) {
        if (ivc_write_all(*ret_from, "c", 1, SHORT_MS, NULL) == 0
            && ivc_read_all(to, &byte, 1, SHORT_MS, NULL) == 0)
            return true;
        ivc_close(*ret_from);
    }
    return false;
}

/* The last order's end may still be under way. */
static void pair_up_again(ivc_connection **ret_to, ivc_connection **ret_from)
{
    bool paired;

    do {
        CHECK_THAT(ivc_wait_host(a, 2, 10000) == 0, "%s", ivc_last_error());
        *ret_to = NULL;
        paired = ivc_connect(a, 2, ret_to) == 0 && accept_this(*ret_to, ret_from);
        if (!paired)
            ivc_close(*ret_to);
    } while (!paired);
}

/* Nobody makes a call for as long as the order is out. */
static void test_computing(void)
{
    ivc_connection *to, *from;
    uint64_t took[7], best = UINT64_MAX;
    static char bytes[200000];

    prepare_two();
    for (unsigned i = 0; i < 7; i++) {
        pair_up(&to, &from);
        (void)ivc_write(to, bytes, sizeof bytes);
        took[i] = order_and_wait();
        best = IVC_MIN(best, took[i]);
        arrive_at(&hosts[(i + 1) % 2]);
        ivc_close(to);
        ivc_close(from);
    }
    printf("# answered after %d %d %d %d %d %d %d ms\n", (int)took[0], (int)took[1], (int)took[2],
           (int)took[3], (int)took[4], (int)took[5], (int)took[6]);
    CHECK_THAT(best <= ANSWER_MS * check_slowdown(), "%d ms at best", (int)best);
    ivc_deregister(a);
    ivc_deregister(b);
}

/* Bytes go through, or the connection is over at any moment. */
static bool has_stayed(ivc_connection *to, ivc_connection *from)
{
    char byte;
    int r = ivc_write_all(to, "s", 1, 10000, NULL);

    if (r == 0)
        r = ivc_read_all(from, &byte, 1, 10000, NULL);
    CHECK(r == 0 || r == -ESHUTDOWN);
    return r == 0;
}

/* An order that is taken back: whoever has left comes back, to the same region. */
static void test_cancelled(void)
{
    ivc_connection *to, *from;
    uint64_t random = ivc_now_ns();
    unsigned left = 0;

    prepare_two();
    hear(a);
    for (unsigned i = 0; i < 30; i++) {
        pair_up_again(&to, &from);
        CHECK_THAT(guest_order(&guest) == 0, "%s", ivc_error_text());
        for (uint64_t end = ivc_now_ms() + check_random(&random) % 60; ivc_now_ms() < end;) {
            guest_beat(&guest);
            ivc_sleep_ms(1);
        }
        guest_withdraw(&guest);
        (void)ivc_wait(a, 0);
        left += !has_stayed(to, from);
        ivc_close(to);
        ivc_close(from);
        CHECK_EQ(ivc_wait_host(a, 2, 10000), 0);
        CHECK_EQ(ivc_wait_host(b, 1, 10000), 0);
    }
    printf("# left %u times of 30\n", left);
    while (heard.arrives < heard.leaves)
        (void)ivc_wait(a, 100);
    CHECK(left == 0 || heard.leaves > 0);
    ivc_deregister(a);
    ivc_deregister(b);
}

/* Whoever was told to try again does nothing else. */
static void test_connect_again(void)
{
    ivc_connection *to, *from, *again = NULL;
    uint64_t end;
    int r;

    prepare_two();
    pair_up(&to, &from);
    move_to(&hosts[1]);
    end = ivc_now_ms() + 10000 * check_slowdown();
    while ((r = ivc_connect(a, 2, &again)) != 0 && ivc_now_ms() < end) {
        CHECK(r == -EAGAIN || r == -ENOENT);
        ivc_sleep_ms(1);
    }
    CHECK_THAT(again != NULL, "%s", ivc_last_error());
    ivc_deregister(a);
    ivc_deregister(b);
}

/* Between two hosts, and memory that was taken from the first. */
static void test_away(void)
{
    ivc_connection *to, *from, *other = NULL;
    void *memory, *more = NULL;
    struct ivc_host host;

    prepare_two();
    pair_up(&to, &from);
    CHECK_EQ(ivc_alloc(a, 8192, &memory), 0);
    strcpy(memory, "stays");
    (void)order_and_wait();
    guest_place(&guest, NULL);
    strcpy((char *)memory + 4096, "and can be written");
    CHECK_EQ(ivc_get_hosts(a, &host, 1), 0);
    CHECK_EQ(ivc_connect(a, 2, &other), -ENOENT);
    CHECK_EQ(ivc_wait_host(a, 2, 50), -ETIMEDOUT);
    CHECK_EQ(ivc_accept(b, &other), -EAGAIN);
    CHECK_EQ(ivc_alloc(a, 4096, &more), -ENODEV);
    CHECK_TEXT(ivc_last_error(), "left its region");
    CHECK(!other && !more);
    CHECK_EQ(ivc_get_peer_host(to, &host), 0);
    CHECK_EQ(host.client_id, 2);
    expect_shut(to);
    arrive_at(&hosts[1]);
    CHECK_EQ(ivc_wait_host(a, 2, 10000), 0);
    CHECK_EQ(ivc_get_hosts(a, &host, 1), 1);
    CHECK_EQ(ivc_alloc(a, 4096, &more), 0);
    CHECK(strcmp(memory, "stays") == 0);
    CHECK_EQ(ivc_free(a, (char *)memory + 4096), -EINVAL);
    CHECK_EQ(ivc_free(a, memory), 0);
    CHECK_EQ(ivc_free(a, memory), -EINVAL);
    CHECK_EQ(ivc_free(a, more), 0);
    ivc_close(to);
    ivc_close(from);
    /* Away for good. */
    (void)order_and_wait();
    ivc_deregister(a);
    guest_withdraw(&guest);
    ivc_deregister(b);
}

/* Sleeps until there may be something to do, until ivc_read() has a word. */
static ptrdiff_t read_asleep(ivc_context *context, ivc_connection *connection, char *bytes)
{
    struct pollfd due = { ivc_descriptor(context), POLLIN, 0 };
    ptrdiff_t n;

    while ((n = ivc_read(connection, bytes, 1)) == 0)
        CHECK_EQ(poll(&due, 1, 10000), 1);
    return n;
}

/* The descriptor tells of a move, and of what comes at the next host. */
static void test_asleep(void)
{
    ivc_connection *to, *from;
    char byte;

    prepare_two();
    for (unsigned i = 0; i < 4; i++) {
        pair_up(&to, &from);
        CHECK_EQ(ivc_write_all(to, "x", 1, 10000, NULL), 0);
        CHECK_EQ(read_asleep(b, from, &byte), 1);
        CHECK_EQ(ivc_read(to, &byte, 1), 0);        /* both are armed */
        CHECK_EQ(ivc_read(from, &byte, 1), 0);
        move_to(&hosts[(i + 1) % 2]);
        CHECK_EQ(read_asleep(a, to, &byte), -ESHUTDOWN);
        CHECK_EQ(read_asleep(b, from, &byte), -ESHUTDOWN);
        CHECK_EQ(ivc_pending(from), 0);
        CHECK_EQ(ivc_room(to), 0);
        ivc_close(to);
        ivc_close(from);
    }
    ivc_deregister(a);
    ivc_deregister(b);
}

/* Handlers that do things. */
static void connect_again(void *arg, ivc_context *context)
{
    ivc_connection **connection = arg;

    CHECK_EQ(ivc_wait_host(context, 2, 10000), 0);
    CHECK_EQ(ivc_connect(context, 2, connection), 0);
    ivc_deregister(context);        /* refused */
    CHECK_TEXT(ivc_last_error(), "deregister", "handler");
    CHECK_EQ(ivc_wait(context, 1), -ETIMEDOUT);
}

static void close_it(void *arg, ivc_connection *connection, const void *unread, size_t len)
{
    (void)arg, (void)unread, (void)len;
    ivc_close(connection);
    heard.suspends++;
}

static void test_busy_handlers(void)
{
    struct ivc_move_handlers of_a = { .size = sizeof of_a, .on_suspend = close_it,
                                      .on_arrive = connect_again };
    struct ivc_move_handlers of_b = { .size = sizeof of_b, .on_suspend = close_it };
    ivc_connection *to, *from, *second, *third;

    prepare_two();
    CHECK_EQ(ivc_set_move_handlers(a, &of_a, &to), 0);
    CHECK_EQ(ivc_set_move_handlers(b, &of_b, NULL), 0);
    pair_up(&to, &from);
    for (unsigned i = 0; i < 6; i++) {
        pair_up(&second, &third);
        heard.suspends = 0;
        move_to(&hosts[(i + 1) % 2]);
        to = NULL;
        while (!to)
            (void)ivc_wait(a, 100);
        CHECK_EQ(heard.suspends, 2);
        CHECK_EQ(ivc_accept_wait(b, 10000, &from), 0);
        CHECK_EQ(heard.suspends, 4);
        talk(from, to, "from b");
        talk(to, from, "from a");
    }
    ivc_deregister(a);
    ivc_deregister(b);
}

static void test_wrong_use(void)
{
    struct ivc_move_handlers handlers = { .on_suspend = hear_suspend };
    ivc_connection *to, *from;
    char byte;

    prepare_two();
    CHECK_EQ(ivc_set_move_handlers(a, &handlers, NULL), -EINVAL);
    CHECK_TEXT(ivc_last_error(), "size", "sizeof");
    handlers.size = sizeof handlers - 1;
    CHECK_EQ(ivc_set_move_handlers(a, &handlers, NULL), -EINVAL);
    handlers.size = sizeof handlers + 64;       /* of a newer header: what we know of it is taken */
    {
        struct { struct ivc_move_handlers known; char more[64]; } newer = { handlers, { 1 } };

        CHECK_EQ(ivc_set_move_handlers(a, &newer.known, &heard), 0);
    }
    CHECK_EQ(ivc_set_move_handlers(a, NULL, NULL), 0);
    CHECK_EQ(ivc_set_move_handlers(a, NULL, NULL), 0);
    pair_up(&to, &from);
    move_to(&hosts[1]);
    /* Whoever does not look at what comes back, and goes on. */
    for (unsigned i = 0; i < 1000; i++) {
        (void)ivc_write(to, "x", 1);
        (void)ivc_read(to, &byte, 1);
        (void)ivc_write(from, "x", 1);
        (void)ivc_wait(a, 0);
    }
    expect_shut(to);
    /* Set when it is over: told then. */
    hear(a);
    CHECK_EQ(ivc_wait(a, 1000), 0);
    CHECK_EQ(heard.suspends, 1);
    CHECK_EQ(ivc_wait_host(a, 2, 10000), 0);
    (void)order_and_wait();
    ivc_deregister(b);          /* with a connection that was never closed, and away */
    ivc_deregister(a);
}

static const struct check_case cases[] = {
    { "without handlers: bytes, then a code", test_without_handlers, 0 },
    { "handlers hear of it in the next call", test_handlers, 0 },
    { "unread bytes around the end of our memory", test_wrapped, 0 },
    { "... handed over, and closed by the handler", test_wrapped_handed, 0 },
    { "connections that were not accepted", test_not_accepted, 0 },
    { "connections that were closed", test_closed, 0 },
    { "an order is answered for programs that compute", test_computing, 0 },
    { "an order that is taken back", test_cancelled, 0 },
    { "who is told to try again connects in the end", test_connect_again, 0 },
    { "between two hosts", test_away, 0 },
    { "asleep in poll(2)", test_asleep, 0 },
    { "handlers that close and connect", test_busy_handlers, 0 },
    { "wrong use", test_wrong_use, 0 },
};

CHECK_MAIN(cases)
