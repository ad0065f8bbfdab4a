/*
 * Tests of retiring: what stays in memory and what does not, that no store is lost while the window
 * is replaced, and that faults which are not ours reach whom they concern.
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "region/internal.h"

#include <inttypes.h>
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

static uint64_t sum_of(const uint8_t *bytes, size_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += bytes[i];
    return sum;
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
    struct iovec held;
    void *memory, *more;
    bool left = false;

    for (unsigned round = 0; round < 5; round++) {
        region = join(path, 1);
        self = *ivc_region_self(region);
        ivc_region_info(region, &info);
        CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 10 * PAGE, &share), 0);
        held = (struct iovec){ (char *)share.memory + 2 * PAGE + 100, PAGE + round * 1000 };
        CHECK_EQ(ivc_region_lend(region, 3 * PAGE, &memory), 0);
        memset(share.memory, 0x5a, share.size);
        memset(memory, 0xa5, 3 * PAGE);
        CHECK(!ivc_region_is_retired(region));
        CHECK_THAT(ivc_region_retire(region, &held, 1) == 0, "%s", ivc_error_text());
        CHECK(ivc_region_is_retired(region));
        CHECK_EQ(ivc_region_retire(region, &held, 1), 0);
        CHECK_EQ(mappings_of(path), 1);     /* the watcher's */
        for (size_t i = 0; i < held.iov_len; i++)
            CHECK_EQ(((uint8_t *)held.iov_base)[i], 0x5a);
        CHECK_EQ(sum_of(share.memory, share.size), held.iov_len * 0x5a);   /* and zeroes */
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
    struct ivc_member self = *ivc_region_self(region);
    const struct ivc_layout_link *line;
    uint64_t free_before;
    bool left = false;

    CHECK_EQ(ivc_link_open(reader, self.slot, self.generation), 0);
    CHECK_EQ(ivc_link_open(region, 0, ivc_region_self(reader)->generation), 0);
    free_before = ivc_region_free_bytes(reader);
    ivc_store_release(&ivc_region_own_link(region, 0)->head, 77);
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
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
    CHECK_EQ(ivc_region_free_bytes(reader), free_before + 2 * PAGE);
    CHECK_EQ(ivc_region_open(path, &outside), 0);
    CHECK_EQ(ivc_region_retire(outside, NULL, 0), 0);
    ivc_region_free(outside);
    ivc_region_free(region);
    ivc_region_free(reader);
}

/* Of several, wherever their link tables lie: the last one decides.  One who joined later, and one who
 * left, do not. */
static void test_readers(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *readers[4], *region, *later;
    struct ivc_share between;
    uint64_t free_before;
    struct ivc_member self;

    for (unsigned i = 0; i < 4; i++) {
        readers[i] = join(path, 1);
        CHECK_EQ(ivc_region_share(readers[i], IVC_SLOT_ANY, (i + 1) * 37 * PAGE, &between), 0);
    }
    region = join(path, 1);
    self = *ivc_region_self(region);
    CHECK_EQ(ivc_link_open(readers[3], self.slot, self.generation), 0);
    ivc_region_free(readers[2]);
    free_before = ivc_region_free_bytes(readers[0]);
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    CHECK_EQ(ivc_region_free_bytes(readers[0]), free_before);
    later = join(path, 1);
    ivc_region_free(later);
    CHECK_EQ(ivc_region_free_bytes(readers[0]), free_before);
    ivc_link_close(readers[3], self.slot);
    for (unsigned i = 0; i < 100 && ivc_region_free_bytes(readers[0]) == free_before; i++)
        ivc_sleep_ms(50);
    CHECK_EQ(ivc_region_free_bytes(readers[0]), free_before + 2 * PAGE);
    ivc_region_free(region);
    for (unsigned i = 0; i < 4; i++)
        if (i != 2)
            ivc_region_free(readers[i]);
}

/* Nobody holds anything: then nothing is protected, and no signal is taken. */
static void test_nothing_held(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *region = join(path, 1);
    struct sigaction before, after;
    struct ivc_share share;

    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, BIG, &share), 0);
    memset(share.memory, 1, share.size);
    CHECK_EQ(sigaction(SIGSEGV, NULL, &before), 0);
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    CHECK_EQ(sigaction(SIGSEGV, NULL, &after), 0);
    CHECK(before.sa_sigaction == after.sa_sigaction && !region->stores_guarded);
    CHECK_EQ(mappings_of(path), 0);
    CHECK_EQ(sum_of(share.memory, share.size), 0);
    memset(share.memory, 1, share.size);
    ivc_region_free(region);
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

/* The first one counts in memory that is held, the others in lent memory. */
static void start_writer(struct ivc_region *region, struct writer *writer, bool lent,
                         struct iovec *ret_memory)
{
    struct ivc_share share;

    if (lent)
        CHECK_EQ(ivc_region_lend(region, BIG, &ret_memory->iov_base), 0);
    else
        CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, BIG, &share), 0);
    if (!lent)
        ret_memory->iov_base = share.memory;
    ret_memory->iov_len = BIG;
    writer->counters = ret_memory->iov_base;
    writer->n = BIG / PAGE;
    CHECK_EQ(pthread_create(&writer->thread, NULL, count_up, writer), 0);
}

/* Each round: threads count in memory of ours while the region retires under them.  A store that
 * went to the window after it was copied, or was dropped, is missing from the sum. */
static void test_no_store_lost(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = join(path, 1);

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct ivc_region *region = join(path, 1);
        struct writer writers[WRITERS] = { 0 };
        struct iovec memory[WRITERS];

        for (unsigned i = 0; i < WRITERS; i++)
            start_writer(region, &writers[i], i > 0, &memory[i]);
        for (unsigned i = 0; i < WRITERS; i++)
            wait_for_writer(&writers[i]);
        ivc_sleep_ms(round % 7);
        CHECK(!ivc_region_look_if_lost(region));    /* no room for the file's pages, say */
        CHECK_THAT(ivc_region_retire(region, memory, 1) == 0, "%s", ivc_error_text());
        for (unsigned i = 0; i < WRITERS; i++) {
            wait_for_writer(&writers[i]);
            ivc_store_relaxed(&writers[i].stop, 1);
            CHECK_EQ(pthread_join(writers[i].thread, NULL), 0);
            CHECK_THAT(sum(&writers[i]) == ivc_load_relaxed(&writers[i].made),
                       "round %u, writer %u: %" PRIu64 " of %" PRIu64, round, i, sum(&writers[i]),
                       ivc_load_relaxed(&writers[i].made));
            CHECK_EQ(ivc_region_take_back(region, memory[i].iov_base), i > 0 ? 0 : -EINVAL);
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
    void *memory;
    uint64_t start;
    char *nowhere;

    CHECK_EQ(ivc_region_lend(region, PAGE, &memory), 0);
    forbidden = nowhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQ(sigaction(SIGSEGV, &own, NULL), 0);
    touch_forbidden();
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    touch_forbidden();
    CHECK_EQ(faults, 2);
    /* In memory that was lent, and at once: we have no part in it. */
    forbidden = memory;
    CHECK_EQ(mprotect(memory, PAGE, PROT_NONE), 0);
    start = ivc_now_ms();
    touch_forbidden();
    touch_forbidden();
    CHECK_EQ(faults, 4);
    CHECK(ivc_now_ms() - start < 5000);
    CHECK_EQ(mprotect(memory, PAGE, PROT_READ | PROT_WRITE), 0);
    *forbidden = 1;
    forbidden = nowhere;
    ivc_region_free(region);
    touch_forbidden();
    CHECK_EQ(faults, 5);
    CHECK_EQ(sigaction(SIGSEGV, NULL, &now), 0);
    CHECK(now.sa_sigaction == on_own_fault);
}

/* Without a handler a fault ends the process, as it always did. */
static int fault(void *arg)
{
    struct ivc_region *region = join(arg, 1);
    void *memory;

    CHECK_EQ(ivc_region_lend(region, PAGE, &memory), 0);
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    *(volatile char *)8 = 1;
    return 0;
}

static int send_itself(void *arg)
{
    struct ivc_region *region = join(arg, 1);
    void *memory;

    CHECK_EQ(ivc_region_lend(region, PAGE, &memory), 0);
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
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
    CHECK_EQ(ivc_region_retire(region, NULL, 0), -EBADF);
    CHECK_TEXT(ivc_error_text(), path, "closed");
    other = open("/dev/null", O_RDWR);
    CHECK_EQ(dup2(other, region->mapping.fd), region->mapping.fd);     /* a stranger's now */
    other = region->mapping.fd;
    CHECK_EQ(ivc_region_retire(region, NULL, 0), -EBADF);
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
    { "readers", test_readers, 0 },
    { "nothing held", test_nothing_held, 0 },
    /* Threads that never pause, and sleepers that must see them: 1 s alone, 20 s among 30 others. */
    { "no store is lost", test_no_store_lost, 300 },
    { "an application's own handler", test_own_handler, 0 },
    { "no handler", test_no_handler, 0 },
    { "refused", test_refused, 0 },
};
CHECK_MAIN(cases)
