/*
 * Statistics: one line per rank and peer, printed at the end when asked for.
 */
#include "btl_ivc.h"

#include <inttypes.h>
#include <stdio.h>

#include "opal/util/proc.h"

/* "1 on host a", "1 of spawned job 2 on host a". */
void ivc_btl_peer_name(const struct ivc_peer *peer, char ret_name[IVC_BTL_NAME_MAX])
{
    unsigned int id = ivc_peer_client_id(peer);
    unsigned int rank = id & ((1u << IVC_BTL_RANK_BITS) - 1), job = id >> IVC_BTL_RANK_BITS;

    if (job == 0)
        snprintf(ret_name, IVC_BTL_NAME_MAX, "%u on host %s", rank, ivc_peer_host(peer));
    else
        snprintf(ret_name, IVC_BTL_NAME_MAX, "%u of spawned job %u on host %s", rank, job,
                 ivc_peer_host(peer));
}

static void line_print(const struct mca_btl_base_endpoint_t *endpoint)
{
    char name[IVC_BTL_NAME_MAX], in_place[48] = "", why[512];
    struct ivc_peer_stats s;

    ivc_peer_stats(endpoint->peer, &s);
    ivc_btl_peer_name(endpoint->peer, name);
    if (s.read_bytes > 0)
        snprintf(in_place, sizeof in_place, ", read in place %" PRIu64 " bytes", s.read_bytes);
    ivc_peer_tell_why(ivc_btl_module.endpoint, endpoint->peer, why, sizeof why);
    fprintf(stderr, "ivc: rank %u on host %s, peer %s: memory: sent %" PRIu64 " packets %" PRIu64
            " bytes, received %" PRIu64 " packets %" PRIu64 " bytes, full %" PRIu64
            "%s; network: sent %" PRIu64 " bytes, received %" PRIu64 " bytes%s\n",
            (unsigned int) OPAL_PROC_MY_NAME.vpid, opal_process_info.nodename, name,
            s.sent_packets, s.sent_bytes, s.received_packets, s.received_bytes, s.full, in_place,
            s.network_sent_bytes, s.network_received_bytes, why);
}

/* Goes out in one write per line, so that the lines of several ranks do not mix. */
void ivc_btl_stats_print(void)
{
    for (struct mca_btl_base_endpoint_t *e = ivc_btl_module.endpoints; e != NULL; e = e->next)
        line_print(e);
}
