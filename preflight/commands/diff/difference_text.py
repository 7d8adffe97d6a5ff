"""A comparison as text: what is worse first, then what is better, then other changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from preflight._util.sanitize import clean, fold_nodes
from preflight._util.sequences import grouped
from preflight.commands.diff.difference import (
    Answer,
    ChangedFinding,
    Difference,
    Drift,
    Measured,
    NodeChange,
    NodeMove,
    OutcomeChange,
    ReportSummary,
)
from preflight.model.findings import Finding, Severity
from preflight.reporters.base import Style
from preflight.reporters.text.full_report import Sheet
from preflight.reporters.text.groups import count

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold"}
_MOVES = {
    NodeMove.CAME: "came",
    NodeMove.WENT: "is no longer one of the nodes",
    NodeMove.SILENT: "could be checked before, but not now",
    NodeMove.ANSWERS: "could not be checked before, but can now",
}
#: Without -v, more than this many similar items are counted.
_MAX_DRIFT_ROWS = 12


def page(difference: Difference, style: Style) -> str:
    """Return the comparison as text, with ANSI colours if `style` requests them."""
    sheet = Sheet(style)
    if style.verbosity >= 0:
        _print_sides(sheet, difference)
    for item in difference.appeared:
        _print_finding(sheet, "new", item.finding)
        if item.unseen_before:
            sheet.wrapped(f"it may not be new: {item.unseen_before}", indent=4)
    for change in difference.changed:
        if change.worse:
            _print_changed(sheet, "worse", change)
    for measured in difference.measured:
        _print_regressions(sheet, measured)
    if style.verbosity >= 0:
        _print_outcomes(sheet, "became unknown", difference.became_unknown)
        for gone in difference.gone:
            _print_gone(sheet, gone.finding, gone.unknown_because)
        for change in difference.changed:
            if not change.worse:
                _print_changed(sheet, "changed", change)
        _print_nodes(sheet, difference.nodes)
        _print_drift(sheet, difference.drift)
        _print_outcomes(sheet, "now known", difference.became_known)
        _print_noise(sheet, difference.measured)
        for note in difference.notes:
            sheet.note(note)
    sheet.line(_last_line(difference))
    return sheet.text()


def _print_sides(sheet: Sheet, difference: Difference) -> None:
    for label, side in (("old:  ", difference.old), ("new:  ", difference.new)):
        sheet.wrapped(_side(side), indent=0, label=label, style="bold")
    sheet.line()


def _side(side: ReportSummary) -> str:
    nodes = f", {count(side.nodes, 'node')}" if side.nodes else ""
    return f"{side.name}: {side.verb} of {side.created}, {side.verdict}, {count(side.findings, 'finding')}{nodes}"


def _print_finding(sheet: Sheet, word: str, finding: Finding) -> None:
    head = Text(f"{word:<8}", style="bold")
    head.append(finding.severity.value, style=_STYLES[finding.severity])
    head.append(f" {finding.id} {clean(finding.name)}", style="none")
    where = _location_text(finding)
    head.append(f"  {where}" if where else "", style="blue")
    sheet.line(head)
    sheet.wrapped(finding.message, indent=4)


def _location_text(finding: Finding) -> str:
    first = finding.locations[0] if finding.locations else None
    parts = [f"{clean(first.path)}:{first.line}"] if first is not None else []
    if finding.nodes:
        parts.append(f"on {fold_nodes(finding.nodes)}")
    return " ".join(parts) or clean(finding.subject)


def _print_gone(sheet: Sheet, finding: Finding, unknown_because: str) -> None:
    _print_finding(sheet, "gone?" if unknown_because else "fixed", finding)
    if unknown_because:
        sheet.wrapped(f"not known to be fixed: {unknown_because}", indent=4)


def _print_changed(sheet: Sheet, word: str, change: ChangedFinding) -> None:
    before, after = change.before, change.after
    _print_finding(sheet, word, after)
    for what in change.what:
        if what == "severity":
            sheet.wrapped(f"was {before.severity.value}, is {after.severity.value}", indent=4)
        elif what == "message":
            sheet.wrapped(f"before: {before.message}", indent=4, hanging=2)
        elif what == "place":
            sheet.wrapped(f"before at {_location_text(before)}", indent=4)
        elif what == "nodes":
            _describe_move(sheet, change)
        elif after.suppression:
            sheet.wrapped(f"no longer counts: {after.suppression}", indent=4)
        else:
            sheet.wrapped(f"did not count before: {before.suppression}", indent=4)


def _describe_move(sheet: Sheet, change: ChangedFinding) -> None:
    before, after = {*change.before.nodes}, {*change.after.nodes}
    more, fewer = sorted(after - before), sorted(before - after - {*change.unseen})
    if more:
        sheet.wrapped(f"now also on {fold_nodes(more)}", indent=4)
    if fewer:
        sheet.wrapped(f"no longer on {fold_nodes(fewer)}", indent=4)
    if change.unseen:
        sheet.wrapped(f"not checked now: {fold_nodes(change.unseen)}", indent=4)


def _print_regressions(sheet: Sheet, measured: Measured) -> None:
    for item in measured.worse:
        head = Text("slower  ", style="bold")
        head.append(measured.title, style=_STYLES[Severity.WARNING])
        head.append(f"  {clean(item.where)}", style="blue")
        sheet.line(head)
        unit = measured.unit
        parts = f"{item.before:g} {unit} before, {item.after:g} {unit} now: a factor of {item.factor:.3g}"
        if len(item.subjects) > 1:
            parts += f" (medians of {len(item.subjects)})"
        sheet.wrapped(parts, indent=4)


def _print_outcomes(sheet: Sheet, word: str, changes: Sequence[OutcomeChange]) -> None:
    shown = changes if sheet.style.verbosity > 0 else [change for change in changes if change.required] or changes[:3]
    for change in shown:
        needed = " (required)" if change.required and word != "now known" else ""
        sheet.wrapped(f"{word}: {change.id} {change.name}{needed}", indent=0)
        sheet.wrapped(f"{fold_nodes(change.subjects)}: {change.reason}", indent=4, hanging=2)
    if len(changes) > len(shown):
        sheet.wrapped(f"{word}: {len(changes) - len(shown)} more (-v lists them)", indent=0)


def _print_nodes(sheet: Sheet, changes: Sequence[NodeChange]) -> None:
    groups = grouped(((change.move, change.reason), change.node) for change in changes)
    for (move, reason), nodes in groups.items():
        which = f"node{'' if len(nodes) == 1 else 's'} {fold_nodes(nodes)}"
        words = _MOVES[move] if len(nodes) == 1 else _MOVES[move].replace("is not", "are not")
        sheet.wrapped(f"{which}: {words}{f': {reason}' if reason else ''}", indent=0, hanging=2)


def _print_drift(sheet: Sheet, drift: Sequence[Drift]) -> None:
    shown = drift if sheet.style.verbosity > 0 else drift[:_MAX_DRIFT_ROWS]
    for item in shown:
        where = f" on {fold_nodes(item.subjects)}" if item.subjects else ""
        change = f"{item.before or 'not known'} -> {item.after or 'not known'}"
        sheet.wrapped(f"drift: {item.table}, {item.what}: {change}{where}", indent=0, hanging=2)
    if len(drift) > len(shown):
        sheet.wrapped(f"drift: {len(drift) - len(shown)} more (-v lists them)", indent=0)


def _print_noise(sheet: Sheet, measured: Sequence[Measured]) -> None:
    for item in _worth_showing(measured, sheet.style.verbosity):
        left = f", {item.missing} only in the older report" if item.missing else ""
        added = f", {item.added} only in the newer one" if item.added else ""
        better = f"; {item.better} better by more than that" if item.better else ""
        change = _format_change(item.change)
        parts = f"{item.compared} compared{left}{added}; {item.noise.because}; the median changed by {change}"
        sheet.wrapped(f"measured: {item.title}: {parts}{better}", indent=0, hanging=2)


def _worth_showing(measured: Sequence[Measured], verbosity: int) -> Sequence[Measured]:
    """Return the phases to show: all with -v, otherwise those that changed by more than the noise."""
    if verbosity > 0:
        return measured
    ids = Counter(item.id for item in measured)
    return [item for item in measured if ids[item.id] == 1 or item.worse or item.better]


def _format_change(factor: float) -> str:
    """Return `3% worse`."""
    direction = "worse" if factor >= 1 else "better"
    factor = factor if factor >= 1 else 1 / factor
    if factor >= 2:
        return f"a factor of {factor:.3g} {direction}"
    return f"{factor - 1:.0%} {direction}" if round(factor, 2) > 1 else "nothing"


def _last_line(difference: Difference) -> Text:
    words = {
        Answer.WORSE: ("WORSE", "bold red"),
        Answer.UNKNOWN: ("INCOMPLETE", "bold yellow"),
        Answer.BETTER: ("BETTER", "bold green"),
        Answer.SAME: ("NOTHING WORSE", "bold green"),
    }
    word, style = words[difference.answer]
    slower = sum(len(item.worse) for item in difference.measured)
    milder = slower or difference.appeared or any(item.worse for item in difference.changed)
    if difference.answer is Answer.SAME and milder:
        word = "NOTHING WORSE THAT COUNTS"
    unknown_because = sum(bool(item.unknown_because) for item in difference.gone)
    parts = [
        f"{len(difference.appeared)} new",
        f"{len(difference.fixed)} fixed",
        f"{len(difference.changed)} changed",
        f"{difference.unchanged} as before",
        *([f"{unknown_because} gone, but not known to be fixed"] if unknown_because else []),
        *([f"{count(slower, 'thing')} slower"] if slower else []),
        *([f"{len(difference.drift)} drifted"] if difference.drift else []),
    ]
    line = Text(word, style=style)
    line.append(f"  {', '.join(parts)}; counting {difference.fail_on} and above", style="none")
    return line
