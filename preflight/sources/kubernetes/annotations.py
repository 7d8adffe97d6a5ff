"""`preflight/ignore: "KUB003 reason"` among the annotations of an object or of its pods."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Places, Suppression
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.structured import Kind, Node

KEY = "preflight/ignore"
#: Lines of one object that a suppression can speak of.
_MOST_LINES = 5000
_ID = lazy_pattern(r"[A-Za-z]{3}[0-9]{3}")


def suppressions_of(path: str, places: Places, root: Node) -> Iterator[Suppression]:
    """The suppressions of one object; each speaks of every line of the object it annotates.

    The text begins with ids or names, joined by commas; what follows is the reason.
    """
    for holder, carried in _annotated(root):
        member = carried.member(KEY)
        if member is None or not isinstance(member.node.value, str):
            continue
        names, reason = _parsed(member.node.value)
        span = places.span(member.key_start, member.node.end)
        first, last = places.line(holder.start), places.line(max(holder.start, holder.end - 1))
        lines = range(first, min(last, first + _MOST_LINES) + 1)
        for line in (span.line, *(each for each in lines if each != span.line)):
            yield Suppression(path, line, names, reason, span)


def _annotated(node: Node) -> Iterator[tuple[Node, Node]]:
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


def _parsed(text: str) -> tuple[tuple[str, ...], str]:
    words = text.split()
    names: list[str] = []
    goes_on = False
    while words:
        # `KUB003, KUB004 reason`: a comma, or another id, goes on with the names.
        found = [part for part in words[0].split(",") if part]
        if names and not goes_on and not all(_ID.fullmatch(part) for part in found):
            break
        goes_on = words.pop(0).endswith(",")
        names.extend(found)
    return tuple(dict.fromkeys(names)), " ".join(words)
