/*
 * Receiving: packets to ob1, and the bad news about peers.
 *
 * Invariant: an ob1 header lies in private memory, complete and in segment 0.
 */
#include "btl_ivc.h"

#include <stdio.h>
#include <string.h>

#include "opal/util/proc.h"

#include "base/copy.h"

/* head and body one behind the other in private memory. */
static void flatten(struct ivc_btl_module *m, const struct ivc_packet *packet)
{
    size_t total = (size_t) packet->head_len + packet->body_len;

    memcpy(m->flat, packet->head, packet->head_len);
    ivc_copy(packet->side, m->flat + packet->head_len, packet->body, packet->body_len);
    m->received_segments[0].seg_addr.pval = m->flat;
    m->received_segments[0].seg_len = total;
    m->received.des_segment_count = 1;
}

/* One of ours, or any one at the end, when Open MPI's upper layers are gone. */
static __opal_attribute_noinline__ void take(struct ivc_btl_module *m, struct ivc_peer *peer,
                                             const struct ivc_packet *packet)
{
    if (ivc_btl_emulate_on_packet(peer, packet))
        return;
    flatten(m, packet);
    if (packet->body_len == 0 || ivc_endpoint_body_is_whole(m->endpoint))
        ivc_btl_lent_on_packet(peer, packet->tag, m->flat,
                               (size_t) packet->head_len + packet->body_len);
}

void ivc_btl_on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct ivc_btl_module *m = arg;
    const mca_btl_active_message_callback_t *handler;

    if (OPAL_UNLIKELY(packet->tag >= MCA_BTL_TAG_MAX))
        return;
    handler = &mca_btl_base_active_message_trigger[packet->tag];
    if (OPAL_UNLIKELY(handler->cbfunc == NULL || m->closing)) {
        take(m, peer, packet);
        return;
    }
    if (OPAL_LIKELY(packet->body_len == 0)) {
        m->received_segments[0].seg_addr.pval = (void *) packet->head;
        m->received_segments[0].seg_len = packet->head_len;
        m->received.des_segment_count = 1;
    } else if (packet->tag == IVC_BTL_TAG_MATCH || packet->head_len < 40) {
        /* ob1's fast path counts the bytes of the first segment only when it looks for a truncated
         * message, so a packet of that tag must be in one piece. */
        flatten(m, packet);
        if (OPAL_UNLIKELY(!ivc_endpoint_body_is_whole(m->endpoint)))
            return;     /* it comes again */
    } else {
        m->received_segments[0].seg_addr.pval = (void *) packet->head;
        m->received_segments[0].seg_len = packet->head_len;
        m->received_segments[1].seg_addr.pval = (void *) packet->body;
        m->received_segments[1].seg_len = packet->body_len;
        m->received.des_segment_count = 2;
    }
    handler->cbfunc(&m->super, packet->tag, &m->received, handler->cbdata);
}

/* Open MPI may ask for this peer later, and has then nothing to do. */
void ivc_btl_on_arrival(void *arg, struct ivc_peer *peer)
{
    (void) arg;
    (void) ivc_btl_endpoint_of(peer);
}

/* The job cannot go on without this peer: ob1 says why and aborts it. */
void ivc_btl_lose(struct mca_btl_base_endpoint_t *endpoint, const char *reason)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct opal_proc_t *proc = endpoint->proc;
    char name[IVC_BTL_NAME_MAX], text[2 * IVC_BTL_NAME_MAX];

    endpoint->fate = IVC_BTL_DIED;
    if (m->closing)
        return;
    ivc_btl_peer_name(endpoint->peer, name);
    snprintf(text, sizeof text, "ivc: rank %s cannot be reached any more: %s; the job ends here",
             name, reason);
    if (m->error_cb != NULL)
        m->error_cb(&m->super, MCA_BTL_ERROR_FLAGS_FATAL,
                    proc != NULL ? proc : opal_proc_local_get(), text);
    else
        fprintf(stderr, "%s\n", text);
}

/* A peer that left in good order has finished its part: nothing that is still on its way to it
 * will be missed.  One that died takes the job with it. */
void ivc_btl_on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct mca_btl_base_endpoint_t *endpoint = ivc_btl_endpoint_of(peer);

    (void) arg;
    if (endpoint == NULL)
        return;
    if (reason == NULL)
        endpoint->fate = IVC_BTL_LEFT;
    else
        ivc_btl_lose(endpoint, reason);
    ivc_btl_ahead_end(endpoint, NULL);
    ivc_btl_operations_end(endpoint);
    ivc_btl_lent_end(endpoint, reason == NULL ? OPAL_SUCCESS : OPAL_ERR_UNREACH);
}
