/*
 * Tests of regions on a file system that fills up: whoever takes memory is told, and nobody finds a page missing.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MIB = 1 << 20, SIZE = 40 * MIB };

static const char path[] = "/mnt/region", filler[] = "/mnt/filler";

/* A tmpfs with room for the region and a little more, which nobody else sees. */
static void make_file(void)
{
    int fd;

    if (geteuid() != 0)
        check_skip("a file system of our own needs root");
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0
        || mount("none", "/mnt", "tmpfs", 0, "size=48m") < 0)
        check_skip("a tmpfs cannot be mounted");
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    close(fd);
}

static struct ivc_region *join(uint32_t client_id)
{
    struct ivc_region *region = NULL;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(1, client_id)) == 0, "%s", ivc_error_text());
    return region;
}

static void fill_up(void)
{
    static const char zeroes[4096];
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    CHECK(fd >= 0);
    while (write(fd, zeroes, sizeof zeroes) > 0)
        ;
    CHECK_EQ(errno, ENOSPC);
    close(fd);
}

static void make_room(void)
{
    CHECK_EQ(unlink(filler), 0);
}

static void check_refused(struct ivc_region *region)
{
    uint64_t before = ivc_region_free_bytes(region);
    struct ivc_share share;
    void *lent;

    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, MIB, &share), IVC_E_NOSPACE);
    CHECK_TEXT(ivc_error_text(), path);
    CHECK_TEXT(ivc_error_text(), "No space left on device");
    CHECK_TEXT(ivc_error_text(), "df");
    CHECK_EQ(ivc_region_lend(region, MIB, &lent), IVC_E_NOSPACE);
    CHECK_EQ(ivc_region_free_bytes(region), before);
    CHECK(!ivc_region_look_if_lost(region));
}

static void check_taken(struct ivc_region *region, uint64_t size, struct ivc_share *ret_share)
{
    CHECK_THAT(ivc_region_share(region, IVC_SLOT_ANY, size, ret_share) == 0, "%s", ivc_error_text());
    memset(ret_share->memory, 1, size);
    CHECK(!ivc_region_look_if_lost(region));
}

static void test_full(void)
{
    struct ivc_region *region;
    struct ivc_share share;

    make_file();
    region = join(1);
    fill_up();
    check_refused(region);
    make_room();
    check_taken(region, 30 * MIB, &share);
    ivc_region_free(region);
}

/* The application has closed what it did not open; another file may have its number. */
static void test_without_descriptor(void)
{
    struct ivc_region *region;
    struct ivc_share share;

    make_file();
    region = join(1);
    close(region->mapping.fd);
    fill_up();
    check_refused(region);
    make_room();
    check_taken(region, 30 * MIB, &share);
    ivc_region_free(region);
}

/* Ours, and those of a member that is done with them. */
static void test_used_before(void)
{
    struct ivc_region *a, *b;
    struct ivc_share first, second;

    make_file();
    a = join(1);
    b = join(2);
    check_taken(a, 4 * MIB, &first);
    check_taken(b, MIB, &second);       /* b looks behind this from now on */
    fill_up();
    check_refused(b);
    ivc_region_unshare(a, &first);
    check_taken(b, 4 * MIB, &first);
    ivc_region_unshare(b, &first);
    check_taken(a, 4 * MIB, &second);
    ivc_region_free(a);
    ivc_region_free(b);
}

/* Its pages count, and lie behind its end. */
static void test_full_from_the_beginning(void)
{
    struct ivc_region *region;
    int fd;

    make_file();
    fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(ftruncate(fd, MIB) == 0 && fallocate(fd, FALLOC_FL_KEEP_SIZE, MIB, MIB) == 0);
    close(fd);
    fill_up();
    CHECK_EQ(ivc_region_open(path, &region), -ENOSPC);
    CHECK_TEXT(ivc_error_text(), "df /mnt/region");
}

/* Nobody's file is made longer again. */
static void test_shortened(void)
{
    struct ivc_region *region;
    struct stat st;

    make_file();
    region = join(1);
    ivc_guard_stop(region);
    CHECK_EQ(truncate(path, MIB), 0);
    (void)ivc_reserve(region, 0, region->geometry.n_blocks);
    CHECK(stat(path, &st) == 0 && st.st_size == MIB);
    CHECK(ivc_region_look_if_lost(region));
    ivc_region_free(region);
}

/* In the place of the C library's.  As in Linux 6.1 a signal interrupts it, and the pages are given back; here there is
 * always one. */
static bool is_interrupted;

int fallocate(int fd, int mode, off_t from, off_t size)
{
    sigset_t blocked;

    CHECK_EQ(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    if (is_interrupted && !sigismember(&blocked, SIGALRM)) {
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, from, size);
}

static void test_signals(void)
{
    struct ivc_region *region;
    struct ivc_share share;
    sigset_t blocked;

    make_file();
    is_interrupted = true;
    region = join(1);
    check_taken(region, 30 * MIB, &share);
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    CHECK(!sigismember(&blocked, SIGALRM));
    ivc_region_free(region);
}

static const struct check_case cases[] = {
    { "a file system that fills up", test_full, 0 },
    { "the same without a descriptor", test_without_descriptor, 0 },
    { "pages that are there already", test_used_before, 0 },
    { "no room for the tables", test_full_from_the_beginning, 0 },
    { "a file that was shortened", test_shortened, 0 },
    { "interrupted by signals", test_signals, 10 },
};
CHECK_MAIN(cases)
