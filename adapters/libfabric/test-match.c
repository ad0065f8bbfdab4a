/* Tests of matching: against a plain list that follows the definition, and with many waiting. */
#include "check.h"

#include "match.h"

#include "base/util.h"

/* Peers are only pointers here. */
static char peer_places[4];

static struct ivc_fi_peer *peer_at(unsigned i)
{
    return (struct ivc_fi_peer *)&peer_places[i];
}

enum { ROOM = 4096 };

struct receive {
    struct ivc_fi_posted wait;
    bool waits;
    uint64_t order;
};

struct message {
    struct ivc_fi_early wait;
    bool waits;
    uint64_t order;
};

static struct receive receives[ROOM];
static struct message messages[ROOM];

static bool agree(const struct ivc_fi_posted *r, const struct ivc_fi_early *m)
{
    return (m->tag & ~r->ignore) == (r->tag & ~r->ignore) && (!r->from || r->from == m->peer);
}

static struct ivc_fi_posted *model_posted(const struct ivc_fi_early *m)
{
    struct receive *best = NULL;

    for (unsigned i = 0; i < ROOM; i++)
        if (receives[i].waits && agree(&receives[i].wait, m)
            && (!best || receives[i].order < best->order))
            best = &receives[i];
    return best ? &best->wait : NULL;
}

static struct ivc_fi_early *model_early(const struct ivc_fi_posted *r)
{
    struct message *best = NULL;

    for (unsigned i = 0; i < ROOM; i++)
        if (messages[i].waits && agree(r, &messages[i].wait)
            && (!best || messages[i].order < best->order))
            best = &messages[i];
    return best ? &best->wait : NULL;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void one_receive(struct ivc_fi_match *match, struct receive *r, uint64_t order,
                        unsigned n_ignores)
{
    static const uint64_t ignores[] = {
        0, 0xff00, 0xf, 0xffff, 0xf0f0, 3, UINT64_MAX, 0xf000, 1, 2, 4, 8,
    };
    struct ivc_fi_early *found;

    r->wait = (struct ivc_fi_posted){
        .tag = random_number() & 0x7373,
        .ignore = ignores[random_number() % n_ignores],
        .from = random_number() % 2 ? peer_at(random_number() % 4) : NULL,
    };
    found = ivc_fi_match_find_early(match, r->wait.tag, r->wait.ignore, r->wait.from);
    CHECK(found == model_early(&r->wait));
    if (found) {
        ivc_fi_match_remove_early(match, found);
        ((struct message *)((char *)found - offsetof(struct message, wait)))->waits = false;
        return;
    }
    CHECK(ivc_fi_match_add_posted(match, &r->wait) == 0);
    r->waits = true;
    r->order = order;
}

static void one_message(struct ivc_fi_match *match, struct message *m, uint64_t order)
{
    struct ivc_fi_posted *found;

    m->wait = (struct ivc_fi_early){
        .tag = random_number() & 0x7373, .peer = peer_at(random_number() % 4),
    };
    found = ivc_fi_match_find_posted(match, m->wait.tag, m->wait.peer);
    CHECK(found == model_posted(&m->wait));
    if (found) {
        ivc_fi_match_remove_posted(match, found);
        ((struct receive *)((char *)found - offsetof(struct receive, wait)))->waits = false;
        return;
    }
    CHECK(ivc_fi_match_add_early(match, &m->wait) == 0);
    m->waits = true;
    m->order = order;
}

/* Turns of many receives and turns of many messages; some are taken back. */
static void against_the_model(unsigned n_ignores)
{
    struct ivc_fi_match *match;
    unsigned taken_back = 0;

    CHECK(ivc_fi_match_new(&match) == 0);
    for (uint64_t i = 0; i < 60000; i++) {
        unsigned at = (unsigned)(random_number() % ROOM);
        bool more_receives = i / 3000 % 2 == 0;

        if (random_number() % 4 < (more_receives ? 3 : 1)) {
            if (!receives[at].waits) {
                one_receive(match, &receives[at], i, n_ignores);
            } else if (random_number() % 4 == 0) {
                ivc_fi_match_remove_posted(match, &receives[at].wait);
                receives[at].waits = false;
                taken_back++;
            }
        } else if (!messages[at].waits) {
            one_message(match, &messages[at], i);
        }
    }
    CHECK(taken_back > 0);
    ivc_fi_match_free(match);
}

static void test_few_classes(void)
{
    against_the_model(3);
}

static void test_too_many_classes(void)
{
    against_the_model(12);
}

static bool is_it(const struct ivc_fi_posted *posted, const void *arg)
{
    return posted == arg;
}

static void test_any(void)
{
    struct ivc_fi_match *match;

    CHECK(ivc_fi_match_new(&match) == 0);
    CHECK(!ivc_fi_match_any_posted(match, is_it, NULL));
    for (unsigned i = 0; i < 1000; i++) {
        receives[i].wait = (struct ivc_fi_posted){ .tag = i / 3, .ignore = i % 12 * 4096 };
        CHECK(ivc_fi_match_add_posted(match, &receives[i].wait) == 0);
    }
    for (unsigned i = 0; i < 1000; i++) {
        CHECK(ivc_fi_match_any_posted(match, is_it, &receives[i].wait) == &receives[i].wait);
        ivc_fi_match_remove_posted(match, &receives[i].wait);
        CHECK(!ivc_fi_match_any_posted(match, is_it, &receives[i].wait));
    }
    ivc_fi_match_free(match);
}

/* ---------------------------------------------------------------- ten thousand */

/* Nanoseconds per message with `n` receives waiting: all of one tag, or each of its own. */
static double time_posted(unsigned n, bool one_tag)
{
    struct ivc_fi_posted *waiting = calloc(n, sizeof *waiting);
    struct ivc_fi_match *match;
    uint64_t begin;

    CHECK(waiting && ivc_fi_match_new(&match) == 0);
    begin = ivc_now_ns();
    for (unsigned i = 0; i < n; i++) {
        waiting[i] = (struct ivc_fi_posted){
            .tag = one_tag ? 5 : i, .ignore = 0xfull << 60, .from = i % 2 ? peer_at(1) : NULL,
        };
        CHECK(!ivc_fi_match_find_early(match, waiting[i].tag, waiting[i].ignore, waiting[i].from));
        CHECK(ivc_fi_match_add_posted(match, &waiting[i]) == 0);
    }
    for (unsigned i = n; i-- > 0;) {    /* the latest first: the worst of a list */
        struct ivc_fi_posted *found = ivc_fi_match_find_posted(match, one_tag ? 5 : i, peer_at(1));

        CHECK(found == &waiting[one_tag ? n - 1 - i : i]);
        ivc_fi_match_remove_posted(match, found);
    }
    begin = ivc_now_ns() - begin;
    ivc_fi_match_free(match);
    free(waiting);
    return (double)begin / n;
}

static double time_early(unsigned n, bool one_tag)
{
    struct ivc_fi_early *waiting = calloc(n, sizeof *waiting);
    struct ivc_fi_match *match;
    uint64_t begin;

    CHECK(waiting && ivc_fi_match_new(&match) == 0);
    begin = ivc_now_ns();
    for (unsigned i = 0; i < n; i++) {
        waiting[i] = (struct ivc_fi_early){ .tag = one_tag ? 5 : i, .peer = peer_at(1) };
        CHECK(!ivc_fi_match_find_posted(match, waiting[i].tag, waiting[i].peer));
        CHECK(ivc_fi_match_add_early(match, &waiting[i]) == 0);
    }
    for (unsigned i = n; i-- > 0;) {
        struct ivc_fi_early *found = ivc_fi_match_find_early(match, one_tag ? 5 : i, 0xfull << 60,
                                                             i % 2 ? peer_at(1) : NULL);

        CHECK(found == &waiting[one_tag ? n - 1 - i : i]);
        ivc_fi_match_remove_early(match, found);
    }
    begin = ivc_now_ns() - begin;
    ivc_fi_match_free(match);
    free(waiting);
    return (double)begin / n;
}

/* The best of some turns, so that a busy machine does not count. */
static double best_of(double (*time)(unsigned, bool), unsigned n, bool one_tag)
{
    double best = time(n, one_tag);

    for (unsigned i = 0; i < 20; i++) {
        double t = time(n, one_tag);

        best = IVC_MIN(best, t);
    }
    return best;
}

/* A search that walks costs a hundred times as much with a hundred times as many; caches may cost
 * some of it. */
static void test_many(void)
{
    static const struct {
        const char *what;
        double (*time)(unsigned, bool);
        bool one_tag;
    } rows[] = {
        { "receives, a tag each", time_posted, false },
        { "receives, one tag", time_posted, true },
        { "messages, a tag each", time_early, false },
        { "messages, one tag", time_early, true },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double few = best_of(rows[i].time, 100, rows[i].one_tag);
        double many = best_of(rows[i].time, 10000, rows[i].one_tag);

        fprintf(stderr, "%-22s %6.0f ns with 100, %6.0f ns with 10000\n", rows[i].what, few, many);
        CHECK_THAT(many < 20 * few + 200, "%s: %.0f ns, %.0f ns", rows[i].what, few, many);
    }
}

/* Keys that nothing waits for any more are swept, and those that are wanted stay. */
static void test_swept(void)
{
    struct ivc_fi_posted waits = { .tag = 1 }, passes = { 0 };
    struct ivc_fi_match *match;

    CHECK_EQ(ivc_fi_match_new(&match), 0);
    CHECK(!ivc_fi_match_try_add_posted(match, &waits));
    CHECK_EQ(ivc_fi_match_add_posted(match, &waits), 0);
    for (uint64_t tag = 2; tag < 10000; tag++) {
        passes.tag = tag;
        CHECK(!ivc_fi_match_try_add_posted(match, &passes));
        CHECK_EQ(ivc_fi_match_add_posted(match, &passes), 0);
        CHECK(ivc_fi_match_find_posted(match, tag, peer_at(0)) == &passes);
        ivc_fi_match_remove_posted(match, &passes);
        CHECK(!ivc_fi_match_find_posted(match, tag, peer_at(0)));
        CHECK(ivc_fi_match_try_add_posted(match, &passes));     /* one like it has waited before */
        ivc_fi_match_remove_posted(match, &passes);
    }
    CHECK(match->classes[0].posted.n_keys <= 16);
    CHECK(ivc_fi_match_find_posted(match, 1, peer_at(0)) == &waits);
    ivc_fi_match_remove_posted(match, &waits);
    ivc_fi_match_free(match);
}

static const struct check_case cases[] = {
    { "like a list, few kinds of receive", test_few_classes, 0 },
    { "like a list, more kinds than classes", test_too_many_classes, 0 },
    { "looking at all receives", test_any, 0 },
    { "keys that are wanted no more", test_swept, 0 },
    { "ten thousand", test_many, 0 },
};
CHECK_MAIN(cases)
