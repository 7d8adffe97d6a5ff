"""One finding for each fault: merges equal findings, and makes fingerprints unique."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from preflight.model.findings import Command, Evidence, Finding

#: A finding that many jobs share lists at most this many locations; the first is that of the fault.
_MAX_PLACES = 8


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for each fault, worst first: findings with the same text and location are merged.

    A fault of several nodes is listed once, with all of them; so is a fault in a file that several jobs share.
    Remaining findings with the same fingerprint (two lines of the same text) are numbered, so that each fingerprint
    names one finding.
    """
    kept: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        # The subject of a node's fault is the node itself, and that of a fault in a file is one of the launches that
        # reach it: merging ignores it.
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
    places = tuple(dict.fromkeys(place for finding in same for place in finding.locations))[:_MAX_PLACES]
    # The fingerprint is computed from all nodes, not from whichever node came first.
    return replace(
        first, nodes=nodes, evidence=evidence, locations=places, commands=_merged_commands(same), fingerprint=""
    )


def _merged_commands(same: Sequence[Finding]) -> tuple[Command, ...]:
    """A line to run on several nodes is included once, with all of them."""
    nodes: dict[str, dict[str, None]] = {}
    for finding in same:
        for item in finding.commands:
            nodes.setdefault(item.line, {}).update(dict.fromkeys(item.nodes))
    return tuple(Command(line, tuple(names)) for line, names in nodes.items())


def _order(finding: Finding) -> tuple[object, ...]:
    first = finding.locations[0] if finding.locations else None
    where = (first.path, first.line, first.column) if first else ("", 0, 0)
    return (-finding.severity.rank, finding.id, *where, finding.message, finding.subject, finding.nodes)
