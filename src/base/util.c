/* Small things that every layer uses: see util.h. */
#include "base/util.h"

#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

uint64_t ivc_random_id(void)
{
    uint64_t value = 0;

    if (getrandom(&value, sizeof value, 0) != sizeof value || value == 0)
        value = ivc_now_ns() | 1;
    return value;
}

static uintptr_t page_size(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

void ivc_take_pages(void *memory, size_t size)
{
#ifdef MADV_POPULATE_WRITE
    uintptr_t begin = (uintptr_t)memory & ~(page_size() - 1);

    (void)madvise((void *)begin, (uintptr_t)memory + size - begin, MADV_POPULATE_WRITE);
#else
    (void)memory, (void)size;
#endif
}

/* A compiler may make a load of a swap that changes nothing. */
static void store_what_is_there(unsigned char *byte)
{
#if defined(__x86_64__)
    __asm__ volatile("lock orb $0, %0" : "+m"(*byte) : : "cc");
#else
    (void)__atomic_fetch_or(byte, 0, __ATOMIC_RELAXED);
#endif
}

void ivc_touch_pages(void *memory, size_t size)
{
    uintptr_t page = page_size(), end = (uintptr_t)memory + size;

    for (uintptr_t at = (uintptr_t)memory; at < end; at = (at & ~(page - 1)) + page)
        store_what_is_there((unsigned char *)at);
}

uint64_t ivc_hash(uint64_t hash, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

uint64_t ivc_hash_text(const char *text)
{
    return ivc_hash(IVC_HASH_START, text, strlen(text));
}

static int size_unit(const char *unit, uint64_t *ret_shift)
{
    static const char letters[] = "KMG";
    const char *at = *unit ? strchr(letters, *unit & ~0x20) : NULL;

    if (*unit == '\0') {
        *ret_shift = 0;
        return 0;
    }
    if (!at || (unit[1] != '\0' && strcmp(unit + 1, "iB") != 0))
        return -EINVAL;
    *ret_shift = 10 * (uint64_t)(at - letters + 1);
    return 0;
}

static int read_digits(const char *text, uint64_t *ret_value, const char **ret_rest)
{
    char *end;

    errno = 0;
    *ret_value = strtoull(text, &end, 10);
    *ret_rest = end;
    return errno || !isdigit((unsigned char)*text) ? -EINVAL : 0;
}

int ivc_env_size(const char *name, uint64_t min, uint64_t max, uint64_t *ret_value)
{
    const char *text = getenv(name), *unit;
    uint64_t value, shift;

    if (!text || !*text)
        return 0;
    if (read_digits(text, &value, &unit) < 0 || size_unit(unit, &shift) < 0
        || value > UINT64_MAX >> shift || value << shift < min || value << shift > max)
        return ivc_error_set(-EINVAL, "%s=%s is not a size from %" PRIu64 " to %" PRIu64
                             " bytes; write a number, perhaps with K, M or G", name, text, min, max);
    *ret_value = value << shift;
    return 0;
}

int ivc_env_number(const char *name, const char *unit, uint64_t min, uint64_t max,
                   uint64_t *ret_value)
{
    const char *text = getenv(name), *rest;
    uint64_t value;

    if (!text || !*text)
        return 0;
    if (read_digits(text, &value, &rest) < 0 || *rest || value < min || value > max)
        return ivc_error_set(-EINVAL, "%s=%s is not a number of %s from %" PRIu64 " to %" PRIu64,
                             name, text, unit, min, max);
    *ret_value = value;
    return 0;
}

int ivc_descriptors_check(unsigned n)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : 0;

    if (r == 0 && n > 1)
        r = ivc_descriptors_check(n - 1);
    else if (r == -EMFILE || r == -ENFILE)
        ivc_error_set(r, "few files can still be opened, and MPI and the network need some: %s", ivc_error_of(-r));
    else
        r = 0;
    ivc_close_p(&fd);
    return r;
}

int ivc_env_word(const char *name, const char *const *words, unsigned *ret_index)
{
    const char *text = getenv(name);
    char all[128] = "";
    size_t len = 0;
    unsigned i = 0;

    if (text && *text) {
        while (words[i] && strcmp(words[i], text) != 0)
            i++;
    }
    if (words[i]) {
        *ret_index = i;
        return 0;
    }
    for (i = 0; words[i] && len < sizeof all; i++)
        len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", i > 0 ? " or " : "", words[i]);
    return ivc_error_set(-EINVAL, "%s=%s: it is %s", name, text, all);
}

bool ivc_env_is_on(const char *name)
{
    const char *text = getenv(name);

    return text && *text && strcmp(text, "0") != 0;
}

/* Without stdio, which takes memory: the helper threads come here all the time, and a process may fork
 * at any moment. */
bool ivc_cycles_are_dear(void)
{
    enum { LOOKS = 8, DEAR = 1000 };    /* a processor's own answer takes 20 to 100 */
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < LOOKS; i++) {
        uint64_t start = ivc_cycles();

        least = IVC_MIN(least, ivc_cycles() - start);
    }
    return least >= DEAR;
}

int ivc_read_line(const char *path, char *ret_line, size_t size)
{
    IVC_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret_line, size - 1);

    if (n < 0)
        return -errno;
    if (n == 0)
        return -EIO;
    ret_line[n] = '\0';
    ret_line[strcspn(ret_line, "\n")] = '\0';
    return 0;
}

void ivc_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool ivc_wait_for_flag(pthread_cond_t *cond, pthread_mutex_t *lock, const bool *flag, unsigned ms)
{
    uint64_t end = ivc_now_ns() + ms * (uint64_t)1000000;
    struct timespec until = { (time_t)(end / 1000000000u), (long)(end % 1000000000u) };
    bool set;

    pthread_mutex_lock(lock);
    while (!*flag && pthread_cond_timedwait(cond, lock, &until) == 0)
        ;
    set = *flag;
    pthread_mutex_unlock(lock);
    return set;
}

void ivc_set_flag(pthread_cond_t *cond, pthread_mutex_t *lock, bool *flag)
{
    pthread_mutex_lock(lock);
    *flag = true;
    pthread_cond_signal(cond);
    pthread_mutex_unlock(lock);
}
