/*
 * Suspending a pair: from memory to the network, and nothing lost on the way (docs/migration.md).
 *
 * Each side stops, copies to private memory what the other may not have read, and says that it has
 * stopped on its link line, with the number of packets that it has read itself.  Who has stopped and sees
 * that the other has stopped knows which of its own packets the other will never read: those of the
 * copy go by network before anything else.  So from the moment at which a side says that it has
 * stopped, its memory may be taken away.
 *
 * Where no network leads, the receiver takes what it has not read: who has stopped and sees that the
 * other has stopped reads the other's ring to its end, into private memory, and says `done`; who is
 * done and sees that the other is done lets go of its own ring.
 *
 * Invariants.  From `suspended` on our line until the end of the attachment we touch nothing but the
 * peer's line and our own ring (and without a network the peer's ring, until `done`).  Only the helper
 * comes here, with everybody else kept out; what adapters have to hear is left for progress
 * (ivc_suspend_tell()).
 */
#include "endpoint/remote.h"

#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"

#include <errno.h>
#include <inttypes.h>

void ivc_peer_suspend(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason)
{
    struct ivc_region *region = endpoint->home.region;

    if (!ivc_peer_is_memory_only(endpoint, peer)
        && ivc_peer_keep_sent(endpoint, peer) == IVC_E_FULL)
        return;
    ivc_poll_turn_away(endpoint, peer);
    if (peer->rx_open)
        ivc_rx_publish(&peer->rx);
    ivc_lost_note(endpoint, peer);
    ivc_peer_set_state(endpoint, peer, IVC_PEER_SUSPENDING, reason);
    ivc_link_suspend(region, peer->member.slot);
}

static void give_up(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason)
{
    peer->over = true;
    peer->over_reason = reason;
    ivc_endpoint_leave_to_progress(endpoint);
}

static int keep_packet(void *arg, uint64_t at, uint8_t tag, const struct iovec *iov, unsigned n_iov)
{
    struct ivc_peer *peer = arg;

    return ivc_backlog_add(&peer->unsure, at, tag, iov, n_iov);
}

int ivc_peer_keep_sent(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r;

    if (!peer->tx.slots)
        return 0;
    r = ivc_tx_unread(&peer->tx, keep_packet, peer);
    if (r == 0 && ivc_region_is_intact(endpoint->home.region)) {
        peer->kept_from = peer->tx.head;
        return 0;
    }
    ivc_backlog_free(&peer->unsure);
    return ivc_region_is_intact(endpoint->home.region) ? r : IVC_E_FULL;
}

int ivc_peer_settle(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t head)
{
    const struct ivc_loss *noted = &peer->losses.last;

    if (head > noted->written || head < noted->kept_from)
        return ivc_error_set(-EBADMSG, "client %u on %s says that it has read %" PRIu64 " packets of %"
                             PRIu64 ", of which %" PRIu64 " are here no more", peer->member.client_id,
                             peer->member.host, head, noted->written, noted->kept_from);
    while (peer->unsure.first && peer->unsure.first->at < head)
        ivc_backlog_drop_first(&peer->unsure);
    if (peer->unsure.packets == 0)
        return 0;
    peer->unsent = peer->unsure;    /* was empty: a ring is made when all that was left over is gone */
    peer->unsure = (struct ivc_backlog){ 0 };
    endpoint->n_unsent++;
    return 0;
}

void ivc_peer_close_pair(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    uint32_t slot = peer->member.slot;

    ivc_poll_forget(endpoint, peer);
    ivc_peer_detach(endpoint, peer);
    ivc_link_done(endpoint->home.region, slot);
}

static void close_pair(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t head)
{
    int r = ivc_peer_settle(endpoint, peer, head);

    ivc_peer_close_pair(endpoint, peer);
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, "both have stopped");
    if (r < 0)
        give_up(endpoint, peer, "packets to it were lost when its memory was given up");
    /* Its end is noticed by network from now on. */
    ivc_endpoint_leave_to_progress(endpoint);
}

/* Takes what is in the peer's ring to private memory. */
static int keep_unread(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_packet *packet = &endpoint->packet;
    uint64_t end;
    int r = 0, found = 1;

    (void)ivc_poll_map_rx(endpoint, peer);
    end = peer->rx_open ? ivc_rx_end(&peer->rx) : 0;
    while (peer->rx_open && peer->rx.head < end && r == 0
           && (found = ivc_rx_peek(&peer->rx, endpoint->head, packet)) == 1) {
        struct iovec iov[2] = {
            { (void *)packet->head, packet->head_len }, { (void *)packet->body, packet->body_len },
        };

        r = ivc_backlog_add(&peer->unread, peer->rx.head, packet->tag, iov, packet->body_len > 0 ? 2 : 1);
        ivc_rx_advance(&peer->rx);
    }
    return r < 0 ? r : IVC_MIN(found, 0);
}

/* It left for good or died, and cannot say that it has stopped.  What it has sent is still there. */
static void take_last_packets(struct ivc_endpoint *endpoint, struct ivc_peer *peer, bool left)
{
    int r = peer->emptied ? 0 : keep_unread(endpoint, peer);

    if (!ivc_region_is_intact(endpoint->home.region))
        return;     /* as in empty_ring() */
    ivc_poll_forget(endpoint, peer);
    ivc_link_done(endpoint->home.region, peer->member.slot);
    ivc_peer_detach(endpoint, peer);
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, left ? "it left" : "it died");
    give_up(endpoint, peer, left && r == 0 ? NULL : "its process died");
}

/* Both have stopped. */
static void empty_ring(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r = keep_unread(endpoint, peer);

    if (!ivc_region_is_intact(endpoint->home.region))
        return;     /* those were zeroes of a window that was taken away */
    ivc_poll_forget(endpoint, peer);
    ivc_link_done(endpoint->home.region, peer->member.slot);
    peer->emptied = true;
    if (r < 0)
        peer->over_reason = "packets of it were lost when its memory was given up";
}

/* Both have read all there is. */
static void part(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    ivc_peer_detach(endpoint, peer);
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, "both have stopped, no network leads there");
    peer->over = peer->over_reason != NULL;
    peer->parted = true;
    ivc_endpoint_leave_to_progress(endpoint);
}

/* Without a network. */
static void try_part(struct ivc_endpoint *endpoint, struct ivc_peer *peer, enum ivc_link_word word,
                     enum ivc_member_fate fate)
{
    /* Who moved has waited for our `done`, or never knew us here. */
    if (!peer->emptied && (word == IVC_LINK_SUSPENDED || fate == IVC_MEMBER_MOVED))
        empty_ring(endpoint, peer);
    if (peer->emptied && (fate == IVC_MEMBER_MOVED || fate == IVC_MEMBER_LEFT
                          || ivc_link_is_done(endpoint->home.region, peer->member.slot)))
        part(endpoint, peer);
    else if (fate != IVC_MEMBER_HERE)
        take_last_packets(endpoint, peer, fate != IVC_MEMBER_DEAD);
}

void ivc_peer_try_close(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_region *region = endpoint->home.region;
    struct ivc_member *member = &peer->member;
    enum ivc_member_fate fate;
    enum ivc_link_word word;
    uint64_t head = 0;

    /* Its state first, then its line: the other way round the line could be opened, used and
     * suspended between the two looks. */
    fate = ivc_region_member_fate(region, member->slot, member->generation);
    word = ivc_link_look(region, member->slot, &head);
    /* Zeroes of a window that was taken away look like a member that left. */
    if (peer->losses.last.pending || ivc_region_look_if_lost(region))
        return;
    if (ivc_peer_is_memory_only(endpoint, peer))
        try_part(endpoint, peer, word, fate);
    else if (word == IVC_LINK_SUSPENDED)
        close_pair(endpoint, peer, head);
    else if (fate == IVC_MEMBER_MOVED && word == IVC_LINK_NONE)
        close_pair(endpoint, peer, 0);      /* it never knew us here, and has read nothing */
    else if (fate != IVC_MEMBER_HERE
             && !(fate == IVC_MEMBER_DEAD && ivc_lost_suspect(endpoint, peer)))
        take_last_packets(endpoint, peer, fate != IVC_MEMBER_DEAD);
}

/* Delivers what was kept; false when the adapter wants no more in this turn. */
static bool deliver_unread(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    while (peer->unread.first && !endpoint->end_turn) {
        struct ivc_kept *kept = peer->unread.first;
        struct ivc_packet packet = {
            .tag = kept->tag, .head = kept->bytes, .head_len = kept->len,
        };

        ivc_peer_has_received(peer, kept->len);
        endpoint->on_packet(endpoint->arg, peer, &packet);
        /* The handler may have ended the peer. */
        if (peer->unread.first)
            ivc_backlog_drop_first(&peer->unread);
    }
    return !peer->unread.first;
}

static void tell_parted(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    peer->parted = false;
    if (endpoint->on_parted)
        endpoint->on_parted(endpoint->arg, peer);
}

/* It may live and have no idea: then it is told, by network where there is one. */
static void end_over(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r = 0;

    if (peer->over_tells && !ivc_peer_is_memory_only(endpoint, peer)) {
        ivc_endpoint_lock(endpoint);
        r = ivc_remote_send_broken(endpoint, peer, peer->over_tells);
        ivc_endpoint_unlock(endpoint);
    }
    if (r == IVC_E_FULL)
        ivc_endpoint_leave_to_progress(endpoint);
    else
        ivc_peer_end(endpoint, peer, peer->over_reason);
}

/* Something is to be sent there, or its end to be noticed there. */
static bool needs_network(const struct ivc_peer *peer)
{
    return peer->unsent.packets > 0 || (peer->asked && !peer->greeted)
           || (ivc_peer_state(peer) == IVC_PEER_CLOSED && !(peer->greeted && peer->route));
}

/* Who is on the network now is watched there, and gets what is left over. */
static int tell(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r = 0;

    if (ivc_peer_state(peer) == IVC_PEER_GONE)
        return 0;
    ivc_lost_step(endpoint, peer);
    if (ivc_peer_state(peer) == IVC_PEER_GONE)
        return 0;
    if (!deliver_unread(endpoint, peer)) {
        ivc_endpoint_leave_to_progress(endpoint);
        return 0;
    }
    if (peer->over) {
        end_over(endpoint, peer);
        return 0;
    }
    if (peer->parted)
        tell_parted(endpoint, peer);
    if (!endpoint->network || !needs_network(peer))
        return 0;
    ivc_endpoint_lock(endpoint);
    r = ivc_remote_watch(endpoint, peer);
    if (r == 0)
        r = ivc_remote_greet(endpoint, peer);
    if (r == 0)
        r = ivc_remote_push(endpoint, peer);
    ivc_endpoint_unlock(endpoint);
    if (r == IVC_E_FULL)
        ivc_endpoint_leave_to_progress(endpoint);
    else if (r != 0)
        ivc_peer_end(endpoint, peer, ivc_error_text());
    return 0;
}

static void tell_moved(struct ivc_endpoint *endpoint)
{
    if (!endpoint->on_moved || endpoint->told_number == endpoint->home.number)
        return;
    endpoint->told_number = endpoint->home.number;
    endpoint->on_moved(endpoint->arg, endpoint->home.region != NULL);
}

void ivc_suspend_tell(struct ivc_endpoint *endpoint)
{
    ivc_store_relaxed(&endpoint->news, 0);
    (void)ivc_peers_each(endpoint, tell);
    /* Relaxed: our own.  Set again: not all was said about peers, and we come once more. */
    if (ivc_load_relaxed(&endpoint->news) == 0)
        tell_moved(endpoint);
}
