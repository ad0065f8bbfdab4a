/*
 * Latency and stream bandwidth through libivc's public interface, between two processes of this
 * host (the default: both sides are forked and pinned) or of two guests (--role in each).  What is
 * measured, and how, is in duplex.h.
 */
#include "stream.h"
#include "duplex.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVER = 1, CLIENT = 2 };

static struct {
    const char *role, *region;
    int cpus[2];
    size_t magic, ring, segment;
} options = { .cpus = { 0, 1 } };

static ivc_connection *connection;

static void duplex_put(const void *bytes, size_t len)
{
    put(connection, bytes, len);
}

/* A tight loop, as put(). */
static void duplex_get(void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ptrdiff_t n = ivc_read(connection, (char *)bytes + done, len - done);

        if (n < 0)
            fail("read", n);
        done += (size_t)n;
    }
}

static ivc_context *join(uint32_t id)
{
    struct ivc_options with = {
        .size = sizeof(with), .region = options.region,
        .ring_size = (uint32_t)options.ring, .segment_size = (uint32_t)options.segment,
    };
    ivc_context *context;
    int error = ivc_register_with(options.magic, id, &with, &context);

    if (error < 0)
        fail("cannot join the region", error);
    return context;
}

static void server(void)
{
    ivc_context *context = join(SERVER);
    int error = ivc_accept_wait(context, DUPLEX_PATIENCE_MS, &connection);

    if (error < 0)
        fail("no client came", error);
    duplex_serve();
    ivc_close(connection);
    ivc_deregister(context);
}

static void client(const size_t *sizes, int n)
{
    ivc_context *context = join(CLIENT);
    int error = ivc_wait_host(context, SERVER, DUPLEX_PATIENCE_MS);
    char extra[160];

    if (error < 0)
        fail("the server is not there", error);
    error = ivc_connect(context, SERVER, &connection);
    if (error < 0)
        fail("cannot connect", error);
    snprintf(extra, sizeof(extra), ",\"library\":\"libivc %.32s\",\"window\":%zu", ivc_version(),
             duplex.window);
    duplex_drive("bench_libivc", extra, sizes, n);
    ivc_close(connection);
    ivc_deregister(context);
}

/* Both sides here.  Forked before either registers: a registration does not survive a fork. */
static int both(const size_t *sizes, int n)
{
    pid_t parent = getpid(), child;
    int status;

    bench_pin_or_exit(options.cpus[1]);     /* first here, so that the child cannot fail at it alone */
    child = fork();
    if (child < 0)
        fail("fork", -errno);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            return 1;
        server();
        return 0;
    }
    bench_pin_or_exit(options.cpus[0]);
    bench_clock_open();
    client(sizes, n);
    waitpid(child, &status, 0);
    return status ? 1 : 0;
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_libivc [--test latency,bandwidth] [--sizes 8-4M] [--cpus A,B]\n"
            "                    [--seconds S] [--iterations N] [--warmup N] [--window N]\n"
            "                    [--region PATH] [--ring BYTES] [--segment BYTES]\n"
            "                    [--role server|client] [--magic N]\n"
            "Without --role both sides run here, pinned to the two processors. With it, start\n"
            "the server in one guest and the client in another, with the same --magic; the\n"
            "client prints. One JSON line per test and size.\n");
    return code;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        DUPLEX_OPTIONS,
        { "cpus", required_argument, NULL, 'c' }, { "role", required_argument, NULL, 'r' },
        { "magic", required_argument, NULL, 'm' }, { "region", required_argument, NULL, 'p' },
        { "ring", required_argument, NULL, 'g' }, { "segment", required_argument, NULL, 'e' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    static const struct duplex_number numbers[] = {
        { 'm', &options.magic, 1, SIZE_MAX >> 1 },
        { 'g', &options.ring, 1, UINT32_MAX },
        { 'e', &options.segment, 1, UINT32_MAX },
    };
    size_t sizes[BENCH_SIZES_MAX];
    int c, n;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(0);
        else if (c == 'p')
            options.region = optarg;
        else if (c == 'r')
            options.role = optarg;
        else if (c == 'c' && !bench_parse_cpus(optarg, options.cpus))
            continue;
        else if (c == '?' || (!duplex_parse(c, optarg) && !duplex_parse_number(numbers, 3, c, optarg)))
            return usage(2);
    }
    n = bench_parse_sizes(duplex.sizes, sizes, BENCH_SIZES_MAX);
    if (n < 0) {
        fprintf(stderr, "bench_libivc: --sizes %s: not sizes such as 8,64K or 8-4M\n", duplex.sizes);
        return 2;
    }
    if (!options.magic)     /* two runs at once in one region must not meet */
        options.magic = options.role ? 0x62656e6368 : (size_t)getpid() << 20 | 0x62656;
    if (!options.role)
        return both(sizes, n);
    bench_clock_open();
    if (!strcmp(options.role, "server"))
        server();
    else if (!strcmp(options.role, "client"))
        client(sizes, n);
    else
        return usage(2);
    return 0;
}
