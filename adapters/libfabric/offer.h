/*
 * What we offer: shared by info.c (fi_getinfo), hints.c (what is asked for) and offer.c (what is
 * returned).  Everything that is named here is served.
 */
#ifndef IVC_LIBFABRIC_OFFER_H
#define IVC_LIBFABRIC_OFFER_H

#include "internal.h"

#include <string.h>

#define MESSAGE_CAPS (FI_MSG | FI_TAGGED)
#define MEMORY_CAPS (FI_RMA | FI_ATOMIC)
#define TX_CAPS (MESSAGE_CAPS | MEMORY_CAPS | FI_SEND | FI_READ | FI_WRITE)
#define RX_ONLY_CAPS (FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT)
#define RX_CAPS (MESSAGE_CAPS | MEMORY_CAPS | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE \
                 | RX_ONLY_CAPS)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define EP_CAPS (TX_CAPS | RX_CAPS | FI_FENCE | DOMAIN_CAPS)

#define TX_OP_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE \
                     | FI_DELIVERY_COMPLETE)
#define RX_OP_FLAGS (FI_COMPLETION | FI_MULTI_RECV)

#define ORDER (FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR \
               | FI_ORDER_ATOMIC_WAW)

/* Of libfabric 2: receives directed at a source, for tagged messages only or in its strict sense.
 * FI_DIRECTED_RECV of ours is both. */
#define DIRECTED_OF_2 ((1ull << 45) | (1ull << 48))

#define PROTOCOL 0x80697663u                 /* FI_PROV_SPECIFIC and "ivc": also of addresses */
enum {
    PROTOCOL_VERSION = 1,
    OBJECTS_MAX = 65536,                    /* queues, counters, registrations: as advertised */
    ENDPOINTS_MAX = 1024,
};
#define MESSAGE_MAX (SIZE_MAX / 2)

/* ---------------------------------------------------------------- hints.c */

/* -FI_ENODATA, with a line in the log that says for what. */
int ivc_fi_refuse(const char *what);
/* 0, or refused: the hints ask for what is not offered. */
int ivc_fi_hints_check(uint32_t version, const struct fi_info *hints);
int ivc_fi_hints_check_mr_mode(uint32_t version, int mode);
/* Directions are implied by what they are directions of. */
uint64_t ivc_fi_caps_expand(uint64_t caps);
uint64_t ivc_fi_caps_offered(uint32_t version);

/* ---------------------------------------------------------------- offer.c */

/* The answer to hints that were checked (or NULL). */
int ivc_fi_offer_make(uint32_t version, const struct fi_info *hints, struct fi_info **ret_info);

#endif
