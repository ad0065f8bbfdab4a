// ivc_sc07.h is C++ as well, and beside ivc.h in another file.
#include <ivc_sc07.h>

bool cxx_sc07_is_nobody(ivc_ctx *ctx)
{
    ivc_peer *peers = ivc_get_hosts(ctx);

    return !peers || ivc_connect(ctx, peers[0]).id < 0;
}
