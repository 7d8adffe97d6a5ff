"""What a mutant is, the list of all of them, and the tools to write one."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SYNC, ASYNC, SSP, GEO = "sync", "async", "ssp", "geo"
DDP, FSDP, PIPELINE = "ddp", "fsdp", "pipeline"
RECOVERY = ("recovery-async", "recovery-ssp", "recovery-geo")
SERVERS = (SYNC, ASYNC, SSP, GEO)
#: Modes in which a server applies each push by itself.
SINGLE = (ASYNC, SSP, GEO)
COLLECTIVE = (DDP, FSDP)
MODES = (*SERVERS, *RECOVERY, *COLLECTIVE, PIPELINE)
#: Which processes are altered: one server or all, one worker, the backup worker, one rank, or all ranks.
SERVER, ALL_SERVERS, WORKER, SPARE, RANK, RANKS = "server", "servers", "worker", "spare", "rank", "ranks"
#: Every third mutant, by a hash of its name, was written after the oracles were finished, and shows how well they do
#: on faults that they were not made for.
SEALED_SHARE = 3


@dataclass
class Patch:
    """One mutated process.

    Args:
        mode: the mode of the run.
        training: the ordinary training has begun, after the phase with known values.
        reached: how often the mutated code ran.
    """

    mode: str
    training: bool = False
    reached: int = 0
    kept: dict[Any, Any] = field(default_factory=dict)

    def hit(self) -> bool:
        """Count that the fault happened."""
        self.reached += 1
        return True

    def once(self, call: int, key: Any = "once") -> bool:
        """Whether this is the call of that number, counted from 1."""
        self.kept[key] = self.kept.get(key, 0) + 1
        return bool(self.kept[key] == call) and self.hit()


def wrap(owner: Any, name: str, build: Callable[[Any], Any]) -> None:
    """Replace a function by what `build` makes of it."""
    setattr(owner, name, build(getattr(owner, name)))


@dataclass(frozen=True)
class Mutant:
    """A fault of one function.

    Args:
        modes: the modes in which the fault can have an effect.
        process: the processes that have it.
        apply: replaces the function in this process.
    """

    name: str
    modes: tuple[str, ...]
    process: str
    apply: Callable[[Patch], None]
    what: str

    @property
    def sealed(self) -> bool:
        """Whether it was written after the oracles."""
        return zlib.crc32(self.name.encode("ascii")) % SEALED_SHARE == 0


#: All mutants by name; `tests.mutants.catalog` fills it.
MUTANTS: dict[str, Mutant] = {}


def mutant(process: str, *modes: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Add a mutant, named as the function."""

    def add(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__.replace("_", "-")
        MUTANTS[name] = Mutant(name, modes, process, apply, (apply.__doc__ or "").strip())
        return apply

    return add


def half(tensor: Any) -> Any:
    """The tensor rounded to bfloat16."""
    import torch

    return tensor.to(torch.bfloat16).to(torch.float32)
