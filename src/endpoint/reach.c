/* Memory of a peer that is reached in place, without a packet; see endpoint.h. */
#include "base/error.h"
#include "endpoint/internal.h"

#include <errno.h>

int ivc_endpoint_locate(struct ivc_endpoint *endpoint, const void *memory, size_t len,
                        uint64_t *ret_handle)
{
    if (!endpoint->region)
        return IVC_E_NOREGION;
    return ivc_region_locate(endpoint->region, memory, len, ret_handle);
}

int ivc_endpoint_reach(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t handle,
                       size_t len, void **ret_memory)
{
    if (ivc_peer_path(peer) != IVC_PATH_MEMORY)
        return ivc_error_set(-EBADMSG, "client %u on %s names memory of a region, but the network "
                             "leads to it", peer->member.client_id, peer->member.host);
    return ivc_region_reach(endpoint->region, peer->member.slot, handle, len, ret_memory);
}
