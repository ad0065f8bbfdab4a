/*
 * full: blocks of malloc() and messages out of them while the file system that the region's file lies on fills up.
 *
 * full FILE: rank 0 fills FILE, on that file system, when a third of the steps are done, and removes it when two
 * thirds are.  Every block and every message has the bytes that were written, whatever there is room for.
 *
 * full FILE shorten: FILE is the region's; rank 0 shortens it to its half instead.  The job ends, and nobody has seen
 * other bytes before.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 150, BLOCKS = 40, MIB = 1 << 20 };

static int rank;

static void expect(int good, const char *what, int step)
{
    if (good)
        return;
    fprintf(stderr, "full: rank %d: step %d: %s\n", rank, step, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

struct block {
    uint64_t *words, value;
    size_t n;
};

static uint64_t next(uint64_t *random)
{
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random;
}

static int is_right(const uint64_t *words, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (words[i] != value + i)
            return 0;
    return 1;
}

static void renew(struct block *block, uint64_t *random, int step)
{
    free(block->words);
    block->n = MIB / 16 + next(random) % (MIB / 8);
    block->value = next(random) + (uint64_t)rank;
    block->words = malloc(block->n * sizeof *block->words);
    expect(block->words != NULL, "no memory", step);
    for (size_t i = 0; i < block->n; i++)
        block->words[i] = block->value + i;
}

/* Both ranks have the same sizes. */
static void exchange(const struct block *block, int step)
{
    uint64_t value, *to = malloc(block->n * sizeof *to);

    expect(to != NULL, "no memory", step);
    MPI_Sendrecv(&block->value, 1, MPI_UINT64_T, 1 - rank, 0, &value, 1, MPI_UINT64_T, 1 - rank, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(block->words, (int)block->n, MPI_UINT64_T, 1 - rank, 1, to, (int)block->n, MPI_UINT64_T, 1 - rank, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(is_right(to, value, block->n), "a message has other bytes than were sent", step);
    free(to);
}

static void fill(const char *path)
{
    static char zeroes[MIB];
    size_t size = sizeof zeroes;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    expect(fd >= 0, "cannot make the file", 0);
    while (size > 0)
        if (write(fd, zeroes, size) <= 0)
            size /= 2;
    close(fd);
}

static void shorten(const char *path)
{
    struct stat st;

    expect(stat(path, &st) == 0 && truncate(path, st.st_size / 2) == 0, "cannot shorten the file", 0);
}

int main(int argc, char **argv)
{
    static struct block blocks[BLOCKS];
    uint64_t random = 1;
    int ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    expect(ranks == 2 && argc >= 2, "wants two ranks and a file", 0);
    for (int step = 0; step < STEPS; step++) {
        struct block *block = &blocks[next(&random) % BLOCKS];

        if (rank == 0 && step == STEPS / 3)
            (argc == 2 ? fill : shorten)(argv[1]);
        if (rank == 0 && step == 2 * STEPS / 3 && argc == 2)
            unlink(argv[1]);
        expect(!block->words || is_right(block->words, block->value, block->n), "a block has other bytes", step);
        renew(block, &random, step);
        exchange(block, step);
    }
    if (rank == 0)
        printf("full: as it should be\n");
    MPI_Finalize();
    return 0;
}
