/* The link line of a peer: opened before either direction of a channel to it. */
#ifndef IVC_CHANNEL_LINK_H
#define IVC_CHANNEL_LINK_H

#include "region/region.h"

/* Opened: the slot's owner may write to us and we may read what it shares. */
void ivc_link_open(struct ivc_region *region, uint32_t slot, uint32_t generation);
/* Closed: we read nothing of it any more.  Its memory may be used again. */
void ivc_link_close(struct ivc_region *region, uint32_t slot);

#endif
