/*
 * Messages between two ranks: nonblocking, blocking, of any source, scattered, too long.
 *
 * Both sides draw the sizes from the same stream, so nothing but the data itself travels.
 */
#include "integrity.h"

#include <inttypes.h>

enum { PER_PAIR = 4 };      /* messages per ordered pair and test */
enum kind { NONBLOCKING, BLOCKING, ANY_SOURCE, DATATYPES, TRUNCATION, ONE_BUFFER };

static struct pattern pattern_of(const struct run *run, int src, int dst, enum kind kind, int n)
{
    return (struct pattern){ run->seed, src, dst,
                             run->iteration << 16 | (unsigned)kind << 8 | (unsigned)n };
}

static void sizes_draw(const struct run *run, int src, int dst, enum kind kind,
                       size_t ret_sizes[PER_PAIR])
{
    uint64_t random = stream(run, src, dst, kind);

    for (int n = 0; n < PER_PAIR; n++)
        ret_sizes[n] = pattern_size(&random, run->max_size);
}

static unsigned char *filled(const struct run *run, const struct pattern *p, size_t size)
{
    unsigned char *data = memory(run, size);

    pattern_fill(p, data, size);
    return data;
}

struct batch {
    MPI_Request *requests;
    unsigned char **data;
    int n;
};

static struct batch batch_new(const struct run *run, int max)
{
    return (struct batch){ memory(run, sizeof(MPI_Request) * max),
                           memory(run, sizeof(unsigned char *) * max), 0 };
}

static void batch_free(const struct run *run, struct batch *batch)
{
    for (int i = 0; i < batch->n; i++)
        memory_free(run, batch->data[i]);
    memory_free(run, batch->data);
    memory_free(run, batch->requests);
}

/* Starts all our messages of a kind to all others, the tag being the number. */
static struct batch send_all(const struct run *run, enum kind kind)
{
    struct batch batch = batch_new(run, run->ranks * PER_PAIR);

    for (int dst = 0; dst < run->ranks; dst++) {
        size_t sizes[PER_PAIR];

        sizes_draw(run, run->rank, dst, kind, sizes);
        for (int n = 0; n < PER_PAIR; n++, batch.n++) {
            struct pattern p = pattern_of(run, run->rank, dst, kind, n);

            batch.data[batch.n] = filled(run, &p, sizes[n]);
            MPI_Isend(batch.data[batch.n], (int)sizes[n], MPI_BYTE, dst, n, MPI_COMM_WORLD,
                      &batch.requests[batch.n]);
        }
    }
    return batch;
}

/* Everybody to everybody, ourselves included, all at once. */
void test_nonblocking(struct run *run)
{
    struct batch in = batch_new(run, run->ranks * PER_PAIR), out;
    size_t sizes[PER_PAIR];
    int i = 0;

    for (int src = 0; src < run->ranks; src++) {
        sizes_draw(run, src, run->rank, NONBLOCKING, sizes);
        for (int n = 0; n < PER_PAIR; n++, in.n++) {
            in.data[in.n] = memory(run, sizes[n]);
            MPI_Irecv(in.data[in.n], (int)sizes[n], MPI_BYTE, src, n, MPI_COMM_WORLD,
                      &in.requests[in.n]);
        }
    }
    out = send_all(run, NONBLOCKING);
    MPI_Waitall(in.n, in.requests, MPI_STATUSES_IGNORE);
    for (int src = 0; src < run->ranks; src++) {
        sizes_draw(run, src, run->rank, NONBLOCKING, sizes);
        for (int n = 0; n < PER_PAIR; n++, i++) {
            struct pattern p = pattern_of(run, src, run->rank, NONBLOCKING, n);

            check(run, &p, in.data[i], sizes[n], "nonblocking message");
        }
    }
    MPI_Waitall(out.n, out.requests, MPI_STATUSES_IGNORE);
    batch_free(run, &in);
    batch_free(run, &out);
}

static void send_blocking(const struct run *run, int dst)
{
    size_t sizes[PER_PAIR];

    sizes_draw(run, run->rank, dst, BLOCKING, sizes);
    for (int n = 0; n < PER_PAIR; n++) {
        struct pattern p = pattern_of(run, run->rank, dst, BLOCKING, n);
        unsigned char *data = filled(run, &p, sizes[n]);
        void *buffer = NULL;
        int buffer_size = (int)sizes[n] + MPI_BSEND_OVERHEAD;

        switch ((run->iteration + (unsigned)n) % 3) {
        case 0:
            MPI_Send(data, (int)sizes[n], MPI_BYTE, dst, n, MPI_COMM_WORLD);
            break;
        case 1:
            MPI_Ssend(data, (int)sizes[n], MPI_BYTE, dst, n, MPI_COMM_WORLD);
            break;
        default:
            buffer = memory(run, (size_t)buffer_size);
            MPI_Buffer_attach(buffer, buffer_size);
            MPI_Bsend(data, (int)sizes[n], MPI_BYTE, dst, n, MPI_COMM_WORLD);
            memset(data, 0, sizes[n]);  /* ours again, whatever became of the message */
            MPI_Buffer_detach(&buffer, &buffer_size);
            memory_free(run, buffer);
        }
        memory_free(run, data);
    }
}

static void receive_blocking(struct run *run, int src)
{
    size_t sizes[PER_PAIR];

    sizes_draw(run, src, run->rank, BLOCKING, sizes);
    for (int n = 0; n < PER_PAIR; n++) {
        struct pattern p = pattern_of(run, src, run->rank, BLOCKING, n);
        unsigned char *data = memory(run, sizes[n]);
        MPI_Status status;
        int count;

        MPI_Recv(data, (int)sizes[n], MPI_BYTE, src, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        if (status.MPI_TAG != n || (size_t)count != sizes[n])
            fail(run, "blocking message from %d: tag %d with %d bytes, expected tag %d with %zu",
                 src, status.MPI_TAG, count, n, sizes[n]);
        check(run, &p, data, sizes[n], "blocking message");
        memory_free(run, data);
    }
}

/* Pair by pair in the same order everywhere, the lower rank sends first. */
void test_blocking(struct run *run)
{
    for (int low = 0; low < run->ranks; low++) {
        for (int high = low + 1; high < run->ranks; high++) {
            if (run->rank == low) {
                send_blocking(run, high);
                receive_blocking(run, high);
            } else if (run->rank == high) {
                receive_blocking(run, low);
                send_blocking(run, low);
            }
        }
    }
}

/* Messages out of one buffer, with other bytes each time, by one request that is started again and by others: what
 * is sent is what was there when the send began. */
void test_one_buffer(struct run *run)
{
    enum { TIMES = 6 };
    int dst = (run->rank + 1) % run->ranks, src = (run->rank + run->ranks - 1) % run->ranks;
    uint64_t out_random = stream(run, run->rank, dst, ONE_BUFFER);
    uint64_t in_random = stream(run, src, run->rank, ONE_BUFFER);
    int size_out = (int)pattern_size(&out_random, run->max_size);
    int size_in = (int)pattern_size(&in_random, run->max_size);
    unsigned char *out = memory(run, (size_t)size_out), *in = memory(run, (size_t)size_in);
    MPI_Request again, other;

    MPI_Send_init(out, size_out, MPI_BYTE, dst, 0, MPI_COMM_WORLD, &again);
    for (int n = 0; n < TIMES; n++) {
        struct pattern p_out = pattern_of(run, run->rank, dst, ONE_BUFFER, n);
        struct pattern p_in = pattern_of(run, src, run->rank, ONE_BUFFER, n);
        int part_out = n % 2 == 0 ? size_out : size_out - size_out / 3;
        int part_in = n % 2 == 0 ? size_in : size_in - size_in / 3;

        pattern_fill(&p_out, out, (size_t)size_out);
        if (n % 2 == 0)
            MPI_Start(&again);
        else
            MPI_Issend(out, part_out, MPI_BYTE, dst, 0, MPI_COMM_WORLD, &other);
        MPI_Recv(in, part_in, MPI_BYTE, src, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(run, &p_in, in, (size_t)part_in, "message out of one buffer");
        MPI_Wait(n % 2 == 0 ? &again : &other, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&again);
    memory_free(run, out);
    memory_free(run, in);
}

/* Takes messages as they come; those of one source must come in the order of their numbers. */
void test_any_source(struct run *run)
{
    struct batch out = send_all(run, ANY_SOURCE);
    int *next = memory(run, sizeof *next * (size_t)run->ranks);
    void *data = memory(run, run->max_size);

    memset(next, 0, sizeof *next * (size_t)run->ranks);
    for (int i = 0; i < run->ranks * PER_PAIR; i++) {
        size_t sizes[PER_PAIR];
        MPI_Status status;
        struct pattern p;
        int size;

        if (run->iteration % 2 == 0) {  /* or else without knowing what comes */
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &size);
            MPI_Recv(data, size, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD,
                     &status);
        } else {
            MPI_Recv(data, (int)run->max_size, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG,
                     MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &size);
        }
        sizes_draw(run, status.MPI_SOURCE, run->rank, ANY_SOURCE, sizes);
        if (status.MPI_TAG != next[status.MPI_SOURCE])
            fail(run, "message of any source: number %d of rank %d came, number %d was next",
                 status.MPI_TAG, status.MPI_SOURCE, next[status.MPI_SOURCE]);
        if ((size_t)size != sizes[status.MPI_TAG])
            fail(run, "message of any source: %d bytes from rank %d, expected %zu", size,
                 status.MPI_SOURCE, sizes[status.MPI_TAG]);
        next[status.MPI_SOURCE]++;
        p = pattern_of(run, status.MPI_SOURCE, run->rank, ANY_SOURCE, status.MPI_TAG);
        check(run, &p, data, (size_t)size, "message of any source");
    }
    MPI_Waitall(out.n, out.requests, MPI_STATUSES_IGNORE);
    batch_free(run, &out);
    memory_free(run, data);
    memory_free(run, next);
    MPI_Barrier(MPI_COMM_WORLD);    /* or a fast rank's next test is taken for this one */
}

/* `n` blocks of `block` bytes, `stride` apart. */
struct layout {
    int n, block, stride;
};

static struct layout layout_draw(const struct run *run, int src, int dst)
{
    uint64_t random = stream(run, src, dst, DATATYPES);
    size_t size = pattern_size(&random, run->max_size / 2);
    int block = 1 + (int)(pattern_random(&random) % 300);

    return (struct layout){ (int)(size / (size_t)block) + 1, block,
                            block + (int)(pattern_random(&random) % 64) };
}

static void scatter(const struct layout *l, unsigned char *to, const unsigned char *from)
{
    for (int i = 0; i < l->n; i++)
        memcpy(to + (size_t)i * (size_t)l->stride, from + (size_t)i * (size_t)l->block,
               (size_t)l->block);
}

static void gather(const struct layout *l, unsigned char *to, const unsigned char *from)
{
    for (int i = 0; i < l->n; i++)
        memcpy(to + (size_t)i * (size_t)l->block, from + (size_t)i * (size_t)l->stride,
               (size_t)l->block);
}

static void gaps_check(const struct run *run, const struct layout *l, const unsigned char *data)
{
    for (int i = 0; i + 1 < l->n; i++)
        for (int at = l->block; at < l->stride; at++)
            if (data[(size_t)i * (size_t)l->stride + (size_t)at] != 0xee)
                fail(run, "scattered message: a byte between blocks %d and %d was written", i,
                     i + 1);
}

/* Scattered at the sender, at the receiver, or at both; round the ring of ranks. */
void test_datatypes(struct run *run)
{
    int dst = (run->rank + 1) % run->ranks, src = (run->rank + run->ranks - 1) % run->ranks;
    struct layout out = layout_draw(run, run->rank, dst), in = layout_draw(run, src, run->rank);
    size_t out_size = (size_t)out.n * (size_t)out.block, in_size = (size_t)in.n * (size_t)in.block;
    struct pattern p_out = pattern_of(run, run->rank, dst, DATATYPES, 0);
    struct pattern p_in = pattern_of(run, src, run->rank, DATATYPES, 0);
    unsigned char *packed = filled(run, &p_out, out_size), *result = memory(run, in_size);
    unsigned char *sparse = memory(run, (size_t)out.n * (size_t)out.stride);
    unsigned char *sparse_in = memory(run, (size_t)in.n * (size_t)in.stride);
    int scatter_out = run->iteration % 3 != 1, scatter_in = run->iteration % 3 != 0;
    MPI_Datatype out_type, in_type;

    MPI_Type_vector(out.n, out.block, out.stride, MPI_BYTE, &out_type);
    MPI_Type_vector(in.n, in.block, in.stride, MPI_BYTE, &in_type);
    MPI_Type_commit(&out_type);
    MPI_Type_commit(&in_type);
    scatter(&out, sparse, packed);
    memset(sparse_in, 0xee, (size_t)in.n * (size_t)in.stride);
    MPI_Sendrecv(scatter_out ? sparse : packed, scatter_out ? 1 : (int)out_size,
                 scatter_out ? out_type : MPI_BYTE, dst, 0,
                 scatter_in ? sparse_in : result, scatter_in ? 1 : (int)in_size,
                 scatter_in ? in_type : MPI_BYTE, src, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (scatter_in) {
        gaps_check(run, &in, sparse_in);
        gather(&in, result, sparse_in);
    }
    check(run, &p_in, result, in_size, "scattered message");
    MPI_Type_free(&out_type);
    MPI_Type_free(&in_type);
    memory_free(run, packed);
    memory_free(run, sparse);
    memory_free(run, sparse_in);
    memory_free(run, result);
}

/* A message that is longer than the receive must be reported, and cost nothing else.  Long ones only where
 * we lend memory, and so carry them: Open MPI itself overruns the receiver's memory when vader fetches one. */
static void truncate_one(struct run *run, int size, int room)
{
    int dst = (run->rank + 1) % run->ranks, src = (run->rank + run->ranks - 1) % run->ranks;
    struct pattern p_out = pattern_of(run, run->rank, dst, TRUNCATION, 0);
    struct pattern p_in = pattern_of(run, src, run->rank, TRUNCATION, 0);
    unsigned char *out = filled(run, &p_out, (size_t)size), *in = memory(run, (size_t)size);
    MPI_Request request;
    int error, class = MPI_SUCCESS;

    memset(in, 0xee, (size_t)size);
    MPI_Isend(out, size, MPI_BYTE, dst, 0, MPI_COMM_WORLD, &request);
    error = MPI_Recv(in, room, MPI_BYTE, src, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS)
        MPI_Error_class(error, &class);
    if (class != MPI_ERR_TRUNCATE)
        fail(run, "a message of %d bytes into room for %d was not reported as truncated", size,
             room);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int at = room; at < size; at++)
        if (in[at] != 0xee)
            fail(run, "a message of %d bytes into room for %d wrote byte %d", size, room, at);
    check(run, &p_in, in, (size_t)room, "truncated message");
    memory_free(run, out);
    memory_free(run, in);
}

void test_truncation(struct run *run)
{
    /* Sent by a rank to itself: that is not ours to carry, and Open MPI writes beyond the receiver's memory. */
    if (run->ranks == 1)
        return;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    truncate_one(run, 8, 4);
    truncate_one(run, 40, 30);
    truncate_one(run, 200, 100);
    truncate_one(run, 3000, 2999);
    if (run->alloc_mem) {
        truncate_one(run, 100000, 99999);
        truncate_one(run, 300000, 20000);
        run->alloc_mem = false;
        truncate_one(run, 20000, 15000);
        truncate_one(run, 100000, 20000);
        run->alloc_mem = true;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Barrier(MPI_COMM_WORLD);
}
