"""A report on one screen: what is found by rule, the worst first, and the command that shows all of it.

Nothing is dropped silently: every rule that found something has a line or is counted, and what is not shown is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text

from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Finding, Status
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes
from preflight.reporters.coverage import PASSED
from preflight.reporters.grouping import count, counted
from preflight.reporters.page import Page
from preflight.reporters.palette import SEVERITIES
from preflight.reporters.sheet import Sheet, rows

#: A summary longer than this is none, however high the screen is.
_MOST_ROWS = 40
#: The prompt takes one.
_FOR_THE_PROMPT = 1
#: Of what had to be told and could not, so much is named.
_MOST_UNTOLD = 3
#: Of a path in fewer cells than this nothing is left that tells anything.
_SHORTEST_PLACE = 8
#: How much of a group is shown, the least first: lines of its message, lines of its remedy, and whether its commands
#: are; None: all there is.
_DEPTHS: tuple[tuple[int, int, bool] | None, ...] = ((0, 0, False), (2, 0, False), (2, 2, False), (4, 3, True), None)


@dataclass(frozen=True, slots=True)
class _Group:
    """The findings of one rule or check, the worst first."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]


def fits(whole: str, style: Style) -> bool:
    """Whether a page is all seen at once, above the prompt."""
    return style.height is None or rows(whole.split("\n"), style.width) <= style.height


def brief(report: Report, style: Style) -> str:
    """The report in at most as many rows as `style.height` and `_MOST_ROWS` allow."""
    assert style.height is not None
    room = min(style.height, _MOST_ROWS + _FOR_THE_PROMPT) - _FOR_THE_PROMPT
    above, below = _above(report, style), _below(report, style)
    middle = _middle(report, style, room - rows([*above, *below], style.width))
    return "".join(f"{line}\n" for line in (*above, *middle, *below))


def _lines(style: Style, write: Callable[[Sheet], None]) -> list[str]:
    sheet = Sheet(style)
    write(sheet)
    text = sheet.text()
    return text[:-1].split("\n") if text.strip() else []


def _groups(findings: Sequence[Finding]) -> list[_Group]:
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.id, []).append(finding)
    groups = [_Group(tuple(sorted(same, key=lambda f: -f.severity.rank))) for same in by_rule.values()]
    return sorted(groups, key=lambda group: (-group.first.severity.rank, group.first.id))


def _above(report: Report, style: Style) -> list[str]:
    """Who answered, and that a fault was played."""

    def write(sheet: Sheet) -> None:
        page = Page(sheet, report)
        page.drill()
        page.answered()

    lines = _lines(style, write)
    return [*lines, ""] if lines else []


def _middle(report: Report, style: Style, room: int) -> list[str]:
    """A line for each group, then as much more of each, from the worst on, as there is room for."""
    groups = _groups(report.findings)
    shown = groups if len(groups) <= max(room, 1) else groups[: max(room - 1, 1)]
    parts = [_group(group, report, style, 0) for group in shown]
    left = room - len(parts) - (len(shown) < len(groups))
    # What to do about an error comes before what is wrong in a warning.
    ranks = sorted({group.first.severity.rank for group in shown}, reverse=True)
    turns = [(rank, depth) for rank in ranks for depth in (1, 2)]
    turns += [(rank, depth) for depth in range(3, len(_DEPTHS)) for rank in ranks]
    refused = -1
    for rank, depth in turns:
        for index, group in enumerate(shown):
            # Nothing milder is told at greater length than what there was no room for.
            if group.first.severity.rank != rank or rank < refused:
                continue
            fuller = _group(group, report, style, depth)
            more = rows(fuller, style.width) - rows(parts[index], style.width)
            if more <= left:
                left -= more
                parts[index] = fuller
            else:
                refused = max(refused, rank)
    apart = left >= len(parts) and any(len(part) > 1 for part in parts)
    lines = [line for part in parts for line in (*part, *([""] if apart else []))]
    dropped = [finding for group in groups[len(shown) :] for finding in group.findings]
    if dropped:
        rules = count(len(groups) - len(shown), "more rule")
        lines.extend(_lines(style, lambda sheet: sheet.cut(f"and {rules}: {counted(dropped)}")))
    return lines


def _group(group: _Group, report: Report, style: Style, depth: int) -> list[str]:
    def write_all(sheet: Sheet) -> None:
        for finding in group.findings:
            Page(sheet, report).finding(finding)

    limits = _DEPTHS[depth]
    if limits is None:
        return _lines(style, write_all)
    message, remedy, commands = limits

    def write(sheet: Sheet) -> None:
        first, many = group.first, len(group.findings)
        head = Text(first.severity.value, style=SEVERITIES[first.severity])
        head.append(f"[{first.id}] {first.name}", style="bold")
        if many > 1:
            head.append(f" ×{many}", style="bold")
        head.append(f"  {_where(group.findings, style.width - head.cell_len - 2)}", style="none")
        sheet.cut(head)
        if message:
            sheet.wrapped(first.message, most=message)
        if remedy and first.remedy:
            sheet.wrapped(first.remedy, label="fix: ", style="green", most=remedy)
        if commands:
            Page.commands(sheet, first)

    return _lines(style, write)


def _where(findings: Sequence[Finding], room: int) -> str:
    """The nodes of all, else the places of all, those of one file together; as many as there is room for."""
    nodes = tuple(dict.fromkeys(node for finding in findings for node in finding.nodes))
    if nodes:
        return f"on {fold_nodes(nodes)}"
    by_file: dict[str, list[str]] = {}
    for finding in findings:
        for place in finding.locations[:1]:
            by_file.setdefault(clean(place.path), []).append(str(place.line))
    places = [f"{path}:{','.join(dict.fromkeys(lines))}" for path, lines in by_file.items()]
    said = "; ".join(places)
    if len(places) > 1 and cell_len(said) > room:
        more = f" +{len(places) - 1}"
        return _tail(places[0], room - len(more)) + more
    return _tail(said, room)


def _tail(place: str, room: int) -> str:
    """A path whose end, with the file and the line, is what tells it from others."""
    if cell_len(place) <= room or room < _SHORTEST_PLACE:
        return place
    cut = place
    while cell_len(cut) > room - 1:
        cut = cut[1:]
    folder = cut.find("/")
    return "…" + (cut[folder:] if 0 <= folder < len(cut) // 2 else cut)


def _below(report: Report, style: Style) -> list[str]:
    """Everything that is not a finding, in a line or two each, and how to see the rest."""

    def write(sheet: Sheet) -> None:
        page = Page(sheet, report)
        if style.verbosity >= 0:
            _coverage(sheet, report)
            page.hosts()
            page.saved(whence=False)
        page.mendable()
        number = len(report.findings)
        many = "all" if not number else "the finding" if number == 1 else f"all {number} findings"
        if style.rest:
            sheet.wrapped(f"in short, to fit this screen; {many}, and what passed:", indent=0)
            # Not cut: it is there to be copied.
            sheet.line(f"  {style.rest}")
        else:
            sheet.wrapped(f"in short, to fit this screen; -v or a pipe (| cat) shows {many}", indent=0)
        page.verdict()

    return _lines(style, write)


def _coverage(sheet: Sheet, report: Report) -> None:
    required = [outcome for outcome in report.coverage.not_told if outcome.required]
    for outcome in required[:_MOST_UNTOLD]:
        sheet.cut(Text(f"could not be told: {outcome.id} {outcome.name} ({clean(outcome.subject)}): {outcome.reason}"))
    said = []
    if report.suppressed:
        said.append(f"{len(report.suppressed)} suppressed")
    others = len(report.coverage.not_told) - len(required[:_MOST_UNTOLD])
    if others:
        said.append(f"{others}{' more' if required else ''} could not be told")
    passed = {(outcome.stage, outcome.id) for outcome in report.outcomes if outcome.status is Status.PASS}
    numbers = Counter(stage for stage, _ in passed)
    if numbers:
        said.append("passed: " + ", ".join(f"{numbers[s]} {where}" for s, where in PASSED.items() if numbers[s]))
    if report.coverage.broken:
        said.append(f"{count(len(report.coverage.broken), 'part')} of plugins cannot be loaded")
    if said:
        sheet.wrapped("; ".join(said), indent=0, hanging=2)
