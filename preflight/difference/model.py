"""What a comparison of two reports is made of, in one versioned shape that is printed and that programs read."""

from __future__ import annotations

import enum
from typing import Any

from preflight.document import schema_of, to_bytes
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Finding

SCHEMA_VERSION = 1


class Answer(enum.Enum):
    """What the comparison comes to.

    `WORSE`: something counts against the newer report. `UNTOLD`: nothing does, and something that had to be told, and
    was told before, is not any more.
    """

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    UNTOLD = "untold"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two reports: `name` as the user gave it, the rest as it says of itself."""

    name: str
    verb: str
    created: str
    tool_version: str
    verdict: str
    nodes: int
    findings: int


@dataclass(frozen=True, slots=True)
class New:
    """A finding that only the newer report has.

    `counts`: it is severe enough to count. `unseen_before` says why the older report could not have had it; empty where
    it could.
    """

    finding: Finding
    counts: bool
    unseen_before: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A finding that only the older report has. `untold` says why it is not known to be fixed; empty where it is."""

    finding: Finding
    untold: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """A finding that both have, and what of it differs: severity, message, place, nodes or suppression.

    `worse`: it is more severe, on further nodes, or no longer suppressed; `counts`: that, and severe enough to count.
    `unseen` are nodes that it was on, and of which the newer report does not know whether it still is.
    """

    before: Finding
    after: Finding
    what: tuple[str, ...]
    worse: bool = False
    counts: bool = False
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutcomeChange:
    """A rule or check that could tell on one side alone, of these subjects, and why it could not on the other."""

    id: str
    name: str
    subjects: tuple[str, ...]
    reason: str
    required: bool


class NodeMove(enum.Enum):
    """What became of a node."""

    CAME = "came"
    WENT = "went"
    SILENT = "silent"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that only one report names, or that answered in one of them alone; `reason` says why it does not."""

    node: str
    move: NodeMove
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """Something that is said of nodes in both reports and is another thing in the newer one.

    `table` and `what` name it as the report does (`versions`, `NCCL`); without `subjects` it is said of the run as a
    whole. An empty `before` or `after` was not known then.
    """

    table: str
    what: str
    before: str
    after: str
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Noise:
    """How much two measurements of the same differ without anything being wrong.

    Args:
        spread: the scatter of the fleet's own ratios, as a factor: 1.06 for 6 %; None where there are too few.
        allowed: the factor beyond which something is told.
        because: whence that is, in words.
    """

    ratios: int
    spread: float | None
    allowed: float
    because: str


@dataclass(frozen=True, slots=True)
class Regression:
    """What got worse by more than the noise: the pairs or ranks, and the median of their values on both sides.

    `factor` is how many times as bad it is, and always above 1. `nodes` are those that explain it.
    """

    where: str
    nodes: tuple[str, ...]
    subjects: tuple[str, ...]
    before: float
    after: float
    factor: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One quantity that both reports measured: how it is compared, and what got worse.

    `compared` counts what both sides have; `missing` what only the older one has, `added` only the newer one.
    `change` is the factor by which the median changed: above 1 is worse.
    """

    id: str
    title: str
    unit: str
    compared: int
    missing: int
    added: int
    change: float
    noise: Noise
    worse: tuple[Regression, ...]
    better: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The whole comparison. The same two reports give the same one, to the letter.

    `exit_code` is 0 where nothing is worse, 1 where something is that counts, 3 where something that had to be
    told, and was, is not any more.
    """

    old: Side
    new: Side
    answer: Answer
    exit_code: int
    fail_on: str
    appeared: tuple[New, ...]
    gone: tuple[Gone, ...]
    changed: tuple[Changed, ...]
    unchanged: int
    became_unknown: tuple[OutcomeChange, ...]
    became_told: tuple[OutcomeChange, ...]
    nodes: tuple[NodeChange, ...]
    drift: tuple[Drift, ...]
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def fixed(self) -> tuple[Finding, ...]:
        """The findings of the older report that are known to be gone."""
        return tuple(item.finding for item in self.gone if not item.untold)


def to_json(difference: Difference) -> bytes:
    """The comparison as a JSON document."""
    return to_bytes(difference, indent=2)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the JSON document."""
    from pydantic import TypeAdapter

    return schema_of(TypeAdapter(Difference), "preflight difference")
