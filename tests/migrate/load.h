/*
 * The load of a rank: messages and packets to all others, and the check of what comes from them.
 *
 * Both ends compute length and bytes of number n by the same rule, so a byte of another message,
 * another time or another place is noticed.  Messages and packets are numbered apart, per
 * direction: each must come once and in its turn.
 */
#ifndef IVC_TESTS_MIGRATE_LOAD_H
#define IVC_TESTS_MIGRATE_LOAD_H

#include "board.h"
#include "endpoint/message.h"

struct load;

/* A wrong byte, a lost message: tells the board, and ends the process. */
__attribute__((format(printf, 2, 3), noreturn))
void load_fault(struct load *load, const char *format, ...);

/* Opens the endpoint of rank `own` by its environment. */
struct load *load_open(struct board *board, uint32_t own);
void load_connect(struct load *load);
void load_close(struct load *load);
struct ivc_endpoint *load_endpoint(struct load *load);
/* Has `fn` called once, from the end of the next handler: nobody else is at work on the
 * endpoint. */
void load_inside(struct load *load, void (*fn)(void *arg), void *arg);

/* Starts what may be started. */
void load_start_some(struct load *load);
/* Progress, and what waits for it; the number of packets that came. */
int load_progress(struct load *load);
/* Everything that was started has left us. */
bool load_is_sent(const struct load *load);
/* Sleeps until something comes, `ms` at most. */
void load_wait(struct load *load, int ms);
/* The last message that was told to have been started was not (a deliberate fault). */
void load_tell_one_more(struct load *load, uint32_t to);

#endif
