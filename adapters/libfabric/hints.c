/*
 * Whether what we offer is what was asked for.
 *
 * Invariant: everything that a hint asks beyond the offer is refused, with a line in the log at
 * level info that says which hint it was.
 */
#include "offer.h"

int ivc_fi_refuse(const char *what)
{
    IVC_FI_INFO("not offered: %s", what);
    return -FI_ENODATA;
}

struct limit {
    const char *what;
    uint64_t asked, most;
};

static int check_limits(const struct limit *limits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (limits[i].asked > limits[i].most)
            return ivc_fi_refuse(limits[i].what);
    }
    return 0;
}
#define CHECK_LIMITS(...)                                                   \
    check_limits((const struct limit[]){ __VA_ARGS__ },                     \
                 sizeof((const struct limit[]){ __VA_ARGS__ }) / sizeof(struct limit))

/* Directions are implied by what they are directions of. */
uint64_t ivc_fi_caps_expand(uint64_t caps)
{
    if ((caps & MESSAGE_CAPS) && !(caps & (FI_SEND | FI_RECV)))
        caps |= FI_SEND | FI_RECV;
    if ((caps & MEMORY_CAPS) && !(caps & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)))
        caps |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    return caps;
}

uint64_t ivc_fi_caps_offered(uint32_t version)
{
    return FI_VERSION_GE(version, FI_VERSION(2, 0)) ? EP_CAPS | DIRECTED_OF_2 : EP_CAPS;
}

static int check_tx(const struct fi_tx_attr *tx, uint64_t caps)
{
    if (tx->caps & ~caps)
        return ivc_fi_refuse("tx_attr->caps");
    if (tx->op_flags & ~TX_OP_FLAGS)
        return ivc_fi_refuse("tx_attr->op_flags");
    if (tx->msg_order & ~ORDER)
        return ivc_fi_refuse("tx_attr->msg_order");
    if (tx->comp_order)
        return ivc_fi_refuse("tx_attr->comp_order");
    return CHECK_LIMITS({ "tx_attr->inject_size", tx->inject_size, IVC_FI_INJECT_MAX },
                        { "tx_attr->size", tx->size, IVC_FI_QUEUE_SIZE },
                        { "tx_attr->iov_limit", tx->iov_limit, IVC_FI_IOV_MAX },
                        { "tx_attr->rma_iov_limit", tx->rma_iov_limit, IVC_FI_RMA_IOV_MAX });
}

static int check_rx(const struct fi_rx_attr *rx, uint64_t caps)
{
    if (rx->caps & ~caps)
        return ivc_fi_refuse("rx_attr->caps");
    if (rx->op_flags & ~RX_OP_FLAGS)
        return ivc_fi_refuse("rx_attr->op_flags");
    if (rx->msg_order & ~ORDER)
        return ivc_fi_refuse("rx_attr->msg_order");
    if (rx->comp_order)
        return ivc_fi_refuse("rx_attr->comp_order");
    return CHECK_LIMITS({ "rx_attr->size", rx->size, IVC_FI_RX_SIZE },
                        { "rx_attr->iov_limit", rx->iov_limit, IVC_FI_IOV_MAX });
}

static int check_ep(const struct fi_ep_attr *ep)
{
    if (ep->type != FI_EP_UNSPEC && ep->type != FI_EP_RDM)
        return ivc_fi_refuse("ep_attr->type (FI_EP_RDM is)");
    if (ep->protocol != FI_PROTO_UNSPEC && ep->protocol != PROTOCOL)
        return ivc_fi_refuse("ep_attr->protocol");
    if (ep->auth_key_size)
        return ivc_fi_refuse("ep_attr->auth_key");
    return CHECK_LIMITS({ "ep_attr->protocol_version", ep->protocol_version, PROTOCOL_VERSION },
                        { "ep_attr->max_msg_size", ep->max_msg_size, MESSAGE_MAX },
                        { "ep_attr->msg_prefix_size", ep->msg_prefix_size, 0 },
                        { "ep_attr->tx_ctx_cnt", ep->tx_ctx_cnt, 1 },
                        { "ep_attr->rx_ctx_cnt", ep->rx_ctx_cnt, 1 },
                        { "max_order_raw_size", ep->max_order_raw_size, IVC_FI_ATOMIC_MAX },
                        { "max_order_war_size", ep->max_order_war_size, IVC_FI_ATOMIC_MAX },
                        { "max_order_waw_size", ep->max_order_waw_size, IVC_FI_ATOMIC_MAX });
}

/* We need no mode of registration.  Only the old words for sets of them can be asked wrongly. */
int ivc_fi_hints_check_mr_mode(uint32_t version, int mode)
{
    bool old = FI_VERSION_LT(version, FI_VERSION(1, 5));
    int words = mode & (FI_MR_BASIC | FI_MR_SCALABLE);

    if ((words && words != mode) || words == (FI_MR_BASIC | FI_MR_SCALABLE)
        || (old && !words && mode))
        return ivc_fi_refuse("domain_attr->mr_mode");
    return 0;
}

static int check_domain(const struct fi_domain_attr *domain)
{
    if (domain->name && strcmp(domain->name, IVC_FI_NAME) != 0)
        return ivc_fi_refuse("domain_attr->name");
    if ((unsigned)domain->threading > FI_THREAD_ENDPOINT)
        return ivc_fi_refuse("domain_attr->threading");
    /* Progress is made inside calls of the application's. */
    if (domain->data_progress == FI_PROGRESS_AUTO || domain->control_progress == FI_PROGRESS_AUTO)
        return ivc_fi_refuse("FI_PROGRESS_AUTO");
    if ((unsigned)domain->av_type > FI_AV_TABLE)
        return ivc_fi_refuse("domain_attr->av_type");
    if (domain->caps & ~DOMAIN_CAPS)
        return ivc_fi_refuse("domain_attr->caps");
    if (domain->auth_key_size)
        return ivc_fi_refuse("domain_attr->auth_key");
    return CHECK_LIMITS({ "domain_attr->mr_key_size", domain->mr_key_size, sizeof(uint64_t) },
                        { "domain_attr->cq_data_size", domain->cq_data_size, sizeof(uint64_t) },
                        { "domain_attr->cq_cnt", domain->cq_cnt, OBJECTS_MAX },
                        { "domain_attr->ep_cnt", domain->ep_cnt, ENDPOINTS_MAX },
                        { "domain_attr->tx_ctx_cnt", domain->tx_ctx_cnt, ENDPOINTS_MAX },
                        { "domain_attr->rx_ctx_cnt", domain->rx_ctx_cnt, ENDPOINTS_MAX },
                        { "domain_attr->max_ep_tx_ctx", domain->max_ep_tx_ctx, 1 },
                        { "domain_attr->max_ep_rx_ctx", domain->max_ep_rx_ctx, 1 },
                        { "domain_attr->max_ep_stx_ctx", domain->max_ep_stx_ctx, 0 },
                        { "domain_attr->max_ep_srx_ctx", domain->max_ep_srx_ctx, 0 },
                        { "domain_attr->cntr_cnt", domain->cntr_cnt, OBJECTS_MAX },
                        { "domain_attr->mr_iov_limit", domain->mr_iov_limit, IVC_FI_IOV_MAX },
                        { "domain_attr->mr_cnt", domain->mr_cnt, OBJECTS_MAX },
                        { "domain_attr->max_err_data", domain->max_err_data, 0 });
}

static int check_fabric(const struct fi_fabric_attr *fabric)
{
    if (fabric->name && strcmp(fabric->name, IVC_FI_NAME) != 0)
        return ivc_fi_refuse("fabric_attr->name");
    if (fabric->prov_name && !strcasestr(fabric->prov_name, IVC_FI_NAME))
        return ivc_fi_refuse("fabric_attr->prov_name");
    if (fabric->prov_version > ivc_fi_provider.version)
        return ivc_fi_refuse("fabric_attr->prov_version");
    return 0;
}

int ivc_fi_hints_check(uint32_t version, const struct fi_info *hints)
{
    uint64_t offered = ivc_fi_caps_offered(version);
    uint64_t caps = hints->caps ? ivc_fi_caps_expand(hints->caps) : offered;
    int r = 0;

    if (hints->caps & ~offered)
        return ivc_fi_refuse("caps");
    if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != PROTOCOL)
        return ivc_fi_refuse("addr_format");
    if (hints->dest_addr && hints->dest_addrlen != IVC_ADDRESS_LEN)
        return ivc_fi_refuse("dest_addr");
    if (hints->handle)
        return ivc_fi_refuse("handle");
    if (hints->tx_attr)
        r = check_tx(hints->tx_attr, caps);
    if (r == 0 && hints->rx_attr)
        r = check_rx(hints->rx_attr, caps);
    if (r == 0 && hints->ep_attr)
        r = check_ep(hints->ep_attr);
    if (r == 0 && hints->domain_attr)
        r = check_domain(hints->domain_attr);
    if (r == 0 && hints->fabric_attr)
        r = check_fabric(hints->fabric_attr);
    return r;
}

int ivc_fi_info_check(const struct fi_info *info)
{
    return ivc_fi_hints_check(FI_VERSION(2, 0), info) == 0 ? 0 : -FI_EINVAL;
}
