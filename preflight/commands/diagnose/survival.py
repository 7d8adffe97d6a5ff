"""Decides which errors a run survived, and whether the run completed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from preflight.commands.diagnose.diagnosis import Certainty, Event, Kind, Line
from preflight.commands.diagnose.scan import ScanResult
from preflight.commands.diagnose.timestamps import seconds_between

#: A line that also occurs in successful runs counts only if at most this many ordinary lines follow it.
_MAX_AFTER_RETRY = 25
#: An exception followed by this many ordinary lines was caught.
_MAX_AFTER_EXCEPTION = 200
#: Steps that are logged this much later than an error are no late output of a buffer.
_SURELY_LATER_S = 1.0


@dataclass(frozen=True, slots=True)
class Survival:
    """The errors that count, those that the run survived, and the line that says that it completed."""

    lasting: tuple[Event, ...]
    survived: tuple[Event, ...]
    completion: Line | None


def judge_survival(scans: Sequence[ScanResult], events: Sequence[Sequence[Event]]) -> Survival:
    """Judge the events of each file; both arguments are in the same order.

    An error is survived if steps of training follow it and then a line that says that the run completed; without
    steps between, a batch script may have printed that line whatever happened. If only steps of training follow, it is
    survived unless the run failed later and nothing else is a cause: output may be buffered, so that steps are
    written after an error that came later.
    """
    lasting: list[Event] = []
    survived: list[Event] = []
    overtaken: list[tuple[Event, bool]] = []
    for scanned, found in zip(scans, events, strict=True):
        for event in found:
            if _was_harmless(event) or _was_before_the_end(event, scanned):
                survived.append(event)
            elif scanned.progress is not None and event.line.line < scanned.progress[0]:
                later_s = seconds_between(event.moment, scanned.progress[1])
                overtaken.append((event, later_s is not None and later_s > _SURELY_LATER_S))
            else:
                lasting.append(event)
    has_cause = any(event.symptom.kind is Kind.CAUSE for event in lasting)
    for event, surely in overtaken:
        if not lasting or has_cause or surely:
            survived.append(event)
        else:
            lasting.append(replace(event, doubtful=True))
    completions = [scanned.completion for scanned in scans if scanned.completion is not None]
    return Survival(tuple(lasting), tuple(survived), completions[-1] if completions and not lasting else None)


def _was_before_the_end(event: Event, scanned: ScanResult) -> bool:
    end = scanned.completion
    return end is not None and event.line.line < min(end.line, scanned.last_progress)


def _was_harmless(event: Event) -> bool:
    """Return whether later lines show that it was not a failure."""
    if event.symptom.passes:
        return event.ordinary_after > _MAX_AFTER_RETRY
    caught = event.symptom.kind is Kind.CAUSE and event.symptom.certainty is Certainty.OPEN and event.frame
    return bool(caught) and event.ordinary_after > _MAX_AFTER_EXCEPTION
