"""Imports torch late, and chooses the backend and device of one rank.

torch holds the lock while it initialises CUDA, which takes seconds if many processes of a node do so at once. Meanwhile
no other thread runs: heartbeats stop, and a server does not answer workers that introduce themselves. Functions called
through ctypes release the lock. After them torch finds the driver and the device's context open, and is quick.

NCCL up to 2.29 rejects two ranks of one node on one device ("Duplicate GPU detected"). It identifies a node by a hash
of host name and boot id, unless NCCL_HOSTID is set (src/misc/utils.cc): with a different value on each rank, every rank
counts as a separate node, and all traffic goes over sockets. From 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 allows it
(NCCL's documentation of environment variables, experimental). The ranks' kernels must be on the GPU at the same time,
so each gets few blocks and no NVLink SHARP, which fails there. Either way, the times say nothing about a network."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common.progress import Progress


def is_paddle(params: dict[str, Any]) -> bool:
    """Return whether this rank trains with paddle: by `framework`, or because the interpreter lacks torch."""
    import importlib.util

    name = str(params.get("framework", ""))
    if name:
        return name == "paddle"
    return importlib.util.find_spec("torch") is None and importlib.util.find_spec("paddle") is not None


def load(progress: Progress, *, optimizers: bool = False) -> tuple[Any, Any]:
    """Return `torch` and `torch.distributed`, imported under an announcement because it takes seconds.

    Args:
        optimizers: whether this process creates one.

    Raises ProbeUnavailable of kind `missing`, with the reason, if they cannot be imported.
    """
    progress.entering("import of torch", loading=True)
    # Imported objects are never garbage, and collecting takes a tenth of the import, and half a second later.
    gc.disable()
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        progress.send(rank_events.PROBLEM, problem="import", error=str(error), rank=progress.rank)
        reason = f"torch cannot be imported by {sys.executable}: {error}"
        if getattr(error, "name", None) == "torch":
            reason += f"; install it there: {sys.executable} -m pip install torch"
        raise ProbeUnavailable("missing", reason) from error
    finally:
        gc.enable()
    if not dist.is_available():
        raise ProbeUnavailable("missing", f"this torch {torch.__version__} was built without torch.distributed")
    if optimizers:
        # The first optimizer imports compiler modules for a second and a half: here, not in the middle of a step.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    gc.freeze()
    progress.left()
    return torch, dist


def nccl_obstacle(torch: Any, params: dict[str, Any]) -> str:
    """Return why this rank cannot use NCCL, else empty; with `auto` each local rank needs its own GPU."""
    requested = str(params.get("backend", "auto"))
    if requested == "gloo":
        return ""
    devices = _count_devices(torch)
    if not devices:
        return f"torch {torch.__version__} finds no GPU{_visible()}"
    if not torch.distributed.is_nccl_available():
        return f"torch {torch.__version__} was built without NCCL"
    local_size = int(params.get("local_world_size", 1)) if requested == "auto" else 1
    if devices < local_size:
        found = "1 GPU" if devices == 1 else f"{devices} GPUs"
        return f"torch {torch.__version__} finds {found} for {local_size} ranks on this node"
    return ""


def choose_device(torch: Any, params: dict[str, Any], backend: str) -> Any:
    """Return the device of this rank for `nccl` or `gloo`.

    With fewer GPUs than local ranks, these share them, as `common/shared_gpu.py` lets them. Raises ProbeUnavailable of
    kind `denied` if the GPU cannot be used.
    """
    if backend != "nccl":
        return torch.device("cpu")
    local_rank, local_size = int(params.get("local_rank", 0)), int(params.get("local_world_size", 1))
    devices = _count_devices(torch)
    device = _open(torch, local_rank % devices)
    os.environ.update(environment(local_rank, -(-local_size // devices), torch.cuda.nccl.version()))
    return device


def device_named(torch: Any, name: str, local_index: int = 0) -> Any:
    """Return the device for `cpu`, `auto` (a GPU if there is one), `cuda` or `cuda:N`.

    With `cuda` the processes of a node take the devices that each of them sees in turn, by `local_index`: a launcher
    may show every process only its own device, as number 0.

    Raises ProbeUnavailable: kind `missing` if the requested GPU does not exist, `denied` if it cannot be used.
    """
    if name == "cpu":
        return torch.device("cpu")
    devices = _count_devices(torch)
    if name == "auto":
        name = "cuda" if devices else "cpu"
    if name == "cuda" and devices:
        name = f"cuda:{local_index % devices}"
    if name == "cpu":  # chosen by `auto`
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ProbeUnavailable("denied", f"unknown device {name!r}; expected cpu, auto or cuda:N")
    if int(number or 0) >= devices:
        text = "device %s is requested, but torch finds %d GPUs%s" % (name, devices, _visible())
        raise ProbeUnavailable("missing", text)
    return _open(torch, int(number or 0))


def _count_devices(torch: Any) -> int:
    load_cuda_driver()
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _visible() -> str:
    """Return the setting that hides GPUs, for the message that no GPU was found."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ({})".format(", ".join(given)) if given else ""


def _open(torch: Any, index: int) -> Any:
    """Make a GPU the current device, and open its context. Raises ProbeUnavailable of kind `denied` if that fails."""
    device = torch.device("cuda", index)
    open_context(index)
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except RuntimeError as error:
        text = str(error).strip().split("\n")[0]
        raise ProbeUnavailable("denied", f"{device} cannot be used: {text}") from error
    return device


def set_interface(params: dict[str, Any], backend: str) -> None:
    """Set the interface of Gloo or NCCL, if the environment does not name one or the caller insists.

    NCCL chooses by itself if the job has no filter, and that choice is part of the test: only an interface that the
    job's own filter selects, or that the caller insists on, is given to it.
    """
    name = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    if backend == "nccl" and not (params.get("filtered") or params.get("force_interface")):
        return
    if params.get("interface") and (params.get("force_interface") or not os.environ.get(name)):
        os.environ[name] = str(params["interface"])


def describe(error: BaseException) -> str:
    """Return the type and first line of an error, and NCCL's reason, which torch prints on a later line."""
    lines = [line.strip() for line in str(error).strip().split("\n") if line.strip()]
    first = "{}: {}".format(type(error).__name__, lines[0] if lines else "")
    reasons = [line for place, line in enumerate(lines[:-1]) if line == "Last error:" for line in [lines[place + 1]]]
    return f"{first}: {reasons[0]}" if reasons else first


def versions(torch: Any, device: Any) -> dict[str, str]:
    """Return the versions for the report: torch, CUDA, NCCL and the device; those without a value are empty."""
    on_gpu = device.type == "cuda"
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if on_gpu else ""
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    return {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "nccl": nccl,
        "device": f"{device} {name}" if on_gpu else "cpu",
    }


_LIBRARY = "libcuda.so.1"


def load_cuda_driver() -> Any | None:
    """Initialise the driver. Returns its library, or None if there is no driver, which torch then reports itself."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
        driver.cuInit(0)
    except (OSError, AttributeError):
        return None
    return driver


def open_context(index: int) -> bool:
    """Open the context that all libraries in this process share on device `index`. Returns whether it is open."""
    driver = load_cuda_driver()
    if driver is None:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return False
    return not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


#: From this version on NCCL accepts several ranks on one GPU if configured.
SUPPORTS_SHARING = (2, 30)
#: Blocks of each rank's kernels: all of them must fit at the same time.
MAX_BLOCKS = 2


def environment(rank: int, ranks_on_gpu: int, nccl: Sequence[int]) -> dict[str, str]:
    """Return the variables for one rank, empty if it has its own GPU; `nccl` is a version such as (2, 27, 5)."""
    if ranks_on_gpu < 2:
        return {}
    common = {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": str(MAX_BLOCKS),
    }
    if tuple(nccl[:2]) >= SUPPORTS_SHARING:
        return {**common, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return {**common, "NCCL_HOSTID": f"preflight-{rank}"}


# NVML's data about the GPU of one rank during its measurement: clocks, reasons, heat, power, its PCIe link. A slow
# figure has a cause, and most causes are gone a moment later: an idle GPU lowers its clocks and the speed of its
# link. So a thread reads them during the measurement. Without NVML (AMD's GPUs, no pynvml) all values are None.


#: Time between two samples.
SAMPLE_S = 0.02
#: NVML counts utilization over at most a second (nvml.h, nvmlUtilization_t), so an idle GPU reads zero after it.
SETTLE_S, POLL_S = 1.2, 0.1
#: A GPU below this utilization, in percent, counts as idle.
IDLE_PERCENT = 5
#: Time limit for the first answer of the driver.
INIT_S = 3.0
#: nvml.h: NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_SWITCH.
_CLOCK_SM, _TEMPERATURE_GPU, _MAX_LINKS, _SWITCH = 1, 0, 18, 2


@dataclass(frozen=True)
class GpuState:
    """The state of a GPU during a measurement.

    Args:
        clock_mhz: the median SM clock in the samples; `clock_max_mhz` the highest that the card has.
        clock_application_mhz: the clock that an administrator set for applications.
        reasons: the bits of nvmlClocksEventReasons that were set in any sample.
        held_reasons: those set in at least half of the samples.
        temperature_c: the highest temperature.
        power_w: the highest power; `power_limit_w` is the effective limit, `power_limit_default_w` the card's own.
        pcie_generation: of the link under load, and the highest that card and slot support; likewise the lanes.
        samples: how often clocks were read.
        problem: why there is nothing.
    """

    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    clock_application_mhz: int | None = None
    reasons: int | None = None
    held_reasons: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    uuid: str = ""
    driver: str = ""
    samples: int = 0
    problem: str = ""


@dataclass(frozen=True)
class OtherUse:
    """Signs that other processes use the same GPU.

    Args:
        utilization_percent: the use of the GPU while this rank did nothing on it; None if unknown. The larger of two
            readings, before and after the measurement.
        processes: how many processes other than one hold a context on it; None if unknown. Holding a context is not
            use.
    """

    utilization_percent: int | None = None
    processes: int | None = None

    @property
    def busy(self) -> bool:
        return (self.utilization_percent or 0) >= IDLE_PERCENT


class GpuWatcher:
    """Reads the GPU with CUDA's ordinal `index` by NVML, in a thread between `begin` and `end`."""

    def __init__(self, index: int, nvml: Any = None, address: Callable[[int], str] | None = None) -> None:
        self._nvml = nvml
        self._handle: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._clocks: list[int] = []
        self._reasons: list[int] = []
        self._heat: list[int] = []
        self._power: list[float] = []
        self._link: list[list[int | None]] = []
        self.problem = ""
        # A driver that hangs must not hang the rank.
        opener = threading.Thread(target=self._open, args=(index, address or pci_address), daemon=True)
        opener.start()
        opener.join(INIT_S)
        if opener.is_alive():
            self._handle, self.problem = None, f"NVML did not respond within {INIT_S:g} s"

    def _open(self, index: int, address: Callable[[int], str]) -> None:
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            where = address(index)
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByPciBusId(where.encode())
        except ImportError:
            self.problem = "the Python binding of NVML is missing"
        except Exception as error:
            self.problem = f"NVML: {error}"

    def begin(self) -> None:
        self._stop = threading.Event()
        if self._handle is not None:
            self._thread = threading.Thread(target=self._watch, args=(self._stop,), name="preflight-nvml", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop reading and keep the samples."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def read_link(self) -> None:
        """Read the PCIe link; call it while data moves, because an idle link is slower."""
        get = self._get
        self._link.append(
            [get("nvmlDeviceGetCurrPcieLinkGeneration"), get("nvmlDeviceGetCurrPcieLinkWidth")]
            if self._handle is not None
            else [None, None]
        )

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(SAMPLE_S):
            clock = self._get("nvmlDeviceGetClockInfo", _CLOCK_SM)
            reasons = self._get("nvmlDeviceGetCurrentClocksEventReasons")
            if reasons is None:
                reasons = self._get("nvmlDeviceGetCurrentClocksThrottleReasons")
            heat = self._get("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)
            power = self._get("nvmlDeviceGetPowerUsage")
            for value, series in ((clock, self._clocks), (reasons, self._reasons), (heat, self._heat)):
                if value is not None:
                    series.append(int(value))
            if power is not None:
                self._power.append(power / 1000)

    def _get(self, name: str, *arguments: Any) -> Any:
        """Return one value; None if this card, driver or binding does not support it."""
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except Exception:
            return None

    def state(self) -> GpuState:
        if self._handle is None:
            return GpuState(problem=self.problem)
        reasons, held_bits = 0, 0
        for value in self._reasons:
            reasons |= value
        for bit in (1 << number for number in range(reasons.bit_length())):
            if 2 * sum(1 for value in self._reasons if value & bit) >= len(self._reasons):
                held_bits |= bit
        known = [link for link in self._link if None not in link]
        generation, width = max(known) if known else (None, None)
        limit, own = self._get("nvmlDeviceGetEnforcedPowerLimit"), self._get("nvmlDeviceGetPowerManagementDefaultLimit")
        return GpuState(
            sorted(self._clocks)[len(self._clocks) // 2] if self._clocks else None,
            self._get("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
            self._get("nvmlDeviceGetApplicationsClock", _CLOCK_SM),
            reasons if self._reasons else None,
            held_bits if self._reasons else None,
            max(self._heat, default=None),
            max(self._power, default=None),
            limit / 1000 if limit is not None else None,
            own / 1000 if own is not None else None,
            generation,
            self._get("nvmlDeviceGetMaxPcieLinkGeneration"),
            width,
            self._get("nvmlDeviceGetMaxPcieLinkWidth"),
            _text(self._get("nvmlDeviceGetUUID")),
            self._driver(),
            len(self._clocks),
        )

    def _driver(self) -> str:
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except Exception:
            return ""

    def other_use(self, on_progress: Callable[[], None]) -> OtherUse:
        """Return other use of the GPU while this rank does not use it. Waits up to `SETTLE_S`."""
        least: int | None = None
        ends = time.monotonic() + SETTLE_S
        while self._handle is not None and time.monotonic() < ends:
            rates = self._get("nvmlDeviceGetUtilizationRates")
            if rates is None:
                break
            least = int(rates.gpu) if least is None else min(least, int(rates.gpu))
            on_progress()
            if least < IDLE_PERCENT:
                break
            time.sleep(POLL_S)
        running = self._get("nvmlDeviceGetComputeRunningProcesses")
        # One of these processes is this rank.
        return OtherUse(least, max(0, len(running) - 1) if running is not None else None)

    def nvlinks_to(self, address: str) -> int | None:
        """Return the NVLinks that are up to the GPU at `address` (empty: only to NVSwitch); None if unknown."""
        if self._handle is None:
            return None
        count, answered = 0, False
        for link in range(_MAX_LINKS):
            up = self._get("nvmlDeviceGetNvLinkState", link)
            if up is None:
                break
            answered = True
            if not up:
                continue
            if self._get("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _SWITCH:
                count += 1
                continue
            remote = self._get("nvmlDeviceGetNvLinkRemotePciInfo", link)
            if address and remote is not None and _same_address(_text(remote.busId), address):
                count += 1
        return count if answered else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _same_address(one: str, other: str) -> bool:
    """Return whether `one` and `other` are the same PCI address; domains have four or eight digits."""
    return one.lower()[-12:].lstrip("0") == other.lower()[-12:].lstrip("0")


def pci_address(index: int) -> str:
    """Return the PCI address of CUDA's device. Raises OSError without CUDA's driver, LookupError if unknown."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    text = ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), index):
        raise LookupError(f"the CUDA driver does not know device {index}")
    if cuda.cuDeviceGetPCIBusId(text, len(text), device):
        raise LookupError(f"the CUDA driver does not report the PCI address of device {index}")
    return text.value.decode()
