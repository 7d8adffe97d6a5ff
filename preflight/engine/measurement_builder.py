"""Collects what packs of checks measured in a run, with each function isolated from the others.

An error here loses the values of one function but never the report, which lists it like any part of a pack that cannot
be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from preflight.model.job import Job
from preflight.model.measurements import Measurements, NodeProperties
from preflight.model.recording import Facts, Fleet, NodeRecord
from preflight.plugins.memo import clear_memo
from preflight.plugins.registry import CHECKS, Broken, ChartMaker

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
