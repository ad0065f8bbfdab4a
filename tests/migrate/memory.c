/*
 * Memory that an MPI program has of the region (libivc-mpi-alloc.so), when its guest moves: the host
 * is answered although nobody calls the library, the bytes stay where they are, and new memory comes
 * from where the guest is then.
 */
#include "guest.h"

#include "check.h"

#include "base/atomics.h"
#include "base/error.h"
#include "base/util.h"
#include "internal.h"

enum { SIZE = 300000, ANSWER_MS = 20000 };

struct board {
    ivc_atomic_u32 phase;       /* the program's: counts what it has done */
    ivc_atomic_u32 next;        /* the host's: counts what it has done */
    ivc_atomic_u64 stores;
};

static struct board *board;
static struct host hosts[2];
static struct guest guest;

static bool is_of(const struct host *host, const void *memory)
{
    char path[96], line[512];
    unsigned long from, to;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");

    CHECK(maps && realpath(host->path, path));
    while (!found && fgets(line, sizeof line, maps))
        found = strstr(line, path) && sscanf(line, "%lx-%lx", &from, &to) == 2
            && (uintptr_t)memory >= from && (uintptr_t)memory < to;
    fclose(maps);
    return found;
}

/* Stores into the memory all the while, as a program that computes on its window does. */
static void compute_until(uint8_t *memory, uint32_t host_has_done)
{
    while (ivc_load_acquire(&board->next) < host_has_done) {
        uint64_t stores = ivc_load_relaxed(&board->stores) + 1;

        memory[stores % SIZE] ^= 0xff;
        memory[stores % SIZE] ^= 0xff;
        ivc_store_relaxed(&board->stores, stores);
    }
}

static void report(uint32_t phase)
{
    ivc_store_release(&board->phase, phase);
}

/* A member of the new region is seen a moment before its process uses that. */
static uint8_t *take_filled(uint64_t seed)
{
    uint64_t end = ivc_now_ms() + ANSWER_MS;
    uint8_t *memory = mpi_memory_take(SIZE);

    for (; !memory && ivc_now_ms() < end; memory = mpi_memory_take(SIZE))
        ivc_sleep_ms(1);
    CHECK(memory != NULL);
    check_fill(memory, SIZE, seed);
    return memory;
}

static void verify(const uint8_t *memory, uint64_t seed)
{
    uint8_t *wanted = malloc(SIZE);

    CHECK(wanted != NULL);
    check_fill(wanted, SIZE, seed);
    CHECK(memcmp(memory, wanted, SIZE) == 0);
    free(wanted);
}

static int program(void *arg)
{
    uint8_t *first, *second, *third;
    bool gives_back = *(bool *)arg;

    setenv("IVC_VM", guest.vm, 1);
    setenv("IVC_REGION", guest.link, 1);
    first = take_filled(1);
    second = take_filled(2);
    CHECK(is_of(&hosts[0], first) && is_of(&hosts[0], second));
    report(1);
    compute_until(first, 1);            /* it was asked, and has answered; there is no device */
    CHECK(!is_of(&hosts[0], first));
    verify(first, 1);
    verify(second, 2);
    CHECK(mpi_memory_take(SIZE) == NULL);
    CHECK(mpi_memory_put(second));
    report(2);
    compute_until(first, 2);            /* it is a member on the other host */
    third = take_filled(3);
    CHECK(is_of(&hosts[1], third));
    verify(first, 1);
    verify(third, 3);
    if (gives_back)
        CHECK(mpi_memory_put(first) && mpi_memory_put(third) && !mpi_memory_put(third));
    return 0;
}

static void await(uint32_t phase)
{
    uint64_t end = ivc_now_ms() + ANSWER_MS;

    while (ivc_load_acquire(&board->phase) < phase) {
        CHECK_THAT(ivc_now_ms() < end, "the program has not come to step %u", phase);
        guest_beat(&guest);
        ivc_sleep_ms(1);
    }
}

static void await_members(const struct host *host, unsigned n)
{
    uint64_t end = ivc_now_ms() + ANSWER_MS;

    while (guest_members(&guest, host) != n) {
        CHECK_THAT(ivc_now_ms() < end, "%u members on %s instead of %u", guest_members(&guest, host),
                   host->path, n);
        guest_beat(&guest);
        ivc_sleep_ms(1);
    }
}

/* The program goes on storing. */
static void await_stores(uint64_t before)
{
    uint64_t end = ivc_now_ms() + ANSWER_MS;

    while (ivc_load_relaxed(&board->stores) == before) {
        CHECK_THAT(ivc_now_ms() < end, "the program stores nothing any more");
        ivc_sleep_ms(1);
    }
}

static void move(bool gives_back)
{
    char link[96];
    uint64_t stores;
    pid_t pid;

    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (unsigned i = 0; i < 2; i++)
        CHECK_THAT(host_open(&hosts[i], check_file(i, 16 << 20)) == 0, "%s", ivc_error_text());
    snprintf(link, sizeof link, "%s-2", check_scratch);
    guest_init(&guest, "guest-of-memory", link);
    guest_place(&guest, &hosts[0]);
    pid = check_fork(program, &gives_back);
    await(1);
    await_members(&hosts[0], 1);
    stores = ivc_load_relaxed(&board->stores);
    CHECK_EQ(guest_order(&guest), 0);
    await_members(&hosts[0], 0);
    await_stores(stores);
    guest_place(&guest, NULL);
    guest_withdraw(&guest);
    ivc_store_release(&board->next, 1);
    await(2);
    guest_place(&guest, &hosts[1]);
    await_members(&hosts[1], 1);
    ivc_store_release(&board->next, 2);
    check_join(pid);
    /* Who still had memory is found dead by the others, of whom there are none. */
    if (gives_back)
        await_members(&hosts[1], 0);
    for (unsigned i = 0; i < 2; i++)
        host_close(&hosts[i]);
}

static void test_kept(void)
{
    move(false);
}

static void test_given_back(void)
{
    move(true);
}

static const struct check_case cases[] = {
    { "memory that the program keeps", test_kept, 0 },
    { "memory that is given back", test_given_back, 0 },
};

int main(int argc, char **argv)
{
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
