/* A span, against a plain record of who has which page. */
#include "span.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { PAGES = 61, BLOCKS = 64, STEPS = 200000 };

static struct mpi_span span;
static char *memory;

/* The record: the block of each page, -1: none's; and what the blocks are. */
static struct {
    int block_of[PAGES];
    uint32_t first[BLOCKS], pages[BLOCKS];      /* pages 0: there is none of that number */
} record;

static void open_span(void)
{
    memory = aligned_alloc(MPI_SPAN_PAGE, (size_t)PAGES * MPI_SPAN_PAGE);
    CHECK(memory != NULL);
    CHECK_EQ(mpi_span_init(&span, memory, (size_t)PAGES * MPI_SPAN_PAGE), 0);
    memset(&record, 0, sizeof record);
    for (unsigned i = 0; i < PAGES; i++)
        record.block_of[i] = -1;
}

static void close_span(void)
{
    mpi_span_fini(&span);
    free(memory);
}

static bool is_free(uint32_t first, uint32_t pages)
{
    for (uint32_t i = first; i < first + pages; i++)
        if (i >= PAGES || record.block_of[i] >= 0)
            return false;
    return true;
}

static void mark(int block, uint32_t first, uint32_t pages)
{
    for (uint32_t i = first; i < first + pages; i++)
        record.block_of[i] = block;
}

static uint32_t longest_free(void)
{
    uint32_t most = 0;

    for (uint32_t first = 0; first < PAGES; first++)
        while (is_free(first, most + 1))
            most++;
    return most;
}

static void get(int block, uint32_t pages)
{
    char *at = mpi_span_get(&span, pages);

    CHECK_EQ(at != NULL, longest_free() >= pages);
    if (!at)
        return;
    CHECK_EQ((size_t)(at - memory) % MPI_SPAN_PAGE, 0u);
    record.first[block] = (uint32_t)((size_t)(at - memory) / MPI_SPAN_PAGE);
    record.pages[block] = pages;
    CHECK(is_free(record.first[block], pages));
    mark(block, record.first[block], pages);
}

static void resize(int block, uint32_t pages)
{
    uint32_t first = record.first[block], had = record.pages[block];
    char *at = memory + (size_t)first * MPI_SPAN_PAGE;

    if (pages > had) {
        bool can = is_free(first + had, pages - had);

        CHECK_EQ(mpi_span_extend(&span, at, pages), can);
        if (!can)
            return;
    } else {
        mpi_span_shorten(&span, at, pages);
        mark(-1, first + pages, had - pages);
    }
    mark(block, first, pages);
    record.pages[block] = pages;
}

static void put(int block)
{
    mpi_span_put(&span, memory + (size_t)record.first[block] * MPI_SPAN_PAGE);
    mark(-1, record.first[block], record.pages[block]);
    record.pages[block] = 0;
}

/* Every address that is the beginning of a block is known as that, and no other. */
static void compare(void)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < PAGES; i++) {
        char *at = memory + (size_t)i * MPI_SPAN_PAGE;
        int block = record.block_of[i];
        bool begins = block >= 0 && record.first[block] == i;

        used += block >= 0;
        CHECK_EQ(mpi_span_pages(&span, at), begins ? record.pages[block] : 0);
        CHECK_EQ(mpi_span_pages(&span, at + 4000), begins ? record.pages[block] : 0);
        CHECK(mpi_span_has(&span, at) && mpi_span_has(&span, at + MPI_SPAN_PAGE - 1));
    }
    CHECK_EQ(span.used, used);
    CHECK(!mpi_span_has(&span, memory - 1) && !mpi_span_has(&span, memory + (size_t)PAGES * MPI_SPAN_PAGE));
}

static void test_random(void)
{
    uint64_t random = 0x9e3779b97f4a7c15ull;

    open_span();
    for (unsigned step = 0; step < STEPS; step++) {
        int block;
        uint32_t pages;

        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        block = (int)(random % BLOCKS);
        pages = 1 + (uint32_t)(random >> 20) % ((random >> 40) % 4 ? 4 : 16);
        if (!record.pages[block])
            get(block, pages);
        else if ((random >> 50) % 3 == 0)
            resize(block, pages);
        else
            put(block);
        if (step % 16 == 0)
            compare();
    }
    for (int block = 0; block < BLOCKS; block++)
        if (record.pages[block])
            put(block);
    compare();
    get(0, PAGES);      /* all of it is one block again */
    CHECK_EQ(record.pages[0], PAGES);
    close_span();
}

static void test_nonsense(void)
{
    open_span();
    CHECK(mpi_span_get(&span, 3) == memory);
    CHECK(!mpi_span_get(&span, 0) && !mpi_span_get(&span, PAGES) && !mpi_span_get(&span, UINT32_MAX));
    close_span();
}

static const struct check_case cases[] = {
    { "blocks against a record", test_random, 0 },
    { "too many pages, and none", test_nonsense, 0 },
};
CHECK_MAIN(cases)
