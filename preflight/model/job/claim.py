"""A claim: a statement of one location in one file about the job."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from preflight._util.spans import Span
from preflight.model.job.value import Plain, Value, alternatives, join


class Strength(enum.IntEnum):
    """The precedence of claims that set the same quantity in the same scope: the stronger claim wins.

    The source of every launcher maps the launcher's own precedence to these steps. If a file assigns a quantity several
    times with equal strength, the source states only the effective assignment.
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
    #: Requires that another claim sets the quantity to this value; otherwise the job fails, hangs or trains wrong
    #: (`--nnodes=4`).
    REQUIRES = "requires-equal"
    #: States that the quantity is at most this value (slots of a hostfile).
    AT_MOST = "at-most"
    #: States that the quantity must be at least this value.
    AT_LEAST = "at-least"


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the job to which a claim applies; empty fields mean the whole job.

    Args:
        launch: the id of a launch.
        role: a role of processes, as `server` or `worker`.
        node: the name of a node.
        rank: a global rank; null means all ranks.
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
        """Return the number of fields that are set; of two equally strong claims, the more specific claim wins."""
        return sum((bool(self.launch), bool(self.role), bool(self.node), self.rank is not None))


WHOLE_JOB = Scope()


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about one quantity.

    Args:
        quantity: a name from `preflight.model.job.value`, or `env.NAME` for an environment variable of the ranks.
        value: the claimed value, in the unit of the quantity.
        span: the location of the claim.
        spelling: the text as the user wrote it (`--nnodes=4`), redacted.
        source: the reader that states the claim: `slurm`, `torchrun`, `deepspeed`, `environment`, `python` ...
        condition: the condition of the branch that contains the claim, as written in the file; empty if it always
            applies.
        because: the claims that a derived claim (`world_size = nodes x processes`) was computed from.
        origin: the location where the value was assigned, if the spelling names a variable that the files set;
            otherwise null.
        scope: the part of the job to which the claim applies.
        strength: 10 default, 20 configuration, 30 environment, 40 flag, 50 scheduler: the highest strength wins.
        relation: the effect on the quantity: `sets`, `requires-equal`, `at-most` or `at-least`.
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
        """Return every value that this claim allows; empty if the value is unresolved."""
        return alternatives(self.value)


class Branch(NamedTuple):
    """A branch of a program: the location of its condition, and whether the branch runs if the condition is true."""

    path: str
    line: int
    column: int
    if_true: bool


@dataclass(frozen=True, slots=True)
class BranchClaim(Claim):
    """A claim of a program, before it is known whether its launch takes the branches that contain the claim.

    Args:
        when: the branches that contain the claim.
    """

    when: tuple[Branch, ...] = ()

    def decided(self, *, is_taken: bool | None) -> Claim:
        """Return the claim without its branches.

        Args:
            is_taken: whether the launch takes the branches, so that the claim is unconditional; None if unknown.
        """
        field_values = {item.name: getattr(self, item.name) for item in fields(Claim)}
        return Claim(**{**field_values, "condition": ""} if is_taken else field_values)


def in_branches(claim: Claim, when: tuple[Branch, ...]) -> Claim:
    """Return the claim with the branches that contain it; the claim itself if there are none."""
    field_values = {item.name: getattr(claim, item.name) for item in fields(Claim)}
    return BranchClaim(**field_values, when=when) if when else claim


def job_value(claims: Iterable[Claim]) -> Value:
    """Return the combined value of several effective claims."""
    return join(claim.value for claim in claims)


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims; of several claims about one quantity at one location, only the first."""
    known_keys: set[tuple[str, int, int, str]] = set()
    distinct_claims: list[Claim] = []
    for claim in claims:
        key = (claim.span.path, claim.span.line, claim.span.column, claim.quantity)
        if key not in known_keys:
            known_keys.add(key)
            distinct_claims.append(claim)
    return tuple(distinct_claims)
