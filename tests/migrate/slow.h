/* How often a slow network said "not now"; there when slow.c is linked. */
#ifndef IVC_TESTS_MIGRATE_SLOW_H
#define IVC_TESTS_MIGRATE_SLOW_H

#include <stdint.h>

__attribute__((weak)) uint64_t slow_answers(void);

#endif
