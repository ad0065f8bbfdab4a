/*
 * Bad input, case by case: the code that comes back, and one line that names what, where and what to
 * try.
 */
#include "check.h"
#include "leaks.h"

#include "base/error.h"
#include "endpoint/endpoint.h"
#include "region/region.h"
#include "region/window.h"

#include <sys/mount.h>

enum { MIB = 1 << 20, NOBODY = 65534 };

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg, (void)peer, (void)packet;
}

static int try_open(const char *region)
{
    struct ivc_endpoint_options options = {
        .region = region, .magic_id = 1, .on_packet = on_packet,
    };
    struct ivc_endpoint *endpoint = NULL;
    int r = ivc_endpoint_open(&options, &endpoint);

    CHECK_THAT((r == 0) == (endpoint != NULL), "gave %d", r);
    if (r == 0)
        ivc_endpoint_free(endpoint);
    return r;
}

/* Checks the answer, and that the line says each of the words. */
#define REFUSED(region, code, ...)                                                         \
    do {                                                                                   \
        int refused_r = try_open(region);                                                  \
        CHECK_THAT(refused_r == (code), "gave %d: %s", refused_r, ivc_error_text());       \
        CHECK_TEXT(ivc_error_text(), __VA_ARGS__);                                         \
    } while (0)

/* A /dev of our own, in which only is what a case puts there. */
static void own_dev(void)
{
    if (geteuid() != 0)
        check_skip("needs root to make a /dev of its own");
    if (unshare(CLONE_NEWNS) < 0)
        check_skip("this kernel gives no mount namespace: %s", strerror(errno));
    CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("none", "/dev", "tmpfs", 0, "mode=755") == 0);
    CHECK(mkdir("/dev/shm", 0777) == 0);
    CHECK(mkdir("/dev/hugepages", 0777) == 0);
    if (access("/sys/bus/pci/devices", F_OK) == 0)
        CHECK(mount("none", "/sys/bus/pci", "tmpfs", 0, "mode=755") == 0);
}

static void make(const char *path, off_t size, mode_t mode)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    CHECK_THAT(fd >= 0 && ftruncate(fd, size) == 0 && fchmod(fd, mode) == 0, "%s", path);
    close(fd);
}

static void test_none(void)
{
    own_dev();
    REFUSED(NULL, IVC_E_NOREGION, "no shared memory found", "ivshmem", "IVC_REGION");
    setenv("IVC_REGION", "", 1);
    REFUSED(NULL, IVC_E_NOREGION, "no shared memory found");
    setenv("IVC_REGION", "none", 1);
    REFUSED(NULL, IVC_E_NOREGION, "IVC_REGION=none");
    make("/dev/shm/ivc", MIB, 0600);
    REFUSED(NULL, IVC_E_NOREGION, "IVC_REGION=none");
    unsetenv("IVC_REGION");
    CHECK_THAT(try_open(NULL) == 0, "%s", ivc_error_text());
}

static void test_two(void)
{
    own_dev();
    make("/dev/shm/ivc", MIB, 0600);
    make("/dev/hugepages/ivc", MIB, 0600);
    REFUSED(NULL, -ENOTUNIQ, "two regions", "/dev/shm/ivc", "/dev/hugepages/ivc", "IVC_REGION=");
    setenv("IVC_REGION", "/dev/hugepages/ivc", 1);
    CHECK_THAT(try_open(NULL) == 0, "%s", ivc_error_text());
}

static void test_names(void)
{
    char longer[400];

    REFUSED("/dev/shm/ivc-no-such-file", -ENOENT, "/dev/shm/ivc-no-such-file", "no such file",
            "truncate");
    REFUSED("somewhere", -EINVAL, "somewhere", "correct that name");
    setenv("IVC_REGION", "somewhere", 1);
    REFUSED(NULL, -EINVAL, "somewhere", "correct IVC_REGION");
    unsetenv("IVC_REGION");
    REFUSED("uuid:00000000-0000-0000-0000-000000000000", -ENODEV, "uuid:0000", "ivc_info");
    REFUSED("uuid:", -ENODEV, "uuid:", "ivc_info");
    REFUSED("pci:0000:7f:1f.7", -ENODEV, "pci:0000:7f:1f.7", "1af4:1110", "lspci");
    REFUSED("pci:../../../etc", -ENODEV, "pci:../../../etc", "lspci");
    memset(longer, 'a', sizeof longer - 1);
    longer[0] = '/';
    longer[sizeof longer - 1] = '\0';
    CHECK(try_open(longer) < 0);
    CHECK_TEXT(ivc_error_text(), "/aaaa");
}

static void test_sizes(void)
{
    static const struct { uint64_t size; const char *says; } rows[] = {
        { 1, "1 bytes" }, { 4096, "4096 bytes" }, { MIB - 1, "1048575 bytes" },
    };
    const char *path = check_file(0, 0);

    REFUSED(path, -EFBIG, path, "empty", "truncate -s 64M");
    for (unsigned i = 0; i < 3; i++) {
        path = check_file(0, rows[i].size);
        REFUSED(path, -EFBIG, path, "not a region", rows[i].says, "another file");
        /* It may be the user's own data. */
        CHECK_THAT(!strstr(ivc_error_text(), "truncate"), "%s", ivc_error_text());
    }
    CHECK_THAT(try_open(check_file(0, MIB)) == 0, "%s", ivc_error_text());
    CHECK_THAT(try_open(check_file(0, MIB + 1)) == 0, "%s", ivc_error_text());
}

static void test_no_memory_behind(void)
{
    int r;

    REFUSED("/dev/null", -ENODEV, "/dev/null", "DAX", "mmapper");
    r = try_open("/dev/shm");
    CHECK_THAT(r < 0, "gave %d", r);
    CHECK_TEXT(ivc_error_text(), "region /dev/shm");
}

static struct ivc_layout_header *header_of(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(fd >= 0 && memory != MAP_FAILED);
    close(fd);
    return memory;
}

static void test_other_content(void)
{
    const char *path = check_file(0, MIB);
    struct ivc_layout_header *header;

    CHECK_EQ(try_open(path), 0);
    header = header_of(path);
    header->version++;
    REFUSED(path, -EPROTO, path, "version", "ivc region reset");
    header->version--;
    CHECK_EQ(try_open(path), 0);
    header->owners += 64;
    REFUSED(path, -EBADMSG, path, "damaged", "ivc region reset");
    header->owners -= 64;
    memcpy((void *)header, "PK\3\4 something else", 20);
    REFUSED(path, -EBADMSG, path, "not an ivc region", "ivc region reset");
    path = check_file(0, 4 * MIB);
    CHECK_EQ(try_open(path), 0);
    CHECK_EQ(truncate(path, 2 * MIB), 0);
    REFUSED(path, -EFBIG, path, "4194304", "2097152");
}

static void test_tenant(void)
{
    const char *path = check_file(0, MIB);

    setenv("IVC_TENANT", "blue", 1);
    CHECK_EQ(try_open(path), 0);
    setenv("IVC_TENANT", "green", 1);
    REFUSED(path, -EACCES, path, "another tenant", "blue", "IVC_TENANT");
    unsetenv("IVC_TENANT");
    REFUSED(path, -EACCES, path, "another tenant", "blue", "IVC_TENANT");
}

static void test_permission(void)
{
    const char *path = check_file(0, MIB);

    if (geteuid() != 0)
        check_skip("needs root to become somebody else");
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    REFUSED(path, -EACCES, path, "no permission", "chgrp ivc", "chmod g+rw");
}

static void test_permission_found(void)
{
    own_dev();
    make("/dev/shm/ivc", MIB, 0640);
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    REFUSED(NULL, -EACCES, "/dev/shm/ivc", "no permission", "chgrp ivc", "chmod g+rw", "IVC_REGION=none");
}

/* Who has a network goes on without what was only found and is others'; not without what was named. */
static void test_others_found(void)
{
    struct ivc_endpoint_options options = { .magic_id = 1, .on_packet = on_packet, .network = true };
    struct ivc_endpoint *endpoint;

    setenv("FI_TCP_IFACE", "lo", 0);
    options.region = "none";
    if (ivc_endpoint_open(&options, &endpoint) != 0)
        check_skip("no network: %s", ivc_error_text());
    ivc_endpoint_free(endpoint);
    options.region = NULL;
    own_dev();
    make("/dev/shm/ivc", MIB, 0640);
    CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    CHECK_THAT(ivc_endpoint_open(&options, &endpoint) == 0, "%s", ivc_error_text());
    CHECK_TEXT(ivc_endpoint_warning(endpoint), "/dev/shm/ivc", "no permission", "IVC_REGION=none", "network");
    ivc_endpoint_free(endpoint);
    options.region = "/dev/shm/ivc";
    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), -EACCES);
    options.region = NULL;
    setenv("IVC_REGION", "/dev/shm/ivc", 1);
    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), -EACCES);
}

static void test_directory_full(void)
{
    const char *path = check_file(0, MIB);
    struct ivc_layout_header *header;
    struct ivc_region *regions[64];

    CHECK_EQ(try_open(path), 0);
    header = header_of(path);
    header->lease_ms = 500;
    for (unsigned i = 0; i < 64; i++) {
        CHECK_EQ(ivc_region_open(path, &regions[i]), 0);
        CHECK_THAT(ivc_region_join(regions[i], CHECK_AS(1, i)) == 0, "%s", ivc_error_text());
    }
    REFUSED(path, -ENOSPC, path, "directory is full", "64", "larger region");
}

static void test_region_full(void)
{
    const char *path = check_file(0, MIB);
    struct ivc_region *hog;
    struct ivc_share share;

    CHECK_EQ(ivc_region_open(path, &hog), 0);
    CHECK_EQ(ivc_region_join(hog, CHECK_AS(1, 1)), 0);
    while (ivc_region_share(hog, IVC_SLOT_ANY, 16384, &share) == 0)
        ;
    CHECK_TEXT(ivc_error_text(), path, "full", "larger region");
    REFUSED(path, -ENOSPC, path, "full", "larger region");
}

static void test_tunables(void)
{
    static const struct { const char *name, *value; } rows[] = {
        { "IVC_RING_SIZE", "lots" }, { "IVC_RING_SIZE", "0" }, { "IVC_RING_SIZE", "100" },
        { "IVC_RING_SIZE", "2047" }, { "IVC_RING_SIZE", "1G" }, { "IVC_RING_SIZE", "-4096" },
        { "IVC_SEGMENT_SIZE", "32" }, { "IVC_SEGMENT_SIZE", "8K" }, { "IVC_SEGMENT_SIZE", "6,4" },
        { "IVC_CHUNK_SIZE", "100" }, { "IVC_CHUNK_SIZE", "1T" }, { "IVC_CHUNK_SIZE", "64Kb" },
    };
    const char *path = check_file(0, 4 * MIB);

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv(rows[i].name, rows[i].value, 1);
        REFUSED(path, -EINVAL, rows[i].name, rows[i].value);
        unsetenv(rows[i].name);
    }
    /* In themselves possible, but not together; and not a power of two. */
    setenv("IVC_RING_SIZE", "8K", 1);
    setenv("IVC_SEGMENT_SIZE", "4K", 1);
    REFUSED(path, -EINVAL, "8192", "4096", "IVC_RING_SIZE", "IVC_SEGMENT_SIZE");
    setenv("IVC_RING_SIZE", "64K", 1);
    setenv("IVC_SEGMENT_SIZE", "100", 1);
    REFUSED(path, -EINVAL, "100", "power of two");
    setenv("IVC_SEGMENT_SIZE", "128", 1);
    CHECK_THAT(try_open(path) == 0, "%s", ivc_error_text());
}

/* A file for the trace that cannot be written is said, once, and stops nothing. */
static void test_trace(void)
{
    struct ivc_endpoint_options options = { .region = check_file(0, MIB), .magic_id = 1, .on_packet = on_packet };
    int fds[2], saved = dup(2);
    struct ivc_endpoint *endpoint;
    struct ivc_address address;
    struct ivc_peer *peer;
    char said[1000];
    ssize_t n;

    setenv("IVC_TRACE", "/nonexistent/folder/trace", 1);
    CHECK(pipe(fds) == 0 && dup2(fds[1], 2) == 2);
    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), 0);
    ivc_endpoint_address(endpoint, &address);
    CHECK_EQ(ivc_endpoint_connect(endpoint, &address, &peer), 0);
    CHECK_EQ(ivc_endpoint_send(endpoint, peer, 1, &(struct iovec){ "x", 1 }, 1), 0);
    ivc_endpoint_free(endpoint);
    dup2(saved, 2);
    close(fds[1]);
    n = read(fds[0], said, sizeof said - 1);
    CHECK(n > 0 && said[n - 1] == '\n');
    said[n - 1] = '\0';
    CHECK_TEXT(said, "IVC_TRACE=/nonexistent/folder/trace", "No such file");
}

static void test_larger_than_region(void)
{
    const char *path = check_file(0, MIB);
    struct ivc_endpoint_options options = { .region = path, .magic_id = 1, .ring_size = 16 << 20 };
    struct ivc_endpoint *endpoint;
    struct ivc_address address;
    struct ivc_peer *peer;
    int r = ivc_endpoint_open(&options, &endpoint);

    /* A ring that the region cannot hold: refused, or made smaller, but never a hang. */
    if (r != 0) {
        CHECK(r < 0);
        CHECK(*ivc_error_text());
        return;
    }
    ivc_endpoint_address(endpoint, &address);
    CHECK_EQ(ivc_endpoint_connect(endpoint, &address, &peer), 0);
    r = ivc_endpoint_send(endpoint, peer, 1, &(struct iovec){ "x", 1 }, 1);
    CHECK_THAT(r == 0 || r == IVC_E_NOSPACE, "gave %d", r);
    ivc_endpoint_free(endpoint);
}

static const struct check_case cases[] = {
    { "no region", test_none, 0 },
    { "two regions", test_two, 0 },
    { "names that lead nowhere", test_names, 0 },
    { "too small", test_sizes, 0 },
    { "no memory behind it", test_no_memory_behind, 0 },
    { "another version, damaged, other data, cut off", test_other_content, 0 },
    { "another tenant", test_tenant, 0 },
    { "no permission", test_permission, 0 },
    { "no permission for the one that is found", test_permission_found, 0 },
    { "the one that is found is others', and there is a network", test_others_found, 0 },
    { "directory full", test_directory_full, 0 },
    { "region full", test_region_full, 0 },
    { "impossible tunables", test_tunables, 0 },
    { "a trace that cannot be written", test_trace, 0 },
    { "a ring larger than the region", test_larger_than_region, 0 },
};
CHECK_MAIN(cases)
