"""Multi-line messages: Python tracebacks, and the summaries of launchers.

Each becomes a single line that symptom tables can match: `@exception KeyError: 'x'` for the exception of a traceback,
with or without its header, `@first exitcode: -9` and `@also exitcode: -15` for what torchrun reports about its ranks,
and `@missing ranks: 1` for Horovod's lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from preflight.commands.diagnose.diagnosis import LogProcess, Moment
from preflight.commands.diagnose.log_processes import merge_members
from preflight.commands.diagnose.timestamps import moment_in

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s{1,40}(?:[│|] )?File "(?P<path>[^"]{1,400})", line (?P<line>\d{1,9}), in (?P<what>.{1,200})')
_BOXED = re.compile(r"[│╭╰|+]")
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,200})(?:: (?P<text>.{0,3000})|:?\s*)$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|<frozen |^<string>$|/torchrun$|/bin/")
#: A traceback longer than this has lost its end.
_MAX_LINES = 600
#: Largest number of writers that are inside a block at the same time.
_MAX_OPEN = 1000
_FIELD = re.compile(r"\s{1,8}(?P<name>time|host|rank|exitcode)\s{0,12}: (?P<value>.{1,200})")
_RANKS = re.compile(r"(?P<rank>\d{1,7})(?: \(local_rank: (?P<local_rank>\d{1,5})\))?")
#: Lines that name the process of the next lines: Open MPI, MPICH and its descendants, CUDA.
_ABOUT = (
    re.compile(r"Process name: \[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,7})\]"),
    re.compile(r"=\s{1,8}(?:RANK (?P<rank>\d{1,7}) )?PID \d{1,10} RUNNING AT (?P<host>[\w.-]{1,253})"),
)
_ABOUT_LINES = 12
#: Words to search for in addition to the finder's own, so that no block is missed.
NEEDLES = ("process name: [[", " running at ", " nranks ", '", line ', "missing ranks:", "stalled ranks:")
_MISSING = ("Missing ranks:", "Stalled ranks:")
_MISSING_RANK = re.compile(r"\s{0,4}(?P<rank>\d{1,7}): ?\[")
#: Horovod lists the tensors of each missing rank in one line.
_MAX_MISSING_LINES = 200


@dataclass(slots=True)
class _Traceback:
    since: int
    own: str = ""
    last: str = ""


@dataclass(slots=True)
class _Summary:
    first: bool
    member: LogProcess = field(default_factory=LogProcess)
    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class JoinedLine:
    """A line after joining: the text to match symptoms in, and what the lines around it add."""

    text: str
    member: LogProcess = field(default_factory=LogProcess)
    moment: Moment | None = None
    first: bool = False
    frame: str = ""
    exception: bool = False


def is_library(place: str) -> bool:
    """Return whether a location (`path:line`) is in a library rather than in the user's program."""
    return bool(_LIBRARY.search(place))


class Blocks:
    """Follows the lines of one file; each writer (`key`) has its own blocks."""

    def __init__(self) -> None:
        self._tracebacks: dict[object, _Traceback] = {}
        self._summaries: dict[object, _Summary] = {}
        self._about: tuple[LogProcess, int] = (LogProcess(), -1)
        #: For each writer, the last line that may belong to a list of missing ranks.
        self._missing: dict[object, int] = {}
        #: The rank of each process of a node, from torchrun's summaries.
        self.ranks: dict[tuple[str, int], int] = {}

    @property
    def open(self) -> bool:
        """Return whether the next lines must be examined whatever they contain."""
        return bool(self._tracebacks or self._summaries or self._missing)

    def add_line(self, key: object, line: str, number: int) -> JoinedLine:
        """Return the meaning of a line, given the lines before it."""
        for pattern in _ABOUT:
            if (about := pattern.search(line)) is not None:
                self._about = (_member(about.groupdict()), number + _ABOUT_LINES)
        line_meaning = (
            self._summary(key, line)
            or self._traceback(key, line, number)
            or self._missing_rank(key, line, number)
            or JoinedLine(line)
        )
        if number <= self._about[1] and not line_meaning.member:
            line_meaning = replace(line_meaning, member=self._about[0])
        return line_meaning

    def _missing_rank(self, key: object, line: str, number: int) -> JoinedLine | None:
        if line.rstrip().endswith(_MISSING):
            if len(self._missing) >= _MAX_OPEN:
                self._missing.clear()
            self._missing[key] = number + _MAX_MISSING_LINES
            return None
        last = self._missing.get(key)
        if last is None:
            return None
        rank = _MISSING_RANK.match(line)
        if rank is None or number > last:
            del self._missing[key]
            return None
        return JoinedLine(f"@missing ranks: {rank['rank']}")

    def _summary(self, key: object, line: str) -> JoinedLine | None:
        if line.startswith("Root Cause (first observed failure"):
            self._summaries[key] = _Summary(first=True)
            return None
        if line.rstrip() == "Failures:":
            self._summaries[key] = _Summary(first=False)
            return None
        if len(self._summaries) > _MAX_OPEN:
            self._summaries.clear()
        summary = self._summaries.get(key)
        if summary is None:
            return None
        if line.startswith("===="):
            del self._summaries[key]
            return None
        if (found := _FIELD.match(line)) is None:
            return None
        name, value = found["name"], found["value"]
        if name == "time":
            summary.moment, summary.member = moment_in(value), LogProcess()
        elif name == "host" and value != "localhost":
            summary.member = replace(summary.member, host=value)
        elif name == "rank" and (ranks := _RANKS.match(value)) is not None:
            summary.member = merge_members(_member(ranks.groupdict()), summary.member)
            if summary.member.rank is not None and summary.member.local_rank is not None:
                self.ranks[summary.member.host, summary.member.local_rank] = summary.member.rank
        elif name == "exitcode":
            word = "@first" if summary.first else "@also"
            return JoinedLine(f"{word} exitcode: {value}", summary.member, summary.moment, summary.first)
        return None

    def _traceback(self, key: object, line: str, number: int) -> JoinedLine | None:
        traceback = self._tracebacks.get(key)
        if _TRACEBACK in line:
            own = traceback.own if traceback is not None else ""
            if len(self._tracebacks) >= _MAX_OPEN:
                self._tracebacks.clear()
            self._tracebacks[key] = _Traceback(number, own)
            return None
        if traceback is None and (frame := _FRAME.match(line)) is not None:
            # The header is in another line or was cut off.
            if len(self._tracebacks) >= _MAX_OPEN:
                self._tracebacks.clear()
            traceback = self._tracebacks[key] = _Traceback(number)
        if traceback is None:
            return None
        if number - traceback.since > _MAX_LINES:
            del self._tracebacks[key]
            return None
        if (frame := _FRAME.match(line)) is not None:
            where = f"{frame['path']}:{frame['line']}"
            traceback.last = where
            if not is_library(where):
                traceback.own = where
            return JoinedLine("")
        if not line.strip() or line[0].isspace() or _BOXED.match(line):
            # Text of the user's program, which may quote any message.
            return JoinedLine("")
        del self._tracebacks[key]
        if (exception := _EXCEPTION.match(line)) is None:
            return None
        text = f"{exception['name'].rpartition('.')[2]}: {exception['text'] or ''}".rstrip(": ")
        return JoinedLine(f"@exception {text}", frame=traceback.own or traceback.last, exception=True)


def _member(found: dict[str, str | None]) -> LogProcess:
    rank, local_rank = found.get("rank"), found.get("local_rank")
    return LogProcess(
        rank=int(rank) if rank else None,
        local_rank=int(local_rank) if local_rank else None,
        host=found.get("host") or "",
    )
