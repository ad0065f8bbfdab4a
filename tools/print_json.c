/* The same for programs.  One object; a field that is not known is null. */
#include "look.h"

#include "base/util.h"

#include <inttypes.h>

/* JSON strings are UTF-8; what a peer wrote may be anything, so all but ASCII becomes '?'. */
static void string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else
            putchar(c < 0x20 || c >= 0x7f ? '?' : c);
    }
    putchar('"');
}

static void text_field(const char *name, const char *text, const char *end)
{
    printf("\"%s\": ", name);
    if (text && *text)
        string(text);
    else
        printf("null");
    printf("%s", end);
}

static const char *state_name(enum look_state state)
{
    switch (state) {
    case LOOK_UNFORMATTED: return "unformatted";
    case LOOK_HALF: return "half-formatted";
    case LOOK_READY: return "ready";
    default: return "unusable";
    }
}

static void member(const struct look_member *member, bool last)
{
    char boot[37];

    print_uuid(boot, member->boot_id);
    printf("        {\"slot\": %" PRIu32 ", \"generation\": %" PRIu32 ", \"magic_id\": %" PRIu64
           ", \"client_id\": %" PRIu32 ", \"pid\": %" PRIu32 ", ", member->slot, member->generation,
           member->magic_id, member->client_id, member->pid);
    text_field("host", member->host, ", ");
    text_field("boot_id", boot, ", ");
    printf("\"same_kernel\": %s, ", member->same_kernel ? "true" : member->same_boot ? "null" : "false");
    text_field("state", look_member_word(member), "");
    printf("}%s\n", last ? "" : ",");
}

static void ready(const struct look *look)
{
    printf("      ");
    text_field("uuid", look->uuid, ",\n      ");
    printf("\"version\": %u,\n      \"epoch\": %" PRIu64 ",\n      ", IVC_LAYOUT_VERSION,
           look->epoch);
    text_field("tenant", look->tenant, ",\n");
    printf("      \"lease_ms\": %" PRIu32 ",\n      \"free_bytes\": %" PRIu64 ",\n", look->lease_ms,
           look->free_bytes);
    printf("      \"members\": [\n");
    for (uint32_t i = 0; i < look->n_members; i++)
        member(&look->members[i], i + 1 == look->n_members);
    printf("      ],\n");
}

static void region(const struct look *look, bool last)
{
    printf("    {\n      ");
    text_field("name", look->name, ",\n      ");
    text_field("mechanism", look->mechanism->name, ",\n      ");
    text_field("state", state_name(look->state), ",\n      ");
    printf("\"chosen\": %s,\n", look->chosen ? "true" : "false");
    if (look->mapping.memory) {
        printf("      \"size\": %" PRIu64 ",\n      \"capacity\": %" PRIu32 ",\n",
               look->mapping.size, look->geometry.capacity);
        printf("      \"mapping\": {\"cached\": %s, \"read_ns\": %.2f, \"copy_gb_per_s\": %.2f},\n",
               look->mapping.speed.cached ? "true" : "false", look->mapping.speed.read_ns,
               look->copy_gbps);
    }
    if (look->state == LOOK_READY)
        ready(look);
    printf("      ");
    text_field("problem", look->problem, "\n");
    printf("    }%s\n", last ? "" : ",");
}

struct missing {
    unsigned n;
};

static void missing_item(void *arg, const char *what, const char *try)
{
    struct missing *missing = arg;

    printf("%s\n    {", missing->n++ ? "," : "");
    text_field("what", what, ", ");
    text_field("try", try, "}");
}

void print_json(const struct looks *looks)
{
    struct missing missing = { 0 };

    printf("{\n  ");
    text_field("chosen", looks->chosen >= 0 ? looks->regions[looks->chosen].name : NULL, ",\n  ");
    text_field("rule", looks->chosen >= 0 ? look_rule(looks) : NULL, ",\n  ");
    text_field("problem", looks->problem, ",\n  ");
    printf("\"regions\": [\n");
    for (unsigned i = 0; i < looks->n; i++)
        region(&looks->regions[i], i + 1 == looks->n);
    printf("  ],\n  \"not_found\": [");
    missing_report(missing_item, &missing);
    printf("\n  ]\n}\n");
}
