/*
 * Waking a member that sleeps.
 *
 * A store to shared memory wakes nobody.  So a member that is about to sleep says it in a word of its
 * inbox, and whoever rings its bell then sends it a datagram: on a socket of this kernel if both run
 * under it, else by UDP to the address that the member's entry names.
 *
 * A datagram says whom it means, and nothing but "look".  It may be lost, come late, or from anybody: whoever
 * sleeps looks by himself now and then, and reads nothing on the strength of it.  One that means somebody else
 * (the same address in two guests) is passed over, and none is sent to an address of our own.  From where it came is
 * not looked at: a peer may have several addresses, and its id, 64 random bits, is what a stranger does not know.
 */
#ifndef IVC_REGION_WAKE_H
#define IVC_REGION_WAKE_H

#include "region/layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* The sockets of one member. */
struct ivc_wake {
    uint64_t id;
    int here, there;                /* of this kernel, of the network; -1: none */
    struct ivc_layout_wake name;    /* of `there` */
};

/* Opens what can be had: without either, others find us by our own looks only.  `id` is the name that
 * the member goes by; `address` is where others reach this guest, NULL: that is found out. */
void ivc_wake_open(struct ivc_wake *wake, uint64_t id, const struct sockaddr *address);
void ivc_wake_close(struct ivc_wake *wake);

/* Whom to wake. */
struct ivc_wake_target {
    uint64_t id;                    /* 0: nobody */
    bool same_kernel;
    struct ivc_layout_wake name;
};
/* None by UDP to another kernel at an address that is also ours: it would come to us. */
struct ivc_wake_target ivc_wake_target_of(uint64_t id, bool same_kernel, const struct ivc_layout_wake *name);
/* Does not wait; what cannot be sent is not. */
void ivc_wake_send(const struct ivc_wake *wake, const struct ivc_wake_target *target);
/* Takes what came; whether any of it meant us. */
bool ivc_wake_take(const struct ivc_wake *wake);

#endif
