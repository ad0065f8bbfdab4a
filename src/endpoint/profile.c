/*
 * Profile: counters for each peer, and the thread that writes them.  See profile.h.
 *
 * Invariants.  A counter only grows.  Whoever counts has made the peer's counters before; the thread reads them at any
 * moment, so that messages and bytes of one line may be of two moments a few nanoseconds apart, and those of the last
 * line are exact.  The file and what was written to it are the thread's own.
 */
#include "endpoint/profile.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/launcher.h"
#include "base/stats.h"
#include "base/util.h"
#include "endpoint/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    SAMPLE_MS = 500,
    PATHS = 2,                  /* enum ivc_path */
    /* By powers of two: none, 1, 2, 3 to 4, ... up to what a size can be. */
    CLASSES = 1 + 1 + 64,
};

static const char *const path_names[PATHS] = { [IVC_PATH_MEMORY] = "memory", [IVC_PATH_NETWORK] = "network" };

static const char *const reason_names[] = {
    [IVC_PATH_REASON_SHARED] = "memory",
    [IVC_PATH_REASON_NO_REGION_HERE] = "no region here",
    [IVC_PATH_REASON_NO_REGION_THERE] = "no region there",
    [IVC_PATH_REASON_OTHER_REGION] = "other region",
    [IVC_PATH_REASON_AWAY] = "moved",
    [IVC_PATH_REASON_GONE] = "left or died",
    [IVC_PATH_REASON_FOREIGN] = "no address of ours",
};

struct messages {
    ivc_atomic_u64 messages[CLASSES], bytes[CLASSES];
};

/* What is counted of one peer. */
struct ivc_traffic {
    struct messages sent[PATHS], received[PATHS];
    ivc_atomic_u64 operations[PATHS], operation_bytes[PATHS];
    ivc_atomic_u32 last_path;       /* enum ivc_path, of what was counted last */

    /* The thread's own: what it has written. */
    uint64_t told;                  /* all events */
    bool due, look;                 /* it has changed; what follows has, too */
    bool known, has_rank;           /* what follows is; the rank is */
    uint32_t rank;
    enum ivc_path path;
    enum ivc_path_reason reason;
    char host[sizeof((struct ivc_member *)0)->host];
};

struct ivc_profile {
    struct ivc_endpoint *endpoint;
    struct ivc_profile_options options;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;                      /* under lock */

    /* The thread's own. */
    struct ivc_stats_file file;
    struct ivc_stats_line line;
    unsigned n_put;                 /* peers in the line */
    bool due, look;                 /* of some peer: struct ivc_traffic */
};

/* ---------------------------------------------------------------- counting */

static struct ivc_traffic *traffic_new(struct ivc_peer *peer)
{
    struct ivc_traffic *fresh = calloc(1, sizeof *fresh), *there = NULL;

    if (!fresh)
        return NULL;    /* what is not counted harms nobody */
    /* Release: pairs with the acquire in traffic_of(); the zeros are visible.  Acquire: as there. */
    if (atomic_compare_exchange_strong_explicit(&peer->traffic, &there, fresh, memory_order_acq_rel,
                                                memory_order_acquire))
        return fresh;
    free(fresh);
    return there;
}

/* Acquire: pairs with the release in traffic_new(). */
static struct ivc_traffic *traffic_of(struct ivc_peer *peer)
{
    struct ivc_traffic *traffic = ivc_load_acquire(&peer->traffic);

    return traffic ? traffic : traffic_new(peer);
}

/* Relaxed: a counter publishes nothing but itself.  One thread writes it unless several send. */
static inline void add(ivc_atomic_u64 *counter, uint64_t n, bool shared)
{
    if (shared)
        atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
    else
        ivc_store_relaxed(counter, ivc_load_relaxed(counter) + n);
}

/* 0 bytes, then k + 1 for 2^(k-1) < len <= 2^k. */
static unsigned class_of(uint64_t len)
{
    return len <= 1 ? (unsigned)len : 65 - (unsigned)__builtin_clzll(len - 1);
}

static void count(struct messages *messages, size_t len, bool shared)
{
    unsigned class = class_of(len);

    add(&messages->messages[class], 1, shared);
    add(&messages->bytes[class], len, shared);
}

void ivc_profile_sent(struct ivc_profile *profile, struct ivc_peer *peer, enum ivc_path path, size_t len)
{
    struct ivc_traffic *traffic = traffic_of(peer);

    if (!traffic)
        return;
    count(&traffic->sent[path], len, profile->options.threads);
    ivc_store_relaxed(&traffic->last_path, path);   /* for people */
}

void ivc_profile_received(struct ivc_profile *profile, struct ivc_peer *peer, size_t len)
{
    struct ivc_traffic *traffic = traffic_of(peer);
    enum ivc_path path = ivc_peer_path(peer);

    (void)profile;
    if (!traffic)
        return;
    count(&traffic->received[path], len, false);
    ivc_store_relaxed(&traffic->last_path, path);
}

void ivc_profile_onesided(struct ivc_profile *profile, struct ivc_peer *peer, size_t len)
{
    struct ivc_traffic *traffic = traffic_of(peer);
    enum ivc_path path = ivc_peer_path(peer);

    if (!traffic)
        return;
    add(&traffic->operations[path], 1, profile->options.threads);
    add(&traffic->operation_bytes[path], len, profile->options.threads);
    ivc_store_relaxed(&traffic->last_path, path);
}

/* ---------------------------------------------------------------- lines */

static void put_classes(FILE *to, const char *name, const ivc_atomic_u64 *counters)
{
    const char *between = "";

    fprintf(to, "\"%s\": {", name);
    for (int class = 0; class < CLASSES; class++) {
        uint64_t n = ivc_load_relaxed(&counters[class]);

        if (n == 0)
            continue;
        fprintf(to, "%s\"%d\": %" PRIu64, between, class - 1, n);
        between = ", ";
    }
    fputc('}', to);
}

static void put_messages(FILE *to, const char *name, const struct messages messages[PATHS])
{
    fprintf(to, ", \"%s\": {", name);
    for (unsigned path = 0; path < PATHS; path++) {
        fprintf(to, "%s\"%s\": {", path > 0 ? ", " : "", path_names[path]);
        put_classes(to, "messages", messages[path].messages);
        fputs(", ", to);
        put_classes(to, "bytes", messages[path].bytes);
        fputc('}', to);
    }
    fputc('}', to);
}

static void put_onesided(FILE *to, const struct ivc_traffic *traffic)
{
    fputs(", \"onesided\": {", to);
    for (unsigned path = 0; path < PATHS; path++)
        fprintf(to, "%s\"%s\": {\"operations\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", path > 0 ? ", " : "",
                path_names[path], ivc_load_relaxed(&traffic->operations[path]),
                ivc_load_relaxed(&traffic->operation_bytes[path]));
    fputc('}', to);
}

static void put_why(FILE *to, const struct ivc_profile *profile, const struct ivc_traffic *traffic)
{
    char text[400];

    if (traffic->path == IVC_PATH_MEMORY) {
        fputs("null", to);
        return;
    }
    snprintf(text, sizeof text, "%s%s%s", reason_names[traffic->reason],
             traffic->reason == IVC_PATH_REASON_NO_REGION_HERE ? ": " : "",
             traffic->reason == IVC_PATH_REASON_NO_REGION_HERE ? profile->endpoint->no_region : "");
    ivc_stats_put_string(to, text);
}

static void put_rank(FILE *to, bool has_rank, uint32_t rank)
{
    fputs(", \"rank\": ", to);
    if (has_rank)
        fprintf(to, "%" PRIu32, rank);
    else
        fputs("null", to);
}

static void put_peer(FILE *to, const struct ivc_profile *profile, const struct ivc_peer *peer,
                     const struct ivc_traffic *traffic)
{
    fprintf(to, "{\"endpoint\": \"%016" PRIx64 "\"", ivc_peer_id(peer));
    put_rank(to, traffic->has_rank, traffic->rank);
    fputs(", \"host\": ", to);
    ivc_stats_put_string(to, traffic->host);
    fprintf(to, ", \"path\": \"%s\", \"why\": ", path_names[traffic->path]);
    put_why(to, profile, traffic);
    put_messages(to, "sent", traffic->sent);
    put_messages(to, "received", traffic->received);
    put_onesided(to, traffic);
    fputc('}', to);
}

/* ---------------------------------------------------------------- samples */

static uint64_t events_of(const struct messages messages[PATHS])
{
    uint64_t n = 0;

    for (unsigned path = 0; path < PATHS; path++)
        for (unsigned class = 0; class < CLASSES; class++)
            n += ivc_load_relaxed(&messages[path].messages[class]);
    return n;
}

static uint64_t all_events(const struct ivc_traffic *traffic)
{
    return events_of(traffic->sent) + events_of(traffic->received)
           + ivc_load_relaxed(&traffic->operations[IVC_PATH_MEMORY])
           + ivc_load_relaxed(&traffic->operations[IVC_PATH_NETWORK]);
}

/* Of one that has left: that on which it was when something was counted. */
static enum ivc_path path_of(const struct ivc_peer *peer, const struct ivc_traffic *traffic)
{
    return ivc_peer_is_gone(peer) ? (enum ivc_path)ivc_load_relaxed(&traffic->last_path) : ivc_peer_path(peer);
}

/* Whether there is something to write about the peer, and to be looked up before. */
static void mark(struct ivc_profile *profile, const struct ivc_peer *peer, struct ivc_traffic *traffic)
{
    uint64_t events = all_events(traffic);
    bool moved = traffic->known && traffic->path != path_of(peer, traffic);

    traffic->due = moved || events != traffic->told;
    traffic->look = moved || (traffic->due && !traffic->known);
    traffic->told = events;
    profile->look |= traffic->look;
    profile->due |= traffic->due;
}

static void look_at_path(struct ivc_profile *profile, const struct ivc_peer *peer, struct ivc_traffic *traffic)
{
    char text[480];

    if (!traffic->look)
        return;
    traffic->path = path_of(peer, traffic);
    traffic->reason = ivc_peer_path_reason(profile->endpoint, peer, text, sizeof text);
    snprintf(traffic->host, sizeof traffic->host, "%s", ivc_peer_host(peer));
    traffic->has_rank = profile->options.rank_of && profile->options.rank_of(peer, &traffic->rank);
    traffic->known = true;
}

static void put_if_due(struct ivc_profile *profile, const struct ivc_peer *peer, struct ivc_traffic *traffic)
{
    if (!traffic->due)
        return;
    if (profile->n_put++ > 0)
        fputs(", ", profile->line.to);
    put_peer(profile->line.to, profile, peer, traffic);
}

/* All of which something was counted. */
static void each_peer(struct ivc_profile *profile,
                      void (*fn)(struct ivc_profile *, const struct ivc_peer *, struct ivc_traffic *))
{
    for (unsigned i = 0; i < IVC_PEER_BUCKETS; i++) {
        /* Acquire: pairs with the release in ivc_peer_publish(); the next one with that in traffic_new(). */
        for (struct ivc_peer *peer = ivc_load_acquire(&profile->endpoint->by_id[i]); peer; peer = peer->next) {
            struct ivc_traffic *traffic = ivc_load_acquire(&peer->traffic);

            if (traffic)
                fn(profile, peer, traffic);
        }
    }
}

/* What a path hangs on changes under the exclusion of the endpoint, so it is read there: seldom, and for all at once. */
static void look_at_paths(struct ivc_profile *profile)
{
    ivc_endpoint_stop(profile->endpoint);
    each_peer(profile, look_at_path);
    ivc_endpoint_go_on(profile->endpoint);
}

static void sample(struct ivc_profile *profile)
{
    struct ivc_stats_line *line = &profile->line;

    profile->due = profile->look = false;
    each_peer(profile, mark);
    if (!profile->due || profile->file.failed)
        return;
    if (profile->look)
        look_at_paths(profile);
    if (!ivc_stats_line_begin(line))
        return;
    fprintf(line->to, "{\"t\": %.3f, \"peers\": [", ivc_stats_file_seconds(&profile->file));
    profile->n_put = 0;
    each_peer(profile, put_if_due);
    fputs("]}\n", line->to);
    ivc_stats_file_write(&profile->file, line);
}

static void *run(void *arg)
{
    struct ivc_profile *profile = arg;

    prctl(PR_SET_NAME, "ivc-profile");
    while (!ivc_wait_for_flag(&profile->wake, &profile->lock, &profile->stop, SAMPLE_MS))
        sample(profile);
    sample(profile);
    return NULL;
}

/* ---------------------------------------------------------------- opening and closing */

static int file_open(struct ivc_profile *profile)
{
    struct ivc_endpoint *endpoint = profile->endpoint;
    struct ivc_stats_line head;
    uint32_t rank = 0;
    bool has_rank = ivc_launcher_rank(&rank);

    if (!ivc_stats_line_begin(&head))
        return ivc_error_set(-ENOMEM, "profile: out of memory");
    fprintf(head.to, "{\"ivc\": \"transport\", \"version\": 1, \"adapter\": \"%s\", \"endpoint\": \"%016" PRIx64
            "\", \"region\": ", profile->options.adapter, endpoint->id);
    /* The helper may be moving us already. */
    ivc_endpoint_lock(endpoint);
    ivc_stats_put_string(head.to, endpoint->home.region ? endpoint->home.info.uuid : NULL);
    ivc_endpoint_unlock(endpoint);
    put_rank(head.to, has_rank, rank);
    return ivc_stats_file_open(&profile->file, ".jsonl", true, &head);
}

static int thread_start(struct ivc_profile *profile)
{
    int r;

    pthread_mutex_init(&profile->lock, NULL);
    ivc_cond_init(&profile->wake);
    r = ivc_thread_start(&profile->thread, run, profile);
    return r == 0 ? 0 : ivc_error_set(-r, "IVC_STATS=json:DIR: a thread that writes: %s", strerror(r));
}

static void profile_free(struct ivc_profile *profile)
{
    pthread_cond_destroy(&profile->wake);
    pthread_mutex_destroy(&profile->lock);
    ivc_stats_file_end(&profile->file);
    free(profile);
}

int ivc_profile_open(struct ivc_endpoint *endpoint, const struct ivc_profile_options *options,
                     struct ivc_profile **ret_profile)
{
    struct ivc_profile *profile = calloc(1, sizeof *profile);
    int r;

    if (!profile)
        return ivc_error_set(-ENOMEM, "profile: out of memory");
    profile->endpoint = endpoint;
    profile->options = *options;
    r = file_open(profile);
    if (r < 0) {
        free(profile);
        return r;
    }
    r = thread_start(profile);
    if (r < 0) {
        profile_free(profile);
        return r;
    }
    *ret_profile = profile;
    return 0;
}

void ivc_profile_close(struct ivc_profile *profile)
{
    if (!profile)
        return;
    ivc_set_flag(&profile->wake, &profile->lock, &profile->stop);
    pthread_join(profile->thread, NULL);
    profile_free(profile);
}
