/*
 * What Xen's grants do, made of one file: for tests of regions without a window where there is no Xen.
 *
 * The file holds the pages and tables of grants, event channels and the store, under one lock that all
 * processes share.  Like the real ones, pages are granted for as long as they are mapped, whoever dies, and
 * nobody maps what was not granted to its domain.
 */
#ifndef IVC_TESTS_FAKE_GRANTS_H
#define IVC_TESTS_FAKE_GRANTS_H

#include "region/grants.h"

/* The region `xen` of this process and its children is made of the file at `path`, which is as large as it
 * needs to be, and of new pages. */
void fake_grants_make(const char *path);
/* As which domain, from now on. */
void fake_grants_be(uint32_t domain);

/* The region `xen` of this process is from now on that of a guest that moves: the symbolic link at `link`, which
 * stays the caller's, leads to "FILE#DOMAIN", the host's file and the guest's number there.  Where it leads
 * elsewhere, the guest has moved; where there is none, it is on its way. */
#define FAKE_GRANTS_MARK '#'
void fake_grants_follow(const char *link);

/* What is to go wrong in this process: 0, or what the call is to answer. */
struct fake_faults {
    int open, grant, map, put, watch, port_make, port_join;
    bool gone;                  /* this is another domain now */
    bool deaf;                  /* events get lost */
    uint32_t pages_max;         /* 0: many */
};
extern struct fake_faults fake_faults;

/* As the host: asks a domain to leave (`beat` from 1 on, higher each time), or no longer (0). */
void fake_grants_order(uint32_t domain, unsigned beat);
/* Writes what a peer could: a text at its path. */
void fake_grants_put(uint32_t domain, const char *path, const char *text);
/* A domain is destroyed: its processes had better be dead. */
void fake_grants_destroy(uint32_t domain);

/* What is there of all domains: granted pages, ends of event channels, texts, watches. */
struct fake_left {
    unsigned pages, ports, texts, watches;
};
struct fake_left fake_grants_left(void);

/* The same of one host of several, for whoever moves guests between them; kept for good. */
struct fake_store;
const struct fake_store *fake_grants_host(const char *path);
/* Whether nobody holds its lock for so long: a process that was stopped might, for all others. */
bool fake_host_is_free(const struct fake_store *store, unsigned ms);
/* What its file holds before that is no memory of grants. */
uint64_t fake_host_pages_at(void);
void fake_host_order(const struct fake_store *store, uint32_t domain, unsigned serial, unsigned beat);
/* Calls `fn` for each record of a member. */
void fake_host_members(const struct fake_store *store, void (*fn)(void *arg, uint32_t domain, const char *record),
                       void *arg);
/* What a process has left there that was killed. */
void fake_host_drop(const struct fake_store *store, uint32_t domain, uint64_t endpoint_id);
void fake_host_destroy(const struct fake_store *store, uint32_t domain);
struct fake_left fake_host_left(const struct fake_store *store);

#endif
