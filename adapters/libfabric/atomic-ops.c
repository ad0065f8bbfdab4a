/*
 * What atomic operations do to memory: every operation of fi_atomic(3) on every type for which it
 * has a meaning.
 *
 * Types that the processor changes in one step (integers, float and double, up to 8 bytes) are
 * changed so wherever they are naturally aligned: then several processes may do it to the same memory.  All
 * others are changed by one process at a time, the one that registered the memory; is_native() says
 * which are which.
 *
 * Invariant: FI_ATOMIC_READ never writes.
 */
#include "rma.h"

#include <complex.h>

/* ---------------------------------------------------------------- one element */

/* What all types have.  `Wide`: where sums and products wrap instead of overflowing. */
#define COMMON_CASES(Type, Wide)                                        \
    case FI_SUM: return (Type)((Wide)old + (Wide)in);                   \
    case FI_PROD: return (Type)((Wide)old * (Wide)in);                  \
    case FI_LOR: return (Type)(old || in);                              \
    case FI_LAND: return (Type)(old && in);                             \
    case FI_LXOR: return (Type)(!old != !in);                           \
    case FI_ATOMIC_WRITE: return in;                                    \
    case FI_CSWAP: return compare == old ? in : old;                    \
    case FI_CSWAP_NE: return compare != old ? in : old;                 \
    default: return old

#define ORDER_CASES                                                     \
    case FI_MIN: return in < old ? in : old;                            \
    case FI_MAX: return in > old ? in : old;                            \
    case FI_CSWAP_LE: return compare <= old ? in : old;                 \
    case FI_CSWAP_LT: return compare < old ? in : old;                  \
    case FI_CSWAP_GE: return compare >= old ? in : old;                 \
    case FI_CSWAP_GT: return compare > old ? in : old

#define BIT_CASES(Type)                                                 \
    case FI_BOR: return (Type)(old | in);                               \
    case FI_BAND: return (Type)(old & in);                              \
    case FI_BXOR: return (Type)(old ^ in);                              \
    case FI_MSWAP: return (Type)((in & compare) | (old & ~compare))

#define NEW_VALUE(name, Type, ...)                                      \
    static inline Type name##_new(enum fi_op op, Type old, Type in, Type compare) \
    {                                                                   \
        switch ((int)op) {                                              \
        __VA_ARGS__;                                                    \
        }                                                               \
    }

/* ---------------------------------------------------------------- many elements */

/* Reads and changes the word in one step; gives what was there before. */
#define NATIVE_STEP(name, Type, Word)                                   \
    static inline Type name##_step(enum fi_op op, char *target, Type in, Type compare) \
    {                                                                   \
        Word *word = (Word *)(void *)target;                            \
        /* Acquire, and release below: pair with each other in whoever changes the word next. */ \
        Word seen = __atomic_load_n(word, __ATOMIC_ACQUIRE), wanted;    \
        Type old, new;                                                  \
                                                                        \
        do {                                                            \
            memcpy(&old, &seen, sizeof old);                            \
            if (op == FI_ATOMIC_READ)                                   \
                break;                                                  \
            new = name##_new(op, old, in, compare);                     \
            memcpy(&wanted, &new, sizeof wanted);                       \
        } while (!__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_ACQ_REL, \
                                              __ATOMIC_ACQUIRE));       \
        return old;                                                     \
    }

#define PLAIN_STEP(name, Type)                                          \
    static inline Type name##_plain(enum fi_op op, char *target, Type in, Type compare) \
    {                                                                   \
        Type old, new;                                                  \
                                                                        \
        memcpy(&old, target, sizeof old);                               \
        if (op == FI_ATOMIC_READ)                                       \
            return old;                                                 \
        new = name##_new(op, old, in, compare);                         \
        memcpy(target, &new, sizeof new);                               \
        return old;                                                     \
    }

/* The operands are copied: they may have any alignment. */
#define LOOP(name, Type, step)                                          \
    for (size_t i = 0; i < count; i++) {                                \
        Type in = 0, compare = 0, old;                                  \
                                                                        \
        if (operands)                                                   \
            memcpy(&in, operands + i * sizeof in, sizeof in);           \
        if (compares)                                                   \
            memcpy(&compare, compares + i * sizeof compare, sizeof compare); \
        old = step(op, target + i * sizeof old, in, compare);           \
        if (results)                                                    \
            memcpy(results + i * sizeof old, &old, sizeof old);         \
    }

#define APPLY_SIGNATURE(name)                                           \
    static void name##_apply(enum fi_op op, char *target, const char *operands, \
                             const char *compares, char *results, size_t count)

#define NATIVE(name, Type, Word)                                        \
    NATIVE_STEP(name, Type, Word)                                       \
    PLAIN_STEP(name, Type)                                              \
    APPLY_SIGNATURE(name)                                               \
    {                                                                   \
        if ((uintptr_t)target % sizeof(Word) == 0)                      \
            LOOP(name, Type, name##_step)                               \
        else                                                            \
            LOOP(name, Type, name##_plain)                              \
    }

#define PLAIN(name, Type)                                               \
    PLAIN_STEP(name, Type)                                              \
    APPLY_SIGNATURE(name)                                               \
    {                                                                   \
        LOOP(name, Type, name##_plain)                                  \
    }

/* ---------------------------------------------------------------- the types */

#define INTEGER(name, Type, Wide)                                       \
    NEW_VALUE(name, Type, BIT_CASES(Type); ORDER_CASES; COMMON_CASES(Type, Wide))
#define REAL(name, Type) NEW_VALUE(name, Type, ORDER_CASES; COMMON_CASES(Type, Type))
#define COMPLEX(name, Type) NEW_VALUE(name, Type, COMMON_CASES(Type, Type))

typedef __int128 int128;
typedef unsigned __int128 uint128;
typedef float complex float_complex;
typedef double complex double_complex;
typedef long double long_double;
typedef long double complex long_double_complex;

INTEGER(int8, int8_t, uint64_t)
NATIVE(int8, int8_t, uint8_t)
INTEGER(uint8, uint8_t, uint64_t)
NATIVE(uint8, uint8_t, uint8_t)
INTEGER(int16, int16_t, uint64_t)
NATIVE(int16, int16_t, uint16_t)
INTEGER(uint16, uint16_t, uint64_t)
NATIVE(uint16, uint16_t, uint16_t)
INTEGER(int32, int32_t, uint64_t)
NATIVE(int32, int32_t, uint32_t)
INTEGER(uint32, uint32_t, uint64_t)
NATIVE(uint32, uint32_t, uint32_t)
INTEGER(int64, int64_t, uint64_t)
NATIVE(int64, int64_t, uint64_t)
INTEGER(uint64, uint64_t, uint64_t)
NATIVE(uint64, uint64_t, uint64_t)
REAL(float, float)
NATIVE(float, float, uint32_t)
REAL(double, double)
NATIVE(double, double, uint64_t)
INTEGER(int128, int128, uint128)
PLAIN(int128, int128)
INTEGER(uint128, uint128, uint128)
PLAIN(uint128, uint128)
REAL(long_double, long_double)
PLAIN(long_double, long_double)
COMPLEX(float_complex, float_complex)
PLAIN(float_complex, float_complex)
COMPLEX(double_complex, double_complex)
PLAIN(double_complex, double_complex)
COMPLEX(long_double_complex, long_double_complex)
PLAIN(long_double_complex, long_double_complex)

enum class { NONE, IS_INTEGER, IS_REAL, IS_COMPLEX };

static const struct type {
    size_t size;
    enum class class;
    bool native;
    void (*apply)(enum fi_op op, char *target, const char *operands, const char *compares,
                  char *results, size_t count);
} types[] = {
    [FI_INT8] = { 1, IS_INTEGER, true, int8_apply },
    [FI_UINT8] = { 1, IS_INTEGER, true, uint8_apply },
    [FI_INT16] = { 2, IS_INTEGER, true, int16_apply },
    [FI_UINT16] = { 2, IS_INTEGER, true, uint16_apply },
    [FI_INT32] = { 4, IS_INTEGER, true, int32_apply },
    [FI_UINT32] = { 4, IS_INTEGER, true, uint32_apply },
    [FI_INT64] = { 8, IS_INTEGER, true, int64_apply },
    [FI_UINT64] = { 8, IS_INTEGER, true, uint64_apply },
    [FI_FLOAT] = { sizeof(float), IS_REAL, true, float_apply },
    [FI_DOUBLE] = { sizeof(double), IS_REAL, true, double_apply },
    [FI_FLOAT_COMPLEX] = { sizeof(float_complex), IS_COMPLEX, false, float_complex_apply },
    [FI_DOUBLE_COMPLEX] = { sizeof(double_complex), IS_COMPLEX, false, double_complex_apply },
    [FI_LONG_DOUBLE] = { sizeof(long_double), IS_REAL, false, long_double_apply },
    [FI_LONG_DOUBLE_COMPLEX] = { sizeof(long_double_complex), IS_COMPLEX, false,
                                 long_double_complex_apply },
    [FI_INT128] = { 16, IS_INTEGER, false, int128_apply },
    [FI_UINT128] = { 16, IS_INTEGER, false, uint128_apply },
};

static const struct type *type_of(enum fi_datatype datatype)
{
    static const struct type none = { .class = NONE };

    return (unsigned)datatype < sizeof types / sizeof *types ? &types[datatype] : &none;
}

/* ---------------------------------------------------------------- what there is */

size_t ivc_fi_atomic_size(enum fi_datatype datatype)
{
    return type_of(datatype)->size;
}

bool ivc_fi_atomic_is_native(enum fi_datatype datatype)
{
    return type_of(datatype)->native;
}

static bool has_meaning(enum class class, enum fi_op op)
{
    switch ((int)op) {
    case FI_BOR: case FI_BAND: case FI_BXOR: case FI_MSWAP:
        return class == IS_INTEGER;
    case FI_MIN: case FI_MAX:
    case FI_CSWAP_LE: case FI_CSWAP_LT: case FI_CSWAP_GE: case FI_CSWAP_GT:
        return class == IS_INTEGER || class == IS_REAL;
    default:
        return class != NONE;
    }
}

bool ivc_fi_atomic_valid(enum fi_datatype datatype, enum fi_op op, enum ivc_fi_atomic_mode mode)
{
    if ((unsigned)op > FI_MSWAP || !has_meaning(type_of(datatype)->class, op))
        return false;
    if (mode == IVC_FI_ATOMIC_COMPARE)
        return op >= FI_CSWAP;
    return op <= FI_BXOR || op == FI_ATOMIC_WRITE
           || (op == FI_ATOMIC_READ && mode == IVC_FI_ATOMIC_FETCH);
}

void ivc_fi_atomic_apply(enum fi_datatype datatype, enum fi_op op, void *target,
                         const void *operand, const void *compare, void *result, size_t count)
{
    type_of(datatype)->apply(op, target, operand, compare, result, count);
}

/* ---------------------------------------------------------------- what libfabric asks about it */

static int valid(enum fi_datatype datatype, enum fi_op op, enum ivc_fi_atomic_mode mode,
                 size_t *ret_count)
{
    if (!ivc_fi_atomic_valid(datatype, op, mode))
        return -FI_EOPNOTSUPP;
    *ret_count = IVC_FI_ATOMIC_MAX / ivc_fi_atomic_size(datatype);
    return 0;
}

int ivc_fi_atomic_writevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op op,
                             size_t *ret_count)
{
    (void)fid;
    return valid(datatype, op, IVC_FI_ATOMIC_BASE, ret_count);
}

int ivc_fi_atomic_readwritevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op op,
                                 size_t *ret_count)
{
    (void)fid;
    return valid(datatype, op, IVC_FI_ATOMIC_FETCH, ret_count);
}

int ivc_fi_atomic_compwritevalid(struct fid_ep *fid, enum fi_datatype datatype, enum fi_op op,
                                 size_t *ret_count)
{
    (void)fid;
    return valid(datatype, op, IVC_FI_ATOMIC_COMPARE, ret_count);
}

int ivc_fi_query_atomic(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op,
                        struct fi_atomic_attr *attr, uint64_t flags)
{
    enum ivc_fi_atomic_mode mode = IVC_FI_ATOMIC_BASE;

    (void)domain;
    if (flags & FI_TAGGED)
        return -FI_EOPNOTSUPP;
    if (flags & ~(uint64_t)(FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC))
        return -FI_EBADFLAGS;
    if (flags == (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC))
        return -FI_EINVAL;
    if (flags)
        mode = flags & FI_FETCH_ATOMIC ? IVC_FI_ATOMIC_FETCH : IVC_FI_ATOMIC_COMPARE;
    attr->size = ivc_fi_atomic_size(datatype);
    return valid(datatype, op, mode, &attr->count);
}
