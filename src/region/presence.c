/*
 * Presence: the word that two members can only share by sharing a kernel and a process id namespace.
 *
 * A member holds a read lock on one byte of its process id namespace's own file (/proc/self/ns/pid), at
 * the place that its endpoint id names, from before its entry is published until it has left.  That file
 * is an object of the kernel: no file system forwards its locks, no guest that was copied has those of
 * another, and another namespace is another file.  Boot id and inode, which are in the entry, may be
 * equal in two kernels (copies of one snapshot; every kernel's first namespace has the same number).
 *
 * Invariant: a lock that is seen proves that its member lives, or lived, here.  One that is not seen
 * proves nothing: the member may be of another kernel, or dead before we looked, or the application has
 * closed all that it did not open.
 */
#include "region/internal.h"

#include "base/util.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMESPACE "/proc/self/ns/pid"

/* The lock belongs to the open file: a child of fork() keeps it, which does no harm, and closing another
 * descriptor of the same file does not end it. */
static struct flock place_of(uint64_t endpoint_id, short type)
{
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_len = 1,
                           .l_start = (off_t)(endpoint_id & INT64_MAX) };
}

void ivc_presence_open(struct ivc_presence *presence, uint64_t endpoint_id)
{
    struct flock place = place_of(endpoint_id, F_RDLCK);
    struct stat st;
    IVC_AUTO_CLOSE int fd = open(NAMESPACE, O_RDONLY | O_CLOEXEC);

    *presence = (struct ivc_presence){ .fd = 0 };
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &place) == 0 && fstat(fd, &st) == 0)
        *presence = (struct ivc_presence){
            .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3),    /* so that 0 can say "none" */
            .dev = st.st_dev, .ino = st.st_ino,
        };
}

void ivc_presence_close(struct ivc_presence *presence)
{
    struct stat st;

    /* The application may have closed it, and have a file of its own under that number. */
    if (presence->fd > 0 && fstat(presence->fd, &st) == 0 && st.st_dev == presence->dev
        && st.st_ino == presence->ino)
        close(presence->fd);
    presence->fd = 0;
}

bool ivc_presence_is_here(uint64_t endpoint_id)
{
    struct flock place = place_of(endpoint_id, F_WRLCK);    /* asked for only: everybody's is in its way */
    IVC_AUTO_CLOSE int fd = open(NAMESPACE, O_RDONLY | O_CLOEXEC);

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &place) == 0 && place.l_type != F_UNLCK;
}
