/* The load of a rank: see load.h. */
#include "load.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

enum {
    UNDER_WAY = 4,              /* messages to one peer */
    PACKETS_AT_ONCE = 8,        /* to one peer in a turn */
    PACKET_MAX = 32768,
    LATER_MAX = 16,             /* offers whose place is named some turns later */
    TAG_NUMBERED = 1,           /* a number, then bytes */
    TAG_EMPTY = 2,              /* no bytes at all: its number is the next one */
    SABOTAGE_AT = 40,           /* the message or packet that a deliberate fault hits */
};

enum stream { MESSAGES = 1, PACKETS = 2 };

/* A message's header: its own length and the number of the message. */
enum { HEADER = 1 + sizeof(uint64_t) };

struct receiving {
    uint64_t number;
    uint32_t from;
    uint8_t bytes[];
};

struct sending {
    struct load_peer *to;
    size_t len;
    uint8_t bytes[];
};

/* A packet in a buffer of the path's that is kept for some turns before it is sent. */
struct held {
    struct ivc_buffer buffer;
    size_t len;
    uint64_t until_turn;        /* 0: none */
};

struct load_peer {
    struct load *load;
    uint32_t rank;
    struct ivc_peer *peer;
    struct board_pair *pair;
    uint64_t next_message, sent_messages, next_packet;      /* outgoing */
    uint64_t arriving, received_messages, received_packets; /* incoming */
    struct held held;
    enum ivc_path path;
    uint64_t memory_packets;
};

struct load {
    struct board *board;
    struct board_rank *place;
    uint32_t own;
    uint64_t random, turn;
    struct ivc_endpoint *endpoint;
    struct ivc_mailbox *mailbox;
    size_t eager_max;
    void (*inside)(void *arg);  /* see load_inside() */
    void *inside_arg;
    bool bereaved;              /* the fault is another's end */
    struct load_peer peers[BOARD_RANKS_MAX];
    struct later {
        struct ivc_arrival *offer;
        struct receiving *receiving;
        size_t len;
        uint64_t due_turn;
    } later[LATER_MAX];
    uint8_t packet[PACKET_MAX];
};

void load_fault(struct load *load, const char *format, ...)
{
    char text[sizeof load->place->fault - 32];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(load->place->fault, sizeof load->place->fault, "rank %u: %s", load->own, text);
    /* Release: the text is visible before. */
    ivc_store_release(&load->place->faulty, load->bereaved ? 2 : 1);
    _exit(3);
}

/* ---- what is sent */

static uint64_t seed_of(const struct load *load, enum stream stream, uint32_t from, uint32_t to,
                        uint64_t number)
{
    uint64_t seed = load->board->seed + stream;

    seed = (seed * 1000003 + from) * 1000003 + to;
    seed = seed * 1000000007 + number + 1;
    seed += seed == 0;
    (void)check_random(&seed);
    (void)check_random(&seed);
    return seed;
}

/* Most are short, some lie around the edges of packets, few are as long as it goes. */
static size_t message_len(const struct load *load, uint32_t from, uint32_t to, uint64_t number)
{
    static const size_t edges[] = { 0, 1, 16, 40, 56, 57, 64, 4096, 5461, 32736, 32768, 65536 };
    uint64_t seed = seed_of(load, MESSAGES, from, to, number);
    uint64_t kind = check_random(&seed) % 100, random = check_random(&seed);
    size_t len = kind < 50 ? random % 200
        : kind < 75 ? edges[random % 12] + check_random(&seed) % 5
        : kind < 98 ? random % 100000
        : random % (load->board->longest + 1);

    return IVC_MIN(len, load->board->longest);
}

/* Bytes behind the number; SIZE_MAX: no number either. */
static size_t packet_len(const struct load *load, uint32_t from, uint32_t to, uint64_t number)
{
    uint64_t seed = seed_of(load, PACKETS, from, to, number);
    uint64_t kind = check_random(&seed) % 100, random = check_random(&seed);

    return kind < 4 ? SIZE_MAX
        : kind < 80 ? random % 100
        : random % (PACKET_MAX - sizeof(uint64_t) + 1);
}

static void fill(uint8_t *bytes, size_t len, uint64_t seed)
{
    size_t i = 0;

    for (; i + 8 <= len; i += 8) {
        uint64_t word = check_random(&seed);

        memcpy(bytes + i, &word, 8);
    }
    for (; i < len; i++)
        bytes[i] = (uint8_t)(check_random(&seed) >> 56);
}

/* The first wrong byte; `len`: none. */
static size_t wrong_at(const uint8_t *bytes, size_t len, uint64_t seed)
{
    size_t i = 0;

    for (; i + 8 <= len; i += 8) {
        uint64_t word = check_random(&seed);

        if (memcmp(bytes + i, &word, 8) != 0)
            return i;
    }
    for (; i < len; i++)
        if (bytes[i] != (uint8_t)(check_random(&seed) >> 56))
            return i;
    return len;
}

/* ---- what comes */

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
    size_t at = wrong_at(bytes, len, seed_of(load, stream, from, load->own, number));

    if (at < len)
        load_fault(load, "%s %llu from rank %u: wrong from byte %zu on, of %zu",
                   stream == MESSAGES ? "message" : "packet", (unsigned long long)number, from, at,
                   len);
}

static void take_packet(struct load *load, struct load_peer *from, const struct ivc_packet *packet)
{
    uint64_t expected = from->received_packets, number = expected;
    size_t expected_len = packet_len(load, from->rank, load->own, expected);
    size_t len = (size_t)packet->head_len + packet->body_len;

    if (len > sizeof load->packet)
        load_fault(load, "packet of %zu bytes from rank %u", len, from->rank);
    memcpy(load->packet, packet->head, packet->head_len);
    memcpy(load->packet + packet->head_len, packet->body, packet->body_len);
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

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
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

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct load *load = arg;
    struct load_peer *gone = peer_of(load, peer);

    ivc_mailbox_gone(load->mailbox, peer);
    load->bereaved = !ivc_load_acquire(&load->board->end) && !load->board->ends_allowed;
    if (load->bereaved)
        load_fault(load, "rank %u is gone: %s", gone->rank, reason ? reason : "it left");
    (void)ivc_endpoint_send(load->endpoint, peer, TAG_EMPTY, NULL, 0);  /* for its text */
    snprintf(gone->pair->gone_reason, sizeof gone->pair->gone_reason, "%s; %s",
             reason ? reason : "it left", ivc_error_text());
    ivc_store_release(&gone->pair->gone_at_ns, ivc_now_ns());   /* the reason is visible before */
}

/* Those who greet before we have connected to them; load_connect() finds the same peer. */
static void on_arrival(void *arg, struct ivc_peer *peer)
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

static void on_start(void *arg, struct ivc_message *message)
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
    if (message->len != message_len(load, from->rank, load->own, number))
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

static void on_done(void *arg, struct ivc_message *message, int status)
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
        load_fault(load, "message %llu from rank %u ended with %d (%s)",
                   (unsigned long long)receiving->number, from->rank, status,
                   ivc_error_name(status));
    }
    free(receiving);
}

static void accept_later(struct load *load)
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

/* ---- what leaves */

static void on_sent(void *arg, int status)
{
    struct sending *sending = arg;
    struct load_peer *to = sending->to;

    if (status != 0 && !to->load->board->ends_allowed)
        load_fault(to->load, "a message to rank %u ended with %d (%s)", to->rank, status,
                   ivc_error_name(status));
    to->sent_messages++;
    ivc_store_relaxed(&to->pair->sent_messages, to->sent_messages);
    memset(sending->bytes, 0xdd, sending->len);     /* whoever still reads it is found out */
    free(sending);
}

static bool is_sabotaged(const struct load *load, const struct load_peer *to,
                         enum rank_sabotage kind, uint64_t number)
{
    return load->place->sabotage == kind && to->rank == load->place->sabotage_to
        && number == SABOTAGE_AT;
}

static void send_message(struct load *load, struct load_peer *to, uint64_t number)
{
    size_t len = message_len(load, load->own, to->rank, number);
    struct sending *sending = malloc(sizeof *sending + len);
    char header[HEADER] = { HEADER };
    int r;

    if (!sending)
        load_fault(load, "no memory for a message of %zu bytes", len);
    sending->to = to;
    sending->len = len;
    fill(sending->bytes, len, seed_of(load, MESSAGES, load->own, to->rank, number));
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
    size_t len = packet_len(load, load->own, to->rank, number);

    fill(bytes + sizeof number, len, seed_of(load, PACKETS, load->own, to->rank, number));
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
    if (r != IVC_E_FULL && r != IVC_E_NOSPACE && !(r == IVC_E_GONE && load->board->ends_allowed))
        load_fault(load, "packet %llu to rank %u: %d, %s", (unsigned long long)to->next_packet,
                   to->rank, r, ivc_error_text());
    return true;
}

static bool send_held(struct load *load, struct load_peer *to)
{
    int r;

    if (load->turn < to->held.until_turn)
        return false;
    r = ivc_endpoint_send_buffer(load->endpoint, to->peer, TAG_NUMBERED, &to->held.buffer,
                                 to->held.len);
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
    return send_held(load, to);
}

static bool send_packet(struct load *load, struct load_peer *to)
{
    size_t len = packet_len(load, load->own, to->rank, to->next_packet);
    int r;

    if (to->held.until_turn)
        return send_held(load, to);
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
        while (to->next_message - to->sent_messages < UNDER_WAY)
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

/* ---- turns */

static void tell_pair(struct load_peer *to)
{
    struct ivc_peer_stats stats;
    enum ivc_path path = ivc_peer_path(to->peer);
    uint64_t packets;

    if (path != to->path) {
        to->path = path;
        ivc_store_relaxed(&to->pair->path, path);
        ivc_store_relaxed(&to->pair->path_changes, ivc_load_relaxed(&to->pair->path_changes) + 1);
    }
    ivc_peer_stats(to->peer, &stats);
    packets = stats.sent_packets + stats.received_packets;
    if (packets != to->memory_packets) {
        to->memory_packets = packets;
        ivc_store_relaxed(&to->pair->memory_packets, packets);
        ivc_store_relaxed(&to->pair->memory_at_ns, ivc_now_ns());
    }
    ivc_store_relaxed(&to->pair->memory_bytes, stats.sent_bytes + stats.received_bytes);
    ivc_store_relaxed(&to->pair->network_bytes,
                      stats.network_sent_bytes + stats.network_received_bytes);
}

int load_progress(struct load *load)
{
    int n;

    load->turn++;
    accept_later(load);
    for (uint32_t i = 0; i < load->board->n_ranks; i++)
        if (i != load->own && load->peers[i].held.until_turn
            && !ivc_peer_is_gone(load->peers[i].peer))
            (void)send_held(load, &load->peers[i]);
    n = ivc_mailbox_progress(load->mailbox);
    for (uint32_t i = 0; i < load->board->n_ranks; i++)
        if (i != load->own)
            tell_pair(&load->peers[i]);
    ivc_store_relaxed(&load->place->turns, load->turn);
    return n;
}

void load_wait(struct load *load, int ms)
{
    (void)ivc_endpoint_wait(load->endpoint, ms, ivc_mailbox_busy(load->mailbox));
}

struct ivc_endpoint *load_endpoint(struct load *load)
{
    return load->endpoint;
}

void load_inside(struct load *load, void (*fn)(void *arg), void *arg)
{
    load->inside = fn;
    load->inside_arg = arg;
}

/* ---- opening and closing */

struct load *load_open(struct board *board, uint32_t own)
{
    struct load *load = calloc(1, sizeof *load);
    struct ivc_endpoint_options options = {
        .magic_id = board->magic_id, .client_id = own, .network = true, .on_packet = on_packet,
        .on_gone = on_gone, .on_arrival = on_arrival, .arg = load,
        .threads = board->ranks[own].threads,
    };
    int r;

    CHECK(load != NULL);
    load->board = board;
    load->own = own;
    load->place = &board->ranks[own];
    load->random = board->seed * 31 + own + 1;
    for (uint32_t i = 0; i < board->n_ranks; i++)
        load->peers[i] = (struct load_peer){ .load = load, .rank = i,
                                             .pair = &load->place->pairs[i] };
    r = ivc_endpoint_open(&options, &load->endpoint);
    if (r != 0)
        load_fault(load, "cannot open its endpoint: %s", ivc_error_text());
    if (ivc_mailbox_new(load->endpoint, on_start, on_done, load, &load->mailbox) != 0)
        load_fault(load, "cannot make its mailbox");
    load->eager_max = ivc_endpoint_eager_max(load->endpoint);
    if (ivc_endpoint_packet_max(load->endpoint) < PACKET_MAX)
        load_fault(load, "packets are too short for this test: %zu bytes",
                   ivc_endpoint_packet_max(load->endpoint));
    ivc_endpoint_address(load->endpoint, &load->place->address);
    return load;
}

void load_connect(struct load *load)
{
    for (uint32_t i = 0; i < load->board->n_ranks; i++) {
        struct load_peer *to = &load->peers[i];
        struct ivc_peer *peer;

        if (i == load->own)
            continue;
        if (ivc_endpoint_connect(load->endpoint, &load->board->ranks[i].address, &peer) != 0)
            load_fault(load, "cannot connect to rank %u: %s", i, ivc_error_text());
        if (to->peer && to->peer != peer)
            load_fault(load, "two peers for rank %u", i);
        to->peer = peer;
        to->path = ivc_peer_path(peer);
        ivc_store_relaxed(&to->pair->path, to->path);
        ivc_endpoint_watch(load->endpoint, peer);
    }
}

void load_close(struct load *load)
{
    ivc_endpoint_free(load->endpoint);
    ivc_mailbox_free(load->mailbox);
    free(load);
}
