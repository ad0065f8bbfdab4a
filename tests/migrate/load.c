/* The load of a rank, its turns and its life: see load.h. */
#include "load-internal.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

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
    load_accept_later(load);
    for (uint32_t i = 0; i < load->board->n_ranks; i++)
        if (i != load->own && load->peers[i].held.until_turn
            && !ivc_peer_is_gone(load->peers[i].peer))
            (void)load_send_held(load, &load->peers[i]);
    n = ivc_mailbox_progress(load->mailbox);
    for (uint32_t i = 0; i < load->board->n_ranks; i++)
        if (i != load->own)
            tell_pair(&load->peers[i]);
    ivc_store_release(&load->place->turns, load->turn);     /* pairs with the acquire in turns_of() */
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

/* As an application does; it is given back with the endpoint. */
static void lend(struct load *load)
{
    enum { SIZE = 65536 };
    void *memory;

    if (ivc_endpoint_lend(load->endpoint, SIZE, &memory) != 0)
        load_fault(load, "cannot have memory of its region: %s", ivc_error_text());
    memset(memory, 1, SIZE);
}

struct load *load_open(struct board *board, uint32_t own)
{
    struct load *load = calloc(1, sizeof *load);
    struct ivc_endpoint_options options = {
        .magic_id = board->magic_id, .client_id = own, .network = true, .on_packet = load_on_packet,
        .on_gone = load_on_gone, .on_arrival = load_on_arrival, .arg = load,
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
    if (ivc_mailbox_new(load->endpoint, load_on_start, load_on_done, load, &load->mailbox) != 0)
        load_fault(load, "cannot make its mailbox");
    load->eager_max = ivc_endpoint_eager_max(load->endpoint);
    if (ivc_endpoint_double_max(load->endpoint) < PACKET_MAX)
        load_fault(load, "packets are too short for this test: %zu bytes",
                   ivc_endpoint_double_max(load->endpoint));
    if (board->lends && own == 0)
        lend(load);
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
    ivc_mailbox_free(load->mailbox);    /* first: it uses the endpoint */
    ivc_endpoint_free(load->endpoint);
    free(load);
}
