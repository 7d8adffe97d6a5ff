"""Shapes of a matrix in words: whom they are about, and which ways they cover."""

from __future__ import annotations

from preflight.matrix import Shape, T
from preflight_checks.demands import fold


def subject(shape: Shape[T]) -> str:
    """What a verdict about this shape speaks of."""
    if shape.kind == "pair":
        return f"{shape.node} {'and' if shape.mutual else 'to'} {shape.other}"
    return f"{shape.kind} {shape.node}".strip()


def pair_list(shape: Shape[T]) -> str:
    """The pairs of a shape, the first four by name."""
    return fold((f"{source} to {peer}" for source, peer in sorted({cell.pair for cell in shape.cells})), 4)


def way(shape: Shape[T]) -> str:
    """From whom to whom, in words."""
    if shape.kind == "everybody":
        return f"between any two nodes ({fold(shape.nodes)})"
    if shape.kind == "pair":
        return f"between {shape.node} and {shape.other}" if shape.mutual else f"from {shape.node} to {shape.other}"
    if shape.kind == "around":
        return f"on some links of {shape.node} ({pair_list(shape)})"
    return {"inbound": "to", "outbound": "from"}.get(shape.kind, "to and from") + f" {shape.node}"
