"""Versions of the software of the ranks, node by node: always the frameworks, and other packages if they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from preflight.model.charts import Cell, Column, Table
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight_checks.charts.cells import CellValue, cells_of, plural, table, values_by_node
from preflight_checks.context.entry import computed_in_step
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.installed import Installed, installed
from preflight_checks.probes.packages import DISTRIBUTIONS, Packages, packages
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.software.frameworks import build_of

#: A node with its own environment differs in hundreds of packages: at most this many cells are shown, but some columns
#: of any fleet, and no more columns than for a small one.
_MAX_CELLS, _MIN_COLUMNS, _MAX_COLUMNS = 8_000, 6, 24
_ABSENT = "not installed"
_NOT_REPORTED = "not reported"


def versions(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """One row per node: Python, frameworks, CUDA, cuDNN, NCCL, driver, and packages that differ between nodes."""
    columns: list[tuple[Column, Sequence[Cell]]] = []
    for name, values in _components(job, facts):
        cells = cells_of(fleet, values)
        if cells is not None:
            columns.append((Column(name), cells))
    observed = facts.observed(installed)
    unlike, equal_count = _differing_packages(observed)
    most = min(_MAX_COLUMNS, max(_MIN_COLUMNS, _MAX_CELLS // max(1, len(fleet.nodes))))
    for name in unlike[:most]:
        cells = cells_of(fleet, values_by_node(facts, installed, partial(_version, name)))
        if cells is not None:
            columns.append((Column(name), cells))
    if columns:
        note = _note(len(fleet.nodes), observed, equal_count, len(unlike) - most)
        yield table("versions", "Versions", note, fleet, columns)


def _note(nodes: int, observed: Mapping[str, Installed], equal_count: int, more: int) -> str:
    if not observed:
        return f"Versions on {plural(nodes, 'node')}; versions that differ from most nodes are marked."
    of_nodes = f"{len(observed)} of {plural(nodes, 'node')}"
    summary = f"{plural(equal_count, 'further package')} of {of_nodes} are the same everywhere"
    if more > 0:
        summary += f", {more} more differ and are not listed"
    elif len({value.digest for value in observed.values()}) > 1 and not _lists_all(observed):
        summary += ", and some that nodes report only as a digest differ"
    return f"{summary}; versions that differ from most nodes are marked."


def _lists_all(observed: Mapping[str, Installed]) -> bool:
    """Whether the listed packages explain why the digests of all packages differ."""
    lists = {tuple(sorted(value.distributions.items())) for value in observed.values()}
    return len(lists) == len({value.digest for value in observed.values()})


def _components(job: Job, facts: Facts) -> Iterator[tuple[str, Mapping[str, CellValue]]]:
    """The components that are listed even if they are the same everywhere."""
    own = values_by_node(facts, installed, lambda value: CellValue(value.python))
    yield "python", {**own, **values_by_node(facts, packages, lambda value: CellValue(value.python))}
    listed = facts.observed(packages)
    for name in DISTRIBUTIONS:
        if name != "nccl" and any(name in value.versions for value in listed.values()):
            yield name, values_by_node(facts, packages, partial(_framework, name))
    yield (
        "CUDA runtime",
        _with_or_without({**values_by_node(facts, packages, _cuda), **_build_versions(job, facts, "cuda")}),
    )
    yield "cuDNN", _known(_build_versions(job, facts, "cudnn"))
    nccl = values_by_node(facts, packages, lambda value: CellValue(value.versions.get("nccl") or None, _NOT_REPORTED))
    built = _known(_build_versions(job, facts, "nccl"))
    yield "NCCL", {**nccl, **{node: values for node, values in built.items() if values.value or node not in nccl}}
    yield (
        "driver",
        values_by_node(facts, gpus, lambda value: CellValue(value.driver or None, value.detail or _NOT_REPORTED)),
    )


def _build_versions(job: Job, facts: Facts, part: str) -> dict[str, CellValue]:
    """A version from the build of the framework that the job trains with; empty if the build lacks the component."""

    def read(value: Stack) -> CellValue:
        build: Build | None = build_of(job, value)
        return CellValue(None, "no framework is installed") if build is None else CellValue(str(getattr(build, part)))

    return values_by_node(facts, stack, read)


def _cuda(value: Packages) -> CellValue:
    framework = value.torch or value.paddle
    return CellValue(None, "no framework is installed") if framework is None else CellValue(framework.cuda)


def _with_or_without(values: Mapping[str, CellValue]) -> dict[str, CellValue]:
    """`none` for builds without the component where others have it; no column if no build has it."""
    if not any(summary.value for summary in values.values()):
        return {}
    return {node: CellValue("none") if summary.value == "" else summary for node, summary in values.items()}


def _known(values: Mapping[str, CellValue]) -> dict[str, CellValue]:
    """The values, with empty ones as unknown."""
    return {
        node: CellValue(None, _NOT_REPORTED) if summary.value == "" else summary for node, summary in values.items()
    }


def _version(name: str, value: Installed) -> CellValue:
    return CellValue(value.distributions.get(name, _ABSENT))


def _framework(name: str, value: Packages) -> CellValue:
    return CellValue(value.versions.get(name, _ABSENT))


def _differing_packages(observed: Mapping[str, Installed]) -> tuple[list[str], int]:
    """The packages that differ between nodes, those used in lockstep computation first, and the number of equal ones.

    Frameworks have separate columns.
    """
    sets = {value.digest: value.distributions for value in observed.values()}.values()
    named = {name for names in DISTRIBUTIONS.values() for name in names}
    names = {name for held in sets for name in held} - named
    unlike = [name for name in names if len({held.get(name) for held in sets}) > 1]
    return sorted(unlike, key=lambda name: (not computed_in_step(name), name)), len(names) - len(unlike)
