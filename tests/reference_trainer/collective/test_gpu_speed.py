"""The measurement of a GPU, on a processor that answers as one: sizes, times, memory, turns, missing features."""

from __future__ import annotations

import functools
import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from reference_trainer.collective import gpu_speed  # noqa: E402
from reference_trainer.collective.gpu_speed import GpuReport, turns  # noqa: E402
from reference_trainer.common.framework import OtherUse  # noqa: E402
from reference_trainer.common.progress import Progress  # noqa: E402


class Event:
    """An event of a queue that runs everything at once."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return max(1e-6, other.at - self.at) * 1e3


class FakeTorch:
    """torch, with a processor in the place of a GPU."""

    def __init__(self, *, free: int = 1 << 33, capability: tuple[int, int] = (9, 0)) -> None:
        self.cuda = SimpleNamespace(
            Event=Event,
            synchronize=lambda device=None: None,
            current_stream=lambda device=None: None,
            device_count=lambda: 1,
            mem_get_info=lambda device=None: (free, free),
            get_device_capability=lambda device=None: capability,
            get_device_name=lambda device=None: "NVIDIA Fake",
            empty_cache=lambda: None,
        )
        self.version = SimpleNamespace(hip=None)

    def empty(self, *size: Any, pin_memory: bool = False, **options: Any) -> Any:
        return torch.empty(*size, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SIZES", (64, 32, 16)),
        ("COPY_BYTES", 1 << 16),
        ("HOST_BYTES", 1 << 12),
        ("PRECISION_S", 0.01),
        ("DEADLINE_S", 600.0),
    ):
        monkeypatch.setattr(gpu_speed, name, value)
    monkeypatch.setattr(gpu_speed, "_address", lambda index: "")
    monkeypatch.setattr(gpu_speed, "check", functools.partial(gpu_speed.check, budget_s=0.0))


def measured(fake: FakeTorch, **more: Any) -> GpuReport:
    progress = Progress(lambda data: None, rank=0)
    return gpu_speed.measure(fake, progress, torch.device("cpu"), lambda run: run(), **more)


def test_every_figure_is_measured_or_noted() -> None:
    report = measured(FakeTorch())
    seen = {item.what for item in report.speeds} | set(report.notes)
    assert seen == {"fp32", "tf32", "bf16", "fp16", "fp8", "memory", "host_to_device", "device_to_host"}
    assert all(item.best >= item.median > 0 and item.runs >= 5 for item in report.speeds)
    assert not report.exact.wrong and report.exact.elements and report.model == "NVIDIA Fake"
    assert "peer" not in seen and report.state.problem and report.before == OtherUse()


def test_cards_without_a_format_are_not_asked_for_it() -> None:
    report = measured(FakeTorch(capability=(7, 0)))
    seen = {item.what for item in report.speeds} | set(report.notes)
    assert seen == {"fp32", "fp16", "memory", "host_to_device", "device_to_host"}


def test_short_memory_skips_everything_but_the_turn() -> None:
    taken: list[int] = []

    def turn(run: Any) -> None:
        run()
        taken.append(1)

    report = gpu_speed.measure(
        FakeTorch(free=1000), Progress(lambda data: None, rank=0), torch.device("cpu"), turn, local_ranks=1
    )
    assert "MiB of memory are free" in report.skipped and not report.speeds and taken == [1]


def test_an_error_of_one_part_is_a_note() -> None:
    fake = FakeTorch()
    fake.mm = lambda *args, **options: (_ for _ in ()).throw(RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nmore"))  # type: ignore[attr-defined]
    report = measured(fake)
    assert report.notes["bf16"] == "RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED"
    assert {item.what for item in report.speeds} >= {"memory", "host_to_device"}
    assert report.exact.notes["fp32"] == "CUBLAS_STATUS_NOT_SUPPORTED"


def test_no_part_begins_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_speed, "DEADLINE_S", -1.0)
    report = measured(FakeTorch())
    assert not report.speeds and set(report.notes.values()) == {"there was no time left"}


def test_ranks_that_share_a_card_are_counted() -> None:
    assert measured(FakeTorch(), local_ranks=1).shared_by == 1
    shared = measured(FakeTorch(), local_ranks=3)
    assert shared.shared_by == 3


def test_ranks_of_a_node_take_turns() -> None:
    order: list[str] = []
    take = turns(1, 3, lambda what: order.append("barrier"))
    take(lambda: order.append("mine"))
    assert order == ["barrier", "mine", "barrier", "barrier"]
    order.clear()
    turns(40, 64, lambda what: order.append("barrier"))(lambda: order.append("mine"))
    assert order == ["mine"]
