"""The report: what a run has to say, in one versioned shape that reporters print and programs read.

Additive within a schema version; the committed JSON Schema is generated from these classes.
"""

from __future__ import annotations

import enum
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.catalog import Broken, Exhibitor
from preflight.configuration import Accepted, Configuration
from preflight.document import schema_of, to_bytes
from preflight.engine import SMOKE, fleet_of, outcomes_of
from preflight.job import UNSEEN, Job, Suppression
from preflight.judgement import Check, Rule
from preflight.lazy.dataclasses import dataclass
from preflight.once import forget
from preflight.outcome import Finding, Outcome, Severity, Status, VerdictKind
from preflight.progress import Progress, ignore
from preflight.recording import Facts, NodeRecord, Origin, Recording, StageRecord, Wish
from preflight.stakes import Saved, saved
from preflight.suppress import Remark, sift

if TYPE_CHECKING:
    from preflight.exhibit import Exhibit

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
    """Who made the report.

    Args:
        name: always `preflight`.
        version: of preflight.
        plugins: distributions that had a part in it, each with its version.
    """

    name: str
    version: str
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """How and when the recording was made.

    `context` says where facts about ranks were taken, `origin` where the list of nodes came from, `wish` what was asked
    of the smoke run beside what the job says.

    Args:
        verb: `lint`, `check` or `smoke`; of a recording that was judged again the one that made it.
        created: when the recording was made, ISO 8601 with offset.
        executor: how nodes were reached; empty where none were.
        stages: in the order in which they ran.
    """

    verb: str
    created: str
    executor: str = ""
    context: str = ""
    stages: tuple[StageRecord, ...] = ()
    origin: Origin | None = None
    wish: Wish = field(default_factory=Wish)


@dataclass(frozen=True, slots=True)
class Input:
    """A file that was read.

    Args:
        path: relative to the root.
        kind: the name of the source that read it.
        sha256: of its bytes.
        size_bytes: how long it is.
    """

    path: str
    kind: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was looked at and what was not.

    `not_told` are the unknown outcomes, required ones first; `idle_suppressions` are comments that suppress
    nothing, `idle_baseline` entries of the baseline whose finding is gone from a file that was read; `remarks` say
    the same of waivers and the baseline, and what ended; `broken` are parts of plugins that could not be loaded,
    or that made no exhibit.

    Args:
        passed, failed, unknown, not_applicable: how many outcomes have this status.
    """

    passed: int = 0
    failed: int = 0
    unknown: int = 0
    not_applicable: int = 0
    not_told: tuple[Outcome, ...] = ()
    idle_suppressions: tuple[Suppression, ...] = ()
    broken: tuple[Broken, ...] = ()
    remarks: tuple[Remark, ...] = ()
    idle_baseline: tuple[Accepted, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole answer. Order is deterministic: findings worst first, outcomes by id, exhibits as the packs name them.

    Whoever reads reports with pydantic takes `adapter`: what exhibits are made of is not imported with this class,
    because lint has none.

    Args:
        tool: who made it.
        run: how and when the recording was made.
        inputs: every file that was read, by path.
        jobs: what the files say: one job for all files that reach each other.
        nodes: how reaching each node went, in rank order.
        outcomes: what every rule and check said of every subject.
        findings: faults that count, worst first.
        suppressed: faults that do not count, and why.
        coverage: what was looked at and what was not.
        verdict: `go`, `no-go` where a finding reaches `fail_on`, else `incomplete` where something that had to be
            looked at was not.
        exit_code: of the command.
        schema_version: of this document; fields are added within a version, and never taken away.
        configuration: what the user chose that the verdict depends on.
        saved: what a no-go would have cost, where its faults let everybody wait; else null.
        exhibits: what was measured, for the eye.
    """

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
    configuration: Configuration = field(default_factory=Configuration)
    saved: Saved | None = None
    exhibits: tuple[Exhibit, ...] = ()


def report_on(
    recording: Recording,
    rules: Sequence[Rule],
    checks: Sequence[Check],
    *,
    plugins: tuple[str, ...] = (),
    broken: tuple[Broken, ...] = (),
    exhibitors: Sequence[Exhibitor] = (),
    unshown: tuple[Broken, ...] = (),
    progress: Progress = ignore,
) -> Report:
    """Judge a recording and put everything a reader may want into one report.

    `exhibitors` make its exhibits; `unshown` are those that could not be loaded. Neither has a part in the verdict.
    """
    facts = Facts(recording.facts, recording.events)
    outcomes = outcomes_of(recording, rules, checks, facts=facts, progress=progress)
    exhibits: tuple[Exhibit, ...] = ()
    if exhibitors:
        from preflight.showing import shown

        show = shown(exhibitors, recording.jobs, fleet_of(recording), facts)
        exhibits, unshown = show.exhibits, (*unshown, *show.broken)
    forget(facts)
    sifted = sift(outcomes, recording)
    counts = Counter(outcome.status for outcome in outcomes)
    not_told = sorted(
        (o for o in outcomes if o.status is Status.UNKNOWN), key=lambda o: (not o.required, o.id, o.subject)
    )
    verdict = _verdict(recording, sifted.kept, not_told, broken)
    return Report(
        tool=Tool("preflight", recording.tool_version, plugins),
        run=Run(
            recording.verb,
            recording.created,
            recording.executor,
            recording.context_provenance,
            recording.stages,
            recording.origin,
            recording.wish,
        ),
        inputs=_inputs(recording.jobs),
        jobs=tuple(sorted(recording.jobs, key=lambda job: job.name)),
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
            broken=(*broken, *unshown),
            remarks=sifted.remarks,
            idle_baseline=sifted.stale,
        ),
        verdict=verdict,
        exit_code=_exit_code(recording, verdict, broken),
        configuration=recording.configuration,
        saved=_saved(recording, sifted.kept, verdict),
        exhibits=exhibits,
    )


def _saved(recording: Recording, findings: Sequence[Finding], verdict: VerdictKind) -> Saved | None:
    """What was not wasted. A fault that was played on request would have cost nothing."""
    if verdict is not VerdictKind.NO_GO or recording.wish.drill is not None:
        return None
    nodes = tuple(record.node.name for record in recording.nodes)
    return saved(findings, recording.jobs, nodes=nodes, fail_on=Severity(recording.configuration.fail_on))


def crashed(error: BaseException, *, verb: str, created: str, version: str) -> Report:
    """The report of a run that a bug in preflight ended before there was anything to judge."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = ", ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in last)
    bug = Broken("preflight", "preflight", where or "unknown place", f"{type(error).__name__}: {error}")
    return Report(
        tool=Tool("preflight", version),
        run=Run(verb, created),
        inputs=(),
        jobs=(),
        nodes=(),
        outcomes=(),
        findings=(),
        suppressed=(),
        coverage=Coverage(broken=(bug,)),
        verdict=VerdictKind.INCOMPLETE,
        exit_code=ExitCode.BUG,
    )


def _verdict(
    recording: Recording, findings: Sequence[Finding], not_told: Sequence[Outcome], broken: Sequence[Broken]
) -> VerdictKind:
    """No-go where a finding says so; else incomplete where something that had to be looked at was not.

    What was not looked at is asked here once more, and not only of the rules about it, because they can be left
    out by `--select`; a run without nodes or files must not look like one in which they were found in order.
    """
    worst = max((finding.severity.rank for finding in findings), default=-1)
    if worst >= Severity(recording.configuration.fail_on).rank:
        return VerdictKind.NO_GO
    missed = (
        not _anything_read(recording)
        or recording.interrupted
        or broken
        or any(outcome.required for outcome in not_told)
        or any(record.problem for record in recording.nodes)
        or (recording.verb in ("check", SMOKE) and _without_nodes(recording))
        or any(note.required and note.kind in UNSEEN for job in recording.jobs for note in job.notes)
    )
    return VerdictKind.INCOMPLETE if missed else VerdictKind.GO


def _without_nodes(recording: Recording) -> bool:
    return not recording.nodes or (recording.origin is not None and bool(recording.origin.problem))


def _anything_read(recording: Recording) -> bool:
    """Whether there is a file that was read, or one that had to be and could not."""
    given = any(job.files or any(note.required for note in job.notes) for job in recording.jobs)
    return given or recording.verb == SMOKE


def _exit_code(recording: Recording, verdict: VerdictKind, broken: Sequence[Broken]) -> int:
    if recording.interrupted:
        return recording.interrupted
    if not _anything_read(recording) and not broken:
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
    """The report as JSON, indented, ending in a newline; an exhibit, which may be large, is one line."""
    return to_bytes(report, indent=2, bulk="exhibits")


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_json` writes."""
    return schema_of(adapter(), "preflight report")


def adapter() -> Any:
    """What reads and describes reports with pydantic."""
    from pydantic import TypeAdapter

    # Looked up here when the annotations of `Report` are resolved.
    from preflight.exhibit import Exhibit  # noqa: F401

    return TypeAdapter(Report)
