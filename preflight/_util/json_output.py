"""Writes documents as JSON that every reader accepts and that is safe to show on a terminal."""

from __future__ import annotations

import enum
import functools
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

#: Characters that a terminal may obey or hide: C1 controls, zero-width and bidirectional marks, line separators.
#: JSON itself escapes those below U+0020. None of them can stand outside a string of a JSON document.
_TERMINAL_CONTROLS = re.compile("[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def to_bytes(value: Any, *, indent: int | None, bulk: Sequence[str] = ()) -> bytes:
    """Return a report or recording as JSON in UTF-8: dataclasses become objects, enumerations their values, tuples
    lists.

    Without an indent the result is one line. With an indent, every item of the lists in the fields `bulk` is a line:
    there may be thousands, and the encoder that indents is twenty times slower.

    The result equals pydantic's for the same classes (a test compares them), without pydantic's start-up time of a
    tenth of a second, which is a third of a lint. A lone surrogate, which a script may write as an escape and UTF-8
    cannot encode, becomes `?`.
    """
    if indent is None or not is_dataclass(value):
        return _bytes(json.dumps(plain(value), indent=indent, ensure_ascii=False)) + b"\n"
    # Piece by piece: a report of ten thousand jobs takes ten times its own size as objects. A buffer, unlike a joined
    # list of pieces, holds it once.
    written = io.BytesIO()
    for piece in _pieces(value, indent, bulk):
        written.write(_bytes(piece))
    written.write(b"\n")
    return written.getvalue()


def _pieces(value: Any, indent: int, bulk: Sequence[str]) -> Iterator[str]:
    """Yield the output of `json.dumps` for a dataclass item by item, with one line for each item of lists in `bulk`."""
    edge, sign = " " * indent, "{"
    for name in _field_names(value.__class__):
        found = getattr(value, name)
        yield f'{sign}\n{edge}"{name}": '
        sign = ","
        if not isinstance(found, (tuple, list)) or not found:
            yield _indent(found, indent).replace("\n", f"\n{edge}")
            continue
        before = "["
        for item in found:
            short = json.dumps(plain(item), ensure_ascii=False) if name in bulk else ""
            yield f"{before}\n{edge * 2}" + (short or _indent(item, indent).replace("\n", f"\n{edge * 2}"))
            before = ","
        yield f"\n{edge}]"
    yield "\n}"


def _indent(value: Any, indent: int) -> str:
    # A line end inside a string is an escape: only those between values are replaced by the caller.
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def _bytes(text: str) -> bytes:
    return escape_control_chars(text.encode("utf-8", "replace").decode()).encode()


def plain(value: Any) -> Any:
    """Convert a value to JSON's types: objects, lists, strings and numbers."""
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return {name: plain(getattr(value, name)) for name in _field_names(value.__class__)}


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def schema_of(adapter: Any, title: str, *, mode: str = "serialization") -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `to_bytes`' output for the adapter's class, or (`validation`) its input."""
    found: dict[str, Any] = adapter.json_schema(mode=mode)
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = title
    return found


def escape_control_chars(document: str) -> str:
    """Return the JSON document with characters that control a terminal written as escapes."""
    return _TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
