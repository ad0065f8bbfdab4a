/*
 * Why a peer is on the path it is on, in one place for all who ask; and what the user requires of it
 * (IVC_REQUIRE, IVC_ON_PEER_LOSS).
 *
 * A peer that was reached through memory and is not any more has moved, or we have: that is never refused.  (One for
 * which the region has no room is not sent by network: sending fails, with IVC_E_NOSPACE.)
 */
#include "base/error.h"
#include "base/util.h"
#include "endpoint/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

/* `region`: of its address; `peer` is NULL while it is not known. */
static enum ivc_path_reason reason_of(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer, uint64_t region)
{
    bool gone = peer && ivc_peer_state(peer) == IVC_PEER_GONE;

    if (peer && ivc_peer_uses_memory(peer))
        return IVC_PATH_REASON_SHARED;
    if (peer && (peer->met || ivc_peer_is_attached(peer)))
        return gone ? IVC_PATH_REASON_GONE : IVC_PATH_REASON_AWAY;
    if (!endpoint->home.region)
        return IVC_PATH_REASON_NO_REGION_HERE;
    if (region == 0)
        return IVC_PATH_REASON_NO_REGION_THERE;
    if (region != ivc_address_region(&endpoint->home.info))
        return IVC_PATH_REASON_OTHER_REGION;
    if (gone)
        return IVC_PATH_REASON_GONE;
    return peer ? IVC_PATH_REASON_AWAY : IVC_PATH_REASON_SHARED;
}

static void explain(const struct ivc_endpoint *endpoint, enum ivc_path_reason reason, char *ret_text, size_t size)
{
    switch (reason) {
    case IVC_PATH_REASON_SHARED:
        snprintf(ret_text, size, "it shares a region with us");
        return;
    case IVC_PATH_REASON_NO_REGION_HERE:
        snprintf(ret_text, size, "this process has no region: %s", endpoint->no_region);
        return;
    case IVC_PATH_REASON_NO_REGION_THERE:
        snprintf(ret_text, size, "it has no region; give its guest the one that we are in (ivc_info there tells "
                 "what it has)");
        return;
    case IVC_PATH_REASON_OTHER_REGION:
        snprintf(ret_text, size, "it is in another region than ours, %s of uuid %s: one on another host, or "
                 "IVC_REGION there names another", endpoint->home.info.name, endpoint->home.info.uuid);
        return;
    case IVC_PATH_REASON_AWAY:
        snprintf(ret_text, size, "it or we have left the region that both were in, as for a migration");
        return;
    case IVC_PATH_REASON_GONE:
        snprintf(ret_text, size, "it has left or died");
        return;
    case IVC_PATH_REASON_FOREIGN:
        snprintf(ret_text, size, "%s", ivc_error_text());
        return;
    }
}

enum ivc_path_reason ivc_peer_path_reason(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                                          char *ret_text, size_t size)
{
    enum ivc_path_reason reason = reason_of(endpoint, peer, peer->told_region);

    explain(endpoint, reason, ret_text, size);
    return reason;
}

void ivc_peer_tell_why(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer, char *ret_text, size_t size)
{
    char why[480];
    enum ivc_path_reason reason = ivc_peer_path_reason(endpoint, peer, why, sizeof why);

    *ret_text = '\0';
    if (reason != IVC_PATH_REASON_SHARED && reason != IVC_PATH_REASON_GONE)
        snprintf(ret_text, size, "; not by memory: %s", why);
}

enum ivc_path_reason ivc_endpoint_path_reason(struct ivc_endpoint *endpoint, const struct ivc_address *address,
                                              char *ret_text, size_t size)
{
    struct ivc_address_fields fields = { 0 };
    enum ivc_path_reason reason = IVC_PATH_REASON_FOREIGN;

    if (ivc_address_read(address, &fields) == 0)
        reason = reason_of(endpoint, ivc_peer_find(endpoint, fields.id), ivc_address_told_region(&fields));
    explain(endpoint, reason, ret_text, size);
    return reason;
}

/* " at 10.0.0.1": the first of the addresses that its network tells, if it has one. */
static void where(const struct ivc_network_name *name, char *ret_text, size_t size)
{
    char text[INET6_ADDRSTRLEN] = "";

    if (name->provider && name->n_ip4 > 0)
        inet_ntop(AF_INET, name->bytes, text, sizeof text);
    else if (name->provider && name->n_ip6 > 0)
        inet_ntop(AF_INET6, name->bytes, text, sizeof text);
    snprintf(ret_text, size, "%s%s", text[0] ? " at " : "", text);
}

/* Sets the error that this peer cannot be reached. */
static int refuse(const struct ivc_endpoint *endpoint, const struct ivc_address_fields *fields,
                  enum ivc_path_reason reason, const char *because)
{
    char at[INET6_ADDRSTRLEN + 8], why[400];

    explain(endpoint, reason, why, sizeof why);
    where(&fields->network, at, sizeof at);
    return ivc_error_set(IVC_E_UNREACHABLE, "peer endpoint %016" PRIx64 "%s is not reached through memory: %s; %s",
                         fields->id, at, why, because);
}

int ivc_path_no_network(const struct ivc_endpoint *endpoint, const struct ivc_address_fields *fields)
{
    char because[300];

    snprintf(because, sizeof because, "and there is no network to it%s%.250s", endpoint->no_network[0] ? ": " : "",
             endpoint->no_network);
    return refuse(endpoint, fields, reason_of(endpoint, NULL, ivc_address_told_region(fields)), because);
}

int ivc_path_check(const struct ivc_endpoint *endpoint, const struct ivc_peer *peer,
                   const struct ivc_address_fields *fields)
{
    enum ivc_path_reason reason;

    if (!ivc_path_requires_memory())
        return 0;
    reason = reason_of(endpoint, peer, ivc_address_told_region(fields));
    if (reason == IVC_PATH_REASON_SHARED || reason == IVC_PATH_REASON_AWAY || reason == IVC_PATH_REASON_GONE)
        return 0;
    return refuse(endpoint, fields, reason, "IVC_REQUIRE=memory asks for memory to every peer");
}

int ivc_endpoint_check_path(struct ivc_endpoint *endpoint, const struct ivc_address *address)
{
    struct ivc_address_fields fields = { 0 };
    int r = ivc_address_read(address, &fields);

    return r != 0 ? r : ivc_path_check(endpoint, ivc_peer_find(endpoint, fields.id), &fields);
}

/* ---- what is required */

static const char *const requirements[] = { "any", "memory", NULL };
static const char *const on_losses[] = { "continue", "abort", NULL };

static unsigned chosen(const char *name, const char *const *words)
{
    unsigned choice = 0;

    (void)ivc_env_word(name, words, &choice);
    return choice;
}

int ivc_path_check_environment(void)
{
    unsigned choice;
    int r = ivc_env_word("IVC_REQUIRE", requirements, &choice);

    return r != 0 ? r : ivc_env_word("IVC_ON_PEER_LOSS", on_losses, &choice);
}

bool ivc_path_requires_memory(void)
{
    return chosen("IVC_REQUIRE", requirements) == 1;
}

bool ivc_path_ends_with_peer(void)
{
    return chosen("IVC_ON_PEER_LOSS", on_losses) == 1;
}
