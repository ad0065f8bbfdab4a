/*
 * The region's memory for an MPI program.
 *
 * The process becomes a member of the region when it first asks for memory: a member of its own, an
 * endpoint that has no peers, beside the provider's, which recognises the memory by itself
 * (src/region/locate.c).  Its helper answers the host when the guest moves, after the provider's has:
 * the memory stays where it is, private from then on, and more is taken from the region of the new
 * host.
 *
 * Invariants.  What a program has not given back stays mapped until the process ends.  A process that
 * still has memory at its end does not leave: others find it dead.  A quarter of the region stays
 * free, so that messages have room.  If the region's memory is taken away the process ends: it would
 * compute with zeroes, and nobody else knows what it has kept there.
 */
#include "internal.h"

#include "base/error.h"
#include "base/stats.h"
#include "base/util.h"
#include "endpoint/endpoint.h"
#include "region/region.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* "ivc-mem" */
#define GROUP 0x6d656d2d637669ull

enum { LOOK_MS = 100, PATIENCE_MS = 1000 };    /* for memory of processes that have ended */

static struct {
    pthread_mutex_t lock;
    struct ivc_endpoint *endpoint;
    pid_t owner;                /* a child of fork() has the mapping, but is no member */
    bool tried;
    uint64_t pieces, bytes, refused, given;
    char reason[512];           /* of the last refusal */
} memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *refuse(const char *reason)
{
    memory.refused++;
    if (reason != memory.reason)
        snprintf(memory.reason, sizeof memory.reason, "%s", reason);
    return NULL;
}

/* Nobody sends to it; that it is told at all has its helper answer the host. */
static void on_parted(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

/* Once: a region that is not there at the first window is not there for the job. */
static void open_endpoint(void)
{
    struct ivc_endpoint_options options = {
        .magic_id = GROUP, .client_id = (uint32_t)getpid(), .threads = true,
        .on_parted = on_parted,
    };

    memory.tried = true;
    memory.owner = getpid();
    if (ivc_endpoint_open(&options, &memory.endpoint) != 0) {
        memory.endpoint = NULL;
        snprintf(memory.reason, sizeof memory.reason, "%s", ivc_error_text());
    }
}

/* How a request stands: it can be tried, or never, or later (memory of ended processes is coming). */
enum room { ROOM, NO_ROOM, ROOM_LATER };

static enum room find_room(struct ivc_region *region, size_t size)
{
    uint64_t all = ivc_region_size(region), reserve = all / 4;
    bool coming = ivc_region_memory_is_coming(region);
    struct ivc_region_info info;

    ivc_region_info(region, &info);
    if (!info.speed.cached) {
        snprintf(memory.reason, sizeof memory.reason, "region %s is mapped uncached, %.0f ns for each "
                 "load", info.name, info.speed.read_ns);
        return NO_ROOM;
    }
    if (size <= all - reserve && info.free_bytes >= size + reserve)
        return ROOM;
    snprintf(memory.reason, sizeof memory.reason, "the region has no room for it beside the quarter "
             "that is kept for messages");
    if (size > all - reserve || !(coming || ivc_region_memory_is_coming(region)))
        return NO_ROOM;
    ivc_region_look_at_members(region);
    return ROOM_LATER;
}

/* The helper must be able to leave while we wait: so each look is one of its own. */
static enum room look_for_room(size_t size)
{
    enum room room = NO_ROOM;
    struct ivc_region *region;

    ivc_endpoint_enter(memory.endpoint);
    region = ivc_endpoint_region(memory.endpoint);
    if (region && ivc_region_end_if_lent_lost(region) == 0)
        room = find_room(region, size);
    else if (region)
        snprintf(memory.reason, sizeof memory.reason, "%s", ivc_error_text());
    else
        snprintf(memory.reason, sizeof memory.reason, "this guest is between two hosts");
    ivc_endpoint_leave(memory.endpoint);
    return room;
}

static bool is_room(size_t size, unsigned patience_ms)
{
    uint64_t end = ivc_now_ms() + patience_ms;
    enum room room = look_for_room(size);

    while (room == ROOM_LATER && ivc_now_ms() < end) {
        ivc_sleep_ms(LOOK_MS);
        room = look_for_room(size);
    }
    return room == ROOM;
}

static void *take(size_t size, unsigned patience_ms)
{
    void *piece;

    if (!memory.tried)
        open_endpoint();
    if (!memory.endpoint || getpid() != memory.owner)
        return refuse(memory.endpoint ? "a child of fork()" : memory.reason);
    if (!is_room(size, patience_ms))
        return refuse(memory.reason);
    if (ivc_endpoint_lend(memory.endpoint, size, &piece) != 0)
        return refuse(ivc_error_text());
    memory.pieces++;
    memory.bytes += size;
    return piece;
}

static void *take_locked(size_t size, unsigned patience_ms)
{
    void *piece;

    pthread_mutex_lock(&memory.lock);
    piece = take(size, patience_ms);
    pthread_mutex_unlock(&memory.lock);
    return piece;
}

void *mpi_memory_take(size_t size)
{
    void *piece = take_locked(size, PATIENCE_MS);

    return piece ? memset(piece, 0, size) : NULL;
}

void *mpi_memory_take_now(size_t size)
{
    return take_locked(size, 0);
}

bool mpi_memory_put(void *piece)
{
    bool ours;

    pthread_mutex_lock(&memory.lock);
    ours = memory.endpoint && getpid() == memory.owner
           && ivc_endpoint_take_back(memory.endpoint, piece) == 0;
    memory.given += ours;
    pthread_mutex_unlock(&memory.lock);
    return ours;
}

uint32_t mpi_memory_residence(void)
{
    uint32_t number = 0;

    pthread_mutex_lock(&memory.lock);
    if (memory.endpoint && getpid() == memory.owner) {
        ivc_endpoint_enter(memory.endpoint);
        number = ivc_endpoint_residence(memory.endpoint);
        ivc_endpoint_leave(memory.endpoint);
    }
    pthread_mutex_unlock(&memory.lock);
    return number;
}

/* For the provider in this process: messages out of this memory are read in place. */
EXPORT ivc_find_lent_fn IVC_FIND_LENT;
bool IVC_FIND_LENT(const void *where, uint64_t size, struct ivc_lent_place *ret_place)
{
    return ivc_region_find_lent(where, size, RTLD_NEXT, ret_place);
}

static void say(void)
{
    char host[64];

    if (!ivc_stats_are_printed() || memory.pieces + memory.refused == 0)
        return;
    ivc_region_own_host(host);
    fprintf(stderr, "ivc: process %d on host %.64s: memory for MPI: %" PRIu64 " pieces %" PRIu64
            " bytes in the region, %" PRIu64 " pieces elsewhere%s%s\n", (int)memory.owner, host,
            memory.pieces, memory.bytes, memory.refused, memory.refused ? ": " : "",
            memory.refused ? memory.reason : "");
}

__attribute__((destructor)) static void leave(void)
{
    struct ivc_endpoint *endpoint = NULL;

    if (!memory.tried || getpid() != memory.owner)
        return;
    say();
    pthread_mutex_lock(&memory.lock);
    if (memory.given == memory.pieces) {
        endpoint = memory.endpoint;
        memory.endpoint = NULL;     /* for those who ask for memory at their own end, after ours */
        snprintf(memory.reason, sizeof memory.reason, "this process has left the region, at its end");
    }
    pthread_mutex_unlock(&memory.lock);
    ivc_endpoint_free(endpoint);
}
