"""Load the versioned tables in `data/`, each once."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from preflight._util import toml

_FOLDER = Path(__file__).parent / "data"


class Accepted(NamedTuple):
    """The values that the reader of a variable accepts. `choices` is empty for a number."""

    choices: tuple[str, ...]
    effect: str
    remedy: str


class Leftover(NamedTuple):
    """A debugging setting: its values, the severity of leaving it enabled, and the reason."""

    name: str
    values: tuple[str, ...]
    severity: str
    why: str


class Contradiction(NamedTuple):
    """A value of one variable that overrides other variables, or that belongs to a different network."""

    name: str
    values: str
    names: Sequence[str]
    others: str
    why: str
    remedy: str
    severity: str


class SchedulerVariables(NamedTuple):
    """The variables of one scheduler; `mistaken` maps common wrong names to the correct ones."""

    of: str
    prefix: str
    names: frozenset[str]
    mistaken: dict[str, str]


@functools.cache
def instance_gpus(name: str) -> int | None:
    """Return the number of accelerators of a cloud machine type; None for an unknown type."""
    machine_type = name.strip().lower().removeprefix("ml.")
    for row in table("instances")["instance"]:
        if re.fullmatch(row["pattern"], machine_type):
            return int(row["gpus"])
    return None


@functools.cache
def known_variables() -> frozenset[str]:
    """Return the names of all variables that a known library reads."""
    return frozenset(name for group in table("variables")["group"] for name in group["names"])


@functools.cache
def accepted_values() -> dict[str, Accepted]:
    """Return the accepted values of well-known variables, by name."""
    return {
        name: Accepted(tuple(row.get("choices", ())), row["effect"], row["remedy"])
        for row in table("values")["rule"]
        for name in row["names"]
    }


@functools.cache
def leftovers() -> tuple[Leftover, ...]:
    """Return the debugging settings in the table `values`."""
    rows = table("values")["leftover"]
    return tuple(Leftover(row["name"], tuple(row["values"]), row["severity"], row["why"]) for row in rows)


@functools.cache
def contradictions(kind: str) -> tuple[Contradiction, ...]:
    """Return pairs of settings that are mutually exclusive, of the kind `void` or `provider`."""
    return tuple(
        Contradiction(**{key: row[key] for key in Contradiction._fields})
        for row in table("contradictions")["row"]
        if row["kind"] == kind
    )


@functools.cache
def scheduler_variables() -> tuple[SchedulerVariables, ...]:
    """Return the variables that schedulers and MPI launchers set for a job, a step or a rank."""
    return tuple(
        SchedulerVariables(
            row["of"], row["prefix"], frozenset((*row["names"], *row.get("sites", ()))), dict(row.get("mistaken", {}))
        )
        for row in table("schedulers")["family"]
    )


@functools.cache
def companions() -> frozenset[str]:
    """Return the packages whose releases are each built for one release of torch."""
    return frozenset(name for name, row in table("companions").items() if isinstance(row, dict))


def built_for(name: str) -> dict[str, str]:
    """Return the release of the companion `name` for each release of torch (major.minor)."""
    return dict(table("companions")[name]["pairs"])


def models() -> tuple[tuple[str, str], ...]:
    """Return patterns of published model names and the model family of each; the first match wins."""
    return tuple((row["pattern"], row["family"]) for row in table("models")["model"])


class GpuRow(NamedTuple):
    """One GPU model and the names that identify it."""

    name: str
    pattern: str
    memory_gib: float
    capability: float


@functools.cache
def gpu_rows() -> tuple[GpuRow, ...]:
    """Return all GPU models that can be identified by name."""
    return tuple(GpuRow(**row) for row in table("gpus")["gpu"])


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the table `data/NAME.toml`. It is read once; callers must not change it."""
    generated = _FOLDER / f"{name}.json"
    if not generated.exists():
        return toml.load(_FOLDER / f"{name}.toml")
    rows: dict[str, Any] = json.loads(generated.read_text(encoding="utf-8"))
    return rows
