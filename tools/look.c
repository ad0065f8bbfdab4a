/* Looking at regions: see look.h. */
#include "look.h"

#include "base/error.h"
#include "base/util.h"
#include "region/blocks.h"
#include "region/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { BEATS_MS = 300 };    /* three heartbeats: see IVC_HEARTBEAT_MS */

static const struct ivc_layout_member *slot_of(const struct look *look, uint32_t slot)
{
    const char *base = look->mapping.memory;

    return (const struct ivc_layout_member *)(base + look->geometry.members) + slot;
}

/* Copies one entry; false when the slot is free or changes hands while we look. */
static bool read_member(const struct look *look, const struct ivc_layout_member *self,
                        uint32_t slot, struct look_member *ret_member)
{
    const struct ivc_layout_member *entry = slot_of(look, slot);
    /* Acquire: pairs with the release of state in publish(); the entry's fields are visible. */
    uint64_t state = ivc_load_acquire(&entry->state);
    struct look_member member = {
        .slot = slot,
        .generation = ivc_layout_generation(state),
        .phase = ivc_layout_phase(state),
    };

    if (member.phase == IVC_PHASE_FREE || member.phase > IVC_PHASE_DEAD)
        return false;
    member.heartbeat = ivc_load_relaxed(&entry->heartbeat);
    member.magic_id = entry->magic_id;
    member.client_id = entry->client_id;
    member.pid = entry->pid;
    memcpy(member.host, entry->host, sizeof entry->host);
    memcpy(member.boot_id, entry->boot_id, sizeof member.boot_id);
    member.same_boot = memcmp(entry->boot_id, self->boot_id, sizeof self->boot_id) == 0;
    member.same_kernel = ivc_member_may_be_here(self, entry) && ivc_presence_is_here(entry->endpoint_id);
    member.process_gone = member.same_kernel && member.phase == IVC_PHASE_ACTIVE
                          && !ivc_member_process_exists(entry);
    atomic_thread_fence(memory_order_acquire);
    if (ivc_load_relaxed(&entry->state) != state)
        return false;
    *ret_member = member;
    return true;
}

static bool read_members(struct look *look)
{
    struct ivc_layout_member self = { .pid = 0 };

    ivc_member_describe_self(&self);
    look->members = calloc(look->geometry.capacity, sizeof *look->members);
    if (!look->members)
        return false;
    for (uint32_t slot = 0; slot < look->geometry.capacity; slot++)
        look->n_members += read_member(look, &self, slot, &look->members[look->n_members]);
    return true;
}

static void read_header(struct look *look)
{
    const struct ivc_layout_header *header = look->mapping.memory;
    char *base = look->mapping.memory;
    struct ivc_blocks blocks = {
        .owners = (ivc_atomic_u32 *)(base + look->geometry.owners),
        .n = look->geometry.n_blocks,
    };

    (void)ivc_window_uuid(&look->mapping, look->uuid);
    look->epoch = ivc_load_relaxed(&header->epoch);
    look->lease_ms = ivc_load_relaxed(&header->lease_ms);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = ivc_load_relaxed(&header->tenant_name[i]);

        memcpy(look->tenant + i * sizeof word, &word, sizeof word);
    }
    look->free_bytes = ivc_blocks_free_count(&blocks) * IVC_LAYOUT_PAGE;
}

/* ivc_window_open() would format a window whose magic is 0: such a one is judged here. */
static enum look_state state_without_magic(struct look *look)
{
    const struct ivc_layout_header *header = look->mapping.memory;
    const ivc_atomic_u64 *words = look->mapping.memory;

    if (ivc_load_relaxed(&header->size) == look->mapping.size)
        return LOOK_HALF;
    for (size_t i = 0; i < IVC_LAYOUT_PAGE / sizeof *words; i++)
        if (ivc_load_relaxed(&words[i]) != 0) {
            snprintf(look->problem, sizeof look->problem, "region %s: holds something that is not "
                     "an ivc region; if nothing else uses that memory, clear it with 'ivc region "
                     "reset --force'", look->name);
            return LOOK_UNUSABLE;
        }
    return LOOK_UNFORMATTED;
}

static bool look_at_mapped(struct look *look)
{
    const struct ivc_layout_header *header = look->mapping.memory;

    look->copy_gbps = measure_copy(&look->mapping);
    if (ivc_load_acquire(&header->magic) == 0) {
        look->state = state_without_magic(look);
        look->geometry = ivc_window_geometry(look->mapping.size);
        return true;
    }
    if (ivc_window_open(look->name, &look->mapping, &look->geometry) < 0) {
        snprintf(look->problem, sizeof look->problem, "%s", ivc_error_text());
        return true;
    }
    look->state = LOOK_READY;
    read_header(look);
    return read_members(look);
}

static bool look_at(struct look *look)
{
    if (look->problem[0])
        return true;
    if (look->mechanism->map(look->name, &look->mapping) != 0) {
        look->mapping = (struct ivc_mapping){ 0 };
        snprintf(look->problem, sizeof look->problem, "%s", ivc_error_text());
        return true;
    }
    return look_at_mapped(look);
}

static int index_of(const struct looks *looks, const char *name)
{
    for (unsigned i = 0; i < looks->n; i++)
        if (strcmp(looks->regions[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* Asks the library itself which region it would take. */
static void choose(struct looks *looks, const char *name)
{
    const struct ivc_mechanism *mechanism;
    struct ivc_mapping mapping;
    char chosen[256];
    int r = ivc_region_attach(name, &mechanism, chosen, &mapping);

    looks->chosen = -1;
    if (r != 0) {
        snprintf(looks->problem, sizeof looks->problem, "%s", ivc_error_text());
        return;
    }
    ivc_mapping_free(&mapping);
    looks->chosen = index_of(looks, chosen);
    if (looks->chosen < 0 && looks->n < LOOKS_MAX) {
        looks->chosen = (int)looks->n;
        looks->regions[looks->n].mechanism = mechanism;
        memcpy(looks->regions[looks->n++].name, chosen, sizeof chosen);
    }
    if (looks->chosen >= 0)
        looks->regions[looks->chosen].chosen = true;
}

static void add_candidates(struct looks *looks)
{
    struct ivc_candidate found[LOOKS_MAX - 1];
    unsigned n = IVC_MIN(ivc_region_candidates(found, LOOKS_MAX - 1), LOOKS_MAX - 1);

    for (unsigned i = 0; i < n; i++) {
        struct look *look = &looks->regions[looks->n++];

        look->mechanism = found[i].mechanism;
        memcpy(look->name, found[i].name, sizeof look->name);
        if (found[i].refused[0])
            snprintf(look->problem, sizeof look->problem, "region %s: %s", found[i].name,
                     found[i].refused);
    }
}

/* A second look at the heartbeats: what moved lives. */
static void look_again(struct looks *looks)
{
    unsigned n = 0;

    for (unsigned i = 0; i < looks->n; i++)
        n += looks->regions[i].n_members;
    if (n == 0)
        return;
    ivc_sleep_ms(BEATS_MS);
    for (unsigned i = 0; i < looks->n; i++)
        for (uint32_t j = 0; j < looks->regions[i].n_members; j++) {
            struct look_member *member = &looks->regions[i].members[j];

            member->beating = ivc_load_relaxed(
                &slot_of(&looks->regions[i], member->slot)->heartbeat) != member->heartbeat;
        }
}

bool look_at_all(const char *name, struct looks *ret_looks)
{
    const char *environment = getenv("IVC_REGION");

    memset(ret_looks, 0, sizeof *ret_looks);
    if (environment && *environment) {
        ret_looks->named_by = "IVC_REGION";
        ret_looks->named = environment;
    }
    if (name) {
        ret_looks->named_by = "--region";
        ret_looks->named = name;
    } else {
        add_candidates(ret_looks);
    }
    choose(ret_looks, name);
    for (unsigned i = 0; i < ret_looks->n; i++)
        if (!look_at(&ret_looks->regions[i]))
            return false;
    look_again(ret_looks);
    if (ret_looks->chosen >= 0 && ret_looks->regions[ret_looks->chosen].state == LOOK_UNUSABLE) {
        memcpy(ret_looks->problem, ret_looks->regions[ret_looks->chosen].problem,
               sizeof ret_looks->problem);
        ret_looks->regions[ret_looks->chosen].chosen = false;
        ret_looks->chosen = -1;
    }
    return true;
}

void looks_free(struct looks *looks)
{
    for (unsigned i = 0; i < looks->n; i++) {
        if (looks->regions[i].mapping.memory)
            ivc_mapping_free(&looks->regions[i].mapping);
        free(looks->regions[i].members);
    }
}

const char *look_member_word(const struct look_member *member)
{
    switch (member->phase) {
    case IVC_PHASE_JOINING: return "joining";
    case IVC_PHASE_LEFT: return "left";
    case IVC_PHASE_DEAD: return "dead";
    default: break;
    }
    if (member->process_gone)
        return "dead";
    return member->beating ? "alive" : "silent";
}

static bool is_silent(const struct look_member *member)
{
    return member->phase == IVC_PHASE_ACTIVE && !member->beating && !member->same_kernel;
}

unsigned look_silent(const struct look *look)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < look->n_members; i++)
        n += is_silent(&look->members[i]);
    return n;
}

unsigned look_living(const struct look *look)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < look->n_members; i++)
        n += look->members[i].phase == IVC_PHASE_ACTIVE && !look->members[i].process_gone
             && !is_silent(&look->members[i]);
    return n;
}

const char *look_rule(const struct looks *looks)
{
    if (looks->named_by)
        return strcmp(looks->named_by, "--region") == 0 ? "named with --region"
                                                        : "named by IVC_REGION";
    return "the only usable region that was found";
}
