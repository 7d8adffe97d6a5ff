"""Sending requests to nodes: how many at once, for how long, and records of missing answers."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from preflight.agent.wire import AgentRequest, Context, Done, Failed
from preflight.model.progress import Step
from preflight.model.requests import Request
from preflight.runner.observer import RUN_KEY, Observer
from preflight.runner.preparation import ContextChoice
from tests.waiting import scaled


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
    names = [f"preflight_checks.probes.{name}" for name in ("names:resolve", "machine:machine", "activity:activity")]
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
