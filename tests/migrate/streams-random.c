/*
 * ivc.h while guests move at any moment: programs that write random bytes to each other, in guests that
 * an order asks away again and again.  Each byte that ivc_write() took is counted on a board that all
 * share, and so is each byte that ivc_read() or a handler gave; the content follows from the stream and
 * the place in it.  In the end the two counts are the same for each direction of each connection.
 */
#include "guest.h"

#include "check.h"

#include "base/atomics.h"
#include "base/error.h"
#include "base/util.h"

#include <ivc.h>

enum {
    MAGIC = 52,
    REGION = 16 << 20,
    PROGRAMS_MAX = 4, GUESTS_MAX = 3,
    STREAMS_MAX = 65536,
    OPEN_MAX = 8,               /* connections that a program has at a time */
    ANSWER_MS = 10000,
};

/* One direction of a connection; its key is its place on the board. */
struct stream {
    ivc_atomic_u64 written, read;
    ivc_atomic_u32 dropped;     /* its reader closed: not all need be read.  ENDED: a program died */
};
enum { ENDED = 2 };

struct program {
    uint32_t id;
    unsigned guest;
    bool handles;               /* has handlers */
    bool computes;              /* makes no call for some time, now and then */
    pid_t pid;
    ivc_atomic_u32 rounds, suspends, leaves, arrives;
};

struct board {
    ivc_atomic_u32 keys;
    ivc_atomic_u32 quiet;       /* nobody writes any more */
    ivc_atomic_u32 end;
    struct program programs[PROGRAMS_MAX];
    struct stream streams[STREAMS_MAX][2];      /* from whoever connected, and to it */
};

static struct board *board;
static struct host hosts[2];
static struct guest guests[GUESTS_MAX];
static unsigned n_programs, n_guests;
static uint64_t dice_state;

static uint64_t dice(uint64_t sides)
{
    return check_random(&dice_state) % sides;
}

static void add(ivc_atomic_u64 *count, uint64_t n)
{
    atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

static void add_one(ivc_atomic_u32 *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

/* ---- a program */

/* A connection of a program: `key` comes first from whoever connects. */
struct open {
    ivc_connection *connection;
    uint32_t peer_id, key;
    bool is_mine, knows_key, over;
    uint64_t wrote, got;
};

static struct program *self;
static struct open opens[OPEN_MAX];
static struct open *accepting;      /* kept free: a handler that is called meanwhile may connect */
static ivc_context *context;

static uint8_t byte_at(uint32_t key, unsigned direction, uint64_t at)
{
    return (uint8_t)((at * 31 + (at >> 8) * 7 + (at >> 16)) ^ (key * 2 + direction) * 37);
}

static unsigned in_direction(const struct open *open)
{
    return open->is_mine ? 1 : 0;
}

static void take(struct open *open, const uint8_t *bytes, size_t n)
{
    unsigned direction = in_direction(open);
    size_t skip = 0;

    if (n == 0)
        return;
    if (!open->knows_key) {
        CHECK(n >= sizeof open->key);   /* it is written in one packet */
        memcpy(&open->key, bytes, sizeof open->key);
        CHECK(open->key < STREAMS_MAX);
        open->knows_key = true;
        skip = sizeof open->key;
    }
    for (size_t i = skip; i < n; i++)
        CHECK_THAT(bytes[i] == byte_at(open->key, direction, open->got + i), "stream %u: byte %llu",
                   open->key, (unsigned long long)(open->got + i));
    open->got += n;
    add(&board->streams[open->key][direction].read, n);
}

/* What has ENDED stays so: who learns of a death must not make it a reader that has closed. */
static void drop(struct stream *stream)
{
    (void)ivc_cas(&stream->dropped, 0u, 1u);
}

static void close_it(struct open *open, bool dropped)
{
    if (dropped && open->knows_key)
        drop(&board->streams[open->key][in_direction(open)]);
    ivc_close(open->connection);
    open->connection = NULL;
}

static void on_suspend(void *arg, ivc_connection *connection, const void *unread, size_t len)
{
    uint8_t byte;

    CHECK(arg == opens);
    for (unsigned i = 0; i < OPEN_MAX; i++) {
        if (opens[i].connection != connection)
            continue;
        add_one(&self->suspends);
        take(&opens[i], unread, len);
        CHECK_EQ(ivc_read(connection, &byte, 1), -ESHUTDOWN);
        CHECK_EQ(ivc_write(connection, "x", 1), -ESHUTDOWN);
        opens[i].over = true;
        if (dice(2))
            close_it(&opens[i], false);
        return;
    }
    check_fail(__FILE__, __LINE__, "a connection that we do not have");
}

static struct open *free_place(void)
{
    for (unsigned i = 0; i < OPEN_MAX; i++)
        if (!opens[i].connection && &opens[i] != accepting)
            return &opens[i];
    return NULL;
}

static bool is_connected_to(uint32_t id)
{
    for (unsigned i = 0; i < OPEN_MAX; i++)
        if (opens[i].connection && opens[i].is_mine && !opens[i].over && opens[i].peer_id == id)
            return true;
    return false;
}

static void connect_to_all(void)
{
    struct ivc_host found[PROGRAMS_MAX];
    int n = ivc_get_hosts(context, found, PROGRAMS_MAX);

    for (int i = 0; i < n && i < PROGRAMS_MAX; i++) {
        struct open *open = is_connected_to(found[i].client_id) ? NULL : free_place();
        int r;

        if (!open)
            continue;
        r = ivc_connect(context, found[i].client_id, &open->connection);
        CHECK_THAT(r == 0 || r == -EAGAIN || r == -ENOENT || r == -ECONNRESET, "%d: %s", r,
                   ivc_last_error());
        if (r != 0)
            continue;
        *open = (struct open){ .connection = open->connection, .peer_id = found[i].client_id,
                               .is_mine = true, .knows_key = true,
                               .key = atomic_fetch_add(&board->keys, 1) };
        CHECK(open->key < STREAMS_MAX);
    }
}

static void on_leave(void *arg, ivc_context *of)
{
    CHECK(arg == opens && of == context);
    CHECK_EQ(ivc_load_relaxed(&self->leaves), ivc_load_relaxed(&self->arrives));
    add_one(&self->leaves);
}

static void on_arrive(void *arg, ivc_context *of)
{
    CHECK(arg == opens && of == context);
    add_one(&self->arrives);
    CHECK_EQ(ivc_load_relaxed(&self->leaves), ivc_load_relaxed(&self->arrives));
    connect_to_all();
}

static void accept_all(void)
{
    struct ivc_host host;
    struct open *open;

    while ((accepting = open = free_place()) && ivc_accept(context, &open->connection) == 0) {
        ivc_connection *connection = open->connection;

        CHECK_EQ(ivc_get_peer_host(connection, &host), 0);
        *open = (struct open){ .connection = connection, .peer_id = host.client_id };
    }
    accepting = NULL;
}

/* The handler for a connection may be called from any of these, and may close it. */
static void read_some(struct open *open)
{
    static uint8_t bytes[300000];
    ivc_connection *connection = open->connection;
    ptrdiff_t n;

    if (open->over)
        return;
    n = ivc_read(connection, bytes, sizeof open->key + dice(dice(8) ? 500 : sizeof bytes - 8));
    if (n > 0)
        take(open, bytes, (size_t)n);
    if (n >= 0 || !open->connection)
        return;
    CHECK_THAT(n == -ESHUTDOWN || n == -EPIPE || n == -ECONNRESET, "%s", ivc_last_error());
    close_it(open, n == -ECONNRESET);
}

static void write_some(struct open *open)
{
    static uint8_t bytes[300000];
    struct stream *stream = &board->streams[open->key][!in_direction(open)];
    size_t len = 1 + dice(dice(8) ? 500 : sizeof bytes - 1);
    ptrdiff_t n;

    if (!open->knows_key || open->over)
        return;
    for (size_t i = 0; i < len; i++)
        bytes[i] = byte_at(open->key, !in_direction(open), open->wrote + i);
    if (open->is_mine && open->wrote == 0) {
        memcpy(bytes, &open->key, sizeof open->key);
        len = sizeof open->key;
    }
    n = ivc_write(open->connection, bytes, len);
    if (n > 0) {
        open->wrote += (uint64_t)n;
        add(&stream->written, (uint64_t)n);
    }
    if (n >= 0 || !open->connection)
        return;
    CHECK_THAT(n == -ESHUTDOWN || n == -EPIPE || n == -ECONNRESET, "%s", ivc_last_error());
    if (n == -ECONNRESET)
        drop(stream);
}

static void do_something(struct open *open)
{
    bool quiet = ivc_load_relaxed(&board->quiet) != 0;

    if (open->connection && open->over && dice(4) == 0)
        close_it(open, false);
    if (open->connection && dice(2) && !quiet)
        write_some(open);
    if (open->connection && dice(3))
        read_some(open);
    if (open->connection && open->knows_key && !open->over && !quiet && dice(3000) == 0)
        close_it(open, true);
}

static int run_program(void *arg)
{
    struct ivc_move_handlers handlers = {
        .size = sizeof handlers, .on_suspend = on_suspend, .on_leave = on_leave,
        .on_arrive = on_arrive,
    };
    struct ivc_options options = { .size = sizeof options };

    self = arg;
    dice_state += self->id * 7919;
    setenv("IVC_VM", guests[self->guest].vm, 1);
    setenv("IVC_REGION", guests[self->guest].link, 1);
    options.window = dice(2) ? 8192 : 0;
    CHECK_THAT(ivc_register_with(MAGIC, self->id, &options, &context) == 0, "%s", ivc_last_error());
    if (self->handles)
        CHECK_EQ(ivc_set_move_handlers(context, &handlers, opens), 0);
    while (!ivc_load_relaxed(&board->end)) {
        accept_all();
        if (!ivc_load_relaxed(&board->quiet))
            connect_to_all();
        for (unsigned i = 0; i < OPEN_MAX; i++)
            do_something(&opens[i]);
        if (dice(4) == 0)
            (void)ivc_wait(context, (int)dice(2));
        if (self->computes && dice(200) == 0)
            ivc_sleep_ms((unsigned)dice(200));
        add_one(&self->rounds);
    }
    ivc_deregister(context);
    return 0;
}

/* ---- the host */

static void prepare(void)
{
    static char links[GUESTS_MAX][96];
    uint64_t seed = getenv("IVC_TEST_SEED") ? strtoull(getenv("IVC_TEST_SEED"), NULL, 10)
                    : ivc_now_ns() / 1000 % 1000000000 + 1;

    printf("# seed %llu\n", (unsigned long long)seed);
    dice_state = seed;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (unsigned i = 0; i < 2; i++)
        CHECK_THAT(host_open(&hosts[i], check_file(i, REGION)) == 0, "%s", ivc_error_text());
    for (unsigned i = 0; i < n_guests; i++) {
        char name[16];

        snprintf(name, sizeof name, "g%u", i);
        snprintf(links[i], sizeof links[i], "%s-%u", check_scratch, 9 - i);
        guest_init(&guests[i], name, links[i]);
        guest_place(&guests[i], &hosts[0]);
    }
}

static void start(const struct program *programs)
{
    for (unsigned i = 0; i < n_programs; i++) {
        struct program *program = &board->programs[i];

        *program = programs[i];
        program->id = i;
        program->pid = check_fork(run_program, program);
    }
}

static void nobody_failed(void)
{
    for (unsigned i = 0; i < n_programs; i++)
        if (board->programs[i].pid)
            CHECK_THAT(waitpid(board->programs[i].pid, NULL, WNOHANG) == 0, "program %u ended", i);
}

static void let_pass(uint64_t ms)
{
    for (uint64_t end = ivc_now_ms() + ms; ivc_now_ms() < end; ivc_sleep_ms(1))
        for (unsigned i = 0; i < n_guests; i++)
            guest_beat(&guests[i]);
}

static uint64_t await_answer(struct guest *guest)
{
    uint64_t start = ivc_now_ms();

    while (guest_members(guest, guest->ordered_at) > 0) {
        char who[200];

        guest_describe_members(guest, guest->ordered_at, who, sizeof who);
        CHECK_THAT(ivc_now_ms() - start < ANSWER_MS * check_slowdown(), "no answer from %s", who);
        nobody_failed();
        let_pass(1);
    }
    return ivc_now_ms() - start;
}

/* Leaves, is nowhere for a moment perhaps, and arrives, mostly where the others are. */
static uint64_t move(struct guest *guest)
{
    uint64_t took;

    CHECK_THAT(guest_order(guest) == 0, "%s", ivc_error_text());
    took = await_answer(guest);
    if (dice(3) == 0) {
        guest_place(guest, NULL);
        let_pass(dice(150));
    }
    guest_place(guest, &hosts[dice(4) == 0]);
    guest_withdraw(guest);
    return took;
}

/* Both at once, or one of them is taken back: whatever is left over settles by itself. */
static void move_two(struct guest *first, struct guest *second)
{
    CHECK_THAT(guest_order(first) == 0, "%s", ivc_error_text());
    let_pass(dice(30));
    CHECK_THAT(guest_order(second) == 0, "%s", ivc_error_text());
    if (dice(2))
        guest_withdraw(first);
    else
        (void)await_answer(first);
    (void)await_answer(second);
    if (first->ordered_at)
        guest_place(first, &hosts[dice(2)]);
    guest_place(second, &hosts[dice(2)]);
    guest_withdraw(first);
    guest_withdraw(second);
}

static void all_together(void)
{
    for (unsigned i = 0; i < n_guests; i++)
        if (guests[i].host != &hosts[0]) {
            CHECK_EQ(guest_order(&guests[i]), 0);
            (void)await_answer(&guests[i]);
            guest_place(&guests[i], &hosts[0]);
            guest_withdraw(&guests[i]);
        }
}

static bool all_read(bool print)
{
    bool all = true;

    for (uint32_t key = 0; key < ivc_load_relaxed(&board->keys); key++)
        for (unsigned d = 0; d < 2; d++) {
            struct stream *s = &board->streams[key][d];
            uint64_t written = ivc_load_relaxed(&s->written), read = ivc_load_relaxed(&s->read);
            uint32_t dropped = ivc_load_relaxed(&s->dropped);
            bool good = dropped == ENDED || (dropped ? read <= written : read == written);

            if (!good && print)
                printf("# stream %u %s: %llu written, %llu read\n", key, d ? "back" : "out",
                       (unsigned long long)written, (unsigned long long)read);
            all &= good;
        }
    return all;
}

static void end_and_check(void)
{
    uint64_t end, bytes = 0;

    let_pass(300);
    ivc_store_relaxed(&board->quiet, 1);
    end = ivc_now_ms() + 20000 * check_slowdown();
    while (!all_read(false) && ivc_now_ms() < end) {
        nobody_failed();
        ivc_sleep_ms(10);
    }
    if (!all_read(true))
        check_fail(__FILE__, __LINE__, "what was written and what was read differ");
    ivc_store_relaxed(&board->end, 1);
    for (unsigned i = 0; i < n_programs; i++)
        if (board->programs[i].pid)
            check_join(board->programs[i].pid);
    for (uint32_t key = 0; key < ivc_load_relaxed(&board->keys); key++)
        bytes += ivc_load_relaxed(&board->streams[key][0].read)
                 + ivc_load_relaxed(&board->streams[key][1].read);
    printf("# %u connections, %llu KiB\n", ivc_load_relaxed(&board->keys),
           (unsigned long long)bytes >> 10);
    for (unsigned i = 0; i < n_programs; i++)
        printf("# program %u: %u rounds, %u suspended, left %u, arrived %u\n", i,
               ivc_load_relaxed(&board->programs[i].rounds),
               ivc_load_relaxed(&board->programs[i].suspends),
               ivc_load_relaxed(&board->programs[i].leaves),
               ivc_load_relaxed(&board->programs[i].arrives));
    CHECK(bytes > 0);
}

static void run_moves(const struct program *programs, unsigned moves)
{
    uint64_t worst = 0, sum = 0;

    prepare();
    start(programs);
    let_pass(100);
    for (unsigned i = 0; i < moves; i++) {
        uint64_t took = move(&guests[dice(n_guests)]);

        worst = IVC_MAX(worst, took);
        sum += took;
        let_pass(dice(4) ? 150 + dice(100) : dice(40));
    }
    printf("# %u moves, answered after %llu ms on average, %llu at worst\n", moves,
           (unsigned long long)(sum / moves), (unsigned long long)worst);
    all_together();
    end_and_check();
}

static void test_two(void)
{
    static const struct program programs[] = {
        { .guest = 0, .handles = true }, { .guest = 1, .handles = true },
    };

    n_programs = n_guests = 2;
    run_moves(programs, 60);
}

static void test_three(void)
{
    static const struct program programs[] = {
        { .guest = 0, .handles = true }, { .guest = 1 },
        { .guest = 2, .handles = true, .computes = true },
    };

    n_programs = n_guests = 3;
    run_moves(programs, 60);
}

static void test_same_guest(void)
{
    static const struct program programs[] = {
        { .guest = 0, .handles = true }, { .guest = 0, .computes = true },
        { .guest = 1, .handles = true, .computes = true }, { .guest = 1 },
    };

    n_programs = 4;
    n_guests = 2;
    run_moves(programs, 50);
}

static void test_at_once(void)
{
    static const struct program programs[] = {
        { .guest = 0, .handles = true }, { .guest = 1, .handles = true },
        { .guest = 2, .computes = true },
    };

    n_programs = n_guests = 3;
    prepare();
    start(programs);
    let_pass(100);
    for (unsigned i = 0; i < 30; i++) {
        unsigned first = (unsigned)dice(3);

        move_two(&guests[first], &guests[(first + 1 + dice(2)) % 3]);
        let_pass(dice(2) ? 200 : dice(40));
    }
    all_together();
    end_and_check();
}

/* A program dies in the middle of a move: its own, or its peer's. */
static void test_killed(void)
{
    static const struct program programs[] = {
        { .guest = 0, .handles = true }, { .guest = 1, .handles = true },
        { .guest = 2, .handles = true },
    };

    n_programs = n_guests = 3;
    prepare();
    start(programs);
    for (unsigned i = 0; i < 12; i++) {
        struct program *dead = &board->programs[dice(3)];

        let_pass(250);
        CHECK_THAT(guest_order(&guests[i % 3]) == 0, "%s", ivc_error_text());
        let_pass(dice(40));
        /* It may have written what it could not count. */
        check_kill(dead->pid);
        dead->pid = 0;
        for (uint32_t key = 0; key < ivc_load_relaxed(&board->keys); key++)
            for (unsigned d = 0; d < 2; d++)
                board->streams[key][d].dropped = ENDED;
        (void)await_answer(&guests[i % 3]);
        guest_place(&guests[i % 3], &hosts[0]);
        guest_withdraw(&guests[i % 3]);
        ivc_store_relaxed(&dead->leaves, 0);
        ivc_store_relaxed(&dead->arrives, 0);
        dead->pid = check_fork(run_program, dead);
    }
    end_and_check();
}

static const struct check_case cases[] = {
    { "two programs, 60 moves", test_two, 180 },
    { "three programs, one without handlers", test_three, 180 },
    { "several programs in a guest", test_same_guest, 180 },
    { "two guests at once, and orders taken back", test_at_once, 180 },
    { "a program dies in the middle of a move", test_killed, 120 },
};

CHECK_MAIN(cases)
