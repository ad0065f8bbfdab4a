/*
 * The module: which processes are ours, and the end of it all.
 *
 * Invariant: a process is taken only by the address that it published itself and
 * that the endpoint says leads into our region; every other one is left to the
 * next BTL, our own process included (btl/self).
 */
#include "btl_ivc.h"

#include <stdlib.h>
#include <string.h>

#include "opal/class/opal_bitmap.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/pmix/pmix.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"

#include "base/error.h"
#include "endpoint/profile.h"

static int add_procs(mca_btl_base_module_t *btl, size_t nprocs, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints, struct opal_bitmap_t *reachable);
static int del_procs(mca_btl_base_module_t *btl, size_t nprocs, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints);
static int module_finalize(mca_btl_base_module_t *btl);
static int register_error(mca_btl_base_module_t *btl, mca_btl_base_module_error_cb_fn_t cbfunc);
static int ft_event(int state);

struct ivc_btl_module ivc_btl_module = {
    .super = {
        .btl_component = &mca_btl_ivc_component.super,
        .btl_add_procs = add_procs,
        .btl_del_procs = del_procs,
        .btl_finalize = module_finalize,
        .btl_alloc = ivc_btl_alloc,
        .btl_free = ivc_btl_free,
        .btl_prepare_src = ivc_btl_prepare_src,
        .btl_send = ivc_btl_send,
        .btl_sendi = ivc_btl_sendi,
        .btl_dump = mca_btl_base_dump,
        .btl_register_error = register_error,
        .btl_ft_event = ft_event,
    },
};

/* The endpoint that belongs to a peer, made at the first call.  NULL: out of memory. */
struct mca_btl_base_endpoint_t *ivc_btl_endpoint_of(struct ivc_peer *peer)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct mca_btl_base_endpoint_t *endpoint;

    OPAL_THREAD_LOCK(&m->lock);
    endpoint = ivc_peer_arg(peer);
    if (endpoint == NULL && (endpoint = calloc(1, sizeof *endpoint)) != NULL) {
        OBJ_CONSTRUCT(&endpoint->super, opal_list_item_t);
        OBJ_CONSTRUCT(&endpoint->queue, opal_list_t);
        OBJ_CONSTRUCT(&endpoint->lent, opal_list_t);
        OBJ_CONSTRUCT(&endpoint->operations, opal_list_t);
        endpoint->peer = peer;
        endpoint->next = m->endpoints;
        m->endpoints = endpoint;
        ivc_peer_set_arg(peer, endpoint);
    }
    OPAL_THREAD_UNLOCK(&m->lock);
    return endpoint;
}

/* What the process published, in our type; false: nothing that we understand. */
static bool address_of(struct opal_proc_t *proc, struct ivc_address *ret_address)
{
    void *data = NULL;
    size_t size = 0;
    bool good;
    int rc;

    OPAL_MODEX_RECV(rc, &mca_btl_ivc_component.super.btl_version, &proc->proc_name, &data, &size);
    if (rc != OPAL_SUCCESS)
        return false;
    good = data != NULL && size > 0 && size <= sizeof ret_address->bytes;
    if (good) {
        ret_address->len = (uint32_t) size;
        memcpy(ret_address->bytes, data, size);
    }
    free(data);
    return good;
}

static void require_memory(const struct opal_proc_t *proc, const struct ivc_address *address)
{
    if (ivc_endpoint_check_path(ivc_btl_module.endpoint, address) != 0 && ivc_path_requires_memory())
        ivc_btl_end_job("rank %u: %s", proc->proc_name.vpid, ivc_error_text());
}

static struct mca_btl_base_endpoint_t *endpoint_for(struct opal_proc_t *proc)
{
    struct mca_btl_base_endpoint_t *endpoint;
    struct ivc_address address;
    struct ivc_peer *peer;
    int rc;

    if (proc == opal_proc_local_get())
        return NULL;
    if (!address_of(proc, &address)) {
        if (ivc_path_requires_memory())
            ivc_btl_end_job("rank %u has no address of this plug-in, and IVC_REQUIRE=memory asks for memory to every "
                            "peer; is mca_btl_ivc.so there, and a region?", proc->proc_name.vpid);
        return NULL;
    }
    require_memory(proc, &address);
    rc = ivc_endpoint_connect(ivc_btl_module.endpoint, &address, &peer);
    if (rc != 0) {
        opal_output_verbose(10, opal_btl_base_framework.framework_output,
                            "btl: ivc: %s is not reached through memory: %s",
                            OPAL_NAME_PRINT(proc->proc_name), ivc_error_name(rc));
        return NULL;
    }
    endpoint = ivc_btl_endpoint_of(peer);
    if (endpoint != NULL)
        endpoint->proc = proc;
    return endpoint;
}

static int add_procs(mca_btl_base_module_t *btl, size_t nprocs, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints, struct opal_bitmap_t *reachable)
{
    (void) btl;
    for (size_t i = 0; i < nprocs; i++) {
        int rc;

        endpoints[i] = endpoint_for(procs[i]);
        if (endpoints[i] == NULL && procs[i] != opal_proc_local_get())
            ivc_btl_module.others = true;
        if (endpoints[i] == NULL || reachable == NULL)
            continue;
        rc = opal_bitmap_set_bit(reachable, (int) i);
        if (rc != OPAL_SUCCESS)
            return rc;
    }
    return OPAL_SUCCESS;
}

/* The endpoints stay for the statistics and for a process that is added again. */
static int del_procs(mca_btl_base_module_t *btl, size_t nprocs, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints)
{
    (void) btl;
    (void) procs;
    for (size_t i = 0; i < nprocs; i++) {
        if (endpoints[i] != NULL)
            endpoints[i]->proc = NULL;
    }
    return OPAL_SUCCESS;
}

static int register_error(mca_btl_base_module_t *btl, mca_btl_base_module_error_cb_fn_t cbfunc)
{
    (void) btl;
    ivc_btl_module.error_cb = cbfunc;
    return OPAL_SUCCESS;
}

/* Checkpoints: nothing to do before or after one. */
static int ft_event(int state)
{
    (void) state;
    return OPAL_SUCCESS;
}

static void endpoints_free(struct ivc_btl_module *m)
{
    while (m->endpoints != NULL) {
        struct mca_btl_base_endpoint_t *endpoint = m->endpoints;

        m->endpoints = endpoint->next;
        ivc_peer_set_arg(endpoint->peer, NULL);
        OBJ_DESTRUCT(&endpoint->operations);
        OBJ_DESTRUCT(&endpoint->lent);
        OBJ_DESTRUCT(&endpoint->queue);
        OBJ_DESTRUCT(&endpoint->super);
        free(endpoint);
    }
}

/* Every step has an end: peers may have left before us, or may never take what we sent. */
static int module_finalize(mca_btl_base_module_t *btl)
{
    static const unsigned int flush_ms = 1000;
    struct ivc_btl_module *m = &ivc_btl_module;

    (void) btl;
    m->closing = true;
    if (m->endpoint == NULL)
        return OPAL_SUCCESS;
    ivc_btl_queue_flush(flush_ms);
    if (mca_btl_ivc_component.stats)
        ivc_btl_stats_print();
    ivc_profile_close(m->profile);
    m->profile = NULL;
    endpoints_free(m);
    ivc_endpoint_free(m->endpoint);
    m->endpoint = NULL;
    ivc_btl_frags_fini(m);
    return OPAL_SUCCESS;
}
