/* Peers on the network path: see remote.h. */
#include "endpoint/remote.h"

#include "base/error.h"
#include "base/timed.h"
#include "base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

/* What a packet of the network begins with. */
struct wire {
    uint64_t from;          /* the sender's endpoint id */
    uint32_t number;        /* of the packets to this peer, from 0 */
    uint8_t kind;
    uint8_t tag;
    uint16_t reserved;
};
_Static_assert(sizeof(struct wire) == 16, "part of the wire protocol, and keeps data aligned");

enum wire_kind {
    WIRE_PACKET = 1,
    WIRE_GREETING,
    WIRE_FAREWELL,
    WIRE_BROKEN,            /* nothing more is taken from you, and why (a text) */
    WIRE_LOST,              /* our shared memory is gone (lost.c) */
};

/* The content of a greeting. */
struct greeting {
    struct ivc_address_fields address;
    uint64_t magic_id;
    uint32_t client_id;
    uint32_t packet_max;    /* the longest that its sender will send; 0: not told */
    char host[64];
};

enum {
    LOOK_EVERY = 8,             /* turns, of which one reads the clock */
    LOOK_EVERY_ALONE = 32,      /* nobody is known to be out there */
    WAIT_TURNS = 1024,          /* in vain: a look is a small part of such a wait, */
    SHORT_WAITS = 16,           /* and of others one of so many has one, or fewer */
    LIES_MAX = 16,
};

/* ---- who is out there */

int ivc_remote_make(struct ivc_endpoint *endpoint, const struct ivc_address_fields *fields,
                    struct ivc_peer **ret_peer)
{
    struct ivc_peer *peer = ivc_peer_find(endpoint, fields->id);
    int r;

    if (peer) {
        *ret_peer = peer;
        return ivc_peer_state(peer) == IVC_PEER_GONE ? IVC_E_GONE : 0;
    }
    if (!endpoint->network)
        return ivc_path_no_network(endpoint, fields);
    peer = ivc_peer_new(fields->id);
    if (!peer)
        return -ENOMEM;
    peer->network = fields->network;
    peer->told_region = ivc_address_told_region(fields);
    r = ivc_network_connect(endpoint->network, peer->member.endpoint_id, &peer->network, peer, &peer->route);
    if (r != 0) {
        free(peer);
        return r;
    }
    ivc_peer_publish(endpoint, peer);
    *ret_peer = peer;
    return 0;
}

int ivc_remote_open_route(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    if (peer->route)
        return 0;
    if (!endpoint->network)
        return ivc_error_set(IVC_E_UNREACHABLE, "client %u on %s shares no memory with us any more, "
                             "and there is no network to it", peer->member.client_id,
                             peer->member.host);
    return ivc_network_connect(endpoint->network, peer->member.endpoint_id, &peer->network, peer, &peer->route);
}

int ivc_remote_watch(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r = ivc_remote_open_route(endpoint, peer);

    if (r == 0)
        ivc_route_watch(endpoint->network, peer->route);
    return r;
}

/* ---- going out */

static struct wire next_wire(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                             enum wire_kind kind, uint8_t tag)
{
    return (struct wire){
        .from = endpoint->id, .number = peer->remote_sent, .kind = (uint8_t)kind, .tag = tag,
    };
}

/* A packet that is only ours. */
static int send_kind(struct ivc_endpoint *endpoint, struct ivc_peer *peer, enum wire_kind kind,
                     const void *content, size_t len)
{
    struct wire wire = next_wire(endpoint, peer, kind, 0);
    struct iovec iov[2] = { { &wire, sizeof wire }, { (void *)content, len } };
    int r = ivc_network_send(endpoint->network, peer->route, iov, len > 0 ? 2 : 1);

    peer->remote_sent += r == 0;
    return r;
}

static int greet(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    struct greeting greeting = {
        .magic_id = endpoint->magic_id, .client_id = endpoint->client_id,
        .packet_max = (uint32_t)ivc_endpoint_double_max(endpoint),
    };
    int r;

    ivc_address_make(endpoint, &greeting.address);
    ivc_region_own_host(greeting.host);
    r = send_kind(endpoint, peer, WIRE_GREETING, &greeting, sizeof greeting);
    peer->greeted = r == 0;
    return r;
}

static int may_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r;

    if (ivc_peer_state(peer) == IVC_PEER_GONE)
        return ivc_error_set(IVC_E_GONE, "client %u on %s has left or cannot be reached any more",
                             peer->member.client_id,
                             peer->member.host[0] ? peer->member.host : "another host");
    r = ivc_remote_open_route(endpoint, peer);
    if (r != 0)
        return r;
    return peer->greeted ? 0 : greet(endpoint, peer);
}

int ivc_remote_greet(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    return may_send(endpoint, peer);
}

int ivc_remote_send_lost(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *content,
                         size_t len)
{
    int r = may_send(endpoint, peer);

    return r != 0 ? r : send_kind(endpoint, peer, WIRE_LOST, content, len);
}

int ivc_remote_send_broken(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *why)
{
    int r = may_send(endpoint, peer);

    return r != 0 ? r : send_kind(endpoint, peer, WIRE_BROKEN, why, strlen(why));
}

static int send_packet(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                       const struct iovec *iov, unsigned n_iov, size_t len)
{
    struct iovec parts[IVC_REMOTE_IOV_MAX + 1];
    struct wire wire;
    int r = may_send(endpoint, peer);

    if (r != 0)
        return r;
    if (n_iov > IVC_REMOTE_IOV_MAX)
        return ivc_error_set(-EINVAL, "packet of %u segments: at most %d", n_iov,
                             IVC_REMOTE_IOV_MAX);
    wire = next_wire(endpoint, peer, WIRE_PACKET, tag);
    parts[0] = (struct iovec){ &wire, sizeof wire };
    if (n_iov > 0)
        memcpy(parts + 1, iov, n_iov * sizeof *iov);
    r = ivc_network_send(endpoint->network, peer->route, parts, n_iov + 1);
    if (r == 0) {
        peer->remote_sent++;
        peer->stats.network_sent_bytes += len;
    }
    return r;
}

int ivc_remote_push(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r = 0;

    if (peer->unsent.packets == 0)
        return 0;
    while (r == 0 && peer->unsent.first) {
        struct ivc_kept *kept = peer->unsent.first;
        struct iovec iov = { kept->bytes, kept->len };

        r = send_packet(endpoint, peer, kept->tag, &iov, 1, kept->len);
        if (r == 0)
            ivc_backlog_drop_first(&peer->unsent);
    }
    endpoint->n_unsent -= r == 0;
    return r;
}

int ivc_remote_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                    const struct iovec *iov, unsigned n_iov, size_t len)
{
    int r = ivc_remote_push(endpoint, peer);

    return r != 0 ? r : send_packet(endpoint, peer, tag, iov, n_iov, len);
}

int ivc_remote_buffer_get(struct ivc_endpoint *endpoint, struct ivc_peer *peer, struct ivc_buffer *ret_buffer)
{
    void *data;
    int r = ivc_remote_open_route(endpoint, peer);

    if (r == 0)
        r = ivc_network_buffer_get(endpoint->network, peer->route, &ret_buffer->network, &data);
    if (r != 0)
        return r;
    ret_buffer->data = (char *)data + sizeof(struct wire);
    ret_buffer->size = (uint32_t)ivc_endpoint_double_max(endpoint);
    return 0;
}

int ivc_remote_send_buffer(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                           const struct ivc_buffer *buffer, size_t len)
{
    struct wire wire;
    int r = ivc_remote_push(endpoint, peer);

    if (r == 0)
        r = may_send(endpoint, peer);
    if (r != 0)
        return r;
    wire = next_wire(endpoint, peer, WIRE_PACKET, tag);
    memcpy((char *)buffer->data - sizeof wire, &wire, sizeof wire);
    r = ivc_network_send_buffer(endpoint->network, peer->route, buffer->network,
                                sizeof wire + len);
    if (r == 0) {
        peer->remote_sent++;
        peer->stats.network_sent_bytes += len;
    }
    return r;
}

/* ---- coming in */

static struct ivc_peer *welcome(struct ivc_endpoint *endpoint, const struct greeting *greeting)
{
    struct ivc_peer *peer = NULL;
    bool known;
    int r;

    ivc_endpoint_lock(endpoint);
    known = ivc_peer_find(endpoint, greeting->address.id) != NULL;
    r = known || (endpoint->on_arrival && greeting->magic_id == endpoint->magic_id)
        ? ivc_remote_make(endpoint, &greeting->address, &peer) : IVC_E_UNREACHABLE;
    if (r == 0)
        peer->member.client_id = greeting->client_id;
    if (r == 0)
        snprintf(peer->member.host, sizeof peer->member.host, "%.64s", greeting->host);
    if (r == 0)
        r = ivc_remote_watch(endpoint, peer);   /* who has sent to us is waited for, even if we never answer */
    ivc_endpoint_unlock(endpoint);
    if (r != 0)
        return NULL;
    if (!known)
        endpoint->on_arrival(endpoint->arg, peer);
    return peer;
}

static struct ivc_peer *take_greeting(struct ivc_endpoint *endpoint, const struct wire *wire,
                                      const void *content, size_t len)
{
    struct ivc_address address = { .len = IVC_ADDRESS_LEN };
    struct greeting greeting;

    if (len != sizeof greeting)
        return NULL;
    memcpy(&greeting, content, sizeof greeting);
    memcpy(address.bytes, &greeting.address, IVC_ADDRESS_LEN);
    if (ivc_address_id(&address) != wire->from)
        return NULL;
    return welcome(endpoint, &greeting);
}

static void deliver(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                    const void *content, size_t len)
{
    struct ivc_packet packet = {
        .tag = tag, .head = content, .head_len = (uint32_t)len,
    };

    peer->stats.network_received_bytes += len;
    endpoint->on_packet(endpoint->arg, peer, &packet);
}

/* Ends the connection, and stops asking whether the other end lives. */
static void end(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason)
{
    ivc_peer_end(endpoint, peer, reason);
    ivc_route_free(endpoint->network, peer->route);
}

/* The peer has to know as well, or it would wait for answers to what is dropped from now on.  Where no route leads
 * there yet, progress tells it, and ends the connection then. */
static void end_broken(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *reason,
                       const char *told)
{
    int r;

    ivc_endpoint_lock(endpoint);
    r = ivc_remote_send_broken(endpoint, peer, told);
    if (r == IVC_E_FULL) {
        peer->over = true;
        peer->over_reason = reason;
        peer->over_tells = told;
        ivc_endpoint_leave_to_progress(endpoint);
    }
    ivc_endpoint_unlock(endpoint);
    if (r != IVC_E_FULL)
        end(endpoint, peer, reason);
}

/* By the peer, for a reason that it tells. */
static void end_told(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *text, size_t len)
{
    char why[200], reason[sizeof why + 40];
    size_t n = IVC_MIN(len, sizeof why - 1);

    for (size_t i = 0; i < n; i++)
        why[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '.';
    why[n] = '\0';
    snprintf(reason, sizeof reason, "it has ended the connection: %s", why);
    end(endpoint, peer, reason);
}

/* Our buffers would not hold its packets, and a network that has no room for one may say nothing. */
static bool sends_too_much(const struct ivc_endpoint *endpoint, const void *greeting)
{
    uint32_t packet_max;

    memcpy(&packet_max, (const char *)greeting + offsetof(struct greeting, packet_max),
           sizeof packet_max);
    return packet_max > ivc_endpoint_double_max(endpoint);
}

/* Of who has greeted us. The route to it may have been given up, while memory led there; it sends by its own. */
static bool listen_to(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    int r;

    if (peer->route || peer->remote_received == 0)
        return peer->route != NULL;
    ivc_endpoint_lock(endpoint);
    r = ivc_remote_watch(endpoint, peer);
    ivc_endpoint_unlock(endpoint);
    return r == 0;
}

static void on_packet(void *arg, const void *data, size_t len)
{
    struct ivc_endpoint *endpoint = arg;
    struct ivc_peer *peer;
    struct wire wire;
    const void *content = (const char *)data + sizeof wire;

    if (len < sizeof wire)
        return;
    memcpy(&wire, data, sizeof wire);
    len -= sizeof wire;
    peer = wire.kind == WIRE_GREETING ? take_greeting(endpoint, &wire, content, len)
           : ivc_peer_find(endpoint, wire.from);
    if (!peer || ivc_peer_state(peer) == IVC_PEER_GONE || peer->over_tells || !listen_to(endpoint, peer))
        return;     /* of a job that is not ours, or of one that was given up */
    ivc_route_heard(peer->route);
    if (wire.kind == WIRE_BROKEN) {
        end_told(endpoint, peer, content, len);
        return;
    }
    if (wire.number != peer->remote_received++) {
        end_broken(endpoint, peer, "packets of it were lost on the network",
                   "packets of ours were lost on the network");
        return;
    }
    if (wire.kind == WIRE_GREETING && sends_too_much(endpoint, content))
        end_broken(endpoint, peer, "its packets are longer than ours: IVC_CHUNK_SIZE must be the "
                   "same wherever packets go over the network",
                   "our packets are longer than its: IVC_CHUNK_SIZE must be the same wherever "
                   "packets go over the network");
    else if (wire.kind == WIRE_PACKET)
        deliver(endpoint, peer, wire.tag, content, len);
    else if (wire.kind == WIRE_LOST)
        ivc_lost_hear(endpoint, peer, content, len);
    else if (wire.kind == WIRE_FAREWELL)
        end(endpoint, peer, NULL);
    /* It may have waited for this packet with reading the ring that comes after. */
    if (ivc_peer_is_attached(peer) && !peer->rx_open)
        ivc_poll_welcome_ring(endpoint, peer);
}

/* What we sent by network has all come: it reads our ring, which it opens only then. */
static bool has_all(struct ivc_peer *peer)
{
    if (peer->remote_sent == 0)
        return true;
    return peer->tx.slots && ivc_tx_refresh(&peer->tx) == 0 && peer->tx.head > 0;
}

/* Memory leads there, and nothing is awaited from the network: the region says whether it lives. What we sent last may
 * have gone with the route; then a greeting on another one, which has the next number, lets the peer find out. */
static bool does_without(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    bool sure, does;

    if (!ivc_peer_is_attached(peer) || !peer->rx_open || peer->losses.last.pending)
        return false;
    ivc_endpoint_lock(endpoint);
    sure = has_all(peer);
    does = sure || !peer->asked;
    if (does)
        peer->route = NULL;
    peer->asked = !sure;
    peer->greeted &= sure;
    ivc_endpoint_unlock(endpoint);
    if (does && !sure)
        ivc_endpoint_leave_to_progress(endpoint);
    return does;
}

static void on_down(void *arg, struct ivc_route *route, const char *reason)
{
    struct ivc_endpoint *endpoint = arg;
    struct ivc_peer *peer = ivc_route_arg(route);

    if (!does_without(endpoint, peer))
        ivc_peer_end(endpoint, peer, peer->over_tells ? peer->over_reason : reason);
}

/*
 * Looking at the network costs system calls, a turn of memory a few nanoseconds.  So after a look
 * that found nothing, as much time passes until the next one that looking takes a small part of
 * all: a sixteenth, or next to nothing while nobody is known to be out there.  Who has no memory to
 * look at looks always, and so does whom the network's descriptor has woken.
 */
static void plan_next_look(struct ivc_endpoint *endpoint, uint64_t start, uint64_t end)
{
    uint64_t cost = ivc_timed_cost(endpoint->network_cost, end - start);

    endpoint->network_cost = cost;
    endpoint->network_looked = end;
    endpoint->network_pause = cost * (endpoint->n_remotes > 0 ? 16 : 256);
}

/*
 * libfabric's own tcp of 1.17 and 1.18.0 (`net` there) leaves its descriptor readable once something
 * has come, and says that one may sleep on it all the same (ofiwg/libfabric issue 8947).  One that
 * has woken somebody so many times in a row for nothing is not slept on until something comes.
 */
static void count_lies(struct ivc_endpoint *endpoint, bool woke, int n)
{
    /* Relaxed: written by whoever makes progress, alone; a sleeper reads it a moment late. */
    uint32_t lies = ivc_load_relaxed(&endpoint->network_lies);

    if (n > 0 && lies > 0)
        ivc_store_relaxed(&endpoint->network_lies, 0);
    else if (n == 0 && woke && lies < LIES_MAX)
        ivc_store_relaxed(&endpoint->network_lies, lies + 1);
}

int ivc_remote_fd(const struct ivc_endpoint *endpoint)
{
    if (!endpoint->network || ivc_load_relaxed(&endpoint->network_lies) == LIES_MAX)
        return -1;
    return ivc_network_fd(endpoint->network);
}

/* `since` the last look. While nobody is known to be out there it is left to who waits for long: what comes through
 * memory soon would come later by a look that takes longer than all of its way. */
static bool look_is_due(const struct ivc_endpoint *endpoint, uint64_t since)
{
    bool is_short = endpoint->n_remotes == 0 && endpoint->crowd.idle < WAIT_TURNS;

    return since >= endpoint->network_pause * (is_short ? SHORT_WAITS : 1);
}

int ivc_remote_poll(struct ivc_endpoint *endpoint)
{
    bool memory = endpoint->home.n_receivers > 0, woke;
    uint32_t every = endpoint->n_remotes > 0 ? LOOK_EVERY : LOOK_EVERY_ALONE;
    uint64_t start;
    int n;

    if (memory && endpoint->turn - endpoint->network_turn < every && !endpoint->network_busy)
        return 0;
    endpoint->network_turn = endpoint->turn;
    start = memory ? ivc_cycles() : 0;
    /* Relaxed: a hint; whoever set it calls progress until we have looked. */
    woke = ivc_load_relaxed(&endpoint->network_woke);
    /* (Where the counter jumps back, as in a guest that has moved, that is a long time, and we look.) */
    if (memory && !woke && !look_is_due(endpoint, start - endpoint->network_looked))
        return 0;
    if (woke)
        ivc_store_relaxed(&endpoint->network_woke, 0);
    n = ivc_network_progress(endpoint->network);
    count_lies(endpoint, woke, n);
    endpoint->network_busy = n > 0;
    endpoint->network_pause = 0;
    if (n == 0)
        ivc_crowd_long_turn(&endpoint->crowd);
    if (memory && n == 0)
        plan_next_look(endpoint, start, ivc_cycles());
    return n;
}

void ivc_endpoint_watch(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    ivc_endpoint_lock(endpoint);
    /* Peers in memory are watched by the region. */
    if (ivc_peer_state(peer) == IVC_PEER_CLOSED)
        (void)ivc_remote_watch(endpoint, peer);
    ivc_endpoint_unlock(endpoint);
}

/* ---- opening and closing */

int ivc_remote_open(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options)
{
    struct ivc_network_options network = {
        .id = endpoint->id,
        .provider = options->network_provider,
        .packet_max = sizeof(struct wire) + IVC_MAX(ivc_endpoint_double_max(endpoint),
                                                    sizeof(struct greeting)),
        .threads = options->threads,
        .later = endpoint->home.region != NULL,
        .on_packet = on_packet,
        .on_down = on_down,
        .arg = endpoint,
    };
    const char *asked = options->network_provider ? options->network_provider
                        : getenv("IVC_NETWORK");
    bool by_name = asked && *asked, none = by_name && strcasecmp(asked, "none") == 0;
    int r;

    if (!options->network && !(options->moves && endpoint->home.region))
        return 0;
    r = ivc_network_open(&network, &endpoint->network);
    if (r == 0)
        return 0;
    snprintf(endpoint->no_network, sizeof endpoint->no_network, "%s", ivc_error_text());
    if (!endpoint->home.region)
        return ivc_error_set(r, "neither shared memory nor a network: there is no region "
                             "(IVC_REGION), and %s", endpoint->no_network);
    /* Who is in a region can do without, unless a network was asked for by name, or a value of ours is
     * wrong: that is not to be found out when a guest moves.  "none" is the name for not having one. */
    return none || (!by_name && r == -ENODEV) ? 0 : r;
}

/* To whoever may still wait for something of ours; memory tells the others. */
static int say_farewell(struct ivc_endpoint *endpoint, struct ivc_peer *peer)
{
    uint64_t deadline = ivc_now_ms() + endpoint->linger_ms;
    int r = 0;

    if (ivc_peer_state(peer) != IVC_PEER_CLOSED || !(peer->greeted || peer->met))
        return 0;
    do {
        r = ivc_remote_push(endpoint, peer);
        if (r == 0)
            r = may_send(endpoint, peer);
        if (r == 0)
            r = send_kind(endpoint, peer, WIRE_FAREWELL, NULL, 0);
        if (r == IVC_E_FULL)
            ivc_endpoint_progress(endpoint);
    } while (r == IVC_E_FULL && ivc_now_ms() < deadline);
    return 0;
}

void ivc_remote_close(struct ivc_endpoint *endpoint)
{
    if (!endpoint->network)
        return;
    (void)ivc_peers_each(endpoint, say_farewell);
    ivc_network_free(endpoint->network, endpoint->linger_ms);
    endpoint->network = NULL;
}
