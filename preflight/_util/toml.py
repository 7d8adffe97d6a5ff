"""TOML by the standard library's reader, which Python 3.10 has as the package tomli."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

_reader: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

TOMLDecodeError: type[ValueError] = _reader.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """Return the document as plain values. Raises TOMLDecodeError, or RecursionError if nested too deeply."""
    found: dict[str, Any] = _reader.loads(text)
    return found


def load(path: Path) -> dict[str, Any]:
    """Return the document in a file, as `loads` does. Raises OSError as well."""
    return loads(path.read_text(encoding="utf-8"))


@functools.cache
def beside(module_file: str, name: str) -> dict[str, Any]:
    """Return the table of a file beside a module (`__file__`). It is read once; callers do not change it."""
    return load(Path(module_file).parent / name)


def words(module_file: str, name: str, key: str) -> frozenset[str]:
    """Return the words in the string `key` of a TOML file next to a module."""
    return frozenset(beside(module_file, name)[key].split())


def with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with its arrays as tuples: the fields of a frozen value."""
    return {key: tuple(item) if isinstance(item, list) else item for key, item in table.items()}


#: The path to a value: keys of tables and indexes in arrays.
KeyPath: TypeAlias = tuple[str | int, ...]

#: A key or table name of more than 32 parts: reading one takes time and memory with the square of its parts, and no
#: real document contains one.
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
    """Return the document as plain values. Raises TomlError."""
    if deep := _DEEP_KEY.search(text):
        start = deep.start(1)
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        raise TomlError(line, column, "a key of more than 32 parts")
    try:
        document: dict[str, Any] = loads(text)
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
    return document
