/* Grants: see grants.h.  Here is the state of one region; pairs.c has what is done for one peer. */
#include "region/grants-internal.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"
#include "region/window.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum {
    PAGES_LEAST = 16,
    PAGES_MOST = 65536,
    /* For members of other guests.  Who joins looks at all domains, and knocks where somebody is; who looked at
     * the same moment, or was not heard, is found by looking at a few at a time. */
    LOOK_AT_ALL_MS = 1000,      /* at most: a thousand times what it takes, where it is known which domains there are */
    SCAN_EVERY_MS = 1000,
    SCAN_AT_ONCE = 16,
    SCAN_PAST_OWN = 16,
    LOOK_AGAIN_MS = 100,        /* at what has no watch */
    BEATS_TO_ANSWER = 10,
    LINGER_MS = 1000,           /* for peers to read what was sent last, which ends with us */
};

/* One region for all that is reached by the same store: whether somebody is there, the store tells. */
static const uint64_t SAME_UUID[2] = { 0x7374656c6c696863ull, 0x6e657865726f6d20ull };

/* ---- the private window */

/* Blocks for as many pages as this guest may grant. */
static uint64_t window_size(uint32_t pages)
{
    uint64_t size = IVC_MAX((uint64_t)pages * IVC_LAYOUT_PAGE, (uint64_t)IVC_LAYOUT_SIZE_MIN);

    while (ivc_window_geometry(size).n_blocks < pages)
        size += 16 * IVC_LAYOUT_PAGE;
    return size;
}

static int map_window(struct ivc_grants *grants, struct ivc_mapping *ret_mapping)
{
    uint32_t capacity = ivc_window_geometry(grants->window_size).capacity;
    uint64_t size = grants->window_size + (uint64_t)capacity * IVC_LAYOUT_PAGE;
    struct ivc_layout_header *header;
    int r;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);

    if (memory == MAP_FAILED)
        return ivc_error_set(-errno, "region %s: no address space for its tables: %s",
                             grants->backend->name, strerror(errno));
    header = memory;
    for (unsigned i = 0; i < 2; i++)
        ivc_store_relaxed(&header->uuid[i], SAME_UUID[i]);
    ivc_store_relaxed(&header->epoch, 1);
    ivc_store_relaxed(&header->size, grants->window_size);
    r = ivc_window_open(grants->backend->name,
                        &(struct ivc_mapping){ .memory = memory, .size = grants->window_size },
                        &grants->geometry);
    if (r < 0) {
        munmap(memory, size);
        return r;
    }
    grants->window = memory;
    /* The first slot will be ours.  Others know us by the generation, so it must be nobody else's. */
    ivc_store_relaxed(&((struct ivc_layout_member *)(grants->window + grants->geometry.members))->state,
                      ivc_layout_state((uint32_t)ivc_random_id(), IVC_PHASE_FREE));
    *ret_mapping = (struct ivc_mapping){
        .memory = memory, .size = size, .speed = { .cached = true },
        .fault = ivc_fault_cover(memory, size),
    };
    return 0;
}

/*
 * Whoever may write below our path, which is the host, asks our guest to leave by "SERIAL BEAT", and goes
 * on beating.  Here it is put where orders lie in a window: src/region/order.c does the rest.  (That we hear
 * the beat is for the host alone: a process that was killed leaves its record behind.)
 */
static void look_at_order(struct ivc_grants *grants)
{
    IVC_AUTO_FREE char *text = NULL;
    struct ivc_layout_order *order = (struct ivc_layout_order *)(grants->window + IVC_LAYOUT_ORDERS_AT);
    unsigned serial = 0, beat = 0;
    bool asked = grants->backend->get(grants->handle, grants->domain, IVC_GRANT_ORDER, &text) == 0
                 && sscanf(text, "%u %u", &serial, &beat) == 2;

    ivc_store_relaxed(&order->vm, ivc_region_own_vm());
    grants->beat = asked ? beat : 0;
    ivc_store_relaxed(&order->heartbeat, beat);
    /* Release: pairs with the acquire in look_at() of order.c. */
    ivc_store_release(&order->state, asked ? (uint64_t)serial << 32 | IVC_ORDER_ASKED : IVC_ORDER_FREE);
}

void ivc_grants_free(struct ivc_grants *grants)
{
    if (!grants)
        return;
    if (grants->stop_fd >= 0)
        close(grants->stop_fd);
    if (grants->handle)
        grants->backend->close(grants->handle);
    free(grants->pairs);
    free(grants->blocks);
    free(grants);
}

int ivc_grants_open(const struct ivc_grant_backend *backend, struct ivc_mapping *ret_mapping)
{
    struct ivc_grants *grants = calloc(1, sizeof *grants);
    uint32_t pages;
    int r;

    if (!grants)
        return ivc_error_set(-ENOMEM, "region %s: out of memory", backend->name);
    grants->backend = backend;
    grants->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = grants->stop_fd < 0 ? ivc_error_set(-errno, "region %s: %s", backend->name, strerror(errno))
                            : backend->open(&grants->handle, &grants->domain);
    if (r != 0)
        goto err;
    pages = backend->pages_max(grants->handle);
    pages = IVC_MIN(IVC_MAX(pages, (uint32_t)PAGES_LEAST), (uint32_t)PAGES_MOST);
    grants->window_size = window_size(pages);
    r = map_window(grants, ret_mapping);
    if (r < 0)
        goto err;
    grants->pairs = calloc(grants->geometry.capacity, sizeof *grants->pairs);
    grants->blocks = calloc(grants->geometry.n_blocks, sizeof *grants->blocks);
    if (!grants->pairs || !grants->blocks) {
        ivc_mapping_free(ret_mapping);
        r = ivc_error_set(-ENOMEM, "region %s: out of memory", backend->name);
        goto err;
    }
    look_at_order(grants);
    ret_mapping->grants = grants;
    return 0;

err:
    ivc_grants_free(grants);
    return r;
}

bool ivc_grants_is_there(const struct ivc_grants *grants)
{
    return grants->backend->is_there(grants->handle, grants->domain);
}

uint32_t ivc_grants_domain(const struct ivc_region *region)
{
    return region->grants->domain;
}

/* ---- the directory */

/*
 * What a member says of itself is its entry as it would lie in a window, in hexadecimal digits, after
 * the version, its host and its process for people who look, and how far it has heard an order beat:
 * "1 HOST PID BEAT HEX".
 */
static void own_record(const struct ivc_region *region, unsigned beat, char *ret_text, size_t size)
{
    struct ivc_layout_member entry = *ivc_region_slot(region, region->self.slot);
    const uint8_t *bytes = (const uint8_t *)&entry;
    int at = snprintf(ret_text, size, "%u %.64s %u %u ", IVC_PAIR_VERSION, entry.host, entry.pid, beat);

    for (size_t i = 0; i < sizeof entry; i++)
        at += snprintf(ret_text + at, size - (size_t)at, "%02x", bytes[i]);
}

static int read_record(const char *text, struct ivc_layout_member *ret_entry)
{
    uint8_t bytes[sizeof *ret_entry];
    const char *hex = strrchr(text, ' ');
    unsigned version = 0, byte;

    if (sscanf(text, "%u ", &version) != 1 || version != IVC_PAIR_VERSION || !hex
        || strlen(hex + 1) != 2 * sizeof bytes)
        return -EBADMSG;
    for (size_t i = 0; i < sizeof bytes; i++) {
        if (sscanf(hex + 1 + 2 * i, "%2x", &byte) != 1)
            return -EBADMSG;
        bytes[i] = (uint8_t)byte;
    }
    memcpy(ret_entry, bytes, sizeof bytes);
    return 0;
}

static void record_path(uint64_t id, char ret_path[IVC_GRANT_PATH])
{
    snprintf(ret_path, IVC_GRANT_PATH, "ivc/%016" PRIx64, id);
}

static int put_record(struct ivc_region *region, unsigned beat)
{
    struct ivc_grants *grants = region->grants;
    char path[IVC_GRANT_PATH], text[1024];

    record_path(region->self.endpoint_id, path);
    own_record(region, beat, text, sizeof text);
    return grants->backend->put(grants->handle, path, text, IVC_GRANT_ALL);
}

/* So that the host knows who hears it: once in as many beats as a second has. */
static void answer_beat(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;

    if (grants->beat == 0)
        grants->beat_told = 0;
    else if (grants->beat_told == 0 || grants->beat - grants->beat_told >= BEATS_TO_ANSWER)
        if (put_record(region, grants->beat) == 0)
            grants->beat_told = grants->beat;
}

/* The slot of a member that we know; the region's capacity when there is none.  `generation` 0: of the one that
 * lives.  Another domain may say that it is the same, which makes two. */
static uint32_t find_slot(const struct ivc_region *region, uint32_t domain, uint64_t id, uint32_t generation)
{
    uint32_t slot = 0;

    for (; slot < region->geometry.capacity; slot++) {
        const struct ivc_layout_member *entry = ivc_region_slot(region, slot);
        uint64_t state = ivc_load_relaxed(&entry->state);   /* written under the lock, which we hold */
        enum ivc_phase phase = ivc_layout_phase(state);

        if (entry->endpoint_id == id && region->grants->pairs[slot].domain == domain
            && (generation == 0 ? phase == IVC_PHASE_ACTIVE
                                : phase != IVC_PHASE_FREE && ivc_layout_generation(state) == generation))
            break;
    }
    return slot;
}

static uint32_t free_slot(const struct ivc_region *region)
{
    uint32_t slot = 0;

    while (slot < region->geometry.capacity
           && ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(region, slot)->state))
              != IVC_PHASE_FREE)
        slot++;
    return slot;
}

/* Everything but the state, which a reader looks at before and after.  Of another domain it is another
 * kernel's process, whatever it says: a guest that was copied has its original's identity. */
static void fill_entry(struct ivc_layout_member *entry, const struct ivc_layout_member *from, bool own_domain)
{
    entry->magic_id = from->magic_id;
    entry->client_id = from->client_id;
    entry->pid = from->pid;
    entry->pid_start = from->pid_start;
    entry->pid_namespace = own_domain ? from->pid_namespace : 0;
    memcpy(entry->boot_id, from->boot_id, sizeof entry->boot_id);
    ivc_store_relaxed(&entry->links, 0);
    memcpy(entry->host, from->host, sizeof entry->host);
    entry->endpoint_id = from->endpoint_id;
    ivc_store_relaxed(&entry->lends, 0);
    ivc_store_relaxed(&entry->features, ivc_load_relaxed(&from->features) & ~(uint32_t)IVC_FEATURE_MOVED);
    memcpy(entry->network, from->network, sizeof entry->network);
    entry->vm = from->vm;
    entry->wake = (struct ivc_layout_wake){ 0 };    /* an event wakes */
}

static bool was_buried(const struct ivc_grants *grants, uint64_t id, uint32_t generation)
{
    for (unsigned i = 0; i < IVC_GRAVES; i++)
        if (grants->graves[i].id == id && grants->graves[i].generation == generation)
            return true;
    return false;
}

/* Takes a member into the directory.  IVC_E_GONE: it is dead, or there is no room for it. */
static int admit(struct ivc_region *region, uint32_t domain, const struct ivc_layout_member *record,
                 uint32_t *ret_slot)
{
    struct ivc_grants *grants = region->grants;
    uint32_t generation = ivc_layout_generation(ivc_load_relaxed(&record->state));
    uint32_t slot = find_slot(region, domain, record->endpoint_id, generation);
    struct ivc_layout_member *entry;
    uint64_t state;

    *ret_slot = slot;
    if (slot < region->geometry.capacity)
        return 0;
    slot = free_slot(region);
    if (slot == region->geometry.capacity || generation == 0
        || was_buried(grants, record->endpoint_id, generation)
        || (domain == grants->domain && ivc_member_may_be_here(&region->identity, record)
            && !ivc_member_process_exists(record)))
        return IVC_E_GONE;
    entry = ivc_region_slot(region, slot);
    state = ivc_layout_state(generation, IVC_PHASE_JOINING);
    ivc_store_relaxed(&entry->state, state);
    /* Pairs with the acquire fence in ivc_region_member(): who sees our fields sees JOINING. */
    atomic_thread_fence(memory_order_release);
    fill_entry(entry, record, domain == grants->domain);
    grants->pairs[slot] = (struct ivc_pair){ .domain = domain };
    ivc_pair_watch(region, slot);
    /* Release: pairs with the acquire in ivc_region_member(). */
    ivc_store_release(&entry->state, ivc_layout_state(generation, IVC_PHASE_ACTIVE));
    grants->admitted++;
    *ret_slot = slot;
    return 0;
}

static int get_record(const struct ivc_grants *grants, uint32_t domain, uint64_t id,
                      struct ivc_layout_member *ret_record)
{
    IVC_AUTO_FREE char *text = NULL;
    char path[IVC_GRANT_PATH];
    int r;

    record_path(id, path);
    r = grants->backend->get(grants->handle, domain, path, &text);
    if (r == 0)
        r = read_record(text, ret_record);
    return r == 0 && ret_record->endpoint_id != id ? -EBADMSG : r;
}

/* Looks up one member of a domain, under the lock. */
static int look_up(struct ivc_region *region, uint32_t domain, uint64_t id, uint32_t *ret_slot)
{
    struct ivc_layout_member record;

    return get_record(region->grants, domain, id, &record) < 0 ? IVC_E_GONE
                                                                : admit(region, domain, &record, ret_slot);
}

bool ivc_grants_has_record(const struct ivc_region *region, uint32_t slot)
{
    const struct ivc_layout_member *entry = ivc_region_slot(region, slot);
    struct ivc_layout_member record;
    int r = get_record(region->grants, region->grants->pairs[slot].domain, entry->endpoint_id, &record);

    return r == 0 ? ivc_layout_generation(ivc_load_relaxed(&record.state))
                    == ivc_layout_generation(ivc_load_relaxed(&entry->state))
                  : r != -ENOENT;
}

int ivc_grants_find(struct ivc_region *region, uint32_t domain, uint64_t id,
                    struct ivc_member *ret_member)
{
    uint32_t slot;
    int r = 0;

    pthread_mutex_lock(&region->lock);
    slot = find_slot(region, domain, id, 0);
    if (slot == region->geometry.capacity)
        r = look_up(region, domain, id, &slot);
    pthread_mutex_unlock(&region->lock);
    return r != 0 ? r : ivc_region_member(region, slot, ret_member);
}

struct scan {
    struct ivc_region *region;
    uint32_t domain;
};

static void on_name(void *arg, const char *name)
{
    struct scan *scan = arg;
    struct ivc_region *region = scan->region;
    uint64_t id;
    uint32_t slot;
    char rest;
    int r = 0;

    if (sscanf(name, "%16" SCNx64 "%c", &id, &rest) != 1 || id == region->self.endpoint_id)
        return;
    pthread_mutex_lock(&region->lock);
    slot = find_slot(region, scan->domain, id, 0);
    /* Whose page we have tells by that when it goes; else this may be the next one of that name. */
    if (slot == region->geometry.capacity || !region->grants->pairs[slot].mapped)
        r = look_up(region, scan->domain, id, &slot);
    if (r == 0)
        region->grants->pairs[slot].missed = 0;
    pthread_mutex_unlock(&region->lock);
}

static void count_as_missed(struct ivc_region *region, uint32_t domain)
{
    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
        if (region->grants->pairs[slot].domain == domain)
            region->grants->pairs[slot].missed++;   /* until it is found */
    pthread_mutex_unlock(&region->lock);
}

/* Whether somebody new was found. */
static bool find_in(struct ivc_region *region, uint32_t domain)
{
    struct scan scan = { region, domain };
    uint64_t before;
    bool found;

    pthread_mutex_lock(&region->lock);
    before = region->grants->admitted;
    pthread_mutex_unlock(&region->lock);
    region->grants->backend->list(region->grants->handle, domain, "ivc", on_name, &scan);
    pthread_mutex_lock(&region->lock);
    found = region->grants->admitted != before;
    pthread_mutex_unlock(&region->lock);
    return found;
}

/* The same, by the thread, which also looks who is no longer there. */
static bool scan_domain(struct ivc_region *region, uint32_t domain)
{
    count_as_missed(region, domain);
    return find_in(region, domain);
}

static void scan_range(struct ivc_region *region, uint32_t from, uint32_t to)
{
    const struct ivc_grants *grants = region->grants;

    for (uint32_t domain = from; domain < to; domain++)
        if (scan_domain(region, domain))
            grants->backend->knock(grants->handle, domain, IVC_GRANT_DOOR);
}

struct look {
    struct ivc_region *region;
    uint64_t end_ms;
};

/* Where somebody new is, we knock. */
static bool look_in(void *arg, uint32_t domain)
{
    const struct look *look = arg;
    const struct ivc_grants *grants = look->region->grants;

    if (find_in(look->region, domain))
        grants->backend->knock(grants->handle, domain, IVC_GRANT_DOOR);
    return ivc_now_ms() < look->end_ms;
}

void ivc_grants_look_at_all(struct ivc_region *region)
{
    struct look look = { region, ivc_now_ms() + LOOK_AT_ALL_MS };

    region->grants->backend->domains(region->grants->handle, look_in, &look);
}

/* Those of whom we know, to see whether they are still there, and the next few. */
static void scan_some(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;
    uint32_t end = grants->domain + SCAN_PAST_OWN + 1, from = grants->scan_from % end;
    uint32_t to = IVC_MIN(from + SCAN_AT_ONCE, end);
    IVC_AUTO_FREE uint32_t *known = malloc(region->geometry.capacity * sizeof *known);
    uint32_t n = 0;

    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; known && slot < region->geometry.capacity; slot++)
        if (ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(region, slot)->state)) == IVC_PHASE_ACTIVE
            && (n == 0 || known[n - 1] != grants->pairs[slot].domain))
            known[n++] = grants->pairs[slot].domain;
    pthread_mutex_unlock(&region->lock);
    for (uint32_t i = 0; i < n; i++)
        (void)scan_domain(region, known[i]);
    scan_range(region, from, to);
    grants->scan_from = to;
}

/* What a process of this guest left behind when it was killed.  The store is the domain's own, so it was no copy's. */
static void clean_name(void *arg, const char *name)
{
    struct ivc_region *region = ((const struct scan *)arg)->region;
    struct ivc_grants *grants = region->grants;
    IVC_AUTO_FREE char *text = NULL;
    struct ivc_layout_member record;
    char path[IVC_GRANT_PATH];

    snprintf(path, sizeof path, "ivc/%.16s", name);
    /* What cannot be read may be another version's, or about to be written. */
    if (grants->backend->get(grants->handle, grants->domain, path, &text) < 0 || read_record(text, &record) < 0
        || !ivc_member_may_be_here(&region->identity, &record) || ivc_member_process_exists(&record))
        return;
    grants->backend->drop(grants->handle, path);
    snprintf(path, sizeof path, "ivc-pairs/%.16s", name);
    grants->backend->drop(grants->handle, path);
}

/* ---- the thread */

static void on_event(struct ivc_region *region, uint32_t port)
{
    struct ivc_grants *grants = region->grants;

    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < grants->geometry.capacity; slot++)
        if (ivc_load_relaxed(&grants->pairs[slot].port) == port)
            ivc_pair_rung(region, slot);
    pthread_mutex_unlock(&region->lock);
}

static void on_news(struct ivc_region *region, const struct ivc_grant_news *news)
{
    unsigned number;

    if (strcmp(news->token, "order") == 0) {
        look_at_order(region->grants);
    } else if (strcmp(news->token, "knock") == 0) {
        if (sscanf(news->name, "%u", &number) == 1)
            (void)scan_domain(region, number);
    } else if (sscanf(news->token, "%u", &number) == 1 && number < region->geometry.capacity) {
        pthread_mutex_lock(&region->lock);
        ivc_pair_look(region, number);
        pthread_mutex_unlock(&region->lock);
    }
}

/* The store has only so many watches for a guest; and a page of whose owner we wait, once in a while, as mapping it
 * may have been refused only at that moment. */
static void look_at_pairs(struct ivc_region *region, bool waited_for)
{
    const struct ivc_pair *pairs = region->grants->pairs;

    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < region->grants->geometry.capacity; slot++)
        if (!pairs[slot].watched || (waited_for && pairs[slot].own.memory))
            ivc_pair_look(region, slot);
    pthread_mutex_unlock(&region->lock);
}

static void take_all(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;
    struct ivc_grant_news news;
    uint32_t port;

    while ((port = grants->backend->event_take(grants->handle)) != 0)
        on_event(region, port);
    while (grants->backend->news_take(grants->handle, &news))
        on_news(region, &news);
}

static void *listen_main(void *arg)
{
    struct ivc_region *region = arg;
    struct ivc_grants *grants = region->grants;
    struct pollfd fds[3] = {
        { grants->backend->events_fd(grants->handle), POLLIN, 0 },
        { grants->backend->news_fd(grants->handle), POLLIN, 0 },
        { grants->stop_fd, POLLIN, 0 },
    };
    uint64_t scan_at = ivc_now_ms() + SCAN_EVERY_MS;

    prctl(PR_SET_NAME, "ivc-grants");
    do {
        uint64_t now = ivc_now_ms();

        take_all(region);
        answer_beat(region);
        look_at_pairs(region, now >= scan_at);
        if (now >= scan_at) {
            look_at_order(grants);      /* in case that it has no watch */
            scan_some(region);
            scan_at = ivc_now_ms() + SCAN_EVERY_MS;
        }
        (void)poll(fds, 3, LOOK_AGAIN_MS);
    } while (!(fds[2].revents & POLLIN));
    return NULL;
}

static void stop_thread(struct ivc_grants *grants)
{
    uint64_t one = 1;

    if (!grants->thread_runs)
        return;
    if (write(grants->stop_fd, &one, sizeof one) != sizeof one)
        return;
    pthread_join(grants->thread, NULL);
    (void)!read(grants->stop_fd, &one, sizeof one);
    grants->thread_runs = false;
}

/* What others find of us. */
static int tell_of_us(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;
    int r = grants->backend->put(grants->handle, "ivc", "", IVC_GRANT_ALL);

    if (r == 0)
        r = grants->backend->put(grants->handle, "ivc-pairs", "", grants->domain);
    if (r == 0)
        r = grants->backend->open_door(grants->handle, IVC_GRANT_DOOR);
    return r < 0 ? r : put_record(region, 0);
}

int ivc_grants_join(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;
    struct scan own = { region, grants->domain };
    int r;

    grants->pairs[region->self.slot].domain = grants->domain;
    grants->backend->list(grants->handle, grants->domain, "ivc", clean_name, &own);
    r = tell_of_us(region);
    if (r < 0)
        return r;
    /* Whoever asks looks for members after asking, we look for the order after telling of us. */
    look_at_order(grants);
    ivc_region_orders_look(region);
    if (ivc_region_is_ordered_away(region, ivc_region_own_vm()))
        return ivc_error_set(IVC_E_NOREGION, "region %s: its host has asked this guest to leave it",
                             region->name);
    (void)grants->backend->watch(grants->handle, grants->domain, IVC_GRANT_ORDER, "order");
    (void)grants->backend->watch(grants->handle, grants->domain, IVC_GRANT_DOOR, "knock");
    ivc_grants_look_at_all(region);
    r = ivc_thread_start(&grants->thread, listen_main, region);
    if (r != 0)
        return ivc_error_set(-r, "region %s: cannot start its thread: %s", region->name, strerror(r));
    grants->thread_runs = true;
    return 0;
}

/* What a peer has not mapped yet it cannot map when we have gone.  (Who moves has suspended its pairs.) */
static void linger(struct ivc_region *region)
{
    uint64_t end = ivc_now_ms() + LINGER_MS;
    bool is_read = true;

    while (is_read && ivc_now_ms() < end) {
        is_read = false;
        pthread_mutex_lock(&region->lock);
        for (uint32_t slot = 0; slot < region->geometry.capacity; slot++)
            is_read |= ivc_pair_is_read(region, slot);
        pthread_mutex_unlock(&region->lock);
        if (is_read)
            ivc_sleep_ms(1);
    }
}

void ivc_grants_leave(struct ivc_region *region, enum ivc_pair_state state)
{
    struct ivc_grants *grants = region->grants;

    stop_thread(grants);
    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < grants->geometry.capacity; slot++)
        ivc_pair_say_left(region, slot, state);
    pthread_mutex_unlock(&region->lock);
    if (state == IVC_PAIR_LEFT)
        linger(region);
    pthread_mutex_lock(&region->lock);
    for (uint32_t slot = 0; slot < grants->geometry.capacity; slot++)
        ivc_pair_release(region, slot);
    pthread_mutex_unlock(&region->lock);
    grants->backend->unwatch(grants->handle, grants->domain, IVC_GRANT_ORDER, "order");
    grants->backend->unwatch(grants->handle, grants->domain, IVC_GRANT_DOOR, "knock");
}

void ivc_grants_forget(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;
    char path[IVC_GRANT_PATH];

    snprintf(path, sizeof path, "ivc-pairs/%016" PRIx64, region->self.endpoint_id);
    grants->backend->drop(grants->handle, path);
    record_path(region->self.endpoint_id, path);
    grants->backend->drop(grants->handle, path);
}

void ivc_grants_let_go(struct ivc_region *region)
{
    struct ivc_grants *grants = region->grants;

    if (region->joined)
        ivc_grants_forget(region);
    grants->backend->close(grants->handle);
    grants->handle = NULL;
}

void ivc_grants_beat(struct ivc_region *region)
{
    for (uint32_t slot = 0; slot < region->grants->geometry.capacity; slot++)
        ivc_pair_beat(region, slot);
}

void ivc_grants_bury(struct ivc_region *region, uint32_t slot)
{
    struct ivc_grants *grants = region->grants;
    const struct ivc_layout_member *entry = ivc_region_slot(region, slot);

    grants->graves[grants->next_grave++ % IVC_GRAVES] = (struct ivc_grave){
        entry->endpoint_id, ivc_layout_generation(ivc_load_relaxed(&entry->state)),
    };
    ivc_pair_release(region, slot);
}
