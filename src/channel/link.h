/* The link line of a peer: opened before either direction of a channel to it. */
#ifndef IVC_CHANNEL_LINK_H
#define IVC_CHANNEL_LINK_H

#include "region/region.h"

/* Opened: the slot's owner may write to us and we may read what it shares.  IVC_E_NOSPACE, with a text:
 * the region has no room for the line. */
int ivc_link_open(struct ivc_region *region, uint32_t slot, uint32_t generation);
/* Closed for good: we read nothing of it any more.  Its memory may be used again. */
void ivc_link_close(struct ivc_region *region, uint32_t slot);

/*
 * Suspending: both sides stop, each says how far it has read, and from then on each knows which of its
 * packets the other has.  An attachment that was suspended is never used again.
 */
/* We write nothing to it any more.  With a network we read nothing that it wrote either: what
 * ivc_rx_publish() said last is final.  Without one we read its ring to the end once it has suspended
 * as well.  Its link line we still read. */
void ivc_link_suspend(struct ivc_region *region, uint32_t slot);
/* ... and that neither: its memory may be used again. */
void ivc_link_done(struct ivc_region *region, uint32_t slot);
/* The same for an owner of the slot to whom our line was never addressed: we have read nothing.  Answers
 * as ivc_link_open(). */
int ivc_link_refuse(struct ivc_region *region, uint32_t slot, uint32_t generation);
/* Whether our line is addressed to that owner of the slot. */
bool ivc_link_is_open(struct ivc_region *region, uint32_t slot, uint32_t generation);
/* What the slot's owner says on its line for us. */
enum ivc_link_word {
    IVC_LINK_NONE,              /* it is not addressed to us */
    IVC_LINK_OPEN,
    IVC_LINK_SUSPENDED,         /* `ret_head`: the packets of ours that it has read */
};
enum ivc_link_word ivc_link_look(struct ivc_region *region, uint32_t slot, uint64_t *ret_head);
/* Whether the slot's owner, whose line for us was suspended, reads nothing of ours any more. */
bool ivc_link_is_done(struct ivc_region *region, uint32_t slot);

#endif
