/* The sending side of a channel: see channel.h. */
#include "base/copy.h"
#include "base/util.h"
#include "channel/channel.h"

#include <errno.h>

enum {
    AHEAD = 4,          /* slots; with fewer an answered message takes longer */
    SHORT_LAP = 4096,   /* bytes, of a ring whose receiver keeps pace */
    LONG_LAP = 128 << 10,       /* ... and is far away: more than both nearest caches hold */
    FETCH_MAX = 2048,   /* bytes; with twice as many a stream of packets of 4 KiB takes longer */
    FETCH_NOW_MAX = 8192,
    AWAITED_MAX = 2,    /* chunks that one who waits for us has not read yet */
};

/* As many slots as there is room for, and as there may be. */
static int shape(uint32_t ring_size, uint32_t slot_size, struct ivc_ring_header *ret_header)
{
    struct ivc_ring_header header = {
        .magic = IVC_RING_MAGIC,
        .slot_size = slot_size,
        .n_slots = IVC_MIN((ring_size - (uint32_t)sizeof header) / slot_size, (uint32_t)IVC_SLOTS_MAX),
    };

    if (ring_size < sizeof header || header.n_slots < IVC_SLOTS_MIN)
        return ivc_error_set(-EINVAL, "ring of %u bytes with segments of %u: too small; a ring needs "
                             "at least %d segments (IVC_RING_SIZE, IVC_SEGMENT_SIZE)", ring_size, slot_size,
                             IVC_SLOTS_MIN);
    *ret_header = header;
    return 0;
}

/* A third of the ring, so that a packet fits whatever is skipped at its end. */
static uint32_t eager_max(const struct ivc_ring_header *header)
{
    uint64_t max = (uint64_t)IVC_MAX(header->n_slots / 3, 1) * header->slot_size - IVC_SLOT_INLINE_AT;

    return (uint32_t)IVC_MIN(max, (uint64_t)IVC_INLINE_MAX);
}

int ivc_tx_shape_check(uint32_t ring_size, uint32_t slot_size, uint32_t *ret_eager_max)
{
    struct ivc_ring_header header = { 0 };
    int r = shape(ring_size, slot_size, &header);

    if (r == 0)
        *ret_eager_max = eager_max(&header);
    return r;
}

/* Slots after which one whose packets are all read begins anew.  Near each other, both have these few lines in their
 * nearest caches then.  Far from each other that makes it slower where second-level caches are large (an Intel Xeon): a
 * line that was just written is handed on quicker from there than from a first-level one. */
static uint32_t lap(const struct ivc_tx *tx)
{
    uint32_t bytes = ivc_tx_is_far(tx) && !tx->scatters ? LONG_LAP : SHORT_LAP;

    return IVC_MIN(bytes >> tx->shift, tx->n_slots);
}

static uint32_t inline_max(const struct ivc_tx *tx, enum ivc_ring_order order)
{
    return order == IVC_RING_SCATTERED ? IVC_SLOT_FIRST_LINE : (1u << tx->shift) - IVC_SLOT_INLINE_AT;
}

static void attach(struct ivc_tx *tx, const struct ivc_ring_header *header)
{
    tx->slots = (char *)tx->share.memory + sizeof *header;
    tx->stamp = 1;
    tx->n_slots = header->n_slots;
    tx->shift = (uint32_t)__builtin_ctz(header->slot_size);
    tx->second_line = ivc_slot_second_line(header->slot_size);
    tx->ahead = IVC_MIN(AHEAD, header->n_slots / 2);
    tx->inline_max = inline_max(tx, IVC_RING_IN_LINE);
    tx->eager_max = eager_max(header);
    tx->keeps_pace = true;
    tx->look_at = lap(tx);
    tx->limit = header->n_slots;
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
        .share = *share, .untimed = options->untimed, .is_tight = options->is_tight,
    };
    struct ivc_ring_header header = { 0 };
    int r = shape(options->ring_size, options->slot_size, &header);

    if (r < 0)
        return r;
    header.generation = options->generation;
    header.after = options->after;
    memcpy(tx.share.memory, &header, sizeof header);
    attach(&tx, &header);
    ivc_fill_init_short(&tx.fill_short);
    tx.scatters = ivc_ring_scatters(header.n_slots) ? options->scatters : IVC_SCATTERS_NONE;
    tx.is_inner = calloc(header.n_slots, sizeof *tx.is_inner);
    tx.chunks = calloc(header.n_slots, sizeof *tx.chunks);
    r = tx.is_inner && tx.chunks ? ivc_region_doorbell(region, options->slot, &tx.bell)
                                 : ivc_error_set(-ENOMEM, "ring: out of memory");
    if (r != 0) {
        ivc_tx_close(&tx);
        return r;
    }
    *ret_tx = tx;
    announce_ring(ret_tx);
    return 0;
}

/* Those to which slots before `head` refer. */
static void give_back_chunks(struct ivc_tx *tx, uint64_t head)
{
    while (tx->chunks_out > 0 && tx->chunks[tx->first_out].at < head) {
        ivc_pool_put_read(tx->pool, tx->chunks[tx->first_out].chunk, ivc_tx_is_far(tx));
        tx->first_out = ivc_wrap(tx->first_out + 1, tx->n_slots);
        tx->chunks_out--;
    }
}

void ivc_tx_forget(struct ivc_tx *tx)
{
    free(tx->is_inner);
    free(tx->chunks);
}

void ivc_tx_close(struct ivc_tx *tx)
{
    if (!tx->share.memory)
        return;
    give_back_chunks(tx, tx->tail);
    ivc_region_unshare(tx->region, &tx->share);
    ivc_tx_forget(tx);
    *tx = (struct ivc_tx){ 0 };
}

/* How far away the receiver is, by what the line takes on which it tells where it is; which it has written since, or
 * the line is here and tells nothing. */
static void look_how_far(struct ivc_tx *tx, const struct ivc_layout_link *link)
{
    uint64_t start;

    if (tx->untimed)
        return;
    start = ivc_cycles();
    /* Relaxed: only how long it takes matters. */
    if (ivc_load_relaxed(&link->head) == tx->head)
        return;
    ivc_loads_are_over();
    ivc_far_note(&tx->far, ivc_cycles() - start);
}

static void set_limit(struct ivc_tx *tx)
{
    tx->limit = tx->head < tx->order_since ? tx->order_since + tx->order_room : tx->head + tx->n_slots;
}

int ivc_tx_refresh(struct ivc_tx *tx)
{
    const struct ivc_layout_link *link = ivc_region_peer_link(tx->region, tx->slot);
    uint64_t peer_head;

    if (!link)
        return 0;
    look_how_far(tx, link);
    /* Acquire: pairs with the release in ivc_link_open(): before that, the line is about an
     * earlier owner of our slot. */
    if (ivc_load_acquire(&link->generation) != ivc_region_self(tx->region)->generation)
        return 0;
    /* Acquire: pairs with the release in ivc_rx_publish(); what the receiver read, it has read. */
    peer_head = ivc_load_acquire(&link->head);
    if (peer_head - tx->head > tx->tail - tx->head)
        return ivc_error_set(-EBADMSG, "member %u says it has read packets that were never sent; its "
                             "process is damaged or was replaced", tx->slot);
    give_back_chunks(tx, peer_head);
    tx->head = peer_head;
    set_limit(tx);
    return 0;
}

int ivc_tx_need_chunks(struct ivc_tx *tx)
{
    bool streams = ivc_pool_is_in_stream(tx->pool);
    int r = ivc_tx_refresh(tx);

    tx->is_awaited = streams && tx->chunks_out <= AWAITED_MAX;
    return r;
}

void ivc_tx_note_filling(struct ivc_tx *tx, uint64_t cycles, uint32_t len)
{
    struct ivc_fill *fill = ivc_tx_fill(tx, len);
    const struct ivc_layout_link *link;
    uint32_t reading = 0;

    if (!fill || tx->untimed || tx->is_crowded)
        return;     /* in a crowd the times are of others, too */
    /* Relaxed: a number, on which nothing rests.  Nonsense about how far it is, is found again by who needs room. */
    if (ivc_fill_asks(fill) && (link = ivc_region_peer_link(tx->region, tx->slot))) {
        reading = ivc_load_relaxed(&link->reading);
        (void)ivc_tx_refresh(tx);
    }
    ivc_fill_note(fill, cycles, ivc_fill_needs_now(fill) ? ivc_cycles() : 0, len, reading, tx->chunks_out);
}

/* The receiver has not taken enough. */
static int no_room(const struct ivc_tx *tx)
{
    ivc_doorbell_insist(&tx->bell);
    return IVC_E_FULL;
}

/* To the ring's beginning, from where on slots are in that order. */
static void skip(struct ivc_tx *tx, enum ivc_ring_order order)
{
    uint32_t gap = tx->n_slots - tx->at;

    ivc_tx_publish(tx, ivc_tx_tail_slot(tx), gap, (uint8_t)order, IVC_SLOT_SKIP, gap);
    tx->order = order;          /* the first slot has the same place in each */
    tx->inline_max = inline_max(tx, order);
}

/* Slots of a lap of that order in front of the one that lies where the tail does. */
static uint32_t room_in(const struct ivc_tx *tx, enum ivc_ring_order order)
{
    uint32_t place = ivc_slot_place(tx->at, tx->n_slots, tx->order), i = 0;

    while (ivc_slot_place(i, tx->n_slots, order) != place)
        i++;
    return i;
}

/* To the other order, which has room_in().  Everything was read: only the SKIP's place is taken in the new lap. */
static void change_order(struct ivc_tx *tx, enum ivc_ring_order order, uint32_t room)
{
    skip(tx, order);
    tx->order_since = tx->tail;
    tx->order_room = room;
    set_limit(tx);
}

/* Whether the next lap is to be, for such a packet. */
static bool would_scatter(const struct ivc_tx *tx, size_t len)
{
    if (tx->scatters == IVC_SCATTERS_FAR && (len <= IVC_SLOT_FIRST_LINE || !ivc_tx_is_far(tx)))
        return false;
    return len <= ivc_tx_scattered_max(tx);
}

/* One who sends packets that can be scattered has been answered: the next lap is, if everything was read, and as long
 * as it does not make the sender wait soon.  Else after as many packets again. */
static int look_for_order(struct ivc_tx *tx, size_t len)
{
    uint32_t room;
    int r;

    tx->run = 0;
    set_limit(tx);
    if (!would_scatter(tx, len))
        return 0;
    r = ivc_tx_refresh(tx);
    if (r < 0)
        return r;
    if (!ivc_tx_idle(tx) || tx->at == 0)
        return 0;
    room = room_in(tx, IVC_RING_SCATTERED);
    if (room >= tx->n_slots / 4)
        change_order(tx, IVC_RING_SCATTERED, room);
    return 0;
}

bool ivc_tx_lines_up(struct ivc_tx *tx)
{
    if (tx->order == IVC_RING_IN_LINE)
        return true;
    /* What cannot be, is found again by who needs room. */
    if (ivc_tx_refresh(tx) != 0 || !ivc_tx_idle(tx))
        return false;
    change_order(tx, IVC_RING_IN_LINE, room_in(tx, IVC_RING_IN_LINE));
    return true;
}

/* Room for `n` more slots. */
static int need_slots(struct ivc_tx *tx, uint32_t n)
{
    int r = 0;

    if (tx->tail + n <= tx->limit)
        return 0;
    r = ivc_tx_refresh(tx);
    if (r < 0)
        return r;
    return tx->tail + n <= tx->limit ? 0 : no_room(tx);
}

/* ... one behind the other: from the ring's beginning on, if they do not fit before its end. */
static int need_row(struct ivc_tx *tx, uint32_t n)
{
    uint32_t left = tx->n_slots - tx->at, gap = n > left ? left : 0;
    int r = need_slots(tx, gap + n);

    if (r == 0 && gap > 0)
        skip(tx, tx->order);
    return r;
}

/* Once in each lap, before a packet of `n` slots: when the receiver keeps pace, a few slots suffice.  Not for what one
 * slot holds: of these a whole lap is near enough. */
static int look_for_lap(struct ivc_tx *tx, uint32_t n)
{
    uint32_t slots;
    int r;

    r = ivc_tx_refresh(tx);
    if (r < 0)
        return r;
    slots = lap(tx);
    tx->keeps_pace = ivc_tx_idle(tx);
    if (tx->keeps_pace && tx->at >= IVC_MAX(slots, n))      /* what is skipped is not free yet */
        skip(tx, tx->order);
    tx->look_at = tx->tail - tx->at + slots + (tx->at < slots ? 0 : tx->n_slots);
    return 0;
}

static void write_ref(char *slot, uint32_t share, uint32_t len, uint64_t offset)
{
    struct ivc_slot_ref ref = { .share = share, .len = len, .offset = offset };

    memcpy(slot + IVC_SLOT_REF_AT, &ref, sizeof ref);
}

/* Splits: the first line's bytes, and the others, which then begin a line: a long copy to a place within one
 * is slower by a third.  The first line comes last: the receiver looks at it all the time, and takes it away again
 * from whoever stores into it before the end. */
static void gather_split(char *slot, const struct iovec *iov, unsigned n_iov)
{
    char *head = slot + IVC_SLOT_INLINE_AT, *body = slot + IVC_LINE;
    size_t left = IVC_SLOT_FIRST_LINE;

    for (unsigned i = 0; i < n_iov; i++) {
        size_t n = IVC_MIN(iov[i].iov_len, left);

        ivc_copy(IVC_COPY_IN, body, (const char *)iov[i].iov_base + n, iov[i].iov_len - n);
        body += iov[i].iov_len - n;
        left -= n;
    }
    left = IVC_SLOT_FIRST_LINE;
    for (unsigned i = 0; i < n_iov; i++) {
        size_t n = IVC_MIN(iov[i].iov_len, left);

        memcpy(head, iov[i].iov_base, n);
        head += n;
        left -= n;
    }
}

/* From the receiver's cache, as many as there are in the ring. */
static void fetch_lines(const struct ivc_tx *tx, char *line, uint32_t bytes)
{
    ivc_fetch_lines_to_write(line, IVC_MIN(line + bytes, tx->slots + ((size_t)tx->n_slots << tx->shift)));
}

/* In several slots. */
static int send_long(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov, size_t len)
{
    uint32_t n = ivc_slots_for((uint32_t)len, tx->shift, IVC_RING_IN_LINE);
    char *slot;
    uint32_t bytes = n << tx->shift;
    int r = ivc_tx_lines_up(tx) ? 0 : no_room(tx);

    if (r == 0 && tx->tail >= tx->look_at)
        r = look_for_lap(tx, n);
    if (r == 0)
        r = need_row(tx, n);
    if (r != 0)
        return r;
    slot = ivc_tx_tail_slot(tx);
    /* The lines all at once: the stores, which are in order, wait for them one after the other.  Not the first, which
     * the receiver looks at all the time and would take away again. */
    if (tx->keeps_pace && !ivc_tx_leaves_lines(tx, n))
        fetch_lines(tx, slot + IVC_LINE, IVC_MIN(bytes, (uint32_t)FETCH_NOW_MAX) - IVC_LINE);
    gather_split(slot, iov, n_iov);
    for (uint32_t i = 1; i < n; i++)
        tx->is_inner[tx->at + i] = true;
    ivc_tx_publish(tx, slot, (uint32_t)len, tag, IVC_SLOT_INLINE, n);
    if (ivc_tx_fetches_ahead(tx, len))
        ivc_pool_has_sent(tx->pool, false, (uint32_t)len, false);
    /* The lines of the next packet, should it be as long: in a stream they are ours by the time that they are filled.
     * Not of one whose receiver keeps pace: it still reads there, or is about to, and takes them away again. */
    if (!tx->keeps_pace)
        fetch_lines(tx, ivc_tx_tail_slot(tx), IVC_MIN(bytes, (uint32_t)FETCH_MAX));
    return 0;
}

/* What is left of a packet's pieces: from `at` in the first one on. */
struct pieces {
    const struct iovec *iov;
    size_t at;
};

static void skip_bytes(struct pieces *pieces, size_t n)
{
    for (; n > pieces->iov->iov_len; pieces->iov++)
        n -= pieces->iov->iov_len;
    pieces->at = n;
}

static void take_bytes(struct pieces *pieces, char *to, size_t n)
{
    size_t part;

    for (; n > pieces->iov->iov_len - pieces->at; n -= part, to += part) {
        part = pieces->iov->iov_len - pieces->at;
        if (part > 0)
            memcpy(to, (const char *)pieces->iov->iov_base + pieces->at, part);
        pieces->iov++;
        pieces->at = 0;
    }
    if (n == IVC_SLOT_FIRST_LINE)
        memcpy(to, (const char *)pieces->iov->iov_base + pieces->at, IVC_SLOT_FIRST_LINE);  /* a few moves */
    else
        memcpy(to, (const char *)pieces->iov->iov_base + pieces->at, n);
    pieces->at += n;
}

/* In several slots, which are scattered.  The first one last: see gather_split(). */
static int send_scattered(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, size_t len)
{
    uint32_t n = ivc_slots_for((uint32_t)len, tx->shift, IVC_RING_SCATTERED);
    struct pieces pieces = { iov, 0 };
    size_t left = len - IVC_SLOT_FIRST_LINE;
    int r = need_row(tx, n);

    if (r != 0)
        return r;
    skip_bytes(&pieces, IVC_SLOT_FIRST_LINE);
    for (uint32_t i = 1; i < n; i++) {
        size_t part = IVC_MIN(left, (size_t)IVC_SLOT_FIRST_LINE);

        take_bytes(&pieces, ivc_tx_inner(tx, i), part);
        left -= part;
    }
    take_bytes(&(struct pieces){ iov, 0 }, ivc_tx_tail_slot(tx) + IVC_SLOT_INLINE_AT, IVC_SLOT_FIRST_LINE);
    ivc_tx_publish(tx, ivc_tx_tail_slot(tx), (uint32_t)len, tag, IVC_SLOT_INLINE, n);
    return 0;
}

/* In one slot, for which there is room, but more than its first line. */
static int send_two_lines(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov, size_t len)
{
    char *slot = ivc_tx_tail_slot(tx);

    gather_split(slot, iov, n_iov);
    ivc_tx_publish(tx, slot, (uint32_t)len, tag, IVC_SLOT_INLINE, 1);
    return 0;
}

int ivc_tx_send_other(struct ivc_tx *tx, uint8_t tag, const struct iovec *iov, unsigned n_iov,
                      size_t len)
{
    int r;

    if (len > tx->eager_max)
        return ivc_error_set(-EMSGSIZE, "packet of %zu bytes: more than the %u that are sent at once",
                             len, tx->eager_max);
    r = tx->limit == 0 ? look_for_order(tx, len) : 0;
    if (r == 0 && len > tx->inline_max)
        return tx->order == IVC_RING_SCATTERED && len <= ivc_tx_scattered_max(tx)
            ? send_scattered(tx, tag, iov, len) : send_long(tx, tag, iov, n_iov, len);
    if (r == 0)
        r = need_slots(tx, 1);
    if (r != 0)
        return r;
    return len > IVC_SLOT_FIRST_LINE ? send_two_lines(tx, tag, iov, n_iov, len) : ivc_tx_send(tx, tag, iov, n_iov, len);
}

/* Tells the receiver of a share of the pool, once per ring. */
static void announce_share(struct ivc_tx *tx, uint32_t share)
{
    const struct ivc_share *memory = &tx->pool->shares[share - 1];
    char *slot = ivc_tx_tail_slot(tx);

    write_ref(slot, share, 0, memory->handle);
    memcpy(slot + IVC_SLOT_HEAD_AT, &memory->size, sizeof memory->size);
    ivc_tx_publish(tx, slot, sizeof memory->size, 0, IVC_SLOT_SHARE, 1);
    tx->announced |= 1u << share;
}

/* The slot at tail refers to it. */
static void note_chunk(struct ivc_tx *tx, uint32_t chunk)
{
    tx->chunks[ivc_wrap(tx->first_out + tx->chunks_out, tx->n_slots)] = (struct ivc_tx_chunk){ tx->tail, chunk };
    tx->chunks_out++;
}

/* Whether lines of the next chunk are asked for as soon as such a packet was sent.  With longer ones it is better
 * without, or makes no difference; and a tight stream to a receiver nearby, through few chunks, is slower with it. */
static bool fetches_now(const struct ivc_tx *tx, uint32_t len)
{
    enum { BELOW = 16 << 10, TIGHT_BELOW = 4000 };
    const struct ivc_pool *pool = tx->pool;

    return len < (tx->is_tight && !ivc_tx_is_far(tx) && pool->round < pool->chunks_max ? TIGHT_BELOW : BELOW);
}

/* For which there is room, and one slot more: that may go to the share's announcement. */
static void send_ref(struct ivc_tx *tx, uint8_t tag, uint32_t chunk, const void *head, uint32_t head_len,
                     const struct ivc_slot_ref *body)
{
    uint32_t len = head_len + body->len;
    char *slot;

    if (!(tx->announced & 1u << body->share))
        announce_share(tx, body->share);
    slot = ivc_tx_tail_slot(tx);
    memcpy(slot + IVC_SLOT_HEAD_AT, head, head_len);
    memcpy(slot + IVC_SLOT_REF_AT, body, sizeof *body);
    note_chunk(tx, chunk);
    ivc_tx_publish(tx, slot, head_len, tag, IVC_SLOT_REF, 1);
    if (ivc_tx_fetches_ahead(tx, len) && ivc_tx_copy_side(tx, len) != IVC_COPY_PAST)
        ivc_pool_has_sent(tx->pool, true, len, fetches_now(tx, len));
}

int ivc_tx_send_chunk(struct ivc_tx *tx, uint8_t tag, uint32_t chunk, size_t len)
{
    uint32_t head_len = (uint32_t)IVC_MIN(len, (size_t)IVC_SLOT_HEAD_MAX);
    struct ivc_slot_ref body = { .len = (uint32_t)len - head_len };
    const char *memory = ivc_pool_memory(tx->pool, chunk, &body.share, &body.offset);
    int r = need_slots(tx, 2);

    if (r != 0)
        return r;
    body.offset += head_len;
    send_ref(tx, tag, chunk, memory, head_len, &body);
    return 0;
}

int ivc_tx_send_copy(struct ivc_tx *tx, uint8_t tag, uint32_t chunk, const struct iovec *iov, unsigned n_iov,
                     size_t len)
{
    bool has_head = n_iov > 1 && iov[0].iov_len <= IVC_SLOT_HEAD_MAX;
    const struct iovec head = has_head ? iov[0] : (struct iovec){ "", 0 };
    struct ivc_slot_ref body = { .len = (uint32_t)(len - head.iov_len) };
    char *memory = ivc_pool_memory(tx->pool, chunk, &body.share, &body.offset);
    int r = need_slots(tx, 2);

    if (r != 0)
        return r;
    ivc_copy_gather(ivc_tx_copy_side(tx, len), memory, iov + has_head, n_iov - has_head);
    send_ref(tx, tag, chunk, head.iov_base, (uint32_t)head.iov_len, &body);
    return 0;
}

/* Where the bytes lie that a slot of ours refers to; NULL when that cannot be. */
static const char *own_bytes(const struct ivc_tx *tx, const struct ivc_slot_ref *ref)
{
    const struct ivc_share *share;

    if (ref->share == 0 || ref->share > tx->pool->n_shares)
        return NULL;
    share = &tx->pool->shares[ref->share - 1];
    return ref->offset <= share->size && ref->len <= share->size - ref->offset
        ? (const char *)share->memory + ref->offset : NULL;
}

static int unread_ref(const struct ivc_tx *tx, const char *slot, uint64_t word, uint64_t at,
                      ivc_tx_unread_fn *fn, void *arg)
{
    struct iovec iov[2] = { { (char *)slot + IVC_SLOT_HEAD_AT, word >> 32 & 0xffff } };
    struct ivc_slot_ref ref;

    memcpy(&ref, slot + IVC_SLOT_REF_AT, sizeof ref);
    ivc_copy_is_final();
    iov[1] = (struct iovec){ (char *)own_bytes(tx, &ref), ref.len };
    if (!iov[1].iov_base || iov[0].iov_len > IVC_SLOT_HEAD_MAX)
        return -EBADMSG;
    return fn(arg, at, (uint8_t)(word >> 48), iov, 2);
}

/* INLINE: in line it is one piece. */
static int unread_bytes(const struct ivc_tx *tx, uint64_t word, uint64_t at, enum ivc_ring_order order,
                        ivc_tx_unread_fn *fn, void *arg)
{
    struct iovec iov[IVC_SCATTERED_SLOTS];
    uint32_t len = word >> 32 & 0xffff, first = (uint32_t)(at % tx->n_slots), n = 0;
    bool scattered = order == IVC_RING_SCATTERED;

    if (scattered && len > IVC_SCATTERED_MAX)
        return -EBADMSG;
    do {
        uint32_t part = scattered ? IVC_MIN(len, (uint32_t)IVC_SLOT_FIRST_LINE) : len;

        iov[n] = (struct iovec){ ivc_tx_slot_in(tx, first + n, order) + IVC_SLOT_INLINE_AT, part };
        len -= part;
        n++;
    } while (len > 0);
    return fn(arg, at, (uint8_t)(word >> 48), iov, n);
}

/* What was not read and begins at `at`; tells how many slots it takes.  The ring is ours, and yet others could
 * have written it. */
static int unread_slot(const struct ivc_tx *tx, uint64_t at, uint32_t *ret_n, ivc_tx_unread_fn *fn,
                       void *arg)
{
    uint32_t i = (uint32_t)(at % tx->n_slots);
    enum ivc_ring_order order = at / tx->n_slots == tx->tail / tx->n_slots ? tx->order : tx->order_before;
    const char *slot = ivc_tx_slot_in(tx, i, order);
    uint64_t word = ivc_load_relaxed((const ivc_atomic_u64 *)slot);     /* our own store */
    uint32_t kind = (uint32_t)(word >> 56), len = word >> 32 & 0xffff;

    *ret_n = kind == IVC_SLOT_INLINE ? ivc_slots_for(len, tx->shift, order) : kind == IVC_SLOT_SKIP ? len : 1;
    if ((uint32_t)word != ivc_stamp_of(at / tx->n_slots) || *ret_n == 0 || *ret_n > tx->n_slots - i
        || *ret_n > tx->tail - at)
        return -EBADMSG;
    switch (kind) {
    case IVC_SLOT_INLINE:
        return unread_bytes(tx, word, at, order, fn, arg);
    case IVC_SLOT_REF:
        return unread_ref(tx, slot, word, at, fn, arg);
    case IVC_SLOT_SHARE:
    case IVC_SLOT_SKIP:
        return 0;
    default:
        return -EBADMSG;
    }
}

int ivc_tx_unread(struct ivc_tx *tx, ivc_tx_unread_fn *fn, void *arg)
{
    int r = ivc_tx_refresh(tx);
    uint32_t n;

    if (r < 0)
        return r;
    for (uint64_t at = tx->head; r == 0 && at != tx->tail; at += n)
        r = unread_slot(tx, at, &n, fn, arg);
    if (r == -EBADMSG)
        ivc_error_set(r, "our packets to member %u were overwritten; a process is damaged", tx->slot);
    return r;
}
