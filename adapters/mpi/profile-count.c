/*
 * Counters, and the thread that writes them: see profile.h.
 *
 * Each thread of the program has counters of its own, so that counting is a plain addition, whatever other threads do.
 * They are made once and stay, also when the thread has ended.  Relaxed, all of them: a counter publishes nothing but
 * itself, and its thread alone writes it.
 */
#include "profile.h"

#include "base/atomics.h"
#include "base/chain.h"
#include "base/error.h"
#include "base/stats.h"
#include "base/util.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

enum { SAMPLE_MS = 1000 };

static const char *const names[] = {
#define LARGE CALL
#define CALL(name, ...) "MPI_" #name,
#include "profile-calls.h"
#undef CALL
#undef LARGE
};

struct sent {
    ivc_atomic_u64 messages, bytes;
};

struct counters {
    struct counters *next;
    ivc_atomic_u64 calls[PROFILE_CALLS], cycles[PROFILE_CALLS], bytes[PROFILE_CALLS];
    struct sent sent[];         /* to each rank, and to others */
};

static struct {
    ivc_atomic_u32 on;
    int size;
    struct counters *_Atomic all;
    uint64_t begin_cycles;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;                  /* under lock */
    struct ivc_stats_file file; /* the thread's own */
    uint64_t told;              /* likewise: calls that were written */
} profile = { .lock = PTHREAD_MUTEX_INITIALIZER };

static __thread struct counters *own;

/* ---------------------------------------------------------------- counting */

static struct counters *make_own(void)
{
    struct counters *fresh = calloc(1, sizeof *fresh + ((size_t)profile.size + 1) * sizeof fresh->sent[0]);

    if (!fresh)
        return NULL;        /* what is not counted harms nobody */
    own = fresh;
    fresh->next = ivc_load_relaxed(&profile.all);
    /* Release: pairs with the acquire in sum(); the zeros and `next` are visible. */
    while (!atomic_compare_exchange_weak_explicit(&profile.all, &fresh->next, fresh, memory_order_release,
                                                  memory_order_relaxed))
        ;
    return fresh;
}

static inline struct counters *counters(void)
{
    return own ? own : make_own();
}

static inline void add(ivc_atomic_u64 *counter, uint64_t n)
{
    ivc_store_relaxed(counter, ivc_load_relaxed(counter) + n);
}

/* Acquire: pairs with the release in profile_count_begin(); the size is visible. */
bool profile_count_is_on(void)
{
    return ivc_load_acquire(&profile.on) != 0;
}

void profile_count_call(enum profile_call call, uint64_t cycles)
{
    struct counters *c = counters();

    if (!c)
        return;
    add(&c->calls[call], 1);
    add(&c->cycles[call], cycles);
}

void profile_count_bytes(enum profile_call call, uint64_t bytes)
{
    struct counters *c = counters();

    if (c)
        add(&c->bytes[call], bytes);
}

void profile_count_sent(int to, uint64_t bytes)
{
    struct counters *c = counters();
    struct sent *sent = c ? &c->sent[to >= 0 && to < profile.size ? to : profile.size] : NULL;

    if (!sent)
        return;
    add(&sent->messages, 1);
    add(&sent->bytes, bytes);
}

/* ---------------------------------------------------------------- writing */

/* All threads' counters at that place of the structure. */
static uint64_t sum(size_t place)
{
    uint64_t n = 0;

    for (struct counters *c = ivc_load_acquire(&profile.all); c; c = c->next)
        n += ivc_load_relaxed((ivc_atomic_u64 *)(void *)((char *)c + place));
    return n;
}

static uint64_t sum_all(size_t array)
{
    uint64_t n = 0;

    for (size_t i = 0; i < PROFILE_CALLS; i++)
        n += sum(array + i * sizeof(ivc_atomic_u64));
    return n;
}

/* Seconds of a cycle, by what went by since the beginning. */
static double cycle_seconds(double seconds)
{
    uint64_t cycles = ivc_cycles() - profile.begin_cycles;

    return cycles > 0 ? seconds / (double)cycles : 0;
}

static void put_calls(FILE *to, double cycle)
{
    const char *between = "";

    for (size_t i = 0; i < PROFILE_CALLS; i++) {
        size_t at = i * sizeof(ivc_atomic_u64);
        uint64_t n = sum(offsetof(struct counters, calls) + at);

        if (n == 0)
            continue;
        fprintf(to, "%s\"%s\": {\"calls\": %" PRIu64 ", \"seconds\": %.9f, \"bytes\": %" PRIu64 "}", between, names[i], n,
                (double)sum(offsetof(struct counters, cycles) + at) * cycle, sum(offsetof(struct counters, bytes) + at));
        between = ", ";
    }
}

static void put_sent(FILE *to)
{
    const char *between = "";

    for (int rank = 0; rank <= profile.size; rank++) {
        size_t at = offsetof(struct counters, sent) + (size_t)rank * sizeof(struct sent);
        uint64_t n = sum(at + offsetof(struct sent, messages));
        char key[16] = "other";

        if (n == 0)
            continue;
        if (rank < profile.size)
            snprintf(key, sizeof key, "%d", rank);
        fprintf(to, "%s\"%s\": {\"messages\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", between, key, n,
                sum(at + offsetof(struct sent, bytes)));
        between = ", ";
    }
}

static void sample(bool last)
{
    uint64_t calls = sum_all(offsetof(struct counters, calls));
    struct ivc_stats_line line;
    double t, cycle;

    if ((calls == profile.told && !last) || profile.file.failed || !ivc_stats_line_begin(&line))
        return;
    profile.told = calls;
    t = ivc_stats_file_seconds(&profile.file);
    cycle = cycle_seconds(t);
    fprintf(line.to, "{\"t\": %.3f, \"time\": %.6f, \"in_mpi\": %.6f, \"calls\": {", t, t,
            (double)sum_all(offsetof(struct counters, cycles)) * cycle);
    put_calls(line.to, cycle);
    fputs("}, \"sent\": {", line.to);
    put_sent(line.to);
    fputs("}}\n", line.to);
    ivc_stats_file_write(&profile.file, &line);
}

static void *run(void *arg)
{
    (void)arg;
    prctl(PR_SET_NAME, "ivc-profile");
    while (!ivc_wait_for_flag(&profile.wake, &profile.lock, &profile.stop, SAMPLE_MS))
        sample(false);
    sample(true);
    return NULL;
}

/* ---------------------------------------------------------------- beginning and end */

/* An MPI says in several lines what it is: the first. */
static void put_version(FILE *to, const char *version)
{
    char text[160];
    size_t n = 0;

    for (const char *c = version; *c && *c != '\n' && n + 1 < sizeof text; c++)
        if (!isspace((unsigned char)*c))
            text[n++] = *c;
        else if (n > 0 && text[n - 1] != ' ')
            text[n++] = ' ';
    text[n] = '\0';
    ivc_stats_put_string(to, text);
}

static int file_open(int rank, int size, const char *version)
{
    struct ivc_stats_line head;

    if (!ivc_stats_line_begin(&head))
        return ivc_error_set(-ENOMEM, "IVC_STATS=json:DIR: out of memory");
    fprintf(head.to, "{\"ivc\": \"mpi\", \"version\": 1, \"rank\": %d, \"size\": %d, \"mpi\": ", rank, size);
    put_version(head.to, version);
    return ivc_stats_file_open(&profile.file, ".mpi.jsonl", false, &head);
}

bool profile_count_begin(int rank, int size, const char *version)
{
    int r;

    if (!ivc_stats_are_written())
        return false;
    profile.size = size;
    r = file_open(rank, size, version);
    if (r < 0) {
        fprintf(stderr, "ivc: libivc-profile.so: %s\n", ivc_error_text());
        return false;
    }
    profile.begin_cycles = ivc_cycles();
    ivc_cond_init(&profile.wake);
    r = ivc_thread_start(&profile.thread, run, NULL);
    if (r != 0) {
        fprintf(stderr, "ivc: libivc-profile.so: a thread that writes: %s\n", strerror(r));
        ivc_stats_file_end(&profile.file);
        return false;
    }
    /* Release: pairs with the acquire in profile_count_is_on(). */
    ivc_store_release(&profile.on, 1);
    return true;
}

void profile_count_end(void)
{
    if (!profile_count_is_on())
        return;
    ivc_store_relaxed(&profile.on, 0);      /* no other call of MPI is under way in MPI_Finalize() */
    ivc_set_flag(&profile.wake, &profile.lock, &profile.stop);
    pthread_join(profile.thread, NULL);
    ivc_stats_file_end(&profile.file);
}
