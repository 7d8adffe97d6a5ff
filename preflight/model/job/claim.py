"""A claim: a statement of one location in one file about the job."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from preflight._util.spans import Span
from preflight.model.job.value import Plain, Value, alternatives, join


class Strength(enum.IntEnum):
    """Which of two claims wins when they set the same quantity in the same scope.

    Every launcher's source maps its own precedence to these steps; a later assignment of equal strength in the same
    file is resolved by the source itself (it states only the effective one).
    """

    DEFAULT = 10
    CONFIG = 20
    ENVIRONMENT = 30
    FLAG = 40
    SCHEDULER = 50


class Relation(enum.Enum):
    """The effect of a claim on its quantity."""

    #: Sets the quantity to this value (the scheduler starts four tasks).
    SETS = "sets"
    #: Requires that something else sets it, and fails, hangs or trains wrong when it is not (`--nnodes=4`).
    REQUIRES = "requires-equal"
    #: The quantity is at most this (slots of a hostfile).
    AT_MOST = "at-most"
    #: The quantity must be at least this.
    AT_LEAST = "at-least"


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the job to which a claim applies; empty fields mean the whole job.

    Args:
        launch: the id of a launch.
        role: `server`, `worker` and the like.
        node: a node's name.
        rank: a global rank; null = all of them.
    """

    launch: str = ""
    role: str = ""
    node: str = ""
    rank: int | None = None

    def covers(self, other: Scope) -> bool:
        """Return whether a claim in this scope also applies in `other`."""
        return (
            self.launch in ("", other.launch)
            and self.role in ("", other.role)
            and self.node in ("", other.node)
            and self.rank in (None, other.rank)
        )

    @property
    def specificity(self) -> int:
        """Return the number of fields that are set; the narrower of two equally strong claims wins."""
        return sum((bool(self.launch), bool(self.role), bool(self.node), self.rank is not None))


WHOLE_JOB = Scope()


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about one quantity.

    Args:
        quantity: a name from `preflight.model.job.value`, or `env.NAME` for a variable the ranks will see.
        value: the claimed value, in the unit of the quantity.
        span: its location.
        spelling: the text as the user wrote it (`--nnodes=4`), redacted.
        source: the reader that states it: `slurm`, `torchrun`, `deepspeed`, `environment`, `python` ...
        condition: the branch it depends on, as written in the file; empty = always.
        because: for a derived claim (`world_size = nodes x processes`), the claims it came from.
        origin: where its value was assigned, when the spelling names a variable set in the files; otherwise None.
        scope: the part of the job it applies to.
        strength: 10 default, 20 configuration, 30 environment, 40 flag, 50 scheduler: the higher one wins.
        relation: `sets`, `requires-equal`, `at-most` or `at-least`: its effect on the quantity.
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
        """Return every value this claim allows; empty when it is unresolved."""
        return alternatives(self.value)


class Branch(NamedTuple):
    """A branch of a program: the place of its condition, and whether the branch is taken when the condition is true."""

    path: str
    line: int
    column: int
    if_true: bool


@dataclass(frozen=True, slots=True)
class BranchClaim(Claim):
    """A claim of a program, before it is known whether its launch takes the branches around the claim.

    Args:
        when: the branches around it.
    """

    when: tuple[Branch, ...] = ()

    def decided(self, *, is_taken: bool | None) -> Claim:
        """Return the claim without its branches if they are taken; None if that is unknown."""
        values = {item.name: getattr(self, item.name) for item in fields(Claim)}
        return Claim(**{**values, "condition": ""} if is_taken else values)


def in_branches(claim: Claim, when: tuple[Branch, ...]) -> Claim:
    """Return the claim in these branches; unchanged if there are none."""
    values = {item.name: getattr(claim, item.name) for item in fields(Claim)}
    return BranchClaim(**values, when=when) if when else claim


def job_value(claims: Iterable[Claim]) -> Value:
    """Return the combined value of several effective claims."""
    return join(claim.value for claim in claims)


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims without repetitions of one quantity at one location."""
    seen: set[tuple[str, int, int, str]] = set()
    kept: list[Claim] = []
    for claim in claims:
        key = (claim.span.path, claim.span.line, claim.span.column, claim.quantity)
        if key not in seen:
            seen.add(key)
            kept.append(claim)
    return tuple(kept)
