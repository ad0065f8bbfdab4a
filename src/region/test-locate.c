/* Tests of finding memory in a window: mappings made by others, at every place and in pieces. */
#include "check.h"

#include "base/error.h"
#include "region/internal.h"
#include "region/region.h"

enum { SIZE = 8 << 20, PAGE = 4096 };

static struct ivc_region *region;
static int fd;
static uint64_t first;          /* of the blocks */

static void *map(size_t size, uint64_t offset, int protection, int flags)
{
    void *memory = mmap(NULL, size, protection, flags, fd, (off_t)offset);

    CHECK_THAT(memory != MAP_FAILED, "%s", strerror(errno));
    return memory;
}

static void open_region(void)
{
    const char *path = check_file(0, SIZE);

    CHECK_EQ(ivc_region_open(path, &region), 0);
    fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    first = region->geometry.blocks;
}

static void check_found(const void *memory, uint64_t size, uint64_t wanted)
{
    uint64_t handle = 0;
    void *again;

    CHECK_EQ(ivc_region_locate(region, memory, size, &handle), 0);
    CHECK_EQ(handle, wanted);
    CHECK_EQ(ivc_region_reach(region, 0, handle, size, &again), 0);
    CHECK(again == (char *)region->mapping.memory + wanted);
}

static void check_not_found(const void *memory, uint64_t size, const char *what)
{
    uint64_t handle = 5;

    CHECK_THAT(ivc_region_locate(region, memory, size, &handle) == IVC_E_NOREGION, "%s", what);
    CHECK_EQ(handle, 5);
}

static void test_places(void)
{
    const int rw = PROT_READ | PROT_WRITE;
    char *whole, *tail;

    open_region();
    whole = map(SIZE, 0, rw, MAP_SHARED);
    tail = map(SIZE - first - PAGE, first + PAGE, rw, MAP_SHARED);
    check_found((char *)region->mapping.memory + first, PAGE, first);   /* our own mapping */
    check_found(whole + first, SIZE - first, first);
    check_found(whole + first + 17, 100, first + 17);
    check_found(whole + SIZE - 1, 1, SIZE - 1);
    check_found(tail, SIZE - first - PAGE, first + PAGE);
    check_found(tail + 5, 1, first + PAGE + 5);
    check_not_found(whole, SIZE, "header and all");
    check_not_found(whole, PAGE, "header");
    check_not_found(whole + first - 1, 2, "begins before the blocks");
    check_not_found(whole + first, 0, "nothing");
    check_not_found(whole + SIZE - 1, 2, "goes beyond the mapping");
    check_not_found(whole + first, UINT64_MAX - 100, "wraps");
    munmap(whole, SIZE);
    check_not_found(whole + first, PAGE, "unmapped since");
}

static void test_others(void)
{
    const int rw = PROT_READ | PROT_WRITE;
    static char data[2 * PAGE];
    char *heap = malloc(PAGE), stack[16];
    const char *path = check_file(1, SIZE);
    int other;

    open_region();
    check_not_found(data, sizeof data, "data");
    check_not_found(heap, PAGE, "heap");
    check_not_found(stack, sizeof stack, "stack");
    check_not_found(NULL, 16, "no memory at all");
    check_not_found(map(SIZE, 0, rw, MAP_PRIVATE), SIZE - first, "a private copy of the window");
    check_not_found((char *)map(SIZE, 0, PROT_READ, MAP_SHARED) + first, PAGE, "read-only");
    check_not_found(map(SIZE, 0, rw, MAP_SHARED | MAP_ANONYMOUS), PAGE, "shared, but of no file");
    /* The same size and place, another file. */
    other = open(path, O_RDWR | O_CLOEXEC);
    CHECK(other >= 0);
    CHECK(dup2(other, fd) == fd);
    check_not_found((char *)map(SIZE, 0, rw, MAP_SHARED) + first, PAGE, "another file");
    free(heap);
}

/* Mappings beside each other are one piece when they go on in the file as they do in memory. */
static void test_pieces(void)
{
    const int rw = PROT_READ | PROT_WRITE;
    char *memory;

    open_region();
    memory = mmap(NULL, 6 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    /* Page 0, then 1 with another protection in between (which keeps the kernel from joining them),
     * then a page of elsewhere in the file. */
    CHECK(mmap(memory, PAGE, rw, MAP_SHARED | MAP_FIXED, fd, (off_t)first) == memory);
    CHECK(mmap(memory + PAGE, PAGE, rw | PROT_EXEC, MAP_SHARED | MAP_FIXED, fd,
               (off_t)first + PAGE) == memory + PAGE);
    CHECK(mmap(memory + 2 * PAGE, PAGE, rw, MAP_SHARED | MAP_FIXED, fd,
               (off_t)first + 9 * PAGE) == memory + 2 * PAGE);
    check_found(memory, 2 * PAGE, first);
    check_found(memory + PAGE - 1, 2, first + PAGE - 1);
    check_found(memory + 2 * PAGE, PAGE, first + 9 * PAGE);
    check_not_found(memory, 2 * PAGE + 1, "the third page is of elsewhere");
    check_not_found(memory + 2 * PAGE, PAGE + 1, "goes on into nothing");
    check_not_found(memory + 3 * PAGE, 1, "nothing there");
    CHECK_EQ(mprotect(memory + PAGE, PAGE, PROT_READ), 0);
    check_not_found(memory, 2 * PAGE, "half of it is read-only");
}

/* What a peer says: any number. */
static void test_reach(void)
{
    uint64_t end;
    void *memory = &end;

    open_region();
    end = first + region->geometry.n_blocks * PAGE;
    CHECK_EQ(ivc_region_reach(region, 0, first, end - first, &memory), 0);
    CHECK_EQ(ivc_region_reach(region, 0, end - 1, 1, &memory), 0);
    CHECK_EQ(ivc_region_reach(region, 0, end, 0, &memory), 0);
    memory = &end;
    CHECK_EQ(ivc_region_reach(region, 0, end, 1, &memory), -EBADMSG);
    CHECK_EQ(ivc_region_reach(region, 0, first - 1, 1, &memory), -EBADMSG);
    CHECK_EQ(ivc_region_reach(region, 0, 0, 1, &memory), -EBADMSG);
    CHECK_EQ(ivc_region_reach(region, 0, first, end - first + 1, &memory), -EBADMSG);
    CHECK_EQ(ivc_region_reach(region, 0, UINT64_MAX, 2, &memory), -EBADMSG);
    CHECK_EQ(ivc_region_reach(region, 0, first, UINT64_MAX, &memory), -EBADMSG);
    CHECK(memory == &end);
    CHECK_TEXT(ivc_error_text(), "outside the region", "member 0");
}

static const struct check_case cases[] = {
    { "places", test_places, 0 },
    { "memory-of-others", test_others, 0 },
    { "pieces", test_pieces, 0 },
    { "reach", test_reach, 0 },
};

CHECK_MAIN(cases)
