/* Packets that are kept in private memory: those that a peer has not read when a pair is suspended,
 * until they have gone by network, or until progress delivers them.  In order. */
#ifndef IVC_ENDPOINT_BACKLOG_H
#define IVC_ENDPOINT_BACKLOG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ivc_kept {
    struct ivc_kept *next;
    uint64_t at;                /* its place in its sender's ring */
    uint32_t len;
    uint8_t tag;
    _Alignas(16) uint8_t bytes[];
};

struct ivc_backlog {
    struct ivc_kept *first, *last;
    uint64_t packets, bytes;
};

/* Copies a packet to the end; -ENOMEM. */
int ivc_backlog_add(struct ivc_backlog *backlog, uint64_t at, uint8_t tag, const struct iovec *iov,
                    unsigned n_iov);
void ivc_backlog_drop_first(struct ivc_backlog *backlog);
void ivc_backlog_free(struct ivc_backlog *backlog);

#endif
