/* The clock for patience: see machine.h. */
#include "machine.h"

#include "base/util.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LOOK_MS = 500 };

/* Ticks of all processors since the machine started: all, and those in which they worked. */
static void read_machine(uint64_t *ret_total, uint64_t *ret_busy)
{
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft = 0;
    unsigned long long steal = 0;
    FILE *file = fopen("/proc/stat", "re");

    if (file && fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system,
                       &idle, &io, &irq, &soft, &steal) != 8)
        user = 0;
    if (file)
        fclose(file);
    *ret_busy = user + nice + system + irq + soft + steal;
    *ret_total = *ret_busy + idle + io;
}

static uint64_t ticks_of(pid_t pid)
{
    unsigned long long user = 0, system = 0;
    char path[64], line[1024] = "";
    const char *end;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file && !fgets(line, sizeof line, file))
        line[0] = '\0';
    if (file)
        fclose(file);
    end = strrchr(line, ')');       /* the name may hold anything */
    if (!end || sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user,
                       &system) != 2)
        return 0;
    return user + system;
}

static uint64_t ticks_of_ended(void)
{
    struct rusage usage;

    getrusage(RUSAGE_CHILDREN, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
        * (uint64_t)sysconf(_SC_CLK_TCK);
}

static void look(struct machine *machine, const pid_t *pids, unsigned n_pids)
{
    uint64_t total, busy, ours = ticks_of(getpid()) + ticks_of_ended();
    struct machine before = *machine;

    read_machine(&total, &busy);
    for (unsigned i = 0; i < n_pids; i++)
        ours += pids[i] ? ticks_of(pids[i]) : 0;
    machine->total = total;
    machine->busy = busy;
    machine->ours = ours;
    if (before.total == 0 || total <= before.total)
        return;
    machine->share = ((double)(busy - before.busy) - (double)(ours - before.ours))
        / (double)(total - before.total);
    machine->share = IVC_MIN(machine->share < 0 ? 0 : machine->share, 1.0);
}

void machine_look(struct machine *machine, const pid_t *pids, unsigned n_pids)
{
    uint64_t now = ivc_now_ms();

    if (now - machine->looked_ms >= LOOK_MS) {
        machine->looked_ms = now;
        look(machine, pids, n_pids);
    }
    if (machine->at_ms)
        machine->ms += (double)(now - machine->at_ms)
            * (1 - machine->share < 0.25 ? 0.25 : 1 - machine->share);
    machine->at_ms = now;
}
