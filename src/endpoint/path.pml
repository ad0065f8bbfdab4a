/*
 * The paths of a peer, for the model checker Spin: what endpoint and helper do when guests are
 * ordered away, leave, arrive, or lose their device without a word.  docs/migration-model.md says
 * what is left out, what is checked, and how to run it (`./run test model`).
 *
 * Every step below is one that nobody can see half done: one store that publishes, or what the
 * helper does while it keeps the application out.  Each changes something for good, so there are no
 * cycles (checked by a run of its own); so a run ends, and what must come true at last is asserted
 * in check_end(), where nobody can do anything any more.
 *
 * What happens in a run is set when the verifier is run, by the environment (settings below); only
 * the number of endpoints and whether devices are pulled without a word (LOSS) is set by -D.
 */
#ifndef N
#define N 2                     /* endpoints, each of a guest of its own */
#endif

c_decl {
\#include <stdlib.h>
    static int setting(const char *name, int otherwise)
    {
        const char *value = getenv(name);

        return value ? atoi(value) : otherwise;
    }
};
/* Hidden: no part of the state, since they do not change. */
hidden byte messages[N];        /* that each endpoint sends to each other */
hidden byte orders[N];          /* that the host gives to its guest */
hidden byte start[N];           /* the region where it is at first */
hidden byte stranger;            /* 1 does not know of 0 at first */
hidden byte computes;            /* the application of 1 may compute until all orders are over */
hidden byte mutation;           /* the fault that is built in; 0: none */
#ifdef LOSS
hidden byte losses[N];          /* times that its device is pulled without a word */
#endif

inline take_settings()
{
    c_code {
        messages[0] = setting("MESSAGES_0", 2);
        messages[1] = setting("MESSAGES_1", 2);
        orders[0] = setting("ORDERS_0", 1);
        orders[1] = setting("ORDERS_1", 0);
        start[0] = 1;
        start[1] = setting("START_1", 1);
        stranger = setting("STRANGER", 0);
        computes = setting("COMPUTES", 0);
        mutation = setting("MUTATION", 0);
    };
#if N > 2
    c_code {
        messages[2] = setting("MESSAGES_2", 0);
        orders[2] = setting("ORDERS_2", 0);
        start[2] = 1;
    };
#endif
#ifdef LOSS
    c_code {
        losses[0] = setting("LOSSES_0", 1);
        losses[1] = setting("LOSSES_1", 0);
    };
#endif
}

/* The faults: each must be found when it is built in. */
#define FROM_HEAD_MINUS_1      1
#define FROM_HEAD_PLUS_1       2
#define READ_BEFORE_AFTER      3
#define READ_WHEN_SUSPENDED    4
#define NEW_BEFORE_BACKLOG     5
#define RING_BEFORE_BACKLOG    6
#define CLOSE_EARLY            7
#define CLOSE_CLEARS_LINE      8
#define ACT_ON_ORDER           9
#define NO_ANSWER              10
#define ANSWER_WHILE_ORDERED   11
#define ANSWER_TWICE           12
#define JOIN_UNCHECKED         13
#define ATTACH_AGAIN           14
#define SUSPENDED_IS_NO_READER 15
#define LOST_UNREAD            16
#define UNCERTAIN_AGAIN        17
#define LATE_LOST_FORGOTTEN    18
#define LOST_OUT_OF_TURN       19
#define COPY_LATE              20
#define IS(fault) (mutation == fault)

#define MAY_COMPUTE(i) (computes && i == 1)

#define REGIONS 2
#define SLOTS   (N + 1)         /* in each region: one more, for one whose old slot is not buried */
#define PLACES  (REGIONS * SLOTS)

#define REGION(place) (1 + (place) / SLOTS)

/* Phases of a slot in the directory (enum ivc_phase). */
#define FREE    0
#define JOINING 1
#define MEMBER  2               /* IVC_PHASE_ACTIVE */
#define LEFT    3
#define DEAD    4

/* States of a peer (enum ivc_peer_state). */
#define CLOSED     0
#define CONNECTED  1
#define ACTIVE     2
#define SUSPENDING 3
#define GONE       4

/* struct ivc_layout_link: what the owner of one slot tells the owner of another; and its ring. */
typedef Line {
    byte to;                    /* residence (slot and generation) that it is for; 0: none */
    byte suspended;             /* 0 open; 1 final, I may look at your line; 2 I look no more */
    byte head;
    byte ring;                  /* 0 none, 1 there, 2 given back */
    byte after;
    byte first, tail;           /* holds the messages first .. first + tail - 1 */
};

/* Shared memory, of all regions.  A residence is a number that is never used twice. */
byte phase[PLACES];
byte residence[PLACES];
byte endpoint[PLACES];          /* member's endpoint_id */
Line line[PLACES * SLOTS];
byte residences;

#define LINE(from, to) line[(from) * SLOTS + (to) % SLOTS]

/* The hosts: in which region's host a guest has its device (0: none), and where an order is. */
byte device[N];
byte order[N];
byte moves[N];

/* What an endpoint knows. */
typedef Peer {
    byte state;
    bit known;
    byte place, residence;      /* the attachment's other end */
    byte last, last_own;        /* the attachment before, which is used up */
    byte head;                  /* packets of its ring that we have read */
    byte backlog, backlog_end;  /* messages that go by network first */
    byte sent, received;        /* messages: by the application, and delivered to it */
    byte network_sent, network_received;
    byte first, written, kept_from; /* of our ring, when we have stopped: from where on there is a copy */
#ifdef LOSS
    /* struct ivc_losses: of the last attachment, of the one before, and the answer to a late word */
    bit pending, have, said, heard;
    byte loss_own, loss_its;    /* the attachment that it is about */
    byte read;
    byte its_read, its_kept_from;
    byte before_own, before_its, before_read;
    byte answer_own, answer_its, answer_read, answer_kept;
    bit reported;
#endif
};
Peer peer[N * N];
#define PEER(i, j) peer[(i) * N + (j)]

byte place_of[N];               /* + 1; 0: in no region */
byte own[N];                    /* our residence */
bit leaving[N];
bit looked[N];                  /* saw a region without an order, is about to join */
bit silent[N];
bit pulled[N];                  /* the memory that is mapped is no longer the region's */
#ifdef LOSS
byte pulls[N];
#endif

#define HAS_MEMORY(i) (place_of[i] > 0 && !pulled[i])

#define ME(i) (place_of[i] - 1)
#define IS_MEMBER(i) (HAS_MEMORY(i) && phase[ME(i)] == MEMBER)
#define ATTACHED(i, j) (PEER(i, j).state == CONNECTED || PEER(i, j).state == ACTIVE)
#define OWN_LINE(i, j) LINE(ME(i), PEER(i, j).place)
#define PEER_LINE(i, j) LINE(PEER(i, j).place, ME(i))
#define BACKLOG(i, j) (PEER(i, j).backlog != PEER(i, j).backlog_end)
#define OWN_TAIL(i, j) (OWN_LINE(i, j).ring == 1 -> OWN_LINE(i, j).tail : 0)
#define IS_ORDERED(i) (order[i] != 0 && order[i] == REGION(ME(i)))

/* The network: one channel per direction, in order, nothing lost. */
#ifdef LOSS
#define LOST 255
chan network[N * N] = [6] of { byte, byte, byte, byte, byte, bit };
#else
chan network[N * N] = [6] of { byte };
#endif
#define NETWORK(i, j) network[(i) * N + (j)]

#ifdef LOSS
#define DRAINS(i, j) (PEER(i, j).pending && PEER(i, j).have && !PEER(i, j).said)
#define PENDING(i, j) PEER(i, j).pending
#else
#define DRAINS(i, j) false
#define PENDING(i, j) false
#endif

/* ---- the application: each of these is one call into the library, the helper being kept out */

inline network_send(i, j, message)
{
#ifdef LOSS
    NETWORK(i, j)!message, 0, 0, 0, 0, 0;
#else
    NETWORK(i, j)!message;
#endif
    PEER(i, j).network_sent++;
}

inline deliver(i, j, message)
{
    assert(message == PEER(i, j).received);     /* nothing lost, doubled or out of order */
    PEER(i, j).received++;
}

inline ring_make(i, j)
{
    OWN_LINE(i, j).first = PEER(i, j).sent;
    OWN_LINE(i, j).tail = 0;
    OWN_LINE(i, j).after = PEER(i, j).network_sent;
    OWN_LINE(i, j).ring = 1;
}

inline ring_send(i, j)
{
    assert(residence[ME(i)] == own[i] && device[i] == REGION(ME(i)));
    if
    :: PEER(i, j).state == CONNECTED -> ring_make(i, j); PEER(i, j).state = ACTIVE
    :: else
    fi;
    OWN_LINE(i, j).tail++;
    PEER(i, j).sent++;
}

#define WANTS_TO_SEND(i, j) (!silent[i] && PEER(i, j).known && PEER(i, j).sent < messages[i])
#define MAY_USE_NETWORK(i, j) (PEER(i, j).state == CLOSED \
                               && (!BACKLOG(i, j) || IS(NEW_BEFORE_BACKLOG)))
#define MAY_MAKE_RING(i, j) (PEER(i, j).state == CONNECTED \
                             && (!BACKLOG(i, j) || IS(RING_BEFORE_BACKLOG)))
#define MAY_USE_RING(i, j) (PEER(i, j).state == ACTIVE)
#define IS_DUE(i, j) (PEER(i, j).network_received >= PEER_LINE(i, j).after \
                      || IS(READ_BEFORE_AFTER))
#define HAS_PACKET(i, j) (PEER_LINE(i, j).to == own[i] && PEER_LINE(i, j).ring != 0 \
                          && PEER(i, j).head < PEER_LINE(i, j).tail && IS_DUE(i, j))
#define MAY_READ(i, j) (ATTACHED(i, j) || PEER(i, j).state == SUSPENDING \
                        && (DRAINS(i, j) || IS(READ_WHEN_SUSPENDED)))

/* The other end's memory is still its own: what we have attached to was not given away. */
inline check_memory(i, j)
{
    assert(residence[PEER(i, j).place] == PEER(i, j).residence);
    assert(device[i] == REGION(ME(i)));
}

inline ring_read(i, j)
{
    check_memory(i, j);
    assert(PEER_LINE(i, j).ring == 1);          /* not given back */
    deliver(i, j, PEER_LINE(i, j).first + PEER(i, j).head);
    PEER(i, j).head++;
}

/* Values that mean nothing any more, so that equal situations are equal states. */
inline trim(i, j)
{
    if
    :: !BACKLOG(i, j) -> PEER(i, j).backlog = 0; PEER(i, j).backlog_end = 0
    :: else
    fi;
}

/* ---- the helper */

/* A copy of what the other has not said that it has read (ivc_peer_keep_sent()). */
inline keep_sent(i, j)
{
    PEER(i, j).first = (OWN_TAIL(i, j) > 0 -> OWN_LINE(i, j).first : 0);
    PEER(i, j).written = OWN_TAIL(i, j);
    PEER(i, j).kept_from = (PEER_LINE(i, j).to == own[i] -> PEER_LINE(i, j).head : 0);
}

#ifdef LOSS
#define IS_NOTED(i, j, from, to) (PEER(i, j).loss_its == from && PEER(i, j).loss_own == to)
inline note(i, j)
{
    if
    :: IS_NOTED(i, j, PEER(i, j).residence, own[i])
    :: else ->
        PEER(i, j).heard = 0;
        PEER(i, j).its_read = 0;
        PEER(i, j).its_kept_from = 0;
        PEER(i, j).before_own = PEER(i, j).loss_own;
        PEER(i, j).before_its = PEER(i, j).loss_its;
        PEER(i, j).before_read = PEER(i, j).read
    fi;
    PEER(i, j).loss_own = own[i];
    PEER(i, j).loss_its = PEER(i, j).residence;
    PEER(i, j).read = PEER(i, j).head;
    PEER(i, j).pending = 0;
    PEER(i, j).have = 0;
    PEER(i, j).said = 0;
}
#else
#define note(i, j) skip
#endif

inline suspend(i, j)
{
    check_memory(i, j);
    if
    :: IS(COPY_LATE) -> PEER(i, j).kept_from = OWN_TAIL(i, j); PEER(i, j).written = OWN_TAIL(i, j)
    :: else -> keep_sent(i, j)
    fi;
    note(i, j);
    OWN_LINE(i, j).head = PEER(i, j).head;
    OWN_LINE(i, j).suspended = 1;
    PEER(i, j).state = SUSPENDING;
}

/* The other end has read `n` packets of our ring, and will read no more (ivc_peer_settle()). */
inline settle(i, j, n)
{
    if
    :: PEER(i, j).written > 0 ->
        assert(n <= PEER(i, j).written && n >= PEER(i, j).kept_from);
        assert(!BACKLOG(i, j) || IS(RING_BEFORE_BACKLOG));
        PEER(i, j).backlog = PEER(i, j).first + n;
        if
        :: IS(FROM_HEAD_MINUS_1) && n > 0 -> PEER(i, j).backlog--
        :: IS(FROM_HEAD_PLUS_1) && n < PEER(i, j).written -> PEER(i, j).backlog++
        :: else
        fi;
        PEER(i, j).backlog_end = PEER(i, j).first + PEER(i, j).written
    :: else
    fi;
    trim(i, j);
}

/* We look no more at the other's memory (ivc_peer_close_pair()). */
inline part(i, j)
{
    if
    :: OWN_LINE(i, j).ring == 1 ->
        OWN_LINE(i, j).ring = 2;
        OWN_LINE(i, j).first = 0;
        OWN_LINE(i, j).after = 0;
        OWN_LINE(i, j).tail = 0
    :: else
    fi;
    OWN_LINE(i, j).suspended = 2;
    if
    :: IS(CLOSE_CLEARS_LINE) -> OWN_LINE(i, j).to = 0
    :: else
    fi;
}

inline forget(i, j)
{
    PEER(i, j).last = PEER(i, j).residence;
    PEER(i, j).last_own = own[i];
    PEER(i, j).residence = 0;
    PEER(i, j).place = 0;
    PEER(i, j).head = 0;
}

inline close(i, j, n)
{
    settle(i, j, n);
    part(i, j);
    forget(i, j);
#ifndef LOSS
    PEER(i, j).first = 0;
    PEER(i, j).written = 0;
    PEER(i, j).kept_from = 0;
#endif
    PEER(i, j).state = CLOSED;
}

inline line_write(i, at, says)
{
    LINE(ME(i), at).head = 0;
    LINE(ME(i), at).ring = 0;
    LINE(ME(i), at).first = 0;
    LINE(ME(i), at).tail = 0;
    LINE(ME(i), at).after = 0;
    LINE(ME(i), at).suspended = says;
    LINE(ME(i), at).to = residence[at];
}

inline attach(i, j, at)
{
    line_write(i, at, 0);
    PEER(i, j).known = 1;
    PEER(i, j).place = at;
    PEER(i, j).residence = residence[at];
    PEER(i, j).head = 0;
    PEER(i, j).state = CONNECTED;
}

/* j as the directory has it: there are one or two entries of it, the older ones LEFT. */
#define IS_AT(i, j, at) (REGION(at) == REGION(ME(i)) && phase[at] == MEMBER && endpoint[at] == j)
#define USED_UP(i, j, at) (PEER(i, j).last == residence[at] && PEER(i, j).last_own == own[i])
#define SAYS_SUSPENDED(i, at) (LINE(at, ME(i)).to == own[i] && LINE(at, ME(i)).suspended != 0)
#define MAY_ATTACH(i, j, at) (IS_AT(i, j, at) && PEER(i, j).state == CLOSED \
                              && (!USED_UP(i, j, at) && !SAYS_SUSPENDED(i, at) \
                                  || IS(ATTACH_AGAIN)))
/* One that waits for us where we are not attached, and will not be.  (Unless its order is over: the
 * first version of answer_strangers() looked only while there was one.) */
#define MUST_ANSWER(i, j, at) (IS_AT(i, j, at) && PEER(i, j).state == CLOSED \
                               && (LINE(ME(i), at).to != residence[at] || IS(ANSWER_TWICE)) \
                               && SAYS_SUSPENDED(i, at) && !IS(NO_ANSWER) \
                               && !(IS(ANSWER_WHILE_ORDERED) && order[j] != REGION(ME(i))))

#define IS_ASKED_BY(i, j) (leaving[i] || SAYS_SUSPENDED(i, PEER(i, j).place) \
                           || IS(ACT_ON_ORDER) && order[j] == REGION(ME(i)))
#define HAS_ANSWERED(i, j) (SAYS_SUSPENDED(i, PEER(i, j).place) \
                            || IS(CLOSE_EARLY) && PEER_LINE(i, j).to == own[i])
#define NEVER_ADDRESSED(i, j) (PEER_LINE(i, j).to != own[i])

/* Nobody who is there may still look at the memory of this slot's last owner. */
#define LOOKS(from, at) (LINE(from, at).suspended == 0 \
                         || LINE(from, at).suspended == 1 && !IS(SUSPENDED_IS_NO_READER))
#define READS(from, at) (phase[from] == MEMBER && LINE(from, at).to == residence[at] \
                         && LOOKS(from, at))

#define BASE(at) ((at) / SLOTS * SLOTS)
#if N == 2
#define IS_READ(at) (READS(BASE(at), at) || READS(BASE(at) + 1, at) || READS(BASE(at) + 2, at))
#define ALL_CLOSED(i) IS_CLOSED(i, (i + 1) % N)
#else
#define IS_READ(at) (READS(BASE(at), at) || READS(BASE(at) + 1, at) || READS(BASE(at) + 2, at) \
                     || READS(BASE(at) + 3, at))
#define ALL_CLOSED(i) (IS_CLOSED(i, (i + 1) % N) && IS_CLOSED(i, (i + 2) % N))
#endif
#define IS_CLOSED(i, j) (PEER(i, j).state == CLOSED || PEER(i, j).state == GONE)
#define IS_FREE(at) (phase[at] == FREE || (phase[at] == LEFT || phase[at] == DEAD) && !IS_READ(at))

/* Burying and taking in one step: a slot that could be buried may also still be unburied. */
#if N == 2
#define HAS_ROOM(base) (IS_FREE(base) || IS_FREE(base + 1) || IS_FREE(base + 2))
#else
#define HAS_ROOM(base) (IS_FREE(base) || IS_FREE(base + 1) || IS_FREE(base + 2) \
                        || IS_FREE(base + 3))
#endif
inline take_slot(i, at)
{
    k = device[i] * SLOTS;
    at = PLACES;
    do
    :: k > (device[i] - 1) * SLOTS ->
        k--;
        if
        :: IS_FREE(k) -> at = k
        :: at < PLACES && phase[k] != FREE      /* not buried yet */
        :: at == PLACES && !IS_FREE(k)
        fi
    :: else -> break
    od;
    residences++;
    residence[at] = residences;
    own[i] = residences;
    endpoint[at] = i;
    phase[at] = JOINING;
    place_of[i] = at + 1;
    k = 0;
    do
    :: k < SLOTS -> LINE(at, k).to = 0; LINE(at, k).ring = 0; LINE(at, k).suspended = 0;
        LINE(at, k).head = 0; LINE(at, k).first = 0; LINE(at, k).tail = 0;
        LINE(at, k).after = 0; k++
    :: else -> k = 0; break
    od
}

/* ---- a device that is pulled without a word: what the two tell each other by network (lost.c) */
#ifdef LOSS
/* From here on neither writes; `has`: what the other wrote can still be read. */
inline begin(i, j, has)
{
    note(i, j);
    PEER(i, j).pending = 1;
    PEER(i, j).have = has;
    PEER(i, j).state = SUSPENDING;
}

#define IS_HELD(i, j) ((ATTACHED(i, j) || PEER(i, j).state == SUSPENDING) && PEER(i, j).residence > 0)
/* i sees that what is mapped is no region any more.  `uncertain`: the peer to which it was sending
 * just then, and of which that packet is kept. */
inline notice(i, k, uncertain)
{
    k = 0;
    do
    :: k < N && k != i && IS_HELD(i, k) ->
        if
        :: k != uncertain && ATTACHED(i, k) ->
            PEER(i, k).first = 0;
            PEER(i, k).written = OWN_TAIL(i, k);
            PEER(i, k).kept_from = OWN_TAIL(i, k)
        :: else
        fi;
        begin(i, k, 0);
        forget(i, k);
        k++
    :: k < N && !(k != i && IS_HELD(i, k)) -> k++
    :: k == N -> break
    od;
    k = 0;
    place_of[i] = 0;
    pulled[i] = 0;
    leaving[i] = 0;
    looked[i] = 0;
}

/* A send finds out: the packet under way may be in the ring or not; nobody here can tell. */
inline send_into_nothing(i, j, k)
{
    PEER(i, j).kept_from = (PEER(i, j).state == ACTIVE -> OWN_LINE(i, j).tail : 0);
    PEER(i, j).first = PEER(i, j).sent - PEER(i, j).kept_from;
    PEER(i, j).written = PEER(i, j).kept_from + 1;
    if
    :: true ->
        if
        :: PEER(i, j).state == CONNECTED -> ring_make(i, j)
        :: else
        fi;
        OWN_LINE(i, j).tail++
    :: true
    fi;
    PEER(i, j).sent++;
    notice(i, k, j);
}

#define IS_THIS(i, j, from, to) ((ATTACHED(i, j) || PEER(i, j).state == SUSPENDING) \
                                 && PEER(i, j).residence == from && own[i] == to)
#define IS_THERE(i, j, k, from, to) (HAS_MEMORY(i) && own[i] == to && residence[k] == from \
                                     && phase[k] == MEMBER && MAY_ATTACH(i, j, k))

#define IS_BEFORE(i, j, from, to) (PEER(i, j).before_its == from && PEER(i, j).before_own == to)
/* That attachment is over for us, or we never had it: then nothing was read of it. */
inline answer(i, j, from, to, n_kept)
{
    PEER(i, j).answer_own = to;
    PEER(i, j).answer_its = from;
    PEER(i, j).answer_kept = n_kept;
    if
    :: IS(LATE_LOST_FORGOTTEN) -> PEER(i, j).answer_read = 0
    :: !IS(LATE_LOST_FORGOTTEN) && IS_NOTED(i, j, from, to) ->
        PEER(i, j).answer_read = PEER(i, j).read
    :: !IS(LATE_LOST_FORGOTTEN) && !IS_NOTED(i, j, from, to) && IS_BEFORE(i, j, from, to) ->
        PEER(i, j).answer_read = PEER(i, j).before_read
    :: else -> PEER(i, j).answer_read = 0
    fi;
}

/* j says that it has lost the memory of the attachment (from, to); or answers the same to us. */
inline hear(i, j, k, from, to, n_read, n_kept, knows)
{
    k = (place_of[i] > 0 -> BASE(ME(i)) : 0);
    do
    :: k % SLOTS < SLOTS - 1 && residence[k] != from -> k++
    :: else -> break
    od;
    if
    :: !PENDING(i, j) && IS_THERE(i, j, k, from, to) -> attach(i, j, k)
    :: else
    fi;
    k = 0;
    if
    :: !PENDING(i, j) && IS_THIS(i, j, from, to) ->
        if
        :: ATTACHED(i, j) -> keep_sent(i, j)
        :: else
        fi;
        begin(i, j, 1)
    :: else
    fi;
    if
    :: PENDING(i, j) && IS_NOTED(i, j, from, to) ->
        PEER(i, j).heard = 1;
        PEER(i, j).its_read = n_read;
        PEER(i, j).its_kept_from = n_kept
    :: !(PENDING(i, j) && IS_NOTED(i, j, from, to)) && !knows -> answer(i, j, from, to, n_kept)
    :: else
    fi;
}

inline say_answer(i, j)
{
    NETWORK(i, j)!LOST, PEER(i, j).answer_own, PEER(i, j).answer_its, PEER(i, j).answer_read, 0, 1;
    PEER(i, j).network_sent++;
    if
    :: PEER(i, j).answer_kept > PEER(i, j).answer_read ->
        if
        :: PEER(i, j).residence > 0 && HAS_MEMORY(i) -> part(i, j)
        :: else
        fi;
        forget(i, j);
        PEER(i, j).pending = 0;
        PEER(i, j).reported = 1;
        PEER(i, j).state = GONE
    :: else
    fi;
    PEER(i, j).answer_own = 0;
    PEER(i, j).answer_its = 0;
    PEER(i, j).answer_read = 0;
    PEER(i, j).answer_kept = 0;
}

/* Its ring to the end, before we say how far we are. */
#define HAS_MORE(i, j) (PEER_LINE(i, j).to == own[i] && PEER_LINE(i, j).ring != 0 \
                        && PEER(i, j).head < PEER_LINE(i, j).tail)
#define HAS_DRAINED(i, j) (!DRAINS(i, j) || !HAS_MEMORY(i) || !HAS_MORE(i, j) || IS(LOST_UNREAD))
#define HAS_WORD(i, j) (!PEER(i, j).said && PEER(i, j).pending && HAS_DRAINED(i, j))
inline say(i, j)
{
    if
    :: DRAINS(i, j) -> PEER(i, j).read = PEER(i, j).head
    :: else
    fi;
    NETWORK(i, j)!LOST, PEER(i, j).loss_own, PEER(i, j).loss_its, PEER(i, j).read,
        PEER(i, j).kept_from, PEER(i, j).heard;
    PEER(i, j).network_sent++;
    PEER(i, j).said = 1;
}

#define IS_MISSING(i, j) (PEER(i, j).kept_from > PEER(i, j).its_read \
                          || PEER(i, j).its_kept_from > PEER(i, j).read)
#define IS_KEPT_READ(i, j) (!PEER(i, j).have && PEER(i, j).its_read == PEER(i, j).written \
                            && PEER(i, j).kept_from < PEER(i, j).written)
/* Both have spoken. */
#define IS_SETTLED(i, j) (PEER(i, j).pending && PEER(i, j).said && PEER(i, j).heard)
inline finish(i, j)
{
    if
    :: IS_MISSING(i, j) -> assert(!PEER(i, j).have)     /* one of two can always save all */
    :: else ->
        if
        :: IS(UNCERTAIN_AGAIN) && IS_KEPT_READ(i, j) -> settle(i, j, PEER(i, j).kept_from)
        :: else -> settle(i, j, PEER(i, j).its_read)
        fi
    fi;
    if
    :: PEER(i, j).residence > 0 -> check_memory(i, j); part(i, j); forget(i, j)
    :: else
    fi;
    PEER(i, j).pending = 0;
    if
    :: IS_MISSING(i, j) -> PEER(i, j).reported = 1; PEER(i, j).state = GONE
    :: else -> PEER(i, j).state = CLOSED
    fi;
}

#endif

/* ---- who does it */

/* One peer's part of the application: any order of its calls, and any time between them. */
#define APPLICATION(j) \
    :: atomic { WANTS_TO_SEND(i, j) && MAY_USE_NETWORK(i, j) -> \
        network_send(i, j, PEER(i, j).sent); PEER(i, j).sent++ } \
    :: atomic { WANTS_TO_SEND(i, j) && HAS_MEMORY(i) \
                && (MAY_MAKE_RING(i, j) || MAY_USE_RING(i, j)) -> \
        ring_send(i, j) } \
    :: atomic { !silent[i] && BACKLOG(i, j) \
                && (PEER(i, j).state == CLOSED || PEER(i, j).state == CONNECTED) -> \
        network_send(i, j, PEER(i, j).backlog); PEER(i, j).backlog++; trim(i, j) } \
    :: atomic { !silent[i] && HAS_MEMORY(i) && MAY_READ(i, j) && HAS_PACKET(i, j) -> \
        ring_read(i, j) } \
    :: atomic { !silent[i] && HAS_MEMORY(i) && MEETS(i, j) -> meet(i, j, k) } \
    APPLICATION_NETWORK(j)

#ifdef LOSS
/* Its word is about an attachment that is newer than the one we still hold: that is ended first. */
#define IS_AHEAD(i, j) ((PEER(i, j).residence > 0 || PENDING(i, j)) && !IS(LOST_OUT_OF_TURN) \
                        && place_of[i] > 0 && NETWORK(j, i)?[LOST, _, eval(own[i]), _, _, _] \
                        && !NETWORK(j, i)?[LOST, eval(PEER(i, j).residence), _, _, _, _] \
                        && !(PENDING(i, j) && NETWORK(j, i)?[LOST, eval(PEER(i, j).loss_its), \
                                                             eval(PEER(i, j).loss_own), _, _, _]))
#define APPLICATION_NETWORK(j) \
    :: atomic { !silent[i] && !pulled[i] && nempty(NETWORK(j, i)) && !IS_AHEAD(i, j) -> \
        NETWORK(j, i)?message, from, to, its_read, its_kept_from, it_knows; \
        PEER(i, j).network_received++; PEER(i, j).known = 1; \
        if \
        :: PEER(i, j).state == GONE \
        :: PEER(i, j).state != GONE && message == LOST -> \
            hear(i, j, k, from, to, its_read, its_kept_from, it_knows) \
        :: PEER(i, j).state != GONE && message != LOST -> deliver(i, j, message) \
        fi; \
        message = 0; from = 0; to = 0; its_read = 0; its_kept_from = 0; it_knows = 0 } \
    :: atomic { pulled[i] && WANTS_TO_SEND(i, j) && (MAY_MAKE_RING(i, j) || MAY_USE_RING(i, j)) -> \
        send_into_nothing(i, j, k) } \
    :: atomic { !silent[i] && PEER(i, j).state != GONE && HAS_WORD(i, j) -> say(i, j) } \
    :: atomic { !silent[i] && !pulled[i] && IS_SETTLED(i, j) -> finish(i, j) } \
    :: atomic { !silent[i] && PEER(i, j).state != GONE && PEER(i, j).answer_own > 0 -> \
        say_answer(i, j) }
#else
#define APPLICATION_NETWORK(j) \
    :: atomic { !silent[i] && nempty(NETWORK(j, i)) -> \
        NETWORK(j, i)?message; PEER(i, j).network_received++; PEER(i, j).known = 1; \
        deliver(i, j, message); message = 0 }
#endif

/* Somebody to whom we are not attached has made a ring for us: the bell (welcome() in poll.c). */
#define MEETS_AT(i, j, at) (MAY_ATTACH(i, j, at) && LINE(at, ME(i)).to == own[i] \
                            && LINE(at, ME(i)).ring == 1)
#define MEETS(i, j) (IS_MEMBER(i) \
                     && (MEETS_AT(i, j, BASE(ME(i))) || MEETS_AT(i, j, BASE(ME(i)) + 1) \
                         || MEETS_AT(i, j, BASE(ME(i)) + 2) \
                         || MEETS_AT(i, j, BASE(ME(i)) + SLOTS - 1)))
inline meet(i, j, k)
{
    k = BASE(ME(i));
    do
    :: !MEETS_AT(i, j, k) -> k++
    :: else -> break
    od;
    attach(i, j, k);
    k = 0;
}

byte over;                      /* hosts that will ask for nothing more */

proctype Application(byte i)
{
    byte message, k;
    bit computed;
#ifdef LOSS
    byte from, to, its_read, its_kept_from;
    bit it_knows;
#endif

end:
    do
    APPLICATION((i + 1) % N)
#if N > 2
    APPLICATION((i + 2) % N)
#endif
    :: atomic { MAY_COMPUTE(i) && !computed && over < N -> computed = 1; silent[i] = 1 }
    :: atomic { silent[i] && over == N -> silent[i] = 0 }
    od
}

#define HELPER_AT(j, at) \
    :: atomic { IS_MEMBER(i) && !leaving[i] && PEER(i, j).known && MAY_ATTACH(i, j, at) -> \
        attach(i, j, at) } \
    :: atomic { IS_MEMBER(i) && MUST_ANSWER(i, j, at) -> line_write(i, at, 2) }

#define LEAVES_UNREAD(i, j) (phase[PEER(i, j).place] == LEFT && NEVER_ADDRESSED(i, j))
#define HELPER_LEFT(j) \
    :: atomic { IS_MEMBER(i) && (ATTACHED(i, j) || PEER(i, j).state == SUSPENDING) \
                && PEER(i, j).residence > 0 && !PENDING(i, j) && LEAVES_UNREAD(i, j) -> \
        if \
        :: ATTACHED(i, j) -> suspend(i, j) \
        :: else \
        fi; \
        close(i, j, 0) } \
    HELPER_SUSPECT(j)

#ifdef LOSS
/* Its heart stands still (ivc_lost_suspect()). */
#define HELPER_SUSPECT(j) \
    :: atomic { IS_MEMBER(i) && (ATTACHED(i, j) || PEER(i, j).state == SUSPENDING) \
                && PEER(i, j).residence > 0 && !PENDING(i, j) \
                && phase[PEER(i, j).place] == DEAD && residence[PEER(i, j).place] == PEER(i, j).residence \
                && !(PEER(i, j).state == SUSPENDING && HAS_ANSWERED(i, j)) -> \
        if \
        :: ATTACHED(i, j) -> keep_sent(i, j) \
        :: else \
        fi; \
        begin(i, j, 1) }
#else
#define HELPER_SUSPECT(j)
#endif

#define HELPER(j) \
    :: atomic { IS_MEMBER(i) && ATTACHED(i, j) && IS_ASKED_BY(i, j) -> suspend(i, j) } \
    :: atomic { IS_MEMBER(i) && PEER(i, j).state == SUSPENDING && !PENDING(i, j) \
                && PEER(i, j).residence > 0 && HAS_ANSWERED(i, j) -> \
        check_memory(i, j); close(i, j, PEER_LINE(i, j).head) } \
    HELPER_LEFT(j) \
    HELPER_AT(j, BASE(ME(i))) \
    HELPER_AT(j, BASE(ME(i)) + 1) \
    HELPER_AT(j, BASE(ME(i)) + 2)
#if N > 2
#define HELPER_MORE(j) HELPER_AT(j, BASE(ME(i)) + 3)
#else
#define HELPER_MORE(j)
#endif

inline suspend_all(i, k)
{
    k = 0;
    do
    :: k < N && k != i && ATTACHED(i, k) -> suspend(i, k); k++
    :: k < N && !(k != i && ATTACHED(i, k)) -> k++
    :: k == N -> break
    od;
    k = 0;
}

#ifdef LOSS
#define ASKS_NOBODY(i) (!PEER(i, (i + 1) % N).pending && !PEER(i, (i + 2) % N).pending)
/* Our own entry of a region that we lost: there is one of us only. */
inline clear_old(i, k)
{
    k = (device[i] - 1) * SLOTS;
    do
    :: k < device[i] * SLOTS ->
        if
        :: phase[k] == MEMBER && endpoint[k] == i -> phase[k] = DEAD
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0;
}
#else
#define ASKS_NOBODY(i) true
#define clear_old(i, k) skip
#endif

#define MAY_LOOK(i) (place_of[i] == 0 && !looked[i] && device[i] != 0 && order[i] != device[i] \
                     && ASKS_NOBODY(i))
#define MAY_JOIN(i) (place_of[i] == 0 && looked[i] && device[i] != 0 \
                     && HAS_ROOM((device[i] - 1) * SLOTS))

proctype Helper(byte i)
{
    byte k, at;

end:
    do
    HELPER((i + 1) % N)
    HELPER_MORE((i + 1) % N)
#if N > 2
    HELPER((i + 2) % N)
    HELPER_MORE((i + 2) % N)
#endif
    :: atomic { IS_MEMBER(i) && !leaving[i] && IS_ORDERED(i) -> leaving[i] = 1; suspend_all(i, k) }
    :: atomic { IS_MEMBER(i) && leaving[i] && ALL_CLOSED(i) ->
        phase[ME(i)] = LEFT; place_of[i] = 0; leaving[i] = 0 }
    :: atomic { MAY_LOOK(i) ->
        looked[i] = 1 }
    :: atomic { place_of[i] == 0 && looked[i] && device[i] == 0 -> looked[i] = 0 }
    :: atomic { MAY_JOIN(i) ->
        looked[i] = 0; clear_old(i, k); take_slot(i, at); at = 0 }
    :: atomic { HAS_MEMORY(i) && phase[ME(i)] == JOINING ->
        if
        :: IS_ORDERED(i) && !IS(JOIN_UNCHECKED) -> phase[ME(i)] = FREE; place_of[i] = 0
        :: !IS_ORDERED(i) || IS(JOIN_UNCHECKED) -> phase[ME(i)] = MEMBER
        fi }
#ifdef LOSS
    :: atomic { place_of[i] > 0 && pulled[i] && phase[ME(i)] == MEMBER -> notice(i, k, N) }
#endif
    /* It looks for that after each look at the memory; the lease frees the slot. */
    :: atomic { place_of[i] > 0 && pulled[i] && phase[ME(i)] == JOINING ->
        phase[ME(i)] = FREE; place_of[i] = 0; pulled[i] = 0 }
    od
}

/* What a host sees that waits for an answer: no member of that guest, and nobody who is joining. */
#define IS_OF(at, i) (phase[at] == JOINING && !IS(JOIN_UNCHECKED) \
                      || phase[at] == MEMBER && endpoint[at] == i)
#if N == 2
#define IS_ANSWERED(i, base) (!IS_OF(base, i) && !IS_OF(base + 1, i) && !IS_OF(base + 2, i))
#else
#define IS_ANSWERED(i, base) (!IS_OF(base, i) && !IS_OF(base + 1, i) && !IS_OF(base + 2, i) \
                              && !IS_OF(base + 3, i))
#endif

inline pull(i)
{
    pulled[i] = (place_of[i] > 0 -> 1 : 0);
    device[i] = 0;
}

#ifdef LOSS
#define MAY_PULL(i) (pulls[i] > 0 && !pulled[i])
#define COUNT_PULL(i) pulls[i]--
#else
#define MAY_PULL(i) false
#define COUNT_PULL(i) skip
#endif

/* The host's side of one guest. */
proctype Host(byte i)
{
    bit patient;

    do
    :: atomic { moves[i] > 0 && device[i] != 0 ->
        moves[i]--;
        order[i] = device[i];
        if
        :: patient = 1
        :: patient = 0                  /* may time out, or be cancelled, at any moment */
        fi };
        if
        :: atomic { !patient -> order[i] = 0 }
        :: atomic { IS_ANSWERED(i, (device[i] - 1) * SLOTS) -> assert(!IS_MEMBER(i)) };
            if
            :: atomic { !patient -> order[i] = 0 }
            :: atomic { true -> assert(!HAS_MEMORY(i) || phase[ME(i)] == JOINING);
                pull(i) };
                if
                :: device[i] = 1
                :: device[i] = 2
                fi;
                order[i] = 0
            fi
        :: atomic { MAY_PULL(i) -> COUNT_PULL(i); pull(i) };
            order[i] = 0;
            goto plug
        fi;
        patient = 0
    :: atomic { MAY_PULL(i) && device[i] != 0 -> COUNT_PULL(i); pull(i) };
plug:   if
        :: device[i] = 1
        :: device[i] = 2
        fi;
        patient = 0
    :: atomic { moves[i] == 0 && !MAY_PULL(i) -> over++; break }
    od
}

#ifdef LOSS
/* Somebody whose heart stands still, because its memory is not the region's any more. */
#define IS_STILL(at) (phase[at] == MEMBER && place_of[endpoint[at]] != at + 1)
proctype Lease()
{
    byte at;

end:
    do
    :: atomic { IS_STILL(0) -> phase[0] = DEAD }
    :: atomic { IS_STILL(1) -> phase[1] = DEAD }
    :: atomic { IS_STILL(2) -> phase[2] = DEAD }
    :: atomic { IS_STILL(3) -> phase[3] = DEAD }
    :: atomic { IS_STILL(4) -> phase[4] = DEAD }
    :: atomic { IS_STILL(5) -> phase[5] = DEAD }
#if N > 2
    :: atomic { IS_STILL(6) -> phase[6] = DEAD }
    :: atomic { IS_STILL(7) -> phase[7] = DEAD }
#endif
    od
}
#endif

/* Nobody can do anything any more: everything has arrived, all are where they should be. */
inline check_pair(i, j)
{
#ifdef LOSS
    assert(PEER(i, j).reported == PEER(j, i).reported);
    if
    :: PEER(i, j).reported -> assert(PEER(i, j).state == GONE)
    :: else -> check_whole(i, j)
    fi
#else
    check_whole(i, j)
#endif
}

inline check_whole(i, j)
{
    assert(PEER(i, j).sent == messages[i]);
    assert(PEER(i, j).received == messages[j]);
    assert(!BACKLOG(i, j));
    if
    :: device[i] == device[j] -> assert(ATTACHED(i, j))     /* on memory again */
    :: else -> assert(PEER(i, j).state == CLOSED)
    fi;
}

init
{
    byte i, j;

    atomic {
        take_settings();
        for (i : 0 .. N - 1) {
            device[i] = start[i];
            moves[i] = orders[i];
#ifdef LOSS
            pulls[i] = losses[i];
#endif
            residences++;
            j = (device[i] - 1) * SLOTS + i;
            residence[j] = residences;
            own[i] = residences;
            endpoint[j] = i;
            phase[j] = MEMBER;
            place_of[i] = j + 1;
            for (j : 0 .. N - 1) {
                if
                :: i != j -> PEER(i, j).known = !(stranger && i == 1 && j == 0)
                :: else
                fi
            }
        }
        for (i : 0 .. N - 1) {
            run Application(i);
            run Helper(i);
            run Host(i)
        }
#ifdef LOSS
        run Lease();
#endif
    }
    atomic {
        timeout ->
        assert(over == N);              /* else: an order that nobody answers */
        for (i : 0 .. N - 1) {
            assert(IS_MEMBER(i));
            for (j : 0 .. N - 1) {
                if
                :: i != j -> check_pair(i, j)
                :: else
                fi
            }
        }
    }
}
