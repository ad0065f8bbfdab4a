/*
 * Copying between shared memory and our own.
 *
 * A few bytes, what fits a slot: a call of memcpy() costs more than the copy when the length is not
 * known at compile time; here it is at most a few moves, two of which may overlap.  Many bytes: see
 * copy.c.
 */
#ifndef IVC_BASE_COPY_H
#define IVC_BASE_COPY_H

#include "base/util.h"

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

/* Out of memory that others have written, into memory that others read.  0 is OUT: so is the side of a packet of which
 * nobody says more. */
enum ivc_copy_side {
    IVC_COPY_OUT,
    IVC_COPY_OUT_FAR,           /* ... by a processor far away */
    IVC_COPY_OUT_STACK,         /* ... nearby, which uses the few chunks again that were read last (channel/pool.h) */
    IVC_COPY_IN,
    IVC_COPY_SIDES,
    IVC_COPY_PAST = IVC_COPY_SIDES,     /* in, past our cache; what is stored afterwards comes after it */
    IVC_COPY_IN_PLAIN,                  /* in, by plain moves; for a reader who waits for each packet of a stream */
};

enum { IVC_COPY_LONG = 2048 };

/* copy.c: IVC_COPY_LONG bytes at least. */
void ivc_copy_long(enum ivc_copy_side side, char *to, const char *from, size_t n);

/* memcpy() for messages. */
static inline void ivc_copy(enum ivc_copy_side side, void *to, const void *from, size_t n)
{
    if (n < IVC_COPY_LONG)
        memcpy(to, from, n);
    else
        ivc_copy_long(side, to, from, n);
}

/* Pieces, one behind the other. */
static inline void ivc_copy_gather(enum ivc_copy_side side, void *to, const struct iovec *iov,
                                   unsigned n_iov)
{
    char *at = to;

    for (unsigned i = 0; i < n_iov; i++) {
        if (iov[i].iov_len > 0)
            ivc_copy(side, at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
}

/* Asks for the line to be ours alone, so that storing into it later waits for nobody.  (The compiler's own
 * prefetch asks for a copy to read, unless it is told of a newer processor.) */
static inline void ivc_fetch_to_write(const char *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* The same for the lines from `line` on, up to `end`. */
static inline void ivc_fetch_lines_to_write(char *line, const char *end)
{
    for (; line < end; line += IVC_LINE)
        ivc_fetch_to_write(line);
}

/* Moves the first and the last `width` bytes of n, width <= n <= 2 * width. */
#define IVC_COPY_ENDS(type, to, from, n)                            \
    do {                                                            \
        type first_, last_;                                         \
        memcpy(&first_, (from), sizeof first_);                     \
        memcpy(&last_, (from) + (n) - sizeof last_, sizeof last_);  \
        memcpy((to), &first_, sizeof first_);                       \
        memcpy((to) + (n) - sizeof last_, &last_, sizeof last_);    \
    } while (0)

struct ivc_copy16 {
    uint64_t words[2];
};

struct ivc_copy32 {
    uint64_t words[4];
};

enum { IVC_COPY_FEW_MAX = 64 };

/* At most IVC_COPY_FEW_MAX bytes by a few moves: it calls nothing. */
static inline void ivc_copy_few(char *to, const char *from, size_t n)
{
    if (n >= 8 && n <= 16)
        IVC_COPY_ENDS(uint64_t, to, from, n);
    else if (n > 16 && n <= 32)
        IVC_COPY_ENDS(struct ivc_copy16, to, from, n);
    else if (n > 32)
        IVC_COPY_ENDS(struct ivc_copy32, to, from, n);
    else if (n >= 4)
        IVC_COPY_ENDS(uint32_t, to, from, n);
    else if (n >= 2)
        IVC_COPY_ENDS(uint16_t, to, from, n);
    else if (n == 1)
        *to = *from;
}

static inline void ivc_copy_short(enum ivc_copy_side side, char *to, const char *from, size_t n)
{
    if (n > 32)     /* moves of 32 bytes across the end of a line that is being written are slower */
        ivc_copy(side, to, from, n);
    else
        ivc_copy_few(to, from, n);
}

#endif
