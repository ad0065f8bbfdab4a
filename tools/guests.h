/*
 * The guests in a region, by their members: whom an order would ask, who has not answered, and why.
 *
 * Invariant: all that is read here was written by others; it is printed and compared, never
 * followed.
 */
#ifndef IVC_TOOLS_GUESTS_H
#define IVC_TOOLS_GUESTS_H

#include "region/region.h"

#include <stdbool.h>

enum { GUESTS_MAX = 64, REASON_MAX = 240 };

/* A member, and since when its heart stands still by our clock. */
struct person {
    struct ivc_member member;
    uint64_t heartbeat, since_ms;
    bool present;           /* by the last look */
    uint64_t joining_state, joining_since_ms;   /* its owner is about to join: 0: none is */
};

struct people {
    struct ivc_region *region;
    uint32_t lease_ms;
    struct person *slots;   /* one per slot of the region */
    uint32_t n_slots;
};

/* -ENOMEM. */
int people_open(struct ivc_region *region, struct people *ret_people);
void people_free(struct people *people);
/* Whether somebody, of whatever guest, is about to join: it may not have seen an order that was given
 * a moment ago. */
bool people_are_joining(const struct people *people);
/* Who is there now.  One whose heart has stood still for the lease is not: its process has died and
 * nobody was there to see it. */
void people_look(struct people *people);

/* The identities of the guest that `text` means: an identity of 16 hexadecimal digits, what is in IVC_VM or
 * the UUID of a guest, or the name of a host.  It may have several, when some of its processes may read the UUID
 * of the machine and some may not.  Nobody there: the one that the text stands for.  -ENOTUNIQ, with a text: an
 * order to these would reach more than one guest.  Returns how many, at most GUESTS_MAX. */
int guests_named(const struct people *people, const char *text, uint64_t ret_vms[GUESTS_MAX]);
/* The lowest slot of its guest, as far as can be told: of another guest is another number. */
uint32_t person_guest(const struct people *people, const struct person *person);
bool person_is_of(const struct person *person, const uint64_t *vms, unsigned n);

/* Members that do not know their rank have their process number in its place. */
bool person_has_rank(const struct person *person);
/* "rank 3 on g2 (pid 77)", or "process 77 on g2" */
void person_name(const struct person *person, char *ret_name, size_t size);
/* Why an order to these guests must not be given: this member, or one that it shares memory
 * with, does not know orders. */
bool person_is_too_old(const struct people *people, const struct person *person,
                       const uint64_t *vms, unsigned n);
/* What a member that was asked to leave is waiting for. */
void person_reason(const struct people *people, const struct person *person,
                   char ret_reason[REASON_MAX]);

#endif
