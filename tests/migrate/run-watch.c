/* What may not happen in a run: faults, deaths, standstill, a guest where it should not be. */
#include "run-internal.h"

#include "check.h"

#include "base/error.h"
#include "base/util.h"

enum {
    BEREAVED_MS = 500,          /* until a fault that ends others is told */
    STRAY_MS = 5000,            /* until a member has left a region that its guest is not at */
};

/* The rank with a fault of its own, else one that complains of another's end; NULL: none. */
static const struct board_rank *faulty_rank(const struct run *run)
{
    const struct board_rank *bereaved = NULL;

    for (uint32_t i = 0; i < run->options.ranks; i++) {
        const struct board_rank *rank = &run->board->ranks[i];
        /* Acquire: pairs with the release in load_fault(); the text is visible. */
        uint32_t faulty = ivc_load_acquire(&rank->faulty);

        if (faulty == 1)
            return rank;
        bereaved = faulty ? rank : bereaved;
    }
    return bereaved;
}

static void look_for_faults(struct run *run)
{
    const struct board_rank *rank = faulty_rank(run);

    if (!rank)
        return;
    if (ivc_load_relaxed(&rank->faulty) == 2)
        ivc_sleep_ms(BEREAVED_MS);
    rank = faulty_rank(run);
    check_fail(__FILE__, __LINE__, "%s (seed %llu)", rank->fault,
               (unsigned long long)run->options.seed);
}

static void reap(struct run *run)
{
    int status;

    for (uint32_t i = 0; i < run->options.ranks; i++) {
        if (!run_is_alive(run, i) || waitpid(run->board->ranks[i].pid, &status, WNOHANG) <= 0)
            continue;
        run->dead[i] = true;
        look_for_faults(run);
        CHECK_THAT(run->may_die[i] || (WIFEXITED(status) && WEXITSTATUS(status) == 0
                                       && run_state_of(run, i) == RANK_ENDED),
                   "rank %u: %s %d (seed %llu)", i, WIFSIGNALED(status) ? "signal" : "exit status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                   (unsigned long long)run->options.seed);
    }
}

static bool is_gone_for(const struct run *run, uint32_t rank, uint32_t other)
{
    return ivc_load_acquire(&run->board->ranks[rank].pairs[other].gone_at_ns) != 0;
}

/* Whether `to` has to get what `from` sends: both live, and neither has lost the other. */
bool run_is_connected(const struct run *run, uint32_t from, uint32_t to)
{
    return from != to && run_is_alive(run, from) && run_is_alive(run, to)
        && !is_gone_for(run, from, to) && !is_gone_for(run, to, from);
}

/* What is on its way from one rank to the other, and how much has come; that is read first. */
uint64_t run_under_way(const struct run *run, uint32_t from, uint32_t to, uint64_t *ret_came)
{
    const struct board_pair *out = &run->board->ranks[from].pairs[to];
    const struct board_pair *in = &run->board->ranks[to].pairs[from];
    uint64_t came = ivc_load_relaxed(&in->received_messages)
        + ivc_load_relaxed(&in->received_packets);

    *ret_came += came;
    return ivc_load_relaxed(&out->started_messages) + ivc_load_relaxed(&out->started_packets)
        - came;
}

static void look_for_standstill(struct run *run)
{
    uint64_t now = run_ms(run), came = 0, waiting = 0;
    uint32_t from = 0, to = 0;

    if (now - run->looked_ms < 500)
        return;
    run->looked_ms = now;
    if (ivc_load_relaxed(&run->board->end))
        return;
    for (uint32_t i = 0; i < run->options.ranks; i++)
        for (uint32_t k = 0; k < run->options.ranks; k++)
            if (run_is_connected(run, i, k) && run_under_way(run, i, k, &came) > 0) {
                waiting++;
                from = i;
                to = k;
            }
    if (waiting == 0 || came != run->outstanding) {
        run->outstanding = came;
        run->outstanding_since_ms = now;
    }
    CHECK_THAT(now - run->outstanding_since_ms < run_limit(run->options.patience_ms),
               "standstill: %llu pairs wait, for example what rank %u has sent to rank %u"
               " (seed %llu)", (unsigned long long)waiting, from, to,
               (unsigned long long)run->options.seed);
}

/* Whoever has joined what its guest's name led to a moment ago finds that out, and leaves. */
static void look_for_strays(struct run *run)
{
    uint64_t now = run_ms(run);

    for (unsigned i = 0; i < run->options.guests; i++)
        for (unsigned k = 0; k < run->n_hosts; k++) {
            const struct guest *guest = &run->guests[i].guest;
            const struct host *host = &run->hosts[k];
            uint64_t *since = &run->guests[i].stray_since_ms[k];

            if ((!host->region && !host->store) || host == guest->host || host == guest->ordered_at
                || guest_members(guest, host) == 0)
                *since = now;
            CHECK_THAT(run->names_lie || now - *since < run_limit(STRAY_MS),
                       "guest %u has been a member of %s for %d ms, which is not its host (seed"
                       " %llu)", i, host->path, STRAY_MS, (unsigned long long)run->options.seed);
        }
}

void run_watch(struct run *run)
{
    look_for_faults(run);
    reap(run);
    look_for_strays(run);
    look_for_standstill(run);
}
