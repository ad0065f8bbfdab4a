/*
 * Ahead: the second piece of a long message is copied while the first one is on its way.
 *
 * ob1 announces a long message with its first bytes, and sends what follows when the receiver has answered. Our
 * side has nothing to do until then, and the receiver nothing afterwards until the next piece is copied. So
 * whoever has announced a message copies what follows into a buffer at once, and takes that buffer when ob1
 * comes for it.
 *
 * One message at a time: whoever has announced another one meanwhile has that to do. One that its receiver does not
 * want for long makes room for others.
 *
 *   prepare_src() of the first bytes      what follows is noted in their descriptor
 *   send() of that descriptor             it is copied
 *   prepare_src() of what follows         it is taken
 *
 * Invariant: a copy is of the message that its convertor was announced with last, whose memory ob1's user leaves
 * alone until all of it is sent. An announcement with the same convertor, or a piece that is another one, ends it;
 * and only where every piece for the peer comes by us (`alone`) is anything copied, so none can pass unseen.
 */
#include "btl_ivc.h"

#include <string.h>

#include "opal/mca/btl/base/base.h"

#include "base/copy.h"

enum { PASSED_MAX = 64 };   /* announcements; a stream of so many messages at once is no reason */

/* Whether ob1 gives peers that we reach to nobody else: of those that reach a peer it takes the most exclusive. */
static bool is_alone(const struct ivc_btl_module *m)
{
    mca_btl_base_selected_module_t *one;

    OPAL_LIST_FOREACH(one, &mca_btl_base_modules_initialized, mca_btl_base_selected_module_t) {
        if (one->btl_module != &m->super && one->btl_module->btl_exclusivity >= m->super.btl_exclusivity)
            return false;
    }
    return true;
}

/* What was copied is the caller's, in `ret_ahead`, if it is of this convertor's message, for this peer. */
static bool take(const struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor,
                 struct ivc_btl_ahead *ret_ahead)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    bool found;

    OPAL_THREAD_LOCK(&m->ahead_lock);
    found = m->ahead.endpoint != NULL && (endpoint == NULL || m->ahead.endpoint == endpoint)
            && (convertor == NULL || m->ahead.convertor == convertor);
    if (found) {
        *ret_ahead = m->ahead;
        m->ahead.endpoint = NULL;
    }
    OPAL_THREAD_UNLOCK(&m->ahead_lock);
    return found;
}

void ivc_btl_ahead_end(const struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor)
{
    struct ivc_btl_ahead ahead;

    if (take(endpoint, convertor, &ahead))
        ivc_endpoint_buffer_free(ivc_btl_module.endpoint, &ahead.buffer);
}

/* Whether another one may be copied. What nobody comes for while many others are announced, because its receiver does
 * not want it yet, is given up. */
static bool make_room(void)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    bool is_free, is_old;

    OPAL_THREAD_LOCK(&m->ahead_lock);
    is_free = m->ahead.endpoint == NULL;
    is_old = !is_free && ++m->ahead.passed >= PASSED_MAX;
    OPAL_THREAD_UNLOCK(&m->ahead_lock);
    if (is_old)
        ivc_btl_ahead_end(NULL, NULL);
    return is_free || is_old;
}

/* False: another thread's is there by now. */
static bool put(const struct ivc_btl_ahead *ahead)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    bool is_free;

    OPAL_THREAD_LOCK(&m->ahead_lock);
    is_free = m->ahead.endpoint == NULL;
    if (is_free)
        m->ahead = *ahead;
    OPAL_THREAD_UNLOCK(&m->ahead_lock);
    return is_free;
}

void ivc_btl_ahead_fill(const struct ivc_btl_frag *announcement)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_ahead ahead = announcement->follows;
    size_t total;

    ahead.passed = 0;
    ahead.reserve = m->reserve;     /* 0: no piece but a first one was seen yet */
    if (ahead.len > m->packet_max - ahead.reserve)
        ahead.len = m->packet_max - ahead.reserve;
    total = ahead.reserve + ahead.len;
    if (ahead.reserve == 0 || total <= m->send_max || !make_room()
        || !is_alone(m) || ivc_btl_is_lent(ahead.endpoint, ahead.data, ahead.len)
        || ivc_endpoint_buffer_get_spare(m->endpoint, ahead.endpoint->peer, total, &ahead.buffer) != 0)
        return;
    ivc_copy(ahead.buffer.side, (char *) ahead.buffer.data + ahead.reserve, ahead.data, ahead.len);
    ivc_endpoint_buffer_filled(&ahead.buffer);
    if (!put(&ahead))
        ivc_endpoint_buffer_free(m->endpoint, &ahead.buffer);
}

bool ivc_btl_ahead_take(struct mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor,
                        const void *data, size_t reserve, size_t *len, struct ivc_buffer *ret_buffer)
{
    struct ivc_btl_module *m = &ivc_btl_module;
    struct ivc_btl_ahead ahead;

    m->reserve = reserve;
    if (!take(endpoint, convertor, &ahead))
        return false;
    if (ahead.data != data || ahead.reserve != reserve || ahead.len > *len) {
        ivc_endpoint_buffer_free(m->endpoint, &ahead.buffer);
        return false;
    }
    *len = ahead.len;
    *ret_buffer = ahead.buffer;
    return true;
}
