/*
 * Which region to use: what the caller or IVC_REGION names, else the only one there is.  Two are
 * an error, not a guess: co-residence must not depend on an order of directories.
 */
#include "region/mechanism.h"

#include "base/error.h"
#include "base/util.h"
#include "region/window.h"

#include <errno.h>
#include <string.h>

const struct ivc_mechanism *const ivc_mechanisms[] = {
    &ivc_mechanism_ivshmem,
    &ivc_mechanism_xen,
    &ivc_mechanism_file,
    NULL,
};

struct search {
    struct ivc_candidate *candidates;
    unsigned n_max, n;
};

static void add(struct search *search, const struct ivc_mechanism *mechanism, const char *name,
                const char *refused)
{
    if (search->n < search->n_max) {
        struct ivc_candidate *candidate = &search->candidates[search->n];

        candidate->mechanism = mechanism;
        snprintf(candidate->name, sizeof candidate->name, "%s", name);
        snprintf(candidate->refused, sizeof candidate->refused, "%s", refused);
    }
    search->n++;
}

static void on_found(void *arg, const struct ivc_mechanism *mechanism, const char *name)
{
    add(arg, mechanism, name, "");
}

static void on_refused(void *arg, const struct ivc_mechanism *mechanism, const char *name,
                       const char *reason)
{
    add(arg, mechanism, name, reason);
}

unsigned ivc_region_candidates(struct ivc_candidate *ret_candidates, unsigned n)
{
    struct search search = { .candidates = ret_candidates, .n_max = n };

    for (unsigned i = 0; ivc_mechanisms[i]; i++)
        ivc_mechanisms[i]->find(on_found, on_refused, &search);
    return search.n;
}

const char *ivc_region_named_by(const char *name)
{
    const char *environment = getenv("IVC_REGION");

    return environment && strcmp(environment, name) == 0 ? "IVC_REGION" : "that name";
}

enum { CANDIDATES_MAX = 16 };

static int map_candidate(const struct ivc_candidate *candidate,
                         const struct ivc_mechanism **ret_mechanism, char ret_name[256],
                         struct ivc_mapping *ret_mapping)
{
    int r = candidate->mechanism->map(candidate->name, ret_mapping);

    if (r != 0)
        return r;
    *ret_mechanism = candidate->mechanism;
    memcpy(ret_name, candidate->name, 256);
    return 0;
}

/* IVC_REGION=uuid:...: the candidate whose header carries that UUID. */
static int attach_uuid(const char *uuid, const struct ivc_mechanism **ret_mechanism,
                       char ret_name[256], struct ivc_mapping *ret_mapping)
{
    struct ivc_candidate candidates[CANDIDATES_MAX];
    unsigned n = IVC_MIN(ivc_region_candidates(candidates, CANDIDATES_MAX), CANDIDATES_MAX);
    char found[37];

    for (unsigned i = 0; i < n; i++) {
        if (candidates[i].refused[0]
            || map_candidate(&candidates[i], ret_mechanism, ret_name, ret_mapping) != 0)
            continue;
        if (ivc_window_uuid(ret_mapping, found) == 0 && strcasecmp(found, uuid) == 0)
            return 0;
        ivc_mapping_free(ret_mapping);
    }
    return ivc_error_set(-ENODEV, "region uuid:%s: none of the %u regions here carries that UUID; "
                         "'ivc_info' lists them", uuid, n);
}

static int attach_named(const char *name, const struct ivc_mechanism **ret_mechanism,
                        char ret_name[256], struct ivc_mapping *ret_mapping)
{
    struct ivc_candidate candidate = { .mechanism = &ivc_mechanism_file };

    if (strncmp(name, "uuid:", 5) == 0)
        return attach_uuid(name + 5, ret_mechanism, ret_name, ret_mapping);
    if (strncmp(name, "pci:", 4) == 0)
        candidate.mechanism = &ivc_mechanism_ivshmem;
    else if (strcmp(name, "xen") == 0)
        candidate.mechanism = &ivc_mechanism_xen;
    else if (name[0] != '/')
        return ivc_error_set(-EINVAL, "region '%s': not a path from the root, 'pci:ADDRESS', "
                             "'uuid:UUID', 'xen' or 'none'; correct %s", name, ivc_region_named_by(name));
    snprintf(candidate.name, sizeof candidate.name, "%s", name);
    return map_candidate(&candidate, ret_mechanism, ret_name, ret_mapping);
}

static int attach_only(const struct ivc_mechanism **ret_mechanism, char ret_name[256],
                       struct ivc_mapping *ret_mapping)
{
    struct ivc_candidate candidates[CANDIDATES_MAX];
    unsigned n = IVC_MIN(ivc_region_candidates(candidates, CANDIDATES_MAX), CANDIDATES_MAX);
    const struct ivc_candidate *usable = NULL, *refused = NULL;

    for (unsigned i = 0; i < n; i++) {
        if (candidates[i].refused[0]) {
            refused = &candidates[i];
            continue;
        }
        if (usable)
            return ivc_error_set(-ENOTUNIQ, "two regions found, %s and %s; say which with "
                                 "IVC_REGION=%s or IVC_REGION=uuid:... (ivc_info lists them)",
                                 usable->name, candidates[i].name, usable->name);
        usable = &candidates[i];
    }
    if (usable)
        return map_candidate(usable, ret_mechanism, ret_name, ret_mapping);
    if (refused)
        return ivc_error_set(-EACCES, "region %s: %s; IVC_REGION=none does without", refused->name,
                             refused->refused);
    return ivc_error_set(IVC_E_NOREGION, "no shared memory found: no ivshmem device, no "
                         "/dev/mmapper, no grants of Xen, no /dev/shm/ivc or /dev/hugepages/ivc; attach one to the "
                         "guest, or name one with IVC_REGION");
}

static const char *wanted(const char *name)
{
    return name && *name ? name : getenv("IVC_REGION");
}

bool ivc_region_is_others(const char *name, int answer)
{
    name = wanted(name);
    return answer == -EACCES && (!name || !*name);
}

int ivc_region_attach(const char *name, const struct ivc_mechanism **ret_mechanism,
                      char ret_name[256], struct ivc_mapping *ret_mapping)
{
    name = wanted(name);
    if (name && strcmp(name, "none") == 0)
        return ivc_error_set(IVC_E_NOREGION, "no region is to be used (IVC_REGION=none)");
    if (name && *name)
        return attach_named(name, ret_mechanism, ret_name, ret_mapping);
    return attach_only(ret_mechanism, ret_name, ret_mapping);
}
