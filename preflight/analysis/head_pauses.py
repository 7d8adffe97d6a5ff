"""The times at which the head itself did not run: nothing that happened or failed to happen then shows a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from preflight.agent import rank_events
from preflight.model.recording import EventRecord, FactRecord


@dataclass(frozen=True)
class HeadPauses:
    """Pauses of the head, each as its start and end in seconds since the run began, in order and apart."""

    pauses: tuple[tuple[float, float], ...] = ()

    def without(self, at_s: float) -> float:
        """The time on a clock that stood still during the pauses."""
        return at_s - sum(min(at_s, end_s) - start_s for start_s, end_s in self.pauses if start_s < at_s)

    def with_pauses(self, at_s: float) -> float:
        """The inverse of `without`; the end of a pause if the clock stood still at that time."""
        for start_s, end_s in self.pauses:
            if at_s >= start_s:
                at_s += end_s - start_s
        return at_s

    def events(self, events: Sequence[EventRecord]) -> list[EventRecord]:
        """The events, by the clock that stood still."""
        return [replace(event, at_s=self.without(event.at_s)) for event in events] if self.pauses else list(events)

    def records(self, records: Sequence[FactRecord]) -> list[FactRecord]:
        """The records, by the clock that stood still."""
        if not self.pauses:
            return list(records)
        return [replace(r, started_s=self.without(r.started_s), finished_s=self.without(r.finished_s)) for r in records]


def pauses_in(events: Sequence[EventRecord]) -> HeadPauses:
    """The pauses that the head reported."""
    found: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda event: event.at_s):
        seconds = event.data.get("seconds")
        if event.origin != "head" or event.data.get("event") != rank_events.HEAD_PAUSED:
            continue
        if isinstance(seconds, (int, float)) and 0 < seconds <= event.at_s:
            start_s = max(event.at_s - seconds, found[-1][1] if found else 0.0)
            found.append((start_s, event.at_s))
    return HeadPauses(tuple(found))
