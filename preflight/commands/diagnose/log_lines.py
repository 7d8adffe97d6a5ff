"""The lines of a log: which of them may matter, when and by which process each was written, and which belong together.

Lines that belong together become one line that symptom tables can match: `@exception KeyError: 'x'` for the exception
of a traceback, with or without its header, `@first exitcode: -9` and `@also exitcode: -15` for what torchrun reports
about its ranks, and `@missing ranks: 1` for Horovod's lists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from preflight._util import toml
from preflight._util.hostnames import is_hostname
from preflight.commands.diagnose.diagnosis import LogProcess, Moment

#: A longer line is cut; an error message is at its beginning.
MAX_LENGTH = 4000
#: Nearly every line about a failure contains one of these words; a needle without any is searched for itself.
_WORDS = (
    "error", "fail", "kill", "signal", "timed out", "timeout", "exception", "abort", "fatal", "refused", "reset",
    "closed", "traceback", "denied", "cannot", "can't", "unable", "invalid", "terminat", "mismatch", "exit", "no such",
    "warn", "not found", "no space", "not enough", "out of memory",
)  # fmt: skip
#: The finder remembers this many lines, of up to this many bytes.
_MAX_KNOWN = 50_000
_MAX_KNOWN_LENGTH = 500
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_]|[()][0-9A-Za-z])"
)
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Finder:
    """Finds the lines that contain any of several words, in bytes and without decoding the other lines.

    Most lines of a log differ only in their numbers, so the finder remembers for each line without its digits whether
    it contains a word. Words lose their digits too, which finds a few extra lines and misses none.
    """

    def __init__(self, needles: Iterable[str]) -> None:
        plain = {without_digits(needle.encode()) for needle in needles}
        extra = sorted((one for one in plain if not any(word.encode() in one for word in _WORDS)), key=len)
        minimal_needles: list[bytes] = []
        for needle in extra:
            if not any(other in needle for other in minimal_needles):
                minimal_needles.append(needle)
        self._words = (*(word.encode() for word in _WORDS), *minimal_needles)
        self._known: dict[bytes, bool] = {}

    def starts(self, chunk: bytes) -> list[int]:
        """Return the offsets of the lines of a chunk that contain one of the words, in order."""
        known = self._known
        if len(known) > _MAX_KNOWN:
            known.clear()
        numbers: list[int] = []
        for number, line in enumerate(without_digits(chunk.lower()).split(b"\n")):
            meaning = known.get(line)
            if meaning is None:
                meaning = any(word in line for word in self._words)
                if len(line) <= _MAX_KNOWN_LENGTH:
                    known[line] = meaning
            if meaning:
                numbers.append(number)
        return _offsets(chunk, numbers)


def without_digits(text: bytes) -> bytes:
    """Return the line without digits, so that lines that differ only in numbers become equal."""
    return text.translate(None, b"0123456789")


def _offsets(chunk: bytes, numbers: list[int]) -> list[int]:
    """Return the offsets of the lines with these numbers, counted from 0 and sorted."""
    if not numbers:
        return []
    offsets: list[int] = []
    wanted = iter(numbers)
    next_number = next(wanted)
    at = 0
    for number, line in enumerate(chunk.split(b"\n")):
        if number == next_number:
            offsets.append(at)
            following = next(wanted, None)
            if following is None:
                break
            next_number = following
        at += len(line) + 1
    return offsets


def pieces(raw: bytes) -> Iterator[str]:
    """Yield the cleaned strings of a line (progress bars overwrite themselves); `raw` has no newline."""
    if raw.find(b"\r") >= 0:
        for part in raw.split(b"\r"):
            if part.strip():
                yield clean_line(part)
    else:
        yield clean_line(raw)


#: Smallest share of non-text bytes in a file that counts as binary data.
_BINARY_SHARE = 0.1


def looks_binary(chunk: bytes) -> bool:
    """Return whether the beginning of a file is data instead of text in an encoding that contains ASCII."""
    sample = chunk[:65536]
    strange = len(sample) - len(sample.translate(None, _NOT_TEXT))
    undecodable = sample.decode("utf-8", "replace").count("\ufffd")
    return strange > _BINARY_SHARE * len(sample) or undecodable > 2 * _BINARY_SHARE * len(sample)


_NOT_TEXT = bytes(set(range(32)) - {8, 9, 10, 12, 13, 27})


def clean_line(raw: bytes) -> str:
    """Return the text without escape sequences and control characters, up to MAX_LENGTH characters."""
    text = raw[: 2 * MAX_LENGTH].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _UNSHOWN.sub("\ufffd", text).rstrip()[:MAX_LENGTH]


_PATTERNS: dict[str, list[str]] = toml.beside(__file__, "log_patterns.toml")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_ZONE = r"(?P<z>Z|[+-]\d\d:?\d\d)?"
_FORMS = tuple(re.compile(form.replace("<clock>", _CLOCK).replace("<zone>", _ZONE)) for form in _PATTERNS["times"])
#: A time is at the beginning of a line, after the name of the writer.
_HEAD_LENGTH = 120
_DAY_S = 86_400
_YEAR_S = 366 * _DAY_S


def moment_in(text: str) -> Moment | None:
    """Return the time near the beginning of a line, or None. A clock time without a date does not count."""
    head = text[:_HEAD_LENGTH]
    # Every format contains hours, minutes and seconds; most lines do not, and dozens of lines are tried before an
    # event.
    if head.count(":") < 2:
        return None
    for form in _FORMS:
        match = form.search(head)
        if match is not None and (moment := _moment(match)) is not None:
            return moment
    return None


def _moment(match: re.Match[str]) -> Moment | None:
    groups = match.groupdict()
    name = groups.get("name")
    month = _MONTHS.index(name.lower()) + 1 if name else int(groups["mo"])
    day, hours, minutes, seconds = (int(groups[key]) for key in ("d", "h", "m", "s"))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds <= 60):
        return None
    since = (_DAYS_BEFORE[month - 1] + day - 1) * _DAY_S + hours * 3600 + minutes * 60 + seconds
    fraction = groups.get("f") or "0"
    # Keep the nine digits that torch's C++ writes; later lines may differ by less than a microsecond.
    since_s = since + (float(f"0.{fraction}") if len(fraction) < 9 or groups.get("z") else 0.0)
    zone = groups.get("z")
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        since_s -= offset if zone[0] == "+" else -offset
    return Moment(match[0].lstrip("IWEF"), since_s, is_utc=zone is not None)


def seconds_between(earlier: Moment | None, later: Moment | None) -> float | None:
    """Return by how many seconds the second time is later, also across New Year; None if they are not comparable."""
    if earlier is None or later is None or earlier.is_utc != later.is_utc:
        return None
    seconds = later.seconds - earlier.seconds
    if seconds < -_YEAR_S * 0.8:
        return seconds + _YEAR_S
    return seconds - _YEAR_S if seconds > _YEAR_S * 0.8 else seconds


#: Unambiguous tags; one occurrence is enough. A line may have several tags.
_TAGS = tuple(map(re.compile, _PATTERNS["tags"]))
#: Ambiguous tags, which count only if most lines of a file have them: srun --label, MPICH, pdsh.
_COMMON_TAGS = {
    "number": re.compile(r" {0,5}(?P<rank>\d{1,6}): "),
    "bracket": re.compile(r"\[(?P<rank>\d{1,6})\] "),
    "host": re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,100}): "),
}
_NO_HOST = re.compile(
    r"(?i)(info|warn(ing)?|error|debug|fatal|critical|trace|epoch|step|iter|iteration|loss|note|eta)$"
)
#: kubectl --timestamps, mpirun --timestamp-output.
_STAMP = re.compile(
    r"(?:19|20)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d) "
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d"
)
#: Inside a line: `[Rank 3]`, `[PG 0 Rank 3]`, `rank=3`, `(rank: 3)`.
_WITHIN = re.compile(r"(?i)\[(?:[^\]\n]{0,120}[ (])?rank[ :=]{1,3}(?P<rank>\d{1,6})\]")
_NCCL = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,100}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\] ")
_POD_RANK = re.compile(r"(?:^|-)(?P<role>master|chief|worker|ps|pserver|server|trainer)-(?P<index>\d{1,6})(?:-|$)")
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Tagging:
    """The form of the tags in one file: the tag that most lines have, or ''."""

    common: str = ""

    def split(self, line: str) -> tuple[LogProcess, str, str]:
        """Return the process that wrote the line, the one in NCCL's notation (`host:pid`), and the rest."""
        member, process = LogProcess(), ""
        for _ in range(5):
            stamp = _STAMP.match(line)
            start = stamp.end() if stamp else 0
            match = self._match(line, start)
            if match is None:
                break
            member = merge_members(member, _process_of_groups(match.groupdict()))
            line = line[:start] + line[match.end() :]
        if (stamp := _STAMP.match(line)) is not None:
            line = line[stamp.end() :]
        if (nccl := _NCCL.search(line[:300])) is not None:
            member = merge_members(member, LogProcess(host=nccl["host"] if is_hostname(nccl["host"]) else ""))
            process = f"{nccl['host']}:{nccl['pid']}"
        if member.rank is None and (within := _WITHIN.search(line[:400])) is not None:
            member = replace(member, rank=int(within["rank"]))
        return member, process, line

    def _match(self, line: str, start: int) -> re.Match[str] | None:
        for tag in _TAGS:
            if (match := tag.match(line, start)) is not None:
                return match
        match = _COMMON_TAGS[self.common].match(line, start) if self.common else None
        if match is not None and self.common == "host" and _NO_HOST.match(match["host"]):
            return None
        return match


def common_tagging(sample: Sequence[str]) -> Tagging:
    """Return the common tag of a file: the one that four of five of its first lines have."""
    lines = [line for line in sample[:_SAMPLE] if line.strip()]
    for name, tag in _COMMON_TAGS.items():
        heads = Counter(match[0] for line in lines if (match := tag.match(line)) is not None)
        if name == "host":
            for head in [head for head in heads if _NO_HOST.match(head[:-2])]:
                del heads[head]
        many = name != "host" or len(heads) <= max(1, len(lines) // 4)
        if lines and sum(heads.values()) >= 0.8 * len(lines) and len(lines) >= 4 and many:
            return Tagging(name)
    return Tagging()


def merge_members(member: LogProcess, other: LogProcess) -> LogProcess:
    """Combine two tags of a line; the first one wins where they differ."""
    return LogProcess(
        rank=member.rank if member.rank is not None else other.rank,
        local_rank=member.local_rank if member.local_rank is not None else other.local_rank,
        host=member.host or other.host,
        role=member.role or other.role,
    )


def _process_of_groups(groups: Mapping[str, str | None]) -> LogProcess:
    if pod := groups.get("pod"):
        return process_of_pod(pod)
    rank, local_rank, role = groups.get("rank"), groups.get("local_rank"), groups.get("role") or ""
    return LogProcess(
        rank=int(rank) if rank else None,
        local_rank=int(local_rank) if local_rank else None,
        host=groups.get("host") or "",
        role="" if role == "default" else role,
    )


def process_of_pod(pod: str) -> LogProcess:
    """Return the process of a pod; the pod counts as a host, and operators number their workers."""
    match = _POD_RANK.search(pod)
    role = f"{match['role']} {match['index']}" if match else ""
    return LogProcess(host=pod, role=role)


#: Processes by the names of log files and their folders, nearest to the file first.
_FILES = tuple(map(re.compile, _PATTERNS["files"]))
_FILE_HOST = re.compile(
    r"(?:^|[/_.-])(?P<host>(?:node|host|gpu|compute|cn|dgx|nid|ip-|hgx|pod)[\w-]{0,60}?\d{1,5})(?=[/._]|$)"
)
#: Operators number workers without the master, so worker-2 may be rank 3.
_FILE_POD = re.compile(
    r"(?:^|/)(?P<pod>[a-z0-9][a-z0-9.-]{0,200}-(?:master|chief|worker|launcher|ps)-\d{1,5})(?=[/_.]|$)"
)
_LAST_NUMBER = re.compile(r"[._-](?P<rank>\d{1,5})(?:\.(?:log|out|err|txt|stdout|stderr))?$")


def member_of_file(path: str) -> LogProcess:
    """Return the process that a file belongs to, by the names of the file and its folders; empty if unknown."""
    plain = re.sub(r"\.(gz|[0-9]+\.gz)$", "", PurePath(path).as_posix())
    tail = "/".join(plain.split("/")[-6:])
    if (pod := _FILE_POD.search(tail)) is not None:
        return process_of_pod(pod["pod"])
    hosts = _FILE_HOST.findall(tail)
    host = hosts[-1] if hosts else ""
    for pattern in _FILES:
        matches = list(pattern.finditer(tail))
        if not matches:
            continue
        # The name of a folder may mean something else, as in `lora_rank_8/rank_1.log`.
        found = matches[-1].groupdict()
        rank, local_rank, index = found.get("rank"), found.get("local_rank"), found.get("index")
        role = found.get("paddle") or found.get("role") or ""
        if role in ("worker", "trainer") and index is not None:
            # Collective ranks and trainers share numbers; in a cluster with a master, a worker's lines identify it.
            return LogProcess(rank=int(index), host=host)
        return LogProcess(
            rank=int(rank) if rank else None,
            local_rank=int(local_rank) if local_rank else None,
            host=host,
            role=f"{_ROLES.get(role, role)} {index}" if index is not None else "",
        )
    return LogProcess(host=host)


_ROLES = {"ps": "server", "pserver": "server", "heter_worker": "heter worker"}


def ranks_by_number(paths: Sequence[str]) -> dict[str, LogProcess]:
    """Return the ranks of files in one folder whose names differ only in a final number that counts from 0 or 1."""
    groups: dict[str, dict[int, str]] = {}
    for path in paths:
        if (match := _LAST_NUMBER.search(path)) is not None and not member_of_file(path):
            groups.setdefault(path[: match.start()] + "*" + path[match.end("rank") :], {})[int(match["rank"])] = path
    found: dict[str, LogProcess] = {}
    for group in groups.values():
        if len(group) >= 2 and sorted(group) == list(range(len(group))):
            found.update({path: LogProcess(rank=number) for number, path in group.items()})
    return found


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
    """A line after joining: the text to match symptoms in, and details from adjacent lines."""

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
        """Return whether the next lines must be examined regardless of their content."""
        return bool(self._tracebacks or self._summaries or self._missing)

    def add_line(self, key: object, line: str, number: int) -> JoinedLine:
        """Return the meaning of a line, given the lines before it."""
        for pattern in _ABOUT:
            if (about := pattern.search(line)) is not None:
                self._about = (_process_of_groups(about.groupdict()), number + _ABOUT_LINES)
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
            summary.member = merge_members(_process_of_groups(ranks.groupdict()), summary.member)
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
