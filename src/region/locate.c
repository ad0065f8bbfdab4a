/*
 * Memory that somebody mapped, as a place in the region: a library's ivc_alloc(), an MPI's own
 * mapping of the file, a second region of this process over the same window.
 *
 * The kernel's list of our mappings tells: two mappings with the same device and inode show the same
 * file or device, and the difference of their offsets is the distance of their first bytes in it.
 * That holds for files, DAX devices, user-mode Linux's mmapper and the PCI resource alike (a
 * write-combining mapping of the same BAR is another inode: it is not found, and that is right).
 * Nothing is kept: a mapping may be gone in a moment, only its owner knows.
 */
#include "region/region.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MAPS "/proc/self/maps"

/* A line of the list, as far as it matters here. */
struct line {
    uintptr_t start, end;
    bool shared, writable;
    uint64_t offset, inode;
    unsigned major, minor;
};

static bool parse(const char *text, struct line *ret_line)
{
    struct line line;
    char permissions[5];

    if (sscanf(text, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64, &line.start,
               &line.end, permissions, &line.offset, &line.major, &line.minor, &line.inode) != 7)
        return false;
    line.shared = permissions[3] == 's';
    line.writable = permissions[0] == 'r' && permissions[1] == 'w';
    *ret_line = line;
    return true;
}

/* What is searched for.  The list is sorted by address, so one pass finds the pieces of a range in
 * their order. */
struct search {
    uintptr_t own;          /* where the region itself is mapped */
    uintptr_t start, end;   /* the range */
    struct line own_line;
    struct line first;      /* the piece that holds `start` */
    uintptr_t covered;      /* the range is in one file up to here */
    bool found_own, broken;
};

/* Of a range that lies in several neighbouring mappings each must go on where the last one ended. */
static bool continues(const struct search *search, const struct line *line)
{
    const struct line *first = &search->first;

    return line->start <= search->covered && line->inode == first->inode
           && line->major == first->major && line->minor == first->minor && line->shared
           && line->writable && line->offset - first->offset == line->start - first->start;
}

static void look_at(struct search *search, const struct line *line)
{
    if (search->own >= line->start && search->own < line->end) {
        search->own_line = *line;
        search->found_own = true;
    }
    if (line->end <= search->start || line->start >= search->end)
        return;
    if (search->covered == search->start && line->start <= search->start)
        search->first = *line;
    if (continues(search, line))
        search->covered = line->end;
    else
        search->broken = true;
}

static int read_maps(struct search *search)
{
    IVC_AUTO_FCLOSE FILE *maps = fopen(MAPS, "re");
    IVC_AUTO_FREE char *text = NULL;
    size_t size = 0;
    struct line line;

    if (!maps)
        return ivc_error_set(-errno, "cannot read " MAPS ": %s; is /proc mounted?", strerror(errno));
    while (getline(&text, &size, maps) >= 0)
        if (parse(text, &line))
            look_at(search, &line);
    return 0;
}

/* Where in the window the range begins, if it is there at all. */
static bool window_offset(const struct search *search, uint64_t *ret_offset)
{
    const struct line *own = &search->own_line, *theirs = &search->first;

    if (!search->found_own || search->broken || search->covered < search->end
        || theirs->inode != own->inode || theirs->major != own->major
        || theirs->minor != own->minor || own->inode == 0)
        return false;
    /* Offsets are counted from what the window's first byte has: a device's do not begin at zero.
     * What lies before it wraps to a number that no window is large enough for. */
    *ret_offset = theirs->offset + (search->start - theirs->start)
                  - (own->offset + (search->own - own->start));
    return true;
}

/* Only what the allocator hands out: never the header, the directory or the inboxes. */
static bool is_in_blocks(const struct ivc_region *region, uint64_t offset, uint64_t size)
{
    uint64_t begin = region->geometry.blocks;
    uint64_t end = begin + region->geometry.n_blocks * IVC_LAYOUT_PAGE;

    return offset >= begin && offset <= end && size <= end - offset;
}

int ivc_region_locate(struct ivc_region *region, const void *memory, uint64_t size,
                      uint64_t *ret_handle)
{
    struct search search = {
        .own = (uintptr_t)region->mapping.memory,
        .start = (uintptr_t)memory,
        .end = (uintptr_t)memory + size,
        .covered = (uintptr_t)memory,
    };
    uint64_t offset;
    int r;

    if (size == 0 || search.end < search.start || region->retired)
        return IVC_E_NOREGION;
    r = read_maps(&search);
    if (r < 0)
        return r;
    if (!window_offset(&search, &offset) || !is_in_blocks(region, offset, size))
        return IVC_E_NOREGION;
    *ret_handle = offset;
    return 0;
}

int ivc_region_reach(struct ivc_region *region, uint32_t slot, uint64_t handle, uint64_t size,
                     void **ret_memory)
{
    if (region->grants || !is_in_blocks(region, handle, size))
        return ivc_error_set(-EBADMSG, "region %s: member %u names memory that lies outside the "
                             "region; its process is damaged or of another version",
                             region->name, slot);
    *ret_memory = (char *)region->mapping.memory + handle;
    return 0;
}
