/*
 * Profile: who talks to whom, counted, and written while the program runs (IVC_STATS=json:DIR).
 *
 * An adapter that was asked for it opens one for its endpoint and tells it of each message: those that the MPI handed
 * to it, and those that begin to arrive, in bytes of the MPI's.  What its endpoint makes of them, packets and those that
 * are sent once more after a move, is not counted here.  A thread of the profile's own writes what has changed, twice a
 * second, so that a process that is killed leaves what was counted until then.
 *
 * The file is DIR/HOST.PID.N.jsonl, made when there is something to write; docs/profile-format.md has its format.
 */
#ifndef IVC_ENDPOINT_PROFILE_H
#define IVC_ENDPOINT_PROFILE_H

#include "endpoint/endpoint.h"

struct ivc_profile;

struct ivc_profile_options {
    const char *adapter;
    bool threads;               /* several threads send at once */
    /* The rank of a peer in our job; false: not known.  May be NULL: none is.  Called under the
     * exclusion of the endpoint. */
    bool (*rank_of)(const struct ivc_peer *peer, uint32_t *ret_rank);
};

/* Negative when it cannot be, with a text.  To be closed before the endpoint is freed. */
int ivc_profile_open(struct ivc_endpoint *endpoint, const struct ivc_profile_options *options,
                     struct ivc_profile **ret_profile);
/* Writes what is still to be written.  Accepts NULL. */
void ivc_profile_close(struct ivc_profile *profile);

/* A message of `len` bytes was sent, or begins to arrive; `path`: the one that led to the peer when it was begun.
 * Received ones are counted by one thread at a time, as the endpoint's handlers are called. */
void ivc_profile_sent(struct ivc_profile *profile, struct ivc_peer *peer, enum ivc_path path, size_t len);
void ivc_profile_received(struct ivc_profile *profile, struct ivc_peer *peer, size_t len);
/* A put, a get or an atomic of ours. */
void ivc_profile_onesided(struct ivc_profile *profile, struct ivc_peer *peer, size_t len);

#endif
