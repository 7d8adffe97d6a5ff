/*
 * A stand-in for libnvidia-ml.so.1, for virtual nodes without a GPU.
 *
 * Every answer is looked up, at the time of the call, in /run/stub-nvml.conf, or the file that $STUB_NVML_CONF names:
 * "key=value" lines, device keys written "gpu0.name". Instead of a value there may be
 *   unsupported   answers NVML_ERROR_NOT_SUPPORTED
 *   error:4       answers this nvmlReturn_t (4 is NVML_ERROR_NO_PERMISSION)
 *   wedge:30      hangs for so many seconds before it answers as if nothing was said
 * Structures and numbers follow NVIDIA's public nvml.h. Compiled with OLD_DRIVER it lacks what came with 510 and later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

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
    const char *elsewhere = getenv("STUB_NVML_CONF");
    FILE *file = fopen(elsewhere ? elsewhere : CONFIGURATION, "r");
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

/* What stands instead of a value: an error is returned, a wedge is slept through and leaves the fallback. */
static int instead(const char *value, int *left) {
    *left = 0;
    if (!strcmp(value, "unsupported")) return NOT_SUPPORTED;
    if (!strncmp(value, "error:", 6)) return atoi(value + 6);
    if (!strncmp(value, "wedge:", 6)) {
        unsigned seconds = (unsigned)atoi(value + 6);
        while (seconds) seconds = sleep(seconds);
        *left = 1;
    }
    return OK;
}

static int number(const char *key, int fallback) {
    char value[64];
    int left;
    if (!lookup(key, value, sizeof value)) return fallback;
    instead(value, &left);
    return left ? fallback : atoi(value);
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
    int left = 0, found, error = check(device);
    if (error != OK) return error;
    snprintf(key, sizeof key, "gpu%d.%s", index_of(device), name);
    found = lookup(key, value, size);
    if (found) error = instead(value, &left);
    if (error == OK && (!found || left)) {
        if (!fallback) return NOT_SUPPORTED;
        snprintf(value, size, "%s", fallback);
    }
    return error;
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
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
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
#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
    Memory plain;
    int error = nvmlDeviceGetMemoryInfo(device, &plain);
    if (error != OK) return error;
    memory->total = plain.total, memory->free = plain.free, memory->used = plain.used;
    return get_u64(device, "memory_reserved", "0", &memory->reserved);
}
#endif
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
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default", "400000")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replays", "0")
UINT(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending", "0")
UINT(nvmlDeviceGetMaxMigDeviceCount, "mig_most", "7")
#ifndef OLD_DRIVER
U64(nvmlDeviceGetCurrentClocksEventReasons, "throttle_reasons", "0")
#endif
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
    /* type 1 is uncorrected, counter 1 counts since the card was made */
    static const char *names[] = {"ecc_corrected", "ecc_uncorrected", "ecc_corrected_ever", "ecc_uncorrected_ever"};
    return get_u64(device, names[(type == 1) + 2 * (counter == 1)], "0", value);
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
int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, unsigned counter, u64 *value) {
    static const char *names[] = {"replay", "recovery", "crc_flit", "crc_data"};
    char key[48];
    if (counter > 3) return NOT_SUPPORTED;
    snprintf(key, sizeof key, "nvlink%u_%s", link, names[counter]);
    return get_u64(device, key, "0", value);
}
int nvmlDeviceGetApplicationsClock(void *device, int clock, unsigned *value) {
    (void)clock;
    return get_uint(device, "clock_application", "1410", value);
}
int nvmlDeviceGetTemperatureThreshold(void *device, int threshold, unsigned *value) {
    return get_uint(device, threshold == 0 ? "temperature_shutdown" : "temperature_slowdown",
                    threshold == 0 ? "92" : "89", value);
}
/* Causes: 0 for several single-bit errors, 1 for a double-bit one, which is the one counted here. */
int nvmlDeviceGetRetiredPages(void *device, int cause, unsigned *count, u64 *pages) {
    unsigned i, room = *count, retired = 0;
    int error = get_uint(device, "retired_pages", "0", &retired);
    if (error != OK) return error;
    *count = cause == 1 ? retired : 0;
    if (*count > room) return INSUFFICIENT_SIZE;
    for (i = 0; i < *count; i++) pages[i] = 0x1000u * (i + 1);
    return OK;
}
int nvmlDeviceGetGspFirmwareVersion(void *d, char *value) { return get(d, "gsp_firmware", NULL, value, 0x40); }
#ifndef OLD_DRIVER
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric;
int nvmlDeviceGetGpuFabricInfo(void *device, Fabric *info) {
    unsigned state = 0, status = 0;
    int error = get_uint(device, "fabric_state", NULL, &state);
    if (error == OK) error = get_uint(device, "fabric_status", "0", &status);
    memset(info, 0, sizeof *info);
    info->state = (unsigned char)state, info->status = (int)status;
    return error;
}
#endif
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned place, void **instance) {
    unsigned there = 0;
    int error = get_uint(device, "mig_instances", "0", &there);
    if (error != OK) return error;
    *instance = device;
    return place < there ? OK : NOT_FOUND;
}
/* Pairs: "gpu0.peer1" is the status of reading (0 is yes), "gpu0.distance1" the topology level; 0 comes before 1. */
static int pair(void *one, void *other, const char *name, const char *fallback, unsigned *value) {
    char key[32];
    int error = check(other);
    snprintf(key, sizeof key, "%s%d", name, index_of(other));
    return error == OK ? get_uint(one, key, fallback, value) : error;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int index, unsigned *status) {
    (void)index;
    return pair(one, other, "peer", "0", status);
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    return pair(one, other, "distance", "10", level);
}
#ifndef OLD_DRIVER
typedef struct { unsigned id, scope; long long timestamp, latency; unsigned type; int result; u64 value; } Field;
int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    int i, error = check(device);
    if (error != OK) return error;
    for (i = 0; i < count; i++) { /* 230 is the recovery action */
        fields[i].value = 0;
        fields[i].result = fields[i].id == 230 ? get_u64(device, "recovery_action", "0", &fields[i].value) : NOT_SUPPORTED;
    }
    return OK;
}
#endif
/* Foreign processes: process_pid and process_memory, then process1_pid and so on. */
#ifdef OLD_DRIVER
#define nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *list) {
    unsigned room = *count, pid, there;
    int error = OK;
    char key[48];
    for (there = 0; there < 16 && error == OK; there++) {
        snprintf(key, sizeof key, there ? "process%u_pid" : "process_pid", there);
        error = get_uint(device, key, "0", &pid);
        if (error != OK || pid == 0) break;
        if (there >= room) continue;
        list[there].pid = pid;
        list[there].gpu_instance = list[there].compute_instance = 0xffffffff;
        snprintf(key, sizeof key, there ? "process%u_memory" : "process_memory", there);
        error = get_u64(device, key, "0", &list[there].memory);
    }
    if (error != OK) return error;
    *count = there;
    return there > room ? INSUFFICIENT_SIZE : OK;
}
