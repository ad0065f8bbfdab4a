/* Guests and hosts of a migration test: see guest.h. */
#include "guest.h"

#include "check.h"
#include "fake_grants.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

enum {
    BEAT_MS = 50,
    LEASE_MS = 10000,           /* who does not hear an order for so long is dead, as host/ivc_host/migrate/xen.py says */
};

uint64_t guest_id(const char *vm)
{
    return ivc_vm_of(vm);
}

int host_open(struct host *host, const char *path)
{
    int r;

    snprintf(host->path, sizeof host->path, "%s", path);
    r = ivc_region_open(path, &host->region);
    if (r != 0)
        return r;
    /* Ours alone: a rank that is forked must not map what its guest has let go of. */
    CHECK(madvise(host->region->mapping.memory, host->region->mapping.size, MADV_DONTFORK) == 0);
    return 0;
}

void host_open_grants(struct host *host, const char *path)
{
    snprintf(host->path, sizeof host->path, "%s", path);
    host->store = fake_grants_host(path);
}

void host_close(struct host *host)
{
    ivc_region_free(host->region);
    host->region = NULL;
}

void guest_init(struct guest *guest, const char *vm, const char *link)
{
    *guest = (struct guest){ .id = guest_id(vm) };
    snprintf(guest->vm, sizeof guest->vm, "%s", vm);
    snprintf(guest->link, sizeof guest->link, "%s", link);
}

void guest_place(struct guest *guest, struct host *host)
{
    char beside[sizeof guest->link + 8], target[sizeof host->path + 16];

    if (guest->host && guest->host->store)
        fake_host_destroy(guest->host->store, guest->domain);
    guest->host = host;
    if (!host) {
        CHECK_THAT(unlink(guest->link) == 0 || errno == ENOENT, "%s: %s", guest->link,
                   strerror(errno));
        return;
    }
    snprintf(target, sizeof target, "%s", host->path);
    if (host->store) {
        guest->domain = ++host->domains;
        snprintf(target, sizeof target, "%s%c%u", host->path, FAKE_GRANTS_MARK, guest->domain);
    }
    snprintf(beside, sizeof beside, "%s.new", guest->link);
    CHECK_THAT(symlink(target, beside) == 0, "%s: %s", beside, strerror(errno));
    CHECK_THAT(rename(beside, guest->link) == 0, "%s: %s", guest->link, strerror(errno));
}

/* A record ends with the member's entry, in hexadecimal digits. */
typedef void member_fn(void *arg, const struct ivc_layout_member *entry, unsigned beat);
struct of_guest {
    uint64_t vm;
    member_fn *fn;
    void *arg;
};

static void on_record(void *arg, uint32_t domain, const char *record)
{
    const struct of_guest *of = arg;
    struct ivc_layout_member entry = { 0 };
    const char *hex = strrchr(record, ' ');
    unsigned byte, beat = 0;

    (void)domain;
    (void)!sscanf(record, "%*u %*s %*u %u", &beat);
    for (size_t i = 0; hex && i < sizeof entry && sscanf(hex + 1 + 2 * i, "%2x", &byte) == 1; i++)
        ((uint8_t *)&entry)[i] = (uint8_t)byte;
    if (entry.vm == of->vm)
        of->fn(of->arg, &entry, beat);
}

static struct hearer *hearer_of(struct guest *guest, uint64_t endpoint_id)
{
    struct hearer *free_one = NULL;

    for (unsigned i = 0; i < HEARERS; i++) {
        if (guest->hearers[i].endpoint_id == endpoint_id)
            return &guest->hearers[i];
        if (!free_one && !guest->hearers[i].endpoint_id)
            free_one = &guest->hearers[i];
    }
    CHECK(free_one);
    return free_one;
}

static void hear(void *arg, const struct ivc_layout_member *entry, unsigned beat)
{
    struct guest *guest = arg;
    struct hearer *hearer = hearer_of(guest, entry->endpoint_id);

    if (hearer->endpoint_id != entry->endpoint_id || hearer->beat != beat)
        *hearer = (struct hearer){ entry->endpoint_id, beat, ivc_now_ms() };
}

/* What they have left behind is in nobody's way then. */
static void bury_deaf(struct guest *guest)
{
    fake_host_members(guest->ordered_at->store, on_record, &(struct of_guest){ guest->id, hear, guest });
    for (unsigned i = 0; i < HEARERS; i++) {
        struct hearer *hearer = &guest->hearers[i];

        if (!hearer->endpoint_id || ivc_now_ms() - hearer->since_ms < LEASE_MS)
            continue;
        fake_host_drop(guest->ordered_at->store, guest->ordered_as, hearer->endpoint_id);
        *hearer = (struct hearer){ 0 };
    }
}

static int give_order(struct guest *guest)
{
    if (!guest->host->store)
        return ivc_order_give(guest->host->region, guest->id, &guest->order);
    guest->beats = 1;
    memset(guest->hearers, 0, sizeof guest->hearers);
    fake_host_order(guest->host->store, guest->domain, ++guest->orders, guest->beats);
    return 0;
}

int guest_order(struct guest *guest)
{
    int r;

    CHECK(guest->host && !guest->ordered_at);
    guest->ordered_ns = ivc_now_ns();
    r = give_order(guest);
    if (r != 0)
        return r;
    guest->ordered_at = guest->host;
    guest->ordered_as = guest->domain;
    guest->beaten_ms = ivc_now_ms();
    return 0;
}

void guest_beat(struct guest *guest)
{
    uint64_t now = ivc_now_ms();

    if (!guest->ordered_at || now - guest->beaten_ms < BEAT_MS)
        return;
    guest->beaten_ms = now;
    if (guest->ordered_at->store) {
        fake_host_order(guest->ordered_at->store, guest->ordered_as, guest->orders, ++guest->beats);
        bury_deaf(guest);
        return;
    }
    CHECK_THAT(ivc_order_beat(&guest->order) == 0, "%s", ivc_error_text());
}

void guest_withdraw(struct guest *guest)
{
    if (!guest->ordered_at)
        return;
    if (guest->ordered_at->store)
        fake_host_order(guest->ordered_at->store, guest->ordered_as, guest->orders, 0);
    else
        ivc_order_withdraw(&guest->order);
    guest->ordered_at = NULL;
}

/* Calls `fn` for each member of the guest that has not left the host. */
static void each_member(const struct guest *guest, const struct host *host, member_fn *fn, void *arg)
{
    struct ivc_member member;

    if (host->store) {
        fake_host_members(host->store, on_record, &(struct of_guest){ guest->id, fn, arg });
        return;
    }
    ivc_region_look_at_members(host->region);   /* who has lost the memory cannot say that he has left */
    for (uint32_t slot = 0; slot < ivc_region_capacity(host->region); slot++)
        if (ivc_region_member(host->region, slot, &member) == 0 && member.vm == guest->id)
            fn(arg, &(struct ivc_layout_member){ .client_id = member.client_id, .pid = member.pid }, 0);
}

static void count(void *arg, const struct ivc_layout_member *entry, unsigned beat)
{
    (void)entry, (void)beat;
    ++*(unsigned *)arg;
}

unsigned guest_members(const struct guest *guest, const struct host *host)
{
    unsigned n = 0;

    each_member(guest, host, count, &n);
    return n;
}

struct words {
    char *text;
    size_t at, size;
};

static void describe(void *arg, const struct ivc_layout_member *entry, unsigned beat)
{
    struct words *words = arg;

    (void)beat;
    if (words->at < words->size)
        words->at += (size_t)snprintf(words->text + words->at, words->size - words->at, "%srank %u (pid %u)",
                                      words->at ? ", " : "", entry->client_id, entry->pid);
}

void guest_describe_members(const struct guest *guest, const struct host *host, char *ret_text,
                            size_t size)
{
    ret_text[0] = '\0';
    each_member(guest, host, describe, &(struct words){ ret_text, 0, size });
}

bool process_maps(pid_t pid, const struct host *host)
{
    char path[64], line[512];
    IVC_AUTO_FCLOSE FILE *file = NULL;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *name = strchr(line, '/');
        unsigned long long offset;

        if (!name || sscanf(line, "%*s %*s %llx", &offset) != 1
            || (host->store && offset < fake_host_pages_at()))
            continue;
        name[strcspn(name, "\n")] = '\0';
        if (strcmp(name, host->path) == 0)
            return true;
    }
    return false;
}
