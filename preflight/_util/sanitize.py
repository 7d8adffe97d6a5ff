"""Makes text from files and nodes safe to show: no control character ever reaches a terminal or a page."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from preflight._util.hostnames import folded, is_hostname
from preflight._util.sequences import join_some

#: Control, format (also bidirectional overrides), surrogate, private use, line and paragraph separators.
_SHOWN_AS_ESCAPES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
#: Largest number of listed names that cannot be folded.
_MAX_NAMES = 12


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """Return `text` with tabs as single spaces (to keep columns aligned) and control characters made visible."""
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


#: Commands that CI runners obey. GitHub: lines that begin with `::` after any blanks, and `##[` anywhere; Azure and
#: TeamCity: `##vso[` and `##teamcity[` anywhere. GitLab's section markers need control characters.
LINE_START_COMMAND = re.compile(r"(?m)^([^\S\n]*):(?=:)")
INLINE_COMMAND = re.compile(r"(?i)(?<=#)#(?=(?:vso|teamcity)?\[)")


def neutralize_commands(text: str) -> str:
    """Return `text` without effective commands to CI runners, which a container in a job cannot detect."""
    if "::" in text:
        text = LINE_START_COMMAND.sub(r"\1: ", text)
    return INLINE_COMMAND.sub(" #", text) if "##" in text else text


def printable(text: str) -> str:
    """Return `text` of several lines in printable form: without control characters and commands to a CI runner."""
    return neutralize_commands(clean(text, keep_newlines=True))


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def fold_nodes(names: Sequence[str]) -> str:
    """Fold `node1,node2,node3,db` to `node[1-3],db`; other strings are listed: brackets would be parsed as ranges."""
    if len(names) <= 1:
        return clean(", ".join(names))
    if all(is_hostname(name) for name in names):
        return folded(names)
    return clean(join_some(names, _MAX_NAMES))
