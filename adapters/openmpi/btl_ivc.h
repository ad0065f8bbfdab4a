/*
 * mca_btl_ivc: Open MPI's byte transfer layer on an ivc endpoint.
 *
 * One module, one ivc endpoint, one mca_btl_base_endpoint_t per process that
 * shares memory with us.  Which path a packet takes is the ivc endpoint's
 * business; Open MPI's point-to-point layer (pml/ob1) sees a BTL that sends.
 *
 * Invariant: when alloc, prepare_src or sendi answer "no resource", a descriptor
 * that ob1 is told of is queued here, or waits to be reported.  ob1 tries again,
 * for all peers, only when one completes, so this is what keeps it from waiting
 * for ever.
 */
#ifndef IVC_ADAPTERS_OPENMPI_BTL_IVC_H
#define IVC_ADAPTERS_OPENMPI_BTL_IVC_H

#include "opal_config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "opal/class/opal_free_list.h"
#include "opal/class/opal_list.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/btl/btl.h"
#include "opal/threads/mutex.h"

#include "endpoint/endpoint.h"

enum {
    /* A header of ob1 and everything it sends without data: 40 bytes at most (ACK). */
    IVC_BTL_HEADER_MAX = 64,

    /* Descriptors that may wait for one peer before we say "no resource". */
    IVC_BTL_QUEUE_MAX = 32,

    /* ob1's tag of a message that fits in one packet. */
    IVC_BTL_TAG_MATCH = MCA_BTL_TAG_PML + 1,

    /* Beside Open MPI's codes: the descriptor was sent, and is reported later (btl_ivc_lent.c). */
    IVC_BTL_LATER = 1,

    /* A client id: the rank in its job, above it which job of this mpirun, the first being 0. */
    IVC_BTL_RANK_BITS = 20,
};

/* What follows of a message that was announced (btl_ivc_ahead.c). */
struct ivc_btl_ahead {
    struct mca_btl_base_endpoint_t *endpoint;   /* whom it is for; NULL: there is nothing */
    const opal_convertor_t *convertor;  /* the message's */
    const void *data;                   /* the user's memory */
    size_t len;
    size_t reserve;                     /* bytes in `buffer` in front of what was copied, for a header */
    unsigned int passed;                /* messages announced since it was copied */
    struct ivc_buffer buffer;
};

/* A process that we share memory with.  Lives until finalize, so that its counters can be shown. */
struct mca_btl_base_endpoint_t {
    opal_list_item_t super;             /* in module.waiting while `queue` is not empty */
    struct mca_btl_base_endpoint_t *next;   /* in module.endpoints */
    struct ivc_peer *peer;
    struct opal_proc_t *proc;           /* NULL: it talks to us and Open MPI has not named it yet */
    enum { IVC_BTL_HERE, IVC_BTL_LEFT, IVC_BTL_DIED } fate;
    opal_list_t queue;                  /* descriptors that wait for room, oldest first */
    volatile int32_t queued;            /* their number; written under module.lock */
    opal_list_t lent;                   /* descriptors that the peer is to read; under module.lent_lock */
    opal_list_t operations;             /* puts, gets and atomics that the peer was asked for; under module.lent_lock */
    volatile int32_t n_operations;      /* their number */
    uint32_t lent_ids;                  /* given so far, for both */
    uint64_t starving_since;            /* ms; 0: the region always had memory for it */
};

/* A descriptor: its bytes are in `header`, in private memory (base.super.ptr), in the region
 * (`buffer`), or, behind a header, in the user's own memory, and then perhaps in the region as well. */
struct ivc_btl_frag {
    mca_btl_base_descriptor_t base;
    mca_btl_base_segment_t segments[2];
    struct mca_btl_base_endpoint_t *endpoint;
    opal_free_list_t *home;
    mca_btl_base_tag_t tag;
    bool in_region;                     /* `buffer` is ours to send or to give back: it is the one segment, or
                                         * of two a copy, but for the header */
    bool unreadable;                    /* lent memory that the peer could not read: it is copied */
    uint32_t lent_id;                   /* in endpoint.lent, or .operations */
    int status;                         /* for the completion callback */
    struct ivc_buffer buffer;
    struct ivc_btl_ahead follows;       /* of a message that this announces, in the user's memory */
    uint8_t header[IVC_BTL_HEADER_MAX];
};
OBJ_CLASS_DECLARATION(ivc_btl_frag);
typedef struct ivc_btl_frag ivc_btl_frag;

struct ivc_btl_module {
    mca_btl_base_module_t super;
    struct ivc_endpoint *endpoint;
    struct ivc_profile *profile;        /* NULL: none was asked for */
    size_t packet_max;                  /* largest packet that is never refused for good; max_send_size may be more */
    size_t send_max;                    /* largest packet that goes without a buffer */
    mca_btl_base_module_error_cb_fn_t error_cb;
    bool others;                        /* there are processes that we do not reach */
    bool closing;                       /* Open MPI's upper layers are gone: deliver nothing */

    opal_mutex_t lock;                  /* guards what follows */
    struct mca_btl_base_endpoint_t *endpoints;
    opal_list_t waiting;                /* endpoints with queued descriptors */
    opal_list_t done;                   /* sent, callback still to be made */
    volatile int32_t outstanding;       /* queued and done descriptors; read without the lock */

    opal_mutex_t lent_lock;             /* guards endpoints' `lent` and `operations`; nothing else is locked under it */

    opal_mutex_t ahead_lock;            /* guards `ahead`; nothing else is locked under it */
    struct ivc_btl_ahead ahead;         /* copied and not yet asked for */
    size_t reserve;                     /* of pieces that follow; 0: none was seen yet */

    bool limited;                       /* the next three have no more descriptors than a parameter says */
    opal_free_list_t frags_header;      /* no memory but `header` */
    opal_free_list_t frags_eager;       /* eager_limit bytes of private memory */
    opal_free_list_t frags_max;         /* packet_max bytes */
    opal_free_list_t frags_answer;      /* as frags_header, for what we send ourselves: as many as it takes */

    /* What a packet is shown to ob1 in.  One of each suffices: packets come one at a time. */
    mca_btl_base_descriptor_t received;
    mca_btl_base_segment_t received_segments[2];
    uint8_t *flat;                      /* a packet in one piece, of any length */
};
extern struct ivc_btl_module ivc_btl_module;

struct ivc_btl_component {
    mca_btl_base_component_3_0_0_t super;
    char *region;
    unsigned int ring_size, segment_size;
    int free_list_num, free_list_max, free_list_inc;    /* of descriptors; max -1: no limit */
    bool stats, network, moves;
};
/* The one symbol that the object shows: Open MPI looks it up by this name. */
extern struct ivc_btl_component mca_btl_ivc_component __attribute__((visibility("default")));

/* btl_ivc_component.c */
/* The rank in the first job of an mpirun; spawned jobs count upwards in the high bits. */
uint32_t ivc_btl_client_of_process(void);

/* btl_ivc_module.c */
struct mca_btl_base_endpoint_t *ivc_btl_endpoint_of(struct ivc_peer *peer);

/* btl_ivc_say.c: `subject` is a word that names what the message is about. */
void ivc_btl_say(const char *subject, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What this user requires cannot be had: a line, and the job ends.  (Open MPI goes on with another BTL, whatever is
 * answered.) */
_Noreturn void ivc_btl_end_job(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* btl_ivc_frag.c */
int ivc_btl_frags_init(struct ivc_btl_module *module);
void ivc_btl_frags_fini(struct ivc_btl_module *module);
struct ivc_btl_frag *ivc_btl_frag_get(struct mca_btl_base_endpoint_t *endpoint, size_t size,
                                      uint32_t flags);
struct ivc_btl_frag *ivc_btl_frag_get_answer(struct mca_btl_base_endpoint_t *endpoint, size_t size);
void ivc_btl_frag_return(struct ivc_btl_frag *frag);
mca_btl_base_descriptor_t *ivc_btl_alloc(mca_btl_base_module_t *btl,
                                         struct mca_btl_base_endpoint_t *endpoint, uint8_t order,
                                         size_t size, uint32_t flags);
int ivc_btl_free(mca_btl_base_module_t *btl, mca_btl_base_descriptor_t *descriptor);
mca_btl_base_descriptor_t *ivc_btl_prepare_src(mca_btl_base_module_t *btl,
                                               struct mca_btl_base_endpoint_t *endpoint,
                                               opal_convertor_t *convertor, uint8_t order,
                                               size_t reserve, size_t *size, uint32_t flags);

/* btl_ivc_send.c */
int ivc_btl_send(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                 mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag);
int ivc_btl_sendi(mca_btl_base_module_t *btl, struct mca_btl_base_endpoint_t *endpoint,
                  opal_convertor_t *convertor, void *header, size_t header_size,
                  size_t payload_size, uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                  mca_btl_base_descriptor_t **ret_descriptor);
int ivc_btl_frag_post(struct ivc_btl_frag *frag);
int ivc_btl_answer(struct mca_btl_base_endpoint_t *endpoint, int rc);

/* btl_ivc_lent.c */
/* As ivc_btl_frag_post(); OPAL_ERR_NOT_AVAILABLE: it does not lie in lent memory, or is too short. */
int ivc_btl_lent_post(struct ivc_btl_frag *frag);
/* The peer reads such memory in place: it need not be copied. */
bool ivc_btl_is_lent(struct mca_btl_base_endpoint_t *endpoint, const void *memory, size_t len);
/* A packet that has no handler of Open MPI's. */
void ivc_btl_lent_on_packet(struct ivc_peer *peer, uint8_t tag, uint8_t *packet, size_t len);
bool ivc_btl_lent_waits(struct mca_btl_base_endpoint_t *endpoint);
/* The peer is gone: all that wait for it are reported. */
void ivc_btl_lent_end(struct mca_btl_base_endpoint_t *endpoint, int status);

/* btl_ivc_rdma.c, btl_ivc_emulate.c: put, get and atomics, a module of their own. */
extern mca_btl_base_module_t ivc_btl_rdma_module;
void ivc_btl_rdma_init(void);
/* False: it is no packet of theirs. */
bool ivc_btl_emulate_on_packet(struct ivc_peer *peer, const struct ivc_packet *packet);
/* The peer is gone: all that were asked for are reported. */
void ivc_btl_operations_end(struct mca_btl_base_endpoint_t *endpoint);

/* btl_ivc_ahead.c */
/* Copies what follows of a message that was just announced, if that is of use. */
void ivc_btl_ahead_fill(const struct ivc_btl_frag *announcement);
/* The copy of what ob1 comes for, in a buffer that is the caller's; shortens `len` to what was copied.  False: there
 * is none. */
bool ivc_btl_ahead_take(struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor,
                        const void *data, size_t reserve, size_t *len, struct ivc_buffer *ret_buffer);
/* Forgets the copy if it is of this convertor's message, and of one for this peer. NULL: whichever. */
void ivc_btl_ahead_end(const struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor);

/* btl_ivc_queue.c */
bool ivc_btl_queue_full(const struct mca_btl_base_endpoint_t *endpoint);
void ivc_btl_queue_append(struct ivc_btl_frag *frag);
void ivc_btl_done_append(struct ivc_btl_frag *frag);
int ivc_btl_queue_progress(void);
void ivc_btl_queue_flush(unsigned int timeout_ms);
uint64_t ivc_btl_now_ms(void);
int ivc_btl_progress(void);

/* btl_ivc_receive.c */
void ivc_btl_on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet);
void ivc_btl_on_gone(void *arg, struct ivc_peer *peer, const char *reason);
void ivc_btl_on_arrival(void *arg, struct ivc_peer *peer);
void ivc_btl_lose(struct mca_btl_base_endpoint_t *endpoint, const char *reason);

/* btl_ivc_stats.c */
enum { IVC_BTL_NAME_MAX = 160 };
void ivc_btl_peer_name(const struct ivc_peer *peer, char ret_name[IVC_BTL_NAME_MAX]);
void ivc_btl_stats_print(void);

/* btl_ivc_profile.c */
/* For the endpoint that is about to be opened. */
ivc_endpoint_packet_fn *ivc_btl_profile_handler(void);
/* When it is open: from here on what is sent is counted, if a profile is wanted. */
void ivc_btl_profile_open(bool threads);
/* A packet that did not come as such, and was delivered. */
void ivc_btl_profile_received(struct ivc_peer *peer, mca_btl_base_tag_t tag, const void *header, size_t header_len,
                              size_t total);

#endif
