/*
 * What receive.c (posting), arrive.c (what arrives) and peek.c (looking before receiving) share.
 *
 * A *post* is a receive: first it waits in the matcher, then a message lands by it, then it
 * completes and is free again.  One with FI_MULTI_RECV stays in the matcher while it has room; each
 * of its messages lands by a post of its own.
 * An *early* is a message that no receive waited for: its payload is kept, or, when it was only
 * offered, left with the sender until a receive says where it goes.
 *
 * Invariants.  Each post ends with exactly one completion or error (if one is due), and each
 * message that wants an acknowledgement gets it when it has landed or was thrown away.  A buffer is
 * reported as released (FI_MULTI_RECV) when nothing lands in it any more.
 */
#ifndef IVC_LIBFABRIC_RECEIVE_H
#define IVC_LIBFABRIC_RECEIVE_H

#include "internal.h"
#include "match.h"

#include <string.h>

#define RARELY(condition) __builtin_expect(!!(condition), 0)

enum { EARLY_SMALL = 256 };     /* bytes of payload that need no memory of their own */

/* What a message told about itself. */
struct about {
    struct ivc_fi_peer *peer;
    uint64_t tag, data;
    size_t len;
    uint32_t id;                /* the sender's operation */
    uint16_t flags;             /* the header's */
};

struct post {
    struct ivc_fi_sink sink;    /* first: a message's arg */
    struct post *next_free;
    struct ivc_fi_posted wait;
    struct ivc_fi_match *match;
    void *context;
    uint64_t flags;             /* of the completion: FI_RECV | FI_TAGGED, ... */
    bool report;                /* write a completion when all went well */
    /* Of a FI_MULTI_RECV receive; iov[0] is what is left of it: */
    bool multi, waiting, used_up, cancelled;
    unsigned n_iov;
    size_t capacity;
    struct post *buffer;        /* the FI_MULTI_RECV receive that this one is a part of */
    struct iovec iov[IVC_FI_IOV_MAX];
    struct about about;         /* the message that lands */
    size_t min_left;            /* of a FI_MULTI_RECV receive, too */
    uint32_t landing;           /* messages on their way into it */
};

enum early_state { ARRIVING, OFFERED, COMPLETE, LOST };

struct early {
    struct ivc_fi_sink sink;    /* first: a message's arg */
    struct ivc_fi_early wait;
    struct ivc_fi_match *match;
    struct about about;
    enum early_state state;
    bool dropped;               /* nobody wants it: it ends when it has arrived */
    bool claimed;
    struct post *post;          /* who took it while it was arriving */
    struct ivc_arrival *offer;
    void *context;              /* of the claim */
    struct early *next;         /* of the claimed; of the free ones */
    char *payload;              /* small, or allocated */
    char small[EARLY_SMALL];
};

struct receive {
    struct post *free_posts;
    struct early *free_earlies, *claimed;
    struct post_slab *post_slabs;
    struct early_slab *early_slabs;
};

/* ---------------------------------------------------------------- receive.c */

int ivc_fi_posts_more(struct receive *receive);
/* An early with room for `size` bytes of payload; NULL: out of memory. */
struct early *ivc_fi_early_get(struct ivc_fi_ep *ep, size_t size);
void ivc_fi_early_put(struct ivc_fi_ep *ep, struct early *early);

/* Of what it returns the caller sets all that he needs. */
static inline struct post *ivc_fi_post_get(struct ivc_fi_ep *ep)
{
    struct receive *receive = ep->receive;
    struct post *post;

    if (RARELY(!receive->free_posts) && ivc_fi_posts_more(receive) != 0)
        return NULL;
    post = receive->free_posts;
    receive->free_posts = post->next_free;
    return post;
}

static inline void ivc_fi_post_put(struct ivc_fi_ep *ep, struct post *post)
{
    struct receive *receive = ep->receive;

    post->next_free = receive->free_posts;
    receive->free_posts = post;
}

static inline struct post *ivc_fi_post_of(struct ivc_fi_posted *waiting)
{
    return (struct post *)((char *)waiting - offsetof(struct post, wait));
}

/* All of a receive that waits but its memory (iov, n_iov, capacity); `flags`: the call's. */
static inline void ivc_fi_post_set(struct post *post, const struct ivc_fi_ep *ep, enum ivc_fi_kind kind,
                                   struct ivc_fi_peer *from, uint64_t tag, uint64_t ignore, uint64_t flags,
                                   void *context)
{
    bool tagged = kind == IVC_FI_KIND_TAGGED;

    post->wait.tag = tag;
    post->wait.ignore = ignore;
    post->wait.from = from;
    post->match = tagged ? ep->tagged : ep->msg;
    post->context = context;
    post->flags = FI_RECV | (tagged ? FI_TAGGED : FI_MSG);
    post->report = !ep->rx_selective || (flags & FI_COMPLETION);
    post->buffer = NULL;
    post->multi = false;
}

static inline struct early *ivc_fi_early_find(struct ivc_fi_match *match, const struct post *post)
{
    struct ivc_fi_early *waiting = ivc_fi_match_find_early(match, post->wait.tag, post->wait.ignore,
                                                           post->wait.from);

    return waiting ? (struct early *)((char *)waiting - offsetof(struct early, wait)) : NULL;
}

/* Of a completion: a receive's, and what the header's flags add. */
static inline uint64_t ivc_fi_receive_flags(uint64_t flags, uint16_t header_flags)
{
    return flags | (header_flags & IVC_FI_WITH_DATA ? FI_REMOTE_CQ_DATA : 0);
}

/* ---------------------------------------------------------------- arrive.c */

/* `post` takes the message, which is in no list any more. */
void ivc_fi_take(struct ivc_fi_ep *ep, struct early *early, struct post *post);
/* Nobody wants the message, which is in no list any more. */
void ivc_fi_drop(struct ivc_fi_ep *ep, struct early *early);
/* Takes the part of a buffer in which a message of that length lands; NULL: out of memory. */
struct post *ivc_fi_carve(struct ivc_fi_ep *ep, struct post *buffer, size_t len);
/* The application gets its buffer back, by an event of its own. */
void ivc_fi_buffer_release(struct ivc_fi_ep *ep, struct post *buffer);
/* A receive that no message landed by ends with an error. */
void ivc_fi_report_unmet(struct ivc_fi_ep *ep, const struct post *post, int err);

/* ---------------------------------------------------------------- peek.c */

void ivc_fi_peek(struct ivc_fi_ep *ep, const struct post *probe, uint64_t flags);
ssize_t ivc_fi_claim(struct ivc_fi_ep *ep, struct post *post, uint64_t flags);

#endif
