/* Clocks that can be set for one tree of processes: STANDIN_CLOCK names a file of two numbers, the seconds by which the
 * wall clock and the clock since boot (as after a suspend, of which the monotonic clock knows nothing) are ahead. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none[2], *ahead = none;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("STANDIN_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        ahead = at;
    if (fd >= 0)
        close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int failed = (int)syscall(SYS_clock_gettime, id, t);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += ahead[0];
    if (!failed && id == CLOCK_BOOTTIME)
        t->tv_sec += ahead[1];
    return failed;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}
