/*
 * ivc.h with the calls as figure 5 of the SC'07 paper writes them (see ivc.h), for programs written after it.
 * C11 and C++; nothing to link but libivc.  Include it instead of ivc.h: the names of that header which the paper
 * uses otherwise mean the paper's calls then.  What failed says ivc_last_error().
 *
 * Threads, blocking and live migration are as in ivc.h.  man 7 ivc_sc07.
 */
#ifndef IVC_SC07_H
#define IVC_SC07_H

#include <ivc.h>

#include <errno.h>
#include <stdlib.h>

/* A peer.  `id` is its client id; -1: none, the end of an array. */
typedef struct {
    int id;
} ivc_peer;

/* One end of a stream.  `id` is the client id of the other end; -1: no channel.  Copies mean the same one. */
typedef struct {
    int id;
    ivc_connection *connection;     /* for ivc_pending(), ivc_room(), ivc_get_peer_host() */
} ivc_channel;

typedef struct ivc_ctx ivc_ctx;
typedef void ivc_migrate_fn(ivc_channel channel, const void *unread, size_t len);
typedef void ivc_arrive_fn(ivc_ctx *ctx);

struct ivc_ctx {
    ivc_context *context;           /* for ivc_wait(), ivc_descriptor(), ... */
    ivc_peer *peers;
    ivc_migrate_fn *on_migrate;
    ivc_arrive_fn *on_arrive;
};

static inline ivc_channel ivc_sc07_channel(ivc_connection *connection)
{
    ivc_channel channel = { -1, connection };
    struct ivc_host host;

    if (connection && ivc_get_peer_host(connection, &host) == 0)
        channel.id = (int)host.client_id;
    return channel;
}

static inline void ivc_sc07_on_suspend(void *arg, ivc_connection *connection, const void *unread, size_t len)
{
    ((ivc_ctx *)arg)->on_migrate(ivc_sc07_channel(connection), unread, len);
}

static inline void ivc_sc07_on_arrive(void *arg, ivc_context *context)
{
    (void)context;
    ((ivc_ctx *)arg)->on_arrive((ivc_ctx *)arg);
}

static inline int ivc_sc07_set_handlers(ivc_ctx *ctx)
{
    struct ivc_move_handlers handlers;

    handlers.size = sizeof handlers;
    handlers.on_suspend = ctx->on_migrate ? ivc_sc07_on_suspend : NULL;
    handlers.on_leave = NULL;
    handlers.on_arrive = ctx->on_arrive ? ivc_sc07_on_arrive : NULL;
    return ivc_set_move_handlers(ctx->context, &handlers, ctx);
}

/* f(channel, unread, len): the channel is over by a move; those bytes were not read, and will not be.  It remains to be
 * closed.  Without it ivc_read() gives them first. */
static inline int ivc_on_migrate(ivc_ctx *ctx, ivc_migrate_fn *f)
{
    ctx->on_migrate = f;
    return ivc_sc07_set_handlers(ctx);
}

/* f(ctx): this guest is on a host again, with other peers perhaps. */
static inline int ivc_on_arrive(ivc_ctx *ctx, ivc_arrive_fn *f)
{
    ctx->on_arrive = f;
    return ivc_sc07_set_handlers(ctx);
}

/* NULL on failure. */
static inline ivc_ctx *ivc_sc07_register(uint64_t magic, int client)
{
    ivc_ctx *ctx = (ivc_ctx *)calloc(1, sizeof *ctx);

    if (ctx && (client < 0 || ivc_register(magic, (uint32_t)client, &ctx->context) != 0)) {
        free(ctx);
        ctx = NULL;
    }
    return ctx;
}

static inline ivc_ctx *ivc_init(uint64_t magic, int client)
{
    return ivc_sc07_register(magic, client);
}

static inline void ivc_sc07_deregister(ivc_ctx *ctx)
{
    if (!ctx)
        return;
    ivc_deregister(ctx->context);
    free(ctx->peers);
    free(ctx);
}

static inline ivc_peer *ivc_sc07_keep_peers(ivc_ctx *ctx, const struct ivc_host *hosts, int n)
{
    free(ctx->peers);
    ctx->peers = (ivc_peer *)calloc((size_t)n + 1, sizeof *ctx->peers);
    for (int i = 0; ctx->peers && i <= n; i++)
        ctx->peers[i].id = i < n ? (int)hosts[i].client_id : -1;
    return ctx->peers;
}

/* All peers, up to one whose id is -1; the context's, until the next call.  NULL: nobody. */
static inline ivc_peer *ivc_sc07_get_hosts(ivc_ctx *ctx)
{
    int n = ivc_get_hosts(ctx->context, NULL, 0), found;
    struct ivc_host *hosts = n > 0 ? (struct ivc_host *)calloc((size_t)n, sizeof *hosts) : NULL;
    ivc_peer *peers = NULL;

    if (!hosts)
        return NULL;
    found = ivc_get_hosts(ctx->context, hosts, (size_t)n);
    if (found > 0)
        peers = ivc_sc07_keep_peers(ctx, hosts, found < n ? found : n);
    free(hosts);
    return peers;
}

/* Waits until the peer's library has answered; no channel (`id` is -1) when it has left, died or moved. */
static inline ivc_channel ivc_sc07_connect(ivc_ctx *ctx, ivc_peer peer)
{
    ivc_connection *connection = NULL;

    if (peer.id >= 0)
        (void)ivc_connect_wait(ctx->context, (uint32_t)peer.id, -1, &connection);
    return ivc_sc07_channel(connection);
}

/* Waits for a peer, for ever. */
static inline ivc_channel ivc_sc07_accept(ivc_ctx *ctx)
{
    ivc_connection *connection = NULL;

    (void)ivc_accept_wait(ctx->context, -1, &connection);
    return ivc_sc07_channel(connection);
}

/* Bytes; 0 when nothing goes, and for ever from a move on; negative: closed by the peer, or it died. */
static inline ptrdiff_t ivc_sc07_write(ivc_channel channel, const void *buffer, size_t size)
{
    ptrdiff_t n = ivc_write(channel.connection, buffer, size);

    return n == -ESHUTDOWN ? 0 : n;
}

static inline ptrdiff_t ivc_sc07_read(ivc_channel channel, void *buffer, size_t size)
{
    ptrdiff_t n = ivc_read(channel.connection, buffer, size);

    return n == -ESHUTDOWN ? 0 : n;
}

static inline void ivc_sc07_close(ivc_channel channel)
{
    ivc_close(channel.connection);
}

#define ivc_register ivc_sc07_register
#define ivc_deregister ivc_sc07_deregister
#define ivc_get_hosts ivc_sc07_get_hosts
#define ivc_connect ivc_sc07_connect
#define ivc_accept ivc_sc07_accept
#define ivc_read ivc_sc07_read
#define ivc_write ivc_sc07_write
#define ivc_close ivc_sc07_close

#endif
