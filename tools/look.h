/*
 * Looking at regions without becoming a member: what ivc_info knows of each.
 *
 * Invariant: nothing is written to a window.  An unused one stays unused, and no slot is taken.
 */
#ifndef IVC_TOOLS_LOOK_H
#define IVC_TOOLS_LOOK_H

#include "region/mechanism.h"
#include "region/window.h"

enum look_state {
    LOOK_UNUSABLE,      /* `problem` says why */
    LOOK_UNFORMATTED,   /* all zero: the first process that opens it formats it */
    LOOK_HALF,          /* begun by a process that died, or at this moment: the next completes it */
    LOOK_READY,
};

struct look_member {
    uint32_t slot, generation;
    enum ivc_phase phase;
    uint64_t magic_id;
    uint32_t client_id, pid;
    char host[65];
    uint8_t boot_id[16];
    uint64_t heartbeat;
    bool same_boot;     /* it has our boot id, as have copies of our guest */
    bool same_kernel;   /* it is here: that is proven; and in our process id namespace */
    bool process_gone;  /* same kernel, and it knows no such process */
    bool beating;       /* its heartbeat moved while we looked */
};

struct look {
    const struct ivc_mechanism *mechanism;
    char name[256];
    enum look_state state;
    char problem[700];  /* one line; "" when there is none */
    bool chosen;

    struct ivc_mapping mapping;     /* memory NULL: not mapped */
    struct ivc_window_geometry geometry;
    char uuid[37];
    uint64_t epoch;
    uint32_t lease_ms;
    char tenant[33];
    uint64_t free_bytes;
    double copy_gbps;   /* bytes copied out of the window */
    struct look_member *members;
    uint32_t n_members;
};

enum { LOOKS_MAX = 17 };

struct looks {
    struct look regions[LOOKS_MAX];     /* the candidates and, perhaps, the one that was named */
    unsigned n;
    const char *named_by;               /* "--region", "IVC_REGION", or NULL: found */
    const char *named;                  /* what was named */
    int chosen;                         /* index, or -1 */
    char problem[700];                  /* why none was chosen; "" */
};

/* Looks at everything there is, or only at `name`.  False: out of memory. */
bool look_at_all(const char *name, struct looks *ret_looks);
void looks_free(struct looks *looks);

/* The words for a member: "alive", "silent", ... */
const char *look_member_word(const struct look_member *member);
/* Those that beat, or are here and stopped; and those of which only their guest, or time, can tell. */
unsigned look_living(const struct look *look);
unsigned look_silent(const struct look *look);
/* Why that one was chosen, for people. */
const char *look_rule(const struct looks *looks);

/* measure.c: billions of bytes per second that one processor copies out of the mapping. */
double measure_copy(const struct ivc_mapping *mapping);
/* Of how much of it. */
uint64_t measure_part(const struct ivc_mapping *mapping);

/* missing.c: calls `say` for each place in which a region may lie and there is none. */
void missing_report(void (*say)(void *arg, const char *what, const char *try), void *arg);

/* print_*.c */
void print_text(const struct looks *looks, bool verbose);
void print_json(const struct looks *looks);
void print_uuid(char ret_text[37], const uint8_t bytes[16]);

#endif
