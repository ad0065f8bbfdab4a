/*
 * Finding libfabric at run time: its entry points, and those of a provider.
 *
 * Everything else in this folder calls libfabric only through these pointers and through the tables
 * of operations that libfabric hands out, so that nothing here is linked against it.
 */
#ifndef IVC_NETWORK_LOADER_H
#define IVC_NETWORK_LOADER_H

#include <limits.h>
#include <rdma/fabric.h>
#include <stdbool.h>
#include <stdint.h>

typedef int ivc_getinfo_fn(uint32_t version, const char *node, const char *service, uint64_t flags,
                           const struct fi_info *hints, struct fi_info **ret_info);
typedef int ivc_fabric_fn(struct fi_fabric_attr *attr, struct fid_fabric **ret_fabric,
                          void *context);

struct ivc_libfabric {
    ivc_getinfo_fn *getinfo;
    ivc_fabric_fn *fabric;
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    void (*freeinfo)(struct fi_info *info);
    uint32_t (*version)(void);
    const char *(*strerror)(int number);
    char path[PATH_MAX];
};

/* By whoever opens a network, before a thread of ours may load libfabric: sets variables of the environment (which no
 * thread of the application may read meanwhile) that keep what it brings along from taking signals. */
void ivc_libfabric_prepare(void);

/* Fills in *ret_libfabric.  -ENODEV with a text: there is none, or it lacks something. */
int ivc_libfabric_find(struct ivc_libfabric *ret_libfabric);

/* Opens `core`'s own shared object (lib<core>-fi.so) in the folders where libfabric looks for such:
 * for a libfabric that does not serve other providers from within one.  False: there is none. */
bool ivc_provider_load(const struct ivc_libfabric *libfabric, const char *core,
                       ivc_getinfo_fn **ret_getinfo, ivc_fabric_fn **ret_fabric);

#endif
