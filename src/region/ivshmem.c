/*
 * The ivshmem mechanism: QEMU's inter-VM shared memory, PCI device 1af4:1110.  Its BAR 2 is the
 * memory; sysfs lets user space map it, with no driver (QEMU, "Device Specification for
 * Inter-VM shared memory device").
 */
#include "region/mechanism.h"

#include "base/error.h"
#include "base/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PCI_DEVICES "/sys/bus/pci/devices"

static bool is_ivshmem(const char *address)
{
    char path[320], vendor[16], device[16];

    snprintf(path, sizeof path, PCI_DEVICES "/%s/vendor", address);
    if (ivc_read_line(path, vendor, sizeof vendor) < 0)
        return false;
    snprintf(path, sizeof path, PCI_DEVICES "/%s/device", address);
    if (ivc_read_line(path, device, sizeof device) < 0)
        return false;
    return strcmp(vendor, "0x1af4") == 0 && strcmp(device, "0x1110") == 0;
}

static void ivshmem_find(void (*found)(void *, const struct ivc_mechanism *, const char *),
                         void (*refused)(void *, const struct ivc_mechanism *, const char *,
                                         const char *),
                         void *arg)
{
    DIR *directory = opendir(PCI_DEVICES);
    struct dirent *entry;
    char path[320], name[280];

    if (!directory)
        return;
    while ((entry = readdir(directory))) {
        if (!is_ivshmem(entry->d_name))
            continue;
        snprintf(name, sizeof name, "pci:%s", entry->d_name);
        snprintf(path, sizeof path, PCI_DEVICES "/%s/resource2", entry->d_name);
        if (access(path, R_OK | W_OK) == 0)
            found(arg, &ivc_mechanism_ivshmem, name);
        else if (errno == ENOENT)
            refused(arg, &ivc_mechanism_ivshmem, name, "the device has no shared memory (BAR 2)");
        else
            refused(arg, &ivc_mechanism_ivshmem, name, "no permission to map its memory; install "
                    "the udev rule 70-ivc.rules and join the group ivc");
    }
    closedir(directory);
}

/* A device that no driver claimed may have its memory switched off.  Harmless when it is on. */
static void enable_device(const char *address)
{
    char path[320];
    IVC_AUTO_CLOSE int fd = -1;

    snprintf(path, sizeof path, PCI_DEVICES "/%s/enable", address);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "1", 1) < 0)
        return;     /* the measurement after mapping is what counts */
}

/* The plain resource, never resource2_wc: stores to write-combining memory are not ordered even on
 * x86, so a packet's stamp could be seen before its bytes. */
static int map_resource(const char *address, struct ivc_mapping *ret_mapping)
{
    char path[320];
    IVC_AUTO_CLOSE int fd = -1;
    struct stat st;

    snprintf(path, sizeof path, PCI_DEVICES "/%s/resource2", address);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    return ivc_mapping_make(fd, (uint64_t)st.st_size, ret_mapping);
}

static int ivshmem_map(const char *name, struct ivc_mapping *ret_mapping)
{
    const char *address = strncmp(name, "pci:", 4) == 0 ? name + 4 : name;
    int r;

    if (strchr(address, '/') || !is_ivshmem(address))
        return ivc_error_set(-ENODEV, "region %s: no ivshmem device (1af4:1110) at that PCI "
                             "address; 'lspci -d 1af4:1110' lists them", name);
    enable_device(address);
    r = map_resource(address, ret_mapping);
    if (r == -EACCES || r == -EPERM)
        return ivc_error_set(r, "region %s: no permission to map the device; install the udev rule "
                             "70-ivc.rules and join the group ivc, or run as root (a kernel in "
                             "lockdown refuses root as well)", name);
    if (r < 0)
        return ivc_error_set(r, "region %s: cannot map the device's memory: %s", name, strerror(-r));
    if (ret_mapping->size < IVC_LAYOUT_SIZE_MIN) {
        ivc_mapping_free(ret_mapping);
        return ivc_error_set(-EFBIG, "region %s: too small, %llu bytes; give the device's memory "
                             "backend at least %d (256 KiB for each process)", name,
                             (unsigned long long)ret_mapping->size, IVC_LAYOUT_SIZE_MIN);
    }
    ret_mapping->speed = ivc_mapping_measure(ret_mapping->memory, ret_mapping->size);
    return 0;
}

/* A device that was pulled takes its folder along; one put in its place has other inodes.  (The
 * kernel may leave the mapping as it is, and loads from it give zeroes or ones: no fault tells.) */
static bool ivshmem_is_there(const char *name, const struct ivc_mapping *mapping)
{
    const char *address = strncmp(name, "pci:", 4) == 0 ? name + 4 : name;
    struct stat st;
    char path[320];

    snprintf(path, sizeof path, PCI_DEVICES "/%s/resource2", address);
    if (stat(path, &st) < 0)
        return errno != ENOENT;
    return st.st_dev == mapping->dev && st.st_ino == mapping->ino;
}

const struct ivc_mechanism ivc_mechanism_ivshmem = {
    .name = "ivshmem",
    .find = ivshmem_find,
    .map = ivshmem_map,
    .is_there = ivshmem_is_there,
    .is_named = ivshmem_is_there,
};
