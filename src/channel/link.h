/* The link line of a peer: opened before either direction of a channel to it. */
#ifndef IVC_CHANNEL_LINK_H
#define IVC_CHANNEL_LINK_H

#include "region/region.h"

void ivc_link_open(struct ivc_region *region, uint32_t slot, uint32_t generation);

#endif
