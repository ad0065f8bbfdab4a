/*
 * A run: ranks in guests on hosts, and what the controller does to them.  It ends well when every
 * byte has come, once and in order, and all processes have ended with status 0; anything else ends
 * the test case, with one line that says what.
 */
#ifndef IVC_TESTS_MIGRATE_RUN_H
#define IVC_TESTS_MIGRATE_RUN_H

#include "board.h"
#include "guest.h"
#include "machine.h"

enum { RUN_GUESTS_MAX = 6, RUN_HOSTS_MAX = 3, RUN_MODES = RANK_MODES };

struct run_options {
    uint64_t seed;
    uint32_t ranks, guests;         /* rank r is in guest r modulo guests */
    enum rank_mode mode;
    size_t longest;                 /* message, bytes */
    unsigned compute_ms;
    unsigned timeout_ms;            /* of an order */
    unsigned patience_ms;           /* something is under way and nothing comes: a standstill */
    bool ends_allowed, lends, lent_messages;
    bool grants;                    /* hosts have grants instead of a region for all */
    bool kernels;                   /* every rank in a process id namespace of its own: to others
                                       it is of another kernel, and its silence may be its death */
    /* Random moves: */
    uint64_t switches;              /* how many; 0: none */
    unsigned seconds;               /* ... or for how long; 0: no limit */
    bool endless;                   /* it takes as long as it takes; else a case that others hold
                                       up by using the machine is skipped */
    bool cancels;                   /* some orders are withdrawn at once, or in the middle */
    bool stumbles;                  /* ranks are stopped now and then, for a part of a second */
};

/* Times in ns, as they were measured. */
struct samples {
    uint64_t *ns;
    size_t n, room;
};

enum guest_phase { GUEST_RESTS, GUEST_ORDERED, GUEST_AWAY };

struct run_guest {
    struct guest guest;
    enum guest_phase phase;
    uint64_t until_ms;              /* of a rest, of being away; when an order is withdrawn */
    bool cancel;                    /* the order is to be withdrawn at until_ms whatever comes */
    bool settle;                    /* it rests until it has used memory with another guest */
    uint64_t answer_until_ms;       /* by the run's clock */
    uint64_t attached_ns;
    uint64_t settle_until_ms;       /* by the run's clock */
    uint64_t stray_since_ms[RUN_HOSTS_MAX]; /* ... on which host it is without being there */
    bool told_settled;
    enum rank_mode mode;            /* of its ranks when the order was given */
    bool was_member;                /* somebody had to answer */
};

struct run {
    struct run_options options;
    struct board *board;
    struct host hosts[RUN_HOSTS_MAX];
    unsigned n_hosts;
    struct run_guest guests[RUN_GUESTS_MAX];
    bool may_die[BOARD_RANKS_MAX];  /* its end is no fault */
    bool dead[BOARD_RANKS_MAX];
    uint64_t random;

    uint32_t stopped;               /* 1 + the rank that stumbles; 0: none */
    uint64_t stopped_until_ms;
    uint64_t switches;              /* devices taken after somebody had answered */
    uint64_t cancelled, time_outs, stumbles;
    bool names_lie;                 /* links lead where their guests are not */
    struct machine machine;
    uint64_t started_ms;
    struct samples answers[RUN_MODES];      /* from the order to the last answer */
    struct samples arrivals;                /* from the device to the first use of memory */
    uint64_t looked_ms, outstanding, outstanding_since_ms;
};

/* `paths` are the hosts' files; the guests' links are made beside the first. */
void run_prepare(struct run *run, const struct run_options *options, const char *const *paths,
                 unsigned n_hosts);
/* Starts the ranks and waits until all are connected. */
void run_start(struct run *run);
void run_start_rank(struct run *run, uint32_t rank);
void run_await_ranks(struct run *run);

/* What has to be done every millisecond: orders kept alive, deaths noticed, and standstill. */
void run_step(struct run *run);
void run_for(struct run *run, unsigned ms);
/* The run's clock (machine.h): what has to come within some time is measured by it. */
uint64_t run_ms(const struct run *run);
/* One step of all guests' random moves. */
void run_move(struct run *run);
/* Returns when all of it stands still. */
void run_stop_rank(struct run *run, uint32_t rank);
/* Random moves until the options' number or time. */
void run_moves(struct run *run);

/* An order for one guest and its answer within the options' limit: true; else it is withdrawn. */
bool run_ask(struct run *run, unsigned guest);
/* ... which must be answered, and the device placed elsewhere. */
void run_move_guest(struct run *run, unsigned guest, struct host *to);
/* Waits until two living ranks have exchanged by memory (or by network) from now on. */
void run_await_path(struct run *run, uint32_t a, uint32_t b, enum ivc_path path, unsigned ms);
/* Waits until every living rank has begun and ended a turn from now on: what it had done before is in its counts. */
void run_await_counts(struct run *run);

/* All have come: stops, compares what was sent with what came, and ends the ranks. */
void run_finish(struct run *run);
/* One line of counts, and one for the times. */
void run_report(const struct run *run, const char *what);

/* Bytes of all pairs by one path, and how often paths changed. */
struct run_totals {
    uint64_t messages, packets, memory_bytes, network_bytes, memory_packets, path_changes;
};
struct run_totals run_totals(const struct run *run);

/* The p-th of a thousand in ms. */
double samples_ms(const struct samples *samples, unsigned thousandth);

#endif
