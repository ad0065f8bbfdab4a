/*
 * The provider itself: how libfabric finds us, what we say to its log, and errors translated.
 *
 * Invariant: no symbol of libfabric is bound by the dynamic linker.  One process may hold two
 * libfabrics, or one that was loaded out of sight; the one that counts is the one that calls us,
 * and it is found by the address that fi_prov_ini() returns to.
 */
#include "internal.h"
#include "network/network.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>

enum { IVC_FI_VERSION_MAJOR = 0, IVC_FI_VERSION_MINOR = 1 };

/* The calling libfabric's own functions; the same from 1.14 to 2.5. */
static __typeof__(&fi_log) log_line;
static __typeof__(&fi_log_enabled) log_enabled;
static __typeof__(&fi_version) core_version;

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **ret_fabric, void *context)
{
    return ivc_fi_fabric_open(attr, ret_fabric, context);
}

struct fi_provider ivc_fi_provider = {
    .version = FI_VERSION(IVC_FI_VERSION_MAJOR, IVC_FI_VERSION_MINOR),
    .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
    .name = IVC_FI_NAME,
    .getinfo = ivc_fi_getinfo,
    .fabric = open_fabric,
};

/* Finds the libfabric that `address` lies in.  One that hides its symbols leaves us without a log
 * and with the version that we were built against. */
static void find_core(const void *address)
{
    Dl_info where;
    void *core;

    if (!dladdr(address, &where) || !where.dli_fname)
        return;
    core = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!core)
        core = dlopen(NULL, RTLD_LAZY);     /* linked into the program */
    if (!core)
        return;
    log_line = (__typeof__(log_line))dlsym(core, "fi_log");
    log_enabled = (__typeof__(log_enabled))dlsym(core, "fi_log_enabled");
    core_version = (__typeof__(core_version))dlsym(core, "fi_version");
    /* It is our caller and stays; the handle only counted a use of it. */
    dlclose(core);
}

/* The core takes no provider of another major version, and offers applications none that is older
 * than the version they ask for.  Structures only grew at their ends since the version that we were
 * built against, so the caller's own version is the right answer for any of them. */
FI_EXT_INI
{
    const void *caller = __builtin_return_address(0);

    ivc_network_set_libfabric(caller);
    find_core(caller);
    if (core_version && core_version() > ivc_fi_provider.fi_version)
        ivc_fi_provider.fi_version = core_version();
    ivc_fi_check_spelling();
    return &ivc_fi_provider;
}

static bool log_wants(enum fi_log_level level)
{
    return log_line && log_enabled && log_enabled(&ivc_fi_provider, level, FI_LOG_CORE);
}

void ivc_fi_log(enum fi_log_level level, const char *function, int line, const char *format, ...)
{
    int saved = errno;
    char text[1024];
    va_list args;

    if (log_wants(level)) {
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        log_line(&ivc_fi_provider, level, FI_LOG_CORE, function, line, "%s\n", text);
    }
    errno = saved;
}

void ivc_fi_say(const char *format, ...)
{
    int saved = errno;
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (log_wants(FI_LOG_WARN))
        log_line(&ivc_fi_provider, FI_LOG_WARN, FI_LOG_CORE, "ivc", 0, "%s\n", text);
    else
        fprintf(stderr, "ivc: %s\n", text);
    errno = saved;
}

/* Applications know no more than the number, and most end with it: the first is said. */
static int no_space(void)
{
    static ivc_atomic_u32 said;

    if (ivc_cas(&said, 0, 1))
        ivc_fi_say("%s", ivc_error_text());
    return -FI_ENOSPC;
}

int ivc_fi_error(int core_answer)
{
    switch (core_answer) {
    case IVC_E_FULL:
        return -FI_EAGAIN;
    case IVC_E_UNREACHABLE:
        return -FI_EHOSTUNREACH;
    case IVC_E_NOSPACE:
        return no_space();
    case IVC_E_GONE:
        return -FI_ECONNABORTED;
    case IVC_E_NOREGION:
        return -FI_ENODATA;
    case IVC_E_TIMEOUT:
        return -FI_ETIMEDOUT;
    default:
        /* libfabric's numbers are errno's where errno has one. */
        return core_answer <= 0 ? core_answer : -FI_EOTHER;
    }
}
