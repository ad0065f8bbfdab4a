/*
 * Descriptors: where they come from, what memory they have, how they end.
 *
 * Invariant: the user's bytes are copied once on our side.  A large contiguous
 * piece stays where it is until there is room in the region, unless it was copied
 * there ahead (btl_ivc_ahead.c); a large scattered one is packed straight into
 * the region, and into private memory only when the region is full at that moment.
 */
#include "btl_ivc.h"

#include <stdlib.h>

#include "base/copy.h"
#include "base/error.h"

OBJ_CLASS_INSTANCE(ivc_btl_frag, mca_btl_base_descriptor_t, NULL, NULL);

static int frag_init(opal_free_list_item_t *item, void *home)
{
    struct ivc_btl_frag *frag = (struct ivc_btl_frag *) item;

    frag->home = home;
    frag->base.des_segments = frag->segments;
    frag->in_region = false;
    return OPAL_SUCCESS;
}

static bool list_init(opal_free_list_t *list, size_t payload, int num, int max)
{
    return opal_free_list_init(list, sizeof(struct ivc_btl_frag), opal_cache_line_size,
                               OBJ_CLASS(ivc_btl_frag), payload, opal_cache_line_size, num, max,
                               mca_btl_ivc_component.free_list_inc, NULL, 0, NULL, frag_init, list)
           == OPAL_SUCCESS;
}

static bool lists_init(struct ivc_btl_module *m)
{
    int num = mca_btl_ivc_component.free_list_num, max = mca_btl_ivc_component.free_list_max;

    m->limited = max > 0;
    return list_init(&m->frags_header, 0, num, max)
           && list_init(&m->frags_eager, m->super.btl_eager_limit, num, max)
           && list_init(&m->frags_max, m->packet_max, num, max)
           && list_init(&m->frags_answer, 0, 0, -1);
}

/* The lists and the rest of what a module holds beside its endpoint. */
int ivc_btl_frags_init(struct ivc_btl_module *m)
{
    OBJ_CONSTRUCT(&m->lock, opal_mutex_t);
    OBJ_CONSTRUCT(&m->lent_lock, opal_mutex_t);
    OBJ_CONSTRUCT(&m->ahead_lock, opal_mutex_t);
    OBJ_CONSTRUCT(&m->waiting, opal_list_t);
    OBJ_CONSTRUCT(&m->done, opal_list_t);
    OBJ_CONSTRUCT(&m->received, mca_btl_base_descriptor_t);
    OBJ_CONSTRUCT(&m->frags_header, opal_free_list_t);
    OBJ_CONSTRUCT(&m->frags_eager, opal_free_list_t);
    OBJ_CONSTRUCT(&m->frags_max, opal_free_list_t);
    OBJ_CONSTRUCT(&m->frags_answer, opal_free_list_t);
    m->received.des_segments = m->received_segments;
    m->flat = malloc(ivc_endpoint_double_max(m->endpoint));
    if (m->flat != NULL && lists_init(m))
        return OPAL_SUCCESS;
    ivc_btl_frags_fini(m);
    return OPAL_ERR_OUT_OF_RESOURCE;
}

void ivc_btl_frags_fini(struct ivc_btl_module *m)
{
    OBJ_DESTRUCT(&m->frags_answer);
    OBJ_DESTRUCT(&m->frags_max);
    OBJ_DESTRUCT(&m->frags_eager);
    OBJ_DESTRUCT(&m->frags_header);
    OBJ_DESTRUCT(&m->received);
    OBJ_DESTRUCT(&m->done);
    OBJ_DESTRUCT(&m->waiting);
    OBJ_DESTRUCT(&m->ahead_lock);
    OBJ_DESTRUCT(&m->lent_lock);
    OBJ_DESTRUCT(&m->lock);
    free(m->flat);
    m->flat = NULL;
}

static struct ivc_btl_frag *frag_take(opal_free_list_t *list,
                                      struct mca_btl_base_endpoint_t *endpoint, uint32_t flags)
{
    struct ivc_btl_frag *frag = (struct ivc_btl_frag *) opal_free_list_get(list);

    if (OPAL_LIKELY(frag != NULL)) {
        frag->endpoint = endpoint;
        frag->status = OPAL_SUCCESS;
        frag->unreadable = false;
        frag->follows.endpoint = NULL;
        frag->base.des_segment_count = 1;
        frag->base.des_flags = flags;
        frag->base.order = MCA_BTL_NO_ORDER;
    }
    return frag;
}

/* A descriptor with `size` private bytes in one segment; NULL when no list has so many. */
struct ivc_btl_frag *ivc_btl_frag_get(struct mca_btl_base_endpoint_t *endpoint, size_t size,
                                      uint32_t flags)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag;

    if (size <= IVC_BTL_HEADER_MAX)
        frag = frag_take(&m->frags_header, endpoint, flags);
    else if (size <= m->super.btl_eager_limit)
        frag = frag_take(&m->frags_eager, endpoint, flags);
    else if (size <= m->packet_max)
        frag = frag_take(&m->frags_max, endpoint, flags);
    else
        return NULL;
    if (OPAL_UNLIKELY(frag == NULL))
        return NULL;
    frag->segments[0].seg_addr.pval = size <= IVC_BTL_HEADER_MAX ? (void *) frag->header
                                                                 : frag->base.super.ptr;
    frag->segments[0].seg_len = size;
    return frag;
}

/* One for what we send ourselves, of at most a header's length.  ob1 is not told when it completes, so it must not
 * take the place of a descriptor that ob1 waits for. */
struct ivc_btl_frag *ivc_btl_frag_get_answer(struct mca_btl_base_endpoint_t *endpoint, size_t size)
{
    struct ivc_btl_frag *frag
        = frag_take(&ivc_btl_module.frags_answer, endpoint, MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);

    if (OPAL_UNLIKELY(frag == NULL))
        return NULL;
    frag->base.des_cbfunc = NULL;
    frag->segments[0].seg_addr.pval = frag->header;
    frag->segments[0].seg_len = size;
    return frag;
}

void ivc_btl_frag_return(struct ivc_btl_frag *frag)
{
    if (frag->in_region) {
        ivc_endpoint_buffer_free(ivc_btl_module.endpoint, &frag->buffer);
        frag->in_region = false;
    }
    opal_free_list_return(frag->home, &frag->base.super);
}

int ivc_btl_free(mca_btl_base_module_t *btl, mca_btl_base_descriptor_t *descriptor)
{
    (void) btl;
    ivc_btl_frag_return((struct ivc_btl_frag *) descriptor);
    return OPAL_SUCCESS;
}

/* ob1 asks here for control messages and for buffered sends, an eager fragment at most, so
 * private memory it is.  A full queue is no reason to refuse a control message: the peer waits for it. */
mca_btl_base_descriptor_t *ivc_btl_alloc(mca_btl_base_module_t *btl,
                                         struct mca_btl_base_endpoint_t *endpoint, uint8_t order,
                                         size_t size, uint32_t flags)
{
    struct ivc_btl_frag *frag;

    (void) btl;
    (void) order;
    if (size > IVC_BTL_HEADER_MAX && ivc_btl_queue_full(endpoint))
        return NULL;
    frag = ivc_btl_frag_get(endpoint, size, flags);
    return frag != NULL ? &frag->base : NULL;
}

/* The first bytes of a message of which more will follow. */
static void note_follows(struct ivc_btl_frag *frag, const opal_convertor_t *convertor, uint8_t *data, size_t size)
{
    ivc_btl_ahead_end(NULL, convertor);     /* of another message, whose request is used again */
    frag->follows.endpoint = frag->endpoint;
    frag->follows.convertor = convertor;
    frag->follows.data = data + size;
    frag->follows.len = convertor->local_size - size;
}

static void limit_size(size_t most, size_t reserve, size_t *size)
{
    if (reserve + *size > most)
        *size = most - reserve;
}

/* Whether a piece is to be a double packet, if it can be had: ob1 takes as long for any piece. Not near the end, where
 * both sides copy at the same time for longer when pieces are shorter. */
static bool wants_double(const struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor,
                         size_t total)
{
    enum { LEFT_LEAST = 96 << 10 };

    return total > ivc_btl_module.packet_max && endpoint->queued == 0
           && convertor->local_size - convertor->bConverted >= LEFT_LEAST;
}

/* Copies a long piece into the region, behind room for a header. */
static bool copy_double(struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor,
                        const void *data, size_t reserve, size_t size, struct ivc_buffer *ret_buffer)
{
    struct ivc_endpoint *e = ivc_btl_module.endpoint;

    if (!wants_double(endpoint, convertor, reserve + size) || ivc_btl_is_lent(endpoint, data, size)
        || ivc_endpoint_buffer_get(e, endpoint->peer, reserve + size, ret_buffer) != 0)
        return false;
    ivc_copy(ret_buffer->side, (char *) ret_buffer->data + reserve, data, size);
    ivc_endpoint_buffer_filled(ret_buffer);
    return true;
}

/* The data stays where it is: a header of ours, then the user's memory.  ob1 keeps that memory
 * untouched until the completion callback. */
static struct ivc_btl_frag *prepare_in_place(struct mca_btl_base_endpoint_t *endpoint,
                                             opal_convertor_t *convertor, size_t reserve,
                                             size_t *size, uint32_t flags)
{
    struct ivc_btl_frag *frag = ivc_btl_frag_get(endpoint, reserve, flags);
    void *data;

    if (OPAL_UNLIKELY(frag == NULL))
        return NULL;
    opal_convertor_get_current_pointer(convertor, &data);
    if (convertor->bConverted > 0)
        frag->in_region = ivc_btl_ahead_take(endpoint, convertor, data, reserve, size, &frag->buffer)
            || copy_double(endpoint, convertor, data, reserve, *size, &frag->buffer);
    if (!frag->in_region)
        limit_size(ivc_btl_module.packet_max, reserve, size);
    if (convertor->bConverted == 0 && *size < convertor->local_size)
        note_follows(frag, convertor, data, *size);
    frag->segments[1].seg_addr.pval = data;
    frag->segments[1].seg_len = *size;
    frag->base.des_segment_count = *size > 0 ? 2 : 1;
    return frag;
}

/* A descriptor whose one segment lies in the region; NULL when there is no room now. */
static struct ivc_btl_frag *frag_in_region(struct mca_btl_base_endpoint_t *endpoint, size_t size,
                                           uint32_t flags)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_frag *frag = frag_take(&m->frags_header, endpoint, flags);

    if (OPAL_UNLIKELY(frag == NULL))
        return NULL;
    if (ivc_endpoint_buffer_get(m->endpoint, endpoint->peer, size, &frag->buffer) != 0) {
        ivc_btl_frag_return(frag);
        return NULL;
    }
    frag->in_region = true;
    frag->segments[0].seg_addr.pval = frag->buffer.data;
    frag->segments[0].seg_len = size;
    return frag;
}

static struct ivc_btl_frag *prepare_packed(struct mca_btl_base_endpoint_t *endpoint,
                                           opal_convertor_t *convertor, size_t reserve,
                                           size_t *size, uint32_t flags)
{
    struct ivc_btl_frag *frag = NULL;
    struct iovec iov;
    uint32_t n_iov = 1;
    size_t total, packed;

    if (wants_double(endpoint, convertor, reserve + *size))
        frag = frag_in_region(endpoint, reserve + *size, flags);
    if (frag == NULL)
        limit_size(ivc_btl_module.packet_max, reserve, size);
    packed = *size;
    total = reserve + packed;
    if (frag == NULL && total > ivc_btl_module.send_max && endpoint->queued == 0)
        frag = frag_in_region(endpoint, total, flags);
    if (frag == NULL)
        frag = ivc_btl_frag_get(endpoint, total, flags);
    if (OPAL_UNLIKELY(frag == NULL))
        return NULL;
    iov.iov_base = (char *) frag->segments[0].seg_addr.pval + reserve;
    iov.iov_len = packed;
    if (OPAL_UNLIKELY(opal_convertor_pack(convertor, &iov, &n_iov, &packed) < 0)) {
        ivc_btl_frag_return(frag);
        return NULL;
    }
    /* A convertor may stop short of an element that does not fit. */
    frag->segments[0].seg_len = reserve + packed;
    *size = packed;
    return frag;
}

/* The first bytes of a message that ob1 announces, which would all fit into the packet that announces it.  ob1 counts what
 * it finds in a descriptor, here and at the receiver's, and sends as much of it afterwards as is left. */
static bool goes_whole(const opal_convertor_t *convertor, size_t reserve, uint32_t flags)
{
    return convertor->bConverted == 0 && (flags & MCA_BTL_DES_FLAGS_PRIORITY) != 0
           && reserve + convertor->local_size <= ivc_btl_module.packet_max;
}

mca_btl_base_descriptor_t *ivc_btl_prepare_src(mca_btl_base_module_t *btl,
                                               struct mca_btl_base_endpoint_t *endpoint,
                                               opal_convertor_t *convertor, uint8_t order,
                                               size_t reserve, size_t *size, uint32_t flags)
{
    struct ivc_btl_frag *frag;

    (void) order;
    if (OPAL_UNLIKELY(ivc_btl_queue_full(endpoint)))
        return NULL;
    if (goes_whole(convertor, reserve, flags))
        *size = convertor->local_size;
    else
        limit_size(btl->btl_max_send_size, reserve, size);
    if (!opal_convertor_need_buffers(convertor))
        frag = prepare_in_place(endpoint, convertor, reserve, size, flags);
    else
        frag = prepare_packed(endpoint, convertor, reserve, size, flags);
    return frag != NULL ? &frag->base : NULL;
}
