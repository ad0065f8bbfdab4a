/* What the benchmarks through ivc.h share: the end of a program that cannot go on, and writing all of
 * something. */
#ifndef IVC_BENCH_STREAM_H
#define IVC_BENCH_STREAM_H

#include <ivc.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static inline void fail(const char *what, long code)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
            *ivc_last_error() ? ivc_last_error() : ivc_strerror((int)code));
    exit(1);
}

/* A tight loop, as a latency-bound program would have it: no time-out, no system call. */
static inline void put(ivc_connection *connection, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ptrdiff_t n = ivc_write(connection, (const char *)bytes + done, len - done);

        if (n < 0)
            fail("write", n);
        done += (size_t)n;
    }
}

#endif
