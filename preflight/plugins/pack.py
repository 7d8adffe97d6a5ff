"""What a distribution adds to preflight: one typed value that its entry point names.

Finds the rules or checks of a package by reading its source instead of importing it.

A pack lists its items as `module:attribute`, so that a run imports only what it needs. This module builds that list, so
a new rule or check is just a module, without registration.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Pack:
    """The rules, checks, sources, executors or reporters of a distribution, and what belongs to them.

    Items are named as `module:attribute`, so that only what a run needs is imported. An entry point that provides
    only items may name a tuple of these strings instead of a pack.

    Args:
        items: `module:attribute` for one item, or `module` for every rule or check that it defines.
        areas: the subject of each area of rules or checks, by its three letters.
        stages: packages and modules that serve one stage only, so that a run without this stage does not load them.
        symptoms: tables of symptoms for `preflight diagnose`, in order of precedence; paths below the package's folder.
        charts: functions that make charts of the measurements, in the order in which the report shows them.
        doctor: functions that examine the machine that preflight runs on.
        properties: functions that read properties of a node from its facts, for comparison with another node.
        measurements: functions that read from facts what was measured, for comparison with other runs.
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
    """Return the pack that an entry point names; a tuple of names is a pack of these items.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(value, Pack):
        return value
    if isinstance(value, str):
        raise TypeError("a pack is a Pack, or a tuple of 'module:attribute' strings, not one string")
    return Pack(items=tuple(value))


@functools.cache
def decorated(package: str, folder: Path, decorator: str) -> tuple[str, ...]:
    """Every top-level function in a module below `folder` that has this decorator, as `module:function`.

    A decorator that is made of it with `functools.partial` is found by its name: `gpu_check`.

    `package` is the importable name of the folder. The order is that of module paths, then of the source. Modules are
    read as text and not imported, which takes a few milliseconds for a hundred modules instead of a second.
    """
    mark = f"{decorator}(".encode()
    # Other decorators may come between this one and the function.
    pattern = re.compile(rb"\n@(?:\w+_)?" + decorator.encode() + rb"\(.*?\n(?:async )?def (\w+)", re.DOTALL)
    found: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        if mark in source:
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))
            found.extend(f"{module}:{name.decode()}" for name in pattern.findall(source.replace(b"\r\n", b"\n")))
    return tuple(found)
