/*
 * Identity: who this process is, in which kernel and in which guest, and whether a process of our
 * own kernel still exists.
 *
 * A kernel says which it is by its boot id, and copies of one snapshot say the same: that it is ours is known
 * by presence (presence.c).  A guest is told by `vm`, which whoever asks a guest to leave
 * must be able to name from outside: what the administrator called it, else the UUID that its
 * hypervisor gave it, else its boot id.
 */
#include "region/internal.h"

#include "base/util.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* What /proc/PID/stat says (proc(5)); all zero when it cannot be read. */
struct process {
    char state;             /* field 3 */
    uint64_t threads;       /* field 20 */
    uint64_t start;         /* field 22: clock ticks since boot */
};

static struct process process_read(const char *path)
{
    struct process process = { 0 };
    char line[1024], *at;

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

/* Whether /proc knows processes by the numbers that we know them by: it may be another namespace's. */
static bool proc_is_ours(void)
{
    char text[16] = "";

    return readlink("/proc/self", text, sizeof text - 1) > 0 && strtoul(text, NULL, 10) == (unsigned long)getpid();
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

/* All 64 bytes that a kernel allows, without an end then: two names may differ in the last. */
void ivc_region_own_host(char ret_host[64])
{
    char host[65] = "";

    gethostname(host, sizeof host);
    memcpy(ret_host, host, 64);
}

void ivc_member_describe_self(struct ivc_layout_member *ret_member)
{
    ret_member->pid = (uint32_t)getpid();
    ret_member->pid_start = process_read("/proc/self/stat").start;
    ret_member->pid_namespace = pid_namespace();
    boot_id(ret_member->boot_id);
    ivc_region_own_host(ret_member->host);
}

bool ivc_member_may_be_here(const struct ivc_layout_member *own, const struct ivc_layout_member *member)
{
    return memcmp(member->boot_id, own->boot_id, sizeof own->boot_id) == 0
           && member->pid_namespace == own->pid_namespace;
}

bool ivc_member_same_kernel(const struct ivc_region *region, uint32_t slot, uint32_t generation)
{
    const struct ivc_layout_member *member = ivc_region_slot(region, slot);
    /* Relaxed: the word is all.  Two who look at once store the same, or one has come too late. */
    uint64_t found = ivc_load_relaxed(&region->kernels[slot]);

    if ((uint32_t)(found >> 32) != generation || generation == 0) {
        bool here = ivc_member_may_be_here(&region->identity, member) && ivc_presence_is_here(member->endpoint_id);

        /* If the slot has changed hands meanwhile this is about nobody: that generation is over. */
        found = (uint64_t)generation << 32 | here;
        ivc_store_relaxed(&region->kernels[slot], found);
    }
    return found & 1;
}

bool ivc_member_process_exists(const struct ivc_layout_member *member)
{
    struct process process;
    char path[32];

    if (kill((pid_t)member->pid, 0) < 0 && errno == ESRCH)
        return false;
    if (!proc_is_ours())
        return true;
    snprintf(path, sizeof path, "/proc/%u/stat", member->pid);
    process = process_read(path);
    /* Ended, and nobody has waited for it; with more threads, only the first one has ended. */
    if (process.state == 'X' || (process.state == 'Z' && process.threads <= 1))
        return false;
    return process.start == 0 || member->pid_start == 0 || process.start == member->pid_start;
}

/* Hypervisors and firmware differ in the case of what they show. */
static void lower(char *text)
{
    for (; *text; text++)
        *text = (char)tolower((unsigned char)*text);
}

static uint64_t vm_read(void)
{
    const char *name = getenv("IVC_VM");
    char text[64] = "";

    if (name && *name)
        return ivc_vm_of(name);
    if (ivc_read_line("/sys/class/dmi/id/product_uuid", text, sizeof text) == 0 && *text) {
        lower(text);
        return ivc_vm_of(text);
    }
    if (ivc_read_line("/proc/sys/kernel/random/boot_id", text, sizeof text) == 0 && *text)
        return ivc_vm_of(text);
    return ivc_random_id();     /* unlike everybody's: nobody can ask it to leave by name */
}

uint64_t ivc_vm_of(const char *text)
{
    uint64_t hash = ivc_hash_text(text);

    return hash ? hash : 1;     /* 0 is a library that knows no orders */
}

static uint64_t own_vm;

static void own_vm_read(void)
{
    own_vm = vm_read();
}

uint64_t ivc_region_own_vm(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, own_vm_read);
    return own_vm;
}
