/* Where a region may lie and does not, with what to try. */
#include "look.h"

#include "base/util.h"

#include <dirent.h>
#include <string.h>

/* The number of PCI devices, and how many of those are ivshmem; -1 when there is no PCI at all. */
static int count_pci(unsigned *ret_ivshmem)
{
    DIR *directory = opendir("/sys/bus/pci/devices");
    struct dirent *entry;
    int n = 0;

    *ret_ivshmem = 0;
    if (!directory)
        return -1;
    while ((entry = readdir(directory))) {
        char path[320], vendor[16] = "", device[16] = "";

        if (entry->d_name[0] == '.')
            continue;
        n++;
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", entry->d_name);
        (void)ivc_read_line(path, vendor, sizeof vendor);
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/device", entry->d_name);
        (void)ivc_read_line(path, device, sizeof device);
        *ret_ivshmem += strcmp(vendor, "0x1af4") == 0 && strcmp(device, "0x1110") == 0;
    }
    closedir(directory);
    return n;
}

static void report_pci(void (*say)(void *, const char *, const char *), void *arg)
{
    unsigned n_ivshmem;
    int n = count_pci(&n_ivshmem);
    char what[128];

    if (n_ivshmem > 0)
        return;
    if (n < 0)
        snprintf(what, sizeof what, "ivshmem: this guest has no PCI bus in /sys");
    else
        snprintf(what, sizeof what, "ivshmem: none of the %d PCI devices is one (1af4:1110)", n);
    say(arg, what, "QEMU: -object memory-backend-file,id=ivc,share=on,size=64M,"
        "mem-path=/dev/shm/ivc -device ivshmem-plain,memdev=ivc");
}

/* The minor of the mmapper device by the kernel's list, or -1. */
static int mmapper_minor(void)
{
    IVC_AUTO_FCLOSE FILE *file = fopen("/proc/misc", "re");
    char name[64];
    int minor;

    while (file && fscanf(file, "%d %63s", &minor, name) == 2)
        if (strcmp(name, "mmapper") == 0)
            return minor;
    return -1;
}

static void report_mmapper(void (*say)(void *, const char *, const char *), void *arg)
{
    int minor = mmapper_minor();
    char try[128];

    if (access("/dev/mmapper", F_OK) == 0)
        return;
    if (minor < 0) {
        say(arg, "/dev/mmapper: no such device", "user-mode Linux: give the kernel "
            "iomem=mmapper,FILE on its command line");
        return;
    }
    snprintf(try, sizeof try, "as root: mknod -m 660 /dev/mmapper c 10 %d", minor);
    say(arg, "/dev/mmapper: the kernel has the device, but there is no node for it", try);
}

void missing_report(void (*say)(void *arg, const char *what, const char *try), void *arg)
{
    report_pci(say, arg);
    report_mmapper(say, arg);
    if (access("/dev/shm/ivc", F_OK) < 0)
        say(arg, "/dev/shm/ivc: no such file", "for processes of one kernel: "
            "truncate -s 64M /dev/shm/ivc");
    if (access("/dev/hugepages/ivc", F_OK) < 0)
        say(arg, "/dev/hugepages/ivc: no such file", "with huge pages reserved (vm.nr_hugepages): "
            "truncate -s 64M /dev/hugepages/ivc");
}
