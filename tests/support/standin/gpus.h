/* The stand-in's GPUs as one file that every process maps: who holds how much of which, and the switches for faults. */

#ifndef STANDIN_GPUS_H
#define STANDIN_GPUS_H

#include <pthread.h>
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))

enum { WHOLE = 16, DEVICES = WHOLE + 64, HOLDERS = 1024, ACCOUNTS = 1024 };

/* Lists a process is shown in; a client of MPS is in two of them, as with the real driver. */
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

/* What can be set on a device while everything runs; milliseconds, codes, signals, or 0 and 1. */
#define SWITCHES(X)                                                                                         \
    X(error)          /* every call returns this code; 15 = GPU is lost */                                  \
    X(slow)           /* every call takes so many milliseconds more */                                      \
    X(hang)           /* no call returns while this is set */                                               \
    X(crash)          /* every call raises this signal inside the library */                                \
    X(memory_na)      /* memory per process is not available */                                             \
    X(hidden)         /* nobody is listed, though memory is used */                                         \
    X(host_pids)      /* pids are those of a namespace that cannot be seen from here */                     \
    X(linger)         /* the memory of the dead stays used for so many milliseconds */                      \
    X(linger_listed)  /* ... and they stay listed as long */                                                \
    X(no_utilization) /* utilisation per process is not supported */                                        \
    X(no_memory)      /* memory of the device is not supported, as where it shares that of the host */      \
    X(accounting)     /* accounting mode */                                                                 \
    X(mig)            /* MIG mode; -1 = a device that knows no MIG */                                       \
    X(gone)           /* a MIG instance that was destroyed */                                               \
    X(xid)            /* the last critical error, by its number; 0 = none yet */                            \
    X(ecc)            /* uncorrectable memory errors since the driver was loaded; -1 = it does not count */  \
    X(retire_pending) /* a page or row of memory is replaced at the next reset */                           \
    X(throttled)      /* why its clocks are low, as bits */                                                 \
    X(mig_private)    /* of a GPU in MIG mode only the instances may be read, as in a container */          \
    X(compute_mode)   /* 0 default, 2 prohibited, 3 exclusive process */                                    \
    X(persistence)    /* persistence mode */                                                                \
    X(init_error)     /* nvmlInit returns this code; one for the whole machine, as the two that follow */   \
    X(init_hang)      /* nvmlInit does not return while this is set */                                      \
    X(init_slow)      /* nvmlInit takes so many milliseconds */

#define AS_ENUM(name) SWITCH_##name,
enum { SWITCHES(AS_ENUM) SWITCH_COUNT };

struct holder {
    int32_t pid; /* 0 = a free slot */
    int32_t device;
    uint32_t kind;
    uint64_t start; /* clock ticks after boot: a pid alone may have been given away again */
    uint64_t bytes;
    uint64_t peak;
    double busy;
    int64_t died; /* when it was found dead, in milliseconds; 0 = it lives */
};

struct account {
    int32_t pid;
    uint64_t start;
    uint64_t peak;
    int64_t began; /* microseconds */
    int64_t ended; /* 0 = it runs */
    double busy;
};

struct gpu {
    char uuid[48];
    char name[64];
    uint32_t bus;
    uint32_t ordinal; /* where CUDA puts it when it sorts by speed */
    uint32_t major, minor;
    uint32_t parent; /* the number of the GPU of which this is a MIG instance, plus one; 0 = a whole GPU */
    uint32_t part, gpu_instance, compute_instance; /* where and what it is there */
    uint64_t total;
    uint64_t reserved;
    uint64_t ooms;
    uint64_t peak;
    int64_t reaped;
    int64_t switches[SWITCH_COUNT];
    uint32_t accounted; /* how many were ever written: the oldest is overwritten */
    struct account accounts[ACCOUNTS];
};

struct gpus {
    uint64_t magic;
    uint32_t count; /* whole GPUs; instances follow after WHOLE */
    uint32_t all;
    uint32_t slots; /* no holder lives beyond this one */
    pthread_mutex_t lock;
    struct gpu gpu[DEVICES];
    struct holder holder[HOLDERS];
};

/* For the processes of a test, through ctypes. A device is its index in NVML's order. */
PUBLIC struct gpus *standin_create(const char *path, int count);
PUBLIC struct gpus *standin_open(const char *path);
PUBLIC void standin_close(struct gpus *gpus);
PUBLIC void standin_describe(struct gpus *gpus, int device, const char *uuid, const char *name, int bus, int ordinal);
PUBLIC void standin_size(struct gpus *gpus, int device, uint64_t total, uint64_t reserved, int major, int minor);
PUBLIC int standin_slice(struct gpus *gpus, int device, const char *uuid, const char *name, uint64_t total,
                         int gpu_instance, int compute_instance);
PUBLIC int standin_set(struct gpus *gpus, int device, const char *name, int64_t value);
PUBLIC int standin_change(struct gpus *gpus, int device, int pid, int64_t more, int kind, uint64_t *available);
PUBLIC int standin_busy(struct gpus *gpus, int device, int pid, double share, int kind);
PUBLIC double standin_load(struct gpus *gpus, int device);
PUBLIC int standin_look(struct gpus *gpus, int device, int64_t *rows, int most);
PUBLIC int standin_count(struct gpus *gpus);
PUBLIC int standin_all(struct gpus *gpus);
PUBLIC const char *standin_uuid(struct gpus *gpus, int device);
PUBLIC uint64_t standin_number(struct gpus *gpus, int device, const char *name);

/* For the border to NVML. */
void gpus_lock(struct gpus *gpus);
void gpus_unlock(struct gpus *gpus);
void gpus_reap(struct gpus *gpus, int device);
uint64_t gpus_used(struct gpus *gpus, int device);
double gpus_load(struct gpus *gpus, int device);
int64_t gpus_milliseconds(void);
int64_t gpus_microseconds(void);
void gpus_sleep(int64_t milliseconds);

#endif
