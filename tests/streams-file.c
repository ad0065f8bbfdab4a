/* Windows: the file itself. */
#include "streams.h"

const char *stage_region(const char *path)
{
    return path;
}

void stage_member(uint32_t client_id)
{
    (void)client_id;
}
