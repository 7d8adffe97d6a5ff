"""The data tables of the checks: versioned TOML files in data/."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.resources
from dataclasses import dataclass
from typing import Any

from preflight._util import toml
from preflight.model.findings import Severity


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The parsed contents of `data/NAME.toml`."""
    text = importlib.resources.files("preflight_checks").joinpath(f"data/{name}.toml").read_text("utf-8")
    return dict(toml.loads(text))


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
