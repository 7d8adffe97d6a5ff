"""The results of judging: an outcome per rule or check and subject, and a finding for each fault."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field

from preflight.model.job import Span


class Status(enum.Enum):
    """The four outcomes. `UNKNOWN` never counts as a pass."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not-applicable"


class Severity(enum.Enum):
    """`ERROR`: the job fails, hangs or trains wrong. `WARNING`: likely waste or fragility."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Return the order of severities: higher is worse."""
        return {"info": 0, "warning": 1, "error": 2}[self.value]


class Confidence(enum.Enum):
    """How certain a finding is; only `HIGH` may be an error."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


#: How strict a run is, from the least to the strictest; each includes all rules and checks of the previous ones.
PROFILES = ("gate", "default", "pedantic")


class VerdictKind(enum.Enum):
    """The one-word verdict of a run."""

    GO = "go"
    NO_GO = "no-go"
    INCOMPLETE = "incomplete"
    NOT_JUDGED = "not-judged"


@dataclass(frozen=True, slots=True)
class Location:
    """A location of a finding: path relative to the root, 1-based line and column, the line itself and a note.

    Args:
        path: relative to the root, with forward slashes.
        line, column: its start, counted from 1.
        end_line, end_column: its exclusive end.
        snippet: the first line as written, redacted.
        note: how this location is involved.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    snippet: str = ""
    note: str = ""

    @classmethod
    def at(cls, span: Span, note: str = "") -> Location:
        """Return the location of `span`."""
        return cls(span.path, span.line, span.column, span.end_line, span.end_column, span.snippet, note)


@dataclass(frozen=True, slots=True)
class Evidence:
    """An observation on a node (or without a node), and the expected value.

    `fact` is the probe; `command` lets a person reproduce the observation; `at_s` counts from the run's start.

    Args:
        observed: the observed value.
        expected: the expected value.
        node: where it was observed; empty for no particular node.
    """

    fact: str
    observed: str
    expected: str = ""
    command: str = ""
    node: str = ""
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of one line of a file, and its replacement.

    Lines and columns count from 1, in characters; the end is exclusive. `expected` is the current text: if the file
    holds something else, nothing is edited.

    Args:
        path: relative to the root.
        line, column: where the piece begins.
        replacement: the new text; empty removes the piece.
    """

    path: str
    line: int
    column: int
    expected: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that fix a finding, all or none.

    `safe`: the job keeps doing what it did, or does what it was certainly meant to do if it would have failed. Any
    other fix is applied only when the user asks for unsafe fixes.

    Args:
        description: what it does.
        edits: in the order of the file.
    """

    description: str
    edits: tuple[Edit, ...]
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A shell line that a person can paste unchanged: on each of these nodes, or in the current shell if there are
    none.

    It contains no placeholders: if only the reader knows a part, the remedy is described without a command.

    Args:
        line: one line, quoted.
        nodes: where to run it; without any in the job script, or in the reader's shell.
    """

    line: str
    nodes: tuple[str, ...] = ()

    @property
    def can_be_pasted(self) -> bool:
        """Return whether the command can be pasted into a terminal: one line, without characters that a terminal
        interprets or hides.
        """
        return bool(self.line.strip()) and self.line.isprintable()


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. The same fault on 512 nodes is one finding that lists the nodes.

    Args:
        id, name: the rule or check.
        severity: `error`: the job fails, hangs or trains wrong; `warning`: likely waste or fragility; `info`.
        confidence: `high`, `medium` or `low`; an error is always of high confidence.
        message: observed and expected.
        subject: the judged item.
        locations: places in files, the first is that of the fault; none for a fault that only nodes show.
        evidence: what was observed on nodes.
        nodes: the nodes with this fault.
        remedy: what to do.
        suppression: why it does not count; empty if it does.
        suppressed_by: `comment`, `waiver`, `baseline`, `since` or `per-file-ignores`.
        fix: edits that fix it, if that can be done mechanically.
        commands: shell lines that carry out the remedy, as far as possible.
        waits_at: where all ranks would wait for a timeout, `rendezvous` or `collective`; empty if the job would fail at
        once or continue.
        fingerprint: stable when lines move; unique in a report.
    """

    id: str
    name: str
    severity: Severity
    confidence: Confidence
    message: str
    subject: str
    locations: tuple[Location, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    nodes: tuple[str, ...] = ()
    remedy: str = ""
    #: Why the finding does not count, and the kind of suppression.
    suppression: str = ""
    suppressed_by: str = ""
    fix: Fix | None = None
    commands: tuple[Command, ...] = ()
    waits_at: str = ""
    fingerprint: str = field(default="")

    def __post_init__(self) -> None:
        if not self.locations and not self.evidence:
            raise ValueError(f"finding {self.id} has neither a location nor evidence")
        if self.severity is Severity.ERROR and self.confidence is not Confidence.HIGH:
            raise ValueError(f"finding {self.id}: only a finding of high confidence may be an error")
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", self._fingerprint())

    def _fingerprint(self) -> str:
        """Return a hash that does not change when lines move: the rule and the text (not the number) of the first line.

        The launch or job from which a line was reached is not included, because adding a job to the folder may change
        it. A fault without a location is identified by its nodes and its subject.
        """
        first = self.locations[0] if self.locations else None
        if first is not None:
            parts = (self.id, first.path, " ".join(first.snippet.split()))
        else:
            parts = (self.id, ",".join(self.nodes), without_lines(self.subject))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def without_lines(subject: str) -> str:
    """Return a launch id (`train.sbatch:12`) without its line number."""
    head, _, tail = subject.rpartition(":")
    return head if head and tail.split("#")[0].isdecimal() else subject


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one rule or check for one subject.

    Args:
        id, name: the rule or check.
        status: `pass`, `fail`, `unknown` or `not-applicable`.
        subject: what was judged: a launch, a node, a pair of nodes, a file.
        reason: why the result is unknown or not applicable.
        required: whether an unknown result makes the verdict incomplete, because a selected input or a claim of the
            job depends on it.
        finding: the fault, if there is one.
        locations: the location of an unknown input; the locations of a fault are in its finding.
        stage: `lint` for a rule; for a check, the stage it belongs to.
        nodes: the nodes that an unknown result leaves undecided, or that have the fault; empty if the result is not
            about particular nodes.
    """

    id: str
    name: str
    status: Status
    subject: str
    reason: str = ""
    required: bool = False
    finding: Finding | None = None
    locations: tuple[Location, ...] = ()
    stage: str = "lint"
    nodes: tuple[str, ...] = ()
