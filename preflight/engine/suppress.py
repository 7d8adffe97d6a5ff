"""Excludes findings from the verdict that comments, waivers, a baseline or the configuration suppress."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from preflight._util.hostnames import is_host_range
from preflight.model.configuration import Accepted, Configuration, FileIgnores, Waiver, matches
from preflight.model.findings import Command, Evidence, Finding, Location, Outcome
from preflight.model.job import Suppression
from preflight.model.recording import Recording
from preflight.sources.discovery.walk import Excluded

#: The largest number of nodes in a waiver.
_MAX_HOSTS = 100_000
#: Ways to exclude a finding from the verdict.
COMMENT, WAIVER, BASELINE, SINCE, FILE_IGNORES = "comment", "waiver", "baseline", "since", "per-file-ignores"


@dataclass(frozen=True, slots=True)
class SuppressionNote:
    """A note about the configuration for its owner.

    Args:
        kind: `waiver-expired`, `waiver-unused`, `baseline-unused`, `mandatory` or `set-aside`.
        message: the note as a sentence.
        location: the location that the note is about; null if it is not about a line of a file.
    """

    kind: str
    message: str
    location: Location | None = None


class SuppressionResult(NamedTuple):
    """Findings that count, suppressed findings, comments that suppressed nothing, and notes."""

    kept: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    unused: tuple[Suppression, ...]
    suppression_notes: tuple[SuppressionNote, ...] = ()
    #: Entries of the baseline for files that were read, but that no longer match any finding.
    stale: tuple[Accepted, ...] = ()


def apply_suppressions(outcomes: Iterable[Outcome], recording: Recording) -> SuppressionResult:
    """Return the findings of `outcomes`, folded, with every suppression of the recording applied to them."""
    outcome_list = tuple(outcomes)
    suppressor = _Suppressor(
        recording,
        tuple(dict.fromkeys(s for job in recording.jobs for s in job.suppressions)),
        frozenset(o.id for o in outcome_list if o.stage == "lint"),
    )
    kept: list[Finding] = []
    suppressed: list[Finding] = []
    for finding in fold(outcome.finding for outcome in outcome_list if outcome.finding is not None):
        for part in suppressor.split(finding):
            (suppressed if part.suppressed_by else kept).append(part)
    judged_rules = {(outcome.id, outcome.name) for outcome in outcome_list}
    return SuppressionResult(
        tuple(kept),
        tuple(suppressed),
        suppressor.unused_comments(),
        tuple(suppressor.suppression_notes(judged_rules)),
        tuple(suppressor.stale(judged_rules)),
    )


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

    def split(self, finding: Finding) -> Iterator[Finding]:
        """Yield a finding with its suppression, in parts if a waiver covers only some of its nodes."""
        first_line = (finding.locations[0].path, finding.locations[0].line) if finding.locations else ("", 0)
        comments = [comment for comment in self._on_line.get(first_line, ()) if _names_rule(comment, finding)]
        waivers = [waiver for waiver in self._configuration.waivers if self._is_waived_by(waiver, finding)]
        file_ignores = next((i for i in self._configuration.file_ignores if self._is_ignored_by(i, finding)), None)
        accepted = self._accepted.get(finding.fingerprint) if finding.id in self.lint_ids else None
        is_old = finding.id in self.lint_ids and finding.fingerprint in self._existing
        self._used.update(comments)
        self._used.update(waiver for waiver in waivers if not self._is_expired(waiver))
        if accepted is not None:
            self._used.add(accepted)
        if matches(finding.id, finding.name, self._configuration.mandatory):
            if comments or waivers or file_ignores or accepted or is_old:
                self._mandatory.append(_mandatory_note(finding, self._configuration))
            yield finding
        elif comments:
            reason = next((comment.reason for comment in comments if comment.reason), "no reason given")
            yield replace(finding, suppression=reason, suppressed_by=COMMENT)
        elif any(not self._is_expired(waiver) for waiver in waivers):
            yield from self._waive(finding, [waiver for waiver in waivers if not self._is_expired(waiver)])
        elif file_ignores is not None:
            reason = f"ignored in {file_ignores.pattern} by {self._configuration.file or 'the configuration'}"
            yield replace(finding, suppression=reason, suppressed_by=FILE_IGNORES)
        elif accepted is not None:
            reason = f"accepted in {self._configuration.baseline_file or 'the baseline'}"
            yield replace(finding, suppression=reason, suppressed_by=BASELINE)
        elif is_old:
            assert self._configuration.since is not None
            reason = f"existed at {self._configuration.since.revision}"
            yield replace(finding, suppression=reason, suppressed_by=SINCE)
        else:
            yield finding

    def _waive(self, finding: Finding, waivers: Sequence[Waiver]) -> Iterator[Finding]:
        full_waiver = next((waiver for waiver in waivers if not waiver.hosts), None)
        if full_waiver is not None:
            yield replace(finding, suppression=_reason(full_waiver), suppressed_by=WAIVER)
            return
        remaining_nodes = finding.nodes
        for waiver in waivers:
            host_names = _host_names(waiver.hosts)
            waived_nodes = tuple(node for node in remaining_nodes if node in host_names)
            if waived_nodes:
                remaining_nodes = tuple(node for node in remaining_nodes if node not in host_names)
                yield replace(
                    _restrict_to_nodes(finding, waived_nodes), suppression=_reason(waiver), suppressed_by=WAIVER
                )
        if remaining_nodes:
            yield _restrict_to_nodes(finding, remaining_nodes)

    def _is_waived_by(self, waiver: Waiver, finding: Finding) -> bool:
        if not matches(finding.id, finding.name, (waiver.rule,)) or len(waiver.rule) == 3:
            return False
        if waiver.hosts and not _host_names(waiver.hosts) & set(finding.nodes):
            return False
        return not waiver.paths or self._is_in_files(finding, waiver.paths)

    def _is_ignored_by(self, file_ignores: FileIgnores, finding: Finding) -> bool:
        return matches(finding.id, finding.name, file_ignores.names) and self._is_in_files(
            finding, (file_ignores.pattern,)
        )

    def _is_in_files(self, finding: Finding, patterns: tuple[str, ...]) -> bool:
        return bool(finding.locations) and _path_filter(patterns).has(finding.locations[0].path, is_folder=False)

    def _is_expired(self, waiver: Waiver) -> bool:
        return bool(waiver.expires) and self.recording.created[:10] > waiver.expires

    def unused_comments(self) -> tuple[Suppression, ...]:
        """Return the comments, each once, that suppressed nothing on any of their lines."""
        used_keys = {(s.path, s.span, s.names) for s in self.comments if s in self._used}
        unused: dict[object, Suppression] = {}
        for s in self.comments:
            if (s.path, s.span, s.names) not in used_keys:
                unused.setdefault((s.path, s.span, s.names), s)
        return tuple(unused.values())

    def suppression_notes(self, judged_rules: set[tuple[str, str]]) -> Iterator[SuppressionNote]:
        """Yield notes on ignored settings, unused or expired waivers, unused baseline entries, and mandatory rules."""
        for message in self._configuration.set_aside:
            yield SuppressionNote("set-aside", message)
        for waiver in self._configuration.waivers:
            location = Location.at(waiver.at) if waiver.at is not None else None
            owner = f" (owner: {waiver.owner})" if waiver.owner else ""
            if self._is_expired(waiver):
                message = f"the waiver of {waiver.rule}{owner} expired on {waiver.expires}; renew or remove it"
                yield SuppressionNote("waiver-expired", message, location)
            elif waiver not in self._used and self._could_suppress(waiver, judged_rules):
                yield SuppressionNote(
                    "waiver-unused", f"the waiver of {waiver.rule}{owner} suppresses nothing", location
                )
        stale_count = sum(1 for _ in self.stale(judged_rules))
        if stale_count:
            entries_text = "entry suppresses" if stale_count == 1 else "entries suppress"
            file_name = self._configuration.baseline_file or "the baseline"
            pronoun = "it" if stale_count == 1 else "them"
            command_hint = f"`preflight baseline prune` removes {pronoun}"
            message = f"{file_name}: {stale_count} {entries_text} nothing anymore; {command_hint}"
            yield SuppressionNote("baseline-unused", message)
        yield from dict.fromkeys(self._mandatory)

    def stale(self, judged_rules: set[tuple[str, str]]) -> Iterator[Accepted]:
        """Yield the entries of the baseline whose rule was applied to their file, but found no such fault anymore."""
        read_paths = self._read_paths()
        judged_ids = {id for id, _ in judged_rules}
        for entry in self._configuration.baseline:
            if entry not in self._used and entry.id in judged_ids and entry.path in read_paths:
                yield entry

    def _could_suppress(self, waiver: Waiver, judged_rules: set[tuple[str, str]]) -> bool:
        """Return whether this run could have found the waived fault, which may be in a file that it did not read."""
        if not any(matches(id, name, (waiver.rule,)) for id, name in judged_rules):
            return False
        if waiver.hosts and not _host_names(waiver.hosts) & {record.node.name for record in self.recording.nodes}:
            return False
        path_filter = _path_filter(waiver.paths)
        return not waiver.paths or any(path_filter.has(path, is_folder=False) for path in self._read_paths())

    def _read_paths(self) -> frozenset[str]:
        return frozenset(file.path for job in self.recording.jobs for file in job.files)


def _names_rule(comment: Suppression, finding: Finding) -> bool:
    return any(name.upper() == finding.id or name.lower() == finding.name for name in comment.names)


def _restrict_to_nodes(finding: Finding, nodes: tuple[str, ...]) -> Finding:
    if nodes == finding.nodes:
        return finding
    evidence = tuple(
        observation for observation in finding.evidence if not observation.node or observation.node in nodes
    )
    return replace(finding, nodes=nodes, evidence=evidence or finding.evidence, fingerprint="")


def _reason(waiver: Waiver) -> str:
    parts = (f"owner: {waiver.owner}" if waiver.owner else "", f"until {waiver.expires}" if waiver.expires else "")
    details = ", ".join(part for part in parts if part)
    return f"{waiver.reason} ({details})" if details else waiver.reason


def _mandatory_note(finding: Finding, configuration: Configuration) -> SuppressionNote:
    source_text = f" by {configuration.file}" if configuration.file else ""
    message = f"{finding.id} {finding.name} is mandatory{source_text} and cannot be suppressed"
    return SuppressionNote("mandatory", message, finding.locations[0] if finding.locations else None)


@functools.cache
def _path_filter(patterns: tuple[str, ...]) -> Excluded:
    return Excluded(patterns)


@functools.cache
def _host_names(names: tuple[str, ...]) -> frozenset[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    host_names: set[str] = set()
    for name in names:
        # A configuration is validated when it is read; a recording may contain anything.
        if len(host_names) < _MAX_HOSTS and is_host_range(name):
            host_names.update(NodeSet(name, resolver=RESOLVER_NOGROUP))
    return frozenset(host_names)


#: A finding that many jobs share lists at most this many locations; the first is the location of the fault.
_MAX_LOCATIONS = 8


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for each fault, worst first: findings with the same text and location are merged.

    A fault of several nodes is listed once, with all of these nodes. A fault in a file that several jobs share is also
    listed once. Remaining findings with the same fingerprint (two lines of the same text) are numbered, so that each
    fingerprint identifies one finding.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        # Merging ignores a subject that is the node of a fault, or one of the launches that read the file of a fault.
        subject = "" if finding.subject in finding.nodes or finding.locations else finding.subject
        key = (finding.id, finding.severity, finding.message, finding.locations[:1], finding.remedy, subject)
        groups.setdefault(key, []).append(finding)
    merged_findings = sorted((_merge_findings(same) for same in groups.values()), key=_sort_key)
    fingerprint_counts: Counter[str] = Counter()
    numbered_findings: list[Finding] = []
    for finding in merged_findings:
        fingerprint_counts[finding.fingerprint] += 1
        number = fingerprint_counts[finding.fingerprint]
        numbered_findings.append(
            replace(finding, fingerprint=f"{finding.fingerprint}:{number}") if number > 1 else finding
        )
    return tuple(numbered_findings)


def _merge_findings(equal_findings: Sequence[Finding]) -> Finding:
    first_finding = equal_findings[0]
    if len(equal_findings) == 1:
        return first_finding
    nodes = tuple(dict.fromkeys(node for finding in equal_findings for node in finding.nodes))
    evidence: tuple[Evidence, ...] = tuple(
        dict.fromkeys(item for finding in equal_findings for item in finding.evidence)
    )
    locations = tuple(dict.fromkeys(place for finding in equal_findings for place in finding.locations))[
        :_MAX_LOCATIONS
    ]
    # The fingerprint is computed again, from all nodes.
    return replace(
        first_finding,
        nodes=nodes,
        evidence=evidence,
        locations=locations,
        commands=_merge_commands(equal_findings),
        fingerprint="",
    )


def _merge_commands(equal_findings: Sequence[Finding]) -> tuple[Command, ...]:
    """Merge equal lines that run on different nodes into one command for all of these nodes."""
    nodes_by_line: dict[str, dict[str, None]] = {}
    for finding in equal_findings:
        for item in finding.commands:
            nodes_by_line.setdefault(item.line, {}).update(dict.fromkeys(item.nodes))
    return tuple(Command(line, tuple(names)) for line, names in nodes_by_line.items())


def _sort_key(finding: Finding) -> tuple[object, ...]:
    first_location = finding.locations[0] if finding.locations else None
    position = (first_location.path, first_location.line, first_location.column) if first_location else ("", 0, 0)
    return (-finding.severity.rank, finding.id, *position, finding.message, finding.subject, finding.nodes)
