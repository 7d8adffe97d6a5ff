"""Finds secrets in blocks of YAML, also inside a log: the value is below its name, or after a tag.

    api_key: !!str X        tokens:           - name: HF_TOKEN       ? password
                              prod: X           value: |-            : X
                                                  X

The module is sent to nodes: Python 3.8 and the standard library.
"""

from __future__ import annotations

import re

from preflight._util.secret_names import is_plain, is_secret, looks_random

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from re import Match

#: One line: its indentation with the dashes of items, a key, and what follows the colon.
_LINE = re.compile(
    r"(?P<indent>[ \t]{0,200}(?:-[ \t]{1,20}){0,10})"
    r"(?:(?P<key>\"(?:[^\"\\\n]|\\.){1,200}\"|'[^'\n]{1,200}'|[A-Za-z_.][\w.-]{0,200})"
    r"[ \t]{0,20}:(?=\s|$)[ \t]{0,200})?"
    r"(?P<tags>(?:[!&][^\s]{0,200}[ \t]{1,20}){0,3})(?P<rest>[^\n]{0,4000})"
)
_COMPLEX_KEY = re.compile(r"[ \t]{0,200}\?[ \t]{1,20}[\"']?(?P<key>[\w.-]{1,200})[\"']?[ \t]{0,200}$")
_COMPLEX_VALUE = re.compile(r"[ \t]{0,200}:[ \t]{1,20}[\"']?(?P<rest>[^\s\"']{1,4000})")
#: A tag, an anchor or the sign of a folded text if the value is on the following lines.
_BELOW = re.compile(r"(?:[!&]\S{0,200})?[ \t]{0,20}(?:[|>][-+0-9]{0,3})?[ \t]{0,20}(?:#.{0,400})?$")
#: Names of tables that may hold secrets or token counts: each value is judged by itself.
_TABLES = ("tokens", "keys")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")


def in_blocks(text: str) -> Iterator[tuple[int, int]]:
    """The values in blocks of YAML whose names are those of secrets; other lines are skipped."""
    #: The indentation of the name whose block value contains the line; -1 outside of a block.
    owner = -1
    folded = of_table = False
    named = requested = ""
    start = 0
    for line in text.split("\n"):
        begin, start = start, start + len(line) + 1
        if not line.strip():
            continue
        complex_value = _COMPLEX_VALUE.match(line) if requested else None
        if complex_value is not None:
            yield from _shown(complex_value, begin, requested)
        complex_key = _COMPLEX_KEY.match(line) if "?" in line else None
        requested = complex_key["key"] if complex_key is not None and is_secret(complex_key["key"]) else ""
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        if owner >= 0:
            if indent > owner:
                # `secretKeyRef: {name: ..., key: ...}`, spread over lines: the location of a secret is not a secret.
                about = bool(match["key"]) and not is_secret("secret_" + _decoded(match["key"]))
                if not about and (not of_table or looks_random(match["rest"].strip().strip("\"'"))):
                    yield from _shown(match, begin, "" if folded else "secret")
                continue
            owner = -1
        key = _decoded(match["key"] or "")
        if not key:
            continue
        if key == "name":
            named = match["rest"].strip().strip("\"'")
        secret = is_secret(key) or (key == "value" and is_secret(named))
        of_table = not secret and key.casefold().endswith(_TABLES)
        if (secret or of_table) and _BELOW.match(match["tags"] + match["rest"]):
            # Items may have the same indentation as their key.
            owner, folded = len(line) - len(line.lstrip(" \t")), "|" in match["rest"] or ">" in match["rest"]
        elif secret and (match["tags"] or key != (match["key"] or "").strip("\"'")):
            yield from _shown(match, begin, key)


def _shown(match: Match[str], begin: int, name: str) -> Iterator[tuple[int, int]]:
    """The span of a line's value, unless it can be shown; without a name it is part of a longer value."""
    start = match.start("rest")
    value = match["rest"].rstrip()
    bare = value.strip("\"'")
    plain = is_plain(name, bare) or bare.replace(".", "", 1).lstrip("-").isdecimal() if name else not value
    if not plain and (not name or " " not in bare):
        skipped = len(value) - len(value.lstrip("\"'"))
        yield begin + start + skipped, begin + start + skipped + len(bare)


def _decoded(key: str) -> str:
    """A key without quotes, with its escapes decoded."""
    bare = key.strip("\"'")
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), bare) if "\\" in bare else bare
