"""Runs that were cut short although nothing shows that a member is at fault: too little time, or a head that paused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from preflight.agent import rank_events
from preflight.agent.wire import LEASE_S
from preflight.analysis.culprit_model import UNFINISHED, Culprit, Views, describe_activity, fold, names_text, nodes_text
from preflight.analysis.rank_state import RankView
from preflight.model.recording import EventRecord, FactRecord

#: Agents that a pause of the head ended are noticed within this time after it.
_NOTICED_S = 5.0
#: The deadline that is proposed: twice the time that was not enough, rounded up.
_MIN_DEADLINE_S, _ROUNDED_TO_S = 60, 30


def timed_out(view: RankView) -> bool:
    """Whether it ended because its own deadline or a library's timeout passed, which shows no fault by itself."""
    if view.failure is None:
        return False
    text = f"{view.failure.reason} {view.failure.detail}".lower()
    return view.failure.kind == "timeout" or "timed out" in text or "timeout" in text


def unfinished(views: Views, ended_s: float) -> Culprit:
    """The run ended at `ended_s` before all members finished, and none is named; says what each of them was doing."""
    by_activity: dict[str, list[RankView]] = {}
    for view in sorted(views.values(), key=lambda v: v.rank):
        if not view.done:
            by_activity.setdefault(_describe(view), []).append(view)
    parts = [f"{names_text(group)} on {nodes_text(group)} ({did})" for did, group in by_activity.items()]
    began_s = min((view.began_at for view in views.values()), default=0.0)
    seconds = ended_s - began_s
    longer = max(_MIN_DEADLINE_S, math.ceil(2 * seconds / _ROUNDED_TO_S) * _ROUNDED_TO_S)
    text = (
        f"not finished after {seconds:.0f} s: still running were {fold(parts)}; nothing shows that one of them is at"
        f" fault, so allow more time with --smoke-deadline {longer}"
    )
    return Culprit(None, "", UNFINISHED, "", "", began_s, text)


def _describe(view: RankView) -> str:
    parts = [describe_activity(view)]
    if view.state == "D":
        parts.append("in state D: disk or driver")
    if view.unable_s >= 1:
        parts.append(f"unable to run for {view.unable_s:.0f} s of it")
    return ", ".join(parts)


def find_lost_to_pause(pauses: HeadPauses, records: Sequence[FactRecord]) -> Culprit | None:
    """The agents that ended because the head paused for longer than their lease, if any did."""
    for start_s, end_s in pauses.pauses:
        lost = [
            record.request.node
            for record in records
            if record.unavailable is not None
            and record.unavailable.kind == "unreachable"
            and start_s <= record.finished_s <= end_s + _NOTICED_S
        ]
        if end_s - start_s >= LEASE_S and lost:
            text = (
                f"the head did not run for {end_s - start_s:.0f} s (suspended, or starved of CPU time), and the "
                f"agents on {fold(list(dict.fromkeys(lost)))} ended as they do without a head; run it again"
            )
            return Culprit(None, "", UNFINISHED, "", "", start_s, text)
    return None


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
