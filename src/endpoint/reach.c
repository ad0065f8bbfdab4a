/* Memory of a peer that is reached in place, without a packet; see endpoint.h. */
#include "base/error.h"
#include "endpoint/internal.h"

#include <errno.h>

void ivc_endpoint_enter(struct ivc_endpoint *endpoint)
{
    ivc_endpoint_lock(endpoint);
}

void ivc_endpoint_leave(struct ivc_endpoint *endpoint)
{
    ivc_endpoint_unlock(endpoint);
}

uint32_t ivc_endpoint_residence(const struct ivc_endpoint *endpoint)
{
    return endpoint->home.number;
}

int ivc_endpoint_locate(struct ivc_endpoint *endpoint, const void *memory, size_t len,
                        uint64_t *ret_handle)
{
    int r = IVC_E_NOREGION;

    ivc_endpoint_lock(endpoint);
    if (endpoint->home.region)
        r = ivc_region_locate(endpoint->home.region, memory, len, ret_handle);
    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_reach(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t handle,
                       size_t len, void **ret_memory)
{
    if (!ivc_peer_uses_memory(peer))
        return ivc_error_set(-EBADMSG, "client %u on %s names memory of a region, but no memory "
                             "leads to it", peer->member.client_id, peer->member.host);
    return ivc_region_reach(endpoint->home.region, peer->member.slot, handle, len, ret_memory);
}
