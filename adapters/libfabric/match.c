/*
 * Which receive takes which message: see match.h.
 *
 * Invariants.  A waiting message is in the table of every class that exists, and in the list of all
 * by arrival.  A key exists while something is in its queue.
 */
#include "match.h"

#include "base/util.h"

#include <errno.h>

enum { SLAB_KEYS = 128, FIRST_BUCKETS = 16 };

/* What remains of a tag, and the sender (NULL in classes without): the entries that have these. */
struct ivc_fi_match_key {
    uint64_t tag;
    const struct ivc_fi_peer *peer;
    struct ivc_fi_match_key *chain;     /* of the bucket; of free ones */
    struct ivc_fi_match_link *first, *last;
};

struct table {
    struct ivc_fi_match_key **buckets;  /* NULL: was never used */
    unsigned shift;                     /* 64 - log2(number of buckets) */
    uint32_t n_keys;
};

struct class {
    uint64_t ignore;
    bool directed;
    struct table posted, early;
};

struct slab {
    struct slab *next;
    struct ivc_fi_match_key keys[SLAB_KEYS];
};

struct ivc_fi_match {
    struct class classes[IVC_FI_CLASSES];
    unsigned n_classes;
    uint64_t sequence;                                  /* of the next receive */
    struct ivc_fi_match_key *free_keys;
    struct ivc_fi_early *first, *last;                  /* messages by arrival */
    struct ivc_fi_match_link *others, *last_other;      /* receives without a class */
    struct slab *slabs;
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
    struct slab *slab;

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

static struct ivc_fi_posted *posted_of(struct ivc_fi_match_link *link)
{
    return (struct ivc_fi_posted *)((char *)link - offsetof(struct ivc_fi_posted, link));
}

static struct ivc_fi_early *early_of(struct ivc_fi_match_link *link, unsigned class)
{
    return (struct ivc_fi_early *)((char *)(link - class) - offsetof(struct ivc_fi_early, links));
}

/* ---------------------------------------------------------------- keys */

/* Multiplicative: the upper bits of the product depend on all bits of tag and address. */
static inline uint64_t hash(uint64_t tag, const struct ivc_fi_peer *peer)
{
    return (tag ^ (uint64_t)(uintptr_t)peer * 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u;
}

static inline struct ivc_fi_match_key *find_key(const struct table *table, uint64_t tag,
                                                const struct ivc_fi_peer *peer)
{
    struct ivc_fi_match_key *key;

    if (table->n_keys == 0)
        return NULL;
    key = table->buckets[hash(tag, peer) >> table->shift];
    while (key && (key->tag != tag || key->peer != peer))
        key = key->chain;
    return key;
}

/* So that there are no more keys than buckets.  Without memory it stays as it is: slower, not
 * wrong; only the first time is that an error. */
static int grow(struct table *table)
{
    size_t before = table->buckets ? (size_t)1 << (64 - table->shift) : 0;
    size_t size = before ? 2 * before : FIRST_BUCKETS;
    struct ivc_fi_match_key **buckets, *key;

    if (table->n_keys < before)
        return 0;
    buckets = calloc(size, sizeof *buckets);
    if (!buckets)
        return before ? 0 : -ENOMEM;
    table->shift = 64 - (unsigned)__builtin_ctzl(size);
    for (size_t i = 0; i < before; i++)
        while ((key = table->buckets[i])) {
            struct ivc_fi_match_key **bucket = &buckets[hash(key->tag, key->peer) >> table->shift];

            table->buckets[i] = key->chain;
            key->chain = *bucket;
            *bucket = key;
        }
    free(table->buckets);
    table->buckets = buckets;
    return 0;
}

static int more_keys(struct ivc_fi_match *match)
{
    struct slab *slab = malloc(sizeof *slab);

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

static struct ivc_fi_match_key *new_key(struct ivc_fi_match *match, struct table *table,
                                        uint64_t tag, const struct ivc_fi_peer *peer)
{
    struct ivc_fi_match_key *key, **bucket;

    if ((!match->free_keys && more_keys(match) != 0) || grow(table) != 0)
        return NULL;
    bucket = &table->buckets[hash(tag, peer) >> table->shift];
    key = match->free_keys;
    match->free_keys = key->chain;
    *key = (struct ivc_fi_match_key){ .tag = tag, .peer = peer, .chain = *bucket };
    *bucket = key;
    table->n_keys++;
    return key;
}

static void remove_key(struct ivc_fi_match *match, struct table *table,
                       struct ivc_fi_match_key *key)
{
    struct ivc_fi_match_key **at = &table->buckets[hash(key->tag, key->peer) >> table->shift];

    while (*at != key)
        at = &(*at)->chain;
    *at = key->chain;
    key->chain = match->free_keys;
    match->free_keys = key;
    table->n_keys--;
}

/* ---------------------------------------------------------------- queues of one key */

static int append(struct ivc_fi_match *match, struct table *table, uint64_t tag,
                  const struct ivc_fi_peer *peer, struct ivc_fi_match_link *link)
{
    struct ivc_fi_match_key *key = find_key(table, tag, peer);

    if (!key && !(key = new_key(match, table, tag, peer)))
        return -ENOMEM;
    link->key = key;
    link->next = NULL;
    link->prev = key->last;
    *(key->last ? &key->last->next : &key->first) = link;
    key->last = link;
    return 0;
}

static void unlink_from(struct ivc_fi_match *match, struct table *table,
                        struct ivc_fi_match_link *link)
{
    struct ivc_fi_match_key *key = link->key;

    *(link->prev ? &link->prev->next : &key->first) = link->next;
    *(link->next ? &link->next->prev : &key->last) = link->prev;
    if (!key->first)
        remove_key(match, table, key);
}

/* ---------------------------------------------------------------- classes */

static int index_early(struct ivc_fi_match *match, unsigned class, struct ivc_fi_early *early)
{
    struct class *c = &match->classes[class];

    return append(match, &c->early, early->tag & ~c->ignore, c->directed ? early->peer : NULL,
                  &early->links[class]);
}

static void unindex_early(struct ivc_fi_match *match, unsigned class, struct ivc_fi_early *early)
{
    unlink_from(match, &match->classes[class].early, &early->links[class]);
}

/* A class that was not seen before: what waits is entered into its table, in order of arrival. */
static unsigned new_class(struct ivc_fi_match *match, uint64_t ignore, bool directed)
{
    unsigned class = match->n_classes;

    if (class == IVC_FI_CLASSES)
        return class;
    match->classes[class] = (struct class){ .ignore = ignore, .directed = directed };
    for (struct ivc_fi_early *e = match->first; e; e = e->next)
        if (index_early(match, class, e) != 0) {
            for (e = e->prev; e; e = e->prev)
                unindex_early(match, class, e);
            free(match->classes[class].early.buckets);
            return IVC_FI_CLASSES;
        }
    match->n_classes++;
    return class;
}

/* IVC_FI_CLASSES: it has none. */
static inline unsigned class_of(struct ivc_fi_match *match, uint64_t ignore, bool directed)
{
    for (unsigned i = 0; i < match->n_classes; i++)
        if (match->classes[i].ignore == ignore && match->classes[i].directed == directed)
            return i;
    return new_class(match, ignore, directed);
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

static void unlink_other(struct ivc_fi_match *match, struct ivc_fi_match_link *link)
{
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

void ivc_fi_match_remove_posted(struct ivc_fi_match *match, struct ivc_fi_posted *posted)
{
    if (posted->class == IVC_FI_CLASSES)
        unlink_other(match, &posted->link);
    else
        unlink_from(match, &match->classes[posted->class].posted, &posted->link);
}

static struct ivc_fi_posted *find_other(const struct ivc_fi_match *match, uint64_t tag,
                                        const struct ivc_fi_peer *peer)
{
    struct ivc_fi_match_link *link = match->others;

    while (link) {
        struct ivc_fi_posted *posted = posted_of(link);

        if (agree(tag, peer, posted->tag, posted->ignore, posted->from))
            return posted;
        link = link->next;
    }
    return NULL;
}

struct ivc_fi_posted *ivc_fi_match_find_posted(const struct ivc_fi_match *match, uint64_t tag,
                                               const struct ivc_fi_peer *peer)
{
    struct ivc_fi_posted *best = match->others ? find_other(match, tag, peer) : NULL;

    for (unsigned i = 0; i < match->n_classes; i++) {
        const struct class *class = &match->classes[i];
        struct ivc_fi_match_key *key = find_key(&class->posted, tag & ~class->ignore,
                                                class->directed ? peer : NULL);

        if (key && (!best || posted_of(key->first)->sequence < best->sequence))
            best = posted_of(key->first);
    }
    return best;
}

static struct ivc_fi_posted *any_in_queue(struct ivc_fi_match_link *link, ivc_fi_match_is_fn *is,
                                          const void *arg)
{
    while (link && !is(posted_of(link), arg))
        link = link->next;
    return link ? posted_of(link) : NULL;
}

struct ivc_fi_posted *ivc_fi_match_any_posted(const struct ivc_fi_match *match,
                                              ivc_fi_match_is_fn *is, const void *arg)
{
    struct ivc_fi_posted *found = any_in_queue(match->others, is, arg);

    for (unsigned i = 0; i < match->n_classes && !found; i++) {
        const struct table *table = &match->classes[i].posted;
        size_t size = table->n_keys ? (size_t)1 << (64 - table->shift) : 0;

        for (size_t b = 0; b < size && !found; b++)
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
                unindex_early(match, i, early);
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
        unindex_early(match, i, early);
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
        key = find_key(&match->classes[class].early, tag & ~ignore, from);
        return key ? early_of(key->first, class) : NULL;
    }
    while (early && !agree(early->tag, early->peer, tag, ignore, from))
        early = early->next;
    return early;
}

struct ivc_fi_early *ivc_fi_match_first_early(const struct ivc_fi_match *match)
{
    return match->first;
}
