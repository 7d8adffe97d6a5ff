"""The charts and measurements that packs of checks make from a recording, each function isolated from the others.

An error here loses the output of one function but never the report, which lists the function like any part of a pack
that cannot be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from preflight._util.validation import format_errors, type_adapter
from preflight.model.charts import Bars, Chart, Layout, Matrix, Table, Timeline
from preflight.model.job import Job
from preflight.model.measurements import Measurements, NodeProperties
from preflight.model.recording import Facts, Fleet, NodeRecord
from preflight.plugins.authoring import clear_memo
from preflight.plugins.registry import CHECKS, Broken, PackFunction, error_text

T = TypeVar("T")
_KINDS = (Table, Matrix, Timeline, Bars, Layout)


def build_charts(
    chart_makers: Iterable[PackFunction], jobs: Sequence[Job], fleet: Fleet, facts: Facts
) -> tuple[tuple[Chart, ...], tuple[Broken, ...]]:
    """Return the charts of these functions for every job, in the order of the packs, and the functions that failed.

    A chart that is identical for several jobs is included once. Ids are unique: if a further job has a different chart,
    a number is appended to its id and the job's name to its title. An id that another function has used is rejected.
    """

    def of_jobs(made: Iterable[tuple[Job, Any]]) -> dict[str, Chart]:
        return _number_charts([(job, _validate_chart(chart)) for job, chart in made])

    words = ("no chart could be built", "the id {!r} is already used by another function")
    found, broken = _collect_output(chart_makers, jobs, fleet, facts, of_jobs, words)
    return tuple(found.values()), broken


def _collect_output(
    functions: Iterable[PackFunction],
    jobs: Sequence[Job],
    fleet: Fleet,
    facts: Facts,
    of_jobs: Callable[[Iterable[tuple[Job, Any]]], dict[str, T]],
    words: tuple[str, str],
) -> tuple[dict[str, T], tuple[Broken, ...]]:
    """Return the output of these functions for every job, by id, and the functions that failed.

    Args:
        of_jobs: checks the output of one function for all jobs, and names it.
        words: messages for a function that failed, and for an id that is already used.
    """
    ordered = sorted(jobs, key=lambda job: job.name)
    found: dict[str, T] = {}
    broken: list[Broken] = []
    for function in functions:
        try:
            own = of_jobs((job, item) for job in ordered for item in function.make(job, fleet, facts))
            if taken := sorted(set(own) & set(found)):
                raise ValueError(words[1].format(taken[0]))
            found.update(own)
        except (Exception, SystemExit) as error:
            broken.append(Broken(CHECKS, function.plugin, function.where, f"{words[0]}: {error_text(error)}"))
    for job in ordered:
        clear_memo(job)
    return found, tuple(broken)


def _validate_chart(chart: Any) -> Chart:
    """Validate a chart as readers of the report do; a pack may return anything."""
    kind = next((kind for kind in _KINDS if isinstance(chart, kind)), None)
    if kind is None:
        raise TypeError(
            f"{type(chart).__name__} is not a chart; expected one of {', '.join(k.__name__ for k in _KINDS)}"
        )
    try:
        # Validate every cell, and convert lists to tuples.
        checked: Chart = type_adapter(kind).validate_python(chart)
    except ValueError as error:
        raise ValueError(f"the chart {chart.id!r} is invalid: {format_errors(error)}") from None
    return checked


def _number_charts(made: Iterable[tuple[Job, Chart]]) -> dict[str, Chart]:
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


def build_measurements(
    readers: Iterable[PackFunction], jobs: Sequence[Job], fleet: Fleet, facts: Facts
) -> tuple[tuple[Measurements, ...], tuple[Broken, ...]]:
    """Return what these functions read from the facts, in the order of the packs, and the functions that failed.

    If several jobs measured a quantity, the first one counts. Values that are not numbers are left out.
    """
    words = ("no measurement could be read", "the quantity {!r} is already measured by another function")
    found, broken = _collect_output(readers, jobs, fleet, facts, _first_measurements, words)
    return tuple(item for item in found.values() if item.values), broken


def _first_measurements(made: Iterable[tuple[Job, Any]]) -> dict[str, Measurements]:
    found: dict[str, Measurements] = {}
    for _, item in made:
        if not isinstance(item, Measurements):
            raise TypeError(f"expected Measurements, not {type(item).__name__}")
        found.setdefault(item.quantity.name, _finite_values(item))
    return found


def _finite_values(item: Measurements) -> Measurements:
    if all(map(math.isfinite, item.values)):
        return item
    kept = [row for row, value in enumerate(item.values) if math.isfinite(value)]
    nodes, values = tuple(item.nodes[row] for row in kept), tuple(item.values[row] for row in kept)
    return replace(item, nodes=nodes, values=values, peers=tuple(item.peers[row] for row in kept) if item.peers else ())


def properties_of(readers: Iterable[PropertyReader], fleet: Fleet, facts: Facts) -> tuple[NodeProperties, ...]:
    """Return the known properties of every node that answered. A reader that fails loses only its own properties."""
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
