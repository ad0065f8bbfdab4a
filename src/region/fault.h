/*
 * Faults: a window whose memory is taken away under us (a device pulled without asking, a file that
 * was truncated) becomes zeroes instead of the end of the process.
 */
#ifndef IVC_REGION_FAULT_H
#define IVC_REGION_FAULT_H

#include "base/atomics.h"

#include <stdbool.h>
#include <stdint.h>

struct ivc_fault_range;

/* From here on a SIGBUS in this mapping replaces all of it by zero pages.  NULL: not covered,
 * because there are too many mappings or no signal to be had. */
struct ivc_fault_range *ivc_fault_cover(void *memory, uint64_t size);
void ivc_fault_uncover(struct ivc_fault_range *range);

/* A word to be set to 1 when that happens; NULL: none. */
void ivc_fault_tell(struct ivc_fault_range *range, ivc_atomic_u32 *alarm);
/* The process ends instead, after this line: what others than we keep there is not to become zeroes.  It stays the
 * caller's; NULL: not any more. */
void ivc_fault_end_with(struct ivc_fault_range *range, const char *line);
/* That, now. */
void ivc_fault_end(const char *line);
/* A replacement without a fault, by whoever finds out that the memory is gone. */
void ivc_fault_replace(struct ivc_fault_range *range);
bool ivc_fault_has_been(const struct ivc_fault_range *range);

#endif
