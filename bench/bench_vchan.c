/*
 * Latency and stream bandwidth through libxenvchan, the library of pairwise channels that comes with
 * Xen, between two of its guests: the server in one, the client in the other.  What is measured, and
 * how, is in duplex.h; what libxenvchan leaves to its user can be chosen, and is what was found
 * fastest unless it is:
 *
 *     --wait poll   calls that do not block, in a tight loop
 *     --wait block  calls that sleep in libxenvchan_wait() until there is something
 *     --wait look   as poll, but the library is called only when the ring's own indices, which its
 *                   header shows, say that it can do something: whoever calls it in vain asks the
 *                   other side for an event, which is a system call of that side
 *     --ring        bytes of the ring of each direction, at most 1 MiB
 *     --piece       bytes that one call moves at most: smaller ones let both sides copy at once
 */
#include "duplex.h"

#include <libxenvchan.h>

#include <unistd.h>

enum { RING_MAX = 1 << 20 };    /* its references have to fit into the page that both share */

static struct {
    const char *role, *wait, *path;
    size_t domain, ring, piece;
} options = { .wait = "poll", .path = "data/bench-vchan", .ring = RING_MAX, .piece = 256 << 10 };

static struct libxenvchan *channel;
static bool looks;

static void fail(const char *what, long code)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
            code ? strerror((int)-code) : "refused, or the other side is gone");
    exit(1);
}

static inline size_t piece(size_t left)
{
    return left < options.piece ? left : options.piece;
}

/* Waits until one index of a ring differs from the other by something else than `same`. */
static inline void look(const struct libxenvchan_ring *ring, uint32_t same)
{
    const uint32_t *producer = &ring->shr->prod, *consumer = &ring->shr->cons;

    /* Relaxed: the library reads them again, with its own barriers. */
    while (looks && libxenvchan_is_open(channel)
           && __atomic_load_n(producer, __ATOMIC_RELAXED) - __atomic_load_n(consumer, __ATOMIC_RELAXED) == same)
        ;
}

static void duplex_put(const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        int n;

        look(&channel->write, 1u << channel->write.order);
        n = libxenvchan_write(channel, (const char *)bytes + done, piece(len - done));
        if (n < 0)
            fail("write", 0);
        done += (size_t)n;
    }
}

static void duplex_get(void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        int n;

        look(&channel->read, 0);
        n = libxenvchan_read(channel, (char *)bytes + done, piece(len - done));
        if (n < 0)
            fail("read", 0);
        done += (size_t)n;
    }
}

enum { PAUSE_US = 20000 };

static void server(void)
{
    channel = libxenvchan_server_init(NULL, (int)options.domain, options.path, options.ring, options.ring);
    if (!channel)
        fail("cannot offer a channel (are /dev/xen/gntalloc and XenStore there?)", -errno);
    for (int ms = 0; libxenvchan_is_open(channel) == 2; ms += PAUSE_US / 1000) {
        if (ms > DUPLEX_PATIENCE_MS) {
            libxenvchan_close(channel);     /* takes its entry in XenStore away */
            fail("no client came", -ETIMEDOUT);
        }
        usleep(PAUSE_US);
    }
    channel->blocking = !strcmp(options.wait, "block");
    duplex_serve();
    libxenvchan_close(channel);
}

static void client(const size_t *sizes, int n)
{
    char path[256], extra[160];

    snprintf(path, sizeof(path), "/local/domain/%zu/%s", options.domain, options.path);
    for (int ms = 0; !channel; ms += PAUSE_US / 1000) {
        channel = libxenvchan_client_init(NULL, (int)options.domain, path);
        if (!channel && ms > DUPLEX_PATIENCE_MS)
            fail("the server is not there", -ETIMEDOUT);
        if (!channel)
            usleep(PAUSE_US);
    }
    channel->blocking = !strcmp(options.wait, "block");
    snprintf(extra, sizeof(extra),
             ",\"library\":\"libxenvchan\",\"window\":%zu,\"wait\":\"%s\",\"ring\":%zu,\"piece\":%zu",
             duplex.window, options.wait, (size_t)1 << channel->write.order, options.piece);
    duplex_drive("bench_vchan", extra, sizes, n);
    libxenvchan_close(channel);
}

static int usage(int code)
{
    fprintf(code ? stderr : stdout,
            "Usage: bench_vchan --role server|client --domain N [--path PATH]\n"
            "                   [--test latency,bandwidth] [--sizes 8-4M] [--seconds S]\n"
            "                   [--iterations N] [--warmup N] [--window N]\n"
            "                   [--wait poll|block|look] [--ring BYTES] [--piece BYTES]\n"
            "Start the server in one guest of Xen and the client in another: --domain is the other's,\n"
            "--path a node below the server's own in XenStore. The client prints. One JSON line per\n"
            "test and size. The ring is the server's to choose, up to 1M.\n");
    return code;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        DUPLEX_OPTIONS,
        { "role", required_argument, NULL, 'r' }, { "domain", required_argument, NULL, 'd' },
        { "path", required_argument, NULL, 'p' }, { "wait", required_argument, NULL, 'a' },
        { "ring", required_argument, NULL, 'g' }, { "piece", required_argument, NULL, 'e' },
        { "help", no_argument, NULL, 'h' }, { 0 },
    };
    static const struct duplex_number numbers[] = {
        { 'd', &options.domain, 0, 0x7fef },    /* Xen's own numbers begin beyond */
        { 'g', &options.ring, 1, RING_MAX },
        { 'e', &options.piece, 1, 1u << 30 },
    };
    size_t sizes[BENCH_SIZES_MAX];
    int c, n;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'h')
            return usage(0);
        else if (c == 'r')
            options.role = optarg;
        else if (c == 'p')
            options.path = optarg;
        else if (c == 'a' && bench_list_has("poll,block,look", optarg))
            options.wait = optarg;
        else if (c == '?' || (!duplex_parse(c, optarg) && !duplex_parse_number(numbers, 3, c, optarg)))
            return usage(2);
    }
    n = bench_parse_sizes(duplex.sizes, sizes, BENCH_SIZES_MAX);
    if (n < 0) {
        fprintf(stderr, "bench_vchan: --sizes %s: not sizes such as 8,64K or 8-4M\n", duplex.sizes);
        return 2;
    }
    looks = !strcmp(options.wait, "look");
    bench_clock_open();
    if (options.role && !strcmp(options.role, "server"))
        server();
    else if (options.role && !strcmp(options.role, "client"))
        client(sizes, n);
    else
        return usage(2);
    return 0;
}
