"""Judging: runs every selected rule and check over a recording, each isolated from the others and from broken facts.

Pure except for the code of the rules themselves: the same recording gives the same outcomes in the same order.

A check must handle every value that its probes' types allow, and a node may send any such value. If a value makes the
check crash, its node is found by judging again with the facts of fewer nodes.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from preflight._util.budget import BudgetExceeded, current
from preflight._util.redaction import scrub_traceback
from preflight._util.sequences import join_some
from preflight.model.configuration import SMOKE, STAGES, Configuration, matches, severity_chosen
from preflight.model.findings import PROFILES, Confidence, Finding, Outcome, Severity, Status
from preflight.model.job import Job
from preflight.model.progress import Progress, Step, ignore
from preflight.model.recording import Facts, Fleet, NodeRecord, Recording
from preflight.model.requests import Unavailable
from preflight.plugins.authoring import Check, Meta, Rule, Verdict, clear_memo

#: Largest number of findings of one rule or check per job; a hostile file may cause any number.
MAX_FINDINGS = 1000
#: A job's budget grows by a file of this size for each of its claims.
_BYTES_A_CLAIM = 64
#: The number of job names that one reason lists.
_MAX_NAMED = 5


def selected(meta: Meta, configuration: Configuration) -> bool:
    """Return whether the configuration selects this rule or check: by profile, then `select`, then `ignore`.

    Mandatory rules and checks are selected in every profile, and cannot be ignored.
    """
    mandatory = matches(meta.id, meta.name, configuration.mandatory)
    if matches(meta.id, meta.name, configuration.ignore) and not mandatory:
        return False
    if configuration.select:
        return mandatory or matches(meta.id, meta.name, configuration.select)
    return mandatory or PROFILES.index(meta.profile) <= PROFILES.index(configuration.profile)


def fleet_of(recording: Recording) -> Fleet:
    """Return the nodes of a recording as checks see them."""
    return Fleet(recording.nodes, recording.executor, recording.origin, recording.cluster, recording.smoke_options)


def outcomes_of(
    recording: Recording,
    rules: Sequence[Rule],
    checks: Sequence[Check],
    *,
    facts: Facts | None = None,
    progress: Progress = ignore,
) -> tuple[Outcome, ...]:
    """Return all outcomes of a recording, ordered by id, then job name, then the order in which they were stated.

    Args:
        facts: those of the recording, if the caller uses them afterwards; the caller then calls `clear_memo` for them.
        progress: called before each rule and check.
    """
    found: list[Outcome] = []
    configuration = recording.configuration
    jobs = _sort_outcomes(recording.jobs)
    current().refill()
    total = len(rules) + (len(checks) if recording.verb != "lint" else 0)
    for number, rule in enumerate(rules):
        progress(Step("judge", number, total))
        if selected(rule.meta, configuration):
            chosen = severity_chosen(rule.meta.id, rule.meta.name, configuration.severities)
            for done, job in enumerate(jobs):
                if current().is_spent:
                    found.append(_not_applied(rule.meta, jobs[done:]))
                    break
                of_job = list(_isolate(rule.meta, job, functools.partial(rule.judge, job), chosen=chosen))
                found.extend(_add_default_warnings(rule, job, of_job, chosen))
    if recording.verb != "lint":
        seen = Facts(recording.facts, recording.events) if facts is None else facts
        for number, outcomes in enumerate(_outcomes_of_checks(recording, checks, seen), len(rules)):
            progress(Step("judge", number, total))
            found.extend(outcomes)
        if facts is None:
            clear_memo(seen)
        for job in jobs:
            clear_memo(job)
            if job.by_default is not None:
                clear_memo(job.by_default)
    # A finding about a file that several jobs share is included once.
    return tuple(dict.fromkeys(sorted(found, key=lambda outcome: outcome.id)))


def _add_default_warnings(rule: Rule, job: Job, outcomes: list[Outcome], chosen: Severity | None) -> Iterator[Outcome]:
    """Yield the outcomes of a rule, and a warning for each undecided outcome that is an error with the scripts'
    defaults.
    """
    yield from outcomes
    unknown = {outcome.subject for outcome in outcomes if outcome.status is Status.UNKNOWN}
    if job.by_default is None or not unknown:
        return
    known = {outcome.finding for outcome in outcomes}
    judge = functools.partial(rule.judge, job.by_default)
    for outcome in _isolate(rule.meta, job.by_default, judge, chosen=chosen):
        finding = outcome.finding
        if finding is None or finding in known or outcome.subject not in unknown:
            continue
        if finding.severity is Severity.ERROR:
            yield _default_warnings(outcome, finding, job.by_default)


def _default_warnings(outcome: Outcome, finding: Finding, job: Job) -> Outcome:
    quoted = " ".join((finding.message, *(location.snippet or "" for location in finding.locations)))
    used = [(name, value) for name, value in job.assumed if re.search(rf"\$\{{?{re.escape(name)}(?!\w)", quoted)]
    shown = join_some([_assumption(*each) for each in used or job.assumed], _MAX_NAMED)
    message = f"With the defaults ({shown}): {finding.message}"
    return replace(outcome, finding=replace(finding, severity=Severity.WARNING, message=message, fix=None))


def _assumption(name: str, value: str) -> str:
    return f"{name}={value}" if value else f"{name} not given"


def _not_applied(meta: Meta, jobs: Sequence[Job]) -> Outcome:
    """Return one outcome for all jobs that a rule was not applied to: thousands of them would not fit into a report."""
    named = join_some([job.name for job in jobs], _MAX_NAMED)
    reason = (
        f"{meta.id} {meta.name} was not applied to {named}, because the run exhausted its CPU time or memory;"
        " pass fewer files, or skip some with --exclude"
    )
    return Outcome(meta.id, meta.name, Status.UNKNOWN, jobs[0].name, reason, required=True)


def _sort_outcomes(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.name)


def _outcomes_of_checks(recording: Recording, checks: Sequence[Check], facts: Facts) -> Iterator[Iterator[Outcome]]:
    """Yield the outcomes of each check, computed on demand."""
    fleet = fleet_of(recording)
    skipped = {stage.name: stage.skipped for stage in recording.stages if stage.skipped}
    unplanned = {(check.id, check.job): check.traceback for check in recording.unplanned}
    ran = {stage.name for stage in recording.stages if not stage.skipped}
    for check in sorted(checks, key=lambda c: (STAGES.index(c.when), c.meta.id)):
        yield _outcomes_of_check(recording, check, fleet, facts, skipped, unplanned, ran)


def _outcomes_of_check(
    recording: Recording,
    check: Check,
    fleet: Fleet,
    facts: Facts,
    skipped: Mapping[str, str],
    unplanned: Mapping[tuple[str, str], str],
    ran: Collection[str],
) -> Iterator[Outcome]:
    if not selected(check.meta, recording.configuration):
        return
    chosen = severity_chosen(check.meta.id, check.meta.name, recording.configuration.severities)
    for job in _sort_outcomes(recording.jobs):
        broken = unplanned.get((check.meta.id, job.name))
        if broken is not None:
            reason = f"{check.meta.id} {check.meta.name} crashed while planning, which is a bug in the check:\n{broken}"
            yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, job.name, reason, required=True), check.when)
        elif check.when in ran:
            yield from _judge_check(check, job, fleet, facts, chosen)
        elif check.when in skipped:
            reason = f"the {check.when} stage did not run: {skipped[check.when]}"
            cut_short = bool(recording.interrupted) or recording.verb == SMOKE
            yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, job.name, reason, required=cut_short), check.when)


def _judge_check(check: Check, job: Job, fleet: Fleet, facts: Facts, chosen: Severity | None) -> Iterator[Outcome]:
    """Yield the outcomes of one check; if it crashes on a node's data, only that node is unknown."""
    left_out: dict[str, str] = {}

    def judge() -> Iterable[Verdict]:
        verdicts, problems = judge_without_crashing_nodes(functools.partial(check.judge, job), fleet, facts)
        left_out.update(problems)
        return verdicts

    yield from _isolate(check.meta, job, judge, check.when, chosen=chosen)
    for node, why in left_out.items():
        reason = f"{check.meta.id} {check.meta.name} cannot judge the facts of {node} and ignores them: {why}"
        yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, node, reason, nodes=(node,), required=True), check.when)


def _isolate(
    meta: Meta, job: Job, judge: Callable[[], Iterable[Verdict]], stage: str = "lint", *, chosen: Severity | None = None
) -> Iterator[Outcome]:
    """Yield the outcomes of one evaluation; a crash or a timeout becomes an outcome and does not affect the others."""

    # Kept as they are produced: faults found before a crash count.
    found: list[Outcome] = []
    faults = 0

    def evaluate() -> None:
        nonlocal faults
        for verdict in judge():
            faults += verdict.status is Status.FAIL
            if verdict.status is not Status.FAIL or faults <= MAX_FINDINGS:
                found.append(_outcome(meta, job, verdict, stage, chosen=chosen))

    try:
        current().attempt(evaluate, _BYTES_A_CLAIM * len(job.claims))
        if faults > MAX_FINDINGS:
            more = faults - MAX_FINDINGS
            reason = f"{more} more findings of {meta.id} in {job.name} are not listed; fix the listed ones first"
            found.append(Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage))
    except BudgetExceeded as exceeded:
        reason = f"{meta.id} {meta.name} was stopped on {job.name}, because it takes {exceeded.excess}"
        found.append(Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage))
    except Exception:
        text = scrub_traceback(traceback.format_exc(limit=-4))
        reason = f"{meta.id} {meta.name} crashed, which is a bug in this rule or check:\n{text}"
        found.append(Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage))
    yield from found


def _outcome(meta: Meta, job: Job, verdict: Verdict, stage: str, *, chosen: Severity | None = None) -> Outcome:
    finding = _finding(meta, job, verdict, chosen) if verdict.status is Status.FAIL else None
    return Outcome(
        id=meta.id,
        name=meta.name,
        status=verdict.status,
        subject=verdict.subject,
        reason=verdict.message if verdict.status is not Status.FAIL else "",
        required=verdict.required,
        finding=finding,
        locations=verdict.locations if verdict.status is Status.UNKNOWN else (),
        stage=stage,
        nodes=verdict.nodes,
    )


def _finding(meta: Meta, job: Job, verdict: Verdict, chosen: Severity | None) -> Finding:
    """Return the finding with the severity chosen by the user, otherwise by the author, and never higher than its
    confidence allows.
    """
    confidence = verdict.confidence or meta.confidence
    severity = chosen or _lower(verdict.severity, meta.severity)
    if severity is Severity.ERROR and (confidence is not Confidence.HIGH or _depends_on_guess(job, verdict)):
        severity = Severity.WARNING
    return Finding(
        id=meta.id,
        name=meta.name,
        severity=severity,
        confidence=confidence,
        message=verdict.message,
        subject=verdict.subject,
        locations=verdict.locations,
        evidence=verdict.evidence,
        nodes=verdict.nodes,
        remedy=verdict.remedy,
        fix=verdict.fix,
        commands=verdict.commands,
        waits_at=verdict.waits_at,
    )


def _depends_on_guess(job: Job, verdict: Verdict) -> bool:
    """Return whether a fault depends on the guess that sibling scripts form one job, and not on one launch."""
    if not job.probable:
        return False
    of_one_launch = verdict.subject in {launch.id for launch in job.launches}
    return not of_one_launch or len({location.path for location in verdict.locations}) > 1


def _lower(text: Severity | None, limit: Severity) -> Severity:
    return text if text is not None and text.rank < limit.rank else limit


T = TypeVar("T")
#: If the facts of more nodes than this make a check crash, the check itself is at fault.
MAX_NODES = 32

#: A function of the nodes and their facts.
Judge = Callable[[Fleet, Facts], Iterable[T]]


def judge_without_crashing_nodes(judge: Judge[T], fleet: Fleet, facts: Facts) -> tuple[list[T], dict[str, str]]:
    """Return the result of `judge`, and the nodes whose facts it cannot handle, each with the error.

    Raises the error of `judge` if it crashes regardless of the facts.
    """
    try:
        return list(judge(fleet, facts)), {}
    except Exception as error:
        first = error
    nodes = sorted({node.name for node in fleet.nodes} | {record.request.node for record in facts.records})
    problems: dict[str, str] = {}

    def attempt(left_out: Mapping[str, str]) -> list[T] | Exception:
        try:
            return list(judge(fleet_without(fleet, left_out), facts_without(facts, left_out)))
        except Exception as error:
            return error

    def search(candidates: list[str], other: list[str]) -> None:
        """Find the candidates that make it crash. At the start their facts are excluded, like those of the `other`
        nodes.
        """
        if len(problems) > MAX_NODES:
            return
        found = attempt({**problems, **dict.fromkeys(other, "")})
        if not isinstance(found, Exception):
            return
        if len(candidates) == 1:
            problems[candidates[0]] = f"{type(found).__name__}: {found!s:.200}"
            return
        half = len(candidates) // 2
        search(candidates[:half], [*candidates[half:], *other])
        search(candidates[half:], other)

    if isinstance(attempt(dict.fromkeys(nodes, "")), Exception):
        raise first
    search(nodes, [])
    result = attempt(problems)
    if isinstance(result, Exception) or len(problems) > MAX_NODES:
        raise first
    return result, problems


def facts_without(facts: Facts, nodes: Mapping[str, str]) -> Facts:
    """Return the facts, with those of these nodes unavailable for the given reasons."""
    records = [
        replace(record, value=None, unavailable=_unavailable(nodes[record.request.node]))
        if record.request.node in nodes and record.unavailable is None
        else record
        for record in facts.records
    ]
    return Facts(records, tuple(event for event in facts.events() if event.node not in nodes))


def fleet_without(fleet: Fleet, nodes: Mapping[str, str]) -> Fleet:
    """Return the fleet without these nodes' own data."""
    records = tuple(_drop_data(record) if record.node.name in nodes else record for record in fleet.records)
    return replace(fleet, records=records)


def _drop_data(record: NodeRecord) -> NodeRecord:
    return NodeRecord(record.node, record.problem, record.problem_kind)


def _unavailable(why: str) -> Unavailable:
    return Unavailable("crashed", f"its facts cannot be judged: {why}" if why else "it was excluded")
