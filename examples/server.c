/*
 * The server of the example: registers, takes connections one after the other, prints what each
 * client sends, and sends it back.
 *
 *     server [GROUP]          in one guest
 *     client [GROUP] WORDS    in another
 */
#include <ivc.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERVER_ID = 0, WAIT_MS = 200, REPLY_MS = 5000 };

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

/* Reads what there is and writes it back, until the client closes. */
static void echo(ivc_context *context, ivc_connection *connection)
{
    char bytes[4096];
    ptrdiff_t n = 0;

    while (!stop && (n = ivc_read(connection, bytes, sizeof bytes)) >= 0) {
        if (n == 0) {
            ivc_wait(context, WAIT_MS);     /* returns early when there is something */
            continue;
        }
        printf("%.*s", (int)n, bytes);
        fflush(stdout);
        if (ivc_write_all(connection, bytes, (size_t)n, REPLY_MS, NULL) < 0) {
            fprintf(stderr, "server: %s\n", ivc_last_error());
            return;
        }
    }
    if (stop || n == -EPIPE)                /* closed in good order */
        return;
    if (n == -ESHUTDOWN)                    /* all that the client wrote until then was echoed */
        printf("the client or we moved to another host\n");
    else
        fprintf(stderr, "server: %s\n", ivc_last_error());
}

static void serve(ivc_context *context)
{
    ivc_connection *connection;
    struct ivc_host client;
    int r;

    while (!stop) {
        r = ivc_accept_wait(context, WAIT_MS, &connection);
        if (r == -ETIMEDOUT)
            continue;
        if (r < 0) {
            fprintf(stderr, "server: %s\n", ivc_last_error());
            return;
        }
        ivc_get_peer_host(connection, &client);
        printf("client %u, process %u on %s:\n", client.client_id, client.pid, client.name);
        echo(context, connection);
        ivc_close(connection);
    }
}

int main(int argc, char **argv)
{
    uint64_t group = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    ivc_context *context;
    int r;

    if (argc > 2 || (argc > 1 && argv[1][0] == '-')) {
        printf("usage: server [GROUP]\nEchoes what clients of the group (a number; 1) send.\n");
        return strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ? 0 : 2;
    }
    r = ivc_register(group, SERVER_ID, &context);
    if (r < 0) {
        fprintf(stderr, "server: %s\n", ivc_last_error());
        return 1;
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    printf("server: waiting for clients of group %llu\n", (unsigned long long)group);
    fflush(stdout);
    serve(context);
    ivc_deregister(context);
    return 0;
}
