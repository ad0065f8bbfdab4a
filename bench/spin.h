/*
 * Two processes that spin on each other's words, for what measures the bare machine.
 *
 * Each word has one writer, and a line of its own.  They spin without a pause: the floor is what the machine can do,
 * not what is polite.  Two sides on one processor would each spin away a whole time slice, hence the sleep after a
 * long while.
 */
#ifndef IVC_BENCH_SPIN_H
#define IVC_BENCH_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

enum { SPIN_LINE = 128 };       /* two lines: some processors fetch them in pairs */

struct spin_word {
    _Alignas(SPIN_LINE) _Atomic uint64_t value;
};

static inline uint64_t spin_read(const struct spin_word *word)
{
    /* Acquire: pairs with the release in spin_publish(). */
    return atomic_load_explicit(&word->value, memory_order_acquire);
}

static inline void spin_publish(struct spin_word *word, uint64_t number)
{
    /* Release: what was written before is visible to whoever reads the number; what was read before is read. */
    atomic_store_explicit(&word->value, number, memory_order_release);
}

static inline void spin_wait(const struct spin_word *word, uint64_t at_least)
{
    for (unsigned spins = 0; spin_read(word) < at_least;)
        if (++spins > 1u << 24) {
            spins = 0;
            usleep(1);
        }
}

#endif
