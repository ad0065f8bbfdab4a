/*
 * The board: what the processes of a migration test share.  One anonymous mapping, made before they
 * fork.  Every word has one writer: the controller, or the rank whose place it is in; so a rank
 * that is killed leaves all that it had told.
 */
#ifndef IVC_TESTS_MIGRATE_BOARD_H
#define IVC_TESTS_MIGRATE_BOARD_H

#include "base/atomics.h"
#include "endpoint/endpoint.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { BOARD_RANKS_MAX = 12 };

/* What a rank does.  Idle: it sleeps in the library, and wakes for what comes.  Computing: it calls
 * nothing of the library. */
enum rank_mode {
    RANK_COMMUNICATING,
    RANK_IDLE,
    RANK_COMPUTING,
    RANK_MODES,
    RANK_MIXED = RANK_MODES,    /* each in turn */
};

enum rank_state {
    RANK_STARTING,
    RANK_READY,         /* its address is valid */
    RANK_RUNNING,
    RANK_STOPPED,       /* it starts no more: what it has started is final, and sent */
    RANK_ENDED,
};

/* Deliberate faults of a rank, to see that they are noticed. */
enum rank_sabotage {
    SABOTAGE_NONE,
    SABOTAGE_BYTE,      /* one byte of a message is wrong */
    SABOTAGE_PACKET_BYTE,
    SABOTAGE_SKIP,      /* a message is left out */
    SABOTAGE_TWICE,     /* ... sent twice */
    SABOTAGE_SWAP,      /* ... sent before the one that it should follow */
    SABOTAGE_PACKET_SKIP,
    SABOTAGE_LAST,      /* the last message was never sent, which only the totals can tell */
    SABOTAGE_MUTE,      /* it calls the library no more */
};

/* How a rank and one other stand, as the rank tells it. */
struct board_pair {
    ivc_atomic_u64 started_messages, started_packets;
    ivc_atomic_u64 sent_messages;                   /* whose memory is ours again */
    ivc_atomic_u64 received_messages, received_packets;
    ivc_atomic_u64 memory_bytes, network_bytes;     /* sent and received */
    ivc_atomic_u64 memory_packets;
    ivc_atomic_u64 memory_at_ns;                    /* when the last of these was seen */
    ivc_atomic_u32 path;                            /* enum ivc_path */
    ivc_atomic_u32 path_changes;
    ivc_atomic_u64 gone_at_ns;                      /* 0: not gone */
    char gone_reason[256];                          /* valid when gone_at_ns is not 0 */
};

struct board_rank {
    /* The controller's. */
    pid_t pid;
    uint32_t guest;
    char vm[32], link[96];          /* its IVC_VM and IVC_REGION */
    enum rank_mode mode;
    bool threads;                   /* its endpoint is opened for several */
    enum rank_sabotage sabotage;
    uint32_t sabotage_to;
    ivc_atomic_u32 pull;            /* counts up: its device is to vanish under it once more */

    /* The rank's. */
    ivc_atomic_u32 state;           /* enum rank_state */
    ivc_atomic_u32 doing;           /* enum rank_mode */
    ivc_atomic_u32 pulled;          /* follows `pull` */
    ivc_atomic_u64 turns;           /* calls of progress */
    struct ivc_address address;     /* valid from RANK_READY on */
    ivc_atomic_u32 faulty;          /* 1: a fault; 2: the end of another, which may have its own */
    char fault[512];                /* valid when faulty is set */
    struct board_pair pairs[BOARD_RANKS_MAX];
};

struct board {
    uint64_t seed, magic_id;
    uint32_t n_ranks;
    size_t longest;                 /* message */
    unsigned compute_ms;            /* at most, without a call of the library */
    bool grants;                    /* hosts have grants, and links say where guests are (fake_grants.h) */
    bool ends_allowed;              /* the end of a connection is told, and is no fault */
    bool lends;                     /* rank 0 has memory of its region */
    bool lent_messages;             /* half of all messages lie in such memory, while there is some */

    ivc_atomic_u32 quiet;           /* the controller's: start no more */
    ivc_atomic_u32 end;             /* ... all has come, close */
    struct board_rank ranks[BOARD_RANKS_MAX];
};

/* rank.c: a rank's life from opening its endpoint to closing it; its exit status. */
struct rank_task {
    struct board *board;
    uint32_t rank;
};
int rank_run(void *task);

#endif
