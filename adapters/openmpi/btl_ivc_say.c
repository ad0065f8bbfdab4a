/*
 * Messages to people: one line, once per node and subject, from whichever rank is first.
 *
 * The ranks of a node agree through a file in the job's session directory, which Open MPI removes
 * at the end; where there is none the first rank of the node speaks.
 */
#include "btl_ivc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "opal/mca/pmix/pmix.h"
#include "opal/util/proc.h"

static bool first_to_say(const char *subject)
{
    char path[512];
    int fd;

    if (opal_process_info.job_session_dir == NULL)
        return opal_process_info.my_local_rank == 0;
    snprintf(path, sizeof path, "%s/ivc-said-%s", opal_process_info.job_session_dir, subject);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno != EEXIST && opal_process_info.my_local_rank == 0;
    close(fd);
    return true;
}

void ivc_btl_say(const char *subject, const char *format, ...)
{
    char line[1024];
    va_list args;

    if (!first_to_say(subject))
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "ivc: %s\n", line);
}

void ivc_btl_end_job(const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "ivc: rank %u on host %s: %s\n", OPAL_PROC_MY_NAME.vpid, opal_process_info.nodename, line);
    if (opal_pmix.abort != NULL)
        (void) opal_pmix.abort(EXIT_FAILURE, "ivc: IVC_REQUIRE=memory", NULL);
    _exit(EXIT_FAILURE);
}
