/*
 * A rank: one process, which communicates without pause, sleeps in the library, or computes without
 * calling it, in turn or always the same, until the controller has it stop.
 */
#include "load.h"

#include "check.h"
#include "leaks.h"
#include "fake_grants.h"

#include "base/util.h"
#include "region/internal.h"

enum { IDLE_MS = 1000, COMMUNICATING_MS = 300 };

struct life {
    struct board *board;
    struct board_rank *place;
    struct load *load;
    uint64_t random, until_ms;
    enum rank_mode mode;
};

static void set_state(struct life *life, enum rank_state state)
{
    /* Release: what the state promises (an address, final counts) is visible before. */
    ivc_store_release(&life->place->state, state);
}

static void wait_for_all(struct life *life)
{
    for (uint32_t i = 0; i < life->board->n_ranks; i++)
        while (ivc_load_acquire(&life->board->ranks[i].state) == RANK_STARTING)
            ivc_sleep_ms(1);
}

static void choose_mode(struct life *life)
{
    uint64_t now = ivc_now_ms(), dice = check_random(&life->random) % 4;
    unsigned most;

    if (now < life->until_ms)
        return;
    life->mode = life->place->mode != RANK_MIXED ? life->place->mode
        : dice < 2 ? RANK_COMMUNICATING : dice == 2 ? RANK_IDLE : RANK_COMPUTING;
    most = life->mode == RANK_COMMUNICATING ? COMMUNICATING_MS
        : life->mode == RANK_IDLE ? IDLE_MS : life->board->compute_ms;
    /* Mostly much shorter: the product of two. */
    most = (unsigned)(most * (check_random(&life->random) % 1000 + 1) / 1000);
    life->until_ms = now + most * (check_random(&life->random) % 1000) / 1000 + 1;
    ivc_store_relaxed(&life->place->doing, life->mode);
}

static void compute(const struct life *life)
{
    uint64_t start = ivc_now_ms(), sum = 1;

    while (ivc_now_ms() < life->until_ms && ivc_now_ms() - start <= life->board->compute_ms)
        for (unsigned i = 0; i < 20000; i++)
            (void)check_random(&sum);
}

/* As when a device is removed: the mapping is there, and there is nothing behind it. */
static void lose_device(void *arg)
{
    struct life *life = arg;
    struct ivc_region *region = ivc_endpoint_region(load_endpoint(life->load));
    int fd = memfd_create("nothing", MFD_CLOEXEC);

    if (region && !ivc_region_is_retired(region) && !ivc_region_is_lost(region)
        && (fd < 0 || mmap(region->mapping.memory, region->mapping.size, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED))
        load_fault(life->load, "cannot take its own device away");
    close(fd);
    ivc_store_release(&life->place->pulled, ivc_load_relaxed(&life->place->pulled) + 1);
}

static void obey(struct life *life)
{
    if (ivc_load_relaxed(&life->place->pull) != ivc_load_relaxed(&life->place->pulled))
        load_inside(life->load, lose_device, life);
    if (life->place->sabotage == SABOTAGE_MUTE
        && ivc_load_relaxed(&life->place->pairs[life->place->sabotage_to].received_messages) > 20)
        for (;;)
            pause();
}

static void turn(struct life *life)
{
    choose_mode(life);
    obey(life);
    if (life->mode == RANK_COMPUTING)
        compute(life);
    if (life->mode == RANK_IDLE)
        load_wait(life->load, 50);
    else
        load_start_some(life->load);
    if (load_progress(life->load) == 0 && life->mode != RANK_IDLE)
        sched_yield();
}

/* Starts no more; goes on taking what comes until the controller has seen that all is there. */
static void drain(struct life *life)
{
    bool told = false;

    ivc_store_relaxed(&life->place->doing, RANK_COMMUNICATING);
    while (!ivc_load_acquire(&life->board->end)) {
        obey(life);
        if (load_progress(life->load) == 0)
            load_wait(life->load, 1);
        if (told || !load_is_sent(life->load))
            continue;
        if (life->place->sabotage == SABOTAGE_LAST)
            load_tell_one_more(life->load, life->place->sabotage_to);
        set_state(life, RANK_STOPPED);
        told = true;
    }
}

int rank_run(void *arg)
{
    struct rank_task *task = arg;
    struct life life = {
        .board = task->board, .place = &task->board->ranks[task->rank],
        .random = task->board->seed * 77 + task->rank + 1,
    };

    setenv("IVC_VM", life.place->vm, 1);
    setenv("IVC_REGION", life.board->grants ? "xen" : life.place->link, 1);
    if (life.board->grants)
        fake_grants_follow(life.place->link);
    setenv("FI_TCP_IFACE", "lo", 0);
    life.load = load_open(life.board, task->rank);
    set_state(&life, RANK_READY);
    wait_for_all(&life);
    load_connect(life.load);
    set_state(&life, RANK_RUNNING);
    while (!ivc_load_acquire(&life.board->quiet))
        turn(&life);
    drain(&life);
    load_close(life.load);
    set_state(&life, RANK_ENDED);
    return 0;
}
