/*
 * Sleeping until something comes.
 *
 * Before it goes to sleep, an endpoint says so and stops watching every ring, so that whoever sends
 * rings the bell and wakes it by a datagram (region/wake.h).  A sender may still believe itself watched
 * for a moment (region/inbox.c); its packet is in its ring by then, so a last look at the rings a few
 * microseconds later finds it; and should that be too early, a sleep ends by itself after 50 ms and
 * progress looks again.  When wake-ups are moderated (moderation.h) it says so only later.
 *
 * Datagrams may be filtered, and a peer of before knows nothing of them.  So until one has come, and
 * again after a bell was rung of which none told, a sleeper looks by itself, at first after 20 us, in
 * the end every millisecond; what it looks at is one word.
 */
#include "endpoint/remote.h"

#include "base/chain.h"
#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

enum {
    FIRST_NS = 20 * 1000,
    LONGEST_NS = 1000 * 1000,
    LONGEST_SLEEP_NS = 50 * 1000 * 1000,
    SETTLE_NS = 5 * 1000,           /* a store leaves its processor in well under a microsecond */
    ON_ITS_WAY_NS = 500 * 1000,     /* a datagram, after the bell that it tells of */
    NEIGHBOURS_EVERY_NS = 100 * 1000 * 1000,
};

/* The thread that looks on behalf of those who sleep on the descriptor. */
struct ivc_watcher {
    struct ivc_endpoint *endpoint;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, sending, stop;      /* under lock, as what follows */
    uint64_t from_ns;               /* see struct sleep */
    int event;
};

struct sleep {
    uint64_t delay_ns;      /* to the next look of our own */
    uint64_t end_ns;        /* then progress looks, whatever there is */
    uint64_t limit_ns;      /* the caller's */
    uint64_t from_ns;       /* others are not told of it before; 0: they are by now */
    bool sending;
};

static struct sleep begin(bool sending, uint64_t limit_ns, uint64_t look_ns)
{
    return (struct sleep){
        .delay_ns = look_ns, .end_ns = ivc_now_ns() + LONGEST_SLEEP_NS, .limit_ns = limit_ns,
        .sending = sending,
    };
}

/* The next turn of progress has to look at the network. */
static bool network_is_due(struct ivc_endpoint *endpoint)
{
    /* Relaxed: nothing is read on the strength of it. */
    ivc_store_relaxed(&endpoint->network_woke, 1);
    return true;
}

enum woken { BY_NOBODY = 0, BY_PEER = 1, BY_NETWORK = 2 };

/* Sleeps for that long at most; by whom we were woken, or-ed. */
static int doze(struct ivc_endpoint *endpoint, uint64_t ns)
{
    struct pollfd fds[] = {
        { .fd = ivc_remote_fd(endpoint), .events = POLLIN },    /* negative ones are passed over */
        { .fd = endpoint->wake.here, .events = POLLIN },
        { .fd = endpoint->wake.there, .events = POLLIN },
    };
    struct timespec delay = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    int n = ppoll(fds, sizeof fds / sizeof *fds, &delay, NULL);

    if (n <= 0)
        return BY_NOBODY;
    return (fds[0].revents ? BY_NETWORK : 0) | (ivc_wake_take(&endpoint->wake) ? BY_PEER : 0);
}

/* Relaxed, all of `is_woken`: a habit, nothing rests on it. */
static bool is_woken_by_all(struct ivc_endpoint *endpoint, const struct sleep *sleep)
{
    /* Room for what waits, and a network without a descriptor, wake nobody. */
    return ivc_load_relaxed(&endpoint->is_woken) && !sleep->sending
           && (!endpoint->network || ivc_remote_fd(endpoint) >= 0);
}

/* There is something to do, and nobody has told us: whether a datagram tells of it still. */
static void wonder(struct ivc_endpoint *endpoint)
{
    if (ivc_load_relaxed(&endpoint->is_woken) && !(doze(endpoint, ON_ITS_WAY_NS) & BY_PEER))
        ivc_store_relaxed(&endpoint->is_woken, 0);
}

static bool is_due(struct ivc_endpoint *endpoint)
{
    bool due = ivc_poll_is_due(endpoint);

    if (due)
        ivc_moderation_found(&endpoint->moderation);
    return due;
}

/* Sleeps while others must not wake us, or shorter; answers as look_again(). */
static bool keep_still(struct ivc_endpoint *endpoint, struct sleep *sleep)
{
    uint64_t now = ivc_now_ns(), end = IVC_MIN(sleep->end_ns, sleep->limit_ns);
    uint64_t until = IVC_MIN(sleep->from_ns, end);

    if (until > now && doze(endpoint, until - now) & BY_NETWORK)
        return network_is_due(endpoint);
    now = ivc_now_ns();
    if (now >= sleep->from_ns) {
        sleep->from_ns = 0;
        ivc_poll_lie_down(endpoint, true);      /* they were not told; what they rang for is seen below */
    }
    return is_due(endpoint) || now >= sleep->end_ns;
}

/* Sleeps once; true when progress may have something to do. */
static bool look_again(struct ivc_endpoint *endpoint, struct sleep *sleep)
{
    uint64_t now = ivc_now_ns(), end = IVC_MIN(sleep->end_ns, sleep->limit_ns);
    uint64_t left = end > now ? end - now : 0;
    int woken;

    if (sleep->from_ns > 0)
        return keep_still(endpoint, sleep);
    woken = doze(endpoint, is_woken_by_all(endpoint, sleep) ? left : IVC_MIN(left, sleep->delay_ns));
    if (woken & BY_NETWORK)
        return network_is_due(endpoint);
    if (woken & BY_PEER) {
        ivc_store_relaxed(&endpoint->is_woken, 1);
        /* Should it be for nothing (from anybody, or another thread has seen to it): those who ring
         * take us for woken now. */
        ivc_poll_lie_down(endpoint, true);
    }
    if (is_due(endpoint)) {
        if (woken == BY_NOBODY)
            wonder(endpoint);
        return true;
    }
    if (sleep->delay_ns >= LONGEST_NS && endpoint->network && ivc_remote_fd(endpoint) < 0)
        return network_is_due(endpoint);
    if (sleep->delay_ns >= LONGEST_NS && sleep->sending)
        return true;
    sleep->delay_ns = IVC_MIN(sleep->delay_ns * 3 / 2, (uint64_t)LONGEST_NS);
    return ivc_now_ns() >= sleep->end_ns;
}

/* Before a sleep: true when there is something to do already.  `ret_from_ns` is that of struct sleep. */
static bool settle(struct ivc_endpoint *endpoint, bool sending, uint64_t *ret_from_ns)
{
    uint64_t start = ivc_now_ns();

    *ret_from_ns = 0;
    /* The rings of the sleep before this one: should one's bell have been missed, it is now. */
    if (ivc_poll_any_ready(endpoint) || ivc_poll_unwatch_all(endpoint))
        return true;
    if (!sending) {
        uint64_t from = ivc_moderation_begin(&endpoint->moderation, start);

        *ret_from_ns = from > start ? from : 0;
    }
    ivc_poll_lie_down(endpoint, *ret_from_ns == 0);
    (void)ivc_wake_take(&endpoint->wake);       /* of bells that we hear below */
    do {
        if (is_due(endpoint) || ivc_poll_any_ready(endpoint))
            return true;
        ivc_cpu_relax();
    } while (ivc_now_ns() - start < SETTLE_NS);
    return endpoint->network && ivc_network_try_wait(endpoint->network) != 0
           && network_is_due(endpoint);
}

static bool sleep_until(struct ivc_endpoint *endpoint, uint64_t limit_ns, uint64_t look_ns, bool sending)
{
    struct sleep sleep = begin(sending, limit_ns, look_ns);
    bool due = settle(endpoint, sending, &sleep.from_ns);

    while (!due && ivc_now_ns() < limit_ns)
        due = look_again(endpoint, &sleep);
    ivc_poll_get_up(endpoint);
    return due;
}

int ivc_endpoint_wait(struct ivc_endpoint *endpoint, int timeout_ms, bool sending)
{
    return sleep_until(endpoint, ivc_deadline_ns(timeout_ms), FIRST_NS, sending);
}

/* Processes of our kernel, which may talk to the caller by other means. */
static enum ivc_neighbours find_neighbours(struct ivc_endpoint *endpoint)
{
    struct ivc_region *region = endpoint->home.region;
    enum ivc_neighbours found = IVC_NEIGHBOURS_NONE;

    if (!region)
        return IVC_NEIGHBOURS_SILENT;   /* it cannot be told */
    for (uint32_t slot = 0; slot < ivc_region_capacity(region); slot++) {
        const struct ivc_peer *peer = ivc_endpoint_peer(endpoint, slot);
        struct ivc_member member;

        if (ivc_region_member(region, slot, &member) != 0 || !member.same_kernel
            || member.pid == ivc_region_self(region)->pid)
            continue;
        if (!peer || peer->stats.sent_packets + peer->stats.received_packets == 0)
            return IVC_NEIGHBOURS_SILENT;
        found = IVC_NEIGHBOURS_OF_OURS;
    }
    return found;
}

static void look_for_neighbours(struct ivc_endpoint *endpoint, uint64_t now)
{
    struct ivc_rest *rest = &endpoint->rest;

    if (rest->looked_ns && now - rest->looked_ns < NEIGHBOURS_EVERY_NS)
        return;
    rest->looked_ns = now;
    ivc_endpoint_enter(endpoint);
    rest->neighbours = find_neighbours(endpoint);
    ivc_endpoint_leave(endpoint);
}

void ivc_endpoint_stir(struct ivc_endpoint *endpoint)
{
    ivc_endpoint_is_busy(endpoint);
}

static __attribute__((noinline)) void rest_now(struct ivc_endpoint *endpoint, enum ivc_company company, bool sending,
                                               uint64_t limit_ns)
{
    struct ivc_rest *rest = &endpoint->rest;
    uint64_t now = ivc_now_ns(), ns, slept_ns = 0;

    if (ivc_caller_only_looks(&endpoint->callers)) {
        ivc_rest_is_no_wait(rest);
        return;
    }
    if (company == IVC_COMPANY_NEIGHBOURS)
        look_for_neighbours(endpoint, now);
    /* Whoever waits for the network is woken late: between user-mode guests a message takes 80 us while
     * both look for it all the time, and a millisecond and a half when they sleep for most of it. */
    ns = ivc_rest_ns(rest, ivc_load_relaxed(&endpoint->is_woken) && !sending
                     && endpoint->n_remotes == 0, company == IVC_COMPANY_NONE);
    if (ns > 0 && now < limit_ns) {
        (void)sleep_until(endpoint, IVC_MIN(now + ns, limit_ns), ns, sending);
        slept_ns = ivc_now_ns() - now;
    }
    ivc_rest_is_over(rest, ns, slept_ns);
}

void ivc_endpoint_rest(struct ivc_endpoint *endpoint, enum ivc_company company, bool sending, uint64_t limit_ns)
{
    if (__builtin_expect(ivc_rest_is_due(&endpoint->rest, &endpoint->crowd), 0) && !endpoint->threads
        && !endpoint->in_turn)
        rest_now(endpoint, company, sending, limit_ns);
}

static void *watch(void *arg)
{
    struct ivc_watcher *watcher = arg;

    prctl(PR_SET_TIMERSLACK, 1000ul);
    pthread_mutex_lock(&watcher->lock);
    while (!watcher->stop) {
        struct sleep sleep;
        bool due = false;

        if (!watcher->armed) {
            pthread_cond_wait(&watcher->changed, &watcher->lock);
            continue;
        }
        sleep = begin(watcher->sending, UINT64_MAX, FIRST_NS);
        while (!due && watcher->armed && !watcher->stop) {
            sleep.sending = watcher->sending;
            if (watcher->from_ns > 0)
                sleep.from_ns = watcher->from_ns;
            watcher->from_ns = 0;
            pthread_mutex_unlock(&watcher->lock);
            due = look_again(watcher->endpoint, &sleep);
            pthread_mutex_lock(&watcher->lock);
        }
        if (due && watcher->armed) {
            watcher->armed = false;
            eventfd_write(watcher->event, 1);
            ivc_poll_get_up(watcher->endpoint);
        }
    }
    pthread_mutex_unlock(&watcher->lock);
    return NULL;
}

static int start_watcher(struct ivc_endpoint *endpoint)
{
    struct ivc_watcher *watcher = calloc(1, sizeof *watcher);
    int r;

    if (!watcher)
        return ivc_error_set(-ENOMEM, "watcher: out of memory");
    watcher->endpoint = endpoint;
    watcher->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = watcher->event < 0 ? errno : 0;
    if (r == 0) {
        pthread_mutex_init(&watcher->lock, NULL);
        pthread_cond_init(&watcher->changed, NULL);
        r = ivc_thread_start(&watcher->thread, watch, watcher);
        if (r != 0)
            close(watcher->event);
    }
    if (r != 0) {
        free(watcher);
        return ivc_error_set(-r, "a thread to look while others sleep: %s", ivc_error_of(r));
    }
    endpoint->watcher = watcher;
    return 0;
}

int ivc_endpoint_fd(struct ivc_endpoint *endpoint)
{
    int r = endpoint->watcher ? 0 : start_watcher(endpoint);

    return r < 0 ? r : endpoint->watcher->event;
}

int ivc_endpoint_arm(struct ivc_endpoint *endpoint, bool sending)
{
    struct ivc_watcher *watcher = endpoint->watcher;
    eventfd_t drained;
    uint64_t from_ns;
    bool others;

    pthread_mutex_lock(&watcher->lock);
    others = watcher->armed;
    watcher->armed = false;
    others |= eventfd_read(watcher->event, &drained) == 0;
    pthread_mutex_unlock(&watcher->lock);
    if (settle(endpoint, sending, &from_ns)) {
        /* Whoever slept already had a watcher, or its call: both were taken away above. */
        if (others)
            eventfd_write(watcher->event, 1);
        return 1;
    }
    pthread_mutex_lock(&watcher->lock);
    watcher->armed = true;
    watcher->from_ns = from_ns;
    watcher->sending = sending;
    pthread_cond_signal(&watcher->changed);
    pthread_mutex_unlock(&watcher->lock);
    /* It may be in the middle of a sleep in which nothing was to be sent, or of which others know. */
    if (sending || (others && from_ns > 0))
        ivc_endpoint_rouse(endpoint);
    return 0;
}

bool ivc_endpoint_is_armed(struct ivc_endpoint *endpoint)
{
    struct ivc_watcher *watcher = endpoint->watcher;
    bool armed;

    pthread_mutex_lock(&watcher->lock);
    armed = watcher->armed;
    pthread_mutex_unlock(&watcher->lock);
    return armed && ivc_poll_is_down(endpoint);
}

void ivc_endpoint_disarm(struct ivc_endpoint *endpoint)
{
    struct ivc_watcher *watcher = endpoint->watcher;

    pthread_mutex_lock(&watcher->lock);
    watcher->armed = false;
    eventfd_write(watcher->event, 1);
    pthread_mutex_unlock(&watcher->lock);
    ivc_poll_get_up(endpoint);
}

void ivc_wait_free(struct ivc_endpoint *endpoint)
{
    struct ivc_watcher *watcher = endpoint->watcher;

    if (!watcher)
        return;
    ivc_set_flag(&watcher->changed, &watcher->lock, &watcher->stop);
    ivc_endpoint_rouse(endpoint);
    pthread_join(watcher->thread, NULL);
    close(watcher->event);
    pthread_mutex_destroy(&watcher->lock);
    pthread_cond_destroy(&watcher->changed);
    free(watcher);
    endpoint->watcher = NULL;
}
