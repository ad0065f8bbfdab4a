/* The guests in a region: see guests.h. */
#include "guests.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum {
    SILENT_MS = 1000,       /* ten beats that did not come: worth saying */
    GUESTS_SHOWN = 4,
};

int people_open(struct ivc_region *region, struct people *ret_people)
{
    struct people people = { .region = region, .n_slots = ivc_region_capacity(region) };
    struct ivc_region_info info;

    ivc_region_info(region, &info);
    people.lease_ms = info.lease_ms;
    people.slots = calloc(people.n_slots, sizeof *people.slots);
    if (!people.slots)
        return ivc_error_set(-ENOMEM, "out of memory");
    *ret_people = people;
    return 0;
}

void people_free(struct people *people)
{
    free(people->slots);
    people->slots = NULL;
}

static void look_at_joining(struct people *people, uint32_t slot, uint64_t now)
{
    struct person *person = &people->slots[slot];
    uint64_t state = ivc_load_relaxed(&ivc_region_slot(people->region, slot)->state);

    if (ivc_layout_phase(state) != IVC_PHASE_JOINING)
        state = 0;
    if (state != person->joining_state)
        person->joining_since_ms = now;
    person->joining_state = state;
}

bool people_are_joining(const struct people *people)
{
    uint64_t now = ivc_now_ms();

    /* Who stays at that for longer than the lease has died on the way. */
    for (uint32_t slot = 0; slot < people->n_slots; slot++)
        if (people->slots[slot].joining_state != 0
            && now - people->slots[slot].joining_since_ms < people->lease_ms)
            return true;
    return false;
}

static void look_at(struct people *people, uint32_t slot, uint64_t now)
{
    struct person *person = &people->slots[slot];
    uint32_t generation = person->member.generation;
    /* Relaxed: only whether it moves counts. */
    uint64_t heartbeat = ivc_load_relaxed(&ivc_region_slot(people->region, slot)->heartbeat);

    person->present = ivc_region_member(people->region, slot, &person->member) == 0;
    if (!person->present)
        return;
    if (person->since_ms == 0 || generation != person->member.generation
        || heartbeat != person->heartbeat) {
        person->heartbeat = heartbeat;
        person->since_ms = now;
    }
    person->present = now - person->since_ms < people->lease_ms;
}

void people_look(struct people *people)
{
    uint64_t now = ivc_now_ms();

    /* After an order was given: pairs with the fence in must_stay_out() (member.c).  Who joins sees the
     * order, or we see that it joins. */
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t slot = 0; slot < people->n_slots; slot++) {
        look_at_joining(people, slot, now);
        look_at(people, slot, now);
    }
}

bool person_is_of(const struct person *person, const uint64_t *vms, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (person->member.vm == vms[i])
            return true;
    return false;
}

/* 16 hexadecimal digits, as they are printed. */
static bool read_identity(const char *text, uint64_t *ret_vm)
{
    if (strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16)
        return false;
    *ret_vm = strtoull(text, NULL, 16);
    return true;
}

/* A name in IVC_VM counts as it is written, a UUID in lower case. */
static uint64_t identity_of(const char *text)
{
    char lower[37] = "";

    if (strlen(text) != 36 || strspn(text, "0123456789abcdefABCDEF-") != 36)
        return ivc_vm_of(text);
    for (unsigned i = 0; i < 36; i++)
        lower[i] = (char)tolower((unsigned char)text[i]);
    return ivc_vm_of(lower);
}

/* By the same rule, so that it differs between two guests only. */
static bool is_elsewhere(const struct ivc_member *a, const struct ivc_member *b)
{
    uint32_t providers[2];

    memcpy(&providers[0], a->network, sizeof providers[0]);     /* of struct ivc_network_name */
    memcpy(&providers[1], b->network, sizeof providers[1]);
    return a->wake.family != 0 && a->wake.family == b->wake.family && providers[0] == providers[1]
           && memcmp(a->wake.address, b->wake.address, sizeof a->wake.address) != 0;
}

/* Copies of one snapshot have one boot id, and their first process id namespaces have one number: there the host
 * name or the address tells.  Containers of one guest, which have several of either, have namespaces of their own. */
static bool is_of_another_guest(const struct ivc_member *a, const struct ivc_member *b)
{
    if (a->same_kernel && b->same_kernel)
        return false;
    if (memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) != 0)
        return true;
    return a->pid_namespace == b->pid_namespace && (strcmp(a->host, b->host) != 0 || is_elsewhere(a, b));
}

uint32_t person_guest(const struct people *people, const struct person *person)
{
    for (uint32_t i = 0; i < person->member.slot; i++)
        if (people->slots[i].present && !is_of_another_guest(&people->slots[i].member, &person->member))
            return i;
    return person->member.slot;
}

/* A name counts whatever it is of: one process of a guest may go by another than the next. */
static unsigned collect(const struct people *people, const char *text, uint64_t ret_vms[GUESTS_MAX])
{
    uint64_t by_name = identity_of(text), by_digits = by_name;
    unsigned n = 0;

    (void)read_identity(text, &by_digits);
    for (uint32_t i = 0; i < people->n_slots; i++) {
        const struct person *person = &people->slots[i];
        uint64_t vm = person->member.vm;

        if (person->present && (vm == by_name || vm == by_digits || strcmp(person->member.host, text) == 0)
            && !person_is_of(person, ret_vms, n) && n < GUESTS_MAX)
            ret_vms[n++] = vm;
    }
    return n;
}

/* One process of each guest, for people; how many guests. */
static unsigned list_guests(const struct people *people, const uint64_t *vms, unsigned n, char *ret_text, size_t size)
{
    const struct person *first = NULL;
    unsigned found = 0;
    char name[140];

    *ret_text = '\0';
    for (uint32_t i = 0; i < people->n_slots; i++) {
        const struct person *person = &people->slots[i];

        if (!person->present || !person_is_of(person, vms, n)
            || (first && !is_of_another_guest(&first->member, &person->member)))
            continue;
        if (!first)
            first = person;
        person_name(person, name, sizeof name);
        if (found++ < GUESTS_SHOWN)
            snprintf(ret_text + strlen(ret_text), size - strlen(ret_text), "%s%s in slot %u", found > 1 ? ", " : "",
                     name, i);
    }
    return found;
}

int guests_named(const struct people *people, const char *text, uint64_t ret_vms[GUESTS_MAX])
{
    unsigned n = collect(people, text, ret_vms);
    char list[REASON_MAX];

    if (n == 0) {
        if (!read_identity(text, &ret_vms[0]))
            ret_vms[0] = identity_of(text);
        return 1;
    }
    if (list_guests(people, ret_vms, n, list, sizeof list) > 1)
        return ivc_error_set(-ENOTUNIQ, "'%s' would reach several guests (%s), so nobody was asked; name one by its "
                             "UUID or IVC_VM, and where those are equal too, as in copies of one snapshot, start "
                             "its jobs with an IVC_VM of its own", text, list);
    return (int)n;
}

bool person_has_rank(const struct person *person)
{
    return person->member.client_id != person->member.pid;
}

/* A host name is what some process wrote: it must not do things to a terminal. */
static void printable(const char *text, char *ret_text, size_t size)
{
    size_t i;

    for (i = 0; text[i] && i + 1 < size; i++)
        ret_text[i] = isprint((unsigned char)text[i]) ? text[i] : '?';
    ret_text[i] = '\0';
}

void person_name(const struct person *person, char *ret_name, size_t size)
{
    char host[sizeof person->member.host];

    printable(person->member.host, host, sizeof host);
    if (person_has_rank(person))
        snprintf(ret_name, size, "rank %u on %s (pid %u)", person->member.client_id, host,
                 person->member.pid);
    else
        snprintf(ret_name, size, "process %u on %s", person->member.pid, host);
}

enum line { LINE_NONE, LINE_OPEN, LINE_SUSPENDED };

static enum line line_state(const struct people *people, const struct person *from,
                            const struct person *to)
{
    const struct ivc_layout_link *line = ivc_region_link(people->region, from->member.slot,
                                                         to->member.slot);

    /* Relaxed: nothing is read because of it. */
    if (!line || ivc_load_relaxed(&line->generation) != to->member.generation)
        return LINE_NONE;
    return ivc_load_relaxed(&line->suspended) ? LINE_SUSPENDED : LINE_OPEN;
}

static bool knows_orders(const struct person *person)
{
    return (person->member.features & IVC_FEATURE_ORDERS) != 0;
}

bool person_is_too_old(const struct people *people, const struct person *person,
                       const uint64_t *vms, unsigned n)
{
    if (!person->present || knows_orders(person))
        return false;
    if (person_is_of(person, vms, n))
        return true;
    for (uint32_t i = 0; i < people->n_slots; i++) {
        const struct person *other = &people->slots[i];

        if (other->present && person_is_of(other, vms, n)
            && (line_state(people, person, other) != LINE_NONE
                || line_state(people, other, person) != LINE_NONE))
            return true;
    }
    return false;
}

static bool is_silent(const struct person *person)
{
    return ivc_now_ms() - person->since_ms >= SILENT_MS;
}

/* The first peer that has not done its part; NULL: there is none. */
static const struct person *holdup(const struct people *people, const struct person *person,
                                   bool *ret_own)
{
    const struct person *found = NULL;

    for (uint32_t i = 0; i < people->n_slots; i++) {
        const struct person *peer = &people->slots[i];

        if (peer == person || !peer->present)
            continue;
        *ret_own = line_state(people, person, peer) == LINE_OPEN;
        if (*ret_own)
            return peer;
        if (!found && line_state(people, peer, person) == LINE_OPEN)
            found = peer;
    }
    return found;
}

void person_reason(const struct people *people, const struct person *person,
                   char ret_reason[REASON_MAX])
{
    char name[140] = "";
    const struct person *peer;
    bool own = false;

    peer = holdup(people, person, &own);
    if (peer)
        person_name(peer, name, sizeof name);
    if (is_silent(person))
        snprintf(ret_reason, REASON_MAX, "its heart stands still: its process or guest is stopped");
    else if (peer && own)
        snprintf(ret_reason, REASON_MAX, "it has not let go of its memory with %s", name);
    else if (peer)
        snprintf(ret_reason, REASON_MAX, "it waits for %s, which has not let go%s", name,
                 is_silent(peer) ? " and whose heart stands still" : "");
    else
        snprintf(ret_reason, REASON_MAX, "it has not left the region");
}
