"""A plan as one HTML file, and as Markdown for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight._util.sanitize import clean
from preflight.analysis.model_size import format_gibibytes
from preflight.commands.plan.job_plan import JobPlan, LaunchPlan, MemoryPart, Plan
from preflight.commands.plan.plan_sections import Change, Fact, facts_of, rank_table, request_of, size_of, summary_of
from preflight.reporters.html.write import rendered

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
    return rendered("plan.html", plan=plan, jobs=jobs)


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
    return "\n".join(_lines(plan)) + "\n"


def changes_markdown(changes: tuple[Change, ...]) -> str:
    """Return what changes for the ranks, as Markdown."""
    if not changes:
        return "## preflight plan\n\nNothing changes for the ranks.\n"
    lines = [
        "## preflight plan: what changes for the ranks",
        "",
        "| launch | what | before | after |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_code(change.launch)} | {_cell(change.what)} | {_code(change.before)} | {_code(change.after)} |"
        for change in changes
    ]
    return "\n".join(lines) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield "## preflight plan"
    if plan.assumed:
        yield ""
        yield f"Defaults unless these variables are set in the environment: {', '.join(map(_code, plan.assumed))}"
    for job in plan.jobs:
        yield ""
        yield f"### {_cell(job.name)}"
        yield ""
        yield f"{summary_of(job)}. {request_of(job.request)}".strip()
        for launch in job.launches:
            yield from _launch(launch)
        for reason in job.unread:
            yield f"- not read: {_cell(reason)}"


def _launch(launch: LaunchPlan) -> Iterator[str]:
    yield ""
    command = _code(f"{launch.launcher} {launch.program}".strip())
    yield f"#### {command} at {_code(str(launch.place))}: {size_of(launch)}"
    yield ""
    for number, row in enumerate(rank_table(launch)):
        yield f"| {' | '.join(map(_cell, row))} |"
        if not number:
            yield f"|{'---|' * len(row)}"
    yield ""
    yield "| | | where |"
    yield "|---|---|---|"
    for fact in facts_of(launch, everything=False):
        where = ", ".join(_code(str(place)) for place in fact.places)
        yield f"| {_cell(fact.label)} | {_cell(fact.text)} | {where} |"


def _cell(text: str) -> str:
    """Escape text for one cell of a Markdown table."""
    plain = clean(" ".join(text.split()))
    for sign in ("\\", "`", "*", "_", "<", ">", "|", "[", "]", "#", "@", "!"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _code(text: str) -> str:
    plain = clean(" ".join(text.split())).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
