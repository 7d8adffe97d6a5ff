"""The GPUs and the driver of this node: NVIDIA's from NVML, AMD's from sysfs; and how fast their tool answers.

Each driver query runs in its own process: first the number of devices, then each device by itself, so that one
that hangs hides no other.
"""

from __future__ import annotations

import functools
import glob
import os
from dataclasses import dataclass, field, fields
from typing import Any

from preflight.agent import command
from preflight.agent.process import read_number, read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import gpu_device, libraries
from preflight_checks.probes.isolated import Send, TaskResult, run_isolated

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


def devices() -> list[Device]:
    """Every GPU that compute programs can use, in KFD's order; empty without the driver."""
    found = []
    for folder in sorted(glob.glob(os.path.join(KFD, "*")), key=_number):
        values = parse_properties(read_text(os.path.join(folder, "properties")))
        # Nodes without compute units are processors.
        if values.get("simd_count", "0") == "0" or values.get("vendor_id") != _AMD:
            continue
        pci = location(int(values.get("domain", "0")), int(values.get("location_id", "0")))
        found.append(
            Device(
                read_text(os.path.join(PCI, pci, "product_name")) or read_text(os.path.join(folder, "name")),
                values.get("unique_id", ""),
                architecture(int(values.get("gfx_target_version", "0"))),
                pci,
                read_number(os.path.join(PCI, pci, "mem_info_vram_total")),
            )
        )
    return found


def driver_version() -> str:
    """The version of AMD's packaged module; empty for the kernel's own."""
    return read_text(os.path.join(MODULE, "version"))


def parse_properties(text: str) -> dict[str, str]:
    """`name value` lines of a node of KFD's topology."""
    return dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)


def architecture(version: int) -> str:
    """KFD's number as LLVM's name: 90010 is gfx90a, 110000 is gfx1100."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def location(domain: int, place: int) -> str:
    """KFD's location as a PCI address: bus in the upper byte, then five bits of device and three of function."""
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
#: For the request of all data.
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

    `problem` is why the rest is empty or incomplete, `problem_kind` is then `lost` (it fell off the bus or needs a
    reset), `timeout`, `crashed`, `denied` or `other`. A field is None if the device or driver does not have it; if it
    could not be read for another reason, `unread` has the field and the reason. Clock reasons are the bits of
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
    (library and loaded kernel module are of different versions), `timeout` (no answer) or `other`. `driver` is the
    version of the user-space driver, `kernel_driver` that of the loaded module, `cuda_driver` the newest CUDA version
    the driver supports (not one that is installed); empty if unknown. `host_processes` is whether the processes of the
    whole machine are visible from here. `peer_reads` and `peer_distances` are by pair of devices, in the order 0-1,
    0-2, ..., 1-2, ...; None if they were not queried.
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
    """Every GPU of this node. A driver that does not work is a fact; a missing pynvml is not.

    Raises ProbeUnavailable if pynvml was not sent along, or if this user may not query it.
    """
    try:
        import pynvml
    except ImportError as error:
        raise ProbeUnavailable("missing", f"the Python binding of NVML is not installed: {error}") from None
    kernel = gpu_device.kernel_driver(read_text(KERNEL_DRIVER))
    files = len([path for path in glob.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdecimal()])
    (system,) = run_isolated([functools.partial(_system, pynvml)], SYSTEM_S)
    problem, detail = _system_problem(system)
    if problem == "denied":
        raise ProbeUnavailable("denied", f"NVML may not be used by this user: {detail}")
    if problem in ("no-library", "no-driver"):
        radeon = devices()
        if radeon:
            return _amd(radeon)
    driver, cuda = system.values.get("driver", ""), system.values.get("cuda", "")
    if problem == "mismatch":
        library = libraries.locate("libnvidia-ml.so.1", None)
        detail += "; the module is {}, {}".format(kernel or "unknown", os.path.realpath(library.path) or "the library")
    if problem:
        return Gpus(driver, kernel, cuda, [], problem, detail, files, took_s=system.took_s)
    count = int(system.values.get("count", 0))
    answers = run_isolated([functools.partial(gpu_device.look, pynvml, index) for index in range(count)], DEVICE_S)
    found = [_gpu(index, answer) for index, answer in enumerate(answers)]
    seen = read_text(os.path.join(PROC, "2", "comm")) == "kthreadd"
    peers: dict[str, Any] = {}
    if 1 < count <= MAX_PAIRED_GPUS and not any(card.problem for card in found):
        peers = run_isolated([functools.partial(gpu_device.pairs, pynvml, count)], PAIRS_S)[0].values
    reads, distances = peers.get("peer_reads"), peers.get("peer_distances")
    return Gpus(driver, kernel, cuda, found, "", "", files, "nvidia", system.took_s, seen, reads, distances)


def _system(pynvml: Any, send: Send) -> None:
    """Query driver, newest CUDA version and number of devices."""
    try:
        send({"at": "nvmlInit"})
        pynvml.nvmlInit()
        send({"at": "nvmlSystemGetDriverVersion"})
        send({"driver": gpu_device.text(pynvml.nvmlSystemGetDriverVersion()), "cuda": _cuda(pynvml)})
        send({"at": "nvmlDeviceGetCount"})
        send({"count": pynvml.nvmlDeviceGetCount()})
    except pynvml.NVMLError as error:
        send({"problem": _problem(pynvml, error), "detail": str(error)})
    # No nvmlShutdown: this process ends, and a driver that hangs would hang there too.


def _system_problem(system: TaskResult) -> tuple[str, str]:
    if system.values.get("problem"):
        return system.values["problem"], system.values.get("detail", "")
    if system.problem == "timeout":
        return "timeout", f"{system.at} did not return within {SYSTEM_S:g} s{_busy()}"
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
    """The device, as far as its process got."""
    values = dict(answers.values)
    unread = values.pop("unread", {})
    known = {item.name for item in fields(Gpu)} - {"index", "processes", "unread", "took_s"}
    listed = values.get("processes")
    processes = [GpuProcess(**item) for item in listed] if listed is not None else None
    if answers.problem == "timeout":
        values["problem"] = f"{answers.at} did not return within {DEVICE_S:g} s{_busy()}"
        values["problem_kind"] = "timeout"
    elif answers.problem:
        values["problem"], values["problem_kind"] = f"{answers.at}: {answers.detail}", "crashed"
    known_values = {name: value for name, value in values.items() if name in known}
    return Gpu(index=index, processes=processes, unread=unread, took_s=answers.took_s, **known_values)


def _busy() -> str:
    """An explanation for a slow query on an overloaded machine."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f" (the node is busy: load {load:.0f} on {cores} cores)" if load > 4 * cores else ""


def _amd(found: list[Device]) -> Gpus:
    listed = [
        Gpu(index, item.name or item.architecture, item.identity, item.memory_bytes, item.architecture, pci=item.pci)
        for index, item in enumerate(found)
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
