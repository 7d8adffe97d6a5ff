"""Writing a document as JSON that every reader takes and no terminal stumbles over."""

from __future__ import annotations

import json
import re
from typing import Any

#: Characters that a terminal may obey or hide: C1 controls, zero-width and bidirectional marks, line separators.
#: JSON itself escapes those below U+0020. None of them can stand outside a string of a JSON document.
_OBEYED = re.compile("[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def to_bytes(adapter: Any, value: Any, *, indent: int) -> bytes:
    """`value` as its pydantic `adapter` writes it, in UTF-8.

    Half of a surrogate pair, which a script may spell as an escape and UTF-8 cannot hold, becomes `?`.
    """
    try:
        written = bytes(adapter.dump_json(value, indent=indent))
    except ValueError:
        plain = adapter.dump_python(value, mode="json")
        written = json.dumps(plain, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    return calm(written.decode()).encode() + b"\n"


def schema_of(adapter: Any, title: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of what `to_bytes` writes with this adapter."""
    found: dict[str, Any] = adapter.json_schema(mode="serialization")
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["title"] = title
    return found


def calm(document: str) -> str:
    """The same JSON document with characters that a terminal obeys written as escapes."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
