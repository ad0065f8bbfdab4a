/*
 * The run of a fault's case, and the steps of a move one by one, so that something can happen
 * between any two of them.
 */
#ifndef IVC_TESTS_MIGRATE_STAGE_H
#define IVC_TESTS_MIGRATE_STAGE_H

#include "run.h"

#include "check.h"

enum { STAGE_MOMENT_MS = 60 };  /* a move without a fault takes less */

extern struct run stage_run;

uint64_t stage_dice(uint64_t sides);
/* On three hosts.  Prints its seed. */
void stage_prepare_on(struct run_options options, const char *const *paths);
/* SIGSTOP: returns when it stands still. */
void stage_signal(uint32_t rank, int number);
/* Gives an order, and lets a random moment of the move come. */
void stage_order(unsigned guest);
/* Waits for the answer: true; or withdraws after `ms`. */
bool stage_await_answer(unsigned guest, unsigned ms);
/* The device comes to another host, and the order is withdrawn. */
void stage_place(unsigned guest, struct host *to);
/* Until both ranks use memory to each other, from now on. */
void stage_await_memory(uint32_t a, uint32_t b);

/* Files are removed by the program that has made them: so this is a part of it. */
static inline void stage_prepare(struct run_options options)
{
    const char *paths[] = { check_file(0, 64 << 20), check_file(1, 24 << 20),
                            check_file(2, 1 << 20) };

    stage_prepare_on(options, paths);
}

#endif
