/* Files of JSON lines: see stats.h. */
#include "base/stats.h"

#include "base/atomics.h"
#include "base/error.h"
#include "base/launcher.h"
#include "base/util.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 4096 };      /* of one process, and of those that had its number */

/* ---------------------------------------------------------------- what is asked for */

/* Behind "json"; NULL: something else is asked for. */
static const char *behind_json(void)
{
    const char *text = getenv("IVC_STATS");

    if (!text || strncmp(text, "json", 4) != 0 || (text[4] && text[4] != ':'))
        return NULL;
    return text + 4;
}

bool ivc_stats_are_written(void)
{
    return behind_json() != NULL;
}

bool ivc_stats_are_printed(void)
{
    return ivc_env_is_on("IVC_STATS") && !ivc_stats_are_written();
}

/* ---------------------------------------------------------------- lines */

void ivc_stats_put_string(FILE *to, const char *text)
{
    if (!text || !*text) {
        fputs("null", to);
        return;
    }
    fputc('"', to);
    for (; *text; text++) {
        uint8_t c = (uint8_t)*text;

        if (c < ' ' || c >= 0x7f || c == '"' || c == '\\')
            fprintf(to, "\\u%04x", c);
        else
            fputc(c, to);
    }
    fputc('"', to);
}

FILE *ivc_stats_line_begin(struct ivc_stats_line *line)
{
    line->text = NULL;
    line->to = open_memstream(&line->text, &line->len);
    return line->to;
}

/* ---------------------------------------------------------------- the file */

static void say_failed(struct ivc_stats_file *file, const char *what, int error)
{
    static ivc_atomic_u32 said;

    file->failed = true;
    if (ivc_cas(&said, 0, 1))
        fprintf(stderr, "ivc: IVC_STATS=json:%s: %s: %s; the job goes on, and what it sends is not written there\n",
                file->folder, what, strerror(error));
}

/* Of letters, digits and "._-": a part of a file's name. */
static void file_host(char *ret_host, size_t size)
{
    if (gethostname(ret_host, size) != 0 || !*ret_host)
        snprintf(ret_host, size, "localhost");
    ret_host[size - 1] = '\0';
    for (char *c = ret_host; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
            *c = '_';
}

/* The first number that is free: another file of ours has a lower one, or somebody else's who wrote there. */
static int file_create(const struct ivc_stats_file *file)
{
    char host[64], path[4096], number[16] = "";
    int fd = -1;

    file_host(host, sizeof host);
    if (mkdir(file->folder, 0777) != 0 && errno != EEXIST)
        return -errno;
    for (unsigned n = 0; fd < 0 && n < FILES_MAX; n++) {
        if (n > 0 || file->numbered)
            snprintf(number, sizeof number, ".%u", n);
        if (snprintf(path, sizeof path, "%s/%s.%ld%s%s", file->folder, host, (long)getpid(), number, file->suffix)
            >= (int)sizeof path)
            return -ENAMETOOLONG;
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            return -errno;
    }
    return fd < 0 ? -EEXIST : fd;
}

static void write_all(struct ivc_stats_file *file, const char *text, size_t len)
{
    while (len > 0 && !file->failed) {
        ssize_t n = write(file->fd, text, len);

        if (n < 0 && errno != EINTR)
            say_failed(file, "cannot write", errno);
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
}

static void file_begin(struct ivc_stats_file *file)
{
    int fd = file_create(file);

    if (fd < 0) {
        say_failed(file, "cannot make a file", -fd);
        return;
    }
    file->fd = fd;
    write_all(file, file->head, strlen(file->head));
}

void ivc_stats_file_write(struct ivc_stats_file *file, struct ivc_stats_line *line)
{
    if (fclose(line->to) == 0) {
        if (file->fd < 0 && !file->failed)
            file_begin(file);
        write_all(file, line->text, line->len);
    }
    free(line->text);
}

double ivc_stats_file_seconds(const struct ivc_stats_file *file)
{
    return (double)(ivc_now_ns() - file->begin_ns) * 1e-9;
}

/* What every first line ends with. */
static void put_process(FILE *to)
{
    struct timespec now;
    char host[64];

    if (gethostname(host, sizeof host) != 0)
        host[0] = '\0';
    host[sizeof host - 1] = '\0';
    clock_gettime(CLOCK_REALTIME, &now);
    fputs(", \"host\": ", to);
    ivc_stats_put_string(to, host);
    fprintf(to, ", \"pid\": %ld, \"job\": ", (long)getpid());
    ivc_stats_put_string(to, ivc_launcher_job());
    fprintf(to, ", \"begin\": %lld.%03ld}\n", (long long)now.tv_sec, now.tv_nsec / 1000000);
}

static int check_folder(void)
{
    const char *behind = behind_json();

    return behind && behind[0] && behind[1] ? 0
        : ivc_error_set(-EINVAL, "IVC_STATS=json names no folder; write IVC_STATS=json:DIR");
}

int ivc_stats_file_open(struct ivc_stats_file *ret_file, const char *suffix, bool numbered, struct ivc_stats_line *head)
{
    int r = check_folder();

    put_process(head->to);
    if (fclose(head->to) != 0 && r == 0)
        r = ivc_error_set(-ENOMEM, "IVC_STATS=json:DIR: out of memory");
    *ret_file = (struct ivc_stats_file){
        .suffix = suffix, .numbered = numbered, .head = head->text, .begin_ns = ivc_now_ns(), .fd = -1,
    };
    if (r == 0 && !(ret_file->folder = strdup(behind_json() + 1)))
        r = ivc_error_set(-ENOMEM, "IVC_STATS=json:DIR: out of memory");
    if (r != 0)
        free(head->text);
    return r;
}

void ivc_stats_file_end(struct ivc_stats_file *file)
{
    struct ivc_stats_line line;

    if (file->fd >= 0 && ivc_stats_line_begin(&line)) {
        fprintf(line.to, "{\"t\": %.3f, \"end\": true}\n", ivc_stats_file_seconds(file));
        ivc_stats_file_write(file, &line);
    }
    ivc_close_p(&file->fd);
    free(file->head);
    free(file->folder);
}
