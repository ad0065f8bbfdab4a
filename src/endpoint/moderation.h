/*
 * Moderation of wake-ups, as network cards have it for interrupts: how often others may wake a sleeper.
 *
 * A wake-up costs whoever sends a system call and whoever sleeps some microseconds, so messages that come one by
 * one cost more than what is in them.  A sleeper that is moderated keeps still for a while after it was
 * woken: it sleeps without asking to be woken, and finds what has come meanwhile all at once.  A message is seen
 * later by that while at most; whoever has no room for another wakes it all the same.
 *
 * `IVC_MODERATION` says how much time there is between two wake-ups at least.  By default only those keep
 * still who were woken several times, each time soon after they had lain down, and have sent nothing: they
 * take what somebody sends on and on.  Whoever answers, or may be waiting for an answer, is woken at once.
 *
 * Relaxed, all of it: habits, on which nothing rests.  Several threads of an endpoint may sleep.
 */
#ifndef IVC_ENDPOINT_MODERATION_H
#define IVC_ENDPOINT_MODERATION_H

#include "base/atomics.h"

#include <stdbool.h>
#include <stdint.h>

struct ivc_moderation {
    uint64_t interval_ns;       /* between two wake-ups; IVC_MODERATION_ADAPTIVE */
    ivc_atomic_u64 from_ns;     /* when others could wake us last; ivc_now_ns() */
    ivc_atomic_u32 n_soon;      /* times in a row that they did, soon after that */
    ivc_atomic_u32 was_found;   /* the last sleep ended because something had come */
    ivc_atomic_u32 has_sent;    /* since it began */
};

#define IVC_MODERATION_ADAPTIVE UINT64_MAX

/* Negative errno, with a text: IVC_MODERATION says something else. */
int ivc_moderation_init(struct ivc_moderation *moderation);

/* A sleep begins.  Returns from when on others may wake us: `now_ns`, or later. */
uint64_t ivc_moderation_begin(struct ivc_moderation *moderation, uint64_t now_ns);

/* Something has come. */
static inline void ivc_moderation_found(struct ivc_moderation *moderation)
{
    ivc_store_relaxed(&moderation->was_found, 1);
}

static inline void ivc_moderation_sent(struct ivc_moderation *moderation)
{
    /* A load for each packet is cheaper than a store. */
    if (ivc_load_relaxed(&moderation->has_sent) == 0)
        ivc_store_relaxed(&moderation->has_sent, 1);
}

#endif
