"""Comments that take a finding out of the verdict: `# preflight: ignore[ID or name, ...] reason`."""

from __future__ import annotations

import re

from preflight.job import Suppression, span_of

_COMMENT = r"(?P<sign>{sign})\s*preflight:\s*ignore\[(?P<names>[^\]\n]*)\](?P<reason>[^\n]*)"


def suppressions_in(path: str, text: str, *, sign: str = "#") -> tuple[Suppression, ...]:
    """The suppressions of a file whose comments begin with `sign`.

    Behind something it speaks of its own line, alone on a line of the next line that is no comment.
    """
    if "preflight:" not in text:
        return ()
    found = []
    lines = text.split("\n")
    for match in re.finditer(_COMMENT.format(sign=re.escape(sign)), text):
        names = tuple(name.strip() for name in match["names"].split(",") if name.strip())
        if not names:
            continue
        span = span_of(path, text, match.start(), match.end())
        line = span.line
        if not lines[line - 1][: span.column - 1].strip():
            line += 1
            while line <= len(lines) and (
                not lines[line - 1].strip() or lines[line - 1].lstrip().startswith(sign)
            ):
                line += 1
        found.append(Suppression(path, line, names, match["reason"].strip(" :-"), span))
    return tuple(found)
