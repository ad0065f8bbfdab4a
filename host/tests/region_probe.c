/*
 * Looks at a region from inside a guest with nothing but a mapping: no libivc in between, so that
 * a failure here is the virtual machine's, not the library's.
 *
 *   region_probe PATH put TEXT     write a text into the region
 *   region_probe PATH get          print it
 *   region_probe PATH add N        two callers: N atomic additions each; print the sum
 *   region_probe PATH fence 0|1 N  two callers: N rounds of "store mine, fence, load yours";
 *                                  caller 0 prints how often both saw the old value
 *
 * `add` and `fence` meet once per region; they leave their counters behind.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define MAX_ROUNDS (1 << 20)
#define MAP_BYTES (8 << 20)

/* Each word in a cache line of its own. */
struct word {
    _Alignas(64) _Atomic uint64_t value;
};

struct board {
    struct word present, sum, finished; /* add */
    struct word round[2], flag[2], done; /* fence */
};

static void wait_for(struct word *word, uint64_t value)
{
    while (atomic_load_explicit(&word->value, memory_order_acquire) < value)
        ;
}

static int add(struct board *board, long count)
{
    atomic_fetch_add(&board->present.value, 1);
    wait_for(&board->present, 2);
    for (long i = 0; i < count; i++)
        atomic_fetch_add_explicit(&board->sum.value, 1, memory_order_relaxed);
    atomic_fetch_add(&board->finished.value, 1);
    wait_for(&board->finished, 2);
    printf("%lu\n", (unsigned long)atomic_load(&board->sum.value));
    return 0;
}

static int fence(struct board *board, uint8_t *own_log, uint8_t *peer_log, int me, long count)
{
    long both = 0;

    for (long i = 1; i <= count; i++) {
        atomic_store_explicit(&board->round[me].value, i, memory_order_release);
        wait_for(&board->round[!me], i);
        atomic_store_explicit(&board->flag[me].value, i, memory_order_relaxed);
        /* The guest's own full fence; what is tested is that it is one between guests, too. */
        __asm__ volatile("mfence" ::: "memory");
        own_log[i - 1] =
            atomic_load_explicit(&board->flag[!me].value, memory_order_relaxed) < (uint64_t)i;
    }
    if (me == 1) {
        atomic_store(&board->done.value, 1);
        return 0;
    }
    wait_for(&board->done, 1);
    for (long i = 0; i < count; i++)
        both += own_log[i] && peer_log[i];
    printf("%ld\n", both);
    return 0;
}

int main(int argc, char **argv)
{
    int fd = argc > 2 ? open(argv[1], O_RDWR) : -1;
    uint8_t *base = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED) {
        perror("region_probe");
        return 1;
    }
    if (strcmp(argv[2], "put") == 0 && argc == 4)
        return !strncpy((char *)base + PAGE, argv[3], PAGE - 1);
    if (strcmp(argv[2], "get") == 0)
        return puts((char *)base + PAGE) < 0;
    if (strcmp(argv[2], "add") == 0 && argc == 4)
        return add((struct board *)base, atol(argv[3]));
    if (strcmp(argv[2], "fence") == 0 && argc == 5 && atol(argv[4]) <= MAX_ROUNDS) {
        int me = atoi(argv[3]) != 0;
        uint8_t *logs = base + (1 << 20);
        return fence((struct board *)base, logs + me * MAX_ROUNDS, logs + !me * MAX_ROUNDS, me,
                     atol(argv[4]));
    }
    fprintf(stderr, "region_probe: bad arguments\n");
    return 2;
}
