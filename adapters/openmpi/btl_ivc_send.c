/*
 * Sending: at once where there is room, by way of the queue where there is none.
 *
 * Invariant: packets to one peer leave in the order of the calls; nothing
 * overtakes a queued descriptor.
 */
#include "btl_ivc.h"

#include <errno.h>
#include <string.h>

#include "base/copy.h"
#include "base/error.h"
#include "endpoint/short.h"

/* The region has no memory for the first packet to this peer.  Other processes may give some back:
 * say why nothing moves, wait a while, then give up rather than hang. */
static int starve(struct mca_btl_base_endpoint_t *endpoint)
{
    static const uint64_t patience_ms = 10000;

    if (endpoint->starving_since == 0) {
        endpoint->starving_since = ivc_btl_now_ms();
        ivc_btl_say("wait", "%s; waiting for memory", ivc_error_text());
    }
    if (ivc_btl_now_ms() - endpoint->starving_since < patience_ms)
        return OPAL_ERR_OUT_OF_RESOURCE;
    ivc_btl_lose(endpoint, ivc_error_text());
    return OPAL_ERR_UNREACH;
}

/* Everything but success, in Open MPI's terms: "no room now", or the peer is lost. */
static __opal_attribute_noinline__ int refusal(struct mca_btl_base_endpoint_t *endpoint, int rc)
{
    if (OPAL_LIKELY(rc == IVC_E_FULL))
        return OPAL_ERR_OUT_OF_RESOURCE;
    if (rc == IVC_E_NOSPACE)
        return starve(endpoint);
    if (rc == IVC_E_GONE && endpoint->fate == IVC_BTL_LEFT)
        return OPAL_SUCCESS;                    /* it reads no more: as good as taken */
    if (rc == IVC_E_GONE && endpoint->fate == IVC_BTL_HERE)
        return OPAL_ERR_OUT_OF_RESOURCE;        /* on_gone will come and say which it is */
    if (endpoint->fate != IVC_BTL_DIED)
        ivc_btl_lose(endpoint, ivc_error_text());
    return OPAL_ERR_UNREACH;
}

/* What the endpoint answered, in Open MPI's terms. */
int ivc_btl_answer(struct mca_btl_base_endpoint_t *endpoint, int rc)
{
    return OPAL_LIKELY(rc == 0) ? OPAL_SUCCESS : refusal(endpoint, rc);
}

/* The buffer is not the caller's any more, whatever the answer. */
static int send_buffer(struct mca_btl_base_endpoint_t *endpoint, mca_btl_base_tag_t tag,
                       const struct ivc_buffer *buffer, size_t total)
{
    struct ivc_endpoint *e = ivc_btl_module.endpoint;
    int rc = ivc_endpoint_send_buffer(e, endpoint->peer, tag, buffer, total);

    if (rc != 0)
        ivc_endpoint_buffer_free(e, buffer);
    return rc == -ESTALE ? IVC_E_FULL : rc;     /* its memory is gone: all of it once more */
}

static int post_in_buffer(struct mca_btl_base_endpoint_t *endpoint, mca_btl_base_tag_t tag,
                          const struct iovec *iov, unsigned int n_iov, size_t total)
{
    struct ivc_buffer buffer;
    int rc = ivc_endpoint_buffer_get(ivc_btl_module.endpoint, endpoint->peer, total, &buffer);

    if (rc != 0)
        return rc;
    ivc_copy_gather(buffer.side, buffer.data, iov, n_iov);
    return send_buffer(endpoint, tag, &buffer, total);
}

static inline int post(struct mca_btl_base_endpoint_t *endpoint, mca_btl_base_tag_t tag,
                       const struct iovec *iov, unsigned int n_iov, size_t total)
{
    int rc;

    if (OPAL_LIKELY(total <= ivc_btl_module.send_max))
        rc = ivc_endpoint_send(ivc_btl_module.endpoint, endpoint->peer, tag, iov, n_iov);
    else
        rc = post_in_buffer(endpoint, tag, iov, n_iov, total);
    return ivc_btl_answer(endpoint, rc);
}

/* In the buffer that has a copy; false: that is gone, with the memory that it was in, and the segments are sent. */
static bool post_copy(struct ivc_btl_frag *frag, int *ret_rc)
{
    struct ivc_endpoint *e = ivc_btl_module.endpoint;
    const mca_btl_base_segment_t *segments = frag->base.des_segments;

    memcpy(frag->buffer.data, segments[0].seg_addr.pval, segments[0].seg_len);
    *ret_rc = ivc_endpoint_send_buffer(e, frag->endpoint->peer, frag->tag, &frag->buffer,
                                       segments[0].seg_len + segments[1].seg_len);
    if (*ret_rc == IVC_E_FULL)
        return true;
    if (*ret_rc != 0)
        ivc_endpoint_buffer_free(e, &frag->buffer);
    frag->in_region = false;
    return *ret_rc == 0;
}

/* Sends a descriptor's bytes; it holds no buffer of the region any more on success.  IVC_BTL_LATER: the peer
 * is to read them, and the descriptor is no longer the caller's. */
int ivc_btl_frag_post(struct ivc_btl_frag *frag)
{
    mca_btl_base_segment_t *segments = frag->base.des_segments;
    struct iovec iov[2];
    size_t total = 0;
    int rc;

    if (frag->in_region && frag->base.des_segment_count == 2 && post_copy(frag, &rc))
        return ivc_btl_answer(frag->endpoint, rc);
    if (frag->in_region) {
        rc = ivc_endpoint_send_buffer(ivc_btl_module.endpoint, frag->endpoint->peer, frag->tag,
                                      &frag->buffer, segments[0].seg_len);
        if (rc == 0)
            frag->in_region = false;
        return ivc_btl_answer(frag->endpoint, rc);
    }
    rc = ivc_btl_lent_post(frag);
    if (rc != OPAL_ERR_NOT_AVAILABLE)
        return rc;
    for (size_t i = 0; i < frag->base.des_segment_count; i++) {
        iov[i].iov_base = segments[i].seg_addr.pval;
        iov[i].iov_len = segments[i].seg_len;
        total += segments[i].seg_len;
    }
    return post(frag->endpoint, frag->tag, iov, frag->base.des_segment_count, total);
}

/* Always answers "queued" and completes from the progress function: a callback made from here
 * would let ob1 start the next pending request from inside this one, and so on without end. */
int ivc_btl_send(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                 mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    struct ivc_btl_frag *frag = (struct ivc_btl_frag *) descriptor;
    int rc;

    (void) btl;
    frag->endpoint = endpoint;
    frag->tag = tag;
    frag->base.des_flags |= MCA_BTL_DES_SEND_ALWAYS_CALLBACK;
    if (OPAL_UNLIKELY(endpoint->queued != 0)) {
        ivc_btl_queue_append(frag);
        return OPAL_SUCCESS;
    }
    rc = ivc_btl_frag_post(frag);
    if (OPAL_LIKELY(rc == OPAL_SUCCESS)) {
        /* Before the descriptor is reported: until then ob1 takes no message for sent, whoever else has answers
         * to it, and the user's memory stays as it is. */
        if (OPAL_UNLIKELY(frag->follows.endpoint != NULL))
            ivc_btl_ahead_fill(frag);
        ivc_btl_done_append(frag);
    } else if (rc == OPAL_ERR_OUT_OF_RESOURCE) {
        ivc_btl_queue_append(frag);
    } else if (rc != IVC_BTL_LATER) {
        return rc;
    }
    return OPAL_SUCCESS;
}

/* A scattered payload is gathered on the stack when it is small, in the region otherwise. */
static int sendi_packed(struct mca_btl_base_endpoint_t *endpoint, opal_convertor_t *convertor,
                        const void *header, size_t header_size, size_t payload_size,
                        mca_btl_base_tag_t tag)
{
    struct ivc_endpoint *e = ivc_btl_module.endpoint;
    size_t total = header_size + payload_size, packed = payload_size;
    char stack[1024];
    struct ivc_buffer buffer = { .data = stack };
    bool on_stack = total <= sizeof stack && total <= ivc_btl_module.send_max;
    struct iovec iov;
    uint32_t n_iov = 1;
    int rc;

    if (!on_stack) {
        rc = ivc_endpoint_buffer_get(e, endpoint->peer, total, &buffer);
        if (rc != 0)
            return ivc_btl_answer(endpoint, rc);
    }
    memcpy(buffer.data, header, header_size);
    iov.iov_base = (char *) buffer.data + header_size;
    iov.iov_len = payload_size;
    (void) opal_convertor_pack(convertor, &iov, &n_iov, &packed);
    if (on_stack) {
        iov.iov_base = stack;
        iov.iov_len = total;
        return ivc_btl_answer(endpoint, ivc_endpoint_send(e, endpoint->peer, tag, &iov, 1));
    }
    return ivc_btl_answer(endpoint, send_buffer(endpoint, tag, &buffer, total));
}

static inline int sendi_contiguous(struct mca_btl_base_endpoint_t *endpoint, opal_convertor_t *convertor,
                                   const void *header, size_t header_size, size_t payload_size,
                                   mca_btl_base_tag_t tag)
{
    void *payload = NULL;
    struct iovec iov[2];

    if (payload_size > 0)
        opal_convertor_get_current_pointer(convertor, &payload);
    if (ivc_endpoint_try_short(ivc_btl_module.endpoint, endpoint->peer, tag, header, header_size, payload,
                               payload_size))
        return OPAL_SUCCESS;
    iov[0] = (struct iovec) { (void *) header, header_size };
    iov[1] = (struct iovec) { payload, payload_size };
    return post(endpoint, tag, iov, 2, header_size + payload_size);
}

/* Without room: a descriptor for ob1 to fill and to hand to send(), if it wants one.  None is
 * given when the queue is at its end, and then there is something queued (see btl_ivc.h). */
static int sendi_refuse(struct mca_btl_base_endpoint_t *endpoint, size_t total, uint32_t flags,
                        mca_btl_base_descriptor_t **ret_descriptor)
{
    if (ret_descriptor != NULL) {
        struct ivc_btl_frag *frag = NULL;

        if (!ivc_btl_queue_full(endpoint))
            frag = ivc_btl_frag_get(endpoint, total, flags);
        *ret_descriptor = frag != NULL ? &frag->base : NULL;
    }
    return OPAL_ERR_OUT_OF_RESOURCE;
}

int ivc_btl_sendi(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                  opal_convertor_t *convertor, void *header, size_t header_size,
                  size_t payload_size, uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                  mca_btl_base_descriptor_t **ret_descriptor)
{
    int rc;

    (void) btl;
    (void) order;
    if (OPAL_UNLIKELY(endpoint->queued != 0))
        return sendi_refuse(endpoint, header_size + payload_size, flags, ret_descriptor);
    /* Without a payload there may be no convertor either. */
    if (payload_size > 0 && OPAL_UNLIKELY(opal_convertor_need_buffers(convertor)))
        rc = sendi_packed(endpoint, convertor, header, header_size, payload_size, tag);
    else
        rc = sendi_contiguous(endpoint, convertor, header, header_size, payload_size, tag);
    if (OPAL_LIKELY(rc == OPAL_SUCCESS))
        return OPAL_SUCCESS;
    if (rc == OPAL_ERR_OUT_OF_RESOURCE)
        return sendi_refuse(endpoint, header_size + payload_size, flags, ret_descriptor);
    if (ret_descriptor != NULL)
        *ret_descriptor = NULL;
    return rc;
}
