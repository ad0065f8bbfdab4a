/* The launcher's variables: see launcher.h. */
#include "base/launcher.h"

#include <stdlib.h>
#include <string.h>

/* Hydra's, Open MPI 4's, and PMIx's. */
static const char *const rank_variables[] = { "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK" };

/* PMIx's, Open MPI 4's, Slurm's, PBS's, LSF's, Grid Engine's: the launcher's own before those of batch systems, in which
 * one job may start several of MPI. */
static const char *const job_variables[] = {
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID",
};

bool ivc_launcher_rank(uint32_t *ret_rank)
{
    for (unsigned i = 0; i < sizeof rank_variables / sizeof *rank_variables; i++) {
        const char *value = getenv(rank_variables[i]);
        size_t digits = value ? strspn(value, "0123456789") : 0;

        if (digits > 0 && digits < 10 && !value[digits]) {
            *ret_rank = (uint32_t)strtoul(value, NULL, 10);
            return true;
        }
    }
    return false;
}

const char *ivc_launcher_job(void)
{
    for (unsigned i = 0; i < sizeof job_variables / sizeof *job_variables; i++) {
        const char *value = getenv(job_variables[i]);

        if (value && *value)
            return value;
    }
    return NULL;
}
