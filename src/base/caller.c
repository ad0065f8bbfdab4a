/* Who called: see caller.h. */
#include "base/caller.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdint.h>
#include <string.h>

enum {
    FRAMES = 48,
    CALL = 1,       /* before a return address: in the function that called, should it never return */
};

/* Of the MPI standard, without its prefix: what answers at once, whatever has come. */
static const char *const looks[] = {
    "Test", "Testall", "Testany", "Testsome", "Iprobe", "Improbe", "Request_get_status", "Request_get_status_all",
    "Request_get_status_any", "Request_get_status_some", "Win_test", "Parrived",
};

/* Without the prefix; NULL: it is none of MPI's. */
static const char *call_of(const char *name)
{
    name += *name == 'P';       /* the profiling interface's, section 15.2 of MPI 4.1 */
    return strncmp(name, "MPI_", 4) == 0 ? name + 4 : NULL;
}

static enum ivc_caller_kind kind_of_name(const char *name)
{
    const char *call = call_of(name);

    if (!call)
        return IVC_CALLER_OTHER;
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++)
        if (strcmp(call, looks[i]) == 0)
            return IVC_CALLER_LOOKS;
    return IVC_CALLER_WAITS;
}

static enum ivc_caller_kind kind_of(struct ivc_callers *callers, const char *address)
{
    struct ivc_caller *caller = &callers->known[((uintptr_t)address >> 2) % IVC_CALLERS];
    Dl_info info;

    if (caller->address != address) {
        caller->address = address;
        caller->kind = dladdr(address - CALL, &info) != 0 && info.dli_sname
            ? kind_of_name(info.dli_sname) : IVC_CALLER_OTHER;
    }
    return caller->kind;
}

bool ivc_caller_only_looks(struct ivc_callers *callers)
{
    void *frames[FRAMES];
    int n = backtrace(frames, FRAMES);
    enum ivc_caller_kind kind = IVC_CALLER_OTHER;

    for (int i = 0; i < n && kind == IVC_CALLER_OTHER; i++)
        kind = kind_of(callers, frames[i]);
    return kind == IVC_CALLER_LOOKS;
}

bool ivc_caller_is_below(const char *name)
{
    void *frames[FRAMES];
    int n = backtrace(frames, FRAMES);
    Dl_info info;

    for (int i = 0; i < n; i++) {
        const char *call = dladdr((const char *)frames[i] - CALL, &info) != 0 && info.dli_sname
            ? call_of(info.dli_sname) : NULL;

        if (call)
            return strcmp(call, name) == 0;
    }
    return false;
}
