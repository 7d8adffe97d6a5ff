"""All NVML data of one NVIDIA GPU, reported item by item, so that a hanging call loses only the following ones.

Items that a device or driver does not support are left out; other errors go to `unread` with the reason.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pwd
import re
import time
from typing import Any, Callable

from preflight_checks.probes.isolated import Send

PROC = "/proc"
#: nvml.h: NVML_NVLINK_MAX_LINKS, nvmlNvLinkErrorCounter_t, NVML_CLOCK_SM, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN.
MAX_NVLINKS = 18
NVLINK_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data")
_CLOCK_SM = 1
_SLOWDOWN = 1
_INVALID_ARGUMENT, _NOT_SUPPORTED, _NO_PERMISSION = 2, 3, 4
_FUNCTION_NOT_FOUND, _VERSION_MISMATCH = 13, 25
#: GPU_IS_LOST and RESET_REQUIRED: no further call will succeed.
_LOST = (15, 16)
_CLOCK_LOOKS = 3


class _Lost(Exception):
    """The device cannot be queried any more."""


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
        """Report the value of `field`; None, without a report, if it is not available."""
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
        if code in _LOST:
            raise _Lost(str(error))
        # A driver reports fields that are newer than itself as invalid.
        missing = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _VERSION_MISMATCH)
        if code not in missing and not (field == "recovery_action" and code == _INVALID_ARGUMENT):
            self.unread[field] = str(error)
            self._send({"unread": self.unread})


def look(nvml: Any, index: int, send: Send) -> None:
    """Report the properties and the state of device `index`."""
    reader = _Reader(nvml, send)
    try:
        reader.call("nvmlInit")
        handle = reader.call("nvmlDeviceGetHandleByIndex", index)
        send({"name": text(reader.call("nvmlDeviceGetName", handle))})
        _identity(reader, handle)
        _memory(reader, handle)
        _clocks_and_power(reader, handle)
        _links(reader, handle)
        _modes(reader, handle)
        reader.get("processes", lambda: _processes(reader, handle))
    except (nvml.NVMLError, _Lost) as error:
        code = getattr(error, "value", None)
        lost = isinstance(error, _Lost) or code in _LOST
        kind = "lost" if lost else "denied" if code == _NO_PERMISSION else "other"
        send({"problem": str(error), "problem_kind": kind})


def _identity(reader: _Reader, handle: Any) -> None:
    call, get = reader.call, reader.get
    get("uuid", lambda: text(call("nvmlDeviceGetUUID", handle)))
    get("pci", lambda: pci_address(text(call("nvmlDeviceGetPciInfo", handle).busId)))
    get("compute_capability", lambda: "%d.%d" % tuple(call("nvmlDeviceGetCudaComputeCapability", handle)))
    get("vbios", lambda: text(call("nvmlDeviceGetVbiosVersion", handle)))
    get("gsp_firmware", lambda: text(call("nvmlDeviceGetGspFirmwareVersion", handle)))


def _memory(reader: _Reader, handle: Any) -> None:
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
    for field, which in counters.items():
        get(field, functools.partial(_ecc_errors, reader, handle, *which))
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
    """Errors of one kind (0 corrected, 1 not), since the driver was loaded (0) or in total (1)."""
    return int(reader.call("nvmlDeviceGetTotalEccErrors", handle, kind, since))


def _clocks_and_power(reader: _Reader, handle: Any) -> None:
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
    """The reasons that hold in several samples: according to nvml.h a slowdown may appear for a moment at any
    change."""
    held = ~0
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
        held &= seen
    return held


def _links(reader: _Reader, handle: Any) -> None:
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
    """The links that are up; None for a device without any."""
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
    """Sums over the links that are up, by counter; counters that this generation of links lacks are left out."""
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


def pairs(nvml: Any, count: int, send: Send) -> None:
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
    """nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0 for none, 1 to reset, 2 to reboot, 3 and 4 to drain. Drivers
    from 565 on have it."""
    field = reader.nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (answer,) = reader.call("nvmlDeviceGetFieldValues", handle, [field])
    if answer.nvmlReturn:
        raise reader.nvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _modes(reader: _Reader, handle: Any) -> None:
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
    """Command and user of a process; empty if it is not visible from here."""
    folder = os.path.join(PROC, str(pid))
    try:
        with open(os.path.join(folder, "comm"), errors="replace") as file:
            name = file.read(64).strip()
        owner = os.stat(folder).st_uid
    except OSError:
        return "", ""
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


def text(value: Any) -> str:
    """Decode text from NVML, which is bytes in some versions of its binding."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
