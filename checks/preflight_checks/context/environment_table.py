"""Which variables must be the same on every node, as data/environment.toml has it."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.resources
import sys
from typing import Any

from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Severity


@dataclass(frozen=True, slots=True)
class Group:
    """Variables that are treated alike: `agree`, `distinct` or `own`; `of` says which jobs it matters to."""

    kind: str
    patterns: tuple[str, ...]
    why: str
    of: str = "any"
    severity: Severity = Severity.WARNING


@functools.cache
def group_of(name: str) -> Group | None:
    """The first group with a pattern for `name`; None for a variable that is nobody's."""
    for group in groups():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group.patterns):
            return group
    return None


def default_of(name: str) -> str | None:
    """What the reader takes when `name` is not set, where that is known."""
    found = _table()["defaults"].get(name)
    return None if found is None else str(found)


@functools.cache
def groups() -> tuple[Group, ...]:
    """All groups in the order in which they count."""
    return tuple(
        Group(
            row["kind"],
            tuple(row["names"]),
            row["why"],
            row.get("of", "any"),
            Severity(row["severity"]) if "severity" in row else Severity.WARNING,
        )
        for row in _table()["group"]
    )


@functools.cache
def _table() -> dict[str, Any]:
    # The standard library has it from 3.11 on; before, tomli is the same code under another name.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = importlib.resources.files("preflight_checks").joinpath("data/environment.toml").read_text("utf-8")
    found: dict[str, Any] = toml.loads(text)
    return found
