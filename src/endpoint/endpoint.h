/*
 * Endpoint: this process as a partner of other processes, whatever path leads to them.
 *
 * An endpoint carries *packets*: a tag of 8 bits and up to `packet_max` bytes,
 * delivered once, in the order in which they were sent to that peer.  Adapters
 * never learn which path a packet took.  Everything larger is built from
 * packets (message.h).
 *
 * Threads: an endpoint opened with `threads` may be used by any number of
 * threads at once; otherwise by one thread at a time.  Handlers run inside
 * ivc_endpoint_progress(), one at a time, and may send.
 */
#ifndef IVC_ENDPOINT_ENDPOINT_H
#define IVC_ENDPOINT_ENDPOINT_H

#include "base/copy.h"
#include "channel/packet.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ivc_region;
struct ivc_member;
struct ivc_endpoint;    /* this process in one region */
struct ivc_peer;        /* one other process, as this endpoint sees it */

/* Called once per packet, in order per peer. */
typedef void ivc_endpoint_packet_fn(void *arg, struct ivc_peer *peer,
                                    const struct ivc_packet *packet);

/* Called once when a peer is gone; its packets have all been delivered.  `reason` is NULL when it
 * left in order, else says what happened ("its process died"), and is valid during the call. */
typedef void ivc_endpoint_gone_fn(void *arg, struct ivc_peer *peer, const char *reason);

/* In that handler, after it has read the body and before it acts upon it: whether the memory was there
 * all the time.  False: forget what was read, the same packet comes once more, from wherever it is still
 * to be had (or on_gone is called).  A handler that does not ask loses the peer instead. */
bool ivc_endpoint_body_is_whole(struct ivc_endpoint *endpoint);
/* Around that handler: whether it was told so, and the packet comes once more. */
bool ivc_endpoint_body_was_torn(const struct ivc_endpoint *endpoint);

/* Called when a process of our group makes itself known that we never connected to; the endpoint
 * has connected to it already.  May be NULL: then packets of such a process are not taken. */
typedef void ivc_endpoint_arrival_fn(void *arg, struct ivc_peer *peer);

/* For an endpoint without a network.  Called when memory leads to a peer no more, because its guest or
 * ours leaves the region: all of its packets have been delivered, all of ours are delivered there, and
 * nothing can be sent until it is connected to as a member of our region again.  Who has this handler
 * does what the host's orders ask for; who has neither this nor a network does not. */
typedef void ivc_endpoint_parted_fn(void *arg, struct ivc_peer *peer);

/* Called when the endpoint has left its region or joined one, after what the handlers above have to
 * say about it.  Once for several changes that came between two turns of progress. */
typedef void ivc_endpoint_moved_fn(void *arg, bool in_region);

struct ivc_endpoint_options {
    const char *region;         /* as IVC_REGION; NULL: the environment, then what is found */
    uint64_t magic_id;          /* the group (a job) */
    uint32_t client_id;         /* who we are in it (a rank) */
    uint32_t ring_size;         /* bytes a direction of a pair gets; 0: IVC_RING_SIZE, default */
    uint32_t segment_size;      /* bytes of one slot of a ring; 0: IVC_SEGMENT_SIZE, default */
    /* Bytes from which on a packet to a processor far away goes by a chunk even if the ring takes it, if there is one:
     * for whoever copies it from there to where it belongs at once.  0: as near, only what is too long for a ring of
     * the default size.  Where chunks go round in more than the nearest caches hold it is 2,000 bytes, near and far. */
    uint32_t far_by_chunk;
    /* How many peers there may be (a job's size less one); 0: not known.  When the region could not
     * hold rings among so many, memory for small ones is set aside at once (for 64 at most), or
     * opening fails: all are reached, or another path is chosen for all. */
    uint32_t expected_peers;
    bool threads;               /* several threads will call */
    /* There are more of us than processors.  Otherwise that is noticed by who waits long enough; with `threads` not. */
    bool crowded;
    /* Who sends does little else between two packets of a stream; an MPI does much. */
    bool tight;
    /* Also open a network, so that peers of other regions and hosts are reached.  Then a process
     * without any region is no error; `region` or IVC_REGION "none" asks for none. */
    bool network;
    /* Without `network`: open one only for moves.  Peers that begin in the region in which we begin are
     * reached wherever one of us moves to; all others are refused, by both sides alike.  Without a
     * region there is none, and one that cannot be opened is no error. */
    bool moves;
    const char *network_provider;   /* as IVC_NETWORK; NULL: the environment, then "tcp" */
    ivc_endpoint_packet_fn *on_packet;      /* NULL: it is for memory alone, and has no peers */
    ivc_endpoint_gone_fn *on_gone;          /* may be NULL */
    ivc_endpoint_arrival_fn *on_arrival;    /* may be NULL */
    ivc_endpoint_parted_fn *on_parted;      /* may be NULL */
    ivc_endpoint_moved_fn *on_moved;        /* may be NULL */
    void *arg;                  /* first argument of all of them */
};

/*
 * Opens the region, joins it.  Returns IVC_E_NOREGION when there is nothing to join and nobody
 * asked for a particular region (step aside without a word); a negative errno when there is
 * something and it cannot be used: ivc_error_text() says what, where and what to try.  Who has a
 * network goes on without a region that nobody named and that is others', and has a warning.
 */
int ivc_endpoint_open(const struct ivc_endpoint_options *options, struct ivc_endpoint **ret_endpoint);

/* Leaves the region and frees everything, peers included.  Accepts NULL.  Packets that were sent
 * and not yet taken by their peers are waited for, up to `IVC_LINGER_MS` (1 s). */
void ivc_endpoint_free(struct ivc_endpoint *endpoint);
/* What IVC_LINGER_MS was when it was opened: for those who wait for more than packets. */
uint64_t ivc_endpoint_linger_ms(const struct ivc_endpoint *endpoint);

/*
 * The address by which others reach this endpoint: bytes to pass to them by any means (PMIx modex,
 * MPI's address exchange, the region's own directory).  It names the endpoint (64 random bits), its
 * region (UUID, epoch), member slot and generation, so that two jobs never meet, whatever their
 * ids; and where its network is.  All addresses of one version have the same length, which is the
 * most that MPICH has room for (FI_NAME_MAX).
 */
enum { IVC_ADDRESS_LEN = 64 };
struct ivc_address {
    uint32_t len;
    uint8_t bytes[IVC_ADDRESS_LEN];
};
void ivc_endpoint_address(const struct ivc_endpoint *endpoint, struct ivc_address *ret_address);
/* Who an address is of; 0: not an address of our version. */
uint64_t ivc_address_id(const struct ivc_address *address);
/* One line for people: "client 3 in region UUID, slot 4, network tcp 10.0.0.1:5". */
void ivc_address_describe(const struct ivc_address *address, char *ret_text, size_t size);

/*
 * Makes a peer of an address.  Cheap: rings are made at the first send.  Connecting to our own
 * address works (a loop).  The same address again gives the same peer.  The path is memory when the
 * peer is a member of our region, else the network.
 * IVC_E_UNREACHABLE: another region or another host and no network that leads there (the text says
 * why).  IVC_E_GONE: it left.
 */
int ivc_endpoint_connect(struct ivc_endpoint *endpoint, const struct ivc_address *address,
                         struct ivc_peer **ret_peer);

/* The same for a member of our own region that was found in its directory. */
int ivc_endpoint_connect_member(struct ivc_endpoint *endpoint, const struct ivc_member *member,
                                struct ivc_peer **ret_peer);

/* Somebody waits for this peer: its death is noticed (on_gone) even if nothing was ever sent either
 * way.  Peers that packets went to or came from need not be named. */
void ivc_endpoint_watch(struct ivc_endpoint *endpoint, struct ivc_peer *peer);

/* A free place for the adapter's own pointer to what it knows about the peer. */
void ivc_peer_set_arg(struct ivc_peer *peer, void *arg);
void *ivc_peer_arg(const struct ivc_peer *peer);
/* The same for message.c. */
void ivc_peer_set_mailbox(struct ivc_peer *peer, void *mailbox);
void *ivc_peer_mailbox(const struct ivc_peer *peer);

/* Who the peer is: as ivc_address_id() of its address. */
uint64_t ivc_peer_id(const struct ivc_peer *peer);
bool ivc_peer_is_gone(const struct ivc_peer *peer);

/* The path it is on now: the network from the moment on at which memory is no longer to be used. */
enum ivc_path { IVC_PATH_MEMORY, IVC_PATH_NETWORK };
enum ivc_path ivc_peer_path(const struct ivc_peer *peer);

/*
 * Why it is on that path, and a text for people; of an address also before anybody has connected to it.
 * (IVC_PATH_REASON_SHARED: memory; with an address, as far as that tells.)
 */
enum ivc_path_reason {
    IVC_PATH_REASON_SHARED,             /* it is a member of our region */
    IVC_PATH_REASON_NO_REGION_HERE,
    IVC_PATH_REASON_NO_REGION_THERE,
    IVC_PATH_REASON_OTHER_REGION,
    IVC_PATH_REASON_AWAY,               /* one of us has left the region that both were in */
    IVC_PATH_REASON_GONE,               /* it was reached through memory, and has left or died */
    IVC_PATH_REASON_FOREIGN,            /* not an address of ours */
};
enum ivc_path_reason ivc_peer_path_reason(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                                          char *ret_text, size_t size);
/* For a line of statistics: "; not by memory: WHY", or "" of one that memory leads to, or that is gone. */
void ivc_peer_tell_why(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer, char *ret_text, size_t size);
enum ivc_path_reason ivc_endpoint_path_reason(struct ivc_endpoint *endpoint, const struct ivc_address *address,
                                              char *ret_text, size_t size);

/*
 * What the user requires.  IVC_REQUIRE=memory: every peer must be reached through memory.  An endpoint without a
 * region is not opened then, and connecting to a peer of another region answers IVC_E_UNREACHABLE;
 * ivc_endpoint_check_path() answers the same for an address that nobody connects to yet.  IVC_ON_PEER_LOSS=abort: a process
 * that loses a peer is to end.  What cannot be meant is an error when an endpoint is opened.
 */
bool ivc_path_requires_memory(void);
bool ivc_path_ends_with_peer(void);
int ivc_endpoint_check_path(struct ivc_endpoint *endpoint, const struct ivc_address *address);

/* The directory's entry of the peer. */
uint32_t ivc_peer_client_id(const struct ivc_peer *peer);
const char *ivc_peer_host(const struct ivc_peer *peer);
bool ivc_peer_same_kernel(const struct ivc_peer *peer);    /* in the same guest as we are */

/*
 * Bytes of the largest packet that can always be sent, sooner or later; of the largest that may come; of the largest
 * that needs no chunk of its own.
 *
 * Between the first two are *double* packets, for which shared memory must have two free chunks that are neighbours:
 * IVC_E_FULL and IVC_E_NOSPACE tell that it has none now, or not at all, and the caller sends two shorter ones.
 * piece_max is the longest that is of use to who takes long for each packet: one of the two.
 */
size_t ivc_endpoint_packet_max(const struct ivc_endpoint *endpoint);
size_t ivc_endpoint_double_max(const struct ivc_endpoint *endpoint);
size_t ivc_endpoint_piece_max(const struct ivc_endpoint *endpoint);
size_t ivc_endpoint_eager_max(const struct ivc_endpoint *endpoint);

/*
 * Sends one packet of at most packet_max bytes, or a double one, gathered from `iov`; the bytes are copied before it
 * returns.  IVC_E_FULL: nothing was sent, call progress and try again.  IVC_E_GONE: the peer died.
 * IVC_E_NOSPACE: the region has no memory for even a small ring to this peer.
 * Above eager_max what follows a first piece of 40 bytes at most, a header, lies where a line begins.
 */
int ivc_endpoint_send(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                      const struct iovec *iov, unsigned n_iov);

/* The same for a packet of two pieces, a header and what it is the header of: the shortest way of the commonest packet.
 * (When either has more than IVC_SHORT_MAX bytes, it goes the other way, which is shorter for who calls it.) */
enum {
    IVC_SHORT_HEAD_MAX = 32,
    IVC_SHORT_MAX = 64,         /* bytes that are copied by a few moves */
};
int ivc_endpoint_send_short(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag, const void *head,
                            size_t head_len, const void *bytes, size_t len);

/* Bytes at least that go now, through memory, as packets of `head_len` bytes before at most `piece` others each; 0 also
 * when the path is another, or is about to be.  Looks how far the peer has read, and changes nothing. */
size_t ivc_endpoint_room(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t head_len, size_t piece);

/*
 * Memory that the peer can read in place.  Take a buffer of up to packet_max bytes, or a double one, fill it (the
 * only copy on our side), send it: ivc_endpoint_send_buffer() takes it over on success and leaves
 * it with the caller on IVC_E_FULL, and on -ESTALE: its memory was taken away, with what was in it; whoever
 * can fill another one does.  A buffer not sent is given back with ivc_endpoint_buffer_free().
 */
struct ivc_buffer {
    void *data;
    uint32_t size;      /* bytes that may be written at data, >= the size asked for */
    enum ivc_copy_side side;    /* what ivc_copy() should be told when it fills the buffer */
    uint32_t chunk, residence;  /* the endpoint's */
    struct ivc_pool *pool;      /* likewise */
    uint64_t since, took;       /* the endpoint's: in ivc_cycles(), when it was taken; what filling it took */
    struct ivc_network_buffer *network;     /* the endpoint's */
};
int ivc_endpoint_buffer_get(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t size,
                            struct ivc_buffer *ret_buffer);
/* The same for who would fill it while he waits for an answer, and keep it until then: only where others are left, only
 * in memory that the peer reads now, and not when somebody else wants the processor; IVC_E_FULL otherwise. */
int ivc_endpoint_buffer_get_spare(struct ivc_endpoint *endpoint, struct ivc_peer *peer, size_t size,
                                  struct ivc_buffer *ret_buffer);
/* It is full, and will be sent later: whether memory is filled the faster way is seen by the time that it takes. */
void ivc_endpoint_buffer_filled(struct ivc_buffer *buffer);
int ivc_endpoint_send_buffer(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct ivc_buffer *buffer, size_t len);
/* The same for who still has what it was filled with, `iov`: that is sent if the buffer cannot be, so never -ESTALE. */
int ivc_endpoint_send_filled(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint8_t tag,
                             const struct ivc_buffer *buffer, const struct iovec *iov, unsigned n_iov);
void ivc_endpoint_buffer_free(struct ivc_endpoint *endpoint, const struct ivc_buffer *buffer);

/*
 * Pulling: where the path can read the peer's memory, a large payload needs no buffers.  The sender
 * exposes memory and tells `where` and `key` in a packet; the receiver pulls; then the sender is
 * told by a packet and takes the exposure back.
 */
bool ivc_endpoint_can_pull(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer);
struct ivc_exposure {
    uint64_t where, key;
    void *registration;     /* the path's */
};
int ivc_endpoint_expose(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *memory,
                        size_t len, struct ivc_exposure *ret_exposure);
void ivc_endpoint_unexpose(struct ivc_endpoint *endpoint, struct ivc_exposure *exposure);
/* Called once, from progress: the bytes are in place, or IVC_E_GONE; or from ivc_endpoint_free(),
 * IVC_E_GONE, when nothing of the endpoint may be used any more. */
typedef void ivc_endpoint_pulled_fn(void *arg, int status);
/* IVC_E_FULL: later; then, and when it is negative or IVC_E_GONE, `fn` is not called. */
int ivc_endpoint_pull(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                      uint64_t key, const struct iovec *iov, unsigned n_iov,
                      ivc_endpoint_pulled_fn *fn, void *arg);

/* Moves everything that can move; calls the handlers.  Returns the number of packets delivered.
 * A call from inside a handler, or while another thread is in it, returns 0 at once. */
int ivc_endpoint_progress(struct ivc_endpoint *endpoint);

/* From a handler: take no more packets in this turn.  For an adapter that has no room for more than
 * it was waiting for. */
void ivc_endpoint_end_turn(struct ivc_endpoint *endpoint);

/*
 * Sleeping (wait.c).  Shared memory wakes nobody, so somebody has to look now and then: first often,
 * then every millisecond.
 * ivc_endpoint_wait(): returns 1 when progress has something to do, 0 after `timeout_ms` (-1: never),
 * -EINTR.  `sending`: packets wait for room, so look for that as well.
 * ivc_endpoint_fd(): a descriptor (the endpoint's, at most one) for poll(2); the first call starts a
 * thread that looks while the descriptor is armed.  ivc_endpoint_arm() answers 0: armed, it becomes
 * readable when progress has something to do; 1: there is something now, do not sleep.  The next
 * ivc_endpoint_arm() makes it unreadable again.
 * ivc_endpoint_is_armed(): still so, and no turn of progress since has begun to watch a ring, whose sender then
 * wakes nobody.  ivc_endpoint_disarm(): makes it readable, as if something had come; whoever slept is to arm again.
 */
int ivc_endpoint_wait(struct ivc_endpoint *endpoint, int timeout_ms, bool sending);
int ivc_endpoint_fd(struct ivc_endpoint *endpoint);
int ivc_endpoint_arm(struct ivc_endpoint *endpoint, bool sending);
bool ivc_endpoint_is_armed(struct ivc_endpoint *endpoint);
void ivc_endpoint_disarm(struct ivc_endpoint *endpoint);

/*
 * For whoever waits by calling progress again and again, after each turn that found nothing; not from a
 * handler: sleeps, when the wait has gone on for so long that IVC_SPIN says so, until something comes; at
 * most until `limit_ns` (a time of ivc_now_ns(); UINT64_MAX: none), and for a sixteenth of the time
 * waited: so whatever else the caller waits for is noticed hardly later.  Does nothing with `threads`.
 */
enum ivc_company {
    IVC_COMPANY_NONE,       /* the caller waits for this endpoint alone */
    /* Processes of our kernel may talk to the caller by other means.  Then it does not sleep while there
     * is one, of our region, with which no packet was exchanged; and not for long while there is any. */
    IVC_COMPANY_NEIGHBOURS,
};
void ivc_endpoint_rest(struct ivc_endpoint *endpoint, enum ivc_company company, bool sending,
                       uint64_t limit_ns);
/* The caller did not wait: something was done that no turn of progress knows of. */
void ivc_endpoint_stir(struct ivc_endpoint *endpoint);

/*
 * For a caller that gives its processor away itself (sched_yield(2)) after each turn that found nothing: whether to do
 * so after this one.  The next turn then does not do it once more.  Who works, and looks whether something has come
 * in between, calls progress as one does who waits, and had better keep its processor: so the answer is the seldomer
 * yes the longer nothing has come.  Always yes with `threads`, or from a handler.
 */
bool ivc_endpoint_gives_way(struct ivc_endpoint *endpoint);

/*
 * Whoever reads or writes memory of the region by himself (what ivc_endpoint_reach() gave him) does it
 * between these, and asks ivc_endpoint_residence() first: what was found in another residence is no
 * longer there.  Calls of the endpoint may be made between them only without `threads`.
 */
void ivc_endpoint_enter(struct ivc_endpoint *endpoint);
void ivc_endpoint_leave(struct ivc_endpoint *endpoint);
/* Counts the regions that this endpoint has lived in: it changes when the guest moves. */
uint32_t ivc_endpoint_residence(const struct ivc_endpoint *endpoint);

/* Memory that other members can reach in place: where in the region `memory` lies (it may have been
 * mapped by somebody else in this process: libivc's ivc_alloc, MPI's own mapping of the file).
 * IVC_E_NOREGION when it does not lie in ours. */
int ivc_endpoint_locate(struct ivc_endpoint *endpoint, const void *memory, size_t len,
                        uint64_t *ret_handle);
/* The reverse, for a peer on the memory path: its memory, readable and writable, valid while the
 * endpoint lives.  -EBADMSG when such memory cannot be. */
int ivc_endpoint_reach(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t handle,
                       size_t len, void **ret_memory);

/*
 * Payloads that lie in lent memory are read there by the peer: the only copy.  The sender tells `where`
 * and `key` in a packet; false when `memory` is not lent memory of the region that both are in now (without a peer:
 * that we are in).
 * The receiver reads: -ESTALE when it cannot be, because one of them has moved since or the memory was
 * taken away; the bytes then have to come otherwise, and some may have been written.  What the sender's
 * application wrote before the packet is what is read, and what it writes after an answer is not.
 */
bool ivc_endpoint_show_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, const void *memory,
                            size_t len, uint64_t *ret_where, uint64_t *ret_key);
int ivc_endpoint_read_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                           uint64_t key, const struct iovec *iov, unsigned n_iov);
/* For a packet handler, as long as it runs: the memory itself, which the peer can still write and which may
 * be taken away meanwhile.  NULL: as -ESTALE above.  Afterwards, whether it was there all the time. */
const void *ivc_endpoint_view_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where,
                                   uint64_t key, size_t len);
bool ivc_endpoint_view_is_whole(const struct ivc_endpoint *endpoint);
/* To read and to write it, between ivc_endpoint_enter() and ivc_endpoint_leave(); NULL: as -ESTALE above, or perhaps its
 * process has just died, which progress will find out.  What is written is what its application finds there. */
void *ivc_endpoint_reach_lent(struct ivc_endpoint *endpoint, struct ivc_peer *peer, uint64_t where, uint64_t key,
                              size_t len);

/*
 * Memory of the region for the application, as ivc_region_lend(), but in it may be anything; it stays
 * where it is when the guest moves, private from then on.  IVC_E_NOREGION: there is no region now.  Does
 * not keep the helper from its work while it waits for memory.
 */
int ivc_endpoint_lend(struct ivc_endpoint *endpoint, uint64_t size, void **ret_memory);
/* ... of the region of today, or of one that was left.  -EINVAL: it was not lent. */
int ivc_endpoint_take_back(struct ivc_endpoint *endpoint, const void *memory);

/* Counters of a peer since connect, for statistics; read at any time. */
struct ivc_peer_stats {
    uint64_t sent_packets, sent_bytes;          /* through memory */
    uint64_t received_packets, received_bytes;  /* through memory */
    uint64_t read_bytes;                        /* beside those: in place, ivc_endpoint_read_lent() */
    uint64_t full;                              /* how often IVC_E_FULL was the answer */
    uint64_t network_sent_bytes, network_received_bytes;    /* pulls among them */
};
void ivc_peer_stats(const struct ivc_peer *peer, struct ivc_peer_stats *ret_stats);
/* Whoever pulls counts it, and so does who was told that it was done: all that it had exposed, since it
 * does not know how much of that was wanted.  Under the lock of the caller's calls. */
void ivc_peer_count_pulled(struct ivc_peer *peer, size_t len);
void ivc_peer_count_exposed(struct ivc_peer *peer, size_t len);

/* Where this endpoint's memory is, for people: "file /dev/shm/x, 64 MiB, uuid ...". */
const char *ivc_endpoint_describe(const struct ivc_endpoint *endpoint);

/* For tools and tests, and between ivc_endpoint_enter() and ivc_endpoint_leave(); NULL: there is none. */
struct ivc_region *ivc_endpoint_region(struct ivc_endpoint *endpoint);
const struct ivc_member *ivc_peer_member(const struct ivc_peer *peer);

/* A warning about a slow mapping etc., "" when there is none: programs print it once. */
const char *ivc_endpoint_warning(const struct ivc_endpoint *endpoint);

#endif
