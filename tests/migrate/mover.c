/*
 * mover: moves a guest that is no virtual machine: asks its processes to leave the region to which
 * a symbolic link leads (their IVC_REGION), waits for them, and has the link lead elsewhere.
 *
 *   mover [--timeout SECONDS] LINK VM FILE|none
 *
 * VM is what the processes have as IVC_VM.  Prints one line of JSON: what was done, after how many
 * seconds, and how many members had to answer.  Ends with 0: moved; 1: somebody did not answer,
 * nothing has changed; 2: wrong words; 3: it could not be tried.
 */
#include "guest.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

#include <limits.h>

enum { ASK_MS = 1 };

static struct guest guest;
static struct host from, to;

static void interrupted(int number)
{
    guest_withdraw(&guest);         /* one swap in shared memory: safe in a handler */
    _exit(128 + number);
}

static int fail(int code, const char *what, const char *why)
{
    fprintf(stderr, "mover: %s: %s\n", what, why);
    return code;
}

/* Waits until nobody of the guest is left. */
static bool ask(double seconds)
{
    uint64_t end = ivc_now_ms() + (uint64_t)(seconds * 1000);

    while (guest_members(&guest, &from) > 0) {
        if (ivc_now_ms() >= end)
            return false;
        guest_beat(&guest);
        ivc_sleep_ms(ASK_MS);
    }
    return true;
}

static int move(double seconds)
{
    unsigned members = guest_members(&guest, &from);
    char who[256];
    double took;

    if (guest_order(&guest) != 0)
        return fail(3, guest.vm, ivc_error_text());
    if (!ask(seconds)) {
        guest_describe_members(&guest, &from, who, sizeof who);
        guest_withdraw(&guest);
        printf("{\"moved\": false, \"members\": %u, \"silent\": \"%s\"}\n", members, who);
        return 1;
    }
    took = (double)(ivc_now_ns() - guest.ordered_ns) / 1e9;
    guest_place(&guest, to.path[0] ? &to : NULL);
    guest_withdraw(&guest);
    printf("{\"moved\": true, \"members\": %u, \"seconds\": %.6f}\n", members, took);
    return 0;
}

/* The link leads nowhere: the device comes back. */
static int bring(void)
{
    guest_place(&guest, to.path[0] ? &to : NULL);
    printf("{\"moved\": true, \"members\": 0, \"seconds\": 0}\n");
    return 0;
}

int main(int argc, char **argv)
{
    char target[PATH_MAX] = "";
    double seconds = 5;
    int at = 1;

    if (argc > 3 && strcmp(argv[1], "--timeout") == 0) {
        seconds = strtod(argv[2], NULL);
        at = 3;
    }
    if (argc - at != 3 || seconds <= 0) {
        fprintf(stderr, "usage: mover [--timeout SECONDS] LINK VM FILE|none\n");
        return 2;
    }
    guest_init(&guest, argv[at + 1], argv[at]);
    if (strcmp(argv[at + 2], "none") != 0)
        snprintf(to.path, sizeof to.path, "%s", argv[at + 2]);
    if (readlink(argv[at], target, sizeof target - 1) < 0)
        return errno == ENOENT ? bring() : fail(3, argv[at], strerror(errno));
    if (host_open(&from, target) != 0)
        return fail(3, target, ivc_error_text());
    guest.host = &from;
    signal(SIGINT, interrupted);
    signal(SIGTERM, interrupted);
    return move(seconds);
}
