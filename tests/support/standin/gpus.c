/* What holds true of the stand-in's GPUs: memory is given while there is some, and taken back from the dead. */

#include "gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A file that was written by another version of this code must not be read as one of ours. */
static const uint64_t MAGIC = 0x5354414e44494e00u ^ sizeof(struct gpus);

#define AS_NAME(name) #name,
static const char *const NAMES[] = {SWITCHES(AS_NAME)};

/* ---- the file ---- */

static struct gpus *map(int fd)
{
    void *at = mmap(NULL, sizeof(struct gpus), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

struct gpus *standin_create(const char *path, int count)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 || count < 0 || count > WHOLE)
        return NULL;
    fchmod(fd, 0666); /* tests of two users share it */
    if (ftruncate(fd, sizeof(struct gpus)))
        return NULL;
    struct gpus *gpus = map(fd);
    if (!gpus)
        return NULL;
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&gpus->lock, &kind);
    gpus->count = (uint32_t)count;
    gpus->all = WHOLE;
    gpus->magic = MAGIC;
    return gpus;
}

struct gpus *standin_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat found;
    if (fd < 0)
        return NULL;
    if (fstat(fd, &found) || found.st_size != (off_t)sizeof(struct gpus)) {
        close(fd);
        return NULL;
    }
    struct gpus *gpus = map(fd);
    if (gpus && gpus->magic != MAGIC) {
        standin_close(gpus);
        return NULL;
    }
    return gpus;
}

void standin_close(struct gpus *gpus)
{
    munmap(gpus, sizeof(struct gpus));
}

void gpus_lock(struct gpus *gpus)
{
    /* Sums are made anew at every look, so whatever a killed holder left is fit for use. */
    if (pthread_mutex_lock(&gpus->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&gpus->lock);
}

void gpus_unlock(struct gpus *gpus)
{
    pthread_mutex_unlock(&gpus->lock);
}

/* ---- time ---- */

int64_t gpus_microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t gpus_milliseconds(void)
{
    return gpus_microseconds() / 1000;
}

void gpus_sleep(int64_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* ---- who lives ---- */

/* The start of a process in clock ticks after boot; 0 = dead, or dead but for its exit code. */
static uint64_t start_of(int pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = 0;
    const char *rest = strrchr(text, ')'); /* a name may contain anything, even this */
    char state = 0;
    unsigned long long start = 0;
    if (!rest || sscanf(rest + 1,
                        " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

/* Whether a process lives that /proc does not show, because it is another user's (hidepid). */
static int is_hidden(int pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", pid);
    return access(path, F_OK) && kill(pid, 0) && errno == EPERM;
}

static struct account *account_of(struct gpu *gpu, const struct holder *holder)
{
    uint32_t known = gpu->accounted < ACCOUNTS ? gpu->accounted : ACCOUNTS;
    for (uint32_t i = 0; i < known; i++)
        if (gpu->accounts[i].pid == holder->pid && gpu->accounts[i].start == holder->start)
            return &gpu->accounts[i];
    return NULL;
}

static void write_account(struct gpu *gpu, const struct holder *holder)
{
    if (gpu->switches[SWITCH_accounting] <= 0)
        return;
    struct account *account = account_of(gpu, holder);
    if (!account) {
        account = &gpu->accounts[gpu->accounted++ % ACCOUNTS];
        *account = (struct account){.pid = holder->pid, .start = holder->start, .began = gpus_microseconds()};
    }
    account->peak = holder->peak;
    account->busy = holder->busy > account->busy ? holder->busy : account->busy;
}

static void bury(struct gpus *gpus, struct holder *holder, int64_t now)
{
    struct account *account = account_of(&gpus->gpu[holder->device], holder);
    if (account)
        account->ended = gpus_microseconds();
    holder->busy = 0;
    holder->died = now;
}

void gpus_reap(struct gpus *gpus, int device)
{
    struct gpu *gpu = &gpus->gpu[device];
    gpu->reaped = gpus_milliseconds();
    for (uint32_t i = 0; i < gpus->slots; i++) {
        struct holder *holder = &gpus->holder[i];
        if (!holder->pid || holder->device != device)
            continue;
        if (!holder->died && start_of(holder->pid) != holder->start && !is_hidden(holder->pid))
            bury(gpus, holder, gpu->reaped); /* by the clock of this look: a later one would keep it until the next */
        if (holder->died && gpu->reaped - holder->died >= gpu->switches[SWITCH_linger])
            holder->pid = 0;
    }
}

/* ---- memory ---- */

/* Compute instances of one GPU instance have one memory; a GPU has that of all its instances. */
static int shares_memory(const struct gpus *gpus, int device, int other)
{
    const struct gpu *one = &gpus->gpu[device], *two = &gpus->gpu[other];
    return device == other || two->parent == (uint32_t)device + 1 ||
           (one->parent && one->parent == two->parent && one->gpu_instance == two->gpu_instance);
}

uint64_t gpus_used(struct gpus *gpus, int device)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < gpus->slots; i++)
        if (gpus->holder[i].pid && shares_memory(gpus, device, gpus->holder[i].device))
            used += gpus->holder[i].bytes;
    return used;
}

double gpus_load(struct gpus *gpus, int device)
{
    double load = 0;
    for (uint32_t i = 0; i < gpus->slots; i++)
        if (gpus->holder[i].pid && gpus->holder[i].device == device)
            load += gpus->holder[i].busy;
    return load;
}

static struct holder *free_slot(struct gpus *gpus)
{
    for (uint32_t i = 0; i < gpus->slots; i++)
        if (!gpus->holder[i].pid)
            return &gpus->holder[i];
    return gpus->slots < HOLDERS ? &gpus->holder[gpus->slots++] : NULL;
}

static struct holder *holder_of(struct gpus *gpus, int device, int pid, int kind)
{
    for (uint32_t i = 0; i < gpus->slots; i++) {
        struct holder *holder = &gpus->holder[i];
        if (holder->pid == pid && holder->device == device && !holder->died)
            return holder;
    }
    uint64_t start = start_of(pid);
    struct holder *holder = start ? free_slot(gpus) : NULL;
    if (holder)
        *holder = (struct holder){.pid = pid, .device = device, .kind = (uint32_t)kind, .start = start};
    return holder;
}

/* Gives or takes memory: 0 = done, 1 = the device has not that much (what it has is told), -1 = no such process. */
static int change(struct gpus *gpus, int device, int pid, int64_t more, int kind, uint64_t *available)
{
    struct gpu *gpu = &gpus->gpu[device];
    gpus_reap(gpus, device);
    uint64_t used = gpus_used(gpus, device), limit = gpu->total - gpu->reserved;
    *available = used < limit ? limit - used : 0;
    if (more > 0 && (uint64_t)more > *available) {
        gpu->ooms++;
        return 1;
    }
    struct holder *holder = holder_of(gpus, device, pid, kind);
    if (!holder)
        return -1;
    uint64_t back = (uint64_t)-more;
    holder->bytes = more < 0 && back > holder->bytes ? 0 : holder->bytes + (uint64_t)more;
    holder->peak = holder->bytes > holder->peak ? holder->bytes : holder->peak;
    used += more > 0 ? (uint64_t)more : 0;
    gpu->peak = used > gpu->peak ? used : gpu->peak;
    write_account(gpu, holder);
    if (!holder->bytes) {
        bury(gpus, holder, gpus_milliseconds());
        holder->pid = 0;
    }
    return 0;
}

int standin_change(struct gpus *gpus, int device, int pid, int64_t more, int kind, uint64_t *available)
{
    gpus_lock(gpus);
    int result = change(gpus, device, pid, more, kind, available);
    gpus_unlock(gpus);
    return result;
}

int standin_busy(struct gpus *gpus, int device, int pid, double share, int kind)
{
    gpus_lock(gpus);
    struct holder *holder = holder_of(gpus, device, pid, kind);
    if (holder) {
        holder->busy = share;
        write_account(&gpus->gpu[device], holder);
    }
    gpus_unlock(gpus);
    return holder ? 0 : -1;
}

double standin_load(struct gpus *gpus, int device)
{
    gpus_lock(gpus);
    /* Every process asks many times a second; the dead of the last moment may slow it down that long. */
    if (gpus_milliseconds() - gpus->gpu[device].reaped > 200)
        gpus_reap(gpus, device);
    double load = gpus_load(gpus, device);
    gpus_unlock(gpus);
    return load;
}

/* ---- making and looking ---- */

void standin_describe(struct gpus *gpus, int device, const char *uuid, const char *name, int bus, int ordinal)
{
    struct gpu *gpu = &gpus->gpu[device];
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    snprintf(gpu->name, sizeof gpu->name, "%s", name);
    gpu->bus = (uint32_t)bus;
    gpu->ordinal = (uint32_t)ordinal;
}

void standin_size(struct gpus *gpus, int device, uint64_t total, uint64_t reserved, int major, int minor)
{
    struct gpu *gpu = &gpus->gpu[device];
    gpu->total = total;
    gpu->reserved = reserved;
    gpu->major = (uint32_t)major;
    gpu->minor = (uint32_t)minor;
}

/* Makes a MIG instance at the lowest place that is free on its GPU; its number, or -1 if there is no room. */
int standin_slice(struct gpus *gpus, int device, const char *uuid, const char *name, uint64_t total, int gpu_instance,
                  int compute_instance)
{
    uint32_t part = 0;
    if (gpus->all == DEVICES)
        return -1;
    for (uint32_t i = WHOLE; i < gpus->all; i++)
        if (gpus->gpu[i].parent == (uint32_t)device + 1 && gpus->gpu[i].part == part &&
            !gpus->gpu[i].switches[SWITCH_gone]) {
            part++;
            i = WHOLE - 1; /* once more from the start */
        }
    int number = (int)gpus->all;
    struct gpu *made = &gpus->gpu[number], *parent = &gpus->gpu[device];
    standin_describe(gpus, number, uuid, name, (int)parent->bus, (int)parent->ordinal);
    standin_size(gpus, number, total, 0, (int)parent->major, (int)parent->minor);
    made->parent = (uint32_t)device + 1;
    made->part = part;
    made->gpu_instance = (uint32_t)gpu_instance;
    made->compute_instance = (uint32_t)compute_instance;
    __atomic_store_n(&gpus->all, gpus->all + 1, __ATOMIC_SEQ_CST);
    return number;
}

/* Sets a switch on one device, or on all where the device is -1; 0 = done, -1 = there is no such switch. */
int standin_set(struct gpus *gpus, int device, const char *name, int64_t value)
{
    for (int i = 0; i < SWITCH_COUNT; i++)
        if (!strcmp(name, NAMES[i])) {
            for (int d = device < 0 ? 0 : device; d <= (device < 0 ? DEVICES - 1 : device); d++)
                __atomic_store_n(&gpus->gpu[d].switches[i], value, __ATOMIC_SEQ_CST);
            return 0;
        }
    return -1;
}

/* Rows of pid, bytes, peak, busy in thousandths, kind, and whether it is dead; how many there are. */
int standin_look(struct gpus *gpus, int device, int64_t *rows, int most)
{
    int found = 0;
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    for (uint32_t i = 0; i < gpus->slots && found < most; i++) {
        const struct holder *one = &gpus->holder[i];
        if (!one->pid || one->device != device)
            continue;
        int64_t *row = &rows[6 * found++];
        row[0] = one->pid;
        row[1] = (int64_t)one->bytes;
        row[2] = (int64_t)one->peak;
        row[3] = (int64_t)(one->busy * 1000 + 0.5);
        row[4] = one->kind;
        row[5] = one->died != 0;
    }
    gpus_unlock(gpus);
    return found;
}

int standin_count(struct gpus *gpus)
{
    return (int)gpus->count;
}

int standin_all(struct gpus *gpus)
{
    return (int)gpus->all;
}

const char *standin_uuid(struct gpus *gpus, int device)
{
    return gpus->gpu[device].uuid;
}

uint64_t standin_number(struct gpus *gpus, int device, const char *name)
{
    const struct gpu *gpu = &gpus->gpu[device];
    uint64_t found = UINT64_MAX;
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    if (!strcmp(name, "used"))
        found = gpus_used(gpus, device);
    else if (!strcmp(name, "total"))
        found = gpu->total;
    else if (!strcmp(name, "reserved"))
        found = gpu->reserved;
    else if (!strcmp(name, "ooms"))
        found = gpu->ooms;
    else if (!strcmp(name, "peak"))
        found = gpu->peak;
    else if (!strcmp(name, "bus"))
        found = gpu->bus;
    else if (!strcmp(name, "ordinal"))
        found = gpu->ordinal;
    else if (!strcmp(name, "mig"))
        found = gpu->switches[SWITCH_mig] > 0;
    else if (!strcmp(name, "gone"))
        found = gpu->switches[SWITCH_gone] > 0;
    gpus_unlock(gpus);
    return found;
}
