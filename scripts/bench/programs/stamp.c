// A task that says when it ran: `stamp FILE SECONDS` appends "start end" by the monotonic clock, in one write.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    double start = now();
    if (argc < 3) return 2;
    double seconds = strtod(argv[2], NULL);
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    struct timespec pause = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
    char line[80];
    snprintf(line, sizeof line, "%.6f %.6f\n", start, now());
    return write(fd, line, strlen(line)) == (ssize_t)strlen(line) ? 0 : 1;
}
