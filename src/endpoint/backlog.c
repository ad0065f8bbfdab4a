/* Packets kept in private memory: see backlog.h. */
#include "endpoint/backlog.h"

#include "base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ivc_backlog_add(struct ivc_backlog *backlog, uint64_t at, uint8_t tag, const struct iovec *iov,
                    unsigned n_iov)
{
    struct ivc_kept *kept;
    size_t len = 0, end = 0;

    for (unsigned i = 0; i < n_iov; i++)
        len += iov[i].iov_len;
    kept = malloc(sizeof *kept + len);
    if (!kept)
        return ivc_error_set(-ENOMEM, "out of memory for packets that the peer has not read");
    *kept = (struct ivc_kept){ .at = at, .len = (uint32_t)len, .tag = tag };
    for (unsigned i = 0; i < n_iov; end += iov[i].iov_len, i++)
        memcpy(kept->bytes + end, iov[i].iov_base, iov[i].iov_len);
    if (backlog->last)
        backlog->last->next = kept;
    else
        backlog->first = kept;
    backlog->last = kept;
    backlog->packets++;
    backlog->bytes += len;
    return 0;
}

void ivc_backlog_drop_first(struct ivc_backlog *backlog)
{
    struct ivc_kept *kept = backlog->first;

    backlog->first = kept->next;
    if (!backlog->first)
        backlog->last = NULL;
    backlog->packets--;
    backlog->bytes -= kept->len;
    free(kept);
}

void ivc_backlog_free(struct ivc_backlog *backlog)
{
    while (backlog->first)
        ivc_backlog_drop_first(backlog);
}
