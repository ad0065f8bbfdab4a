/*
 * ivc.h between processes: connecting, reading and writing in parts, closing, time-outs, partners
 * that leave or die.  Only the public header is used.
 */
#include "check.h"
#include "streams.h"

#include <ivc.h>

#include <poll.h>

enum { MIB = 1 << 20 };
static const char *path;

static ivc_context *enter_with(uint32_t client_id, struct ivc_options options)
{
    ivc_context *context = NULL;
    int r;

    stage_member(client_id);
    options.size = sizeof options;
    options.region = path;
    r = ivc_register_with(40, client_id, &options, &context);
    CHECK_THAT(r == 0, "%s", ivc_last_error());
    return context;
}

static ivc_context *enter(uint32_t client_id)
{
    return enter_with(client_id, (struct ivc_options){ 0 });
}

static ivc_connection *connect_to(ivc_context *context, uint32_t client_id)
{
    ivc_connection *connection = NULL;

    CHECK_THAT(ivc_wait_host(context, client_id, 10000) == 0, "%s", ivc_last_error());
    CHECK_THAT(ivc_connect(context, client_id, &connection) == 0, "%s", ivc_last_error());
    return connection;
}

static ivc_connection *take(ivc_context *context)
{
    ivc_connection *connection = NULL;

    CHECK_THAT(ivc_accept_wait(context, 10000, &connection) == 0, "%s", ivc_last_error());
    return connection;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint8_t byte_at(size_t at, unsigned stream)
{
    return (uint8_t)(at * 7 + (at >> 8) * 3 + (at >> 16) + stream);
}

static void fill(uint8_t *bytes, size_t from, size_t n, unsigned stream)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = byte_at(from + i, stream);
}

static void verify(const uint8_t *bytes, size_t from, size_t n, unsigned stream)
{
    for (size_t i = 0; i < n; i++)
        CHECK_THAT(bytes[i] == byte_at(from + i, stream), "stream %u: wrong at %zu", stream,
                   from + i);
}

static void new_region(uint64_t size)
{
    static char kept[900];

    snprintf(kept, sizeof kept, "%s", check_file(0, size));
    path = stage_region(kept);
}

/* The echo of each length, through the blocking calls. */
static int echo(void *arg)
{
    ivc_context *context = enter(2);
    ivc_connection *connection = take(context);
    static uint8_t bytes[65536];
    ptrdiff_t n;

    (void)arg;
    while ((n = ivc_read(connection, bytes, sizeof bytes)) >= 0)
        if (n > 0)
            CHECK_EQ(ivc_write_all(connection, bytes, (size_t)n, 10000, NULL), 0);
    CHECK_EQ(n, -EPIPE);
    CHECK_TEXT(ivc_last_error(), "closed");
    ivc_close(connection);
    ivc_deregister(context);
    return 0;
}

static void echo_with(struct ivc_options options)
{
    static const size_t lens[] = { 1, 2, 3, 51, 52, 53, 60, 61, 64, 100, 4091, 4092, 4093, 5000,
                                   32763, 32764, 32765, 100000, 3 * MIB };
    static uint8_t out[3 * MIB], in[3 * MIB];
    ivc_context *context;
    ivc_connection *connection;
    pid_t pid;

    new_region(64 * MIB);
    pid = check_fork(echo, NULL);
    context = enter_with(1, options);
    connection = connect_to(context, 2);
    for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
        size_t written = 0, got = 0;

        fill(out, 0, lens[i], i);
        /* Both ways at once: a partner that only echoes must not be waited for with all of it. */
        for (uint64_t end = now_ms() + 20000; got < lens[i] && now_ms() < end;) {
            ptrdiff_t n = ivc_write(connection, out + written, lens[i] - written);

            CHECK(n >= 0);
            written += (size_t)n;
            n = ivc_read(connection, in + got, lens[i] - got);
            CHECK(n >= 0);
            got += (size_t)n;
        }
        CHECK_THAT(got == lens[i], "ring %u, segments %u, window %u: %zu written, %zu back of %zu",
                   options.ring_size, options.segment_size, options.window, written, got, lens[i]);
        verify(in, 0, lens[i], i);
    }
    ivc_close(connection);
    check_join(pid);
    ivc_deregister(context);
}

static void test_echo(void)
{
    echo_with((struct ivc_options){ 0 });
}

static void test_echo_tunables(void)
{
    static const struct ivc_options rows[] = {
        { .ring_size = 4096 }, { .ring_size = 65536, .segment_size = 4096 }, { .window = 4096 },
        { .window = 4097, .ring_size = 8192, .segment_size = 128 }, { .window = 16 * MIB },
    };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        echo_with(rows[i]);
}

/* The reader does nothing for a while: the writer gets a window's worth through, in part, then 0. */
static void test_partial(void)
{
    enum { WINDOW = 64 * 1024, TOTAL = 3 * MIB + 17 };
    static uint8_t bytes[TOTAL];
    struct ivc_options options = { .window = WINDOW };
    ivc_context *a, *b;
    ivc_connection *out, *in = NULL;
    size_t written = 0, got = 0, in_window;
    ptrdiff_t n;
    uint64_t state = 3;

    new_region(64 * MIB);
    a = enter_with(1, options);
    b = enter_with(2, options);
    out = connect_to(a, 2);
    CHECK_EQ(ivc_write(out, "x", 1), 0);        /* the other library has not heard of it */
    CHECK_EQ(ivc_read(out, bytes, 1), 0);
    for (uint64_t end = now_ms() + 10000; !in && now_ms() < end;)
        (void)ivc_accept(b, &in);
    CHECK(in != NULL);
    fill(bytes, 0, TOTAL, 0);
    for (unsigned i = 0; i < 100000; i++) {
        n = ivc_write(out, bytes + written, TOTAL - written);
        CHECK(n >= 0);
        written += (size_t)n;
    }
    CHECK_THAT(written > 0 && written <= WINDOW, "%zu bytes unread", written);
    in_window = written;
    while (got < TOTAL) {
        static uint8_t part[100000];

        n = ivc_read(in, part, check_random(&state) % sizeof part);
        CHECK(n >= 0);
        verify(part, got, (size_t)n, 0);
        got += (size_t)n;
        n = ivc_write(out, bytes + written, TOTAL - written);
        CHECK(n >= 0);
        written += (size_t)n;
        CHECK_THAT(written - got <= WINDOW, "%zu bytes unread", written - got);
    }
    CHECK_EQ(written, TOTAL);
    CHECK(in_window < TOTAL);
    CHECK_EQ(ivc_read(in, bytes, 10), 0);
    ivc_close(out);
    ivc_close(in);
    ivc_close(NULL);
    ivc_deregister(a);
    ivc_deregister(b);
    ivc_deregister(NULL);
}

/* Time-outs take as long as they say, and tell how far it came. */
static void test_timeouts(void)
{
    ivc_context *a, *b;
    ivc_connection *out, *in = NULL;
    static uint8_t bytes[8 * MIB];
    size_t done = 99;
    uint64_t start;

    new_region(64 * MIB);
    a = enter(1);
    b = enter(2);
#define TAKES(ms, call)                                                                    \
    do {                                                                                   \
        start = now_ms();                                                                  \
        CHECK_EQ(call, -ETIMEDOUT);                                                        \
        CHECK_THAT(now_ms() - start + 5 >= (ms) && now_ms() - start < (ms) + 2000,         \
                   "%s took %u ms", #call, (unsigned)(now_ms() - start));                  \
    } while (0)
    TAKES(100, ivc_wait_host(a, 3, 100));
    CHECK_TEXT(ivc_last_error(), "client 3", "100 ms");
    TAKES(100, ivc_accept_wait(b, 100, &in));
    TAKES(20, ivc_accept_wait(b, 20, &in));
    TAKES(100, ivc_wait(b, 100));
    TAKES(5, ivc_wait(b, 0));
    CHECK_EQ(ivc_accept(b, &in), -EAGAIN);
    out = connect_to(a, 2);
    TAKES(100, ivc_write_all(out, bytes, sizeof bytes, 100, &done));    /* nobody accepts */
    CHECK_EQ(done, 0);
    CHECK_EQ(ivc_wait(b, 1000), 0);
    CHECK_EQ(ivc_accept(b, &in), 0);
    TAKES(100, ivc_read_all(in, bytes, 10, 100, &done));
    CHECK_EQ(done, 0);
    TAKES(100, ivc_write_all(out, bytes, sizeof bytes, 100, &done));    /* nobody reads */
    CHECK(done > 0 && done < sizeof bytes);
    CHECK_TEXT(ivc_last_error(), "8388608 bytes", "100 ms");
    CHECK_EQ(ivc_read_all(in, bytes, done, 5000, NULL), 0);
    CHECK_EQ(ivc_write_all(out, bytes, 5, 1000, NULL), 0);
    TAKES(100, ivc_read_all(in, bytes, 10, 100, &done));
    CHECK_EQ(done, 5);
    CHECK_EQ(ivc_read_all(in, bytes, 0, 0, &done), 0);
#undef TAKES
    ivc_deregister(a);
    ivc_deregister(b);
}

/* ---- sleeping in poll(2) */

static struct {
    unsigned sleeps, late;      /* in all; as long as the library's own looks are apart, which would hide a lost one */
} polled;

static int poll_for(ivc_context *context, int timeout_ms)
{
    struct pollfd descriptor = { ivc_descriptor(context), POLLIN, 0 };
    uint64_t start = now_ms();
    int n;

    CHECK_THAT(descriptor.fd >= 0, "%s", ivc_last_error());
    n = poll(&descriptor, 1, timeout_ms);
    CHECK(n == 0 || (n == 1 && descriptor.revents == POLLIN));
    polled.sleeps++;
    polled.late += now_ms() - start >= 40;
    return n;
}

/* There is something, sooner or later: sleeps until then. */
static void sleep_for(ivc_context *context)
{
    CHECK_THAT(poll_for(context, 10000 * (int)check_slowdown()) == 1, "nothing came after %u sleeps", polled.sleeps);
}

static ivc_connection *accept_asleep(ivc_context *context)
{
    ivc_connection *connection;

    while (ivc_accept(context, &connection) != 0)
        sleep_for(context);
    return connection;
}

/* What a call has answered: when nothing went, after a sleep. */
static size_t moved(ivc_context *context, ptrdiff_t n)
{
    CHECK_THAT(n >= 0, "%s", ivc_last_error());
    if (n == 0)
        sleep_for(context);
    return (size_t)n;
}

static void read_asleep(ivc_context *context, ivc_connection *connection, uint8_t *bytes, size_t len)
{
    for (size_t done = 0; done < len;)
        done += moved(context, ivc_read(connection, bytes + done, len - done));
}

static void write_asleep(ivc_context *context, ivc_connection *connection, const uint8_t *bytes, size_t len)
{
    for (size_t done = 0; done < len;)
        done += moved(context, ivc_write(connection, bytes + done, len - done));
}

enum { TRIPS = 400, POLL_STREAM = 6 * MIB };

/* Answers each message, then takes a stream slowly, then ends; all of it asleep. */
static int answer_asleep(void *arg)
{
    ivc_context *context = enter_with(2, *(const struct ivc_options *)arg);
    ivc_connection *connection = accept_asleep(context);
    static uint8_t bytes[65536];

    for (unsigned i = 0; i < TRIPS; i++) {
        read_asleep(context, connection, bytes, 8);
        write_asleep(context, connection, bytes, 8);
    }
    for (size_t got = 0; got < POLL_STREAM; got += sizeof bytes) {
        read_asleep(context, connection, bytes, sizeof bytes);
        verify(bytes, got, sizeof bytes, 3);
        if (got % (1 << 20) == 0)
            usleep(20000);
    }
    ivc_close(connection);
    ivc_deregister(context);
    return 0;
}

static void poll_with(struct ivc_options options)
{
    static uint8_t bytes[POLL_STREAM];
    uint8_t number[8] = { 0 }, back[8];
    ivc_context *context;
    ivc_connection *connection;
    pid_t pid;

    new_region(64 * MIB);
    memset(&polled, 0, sizeof polled);
    pid = check_fork(answer_asleep, &options);
    context = enter_with(1, options);
    connection = connect_to(context, 2);
    for (unsigned i = 0; i < TRIPS; i++) {
        number[i % 8]++;
        write_asleep(context, connection, number, 8);
        read_asleep(context, connection, back, 8);
        CHECK(memcmp(number, back, 8) == 0);
    }
    /* What would be lost would be found by the library's own looks, every 50 ms: so not one in ten. */
    CHECK_THAT(polled.late <= TRIPS / 10, "%u of %u sleeps were late", polled.late, polled.sleeps);
    fill(bytes, 0, sizeof bytes, 3);
    write_asleep(context, connection, bytes, sizeof bytes);
    while (ivc_read(connection, bytes, 1) == 0)
        sleep_for(context);
    CHECK_EQ(ivc_read(connection, bytes, 1), -EPIPE);
    ivc_close(connection);
    ivc_deregister(context);
    check_join(pid);
}

static void test_poll(void)
{
    poll_with((struct ivc_options){ 0 });
}

/* Bounded by what is unread, by the ring. */
static void test_poll_small(void)
{
    poll_with((struct ivc_options){ .window = 8192 });
    poll_with((struct ivc_options){ .ring_size = 65536, .window = 64 << 20 });
}

/* It may be readable for nothing, but not for ever. */
static void expect_quiet(ivc_context *context)
{
    ivc_connection *connection;

    for (unsigned i = 0; poll_for(context, 0) == 1; i++) {
        CHECK_THAT(i < 1000, "always readable");
        CHECK_EQ(ivc_accept(context, &connection), -EAGAIN);
    }
}

/* Readable until all was found, whatever call took part of it, and not for long when there is nothing. */
static void test_poll_level(void)
{
    ivc_context *a, *b;
    ivc_connection *out, *in, *second;
    char bytes[100];
    unsigned woken = 0;

    new_region(64 * MIB);
    a = enter(1);
    b = enter(2);
    expect_quiet(b);
    out = connect_to(a, 2);
    in = accept_asleep(b);
    expect_quiet(b);
    CHECK_EQ(ivc_write_all(out, "123456", 6, 5000, NULL), 0);
    CHECK_EQ(poll_for(b, 5000), 1);
    /* The first bytes are asked for, and the rest is left. */
    CHECK_EQ(ivc_read_all(in, bytes, 2, 5000, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(poll_for(b, 0), 1);
    /* Taken by a call about something else. */
    CHECK_EQ(ivc_accept(b, &second), -EAGAIN);
    CHECK_EQ(poll_for(b, 0), 1);
    CHECK_EQ(ivc_read(in, bytes, sizeof bytes), 4);
    CHECK_EQ(poll_for(b, 1000), 1);
    CHECK_EQ(ivc_read(in, bytes, sizeof bytes), 0);
    expect_quiet(b);
    /* A call that waited looked by itself. */
    CHECK_EQ(ivc_wait(b, 20), -ETIMEDOUT);
    CHECK_EQ(ivc_write(out, "x", 1), 1);
    CHECK_EQ(poll_for(b, 5000), 1);
    CHECK_EQ(ivc_wait_host(b, 1, 1000), 0);
    read_asleep(b, in, (uint8_t *)bytes, 1);
    for (uint64_t end = now_ms() + 500; now_ms() < end; woken += (unsigned)poll_for(b, 100))
        CHECK_EQ(ivc_read(in, bytes, sizeof bytes), 0);
    CHECK_THAT(woken <= 20, "woken %u times by nothing in half a second", woken);
    ivc_close(out);
    while (ivc_read(in, bytes, sizeof bytes) == 0)
        sleep_for(b);
    CHECK_EQ(ivc_read(in, bytes, sizeof bytes), -EPIPE);
    CHECK_EQ(poll_for(b, 0), 1);        /* until it is closed */
    ivc_close(in);
    expect_quiet(b);
    ivc_deregister(a);
    ivc_deregister(b);
}

/* ---- what would go */

/* All that is said to go goes, and nothing when nothing is said to. */
static void room_with(struct ivc_options options)
{
    static uint8_t bytes[8 * MIB], got[8 * MIB];
    uint64_t state = 1, written = 0, read = 0;
    ivc_context *a, *b;
    ivc_connection *out, *in;
    unsigned full = 0;

    new_region(64 * MIB);
    a = enter_with(1, options);
    b = enter_with(2, options);
    out = connect_to(a, 2);
    CHECK_EQ(ivc_room(out), 0);         /* nobody has answered */
    CHECK_EQ(ivc_pending(out), 0);
    in = take(b);
    CHECK_EQ(ivc_wait(b, 0), -ETIMEDOUT);
    fill(bytes, 0, sizeof bytes, 4);
    for (unsigned i = 0; i < 3000; i++) {
        ptrdiff_t room = ivc_room(out), n, pending;

        CHECK_THAT(room >= 0 && room <= (ptrdiff_t)sizeof bytes, "%s", ivc_last_error());
        /* A little, or all. */
        if (room > 0 && check_random(&state) % 2)
            room = 1 + (ptrdiff_t)(check_random(&state) % (uint64_t)room);
        fill(bytes, written, (size_t)room, 4);
        n = ivc_write(out, bytes, room ? (size_t)room : 1);
        CHECK_THAT(n == room, "%td went of %td", n, room);
        full += room == 0;
        written += (uint64_t)n;
        if (room > 0 && check_random(&state) % 4)
            continue;
        pending = ivc_pending(in);
        CHECK_THAT(pending > 0 || read == written, "%llu are there", (unsigned long long)(written - read));
        n = ivc_read(in, got, sizeof got);
        CHECK_THAT(n >= pending, "%td came of %td", n, pending);
        verify(got, read, (size_t)n, 4);
        read += (uint64_t)n;
    }
    CHECK_THAT(full > 0 && written > 100000, "%u times full, %llu bytes", full, (unsigned long long)written);
    ivc_close(out);
    while (ivc_read(in, got, sizeof got) >= 0)
        ;
    CHECK_EQ(ivc_pending(in), -EPIPE);
    CHECK_EQ(ivc_room(in), -EPIPE);
    CHECK_TEXT(ivc_last_error(), "room", "closed");
    ivc_deregister(a);
    ivc_deregister(b);
}

static void test_room(void)
{
    room_with((struct ivc_options){ .window = 64 << 20 });
    room_with((struct ivc_options){ .window = 100000 });
    room_with((struct ivc_options){ .window = 64 << 20, .ring_size = 65536 });
    room_with((struct ivc_options){ .window = 64 << 20, .ring_size = 1 << 20, .segment_size = 4096 });
}

/* ---- waiting for an answer */

static int answer_late(void *arg)
{
    ivc_context *context = enter(2);

    usleep(300000);
    if (arg)
        (void)take(context);
    else
        _exit(0);       /* dies */
    pause();
    return 0;
}

static void test_connect_wait(void)
{
    ivc_context *context;
    ivc_connection *connection = NULL;
    pid_t pid;

    new_region(64 * MIB);
    context = enter(1);
    CHECK_EQ(ivc_connect_wait(context, 2, 100, &connection), -ENOENT);
    pid = check_fork(answer_late, &pid);
    CHECK_EQ(ivc_wait_host(context, 2, 10000), 0);
    CHECK_EQ(ivc_connect_wait(context, 2, 20, &connection), -ETIMEDOUT);
    CHECK_TEXT(ivc_last_error(), "client 2", "20 ms");
    CHECK_EQ(ivc_connect_wait(context, 2, 10000, &connection), 0);
    CHECK_EQ(ivc_write(connection, "x", 1), 1);
    check_kill(pid);
    while (ivc_wait_host(context, 2, 0) == 0)
        usleep(1000);
    pid = check_fork(answer_late, NULL);
    CHECK_EQ(ivc_wait_host(context, 2, 10000), 0);
    CHECK_EQ(ivc_connect_wait(context, 2, -1, &connection), -ECONNRESET);
    check_join(pid);
    ivc_deregister(context);
}

/* Closed with bytes on the way: they are read, then the end. */
static int write_and_close(void *arg)
{
    static uint8_t bytes[MIB];
    ivc_context *context = enter(2);
    ivc_connection *connection = connect_to(context, 1);

    fill(bytes, 0, sizeof bytes, 5);
    CHECK_EQ(ivc_write_all(connection, bytes, sizeof bytes, 10000, NULL), 0);
    ivc_close(connection);
    while (!arg && ivc_wait_host(context, 1, 0) == 0)   /* stays until the other one leaves */
        ;
    ivc_deregister(context);
    return 0;
}

static void closing(bool leaves)
{
    static uint8_t bytes[2 * MIB];
    ivc_context *context;
    ivc_connection *connection;
    size_t done;
    pid_t pid;

    new_region(64 * MIB);
    context = enter(1);
    pid = check_fork(write_and_close, leaves ? bytes : NULL);
    connection = take(context);
    usleep(300000);
    CHECK_EQ(ivc_read_all(connection, bytes, 1000, 10000, NULL), 0);
    CHECK_EQ(ivc_read_all(connection, bytes + 1000, sizeof bytes - 1000, 10000, &done), -EPIPE);
    CHECK_EQ(done, MIB - 1000);
    verify(bytes, 0, MIB, 5);
    CHECK_EQ(ivc_read(connection, bytes, 1), -EPIPE);
    CHECK_EQ(ivc_write(connection, bytes, 1), -EPIPE);
    CHECK_TEXT(ivc_last_error(), "closed");
    ivc_close(connection);
    ivc_deregister(context);
    check_join(pid);
}

static void test_close(void)
{
    closing(false);
}

static void test_close_and_leave(void)
{
    closing(true);
}

/* The partner is killed: reading and writing say so; waiting does not wait for ever. */
static int write_and_hang(void *arg)
{
    ivc_context *context = enter(2);
    ivc_connection *connection = connect_to(context, 1);

    (void)arg;
    CHECK_EQ(ivc_write_all(connection, "12345", 5, 10000, NULL), 0);
    pause();
    return 0;
}

static void test_death(void)
{
    ivc_context *context;
    ivc_connection *connection, *none;
    char bytes[10];
    size_t done;
    uint64_t start;
    pid_t pid;

    new_region(64 * MIB);
    context = enter(1);
    pid = check_fork(write_and_hang, NULL);
    connection = take(context);
    CHECK_EQ(ivc_read_all(connection, bytes, 3, 10000, NULL), 0);
    check_kill(pid);
    start = now_ms();
    CHECK_EQ(ivc_read_all(connection, bytes, 10, -1, &done), -ECONNRESET);
    CHECK_EQ(done, 2);
    CHECK_TEXT(ivc_last_error(), "died");
    CHECK(now_ms() - start < 5000);
    CHECK_EQ(ivc_write(connection, "x", 1), -ECONNRESET);
    CHECK_EQ(ivc_write_all(connection, "x", 1, -1, NULL), -ECONNRESET);
    CHECK_EQ(ivc_connect(context, 2, &none), -ENOENT);
    CHECK_TEXT(ivc_last_error(), "client 2", "group 40");
    ivc_close(connection);
    ivc_deregister(context);
}

/* Killed while it has not yet accepted: the one who waits to write is told. */
static int only_register(void *arg)
{
    (void)arg;
    (void)enter(2);
    pause();
    return 0;
}

static void test_death_before_accept(void)
{
    ivc_context *context;
    ivc_connection *connection;
    pid_t pid;

    new_region(64 * MIB);
    context = enter(1);
    pid = check_fork(only_register, NULL);
    connection = connect_to(context, 2);
    CHECK_EQ(ivc_write(connection, "x", 1), 0);
    usleep(300000);     /* with grants each maps a page of the other's first */
    check_kill(pid);
    CHECK_EQ(ivc_write_all(connection, "x", 1, 20000, NULL), -ECONNRESET);
    ivc_close(connection);
    ivc_deregister(context);
}

/* Names: who is there, and one name for one process only, whoever came first to whichever slot. */
static void test_names(void)
{
    ivc_context *a, *b, *c = NULL, *other;
    struct ivc_host hosts[4];
    struct ivc_options options = { .size = sizeof options };
    int r;

    new_region(64 * MIB);
    a = enter(1);
    CHECK_EQ(ivc_get_hosts(a, hosts, 4), 0);
    b = enter(2);
    options.region = path;
    CHECK_EQ(ivc_register_with(41, 1, &options, &other), 0);    /* another group */
    CHECK_EQ(ivc_get_hosts(a, hosts, 4), 1);
    CHECK_EQ(hosts[0].client_id, 2);
    CHECK_EQ(hosts[0].magic_id, 40);
    CHECK_EQ(hosts[0].pid, getpid());
    CHECK(strlen(hosts[0].vm) == 36 && hosts[0].name[0]);
    CHECK_EQ(ivc_get_hosts(a, NULL, 0), 1);
    CHECK_EQ(ivc_get_hosts(other, hosts, 4), 0);
    CHECK_EQ(ivc_register_with(40, 2, &options, &c), -EEXIST);
    CHECK_TEXT(ivc_last_error(), "client 2", "group 40", "taken");
    /* The first slot becomes free; a newcomer that takes it is still the later one. */
    ivc_deregister(a);
    for (unsigned i = 0; i < 30; i++) {
        r = ivc_register_with(40, 2, &options, &c);
        CHECK_THAT(r == -EEXIST, "after %u ms the name was given twice (%d)", i * 100, r);
        usleep(100000);
    }
    ivc_deregister(b);
    CHECK_EQ(ivc_register_with(40, 2, &options, &c), 0);        /* left: the name is free */
    ivc_deregister(c);
    ivc_deregister(other);
}

/* Several connections between the same two, and to oneself there is none. */
static void test_many_connections(void)
{
    enum { N = 20 };
    ivc_context *a, *b;
    ivc_connection *out[N], *in[N], *none;
    struct ivc_host host;
    uint32_t number;

    new_region(64 * MIB);
    a = enter(1);
    b = enter(2);
    CHECK_EQ(ivc_connect(a, 1, &none), -ENOENT);
    CHECK_EQ(ivc_connect(a, 9, &none), -ENOENT);
    for (uint32_t i = 0; i < N; i++)
        out[i] = connect_to(a, 2);
    for (uint32_t i = 0; i < N; i++)
        in[i] = take(b);
    for (uint32_t i = 0; i < N; i++)
        CHECK_EQ(ivc_write_all(out[N - 1 - i], &(uint32_t){ N - 1 - i }, 4, 5000, NULL), 0);
    for (uint32_t i = 0; i < N; i++) {
        CHECK_EQ(ivc_read_all(in[i], &number, 4, 5000, NULL), 0);
        CHECK_EQ(number, i);    /* accepted in the order in which they were started */
        CHECK_EQ(ivc_get_peer_host(in[i], &host), 0);
        CHECK_EQ(host.client_id, 1);
    }
    for (uint32_t i = 0; i < N; i += 2)
        ivc_close(out[i]);
    for (uint32_t i = 0; i < N; i++) {
        ptrdiff_t n = 0;

        for (unsigned k = 0; k < 1000 && n == 0; k++)
            n = ivc_read(in[i], &number, 4);
        CHECK_EQ(n, i % 2 ? 0 : -EPIPE);
        ivc_close(in[i]);
    }
    ivc_deregister(a);
    ivc_deregister(b);
}

/* The reader looks away while the writer writes, closes, leaves, and others come: all bytes, or an
 * error; never a short stream with a clean end. */
static int write_and_leave_fast(void *arg)
{
    static uint8_t bytes[40000];
    ivc_context *context = enter(2);
    ivc_connection *connection = connect_to(context, 1);

    (void)arg;
    fill(bytes, 0, sizeof bytes, 1);
    CHECK_EQ(ivc_write_all(connection, bytes, sizeof bytes, 10000, NULL), 0);
    ivc_close(connection);
    ivc_deregister(context);
    return 0;
}

static void test_looked_away(void)
{
    static uint8_t bytes[50000];
    ivc_context *context, *others[4];
    ivc_connection *connection;
    size_t done = 0;
    pid_t pid;
    int r;

    new_region(8 * MIB);
    context = enter(1);
    pid = check_fork(write_and_leave_fast, NULL);
    connection = take(context);
    check_join(pid);
    usleep(2000000);
    for (unsigned i = 0; i < 4; i++)
        others[i] = enter(10 + i);
    usleep(500000);
    r = ivc_read_all(connection, bytes, sizeof bytes, 5000, &done);
    CHECK_THAT(r == -ECONNRESET || (r == -EPIPE && done == 40000), "%d after %zu bytes", r, done);
    verify(bytes, 0, done, 1);
    for (unsigned i = 0; i < 4; i++)
        ivc_deregister(others[i]);
    ivc_deregister(context);
}

/* Many short writes, then gone; read in smaller pieces long after. */
static int write_short_and_leave(void *arg)
{
    ivc_context *context = enter_with(2, (struct ivc_options){ .ring_size = 131072 });
    ivc_connection *connection = connect_to(context, 1);
    uint8_t bytes[40];

    (void)arg;
    for (size_t i = 0; i < 300; i++) {
        fill(bytes, i * sizeof bytes, sizeof bytes, 2);
        CHECK_EQ(ivc_write_all(connection, bytes, sizeof bytes, 10000, NULL), 0);
    }
    ivc_deregister(context);
    return 0;
}

static void test_read_late(void)
{
    ivc_context *context;
    ivc_connection *connection;
    uint8_t bytes[20];
    size_t got = 0;
    ptrdiff_t n = 0;
    pid_t pid;

    new_region(8 * MIB);
    context = enter(1);
    pid = check_fork(write_short_and_leave, NULL);
    connection = take(context);
    check_join(pid);
    usleep(500000);     /* by now our helper thread knows that it has left */
    for (uint64_t end = now_ms() + 10000; n >= 0 && now_ms() < end; got += (size_t)n) {
        n = ivc_read(connection, bytes, sizeof bytes);
        if (n < 0)
            break;
        verify(bytes, got, (size_t)n, 2);
    }
    CHECK_EQ(n, -EPIPE);
    CHECK_EQ(got, 300 * 40);
    ivc_deregister(context);
}

/* A group of several, all pairs at once. */
static int all_pairs(void *arg)
{
    enum { N = 4, TOTAL = 300000 };
    uint32_t own = *(uint32_t *)arg;
    static uint8_t out[TOTAL], part[50000];
    ivc_connection *to[N] = { 0 }, *from[N] = { 0 };
    size_t written[N] = { 0 }, got[N] = { 0 };
    ivc_context *context = enter(own);
    struct ivc_host host;
    unsigned open = 0;

    fill(out, 0, TOTAL, own);
    for (uint32_t i = 0; i < N; i++)
        if (i != own)
            to[i] = connect_to(context, i);
    for (unsigned left = 2 * (N - 1); left > 0;) {
        ivc_connection *connection;

        while (open < N - 1 && ivc_accept(context, &connection) == 0) {
            CHECK_EQ(ivc_get_peer_host(connection, &host), 0);
            from[host.client_id] = connection;
            open++;
        }
        left = 0;
        for (uint32_t i = 0; i < N; i++) {
            ptrdiff_t n;

            if (i == own)
                continue;
            if (written[i] < TOTAL) {
                n = ivc_write(to[i], out + written[i], TOTAL - written[i]);
                CHECK_THAT(n >= 0, "%s", ivc_last_error());
                written[i] += (size_t)n;
            }
            if (from[i] && got[i] < TOTAL) {
                n = ivc_read(from[i], part, sizeof part);
                CHECK_THAT(n >= 0, "%s", ivc_last_error());
                verify(part, got[i], (size_t)n, i);
                got[i] += (size_t)n;
            }
            left += written[i] < TOTAL;
            left += got[i] < TOTAL;
        }
        sched_yield();
    }
    for (uint32_t i = 0; i < N; i++)
        if (i != own)
            ivc_close(to[i]);
    ivc_deregister(context);
    return 0;
}

static void test_all_pairs(void)
{
    uint32_t numbers[4] = { 0, 1, 2, 3 };
    pid_t pids[4];

    new_region(64 * MIB);
    for (unsigned i = 0; i < 4; i++)
        pids[i] = check_fork(all_pairs, &numbers[i]);
    for (unsigned i = 0; i < 4; i++)
        check_join(pids[i]);
}

static void test_words(void)
{
    char version[32];

    snprintf(version, sizeof version, "%d.%d.%d", IVC_VERSION_MAJOR, IVC_VERSION_MINOR,
             IVC_VERSION_PATCH);
    CHECK(strcmp(ivc_version(), version) == 0);
    CHECK_EQ(strlen(ivc_last_error()), 0);
    CHECK(strcmp(ivc_strerror(-EPIPE), strerror(EPIPE)) == 0);
    CHECK(strlen(ivc_strerror(0)) > 0);
}

static const struct check_case cases[] = {
    { "version and texts", test_words, 0 },
    { "echo of every length", test_echo, 0 },
    { "echo with other tunables", test_echo_tunables, 90 },
    { "partial reads and writes", test_partial, 0 },
    { "time-outs", test_timeouts, 0 },
    { "asleep in poll(2)", test_poll, 0 },
    { "... with small windows and rings", test_poll_small, 0 },
    { "the descriptor is readable until all was found", test_poll_level, 0 },
    { "room and pending bytes", test_room, 0 },
    { "connecting waits for an answer", test_connect_wait, 0 },
    { "closed with bytes on the way", test_close, 0 },
    { "closed and left with bytes on the way", test_close_and_leave, 0 },
    { "a partner dies", test_death, 0 },
    { "a partner dies before it accepts", test_death_before_accept, 0 },
    { "names and groups", test_names, 0 },
    { "twenty connections of two", test_many_connections, 0 },
    { "the reader looked away for long", test_looked_away, 0 },
    { "short writes read late, in pieces", test_read_late, 0 },
    { "all pairs of four", test_all_pairs, 0 },
};
CHECK_MAIN(cases)
