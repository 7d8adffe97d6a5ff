"""NVML during a measurement: samples, the link, others on the card; and what is missing or hangs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from reference_trainer.common import gpu_state
from reference_trainer.common.gpu_state import GpuState, GpuWatcher, OtherUse
from tests.waiting import LIMIT_S, until


class FakeNvml:
    """A binding of NVML with one card; `missing` calls raise, as on old drivers."""

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetTemperature": 60,
            "nvmlDeviceGetPowerUsage": 500_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7)],
            **values,
        }
        self.opened = ""

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:
        self.opened = address.decode()
        return "card"

    def __getattr__(self, name: str) -> Any:
        def call(handle: Any, *arguments: Any) -> Any:
            if name not in self.values:
                raise RuntimeError("not supported")
            value = self.values[name]
            return value(*arguments) if callable(value) else value

        return call


def watcher(nvml: Any) -> GpuWatcher:
    return GpuWatcher(0, nvml, lambda index: "0000:00:06.0")


def test_samples_are_taken_between_begin_and_end() -> None:
    clocks = iter([1000, 1500, 1980] + [1980] * 1000)
    nvml = FakeNvml(nvmlDeviceGetClockInfo=lambda kind: next(clocks))
    looking = watcher(nvml)
    looking.begin()
    until(lambda: len(looking._clocks) >= 5)
    looking.read_link()
    looking.end()
    state = looking.state()
    assert nvml.opened == "0000:00:06.0" and state.samples >= 5 and state.clock_mhz == 1980
    assert (state.reasons, state.held_reasons, state.temperature_c, state.power_w) == (4, 4, 60, 500.0)
    assert (state.pcie_generation, state.pcie_width, state.uuid, state.driver) == (5, 16, "GPU-1", "580.1")
    assert (state.power_limit_w, state.power_limit_default_w, state.problem) == (700.0, 700.0, "")


def test_a_reason_of_a_moment_is_not_held() -> None:
    looking = watcher(FakeNvml())
    looking._reasons = [0, 0, 0x40, 0]
    state = looking.state()
    assert (state.reasons, state.held_reasons) == (0x40, 0)


def test_calls_that_a_driver_lacks_leave_fields_unknown() -> None:
    looking = watcher(FakeNvml())
    looking._nvml.values = {}
    looking.begin()
    looking.end()
    looking.read_link()
    assert looking.state() == GpuState(driver="580.1")
    assert looking.other_use(lambda: None) == OtherUse()
    assert not OtherUse(None, 3).busy


def test_the_older_name_of_the_reasons_is_used() -> None:
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    del nvml.values["nvmlDeviceGetCurrentClocksEventReasons"]
    looking = watcher(nvml)
    looking.begin()
    until(lambda: looking._reasons)
    looking.end()
    assert looking.state().reasons == 0x20


def test_a_card_that_stays_busy_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "SETTLE_S", 0.3)
    both = [SimpleNamespace(pid=9), SimpleNamespace(pid=7)]
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=98), nvmlDeviceGetComputeRunningProcesses=both)
    moved = []
    use = watcher(nvml).other_use(lambda: moved.append(1))
    assert use == OtherUse(98, 1) and use.busy and len(moved) >= 2


def test_a_card_that_falls_idle_was_busy_with_this_rank() -> None:
    rates = iter([90, 40, 0])
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=lambda: SimpleNamespace(gpu=next(rates)))
    use = watcher(nvml).other_use(lambda: None)
    assert use.utilization_percent == 0 and not use.busy


def test_without_nvml_everything_is_unknown() -> None:
    def no_driver(index: int) -> str:
        raise OSError("libcuda.so.1: cannot open shared object file")

    looking = GpuWatcher(0, FakeNvml(), no_driver)
    looking.begin()
    looking.read_link()
    looking.end()
    assert "libcuda.so.1" in looking.state().problem and looking.state().clock_mhz is None
    assert looking.other_use(lambda: None) == OtherUse() and looking.nvlinks_to("0000:01:00.0") is None


def test_a_driver_that_hangs_does_not_hang_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "INIT_S", 0.1)
    release = threading.Event()

    def hang(index: int) -> str:
        release.wait(LIMIT_S)
        return "0000:00:06.0"

    looking = GpuWatcher(0, FakeNvml(), hang)
    assert not release.is_set() and "did not answer within 0.1 s" in looking.state().problem
    release.set()


def test_links_to_a_peer_are_counted_directly_and_through_switches() -> None:
    up = [True, True, False, True]

    def state(link: int) -> bool:
        if link >= len(up):
            raise RuntimeError("invalid argument")
        return up[link]

    def remote(link: int) -> Any:
        return SimpleNamespace(busId=b"00000000:41:00.0" if link == 0 else b"00000000:C1:00.0")

    nvml = FakeNvml(nvmlDeviceGetNvLinkState=state, nvmlDeviceGetNvLinkRemotePciInfo=remote)
    nvml.values["nvmlDeviceGetNvLinkRemoteDeviceType"] = lambda link: 0
    assert watcher(nvml).nvlinks_to("0000:41:00.0") == 1
    assert watcher(nvml).nvlinks_to("0000:c1:00.0") == 2
    assert watcher(nvml).nvlinks_to("0000:81:00.0") == 0 and watcher(nvml).nvlinks_to("") == 0
    nvml.values["nvmlDeviceGetNvLinkRemoteDeviceType"] = lambda link: 2
    assert watcher(nvml).nvlinks_to("0000:81:00.0") == 3 and watcher(nvml).nvlinks_to("") == 3
    assert watcher(FakeNvml()).nvlinks_to("0000:81:00.0") == 0
