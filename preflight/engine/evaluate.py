"""Runs every selected rule and check over a recording, each isolated from the others and from broken facts.

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

#: The largest number of findings of one rule or check per job; a hostile file may cause any number of findings.
MAX_FINDINGS = 1000
#: Each claim of a job increases the budget of an evaluation as much as a file of this size, in bytes.
_BYTES_PER_CLAIM = 64
#: The largest number of names of jobs or variables that one text lists.
_MAX_NAMED = 5


def is_selected(meta: Meta, configuration: Configuration) -> bool:
    """Return whether profile, `select` and `ignore` select this rule or check; mandatory ones always are."""
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
    """Return all outcomes by id, job name and order of statement. With `facts`, the caller must call `clear_memo`."""
    outcomes: list[Outcome] = []
    configuration = recording.configuration
    jobs = _sort_jobs(recording.jobs)
    current().refill()
    total = len(rules) + (len(checks) if recording.verb != "lint" else 0)
    for number, rule in enumerate(rules):
        progress(Step("judge", number, total))
        if is_selected(rule.meta, configuration):
            chosen_severity = severity_chosen(rule.meta.id, rule.meta.name, configuration.severities)
            for index, job in enumerate(jobs):
                if current().is_spent:
                    outcomes.append(_budget_outcome(rule.meta, jobs[index:]))
                    break
                job_outcomes = list(
                    _isolate(rule.meta, job, functools.partial(rule.judge, job), chosen_severity=chosen_severity)
                )
                outcomes.extend(_add_default_warnings(rule, job, job_outcomes, chosen_severity))
    if recording.verb != "lint":
        run_facts = Facts(recording.facts, recording.events) if facts is None else facts
        for number, check_outcomes in enumerate(_outcomes_of_checks(recording, checks, run_facts), len(rules)):
            progress(Step("judge", number, total))
            outcomes.extend(check_outcomes)
        if facts is None:
            clear_memo(run_facts)
        for job in jobs:
            clear_memo(job)
            if job.by_default is not None:
                clear_memo(job.by_default)
    # A finding about a file that several jobs share is included once.
    return tuple(dict.fromkeys(sorted(outcomes, key=lambda outcome: outcome.id)))


def _add_default_warnings(
    rule: Rule, job: Job, outcomes: list[Outcome], chosen_severity: Severity | None
) -> Iterator[Outcome]:
    """Yield the outcomes, and a warning for each undecided subject with an error under the scripts' defaults."""
    yield from outcomes
    unknown = {outcome.subject for outcome in outcomes if outcome.status is Status.UNKNOWN}
    if job.by_default is None or not unknown:
        return
    known = {outcome.finding for outcome in outcomes}
    judge = functools.partial(rule.judge, job.by_default)
    for outcome in _isolate(rule.meta, job.by_default, judge, chosen_severity=chosen_severity):
        finding = outcome.finding
        if finding is None or finding in known or outcome.subject not in unknown:
            continue
        if finding.severity is Severity.ERROR:
            yield _default_warning(outcome, finding, job.by_default)


def _default_warning(outcome: Outcome, finding: Finding, job: Job) -> Outcome:
    quoted_text = " ".join((finding.message, *(location.snippet or "" for location in finding.locations)))
    used_defaults = [
        (name, value) for name, value in job.assumed if re.search(rf"\$\{{?{re.escape(name)}(?!\w)", quoted_text)
    ]
    defaults_text = join_some([_assumption(*each) for each in used_defaults or job.assumed], _MAX_NAMED)
    message = f"With the defaults ({defaults_text}): {finding.message}"
    return replace(outcome, finding=replace(finding, severity=Severity.WARNING, message=message, fix=None))


def _assumption(name: str, value: str) -> str:
    return f"{name}={value}" if value else f"{name} not given"


def _budget_outcome(meta: Meta, jobs: Sequence[Job]) -> Outcome:
    """Return one outcome for all jobs that a rule was not applied to, because there may be thousands of them."""
    named = join_some([job.name for job in jobs], _MAX_NAMED)
    reason = (
        f"{meta.id} {meta.name} was not applied to {named}, because the run exhausted its CPU time or memory;"
        " pass fewer files, or skip some with --exclude"
    )
    return Outcome(meta.id, meta.name, Status.UNKNOWN, jobs[0].name, reason, required=True)


def _sort_jobs(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.name)


def _outcomes_of_checks(recording: Recording, checks: Sequence[Check], facts: Facts) -> Iterator[Iterator[Outcome]]:
    """Yield the outcomes of each check, computed on demand."""
    fleet = fleet_of(recording)
    skipped = {stage.name: stage.skipped for stage in recording.stages if stage.skipped}
    planning_errors = {(check.id, check.job): check.traceback for check in recording.unplanned}
    ran = {stage.name for stage in recording.stages if not stage.skipped}
    for check in sorted(checks, key=lambda c: (STAGES.index(c.when), c.meta.id)):
        yield _outcomes_of_check(recording, check, fleet, facts, skipped, planning_errors, ran)


def _outcomes_of_check(
    recording: Recording,
    check: Check,
    fleet: Fleet,
    facts: Facts,
    skipped: Mapping[str, str],
    unplanned: Mapping[tuple[str, str], str],
    ran: Collection[str],
) -> Iterator[Outcome]:
    if not is_selected(check.meta, recording.configuration):
        return
    chosen_severity = severity_chosen(check.meta.id, check.meta.name, recording.configuration.severities)
    for job in _sort_jobs(recording.jobs):
        planning_error = unplanned.get((check.meta.id, job.name))
        if planning_error is not None:
            name = f"{check.meta.id} {check.meta.name}"
            reason = f"{name} crashed while planning, which is a bug in the check:\n{planning_error}"
            yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, job.name, reason, required=True), check.when)
        elif check.when in ran:
            yield from _judge_check(check, job, fleet, facts, chosen_severity)
        elif check.when in skipped:
            reason = f"the {check.when} stage did not run: {skipped[check.when]}"
            cut_short = bool(recording.interrupted) or recording.verb == SMOKE
            yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, job.name, reason, required=cut_short), check.when)


def _judge_check(
    check: Check, job: Job, fleet: Fleet, facts: Facts, chosen_severity: Severity | None
) -> Iterator[Outcome]:
    """Yield the outcomes of one check. If the check crashes on the data of a node, only that node is unknown."""
    ignored_nodes: dict[str, str] = {}

    def judge() -> Iterable[Verdict]:
        verdicts, problems = judge_without_crashing_nodes(functools.partial(check.judge, job), fleet, facts)
        ignored_nodes.update(problems)
        return verdicts

    yield from _isolate(check.meta, job, judge, check.when, chosen_severity=chosen_severity)
    for node, error_text in ignored_nodes.items():
        reason = (
            f"{check.meta.id} {check.meta.name} cannot interpret the facts of {node} and ignores them: {error_text}"
        )
        yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, node, reason, nodes=(node,), required=True), check.when)


def _isolate(
    meta: Meta,
    job: Job,
    judge: Callable[[], Iterable[Verdict]],
    stage: str = "lint",
    *,
    chosen_severity: Severity | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of one evaluation; a crash or a timeout becomes an outcome and does not affect the others."""

    # Outcomes are stored as the rule yields them, so that faults that were found before a crash count.
    outcomes: list[Outcome] = []
    fault_count = 0

    def evaluate() -> None:
        nonlocal fault_count
        for verdict in judge():
            fault_count += verdict.status is Status.FAIL
            if verdict.status is not Status.FAIL or fault_count <= MAX_FINDINGS:
                outcomes.append(_outcome(meta, job, verdict, stage, chosen_severity=chosen_severity))

    try:
        current().attempt(evaluate, _BYTES_PER_CLAIM * len(job.claims))
        if fault_count > MAX_FINDINGS:
            excess = fault_count - MAX_FINDINGS
            reason = f"{excess} more findings of {meta.id} in {job.name} are not listed; fix the listed findings first"
            outcomes.append(Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage))
    except BudgetExceeded as exceeded:
        reason = f"{meta.id} {meta.name} was stopped on {job.name}, because it needs {exceeded.excess}"
        outcomes.append(Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage))
    except Exception:
        text = scrub_traceback(traceback.format_exc(limit=-4))
        reason = f"{meta.id} {meta.name} crashed, which is a bug in this rule or check:\n{text}"
        outcomes.append(Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage))
    yield from outcomes


def _outcome(meta: Meta, job: Job, verdict: Verdict, stage: str, *, chosen_severity: Severity | None = None) -> Outcome:
    finding = _finding(meta, job, verdict, chosen_severity) if verdict.status is Status.FAIL else None
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


def _finding(meta: Meta, job: Job, verdict: Verdict, chosen_severity: Severity | None) -> Finding:
    """Return the finding. Its severity is the user's or the author's choice, limited by its confidence."""
    confidence = verdict.confidence or meta.confidence
    severity = chosen_severity or _lower_severity(verdict.severity, meta.severity)
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
    """Return whether a fault depends on the guess that sibling scripts form one job, and not only on one launch."""
    if not job.probable:
        return False
    is_of_launch = verdict.subject in {launch.id for launch in job.launches}
    return not is_of_launch or len({location.path for location in verdict.locations}) > 1


def _lower_severity(severity: Severity | None, limit: Severity) -> Severity:
    return severity if severity is not None and severity.rank < limit.rank else limit


T = TypeVar("T")
#: If the facts of more nodes than this make a check crash, the check itself is at fault.
MAX_NODES = 32

#: A function of the nodes and their facts.
Judge = Callable[[Fleet, Facts], Iterable[T]]


def judge_without_crashing_nodes(judge: Judge[T], fleet: Fleet, facts: Facts) -> tuple[list[T], dict[str, str]]:
    """Return the result of `judge`, and nodes with unusable facts; raises its error if it always crashes."""
    try:
        return list(judge(fleet, facts)), {}
    except Exception as error:
        first_error = error
    nodes = sorted({node.name for node in fleet.nodes} | {record.request.node for record in facts.records})
    problems: dict[str, str] = {}

    def attempt(excluded_nodes: Mapping[str, str]) -> list[T] | Exception:
        try:
            return list(judge(fleet_without(fleet, excluded_nodes), facts_without(facts, excluded_nodes)))
        except Exception as error:
            return error

    def search(candidates: list[str], excluded_names: list[str]) -> None:
        """Add to `problems` the candidates whose facts crash `judge` when `excluded_names` are excluded."""
        if len(problems) > MAX_NODES:
            return
        attempt_result = attempt({**problems, **dict.fromkeys(excluded_names, "")})
        if not isinstance(attempt_result, Exception):
            return
        if len(candidates) == 1:
            problems[candidates[0]] = f"{type(attempt_result).__name__}: {attempt_result!s:.200}"
            return
        middle = len(candidates) // 2
        search(candidates[:middle], [*candidates[middle:], *excluded_names])
        search(candidates[middle:], excluded_names)

    if isinstance(attempt(dict.fromkeys(nodes, "")), Exception):
        raise first_error
    search(nodes, [])
    result = attempt(problems)
    if isinstance(result, Exception) or len(problems) > MAX_NODES:
        raise first_error
    return result, problems


def facts_without(facts: Facts, nodes: Mapping[str, str]) -> Facts:
    """Return a copy of `facts` in which every fact of a node in `nodes` is unavailable, for the reason given there."""
    records = [
        replace(record, value=None, unavailable=_excluded_fact(nodes[record.request.node]))
        if record.request.node in nodes and record.unavailable is None
        else record
        for record in facts.records
    ]
    return Facts(records, tuple(event for event in facts.events() if event.node not in nodes))


def fleet_without(fleet: Fleet, nodes: Mapping[str, str]) -> Fleet:
    """Return the fleet without the data that the nodes in `nodes` sent."""
    records = tuple(
        NodeRecord(record.node, record.problem, record.problem_kind) if record.node.name in nodes else record
        for record in fleet.records
    )
    return replace(fleet, records=records)


def _excluded_fact(error_text: str) -> Unavailable:
    return Unavailable("crashed", f"its facts cannot be interpreted: {error_text}" if error_text else "it was excluded")
