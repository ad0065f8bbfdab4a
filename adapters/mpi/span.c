/* A span: see span.h.  Of two blocks that follow each other one at least is out. */
#include "span.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void set(struct mpi_span *span, uint32_t first, uint32_t pages, bool used)
{
    span->table[first + pages - 1] = (struct mpi_span_page){ .pages = pages, .used = used };
    span->table[first] = (struct mpi_span_page){ .pages = pages, .begins = true, .used = used };
}

int mpi_span_init(struct mpi_span *span, void *memory, size_t size)
{
    *span = (struct mpi_span){ .memory = memory, .pages = (uint32_t)(size / MPI_SPAN_PAGE) };
    span->table = calloc(span->pages, sizeof *span->table);
    if (!span->table)
        return -ENOMEM;
    set(span, 0, span->pages, false);
    return 0;
}

void mpi_span_fini(struct mpi_span *span)
{
    free(span->table);
    *span = (struct mpi_span){ 0 };
}

/* Forgets the block that begins there: its pages. */
static uint32_t unset(struct mpi_span *span, uint32_t first)
{
    uint32_t pages = span->table[first].pages;

    span->table[first + pages - 1] = span->table[first] = (struct mpi_span_page){ 0 };
    return pages;
}

/* Makes a free block of pages that belong to none, and of its free neighbours: where it begins. */
static uint32_t set_free(struct mpi_span *span, uint32_t first, uint32_t pages)
{
    uint32_t behind = first + pages;

    if (behind < span->pages && !span->table[behind].used)
        pages += unset(span, behind);
    if (first > 0 && !span->table[first - 1].used) {
        first -= span->table[first - 1].pages;
        pages += unset(span, first);
    }
    set(span, first, pages, false);
    return first;
}

/* Of pages that belong to none the first are a block that is out, the others free. */
static void split(struct mpi_span *span, uint32_t first, uint32_t had, uint32_t pages)
{
    set(span, first, pages, true);
    if (had > pages)
        set_free(span, first + pages, had - pages);
    span->used += pages;
    span->next = first;
}

static bool search(const struct mpi_span *span, uint32_t from, uint32_t to, uint32_t pages, uint32_t *ret_first)
{
    for (uint32_t first = from; first < to; first += span->table[first].pages)
        if (!span->table[first].used && span->table[first].pages >= pages) {
            *ret_first = first;
            return true;
        }
    return false;
}

void *mpi_span_get(struct mpi_span *span, uint32_t pages)
{
    uint32_t first;

    if (pages == 0 || pages > span->pages - span->used
        || (!search(span, span->next, span->pages, pages, &first) && !search(span, 0, span->next, pages, &first)))
        return NULL;
    split(span, first, unset(span, first), pages);
    return span->memory + (size_t)first * MPI_SPAN_PAGE;
}

static uint32_t page_at(const struct mpi_span *span, const void *memory)
{
    return (uint32_t)(((uintptr_t)memory - (uintptr_t)span->memory) / MPI_SPAN_PAGE);
}

uint32_t mpi_span_pages(const struct mpi_span *span, const void *memory)
{
    const struct mpi_span_page *page = &span->table[page_at(span, memory)];

    return page->begins && page->used ? page->pages : 0;
}

bool mpi_span_extend(struct mpi_span *span, void *memory, uint32_t pages)
{
    uint32_t first = page_at(span, memory), had = span->table[first].pages, behind = first + had;

    if (behind == span->pages || span->table[behind].used || pages - had > span->table[behind].pages)
        return false;
    span->used -= unset(span, first);
    split(span, first, had + unset(span, behind), pages);
    return true;
}

void mpi_span_shorten(struct mpi_span *span, void *memory, uint32_t pages)
{
    uint32_t first = page_at(span, memory), had = unset(span, first);

    span->used -= had;
    split(span, first, had, pages);
}

void mpi_span_put(struct mpi_span *span, void *memory)
{
    uint32_t first = page_at(span, memory), pages = unset(span, first);

    span->used -= pages;
    span->next = set_free(span, first, pages);
}

void mpi_span_copy(const struct mpi_span *span, void *to)
{
    for (uint32_t first = 0; first < span->pages; first += span->table[first].pages)
        if (span->table[first].used)
            memcpy((char *)to + (size_t)first * MPI_SPAN_PAGE, span->memory + (size_t)first * MPI_SPAN_PAGE,
                   (size_t)span->table[first].pages * MPI_SPAN_PAGE);
}
