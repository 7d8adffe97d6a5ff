"""What a diagnosis is made of: symptoms and what was seen of them in logs, and the answer that comes out."""

from __future__ import annotations

import enum
from typing import Any

from preflight.document import schema_of, to_bytes
from preflight.lazy.dataclasses import dataclass

SCHEMA_VERSION = 1


class Kind(enum.Enum):
    """Whether a line names what went wrong, or only shows that something did."""

    CAUSE = "cause"
    CONSEQUENCE = "consequence"


class Certainty(enum.Enum):
    """How much a cause says: the reason itself, what it nearly always is, or who and how but not why."""

    NAMED = "named"
    LIKELY = "likely"
    OPEN = "open"


class Subject(enum.Enum):
    """Of whom a line speaks: of the process that wrote it, of another one that it names, or of the job as a whole."""

    WRITER = "writer"
    OTHER = "other"
    JOB = "job"


class Answer(enum.Enum):
    """What the logs come to."""

    CAUSE = "cause"
    UNKNOWN = "unknown"
    NOTHING_WRONG = "nothing-wrong"
    NOTHING_READ = "nothing-read"


@dataclass(frozen=True, slots=True)
class Symptom:
    """One row of the tables of symptoms.

    Args:
        passes: the line is also written where all went well in the end (a retry), so it counts only if little follows.
        explains: symptoms that are no cause of their own where this one was seen.
        told_by: ids of the rules and checks that tell before the job starts; `beyond` says why there is none.
    """

    id: str
    kind: Kind
    meaning: str
    remedy: str
    systems: tuple[str, ...]
    sources: tuple[str, ...]
    certainty: Certainty = Certainty.NAMED
    subject: Subject = Subject.WRITER
    told_by: tuple[str, ...] = ()
    beyond: str = ""
    explains: tuple[str, ...] = ()
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Party:
    """Whom a line speaks of, as far as the logs tell. `local_rank` is the number of a process on its own node."""

    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    role: str = ""

    def __bool__(self) -> bool:
        return self.rank is not None or self.local_rank is not None or bool(self.host) or bool(self.role)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log. `time` is as it was written; where the line has none, that of a line before it."""

    path: str
    line: int
    text: str
    time: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of a log: seconds since the first of January, whose year does not matter for a run.

    `zoned` times are in UTC; the others are in the machine's own zone. The two cannot be held against each other.
    """

    text: str
    seconds: float
    zoned: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A symptom seen in a line.

    Args:
        first: a supervisor says that this party was the first to fail.
        frame: where the program was, from the traceback around the line.
        ordinary_after: how many lines that say nothing of errors follow in the same file.
        sequence: the number of the collective that the party waits in, where the line says it.
        peer: the rank that the party waits for, where the line says it.
    """

    symptom: Symptom
    party: Party
    line: Line
    moment: Moment | None = None
    first: bool = False
    frame: str = ""
    ordinary_after: int = 0
    sequence: int | None = None
    operation: str = ""
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """A rule or check that tells beforehand; `stage` is lint, node, link or smoke."""

    id: str
    name: str
    stage: str


@dataclass(frozen=True, slots=True)
class Cause:
    """What went wrong, and with whom. `parties` are all for whom the logs say it, the first one first."""

    symptom: str
    certainty: Certainty
    meaning: str
    remedy: str
    parties: tuple[Party, ...]
    line: Line
    frame: str
    told_by: tuple[Pointer, ...]
    beyond: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that happened because something else had; `line` is where it stands first."""

    symptom: str
    meaning: str
    parties: tuple[Party, ...]
    line: Line
    count: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """Whom to look at where no log says why; never more than a hint."""

    party: Party
    because: str
    line: Line | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """A file that was read. `problem` says what of it was not, and why."""

    path: str
    party: Party
    size_bytes: int
    lines: int
    first_time: str = ""
    last_time: str = ""
    last_line: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer. The same logs give the same one, to the letter.

    Args:
        cause: the cause of the first failure; None where no line names one.
        others: further causes that the logs name, which came later or are less sure.
        suspect: whom to look at, where there is no cause.
        last_words: the last lines that look like errors, where there is no cause.
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
    schema_version: int = SCHEMA_VERSION


def to_json(diagnosis: Diagnosis) -> bytes:
    """The diagnosis as a JSON document."""
    return to_bytes(diagnosis, indent=2)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the JSON document."""
    from pydantic import TypeAdapter

    return schema_of(TypeAdapter(Diagnosis), "preflight diagnosis")
