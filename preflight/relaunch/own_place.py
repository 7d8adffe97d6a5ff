"""A script that asks where it lies itself (`$0`, `${BASH_SOURCE[0]}`): its copy answers with the old place."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from preflight.job.span import span_of
from preflight.lazy.patterns import lazy_pattern
from preflight.relaunch.edits import Edit, Refusal
from preflight.sources.shell.document import Document

if TYPE_CHECKING:
    from tree_sitter import Node

_ASKS = lazy_pattern(r"\$\{?(?:0|BASH_SOURCE)\b")
#: `$0`, `${0}`, `$BASH_SOURCE`, `${BASH_SOURCE[0]}`; and with what stands behind the name, two cuts of a path.
_PLAIN = lazy_pattern(r"\$(?:0|BASH_SOURCE)|\$\{(?:0|BASH_SOURCE|BASH_SOURCE\[0\])(?P<cut>%/\*|##\*/)?\}")
_EXPANSIONS = ("simple_expansion", "expansion")


def edits(path: str, text: str, place: str) -> Iterator[Edit]:
    """The edits that put `place`, where the script lies, wherever it asks for that.

    Raises:
        Refusal: it asks in a way that cannot be answered by a word.
    """
    if not _ASKS.search(text):
        return
    document = Document.of_file(path, text)
    pending: list[Node] = [document.root]
    while pending:
        node = pending.pop()
        if node.type in _EXPANSIONS and _ASKS.match(document.of(node).lstrip()):
            start = document.start_of(node)
            found = _PLAIN.fullmatch(document.text, start, node.end_byte)
            if found is None:
                asked = document.text[start : node.end_byte]
                message = f"{asked} depends on where the script lies, and its copy would lie elsewhere"
                raise Refusal(f"{message}; --to the script's own folder keeps that", span_of(path, text, start, start))
            cut = found["cut"]
            answer = posixpath.dirname(place) if cut == "%/*" else posixpath.basename(place) if cut else place
            yield Edit(path, start, node.end_byte, answer)
            continue
        pending.extend(node.children)
