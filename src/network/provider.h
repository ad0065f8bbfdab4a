/*
 * Choosing the provider that carries our packets.
 */
#ifndef IVC_NETWORK_PROVIDER_H
#define IVC_NETWORK_PROVIDER_H

#include "base/ip.h"
#include "network/loader.h"

#include <rdma/fi_domain.h>

struct ivc_provider {
    struct fi_info *info;           /* one way to open it: to be freed */
    struct fid_fabric *fabric;      /* opened */
    bool rma;                       /* remote memory can be read */
    bool threads;
    ivc_getinfo_fn *getinfo;        /* of who serves it */
    ivc_fabric_fn *open;
};

/*
 * Finds the first provider that serves `wanted` ("tcp", "verbs;ofi_rxm"; "": the default), and opens it
 * to see whether it does.  -ENODEV with a text that says of each one found why it was refused; -EINVAL:
 * that is us.
 */
int ivc_provider_find(const struct ivc_libfabric *libfabric, const char *wanted, bool threads,
                      struct ivc_provider *ret_provider);
/* Its addresses are of IP: it can be opened at one of ours. */
bool ivc_provider_is_of_ip(const struct ivc_provider *provider);
/* Opens it anew at that address; NULL: leaves it as it is. */
int ivc_provider_open(const struct ivc_libfabric *libfabric, struct ivc_provider *provider,
                      const union ivc_ip *source);

/* What must be equal for two networks to understand each other. */
uint32_t ivc_provider_hash(const struct fi_info *info);

#endif
