/*
 * Which receive takes which message.
 *
 * A matcher holds the receives that wait for a message and the messages that wait for a receive, of
 * one kind (tagged or not) of one endpoint.  A receive takes a message when their tags agree
 * outside of the receive's `ignore` bits and it names no sender or that one.  Of several receives
 * the earliest posted takes the message, of several messages the earliest arrived is taken.
 *
 * Every MPI has bits in `ignore` always, so the tag alone is no key.  But there are few different
 * (ignore, with or without a sender): for each of those, a *class*, there is one table by what
 * remains of the tag, and the sender.  All entries of one key are a queue.  So both searches cost a
 * look-up or two per class, however many entries wait.  What exceeds IVC_FI_CLASSES is kept in a
 * plain list and searched from its begin.
 *
 * Entries are the caller's; a matcher only links them.  Everything under the domain's lock.
 */
#ifndef IVC_LIBFABRIC_MATCH_H
#define IVC_LIBFABRIC_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ivc_fi_match;
struct ivc_fi_peer;

enum { IVC_FI_CLASSES = 8 };

/* Membership in the queue of one key. */
struct ivc_fi_match_link {
    struct ivc_fi_match_link *next, *prev;
    struct ivc_fi_match_key *key;
};

/* A receive that waits. */
struct ivc_fi_posted {
    uint64_t tag, ignore;
    struct ivc_fi_peer *from;       /* NULL: anyone */
    /* the matcher's */
    struct ivc_fi_match_link link;
    uint64_t sequence;
    int class;                      /* IVC_FI_CLASSES: in the list of those without a class */
};

/* A message that waits: it came too early. */
struct ivc_fi_early {
    uint64_t tag;
    struct ivc_fi_peer *peer;
    /* the matcher's */
    struct ivc_fi_early *next, *prev;                   /* in the order of arrival */
    struct ivc_fi_match_link links[IVC_FI_CLASSES];     /* in the matcher's first `n_classes` */
};

int ivc_fi_match_new(struct ivc_fi_match **ret_match);
/* Entries are left as they are.  Accepts NULL. */
void ivc_fi_match_free(struct ivc_fi_match *match);

/* The message that such a receive takes; NULL: none waits.  It stays where it is. */
struct ivc_fi_early *ivc_fi_match_find_early(struct ivc_fi_match *match, uint64_t tag,
                                             uint64_t ignore, const struct ivc_fi_peer *from);
/* The receive that takes such a message; NULL: none waits.  It stays where it is. */
struct ivc_fi_posted *ivc_fi_match_find_posted(const struct ivc_fi_match *match, uint64_t tag,
                                               const struct ivc_fi_peer *peer);

/* A receive, a message is added as the latest one: 0 or -ENOMEM. */
int ivc_fi_match_add_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted);
int ivc_fi_match_add_early(struct ivc_fi_match *match, struct ivc_fi_early *early);
void ivc_fi_match_remove_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted);
void ivc_fi_match_remove_early(struct ivc_fi_match *match, struct ivc_fi_early *early);

/* Any waiting receive for which `is` answers true; NULL: there is none.  Looks at all of them. */
typedef bool ivc_fi_match_is_fn(const struct ivc_fi_posted *posted, const void *arg);
struct ivc_fi_posted *ivc_fi_match_any_posted(const struct ivc_fi_match *match,
                                              ivc_fi_match_is_fn *is, const void *arg);
/* The earliest waiting message; NULL: there is none. */
struct ivc_fi_early *ivc_fi_match_first_early(const struct ivc_fi_match *match);

#endif
