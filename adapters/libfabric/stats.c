/*
 * Statistics: one line per endpoint and peer, printed when an endpoint is closed and IVC_STATS asks
 * for it.  A provider knows no ranks: the launcher's variables tell our own, and a peer goes by the
 * name of its endpoint, which that one's own lines begin with.  So whoever has the lines of all
 * processes can join them.
 *
 * Counted is what went in packets, was read in place, or was pulled over the network.  What RMA writes
 * to or reads from a peer's memory in the region is not.
 *
 * And a profile, where IVC_STATS asks for that instead: of messages as the application sends and receives them.
 */
#include "internal.h"

#include "base/launcher.h"
#include "base/stats.h"
#include "region/region.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* "rank 3", or "process 4711" where no launcher has said a rank. */
static void describe_process(char *text, size_t size)
{
    uint32_t rank;

    if (ivc_launcher_rank(&rank))
        snprintf(text, size, "rank %" PRIu32, rank);
    else
        snprintf(text, size, "process %ld", (long)getpid());
}

void ivc_fi_describe_self(const struct ivc_fi_ep *ep, char *ret_text, size_t size)
{
    char process[32], host[64];
    struct ivc_address address;

    describe_process(process, sizeof process);
    ivc_region_own_host(host);
    ivc_endpoint_address(ep->endpoint, &address);
    snprintf(ret_text, size, "%s on host %.64s, endpoint %016" PRIx64, process, host, ivc_address_id(&address));
}

void ivc_fi_stats_print(const struct ivc_fi_ep *ep)
{
    char self[IVC_FI_SELF_MAX];

    if (!ep->endpoint || !ivc_stats_are_printed())
        return;
    ivc_fi_describe_self(ep, self, sizeof self);
    for (const struct ivc_fi_peer *peer = ep->peers; peer; peer = peer->next) {
        char in_place[48] = "", why[512];
        struct ivc_peer_stats s;

        ivc_peer_stats(peer->peer, &s);
        if (s.read_bytes > 0)
            snprintf(in_place, sizeof in_place, ", read in place %" PRIu64 " bytes", s.read_bytes);
        ivc_peer_tell_why(ep->endpoint, peer->peer, why, sizeof why);
        /* One call for a line: stderr has no buffer, so the lines of several ranks do not mix. */
        fprintf(stderr, "ivc: %s, peer endpoint %016" PRIx64 ": memory: sent %" PRIu64 " packets %" PRIu64 " bytes, received %" PRIu64
                " packets %" PRIu64 " bytes, full %" PRIu64 "%s; network: sent %" PRIu64
                " bytes, received %" PRIu64 " bytes%s\n",
                self, ivc_peer_id(peer->peer), s.sent_packets,
                s.sent_bytes, s.received_packets, s.received_bytes, s.full, in_place, s.network_sent_bytes,
                s.network_received_bytes, why);
    }
}

void ivc_fi_profile_open(struct ivc_fi_ep *ep)
{
    /* All calls are under the domain's lock. */
    const struct ivc_profile_options options = { .adapter = "provider" };

    if (ivc_stats_are_written() && ivc_profile_open(ep->endpoint, &options, &ep->profile) != 0)
        ivc_fi_say("%s; the job goes on without a profile", ivc_error_text());
}

void ivc_fi_profile_close(struct ivc_fi_ep *ep)
{
    ivc_profile_close(ep->profile);
    ep->profile = NULL;
}
