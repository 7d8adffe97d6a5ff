"""The sections of a plan that all its formats share, and a plan as text, as one HTML file and as Markdown."""

from __future__ import annotations

import posixpath
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.text import Text

from preflight._util.sanitize import clean
from preflight.analysis.model_size import format_gibibytes
from preflight.commands.plan.job_plan import JobPlan, LaunchPlan, MemoryPart, Place, Plan, ResourceRequest, Setting
from preflight.reporters.base import Style
from preflight.reporters.html.page import render_template, text_templates
from preflight.reporters.text.full_report import Sheet
from preflight.reporters.text.groups import count


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a section: label, text and location."""

    label: str
    text: str
    places: tuple[Place, ...] = ()


def size_of(launch: LaunchPlan) -> str:
    """Format the size, such as `16 ranks on 2 nodes`, with `unknown` for missing numbers."""
    if launch.starts_one and launch.ranks:
        row = launch.ranks[0]
        return f"{'parameter server' if row.role == 'server' else row.role} {row.ranks}"
    roles = [row for row in launch.ranks if row.role in ("server", "trainer")]
    if roles:
        servers = _amount([row.ranks for row in roles if row.role == "server"])
        trainers = _amount([row.ranks for row in roles if row.role == "trainer"])
        return f"{count(servers, 'parameter server')} and {count(trainers, 'trainer')}"
    if launch.world_size is not None and launch.world_size.known:
        ranks = _format_count(launch.world_size.value, "rank")
        nodes = launch.nodes
        return f"{ranks} on {_format_count(nodes.value, 'node')}" if nodes is not None and nodes.known else ranks
    each = launch.processes_per_node
    if each is not None and each.known:
        nodes_known = launch.nodes is not None and launch.nodes.known
        return f"{each.value} on each node" + ("" if nodes_known else "; the number of nodes is unknown")
    return "the number of ranks is unknown"


def _format_count(number: str, what: str) -> str:
    return f"{number} {what}{'' if number == '1' else 's'}"


def _amount(spans: list[str]) -> int:
    total = 0
    for span in spans:
        first, _, last = span.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def facts_of(launch: LaunchPlan, *, everything: bool) -> Iterator[Fact]:
    """Return the facts of a launch, the most important ones first; `everything` adds all settings."""
    if launch.started_at:
        yield Fact("started at", "", launch.started_at)
    if launch.inside:
        yield Fact("inside", " > ".join(launch.inside))
    if launch.condition:
        yield Fact("branch", launch.condition)
    if launch.concurrent:
        yield Fact("meanwhile", "later commands run at the same time")
    for label, setting in (
        ("nodes", launch.nodes),
        ("each node", launch.processes_per_node),
        ("world", launch.world_size),
    ):
        if setting is not None:
            yield _setting_fact(label, setting, value_only=True)
    for endpoint in launch.endpoints:
        yield Fact(
            "endpoints", f"{endpoint.address}, {endpoint.purpose}; used by {endpoint.dialled_by}", (endpoint.place,)
        )
    for setting in launch.interfaces:
        yield _variable_fact("interface", setting, launch)
    if launch.grid is not None:
        places = tuple(axis.place for axis in launch.grid.axes if axis.place is not None)
        experts = "".join(f"; {axis.size} EP within DP" for axis in launch.grid.axes if axis.name == "EP")
        yield Fact("grid", launch.grid.equation + experts, places)
    if launch.batch is not None:
        yield Fact("batch", launch.batch.equation, launch.batch.places)
    if launch.memory:
        yield Fact(
            "GPU memory", f"at least {format_gibibytes(sum(part.size_bytes for part in launch.memory))} on each GPU"
        )
        for part in launch.memory:
            yield Fact("", f"{format_gibibytes(part.size_bytes)} {part.name}: {part.formula}")
    if launch.servers:
        yield Fact("servers", launch.servers)
    for setting in launch.paths:
        yield _setting_fact(setting.name.replace("_", " "), setting, value_only=True)
    for setting in launch.variables:
        yield _variable_fact("variable", setting, launch)
    if launch.arguments or launch.rank_arguments:
        words = [*launch.rank_arguments]
        words += ["..." if word is None else shlex.quote(word) for word in launch.arguments]
        yield Fact("arguments", " ".join(words))
    for setting in launch.settings if everything else ():
        yield _setting_fact("setting", setting)
    for item in launch.open:
        decided = f"; {item.decided_by} decides it" if item.decided_by else ""
        yield Fact("not known", f"{item.name.replace('_', ' ')}: {item.reason}{decided}", (item.place,))


def _variable_fact(label: str, setting: Setting, launch: LaunchPlan) -> Fact:
    fact = _setting_fact(label, setting)
    kept = ", not passed to other hosts" if setting.name in launch.kept_variables else ""
    return Fact(fact.label, fact.text + kept, fact.places)


def _setting_fact(label: str, setting: Setting, *, value_only: bool = False) -> Fact:
    text = setting.value if value_only else f"{setting.name}={setting.value}"
    if value_only and setting.known and setting.spelling and label in ("nodes", "each node", "world"):
        text += f"  ({setting.spelling})"
    for other in setting.overrides:
        text += f", overrides {other.spelling} ({other.place})"
    return Fact(label, text, (setting.place,))


_COLUMNS = ("role", "node", "host", "ranks", "local ranks", "devices")


def rank_table(launch: LaunchPlan) -> tuple[tuple[str, ...], ...]:
    """Return the ranks as rows of a table after its header, without empty columns; empty without ranks."""
    rows = [(row.role, row.node, row.host, row.ranks, row.local_ranks, row.devices) for row in launch.ranks]
    used = [number for number in range(len(_COLUMNS)) if any(row[number] for row in rows)]
    table = [tuple(row[number] for number in used) for row in (_COLUMNS, *rows)]
    return tuple(table) if rows else ()


def request_of(request: ResourceRequest) -> str:
    """Format the resource request as an equation; empty if nothing is known."""
    parts = []
    if request.nodes:
        parts.append(count(request.nodes, "node"))
    if request.gpus_per_node:
        parts.append(count(request.gpus_per_node, "GPU"))
    if request.time_limit_s:
        parts.append(f"{request.time_limit_s / 3600:g} h")
    if not parts:
        return ""
    text = " x ".join(parts)
    if request.gpu_hours is not None:
        text += f" = {request.gpu_hours:,.6g} GPU-hours at most"
    if request.cost is not None:
        text += f", {request.cost:,.2f} at the given price"
    return text


def summary_of(job: JobPlan) -> str:
    """Format the total, such as `2 launches in 3 files`."""
    launches = len(job.launches)
    summary = f"{launches} launch{'' if launches == 1 else 'es'}" if launches else "no launch was recognized"
    return f"{summary} in {count(len(job.files), 'file')}"


#: The subject of a change that does not concern ranks: files that could not be compared.
NOT_READ = "not read"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: launcher and program (or the job), what changed, and the values (empty for none)."""

    launch: str
    what: str
    before: str
    after: str


def changes_between(old: Plan, new: Plan) -> tuple[Change, ...]:
    """Return the differences by launch. Launches with equal program and launcher are matched in order."""
    return tuple(_changes(old, new))


def _changes(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _index_by_name(old), _index_by_name(new)
    for name in dict.fromkeys((*before, *after)):
        was, will = before.get(name), after.get(name)
        if will is None and was is not None:
            yield Change(name, "launch", size_of(was), "")
        elif was is None and will is not None:
            yield Change(name, "launch", "", size_of(will))
        elif was is not None and will is not None:
            yield from _launch_changes(name, was, will)
    requests = [" + ".join(filter(None, (request_of(job.request) for job in plan.jobs))) for plan in (old, new)]
    if requests[0] != requests[1]:
        yield Change("", "asks for", *requests)
    yield from _unread(old, new)


def _unread(old: Plan, new: Plan) -> Iterator[Change]:
    """Return the files that were not read, as changes: anything in them may have changed."""
    was, will = (tuple(dict.fromkeys(reason for job in plan.jobs for reason in job.unread)) for plan in (old, new))
    if was != will or is_incomplete(old) or is_incomplete(new):
        yield Change("", NOT_READ, "; ".join(was), "; ".join(will))


def is_incomplete(plan: Plan) -> bool:
    """Return whether a selected file was not read to its end."""
    return any(job.incomplete for job in plan.jobs)


def _index_by_name(plan: Plan) -> dict[str, LaunchPlan]:
    found: dict[str, LaunchPlan] = {}
    for job in plan.jobs:
        for launch in job.launches:
            name = f"{launch.launcher} {launch.program.rpartition('/')[2]}".strip()
            number = sum(other == name or other.startswith(f"{name} #") for other in found)
            found[f"{name} #{number + 1}" if number else name] = launch
    return found


def _launch_changes(name: str, was: LaunchPlan, will: LaunchPlan) -> Iterator[Change]:
    if size_of(was) != size_of(will):
        yield Change(name, "size", size_of(was), size_of(will))
    for what, before, after in (
        ("ranks", _rows(was), _rows(will)),
        ("inside", " > ".join(was.inside), " > ".join(will.inside)),
        ("only if", was.condition, will.condition),
        ("grid", was.grid.equation if was.grid else "", will.grid.equation if will.grid else ""),
        ("batch", was.batch.equation if was.batch else "", will.batch.equation if will.batch else ""),
        ("GPU memory in bytes", _memory(was), _memory(will)),
        ("servers", was.servers, will.servers),
        ("arguments", _arguments(was), _arguments(will)),
        ("endpoints", _endpoints(was), _endpoints(will)),
    ):
        if before != after:
            yield Change(name, what, before, after)
    for kind, settings_before, settings_after in (
        ("variable", (*was.variables, *was.interfaces), (*will.variables, *will.interfaces)),
        ("path", was.paths, will.paths),
        ("setting", was.settings, will.settings),
    ):
        yield from _setting_changes(name, kind, settings_before, settings_after)


def _setting_changes(name: str, kind: str, before: Sequence[Setting], after: Sequence[Setting]) -> Iterator[Change]:
    was, will = ({setting.name: setting.value for setting in settings} for settings in (before, after))
    for key in sorted({*was, *will}):
        if was.get(key) != will.get(key):
            yield Change(name, f"{kind} {key}", was.get(key, ""), will.get(key, ""))


def _rows(launch: LaunchPlan) -> str:
    return "; ".join(
        " ".join(filter(None, (row.role, row.ranks, row.host and f"on {row.host}", row.devices)))
        for row in launch.ranks
    )


def _memory(launch: LaunchPlan) -> str:
    return str(sum(part.size_bytes for part in launch.memory)) if launch.memory else ""


def _arguments(launch: LaunchPlan) -> str:
    return " ".join("..." if word is None else word for word in launch.arguments)


def _endpoints(launch: LaunchPlan) -> str:
    return ", ".join(f"{endpoint.address} ({endpoint.purpose})" for endpoint in launch.endpoints)


#: Width of the picture of a GPU's memory, in its own units.
_WIDTH = 1000


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment of the bar: its start, its width and its label."""

    start: float
    width: float
    kind: int
    label: str


@dataclass(frozen=True, slots=True)
class LaunchView:
    """One launch with its drawings."""

    launch: LaunchPlan
    size: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    facts: tuple[Fact, ...]
    bars: tuple[Bar, ...]
    total: str


@dataclass(frozen=True, slots=True)
class JobView:
    """One job."""

    job: JobPlan
    summary: str
    request: str
    launches: tuple[LaunchView, ...]


def html(plan: Plan) -> bytes:
    """Return the plan as one self-contained file."""
    jobs = [
        JobView(job, summary_of(job), request_of(job.request), tuple(_view(launch) for launch in job.launches))
        for job in plan.jobs
    ]
    return render_template("plan.html", plan=plan, jobs=jobs)


def _view(launch: LaunchPlan) -> LaunchView:
    # The parts of memory are drawn.
    facts = tuple(fact for fact in facts_of(launch, everything=True) if fact.label not in ("GPU memory", ""))
    total = sum(part.size_bytes for part in launch.memory)
    columns, *rows = rank_table(launch) or ((),)
    bars = _bars(launch.memory, total)
    return LaunchView(
        launch, size_of(launch), columns, tuple(rows), facts, bars, format_gibibytes(total) if total else ""
    )


def _bars(parts: tuple[MemoryPart, ...], total: int) -> tuple[Bar, ...]:
    bars = []
    start = 0.0
    for number, part in enumerate(parts):
        width = _WIDTH * part.size_bytes / total if total else 0.0
        label = f"{format_gibibytes(part.size_bytes)} {part.name}: {part.formula}"
        bars.append(Bar(round(start, 1), round(width, 1), number % 4, label))
        start += width
    return tuple(bars)


def markdown(plan: Plan) -> str:
    """Return the plan as Markdown."""
    functions = (summary_of, request_of, size_of, rank_table, facts_of)
    return _render("plan.md.jinja", plan=plan, **{function.__name__: function for function in functions})


def changes_markdown(changes: tuple[Change, ...]) -> str:
    """Return what changes for the ranks, as Markdown."""
    return _render("plan_changes.md.jinja", changes=changes)


def _render(template: str, **values: Any) -> str:
    return text_templates("preflight.commands", template).render(**values, cell=_cell, code=_code)


def _cell(text: str) -> str:
    plain = clean(" ".join(text.split()))
    for sign in ("\\", "`", "*", "_", "<", ">", "|", "[", "]", "#", "@", "!"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _code(text: object) -> str:
    plain = clean(" ".join(str(text).split())).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


#: Width of the column of labels.
_LABEL = 17


def page(plan: Plan, style: Style) -> str:
    """Return the plan as text; verbosity above 0 lists every setting that was read."""
    sheet = Sheet(style)
    for job in plan.jobs:
        _job(sheet, job, style)
    if not plan.jobs:
        sheet.line("no launch script or configuration found in the given paths", style="bold yellow")
    if plan.assumed:
        names = ", ".join(map(clean, plan.assumed))
        sheet.wrapped(
            f"defaults that apply unless these variables are set in the environment (or with --set): {names}", indent=0
        )
    if plan.given:
        sheet.wrapped(f"with {', '.join(map(clean, plan.given))} from --set", indent=0)
    return sheet.text()


def _shortener(job: JobPlan) -> Callable[[Place], str]:
    """Return a function that shortens a location to its file name, unless another file of the job has the same name."""
    names = Counter(posixpath.basename(path) for path in job.files)

    def short(place: Place) -> str:
        name = posixpath.basename(place.path)
        return f"{name}:{place.line}" if names[name] == 1 else str(place)

    return short


def _job(sheet: Sheet, job: JobPlan, style: Style) -> None:
    short = _shortener(job)
    sheet.line(Text.assemble((clean(job.name), "bold underline"), f"  {summary_of(job)}"))
    request = request_of(job.request)
    if request:
        where = ", ".join(short(place) for place in job.request.places)
        sheet.wrapped(f"{'asks for':<{_LABEL}}{request}  [{clean(where)}]", indent=2, hanging=_LABEL)
    sheet.line()
    for launch in job.launches:
        _launch_text(sheet, launch, style, short)
    for reason in job.unread:
        sheet.wrapped(f"not read: {clean(reason)}", indent=2, hanging=4)
    if job.unread:
        sheet.line()


def _launch_text(sheet: Sheet, launch: LaunchPlan, style: Style, short: Callable[[Place], str]) -> None:
    line = Text("  ")
    line.append(f"{clean(launch.launcher)} {clean(launch.program) or '(unknown program)'}", style="bold")
    line.append(f"  {launch.place}", style="blue")
    line.append(f"  {size_of(launch)}")
    sheet.line(line)
    _table(sheet, launch)
    last = ""
    for fact in facts_of(launch, everything=style.verbosity > 0):
        label = fact.label if fact.label != last else ""
        last = fact.label or last
        where = f"  [{', '.join(short(place) for place in fact.places)}]" if fact.places else ""
        sheet.wrapped(f"{label:<{_LABEL}}{clean(fact.text)}{clean(where)}", indent=4, hanging=_LABEL)
    if launch.grid is not None and launch.grid.cells:
        rows = [["", *(f"replica {number}" for number in range(len(launch.grid.cells[0])))]]
        rows += [[f"stage {number}", *cells] for number, cells in enumerate(launch.grid.cells)]
        _columns(sheet, rows)
    sheet.line()


def _table(sheet: Sheet, launch: LaunchPlan) -> None:
    table = rank_table(launch)
    if table:
        _columns(sheet, [[clean(cell) for cell in row] for row in table])


def _columns(sheet: Sheet, rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        sheet.cut(Text(f"    {cells}".rstrip(), style="" if number else "dim"))


def changes_page(changes: Sequence[Change], style: Style) -> str:
    """Return what changes for the ranks, launch by launch."""
    sheet = Sheet(style)
    if not changes:
        sheet.line("nothing changes for the ranks")
    for launch, same in groupby(changes, key=lambda change: change.launch):
        sheet.line(Text(clean(launch) or "the job", style="bold"))
        for change in same:
            sheet.line(f"  {clean(change.what)}")
            if change.before:
                sheet.wrapped(f"- {clean(change.before)}", indent=4, hanging=2)
            if change.after:
                sheet.wrapped(f"+ {clean(change.after)}", indent=4, hanging=2)
    return sheet.text()
