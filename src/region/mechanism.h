/*
 * Mechanisms: the ways in which a window comes into this guest's address space.
 *
 * A mechanism finds candidates without configuration and maps one by its name.  It knows nothing of
 * what lies in the window.
 */
#ifndef IVC_REGION_MECHANISM_H
#define IVC_REGION_MECHANISM_H

#include "region/fault.h"
#include "region/region.h"

struct ivc_mapping {
    void *memory;           /* NULL: nothing is mapped */
    uint64_t size;
    struct ivc_mapping_speed speed;
    int fd;                 /* what is mapped; 0: not kept */
    uint64_t dev, ino;      /* its identity: the application may have closed our descriptor */
    bool reads_only;        /* a page that was not stored into yet is mapped for reading only */
    struct ivc_fault_range *fault;  /* covers it; NULL: nothing does */
    struct ivc_grants *grants;      /* NULL: a window; else private tables, see grants.h */
};

struct ivc_mechanism {
    const char *name;

    /* Calls `found` for each candidate with the name to map it by, and `refused` for what looked
     * like one and cannot be used, with the reason. */
    void (*find)(void (*found)(void *arg, const struct ivc_mechanism *mechanism, const char *name),
                 void (*refused)(void *arg, const struct ivc_mechanism *mechanism,
                                 const char *name, const char *reason),
                 void *arg);

    /* Maps the candidate read-write, sees to it that the window's tables are there, and measures it.  IVC_E_NOREGION
     * (what it needs is not here) or negative errno, with a text. */
    int (*map)(const char *name, struct ivc_mapping *ret_mapping);

    /* Makes sure that a part is there, so that touching it cannot fail.  Negative errno, without a text: there is no
     * room for it.  NULL: all of it is there from the beginning, or only the host can see to it. */
    int (*reserve)(const struct ivc_mapping *mapping, uint64_t from, uint64_t size);

    /* Whether what was mapped is still there, as far as can be told without touching it. */
    bool (*is_there)(const char *name, const struct ivc_mapping *mapping);
    /* Whether the name still leads there: of another one, it may be another host's. */
    bool (*is_named)(const char *name, const struct ivc_mapping *mapping);
};

extern const struct ivc_mechanism ivc_mechanism_file;
extern const struct ivc_mechanism ivc_mechanism_ivshmem;
extern const struct ivc_mechanism ivc_mechanism_xen;
extern const struct ivc_mechanism *const ivc_mechanisms[];     /* NULL at the end */

/* Maps what `fd` stands for and keeps a descriptor of it.  Negative errno, no text. */
int ivc_mapping_make(int fd, uint64_t size, struct ivc_mapping *ret_mapping);
/* The descriptor of what is mapped, if it still is that; -1. */
int ivc_mapping_fd(const struct ivc_mapping *mapping);
/* A part of the same memory once more, at `place` (NULL: anywhere), which is overwritten.  NULL: the
 * descriptor is no longer ours, memory is short, or such a part cannot be mapped. */
void *ivc_mapping_again(const struct ivc_mapping *mapping, uint64_t from, uint64_t size, void *place);
void ivc_mapping_forget_fd(struct ivc_mapping *mapping);
void ivc_mapping_free(struct ivc_mapping *mapping);

/* Measures how loads from the mapping behave.  Reads only, from the first page. */
struct ivc_mapping_speed ivc_mapping_measure(const void *memory, uint64_t size);

/* What was found, for ivc_region_open() and for ivc_info. */
struct ivc_candidate {
    const struct ivc_mechanism *mechanism;
    char name[256];
    char refused[320];  /* why it cannot be used; "" when it can */
};
/* Fills at most n candidates, returns how many there are. */
unsigned ivc_region_candidates(struct ivc_candidate *ret_candidates, unsigned n);

/* What is to be corrected when there is nothing of that name: the environment, or what the caller was told. */
const char *ivc_region_named_by(const char *name);

/* Maps what `name` says (a path, "pci:...", "uuid:..."; NULL: the environment, then what is
 * found). */
int ivc_region_attach(const char *name, const struct ivc_mechanism **ret_mechanism,
                      char ret_name[256], struct ivc_mapping *ret_mapping);

#endif
