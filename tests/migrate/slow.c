/*
 * A network that is slow, and slower at some moments than at others: what the core asks of it is
 * answered late.  The linker puts these under the files that call the network
 * (-Wl,--wrap=...): a send is refused as when the provider has no room, progress brings nothing,
 * each for as long as the moment lasts.  Order and bytes are the provider's, as ever.
 *
 * The cases and words are those of moves.c.
 */
#include "slow.h"

#include "check.h"

#include "base/atomics.h"
#include "base/error.h"
#include "base/util.h"
#include "network/network.h"

enum {
    MOMENT_MS = 60,     /* at most: long against what a move takes */
    REST_MS = 30,
};

int __real_ivc_network_send(struct ivc_network *network, struct ivc_route *route,
                            const struct iovec *iov, unsigned n_iov);
int __wrap_ivc_network_send(struct ivc_network *network, struct ivc_route *route,
                            const struct iovec *iov, unsigned n_iov);
int __real_ivc_network_send_buffer(struct ivc_network *network, struct ivc_route *route,
                                   struct ivc_network_buffer *buffer, size_t len);
int __wrap_ivc_network_send_buffer(struct ivc_network *network, struct ivc_route *route,
                                   struct ivc_network_buffer *buffer, size_t len);
int __real_ivc_network_progress(struct ivc_network *network);
int __wrap_ivc_network_progress(struct ivc_network *network);

/* One direction of this process's network. */
struct moment {
    uint64_t random, until_ms;
    bool slow;
};

/* Of all processes: made before they fork. */
static ivc_atomic_u64 *answers;

__attribute__((constructor)) static void map_answers(void)
{
    answers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(answers != MAP_FAILED);
}

uint64_t slow_answers(void)
{
    return ivc_load_relaxed(answers);
}

static bool is_slow(struct moment *moment)
{
    uint64_t now = ivc_now_ms();

    if (now < moment->until_ms) {
        if (moment->slow)
            atomic_fetch_add_explicit(answers, 1, memory_order_relaxed);
        return moment->slow;
    }
    if (!moment->random)
        moment->random = ivc_now_ns() ^ (uint64_t)getpid() << 32;
    moment->slow = !moment->slow;
    moment->until_ms = now + check_random(&moment->random) % (moment->slow ? MOMENT_MS : REST_MS);
    return moment->slow;
}

static struct moment sending, receiving;

int __wrap_ivc_network_send(struct ivc_network *network, struct ivc_route *route,
                            const struct iovec *iov, unsigned n_iov)
{
    return is_slow(&sending) ? IVC_E_FULL : __real_ivc_network_send(network, route, iov, n_iov);
}

int __wrap_ivc_network_send_buffer(struct ivc_network *network, struct ivc_route *route,
                                   struct ivc_network_buffer *buffer, size_t len)
{
    return is_slow(&sending) ? IVC_E_FULL
        : __real_ivc_network_send_buffer(network, route, buffer, len);
}

int __wrap_ivc_network_progress(struct ivc_network *network)
{
    return is_slow(&receiving) ? 0 : __real_ivc_network_progress(network);
}
