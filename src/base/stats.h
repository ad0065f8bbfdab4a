/*
 * IVC_STATS: what is asked for, and the files of JSON lines that json:DIR asks for (docs/profile-format.md).
 *
 * A file is made with its first line, HOST.PID[.N]SUFFIX in that folder; each line is one write(2), so that whatever
 * ends the process leaves whole lines.  One thread at a time writes to a file.
 */
#ifndef IVC_BASE_STATS_H
#define IVC_BASE_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Whether lines are to be printed at the end; whether files are to be written instead. */
bool ivc_stats_are_printed(void);
bool ivc_stats_are_written(void);

struct ivc_stats_file {
    char *folder;
    const char *suffix;
    bool numbered;              /* the first has a number, too */
    char *head;                 /* the first line */
    uint64_t begin_ns;
    int fd;                     /* -1: not made yet */
    bool failed;                /* nothing can be written, and that was said */
};

/* A line that is being made, in memory. */
struct ivc_stats_line {
    FILE *to;
    char *text;
    size_t len;
};
/* NULL: out of memory. */
FILE *ivc_stats_line_begin(struct ivc_stats_line *line);

/* `head` begins the first line, which this ends with the fields that all have; negative with a text. */
int ivc_stats_file_open(struct ivc_stats_file *ret_file, const char *suffix, bool numbered, struct ivc_stats_line *head);
/* Writes the line and frees it.  What cannot be written is said, once in the process. */
void ivc_stats_file_write(struct ivc_stats_file *file, struct ivc_stats_line *line);
/* With the line that says so, if anything was written. */
void ivc_stats_file_end(struct ivc_stats_file *file);
/* Since it was opened. */
double ivc_stats_file_seconds(const struct ivc_stats_file *file);

/* A string of JSON, with its quotes: what is not printable ASCII is written as its number.  `null` for NULL and "". */
void ivc_stats_put_string(FILE *to, const char *text);

#endif
