"""Names that a script exports and no shell accepts: `export NCCL_IB-DISABLE=1` sets nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Known, Places, Scope, Unresolved
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import SourceFile

#: A letter, then what might have been meant as a name, with a sign in it that no name has.
_EXPORTED = lazy_pattern(
    r"^[ \t]*export[ \t]+(?P<said>(?P<name>[A-Za-z_$][\w${}]{0,60}[-.][\w.${}-]{0,60})=(?P<value>[^\s;&|]{0,80}))",
    re.MULTILINE,
)
#: The beginning of a here-document: what it holds is not run.
_HEREDOC = lazy_pattern(r"<<-?[ \t]*[\"']?([A-Za-z_]\w*)[\"']?")
_WORD = "export"


def claims(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """A claim for each export of a name that the shell refuses."""
    if _WORD not in file.text:
        return
    places: Places | None = None
    for match in _EXPORTED.finditer(file.text):
        if _in_heredoc(file.text, match.start()):
            continue
        places = places or Places(file.path, file.text)
        span = places.span(match.start("said"), match.end("said"))
        name = match["name"]
        value = Unresolved("a variable in the name") if "$" in name else Known(name)
        yield Claim("refused_variable", value, span, match["said"], "shell", scope)


def _in_heredoc(text: str, at: int) -> bool:
    """Whether the nearest here-document before an offset is still open there."""
    before = text[max(0, at - 20_000) : at]
    opened = list(_HEREDOC.finditer(before))
    return bool(opened) and re.search(rf"^\s*{opened[-1][1]}$", before[opened[-1].end() :], re.MULTILINE) is None
