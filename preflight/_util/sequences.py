"""Sequences: grouped by key, shortened for display, and how much their values scatter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The second members of pairs by the first, in the order in which they come."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def join_some(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """The first `limit` items, and the number of the others: `a, b and 3 more`."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


def deviation_from(middle: float, values: Iterable[float]) -> float:
    """1.4826 times the median distance of these values (at least one) from their `middle`.

    For a normal distribution around its median this is the standard deviation, and outliers do not change it.
    """
    from statistics import median

    return 1.4826 * median(abs(value - middle) for value in values)
