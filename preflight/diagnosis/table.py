"""The tables of symptoms that packs of rules and checks bring along, read once, and which row a line matches.

A pack names its tables in `SYMPTOMS` beside `PACK`, as paths below its own folder; the user may name files of their
own. Rows are asked in the order in which they stand: the first that matches a line takes it.
"""

from __future__ import annotations

import enum
import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from preflight import catalog
from preflight.diagnosis.lines import digitless
from preflight.diagnosis.model import Certainty, Kind, Subject, Symptom
from preflight.errors import UsageError
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

SCHEMA = 1
_ID = lazy_pattern(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_KEYS = {"id", "kind", "certainty", "subject", "systems", "needles", "pattern", "meaning", "remedy"} | {
    "told_by", "beyond", "explains", "passes", "sources", "lines",
}  # fmt: skip
#: Named groups that a pattern may have; each becomes part of the event. A name may be numbered: `rank_2`.
GROUPS = {"rank", "local_rank", "host", "index", "peer", "sequence", "operation"}
#: Of so many shapes of lines it is remembered which rows they may show.
_MOST_SHAPES = 20_000
_Word = TypeVar("_Word", bound=enum.Enum)


@dataclass(frozen=True, slots=True)
class Row:
    """A symptom with how it is recognised: a needle must stand in the line (in lower case), and the pattern match.

    `shapes` are the needles without their digits.
    """

    symptom: Symptom
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    lines: tuple[str, ...] = ()
    shapes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, in the order in which they are asked."""

    rows: tuple[Row, ...]
    _likely: dict[bytes, tuple[Row, ...]] = field(default_factory=dict, repr=False, compare=False)

    def match(self, line: str) -> tuple[Symptom, Mapping[str, str]] | None:
        """The first symptom that a line shows, with what the named groups of its pattern caught."""
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

    def _likely_rows(self, shape: bytes) -> tuple[Row, ...]:
        """The rows of which a needle may stand in lines of this shape; lines of a log have few of them."""
        found = self._likely.get(shape)
        if found is None:
            found = tuple(row for row in self.rows if any(needle in shape for needle in row.shapes))
            if len(self._likely) >= _MOST_SHAPES:
                self._likely.clear()
            self._likely[shape] = found
        return found


def known(own: Sequence[Path] = ()) -> Table:
    """The rows of every pack, and before them those of the user's own files.

    Raises:
        UsageError: a file of the user's cannot be used. A pack's own table that cannot is a bug, and raises ValueError.
    """
    rows: list[Row] = []
    for path in own:
        try:
            rows.extend(parse(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        except ValueError as error:
            raise UsageError(str(error)) from None
    for module, names in catalog.symptom_tables().items():
        folder = resources.files(module)
        for name in names:
            rows.extend(parse(folder.joinpath(name).read_text("utf-8"), name))
    twice = {row.symptom.id for row in rows} if len({row.symptom.id for row in rows}) < len(rows) else set()
    for name in sorted(twice):
        if sum(row.symptom.id == name for row in rows) > 1:
            raise UsageError(f"two tables have a symptom {name!r}; ids are used once")
    return Table(tuple(rows))


def parse(text: str, name: str) -> tuple[Row, ...]:
    """The rows of one TOML document.

    Raises:
        ValueError: it is no TOML, or a row lacks something or holds something unknown; the message names both.
    """
    # The standard library has it from 3.11 on; before, tomli is the same code under another name.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ValueError(f"{name} is no TOML: {error}") from None
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{name}: `schema = {SCHEMA}` is expected")
    rows = document.get("symptom", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name}: symptoms are tables, `[[symptom]]`")
    return tuple(_row(row, f"{name}: symptom {row.get('id', f'no. {at}')!r}") for at, row in enumerate(rows, 1))


def _row(row: dict[str, Any], where: str) -> Row:
    if unknown := sorted(set(row) - _KEYS):
        raise ValueError(f"{where} has unknown keys: {', '.join(unknown)}")
    name = row.get("id")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ValueError(f"{where}: id is expected as words in lower case with hyphens")
    try:
        pattern = re.compile(_text(row, "pattern", where))
    except re.error as error:
        raise ValueError(f"{where}: pattern: {error}") from None
    if strange := sorted(set(map(_plain, pattern.groupindex)) - GROUPS):
        raise ValueError(f"{where}: pattern has groups that mean nothing: {', '.join(strange)}")
    needles = _texts(row, "needles", where)
    if not needles or any(needle != needle.lower() or len(needle) < 3 for needle in needles):
        raise ValueError(f"{where}: needles are expected, in lower case and of three characters at least")
    symptom = Symptom(
        id=name,
        kind=_word(row, "kind", Kind, where),
        certainty=_word(row, "certainty", Certainty, where, Certainty.NAMED),
        subject=_word(row, "subject", Subject, where, Subject.WRITER),
        meaning=_text(row, "meaning", where),
        remedy=_text(row, "remedy", where),
        systems=_texts(row, "systems", where),
        sources=_texts(row, "sources", where),
        told_by=_texts(row, "told_by", where),
        beyond=str(row.get("beyond", "")),
        explains=_texts(row, "explains", where),
        passes=row.get("passes") is True,
    )
    if not symptom.systems or not symptom.sources:
        raise ValueError(f"{where}: systems and sources are expected")
    shapes = tuple(digitless(needle.encode()) for needle in needles)
    return Row(symptom, needles, pattern, _texts(row, "lines", where), shapes)


def _plain(group: str) -> str:
    return group.rstrip("0123456789").rstrip("_")


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} is expected as a text")
    return value


def _texts(row: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{where}: {key} is expected as a list of texts")
    return tuple(value)


def _word(row: dict[str, Any], key: str, kind: type[_Word], where: str, default: _Word | None = None) -> _Word:
    value = row.get(key)
    if value is None and default is not None:
        return default
    for word in kind:
        if word.value == value:
            return word
    raise ValueError(f"{where}: {key} is one of {', '.join(str(word.value) for word in kind)}, not {value!r}")


def needles_of(rows: Iterable[Row]) -> frozenset[str]:
    """Every needle of these rows."""
    return frozenset(needle for row in rows for needle in row.needles)
