"""Events of a run, one JSON object per line: their types and their schema.

Changes within a schema version only add fields. The committed JSON Schema is generated from these classes. Events
are in the order of the run: `run-began` first, `verdict` last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from preflight._util.redaction import scrub
from preflight.engine.report import Report
from preflight.model.findings import Finding, Outcome, Severity, Status, VerdictKind
from preflight.model.progress import Step

SCHEMA_VERSION: Literal[1] = 1
#: Shortest time between two progress events of a stage: with thousands of nodes every fact would cause one.
_REPEAT_AFTER_S = 0.2
#: How many of the awaited nodes are named.
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan:
    """The first event: the command, and the version of preflight."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["run-began"] = "run-began"
    time: str
    elapsed_s: float
    verb: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent:
    """The progress of a stage.

    Args:
        state: `planned` for each stage before the first begins; `began`; `going-on`, at most a few times per second;
            `ended`; `skipped`, with the reason.
        done, total: number of finished pieces, and of all pieces.
        waiting, waiting_for: number of awaited nodes, and the first of them.
        deadline_s: the time that the stage may still take, if it has a deadline.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["stage"] = "stage"
    time: str
    elapsed_s: float
    stage: str
    state: Literal["planned", "began", "going-on", "ended", "skipped"]
    done: int = 0
    total: int = 0
    waiting: int = 0
    waiting_for: tuple[str, ...] = ()
    deadline_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """A node answered or cannot be reached; `problem` gives the reason."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["node"] = "node"
    time: str
    elapsed_s: float
    node: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEvent:
    """A message that is worth knowing at once."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["note"] = "note"
    time: str
    elapsed_s: float
    stage: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent:
    """A process of the smoke run finished a phase; without a phase it has started, without a node it is gone."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["phase"] = "phase"
    time: str
    elapsed_s: float
    party: str
    node: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeEvent:
    """A check could not be decided. Checks that passed or do not apply are in the report only."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["outcome"] = "outcome"
    time: str
    elapsed_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvent:
    """A finding, as in the report; a suppressed one names what suppresses it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["finding"] = "finding"
    time: str
    elapsed_s: float
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEvent:
    """The last event, however the run ended.

    Args:
        exit_code: exit code of the command.
        errors, warnings, infos: number of findings that are not suppressed.
        undecided: number of required checks that could not be decided.
        reason: why there is no report, if there is none.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["verdict"] = "verdict"
    time: str
    elapsed_s: float
    verdict: VerdictKind
    exit_code: int
    errors: int = 0
    warnings: int = 0
    infos: int = 0
    suppressed: int = 0
    undecided: int = 0
    reason: str = ""


Event: TypeAlias = (
    RunBegan | StageEvent | NodeEvent | NoteEvent | PhaseEvent | OutcomeEvent | FindingEvent | VerdictEvent
)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one event."""
    from typing import Annotated

    from pydantic import Field, TypeAdapter

    from preflight._util.json_output import schema_of

    return schema_of(TypeAdapter(Annotated[Event, Field(discriminator="type")]), "preflight event")


@dataclass(slots=True)
class EventBuilder:
    """Turns the steps of a run into events. Takes its clocks as arguments, for tests."""

    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    _began: float | None = None
    _state: dict[str, str] = field(default_factory=dict)
    _sent: dict[str, float] = field(default_factory=dict)
    _phases: dict[str, tuple[str, str]] = field(default_factory=dict)
    _awaited: frozenset[str] = frozenset()

    def began(self, verb: str, version: str) -> Event:
        """Return the first event."""
        return RunBegan(**self._now(), verb=verb, version=version)

    def of_step(self, step: Step) -> Iterator[Event]:
        """Return the events of one step; often none."""
        for name in step.planned:
            self._state.setdefault(name, "planned")
            yield StageEvent(**self._now(), stage=name, state="planned")
        if self._state.get(step.stage) in (None, "planned") and not step.planned:
            self._state[step.stage] = "skipped" if step.skipped else "began"
            if not step.skipped:
                yield self._stage(step, "began")
        yield from self._phase_events(step)
        if step.skipped:
            yield StageEvent(**self._now(), stage=step.stage, state="skipped", reason=scrub(step.skipped))
        elif step.ended:
            yield StageEvent(**self._now(), stage=step.stage, state="ended")

    def _phase_events(self, step: Step) -> Iterator[Event]:
        if step.stage == "open":
            yield from self._nodes(step)
        elif step.note:
            yield NoteEvent(**self._now(), stage=step.stage, text=scrub(step.note))
        if step.party:
            # Ranks report their phase at every heartbeat; only a new phase is an event.
            if self._phases.get(step.party) != (step.node, step.phase):
                self._phases[step.party] = (step.node, step.phase)
                yield PhaseEvent(**self._now(), party=step.party, node=step.node, phase=step.phase)
        elif step.total and not step.ended and self.clock() - self._sent.get(step.stage, -1e9) >= _REPEAT_AFTER_S:
            yield self._stage(step, "going-on")

    def _nodes(self, step: Step) -> Iterator[Event]:
        """Return events for nodes that are no longer awaited: they answered, or the note gives their problem."""
        awaited = frozenset(step.waiting_for)
        for name in sorted(self._awaited - awaited):
            about = step.note.startswith(f"{name}:")
            yield NodeEvent(
                **self._now(), node=name, problem=scrub(step.note[len(name) + 1 :].strip()) if about else ""
            )
        self._awaited = awaited

    def _stage(self, step: Step, state: Literal["began", "going-on"]) -> Event:
        self._sent[step.stage] = self.clock()
        return StageEvent(
            **self._now(),
            stage=step.stage,
            state=state,
            done=step.done,
            total=step.total,
            waiting=len(step.waiting_for),
            waiting_for=step.waiting_for[:_MAX_NAMED],
            deadline_s=None if step.deadline_s is None else round(max(0.0, step.deadline_s), 3),
        )

    def of_report(self, report: Report) -> Iterator[Event]:
        """Return an event for each check that could not be decided, then one for each finding."""
        for outcome in report.coverage.unknown_outcomes:
            if outcome.status is Status.UNKNOWN:
                yield OutcomeEvent(**self._now(), outcome=outcome)
        for finding in (*report.findings, *report.suppressed):
            yield FindingEvent(**self._now(), finding=finding)

    def verdict(self, report: Report) -> Event:
        """Return the last event of a run that has a report."""
        counts = {severity: sum(f.severity is severity for f in report.findings) for severity in Severity}
        return VerdictEvent(
            **self._now(),
            verdict=report.verdict,
            exit_code=int(report.exit_code),
            errors=counts[Severity.ERROR],
            warnings=counts[Severity.WARNING],
            infos=counts[Severity.INFO],
            suppressed=len(report.suppressed),
            undecided=sum(outcome.required for outcome in report.coverage.unknown_outcomes),
        )

    def without_report(self, exit_code: int, reason: str) -> Event:
        """Return the last event of a run without a report."""
        return VerdictEvent(**self._now(), verdict=VerdictKind.INCOMPLETE, exit_code=exit_code, reason=scrub(reason))

    def _now(self) -> dict[str, Any]:
        now = self.clock()
        if self._began is None:
            self._began = now
        when = datetime.fromtimestamp(self.wall(), timezone.utc).isoformat(timespec="milliseconds")
        return {"time": when, "elapsed_s": round(now - self._began, 3)}
