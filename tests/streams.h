/* On which mechanism streams.c runs: one of streams-file.c and streams-grants.c. */
#ifndef IVC_TESTS_STREAMS_H
#define IVC_TESTS_STREAMS_H

#include <stdint.h>

/* A new region, made of that file: its name. */
const char *stage_region(const char *path);
/* Who registers next. */
void stage_member(uint32_t client_id);

#endif
