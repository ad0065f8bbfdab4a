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

#endif
