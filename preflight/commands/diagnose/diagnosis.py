"""The types of a diagnosis: symptoms, events in logs, and the result."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from preflight._util.json_output import schema_of
from preflight._util.validation import type_adapter

SCHEMA_VERSION = 3


class Kind(enum.Enum):
    """The kind of a line, which names the fault (cause), only shows a failure (consequence), or reports a completed
    run.

    `foreign`: a line of a system other than a training run that looks like a fault of one.
    """

    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    COMPLETION = "completion"
    FOREIGN = "foreign"


class Certainty(enum.Enum):
    """How specific a cause is: the cause itself, its usual cause, or only which process failed and how."""

    NAMED = "named"
    LIKELY = "likely"
    OPEN = "open"


class Subject(enum.Enum):
    """The subject of a line: the process that wrote it, another process that it names, or the whole job."""

    WRITER = "writer"
    OTHER = "other"
    JOB = "job"


class Answer(enum.Enum):
    """The result of a diagnosis.

    `suspected`: only the usual reason is known, or how a process ended. `unknown`: the run failed, but no line gives a
    reason. `no-end`: no line reports a failure or a completed run. `no-run`: nothing shows that the logs are of a
    training run. `unreadable`: empty, binary or truncated.
    """

    COMPLETED = "completed"
    CAUSE = "cause"
    SUSPECTED = "suspected"
    UNKNOWN = "unknown"
    NO_END = "no-end"
    NO_RUN = "no-run"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Symptom:
    """One row of the symptom tables.

    Args:
        passes: whether the line also occurs in successful runs (a retry), so that it counts only if few lines follow.
        everyday: whether other programs also write the line, so that it does not indicate a training run.
        explains: symptoms that are not causes if this one occurred.
        found_by: ids of the rules and checks that find it before the job starts; `beyond` is why there are none.
    """

    id: str
    kind: Kind
    meaning: str
    remedy: str
    systems: tuple[str, ...]
    sources: tuple[str, ...]
    certainty: Certainty = Certainty.NAMED
    subject: Subject = Subject.WRITER
    found_by: tuple[str, ...] = ()
    beyond: str = ""
    explains: tuple[str, ...] = ()
    passes: bool = False
    everyday: bool = False


@dataclass(frozen=True, slots=True)
class LogProcess:
    """A process, as far as the logs identify it. `local_rank` is its number on its own node."""

    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    role: str = ""

    def __bool__(self) -> bool:
        return self.rank is not None or self.local_rank is not None or bool(self.host) or bool(self.role)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log. `time` is as written; a line without a time has the time of an earlier line."""

    path: str
    line: int
    text: str
    time: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in a log: seconds since January 1st, in UTC (`is_utc`) or in an unknown zone, which cannot be compared."""

    text: str
    seconds: float
    is_utc: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A symptom seen in a line.

    Args:
        first: whether a supervisor reports that this process failed first.
        frame: location in the program, from the traceback around the line.
        ordinary_after: number of lines without errors that follow in the same file.
        sequence: number of the collective that the process waits in, if the line gives it.
        enqueued: number of the last collective that the process started, if the line gives it.
        peers: ranks that the process waits for, if the line gives them.
        doubtful: whether training seems to continue after it, so that it may not be why the run failed.
        evidence: details from other lines or files: the meaning of a number in the line, where each rank was.
        is_hang: whether dumps or stacks of several ranks show it, instead of a log line.
    """

    symptom: Symptom
    member: LogProcess
    line: Line
    moment: Moment | None = None
    first: bool = False
    frame: str = ""
    ordinary_after: int = 0
    sequence: int | None = None
    operation: str = ""
    enqueued: int | None = None
    peers: tuple[int, ...] = ()
    doubtful: bool = False
    evidence: tuple[str, ...] = ()
    is_hang: bool = False


@dataclass(frozen=True, slots=True)
class Pointer:
    """A rule or check that finds the fault before the run; `stage` is lint, node, link or smoke."""

    id: str
    name: str
    stage: str


@dataclass(frozen=True, slots=True)
class Cause:
    """A fault, and the processes with this fault. `members` are all processes that report it, in order of their
    reports.

    Args:
        evidence: details from other files: where each rank was, or the meaning of a number in the line.
        is_hang: whether dumps or stacks of several ranks show it; `line` is then the dump, and its text the difference.
    """

    symptom: str
    certainty: Certainty
    meaning: str
    remedy: str
    members: tuple[LogProcess, ...]
    line: Line
    frame: str
    found_by: tuple[Pointer, ...]
    beyond: str
    sources: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    is_hang: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """A consequence of another failure, with its first line. `is_foreign`: whether it is not from a training run."""

    symptom: str
    meaning: str
    members: tuple[LogProcess, ...]
    line: Line
    count: int
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Suspect:
    """A process to examine if no log gives the cause; only a hint. `others` are processes in the same position."""

    member: LogProcess
    because: str
    line: Line | None = None
    others: tuple[LogProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Log:
    """A file that was read. `problem` is which part could not be read, and why."""

    path: str
    member: LogProcess
    size_bytes: int
    lines: int
    first_time: str = ""
    last_time: str = ""
    last_line: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole diagnosis. The same logs always give the same diagnosis.

    Args:
        cause: the cause of the first failure; None if no line names one.
        others: other causes in the logs that are later or less certain.
        suspect: a process to examine, if there is no cause.
        last_words: the last lines that look like errors, if there is no cause.
        survived: errors after which the run continued.
        completion: the line that reports the completed run; None if the run failed later, or no line reports it.
    """

    version: str
    answer: Answer
    exit_code: int
    cause: Cause | None
    others: tuple[Cause, ...]
    suspect: Suspect | None
    effects: tuple[Effect, ...]
    last_words: tuple[Line, ...]
    logs: tuple[Log, ...]
    notes: tuple[str, ...]
    survived: tuple[Effect, ...] = ()
    completion: Line | None = None
    schema_version: int = SCHEMA_VERSION


def schema() -> dict[str, Any]:
    return schema_of(type_adapter(Diagnosis), "preflight diagnosis")
