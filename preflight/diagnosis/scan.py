"""Reading one log: which symptoms it shows, of whom, when; and who spoke last."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from preflight.diagnosis.blocks import Blocks, Told
from preflight.diagnosis.lines import Finder, pieces
from preflight.diagnosis.model import Event, Kind, Line, Moment, Party, Subject, Symptom
from preflight.diagnosis.moments import moment_in
from preflight.diagnosis.parties import Tagging, joined, tagging_of
from preflight.diagnosis.table import Table
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.redact import scrub

#: Of one symptom of one party so many events are kept of a file; the rest are counted.
_MOST_OF_A_KIND = 3
#: So many causes and so many consequences are kept of a file.
_MOST_EVENTS = 5000
#: So many writers of one file are told apart.
_MOST_WRITERS = 20_000
#: So far back is looked for a time where a line has none.
_LOOK_BACK_LINES = 40
_SHOWN = 600
#: What a line says that looks like an error and is in no table; told where nothing better is known.
_ERROR_LIKE = lazy_pattern(
    r"(?i)^@exception|\b(?:error|fatal|critical|panic|aborted|segfault|assertion failed|core dumped|failed)\b"
)
_HARMLESS = lazy_pattern(
    r"(?i)warning|\b(?:no|0|zero|without) errors?\b|error[ _]?(?:rate|bound)\b|\berror[:=] ?[0-9.]+"
)
_WRITER = lazy_pattern(
    rb"(?m)^(?:\[[A-Za-z_]{0,40}\d{1,6}\]:|\[[\w.@-]{1,200},\d{1,6}\]<\w{3,8}>:| {0,5}\d{1,6}: |\[\d{1,6}\] |"
    rb"\[pod/[^\]\n]{1,300}\] |\([\w.:<>-]{1,100} pid=\d{1,10}(?:, ip=[\w.:-]{1,100})?\) )"
)
_NCCL_RANK = lazy_pattern(r"NCCL INFO .{0,300}?\brank (\d{1,7}) nranks (\d{1,7})")


@dataclass(frozen=True, slots=True)
class Word:
    """The last line that somebody wrote."""

    line: Line
    moment: Moment | None


@dataclass(slots=True)
class Scanned:
    """What one file holds."""

    party: Party
    lines: int = 0
    first: Moment | None = None
    last: Moment | None = None
    last_line: Line | None = None
    events: list[Event] = field(default_factory=list)
    counts: Counter[tuple[str, Party]] = field(default_factory=Counter)
    errors: list[Line] = field(default_factory=list)
    writers: dict[Party, Word] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)
    ranks: dict[tuple[str, int], int] = field(default_factory=dict)


class Scanner:
    """Takes the chunks of one file; what it found stands in `found`."""

    def __init__(self, table: Table, finder: Finder, name: str, party: Party) -> None:
        self._table, self._finder, self._name = table, finder, name
        self.found = Scanned(party)
        self._tagging: Tagging | None = None
        self._blocks = Blocks()
        #: For each event, how many lines had been looked at when it was told last, and the number of that line.
        self._told: list[tuple[int, int]] = []
        self._errors: deque[tuple[str, int]] = deque(maxlen=4)
        self._kept: Counter[Kind] = Counter()
        self._latest: dict[tuple[str, Party], int] = {}
        self._looked = 0

    def read(self, chunks: Iterable[bytes]) -> Scanned:
        """The whole file. Its memory is bounded, whatever the size of the file."""
        for chunk in chunks:
            if chunk:
                self._take(chunk)
        found = self.found
        found.ranks = self._blocks.ranks
        found.errors = [self._shown(piece, number, None) for piece, number in self._errors]
        # How much of an ordinary kind follows is known only now.
        found.events = [
            replace(event, ordinary_after=max(0, found.lines - number - (self._looked - looked)))
            for event, (looked, number) in zip(found.events, self._told, strict=True)
        ]
        return found

    def _take(self, chunk: bytes) -> None:
        if self._tagging is None:
            sample = [piece for raw in chunk[:65536].split(b"\n")[:200] for piece in pieces(raw)]
            self._tagging = tagging_of(sample)
            self.found.first = next((moment for line in sample if (moment := moment_in(line)) is not None), None)
        base, number, at = self.found.lines, 0, 0
        for start, end in self._spans(chunk):
            number += chunk.count(b"\n", at, start)
            at = start
            for piece in pieces(chunk[start:end]):
                self._looked += 1
                self._line(piece, base + number + 1, chunk, start)
        self.found.lines = base + chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        self._last_words(chunk, base)

    def _spans(self, chunk: bytes) -> Iterator[tuple[int, int]]:
        """The lines worth a look; while a block is open, every line."""
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
        if process and "nranks" in text and len(self.found.processes) < _MOST_WRITERS:
            rank = _NCCL_RANK.search(text)
            if rank is not None:
                self.found.processes.setdefault(process, int(rank[1]))
        told = self._blocks.take(tags, text, number)
        if not told.text:
            return
        # An exception may be known by its own words; where it is not, by being one.
        match = self._table.match(text) if told.exception else None
        match = match or self._table.match(told.text)
        if match is None:
            if _ERROR_LIKE.search(told.text) and not _HARMLESS.search(told.text):
                self._errors.append((piece, number))
            return
        symptom, groups = match
        if symptom.kind is Kind.CONSEQUENCE:
            self._errors.append((piece, number))
        writer = joined(told.party, joined(tags, self.found.party))
        if writer.rank is None and process in self.found.processes:
            writer = replace(writer, rank=self.found.processes[process])
        party = _named(symptom, groups, writer, told.party)
        key = self._counted(symptom, party)
        if self.found.counts[key] > _MOST_OF_A_KIND and key in self._latest and not told.first:
            # Of many lines of one kind the first ones count, and how far they went on.
            self._told[self._latest[key]] = (self._looked, number)
        elif self._kept[symptom.kind] < _MOST_EVENTS:
            self._kept[symptom.kind] += 1
            moment = told.moment or self._moment(piece, chunk, start)
            self._latest[key] = len(self.found.events)
            self.found.events.append(_event(symptom, groups, party, told, self._shown(piece, number, moment), moment))
            self._told.append((self._looked, number))

    def _counted(self, symptom: Symptom, party: Party) -> tuple[str, Party]:
        """What an event is counted under."""
        counts = self.found.counts
        key = (symptom.id, party if len(counts) < _MOST_WRITERS else Party())
        counts[key] += 1
        return key

    def _shown(self, piece: str, number: int, moment: Moment | None) -> Line:
        return Line(self._name, number, scrub(piece[:_SHOWN]), moment.text if moment is not None else "")

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
        """Who wrote the last lines of this chunk, and when."""
        end = len(chunk.rstrip())
        if end == 0:
            return
        start = chunk.rfind(b"\n", 0, end) + 1
        word = self._word(chunk, start, base)
        self.found.last = word.moment or self.found.last
        self.found.last_line = word.line
        last: dict[bytes, int] = {match[0]: match.start() for match in _WRITER.finditer(chunk)}
        assert self._tagging is not None
        for start in last.values():
            if len(self.found.writers) >= _MOST_WRITERS:
                break
            word = self._word(chunk, start, base)
            tags, _, _ = self._tagging.split(word.line.text)
            if tags:
                self.found.writers[joined(tags, self.found.party)] = word

    def _word(self, chunk: bytes, start: int, base: int) -> Word:
        end = chunk.find(b"\n", start)
        raw = chunk[start : end if end >= 0 else len(chunk)]
        piece = next(reversed(list(pieces(raw[-8000:]))), "")
        moment = self._moment(piece, chunk, start)
        return Word(self._shown(piece, base + chunk.count(b"\n", 0, start) + 1, moment), moment)


def _event(
    symptom: Symptom, groups: Mapping[str, str], party: Party, told: Told, line: Line, moment: Moment | None
) -> Event:
    return Event(
        symptom,
        party,
        line,
        moment,
        told.first,
        told.frame,
        sequence=int(groups["sequence"]) if "sequence" in groups else None,
        operation=groups.get("operation", ""),
        peer=int(groups["peer"]) if "peer" in groups else None,
    )


def _named(symptom: Symptom, groups: Mapping[str, str], writer: Party, about: Party) -> Party:
    """Of whom the event is: of the writer, or of whom the line, or one before it, names."""
    if symptom.subject is Subject.JOB:
        return Party()
    host = groups.get("host", "")
    said = Party(
        rank=int(groups["rank"]) if "rank" in groups else None,
        local_rank=int(groups["local_rank"]) if "local_rank" in groups else None,
        host=host if is_hostname(host) and host != "localhost" else "",
        role=f"server {groups['index']}" if "index" in groups else "",
    )
    if symptom.subject is Subject.WRITER:
        return joined(said, writer)
    said = joined(said, about)
    # A process that another line of the same node speaks of is on that node, but it is not the writer itself.
    return said if said.rank is not None or said.host or said.role else joined(said, Party(host=writer.host))
