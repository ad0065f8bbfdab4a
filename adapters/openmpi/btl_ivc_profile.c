/*
 * The profile (IVC_STATS=json:DIR): messages as ob1 hands them over, and as they come in.
 *
 * ob1 sends a message as one packet, MATCH, or begins it by one, RNDV, whose header tells its whole length; what follows,
 * FRAG and answers, is no message. So a message is counted once, with all of its bytes, on both sides alike.
 *
 * Who asks for no profile has other functions in the module, which know nothing of it.
 */
#include "btl_ivc.h"

#include <string.h>

#include "opal/util/proc.h"

#include "base/error.h"
#include "base/stats.h"
#include "endpoint/profile.h"

enum {
    /* ob1's other tag by which a message begins. */
    TAG_RNDV = MCA_BTL_TAG_PML + 2,

    /* Of ob1's headers in Open MPI 4.1: the length of MATCH's, and where RNDV's has the length of the message. */
    MATCH_HEADER = OPAL_ENABLE_HETEROGENEOUS_SUPPORT ? 16 : 14,
    RNDV_LENGTH_AT = 16,
};

/* Whether a message begins with this packet, and its bytes.  What a peer wrote is believed: it counts what it sends. */
static bool begins(mca_btl_base_tag_t tag, const void *header, size_t header_len, size_t total, size_t *ret_len)
{
    uint64_t len;

    if (tag == IVC_BTL_TAG_MATCH && total >= MATCH_HEADER) {
        *ret_len = total - MATCH_HEADER;
        return true;
    }
    if (tag != TAG_RNDV || header_len < RNDV_LENGTH_AT + sizeof len)
        return false;
    memcpy(&len, (const char *) header + RNDV_LENGTH_AT, sizeof len);
    *ret_len = len;
    return true;
}

static size_t total_of(const mca_btl_base_descriptor_t *descriptor)
{
    size_t total = 0;

    for (size_t i = 0; i < descriptor->des_segment_count; i++)
        total += descriptor->des_segments[i].seg_len;
    return total;
}

/* The descriptor may be another's when ivc_btl_send() returns. */
static int send_counted(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                        mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    const mca_btl_base_segment_t *first = &descriptor->des_segments[0];
    enum ivc_path path = ivc_peer_path(endpoint->peer);
    size_t len;
    bool counts = begins(tag, first->seg_addr.pval, first->seg_len, total_of(descriptor), &len);
    int rc = ivc_btl_send(btl, endpoint, descriptor, tag);

    if (counts && rc == OPAL_SUCCESS)
        ivc_profile_sent(ivc_btl_module.profile, endpoint->peer, path, len);
    return rc;
}

static int sendi_counted(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                         opal_convertor_t *convertor, void *header, size_t header_size, size_t payload_size,
                         uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                         mca_btl_base_descriptor_t **ret_descriptor)
{
    enum ivc_path path = ivc_peer_path(endpoint->peer);
    size_t len;
    bool counts = begins(tag, header, header_size, header_size + payload_size, &len);
    int rc = ivc_btl_sendi(btl, endpoint, convertor, header, header_size, payload_size, order, flags, tag,
                           ret_descriptor);

    if (counts && rc == OPAL_SUCCESS)
        ivc_profile_sent(ivc_btl_module.profile, endpoint->peer, path, len);
    return rc;
}

void ivc_btl_profile_received(struct ivc_peer *peer, mca_btl_base_tag_t tag, const void *header, size_t header_len,
                              size_t total)
{
    size_t len;

    if (ivc_btl_module.profile != NULL && begins(tag, header, header_len, total, &len))
        ivc_profile_received(ivc_btl_module.profile, peer, len);
}

/* A header that came with its message as one long segment lies in the body. One that was torn comes once more. */
static void on_packet_counted(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    bool in_head = packet->head_len > 0;
    size_t len;
    bool counts = begins(packet->tag, in_head ? packet->head : packet->body,
                         in_head ? packet->head_len : packet->body_len,
                         (size_t) packet->head_len + packet->body_len, &len);

    ivc_btl_on_packet(arg, peer, packet);
    if (counts && ivc_btl_module.profile != NULL && !ivc_endpoint_body_was_torn(ivc_btl_module.endpoint))
        ivc_profile_received(ivc_btl_module.profile, peer, len);
}

ivc_endpoint_packet_fn *ivc_btl_profile_handler(void)
{
    return ivc_stats_are_written() ? on_packet_counted : ivc_btl_on_packet;
}

/* A client id names a job of this mpirun and a rank in it: a spawned job has ranks of its own. */
static bool rank_of(const struct ivc_peer *peer, uint32_t *ret_rank)
{
    uint32_t id = ivc_peer_client_id(peer);

    if (id >> IVC_BTL_RANK_BITS != ivc_btl_client_of_process() >> IVC_BTL_RANK_BITS)
        return false;
    *ret_rank = id & ((1u << IVC_BTL_RANK_BITS) - 1);
    return true;
}

void ivc_btl_profile_open(bool threads)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    const struct ivc_profile_options options = { .adapter = "plugin", .threads = threads, .rank_of = rank_of };

    if (!ivc_stats_are_written())
        return;
    if (ivc_profile_open(m->endpoint, &options, &m->profile) != 0) {
        ivc_btl_say("profile", "%s; the job goes on without a profile", ivc_error_text());
        return;
    }
    m->super.btl_send = send_counted;
    m->super.btl_sendi = sendi_counted;
}
