/*
 * Errors: a negative errno or a positive answer, plus one line of text.
 *
 * Functions return 0, a negative errno (something failed), or one of the
 * positive IVC_E_ answers below (nothing failed; the caller has to act).  The
 * function that detects a fault also writes the line a person needs: what,
 * where, what to try.  The line is kept per thread until the next fault.
 * The library prints nothing by itself.
 */
#ifndef IVC_BASE_ERROR_H
#define IVC_BASE_ERROR_H

enum {
    IVC_E_FULL = 1,     /* no room now; call progress and try again */
    IVC_E_UNREACHABLE,  /* this peer shares no memory with us and there is no other path */
    IVC_E_NOSPACE,      /* the region has no memory left for this; use another path */
    IVC_E_GONE,         /* the peer has left or died */
    IVC_E_NOREGION,     /* nothing found to share memory through */
    IVC_E_TIMEOUT,      /* the time given is over */
};

/* Writes the line for this thread and returns `code`, so that a fault is one statement. */
int ivc_error_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The line of this thread's last fault; "" when there was none.  Valid until the next fault. */
const char *ivc_error_text(void);

/* What an errno says; of a limit on open files, which one it is and what to try.  Valid until the thread's next call. */
const char *ivc_error_of(int error);

/* A short fixed text for a code: errno's own for a negative one. */
const char *ivc_error_name(int code);

#endif
