/*
 * The component: its parameters, and the decision to take part.
 *
 * Invariant: without a region nobody notices that this component is installed;
 * with a region that cannot be used one line per node says why, and Open MPI
 * goes on with its other transports.
 */
#include "btl_ivc.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "opal/mca/base/mca_base_var.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/pmix/pmix.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"

#include "base/error.h"
#include "base/stats.h"
#include "base/util.h"

/* Of a message that goes at once: its receiver has to copy it once more than one that waits for it.  Where more ranks
 * than processors are on the node the receiver may have to be waited for. */
enum {
    EAGER_LIMIT = 4 * 1024 + IVC_BTL_HEADER_MAX,
    EAGER_LIMIT_CROWDED = 16 * 1024 + IVC_BTL_HEADER_MAX,
};

static int component_register(void);
static mca_btl_base_module_t **component_init(int *num_btls, bool enable_progress_threads,
                                              bool enable_mpi_threads);

struct ivc_btl_component mca_btl_ivc_component = {
    .super = {
        .btl_version = {
            MCA_BTL_DEFAULT_VERSION("ivc"),
            .mca_register_component_params = component_register,
        },
        .btl_data = {
            .param_field = MCA_BASE_METADATA_PARAM_NONE,
        },
        .btl_init = component_init,
        .btl_progress = ivc_btl_progress,
    },
};

static void register_uint(const char *name, const char *help, mca_base_var_info_lvl_t level,
                          unsigned int *storage)
{
    (void) mca_base_component_var_register(&mca_btl_ivc_component.super.btl_version, name, help,
                                           MCA_BASE_VAR_TYPE_UNSIGNED_INT, NULL, 0, 0, level,
                                           MCA_BASE_VAR_SCOPE_READONLY, storage);
}

static void register_int(const char *name, const char *help, int *storage)
{
    (void) mca_base_component_var_register(&mca_btl_ivc_component.super.btl_version, name, help,
                                           MCA_BASE_VAR_TYPE_INT, NULL, 0, 0, OPAL_INFO_LVL_9,
                                           MCA_BASE_VAR_SCOPE_READONLY, storage);
}

static void register_bool(const char *name, const char *help, bool *storage)
{
    (void) mca_base_component_var_register(&mca_btl_ivc_component.super.btl_version, name, help,
                                           MCA_BASE_VAR_TYPE_BOOL, NULL, 0, 0, OPAL_INFO_LVL_3,
                                           MCA_BASE_VAR_SCOPE_READONLY, storage);
}

static int component_register(void)
{
    struct ivc_btl_component *c = &mca_btl_ivc_component;
    mca_btl_base_module_t *btl = &ivc_btl_module.super;

    (void) mca_base_var_group_component_register(&c->super.btl_version,
        "Memory shared between virtual machines on one host, and between processes in one");

    c->region = NULL;
    (void) mca_base_component_var_register(&c->super.btl_version, "region",
        "Shared memory to use: a path from the root, 'pci:ADDRESS', 'uuid:UUID', 'xen' or 'none' "
        "(default: the environment variable IVC_REGION, then what is found)",
        MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0, OPAL_INFO_LVL_3, MCA_BASE_VAR_SCOPE_READONLY,
        &c->region);
    c->stats = ivc_stats_are_printed();
    register_bool("stats",
        "Print at the end, per rank and peer, how much went through memory "
        "(default: true when the environment variable IVC_STATS is set, not to 0 and not to json:DIR)",
        &c->stats);
    c->network = false;
    register_bool("network",
        "Carry peers that share no memory with us over the network too, through the libfabric "
        "provider that the environment variable IVC_NETWORK names (default: tcp), instead of "
        "leaving them to Open MPI's other transports. All ranks must agree (default: false)",
        &c->network);
    c->moves = true;
    register_bool("moves",
        "Open such a network for live migration: peers that share memory at the start are reached "
        "by it when a guest of theirs or ours moves. Without libfabric, or with IVC_NETWORK=none, "
        "guests of the job cannot be moved; one that IVC_NETWORK names must be there. All ranks must "
        "agree (default: true)",
        &c->moves);
    c->ring_size = 0;
    register_uint("ring_size", "Bytes of shared memory for one direction of a pair of ranks "
                  "(0: IVC_RING_SIZE, then a default)", OPAL_INFO_LVL_5,
                  &c->ring_size);
    c->segment_size = 0;
    register_uint("segment_size", "Bytes of one slot of a ring (0: IVC_SEGMENT_SIZE, then a "
                  "default)", OPAL_INFO_LVL_9, &c->segment_size);
    c->free_list_num = 0;
    register_int("free_list_num", "Descriptors in each of the three free lists at first (up to "
                 "a header, up to eager_limit, and longer)", &c->free_list_num);
    c->free_list_max = -1;
    register_int("free_list_max", "Most descriptors in each free list: a send that finds none waits "
                 "(-1: no limit, as always with MPI_THREAD_MULTIPLE)", &c->free_list_max);
    c->free_list_inc = 8;
    register_int("free_list_inc", "Descriptors by which a free list grows", &c->free_list_inc);

    /* Above vader and self (64 Ki): where memory is shared this is the path, in one guest too. */
    btl->btl_exclusivity = MCA_BTL_EXCLUSIVITY_HIGH + 1;
    btl->btl_flags = MCA_BTL_FLAGS_SEND;
    btl->btl_eager_limit = EAGER_LIMIT;
    /* Of what is longer: the receiver answers when it has copied that. */
    btl->btl_rndv_eager_limit = 256;
    btl->btl_max_send_size = 32 * 1024;
    btl->btl_rdma_pipeline_send_length = btl->btl_eager_limit;
    btl->btl_rdma_pipeline_frag_size = btl->btl_eager_limit;
    btl->btl_min_rdma_pipeline_size = SIZE_MAX;
    btl->btl_latency = 1;
    btl->btl_bandwidth = 100000;

    /* The base registers these two only for a BTL that can put. */
    register_uint("latency", "Approximate latency in microseconds; the BTLs of a peer with the "
                  "smallest one carry first fragments", OPAL_INFO_LVL_5, &btl->btl_latency);
    register_uint("bandwidth", "Approximate bandwidth in Mbit/s; large messages are shared among "
                  "the BTLs of a peer by it", OPAL_INFO_LVL_5, &btl->btl_bandwidth);
    return mca_btl_base_param_register(&c->super.btl_version, btl);
}

/* One mpirun and all jobs spawned in it are a group: the job id's upper half.  Two groups that
 * happen to have the same number still never meet, because addresses come through the modex. */
static uint64_t group_of_job(void)
{
    static const uint64_t open_mpi = 0x4f4d5049;    /* "OMPI" */

    return open_mpi << 32 | OPAL_PROC_MY_NAME.jobid >> 16;
}

uint32_t ivc_btl_client_of_process(void)
{
    uint32_t job = OPAL_PROC_MY_NAME.jobid & 0xffff;

    return (job > 1 ? (job - 1) << IVC_BTL_RANK_BITS : 0) + OPAL_PROC_MY_NAME.vpid;
}

/* A number of processes of our job; 0: not known. */
static uint32_t count_ranks(const char *which)
{
    opal_process_name_t job = { OPAL_PROC_MY_NAME.jobid, OPAL_VPID_WILDCARD };
    uint32_t n, *to = &n;
    int rc;

    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, which, &job, &to, OPAL_UINT32);
    return rc == OPAL_SUCCESS ? n : 0;
}

/* More ranks than processors are on the node. */
static bool is_crowded(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return processors > 0 && count_ranks(OPAL_PMIX_LOCAL_SIZE) > (unsigned long) processors;
}

static int endpoint_open(bool threads, bool crowded, struct ivc_endpoint **ret_endpoint)
{
    const struct ivc_btl_component *c = &mca_btl_ivc_component;
    uint32_t n_ranks = count_ranks(OPAL_PMIX_JOB_SIZE);
    const struct ivc_endpoint_options options = {
        .region = c->region != NULL && c->region[0] != '\0' ? c->region : NULL,
        .magic_id = group_of_job(),
        .client_id = ivc_btl_client_of_process(),
        .ring_size = c->ring_size,
        .segment_size = c->segment_size,
        .expected_peers = n_ranks > 0 ? n_ranks - 1 : 0,
        .threads = threads,
        .crowded = crowded,
        .network = c->network,
        .moves = c->moves,
        .on_packet = ivc_btl_profile_handler(),
        .on_gone = ivc_btl_on_gone,
        .on_arrival = ivc_btl_on_arrival,
        .arg = &ivc_btl_module,
    };
    int rc = ivc_endpoint_open(&options, ret_endpoint);

    if (rc != 0 && ivc_path_requires_memory())
        ivc_btl_end_job("IVC_REQUIRE=memory asks for memory to every peer: %s", ivc_error_text());
    if (rc < 0)
        ivc_btl_say("open", "%s; Open MPI goes on with its other transports", ivc_error_text());
    return rc;
}

/* Whether somebody wants a parameter of ours to be what it is. */
static bool is_set(const char *name)
{
    int variable = mca_base_var_find("opal", "btl", "ivc", name);
    mca_base_var_source_t source = MCA_BASE_VAR_SOURCE_DEFAULT;

    return variable >= 0 && mca_base_var_get_value(variable, NULL, &source, NULL) == OPAL_SUCCESS
        && source != MCA_BASE_VAR_SOURCE_DEFAULT;
}

/* Brings what a parameter asks for into [low, high], and says so when it was a person's wish; `see`: where the bounds
 * come from. */
static long long clamp(const char *name, long long asked, long long low, long long high, const char *see)
{
    long long used = asked < low ? low : asked > high ? high : asked;

    if (used != asked && is_set(name))
        ivc_btl_say(name, "btl_ivc_%s %lld is outside of %lld to %lld (see %s); %lld is used", name, asked, low, high,
                    see, used);
    return used;
}

/* Bytes; those of Open MPI's own parameters have this type. */
static void limit_clamp(const char *name, size_t *limit, size_t low, size_t high)
{
    size_t asked = *limit < SSIZE_MAX ? *limit : SSIZE_MAX;

    *limit = (size_t) clamp(name, (long long) asked, (long long) low, (long long) high, "IVC_CHUNK_SIZE");
}

/* With several threads there is no limit, for the same reason for which no queue is full then (btl_ivc_queue.c). */
static void free_lists_check(bool threads)
{
    struct ivc_btl_component *c = &mca_btl_ivc_component;
    enum { AT_ONCE_MAX = 64 << 10 };    /* of them with 32 KiB each: 2 GiB */
    int asked = c->free_list_max, most;

    if (asked < 1 || threads)
        c->free_list_max = -1;
    if (asked != c->free_list_max)
        ivc_btl_say("free_list_max", "btl_ivc_free_list_max %d %s; there is no limit", asked,
                    asked < 1 ? "is neither 1 or more, nor -1" : "is not for MPI_THREAD_MULTIPLE");
    most = c->free_list_max > 0 && c->free_list_max < AT_ONCE_MAX ? c->free_list_max : AT_ONCE_MAX;
    c->free_list_num = (int) clamp("free_list_num", c->free_list_num, 0, most, "btl_ivc_free_list_max");
    c->free_list_inc = (int) clamp("free_list_inc", c->free_list_inc, 1, most, "btl_ivc_free_list_max");
}

static void limits_check(struct ivc_btl_module *m, bool crowded)
{
    static const size_t low = 256;      /* a header of ob1 and some data */
    const size_t packet_max = ivc_endpoint_packet_max(m->endpoint), piece_max = ivc_endpoint_piece_max(m->endpoint);
    mca_btl_base_module_t *btl = &m->super;

    if (!is_set("eager_limit") && crowded)
        btl->btl_eager_limit = EAGER_LIMIT_CROWDED;
    limit_clamp("max_send_size", &btl->btl_max_send_size, low, piece_max);
    m->packet_max = btl->btl_max_send_size < packet_max ? btl->btl_max_send_size : packet_max;
    if (!is_set("max_send_size") && piece_max > packet_max)
        btl->btl_max_send_size = piece_max;
    limit_clamp("eager_limit", &btl->btl_eager_limit, low, m->packet_max);
    if (btl->btl_rndv_eager_limit > btl->btl_eager_limit)
        btl->btl_rndv_eager_limit = btl->btl_eager_limit;   /* as ob1 does */
    limit_clamp("rndv_eager_limit", &btl->btl_rndv_eager_limit, low, btl->btl_eager_limit);
}

static int address_publish(const struct ivc_endpoint *endpoint)
{
    struct ivc_address address;
    int rc;

    ivc_endpoint_address(endpoint, &address);
    OPAL_MODEX_SEND(rc, OPAL_PMIX_GLOBAL, &mca_btl_ivc_component.super.btl_version,
                    address.bytes, address.len);
    return rc;
}

static mca_btl_base_module_t **component_init(int *num_btls, bool enable_progress_threads,
                                              bool enable_mpi_threads)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    mca_btl_base_module_t **modules;
    bool crowded = is_crowded();

    (void) enable_progress_threads;
    *num_btls = 0;
    if (endpoint_open(enable_mpi_threads, crowded, &m->endpoint) != 0)
        return NULL;
    m->send_max = ivc_endpoint_eager_max(m->endpoint);
    limits_check(m, crowded);
    free_lists_check(enable_mpi_threads);
    if (ivc_endpoint_warning(m->endpoint)[0] != '\0')
        ivc_btl_say("warning", "%s", ivc_endpoint_warning(m->endpoint));

    modules = malloc(2 * sizeof *modules);
    if (modules == NULL)
        goto err_close;
    if (ivc_btl_frags_init(m) != OPAL_SUCCESS) {
        ivc_btl_say("memory", "no memory for btl_ivc_free_list_num %d descriptors in each free list; Open MPI goes on "
                    "with its other transports", mca_btl_ivc_component.free_list_num);
        goto err_free;
    }
    if (address_publish(m->endpoint) != OPAL_SUCCESS)
        goto err_fini;
    opal_output_verbose(10, opal_btl_base_framework.framework_output, "btl: ivc: %s",
                        ivc_endpoint_describe(m->endpoint));
    ivc_btl_rdma_init();
    ivc_btl_profile_open(enable_mpi_threads);
    modules[0] = &m->super;
    modules[1] = &ivc_btl_rdma_module;
    *num_btls = 2;
    return modules;

err_fini:
    ivc_btl_frags_fini(m);
err_free:
    free(modules);
err_close:
    ivc_endpoint_free(m->endpoint);
    m->endpoint = NULL;
    return NULL;
}
