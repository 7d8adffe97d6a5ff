"""Groups of real processes under real agents on this machine, one of which is faulty.

Every process has its own agent, as on its own node, but without a network between. The supervisor's result is judged
again from its recording.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from preflight.agent import rank_events
from preflight.agent.wire import Context
from preflight.analysis.culprit import LIMITS, Culprit, Limits, decision_time, find_culprit
from preflight.analysis.rank_state import members_of
from preflight.executors.pipe import LocalExecutor
from preflight.model.recording import EventRecord, FactRecord, Facts, Node
from preflight.model.requests import Request
from preflight.runner.session import open_fleet
from preflight.runner.supervisor import run_rank_group
from tests.waiting import scaled
from tests.warm_python import warm_python

__all__ = [
    "LAUNCHED",
    "SignalTrigger",
    "Trial",
    "live",
]

#: The process exists and has reported nothing yet.
LAUNCHED = "launched"


@dataclass(frozen=True)
class SignalTrigger:
    """A signal for the process on one node, sent when it reaches `when`: `LAUNCHED` or the name of a phase."""

    node: str
    number: signal.Signals
    when: str


@dataclass
class Trial:
    """The result of a group. `signal_sent_s` is the time of the signal; 0 without one."""

    records: list[FactRecord]
    events: list[EventRecord]
    signal_sent_s: float = 0.0
    culprit: Culprit | None = None
    decided_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.decided_s = decision_time(self.events, self.records)
        members = members_of([record.request for record in self.records])
        began_s = min(record.started_s for record in self.records)
        self.culprit = find_culprit(members, self.events, self.records, now_s=self.decided_s, began_s=began_s)

    @property
    def facts(self) -> Facts:
        """For checks."""
        return Facts(tuple(self.records), tuple(self.events))

    @property
    def failures(self) -> list[str]:
        """The failure of each process that did not succeed."""
        return [f"{r.request.node}: {r.unavailable.reason}" for r in self.records if r.unavailable is not None]

    @property
    def cut_off(self) -> bool:
        """Whether the deadline ended a process."""
        return any(r.unavailable is not None and r.unavailable.kind == "timeout" for r in self.records)

    @property
    def imported(self) -> bool:
        """Whether any process had imported torch."""
        return any(event.data.get("phase") == rank_events.IMPORTED for event in self.events)

    def require_culprit(self) -> Culprit:
        """The culprit's name."""
        assert self.culprit is not None, self.failures
        return self.culprit


def live(
    requests: Sequence[Request],
    *,
    trigger: SignalTrigger | None = None,
    limits: Limits = LIMITS,
    deadline_s: float = 0.0,
    change: Callable[[Request], dict[str, Any]] = lambda request: {},
    fresh: bool = False,
) -> Trial:
    """Run these requests as one group, each on its own agent.

    Args:
        deadline_s: 0 for one that suffices on this machine.
        change: parameters of a request that differ from the plan.
        fresh: start a new interpreter for every process, which costs 2 s of CPU time each, instead of forking one
        with torch imported.
    """
    python = sys.executable if fresh else warm_python()
    struck = [0.0]
    pids: dict[str, int] = {}

    def on_event(event: EventRecord) -> None:
        if event.origin == "agent" and event.data.get("state") == "started":
            pids[event.node] = int(event.data["pid"])
            reached = LAUNCHED
        else:
            reached = str(event.data.get("phase", "")) if event.data.get("event") == rank_events.PHASE else ""
        if trigger is not None and event.node == trigger.node and reached == trigger.when and not struck[0]:
            struck[0] = event.at_s
            os.kill(pids[event.node], trigger.number)

    async def main() -> Trial:
        began = anyio.current_time()
        apart = [
            replace(request, node=f"{request.node}-{number}", params={**request.params, **change(request)})
            for number, request in enumerate(requests)
        ]
        nodes = [Node(request.node, number, "localhost") for number, request in enumerate(apart)]
        async with open_fleet(LocalExecutor(interpreter=python), nodes) as fleet:
            records, events = await run_rank_group(
                fleet.sessions,
                apart,
                context=Context(interpreter=python, environment={"OMP_NUM_THREADS": "1"}),
                deadline_s=deadline_s or scaled(60.0),
                clock=lambda: anyio.current_time() - began,
                on_event=on_event,
                limits=limits,
            )
        return Trial(records, events, struck[0])

    return anyio.run(main)
