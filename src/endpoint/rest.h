/*
 * Rest: when somebody who waits by calling progress again and again is made to sleep in between.
 *
 * MPI libraries wait in no other way.  A wait is a row of turns that find nothing, one right after the
 * other: a caller that works in between, and only looks now and then whether something has come, would be
 * kept from its work.  Work that is long shows by the clock; whether there may be any, the call stack says
 * before a sleep (base/caller.h).
 *
 * A wait is spent in turns at first, because what is about to come then comes soonest, and for a moment after
 * each sleep; how long, `IVC_SPIN` says, or what is seen of the machine does:
 *
 *  - While everybody has a processor, long: some twenty times what waking costs, so that being woken
 *    makes no wait longer by more than a twentieth.
 *  - While there are more guests that want processors than processors, short: whoever spins keeps the
 *    one away from it whom it waits for.  That is seen by jumps of the clock in a row of turns: our
 *    processor was taken away, and not by this kernel, which counts when it does that (crowd.h).
 *    Where it is this kernel, giving way after each turn does better than sleeping.
 *
 * Times are counted in ivc_cycles(), read once in so many turns.
 */
#ifndef IVC_ENDPOINT_REST_H
#define IVC_ENDPOINT_REST_H

#include "base/crowd.h"

#include <stdbool.h>
#include <stdint.h>

enum { IVC_REST_LOOK_EVERY = 8 };       /* turns that found nothing */

struct ivc_rest {
    uint32_t due_at;        /* turns in vain after which sleep is due */
    uint64_t spin_ns;       /* IVC_SPIN; see IVC_REST_ADAPTIVE */
    uint64_t since;         /* when this wait began, or later by what others took of it */
    uint64_t last;          /* the last look at the clock */
    uint64_t rested;        /* when the last sleep was over */
    uint64_t given;         /* crowd.h, at the last look */
    uint64_t pace;          /* of this processor, in cycles */
    uint32_t work;          /* how much the caller seems to do between its turns */
    uint32_t looks;         /* one after the other, of a wait, since the clock has jumped */
    uint64_t jumped;        /* when it did */
    uint64_t crowded_since;
    uint64_t looked_ns;     /* when neighbours were looked for, and what was found: */
    enum ivc_neighbours { IVC_NEIGHBOURS_NONE, IVC_NEIGHBOURS_OF_OURS, IVC_NEIGHBOURS_SILENT } neighbours;
    uint64_t only_looked;   /* when a caller that was to sleep turned out to wait for nothing */
    uint64_t late_ns;       /* by how much the last sleep was longer than it should have been */
    uint64_t start_cycles, start_ns, cycles_per_us;     /* what a cycle is; 0: not known yet */
};

#define IVC_REST_ADAPTIVE UINT64_MAX
#define IVC_REST_NEVER (UINT64_MAX - 1)

/* Negative errno, with a text: IVC_SPIN says something else. */
int ivc_rest_init(struct ivc_rest *rest);

/* A look at the clock, after a turn of a wait. */
void ivc_rest_look(struct ivc_rest *rest, const struct ivc_crowd *crowd);

/* After each turn, and after ivc_crowd_turn(). */
static inline void ivc_rest_turn(struct ivc_rest *rest, const struct ivc_crowd *crowd)
{
    if (crowd->idle >= IVC_CROWD_TURNS && crowd->idle % IVC_REST_LOOK_EVERY == 0)
        ivc_rest_look(rest, crowd);
}

/* Whether this wait (of so many turns in vain) is to go on asleep. */
static inline bool ivc_rest_is_due(const struct ivc_rest *rest, const struct ivc_crowd *crowd)
{
    return crowd->idle >= rest->due_at;
}

/* How long to sleep now, at most; 0: not.  `woken`: at once, by whatever may come; `alone`: and nothing
 * else is waited for.  Else what comes is found when
 * the sleep is over, which then lasts a small part of the wait even if it ends as late as the last one. */
uint64_t ivc_rest_ns(const struct ivc_rest *rest, bool woken, bool alone);
/* Instead of it: the caller only looks whether something has come. */
void ivc_rest_is_no_wait(struct ivc_rest *rest);
/* After it: it should have lasted `asked_ns` at most, and did `slept_ns`, which is no jump of the clock. */
void ivc_rest_is_over(struct ivc_rest *rest, uint64_t asked_ns, uint64_t slept_ns);

#endif
