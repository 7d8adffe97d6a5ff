"""Real ranks under real agents on this machine: each way to go wrong is named, with its node, in time."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import anyio
import pytest

from preflight.culprit import Culprit, culprit, decision_time
from preflight.executors.local import LocalExecutor
from preflight.fleet import open_fleet
from preflight.gang import members_of, run_gang
from preflight.node.wire import Context
from preflight.recording import EventRecord, FactRecord, Node
from preflight.request import Request, probe_name
from reference_trainer import phases
from reference_trainer.collective import rank as run_rank

pytestmark = [pytest.mark.smoke, pytest.mark.slow]
VICTIM = 1


class Outcome:
    """What a run of two ranks came to, and when the fault was made."""

    def __init__(self, records: list[FactRecord], events: list[EventRecord], fault_s: float) -> None:
        self.records, self.events, self.fault_s = records, events, fault_s
        self.decided_s = decision_time(events, records)
        members = members_of([record.request for record in records])
        self.blamed: Culprit | None = culprit(members, events, records, now_s=self.decided_s)


def run(port: int, *, steps: int = 10, strike: signal.Signals | None = None, **overrides: Any) -> Outcome:
    """Two ranks on two agents; `strike` is sent to the victim once its exact phase is over."""
    pytest.importorskip("torch")
    requests = [
        Request(
            probe_name(run_rank),
            f"node{rank}",
            {
                "rank": rank,
                "world_size": 2,
                "local_rank": 0,
                "local_world_size": 1,
                "master_addr": "127.0.0.1",
                "master_port": port,
                "backend": "gloo",
                "interface": "lo",
                "steps": steps,
                **(overrides if rank == VICTIM else {}),
            },
            context=True,
            group="g",
        )
        for rank in range(2)
    ]
    struck = [0.0]
    pids: dict[str, int] = {}

    def on_event(event: EventRecord) -> None:
        details = event.data.get("details")
        if isinstance(details, dict) and "pid" in details:
            pids[event.node] = details["pid"]
        over = event.data.get("event") == phases.PHASE and event.data.get("phase") == phases.EXACT
        if strike is not None and over and event.node == f"node{VICTIM}":
            struck[0] = event.at_s
            os.kill(pids[event.node], strike)

    async def main() -> Outcome:
        began = anyio.current_time()
        nodes = [Node(f"node{rank}", rank, "localhost") for rank in range(2)]
        async with open_fleet(LocalExecutor(), nodes) as fleet:
            records, events = await run_gang(
                fleet.sessions,
                requests,
                context=Context(interpreter=sys.executable, environment={"OMP_NUM_THREADS": "1"}),
                deadline_s=60,
                now=lambda: anyio.current_time() - began,
                on_event=on_event,
            )
        return Outcome(records, events, struck[0])

    return anyio.run(main)


def test_a_healthy_run_ends_with_a_report_from_every_rank(free_port: int) -> None:
    outcome = run(free_port)
    assert outcome.blamed is None
    assert [r.unavailable for r in outcome.records] == [None, None]
    assert [r.value["mismatches"] for r in outcome.records] == [[], []]


@pytest.mark.parametrize(
    ("strike", "kind", "within_s"), [(signal.SIGKILL, "dead", 2.0), (signal.SIGSTOP, "stopped", 5.0)]
)
def test_a_killed_and_a_stopped_rank_are_named(
    free_port: int, strike: signal.Signals, kind: str, within_s: float
) -> None:
    outcome = run(free_port, steps=5000, strike=strike)
    assert outcome.blamed is not None
    assert (outcome.blamed.rank, outcome.blamed.node, outcome.blamed.kind) == (VICTIM, "node1", kind)
    assert outcome.decided_s - outcome.fault_s < within_s


def test_a_stuck_rank_is_named_with_its_stack(free_port: int) -> None:
    outcome = run(free_port, drill={"stall_before": 4})
    assert outcome.blamed is not None
    assert (outcome.blamed.rank, outcome.blamed.kind) == (VICTIM, "stuck")
    assert "did not enter collective 4" in outcome.blamed.because
    assert outcome.decided_s - outcome.blamed.since_s < 10.0
    assert any("_counted" in e.data["stacks"] for e in outcome.events if "stacks" in e.data and e.node == "node1")
