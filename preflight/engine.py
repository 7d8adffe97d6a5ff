"""Judging: every selected rule and check over a recording, each isolated from the others.

Pure but for the code of the rules themselves: the same recording gives the same outcomes in the same order.
"""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.configuration import Configuration, fits, severity_chosen
from preflight.job import Job
from preflight.judgement import STAGES, Check, Meta, Rule, Verdict
from preflight.once import forget
from preflight.outcome import PROFILES, Command, Confidence, Evidence, Finding, Outcome, Severity, Status
from preflight.progress import Progress, Step, ignore
from preflight.recording import Facts, Fleet, Recording

#: The verb of a run that only trains. What it asks nodes before is not judged; without the training it told nothing.
SMOKE = "smoke"
#: A finding that many jobs share names so many places; the first is where the fault is.
_MOST_PLACES = 8


def selected(meta: Meta, configuration: Configuration) -> bool:
    """Whether the configuration wants this rule or check: by profile, then `select`, then `ignore`.

    What is mandatory is wanted whatever the profile, and cannot be ignored.
    """
    mandatory = fits(meta.id, meta.name, configuration.mandatory)
    if fits(meta.id, meta.name, configuration.ignore) and not mandatory:
        return False
    if configuration.select:
        return fits(meta.id, meta.name, configuration.select)
    return mandatory or PROFILES.index(meta.profile) <= PROFILES.index(configuration.profile)


def fleet_of(recording: Recording) -> Fleet:
    """The nodes of a recording as checks see them."""
    return Fleet(recording.nodes, recording.executor, recording.origin, recording.cluster, recording.wish)


def outcomes_of(
    recording: Recording,
    rules: Sequence[Rule],
    checks: Sequence[Check],
    *,
    facts: Facts | None = None,
    progress: Progress = ignore,
) -> tuple[Outcome, ...]:
    """All outcomes of a recording, ordered by id, then job name, then the order in which they were stated.

    `facts` are those of the recording, for whoever looks at them afterwards, too, and then lets go (`once.forget`) of
    what was worked out for them. `progress` hears of each rule and check before it judges.
    """
    found: list[Outcome] = []
    configuration = recording.configuration
    jobs = _in_order(recording.jobs)
    total = len(rules) + (len(checks) if recording.verb != "lint" else 0)
    for number, rule in enumerate(rules):
        progress(Step("judge", number, total))
        if selected(rule.meta, configuration):
            chosen = severity_chosen(rule.meta.id, rule.meta.name, configuration.severities)
            for job in jobs:
                found.extend(_isolated(rule.meta, job, functools.partial(rule.judge, job), chosen=chosen))
    if recording.verb != "lint":
        seen = Facts(recording.facts, recording.events) if facts is None else facts
        for number, outcomes in enumerate(_outcomes_of_checks(recording, checks, seen), len(rules)):
            progress(Step("judge", number, total))
            found.extend(outcomes)
        if facts is None:
            forget(seen)
        for job in jobs:
            forget(job)
    # What is said of a file that several jobs share is said once.
    return tuple(dict.fromkeys(sorted(found, key=lambda outcome: outcome.id)))


def _in_order(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.name)


def _outcomes_of_checks(recording: Recording, checks: Sequence[Check], facts: Facts) -> Iterator[Iterator[Outcome]]:
    """The outcomes of each check, worked out when they are asked for."""
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
    for job in _in_order(recording.jobs):
        broken = unplanned.get((check.meta.id, job.name))
        if broken is not None:
            reason = f"{check.meta.id} {check.meta.name} crashed while planning, which is a bug in it:\n{broken}"
            yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, job.name, reason, required=True), check.when)
        elif check.when in ran:
            judge = functools.partial(check.judge, job, fleet, facts)
            yield from _isolated(check.meta, job, judge, check.when, chosen=chosen)
        elif check.when in skipped:
            reason = f"the {check.when} stage did not run: {skipped[check.when]}"
            cut_short = bool(recording.interrupted) or recording.verb == SMOKE
            yield _outcome(check.meta, job, Verdict(Status.UNKNOWN, job.name, reason, required=cut_short), check.when)


def _isolated(
    meta: Meta,
    job: Job,
    judge: Callable[[], Iterable[Verdict]],
    stage: str = "lint",
    *,
    chosen: Severity | None = None,
) -> Iterator[Outcome]:
    """The outcomes of one evaluation; one that crashes says so instead of disturbing the others."""
    try:
        for verdict in judge():
            yield _outcome(meta, job, verdict, stage, chosen=chosen)
    except Exception:
        reason = f"{meta.id} {meta.name} crashed, which is a bug in it:\n{traceback.format_exc(limit=-4)}"
        yield Outcome(meta.id, meta.name, Status.UNKNOWN, job.name, reason, required=True, stage=stage)


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
    )


def _finding(meta: Meta, job: Job, verdict: Verdict, chosen: Severity | None) -> Finding:
    """The finding as bad as the user chose, or else the author said, and never worse than it is sure."""
    confidence = verdict.confidence or meta.confidence
    severity = chosen or _mildest(verdict.severity, meta.severity)
    if severity is Severity.ERROR and (confidence is not Confidence.HIGH or _rests_on_a_guess(job, verdict)):
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


def _rests_on_a_guess(job: Job, verdict: Verdict) -> bool:
    """Whether a fault needs that sibling scripts are one job, which was only guessed; one within a launch does not."""
    if not job.probable:
        return False
    of_one_launch = verdict.subject in {launch.id for launch in job.launches}
    return not of_one_launch or len({location.path for location in verdict.locations}) > 1


def _mildest(said: Severity | None, most: Severity) -> Severity:
    return said if said is not None and said.rank < most.rank else most


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for each fault, worst first: those that say the same of the same place become one.

    What several nodes share is listed once, with all of them; so is what several jobs reach in a file they share.
    Findings that remain and would have one fingerprint (two lines of the same text) are numbered, so that each
    fingerprint names one finding.
    """
    kept: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        # The subject of a fault of a node is the node itself, and that of a fault in a file one of the launches that
        # reach it: that is what folding takes out.
        about = "" if finding.subject in finding.nodes or finding.locations else finding.subject
        key = (finding.id, finding.severity, finding.message, finding.locations[:1], finding.remedy, about)
        kept.setdefault(key, []).append(finding)
    merged = sorted((_merged(same) for same in kept.values()), key=_order)
    met: Counter[str] = Counter()
    numbered: list[Finding] = []
    for finding in merged:
        met[finding.fingerprint] += 1
        again = met[finding.fingerprint]
        numbered.append(replace(finding, fingerprint=f"{finding.fingerprint}:{again}") if again > 1 else finding)
    return tuple(numbered)


def _merged(same: Sequence[Finding]) -> Finding:
    first = same[0]
    if len(same) == 1:
        return first
    nodes = tuple(dict.fromkeys(node for finding in same for node in finding.nodes))
    evidence: tuple[Evidence, ...] = tuple(dict.fromkeys(item for finding in same for item in finding.evidence))
    places = tuple(dict.fromkeys(place for finding in same for place in finding.locations))[:_MOST_PLACES]
    # The fingerprint is made anew from all nodes, not left as that of whichever node came first.
    return replace(
        first, nodes=nodes, evidence=evidence, locations=places, commands=_merged_commands(same), fingerprint=""
    )


def _merged_commands(same: Sequence[Finding]) -> tuple[Command, ...]:
    """One line that is to be run on several nodes stands there once, with all of them."""
    nodes: dict[str, dict[str, None]] = {}
    for finding in same:
        for item in finding.commands:
            nodes.setdefault(item.line, {}).update(dict.fromkeys(item.nodes))
    return tuple(Command(line, tuple(names)) for line, names in nodes.items())


def _order(finding: Finding) -> tuple[object, ...]:
    first = finding.locations[0] if finding.locations else None
    where = (first.path, first.line, first.column) if first else ("", 0, 0)
    return (-finding.severity.rank, finding.id, *where, finding.message, finding.subject, finding.nodes)
