/* Names of messages under way: see message-internal.h. */
#include "base/error.h"
#include "base/util.h"
#include "endpoint/message-internal.h"

#include <errno.h>

enum { FIRST_PLACES = 16 };

static int grow(struct ivc_ids *ids)
{
    uint32_t n = ids->n_places ? 2 * ids->n_places : FIRST_PLACES;
    struct ivc_id_place *places = realloc(ids->places, n * sizeof *places);

    if (!places)
        return ivc_error_set(-ENOMEM, "messages under way: out of memory");
    for (uint32_t i = ids->n_places; i < n; i++)
        places[i] = (struct ivc_id_place){ .use = 1, .next_free = i + 1 };
    ids->first_free = ids->n_places;
    ids->places = places;
    ids->n_places = n;
    return 0;
}

int ivc_ids_take(struct ivc_ids *ids, void *object, uint64_t *ret_id)
{
    uint32_t i;
    int r = ids->first_free == ids->n_places ? grow(ids) : 0;

    if (r < 0)
        return r;
    i = ids->first_free;
    ids->first_free = ids->places[i].next_free;
    ids->places[i].object = object;
    *ret_id = (uint64_t)ids->places[i].use << 32 | i;
    return 0;
}

void *ivc_ids_find(const struct ivc_ids *ids, uint64_t id)
{
    uint32_t i = (uint32_t)id;

    return i < ids->n_places && ids->places[i].use == id >> 32 ? ids->places[i].object : NULL;
}

void ivc_ids_drop(struct ivc_ids *ids, uint64_t id)
{
    uint32_t i = (uint32_t)id;

    ids->places[i].object = NULL;
    ids->places[i].use++;
    ids->places[i].next_free = ids->first_free;
    ids->first_free = i;
}
