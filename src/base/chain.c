/* Chained signal handlers: see chain.h. */
#include "base/chain.h"

#include "base/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct chain {
    int signal;
    _Atomic(ivc_chain_fn *) fn;
    struct sigaction before;    /* written before ours is there; one for a single use is taken out */
    struct sigaction later;     /* of somebody who took the signal after us: is passed on to first */
    bool has_later;
    unsigned users;             /* under `lock` */
    bool installed;             /* under `lock`; it may be behind handlers that came later */
};

static struct chain chains[] = { { .signal = SIGSEGV }, { .signal = SIGBUS } };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* This thread's fault is with those who came later: should it come back to us, they have passed it on
 * to whom they found, and it goes on to those of before. */
static _Thread_local volatile sig_atomic_t passing __attribute__((tls_model("initial-exec")));

static struct chain *chain_of(int number)
{
    return number == SIGSEGV ? &chains[0] : &chains[1];
}

/* As the kernel would: the default action is taken when the instruction faults again, or when the
 * signal that somebody sent is sent again. */
static void default_action(int number, const siginfo_t *info)
{
    struct sigaction plain = { .sa_handler = SIG_DFL };

    sigaction(number, &plain, NULL);
    if (info->si_code <= 0)
        syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), number);
}

/* With the signals blocked that it asked for, as the kernel does. */
static void call(const struct sigaction *action, int number, siginfo_t *info, void *context)
{
    sigset_t mask = action->sa_mask, old;

    if (!(action->sa_flags & SA_NODEFER))
        sigaddset(&mask, number);
    pthread_sigmask(SIG_BLOCK, &mask, &old);
    if (action->sa_flags & SA_SIGINFO)
        action->sa_sigaction(number, info, context);
    else
        action->sa_handler(number);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void pass_on(struct chain *chain, int number, siginfo_t *info, void *context)
{
    struct sigaction before = chain->before;
    bool plain = !(before.sa_flags & SA_SIGINFO);

    if (chain->has_later && !passing) {
        passing = 1;
        call(&chain->later, number, info, context);
        passing = 0;
        return;
    }

    if (plain && before.sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    if (plain && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)) {
        default_action(number, info);   /* nobody can ignore a fault of his own */
        return;
    }
    if (before.sa_flags & SA_RESETHAND)
        chain->before = (struct sigaction){ .sa_handler = SIG_DFL };
    call(&before, number, info, context);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct chain *chain = chain_of(number);
    int saved = errno;
    /* Acquire: pairs with the release in ivc_chain_add(); `before` is visible to pass_on(). */
    ivc_chain_fn *fn = atomic_load_explicit(&chain->fn, memory_order_acquire);
    bool ours = info->si_code > 0 && fn(info);

    errno = saved;
    if (!ours)
        pass_on(chain, number, info, context);
}

/* On the thread's own signal stack if it has one, and without blocking the signal: a handler of before
 * that jumps out of the fault does not leave it blocked. */
static struct sigaction own_action(void)
{
    struct sigaction action = { .sa_sigaction = on_fault,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

    sigemptyset(&action.sa_mask);
    return action;
}

static bool is_own(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_fault;
}

/* Some libraries take the signals when they are loaded and pass nothing on (libpsm2, which libfabric
 * brings along).  They are put behind us. */
static void renew(struct chain *chain)
{
    struct sigaction action = own_action(), now;

    if (sigaction(chain->signal, NULL, &now) < 0 || is_own(&now))
        return;
    if (!chain->has_later || chain->later.sa_sigaction != now.sa_sigaction) {
        chain->later = now;
        chain->has_later = (now.sa_flags & SA_SIGINFO)
                           || (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
    }
    (void)sigaction(chain->signal, &action, NULL);
}

void ivc_chain_renew(int number)
{
    struct chain *chain = chain_of(number);

    pthread_mutex_lock(&lock);
    if (chain->users > 0)
        renew(chain);
    pthread_mutex_unlock(&lock);
}

static void take_lock(void)
{
    pthread_mutex_lock(&lock);
}

static void give_lock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Helper threads hold the lock ten times a second.  A child in which none of them lives must find it
 * free. */
static void keep_lock_from_children(void)
{
    (void)pthread_atfork(take_lock, give_lock, give_lock);
}

int ivc_chain_add(int number, ivc_chain_fn *fn)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct sigaction action = own_action();
    struct chain *chain = chain_of(number);
    int r = 0;

    pthread_once(&once, keep_lock_from_children);
    pthread_mutex_lock(&lock);
    if (chain->installed) {
        renew(chain);
    } else {
        /* Read first, so that it is there for the handler's first fault. */
        r = sigaction(number, NULL, &chain->before);
        /* Release: pairs with the acquire in on_fault().  (The kernel orders this as well: a thread
         * comes there only after the handler was installed, or there was one already.) */
        atomic_store_explicit(&chain->fn, fn, memory_order_release);
        if (r == 0)
            r = sigaction(number, &action, NULL);
        if (r < 0)
            r = ivc_error_set(-errno, "cannot catch signal %d: %s", number, strerror(errno));
        chain->installed = r == 0;
    }
    chain->users += r == 0;
    pthread_mutex_unlock(&lock);
    return r;
}

/* Somebody's handler will call ours for ever: it must stay where it is. */
static void pin_this_file(void)
{
    Dl_info where;

    if (dladdr((void *)(uintptr_t)on_fault, &where) && where.dli_fname)
        (void)dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

void ivc_chain_remove(int number)
{
    struct chain *chain = chain_of(number);
    struct sigaction now;

    pthread_mutex_lock(&lock);
    if (--chain->users == 0) {
        if (sigaction(number, NULL, &now) == 0 && is_own(&now)) {
            sigaction(number, chain->has_later ? &chain->later : &chain->before, NULL);
            chain->installed = chain->has_later;    /* it may call ours */
            if (chain->has_later)
                pin_this_file();
        } else {
            pin_this_file();
        }
    }
    pthread_mutex_unlock(&lock);
}

int ivc_thread_start(pthread_t *ret_thread, void *(*fn)(void *arg), void *arg)
{
    static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    sigset_t all, old;
    int r;

    sigfillset(&all);
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(ret_thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}
