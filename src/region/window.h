/*
 * Window: the header of a region, its formatting on first use, and where its tables lie.
 *
 * Formatting needs no lock: every value that is written either follows from the size or is taken
 * from zero by compare-and-swap, so it does not matter how many guests do it at once, or whether
 * one of them dies half way.
 */
#ifndef IVC_REGION_WINDOW_H
#define IVC_REGION_WINDOW_H

#include "region/mechanism.h"

/* Where the tables lie; derived from the size, compared with what the header says. */
struct ivc_window_geometry {
    uint32_t capacity;
    uint32_t map_words;     /* 64-bit words of a bit map over the members */
    uint64_t members, inboxes, inbox_size, owners, blocks, n_blocks;
};
struct ivc_window_geometry ivc_window_geometry(uint64_t size);

/* Formats the window if it is unused and checks it.  Negative errno with a text. */
int ivc_window_open(const char *name, const struct ivc_mapping *mapping,
                    struct ivc_window_geometry *ret_geometry);

/* Whether ivc_window_open() would format it: nobody has used it yet. */
bool ivc_window_is_unused(const struct ivc_mapping *mapping);

/* The UUID in a formatted window's header as text; -ENODATA when it is not formatted. */
int ivc_window_uuid(const struct ivc_mapping *mapping, char ret_uuid[37]);

#endif
