/* Tests of what a profile counts and writes: endpoints of one process, files in a folder of the case's own. */
#include "check.h"

#include "base/error.h"
#include "base/stats.h"
#include "endpoint/profile.h"

#include <dirent.h>

enum { SIZE = 4 << 20 };

static struct ivc_endpoint *a, *b;
static struct ivc_peer *to_b;
static char folder[64], text[1 << 16];

static void on_packet(void *arg, struct ivc_peer *peer, const struct ivc_packet *packet)
{
    (void)arg, (void)peer, (void)packet;
}

static void start(void)
{
    const struct ivc_endpoint_options options = {
        .region = check_file(0, SIZE), .magic_id = 6, .on_packet = on_packet,
    };
    struct ivc_address address;
    char asked[80];

    CHECK_THAT(ivc_endpoint_open(&options, &a) == 0, "%s", ivc_error_text());
    CHECK_THAT(ivc_endpoint_open(&options, &b) == 0, "%s", ivc_error_text());
    ivc_endpoint_address(b, &address);
    CHECK(ivc_endpoint_connect(a, &address, &to_b) == 0);
    snprintf(folder, sizeof folder, "/tmp/ivc-test-%d", (int)getpid());
    snprintf(asked, sizeof asked, "json:%s", folder);
    setenv("IVC_STATS", asked, 1);
    setenv("PMI_RANK", "7", 1);
}

/* All files of the folder, one behind the other; how many there were.  They are gone afterwards. */
static unsigned read_files(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t len = 0;
    unsigned n = 0;

    while (dir && (entry = readdir(dir)) != NULL) {
        char path[400];
        int fd;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        fd = open(path, O_RDONLY);
        len += (size_t)read(fd, text + len, sizeof text - 1 - len);
        close(fd);
        unlink(path);
        n++;
    }
    text[len] = '\0';
    if (dir)
        closedir(dir);
    rmdir(folder);
    return n;
}

static void expect(const char *part)
{
    CHECK_THAT(strstr(text, part), "%s is not in %s", part, text);
}

static struct ivc_profile *open_profile(void)
{
    const struct ivc_profile_options options = { .adapter = "test" };
    struct ivc_profile *profile;

    CHECK_THAT(ivc_profile_open(a, &options, &profile) == 0, "%s", ivc_error_text());
    return profile;
}

static void finish(void)
{
    ivc_endpoint_free(b);
    ivc_endpoint_free(a);
}

static void test_classes(void)
{
    static const size_t lengths[] = { 0, 0, 1, 2, 3, 4, 5, 8, 9, 1 << 20, (1 << 20) + 1 };
    struct ivc_profile *profile;

    start();
    profile = open_profile();
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
        ivc_profile_sent(profile, to_b, IVC_PATH_MEMORY, lengths[i]);
    ivc_profile_sent(profile, to_b, IVC_PATH_NETWORK, SIZE_MAX);
    ivc_profile_received(profile, to_b, 100);
    ivc_profile_onesided(profile, to_b, 33);
    ivc_profile_onesided(profile, to_b, 11);
    ivc_profile_close(profile);
    CHECK_EQ(read_files(), 1);
    expect("{\"ivc\": \"transport\", \"version\": 1, \"adapter\": \"test\", ");
    expect("\"rank\": 7, ");
    expect("\"path\": \"memory\", \"why\": null, \"sent\": {\"memory\": {\"messages\": {\"-1\": 2, \"0\": 1, \"1\": 1, "
           "\"2\": 2, \"3\": 2, \"4\": 1, \"20\": 1, \"21\": 1}, \"bytes\": {\"0\": 1, \"1\": 2, \"2\": 7, \"3\": 13, "
           "\"4\": 9, \"20\": 1048576, \"21\": 1048577}}, \"network\": {\"messages\": {\"64\": 1}, ");
    expect("\"received\": {\"memory\": {\"messages\": {\"7\": 1}, \"bytes\": {\"7\": 100}}, ");
    expect("\"onesided\": {\"memory\": {\"operations\": 2, \"bytes\": 44}, ");
    expect("\"end\": true}\n");
    finish();
}

static unsigned lines(void)
{
    unsigned n = 0;

    for (const char *c = text; *c; c++)
        n += *c == '\n';
    return n;
}

/* Only what has changed is written, while the process runs; of who talked to nobody there is no file, and nobody's is
 * written over. */
static void test_samples(void)
{
    struct ivc_profile *profile;

    start();
    ivc_profile_close(open_profile());
    CHECK_EQ(read_files(), 0);
    profile = open_profile();
    ivc_profile_sent(profile, to_b, IVC_PATH_MEMORY, 1);
    usleep(1300000);
    CHECK_EQ(read_files(), 1);
    CHECK_EQ(lines(), 2);       /* already, for who is killed now */
    ivc_profile_close(profile);
    for (unsigned i = 0; i < 2; i++) {
        profile = open_profile();
        ivc_profile_sent(profile, to_b, IVC_PATH_MEMORY, 1);
        ivc_profile_close(profile);
    }
    CHECK_EQ(read_files(), 2);
    CHECK_EQ(lines(), 6);
    finish();
}

/* Of one that has left: how it was reached. */
static void test_gone(void)
{
    struct ivc_profile *profile;

    start();
    profile = open_profile();
    ivc_profile_sent(profile, to_b, IVC_PATH_MEMORY, 5);
    ivc_endpoint_free(b);
    b = NULL;
    for (unsigned i = 0; i < 1000 && !ivc_peer_is_gone(to_b); i++) {
        ivc_endpoint_progress(a);
        usleep(1000);
    }
    ivc_profile_close(profile);
    CHECK_EQ(read_files(), 1);
    expect("\"path\": \"memory\", \"why\": null");
    finish();
}

static void test_strings(void)
{
    struct ivc_stats_line line;

    CHECK(ivc_stats_line_begin(&line) != NULL);
    ivc_stats_put_string(line.to, "a \"b\\\n\xc3\xa4\x7f");
    ivc_stats_put_string(line.to, "");
    ivc_stats_put_string(line.to, NULL);
    CHECK(fclose(line.to) == 0);
    CHECK_THAT(strcmp(line.text, "\"a \\u0022b\\u005c\\u000a\\u00c3\\u00a4\\u007f\"nullnull") == 0, "%s", line.text);
    free(line.text);
}

static void test_asked_for(void)
{
    const struct ivc_profile_options options = { .adapter = "test" };
    struct ivc_profile *profile;

    start();
    CHECK(ivc_stats_are_written() && !ivc_stats_are_printed());
    setenv("IVC_STATS", "1", 1);
    CHECK(!ivc_stats_are_written() && ivc_stats_are_printed());
    setenv("IVC_STATS", "0", 1);
    CHECK(!ivc_stats_are_written() && !ivc_stats_are_printed());
    setenv("IVC_STATS", "jsonx", 1);
    CHECK(!ivc_stats_are_written());
    setenv("IVC_STATS", "json:", 1);
    CHECK(ivc_stats_are_written() && ivc_profile_open(a, &options, &profile) == -EINVAL);
    CHECK_TEXT(ivc_error_text(), "IVC_STATS=json", "names no folder");
    finish();
}

static const struct check_case cases[] = {
    { "classes of sizes", test_classes, 0 },
    { "what has changed", test_samples, 0 },
    { "a peer that has left", test_gone, 0 },
    { "strings", test_strings, 0 },
    { "what is asked for", test_asked_for, 0 },
};
CHECK_MAIN(cases)
