/*
 * Network: packets to processes of other hosts, through a reliable-datagram endpoint of another
 * libfabric provider (`tcp`, or the one that IVC_NETWORK names).
 *
 * Who is to be reached is asked first: its *contact* is a TCP socket on all of its interfaces, and a
 * thread answers there, whatever the program does.  The one of the peer's addresses that leads to it,
 * proved by its answer, is the one that packets go to; the provider is bound to ours on that way
 * (contact.c).
 *
 * A packet is delivered once and in the order of sending to each route; there is no matching here
 * and no reassembly.  A route is one destination.  Where the provider has RMA, memory can be
 * exposed to a route and pulled from its other end without a copy of ours.
 *
 * libfabric is not linked: it is found at run time in the process (the one that loaded us, when we
 * are inside a provider), or opened; so everything else works without it.
 *
 * Threads: with `threads`, sends and pulls may be called by several threads at once and beside
 * ivc_network_progress(), which is called by one at a time.  Handlers run inside
 * ivc_network_progress(); they may send and pull, not free or progress.
 */
#ifndef IVC_NETWORK_NETWORK_H
#define IVC_NETWORK_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ivc_network;
struct ivc_route;

/* Where a network can be reached: travels inside struct ivc_address. */
enum { IVC_NETWORK_NAME_MAX = 32 };
struct ivc_network_name {
    uint32_t provider;      /* hash of the name that was asked for; 0: no network */
    uint16_t port;          /* of its contact */
    uint8_t n_ip4, n_ip6;   /* addresses, the best first */
    uint8_t bytes[IVC_NETWORK_NAME_MAX];    /* 4 for each of IPv4, then 16 for each of IPv6 */
};
_Static_assert(sizeof(struct ivc_network_name) == 40, "part of an address");
/* Whether it can be one: it came from elsewhere. */
static inline bool ivc_network_name_is_valid(const struct ivc_network_name *name)
{
    return 4 * name->n_ip4 + 16 * name->n_ip6 <= IVC_NETWORK_NAME_MAX;
}

/* A packet; `data` is private memory, aligned to 16, gone when the handler returns. */
typedef void ivc_network_packet_fn(void *arg, const void *data, size_t len);
/* Nothing more will be sent to or pulled from this route: every pull that was under way has been
 * called back.  `reason` is one line.  Called once, from progress. */
typedef void ivc_network_down_fn(void *arg, struct ivc_route *route, const char *reason);
/* The bytes are in place: 0; or IVC_E_GONE.  Called once whatever ends the pull: from progress, or when
 * the network is closed (IVC_E_GONE). */
typedef void ivc_network_pulled_fn(void *arg, int status);

struct ivc_network_options {
    const char *provider;       /* NULL: IVC_NETWORK, else "tcp" */
    uint64_t id;                /* who we are: whoever asks for us names it */
    bool later;                 /* the default provider is loaded when it is needed */
    size_t packet_max;          /* largest packet that will be sent or can arrive */
    bool threads;
    ivc_network_packet_fn *on_packet;
    ivc_network_down_fn *on_down;
    void *arg;                  /* first argument of both */
};

/*
 * Tells where libfabric is: any address inside the libfabric that called us.  A provider calls this
 * before anything else (from fi_prov_ini, with its return address).  Others need not.
 */
void ivc_network_set_libfabric(const void *address_inside);

/*
 * Opens the contact, and loads the provider, unless that may be done later and none was named.  -ENODEV: none
 * can be used; the text names those that were found and why each was refused.  -EINVAL: IVC_NETWORK names us (`ivc`).
 */
int ivc_network_open(const struct ivc_network_options *options, struct ivc_network **ret_network);
/* The provider is loaded, and can be used: 0; IVC_E_FULL: ask again, it is being loaded; -ENODEV, with a text: it
 * cannot. */
int ivc_network_prepare(struct ivc_network *network);
/* Waits for what was sent to leave this process (at most `linger_ms`), then frees all, routes
 * included.  Accepts NULL. */
void ivc_network_free(struct ivc_network *network, uint64_t linger_ms);

void ivc_network_name(const struct ivc_network *network, struct ivc_network_name *ret_name);
/* "tcp;ofi_rxm, 10.0.0.1:5", or that it is not bound yet. */
const char *ivc_network_describe(const struct ivc_network *network);

/* A route to the network of that id and name.  Its contact is asked when the route is first used: nothing can
 * be sent (IVC_E_FULL) until that has answered; where nobody does, or not who is meant, the route goes down.
 * IVC_E_UNREACHABLE: the name is of another provider (or 0), with a text.  `arg` is the caller's. */
int ivc_network_connect(struct ivc_network *network, uint64_t id, const struct ivc_network_name *name,
                        void *arg, struct ivc_route **ret_route);
void *ivc_route_arg(const struct ivc_route *route);
/* Its contact is asked now, unless it was; both sides have their provider open when that has answered. */
void ivc_route_seek(struct ivc_network *network, struct ivc_route *route);
/* Whether contacts have yet to answer. */
bool ivc_network_is_seeking(const struct ivc_network *network);
/* Somebody waits for what comes from there: its end is noticed even if nothing is ever sent. */
void ivc_route_watch(struct ivc_network *network, struct ivc_route *route);
/* A packet came from there: it need not be asked whether it lives. */
void ivc_route_heard(struct ivc_route *route);
/* Gives the route back: on_down will not be called.  Packets that were sent still leave if they
 * can; pulls are called back with IVC_E_GONE, from progress, and must not be forgotten before. */
void ivc_route_free(struct ivc_network *network, struct ivc_route *route);

/* Sends up to packet_max bytes gathered from `iov`; they are copied (or gone) when it returns.
 * IVC_E_FULL: no room, or the route is about to go down: call progress; IVC_E_GONE: it is down. */
int ivc_network_send(struct ivc_network *network, struct ivc_route *route, const struct iovec *iov,
                     unsigned n_iov);

/* Memory of packet_max bytes that is sent without a copy of ours, on any route; `route` is the one that it is
 * wanted for.  Taken over on success. */
struct ivc_network_buffer;
int ivc_network_buffer_get(struct ivc_network *network, struct ivc_route *route,
                           struct ivc_network_buffer **ret_buffer, void **ret_data);
int ivc_network_send_buffer(struct ivc_network *network, struct ivc_route *route,
                            struct ivc_network_buffer *buffer, size_t len);
void ivc_network_buffer_free(struct ivc_network *network, struct ivc_network_buffer *buffer);

/* Whether the provider reads remote memory (FI_RMA); not before a contact was made. */
bool ivc_network_can_pull(const struct ivc_network *network);

/* Memory that the other end of a route may read, from now until it is taken back. */
struct ivc_network_exposure {
    uint64_t where;     /* address or offset to be told to the other end ... */
    uint64_t key;       /* ... with the key */
    void *registration; /* ours */
};
int ivc_network_expose(struct ivc_network *network, const void *memory, size_t len,
                       struct ivc_network_exposure *ret_exposure);
void ivc_network_unexpose(struct ivc_network *network, struct ivc_network_exposure *exposure);

/* Reads remote memory into `iov`.  IVC_E_FULL, IVC_E_GONE as for sends; then `fn` is not called. */
int ivc_network_pull(struct ivc_network *network, struct ivc_route *route, uint64_t where,
                     uint64_t key, const struct iovec *iov, unsigned n_iov,
                     ivc_network_pulled_fn *fn, void *arg);

/* Delivers what has come; the number of packets and pulls that ended. */
int ivc_network_progress(struct ivc_network *network);

/* Sleeping.  A descriptor that becomes readable when there is something for progress to do, after
 * ivc_network_try_wait() has answered 0 (IVC_E_FULL: do not sleep, call progress).  -1: the
 * provider has none, look now and then. */
int ivc_network_fd(const struct ivc_network *network);
int ivc_network_try_wait(struct ivc_network *network);

#endif
