"""What is told over several lines: tracebacks of Python, and the summaries of launchers.

Such lines come out as single ones, in a form that the tables of symptoms can speak of: `@exception KeyError: 'x'` where
an exception ends a traceback, `@first exitcode: -9` and `@also exitcode: -15` for what torchrun says of its ranks.
"""

from __future__ import annotations

from dataclasses import field, replace

from preflight.diagnosis.model import Moment, Party
from preflight.diagnosis.moments import moment_in
from preflight.diagnosis.parties import joined
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = lazy_pattern(r'\s{1,40}(?:[│|] )?File "(?P<path>[^"]{1,400})", line (?P<line>\d{1,9}), in (?P<what>.{1,200})')
_BOXED = lazy_pattern(r"[│╭╰|+]")
_EXCEPTION = lazy_pattern(r"(?P<name>[A-Za-z_][\w.]{0,200})(?:: (?P<said>.{0,3000})|:?\s*)$")
_LIBRARY = lazy_pattern(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|<frozen |^<string>$|/torchrun$|/bin/")
#: A traceback that goes on for longer than this has lost its end.
_MOST_LINES = 600
#: More writers than this are not in the middle of a block at once.
_MOST_OPEN = 1000
_FIELD = lazy_pattern(r"\s{1,8}(?P<name>time|host|rank|exitcode)\s{0,12}: (?P<value>.{1,200})")
_RANKS = lazy_pattern(r"(?P<rank>\d{1,7})(?: \(local_rank: (?P<local_rank>\d{1,5})\))?")
#: Lines that say of whom the next ones speak: Open MPI, MPICH and what descends from it, CUDA's own.
_ABOUT = (
    lazy_pattern(r"Process name: \[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,7})\]"),
    lazy_pattern(r"=\s{1,8}(?:RANK (?P<rank>\d{1,7}) )?PID \d{1,10} RUNNING AT (?P<host>[\w.-]{1,253})"),
)
_ABOUT_LINES = 12
#: What has to be looked for so that no block is missed; the finder's own words find the others.
NEEDLES = ("process name: [[", " running at ", " nranks ")


@dataclass(slots=True)
class _Traceback:
    since: int
    own: str = ""
    last: str = ""


@dataclass(slots=True)
class _Summary:
    first: bool
    party: Party = field(default_factory=Party)
    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a line comes to: the text that symptoms are looked for in, and what the lines around it add."""

    text: str
    party: Party = field(default_factory=Party)
    moment: Moment | None = None
    first: bool = False
    frame: str = ""
    exception: bool = False


def is_library(place: str) -> bool:
    """Whether a place (`path:line`) is in a library, and not in the user's own program."""
    return bool(_LIBRARY.search(place))


class Blocks:
    """Follows the lines of one file; each writer (`key`) has blocks of its own."""

    def __init__(self) -> None:
        self._tracebacks: dict[object, _Traceback] = {}
        self._summaries: dict[object, _Summary] = {}
        self._about: tuple[Party, int] = (Party(), -1)
        #: Which rank a process of a node is, as torchrun's summaries say it.
        self.ranks: dict[tuple[str, int], int] = {}

    @property
    def open(self) -> bool:
        """Whether the next lines have to be looked at whatever they hold."""
        return bool(self._tracebacks or self._summaries)

    def take(self, key: object, line: str, number: int) -> Told:
        """What a line comes to, given those before it."""
        for pattern in _ABOUT:
            if (about := pattern.search(line)) is not None:
                self._about = (_party(about.groupdict()), number + _ABOUT_LINES)
        told = self._summary(key, line) or self._traceback(key, line, number) or Told(line)
        if number <= self._about[1] and not told.party:
            told = replace(told, party=self._about[0])
        return told

    def _summary(self, key: object, line: str) -> Told | None:
        if line.startswith("Root Cause (first observed failure)"):
            self._summaries[key] = _Summary(first=True)
            return None
        if line.rstrip() == "Failures:":
            self._summaries[key] = _Summary(first=False)
            return None
        if len(self._summaries) > _MOST_OPEN:
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
            summary.moment, summary.party = moment_in(value), Party()
        elif name == "host" and value != "localhost":
            summary.party = replace(summary.party, host=value)
        elif name == "rank" and (ranks := _RANKS.match(value)) is not None:
            summary.party = joined(_party(ranks.groupdict()), summary.party)
            if summary.party.rank is not None and summary.party.local_rank is not None:
                self.ranks[summary.party.host, summary.party.local_rank] = summary.party.rank
        elif name == "exitcode":
            word = "@first" if summary.first else "@also"
            return Told(f"{word} exitcode: {value}", summary.party, summary.moment, summary.first)
        return None

    def _traceback(self, key: object, line: str, number: int) -> Told | None:
        traceback = self._tracebacks.get(key)
        if _TRACEBACK in line:
            own = traceback.own if traceback is not None else ""
            if len(self._tracebacks) >= _MOST_OPEN:
                self._tracebacks.clear()
            self._tracebacks[key] = _Traceback(number, own)
            return None
        if traceback is None:
            return None
        if number - traceback.since > _MOST_LINES:
            del self._tracebacks[key]
            return None
        if (frame := _FRAME.match(line)) is not None:
            where = f"{frame['path']}:{frame['line']}"
            traceback.last = where
            if not is_library(where):
                traceback.own = where
            return Told("")
        if not line.strip() or line[0].isspace() or _BOXED.match(line):
            # The program's own text, which may quote any message.
            return Told("")
        del self._tracebacks[key]
        if (exception := _EXCEPTION.match(line)) is None:
            return None
        said = f"{exception['name'].rpartition('.')[2]}: {exception['said'] or ''}".rstrip(": ")
        return Told(f"@exception {said}", frame=traceback.own or traceback.last, exception=True)


def _party(found: dict[str, str | None]) -> Party:
    rank, local_rank = found.get("rank"), found.get("local_rank")
    return Party(
        rank=int(rank) if rank else None,
        local_rank=int(local_rank) if local_rank else None,
        host=found.get("host") or "",
    )
