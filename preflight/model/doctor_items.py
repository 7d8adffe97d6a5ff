"""The items that `preflight doctor` and packs of checks examine, and the abilities of this machine.

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
        id: a stable identifier with dots: `way.ssh`, `python.torch`.
        about: a description of the item for people.
        capability: whether this machine has the ability.
        observed: a description of the observation.
        lost: a description of the features of preflight that do not work without the item; empty if all work.
        remedy: the command that installs the item, or the action that makes it work.
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
        environment: the environment variables.
        interpreters: the paths of the Python interpreters that ranks might use here, the most likely first.
        deadline_s: the time limit of one function in seconds.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    interpreters: tuple[str, ...] = ()
    deadline_s: float = 20.0


#: A function that a pack lists in `doctor`.
Examine: TypeAlias = Callable[[Surroundings], Awaitable[Iterable[DoctorItem]]]
