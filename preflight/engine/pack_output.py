"""The charts and measurements that packs of checks make of a recording, each function isolated from the others.

An error here loses what one function makes but never the report, which lists it like any part of a pack that cannot be
used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from preflight._util.validation import format_errors, type_adapter
from preflight.model.charts import Bars, Chart, Layout, Matrix, Table, Timeline
from preflight.model.job import Job
from preflight.model.measurements import Measurements, NodeProperties
from preflight.model.recording import Facts, Fleet, NodeRecord
from preflight.plugins.authoring import clear_memo
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


PropertyReader = Callable[[NodeRecord, Facts], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class BuiltMeasurements:
    """The measurements by quantity in the order of the packs, and the functions that failed."""

    measurements: tuple[Measurements, ...] = ()
    broken: tuple[Broken, ...] = ()


def build_measurements(
    readers: Iterable[ChartMaker], jobs: Iterable[Job], fleet: Fleet, facts: Facts
) -> BuiltMeasurements:
    """What these functions read from the facts. Of several jobs the first that measured a quantity counts.

    Values that are not numbers are left out.
    """
    ordered = sorted(jobs, key=lambda job: job.name)
    found: dict[str, Measurements] = {}
    broken: list[Broken] = []
    for reader in readers:
        try:
            own: dict[str, Measurements] = {}
            for job in ordered:
                for item in reader.make(job, fleet, facts):
                    if not isinstance(item, Measurements):
                        raise TypeError(f"expected Measurements, not {type(item).__name__}")
                    own.setdefault(item.quantity.name, _finite(item))
            taken = sorted(set(own) & set(found))
            if taken:
                raise ValueError(f"the quantity {taken[0]!r} is already measured by another function")
            found.update(own)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            broken.append(Broken(CHECKS, reader.plugin, reader.where, f"no measurement could be read: {why}"))
    for job in ordered:
        clear_memo(job)
    return BuiltMeasurements(tuple(item for item in found.values() if item.values), tuple(broken))


def _finite(item: Measurements) -> Measurements:
    if all(map(math.isfinite, item.values)):
        return item
    kept = [row for row, value in enumerate(item.values) if math.isfinite(value)]
    nodes, values = tuple(item.nodes[row] for row in kept), tuple(item.values[row] for row in kept)
    return replace(item, nodes=nodes, values=values, peers=tuple(item.peers[row] for row in kept) if item.peers else ())


def properties_of(readers: Iterable[PropertyReader], fleet: Fleet, facts: Facts) -> tuple[NodeProperties, ...]:
    """The known properties of every node that answered. A reader that fails loses only its own properties."""
    found = []
    several = tuple(readers)
    for record in fleet.records:
        if record.problem:
            continue
        values: dict[str, str] = {}
        for read in several:
            try:
                values.update(read(record, facts))
            # The check that judges the same properties reports the error.
            except Exception:
                continue
        if values:
            names = tuple(sorted(values))
            found.append(NodeProperties(record.node.name, names, tuple(values[name] for name in names)))
    return tuple(found)
