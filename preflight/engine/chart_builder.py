"""Builds the charts that packs of checks make of a recording, with each function isolated from the others.

An error here loses a chart but never the report, which lists it like any part of a pack that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from preflight._util.validation import format_errors, type_adapter
from preflight.model.charts import Bars, Chart, Layout, Matrix, Table, Timeline
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.memo import clear_memo
from preflight.plugins.registry import CHECKS, Broken, ChartMaker

_KINDS = (Table, Matrix, Timeline, Bars, Layout)


@dataclass(frozen=True, slots=True)
class BuiltCharts:
    """The charts in the order of the packs, and those that could not be built."""

    charts: tuple[Chart, ...] = ()
    broken: tuple[Broken, ...] = ()


def build_charts(chart_makers: Iterable[ChartMaker], jobs: Iterable[Job], fleet: Fleet, facts: Facts) -> BuiltCharts:
    """The charts of these functions for every job. A chart that is the same for several jobs is included once.

    Ids are unique: if a further job has a different chart, a number is appended to its id and the job's name to its
    title. An id that another function has used is rejected.
    """
    ordered = sorted(jobs, key=lambda job: job.name)
    found: dict[str, Chart] = {}
    broken: list[Broken] = []
    for chart_maker in chart_makers:
        try:
            made = [(job, chart) for job in ordered for chart in _checked(chart_maker.make(job, fleet, facts))]
            taken = sorted({chart.id for _, chart in made} & set(found))
            if taken:
                raise ValueError(f"the id {taken[0]!r} is already used by another function")
            found.update(_of_several_jobs(made))
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            broken.append(Broken(CHECKS, chart_maker.plugin, chart_maker.where, f"no chart could be built: {why}"))
    for job in ordered:
        clear_memo(job)
    return BuiltCharts(tuple(found.values()), tuple(broken))


def _checked(made: Iterable[Chart]) -> list[Chart]:
    """Validate the charts as the report's readers will receive them; a pack may return anything, and a report must be
    valid.
    """
    whole: list[Chart] = []
    for chart in made:
        kind = next((kind for kind in _KINDS if isinstance(chart, kind)), None)
        if kind is None:
            raise TypeError(
                f"{type(chart).__name__} is not a chart; expected one of {', '.join(k.__name__ for k in _KINDS)}"
            )
        try:
            # Validate every cell, and convert lists to tuples.
            whole.append(type_adapter(kind).validate_python(chart))
        except ValueError as error:
            raise ValueError(f"the chart {chart.id!r} is invalid: {format_errors(error)}") from None
    return whole


def _of_several_jobs(made: Iterable[tuple[Job, Chart]]) -> dict[str, Chart]:
    variants: dict[str, dict[Chart, Job]] = {}
    for job, chart in made:
        variants.setdefault(chart.id, {}).setdefault(chart, job)
    found: dict[str, Chart] = {}
    for id, several in variants.items():
        for number, (chart, job) in enumerate(several.items(), 1):
            title = chart.title if len(several) == 1 else f"{chart.title} ({job.name})"
            named = replace(chart, id=id if number == 1 else f"{id}.{number}", title=title)
            found[named.id] = named
    return found
