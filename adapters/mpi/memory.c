/*
 * The region's memory for an MPI program.
 *
 * The process becomes a member of the region when it first asks for memory: a member of its own,
 * beside the provider's, which recognises the memory by itself (src/region/locate.c).
 *
 * Invariants.  The mapping stays until the process ends, because programs may touch what they should
 * have freed.  For the same reason a process that still has memory at its end does not leave: others
 * find it dead.  A quarter of the region stays free, so that messages have room.
 */
#include "internal.h"

#include "base/error.h"
#include "base/util.h"
#include "region/region.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* "ivc-mem" */
#define GROUP 0x6d656d2d637669ull

static struct {
    pthread_mutex_t lock;
    struct ivc_region *region;
    pid_t owner;                /* a child of fork() has the mapping, but is no member */
    bool tried;
    uint64_t pieces, bytes, refused;
    char reason[512];           /* of the last refusal */
} memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *refuse(const char *reason)
{
    memory.refused++;
    if (reason != memory.reason)
        snprintf(memory.reason, sizeof memory.reason, "%s", reason);
    return NULL;
}

/* Once: a region that is not there at the first window is not there for the job. */
static void open_region(void)
{
    struct ivc_identity identity = { .magic_id = GROUP };
    struct ivc_region_info info;
    struct ivc_region *region;

    memory.tried = true;
    memory.owner = getpid();
    identity.client_id = (uint32_t)memory.owner;
    if (ivc_region_open(NULL, &region) != 0) {
        snprintf(memory.reason, sizeof memory.reason, "%s", ivc_error_text());
        return;
    }
    ivc_region_info(region, &info);
    if (!info.speed.cached)
        snprintf(memory.reason, sizeof memory.reason, "region %s is mapped uncached, %.0f ns for each "
                 "load", info.name, info.speed.read_ns);
    else if (ivc_region_join(region, &identity) != 0)
        snprintf(memory.reason, sizeof memory.reason, "%s", ivc_error_text());
    else
        memory.region = region;
    if (!memory.region)
        ivc_region_free(region);
}

static bool is_room(size_t size)
{
    uint64_t all = ivc_region_size(memory.region), reserve = all / 4;

    if (size > all - reserve)
        return false;
    while (ivc_region_free_bytes(memory.region) < size + reserve)
        if (!ivc_region_wait_for_memory(memory.region))
            return false;
    return true;
}

static void *take(size_t size)
{
    void *piece;

    if (!memory.tried)
        open_region();
    if (!memory.region || getpid() != memory.owner)
        return refuse(memory.region ? "a child of fork()" : memory.reason);
    if (!is_room(size))
        return refuse("the region has no room for it beside the quarter that is kept for messages");
    if (ivc_region_lend(memory.region, size, &piece) != 0)
        return refuse(ivc_error_text());
    memory.pieces++;
    memory.bytes += size;
    return piece;
}

void *mpi_memory_take(size_t size)
{
    void *piece;

    pthread_mutex_lock(&memory.lock);
    piece = take(size);
    pthread_mutex_unlock(&memory.lock);
    return piece;
}

bool mpi_memory_put(void *piece)
{
    bool ours;

    pthread_mutex_lock(&memory.lock);
    ours = memory.region && getpid() == memory.owner
           && ivc_region_take_back(memory.region, piece) == 0;
    pthread_mutex_unlock(&memory.lock);
    return ours;
}

static void say(void)
{
    const char *value = getenv("IVC_STATS");
    char host[65] = "";

    if (!value || strcmp(value, "1") != 0 || memory.pieces + memory.refused == 0)
        return;
    gethostname(host, sizeof host - 1);
    fprintf(stderr, "ivc: process %d on host %s: memory for MPI: %" PRIu64 " pieces %" PRIu64
            " bytes in the region, %" PRIu64 " pieces elsewhere%s%s\n", (int)memory.owner, host,
            memory.pieces, memory.bytes, memory.refused, memory.refused ? ": " : "",
            memory.refused ? memory.reason : "");
}

__attribute__((destructor)) static void leave(void)
{
    if (!memory.tried || getpid() != memory.owner)
        return;
    say();
    if (memory.region && ivc_region_lent_pieces(memory.region) == 0)
        ivc_region_leave(memory.region);
}
