/*
 * Tests of why a peer is on its path, and of what is required of it: endpoints of one process, in one region, in two, in
 * none.
 */
#include "check.h"

#include "base/error.h"
#include "endpoint/endpoint.h"

enum { SIZE = 4 << 20 };

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg;
    (void)peer;
    (void)packet;
}

static int open_endpoint(const char *path, struct ivc_endpoint **ret_endpoint)
{
    const struct ivc_endpoint_options options = { .region = path, .magic_id = 6, .on_packet = on_packet };

    return ivc_endpoint_open(&options, ret_endpoint);
}

/* Two regions, an endpoint in each, and a second one in the first. */
static struct ivc_endpoint *a, *near, *far;
static char first[64], second[64];

static void make_region(char *path, size_t size, const char *name)
{
    int fd;

    snprintf(path, size, "/dev/shm/ivc-test-%d-%s", (int)getpid(), name);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    close(fd);
}

static void start(void)
{
    make_region(first, sizeof first, "path-1");
    make_region(second, sizeof second, "path-2");
    CHECK_THAT(open_endpoint(first, &a) == 0, "%s", ivc_error_text());
    CHECK_THAT(open_endpoint(first, &near) == 0, "%s", ivc_error_text());
    CHECK_THAT(open_endpoint(second, &far) == 0, "%s", ivc_error_text());
}

static void finish(void)
{
    ivc_endpoint_free(a);
    ivc_endpoint_free(near);
    ivc_endpoint_free(far);
    unlink(first);
    unlink(second);
}

static void expect(struct ivc_address address, enum ivc_path_reason reason, const char *text)
{
    char why[512];

    CHECK_EQ(ivc_endpoint_path_reason(a, &address, why, sizeof why), reason);
    CHECK_TEXT(why, text);
}

/* An address that names no region: its slot, the second 16 bits, says so. */
static struct ivc_address homeless(struct ivc_address address)
{
    memset(address.bytes + 2, 0xff, 2);
    return address;
}

static void test_reasons(void)
{
    struct ivc_address to_near, to_far, foreign = { .len = 16 };
    struct ivc_peer *peer;
    char why[512];

    start();
    ivc_endpoint_address(near, &to_near);
    ivc_endpoint_address(far, &to_far);
    expect(to_near, IVC_PATH_REASON_SHARED, "shares a region");
    expect(to_far, IVC_PATH_REASON_OTHER_REGION, first);
    expect(homeless(to_far), IVC_PATH_REASON_NO_REGION_THERE, "no region");
    expect(foreign, IVC_PATH_REASON_FOREIGN, "16 bytes");
    CHECK_EQ(ivc_endpoint_connect(a, &to_far, &peer), IVC_E_UNREACHABLE);
    CHECK_TEXT(ivc_error_text(), "another region", "no network");
    CHECK_EQ(ivc_endpoint_connect(a, &to_near, &peer), 0);
    CHECK_EQ(ivc_peer_path_reason(a, peer, why, sizeof why), IVC_PATH_REASON_SHARED);
    ivc_endpoint_free(near);
    near = NULL;
    for (unsigned i = 0; i < 1000 && !ivc_peer_is_gone(peer); i++) {
        ivc_endpoint_progress(a);
        usleep(10000);
    }
    CHECK_EQ(ivc_peer_path_reason(a, peer, why, sizeof why), IVC_PATH_REASON_GONE);
    finish();
}

static void test_required(void)
{
    struct ivc_address to_near, to_far;
    struct ivc_endpoint *none;
    struct ivc_peer *peer;

    start();
    ivc_endpoint_address(near, &to_near);
    ivc_endpoint_address(far, &to_far);
    CHECK_EQ(ivc_endpoint_check_path(a, &to_far), 0);
    setenv("IVC_REQUIRE", "memory", 1);
    CHECK_EQ(ivc_endpoint_check_path(a, &to_near), 0);
    CHECK_EQ(ivc_endpoint_check_path(a, &to_far), IVC_E_UNREACHABLE);
    CHECK_TEXT(ivc_error_text(), "another region", "IVC_REQUIRE=memory");
    CHECK_EQ(ivc_endpoint_connect(a, &to_far, &peer), IVC_E_UNREACHABLE);
    CHECK_EQ(ivc_endpoint_connect(a, &to_near, &peer), 0);
    setenv("IVC_REQUIRE", "memry", 1);
    CHECK_EQ(open_endpoint(first, &none), -EINVAL);
    CHECK_TEXT(ivc_error_text(), "IVC_REQUIRE=memry", "any or memory");
    unsetenv("IVC_REQUIRE");
    setenv("IVC_ON_PEER_LOSS", "Abort", 1);
    CHECK_EQ(open_endpoint(first, &none), -EINVAL);
    CHECK_TEXT(ivc_error_text(), "continue or abort");
    setenv("IVC_ON_PEER_LOSS", "abort", 1);
    CHECK(ivc_path_ends_with_peer());
    unsetenv("IVC_ON_PEER_LOSS");
    CHECK(!ivc_path_ends_with_peer());
    finish();
}

/* Nothing to join, and a network that could do without: not when memory is required. */
static void test_no_region(void)
{
    const struct ivc_endpoint_options options = {
        .region = "none", .magic_id = 6, .network = true, .on_packet = on_packet,
    };
    struct ivc_endpoint *endpoint;

    setenv("IVC_REQUIRE", "memory", 1);
    CHECK_EQ(ivc_endpoint_open(&options, &endpoint), -ENODEV);
    CHECK_TEXT(ivc_error_text(), "IVC_REQUIRE=memory", "no region is to be used");
    unsetenv("IVC_REQUIRE");
}

static const struct check_case cases[] = {
    { "why a peer is on its path", test_reasons, 60 },
    { "memory is required to every peer", test_required, 60 },
    { "... and there is no region", test_no_region, 60 },
};

CHECK_MAIN(cases)
