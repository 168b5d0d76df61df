/* fs.protected_regular = 2 for one tree of processes: the switch of the kernel is the whole machine's. Whoever would make
 * (O_CREAT) a file that is there already, in a sticky directory that others can write, is refused it unless the file is
 * his own or the directory's owner's; whoever he is. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_refused(int at, const char *path)
{
    char copy[PATH_MAX];
    struct stat file, folder;
    if (strlen(path) >= sizeof copy || fstatat(at, path, &file, AT_SYMLINK_NOFOLLOW) || !S_ISREG(file.st_mode))
        return 0;
    if (fstatat(at, dirname(strcpy(copy, path)), &folder, 0) || !(folder.st_mode & S_ISVTX))
        return 0;
    return (folder.st_mode & (S_IWOTH | S_IWGRP)) && file.st_uid != folder.st_uid && file.st_uid != geteuid();
}

static int opened(int at, const char *path, int flags, mode_t mode)
{
    if ((flags & O_CREAT) && is_refused(at, path))
        return errno = EACCES, -1;
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

#define MODE(flags, last)                   \
    mode_t mode = 0;                        \
    if ((flags) & (O_CREAT | O_TMPFILE)) {  \
        va_list rest;                       \
        va_start(rest, last);               \
        mode = va_arg(rest, mode_t);        \
        va_end(rest);                       \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...)
{
    MODE(flags, flags)
    return opened(at, path, flags, mode);
}
