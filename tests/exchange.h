/*
 * Exchange: members of a group send each other messages of every size and check every byte.
 *
 * Both ends compute the length and the bytes of message `number` from `from` to `to` by the same
 * rule, so nothing has to be agreed on beside the number of members and of messages.
 */
#ifndef IVC_TESTS_EXCHANGE_H
#define IVC_TESTS_EXCHANGE_H

#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "endpoint/message.h"
#include "region/region.h"

enum { EXCHANGE_MEMBERS_MAX = 64, EXCHANGE_UNDER_WAY = 4 };

struct exchange {
    const char *region;
    uint64_t magic_id;
    uint32_t own, n_members;
    uint64_t n_messages;        /* to each other member */
    size_t longest;
    useconds_t apart_us;        /* from one member's start to the next */

    struct ivc_endpoint *endpoint;
    struct ivc_mailbox *mailbox;
    struct exchange_peer {
        struct exchange *exchange;
        struct ivc_peer *peer;
        uint64_t started, sent, received;
        uint64_t arriving;      /* messages that have started to come */
    } peers[EXCHANGE_MEMBERS_MAX];
    uint64_t bytes;
};

/* A message's header: its own length and the number of the message. */
enum { EXCHANGE_HEADER = 1 + sizeof(uint64_t) };

struct exchange_receiving {
    uint64_t number;
    uint8_t bytes[];
};

struct exchange_sending {
    struct exchange_peer *to;
    uint8_t bytes[];
};

static inline uint64_t exchange_seed(uint32_t from, uint32_t to, uint64_t number)
{
    uint64_t seed = ((uint64_t)from * 1000003 + to) * 1000003 + number + 1;

    (void)check_random(&seed);
    (void)check_random(&seed);
    return seed;
}

/* Most are short, some lie around the edges of packets, few are as long as it goes. */
static inline size_t exchange_len(const struct exchange *exchange, uint32_t from, uint32_t to,
                                  uint64_t number)
{
    static const size_t edges[] = { 0, 1, 16, 40, 56, 57, 64, 4096, 5461, 32736, 32768, 65536 };
    uint64_t seed = exchange_seed(from, to, number), kind = check_random(&seed) % 100;
    uint64_t random = check_random(&seed);
    size_t len = kind < 50 ? random % 200
        : kind < 75 ? edges[random % 12] + check_random(&seed) % 5
        : kind < 97 ? random % 100000
        : random % (exchange->longest + 1);

    return IVC_MIN(number == 1 ? exchange->longest : len, exchange->longest);
}

static inline void exchange_verify(const uint8_t *bytes, size_t len, uint64_t seed, uint32_t from,
                                   uint64_t number)
{
    size_t i = 0;
    uint64_t word;

    for (; i + 8 <= len; i += 8) {
        word = check_random(&seed);
        CHECK_THAT(memcmp(bytes + i, &word, 8) == 0, "message %llu from %u: wrong at %zu of %zu",
                   (unsigned long long)number, from, i, len);
    }
    for (; i < len; i++)
        CHECK_THAT(bytes[i] == (uint8_t)(check_random(&seed) >> 56),
                   "message %llu from %u: wrong at %zu of %zu", (unsigned long long)number, from, i,
                   len);
}

static inline void exchange_on_packet(void *arg, struct ivc_peer *peer,
                                      const struct ivc_packet *packet)
{
    ivc_mailbox_packet(((struct exchange *)arg)->mailbox, peer, packet);
}

static inline bool exchange_heard_all(const struct exchange *exchange, uint32_t from)
{
    return exchange->peers[from].received == exchange->n_messages;
}

static inline void exchange_on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    struct exchange *exchange = arg;
    uint32_t from = ivc_peer_client_id(peer);

    CHECK_THAT(reason == NULL, "member %u: %s", from, reason);
    CHECK_THAT(from < exchange->n_members && exchange_heard_all(exchange, from),
               "member %u has left after %llu of %llu messages", from,
               (unsigned long long)exchange->peers[from].received,
               (unsigned long long)exchange->n_messages);
    ivc_mailbox_gone(exchange->mailbox, peer);
}

static inline void exchange_on_arrival(void *arg, struct ivc_peer *peer)
{
    (void)arg, (void)peer;
}

static inline void exchange_on_start(void *arg, struct ivc_message *message)
{
    struct exchange *exchange = arg;
    uint32_t from = ivc_peer_client_id(message->peer);
    uint64_t number;

    struct exchange_receiving *receiving = malloc(sizeof *receiving + message->len);

    CHECK(receiving != NULL);
    CHECK_EQ(message->header_len, EXCHANGE_HEADER);
    memcpy(&number, (const char *)message->header + 1, sizeof number);
    CHECK_THAT(from < exchange->n_members && number == exchange->peers[from].arriving,
               "message %llu from %u instead of %llu", (unsigned long long)number, from,
               (unsigned long long)exchange->peers[from].arriving);
    CHECK_EQ(message->len, exchange_len(exchange, from, exchange->own, number));
    exchange->peers[from].arriving++;
    receiving->number = number;
    message->iov[0] = (struct iovec){ receiving->bytes, message->len };
    message->n_iov = 1;
    message->arg = receiving;
}

static inline void exchange_on_done(void *arg, struct ivc_message *message, int status)
{
    struct exchange *exchange = arg;
    uint32_t from = ivc_peer_client_id(message->peer);
    struct exchange_receiving *receiving = message->arg;
    uint64_t number = receiving->number;

    CHECK_EQ(status, 0);
    exchange->peers[from].received++;
    exchange_verify(receiving->bytes, message->len, exchange_seed(from, exchange->own, number), from,
                    number);
    exchange->bytes += message->len;
    free(receiving);
}

static inline void exchange_on_sent(void *arg, int status)
{
    struct exchange_sending *sending = arg;

    CHECK_THAT(status == 0, "to member %u: status %d; %s", ivc_peer_client_id(sending->to->peer),
               status, ivc_error_text());
    sending->to->sent++;
    free(sending);
}

static inline void exchange_send_next(struct exchange *exchange, uint32_t to)
{
    struct exchange_peer *peer = &exchange->peers[to];
    uint64_t number = peer->started++, seed = exchange_seed(exchange->own, to, number);
    size_t len = exchange_len(exchange, exchange->own, to, number);
    struct exchange_sending *sending = malloc(sizeof *sending + len);
    char header[EXCHANGE_HEADER] = { EXCHANGE_HEADER };

    CHECK(sending != NULL);
    sending->to = peer;
    check_fill(sending->bytes, len, seed);
    memcpy(header + 1, &number, sizeof number);
    CHECK_THAT(ivc_mailbox_send(exchange->mailbox, peer->peer, header,
                                &(struct iovec){ sending->bytes, len }, 1, exchange_on_sent,
                                sending) == 0, "%s",
               ivc_error_text());
}

/* Finds and connects those that have joined since. */
static inline unsigned exchange_find(struct exchange *exchange)
{
    struct ivc_region *region = ivc_endpoint_region(exchange->endpoint);
    struct ivc_member member;
    unsigned known = 0;

    for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++) {
        struct exchange_peer *peer;

        if (ivc_region_member(region, slot, &member) != 0 || member.magic_id != exchange->magic_id
            || member.client_id >= exchange->n_members)
            continue;
        peer = &exchange->peers[member.client_id];
        if (!peer->peer && ivc_endpoint_connect_member(exchange->endpoint, &member, &peer->peer) != 0)
            peer->peer = NULL;
    }
    for (uint32_t i = 0; i < exchange->n_members; i++)
        known += exchange->peers[i].peer != NULL;
    return known;
}

static inline bool exchange_done(const struct exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->n_members; i++)
        if (i != exchange->own && (exchange->peers[i].sent < exchange->n_messages
                                   || exchange->peers[i].received < exchange->n_messages))
            return false;
    return true;
}

static inline void exchange_turn(struct exchange *exchange)
{
    for (uint32_t to = 0; to < exchange->n_members; to++) {
        struct exchange_peer *peer = &exchange->peers[to];

        while (peer->peer && to != exchange->own && peer->started < exchange->n_messages
               && peer->started - peer->sent < EXCHANGE_UNDER_WAY)
            exchange_send_next(exchange, to);
    }
    /* More members than processors: whoever has nothing to do gives the processor away. */
    if (ivc_mailbox_progress(exchange->mailbox) == 0)
        sched_yield();
}

/* One member's part, from joining to leaving; fails the case when anything is wrong. */
static inline int exchange_member(void *arg)
{
    struct exchange *exchange = arg;
    struct ivc_endpoint_options options = {
        .region = exchange->region, .magic_id = exchange->magic_id, .client_id = exchange->own,
        .on_packet = exchange_on_packet, .on_gone = exchange_on_gone,
        .on_arrival = exchange_on_arrival, .arg = exchange,
    };
    int r = ivc_endpoint_open(&options, &exchange->endpoint);

    CHECK_THAT(r == 0, "%s", ivc_error_text());
    CHECK_EQ(ivc_mailbox_new(exchange->endpoint, exchange_on_start, exchange_on_done, exchange,
                             &exchange->mailbox), 0);
    while (exchange_find(exchange) < exchange->n_members)
        exchange_turn(exchange);
    while (!exchange_done(exchange))
        exchange_turn(exchange);
    ivc_endpoint_free(exchange->endpoint);
    ivc_mailbox_free(exchange->mailbox);
    return 0;
}

/* All members as processes of this machine. */
static inline void exchange_run(struct exchange *exchange)
{
    pid_t pids[EXCHANGE_MEMBERS_MAX];

    for (uint32_t i = 0; i < exchange->n_members; i++) {
        exchange->own = i;
        pids[i] = check_fork(exchange_member, exchange);
        usleep(exchange->apart_us);
    }
    for (uint32_t i = 0; i < exchange->n_members; i++)
        check_join(pids[i]);
}

#endif
