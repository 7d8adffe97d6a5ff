"""The report of a run, in one versioned schema that reporters print and programs read: its results and their basis.

Additive within a schema version; the committed JSON Schema is generated from these classes.
"""

from __future__ import annotations

import enum
import html
import json
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight._util import toml
from preflight._util.hostnames import folded, is_hostname
from preflight._util.json_output import schema_of, to_bytes
from preflight._util.redaction import scrub_traceback
from preflight._util.sanitize import clean, fold_nodes
from preflight._util.usage_error import UsageError
from preflight.engine.evaluate import fleet_of, outcomes_of
from preflight.engine.suppress import SuppressionNote, apply_suppressions
from preflight.model.configuration import NODES, SMOKE, Accepted, Configuration, matches
from preflight.model.findings import Finding, Outcome, Severity, Status, VerdictKind
from preflight.model.job import UNSEEN, Claim, Job, Known, Launch, LeftOut, Scope, Strength, Suppression
from preflight.model.measurements import Measurements, NodeProperties
from preflight.model.progress import Progress, ignore
from preflight.model.recording import Facts, NodeRecord, Origin, Recording, SmokeOptions, StageRecord
from preflight.plugins.authoring import Check, Rule, clear_memo
from preflight.plugins.registry import Broken, PackFunction

if TYPE_CHECKING:
    from preflight.engine.pack_output import PropertyReader
    from preflight.model.charts import Chart


# The cost that a no-go avoided: the nodes of a job would have waited until its ranks gave up. Faults count only if
# their rule or check states that all ranks would wait, only once however many there are, and only with documented
# numbers: from the job's files, or from a default with its source. If a number is missing, no cost is given.


#: Launchers whose agents use torch's rendezvous before any rank starts, and the name of that rendezvous in messages.
_ELASTIC = ("torchrun", "torch.distributed.launch", "accelerate")
#: In `--rdzv_conf`: how long a node waits for the others.
_CONF = {
    "static": re.compile(r"(?:^|,)\s*timeout=(\d{1,9})(?!\d)"),
    "": re.compile(r"(?:^|,)\s*join_timeout=(\d{1,9})(?!\d)"),
}


@dataclass(frozen=True, slots=True)
class AvoidedCost:
    """The cost of a run's faults: all nodes of a job wait once until a timeout ends the wait.

    Args:
        findings: the ids of those that would have made all ranks wait.
        nodes: the number of waiting nodes.
        nodes_from: a description of the source of that number; likewise the other `_from` fields.
        timeout_s: seconds until a timeout would have ended the wait.
        timeout_from: the job's own setting, or the source of the default.
        node_hours: nodes times the timeout.
        gpus_per_node: GPUs of each node; null if unknown.
        gpus_from: their source.
        gpu_hours: node-hours times GPUs per node; null if unknown.
        price_per_gpu_hour: in the user's currency; null if no price was given.
        cost: GPU-hours times the price.
        job: the job of these nodes; if there are several, the one with the highest cost.
    """

    findings: tuple[str, ...]
    nodes: int
    nodes_from: str
    timeout_s: int
    timeout_from: str
    node_hours: float
    gpus_per_node: int | None = None
    gpus_from: str = ""
    gpu_hours: float | None = None
    price_per_gpu_hour: float | None = None
    cost: float | None = None
    job: str = ""


class _Number(NamedTuple):
    value: int
    words: str


def avoided_cost(
    findings: Sequence[Finding], jobs: Sequence[Job], *, nodes: Sequence[str] = (), fail_on: Severity = Severity.ERROR
) -> AvoidedCost | None:
    """Return the cost that these findings avoided; None if there are none, no rank would wait, or a number is missing.

    Args:
        nodes: the run's nodes, which are the job's; if there are none, the files give the number.
    """
    waits = [finding for finding in findings if finding.waits_at and finding.severity.rank >= fail_on.rank]
    found = [_job_cost(job, waits if len(jobs) == 1 else _findings_about(job, waits), nodes) for job in jobs]
    return max((cost for cost in found if cost is not None), key=lambda cost: cost.node_hours, default=None)


def _findings_about(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings about one of this job's launches or files."""
    launches, files = {launch.id for launch in job.launches}, {file.path for file in job.files}
    return [f for f in findings if f.subject in launches or any(place.path in files for place in f.locations[:1])]


def _job_cost(job: Job, waits: Sequence[Finding], nodes: Sequence[str]) -> AvoidedCost | None:
    # A rank that does not complete the rendezvous waits nowhere else.
    first = [finding for finding in waits if finding.waits_at == "rendezvous"] or waits
    subjects = {finding.subject for finding in first}
    launches = [launch for launch in job.launches if launch.id in subjects] or job.launches
    for launch in launches if first else ():
        count = _Number(len(nodes), "nodes of this run") if nodes else _nodes(job, launch.scope)
        limit = _rendezvous(job, launch) if first[0].waits_at == "rendezvous" else _group(job, launch)
        if count is None or limit is None or count.value < 2:
            continue
        gpus = _gpus(job, launch)
        hours = count.value * limit.value / 3600
        return AvoidedCost(
            job=job.name,
            findings=tuple(dict.fromkeys(finding.id for finding in first)),
            nodes=count.value,
            nodes_from=count.words,
            timeout_s=limit.value,
            timeout_from=limit.words,
            node_hours=round(hours, 3),
            gpus_per_node=gpus.value if gpus else None,
            gpus_from=gpus.words if gpus else "",
            gpu_hours=round(hours * gpus.value, 3) if gpus else None,
        )
    return None


def with_price(found: AvoidedCost | None, price_per_gpu_hour: float | None) -> AvoidedCost | None:
    """Return the avoided cost with its price, if there are GPUs and a price per GPU-hour."""
    if found is None or price_per_gpu_hour is None or found.gpu_hours is None:
        return found
    cost = round(found.gpu_hours * price_per_gpu_hour, 2)
    return replace(found, price_per_gpu_hour=price_per_gpu_hour, cost=cost)


def _number(claims: Sequence[Claim]) -> _Number | None:
    """Return the smallest value of the claims with its spelling; None if any value is unknown."""
    values: list[tuple[int, Claim]] = []
    for claim in claims:
        if not isinstance(claim.value, Known) or not isinstance(claim.value.value, int) or claim.value.value < 1:
            return None
        values.append((int(claim.value.value), claim))
    if not values:
        return None
    value, claim = min(values, key=lambda pair: pair[0])
    return _Number(value, _claim_words(claim))


def _claim_words(claim: Claim) -> str:
    return f"`{claim.spelling}` ({claim.span.path}:{claim.span.line})"


def _nodes(job: Job, scope: Scope) -> _Number | None:
    """Return the number of nodes held: the allocation of the job takes precedence over the launcher's request."""
    return _number(job.setting("nodes", scope)) or _number(job.requiring("nodes", scope))


def _gpus(job: Job, launch: Launch) -> _Number | None:
    stated = _number(job.setting("gpus_per_node", launch.scope)) or _number(
        job.requiring("gpus_per_node", launch.scope)
    )
    if stated is not None:
        return stated
    ranks = _number(job.setting("processes_per_node", launch.scope))
    if ranks is None or _backend(job, launch) != "nccl":
        return None
    # NCCL uses one GPU per rank, and rejects two ranks on one.
    return _Number(ranks.value, f"one per rank, {ranks.words}")


def _backend(job: Job, launch: Launch) -> str:
    found = {
        claim.value.value
        for claim in (*job.setting("backend", launch.scope), *job.setting("backend"))
        if isinstance(claim.value, Known)
    }
    return str(found.pop()) if len(found) == 1 else ""


def _rendezvous(job: Job, launch: Launch) -> _Number | None:
    """Return the duration of the first wait: between a launcher's agents, or between ranks when their group forms."""
    if launch.launcher not in _ELASTIC:
        return _group(job, launch)
    if any(Known(True) == claim.value for claim in job.setting("standalone", launch.scope)):
        return _default("rendezvous.dynamic")
    stated = job.setting("rendezvous_backend", launch.scope)
    if any(not isinstance(claim.value, Known) for claim in stated):
        return None
    kinds = {str(claim.value.value) for claim in stated if isinstance(claim.value, Known)} or {"static"}
    if len(kinds) > 1:
        return None
    kind = "static" if kinds == {"static"} else ""
    for claim in job.setting("rendezvous_conf", launch.scope):
        text = claim.value.value if isinstance(claim.value, Known) else None
        given = _CONF[kind].search(str(text)) if text else None
        if given:
            return _Number(int(given[1]), _claim_words(claim))
    return _default("rendezvous.static" if kind else "rendezvous.dynamic")


def _group(job: Job, launch: Launch) -> _Number | None:
    """Return how long ranks wait in their group, for each other or in a collective."""
    limits = job.setting("process_group_timeout_s", launch.scope) or job.setting("process_group_timeout_s")
    if any(claim.strength > Strength.DEFAULT for claim in limits):
        return _number(limits)
    if launch.launcher == "deepspeed":
        return _default("group.deepspeed")
    backend = _backend(job, launch)
    if f"group.{backend}" in DEFAULTS:
        return _default(f"group.{backend}")
    return None


def _default(key: str) -> _Number:
    row = DEFAULTS[key]
    return _Number(row.seconds, row.words)


class Default(NamedTuple):
    """The default timeout of ranks, as `waste.toml` describes it."""

    seconds: int
    words: str
    source: str


DEFAULTS = {key: Default(**row) for key, row in toml.beside(__file__, "waste.toml").items()}
#: The stage of rules.
_LINT = "lint"
#: Largest number of unread files that are listed; all are counted.
_MAX_UNREAD = 100
#: The quantities that determine the world size if no claim states it.
_SIZES = ("nodes", "processes_per_node", "tasks", "tasks_per_node")


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that the job refers to, or that was selected, and that was not read completely.

    Args:
        path: relative to the root.
        reason: the reason, in a sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Understood:
    """How much of the jobs was understood. Without a launch nothing is known about the ranks.

    Args:
        launches: command lines that start ranks.
        worlds_known: launches whose number of ranks the files state.
        worlds_symbolic: launches whose number of ranks depends on a named value, or is one of a few numbers.
        worlds_unknown: launches without any claim about the number of ranks.
        jobs_without_launch: jobs with no file that starts ranks.
        files_read: the number of files read.
        files_unread: those not read completely; at most 100 of them.
        unread: their total number.
        rules_judged: rules that passed or failed at least one subject.
        rules_undecided: ids of rules that could not judge some subject, because a value is unknown.
    """

    launches: int = 0
    worlds_known: int = 0
    worlds_symbolic: int = 0
    worlds_unknown: int = 0
    jobs_without_launch: int = 0
    files_read: int = 0
    files_unread: tuple[Unread, ...] = ()
    unread: int = 0
    rules_judged: int = 0
    rules_undecided: tuple[str, ...] = ()


def understanding(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Understood:
    """Determine what was understood of these jobs, and which rules could judge them."""
    worlds = [_world(job, launch) for job in jobs for launch in job.launches]
    unread = tuple(dict.fromkeys(_unread(jobs)))
    judged = {o.id for o in outcomes if o.stage == _LINT and o.status in (Status.PASS, Status.FAIL)}
    undecided = {o.id for o in outcomes if o.stage == _LINT and o.status is Status.UNKNOWN}
    return Understood(
        launches=len(worlds),
        worlds_known=worlds.count("known"),
        worlds_symbolic=worlds.count("symbolic"),
        worlds_unknown=worlds.count("unknown"),
        jobs_without_launch=sum(bool(job.files) and not job.launches for job in jobs),
        files_read=len({file.path for job in jobs for file in job.files}),
        files_unread=unread[:_MAX_UNREAD],
        unread=len(unread),
        rules_judged=len(judged),
        rules_undecided=tuple(sorted(undecided)),
    )


def _world(job: Job, launch: Launch) -> str:
    for quantity in ("world_size", "ps_workers"):
        claims = job.value_claims(quantity, launch.scope)
        if claims:
            return "known" if all(isinstance(claim.value, Known) for claim in claims) else "symbolic"
    return "symbolic" if any(job.value_claims(quantity, launch.scope) for quantity in _SIZES) else "unknown"


def _unread(jobs: Sequence[Job]) -> Iterator[Unread]:
    for job in jobs:
        for note in job.notes:
            if note.required or note.kind in UNSEEN:
                yield Unread(note.span.path, note.message.partition("\n")[0])


SCHEMA_VERSION = 2


class ExitCode(enum.IntEnum):
    """The exit code of the process; never a count, never dependent on the output format."""

    GO = 0
    NO_GO = 1
    USAGE = 2
    INCOMPLETE = 3
    NOT_JUDGED = 4
    BUG = 5
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that made the report.

    Args:
        name: always `preflight`.
        version: of preflight.
        plugins: distributions that contributed to it, each with its version.
    """

    name: str
    version: str
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """How and when the recording was made.

    Args:
        context: where facts about ranks were observed.
        origin: where the list of nodes came from.
        smoke_options: the user's options for the smoke run.
        verb: `lint`, `check`, `nodes` or `smoke`; for a recording that was judged again, the command that made it.
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
    smoke_options: SmokeOptions = field(default_factory=SmokeOptions)


@dataclass(frozen=True, slots=True)
class Input:
    """A file that was read.

    Args:
        path: relative to the root.
        kind: the name of the source that read it.
        sha256: of its content.
        size_bytes: its size.
    """

    path: str
    kind: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The extent of the judgement.

    Args:
        passed, failed, unknown, not_applicable: the number of outcomes with this status.
        unknown_outcomes: the unknown outcomes, required ones first.
        unused_suppressions: comments that suppress nothing.
        broken: parts of plugins that could not be loaded, or that made no chart.
        suppression_notes: unused or expired waivers, and unused entries of the baseline.
        unused_baseline: entries of the baseline whose finding is gone from a file that was read.
        left_out: files of folders that were not read, and why.
    """

    passed: int = 0
    failed: int = 0
    unknown: int = 0
    not_applicable: int = 0
    unknown_outcomes: tuple[Outcome, ...] = ()
    unused_suppressions: tuple[Suppression, ...] = ()
    broken: tuple[Broken, ...] = ()
    suppression_notes: tuple[SuppressionNote, ...] = ()
    unused_baseline: tuple[Accepted, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleCount:
    """The number of findings of one rule or check with one severity.

    Args:
        id: of the rule or check, as `WLD001`.
        name: of the rule or check, as `launch-size-disagreement`.
        severity: of these findings.
        findings: their number.
    """

    id: str
    name: str
    severity: Severity
    findings: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of findings.

    Args:
        errors, warnings, infos: findings that count, by severity.
        suppressed: findings that do not count.
        rules: findings that count by rule or check, worst and most frequent first.
    """

    errors: int = 0
    warnings: int = 0
    infos: int = 0
    suppressed: int = 0
    rules: tuple[RuleCount, ...] = ()


def count_findings(findings: Sequence[Finding], suppressed: Sequence[Finding] = ()) -> Summary:
    """Count findings."""
    of_severity = Counter(finding.severity for finding in findings)
    of_rule = Counter((finding.id, finding.name, finding.severity) for finding in findings)
    order = sorted(of_rule.items(), key=lambda item: (-item[0][2].rank, -item[1], item[0][0]))
    return Summary(
        of_severity[Severity.ERROR],
        of_severity[Severity.WARNING],
        of_severity[Severity.INFO],
        len(suppressed),
        tuple(RuleCount(*key, number) for key, number in order),
    )


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The whole report. The order is deterministic: findings worst first, outcomes by id, charts in the order of the
    packs.

    Use `adapter` to read reports with pydantic: the classes of charts are not imported with this class, because lint
    has none.

    Args:
        summary: the numbers of findings; always those of `findings` and `suppressed`.
        tool: the program that made it.
        run: how and when the recording was made.
        inputs: every file that was read, by path.
        jobs: one job for all files that reach each other.
        nodes: the result of connecting to each node, in rank order.
        outcomes: the result of every rule and check for every subject.
        findings: faults that count, worst first.
        suppressed: faults that do not count, and the reasons.
        coverage: what was examined and what was not.
        verdict: `no-go` if a finding reaches `fail_on`, otherwise `incomplete` if something required was not examined,
        otherwise `not-judged` if no launch was recognised, otherwise `go`.
        exit_code: of the command.
        schema_version: of this document; fields are added within a version, and never removed.
        configuration: the user's choices that the verdict depends on.
        avoided_cost: the cost that a no-go avoided, if its faults would have made all ranks wait; otherwise null.
        charts: measurements as charts.
        measurements: what was measured of nodes and links, by quantity, for comparison with other runs.
        properties: what each node that answered consists of, as far as it is known.
        understood: the basis of the verdict.
    """

    summary: Summary = field(default_factory=Summary, kw_only=True)
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
    avoided_cost: AvoidedCost | None = None
    charts: tuple[Chart, ...] = ()
    understood: Understood = field(default_factory=Understood)
    measurements: tuple[Measurements, ...] = ()
    properties: tuple[NodeProperties, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", count_findings(self.findings, self.suppressed))

    def __repr__(self) -> str:
        """Return one line: the command, the verdict and the numbers. `preflight.engine.report.to_json` has
        everything.
        """
        return f"<Report of {self.run.verb}: {self.verdict.value}, {self._numbers()}>"

    def _repr_html_(self) -> str:
        """Return the verdict and a table of findings, for a notebook."""

        return notebook_view(self, self._numbers())

    def _numbers(self) -> str:
        found = self.summary
        parts = [
            f"{number} {word}{'' if number == 1 or word == 'info' else 's'}"
            for number, word in ((found.errors, "error"), (found.warnings, "warning"), (found.infos, "info"))
            if number
        ]
        files = f"{len(self.inputs)} file{'' if len(self.inputs) == 1 else 's'}"
        jobs = f"{len(self.jobs)} job{'' if len(self.jobs) == 1 else 's'}"
        return f"{', '.join(parts) or 'nothing found'} in {files} of {jobs}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as the JSON of `-o json`: dictionaries, lists, strings and numbers."""
        found: dict[str, Any] = json.loads(to_json(self))
        return found

    def select(
        self, *, severity: Severity | str | None = None, rule: str | None = None, file: str | None = None
    ) -> tuple[Finding, ...]:
        """Return the findings with all of these properties, in the order of the report.

        Args:
            severity: `error`, `warning` or `info`.
            rule: an id, a name or an area: `RDV001`, `rendezvous-on-loopback`, `RDV`.
            file: a path as in the report, or a pattern as of `fnmatch`: `jobs/*.sbatch`. One location is enough.

        Raises:
            UsageError: there is no such severity.
        """
        known = [item.value for item in Severity]
        wanted = severity.value if isinstance(severity, Severity) else severity
        if wanted is not None and wanted not in known:
            raise UsageError(f"unknown severity {wanted!r}; use one of {', '.join(known)}")
        return tuple(
            finding
            for finding in self.findings
            if (wanted is None or finding.severity.value == wanted)
            and (rule is None or matches(finding.id, finding.name, (rule,)))
            and (file is None or any(fnmatchcase(place.path, file) for place in finding.locations))
        )


def report_on(
    recording: Recording,
    rules: Sequence[Rule],
    checks: Sequence[Check],
    *,
    plugins: tuple[str, ...] = (),
    broken: tuple[Broken, ...] = (),
    chart_makers: Sequence[PackFunction] = (),
    missing_charts: tuple[Broken, ...] = (),
    measurement_readers: Sequence[PackFunction] = (),
    property_readers: Sequence[PropertyReader] = (),
    progress: Progress = ignore,
) -> Report:
    """Judge a recording and build the complete report.

    Args:
        chart_makers: functions that make charts; the verdict does not depend on them.
        missing_charts: chart makers and measurement readers that could not be loaded.
        measurement_readers: functions that read measurements; the verdict does not depend on them.
        property_readers: functions that read the properties of a node.
    """
    facts = Facts(recording.facts, recording.events)
    outcomes = outcomes_of(recording, rules, checks, facts=facts, progress=progress)
    charts: tuple[Chart, ...] = ()
    if chart_makers:
        from preflight.engine.pack_output import build_charts

        charts, no_charts = build_charts(chart_makers, recording.jobs, fleet_of(recording), facts)
        missing_charts = (*missing_charts, *no_charts)
    measurements: tuple[Measurements, ...] = ()
    properties: tuple[NodeProperties, ...] = ()
    if measurement_readers or property_readers:
        from preflight.engine.pack_output import build_measurements, properties_of

        measurements, unread = build_measurements(measurement_readers, recording.jobs, fleet_of(recording), facts)
        missing_charts = (*missing_charts, *unread)
        properties = properties_of(property_readers, fleet_of(recording), facts)
    clear_memo(facts)
    result = apply_suppressions(outcomes, recording)
    counts = Counter(outcome.status for outcome in outcomes)
    unknown_outcomes = undecided(outcomes)
    verdict = _verdict(recording, result.kept, unknown_outcomes, broken)
    return Report(
        tool=Tool("preflight", recording.tool_version, plugins),
        run=Run(
            recording.verb,
            recording.created,
            recording.executor,
            recording.context_provenance,
            recording.stages,
            recording.origin,
            recording.smoke_options,
        ),
        inputs=_inputs(recording.jobs),
        jobs=tuple(sorted(map(_without_variants, recording.jobs), key=lambda job: job.name)),
        nodes=recording.nodes,
        outcomes=outcomes,
        findings=result.kept,
        suppressed=result.suppressed,
        coverage=Coverage(
            passed=counts[Status.PASS],
            failed=counts[Status.FAIL],
            unknown=counts[Status.UNKNOWN],
            not_applicable=counts[Status.NOT_APPLICABLE],
            unknown_outcomes=unknown_outcomes,
            unused_suppressions=result.unused,
            broken=(*broken, *missing_charts),
            suppression_notes=result.suppression_notes,
            unused_baseline=result.stale,
            left_out=recording.left_out,
        ),
        verdict=verdict,
        exit_code=_exit_code(recording, verdict),
        configuration=recording.configuration,
        avoided_cost=_avoided_cost(recording, result.kept, verdict),
        charts=charts,
        understood=understanding(recording.jobs, outcomes),
        measurements=measurements,
        properties=properties,
    )


def undecided(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the unknown outcomes, required ones first."""
    unknown = (outcome for outcome in outcomes if outcome.status is Status.UNKNOWN)
    return tuple(sorted(unknown, key=lambda outcome: (not outcome.required, outcome.id, outcome.subject)))


def _avoided_cost(recording: Recording, findings: Sequence[Finding], verdict: VerdictKind) -> AvoidedCost | None:
    """Return the avoided cost. An injected fault would have cost nothing."""
    if verdict is not VerdictKind.NO_GO or recording.smoke_options.injected_fault is not None:
        return None
    nodes = tuple(record.node.name for record in recording.nodes)
    return avoided_cost(findings, recording.jobs, nodes=nodes, fail_on=Severity(recording.configuration.fail_on))


def crashed(error: BaseException, *, verb: str, created: str, version: str) -> Report:
    """Return the report of a run that a bug in preflight ended before there was anything to judge."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = ", ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in last)
    bug = Broken(
        "preflight", "preflight", where or "unknown place", scrub_traceback(f"{type(error).__name__}: {error}")
    )
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
    recording: Recording, findings: Sequence[Finding], unknown_outcomes: Sequence[Outcome], broken: Sequence[Broken]
) -> VerdictKind:
    """Return no-go if a finding demands it; incomplete if something required was not examined; otherwise not judged if
    no launch was recognised.

    Rules also check whether everything required was examined, but `--select` can exclude those rules. A run without
    nodes or files must not look like one without faults.
    """
    worst = max((finding.severity.rank for finding in findings), default=-1)
    if worst >= Severity(recording.configuration.fail_on).rank:
        return VerdictKind.NO_GO
    if not _anything_read(recording) and not recording.interrupted and not broken:
        return VerdictKind.NOT_JUDGED
    missed = (
        recording.interrupted
        or broken
        or any(outcome.required for outcome in unknown_outcomes)
        or any(record.problem for record in recording.nodes)
        or (recording.verb != "lint" and _without_nodes(recording))
        or any(note.required for job in recording.jobs for note in job.notes)
    )
    if missed:
        return VerdictKind.INCOMPLETE
    return VerdictKind.GO if _is_understood(recording) else VerdictKind.NOT_JUDGED


def _is_understood(recording: Recording) -> bool:
    """Return whether a launch was recognised; a run of nodes alone needs no launch."""
    if any(job.launches for job in recording.jobs):
        return True
    return recording.verb in (NODES, SMOKE) and not any(job.files for job in recording.jobs)


def _without_nodes(recording: Recording) -> bool:
    return not recording.nodes or (recording.origin is not None and bool(recording.origin.problem))


def _anything_read(recording: Recording) -> bool:
    """Return whether a file was read, or a required file could not be."""
    given = any(job.files or any(note.required for note in job.notes) for job in recording.jobs)
    return given or recording.verb in (NODES, SMOKE)


def _exit_code(recording: Recording, verdict: VerdictKind) -> int:
    if recording.interrupted:
        return recording.interrupted
    if verdict is VerdictKind.NO_GO:
        return ExitCode.NO_GO
    if verdict is VerdictKind.NOT_JUDGED:
        since = recording.configuration.since
        # A change that touches no job passes, although no job was judged.
        if since is not None and since.unchanged_jobs and not recording.jobs:
            return ExitCode.GO
        allowed = recording.configuration.allow_incomplete and _anything_read(recording)
        return ExitCode.GO if allowed else ExitCode.NOT_JUDGED
    if verdict is VerdictKind.INCOMPLETE and not recording.configuration.allow_incomplete:
        return ExitCode.INCOMPLETE
    return ExitCode.GO


def _without_variants(job: Job) -> Job:
    """Return the job without the variants that its scripts' defaults give; the findings contain their consequences."""
    return job if job.by_default is None else replace(job, by_default=None)


def _inputs(jobs: Sequence[Job]) -> tuple[Input, ...]:
    found = {file.path: Input(file.path, file.kind, file.sha256, file.size_bytes) for job in jobs for file in job.files}
    return tuple(found[path] for path in sorted(found))


def to_json(report: Report, *, compact: bool = False) -> bytes:
    """Return the report as JSON, indented, ending in a newline.

    Args:
        compact: omit outcomes that passed or do not apply; `coverage` still counts them.

    Each outcome, each chart, each quantity and the properties of each node is one line.
    """
    if compact:
        left = tuple(o for o in report.outcomes if o.status not in (Status.PASS, Status.NOT_APPLICABLE))
        report = replace(report, outcomes=left)
    return to_bytes(report, indent=2, bulk=("outcomes", "charts", "measurements", "properties"))


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the output of `to_json`."""
    return schema_of(adapter(), "preflight report")


def adapter() -> Any:
    """Return the pydantic adapter that reads and describes reports."""
    from pydantic import TypeAdapter

    # Looked up here when the annotations of `Report` are resolved.
    from preflight.model.charts import Chart  # noqa: F401

    return TypeAdapter(Report)


#: Largest number of findings shown, because a notebook stores its output; the report has all of them.
_MAX_FINDINGS = 50
_MAX_LENGTH = 1000
_TOP = "vertical-align:top;text-align:left"


def notebook_view(report: Report, numbers: str) -> str:
    """Return HTML without scripts or styles; anything from files is only text."""
    head = f"<p><strong>{_text(report.verdict.value)}</strong> {_text(numbers)}</p>"
    rows = "".join(map(_row, report.findings[:_MAX_FINDINGS]))
    left = len(report.findings) - _MAX_FINDINGS
    more = f"<p>and {left} more in <code>report.findings</code></p>" if left > 0 else ""
    names = "".join(f'<th style="{_TOP}">{name}</th>' for name in ("severity", "rule", "where", "what"))
    table = f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div>{head}{table}{more}</div>"


def _row(finding: Finding) -> str:
    place = next((f"{place.path}:{place.line}" for place in finding.locations), "")
    where = " ".join(filter(None, (place, fold_nodes(finding.nodes)))) or finding.subject
    fix = f"\nFix: {finding.remedy}" if finding.remedy else ""
    cells = (finding.severity.value, f"{finding.id} {finding.name}", where, f"{finding.message}{fix}")
    return "<tr>" + "".join(f'<td style="{_TOP}">{_text(cell)}</td>' for cell in cells) + "</tr>"


def _text(text: str) -> str:
    plain = clean(text[:_MAX_LENGTH], keep_newlines=True)
    return html.escape(plain + (" …" if len(text) > _MAX_LENGTH else "")).replace("\n", "<br>")


class Hosts(NamedTuple):
    """The nodes of a run by result, in rank order; each node is in exactly one of the three lists.

    Args:
        passing: all others.
        failing: not reached, or named by a finding that makes the verdict no-go.
        unknown: a required result about them is unknown.
    """

    passing: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def hosts_of(report: Report) -> Hosts:
    """Sort the nodes of a report by result. A finding only about files concerns no node.

    The outcome of a run with an injected fault says nothing about its nodes.
    """
    rank = Severity(report.configuration.fail_on).rank
    failing = {record.node.name for record in report.nodes if record.problem}
    has_injected_fault = report.run.smoke_options.injected_fault is not None
    for finding in () if has_injected_fault else report.findings:
        if finding.severity.rank >= rank:
            failing.update(finding.nodes)
    names = [record.node.name for record in report.nodes]
    unknown = (set(names) if has_injected_fault else _unknown_nodes(report, frozenset(names))) - failing
    return Hosts(
        tuple(name for name in names if name not in failing and name not in unknown),
        tuple(name for name in names if name in failing),
        tuple(name for name in names if name in unknown),
    )


def _unknown_nodes(report: Report, names: frozenset[str]) -> set[str]:
    """Return the nodes that a required unknown result concerns. A result that lists no nodes concerns all of them."""
    looked_at = any(stage.name == "node" and not stage.skipped for stage in report.run.stages)
    if not looked_at or report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return set(names)
    unknown: set[str] = set()
    for outcome in report.coverage.unknown_outcomes:
        if outcome.required and outcome.stage != "lint":
            # A plugin's check may name a node only in the subject.
            unknown |= (names & {*outcome.nodes, outcome.subject}) or names
    return unknown


def starts_without(report: Report, hosts: Hosts) -> tuple[str, ...]:
    """Return commands and options that run the job without the failing nodes; empty if no node would be left."""
    left = len(hosts.passing) + len(hosts.unknown)
    if not hosts.failing or not left or not all(map(is_hostname, hosts.failing)):
        return ()
    starts: list[str] = []
    scripts = sorted({c.span.path for job in report.jobs for c in job.claims if c.source == "slurm"})
    if scripts or report.run.executor == "slurm":
        starts.append(f"sbatch --exclude={folded(hosts.failing)}" + (f" {scripts[0]}" if len(scripts) == 1 else ""))
    launchers = {launch.launcher for job in report.jobs for launch in job.launches}
    if "deepspeed" in launchers:
        starts.append(f'deepspeed --exclude="{"@".join(hosts.failing)}"')
    if not starts:
        starts.append("--output passing-hosts:hosts.txt lists the passing nodes, for launchers that accept a host file")
    return tuple(starts)
