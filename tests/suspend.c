/*
 * Tests of ivc_suspend as whoever migrates a guest uses it: members that answer, that do not, that
 * cannot, and names that are wrong.
 *
 *   suspend [CASE]      IVC_SUSPEND names the program
 */
#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "channel/link.h"
#include "region/internal.h"

#include <poll.h>

enum { SIZE = 1 << 20 };

/* A member in a process of its own, of a guest of its own. */
struct actor {
    const char *path, *vm;
    uint32_t rank;
    uint32_t features;
    bool answers;
    bool holds;         /* has a channel with slot 0, and does not let go */
};

static int act(void *arg)
{
    const struct actor *actor = arg;
    struct ivc_identity identity = { .magic_id = 1, .client_id = actor->rank,
                                     .features = actor->features };
    struct ivc_region *region;

    CHECK_EQ(ivc_region_open(actor->path, &region), 0);
    CHECK_EQ(ivc_region_join(region, &identity), 0);
    /* A process knows its guest from its first look on; this one was forked after that. */
    ivc_region_slot(region, ivc_region_self(region)->slot)->vm = ivc_vm_of(actor->vm);
    if (actor->holds)
        ivc_link_open(region, 0, 1);
    do {
        ivc_sleep_ms(5);
        ivc_region_orders_look(region);
    } while (!actor->answers || !ivc_region_is_ordered_away(region, ivc_vm_of(actor->vm)));
    CHECK_EQ(ivc_region_retire(region, NULL, 0), 0);
    ivc_region_free(region);
    return 0;
}

/* The program, with a pipe to its input and one from its output and errors. */
struct tool {
    pid_t pid;
    int in, out;
    char text[8192];
    size_t len;
};

static void start(struct tool *tool, const char *const *arguments)
{
    const char *argv[8] = { getenv("IVC_SUSPEND") };
    int in[2], out[2];

    CHECK_THAT(argv[0], "IVC_SUSPEND is not set");
    for (unsigned i = 0; arguments[i]; i++)
        argv[i + 1] = arguments[i];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    memset(tool, 0, sizeof *tool);
    fflush(NULL);
    tool->pid = fork();
    if (tool->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        unsetenv("IVC_VM");
        execv(argv[0], (char **)(uintptr_t)argv);
        _exit(99);
    }
    close(in[0]);
    close(out[1]);
    tool->in = in[1];
    tool->out = out[0];
}

/* Reads until the text is there. */
static void expect(struct tool *tool, const char *text)
{
    uint64_t deadline = ivc_now_ms() + 10000 * check_slowdown();

    while (!strstr(tool->text, text)) {
        struct pollfd out = { .fd = tool->out, .events = POLLIN };
        ssize_t n = 0;

        if (poll(&out, 1, 100) > 0)
            n = read(tool->out, tool->text + tool->len, sizeof tool->text - 1 - tool->len);
        if ((n == 0 && (out.revents & POLLHUP)) || ivc_now_ms() > deadline)
            check_fail(__FILE__, __LINE__, "'%s' is not in what it printed: %s", text, tool->text);
        tool->len += n > 0 ? (size_t)n : 0;
    }
}

static void ends_with(struct tool *tool, int status)
{
    int got;

    close(tool->in);
    CHECK_EQ(waitpid(tool->pid, &got, 0), tool->pid);
    CHECK_THAT(WIFEXITED(got) && WEXITSTATUS(got) == status, "%d: %s", got, tool->text);
    close(tool->out);
}

static struct ivc_region *watcher_of(const char *path, const char *vm)
{
    struct ivc_identity identity = { .magic_id = 1, .features = IVC_FEATURE_ORDERS };
    struct ivc_region *region;

    setenv("IVC_VM", vm, 1);
    CHECK_EQ(ivc_region_open(path, &region), 0);
    CHECK_EQ(ivc_region_join(region, &identity), 0);
    return region;
}

static void wait_for_members(const struct ivc_region *region, uint32_t n)
{
    struct ivc_member member;

    for (uint32_t slot = 0; slot < n; slot++)
        for (unsigned i = 0; ivc_region_member(region, slot, &member) != 0; i++, ivc_sleep_ms(10))
            CHECK(i < 1000);
    ivc_sleep_ms(50);
}

static bool is_asked(struct ivc_region *region, const char *vm)
{
    ivc_region_orders_look(region);
    return ivc_region_is_ordered_away(region, ivc_vm_of(vm));
}

/* Two ranks of a guest leave; the order stands until the program's input is closed. */
static void test_answered(void)
{
    const char *path = check_file(0, SIZE);
    struct actor a = { path, "g1", 1, IVC_FEATURE_ORDERS, true, false }, b = a;
    pid_t pids[2];
    struct ivc_region *watcher;
    struct tool tool;

    b.rank = 2;
    pids[0] = check_fork(act, &a);
    pids[1] = check_fork(act, &b);
    watcher = watcher_of(path, "g2");
    wait_for_members(watcher, 3);
    start(&tool, (const char *[]){ "--json", path, "g1", NULL });
    expect(&tool, "{\"event\": \"ordered\", \"vms\": [\"");
    expect(&tool, "{\"event\": \"answered\", \"seconds\": 0.");
    check_join(pids[0]);
    check_join(pids[1]);
    for (unsigned i = 0; i < 20; i++, ivc_sleep_ms(20))
        CHECK(is_asked(watcher, "g1") && !is_asked(watcher, "g2"));
    ends_with(&tool, 0);
    CHECK(!is_asked(watcher, "g1"));
    ivc_region_free(watcher);
}

/* One does not answer: it is named, with what it waits for, and the order is withdrawn. */
static void test_timeout(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = watcher_of(path, "g2");
    struct actor stuck = { path, "g1", 3, IVC_FEATURE_ORDERS, false, true };
    struct actor good = { path, "g1", 4, IVC_FEATURE_ORDERS, true, false };
    struct tool tool;
    pid_t pid;

    check_skip_under_thread_sanitizer();
    pid = check_fork(act, &stuck);
    wait_for_members(watcher, 2);
    check_fork(act, &good);
    wait_for_members(watcher, 3);
    start(&tool, (const char *[]){ "--timeout", "0.7", path, "g1", NULL });
    expect(&tool, "asked to leave");
    expect(&tool, "waiting for rank 3 on ");
    expect(&tool, "it has not let go of its memory with rank 0 on ");
    expect(&tool, "rank 3 on ");
    expect(&tool, " did not answer: ");
    expect(&tool, "gave up after 0.7");
    CHECK(!strstr(tool.text, "ivc_suspend: rank 4"));
    ends_with(&tool, 1);
    CHECK(!is_asked(watcher, "g1"));
    /* The same for programs; and its heart stands still now. */
    kill(pid, SIGSTOP);
    start(&tool, (const char *[]){ "--json", "-t", "2", path, "g1", NULL });
    expect(&tool, "{\"event\": \"waiting\", \"for\": [{\"rank\": 3, \"host\": \"");
    expect(&tool, "its heart stands still");
    expect(&tool, "{\"event\": \"timeout\", \"seconds\": 2.0");
    expect(&tool, "{\"event\": \"withdrawn\"}\n");
    ends_with(&tool, 1);
    ivc_region_free(watcher);
}

/* Ended before the answer: withdrawn, by a signal as by whoever started it going away. */
static void test_cancelled(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = watcher_of(path, "g2");
    struct actor stuck = { path, "g1", 3, IVC_FEATURE_ORDERS, false, false };
    struct tool tool;

    check_skip_under_thread_sanitizer();
    check_fork(act, &stuck);
    wait_for_members(watcher, 2);
    for (unsigned i = 0; i < 2; i++) {
        start(&tool, (const char *[]){ path, "g1", NULL });
        expect(&tool, "waiting for rank 3");
        CHECK(is_asked(watcher, "g1"));
        if (i == 0)
            kill(tool.pid, SIGINT);
        else
            close(tool.in);
        expect(&tool, "the order is withdrawn");
        ends_with(&tool, i == 0 ? 128 + SIGINT : 1);
        CHECK(!is_asked(watcher, "g1"));
    }
    ivc_region_free(watcher);
}

/* A library of before: refused, and nobody was asked; so is a peer of the guest with one. */
static void test_too_old(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = watcher_of(path, "g2");
    struct actor old = { path, "g1", 5, 0, false, true };
    struct tool tool;

    check_skip_under_thread_sanitizer();
    check_fork(act, &old);
    wait_for_members(watcher, 2);
    start(&tool, (const char *[]){ path, "g1", NULL });
    expect(&tool, "rank 5 on ");
    expect(&tool, "uses a library that does not know orders");
    expect(&tool, "nobody was asked");
    ends_with(&tool, 2);
    start(&tool, (const char *[]){ "--json", path, "g2", NULL });
    expect(&tool, "{\"event\": \"refused\", \"for\": [{\"rank\": 5, ");
    ends_with(&tool, 2);
    for (uint32_t i = 0; i < IVC_LAYOUT_ORDERS; i++)
        CHECK_EQ(ivc_load_relaxed(&ivc_order_at(watcher, i)->state), 0);
    ivc_region_free(watcher);
}

static void test_names(void)
{
    const char *path = check_file(0, SIZE);
    struct ivc_region *watcher = watcher_of(path, "g2");
    struct tool tool;
    char id[17];

    snprintf(id, sizeof id, "%016llx", (unsigned long long)ivc_vm_of("g2"));
    start(&tool, (const char *[]){ "--list", path, NULL });
    expect(&tool, id);
    expect(&tool, "rank 0 on ");
    ends_with(&tool, 0);
    start(&tool, (const char *[]){ "--json", "--list", path, NULL });
    expect(&tool, "{\"event\": \"list\", \"guests\": [{\"vm\": \"");
    expect(&tool, id);
    expect(&tool, "\"job\": \"0000000000000001\"");
    ends_with(&tool, 0);
    /* Nobody of that name: answered at once, but who is there is told. */
    start(&tool, (const char *[]){ path, "g7", NULL });
    expect(&tool, "nobody of g7 is in the region");
    expect(&tool, id);
    expect(&tool, "all have left");
    CHECK(is_asked(watcher, "g7"));
    ends_with(&tool, 0);
    start(&tool, (const char *[]){ "--json", path, "g7", NULL });
    expect(&tool, "{\"event\": \"nobody\", \"name\": \"g7\", \"guests\": [{");
    expect(&tool, "answered");
    ends_with(&tool, 0);
    /* By identity and by the name of its host. */
    for (unsigned i = 0; i < 2; i++) {
        const char *name = i ? ivc_region_self(watcher)->host : id;

        start(&tool, (const char *[]){ "-t", "0.3", path, name, NULL });
        expect(&tool, "did not answer");
        ends_with(&tool, 1);
        CHECK(strstr(tool.text, id));
    }
    /* Twice at once. */
    start(&tool, (const char *[]){ path, "g7", NULL });
    expect(&tool, "all have left");
    {
        struct tool second;

        start(&second, (const char *[]){ path, "g7", NULL });
        expect(&second, "is asked to leave it already");
        ends_with(&second, 1);
    }
    ends_with(&tool, 0);
    ivc_region_free(watcher);
}

/* What the second member says of itself; the first is one of guest "g2". */
struct other {
    const char *vm;
    char host;              /* the last letter of a name of 64; the first member's ends in 'a' */
    uint8_t boot, space, address;   /* 0: as the first member's */
};

static void describe(struct ivc_layout_member *entry, const struct other *other)
{
    entry->vm = ivc_vm_of(other->vm);
    memset(entry->host, 'h', sizeof entry->host);
    entry->host[sizeof entry->host - 1] = other->host;
    entry->boot_id[0] ^= other->boot;
    entry->pid_namespace ^= other->space;
    entry->wake = (struct ivc_layout_wake){ .family = 4, .port = 2000, .address = { 10, 0, 0, other->address } };
}

static struct ivc_region *two_members(const char *path, const struct other *other)
{
    struct ivc_region *region = watcher_of(path, "g2");
    struct ivc_layout_member *own = ivc_region_slot(region, 0), *entry = ivc_region_slot(region, 1);

    describe(own, &(struct other){ "g2", 'a', 0, 0, 0 });
    memcpy((char *)entry + 8, (char *)own + 8, sizeof *entry - 8);
    describe(entry, other);
    entry->links = 0;
    entry->endpoint_id ^= 1;        /* which nobody here goes by: no proof of one kernel */
    ivc_store_release(&entry->state, ivc_layout_state(1, IVC_PHASE_ACTIVE));
    return region;
}

/* An order reaches one guest, or nobody. */
static void test_ambiguous(void)
{
    static const char host[] = "hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhha";
    static const struct { struct other other; const char *name; bool refused; } rows[] = {
        { { "g2", 'a', 0, 0, 0 }, "g2", false },            /* processes of one guest */
        { { "g2", 'a', 0, 0, 0 }, host, false },
        { { "g3", 'a', 0, 0, 0 }, host, false },            /* one may not read its UUID */
        { { "g2", 'b', 0, 8, 9 }, "g2", false },            /* two containers of a guest */
        { { "g2", 'b', 0, 0, 0 }, "g2", true },             /* copies of a snapshot: with other names, */
        { { "g2", 'a', 0, 0, 9 }, "g2", true },             /* with other addresses, */
        { { "g2", 'a', 0, 0, 9 }, host, true },
        { { "g2", 'a', 7, 0, 0 }, "g2", true },             /* and started anew */
        { { "g3", 'a', 7, 0, 0 }, host, true },             /* two guests with one host name */
        { { "g3", 'a', 7, 0, 0 }, "g2", false },
        { { "g3", 'b', 7, 0, 0 }, host, false },            /* names that differ at their end */
        { { host, 'b', 7, 0, 0 }, host, true },             /* one's host name, the other's IVC_VM */
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = check_file((unsigned)i, SIZE);
        struct ivc_region *region = two_members(path, &rows[i].other);
        struct tool tool;

        start(&tool, (const char *[]){ "-t", "0.2", path, rows[i].name, NULL });
        expect(&tool, rows[i].refused ? "would reach several guests (rank 0 on hh" : "asked to leave");
        expect(&tool, rows[i].refused ? " in slot 1), so nobody was asked; name one by" : "did not answer");
        ends_with(&tool, rows[i].refused ? 2 : 1);
        ivc_region_free(region);
    }
}

static void test_usage(void)
{
    static const struct { const char *arguments[5]; int status; const char *says; } rows[] = {
        { { "--help" }, 0, "usage:" },
        { { "--version" }, 0, "ivc_suspend " },
        { { "--list" }, 2, "one REGION" },
        { { "/dev/shm/x" }, 2, "REGION and VM" },
        { { "-t", "x", "/dev/shm/x", "g1" }, 2, "number of seconds" },
        { { "-t", "-1", "/dev/shm/x", "g1" }, 2, "number of seconds" },
        { { "--what" }, 2, "ivc_suspend --help" },
        { { "/dev/shm/ivc-no-such-region", "g1" }, 1, "no such file" },
        { { "--json", "/dev/null", "g1" }, 1, "{\"event\": \"error\", \"error\": \"region /dev/" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tool tool;

        start(&tool, rows[i].arguments);
        expect(&tool, rows[i].says);
        ends_with(&tool, rows[i].status);
    }
}

/* A look leaves a region as it is, also one that nobody has used. */
static void test_list_unused(void)
{
    static char bytes[SIZE];
    const char *path = check_file(0, SIZE);
    struct tool tool;
    int fd;

    start(&tool, (const char *[]){ "--list", path, NULL });
    expect(&tool, "nobody is in the region");
    ends_with(&tool, 0);
    start(&tool, (const char *[]){ "--json", "--list", path, NULL });
    expect(&tool, "{\"event\": \"list\", \"guests\": []}");
    ends_with(&tool, 0);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, bytes, SIZE) == SIZE);
    close(fd);
    for (size_t i = 0; i < SIZE; i++)
        CHECK_THAT(bytes[i] == 0, "byte %zu was written", i);
}

static const struct check_case cases[] = {
    { "answered", test_answered, 0 },
    { "one does not answer", test_timeout, 0 },
    { "cancelled", test_cancelled, 0 },
    { "a library of before", test_too_old, 0 },
    { "names", test_names, 0 },
    { "names of several guests", test_ambiguous, 0 },
    { "a list of a region that nobody has used", test_list_unused, 0 },
    { "usage", test_usage, 0 },
};
CHECK_MAIN(cases)
