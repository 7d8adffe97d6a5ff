"""Matches the findings of two reports by fingerprint; findings about nodes match even if their nodes changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from preflight.commands.diff.difference import ChangedFinding, GoneFinding, NewFinding
from preflight.engine.report import Report
from preflight.model.configuration import matches
from preflight.model.findings import PROFILES, Finding, Outcome, Severity, Status, without_lines
from preflight.model.stages import SMOKE

Pair = tuple[Finding, Finding]


def compare_findings(
    old: Report, new: Report, fail_on: Severity
) -> tuple[tuple[NewFinding, ...], tuple[GoneFinding, ...], tuple[ChangedFinding, ...], int]:
    """Return what appeared, what is gone, what changed, and the number of unchanged findings.

    Findings that are suppressed on both sides are ignored; one that is suppressed only now has changed.
    """
    before_it, after_it = _Coverage(old, new), _Coverage(new, old)
    pairs, left, right = match_findings((*old.findings, *old.suppressed), (*new.findings, *new.suppressed))
    counted = {id(finding) for finding in (*old.findings, *new.findings)}
    changed, unchanged = [], 0
    for before, after in pairs:
        if id(before) not in counted and id(after) not in counted:
            continue
        what = _describe_changes(before, after)
        if not what:
            unchanged += 1
            continue
        worse = id(after) in counted and _worse(before, after, id(before) in counted)
        counts = worse and after.severity.rank >= fail_on.rank
        unseen = after_it.unseen(before, {*before.nodes} - {*after.nodes})
        changed.append(ChangedFinding(before, after, what, worse, counts, unseen))
    appeared = tuple(
        NewFinding(finding, finding.severity.rank >= fail_on.rank, before_it.why_unknown(finding, "the older report"))
        for finding in right
        if id(finding) in counted
    )
    gone = tuple(
        GoneFinding(finding, after_it.why_unknown(finding, "the newer report"))
        for finding in left
        if id(finding) in counted
    )
    return appeared, gone, tuple(changed), unchanged


def match_findings(old: Sequence[Finding], new: Sequence[Finding]) -> tuple[list[Pair], list[Finding], list[Finding]]:
    """Return pairs of the same finding, and the findings of only one side, in the order of each side.

    Lines with the same text share a fingerprint: those at the same position are paired first. The fingerprint of a
    node finding contains its nodes; remaining findings of one check are paired if they share nodes.
    """
    left, right = dict(enumerate(old)), dict(enumerate(new))
    pairs: dict[int, Pair] = {}

    def pair(one: int, other: int) -> None:
        pairs[other] = (left.pop(one), right.pop(other))

    for key in (_exactly, _by_fingerprint):
        waiting: dict[object, list[int]] = {}
        for number, finding in left.items():
            waiting.setdefault(key(finding), []).append(number)
        for other in list(right):
            same = waiting.get(key(right[other]))
            if same:
                pair(same.pop(0), other)
    of_check: dict[str, list[int]] = {}
    for number, finding in left.items():
        if finding.nodes and not finding.locations:
            of_check.setdefault(finding.id, []).append(number)
    for other in [number for number, finding in right.items() if finding.nodes and not finding.locations]:
        candidates = [number for number in of_check.get(right[other].id, ()) if number in left]
        most, number = max(((_common(left[one], right[other]), -one) for one in candidates), default=(0, 0))
        if most:
            pair(-number, other)
    return [pairs[number] for number in sorted(pairs)], list(left.values()), list(right.values())


def packs(report: Report) -> dict[str, str]:
    """Return the versions of the packs that a report was made with, by name."""
    return {name: version for name, _, version in (label.partition(" ") for label in report.tool.plugins)}


def _exactly(finding: Finding) -> object:
    return (_by_fingerprint(finding), finding.locations[:1], finding.subject)


def _by_fingerprint(finding: Finding) -> object:
    """Return the fingerprint without the number that distinguishes equal lines."""
    return finding.fingerprint.partition(":")[0]


def _common(old: Finding, new: Finding) -> int:
    """Return the number of nodes that both findings have."""
    return len({*old.nodes} & {*new.nodes})


def _describe_changes(before: Finding, after: Finding) -> tuple[str, ...]:
    differs = {
        "severity": before.severity is not after.severity,
        "message": before.message != after.message,
        "place": [_place(before)] != [_place(after)],
        "nodes": {*before.nodes} != {*after.nodes},
        "suppression": bool(before.suppression) != bool(after.suppression),
    }
    return tuple(name for name, held in differs.items() if held)


def _place(finding: Finding) -> tuple[str, int, int] | None:
    first = finding.locations[0] if finding.locations else None
    return (first.path, first.line, first.column) if first is not None else None


def _worse(before: Finding, after: Finding, counted_before: bool) -> bool:
    more_severe = after.severity.rank > before.severity.rank
    return more_severe or not counted_before or bool({*after.nodes} - {*before.nodes})


class _Coverage:
    """What a report could decide, so that a missing finding is not mistaken for a fixed one."""

    def __init__(self, report: Report, new: Report) -> None:
        self._report, self._other = report, new
        self._stage = {outcome.id: outcome.stage for outcome in new.outcomes}
        self._checked: set[str] = set()
        self._unknown: dict[str, list[Outcome]] = {}
        for outcome in report.outcomes:
            if outcome.status is Status.UNKNOWN:
                self._unknown.setdefault(outcome.id, []).append(outcome)
            else:
                self._checked.add(outcome.id)
        self._read = {file.path for file in report.inputs}
        self._records = {record.node.name: record for record in report.nodes}

    def why_unknown(self, finding: Finding, report_name: str) -> str:
        """Return why this report would not have such a finding even if the fault were there; empty if it would."""
        unknown = self._unknown.get(finding.id, [])
        if finding.id not in self._checked and not unknown and not self._did_run(finding):
            return f"{report_name} did not check it"
        if finding.locations and finding.locations[0].path not in self._read:
            return f"{report_name} did not read {finding.locations[0].path}"
        for node in self._unreached(finding.nodes):
            record = self._records.get(node)
            if record is None:
                return f"{report_name} does not have node {node}"
            return f"{report_name} could not check {node}: {record.problem}"
        about = _about(unknown, finding)
        if about is None and unknown and finding.id not in self._checked:
            about = unknown[0]
        return f"{report_name} could not decide it: {about.reason}" if about is not None else ""

    def unseen(self, finding: Finding, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return those of these nodes that were not checked, or for which the check was undecided."""
        nodes = sorted(nodes)
        unknown = {word for outcome in self._unknown.get(finding.id, []) for word in _subject_words(outcome)}
        unreached = self._unreached(nodes)
        return tuple(node for node in nodes if node in unknown or node in unreached)

    def _unreached(self, nodes: Iterable[str]) -> list[str]:
        reached = {name for name, record in self._records.items() if not record.problem}
        return [node for node in nodes if node not in reached]

    def _did_run(self, finding: Finding) -> bool:
        """Return whether a rule or check without outcomes ran: many produce none if nothing is wrong."""
        report, configuration = self._report, self._report.configuration
        if {*packs(self._other)} - {*packs(report)}:
            return False
        stage = self._stage.get(finding.id, "lint")
        ran = {record.name for record in report.run.stages if not record.skipped}
        if report.run.verb == SMOKE if stage == "lint" else stage not in ran:
            return False
        if matches(finding.id, finding.name, configuration.mandatory):
            return True
        profiles = [PROFILES.index(old.configuration.profile) for old in (report, self._other)]
        chosen = not configuration.select or matches(finding.id, finding.name, configuration.select)
        return chosen and not matches(finding.id, finding.name, configuration.ignore) and profiles[0] >= profiles[1]


def _about(unknown: Iterable[Outcome], finding: Finding) -> Outcome | None:
    """Return the undecided outcome about the same subject or one of its nodes."""
    for outcome in unknown:
        if without_lines(outcome.subject) == without_lines(finding.subject) or _subject_words(outcome) & {
            *finding.nodes
        }:
            return outcome
    return None


def _subject_words(outcome: Outcome) -> set[str]:
    """Split the subject of an outcome into words: `GPUs of node1, node2` names two nodes."""
    return {word.strip(",:") for word in outcome.subject.split()}
