/*
 * The client of the example: registers, lists who shares memory with it, connects to the server,
 * sends the words of its command line, and prints what comes back.
 */
#include <ivc.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERVER_ID = 0, CLIENTS_MAX = 64, HOSTS_MAX = 32, WAIT_MS = 10000 };

static int fail(void)
{
    fprintf(stderr, "client: %s\n", ivc_last_error());
    return 1;
}

/* Registers under the first number that no other client of the group has. */
static int join(uint64_t group, ivc_context **ret_context)
{
    int r = -EEXIST;

    for (uint32_t id = SERVER_ID + 1; r == -EEXIST && id < CLIENTS_MAX; id++)
        r = ivc_register(group, id, ret_context);
    return r;
}

static void print_hosts(ivc_context *context)
{
    struct ivc_host hosts[HOSTS_MAX];
    int n = ivc_get_hosts(context, hosts, HOSTS_MAX);

    printf("client: %d member%s of the group share%s memory with us\n", n, n == 1 ? "" : "s",
           n == 1 ? "s" : "");
    for (int i = 0; i < n && i < HOSTS_MAX; i++)
        printf("    %u: process %u on %s\n", hosts[i].client_id, hosts[i].pid, hosts[i].name);
}

/* Sends the line and waits until as many bytes have come back. */
static int talk(ivc_connection *connection, const char *line)
{
    size_t len = strlen(line);
    char *answer = calloc(len + 1, 1);
    int r = answer ? ivc_write_all(connection, line, len, WAIT_MS, NULL) : -1;

    if (r == 0)
        r = ivc_read_all(connection, answer, len, WAIT_MS, NULL);
    if (r == 0)
        printf("client: the server answers: %s", answer);
    free(answer);
    return r;
}

static int run(ivc_context *context, const char *line)
{
    ivc_connection *connection;
    int r;

    /* The server may be started after us. */
    if (ivc_wait_host(context, SERVER_ID, WAIT_MS) < 0)
        return fail();
    print_hosts(context);
    if (ivc_connect(context, SERVER_ID, &connection) < 0)
        return fail();
    r = talk(connection, line);
    if (r < 0)
        fail();
    ivc_close(connection);
    return r < 0;
}

int main(int argc, char **argv)
{
    char line[1024] = "";
    ivc_context *context;
    size_t used = 0;
    int r;

    if (argc < 3 || argv[1][0] == '-') {
        printf("usage: client GROUP WORDS...\n"
               "Sends the words to the server of the group (a number).\n");
        return argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) ? 0 : 2;
    }
    for (int i = 2; i < argc && used < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", argv[i],
                                 i + 1 < argc ? " " : "\n");
    if (used >= sizeof line) {
        fprintf(stderr, "client: more than %zu bytes of words; send fewer\n", sizeof line - 1);
        return 2;
    }
    if (join(strtoull(argv[1], NULL, 0), &context) < 0)
        return fail();
    r = run(context, line);
    ivc_deregister(context);
    return r;
}
