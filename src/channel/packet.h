/* A packet as it is received: see channel.h, and endpoint/endpoint.h for those who handle it. */
#ifndef IVC_CHANNEL_PACKET_H
#define IVC_CHANNEL_PACKET_H

#include "base/copy.h"

#include <stdint.h>

/* What arrived.  `head` is private to us: no one can change it while it is looked at.  `body`
 * may lie in memory that the peer can still write: read each byte once, trust none; and in memory
 * that is taken away meanwhile: ask ivc_endpoint_body_is_whole().  The packet's content is `head`
 * followed by `body`; both are gone when its handler returns. */
struct ivc_packet {
    uint8_t tag;
    uint32_t head_len;
    uint32_t body_len;
    const void *head;
    const void *body;
    enum ivc_copy_side side;    /* what ivc_copy() should be told when it copies the body */
};

#endif
