"""Suppression: which findings a comment in the user's file takes out of the verdict, and which comments are idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from preflight.job import Job, Suppression
from preflight.outcome import Finding


@dataclass(frozen=True, slots=True)
class Sifted:
    """Findings that count, findings that a comment suppressed, and comments that suppressed nothing."""

    kept: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    unused: tuple[Suppression, ...]


def sift(findings: Iterable[Finding], jobs: Sequence[Job]) -> Sifted:
    """Apply every job's suppressions to the findings whose primary place lies on a suppressed line."""
    suppressions = tuple(dict.fromkeys(s for job in jobs for s in job.suppressions))
    used: set[Suppression] = set()
    kept: list[Finding] = []
    taken: list[Finding] = []
    for finding in findings:
        matches = [s for s in suppressions if _applies(s, finding)]
        if not matches:
            kept.append(finding)
            continue
        used.update(matches)
        reason = next((s.reason for s in matches if s.reason), "no reason given")
        taken.append(replace(finding, suppression=reason))
    # One comment may speak of several lines; it is idle when it was of use on none, and named once.
    useful = {(s.path, s.span, s.names) for s in used}
    unused: dict[object, Suppression] = {}
    for s in suppressions:
        if (s.path, s.span, s.names) not in useful:
            unused.setdefault((s.path, s.span, s.names), s)
    return Sifted(tuple(kept), tuple(taken), tuple(unused.values()))


def _applies(suppression: Suppression, finding: Finding) -> bool:
    if not finding.locations:
        return False
    first = finding.locations[0]
    if (first.path, first.line) != (suppression.path, suppression.line):
        return False
    return any(name.upper() == finding.id or name.lower() == finding.name for name in suppression.names)
