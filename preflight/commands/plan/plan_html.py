"""A plan as one HTML file, in the style of the reports."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.analysis.model_size import format_gibibytes
from preflight.commands.plan.job_plan import JobPlan, LaunchPlan, MemoryPart, Plan
from preflight.commands.plan.plan_sections import Fact, facts_of, rank_table, request_of, size_of, summary_of
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
