/* Guests and hosts of a migration test: see guest.h. */
#include "guest.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/internal.h"

enum { BEAT_MS = 50 };

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
    char beside[sizeof guest->link + 8];

    guest->host = host;
    if (!host) {
        CHECK_THAT(unlink(guest->link) == 0 || errno == ENOENT, "%s: %s", guest->link,
                   strerror(errno));
        return;
    }
    snprintf(beside, sizeof beside, "%s.new", guest->link);
    CHECK_THAT(symlink(host->path, beside) == 0, "%s: %s", beside, strerror(errno));
    CHECK_THAT(rename(beside, guest->link) == 0, "%s: %s", guest->link, strerror(errno));
}

int guest_order(struct guest *guest)
{
    int r;

    CHECK(guest->host && !guest->ordered_at);
    guest->ordered_ns = ivc_now_ns();
    r = ivc_order_give(guest->host->region, guest->id, &guest->order);
    if (r != 0)
        return r;
    guest->ordered_at = guest->host;
    guest->beaten_ms = ivc_now_ms();
    return 0;
}

void guest_beat(struct guest *guest)
{
    uint64_t now = ivc_now_ms();

    if (!guest->ordered_at || now - guest->beaten_ms < BEAT_MS)
        return;
    guest->beaten_ms = now;
    CHECK_THAT(ivc_order_beat(&guest->order) == 0, "%s", ivc_error_text());
}

void guest_withdraw(struct guest *guest)
{
    if (!guest->ordered_at)
        return;
    ivc_order_withdraw(&guest->order);
    guest->ordered_at = NULL;
}

static bool next_member(const struct guest *guest, const struct host *host, uint32_t *slot,
                        struct ivc_member *ret_member)
{
    for (; *slot < ivc_region_capacity(host->region); ++*slot) {
        if (ivc_region_member(host->region, *slot, ret_member) == 0
            && ret_member->vm == guest->id) {
            ++*slot;
            return true;
        }
    }
    return false;
}

unsigned guest_members(const struct guest *guest, const struct host *host)
{
    struct ivc_member member;
    unsigned n = 0;

    ivc_region_look_at_members(host->region);   /* who has lost the memory cannot say that he has left */
    for (uint32_t slot = 0; next_member(guest, host, &slot, &member);)
        n++;
    return n;
}

void guest_describe_members(const struct guest *guest, const struct host *host, char *ret_text,
                            size_t size)
{
    struct ivc_member member;
    size_t at = 0;

    ret_text[0] = '\0';
    for (uint32_t slot = 0; at < size && next_member(guest, host, &slot, &member);)
        at += (size_t)snprintf(ret_text + at, size - at, "%srank %u (pid %u)", at ? ", " : "",
                               member.client_id, member.pid);
}

bool process_maps(pid_t pid, const struct host *host)
{
    char path[64], line[512];
    IVC_AUTO_FCLOSE FILE *file = NULL;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *name = strchr(line, '/');

        if (!name)
            continue;
        name[strcspn(name, "\n")] = '\0';
        if (strcmp(name, host->path) == 0)
            return true;
    }
    return false;
}
