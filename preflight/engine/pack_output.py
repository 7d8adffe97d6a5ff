"""The charts and measurements that packs of checks make from a recording, each function isolated from the others."""

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
_CHART_KINDS = (Table, Matrix, Timeline, Bars, Layout)


def build_charts(
    chart_makers: Iterable[PackFunction], jobs: Sequence[Job], fleet: Fleet, facts: Facts
) -> tuple[tuple[Chart, ...], tuple[Broken, ...]]:
    """Return the charts of these functions for every job, in the order of the packs, and the functions that failed.

    A chart that is identical for several jobs is included once. Ids are unique: if a further job has a different chart
    of the same id, a number is appended to the id of that chart, and the name of the job to its title. An id that
    another function has used is rejected.
    """

    def name_charts(results: Iterable[tuple[Job, Any]]) -> dict[str, Chart]:
        return _charts_by_id([(job, _validate_chart(chart)) for job, chart in results])

    messages = ("no chart could be built", "the id {!r} is already used by another function")
    charts, broken = _collect_output(chart_makers, jobs, fleet, facts, name_charts, messages)
    return tuple(charts.values()), broken


def _collect_output(
    functions: Iterable[PackFunction],
    jobs: Sequence[Job],
    fleet: Fleet,
    facts: Facts,
    name_outputs: Callable[[Iterable[tuple[Job, Any]]], dict[str, T]],
    messages: tuple[str, str],
) -> tuple[dict[str, T], tuple[Broken, ...]]:
    """Return the output of these functions by id, checked by `name_outputs`, and the functions that failed."""
    sorted_jobs = sorted(jobs, key=lambda job: job.name)
    outputs: dict[str, T] = {}
    broken: list[Broken] = []
    for function in functions:
        try:
            function_outputs = name_outputs(
                (job, item) for job in sorted_jobs for item in function.make(job, fleet, facts)
            )
            if used_ids := sorted(set(function_outputs) & set(outputs)):
                raise ValueError(messages[1].format(used_ids[0]))
            outputs.update(function_outputs)
        except (Exception, SystemExit) as error:
            broken.append(Broken(CHECKS, function.plugin, function.where, f"{messages[0]}: {error_text(error)}"))
    for job in sorted_jobs:
        clear_memo(job)
    return outputs, tuple(broken)


def _validate_chart(chart: Any) -> Chart:
    """Return the chart after the readers' validation. Raises TypeError for another object, ValueError if invalid."""
    kind = next((kind for kind in _CHART_KINDS if isinstance(chart, kind)), None)
    if kind is None:
        raise TypeError(
            f"{type(chart).__name__} is not a chart; expected one of {', '.join(k.__name__ for k in _CHART_KINDS)}"
        )
    try:
        # Validate every cell, and convert lists to tuples.
        valid_chart: Chart = type_adapter(kind).validate_python(chart)
    except ValueError as error:
        raise ValueError(f"the chart {chart.id!r} is invalid: {format_errors(error)}") from None
    return valid_chart


def _charts_by_id(charts: Iterable[tuple[Job, Chart]]) -> dict[str, Chart]:
    variants: dict[str, dict[Chart, Job]] = {}
    for job, chart in charts:
        variants.setdefault(chart.id, {}).setdefault(chart, job)
    chart_by_id: dict[str, Chart] = {}
    for id, job_by_chart in variants.items():
        for number, (chart, job) in enumerate(job_by_chart.items(), 1):
            title = chart.title if len(job_by_chart) == 1 else f"{chart.title} ({job.name})"
            renamed_chart = replace(chart, id=id if number == 1 else f"{id}.{number}", title=title)
            chart_by_id[renamed_chart.id] = renamed_chart
    return chart_by_id


PropertyReader = Callable[[NodeRecord, Facts], Mapping[str, str]]


def build_measurements(
    readers: Iterable[PackFunction], jobs: Sequence[Job], fleet: Fleet, facts: Facts
) -> tuple[tuple[Measurements, ...], tuple[Broken, ...]]:
    """Return the measurements of these functions (finite, of the first job), and the functions that failed."""
    messages = ("no measurement could be read", "the quantity {!r} is already measured by another function")
    measurements, broken = _collect_output(readers, jobs, fleet, facts, _first_measurements, messages)
    return tuple(item for item in measurements.values() if item.values), broken


def _first_measurements(results: Iterable[tuple[Job, Any]]) -> dict[str, Measurements]:
    measurements: dict[str, Measurements] = {}
    for _, item in results:
        if not isinstance(item, Measurements):
            raise TypeError(f"expected Measurements, not {type(item).__name__}")
        measurements.setdefault(item.quantity.name, _finite_values(item))
    return measurements


def _finite_values(item: Measurements) -> Measurements:
    if all(map(math.isfinite, item.values)):
        return item
    finite_rows = [row for row, value in enumerate(item.values) if math.isfinite(value)]
    nodes, values = tuple(item.nodes[row] for row in finite_rows), tuple(item.values[row] for row in finite_rows)
    return replace(
        item, nodes=nodes, values=values, peers=tuple(item.peers[row] for row in finite_rows) if item.peers else ()
    )


def properties_of(readers: Iterable[PropertyReader], fleet: Fleet, facts: Facts) -> tuple[NodeProperties, ...]:
    """Return the known properties of every node that answered. A reader that fails loses only its own properties."""
    node_properties = []
    reader_list = tuple(readers)
    for record in fleet.records:
        if record.problem:
            continue
        values: dict[str, str] = {}
        for read in reader_list:
            try:
                values.update(read(record, facts))
            # The check that judges these properties reports the error.
            except Exception:
                continue
        if values:
            names = tuple(sorted(values))
            node_properties.append(NodeProperties(record.node.name, names, tuple(values[name] for name in names)))
    return tuple(node_properties)
