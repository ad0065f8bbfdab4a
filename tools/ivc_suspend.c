/*
 * ivc_suspend: asks the processes of a guest to let go of a region, so that its device can be
 * pulled, and tells when they have.  Whoever migrates a guest runs it on the host, beside the
 * region's file.
 *
 * Invariant: the order stands exactly as long as this program runs; if it is killed, the order is
 * void after the region's lease.
 */
#include "suspend.h"

#include "base/error.h"
#include "base/util.h"
#include "region/order.h"
#include "region/window.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

enum {
    EXIT_NOT_ANSWERED = 1,
    EXIT_REFUSED = 2,           /* also wrong usage: nothing was asked */
    BEAT_MS = 100,
    LOOK_MS = 10,
};

static const char usage[] =
    "usage: ivc_suspend [--json] [--timeout SECONDS] REGION VM\n"
    "       ivc_suspend [--json] --list REGION\n"
    "Asks the processes of guest VM to let go of REGION, and tells when they have.  Then the\n"
    "order stands until standard input is closed (or SIGTERM), and they stay away.\n"
    "\n"
    "  REGION              a path, pci:ADDRESS or uuid:UUID\n"
    "  VM                  an identity of 16 digits as --list shows it, a guest's UUID or its\n"
    "                      IVC_VM, or the name of its host\n"
    "  -j, --json          print one JSON object per line\n"
    "  -l, --list          show which guests are there, and end\n"
    "  -t, --timeout SECONDS  withdraw and give up after that time (30)\n"
    "  -h, --help          print this\n"
    "  -V, --version       print the version\n"
    "\n"
    "Exit status: 0 when all had left, 1 when not or after an error, 2 when nobody was asked\n"
    "because somebody uses a library that does not know orders, or for wrong usage.\n";

struct options {
    const char *region, *vm;
    bool json, list;
    double timeout;
};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = number;
}

static int bad_usage(const char *what)
{
    fprintf(stderr, "ivc_suspend: %s; try 'ivc_suspend --help'\n", what);
    return EXIT_REFUSED;
}

static bool read_seconds(const char *text, double *ret_seconds)
{
    char *end;

    *ret_seconds = strtod(text, &end);
    return end != text && !*end && *ret_seconds > 0 && *ret_seconds < 1e6;
}

/* -1: go on; else the exit status. */
static int read_options(int argc, char **argv, struct options *ret_options)
{
    static const struct option known[] = {
        { "json", no_argument, NULL, 'j' },
        { "list", no_argument, NULL, 'l' },
        { "timeout", required_argument, NULL, 't' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    int c;

    while ((c = getopt_long(argc, argv, "jlt:hV", known, NULL)) != -1)
        switch (c) {
        case 'j': ret_options->json = true; break;
        case 'l': ret_options->list = true; break;
        case 't':
            if (!read_seconds(optarg, &ret_options->timeout))
                return bad_usage("--timeout needs a number of seconds");
            break;
        case 'h': fputs(usage, stdout); return 0;
        case 'V': puts("ivc_suspend " IVC_VERSION_TEXT); return 0;
        default: fputs("try 'ivc_suspend --help'\n", stderr); return EXIT_REFUSED;
        }
    if (argc - optind != (ret_options->list ? 1 : 2) || !*argv[optind])
        return bad_usage(ret_options->list ? "--list needs one REGION" : "needs REGION and VM");
    ret_options->region = argv[optind];
    ret_options->vm = ret_options->list ? NULL : argv[optind + 1];
    if (ret_options->vm && !*ret_options->vm)
        return bad_usage("needs the name of a guest");
    return -1;
}

/* ---------------------------------------------------------------- the orders, one per identity */

struct orders {
    struct ivc_order order[GUESTS_MAX];
    unsigned n;
    uint64_t beaten_ms;
};

static void withdraw_all(struct orders *orders)
{
    for (unsigned i = 0; i < orders->n; i++)
        ivc_order_withdraw(&orders->order[i]);
    orders->n = 0;
}

static int beat_all(struct orders *orders)
{
    if (ivc_now_ms() - orders->beaten_ms < BEAT_MS)
        return 0;
    orders->beaten_ms = ivc_now_ms();
    for (unsigned i = 0; i < orders->n; i++) {
        int r = ivc_order_beat(&orders->order[i]);

        if (r != 0)
            return r;
    }
    return 0;
}

static int give_all(struct ivc_region *region, const struct say *say, struct orders *orders)
{
    for (; orders->n < say->n_vms; orders->n++) {
        int r = ivc_order_give(region, say->vms[orders->n], &orders->order[orders->n]);

        if (r != 0)
            return r;
    }
    orders->beaten_ms = ivc_now_ms();
    return 0;
}

/* Waits a moment; whether whoever started us has gone.  Standard input that was never there, or
 * is a file, says nothing before all have left. */
static bool wait_is_over(int ms, bool answered)
{
    struct pollfd input = { .fd = 0, .events = POLLIN };
    char bytes[256];

    if (stop)
        return true;
    if (poll(&input, 1, ms) <= 0)
        return stop != 0;
    if (!answered) {
        if (!(input.revents & POLLHUP))
            ivc_sleep_ms((unsigned)ms);     /* there is input: poll() did not wait */
        return (input.revents & POLLHUP) != 0;
    }
    return (input.revents & (POLLERR | POLLNVAL)) || read(0, bytes, sizeof bytes) <= 0;
}

static unsigned count_asked(const struct say *say)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < say->people->n_slots; i++)
        n += say->people->slots[i].present
             && person_is_of(&say->people->slots[i], say->vms, say->n_vms);
    return n;
}

static bool is_refused(const struct say *say)
{
    for (uint32_t i = 0; i < say->people->n_slots; i++)
        if (person_is_too_old(say->people, &say->people->slots[i], say->vms, say->n_vms))
            return true;
    return false;
}

/* -1: all have left; else the exit status. */
static int wait_for_answers(const struct options *options, const struct say *say,
                            struct people *people, struct orders *orders, uint64_t start)
{
    static char last[TEXT_MAX];

    for (;; people_look(people)) {
        double seconds = (double)(ivc_now_ms() - start) / 1000;

        if (count_asked(say) == 0 && !people_are_joining(people)) {
            say_answered(say, seconds);
            return -1;
        }
        if (seconds > options->timeout) {
            say_timeout(say, seconds);
            return EXIT_NOT_ANSWERED;
        }
        say_waiting(say, last);
        if (wait_is_over(LOOK_MS, false)) {
            say_error(say->json, "ended before all had left; the order is withdrawn");
            return stop ? 128 + stop : EXIT_NOT_ANSWERED;
        }
        if (beat_all(orders) != 0) {
            say_error(say->json, ivc_error_text());
            return EXIT_NOT_ANSWERED;
        }
    }
}

static int keep(const struct say *say, struct orders *orders)
{
    while (!wait_is_over(BEAT_MS, true))
        if (beat_all(orders) != 0) {
            say_error(say->json, ivc_error_text());
            return EXIT_NOT_ANSWERED;
        }
    return 0;
}

static int ask(const struct options *options, const struct say *say, struct people *people,
               struct orders *orders)
{
    uint64_t start = ivc_now_ms();
    int status;

    if (is_refused(say)) {
        say_too_old(say);
        return EXIT_REFUSED;
    }
    if (give_all(people->region, say, orders) != 0) {
        say_error(say->json, ivc_error_text());
        return EXIT_NOT_ANSWERED;
    }
    say_ordered(say);
    people_look(people);
    if (count_asked(say) == 0)
        say_nobody(say, options->vm);
    status = wait_for_answers(options, say, people, orders, start);
    return status >= 0 ? status : keep(say, orders);
}

static int run(const struct options *options, struct people *people)
{
    uint64_t vms[GUESTS_MAX];
    struct say say = { .people = people, .vms = vms, .json = options->json };
    struct orders orders = { .n = 0 };
    int status, n;

    people_look(people);
    if (options->list) {
        say_guests(&say);
        return 0;
    }
    n = guests_named(people, options->vm, vms);
    if (n < 0) {
        say_error(say.json, ivc_error_text());
        return EXIT_REFUSED;
    }
    say.n_vms = (unsigned)n;
    status = ask(options, &say, people, &orders);
    if (orders.n > 0) {
        withdraw_all(&orders);
        say_withdrawn(&say);
    }
    return status;
}

/* A look writes nothing, so one that nobody has used is not to be opened, which would format it. */
static bool is_unused(const char *name)
{
    const struct ivc_mechanism *mechanism;
    struct ivc_mapping mapping;
    char chosen[256];
    bool unused;

    if (ivc_region_attach(name, &mechanism, chosen, &mapping) != 0)
        return false;
    unused = ivc_window_is_unused(&mapping);
    ivc_mapping_free(&mapping);
    return unused;
}

static int list_nobody(const struct options *options, const struct people *nobody)
{
    struct say say = { .people = nobody, .json = options->json };

    say_guests(&say);
    return 0;
}

static void catch_signals(void)
{
    struct sigaction action = { .sa_handler = on_signal };

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);       /* a reader that went away must not leave the order standing */
}

int main(int argc, char **argv)
{
    struct options options = { .timeout = 30 };
    struct people people = { 0 };
    struct ivc_region *region = NULL;
    int status = read_options(argc, argv, &options);

    if (status >= 0)
        return status;
    catch_signals();
    if (options.list && is_unused(options.region)) {
        status = list_nobody(&options, &people);
    } else if (ivc_region_open(options.region, &region) != 0 || people_open(region, &people) != 0) {
        say_error(options.json, ivc_error_text());
        status = EXIT_NOT_ANSWERED;
    } else {
        status = run(&options, &people);
    }
    people_free(&people);
    ivc_region_free(region);
    return status;
}
