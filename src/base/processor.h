/*
 * What kind of processor this is, for the few things that no timing here shows and that were found to depend on it
 * (docs/performance.md).  A guest sees what its hypervisor tells.
 */
#ifndef IVC_BASE_PROCESSOR_H
#define IVC_BASE_PROCESSOR_H

#include <stdbool.h>

/* AMD's of family 25: Zen 3, Zen 4. */
static inline bool ivc_processor_is_amd_25(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("amdfam19h");
#else
    return false;
#endif
}

#endif
