/* Members: the directory's entries, as their owners write them and as others read them. */
#include "region/internal.h"

#include "base/error.h"
#include "base/util.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct ivc_layout_member *ivc_region_slot(const struct ivc_region *region, uint32_t slot)
{
    char *base = region->mapping.memory;

    return (struct ivc_layout_member *)(base + region->geometry.members) + slot;
}

/* What /proc/PID/stat says (proc(5)); all zero when it cannot be read. */
struct process {
    char state;             /* field 3 */
    uint64_t threads;       /* field 20 */
    uint64_t start;         /* field 22: clock ticks since boot */
};

static struct process process_read(uint32_t pid)
{
    struct process process = { 0 };
    char path[32], line[1024], *at;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (ivc_read_line(path, line, sizeof line) < 0)
        return process;
    at = strrchr(line, ')');    /* the name may hold blanks and parentheses */
    for (unsigned field = 2; at && (at = strchr(at, ' ')) != NULL && ++field <= 22; at++) {
        if (field == 3)
            process.state = at[1];
        else if (field == 20)
            process.threads = strtoull(at + 1, NULL, 10);
        else if (field == 22)
            process.start = strtoull(at + 1, NULL, 10);
    }
    return process;
}

static uint64_t pid_namespace(void)
{
    struct stat st;

    return stat("/proc/self/ns/pid", &st) < 0 ? 0 : (uint64_t)st.st_ino;
}

/* The kernel's random boot id: the identity of a running guest, kept by live migration. */
static void boot_id(uint8_t ret_id[16])
{
    char text[64] = "";
    unsigned n = 0;

    memset(ret_id, 0, 16);
    if (ivc_read_line("/proc/sys/kernel/random/boot_id", text, sizeof text) < 0
        && getrandom(ret_id, 16, 0) == 16)
        return;     /* unlike everybody's: then only heartbeats tell who lives */
    for (const char *at = text; *at && n < 32; at++) {
        if (!isxdigit((unsigned char)*at))
            continue;
        ret_id[n / 2] = (uint8_t)(ret_id[n / 2] << 4
                                  | (isdigit((unsigned char)*at) ? *at - '0' : (*at | 32) - 'a' + 10));
        n++;
    }
}

void ivc_member_describe_self(struct ivc_layout_member *ret_member)
{
    ret_member->pid = (uint32_t)getpid();
    ret_member->pid_start = process_read(ret_member->pid).start;
    ret_member->pid_namespace = pid_namespace();
    boot_id(ret_member->boot_id);
    memset(ret_member->host, 0, sizeof ret_member->host);
    gethostname(ret_member->host, sizeof ret_member->host - 1);
}

bool ivc_member_same_kernel(const struct ivc_region *region, const struct ivc_layout_member *member)
{
    const struct ivc_layout_member *own = &region->identity;

    return memcmp(member->boot_id, own->boot_id, sizeof own->boot_id) == 0
           && member->pid_namespace == own->pid_namespace;
}

bool ivc_member_process_exists(const struct ivc_layout_member *member)
{
    struct process process;

    if (kill((pid_t)member->pid, 0) < 0 && errno == ESRCH)
        return false;
    process = process_read(member->pid);
    /* Ended, and nobody has waited for it; with more threads, only the first one has ended. */
    if (process.state == 'X' || (process.state == 'Z' && process.threads <= 1))
        return false;
    return process.start == 0 || process.start == member->pid_start;
}

int ivc_region_member(const struct ivc_region *region, uint32_t slot, struct ivc_member *ret_member)
{
    const struct ivc_layout_member *entry;
    struct ivc_member member = { .slot = slot };
    uint64_t state;

    if (slot >= region->geometry.capacity)
        return ivc_error_set(-EINVAL, "member %u: the region has %u slots", slot,
                             region->geometry.capacity);
    entry = ivc_region_slot(region, slot);
    /* Acquire: pairs with the release of state in publish(); the fields are visible. */
    state = ivc_load_acquire(&entry->state);
    if (ivc_layout_phase(state) != IVC_PHASE_ACTIVE)
        return IVC_E_GONE;
    member.generation = ivc_layout_generation(state);
    member.magic_id = entry->magic_id;
    member.client_id = entry->client_id;
    member.pid = entry->pid;
    member.endpoint_id = entry->endpoint_id;
    memcpy(member.host, entry->host, sizeof entry->host);
    memcpy(member.boot_id, entry->boot_id, sizeof member.boot_id);
    member.same_kernel = region->joined && ivc_member_same_kernel(region, entry);
    /* The owner may have changed while we copied: then this is neither the one nor the other. */
    atomic_thread_fence(memory_order_acquire);
    if (ivc_load_relaxed(&entry->state) != state)
        return IVC_E_GONE;
    *ret_member = member;
    return 0;
}

int ivc_region_member_check(const struct ivc_region *region, uint32_t slot, uint32_t generation,
                            bool *ret_left)
{
    /* Acquire: pairs with the release of LEFT in ivc_region_leave(); all that was sent before is
     * visible to whoever then looks into the ring for the last time. */
    uint64_t state = ivc_load_acquire(&ivc_region_slot(region, slot)->state);

    if (state == ivc_layout_state(generation, IVC_PHASE_ACTIVE))
        return 0;
    *ret_left = state != ivc_layout_state(generation, IVC_PHASE_DEAD);
    return IVC_E_GONE;
}

bool ivc_region_is_evicted(const struct ivc_region *region)
{
    const struct ivc_layout_member *own = ivc_region_slot(region, region->self.slot);

    return ivc_load_relaxed(&own->state)
           != ivc_layout_state(region->self.generation, IVC_PHASE_ACTIVE);
}

static void publish(struct ivc_region *region, struct ivc_layout_member *entry)
{
    /* Release: pairs with the acquire in ivc_region_member(); the entry's fields are visible. */
    ivc_store_release(&entry->state, ivc_layout_state(region->self.generation, IVC_PHASE_ACTIVE));
    /* Before we look at the others: of two that join at once, one at least sees the other. */
    atomic_thread_fence(memory_order_seq_cst);
}

/* Takes the first free slot; -ENOSPC when there is none. */
static int take_slot(struct ivc_region *region)
{
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++) {
        struct ivc_layout_member *entry = ivc_region_slot(region, slot);
        uint64_t state = ivc_load_relaxed(&entry->state);   /* the swap decides */
        uint32_t generation = ivc_layout_generation(state) + 1;

        if (ivc_layout_phase(state) != IVC_PHASE_FREE)
            continue;
        generation += generation == 0;      /* 0 means "none" in link lines */
        if (!ivc_cas(&entry->state, state, ivc_layout_state(generation, IVC_PHASE_JOINING)))
            continue;
        /* Pairs with the acquire fence in ivc_region_member(): who sees our fields sees JOINING. */
        atomic_thread_fence(memory_order_release);
        region->self.slot = slot;
        region->self.generation = generation;
        return 0;
    }
    return -ENOSPC;
}

/* Looks at every slot once, closely: the dead of our own kernel are found at once. */
static void look_at_all(struct ivc_region *region)
{
    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        ivc_reclaim_look(region, slot, true);
    pthread_mutex_unlock(&region->lock);
}

bool ivc_region_wait_for_memory(struct ivc_region *region)
{
    uint64_t before = ivc_blocks_free_count(&region->blocks);

    for (unsigned waited = 0; waited < 3 * IVC_QUARANTINE_MS; waited += IVC_HEARTBEAT_MS) {
        if (!ivc_region_memory_is_coming(region))
            return false;
        ivc_sleep_ms(IVC_HEARTBEAT_MS);
        look_at_all(region);
        if (ivc_blocks_free_count(&region->blocks) > before)
            return true;
    }
    return false;
}

/* A full directory may hold dead members: wait as long as it takes to be sure. */
static int take_slot_patiently(struct ivc_region *region)
{
    uint64_t deadline = ivc_now_ms() + region->lease_ms + 2 * IVC_QUARANTINE_MS;

    do {
        look_at_all(region);
        if (take_slot(region) == 0)
            return 0;
        ivc_sleep_ms(IVC_HEARTBEAT_MS);
    } while (ivc_now_ms() < deadline);
    return ivc_error_set(-ENOSPC, "region %s: its directory is full, %u living members; end some, or "
                         "use a larger region (256 KiB for each process)", region->name,
                         region->geometry.capacity);
}

static void fill_entry(struct ivc_region *region, uint64_t magic_id, uint32_t client_id)
{
    struct ivc_layout_member *entry = ivc_region_slot(region, region->self.slot);

    ivc_member_describe_self(entry);
    entry->magic_id = magic_id;
    entry->client_id = client_id;
    entry->endpoint_id = ivc_random_id();
    ivc_store_relaxed(&entry->lends, 0);        /* published with the state */
    region->self.magic_id = magic_id;
    region->self.client_id = client_id;
    region->self.pid = entry->pid;
    region->self.endpoint_id = entry->endpoint_id;
    memcpy(region->self.host, entry->host, sizeof entry->host);
    memcpy(region->self.boot_id, entry->boot_id, sizeof entry->boot_id);
    region->self.same_kernel = true;
}

/* Forgets what was rung for the slot's last owner. */
static void clear_inbox(struct ivc_region *region)
{
    char *inbox = (char *)region->mapping.memory + region->geometry.inboxes
                  + region->self.slot * region->geometry.inbox_size;

    for (uint64_t at = 0; at < region->geometry.inbox_size; at += sizeof(uint64_t))
        ivc_store_relaxed((ivc_atomic_u64 *)(inbox + at), 0);
}

static void release_slot(struct ivc_region *region)
{
    ivc_store_release(&ivc_region_slot(region, region->self.slot)->state,
                      ivc_layout_state(region->self.generation, IVC_PHASE_FREE));
}

int ivc_region_join(struct ivc_region *region, uint64_t magic_id, uint32_t client_id)
{
    struct ivc_layout_member *entry;
    int r;

    look_at_all(region);
    r = take_slot(region);
    if (r < 0)
        r = take_slot_patiently(region);
    if (r < 0)
        return r;
    entry = ivc_region_slot(region, region->self.slot);
    fill_entry(region, magic_id, client_id);
    clear_inbox(region);
    do {
        r = ivc_region_share(region, IVC_SLOT_ANY, region->geometry.capacity
                             * sizeof(struct ivc_layout_link), &region->links);
    } while (r == IVC_E_NOSPACE && ivc_region_wait_for_memory(region));
    if (r != 0)
        goto err_slot;
    ivc_store_relaxed(&entry->links, region->links.handle);     /* published with the state */
    publish(region, entry);
    region->joined = true;
    r = ivc_guard_start(region);
    if (r < 0)
        goto err_links;
    return 0;

err_links:
    region->joined = false;
    ivc_region_unshare(region, &region->links);
err_slot:
    release_slot(region);
    return r;
}

void ivc_region_leave(struct ivc_region *region)
{
    struct ivc_layout_member *entry;

    if (!region->joined)
        return;
    ivc_guard_stop(region);
    region->joined = false;
    entry = ivc_region_slot(region, region->self.slot);
    /* Release: pairs with the acquire in ivc_region_member_check().  A swap: who was taken for dead
     * has nothing there any more. */
    if (!ivc_cas(&entry->state, ivc_layout_state(region->self.generation, IVC_PHASE_ACTIVE),
                 ivc_layout_state(region->self.generation, IVC_PHASE_LEFT)))
        return;
    /* Either a peer that opens a channel at this moment sees that, or we see its link line. */
    atomic_thread_fence(memory_order_seq_cst);
    ivc_reclaim_if_unread(region, region->self.slot);
}
