"""Short reports for a terminal: one screen with findings by rule, or one line per finding.

Nothing is dropped silently: every rule with findings has a line or is counted, and the summary states what it omits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from preflight._util.sanitize import clean, fold_nodes
from preflight._util.sequences import grouped
from preflight.engine.report import Report
from preflight.model.findings import Finding, Location, Outcome, Status, VerdictKind
from preflight.reporters.base import SEVERITIES, VERDICTS, Style, word
from preflight.reporters.text.full_report import PASSED, Page, Sheet, rows
from preflight.reporters.text.groups import count, counted, group_alike, undecided, unread_inputs, why_not_judged

#: Largest number of rows of a summary, however high the screen is.
_MAX_ROWS = 40
#: The prompt occupies one row.
_FOR_THE_PROMPT = 1
#: Largest number of undecided required checks that are listed.
_MAX_UNDECIDED = 3
#: Smallest number of cells for a useful path.
_MIN_LOCATION_WIDTH = 8
#: Levels of detail of a group: lines of its message, lines of its remedy, and whether its commands are shown; None
#: means everything.
_DEPTHS: tuple[tuple[int, int, bool] | None, ...] = ((0, 0, False), (2, 0, False), (2, 2, False), (4, 3, True), None)


@dataclass(frozen=True, slots=True)
class _Group:
    """The findings of one rule or check, the worst first."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]


def fits(whole: str, style: Style) -> bool:
    """Return whether a page is visible at once above the prompt."""
    return style.height is None or rows(whole.split("\n"), style.width) <= style.height


def brief(report: Report, style: Style) -> str:
    """Return the report in at most as many rows as `style.height` and `_MAX_ROWS` allow."""
    assert style.height is not None
    room = min(style.height, _MAX_ROWS + _FOR_THE_PROMPT) - _FOR_THE_PROMPT
    above, below = _head_lines(report, style), _foot_lines(report, style)
    middle = _group_lines(report, style, room - rows([*above, *below], style.width))
    return "".join(f"{line}\n" for line in (*above, *middle, *below))


def _lines(style: Style, write: Callable[[Sheet], None]) -> list[str]:
    sheet = Sheet(style)
    write(sheet)
    text = sheet.text()
    return text[:-1].split("\n") if text.strip() else []


def _groups(findings: Sequence[Finding]) -> list[_Group]:
    by_rule = grouped((finding.id, finding) for finding in findings)
    groups = [_Group(tuple(sorted(same, key=lambda f: -f.severity.rank))) for same in by_rule.values()]
    return sorted(groups, key=lambda group: (-group.first.severity.rank, group.first.id))


def _head_lines(report: Report, style: Style) -> list[str]:
    """Return the lines about nodes that answered, and about an injected fault."""

    def write(sheet: Sheet) -> None:
        page = Page(sheet, report)
        page.injected_fault()
        page.answered()

    lines = _lines(style, write)
    return [*lines, ""] if lines else []


def _group_lines(report: Report, style: Style, room: int) -> list[str]:
    """Return a line for each group, then as many details of each as fit, starting with the worst."""
    groups = _groups(report.findings)
    shown = groups if len(groups) <= max(room, 1) else groups[: max(room - 1, 1)]
    parts = [_group(group, report, style, 0) for group in shown]
    left = room - len(parts) - (len(shown) < len(groups))
    # The remedy of an error comes before the message of a warning.
    ranks = sorted({group.first.severity.rank for group in shown}, reverse=True)
    turns = [(rank, depth) for rank in ranks for depth in (1, 2)]
    turns += [(rank, depth) for depth in range(3, len(_DEPTHS)) for rank in ranks]
    refused = -1
    for rank, depth in turns:
        for index, group in enumerate(shown):
            # Milder findings never get more detail than worse ones.
            if group.first.severity.rank != rank or rank < refused:
                continue
            fuller = _group(group, report, style, depth)
            more = rows(fuller, style.width) - rows(parts[index], style.width)
            if more <= left:
                left -= more
                parts[index] = fuller
            else:
                refused = max(refused, rank)
    spaced = left >= len(parts) and any(len(part) > 1 for part in parts)
    lines = [line for part in parts for line in (*part, *([""] if spaced else []))]
    dropped = [finding for group in groups[len(shown) :] for finding in group.findings]
    if dropped:
        rules = count(len(groups) - len(shown), "more rule")
        lines.extend(_lines(style, lambda sheet: sheet.cut(f"and {rules}: {counted(dropped)}")))
    return lines


def _group(group: _Group, report: Report, style: Style, depth: int) -> list[str]:
    def write_all(sheet: Sheet) -> None:
        for same in group_alike(group.findings):
            Page(sheet, report).finding(same[0], same[1:])

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
        head.append(f"  {_locations_text(group.findings, style.width - head.cell_len - 2)}", style="none")
        sheet.cut(head)
        if message:
            sheet.wrapped(first.message, max_lines=message)
        if remedy and first.remedy:
            sheet.wrapped(first.remedy, label="fix: ", style="green", max_lines=remedy)
        if commands:
            Page.commands(sheet, first)

    return _lines(style, write)


def _locations_text(findings: Sequence[Finding], room: int) -> str:
    """Return the nodes of all findings, otherwise their locations grouped by file, as many as fit into `room` cells."""
    nodes = tuple(dict.fromkeys(node for finding in findings for node in finding.nodes))
    if nodes:
        return f"on {fold_nodes(nodes)}"
    by_file = grouped((clean(place.path), str(place.line)) for finding in findings for place in finding.locations[:1])
    places = [f"{path}:{','.join(dict.fromkeys(lines))}" for path, lines in by_file.items()]
    joined = "; ".join(places)
    if len(places) > 1 and cell_len(joined) > room:
        more = f" +{len(places) - 1}"
        return _shorten_path(places[0], room - len(more)) + more
    return _shorten_path(joined, room)


def _shorten_path(place: str, room: int) -> str:
    """Shorten a path at its beginning, because its end distinguishes it from others."""
    if cell_len(place) <= room or room < _MIN_LOCATION_WIDTH:
        return place
    cut = place
    while cell_len(cut) > room - 1:
        cut = cut[1:]
    folder = cut.find("/")
    return "…" + (cut[folder:] if 0 <= folder < len(cut) // 2 else cut)


def _foot_lines(report: Report, style: Style) -> list[str]:
    """Return the coverage and the verdict in one or two lines each, and how to see the rest."""

    def write(sheet: Sheet) -> None:
        page = Page(sheet, report)
        if style.verbosity >= 0:
            _coverage(sheet, report)
            page.hosts()
            page.avoided(sources=False)
        else:
            page.why_incomplete()
        page.fixable()
        number = len(report.findings)
        many = "all" if not number else "the finding" if number == 1 else f"all {number} findings"
        if style.rest:
            sheet.wrapped(f"shortened to fit this screen; to see {many} and what passed:", indent=0)
            # Not cut, so that it can be copied.
            sheet.line(f"  {style.rest}")
        else:
            sheet.wrapped(f"shortened to fit this screen; -v or a pipe (| cat) shows {many}", indent=0)
        page.verdict()

    return _lines(style, write)


def _coverage(sheet: Sheet, report: Report) -> None:
    for note in unread_inputs(report)[:_MAX_UNDECIDED]:
        sheet.cut(Text(f"not judged: {clean(note.span.path)}: {clean(note.message)}"))
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    # A file that was not read comes before the checks that this left undecided.
    required.sort(key=lambda outcome: not outcome.id.startswith("FIL"))
    for outcome in required[:_MAX_UNDECIDED]:
        sheet.cut(
            Text(f"could not be decided: {outcome.id} {outcome.name} ({clean(outcome.subject)}): {outcome.reason}")
        )
    parts = []
    if report.suppressed:
        parts.append(f"{len(report.suppressed)} suppressed")
    others = len(report.coverage.unknown_outcomes) - len(required[:_MAX_UNDECIDED])
    if others:
        parts.append(f"{others}{' more' if required else ''} could not be decided")
    passed = {(outcome.stage, outcome.id) for outcome in report.outcomes if outcome.status is Status.PASS}
    numbers = Counter(stage for stage, _ in passed)
    if numbers:
        parts.append("passed: " + ", ".join(f"{numbers[s]} {where}" for s, where in PASSED.items() if numbers[s]))
    if report.coverage.broken:
        parts.append(f"{count(len(report.coverage.broken), 'part')} of plugins could not be loaded")
    if parts:
        sheet.wrapped("; ".join(parts), indent=0, hanging=2)


def concise(report: Report, style: Style) -> str:
    """Render `path:line:col: error[ID] message` for each finding. A finding without a location in a file starts with
    its nodes.

    Undecided required checks follow as `unknown[ID]`, since they affect the verdict too. The last line is the verdict,
    after `preflight:`.
    """
    sheet = Sheet(style)
    for finding in report.findings:
        _line(sheet, _location_text(finding), finding.severity.value, SEVERITIES[finding.severity], finding)
    for outcome in report.coverage.unknown_outcomes:
        if outcome.required:
            place = _place(outcome.locations) or clean(outcome.subject)
            _line(sheet, place, "unknown", "bold yellow", outcome)
    for note in unread_inputs(report):
        line = Text(f"{clean(note.span.path)}:{note.span.line}:{note.span.column}: ")
        line.append("unknown", style="bold yellow")
        line.append(f" {' '.join(clean(note.message).split())}")
        sheet.line(line)
    counts = ", ".join(_verdict(report))
    sheet.line(Text.assemble("preflight: ", (word(report.verdict), VERDICTS[report.verdict]), f" {counts}"))
    return sheet.text()


def _line(sheet: Sheet, where: str, what: str, color: str, item: Finding | Outcome) -> None:
    message = item.message if isinstance(item, Finding) else item.reason
    line = Text(f"{where}: ")
    line.append(f"{what}[{item.id}]", style=color)
    line.append(f" {' '.join(clean(message).split())}")
    sheet.line(line)


def _location_text(finding: Finding) -> str:
    """Return the first location in a file, else the nodes, else the subject."""
    return _place(finding.locations) or fold_nodes(finding.nodes) or clean(finding.subject)


def _place(locations: tuple[Location, ...]) -> str:
    return f"{clean(locations[0].path)}:{locations[0].line}:{locations[0].column}" if locations else ""


def _verdict(report: Report) -> Iterator[str]:
    if report.verdict is VerdictKind.NOT_JUDGED:
        yield why_not_judged(report)
        return
    yield counted(report.findings) or "nothing found"
    required = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
    if required:
        yield undecided(required)
    if report.exit_code in (130, 143):
        yield "interrupted"
