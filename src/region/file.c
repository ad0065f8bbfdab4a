/*
 * The file mechanism: POSIX shared memory, a file on hugetlbfs, a DAX device, user-mode Linux's
 * /dev/mmapper.  All are mapped the same way; they differ in how they tell their size.
 */
#include "region/mechanism.h"

#include "base/error.h"
#include "base/util.h"
#include "region/window.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Where a region lies when nobody says where: what an administrator makes once per host or guest. */
static const char *const well_known[] = {
    "/dev/mmapper",         /* user-mode Linux: iomem=mmapper,FILE */
    "/dev/shm/ivc",
    "/dev/hugepages/ivc",
};

#define NO_PERMISSION "no permission to read and write it; let your group do so: 'chgrp ivc %s && chmod g+rw %s' as root"

/* A DAX device tells its size in sysfs. */
static int dax_size(const struct stat *st, uint64_t *ret_size)
{
    char path[64], line[32];
    int r;

    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/size", major(st->st_rdev), minor(st->st_rdev));
    r = ivc_read_line(path, line, sizeof line);
    if (r < 0)
        return r;
    *ret_size = strtoull(line, NULL, 10);
    return *ret_size ? 0 : -ENODEV;
}

/* Whether the device has a byte there.  The read is given nowhere to put it: the driver checks the
 * position first and then fails with EFAULT, without touching the memory. */
static bool has_byte(int fd, uint64_t at)
{
    char *volatile nowhere = (char *)8;

    return pread(fd, nowhere, 1, (off_t)at) < 0 && errno == EFAULT;
}

/*
 * mmapper tells no size, but positions beyond its end are refused: search for the last byte.  The
 * kernel takes the file's size for one page more than it is (arch/um/drivers/mmapper_kern.c and
 * parse_iomem()), and touching that page is fatal to the guest: it is left out.
 */
static int mmapper_size(int fd, uint64_t *ret_size)
{
    uint64_t low = 0, high = IVC_LAYOUT_PAGE;   /* there are bytes below low, perhaps not below high */

    while (has_byte(fd, high - 1)) {
        low = high;
        if (high > (uint64_t)1 << 46)
            return -EINVAL;
        high *= 2;
    }
    while (high - low > IVC_LAYOUT_PAGE) {
        uint64_t middle = low + (high - low) / 2 / IVC_LAYOUT_PAGE * IVC_LAYOUT_PAGE;

        if (has_byte(fd, middle - 1))
            low = middle;
        else
            high = middle;
    }
    if (low <= IVC_LAYOUT_PAGE)
        return -ENODEV;
    *ret_size = low - IVC_LAYOUT_PAGE;
    return 0;
}

static int file_size(int fd, const char *name, uint64_t *ret_size)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return ivc_error_set(-errno, "region %s: cannot read its size: %s", name, strerror(errno));
    if (S_ISREG(st.st_mode)) {
        *ret_size = (uint64_t)st.st_size;
        return 0;
    }
    if (S_ISCHR(st.st_mode) && (dax_size(&st, ret_size) == 0 || mmapper_size(fd, ret_size) == 0))
        return 0;
    return ivc_error_set(-ENODEV, "region %s: neither a file, a DAX device nor an mmapper device "
                         "with memory behind it; for user-mode Linux give the guest "
                         "iomem=mmapper,FILE", name);
}

static int open_error(const char *name)
{
    int code = -errno;

    if (code == -ENOENT)
        return ivc_error_set(code, "region %s: no such file; make one, for example with "
                             "'truncate -s 64M %s', or correct %s", name, name, ivc_region_named_by(name));
    if (code == -EACCES || code == -EPERM)
        return ivc_error_set(code, "region %s: " NO_PERMISSION, name, name, name);
    return ivc_error_set(code, "region %s: cannot open it: %s", name, ivc_error_of(-code));
}

/* A file may be longer than what there is to fill it with: better told now than when half of a job's memory is there
 * (file_reserve()).  File systems without a limit tell 0 blocks. */
static int check_room(int fd, const char *name, uint64_t size)
{
    struct stat st;
    struct statvfs fs;
    uint64_t room;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || fstatvfs(fd, &fs) < 0 || fs.f_blocks == 0)
        return 0;
    room = (uint64_t)st.st_blocks * 512 + (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room >= size)
        return 0;
    return ivc_error_set(-ENOSPC, "region %s: the file has %llu MiB, and its file system room for "
                         "%llu MiB of them; make room there (a container's /dev/shm: --shm-size) or "
                         "the file smaller", name, (unsigned long long)(size >> 20),
                         (unsigned long long)(room >> 20));
}

/* Only of what has no content we say how to give it some: a name may be that of anything. */
static int too_small(const char *name, uint64_t size)
{
    if (size > 0)
        return ivc_error_set(-EFBIG, "region %s: not a region, it has only %llu bytes, and the smallest %d; "
                             "name another file", name, (unsigned long long)size, IVC_LAYOUT_SIZE_MIN);
    return ivc_error_set(-EFBIG, "region %s: empty; it needs at least %d bytes (256 KiB for each process): "
                         "'truncate -s 64M %s'", name, IVC_LAYOUT_SIZE_MIN, name);
}

/* By touching them: for who has lost the descriptor, and file systems that know no fallocate().  A kernel that cannot
 * say beforehand (before 5.14) is believed. */
static int populate(void *memory, uint64_t size)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(memory, size, MADV_POPULATE_WRITE) < 0 && errno != EINVAL)
        return errno == EFAULT ? -ENOSPC : -errno;
#else
    (void)memory, (void)size;
#endif
    return 0;
}

/* Gives the file its pages, and no other length: somebody may have shortened it.  Without signals, of which each would
 * have it begin again. */
static int allocate(int fd, uint64_t from, uint64_t size)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    do
        r = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)size) < 0 ? -errno : 0;
    while (r == -EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

static int file_reserve(const struct ivc_mapping *mapping, uint64_t from, uint64_t size)
{
    int fd = ivc_mapping_fd(mapping);
    int r = fd < 0 ? -EOPNOTSUPP : allocate(fd, from, size);

    if (r == -EOPNOTSUPP)
        return populate((char *)mapping->memory + from, size);
    return r == -ENODEV ? 0 : r;        /* a device: it is there */
}

/* What is read and written without being asked for: of a file with nothing in it not even that is there. */
static int reserve_tables(const char *name, const struct ivc_mapping *mapping)
{
    uint64_t size = ivc_window_geometry(mapping->size).blocks;
    int r = file_reserve(mapping, 0, size);

    return r == 0 ? 0
        : ivc_error_set(r, "region %s: no room for the first %llu bytes of the file: %s; make room there ('df %s')",
                        name, (unsigned long long)size, strerror(-r), name);
}

static int file_map(const char *name, struct ivc_mapping *ret_mapping)
{
    IVC_AUTO_CLOSE int fd = open(name, O_RDWR | O_CLOEXEC);
    uint64_t size;
    int r;

    if (fd < 0)
        return open_error(name);
    r = file_size(fd, name, &size);
    if (r < 0)
        return r;
    if (size < IVC_LAYOUT_SIZE_MIN)
        return too_small(name, size);
    r = check_room(fd, name, size);
    if (r < 0)
        return r;
    r = ivc_mapping_make(fd, size, ret_mapping);
    if (r < 0)
        return ivc_error_set(r, "region %s: cannot map %llu bytes: %s", name,
                             (unsigned long long)size, strerror(-r));
    r = reserve_tables(name, ret_mapping);
    if (r < 0)
        ivc_mapping_free(ret_mapping);
    else
        ret_mapping->speed = ivc_mapping_measure(ret_mapping->memory, size);
    return r;
}

/* A file may be shortened while it is mapped; devices are not taken away. */
static bool file_is_there(const char *name, const struct ivc_mapping *mapping)
{
    int fd = ivc_mapping_fd(mapping);
    struct stat st;

    (void)name;     /* unlinked or replaced: what is mapped is still the same file */
    return fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)
           || (uint64_t)st.st_size >= mapping->size;
}

static bool file_is_named(const char *name, const struct ivc_mapping *mapping)
{
    struct stat st;

    return stat(name, &st) == 0 && st.st_dev == mapping->dev && st.st_ino == mapping->ino;
}

static void file_find(void (*found)(void *, const struct ivc_mechanism *, const char *),
                      void (*refused)(void *, const struct ivc_mechanism *, const char *,
                                      const char *),
                      void *arg)
{
    char reason[256];

    for (unsigned i = 0; i < sizeof well_known / sizeof *well_known; i++) {
        const char *name = well_known[i];

        if (access(name, F_OK) < 0)
            continue;
        if (access(name, R_OK | W_OK) == 0) {
            found(arg, &ivc_mechanism_file, name);
            continue;
        }
        snprintf(reason, sizeof reason, NO_PERMISSION, name, name);
        refused(arg, &ivc_mechanism_file, name, reason);
    }
}

const struct ivc_mechanism ivc_mechanism_file = {
    .name = "file",
    .find = file_find,
    .map = file_map,
    .reserve = file_reserve,
    .is_there = file_is_there,
    .is_named = file_is_named,
};
