/*
 * Looking before receiving: FI_PEEK, FI_CLAIM and FI_DISCARD of tagged receives.
 *
 * Invariant: a claimed message is in no matcher, only in the list of the claimed, until the receive
 * with the same context takes it or throws it away.
 */
#include "receive.h"

static void report_peeked(struct ivc_fi_ep *ep, const struct post *probe, const struct about *about,
                          size_t len)
{
    const struct fi_cq_tagged_entry entry = {
        .op_context = probe->context, .flags = ivc_fi_receive_flags(probe->flags, about->flags),
        .len = len, .data = about->data, .tag = about->tag,
    };

    if (ep->rx_cq)
        ivc_fi_cq_put(ep->rx_cq, &entry, about->peer->addr);
}

void ivc_fi_peek(struct ivc_fi_ep *ep, const struct post *probe, uint64_t flags)
{
    struct receive *receive = ep->receive;
    struct early *early;

    ivc_fi_ep_progress(ep);
    early = ivc_fi_early_find(probe->match, probe);
    if (!early) {
        /* Who looks until there is something would look for ever. */
        bool gone = probe->wait.from && probe->wait.from->gone;
        const struct fi_cq_err_entry entry = {
            .op_context = probe->context, .flags = probe->flags, .tag = probe->wait.tag,
            .err = gone ? FI_ECONNABORTED : FI_ENOMSG,
            .prov_errno = gone ? FI_ECONNABORTED : FI_ENOMSG,
        };

        if (ep->rx_cq)
            ivc_fi_cq_put_error(ep->rx_cq, &entry);
        return;
    }
    report_peeked(ep, probe, &early->about, early->about.len);
    if (flags & (FI_CLAIM | FI_DISCARD))
        ivc_fi_match_remove_early(early->match, &early->wait);
    if (flags & FI_DISCARD) {
        ivc_fi_drop(ep, early);
    } else if (flags & FI_CLAIM) {
        early->claimed = true;
        early->context = probe->context;
        early->next = receive->claimed;
        receive->claimed = early;
    }
}

ssize_t ivc_fi_claim(struct ivc_fi_ep *ep, struct post *post, uint64_t flags)
{
    struct receive *receive = ep->receive;
    struct early **at = &receive->claimed, *early;

    while (*at && ((*at)->context != post->context || (*at)->match != post->match))
        at = &(*at)->next;
    early = *at;
    if (!early) {
        ivc_fi_post_put(ep, post);
        return -FI_ENOMSG;
    }
    *at = early->next;
    early->claimed = false;
    if (flags & FI_DISCARD) {
        report_peeked(ep, post, &early->about, 0);
        ivc_fi_post_put(ep, post);
        ivc_fi_drop(ep, early);
    } else {
        ivc_fi_take(ep, early, post);
    }
    return 0;
}
