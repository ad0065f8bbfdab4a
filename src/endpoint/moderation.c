/* How often others may wake us: see moderation.h. */
#include "endpoint/moderation.h"

#include "base/error.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>

enum {
    ADAPTIVE_NS = 100 * 1000,   /* some ten times what a wake-up costs */
    ADAPTIVE_AFTER = 4,         /* wake-ups, each within that time */
    US_MAX = 50000,             /* no sleep is longer (wait.c) */
};

int ivc_moderation_init(struct ivc_moderation *moderation)
{
    const char *text = getenv("IVC_MODERATION");
    uint64_t us = 0;

    *moderation = (struct ivc_moderation){ .interval_ns = IVC_MODERATION_ADAPTIVE };
    if (!text || !*text || strcmp(text, "adaptive") == 0)
        return 0;
    if (ivc_env_number("IVC_MODERATION", "microseconds", 0, US_MAX, &us) < 0)
        return ivc_error_set(-EINVAL, "IVC_MODERATION=%s: write a number of microseconds up to %d, or "
                             "adaptive", text, US_MAX);
    moderation->interval_ns = us * 1000;
    return 0;
}

uint64_t ivc_moderation_begin(struct ivc_moderation *moderation, uint64_t now_ns)
{
    bool adaptive = moderation->interval_ns == IVC_MODERATION_ADAPTIVE;
    uint64_t next = ivc_load_relaxed(&moderation->from_ns)
                    + (adaptive ? (uint64_t)ADAPTIVE_NS : moderation->interval_ns);
    bool soon = now_ns < next && ivc_load_relaxed(&moderation->was_found);
    uint32_t n = 0;

    if (soon && !ivc_load_relaxed(&moderation->has_sent))
        n = IVC_MIN(ivc_load_relaxed(&moderation->n_soon) + 1, ADAPTIVE_AFTER);
    if (!soon || (adaptive && n < ADAPTIVE_AFTER))
        next = now_ns;
    ivc_store_relaxed(&moderation->n_soon, n);
    ivc_store_relaxed(&moderation->was_found, 0);
    ivc_store_relaxed(&moderation->has_sent, 0);
    ivc_store_relaxed(&moderation->from_ns, next);
    return next;
}
