/* What the bytes of an address mean. */
#ifndef IVC_ENDPOINT_ADDRESS_H
#define IVC_ENDPOINT_ADDRESS_H

#include "endpoint/internal.h"

/* Copied byte by byte: it travels through other machines.  Little-endian, like the layouts. */
enum { IVC_ADDRESS_NO_SLOT = UINT16_MAX };     /* a region has 4096 at most */

struct ivc_address_fields {
    uint16_t version;
    uint16_t slot;              /* in the region; IVC_ADDRESS_NO_SLOT: in none */
    uint32_t generation;
    uint64_t id;                /* random: who it is, by whatever path */
    uint64_t region;            /* hash of the region's UUID and epoch */
    struct ivc_network_name network;
};
_Static_assert(sizeof(struct ivc_address_fields) == IVC_ADDRESS_LEN, "all addresses are that long");

void ivc_address_make(const struct ivc_endpoint *endpoint, struct ivc_address_fields *ret_fields);
/* A name for a member in a region: no other has the same one, there or elsewhere, before or after. */
uint64_t ivc_address_of_member(const struct ivc_region_info *info, const struct ivc_member *member);
/* IVC_E_UNREACHABLE, with a text, when it is not an address of our version. */
int ivc_address_read(const struct ivc_address *address, struct ivc_address_fields *ret_fields);
/* What addresses call a region; and the one that an address names, 0: none. */
uint64_t ivc_address_region(const struct ivc_region_info *info);
uint64_t ivc_address_told_region(const struct ivc_address_fields *fields);
/* Member of our region. */
bool ivc_address_is_co_resident(const struct ivc_endpoint *endpoint,
                                const struct ivc_address_fields *fields);

/* path.c.  IVC_E_UNREACHABLE, with a text: IVC_REQUIRE=memory refuses the peer (NULL: not known yet) of that address. */
int ivc_path_check(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                   const struct ivc_address_fields *fields);
/* Sets the error of a peer that neither memory nor a network leads to. */
int ivc_path_no_network(const struct ivc_endpoint *endpoint, const struct ivc_address_fields *fields);
/* Whether what the environment requires can be meant. */
int ivc_path_check_environment(void);

#endif
