/* What comes to a rank: each message and packet once, in its turn, and every byte right. */
#include "load-internal.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

static struct load_peer *peer_of(struct load *load, struct ivc_peer *peer)
{
    for (uint32_t i = 0; i < load->board->n_ranks; i++)
        if (load->peers[i].peer == peer)
            return &load->peers[i];
    load_fault(load, "something of a peer that nobody knows, client %u", ivc_peer_client_id(peer));
}

static void check_bytes(struct load *load, enum stream stream, uint32_t from, uint64_t number,
                        const uint8_t *bytes, size_t len)
{
    size_t at = load_wrong_at(bytes, len, load_seed_of(load, stream, from, load->own, number));

    if (at < len)
        load_fault(load, "%s %llu from rank %u: wrong from byte %zu on, of %zu",
                   stream == MESSAGES ? "message" : "packet", (unsigned long long)number, from, at,
                   len);
}

static void take_packet(struct load *load, struct load_peer *from, const struct ivc_packet *packet)
{
    uint64_t expected = from->received_packets, number = expected;
    size_t expected_len = load_packet_len(load, from->rank, load->own, expected);
    size_t len = (size_t)packet->head_len + packet->body_len;

    if (len > sizeof load->packet)
        load_fault(load, "packet of %zu bytes from rank %u", len, from->rank);
    if (packet->head_len > 0)
        memcpy(load->packet, packet->head, packet->head_len);
    if (packet->body_len > 0)
        memcpy(load->packet + packet->head_len, packet->body, packet->body_len);
    if (!ivc_endpoint_body_is_whole(load->endpoint))
        return;     /* it comes again */
    if (len >= sizeof number)
        memcpy(&number, load->packet, sizeof number);
    if (number != expected)
        load_fault(load, "packet %llu from rank %u instead of %llu", (unsigned long long)number,
                   from->rank, (unsigned long long)expected);
    if (len != (expected_len == SIZE_MAX ? 0 : expected_len + sizeof number)
        || packet->tag != (expected_len == SIZE_MAX ? TAG_EMPTY : TAG_NUMBERED))
        load_fault(load, "packet %llu from rank %u: tag %u and %zu bytes",
                   (unsigned long long)number, from->rank, packet->tag, len);
    if (len > 0)
        check_bytes(load, PACKETS, from->rank, number, load->packet + sizeof number,
                    len - sizeof number);
    from->received_packets++;
    ivc_store_relaxed(&from->pair->received_packets, from->received_packets);
}

void load_on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct load *load = arg;

    if (ivc_mailbox_is_tag(packet->tag))
        ivc_mailbox_packet(load->mailbox, peer, packet);
    else
        take_packet(load, peer_of(load, peer), packet);
    if (load->inside) {
        void (*fn)(void *arg) = load->inside;

        load->inside = NULL;
        fn(load->inside_arg);
    }
}

void load_on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct load *load = arg;
    struct load_peer *gone = peer_of(load, peer);

    load->bereaved = !ivc_load_acquire(&load->board->end) && !load->board->ends_allowed;
    load->why_gone = reason ? reason : "it left";
    ivc_mailbox_gone(load->mailbox, peer);
    if (load->bereaved)
        load_fault(load, "rank %u is gone: %s", gone->rank, load->why_gone);
    (void)ivc_endpoint_send(load->endpoint, peer, TAG_EMPTY, NULL, 0);  /* for its text */
    snprintf(gone->pair->gone_reason, sizeof gone->pair->gone_reason, "%s; %s",
             load->why_gone, ivc_error_text());
    ivc_store_release(&gone->pair->gone_at_ns, ivc_now_ns());   /* the reason is visible before */
}

void load_on_arrival(void *arg, struct ivc_peer *peer)
{
    struct load *load = arg;
    uint32_t rank = ivc_peer_client_id(peer);

    if (rank >= load->board->n_ranks)
        load_fault(load, "an arrival that calls itself client %u", rank);
    if (!load->peers[rank].peer)
        load->peers[rank].peer = peer;
}

static bool keep_for_later(struct load *load, struct ivc_message *message,
                           struct receiving *receiving)
{
    for (unsigned i = 0; i < LATER_MAX; i++) {
        struct later *later = &load->later[i];

        if (later->offer)
            continue;
        *later = (struct later){ message->offer, receiving, message->len,
                                 load->turn + check_random(&load->random) % 2000 };
        return true;
    }
    return false;
}

void load_on_start(void *arg, struct ivc_message *message)
{
    struct load *load = arg;
    struct load_peer *from = peer_of(load, message->peer);
    struct receiving *receiving = malloc(sizeof *receiving + message->len);
    uint64_t number;

    if (!receiving || message->header_len != HEADER)
        load_fault(load, "message from rank %u: header of %u bytes", from->rank,
                   message->header_len);
    memcpy(&number, (const char *)message->header + 1, sizeof number);
    if (number != from->arriving)
        load_fault(load, "message %llu from rank %u instead of %llu", (unsigned long long)number,
                   from->rank, (unsigned long long)from->arriving);
    if (message->len != load_message_len(load, from->rank, load->own, number))
        load_fault(load, "message %llu from rank %u: %zu bytes", (unsigned long long)number,
                   from->rank, message->len);
    from->arriving++;
    receiving->number = number;
    receiving->from = from->rank;
    message->arg = receiving;
    message->iov[0] = (struct iovec){ receiving->bytes, message->len };
    message->n_iov = 1;
    message->later = message->offer && check_random(&load->random) % 4 == 0
        && keep_for_later(load, message, receiving);
}

static void forget_later(struct load *load, const struct receiving *receiving)
{
    for (unsigned i = 0; i < LATER_MAX; i++)
        if (load->later[i].receiving == receiving)
            load->later[i] = (struct later){ NULL };
}

void load_on_done(void *arg, struct ivc_message *message, int status)
{
    struct load *load = arg;
    struct receiving *receiving = message->arg;
    struct load_peer *from = &load->peers[receiving->from];

    forget_later(load, receiving);
    if (status == 0) {
        check_bytes(load, MESSAGES, from->rank, receiving->number, receiving->bytes, message->len);
        from->received_messages++;
        ivc_store_relaxed(&from->pair->received_messages, from->received_messages);
    } else if (!load->board->ends_allowed) {
        load->bereaved |= status == IVC_E_GONE;
        load_fault(load, "message %llu from rank %u ended with %d (%s)",
                   (unsigned long long)receiving->number, from->rank, status,
                   ivc_error_name(status));
    }
    free(receiving);
}

void load_accept_later(struct load *load)
{
    for (unsigned i = 0; i < LATER_MAX; i++) {
        struct later later = load->later[i];

        if (!later.offer || later.due_turn > load->turn)
            continue;
        load->later[i] = (struct later){ NULL };
        ivc_mailbox_accept(load->mailbox, later.offer,
                           &(struct iovec){ later.receiving->bytes, later.len }, 1,
                           later.receiving);
    }
}
