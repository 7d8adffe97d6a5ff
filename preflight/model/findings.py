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
    """`ERROR`: the job fails, hangs or trains wrong. `WARNING`: the job probably wastes resources, or may fail."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Return the order of severities: higher is worse."""
        return {"info": 0, "warning": 1, "error": 2}[self.value]


class Confidence(enum.Enum):
    """How certain a finding is; only a finding of `HIGH` confidence may be an error."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


#: The profiles from the least strict to the strictest; each profile includes all rules and checks of the previous one.
PROFILES = ("gate", "default", "pedantic")


class VerdictKind(enum.Enum):
    """The one-word verdict of a run."""

    GO = "go"
    NO_GO = "no-go"
    INCOMPLETE = "incomplete"
    NOT_JUDGED = "not-judged"


@dataclass(frozen=True, slots=True)
class Location:
    """A location of a finding in a file.

    Args:
        path: the path of the file relative to the root, with forward slashes.
        line, column: the start of the location, counted from 1.
        end_line, end_column: the exclusive end of the location.
        snippet: the first line as written, redacted.
        note: the role of this location in the fault.
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
    """An observation, and the expected value.

    Args:
        fact: the name of the probe.
        observed: the observed value.
        expected: the expected value.
        command: a command with which a person can repeat the observation.
        node: the node on which the value was observed; empty if it is not about a particular node.
        at_s: the time of the observation, in seconds since the start of the run.
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

    Args:
        path: the path of the file relative to the root.
        line, column: the start of the piece, counted from 1, in characters.
        expected: the current text of the piece. If the file has a different text there, nothing is edited.
        replacement: the new text; an empty text removes the piece.
    """

    path: str
    line: int
    column: int
    expected: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that fix a finding if all of them are applied.

    Args:
        description: a description of the change.
        edits: the edits in the order of the file.
        safe: whether the job does the same as before, or, if it would have failed, does what was certainly intended.
            Any other fix is applied only if the user requests unsafe fixes.
    """

    description: str
    edits: tuple[Edit, ...]
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A shell line that a person can paste unchanged.

    The line contains no placeholders: if only the reader knows a part, the remedy is described without a command.

    Args:
        line: one quoted line.
        nodes: the nodes on which to run it; if there are none, it belongs into the job script or the reader's shell.
    """

    line: str
    nodes: tuple[str, ...] = ()

    @property
    def can_be_pasted(self) -> bool:
        """Return whether the command can be pasted into a terminal: one line, without special characters."""
        return bool(self.line.strip()) and self.line.isprintable()


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. The same fault on 512 nodes is one finding that lists the nodes.

    Args:
        id, name: the id and the name of the rule or check.
        severity: `error` if the job fails, hangs or trains wrong; `warning` if it probably wastes resources or may
            fail; otherwise `info`.
        confidence: `high`, `medium` or `low`; an error is always of high confidence.
        message: the observed state and the expected state.
        subject: the judged item.
        locations: the locations in files, the location of the fault first; empty for a fault that only nodes show.
        evidence: the observations on nodes.
        nodes: the nodes with this fault.
        remedy: the action that fixes the fault.
        suppression: the reason why the finding does not count; empty if it counts.
        suppressed_by: `comment`, `waiver`, `baseline`, `since` or `per-file-ignores`.
        fix: the edits that fix the fault; null if a program cannot fix it.
        commands: the shell lines that carry out the remedy, as far as possible.
        waits_at: `rendezvous` or `collective`, if all ranks would wait there for a timeout; empty if the job would fail
            at once or continue.
        fingerprint: a hash that does not change when lines move, and that is unique in a report.
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
            object.__setattr__(self, "fingerprint", self._computed_fingerprint())

    def _computed_fingerprint(self) -> str:
        """Return a hash of the rule and of the text (not the number) of the first line, so that it does not change when
        lines move.

        The hash does not include the launch or job that the file was read for, because a further job in the folder may
        change it. A fault without a location is identified by its nodes and its subject.
        """
        first_location = self.locations[0] if self.locations else None
        if first_location is not None:
            parts = (self.id, first_location.path, " ".join(first_location.snippet.split()))
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
        id, name: the id and the name of the rule or check.
        status: `pass`, `fail`, `unknown` or `not-applicable`.
        subject: the judged item: a launch, a node, a pair of nodes, a file.
        reason: the reason why the result is unknown or not applicable.
        required: whether an unknown result makes the verdict incomplete, because a selected input or a claim of the
            job depends on it.
        finding: the fault; null if there is none.
        locations: the locations of unknown inputs; the locations of a fault are in its finding.
        stage: `lint` for a rule, and the stage of a check.
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
