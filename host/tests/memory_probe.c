/*
 * Looks at a guest's memory for the lab's tests.
 *
 *     memory_probe look FILE          the text at offset 4096 of a mapping of FILE
 *     memory_probe count MIB STOP     counts up in every page of MIB MiB until the file STOP exists;
 *                                     a page that shows an older or newer pass than all has lost
 *                                     what was written to it.  Exit 1 when there was one.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, STEP = 512 };

static int look(const char *path)
{
    int fd = open(path, O_RDWR);
    char *memory = fd < 0 ? MAP_FAILED
                          : mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED) {
        perror(path);
        return 2;
    }
    printf("%.64s\n", memory + PAGE);
    return 0;
}

static uint64_t pass_once(volatile char *memory, size_t size, uint64_t pass)
{
    uint64_t wrong = 0;

    for (size_t at = 0; at < size; at += STEP) {
        volatile uint64_t *word = (volatile uint64_t *)(memory + at);

        wrong += *word != pass;
        *word = pass + 1;
    }
    return wrong;
}

static int count(size_t size, const char *stop)
{
    volatile char *memory = calloc(1, size);
    uint64_t pass = 0, wrong = 0;

    if (!memory)
        return 2;
    printf("counting\n");
    fflush(stdout);
    while (access(stop, F_OK) != 0)
        wrong += pass_once(memory, size, pass++);
    printf("passes: %llu, words that went back: %llu\n", (unsigned long long)pass,
           (unsigned long long)wrong);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "look") == 0)
        return look(argv[2]);
    if (argc == 4 && strcmp(argv[1], "count") == 0)
        return count((size_t)atoi(argv[2]) << 20, argv[3]);
    fprintf(stderr, "usage: memory_probe look FILE | count MIB STOP\n");
    return 2;
}
