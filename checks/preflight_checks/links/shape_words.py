"""Shapes of a link matrix in words: the nodes they concern, and the directions they cover."""

from __future__ import annotations

from preflight.analysis.link_matrix import Shape, T
from preflight_checks.requirements.hosts import fold


def subject(shape: Shape[T]) -> str:
    """The subject of a verdict about this shape."""
    if shape.kind == "pair":
        return f"{shape.node} {'and' if shape.mutual else 'to'} {shape.other}"
    return f"{shape.kind} {shape.node}".strip()


def pair_list(shape: Shape[T]) -> str:
    """The pairs of a shape; the first four by name."""
    return fold((f"{source} to {peer}" for source, peer in sorted({cell.pair for cell in shape.cells})), 4)


def direction(shape: Shape[T]) -> str:
    """The direction of a shape, in words."""
    if shape.kind == "everybody":
        return f"between any two nodes ({fold(shape.nodes)})"
    if shape.kind == "pair":
        return f"between {shape.node} and {shape.other}" if shape.mutual else f"from {shape.node} to {shape.other}"
    if shape.kind == "around":
        return f"on some links of {shape.node} ({pair_list(shape)})"
    return {"inbound": "to", "outbound": "from"}.get(shape.kind, "to and from") + f" {shape.node}"
