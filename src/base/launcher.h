/* What the launcher of this process, or the batch system, says about it by environment variables. */
#ifndef IVC_BASE_LAUNCHER_H
#define IVC_BASE_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

/* The rank of this process in its job; false: no launcher has said one. */
bool ivc_launcher_rank(uint32_t *ret_rank);
/* What tells two jobs apart; NULL: nobody says. */
const char *ivc_launcher_job(void);

#endif
