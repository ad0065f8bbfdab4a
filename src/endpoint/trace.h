/*
 * What became of the paths: every transition of a peer, for people.
 *
 * IVC_TRACE names a file to which a line of JSON is appended for each.
 */
#ifndef IVC_ENDPOINT_TRACE_H
#define IVC_ENDPOINT_TRACE_H

#include <stdint.h>

struct ivc_endpoint;
struct ivc_peer;

/* Notes that the peer goes from one state to another.  Called by whoever makes the change, under send_lock. */
void ivc_trace_transition(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint32_t from,
                          uint32_t to, const char *reason);
/* A line without a peer: a region left, found, refused. */
void ivc_trace_event(struct ivc_endpoint *endpoint, const char *event, const char *detail);

#endif
