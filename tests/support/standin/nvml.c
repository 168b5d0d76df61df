/* NVML as the real driver's library answers it, over the stand-in's GPUs. Layouts and protocols: nvml.h of NVIDIA. */

#include "gpus.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef DRIVER
#define DRIVER 615
#endif

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

static const uint64_t NOT_AVAILABLE = UINT64_MAX;
static const uint32_t OUTSIDE_MIG = UINT32_MAX;
#define MEMORY_V2 0x02000028u
#define TEMPERATURE_V1 0x0100000Cu
static const int64_t SAMPLE = 100000; /* microseconds between two samples of the utilisation */
static const int32_t HOST_PIDS = 1000000;

struct memory_v1 {
    uint64_t total, free, used;
};

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

struct process_v1 {
    uint32_t pid;
    uint64_t bytes;
};

struct process_v2 { /* and v3 */
    uint32_t pid;
    uint64_t bytes;
    uint32_t gpu_instance, compute_instance;
};

struct pci {
    char legacy_bus_id[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct utilization {
    uint32_t gpu, memory;
};

struct sample {
    uint32_t pid;
    uint64_t time;
    uint32_t sm, memory, encoder, decoder;
};

struct accounting {
    uint32_t gpu, memory;
    uint64_t peak, time, start;
    uint32_t running, reserved[5];
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long mib;
};

struct temperature_v1 {
    uint32_t version, sensor;
    int32_t celsius;
};

/* ---- start and end ---- */

static struct gpus *gpus;
static int users;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
enum { PARTS = 7 };
/* A handle is an address that says nothing to others, as with the real library; that of a MIG instance stands for its
   place on the GPU, and so for another instance after a reconfiguration. */
static char handles[WHOLE + WHOLE * PARTS];

/* The instance at a place of a GPU; -1 = there is none now. */
static int instance_at(unsigned parent, unsigned part)
{
    for (uint32_t i = WHOLE; i < gpus->all; i++)
        if (gpus->gpu[i].parent == parent + 1 && gpus->gpu[i].part == part &&
            gpus->gpu[i].switches[SWITCH_gone] <= 0)
            return (int)i;
    return -1;
}

static int64_t state_of(int device, int which)
{
    return __atomic_load_n(&gpus->gpu[device].switches[which], __ATOMIC_SEQ_CST);
}

static void hang_while(int device, int which)
{
    while (state_of(device, which) > 0)
        gpus_sleep(20);
}

PUBLIC int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    const char *path = getenv("STANDIN_GPUS");
    pthread_mutex_lock(&starting);
    if (!gpus && path)
        gpus = standin_open(path);
    pthread_mutex_unlock(&starting);
    if (!gpus)
        return DRIVER_NOT_LOADED;
    hang_while(0, SWITCH_init_hang);
    gpus_sleep(state_of(0, SWITCH_init_slow));
    int error = (int)state_of(0, SWITCH_init_error);
    if (!error)
        __atomic_add_fetch(&users, 1, __ATOMIC_SEQ_CST);
    return error;
}

PUBLIC int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

PUBLIC int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

PUBLIC int nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    __atomic_sub_fetch(&users, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

PUBLIC const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 17: return "The operating system has blocked the request";
    case 18: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
    }
}

/* ---- what every call on a device goes through ---- */

static void crash(int signal_)
{
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(signal_, SIG_DFL);
    raise(signal_);
}

static int suffer(int device)
{
    hang_while(device, SWITCH_hang);
    gpus_sleep(state_of(device, SWITCH_slow));
    if (state_of(device, SWITCH_crash) > 0)
        crash((int)state_of(device, SWITCH_crash));
    return (int)state_of(device, SWITCH_error);
}

static int enter(const void *handle, int *device)
{
    if (!users)
        return UNINITIALIZED;
    uintptr_t at = (uintptr_t)handle - (uintptr_t)handles;
    if (at >= sizeof handles || (at >= gpus->count && at < WHOLE))
        return INVALID_ARGUMENT;
    *device = (int)at;
    if (at < WHOLE)
        return suffer(*device);
    *device = instance_at((at - WHOLE) / PARTS, (at - WHOLE) % PARTS);
    int error = suffer((int)(at - WHOLE) / PARTS);
    return error ? error : *device < 0 ? NOT_FOUND : suffer(*device);
}

#define ENTER(handle)                        \
    int device;                              \
    int refused = enter(handle, &device);    \
    if (refused)                             \
        return refused;                      \
    struct gpu *gpu = &gpus->gpu[device];    \
    (void)gpu

/* Most questions are answered with one number. */
#define ANSWER(name, type, expression)       \
    PUBLIC int name(void *handle, type *out) \
    {                                        \
        ENTER(handle);                       \
        *out = (type)(expression);           \
        return SUCCESS;                      \
    }

static int text_out(char *out, unsigned size, const char *text)
{
    return (unsigned)snprintf(out, size, "%s", text) < size ? SUCCESS : INSUFFICIENT_SIZE;
}

/* ---- the system ---- */

PUBLIC int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return users ? text_out(out, size, DRIVER == 450 ? "450.248.02" : DRIVER == 470 ? "470.256.02" : "615.71.03")
                 : UNINITIALIZED;
}

PUBLIC int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    return text_out(out, size, DRIVER == 450 ? "11.450.248.02" : DRIVER == 470 ? "11.470.256.02" : "13.615.71.03");
}

PUBLIC int nvmlSystemGetCudaDriverVersion(int *out)
{
    *out = DRIVER == 450 ? 11000 : DRIVER == 470 ? 11040 : 13040;
    return SUCCESS;
}

PUBLIC int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    return nvmlSystemGetCudaDriverVersion(out);
}

PUBLIC int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    char path[32], name[1024];
    if (!users)
        return UNINITIALIZED;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NOT_FOUND;
    ssize_t length = read(fd, name, sizeof name - 1);
    close(fd);
    if (length <= 0)
        return NOT_FOUND;
    name[length] = 0;
    return text_out(out, size, name);
}

/* ---- devices ---- */

PUBLIC int nvmlDeviceGetCount_v2(unsigned *out)
{
    if (!users)
        return UNINITIALIZED;
    *out = gpus->count;
    return SUCCESS;
}

PUBLIC int nvmlDeviceGetCount(unsigned *out)
{
    return nvmlDeviceGetCount_v2(out);
}

static int handle_of(unsigned index, void **out)
{
    *out = &handles[index];
    return suffer((int)index);
}

PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    if (!users)
        return UNINITIALIZED;
    return index < gpus->count ? handle_of(index, out) : INVALID_ARGUMENT;
}

PUBLIC int nvmlDeviceGetHandleByIndex(unsigned index, void **out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

PUBLIC int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    if (!users)
        return UNINITIALIZED;
    for (unsigned i = 0; i < gpus->count; i++)
        if (state_of((int)i, SWITCH_error) == GPU_IS_LOST)
            return GPU_IS_LOST; /* says nvml.h: "if any GPU has fallen off the bus" */
    for (unsigned i = 0; i < gpus->count; i++)
        if (!strcmp(uuid, gpus->gpu[i].uuid))
            return handle_of(i, out);
    return NOT_FOUND;
}

PUBLIC int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **out)
{
    unsigned domain, bus, device;
    if (!users)
        return UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < gpus->count; i++)
        if (gpus->gpu[i].bus == bus && !domain && !device)
            return handle_of(i, out);
    return NOT_FOUND;
}

PUBLIC int nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **out)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

PUBLIC int nvmlDeviceGetName(void *handle, char *out, unsigned size)
{
    ENTER(handle);
    return text_out(out, size, gpu->name);
}

PUBLIC int nvmlDeviceGetUUID(void *handle, char *out, unsigned size)
{
    ENTER(handle);
    return text_out(out, size, gpu->uuid);
}

PUBLIC int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *out)
{
    ENTER(handle);
    *out = (struct pci){.bus = gpu->bus, .device_id = 0x268410DE, .subsystem_id = 0x268410DE};
    snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "0000:%02X:00.0", gpu->bus & 0xFF);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", gpu->bus & 0xFF);
    return SUCCESS;
}

PUBLIC int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    ENTER(handle);
    *major = (int)gpu->major;
    *minor = (int)gpu->minor;
    return SUCCESS;
}

PUBLIC int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_mig] < 0)
        return NOT_SUPPORTED;
    *current = *pending = (unsigned)gpu->switches[SWITCH_mig];
    return SUCCESS;
}

/* What only whole GPUs, or only instances, answer. */
#define ONLY(condition, name, type, expression)  \
    PUBLIC int name(void *handle, type *out)     \
    {                                            \
        ENTER(handle);                           \
        if (!(condition))                        \
            return NOT_SUPPORTED;                \
        *out = (type)(expression);               \
        return SUCCESS;                          \
    }

ANSWER(nvmlDeviceIsMigDeviceHandle, unsigned, gpu->parent != 0)
ANSWER(nvmlDeviceGetMaxMigDeviceCount, unsigned, gpu->parent || gpu->switches[SWITCH_mig] < 0 ? 0 : PARTS)
ONLY(gpu->parent, nvmlDeviceGetGpuInstanceId, unsigned, gpu->gpu_instance)
ONLY(gpu->parent, nvmlDeviceGetComputeInstanceId, unsigned, gpu->compute_instance)
ONLY(gpu->parent, nvmlDeviceGetDeviceHandleFromMigDeviceHandle, void *, &handles[gpu->parent - 1])

PUBLIC int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_mig] <= 0)
        return NOT_SUPPORTED;
    if (index >= PARTS)
        return INVALID_ARGUMENT;
    *out = &handles[WHOLE + device * PARTS + (int)index];
    return instance_at((unsigned)device, index) < 0 ? NOT_FOUND : SUCCESS;
}

PUBLIC int nvmlDeviceGetAttributes_v2(void *handle, struct attributes *out)
{
    ENTER(handle);
    if (!gpu->parent)
        return NOT_SUPPORTED;
    *out = (struct attributes){.gpu_slices = 1, .compute_slices = 1, .mib = gpu->total >> 20};
    return SUCCESS;
}

ANSWER(nvmlDeviceGetIndex, unsigned, gpu->parent ? gpu->part : (unsigned)device)
ONLY(!gpu->parent, nvmlDeviceGetMinorNumber, unsigned, device)
ANSWER(nvmlDeviceGetComputeMode, unsigned, gpu->switches[SWITCH_compute_mode])
ANSWER(nvmlDeviceGetPersistenceMode, unsigned, gpu->switches[SWITCH_persistence])

/* ---- memory ---- */

static int memory(const void *handle, struct memory_v2 *out)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_no_memory] > 0)
        return NOT_SUPPORTED;
    if (gpu->switches[SWITCH_mig_private] > 0)
        return NO_PERMISSION;
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    out->total = gpu->total;
    out->reserved = gpu->reserved;
    out->used = gpus_used(gpus, device);
    out->free = out->total - out->reserved - out->used;
    gpus_unlock(gpus);
    return SUCCESS;
}

PUBLIC int nvmlDeviceGetMemoryInfo(void *handle, struct memory_v1 *out)
{
    struct memory_v2 now;
    int error = memory(handle, &now);
    if (!error) /* the older call counts what is reserved as used */
        *out = (struct memory_v1){now.total, now.free, now.used + now.reserved};
    return error;
}

#if DRIVER > 470
PUBLIC int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out)
{
    return out->version == MEMORY_V2 ? memory(handle, out) : ARGUMENT_VERSION_MISMATCH;
}
#endif

/* ---- load, heat, power ---- */

static double load_of(int device)
{
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    double load = gpus_load(gpus, device);
    gpus_unlock(gpus);
    return load;
}

static double load_shown(int device)
{
    double load = load_of(device);
    return load < 1 ? load : 1;
}

PUBLIC int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *out)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_mig] > 0 || gpu->parent)
        return NOT_SUPPORTED;
    double load = load_shown(device);
    *out = (struct utilization){(uint32_t)(100 * load + 0.5), (uint32_t)(50 * load + 0.5)};
    return SUCCESS;
}

PUBLIC int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *out)
{
    ENTER(handle);
    if (gpu->parent)
        return NOT_SUPPORTED;
    if (sensor)
        return INVALID_ARGUMENT;
    *out = (unsigned)(35 + 40 * load_shown(device));
    return SUCCESS;
}

#if DRIVER > 470
PUBLIC int nvmlDeviceGetTemperatureV(void *handle, struct temperature_v1 *out)
{
    unsigned celsius = 0;
    if (out->version != TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    int error = nvmlDeviceGetTemperature(handle, out->sensor, &celsius);
    out->celsius = (int32_t)celsius;
    return error;
}
#endif

ONLY(!gpu->parent, nvmlDeviceGetPowerUsage, unsigned, 40000 + 260000 * load_shown(device))
ONLY(!gpu->parent, nvmlDeviceGetEnforcedPowerLimit, unsigned, 300000)
ONLY(!gpu->parent, nvmlDeviceGetPowerManagementLimit, unsigned, 300000)

/* ---- processes ---- */

static uint32_t pid_shown(const struct gpu *gpu, int32_t pid)
{
    return (uint32_t)(pid + (gpu->switches[SWITCH_host_pids] > 0 ? HOST_PIDS : 0));
}

static int is_listed(const struct gpu *gpu, const struct holder *one, unsigned kind)
{
    return (one->kind & kind) && gpu->switches[SWITCH_hidden] <= 0 &&
           (!one->died || gpu->switches[SWITCH_linger_listed] > 0);
}

static void write_process(void *out, unsigned at, int version, uint32_t pid, uint64_t bytes, const struct gpu *where)
{
    uint32_t gpu_instance = where->parent ? where->gpu_instance : OUTSIDE_MIG;
    uint32_t compute_instance = where->parent ? where->compute_instance : OUTSIDE_MIG;
    if (version == 1)
        ((struct process_v1 *)out)[at] = (struct process_v1){pid, bytes};
    else
        ((struct process_v2 *)out)[at] = (struct process_v2){pid, bytes, gpu_instance, compute_instance};
}

static int list(const void *handle, unsigned kind, int version, unsigned *count, void *out)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_mig_private] > 0)
        return NO_PERMISSION;
    unsigned room = out ? *count : 0, found = 0;
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    for (uint32_t i = 0; i < gpus->slots; i++) {
        const struct holder *one = &gpus->holder[i];
        const struct gpu *where = &gpus->gpu[one->device]; /* a GPU lists the processes of its instances, too */
        if (!one->pid || (one->device != device && where->parent != (uint32_t)device + 1) ||
            !is_listed(gpu, one, kind))
            continue;
        if (found < room)
            write_process(out, found, version, pid_shown(gpu, one->pid),
                          gpu->switches[SWITCH_memory_na] > 0 ? NOT_AVAILABLE : one->bytes, where);
        found++;
    }
    gpus_unlock(gpus);
    *count = found;
    return found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

#define LIST(name, kind, version)                              \
    PUBLIC int name(void *handle, unsigned *count, void *out)  \
    {                                                          \
        return list(handle, kind, version, count, out);        \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, 1)
#if DRIVER >= 470
LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, 2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, 2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, 2)
#endif
#if DRIVER > 470
LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, 3)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, 3)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, 3)
#endif

PUBLIC int nvmlDeviceGetProcessUtilization(void *handle, struct sample *out, unsigned *count, unsigned long long since)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_no_utilization] > 0 || gpu->switches[SWITCH_mig] > 0 || gpu->parent)
        return NOT_SUPPORTED;
    uint64_t now = (uint64_t)(gpus_microseconds() / SAMPLE * SAMPLE);
    if (now <= since)
        return NOT_FOUND;
    double load = load_of(device), most = load > 1 ? load : 1;
    unsigned room = out ? *count : 0, found = 0;
    gpus_lock(gpus);
    for (uint32_t i = 0; i < gpus->slots; i++) {
        const struct holder *one = &gpus->holder[i];
        if (!one->pid || one->device != device || one->busy <= 0)
            continue;
        uint32_t percent = (uint32_t)(100 * one->busy / most + 0.5);
        if (found < room)
            out[found] = (struct sample){pid_shown(gpu, one->pid), now, percent, percent / 2, 0, 0};
        found++;
    }
    gpus_unlock(gpus);
    *count = found <= room ? found : found + 16; /* the real one asks for room for all it could have */
    return !found ? NOT_FOUND : found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

/* ---- accounting ---- */

static int is_accounting(const struct gpu *gpu)
{
    return !gpu->parent && gpu->switches[SWITCH_accounting] > 0 && gpu->switches[SWITCH_mig] <= 0; /* MIG forces it off */
}

ANSWER(nvmlDeviceGetAccountingMode, unsigned, is_accounting(gpu))
ANSWER(nvmlDeviceGetAccountingBufferSize, unsigned, ACCOUNTS)

PUBLIC int nvmlDeviceGetAccountingPids(void *handle, unsigned *count, unsigned *out)
{
    ENTER(handle);
    if (!is_accounting(gpu))
        return NOT_SUPPORTED;
    unsigned room = out ? *count : 0;
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    unsigned found = gpu->accounted < ACCOUNTS ? gpu->accounted : ACCOUNTS;
    for (unsigned i = 0; i < found && i < room; i++)
        out[i] = pid_shown(gpu, gpu->accounts[i].pid);
    gpus_unlock(gpus);
    *count = found;
    return found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

static int account_out(const struct gpu *gpu, unsigned pid, struct accounting *out)
{
    const struct account *latest = NULL;
    for (unsigned i = 0; i < ACCOUNTS && i < gpu->accounted; i++) {
        const struct account *one = &gpu->accounts[i];
        if (pid_shown(gpu, one->pid) == pid && (!latest || one->began > latest->began))
            latest = one;
    }
    if (!latest)
        return NOT_FOUND;
    *out = (struct accounting){.gpu = (uint32_t)(100 * latest->busy), .peak = latest->peak};
    out->start = (uint64_t)latest->began;
    out->time = latest->ended ? (uint64_t)(latest->ended - latest->began) / 1000 : 0;
    out->running = !latest->ended;
    return SUCCESS;
}

PUBLIC int nvmlDeviceGetAccountingStats(void *handle, unsigned pid, struct accounting *out)
{
    ENTER(handle);
    if (!is_accounting(gpu))
        return NOT_SUPPORTED;
    gpus_lock(gpus);
    gpus_reap(gpus, device);
    int result = account_out(gpu, pid, out);
    gpus_unlock(gpus);
    return result;
}

/* ---- health ---- */

struct event_set {
    int64_t seen[WHOLE];
};

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

enum { XID_EVENT = 8, TIMEOUT = 10 };

PUBLIC int nvmlEventSetCreate(struct event_set **out)
{
    if (!users)
        return UNINITIALIZED;
    *out = calloc(1, sizeof **out);
    for (int device = 0; device < (int)gpus->count; device++)
        (*out)->seen[device] = state_of(device, SWITCH_xid);
    return SUCCESS;
}

PUBLIC int nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return SUCCESS;
}

PUBLIC int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, struct event_set *set)
{
    ENTER(handle);
    if (gpu->parent || !(types & XID_EVENT))
        return NOT_SUPPORTED;
    set->seen[device] = state_of(device, SWITCH_xid);
    return SUCCESS;
}

PUBLIC int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned milliseconds)
{
    if (!users)
        return UNINITIALIZED;
    for (int device = 0; device < (int)gpus->count; device++) {
        int64_t now = state_of(device, SWITCH_xid);
        if (now == set->seen[device]) /* also of GPUs that were not registered, as NVIDIA's mock does */
            continue;
        set->seen[device] = now;
        *out = (struct event_data){&handles[device], XID_EVENT, (unsigned long long)now, OUTSIDE_MIG, OUTSIDE_MIG};
        return SUCCESS;
    }
    gpus_sleep(milliseconds);
    return TIMEOUT;
}

PUBLIC int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *out)
{
    ENTER(handle);
    if (gpu->switches[SWITCH_ecc] < 0 || gpu->parent)
        return NOT_SUPPORTED;
    *out = kind == 1 && counter == 0 ? (unsigned long long)gpu->switches[SWITCH_ecc] : 0;
    return SUCCESS;
}

ONLY(!gpu->parent, nvmlDeviceGetRetiredPagesPendingStatus, int, gpu->switches[SWITCH_retire_pending] > 0)
ONLY(!gpu->parent, nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, gpu->switches[SWITCH_throttled])

/* ---- what tools ask for, and this machine has not ---- */

#define LACKING(name)                                  \
    PUBLIC int name(void *handle, ...)                 \
    {                                                  \
        ENTER(handle);                                 \
        return NOT_SUPPORTED;                          \
    }

LACKING(nvmlDeviceGetBAR1MemoryInfo)
LACKING(nvmlDeviceGetClockInfo)
LACKING(nvmlDeviceGetDecoderUtilization)
LACKING(nvmlDeviceGetDisplayActive)
LACKING(nvmlDeviceGetDisplayMode)
LACKING(nvmlDeviceGetDriverModel)
LACKING(nvmlDeviceGetEncoderUtilization)
LACKING(nvmlDeviceGetFanSpeed)
LACKING(nvmlDeviceGetMaxClockInfo)
LACKING(nvmlDeviceGetPcieThroughput)
LACKING(nvmlDeviceGetPerformanceState)
