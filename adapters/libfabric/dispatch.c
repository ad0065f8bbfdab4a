/*
 * The core's endpoint and mailbox under an endpoint of libfabric's, and which file of ours takes
 * what they deliver.
 *
 * Invariant: a message reaches its file only when its header is as long as that file reads.
 */
#include "short.h"

/* All endpoints of libfabric's are one group: who may talk to whom is decided by who was told whose
 * address.  "ivc-fi" */
#define GROUP 0x6976632d6669ull

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    struct ivc_fi_ep *ep = arg;

    if (__builtin_expect(ivc_mailbox_is_tag(packet->tag), 1))
        ivc_mailbox_packet(ep->mailbox, peer, packet);
}

static bool on_whole(void *arg, struct ivc_peer *core, const struct ivc_packet *packet)
{
    struct ivc_fi_peer *peer = ivc_peer_arg(core);

    return __builtin_expect(peer && packet->head_len >= sizeof(struct ivc_fi_header), 1)
           && ivc_fi_receive_short(arg, peer, packet);
}

static const struct ivc_fi_kind_ops *const kinds[IVC_FI_KINDS] = {
    [IVC_FI_KIND_MSG] = &ivc_fi_receive_msg,
    [IVC_FI_KIND_TAGGED] = &ivc_fi_receive_tagged,
    [IVC_FI_KIND_ACK] = &ivc_fi_receive_ack,
    [IVC_FI_KIND_WRITE] = &ivc_fi_receive_write,
    [IVC_FI_KIND_READ] = &ivc_fi_receive_read,
    [IVC_FI_KIND_READ_REPLY] = &ivc_fi_receive_read_reply,
    [IVC_FI_KIND_ATOMIC] = &ivc_fi_receive_atomic,
    [IVC_FI_KIND_ATOMIC_REPLY] = &ivc_fi_receive_atomic_reply,
    [IVC_FI_KIND_REACH] = &ivc_fi_receive_reach,
};

/* What no version of ours sends is dropped: message->n_iov is 0. */
static void on_start(void *arg, struct ivc_message *message)
{
    struct ivc_fi_ep *ep = arg;
    struct ivc_fi_peer *peer = ivc_peer_arg(message->peer);
    const struct ivc_fi_header *header = message->header;
    const struct ivc_fi_kind_ops *kind;

    message->arg = NULL;
    if (__builtin_expect(message->header_len < sizeof *header || header->kind >= IVC_FI_KINDS
                         || !peer, 0))
        return;
    kind = kinds[header->kind];
    if (__builtin_expect(!kind || message->header_len < kind->header_min
                         || message->header_len != header->len, 0))
        return;
    kind->start(ep, peer, message, header);
}

static void on_done(void *arg, struct ivc_message *message, int status)
{
    struct ivc_fi_sink *sink = message->arg;

    if (sink && sink->done)
        sink->done(arg, message, status);
}

/* ---------------------------------------------------------------- the same, counted */

static bool on_whole_counted(void *arg, struct ivc_peer *core, const struct ivc_packet *packet)
{
    struct ivc_fi_ep *ep = arg;

    if (!on_whole(arg, core, packet))
        return false;
    ivc_profile_received(ep->profile, core,
                         (size_t)packet->head_len + packet->body_len - sizeof(struct ivc_fi_header));
    return true;
}

/* Whether it is one that the application sent, as on_start() takes it, and none that we need for our own purposes. */
static bool is_application_message(const struct ivc_message *message)
{
    const struct ivc_fi_header *header = message->header;

    return message->header_len == sizeof *header && header->len == sizeof *header
           && (header->kind == IVC_FI_KIND_MSG || header->kind == IVC_FI_KIND_TAGGED);
}

static void on_start_counted(void *arg, struct ivc_message *message)
{
    struct ivc_fi_ep *ep = arg;

    if (is_application_message(message))
        ivc_profile_received(ep->profile, message->peer, message->len);
    on_start(arg, message);
}

/* ---------------------------------------------------------------- opening */

ivc_atomic_u32 ivc_fi_eps_open;

static void warn_once(const struct ivc_endpoint *endpoint)
{
    static ivc_atomic_u32 warned;
    const char *warning = ivc_endpoint_warning(endpoint);

    if (*warning && ivc_cas(&warned, 0, 1))
        IVC_FI_WARN("%s", warning);
}

/* When ours are open: what comes after us may fail without a word of why. */
static void say_descriptors(void)
{
    enum { LEAST = 16 };
    static ivc_atomic_u32 said;

    if (ivc_descriptors_check(LEAST) != 0 && ivc_cas(&said, 0, 1))
        ivc_fi_say("%s", ivc_error_text());
}

/* For who asks which memory is used: FI_LOG_LEVEL=info. */
static void tell(const struct ivc_endpoint *endpoint)
{
    struct ivc_address address;
    char text[256];

    ivc_endpoint_address(endpoint, &address);
    ivc_address_describe(&address, text, sizeof text);
    IVC_FI_INFO("endpoint %s; memory: %s", text, ivc_endpoint_describe(endpoint));
}

/* Our address is known from here on. */
int ivc_fi_ep_open_core(struct ivc_fi_ep *ep)
{
    const struct ivc_endpoint_options options = {
        .magic_id = GROUP,
        .client_id = (uint32_t)getpid(),
        .network = true,
        .on_packet = on_packet,
        .on_gone = ivc_fi_peer_gone,
        .on_arrival = ivc_fi_peer_arrived,
        .arg = ep,
    };
    int r;

    if (ep->endpoint)
        return 0;
    r = ivc_endpoint_open(&options, &ep->endpoint);
    if (r != 0) {
        ivc_fi_say("%s", ivc_error_text());
        return r < 0 ? r : -FI_ENODEV;
    }
    ivc_fi_profile_open(ep);
    r = ivc_mailbox_new(ep->endpoint, ep->profile ? on_start_counted : on_start, on_done, ep, &ep->mailbox);
    if (r != 0) {
        ivc_fi_say("%s", ivc_error_text());
        ivc_fi_profile_close(ep);
        ivc_endpoint_free(ep->endpoint);
        ep->endpoint = NULL;
        return ivc_fi_error(r);
    }
    ivc_mailbox_set_whole(ep->mailbox, ep->profile ? on_whole_counted : on_whole);
    atomic_fetch_add(&ivc_fi_eps_open, 1);
    warn_once(ep->endpoint);
    say_descriptors();
    tell(ep->endpoint);
    return 0;
}
