/*
 * Which receive takes which message: see match.h.
 *
 * Invariants.  A waiting message is in the table of every class that exists, and in the list of all
 * by arrival.  A key exists while something is in its queue, and until sweep() comes.
 */
#include "match.h"

#include "base/util.h"

#include <errno.h>

enum { SLAB_KEYS = 128, FIRST_BUCKETS = 16 };

struct ivc_fi_match_slab {
    struct ivc_fi_match_slab *next;
    struct ivc_fi_match_key keys[SLAB_KEYS];
};

int ivc_fi_match_new(struct ivc_fi_match **ret_match)
{
    struct ivc_fi_match *match = calloc(1, sizeof *match);

    if (!match)
        return -ENOMEM;
    *ret_match = match;
    return 0;
}

void ivc_fi_match_free(struct ivc_fi_match *match)
{
    struct ivc_fi_match_slab *slab;

    if (!match)
        return;
    for (unsigned i = 0; i < match->n_classes; i++) {
        free(match->classes[i].posted.buckets);
        free(match->classes[i].early.buckets);
    }
    while ((slab = match->slabs)) {
        match->slabs = slab->next;
        free(slab);
    }
    free(match);
}

static struct ivc_fi_early *early_of(struct ivc_fi_match_link *link, unsigned class)
{
    return (struct ivc_fi_early *)((char *)(link - class) - offsetof(struct ivc_fi_early, links));
}

/* ---------------------------------------------------------------- keys */

static size_t n_buckets(const struct ivc_fi_match_table *table)
{
    return table->buckets ? (size_t)1 << (64 - table->shift) : 0;
}

/* Frees the keys whose queue is empty. */
static void sweep(struct ivc_fi_match *match, struct ivc_fi_match_table *table)
{
    for (size_t i = 0; i < n_buckets(table); i++) {
        struct ivc_fi_match_key *key, **at = &table->buckets[i];

        while ((key = *at)) {
            if (key->first) {
                at = &key->chain;
                continue;
            }
            *at = key->chain;
            key->chain = match->free_keys;
            match->free_keys = key;
            table->n_keys--;
            if (table->recent == key)
                table->recent = NULL;
        }
    }
}

/* So that there are no more keys than buckets.  Without memory it stays as it is: slower, not
 * wrong; only the first time is that an error. */
static int grow(struct ivc_fi_match_table *table)
{
    size_t before = n_buckets(table);
    size_t size = before ? 2 * before : FIRST_BUCKETS;
    struct ivc_fi_match_key **buckets, *key;

    buckets = calloc(size, sizeof *buckets);
    if (!buckets)
        return before ? 0 : -ENOMEM;
    table->shift = 64 - (unsigned)__builtin_ctzl(size);
    for (size_t i = 0; i < before; i++)
        while ((key = table->buckets[i])) {
            struct ivc_fi_match_key **bucket = &buckets[ivc_fi_match_hash(key->tag, key->peer) >> table->shift];

            table->buckets[i] = key->chain;
            key->chain = *bucket;
            *bucket = key;
        }
    free(table->buckets);
    table->buckets = buckets;
    return 0;
}

/* For one key more.  Not at once again: a sweep that frees less than half is followed by growing. */
static int make_room(struct ivc_fi_match *match, struct ivc_fi_match_table *table)
{
    size_t size = n_buckets(table);

    if (table->n_keys < size)
        return 0;
    sweep(match, table);
    return table->n_keys < size / 2 ? 0 : grow(table);
}

static int more_keys(struct ivc_fi_match *match)
{
    struct ivc_fi_match_slab *slab = malloc(sizeof *slab);

    if (!slab)
        return -ENOMEM;
    slab->next = match->slabs;
    match->slabs = slab;
    for (unsigned i = 0; i < SLAB_KEYS; i++) {
        slab->keys[i].chain = match->free_keys;
        match->free_keys = &slab->keys[i];
    }
    return 0;
}

static struct ivc_fi_match_key *new_key(struct ivc_fi_match *match, struct ivc_fi_match_table *table,
                                        uint64_t tag, const struct ivc_fi_peer *peer)
{
    struct ivc_fi_match_key *key, **bucket;

    if (make_room(match, table) != 0 || (!match->free_keys && more_keys(match) != 0))
        return NULL;
    bucket = &table->buckets[ivc_fi_match_hash(tag, peer) >> table->shift];
    key = match->free_keys;
    match->free_keys = key->chain;
    *key = (struct ivc_fi_match_key){ .tag = tag, .peer = peer, .chain = *bucket };
    *bucket = key;
    table->n_keys++;
    return key;
}

/* ---------------------------------------------------------------- queues of one key */

static int append(struct ivc_fi_match *match, struct ivc_fi_match_table *table, uint64_t tag,
                  const struct ivc_fi_peer *peer, struct ivc_fi_match_link *link)
{
    struct ivc_fi_match_key *key = ivc_fi_match_find_key(table, tag, peer);

    if (!key && !(key = new_key(match, table, tag, peer)))
        return -ENOMEM;
    ivc_fi_match_append(key, link);
    return 0;
}

/* ---------------------------------------------------------------- classes */

static int index_early(struct ivc_fi_match *match, unsigned class, struct ivc_fi_early *early)
{
    struct ivc_fi_match_class *c = &match->classes[class];

    return append(match, &c->early, early->tag & ~c->ignore, c->directed ? early->peer : NULL,
                  &early->links[class]);
}

/* A class that was not seen before: what waits is entered into its table, in order of arrival. */
static unsigned new_class(struct ivc_fi_match *match, uint64_t ignore, bool directed)
{
    unsigned class = match->n_classes;

    if (class == IVC_FI_CLASSES)
        return class;
    match->classes[class] = (struct ivc_fi_match_class){ .ignore = ignore, .directed = directed };
    for (struct ivc_fi_early *e = match->first; e; e = e->next)
        if (index_early(match, class, e) != 0) {
            for (e = e->prev; e; e = e->prev)
                ivc_fi_match_unlink(&e->links[class]);
            sweep(match, &match->classes[class].early);
            free(match->classes[class].early.buckets);
            return IVC_FI_CLASSES;
        }
    match->n_classes++;
    return class;
}

/* IVC_FI_CLASSES: it has none. */
static inline unsigned class_of(struct ivc_fi_match *match, uint64_t ignore, bool directed)
{
    unsigned class = ivc_fi_match_find_class(match, ignore, directed);

    return class < match->n_classes ? class : new_class(match, ignore, directed);
}

/* ---------------------------------------------------------------- receives */

static bool agree(uint64_t tag, const struct ivc_fi_peer *peer, uint64_t wanted, uint64_t ignore,
                  const struct ivc_fi_peer *from)
{
    return ((tag ^ wanted) & ~ignore) == 0 && (!from || from == peer);
}

static void append_other(struct ivc_fi_match *match, struct ivc_fi_match_link *link)
{
    link->next = NULL;
    link->prev = match->last_other;
    *(match->last_other ? &match->last_other->next : &match->others) = link;
    match->last_other = link;
}

void ivc_fi_match_remove_other(struct ivc_fi_match *match, struct ivc_fi_posted *posted)
{
    struct ivc_fi_match_link *link = &posted->link;

    *(link->prev ? &link->prev->next : &match->others) = link->next;
    *(link->next ? &link->next->prev : &match->last_other) = link->prev;
}

int ivc_fi_match_add_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted)
{
    unsigned class = class_of(match, posted->ignore, posted->from != NULL);

    posted->sequence = match->sequence++;
    posted->class = (int)class;
    if (class == IVC_FI_CLASSES) {
        append_other(match, &posted->link);
        return 0;
    }
    return append(match, &match->classes[class].posted, posted->tag & ~posted->ignore, posted->from,
                  &posted->link);
}

struct ivc_fi_posted *ivc_fi_match_find_other(const struct ivc_fi_match *match, uint64_t tag,
                                              const struct ivc_fi_peer *peer)
{
    struct ivc_fi_match_link *link = match->others;

    while (link) {
        struct ivc_fi_posted *posted = ivc_fi_match_posted_of(link);

        if (agree(tag, peer, posted->tag, posted->ignore, posted->from))
            return posted;
        link = link->next;
    }
    return NULL;
}

static struct ivc_fi_posted *any_in_queue(struct ivc_fi_match_link *link, ivc_fi_match_is_fn *is,
                                          const void *arg)
{
    while (link && !is(ivc_fi_match_posted_of(link), arg))
        link = link->next;
    return link ? ivc_fi_match_posted_of(link) : NULL;
}

struct ivc_fi_posted *ivc_fi_match_any_posted(const struct ivc_fi_match *match,
                                              ivc_fi_match_is_fn *is, const void *arg)
{
    struct ivc_fi_posted *found = any_in_queue(match->others, is, arg);

    for (unsigned i = 0; i < match->n_classes && !found; i++) {
        const struct ivc_fi_match_table *table = &match->classes[i].posted;

        for (size_t b = 0; b < n_buckets(table) && !found; b++)
            for (struct ivc_fi_match_key *key = table->buckets[b]; key && !found; key = key->chain)
                found = any_in_queue(key->first, is, arg);
    }
    return found;
}

/* ---------------------------------------------------------------- messages */

int ivc_fi_match_add_early(struct ivc_fi_match *match, struct ivc_fi_early *early)
{
    for (unsigned i = 0; i < match->n_classes; i++)
        if (index_early(match, i, early) != 0) {
            while (i-- > 0)
                ivc_fi_match_unlink(&early->links[i]);
            return -ENOMEM;
        }
    early->next = NULL;
    early->prev = match->last;
    *(match->last ? &match->last->next : &match->first) = early;
    match->last = early;
    return 0;
}

void ivc_fi_match_remove_early(struct ivc_fi_match *match, struct ivc_fi_early *early)
{
    for (unsigned i = 0; i < match->n_classes; i++)
        ivc_fi_match_unlink(&early->links[i]);
    *(early->prev ? &early->prev->next : &match->first) = early->next;
    *(early->next ? &early->next->prev : &match->last) = early->prev;
}

struct ivc_fi_early *ivc_fi_match_find_early(struct ivc_fi_match *match, uint64_t tag,
                                             uint64_t ignore, const struct ivc_fi_peer *from)
{
    struct ivc_fi_early *early = match->first;
    struct ivc_fi_match_key *key;
    unsigned class;

    if (!early)
        return NULL;
    class = class_of(match, ignore, from != NULL);
    if (class < IVC_FI_CLASSES) {
        key = ivc_fi_match_find_key(&match->classes[class].early, tag & ~ignore, from);
        return key && key->first ? early_of(key->first, class) : NULL;
    }
    while (early && !agree(early->tag, early->peer, tag, ignore, from))
        early = early->next;
    return early;
}

struct ivc_fi_early *ivc_fi_match_first_early(const struct ivc_fi_match *match)
{
    return match->first;
}
