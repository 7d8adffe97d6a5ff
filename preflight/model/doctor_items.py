"""The items that `preflight doctor` and packs of checks examine, and what this machine can and cannot do with them.

A pack of checks names functions in `doctor`. Each is `async`, takes the `Surroundings` and returns items; it is
isolated and ended at a deadline, so it may wait and may fail.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


class Capability(enum.Enum):
    """Whether this machine can do something; `UNKNOWN` if that could not be determined."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DoctorItem:
    """One examined item.

    Args:
        id: dotted and stable: `way.ssh`, `python.torch`.
        about: its description for people.
        observed: a description of the observation.
        lost: what preflight cannot do without it; empty if nothing.
        remedy: the command that installs it, or what to do.
    """

    id: str
    about: str
    capability: Capability
    observed: str
    lost: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment that is examined.

    Args:
        interpreters: Python interpreters that ranks might use here, by path, the most likely first.
        deadline_s: time limit of one item.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    interpreters: tuple[str, ...] = ()
    deadline_s: float = 20.0


#: A function that a pack lists in `doctor`.

Examine: TypeAlias = Callable[[Surroundings], Awaitable[Iterable[DoctorItem]]]
