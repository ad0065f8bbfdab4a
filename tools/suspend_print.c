/* What ivc_suspend says: see suspend.h.  Events go to standard output, errors for people to
 * standard error. */
#include "suspend.h"

#include "base/util.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A text that is put together piece by piece; what does not fit is left out. */
struct text {
    char *at;
    size_t left;
};

static char all[TEXT_MAX];

static struct text begin(void)
{
    all[0] = '\0';
    return (struct text){ all, sizeof all };
}

__attribute__((format(printf, 2, 3)))
static void put(struct text *text, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < text->left) {
        text->at += n;
        text->left -= (size_t)n;
    } else {
        *text->at = '\0';       /* half a piece would be no JSON */
        text->left = 1;
    }
}

/* JSON strings are UTF-8; what a process wrote may be anything, so all but ASCII becomes '?'. */
static void put_string(struct text *text, const char *string)
{
    char escaped[2 * REASON_MAX], *to = escaped;

    for (; *string && to < escaped + sizeof escaped - 2; string++) {
        if (*string == '"' || *string == '\\')
            *to++ = '\\';
        *to++ = *string >= 0x20 && *string < 0x7f ? *string : '?';
    }
    *to = '\0';
    put(text, "\"%s\"", escaped);
}

static void put_person(struct text *text, const struct people *people, const struct person *person,
                       const char *reason)
{
    const struct ivc_member *member = &person->member;

    put(text, "{\"rank\": ");
    if (person_has_rank(person))
        put(text, "%" PRIu32, member->client_id);
    else
        put(text, "null");
    put(text, ", \"host\": ");
    put_string(text, member->host);
    put(text, ", \"pid\": %" PRIu32 ", \"slot\": %" PRIu32 ", \"vm\": \"%016" PRIx64
        "\", \"guest\": %" PRIu32 ", \"job\": \"%016" PRIx64 "\", \"reason\": ", member->pid,
        member->slot, member->vm, person_guest(people, person), member->magic_id);
    put_string(text, reason);
    put(text, "}");
}

typedef bool chosen_fn(const struct say *say, const struct person *person);

static bool is_asked(const struct say *say, const struct person *person)
{
    return person->present && person_is_of(person, say->vms, say->n_vms);
}

static bool is_too_old(const struct say *say, const struct person *person)
{
    return person_is_too_old(say->people, person, say->vms, say->n_vms);
}

static void reason_of(const struct say *say, const struct person *person, chosen_fn *chosen,
                      char ret_reason[REASON_MAX])
{
    if (chosen == is_too_old)
        snprintf(ret_reason, REASON_MAX, "it uses a library that does not know orders, or no "
                 "network to go on by (IVC_NETWORK)");
    else
        person_reason(say->people, person, ret_reason);
}

static void put_people(struct text *text, const struct say *say, chosen_fn *chosen)
{
    char reason[REASON_MAX];
    bool first = true;

    put(text, "[");
    for (uint32_t i = 0; i < say->people->n_slots; i++) {
        const struct person *person = &say->people->slots[i];

        if (!chosen(say, person))
            continue;
        reason_of(say, person, chosen, reason);
        put(text, "%s", first ? "" : ", ");
        put_person(text, say->people, person, reason);
        first = false;
    }
    put(text, "]");
}

/* A line for each, which starts with `before`. */
static void put_lines(struct text *text, const struct say *say, chosen_fn *chosen,
                      const char *before, const char *between)
{
    char reason[REASON_MAX], name[140];

    for (uint32_t i = 0; i < say->people->n_slots; i++) {
        const struct person *person = &say->people->slots[i];

        if (!chosen(say, person))
            continue;
        reason_of(say, person, chosen, reason);
        person_name(person, name, sizeof name);
        put(text, "%s%s%s%s\n", before, name, between, reason);
    }
}

static void put_vms(struct text *text, const struct say *say)
{
    put(text, "[");
    for (unsigned i = 0; i < say->n_vms; i++)
        put(text, "%s\"%016" PRIx64 "\"", i ? ", " : "", say->vms[i]);
    put(text, "]");
}

static void print(FILE *to, const char *text)
{
    fputs(text, to);
    fflush(to);
}

/* Every identity that is there, each once. */
static unsigned guests_there(const struct say *say, uint64_t vms[GUESTS_MAX])
{
    unsigned n = 0;

    for (uint32_t i = 0; i < say->people->n_slots; i++) {
        const struct person *person = &say->people->slots[i];

        if (person->present && n < GUESTS_MAX && !person_is_of(person, vms, n))
            vms[n++] = person->member.vm;
    }
    return n;
}

static void put_guest_json(struct text *text, const struct say *guest, const char *before)
{
    put(text, "%s{\"vm\": \"%016" PRIx64 "\", \"members\": ", before, *guest->vms);
    put_people(text, guest, is_asked);
    put(text, "}");
}

static void put_guest(struct text *text, const struct say *guest)
{
    put(text, "guest %016" PRIx64 ":\n", *guest->vms);
    for (uint32_t i = 0; i < guest->people->n_slots; i++) {
        const struct person *person = &guest->people->slots[i];
        char name[140];

        if (!is_asked(guest, person))
            continue;
        person_name(person, name, sizeof name);
        put(text, "    %s%s\n", name, person->member.features & IVC_FEATURE_ORDERS ? ""
            : ", uses a library that does not know orders, or no network");
    }
}

static void put_guests(struct text *text, const struct say *say)
{
    uint64_t vms[GUESTS_MAX];
    unsigned n = guests_there(say, vms);

    if (say->json)
        put(text, "[");
    for (unsigned i = 0; i < n; i++) {
        struct say guest = { say->people, &vms[i], 1, say->json };

        if (say->json)
            put_guest_json(text, &guest, i ? ", " : "");
        else
            put_guest(text, &guest);
    }
    if (say->json)
        put(text, "]");
    else if (n == 0)
        put(text, "nobody is in the region\n");
}

void say_guests(const struct say *say)
{
    struct text text = begin();

    if (say->json)
        put(&text, "{\"event\": \"list\", \"guests\": ");
    put_guests(&text, say);
    if (say->json)
        put(&text, "}\n");
    print(stdout, all);
}

void say_ordered(const struct say *say)
{
    struct text text = begin();

    put(&text, say->json ? "{\"event\": \"ordered\", \"vms\": " : "asked to leave: ");
    put_vms(&text, say);
    put(&text, say->json ? "}\n" : "\n");
    print(stdout, all);
}

void say_waiting(const struct say *say, char *last)
{
    struct text text = begin();

    if (say->json) {
        put(&text, "{\"event\": \"waiting\", \"for\": ");
        put_people(&text, say, is_asked);
        put(&text, "}\n");
    } else {
        put_lines(&text, say, is_asked, "waiting for ", ": ");
    }
    if (strcmp(all, last) == 0)
        return;
    strcpy(last, all);
    print(stdout, all);
}

void say_answered(const struct say *say, double seconds)
{
    printf(say->json ? "{\"event\": \"answered\", \"seconds\": %.3f}\n"
                     : "all have left after %.3f s; the order stands until standard input ends\n",
           seconds);
    fflush(stdout);
}

void say_nobody(const struct say *say, const char *name)
{
    struct text text = begin();

    if (say->json) {
        put(&text, "{\"event\": \"nobody\", \"name\": ");
        put_string(&text, name);
        put(&text, ", \"guests\": ");
        put_guests(&text, say);
        put(&text, "}\n");
    } else {
        put(&text, "nobody of %s is in the region; there are:\n", name);
        put_guests(&text, say);
    }
    print(stdout, all);
}

void say_timeout(const struct say *say, double seconds)
{
    struct text text = begin();

    if (say->json) {
        put(&text, "{\"event\": \"timeout\", \"seconds\": %.3f, \"for\": ", seconds);
        put_people(&text, say, is_asked);
        put(&text, "}\n");
        print(stdout, all);
        return;
    }
    put_lines(&text, say, is_asked, "ivc_suspend: ", " did not answer: ");
    put(&text, "ivc_suspend: gave up after %.1f s and withdrew the order; the job goes on through "
        "memory, ask again or with a longer --timeout\n", seconds);
    print(stderr, all);
}

void say_too_old(const struct say *say)
{
    struct text text = begin();

    if (say->json) {
        put(&text, "{\"event\": \"refused\", \"for\": ");
        put_people(&text, say, is_too_old);
        put(&text, "}\n");
        print(stdout, all);
        return;
    }
    put_lines(&text, say, is_too_old, "ivc_suspend: ", ": ");
    put(&text, "ivc_suspend: nobody was asked; end that job, or start it with this version\n");
    print(stderr, all);
}

void say_withdrawn(const struct say *say)
{
    if (say->json)
        print(stdout, "{\"event\": \"withdrawn\"}\n");
}

void say_error(bool json, const char *text)
{
    struct text out = begin();

    if (!json) {
        fprintf(stderr, "ivc_suspend: %s\n", text);
        return;
    }
    put(&out, "{\"event\": \"error\", \"error\": ");
    put_string(&out, text);
    put(&out, "}\n");
    print(stdout, all);
}
