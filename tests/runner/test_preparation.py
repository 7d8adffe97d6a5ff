"""Jobs are read while named nodes are reached, and errors of reading are raised as usual."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.executors.base import Bundle, Channel, Executor, ExecutorError, GatheredNodes, NodeRequest
from preflight.executors.bundle import build_bundle
from preflight.executors.pipe import LocalExecutor
from preflight.model.configuration import RunOptions
from preflight.model.progress import Progress, Step, ignore
from preflight.model.recording import Node, Recording
from preflight.runner import run
from preflight.runner.observer import Observer
from preflight.runner.preparation import LoadedJobs
from tests.builders import add_executor, claim, job
from tests.waiting import becomes

#: Awaited events arrive immediately, or the test fails.
SOON_S = 20.0


@dataclass
class RecordingExecutor(Executor):
    """Reaches no node, and records when it was called."""

    opens_named: bool = True
    name: str = "knocking"
    knocked: threading.Event = field(default_factory=threading.Event)
    jobs_seen: list[int] = field(default_factory=list)
    closed: int = 0

    async def gather(self, wanted: NodeRequest) -> GatheredNodes | None:
        self.jobs_seen.append(len(wanted.jobs))
        return None

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        self.knocked.set()
        raise ExecutorError("unreachable", f"{node.name}: nobody is there")

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def recording_executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingExecutor]:
    """Register one more executor."""
    executor = RecordingExecutor()
    add_executor(monkeypatch, executor)
    yield executor


LOCAL = RunOptions(executor="local", hosts="a", until="node")
OPTIONS = RunOptions(executor="knocking", hosts="a,b", until="node")
BASE = Recording((job(claim("nodes", 2)),), "2026-11-22T00:00:00+00:00", "0.1", verb="check")


def test_named_nodes_are_reached_while_the_job_is_read(recording_executor: RecordingExecutor) -> None:
    def read(progress: Progress) -> LoadedJobs:
        assert recording_executor.knocked.wait(SOON_S), "nobody was reached before the job was read"
        return LoadedJobs(BASE, ())

    made = run.run("check", OPTIONS, read)
    assert [node.problem for node in made.nodes] == ["a: nobody is there", "b: nobody is there"]
    assert recording_executor.jobs_seen == [0]


def test_an_executor_that_needs_the_job_waits_for_it(recording_executor: RecordingExecutor) -> None:
    recording_executor.opens_named = False

    def read(progress: Progress) -> LoadedJobs:
        assert not recording_executor.knocked.is_set()
        return LoadedJobs(BASE, ())

    run.run("check", OPTIONS, read)
    assert recording_executor.jobs_seen == [1]


def test_a_mistake_in_the_job_is_reported_while_nodes_are_reached(recording_executor: RecordingExecutor) -> None:
    def read(progress: Progress) -> LoadedJobs:
        assert recording_executor.knocked.wait(SOON_S)
        raise UsageError("there is no such file")

    with pytest.raises(UsageError, match="there is no such file"):
        run.run("check", OPTIONS, read)
    with pytest.raises(UsageError, match="no launch script or configuration was recognised"):
        run.run("check", OPTIONS, lambda progress: LoadedJobs(replace(BASE, jobs=()), ()))
    assert recording_executor.closed


@pytest.mark.parametrize("opens_named", [True, False])
def test_a_bug_while_reading_is_raised_unchanged(recording_executor: RecordingExecutor, opens_named: bool) -> None:
    recording_executor.opens_named = opens_named

    def read(progress: Progress) -> LoadedJobs:
        raise ZeroDivisionError("of a reader's own")

    with pytest.raises(ZeroDivisionError, match="of a reader's own"):
        run.run("check", OPTIONS, read)
    # No node was opened before the job was read, so there is nothing to close.
    assert bool(recording_executor.closed) is opens_named


def test_progress_of_reading_arrives_in_the_thread_of_the_run(recording_executor: RecordingExecutor) -> None:
    heard: list[tuple[str, int]] = []

    def read(progress: Progress) -> LoadedJobs:
        progress(Step("files", 1, 2))
        return LoadedJobs(BASE, ())

    run.run("check", OPTIONS, read, progress=lambda step: heard.append((step.stage, threading.get_ident())))
    assert "files" in {stage for stage, _ in heard}
    assert {thread for _, thread in heard} == {threading.get_ident()}


def test_an_interrupt_before_reading_is_raised(recording_executor: RecordingExecutor) -> None:
    over = threading.Event()

    def read(progress: Progress) -> LoadedJobs:
        assert recording_executor.knocked.wait(SOON_S)
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(SOON_S)
        return LoadedJobs(BASE, ())

    try:
        with pytest.raises(KeyboardInterrupt):
            run.run("check", OPTIONS, read)
    finally:
        over.set()
    assert recording_executor.closed


def test_judging_is_prepared_while_nodes_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes do not wait until the rules are loaded."""
    order: list[str] = []
    ready = threading.Event()

    async def slowly(observer: Observer, *args: object, **more: object) -> None:
        order.append("asked")
        await becomes(ready.is_set)
        order.append("answered")

    def warm_up(recording: Recording, stages: frozenset[str]) -> None:
        order.append("made ready")
        ready.set()

    monkeypatch.setattr(Observer, "nodes", slowly)
    monkeypatch.setattr(run, "warm_up", warm_up)
    run.run("check", LOCAL, lambda progress: LoadedJobs(BASE, ()))
    assert order == ["asked", "made ready", "answered"]


def test_an_error_of_preparation_is_raised_when_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    async def slowly(observer: Observer, *args: object, **more: object) -> None:
        await becomes(tried.is_set)

    def warm_up(recording: Recording, stages: frozenset[str]) -> None:
        tried.set()
        raise UsageError("no such rule")

    monkeypatch.setattr(Observer, "nodes", slowly)
    monkeypatch.setattr(run, "warm_up", warm_up)
    made = run.run("check", LOCAL, lambda progress: LoadedJobs(BASE, ()))
    assert [(stage.name, stage.skipped) for stage in made.stages] == [("open", ""), ("node", "")]


def test_a_bug_while_nodes_are_queried_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(observer: Observer, *args: object, **more: object) -> None:
        raise ZeroDivisionError("of the observer's own")

    monkeypatch.setattr(Observer, "nodes", broken)
    with pytest.raises(ZeroDivisionError, match="of the observer's own"):
        run.run("check", LOCAL, lambda progress: LoadedJobs(BASE, ()))


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_interrupt_changes_nothing(numbers: Sequence[signal.Signals], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = numbers

    async def looking(observer: Observer, *args: object, **more: object) -> None:
        os.kill(os.getpid(), first)
        try:
            await anyio.sleep(SOON_S)
        finally:
            os.kill(os.getpid(), second)

    monkeypatch.setattr(Observer, "nodes", looking)
    made = run.run("check", LOCAL, lambda progress: LoadedJobs(BASE, ()))
    assert made.interrupted == 128 + first
    assert [(stage.name, stage.skipped) for stage in made.stages] == [("open", ""), ("node", "it was interrupted")]


def test_an_interrupt_reaches_a_run_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where the run has its own thread."""

    async def looking(observer: Observer, *args: object, **more: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(SOON_S)

    monkeypatch.setattr(Observer, "nodes", looking)

    async def notebook() -> Recording:
        return run.run("check", LOCAL, lambda progress: LoadedJobs(BASE, ()))

    # Without asyncio's own runner, which would handle the interrupt itself.
    made = asyncio.new_event_loop().run_until_complete(notebook())
    assert made.interrupted == 130
    assert made.stages[-1].skipped == "it was interrupted"


def test_an_interrupt_while_a_run_is_judged_does_not_lose_it(
    recording_executor: RecordingExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted: list[int] = []

    def judging(recording: Recording, *, progress: Progress = ignore) -> str:
        interrupted.append(recording.interrupted)
        if len(interrupted) == 1:
            signal.raise_signal(number)
        return "judged"

    monkeypatch.setattr(api, "judge", judging)
    (tmp_path / "run.sh").write_text("torchrun --nnodes=2 train.py\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        interrupted.clear()
        recording, report = api.check([tmp_path / "run.sh"], OPTIONS, root=tmp_path)
        assert (report, recording.interrupted) == ("judged", 128 + number)
        assert interrupted == [0, 128 + number]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.thorough
def test_building_the_bundle_does_not_count_for_nodes() -> None:
    async def bundle() -> bytes:
        await anyio.sleep(1.2)
        return build_bundle(trainer=False)

    async def main() -> None:
        channel = await LocalExecutor().open(Node("a", 0), deadline_s=1.0, bundle=bundle)
        await channel.aclose()

    anyio.run(main)
