/* The part of CUDA's driver API by which a program opens a device and takes memory of it, over the stand-in's GPUs.
   What a process is shown follows CUDA's rules for CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER; types: cuda.h of NVIDIA. */

#include "gpus.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
};

enum { BLOCKS = 1024 };
static const uint64_t CONTEXT_BYTES = 300ull << 20; /* what a context alone takes */

struct context {
    int device;
};

struct block {
    uint64_t at, bytes;
    int device;
};

static struct gpus *gpus;
static int shown[DEVICES], shown_count;
static struct context contexts[DEVICES];
static struct context *current;
static struct block blocks[BLOCKS];
static uint64_t next_address = 0x7f0000000000;

/* The devices in CUDA's order: by bus, or the fastest first. */
static void sort_devices(int *order)
{
    const char *said = getenv("CUDA_DEVICE_ORDER");
    const char *by = said && !strcmp(said, "PCI_BUS_ID") ? "bus" : "ordinal";
    for (int i = 0; i < (int)gpus->count; i++) {
        int at = i;
        for (; at > 0 && standin_number(gpus, order[at - 1], by) > standin_number(gpus, i, by); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* The ordinal that an entry names; -1 = none. A number is read as by strtoul, a UUID may be cut as far as it is unique. */
static int named(const char *entry, int by_uuid, const int *order)
{
    if (!by_uuid) {
        char *end;
        unsigned long number = strtoul(entry, &end, 10);
        return end == entry || *entry == '-' || number >= gpus->count ? -1 : (int)number;
    }
    int found = -1, fitting = 0;
    for (int i = 0; i < (int)gpus->count; i++)
        if (!strncmp(standin_uuid(gpus, order[i]), entry, strlen(entry))) {
            found = i;
            fitting++;
        }
    return strncmp(entry, "GPU-", 4) || fitting != 1 ? -1 : found;
}

/* The list ends at the first entry that names nothing; one that names a device twice shows none. */
static void show(const char *said, const int *order)
{
    char text[4096] = "";
    int by_uuid = !strncmp(said, "GPU-", 4), seen[DEVICES] = {0};
    strncat(text, said, sizeof text - 1);
    for (char *rest = text, *entry; (entry = strsep(&rest, ","));) {
        entry += strspn(entry, " ");
        int ordinal = named(entry, by_uuid, order);
        if (ordinal < 0)
            return;
        if (seen[ordinal]++) {
            shown_count = 0;
            return;
        }
        shown[shown_count++] = order[ordinal];
    }
}

/* One instance, whatever the list names after it. */
static void show_instance(const char *said)
{
    size_t length = strcspn(said, ",");
    for (int i = WHOLE; i < standin_all(gpus); i++)
        if (strlen(standin_uuid(gpus, i)) == length && !strncmp(standin_uuid(gpus, i), said, length) &&
            !standin_number(gpus, i, "gone")) {
            shown[0] = i;
            shown_count = 1;
        }
}

PUBLIC int cuInit(unsigned flags)
{
    const char *path = getenv("STANDIN_GPUS"), *said = getenv("CUDA_VISIBLE_DEVICES");
    int order[DEVICES];
    if (flags)
        return INVALID_VALUE;
    if (gpus)
        return shown_count ? SUCCESS : NO_DEVICE;
    gpus = path ? standin_open(path) : NULL;
    if (!gpus)
        return NO_DEVICE;
    sort_devices(order);
    if (said && !strncmp(said, "MIG-", 4))
        show_instance(said);
    else if (said)
        show(said, order);
    else
        for (; shown_count < (int)gpus->count; shown_count++)
            shown[shown_count] = order[shown_count];
    return shown_count ? SUCCESS : NO_DEVICE;
}

PUBLIC int cuDeviceGetCount(int *count)
{
    if (!gpus)
        return NOT_INITIALIZED;
    *count = shown_count;
    return SUCCESS;
}

PUBLIC int cuDeviceGet(int *device, int ordinal)
{
    if (!gpus)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= shown_count)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

static int digit(char character)
{
    return character <= '9' ? character - '0' : (character | 32) - 'a' + 10;
}

PUBLIC int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    if (device < 0 || device >= shown_count)
        return INVALID_DEVICE;
    const char *text = standin_uuid(gpus, shown[device]) + strlen("GPU-");
    for (int i = 0; i < 16; i++) {
        text += *text == '-';
        uuid[i] = (unsigned char)(digit(text[0]) << 4 | digit(text[1]));
        text += 2;
    }
    return SUCCESS;
}

PUBLIC int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    if (device < 0 || device >= shown_count)
        return INVALID_DEVICE;
    *bytes = standin_number(gpus, shown[device], "total");
    return SUCCESS;
}

static int take(int device, int64_t more)
{
    uint64_t free_bytes;
    return standin_change(gpus, device, getpid(), more, COMPUTE, &free_bytes) ? OUT_OF_MEMORY : SUCCESS;
}

PUBLIC int cuCtxCreate_v2(struct context **context, unsigned flags, int device)
{
    (void)flags;
    if (device < 0 || device >= shown_count)
        return INVALID_DEVICE;
    if (take(shown[device], (int64_t)CONTEXT_BYTES))
        return OUT_OF_MEMORY;
    contexts[device].device = shown[device];
    *context = current = &contexts[device];
    return SUCCESS;
}

PUBLIC int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
    if (!current)
        return INVALID_CONTEXT;
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].bytes)
            continue;
        if (!bytes || take(current->device, (int64_t)bytes))
            return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
        blocks[i] = (struct block){next_address, bytes, current->device};
        next_address += bytes;
        *at = blocks[i].at;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

PUBLIC int cuMemFree_v2(uint64_t at)
{
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].bytes && blocks[i].at == at) {
            take(blocks[i].device, -(int64_t)blocks[i].bytes);
            blocks[i].bytes = 0;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

PUBLIC int cuGetErrorName(int error, const char **name)
{
    static const struct {
        int error;
        const char *name;
    } names[] = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    };
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            return SUCCESS;
        }
    return INVALID_VALUE;
}
