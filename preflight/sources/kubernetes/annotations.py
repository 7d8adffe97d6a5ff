"""`preflight/ignore: "KUB003 reason"` among the annotations of an object or of its pods."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.job import Places, Suppression
from preflight.sources.formats.structured import Kind, Node

KEY = "preflight/ignore"
#: Lines of one object that a suppression can cover.
_MAX_LINES = 5000
_ID = re.compile(r"[A-Za-z]{3}[0-9]{3}")


def suppressions_of(places: Places, root: Node) -> Iterator[Suppression]:
    """The suppressions of one object; each covers every line of the object it annotates.

    The text begins with ids or names, joined by commas; what follows is the reason.
    """
    for holder, carried in _annotated_objects(root):
        member = carried.member(KEY)
        if member is None or not isinstance(member.node.value, str):
            continue
        names, reason = _parse(member.node.value)
        span = places.span(member.key_start, member.node.end)
        around = places.span(holder.start, max(holder.start, holder.end - 1))
        lines = range(around.line, min(around.end_line, around.line + _MAX_LINES) + 1)
        for line in (span.line, *(each for each in lines if each != span.line)):
            yield Suppression(around.path, line, names, reason, span)


def _annotated_objects(node: Node) -> Iterator[tuple[Node, Node]]:
    """Every object below `node` that carries annotations."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here.kind is Kind.OBJECT:
            annotations = here.at("metadata", "annotations")
            if annotations is not None and annotations.kind is Kind.OBJECT:
                yield here, annotations
        waiting.extend(member.node for member in here.members)
        waiting.extend(here.items)


def _parse(text: str) -> tuple[tuple[str, ...], str]:
    words = text.split()
    names: list[str] = []
    goes_on = False
    while words:
        # `KUB003, KUB004 reason`: after a comma, or before another id, the list of names continues.
        found = [part for part in words[0].split(",") if part]
        if names and not goes_on and not all(_ID.fullmatch(part) for part in found):
            break
        goes_on = words.pop(0).endswith(",")
        names.extend(found)
    return tuple(dict.fromkeys(names)), " ".join(words)
