/* What the files of a run share. */
#ifndef IVC_TESTS_MIGRATE_RUN_INTERNAL_H
#define IVC_TESTS_MIGRATE_RUN_INTERNAL_H

#include "run.h"

/* A limit of time as it is for this build: sanitizers are slow. */
uint64_t run_limit(unsigned ms);

enum rank_state run_state_of(const struct run *run, uint32_t rank);
bool run_is_alive(const struct run *run, uint32_t rank);
/* Whether `to` has to get what `from` sends: both live, and neither has lost the other. */
bool run_is_connected(const struct run *run, uint32_t from, uint32_t to);
/* What is on its way from one rank to the other; adds how much has come, which is read first. */
uint64_t run_under_way(const struct run *run, uint32_t from, uint32_t to, uint64_t *came);
uint64_t run_memory_at(const struct run *run, uint32_t rank, uint32_t other);

/* run-watch.c: ends the case when something is as it may not be. */
void run_watch(struct run *run);

#endif
