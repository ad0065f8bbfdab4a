/*
 * Coming in: receives that the application posts, messages that arrive, and what becomes of both
 * when they have found each other (match.c).
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
#include "internal.h"
#include "match.h"

#include <string.h>

enum { SLAB_POSTS = 64, SLAB_EARLIES = 64, EARLY_SMALL = 256 };

#define RARELY(condition) __builtin_expect(!!(condition), 0)

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
    struct iovec iov[IVC_FI_IOV_MAX];
    unsigned n_iov;
    size_t capacity;
    struct about about;         /* the message that lands */

    struct post *buffer;        /* the FI_MULTI_RECV receive that this one is a part of */
    /* Of a FI_MULTI_RECV receive; iov[0] is what is left of it: */
    bool multi, waiting, used_up, cancelled;
    size_t min_left;
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

struct post_slab {
    struct post_slab *next;
    struct post posts[SLAB_POSTS];
};

struct early_slab {
    struct early_slab *next;
    struct early earlies[SLAB_EARLIES];
};

struct receive {
    struct post *free_posts;
    struct early *free_earlies, *claimed;
    struct post_slab *post_slabs;
    struct early_slab *early_slabs;
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

static int more_posts(struct receive *receive)
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

/* Of what it returns the caller sets all that he needs. */
static inline struct post *get_post(struct ivc_fi_ep *ep)
{
    struct receive *receive = ep->receive;
    struct post *post;

    if (RARELY(!receive->free_posts) && more_posts(receive) != 0)
        return NULL;
    post = receive->free_posts;
    receive->free_posts = post->next_free;
    return post;
}

static inline void put_post(struct ivc_fi_ep *ep, struct post *post)
{
    struct receive *receive = ep->receive;

    post->next_free = receive->free_posts;
    receive->free_posts = post;
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
static struct early *get_early(struct ivc_fi_ep *ep, size_t size)
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

static void put_early(struct ivc_fi_ep *ep, struct early *early)
{
    struct receive *receive = ep->receive;

    if (early->payload != early->small)
        free(early->payload);
    early->payload = NULL;
    early->next = receive->free_earlies;
    receive->free_earlies = early;
}

/* ---------------------------------------------------------------- completions */

static uint64_t completion_flags(uint64_t flags, const struct about *about)
{
    return flags | (about->flags & IVC_FI_WITH_DATA ? FI_REMOTE_CQ_DATA : 0);
}

static void report_error(struct ivc_fi_ep *ep, int err, const struct fi_cq_err_entry *what)
{
    struct fi_cq_err_entry entry = *what;

    entry.err = err;
    entry.prov_errno = err;
    if (ep->rx_cq)
        ivc_fi_cq_put_error(ep->rx_cq, &entry);
    ivc_fi_cntr_bump(ep->cntrs[IVC_FI_COUNT_RECV], true);
}

/* A receive that no message landed by. */
static void report_unmet(struct ivc_fi_ep *ep, const struct post *post, int err)
{
    report_error(ep, err, &(struct fi_cq_err_entry){
        .op_context = post->context,
        .flags = post->flags | (post->multi ? FI_MULTI_RECV : 0),
        .tag = post->wait.tag,
    });
}

static void report_landed(struct ivc_fi_ep *ep, const struct post *post, uint64_t flags, int status)
{
    const struct about *about = &post->about;
    struct fi_cq_tagged_entry entry = {
        .op_context = post->context,
        .flags = completion_flags(flags, about),
        .len = about->len,
        .buf = post->n_iov ? post->iov[0].iov_base : NULL,
        .data = about->data,
        .tag = about->tag,
    };

    if (RARELY(status != 0 || about->len > post->capacity)) {
        report_error(ep, status ? -ivc_fi_error(status) : FI_ETRUNC, &(struct fi_cq_err_entry){
            .op_context = entry.op_context, .flags = entry.flags, .buf = entry.buf,
            .data = entry.data, .tag = entry.tag,
            .len = status ? 0 : post->capacity,
            .olen = status ? 0 : about->len - post->capacity,
        });
        return;
    }
    if (post->report || (flags & FI_MULTI_RECV))
        if (ep->rx_cq)
            ivc_fi_cq_put(ep->rx_cq, &entry, about->peer->addr);
    ivc_fi_cntr_bump(ep->cntrs[IVC_FI_COUNT_RECV], false);
}

static void acknowledge(struct ivc_fi_ep *ep, const struct about *about)
{
    const struct ivc_fi_header header = {
        .len = sizeof header, .kind = IVC_FI_KIND_ACK, .id = about->id,
    };

    ivc_fi_answer(ep, about->peer, &header, NULL, 0);
}

/* ---------------------------------------------------------------- FI_MULTI_RECV */

/* The application gets its buffer back, by an event of its own. */
static void release(struct ivc_fi_ep *ep, struct post *buffer)
{
    const struct fi_cq_tagged_entry entry = {
        .op_context = buffer->context, .flags = FI_MULTI_RECV,
    };

    if (buffer->cancelled)
        report_unmet(ep, buffer, FI_ECANCELED);
    else if (ep->rx_cq)
        ivc_fi_cq_put(ep->rx_cq, &entry, FI_ADDR_NOTAVAIL);
    put_post(ep, buffer);
}

/* Takes the part of a buffer in which a message of that length lands; NULL: out of memory. */
static struct post *carve(struct ivc_fi_ep *ep, struct post *buffer, size_t len)
{
    struct post *part = get_post(ep);
    size_t taken = IVC_MIN(len, buffer->iov[0].iov_len);

    if (!part)
        return NULL;
    part->context = buffer->context;
    part->flags = buffer->flags;
    part->report = buffer->report;
    part->multi = false;
    part->buffer = buffer;
    part->iov[0] = (struct iovec){ buffer->iov[0].iov_base, taken };
    part->n_iov = 1;
    part->capacity = taken;
    buffer->iov[0].iov_base = (char *)buffer->iov[0].iov_base + taken;
    buffer->iov[0].iov_len -= taken;
    buffer->landing++;
    if (buffer->iov[0].iov_len < buffer->min_left || buffer->iov[0].iov_len == 0) {
        buffer->used_up = true;
        if (buffer->waiting)
            ivc_fi_match_remove_posted(buffer->match, &buffer->wait);
        buffer->waiting = false;
    }
    return part;
}

/* ---------------------------------------------------------------- landing */

static void finish(struct ivc_fi_ep *ep, struct post *post, int status)
{
    struct post *buffer = post->buffer;
    uint64_t flags = post->flags;

    if (RARELY(post->about.flags & IVC_FI_WANT_ACK) && status == 0)
        acknowledge(ep, &post->about);
    if (RARELY(buffer)) {
        bool last = --buffer->landing == 0 && buffer->used_up;

        if (last && !buffer->cancelled)
            flags |= FI_MULTI_RECV;
        report_landed(ep, post, flags, status);
        if (last && buffer->cancelled)
            release(ep, buffer);
        else if (last)
            put_post(ep, buffer);
    } else {
        report_landed(ep, post, flags, status);
    }
    put_post(ep, post);
}

static void post_done(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    finish(ep, message->arg, status);
}

static void out_of_memory(struct ivc_fi_ep *ep, const struct about *about, uint64_t flags)
{
    IVC_FI_WARN("no memory for a message of %zu bytes: it is lost", about->len);
    report_error(ep, FI_ENOMEM, &(struct fi_cq_err_entry){
        .flags = completion_flags(flags, about), .tag = about->tag, .data = about->data,
        .olen = about->len,
    });
}

/* A message that was kept goes where the receive wants it. */
static void scatter(const struct post *post, const char *payload)
{
    size_t left = IVC_MIN(post->about.len, post->capacity);

    for (unsigned i = 0; i < post->n_iov && left > 0; i++) {
        size_t n = IVC_MIN(left, post->iov[i].iov_len);

        memcpy(post->iov[i].iov_base, payload, n);
        payload += n;
        left -= n;
    }
}

/* `post` takes the message, which is in no list any more. */
static void take(struct ivc_fi_ep *ep, struct early *early, struct post *post)
{
    struct ivc_arrival *offer = early->offer;

    post->about = early->about;
    switch (early->state) {
    case ARRIVING:
        early->post = post;
        return;
    case OFFERED:
        put_early(ep, early);
        post->sink.done = post_done;
        ivc_mailbox_accept(ep->mailbox, offer, post->iov, post->n_iov, post);
        return;
    case COMPLETE:
        scatter(post, early->payload);
        put_early(ep, early);
        finish(ep, post, 0);
        return;
    case LOST:
        put_early(ep, early);
        finish(ep, post, IVC_E_GONE);
        return;
    }
}

/* Nobody wants the message, which is in no list any more. */
static void drop(struct ivc_fi_ep *ep, struct early *early)
{
    early->dropped = true;
    early->claimed = false;
    if (early->state == OFFERED) {
        ivc_mailbox_accept(ep->mailbox, early->offer, NULL, 0, early);
    } else if (early->state != ARRIVING) {
        if (early->state == COMPLETE && (early->about.flags & IVC_FI_WANT_ACK))
            acknowledge(ep, &early->about);
        put_early(ep, early);
    }
}

static void early_done(struct ivc_fi_ep *ep, struct ivc_message *message, int status)
{
    struct early *early = message->arg;

    early->state = status == 0 ? COMPLETE : LOST;
    early->offer = NULL;
    if (early->dropped) {
        drop(ep, early);
    } else if (early->post) {
        take(ep, early, early->post);
    } else if (status != 0 && !early->claimed) {
        ivc_fi_match_remove_early(early->match, &early->wait);
        put_early(ep, early);
    }
}

/* ---------------------------------------------------------------- what arrives */

static void keep(struct ivc_fi_ep *ep, struct ivc_message *message, struct ivc_fi_match *match,
                 const struct about *about, uint64_t flags)
{
    bool offered = message->offer != NULL;
    struct early *early = get_early(ep, offered ? 0 : about->len);

    if (early) {
        early->match = match;
        early->about = *about;
        early->wait.tag = about->tag;
        early->wait.peer = about->peer;
        if (ivc_fi_match_add_early(match, &early->wait) != 0) {
            put_early(ep, early);
            early = NULL;
        }
    }
    if (!early) {
        out_of_memory(ep, about, flags);
        return;     /* no place, no arg: the payload goes nowhere */
    }
    early->sink.done = early_done;
    early->offer = message->offer;
    early->state = offered ? OFFERED : ARRIVING;
    message->later = offered;
    message->arg = early;
    if (!offered && about->len > 0) {
        message->iov[0] = (struct iovec){ early->payload, about->len };
        message->n_iov = 1;
    }
}

static inline void start(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *header,
                         struct ivc_fi_match *match, uint64_t tag, uint64_t flags)
{
    struct ivc_fi_posted *waiting = ivc_fi_match_find_posted(match, tag, peer);
    const struct about about = {
        .peer = peer, .tag = tag, .data = header->data, .len = message->len,
        .id = header->id, .flags = header->flags,
    };
    struct post *post;

    if (RARELY(!waiting)) {
        keep(ep, message, match, &about, flags);
        return;
    }
    post = (struct post *)((char *)waiting - offsetof(struct post, wait));
    if (!post->multi)
        ivc_fi_match_remove_posted(match, waiting);
    else if (!(post = carve(ep, post, about.len))) {
        out_of_memory(ep, &about, flags);
        return;
    }
    post->sink.done = post_done;
    post->about = about;
    message->n_iov = post->n_iov;
    for (unsigned i = 0; i < post->n_iov; i++)
        message->iov[i] = post->iov[i];
    message->arg = post;
}

static void start_msg(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                      const struct ivc_fi_header *header)
{
    start(ep, peer, message, header, ep->msg, 0, FI_RECV | FI_MSG);
}

static void start_tagged(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                         struct ivc_message *message, const struct ivc_fi_header *header)
{
    start(ep, peer, message, header, ep->tagged, header->tag, FI_RECV | FI_TAGGED);
}

const struct ivc_fi_kind_ops ivc_fi_receive_msg = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_msg,
};
const struct ivc_fi_kind_ops ivc_fi_receive_tagged = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_tagged,
};

/* ---------------------------------------------------------------- what the application posts */

static struct ivc_fi_match *match_of(struct ivc_fi_ep *ep, enum ivc_fi_kind kind)
{
    return kind == IVC_FI_KIND_TAGGED ? ep->tagged : ep->msg;
}

static struct early *find_early(struct ivc_fi_match *match, const struct post *post)
{
    struct ivc_fi_early *waiting = ivc_fi_match_find_early(match, post->wait.tag, post->wait.ignore,
                                                           post->wait.from);

    return waiting ? (struct early *)((char *)waiting - offsetof(struct early, wait)) : NULL;
}

static inline struct post *new_post(struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv,
                                    struct ivc_fi_peer *from)
{
    struct post *post = get_post(ep);

    if (RARELY(!post))
        return NULL;
    post->wait.tag = recv->tag;
    post->wait.ignore = recv->ignore;
    post->wait.from = from;
    post->match = match_of(ep, recv->kind);
    post->context = recv->context;
    post->flags = FI_RECV | (recv->kind == IVC_FI_KIND_TAGGED ? FI_TAGGED : FI_MSG);
    post->report = !ep->rx_selective || (recv->flags & FI_COMPLETION);
    post->n_iov = recv->n_iov;
    post->capacity = 0;
    for (unsigned i = 0; i < recv->n_iov; i++) {
        post->iov[i] = recv->iov[i];
        post->capacity += recv->iov[i].iov_len;
    }
    post->buffer = NULL;
    post->multi = false;
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
    while (!buffer->used_up && (early = find_early(buffer->match, buffer))) {
        struct post *part = carve(ep, buffer, early->about.len);

        if (!part)
            break;
        ivc_fi_match_remove_early(early->match, &early->wait);
        take(ep, early, part);
    }
    if (!buffer->used_up && ivc_fi_match_add_posted(buffer->match, &buffer->wait) == 0)
        buffer->waiting = true;
    else
        buffer->used_up = true;     /* also without memory: then it comes back too soon */
    if (--buffer->landing == 0 && buffer->used_up)
        release(ep, buffer);
    return 0;
}

static ssize_t post_one(struct ivc_fi_ep *ep, struct post *post)
{
    struct early *early = find_early(post->match, post);

    if (RARELY(early)) {
        ivc_fi_match_remove_early(early->match, &early->wait);
        take(ep, early, post);
        return 0;
    }
    if (RARELY(post->wait.from && post->wait.from->gone)) {
        put_post(ep, post);
        return -FI_ECONNABORTED;
    }
    if (RARELY(ivc_fi_match_add_posted(post->match, &post->wait) != 0)) {
        put_post(ep, post);
        return -FI_ENOMEM;
    }
    return 0;
}

/* ---------------------------------------------------------------- peek, claim, discard */

static void report_peeked(struct ivc_fi_ep *ep, const struct post *probe, const struct about *about,
                          size_t len)
{
    const struct fi_cq_tagged_entry entry = {
        .op_context = probe->context, .flags = completion_flags(probe->flags, about),
        .len = len, .data = about->data, .tag = about->tag,
    };

    if (ep->rx_cq)
        ivc_fi_cq_put(ep->rx_cq, &entry, about->peer->addr);
}

static void peek(struct ivc_fi_ep *ep, const struct post *probe, uint64_t flags)
{
    struct receive *receive = ep->receive;
    struct early *early;

    ivc_fi_ep_progress(ep);
    early = find_early(probe->match, probe);
    if (!early) {
        const struct fi_cq_err_entry entry = {
            .op_context = probe->context, .flags = probe->flags, .tag = probe->wait.tag,
            .err = FI_ENOMSG, .prov_errno = FI_ENOMSG,
        };

        if (ep->rx_cq)
            ivc_fi_cq_put_error(ep->rx_cq, &entry);
        return;
    }
    report_peeked(ep, probe, &early->about, early->about.len);
    if (flags & (FI_CLAIM | FI_DISCARD))
        ivc_fi_match_remove_early(early->match, &early->wait);
    if (flags & FI_DISCARD) {
        drop(ep, early);
    } else if (flags & FI_CLAIM) {
        early->claimed = true;
        early->context = probe->context;
        early->next = receive->claimed;
        receive->claimed = early;
    }
}

static ssize_t claim(struct ivc_fi_ep *ep, struct post *post, uint64_t flags)
{
    struct receive *receive = ep->receive;
    struct early **at = &receive->claimed, *early;

    while (*at && ((*at)->context != post->context || (*at)->match != post->match))
        at = &(*at)->next;
    early = *at;
    if (!early) {
        put_post(ep, post);
        return -FI_ENOMSG;
    }
    *at = early->next;
    early->claimed = false;
    if (flags & FI_DISCARD) {
        report_peeked(ep, post, &early->about, 0);
        put_post(ep, post);
        drop(ep, early);
    } else {
        take(ep, early, post);
    }
    return 0;
}

static ssize_t recv_special(struct ivc_fi_ep *ep, const struct ivc_fi_recv *recv, struct post *post)
{
    if (recv->flags & FI_PEEK) {
        peek(ep, post, recv->flags);
        put_post(ep, post);
        return 0;
    }
    if (recv->flags & FI_CLAIM)
        return claim(ep, post, recv->flags);
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
    struct post *post = (struct post *)((char *)waiting - offsetof(struct post, wait));

    ivc_fi_match_remove_posted(post->match, waiting);
    if (post->multi && post->landing > 0) {
        post->waiting = false;
        post->used_up = post->cancelled = true;     /* told by the last that lands */
        return;
    }
    report_unmet(ep, post, err);
    put_post(ep, post);
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
