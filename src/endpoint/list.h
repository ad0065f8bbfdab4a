/*
 * Lists whose links lie in the members: what is in a list leaves it without a search.  A link that
 * is in no list points to itself, so leaving twice does no harm.
 */
#ifndef IVC_ENDPOINT_LIST_H
#define IVC_ENDPOINT_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct ivc_link {
    struct ivc_link *next, *previous;
};

#define IVC_MEMBER_OF(type, field, link) ((type *)((char *)(link) - offsetof(type, field)))

static inline void ivc_list_init(struct ivc_link *link)
{
    link->next = link->previous = link;
}

static inline bool ivc_list_is_empty(const struct ivc_link *list)
{
    return list->next == list;
}

static inline void ivc_list_remove(struct ivc_link *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    ivc_list_init(link);
}

/* To the end of `list`, from wherever it was. */
static inline void ivc_list_move(struct ivc_link *link, struct ivc_link *list)
{
    ivc_list_remove(link);
    link->next = list;
    link->previous = list->previous;
    list->previous->next = link;
    list->previous = link;
}

#endif
