"""What a run says while it goes on, one JSON object a line: the shapes of those lines, and their schema.

Additive within a schema version; the committed JSON Schema is generated from these classes. Lines come in the order of
the run: `run-began` first, `verdict` last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import field
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Finding, Outcome, Severity, Status, VerdictKind
from preflight.progress import Step
from preflight.redact import scrub
from preflight.report import Report

SCHEMA_VERSION: Literal[1] = 1
#: How far a stage is is said at most so often: of thousands of nodes each tells of every fact.
_SAID_EVERY_S = 0.2
#: So many of those waited for are named.
_MOST_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan:
    """The first line: which verb, of which version of preflight."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["run-began"] = "run-began"
    time: str
    elapsed_s: float
    verb: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent:
    """How a stage goes.

    Args:
        state: `planned` for each stage before the first begins; `began`; `going-on`, a few times a second at most;
            `ended`; `skipped`, with the reason.
        done, total: so many pieces of it are there, of so many.
        waiting, waiting_for: how many nodes are awaited, and the first of them.
        deadline_s: it may still take so long at the most, where it has a deadline.
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
    """A node answered, or cannot be reached: `problem` says why not."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["node"] = "node"
    time: str
    elapsed_s: float
    node: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEvent:
    """Something to know at once, in words."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["note"] = "note"
    time: str
    elapsed_s: float
    stage: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent:
    """A member of the smoke run has a phase behind it; without a phase it has begun, without a node it is gone."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["phase"] = "phase"
    time: str
    elapsed_s: float
    party: str
    node: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeEvent:
    """Something could not be told. What passed, or does not apply, stands in the report alone."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["outcome"] = "outcome"
    time: str
    elapsed_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvent:
    """A finding, as in the report; one that is suppressed says by what."""

    schema_version: Literal[1] = SCHEMA_VERSION
    type: Literal["finding"] = "finding"
    time: str
    elapsed_s: float
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEvent:
    """The last line, however the run ended.

    Args:
        exit_code: of the command.
        errors, warnings, infos: findings that are not suppressed.
        could_not_be_told: what had to be told and could not.
        reason: why there is no report, where there is none.
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
    could_not_be_told: int = 0
    reason: str = ""


Event: TypeAlias = (
    RunBegan | StageEvent | NodeEvent | NoteEvent | PhaseEvent | OutcomeEvent | FindingEvent | VerdictEvent
)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line."""
    from typing import Annotated

    from pydantic import Field, TypeAdapter

    from preflight.document import schema_of

    return schema_of(TypeAdapter(Annotated[Event, Field(discriminator="type")]), "preflight event")


@dataclass(slots=True)
class Narrator:
    """Turns what a run does into events. The clocks are given, so that a test knows them."""

    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    _began: float | None = None
    _state: dict[str, str] = field(default_factory=dict)
    _said: dict[str, float] = field(default_factory=dict)
    _phases: dict[str, tuple[str, str]] = field(default_factory=dict)
    _awaited: frozenset[str] = frozenset()

    def began(self, verb: str, version: str) -> Event:
        """The first event."""
        return RunBegan(**self._now(), verb=verb, version=version)

    def of_step(self, step: Step) -> Iterator[Event]:
        """What there is to say of one change; often nothing."""
        for name in step.planned:
            self._state.setdefault(name, "planned")
            yield StageEvent(**self._now(), stage=name, state="planned")
        if self._state.get(step.stage) in (None, "planned") and not step.planned:
            self._state[step.stage] = "skipped" if step.skipped else "began"
            if not step.skipped:
                yield self._stage(step, "began")
        yield from self._news(step)
        if step.skipped:
            yield StageEvent(**self._now(), stage=step.stage, state="skipped", reason=scrub(step.skipped))
        elif step.ended:
            yield StageEvent(**self._now(), stage=step.stage, state="ended")

    def _news(self, step: Step) -> Iterator[Event]:
        if step.stage == "open":
            yield from self._nodes(step)
        elif step.note:
            yield NoteEvent(**self._now(), stage=step.stage, text=scrub(step.note))
        if step.party:
            # Ranks say at every beat where they are; only what is new is an event.
            if self._phases.get(step.party) != (step.node, step.phase):
                self._phases[step.party] = (step.node, step.phase)
                yield PhaseEvent(**self._now(), party=step.party, node=step.node, phase=step.phase)
        elif step.total and not step.ended and self.clock() - self._said.get(step.stage, -1e9) >= _SAID_EVERY_S:
            yield self._stage(step, "going-on")

    def _nodes(self, step: Step) -> Iterator[Event]:
        """Whoever is not waited for any more has answered, or is what the note is about."""
        awaited = frozenset(step.waiting_for)
        for name in sorted(self._awaited - awaited):
            about = step.note.startswith(f"{name}:")
            yield NodeEvent(
                **self._now(), node=name, problem=scrub(step.note[len(name) + 1 :].strip()) if about else ""
            )
        self._awaited = awaited

    def _stage(self, step: Step, state: Literal["began", "going-on"]) -> Event:
        self._said[step.stage] = self.clock()
        return StageEvent(
            **self._now(),
            stage=step.stage,
            state=state,
            done=step.done,
            total=step.total,
            waiting=len(step.waiting_for),
            waiting_for=step.waiting_for[:_MOST_NAMED],
            deadline_s=None if step.deadline_s is None else round(max(0.0, step.deadline_s), 3),
        )

    def of_report(self, report: Report) -> Iterator[Event]:
        """What could not be told, then the findings."""
        for outcome in report.coverage.not_told:
            if outcome.status is Status.UNKNOWN:
                yield OutcomeEvent(**self._now(), outcome=outcome)
        for finding in (*report.findings, *report.suppressed):
            yield FindingEvent(**self._now(), finding=finding)

    def verdict(self, report: Report) -> Event:
        """The last event of a run that has a report."""
        counts = {severity: sum(f.severity is severity for f in report.findings) for severity in Severity}
        return VerdictEvent(
            **self._now(),
            verdict=report.verdict,
            exit_code=int(report.exit_code),
            errors=counts[Severity.ERROR],
            warnings=counts[Severity.WARNING],
            infos=counts[Severity.INFO],
            suppressed=len(report.suppressed),
            could_not_be_told=sum(outcome.required for outcome in report.coverage.not_told),
        )

    def without_report(self, exit_code: int, reason: str) -> Event:
        """The last event of a run that has none."""
        return VerdictEvent(**self._now(), verdict=VerdictKind.INCOMPLETE, exit_code=exit_code, reason=scrub(reason))

    def _now(self) -> dict[str, Any]:
        now = self.clock()
        if self._began is None:
            self._began = now
        when = datetime.fromtimestamp(self.wall(), timezone.utc).isoformat(timespec="milliseconds")
        return {"time": when, "elapsed_s": round(now - self._began, 3)}
