// The least that running a list can cost: `limit SLOTS [FOLDER] < commands`, each line by posix_spawn of `sh -c`.
//
// With FOLDER each command's end is also written to a file there that is synced before the next one starts.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void record(const char *folder, long number, int status) {
    char path[4096], block[4096] = {0};
    snprintf(path, sizeof path, "%s/%ld", folder, number);
    snprintf(block, sizeof block, "%d\n", status);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, block, sizeof block) != sizeof block || fsync(fd) != 0) {
        perror(path);
        exit(1);
    }
    close(fd);
}

int main(int argc, char **argv) {
    long slots = argc > 1 ? strtol(argv[1], NULL, 10) : 1, running = 0, ended = 0;
    const char *folder = argc > 2 ? argv[2] : NULL;
    char *line = NULL;
    size_t room = 0;
    ssize_t length = getline(&line, &room, stdin);
    while (length > 0 || running > 0) {
        if (length > 0 && running < slots) {
            if (line[length - 1] == '\n') line[length - 1] = 0;
            char *command[] = {"sh", "-c", line, NULL};
            pid_t pid;
            if ((errno = posix_spawn(&pid, "/bin/sh", NULL, NULL, command, environ)) != 0) {
                perror("posix_spawn");
                return 1;
            }
            running++;
            length = getline(&line, &room, stdin);
            continue;
        }
        int status;
        if (waitpid(-1, &status, 0) < 0) return 1;
        running--;
        if (folder) record(folder, ended, status);
        ended++;
    }
    return 0;
}
