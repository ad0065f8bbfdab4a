/* Messages over packets: see message.h. */
#include "endpoint/message.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

/* What precedes the adapter's header in IVC_TAG_MESSAGE and IVC_TAG_MESSAGE_FIRST. */
struct prefix {
    uint64_t len;
    uint32_t header_len;
    uint32_t reserved;
};

/* A message under way to a peer.  The queue of each peer is in the order of sending. */
struct train {
    struct train *next;
    struct ivc_peer *peer;
    struct prefix prefix;
    char header[IVC_MESSAGE_HEADER_MAX];
    const char *payload;
    size_t sent;
    bool started;
    ivc_message_sent_fn *on_sent;
    void *arg;
};

/* A message that arrives in several packets: one per peer at a time. */
struct arrival {
    struct arrival *next;
    struct ivc_peer *peer;
    struct ivc_message message;
    size_t received;
};

struct ivc_mailbox {
    struct ivc_endpoint *endpoint;
    ivc_message_start_fn *on_start;
    ivc_message_done_fn *on_done;
    void *arg;
    struct train *trains, **trains_end;     /* of all peers, in the order of sending */
    struct arrival *arrivals;
    bool pushing;
};

int ivc_mailbox_new(struct ivc_endpoint *endpoint, ivc_message_start_fn *on_start,
                    ivc_message_done_fn *on_done, void *arg, struct ivc_mailbox **ret_mailbox)
{
    struct ivc_mailbox *mailbox = calloc(1, sizeof *mailbox);

    if (!mailbox)
        return ivc_error_set(-ENOMEM, "mailbox: out of memory");
    mailbox->endpoint = endpoint;
    mailbox->on_start = on_start;
    mailbox->on_done = on_done;
    mailbox->arg = arg;
    mailbox->trains_end = &mailbox->trains;
    *ret_mailbox = mailbox;
    return 0;
}

void ivc_mailbox_free(struct ivc_mailbox *mailbox)
{
    struct train *train;
    struct arrival *arrival;

    if (!mailbox)
        return;
    while ((train = mailbox->trains)) {
        mailbox->trains = train->next;
        free(train);
    }
    while ((arrival = mailbox->arrivals)) {
        mailbox->arrivals = arrival->next;
        free(arrival);
    }
    free(mailbox);
}

static size_t prefix_bytes(const struct train *train)
{
    return sizeof train->prefix + train->prefix.header_len;
}

/* The whole message in one packet, when it is that short. */
static int send_whole(struct ivc_mailbox *mailbox, struct train *train)
{
    struct iovec iov[3] = {
        { &train->prefix, sizeof train->prefix },
        { train->header, train->prefix.header_len },
        { (void *)train->payload, train->prefix.len },
    };
    int r = ivc_endpoint_send(mailbox->endpoint, train->peer, IVC_TAG_MESSAGE, iov, 3);

    if (r == 0) {
        train->started = true;
        train->sent = train->prefix.len;
    }
    return r;
}

/* The next packet of a train: a buffer filled from the payload. */
static int send_part(struct ivc_mailbox *mailbox, struct train *train)
{
    size_t room = ivc_endpoint_packet_max(mailbox->endpoint);
    size_t before = train->started ? 0 : prefix_bytes(train);
    size_t n = IVC_MIN(train->prefix.len - train->sent, room - before);
    struct ivc_buffer buffer;
    int r = ivc_endpoint_buffer_get(mailbox->endpoint, train->peer, before + n, &buffer);

    if (r != 0)
        return r;
    if (!train->started) {
        memcpy(buffer.data, &train->prefix, sizeof train->prefix);
        memcpy((char *)buffer.data + sizeof train->prefix, train->header, train->prefix.header_len);
    }
    memcpy((char *)buffer.data + before, train->payload + train->sent, n);
    r = ivc_endpoint_send_buffer(mailbox->endpoint, train->peer,
                                 train->started ? IVC_TAG_MESSAGE_MORE : IVC_TAG_MESSAGE_FIRST,
                                 &buffer, before + n);
    if (r != 0) {
        ivc_endpoint_buffer_free(mailbox->endpoint, &buffer);
        return r;
    }
    train->started = true;
    train->sent += n;
    return 0;
}

/* Pushes one train as far as it goes: 0 when it is through. */
static int push(struct ivc_mailbox *mailbox, struct train *train)
{
    int r = 0;

    if (!train->started
        && prefix_bytes(train) + train->prefix.len <= ivc_endpoint_eager_max(mailbox->endpoint))
        return send_whole(mailbox, train);
    while (r == 0 && (!train->started || train->sent < train->prefix.len))
        r = send_part(mailbox, train);
    return r;
}

static bool earlier_train_to(const struct ivc_mailbox *mailbox, const struct train *train)
{
    for (const struct train *t = mailbox->trains; t && t != train; t = t->next)
        if (t->peer == train->peer)
            return true;
    return false;
}

static void finish_train(struct train *train, int status)
{
    ivc_message_sent_fn *on_sent = train->on_sent;
    void *arg = train->arg;

    free(train);
    if (on_sent)
        on_sent(arg, status);
}

static void push_all(struct ivc_mailbox *mailbox)
{
    struct train **at = &mailbox->trains;

    if (mailbox->pushing)
        return;     /* called by on_sent: the loop below comes to what was added */
    mailbox->pushing = true;
    while (*at) {
        struct train *train = *at;
        int r = earlier_train_to(mailbox, train) ? IVC_E_FULL : push(mailbox, train);

        if (r == IVC_E_FULL) {
            at = &train->next;
            continue;
        }
        *at = train->next;
        if (mailbox->trains_end == &train->next)
            mailbox->trains_end = at;
        finish_train(train, r);
    }
    mailbox->pushing = false;
}

int ivc_mailbox_send(struct ivc_mailbox *mailbox, struct ivc_peer *peer, const void *header,
                     uint32_t header_len, const void *payload, size_t len,
                     ivc_message_sent_fn *on_sent, void *sent_arg)
{
    struct train *train;

    if (header_len > IVC_MESSAGE_HEADER_MAX)
        return ivc_error_set(-EINVAL, "message header of %u bytes: at most %d", header_len,
                             IVC_MESSAGE_HEADER_MAX);
    train = calloc(1, sizeof *train);
    if (!train)
        return ivc_error_set(-ENOMEM, "message: out of memory");
    train->peer = peer;
    train->prefix = (struct prefix){ .len = len, .header_len = header_len };
    memcpy(train->header, header, header_len);
    train->payload = payload;
    train->on_sent = on_sent;
    train->arg = sent_arg;
    *mailbox->trains_end = train;
    mailbox->trains_end = &train->next;
    push_all(mailbox);
    return 0;
}

static struct arrival **find_arrival(struct ivc_mailbox *mailbox, const struct ivc_peer *peer)
{
    struct arrival **at = &mailbox->arrivals;

    while (*at && (*at)->peer != peer)
        at = &(*at)->next;
    return at;
}

/* Puts what the packet holds behind its first `skip` bytes where the message is to land. */
static void land(struct arrival *arrival, const struct ivc_packet *packet, uint32_t skip)
{
    const struct iovec parts[2] = {
        { (char *)packet->head + IVC_MIN(skip, packet->head_len),
          packet->head_len - IVC_MIN(skip, packet->head_len) },
        { (void *)packet->body, packet->body_len },
    };

    for (unsigned i = 0; i < 2; i++) {
        size_t room = arrival->message.capacity > arrival->received
                      ? arrival->message.capacity - arrival->received : 0;

        if (parts[i].iov_len > 0 && arrival->message.buffer)
            memcpy((char *)arrival->message.buffer + arrival->received, parts[i].iov_base,
                   IVC_MIN(parts[i].iov_len, room));
        arrival->received += parts[i].iov_len;
    }
}

static void finish_arrival(struct ivc_mailbox *mailbox, struct arrival *arrival, int status)
{
    *find_arrival(mailbox, arrival->peer) = arrival->next;
    mailbox->on_done(mailbox->arg, &arrival->message, status);
    free(arrival);
}

/* Prefix and header lie in the packet's head, which is private; a sender that puts less there, or
 * starts a message within another, is broken and its packet is dropped. */
static void start(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                  const struct ivc_packet *packet)
{
    struct prefix prefix;
    struct arrival *arrival;

    if (packet->head_len < sizeof prefix || *find_arrival(mailbox, peer))
        return;
    memcpy(&prefix, packet->head, sizeof prefix);
    if (prefix.header_len > packet->head_len - sizeof prefix)
        return;
    arrival = calloc(1, sizeof *arrival);
    if (!arrival)
        return;
    arrival->peer = peer;
    arrival->message = (struct ivc_message){
        .peer = peer,
        .header = (const char *)packet->head + sizeof prefix,
        .header_len = prefix.header_len,
        .len = prefix.len,
    };
    mailbox->on_start(mailbox->arg, &arrival->message);
    arrival->message.header = NULL;
    arrival->next = mailbox->arrivals;
    mailbox->arrivals = arrival;
    land(arrival, packet, (uint32_t)sizeof prefix + prefix.header_len);
}

void ivc_mailbox_packet(struct ivc_mailbox *mailbox, struct ivc_peer *peer,
                        const struct ivc_packet *packet)
{
    struct arrival *arrival;

    if (packet->tag == IVC_TAG_MESSAGE_MORE) {
        arrival = *find_arrival(mailbox, peer);
        if (arrival)
            land(arrival, packet, 0);
    } else {
        start(mailbox, peer, packet);
        arrival = *find_arrival(mailbox, peer);
    }
    if (arrival && arrival->received >= arrival->message.len)
        finish_arrival(mailbox, arrival, 0);
}

void ivc_mailbox_gone(struct ivc_mailbox *mailbox, struct ivc_peer *peer)
{
    struct arrival *arrival = *find_arrival(mailbox, peer);

    if (arrival)
        finish_arrival(mailbox, arrival, IVC_E_GONE);
    push_all(mailbox);      /* trains to the peer are refused with IVC_E_GONE */
}

int ivc_mailbox_progress(struct ivc_mailbox *mailbox)
{
    if (mailbox->trains)
        push_all(mailbox);
    return ivc_endpoint_progress(mailbox->endpoint);
}
