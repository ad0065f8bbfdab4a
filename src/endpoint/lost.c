/* Memory that was taken away without asking: see lost.h. */
#include "endpoint/lost.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/remote.h"

#include <inttypes.h>
#include <string.h>

static bool is_same(const struct ivc_loss *a, const struct ivc_loss *b)
{
    return a->own_slot == b->own_slot && a->own_generation == b->own_generation
           && a->slot == b->slot && a->generation == b->generation;
}

void ivc_lost_note(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    const struct ivc_member *self = ivc_region_self(endpoint->home.region);
    struct ivc_loss was = peer->losses.last, *loss = &peer->losses.last;

    *loss = (struct ivc_loss){
        .own_slot = self->slot, .own_generation = self->generation,
        .slot = peer->member.slot, .generation = peer->member.generation,
        .read = peer->rx_open ? peer->rx.head : 0,
        .written = peer->tx.slots ? peer->tx.tail : 0,
    };
    loss->kept_from = IVC_MIN(peer->kept_from, loss->written);
    if (!is_same(&was, loss)) {
        peer->losses.before = was;
        return;
    }
    loss->heard = was.heard;
    loss->peer_read = was.peer_read;
    loss->peer_kept_from = was.peer_kept_from;
}

/* From here on neither side writes; `have`: what the peer wrote can still be read. */
static void begin(struct ivc_endpoint *endpoint, struct ivc_peer *peer, bool have, const char *reason)
{
    ivc_poll_turn_away(endpoint, peer);
    ivc_lost_note(endpoint, peer);
    peer->losses.last.pending = true;
    peer->losses.last.have = have;
    ivc_peer_set_state(endpoint, peer, IVC_PEER_SUSPENDING, reason);
    ivc_endpoint_leave_to_progress(endpoint);
}

/* The same for one peer, by somebody who has the memory, as far as he knows; who may have stopped already,
 * in order. */
static void begin_one(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason)
{
    bool have = true;

    if (ivc_peer_uses_memory(peer))
        have = ivc_peer_keep_sent(endpoint, peer) != IVC_E_FULL;
    (void)ivc_poll_map_rx(endpoint, peer);
    begin(endpoint, peer, have, reason);
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
    begin_one(endpoint, peer, "its heart stands still");
    return true;
}

/* Each names its own place first. */
static bool is_about(const struct ivc_loss *loss, const struct ivc_lost_word *word)
{
    return word->own_slot == loss->slot && word->own_generation == loss->generation
           && word->slot == loss->own_slot && word->generation == loss->own_generation;
}

static bool names_us(const struct ivc_endpoint *endpoint, const struct ivc_lost_word *word)
{
    const struct ivc_member *self = endpoint->home.region
        ? ivc_region_self(endpoint->home.region) : NULL;

    return self && word->slot == self->slot && word->generation == self->generation;
}

static bool is_attached_as(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                           const struct ivc_lost_word *word)
{
    return ivc_peer_is_attached(peer) && names_us(endpoint, word)
           && word->own_slot == peer->member.slot
           && word->own_generation == peer->member.generation;
}

/* It was a step ahead: it had found us, and we not yet it.  What it has sent lies in its ring. */
static void attach_late(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                        const struct ivc_lost_word *word)
{
    struct ivc_member member;

    if (names_us(endpoint, word) && ivc_peer_state(peer) == IVC_PEER_CLOSED
        && ivc_region_member(endpoint->home.region, word->own_slot, &member) == 0
        && member.generation == word->own_generation
        && member.endpoint_id == peer->member.endpoint_id
        && !ivc_endpoint_peer(endpoint, member.slot))
        (void)ivc_peer_attach_ordered(endpoint, peer, &member);
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

/* That attachment is over for us, in order or by an earlier word, or we never had it: then nothing was
 * read of it, and nothing written. */
static void answer(struct ivc_peer *peer, const struct ivc_lost_word *word)
{
    static const struct ivc_loss none;
    struct ivc_losses *losses = &peer->losses;
    const struct ivc_loss *loss = is_about(&losses->last, word) ? &losses->last
        : is_about(&losses->before, word) ? &losses->before : &none;

    losses->missing = missing(loss->read, word->kept_from);
    losses->answer = (struct ivc_lost_word){
        .own_slot = word->slot, .own_generation = word->generation,
        .slot = word->own_slot, .generation = word->own_generation,
        .read = loss->read, .kept_from = loss->kept_from, .heard = true, .present = 1,
    };
}

static void hear(struct ivc_endpoint *endpoint, struct ivc_peer *peer,
                 const struct ivc_lost_word *word)
{
    struct ivc_loss *loss = &peer->losses.last;

    ivc_endpoint_lock(endpoint);
    attach_late(endpoint, peer, word);
    if (!loss->pending && is_attached_as(endpoint, peer, word))
        begin_one(endpoint, peer, "it has lost the memory");
    ivc_endpoint_unlock(endpoint);
    if (loss->pending && is_about(loss, word)) {
        loss->heard = true;
        loss->peer_read = word->read;
        loss->peer_kept_from = word->kept_from;
    } else if (names_us(endpoint, word) && (loss->pending || ivc_peer_is_attached(peer))) {
        peer->losses.early = *word;
    } else if (!word->heard) {
        answer(peer, word);
    }
    ivc_endpoint_leave_to_progress(endpoint);
}

void ivc_lost_hear(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *content,
                   size_t len)
{
    struct ivc_lost_word word;

    if (len != sizeof word || ivc_peer_state(peer) == IVC_PEER_GONE)
        return;
    memcpy(&word, content, sizeof word);
    if (word.present == 1)
        hear(endpoint, peer, &word);
}

static int is_pending(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    (void)endpoint;
    return peer->losses.last.pending && ivc_peer_state(peer) != IVC_PEER_GONE;
}

bool ivc_lost_is_pending(struct ivc_endpoint *endpoint)
{
    return ivc_peers_each(endpoint, is_pending) != 0;
}

/* Answers whether it was said; without a network to say it by the peer is gone. */
static bool say(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const struct ivc_lost_word *word)
{
    int r;

    ivc_endpoint_lock(endpoint);
    r = ivc_remote_send_lost(endpoint, peer, word, sizeof *word);
    if (r == 0)
        ivc_route_watch(endpoint->network, peer->route);
    ivc_endpoint_unlock(endpoint);
    if (r == IVC_E_FULL)
        ivc_endpoint_leave_to_progress(endpoint);
    else if (r != 0)
        ivc_peer_end(endpoint, peer, "its shared memory was taken away, and no network leads to it");
    return r == 0;
}

static void say_answer(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_losses *losses = &peer->losses;

    if (!say(endpoint, peer, &losses->answer))
        return;
    losses->answer.present = 0;
    if (losses->missing > 0)
        end_missing(endpoint, peer, 0, losses->missing, NULL);
}

static bool read_to_end(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    if (ivc_poll_map_rx(endpoint, peer) != 1)
        return ivc_poll_drain(endpoint, peer);
    /* First comes what it sent by network; if that never comes, the network tells why. */
    ivc_endpoint_lock(endpoint);
    (void)ivc_remote_watch(endpoint, peer);
    ivc_endpoint_unlock(endpoint);
    return false;
}

static void say_own(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_loss *loss = &peer->losses.last;
    struct ivc_lost_word word;

    /* Its ring to the end, before we say how far we are. */
    if (loss->have && !read_to_end(endpoint, peer)) {
        ivc_endpoint_leave_to_progress(endpoint);
        return;
    }
    if (ivc_peer_state(peer) == IVC_PEER_GONE)
        return;
    if (loss->have && peer->rx_open)
        loss->read = peer->rx.head;
    word = (struct ivc_lost_word){
        .own_slot = loss->own_slot, .own_generation = loss->own_generation,
        .slot = loss->slot, .generation = loss->generation, .read = loss->read,
        .kept_from = loss->kept_from, .heard = loss->heard, .present = 1,
    };
    loss->said = say(endpoint, peer, &word);
}

/* Both have spoken. */
static void finish(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_loss *loss = &peer->losses.last;
    uint64_t sent = missing(loss->peer_read, loss->kept_from);
    uint64_t received = missing(loss->read, loss->peer_kept_from);
    int r = 0;

    ivc_endpoint_lock(endpoint);
    if (sent == 0)
        r = ivc_peer_settle(endpoint, peer, loss->peer_read);
    if (ivc_peer_is_attached(peer))
        ivc_peer_close_pair(endpoint, peer);
    loss->pending = false;
    ivc_peer_set_state(endpoint, peer, IVC_PEER_CLOSED, "both know what was read");
    ivc_endpoint_unlock(endpoint);
    if (r == 0 && sent == 0 && received == 0) {
        ivc_endpoint_leave_to_progress(endpoint);
        return;
    }
    end_missing(endpoint, peer, sent, received, r == 0 ? NULL : ivc_error_text());
}

void ivc_lost_step(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct ivc_losses *losses = &peer->losses;
    struct ivc_loss *loss = &losses->last;

    if (losses->answer.present)
        say_answer(endpoint, peer);
    if (loss->pending && !loss->said && ivc_peer_state(peer) != IVC_PEER_GONE)
        say_own(endpoint, peer);
    if (loss->pending && loss->said && loss->heard && ivc_peer_state(peer) != IVC_PEER_GONE)
        finish(endpoint, peer);
    if (losses->early.present && !loss->pending && !ivc_peer_is_attached(peer)) {
        losses->early.present = 0;
        hear(endpoint, peer, &losses->early);
    }
}
