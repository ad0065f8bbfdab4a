/*
 * ivc_sc07.h while a guest moves: the SC'07 paper's server and client (figure 5) with its two callbacks, in two processes
 * of one guest.  What a move does to a stream is in streams.c; here is what the paper's calls make of it.
 */
#include <ivc_sc07.h>

#include "one-guest.h"

enum { GROUP = 7, SERVER_ID = 0, CLIENT_ID = 1, SIZE = 6 };

/* What the callbacks of this process have heard. */
static struct {
    unsigned migrations, arrivals;
    ivc_channel channel;
    char unread[SIZE + 1];
    size_t len;
    ivc_ctx *ctx;
} heard;

static void on_migrate(ivc_channel channel, const void *unread, size_t len)
{
    CHECK(len <= SIZE);
    memcpy(heard.unread, len ? unread : "", len);
    heard.len = len;
    heard.channel = channel;
    heard.migrations++;
}

static void on_arrive(ivc_ctx *ctx)
{
    heard.ctx = ctx;
    heard.arrivals++;
}

static void read_text(ivc_channel channel, const char *text)
{
    char buf[SIZE] = "";
    ptrdiff_t bytes;

    while ((bytes = ivc_read(channel, buf, SIZE)) == 0)
        ;
    CHECK_THAT(bytes == SIZE && memcmp(buf, text, SIZE) == 0, "%d bytes: %.6s, not %s", (int)bytes, buf, text);
}

static void write_text(ivc_channel channel, const char *text)
{
    ptrdiff_t bytes;

    while ((bytes = ivc_write(channel, text, SIZE)) == 0)
        ;
    CHECK_EQ(bytes, SIZE);
}

static void tell(int fd)
{
    CHECK_EQ(write(fd, "x", 1), 1);
}

static void hear(int fd)
{
    char byte;

    CHECK_EQ(read(fd, &byte, 1), 1);
}

struct pipes {
    int to_server[2], to_client[2];
};

/* Has both callbacks.  In the move it makes no call. */
static int serve(void *arg)
{
    const struct pipes *pipes = arg;
    ivc_ctx *ctx = ivc_init(GROUP, SERVER_ID);
    ivc_channel channel;
    char byte;

    CHECK_THAT(ctx, "%s", ivc_last_error());
    CHECK_EQ(ivc_on_migrate(ctx, on_migrate), 0);
    CHECK_EQ(ivc_on_arrive(ctx, on_arrive), 0);
    tell(pipes->to_client[1]);
    channel = ivc_accept(ctx);
    CHECK_EQ(channel.id, CLIENT_ID);
    read_text(channel, "hello");
    write_text(channel, "hello");
    write_text(channel, "later");
    tell(pipes->to_client[1]);
    hear(pipes->to_server[0]);

    CHECK_EQ(heard.migrations, 0);
    while (heard.migrations == 0)
        CHECK_EQ(ivc_write(channel, "x", 1), 0);
    CHECK_EQ(heard.channel.id, CLIENT_ID);
    CHECK(heard.channel.connection == channel.connection);
    CHECK_THAT(heard.len == SIZE && strcmp(heard.unread, "again") == 0, "%zu bytes: %s", heard.len, heard.unread);
    CHECK_EQ(ivc_read(channel, &byte, 1), 0);           /* they are the callback's */
    ivc_close(channel);

    channel = ivc_accept(ctx);
    CHECK_EQ(channel.id, CLIENT_ID);
    CHECK_EQ(heard.arrivals, 1);
    CHECK(heard.ctx == ctx);
    read_text(channel, "third");
    write_text(channel, "third");
    while (ivc_read(channel, &byte, 1) == 0)
        ;
    ivc_close(channel);
    CHECK_EQ(heard.migrations, 1);
    ivc_deregister(ctx);
    return 0;
}

static ivc_channel connect_to_server(ivc_ctx *ctx)
{
    ivc_peer *peers;
    ivc_channel channel;

    while (!(peers = ivc_get_hosts(ctx)))
        ivc_sleep_ms(1);
    CHECK_EQ(peers[0].id, SERVER_ID);
    CHECK_EQ(peers[1].id, -1);
    channel = ivc_connect(ctx, peers[0]);
    CHECK_THAT(channel.id == SERVER_ID, "%s", ivc_last_error());
    return channel;
}

/* The client has only the one callback: what it has not read it reads, and then nothing comes. */
static void test_move(void)
{
    struct pipes pipes;
    ivc_channel channel;
    ivc_ctx *ctx;
    char byte;
    pid_t server;

    prepare();
    CHECK(pipe(pipes.to_server) == 0 && pipe(pipes.to_client) == 0);
    server = check_fork(serve, &pipes);
    hear(pipes.to_client[0]);
    ctx = ivc_register(GROUP, CLIENT_ID);
    CHECK_THAT(ctx, "%s", ivc_last_error());
    CHECK_EQ(ivc_on_arrive(ctx, on_arrive), 0);
    channel = connect_to_server(ctx);
    write_text(channel, "hello");
    read_text(channel, "hello");
    hear(pipes.to_client[0]);
    write_text(channel, "again");
    move_to(&hosts[1]);
    tell(pipes.to_server[1]);

    read_text(channel, "later");
    while (heard.arrivals == 0)
        CHECK_EQ(ivc_read(channel, &byte, 1), 0);
    CHECK(heard.ctx == ctx);
    CHECK_EQ(ivc_write(channel, "x", 1), 0);
    ivc_close(channel);
    channel = connect_to_server(ctx);
    write_text(channel, "third");
    read_text(channel, "third");
    ivc_close(channel);
    ivc_deregister(ctx);
    CHECK_EQ(heard.arrivals, 1);
    CHECK_EQ(heard.migrations, 0);
    check_join(server);
}

static const struct check_case cases[] = {
    { "the paper's server and client, and a move", test_move, 0 },
};

CHECK_MAIN(cases)
