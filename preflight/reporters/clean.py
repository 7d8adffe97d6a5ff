"""Making text from files and nodes safe to show: no control character ever reaches a terminal or a page."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from preflight.job.hostname import folded, is_hostname

#: Control, format (also bidirectional overrides), surrogate, private use, line and paragraph separators.
_SHOWN_AS_ESCAPES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
#: Of names that cannot be folded so many are listed.
_MOST_NAMES = 12


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with tabs as single spaces (columns stay right) and control and format characters made visible."""
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    for character in text:
        if character == "\n" and keep_newlines:
            out.append(character)
        elif character in "\t\n\r":
            out.append(" ")
        elif unicodedata.category(character) in _SHOWN_AS_ESCAPES:
            out.append(_escape(ord(character)))
        else:
            out.append(character)
    return "".join(out)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def fold_nodes(names: Sequence[str]) -> str:
    """`node1,node2,node3,db` as `node[1-3],db`; what are no host names (files, pairs) is listed, if not too long.

    Only host names are handed on to be folded: in other text a bracket would be read as a range, of any size.
    """
    if len(names) <= 1:
        return clean(", ".join(names))
    if all(is_hostname(name) for name in names):
        return folded(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return clean(", ".join(names[:_MOST_NAMES])) + more
