/* Memory that was taken away without asking: see lost.h. */
#include "endpoint/lost.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/remote.h"

#include <inttypes.h>
#include <string.h>

/* What the two tell each other. */
struct lost_wire {
    uint32_t own_slot, own_generation;  /* the sender's */
    uint32_t slot, generation;          /* the receiver's, as the sender knew it */
    uint64_t read;                      /* packets of the receiver's ring that the sender has read */
    uint64_t kept_from;                 /* the sender can send again those of its own from here on */
};

/* Nothing of ours is missing as long as we have the memory. */
static void note(struct ivc_endpoint *endpoint, struct ivc_peer *peer, bool have)
{
    const struct ivc_member *self = ivc_region_self(endpoint->home.region);

    peer->loss = (struct ivc_loss){
        .own_slot = self->slot, .own_generation = self->generation,
        .slot = peer->member.slot, .generation = peer->member.generation,
        .read = peer->rx_open ? peer->rx.head : 0,
        .written = peer->tx.slots ? peer->tx.tail : 0,
    };
    if (!have)
        peer->loss.kept_from = peer->unsure.packets > 0 ? peer->unsure_at : peer->loss.written;
}

/* From here on neither side's ring is used; `have`: it can still be read. */
static void begin(struct ivc_endpoint *endpoint, struct ivc_peer *peer, bool have, const char *reason)
{
    ivc_poll_turn_away(endpoint, peer);
    note(endpoint, peer, have);
    peer->loss.pending = true;
    peer->loss.have = have;
    ivc_peer_set_state(endpoint, peer, IVC_PEER_SUSPENDING, reason);
    ivc_endpoint_leave_to_progress(endpoint);
}

void ivc_lost_region(struct ivc_endpoint *endpoint, const char *reason)
{
    for (uint32_t slot = 0; slot < ivc_region_capacity(endpoint->home.region); slot++) {
        struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);

        if (!peer)
            continue;
        begin(endpoint, peer, false, reason);
        ivc_poll_forget(endpoint, peer);
        ivc_peer_detach(endpoint, peer);
    }
    ivc_trace_event(endpoint, "lost", reason);
}

bool ivc_lost_suspect(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    if (!endpoint->helper || peer->network.provider == 0
        || (peer->member.same_kernel
            && !ivc_region_has_endpoint(endpoint->home.region, peer->member.endpoint_id)))
        return false;
    begin(endpoint, peer, true, "its heart stands still");
    return true;
}

static bool is_of_this_attachment(const struct ivc_loss *loss, const struct lost_wire *wire)
{
    return wire->own_slot == loss->slot && wire->own_generation == loss->generation
           && wire->slot == loss->own_slot && wire->generation == loss->own_generation;
}

static bool is_attached_as(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                           const struct lost_wire *wire)
{
    const struct ivc_member *self = ivc_peer_is_attached(peer)
        ? ivc_region_self(endpoint->home.region) : NULL;

    return self && wire->own_slot == peer->member.slot
           && wire->own_generation == peer->member.generation
           && wire->slot == self->slot && wire->generation == self->generation;
}

/* It was a step ahead: it had found us, and we not yet it.  What it has sent lies in its ring. */
static void attach_late(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                        const struct lost_wire *wire)
{
    struct ivc_member member;

    ivc_endpoint_lock(endpoint);
    if (endpoint->home.region && ivc_peer_state(peer) == IVC_PEER_CLOSED
        && ivc_region_member(endpoint->home.region, wire->own_slot, &member) == 0
        && member.generation == wire->own_generation
        && member.endpoint_id == peer->member.endpoint_id
        && !ivc_endpoint_peer(endpoint, member.slot))
        (void)ivc_peer_attach(endpoint, peer, &member);
    ivc_endpoint_unlock(endpoint);
}

/* The first word about that attachment. */
static void hear_first(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                       const struct lost_wire *wire)
{
    if (!is_attached_as(endpoint, peer, wire))
        attach_late(endpoint, peer, wire);
    if (is_attached_as(endpoint, peer, wire)) {
        ivc_poll_open_rx(endpoint, peer);
        if (ivc_peer_state(peer) == IVC_PEER_GONE)
            return;
        begin(endpoint, peer, true, "it has lost the memory");
    } else {
        /* We never had that one: nothing was read of it, and nothing written. */
        peer->loss = (struct ivc_loss){
            .own_slot = wire->slot, .own_generation = wire->generation,
            .slot = wire->own_slot, .generation = wire->own_generation,
        };
    }
}

static uint64_t missing(uint64_t read, uint64_t kept_from)
{
    return kept_from > read ? kept_from - read : 0;
}

static void end_missing(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t sent,
                        uint64_t received, const char *why)
{
    char reason[200];

    snprintf(reason, sizeof reason, "%" PRIu64 " packets to client %u on %s and %" PRIu64 " from it were "
             "lost with the shared memory, which was taken away without asking", sent,
             peer->member.client_id, peer->member.host, received);
    ivc_peer_end(endpoint, peer, why ? why : reason);
}

void ivc_lost_hear(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *content,
                   size_t len)
{
    struct lost_wire wire;

    if (len != sizeof wire)
        return;
    memcpy(&wire, content, sizeof wire);
    if (!is_of_this_attachment(&peer->loss, &wire) && !peer->loss.pending)
        hear_first(endpoint, peer, &wire);
    if (ivc_peer_state(peer) == IVC_PEER_GONE || !is_of_this_attachment(&peer->loss, &wire))
        return;
    peer->loss.heard = true;
    peer->loss.peer_read = wire.read;
    peer->loss.peer_kept_from = wire.kept_from;
    /* That attachment is over for us, in order or by an earlier word: it has to know how.  (It may have
     * had its ring when it spoke first, and lost it then.) */
    if (!peer->loss.pending)
        peer->loss.said = false;
    ivc_endpoint_leave_to_progress(endpoint);
}

void ivc_lost_note(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    note(endpoint, peer, true);
}

static int is_pending(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    (void)endpoint;
    return peer->loss.pending && ivc_peer_state(peer) != IVC_PEER_GONE;
}

bool ivc_lost_is_pending(struct ivc_endpoint *endpoint)
{
    return ivc_peers_each(endpoint, is_pending) != 0;
}

static int say(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    const struct ivc_loss *loss = &peer->loss;
    struct lost_wire wire = {
        .own_slot = loss->own_slot, .own_generation = loss->own_generation,
        .slot = loss->slot, .generation = loss->generation, .read = loss->read,
        .kept_from = loss->kept_from,
    };
    int r;

    ivc_endpoint_lock(endpoint);
    r = ivc_remote_send_lost(endpoint, peer, &wire, sizeof wire);
    if (r == 0)
        ivc_route_watch(peer->route);
    ivc_endpoint_unlock(endpoint);
    return r;
}

/* The last packet, which was stored when the memory went, goes by network if it was not read. */
static void settle_unsure(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    const struct ivc_loss *loss = &peer->loss;

    if (peer->unsure.packets == 0)
        return;
    if (!loss->have && loss->peer_read >= loss->kept_from && loss->peer_read < loss->written) {
        peer->unsent = peer->unsure;    /* empty: a ring is made when all that was left over is gone */
        peer->unsure = (struct ivc_backlog){ 0 };
        endpoint->n_unsent++;
    }
    ivc_backlog_free(&peer->unsure);
}

/* Both have spoken. */
static void finish(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_loss *loss = &peer->loss;
    uint64_t sent = missing(loss->peer_read, loss->kept_from);
    uint64_t received = missing(loss->read, loss->peer_kept_from);
    int r = 0;

    ivc_endpoint_lock(endpoint);
    settle_unsure(endpoint, peer);
    if (loss->have)
        r = ivc_peer_close_pair(endpoint, peer, loss->peer_read);
    if (r != IVC_E_FULL) {
        loss->pending = false;
        ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, "both know what was read");
    }
    ivc_endpoint_unlock(endpoint);
    if (r == IVC_E_FULL)
        return;     /* now we have lost it, too: the helper begins anew */
    if (r == 0 && sent == 0 && received == 0) {
        ivc_endpoint_leave_to_progress(endpoint);
        return;
    }
    end_missing(endpoint, peer, sent, received, r == 0 ? NULL : ivc_error_text());
}

void ivc_lost_step(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_loss *loss = &peer->loss;
    int r;

    if (!loss->said && (loss->pending || loss->heard)) {
        /* Its ring to the end, before we say how far we are. */
        if (loss->pending && loss->have && !ivc_poll_drain(endpoint, peer)) {
            ivc_endpoint_leave_to_progress(endpoint);
            return;
        }
        if (ivc_peer_state(peer) == IVC_PEER_GONE)
            return;
        if (loss->pending && loss->have && peer->rx_open)
            loss->read = peer->rx.head;
        r = say(endpoint, peer);
        loss->said = r == 0;
        if (r == IVC_E_FULL)
            ivc_endpoint_leave_to_progress(endpoint);
        else if (r != 0)
            ivc_peer_end(endpoint, peer, "its shared memory was taken away, and no network leads to it");
    }
    if (loss->pending && loss->said && loss->heard)
        finish(endpoint, peer);
    else if (!loss->pending && loss->said && missing(loss->read, loss->peer_kept_from) > 0)
        end_missing(endpoint, peer, 0, missing(loss->read, loss->peer_kept_from), NULL);
}
