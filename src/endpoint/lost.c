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
};

/* From here on neither side's ring is used; `have`: it can still be read. */
static void begin(struct ivc_endpoint *endpoint, struct ivc_peer *peer, bool have, const char *reason)
{
    const struct ivc_member *self = ivc_region_self(endpoint->home.region);

    ivc_poll_turn_away(endpoint, peer);
    peer->loss = (struct ivc_loss){
        .pending = true, .have = have,
        .own_slot = self->slot, .own_generation = self->generation,
        .slot = peer->member.slot, .generation = peer->member.generation,
        .read = peer->rx_open ? peer->rx.head : 0,
        .written = peer->tx.slots ? peer->tx.tail : 0,
    };
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
    if (!endpoint->helper || peer->member.same_kernel || peer->network.provider == 0)
        return false;
    begin(endpoint, peer, true, "its heart stands still");
    return true;
}

static bool is_of_this_attachment(const struct ivc_loss *loss, const struct lost_wire *wire)
{
    return wire->own_slot == loss->slot && wire->own_generation == loss->generation
           && wire->slot == loss->own_slot && wire->generation == loss->own_generation;
}

void ivc_lost_hear(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *content,
                   size_t len)
{
    struct lost_wire wire;

    if (len != sizeof wire)
        return;
    memcpy(&wire, content, sizeof wire);
    /* It has lost what we still have. */
    if (ivc_peer_is_attached(peer) && !peer->loss.pending
        && wire.own_slot == peer->member.slot && wire.own_generation == peer->member.generation) {
        ivc_poll_open_rx(endpoint, peer);
        if (ivc_peer_state(peer) == IVC_PEER_GONE)
            return;
        begin(endpoint, peer, true, "it has lost the memory");
    }
    if (!is_of_this_attachment(&peer->loss, &wire))
        return;
    peer->loss.heard = true;
    peer->loss.peer_read = wire.read;
    /* We had ended that attachment in order, or by an earlier word: it has to know how. */
    if (!peer->loss.pending)
        peer->loss.said = false;
    ivc_endpoint_leave_to_progress(endpoint);
}

static int say(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    const struct ivc_loss *loss = &peer->loss;
    struct lost_wire wire = {
        .own_slot = loss->own_slot, .own_generation = loss->own_generation,
        .slot = loss->slot, .generation = loss->generation, .read = loss->read,
    };
    int r;

    ivc_endpoint_lock(endpoint);
    r = ivc_remote_send_lost(endpoint, peer, &wire, sizeof wire);
    if (r == 0)
        ivc_route_watch(peer->route);
    ivc_endpoint_unlock(endpoint);
    return r;
}

/* Both have spoken. */
static void finish(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_loss *loss = &peer->loss;
    char reason[200];
    int r = 0;

    ivc_endpoint_lock(endpoint);
    if (loss->have)
        r = ivc_peer_close_pair(endpoint, peer, loss->peer_read);
    loss->pending = false;
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, "both know what was read");
    ivc_endpoint_unlock(endpoint);
    if (r == 0 && (loss->have || loss->peer_read == loss->written)) {
        ivc_endpoint_leave_to_progress(endpoint);
        return;
    }
    snprintf(reason, sizeof reason, "%" PRIu64 " packets to client %u on %s were lost with the shared "
             "memory, which was taken away without asking",
             loss->written - IVC_MIN(loss->peer_read, loss->written), peer->member.client_id,
             peer->member.host);
    ivc_peer_end(endpoint, peer, r == 0 ? reason : ivc_error_text());
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
}
