/*
 * How fast messages can be copied in by one processor while another copies them out: the best of many ways.
 *
 * Which is best, depends on the machine and on the length of a message: how much memory they go round in, in pieces of
 * what length, by what instructions.  So all are tried, and the best ones measured.  A stream's window is that of all
 * benchmarks (BENCH_WINDOW): then the sender waits until everything was read.
 *
 * One process calls pipeline_receive(), another one, on another processor, pipeline_send(), for one length after the
 * other, and then pipeline_stop().  The memory between them begins as zeroes.
 */
#ifndef IVC_BENCH_PIPELINE_H
#define IVC_BENCH_PIPELINE_H

#include <stddef.h>

enum { PIPELINE_MESSAGE_MIN = 4 << 10, PIPELINE_MESSAGE_MAX = 4 << 20 };    /* bytes, powers of two */

struct pipeline;

/* Bytes of memory that both share, which begins with a page. */
size_t pipeline_size(void);

/* Returns after pipeline_stop(). */
void pipeline_receive(struct pipeline *pipeline);

/* Prints a line for messages of so many bytes.  -ENOMEM. */
int pipeline_send(struct pipeline *pipeline, size_t message, double seconds);
void pipeline_stop(struct pipeline *pipeline);

#endif
