/*
 * The receiving side of a channel: see channel.h.  Everything read here was written by someone
 * else: each value is read once, checked, and then the copy is used.
 */
#include "base/util.h"
#include "channel/channel.h"

#include <errno.h>

enum {
    AHEAD = 4,          /* slots; with 3 to 8 a stream takes as long, with fewer longer */
    LONG_AHEAD = 8,     /* ... of packets of several; with 12 it takes as long */
};

static const char too_long[] = "a packet that is longer than any may be; unless IVC_CHUNK_SIZE is not the same there";

static int bad_ring(uint32_t slot, const char *what)
{
    return ivc_error_set(-EBADMSG, "member %u sends nonsense (%s); its process is damaged or of "
                         "another version", slot, what);
}

static int check_header(const struct ivc_ring_header *header, uint64_t size)
{
    return header->magic == IVC_RING_MAGIC
           && ivc_is_power_of_two(header->slot_size) && header->slot_size >= IVC_SLOT_SIZE_MIN
           && header->slot_size <= IVC_SLOT_SIZE_MAX && header->n_slots >= IVC_SLOTS_MIN
           && header->n_slots <= IVC_SLOTS_MAX
           && header->n_slots <= (size - sizeof *header) / header->slot_size;
}

int ivc_rx_open(struct ivc_region *region, uint32_t slot, uint32_t packet_max, struct ivc_rx *ret_rx)
{
    const struct ivc_layout_link *link = ivc_region_peer_link(region, slot);
    struct ivc_rx rx = { .region = region, .slot = slot, .packet_max = packet_max };
    struct ivc_ring_header header;
    uint64_t handle;
    int r;

    /* Acquire: pairs with the release in ivc_link_open(): the line is meant for us. */
    if (!link || ivc_load_acquire(&link->generation) != ivc_region_self(region)->generation)
        return IVC_E_GONE;
    /* Acquire: pairs with the release of ring in announce_ring(); the ring is ready. */
    handle = ivc_load_acquire(&link->ring);
    if (handle == 0)
        return IVC_E_GONE;
    rx.size = ivc_load_relaxed(&link->ring_size);   /* published with the ring */
    r = ivc_region_map(region, slot, handle, rx.size, &rx.memory);
    if (r < 0)
        return r;
    if (rx.size < sizeof header)
        return bad_ring(slot, "a ring without a header");
    memcpy(&header, rx.memory, sizeof header);
    ivc_copy_is_final();
    if (!check_header(&header, rx.size))
        return bad_ring(slot, "a ring of impossible shape");
    if (header.generation != ivc_region_self(region)->generation)
        return IVC_E_GONE;      /* for an earlier owner of our slot */
    rx.after = header.after;
    rx.slots = (const char *)rx.memory + sizeof header;
    rx.n_slots = header.n_slots;
    rx.stamp = 1;
    rx.shift = (uint32_t)__builtin_ctz(header.slot_size);
    rx.second_line = ivc_slot_second_line(header.slot_size);
    rx.short_max = rx.second_line + IVC_LINE - IVC_SLOT_INLINE_AT;
    rx.publish_every = IVC_MAX(header.n_slots / 4, 1);
    rx.own_head = &ivc_region_own_link(region, slot)->head;
    *ret_rx = rx;
    return 0;
}

enum ivc_copy_side ivc_rx_copy_side(struct ivc_rx *rx, const struct ivc_packet *packet)
{
    enum { LOOK_EVERY = 8 };    /* 15 ns each */

    if (rx->reading.n % LOOK_EVERY == 0) {
        uint64_t start = ivc_cycles();

        (void)*((const volatile char *)packet->body + packet->body_len / 2);
        ivc_loads_are_over();
        ivc_far_note(&rx->far, ivc_cycles() - start);
    }
    if (ivc_far_is(rx->far))
        return IVC_COPY_OUT_FAR;
    return rx->give_back_max > 0 ? IVC_COPY_OUT_STACK : IVC_COPY_OUT;
}

void ivc_rx_note_reading(struct ivc_rx *rx, uint64_t cycles, uint32_t len)
{
    uint32_t mean;

    /* Relaxed: see ivc_tx_note_filling(). */
    if (ivc_timed_add(&rx->reading, IVC_FILL_TIMED, cycles, len, &mean))
        ivc_store_relaxed(&ivc_region_own_link(rx->region, rx->slot)->reading, mean);
}

void ivc_rx_close(struct ivc_rx *rx)
{
    if (!rx->memory)
        return;
    for (uint32_t i = 1; i < IVC_SHARES_MAX; i++)
        if (rx->shares[i].memory)
            ivc_region_unmap(rx->region, rx->slot, rx->shares[i].memory, rx->shares[i].size);
    ivc_region_unmap(rx->region, rx->slot, rx->memory, rx->size);
    *rx = (struct ivc_rx){ 0 };
}

static int add_share(struct ivc_rx *rx, const struct ivc_slot_ref *ref, uint64_t size)
{
    const void *memory;
    int r;

    if (ref->share == 0 || ref->share >= IVC_SHARES_MAX
        || rx->shares[ref->share].memory)
        return bad_ring(rx->slot, "a share of impossible number");
    r = ivc_region_map(rx->region, rx->slot, ref->offset, size, &memory);
    if (r < 0)
        return r;
    rx->shares[ref->share] = (struct ivc_rx_share){ memory, size };
    rx->shares_size += size;
    return 0;
}

/* Chunks go back to the sender a quarter of what it has shared at a time, as slots do a quarter of the ring.  (Those
 * before this packet: it was not handled yet.) */
static void give_back(struct ivc_rx *rx, uint32_t len)
{
    rx->body_bytes += len;
    if (rx->body_bytes < rx->shares_size / 4
        && (rx->give_back_max == 0 || ivc_far_is(rx->far) || rx->body_bytes < rx->give_back_max))
        return;
    rx->body_bytes = 0;
    ivc_rx_publish(rx);
}

/* The packet behind this one: when this one is copied its first line is here, if it was sent by now.  If it was not,
 * nothing is lost: the receiver will be looking at that line all the time anyway. */
static void fetch_next(const struct ivc_rx *rx)
{
    __builtin_prefetch(ivc_rx_slot(rx, ivc_wrap(rx->at + rx->step, rx->n_slots)));
}

static int read_ref(struct ivc_rx *rx, const struct ivc_slot_ref *ref,
                    struct ivc_packet *ret_packet)
{
    const struct ivc_rx_share *share;

    if (ref->share >= IVC_SHARES_MAX)
        return bad_ring(rx->slot, "a share of impossible number");
    share = &rx->shares[ref->share];
    if (!share->memory || ref->offset > share->size || ref->len > share->size - ref->offset)
        return bad_ring(rx->slot, "bytes outside what it shares");
    if (ref->len > rx->packet_max - ret_packet->head_len)
        return bad_ring(rx->slot, too_long);
    fetch_next(rx);
    ret_packet->body = share->memory + ref->offset;
    ret_packet->body_len = ref->len;
    give_back(rx, ref->len);
    return 1;
}

/* A line in each slot: to one piece of memory of our own. */
static int read_scattered(struct ivc_rx *rx, uint32_t len, char *head)
{
    uint32_t n = rx->step;

    if (len > IVC_SCATTERED_MAX)
        return bad_ring(rx->slot, "a packet of too many slots that are scattered");
    for (uint32_t i = 1; i < n; i++)
        memcpy(head + (size_t)i * IVC_SLOT_FIRST_LINE, ivc_rx_slot(rx, rx->at + i) + IVC_SLOT_INLINE_AT,
               IVC_SLOT_FIRST_LINE);
    for (uint32_t i = 0; i < n; i++)
        ivc_rx_ask_for_slot(rx, LONG_AHEAD + i);
    return 1;
}

/* The bytes behind the first line stay where they are. */
static int read_inline(struct ivc_rx *rx, const char *slot, uint32_t len, char *head, struct ivc_packet *packet)
{
    rx->step = ivc_slots_for(len, rx->shift, rx->order);
    if (rx->step > rx->n_slots - rx->at)
        return bad_ring(rx->slot, "a packet beyond the ring's end");
    if (len > rx->packet_max)
        return bad_ring(rx->slot, too_long);
    if (rx->order == IVC_RING_SCATTERED)
        return read_scattered(rx, len, head);
    packet->head_len = IVC_MIN(len, (uint32_t)IVC_SLOT_FIRST_LINE);
    if (len > IVC_SLOT_FIRST_LINE) {
        packet->body = slot + IVC_LINE;
        packet->body_len = len - IVC_SLOT_FIRST_LINE;
        /* On their way while it is found out where they go.  Not more: where the two processors are far from each
         * other, a receiver that is quicker takes lines away that the sender has just fetched for what comes next. */
        __builtin_prefetch(packet->body);
        if (packet->body_len > IVC_LINE)
            __builtin_prefetch((const char *)packet->body + IVC_LINE);
        fetch_next(rx);
    }
    return 1;
}

/* At the beginning there is nothing to be skipped but for another order, and then nothing is behind it until this was
 * read.  So it does not come twice in a row. */
static int skip(struct ivc_rx *rx, uint32_t n, uint32_t order, char *head, struct ivc_packet *ret_packet)
{
    bool reorders = order != (uint32_t)rx->order, begins = rx->at == 0;

    if ((begins && !reorders) || n != rx->n_slots - rx->at)
        return bad_ring(rx->slot, "a gap that does not end with the ring");
    if (order > IVC_RING_SCATTERED || (order == IVC_RING_SCATTERED && !ivc_ring_scatters(rx->n_slots)))
        return bad_ring(rx->slot, "slots in no order");
    rx->step = n;
    ivc_rx_advance(rx);
    if (reorders) {
        rx->order = (enum ivc_ring_order)order;
        rx->ahead = order == IVC_RING_SCATTERED ? AHEAD : 0;
        rx->short_max = (order == IVC_RING_SCATTERED ? 0 : rx->second_line) + IVC_LINE - IVC_SLOT_INLINE_AT;
    }
    return begins ? 0 : ivc_rx_peek(rx, head, ret_packet);
}

int ivc_rx_peek_other(struct ivc_rx *rx, uint64_t word, const char *slot, char *head,
                      struct ivc_packet *ret_packet)
{
    uint32_t len = word >> 32 & 0xffff;
    uint32_t kind = (uint32_t)(word >> 56);
    struct ivc_slot_ref ref;
    uint64_t size;
    int r;

    *ret_packet = (struct ivc_packet){ .tag = (uint8_t)(word >> 48), .head_len = len, .head = head };
    rx->step = 1;
    if (kind == IVC_SLOT_SKIP)
        return skip(rx, len, ret_packet->tag, head, ret_packet);
    if (kind == IVC_SLOT_INLINE) {
        memcpy(head, slot + IVC_SLOT_INLINE_AT, IVC_SLOT_FIRST_LINE);
        return read_inline(rx, slot, len, head, ret_packet);
    }
    if (len > IVC_SLOT_HEAD_MAX)
        return bad_ring(rx->slot, "a first line longer than a line");
    memcpy(head, slot + IVC_SLOT_HEAD_AT, IVC_SLOT_HEAD_MAX);
    memcpy(&ref, slot + IVC_SLOT_REF_AT, sizeof ref);
    ivc_copy_is_final();
    switch (kind) {
    case IVC_SLOT_REF:
        return read_ref(rx, &ref, ret_packet);
    case IVC_SLOT_SHARE:
        memcpy(&size, head, sizeof size);
        r = len == sizeof size ? add_share(rx, &ref, size) : bad_ring(rx->slot, "half a share");
        if (r < 0)
            return r;
        ivc_rx_advance(rx);
        return ivc_rx_peek(rx, head, ret_packet);
    default:
        return bad_ring(rx->slot, "a slot of unknown kind");
    }
}
