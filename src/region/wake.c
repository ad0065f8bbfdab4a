/* Datagrams that wake: see wake.h. */
#include "region/wake.h"

#include "base/util.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

enum {
    FAMILY_IP4 = 4, FAMILY_IP6 = 6,    /* of struct ivc_layout_wake */
    PORT_MIN = 1024,        /* nobody of ours has a lower one */
    TAKE_MAX = 64,          /* datagrams in one go: whoever sends for ever does not keep us here */
};

union address {
    struct sockaddr any;
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
    struct sockaddr_storage room;
};

static socklen_t size_of(const union address *address)
{
    return address->any.sa_family == AF_INET ? sizeof address->ip4 : sizeof address->ip6;
}

/* An abstract name, which goes with its socket. */
static socklen_t local_name(uint64_t id, struct sockaddr_un *ret_name)
{
    *ret_name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1
                       + (size_t)snprintf(ret_name->sun_path + 1, sizeof ret_name->sun_path - 1,
                                          "ivc-%016" PRIx64, id));
}

static int open_here(uint64_t id)
{
    struct sockaddr_un name;
    socklen_t len = local_name(id, &name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&name, len) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool is_better(const struct ifaddrs *one, const union address *than)
{
    if (!one->ifa_addr || (one->ifa_flags & (IFF_UP | IFF_LOOPBACK)) != IFF_UP)
        return false;
    if (one->ifa_addr->sa_family == AF_INET)
        return than->any.sa_family != AF_INET;
    return one->ifa_addr->sa_family == AF_INET6 && than->any.sa_family == AF_UNSPEC
           && !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)one->ifa_addr)->sin6_addr);
}

/* The first address of this guest that is no loopback; one of IPv4 if there is one. */
static void find_address(union address *ret_address)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) < 0)
        return;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        if (is_better(one, ret_address))
            memcpy(ret_address, one->ifa_addr, one->ifa_addr->sa_family == AF_INET
                   ? sizeof ret_address->ip4 : sizeof ret_address->ip6);
    freeifaddrs(all);
}

static void name_of(const union address *address, struct ivc_layout_wake *ret_name)
{
    if (address->any.sa_family == AF_INET) {
        ret_name->family = FAMILY_IP4;
        ret_name->port = ntohs(address->ip4.sin_port);
        memcpy(ret_name->address, &address->ip4.sin_addr, 4);
    } else {
        ret_name->family = FAMILY_IP6;
        ret_name->port = ntohs(address->ip6.sin6_port);
        memcpy(ret_name->address, &address->ip6.sin6_addr, 16);
    }
}

static int open_there(const struct sockaddr *where, struct ivc_layout_wake *ret_name)
{
    union address address = { .any = { .sa_family = AF_UNSPEC } };
    socklen_t len = sizeof address;
    int fd;

    if (where && where->sa_family == AF_INET)
        memcpy(&address, where, sizeof address.ip4);
    else if (where && where->sa_family == AF_INET6)
        memcpy(&address, where, sizeof address.ip6);
    else
        find_address(&address);
    if (address.any.sa_family == AF_UNSPEC)
        return -1;
    if (address.any.sa_family == AF_INET)
        address.ip4.sin_port = 0;
    else
        address.ip6.sin6_port = 0;
    fd = socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, &address.any, size_of(&address)) == 0
        && getsockname(fd, &address.any, &len) == 0) {
        name_of(&address, ret_name);
        return fd;
    }
    ivc_close_p(&fd);
    return -1;
}

void ivc_wake_open(struct ivc_wake *wake, uint64_t id, const struct sockaddr *address)
{
    *wake = (struct ivc_wake){ .here = open_here(id) };
    wake->there = open_there(address, &wake->name);
}

void ivc_wake_close(struct ivc_wake *wake)
{
    ivc_close_p(&wake->here);
    ivc_close_p(&wake->there);
    wake->here = wake->there = -1;
}

/* False: that is no place of a member's.  What it says comes from shared memory, and must not make us
 * send to a whole network, or to a service of the system. */
static bool address_of(const struct ivc_layout_wake *name, union address *ret_address)
{
    *ret_address = (union address){ .any = { .sa_family = AF_UNSPEC } };
    if (name->port < PORT_MIN)
        return false;
    if (name->family == FAMILY_IP4) {
        ret_address->ip4.sin_family = AF_INET;
        ret_address->ip4.sin_port = htons(name->port);
        memcpy(&ret_address->ip4.sin_addr, name->address, 4);
        return !IN_MULTICAST(ntohl(ret_address->ip4.sin_addr.s_addr));
    }
    ret_address->ip6.sin6_family = AF_INET6;
    ret_address->ip6.sin6_port = htons(name->port);
    memcpy(&ret_address->ip6.sin6_addr, name->address, 16);
    return name->family == FAMILY_IP6 && !IN6_IS_ADDR_MULTICAST(&ret_address->ip6.sin6_addr);
}

void ivc_wake_send(const struct ivc_wake *wake, const struct ivc_wake_target *target)
{
    enum { FLAGS = MSG_DONTWAIT | MSG_NOSIGNAL };
    static const char word[] = "ivc: look";
    union address there;
    struct sockaddr_un here;
    socklen_t len = local_name(target->id, &here);

    /* Those of one kernel may still live in two network namespaces, as containers do: then by UDP. */
    if (target->same_kernel && wake->here >= 0
        && (sendto(wake->here, word, sizeof word, FLAGS, (struct sockaddr *)&here, len) >= 0
            || errno == EAGAIN))    /* as many are waiting for it as there is room for */
        return;
    if (wake->there >= 0 && address_of(&target->name, &there)
        && sendto(wake->there, word, sizeof word, FLAGS, &there.any, size_of(&there)) < 0)
        return;     /* it looks by itself, later */
}

static bool take_from(int fd)
{
    char bytes[16];
    int n = 0;

    while (fd >= 0 && n < TAKE_MAX && recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) >= 0)
        n++;
    return n > 0;
}

bool ivc_wake_take(const struct ivc_wake *wake)
{
    bool here = take_from(wake->here), there = take_from(wake->there);

    return here || there;
}
