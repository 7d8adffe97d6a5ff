"""The contribution of a distribution to preflight: one typed value that its entry point names.

A pack may list the modules of a package by reading its folders, so that a new rule or check needs no registration.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Pack:
    """The rules, checks, sources, executors or reporters of a distribution, and their data.

    Items are named as `module:attribute`, so that only the items that a run needs are imported. An entry point that
    provides only items may name a tuple of these strings instead of a pack.

    Args:
        items: `module:attribute` for one item, or `module` for every rule or check that it defines.
        areas: the subject of each area of rules or checks, by its three letters.
        stages: packages and modules that serve one stage only, so that a run without this stage does not load them.
        symptoms: tables of symptoms for `preflight diagnose`, in order of precedence; paths below the package's folder.
        charts: functions that make charts of the measurements, in the order of the report.
        doctor: functions that examine the machine that preflight runs on.
        properties: functions that read properties of a node from its facts, for comparison with another node.
        measurements: functions that read measurements from facts, for comparison with other runs.
    """

    items: tuple[Any, ...] = ()
    areas: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    symptoms: tuple[str, ...] = ()
    charts: tuple[Any, ...] = ()
    doctor: tuple[Any, ...] = ()
    properties: tuple[Any, ...] = ()
    measurements: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for name in ("items", "symptoms", "charts", "doctor", "properties", "measurements"):
            if not isinstance(getattr(self, name), tuple):
                kind = type(getattr(self, name)).__name__
                raise TypeError(f"`{name}` of a pack is a {kind}; expected a tuple of 'module:attribute' strings")
        for name in ("areas", "stages"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"`{name}` of a pack is a {type(getattr(self, name)).__name__}; expected a dictionary")


def as_pack(value: Any) -> Pack:
    """Return the pack that an entry point names; a tuple of names becomes one. Raises TypeError."""
    if isinstance(value, Pack):
        return value
    if isinstance(value, str):
        raise TypeError("a pack is a Pack, or a tuple of 'module:attribute' strings, not one string")
    return Pack(items=tuple(value))


@functools.cache
def modules(package: str, folder: str, *, without: str = "") -> tuple[str, ...]:
    """Return the modules of a package by name, without subpackage `without`, by reading folders only."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.isidentifier() and os.path.exists(os.path.join(entry.path, "__init__.py")):  # noqa: PTH110, PTH118
                if entry.name != without:
                    found.extend(modules(f"{package}.{entry.name}", entry.path))
            elif entry.name.endswith(".py") and not entry.name.startswith("_"):
                found.append(f"{package}.{entry.name.removesuffix('.py')}")
    return tuple(found)
