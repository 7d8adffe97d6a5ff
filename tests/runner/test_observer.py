"""Sending requests to nodes: how many at once, for how long, and records of missing answers."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.agent.wire import AgentRequest, Context, Done, Event, Failed
from preflight.executors.base import Bundle, Channel, Executor, ExecutorError, GatheredNodes, NodeRequest
from preflight.executors.bundle import build_bundle
from preflight.executors.pipe import LocalExecutor
from preflight.model.configuration import RunOptions
from preflight.model.progress import Progress, Step, ignore
from preflight.model.recording import Node, Recording, Unavailable
from preflight.model.requests import Request
from preflight.runner import run
from preflight.runner.observer import END_SHARE, RUN_KEY, Observer
from preflight.runner.preparation import ContextChoice, LoadedJobs
from preflight.runner.session import OpenFleet
from tests.builders import add_executor, claim, job
from tests.waiting import becomes, scaled


class FakeSession:
    """A node that answers after `delay_s`, or never; `most` is how many requests it had at once."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.request_count: list[AgentRequest] = []
        self.most = 0
        self._under_way = 0

    async def run(self, ask: AgentRequest) -> Done | Failed:
        self.request_count.append(ask)
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await anyio.sleep(self.delay_s)
        self._under_way -= 1
        return Done(ask.id, ask.params["number"])


def observed(
    sessions: dict[str, FakeSession], requests: Sequence[Request], *, deadline_s: float = 5.0
) -> tuple[Observer, list[Step]]:
    steps: list[Step] = []
    fleet: Any = SimpleNamespace(sessions=sessions)
    began = time.monotonic()
    observer = Observer(fleet, ContextChoice(Context(), "here"), lambda: time.monotonic() - began, steps.append)
    anyio.run(lambda: observer.nodes(requests, deadline_s=deadline_s))
    return observer, steps


def asking(nodes: Sequence[str], count: int, **keywords: Any) -> list[Request]:
    return [Request("a:b", node, {"number": n}, **keywords) for node, n in itertools.product(nodes, range(count))]


def test_order_of_requests_by_their_checks() -> None:
    names = [f"preflight_checks.probes.{name}" for name in ("names:resolve", "machine:machine", "devices:activity")]
    for name in names:
        importlib.import_module(name.partition(":")[0])
    session = FakeSession()
    observed({"node0": session}, [Request(name, "node0", {"number": 0}) for name in names])
    assert [ask.target for ask in session.request_count] == list(reversed(names))
    assert {ask.together for ask in session.request_count} == {"node"}


def test_every_request_has_one_fact_and_one_step() -> None:
    sessions = {f"node{n}": FakeSession() for n in range(5)}
    observer, steps = observed(sessions, asking(list(sessions), 20))
    assert sorted((fact.request.node, fact.value) for fact in observer.facts) == sorted(
        itertools.product(sessions, range(20))
    )
    assert [step.done for step in steps] == list(range(101))
    assert {step.nodes for step in steps} == {5}
    assert steps[-1].waiting_for == () and set(steps[0].waiting_for) == set(sessions)


def test_a_node_gets_a_few_requests_at_a_time() -> None:
    session = FakeSession(delay_s=0.01)
    observed({"node1": session}, asking(["node1"], 30))
    assert session.most == 8


def test_a_late_answer_does_not_delay_others() -> None:
    observer, steps = observed(
        {"slow": FakeSession(delay_s=60), "quick": FakeSession()}, asking(["slow", "quick"], 10), deadline_s=scaled(0.3)
    )
    late = [fact for fact in observer.facts if fact.unavailable is not None]
    assert {fact.request.node for fact in late} == {"slow"} and len(late) == 10
    assert all(f"within the stage's {scaled(0.3):g} s" in fact.unavailable.reason for fact in late if fact.unavailable)
    assert len(observer.facts) == 20 and steps[-1].waiting_for == ("slow",)


@pytest.mark.parametrize(("stage_s", "probe_s", "expected"), [(10.0, 5.0, 3.0), (60.0, 5.0, 43.0), (5.0, 5.0, 0.0)])
def test_entering_the_context_may_take_the_rest_of_the_stage(stage_s: float, probe_s: float, expected: float) -> None:
    session = FakeSession()
    observed({"node1": session}, asking(["node1"], 1, deadline_s=probe_s), deadline_s=stage_s)
    assert session.request_count[0].start_s == pytest.approx(expected)


def test_a_request_without_consent_is_not_sent() -> None:
    sessions = {"node0": FakeSession()}
    (fact,) = observed(sessions, asking(["node0"], 1, consent="write"))[0].facts
    assert fact.unavailable is not None and "--allow write" in fact.unavailable.reason
    allowed = Observer(
        cast(Any, SimpleNamespace(sessions=sessions)),
        ContextChoice(Context(), "here"),
        time.monotonic,
        lambda step: None,
        frozenset({"write"}),
    )
    anyio.run(lambda: allowed.nodes(asking(["node0"], 1, consent="write"), deadline_s=5.0))
    assert allowed.facts[0].unavailable is None


def test_a_hashing_probe_gets_a_run_key_that_is_not_recorded() -> None:
    keys = []
    for _ in range(2):
        session = FakeSession()
        requests = [Request("a:b", "node1", {"number": n, **keyed}) for n, keyed in enumerate(({}, {RUN_KEY: ""}))]
        observer, _steps = observed({"node1": session}, requests)
        plain, hashing = sorted(session.request_count, key=lambda ask: ask.params["number"])
        assert RUN_KEY not in plain.params and len(hashing.params[RUN_KEY]) >= 32
        keys.append(hashing.params[RUN_KEY])
        assert keys[-1] not in repr(observer.facts)
    assert keys[0] != keys[1]


# The link stage over fake sessions: listeners, measurements in turns, and the deadline.


NAMES = ("a", "b", "c", "d")


class Session:
    """A node that answers by `answer`, and listens until it is cancelled."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.name, self.fleet = name, fleet

    async def run(self, ask: AgentRequest, on_event: Callable[[Event], None] | None = None) -> Done | Failed:
        self.fleet.asked.append((self.name, ask))
        if ask.target == "m:listen":
            if self.name in self.fleet.deaf:
                return Failed(0, "denied", "it may not listen")
            if self.name not in self.fleet.slow:
                assert on_event is not None
                on_event(Event(0, 0.0, "child", {"listening": {"at": self.name}}))
                on_event(Event(0, 0.1, "child", {"heard": "somebody"}))
            try:
                await anyio.sleep_forever()
            finally:
                self.fleet.ended.append(self.name)
        if self.name in self.fleet.frozen:
            # Its agent was stopped: it neither answers nor observes the deadline.
            await anyio.sleep_forever()
        peers = tuple(ask.params.get("listening", ()))
        here = {self.name, *peers}
        assert ask.target != "m:measure" or not here & self.fleet.busy, "a node takes part in two measurements"
        if ask.target == "m:measure":
            self.fleet.busy |= here
        with anyio.move_on_after(ask.deadline_s):
            await anyio.sleep(self.fleet.takes_s)
            self.fleet.busy -= here
            return Done(0, {"peers": peers, "unheard": ask.params.get("unheard")})
        self.fleet.busy -= here
        return Failed(0, "timeout", "no answer")


class Fleet:
    """The part of a fleet that `Observer` uses."""

    def __init__(
        self,
        *,
        takes_s: float = 0.0,
        deaf: Sequence[str] = (),
        slow: Sequence[str] = (),
        frozen: Sequence[str] = (),
        names: Sequence[str] = NAMES,
    ) -> None:
        self.takes_s, self.deaf, self.slow, self.frozen = takes_s, deaf, slow, frozen
        self.asked: list[tuple[str, AgentRequest]] = []
        self.ended: list[str] = []
        self.busy: set[str] = set()
        self.sessions = {name: Session(name, self) for name in names}


LISTEN = [Request("m:listen", name) for name in NAMES]
DIAL = [Request("m:dial", name, peers=tuple(set(NAMES) - {name}), listen="m:listen") for name in NAMES]
PAIRS = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
MEASURE = [Request("m:measure", a, peers=(b,), listen="m:listen", exclusive=True) for a, b in PAIRS]


def observe(
    fleet: Fleet, requests: Sequence[Request], *more: Sequence[Request], deadline_s: float = 10.0
) -> tuple[Observer, float]:
    """The observations, and how long they took."""

    async def main() -> tuple[Observer, float]:
        began = anyio.current_time()
        context = ContextChoice(None, "", "none")
        observer = Observer(cast(OpenFleet, fleet), context, lambda: anyio.current_time() - began, lambda step: None)
        waves = iter(more)

        async def follow_up() -> Sequence[Request]:
            return next(waves, ())

        with anyio.fail_after(20):
            await observer.links(requests, follow_up, deadline_s=deadline_s)
        return observer, anyio.current_time() - began

    return anyio.run(main)


def values(observer: Observer, probe: str) -> dict[str, Any]:
    return {record.request.node: record.value for record in observer.facts if record.request.probe == probe}


def test_all_nodes_dial_while_all_listen_and_reports_are_kept() -> None:
    fleet = Fleet()
    observer, _ = observe(fleet, [*LISTEN, *DIAL])
    assert {node: sorted(value["peers"]) for node, value in values(observer, "m:dial").items()} == {
        name: sorted(set(NAMES) - {name}) for name in NAMES
    }
    assert values(observer, "m:listen") == {name: {"at": name} for name in NAMES}
    assert [event.data for event in observer.events] == [{"heard": "somebody"}] * 4
    assert sorted(fleet.ended) == list(NAMES)


def test_listeners_are_started_once_for_all_waves() -> None:
    fleet = Fleet()
    observer, _ = observe(fleet, [*LISTEN, *DIAL], MEASURE)
    assert sum(ask.target == "m:listen" for _, ask in fleet.asked) == 4
    assert sum(record.request.probe == "m:measure" and record.value is not None for record in observer.facts) == 6


def test_measurements_take_turns() -> None:
    _, took_s = observe(Fleet(takes_s=0.1), [*LISTEN, *MEASURE])
    assert took_s >= 0.3


def test_dialling_nodes_learn_which_peers_cannot_listen() -> None:
    observer, _ = observe(Fleet(deaf=("b",)), [*LISTEN, *DIAL])
    assert values(observer, "m:dial")["a"]["unheard"] == {"b": "it may not listen"}
    (record,) = [r for r in observer.facts if r.request.probe == "m:listen" and r.unavailable is not None]
    assert record.request.node == "b"
    alone, _ = observe(Fleet(deaf=("b",)), [*LISTEN, MEASURE[0]])
    (blocked,) = [r.unavailable for r in alone.facts if r.request.probe == "m:measure"]
    assert blocked == Unavailable("blocked", "b could not listen: it may not listen")


def test_no_node_listens_without_a_request() -> None:
    observer, _ = observe(Fleet(), [*LISTEN[:1], DIAL[0]])
    (record,) = [r for r in observer.facts if r.request.probe == "m:dial"]
    assert record.unavailable is not None and "it was not requested to listen" in record.unavailable.reason


def test_the_deadline_holds_and_untried_requests_are_recorded() -> None:
    observer, _ = observe(Fleet(takes_s=30.0), [*LISTEN, *MEASURE], deadline_s=1.5)
    reasons = [r.unavailable.reason for r in observer.facts if r.unavailable is not None]
    assert len(reasons) == 6
    assert "the link stage ended before it was tried" in reasons


def test_running_requests_end_shortly_before_the_deadline() -> None:
    fleet = Fleet(takes_s=30.0)
    observe(fleet, [*LISTEN, *MEASURE], deadline_s=2.0)
    (first, *_) = (ask for _, ask in fleet.asked if ask.target == "m:measure")
    assert first.deadline_s <= 2.0 * (1 - END_SHARE)


def test_sixty_four_nodes_with_frozen_agents_keep_the_deadline() -> None:
    names = [f"node{index}" for index in range(64)]
    fleet = Fleet(frozen=names[:60], names=names)
    listen = [Request("m:listen", name) for name in names]
    dial = [Request("m:dial", name, peers=tuple({*names} - {name}), listen="m:listen") for name in names]
    measure = [Request("m:measure", a, peers=(b,), listen="m:listen", exclusive=True) for a, b in pairwise(names)]
    observer, _ = observe(fleet, [*listen, *dial], measure, deadline_s=1.5)
    # Without a deadline of the stage it would never end.
    answered = {record.request.node for record in observer.facts if record.request.probe == "m:dial" and record.value}
    assert answered == {*names[60:]}
    late = [record for record in observer.facts if record.request.probe == "m:dial" and record.unavailable is not None]
    assert {record.request.node for record in late} == {*names[:60]}
    assert all("before the link stage ended" in record.unavailable.reason for record in late if record.unavailable)


# Jobs are read while named nodes are reached, and errors of reading are raised as usual.


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
    with pytest.raises(UsageError, match="no launch script or configuration was recognized"):
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
