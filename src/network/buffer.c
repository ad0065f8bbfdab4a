/*
 * Buffers to send from and to receive into.
 *
 * They are allocated in slabs, registered where the provider wants that, and live as long as the
 * network.  The last one given back is the next one taken: it is still in the cache.
 */
#include "base/error.h"
#include "network/internal.h"

#include <errno.h>
#include <string.h>

void ivc_buffers_init(struct ivc_network *network)
{
    network->small = (struct ivc_buffers){
        .size = IVC_MIN(network->packet_max, (size_t)IVC_NETWORK_SMALL),
        .n_max = IVC_NETWORK_SMALL_MAX,
    };
    network->large = (struct ivc_buffers){
        .size = network->packet_max, .n_max = IVC_NETWORK_LARGE_MAX,
    };
}

static int grow(struct ivc_network *network, struct ivc_buffers *buffers)
{
    size_t each = ivc_align_up(sizeof(struct ivc_network_buffer) + buffers->size, IVC_LINE);
    struct ivc_slab *slab = calloc(1, sizeof *slab);
    void *desc = NULL;
    int r = 0;

    if (!slab)
        return -ENOMEM;
    slab->memory = aligned_alloc(IVC_LINE, each * IVC_NETWORK_SLAB);
    if (!slab->memory)
        r = -ENOMEM;
    if (r == 0 && network->local_mr) {
        r = fi_mr_reg(network->domain, slab->memory, each * IVC_NETWORK_SLAB, FI_SEND | FI_RECV, 0,
                      atomic_fetch_add(&network->next_key, 1), 0, &slab->mr, NULL);
        if (r == 0)
            desc = fi_mr_desc(slab->mr);
    }
    if (r < 0) {
        free(slab->memory);
        free(slab);
        return r;
    }
    slab->next = network->slabs;
    network->slabs = slab;
    for (unsigned i = IVC_NETWORK_SLAB; i-- > 0;) {
        struct ivc_network_buffer *buffer = (void *)(slab->memory + i * each);

        *buffer = (struct ivc_network_buffer){
            .op.kind = IVC_OP_SEND, .small = buffers == &network->small, .desc = desc,
            .next = buffers->free,
        };
        buffers->free = buffer;
    }
    buffers->n += IVC_NETWORK_SLAB;
    return 0;
}

int ivc_buffers_get(struct ivc_network *network, struct ivc_buffers *buffers,
                    struct ivc_network_buffer **ret_buffer)
{
    if (__builtin_expect(!buffers->free, 0)
        && (buffers->n >= buffers->n_max || grow(network, buffers) < 0))
        return IVC_E_FULL;
    *ret_buffer = buffers->free;
    buffers->free = (*ret_buffer)->next;
    return 0;
}

/* On failure the buffer waits for the next turn. */
void ivc_buffer_post_receive(struct ivc_network *network, struct ivc_network_buffer *buffer)
{
    ssize_t r;

    buffer->ended = false;
    r = fi_recv(network->ep, buffer->data, network->packet_max, buffer->desc,
                        FI_ADDR_UNSPEC, &buffer->op);

    if (__builtin_expect(r < 0, 0)) {
        buffer->next = network->unposted;
        network->unposted = buffer;
    } else if (!network->reports_in_order) {
        buffer->next = NULL;
        *network->posted_end = buffer;
        network->posted_end = &buffer->next;
    }
}

int ivc_buffers_post_receives(struct ivc_network *network)
{
    /* The provider's queue may be shorter. */
    size_t queue = network->provider.info->rx_attr->size;
    unsigned n = queue && queue < IVC_NETWORK_RECEIVES ? (unsigned)queue : IVC_NETWORK_RECEIVES;

    for (unsigned i = 0; i < n; i++) {
        struct ivc_network_buffer *buffer;

        if (ivc_buffers_get(network, &network->large, &buffer) != 0)
            return ivc_error_set(-ENOMEM, "network: no memory for %u buffers of %zu bytes", n,
                                 network->packet_max);
        buffer->op.kind = IVC_OP_RECEIVE;
        ivc_buffer_post_receive(network, buffer);
    }
    network->large.n_max += n;
    return 0;
}

void ivc_buffers_free(struct ivc_network *network)
{
    struct ivc_slab *next;

    for (struct ivc_slab *slab = network->slabs; slab; slab = next) {
        next = slab->next;
        if (slab->mr)
            fi_close(&slab->mr->fid);
        free(slab->memory);
        free(slab);
    }
    network->slabs = NULL;
}
