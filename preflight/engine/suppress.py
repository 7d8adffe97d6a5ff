"""Suppression: the findings that comments, waivers, a baseline or the configuration exclude from the verdict.

Unused suppressions are reported, because a suppression that outlives its fault hides the next one. Pure: the expiry
date of a waiver is compared with the time in the recording.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from preflight._util.hostnames import is_host_range
from preflight.model.configuration import Accepted, Configuration, FileIgnores, Waiver, matches
from preflight.model.findings import Command, Evidence, Finding, Location, Outcome
from preflight.model.job import Job, Suppression
from preflight.model.recording import Recording
from preflight.sources.discovery.walk import Excluded

#: Largest number of nodes in a waiver.
_MAX_HOSTS = 100_000
#: Ways to exclude a finding from the verdict.
COMMENT, WAIVER, BASELINE, SINCE, FILE_IGNORES = "comment", "waiver", "baseline", "since", "per-file-ignores"


@dataclass(frozen=True, slots=True)
class SuppressionNote:
    """A note about the configuration for its owner.

    `kind` is `waiver-expired`, `waiver-unused`, `baseline-unused`, `mandatory` or `set-aside`.

    Args:
        message: the note as a sentence.
        location: its location, if in a file.
    """

    kind: str
    message: str
    location: Location | None = None


class SuppressionResult(NamedTuple):
    """Findings that count, findings that do not, comments that suppressed nothing, and notes."""

    kept: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    unused: tuple[Suppression, ...]
    suppression_notes: tuple[SuppressionNote, ...] = ()
    #: Entries of the baseline that no longer match anything, in files that were read.
    stale: tuple[Accepted, ...] = ()


def apply_suppressions(outcomes: Iterable[Outcome], recording: Recording) -> SuppressionResult:
    """Return the findings of `outcomes`, folded, with every suppression of the recording applied to them."""
    stated = tuple(outcomes)
    suppressor = _Suppressor(
        recording, _suppressions(recording.jobs), frozenset(o.id for o in stated if o.stage == "lint")
    )
    kept: list[Finding] = []
    taken: list[Finding] = []
    for finding in fold(outcome.finding for outcome in stated if outcome.finding is not None):
        for piece in suppressor.pieces(finding):
            (taken if piece.suppressed_by else kept).append(piece)
    judged = {(outcome.id, outcome.name) for outcome in stated}
    return SuppressionResult(
        tuple(kept),
        tuple(taken),
        suppressor.unused_comments(),
        tuple(suppressor.suppression_notes(judged)),
        tuple(suppressor.stale(judged)),
    )


def _suppressions(jobs: Sequence[Job]) -> tuple[Suppression, ...]:
    return tuple(dict.fromkeys(s for job in jobs for s in job.suppressions))


@dataclass(slots=True)
class _Suppressor:
    """The suppressions of one recording, and which of them were used."""

    recording: Recording
    comments: tuple[Suppression, ...]
    lint_ids: frozenset[str]
    _used: set[object] = field(default_factory=set)
    _mandatory: list[SuppressionNote] = field(default_factory=list)
    _accepted: dict[str, Accepted] = field(init=False)
    _existing: set[str] = field(init=False)
    _on_line: dict[tuple[str, int], list[Suppression]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for comment in self.comments:
            self._on_line.setdefault((comment.path, comment.line), []).append(comment)
        self._accepted = {entry.fingerprint: entry for entry in self._configuration.baseline}
        since = self._configuration.since
        self._existing = {entry.fingerprint for entry in since.findings} if since is not None else set()

    @property
    def _configuration(self) -> Configuration:
        return self.recording.configuration

    def pieces(self, finding: Finding) -> Iterator[Finding]:
        """Split a finding by suppression: if a waiver covers only some of its nodes, it becomes two findings."""
        first = (finding.locations[0].path, finding.locations[0].line) if finding.locations else ("", 0)
        by_comment = [comment for comment in self._on_line.get(first, ()) if _names_rule(comment, finding)]
        waivers = [waiver for waiver in self._configuration.waivers if self._waives(waiver, finding)]
        ignores = next((i for i in self._configuration.file_ignores if self._ignores(i, finding)), None)
        accepted = self._accepted.get(finding.fingerprint) if finding.id in self.lint_ids else None
        existed = finding.id in self.lint_ids and finding.fingerprint in self._existing
        self._used.update(by_comment)
        self._used.update(waiver for waiver in waivers if not self._is_expired(waiver))
        if accepted is not None:
            self._used.add(accepted)
        if matches(finding.id, finding.name, self._configuration.mandatory):
            if by_comment or waivers or ignores or accepted or existed:
                self._mandatory.append(_mandatory_note(finding, self._configuration))
            yield finding
        elif by_comment:
            reason = next((comment.reason for comment in by_comment if comment.reason), "no reason given")
            yield replace(finding, suppression=reason, suppressed_by=COMMENT)
        elif any(not self._is_expired(waiver) for waiver in waivers):
            yield from self._waive(finding, [waiver for waiver in waivers if not self._is_expired(waiver)])
        elif ignores is not None:
            reason = f"ignored in {ignores.pattern} by {self._configuration.file or 'the configuration'}"
            yield replace(finding, suppression=reason, suppressed_by=FILE_IGNORES)
        elif accepted is not None:
            reason = f"accepted in {self._configuration.baseline_file or 'the baseline'}"
            yield replace(finding, suppression=reason, suppressed_by=BASELINE)
        elif existed:
            assert self._configuration.since is not None
            reason = f"existed at {self._configuration.since.revision}"
            yield replace(finding, suppression=reason, suppressed_by=SINCE)
        else:
            yield finding

    def _waive(self, finding: Finding, waivers: Sequence[Waiver]) -> Iterator[Finding]:
        whole = next((waiver for waiver in waivers if not waiver.hosts), None)
        if whole is not None:
            yield replace(finding, suppression=_reason(whole), suppressed_by=WAIVER)
            return
        left = finding.nodes
        for waiver in waivers:
            names = _hosts(waiver.hosts)
            here = tuple(node for node in left if node in names)
            if here:
                left = tuple(node for node in left if node not in names)
                yield replace(_restrict_to_nodes(finding, here), suppression=_reason(waiver), suppressed_by=WAIVER)
        if left:
            yield _restrict_to_nodes(finding, left)

    def _waives(self, waiver: Waiver, finding: Finding) -> bool:
        if not matches(finding.id, finding.name, (waiver.rule,)) or len(waiver.rule) == 3:
            return False
        if waiver.hosts and not _hosts(waiver.hosts) & set(finding.nodes):
            return False
        return not waiver.paths or self._is_below(finding, waiver.paths)

    def _ignores(self, ignores: FileIgnores, finding: Finding) -> bool:
        return matches(finding.id, finding.name, ignores.names) and self._is_below(finding, (ignores.pattern,))

    def _is_below(self, finding: Finding, patterns: tuple[str, ...]) -> bool:
        return bool(finding.locations) and _is_excluded(patterns).has(finding.locations[0].path, is_folder=False)

    def _is_expired(self, waiver: Waiver) -> bool:
        return bool(waiver.expires) and self.recording.created[:10] > waiver.expires

    def unused_comments(self) -> tuple[Suppression, ...]:
        """Return the comments that suppressed nothing, each once.

        A comment may cover several lines, and counts as unused if it was used on none of them.
        """
        useful = {(s.path, s.span, s.names) for s in self.comments if s in self._used}
        unused: dict[object, Suppression] = {}
        for s in self.comments:
            if (s.path, s.span, s.names) not in useful:
                unused.setdefault((s.path, s.span, s.names), s)
        return tuple(unused.values())

    def suppression_notes(self, judged: set[tuple[str, str]]) -> Iterator[SuppressionNote]:
        """Yield notes on settings that were set aside, and on waivers that expired, or were unused though their rule
        was applied.
        """
        for message in self._configuration.set_aside:
            yield SuppressionNote("set-aside", message)
        for waiver in self._configuration.waivers:
            place = Location.at(waiver.at) if waiver.at is not None else None
            owner = f" (owner: {waiver.owner})" if waiver.owner else ""
            if self._is_expired(waiver):
                message = f"the waiver of {waiver.rule}{owner} expired on {waiver.expires}; renew or remove it"
                yield SuppressionNote("waiver-expired", message, place)
            elif waiver not in self._used and self._could_match(waiver, judged):
                yield SuppressionNote("waiver-unused", f"the waiver of {waiver.rule}{owner} suppresses nothing", place)
        stale = sum(1 for _ in self.stale(judged))
        if stale:
            entries = "entry suppresses" if stale == 1 else "entries suppress"
            name = self._configuration.baseline_file or "the baseline"
            them = "it" if stale == 1 else "them"
            message = f"{name}: {stale} {entries} nothing any more; `preflight baseline prune` removes {them}"
            yield SuppressionNote("baseline-unused", message)
        yield from dict.fromkeys(self._mandatory)

    def stale(self, judged: set[tuple[str, str]]) -> Iterator[Accepted]:
        """Yield the entries of the baseline whose rule was applied to their file but no longer found anything."""
        read = self._was_read()
        ids = {id for id, _ in judged}
        for entry in self._configuration.baseline:
            if entry not in self._used and entry.id in ids and entry.path in read:
                yield entry

    def _could_match(self, waiver: Waiver, judged: set[tuple[str, str]]) -> bool:
        """Return whether this run could have found the waived fault: a run over one file finds no faults in others."""
        if not any(matches(id, name, (waiver.rule,)) for id, name in judged):
            return False
        if waiver.hosts and not _hosts(waiver.hosts) & {record.node.name for record in self.recording.nodes}:
            return False
        held = _is_excluded(waiver.paths)
        return not waiver.paths or any(held.has(path, is_folder=False) for path in self._was_read())

    def _was_read(self) -> frozenset[str]:
        return frozenset(file.path for job in self.recording.jobs for file in job.files)


def _names_rule(comment: Suppression, finding: Finding) -> bool:
    return any(name.upper() == finding.id or name.lower() == finding.name for name in comment.names)


def _restrict_to_nodes(finding: Finding, nodes: tuple[str, ...]) -> Finding:
    """Return the part of a finding that concerns these nodes."""
    if nodes == finding.nodes:
        return finding
    evidence = tuple(item for item in finding.evidence if not item.node or item.node in nodes)
    return replace(finding, nodes=nodes, evidence=evidence or finding.evidence, fingerprint="")


def _reason(waiver: Waiver) -> str:
    parts = (f"owner: {waiver.owner}" if waiver.owner else "", f"until {waiver.expires}" if waiver.expires else "")
    more = ", ".join(part for part in parts if part)
    return f"{waiver.reason} ({more})" if more else waiver.reason


def _mandatory_note(finding: Finding, configuration: Configuration) -> SuppressionNote:
    by = f" by {configuration.file}" if configuration.file else ""
    message = f"{finding.id} {finding.name} is mandatory{by} and cannot be suppressed"
    return SuppressionNote("mandatory", message, finding.locations[0] if finding.locations else None)


@functools.cache
def _is_excluded(patterns: tuple[str, ...]) -> Excluded:
    return Excluded(patterns)


@functools.cache
def _hosts(names: tuple[str, ...]) -> frozenset[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    found: set[str] = set()
    for name in names:
        # A configuration is validated when it is read; a recording may contain anything.
        if len(found) < _MAX_HOSTS and is_host_range(name):
            found.update(NodeSet(name, resolver=RESOLVER_NOGROUP))
    return frozenset(found)


#: A finding that many jobs share lists at most this many locations; the first is that of the fault.
_MAX_PLACES = 8


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for each fault, worst first: findings with the same text and location are merged.

    A fault of several nodes is listed once, with all of them; so is a fault in a file that several jobs share.
    Remaining findings with the same fingerprint (two lines of the same text) are numbered, so that each fingerprint
    names one finding.
    """
    kept: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        # Merging ignores the subject: the node itself for a node's fault, and one of the launches that reach a file for
        # a fault in that file.
        about = "" if finding.subject in finding.nodes or finding.locations else finding.subject
        key = (finding.id, finding.severity, finding.message, finding.locations[:1], finding.remedy, about)
        kept.setdefault(key, []).append(finding)
    merged = sorted((_merge_findings(same) for same in kept.values()), key=_order)
    met: Counter[str] = Counter()
    numbered: list[Finding] = []
    for finding in merged:
        met[finding.fingerprint] += 1
        again = met[finding.fingerprint]
        numbered.append(replace(finding, fingerprint=f"{finding.fingerprint}:{again}") if again > 1 else finding)
    return tuple(numbered)


def _merge_findings(same: Sequence[Finding]) -> Finding:
    first = same[0]
    if len(same) == 1:
        return first
    nodes = tuple(dict.fromkeys(node for finding in same for node in finding.nodes))
    evidence: tuple[Evidence, ...] = tuple(dict.fromkeys(item for finding in same for item in finding.evidence))
    places = tuple(dict.fromkeys(place for finding in same for place in finding.locations))[:_MAX_PLACES]
    # The fingerprint is computed from all nodes, not from whichever node came first.
    return replace(
        first, nodes=nodes, evidence=evidence, locations=places, commands=_merge_commands(same), fingerprint=""
    )


def _merge_commands(same: Sequence[Finding]) -> tuple[Command, ...]:
    """Merge equal lines that run on different nodes into one command for all of these nodes."""
    nodes: dict[str, dict[str, None]] = {}
    for finding in same:
        for item in finding.commands:
            nodes.setdefault(item.line, {}).update(dict.fromkeys(item.nodes))
    return tuple(Command(line, tuple(names)) for line, names in nodes.items())


def _order(finding: Finding) -> tuple[object, ...]:
    first = finding.locations[0] if finding.locations else None
    where = (first.path, first.line, first.column) if first else ("", 0, 0)
    return (-finding.severity.rank, finding.id, *where, finding.message, finding.subject, finding.nodes)
