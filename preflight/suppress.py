"""Suppression: which findings comments, waivers, a baseline or the configuration take out of the verdict.

What was of no use is named, because a suppression that outlives its fault hides the next one. Pure: the day on which
a waiver ends is held against the time in the recording.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from preflight.configuration import Accepted, Configuration, FileIgnores, Waiver, fits
from preflight.engine import fold
from preflight.ignoring import Excluded
from preflight.job import Job, Suppression
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Finding, Location, Outcome
from preflight.recording import Recording

#: What can take a finding out of the verdict.
COMMENT, WAIVER, BASELINE, FILE_IGNORES = "comment", "waiver", "baseline", "per-file-ignores"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about the configuration that its owner should know.

    `kind` is `waiver-expired`, `waiver-unused`, `baseline-unused` or `mandatory`.

    Args:
        message: the same in words.
        location: where it stands, if in a file.
    """

    kind: str
    message: str
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Sifted:
    """Findings that count, findings that do not, comments that suppressed nothing, and what else is to be said."""

    kept: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    unused: tuple[Suppression, ...]
    remarks: tuple[Remark, ...] = ()
    #: Entries of the baseline that match nothing any more, of files that were read.
    stale: tuple[Accepted, ...] = ()


def sift(outcomes: Iterable[Outcome], recording: Recording) -> Sifted:
    """The findings of `outcomes`, folded, with every suppression of the recording applied to them."""
    stated = tuple(outcomes)
    sieve = _Sieve(recording, _suppressions(recording.jobs), frozenset(o.id for o in stated if o.stage == "lint"))
    kept: list[Finding] = []
    taken: list[Finding] = []
    for finding in fold(outcome.finding for outcome in stated if outcome.finding is not None):
        for piece in sieve.pieces(finding):
            (taken if piece.suppressed_by else kept).append(piece)
    judged = {(outcome.id, outcome.name) for outcome in stated}
    return Sifted(
        tuple(kept), tuple(taken), sieve.idle_comments(), tuple(sieve.remarks(judged)), tuple(sieve.stale(judged))
    )


def _suppressions(jobs: Sequence[Job]) -> tuple[Suppression, ...]:
    return tuple(dict.fromkeys(s for job in jobs for s in job.suppressions))


@dataclass(slots=True)
class _Sieve:
    """What one recording has to suppress with, and what of it was of use."""

    recording: Recording
    comments: tuple[Suppression, ...]
    lint_ids: frozenset[str]
    _used: set[object] = field(default_factory=set)
    _mandatory: list[Remark] = field(default_factory=list)
    _accepted: dict[str, Accepted] = field(init=False)
    _on_line: dict[tuple[str, int], list[Suppression]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for comment in self.comments:
            self._on_line.setdefault((comment.path, comment.line), []).append(comment)
        self._accepted = {entry.fingerprint: entry for entry in self._configuration.baseline}

    @property
    def _configuration(self) -> Configuration:
        return self.recording.configuration

    def pieces(self, finding: Finding) -> Iterator[Finding]:
        """The finding as it counts; one on several nodes of which a waiver names some comes in two."""
        first = (finding.locations[0].path, finding.locations[0].line) if finding.locations else ("", 0)
        by_comment = [comment for comment in self._on_line.get(first, ()) if _names(comment, finding)]
        waivers = [waiver for waiver in self._configuration.waivers if self._waives(waiver, finding)]
        ignores = next((i for i in self._configuration.file_ignores if self._ignores(i, finding)), None)
        accepted = self._accepted.get(finding.fingerprint) if finding.id in self.lint_ids else None
        self._used.update(by_comment)
        self._used.update(waiver for waiver in waivers if not self._expired(waiver))
        if accepted is not None:
            self._used.add(accepted)
        if fits(finding.id, finding.name, self._configuration.mandatory):
            if by_comment or waivers or ignores or accepted:
                self._mandatory.append(_still_counts(finding, self._configuration))
            yield finding
        elif by_comment:
            reason = next((comment.reason for comment in by_comment if comment.reason), "no reason given")
            yield replace(finding, suppression=reason, suppressed_by=COMMENT)
        elif any(not self._expired(waiver) for waiver in waivers):
            yield from self._waived(finding, [waiver for waiver in waivers if not self._expired(waiver)])
        elif ignores is not None:
            reason = f"left out in {ignores.pattern} by {self._configuration.file or 'the configuration'}"
            yield replace(finding, suppression=reason, suppressed_by=FILE_IGNORES)
        elif accepted is not None:
            reason = f"accepted in {self._configuration.baseline_file or 'the baseline'}"
            yield replace(finding, suppression=reason, suppressed_by=BASELINE)
        else:
            yield finding

    def _waived(self, finding: Finding, waivers: Sequence[Waiver]) -> Iterator[Finding]:
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
                yield replace(_on(finding, here), suppression=_reason(waiver), suppressed_by=WAIVER)
        if left:
            yield _on(finding, left)

    def _waives(self, waiver: Waiver, finding: Finding) -> bool:
        if not fits(finding.id, finding.name, (waiver.rule,)) or len(waiver.rule) == 3:
            return False
        if waiver.hosts and not _hosts(waiver.hosts) & set(finding.nodes):
            return False
        return not waiver.paths or self._lies_in(finding, waiver.paths)

    def _ignores(self, ignores: FileIgnores, finding: Finding) -> bool:
        return fits(finding.id, finding.name, ignores.names) and self._lies_in(finding, (ignores.pattern,))

    def _lies_in(self, finding: Finding, patterns: tuple[str, ...]) -> bool:
        return bool(finding.locations) and _excluded(patterns).has(finding.locations[0].path, is_folder=False)

    def _expired(self, waiver: Waiver) -> bool:
        return bool(waiver.expires) and self.recording.created[:10] > waiver.expires

    def idle_comments(self) -> tuple[Suppression, ...]:
        """One comment may speak of several lines; it is idle when it was of use on none, and named once."""
        useful = {(s.path, s.span, s.names) for s in self.comments if s in self._used}
        unused: dict[object, Suppression] = {}
        for s in self.comments:
            if (s.path, s.span, s.names) not in useful:
                unused.setdefault((s.path, s.span, s.names), s)
        return tuple(unused.values())

    def remarks(self, judged: set[tuple[str, str]]) -> Iterator[Remark]:
        """Waivers that ended, or were of no use though their rule was asked about what they name."""
        for waiver in self._configuration.waivers:
            place = Location.at(waiver.at) if waiver.at is not None else None
            owner = f" (owner: {waiver.owner})" if waiver.owner else ""
            if self._expired(waiver):
                message = (
                    f"the waiver of {waiver.rule}{owner} ended on {waiver.expires} and suppresses nothing any more"
                )
                yield Remark("waiver-expired", message, place)
            elif waiver not in self._used and self._was_asked(waiver, judged):
                yield Remark("waiver-unused", f"the waiver of {waiver.rule}{owner} suppresses nothing", place)
        stale = sum(1 for _ in self.stale(judged))
        if stale:
            entries = "entry suppresses" if stale == 1 else "entries suppress"
            name = self._configuration.baseline_file or "the baseline"
            them = "it" if stale == 1 else "them"
            message = f"{name}: {stale} {entries} nothing any more; `preflight baseline prune` takes {them} out"
            yield Remark("baseline-unused", message)
        yield from dict.fromkeys(self._mandatory)

    def stale(self, judged: set[tuple[str, str]]) -> Iterator[Accepted]:
        """Entries of the baseline whose rule was asked about their file, and found nothing any more."""
        read = self._read()
        ids = {id for id, _ in judged}
        for entry in self._configuration.baseline:
            if entry not in self._used and entry.id in ids and entry.path in read:
                yield entry

    def _was_asked(self, waiver: Waiver, judged: set[tuple[str, str]]) -> bool:
        """Whether this run could have found what is waived: a run over one file does not speak of the others."""
        if not any(fits(id, name, (waiver.rule,)) for id, name in judged):
            return False
        if waiver.hosts and not _hosts(waiver.hosts) & {record.node.name for record in self.recording.nodes}:
            return False
        held = _excluded(waiver.paths)
        return not waiver.paths or any(held.has(path, is_folder=False) for path in self._read())

    def _read(self) -> frozenset[str]:
        return frozenset(file.path for job in self.recording.jobs for file in job.files)


def _names(comment: Suppression, finding: Finding) -> bool:
    return any(name.upper() == finding.id or name.lower() == finding.name for name in comment.names)


def _on(finding: Finding, nodes: tuple[str, ...]) -> Finding:
    """The part of a finding that is about these nodes."""
    if nodes == finding.nodes:
        return finding
    evidence = tuple(item for item in finding.evidence if not item.node or item.node in nodes)
    return replace(finding, nodes=nodes, evidence=evidence or finding.evidence, fingerprint="")


def _reason(waiver: Waiver) -> str:
    parts = (f"owner: {waiver.owner}" if waiver.owner else "", f"until {waiver.expires}" if waiver.expires else "")
    more = ", ".join(part for part in parts if part)
    return f"{waiver.reason} ({more})" if more else waiver.reason


def _still_counts(finding: Finding, configuration: Configuration) -> Remark:
    by = f" by {configuration.file}" if configuration.file else ""
    message = f"{finding.id} {finding.name} is mandatory{by} and cannot be suppressed"
    return Remark("mandatory", message, finding.locations[0] if finding.locations else None)


@functools.cache
def _excluded(patterns: tuple[str, ...]) -> Excluded:
    return Excluded(patterns)


@functools.cache
def _hosts(names: tuple[str, ...]) -> frozenset[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    found: set[str] = set()
    for name in names:
        found.update(NodeSet(name, resolver=RESOLVER_NOGROUP))
    return frozenset(found)
