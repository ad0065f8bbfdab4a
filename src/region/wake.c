/* Datagrams that wake: see wake.h. */
#include "region/wake.h"

#include "base/ip.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

enum {
    FAMILY_IP4 = 4, FAMILY_IP6 = 6,    /* of struct ivc_layout_wake */
    PORT_MIN = 1024,        /* nobody of ours has a lower one */
    TAKE_MAX = 64,          /* datagrams in one go: whoever sends for ever does not keep us here */
};

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

static void name_of(const union ivc_ip *address, struct ivc_layout_wake *ret_name)
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
    struct ivc_own_ip own = { .ip = { .any = { .sa_family = AF_UNSPEC } } };
    socklen_t len = sizeof own.ip;
    int fd;

    if (where)
        memcpy(&own.ip, where, where->sa_family == AF_INET ? sizeof own.ip.ip4 : sizeof own.ip.ip6);
    else
        (void)ivc_ip_list(&own, 1);
    /* On the loopback interface nobody comes from another kernel. */
    if (own.ip.any.sa_family == AF_UNSPEC || own.rank == IVC_IP_LOOPBACK)
        return -1;
    fd = socket(own.ip.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, &own.ip.any, ivc_ip_size(&own.ip)) == 0
        && getsockname(fd, &own.ip.any, &len) == 0) {
        name_of(&own.ip, ret_name);
        return fd;
    }
    ivc_close_p(&fd);
    return -1;
}

void ivc_wake_open(struct ivc_wake *wake, uint64_t id, const struct sockaddr *address)
{
    *wake = (struct ivc_wake){ .id = id, .here = open_here(id) };
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
static bool address_of(const struct ivc_layout_wake *name, union ivc_ip *ret_address)
{
    *ret_address = (union ivc_ip){ .any = { .sa_family = AF_UNSPEC } };
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

struct ivc_wake_target ivc_wake_target_of(uint64_t id, bool same_kernel, const struct ivc_layout_wake *name)
{
    struct ivc_wake_target target = { id, same_kernel, *name };
    union ivc_ip there;

    if (!same_kernel && address_of(name, &there) && ivc_ip_is_own(&there, NULL))
        target.name = (struct ivc_layout_wake){ 0 };
    return target;
}

void ivc_wake_send(const struct ivc_wake *wake, const struct ivc_wake_target *target)
{
    enum { FLAGS = MSG_DONTWAIT | MSG_NOSIGNAL };
    uint64_t word = target->id;
    union ivc_ip there;
    struct sockaddr_un here;
    socklen_t len = local_name(target->id, &here);

    /* Those of one kernel may still live in two network namespaces, as containers do: then by UDP. */
    if (target->same_kernel && wake->here >= 0
        && (sendto(wake->here, &word, sizeof word, FLAGS, (struct sockaddr *)&here, len) >= 0
            || errno == EAGAIN))    /* as many are waiting for it as there is room for */
        return;
    if (wake->there >= 0 && address_of(&target->name, &there)
        && sendto(wake->there, &word, sizeof word, FLAGS, &there.any, ivc_ip_size(&there)) < 0)
        return;     /* it looks by itself, later */
}

static bool take_from(const struct ivc_wake *wake, int fd)
{
    uint64_t words[2];
    bool ours = false;
    ssize_t len;

    for (int n = 0; fd >= 0 && n < TAKE_MAX && (len = recv(fd, words, sizeof words, MSG_DONTWAIT)) >= 0; n++)
        ours |= len == sizeof *words && words[0] == wake->id;
    return ours;
}

bool ivc_wake_take(const struct ivc_wake *wake)
{
    bool here = take_from(wake, wake->here), there = take_from(wake, wake->there);

    return here || there;
}
