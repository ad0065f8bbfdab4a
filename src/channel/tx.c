/* The sending side of a channel: see channel.h. */
#include "base/copy.h"
#include "base/util.h"
#include "channel/channel.h"

#include <errno.h>

enum { ARENA_MIN = 1024 };

/* Slots get about a third of the ring, a power of two of them; the arena gets the rest. */
static int shape(uint32_t ring_size, uint32_t slot_size, struct ivc_ring_header *ret_header)
{
    uint32_t n_slots = 4;

    while (n_slots * 2 * slot_size <= ring_size / 2
           && sizeof *ret_header + n_slots * 2 * slot_size + ARENA_MIN <= ring_size)
        n_slots *= 2;
    if (sizeof *ret_header + n_slots * slot_size + ARENA_MIN > ring_size)
        return ivc_error_set(-EINVAL, "ring of %u bytes with segments of %u: too small; a ring needs "
                             "at least 4 segments and 1 KiB (IVC_RING_SIZE, IVC_SEGMENT_SIZE)",
                             ring_size, slot_size);
    *ret_header = (struct ivc_ring_header){
        .magic = IVC_RING_MAGIC,
        .slot_size = slot_size,
        .n_slots = n_slots,
        .arena_size = (uint32_t)(ring_size - sizeof *ret_header - n_slots * slot_size)
                      / IVC_LINE * IVC_LINE,
    };
    return 0;
}

/* A slot, or a third of the arena, so that a packet fits whatever is skipped at its end. */
static uint32_t eager_max(uint32_t slot_size, uint32_t arena_size)
{
    return IVC_MAX(slot_size - IVC_SLOT_INLINE_AT, arena_size / 3);
}

int ivc_tx_shape_check(uint32_t ring_size, uint32_t slot_size, uint32_t *ret_eager_max)
{
    struct ivc_ring_header header = { 0 };
    int r = shape(ring_size, slot_size, &header);

    if (r == 0)
        *ret_eager_max = eager_max(slot_size, header.arena_size);
    return r;
}

static void attach(struct ivc_tx *tx, const struct ivc_ring_header *header)
{
    tx->slots = (char *)tx->share.memory + sizeof *header;
    tx->mask = header->n_slots - 1;
    tx->shift = (uint32_t)__builtin_ctz(header->slot_size);
    tx->lap_shift = (uint32_t)__builtin_ctz(header->n_slots);
    tx->second_line = ivc_slot_second_line(header->slot_size);
    tx->inline_max = header->slot_size - IVC_SLOT_INLINE_AT;
    tx->arena = tx->slots + (size_t)header->n_slots * header->slot_size;
    tx->arena_size = header->arena_size;
    tx->eager_max = eager_max(header->slot_size, header->arena_size);
}

/* Tells the peer where the ring is, on the line that is ours for it. */
static void announce_ring(struct ivc_tx *tx)
{
    struct ivc_layout_link *link = ivc_region_own_link(tx->region, tx->slot);

    /* Relaxed: published with the ring. */
    ivc_store_relaxed(&link->ring_size, (uint32_t)tx->share.size);
    /* Release: pairs with the acquire of ring in ivc_rx_open(); the ring's header and its zeroed
     * slots are visible. */
    ivc_store_release(&link->ring, tx->share.handle);
    /* Whatever it watches in our slot is about an earlier owner: it must map this ring first. */
    ivc_doorbell_ring(&tx->bell);
}

int ivc_tx_open(struct ivc_region *region, struct ivc_pool *pool,
                const struct ivc_tx_options *options, struct ivc_tx *ret_tx)
{
    struct ivc_ring_header header = { 0 };
    struct ivc_share share;
    int r = shape(options->ring_size, options->slot_size, &header);

    if (r == 0)
        r = ivc_region_share(region, options->slot, options->ring_size, &share);
    if (r != 0)
        return r;
    return ivc_tx_open_in(region, pool, options, &share, ret_tx);
}

int ivc_tx_open_in(struct ivc_region *region, struct ivc_pool *pool,
                   const struct ivc_tx_options *options, const struct ivc_share *share,
                   struct ivc_tx *ret_tx)
{
    struct ivc_tx tx = {
        .region = region, .pool = pool, .slot = options->slot, .generation = options->generation,
        .share = *share,
    };
    struct ivc_ring_header header = { 0 };
    int r = shape(options->ring_size, options->slot_size, &header);

    if (r < 0)
        return r;
    header.generation = options->generation;
    header.after = options->after;
    memcpy(tx.share.memory, &header, sizeof header);
    attach(&tx, &header);
    tx.records = calloc(header.n_slots, sizeof *tx.records);
    r = tx.records ? ivc_region_doorbell(region, options->slot, &tx.bell)
                   : ivc_error_set(-ENOMEM, "ring: out of memory");
    if (r != 0) {
        ivc_tx_close(&tx);
        return r;
    }
    *ret_tx = tx;
    announce_ring(ret_tx);
    return 0;
}

static void free_read_slots(struct ivc_tx *tx, uint64_t head);

void ivc_tx_close(struct ivc_tx *tx)
{
    if (!tx->share.memory)
        return;
    if (tx->records)
        free_read_slots(tx, tx->tail);
    ivc_region_unshare(tx->region, &tx->share);
    free(tx->records);
    *tx = (struct ivc_tx){ 0 };
}

/* Gives back what the slots before `head` hold. */
static void free_read_slots(struct ivc_tx *tx, uint64_t head)
{
    uint32_t end = (uint32_t)tx->arena_head;

    if (head == tx->head)
        return;
    for (uint64_t at = tx->head; tx->chunks_out > 0 && at < head; at++) {
        struct ivc_tx_slot *record = &tx->records[at & tx->mask];

        if (record->chunk != IVC_CHUNK_NONE) {
            ivc_pool_put(tx->pool, record->chunk);
            tx->chunks_out--;
        }
    }
    end = tx->records[(head - 1) & tx->mask].arena_end;
    tx->arena_head += end - (uint32_t)tx->arena_head;   /* modulo 2^32: an arena is smaller */
    tx->head = head;
}

int ivc_tx_refresh(struct ivc_tx *tx)
{
    const struct ivc_layout_link *link = ivc_region_peer_link(tx->region, tx->slot);
    uint64_t peer_head;

    /* Acquire: pairs with the release in ivc_link_open(): before that, the line is about an
     * earlier owner of our slot. */
    if (!link || ivc_load_acquire(&link->generation) != ivc_region_self(tx->region)->generation)
        return 0;
    /* Acquire: pairs with the release in ivc_rx_publish(); what the receiver read, it has read. */
    peer_head = ivc_load_acquire(&link->head);
    if (peer_head - tx->head > tx->tail - tx->head)
        return ivc_error_set(-EBADMSG, "member %u says it has read packets that were never sent; its "
                             "process is damaged or was replaced", tx->slot);
    free_read_slots(tx, peer_head);
    return 0;
}

void ivc_tx_note_filling(struct ivc_tx *tx, uint64_t cycles, uint32_t len)
{
    const struct ivc_layout_link *link;
    uint32_t reading = 0;

    /* Relaxed: a number, on which nothing rests. */
    if (ivc_fill_asks(&tx->fill) && (link = ivc_region_peer_link(tx->region, tx->slot)))
        reading = ivc_load_relaxed(&link->reading);
    ivc_fill_note(&tx->fill, cycles, len, reading);
}

/* The receiver has not taken enough. */
static int no_room(const struct ivc_tx *tx)
{
    ivc_doorbell_insist(&tx->bell);
    return IVC_E_FULL;
}

/* Room for `n` more slots. */
static int need_slots(struct ivc_tx *tx, uint32_t n)
{
    int r = 0;

    if (tx->tail - tx->head + n <= (uint64_t)tx->mask + 1)
        return 0;
    r = ivc_tx_refresh(tx);
    if (r < 0)
        return r;
    return tx->tail - tx->head + n <= (uint64_t)tx->mask + 1 ? 0 : no_room(tx);
}

/* Splits: the first `head_len` bytes to `head`, the others to `body`. */
static void gather_split(char *head, size_t head_len, char *body, const struct iovec *iov,
                         unsigned n_iov)
{
    for (unsigned i = 0; i < n_iov; i++) {
        size_t n = IVC_MIN(iov[i].iov_len, head_len);

        memcpy(head, iov[i].iov_base, n);
        ivc_copy(IVC_COPY_IN, body, (const char *)iov[i].iov_base + n, iov[i].iov_len - n);
        head += n;
        head_len -= n;
        body += iov[i].iov_len - n;
    }
}

/* Takes `len` neighbouring bytes of the arena; what is left before its end is skipped when it does
 * not suffice. */
static int arena_take(struct ivc_tx *tx, uint32_t len, uint32_t *ret_offset)
{
    uint32_t at = (uint32_t)(tx->arena_tail % tx->arena_size);
    uint32_t skip = at + len > tx->arena_size ? tx->arena_size - at : 0;
    uint32_t need = skip + (uint32_t)ivc_align_up(len, IVC_LINE);
    int r;

    if (tx->arena_tail + need - tx->arena_head > tx->arena_size) {
        r = ivc_tx_refresh(tx);
        if (r < 0)
            return r;
        if (tx->arena_tail + need - tx->arena_head > tx->arena_size)
            return no_room(tx);
    }
    *ret_offset = skip ? 0 : at;
    tx->arena_tail += need;
    return 0;
}

static void write_ref(char *slot, uint32_t share, uint32_t len, uint64_t offset)
{
    struct ivc_slot_ref ref = { .share = share, .len = len, .offset = offset };

    memcpy(slot + IVC_SLOT_REF_AT, &ref, sizeof ref);
}

static int send_through_arena(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov,
                              unsigned n_iov, size_t len)
{
    uint32_t body_len = (uint32_t)len - IVC_SLOT_HEAD_MAX;
    char *slot = ivc_tx_tail_slot(tx);
    uint32_t offset;
    int r;

    if (len > tx->eager_max)
        return ivc_error_set(-EMSGSIZE, "packet of %zu bytes: more than the %u that are sent at once",
                             len, tx->eager_max);
    r = arena_take(tx, body_len, &offset);
    if (r != 0)
        return r;
    write_ref(slot, IVC_SHARE_ARENA, body_len, offset);
    gather_split(slot + IVC_SLOT_HEAD_AT, IVC_SLOT_HEAD_MAX, tx->arena + offset, iov, n_iov);
    ivc_tx_publish(tx, slot, IVC_SLOT_HEAD_MAX, tag, IVC_SLOT_REF, IVC_CHUNK_NONE);
    return 0;
}

int ivc_tx_send_other(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov,
                      size_t len)
{
    int r = need_slots(tx, 1);

    if (r != 0)
        return r;
    return len > tx->inline_max ? send_through_arena(tx, tag, iov, n_iov, len)
        : ivc_tx_send(tx, tag, iov, n_iov, len);
}

/* Tells the receiver of a share of the pool, once per ring. */
static void announce_share(struct ivc_tx *tx, uint32_t share)
{
    const struct ivc_share *memory = &tx->pool->shares[share - 1];
    char *slot = ivc_tx_tail_slot(tx);

    write_ref(slot, share, 0, memory->handle);
    memcpy(slot + IVC_SLOT_HEAD_AT, &memory->size, sizeof memory->size);
    ivc_tx_publish(tx, slot, sizeof memory->size, 0, IVC_SLOT_SHARE, IVC_CHUNK_NONE);
    tx->announced |= 1u << share;
}

int ivc_tx_send_chunk(struct ivc_tx *tx, uint8_t tag, uint32_t chunk, size_t len)
{
    uint32_t head_len = (uint32_t)IVC_MIN(len, (size_t)IVC_SLOT_HEAD_MAX);
    uint32_t share;
    uint64_t offset;
    const char *memory = ivc_pool_memory(tx->pool, chunk, &share, &offset);
    char *slot;
    int r = need_slots(tx, 2);  /* one may go to the share's announcement */

    if (r != 0)
        return r;
    if (!(tx->announced & 1u << share))
        announce_share(tx, share);
    slot = ivc_tx_tail_slot(tx);
    memcpy(slot + IVC_SLOT_HEAD_AT, memory, head_len);
    write_ref(slot, share, (uint32_t)len - head_len, offset + head_len);
    tx->chunks_out++;
    ivc_tx_publish(tx, slot, head_len, tag, IVC_SLOT_REF, chunk);
    return 0;
}

/* Where the bytes lie that a slot of ours refers to; NULL when that cannot be. */
static const char *own_bytes(const struct ivc_tx *tx, const struct ivc_slot_ref *ref)
{
    const struct ivc_share *share;

    if (ref->share == IVC_SHARE_ARENA)
        return ref->offset <= tx->arena_size && ref->len <= tx->arena_size - ref->offset
            ? tx->arena + ref->offset : NULL;
    if (ref->share > tx->pool->n_shares)
        return NULL;
    share = &tx->pool->shares[ref->share - 1];
    return ref->offset <= share->size && ref->len <= share->size - ref->offset
        ? (const char *)share->memory + ref->offset : NULL;
}

/* One slot that was not read.  The ring is ours, and yet others could have written it. */
static int unread_slot(const struct ivc_tx *tx, uint64_t at, ivc_tx_unread_fn *fn, void *arg)
{
    const char *slot = tx->slots + ((at & tx->mask) << tx->shift);
    uint64_t word = ivc_load_relaxed((const ivc_atomic_u64 *)slot);     /* our own store */
    uint32_t kind = (uint32_t)(word >> 56), len = word >> 32 & 0xffff;
    uint32_t from = kind == IVC_SLOT_INLINE ? IVC_SLOT_INLINE_AT : IVC_SLOT_HEAD_AT;
    struct ivc_slot_ref ref;
    struct iovec iov[2] = { { (char *)slot + from, len } };

    if ((uint32_t)word != (uint32_t)(at >> tx->lap_shift) + 1 || len > (1u << tx->shift) - from)
        return -EBADMSG;
    if (kind == IVC_SLOT_INLINE)
        return fn(arg, at, (uint8_t)(word >> 48), iov, 1);
    if (kind == IVC_SLOT_SHARE)
        return 0;
    memcpy(&ref, slot + IVC_SLOT_REF_AT, sizeof ref);
    ivc_copy_is_final();
    iov[1] = (struct iovec){ (char *)own_bytes(tx, &ref), ref.len };
    if (kind != IVC_SLOT_REF || !iov[1].iov_base)
        return -EBADMSG;
    return fn(arg, at, (uint8_t)(word >> 48), iov, 2);
}

int ivc_tx_unread(struct ivc_tx *tx, ivc_tx_unread_fn *fn, void *arg)
{
    int r = ivc_tx_refresh(tx);

    if (r < 0)
        return r;
    for (uint64_t at = tx->head; r == 0 && at != tx->tail; at++)
        r = unread_slot(tx, at, fn, arg);
    if (r == -EBADMSG)
        ivc_error_set(r, "our packets to member %u were overwritten; a process is damaged", tx->slot);
    return r;
}
