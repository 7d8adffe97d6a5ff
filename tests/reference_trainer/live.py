"""Groups of real processes under real agents on this machine, with something wrong with one of them.

Every process has an agent of its own, as on a node of its own, but no network between. What the supervisor came to is
judged once more from what it recorded.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from preflight.culprit import LIMITS, Culprit, Limits, culprit, decision_time
from preflight.executors.local import LocalExecutor
from preflight.fleet import open_fleet
from preflight.gang import members_of, run_gang
from preflight.node.wire import Context
from preflight.recording import EventRecord, FactRecord, Facts, Node
from preflight.request import Request
from reference_trainer import phases

__all__ = [
    "DEAD_WITHIN_S",
    "LAUNCHED",
    "STOPPED_WITHIN_S",
    "STUCK_WITHIN_S",
    "TOLD_WITHIN_S",
    "Strike",
    "Trial",
    "in_time",
    "live",
]

#: How soon the supervisor must know: after the last process said who it is, after a death, after a stop, after the last
#: sign of life of whoever is stuck.
TOLD_WITHIN_S, DEAD_WITHIN_S, STOPPED_WITHIN_S, STUCK_WITHIN_S = 2.0, 1.0, 5.0, 10.0
#: With more than so much to do for each processor everything takes longer, the supervisor itself included.
_BUSY = 3.0
_WHILE_BUSY_S = {TOLD_WITHIN_S: 3.0, DEAD_WITHIN_S: 3.0, STOPPED_WITHIN_S: 6.0, STUCK_WITHIN_S: 12.0}
#: When a process is there and has said nothing yet.
LAUNCHED = "launched"


@dataclass(frozen=True)
class Strike:
    """A signal for one process, by its node, once it is that far: `LAUNCHED` or the name of a phase."""

    node: str
    number: signal.Signals
    when: str


@dataclass
class Trial:
    """What a group came to. `struck_s` is when the strike came, 0 where none did."""

    records: list[FactRecord]
    events: list[EventRecord]
    struck_s: float = 0.0
    blamed: Culprit | None = None
    decided_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.decided_s = decision_time(self.events, self.records)
        members = members_of([record.request for record in self.records])
        began_s = min(record.started_s for record in self.records)
        self.blamed = culprit(members, self.events, self.records, now_s=self.decided_s, began_s=began_s)

    @property
    def facts(self) -> Facts:
        """For checks."""
        return Facts(tuple(self.records), tuple(self.events))

    @property
    def failures(self) -> list[str]:
        """What each process that did not end well is recorded with."""
        return [f"{r.request.node}: {r.unavailable.reason}" for r in self.records if r.unavailable is not None]

    @property
    def spoke_s(self) -> float:
        """When the last process said who it is."""
        said = [event.at_s for event in self.events if event.data.get("phase") == phases.STARTED]
        return max(said)

    @property
    def imported(self) -> bool:
        """Whether anybody had imported torch."""
        return any(event.data.get("phase") == phases.IMPORTED for event in self.events)

    def named(self) -> Culprit:
        """Who was blamed."""
        assert self.blamed is not None, self.failures
        return self.blamed


def in_time(took_s: float, within_s: float) -> bool:
    """Whether it took no longer than it may, which is a little more while the machine is busy."""
    busy = os.getloadavg()[0] > _BUSY * len(os.sched_getaffinity(0))
    return took_s < (_WHILE_BUSY_S[within_s] if busy else within_s)


def live(
    requests: Sequence[Request],
    *,
    strike: Strike | None = None,
    limits: Limits = LIMITS,
    deadline_s: float = 60.0,
    change: Callable[[Request], dict[str, Any]] = lambda request: {},
) -> Trial:
    """Run these requests as one group, each on an agent of its own.

    Args:
        change: parameters of a request that are to be other than planned.
    """
    struck = [0.0]
    pids: dict[str, int] = {}

    def on_event(event: EventRecord) -> None:
        if event.origin == "agent" and event.data.get("state") == "started":
            pids[event.node] = int(event.data["pid"])
            reached = LAUNCHED
        else:
            reached = str(event.data.get("phase", "")) if event.data.get("event") == phases.PHASE else ""
        if strike is not None and event.node == strike.node and reached == strike.when and not struck[0]:
            struck[0] = event.at_s
            os.kill(pids[event.node], strike.number)

    async def main() -> Trial:
        began = anyio.current_time()
        apart = [
            replace(request, node=f"{request.node}-{number}", params={**request.params, **change(request)})
            for number, request in enumerate(requests)
        ]
        nodes = [Node(request.node, number, "localhost") for number, request in enumerate(apart)]
        async with open_fleet(LocalExecutor(), nodes) as fleet:
            records, events = await run_gang(
                fleet.sessions,
                apart,
                context=Context(interpreter=sys.executable, environment={"OMP_NUM_THREADS": "1"}),
                deadline_s=deadline_s,
                now=lambda: anyio.current_time() - began,
                on_event=on_event,
                limits=limits,
            )
        return Trial(records, events, struck[0])

    return anyio.run(main)
