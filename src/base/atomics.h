/*
 * Atomics on shared memory.
 *
 * C11's <stdatomic.h>, under names that say which side of a pair a call is.  Every use that is not
 * relaxed names its partner where it stands.  All shared words are lock-free: they are touched by
 * processes of different kernels, which no lock table of one process could order.
 */
#ifndef IVC_BASE_ATOMICS_H
#define IVC_BASE_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint32_t ivc_atomic_u32;
typedef _Atomic uint64_t ivc_atomic_u64;

_Static_assert(sizeof(ivc_atomic_u32) == 4 && sizeof(ivc_atomic_u64) == 8,
               "shared words have the size that the layout gives them");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "shared words are lock-free");

#define ivc_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define ivc_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define ivc_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define ivc_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)

/* True when `*p` was `expected` and is now `desired`; acquire and release on success. */
#define ivc_cas(p, expected, desired)                                                     \
    atomic_compare_exchange_strong_explicit((p), &(__typeof__(expected)){(expected)},     \
                                            (desired), memory_order_acq_rel,              \
                                            memory_order_acquire)

/* After copying what a peer may still write: from here on the compiler uses the copy, and does not
 * read the original again behind a check of the copy. */
static inline void ivc_copy_is_final(void)
{
    __asm__ volatile("" ::: "memory");
}

/* A hint to the processor that this is a waiting loop. */
static inline void ivc_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#endif
