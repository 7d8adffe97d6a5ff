"""Findings: the marked line of each location, both sides of a contradiction, and the change that a fix makes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from preflight._util.sanitize import fold_nodes
from preflight.model.findings import Edit, Finding, Fix, Location
from preflight.reporters.html.drawing.shapes import CellView, ColumnView, RowView, TableView
from preflight.reporters.html.view import Change, CommandView, FindingView, FixView, ObservationView, Place
from preflight.reporters.text.groups import fold_evidence

#: Number of characters kept before the marked part of a line.
_BEFORE = 80


def finding_view(finding: Finding) -> FindingView:
    """Build the view of one finding."""
    return FindingView(
        anchor=anchor_of(finding),
        id=finding.id,
        name=finding.name,
        severity=finding.severity.value,
        confidence=finding.confidence.value,
        message=finding.message,
        subject=finding.subject,
        nodes=fold_nodes(finding.nodes),
        node_count=len(finding.nodes),
        sides=tuple(place_of(location, finding.message) for location in finding.locations),
        seen=tuple(
            ObservationView(item.observed, item.node, item.expected, item.command)
            for item in fold_evidence(finding.evidence)
        ),
        remedy=finding.remedy,
        commands=commands_of(finding),
        fix=_fix(finding.fix, finding.locations) if finding.fix is not None else None,
        explain=f"preflight explain {finding.id}",
        suppression=finding.suppression,
    )


def by_rule(findings: Sequence[FindingView]) -> TableView:
    """Count the findings of each rule, with a link to the first of them, in page order."""
    same: dict[str, list[FindingView]] = {}
    for finding in findings:
        same.setdefault(finding.id, []).append(finding)
    rows = tuple(
        RowView(
            id,
            (
                CellView(found[0].name, links=((found[0].anchor, found[0].name),)),
                CellView(found[0].severity),
                CellView(f"{len(found):,}", sort=str(len(found))),
            ),
        )
        for id, found in same.items()
    )
    columns = (ColumnView("what is wrong"), ColumnView("severity"), ColumnView("findings", numeric=True))
    return TableView("findings.rules", "Findings by rule", "", "rule", columns, rows)


def anchor_of(finding: Finding) -> str:
    """Return the anchor of a finding. It is the same in the next run as long as the fault is the same."""
    # A fingerprint may come from a plugin, and an anchor must be one word.
    return "f-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{finding.id}-{finding.fingerprint}")


def commands_of(finding: Finding) -> tuple[CommandView, ...]:
    """Return the commands that apply the remedy."""
    return tuple(CommandView(command.line, fold_nodes(command.nodes)) for command in finding.commands)


def first_commands(finding: Finding) -> tuple[CommandView, ...]:
    """Return the command to run first: one that fixes the finding, else one that shows its cause, if there is any."""
    if finding.fix is not None:
        return (CommandView(_fix_command(finding.fix)),)
    looks = (CommandView(item.command, item.node) for item in finding.evidence if item.command)
    return commands_of(finding) or tuple(looks)[:1]


def place_of(location: Location, message: str = "") -> Place:
    """Build the line of a location, split at its mark. A note that only repeats the message is left out."""
    text = location.snippet
    start = max(0, min(location.column - 1, len(text)))
    end = min(location.end_column - 1, len(text)) if location.end_line == location.line else len(text)
    end = max(start, end)
    before = text[:start].lstrip()
    if len(before) > _BEFORE:
        before = "…" + before[-_BEFORE:]
    note = location.note if location.note != message else ""
    return Place(location.path, location.line, location.column, before, text[start:end], text[end:], note)


def _fix(fix: Fix, locations: Sequence[Location]) -> FixView:
    lines = {(place.path, place.line): place.snippet for place in locations if place.snippet}
    changes = tuple(_change(edit, lines.get((edit.path, edit.line), "")) for edit in fix.edits)
    return FixView(fix.description, changes, _fix_command(fix))


def _change(edit: Edit, line: str) -> Change:
    """Build the edited piece, within its line if the line is known and still contains the expected text."""
    where = f"{edit.path}:{edit.line}"
    start = edit.column - 1
    old, new = edit.expected.rstrip("\n"), edit.replacement.rstrip("\n")
    if line[start : start + len(old)] != old:
        return Change(where, "", old, new, "")
    return Change(where, line[:start].lstrip(), old, new, line[start + len(old) :])


def _fix_command(fix: Fix) -> str:
    paths = sorted({edit.path for edit in fix.edits})
    words = ["preflight", "lint", "--fix", *([] if fix.safe else ["--unsafe-fixes"])]
    # A file name may look like an option.
    words += [f"./{path}" if path.startswith("-") else path for path in paths]
    return shlex.join(words)
