/* What the load sends: length and bytes of number n, by a rule that both ends know. */
#include "load-internal.h"

#include "check.h"

#include "base/util.h"

uint64_t load_seed_of(const struct load *load, enum stream stream, uint32_t from, uint32_t to,
                        uint64_t number)
{
    uint64_t seed = load->board->seed + stream;

    seed = (seed * 1000003 + from) * 1000003 + to;
    seed = seed * 1000000007 + number + 1;
    seed += seed == 0;
    (void)check_random(&seed);
    (void)check_random(&seed);
    return seed;
}

/* Most are short, some lie around the edges of packets, few are as long as it goes. */
size_t load_message_len(const struct load *load, uint32_t from, uint32_t to, uint64_t number)
{
    static const size_t edges[] = { 0, 1, 16, 40, 56, 57, 64, 4096, 5461, 32736, 32768, 65536 };
    uint64_t seed = load_seed_of(load, MESSAGES, from, to, number);
    uint64_t kind = check_random(&seed) % 100, random = check_random(&seed);
    size_t len = kind < 50 ? random % 200
        : kind < 75 ? edges[random % 12] + check_random(&seed) % 5
        : kind < 98 ? random % 100000
        : random % (load->board->longest + 1);

    return IVC_MIN(len, load->board->longest);
}

size_t load_packet_len(const struct load *load, uint32_t from, uint32_t to, uint64_t number)
{
    uint64_t seed = load_seed_of(load, PACKETS, from, to, number);
    uint64_t kind = check_random(&seed) % 100, random = check_random(&seed);

    return kind < 4 ? SIZE_MAX
        : kind < 80 ? random % 100
        : random % (PACKET_MAX - sizeof(uint64_t) + 1);
}

size_t load_wrong_at(const uint8_t *bytes, size_t len, uint64_t seed)
{
    size_t i = 0;

    for (; i + 8 <= len; i += 8) {
        uint64_t word = check_random(&seed);

        if (memcmp(bytes + i, &word, 8) != 0)
            return i;
    }
    for (; i < len; i++)
        if (bytes[i] != (uint8_t)(check_random(&seed) >> 56))
            return i;
    return len;
}
