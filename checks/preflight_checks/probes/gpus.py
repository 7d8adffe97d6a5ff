"""The GPUs and the driver of this node: NVIDIA's from NVML, AMD's from sysfs; and how fast their tool responds.

Each driver query runs in its own process: first the number of devices, then each device by itself, so that a hanging
device does not hide the others.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import pwd
import re
import time
from dataclasses import dataclass, field, fields
from typing import Any, Callable

from preflight.agent import command
from preflight.agent.process import read_number, read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import libraries
from preflight_checks.probes.isolated import Send, TaskResult, run_isolated

# All NVML data of one NVIDIA GPU, reported item by item, so that a hanging call loses only the following ones.
# Items that a device or driver does not support are left out; other errors go to `unread` with the reason.


#: nvml.h: NVML_NVLINK_MAX_LINKS, nvmlNvLinkErrorCounter_t, NVML_CLOCK_SM, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN.
MAX_NVLINKS = 18
NVLINK_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data")
_CLOCK_SM = 1
_SLOWDOWN = 1
_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION = 2, 3, 4
_FUNCTION_NOT_FOUND, _VERSION_MISMATCH = 13, 25
#: GPU_IS_LOST and RESET_REQUIRED: no further call will succeed.
_LOST_CODES = (15, 16)
_CLOCK_LOOKS = 3


class _Lost(Exception):
    """The device can no longer be queried."""


class _Reader:
    def __init__(self, nvml: Any, send: Send) -> None:
        self.nvml = nvml
        self._send = send
        self.unread: dict[str, str] = {}

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one function of NVML. Raises NVMLError, or AttributeError for a binding without it."""
        self._send({"at": name})
        return getattr(self.nvml, name)(*arguments)

    def get(self, field: str, read: Callable[[], Any]) -> Any:
        """Report the value of `field` and return it; if it is not available, report nothing and return None."""
        try:
            value = read()
        except AttributeError:
            return None
        except self.nvml.NVMLError as error:
            self.note(field, error)
            return None
        self._send({field: value})
        return value

    def note(self, field: str, error: Any) -> None:
        """Record why `field` could not be read. Raises _Lost when nothing more can be."""
        code = getattr(error, "value", None)
        if code in _LOST_CODES:
            raise _Lost(str(error))
        # A driver reports fields that are newer than itself as invalid.
        missing = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _VERSION_MISMATCH)
        if code not in missing and not (field == "recovery_action" and code == _INVALID_ARGUMENT):
            self.unread[field] = str(error)
            self._send({"unread": self.unread})


def report_device(nvml: Any, index: int, send: Send) -> None:
    """Report the properties and the state of device `index`."""
    reader = _Reader(nvml, send)
    try:
        reader.call("nvmlInit")
        handle = reader.call("nvmlDeviceGetHandleByIndex", index)
        send({"name": decode_text(reader.call("nvmlDeviceGetName", handle))})
        _read_identity(reader, handle)
        _read_memory(reader, handle)
        _read_clocks_and_power(reader, handle)
        _read_links(reader, handle)
        _read_modes(reader, handle)
        reader.get("processes", lambda: _processes(reader, handle))
    except (nvml.NVMLError, _Lost) as error:
        code = getattr(error, "value", None)
        lost = isinstance(error, _Lost) or code in _LOST_CODES
        kind = "lost" if lost else "denied" if code == _NO_PERMISSION else "other"
        send({"problem": str(error), "problem_kind": kind})


def _read_identity(reader: _Reader, handle: Any) -> None:
    call, get = reader.call, reader.get
    get("uuid", lambda: decode_text(call("nvmlDeviceGetUUID", handle)))
    get("pci", lambda: pci_address(decode_text(call("nvmlDeviceGetPciInfo", handle).busId)))
    get("compute_capability", lambda: "%d.%d" % tuple(call("nvmlDeviceGetCudaComputeCapability", handle)))
    get("vbios", lambda: decode_text(call("nvmlDeviceGetVbiosVersion", handle)))
    get("gsp_firmware", lambda: decode_text(call("nvmlDeviceGetGspFirmwareVersion", handle)))


def _read_memory(reader: _Reader, handle: Any) -> None:
    call, get = reader.call, reader.get
    # Version 2 separates the driver's own reserve from used memory; drivers before 510 lack it.
    newer = getattr(reader.nvml, "nvmlMemory_v2", None)
    try:
        memory = call("nvmlDeviceGetMemoryInfo", handle, newer) if newer is not None else None
    except reader.nvml.NVMLError:
        memory = None
    if memory is None:
        try:
            memory = call("nvmlDeviceGetMemoryInfo", handle)
        except reader.nvml.NVMLError as error:
            reader.note("memory_bytes", error)
    if memory is not None:
        get("memory_bytes", lambda: int(memory.total))
        get("memory_used_bytes", lambda: int(memory.used))
    get("ecc_enabled", lambda: bool(call("nvmlDeviceGetEccMode", handle)[0]))
    counters = {"ecc_uncorrected": (1, 0), "ecc_corrected_ever": (0, 1), "ecc_uncorrected_ever": (1, 1)}
    for name, which in counters.items():
        get(name, functools.partial(_ecc_errors, reader, handle, *which))
    rows = None
    try:
        rows = call("nvmlDeviceGetRemappedRows", handle)
    except AttributeError:
        pass
    except reader.nvml.NVMLError as error:
        reader.note("rows_remap_pending", error)
    if rows is not None:
        get("rows_remapped_uncorrectable", lambda: int(rows[1]))
        get("rows_remap_pending", lambda: bool(rows[2]))
        get("rows_remap_failed", lambda: bool(rows[3]))
    get("pages_retired", lambda: sum(len(call("nvmlDeviceGetRetiredPages", handle, cause)) for cause in (0, 1)))
    get("pages_retirement_pending", lambda: bool(call("nvmlDeviceGetRetiredPagesPendingStatus", handle)))


def _ecc_errors(reader: _Reader, handle: Any, kind: int, since: int) -> int:
    """Return the number of errors of a kind (0 corrected, 1 uncorrected) since driver load (0) or in total (1)."""
    return int(reader.call("nvmlDeviceGetTotalEccErrors", handle, kind, since))


def _read_clocks_and_power(reader: _Reader, handle: Any) -> None:
    call, get = reader.call, reader.get
    get("clock_reasons", lambda: _clock_reasons(reader, handle))
    get("clock_mhz", lambda: int(call("nvmlDeviceGetClockInfo", handle, _CLOCK_SM)))
    get("clock_max_mhz", lambda: int(call("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM)))
    get("clock_application_mhz", lambda: int(call("nvmlDeviceGetApplicationsClock", handle, _CLOCK_SM)))
    get("power_w", lambda: call("nvmlDeviceGetPowerUsage", handle) / 1000)
    get("power_limit_w", lambda: call("nvmlDeviceGetEnforcedPowerLimit", handle) / 1000)
    get("power_limit_default_w", lambda: call("nvmlDeviceGetPowerManagementDefaultLimit", handle) / 1000)
    get("temperature_c", lambda: int(call("nvmlDeviceGetTemperature", handle, 0)))
    get("temperature_slowdown_c", lambda: int(call("nvmlDeviceGetTemperatureThreshold", handle, _SLOWDOWN)))
    get("utilization_percent", lambda: int(call("nvmlDeviceGetUtilizationRates", handle).gpu))


def _clock_reasons(reader: _Reader, handle: Any) -> int:
    """Return the reasons that are present in all samples, because any clock change may cause one briefly (nvml.h)."""
    held_bits = ~0
    for turn in range(_CLOCK_LOOKS):
        if turn:
            time.sleep(0.03)
        try:
            seen = int(reader.call("nvmlDeviceGetCurrentClocksEventReasons", handle))
        except (AttributeError, reader.nvml.NVMLError) as error:
            # Drivers before 535 use its former name.
            if getattr(error, "value", _FUNCTION_NOT_FOUND) != _FUNCTION_NOT_FOUND:
                raise
            seen = int(reader.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle))
        held_bits &= seen
    return held_bits


def _read_links(reader: _Reader, handle: Any) -> None:
    call, get = reader.call, reader.get
    get("pcie_width", lambda: int(call("nvmlDeviceGetCurrPcieLinkWidth", handle)))
    get("pcie_width_max", lambda: int(call("nvmlDeviceGetMaxPcieLinkWidth", handle)))
    get("pcie_generation", lambda: int(call("nvmlDeviceGetCurrPcieLinkGeneration", handle)))
    get("pcie_generation_max", lambda: int(call("nvmlDeviceGetMaxPcieLinkGeneration", handle)))
    get("pcie_replays", lambda: int(call("nvmlDeviceGetPcieReplayCounter", handle)))
    links = get("nvlinks", lambda: _nvlinks(reader, handle))
    if links:
        get("nvlink_errors", lambda: _nvlink_errors(reader, handle, links))
    get("fabric_state", lambda: _fabric(reader, handle)["state"])
    get("fabric_status", lambda: _fabric(reader, handle)["status"])


def _nvlinks(reader: _Reader, handle: Any) -> list[bool] | None:
    """Return the links that are up; None for a device without any."""
    found: list[bool] = []
    for link in range(MAX_NVLINKS):
        try:
            found.append(bool(reader.call("nvmlDeviceGetNvLinkState", handle, link)))
        except reader.nvml.NVMLError as error:
            if getattr(error, "value", None) not in (_NOT_SUPPORTED, _INVALID_ARGUMENT):
                raise
            break
    return found or None


def _nvlink_errors(reader: _Reader, handle: Any, links: list[bool]) -> dict[str, int]:
    """Return sums over the links that are up, by counter; counters that this generation of links lacks are left out."""
    sums: dict[str, int] = {}
    for number, counter in enumerate(NVLINK_COUNTERS):
        for link, up in enumerate(links):
            if not up:
                continue
            try:
                count = int(reader.call("nvmlDeviceGetNvLinkErrorCounter", handle, link, number))
            except reader.nvml.NVMLError as error:
                if getattr(error, "value", None) not in (_NOT_SUPPORTED, _INVALID_ARGUMENT):
                    raise
                break
            sums[counter] = sums.get(counter, 0) + count
    return sums


def _fabric(reader: _Reader, handle: Any) -> dict[str, int]:
    info = reader.nvml.c_nvmlGpuFabricInfo_t()
    reader.call("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
    state = info.state
    return {"state": state if isinstance(state, int) else ord(state), "status": int(info.status)}


def report_pairs(nvml: Any, count: int, send: Send) -> None:
    """Report for each pair of devices whether one may read the other's memory, and the topology between them.

    Pairs come in the order 0-1, 0-2, ..., 1-2, ...; values are nvmlGpuP2PStatus_t (0 is yes) and
    nvmlGpuTopologyLevel_t (10 is one PCIe switch, 50 the link between sockets).
    """
    reader = _Reader(nvml, send)
    try:
        reader.call("nvmlInit")
        handles = [reader.call("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        both = [(first, second) for index, first in enumerate(handles) for second in handles[index + 1 :]]
        reader.get("peer_reads", lambda: [int(reader.call("nvmlDeviceGetP2PStatus", *pair, 0)) for pair in both])
        levels = "nvmlDeviceGetTopologyCommonAncestor"
        reader.get("peer_distances", lambda: [int(reader.call(levels, *pair)) for pair in both])
    except (nvml.NVMLError, _Lost):
        pass


def _recovery_action(reader: _Reader, handle: Any) -> int:
    """Return the action that the driver (565 or newer) requests: 0 none, 1 reset, 2 reboot, 3 and 4 drain (nvml.h)."""
    field = reader.nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (answer,) = reader.call("nvmlDeviceGetFieldValues", handle, [field])
    if answer.nvmlReturn:
        raise reader.nvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _read_modes(reader: _Reader, handle: Any) -> None:
    call, get = reader.call, reader.get
    get("recovery_action", lambda: _recovery_action(reader, handle))
    mig = get("mig_enabled", lambda: bool(call("nvmlDeviceGetMigMode", handle)[0]))
    get("mig_pending", lambda: bool(call("nvmlDeviceGetMigMode", handle)[1]))
    if mig:
        get("mig_instances", lambda: _mig_instances(reader, handle))
    get("persistence", lambda: bool(call("nvmlDeviceGetPersistenceMode", handle)))
    get("compute_mode", lambda: int(call("nvmlDeviceGetComputeMode", handle)))


def _mig_instances(reader: _Reader, handle: Any) -> int:
    count = 0
    for place in range(int(reader.call("nvmlDeviceGetMaxMigDeviceCount", handle))):
        try:
            reader.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        except reader.nvml.NVMLError:
            continue
        count += 1
    return count


def _processes(reader: _Reader, handle: Any) -> list[dict[str, Any]]:
    # Drivers before 510 have the second version only; the unversioned name of the binding is the third.
    try:
        listed = reader.call("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    except (AttributeError, reader.nvml.NVMLError) as error:
        if getattr(error, "value", _FUNCTION_NOT_FOUND) != _FUNCTION_NOT_FOUND:
            raise
        listed = reader.call("nvmlDeviceGetComputeRunningProcesses_v2", handle)
    found = []
    for item in listed:
        memory = item.usedGpuMemory
        name, user = _process_owner(int(item.pid))
        found.append({"pid": int(item.pid), "memory_bytes": memory, "name": name, "user": user})
    return sorted(found, key=lambda item: item["pid"])


def _process_owner(pid: int) -> tuple[str, str]:
    """Return the command and user of a process; empty if it is not visible from here."""
    folder = os.path.join(PROC, str(pid))
    try:
        owner = os.stat(folder).st_uid
    except OSError:
        return "", ""
    name = read_text(os.path.join(folder, "comm"), 64)
    try:
        return name, pwd.getpwuid(owner).pw_name
    except KeyError:
        return name, str(owner)


def kernel_driver(text: str) -> str:
    """Parse the version in /proc/driver/nvidia/version; empty if there is none."""
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def pci_address(bus_id: str) -> str:
    """Convert NVML's `00000000:1B:00.0` to the kernel's `0000:1b:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else bus_id


def decode_text(value: Any) -> str:
    """Decode text from NVML, which is bytes in some versions of its binding."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


KFD = "/sys/class/kfd/kfd/topology/nodes"
MODULE = "/sys/module/amdgpu"
PCI = "/sys/bus/pci/devices"
_AMD = "4098"  # 0x1002


@dataclass(frozen=True)
class Device:
    """One GPU in KFD's topology. `architecture` is its name in LLVM, such as `gfx90a`."""

    name: str
    identity: str
    architecture: str
    pci: str
    memory_bytes: int | None


def kfd_devices() -> list[Device]:
    """Return every GPU that compute programs can use, in KFD's order; empty without the driver."""
    devices = []
    for folder in sorted(glob.glob(os.path.join(KFD, "*")), key=_number):
        values = parse_properties(read_text(os.path.join(folder, "properties")))
        # Nodes without compute units are processors.
        if values.get("simd_count", "0") == "0" or values.get("vendor_id") != _AMD:
            continue
        pci = kfd_pci_address(int(values.get("domain", "0")), int(values.get("location_id", "0")))
        devices.append(
            Device(
                read_text(os.path.join(PCI, pci, "product_name")) or read_text(os.path.join(folder, "name")),
                values.get("unique_id", ""),
                llvm_architecture(int(values.get("gfx_target_version", "0"))),
                pci,
                read_number(os.path.join(PCI, pci, "mem_info_vram_total")),
            )
        )
    return devices


def driver_version() -> str:
    """Return the version of AMD's packaged module; empty for the kernel's own module."""
    return read_text(os.path.join(MODULE, "version"))


def parse_properties(text: str) -> dict[str, str]:
    """Parse the `name value` lines of a node of KFD's topology."""
    return dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)


def llvm_architecture(version: int) -> str:
    """Convert KFD's number to LLVM's name: 90010 is gfx90a, 110000 is gfx1100."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def kfd_pci_address(domain: int, place: int) -> str:
    """Convert KFD's location to a PCI address: bus in the upper byte, then five bits of device, three of function."""
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _number(path: str) -> int:
    name = os.path.basename(path)
    return int(name) if name.isdecimal() else -1


#: Initialising NVML and counting takes milliseconds; a driver that wakes the devices first takes seconds.
SYSTEM_S = 3.0
DEVICE_S = 4.0
#: Pairs are queried only if every device has answered.
PAIRS_S = 1.0
MAX_PAIRED_GPUS = 16
#: Deadline of the request for all data.
DEADLINE_S = 8.5
KERNEL_DRIVER = "/proc/driver/nvidia/version"
PROC = "/proc"


@dataclass(frozen=True)
class GpuProcess:
    """A process with a compute context on a GPU. `name` and `user` are empty if it is not visible from here."""

    pid: int
    memory_bytes: int | None = None
    name: str = ""
    user: str = ""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    `problem` is why the rest is empty or incomplete; `problem_kind` is then `lost` (it fell off the bus or needs a
    reset), `timeout`, `crashed`, `denied` or `other`. A field is None if the device or driver does not have it; if it
    could not be read for another reason, `unread` contains the field and the reason. Clock reasons are the bits of
    nvmlClocksEventReasons that were set in each of several samples.
    """

    index: int
    name: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    compute_capability: str = ""
    problem: str = ""
    problem_kind: str = ""
    pci: str = ""
    took_s: float = 0.0
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    ecc_corrected_ever: int | None = None
    rows_remapped_uncorrectable: int | None = None
    rows_remap_pending: bool | None = None
    rows_remap_failed: bool | None = None
    pages_retired: int | None = None
    pages_retirement_pending: bool | None = None
    clock_reasons: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    clock_application_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: int | None = None
    temperature_slowdown_c: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_replays: int | None = None
    nvlinks: list[bool] | None = None
    nvlink_errors: dict[str, int] = field(default_factory=dict)
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    mig_instances: int | None = None
    persistence: bool | None = None
    compute_mode: int | None = None
    processes: list[GpuProcess] | None = None
    recovery_action: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    vbios: str = ""
    gsp_firmware: str = ""
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gpus:
    """The data of NVML, or of sysfs on a node with AMD GPUs.

    `problem` is empty, `no-library` (no NVML on this node), `no-driver` (the kernel module is not loaded), `mismatch`
    (library and loaded kernel module are of different versions), `timeout` (no response) or `other`. `driver` is the
    version of the user-space driver, `kernel_driver` that of the loaded module, `cuda_driver` the newest CUDA version
    that the driver supports (not necessarily an installed one); empty if unknown. `host_processes`: whether the
    processes of the whole machine are visible from here. `peer_reads` and `peer_distances` are by pair of devices, in
    the order 0-1, 0-2, ..., 1-2, ...; None if they were not queried.
    """

    driver: str = ""
    kernel_driver: str = ""
    cuda_driver: str = ""
    gpus: list[Gpu] = field(default_factory=list)
    problem: str = ""
    detail: str = ""
    device_files: int = 0
    vendor: str = "nvidia"
    took_s: float = 0.0
    host_processes: bool = True
    peer_reads: list[int] | None = None
    peer_distances: list[int] | None = None


def gpus(params: dict[str, Any]) -> Gpus:
    """Return every GPU of this node. A driver that does not work is reported as a fact.

    Raises ProbeUnavailable if pynvml was not sent to the node, or if this user may not query the driver.
    """
    try:
        import pynvml
    except ImportError as error:
        raise ProbeUnavailable("missing", f"the Python binding of NVML is not installed: {error}") from None
    kernel = kernel_driver(read_text(KERNEL_DRIVER))
    files = len([path for path in glob.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdecimal()])
    (system,) = run_isolated([functools.partial(_system, pynvml)], SYSTEM_S)
    problem, detail = _system_problem(system)
    if problem == "denied":
        raise ProbeUnavailable("denied", f"this user may not use NVML: {detail}")
    if problem in ("no-library", "no-driver"):
        radeon = kfd_devices()
        if radeon:
            return _amd(radeon)
    driver, cuda = system.values.get("driver", ""), system.values.get("cuda", "")
    if problem == "mismatch":
        library = libraries.locate("libnvidia-ml.so.1", None)
        detail += "; the kernel module has version {}, the library {}".format(
            kernel or "unknown", os.path.realpath(library.path) or "the library"
        )
    if problem:
        return Gpus(driver, kernel, cuda, [], problem, detail, files, took_s=system.took_s)
    count = int(system.values.get("count", 0))
    answers = run_isolated([functools.partial(report_device, pynvml, index) for index in range(count)], DEVICE_S)
    found = [_gpu(index, answer) for index, answer in enumerate(answers)]
    seen = read_text(os.path.join(PROC, "2", "comm")) == "kthreadd"
    peers: dict[str, Any] = {}
    if 1 < count <= MAX_PAIRED_GPUS and not any(card.problem for card in found):
        peers = run_isolated([functools.partial(report_pairs, pynvml, count)], PAIRS_S)[0].values
    reads, distances = peers.get("peer_reads"), peers.get("peer_distances")
    return Gpus(driver, kernel, cuda, found, "", "", files, "nvidia", system.took_s, seen, reads, distances)


def _system(pynvml: Any, send: Send) -> None:
    """Query driver, newest CUDA version and number of devices."""
    try:
        send({"at": "nvmlInit"})
        pynvml.nvmlInit()
        send({"at": "nvmlSystemGetDriverVersion"})
        send({"driver": decode_text(pynvml.nvmlSystemGetDriverVersion()), "cuda": _cuda(pynvml)})
        send({"at": "nvmlDeviceGetCount"})
        send({"count": pynvml.nvmlDeviceGetCount()})
    except pynvml.NVMLError as error:
        send({"problem": _problem(pynvml, error), "detail": str(error)})

    # No nvmlShutdown: this process ends, and a driver that hangs would hang there too.


def _system_problem(system: TaskResult) -> tuple[str, str]:
    if system.values.get("problem"):
        return system.values["problem"], system.values.get("detail", "")
    if system.problem == "timeout":
        return "timeout", f"{system.at} did not return within {SYSTEM_S:g} s{_overload_explanation()}"
    if system.problem:
        return "other", f"{system.at}: {system.detail}"
    return "", ""


def _problem(pynvml: Any, error: Any) -> str:
    by_code = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no-library",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no-driver",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
        pynvml.NVML_ERROR_NO_PERMISSION: "denied",
    }
    return by_code.get(getattr(error, "value", None), "other")


def _gpu(index: int, answers: TaskResult) -> Gpu:
    """Return the device from the reports of its process, which may be incomplete."""
    values = dict(answers.values)
    unread = values.pop("unread", {})
    known = {item.name for item in fields(Gpu)} - {"index", "processes", "unread", "took_s"}
    listed = values.get("processes")
    processes = [GpuProcess(**item) for item in listed] if listed is not None else None
    if answers.problem == "timeout":
        values["problem"] = f"{answers.at} did not return within {DEVICE_S:g} s{_overload_explanation()}"
        values["problem_kind"] = "timeout"
    elif answers.problem:
        values["problem"], values["problem_kind"] = f"{answers.at}: {answers.detail}", "crashed"
    known_values = {name: value for name, value in values.items() if name in known}
    return Gpu(index=index, processes=processes, unread=unread, took_s=answers.took_s, **known_values)


def _overload_explanation() -> str:
    """Return an explanation for a slow query if the machine is overloaded; otherwise an empty string."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f" (the node is busy: load {load:.0f} on {cores} cores)" if load > 4 * cores else ""


def _amd(devices: list[Device]) -> Gpus:
    listed = [
        Gpu(index, item.name or item.architecture, item.identity, item.memory_bytes, item.architecture, pci=item.pci)
        for index, item in enumerate(devices)
    ]
    return Gpus(driver_version(), "", "", listed, vendor="amd")


def _cuda(pynvml: Any) -> str:
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


#: The cheapest query of each tool; the second is used if the first does not exist.
TOOLS = (("nvidia-smi", "-L"), ("rocm-smi", "-i"), ("/opt/rocm/bin/rocm-smi", "-i"))
ANSWER_S = 6.0


@dataclass(frozen=True)
class ToolAnswer:
    """One run of a tool. `exit_code` is None if it did not end within the deadline; `said` is its last line."""

    tool: str
    took_s: float
    exit_code: int | None
    said: str = ""


def management_tool(params: dict[str, Any]) -> ToolAnswer:
    """Run the first existing tool. Raises ProbeUnavailable if there is none, which is not a fault."""
    for words in TOOLS:
        try:
            ran = command.run(words, deadline_s=ANSWER_S)
        except ProbeUnavailable as error:
            if error.kind == "missing":
                continue
            if error.kind == "timeout":
                return ToolAnswer(words[0], ANSWER_S, None, error.reason)
            raise
        lines = (ran.output + ran.error).strip().splitlines()
        reported = lines[-1][:200] if lines and ran.exit_code else ""
        return ToolAnswer(words[0], round(ran.took_s, 3), ran.exit_code, reported)
    raise ProbeUnavailable("missing", "neither nvidia-smi nor rocm-smi is on the PATH")
