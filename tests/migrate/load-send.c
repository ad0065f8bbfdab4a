/* What a rank sends: messages and packets to all others, as many as may be under way. */
#include "load-internal.h"

#include "check.h"

#include "base/error.h"

enum {
    UNDER_WAY = 4,              /* messages to one peer */
    PACKETS_AT_ONCE = 8,        /* to one peer in a turn */
    SABOTAGE_AT = 40,           /* the message or packet that a deliberate fault hits */
};

struct sending {
    struct load_peer *to;
    size_t len;
    bool lent;
    uint8_t *bytes;
};

static struct sending *sending_new(struct load *load, struct load_peer *to, size_t len)
{
    struct sending *sending = calloc(1, sizeof *sending);

    if (!sending)
        return NULL;
    sending->to = to;
    sending->len = len;
    sending->lent = load->board->lent_messages && len > 0 && check_random(&load->random) % 2 == 0
                    && ivc_endpoint_lend(load->endpoint, len, (void **)&sending->bytes) == 0;
    if (!sending->lent)
        sending->bytes = malloc(len);
    if (sending->bytes || len == 0)
        return sending;
    free(sending);
    return NULL;
}

static void sending_free(struct sending *sending)
{
    struct load *load = sending->to->load;

    memset(sending->bytes, 0xdd, sending->len);     /* whoever still reads it is found out */
    if (!sending->lent)
        free(sending->bytes);
    else if (ivc_endpoint_take_back(load->endpoint, sending->bytes) != 0)
        load_fault(load, "memory for a message: %s", ivc_error_text());
    free(sending);
}

static void on_sent(void *arg, int status)
{
    struct sending *sending = arg;
    struct load_peer *to = sending->to;

    if (status != 0 && !to->load->board->ends_allowed) {
        to->load->bereaved |= status == IVC_E_GONE;     /* heard before on_gone is called */
        load_fault(to->load, "a message to rank %u ended with %d (%s): %s", to->rank, status,
                   ivc_error_name(status), to->load->why_gone ? to->load->why_gone : "nobody says why");
    }
    to->sent_messages++;
    ivc_store_relaxed(&to->pair->sent_messages, to->sent_messages);
    sending_free(sending);
}

static bool is_sabotaged(const struct load *load, const struct load_peer *to,
                         enum rank_sabotage kind, uint64_t number)
{
    return load->place->sabotage == kind && to->rank == load->place->sabotage_to
        && number == SABOTAGE_AT;
}

static void send_message(struct load *load, struct load_peer *to, uint64_t number)
{
    size_t len = load_message_len(load, load->own, to->rank, number);
    struct sending *sending = sending_new(load, to, len);
    char header[HEADER] = { HEADER };
    int r;

    if (!sending)
        load_fault(load, "no memory for a message of %zu bytes", len);
    check_fill(sending->bytes, len, load_seed_of(load, MESSAGES, load->own, to->rank, number));
    if (load->place->sabotage == SABOTAGE_BYTE && to->rank == load->place->sabotage_to
        && number >= SABOTAGE_AT && len > 0)
        sending->bytes[len / 2] ^= 1;
    memcpy(header + 1, &number, sizeof number);
    r = ivc_mailbox_send(load->mailbox, to->peer, header, &(struct iovec){ sending->bytes, len }, 1,
                         on_sent, sending);
    if (r < 0)
        load_fault(load, "message %llu to rank %u: %s", (unsigned long long)number, to->rank,
                   ivc_error_text());
}

static void start_message(struct load *load, struct load_peer *to)
{
    uint64_t number = to->next_message++;

    if (is_sabotaged(load, to, SABOTAGE_SWAP, number))
        number++;
    else if (is_sabotaged(load, to, SABOTAGE_SWAP, number - 1))
        number--;
    if (is_sabotaged(load, to, SABOTAGE_SKIP, number))
        to->sent_messages++;
    else
        send_message(load, to, number);
    if (is_sabotaged(load, to, SABOTAGE_TWICE, number)) {
        to->sent_messages--;
        send_message(load, to, number);
    }
    ivc_store_relaxed(&to->pair->started_messages, to->next_message);
}

static void packet_is_out(struct load_peer *to)
{
    to->next_packet++;
    ivc_store_relaxed(&to->pair->started_packets, to->next_packet);
}

static size_t make_packet(struct load *load, const struct load_peer *to, uint8_t *bytes)
{
    uint64_t number = to->next_packet;
    size_t len = load_packet_len(load, load->own, to->rank, number);

    check_fill(bytes + sizeof number, len,
              load_seed_of(load, PACKETS, load->own, to->rank, number));
    if (load->place->sabotage == SABOTAGE_PACKET_BYTE && to->rank == load->place->sabotage_to
        && number >= SABOTAGE_AT && len > 0)
        bytes[sizeof number + len - 1] ^= 0x80;
    memcpy(bytes, &number, sizeof number);
    return len + sizeof number;
}

/* Whether an answer of the endpoint means "not now". */
static bool is_refused(struct load *load, const struct load_peer *to, int r)
{
    if (r == 0)
        return false;
    if (r != IVC_E_FULL && r != IVC_E_NOSPACE && !(r == IVC_E_GONE && load->board->ends_allowed)) {
        load->bereaved |= r == IVC_E_GONE;
        load_fault(load, "packet %llu to rank %u: %d, %s", (unsigned long long)to->next_packet,
                   to->rank, r, ivc_error_text());
    }
    return true;
}

bool load_send_held(struct load *load, struct load_peer *to)
{
    int r;

    if (load->turn < to->held.until_turn)
        return false;
    r = ivc_endpoint_send_buffer(load->endpoint, to->peer, TAG_NUMBERED, &to->held.buffer,
                                 to->held.len);
    if (r == -ESTALE) {     /* the same packet once more, in another buffer */
        ivc_endpoint_buffer_free(load->endpoint, &to->held.buffer);
        to->held.until_turn = 0;
        return false;
    }
    if (is_refused(load, to, r))
        return false;
    to->held.until_turn = 0;
    packet_is_out(to);
    return true;
}

/* Fills a buffer now and sends it some turns later, on whatever path the peer is then. */
static bool hold_packet(struct load *load, struct load_peer *to, size_t len)
{
    int r = ivc_endpoint_buffer_get(load->endpoint, to->peer, len, &to->held.buffer);

    if (is_refused(load, to, r))
        return false;
    to->held.len = make_packet(load, to, to->held.buffer.data);
    to->held.until_turn = load->turn + 1;
    if (check_random(&load->random) % 8 == 0)
        to->held.until_turn += check_random(&load->random) % 5000;
    return load_send_held(load, to);
}

static bool send_packet(struct load *load, struct load_peer *to)
{
    size_t len = load_packet_len(load, load->own, to->rank, to->next_packet);
    int r;

    if (to->held.until_turn)
        return load_send_held(load, to);
    if (is_sabotaged(load, to, SABOTAGE_PACKET_SKIP, to->next_packet)) {
        packet_is_out(to);
        return true;
    }
    if (len == SIZE_MAX) {
        r = ivc_endpoint_send(load->endpoint, to->peer, TAG_EMPTY, NULL, 0);
    } else if (len + sizeof(uint64_t) > load->eager_max || check_random(&load->random) % 64 == 0) {
        return hold_packet(load, to, len + sizeof(uint64_t));
    } else {
        len = make_packet(load, to, load->packet);
        r = ivc_endpoint_send(load->endpoint, to->peer, TAG_NUMBERED,
                              &(struct iovec){ load->packet, len }, 1);
    }
    if (is_refused(load, to, r))
        return false;
    packet_is_out(to);
    return true;
}

void load_start_some(struct load *load)
{
    for (uint32_t i = 0; i < load->board->n_ranks; i++) {
        struct load_peer *to = &load->peers[i];

        if (i == load->own || ivc_peer_is_gone(to->peer))
            continue;
        /* No more in a turn: one to a peer that has ended ends at once, and progress tells us of it. */
        for (unsigned n = 0; n < UNDER_WAY && to->next_message - to->sent_messages < UNDER_WAY; n++)
            start_message(load, to);
        for (unsigned n = 0; n < PACKETS_AT_ONCE && send_packet(load, to); n++)
            ;
    }
}

bool load_is_sent(const struct load *load)
{
    for (uint32_t i = 0; i < load->board->n_ranks; i++) {
        const struct load_peer *to = &load->peers[i];

        if (i != load->own && !ivc_peer_is_gone(to->peer)
            && (to->sent_messages < to->next_message || to->held.until_turn))
            return false;
    }
    return true;
}

void load_tell_one_more(struct load *load, uint32_t to)
{
    ivc_store_relaxed(&load->peers[to].pair->started_messages, load->peers[to].next_message + 1);
}
