"""TOML by the standard library's reader, which Python 3.10 has as the package tomli.

TOML as plain values, and the location of each of them in the text: for messages about files that people write.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from preflight._util.spans import Places as Lines

_reader: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

TOMLDecodeError: type[ValueError] = _reader.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """The document as plain values. Raises TOMLDecodeError, or RecursionError for values that are nested too deeply."""
    found: dict[str, Any] = _reader.loads(text)
    return found


def load(path: Path) -> dict[str, Any]:
    """The same of a file. Raises OSError as well."""
    return loads(path.read_text(encoding="utf-8"))


def with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with its arrays as tuples: the fields of a frozen value."""
    return {key: tuple(item) if isinstance(item, list) else item for key, item in table.items()}


#: The path to a value: keys of tables and indexes in arrays.
KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t\r\n]*(?:#[^\n]*(?:\n[ \t\r\n]*|\Z))*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
_PLAIN = re.compile(r"[^,\]}#\n]*")
#: A key or table name of more than 32 parts: reading it takes time and memory with the square of its parts, and no real
#: document has one.
_DEEP_KEY = re.compile(
    r"""(?:^|[{,\[])[ \t]*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
    r"""(?:[ \t]*\.[ \t]*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')){32})""",
    re.MULTILINE,
)
_LINE_OF_ERROR = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class TomlError(Exception):
    """The text is not valid TOML; carries the position, counted from 1, and the reason."""

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(f"{line}:{column}: {reason}")
        self.line, self.column, self.reason = line, column, reason


def parse(text: str) -> dict[str, Any]:
    """The document as plain values.

    Raises:
        TomlError: it is not valid TOML.
    """
    if deep := _DEEP_KEY.search(text):
        start = deep.start(1)
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        raise TomlError(line, column, "a key of more than 32 parts")
    try:
        found: dict[str, Any] = loads(text)
    except TOMLDecodeError as error:
        message = str(error)
        place = _LINE_OF_ERROR.search(message)
        last = text.count("\n") + 1
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (last, 1)
        raise TomlError(line, column, (message[: place.start()] if place else message).strip().rstrip(".")) from None
    except RecursionError:
        raise TomlError(1, 1, "values are nested too deeply") from None
    except ValueError as error:
        # A number with more digits than Python converts.
        raise TomlError(1, 1, str(error)) from None
    return found


@dataclass(slots=True)
class Places:
    """Line and column, counted from 1, of every key and value of a document that `loads` accepts."""

    text: str
    keys: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    values: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    _tables: dict[KeyPath, int] = field(default_factory=dict)
    _lines: Lines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = Lines("", self.text)
        at, current = self._skip(0), KeyPath()
        while at < len(self.text):
            start = at
            if self.text.startswith("[", at):
                many = self.text.startswith("[[", at)
                at, names = self._read_key(at + (2 if many else 1))
                current = self._within(names, many=many)
                self.keys.setdefault(current, self._place(start))
                # To the end of the line: closing brackets and perhaps a comment.
                end = self.text.find("\n", at)
                at = len(self.text) if end < 0 else end
            else:
                at = self._read_pair(at, current)
            at = max(self._skip(at), start + 1)

    def of(self, path: KeyPath, *, value: bool = False) -> tuple[int, int]:
        """The position of `path`, otherwise of the nearest item around it: its key or, with `value`, its value."""
        while path:
            found = (self.values.get(path) if value else None) or self.keys.get(path) or self.values.get(path)
            if found:
                return found
            path = path[:-1]
        return (1, 1)

    def _within(self, names: tuple[str, ...], *, many: bool) -> KeyPath:
        path: KeyPath = ()
        for number, name in enumerate(names, 1):
            path = (*path, name)
            if many and number == len(names):
                self._tables[path] = self._tables.get(path, -1) + 1
            if path in self._tables:
                path = (*path, self._tables[path])
        return path

    def _read_pair(self, at: int, table: KeyPath) -> int:
        place = self._place(at)
        at, names = self._read_key(at)
        for number in range(1, len(names) + 1):
            self.keys.setdefault((*table, *names[:number]), place)
        at = self._space(at)
        if not self.text.startswith("=", at):
            return at + 1
        return self._read_value(self._space(at + 1), (*table, *names))

    def _read_key(self, at: int) -> tuple[int, tuple[str, ...]]:
        names: list[str] = []
        while True:
            at = self._space(at)
            found = _STRING.match(self.text, at) or _BARE_KEY.match(self.text, at)
            if found is None:
                return at, tuple(names)
            word = found[0]
            names.append(next(iter(parse(f"{word} = 0"))) if word[0] in "\"'" else word)
            at = self._space(found.end())
            if not self.text.startswith(".", at):
                return at, tuple(names)
            at += 1

    def _read_value(self, at: int, path: KeyPath) -> int:
        self.values[path] = self._place(at)
        opening = self.text[at : at + 1]
        if opening == "[":
            at = self._skip(at + 1)
            number = 0
            while at < len(self.text) and self.text[at] != "]":
                at = self._skip(self._read_value(at, (*path, number)))
                number += 1
                at = self._skip(at + 1) if self.text.startswith(",", at) else at
            return at + 1
        if opening == "{":
            at = self._skip(at + 1)
            while at < len(self.text) and self.text[at] != "}":
                at = self._skip(self._read_pair(at, path))
                at = self._skip(at + 1) if self.text.startswith(",", at) else at
            return at + 1
        found = _STRING.match(self.text, at) or _PLAIN.match(self.text, at)
        return found.end() if found and found.end() > at else at + 1

    def _skip(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at

    def _space(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def _place(self, at: int) -> tuple[int, int]:
        span = self._lines.span(at, at)
        return span.line, span.column


def value_at(document: Mapping[str, Any], path: KeyPath) -> Any:
    """The value of a document at `path`; None if there is none."""
    found: Any = document
    for step in path:
        if isinstance(found, Mapping):
            found = found.get(str(step))
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return None
    return found
