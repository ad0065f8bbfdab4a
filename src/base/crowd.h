/*
 * Whether others want the processor on which somebody waits by looking again and again: more ranks
 * than processors in a guest, a program that is just being started.  Then whoever finds nothing gives
 * way, and what it waits for comes sooner.
 *
 * The kernel knows: it counts how often it gave the processor to somebody else although the thread
 * could have gone on (getrusage(2), ru_nivcsw), which a sched_yield(2) that led to somebody counts for
 * as well.  So it is seen without asking who else there is, and ends by itself when they are gone.
 * A thread that is alone on its processor asks once in so many turns, and calls nothing else.
 *
 * Another rank that waits as well soon gives way in turn.  Whoever keeps the processor for as long as the
 * kernel lets it does not: then we take half of that for ourselves before we give way again.  It may have
 * been others who wait and keep it in the same way, so of several ranks on a processor each takes its part of that
 * half: together they take less each time, and that ends.  What we are in may be no wait at all, but a program that works and looks now and then whether something has come.
 * It looks like a wait that does not end, so the longer one lasts the seldomer its turns give way.
 *
 * One thread at a time.  Several that take turns see each other's counts change, and give way once
 * too often.
 */
#ifndef IVC_BASE_CROWD_H
#define IVC_BASE_CROWD_H

#include "base/util.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    IVC_CROWD_TURNS = 32,           /* in vain, before anything is done: a microsecond or so */
    IVC_CROWD_TURNS_MAX = 64,       /* between two that give way */
};

struct ivc_crowd {
    uint32_t idle;              /* turns since something was found */
    uint32_t yields;            /* yet to be made before the kernel is asked again */
    uint32_t rows;              /* of so many turns in vain, at which the kernel was asked or could have been */
    long switches;              /* as the kernel counted them last */
    uint32_t seen;              /* looks in a row, each soon after the one before, that found that others had it */
    uint64_t looked_at, look_cost;  /* ivc_cycles(): when it was asked, and what that took */
    uint64_t given_at, ours_for;    /* ivc_cycles(): for so long after the last time we do not give way */
    uint64_t given;             /* of them, to others */
    bool is_left;               /* to the caller, who gives way itself */
};

enum {
    IVC_CROWD_SEEN = 3,         /* looks in a row: not a helper that woke up once */
    IVC_CROWD_RECENT = 1 << 24, /* cycles: some milliseconds, more than the kernel lets one run who has company */
};

/* Whether there is more than somebody who came once, and not long ago: who hardly ever waits hardly ever looks, and
 * would keep for long to what was seen then. */
static inline bool ivc_crowd_is_here(const struct ivc_crowd *crowd)
{
    return crowd->seen >= IVC_CROWD_SEEN && ivc_cycles() - crowd->looked_at < IVC_CROWD_RECENT;
}

/* After so many turns in vain: whether this is one of those that give way, if anybody wants the processor.  So is each
 * of the first 32, every second one to 64, every fourth to 128, and so on. */
static inline bool ivc_crowd_has_turn(uint32_t idle)
{
    uint32_t every = 1;

    while (every <= idle / IVC_CROWD_TURNS && every < IVC_CROWD_TURNS_MAX)
        every *= 2;
    return (idle & (every - 1)) == 0;
}

/* Whether somebody does, and this turn gives way. */
bool ivc_crowd_waits(struct ivc_crowd *crowd);

/* Calls sched_yield(2); the answer is for how long others had the processor, of ivc_cycles(). */
uint64_t ivc_crowd_give_way(struct ivc_crowd *crowd);
/* After that, when it was longer than anybody needs who gives way in turn: keeps the processor for a while.  `waiters`
 * are the ranks on it, ourselves included. */
void ivc_crowd_keep(struct ivc_crowd *crowd, uint64_t took, unsigned waiters);

/* Before the end of a turn that made a system call, or took as long as one: it counts as many. */
static inline void ivc_crowd_long_turn(struct ivc_crowd *crowd)
{
    crowd->idle |= IVC_CROWD_TURNS - 1;     /* up to a multiple, which no count of so many turns misses */
}

/* Before each turn; true: call ivc_crowd_give_way(), holding nothing.  Before, not after it: what came
 * meanwhile is found by this turn, ahead of what the caller then looks for elsewhere. */
static inline bool ivc_crowd_is_due(struct ivc_crowd *crowd)
{
    return __builtin_expect(crowd->idle >= IVC_CROWD_TURNS, 0) && ivc_crowd_waits(crowd);
}

/* After each turn. */
static inline void ivc_crowd_turn(struct ivc_crowd *crowd, bool found)
{
    crowd->idle = found ? 0 : crowd->idle + 1;
}

#endif
