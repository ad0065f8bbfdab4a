/*
 *   grants                        the cases below
 *   grants serve N                the peer of the next one, on the region that is found: until N have come and gone
 *   grants connect N              comes, sends, is answered and leaves, N times
 *   grants witness 1              the peer of the next one: ends when that is gone, and it was not asked to go
 *   grants hold 1                 comes, sends, is answered, and stays
 *
 * What regions made of grants do and windows do not, on grants made of a file (fake_grants.h): what is left
 * when all is over, orders that come by the store, and everything that a peer, a store or a kernel can refuse.
 */
#include "exchange.h"
#include "fake_grants.h"

#include "channel/link.h"
#include "region/grants-internal.h"

enum { SECONDS = 60 };

static void fresh(void)
{
    fake_grants_make(check_file(0, 1 << 20));
}

static struct ivc_region *open_as(uint32_t domain)
{
    struct ivc_region *region;

    fake_grants_be(domain);
    CHECK_THAT(ivc_region_open("xen", &region) == 0, "%s", ivc_error_text());
    return region;
}

static struct ivc_region *join(uint32_t domain)
{
    struct ivc_region *region = open_as(domain);

    CHECK_THAT(ivc_region_join(region, CHECK_AS(1, domain)) == 0, "%s", ivc_error_text());
    return region;
}

static bool find_now(const struct ivc_region *region, uint32_t client_id, struct ivc_member *ret_member)
{
    for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++)
        if (ivc_region_member(region, slot, ret_member) == 0 && ret_member->client_id == client_id)
            return true;
    return false;
}

static struct ivc_member find(const struct ivc_region *region, uint32_t client_id)
{
    struct ivc_member member = { 0 };
    uint64_t end = ivc_now_ms() + 15000;

    while (!find_now(region, client_id, &member)) {
        CHECK_THAT(ivc_now_ms() < end, "member %u is not found", client_id);
        ivc_sleep_ms(1);
    }
    return member;
}

static void wait_for_fate(const struct ivc_region *region, const struct ivc_member *member,
                          enum ivc_member_fate fate)
{
    uint64_t end = ivc_now_ms() + 20000;

    while (ivc_region_member_fate(region, member->slot, member->generation) != fate) {
        CHECK_THAT(ivc_now_ms() < end, "fate %d instead of %d",
                   ivc_region_member_fate(region, member->slot, member->generation), fate);
        ivc_sleep_ms(5);
    }
}

static void wait_for_link(struct ivc_region *region, uint32_t slot)
{
    uint64_t end = ivc_now_ms() + 10000;
    const struct ivc_layout_link *link;

    while (!(link = ivc_region_peer_link(region, slot)) || ivc_load_acquire(&link->generation) == 0) {
        CHECK_THAT(ivc_now_ms() < end, "no line of member %u", slot);
        ivc_sleep_ms(1);
    }
}

/* Where the store tells one member of the page that another has made for it. */
static void pair_path(uint64_t from, uint64_t to, char ret_path[64])
{
    snprintf(ret_path, 64, "ivc-pairs/%016llx/%016llx", (unsigned long long)from, (unsigned long long)to);
}

static void make_page(struct ivc_region *region, const struct ivc_member *member)
{
    CHECK_THAT(ivc_region_make_link(region, member->slot) == 0, "%s", ivc_error_text());
}

/* What an endpoint does first.  (The member answers by a page of its own.) */
static void connect_to(struct ivc_region *region, const struct ivc_member *member)
{
    make_page(region, member);
    ivc_store_release(&ivc_region_own_link(region, member->slot)->generation, member->generation);
}

/* Clients 1 and 2, each of which has connected to the other. */
static void join_two(struct ivc_region **ret_a, struct ivc_region **ret_b, struct ivc_member *ret_to_a,
                     struct ivc_member *ret_to_b)
{
    *ret_a = join(1);
    *ret_b = join(2);
    *ret_to_b = find(*ret_a, 2);
    *ret_to_a = find(*ret_b, 1);
    connect_to(*ret_a, ret_to_b);
    connect_to(*ret_b, ret_to_a);
}

static void check_nothing_left(void)
{
    struct fake_left left = fake_grants_left();

    CHECK_THAT(left.pages == 0 && left.ports == 0 && left.texts == 0 && left.watches == 0,
               "%u pages, %u ports, %u texts, %u watches", left.pages, left.ports, left.texts, left.watches);
}

/* ---- what is left */

static void test_pair_ends(void)
{
    struct ivc_region *a, *b;
    struct ivc_member to_a, to_b;
    struct ivc_share share;
    const void *memory;

    fresh();
    join_two(&a, &b, &to_a, &to_b);
    wait_for_link(a, to_b.slot);
    wait_for_link(b, to_a.slot);
    CHECK_EQ(ivc_region_share(a, to_b.slot, 10000, &share), 0);
    memset(share.memory, 7, 10000);
    CHECK_EQ(ivc_region_map(b, to_a.slot, share.handle, 10000, &memory), 0);
    CHECK(((const char *)memory)[9999] == 7);
    /* Pages in use stay where they are when their owner goes. */
    ivc_region_free(a);
    CHECK(((const char *)memory)[9999] == 7);
    wait_for_fate(b, &to_a, IVC_MEMBER_LEFT);
    ivc_region_unmap(b, to_a.slot, memory, 10000);
    ivc_store_release(&ivc_region_own_link(b, to_a.slot)->generation, 0);
    ivc_region_free(b);
    check_nothing_left();
}

static void wait_for_word(struct ivc_region *region, uint32_t slot)
{
    uint64_t end = ivc_now_ms() + 10000, head;

    while (ivc_link_look(region, slot, &head) != IVC_LINK_SUSPENDED) {
        CHECK_THAT(ivc_now_ms() < end, "member %u does not say that it has stopped", slot);
        ivc_sleep_ms(1);
    }
    CHECK_EQ(head, 0);
}

/* Who has connected, and has to leave before the other one has heard of it, gets an answer. */
static void test_stranger_leaves(void)
{
    struct ivc_region *a, *b;
    struct ivc_member to_a, to_b;

    fresh();
    a = join(1);
    b = join(2);
    to_b = find(a, 2);
    to_a = find(b, 1);
    connect_to(a, &to_b);
    wait_for_link(b, to_a.slot);
    ivc_link_suspend(a, to_b.slot);
    wait_for_word(b, to_a.slot);
    CHECK_EQ(ivc_link_refuse(b, to_a.slot, to_a.generation), 0);
    wait_for_word(a, to_b.slot);
    ivc_region_free(a);
    ivc_region_free(b);
    check_nothing_left();
}

/* When each has found the other's page, the store need not tell any more. */
static void test_store_is_spared(void)
{
    struct ivc_region *a, *b;
    struct ivc_member to_a, to_b;
    struct fake_left left;
    uint64_t end = ivc_now_ms() + 10000;

    fresh();
    join_two(&a, &b, &to_a, &to_b);
    do {
        left = fake_grants_left();
        CHECK_THAT(ivc_now_ms() < end, "%u texts, %u watches", left.texts, left.watches);
        ivc_sleep_ms(10);
    } while (left.texts > 2 || left.watches > 4);       /* a record each; an order and a door each */
    CHECK_EQ(left.pages, 2);
    CHECK_EQ(left.ports, 2);
    ivc_region_free(a);
    ivc_region_free(b);
    check_nothing_left();
}

static void test_many_pairs(void)
{
    uint64_t end = ivc_now_ms() + 40000;
    struct fake_left left;
    struct ivc_region *b;

    fresh();
    b = join(2);
    for (unsigned i = 0; i < 20; i++) {
        struct ivc_region *a = join(1);
        struct ivc_member to_b = find(a, 2), to_a = find(b, 1);
        struct ivc_share share;

        connect_to(a, &to_b);
        connect_to(b, &to_a);
        CHECK_EQ(ivc_region_share(a, to_b.slot, 50000, &share), 0);
        ivc_region_free(a);
        wait_for_fate(b, &to_a, IVC_MEMBER_LEFT);
        ivc_store_release(&ivc_region_own_link(b, to_a.slot)->generation, 0);
    }
    /* Who goes on living has nothing of those who are gone either. */
    do {
        left = fake_grants_left();
        CHECK_THAT(ivc_now_ms() < end, "%u pages, %u ports, %u texts, %u watches", left.pages, left.ports,
                   left.texts, left.watches);
        ivc_sleep_ms(20);
    } while (left.pages > 0 || left.ports > 0 || left.texts > 1 || left.watches > 2);
    ivc_region_free(b);
    check_nothing_left();
}

static int exchange_as(void *arg)
{
    fake_grants_be(((struct exchange *)arg)->own + 1);
    return exchange_member(arg);
}

static void exchange_between(uint32_t n_members, uint32_t n_domains, uint64_t n_messages)
{
    struct exchange exchange = { .region = "xen", .magic_id = 3, .n_members = n_members,
                                 .n_messages = n_messages, .longest = 1 << 20 };
    pid_t pids[EXCHANGE_MEMBERS_MAX];

    for (uint32_t i = 0; i < n_members; i++) {
        exchange.own = i;
        fake_grants_be(1 + i % n_domains);
        pids[i] = check_fork(n_domains == n_members ? exchange_as : exchange_member, &exchange);
    }
    for (uint32_t i = 0; i < n_members; i++)
        check_join(pids[i]);
    check_nothing_left();
}

static void test_five_domains(void)
{
    fresh();
    exchange_between(5, 5, 60);
}

/* Whoever joins knows all that had joined before, whatever their numbers; who was there, when it asks. */
static void test_all_are_found(void)
{
    static const uint32_t domains[] = { 1, 77, 700, 9000, 32751, 3, 1200 };
    enum { N = sizeof domains / sizeof *domains };
    struct ivc_region *regions[N];
    struct ivc_member member;

    fresh();
    for (uint32_t i = 0; i < N; i++) {
        regions[i] = join(domains[i]);
        for (uint32_t k = 0; k < i; k++) {
            CHECK_THAT(find_now(regions[i], domains[k], &member), "%u is not known to %u", domains[k], domains[i]);
            ivc_region_look_at_all(regions[k]);
            CHECK_THAT(find_now(regions[k], domains[i], &member), "%u is not known to %u", domains[i], domains[k]);
        }
    }
    for (uint32_t i = 0; i < N; i++)
        ivc_region_free(regions[i]);
    check_nothing_left();
}

static void test_peers_in_one_domain(void)
{
    fresh();
    exchange_between(4, 2, 60);
}

/* So few pages that not every pair has a proper ring: slower, and every byte right. */
static void test_few_pages(void)
{
    fresh();
    fake_faults.pages_max = 128;
    exchange_between(3, 3, 60);
}

static void test_no_watches(void)
{
    fresh();
    fake_faults.watch = -ENOSPC;
    exchange_between(3, 3, 40);
}

static void test_lost_events(void)
{
    fresh();
    fake_faults.deaf = true;
    exchange_between(2, 2, 40);
}

/* ---- those who die */

static int connect_and_wait(void *arg)
{
    struct ivc_region *region = join(*(uint32_t *)arg);
    struct ivc_member to = find(region, 1);

    connect_to(region, &to);
    pause();
    return 0;
}

static void test_killed(void)
{
    uint32_t domain = 2;
    struct ivc_region *region;
    struct ivc_member peer;
    pid_t pid;

    fresh();
    region = join(1);
    pid = check_fork(connect_and_wait, &domain);
    peer = find(region, 2);
    connect_to(region, &peer);
    wait_for_link(region, peer.slot);
    ivc_sleep_ms(300);
    check_kill(pid);
    wait_for_fate(region, &peer, IVC_MEMBER_DEAD);
    ivc_store_release(&ivc_region_own_link(region, peer.slot)->generation, 0);
    ivc_region_free(region);
    /* What the dead has left in the store goes when the next process of its guest comes. */
    ivc_region_free(join(2));
    check_nothing_left();
}

static int join_and_wait(void *arg)
{
    (void)join(*(uint32_t *)arg);
    pause();
    return 0;
}

/* It was killed before it had a page for us: its record stays, and tells nobody. */
static void test_killed_unmet(void)
{
    uint32_t domain = 2;
    struct ivc_region *region;
    struct ivc_member peer;
    pid_t pid;

    fresh();
    pid = check_fork(join_and_wait, &domain);
    region = join(1);
    peer = find(region, 2);
    check_kill(pid);
    connect_to(region, &peer);
    wait_for_fate(region, &peer, IVC_MEMBER_DEAD);
    ivc_store_release(&ivc_region_own_link(region, peer.slot)->generation, 0);
    ivc_region_free(region);
    ivc_region_free(join(2));
    check_nothing_left();
}

/* A record is there, and the guest that it was of is not.  Of whom there was no page nobody knows whether it has moved,
 * which the network will tell. */
static void test_vanished(void)
{
    struct ivc_region *a, *b;
    struct ivc_member to_b;

    fresh();
    a = join(1);
    b = join(2);
    to_b = find(a, 2);
    fake_grants_destroy(2);
    wait_for_fate(a, &to_b, IVC_MEMBER_MOVED);
    CHECK_EQ(ivc_region_make_link(a, to_b.slot), IVC_E_GONE);
    ivc_region_free(b);
    ivc_region_free(a);
    check_nothing_left();
}

/* The number of a guest that is gone, and another guest: neither its former processes nor their pages. */
static void test_domain_used_again(void)
{
    struct ivc_region *a = (fresh(), join(1)), *b = join(2);
    struct ivc_member old = find(a, 2), found;
    struct ivc_share share;
    uint32_t slot = old.slot;

    connect_to(a, &old);
    CHECK_EQ(ivc_region_share(a, slot, 4096, &share), 0);
    ivc_region_free(b);
    wait_for_fate(a, &old, IVC_MEMBER_MOVED);
    ivc_store_release(&ivc_region_own_link(a, slot)->generation, 0);
    b = join(2);
    CHECK_EQ(ivc_region_member_at(a, 2, old.generation, old.endpoint_id, &found), IVC_E_GONE);
    CHECK_EQ(ivc_region_member_at(a, 2, ivc_region_self(b)->generation, ivc_region_self(b)->endpoint_id, &found), 0);
    CHECK(found.generation != old.generation);
    ivc_region_free(a);
    ivc_region_free(b);
    check_nothing_left();
}

/* It is back before we have taken leave of it, and is told of our page where it was told before. */
static void test_back_at_once(void)
{
    const struct ivc_identity identity = { .magic_id = 1, .client_id = 2, .endpoint_id = 0x7e7e };
    struct ivc_region *a = (fresh(), join(1)), *b = open_as(2), *again = open_as(3);
    struct ivc_member before, now, to_a;
    uint64_t end = ivc_now_ms() + 20000;
    IVC_AUTO_FREE char *text = NULL;
    char path[64];

    CHECK_EQ(ivc_region_join(b, &identity), 0);
    before = find(a, 2);
    connect_to(a, &before);
    CHECK_EQ(ivc_region_join(again, &identity), 0);
    while (ivc_region_member_at(a, 3, ivc_region_self(again)->generation, identity.endpoint_id, &now) != 0)
        CHECK(ivc_now_ms() < end);
    make_page(a, &now);
    ivc_region_free(b);
    ivc_store_release(&ivc_region_own_link(a, before.slot)->generation, 0);
    while (ivc_layout_phase(ivc_load_relaxed(&ivc_region_slot(a, before.slot)->state)) != IVC_PHASE_FREE) {
        CHECK(ivc_now_ms() < end);
        ivc_sleep_ms(10);
    }
    pair_path(ivc_region_self(a)->endpoint_id, identity.endpoint_id, path);
    CHECK_EQ(again->grants->backend->get(again->grants->handle, 1, path, &text), 0);
    connect_to(a, &now);
    to_a = find(again, 1);
    connect_to(again, &to_a);
    wait_for_link(a, now.slot);
    wait_for_link(again, to_a.slot);
    ivc_region_free(again);
    ivc_region_free(a);
    check_nothing_left();
}

/* ---- those who lie */

static void test_wrong_texts(void)
{
    static const char *const texts[] = {
        "", "1", "9 host 1 00", "1 host 1 zz", "-1 -1 -1 -1 -1", "1 host 1 0102",
        "99999999999999999999999999999999999999",
    };
    struct ivc_region *region;
    struct ivc_member member;

    fresh();
    fake_grants_put(2, "ivc", "");
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[40];

        snprintf(path, sizeof path, "ivc/%016x", i + 1);
        fake_grants_put(2, path, texts[i]);
    }
    fake_grants_put(2, "ivc/nonsense", "1 host 1 00");
    region = join(1);
    ivc_sleep_ms(1500);
    for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++)
        CHECK(slot == ivc_region_self(region)->slot || ivc_region_member(region, slot, &member) != 0);
    CHECK_EQ(ivc_region_member_at(region, 2, 1, 1, &member), IVC_E_GONE);
    CHECK_TEXT(ivc_error_text(), "peer 0000000000000001", "left");
    ivc_region_free(region);
}

/* Another domain says that it is the same: it becomes a second member, and nothing else. */
static void test_stolen_record(void)
{
    struct ivc_region *a, *b, *c;
    struct ivc_member member, copy;
    char path[40];
    IVC_AUTO_FREE char *text = NULL;
    unsigned same = 0;

    fresh();
    b = join(2);
    c = join(3);
    snprintf(path, sizeof path, "ivc/%016llx", (unsigned long long)ivc_region_self(b)->endpoint_id);
    CHECK_EQ(c->grants->backend->get(c->grants->handle, 2, path, &text), 0);
    fake_grants_put(3, path, text);
    a = join(1);
    member = find(a, 2);
    for (uint32_t slot = 0; slot < ivc_region_capacity(a); slot++)
        same += ivc_region_member(a, slot, &copy) == 0 && copy.endpoint_id == member.endpoint_id;
    CHECK_EQ(same, 2);
    CHECK_EQ(ivc_region_member_at(a, 2, member.generation, member.endpoint_id, &copy), 0);
    CHECK_EQ(a->grants->pairs[copy.slot].domain, 2);
    CHECK(!copy.same_kernel);
    ivc_region_free(c);
    ivc_region_free(b);
    ivc_region_free(a);
}

/* References that were never granted, granted to another, of pages that are not pair pages. */
static void test_wrong_references(void)
{
    static const char *const texts[] = {
        "1 8191 0 %u %u", "1 4294967295 4294967295 %u %u", "1 0 0 %u %u", "2 8 1 %u %u", "nonsense %u %u",
    };
    struct ivc_region *a, *b;
    struct ivc_member to_b;
    struct ivc_share share;

    fresh();
    a = join(1);
    b = join(2);
    to_b = find(a, 2);
    make_page(a, &to_b);
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[64], text[128];

        pair_path(to_b.endpoint_id, ivc_region_self(a)->endpoint_id, path);
        snprintf(text, sizeof text, texts[i], to_b.generation, ivc_region_self(a)->generation);
        fake_grants_put(2, path, text);
        ivc_sleep_ms(150);
        CHECK(!ivc_region_peer_link(a, to_b.slot));
    }
    /* What it shows in its page are numbers of nothing. */
    connect_to(a, &to_b);
    connect_to(b, &(struct ivc_member){ .slot = find(b, 1).slot, .generation = ivc_region_self(a)->generation });
    wait_for_link(a, to_b.slot);
    for (uint32_t handle = 0; handle < 3; handle++)
        CHECK_EQ(ivc_region_map(a, to_b.slot, handle * 500, 4096, &(const void *){ NULL }), -EBADMSG);
    CHECK_EQ(ivc_region_map(a, to_b.slot, 900, 100 << 12, &(const void *){ NULL }), -EBADMSG);
    CHECK_EQ(ivc_region_share(a, to_b.slot, 4096, &share), 0);
    ivc_region_free(b);
    ivc_region_free(a);
    check_nothing_left();
}

/* ---- what is refused */

static void test_refusals(void)
{
    struct ivc_region *region, *peer;
    struct ivc_member member;
    struct ivc_share share;

    fresh();
    fake_faults.open = -EACCES;
    CHECK_EQ(ivc_region_open("xen", &region), -EACCES);
    fake_faults.open = 0;
    region = open_as(1);
    fake_faults.put = -ENOSPC;
    CHECK_EQ(ivc_region_join(region, CHECK_AS(1, 1)), -ENOSPC);
    CHECK_TEXT(ivc_error_text(), "store");
    check_nothing_left();
    fake_faults.put = 0;
    CHECK_EQ(ivc_region_join(region, CHECK_AS(1, 1)), 0);
    peer = join(2);
    member = find(region, 2);
    fake_faults.grant = IVC_E_NOSPACE;
    CHECK_EQ(ivc_region_make_link(region, member.slot), IVC_E_NOSPACE);
    fake_faults.grant = 0;
    fake_faults.put = -ENOSPC;
    CHECK_EQ(ivc_region_make_link(region, member.slot), -ENOSPC);
    fake_faults.put = 0;
    fake_faults.port_make = -ENOSPC;
    (void)ivc_region_make_link(region, member.slot);    /* refused if it is ours to make */
    fake_faults.port_make = 0;
    CHECK_EQ(ivc_region_make_link(region, member.slot), 0);
    fake_faults.grant = IVC_E_NOSPACE;
    CHECK_EQ(ivc_region_share(region, member.slot, 4096, &share), IVC_E_NOSPACE);
    fake_faults.grant = 0;
    CHECK_EQ(ivc_region_share(region, member.slot, 4096 * 929, &share), IVC_E_NOSPACE);
    CHECK_EQ(ivc_region_share(region, IVC_SLOT_ANY, 4096, &share), IVC_E_NOSPACE);
    CHECK_EQ(ivc_region_share(region, member.slot, 4096 * 928, &share), 0);
    ivc_region_unshare(region, &share);
    ivc_region_free(region);
    ivc_region_free(peer);
    check_nothing_left();
}

/* The system call that maps may find no memory at that moment; nobody says when it would succeed. */
static void test_map_refused_once(void)
{
    struct ivc_region *a = (fresh(), join(1)), *b = join(2);
    struct ivc_member to_b = find(a, 2), to_a = find(b, 1);

    fake_faults.map = -ENOMEM;
    connect_to(a, &to_b);
    connect_to(b, &to_a);
    ivc_sleep_ms(300);
    CHECK(!ivc_region_peer_link(a, to_b.slot) && !ivc_region_peer_link(b, to_a.slot));
    fake_faults.map = 0;
    wait_for_link(a, to_b.slot);
    wait_for_link(b, to_a.slot);
    ivc_region_free(a);
    ivc_region_free(b);
    check_nothing_left();
}

static void test_all_pages_taken(void)
{
    struct ivc_region *region, *peer;
    struct ivc_member member;
    struct ivc_share shares[40];
    unsigned n = 0;
    int r;

    fresh();
    fake_faults.pages_max = 100;
    region = join(1);
    peer = join(2);
    member = find(region, 2);
    connect_to(region, &member);
    while (n < 40 && (r = ivc_region_share(region, member.slot, 4096 * 10, &shares[n])) == 0)
        n++;
    CHECK_EQ(r, IVC_E_NOSPACE);
    CHECK_TEXT(ivc_error_text(), "no pages left to grant", "limit");
    ivc_region_unshare(region, &shares[n - 1]);
    CHECK_EQ(ivc_region_share(region, member.slot, 4096 * 10, &shares[n - 1]), 0);
    ivc_region_free(region);
    ivc_region_free(peer);
    check_nothing_left();
}

/* ---- orders */

static void test_order(void)
{
    struct ivc_order_watch watch = { 0 };
    struct ivc_region *region, *other;
    uint64_t own = ivc_region_own_vm(), end = ivc_now_ms() + 5000;

    fresh();
    region = join(1);
    fake_grants_order(1, 1);
    do {
        CHECK(ivc_now_ms() < end);
        ivc_sleep_ms(10);
        ivc_region_orders_look(region);
    } while (!ivc_region_is_ordered_away(region, own));
    /* Nobody joins while it stands. */
    other = open_as(1);
    CHECK_EQ(ivc_region_join(other, CHECK_AS(1, 5)), IVC_E_NOREGION);
    CHECK_TEXT(ivc_error_text(), "asked this guest to leave");
    ivc_region_free(other);
    CHECK_EQ(ivc_region_open_unordered("xen", &watch, &other), IVC_E_NOREGION);
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    ivc_region_free(region);
    fake_grants_order(1, 0);
    check_nothing_left();
    CHECK_EQ(ivc_region_open_unordered("xen", &watch, &other), 0);
    CHECK_EQ(ivc_region_join(other, CHECK_AS(1, 5)), 0);
    ivc_region_free(other);
    check_nothing_left();
}

/* This guest was saved and restored without a word, or has moved: another domain. */
static void test_moved_without_a_word(void)
{
    struct ivc_region *region, *peer;
    struct ivc_member member;
    uint64_t end = ivc_now_ms() + 10000;

    fresh();
    region = join(1);
    peer = join(2);
    member = find(region, 2);
    connect_to(region, &member);
    fake_faults.gone = true;
    while (!ivc_region_is_lost(region)) {
        CHECK(ivc_now_ms() < end);
        ivc_sleep_ms(10);
    }
    CHECK(ivc_region_alarm(region));
    fake_faults.gone = false;
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    ivc_region_free(region);
    ivc_region_free(peer);
}

/* ---- connects and closes between guests */

enum { SERVER = 1000, CLIENT = 1001 };

static unsigned answered, gone;
static bool may_die;
static struct ivc_endpoint *serving;

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg, (void)packet;
    answered++;
    if (serving)
        CHECK_EQ(ivc_endpoint_send(serving, peer, 1, &(struct iovec){ "answer", 6 }, 1), 0);
}

static void on_gone(void *arg, struct ivc_peer *peer, const char *reason)
{
    (void)arg, (void)peer;
    CHECK_THAT((reason != NULL) == may_die, "%s", reason ? reason : "it left in order");
    if (reason)
        printf("# %s\n", reason);
    gone++;
}

static struct ivc_endpoint *endpoint_of(uint32_t client_id)
{
    struct ivc_endpoint_options options = {
        .region = "xen", .magic_id = 12, .client_id = client_id, .on_packet = on_packet, .on_gone = on_gone,
        .on_arrival = exchange_on_arrival,
    };
    struct ivc_endpoint *endpoint;

    CHECK_THAT(ivc_endpoint_open(&options, &endpoint) == 0, "%s", ivc_error_text());
    return endpoint;
}

static void serve(unsigned n)
{
    serving = endpoint_of(SERVER);
    while (gone < n)
        if (ivc_endpoint_progress(serving) == 0)
            sched_yield();
    CHECK_EQ(answered, n);
    ivc_endpoint_free(serving);
}

static struct ivc_endpoint *connect_and_stay(void)
{
    struct ivc_endpoint *endpoint = endpoint_of(CLIENT);
    struct ivc_member server = find(ivc_endpoint_region(endpoint), SERVER);
    uint64_t end = ivc_now_ms() + 60000;
    unsigned before = answered;
    struct ivc_peer *peer;
    int r;

    CHECK_THAT(ivc_endpoint_connect_member(endpoint, &server, &peer) == 0, "%s", ivc_error_text());
    while ((r = ivc_endpoint_send(endpoint, peer, 1, &(struct iovec){ "hello", 5 }, 1)) == IVC_E_FULL)
        (void)ivc_endpoint_progress(endpoint);
    CHECK_THAT(r == 0, "%s", ivc_error_text());
    while (answered == before) {
        CHECK(ivc_now_ms() < end);
        if (ivc_endpoint_progress(endpoint) == 0)
            sched_yield();
    }
    return endpoint;
}

static void connect_once(void)
{
    ivc_endpoint_free(connect_and_stay());
}

static int connect_often(void *arg)
{
    fake_grants_be(2);
    for (unsigned i = 0; i < *(unsigned *)arg; i++)
        connect_once();
    return 0;
}

static void test_connects(void)
{
    unsigned n = 200;
    pid_t pid;

    fresh();
    fake_grants_be(1);
    pid = check_fork(connect_often, &n);
    serve(n);
    check_join(pid);
    check_nothing_left();
}

static const struct check_case cases[] = {
    { "a pair ends", test_pair_ends, SECONDS },
    { "one that leaves before it was met", test_stranger_leaves, SECONDS },
    { "the store is spared", test_store_is_spared, SECONDS },
    { "20 connects and closes", test_many_pairs, 2 * SECONDS },
    { "200 endpoints come and go", test_connects, 3 * SECONDS },
    { "5 domains, every byte", test_five_domains, 2 * SECONDS },
    { "all are found at once", test_all_are_found, SECONDS },
    { "peers in one domain", test_peers_in_one_domain, 2 * SECONDS },
    { "few pages", test_few_pages, 2 * SECONDS },
    { "no watches", test_no_watches, 2 * SECONDS },
    { "events get lost", test_lost_events, 2 * SECONDS },
    { "killed", test_killed, SECONDS },
    { "killed before it was met", test_killed_unmet, SECONDS },
    { "a guest vanishes", test_vanished, SECONDS },
    { "a guest's number is used again", test_domain_used_again, SECONDS },
    { "back at once", test_back_at_once, SECONDS },
    { "wrong texts", test_wrong_texts, SECONDS },
    { "a stolen record", test_stolen_record, SECONDS },
    { "references that were not granted", test_wrong_references, SECONDS },
    { "refusals", test_refusals, SECONDS },
    { "mapping is refused for a moment", test_map_refused_once, SECONDS },
    { "all pages taken", test_all_pages_taken, SECONDS },
    { "an order", test_order, SECONDS },
    { "moved without a word", test_moved_without_a_word, SECONDS },
};

int main(int argc, char **argv)
{
    unsigned n = argc == 3 ? (unsigned)atoi(argv[2]) : 0;

    may_die = argc == 3 && strcmp(argv[1], "witness") == 0;
    if (n > 0 && (may_die || strcmp(argv[1], "serve") == 0)) {
        serve(n);
        printf("ok 1 - %u have come and gone\n1..1\n", n);
        return 0;
    }
    if (n > 0 && strcmp(argv[1], "hold") == 0) {
        (void)connect_and_stay();
        for (;;)
            pause();
    }
    if (n > 0 && strcmp(argv[1], "connect") == 0) {
        for (unsigned i = 0; i < n; i++)
            connect_once();
        printf("ok 1 - %u connects and closes\n1..1\n", n);
        return 0;
    }
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
