"""Made-up events of the members of a smoke run, for tests of the culprit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit, find_culprit
from preflight.analysis.rank_state import members_of
from preflight.model.recording import EventRecord, FactRecord, Unavailable
from preflight.model.requests import Request

__all__ = ["Story"]


class Story:
    """The events of the members of a run, in order. Number r runs on node r."""

    def __init__(self, world_size: int, *, servers: int = 0, spares: int = 0) -> None:
        """A collective of this many ranks; or, with `servers`, a group whose first members are servers.

        The last `spares` members are backup workers.
        """
        self.servers = servers
        self.workers = world_size - servers - spares
        self.requests = [Request("m:f", f"node{r}", {"rank": r, **self._part(r)}, group="g") for r in range(world_size)]
        self.events: list[EventRecord] = []
        self.records: list[FactRecord] = []

    def say(self, rank: int, at_s: float, event: str, **data: Any) -> None:
        self._add(rank, at_s, "child", {"event": event, **data})

    def agent(self, rank: int, at_s: float, **data: Any) -> None:
        self._add(rank, at_s, "agent", data)

    def phase(self, rank: int, at_s: float, name: str) -> None:
        self.say(rank, at_s, rank_events.PHASE, phase=name)

    def collective(self, rank: int, at_s: float, number: int, *, took: float | None = None) -> None:
        """Enter a collective, and leave it `took` seconds later."""
        self.say(rank, at_s, rank_events.ENTERING, what=f"sum {number}", waiting_for=[], collective=number)
        if took is not None:
            self.say(rank, at_s + took, rank_events.LEFT, what=f"sum {number}", collective=number, seconds=took)

    def beats(self, rank: int, start_s: float, end_s: float, *, starved: float = 0.0) -> None:
        """Send heartbeats; `starved` is the share of the time in which the rank gets no processor."""
        at_s = start_s
        while at_s <= end_s:
            self.say(rank, at_s, rank_events.BEAT, progress=0, starved_s=starved * (at_s - start_s))
            at_s += 0.5

    def training(self, *, until_s: float, quiet: tuple[int, ...] = ()) -> None:
        """All are past the first sum at 5 s; all except the quiet ones send heartbeats until `until_s`."""
        for rank in range(len(self.requests)):
            self.phase(rank, 0.2, rank_events.STARTED)
            self.phase(rank, 4.0, rank_events.GROUP)
            self.collective(rank, 4.5, 1, took=0.1)
            self.beats(rank, 0.5, 5.0 if rank in quiet else until_s)

    def ends(
        self,
        rank: int,
        at_s: float,
        kind: str,
        reason: str = "why",
        code: int | None = None,
        detail: str = "",
    ) -> None:
        why = Unavailable(kind, reason, detail, code)
        self.records.append(FactRecord(self.requests[rank], None, why, 0.0, at_s))

    def finishes(self, rank: int, at_s: float) -> None:
        self.records.append(FactRecord(self.requests[rank], {}, None, 0.0, at_s))

    def blame(self, now_s: float) -> Culprit | None:
        return find_culprit(members_of(self.requests), self.events, self.records, now_s=now_s)

    def hello(self, number: int, at_s: float = 0.2, **told: Any) -> None:
        """Add the hello of this member; values that are not given are correct."""
        if not self.servers:
            right: dict[str, Any] = {"rank": number, "world_size": len(self.requests), "master": "node0:29500"}
        else:
            endpoints = [f"10.0.0.{r}:6170" for r in range(self.servers)]
            right = {
                **self._part(number),
                "servers": self.servers,
                "workers": self.workers,
                "server_endpoints": endpoints,
                "endpoint": endpoints[number] if number < self.servers else "",
                "parameters": "abc",
                "tensors": ["a [2] float32 server 0", "b [3] float32 server 1"],
            }
        details = {**right, "pid": 100 + number, "host": f"host{number}", **told}
        self.say(number, at_s, rank_events.PHASE, phase=rank_events.STARTED, details=details)

    def hellos(self, *, without: Iterable[int] = ()) -> None:
        """All other members start correctly."""
        for number in range(len(self.requests)):
            if number not in without:
                self.hello(number)

    def _part(self, number: int) -> dict[str, Any]:
        if not self.servers:
            return {}
        if number < self.servers:
            return {"role": "server", "index": number}
        index = number - self.servers
        return {"role": "worker", **({"index": 0, "spare": True} if index >= self.workers else {"index": index})}

    def _add(self, rank: int, at_s: float, origin: str, data: dict[str, Any]) -> None:
        request = self.requests[rank]
        self.events.append(EventRecord(request.key, request.node, at_s, origin, data))
