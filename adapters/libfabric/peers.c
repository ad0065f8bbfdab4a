/*
 * The peers of an endpoint: everybody at the other end, from the first word to the last.
 *
 * Invariants.  A peer is made once and lives as long as the endpoint, also when the other process
 * is gone: then it answers -FI_ECONNABORTED.  by_addr[] holds what the address vector says now: an
 * entry vanishes when its address is removed.  n_unnamed counts the peers that no entry leads to.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ivc_fi_peer *peer_new(struct ivc_fi_ep *ep, struct ivc_peer *core)
{
    struct ivc_fi_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return NULL;
    peer->peer = core;
    peer->addr = FI_ADDR_NOTAVAIL;
    peer->next = ep->peers;
    ep->peers = peer;
    ep->n_unnamed++;
    ivc_peer_set_arg(core, peer);
    return peer;
}

static int by_addr_grow(struct ivc_fi_ep *ep, fi_addr_t addr)
{
    uint32_t size = ep->by_addr_size ? ep->by_addr_size : 16;
    struct ivc_fi_peer **by_addr;

    while (size <= addr)
        size *= 2;
    by_addr = realloc(ep->by_addr, size * sizeof *by_addr);
    if (!by_addr)
        return -FI_ENOMEM;
    memset(by_addr + ep->by_addr_size, 0, (size - ep->by_addr_size) * sizeof *by_addr);
    ep->by_addr = by_addr;
    ep->by_addr_size = size;
    return 0;
}

/* From here on `addr` leads to the peer, which goes by its first address. */
static int name_peer(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, fi_addr_t addr)
{
    if (addr >= ep->by_addr_size && by_addr_grow(ep, addr) != 0)
        return -FI_ENOMEM;
    ep->by_addr[addr] = peer;
    if (peer->addr == FI_ADDR_NOTAVAIL) {
        peer->addr = addr;
        ep->n_unnamed--;
        if (ep->enabled)
            ivc_fi_recv_peer_named(ep, peer);
    }
    return 0;
}

void ivc_fi_ep_name_peer(struct ivc_fi_ep *ep, uint64_t id, fi_addr_t addr)
{
    for (struct ivc_fi_peer *peer = ep->peers; peer; peer = peer->next) {
        if (peer->addr == FI_ADDR_NOTAVAIL && ivc_peer_id(peer->peer) == id) {
            if (name_peer(ep, peer, addr) != 0)
                IVC_FI_WARN("out of memory: a peer stays without its address for now");
            return;
        }
    }
}

void ivc_fi_ep_forget_addr(struct ivc_fi_ep *ep, fi_addr_t addr, fi_addr_t other)
{
    struct ivc_fi_peer *peer = addr < ep->by_addr_size ? ep->by_addr[addr] : NULL;

    if (!peer)
        return;
    ep->by_addr[addr] = NULL;
    if (peer->addr != addr)
        return;
    peer->addr = FI_ADDR_NOTAVAIL;
    ep->n_unnamed++;
    if (other != FI_ADDR_NOTAVAIL)
        name_peer(ep, peer, other);
}

void ivc_fi_ep_say_unreached(const struct ivc_fi_ep *ep)
{
    char self[IVC_FI_SELF_MAX];

    ivc_fi_describe_self(ep, self, sizeof self);
    ivc_fi_say("%s: %s", self, ivc_error_text());
}

/* MPIs pass on the number alone, and end with it: the first is said. */
static int not_connected(const struct ivc_fi_ep *ep, fi_addr_t addr, int r)
{
    static ivc_atomic_u32 said;

    if (r == IVC_E_UNREACHABLE && ivc_cas(&said, 0, 1))
        ivc_fi_ep_say_unreached(ep);
    else
        IVC_FI_WARN("address %llu: %s", (unsigned long long)addr, ivc_error_text());
    return ivc_fi_error(r);
}

int ivc_fi_ep_connect(struct ivc_fi_ep *ep, fi_addr_t addr, struct ivc_fi_peer **ret_peer)
{
    struct ivc_fi_peer *peer;
    struct ivc_peer *core;
    int r;

    if (!ep->enabled)
        return -FI_EOPBADSTATE;
    if (addr >= ep->av->n_addresses || !ep->av->addresses[addr].len)
        return -FI_EINVAL;
    r = ivc_endpoint_connect(ep->endpoint, &ep->av->addresses[addr], &core);
    if (r != 0)
        return not_connected(ep, addr, r);
    peer = ivc_peer_arg(core);
    if (!peer)
        peer = peer_new(ep, core);
    if (!peer || name_peer(ep, peer, addr) != 0)
        return -FI_ENOMEM;
    *ret_peer = peer;
    return 0;
}

/* ---------------------------------------------------------------- what the core tells */

void ivc_fi_peer_arrived(void *arg, struct ivc_peer *core)
{
    struct ivc_fi_ep *ep = arg;
    struct ivc_fi_peer *peer = peer_new(ep, core);
    fi_addr_t addr;

    if (!peer) {
        IVC_FI_WARN("out of memory: what a new peer sends is dropped");
        return;
    }
    addr = ep->av ? ivc_fi_av_find(ep->av, ivc_peer_id(core)) : FI_ADDR_NOTAVAIL;
    if (addr != FI_ADDR_NOTAVAIL)
        name_peer(ep, peer, addr);
}

/* At once, under whatever locks we are called: our peers see it, and end in their turn. */
static void end_process(void)
{
    ivc_fi_say("process %ld ends with its peer (IVC_ON_PEER_LOSS=abort)", (long)getpid());
    _exit(EXIT_FAILURE);
}

/* The first is said to people: a job ends with it, and others often follow from it. */
static void tell_gone(const struct ivc_peer *core, const char *reason)
{
    static ivc_atomic_u32 said;
    char text[400];

    snprintf(text, sizeof text, "process %u on host %s cannot be reached any more: %s", ivc_peer_client_id(core),
             ivc_peer_host(core), reason);
    if (ivc_cas(&said, 0, 1))
        ivc_fi_say("%s", text);
    else
        IVC_FI_WARN("%s", text);
    if (ivc_path_ends_with_peer())
        end_process();
}

void ivc_fi_peer_gone(void *arg, struct ivc_peer *core, const char *reason)
{
    struct ivc_fi_ep *ep = arg;
    struct ivc_fi_peer *peer = ivc_peer_arg(core);

    if (reason)
        tell_gone(core, reason);
    ivc_mailbox_gone(ep->mailbox, core);
    if (!peer)
        return;
    ivc_fi_send_peer_gone(ep, peer);
    ivc_fi_recv_peer_gone(ep, peer);
    ivc_fi_reach_peer_gone(ep, peer);
}
