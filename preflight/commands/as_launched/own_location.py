"""Scripts that ask for their own location (`$0`, `${BASH_SOURCE[0]}`): the copy contains the original one."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from preflight._util.spans import span_of
from preflight.commands.as_launched.edits import Edit, Refusal
from preflight.sources.shell.shell_document import Document

if TYPE_CHECKING:
    from tree_sitter import Node

_OWN_PATH = re.compile(r"\$\{?(?:0|BASH_SOURCE)\b")
#: `$0`, `${0}`, `$BASH_SOURCE`, `${BASH_SOURCE[0]}`, optionally with one of two ways to cut a path.
_PLAIN = re.compile(r"\$(?:0|BASH_SOURCE)|\$\{(?:0|BASH_SOURCE|BASH_SOURCE\[0\])(?P<cut>%/\*|##\*/)?\}")
_EXPANSIONS = ("simple_expansion", "expansion")


def edits(path: str, text: str, place: str) -> Iterator[Edit]:
    """Return the edits that insert `place`, the original location, wherever the script asks for its own.

    Raises:
        Refusal: it asks in a way that a single word cannot replace.
    """
    if not _OWN_PATH.search(text):
        return
    document = Document.of_file(path, text)
    pending: list[Node] = [document.root]
    while pending:
        node = pending.pop()
        if node.type in _EXPANSIONS and _OWN_PATH.match(document.text_of(node).lstrip()):
            start = document.start_of(node)
            found = _PLAIN.fullmatch(document.text, start, node.end_byte)
            if found is None:
                requested = document.text[start : node.end_byte]
                message = f"{requested} depends on the script's location, which its copy would change"
                raise Refusal(f"{message}; use the script's own folder with --to", span_of(path, text, start, start))
            cut = found["cut"]
            answer = posixpath.dirname(place) if cut == "%/*" else posixpath.basename(place) if cut else place
            yield Edit(path, start, node.end_byte, answer)
            continue
        pending.extend(node.children)
