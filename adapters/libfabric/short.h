/*
 * The short way: the receive and the message that are most common, inline.
 *
 * A message of a stream costs what its receiver does for it (docs/performance.md), and most of that was to hand the
 * same few words from one structure to the next. So a receive of one piece, after one like it, and a message of one
 * packet that meets such a receive go from call to matcher, and from packet to buffer and queue, here. Each answers
 * false where anything is otherwise, and has done nothing then: receive.c and arrive.c are the general way.
 *
 * Under the domain's lock, as they are.
 */
#ifndef IVC_LIBFABRIC_SHORT_H
#define IVC_LIBFABRIC_SHORT_H

#include "base/copy.h"
#include "cq.h"
#include "receive.h"

/* As ivc_fi_recv() of a tagged receive. */
static inline bool ivc_fi_post_short(struct ivc_fi_ep *ep, void *buf, size_t len, fi_addr_t addr, uint64_t tag,
                                     uint64_t ignore, void *context)
{
    struct ivc_fi_peer *from = NULL;
    struct post *post;

    if (RARELY(!ep->enabled || (ep->rx_op_flags & (FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV))))
        return false;
    if (addr != FI_ADDR_UNSPEC && (ep->caps & FI_DIRECTED_RECV)) {
        from = addr < ep->by_addr_size ? ep->by_addr[addr] : NULL;
        if (RARELY(!from || !from->watched || from->gone))
            return false;
    }
    post = ivc_fi_post_get(ep);
    if (RARELY(!post))
        return false;
    ivc_fi_post_set(post, ep, IVC_FI_KIND_TAGGED, from, tag, ignore, ep->rx_op_flags, context);
    post->n_iov = 1;
    post->iov[0].iov_base = buf;
    post->iov[0].iov_len = len;
    post->capacity = len;
    if (RARELY(!ivc_fi_match_try_add_posted(post->match, &post->wait))) {
        ivc_fi_post_put(ep, post);
        return false;
    }
    return true;
}

/* As ivc_fi_receive_tagged and what follows it; the packet's head is a header at least. */
static inline bool ivc_fi_receive_short(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                                        const struct ivc_packet *packet)
{
    const struct ivc_fi_header *header = packet->head;
    const uint64_t tag = header->tag, data = header->data;      /* words, as they were stored */
    const uint16_t flags = header->flags;
    const size_t of_head = packet->head_len - sizeof *header, n = of_head + packet->body_len;
    struct ivc_fi_posted *waiting;
    struct ivc_fi_cq *cq;
    struct post *post;
    char *to;

    if (RARELY(header->len != sizeof *header || header->kind != IVC_FI_KIND_TAGGED
               || (flags & IVC_FI_WANT_ACK) || ep->cntrs[IVC_FI_COUNT_RECV]))
        return false;
    waiting = ivc_fi_match_find_posted(ep->tagged, tag, peer);
    if (RARELY(!waiting))
        return false;
    post = ivc_fi_post_of(waiting);
    cq = post->report ? ep->rx_cq : NULL;
    if (RARELY(post->n_iov != 1 || n > post->capacity || (cq && !ivc_fi_cq_has_room(cq))))
        return false;
    to = post->iov[0].iov_base;
    ivc_copy_short(IVC_COPY_OUT, to, (const char *)(header + 1), of_head);
    if (packet->body_len > 0) {
        ivc_copy(packet->side, to + of_head, packet->body, packet->body_len);
        if (RARELY(!ivc_endpoint_body_is_whole(ep->endpoint)))
            return false;       /* it comes again, and must be waited for */
    }
    if (cq) {
        struct ivc_fi_cq_slot *slot = ivc_fi_cq_next(cq);

        slot->entry.op_context = post->context;
        slot->entry.flags = ivc_fi_receive_flags(post->flags, flags);
        slot->entry.len = n;
        slot->entry.buf = to;
        slot->entry.data = data;
        slot->entry.tag = tag;
        slot->source = peer->addr;
        ivc_fi_cq_put_next(cq);
    }
    ivc_fi_match_remove_posted(ep->tagged, waiting);
    ivc_fi_post_put(ep, post);
    return true;
}

#endif
