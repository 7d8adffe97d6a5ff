"""What came out of judging: an outcome per rule or check and subject, and a finding for each fault."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import field

from preflight.job import Span
from preflight.lazy.dataclasses import dataclass


class Status(enum.Enum):
    """The four outcomes. `UNKNOWN` is never read as passed."""

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
        """Higher is worse."""
        return {"info": 0, "warning": 1, "error": 2}[self.value]


class Confidence(enum.Enum):
    """How sure a finding is; only `HIGH` may be an error."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


#: How strict a run is, from the least to the strictest; each holds all rules and checks of those before it.
PROFILES = ("gate", "default", "pedantic")


class VerdictKind(enum.Enum):
    """The one-word answer of a run."""

    GO = "go"
    NO_GO = "no-go"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Location:
    """A place of a finding: path relative to the root, 1-based line and column, the line itself and a note.

    Args:
        path: relative to the root, with forward slashes.
        line, column: where it begins, from 1.
        end_line, end_column: where it ends; the end is exclusive.
        snippet: the first line as written, redacted.
        note: what this place has to do with it.
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
        """The location of `span`."""
        return cls(span.path, span.line, span.column, span.end_line, span.end_column, span.snippet, note)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen on a node (or nowhere in particular) and what should have been.

    `fact` names the probe; `command` is what a person can run to see it too; `at_s` counts from the run's start.

    Args:
        observed: what was seen.
        expected: what should have been.
        node: where; empty for no node in particular.
    """

    fact: str
    observed: str
    expected: str = ""
    command: str = ""
    node: str = ""
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of one line of a file, and what is to stand there instead.

    Lines and columns count from 1, in characters; the end is exclusive. `expected` is what stands there now: where
    something else does, nothing is edited.

    Args:
        path: relative to the root.
        line, column: where the piece begins.
        replacement: what is to stand there; empty takes the piece out.
    """

    path: str
    line: int
    column: int
    expected: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that mend a finding, all of them or none.

    `safe`: the job does what it did, or what it certainly was meant to do where it would have failed. Anything else is
    applied only when the user asks for unsafe fixes.

    Args:
        description: what it does, in words.
        edits: in the order of the file.
    """

    description: str
    edits: tuple[Edit, ...]
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A line for a shell that a person can paste: as it is, on each of these nodes, or without any where they sit.

    Nothing in it stands for something else: what only the reader knows makes a remedy in words, and no command.

    Args:
        line: one line, quoted.
        nodes: where to run it; without any in the job script, or in the shell that the reader sits in.
    """

    line: str
    nodes: tuple[str, ...] = ()

    @property
    def can_be_pasted(self) -> bool:
        """Whether a terminal takes it as it is: one line, without a character that it would obey or not show."""
        return bool(self.line.strip()) and self.line.isprintable()


#: Where everybody waits when a fault is there: for each other before there is a group, or in the group.
WAITS = ("", "rendezvous", "collective")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. One fault on 512 nodes is one finding with the nodes listed.

    Args:
        id, name: the rule or check.
        severity: `error`: the job fails, hangs or trains wrong; `warning`: likely waste or fragility; `info`.
        confidence: `high`, `medium` or `low`; an error is always of high confidence.
        message: what was seen and what was expected.
        subject: what was asked about.
        locations: places in files, the first is the fault's own; none for a fault that only nodes show.
        evidence: what was observed on nodes.
        nodes: those that have this fault.
        remedy: what to do.
        suppression: why it does not count; empty where it does.
        suppressed_by: `comment`, `waiver`, `baseline` or `per-file-ignores`.
        fix: edits that mend it, where that is mechanical.
        commands: lines for a shell that do what the remedy says, as far as such lines can.
        waits_at: where all ranks would wait for a time-out: `rendezvous`, `collective`; empty where the job would fail
            at once, or go on.
        fingerprint: the same for the same fault when lines move; no two findings of a report share one.
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
    #: Why it does not count, and what says so: `comment`, `waiver`, `baseline` or `per-file-ignores`.
    suppression: str = ""
    suppressed_by: str = ""
    fix: Fix | None = None
    commands: tuple[Command, ...] = ()
    waits_at: str = ""
    fingerprint: str = field(default="")

    def __post_init__(self) -> None:
        if not self.locations and not self.evidence:
            raise ValueError(f"finding {self.id} names neither a place nor a fact")
        if self.severity is Severity.ERROR and self.confidence is not Confidence.HIGH:
            raise ValueError(f"finding {self.id}: only a finding of high confidence may be an error")
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", self._fingerprint())

    def _fingerprint(self) -> str:
        """A hash that survives moved lines: the rule and the text (not the number) of the first line.

        Which launch or job a line was reached from is left out: with a further job in the folder it may be another.
        A fault without a place is known by its nodes and its subject.
        """
        first = self.locations[0] if self.locations else None
        if first is not None:
            parts = (self.id, first.path, " ".join(first.snippet.split()))
        else:
            parts = (self.id, ",".join(self.nodes), without_lines(self.subject))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def without_lines(subject: str) -> str:
    """A launch id (`train.sbatch:12`) without its line number."""
    head, _, tail = subject.rpartition(":")
    return head if head and tail.split("#")[0].isdigit() else subject


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rule or check says of one subject (a launch, a node, a pair of nodes, a file).

    `required`: an unknown outcome makes the verdict incomplete, because a selected input or a claim of the job
    depends on it. `locations` say where an unknown one stands; those of a fault are in its finding. `stage` is
    `lint` for a rule, and for a check the stage it belongs to.

    Args:
        id, name: the rule or check.
        status: `pass`, `fail`, `unknown` or `not-applicable`.
        subject: what was asked about: a launch, a node, a pair of nodes, a file.
        reason: why it is unknown or not applicable.
        finding: the fault, where there is one.
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
