/*
 * Copying many bytes between memory that another processor has just written, or will read at once,
 * and memory of our own.
 *
 * There are several ways: plain moves, whose loads wait for several lines at once, and the processor's string
 * instruction, which fetches no line that it is going to overwrite as a whole.  Either was seen to be
 * three times as fast as the other: it depends on the processor, on how far from each other the two are, and
 * on whose cache the lines lie in (docs/performance.md).  Word by word is slower than both, but where the
 * processor is emulated, and each vector is two words with a detour.  All of that is unknown here and may
 * change at any time, since the host moves its guests' processors.  So all are timed, a few copies of each, now
 * and then, by side and length; in between the fastest one is taken.  One more, past our cache, concerns
 * the reader as well (channel/fill.h).
 *
 * What no timing of single copies finds: on some processors (an Intel Xeon) lines that the string instruction has
 * stored, and that were read while the next ones were stored, take twice as long when they come round again to be
 * stored, in any way.  A reader so quick that it waits for each packet then has to wait again, and so it stays.  So
 * who sees such a reader asks for plain moves.  And on others (EPYCs of families 25 and 26) lines that the string
 * instruction has read right behind their writer take twice to five times as long when that stores into them again, in
 * any way: it is slower then, so the reader stays right behind it, and so it stays.  So to read with, it has to be
 * faster than plain moves by a third; but for lines that were written far away, or that are among few which come round
 * again at once, where that was not seen.  (On family 25 always: there it was not looked for where.)
 */
#include "base/copy.h"

#include "base/atomics.h"
#include "base/processor.h"
#include "base/timed.h"

enum { MOVES = 8 };             /* in a row */

/* Vectors of 16 bytes at any address: every x86-64 and ARMv8 processor has registers for them. */
typedef uint64_t vector __attribute__((vector_size(16), aligned(1), may_alias));

/* Loads all before it stores any: so many lines are on their way at once.  Not to be made a call of
 * memcpy() by the compiler, which knows such loops. */
#define COPY_BLOCKS(type, to, from, n_blocks)                                   \
    for (; n_blocks > 0; n_blocks--, to += MOVES * sizeof(type), from += MOVES * sizeof(type)) {    \
        const type *in_ = (const type *)from;                                   \
        type *out_ = (type *)to;                                                \
        type a_ = in_[0], b_ = in_[1], c_ = in_[2], d_ = in_[3];                \
        type e_ = in_[4], f_ = in_[5], g_ = in_[6], h_ = in_[7];                \
                                                                                \
        out_[0] = a_, out_[1] = b_, out_[2] = c_, out_[3] = d_;                 \
        out_[4] = e_, out_[5] = f_, out_[6] = g_, out_[7] = h_;                 \
    }

__attribute__((optimize("no-tree-loop-distribute-patterns")))
static void copy_blocks(char *to, const char *from, size_t n_blocks)
{
    COPY_BLOCKS(vector, to, from, n_blocks);
}

static void copy_by_vectors(char *to, const char *from, size_t n)
{
    enum { BLOCK = MOVES * sizeof(vector) };

    copy_blocks(to, from, n / BLOCK);
    memcpy(to + n / BLOCK * BLOCK, from + n / BLOCK * BLOCK, n % BLOCK);
}

#if defined(__x86_64__)

/* Half as many stores as of 16 bytes, which come one after the other where each line has to be taken from another
 * cache. */
typedef uint64_t wide_vector __attribute__((vector_size(32), aligned(1), may_alias));

__attribute__((target("avx"), optimize("no-tree-loop-distribute-patterns")))
static void copy_wide_blocks(char *to, const char *from, size_t n_blocks)
{
    COPY_BLOCKS(wide_vector, to, from, n_blocks);
}

static void copy_by_moves(char *to, const char *from, size_t n)
{
    enum { BLOCK = MOVES * sizeof(wide_vector) };

    if (!__builtin_cpu_supports("avx")) {
        copy_by_vectors(to, from, n);
        return;
    }
    copy_wide_blocks(to, from, n / BLOCK);
    memcpy(to + n / BLOCK * BLOCK, from + n / BLOCK * BLOCK, n % BLOCK);
}

#else

static void copy_by_moves(char *to, const char *from, size_t n)
{
    copy_by_vectors(to, from, n);
}

#endif

#if defined(__x86_64__)

#include <emmintrin.h>

enum {
    LINE = 64,
    TRIES = 4,                  /* of each way, in turn */
    LENGTHS = 6,                /* from 2, 4, 8, 16, 32 and 64 KiB on */
    PAUSE_MIN = 32,             /* copies between two comparisons; doubled while the answer is the same */
    PAUSE_MAX = 1024,
};

enum way { BY_MOVES, BY_STRING, BY_WORDS, WAYS };

/* Comparisons, after which BY_WORDS is left out: whether the processor is emulated stays as it is. */
enum { LOST_MAX = 4 };

struct choice {
    ivc_atomic_u32 copies;      /* left until the next comparison */
    ivc_atomic_u32 way;         /* the fastest one */
    atomic_flag comparing;      /* a thread does, and has what follows */
    uint32_t pause;             /* between two comparisons */
    uint32_t tries;             /* of this comparison */
    uint32_t lost;              /* comparisons, one after the other, that BY_WORDS did not win */
    struct ivc_timed timed[WAYS];
    uint32_t cycles[WAYS];      /* for 4 KiB */
};

/* Of all threads: what each of them would need for itself does not fit into the little room that libraries
 * loaded later share (base/chain.c), when two adapters are in one process. */
static struct choice choices[IVC_COPY_SIDES][LENGTHS];

/* From a line's beginning: elsewhere some processors take sixteen times as long.  In words: as fast as in bytes where the
 * processor has a fast way for either, and five times as fast where it is emulated. */
static void copy_by_string(char *to, const char *from, size_t n)
{
    size_t lead = -(uintptr_t)to % LINE, words = (n - lead) / 8, rest = (n - lead) % 8;

    memcpy(to, from, LINE);
    to += lead, from += lead;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
    memcpy(to, from, rest);
}

/* Volatile: else the compiler makes vectors of them, or a call of memcpy(). */
typedef volatile uint64_t word __attribute__((aligned(1), may_alias));

static void copy_by_words(char *to, const char *from, size_t n)
{
    size_t blocks = n / LINE;
    word *out = (word *)to;
    const word *in = (const word *)from;

    for (size_t i = 0; i < blocks; i++, in += 8, out += 8) {
        out[0] = in[0], out[1] = in[1], out[2] = in[2], out[3] = in[3];
        out[4] = in[4], out[5] = in[5], out[6] = in[6], out[7] = in[7];
    }
    memcpy(to + blocks * LINE, from + blocks * LINE, n % LINE);
}

static void copy_by(uint32_t way, char *to, const char *from, size_t n)
{
    switch (way) {
    case BY_STRING: copy_by_string(to, from, n); break;
    case BY_WORDS: copy_by_words(to, from, n); break;
    default: copy_by_moves(to, from, n);
    }
}

/* Whether copying by the string instruction may cost the writer what is not seen here. */
static bool is_doubtful(enum ivc_copy_side side)
{
    return side == IVC_COPY_OUT || (side != IVC_COPY_IN && ivc_processor_is_amd_25());
}

/* Relaxed, all of it: which way another thread takes meanwhile, and how often, does not matter. */
static void decide(struct choice *choice, enum ivc_copy_side side, uint32_t ways)
{
    uint32_t last = ivc_load_relaxed(&choice->way), way = last;
    bool same;

    if (is_doubtful(side))
        choice->cycles[BY_STRING] += choice->cycles[BY_STRING] / 2;
    for (uint32_t i = 0; i < ways; i++)
        way = choice->cycles[i] < choice->cycles[way] ? i : way;
    if (!ivc_timed_is_better(choice->cycles[way], choice->cycles[last]))
        way = last;
    choice->lost = way == BY_WORDS ? 0 : choice->lost + 1;
    choice->tries = 0;
    same = way == last;
    choice->pause = ivc_timed_pause(choice->pause, same, PAUSE_MIN, PAUSE_MAX);
    ivc_store_relaxed(&choice->way, way);
    ivc_store_relaxed(&choice->copies, choice->pause);
}

static void compare(struct choice *choice, enum ivc_copy_side side, char *to, const char *from, size_t n)
{
    uint32_t ways = choice->lost < LOST_MAX ? WAYS : BY_WORDS;
    uint32_t way = choice->tries++ % ways;
    uint64_t start = ivc_cycles();

    copy_by(way, to, from, n);
    if (ivc_timed_add(&choice->timed[way], TRIES, ivc_cycles() - start, n, &choice->cycles[way])
        && way == ways - 1)
        decide(choice, side, ways);
}

/* Stores that leave no line in our cache: the processor puts whole lines together and writes them to memory. */
static void copy_past(char *to, const char *from, size_t n)
{
    size_t lead = -(uintptr_t)to % LINE;

    memcpy(to, from, lead);
    to += lead, from += lead, n -= lead;
    for (; n >= LINE; n -= LINE, to += LINE, from += LINE) {
        const __m128i *in = (const __m128i *)from;
        __m128i *out = (__m128i *)to;
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);

        _mm_stream_si128(out, a), _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c), _mm_stream_si128(out + 3, d);
    }
    memcpy(to, from, n);
    _mm_sfence();       /* such stores are not ordered by a release that follows */
}

static struct choice *choice_for(enum ivc_copy_side side, size_t n)
{
    unsigned length = 63 - (unsigned)__builtin_clzll(n / IVC_COPY_LONG);

    return &choices[side][IVC_MIN(length, LENGTHS - 1)];
}

void ivc_copy_long(enum ivc_copy_side side, char *to, const char *from, size_t n)
{
    struct choice *choice;
    uint32_t copies;

    if (side == IVC_COPY_PAST) {
        copy_past(to, from, n);
        return;
    }
    if (side == IVC_COPY_IN_PLAIN) {
        copy_by_moves(to, from, n);
        return;
    }
    choice = choice_for(side, n);
    copies = ivc_load_relaxed(&choice->copies);
    /* Acquire and release: the last comparison's thread has done with it. */
    if (copies == 0 && !atomic_flag_test_and_set_explicit(&choice->comparing, memory_order_acquire)) {
        compare(choice, side, to, from, n);
        atomic_flag_clear_explicit(&choice->comparing, memory_order_release);
        return;
    }
    if (copies > 0)
        ivc_store_relaxed(&choice->copies, copies - 1);
    copy_by(ivc_load_relaxed(&choice->way), to, from, n);
}

#else

void ivc_copy_long(enum ivc_copy_side side, char *to, const char *from, size_t n)
{
    (void)side;
    copy_by_moves(to, from, n);
}

#endif
