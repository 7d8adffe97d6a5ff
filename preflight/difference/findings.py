"""Which findings of two reports are the same: by fingerprint, and node faults also where they only spread or shrank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from preflight.configuration import fits
from preflight.difference.model import Changed, Gone, New
from preflight.engine import SMOKE
from preflight.outcome import PROFILES, Finding, Outcome, Severity, Status, without_lines
from preflight.report import Report

Pair = tuple[Finding, Finding]


def of_findings(
    old: Report, new: Report, fail_on: Severity
) -> tuple[tuple[New, ...], tuple[Gone, ...], tuple[Changed, ...], int]:
    """What appeared, what is gone, what changed, and how many findings are as they were.

    A finding that is suppressed on both sides is none of them; one that is suppressed only now has changed.
    """
    before_it, after_it = _Told(old, new), _Told(new, old)
    pairs, left, right = matched((*old.findings, *old.suppressed), (*new.findings, *new.suppressed))
    counted = {id(finding) for finding in (*old.findings, *new.findings)}
    changed, unchanged = [], 0
    for before, after in pairs:
        if id(before) not in counted and id(after) not in counted:
            continue
        what = _what(before, after)
        if not what:
            unchanged += 1
            continue
        worse = id(after) in counted and _worse(before, after, id(before) in counted)
        counts = worse and after.severity.rank >= fail_on.rank
        unseen = after_it.unseen(before, {*before.nodes} - {*after.nodes})
        changed.append(Changed(before, after, what, worse, counts, unseen))
    appeared = tuple(
        New(finding, finding.severity.rank >= fail_on.rank, before_it.why_untold(finding, "the older report"))
        for finding in right
        if id(finding) in counted
    )
    gone = tuple(
        Gone(finding, after_it.why_untold(finding, "the newer report")) for finding in left if id(finding) in counted
    )
    return appeared, gone, tuple(changed), unchanged


def matched(old: Sequence[Finding], new: Sequence[Finding]) -> tuple[list[Pair], list[Finding], list[Finding]]:
    """Pairs that are the same finding, and what only one side has, in the order of each side.

    Lines with the same text share a fingerprint: those that stand where they stood are paired first. A node fault has
    its nodes in its fingerprint; what is left of one check is paired where nodes are common to both.
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
        alike = [number for number in of_check.get(right[other].id, ()) if number in left]
        most, number = max(((_common(left[one], right[other]), -one) for one in alike), default=(0, 0))
        if most:
            pair(-number, other)
    return [pairs[number] for number in sorted(pairs)], list(left.values()), list(right.values())


def packs(report: Report) -> dict[str, str]:
    """The versions of the packs that a report was made with, by name."""
    return {name: version for name, _, version in (label.partition(" ") for label in report.tool.plugins)}


def _exactly(finding: Finding) -> object:
    return (_by_fingerprint(finding), finding.locations[:1], finding.subject)


def _by_fingerprint(finding: Finding) -> object:
    """The fingerprint without the number that tells apart lines of one text: which of them went, their places tell."""
    return finding.fingerprint.partition(":")[0]


def _common(one: Finding, other: Finding) -> int:
    """On how many nodes both are."""
    return len({*one.nodes} & {*other.nodes})


def _what(before: Finding, after: Finding) -> tuple[str, ...]:
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


class _Told:
    """What a report could tell, so that nobody takes what it did not look at for something it did not find."""

    def __init__(self, report: Report, other: Report) -> None:
        self._report, self._other = report, other
        self._stage = {outcome.id: outcome.stage for outcome in other.outcomes}
        self._told: set[str] = set()
        self._unknown: dict[str, list[Outcome]] = {}
        for outcome in report.outcomes:
            if outcome.status is Status.UNKNOWN:
                self._unknown.setdefault(outcome.id, []).append(outcome)
            else:
                self._told.add(outcome.id)
        self._read = {file.path for file in report.inputs}
        self._records = {record.node.name: record for record in report.nodes}

    def why_untold(self, finding: Finding, whose: str) -> str:
        """Why this report would not have such a finding even if the fault were there; empty where it would."""
        unknown = self._unknown.get(finding.id, [])
        if finding.id not in self._told and not unknown and not self._looked_for(finding):
            return f"{whose} did not look for it"
        if finding.locations and finding.locations[0].path not in self._read:
            return f"{whose} did not read {finding.locations[0].path}"
        for node in self._unreached(finding.nodes):
            record = self._records.get(node)
            if record is None:
                return f"{whose} knows no node {node}"
            return f"{whose} could not look at {node}: {record.problem}"
        about = _about(unknown, finding)
        if about is None and unknown and finding.id not in self._told:
            about = unknown[0]
        return f"{whose} could not tell: {about.reason}" if about is not None else ""

    def unseen(self, finding: Finding, nodes: Iterable[str]) -> tuple[str, ...]:
        """Those of these nodes that were not looked at, or where the same could not be told."""
        nodes = sorted(nodes)
        unknown = {word for outcome in self._unknown.get(finding.id, []) for word in _words(outcome)}
        unreached = self._unreached(nodes)
        return tuple(node for node in nodes if node in unknown or node in unreached)

    def _unreached(self, nodes: Iterable[str]) -> list[str]:
        reached = {name for name, record in self._records.items() if not record.problem}
        return [node for node in nodes if node not in reached]

    def _looked_for(self, finding: Finding) -> bool:
        """Whether a rule or check of which nothing is said was asked: many are silent where nothing is wrong."""
        report, configuration = self._report, self._report.configuration
        if {*packs(self._other)} - {*packs(report)}:
            return False
        stage = self._stage.get(finding.id, "lint")
        ran = {record.name for record in report.run.stages if not record.skipped}
        if report.run.verb == SMOKE if stage == "lint" else stage not in ran:
            return False
        if fits(finding.id, finding.name, configuration.mandatory):
            return True
        profiles = [PROFILES.index(one.configuration.profile) for one in (report, self._other)]
        chosen = not configuration.select or fits(finding.id, finding.name, configuration.select)
        return chosen and not fits(finding.id, finding.name, configuration.ignore) and profiles[0] >= profiles[1]


def _about(unknown: Iterable[Outcome], finding: Finding) -> Outcome | None:
    """The outcome that could not be told and speaks of the same: its subject, or one of its nodes."""
    for outcome in unknown:
        if without_lines(outcome.subject) == without_lines(finding.subject) or _words(outcome) & {*finding.nodes}:
            return outcome
    return None


def _words(outcome: Outcome) -> set[str]:
    """What an outcome speaks of, taken apart: `GPUs of node1, node2` names two nodes."""
    return {word.strip(",:") for word in outcome.subject.split()}
