/*
 * fi_getinfo(): shall we show ourselves, and is what we offer what was asked for?
 *
 * Invariant: what is returned is served (offer.c); what was asked beyond it makes the answer
 * "nothing" (-FI_ENODATA, hints.c).
 */
#include "offer.h"
#include "region/region.h"

/* Looked for once per process: opening a region measures it. */
static int look_for_region(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool known;
    static int answer;
    struct ivc_region *region;

    pthread_mutex_lock(&lock);
    if (!known) {
        known = true;
        answer = ivc_region_open(NULL, &region);
        if (answer == 0) {
            ivc_region_free(region);
        } else if (ivc_region_is_others(NULL, answer)) {
            ivc_fi_say("%s; going on without it", ivc_error_text());
            answer = IVC_E_NOREGION;
        } else if (answer < 0) {
            ivc_fi_say("%s", ivc_error_text());
        } else if (ivc_path_requires_memory()) {
            ivc_fi_say("IVC_REQUIRE=memory asks for memory to every peer, and this process has no region: %s",
                       ivc_error_text());
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Without a region: whether a network may be there.  Which one, and why not, is found out when an
 * endpoint is opened. */
static bool may_have_network(void)
{
    static ivc_atomic_u32 said;
    const char *network = getenv("IVC_NETWORK");

    if (!network || strcmp(network, "none") != 0)
        return true;
    if (ivc_cas(&said, 0, 1))
        ivc_fi_say("neither shared memory nor a network: there is no region (IVC_REGION), and "
                   "IVC_NETWORK=none switches the network off");
    return false;
}

/* Whether FI_PROVIDER names us, as libfabric reads it: names in either case, parted by commas alone. */
static bool is_in_list(const char *list)
{
    const size_t len = strlen(IVC_FI_NAME);

    for (const char *at = list; *at; at += *at != '\0') {
        size_t n = strcspn(at, ",");

        if (n == len && strncasecmp(at, IVC_FI_NAME, len) == 0)
            return true;
        at += n;
    }
    return false;
}

/* Whether the user, by FI_PROVIDER, or the program, by its hints, asked for us by name. */
static bool is_named(const struct fi_info *hints)
{
    const char *list = getenv("FI_PROVIDER");

    if (hints && hints->fabric_attr && hints->fabric_attr->prov_name)
        return true;        /* it is our name: checked before */
    return list && *list != '^' && is_in_list(list);
}

void ivc_fi_check_spelling(void)
{
    static ivc_atomic_u32 said;
    const char *list = getenv("FI_PROVIDER");

    if (!list || *list == '^' || !strcasestr(list, IVC_FI_NAME) || is_in_list(list))
        return;
    if (ivc_cas(&said, 0, 1))
        ivc_fi_say("FI_PROVIDER='%s' does not name this provider: libfabric takes names parted by commas, without "
                   "blanks; write FI_PROVIDER=" IVC_FI_NAME, list);
}

/*
 * An address of ours is not made of a node and a service.  A service alone as a source is ignored:
 * there is nothing to bind, and programs that exchange addresses themselves pass one all the same.
 */
static int check_name(const char *node, const char *service, uint64_t flags)
{
    if (node)
        return ivc_fi_refuse("addresses by node name: exchange what fi_getname() gives");
    if (service && !(flags & FI_SOURCE))
        return ivc_fi_refuse("addresses by service: exchange what fi_getname() gives");
    return 0;
}

int ivc_fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **ret_info)
{
    int r = check_name(node, service, flags);

    if (r == 0 && hints)
        r = ivc_fi_hints_check(version, hints);
    if (r == 0 && hints && hints->domain_attr)
        r = ivc_fi_hints_check_mr_mode(version, hints->domain_attr->mr_mode);
    if (r != 0)
        return r;
    /* Without a region there is only the network that others offer as well: not unasked. */
    r = look_for_region();
    if (r < 0 || (r != 0 && (ivc_path_requires_memory() || !is_named(hints) || !may_have_network())))
        return -FI_ENODATA;
    return ivc_fi_offer_make(version, hints, ret_info);
}
