/* ivc_info's words for people. */
#include "look.h"

#include "base/util.h"

#include <inttypes.h>
#include <string.h>

enum { MEMBERS_SHOWN = 16 };    /* more with --verbose */

void print_uuid(char ret_text[37], const uint8_t b[16])
{
    snprintf(ret_text, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static const char *size_text(uint64_t bytes, char ret_text[32])
{
    if (bytes < 1024 * 1024)
        snprintf(ret_text, 32, "%.0f KiB", (double)bytes / 1024);
    else if (bytes % (1024 * 1024) == 0)
        snprintf(ret_text, 32, "%" PRIu64 " MiB", bytes >> 20);
    else
        snprintf(ret_text, 32, "%.1f MiB", (double)bytes / (1024 * 1024));
    return ret_text;
}

/* A peer wrote it: no control characters reach the terminal. */
static void print_foreign(const char *text)
{
    for (; *text; text++)
        putchar((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f ? '?' : *text);
}

static void print_member(const struct look_member *member, bool verbose)
{
    char boot[37];

    printf("        slot %-4" PRIu32 " client %-6" PRIu32 " magic %-10" PRIu64 " process %-7" PRIu32
           " on ", member->slot, member->client_id, member->magic_id, member->pid);
    print_foreign(member->host);
    printf(", %s, %s\n", member->same_kernel ? "this guest" : member->same_boot ? "this guest or a copy of it"
           : "another guest", look_member_word(member));
    if (!verbose)
        return;
    print_uuid(boot, member->boot_id);
    printf("                  generation %" PRIu32 ", kernel boot %s, heartbeat %" PRIu64 "\n",
           member->generation, boot, member->heartbeat);
}

static void print_members(const struct look *look, bool verbose)
{
    uint32_t shown = verbose ? look->n_members : IVC_MIN(look->n_members, MEMBERS_SHOWN);

    printf("    members:   %u living, ", look_living(look));
    if (look_silent(look) > 0)
        printf("%u silent, ", look_silent(look));
    printf("room for %" PRIu32 "\n", look->geometry.capacity);
    for (uint32_t i = 0; i < shown; i++)
        print_member(&look->members[i], verbose);
    if (shown < look->n_members)
        printf("        and %" PRIu32 " more (--verbose lists them)\n", look->n_members - shown);
}

static void print_mapping(const struct look *look)
{
    printf("    mapping:   %s, %.1f ns per load, %.1f GB/s copied out of %.1f MiB by one processor\n",
           look->mapping.speed.cached ? "cached" : "NOT cached", look->mapping.speed.read_ns,
           look->copy_gbps, (double)measure_part(&look->mapping) / (1 << 20));
    if (!look->mapping.speed.cached)
        printf("    problem:   this guest maps the memory uncached, so messages will be slow; on "
               "AMD hosts attach the file as an NVDIMM or DAX device and set IVC_REGION to it, or "
               "use a driver that maps it write-back\n");
}

static void print_ready(const struct look *look, bool verbose)
{
    const struct ivc_window_geometry *g = &look->geometry;
    time_t made = (time_t)(look->epoch / 1000000000u);
    char when[64] = "?", free_text[32], all_text[32];
    struct tm utc;

    if (gmtime_r(&made, &utc))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &utc);
    printf("    uuid:      %s\n    formatted: version %u, %s\n    tenant:    ", look->uuid,
           IVC_LAYOUT_VERSION, when);
    print_foreign(look->tenant[0] ? look->tenant : "(anyone)");
    printf("\n    memory:    %s free of %s\n", size_text(look->free_bytes, free_text),
           size_text(g->n_blocks * IVC_LAYOUT_PAGE, all_text));
    if (verbose)
        printf("    layout:    epoch %" PRIu64 ", members at %" PRIu64 ", inboxes at %" PRIu64
               ", owners at %" PRIu64 ", blocks at %" PRIu64 "; lease %" PRIu32 " ms\n",
               look->epoch, g->members, g->inboxes, g->owners, g->blocks, look->lease_ms);
    print_members(look, verbose);
}

static void print_region(const struct look *look, bool verbose)
{
    char size[32];

    printf("region: %s%s\n    mechanism: %s\n", look->name, look->chosen ? "  (chosen)" : "",
           look->mechanism->name);
    if (look->mapping.memory)
        printf("    size:      %s\n", size_text(look->mapping.size, size));
    if (look->state == LOOK_READY)
        print_ready(look, verbose);
    else if (look->state == LOOK_UNFORMATTED)
        printf("    formatted: not yet; it formats itself when the first process opens it\n");
    else if (look->state == LOOK_HALF)
        printf("    formatted: half; the next process that opens it completes that\n");
    if (look->mapping.memory)
        print_mapping(look);
    if (look->problem[0])
        printf("    problem:   %s\n", look->problem);
    printf("\n");
}

static void say_missing(void *arg, const char *what, const char *try)
{
    (void)arg;
    printf("    %s\n        try: %s\n", what, try);
}

void print_text(const struct looks *looks, bool verbose)
{
    for (unsigned i = 0; i < looks->n; i++)
        print_region(&looks->regions[i], verbose);
    if (looks->chosen >= 0)
        printf("chosen: %s (%s)\n", looks->regions[looks->chosen].name, look_rule(looks));
    else
        printf("chosen: none; %s\n", looks->problem);
    if (verbose || (looks->n == 0 && !looks->named_by)) {
        printf("not found:\n");
        missing_report(say_missing, NULL);
    }
}
