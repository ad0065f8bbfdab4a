/*
 * Receives that the application posts: their memory, the posting itself, and their end when they
 * are cancelled or when the peer that they wait for is gone.  The words are explained in receive.h.
 *
 * Invariant: a post is in the matcher from ivc_fi_recv() until a message takes it (arrive.c) or it
 * ends here; never both.
 */
#include "receive.h"

enum { SLAB_POSTS = 64, SLAB_EARLIES = 64 };

struct post_slab {
    struct post_slab *next;
    struct post posts[SLAB_POSTS];
};

struct early_slab {
    struct early_slab *next;
    struct early earlies[SLAB_EARLIES];
};

/* ---------------------------------------------------------------- memory */

int ivc_fi_recv_init(struct ivc_fi_ep *ep)
{
    struct receive *receive = calloc(1, sizeof *receive);

    if (!receive || ivc_fi_match_new(&ep->msg) != 0 || ivc_fi_match_new(&ep->tagged) != 0) {
        ivc_fi_match_free(ep->msg);
        ep->msg = NULL;
        free(receive);
        return -FI_ENOMEM;
    }
    ep->receive = receive;
    return 0;
}

static void free_posts(struct post_slab *slab)
{
    while (slab) {
        struct post_slab *next = slab->next;

        free(slab);
        slab = next;
    }
}

static void free_earlies(struct early_slab *slab)
{
    while (slab) {
        struct early_slab *next = slab->next;

        for (unsigned i = 0; i < SLAB_EARLIES; i++)
            if (slab->earlies[i].payload != slab->earlies[i].small)
                free(slab->earlies[i].payload);
        free(slab);
        slab = next;
    }
}

void ivc_fi_recv_free(struct ivc_fi_ep *ep)
{
    struct receive *receive = ep->receive;

    if (!receive)
        return;
    free_posts(receive->post_slabs);
    free_earlies(receive->early_slabs);
    ivc_fi_match_free(ep->msg);
    ivc_fi_match_free(ep->tagged);
    free(receive);
    ep->msg = ep->tagged = NULL;
    ep->receive = NULL;
}

int ivc_fi_posts_more(struct receive *receive)
{
    struct post_slab *slab = malloc(sizeof *slab);

    if (!slab)
        return -FI_ENOMEM;
    slab->next = receive->post_slabs;
    receive->post_slabs = slab;
    for (unsigned i = 0; i < SLAB_POSTS; i++) {
        slab->posts[i].next_free = receive->free_posts;
        receive->free_posts = &slab->posts[i];
    }
    return 0;
}

static int more_earlies(struct receive *receive)
{
    struct early_slab *slab = malloc(sizeof *slab);

    if (!slab)
        return -FI_ENOMEM;
    slab->next = receive->early_slabs;
    receive->early_slabs = slab;
    for (unsigned i = 0; i < SLAB_EARLIES; i++) {
        slab->earlies[i].payload = NULL;
        slab->earlies[i].next = receive->free_earlies;
        receive->free_earlies = &slab->earlies[i];
    }
    return 0;
}

/* With room for `size` bytes of payload. */
struct early *ivc_fi_early_get(struct ivc_fi_ep *ep, size_t size)
{
    struct receive *receive = ep->receive;
    struct early *early;
    char *payload = NULL;

    if (!receive->free_earlies && more_earlies(receive) != 0)
        return NULL;
    if (size > EARLY_SMALL && !(payload = malloc(size)))
        return NULL;
    early = receive->free_earlies;
    receive->free_earlies = early->next;
    early->payload = payload ? payload : early->small;
    early->dropped = early->claimed = false;
    early->post = NULL;
    early->offer = NULL;
    return early;
}

void ivc_fi_early_put(struct ivc_fi_ep *ep, struct early *early)
{
    struct receive *receive = ep->receive;

    if (early->payload != early->small)
        free(early->payload);
    early->payload = NULL;
    early->next = receive->free_earlies;
    receive->free_earlies = early;
}

/* ---------------------------------------------------------------- what the application posts */

static inline struct post *new_post(struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv,
                                    struct ivc_fi_peer *from)
{
    struct post *post = ivc_fi_post_get(ep);

    if (RARELY(!post))
        return NULL;
    ivc_fi_post_set(post, ep, recv->kind, from, recv->tag, recv->ignore, recv->flags, recv->context);
    post->n_iov = recv->n_iov;
    post->capacity = 0;
    for (unsigned i = 0; i < recv->n_iov; i++) {
        post->iov[i] = recv->iov[i];
        post->capacity += recv->iov[i].iov_len;
    }
    return post;
}

/* A buffer for many messages: first those that wait. */
static ssize_t post_multi(struct ivc_fi_ep *ep, struct post *buffer)
{
    struct early *early;

    buffer->multi = true;
    buffer->waiting = buffer->used_up = buffer->cancelled = false;
    buffer->min_left = ep->min_multi_recv;
    buffer->landing = 1;        /* we: so that it outlives what ends at once */
    while (!buffer->used_up && (early = ivc_fi_early_find(buffer->match, buffer))) {
        struct post *part = ivc_fi_carve(ep, buffer, early->about.len);

        if (!part)
            break;
        ivc_fi_match_remove_early(early->match, &early->wait);
        ivc_fi_take(ep, early, part);
    }
    if (!buffer->used_up && ivc_fi_match_add_posted(buffer->match, &buffer->wait) == 0)
        buffer->waiting = true;
    else
        buffer->used_up = true;     /* also without memory: then it comes back too soon */
    if (--buffer->landing == 0 && buffer->used_up)
        ivc_fi_buffer_release(ep, buffer);
    return 0;
}

static ssize_t post_one(struct ivc_fi_ep *ep, struct post *post)
{
    struct early *early = ivc_fi_early_find(post->match, post);

    if (RARELY(early)) {
        ivc_fi_match_remove_early(early->match, &early->wait);
        ivc_fi_take(ep, early, post);
        return 0;
    }
    if (RARELY(post->wait.from && post->wait.from->gone)) {
        ivc_fi_post_put(ep, post);
        return -FI_ECONNABORTED;
    }
    if (RARELY(ivc_fi_match_add_posted(post->match, &post->wait) != 0)) {
        ivc_fi_post_put(ep, post);
        return -FI_ENOMEM;
    }
    return 0;
}

static ssize_t recv_special(struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv, struct post *post)
{
    if (recv->flags & FI_PEEK) {
        ivc_fi_peek(ep, post, recv->flags);
        ivc_fi_post_put(ep, post);
        return 0;
    }
    if (recv->flags & FI_CLAIM)
        return ivc_fi_claim(ep, post, recv->flags);
    return post_multi(ep, post);
}

/* What cannot be: peeking belongs to tagged messages, buffers of many messages to untagged ones. */
static int check(const struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv)
{
    const uint64_t lookup = FI_PEEK | FI_CLAIM | FI_DISCARD;

    if (!ep->enabled)
        return -FI_EOPBADSTATE;
    if (recv->n_iov > IVC_FI_IOV_MAX)
        return -FI_EINVAL;
    if (!(recv->flags & (lookup | FI_MULTI_RECV)))
        return 0;
    if (recv->flags & FI_MULTI_RECV)
        return recv->kind == IVC_FI_KIND_MSG && recv->n_iov == 1 && !(recv->flags & lookup)
               ? 0 : -FI_EINVAL;
    if (recv->kind != IVC_FI_KIND_TAGGED || (recv->flags & lookup) == FI_DISCARD)
        return -FI_EINVAL;
    return 0;
}

ssize_t ivc_fi_recv(struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv)
{
    struct ivc_fi_peer *from = NULL;
    struct post *post;
    int r = check(ep, recv);

    if (RARELY(r != 0))
        return r;
    if (recv->from != FI_ADDR_UNSPEC && (ep->caps & FI_DIRECTED_RECV)) {
        r = ivc_fi_ep_peer(ep, recv->from, &from);
        if (RARELY(r != 0))
            return r;
        if (RARELY(!from->watched)) {
            from->watched = true;
            ivc_endpoint_watch(ep->endpoint, from->peer);
        }
    }
    post = new_post(ep, recv, from);
    if (RARELY(!post))
        return -FI_ENOMEM;
    if (RARELY(recv->flags & (FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV)))
        return recv_special(ep, recv, post);
    return post_one(ep, post);
}

/* ---------------------------------------------------------------- cancelling, peers that go */

static bool has_context(const struct ivc_fi_posted *waiting, const void *arg)
{
    const struct post *post = (const void *)((const char *)waiting - offsetof(struct post, wait));

    return post->context == arg;
}

static bool is_from(const struct ivc_fi_posted *waiting, const void *arg)
{
    return waiting->from == arg;
}

/* Ends one that waits, with an error. */
static void end(struct ivc_fi_ep *ep, struct ivc_fi_posted *waiting, int err)
{
    struct post *post = ivc_fi_post_of(waiting);

    ivc_fi_match_remove_posted(post->match, waiting);
    if (post->multi && post->landing > 0) {
        post->waiting = false;
        post->used_up = post->cancelled = true;     /* told by the last that lands */
        return;
    }
    ivc_fi_report_unmet(ep, post, err);
    ivc_fi_post_put(ep, post);
}

ssize_t ivc_fi_recv_cancel(struct ivc_fi_ep *ep, void *context)
{
    struct ivc_fi_posted *waiting;

    if (!ep->receive)
        return -FI_ENOENT;
    waiting = ivc_fi_match_any_posted(ep->tagged, has_context, context);
    if (!waiting)
        waiting = ivc_fi_match_any_posted(ep->msg, has_context, context);
    if (!waiting)
        return -FI_ENOENT;
    end(ep, waiting, FI_ECANCELED);
    return 0;
}

void ivc_fi_recv_peer_gone(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer)
{
    struct ivc_fi_match *matches[] = { ep->tagged, ep->msg };
    struct ivc_fi_posted *waiting;

    peer->gone = true;
    for (unsigned i = 0; i < 2 && ep->receive; i++)
        while ((waiting = ivc_fi_match_any_posted(matches[i], is_from, peer)))
            end(ep, waiting, FI_ECONNABORTED);
}

/* Receives and messages are matched by peer, not by fi_addr_t: nothing has to be moved, and
 * completions take the address from the peer when they are written. */
void ivc_fi_recv_peer_named(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer)
{
    (void)ep;
    (void)peer;
}
