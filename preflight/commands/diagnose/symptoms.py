"""The symptom tables of all packs and of the user, and which row a line matches.

A pack lists its tables in `symptoms`, as paths below its own folder; users may add files. Rows are
tried in order, and the first match wins. A table may also explain numbers (`codes`) and list texts that name possible
causes in general and are no evidence (`boilerplate`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from preflight._util import regular_file, toml
from preflight._util.usage_error import UsageError
from preflight.commands.diagnose.diagnosis import Certainty, Kind, Subject, Symptom
from preflight.commands.diagnose.log_lines import digitless
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
    """A symptom and how to recognise it: a needle must occur in the line (lower case), and the pattern must match.

    `shapes` are the needles without their digits.
    """

    symptom: Symptom
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    lines: tuple[str, ...] = ()
    shapes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Codes:
    """Numbers that a system writes instead of words: the group `code` of `pattern`, and a text for each number."""

    name: str
    needle: str
    pattern: re.Pattern[str]
    texts: Mapping[str, str]
    source: str


@dataclass(frozen=True, slots=True)
class Boilerplate:
    """Text that a system adds to every message of a kind. `pattern` matches it where it begins with `needle`."""

    needle: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Text that shows that a log is of a training run: a needle occurs (lower case), and the pattern matches."""

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
        for row in self._likely_rows(digitless(lower.encode("utf-8", "replace"))):
            for needle in row.needles:
                if needle in lower:
                    match = row.pattern.search(line)
                    if match is not None:
                        caught = {_plain(key): text for key, text in match.groupdict().items() if text is not None}
                        return row.symptom, caught
                    break
        return None

    def is_of_a_run(self, text: bytes) -> bool:
        """Return whether a part of a log shows that it is of a training run."""
        lower = text.lower()
        decoded = ""
        for row in self.evidence:
            if any(needle.encode() in lower for needle in row.needles):
                decoded = decoded or text.decode("utf-8", "replace")
                if row.pattern.search(decoded) is not None:
                    return True
        return False

    def meaning_of_codes(self, line: str) -> str:
        """Return what the numbers in a line mean, or ''."""
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


def known(own: Sequence[Path] = ()) -> Table:
    """Return the rows of the user's files, then those of every pack.

    Raises:
        UsageError: a file of the user is invalid. An invalid table of a pack is a bug and raises ValueError.
    """
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

    for path in own:
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
    """Parse the rows of one TOML document.

    Raises:
        ValueError: invalid TOML, or a row with a missing or unknown key; the message names both.
    """
    return parse_table(text, name).rows


def parse_table(text: str, name: str) -> Table:
    """Parse one TOML document.

    Raises:
        ValueError: invalid TOML, or an entry with a missing or unknown key; the message names both.
    """
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
    shapes = tuple(digitless(needle.encode()) for needle in needles)
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
    """Return every needle of these rows."""
    return frozenset(needle for row in rows for needle in row.needles)
