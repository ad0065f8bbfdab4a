/* What the files of a load share. */
#ifndef IVC_TESTS_MIGRATE_LOAD_INTERNAL_H
#define IVC_TESTS_MIGRATE_LOAD_INTERNAL_H

#include "load.h"

enum {
    PACKET_MAX = 65536,         /* of a double one */
    LATER_MAX = 16,             /* offers whose place is named some turns later */
    TAG_NUMBERED = 1,           /* a number, then bytes */
    TAG_EMPTY = 2,              /* no bytes at all: its number is the next one */
    HEADER = 1 + sizeof(uint64_t),  /* of a message: its own length, the message's number */
};

enum stream { MESSAGES = 1, PACKETS = 2 };

struct receiving {
    uint64_t number;
    uint32_t from;
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
    const char *why_gone;       /* the last peer that ended */
    struct load_peer peers[BOARD_RANKS_MAX];
    struct later {
        struct ivc_arrival *offer;
        struct receiving *receiving;
        size_t len;
        uint64_t due_turn;
    } later[LATER_MAX];
    uint8_t packet[PACKET_MAX];
};

/* load-rule.c: what a number says about length and bytes. */
uint64_t load_seed_of(const struct load *load, enum stream stream, uint32_t from, uint32_t to,
                      uint64_t number);
size_t load_message_len(const struct load *load, uint32_t from, uint32_t to, uint64_t number);
/* Bytes behind the number; SIZE_MAX: no number either. */
size_t load_packet_len(const struct load *load, uint32_t from, uint32_t to, uint64_t number);
/* The first wrong byte; `len`: none. */
size_t load_wrong_at(const uint8_t *bytes, size_t len, uint64_t seed);

/* load-receive.c: handlers of the endpoint and the mailbox. */
void load_on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet);
void load_on_gone(void *arg, struct ivc_peer *peer, const char *reason);
/* Those who greet before we have connected to them; load_connect() finds the same peer. */
void load_on_arrival(void *arg, struct ivc_peer *peer);
void load_on_start(void *arg, struct ivc_message *message);
void load_on_done(void *arg, struct ivc_message *message, int status);
/* Names the place for offers whose turn has come. */
void load_accept_later(struct load *load);

/* load-send.c.  Sends the packet that was held back, when its turn has come and it may be. */
bool load_send_held(struct load *load, struct load_peer *to);

#endif
