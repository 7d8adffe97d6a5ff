"""Writing a document as JSON that every reader takes and no terminal stumbles over."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from preflight.lazy.patterns import lazy_pattern

#: Characters that a terminal may obey or hide: C1 controls, zero-width and bidirectional marks, line separators.
#: JSON itself escapes those below U+0020. None of them can stand outside a string of a JSON document.
_OBEYED = lazy_pattern("[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def to_bytes(value: Any, *, indent: int | None, bulk: str = "") -> bytes:
    """A report or recording as JSON in UTF-8: its dataclasses as objects, enumerations by value, tuples as lists.

    Without an indent it is one line. With one, every item of the list in the field `bulk`, which then stands last, is a
    line without blanks.

    It is what pydantic would write for the same classes (a test holds it to that), without the tenth of a second that
    pydantic takes to get ready, which is a third of a lint. Half of a surrogate pair, which a script may spell as
    an escape and UTF-8 cannot hold, becomes `?`.
    """
    data = plain(value)
    items = data.pop(bulk) if bulk and indent is not None else None
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if items is not None and indent is not None:
        edge = " " * indent
        lines = (json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items)
        listed = "[\n" + ",\n".join(edge * 2 + line for line in lines) + f"\n{edge}]" if items else "[]"
        text = f'{text[:-2]},\n{edge}"{bulk}": {listed}\n}}'
    written = text.encode("utf-8", "replace")
    return calm(written.decode()).encode() + b"\n"


def plain(value: Any) -> Any:
    """A value as what JSON knows: objects, lists, texts and numbers."""
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
    """JSON Schema (2020-12) of what `to_bytes` writes for a value of the adapter's class.

    With the mode `validation`, of what is read as one.
    """
    found: dict[str, Any] = adapter.json_schema(mode=mode)
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = title
    return found


def calm(document: str) -> str:
    """The same JSON document with characters that a terminal obeys written as escapes."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
