/*
 * ivc_info: what this guest has to share memory through, who is in it, how fast it is, and what is
 * missing.  Runs in a bare guest: it needs the C library and nothing else.  It never joins a region
 * and never writes to one.
 */
#include "look.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_NONE = 1, EXIT_USAGE = 2 };

static const char usage[] =
    "usage: ivc_info [--region NAME] [--json] [--verbose]\n"
    "Shows the memory that this guest shares with others, its members, and its speed.\n"
    "\n"
    "  -r, --region NAME   look at this one only: a path, pci:ADDRESS, uuid:UUID\n"
    "                      or xen\n"
    "  -j, --json          print JSON\n"
    "  -v, --verbose       print more: all members, layout, what was not found\n"
    "  -h, --help          print this\n"
    "  -V, --version       print the version\n"
    "\n"
    "Exit status: 0 when there is a region that would be used, 1 when there is none,\n"
    "2 for wrong usage.  IVC_REGION in the environment is obeyed as every ivc program does.\n";

struct options {
    const char *region;
    bool json, verbose;
};

/* -1: go on; else the exit status. */
static int read_options(int argc, char **argv, struct options *ret_options)
{
    static const struct option known[] = {
        { "region", required_argument, NULL, 'r' },
        { "json", no_argument, NULL, 'j' },
        { "verbose", no_argument, NULL, 'v' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    int c;

    while ((c = getopt_long(argc, argv, "r:jvhV", known, NULL)) != -1)
        switch (c) {
        case 'r': ret_options->region = optarg; break;
        case 'j': ret_options->json = true; break;
        case 'v': ret_options->verbose = true; break;
        case 'h': fputs(usage, stdout); return 0;
        case 'V': puts("ivc_info " IVC_VERSION_TEXT); return 0;
        default: fputs("try 'ivc_info --help'\n", stderr); return EXIT_USAGE;
        }
    if (optind < argc) {
        fprintf(stderr, "ivc_info: '%s' is not an option; try 'ivc_info --help'\n", argv[optind]);
        return EXIT_USAGE;
    }
    if (ret_options->region && !*ret_options->region) {
        fprintf(stderr, "ivc_info: --region needs a name; try 'ivc_info --help'\n");
        return EXIT_USAGE;
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct options options = { 0 };
    struct looks looks;
    int status = read_options(argc, argv, &options);

    if (status >= 0)
        return status;
    if (!look_at_all(options.region, &looks)) {
        fprintf(stderr, "ivc_info: out of memory\n");
        looks_free(&looks);
        return EXIT_NONE;
    }
    if (options.json)
        print_json(&looks);
    else
        print_text(&looks, options.verbose);
    status = looks.chosen >= 0 ? 0 : EXIT_NONE;
    looks_free(&looks);
    if (fflush(stdout) != 0) {
        perror("ivc_info: standard output");
        return EXIT_NONE;
    }
    return status;
}
