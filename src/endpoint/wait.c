/*
 * Sleeping until something comes.
 *
 * Memory wakes nobody: no mechanism we have gives a guest an interrupt for a store of another
 * guest. So a sleeper looks now and then, at first after 20 us, in the end every millisecond.  What
 * it looks at is one word: before it goes to sleep it stops watching every ring, so whoever sends
 * rings the bell.  A sender may still believe itself watched for a moment (region/inbox.c); its
 * packet is in its ring by then, so a last look at the rings a few microseconds later finds it; and
 * should that be too early, a sleep ends by itself after 50 ms and progress looks again.
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
};

/* The thread that looks on behalf of those who sleep on the descriptor. */
struct ivc_watcher {
    struct ivc_endpoint *endpoint;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, sending, stop;      /* under lock */
    int event;
};

struct sleep {
    uint64_t delay_ns, end_ns;
    bool sending;
};

static struct sleep begin(bool sending)
{
    return (struct sleep){
        .delay_ns = FIRST_NS, .end_ns = ivc_now_ns() + LONGEST_SLEEP_NS, .sending = sending,
    };
}

/* The next turn of progress has to look at the network. */
static bool network_is_due(struct ivc_endpoint *endpoint)
{
    /* Relaxed: nothing is read on the strength of it. */
    ivc_store_relaxed(&endpoint->network_woke, 1);
    return true;
}

/* Sleeps once; true when progress may have something to do. */
static bool look_again(struct ivc_endpoint *endpoint, struct sleep *sleep)
{
    struct pollfd network = {
        .fd = ivc_remote_fd(endpoint), .events = POLLIN,
    };
    struct timespec delay = { 0, (long)sleep->delay_ns };

    if (ppoll(&network, network.fd >= 0, &delay, NULL) > 0)
        return network_is_due(endpoint);
    if (ivc_poll_is_due(endpoint))
        return true;
    /* Room for what waits, and a network without a descriptor, are seen by progress only. */
    if (sleep->delay_ns >= LONGEST_NS && endpoint->network && network.fd < 0)
        return network_is_due(endpoint);
    if (sleep->delay_ns >= LONGEST_NS && sleep->sending)
        return true;
    sleep->delay_ns = IVC_MIN(sleep->delay_ns * 3 / 2, (uint64_t)LONGEST_NS);
    return ivc_now_ns() >= sleep->end_ns;
}

/* Before a sleep: true when there is something to do already. */
static bool settle(struct ivc_endpoint *endpoint)
{
    uint64_t start = ivc_now_ns();

    /* The rings of the sleep before this one: should one's bell have been missed, it is now. */
    if (ivc_poll_any_ready(endpoint) || ivc_poll_unwatch_all(endpoint))
        return true;
    do {
        if (ivc_poll_is_due(endpoint) || ivc_poll_any_ready(endpoint))
            return true;
        ivc_cpu_relax();
    } while (ivc_now_ns() - start < SETTLE_NS);
    return endpoint->network && ivc_network_try_wait(endpoint->network) != 0
           && network_is_due(endpoint);
}

int ivc_endpoint_wait(struct ivc_endpoint *endpoint, int timeout_ms, bool sending)
{
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX
                        : ivc_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct sleep sleep = begin(sending);

    if (settle(endpoint))
        return 1;
    do {
        if (look_again(endpoint, &sleep))
            return 1;
    } while (ivc_now_ns() < deadline);
    return 0;
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
        sleep = begin(watcher->sending);
        while (!due && watcher->armed && !watcher->stop) {
            pthread_mutex_unlock(&watcher->lock);
            due = look_again(watcher->endpoint, &sleep);
            pthread_mutex_lock(&watcher->lock);
        }
        if (due && watcher->armed) {
            watcher->armed = false;
            eventfd_write(watcher->event, 1);
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
        return ivc_error_set(-r, "a thread to look while others sleep: %s", strerror(r));
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
    bool others;

    pthread_mutex_lock(&watcher->lock);
    others = watcher->armed;
    watcher->armed = false;
    others |= eventfd_read(watcher->event, &drained) == 0;
    pthread_mutex_unlock(&watcher->lock);
    if (settle(endpoint)) {
        /* Whoever slept already had a watcher, or its call: both were taken away above. */
        if (others)
            eventfd_write(watcher->event, 1);
        return 1;
    }
    pthread_mutex_lock(&watcher->lock);
    watcher->armed = true;
    watcher->sending = sending || (others && watcher->sending);
    pthread_cond_signal(&watcher->changed);
    pthread_mutex_unlock(&watcher->lock);
    return 0;
}

void ivc_wait_free(struct ivc_endpoint *endpoint)
{
    struct ivc_watcher *watcher = endpoint->watcher;

    if (!watcher)
        return;
    pthread_mutex_lock(&watcher->lock);
    watcher->stop = true;
    pthread_cond_signal(&watcher->changed);
    pthread_mutex_unlock(&watcher->lock);
    pthread_join(watcher->thread, NULL);
    close(watcher->event);
    pthread_mutex_destroy(&watcher->lock);
    pthread_cond_destroy(&watcher->changed);
    free(watcher);
    endpoint->watcher = NULL;
}
