"""The report: what a run has to say, in one versioned shape that reporters print and programs read.

Additive within a schema version; the committed JSON Schema is generated from these classes.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preflight.catalog import Broken
from preflight.engine import fold, outcomes_of
from preflight.job import Job, Suppression
from preflight.judgement import Check, Rule
from preflight.outcome import Finding, Outcome, Severity, Status, VerdictKind
from preflight.recording import NodeRecord, Recording, StageRecord
from preflight.suppress import sift

SCHEMA_VERSION = 1


class ExitCode(enum.IntEnum):
    """What the process says; never a count, never dependent on the output format."""

    GO = 0
    NO_GO = 1
    USAGE = 2
    INCOMPLETE = 3
    NOTHING_TO_DO = 4
    BUG = 5
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Tool:
    """Who made the report."""

    name: str
    version: str
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """How and when the recording was made. `context` says where facts about ranks were taken."""

    verb: str
    created: str
    executor: str = ""
    context: str = ""
    stages: tuple[StageRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """A file that was read."""

    path: str
    kind: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was looked at and what was not.

    `not_told` are the unknown outcomes, required ones first; `idle_suppressions` are comments that suppress
    nothing; `broken` are parts of plugins that could not be loaded.
    """

    passed: int = 0
    failed: int = 0
    unknown: int = 0
    not_applicable: int = 0
    not_told: tuple[Outcome, ...] = ()
    idle_suppressions: tuple[Suppression, ...] = ()
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole answer. Order is deterministic: findings worst first, outcomes by id."""

    tool: Tool
    run: Run
    inputs: tuple[Input, ...]
    jobs: tuple[Job, ...]
    nodes: tuple[NodeRecord, ...]
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    coverage: Coverage
    verdict: VerdictKind
    exit_code: int
    schema_version: int = SCHEMA_VERSION


def report_on(
    recording: Recording,
    rules: Sequence[Rule],
    checks: Sequence[Check],
    *,
    plugins: tuple[str, ...] = (),
    broken: tuple[Broken, ...] = (),
) -> Report:
    """Judge a recording and put everything a reader may want into one report."""
    outcomes = outcomes_of(recording, rules, checks)
    sifted = sift(fold(o.finding for o in outcomes if o.finding is not None), recording.jobs)
    counts = Counter(outcome.status for outcome in outcomes)
    not_told = sorted(
        (o for o in outcomes if o.status is Status.UNKNOWN), key=lambda o: (not o.required, o.id, o.subject)
    )
    verdict = _verdict(sifted.kept, not_told, Severity(recording.configuration.fail_on), broken)
    return Report(
        tool=Tool("preflight", recording.tool_version, plugins),
        run=Run(
            recording.verb,
            recording.created,
            recording.executor,
            recording.context_provenance,
            recording.stages,
        ),
        inputs=_inputs(recording.jobs),
        jobs=recording.jobs,
        nodes=recording.nodes,
        outcomes=outcomes,
        findings=sifted.kept,
        suppressed=sifted.suppressed,
        coverage=Coverage(
            passed=counts[Status.PASS],
            failed=counts[Status.FAIL],
            unknown=counts[Status.UNKNOWN],
            not_applicable=counts[Status.NOT_APPLICABLE],
            not_told=tuple(not_told),
            idle_suppressions=sifted.unused,
            broken=broken,
        ),
        verdict=verdict,
        exit_code=_exit_code(recording, verdict),
    )


def _verdict(
    findings: Sequence[Finding], not_told: Sequence[Outcome], fail_on: Severity, broken: Sequence[Broken]
) -> VerdictKind:
    if any(finding.severity.rank >= fail_on.rank for finding in findings):
        return VerdictKind.NO_GO
    if broken or any(outcome.required for outcome in not_told):
        return VerdictKind.INCOMPLETE
    return VerdictKind.GO


def _exit_code(recording: Recording, verdict: VerdictKind) -> int:
    if recording.interrupted:
        return recording.interrupted
    if not recording.jobs:
        return ExitCode.NOTHING_TO_DO
    if verdict is VerdictKind.NO_GO:
        return ExitCode.NO_GO
    if verdict is VerdictKind.INCOMPLETE and not recording.configuration.allow_incomplete:
        return ExitCode.INCOMPLETE
    return ExitCode.GO


def _inputs(jobs: Sequence[Job]) -> tuple[Input, ...]:
    found = {file.path: Input(file.path, file.kind, file.sha256, file.size_bytes) for job in jobs for file in job.files}
    return tuple(found[path] for path in sorted(found))


def to_json(report: Report) -> bytes:
    """The report as JSON, indented, ending in a newline."""
    return bytes(_adapter().dump_json(report, indent=2)) + b"\n"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_json` writes."""
    found = _adapter().json_schema(mode="serialization")
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = "preflight report"
    assert isinstance(found, dict)
    return found


def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Report)
