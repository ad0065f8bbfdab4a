/*
 * Memory that was taken away without asking: a device pulled, a file truncated, a guest that stood
 * still for so long that the others took it for dead.
 *
 * Then nobody can say by memory how far it has read; it is said by network.  Each side tells the other
 * once (WIRE_LOST): who still has the memory reads the other's ring to its end before it does.  What
 * the other has not read is sent by network, by whoever still has his own ring.  Who has not has only the
 * last packet, the one after which he found the memory gone.  Each tells the other from which packet on he
 * can send again, so both know when some are lost: then the connection ends on both sides, and the reason
 * says how many.
 */
#ifndef IVC_ENDPOINT_LOST_H
#define IVC_ENDPOINT_LOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ivc_endpoint;
struct ivc_peer;

/* What the two tell each other by network. */
struct ivc_lost_word {
    uint32_t own_slot, own_generation;  /* the attachment's name: the sender's place, */
    uint32_t slot, generation;          /* ... and the receiver's, as the sender knew it */
    uint64_t read;                      /* packets of the receiver's ring that the sender has read */
    uint64_t kept_from;                 /* the sender can send again those of its own from here on */
    uint32_t heard;                     /* the sender has heard the receiver's word, and waits for none */
    uint32_t present;                   /* 1 */
};

/* The end of an attachment that one side has lost.  Zero: nothing of that is under way. */
struct ivc_loss {
    bool pending;
    bool have;                  /* we still have the memory: rx and tx are as they were */
    bool said, heard;
    uint32_t own_slot, own_generation, slot, generation;    /* the attachment's name */
    uint64_t read, written;     /* packets: by us of its ring, by us into ours */
    uint64_t kept_from;         /* of ours: from here on we can send again what it has not read */
    uint64_t peer_read;         /* what it has read of ours, when `heard` */
    uint64_t peer_kept_from;    /* ... and from where on it can send again */
};

/* What one side knows of the other. */
struct ivc_losses {
    struct ivc_loss last;       /* of the last attachment that has ended, or is about to */
    struct ivc_loss before;     /* ... and of the one before */
    struct ivc_lost_word early; /* about an attachment later than `last`: heard when that is over */
    struct ivc_lost_word answer;    /* to a word about one that is over; goes by network */
    uint64_t missing;           /* packets of that one, which are nowhere any more */
};

/* The helper, with the gate closed: our region is gone, or we are taken for dead. */
void ivc_lost_region(struct ivc_endpoint *endpoint, const char *reason);
/* Under send_lock, or the helper: the peer's heart has stopped, in another kernel, and the network may reach
 * it.  False: there is none. */
bool ivc_lost_suspect(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Under `polling`: what the peer says. */
void ivc_lost_hear(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *content,
                   size_t len);
/* We stop, in order: how far we are, in case the peer loses the memory before it sees that. */
void ivc_lost_note(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Some peer has not been told yet, or has not answered: until then we are no member of a region again,
 * because what we wrote is read where we were. */
bool ivc_lost_is_pending(struct ivc_endpoint *endpoint);
/* Under `polling`: the next step, if there is one to do. */
void ivc_lost_step(struct ivc_endpoint *endpoint, struct ivc_peer *peer);

#endif
