/*
 * Pulls: reading memory of the other end of a route, straight into its place.
 *
 * A pull is cut into as many reads as the provider's limits demand.  Its caller hears of it once,
 * from progress, when the last read has ended.
 */
#include "base/error.h"
#include "network/internal.h"

#include <errno.h>
#include <inttypes.h>

enum { PULLS_MAX = 64 };        /* under way on one route */

bool ivc_network_can_pull(const struct ivc_network *network)
{
    return ivc_network_is_bound(network) && network->provider.rma;
}

static int register_memory(struct ivc_network *network, const void *memory, size_t len,
                           uint64_t access, struct fid_mr **ret_mr)
{
    uint64_t key = atomic_fetch_add_explicit(&network->next_key, 1, memory_order_relaxed);
    struct fid_mr *mr;
    int r = fi_mr_reg(network->domain, memory, len, access, 0, key, 0, &mr, NULL);

    if (r == 0 && network->endpoint_mr) {
        r = fi_mr_bind(mr, &network->ep->fid, 0);
        if (r == 0)
            r = fi_mr_enable(mr);
        if (r < 0)
            fi_close(&mr->fid);
    }
    if (r < 0)
        return ivc_error_set(-ENOMEM, "network: %s cannot register %zu bytes: %s",
                             network->provider.info->fabric_attr->prov_name, len,
                             network->libfabric.strerror(-r));
    *ret_mr = mr;
    return 0;
}

int ivc_network_expose(struct ivc_network *network, const void *memory, size_t len,
                       struct ivc_network_exposure *ret_exposure)
{
    struct fid_mr *mr = NULL;
    int r;

    if (!ivc_network_can_pull(network))
        return ivc_error_set(-EOPNOTSUPP, "network: the provider cannot read remote memory (%s)",
                             ivc_network_describe(network));
    r = register_memory(network, memory, len, FI_REMOTE_READ, &mr);
    if (r < 0)
        return r;
    *ret_exposure = (struct ivc_network_exposure){
        .where = network->virtual_addresses ? (uint64_t)(uintptr_t)memory : 0,
        .key = fi_mr_key(mr), .registration = mr,
    };
    return 0;
}

void ivc_network_unexpose(struct ivc_network *network, struct ivc_network_exposure *exposure)
{
    struct fid_mr *mr = exposure->registration;

    (void)network;
    exposure->registration = NULL;
    if (mr)
        fi_close(&mr->fid);
}

static void free_pull(struct ivc_pull *pull)
{
    for (unsigned i = 0; pull->local && i < pull->n_iov; i++)
        if (pull->local[i])
            fi_close(&pull->local[i]->fid);
    free(pull->local);
    free(pull->descs);
    free(pull->parts);
    free(pull->iov);
    free(pull);
}

/* Pieces no longer than the provider's longest message. */
static unsigned cut(const struct iovec *iov, unsigned n_iov, size_t max, struct iovec *ret_pieces)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_iov; i++)
        for (size_t at = 0; at < iov[i].iov_len; n++) {
            size_t len = IVC_MIN(iov[i].iov_len - at, max);

            if (ret_pieces)
                ret_pieces[n] = (struct iovec){ (char *)iov[i].iov_base + at, len };
            at += len;
        }
    return n;
}

static void group(struct ivc_pull *pull, uint64_t where, size_t iov_max, size_t bytes_max)
{
    struct ivc_part *part = NULL;

    for (unsigned i = 0; i < pull->n_iov; i++) {
        size_t len = pull->iov[i].iov_len;

        if (!part || part->n_iov == iov_max || part->len + len > bytes_max) {
            part = &pull->parts[pull->n_parts++];
            *part = (struct ivc_part){ .op.kind = IVC_OP_PULL, .pull = pull, .first_iov = i,
                                       .where = where };
        }
        part->n_iov++;
        part->len += len;
        where += len;
    }
}

static int register_places(struct ivc_network *network, struct ivc_pull *pull)
{
    pull->local = calloc(pull->n_iov, sizeof *pull->local);
    pull->descs = calloc(pull->n_iov, sizeof *pull->descs);
    if (!pull->local || !pull->descs)
        return ivc_error_set(-ENOMEM, "network: out of memory");
    for (unsigned i = 0; i < pull->n_iov; i++) {
        int r = register_memory(network, pull->iov[i].iov_base, pull->iov[i].iov_len, FI_READ,
                                &pull->local[i]);

        if (r < 0)
            return r;
        pull->descs[i] = fi_mr_desc(pull->local[i]);
    }
    return 0;
}

static int make_pull(struct ivc_network *network, struct ivc_route *route, uint64_t where,
                     uint64_t key, const struct iovec *iov, unsigned n_iov,
                     struct ivc_pull **ret_pull)
{
    size_t max = IVC_MAX(network->provider.info->ep_attr->max_msg_size, 1);
    struct ivc_pull *pull = calloc(1, sizeof *pull);
    int r = 0;

    if (!pull)
        return ivc_error_set(-ENOMEM, "network: out of memory");
    pull->route = route;
    pull->key = key;
    pull->n_iov = cut(iov, n_iov, max, NULL);
    pull->iov = calloc(pull->n_iov + 1, sizeof *pull->iov);
    pull->parts = calloc(pull->n_iov + 1, sizeof *pull->parts);
    if (!pull->iov || !pull->parts) {
        r = ivc_error_set(-ENOMEM, "network: out of memory");
    } else {
        cut(iov, n_iov, max, pull->iov);
        group(pull, where, network->iov_max, max);
        if (network->local_mr)
            r = register_places(network, pull);
    }
    if (r < 0) {
        free_pull(pull);
        return r;
    }
    *ret_pull = pull;
    return 0;
}

static void link_to(struct ivc_pull **head, struct ivc_pull *pull)
{
    pull->next = *head;
    pull->link = head;
    if (*head)
        (*head)->link = &pull->next;
    *head = pull;
}

static void unlink_from(struct ivc_pull *pull)
{
    *pull->link = pull->next;
    if (pull->next)
        pull->next->link = pull->link;
}

/* The lock is held. */
static void link_pull(struct ivc_route *route, struct ivc_pull *pull)
{
    link_to(&route->pulls, pull);
    route->n_pulls++;
    route->sent++;
    route->used = true;
}

static void unlink_pull(struct ivc_route *route, struct ivc_pull *pull)
{
    unlink_from(pull);
    route->n_pulls--;
}

/*
 * Hands parts to the provider, until it has all or takes no more (the provider's answer is
 * returned).  With the last part the pull may end, in another thread, and be gone.
 */
static ssize_t issue(struct ivc_network *network, struct ivc_pull *pull)
{
    unsigned n = pull->n_parts;

    for (unsigned i = pull->issued; i < n; i++) {
        struct ivc_part *part = &pull->parts[i];
        struct fi_rma_iov from = { .addr = part->where, .len = part->len, .key = pull->key };
        struct fi_msg_rma msg = {
            .msg_iov = &pull->iov[part->first_iov], .iov_count = part->n_iov,
            .desc = pull->descs ? &pull->descs[part->first_iov] : NULL,
            .addr = pull->route->address, .rma_iov = &from, .rma_iov_count = 1,
            .context = &part->op,
        };
        ssize_t r;

        pull->issued = i + 1;
        r = fi_readmsg(network->ep, &msg, FI_COMPLETION);
        if (r < 0) {
            pull->issued = i;
            return r;
        }
    }
    return 0;
}

static void wait_for_room(struct ivc_network *network, struct ivc_pull *pull)
{
    ivc_network_lock(network);
    pull->next_waiting = NULL;
    *network->waiting_end = pull;
    network->waiting_end = &pull->next_waiting;
    atomic_fetch_add_explicit(&network->n_waiting, 1, memory_order_relaxed);
    ivc_network_unlock(network);
}

int ivc_network_pull(struct ivc_network *network, struct ivc_route *route, uint64_t where,
                     uint64_t key, const struct iovec *iov, unsigned n_iov,
                     ivc_network_pulled_fn *fn, void *arg)
{
    struct ivc_pull *pull = NULL;
    ssize_t r;
    int answer;

    ivc_network_lock(network);
    answer = ivc_route_check(network, route);
    ivc_network_unlock(network);
    if (answer != 0)
        return answer;
    if (!network->provider.rma)
        return ivc_error_set(-EOPNOTSUPP, "network: %s cannot read remote memory",
                             network->provider.info->fabric_attr->prov_name);
    if (route->n_pulls >= PULLS_MAX)
        return IVC_E_FULL;
    answer = make_pull(network, route, where, key, iov, n_iov, &pull);
    if (answer != 0)
        return answer;
    if (pull->n_parts == 0) {
        free_pull(pull);
        return ivc_error_set(-EINVAL, "network: nothing to pull");
    }
    pull->fn = fn;
    pull->arg = arg;
    ivc_network_lock(network);
    answer = ivc_route_check(network, route);
    if (answer == 0)
        link_pull(route, pull);
    ivc_network_unlock(network);
    if (answer != 0) {
        free_pull(pull);
        return answer;
    }
    r = issue(network, pull);
    if (r == 0)
        return 0;
    if (pull->issued > 0) {     /* no way back: progress does the rest */
        wait_for_room(network, pull);
        return 0;
    }
    ivc_network_lock(network);
    unlink_pull(route, pull);
    ivc_network_unlock(network);
    free_pull(pull);
    return ivc_route_answer(network, route, r);
}

/* All parts have ended. */
static void end(struct ivc_network *network, struct ivc_pull *pull)
{
    struct ivc_pull ended = *pull;

    ivc_network_lock(network);
    if (pull->abandoned)
        unlink_from(pull);
    else
        unlink_pull(pull->route, pull);
    ivc_network_unlock(network);
    free_pull(pull);
    if (ended.fn)
        ended.fn(ended.arg, network->draining ? IVC_E_GONE : ended.status);
}

int ivc_pull_ended(struct ivc_network *network, struct ivc_part *part, int status)
{
    struct ivc_pull *pull = part->pull;

    ivc_network_lock(network);
    pull->route->ended++;
    ivc_network_unlock(network);
    if (status != 0)
        pull->status = status;
    if (++pull->ended < pull->n_parts)
        return 0;
    end(network, pull);
    return 1;
}

/* The parts that were never handed over end here. */
static void give_up(struct ivc_network *network, struct ivc_pull *pull)
{
    pull->status = IVC_E_GONE;
    pull->n_parts = pull->issued;
    if (pull->ended == pull->n_parts)
        end(network, pull);
}

void ivc_pulls_push(struct ivc_network *network)
{
    struct ivc_pull *list, *next;

    ivc_network_lock(network);
    list = network->waiting;
    network->waiting = NULL;
    network->waiting_end = &network->waiting;
    atomic_store_explicit(&network->n_waiting, 0, memory_order_relaxed);
    ivc_network_unlock(network);
    for (; list; list = next) {
        struct ivc_route *route = list->route;
        ssize_t r;

        next = list->next_waiting;
        if (ivc_route_state(route) != IVC_ROUTE_UP) {
            give_up(network, list);
            continue;
        }
        r = issue(network, list);
        if (r == 0)
            continue;
        if (ivc_route_answer(network, route, r) == IVC_E_FULL)
            wait_for_room(network, list);
        else
            give_up(network, list);
    }
}

void ivc_pulls_abandon(struct ivc_network *network, struct ivc_route *route)
{
    for (;;) {
        ivc_network_pulled_fn *fn;
        struct ivc_pull *pull;
        void *arg;

        ivc_network_lock(network);
        pull = route->pulls;
        if (pull) {
            unlink_pull(route, pull);
            link_to(&network->abandoned, pull);
            pull->abandoned = true;
            fn = pull->fn;
            arg = pull->arg;
            pull->fn = NULL;
        }
        ivc_network_unlock(network);
        if (!pull)
            return;
        if (fn)
            fn(arg, IVC_E_GONE);
    }
}

void ivc_pulls_free(struct ivc_network *network)
{
    struct ivc_pull *next;

    for (struct ivc_route *route = network->routes; route; route = route->next)
        ivc_pulls_abandon(network, route);
    for (struct ivc_pull *pull = network->abandoned; pull; pull = next) {
        next = pull->next;
        free_pull(pull);
    }
}
