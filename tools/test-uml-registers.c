/* Test of uml_registers.c: a part of a process's registers is set, where the host takes only all of them. */
#include "check.h"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum {
    SSE_END = 576,              /* the registers that are always there, and the area's header */
    XMM15_AT = 160 + 15 * 16,
    GOOD = 7, SET = 0x5a, BEFORE = 0x11,
};

static unsigned char registers[64 << 10];

/* The kernel's answer, without uml_registers.c. */
static long bare_ptrace(int request, pid_t pid, struct iovec *iov)
{
    return syscall(SYS_ptrace, request, pid, NT_X86_XSTATE, iov);
}

/* Stops with a pattern in a register, and ends with GOOD when it finds the other one there.  All within one piece of
 * assembly: what the compiler does between two has the register, too. */
__attribute__((noreturn)) static void child(void)
{
    unsigned char pattern[16], found[16];

    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    memset(pattern, BEFORE, sizeof pattern);
    __asm__ volatile("movdqu %1, %%xmm15\n\tint3\n\tmovdqu %%xmm15, %0"
                     : "=m"(found) : "m"(pattern) : "xmm15", "memory");
    memset(pattern, SET, sizeof pattern);
    _exit(memcmp(pattern, found, sizeof found) == 0 ? GOOD : 1);
}

static void test_part(void)
{
    pid_t pid = fork();
    struct iovec iov = { registers, sizeof registers };
    int status;

    if (pid == 0)
        child();
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    if (bare_ptrace(PTRACE_GETREGSET, pid, &iov) < 0 || iov.iov_len <= SSE_END)
        check_skip("the processor has no more registers than those of SSE");
    CHECK(registers[XMM15_AT] == BEFORE && registers[XMM15_AT + 15] == BEFORE);
    memset(registers + XMM15_AT, SET, 16);
    iov.iov_len = SSE_END;
    CHECK(bare_ptrace(PTRACE_SETREGSET, pid, &iov) < 0 && errno == EFAULT);
    /* Twice: what is found out the first time is used the second. */
    for (int i = 0; i < 2; i++) {
        iov = (struct iovec){ registers, SSE_END };
        CHECK(ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &iov) == 0);
    }
    CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    CHECK_THAT(WEXITSTATUS(status) == GOOD, "status %x", (unsigned)status);
}

/* Other errors stay what they were. */
static void test_refused(void)
{
    struct iovec iov = { registers, SSE_END };

    CHECK(ptrace(PTRACE_SETREGSET, getpid(), NT_X86_XSTATE, &iov) < 0 && errno == ESRCH);
}

static const struct check_case cases[] = {
    { "a part of the registers is set", test_part, 0 },
    { "a process that is not traced", test_refused, 0 },
};
CHECK_MAIN(cases)
