/* Memory of the region for the application, whose guest may move: see endpoint.h. */
#include "base/error.h"
#include "base/util.h"
#include "endpoint/internal.h"

#include <errno.h>

enum { LOOK_MS = 100 };

struct wait {
    uint64_t start, end;
    bool on;                /* there is none now, and some is coming */
};

/* Once. */
static int lend(struct ivc_endpoint *endpoint, uint64_t size, void **ret_memory, struct wait *wait)
{
    struct ivc_region *region;
    bool coming;
    int r;

    wait->on = false;
    ivc_endpoint_lock(endpoint);
    region = endpoint->home.region;
    coming = region && ivc_region_memory_is_coming(region);
    r = region ? ivc_region_lend_now(region, size, ret_memory)
        : ivc_error_set(IVC_E_NOREGION, "this process has left its region, because the host asked its "
                        "guest to, and has not found another yet");
    if (r == IVC_E_NOSPACE) {
        wait->on = (coming || ivc_region_memory_is_coming(region))
                   && ivc_region_memory_wait(region, wait->start, &wait->end);
        ivc_region_look_at_members(region);
    }
    ivc_endpoint_unlock(endpoint);
    return r;
}

int ivc_endpoint_lend(struct ivc_endpoint *endpoint, uint64_t size, void **ret_memory)
{
    struct wait wait = { .start = ivc_now_ms() };
    int r = lend(endpoint, size, ret_memory, &wait);

    /* The helper must find the gate open meanwhile. */
    while (wait.on) {
        ivc_sleep_ms(LOOK_MS);
        r = lend(endpoint, size, ret_memory, &wait);
    }
    return r;
}

int ivc_endpoint_take_back(struct ivc_endpoint *endpoint, const void *memory)
{
    struct ivc_residence *residence;
    int r = ivc_error_set(-EINVAL, "%p is not the beginning of memory that was lent", memory);

    ivc_endpoint_lock(endpoint);
    if (endpoint->home.region)
        r = ivc_region_take_back(endpoint->home.region, memory);
    for (residence = endpoint->left; residence && r != 0; residence = residence->earlier)
        r = ivc_region_take_back(residence->region, memory);
    ivc_endpoint_unlock(endpoint);
    return r;
}
