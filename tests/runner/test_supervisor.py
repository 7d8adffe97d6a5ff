"""The supervisor of a smoke run, with fake sessions: no processes, and almost no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from preflight.agent import rank_events
from preflight.agent.wire import AgentRequest, Context, Done, Event, Failed
from preflight.analysis.culprit import LIMITS, Limits, decision_time, find_culprit
from preflight.analysis.rank_state import members_of
from preflight.model.recording import EventRecord, FactRecord
from preflight.model.requests import Request
from preflight.runner.supervisor import problem_with, run_rank_group


@dataclass
class FakeRunning:
    """A rank that has sent `words`, and ends when it is cancelled, or immediately with `answer`."""

    ask: AgentRequest
    on_event: Callable[[Event], None] | None
    words: list[Event]
    answer: Done | Failed | None
    ended: anyio.Event = field(default_factory=anyio.Event)
    asked_for_stacks: bool = False

    async def result(self) -> Done | Failed:
        for word in self.words:
            assert self.on_event is not None
            self.on_event(word)
        if self.answer is None:
            await self.ended.wait()
        assert self.answer is not None
        return self.answer

    def cancel(self) -> None:
        if self.answer is None:
            self.answer = Failed(0, "cancelled", "it was cancelled")
        self.ended.set()

    def dump_stacks(self) -> None:
        self.asked_for_stacks = True
        assert self.on_event is not None
        self.on_event(Event(0, 0.0, "agent", {"stacks": "File train.py, line 1 in stall"}))


@dataclass
class FakeSession:
    words: list[Event] = field(default_factory=list)
    answer: Done | Failed | None = None
    running: list[FakeRunning] = field(default_factory=list)

    def start(self, ask: AgentRequest, on_event: Callable[[Event], None] | None = None) -> FakeRunning:
        self.running.append(FakeRunning(ask, on_event, self.words, self.answer))
        return self.running[-1]


REQUESTS = [Request("m:f", f"node{r}", {"rank": r, "world_size": 2}, context=True, group="g") for r in range(2)]


def event(name: str, **data: Any) -> Event:
    return Event(0, 0.0, "child", {"event": name, **data})


def run(
    sessions: dict[str, FakeSession], *, limits: Limits = LIMITS, requests: Sequence[Request] = REQUESTS
) -> tuple[list[FactRecord], list[EventRecord]]:
    async def main() -> tuple[list[FactRecord], list[EventRecord]]:
        began = anyio.current_time()
        with anyio.fail_after(10):
            return await run_rank_group(
                sessions,
                requests,
                context=Context(provenance="--python"),
                deadline_s=60,
                clock=lambda: anyio.current_time() - began,
                limits=limits,
            )

    return anyio.run(main)


def test_all_ranks_start_together_with_one_run_id_and_every_answer_is_recorded() -> None:
    sessions = {f"node{r}": FakeSession(answer=Done(0, {"rank": r})) for r in range(2)}
    records, events = run(sessions)
    assert [(r.request.node, r.value, r.provenance) for r in records] == [
        ("node0", {"rank": 0}, "--python"),
        ("node1", {"rank": 1}, "--python"),
    ]
    assert events == []
    asks = [s.running[0].ask for s in sessions.values()]
    assert asks[0].params["run_id"] == asks[1].params["run_id"] != ""
    assert "run_id" not in records[0].request.params


def test_a_dead_rank_ends_the_others_and_is_the_culprit_in_the_recording() -> None:
    waiting = FakeSession(words=[event(rank_events.PHASE, phase=rank_events.STARTED)])
    dead = FakeSession(
        words=[event(rank_events.PHASE, phase=rank_events.STARTED)], answer=Failed(0, "crashed", "x", "", -9)
    )
    records, events = run({"node0": waiting, "node1": dead})
    assert [r.unavailable and r.unavailable.kind for r in records] == ["cancelled", "crashed"]
    found = find_culprit(members_of(REQUESTS), events, records, now_s=decision_time(events, records))
    assert found is not None and (found.rank, found.node, found.kind) == (1, "node1", "dead")
    (decided,) = [e for e in events if e.origin == "head"]
    assert decided.data["because"] == found.because


def test_a_node_without_an_agent_is_missing_at_once() -> None:
    records, events = run({"node0": FakeSession(words=[event(rank_events.PHASE, phase=rank_events.STARTED)])})
    found = find_culprit(members_of(REQUESTS), events, records, now_s=decision_time(events, records))
    assert found is not None and (found.rank, found.kind) == (1, "missing")


def test_the_stack_of_a_stuck_rank_is_requested_before_the_end() -> None:
    group = event(rank_events.PHASE, phase=rank_events.GROUP)
    entered = event(rank_events.ENTERING, what="sum", collective=1, waiting_for=[])
    sessions = {"node0": FakeSession(words=[group, entered]), "node1": FakeSession(words=[group])}
    records, events = run(sessions, limits=Limits(step_least_s=0.3, unmeasured_factor=1))
    stacks = [(e.node, e.data["stacks"]) for e in events if "stacks" in e.data]
    assert stacks == [("node1", "File train.py, line 1 in stall")]
    assert not sessions["node0"].running[0].asked_for_stacks
    judged = find_culprit(
        members_of(REQUESTS),
        events,
        records,
        now_s=decision_time(events, records),
        limits=Limits(step_least_s=0.3, unmeasured_factor=1),
    )
    assert judged is not None and (judged.rank, judged.kind) == (1, "stuck")


def test_a_replaced_worker_is_ended_once_all_others_are_finished() -> None:
    parts = (
        {"role": "server", "index": 0},
        {"role": "worker", "index": 0},
        {"role": "worker", "index": 0, "spare": True},
    )
    requests = [Request("m:f", f"node{r}", {"rank": r, **part}, group="g") for r, part in enumerate(parts)]
    hello = event(rank_events.PHASE, phase=rank_events.STARTED)
    sessions = {
        "node0": FakeSession(words=[hello, event(rank_events.REPLACED, worker=1, spare=2)], answer=Done(0, {})),
        "node1": FakeSession(words=[hello]),
        "node2": FakeSession(words=[hello], answer=Done(0, {})),
    }
    records, events = run(sessions, requests=requests)
    (left,) = [record.unavailable for record in records if record.unavailable is not None]
    assert (left.kind, left.reason) == ("cancelled", "stopped, because spare 0 on node2 replaced it")
    assert not [event for event in events if event.origin == "head"], "nobody is to blame"
    assert find_culprit(members_of(requests), events, records, now_s=decision_time(events, records)) is None


# Events of ranks, validated before the head reads them.


HUGE = int("9" * 400)


@pytest.mark.parametrize(
    "data",
    [
        {},
        *({"event": "phase", "phase": phase, "progress": 1} for phase in (*rank_events.ORDER, *rank_events.PS_ORDER)),
        {"event": "phase", "phase": "listening", "details": {"port": 29500}},
        {"event": "beat", "beat": 3, "progress": 9, "waiting_for": [0, 1], "inside": True, "since_s": 0.25},
        {"event": "beat", "since_s": 0},
        {"event": "dial", "rank": 3, "to": 0, "result": "open", "seconds": 0.02, "server": 0, "address": "127.0.0.1"},
        {"event": "problem", "problem": "mismatch", "worker": "worker 1", "rank": -1},
        {"state": "started", "pid": 11613, "python": "3.11.7", "executable": "/usr/bin/python3"},
        {"stacks": "Thread 1\n" * 1000},
        {"event": "entering", "what": "sum", "something_new": {"a": [1, 2]}},
    ],
)
def test_events_of_ranks_and_agents_are_valid(data: dict[str, Any]) -> None:
    assert problem_with(data) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("progress", "collective", "beat") for value in (-1, HUGE, 1.5, True, "1", None)),
        *((field, value) for field in ("seconds", "since_s") for value in (-0.1, 1e9, float("nan"), float("inf"), "1")),
        *(("rank", value) for value in (-2, 1 << 40, HUGE, "0", [0], None)),
        *(("waiting_for", value) for value in ("0", [-2], [HUGE], ["0"], [[0]], [0] * 70_000, {"0": 1})),
        *((field, value) for field in ("event", "what", "endpoint") for value in (1, None, ["x"], "x" * 5_000)),
        *(("phase", value) for value in (1, None, "x", "Started", "x" * 5_000, "\x1b[2J")),
        *((field, value) for field in ("inside", "idle", "loading", "consequence") for value in (1, "true", None)),
        *(("details", value) for value in ([], "x", None, {str(number): 1 for number in range(1_001)})),
        *(("pid", value) for value in (-1, 1 << 40, "1")),
        *(("worker", value) for value in (-2, 1.5, ["x"], "x" * 5_000)),
        *(("error", value) for value in (1, "x" * (1 << 19))),
    ],
)
def test_a_value_out_of_range_is_rejected_with_its_field(field: str, value: Any) -> None:
    problem = problem_with({"event": "beat", field: value})
    assert problem.startswith(field)
    # The message is shown and stored, so it contains nothing that the rank sent.
    assert len(problem) < 400 and "xxxx" not in problem and "9999" not in problem and "\x1b" not in problem


def test_only_the_head_decides_and_only_a_server_replaces() -> None:
    assert "only the head" in problem_with({"event": "decided", "because": "rank 0"}, role="server")
    assert problem_with({"event": "replaced", "worker": 0, "spare": 2}, role="server") == ""
    for role in ("", "worker"):
        assert "only a server" in problem_with({"event": "replaced", "worker": 0, "spare": 2}, role=role)


def test_every_phase_of_a_rank_is_known() -> None:
    """The constants are what the reference trainer sends; a new one must be added to an order."""
    said = {value for name, value in vars(rank_events).items() if name.isupper() and isinstance(value, str)}
    phases = {value for value in said if value in rank_events.ACTIVITIES or value in rank_events.PS_ORDER}
    assert phases >= {"started", "group", "done"}
    assert [phase for phase in sorted(phases) if problem_with({"phase": phase})] == []


def test_the_model_accepts_json_from_the_wire() -> None:
    data = json.loads('{"event": "left", "what": "sum", "phase": "exact", "progress": 3, "seconds": 1e-3}')
    assert problem_with(data) == ""
