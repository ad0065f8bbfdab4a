/*
 * Finding libfabric: see loader.h.
 *
 * MPIs bring libfabrics of their own, privately and under odd names, and a process may hold more
 * than one.  The right one is the one that called us; it must never be mixed with another, since
 * both keep state.  So an address inside it (our caller's) comes first, and only a process in which
 * libfabric plays no part yet gets the system's.
 */
#include "network/loader.h"

#include "base/error.h"
#include "base/util.h"
#include "network/network.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <rdma/providers/fi_prov.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const void *_Atomic inside_libfabric;

void ivc_network_set_libfabric(const void *address_inside)
{
    /* Relaxed: the address is a constant of the process, nothing is published with it. */
    atomic_store_explicit(&inside_libfabric, address_inside, memory_order_relaxed);
}

/* The objects stay open for ever: libfabric's threads and handlers of exit may run in them. */
static void *open_by_address(const void *address)
{
    Dl_info info;

    if (!address || !dladdr(address, &info) || !info.dli_fname)
        return NULL;
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

static void *open_if_libfabric(const char *path)
{
    void *object = path && *path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = object ? dlsym(object, "fi_getinfo") : NULL;
    Dl_info info;

    /* dlsym() looks into what an object depends on, too: only the definer counts. */
    if (symbol && dladdr(symbol, &info) && info.dli_fname && strcmp(info.dli_fname, path) == 0)
        return object;
    if (object)
        dlclose(object);
    return NULL;
}

static int note_path(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    if (info->dlpi_name && strstr(info->dlpi_name, "fabric")) {
        snprintf(arg, PATH_MAX, "%s", info->dlpi_name);
        return 1;
    }
    return 0;
}

/* One that was loaded privately (RTLD_LOCAL), by an MPI or its plug-in.  dlopen() may not be called
 * while the list of objects is walked, so its path is noted first. */
static void *open_loaded(void)
{
    char path[PATH_MAX] = "";

    return dl_iterate_phdr(note_path, path) ? open_if_libfabric(path) : NULL;
}

/* What is in the process; NULL: none. */
static void *open_present(void)
{
    void *object = open_by_address(atomic_load_explicit(&inside_libfabric, memory_order_relaxed));

    if (object && dlsym(object, "fi_getinfo"))
        return object;
    object = open_by_address(dlsym(RTLD_DEFAULT, "fi_getinfo"));
    return object ? object : open_loaded();
}

/* Libraries of PSM take SIGBUS, SIGSEGV, SIGINT, SIGTERM and more when they are loaded, for a backtrace, and pass
 * nothing on: a fault of ours, and the application's own handlers, would be lost. */
void ivc_libfabric_prepare(void)
{
    if (open_present())
        return;
    (void)setenv("IPATH_NO_BACKTRACE", "1", 0);
    (void)setenv("HFI_NO_BACKTRACE", "1", 0);
}

int ivc_libfabric_find(struct ivc_libfabric *ret_libfabric)
{
    struct ivc_libfabric found = { 0 };
    void *object = open_present();
    Dl_info info;

    if (!object)
        object = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return ivc_error_set(-ENODEV, "network: no libfabric in this process and none on this "
                             "system (libfabric.so.1): install it, or set IVC_NETWORK=none");
    /* The default version of each symbol is the newest layout of the structures; they only grew at
     * their ends, and every one of them is allocated by libfabric itself. */
    found.getinfo = (ivc_getinfo_fn *)dlsym(object, "fi_getinfo");
    found.fabric = (ivc_fabric_fn *)dlsym(object, "fi_fabric");
    found.dupinfo = (struct fi_info *(*)(const struct fi_info *))dlsym(object, "fi_dupinfo");
    found.freeinfo = (void (*)(struct fi_info *))dlsym(object, "fi_freeinfo");
    found.version = (uint32_t (*)(void))dlsym(object, "fi_version");
    found.strerror = (const char *(*)(int))dlsym(object, "fi_strerror");
    if (found.getinfo && dladdr((void *)found.getinfo, &info) && info.dli_fname)
        snprintf(found.path, sizeof found.path, "%s", info.dli_fname);
    if (!found.getinfo || !found.fabric || !found.dupinfo || !found.freeinfo || !found.version
        || !found.strerror)
        return ivc_error_set(-ENODEV, "network: %s is not a libfabric that can be used",
                             found.path[0] ? found.path : "libfabric.so.1");
    *ret_libfabric = found;
    return 0;
}

/* Opens folder/lib<core>-fi.so and asks it for its provider. */
static bool load_from(const char *folder, int folder_len, const char *core,
                      ivc_getinfo_fn **ret_getinfo, ivc_fabric_fn **ret_fabric)
{
    struct fi_provider *(*entry)(void), *provider;
    char path[PATH_MAX];
    void *object;

    if (folder_len == 0
        || snprintf(path, sizeof path, "%.*s/lib%s-fi.so", folder_len, folder, core)
           >= (int)sizeof path
        || access(path, R_OK) < 0)
        return false;
    object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    entry = object ? (struct fi_provider *(*)(void))dlsym(object, "fi_prov_ini") : NULL;
    provider = entry ? entry() : NULL;
    if (!provider || !provider->getinfo || !provider->fabric)
        return false;
    *ret_getinfo = provider->getinfo;
    *ret_fabric = provider->fabric;
    return true;
}

static bool load_from_list(const char *folders, const char *core, ivc_getinfo_fn **ret_getinfo,
                           ivc_fabric_fn **ret_fabric)
{
    for (const char *at = folders; at && *at; at += strspn(at, ":@+")) {
        size_t len = strcspn(at, ":");

        if (load_from(at, (int)len, core, ret_getinfo, ret_fabric))
            return true;
        at += len;
    }
    return false;
}

bool ivc_provider_load(const struct ivc_libfabric *libfabric, const char *core,
                       ivc_getinfo_fn **ret_getinfo, ivc_fabric_fn **ret_fabric)
{
    static const char *const below[] = { "", "/libfabric", "/libfabric/prov", "/prov",
                                         "/../opt/mpi/libfabric/lib/prov" };
    const char *end = strrchr(libfabric->path, '/');
    char folder[PATH_MAX + 40];

    if (strchr(core, '/') || strcasecmp(core, "ivc") == 0)
        return false;
    if (load_from_list(getenv("FI_PROVIDER_PATH"), core, ret_getinfo, ret_fabric))
        return true;
    for (size_t i = 0; end && i < sizeof below / sizeof *below; i++) {
        int len = snprintf(folder, sizeof folder, "%.*s%s", (int)(end - libfabric->path),
                           libfabric->path, below[i]);

        if (load_from(folder, len, core, ret_getinfo, ret_fabric))
            return true;
    }
    return false;
}
