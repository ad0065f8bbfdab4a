/*
 * A span: memory that is handed out in blocks of whole pages.
 *
 * What is known about the blocks lies beside the memory, in memory of the process alone: whoever else can write into
 * the span can spoil what a program keeps there, and no more.
 *
 * Threads: one at a time.
 */
#ifndef IVC_ADAPTER_MPI_SPAN_H
#define IVC_ADAPTER_MPI_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MPI_SPAN_PAGE = 4096 };

/* Of the first and the last page of a block; all zero in between. */
struct mpi_span_page {
    uint32_t pages;             /* that the block has */
    bool begins;                /* it is the first */
    bool used;
};

struct mpi_span {
    char *memory;
    uint32_t pages;
    uint32_t used;              /* pages in blocks that are out */
    uint32_t next;              /* the first page of a block: where the search for a free one begins */
    struct mpi_span_page *table;
    uint32_t residence;         /* its owner's: mpi_memory_residence() */
};

/* `memory` begins where a page does and has room for `size` bytes in whole pages, of which there are at least one and
 * less than 2^32.  -ENOMEM. */
int mpi_span_init(struct mpi_span *span, void *memory, size_t size);
void mpi_span_fini(struct mpi_span *span);

static inline size_t mpi_span_size(const struct mpi_span *span)
{
    return (size_t)span->pages * MPI_SPAN_PAGE;
}

static inline bool mpi_span_has(const struct mpi_span *span, const void *memory)
{
    return (uintptr_t)memory - (uintptr_t)span->memory < mpi_span_size(span);
}

/* A block of so many pages, in which may be anything; NULL: there is none in one piece. */
void *mpi_span_get(struct mpi_span *span, uint32_t pages);
/* The pages of the block that begins in the page of `memory` and is out; 0: none does. */
uint32_t mpi_span_pages(const struct mpi_span *span, const void *memory);
/* Makes a block that is out longer, where it lies, if what follows is free. */
bool mpi_span_extend(struct mpi_span *span, void *memory, uint32_t pages);
/* Keeps the first pages of a block that is out, at least one. */
void mpi_span_shorten(struct mpi_span *span, void *memory, uint32_t pages);
/* Copies what is out to the same places behind `to`. */
void mpi_span_copy(const struct mpi_span *span, void *to);
/* Takes back a block that is out. */
void mpi_span_put(struct mpi_span *span, void *memory);

#endif
