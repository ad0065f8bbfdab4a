/*
 * For programs that open libfabric: what it loses itself is not looked for. (1.17 leaks a description for
 * each endpoint, a few bytes for each connection, and memory of its providers when they close.)
 */
#ifndef IVC_TESTS_LEAKS_H
#define IVC_TESTS_LEAKS_H

#if defined(__SANITIZE_ADDRESS__)
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfabric.so\n";
}
#endif

#endif
