"""The result of comparing two reports, in a versioned form that is printed and that programs read."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from preflight._util.json_output import schema_of
from preflight._util.validation import type_adapter
from preflight.model.findings import Finding

SCHEMA_VERSION = 2


class Answer(enum.Enum):
    """The result of the comparison.

    `WORSE`: the newer report has a new fault or a worse measurement. `UNKNOWN`: it has neither, but a required check
    that the older report decided is now undecided.
    """

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """One of the two reports: `name` as given by the user, the rest from the report."""

    name: str
    verb: str
    created: str
    tool_version: str
    verdict: str
    nodes: int
    findings: int


@dataclass(frozen=True, slots=True)
class NewFinding:
    """A finding of the newer report only.

    `counts`: whether it is severe enough to count. `unseen_before` is why the older report could not have had it; empty
    if it could.
    """

    finding: Finding
    counts: bool
    unseen_before: str = ""


@dataclass(frozen=True, slots=True)
class GoneFinding:
    """A finding of the older report only. `unknown_because` is why it may not be fixed; empty if it is fixed."""

    finding: Finding
    unknown_because: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFinding:
    """A finding in both reports that differs in severity, message, location, nodes or suppression.

    `worse`: whether it is more severe, on further nodes, or no longer suppressed; `counts`: whether it is also severe
    enough to count. `unseen` are nodes that had it and that the newer report could not check.
    """

    before: Finding
    after: Finding
    what: tuple[str, ...]
    worse: bool = False
    counts: bool = False
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutcomeChange:
    """A rule or check that only one report could decide, its subjects, and why the other report could not."""

    id: str
    name: str
    subjects: tuple[str, ...]
    reason: str
    required: bool


class NodeMove(enum.Enum):
    """The kind of change of a node."""

    CAME = "came"
    WENT = "went"
    SILENT = "silent"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that only one report names, or that responded in only one; `reason` is why it does not respond."""

    node: str
    move: NodeMove
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """A property of nodes that differs between the reports.

    `table` and `what` name it as the report does (`versions`, `NCCL`); without `subjects` it is a property of the
    run. An empty `before` or `after` means unknown.
    """

    table: str
    what: str
    before: str
    after: str
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Noise:
    """The expected difference between two measurements of the same quantity without a fault.

    Args:
        spread: the variation of the fleet's ratios, as a factor: 1.06 for 6 %; None if there are too few.
        allowed: factor above which a difference is reported.
        because: a description of the reason.
    """

    ratios: int
    spread: float | None
    allowed: float
    because: str


@dataclass(frozen=True, slots=True)
class Regression:
    """A measurement that got worse by more than the noise: the pairs or ranks, and their median on both sides.

    `factor` is how many times worse it got, and is always above 1. `nodes` are those that explain it.
    """

    where: str
    nodes: tuple[str, ...]
    subjects: tuple[str, ...]
    before: float
    after: float
    factor: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A quantity that both reports measured: the comparison, and the regressions.

    `compared` counts the measurements in both reports, `missing` those only in the older one, `added` those only in the
    newer one. `change` is the factor of the median: above 1 is worse.
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
    """The comparison. `exit_code`: 0 nothing is worse, 1 something is, 3 a required check is undecided."""

    old: ReportSummary
    new: ReportSummary
    answer: Answer
    exit_code: int
    fail_on: str
    appeared: tuple[NewFinding, ...]
    gone: tuple[GoneFinding, ...]
    changed: tuple[ChangedFinding, ...]
    unchanged: int
    became_unknown: tuple[OutcomeChange, ...]
    became_known: tuple[OutcomeChange, ...]
    nodes: tuple[NodeChange, ...]
    drift: tuple[Drift, ...]
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def fixed(self) -> tuple[Finding, ...]:
        """Return the findings of the older report that are known to be fixed."""
        return tuple(item.finding for item in self.gone if not item.unknown_because)


def schema() -> dict[str, Any]:
    return schema_of(type_adapter(Difference), "preflight difference")
