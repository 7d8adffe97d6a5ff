"""Jobs are read while named nodes are reached, and what goes wrong there is said as if nothing else had begun."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import anyio
import pytest

from preflight.brief import Brief
from preflight.bundle import node_bundle
from preflight.check_options import CheckOptions
from preflight.errors import UsageError
from preflight.executors.base import Bundle, Channel, ExecutorError, Gathered, Wanted
from preflight.executors.local import LocalExecutor
from preflight.judging import collecting_seldom
from preflight.observe import Observer
from preflight.progress import Progress, Step
from preflight.recording import Node, Recording
from preflight.run import record
from tests.building import as_it_is, claim, executor_more, job

#: What is waited for comes at once, or the test fails.
SOON_S = 20.0


@dataclass
class Knocking:
    """Reaches nobody, and says when it was told to try."""

    opens_named: bool = True
    name: str = "knocking"
    knocked: threading.Event = field(default_factory=threading.Event)
    jobs_seen: list[int] = field(default_factory=list)
    closed: int = 0

    async def gather(self, wanted: Wanted) -> Gathered | None:
        self.jobs_seen.append(len(wanted.jobs))
        return None

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        self.knocked.set()
        raise ExecutorError("unreachable", f"{node.name}: nobody is there")

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def knocking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Knocking]:
    """An executor more than there are."""
    executor = Knocking()
    executor_more(monkeypatch, executor)
    yield executor


LOCAL = CheckOptions(executor="local", hosts="a", until="node")
OPTIONS = CheckOptions(executor="knocking", hosts="a,b", until="node")
BASE = Recording((job(claim("nodes", 2)),), "2026-11-22T00:00:00+00:00", "0.1", verb="check")


def test_named_nodes_are_reached_while_the_job_is_read(knocking: Knocking) -> None:
    def read(tell: Progress) -> Brief:
        assert knocking.knocked.wait(SOON_S), "nobody was reached before the job was read"
        return Brief(BASE, ())

    made = record("check", read, OPTIONS, as_it_is)
    assert [node.problem for node in made.nodes] == ["a: nobody is there", "b: nobody is there"]
    assert knocking.jobs_seen == [0]


def test_an_executor_that_wants_to_know_the_job_waits_for_it(knocking: Knocking) -> None:
    knocking.opens_named = False

    def read(tell: Progress) -> Brief:
        assert not knocking.knocked.is_set()
        return Brief(BASE, ())

    record("check", read, OPTIONS, as_it_is)
    assert knocking.jobs_seen == [1]


def test_a_mistake_in_the_job_is_told_when_nodes_are_being_reached_too(knocking: Knocking) -> None:
    def read(tell: Progress) -> Brief:
        assert knocking.knocked.wait(SOON_S)
        raise UsageError("there is no such file")

    with pytest.raises(UsageError, match="there is no such file"):
        record("check", read, OPTIONS, as_it_is)
    with pytest.raises(UsageError, match="nothing to check"):
        record("check", lambda tell: Brief(replace(BASE, jobs=()), ()), OPTIONS, as_it_is)
    assert knocking.closed


@pytest.mark.parametrize("opens_named", [True, False])
def test_a_bug_in_the_reading_is_raised_as_it_is(knocking: Knocking, opens_named: bool) -> None:
    knocking.opens_named = opens_named

    def read(tell: Progress) -> Brief:
        raise ZeroDivisionError("of a reader's own")

    with pytest.raises(ZeroDivisionError, match="of a reader's own"):
        record("check", read, OPTIONS, as_it_is)
    # Before the job is read nothing was opened, and so there is nothing to close.
    assert bool(knocking.closed) is opens_named


def test_whoever_watches_hears_of_the_reading_in_the_thread_of_the_run(knocking: Knocking) -> None:
    heard: list[tuple[str, int]] = []

    def read(tell: Progress) -> Brief:
        tell(Step("files", 1, 2))
        return Brief(BASE, ())

    record("check", read, OPTIONS, as_it_is, progress=lambda step: heard.append((step.stage, threading.get_ident())))
    assert "files" in {stage for stage, _ in heard}
    assert {thread for _, thread in heard} == {threading.get_ident()}


def test_an_interrupt_before_anything_was_read_is_one(knocking: Knocking) -> None:
    over = threading.Event()

    def read(tell: Progress) -> Brief:
        assert knocking.knocked.wait(SOON_S)
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(SOON_S)
        return Brief(BASE, ())

    try:
        with pytest.raises(KeyboardInterrupt):
            record("check", read, OPTIONS, as_it_is)
    finally:
        over.set()
    assert knocking.closed


def test_judging_is_made_ready_while_nodes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node waits for the rules."""
    order: list[str] = []
    ready = threading.Event()

    async def slowly(observer: Observer, *args: object, **more: object) -> None:
        order.append("asked")
        with anyio.fail_after(SOON_S):
            while not ready.is_set():
                await anyio.sleep(0.01)
        order.append("answered")

    def prepare() -> None:
        order.append("made ready")
        ready.set()

    monkeypatch.setattr(Observer, "nodes", slowly)
    record("check", lambda tell: Brief(BASE, (), prepare=prepare), LOCAL, as_it_is)
    assert order == ["asked", "made ready", "answered"]


def test_what_cannot_be_made_ready_is_said_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    async def slowly(observer: Observer, *args: object, **more: object) -> None:
        with anyio.fail_after(SOON_S):
            while not tried.is_set():
                await anyio.sleep(0.01)
        await anyio.sleep(0.05)

    def prepare() -> None:
        tried.set()
        raise UsageError("no such rule")

    monkeypatch.setattr(Observer, "nodes", slowly)
    made = record("check", lambda tell: Brief(BASE, (), prepare=prepare), LOCAL, as_it_is)
    assert [(stage.name, stage.skipped) for stage in made.stages] == [("open", ""), ("node", "")]


def test_a_bug_while_nodes_are_asked_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(observer: Observer, *args: object, **more: object) -> None:
        raise ZeroDivisionError("of the observer's own")

    monkeypatch.setattr(Observer, "nodes", broken)
    with pytest.raises(ZeroDivisionError, match="of the observer's own"):
        record("check", lambda tell: Brief(BASE, ()), LOCAL, as_it_is)


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_what_is_interrupted_twice_is_recorded_once(
    numbers: Sequence[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = numbers

    async def looking(observer: Observer, *args: object, **more: object) -> None:
        os.kill(os.getpid(), first)
        try:
            await anyio.sleep(SOON_S)
        finally:
            os.kill(os.getpid(), second)

    monkeypatch.setattr(Observer, "nodes", looking)
    made = record("check", lambda tell: Brief(BASE, ()), LOCAL, as_it_is)
    assert made.interrupted == 128 + first
    assert [(stage.name, stage.skipped) for stage in made.stages] == [("open", ""), ("node", "it was interrupted")]


def test_an_interrupt_reaches_a_run_beside_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where the run has a thread of its own."""

    async def looking(observer: Observer, *args: object, **more: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(SOON_S)

    monkeypatch.setattr(Observer, "nodes", looking)

    async def notebook() -> Recording:
        return record("check", lambda tell: Brief(BASE, ()), LOCAL, as_it_is)

    began = time.monotonic()
    # Without asyncio's own runner, which would take the interrupt for its own.
    made = asyncio.new_event_loop().run_until_complete(notebook())
    assert time.monotonic() - began < SOON_S / 2
    assert made.interrupted == 130
    assert made.stages[-1].skipped == "it was interrupted"


def test_looking_for_garbage_is_as_it_was_after_all_who_wanted_it_seldom() -> None:
    before = gc.get_threshold()
    one, other, third = collecting_seldom(60_000), collecting_seldom(0), collecting_seldom(0)
    one.__enter__()
    assert gc.get_threshold()[0] == 60_000
    other.__enter__()
    third.__enter__()
    assert gc.get_threshold()[0] == 0
    other.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 0
    third.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 60_000
    one.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_what_is_concluded_is_of_all_that_was_seen(knocking: Knocking) -> None:
    """In a thread beside, with whoever watches told in the run's own."""
    threads: list[int] = []
    heard: list[tuple[str, int]] = []

    def conclude(recording: Recording, tell: Progress) -> str:
        threads.append(threading.get_ident())
        tell(Step("judge"))
        return ", ".join(node.problem for node in recording.nodes)

    def watch(step: Step) -> None:
        heard.append((step.stage, threading.get_ident()))

    said = record("check", lambda tell: Brief(BASE, ()), OPTIONS, conclude, progress=watch)
    assert said == "a: nobody is there, b: nobody is there"
    assert len(threads) == 1 and threads[0] != threading.get_ident()
    assert ("judge", threading.get_ident()) in heard


def test_a_bug_in_concluding_is_raised_as_it_is(knocking: Knocking) -> None:
    def conclude(recording: Recording, tell: Progress) -> None:
        raise ZeroDivisionError("of a check's own")

    with pytest.raises(ZeroDivisionError, match="of a check's own"):
        record("check", lambda tell: Brief(BASE, ()), OPTIONS, conclude)
    assert knocking.closed


def test_an_interrupt_while_it_is_concluded_has_it_concluded_again(knocking: Knocking) -> None:
    seen: list[int] = []
    over = threading.Event()

    def conclude(recording: Recording, tell: Progress) -> int:
        seen.append(recording.interrupted)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(SOON_S)
        return recording.interrupted

    try:
        assert record("check", lambda tell: Brief(BASE, ()), OPTIONS, conclude) == 130
    finally:
        over.set()
    assert seen == [0, 130]
    assert knocking.closed


def test_the_time_that_a_bundle_takes_is_not_the_nodes() -> None:
    async def bundle() -> bytes:
        await anyio.sleep(1.2)
        return node_bundle(trainer=False)

    async def main() -> None:
        channel = await LocalExecutor().open(Node("a", 0), deadline_s=1.0, bundle=bundle)
        await channel.aclose()

    anyio.run(main)
