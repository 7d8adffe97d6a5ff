"""What NVML reports about the GPU of one rank while the rank measures it: clocks, reasons, heat, power, its PCIe link.

A slow figure has a cause, and most causes are gone a moment later: an idle GPU lowers its clocks and the speed of its
link. So a thread reads them during the measurement. Without NVML (AMD's GPUs, no pynvml) everything is None.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable

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
        power_w: the highest power; `power_limit_w` is the limit in force, `power_limit_default_w` the card's own.
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
    """Signs that others use the same GPU.

    Args:
        utilization_percent: the use of the GPU while this rank did nothing on it; None if unknown. The larger of two
            readings, before and after the measurement.
        processes: how many processes other than one hold a context on it; None if unknown. Holding one is not using
            it.
    """

    utilization_percent: int | None = None
    processes: int | None = None

    @property
    def busy(self) -> bool:
        """Whether another process computed on the GPU."""
        return (self.utilization_percent or 0) >= IDLE_PERCENT


class GpuWatcher:
    """Reads one GPU's state by NVML, in a thread between `begin` and `end`.

    Args:
        index: the ordinal of the device as CUDA counts the visible ones.
    """

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
            self._handle, self.problem = None, f"NVML did not answer within {INIT_S:g} s"

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
        """Start a thread that reads the state."""
        self._stop = threading.Event()
        if self._handle is not None:
            self._thread = threading.Thread(target=self._watch, args=(self._stop,), name="preflight-nvml", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop reading; samples stay."""
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
        """One value; None if this card, driver or binding does not have it."""
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except Exception:
            return None

    def state(self) -> GpuState:
        """What was seen."""
        if self._handle is None:
            return GpuState(problem=self.problem)
        reasons, held = 0, 0
        for value in self._reasons:
            reasons |= value
        for bit in (1 << number for number in range(reasons.bit_length())):
            if 2 * sum(1 for value in self._reasons if value & bit) >= len(self._reasons):
                held |= bit
        known = [link for link in self._link if None not in link]
        generation, width = max(known) if known else (None, None)
        limit, own = self._get("nvmlDeviceGetEnforcedPowerLimit"), self._get("nvmlDeviceGetPowerManagementDefaultLimit")
        return GpuState(
            sorted(self._clocks)[len(self._clocks) // 2] if self._clocks else None,
            self._get("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
            self._get("nvmlDeviceGetApplicationsClock", _CLOCK_SM),
            reasons if self._reasons else None,
            held if self._reasons else None,
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

    def other_use(self, moved: Callable[[], None]) -> OtherUse:
        """Who else uses the GPU; call it while this rank does nothing there. Waits up to `SETTLE_S`.

        Args:
            moved: called while it waits.
        """
        least: int | None = None
        ends = time.monotonic() + SETTLE_S
        while self._handle is not None and time.monotonic() < ends:
            rates = self._get("nvmlDeviceGetUtilizationRates")
            if rates is None:
                break
            least = int(rates.gpu) if least is None else min(least, int(rates.gpu))
            moved()
            if least < IDLE_PERCENT:
                break
            time.sleep(POLL_S)
        running = self._get("nvmlDeviceGetComputeRunningProcesses")
        # One of them is this rank.
        return OtherUse(least, max(0, len(running) - 1) if running is not None else None)

    def nvlinks_to(self, address: str) -> int | None:
        """The links that are up to the GPU at this PCI address, directly or through NVSwitch; None if unknown.

        An empty address counts only links to an NVSwitch.
        """
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
    """Whether these are one PCI address; domains have four or eight digits."""
    return one.lower()[-12:].lstrip("0") == other.lower()[-12:].lstrip("0")


def pci_address(index: int) -> str:
    """The PCI address of a device by its ordinal in CUDA, which follows CUDA_VISIBLE_DEVICES.

    Raises OSError without CUDA's driver library, LookupError if it does not know the device.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    text = ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), index):
        raise LookupError(f"CUDA's driver does not know device {index}")
    if cuda.cuDeviceGetPCIBusId(text, len(text), device):
        raise LookupError(f"CUDA's driver does not report the PCI address of device {index}")
    return text.value.decode()
