"""What a job uses of each node, the comparison of values and versions across nodes, and tables of known versions."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from packaging.version import InvalidVersion, Version

from preflight._util import toml
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Fleet
from preflight_checks.requirements import fold, largest


def table(name: str) -> dict[str, Any]:
    """The parsed contents of `data/NAME.toml`."""
    return toml.beside(__file__, f"data/{name}.toml")


@dataclass(frozen=True, slots=True)
class Group:
    """Variables with one policy (`agree`, `distinct` or `own`).

    Args:
        job_kinds: the kinds of jobs that they affect.
        values: if there are any, only variables with one of these values, in capitals, belong to it.
        breaks_protocol: ranks with different values cannot communicate.
    """

    kind: str
    patterns: tuple[str, ...]
    reason: str
    job_kinds: str = "any"
    severity: Severity = Severity.WARNING
    values: frozenset[str] = frozenset()
    breaks_protocol: bool = False


@functools.cache
def group_of(name: str, values: frozenset[str] = frozenset()) -> Group | None:
    """The first group with a pattern that matches `name`, and that holds one of its values; None if there is none."""
    for group in groups():
        if group.values and group.values.isdisjoint(value.upper() for value in values):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group.patterns):
            return group
    return None


def default_of(name: str) -> str | None:
    """The value that the reader of `name` uses if it is not set, or None if unknown."""
    found = table("environment")["defaults"].get(name)
    return None if found is None else str(found)


@functools.cache
def groups() -> tuple[Group, ...]:
    """All groups, in order of precedence."""
    return tuple(
        Group(
            row["kind"],
            tuple(row["names"]),
            row["why"],
            row.get("of", "any"),
            Severity(row["severity"]) if "severity" in row else Severity.WARNING,
            frozenset(row.get("values", ())),
            row.get("breaks_protocol", False),
        )
        for row in table("environment")["group"]
    )


MIB, GIB, TIB = 2**20, 2**30, 2**40


def ranks_of_node(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """The number of ranks on each node, with the claims that state it; 1 if none does."""
    return largest(job, "processes_per_node") or largest(job, "tasks_per_node") or (1, ())


def workers_of_rank(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """The number of data loader workers of each rank, with the claims that state it."""
    return largest(job, "dataloader_workers") or (0, ())


def processes_of_node(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """The number of ranks of a node plus their loader workers, with the claims that state it."""
    ranks, claims = ranks_of_node(job)
    workers, more = workers_of_rank(job)
    return ranks * (1 + workers), (*claims, *more)


def world_of(job: Job, fleet: Fleet) -> tuple[int, tuple[Claim, ...]]:
    """The number of ranks of the job: as stated, else ranks per node times nodes."""
    stated = largest(job, "world_size")
    if stated is not None:
        return stated
    ranks, claims = ranks_of_node(job)
    return ranks * max(1, len(fleet.nodes)), claims


def known(value: int | None) -> float:
    """A limit as a number that compares; None means unlimited."""
    return float("inf") if value is None else value


def size(value: float | None) -> str:
    """`64 MiB`, `1.5 GiB`, `unlimited`."""
    if value is None or value == float("inf"):
        return "unlimited"
    if value >= GIB:
        return f"{value / TIB:.1f} TiB" if value >= TIB else f"{value / GIB:.1f} GiB"
    return f"{value / MIB:.0f} MiB" if value >= MIB or not value else f"{value / 1024:.0f} KiB"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Split(Generic[T]):
    """The most common value, the nodes with another, and whether more than half of the nodes have the common one."""

    common: T
    agreeing: tuple[str, ...]
    odd: dict[str, T]
    has_majority: bool

    @property
    def first_odd(self) -> tuple[str, T]:
        """The first node with another value, and that value, as an example. Needs at least one such node."""
        return next(iter(self.odd.items()))

    @property
    def description(self) -> str:
        """A text that lists the odd nodes with their values and counts the others."""
        odd = fold(f"{node}: {value}" for node, value in self.odd.items())
        return f"{odd}; {len(self.agreeing)} {'node has' if len(self.agreeing) == 1 else 'nodes have'} {self.common}"


def split(values: Mapping[str, T]) -> Split[T] | None:
    """The values divided into common and odd ones; None without values. In a tie, the first node's value is common."""
    if not values:
        return None
    counts = Counter(values.values())
    common, most = counts.most_common(1)[0]
    agreeing = tuple(node for node, value in values.items() if value == common)
    odd = {node: value for node, value in values.items() if value != common}
    return Split(common, agreeing, odd, 2 * most > len(values))


#: The numbers at the start of the version of a kernel (`6.1.0-18-amd64`) or of a vendor's build.
_LEADING = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,9}")


@functools.lru_cache(maxsize=1024)
def version_of(text: str) -> Version:
    """The version; for a text that is not a version the numbers at its start, or 0 if it has none."""
    try:
        return Version(text)
    except InvalidVersion:
        found = _LEADING.match(text.strip().lstrip("v"))
        return Version(found[0] if found else "0")


def minor_of(text: str) -> tuple[int, int]:
    """The major and minor number."""
    version = version_of(text)
    return version.major, version.minor


def short_version(text: str) -> str:
    """`2.4` of `2.4.1+cu124`."""
    return ".".join(map(str, minor_of(text)))
