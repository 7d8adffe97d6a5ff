"""Versioned knowledge as data: the tables of `data/*.toml`, read once."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from preflight.lazy.dataclasses import dataclass

_FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the reader of a variable understands. `choices` is empty for a number."""

    choices: tuple[str, ...]
    effect: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """A setting meant for debugging: the values that mark it, how bad it is, and why."""

    name: str
    values: tuple[str, ...]
    severity: str
    why: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A value of one variable that makes values of others void, or speaks of a different network than they do."""

    name: str
    values: str
    names: tuple[str, ...]
    others: str
    why: str
    remedy: str
    severity: str


@dataclass(frozen=True, slots=True)
class SchedulerVariables:
    """The variables of one scheduler; `mistaken` are names that people write for another one."""

    of: str
    prefix: str
    names: frozenset[str]
    mistaken: dict[str, str]


@functools.cache
def instance_gpus(name: str) -> int | None:
    """How many accelerators a cloud's machine type holds; None for one that is not in the table."""
    plain = name.strip().lower().removeprefix("ml.")
    for row in _table("instances")["instance"]:
        if re.fullmatch(row["pattern"], plain):
            return int(row["gpus"])
    return None


@functools.cache
def known_variables() -> frozenset[str]:
    """Every variable name that some reader looks up."""
    return frozenset(name for group in _table("variables")["group"] for name in group["names"])


@functools.cache
def accepted_values() -> dict[str, Accepted]:
    """What is understood of well-known variables, by name."""
    return {
        name: Accepted(tuple(row.get("choices", ())), row["effect"], row["remedy"])
        for row in _table("values")["rule"]
        for name in row["names"]
    }


@functools.cache
def leftovers() -> tuple[Leftover, ...]:
    """Settings that belong to debugging."""
    rows = _table("values")["leftover"]
    return tuple(Leftover(row["name"], tuple(row["values"]), row["severity"], row["why"]) for row in rows)


@functools.cache
def contradictions(kind: str) -> tuple[Contradiction, ...]:
    """Pairs of settings that do not go together: `void` or `provider`."""
    keys = ("name", "values", "others", "why", "remedy", "severity")
    return tuple(
        Contradiction(**{key: row[key] for key in keys}, names=tuple(row["names"]))
        for row in _table("contradictions")["row"]
        if row["kind"] == kind
    )


@functools.cache
def scheduler_variables() -> tuple[SchedulerVariables, ...]:
    """What schedulers and MPI launchers set for a job, a step or a rank."""
    return tuple(
        SchedulerVariables(
            row["of"], row["prefix"], frozenset((*row["names"], *row.get("sites", ()))), dict(row.get("mistaken", {}))
        )
        for row in _table("schedulers")["family"]
    )


@functools.cache
def built_for(name: str) -> dict[str, str]:
    """For each release of torch (major.minor), the release of the companion `name` that is built for it."""
    return dict(_table("companions")[name]["pairs"])


def models() -> tuple[tuple[str, str], ...]:
    """Patterns of published names with the family of models they mean, in the order in which they count."""
    return tuple((row["pattern"], row["family"]) for row in _table("models")["model"])


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One kind of GPU and the names it goes by."""

    name: str
    pattern: str
    memory_gib: float
    capability: float


@functools.cache
def gpu_rows() -> tuple[GpuRow, ...]:
    """Every kind of GPU that can be told by name."""
    return tuple(GpuRow(**row) for row in _table("gpus")["gpu"])


def _table(name: str) -> dict[str, Any]:
    # The standard library has it from 3.11 on; before, tomli is the same code under another name.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found: dict[str, Any] = toml.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return found
