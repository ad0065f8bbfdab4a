/* Small things that every layer uses: cleanup attributes, arithmetic, clock. */
#ifndef IVC_BASE_UTIL_H
#define IVC_BASE_UTIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define IVC_LINE 64     /* bytes of a cache line, the unit of transfer between cores */

#define IVC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define IVC_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline uint64_t ivc_align_up(uint64_t n, uint64_t power_of_two)
{
    return (n + power_of_two - 1) & ~(power_of_two - 1);
}

/* The place in a circle of `n`, less than twice round. */
static inline uint32_t ivc_wrap(uint32_t at, uint32_t n)
{
    return at < n ? at : at - n;
}

static inline bool ivc_is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* Monotonic time of this guest.  Clocks of two guests are never compared. */
static inline uint64_t ivc_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t ivc_now_ms(void)
{
    return ivc_now_ns() / 1000000u;
}

/* When a timeout is over, in ivc_now_ns(); negative: never, UINT64_MAX. */
static inline uint64_t ivc_deadline_ns(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : ivc_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

static inline void ivc_sleep_ms(unsigned ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&t, NULL);
}

/* Has the kernel give all pages of the memory at once, for storing: one by one, each with a fault of its own, takes
 * twice as long.  Only to gain time, so without a result: kernels before 5.14 do not know it, nor do mappings of
 * devices. */
void ivc_take_pages(void *memory, size_t size);
/* Stores into each page what is there, atomically, so that nothing is lost that others store at the same time: from
 * then on the kernel has it mapped for storing. */
void ivc_touch_pages(void *memory, size_t size);

static inline void ivc_free_p(void *p)
{
    free(*(void **)p);
}

static inline void ivc_close_p(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void ivc_fclose_p(FILE **file)
{
    if (*file)
        fclose(*file);
}

/* Locals that free themselves at the end of their scope. */
#define IVC_CLEANUP(f) __attribute__((cleanup(f)))
#define IVC_AUTO_FREE IVC_CLEANUP(ivc_free_p)
#define IVC_AUTO_CLOSE IVC_CLEANUP(ivc_close_p)
#define IVC_AUTO_FCLOSE IVC_CLEANUP(ivc_fclose_p)

/* Reads a number of bytes such as "64K" or "2M" from the environment into `ret_value`, which is
 * left alone when the variable is not set.  -EINVAL with a text when it is no number or out of
 * [min, max]. */
int ivc_env_size(const char *name, uint64_t min, uint64_t max, uint64_t *ret_value);
/* Whether so many descriptors can still be had; -EMFILE, -ENFILE with a text.  Libraries that run out of them say
 * something else, or nothing. */
int ivc_descriptors_check(unsigned n);
/* Which of `words` (the last is NULL) a variable is; the first when it is not set.  -EINVAL with a text for another one. */
int ivc_env_word(const char *name, const char *const *words, unsigned *ret_index);
/* Whether a switch such as IVC_STATS is set, and not to 0. */
bool ivc_env_is_on(const char *name);
/* The same as ivc_env_size() for a plain number of `unit`, a word for the text. */
int ivc_env_number(const char *name, const char *unit, uint64_t min, uint64_t max,
                   uint64_t *ret_value);

/* A condition whose times are those of ivc_now_ns(). */
void ivc_cond_init(pthread_cond_t *cond);
/* Sleeps for `ms`, or until the flag is set and the condition signalled, both under `lock`; what the
 * flag is then.  For threads that look at something now and then and are told to end. */
bool ivc_wait_for_flag(pthread_cond_t *cond, pthread_mutex_t *lock, const bool *flag, unsigned ms);
/* Sets it, and wakes the one that waits for it. */
void ivc_set_flag(pthread_cond_t *cond, pthread_mutex_t *lock, bool *flag);

/* 64 random bits, never 0. */
uint64_t ivc_random_id(void);

/* FNV-1a (Fowler, Noll, Vo), 64 bits: bytes as a number, the same everywhere.  `hash` is
 * IVC_HASH_START, or that of what comes before. */
#define IVC_HASH_START 0xcbf29ce484222325u
uint64_t ivc_hash(uint64_t hash, const void *bytes, size_t len);
uint64_t ivc_hash_text(const char *text);

/* A counter that runs with time and is cheap to read, for intervals: no unit, no order. */
static inline uint64_t ivc_cycles(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t count;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#else
    return ivc_now_ns();
#endif
}

/* What was loaded before is there before the clock is read after. */
static inline void ivc_loads_are_over(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_lfence();
#elif defined(__aarch64__)
    __asm__ volatile("isb" : : : "memory");
#endif
}

/* Whether reading it takes a microsecond and more, because a hypervisor answers: Xen does, where the processor's own
 * counter cannot be relied on or the guest came from a host where it runs at another rate. */
bool ivc_cycles_are_dear(void);

/* The first line of a small file (sysfs, procfs) without its newline; negative errno. */
int ivc_read_line(const char *path, char *ret_line, size_t size);

#endif
