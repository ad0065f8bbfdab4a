/*
 * Reaching memory without its owner: registrations that lie in the region are read and written by
 * their initiators themselves.
 *
 * Only the owner of a key knows what it stands for, and keys are used again.  So the owner keeps
 * entries in the region, which others read and only it writes: what lies under the key, and a stamp
 * that is never the same for two registrations.  The first operation on a key is a request that
 * asks; the owner's answer names the entry and its stamp.  From then on the initiator looks at the
 * stamp before each access: as long as it is the one that it knows, so is everything else.
 *
 * What remains the application's duty, as with every RMA: it must not close a registration while
 * operations on it may be under way (fi_close(3)).  An access that has looked at the stamp before
 * fi_close() changes it may write after that.
 *
 * Invariants.  A direct access never overtakes an operation of ours that is still under way to the
 * same peer.  Whatever a table says is checked against the window before a pointer is made of it.
 */
#include "rma.h"

#include "region/region.h"

#include <sys/random.h>

/* What others read; written by the owner.  A line each. */
struct entry {
    ivc_atomic_u64 stamp;           /* even: nothing here */
    ivc_atomic_u64 key, base, len, handle, access;
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct entry) == 64, "one cache line");

enum {
    TABLE_SIZE = 4096,
    ENTRIES = TABLE_SIZE / sizeof(struct entry),
    TABLES_MAX = 64,                /* 4096 registrations that can be reached; others by request */
    ASK_EVERY = 64,                 /* requests of a stream for a key that we know nothing about */
};

/* ---------------------------------------------------------------- the owner's side */

struct table {
    struct ivc_share share;
    uint64_t used;                  /* a bit per entry */
};
_Static_assert(ENTRIES == 64, "a bit per entry");

struct ivc_fi_reach {
    uint32_t residence;             /* the tables lie in the region of this one */
    struct table tables[TABLES_MAX];
    unsigned n_tables;
};

/* That a registration is known through one endpoint; or that it was looked for and is not there. */
struct ivc_fi_reach_told {
    struct ivc_fi_reach_told *next;
    struct ivc_fi_ep *ep;
    struct table *table;            /* NULL: the memory lies elsewhere */
    unsigned index;
    uint32_t residence;             /* of our endpoint: in another one nothing of it is true */
};

struct reach_header {
    struct ivc_fi_header base;      /* tag: key; data: stamp */
    uint64_t table;                 /* handle */
    uint32_t table_size, index;
};

static struct entry *entry_of(const struct ivc_fi_reach_told *told)
{
    return (struct entry *)told->table->share.memory + told->index;
}

static int table_add(struct ivc_fi_ep *ep, struct ivc_fi_reach *reach)
{
    struct table *table = &reach->tables[reach->n_tables];
    struct ivc_region *region = ivc_endpoint_region(ep->endpoint);
    struct entry *entries;
    uint64_t stamp = 0;

    if (reach->n_tables == TABLES_MAX
        || ivc_region_share(region, IVC_SLOT_ANY, TABLE_SIZE, &table->share) != 0)
        return -FI_ENOSPC;
    /* Stamps start anywhere: memory that another process had before never holds ours by chance. */
    if (getrandom(&stamp, sizeof stamp, 0) != sizeof stamp)
        stamp = ivc_now_ns() << 20;
    entries = table->share.memory;
    for (unsigned i = 0; i < ENTRIES; i++)
        ivc_store_relaxed(&entries[i].stamp, (stamp + ((uint64_t)i << 32)) & ~(uint64_t)1);
    table->used = 0;
    reach->n_tables++;
    return 0;
}

/* A free entry; -FI_E... when there is no memory for one. */
static int entry_take(struct ivc_fi_ep *ep, struct ivc_fi_reach_told *told)
{
    struct ivc_fi_reach *reach = ep->reach;
    unsigned i = 0;
    int r = 0;

    if (!reach)
        reach = ep->reach = calloc(1, sizeof *reach);
    if (!reach)
        return -FI_ENOMEM;
    if (reach->residence != told->residence)
        *reach = (struct ivc_fi_reach){ .residence = told->residence };
    while (i < reach->n_tables && ~reach->tables[i].used == 0)
        i++;
    if (i == reach->n_tables)
        r = table_add(ep, reach);
    if (r < 0)
        return r;
    told->table = &reach->tables[i];
    told->index = (unsigned)__builtin_ctzll(~told->table->used);
    told->table->used |= (uint64_t)1 << told->index;
    return 0;
}

static void publish(const struct ivc_fi_reach_told *told, const struct ivc_fi_mr *mr,
                    uint64_t handle)
{
    struct entry *entry = entry_of(told);

    /* Release: pairs with the second look in learn(); whoever still reads for the stamp of before,
     * and finds a field of ours, finds that stamp gone. */
    atomic_thread_fence(memory_order_release);
    ivc_store_relaxed(&entry->key, mr->fid.key);
    ivc_store_relaxed(&entry->base, mr->base);
    ivc_store_relaxed(&entry->len, mr->len);
    ivc_store_relaxed(&entry->handle, handle);
    ivc_store_relaxed(&entry->access, mr->access & (FI_REMOTE_READ | FI_REMOTE_WRITE));
    /* Release: pairs with the acquires in learn(); the fields are visible. */
    ivc_store_release(&entry->stamp, ivc_load_relaxed(&entry->stamp) + 1);
}

/* The region is the one that the entry lies in. */
static void withdraw_here(const struct ivc_fi_reach_told *told)
{
    struct entry *entry = entry_of(told);

    /*
     * Release: pairs with the acquire in ivc_fi_reach_find_known().  Whoever is told by the
     * application that the registration is gone has that from us, after this store, and so does not
     * find the old stamp any more.
     */
    ivc_store_release(&entry->stamp, ivc_load_relaxed(&entry->stamp) + 1);
    told->table->used &= ~((uint64_t)1 << told->index);
}

static void withdraw(const struct ivc_fi_reach_told *told)
{
    struct ivc_endpoint *endpoint = told->ep->endpoint;

    if (!told->table)
        return;
    ivc_endpoint_enter(endpoint);
    if (told->residence == ivc_endpoint_residence(endpoint))
        withdraw_here(told);
    ivc_endpoint_leave(endpoint);
}

void ivc_fi_reach_withdraw(struct ivc_fi_mr *mr)
{
    struct ivc_fi_reach_told *told;

    while ((told = mr->told)) {
        mr->told = told->next;
        withdraw(told);
        free(told);
    }
}

/* What is done directly is not counted at the target: where somebody counts, all is by request. */
static bool is_counted(const struct ivc_fi_ep *ep, const struct ivc_fi_mr *mr)
{
    return mr->cntr || ep->cntrs[IVC_FI_COUNT_REMOTE_READ]
           || ep->cntrs[IVC_FI_COUNT_REMOTE_WRITE];
}

static struct ivc_fi_reach_told *told_through(struct ivc_fi_ep *ep, struct ivc_fi_mr *mr)
{
    struct ivc_fi_reach_told *told = mr->told;

    while (told && told->ep != ep)
        told = told->next;
    if (told)
        return told;
    told = calloc(1, sizeof *told);
    if (!told)
        return NULL;
    told->ep = ep;
    told->residence = ivc_endpoint_residence(ep->endpoint) - 1;     /* of none that there is */
    told->next = mr->told;
    mr->told = told;
    return told;
}

/* What is known of the registration in the region that we are in now. */
static struct ivc_fi_reach_told *find_told(struct ivc_fi_ep *ep, struct ivc_fi_mr *mr)
{
    struct ivc_fi_reach_told *told = told_through(ep, mr);
    uint64_t handle;

    if (!told || told->residence == ivc_endpoint_residence(ep->endpoint))
        return told;
    told->residence = ivc_endpoint_residence(ep->endpoint);
    told->table = NULL;
    if (mr->n_iov == 1
        && ivc_endpoint_locate(ep->endpoint, mr->iov[0].iov_base, mr->len, &handle) == 0
        && entry_take(ep, told) == 0)
        publish(told, mr, handle);
    return told;
}

void ivc_fi_reach_tell(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_fi_mr *mr)
{
    struct ivc_fi_reach_told *told;
    struct reach_header header;

    if (mr->closed || is_counted(ep, mr) || ivc_peer_path(peer->peer) != IVC_PATH_MEMORY)
        return;
    told = find_told(ep, mr);
    if (!told || !told->table)
        return;
    header = (struct reach_header){
        .base = {
            .len = sizeof header,
            .kind = IVC_FI_KIND_REACH,
            .tag = mr->fid.key,
            .data = ivc_load_relaxed(&entry_of(told)->stamp),
        },
        .table = told->table->share.handle,
        .table_size = TABLE_SIZE,
        .index = told->index,
    };
    ivc_fi_answer(ep, peer, &header.base, NULL, 0);
}

/* What was told through this endpoint is no longer true: entries, and bindings to it. */
static void forget_endpoint(struct ivc_fi_ep *ep, struct ivc_fi_mr *mr)
{
    struct ivc_fi_reach_told **link = &mr->told, *told;

    while ((told = *link)) {
        if (told->ep != ep) {
            link = &told->next;
            continue;
        }
        *link = told->next;
        withdraw(told);
        free(told);
    }
    if (mr->ep == ep) {
        mr->ep = NULL;
        mr->enabled = false;
    }
}

/* The tables' memory stays until the member is gone: then nobody looks at a stamp any more. */
void ivc_fi_reach_free(struct ivc_fi_ep *ep)
{
    struct ivc_fi_domain *domain = ep->domain;

    for (uint32_t i = 0; i < domain->mrs_size; i++)
        if (domain->mrs[i])
            forget_endpoint(ep, domain->mrs[i]);
    for (struct ivc_fi_peer *peer = ep->peers; peer; peer = peer->next)
        ivc_fi_reach_peer_gone(ep, peer);
    free(ep->reach);
    ep->reach = NULL;
}

/* ---------------------------------------------------------------- the initiator's side */

/* Of the region that we are in now. */
static void renew(struct ivc_fi_ep *ep, struct ivc_fi_reach_peer *reach)
{
    *reach = (struct ivc_fi_reach_peer){
        .region = ivc_endpoint_region(ep->endpoint),
        .residence = ivc_endpoint_residence(ep->endpoint),
    };
}

void *ivc_fi_reach_find_known(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint64_t key,
                              uint64_t addr, uint64_t len, uint64_t access)
{
    struct ivc_fi_reach_key *known = ivc_fi_reach_slot(peer->reach, key);
    uint64_t offset = addr - known->base;

    if (known->key != key || known->stamp == 0 || (known->access & access) != access
        || addr < known->base || len > known->len || offset > known->len - len)
        return NULL;
    if (peer->reach->residence != ivc_endpoint_residence(ep->endpoint)
        || ivc_peer_path(peer->peer) != IVC_PATH_MEMORY) {
        renew(ep, peer->reach);     /* it moved, or we did, or one of us is about to */
        return NULL;
    }
    /* Somebody died or left: his memory may be another's soon.  Progress finds out who it was. */
    if (ivc_region_alarm(peer->reach->region))
        return NULL;
    /* Acquire: pairs with the release in withdraw_here(); what we do next is done after the look. */
    if (ivc_load_acquire(known->word) != known->stamp) {
        known->stamp = 0;
        known->asked = 0;
        return NULL;
    }
    return known->memory + offset;
}

static struct ivc_fi_reach_peer *peer_reach(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer)
{
    if (!peer->reach)
        peer->reach = calloc(1, sizeof *peer->reach);
    if (peer->reach && (!peer->reach->region
                        || peer->reach->residence != ivc_endpoint_residence(ep->endpoint)))
        renew(ep, peer->reach);
    return peer->reach;
}

uint16_t ivc_fi_reach_ask(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, uint64_t key)
{
    struct ivc_fi_reach_peer *reach;
    struct ivc_fi_reach_key *known;

    if (ivc_peer_path(peer->peer) != IVC_PATH_MEMORY || !(reach = peer_reach(ep, peer)))
        return 0;
    known = ivc_fi_reach_slot(reach, key);
    if (known->key != key)
        *known = (struct ivc_fi_reach_key){ .key = key };
    if (known->stamp != 0)
        return 0;
    /* The operation that asks is under way already; in a stream one question in many is enough. */
    return known->asked++ % ASK_EVERY == 0 || peer->n_ops <= 1 ? IVC_FI_WANT_REACH : 0;
}

/* Copies the entry if it is still the one with that stamp, and checks it against the window. */
static int learn(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, const struct reach_header *header,
                 struct ivc_fi_reach_key *ret_known)
{
    struct ivc_fi_reach_key known = { .key = header->base.tag, .stamp = header->base.data };
    struct entry *entry;
    uint64_t handle, key;
    void *memory;

    if (header->index >= header->table_size / sizeof *entry || header->table % sizeof *entry != 0
        || ivc_endpoint_reach(ep->endpoint, peer->peer, header->table, header->table_size,
                              &memory) != 0)
        return -FI_EINVAL;
    entry = (struct entry *)memory + header->index;
    /* Acquire, twice: pairs with the release in publish(); the fields are those of this stamp. */
    if (ivc_load_acquire(&entry->stamp) != known.stamp)
        return -FI_EKEYREJECTED;
    key = ivc_load_relaxed(&entry->key);
    known.base = ivc_load_relaxed(&entry->base);
    known.len = ivc_load_relaxed(&entry->len);
    known.access = ivc_load_relaxed(&entry->access);
    handle = ivc_load_relaxed(&entry->handle);
    atomic_thread_fence(memory_order_acquire);
    if (ivc_load_relaxed(&entry->stamp) != known.stamp || known.stamp % 2 == 0 || key != known.key)
        return -FI_EKEYREJECTED;
    if (ivc_endpoint_reach(ep->endpoint, peer->peer, handle, known.len, &memory) != 0)
        return -FI_EINVAL;
    known.memory = memory;
    known.word = &entry->stamp;
    *ret_known = known;
    return 0;
}

static void start_reach(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                        const struct ivc_fi_header *base)
{
    struct ivc_fi_reach_peer *reach = peer->reach;
    struct reach_header header;
    struct ivc_fi_reach_key *known;

    (void)message;
    memcpy(&header, base, sizeof header);
    /* Only what we asked for here, and have not forgotten since. */
    if (!reach || reach->residence != ivc_endpoint_residence(ep->endpoint))
        return;
    known = ivc_fi_reach_slot(reach, header.base.tag);
    if (known->key == header.base.tag && known->asked > 0)
        (void)learn(ep, peer, &header, known);
}

const struct ivc_fi_kind_ops ivc_fi_receive_reach = {
    .header_min = sizeof(struct reach_header), .start = start_reach,
};

void ivc_fi_reach_peer_gone(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer)
{
    (void)ep;
    free(peer->reach);
    peer->reach = NULL;
}
