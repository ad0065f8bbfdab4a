/* Built when libfabric's headers are missing: there is no network, and that is said when one is
 * asked for.  Nothing below can be reached without a network. */
#include "network/network.h"

#include "base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ivc_network_set_libfabric(const void *address_inside)
{
    (void)address_inside;
}

int ivc_network_open(const struct ivc_network_options *options, struct ivc_network **ret_network)
{
    (void)options, (void)ret_network;
    return ivc_error_set(-ENODEV, "network: this build of ivc has none; build it where libfabric's "
                         "headers are installed (libfabric-dev)");
}

int ivc_network_prepare(struct ivc_network *network)
{
    (void)network;
    return -ENODEV;
}

void ivc_network_free(struct ivc_network *network, uint64_t linger_ms)
{
    (void)network, (void)linger_ms;
}

void ivc_network_name(const struct ivc_network *network, struct ivc_network_name *ret_name)
{
    (void)network;
    memset(ret_name, 0, sizeof *ret_name);
}

const char *ivc_network_describe(const struct ivc_network *network)
{
    (void)network;
    return "none";
}

int ivc_network_connect(struct ivc_network *network, uint64_t id, const struct ivc_network_name *name,
                        void *arg, struct ivc_route **ret_route)
{
    (void)network, (void)id, (void)name, (void)arg, (void)ret_route;
    return IVC_E_UNREACHABLE;
}

void *ivc_route_arg(const struct ivc_route *route)
{
    (void)route;
    return NULL;
}

void ivc_route_watch(struct ivc_network *network, struct ivc_route *route)
{
    (void)network, (void)route;
}

void ivc_route_heard(struct ivc_route *route)
{
    (void)route;
}

void ivc_route_free(struct ivc_network *network, struct ivc_route *route)
{
    (void)network, (void)route;
}

int ivc_network_send(struct ivc_network *network, struct ivc_route *route, const struct iovec *iov,
                     unsigned n_iov)
{
    (void)network, (void)route, (void)iov, (void)n_iov;
    return IVC_E_GONE;
}

int ivc_network_buffer_get(struct ivc_network *network, struct ivc_route *route,
                           struct ivc_network_buffer **ret_buffer, void **ret_data)
{
    (void)network, (void)route, (void)ret_buffer, (void)ret_data;
    return IVC_E_GONE;
}

int ivc_network_send_buffer(struct ivc_network *network, struct ivc_route *route,
                            struct ivc_network_buffer *buffer, size_t len)
{
    (void)network, (void)route, (void)buffer, (void)len;
    return IVC_E_GONE;
}

void ivc_network_buffer_free(struct ivc_network *network, struct ivc_network_buffer *buffer)
{
    (void)network, (void)buffer;
}

bool ivc_network_can_pull(const struct ivc_network *network)
{
    (void)network;
    return false;
}

int ivc_network_expose(struct ivc_network *network, const void *memory, size_t len,
                       struct ivc_network_exposure *ret_exposure)
{
    (void)network, (void)memory, (void)len, (void)ret_exposure;
    return -ENOTSUP;
}

void ivc_network_unexpose(struct ivc_network *network, struct ivc_network_exposure *exposure)
{
    (void)network, (void)exposure;
}

int ivc_network_pull(struct ivc_network *network, struct ivc_route *route, uint64_t where,
                     uint64_t key, const struct iovec *iov, unsigned n_iov,
                     ivc_network_pulled_fn *fn, void *arg)
{
    (void)network, (void)route, (void)where, (void)key, (void)iov, (void)n_iov, (void)fn, (void)arg;
    return IVC_E_GONE;
}

int ivc_network_progress(struct ivc_network *network)
{
    (void)network;
    return 0;
}

int ivc_network_fd(const struct ivc_network *network)
{
    (void)network;
    return -1;
}

int ivc_network_try_wait(struct ivc_network *network)
{
    (void)network;
    return 0;
}
