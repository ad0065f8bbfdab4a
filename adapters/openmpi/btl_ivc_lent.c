/*
 * Payloads in lent memory (MPI_Alloc_mem with libivc-mpi-alloc.so): the receiver reads them where they
 * lie, the only copy.
 *
 *   LENT    struct lent, header     a packet of ob1's, the rest of which lies there
 *   READ    struct read             it was read; or could not be, then it is sent
 *
 * ob1 has a way of its own to have memory read in place, MCA_BTL_FLAGS_GET.  It is not used: the ob1 of
 * Open MPI 4.1 then reads as much as was sent, not as much as there is room for, and a message that is too
 * long overwrites what lies behind the buffer that was posted for it.
 *
 * Invariant: a descriptor is in its endpoint's list `lent` from before LENT is sent until READ comes or
 * the peer is gone, so that ob1 keeps the memory as it is.
 */
#include "btl_ivc.h"

#include <string.h>

#include "base/error.h"

enum {
    TAG_LENT = MCA_BTL_TAG_BTL + 16,    /* behind those of Open MPI's own */
    TAG_READ,

    /* Shorter ones are copied sooner than the peer is asked and answers. */
    LENT_LEAST = 8 * 1024,
};

struct lent {
    uint64_t where, key;        /* ivc_endpoint_show_lent() */
    uint32_t len, id;
    uint8_t tag, zero[7];       /* of the packet */
};

struct read {
    uint32_t id;
    uint32_t done;              /* 0: it must be sent */
};

bool ivc_btl_is_lent(struct mca_btl_base_endpoint_t *endpoint, const void *memory, size_t len)
{
    uint64_t where, key;

    return ivc_endpoint_show_lent(ivc_btl_module.endpoint, endpoint->peer, memory, len, &where, &key);
}

/* The name that it has in the list. */
static uint32_t list_append(struct mca_btl_base_endpoint_t *endpoint, struct ivc_btl_frag *frag)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    uint32_t id;

    OPAL_THREAD_LOCK(&m->lent_lock);
    id = frag->lent_id = ++endpoint->lent_ids;
    opal_list_append(&endpoint->lent, (opal_list_item_t *) frag);
    OPAL_THREAD_UNLOCK(&m->lent_lock);
    return id;
}

/* NULL: nothing of that name waits, or not any more. */
static struct ivc_btl_frag *list_take(struct mca_btl_base_endpoint_t *endpoint, uint32_t id)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *one, *found = NULL;

    OPAL_THREAD_LOCK(&m->lent_lock);
    OPAL_LIST_FOREACH(one, &endpoint->lent, struct ivc_btl_frag) {
        if (one->lent_id == id) {
            found = one;
            break;
        }
    }
    if (found != NULL)
        opal_list_remove_item(&endpoint->lent, (opal_list_item_t *) found);
    OPAL_THREAD_UNLOCK(&m->lent_lock);
    return found;
}

/* Whether it may go this way: a header of ours, then the user's memory, and not yet tried in vain. */
static bool suits(const struct ivc_btl_frag *frag)
{
    return frag->base.des_segment_count == 2 && frag->segments[1].seg_len >= LENT_LEAST
           && frag->tag != IVC_BTL_TAG_MATCH && !frag->unreadable;
}

int ivc_btl_lent_post(struct ivc_btl_frag *frag)
{
    struct mca_btl_base_endpoint_t *endpoint = frag->endpoint;
    const mca_btl_base_segment_t *segments = frag->segments;
    struct lent lent = { .tag = frag->tag };
    struct iovec iov[2] = { { &lent, sizeof lent } };
    int rc;

    if (!suits(frag) || !ivc_endpoint_show_lent(ivc_btl_module.endpoint, endpoint->peer,
                                                segments[1].seg_addr.pval, segments[1].seg_len,
                                                &lent.where, &lent.key))
        return OPAL_ERR_NOT_AVAILABLE;
    lent.len = (uint32_t) segments[1].seg_len;
    iov[1].iov_base = segments[0].seg_addr.pval;
    iov[1].iov_len = segments[0].seg_len;
    lent.id = list_append(endpoint, frag);
    rc = ivc_endpoint_send(ivc_btl_module.endpoint, endpoint->peer, TAG_LENT, iov, 2);
    /* Not there any more: the peer was found to be gone meanwhile, which has ended it. */
    if (rc == 0 || list_take(endpoint, lent.id) == NULL)
        return IVC_BTL_LATER;
    return ivc_btl_answer(endpoint, rc);
}

/* The packet as ob1 knows it.  False: its bytes cannot be had. */
static bool deliver(struct mca_btl_base_endpoint_t *endpoint, const struct lent *lent, void *header,
                    size_t header_len)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    const mca_btl_active_message_callback_t *handler
        = &mca_btl_base_active_message_trigger[lent->tag];
    const void *memory = NULL;

    if (handler->cbfunc != NULL)
        memory = ivc_endpoint_view_lent(m->endpoint, endpoint->peer, lent->where, lent->key, lent->len);
    if (memory == NULL)
        return false;
    m->received_segments[0].seg_addr.pval = header;
    m->received_segments[0].seg_len = header_len;
    m->received_segments[1].seg_addr.pval = (void *) memory;
    m->received_segments[1].seg_len = lent->len;
    m->received.des_segment_count = 2;
    handler->cbfunc(&m->super, lent->tag, &m->received, handler->cbdata);
    if (!ivc_endpoint_view_is_whole(m->endpoint))
        ivc_btl_lose(endpoint, "the shared memory was taken away while a message was read in it");
    ivc_btl_profile_received(endpoint->peer, lent->tag, header, header_len, header_len + lent->len);
    return true;
}

static void reply(struct mca_btl_base_endpoint_t *endpoint, uint32_t id, bool done)
{
    struct ivc_btl_frag *frag = ivc_btl_frag_get_answer(endpoint, sizeof(struct read));
    struct read read = { .id = id, .done = done };

    if (frag == NULL) {
        ivc_btl_lose(endpoint, "out of memory");
        return;
    }
    memcpy(frag->header, &read, sizeof read);
    if (ivc_btl_send(&ivc_btl_module.super, endpoint, &frag->base, TAG_READ) != OPAL_SUCCESS)
        ivc_btl_frag_return(frag);      /* the peer is gone */
}

/* What is no LENT, or no READ of ours, is dropped: whoever sends such a thing waits for an answer in vain. */
static void take_lent(struct mca_btl_base_endpoint_t *endpoint, uint8_t *packet, size_t len)
{
    struct lent lent;

    if (len < sizeof lent)
        return;
    memcpy(&lent, packet, sizeof lent);
    if (lent.tag >= MCA_BTL_TAG_MAX || lent.tag == IVC_BTL_TAG_MATCH || lent.len == 0)
        return;
    /* At the end nobody wants it any more. */
    reply(endpoint, lent.id, ivc_btl_module.closing
          || deliver(endpoint, &lent, packet + sizeof lent, len - sizeof lent));
}

static void take_read(struct mca_btl_base_endpoint_t *endpoint, const uint8_t *packet, size_t len)
{
    struct ivc_btl_frag *frag;
    struct read read;

    if (len < sizeof read)
        return;
    memcpy(&read, packet, sizeof read);
    frag = list_take(endpoint, read.id);
    if (frag == NULL)
        return;
    frag->unreadable = read.done == 0;
    if (frag->unreadable)
        ivc_btl_queue_append(frag);
    else
        ivc_btl_done_append(frag);
    /* ob1 sends the next piece when it hears of it: before we copy what the peer has for us. */
    ivc_endpoint_end_turn(ivc_btl_module.endpoint);
}

void ivc_btl_lent_on_packet(struct ivc_peer *peer, uint8_t tag, uint8_t *packet, size_t len)
{
    struct mca_btl_base_endpoint_t *endpoint = ivc_peer_arg(peer);

    if (endpoint == NULL)
        return;
    if (tag == TAG_LENT)
        take_lent(endpoint, packet, len);
    else if (tag == TAG_READ)
        take_read(endpoint, packet, len);
}

bool ivc_btl_lent_waits(struct mca_btl_base_endpoint_t *endpoint)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    bool waits;

    OPAL_THREAD_LOCK(&m->lent_lock);
    waits = opal_list_get_size(&endpoint->lent) > 0;
    OPAL_THREAD_UNLOCK(&m->lent_lock);
    return waits;
}

void ivc_btl_lent_end(struct mca_btl_base_endpoint_t *endpoint, int status)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag;

    do {
        OPAL_THREAD_LOCK(&m->lent_lock);
        frag = (struct ivc_btl_frag *) opal_list_remove_first(&endpoint->lent);
        OPAL_THREAD_UNLOCK(&m->lent_lock);
        if (frag != NULL) {
            frag->status = status;
            ivc_btl_done_append(frag);
        }
    } while (frag != NULL);
}
