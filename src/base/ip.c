/* Addresses of IP: see ip.h. */
#include "base/ip.h"

#include "base/util.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>

bool ivc_ip_is_one(const union ivc_ip *ip)
{
    return ip->any.sa_family == AF_INET || ip->any.sa_family == AF_INET6;
}

socklen_t ivc_ip_size(const union ivc_ip *ip)
{
    return ip->any.sa_family == AF_INET ? sizeof ip->ip4 : sizeof ip->ip6;
}

void ivc_ip_set_port(union ivc_ip *ip, unsigned port)
{
    if (ip->any.sa_family == AF_INET)
        ip->ip4.sin_port = htons((uint16_t)port);
    else
        ip->ip6.sin6_port = htons((uint16_t)port);
}

bool ivc_ip_is_same(const union ivc_ip *a, const union ivc_ip *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    if (a->any.sa_family == AF_INET)
        return a->ip4.sin_addr.s_addr == b->ip4.sin_addr.s_addr;
    return a->any.sa_family == AF_INET6
           && memcmp(&a->ip6.sin6_addr, &b->ip6.sin6_addr, sizeof a->ip6.sin6_addr) == 0;
}

void ivc_ip_text(const union ivc_ip *ip, char *ret_text, size_t size)
{
    const void *address = ip->any.sa_family == AF_INET ? (const void *)&ip->ip4.sin_addr
                          : (const void *)&ip->ip6.sin6_addr;

    if (!ivc_ip_is_one(ip) || !inet_ntop(ip->any.sa_family, address, ret_text, (socklen_t)size))
        snprintf(ret_text, size, "?");
}

const char *ivc_ip_wanted_interface(void)
{
    const char *name = getenv("FI_TCP_IFACE");

    if (!name || !*name)
        name = getenv("FI_NET_IFACE");
    return name && *name ? name : NULL;
}

static bool read_one(const struct ifaddrs *one, union ivc_ip *ret_ip)
{
    *ret_ip = (union ivc_ip){ .any = { .sa_family = AF_UNSPEC } };
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP))
        return false;
    if (one->ifa_addr->sa_family == AF_INET)
        memcpy(ret_ip, one->ifa_addr, sizeof ret_ip->ip4);
    else if (one->ifa_addr->sa_family == AF_INET6)
        memcpy(ret_ip, one->ifa_addr, sizeof ret_ip->ip6);
    return ivc_ip_is_one(ret_ip);
}

static bool is_of_bridge(const char *interface)
{
    static const char *const bridges[] = {
        "docker", "br-", "virbr", "lxcbr", "lxdbr", "cni", "cbr", "podman", "vboxnet", "vmnet", "flannel",
    };

    for (size_t i = 0; i < sizeof bridges / sizeof *bridges; i++)
        if (strncmp(interface, bridges[i], strlen(bridges[i])) == 0)
            return true;
    return false;
}

static enum ivc_ip_rank rank_of(const struct ifaddrs *one, const union ivc_ip *ip)
{
    enum { USER_NETWORK = 0x0a00020f, LINK_LOCAL = 0xa9fe };    /* 10.0.2.15, 169.254.0.0/16 */
    uint32_t four = ip->any.sa_family == AF_INET ? ntohl(ip->ip4.sin_addr.s_addr) : 0;

    if (one->ifa_flags & IFF_LOOPBACK)
        return IVC_IP_LOOPBACK;
    if (is_of_bridge(one->ifa_name) || four == USER_NETWORK)
        return IVC_IP_EVERYWHERE;
    return four >> 16 == LINK_LOCAL ? IVC_IP_LINK_LOCAL : IVC_IP_NETWORK;
}

/* Behind those of its rank, in the order of the interfaces; the worst goes when there is no room. */
static unsigned insert(struct ivc_own_ip *list, unsigned n, unsigned max, const struct ivc_own_ip *one)
{
    unsigned at = n;

    while (at > 0 && list[at - 1].rank > one->rank)
        at--;
    if (at == max)
        return n;
    n -= n == max;
    memmove(list + at + 1, list + at, (n - at) * sizeof *list);
    list[at] = *one;
    return n + 1;
}

static unsigned list_family(const struct ifaddrs *all, int family, struct ivc_own_ip *ret_list,
                            unsigned max)
{
    const char *wanted = ivc_ip_wanted_interface();
    unsigned n = 0;

    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        struct ivc_own_ip own;

        if (!read_one(one, &own.ip) || own.ip.any.sa_family != family
            || (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&own.ip.ip6.sin6_addr))
            || (wanted && strcmp(one->ifa_name, wanted) != 0))
            continue;
        own.rank = rank_of(one, &own.ip);
        snprintf(own.interface, sizeof own.interface, "%s", one->ifa_name);
        n = insert(ret_list, n, max, &own);
    }
    /* What leads to the caller itself is no use beside something that leads anywhere. */
    while (n > 1 && ret_list[n - 1].rank == IVC_IP_LOOPBACK && ret_list[0].rank != IVC_IP_LOOPBACK)
        n--;
    return n;
}

unsigned ivc_ip_list(struct ivc_own_ip *ret_list, unsigned max)
{
    struct ifaddrs *all;
    struct ivc_own_ip six[1];
    unsigned n;

    if (getifaddrs(&all) < 0)
        return 0;
    n = list_family(all, AF_INET, ret_list, max);
    /* Loopback of IPv4 is no network where there is one of IPv6. */
    if ((n == 0 || (ret_list[0].rank == IVC_IP_LOOPBACK && !ivc_ip_wanted_interface()))
        && list_family(all, AF_INET6, six, 1) > 0 && (n == 0 || six[0].rank != IVC_IP_LOOPBACK))
        n = list_family(all, AF_INET6, ret_list, max);
    freeifaddrs(all);
    return n;
}

bool ivc_ip_is_own(const union ivc_ip *ip, char ret_interface[IF_NAMESIZE])
{
    struct ifaddrs *all;
    bool own = false;

    if (getifaddrs(&all) < 0)
        return false;
    for (const struct ifaddrs *one = all; one && !own; one = one->ifa_next) {
        union ivc_ip other;

        own = read_one(one, &other) && ivc_ip_is_same(&other, ip);
        if (own && ret_interface)
            snprintf(ret_interface, IF_NAMESIZE, "%s", one->ifa_name);
    }
    freeifaddrs(all);
    return own;
}
