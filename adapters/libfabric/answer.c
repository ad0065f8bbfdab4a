/*
 * Answers: those of peers to our operations, and ours to theirs.
 *
 * Invariant: what a peer does not take never fills our memory.
 */
#include "internal.h"

#include <string.h>

/* ---------------------------------------------------------------- a peer's */

static void start_ack(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer, struct ivc_message *message,
                      const struct ivc_fi_header *header)
{
    struct ivc_fi_op *op = ivc_fi_op_find(ep, peer, header->id);
    int error = header->data <= INT32_MAX ? (int)header->data : FI_EOTHER;

    (void)message;
    if (!op || !op->answer_due)
        return;
    op->answer_due = false;
    ivc_fi_op_done(op, -error);
}

const struct ivc_fi_kind_ops ivc_fi_receive_ack = {
    .header_min = sizeof(struct ivc_fi_header), .start = start_ack,
};

/* ---------------------------------------------------------------- ours */

/* A peer has at most IVC_FI_QUEUE_SIZE operations that wait for answers.  One that asks for more
 * and takes none is not ours: it gets no more. */
enum { ANSWERS_MAX = 2 * IVC_FI_QUEUE_SIZE };

struct ivc_fi_answer {
    struct ivc_fi_answer *next, **at;   /* all of the endpoint's that wait for room */
    struct ivc_fi_peer *peer;
    char header[IVC_MESSAGE_HEADER_MAX];
    char payload[];
};

static struct ivc_fi_answer *answer_new(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                                        const struct ivc_fi_header *header, const void *payload,
                                        size_t len)
{
    struct ivc_fi_answer *answer = peer->n_answers < ANSWERS_MAX
        ? malloc(sizeof *answer + len) : NULL;

    if (!answer)
        return NULL;
    answer->peer = peer;
    answer->next = ep->answers;
    answer->at = &ep->answers;
    if (ep->answers)
        ep->answers->at = &answer->next;
    ep->answers = answer;
    peer->n_answers++;
    memcpy(answer->header, header, header->len);
    if (len > 0)
        memcpy(answer->payload, payload, len);
    return answer;
}

static void answer_free(struct ivc_fi_answer *answer)
{
    answer->peer->n_answers--;
    *answer->at = answer->next;
    if (answer->next)
        answer->next->at = answer->at;
    free(answer);
}

static void answer_sent(void *answer, int status)
{
    (void)status;       /* a peer that is gone waits for nothing */
    answer_free(answer);
}

bool ivc_fi_answer_waits(int core_answer)
{
    if (core_answer == IVC_E_NOSPACE)
        (void)ivc_fi_error(core_answer);    /* says it, since nobody here ends with it */
    return ivc_message_is_later(core_answer);
}

void ivc_fi_answer(struct ivc_fi_ep *ep, struct ivc_fi_peer *peer,
                   const struct ivc_fi_header *header, const void *payload, size_t len)
{
    struct iovec iov = { (void *)payload, len };
    unsigned n_iov = len > 0;
    struct ivc_fi_answer *answer;
    int r = ivc_mailbox_try_send(ep->mailbox, peer->peer, header, &iov, n_iov);

    if (__builtin_expect(!ivc_fi_answer_waits(r), 1))
        return;
    answer = answer_new(ep, peer, header, payload, len);
    if (!answer) {
        IVC_FI_WARN("no memory for an answer to address %lld, which has not taken %u yet: it will "
                    "wait in vain", (long long)peer->addr, peer->n_answers);
        return;
    }
    iov.iov_base = answer->payload;
    r = ivc_mailbox_answer(ep->mailbox, peer->peer, answer->header, &iov, n_iov, answer_sent, answer);
    if (r < 0)
        answer_free(answer);
}

void ivc_fi_answers_free(struct ivc_fi_ep *ep)
{
    while (ep->answers)
        answer_free(ep->answers);
}
