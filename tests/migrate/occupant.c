/* A member that is no rank: see occupant.h. */
#include "occupant.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"
#include "region/region.h"

static int occupy(void *arg)
{
    struct occupant *occupant = arg;
    struct ivc_identity identity = { .magic_id = 77 };
    struct ivc_region *region;
    void *piece;

    setenv("IVC_VM", occupant->vm, 1);
    CHECK_THAT(ivc_region_open(occupant->region, &region) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_region_join(region, &identity) == 0, "%s", ivc_error_text());
    while (occupant->all && ivc_region_lend(region, 4096, &piece) == 0)
        ;
    ivc_store_release(occupant->word, 1);
    while (ivc_load_acquire(occupant->word) == 1)
        ivc_sleep_ms(5);
    ivc_region_leave(region);
    ivc_region_free(region);
    return 0;
}

void occupant_start(struct occupant *occupant)
{
    occupant->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(occupant->word != MAP_FAILED);
    occupant->pid = check_fork(occupy, occupant);
    while (ivc_load_acquire(occupant->word) != 1)
        CHECK(waitpid(occupant->pid, NULL, WNOHANG) == 0);
}

void occupant_end(struct occupant *occupant)
{
    ivc_store_release(occupant->word, 2);
    check_join(occupant->pid);
}
