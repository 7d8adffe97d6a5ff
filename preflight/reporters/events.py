"""Events of a run, one JSON object per line: their types, their schema, and the stream that they are written to.

Changes within a schema version only add fields. The committed JSON Schema is generated from these classes. Events
are in the order of the run: `run-began` first, `verdict` last.

A thread does the writing so that a slow reader cannot delay the run: agents on nodes exit if the head is silent for a
few seconds. If the reader closes the stream or the disk is full, the stream ends and the run continues.
"""

from __future__ import annotations

import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import click

from preflight import __version__
from preflight._util.json_output import to_bytes
from preflight._util.redaction import scrub, scrub_traceback
from preflight._util.usage_error import UsageError
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Finding, Outcome, Severity, Status, VerdictKind
from preflight.model.progress import Step
from preflight.reporters.output import is_stream, neutralize, refuse_outside_link

SCHEMA_VERSION: Literal[1] = 1
#: Shortest time between two progress events of a stage: with thousands of nodes every fact would cause one.
_REPEAT_AFTER_S = 0.2
#: Largest number of awaited nodes that an event names.
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    schema_version: Literal[1] = SCHEMA_VERSION
    type: str = ""
    time: str
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan(_Event):
    """The first event: the command, and the version of preflight."""

    type: Literal["run-began"] = "run-began"
    verb: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent(_Event):
    """The progress of a stage.

    Args:
        state: `planned` for each stage before the first begins; `began`; `going-on`, at most a few times per second;
            `ended`; `skipped`, with the reason.
        done, total: number of finished pieces, and of all pieces.
        waiting, waiting_for: number of awaited nodes, and the first of them.
        deadline_s: the time that the stage may still take, if it has a deadline.
    """

    type: Literal["stage"] = "stage"
    stage: str
    state: Literal["planned", "began", "going-on", "ended", "skipped"]
    done: int = 0
    total: int = 0
    waiting: int = 0
    waiting_for: tuple[str, ...] = ()
    deadline_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent(_Event):
    """A node answered or cannot be reached; `problem` gives the reason if it cannot."""

    type: Literal["node"] = "node"
    node: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEvent(_Event):
    """A message that is worth knowing at once."""

    type: Literal["note"] = "note"
    stage: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent(_Event):
    """A process of the smoke run finished a phase; `phase` is missing at its start, `node` at its exit."""

    type: Literal["phase"] = "phase"
    party: str
    node: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeEvent(_Event):
    """A check could not be decided. Checks that passed or do not apply are in the report only."""

    type: Literal["outcome"] = "outcome"
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvent(_Event):
    """A finding, as in the report; for a suppressed finding, also the cause of the suppression."""

    type: Literal["finding"] = "finding"
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEvent(_Event):
    """The last event, however the run ended.

    Args:
        exit_code: exit code of the command.
        errors, warnings, infos: number of findings that are not suppressed.
        undecided: number of required checks that could not be decided.
        reason: why there is no report, if there is none.
    """

    type: Literal["verdict"] = "verdict"
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

    def step_events(self, step: Step) -> Iterator[Event]:
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

    def report_events(self, report: Report) -> Iterator[Event]:
        """Return an event for each check that could not be decided, then an event for each finding."""
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


#: The target that means standard output.
STDOUT = "-"
#: With more unwritten lines than this, progress inside a stage is dropped.
_MAX_UNWRITTEN = 5000
#: How long to wait at the end until the reader has read the remaining lines.
_DRAIN_TIMEOUT_S = 5.0


class EventStream:
    """Writes the events of one run; can be used as a receiver of progress (`preflight.model.progress.Progress`)."""

    def __init__(self, events: EventBuilder, target: str) -> None:
        self._events = events
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last: Event | None = None
        self._writer = threading.Thread(target=_write, args=(_opener(target), self._lines), daemon=True)
        self._writer.start()

    def begin(self, verb: str) -> None:
        self._enqueue(self._events.began(verb, __version__))

    def __call__(self, step: Step) -> None:
        for event in self._events.step_events(step):
            self._enqueue(event)

    def report(self, report: Report) -> None:
        """Write the findings; the verdict follows once the report has been written."""
        for event in self._events.report_events(report):
            self._enqueue(event)
        self._last = self._events.verdict(report)

    def close(self, error: BaseException | None = None) -> None:
        """Write the verdict and give the reader time to read it. `error` is the exception that ends the command."""
        if error is not None and not (self._last is not None and _is_bug(error)):
            self._last = self._events.without_report(*_ended_by(error))
        if self._last is not None:
            self._enqueue(self._last)
        self._lines.put(None)
        self._writer.join(_DRAIN_TIMEOUT_S)

    def _enqueue(self, event: Event) -> None:
        if isinstance(event, StageEvent) and event.state == "going-on" and self._lines.qsize() > _MAX_UNWRITTEN:
            return
        self._lines.put(neutralize(to_bytes(event, indent=None), "json"))


@contextmanager
def open_event_stream(target: str, verb: str) -> Iterator[EventStream]:
    """Open the event stream of one run, which always ends with a verdict. Raises UsageError."""
    stream = EventStream(EventBuilder(), target)
    stream.begin(verb)
    try:
        yield stream
    except BaseException as error:
        stream.close(error)
        raise
    stream.close()


def _is_bug(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, UsageError | click.ClickException | click.Abort)


def _ended_by(error: BaseException) -> tuple[int, str]:
    """Return the exit code that this exception gives the command, and the reason."""
    if isinstance(error, UsageError | click.ClickException):
        return ExitCode.USAGE, str(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED, "interrupted"
    return ExitCode.BUG, scrub_traceback(f"{type(error).__name__}: {error}")


def _opener(target: str) -> BinaryIO | Path:
    """Return a function that opens the target: opening a named pipe blocks until it has a reader."""
    if target == STDOUT:
        sys.stdout.flush()
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    if target.startswith("fd:"):
        return _descriptor(target)
    path = Path(target)
    try:
        refuse_outside_link(path)
        if not is_stream(path):
            # A link of that name may come from the examined tree; a new file replaces it.
            if path.is_symlink():
                path.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0)
        if stat.S_ISFIFO(path.stat().st_mode):
            return path
        return path.open("wb", buffering=0)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--events {target}: cannot write: {why}") from None


def _descriptor(target: str) -> BinaryIO:
    number = target.removeprefix("fd:")
    if not number.isdecimal():
        raise UsageError(f"--events {target}: expected a number after fd:, as in fd:3")
    try:
        return os.fdopen(os.dup(int(number)), "wb", buffering=0)
    except (OSError, OverflowError):
        raise UsageError(
            f"--events {target}: this descriptor is not open; open it in the shell with {number}>FILE"
        ) from None


def _write(target: BinaryIO | Path, lines: queue.SimpleQueue[bytes | None]) -> None:
    try:
        with target.open("wb", buffering=0) if isinstance(target, Path) else target as stream:
            while (line := lines.get()) is not None:
                left = memoryview(line)
                while left:
                    left = left[stream.write(left) or 0 :]
    except (OSError, ValueError):
        # The reader closed the stream.
        while lines.get() is not None:
            pass
