"""Reads one log: its symptoms according to the tables of all packs, its processes and times, and the training progress.

A pack lists its tables in `symptoms`, as paths below its own folder; users may add files. Rows are
tried in order, and the first match wins. A table may also explain numbers (`codes`) and list texts that name possible
causes in general and are no evidence (`boilerplate`).
"""

from __future__ import annotations

import enum
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from preflight._util import regular_file, toml
from preflight._util.hostnames import is_hostname
from preflight._util.redaction import hide_secrets, scrub, secrets_in
from preflight._util.usage_error import UsageError
from preflight.commands.diagnose.diagnosis import Certainty, Event, Kind, Line, LogProcess, Moment, Subject, Symptom
from preflight.commands.diagnose.log_lines import (
    Blocks,
    Finder,
    JoinedLine,
    Tagging,
    common_tagging,
    looks_binary,
    merge_members,
    moment_in,
    pieces,
    without_digits,
)
from preflight.plugins import registry

_MAX_BYTES = 1 << 20

SCHEMA = 1
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_KEYS = {"id", "kind", "certainty", "subject", "systems", "needles", "pattern", "meaning", "remedy"} | {
    "found_by", "beyond", "explains", "passes", "everyday", "sources", "lines",
}  # fmt: skip
#: Named groups allowed in a pattern; each becomes part of the event. A name may be numbered: `rank_2`.
GROUPS = {"rank", "local_rank", "host", "index", "peer", "peers", "sequence", "operation", "enqueued"}
#: Number of line shapes whose possible rows are remembered.
_MAX_SHAPES = 20_000
_Word = TypeVar("_Word", bound=enum.Enum)
_TOP = {"schema", "date", "symptom", "codes", "boilerplate", "evidence"}


@dataclass(frozen=True, slots=True)
class Row:
    """A symptom, its needles (lower case, one must occur) and pattern; `shapes` are needles without digits."""

    symptom: Symptom
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    lines: tuple[str, ...] = ()
    shapes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Codes:
    """Numbers that a system prints instead of words: `pattern` has the group `code`, and each number has a text."""

    name: str
    needle: str
    pattern: re.Pattern[str]
    texts: Mapping[str, str]
    source: str


@dataclass(frozen=True, slots=True)
class Boilerplate:
    """Text that a system adds to every message of a kind. `pattern` matches it at the position of `needle`."""

    needle: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence that a log is from a training run: its lower-cased text contains one of `needles`, and `pattern`
    matches.
    """

    name: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """All rows in the order in which they are tried."""

    rows: tuple[Row, ...]
    codes: tuple[Codes, ...] = ()
    boilerplate: tuple[Boilerplate, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    _likely: dict[bytes, tuple[Row, ...]] = field(default_factory=dict, repr=False, compare=False)

    def match(self, line: str) -> tuple[Symptom, Mapping[str, str]] | None:
        """Return the first symptom that a line shows, with the named groups of its pattern. Boilerplate is ignored."""
        lower = line.lower()
        for text in self.boilerplate:
            if text.needle in lower:
                line = text.pattern.sub("", line)
                lower = line.lower()
        for row in self._likely_rows(without_digits(lower.encode("utf-8", "replace"))):
            for needle in row.needles:
                if needle in lower:
                    match = row.pattern.search(line)
                    if match is not None:
                        caught = {_plain(key): text for key, text in match.groupdict().items() if text is not None}
                        return row.symptom, caught
                    break
        return None

    def is_of_a_run(self, text: bytes) -> bool:
        """Return whether a part of a log comes from a training run."""
        lower = text.lower()
        decoded = ""
        for row in self.evidence:
            if any(needle.encode() in lower for needle in row.needles):
                decoded = decoded or text.decode("utf-8", "replace")
                if row.pattern.search(decoded) is not None:
                    return True
        return False

    def meaning_of_codes(self, line: str) -> str:
        """Return the meaning of the numbers in a line; empty if none is known."""
        lower = line.lower()
        for codes in self.codes:
            if codes.needle in lower and (match := codes.pattern.search(line)) is not None:
                text = codes.texts.get(match["code"])
                if text is not None:
                    return f"{codes.name} {match['code']}: {text} ({codes.source})"
        return ""

    def _likely_rows(self, shape: bytes) -> tuple[Row, ...]:
        """Return the rows whose needles may occur in lines of this shape; most shapes have few."""
        found = self._likely.get(shape)
        if found is None:
            found = tuple(row for row in self.rows if any(needle in shape for needle in row.shapes))
            if len(self._likely) >= _MAX_SHAPES:
                self._likely.clear()
            self._likely[shape] = found
        return found


def load_symptoms(own_files: Sequence[Path] = ()) -> Table:
    """Return the rows of the user's files, then of every pack. Raises UsageError for a file, ValueError for a pack."""
    rows: list[Row] = []
    codes: list[Codes] = []
    boilerplate: list[Boilerplate] = []
    evidence: list[Evidence] = []

    def add(text: str, name: str) -> None:
        table = parse_table(text, name)
        rows.extend(table.rows)
        codes.extend(table.codes)
        boilerplate.extend(table.boilerplate)
        evidence.extend(table.evidence)

    for path in own_files:
        try:
            add(regular_file.read_text(path, _MAX_BYTES), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        except ValueError as error:
            raise UsageError(str(error)) from None
    for module, names in registry.symptom_tables().items():
        folder = resources.files(module)
        for name in names:
            add(folder.joinpath(name).read_text("utf-8"), name)
    twice = {row.symptom.id for row in rows} if len({row.symptom.id for row in rows}) < len(rows) else set()
    for name in sorted(twice):
        if sum(row.symptom.id == name for row in rows) > 1:
            raise UsageError(f"two tables define the symptom {name!r}; ids must be unique")
    return Table(tuple(rows), tuple(codes), tuple(boilerplate), tuple(evidence))


def parse(text: str, name: str) -> tuple[Row, ...]:
    """Parse the rows of a TOML document. Raises ValueError with the wrong row and key."""
    return parse_table(text, name).rows


def parse_table(text: str, name: str) -> Table:
    """Parse a TOML document. Raises ValueError with the wrong entry and key."""
    try:
        document = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ValueError(f"{name} is not valid TOML: {error}") from None
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{name}: expected `schema = {SCHEMA}`")
    if unknown := sorted(set(document) - _TOP):
        raise ValueError(f"{name} has unknown keys: {', '.join(unknown)}; expected {', '.join(sorted(_TOP))}")
    rows, codes, boilerplate, evidence = (
        _tables(document, key, name) for key in ("symptom", "codes", "boilerplate", "evidence")
    )
    return Table(
        tuple(_row(row, f"{name}: symptom {row.get('id', f'no. {at}')!r}") for at, row in enumerate(rows, 1)),
        tuple(_codes(row, f"{name}: codes no. {at}") for at, row in enumerate(codes, 1)),
        tuple(_boilerplate(row, f"{name}: boilerplate no. {at}") for at, row in enumerate(boilerplate, 1)),
        tuple(_evidence(row, f"{name}: evidence no. {at}") for at, row in enumerate(evidence, 1)),
    )


def _tables(document: dict[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name}: expected tables `[[{key}]]`")
    return rows


def _codes(row: dict[str, Any], where: str) -> Codes:
    texts = row.get("texts", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"{where}: expected a table of strings for texts")
    pattern = _pattern(row, where)
    if "code" not in pattern.groupindex:
        raise ValueError(f"{where}: expected a group `code` in the pattern")
    return Codes(_text(row, "name", where), _text(row, "needle", where), pattern, texts, _text(row, "source", where))


def _boilerplate(row: dict[str, Any], where: str) -> Boilerplate:
    return Boilerplate(_text(row, "needle", where), _pattern(row, where))


def _evidence(row: dict[str, Any], where: str) -> Evidence:
    source = _text(row, "source", where)
    return Evidence(_text(row, "name", where), _needles(row, where), _pattern(row, where), source)


def _needles(row: dict[str, Any], where: str) -> tuple[str, ...]:
    needles = _texts(row, "needles", where)
    if not needles or any(needle != needle.lower() or len(needle) < 3 for needle in needles):
        raise ValueError(f"{where}: expected needles in lower case, of at least three characters")
    return needles


def _pattern(row: dict[str, Any], where: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(row, "pattern", where))
    except re.error as error:
        raise ValueError(f"{where}: pattern: {error}") from None


def _row(row: dict[str, Any], where: str) -> Row:
    if unknown := sorted(set(row) - _KEYS):
        raise ValueError(f"{where} has unknown keys: {', '.join(unknown)}")
    name = row.get("id")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ValueError(f"{where}: expected an id of lower-case words with hyphens")
    pattern = _pattern(row, where)
    if strange := sorted(set(map(_plain, pattern.groupindex)) - GROUPS):
        raise ValueError(f"{where}: pattern has unknown groups: {', '.join(strange)}")
    needles = _needles(row, where)
    symptom = Symptom(
        id=name,
        kind=_enum_value(row, "kind", Kind, where),
        certainty=_enum_value(row, "certainty", Certainty, where, Certainty.NAMED),
        subject=_enum_value(row, "subject", Subject, where, Subject.WRITER),
        meaning=_text(row, "meaning", where),
        remedy=_text(row, "remedy", where),
        systems=_texts(row, "systems", where),
        sources=_texts(row, "sources", where),
        found_by=_texts(row, "found_by", where),
        beyond=str(row.get("beyond", "")),
        explains=_texts(row, "explains", where),
        passes=row.get("passes") is True,
        everyday=row.get("everyday") is True,
    )
    if not symptom.systems or not symptom.sources:
        raise ValueError(f"{where}: expected systems and sources")
    shapes = tuple(without_digits(needle.encode()) for needle in needles)
    return Row(symptom, needles, pattern, _texts(row, "lines", where), shapes)


def _plain(group: str) -> str:
    return group.rstrip("0123456789").rstrip("_")


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: expected a string for {key}")
    return value


def _texts(row: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{where}: expected a list of strings for {key}")
    return tuple(value)


def _enum_value(row: dict[str, Any], key: str, kind: type[_Word], where: str, default: _Word | None = None) -> _Word:
    value = row.get(key)
    if value is None and default is not None:
        return default
    for word in kind:
        if word.value == value:
            return word
    raise ValueError(
        f"{where}: expected {key} to be one of {', '.join(str(word.value) for word in kind)}, not {value!r}"
    )


def needles_of(rows: Iterable[Row]) -> frozenset[str]:
    return frozenset(needle for row in rows for needle in row.needles)


#: Number of events kept per file for one symptom in one process; further events are only counted.
_MAX_OF_A_KIND = 3
#: Number of causes and of consequences kept per file.
_MAX_EVENTS = 5000
#: Number of writers distinguished per file.
_MAX_WRITERS = 20_000
#: How far back to look for a time if a line has none.
_LOOK_BACK_LINES = 40
_SHOWN = 600
#: Number of ranks read from a list in a line.
_MAX_PEERS = 1000
#: Secrets that other lines may repeat are searched for at the head of a file and around this many events.
_HEAD_BYTES = 128 * 1024
_NEAR_BYTES = 8 * 1024
_MAX_SECRET_RANGES = 100
_MAX_SECRETS = 500
#: Lines that look like errors but match no symptom; shown if nothing better is known.
_ERROR_LIKE = re.compile(
    r"(?i)^@exception|\b(?:error|fatal|critical|panic|aborted|segfault|assertion failed|core dumped|failed)\b"
)
_HARMLESS = re.compile(r"(?i)warning|\b(?:no|0|zero|without) errors?\b|error[ _]?(?:rate|bound)\b|\berror[:=] ?[0-9.]+")
_WRITER = re.compile(
    rb"(?m)^(?:\[[A-Za-z_]{0,40}\d{1,6}\]:|\[[\w.@-]{1,200},\d{1,6}\]<\w{3,8}>:| {0,5}\d{1,6}: |\[\d{1,6}\] |"
    rb"\[pod/[^\]\n]{1,300}\] |\([\w.:<>-]{1,100} pid=\d{1,10}(?:, ip=[\w.:-]{1,100})?\) )"
)
#: Lines that count steps of training; searched in the last part of each chunk only.
_PROGRESS = re.compile(
    rb"(?i)\b(?:global_)?(?:step|iter|iteration|epoch|batch|update)s?\b['\"]?[ \t]{0,4}[:=#\[(]{0,2}[ \t]{0,12}\d"
    rb"|\bloss['\"]?[ \t]{0,2}[:= ][ \t]{0,2}[-\d.]|\b\d{1,9}/\d{1,9} ?\[\d{1,3}:\d\d"
)
_PROGRESS_BYTES = 64 * 1024
#: This many lines of progress after an error show that training continues.
_PROGRESS_LINES = 3
_NCCL_RANK = re.compile(r"NCCL INFO .{0,300}?\brank (\d{1,7}) nranks (\d{1,7})")


@dataclass(frozen=True, slots=True)
class LastLine:
    """The last line of a writer."""

    line: Line
    moment: Moment | None


@dataclass(slots=True)
class ScanResult:
    """The content of one file.

    `progress` is the third-to-last line that counts steps, so that three of them follow an error before that line;
    `last_progress` is the number of the last one. `completion` is the last line that reports a completed run.
    `is_of_a_run` is whether the text shows that the log is of a training run.
    """

    member: LogProcess
    lines: int = 0
    first: Moment | None = None
    last: Moment | None = None
    last_line: Line | None = None
    events: list[Event] = field(default_factory=list)
    counts: Counter[tuple[str, LogProcess]] = field(default_factory=Counter)
    errors: list[Line] = field(default_factory=list)
    writers: dict[LogProcess, LastLine] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)
    ranks: dict[tuple[str, int], int] = field(default_factory=dict)
    progress: tuple[int, Moment | None] | None = None
    last_progress: int = 0
    completion: Line | None = None
    is_binary: bool = False
    is_of_a_run: bool = False


class Scanner:
    """Consumes the chunks of one file; the result is in `found`."""

    def __init__(self, table: Table, finder: Finder, name: str, member: LogProcess) -> None:
        self._table, self._finder, self._name = table, finder, name
        self.found = ScanResult(member)
        self._tagging: Tagging | None = None
        self._blocks = Blocks()
        #: For each event: the number of lines examined when it was last seen, and its line number.
        self._seen_lines: list[tuple[int, int]] = []
        self._errors: deque[tuple[str, int]] = deque(maxlen=4)
        self._kept: Counter[Kind] = Counter()
        self._latest: dict[tuple[str, LogProcess], int] = {}
        self._searched = 0
        self._secrets: set[str] = set()
        self._progress: deque[tuple[int, Moment | None]] = deque(maxlen=_PROGRESS_LINES)

    def read(self, chunks: Iterable[bytes]) -> ScanResult:
        """Read the whole file. Memory use does not depend on the size of the file."""
        for chunk in chunks:
            if chunk:
                self._process_chunk(chunk)
        result = self.found
        result.ranks = self._blocks.ranks
        result.errors = [self._clean_line(piece, number, None) for piece, number in self._errors]
        result.progress = self._progress[0] if len(self._progress) == _PROGRESS_LINES else None
        result.last_progress = self._progress[-1][0] if self._progress else 0
        # The number of ordinary lines after each event is known only now.
        result.events = [
            replace(event, ordinary_after=max(0, result.lines - number - (self._searched - looked)))
            for event, (looked, number) in zip(result.events, self._seen_lines, strict=True)
        ]
        if self._secrets:
            self._hide(result)
        return result

    def _hide(self, result: ScanResult) -> None:
        """Hide a secret that one line revealed in all other lines."""
        secrets = sorted(self._secrets, key=len, reverse=True)

        def hidden(line: Line) -> Line:
            return replace(line, text=hide_secrets(line.text, secrets))

        result.events = [
            replace(event, line=hidden(event.line), frame=hide_secrets(event.frame, secrets)) for event in result.events
        ]
        result.errors = [hidden(line) for line in result.errors]
        result.last_line = hidden(result.last_line) if result.last_line is not None else None
        result.completion = hidden(result.completion) if result.completion is not None else None
        result.writers = {member: replace(word, line=hidden(word.line)) for member, word in result.writers.items()}

    def _remember_secrets(self, chunk: bytes, start: int, end: int) -> None:
        """Remember the secrets in a range of the file: an environment is often printed just before an error."""
        if len(self._secrets) < _MAX_SECRETS:
            self._secrets |= secrets_in(chunk[max(0, start) : end].decode("utf-8", "replace"))

    def _process_chunk(self, chunk: bytes) -> None:
        if self._tagging is None:
            sample = [piece for raw in chunk[:65536].split(b"\n")[:200] for piece in pieces(raw)]
            self._tagging = common_tagging(sample)
            self.found.first = next((moment for line in sample if (moment := moment_in(line)) is not None), None)
        if not self.found.lines:
            self._remember_secrets(chunk, 0, _HEAD_BYTES)
            self.found.is_binary = looks_binary(chunk)
        self.found.is_of_a_run = self.found.is_of_a_run or self._table.is_of_a_run(chunk)
        base, number, at = self.found.lines, 0, 0
        for start, end in self._spans(chunk):
            number += chunk.count(b"\n", at, start)
            at = start
            for piece in pieces(chunk[start:end]):
                self._searched += 1
                self._line(piece, base + number + 1, chunk, start)
        self.found.lines = base + chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        self._find_progress(chunk, base)
        self._record_last_lines(chunk, base)

    def _find_progress(self, chunk: bytes, base: int) -> None:
        """Remember the last lines in this chunk that count steps."""
        begin = max(0, len(chunk) - _PROGRESS_BYTES)
        starts = [match.start() for match in _PROGRESS.finditer(chunk, begin)][-_PROGRESS_LINES * 20 :]
        lines = dict.fromkeys(max(chunk.rfind(end, 0, start) for end in (b"\n", b"\r")) + 1 for start in starts)
        for start in list(lines)[-_PROGRESS_LINES:]:
            end = chunk.find(b"\n", start)
            text = chunk[start : end if 0 <= end < start + 300 else start + 300].decode("utf-8", "replace")
            self._progress.append((base + chunk.count(b"\n", 0, start) + 1, moment_in(text)))

    def _spans(self, chunk: bytes) -> Iterator[tuple[int, int]]:
        """Yield the lines to examine: every line while a block is open."""
        starts = self._finder.starts(chunk)
        at = next_at = 0
        while True:
            if not self._blocks.open:
                while next_at < len(starts) and starts[next_at] < at:
                    next_at += 1
                if next_at == len(starts):
                    return
                at = starts[next_at]
            if at >= len(chunk):
                return
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            yield at, end
            at = end + 1

    def _line(self, piece: str, number: int, chunk: bytes, start: int) -> None:
        assert self._tagging is not None
        tags, process, text = self._tagging.split(piece)
        if process and "nranks" in text and len(self.found.processes) < _MAX_WRITERS:
            rank = _NCCL_RANK.search(text)
            if rank is not None:
                self.found.processes.setdefault(process, int(rank[1]))
        joined_line = self._blocks.add_line(tags, text, number)
        if not joined_line.text:
            return
        # An exception may match a symptom by its message, otherwise by being an exception.
        match = self._table.match(text) if joined_line.exception else None
        match = match or self._table.match(joined_line.text)
        if match is None:
            if _ERROR_LIKE.search(joined_line.text) and not _HARMLESS.search(joined_line.text):
                self._errors.append((piece, number))
            return
        symptom, groups = match
        if symptom.kind is Kind.COMPLETION:
            self.found.completion = self._clean_line(piece, number, self._moment(piece, chunk, start))
            return
        if symptom.kind is Kind.CONSEQUENCE:
            self._errors.append((piece, number))
        writer = merge_members(joined_line.member, merge_members(tags, self.found.member))
        if writer.rank is None and process in self.found.processes:
            writer = replace(writer, rank=self.found.processes[process])
        member = _find_member(symptom, groups, writer, joined_line.member)
        key = self._count_key(symptom, member)
        if self.found.counts[key] > _MAX_OF_A_KIND and key in self._latest and not joined_line.first:
            # Of many lines of one kind, keep the first ones and the last time.
            self._seen_lines[self._latest[key]] = (self._searched, number)
        elif self._kept[symptom.kind] < _MAX_EVENTS:
            self._kept[symptom.kind] += 1
            if len(self.found.events) < _MAX_SECRET_RANGES:
                self._remember_secrets(chunk, start - _NEAR_BYTES, start + _NEAR_BYTES)
            moment = joined_line.moment or self._moment(piece, chunk, start)
            self._latest[key] = len(self.found.events)
            event = _event(symptom, groups, member, joined_line, self._clean_line(piece, number, moment), moment)
            meaning = self._table.meaning_of_codes(text)
            self.found.events.append(replace(event, evidence=(meaning,)) if meaning else event)
            self._seen_lines.append((self._searched, number))

    def _count_key(self, symptom: Symptom, member: LogProcess) -> tuple[str, LogProcess]:
        counts = self.found.counts
        key = (symptom.id, member if len(counts) < _MAX_WRITERS else LogProcess())
        counts[key] += 1
        return key

    def _clean_line(self, piece: str, number: int, moment: Moment | None) -> Line:
        return Line(self._name, number, scrub(piece)[:_SHOWN], moment.text if moment is not None else "")

    def _moment(self, piece: str, chunk: bytes, start: int) -> Moment | None:
        moment = moment_in(piece)
        end = start - 1
        for _ in range(_LOOK_BACK_LINES):
            if moment is not None or end <= 0:
                break
            begin = chunk.rfind(b"\n", 0, end) + 1
            moment = moment_in(chunk[begin : min(end, begin + 300)].decode("utf-8", "replace"))
            end = begin - 1
        return moment

    def _record_last_lines(self, chunk: bytes, base: int) -> None:
        """Record the writers of the last lines in this chunk, and the times."""
        end = len(chunk.rstrip())
        if end == 0:
            return
        start = chunk.rfind(b"\n", 0, end) + 1
        word = self._word(chunk, start, base)
        self._remember_secrets(chunk, start - _NEAR_BYTES, end)
        self.found.last = word.moment or self.found.last
        self.found.last_line = word.line
        last: dict[bytes, int] = {match[0]: match.start() for match in _WRITER.finditer(chunk)}
        assert self._tagging is not None
        for start in last.values():
            if len(self.found.writers) >= _MAX_WRITERS:
                break
            word = self._word(chunk, start, base)
            tags, _, _ = self._tagging.split(word.line.text)
            if tags:
                self.found.writers[merge_members(tags, self.found.member)] = word

    def _word(self, chunk: bytes, start: int, base: int) -> LastLine:
        end = chunk.find(b"\n", start)
        raw = chunk[start : end if end >= 0 else len(chunk)]
        piece = next(reversed(list(pieces(raw[-8000:]))), "")
        moment = self._moment(piece, chunk, start)
        return LastLine(self._clean_line(piece, base + chunk.count(b"\n", 0, start) + 1, moment), moment)


def _event(
    symptom: Symptom,
    groups: Mapping[str, str],
    member: LogProcess,
    joined_line: JoinedLine,
    line: Line,
    moment: Moment | None,
) -> Event:
    return Event(
        symptom,
        member,
        line,
        moment,
        joined_line.first,
        joined_line.frame,
        sequence=int(groups["sequence"]) if "sequence" in groups else None,
        operation=groups.get("operation", ""),
        enqueued=int(groups["enqueued"]) if "enqueued" in groups else None,
        peers=_numbers(groups.get("peers") or groups.get("peer", "")),
    )


def _numbers(text: str) -> tuple[int, ...]:
    found = (part.strip() for part in text.split(",")[:_MAX_PEERS])
    return tuple(int(part) for part in found if part.isascii() and part.isdecimal() and len(part) < 8)


def _find_member(symptom: Symptom, groups: Mapping[str, str], writer: LogProcess, about: LogProcess) -> LogProcess:
    """Return the process of the event: the writer, or the process that this line or an earlier one names."""
    if symptom.subject is Subject.JOB:
        return LogProcess()
    host = groups.get("host", "")
    process = LogProcess(
        rank=int(groups["rank"]) if "rank" in groups else None,
        local_rank=int(groups["local_rank"]) if "local_rank" in groups else None,
        host=host if is_hostname(host) and host != "localhost" else "",
        role=f"server {groups['index']}" if "index" in groups else "",
    )
    if symptom.subject is Subject.WRITER:
        return merge_members(process, writer)
    process = merge_members(process, about)
    # A process that the writer's line mentions is on the same node, but is not the writer itself.
    return (
        process
        if process.rank is not None or process.host or process.role
        else merge_members(process, LogProcess(host=writer.host))
    )
