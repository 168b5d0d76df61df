/* Keeps a log of everything that processes write below one folder, in order: LD_PRELOAD this library with
   WRITTEN_BELOW=FOLDER and WRITTEN_LOG=FILE. Each entry is one append: a head of numbers, a path or two, and the data.

   tests/support/power.py makes from the log what a power cut would have left on the disk at any of its entries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 'w', SYNC = 's', SIZE = 't', NAME = 'n', FOLDER = 'd', MOVE = 'm', REMOVE = 'r', LINK = 'l' };

struct head {
    uint32_t op, first, second, length;
    uint64_t inode, offset;
};

static int is_below(const char *path) {
    const char *folder = getenv("WRITTEN_BELOW");
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static void note(int op, const char *first, const char *second, uint64_t inode, uint64_t offset, const void *data,
                 size_t length) {
    const char *log = getenv("WRITTEN_LOG");
    int kept = errno, fd = log ? open(log, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd >= 0) {
        struct head head = {op, strlen(first), strlen(second), length, inode, offset};
        struct iovec parts[] = {{&head, sizeof head}, {(void *)first, head.first}, {(void *)second, head.second},
                                {(void *)data, length}};
        if (writev(fd, parts, 4) < 0)
            abort();
        close(fd);
    }
    errno = kept;
}

/* The path of an open file below the folder; 0 for any other. */
static int path_of(int fd, char *path, size_t size) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, size - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

/* The absolute path that a name in a directory means. */
static void absolute(int folder, const char *name, char *path, size_t size) {
    char above[4096] = "";
    if (*name != '/' && folder == AT_FDCWD && !getcwd(above, sizeof above))
        above[0] = 0;
    if (*name != '/' && folder != AT_FDCWD)
        path_of(folder, above, sizeof above);
    snprintf(path, size, *name == '/' ? "%s%s" : "%s/%s", above, name);
}

static void note_fd(int op, int fd, uint64_t offset, const void *data, size_t length) {
    char path[4096];
    struct stat status;
    int kept = errno;
    if (path_of(fd, path, sizeof path) && fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || op == SYNC))
        note(op, path, "", status.st_ino, offset, data, length);
    errno = kept;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t done = REAL(write)(fd, data, size);
    if (done > 0)
        note_fd(WRITE, fd, (uint64_t)lseek(fd, 0, SEEK_CUR) - done, data, done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    ssize_t done = REAL(pwrite)(fd, data, size, offset);
    if (done > 0)
        note_fd(WRITE, fd, offset, data, done);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    ssize_t done = REAL(pwrite64)(fd, data, size, offset);
    if (done > 0)
        note_fd(WRITE, fd, offset, data, done);
    return done;
}

#define SYNCS(name)                                                                                                    \
    int name(int fd) {                                                                                                 \
        int failed = REAL(name)(fd);                                                                                   \
        if (!failed)                                                                                                   \
            note_fd(SYNC, fd, 0, "", 0);                                                                               \
        return failed;                                                                                                 \
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define CUTS(name, type)                                                                                               \
    int name(int fd, type size) {                                                                                      \
        int failed = REAL(name)(fd, size);                                                                             \
        if (!failed)                                                                                                   \
            note_fd(SIZE, fd, size, "", 0);                                                                            \
        return failed;                                                                                                 \
    }
CUTS(ftruncate, off_t)
CUTS(ftruncate64, off64_t)

int posix_fallocate(int fd, off_t offset, off_t length) {
    struct stat status;
    int failed = REAL(posix_fallocate)(fd, offset, length);
    if (!failed && fstat(fd, &status) == 0)
        note_fd(SIZE, fd, status.st_size, "", 0);
    return failed;
}

static int opened(int fd, int flags) {
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC)) {
        char path[4096];
        struct stat status;
        int kept = errno;
        if (path_of(fd, path, sizeof path) && fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
            note(NAME, path, "", status.st_ino, status.st_size, "", 0);
        errno = kept;
    }
    return fd;
}

#define MODE                                                                                                           \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    mode_t mode = va_arg(rest, mode_t);                                                                                \
    va_end(rest)

int open(const char *path, int flags, ...) { MODE; return opened(REAL(open)(path, flags, mode), flags); }
int open64(const char *path, int flags, ...) { MODE; return opened(REAL(open64)(path, flags, mode), flags); }
int openat(int folder, const char *path, int flags, ...) { MODE; return opened(REAL(openat)(folder, path, flags, mode), flags); }
int openat64(int folder, const char *path, int flags, ...) { MODE; return opened(REAL(openat64)(folder, path, flags, mode), flags); }

static int moved(int failed, int op, int from, const char *first, int to, const char *second) {
    char old[8192], new[8192] = "";
    int kept = errno;
    absolute(from, first, old, sizeof old);
    if (second)
        absolute(to, second, new, sizeof new);
    if (!failed && (is_below(old) || is_below(new))) {
        struct stat status = {0};
        lstat(second ? new : old, &status);
        note(op, old, new, status.st_ino, 0, "", 0);
    }
    errno = kept;
    return failed;
}

int rename(const char *a, const char *b) { return moved(REAL(rename)(a, b), MOVE, AT_FDCWD, a, AT_FDCWD, b); }
int renameat(int f, const char *a, int t, const char *b) { return moved(REAL(renameat)(f, a, t, b), MOVE, f, a, t, b); }
int link(const char *a, const char *b) { return moved(REAL(link)(a, b), NAME, AT_FDCWD, b, AT_FDCWD, a); }
int linkat(int f, const char *a, int t, const char *b, int flags) { return moved(REAL(linkat)(f, a, t, b, flags), NAME, t, b, f, a); }
int unlink(const char *a) { return moved(REAL(unlink)(a), REMOVE, AT_FDCWD, a, 0, 0); }
int unlinkat(int f, const char *a, int flags) { return moved(REAL(unlinkat)(f, a, flags), REMOVE, f, a, 0, 0); }
int rmdir(const char *a) { return moved(REAL(rmdir)(a), REMOVE, AT_FDCWD, a, 0, 0); }
int mkdir(const char *a, mode_t mode) { return moved(REAL(mkdir)(a, mode), FOLDER, AT_FDCWD, a, 0, 0); }
int mkdirat(int f, const char *a, mode_t mode) { return moved(REAL(mkdirat)(f, a, mode), FOLDER, f, a, 0, 0); }

int symlink(const char *target, const char *a) {
    char path[8192];
    struct stat status = {0};
    int failed = REAL(symlink)(target, a), kept = errno;
    absolute(AT_FDCWD, a, path, sizeof path);
    if (!failed && is_below(path) && lstat(path, &status) == 0)
        note(LINK, path, target, status.st_ino, 0, "", 0);
    errno = kept;
    return failed;
}
