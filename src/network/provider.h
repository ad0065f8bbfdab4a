/*
 * Choosing the provider that carries our packets.
 */
#ifndef IVC_NETWORK_PROVIDER_H
#define IVC_NETWORK_PROVIDER_H

#include "network/loader.h"

#include <rdma/fi_domain.h>

struct ivc_provider {
    struct fi_info *info;           /* one way to open it: to be freed */
    struct fid_fabric *fabric;      /* opened */
    bool rma;                       /* remote memory can be read */
};

/*
 * Opens the first provider that serves `wanted` ("tcp", "verbs;ofi_rxm"; NULL: the default).
 * -ENODEV with a text that says of each one found why it was refused; -EINVAL: that is us.
 */
int ivc_provider_open(const struct ivc_libfabric *libfabric, const char *wanted, bool threads,
                      struct ivc_provider *ret_provider);

/* What must be equal for two networks to understand each other. */
uint32_t ivc_provider_hash(const struct fi_info *info);

#endif
