/* What ivc_suspend says: lines for people, or one JSON object per line for programs. */
#ifndef IVC_TOOLS_SUSPEND_H
#define IVC_TOOLS_SUSPEND_H

#include "guests.h"

enum { TEXT_MAX = 4096 * 600 };     /* every slot of the largest region, as JSON */

/* What is spoken of: these guests, among those who are in the region. */
struct say {
    const struct people *people;
    const uint64_t *vms;
    unsigned n_vms;
    bool json;
};

void say_guests(const struct say *say);             /* --list */
void say_ordered(const struct say *say);
/* Prints when it is not what was printed last; `last` is TEXT_MAX bytes, "" at first. */
void say_waiting(const struct say *say, char *last);
void say_answered(const struct say *say, double seconds);
void say_nobody(const struct say *say, const char *name);
/* Each of those that did not answer, and why. */
void say_timeout(const struct say *say, double seconds);
void say_too_old(const struct say *say);
void say_withdrawn(const struct say *say);
void say_error(bool json, const char *text);

#endif
