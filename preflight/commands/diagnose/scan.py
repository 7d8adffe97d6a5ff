"""Reads one log: its symptoms with processes and times, how far training came, and the last line of each writer."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from preflight._util.hostnames import is_hostname
from preflight._util.redaction import hide_secrets, scrub, secrets_in
from preflight.commands.diagnose.diagnosis import Event, Kind, Line, LogProcess, Moment, Subject, Symptom
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
)
from preflight.commands.diagnose.symptoms import Table

#: Number of events kept per file for one symptom of one process; the rest is counted.
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
#: Where to look for secrets that other lines may repeat: at the head of a file, and around this many events.
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
#: This many lines of progress after an error show that training goes on.
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

    `progress` is the third-to-last line that counts steps, so an error before it was followed by three of them;
    `last_progress` is the number of the last one.
    `completion` is the last line that reports a completed run.
    `is_of_a_run`: its text shows that it is of a training run.
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
        """Read the whole file. Memory is bounded, whatever the size of the file."""
        for chunk in chunks:
            if chunk:
                self._process_chunk(chunk)
        found = self.found
        found.ranks = self._blocks.ranks
        found.errors = [self._shown(piece, number, None) for piece, number in self._errors]
        found.progress = self._progress[0] if len(self._progress) == _PROGRESS_LINES else None
        found.last_progress = self._progress[-1][0] if self._progress else 0
        # The number of ordinary lines that follow is known only now.
        found.events = [
            replace(event, ordinary_after=max(0, found.lines - number - (self._searched - looked)))
            for event, (looked, number) in zip(found.events, self._seen_lines, strict=True)
        ]
        if self._secrets:
            self._hide(found)
        return found

    def _hide(self, found: ScanResult) -> None:
        """Hide a secret that one line revealed in all other lines as well."""
        secrets = sorted(self._secrets, key=len, reverse=True)

        def hidden(line: Line) -> Line:
            return replace(line, text=hide_secrets(line.text, secrets))

        found.events = [
            replace(event, line=hidden(event.line), frame=hide_secrets(event.frame, secrets)) for event in found.events
        ]
        found.errors = [hidden(line) for line in found.errors]
        found.last_line = hidden(found.last_line) if found.last_line is not None else None
        found.completion = hidden(found.completion) if found.completion is not None else None
        found.writers = {member: replace(word, line=hidden(word.line)) for member, word in found.writers.items()}

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
        self._last_words(chunk, base)

    def _find_progress(self, chunk: bytes, base: int) -> None:
        """Remember the last lines of this chunk that count steps."""
        begin = max(0, len(chunk) - _PROGRESS_BYTES)
        starts = [match.start() for match in _PROGRESS.finditer(chunk, begin)][-_PROGRESS_LINES * 20 :]
        lines = dict.fromkeys(max(chunk.rfind(end, 0, start) for end in (b"\n", b"\r")) + 1 for start in starts)
        for start in list(lines)[-_PROGRESS_LINES:]:
            end = chunk.find(b"\n", start)
            text = chunk[start : end if 0 <= end < start + 300 else start + 300].decode("utf-8", "replace")
            self._progress.append((base + chunk.count(b"\n", 0, start) + 1, moment_in(text)))

    def _spans(self, chunk: bytes) -> Iterator[tuple[int, int]]:
        """Return the lines to examine; every line while a block is open."""
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
            self.found.completion = self._shown(piece, number, self._moment(piece, chunk, start))
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
            event = _event(symptom, groups, member, joined_line, self._shown(piece, number, moment), moment)
            meaning = self._table.meaning_of_codes(text)
            self.found.events.append(replace(event, evidence=(meaning,)) if meaning else event)
            self._seen_lines.append((self._searched, number))

    def _count_key(self, symptom: Symptom, member: LogProcess) -> tuple[str, LogProcess]:
        """Return the key under which an event is counted."""
        counts = self.found.counts
        key = (symptom.id, member if len(counts) < _MAX_WRITERS else LogProcess())
        counts[key] += 1
        return key

    def _shown(self, piece: str, number: int, moment: Moment | None) -> Line:
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

    def _last_words(self, chunk: bytes, base: int) -> None:
        """Record who wrote the last lines of this chunk, and when."""
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
        return LastLine(self._shown(piece, base + chunk.count(b"\n", 0, start) + 1, moment), moment)


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
    """Return the ranks in `1, 5`."""
    found = (part.strip() for part in text.split(",")[:_MAX_PEERS])
    return tuple(int(part) for part in found if part.isascii() and part.isdecimal() and len(part) < 8)


def _find_member(symptom: Symptom, groups: Mapping[str, str], writer: LogProcess, about: LogProcess) -> LogProcess:
    """Return the process of the event: the writer, or the process that this line or an earlier one names."""
    if symptom.subject is Subject.JOB:
        return LogProcess()
    host = groups.get("host", "")
    stated = LogProcess(
        rank=int(groups["rank"]) if "rank" in groups else None,
        local_rank=int(groups["local_rank"]) if "local_rank" in groups else None,
        host=host if is_hostname(host) and host != "localhost" else "",
        role=f"server {groups['index']}" if "index" in groups else "",
    )
    if symptom.subject is Subject.WRITER:
        return merge_members(stated, writer)
    stated = merge_members(stated, about)
    # A process that another line of the same node mentions is on that node, but is not the writer itself.
    return (
        stated
        if stated.rank is not None or stated.host or stated.role
        else merge_members(stated, LogProcess(host=writer.host))
    )
