"""View models of the page and its sections: everything that templates read, in the words to show.

All values are plain, unescaped text; templates do the escaping.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from preflight._util.sanitize import fold_nodes
from preflight._util.sequences import grouped
from preflight.engine.report import Coverage, Hosts, Report, commands_without_failing, hosts_of
from preflight.model.charts import Cell, Column, Row, Table
from preflight.model.findings import Edit, Evidence, Finding, Fix, Location, Outcome, Severity, Status
from preflight.model.job import Span
from preflight.model.recording import NodeRecord
from preflight.reporters.html.drawing.shapes import CellView, ColumnView, Drawing, RowView, TableView, table_view
from preflight.reporters.text.groups import by_area, by_reason, count, fold_evidence, numbered, unused_comment_reasons


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class VerdictView:
    """The verdict: `kind` selects colour and sign, `word` and `sentence` state it, `counts` are its numbers."""

    kind: str
    word: str
    sentence: str
    counts: str
    #: What a reader must know before trusting the verdict: an injected fault, an interruption.
    warnings: tuple[str, ...] = ()
    #: The cost that a no-go avoided, and the source of each number.
    avoided: str = ""
    avoided_sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandView:
    """A command to paste, and the nodes to run it on; no nodes means the reader's own machine."""

    line: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. `target` is the anchor of its finding, if there is one."""

    title: str
    text: str = ""
    commands: tuple[CommandView, ...] = ()
    target: str = ""
    #: Number of further findings of the same rule.
    same_count: int = 0
    #: File and line, if known.
    where: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, split into the text before, inside and after the mark."""

    path: str
    line: int
    column: int
    before: str = ""
    marked: str = ""
    after: str = ""
    note: str = ""

    @property
    def has_text(self) -> bool:
        """Return whether the place has a line to show."""
        return bool(self.before or self.marked or self.after)


@dataclass(frozen=True, slots=True)
class Change:
    """A line before and after a fix; only the edited pieces if the whole line is unknown."""

    where: str
    before: str
    old: str
    new: str
    after: str


@dataclass(frozen=True, slots=True)
class FixView:
    """What `--fix` would change."""

    description: str
    changes: tuple[Change, ...]
    command: str


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding. `anchor` is stable between runs; `sides` are locations that belong together."""

    anchor: str
    finding: Finding
    nodes: str
    sides: tuple[Place, ...]
    seen: Sequence[Evidence]
    commands: tuple[CommandView, ...]
    fix: FixView | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A list entry: name, subject, reason, and location in a file."""

    what: str
    subject: str = ""
    why: str = ""
    where: str = ""
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries under one heading; `open` groups are expanded at first, `bulk` ones are not printed on paper."""

    title: str
    entries: tuple[Entry, ...]
    note: str = ""
    open: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run: how long it took, or why it did not run."""

    name: str
    took: str
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """A way to start without some nodes: a command, or text about an option."""

    text: str
    is_command: bool


@dataclass(frozen=True, slots=True)
class NodesView:
    """The nodes: which are fit, how to start without the others, and a table of all of them."""

    table: TableView
    summary: tuple[Fact, ...]
    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the table of contents."""

    anchor: str
    title: str
    count: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    title: str
    job: str
    verdict: VerdictView
    about: tuple[Fact, ...]
    steps: tuple[Step, ...]
    #: Number of findings that no step mentions.
    more_steps: int
    findings: tuple[FindingView, ...]
    severities: tuple[tuple[str, int], ...]
    #: Number of findings per rule, if there are many.
    by_rule: TableView | None
    nodes: NodesView | None
    drawings: tuple[tuple[str, Sequence[Drawing]], ...]
    coverage: Coverage
    unchecked: tuple[Group, ...]
    checked: tuple[Group, ...]
    suppressed: tuple[FindingView, ...]
    notes: tuple[str, ...]
    files: tuple[Fact, ...]
    stages: tuple[Stage, ...]
    tool: str
    sections: tuple[Section, ...]


#: Number of characters kept before the marked part of a line.
_BEFORE = 80


def finding_view(finding: Finding) -> FindingView:
    return FindingView(
        anchor=anchor_of(finding),
        finding=finding,
        nodes=fold_nodes(finding.nodes),
        sides=tuple(place_of(location, finding.message) for location in finding.locations),
        seen=fold_evidence(finding.evidence),
        commands=commands_of(finding),
        fix=_fix(finding.fix, finding.locations) if finding.fix is not None else None,
    )


def by_rule(findings: Sequence[FindingView]) -> TableView:
    """Count the findings of each rule, with a link to the first of them, in page order."""
    same = grouped((item.finding.id, item) for item in findings)
    rows = tuple(
        RowView(
            id,
            (
                CellView(found[0].finding.name, links=((found[0].anchor, found[0].finding.name),)),
                CellView(found[0].finding.severity.value),
                CellView(f"{len(found):,}", sort=str(len(found))),
            ),
        )
        for id, found in same.items()
    )
    columns = (ColumnView("what is wrong"), ColumnView("severity"), ColumnView("findings", numeric=True))
    return TableView("findings.rules", "Findings by rule", "", "rule", columns, rows)


def anchor_of(finding: Finding) -> str:
    """Return the anchor of a finding. Later runs give the same anchor as long as the fault is unchanged."""
    # A fingerprint may come from a plugin, and an anchor must be one word.
    return "f-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{finding.id}-{finding.fingerprint}")


def commands_of(finding: Finding) -> tuple[CommandView, ...]:
    """Return the commands that apply the finding's remedy."""
    return tuple(CommandView(command.line, fold_nodes(command.nodes)) for command in finding.commands)


def first_commands(finding: Finding) -> tuple[CommandView, ...]:
    """Return the commands to run first: those that fix the finding, otherwise those that show its cause."""
    if finding.fix is not None:
        return (CommandView(_fix_command(finding.fix)),)
    looks = (CommandView(item.command, item.node) for item in finding.evidence if item.command)
    return commands_of(finding) or tuple(looks)[:1]


def place_of(location: Location, message: str = "") -> Place:
    """Build the line of a location, split at its mark. A note is left out if it repeats the message."""
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


#: Id of the chart with more details of each node.
NODE_CHART = "nodes"
#: Its columns about how a node was reached.
_REACHED = ("state", "agent")
_STATES = {"fit": "good", "not fit": "bad", "unknown": "open"}


def nodes_view(report: Report) -> NodesView | None:
    """Build the section about nodes; None if the run had none."""
    if not report.nodes:
        return None
    hosts = hosts_of(report)
    named = (("not fit", hosts.failing), ("unknown", hosts.unknown), ("fit", hosts.passing))
    summary = tuple(Fact(f"{len(names)} {state}", fold_nodes(names)) for state, names in named if names)
    return NodesView(_link_table(table_view(_table(report, hosts)), report), summary, starts_of(report, hosts))


def starts_of(report: Report, hosts: Hosts) -> tuple[Start, ...]:
    """Return the commands that start the job without unfit nodes, not mere options."""
    return tuple(Start(start, not start.startswith("-")) for start in commands_without_failing(report, hosts))


def _table(report: Report, hosts: Hosts) -> Table:
    more = next((e for e in report.charts if e.id == NODE_CHART and isinstance(e, Table)), None)
    # The columns before these say how a node was reached.
    kept = [number for number, column in enumerate(more.columns) if column.name not in _REACHED] if more else []
    added = {row.subject: tuple(row.cells[number] for number in kept) for row in more.rows} if more else {}
    further = [more.columns[number] for number in kept] if more else []
    columns = [Column("state"), Column("findings"), *_own_columns(report.nodes), *further]
    states = {**dict.fromkeys(hosts.failing, "not fit"), **dict.fromkeys(hosts.unknown, "unknown")}
    found = _findings(report.findings)
    rows = tuple(_row(record, report.nodes, states, found, added, len(columns)) for record in report.nodes)
    note = more.note if more else f"{len(report.nodes):,} nodes, in rank order"
    return Table(NODE_CHART, "Nodes", note, tuple(columns), rows)


def _own_columns(nodes: Sequence[NodeRecord]) -> list[Column]:
    found = [Column("reached")]
    if _pythons_differ(nodes):
        found.append(Column("agent's Python"))
    if any(record.round_trip_s is not None for record in nodes):
        found.append(Column("round trip to it", "s"))
    return found


def _pythons_differ(nodes: Sequence[NodeRecord]) -> bool:
    """Return whether agents run under different Pythons, which deserves a column."""
    return len({record.python for record in nodes if record.python}) > 1


def _row(
    record: NodeRecord,
    nodes: Sequence[NodeRecord],
    states: dict[str, str],
    marked: dict[str, list[str]],
    added: dict[str, tuple[Cell, ...]],
    width: int,
) -> Row:
    name = record.node.name
    state = states.get(name, "fit")
    cells = [Cell(state, odd=state == "not fit"), Cell(", ".join(marked.get(name, ())))]
    cells.append(Cell(record.problem or "answered", odd=bool(record.problem)))
    if _pythons_differ(nodes):
        cells.append(Cell(record.python or None))
    if any(other.round_trip_s is not None for other in nodes):
        cells.append(Cell(record.round_trip_s))
    cells += added.get(name, ())
    # Nothing else is known about a node that never answered.
    cells += [Cell(None, why="no data")] * (width - len(cells))
    return Row(name, tuple(cells[:width]))


def _findings(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """Return the ids of findings by node; informational findings are left out."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        for node in finding.nodes if finding.severity is not Severity.INFO else ():
            ids = found.setdefault(node, [])
            if finding.id not in ids:
                ids.append(finding.id)
    return found


def _link_table(table: TableView, report: Report) -> TableView:
    """Add signs of states to the table, and link its ids to the findings."""
    anchors = {finding.id: anchor_of(finding) for finding in reversed(report.findings)}
    return replace(
        table,
        rows=tuple(_linked_row(row, anchors) for row in table.rows),
        all_rows=tuple(_linked_row(row, anchors) for row in table.all_rows),
    )


def _linked_row(row: RowView, anchors: dict[str, str]) -> RowView:
    state, found, *others = row.cells
    links = tuple((anchors[id], id) for id in found.text.split(", ") if id in anchors)
    state = replace(state, state=_STATES.get(state.text, ""), odd=False)
    return replace(row, cells=(state, CellView(found.text, links=links), *others))


#: Titles of the stages in which something passed, in the order of the run.
_STAGES = {"lint": "In the files", "node": "On the nodes", "link": "Between nodes", "smoke": "In the smoke run"}
#: Number of entries shown per list.
_MAX_ENTRIES = 400


def unchecked_groups(report: Report) -> Iterator[Group]:
    """Yield what was not checked or not decided, with the reasons."""
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    others = [outcome for outcome in report.coverage.unknown_outcomes if not outcome.required]
    note = "The verdict cannot be go until these are decided."
    yield _group("Required checks that could not be decided", _unknown(required), note, is_open=True)
    skipped = (Entry(stage.name, why=stage.skipped) for stage in report.run.stages if stage.skipped)
    yield _group("Stages that did not run", skipped, is_open=True)
    note = "The job does not require them. They are listed because they did not pass either."
    yield _group("Optional checks that could not be decided", _unknown(others), note)
    broken = (Entry(f"{item.where} of {item.plugin}", why=item.why) for item in report.coverage.broken)
    yield _group("Plugins that failed", broken, is_open=True)
    notes = (
        Entry(note.span.path, why=note.message, where=_position_text(note.span))
        for job in report.jobs
        for note in job.notes
    )
    yield _group("Files that were read only in part", dict.fromkeys(notes))
    yield _group("Notes on waivers and comments", _notes(report))
    skipped_rules = [outcome for outcome in report.outcomes if outcome.status is Status.NOT_APPLICABLE]
    yield replace(_group("Not applicable to this job", _group_by_rule(skipped_rules)), bulk=True)


def checked_groups(report: Report) -> Iterator[Group]:
    """Yield what passed, grouped by stage."""
    for stage, title in _STAGES.items():
        here = [o for o in report.outcomes if o.stage == stage and o.status is Status.PASS]
        what = "rule" if stage == "lint" else "check"
        title = f"{title}: {count(len({o.id for o in here}), what)}"
        entries: list[Entry] = [Entry(area, why=", ".join(numbered(same))) for area, same in by_area(here)]
        if stage in ("link", "smoke"):
            entries += [Entry(subject) for subject in dict.fromkeys(outcome.subject for outcome in here)]
        yield Group(title, tuple(entries))


def _group(
    title: str, entries: Sequence[Entry] | Iterator[Entry] | dict[Entry, None], note: str = "", *, is_open: bool = False
) -> Group:
    listed = tuple(entries)
    if len(listed) > _MAX_ENTRIES:
        note = f"{note} The first {_MAX_ENTRIES} of {len(listed):,} are shown.".strip()
    return Group(f"{title} ({len(listed):,})", listed[:_MAX_ENTRIES], note, is_open)


def _unknown(outcomes: Sequence[Outcome]) -> Iterator[Entry]:
    for same in by_reason(outcomes):
        names = ", ".join(dict.fromkeys(f"{outcome.id} {outcome.name}" for outcome in same))
        subjects = fold_nodes(tuple(dict.fromkeys(outcome.subject for outcome in same)))
        places = dict.fromkeys(_position_text(place) for outcome in same for place in outcome.locations[:1])
        yield Entry(names, subjects, same[0].reason, ", ".join(places), subjects)


def _group_by_rule(outcomes: Sequence[Outcome]) -> Iterator[Entry]:
    ordered = sorted(outcomes, key=lambda outcome: outcome.id)
    same = grouped(((outcome.id, outcome.name, outcome.reason), outcome.subject) for outcome in ordered)
    for (id, name, reason), subjects in same.items():
        yield Entry(f"{id} {name}", fold_nodes(tuple(dict.fromkeys(subjects))), reason)


def _notes(report: Report) -> Iterator[Entry]:
    for note in report.coverage.suppression_notes:
        yield Entry(note.message, where=_position_text(note.location) if note.location else "")
    for idle, why in unused_comment_reasons(report):
        yield Entry(f"suppresses {why}", where=f"{idle.path}:{idle.span.line}")
    for gone in report.coverage.unused_baseline:
        yield Entry(f"{gone.id} in the baseline no longer occurs", why=gone.message, where=gone.path)


def _position_text(place: Location | Span) -> str:
    return f"{place.path}:{place.line}"
