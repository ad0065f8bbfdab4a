/*
 * This guest's own addresses of IP: which of them others are told, and in which order they are tried.
 *
 * An address that is the same everywhere (docker's 172.17.0.1, libvirt's 192.168.122.1, the 10.0.2.15 of QEMU's
 * user network) leads a peer to itself, so those come last, and one of the loopback interface only where there is
 * nothing else.  Where FI_TCP_IFACE (or FI_NET_IFACE) names an interface, it is that one alone.
 */
#ifndef IVC_BASE_IP_H
#define IVC_BASE_IP_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

union ivc_ip {
    struct sockaddr any;
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
};

/* The lowest is told first. */
enum ivc_ip_rank { IVC_IP_NETWORK, IVC_IP_LINK_LOCAL, IVC_IP_EVERYWHERE, IVC_IP_LOOPBACK };

struct ivc_own_ip {
    union ivc_ip ip;            /* port 0 */
    char interface[IF_NAMESIZE];
    enum ivc_ip_rank rank;
};

/* Those that others may be told, best first: all of IPv4, or of IPv6 where there is none of IPv4.  The
 * number of them; 0: there is none, or not on the interface that was named. */
unsigned ivc_ip_list(struct ivc_own_ip *ret_list, unsigned max);
/* The interface that the environment names; NULL: none. */
const char *ivc_ip_wanted_interface(void);
/* Whether an interface of this guest has it, whatever the port; `ret_interface` may be NULL. */
bool ivc_ip_is_own(const union ivc_ip *ip, char ret_interface[IF_NAMESIZE]);
/* Ports do not count. */
bool ivc_ip_is_same(const union ivc_ip *a, const union ivc_ip *b);
bool ivc_ip_is_one(const union ivc_ip *ip);
socklen_t ivc_ip_size(const union ivc_ip *ip);
void ivc_ip_set_port(union ivc_ip *ip, unsigned port);
/* "10.0.0.1", without the port. */
void ivc_ip_text(const union ivc_ip *ip, char *ret_text, size_t size);

#endif
