/*
 * Tests of retiring: what stays in memory and what does not, that no store is lost while the window
 * is replaced, and that faults which are not ours reach whom they concern.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "region/internal.h"

#include <pthread.h>
#include <setjmp.h>

enum { SIZE = 4 << 20, PAGE = 4096, ROUNDS = 30, WRITERS = 2, BIG = 1 << 20 };

static struct ivc_region *join(const char *path, uint64_t magic_id)
{
    struct ivc_region *region = NULL;

    CHECK_THAT(ivc_region_open(path, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, CHECK_AS(magic_id, 1)) == 0, "%s", ivc_error_text());
    return region;
}

/* Lines of our mappings that show the file. */
static unsigned mappings_of(const char *path)
{
    IVC_AUTO_FCLOSE FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned n = 0;

    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, path) != NULL;
    return n;
}

static unsigned open_files(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void test_retire(void)
{
    const char *path = check_file(0, SIZE);
    unsigned files = open_files();
    struct ivc_region *watcher = join(path, 1), *region;
    uint64_t free_before = ivc_region_free_bytes(watcher), handle;
    struct ivc_region_info info, after;
    struct ivc_member self;
    struct ivc_share share;
    void *memory, *more;
    bool left = false;

    for (unsigned round = 0; round < 5; round++) {
        region = join(path, 1);
        self = *ivc_region_self(region);
        ivc_region_info(region, &info);
        CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 10 * PAGE, &share), 0);
        CHECK_EQ(ivc_region_lend(region, 3 * PAGE, &memory), 0);
        memset(share.memory, 0x5a, share.size);
        memset(memory, 0xa5, 3 * PAGE);
        CHECK(!ivc_region_is_retired(region));
        CHECK_THAT(ivc_region_retire(region) == 0, "%s", ivc_error_text());
        CHECK(ivc_region_is_retired(region));
        CHECK_EQ(ivc_region_retire(region), 0);
        CHECK_EQ(mappings_of(path), 1);     /* the watcher's */
        for (size_t i = 0; i < 10 * PAGE; i++)
            CHECK_EQ(((uint8_t *)share.memory)[i], 0x5a);
        for (size_t i = 0; i < 3 * PAGE; i++)
            CHECK_EQ(((uint8_t *)memory)[i], 0xa5);
        /* Others see that it has left, and that it holds nothing; what it stores now they do
         * not. */
        CHECK_EQ(ivc_region_member_check(watcher, self.slot, self.generation, &left), IVC_E_GONE);
        CHECK(left);
        CHECK_EQ(ivc_region_free_bytes(watcher), free_before);
        memset(memory, 0x11, 3 * PAGE);
        CHECK_EQ(((uint8_t *)watcher->mapping.memory)
                 [(char *)memory - (char *)region->mapping.memory], 0xa5);
        ivc_region_info(region, &after);
        CHECK(strcmp(info.uuid, after.uuid) == 0 && info.epoch == after.epoch);
        CHECK_EQ(ivc_region_locate(region, memory, 1, &handle), IVC_E_NOREGION);
        CHECK_EQ(ivc_region_locate(watcher, memory, 1, &handle), IVC_E_NOREGION);
        CHECK_EQ(ivc_region_lend(region, 1, &more), IVC_E_NOREGION);
        CHECK_TEXT(ivc_error_text(), "region /dev/shm/", "let go");
        CHECK_EQ(ivc_region_join(region, CHECK_AS(1, 1)), -EINVAL);
        CHECK_EQ(ivc_region_take_back(region, memory), 0);
        CHECK_EQ(ivc_region_take_back(region, memory), -EINVAL);
        ivc_region_leave(region);
        ivc_region_free(region);
    }
    ivc_region_free(watcher);
    CHECK_EQ(mappings_of(path), 0);
    CHECK_EQ(open_files(), files);
}

/* Not joined, and with a peer that still reads: its memory is not used again before that is
 * over. */
static void test_still_read(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *reader = join(path, 1), *region = join(path, 1), *outside;
    uint64_t free_before = ivc_region_free_bytes(reader);
    struct ivc_member self = *ivc_region_self(region);
    const struct ivc_layout_link *line;
    bool left = false;

    ivc_link_open(reader, self.slot, self.generation);
    ivc_link_open(region, 0, ivc_region_self(reader)->generation);
    ivc_store_release(&ivc_region_own_link(region, 0)->head, 77);
    CHECK_EQ(ivc_region_retire(region), 0);
    CHECK_EQ(ivc_region_member_check(reader, self.slot, self.generation, &left), IVC_E_GONE);
    CHECK(left);
    line = ivc_region_peer_link(reader, self.slot);
    CHECK(line);
    CHECK_EQ(ivc_load_acquire(&line->head), 77);
    ivc_store_release(&ivc_region_own_link(region, 0)->head, 78);   /* to the private copy */
    CHECK_EQ(ivc_load_acquire(&line->head), 77);
    CHECK_EQ(ivc_region_free_bytes(reader), free_before);
    ivc_link_close(reader, self.slot);
    for (unsigned i = 0; i < 100 && ivc_region_free_bytes(reader) == free_before; i++)
        ivc_sleep_ms(50);
    CHECK_EQ(ivc_region_free_bytes(reader), free_before + PAGE);
    CHECK_EQ(ivc_region_open(path, &outside), 0);
    CHECK_EQ(ivc_region_retire(outside), 0);
    ivc_region_free(outside);
    ivc_region_free(region);
    ivc_region_free(reader);
}

/* ---------------------------------------------------------------- stores that never pause */

struct writer {
    pthread_t thread;
    volatile uint64_t *counters;    /* one per page, in turn */
    size_t n;
    ivc_atomic_u64 made;
    ivc_atomic_u32 stop;
};

static void *count_up(void *arg)
{
    struct writer *writer = arg;

    for (uint64_t made = 0; !ivc_load_relaxed(&writer->stop);) {
        writer->counters[made % writer->n * (PAGE / 8)]++;
        ivc_store_relaxed(&writer->made, ++made);
    }
    return NULL;
}

static uint64_t sum(const struct writer *writer)
{
    uint64_t total = 0;

    for (size_t i = 0; i < writer->n; i++)
        total += writer->counters[i * (PAGE / 8)];
    return total;
}

/* Once round its pages and more: it may get no processor for a while. */
static void wait_for_writer(const struct writer *writer)
{
    uint64_t from = ivc_load_relaxed(&writer->made);

    while (ivc_load_relaxed(&writer->made) - from <= writer->n)
        ivc_sleep_ms(1);
}

/* Each round: threads count in lent memory while the region retires under them.  A store that
 * went to the window after it was copied, or was dropped, is missing from the sum. */
static void test_no_store_lost(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1);

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct ivc_region *region = join(path, 1);
        struct writer writers[WRITERS] = { 0 };
        void *memory[WRITERS];

        for (unsigned i = 0; i < WRITERS; i++) {
            CHECK_EQ(ivc_region_lend(region, BIG, &memory[i]), 0);
            writers[i].counters = memory[i];
            writers[i].n = BIG / PAGE;
            CHECK_EQ(pthread_create(&writers[i].thread, NULL, count_up, &writers[i]), 0);
        }
        for (unsigned i = 0; i < WRITERS; i++)
            wait_for_writer(&writers[i]);
        ivc_sleep_ms(round % 7);
        CHECK_THAT(ivc_region_retire(region) == 0, "%s", ivc_error_text());
        for (unsigned i = 0; i < WRITERS; i++) {
            wait_for_writer(&writers[i]);
            ivc_store_relaxed(&writers[i].stop, 1);
            CHECK_EQ(pthread_join(writers[i].thread, NULL), 0);
            CHECK_EQ(sum(&writers[i]), ivc_load_relaxed(&writers[i].made));
            CHECK_EQ(ivc_region_take_back(region, memory[i]), 0);
        }
        ivc_region_free(region);
    }
    ivc_region_free(watcher);
}

/* ---------------------------------------------------------------- faults that are not ours */

static sigjmp_buf back;
static volatile unsigned faults;
static volatile char *forbidden;

static void on_own_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    CHECK(info->si_addr == forbidden);
    faults++;
    siglongjmp(back, 1);
}

static void touch_forbidden(void)
{
    if (sigsetjmp(back, 1) == 0) {
        *forbidden = 1;
        CHECK(false);
    }
}

static void test_own_handler(void)
{
    struct sigaction own = { .sa_sigaction = on_own_fault, .sa_flags = SA_SIGINFO }, now;
    struct ivc_region *region = join(check_file(0, SIZE), 1);

    forbidden = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQ(sigaction(SIGSEGV, &own, NULL), 0);
    touch_forbidden();
    CHECK_EQ(ivc_region_retire(region), 0);
    touch_forbidden();
    CHECK_EQ(faults, 2);
    ivc_region_free(region);
    touch_forbidden();
    CHECK_EQ(faults, 3);
    CHECK_EQ(sigaction(SIGSEGV, NULL, &now), 0);
    CHECK(now.sa_sigaction == on_own_fault);
}

/* Without a handler a fault ends the process, as it always did. */
static int fault(void *arg)
{
    struct ivc_region *region = join(arg, 1);

    CHECK_EQ(ivc_region_retire(region), 0);
    *(volatile char *)8 = 1;
    return 0;
}

static int send_itself(void *arg)
{
    struct ivc_region *region = join(arg, 1);

    CHECK_EQ(ivc_region_retire(region), 0);
    raise(SIGSEGV);
    return 0;
}

static void test_no_handler(void)
{
    int (*const ways[])(void *) = { fault, send_itself };
    int status;

    signal(SIGSEGV, SIG_DFL);       /* a sanitizer's own */
    for (unsigned i = 0; i < 2; i++) {
        pid_t pid = check_fork(ways[i], (void *)check_file(i, SIZE));

        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_THAT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "%d", status);
    }
}

/* Our descriptor was closed by the application: then nothing is done at all. */
static void test_refused(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = join(path, 1), *watcher = join(path, 1);
    struct ivc_member member;
    void *memory;
    int other;

    CHECK_EQ(ivc_region_lend(region, PAGE, &memory), 0);
    CHECK(region->mapping.fd > 2);
    close(region->mapping.fd);
    CHECK_EQ(ivc_region_retire(region), -EBADF);
    CHECK_TEXT(ivc_error_text(), path, "closed");
    other = open("/dev/null", O_RDWR);
    CHECK_EQ(dup2(other, region->mapping.fd), region->mapping.fd);     /* a stranger's now */
    other = region->mapping.fd;
    CHECK_EQ(ivc_region_retire(region), -EBADF);
    CHECK(!ivc_region_is_retired(region));
    CHECK_EQ(ivc_region_member(watcher, ivc_region_self(region)->slot, &member), 0);
    CHECK_EQ(ivc_region_take_back(region, memory), 0);
    ivc_region_free(region);
    CHECK(fcntl(other, F_GETFD) >= 0);      /* not ours to close */
    ivc_region_free(watcher);
}

static const struct check_case cases[] = {
    { "retire: what stays and what goes", test_retire, 0 },
    { "still read", test_still_read, 0 },
    { "no store is lost", test_no_store_lost, 0 },
    { "an application's own handler", test_own_handler, 0 },
    { "no handler", test_no_handler, 0 },
    { "refused", test_refused, 0 },
};
CHECK_MAIN(cases)
