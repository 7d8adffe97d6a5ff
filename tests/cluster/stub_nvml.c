/*
 * A stand-in for libnvidia-ml.so.1, for virtual nodes without a GPU.
 *
 * Every answer is looked up, at the time of the call, in /run/stub-nvml.conf:
 * "key=value" lines, device keys written "gpu0.name". A device value of
 * "unsupported" answers NVML_ERROR_NOT_SUPPORTED. Structures and numbers follow
 * NVIDIA's public nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONFIGURATION "/run/stub-nvml.conf"
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned gpu, memory; } Utilization;

static int initialized;

static int lookup(const char *key, char *value, size_t size) {
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    FILE *file = fopen(CONFIGURATION, "r");
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == '=') {
            line[strcspn(line, "\r\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    fclose(file);
    return found;
}

static int number(const char *key, int fallback) {
    char value[64];
    return lookup(key, value, sizeof value) ? atoi(value) : fallback;
}

static int index_of(void *device) { return (int)(size_t)device - 1; }

/* Whether a device can be asked at all: "gpu0.error=15" makes every question fail. */
static int check(void *device) {
    char key[32];
    if (!initialized) return UNINITIALIZED;
    if (!device || index_of(device) >= number("count", 0)) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "gpu%d.error", index_of(device));
    return number(key, OK);
}

/* A device's value as text. */
static int get(void *device, const char *name, const char *fallback, char *value, size_t size) {
    char key[96];
    int error = check(device);
    if (error != OK) return error;
    snprintf(key, sizeof key, "gpu%d.%s", index_of(device), name);
    if (!lookup(key, value, size)) {
        if (!fallback) return NOT_SUPPORTED;
        snprintf(value, size, "%s", fallback);
    }
    return strcmp(value, "unsupported") ? OK : NOT_SUPPORTED;
}

static int get_u64(void *device, const char *name, const char *fallback, u64 *result) {
    char value[64];
    int error = get(device, name, fallback, value, sizeof value);
    if (error == OK) *result = strtoull(value, NULL, 0);
    return error;
}

static int get_uint(void *device, const char *name, const char *fallback, unsigned *result) {
    u64 wide;
    int error = get_u64(device, name, fallback, &wide);
    if (error == OK) *result = (unsigned)wide;
    return error;
}

static int system_text(const char *key, char *value, unsigned size) {
    char text[256];
    if (!initialized) return UNINITIALIZED;
    if (!lookup(key, text, sizeof text)) return NOT_SUPPORTED;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(value, text);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    int error = number("init_error", OK);
    (void)flags;
    if (error == OK) initialized++;
    return error;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (initialized) initialized--; return OK; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Stub error";
    }
}

int nvmlSystemGetDriverVersion(char *value, unsigned size) { return system_text("driver", value, size); }
int nvmlSystemGetNVMLVersion(char *value, unsigned size) { return system_text("nvml", value, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *value) { *value = number("cuda", 0); return OK; }
int nvmlSystemGetCudaDriverVersion(int *value) { return nvmlSystemGetCudaDriverVersion_v2(value); }
int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized) return UNINITIALIZED;
    *count = (unsigned)number("count", 0);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return check(*device);
}
static int find(const char *name, const char *wanted, void **device) {
    char value[128];
    int i, count = number("count", 0);
    for (i = 0; i < count; i++) {
        *device = (void *)(size_t)(i + 1);
        if (get(*device, name, "", value, sizeof value) == OK && !strcasecmp(value, wanted)) return OK;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return find("uuid", uuid, device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return find("pci_bus_id", id, device); }
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned)index_of(device); return OK; }
int nvmlDeviceGetName(void *d, char *value, unsigned size) { return get(d, "name", "Stub GPU", value, size); }
int nvmlDeviceGetUUID(void *d, char *value, unsigned size) { return get(d, "uuid", NULL, value, size); }
int nvmlDeviceGetSerial(void *d, char *value, unsigned size) { return get(d, "serial", NULL, value, size); }
int nvmlDeviceGetVbiosVersion(void *d, char *value, unsigned size) { return get(d, "vbios", NULL, value, size); }

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    int error = get_u64(device, "memory_total", "0", &memory->total);
    if (error == OK) error = get_u64(device, "memory_used", "0", &memory->used);
    if (error == OK) memory->free = memory->total - memory->used;
    return error;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
    Memory plain;
    int error = nvmlDeviceGetMemoryInfo(device, &plain);
    if (error != OK) return error;
    memory->total = plain.total, memory->free = plain.free, memory->used = plain.used, memory->reserved = 0;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    char value[16];
    int error = get(device, "compute_capability", "8.0", value, sizeof value);
    if (error == OK && sscanf(value, "%d.%d", major, minor) != 2) error = NOT_SUPPORTED;
    return error;
}
int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    int error = get(device, "pci_bus_id", NULL, pci->bus_id, sizeof pci->bus_id);
    if (error != OK) return error;
    sscanf(pci->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04x:%02x:%02x.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff);
    return get_uint(device, "pci_device_id", "0x20b510de", &pci->id);
}

#define UINT(function, key, fallback) \
    int function(void *device, unsigned *value) { return get_uint(device, key, fallback, value); }
#define U64(function, key, fallback) \
    int function(void *device, u64 *value) { return get_u64(device, key, fallback, value); }
UINT(nvmlDeviceGetPersistenceMode, "persistence_mode", "1")
UINT(nvmlDeviceGetComputeMode, "compute_mode", "0")
UINT(nvmlDeviceGetPowerUsage, "power_usage", "60000")
UINT(nvmlDeviceGetPowerManagementLimit, "power_limit", "400000")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit", "400000")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", "4")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", "16")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", "4")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", "16")
UINT(nvmlDeviceGetMinorNumber, "minor_number", NULL)
U64(nvmlDeviceGetCurrentClocksEventReasons, "throttle_reasons", "0")
U64(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle_reasons", "0")

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value) {
    (void)sensor;
    return get_uint(device, "temperature", "35", value);
}
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *value) {
    (void)clock;
    return get_uint(device, "clock", "1410", value);
}
int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *value) {
    (void)clock;
    return get_uint(device, "clock_max", "1410", value);
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    int error = get_uint(device, "utilization", "0", &rates->gpu);
    return error == OK ? get_uint(device, "utilization_memory", "0", &rates->memory) : error;
}
int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    int error = get_uint(device, "ecc_mode", "1", current);
    return error == OK ? get_uint(device, "ecc_mode_pending", "1", pending) : error;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    int error = get_uint(device, "mig_mode", "0", current);
    return error == OK ? get_uint(device, "mig_mode_pending", "0", pending) : error;
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, u64 *value) {
    (void)counter; /* type 1 is uncorrected */
    return get_u64(device, type == 1 ? "ecc_uncorrected" : "ecc_corrected", "0", value);
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    int error = get_uint(device, "remapped_corrected", "0", corrected);
    if (error == OK) error = get_uint(device, "remapped_uncorrected", "0", uncorrected);
    if (error == OK) error = get_uint(device, "remapped_pending", "0", pending);
    return error == OK ? get_uint(device, "remapped_failed", "0", failed) : error;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    char key[32];
    snprintf(key, sizeof key, "nvlink%u", link);
    return get_uint(device, key, NULL, active);
}
/* At most one foreign process per device: process_pid and process_memory. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *list) {
    unsigned room = *count, pid;
    int error = get_uint(device, "process_pid", "0", &pid);
    if (error != OK) return error;
    *count = pid != 0;
    if (*count > room) return INSUFFICIENT_SIZE;
    if (*count == 0) return OK;
    list->pid = pid, list->gpu_instance = list->compute_instance = 0xffffffff;
    return get_u64(device, "process_memory", "0", &list->memory);
}
