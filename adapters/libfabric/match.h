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
 * Keys whose queue is empty stay until their table is full: mostly they are wanted again at once.
 *
 * Entries are the caller's; a matcher only links them.  Everything under the domain's lock.  What
 * most messages need is inline (short.h).
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

/* What remains of a tag, and the sender (NULL in classes without): the entries that have these. */
struct ivc_fi_match_key {
    uint64_t tag;
    const struct ivc_fi_peer *peer;
    struct ivc_fi_match_key *chain;     /* of the bucket; of free ones */
    struct ivc_fi_match_link *first, *last;
};

struct ivc_fi_match_table {
    struct ivc_fi_match_key **buckets;  /* NULL: was never used */
    unsigned shift;                     /* 64 - log2(number of buckets) */
    uint32_t n_keys;
    struct ivc_fi_match_key *recent;    /* the last one that was found, as the next one mostly is; may be NULL */
};

struct ivc_fi_match_class {
    uint64_t ignore;
    bool directed;
    struct ivc_fi_match_table posted, early;
};

struct ivc_fi_match {
    struct ivc_fi_match_class classes[IVC_FI_CLASSES];
    unsigned n_classes;
    uint64_t sequence;                                  /* of the next receive */
    struct ivc_fi_match_key *free_keys;
    struct ivc_fi_early *first, *last;                  /* messages by arrival */
    struct ivc_fi_match_link *others, *last_other;      /* receives without a class */
    struct ivc_fi_match_slab *slabs;
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
static inline struct ivc_fi_posted *ivc_fi_match_find_posted(struct ivc_fi_match *match, uint64_t tag,
                                                             const struct ivc_fi_peer *peer);

/* A receive, a message is added as the latest one: 0 or -ENOMEM. */
int ivc_fi_match_add_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted);
int ivc_fi_match_add_early(struct ivc_fi_match *match, struct ivc_fi_early *early);
/* The same for a receive, if one like it has waited before and no message waits; false: it was not added. */
static inline bool ivc_fi_match_try_add_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted);
static inline void ivc_fi_match_remove_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted);
void ivc_fi_match_remove_early(struct ivc_fi_match *match, struct ivc_fi_early *early);

/* Any waiting receive for which `is` answers true; NULL: there is none.  Looks at all of them. */
typedef bool ivc_fi_match_is_fn(const struct ivc_fi_posted *posted, const void *arg);
struct ivc_fi_posted *ivc_fi_match_any_posted(const struct ivc_fi_match *match,
                                              ivc_fi_match_is_fn *is, const void *arg);
/* The earliest waiting message; NULL: there is none. */
struct ivc_fi_early *ivc_fi_match_first_early(const struct ivc_fi_match *match);

/* ---------------------------------------------------------------- inline */

static inline struct ivc_fi_posted *ivc_fi_match_posted_of(struct ivc_fi_match_link *link)
{
    return (struct ivc_fi_posted *)((char *)link - offsetof(struct ivc_fi_posted, link));
}

/* Multiplicative: the upper bits of the product depend on all bits of tag and address. */
static inline uint64_t ivc_fi_match_hash(uint64_t tag, const struct ivc_fi_peer *peer)
{
    return (tag ^ (uint64_t)(uintptr_t)peer * 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u;
}

/* NULL: there is none.  Its queue may be empty. */
static inline struct ivc_fi_match_key *ivc_fi_match_find_key(struct ivc_fi_match_table *table, uint64_t tag,
                                                             const struct ivc_fi_peer *peer)
{
    struct ivc_fi_match_key *key = table->recent;

    if (key && key->tag == tag && key->peer == peer)
        return key;
    if (table->n_keys == 0)
        return NULL;
    key = table->buckets[ivc_fi_match_hash(tag, peer) >> table->shift];
    while (key && (key->tag != tag || key->peer != peer))
        key = key->chain;
    if (key)
        table->recent = key;
    return key;
}

static inline void ivc_fi_match_append(struct ivc_fi_match_key *key, struct ivc_fi_match_link *link)
{
    link->key = key;
    link->next = NULL;
    link->prev = key->last;
    *(key->last ? &key->last->next : &key->first) = link;
    key->last = link;
}

static inline void ivc_fi_match_unlink(struct ivc_fi_match_link *link)
{
    struct ivc_fi_match_key *key = link->key;

    *(link->prev ? &link->prev->next : &key->first) = link->next;
    *(link->next ? &link->next->prev : &key->last) = link->prev;
}

/* match->n_classes: there is none. */
static inline unsigned ivc_fi_match_find_class(const struct ivc_fi_match *match, uint64_t ignore, bool directed)
{
    unsigned i = 0;

    while (i < match->n_classes && (match->classes[i].ignore != ignore || match->classes[i].directed != directed))
        i++;
    return i;
}

static inline bool ivc_fi_match_try_add_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted)
{
    unsigned class = ivc_fi_match_find_class(match, posted->ignore, posted->from != NULL);
    struct ivc_fi_match_key *key;

    if (match->first || class == match->n_classes)
        return false;
    key = ivc_fi_match_find_key(&match->classes[class].posted, posted->tag & ~posted->ignore, posted->from);
    if (!key)
        return false;
    posted->sequence = match->sequence++;
    posted->class = (int)class;
    ivc_fi_match_append(key, &posted->link);
    return true;
}

/* A receive without a class. */
struct ivc_fi_posted *ivc_fi_match_find_other(const struct ivc_fi_match *match, uint64_t tag,
                                              const struct ivc_fi_peer *peer);
void ivc_fi_match_remove_other(struct ivc_fi_match *match, struct ivc_fi_posted *posted);

static inline struct ivc_fi_posted *ivc_fi_match_find_posted(struct ivc_fi_match *match, uint64_t tag,
                                                             const struct ivc_fi_peer *peer)
{
    struct ivc_fi_posted *best = NULL;

    if (__builtin_expect(match->others != NULL, 0))
        best = ivc_fi_match_find_other(match, tag, peer);

    for (unsigned i = 0; i < match->n_classes; i++) {
        struct ivc_fi_match_class *class = &match->classes[i];
        struct ivc_fi_match_key *key = ivc_fi_match_find_key(&class->posted, tag & ~class->ignore,
                                                             class->directed ? peer : NULL);

        if (key && key->first && (!best || ivc_fi_match_posted_of(key->first)->sequence < best->sequence))
            best = ivc_fi_match_posted_of(key->first);
    }
    return best;
}

static inline void ivc_fi_match_remove_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted)
{
    if (__builtin_expect(posted->class == IVC_FI_CLASSES, 0))
        ivc_fi_match_remove_other(match, posted);
    else
        ivc_fi_match_unlink(&posted->link);
}

#endif
