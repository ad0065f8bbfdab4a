/* Memory of a peer that is reached in place, without a packet; see endpoint.h. */
#include "base/copy.h"
#include "base/error.h"
#include "base/util.h"
#include "endpoint/address.h"

#include <errno.h>

enum { READ_AT_ONCE = 1 << 20 };    /* bytes, some 50 us: then others may have the endpoint */

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

/* Who answers here may not be who tells: a member is named by its region, its slot and its generation,
 * so a key of another place, or of another time, is nobody's. */
bool ivc_endpoint_show_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *memory,
                            size_t len, uint64_t *ret_where, uint64_t *ret_key)
{
    struct ivc_region *region;
    bool can;

    ivc_endpoint_lock(endpoint);
    region = endpoint->home.region;
    can = region && (!peer || ivc_peer_uses_memory(peer))
          && ivc_region_locate_lent(region, memory, len, ret_where);
    if (can)
        *ret_key = ivc_address_of_member(&endpoint->home.info, ivc_region_self(region));
    ivc_endpoint_unlock(endpoint);
    return can;
}

/* NULL: it cannot be reached. */
static void *lent_at(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where, uint64_t key, size_t len)
{
    void *memory;

    if (!ivc_peer_uses_memory(peer)
        || key != ivc_address_of_member(&endpoint->home.info, &peer->member)
        || ivc_endpoint_reach(endpoint, peer, where, len, &memory) != 0)
        return NULL;
    return memory;
}

/* A part of it.  The peer is attached before and after, so its process has not left the region. */
static int read_part(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where, uint64_t key,
                     void *to, size_t len)
{
    const void *from;
    int r = -ESTALE;

    ivc_endpoint_lock(endpoint);
    from = lent_at(endpoint, peer, where, key, len);
    if (from) {
        ivc_copy(IVC_COPY_OUT, to, from, len);
        r = ivc_region_is_intact(endpoint->home.region) ? 0 : -ESTALE;
    }
    if (r == 0)
        peer->stats.read_bytes += len;
    ivc_endpoint_unlock(endpoint);
    return r;
}

/* Its process cannot leave the region in the middle of a turn of ours. */
const void *ivc_endpoint_view_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                                   uint64_t key, size_t len)
{
    const void *memory;

    ivc_endpoint_lock(endpoint);
    memory = lent_at(endpoint, peer, where, key, len);
    if (memory)
        peer->stats.read_bytes += len;
    ivc_endpoint_unlock(endpoint);
    return memory;
}

/* An alarm: somebody has died or left, and his memory may be another's soon. */
void *ivc_endpoint_reach_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where, uint64_t key,
                              size_t len)
{
    return ivc_peer_uses_memory(peer) && !ivc_region_alarm(endpoint->home.region)
        ? lent_at(endpoint, peer, where, key, len) : NULL;
}

bool ivc_endpoint_view_is_whole(const struct ivc_endpoint *endpoint)
{
    return ivc_region_is_intact(endpoint->home.region);
}

int ivc_endpoint_read_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                           uint64_t key, const struct iovec *iov, unsigned n_iov)
{
    int r = 0;

    for (unsigned i = 0; i < n_iov && r == 0; i++)
        for (size_t at = 0; at < iov[i].iov_len && r == 0; at += READ_AT_ONCE) {
            size_t n = IVC_MIN(iov[i].iov_len - at, READ_AT_ONCE);

            r = read_part(endpoint, peer, where, key, (char *)iov[i].iov_base + at, n);
            where += n;
        }
    return r;
}
