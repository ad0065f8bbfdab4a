/*
 * Whether the MPI call that we are in waits, or only looks whether something has come.
 *
 * Both call progress and find nothing, and a program that works for a tenth of a microsecond between two MPI_Test()
 * looks by the clock like one that waits: put to sleep it would be kept from its work.  The call stack knows: the
 * innermost function of MPI's interface in it.  To walk it takes microseconds, so that is for somebody about to sleep.
 */
#ifndef IVC_BASE_CALLER_H
#define IVC_BASE_CALLER_H

#include <stdbool.h>

enum { IVC_CALLERS = 64 };

/* Return addresses met before, and what they are; zeroed at first.  One thread at a time. */
struct ivc_callers {
    struct ivc_caller {
        const void *address;
        enum ivc_caller_kind { IVC_CALLER_OTHER, IVC_CALLER_WAITS, IVC_CALLER_LOOKS } kind;
    } known[IVC_CALLERS];
};

/* False as well when nobody on the stack is of MPI, or its names cannot be told (a program linked statically). */
bool ivc_caller_only_looks(struct ivc_callers *callers);

/* Whether we are in this call of MPI's, named without its prefix. */
bool ivc_caller_is_below(const char *name);

#endif
