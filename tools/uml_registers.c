/*
 * For user-mode Linux on processors with more registers than it knows of.  Loaded into it with LD_PRELOAD.
 *
 * Its kernel sets the vector registers of a process by ptrace() from a buffer of 2,696 bytes (Linux 6.1,
 * HOST_FP_SIZE).  A host whose processor has tile registers (Intel's AMX) has 11,008 bytes of them, refuses what is not
 * the whole (EFAULT), and the guest's first process is killed: "ptrace set fp regs failed, errno = 14".  Here such a
 * part is made a whole, with what does not lie in it in its initial state.  A guest's processes have nothing there: the
 * host gives tiles to who asks for them by arch_prctl(), which a guest's kernel does not pass on.
 *
 * Layout: Intel's manual, volume 1, chapter 13, "XSAVE area", standard format; the offsets are of cpuid leaf 13.
 *
 * Threads: one.  Only user-mode Linux's own thread traces, and its stack of 16 KiB has no room for such a buffer.
 */
#include <cpuid.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    WHOLE_MAX = 64 << 10,
    COMPONENTS_AT = 512,        /* a bit for each component that is not in its initial state */
    HEADER_END = 576,           /* the first two components lie in front of it */
};

typedef long ptrace_fn(enum __ptrace_request request, ...);

static char whole[WHOLE_MAX];

/* Of what lies in the first `len` bytes, a bit for each component. */
static uint64_t components_in(size_t len)
{
    uint64_t found = 3;
    unsigned size, offset, c, d;

    for (unsigned i = 2; i < 63; i++)
        if (__get_cpuid_count(13, i, &size, &offset, &c, &d) && size > 0 && (size_t)offset + size <= len)
            found |= UINT64_C(1) << i;
    return found;
}

/* Bytes of all registers of the process, 0 when it does not tell. */
static size_t whole_size(ptrace_fn *next, pid_t pid)
{
    struct iovec iov = { whole, sizeof whole };

    return next(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &iov) < 0 ? 0 : iov.iov_len;
}

/* Tries the part as it is until that was refused once. */
static long set_registers(ptrace_fn *next, pid_t pid, struct iovec *part)
{
    static size_t part_size, size;      /* of a part that was refused, 0: none was; of the whole */
    static uint64_t mask;
    struct iovec iov = { whole, 0 };
    uint64_t components;

    if (part_size == 0 || part->iov_len != part_size) {
        long r = next(PTRACE_SETREGSET, pid, NT_X86_XSTATE, part);

        if (r >= 0 || errno != EFAULT)
            return r;
        size = whole_size(next, pid);
        if (part->iov_len < HEADER_END || part->iov_len >= size) {
            errno = EFAULT;
            return r;
        }
        part_size = part->iov_len;
        mask = components_in(part_size);
        memset(whole, 0, sizeof whole);
    }
    memcpy(whole, part->iov_base, part_size);
    memcpy(&components, whole + COMPONENTS_AT, sizeof components);
    components &= mask;
    memcpy(whole + COMPONENTS_AT, &components, sizeof components);
    iov.iov_len = size;
    return next(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &iov);
}

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_fn *next;
    va_list list;
    pid_t pid;
    void *addr, *data;

    va_start(list, request);
    pid = va_arg(list, pid_t);
    addr = va_arg(list, void *);
    data = va_arg(list, void *);
    va_end(list);
    if (!next)
        next = (ptrace_fn *)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && addr == (void *)NT_X86_XSTATE)
        return set_registers(next, pid, data);
    return next(request, pid, addr, data);
}
