/*
 * heap: what malloc() and its kin promise, under libivc-heap.so, and messages out of what they return.
 *
 * heap: with memory of the region; heap without: there is none, and all is as without the library.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, BLOCKS = 48, STEPS = 4000, LARGE = 100000, MESSAGES = 200 };

static int rank, in_region = 1;

static void expect(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "heap: rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* As src/region/region.h has it: what the preloaded library tells the adapters. */
static int lies_in_region(const void *memory, size_t size)
{
    static _Bool (*find)(const void *, uint64_t, void *);
    uint64_t place[4];

    if (!find) {
        void *symbol = dlsym(RTLD_DEFAULT, "ivc_find_lent_1");

        expect(symbol != NULL, "libivc-heap.so is not preloaded");
        memcpy(&find, &symbol, sizeof symbol);
    }
    return find(memory, size, place);
}

struct block {
    unsigned char *memory, value;
    size_t size;
};

static int is_all(const unsigned char *memory, unsigned char value, size_t size)
{
    return size == 0 || (memory[0] == value && memcmp(memory, memory + 1, size - 1) == 0);
}

static void fill(struct block *block, void *memory, size_t size, unsigned char value)
{
    expect(memory != NULL, "no memory");
    expect(malloc_usable_size(memory) >= size, "malloc_usable_size() is less than what was asked for");
    *block = (struct block){ memset(memory, value, size), value, size };
}

static uint64_t next(uint64_t *random)
{
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random;
}

/* A new block, by each of the calls. */
static void make(struct block *block, uint64_t *random)
{
    size_t size = 1 + next(random) % (next(random) % 4 ? 60000 : 600000);
    size_t alignment = (size_t)64 << next(random) % 10;     /* to 32 KiB: more than a page, too */
    unsigned char value = (unsigned char)next(random);
    void *memory = NULL;

    switch (next(random) % 5) {
    case 0:
        memory = malloc(size);
        break;
    case 1:
        memory = calloc(size, 1);
        expect(memory && is_all(memory, 0, size), "calloc(): not zero");
        break;
    case 2:
        expect(posix_memalign(&memory, alignment, size) == 0, "posix_memalign()");
        expect((uintptr_t)memory % alignment == 0, "posix_memalign(): not aligned");
        break;
    case 3:
        memory = aligned_alloc(alignment, size);
        expect((uintptr_t)memory % alignment == 0, "aligned_alloc(): not aligned");
        break;
    default:
        memory = realloc(NULL, size);
    }
    fill(block, memory, size, value);
}

static void change(struct block *block, uint64_t *random)
{
    size_t size = 1 + next(random) % (next(random) % 4 ? 60000 : 600000);
    size_t least = size < block->size ? size : block->size;
    unsigned char *memory = realloc(block->memory, size);

    expect(memory && is_all(memory, block->value, least), "realloc(): other bytes");
    fill(block, memory, size, (unsigned char)next(random));
}

static void *work(void *seed)
{
    struct block blocks[BLOCKS] = { { 0 } };
    uint64_t random = *(uint64_t *)seed;

    for (int step = 0; step < STEPS; step++) {
        struct block *block = &blocks[next(&random) % BLOCKS];

        expect(is_all(block->memory, block->value, block->size), "a block has other bytes than were written");
        if (!block->memory) {
            make(block, &random);
        } else if (next(&random) % 3) {
            free(block->memory);
            *block = (struct block){ 0 };
        } else {
            change(block, &random);
        }
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i].memory);
    return NULL;
}

static void test_calls(void)
{
    volatile size_t too_much = PTRDIFF_MAX - 4096;     /* which the compiler would warn of */
    uint64_t seeds[THREADS];
    pthread_t threads[THREADS];
    void *memory;

    for (int i = 0; i < THREADS; i++) {
        seeds[i] = 0x9e3779b97f4a7c15ull * (uint64_t)(1 + i + THREADS * rank);
        expect(pthread_create(&threads[i], NULL, work, &seeds[i]) == 0, "pthread_create()");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    errno = 0;
    memory = calloc(too_much, 4);
    expect(memory == NULL && errno == ENOMEM, "calloc() of more than there can be");
    memory = malloc(too_much);
    expect(memory == NULL, "malloc() of more than there can be");
    expect(posix_memalign(&memory, 24, LARGE) == EINVAL, "posix_memalign() by 24");
    memory = malloc(LARGE);
    expect(lies_in_region(memory, LARGE) == in_region, "a large block lies elsewhere than it should");
    free(memory);
    memory = malloc(1000);
    expect(!lies_in_region(memory, 1000), "a small block lies in the region");
    free(memory);
}

/* 0, or what is wrong. */
static int child(unsigned char *memory)
{
    unsigned char *own;

    if (!is_all(memory, 7, LARGE))
        return 2;
    memset(memory, 8, LARGE);
    own = realloc(memory, 3 * LARGE);
    if (!own || !is_all(own, 8, LARGE))
        return 3;
    memset(own, 9, 3 * LARGE);
    free(own);
    return 0;
}

static void test_fork(void)
{
    unsigned char *memory = memset(malloc(LARGE), 7, LARGE);
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        _exit(child(memory));
    expect(pid > 0 && waitpid(pid, &status, 0) == pid, "fork()");
    expect(status == 0, "a child of fork() has other memory than its parent, or cannot use it");
    expect(is_all(memory, 7, LARGE), "a child of fork() has written into its parent's memory");
    free(memory);
    expect(system("true") == 0, "system()");
}

static void test_messages(void)
{
    uint64_t random = 1;        /* the same for all */

    for (int i = 0; i < MESSAGES; i++) {
        size_t size = 1 + next(&random) % (i % 10 ? 100000 : 3000000);
        unsigned char value = (unsigned char)(1 + i % 100);
        unsigned char *to = calloc(size, 1), *from = realloc(memset(malloc(size), value + rank, size), size + size / 2);

        MPI_Sendrecv(from, (int)size, MPI_BYTE, 1 - rank, 0, to, (int)size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        expect(is_all(to, (unsigned char)(value + 1 - rank), size), "a message has other bytes than were sent");
        free(from);
        free(to);
    }
}

int main(int argc, char **argv)
{
    void *before = malloc(LARGE);
    int ranks, level;

    in_region = argc < 2 || strcmp(argv[1], "without") != 0;
    expect(!lies_in_region(before, LARGE), "a block of before MPI_Init() lies in the region");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(ranks == 2, "wants two ranks");
    test_calls();
    test_fork();
    test_messages();
    before = realloc(before, 2 * LARGE);
    expect(lies_in_region(before, LARGE) == in_region, "a block that grew lies elsewhere than it should");
    free(before);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("heap: as it should be\n");
    MPI_Finalize();
    return 0;
}
