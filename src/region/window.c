/* Window: see window.h. */
#include "region/window.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { LEASE_MS_DEFAULT = 10000 };

/* A tenant's name as it lies in the header, and what stands for it: one word, so that of two who
 * format at once one is the tenant. */
struct tenant {
    uint64_t hash;
    union {
        char text[32];
        uint64_t words[4];
    } name;
};

struct ivc_window_geometry ivc_window_geometry(uint64_t size)
{
    struct ivc_window_geometry g = { 0 };
    uint64_t wanted = size / IVC_LAYOUT_SIZE_PER_MEMBER;

    wanted = IVC_MIN(IVC_MAX(wanted, IVC_LAYOUT_CAPACITY_MIN), IVC_LAYOUT_CAPACITY_MAX);
    g.capacity = (uint32_t)(wanted & ~(uint64_t)63);
    g.map_words = g.capacity / 64;
    g.members = IVC_LAYOUT_PAGE;
    g.inboxes = g.members + (uint64_t)g.capacity * IVC_LAYOUT_MEMBER_SIZE;
    /* summary line, ready bits, watched bits; each starts a line of its own */
    g.inbox_size = IVC_LINE + 2 * ivc_align_up(g.map_words * sizeof(uint64_t), IVC_LINE);
    g.owners = ivc_align_up(g.inboxes + g.capacity * g.inbox_size, IVC_LAYOUT_PAGE);
    /* Owner words for every page of the window: a few too many, and simple. */
    g.blocks = ivc_align_up(g.owners + size / IVC_LAYOUT_PAGE * sizeof(uint32_t), IVC_LAYOUT_PAGE);
    g.n_blocks = (size - g.blocks) / IVC_LAYOUT_PAGE;
    return g;
}

/* The first page was never written.  Relaxed: whoever is formatting at this moment wrote `size`
 * first, and that is looked at next. */
static bool all_zero(const struct ivc_layout_header *header)
{
    const ivc_atomic_u64 *words = &header->magic;

    for (size_t i = 0; i < IVC_LAYOUT_PAGE / sizeof *words; i++)
        if (ivc_load_relaxed(&words[i]) != 0)
            goto used;
    return true;

used:
    /* Then `size`, which every formatter writes first, is visible as well. */
    atomic_thread_fence(memory_order_acquire);
    return false;
}

/* Takes the word from zero to `value`, unless somebody was first: then his value stays. */
static void first_wins(ivc_atomic_u64 *word, uint64_t value)
{
    (void)ivc_cas(word, (uint64_t)0, value);
}

static struct tenant own_tenant(void)
{
    const char *name = getenv("IVC_TENANT");
    struct tenant tenant = { 0 };

    if (name && *name) {
        tenant.hash = ivc_hash_text(name);
        memcpy(tenant.name.text, name, strnlen(name, sizeof tenant.name.text));
    }
    return tenant;
}

static void format(struct ivc_layout_header *header, uint64_t size)
{
    struct tenant tenant = own_tenant();
    struct ivc_window_geometry g;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    first_wins(&header->size, size);
    first_wins(&header->uuid[0], ivc_random_id());
    first_wins(&header->uuid[1], ivc_random_id());
    first_wins(&header->epoch, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    /* Relaxed below: every formatter writes the same, and magic publishes it. */
    g = ivc_window_geometry(ivc_load_relaxed(&header->size));
    ivc_store_relaxed(&header->version, IVC_LAYOUT_VERSION);
    ivc_store_relaxed(&header->capacity, g.capacity);
    ivc_store_relaxed(&header->members, g.members);
    ivc_store_relaxed(&header->inboxes, g.inboxes);
    ivc_store_relaxed(&header->owners, g.owners);
    ivc_store_relaxed(&header->blocks, g.blocks);
    ivc_store_relaxed(&header->n_blocks, g.n_blocks);
    ivc_store_relaxed(&header->lease_ms, LEASE_MS_DEFAULT);
    if (tenant.hash)
        first_wins(&header->tenant, tenant.hash);
    for (unsigned i = 0; ivc_load_relaxed(&header->tenant) == tenant.hash && i < 4; i++)
        ivc_store_relaxed(&header->tenant_name[i], tenant.name.words[i]);
    /* Release: pairs with the acquire of magic in ivc_window_open(); publishes the header. */
    ivc_store_release(&header->magic, IVC_LAYOUT_MAGIC);
}

/* The header's tables must be those that follow from its size: anything else is damage. */
static int check_geometry(const char *name, const struct ivc_layout_header *header,
                          uint64_t mapped, struct ivc_window_geometry *ret_geometry)
{
    uint64_t size = ivc_load_relaxed(&header->size);
    struct ivc_window_geometry g;

    if (size < IVC_LAYOUT_SIZE_MIN || size > mapped)
        return ivc_error_set(-EFBIG, "region %s: made with %" PRIu64 " bytes, but only %" PRIu64
                             " are mapped here; give every guest the whole of it, or make it anew "
                             "('ivc region reset')", name, size, mapped);
    g = ivc_window_geometry(size);
    if (ivc_load_relaxed(&header->capacity) != g.capacity
        || ivc_load_relaxed(&header->members) != g.members
        || ivc_load_relaxed(&header->inboxes) != g.inboxes
        || ivc_load_relaxed(&header->owners) != g.owners
        || ivc_load_relaxed(&header->blocks) != g.blocks
        || ivc_load_relaxed(&header->n_blocks) != g.n_blocks
        || ivc_load_relaxed(&header->lease_ms) == 0
        || (ivc_load_relaxed(&header->uuid[0]) | ivc_load_relaxed(&header->uuid[1])) == 0)
        return ivc_error_set(-EBADMSG, "region %s: its header is damaged; when no job uses it, "
                             "make it anew with 'ivc region reset'", name);
    *ret_geometry = g;
    return 0;
}

static int check_tenant(const char *name, const struct ivc_layout_header *header)
{
    uint64_t tenant = ivc_load_relaxed(&header->tenant);
    struct tenant theirs = { 0 };

    if (tenant == 0 || tenant == own_tenant().hash)
        return 0;
    for (unsigned i = 0; i < 4; i++)
        theirs.name.words[i] = ivc_load_relaxed(&header->tenant_name[i]);
    return ivc_error_set(-EACCES, "region %s: in use by another tenant, '%.32s'; set IVC_TENANT if "
                         "that is you, or attach a region of your own", name, theirs.name.text);
}

/* Or others are formatting it right now: their half-written header is no damage, and finishing it along
 * with them is safe. */
bool ivc_window_is_unused(const struct ivc_mapping *mapping)
{
    const struct ivc_layout_header *header = mapping->memory;

    /* Acquire: pairs with the release of magic in format(). */
    return ivc_load_acquire(&header->magic) == 0
           && (all_zero(header) || ivc_load_relaxed(&header->size) == mapping->size);
}

int ivc_window_open(const char *name, const struct ivc_mapping *mapping,
                    struct ivc_window_geometry *ret_geometry)
{
    struct ivc_layout_header *header = mapping->memory;
    struct ivc_window_geometry geometry;
    uint32_t version;
    int r;

    if (ivc_window_is_unused(mapping))
        format(header, mapping->size);
    /* Acquire: as above. */
    if (ivc_load_acquire(&header->magic) != IVC_LAYOUT_MAGIC)
        return ivc_error_set(-EBADMSG, "region %s: holds something that is not an ivc region; if "
                             "nothing else uses that memory, clear it with 'ivc region reset'",
                             name);
    version = ivc_load_relaxed(&header->version);
    if (version != IVC_LAYOUT_VERSION)
        return ivc_error_set(-EPROTO, "region %s: made by another version (format %u, this library "
                             "has %u); use the same version in all guests, or make it anew with "
                             "'ivc region reset'", name, version, IVC_LAYOUT_VERSION);
    r = check_geometry(name, header, mapping->size, &geometry);
    if (r == 0)
        r = check_tenant(name, header);
    if (r == 0)
        *ret_geometry = geometry;
    return r;
}

int ivc_window_uuid(const struct ivc_mapping *mapping, char ret_uuid[37])
{
    const struct ivc_layout_header *header = mapping->memory;
    uint64_t words[2];
    uint8_t b[16];

    if (ivc_load_acquire(&header->magic) != IVC_LAYOUT_MAGIC)
        return -ENODATA;
    for (unsigned i = 0; i < 2; i++)
        words[i] = ivc_load_relaxed(&header->uuid[i]);
    memcpy(b, words, sizeof b);
    snprintf(ret_uuid, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
    return 0;
}
