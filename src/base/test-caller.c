/* Tests of who calls: functions of these names stand in for an MPI library's, whose names are all that counts. */
#include "check.h"

#include "base/caller.h"

static struct ivc_callers callers;

/* Exported, as an MPI's are. What is done after the call keeps it from being a jump, and one function from being taken
 * for another: they are alike. */
#define STAND_IN(name, inner)                                               \
    __attribute__((noinline, visibility("default"))) bool name(void);       \
    bool name(void)                                                         \
    {                                                                       \
        bool looks = inner;                                                 \
                                                                            \
        __asm__ volatile("# " #name);                                       \
        return looks;                                                       \
    }

STAND_IN(progress, ivc_caller_only_looks(&callers))
STAND_IN(PMPI_Test, progress())
STAND_IN(MPI_Iprobe, progress())
STAND_IN(MPI_Wait, progress())
STAND_IN(MPI_Tester, progress())        /* a program's */
STAND_IN(PMPI_Recv, PMPI_Test())        /* one that is made of another */

STAND_IN(attaches, ivc_caller_is_below("Win_attach"))
STAND_IN(PMPI_Win_attach, attaches())
STAND_IN(MPI_Win_create, attaches())

static void test_below(void)
{
    CHECK(!attaches());
    CHECK(PMPI_Win_attach());
    CHECK(!MPI_Win_create());
}

static void test_names(void)
{
    for (unsigned round = 0; round < 3; round++) {      /* by name, and then as remembered */
        CHECK(!progress());
        CHECK(PMPI_Test());
        CHECK(MPI_Iprobe());
        CHECK(!MPI_Wait());
        CHECK(!MPI_Tester());
        CHECK(PMPI_Recv());
    }
}

static const struct check_case cases[] = {
    { "by the names on the stack", test_names, 0 },
    { "below a certain call", test_below, 0 },
};
CHECK_MAIN(cases)
