/*
 * Contact: what its two files share.  contact.c listens and answers, seek.c asks; both run in the contact's
 * thread, which alone owns what is not under the lock.
 *
 * A question names whom it means and a random number; the answer repeats both.  So neither a wrong program,
 * nor another process of ours or of another host at the same address, passes for the peer.
 */
#ifndef IVC_NETWORK_CONTACT_H
#define IVC_NETWORK_CONTACT_H

#include "network/internal.h"

/* Little-endian, as all that travels. */
enum { IVC_CONTACT_MAGIC = 0x71637669, IVC_CONTACT_VERSION = 1 };    /* "ivcq" */

struct ivc_question {
    uint32_t magic, version;
    uint64_t nonce;         /* random */
    uint64_t id;            /* who is meant */
};
_Static_assert(sizeof(struct ivc_question) == 24, "travels");

enum ivc_answer_kind {
    IVC_ANSWER_HERE = 1,
    IVC_ANSWER_OTHER,       /* somebody else is here */
    IVC_ANSWER_NONE,        /* here, but the network cannot be opened: `text` */
};

struct ivc_answer {
    uint32_t magic, kind;
    uint64_t nonce, id;     /* as they were asked */
    uint32_t hash;          /* ivc_provider_hash() */
    uint16_t len;           /* of the name */
    uint16_t ip;            /* 1: the name is an address of IP */
    uint8_t name[IVC_FABRIC_NAME_MAX];
    char text[200];
};
_Static_assert(sizeof(struct ivc_answer) == 360, "travels");

enum { IVC_CANDIDATES_MAX = 9 };    /* those of a name, and the one that its network is at */

enum ivc_attempt_state { IVC_ATTEMPT_WAITS, IVC_ATTEMPT_CONNECTS, IVC_ATTEMPT_ASKED, IVC_ATTEMPT_OVER };

/* One address of the peer's. */
struct ivc_attempt {
    union ivc_ip to;
    char own[IF_NAMESIZE];      /* the interface of ours that has that address, too; "" */
    enum ivc_attempt_state state;
    int fd;
    uint64_t at;                /* of the contact's clock: when it is to start, or began */
    const char *why;            /* it was not to be reached so far; NULL: not known */
    size_t got;                 /* bytes of: */
    struct ivc_answer answer;
};

struct ivc_seek {
    struct ivc_route *route;
    uint64_t id, nonce, since;
    unsigned port, n;
    bool planned;
    struct ivc_attempt attempts[IVC_CANDIDATES_MAX];
    struct ivc_seek *next;
    struct ivc_attempt *right;  /* the result; NULL: a reason */
    char reason[400];
};

/* Somebody who asks us. */
struct ivc_asker {
    int fd;
    uint64_t since;
    size_t got;
    struct ivc_question question;
};

enum { IVC_ASKERS_MAX = 64 };

struct ivc_contact {
    struct ivc_network *network;
    uint64_t id;
    int listener, wake;         /* an eventfd */
    unsigned n_own;
    struct ivc_own_ip own[IVC_NETWORK_NAME_MAX / 4];    /* what others are told, best first */

    pthread_mutex_t lock;
    bool stop, load;            /* under the lock, as the next two */
    struct ivc_seek *asked;     /* handed to the thread ... */
    struct ivc_seek *settled;   /* ... and by it */
    _Atomic bool news;          /* `settled` is not empty */
    _Atomic unsigned n_seeking; /* handed over, and not settled */

    pthread_t thread;
    bool started;
    /* The thread's own. */
    uint64_t clock, looked_at;  /* milliseconds in which it ran: a guest that was paused has missed nothing */
    struct ivc_seek *seeks;
    unsigned n_askers;
    struct ivc_asker askers[IVC_ASKERS_MAX];
    struct pollfd *fds;
    size_t n_fds_max;
};

/* Our address for whoever is reached, or asks, from `local` to `remote`. */
const union ivc_ip *ivc_contact_source(const struct ivc_contact *contact, const union ivc_ip *local,
                                       const union ivc_ip *remote);

/* seek.c */
/* Goes on with it; true: it is settled. */
bool ivc_seek_step(struct ivc_contact *contact, struct ivc_seek *seek);
/* What an attempt waits for: 0: nothing. */
short ivc_attempt_events(const struct ivc_attempt *attempt);
void ivc_seek_free(struct ivc_seek *seek);

#endif
