/*
 * What fi_getinfo() returns.
 *
 * Invariant: nothing of libfabric's may be called, so lists are put together from malloc'ed parts,
 * as fi_freeinfo() frees them.
 */
#include "offer.h"

/* Later libfabrics copy a longer struct fi_domain_attr than ours from what we return: theirs,
 * zeroed, with room for more. */
struct domain_attr_2 {
    struct fi_domain_attr attr;
    size_t max_ep_auth_key;
    uint32_t max_group_id;
    uint64_t max_cntr_value;
    uint64_t max_err_cntr_value;
};
enum { GROWTH = 256 };

void ivc_fi_info_free(struct fi_info *info)
{
    if (!info)
        return;
    free(info->src_addr);
    free(info->dest_addr);
    free(info->tx_attr);
    free(info->rx_attr);
    free(info->ep_attr);
    if (info->domain_attr)
        free(info->domain_attr->name);
    free(info->domain_attr);
    if (info->fabric_attr) {
        free(info->fabric_attr->name);
        free(info->fabric_attr->prov_name);
    }
    free(info->fabric_attr);
    free(info);
}

static struct fi_info *info_new(void)
{
    struct fi_info *info = calloc(1, sizeof *info + GROWTH);

    if (!info)
        return NULL;
    info->tx_attr = calloc(1, sizeof *info->tx_attr + GROWTH);
    info->rx_attr = calloc(1, sizeof *info->rx_attr + GROWTH);
    info->ep_attr = calloc(1, sizeof *info->ep_attr + GROWTH);
    info->domain_attr = calloc(1, sizeof(struct domain_attr_2) + GROWTH);
    info->fabric_attr = calloc(1, sizeof *info->fabric_attr + GROWTH);
    if (!info->tx_attr || !info->rx_attr || !info->ep_attr || !info->domain_attr
        || !info->fabric_attr) {
        ivc_fi_info_free(info);
        return NULL;
    }
    return info;
}

/* What an endpoint and its domain go by; addresses and names are not among it. */
struct fi_info *ivc_fi_info_dup(const struct fi_info *from)
{
    struct fi_info *info = info_new();

    if (!info)
        return NULL;
    info->caps = from->caps;
    info->mode = from->mode;
    if (from->tx_attr)
        *info->tx_attr = *from->tx_attr;
    if (from->rx_attr)
        *info->rx_attr = *from->rx_attr;
    if (from->ep_attr)
        *info->ep_attr = *from->ep_attr;
    info->ep_attr->auth_key = NULL;
    return info;
}

/* Secondary capabilities that cost nothing are there unasked; primary ones, and the matching by
 * source, only when they were asked for. */
static uint64_t granted_caps(uint32_t version, const struct fi_info *hints)
{
    uint64_t caps;

    if (!hints || !hints->caps)
        return ivc_fi_caps_offered(version);
    caps = ivc_fi_caps_expand(hints->caps) | DOMAIN_CAPS;
    if (caps & DIRECTED_OF_2)
        caps |= FI_DIRECTED_RECV;
    return caps;
}

static void set_tx(struct fi_tx_attr *tx, const struct fi_tx_attr *hints, uint64_t caps)
{
    tx->caps = caps & TX_CAPS;
    tx->msg_order = ORDER;
    tx->inject_size = IVC_FI_INJECT_MAX;
    tx->size = IVC_FI_QUEUE_SIZE;
    tx->iov_limit = IVC_FI_IOV_MAX;
    tx->rma_iov_limit = IVC_FI_RMA_IOV_MAX;
    if (!hints)
        return;
    if (hints->caps)
        tx->caps = ivc_fi_caps_expand(hints->caps) & caps & TX_CAPS;
    tx->op_flags = hints->op_flags;
    tx->tclass = hints->tclass;
}

static void set_rx(struct fi_rx_attr *rx, const struct fi_rx_attr *hints, uint64_t caps)
{
    rx->caps = caps & (RX_CAPS | DIRECTED_OF_2);
    rx->msg_order = ORDER;
    rx->size = IVC_FI_RX_SIZE;
    rx->iov_limit = IVC_FI_IOV_MAX;
    if (!hints)
        return;
    if (hints->caps)
        rx->caps = ivc_fi_caps_expand(hints->caps) & caps & (RX_CAPS | DIRECTED_OF_2);
    rx->op_flags = hints->op_flags;
    rx->total_buffered_recv = hints->total_buffered_recv;   /* memory is the limit */
}

static void set_ep(struct fi_ep_attr *ep)
{
    ep->type = FI_EP_RDM;
    ep->protocol = PROTOCOL;
    ep->protocol_version = PROTOCOL_VERSION;
    ep->max_msg_size = MESSAGE_MAX;
    ep->max_order_raw_size = IVC_FI_ATOMIC_MAX;
    ep->max_order_war_size = IVC_FI_ATOMIC_MAX;
    ep->max_order_waw_size = IVC_FI_ATOMIC_MAX;
    ep->mem_tag_format = UINT64_MAX;
    ep->tx_ctx_cnt = 1;
    ep->rx_ctx_cnt = 1;
}

/* Bits are what we need (nothing); the old words come back as they were said. */
static int granted_mr_mode(uint32_t version, const struct fi_domain_attr *hints)
{
    if (hints && (hints->mr_mode & (FI_MR_BASIC | FI_MR_SCALABLE)))
        return hints->mr_mode;
    return FI_VERSION_LT(version, FI_VERSION(1, 5)) ? FI_MR_SCALABLE : 0;
}

static void set_domain(struct fi_domain_attr *domain, const struct fi_domain_attr *hints,
                       uint32_t version)
{
    struct domain_attr_2 *later = (struct domain_attr_2 *)domain;

    later->max_cntr_value = UINT64_MAX;
    later->max_err_cntr_value = UINT64_MAX;
    domain->threading = FI_THREAD_SAFE;
    domain->control_progress = FI_PROGRESS_MANUAL;
    domain->data_progress = FI_PROGRESS_MANUAL;
    domain->resource_mgmt = FI_RM_ENABLED;
    domain->av_type = FI_AV_UNSPEC;     /* either kind can be opened */
    domain->mr_mode = granted_mr_mode(version, hints);
    domain->mr_key_size = sizeof(uint64_t);
    domain->cq_data_size = sizeof(uint64_t);
    domain->cq_cnt = OBJECTS_MAX;
    domain->ep_cnt = ENDPOINTS_MAX;
    domain->tx_ctx_cnt = ENDPOINTS_MAX;
    domain->rx_ctx_cnt = ENDPOINTS_MAX;
    domain->max_ep_tx_ctx = 1;
    domain->max_ep_rx_ctx = 1;
    domain->cntr_cnt = OBJECTS_MAX;
    domain->mr_iov_limit = IVC_FI_IOV_MAX;
    domain->mr_cnt = OBJECTS_MAX;
    domain->caps = DOMAIN_CAPS;
    if (!hints)
        return;
    if (hints->threading != FI_THREAD_UNSPEC)
        domain->threading = hints->threading;
    if (hints->control_progress != FI_PROGRESS_UNSPEC)
        domain->control_progress = hints->control_progress;
    if (hints->av_type != FI_AV_UNSPEC)
        domain->av_type = hints->av_type;
    domain->tclass = hints->tclass;
}

static int set_names_and_addresses(struct fi_info *info, const struct fi_info *hints,
                                   uint32_t version)
{
    info->domain_attr->name = strdup(IVC_FI_NAME);
    info->fabric_attr->name = strdup(IVC_FI_NAME);
    info->fabric_attr->prov_version = ivc_fi_provider.version;
    info->fabric_attr->api_version = version;
    /* Zeros, of the right length: an address is made with its endpoint (fi_getname()). */
    info->src_addr = calloc(1, IVC_ADDRESS_LEN);
    info->src_addrlen = info->src_addr ? IVC_ADDRESS_LEN : 0;
    if (hints && hints->dest_addr) {
        info->dest_addr = malloc(IVC_ADDRESS_LEN);
        if (!info->dest_addr)
            return -FI_ENOMEM;
        memcpy(info->dest_addr, hints->dest_addr, IVC_ADDRESS_LEN);
        info->dest_addrlen = IVC_ADDRESS_LEN;
    }
    return info->domain_attr->name && info->fabric_attr->name && info->src_addr ? 0 : -FI_ENOMEM;
}

int ivc_fi_offer_make(uint32_t version, const struct fi_info *hints, struct fi_info **ret_info)
{
    struct fi_info *info = info_new();

    if (!info || set_names_and_addresses(info, hints, version) != 0) {
        ivc_fi_info_free(info);
        return -FI_ENOMEM;
    }
    info->caps = granted_caps(version, hints);
    info->addr_format = PROTOCOL;
    set_tx(info->tx_attr, hints ? hints->tx_attr : NULL, info->caps);
    set_rx(info->rx_attr, hints ? hints->rx_attr : NULL, info->caps);
    set_ep(info->ep_attr);
    set_domain(info->domain_attr, hints ? hints->domain_attr : NULL, version);
    *ret_info = info;
    return 0;
}
