"""A claim: what one place in one file says about the job."""

from __future__ import annotations

import enum
from dataclasses import field

from preflight.job.span import Span
from preflight.job.value import Plain, Value, alternatives
from preflight.lazy.dataclasses import dataclass


class Strength(enum.IntEnum):
    """Who wins when two places set the same quantity in the same scope.

    Every launcher's source maps its own precedence on these steps; a later assignment of equal strength in the
    same file is resolved by the source itself (it states only the one in force).
    """

    DEFAULT = 10
    CONFIG = 20
    ENVIRONMENT = 30
    FLAG = 40
    SCHEDULER = 50


class Relation(enum.Enum):
    """What a claim does to its quantity."""

    #: Makes the quantity have this value (the scheduler starts four tasks).
    SETS = "sets"
    #: Requires that somebody else makes it so, and fails, hangs or trains wrong when it is not (`--nnodes=4`).
    REQUIRES = "requires-equal"
    #: The quantity can at most be this (slots of a hostfile).
    AT_MOST = "at-most"
    #: The quantity must at least be this.
    AT_LEAST = "at-least"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which part of the job a claim speaks of; empty fields mean all of it.

    Args:
        launch: the id of a launch.
        role: `server`, `worker` and the like.
        node: a node's name.
        rank: a global rank; null: all of them.
    """

    launch: str = ""
    role: str = ""
    node: str = ""
    rank: int | None = None

    def covers(self, other: Scope) -> bool:
        """Whether a claim in this scope also holds in `other`."""
        return (
            self.launch in ("", other.launch)
            and self.role in ("", other.role)
            and self.node in ("", other.node)
            and self.rank in (None, other.rank)
        )

    @property
    def specificity(self) -> int:
        """How many fields narrow it; the narrower of two equally strong claims wins."""
        return sum((bool(self.launch), bool(self.role), bool(self.node), self.rank is not None))


WHOLE_JOB = Scope()


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about one quantity.

    Args:
        quantity: a name from `preflight.job.quantities`, or `env.NAME` for a variable the ranks will see.
        value: what it is said to be. Units are those of the quantity.
        span: where it is said.
        spelling: the text as the user wrote it (`--nnodes=4`), redacted.
        source: who says so: `slurm`, `torchrun`, `deepspeed`, `environment`, `python` ...
        condition: under which branch it holds, in the file's own words; empty = always.
        because: for a derived claim (`world_size = nodes x processes`), the claims it came from.
        origin: where its value was assigned, when the spelling names a variable set in the files; else None.
        scope: which part of the job it speaks of.
        strength: 10 default, 20 configuration, 30 environment, 40 flag, 50 scheduler: the higher one wins.
        relation: `sets`, `requires-equal`, `at-most` or `at-least`: what it does to the quantity.
    """

    quantity: str
    value: Value
    span: Span
    spelling: str
    source: str
    scope: Scope = WHOLE_JOB
    strength: Strength = Strength.FLAG
    relation: Relation = Relation.SETS
    condition: str = ""
    because: tuple[Claim, ...] = field(default=())
    origin: Span | None = None

    @property
    def alternatives(self) -> tuple[Plain, ...]:
        """Every value this claim allows; empty when it is unresolved."""
        return alternatives(self.value)
