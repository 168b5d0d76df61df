/* A disk quota that is exceeded: while the file $QUOTA_OVER exists, whatever makes a file below $QUOTA_BELOW larger
 * fails with EDQUOT, as the kernel does; what was allocated before can be written. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_over(int fd, off_t end)
{
    const char *below = getenv("QUOTA_BELOW"), *over = getenv("QUOTA_OVER");
    char link[64], path[PATH_MAX];
    struct stat file;
    ssize_t length;
    if (!below || !over || access(over, F_OK) || fstat(fd, &file) || !S_ISREG(file.st_mode))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (end < 0)
        end = lseek(fd, 0, SEEK_CUR) - end;
    return !strncmp(path, below, strlen(below)) && end > file.st_blocks * 512;
}

#define REFUSED(fd, end) (is_over(fd, end) ? (errno = EDQUOT, 1) : 0)

ssize_t write(int fd, const void *data, size_t size)
{
    return REFUSED(fd, -(off_t)size) ? -1 : syscall(SYS_write, fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at)
{
    return REFUSED(fd, at + (off_t)size) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return pwrite64(fd, data, size, at);
}

int posix_fallocate(int fd, off_t at, off_t size)
{
    return is_over(fd, at + size) ? EDQUOT : syscall(SYS_fallocate, fd, 0, at, size) ? errno : 0;
}

int posix_fallocate64(int fd, off_t at, off_t size)
{
    return posix_fallocate(fd, at, size);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    return REFUSED(fd, at + size) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, size);
}
