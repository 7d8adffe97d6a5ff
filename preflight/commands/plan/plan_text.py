"""A plan as text: for each launch, the nodes of its ranks and what they run with."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.text import Text

from preflight._util.sanitize import clean
from preflight.commands.plan.job_plan import JobPlan, LaunchPlan, Place, Plan
from preflight.commands.plan.plan_pages import Change, facts_of, rank_table, request_of, size_of, summary_of
from preflight.reporters.base import Style
from preflight.reporters.text.full_report import Sheet

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
        sheet.wrapped(f"with {', '.join(map(clean, plan.given))} as given by --set", indent=0)
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
        _launch(sheet, launch, style, short)
    for reason in job.unread:
        sheet.wrapped(f"not read: {clean(reason)}", indent=2, hanging=4)
    if job.unread:
        sheet.line()


def _launch(sheet: Sheet, launch: LaunchPlan, style: Style, short: Callable[[Place], str]) -> None:
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
