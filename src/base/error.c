/* Errors: see error.h.  The line lives in thread-local storage, so setting it never fails. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local char error_text[640];

int ivc_error_set(int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    return code;
}

const char *ivc_error_text(void)
{
    return error_text;
}

const char *ivc_error_of(int error)
{
    static _Thread_local char text[120];
    struct rlimit limit;

    if (error == ENFILE)
        return "too many open files on this machine; raise the sysctl fs.file-max";
    if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return strerror(error);
    snprintf(text, sizeof text, "too many open files: ulimit -n is %llu; raise it to %llu or more",
             (unsigned long long)limit.rlim_cur,
             limit.rlim_cur < 128 ? 256 : 2 * (unsigned long long)limit.rlim_cur);
    return text;
}

const char *ivc_error_name(int code)
{
    switch (code) {
    case IVC_E_FULL: return "no room now, call progress and try again";
    case IVC_E_UNREACHABLE: return "peer shares no memory with this process";
    case IVC_E_NOSPACE: return "region has no memory left";
    case IVC_E_GONE: return "peer has left or died";
    case IVC_E_NOREGION: return "no shared memory found";
    case IVC_E_TIMEOUT: return "timed out";
    default: return code <= 0 ? strerror(-code) : "unknown code";
    }
}
