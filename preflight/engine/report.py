"""The report of a run, in one versioned schema that reporters print and programs read: its results and their basis.

Within a schema version, fields are only added. The committed JSON Schema is generated from these classes.
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


# The cost that a no-go avoided: the nodes of a job would have waited until its ranks gave up. A fault counts only if
# its rule or check states that all ranks would wait. Several faults of a job count as one wait. Every number comes from
# the job's files, or is a default with a source. If a number is missing, no cost is stated.


#: Launchers whose agents use torch's rendezvous before any rank starts.
_ELASTIC_LAUNCHERS = ("torchrun", "torch.distributed.launch", "accelerate")
#: Patterns by kind of rendezvous for the seconds in `--rdzv_conf` that a node waits for the others.
_CONF_TIMEOUTS = {
    "static": re.compile(r"(?:^|,)\s*timeout=(\d{1,9})(?!\d)"),
    "": re.compile(r"(?:^|,)\s*join_timeout=(\d{1,9})(?!\d)"),
}


@dataclass(frozen=True, slots=True)
class AvoidedCost:
    """The cost of a run's faults: all nodes of a job wait once until a timeout ends the wait.

    Args:
        findings: the ids of the findings that would have made all ranks wait.
        nodes: the number of waiting nodes.
        nodes_from: a description of the source of `nodes`.
        timeout_s: the seconds until a timeout would have ended the wait.
        timeout_from: a description of the source of `timeout_s`: the job's own setting, or the source of the default.
        node_hours: the number of nodes times the timeout.
        gpus_per_node: the number of GPUs of each node; null if it is unknown.
        gpus_from: a description of the source of `gpus_per_node`.
        gpu_hours: the node-hours times the GPUs per node; null if this number is unknown.
        price_per_gpu_hour: the price in the user's currency; null if no price was given.
        cost: the GPU-hours times the price; null if either is unknown.
        job: the name of the job with these nodes; of several such jobs, the job with the highest cost.
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


class _SourcedNumber(NamedTuple):
    value: int
    words: str


def avoided_cost(
    findings: Sequence[Finding], jobs: Sequence[Job], *, nodes: Sequence[str] = (), fail_on: Severity = Severity.ERROR
) -> AvoidedCost | None:
    """Return the cost that these findings avoided, on `nodes` or those in the files; None if unknown."""
    waiting_findings = [finding for finding in findings if finding.waits_at and finding.severity.rank >= fail_on.rank]
    costs = [
        _job_cost(job, waiting_findings if len(jobs) == 1 else _findings_about(job, waiting_findings), nodes)
        for job in jobs
    ]
    return max((cost for cost in costs if cost is not None), key=lambda cost: cost.node_hours, default=None)


def _findings_about(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    launches, files = {launch.id for launch in job.launches}, {file.path for file in job.files}
    return [f for f in findings if f.subject in launches or any(location.path in files for location in f.locations[:1])]


def _job_cost(job: Job, waits: Sequence[Finding], nodes: Sequence[str]) -> AvoidedCost | None:
    # A rank that does not complete the rendezvous waits nowhere else.
    first_findings = [finding for finding in waits if finding.waits_at == "rendezvous"] or waits
    subjects = {finding.subject for finding in first_findings}
    launches = [launch for launch in job.launches if launch.id in subjects] or job.launches
    for launch in launches if first_findings else ():
        node_count = _SourcedNumber(len(nodes), "nodes of this run") if nodes else _node_count(job, launch.scope)
        timeout = (
            _rendezvous_timeout(job, launch)
            if first_findings[0].waits_at == "rendezvous"
            else _group_timeout(job, launch)
        )
        if node_count is None or timeout is None or node_count.value < 2:
            continue
        gpu_count = _gpu_count(job, launch)
        hours = node_count.value * timeout.value / 3600
        return AvoidedCost(
            job=job.name,
            findings=tuple(dict.fromkeys(finding.id for finding in first_findings)),
            nodes=node_count.value,
            nodes_from=node_count.words,
            timeout_s=timeout.value,
            timeout_from=timeout.words,
            node_hours=round(hours, 3),
            gpus_per_node=gpu_count.value if gpu_count else None,
            gpus_from=gpu_count.words if gpu_count else "",
            gpu_hours=round(hours * gpu_count.value, 3) if gpu_count else None,
        )
    return None


def with_price(avoided: AvoidedCost | None, price_per_gpu_hour: float | None) -> AvoidedCost | None:
    """Return the avoided cost with its price, if there are GPUs and a price per GPU-hour."""
    if avoided is None or price_per_gpu_hour is None or avoided.gpu_hours is None:
        return avoided
    cost = round(avoided.gpu_hours * price_per_gpu_hour, 2)
    return replace(avoided, price_per_gpu_hour=price_per_gpu_hour, cost=cost)


def _smallest_number(claims: Sequence[Claim]) -> _SourcedNumber | None:
    """Return the smallest value of the claims with its spelling; None if any value is not a known positive number."""
    claim_values: list[tuple[int, Claim]] = []
    for claim in claims:
        if not isinstance(claim.value, Known) or not isinstance(claim.value.value, int) or claim.value.value < 1:
            return None
        claim_values.append((int(claim.value.value), claim))
    if not claim_values:
        return None
    value, claim = min(claim_values, key=lambda pair: pair[0])
    return _SourcedNumber(value, _claim_words(claim))


def _claim_words(claim: Claim) -> str:
    return f"`{claim.spelling}` ({claim.span.path}:{claim.span.line})"


def _node_count(job: Job, scope: Scope) -> _SourcedNumber | None:
    """Return the number of allocated nodes: the allocation of the job takes precedence over the launcher's request."""
    return _smallest_number(job.setting("nodes", scope)) or _smallest_number(job.requirement_claims("nodes", scope))


def _gpu_count(job: Job, launch: Launch) -> _SourcedNumber | None:
    stated_count = _smallest_number(job.setting("gpus_per_node", launch.scope)) or _smallest_number(
        job.requirement_claims("gpus_per_node", launch.scope)
    )
    if stated_count is not None:
        return stated_count
    rank_count = _smallest_number(job.setting("processes_per_node", launch.scope))
    if rank_count is None or _backend(job, launch) != "nccl":
        return None
    # NCCL uses one GPU per rank, and rejects two ranks on one.
    return _SourcedNumber(rank_count.value, f"one per rank, {rank_count.words}")


def _backend(job: Job, launch: Launch) -> str:
    backends = {
        claim.value.value
        for claim in (*job.setting("backend", launch.scope), *job.setting("backend"))
        if isinstance(claim.value, Known)
    }
    return str(backends.pop()) if len(backends) == 1 else ""


def _rendezvous_timeout(job: Job, launch: Launch) -> _SourcedNumber | None:
    """Return the seconds of the first wait: of launcher agents, or of ranks in group setup; None if unknown."""
    if launch.launcher not in _ELASTIC_LAUNCHERS:
        return _group_timeout(job, launch)
    if any(Known(True) == claim.value for claim in job.setting("standalone", launch.scope)):
        return _default_timeout("rendezvous.dynamic")
    backend_claims = job.setting("rendezvous_backend", launch.scope)
    if any(not isinstance(claim.value, Known) for claim in backend_claims):
        return None
    kinds = {str(claim.value.value) for claim in backend_claims if isinstance(claim.value, Known)} or {"static"}
    if len(kinds) > 1:
        return None
    kind = "static" if kinds == {"static"} else ""
    for claim in job.setting("rendezvous_conf", launch.scope):
        options = claim.value.value if isinstance(claim.value, Known) else None
        match = _CONF_TIMEOUTS[kind].search(str(options)) if options else None
        if match:
            return _SourcedNumber(int(match[1]), _claim_words(claim))
    return _default_timeout("rendezvous.static" if kind else "rendezvous.dynamic")


def _group_timeout(job: Job, launch: Launch) -> _SourcedNumber | None:
    """Return the seconds that ranks wait in group setup or in a collective; None if unknown."""
    timeouts = job.setting("process_group_timeout_s", launch.scope) or job.setting("process_group_timeout_s")
    if any(claim.strength > Strength.DEFAULT for claim in timeouts):
        return _smallest_number(timeouts)
    if launch.launcher == "deepspeed":
        return _default_timeout("group.deepspeed")
    backend = _backend(job, launch)
    if f"group.{backend}" in DEFAULTS:
        return _default_timeout(f"group.{backend}")
    return None


def _default_timeout(key: str) -> _SourcedNumber:
    row = DEFAULTS[key]
    return _SourcedNumber(row.seconds, row.words)


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
_SIZE_QUANTITIES = ("nodes", "processes_per_node", "tasks", "tasks_per_node")


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that the job refers to, or that was selected, and that was not read completely.

    Args:
        path: the path relative to the root.
        reason: the reason as a sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Understood:
    """How many launches, files and rules preflight understood. Without a launch nothing is known about the ranks.

    Args:
        launches: the number of command lines that start ranks.
        worlds_known: the number of launches whose number of ranks the files state.
        worlds_symbolic: the number of launches whose number of ranks depends on a named value, or is one of a few
            numbers.
        worlds_unknown: the number of launches without any claim about the number of ranks.
        jobs_without_launch: the number of jobs without a file that starts ranks.
        files_read: the number of files that were read.
        files_unread: the files that were not read completely, at most 100.
        unread: the total number of files that were not read completely.
        rules_judged: the number of rules that passed or failed at least one subject.
        rules_undecided: the ids of the rules that could not judge some subject, because a value is unknown.
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


def understood_parts(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Understood:
    """Return which parts of these jobs were understood, and which rules could judge them."""
    world_states = [_world_state(job, launch) for job in jobs for launch in job.launches]
    unread_files = tuple(dict.fromkeys(_unread_files(jobs)))
    judged_ids = {o.id for o in outcomes if o.stage == _LINT and o.status in (Status.PASS, Status.FAIL)}
    undecided_ids = {o.id for o in outcomes if o.stage == _LINT and o.status is Status.UNKNOWN}
    return Understood(
        launches=len(world_states),
        worlds_known=world_states.count("known"),
        worlds_symbolic=world_states.count("symbolic"),
        worlds_unknown=world_states.count("unknown"),
        jobs_without_launch=sum(bool(job.files) and not job.launches for job in jobs),
        files_read=len({file.path for job in jobs for file in job.files}),
        files_unread=unread_files[:_MAX_UNREAD],
        unread=len(unread_files),
        rules_judged=len(judged_ids),
        rules_undecided=tuple(sorted(undecided_ids)),
    )


def _world_state(job: Job, launch: Launch) -> str:
    for quantity in ("world_size", "ps_workers"):
        claims = job.value_claims(quantity, launch.scope)
        if claims:
            return "known" if all(isinstance(claim.value, Known) for claim in claims) else "symbolic"
    return "symbolic" if any(job.value_claims(quantity, launch.scope) for quantity in _SIZE_QUANTITIES) else "unknown"


def _unread_files(jobs: Sequence[Job]) -> Iterator[Unread]:
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
        version: the version of preflight.
        plugins: the distributions that contributed rules or checks, each with its version.
    """

    name: str
    version: str
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """How and when the recording was made.

    Args:
        context: the environment in which facts about ranks were observed.
        origin: the source of the list of nodes.
        smoke_options: the user's options for the smoke run.
        verb: `lint`, `check`, `nodes` or `smoke`: the command that made the recording, also if the recording was judged
            again.
        created: the time at which the recording was made, in ISO 8601 with offset.
        executor: the name of the transport to the nodes; empty if no node was reached.
        stages: the stages in the order in which they ran.
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
        path: the path relative to the root.
        kind: the name of the source that read the file.
        sha256: the hash of its content.
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
        unknown_outcomes: the unknown outcomes, required outcomes first.
        unused_suppressions: the comments that suppress nothing.
        broken: the parts of plugins that could not be loaded, or whose function for charts or measurements failed.
        suppression_notes: notes about unused or expired waivers, and about unused entries of the baseline.
        unused_baseline: the entries of the baseline whose finding no longer exists in a file that was read.
        left_out: the files in folders that were not read, with the reasons.
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
        id: the id of the rule or check: `WLD001`.
        name: the name of the rule or check: `launch-size-disagreement`.
        severity: the severity of these findings.
        findings: the number of these findings.
    """

    id: str
    name: str
    severity: Severity
    findings: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of findings.

    Args:
        errors, warnings, infos: the number of findings with this severity that count.
        suppressed: the number of findings that do not count.
        rules: the numbers of findings that count by rule or check, the worst and most frequent first.
    """

    errors: int = 0
    warnings: int = 0
    infos: int = 0
    suppressed: int = 0
    rules: tuple[RuleCount, ...] = ()


def count_findings(findings: Sequence[Finding], suppressed: Sequence[Finding] = ()) -> Summary:
    """Return the numbers of these findings, by severity and by rule."""
    severity_counts = Counter(finding.severity for finding in findings)
    rule_counts = Counter((finding.id, finding.name, finding.severity) for finding in findings)
    sorted_counts = sorted(rule_counts.items(), key=lambda item: (-item[0][2].rank, -item[1], item[0][0]))
    return Summary(
        severity_counts[Severity.ERROR],
        severity_counts[Severity.WARNING],
        severity_counts[Severity.INFO],
        len(suppressed),
        tuple(RuleCount(*key, number) for key, number in sorted_counts),
    )


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The whole report. The order is deterministic: findings worst first, outcomes by id, charts in the order of the
    packs.

    Use `adapter` to read reports with pydantic: the classes of charts are not imported with this class, because lint
    makes no charts.

    Args:
        summary: the numbers of findings in `findings` and `suppressed`.
        tool: the program that made the report.
        run: how and when the recording was made.
        inputs: every file that was read, by path.
        jobs: the jobs; files that refer to each other belong to one job.
        nodes: the result of connecting to each node, in rank order.
        outcomes: the result of every rule and check for every subject.
        findings: the faults that count, worst first.
        suppressed: the faults that do not count, with the reasons.
        coverage: the extent of the judgement.
        verdict: `no-go` if a finding reaches `fail_on`, otherwise `incomplete` if something required was not examined,
            otherwise `not-judged` if no launch was recognised, otherwise `go`.
        exit_code: the exit code of the command.
        schema_version: the version of this document's schema; fields are added within a version, and never removed.
        configuration: the user's choices that the verdict depends on.
        avoided_cost: the cost that a no-go avoided, if its faults would have made all ranks wait; otherwise null.
        charts: measurements as charts.
        measurements: the measurements of nodes and links by quantity, for comparison with other runs.
        properties: the known components of each node that answered.
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
        """Return one line with command, verdict and counts; `preflight.engine.report.to_json` returns everything."""
        return f"<Report of {self.run.verb}: {self.verdict.value}, {self._numbers()}>"

    def _repr_html_(self) -> str:
        """Return the verdict and a table of findings, for a notebook."""
        return notebook_view(self, self._numbers())

    def _numbers(self) -> str:
        summary = self.summary
        parts = [
            f"{number} {word}{'' if number == 1 or word == 'info' else 's'}"
            for number, word in ((summary.errors, "error"), (summary.warnings, "warning"), (summary.infos, "info"))
            if number
        ]
        files = f"{len(self.inputs)} file{'' if len(self.inputs) == 1 else 's'}"
        jobs = f"{len(self.jobs)} job{'' if len(self.jobs) == 1 else 's'}"
        return f"{', '.join(parts) or 'nothing found'} in {files} of {jobs}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as the JSON of `-o json`: dictionaries, lists, strings and numbers."""
        document: dict[str, Any] = json.loads(to_json(self))
        return document

    def select(
        self, *, severity: Severity | str | None = None, rule: str | None = None, file: str | None = None
    ) -> tuple[Finding, ...]:
        """Return the findings with all of these properties, in the order of the report.

        Args:
            severity: `error`, `warning` or `info`.
            rule: an id, a name or an area: `RDV001`, `rendezvous-on-loopback`, `RDV`.
            file: a path as in the report, or a pattern for `fnmatch`: `jobs/*.sbatch`. One location of a finding must
                match.

        Raises:
            UsageError: the severity does not exist.
        """
        severities = [item.value for item in Severity]
        severity_name = severity.value if isinstance(severity, Severity) else severity
        if severity_name is not None and severity_name not in severities:
            raise UsageError(f"unknown severity {severity_name!r}; use one of {', '.join(severities)}")
        return tuple(
            finding
            for finding in self.findings
            if (severity_name is None or finding.severity.value == severity_name)
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
    """Judge a recording and build the report. Charts, measurements and properties do not affect the verdict."""
    facts = Facts(recording.facts, recording.events)
    outcomes = outcomes_of(recording, rules, checks, facts=facts, progress=progress)
    charts: tuple[Chart, ...] = ()
    if chart_makers:
        from preflight.engine.pack_output import build_charts

        charts, broken_makers = build_charts(chart_makers, recording.jobs, fleet_of(recording), facts)
        missing_charts = (*missing_charts, *broken_makers)
    measurements: tuple[Measurements, ...] = ()
    properties: tuple[NodeProperties, ...] = ()
    if measurement_readers or property_readers:
        from preflight.engine.pack_output import build_measurements, properties_of

        measurements, broken_readers = build_measurements(
            measurement_readers, recording.jobs, fleet_of(recording), facts
        )
        missing_charts = (*missing_charts, *broken_readers)
        properties = properties_of(property_readers, fleet_of(recording), facts)
    clear_memo(facts)
    result = apply_suppressions(outcomes, recording)
    counts = Counter(outcome.status for outcome in outcomes)
    unknown_outcomes = unknown_outcomes_first(outcomes)
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
        jobs=tuple(sorted(map(_without_defaults, recording.jobs), key=lambda job: job.name)),
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
        understood=understood_parts(recording.jobs, outcomes),
        measurements=measurements,
        properties=properties,
    )


def unknown_outcomes_first(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the unknown outcomes, required outcomes first."""
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
    last_frames = traceback.extract_tb(error.__traceback__)[-1:]
    location = ", ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in last_frames)
    bug = Broken(
        "preflight", "preflight", location or "unknown place", scrub_traceback(f"{type(error).__name__}: {error}")
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
    """Return the verdict, as the field `verdict` of `Report` describes it.

    Rules also check whether everything required was examined, but `--select` can exclude those rules. A run without
    nodes or files must not look like a run without faults.
    """
    worst = max((finding.severity.rank for finding in findings), default=-1)
    if worst >= Severity(recording.configuration.fail_on).rank:
        return VerdictKind.NO_GO
    if not _has_input(recording) and not recording.interrupted and not broken:
        return VerdictKind.NOT_JUDGED
    is_incomplete = (
        recording.interrupted
        or broken
        or any(outcome.required for outcome in unknown_outcomes)
        or any(record.problem for record in recording.nodes)
        or (recording.verb != "lint" and _lacks_nodes(recording))
        or any(note.required for job in recording.jobs for note in job.notes)
    )
    if is_incomplete:
        return VerdictKind.INCOMPLETE
    return VerdictKind.GO if _is_understood(recording) else VerdictKind.NOT_JUDGED


def _is_understood(recording: Recording) -> bool:
    """Return whether a launch was recognised; a run of nodes alone needs no launch."""
    if any(job.launches for job in recording.jobs):
        return True
    return recording.verb in (NODES, SMOKE) and not any(job.files for job in recording.jobs)


def _lacks_nodes(recording: Recording) -> bool:
    return not recording.nodes or (recording.origin is not None and bool(recording.origin.problem))


def _has_input(recording: Recording) -> bool:
    """Return whether a file was read, or a required file could not be read, or the run examines nodes without files."""
    is_selected = any(job.files or any(note.required for note in job.notes) for job in recording.jobs)
    return is_selected or recording.verb in (NODES, SMOKE)


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
        allowed = recording.configuration.allow_incomplete and _has_input(recording)
        return ExitCode.GO if allowed else ExitCode.NOT_JUDGED
    if verdict is VerdictKind.INCOMPLETE and not recording.configuration.allow_incomplete:
        return ExitCode.INCOMPLETE
    return ExitCode.GO


def _without_defaults(job: Job) -> Job:
    """Return the job without `by_default`; the findings contain its consequences."""
    return job if job.by_default is None else replace(job, by_default=None)


def _inputs(jobs: Sequence[Job]) -> tuple[Input, ...]:
    input_by_path = {
        file.path: Input(file.path, file.kind, file.sha256, file.size_bytes) for job in jobs for file in job.files
    }
    return tuple(input_by_path[path] for path in sorted(input_by_path))


def to_json(report: Report, *, compact: bool = False) -> bytes:
    """Return the report as indented JSON that ends in a newline.

    Each outcome, each chart, each quantity and the properties of each node are one line.

    Args:
        compact: whether to omit outcomes that passed or do not apply; `coverage` still counts them.
    """
    if compact:
        undecided_outcomes = tuple(o for o in report.outcomes if o.status not in (Status.PASS, Status.NOT_APPLICABLE))
        report = replace(report, outcomes=undecided_outcomes)
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


#: The largest number of findings in a notebook, which stores its output; the report has all of them.
_MAX_FINDINGS = 50
_MAX_CELL_LENGTH = 1000
_CELL_STYLE = "vertical-align:top;text-align:left"


def notebook_view(report: Report, numbers: str) -> str:
    """Return the report as HTML without scripts or style sheets; anything from files is escaped."""
    summary_html = f"<p><strong>{_html_text(report.verdict.value)}</strong> {_html_text(numbers)}</p>"
    rows = "".join(map(_html_row, report.findings[:_MAX_FINDINGS]))
    hidden_count = len(report.findings) - _MAX_FINDINGS
    more_html = f"<p>and {hidden_count} more in <code>report.findings</code></p>" if hidden_count > 0 else ""
    heading_cells = "".join(f'<th style="{_CELL_STYLE}">{name}</th>' for name in ("severity", "rule", "where", "what"))
    table_html = f"<table><thead><tr>{heading_cells}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div>{summary_html}{table_html}{more_html}</div>"


def _html_row(finding: Finding) -> str:
    location = next((f"{location.path}:{location.line}" for location in finding.locations), "")
    subject_text = " ".join(filter(None, (location, fold_nodes(finding.nodes)))) or finding.subject
    fix_text = f"\nFix: {finding.remedy}" if finding.remedy else ""
    cells = (finding.severity.value, f"{finding.id} {finding.name}", subject_text, f"{finding.message}{fix_text}")
    return "<tr>" + "".join(f'<td style="{_CELL_STYLE}">{_html_text(cell)}</td>' for cell in cells) + "</tr>"


def _html_text(text: str) -> str:
    clean_text = clean(text[:_MAX_CELL_LENGTH], keep_newlines=True)
    return html.escape(clean_text + (" …" if len(text) > _MAX_CELL_LENGTH else "")).replace("\n", "<br>")


class Hosts(NamedTuple):
    """The nodes of a run by result, in rank order; each node is in exactly one of the three lists.

    Args:
        passing: the nodes that are neither failing nor unknown.
        failing: the nodes that were not reached, or that a finding that makes the verdict no-go names.
        unknown: the other nodes about which a required result is unknown.
    """

    passing: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def hosts_of(report: Report) -> Hosts:
    """Return the nodes by result, without findings on files; all unknown after an injected fault."""
    fail_rank = Severity(report.configuration.fail_on).rank
    failing = {record.node.name for record in report.nodes if record.problem}
    has_injected_fault = report.run.smoke_options.injected_fault is not None
    for finding in () if has_injected_fault else report.findings:
        if finding.severity.rank >= fail_rank:
            failing.update(finding.nodes)
    names = [record.node.name for record in report.nodes]
    unknown = (set(names) if has_injected_fault else _unknown_nodes(report, frozenset(names))) - failing
    return Hosts(
        tuple(name for name in names if name not in failing and name not in unknown),
        tuple(name for name in names if name in failing),
        tuple(name for name in names if name in unknown),
    )


def _unknown_nodes(report: Report, names: frozenset[str]) -> set[str]:
    """Return the nodes that a required unknown result concerns. A result that lists no node concerns all nodes."""
    was_examined = any(stage.name == "node" and not stage.skipped for stage in report.run.stages)
    if not was_examined or report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return set(names)
    unknown: set[str] = set()
    for outcome in report.coverage.unknown_outcomes:
        if outcome.required and outcome.stage != "lint":
            # A plugin's check may name a node only in the subject.
            unknown |= (names & {*outcome.nodes, outcome.subject}) or names
    return unknown


def commands_without_failing(report: Report, hosts: Hosts) -> tuple[str, ...]:
    """Return commands and options that run the job without the failing nodes; empty if no node would remain."""
    remaining_count = len(hosts.passing) + len(hosts.unknown)
    if not hosts.failing or not remaining_count or not all(map(is_hostname, hosts.failing)):
        return ()
    commands: list[str] = []
    scripts = sorted({c.span.path for job in report.jobs for c in job.claims if c.source == "slurm"})
    if scripts or report.run.executor == "slurm":
        commands.append(f"sbatch --exclude={folded(hosts.failing)}" + (f" {scripts[0]}" if len(scripts) == 1 else ""))
    launchers = {launch.launcher for job in report.jobs for launch in job.launches}
    if "deepspeed" in launchers:
        commands.append(f'deepspeed --exclude="{"@".join(hosts.failing)}"')
    if not commands:
        commands.append(
            "--output passing-hosts:hosts.txt lists the passing nodes, for launchers that accept a host file"
        )
    return tuple(commands)
