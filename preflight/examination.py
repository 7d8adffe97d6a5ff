"""What this machine can and cannot do for preflight, piece by piece: the words that house and packs of checks share.

A pack of checks names functions in `EXAMINES` beside `PACK`. Each is `async`, takes the `Surroundings` and returns
looks; it is isolated and ended at a deadline, so it may wait and may fail.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from typing import TypeAlias

from preflight.lazy.dataclasses import dataclass


class Can(enum.Enum):
    """Whether something can be done here. What could not be found out is unknown, and never a yes."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Look:
    """One thing that was looked at.

    Args:
        id: dotted and stable: `way.ssh`, `python.torch`.
        about: what it is, for people.
        said: what was seen.
        lost: what preflight cannot do without it; empty where nothing is lost.
        remedy: the command that gets it, or what to do.
    """

    id: str
    about: str
    can: Can
    said: str
    lost: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the examination takes place.

    Args:
        interpreters: the Pythons that ranks might run with here, by path, the likeliest first.
        deadline_s: how long one look may take.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    interpreters: tuple[str, ...] = ()
    deadline_s: float = 20.0


#: What a pack names in `EXAMINES`.
Examine: TypeAlias = Callable[[Surroundings], Awaitable[Iterable[Look]]]
