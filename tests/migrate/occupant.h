/* A member that is no rank, in a process of its own: IVC_VM is read once per process. */
#ifndef IVC_TESTS_MIGRATE_OCCUPANT_H
#define IVC_TESTS_MIGRATE_OCCUPANT_H

#include "base/atomics.h"

#include <stdbool.h>
#include <sys/types.h>

struct occupant {
    const char *region, *vm;
    bool all;                   /* takes all memory that there is */
    pid_t pid;
    ivc_atomic_u32 *word;       /* 1: it is there, 2: it is to leave */
};

/* Returns when it is a member. */
void occupant_start(struct occupant *occupant);
void occupant_end(struct occupant *occupant);

#endif
