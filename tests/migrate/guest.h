/*
 * Guests and hosts of a migration test, without a hypervisor: a host is a region's file, a guest is
 * a name (IVC_VM) and a symbolic link to the file of the host on which it is (IVC_REGION).  To
 * change the link is to move the device.
 *
 * Or a host has grants (tests/fake_grants.h): then the link also says as which domain the guest is there,
 * which is another one after each move, and orders lie in the host's store.
 */
#ifndef IVC_TESTS_MIGRATE_GUEST_H
#define IVC_TESTS_MIGRATE_GUEST_H

#include "region/order.h"
#include "region/region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct host {
    char path[96];
    struct ivc_region *region;      /* as the one who gives orders sees it; joined by nobody */
    const struct fake_store *store; /* ... or it has grants, and no region for all */
    uint32_t domains;               /* numbers given so far */
};

/* A process of a guest that has been told of an order in a host's store: how far it has heard it beat. */
struct hearer {
    uint64_t endpoint_id;           /* 0: nobody */
    unsigned beat;
    uint64_t since_ms;              /* ... and that it has not changed since then */
};

enum { HEARERS = 8 };

struct guest {
    char vm[32], link[96];
    uint64_t id;                    /* what its members carry */
    struct host *host;              /* to which the link leads; NULL: nowhere */
    uint32_t domain;                /* there, where the host has grants */

    struct host *ordered_at;        /* NULL: no order is given */
    struct ivc_order order;
    uint64_t ordered_ns, beaten_ms;
    uint32_t ordered_as;            /* the domain; where the host has grants */
    unsigned orders, beats;         /* given; of the one that stands */
    struct hearer hearers[HEARERS];
};

/* The identity of a guest that is named by IVC_VM. */
uint64_t guest_id(const char *vm);

/* Answer as ivc_region_open(). */
int host_open(struct host *host, const char *path);
/* The same, for a host with grants. */
void host_open_grants(struct host *host, const char *path);
void host_close(struct host *host);

void guest_init(struct guest *guest, const char *vm, const char *link);
/* The device leaves where it was and comes to `host` (NULL: to none), in one step. */
void guest_place(struct guest *guest, struct host *host);

/* Gives an order for the guest where it is; answers as ivc_order_give(). */
int guest_order(struct guest *guest);
/* To be called ten times a second and more while an order is given. */
void guest_beat(struct guest *guest);
void guest_withdraw(struct guest *guest);

/* Members of the guest that have not left the host's region. */
unsigned guest_members(const struct guest *guest, const struct host *host);
/* One line about those: who, and of which process. */
void guest_describe_members(const struct guest *guest, const struct host *host, char *ret_text,
                            size_t size);

/* Whether a process maps the file of a host. */
bool process_maps(pid_t pid, const struct host *host);

#endif
