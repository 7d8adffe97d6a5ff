"""The launch as one rank sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.sources.python.simulation.libraries import pattern
from preflight.sources.python.simulation.values import AGREED, OF_RANK, SEVERAL, UNKNOWN

#: Names of variables that may differ between ranks.
OF_RANK_NAMES = pattern("of_rank")


@dataclass(frozen=True, slots=True)
class World:
    """The launch of one rank; None for unknown values.

    Args:
        variables: the variables that the launch sets.
        role: `worker` or `server` of a job of Paddle; empty for any other.
        has_servers: whether the workers exchange their gradients with servers.
        rank: of the job, and on its node; None represents any rank.
        read: the text of a file that the program opens, by its path.
        names: the entries of a folder by its path; None if it does not exist.
        is_closed: whether a variable that the launch does not set counts as unset.
        is_several: whether a launcher is taken to start more than one rank.
    """

    rank: int | None = 0
    local_rank: int | None = 0
    world_size: int | None = None
    local_world_size: int | None = None
    arguments: tuple[str | None, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str], str | None] = lambda path: None
    names: Callable[[str], Sequence[str] | None] = lambda path: None
    role: str = ""
    has_servers: bool = False
    is_closed: bool = False
    is_several: bool = False

    def symbol(self, name: str) -> Any:
        """Return the value of a name in `libraries.toml`."""
        if self.rank is None and name in ("rank", "local_rank", "is_first", "is_last_stage", "is_local_first"):
            return OF_RANK
        if name in ("is_first", "is_local_first"):
            return (self.rank if name == "is_first" else self.local_rank) == 0
        if name in ("is_server", "is_worker"):
            return self.role == name.removeprefix("is_") if self.role else UNKNOWN
        if name == "is_first_stage":
            return True if self.rank == 0 else UNKNOWN
        if name == "is_last_stage":
            # With one stage alone there is no pipeline.
            return False if not self.rank else self.rank + 1 == self.world_size or UNKNOWN
        value = True if name == "is_available" else getattr(self, name, None)
        if name == "world_size" and value is None and self.is_several:
            return SEVERAL
        # All ranks have the same numbers of ranks.
        unknown = AGREED if name in ("world_size", "is_initialized") else UNKNOWN
        return unknown if value is None else value
