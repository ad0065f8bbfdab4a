/*
 * Chained signal handlers: a synchronous fault that is ours is dealt with, any other goes to
 * whoever had the signal before, as if we were not there.
 *
 * Several copies of this library may be in one process, and the application and its MPI have
 * handlers of their own; so a chain is only taken out of the process when nobody came after it.
 * When somebody did, it stays and passes everything on (and the file that it lies in is kept from
 * being unloaded).
 */
#ifndef IVC_BASE_CHAIN_H
#define IVC_BASE_CHAIN_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* Whether the fault was ours and the instruction is to be tried again.  Runs as a signal
 * handler. */
typedef bool ivc_chain_fn(const siginfo_t *info);

/* SIGSEGV or SIGBUS; `fn` is the same for all calls with this signal.  Counted. */
int ivc_chain_add(int signal, ivc_chain_fn *fn);
void ivc_chain_remove(int signal);
/* Somebody may have taken the signal since, without passing on what is not his: then we take it again.
 * To be called now and then. */
void ivc_chain_renew(int signal);

/* Starts a thread of the library.  The application's signals are the application's: the thread
 * takes none of them but those that it causes itself, because a fault while its signal is
 * blocked ends the process.  Returns what pthread_create() does. */
int ivc_thread_start(pthread_t *ret_thread, void *(*fn)(void *arg), void *arg);

#endif
