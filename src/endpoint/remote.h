/*
 * Peers on the network path.
 *
 * A packet of the network begins with a wire header: who sends it, its number in this direction,
 * its tag.  The first packet to a peer is a greeting, which says who we are and how we are reached;
 * so whoever is sent to can answer without having been told our address.  The last one is a
 * farewell.
 */
#ifndef IVC_ENDPOINT_REMOTE_H
#define IVC_ENDPOINT_REMOTE_H

#include "endpoint/address.h"

/* Opens the network, when the options ask for one.  Without a region there must be one. */
int ivc_remote_open(struct ivc_endpoint *endpoint, const struct ivc_endpoint_options *options);
/* Says farewell to all, and closes. */
void ivc_remote_close(struct ivc_endpoint *endpoint);

/* Under send_lock: the peer of that address, made when it is new.  Answers as
 * ivc_endpoint_connect(). */
int ivc_remote_make(struct ivc_endpoint *endpoint, const struct ivc_address_fields *fields,
                    struct ivc_peer **ret_peer);

/* Under send_lock: the way to a peer that is on the network from now on.  IVC_E_UNREACHABLE. */
int ivc_remote_open_route(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* The same, and somebody waits for what comes from there: its end is noticed. */
int ivc_remote_watch(struct ivc_endpoint *endpoint, struct ivc_peer *peer);
/* Under send_lock: sends what was left over when memory was given up.  0: all of it is gone. */
int ivc_remote_push(struct ivc_endpoint *endpoint, struct ivc_peer *peer);

/* Under send_lock: connects to a peer that nothing was sent to yet.  A provider notices only
 * the end of a connection that was made. */
int ivc_remote_greet(struct ivc_endpoint *endpoint, struct ivc_peer *peer);

/* Under send_lock: a word of lost.c, before anything that was left over. */
int ivc_remote_send_lost(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *content,
                         size_t len);

/* Under send_lock: nothing is taken from it any more, and nothing is sent to it. */
int ivc_remote_send_broken(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const char *why);

/* Under send_lock.  What was left over goes first. */
int ivc_remote_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                    const struct iovec *iov, unsigned n_iov, size_t len);
int ivc_remote_buffer_get(struct ivc_endpoint *endpoint, struct ivc_peer *peer, struct ivc_buffer *ret_buffer);
int ivc_remote_send_buffer(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                           const struct ivc_buffer *buffer, size_t len);

/* What to sleep on beside memory; -1: nothing, progress has to look. */
int ivc_remote_fd(const struct ivc_endpoint *endpoint);

/* Under `polling`. */
int ivc_remote_poll(struct ivc_endpoint *endpoint);

#endif
