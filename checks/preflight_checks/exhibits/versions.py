"""Versions of what the ranks run with, node by node: the frameworks always, other packages where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from preflight.exhibit import Cell, Column, Table
from preflight.job import Job
from preflight.recording import Facts, Fleet
from preflight_checks.context.context import computed_in_step
from preflight_checks.exhibits.telling import Told, cells_of, many, table, told_by
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.installed import Installed, installed
from preflight_checks.probes.packages import DISTRIBUTIONS, Packages, packages
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.software.software import build_of

#: A node with an environment of its own differs in hundreds of packages: so many cells are shown, but some columns
#: of any fleet, and no more than that of a small one.
_MOST_CELLS, _FEWEST_COLUMNS, _MOST_COLUMNS = 8_000, 6, 24
_ABSENT = "not installed"
_UNSAID = "it does not say"


def versions(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """A row a node: Python, frameworks, CUDA, cuDNN, NCCL, driver; and packages that are not the same everywhere."""
    columns: list[tuple[Column, Sequence[Cell]]] = []
    for name, told in _components(job, facts):
        cells = cells_of(fleet, told)
        if cells is not None:
            columns.append((Column(name), cells))
    have = facts.observed(installed)
    unlike, alike = _compared(have)
    most = min(_MOST_COLUMNS, max(_FEWEST_COLUMNS, _MOST_CELLS // max(1, len(fleet.nodes))))
    for name in unlike[:most]:
        cells = cells_of(fleet, told_by(facts, installed, partial(_version, name)))
        if cells is not None:
            columns.append((Column(name), cells))
    if columns:
        note = _note(len(fleet.nodes), have, alike, len(unlike) - most)
        yield table("versions", "Versions", note, fleet, columns)


def _note(nodes: int, have: Mapping[str, Installed], alike: int, more: int) -> str:
    if not have:
        return (
            f"Versions of what the ranks of {many(nodes, 'node')} run with; what differs from most of them is marked."
        )
    said = f"{many(alike, 'further package')} of {len(have)} of {many(nodes, 'node')} are the same everywhere"
    if more > 0:
        said += f", {more} more differ and are not listed"
    elif len({value.digest for value in have.values()}) > 1 and not _lists_all(have):
        said += ", and some that nodes only summed up differ"
    return f"{said}; what differs from most of them is marked."


def _lists_all(have: Mapping[str, Installed]) -> bool:
    """Whether the packages that are listed explain that the digests of all differ."""
    lists = {tuple(sorted(value.distributions.items())) for value in have.values()}
    return len(lists) == len({value.digest for value in have.values()})


def _components(job: Job, facts: Facts) -> Iterator[tuple[str, Mapping[str, Told]]]:
    """What is listed also where it is the same everywhere, each as far as a node has any."""
    own = told_by(facts, installed, lambda value: Told(value.python))
    yield "python", {**own, **told_by(facts, packages, lambda value: Told(value.python))}
    listed = facts.observed(packages)
    for name in DISTRIBUTIONS:
        if name != "nccl" and any(name in value.versions for value in listed.values()):
            yield name, told_by(facts, packages, partial(_framework, name))
    yield "CUDA runtime", _with_or_without({**told_by(facts, packages, _cuda), **_of_build(job, facts, "cuda")})
    yield "cuDNN", _known(_of_build(job, facts, "cudnn"))
    nccl = told_by(facts, packages, lambda value: Told(value.versions.get("nccl") or None, _UNSAID))
    built = _known(_of_build(job, facts, "nccl"))
    yield "NCCL", {**nccl, **{node: told for node, told in built.items() if told.value or node not in nccl}}
    yield "driver", told_by(facts, gpus, lambda value: Told(value.driver or None, value.detail or _UNSAID))


def _of_build(job: Job, facts: Facts, part: str) -> dict[str, Told]:
    """What the framework that the job trains with says of its own build; empty where it says that it has none."""

    def read(value: Stack) -> Told:
        build: Build | None = build_of(job, value)
        return Told(None, "no framework is installed") if build is None else Told(str(getattr(build, part)))

    return told_by(facts, stack, read)


def _cuda(value: Packages) -> Told:
    framework = value.torch or value.paddle
    return Told(None, "no framework is installed") if framework is None else Told(framework.cuda)


def _with_or_without(told: Mapping[str, Told]) -> dict[str, Told]:
    """`none` for builds without, where others are with; nothing to show where all are without."""
    if not any(said.value for said in told.values()):
        return {}
    return {node: Told("none") if said.value == "" else said for node, said in told.items()}


def _known(told: Mapping[str, Told]) -> dict[str, Told]:
    """Empty values as not known."""
    return {node: Told(None, _UNSAID) if said.value == "" else said for node, said in told.items()}


def _version(name: str, value: Installed) -> Told:
    return Told(value.distributions.get(name, _ABSENT))


def _framework(name: str, value: Packages) -> Told:
    return Told(value.versions.get(name, _ABSENT))


def _compared(have: Mapping[str, Installed]) -> tuple[list[str], int]:
    """The packages that are not the same on all nodes, those first that ranks compute with in step; and how many are.

    Frameworks have columns of their own.
    """
    sets = {value.digest: value.distributions for value in have.values()}.values()
    named = {name for names in DISTRIBUTIONS.values() for name in names}
    names = {name for held in sets for name in held} - named
    unlike = [name for name in names if len({held.get(name) for held in sets}) > 1]
    return sorted(unlike, key=lambda name: (not computed_in_step(name), name)), len(names) - len(unlike)
