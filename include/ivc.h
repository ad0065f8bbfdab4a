/*
 * ivc: bytes between virtual machines that share memory.
 *
 * A process registers under a group (`magic_id`, the same for all that belong together) and a name
 * within it (`client_id`).  It can then list the other members that share memory with it, connect
 * to one, and read and write a stream of bytes.  The calls follow the interface of Huang, Koop,
 * Gao and Panda, "Virtual Machine Aware Communication Libraries for High Performance Computing"
 * (SC'07), with time-outs, options, error texts and a version beside it.
 *
 * Returns: 0 or a count on success; a negative errno on failure, and then ivc_last_error() is one
 * line that says what failed, where, and what to try.
 *
 * Threads: different contexts may be used by different threads at the same time; calls on one
 * context and its connections are made by one thread at a time.  Nothing here starts before
 * ivc_register(); it starts two helper threads: one keeps this member's heartbeat, one answers the
 * host when it moves this guest; ivc_descriptor() starts a third.  None ever calls the program.
 *
 * Live migration: ivc_set_move_handlers(), below.
 *
 * Every call has a man page: man 3 ivc_connect.
 */
#ifndef IVC_H
#define IVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IVC_VERSION_MAJOR 0
#define IVC_VERSION_MINOR 1
#define IVC_VERSION_PATCH 0

/* This process as a member of a group.  Made by ivc_register(), freed by ivc_deregister(). */
typedef struct ivc_context ivc_context;

/* One end of a stream of bytes.  Made by ivc_connect() or ivc_accept(), freed by ivc_close(). */
typedef struct ivc_connection ivc_connection;

/* Another member of the group with which memory is shared. */
struct ivc_host {
    uint64_t magic_id;
    uint32_t client_id;
    uint32_t pid;           /* in its own guest */
    char name[64];          /* host name of its guest */
    char vm[40];            /* identity of its kernel's boot, as text */
};

/* What may be chosen at registration.  Zero in a field: the environment, then the default. */
struct ivc_options {
    size_t size;            /* sizeof(struct ivc_options): lets the structure grow */
    const char *region;     /* a path, "uuid:...", "pci:..."; NULL: IVC_REGION, then what is found */
    uint32_t ring_size;     /* bytes of memory for one direction of a pair (IVC_RING_SIZE) */
    uint32_t segment_size;  /* bytes of one slot of that ring (IVC_SEGMENT_SIZE) */
    uint32_t window;        /* bytes of a connection that may be unread (IVC_WINDOW) */
};

/* "0.1.0": of the library that runs, which may be newer than this header. */
const char *ivc_version(void);

/* One line about the last failure in this thread, "" if there was none.  Valid until the next. */
const char *ivc_last_error(void);

/* A short text for a returned code, as strerror(3) for -code. */
const char *ivc_strerror(int code);

/* Joins the group on the shared memory that is found (or that IVC_REGION names).
 * -ENODEV nothing found; -EEXIST the name is taken by a living member; others: ivc_last_error().  Waits, for
 * the region's lease (10 s) at most, where the name is that of a process which may have been killed. */
int ivc_register(uint64_t magic_id, uint32_t client_id, ivc_context **ret_context);
int ivc_register_with(uint64_t magic_id, uint32_t client_id, const struct ivc_options *options,
                      ivc_context **ret_context);

/* Closes every connection, waits up to a second for peers to take what was written, leaves. */
void ivc_deregister(ivc_context *context);

/* Writes up to `n` living members of the group, ourselves left out, and returns how many there
 * are (perhaps more than n).  All that had registered before the call are there, with Xen as well, where it
 * takes some tens of milliseconds: whoever waits for one calls ivc_wait_host(). */
int ivc_get_hosts(ivc_context *context, struct ivc_host *ret_hosts, size_t n);

/* Starts a connection to the member `client_id`; returns at once.  ivc_write() answers 0 until the
 * peer's library has heard of it; bytes are delivered when the peer accepts.  -ENOENT: no such
 * member (yet); -EAGAIN: it is about to move to another host, or has just. */
int ivc_connect(ivc_context *context, uint32_t client_id, ivc_connection **ret_connection);

/* Takes the next connection that a peer has started.  -EAGAIN when there is none. */
int ivc_accept(ivc_context *context, ivc_connection **ret_connection);

/* Non-blocking; partial counts are normal.  Return the number of bytes, 0 when nothing is there
 * or nothing fits; -EPIPE: closed by the peer and all bytes read (read) or lost (write);
 * -ECONNRESET: the peer died; -ESHUTDOWN: one of the two guests moves, and all bytes are read. */
ptrdiff_t ivc_read(ivc_connection *connection, void *buffer, size_t len);
ptrdiff_t ivc_write(ivc_connection *connection, const void *buffer, size_t len);

/* How many bytes ivc_read() would give now, and how many ivc_write() would take now; at least so many: more
 * may be there in shared memory than the call has looked at, and more may fit.  0 when there are none, and
 * from the moment at which one of the two guests is asked to move (bytes that ivc_read() still gives are
 * pending); what ivc_read() and ivc_write() answer when the connection has ended otherwise.  They make no
 * system call, unless the peer is to be answered. */
ptrdiff_t ivc_pending(ivc_connection *connection);
ptrdiff_t ivc_room(ivc_connection *connection);

/* Closes our end.  Bytes already written are still delivered.  Accepts NULL. */
void ivc_close(ivc_connection *connection);

/* Blocking variants.  `timeout_ms` < 0: no limit.  Return 0 when all was done, -ETIMEDOUT when the
 * time is over; read_all and write_all then tell in `ret_done` (may be NULL) how far they came. */
int ivc_wait_host(ivc_context *context, uint32_t client_id, int timeout_ms);
/* ... until the peer's library has answered; what ivc_connect() answers -EAGAIN to is waited for as well.
 * -EPIPE: it refused; -ECONNRESET: it died; -ESHUTDOWN: one of the two guests moved. */
int ivc_connect_wait(ivc_context *context, uint32_t client_id, int timeout_ms, ivc_connection **ret_connection);
int ivc_accept_wait(ivc_context *context, int timeout_ms, ivc_connection **ret_connection);
int ivc_read_all(ivc_connection *connection, void *buffer, size_t len, int timeout_ms,
                 size_t *ret_done);
int ivc_write_all(ivc_connection *connection, const void *buffer, size_t len, int timeout_ms,
                  size_t *ret_done);

/* Waits until one of the context's connections can be read or accepted, a handler was called (below),
 * or the time is over: 0 or -ETIMEDOUT. */
int ivc_wait(ivc_context *context, int timeout_ms);

/* A descriptor for poll(2), of every mechanism: POLLIN when there may be something to do for the context.
 * From the first call on, each call that finds nothing (ivc_read() 0, ivc_accept() -EAGAIN, ivc_write() less
 * than it was given, a time-out) makes it unreadable, and it becomes readable again, and stays so until the
 * next such call, when a connection can be read or accepted, has ended or is over by a move, when a handler
 * is due, or when ivc_write() can go on where it took less than it was given.  So call until nothing is
 * found, then poll(2).  It may be readable for nothing.  The context's: it is polled, not read or closed;
 * POLLOUT means nothing.  A thread of the library looks on behalf of those who sleep on it. */
int ivc_descriptor(ivc_context *context);

/* Memory of the region, zeroed, at a page's boundary: MPI libraries and other members reach it
 * without this process's help once it is registered (fi_mr_reg(3)).  Every member of the region can
 * read and overwrite it at any time, registered or not.  It stays the context's until ivc_free(),
 * or ivc_deregister(), which unmaps it.  -ENOSPC: no room, perhaps after a second in which memory of
 * ended processes was waited for; -EINVAL: 0 bytes; -ENODEV: this guest is between two hosts. */
int ivc_alloc(ivc_context *context, size_t size, void **ret_memory);

/* Gives it back, and others may have it at once: registrations of it are closed before, and what
 * peers had under way there has ended.  Accepts NULL.  -EINVAL: not from this context. */
int ivc_free(ivc_context *context, void *memory);

/* Who is at the other end. */
int ivc_get_peer_host(ivc_connection *connection, struct ivc_host *ret_host);

/*
 * Live migration.  When the host moves this guest, or that of a peer, the memory between the two is
 * given up.  The library answers the host by itself, within a tenth of a second, whatever the program
 * does; what this means is told later, to the program's own thread, in its next call.
 *
 * A connection is then over: no byte goes through it any more.  What ivc_write() had taken is not
 * lost: each byte was read by the peer, or is handed to it as unread.  The connection goes on taking
 * room until ivc_close().
 *
 * Without handlers: ivc_read() gives what is unread, and then -ESHUTDOWN; ivc_write() gives
 * -ESHUTDOWN; until this guest has arrived at another host ivc_get_hosts() finds nobody and
 * ivc_connect() answers -ENOENT.  From then on both work as ever, with the members that are there.
 * Memory from ivc_alloc() stays where it is, with its content, but others no longer reach it.
 *
 * Handlers are called from inside ivc_read(), ivc_write(), ivc_accept(), ivc_wait() and their
 * variants, one at a time, on the thread that makes the call.  They may call everything here but
 * ivc_deregister(), and ivc_close() the connection that the call is about (which then answers
 * -ESHUTDOWN).  Several moves between two calls are told as one.
 */
struct ivc_move_handlers {
    size_t size;            /* sizeof(struct ivc_move_handlers): lets the structure grow */
    /* The connection is over, and these `len` bytes of the peer's were not read yet: ivc_read() will not
     * give them.  They are the library's, and gone when the handler returns.  To be expected on both
     * sides.  Not called for a connection that was closed, by whomever, or whose peer died. */
    void (*on_suspend)(void *arg, ivc_connection *connection, const void *unread, size_t len);
    /* This guest shares memory with nobody now. */
    void (*on_leave)(void *arg, ivc_context *context);
    /* It does again, perhaps with others than before. */
    void (*on_arrive)(void *arg, ivc_context *context);
};

/* From now on these are called, with `arg`; the structure is copied, and any of its handlers may be NULL.
 * NULL for all: none, as at first.  -EINVAL: `size` is too small. */
int ivc_set_move_handlers(ivc_context *context, const struct ivc_move_handlers *handlers, void *arg);

#ifdef __cplusplus
}
#endif

#endif
