/*
 * Test data of which every byte is known: it follows from (seed, source, destination, sequence
 * number, offset), so that a byte from another message, another place or another time is noticed.
 */
#ifndef IVC_TESTS_MPI_PATTERN_H
#define IVC_TESTS_MPI_PATTERN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pattern {
    uint64_t seed;
    int src, dst;
    uint64_t seq;
};

/* A bijection that spreads every input bit over the whole word. */
static inline uint64_t pattern_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t pattern_key(const struct pattern *p)
{
    uint64_t pair = (uint64_t)(uint32_t)p->src << 32 | (uint32_t)p->dst;

    return pattern_mix(pattern_mix(pattern_mix(p->seed) ^ pair) ^ p->seq);
}

static inline void pattern_fill(const struct pattern *p, void *to, size_t size)
{
    uint64_t key = pattern_key(p);
    unsigned char *byte = to;

    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = pattern_mix(key + at);

        memcpy(byte + at, &word, size - at < 8 ? size - at : 8);
    }
}

static inline unsigned char pattern_byte(const struct pattern *p, size_t at)
{
    uint64_t word = pattern_mix(pattern_key(p) + (at & ~(size_t)7));
    unsigned char bytes[8];

    memcpy(bytes, &word, 8);
    return bytes[at & 7];
}

/* The offset of the first wrong byte; `size` when there is none. */
static inline size_t pattern_check(const struct pattern *p, const void *from, size_t size)
{
    uint64_t key = pattern_key(p);
    const unsigned char *byte = from;

    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = pattern_mix(key + at);
        size_t n = size - at < 8 ? size - at : 8;

        if (memcmp(byte + at, &word, n) == 0)
            continue;
        while (byte[at] == pattern_byte(p, at))
            at++;
        return at;
    }
    return size;
}

/* A stream of random numbers; equal states give equal streams on all ranks. */
static inline uint64_t pattern_random(uint64_t *state)
{
    return pattern_mix((*state)++ ^ 0x5bf03635u);
}

/* A size in [0, max]: one time in three just around a limit of some transport, else spread evenly
 * over the orders of magnitude. */
static inline size_t pattern_size(uint64_t *state, size_t max)
{
    static const size_t edges[] = {
        0, 1, 8, 26, 32, 40, 42, 48, 56, 64, 128, 256, 1024, 2048, 4040, 4064, 4096, 8192,
        16384, 32736, 32768, 65504, 65536, 131072, 262144, 1048576,
    };
    uint64_t random = pattern_random(state);
    size_t size;

    if (random % 3 == 0) {
        size = edges[(random >> 8) % (sizeof edges / sizeof *edges)];
        size += (random >> 32) % 5;
        size -= size >= 2 ? 2 : 0;
    } else {
        unsigned bits = 1;

        while (bits < 8 * sizeof max - 1 && (size_t)1 << bits <= max)
            bits++;
        size = pattern_random(state) >> (64 - (1 + (random >> 8) % bits));
    }
    return size <= max ? size : max;
}

#endif
