/*
 * Mappings: made, made once more, taken away; and how they behave.
 *
 * The descriptor of what is mapped is kept, and never believed: an application may close all that
 * it did not open, and get the same number for a file of its own.
 *
 * How a mapping behaves: write-back memory answers a second load of a line from the cache; uncached
 * and write-combining mappings go to the device or to memory every time.
 */
#include "region/mechanism.h"

#include "base/util.h"
#include "region/grants.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
    LINES = 16,         /* few enough that the caches hold them whatever else goes on */
    LOADS = 1024,       /* a chain of loads: 3 us cached, 100 us and more uncached */
    ROUNDS = 8,
    TRIES = 5,
};

/* One load after the other: the address of each depends on the value of the last.  Nanoseconds for
 * all of them, reading the clock included. */
static uint64_t chain_ns(const volatile uint64_t *memory, unsigned loads)
{
    static volatile uint64_t unknown_zero;
    uint64_t never = unknown_zero;
    uint64_t zero = 0;
    uint64_t start = ivc_now_ns();

    for (unsigned i = 0; i < loads; i++) {
        uint64_t line = (i + zero) % LINES;

        /* Always zero, which neither the compiler nor the processor can know. */
        zero = memory[line * (IVC_LINE / sizeof *memory)] & never;
    }
    return ivc_now_ns() - start;
}

/* The best of some rounds: interrupts only make it slower. */
static uint64_t best_ns(const void *memory, unsigned loads)
{
    uint64_t best = UINT64_MAX;

    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t ns = chain_ns(memory, loads);

        best = IVC_MIN(best, ns);
    }
    return best;
}

static double load_ns(const void *memory)
{
    /* Where the clock is a slow system call (user-mode Linux: 10 us) it must not count. */
    uint64_t clock_ns = best_ns(memory, 0), all_ns = best_ns(memory, LOADS);

    return all_ns > clock_ns ? (double)(all_ns - clock_ns) / LOADS : 0;
}

struct ivc_mapping_speed ivc_mapping_measure(const void *memory, uint64_t size)
{
    struct ivc_mapping_speed speed = { .read_ns = 0, .cached = true };

    if (size < LINES * IVC_LINE)
        return speed;
    speed.read_ns = load_ns(memory);
    /* All of the rounds may have been disturbed: asked again a little later. */
    for (unsigned i = 1; i < TRIES && speed.read_ns >= IVC_MAPPING_SLOW_NS; i++) {
        double again;

        ivc_sleep_ms(1);
        again = load_ns(memory);
        speed.read_ns = IVC_MIN(again, speed.read_ns);
    }
    speed.cached = speed.read_ns < IVC_MAPPING_SLOW_NS;
    return speed;
}

/* In user-mode Linux (mmapper), and where the file system wants to know who stores into its files (DAX). */
static bool maps_for_reading(int fd, const struct stat *st)
{
#ifdef STATX_ATTR_DAX
    struct statx more;

    if (statx(fd, "", AT_EMPTY_PATH, 0, &more) == 0 && (more.stx_attributes & STATX_ATTR_DAX))
        return true;
#else
    (void)fd;
#endif
    return S_ISCHR(st->st_mode);
}

int ivc_mapping_make(int fd, uint64_t size, struct ivc_mapping *ret_mapping)
{
    struct ivc_mapping mapping = { .size = size };
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    mapping.dev = st.st_dev;
    mapping.ino = st.st_ino;
    mapping.reads_only = maps_for_reading(fd, &st);
    mapping.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping.memory == MAP_FAILED)
        return -errno;
    mapping.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);     /* so that 0 can say "none" */
    if (mapping.fd < 0)
        mapping.fd = 0;     /* it is a help only */
    mapping.fault = ivc_fault_cover(mapping.memory, size);
    *ret_mapping = mapping;
    return 0;
}

int ivc_mapping_fd(const struct ivc_mapping *mapping)
{
    struct stat st;

    return mapping->fd > 0 && fstat(mapping->fd, &st) == 0 && st.st_dev == mapping->dev
           && st.st_ino == mapping->ino ? mapping->fd : -1;
}

/* What the driver of a character device makes of an offset is its own affair: user-mode Linux's mmapper
 * maps its beginning, whatever is asked for. */
static bool has_parts(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

void *ivc_mapping_again(const struct ivc_mapping *mapping, uint64_t from, uint64_t size, void *place)
{
    int fd = ivc_mapping_fd(mapping);
    void *memory;

    if (fd < 0 || (size != mapping->size && !has_parts(fd)))
        return NULL;
    memory = mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | (place ? MAP_FIXED : 0), fd,
                  (off_t)from);
    return memory == MAP_FAILED ? NULL : memory;
}

void ivc_mapping_forget_fd(struct ivc_mapping *mapping)
{
    int fd = ivc_mapping_fd(mapping);

    if (fd >= 0)
        close(fd);
    mapping->fd = 0;
}

void ivc_mapping_free(struct ivc_mapping *mapping)
{
    ivc_fault_uncover(mapping->fault);
    mapping->fault = NULL;
    if (mapping->memory)
        munmap(mapping->memory, mapping->size);
    ivc_mapping_forget_fd(mapping);
    ivc_grants_free(mapping->grants);
    mapping->grants = NULL;
    mapping->memory = NULL;
}
